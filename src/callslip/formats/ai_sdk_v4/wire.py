"""Read a stored row in each spelling of its columns.

A chat backend stores a thread as rows of four kinds: USER, AI_TOOL (a model round with calls), TOOL (one result) and
AI_MESSAGE. A row is a dict or any other mapping, or an object with attributes: an ORM object, a dataclass, a pydantic
model, a named tuple. Columns are in snake_case or camelCase. `content` is a JSON object, that object as text, or plain
text; so are the arguments of a call. A value of the wrong type counts as absent, and unknown content sets `needs_raw`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import as_str, parse_json_or
from callslip.model import codec

FORMAT = "rows"
USER, AI_TOOL, TOOL, AI_MESSAGE = KINDS = ("USER", "AI_TOOL", "TOOL", "AI_MESSAGE")
KIND = {word: kind for kind in KINDS for word in (kind, kind.lower())}
MAX_TEXT_BYTES = 256 * 2**20

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
COLLECTIONS = (list, tuple, set, frozenset)
VALUES = (str, bytes, int, float, list, set, frozenset, type)
"""Types of values without fields."""

# Known fields of a row, of its content and of one of its calls.
KNOWN_FIELDS = {"entity", *ID, *CREATED, *COMPLETE, *CONTENT, *CALLS, *THREAD, *ANSWERS}
CONTENT_FIELDS = {"role", "content", "reasoning", "result", *TOOL_NAME, *CALLS, *ANSWERS}
CALL_FIELDS = {"name", "arguments", "validated", "function", "type", "index", "message_id", "messageId", *CALL_ID}

# The answer of a user, as the column stores it and as messages show it.
ACCEPTED, REJECTED, PENDING, NOT_REQUIRED = ANSWERS_SHOWN = ("accepted", "rejected", "pending", "not_required")
VALIDATED: dict[Any, str] = {True: ACCEPTED, False: REJECTED, **{word: word for word in ANSWERS_SHOWN}}


class Call(msgspec.Struct, gc=False):
    """A call of an AI_TOOL row. `validated` is "" if the row has no answer."""

    id: str
    name: str
    args: Any
    validated: str = ""


class Row(msgspec.Struct, gc=False):
    """One row. `id` is "" and `at` None if it has none; `number` is a numeric id. Texts may be raw JSON."""

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
    needs_raw: bool = False
    body: Any = None


def rows_in(message: Any) -> list[Any]:
    """Return the rows of a document, a list or an object with one; any other message is one row."""
    fields = as_mapping(message)
    inner: Any = None if "entity" in fields else first_value(fields, LISTS)
    for rows in (message, inner):
        if isinstance(rows, list):
            return cast("list[Any]", rows)
    return [message]


def read_row(value: Any) -> Row | None:
    """Return a row; None if a value is not one."""
    fields = fields_of(value)
    kind = KIND.get(kind_word(fields.get("entity")))
    if kind is None:
        return None
    row_id, created = first_value(fields, ID), first_value(fields, CREATED)
    content = read_content(first_value(fields, CONTENT))
    row = Row(
        kind,
        as_id(row_id),
        created,
        read_time(created),
        row_id if type(row_id) is int else None,
        as_bool(first_value(fields, COMPLETE)),
        needs_raw=_has_other_fields(fields, KNOWN_FIELDS) or _has_other_fields(content, CONTENT_FIELDS),
        body=value if not isinstance(fields, Attributes) else None if row_id is not None else plain_row(value),
    )
    _FILL[kind](row, fields, content)
    return row


def _fill_text(row: Row, fields: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    row.text, row.reasoning = text_of(content.get("content")), text_of(content.get("reasoning"))
    if isinstance(content.get("content"), list):
        row.blocks = content["content"]


def _fill_calls(row: Row, fields: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    _fill_text(row, fields, content)
    column: Any = first_value(fields, CALLS) or first_value(content, CALLS)
    calls = parse_text(column) if isinstance(column, str) else column
    is_list = isinstance(calls, COLLECTIONS)
    items = [read_attributes(item, CALL_FIELDS) for item in cast("Iterable[Any]", calls)] if is_list else []
    row.calls = [_read_call(item) for item in items if item]
    has_odd_calls = len(row.calls) != len(items) or any(_has_other_fields(item, CALL_FIELDS) for item in items)
    has_odd_calls = has_odd_calls or (bool(calls) and not is_list)
    row.needs_raw = row.needs_raw or has_odd_calls


def _fill_result(row: Row, fields: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    row.answers = as_id(first_value(content, ANSWERS)) or as_id(first_value(fields, ANSWERS))
    result = first_value(content, ("content", "result"))
    row.result = "" if result is None else result
    row.tool = as_id(first_value(content, TOOL_NAME))


_FILL = {USER: _fill_text, AI_TOOL: _fill_calls, TOOL: _fill_result, AI_MESSAGE: _fill_text}


def _read_call(item: Mapping[str, Any]) -> Call:
    """Return a call in the form of its table, or of the model's message, inside of `function`."""
    fields = {**as_mapping(item.get("function")), **item}
    validated = fields.get("validated")
    answer = VALIDATED.get(validated, "") if isinstance(validated, bool | int | str) else ""
    arguments = fields.get("arguments")
    arguments = "" if arguments is None else arguments
    value = parse_text(arguments) if isinstance(arguments, str) else arguments
    return Call(as_id(first_value(item, CALL_ID)), as_str(fields.get("name")), value, answer)


def parse_text(arguments: str) -> Any:
    """Return the value of a JSON text, {} for an empty one. Other text stays text: only its row is affected."""
    return parse_json_or(arguments, arguments, MAX_TEXT_BYTES) if arguments.strip() else {}


def read_content(column: Any) -> Mapping[str, Any]:
    """Return the fields of a content column; any other text is the content itself."""
    value = parse_json_or(column, column, MAX_TEXT_BYTES) if isinstance(column, str) else column
    fields = read_attributes(value, CONTENT_FIELDS)
    if not CONTENT_FIELDS.isdisjoint(fields):
        return fields
    return {} if column is None or value == {} else {"content": value if isinstance(value, str) else column}


def text_of(value: Any) -> str:
    """Return content as one text: the texts of a list of blocks, JSON of anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        blocks = cast("list[Any]", value)
        texts = [as_mapping(block).get("text") if isinstance(block, Mapping) else block for block in blocks]
        return "\n".join(text for text in texts if isinstance(text, str) and text)
    return "" if value is None else codec.encode(codec.to_json(value)).decode()


# Times


def read_time(created: Any) -> datetime | None:
    """Return a time of a row: ISO text, a datetime, seconds or milliseconds. Without a zone it is UTC."""
    try:
        if isinstance(created, str):
            created = datetime.fromisoformat(created)
        elif isinstance(created, int | float) and not isinstance(created, bool):
            return datetime.fromtimestamp(created / 1000 if created > _MIN_MS else created, UTC)
        if isinstance(created, datetime):
            return created if created.tzinfo is not None else created.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


_MIN_MS = 10**11
"""As seconds this is the year 5138, as milliseconds 1973."""


def shown_time(created: Any) -> str | None:
    """Return a time as messages show it: text unchanged, anything else in the form of JavaScript."""
    if isinstance(created, str):
        return created
    at = read_time(created)
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


# Objects


class Attributes(Mapping[str, Any]):
    """The attributes of an object as fields. Each is read when it is used: an ORM may load it from the database.

    Methods are not fields. The names are not listed, as an object may have attributes that are not columns.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __getitem__(self, name: str) -> Any:
        found = getattr(self._value, name, None)
        if found is None or callable(found):
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def fields_of(value: Any) -> Mapping[str, Any]:
    """Return the fields of a mapping, of a row of a database driver, or of an object with attributes."""
    if type(value) is dict or isinstance(value, Mapping):  # The check for Mapping is ten times slower.
        return cast("Mapping[str, Any]", value)
    if value is None or isinstance(value, VALUES):
        return {}
    if callable(getattr(value, "keys", None)) and hasattr(value, "__getitem__"):  # A row of sqlite3 or asyncpg.
        return cast("dict[str, Any]", dict(value))
    return Attributes(value)


def read_attributes(value: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """Return the fields of a mapping, or those attributes of an object that it has."""
    fields = fields_of(value)
    return {name: fields[name] for name in names if name in fields} if isinstance(fields, Attributes) else fields


def plain_row(value: Any) -> Any:
    """Return an object with attributes as a dict, if it is a row; any other value unchanged."""
    fields = fields_of(value)
    kind = KIND.get(kind_word(fields.get("entity")))
    if isinstance(value, dict) or kind is None:
        return cast(Any, value)
    names = KNOWN_FIELDS if kind == AI_TOOL else KNOWN_FIELDS - {*CALLS}
    row = {**{name: fields[name] for name in sorted(names) if name in fields}, **fields, "entity": kind}
    for name in CALLS:
        if isinstance(row.get(name), COLLECTIONS):
            row[name] = [{**read_attributes(item, CALL_FIELDS)} or item for item in row[name]]
    return row


def kind_word(entity: Any) -> str:
    """Return the kind of a row as text: of an enumeration the value, or the name if that is the kind."""
    if isinstance(entity, Enum):
        return entity.value if isinstance(entity.value, str) and entity.value in KIND else entity.name
    return as_str(entity)


# Values


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping, or {} for anything else. Rows from a database driver need not be dicts."""
    if type(value) is dict or isinstance(value, Mapping):  # The check for Mapping is ten times slower.
        return cast("Mapping[str, Any]", value)
    return {}


def first_value(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first of some fields that is neither null nor ""."""
    for name in names:
        value = fields.get(name)
        if value is not None and value != "":
            return value
    return None


def as_id(value: Any) -> str:
    """Return an id as text; "" for none."""
    if isinstance(value, str):
        return value
    is_id = isinstance(value, int | UUID) and not isinstance(value, bool)
    return str(value) if is_id else ""


def as_bool(value: Any) -> bool | None:
    """Return a boolean, which some databases store as a number; None for anything else."""
    return bool(value) if isinstance(value, bool | int) else None


def _has_other_fields(fields: Mapping[str, Any], known: set[str]) -> bool:
    """Return whether a field outside `known` has a value other than null and an empty list."""
    return not fields.keys() <= known and any(
        value is not None and value != [] for name, value in fields.items() if name not in known
    )
