"""Live lists of a ledger for the page: sessions, pending approvals, commands.

A topic is a list of rows, read again shortly after anything was written, so that a burst is read once. Every changed
row becomes one frame, which is sent to the readers who may see its session. A list has a maximum length: a row is
`gone` when it was deleted or answered, and also when newer rows replace it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from callslip.api.ledger import LocalLedger
from callslip.api.status import get_approval, list_recent_commands
from callslip.http import schemas, sse
from callslip.http.broadcast import Broadcast
from callslip.ledger.window import Window
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.settings import Limits

R = TypeVar("R", ApprovalRecord, CallRecord)
MAX_ROWS = 200
COALESCE_S = 0.05

Rows = dict[str, tuple[SessionRecord, bytes]]
"""The session and the JSON of each row, by its id.

The record of the session decides who may see the row, and who learns that it is gone if the session was deleted.
"""


async def _read_sessions(ledger: LocalLedger) -> Rows:
    page = await ledger.sessions(limit=MAX_ROWS)
    return {record.name: (record, sse.encode(schemas.session_view(record))) for record in page.items}


async def _read_inbox(ledger: LocalLedger) -> Rows:
    records = await ledger.approvals(limit=MAX_ROWS)
    return await _with_sessions(ledger, records, schemas.approval_view)


async def _read_commands(ledger: LocalLedger) -> Rows:
    records = await list_recent_commands(ledger.log, MAX_ROWS)
    return await _with_sessions(ledger, records, schemas.call_view)


async def _with_sessions(ledger: LocalLedger, records: Sequence[R], view: Callable[[R], Any]) -> Rows:
    """Return rows of these records, without those whose session was deleted meanwhile."""
    names = {record.session for record in records}
    sessions = {name: session for name in names if (session := await ledger.log.get_session(name)) is not None}
    return {
        record.id: (sessions[record.session], sse.encode(view(record)))
        for record in records
        if record.session in sessions
    }


async def _read_answered(ledger: LocalLedger, approval: str) -> bytes:
    record = await get_approval(ledger.log, approval)
    return sse.encode(schemas.approval_view(record)) if record is not None else b""


class Topic(msgspec.Struct, frozen=True):
    """Read functions of a list: `read` for all rows, `read_gone` for a row that was removed."""

    read: Callable[[LocalLedger], Awaitable[Rows]]
    read_gone: Callable[[LocalLedger, str], Awaitable[bytes]] | None = None


TOPICS: dict[str, Topic] = {
    "sessions": Topic(_read_sessions),
    "inbox": Topic(_read_inbox, _read_answered),
    "commands": Topic(_read_commands),
}


class LiveList:
    """A topic of a ledger, for all its readers. It is of no session."""

    session_id = 0

    def __init__(self, ledger: LocalLedger, name: str, limits: Limits) -> None:
        self._ledger = ledger
        self._topic = TOPICS[name]
        self.name = name
        self.rows: Rows = {}
        self.broadcast = Broadcast(0, limits.backlog, limits.backlog_bytes, limits.reader_bytes)
        # The session of each frame and its size, so that both windows always have the same length.
        self._sessions: Window[tuple[SessionRecord, int]] = Window(
            0, limits.backlog, limits.backlog_bytes, lambda item: item[1]
        )
        self._page_bytes = limits.reader_bytes

    async def open(self) -> None:
        self.rows = await self._topic.read(self._ledger)

    def list_pieces(self, rows: Rows, visible: set[int]) -> Iterator[bytes]:
        """Yield a frame with the rows of these sessions, in pieces: all readers share the rows."""
        pieces = [sse.frame_start(event="topic") + sse.encode({"topic": self.name, "rows": []})[:-2]]
        size, separator = 0, b""
        for session, body in rows.values():
            if session.id in visible:
                if size + len(body) > self._page_bytes:
                    yield b"".join(pieces)
                    pieces, size = [], 0
                pieces += [separator, body]
                size, separator = size + len(body), b","
        yield b"".join([*pieces, b"]}", sse.FRAME_END])

    def after(self, number: int) -> list[tuple[SessionRecord, bytes]]:
        """Return the next changes from a number on: the session as it was last read, and the frame of each."""
        next, _ = self.broadcast.after(number)  # Raises if it is too far back.
        frames = self.broadcast.frames.since(number, self._page_bytes)
        sessions = [session for session, _ in self._sessions.since(number)[: next - number]]
        return list(zip(sessions, frames, strict=True))

    async def fill(self) -> None:
        feed = self._ledger.log.feed
        with feed.watch():
            while True:
                seen = feed.changes
                await self._update()
                await feed.wait_change(seen)
                await asyncio.sleep(COALESCE_S)

    async def _update(self) -> None:
        before, read = self.rows, await self._topic.read(self._ledger)
        # A reader may still write the rows of before: they are not changed, and what is equal is shared.
        self.rows = {id: before[id] if before.get(id) == row else row for id, row in read.items()}
        for id, (session, body) in self.rows.items():
            if id not in before or before[id][1] != body:
                self._push(session, {"topic": self.name, "id": id, "row": msgspec.Raw(body)})
        for id in before.keys() - self.rows.keys():
            session = before[id][0]
            row = await self._topic.read_gone(self._ledger, id) if self._topic.read_gone else b""
            gone: dict[str, Any] = {"topic": self.name, "id": id, "gone": True}
            self._push(session, {**gone, "row": msgspec.Raw(row)} if row else gone)

    def _push(self, session: SessionRecord, change: dict[str, Any]) -> None:
        frame = sse.frame(sse.encode(change), event="row")
        self._sessions.push((session, len(frame)))
        self.broadcast.push([frame])
