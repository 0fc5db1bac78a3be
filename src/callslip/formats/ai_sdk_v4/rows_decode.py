"""Reads the rows of one thread into a session.

A USER row begins a turn and an AI_MESSAGE row ends it; an AI_TOOL row is one round of the model. A call that a person
accepted or rejected was asked about; the TOOL row of a rejected one says why. A TOOL row that stands before its call
waits for it until the turn is over. Rows that begin with the newest are held until the last has come, as are the first
ones until their times tell which way they go (`order.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET, structs

from callslip.formats.ai_sdk_v4 import wire
from callslip.formats.ai_sdk_v4.rows_order import NEWEST, Arrival, heading, oldest_first
from callslip.formats.ai_sdk_v4.wire import AI_MESSAGE, AI_TOOL, FORMAT, TOOL, USER, Call, Row
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import identifier
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event

Events: TypeAlias = list[Event]
PERSON = "user"
REASON = 10_000
STOPPED = "stopped before it was done"
LARGE = codec.MAX_EVENT_BYTES // 2
"""If a message is refused, it alone is kept in place of its drafts. A row that was held, or came in a document, stands
among the drafts of others, so that it may not be refused for its size: a larger one is kept raw."""


class RowsDecoder:
    """One thread, row by row, or in documents that list rows.

    `_calls` are the ids called since the user spoke, `_early` the results that wait for their calls, `_refused` the
    rejected calls for which no row has said why.
    """

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._arrival = Arrival()
        self._unfinished = Unfinished()
        self._marks: dict[str, str] = {}
        self._in_turn = False
        self._told = self._round = 0
        self._last = Row(USER, "")
        self._calls: set[str] = set()
        self._early: dict[str, list[Row]] = {}
        self._refused: set[str] = set()

    def feed(self, message: Any) -> list[Draft]:
        values = wire.listed(message)
        rows: list[Row] = []
        odd: list[Any] = [] if values else [message]
        for value in values:
            row = wire.read_row(value)
            odd.append(value) if row is None else rows.append(row)
        return [Draft(_raw(value)) for value in odd] + self._take(rows)

    def close(self, reason: str) -> list[Draft]:
        """No more rows will come: those that were held are told, and the turn is over."""
        told = [draft for row in self._arrival.rest() for draft in self._row(row, most=LARGE)]
        left = [Draft(_timed(event, self._last)) for event in self._leave()]
        self._in_turn = False
        return told + left + [Draft(event) for event in self._unfinished.end(reason)]

    def _take(self, rows: list[Row]) -> list[Draft]:
        ordered = rows if len(rows) < 2 or heading(rows) == NEWEST else oldest_first(rows)
        made: list[Draft] = []
        for row in ordered:
            for ready in self._arrival.take(row):
                made += self._row(ready, most=wire.TEXT_BYTES if ready is row and len(ordered) == 1 else LARGE)
        return made

    def _row(self, row: Row, most: int) -> list[Draft]:
        self._told, self._last = self._told + 1, row
        body = codec.encode(row.body)
        told = self._is_new(row, body) and (len(body) <= most or row.kind == TOOL)
        events = self._RULES[row.kind](self, row) if told else []
        kept = [_raw(row.body)] if row.more or events == [] else []
        drafts = [Draft(_timed(event, row)) for event in [*(events or []), *kept]]
        self._unfinished.see(drafts)
        return drafts

    def _is_new(self, row: Row, body: bytes) -> bool:
        """Whether a row is not there twice, as where two pages overlap."""
        mark = codec.digest(body)
        again = bool(row.id) and self._marks.get(row.id) == mark
        self._marks.setdefault(row.id, mark)
        return not again

    # Rows

    def _user(self, row: Row) -> Events:
        left = self._leave()
        self._calls.clear()
        self._round, self._in_turn = 0, True
        said = ev.MessageUser(text=row.text, message_id=identifier(row.id), content=row.blocks)
        return [*left, ev.TurnStarted(), said]

    def _ai_message(self, row: Row) -> Events:
        made = [*self._leave(), *self._said(row)]
        if self._in_turn:
            made.append(ev.TurnEnded(reason="cancelled" if row.complete is False else "end_turn"))
        self._in_turn = False
        return made

    def _ai_tool(self, row: Row) -> Events:
        made = [*self._refusals(), *self._said(row)]
        for index, call in enumerate(row.calls):
            made += self._call(row, call, index)
        self._round += 1
        return made

    def _tool(self, row: Row) -> Events | None:
        """None if it waits for its call."""
        name = identifier(row.answers)
        if name and name not in self._calls:
            self._early.setdefault(name, []).append(row)
            return None
        return self._answered(name, row)

    _RULES: ClassVar[dict[str, Callable[[Any, Row], Events | None]]] = {
        USER: _user,
        AI_TOOL: _ai_tool,
        TOOL: _tool,
        AI_MESSAGE: _ai_message,
    }

    # What they say

    def _said(self, row: Row) -> Events:
        told: dict[str, Any] = {"message_id": identifier(row.id), "chunks": self._chunks}
        made: Events = [ev.ThoughtDelta(text=row.reasoning, **told)] if row.reasoning else []
        made += [ev.MessageDelta(text=row.text, **told)] if row.text else []
        return [*made, ev.MessageEnded()] if made else []

    def _call(self, row: Row, call: Call, index: int) -> Events:
        name = identifier(call.id) or f"{identifier(row.id) or self._told}#{index}"
        aliases = (Alias(FORMAT, name),)
        tool = call.name or UNSET
        made: Events = [
            ev.CallProposed(aliases=aliases, tool_name=tool, input=call.args, iteration=self._round, index=index)
        ]
        if call.validated in (wire.ACCEPTED, wire.REJECTED, wire.PENDING):
            made.append(ev.ApprovalRequested(aliases=aliases))
        if call.validated == wire.ACCEPTED:
            made.append(ev.ApprovalGranted(aliases=aliases, by=PERSON))
        if call.validated == wire.REJECTED:
            self._refused.add(name)
        self._calls.add(name)
        return made + [event for early in self._early.pop(name, []) for event in self._answered(name, early)]

    def _answered(self, name: str, row: Row) -> Events:
        """A result; of a rejected call it is the reason, of one that was stopped the last word (S4.6)."""
        aliases = (Alias(FORMAT, name),) if name else ()
        told: dict[str, Any] = {"aliases": aliases, "output": row.result, "tool_name": row.tool or UNSET}
        event: Event = ev.CallCompleted(**told)
        if name in self._refused:
            self._refused.discard(name)
            reason = wire.text_of(row.result)
            event = ev.ApprovalRefused(aliases=aliases, by=PERSON, reason=reason[:REASON])
            if len(reason) > REASON and not row.more:
                return [_timed(event, row), _timed(_raw(row.body), row)]
        elif row.complete is False:
            event = ev.CallCancelled(**told, reason=STOPPED)
        return [_timed(event, row)]

    def _refusals(self) -> Events:
        refused, self._refused = sorted(self._refused), set()
        return [ev.ApprovalRefused(aliases=(Alias(FORMAT, name),), by=PERSON) for name in refused]

    def _leave(self) -> Events:
        """What waited in vain: rejected calls have no reason, results no call in their turn."""
        early, self._early = self._early, {}
        return self._refusals() + [
            event for name, rows in early.items() for row in rows for event in self._answered(name, row)
        ]


def _timed(event: Event, row: Row) -> Event:
    """An event with the time of its row; one that waited keeps its own."""
    at = int(row.at.timestamp() * 1000) if row.at is not None and not event.at else 0
    return structs.replace(event, at=at) if at > 0 else event


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)
