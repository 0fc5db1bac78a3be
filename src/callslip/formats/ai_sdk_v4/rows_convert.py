"""Stored rows as messages of the AI SDK 4, newest first (S4.1).

From the oldest row on, what the model says and calls is gathered; the AI_MESSAGE row that follows makes one message of
it, a USER row or the end a placeholder (S4.4). A result belongs to the newest call of its id; one that comes before its
call waits for it as long as that message is gathered; the first result counts. A result without a call, and a row of an
unknown kind, is in no message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias
from uuid import NAMESPACE_URL, uuid5

from msgspec import UNSET, Raw

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
    NOT_REQUIRED,
    PENDING,
    TOOL,
    USER,
    Row,
    read_row,
    shown_time,
)
from callslip.model import codec

RequiresValidation: TypeAlias = Mapping[str, bool] | Callable[[str], bool]


def format_messages_to_vercel(
    rows: Iterable[Any], requires_validation: RequiresValidation | None = None
) -> list[dict[str, Any]]:
    """Stored rows, in any order, as the messages of a chat, newest first. Nothing that is given is changed (S4.9).

    `requires_validation` says of a tool's name whether a person has to accept its calls (S4.3).
    """
    found = [row for row in map(read_row, rows) if row is not None]
    return plain(messages_of(found, requires_validation))


def messages_of(rows: list[Row], requires_validation: RequiresValidation | None = None) -> list[Message]:
    """The messages of rows, newest first."""
    thread = _Thread(requires_validation or {})
    ordered = _once(oldest_first(rows))
    for row in ordered:
        thread.rules[row.kind](row)
    thread.end(ordered[-1].created if ordered else None)
    return thread.messages[::-1]


def _once(rows: list[Row]) -> list[Row]:
    """The rows without those that are there twice, as where two pages overlap."""
    known = {row.id: row for row in reversed(rows)}
    if len(known) == len(rows):
        return rows
    return [row for row in rows if not row.id or known[row.id] is row or known[row.id] != row]


# Rules. Written with few function calls: there is one row for every few microseconds that a long thread may take.


class _Thread:
    """A thread, read from its oldest row on.

    `_calls` has the newest call of each id, with the number of the message it is in; `_early` the results in the
    message so far that came before their calls.
    """

    def __init__(self, requires: RequiresValidation) -> None:
        self.messages: list[Message] = []
        self.rules = {USER: self._user, AI_TOOL: self._calling, TOOL: self._answer, AI_MESSAGE: self._closing}
        self._requires: Callable[[str], bool | None] = requires if callable(requires) else requires.get
        self._calls: dict[str, tuple[int, Invocation, CallNote]] = {}
        self._early: dict[str, Row] = {}
        self._unnamed: dict[str, int] = {}
        self._parts: list[Part] = []
        self._notes: list[Note] = []
        self._first = ""
        self._step = 0

    def end(self, created: Any) -> None:
        """S4.4: what was gathered is shown although no message closes it."""
        if self._parts:
            identity = str(uuid5(NAMESPACE_URL, f"callslip:placeholder:{self._first}"))
            self._message(identity, "assistant", created, "", False)
        self._flush()

    def _user(self, row: Row) -> None:
        self.end(row.created)
        if row.text:
            self._parts.append(Text(row.text))
        self._message(row.id or self._name(row), "user", row.created, row.text, row.complete)

    def _closing(self, row: Row) -> None:
        self._say(row)
        self._message(row.id or self._name(row), "assistant", row.created, row.text, row.complete)

    def _message(self, identity: str, role: str, created: Any, text: str | Raw, complete: bool | None) -> None:
        parts, notes = self._parts, self._notes
        notes.append(MessageNote(identity, complete is not False))
        shown = created if type(created) is str else shown_time(created)
        self.messages.append(Message(identity, role, shown, text, parts, notes))
        self._flush()
        self._parts, self._notes, self._first, self._step = [], [], "", 0

    def _flush(self) -> None:
        """Results that waited in vain for a call in this message are of earlier ones."""
        if self._early:
            for row in self._early.values():
                self._merge(row)
            self._early = {}

    def _say(self, row: Row) -> None:
        """S4.2: reasoning stands before the text."""
        if row.reasoning:
            self._parts.append(Reasoning(row.reasoning, [Text(row.reasoning)]))
        if row.text:
            self._parts.append(Text(row.text))

    def _calling(self, row: Row) -> None:
        identity = row.id or self._name(row)
        self._first = self._first or identity
        self._say(row)
        place, complete = len(self.messages), row.complete is True
        for number, call in enumerate(row.calls):
            name = call.id or f"{identity}#{number}"
            validated = call.validated or (PENDING if self._requires(call.name) else NOT_REQUIRED)
            asked = Invocation("call", self._step, name, call.name, call.args)
            note = CallNote(name, validated, complete)
            self._parts.append(ToolInvocation(asked))
            self._notes.append(note)
            self._calls[name] = place, asked, note
            if name in self._early:
                self._merge(self._early.pop(name))
        self._step += bool(row.calls)

    def _answer(self, row: Row) -> None:
        known = self._calls.get(row.answers)
        if known is not None and known[0] == len(self.messages):
            self._merge(row)
        elif row.answers:
            self._early.setdefault(row.answers, row)

    def _merge(self, row: Row) -> None:
        """The newest call of an id takes its first result."""
        known = self._calls.get(row.answers)
        if known is not None and known[1].result is UNSET:
            _, asked, note = known
            asked.result, asked.state, note.is_complete = row.result, "result", row.complete is not False

    def _name(self, row: Row) -> str:
        """An id for a row without one: from all that it says, and its number among its equals."""
        mark = codec.digest(codec.encode(codec.to_json(row.body)))
        number = self._unnamed[mark] = self._unnamed.get(mark, 0) + 1
        return str(uuid5(NAMESPACE_URL, f"callslip:row:{mark}:{number}"))
