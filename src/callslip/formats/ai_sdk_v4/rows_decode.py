"""Decode the rows of one thread.

A USER row begins a turn and an AI_MESSAGE row ends it; an AI_TOOL row is one round of the model. A call that a user
accepted or rejected had an approval request, and so has one without an answer if its tool requires it; the TOOL row of
a rejected one has the reason. A TOOL row before its call is held until the call or the end of the turn. Rows with the
newest first are held until the last one, and the first rows until their order is known (`rows_order.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, structs

from callslip.formats.ai_sdk_v4 import wire
from callslip.formats.ai_sdk_v4.rows_order import NEWEST, RowQueue, detect_order, oldest_first
from callslip.formats.ai_sdk_v4.wire import AI_MESSAGE, AI_TOOL, FORMAT, TOOL, USER, Call, Row
from callslip.formats.base import Events, RequiresValidation, Unfinished, drafts_of, raw_if
from callslip.formats.json_fields import identifier
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event

USER_NAME = "user"
MAX_REASON_CHARS = 10_000
STOPPED = "stopped before it was done"
MAX_ROW_BYTES = codec.MAX_EVENT_BYTES // 2
"""If the ledger rejects a message, only the message is stored instead of its drafts. A row that was held or is in a
document is among the drafts of others and must not be rejected for its size: a larger one is stored raw."""


class RowsDecoder:
    """One thread, row by row, or in documents with lists of rows.

    `_calls` are the call ids since the last USER row, `_early` the results without a call so far, `_refused` the
    rejected calls without a reason so far.
    """

    def __init__(
        self,
        *,
        chunks: ev.Chunks | None = None,
        started: int = 0,
        requires_validation: RequiresValidation | None = None,
    ) -> None:
        required = requires_validation or {}
        self._requires: Callable[[str], bool | None] = required if callable(required) else required.get
        self._chunks: ev.Chunks = chunks or "delta"
        self._queue = RowQueue()
        self._unfinished = Unfinished()
        self._digests: dict[str, str] = {}
        self._in_turn = False
        self._row_count = self._round = 0
        self._last_row = Row(USER, "")
        self._calls: set[str] = set()
        self._early: dict[str, list[Row]] = {}
        self._refused: set[str] = set()

    def feed(self, message: Any) -> list[Draft]:
        values = wire.rows_in(message)
        rows: list[Row] = []
        odd: list[Any] = [] if values else [message]
        for value in values:
            row = wire.read_row(value)
            odd.append(value) if row is None else rows.append(row)
        return [draft for value in odd for draft in drafts_of(_raw(value))] + self._add_rows(rows)

    def close(self, reason: str) -> list[Draft]:
        """Decode the held rows and end the turn."""
        drafts = [draft for row in self._queue.flush() for draft in self._read(row, MAX_ROW_BYTES)]
        drafts += [Draft(_with_time(event, self._last_row)) for event in self._flush()]
        self._in_turn = False
        return drafts + self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return self._queue.holds_rows or bool(self._early or self._refused)

    def _add_rows(self, rows: list[Row]) -> list[Draft]:
        ordered = rows if len(rows) < 2 or detect_order(rows) == NEWEST else oldest_first(rows)
        drafts: list[Draft] = []
        for row in ordered:
            for ready in self._queue.add(row):
                is_alone = ready is row and len(ordered) == 1
                drafts += self._read(ready, wire.MAX_TEXT_BYTES if is_alone else MAX_ROW_BYTES)
        return drafts

    def _read(self, row: Row, max_bytes: int) -> list[Draft]:
        self._row_count, self._last_row = self._row_count + 1, row
        body = codec.encode(row.body)
        digest = codec.digest(body)
        is_repeated = bool(row.id) and self._digests.get(row.id) == digest  # Overlapping pages contain a row twice.
        self._digests.setdefault(row.id, digest)
        is_readable = not is_repeated and (len(body) <= max_bytes or row.kind == TOOL)
        events = self._HANDLERS[row.kind](self, row) if is_readable else []
        raw = _raw(row.body) if row.needs_raw or events == [] else []
        drafts = [Draft(_with_time(event, row)) for event in [*(events or []), *raw]]
        self._unfinished.follow(drafts)
        return drafts

    # Rows

    def _user(self, row: Row) -> Events:
        flushed = self._flush()
        self._calls.clear()
        self._round, self._in_turn = 0, True
        name = identifier(row.id)
        message = ev.MessageUser(text=row.text, message_id=name, content=row.blocks, names_message=bool(name))
        return [*flushed, ev.TurnStarted(), message]

    def _ai_message(self, row: Row) -> Events:
        events = [*self._flush(), *self._text_events(row)]
        if self._in_turn:
            events.append(ev.TurnEnded(reason="cancelled" if row.complete is False else "end_turn"))
        self._in_turn = False
        return events

    def _ai_tool(self, row: Row) -> Events:
        events = [*self._flush_refusals(), *self._text_events(row)]
        for index, call in enumerate(row.calls):
            events += self._call_events(row, call, index)
        self._round += 1
        return events

    def _tool(self, row: Row) -> Events | None:
        """Return the events of a result; None if it is held for its call."""
        name = identifier(row.answers)
        if name and name not in self._calls:
            self._early.setdefault(name, []).append(row)
            return None
        return self._result_events(name, row)

    _HANDLERS: ClassVar[dict[str, Callable[[Any, Row], Events | None]]] = {
        USER: _user,
        AI_TOOL: _ai_tool,
        TOOL: _tool,
        AI_MESSAGE: _ai_message,
    }

    # Events

    def _text_events(self, row: Row) -> Events:
        name = identifier(row.id)
        names_message = bool(name) and row.kind == AI_MESSAGE
        fields: dict[str, Any] = {"message_id": name, "chunks": self._chunks, "names_message": names_message}
        events: Events = [ev.ThoughtDelta(text=row.reasoning, **fields)] if row.reasoning else []
        events += [ev.MessageDelta(text=row.text, **fields)] if row.text else []
        return [*events, ev.MessageEnded()] if events else []

    def _call_events(self, row: Row, call: Call, index: int) -> Events:
        name = identifier(call.id) or f"{identifier(row.id) or self._row_count}#{index}"
        aliases = (Alias(FORMAT, name),)
        fields: dict[str, Any] = {"tool_name": call.name or UNSET, "input": call.args}
        events: Events = [ev.CallProposed(aliases=aliases, iteration=self._round, index=index, **fields)]
        answer = call.validated or (wire.PENDING if self._requires(call.name) else wire.NOT_REQUIRED)
        if answer != wire.NOT_REQUIRED:
            events.append(ev.ApprovalRequested(aliases=aliases))
        if answer == wire.ACCEPTED:
            events.append(ev.ApprovalGranted(aliases=aliases, by=USER_NAME))
        if answer == wire.REJECTED:
            self._refused.add(name)
        self._calls.add(name)
        return events + [event for early in self._early.pop(name, []) for event in self._result_events(name, early)]

    def _result_events(self, name: str, row: Row) -> Events:
        """Return the events of a result: the reason of a rejected call, the last output of a stopped one."""
        aliases = (Alias(FORMAT, name),) if name else ()
        fields: dict[str, Any] = {"aliases": aliases, "output": row.result, "tool_name": row.tool or UNSET}
        event: Event = ev.CallCompleted(**fields)
        raw: Events = []
        if name in self._refused:
            self._refused.discard(name)
            reason = wire.text_of(row.result)
            event = ev.ApprovalRefused(aliases=aliases, by=USER_NAME, reason=reason[:MAX_REASON_CHARS])
            raw = _raw(row.body) if len(reason) > MAX_REASON_CHARS and not row.needs_raw else []
        elif row.complete is False:
            event = ev.CallCancelled(**fields, reason=STOPPED)
        return [_with_time(item, row) for item in (event, *raw)]

    def _flush_refusals(self) -> Events:
        refused, self._refused = sorted(self._refused), set()
        return [ev.ApprovalRefused(aliases=(Alias(FORMAT, name),), by=USER_NAME) for name in refused]

    def _flush(self) -> Events:
        """Return the events of held rows: rejected calls without a reason, results without a call in their turn."""
        events, early, self._early = self._flush_refusals(), self._early, {}
        for name, rows in early.items():
            events += [event for row in rows for event in self._result_events(name, row)]
        return events


def _with_time(event: Event, row: Row) -> Event:
    """Return an event with the time of its row unless it has one."""
    at = int(row.at.timestamp() * 1000) if row.at is not None and not event.at else 0
    return structs.replace(event, at=at) if at > 0 else event


def _raw(body: Any) -> Events:
    return raw_if(True, FORMAT, body)
