"""The same messages from JSON text to JSON text, for long threads: what is only passed on is not parsed.

Rows of the two usual spellings are read by type; their results and arguments stay the bytes that they are. Where a row
is spelled otherwise or is odd, all are read as `read_row` reads, with the same outcome, but for numbers and depths
beyond the limits of `codec`, which only pass where nothing reads them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw

from callslip.errors import InvalidInputError
from callslip.formats.ai_sdk_v4.rows_convert import RequiresValidation, format_messages_to_vercel, messages_of
from callslip.formats.ai_sdk_v4.wire import (
    AI_MESSAGE,
    AI_TOOL,
    KIND,
    TEXT_BYTES,
    TOOL,
    USER,
    VALIDATED,
    Call,
    Row,
    listed,
    parsed,
)
from callslip.model import codec

NOTHING = Raw(b"null")
EMPTY = (NOTHING, Raw(b'""'))
QUOTE = ord('"')
NO_CALLS: list[Call] = []

Column = TypeVar("Column", str, Raw)


def vercel_json(data: bytes | str, requires_validation: RequiresValidation | None = None) -> bytes:
    """`format_messages_to_vercel` as JSON, from rows as JSON: a list, a document with one, or a row a line."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        return codec.encode(messages_of(_packed(raw), requires_validation))
    except (Odd, KeyError, TypeError, ValueError, RecursionError):  # an unknown kind, times with and without zones, ...
        return codec.encode(format_messages_to_vercel(_unpacked(raw), requires_validation))


class Odd(Exception):
    """A row that is not as these types have it."""


# By type. A content column is text that holds an object, or the object.


class PackedCall(msgspec.Struct, gc=False):
    """A call in its table."""

    name: str
    arguments: str
    id: str = ""
    tool_call_id: str = ""
    validated: bool | int | str | None = None


class PackedMessage(msgspec.Struct, gc=False):
    """What stands in the content of a person or a model."""

    content: Raw = NOTHING
    reasoning: Raw = NOTHING
    role: Raw = NOTHING


class Answer(msgspec.Struct, gc=False):
    """What stands in the content of a tool."""

    content: Raw = NOTHING
    result: Raw = NOTHING
    tool_call_id: str = ""
    toolCallId: str = ""


class Camel(msgspec.Struct, Generic[Column], gc=False, rename="camel"):
    """A row, as one spelling has it."""

    entity: str
    id: str
    creation_date: str
    content: Column
    is_complete: bool | int
    tool_calls: list[PackedCall] = []


class Snake(msgspec.Struct, Generic[Column], gc=False, rename={"id": "message_id"}):
    """A row, as the other has it."""

    entity: str
    id: str
    creation_date: str
    content: Column
    is_complete: bool | int
    tool_calls: list[PackedCall] = []


Packed: TypeAlias = Camel[str] | Camel[Raw] | Snake[str] | Snake[Raw]

_ROWS: tuple[Any, ...] = (Camel[str], Snake[str], Camel[Raw], Snake[Raw])
_READ = [(msgspec.json.Decoder(list[row]).decode, msgspec.json.Decoder(row).decode_lines) for row in _ROWS]
_said = msgspec.json.Decoder(PackedMessage).decode
_answer = msgspec.json.Decoder(Answer).decode
_json = msgspec.json.Decoder(Raw).decode
_time = datetime.fromisoformat


def _packed(raw: bytes) -> list[Row]:
    lines = raw.lstrip()[:1] != b"["
    for read in _READ:
        try:
            found = cast("list[Packed]", read[lines](raw))
        except msgspec.ValidationError:
            continue
        if found and isinstance(found[0].content, Raw):
            raw.decode()  # UTF-8 is checked only in what is read as text
        return [_MADE[packed.entity](packed) for packed in found]
    raise Odd


def _spoken(packed: Packed) -> Row:
    said, created = _said(packed.content), packed.creation_date
    text, reasoning = _text(said.content), _text(said.reasoning)
    if not (packed.id and (text or said.role != NOTHING)):
        raise Odd
    complete = bool(packed.is_complete)
    return Row(KIND[packed.entity], packed.id, created, _time(created), None, complete, text, reasoning)


def _calling(packed: Packed) -> Row:
    said, created = _said(packed.content), packed.creation_date
    text, reasoning = _text(said.content), _text(said.reasoning)
    if not (packed.id and packed.tool_calls and (text or said.role != NOTHING)):
        raise Odd
    calls = [_call(asked) for asked in packed.tool_calls]
    complete = bool(packed.is_complete)
    return Row(AI_TOOL, packed.id, created, _time(created), None, complete, text, reasoning, UNSET, calls)


def _result(packed: Packed) -> Row:
    said, created = _answer(packed.content), packed.creation_date
    answers, result = said.tool_call_id or said.toolCallId, said.content
    if result in EMPTY:
        result = "" if said.result in EMPTY else said.result
    if not (packed.id and answers):
        raise Odd
    complete = bool(packed.is_complete)
    return Row(TOOL, packed.id, created, _time(created), None, complete, "", "", UNSET, NO_CALLS, answers, result)


_BY_KIND = {USER: _spoken, AI_TOOL: _calling, TOOL: _result, AI_MESSAGE: _spoken}
_MADE = {word: _BY_KIND[kind] for word, kind in KIND.items()}


def _text(raw: Raw) -> Any:
    """A text as it stands."""
    if raw in EMPTY:
        return ""
    if memoryview(raw)[0] != QUOTE:
        raise Odd
    return raw


def _call(asked: PackedCall) -> Call:
    named = asked.tool_call_id or asked.id
    return Call(named, asked.name, _args(asked.arguments), VALIDATED.get(asked.validated, ""))


def _args(given: str) -> Any:
    if given.count("[") + given.count("{") < codec.MAX_DEPTH:
        try:
            return _json(given)
        except msgspec.DecodeError:
            pass
    return parsed(given, given) if given.strip() else {}


# As ever


def _unpacked(raw: bytes) -> list[Any]:
    """The rows of a text: one JSON value, or one a line."""
    try:
        values = [codec.parse_json(raw, max_bytes=TEXT_BYTES)]
    except InvalidInputError:
        values = [codec.parse_json(line, max_bytes=TEXT_BYTES) for line in raw.splitlines() if line.strip()]
    return [row for value in values for row in listed(value)]
