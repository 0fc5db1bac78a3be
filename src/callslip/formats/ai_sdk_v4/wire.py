"""A stored row: what it is called in each spelling, and what it says. No rules about calls.

A chat backend keeps a thread as rows of four kinds: USER, AI_TOOL (a model round that calls tools), TOOL (one result)
and AI_MESSAGE. Columns are read in snake_case and camelCase. `content` is a JSON object, that object as text, or plain
text; the arguments of a call likewise. A value of the wrong type says nothing, and what is not taken over sets `more`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import UNSET

from callslip.errors import InvalidInputError
from callslip.model import codec

FORMAT = "rows"
USER, AI_TOOL, TOOL, AI_MESSAGE = KINDS = ("USER", "AI_TOOL", "TOOL", "AI_MESSAGE")
KIND = {word: kind for kind in KINDS for word in (kind, kind.lower())}
TEXT_BYTES = 256 * 2**20

ID = ("message_id", "messageId", "id")
CREATED = ("creationDate", "creation_date", "createdAt", "created_at")
COMPLETE = ("isComplete", "is_complete")
CONTENT = ("content", "msg_content")
CALLS = ("toolCalls", "tool_calls")
THREAD = ("threadId", "thread_id")
ANSWERS = ("tool_call_id", "toolCallId")
CALL_ID = (*ANSWERS, "id")
TOOL_NAME = ("tool_name", "toolName", "name")
LISTS = ("rows", "messages", "results")

# What is told by a row, by its content and by one of its calls; anything else is more than is taken over.
KNOWN_FIELDS = {"entity", *ID, *CREATED, *COMPLETE, *CONTENT, *CALLS, *THREAD, *ANSWERS}
SAID = {"role", "content", "reasoning", "result", *TOOL_NAME, *CALLS, *ANSWERS}
ASKED = {"name", "arguments", "validated", "function", "type", "index", "message_id", "messageId", *CALL_ID}

# S4.3: the answer of a person, as the column holds it and as it is shown.
ACCEPTED, REJECTED, PENDING, NOT_REQUIRED = WORDS = ("accepted", "rejected", "pending", "not_required")
VALIDATED: dict[Any, str] = {True: ACCEPTED, False: REJECTED, **{word: word for word in WORDS}}


class Call(msgspec.Struct, gc=False):
    """A call of an AI_TOOL row. `validated` is "" where the row does not say."""

    id: str
    name: str
    args: Any
    validated: str = ""


class Row(msgspec.Struct, gc=False):
    """One row. `id` is "" and `at` None if it has none; `number` is an id that counts. Texts may be packed JSON."""

    kind: str
    id: str
    created: Any = None
    at: datetime | None = None
    number: int | None = None
    complete: bool | None = None
    text: Any = ""
    reasoning: Any = ""
    blocks: Any = UNSET
    calls: list[Call] = []
    answers: str = ""
    result: Any = ""
    tool: str = ""
    more: bool = False
    body: Any = None


def listed(message: Any) -> list[Any]:
    """The rows of a document, which is a list or an object that holds one; any other message by itself."""
    inside = members(message)
    held: Any = None if "entity" in inside else first(inside, LISTS)
    for rows in (message, held):
        if isinstance(rows, list):
            return cast("list[Any]", rows)
    return [message]


def read_row(value: Any) -> Row | None:
    """What a row says; None if it is none."""
    fields = members(value)
    kind = KIND.get(_word(fields.get("entity")))
    if kind is None:
        return None
    identity, created = first(fields, ID), first(fields, CREATED)
    said = contents(first(fields, CONTENT))
    row = Row(
        kind,
        name_of(identity),
        created,
        when(created),
        identity if type(identity) is int else None,
        flag(first(fields, COMPLETE)),
        more=_leaves(fields, KNOWN_FIELDS) or _leaves(said, SAID),
        body=value,
    )
    _FILL[kind](row, fields, said)
    return row


def _fill_spoken(row: Row, fields: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    row.text, row.reasoning = text_of(said.get("content")), text_of(said.get("reasoning"))
    if isinstance(said.get("content"), list):
        row.blocks = said["content"]


def _fill_calls(row: Row, fields: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    _fill_spoken(row, fields, said)
    given: Any = first(fields, CALLS) or first(said, CALLS)
    items = [members(item) for item in cast("list[Any]", given)] if isinstance(given, list) else []
    row.calls = [_call(item) for item in items if item]
    row.more = row.more or len(row.calls) != len(items) or any(_leaves(item, ASKED) for item in items)


def _fill_answer(row: Row, fields: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    row.answers = name_of(first(said, ANSWERS)) or name_of(first(fields, ANSWERS))
    found = first(said, ("content", "result"))
    row.result = "" if found is None else found
    row.tool = name_of(first(said, TOOL_NAME))


_FILL = {USER: _fill_spoken, AI_TOOL: _fill_calls, TOOL: _fill_answer, AI_MESSAGE: _fill_spoken}


def _call(item: Mapping[str, Any]) -> Call:
    """A call as its table holds it, or as the model's message does, within `function`."""
    inner = {**members(item.get("function")), **item}
    name, validated = inner.get("name"), inner.get("validated")
    known = VALIDATED.get(validated, "") if isinstance(validated, bool | int | str) else ""
    return Call(name_of(first(item, CALL_ID)), name if isinstance(name, str) else "", args_of(inner), known)


def args_of(inner: Mapping[str, Any]) -> Any:
    """Arguments; text that is no JSON stays text, so that only this call is worse for it (C11)."""
    given = inner.get("arguments")
    if not isinstance(given, str):
        return {} if given is None else given
    return parsed(given, given) if given.strip() else {}


def contents(column: Any) -> Mapping[str, Any]:
    """The members of a content column; text that is no such object is all that is said."""
    value = parsed(column, column) if isinstance(column, str) else column
    inside = members(value)
    if not SAID.isdisjoint(inside):
        return inside
    return {} if column is None or value == {} else {"content": value if isinstance(value, str) else column}


def text_of(value: Any) -> str:
    """What is said, as one text: of a list of blocks their texts, of anything else its JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_block_text, cast("list[Any]", value))))
    return "" if value is None else codec.encode(codec.to_json(value)).decode()


def _block_text(block: Any) -> str:
    told = members(block).get("text", "") if isinstance(block, Mapping) else block
    return told if isinstance(told, str) else ""


def parsed(text: str, otherwise: Any) -> Any:
    """The value of a JSON text."""
    try:
        return codec.parse_json(text, max_bytes=TEXT_BYTES)
    except InvalidInputError:
        return otherwise


# Times


def when(created: Any) -> datetime | None:
    """A time as rows hold it: ISO text, a datetime, seconds or milliseconds. Without a zone it is UTC."""
    try:
        if isinstance(created, str):
            created = datetime.fromisoformat(created)
        elif isinstance(created, int | float) and not isinstance(created, bool):
            return datetime.fromtimestamp(created / 1000 if created > _MS else created, UTC)
        if isinstance(created, datetime):
            return created if created.tzinfo is not None else created.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


_MS = 10**11
"""Seconds reach this in the year 5138; milliseconds did in 1973."""


def shown_time(created: Any) -> str | None:
    """A time as messages show it: text as it stands, anything else in the form that JavaScript writes."""
    if isinstance(created, str):
        return created
    at = when(created)
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


# Values


def members(value: Any) -> Mapping[str, Any]:
    """The members of an object; of anything else none."""
    if type(value) is dict or isinstance(value, Mapping):  # asking for a Mapping costs ten times as much
        return cast("Mapping[str, Any]", value)
    return {}


def first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """What the first of these names says that says anything: null and "" do not."""
    for name in names:
        value = fields.get(name)
        if value is not None and value != "":
            return value
    return None


def name_of(value: Any) -> str:
    """An id as text; "" for none."""
    if isinstance(value, str):
        return value
    named = isinstance(value, int | UUID) and not isinstance(value, bool)
    return str(value) if named else ""


def flag(value: Any) -> bool | None:
    """A truth as JSON has it, or as databases without that type do; None if nothing is said."""
    return bool(value) if isinstance(value, bool | int) else None


def _word(entity: Any) -> str:
    if isinstance(entity, Enum):
        entity = entity.value if isinstance(entity.value, str) else entity.name
    return entity if isinstance(entity, str) else ""


def _leaves(said: Mapping[str, Any], taken: set[str]) -> bool:
    """Whether there is more to it than is taken over: null and empty lists are nothing."""
    return not said.keys() <= taken and any(
        value is not None and value != [] for name, value in said.items() if name not in taken
    )
