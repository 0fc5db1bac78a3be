"""Convert stored rows to messages of the AI SDK 4, newest first.

From the oldest row on, the texts and calls of the model are collected; the next AI_MESSAGE row makes one message of
them, a USER row or the end makes a placeholder. A result belongs to the newest call with its id; one before its call is
held for it within the message; the first result counts. A result without a call, and a row of an unknown kind, is in no
message. A value that has no kind is not a row, and raises.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from msgspec import UNSET, Raw

from callslip.errors import InvalidInputError
from callslip.formats.ai_sdk_v4.messages import (
    CallNote,
    Invocation,
    Message,
    MessageNote,
    Note,
    Part,
    Reasoning,
    Text,
    ToolInvocation,
    plain,
)
from callslip.formats.ai_sdk_v4.rows_order import oldest_first
from callslip.formats.ai_sdk_v4.wire import (
    AI_MESSAGE,
    AI_TOOL,
    KINDS,
    NOT_REQUIRED,
    PENDING,
    TOOL,
    USER,
    Row,
    fields_of,
    read_row,
    shown_time,
)
from callslip.formats.base import RequiresValidation
from callslip.model import codec


def format_messages_to_vercel(
    rows: Iterable[Any], requires_validation: RequiresValidation | None = None
) -> list[dict[str, Any]]:
    """Return stored rows, in any order, as the messages of a chat, newest first. The rows are not changed.

    A row is an ORM object, a dataclass, a pydantic model or a dict, with names in snake_case or camelCase. Another
    value raises InvalidInputError with its index. `requires_validation` returns for a tool name whether a user must
    accept its calls.
    """
    return plain(messages_of(_read_rows(rows), requires_validation))


def _read_rows(values: Iterable[Any]) -> list[Row]:
    rows: list[Row] = []
    for index, value in enumerate(values):
        row = read_row(value)
        if row is not None:
            rows.append(row)
        else:
            _check_kind(value, index)
    return rows


def _check_kind(value: Any, index: int) -> None:
    """Raise unless a value is a row of an unknown kind."""
    entity = fields_of(value).get("entity")
    if entity is None or entity == "":
        raise InvalidInputError(
            f"rows[{index}]",
            f"{type(value).__name__!r} without a field `entity` is not a row. Pass an ORM object, a dataclass, a "
            "pydantic model or a dict.",
        )
    if not isinstance(entity, str | Enum):
        problem = f"must be one of {', '.join(KINDS)}, got {reprlib.repr(entity)}"
        raise InvalidInputError(f"rows[{index}].entity", problem)


def messages_of(rows: list[Row], requires_validation: RequiresValidation | None = None) -> list[Message]:
    """Return the messages of rows, newest first."""
    thread = _Thread(requires_validation or {})
    ordered = _without_repetitions(oldest_first(rows))
    for row in ordered:
        thread.handlers[row.kind](row)
    thread.end(ordered[-1].created if ordered else None)
    return thread.messages[::-1]


def _without_repetitions(rows: list[Row]) -> list[Row]:
    """Return rows without exact repetitions, which overlapping pages have."""
    first = {row.id: row for row in reversed(rows)}
    if len(first) == len(rows):
        return rows
    return [row for row in rows if not row.id or first[row.id] is row or first[row.id] != row]


# Few function calls per row: long threads have a budget of a few microseconds per row.


class _Thread:
    """A thread, read from its oldest row on.

    `_calls` has the newest call of each id with the index of its message; `_early` the results in the current message
    before their calls.
    """

    def __init__(self, requires: RequiresValidation) -> None:
        self.messages: list[Message] = []
        self.handlers = {USER: self._user, AI_TOOL: self._ai_tool, TOOL: self._tool, AI_MESSAGE: self._ai_message}
        self._requires: Callable[[str], bool | None] = requires if callable(requires) else requires.get
        self._calls: dict[str, tuple[int, Invocation, CallNote]] = {}
        self._early: dict[str, Row] = {}
        self._unnamed: dict[str, int] = {}
        self._parts: list[Part] = []
        self._notes: list[Note] = []
        self._first = ""
        self._step = 0

    def end(self, created: Any) -> None:
        """Make a message of parts that no row completes."""
        if self._parts:
            message_id = str(uuid5(NAMESPACE_URL, f"callslip:placeholder:{self._first}"))
            self._message(message_id, "assistant", created, "", False)
        self._flush()

    def _user(self, row: Row) -> None:
        self.end(row.created)
        if row.text:
            self._parts.append(Text(row.text))
        self._message(row.id or self._invent_id(row), "user", row.created, row.text, row.complete)

    def _ai_message(self, row: Row) -> None:
        self._add_texts(row)
        self._message(row.id or self._invent_id(row), "assistant", row.created, row.text, row.complete)

    def _message(self, message_id: str, role: str, created: Any, text: str | Raw, complete: bool | None) -> None:
        parts, notes = self._parts, self._notes
        notes.append(MessageNote(message_id, complete is not False))
        time = created if type(created) is str else shown_time(created)
        self.messages.append(Message(message_id, role, time, text, parts, notes))
        self._flush()
        self._parts, self._notes, self._first, self._step = [], [], "", 0

    def _flush(self) -> None:
        """Match held results without a call in this message with calls of earlier ones."""
        if self._early:
            for row in self._early.values():
                self._merge(row)
            self._early = {}

    def _add_texts(self, row: Row) -> None:
        """Add the texts of a row, reasoning first."""
        if row.reasoning:
            self._parts.append(Reasoning(row.reasoning, [Text(row.reasoning)]))
        if row.text:
            self._parts.append(Text(row.text))

    def _ai_tool(self, row: Row) -> None:
        row_id = row.id or self._invent_id(row)
        self._first = self._first or row_id
        self._add_texts(row)
        position, is_complete = len(self.messages), row.complete is True
        for number, call in enumerate(row.calls):
            name = call.id or f"{row_id}#{number}"
            validated = call.validated or (PENDING if self._requires(call.name) else NOT_REQUIRED)
            invocation = Invocation("call", self._step, name, call.name, call.args)
            note = CallNote(name, validated, is_complete)
            self._parts.append(ToolInvocation(invocation))
            self._notes.append(note)
            self._calls[name] = position, invocation, note
            if name in self._early:
                self._merge(self._early.pop(name))
        self._step += bool(row.calls)

    def _tool(self, row: Row) -> None:
        call = self._calls.get(row.answers)
        if call is not None and call[0] == len(self.messages):
            self._merge(row)
        elif row.answers:
            self._early.setdefault(row.answers, row)

    def _merge(self, row: Row) -> None:
        """Give the newest call of an id its first result."""
        call = self._calls.get(row.answers)
        if call is not None and call[1].result is UNSET:
            _, invocation, note = call
            invocation.result, invocation.state = row.result, "result"
            note.is_complete = row.complete is not False

    def _invent_id(self, row: Row) -> str:
        """Return an id for a row without one: from its content and its number among equal rows."""
        digest = codec.digest(codec.encode(codec.to_json(row.body)))
        number = self._unnamed[digest] = self._unnamed.get(digest, 0) + 1
        return str(uuid5(NAMESPACE_URL, f"callslip:row:{digest}:{number}"))
