"""Live streams: every line of frames that somebody follows, filled from the ledger while somebody does.

`events` and `entries` go by seq: a frame is one event, its id is the seq, and a cursor of any age is caught up from the
log. A turn in a foreign format is replayed from its start to whoever comes, and goes on live; what its protocol cannot
take back ends the line, and with it every connection (`Restart`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from typing import Any

from callslip.api.ledger import Ledger
from callslip.errors import CallslipError, NotFoundError
from callslip.formats import registry
from callslip.formats.base import Restart, Streaming, TurnEncoder
from callslip.http import sse
from callslip.http.broadcast import Broadcast, woken
from callslip.http.limits import Limits
from callslip.http.lists import LiveList
from callslip.http.problems import TooMany
from callslip.ledger import queries
from callslip.model.entries import Patch, Snapshot
from callslip.model.events import Event, decode_event
from callslip.rules.fold import SessionFold
from callslip.store.protocol import StoredEvent

Key = tuple[str, ...]

TIDY = 1000
"""After how many events a line forgets the entries that nothing can change any more."""


class Hub:
    """The lines of one server. It starts with the first reader and rests when the last one has gone."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self.ledger = ledger
        self.limits = limits
        self.readers = 0
        self._lines: dict[Key, _Kept] = {}
        self._beating: asyncio.Future[None] | None = None

    @contextlib.contextmanager
    def reader(self) -> Generator[None]:
        """Counts a connection, and refuses one too many."""
        if self.readers >= self.limits.readers:
            raise TooMany(f"there are {self.readers} readers already")
        self.readers += 1
        if self._beating is None:
            self._beating = asyncio.ensure_future(self._beat())
        try:
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._rest()

    def _rest(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.limits.heartbeat)
            for kept in list(self._lines.values()):
                kept.line.beat()

    @contextlib.asynccontextmanager
    async def line(self, key: Key, make: Callable[[], Any]) -> AsyncGenerator[Any]:
        """The line of that name, made and filled as long as anybody uses it. `make` gives something with a `line`."""
        kept = self._lines.get(key)
        if kept is None or kept.line.ended:
            kept = self._lines[key] = _Kept(make())
        kept.users += 1
        try:
            yield await kept.ready()
        finally:
            kept.users -= 1
            if not kept.users:
                kept.stop()
                if self._lines.get(key) is kept:
                    del self._lines[key]

    def by_seq(self, session: str, format: str) -> contextlib.AbstractAsyncContextManager[SessionStream]:
        """A session's events, or what they change, each by its seq."""
        return self.line((session, format), lambda: SessionStream(self.ledger, session, FRAMES[format], self.limits))

    def by_turn(self, session: str, format: str, turn: str) -> contextlib.AbstractAsyncContextManager[TurnStream]:
        """A turn in a foreign format."""
        return self.line((session, format, turn), lambda: TurnStream(self.ledger, session, format, turn, self.limits))

    def by_topic(self, name: str) -> contextlib.AbstractAsyncContextManager[LiveList]:
        """Sessions, requests or commands, as they come and change."""
        return self.line(("", name), lambda: LiveList(self.ledger, name, self.limits))


class _Kept:
    """A line in use, and the task that fills it."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.users = 0
        self._opening: asyncio.Future[None] | None = None
        self._filling: asyncio.Task[None] | None = None

    @property
    def line(self) -> Broadcast:
        return self.source.line

    async def ready(self) -> Any:
        """The source once it stands somewhere; whoever comes first opens it, and the others wait for that."""
        opening = self._opening = self._opening or asyncio.ensure_future(self.source.open())
        await asyncio.shield(opening)
        if self._filling is None:
            self._filling = asyncio.ensure_future(self._fill())
        return self.source

    async def _fill(self) -> None:
        try:
            await self.source.fill()
        except CallslipError:  # Deleted, removed by retention, closed: readers come back and are told.
            pass
        finally:
            if not self.line.ended:
                self.line.end()

    def stop(self) -> None:
        for task in (self._opening, self._filling):
            if task is not None:
                task.cancel()


async def follow(line: Broadcast, number: int, write: sse.Write, alive: bytes = sse.HEARTBEAT) -> None:
    """Write a line from a number on, until it ends. `alive` is what is said when there is nothing to say."""
    beats = line.beats
    while True:
        data = line.after(number)
        if data:
            number, beats = line.next, line.beats
            await write(data)
        elif line.ended:
            await write(line.farewell)
            return
        elif beats != line.beats and alive:
            beats = line.beats
            await write(alive)
        else:
            beats = line.beats
            await woken((line,))


# By seq


Frame = Callable[[SessionFold | None, Event, bytes], bytes]


def _event_frame(state: SessionFold | None, event: Event, body: bytes) -> bytes:
    return sse.frame(body, event="event", id=str(event.seq))


def _patches_frame(state: SessionFold | None, event: Event, body: bytes) -> bytes:
    assert state is not None
    return patches_frame(event.seq, state.apply(event))


def patches_frame(seq: int, patches: list[Patch]) -> bytes:
    """What one event changes. An event that changes nothing has its frame too: the cursor moves on."""
    return sse.frame(sse.encode({"seq": seq, "patches": patches}), event="patches", id=str(seq))


def _page_frame(state: SessionFold | None, event: Event, body: bytes) -> bytes:
    assert state is not None
    told = {"session": state.session, "seq": event.seq, "patches": state.apply(event)}
    return sse.frame(sse.encode(told), event="patches")


def snapshot_frame(snapshot: Snapshot) -> bytes:
    """A session as it stands: what patches go on from."""
    return sse.frame(sse.encode(snapshot), event="snapshot", id=str(snapshot.seq))


class Kind:
    """How events become frames; with a state if that takes one."""

    def __init__(self, frame: Frame, *, folds: bool) -> None:
        self.frame = frame
        self.folds = folds


FRAMES: dict[str, Kind] = {
    "events": Kind(_event_frame, folds=False),
    "entries": Kind(_patches_frame, folds=True),
    "page": Kind(_page_frame, folds=True),
}


class SessionStream:
    """One session by seq: frame n is event n."""

    def __init__(self, ledger: Ledger, session: str, kind: Kind, limits: Limits) -> None:
        self._ledger = ledger
        self._session = session
        self._kind = kind
        self._state: SessionFold | None = None
        self.line = Broadcast(1, limits.backlog)

    async def open(self) -> None:
        row = await self._ledger.log.store.session(self._session)
        head = row.last_seq if row else 0
        self._state = await self._resumed(head)
        self.line.first = self.line.next = head + 1

    async def _resumed(self, seq: int) -> SessionFold | None:
        if not self._kind.folds:
            return None
        return (
            await queries.state_after(self._ledger.log.store, self._session, seq) if seq else SessionFold(self._session)
        )

    async def fill(self) -> None:
        frame, state, tidied = self._kind.frame, self._state, self.line.next
        async for batch in self._ledger.log.batches(self._session, self.line.next - 1):
            self.line.push([frame(state, stored.event, stored.body) for stored in batch])
            if state is not None and self.line.next - tidied >= TIDY:
                state.finished()
                state.noted.clear()
                tidied = self.line.next

    async def is_far(self, after: int) -> bool:
        """Whether a reader is better served with a snapshot than with all that it missed."""
        return after + 1 < self.line.first and await queries.needs_snapshot(
            self._ledger.log.store, self._session, after
        )

    async def caught_up(self, after: int, upto: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """Frames from the log until the line goes on, to `upto` at least: how far each piece reaches, and its bytes."""
        state: SessionFold | None = None
        while after < max(upto, self.line.first - 1):
            state = state or await self._resumed(after)
            rows = await self._ledger.log.store.events(self._session, after, self._ledger.log.settings.read_page)
            if not rows or rows[0][0] != after + 1:
                return  # Retention was faster; the reader is cut off and told when it comes back.
            frames = [self._kind.frame(state, decode_event(body), body) for _, body in rows]
            after = rows[-1][0]
            yield after, b"".join(frames)


# By turn


class TurnStream:
    """One turn in a foreign format: whoever comes is told it from its start, then what every event changes."""

    def __init__(self, ledger: Ledger, session: str, format: str, turn: str, limits: Limits) -> None:
        self._ledger = ledger
        self._session = session
        self._turn = turn
        self.streaming: Streaming = registry.streaming(format)
        self.line = Broadcast(0, limits.backlog)
        self._state = SessionFold(session)
        self._encoder: TurnEncoder | None = None
        self._replayed = (-1, b"")

    async def open(self) -> None:
        self._state = await queries.load_turn(self._ledger.log.store, self._session, self._turn)
        self._check()
        self._encoder = self.streaming.encoder(self._state, self._turn)
        self._encoder.opening()
        if self._encoder.finished:
            self.line.end(self.streaming.done)

    def _check(self) -> None:
        """A turn that is named must be there."""
        there = self._turn in ("", self._state.info.turn, self._state.info.last_turn)
        if not there and not any(entry.turn == self._turn for entry in self._state.entries.values()):
            raise NotFoundError(f"no turn {self._turn!r} in session {self._session!r}")

    def replay(self) -> bytes:
        """The turn from its start up to now; the same bytes for all who come at the same moment."""
        if self._replayed[0] != self._state.seq:
            chunks = self.streaming.encoder(self._state, self._turn).opening()
            self._replayed = (self._state.seq, self._frames(chunks, self._state.seq))
        return self._replayed[1]

    async def fill(self) -> None:
        if self.line.ended:
            return
        async for batch in self._ledger.log.batches(self._session, self._state.seq):
            for stored in batch:
                self._take(stored)
                if self.line.ended:
                    return

    def _take(self, stored: StoredEvent) -> None:
        assert self._encoder is not None
        said = self._encoder.feed(stored.event)
        if isinstance(said, Restart):
            self.line.end(self._frames(list(said.chunks), 0) + self.streaming.done)
            return
        if said:
            self.line.push([self._frames(said, stored.event.seq)])
        if self._encoder.finished:
            self.line.end(self.streaming.done)

    def _frames(self, chunks: list[Any], seq: int) -> bytes:
        """The chunks that one event makes. The last of them carries its seq, so that one can see how far they go."""
        frames = [self.streaming.frame(chunk) for chunk in chunks]
        if frames and seq and self.streaming.events:
            frames[-1] = b"id: %d\n" % seq + frames[-1]
        return b"".join(frames)
