"""Live streams, filled from the ledger while they have readers.

`events` and `entries` are numbered by seq: a frame is one event, its id is the seq, and a reader with an old cursor
catches up from the log. A turn in another format is replayed from its start and continues live; a change that its
protocol cannot express ends the stream and all its connections (`Restart`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from callslip.api.ledger import LocalLedger
from callslip.api.sessions import (
    check_same_session,
    load_state,
    load_turn,
    needs_snapshot,
    open_snapshots,
    read_rows,
)
from callslip.errors import CallslipError, CursorExpiredError, NotFoundError
from callslip.formats import registry
from callslip.formats.base import Restart, Streaming, TurnEncoder
from callslip.http import sse
from callslip.http.broadcast import Broadcast, wait_any
from callslip.http.held_data import HeldData
from callslip.http.lists import LiveList
from callslip.http.problems import TooManyReadersError
from callslip.ledger.aio import LARGE_HISTORY, run_off_loop
from callslip.model.events import Event, decode_event
from callslip.model.records import SessionRecord
from callslip.rules.entry_blocks import current_block
from callslip.rules.fold import SessionFold
from callslip.settings import Limits

Key = tuple[str, ...]

ENTRY_BYTES = 2048
"""About how much memory an open entry takes without its texts."""
PRUNE_EVENTS = 1000
"""After how many events a stream drops the entries that no event can change any more."""


class Hub:
    """The streams of one server. It runs while there are readers."""

    def __init__(self, ledger: LocalLedger, limits: Limits) -> None:
        self.ledger = ledger
        self.limits = limits
        self.readers = 0
        self.held = HeldData(limits.shared_bytes)
        self._readers_by_principal: Counter[str] = Counter()
        self._building = asyncio.Lock()
        self._streams: dict[Key, _OpenStream] = {}
        self._heartbeat: asyncio.Future[None] | None = None

    @contextlib.contextmanager
    def reader(self, principal: str) -> Generator[None]:
        """Count a connection; raise TooManyReadersError if there are too many, in all or of this principal."""
        if self.readers >= self.limits.readers:
            raise TooManyReadersError(f"the server has {self.readers} readers already; try again later")
        counts = self._readers_by_principal
        if counts[principal] >= self.limits.principal_readers:
            raise TooManyReadersError(f"you have {counts[principal]} readers already; close one, or try again later")
        counts[principal] += 1
        self.readers += 1
        if self._heartbeat is None:
            self._heartbeat = asyncio.ensure_future(self._send_heartbeats())
        try:
            yield
        finally:
            self.readers -= 1
            counts[principal] -= 1
            if not counts[principal]:
                del counts[principal]
            if not self.readers:
                heartbeat, self._heartbeat = self._heartbeat, None
                heartbeat.cancel()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.limits.heartbeat)
            for stream in list(self._streams.values()):
                stream.broadcast.heartbeat()

    @contextlib.asynccontextmanager
    async def open(self, key: Key, make: Callable[[], Any], session_id: int = 0) -> AsyncGenerator[Any]:
        """Return the source of a stream, which all readers with this key share. `make` creates it if needed.

        The key begins with the name of the session, or "" for a list. `session_id` is the session that the caller may
        read: another one may have its name by now.
        """
        record = await self.ledger.log.get_session(key[0]) if key[0] else None
        stream = self._streams.get(key)
        # A stream of a deleted session is not for the readers of a new session with its name.
        if stream is None or stream.broadcast.ended or stream.source.session_id not in (0, record.id if record else 0):
            if stream is not None:
                self._release_key(key, stream.source)  # It may have readers, who still need heartbeats.
            stream = self._streams[key] = _OpenStream(key, make(), self._building)
        stream.readers += 1
        try:
            source = await stream.ready()
            if session_id and source.session_id != session_id:
                raise NotFoundError(f"no session {key[0]!r}")
            yield source
        finally:
            stream.readers -= 1
            if not stream.readers:
                stream.stop()
                if self._streams.get(stream.key) is stream:
                    del self._streams[stream.key]

    def by_seq(self, session: SessionRecord, format: str) -> contextlib.AbstractAsyncContextManager[SessionStream]:
        """Return the stream of a session's events or patches."""

        def make() -> SessionStream:
            return SessionStream(self.ledger, session.name, FRAMES[format], self.limits, self._building)

        return self.open((session.name, format), make, session.id)

    @contextlib.asynccontextmanager
    async def by_turn(self, session: SessionRecord, format: str, turn: str) -> AsyncGenerator[TurnStream]:
        """Return the stream of a turn in another format; without a name, that of the current turn."""

        def make() -> TurnStream:
            return TurnStream(self.ledger, session.name, format, turn, self.limits)

        key = (session.name, format, turn)
        while True:
            async with self.open(key, make, session.id) as source:
                if turn or await source.is_current(session.last_seq):
                    yield source
                    return
                self._release_key(key, source)

    def _release_key(self, key: Key, source: Any) -> None:
        """Give a stream a key of its own, so that the next reader of this key gets a new one."""
        stream = self._streams.get(key)
        if stream is not None and stream.source is source:
            del self._streams[key]
            stream.key = (*key, str(id(stream)))
            self._streams[stream.key] = stream

    def by_topic(self, name: str) -> contextlib.AbstractAsyncContextManager[LiveList]:
        """Return the live list of sessions, approvals or commands."""
        return self.open(("", name), lambda: LiveList(self.ledger, name, self.limits))


class _OpenStream:
    """A stream with readers, and the task that fills it."""

    def __init__(self, key: Key, source: Any, building: asyncio.Lock) -> None:
        self.key = key
        self.source = source
        self.readers = 0
        self._building = building
        self._open_task: asyncio.Future[None] | None = None
        self._fill_task: asyncio.Task[None] | None = None

    @property
    def broadcast(self) -> Broadcast:
        return self.source.broadcast

    async def ready(self) -> Any:
        """Return the source when it is open. The first reader opens it, the others wait."""
        opening = self._open_task = self._open_task or asyncio.ensure_future(self._open())
        await asyncio.shield(opening)
        if self._fill_task is None:
            self._fill_task = asyncio.ensure_future(self._fill())
        return self.source

    async def _open(self) -> None:
        async with self._building:
            await self.source.open()

    async def _fill(self) -> None:
        try:
            await self.source.fill()
        except CallslipError:  # Deleted, pruned or closed: readers learn why when they reconnect.
            pass
        finally:
            if not self.broadcast.ended:
                self.broadcast.end()

    def stop(self) -> None:
        for task in (self._open_task, self._fill_task):
            if task is not None:
                task.cancel()


async def follow(broadcast: Broadcast, number: int, write: sse.Write, heartbeat: bytes = sse.HEARTBEAT) -> None:
    """Write a stream from a number on until it ends, with heartbeats while nothing happens."""
    heartbeats = broadcast.heartbeats
    while True:
        next, data = broadcast.after(number)
        if data:
            number, heartbeats = next, broadcast.heartbeats
            await write(data)
        elif broadcast.ended:
            await write(broadcast.last_frame)
            return
        elif heartbeats != broadcast.heartbeats and heartbeat:
            heartbeats = broadcast.heartbeats
            await write(heartbeat)
        else:
            heartbeats = broadcast.heartbeats
            await wait_any((broadcast,))


async def write_turn(
    opening: contextlib.AbstractAsyncContextManager[TurnStream], write: sse.Write, *, is_live: bool = True
) -> None:
    """Write a turn from its start, then live."""
    async with opening as source:
        number = source.broadcast.next
        await write(source.replay())
        if is_live:
            await follow(source.broadcast, number, write, source.streaming.alive)
        else:
            await write(source.streaming.done)


# By seq


Frame = Callable[[SessionFold | None, Event, bytes], bytes]


def _event_frame(state: SessionFold | None, event: Event, body: bytes) -> bytes:
    return sse.frame(body, event="event", id=str(event.seq))


def _patches_frame(state: SessionFold | None, event: Event, body: bytes) -> bytes:
    """Return the changes of one event. An event without changes has a frame too, which moves the cursor."""
    assert state is not None
    change = {"seq": event.seq, "patches": state.apply(event)}
    return sse.frame(sse.encode(change), event="patches", id=str(event.seq))


def _page_frame(state: SessionFold | None, event: Event, body: bytes) -> bytes:
    assert state is not None
    change = {"session": state.session, "seq": event.seq, "patches": state.apply(event)}
    return sse.frame(sse.encode(change), event="patches")


class FrameKind(NamedTuple):
    """How events become frames, and whether that needs the state of the session."""

    frame: Frame
    needs_state: bool


FRAMES: dict[str, FrameKind] = {
    "events": FrameKind(_event_frame, needs_state=False),
    "entries": FrameKind(_patches_frame, needs_state=True),
    "page": FrameKind(_page_frame, needs_state=True),
}


class _Page:
    """Frames from the log up to event `last`. Readers at the same place share them."""

    __slots__ = ("__weakref__", "frames", "last")

    def __init__(self, last: int, frames: bytes) -> None:
        self.last = last
        self.frames = frames


class SessionStream:
    """One session by seq: frame n is event n.

    What readers need from the log is built for one of them at a time, so that many new readers do not keep the server
    from answering other requests.
    """

    def __init__(
        self, ledger: LocalLedger, session: str, kind: FrameKind, limits: Limits, building: asyncio.Lock
    ) -> None:
        self._log = ledger.log
        self._session = session
        self._kind = kind
        self.session_id = 0
        self._state: SessionFold | None = None
        self._page_bytes = limits.reader_bytes
        self._building = building
        self._pages: WeakValueDictionary[int, _Page] = WeakValueDictionary()
        self._snapshots = open_snapshots(ledger.log, session, limits.reader_bytes)
        self.broadcast = Broadcast(1, limits.backlog, limits.backlog_bytes, limits.reader_bytes)

    async def open(self) -> None:
        record = await self._log.get_session(self._session)
        self.session_id, last_seq = (record.id, record.last_seq) if record else (0, 0)
        self._state = await self._load_state(last_seq)
        await check_same_session(self._log, self._session, self.session_id)
        self.broadcast.frames.restart(last_seq + 1)

    async def _load_state(self, seq: int) -> SessionFold | None:
        return await load_state(self._log, self._session, seq) if self._kind.needs_state else None

    async def fill(self) -> None:
        frame, state, pruned_at = self._kind.frame, self._state, self.broadcast.next
        async for batch in self._log.batches(self._session, self.broadcast.next - 1, self.session_id):
            self.broadcast.push([frame(state, stored.event, stored.body) for stored in batch])
            if state is not None and self.broadcast.next - pruned_at >= PRUNE_EVENTS:
                state.take_finished()
                state.noted.clear()
                pruned_at = self.broadcast.next

    async def needs_snapshot(self, after: int) -> bool:
        """Return whether a snapshot serves a reader faster than all the events that it missed."""
        return after + 1 < self.broadcast.first and await needs_snapshot(self._log, self._session, after)

    async def write_snapshot(self, write: sse.Writer, limit: int, *, has_id: bool) -> int:
        """Write a snapshot in pieces, each read when the one before was accepted, and return its seq."""
        async with self._building:
            snapshot = await self._snapshots.open(limit)
            await self._check_session(snapshot.seq)
        with write.hold(snapshot, snapshot.size):
            await write(sse.frame_start(event="snapshot", id=str(snapshot.seq) if has_id else ""))
            async with contextlib.aclosing(snapshot.pieces()) as pieces:
                while True:
                    async with self._building:
                        piece = await anext(pieces, b"")
                    if not piece:
                        break
                    await write(piece)
                    await asyncio.sleep(0)  # A fast reader must not keep others waiting.
            await write(sse.FRAME_END)
        return snapshot.seq

    async def catch_up(self, write: sse.Writer, after: int, upto: int = 0) -> int:
        """Write frames from the log until the live ones begin, at least up to `upto`. Return the seq of the last."""
        state: SessionFold | None = None
        while after < max(upto, self.broadcast.first - 1):
            async with self._building:
                page = self._pages.get(after)
                if page is None:
                    if state is None or state.seq != after:
                        state = await self._load_state(after)
                    page = await self._build_page(after, state)
                    if page is None:
                        break  # Retention removed events; the reader is disconnected, and learns it when it reconnects.
            with write.hold(state, _weigh(state) if state is not None else 0):
                await write(page.frames)
            after = page.last
            await asyncio.sleep(0)
        return after

    async def _check_session(self, seq: int) -> None:
        """Raise CursorExpiredError if what was read is of a new session with the same name."""
        record = await self._log.get_session(self._session)
        if record is None or record.id != self.session_id:
            raise CursorExpiredError(seq, seq)

    async def _build_page(self, after: int, state: SessionFold | None) -> _Page | None:
        rows = await read_rows(self._log, self._session, after, max_bytes=self._page_bytes)
        if not rows or rows[0][0] != after + 1:
            return None
        await self._check_session(after)
        frames = [self._kind.frame(state, decode_event(body), body) for _, body in rows]
        if state is not None:
            state.take_finished()
            state.noted.clear()
        page = self._pages[after] = _Page(rows[-1][0], b"".join(frames))
        return page


def _weigh(state: SessionFold) -> int:
    """Return about how many bytes a state has that is folded further."""
    texts = [*state.texts.values(), *([state.stream.text] if state.stream else [])]
    return sum(text.length() - text.missing for text in texts) + ENTRY_BYTES * len(state.entries)


# By turn


class TurnStream:
    """One turn in another format: a reader receives it from its start, then the changes of every event.

    Outside of turns it is one block of entries.
    """

    def __init__(self, ledger: LocalLedger, session: str, format: str, turn: str, limits: Limits) -> None:
        self._log = ledger.log
        self._session = session
        self._turn = turn
        self.session_id = 0
        self.streaming: Streaming = registry.streaming(format)
        self.broadcast = Broadcast(0, limits.backlog, limits.backlog_bytes, limits.reader_bytes)
        self._state = SessionFold(session)
        self._encoder: TurnEncoder | None = None
        self._replay = (-1, b"")
        self._joining = 0

    async def open(self) -> None:
        record = await self._log.get_session(self._session)
        self.session_id = record.id if record else 0
        self._state = await load_turn(self._log, self._session, self._turn)
        await self._read_more(self._state)
        await check_same_session(self._log, self._session, self.session_id)
        encoder = await run_off_loop(len(self._state.entries) >= LARGE_HISTORY, self._open_encoder)
        if self._turn and not encoder.turn.has_begun:
            raise NotFoundError(f"no turn {self._turn!r} in session {self._session!r}")
        if encoder.finished:
            self.broadcast.end(self.streaming.done)

    async def _read_more(self, state: SessionFold) -> None:
        """Read what the encoder of a subclass needs and the state does not have."""

    def _open_encoder(self) -> TurnEncoder:
        """Return an encoder that has encoded the turn so far, and prepare the replay for its first readers."""
        encoder = self._encoder = self.streaming.encoder(self._state, self._turn)
        encoder.opening()
        self.replay()
        return encoder

    async def is_current(self, seq: int) -> bool:
        """Return whether this is the turn of a reader who names none and has seen event `seq`.

        A stream stays with its turn, which may be over: calls of it are still open.
        """
        assert self._encoder is not None
        self._joining += 1
        try:
            while self._state.seq < seq and not self.broadcast.ended:
                await wait_any((self.broadcast,))
        finally:
            self._joining -= 1
        return self._state.seq >= seq and current_block(self._state) == self._encoder.turn.name

    def replay(self) -> bytes:
        """Return the turn from its start up to now, encoded once for all readers that join at this point."""
        assert self._encoder is not None
        if self._replay[0] != self._state.seq:
            chunks = self.streaming.encoder(self._state, self._encoder.turn.name).opening()
            self._replay = (self._state.seq, self._join_frames(chunks, self._state.seq))
        return self._replay[1]

    async def fill(self) -> None:
        if self.broadcast.ended:
            return
        async for batch in self._log.batches(self._session, self._state.seq, self.session_id):
            for stored in batch:
                self._feed(stored.event)
                if self.broadcast.ended:
                    return
            if self._joining:
                self.broadcast.push([])

    def _feed(self, event: Event) -> None:
        assert self._encoder is not None
        chunks = self._encoder.feed(event)
        if isinstance(chunks, Restart):
            self.broadcast.end(self._join_frames(list(chunks.chunks), 0) + self.streaming.done)
            return
        if chunks:
            self.broadcast.push([self._join_frames(chunks, event.seq)])
        if self._encoder.finished:
            self.broadcast.end(self.streaming.done)

    def _join_frames(self, chunks: list[Any], seq: int) -> bytes:
        """Return the frames of one event. The last one has the event's seq as its id."""
        frames = [self.streaming.frame(chunk) for chunk in chunks]
        if frames and seq and self.streaming.events:
            frames[-1] = b"id: %d\n" % seq + frames[-1]
        return b"".join(frames)
