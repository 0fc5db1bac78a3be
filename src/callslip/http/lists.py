"""What a page wants to know of a whole ledger: which sessions there are, what waits for an answer, which commands run.

A topic is a list of rows, asked for again when anything was written, a moment later so that a burst is asked for once.
What changed of it is a frame, made once; who may not see a row's session is not sent that frame. A list has an end: a
row is `gone` from it when it was deleted or answered, and also when newer ones took its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from callslip.api.ledger import Ledger
from callslip.http import schemas, sse
from callslip.http.broadcast import Broadcast
from callslip.http.limits import Limits

MAX_ROWS = 200
COALESCE_S = 0.05

Rows = dict[str, tuple[str, bytes]]
"""By the row's own id: its session, and how it is shown."""


async def _sessions(ledger: Ledger) -> Rows:
    page = await ledger.sessions(limit=MAX_ROWS)
    return {row.name: (row.name, sse.encode(schemas.session_view(row))) for row in page.items}


async def _inbox(ledger: Ledger) -> Rows:
    rows = await ledger.approvals(limit=MAX_ROWS)
    return {row.id: (row.session, sse.encode(schemas.approval_view(row))) for row in rows}


async def _commands(ledger: Ledger) -> Rows:
    """Those that are open, and those that ended of late (S3.5)."""
    store, settings = ledger.log.store, ledger.log.settings
    since = await store.clock() - int(settings.completed_window * 1000)
    rows = await store.pending_commands("", MAX_ROWS)
    rows += await store.completed_commands("", MAX_ROWS, since)
    rows += await store.failed_commands("", min(MAX_ROWS, settings.failed_window))
    return {row.id: (row.session, sse.encode(schemas.call_view(row))) for row in rows}


async def _answered(ledger: Ledger, identity: str) -> bytes:
    row = await ledger.log.store.approval(identity)
    return sse.encode(schemas.approval_view(row)) if row is not None else b""


class About(msgspec.Struct, frozen=True):
    """A topic: its rows, and what to show of a row that left them ("" for nothing)."""

    rows: Callable[[Ledger], Awaitable[Rows]]
    left: Callable[[Ledger, str], Awaitable[bytes]] | None = None


TOPICS: dict[str, About] = {
    "sessions": About(_sessions),
    "inbox": About(_inbox, _answered),
    "commands": About(_commands),
}


class LiveList:
    """One topic of one ledger, for all who follow it."""

    def __init__(self, ledger: Ledger, name: str, limits: Limits) -> None:
        self._ledger = ledger
        self._about = TOPICS[name]
        self.name = name
        self.rows: Rows = {}
        self.line = Broadcast(0, limits.backlog)
        self._sessions: deque[str] = deque(maxlen=limits.backlog)

    async def open(self) -> None:
        self.rows = await self._about.rows(self._ledger)

    def whole(self, seen: set[str]) -> bytes:
        """All rows of these sessions."""
        rows = [msgspec.Raw(body) for session, body in self.rows.values() if session in seen]
        return sse.frame(sse.encode({"topic": self.name, "rows": rows}), event="topic")

    def after(self, number: int) -> list[tuple[str, bytes]]:
        """What changed from a number on: the session of each frame, and the frame."""
        self.line.after(number)  # Raises if it is too far back.
        count = self.line.next - number
        frames = self.line.frames(number)
        return list(zip(list(self._sessions)[len(self._sessions) - count :], frames, strict=True))

    async def fill(self) -> None:
        with self._ledger.log.feed.watching():
            while True:
                await self._look()
                await self._ledger.log.feed.change()
                await asyncio.sleep(COALESCE_S)

    async def _look(self) -> None:
        before, self.rows = self.rows, await self._about.rows(self._ledger)
        for identity, (session, body) in self.rows.items():
            if before.pop(identity, ("", b""))[1] != body:
                self._push(session, {"topic": self.name, "id": identity, "row": msgspec.Raw(body)})
        for identity, (session, _) in before.items():
            left = await self._about.left(self._ledger, identity) if self._about.left else b""
            told: dict[str, Any] = {"topic": self.name, "id": identity, "gone": True}
            self._push(session, {**told, "row": msgspec.Raw(left)} if left else told)

    def _push(self, session: str, told: dict[str, Any]) -> None:
        self._sessions.append(session)
        self.line.push([sse.frame(sse.encode(told), event="row")])
