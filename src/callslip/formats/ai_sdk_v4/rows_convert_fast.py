"""Convert rows to messages from JSON text to JSON text, for long threads: values that only pass through are not parsed.

Rows of the two usual spellings are read by type; their results and arguments stay bytes. If one row has another
spelling or is odd, `read_row` reads all of them, with the same outcome except for numbers and depths beyond the limits
of `codec`, which are not checked in unparsed values.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw

from callslip.errors import InvalidInputError
from callslip.formats.ai_sdk_v4.rows_convert import format_messages_to_vercel, messages_of
from callslip.formats.ai_sdk_v4.wire import (
    AI_MESSAGE,
    AI_TOOL,
    KIND,
    MAX_TEXT_BYTES,
    TOOL,
    USER,
    VALIDATED,
    Call,
    Row,
    parse_text,
    rows_in,
)
from callslip.formats.base import RequiresValidation
from callslip.model import codec

NULL = Raw(b"null")
EMPTY = (NULL, Raw(b'""'))
QUOTE = ord('"')
NO_CALLS: list[Call] = []

Column = TypeVar("Column", str, Raw)


def vercel_json(data: bytes | str, requires_validation: RequiresValidation | None = None) -> bytes:
    """Return `format_messages_to_vercel` as JSON, from rows as JSON: a list, a document, or one row per line."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        return codec.encode(messages_of(_read_packed(raw), requires_validation))
    except (
        UnusualRowError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ):  # An unknown kind, times with and without zones, ...
        return codec.encode(format_messages_to_vercel(_read_values(raw), requires_validation))


class UnusualRowError(Exception):
    """A row does not fit the types below."""


# Types. A content column is an object, or an object as text.


class PackedCall(msgspec.Struct, gc=False):
    """A call."""

    name: str
    arguments: str
    id: str = ""
    tool_call_id: str = ""
    validated: bool | int | str | None = None


class PackedMessage(msgspec.Struct, gc=False):
    """The content of a user's or model's row."""

    content: Raw = NULL
    reasoning: Raw = NULL
    role: Raw = NULL


class PackedResult(msgspec.Struct, gc=False):
    """The content of a tool's row."""

    content: Raw = NULL
    result: Raw = NULL
    tool_call_id: str = ""
    toolCallId: str = ""


class Camel(msgspec.Struct, Generic[Column], gc=False, rename="camel"):
    """A row in camelCase."""

    entity: str
    id: str
    creation_date: str
    content: Column
    is_complete: bool | int
    tool_calls: list[PackedCall] = []


class Snake(msgspec.Struct, Generic[Column], gc=False, rename={"id": "message_id"}):
    """A row in snake_case."""

    entity: str
    id: str
    creation_date: str
    content: Column
    is_complete: bool | int
    tool_calls: list[PackedCall] = []


Packed: TypeAlias = Camel[str] | Camel[Raw] | Snake[str] | Snake[Raw]

_ROWS: tuple[Any, ...] = (Camel[str], Snake[str], Camel[Raw], Snake[Raw])
_READ = [(msgspec.json.Decoder(list[row]).decode, msgspec.json.Decoder(row).decode_lines) for row in _ROWS]
_decode_message = msgspec.json.Decoder(PackedMessage).decode
_decode_result = msgspec.json.Decoder(PackedResult).decode
_decode_json = msgspec.json.Decoder(Raw).decode
_parse_time = datetime.fromisoformat


def _read_packed(raw: bytes) -> list[Row]:
    lines = raw.lstrip()[:1] != b"["
    for read in _READ:
        try:
            rows = cast("list[Packed]", read[lines](raw))
        except msgspec.ValidationError:
            continue
        if rows and isinstance(rows[0].content, Raw):
            raw.decode()  # Only values that are read as text are checked for UTF-8.
        return [_READERS[packed.entity](packed) for packed in rows]
    raise UnusualRowError


def _text_row(packed: Packed) -> Row:
    message, created = _decode_message(packed.content), packed.creation_date
    text, reasoning = _text(message.content), _text(message.reasoning)
    if not (packed.id and (text or message.role != NULL)):
        raise UnusualRowError
    complete = bool(packed.is_complete)
    return Row(KIND[packed.entity], packed.id, created, _parse_time(created), None, complete, text, reasoning)


def _call_row(packed: Packed) -> Row:
    message, created = _decode_message(packed.content), packed.creation_date
    text, reasoning = _text(message.content), _text(message.reasoning)
    if not (packed.id and packed.tool_calls and (text or message.role != NULL)):
        raise UnusualRowError
    calls = [
        Call(call.tool_call_id or call.id, call.name, _arguments(call.arguments), VALIDATED.get(call.validated, ""))
        for call in packed.tool_calls
    ]
    complete = bool(packed.is_complete)
    return Row(AI_TOOL, packed.id, created, _parse_time(created), None, complete, text, reasoning, UNSET, calls)


def _result_row(packed: Packed) -> Row:
    answer, created = _decode_result(packed.content), packed.creation_date
    answers, result = answer.tool_call_id or answer.toolCallId, answer.content
    if result in EMPTY:
        result = "" if answer.result in EMPTY else answer.result
    if not (packed.id and answers):
        raise UnusualRowError
    complete = bool(packed.is_complete)
    return Row(TOOL, packed.id, created, _parse_time(created), None, complete, "", "", UNSET, NO_CALLS, answers, result)


_BY_KIND = {USER: _text_row, AI_TOOL: _call_row, TOOL: _result_row, AI_MESSAGE: _text_row}
_READERS = {word: _BY_KIND[kind] for word, kind in KIND.items()}


def _text(raw: Raw) -> Any:
    """Return a text as JSON."""
    if raw in EMPTY:
        return ""
    if memoryview(raw)[0] != QUOTE:
        raise UnusualRowError
    return raw


def _arguments(text: str) -> Any:
    if text.count("[") + text.count("{") < codec.MAX_DEPTH:
        try:
            return _decode_json(text)
        except msgspec.DecodeError:
            pass
    return parse_text(text)


# Any rows


def _read_values(raw: bytes) -> list[Any]:
    """Return the rows of a text: one JSON value, or one per line."""
    try:
        values = [codec.parse_json(raw, max_bytes=MAX_TEXT_BYTES)]
    except InvalidInputError:
        values = [codec.parse_json(line, max_bytes=MAX_TEXT_BYTES) for line in raw.splitlines() if line.strip()]
    return [row for value in values for row in rows_in(value)]
