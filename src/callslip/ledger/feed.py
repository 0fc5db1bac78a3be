"""Follow sessions: read from the store, then receive new events, without a gap or a repeat.

One channel per followed session holds the newest events once for all its readers; a reader is a cursor into it. A
reader that falls behind the channel gets SlowReaderError with its cursor, so a slow reader blocks no other. The store
tells when other processes may have written; it is asked only while a session is followed.

Other tasks run while a read waits for the store, so everything here is registered first and read after that: what is
written meanwhile is noted in the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Iterable

from callslip.errors import (
    CallslipError,
    CursorExpiredError,
    InvalidInputError,
    LostFileError,
    SlowReaderError,
    StoreError,
)
from callslip.ledger.window import Window
from callslip.model.events import CallEvent, decode_event
from callslip.model.records import SessionRecord
from callslip.rules.lifecycle import is_terminal
from callslip.settings import Settings
from callslip.store.protocol import Changes, Store, StoredEvent

CLOSED = "the ledger is closed"


class Channel:
    """The newest events of one session: those after seq `base` up to seq `last`."""

    def __init__(self, session: str, length: int, max_bytes: int) -> None:
        self.session = session
        self.session_id = 0
        """The id of the session, 0 while it does not exist."""
        self.events: Window[StoredEvent] = Window(1, length, max_bytes, lambda stored: len(stored.body))
        self.readers = 0
        self.is_open = False
        """Whether the session was read, and so the place of the channel in it is known."""
        self.is_filling = self.must_fill = False
        self.may_be_replaced = False
        """Whether new events may be of a new session with this name. None is added until the session was read again."""
        self.error: CallslipError | None = None
        self._length = length
        self._waiting: list[StoredEvent] = []
        self._readers: set[asyncio.Future[None]] = set()
        self._end_waiters: dict[str, set[asyncio.Future[None]]] = {}

    @property
    def base(self) -> int:
        """The seq before the oldest event."""
        return self.events.first - 1

    @property
    def last(self) -> int:
        """The seq of the newest event."""
        return self.events.next - 1

    def open(self, record: SessionRecord | None) -> None:
        """Begin after the last event of the session."""
        self.is_open = True
        if record is not None:
            self.session_id = record.id
            self.events.restart(record.last_seq + 1)

    def add(self, stored: StoredEvent) -> bool:
        """Add an event that was written. Return False if the store must be read first."""
        seq = stored.event.seq
        if not self.session_id or seq == 1 <= self.last:  # It may be the start of a session that was deleted before.
            self.may_be_replaced = True
        if self.may_be_replaced:
            self._waiting.clear()
            return False
        if seq == self.last + 1:
            self.push(stored)
        elif self.is_filling and seq > self.last:
            if len(self._waiting) >= self._length:
                self._waiting.clear()
            self._waiting.append(stored)
        return self.is_filling or seq <= self.last

    def add_waiting(self) -> bool:
        """Add what was written while the store was read. Return False if events before it are missing."""
        waiting, self._waiting = self._waiting, []
        for stored in waiting:
            if stored.event.seq == self.last + 1:
                self.push(stored)
        return not waiting or waiting[-1].event.seq <= self.last

    def push(self, stored: StoredEvent) -> None:
        self.events.push(stored)
        event = stored.event
        if self._end_waiters and event.verdict == "applied" and isinstance(event, CallEvent) and is_terminal(event):
            _resolve(self._end_waiters.pop(event.call, ()))

    def skip_to(self, seq: int) -> None:
        """Continue at an event, because retention removed those before it: among them may be ends of calls."""
        self.events.restart(seq)
        for waiting in self._end_waiters.values():
            _resolve(waiting)

    def wake(self) -> None:
        _resolve(self._readers)
        self._readers.clear()

    def close(self, error: CallslipError) -> None:
        """Raise `error` in every reader."""
        self.error = error
        for waiting in self._end_waiters.values():
            _resolve(waiting, error)
        self.wake()

    def after(self, cursor: int) -> list[StoredEvent]:
        return self.events.since(cursor + 1)

    async def wait(self) -> None:
        """Wait for new events."""
        await _wait_in(self._readers, self.error)

    @contextlib.contextmanager
    def expect_end(self, call: str) -> Generator[asyncio.Future[None]]:
        """Return a future that is done when the call ends, or when its end may have been missed."""
        if self.error is not None:
            raise self.error
        waiting = self._end_waiters.setdefault(call, set())
        try:
            with _registered(waiting) as future:
                yield future
        finally:
            if not waiting and self._end_waiters.get(call) is waiting:
                del self._end_waiters[call]


@contextlib.contextmanager
def _registered(waiting: set[asyncio.Future[None]]) -> Generator[asyncio.Future[None]]:
    """Return a future for which `_resolve` is called with these waiters."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.add(future)
    try:
        yield future
    finally:
        waiting.discard(future)
        if future.done() and not future.cancelled():
            future.exception()  # Mark it as retrieved: its owner may have left before it waited.


async def _wait_in(waiting: set[asyncio.Future[None]], error: CallslipError | None) -> None:
    """Wait until `_resolve` is called for these waiters, or raise the error of what is already closed."""
    if error is not None:
        raise error
    with _registered(waiting) as future:
        await _wait_for(future)


async def _wait_for(future: asyncio.Future[None]) -> None:
    await future


def _resolve(waiting: Iterable[asyncio.Future[None]], error: BaseException | None = None) -> None:
    for future in waiting:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class Feed:
    """The channels of one process, and the poll for events of other processes."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._channels: dict[str, Channel] = {}
        self._poller: asyncio.Task[None] | None = None
        self._fills: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        self._watchers = 0
        self.changes = self.external_changes = 0
        """How many changes were noticed: all of them, and those that another process may have made."""
        self._change_waiters: set[asyncio.Future[None]] = set()
        self._external_waiters: set[asyncio.Future[None]] = set()
        store.on_commit(self.publish)

    def publish(self, events: list[StoredEvent]) -> None:
        """Pass events on to their readers. They are durable."""
        self.changes += 1
        if self._change_waiters:
            self._resolve_change_waiters()
        if not self._channels:
            return
        touched: set[Channel] = set()
        for stored in events:
            channel = self._channels.get(stored.session)
            if channel is None:
                continue
            last = channel.last
            if not channel.add(stored):
                self._fill_soon(channel)
            elif channel.last > last:
                touched.add(channel)
        for channel in touched:
            channel.wake()

    def check_session(self, session: str) -> None:
        """Read a followed session again, because it may have been deleted."""
        channel = self._channels.get(session)
        if channel is not None:
            self._fill_soon(channel)

    def _fill_soon(self, channel: Channel) -> None:
        channel.must_fill = True  # A read in progress may have missed it.
        if channel.is_open and not channel.is_filling:
            channel.is_filling = True
            task = asyncio.ensure_future(self._fill(channel))
            self._fills.add(task)
            task.add_done_callback(self._fills.discard)

    async def _fill(self, channel: Channel) -> None:
        """Read what is missing in a channel from the store; if that fails, again until it succeeds."""
        try:
            while channel.must_fill and channel.readers and channel.error is None:
                channel.must_fill = channel.may_be_replaced = False
                try:
                    await self._fill_from_store(channel)
                except StoreError:  # The disk may recover; readers wait for it.
                    channel.must_fill = channel.may_be_replaced = True
                    await asyncio.sleep(self._settings.notice_interval)
                else:
                    channel.must_fill |= not channel.add_waiting()
                    channel.wake()
        finally:
            channel.is_filling = False
            channel.wake()

    async def _fill_from_store(self, channel: Channel) -> None:
        record = await self._store.session(channel.session)
        if record is None or channel.session_id not in (0, record.id):
            return self._close_deleted(channel)
        channel.session_id = record.id
        while channel.last < record.last_seq:
            rows = await self._read_rows(channel.session, channel.last)
            if not await self._is_current(channel):
                return self._close_deleted(channel)
            if not rows:
                return
            if rows[0][0] > channel.last + 1:
                channel.skip_to(rows[0][0])
            for seq, body in rows:
                if seq == channel.last + 1:
                    channel.push(StoredEvent(channel.session, decode_event(body), body))

    async def _is_current(self, channel: Channel) -> bool:
        """Return whether the session of a channel exists, and so what was read by its name belongs to it."""
        record = await self._store.session(channel.session)
        return record is not None and record.id == channel.session_id

    def _close_deleted(self, channel: Channel) -> None:
        """End the readers of a deleted session. A new one of the same name gets a new channel."""
        if channel.session_id:
            channel.close(CursorExpiredError(channel.last, channel.last))
            if self._channels.get(channel.session) is channel:
                del self._channels[channel.session]

    @contextlib.asynccontextmanager
    async def _follow(self, session: str) -> AsyncGenerator[tuple[Channel, SessionRecord | None]]:
        """Return the channel of a session, and the session as it is now."""
        while True:
            if (error := self._error()) is not None:
                raise error
            channel = self._channels.get(session)
            if channel is None:
                channel = Channel(session, self._settings.feed_length, self._settings.feed_bytes)
                self._channels[session] = channel
            with self._count_reader(channel), self.watch():
                is_current, record = await self._open(channel)
                if is_current:
                    yield channel, record
                    return

    @contextlib.contextmanager
    def _count_reader(self, channel: Channel) -> Generator[None]:
        channel.readers += 1
        try:
            yield
        finally:
            channel.readers -= 1
            if not channel.readers and self._channels.get(channel.session) is channel:
                del self._channels[channel.session]

    async def _open(self, channel: Channel) -> tuple[bool, SessionRecord | None]:
        """Read the session for a new reader of a channel. Return whether the channel is not that of a deleted one."""
        while True:
            known_id = channel.session_id
            record = await self._store.session(channel.session)
            if isinstance(channel.error, CursorExpiredError):
                return False, None
            if channel.error is not None:
                raise channel.error
            if not channel.is_open:
                channel.open(record)
                if channel.must_fill:
                    self._fill_soon(channel)
            if channel.session_id == (record.id if record else 0):
                return True, record
            if not channel.session_id:
                self._fill_soon(channel)
                return True, record
            if channel.session_id == known_id:
                self._close_deleted(channel)
                return False, None
            # Else another reader opened the channel during this read, which may be older.

    @contextlib.contextmanager
    def watch(self) -> Generator[None]:
        """Poll for changes of other processes while the block runs."""
        self._watchers += 1
        if self._poller is None:
            self._poller = asyncio.ensure_future(self._poll())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._stop_polling()

    async def wait_change(self, seen: int) -> None:
        """Wait for a change after the first `seen` ones. Changes of other processes are found inside `watch`.

        Keep the number of `changes` before you read, and pass it here: what is written during the read is not missed.
        """
        if self.changes == seen or self._closed.is_set():
            await _wait_in(self._change_waiters, self._error())

    async def wait_external_change(self, seen: int) -> None:
        """Wait for a change after the first `seen` of `external_changes`: of commands or tokens, if that is known."""
        if self.external_changes == seen or self._closed.is_set():
            await _wait_in(self._external_waiters, self._error())

    def notice_change(self) -> None:
        """Wake all who wait for a change, after one that is no event."""
        self._notice(Changes())

    def _notice(self, changes: Changes) -> None:
        self.changes += 1
        self._resolve_change_waiters()
        if changes.commands or changes.sessions is None:
            self.external_changes += 1
            _resolve(list(self._external_waiters))

    def _error(self) -> StoreError | None:
        return StoreError(CLOSED) if self._closed.is_set() else None

    def _resolve_change_waiters(self, error: BaseException | None = None) -> None:
        _resolve(list(self._change_waiters), error)
        self._change_waiters.clear()

    def _stop_polling(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.cancel()

    async def _poll(self) -> None:
        while True:
            try:
                changes = await self._store.wait_changes()
            except StoreError as error:  # The disk may recover; readers wait for it.
                if isinstance(error, LostFileError):
                    self._fail_readers(error)
                await asyncio.sleep(self._settings.notice_interval)
                continue
            self._notice(changes)
            if changes.sessions is None:
                await self._fill_changed()
            for channel in list(self._channels.values()):
                if changes.sessions is not None and changes.sessions.get(channel.session, 0) > channel.last:
                    self._fill_soon(channel)

    async def _fill_changed(self) -> None:
        """Fill the channels whose sessions have changed. One query finds them, however many are followed."""
        channels = list(self._channels.values())
        try:
            heads = await self._store.heads([channel.session for channel in channels]) if channels else {}
        except StoreError:  # Each channel tries again until it succeeds.
            heads = None
        for channel in channels:
            known = (channel.session_id, channel.last) if channel.is_open else None
            if heads is None or heads.get(channel.session, (0, 0)) != known:
                self._fill_soon(channel)

    def _fail_readers(self, error: StoreError) -> None:
        """Raise an error in everything that waits for events of this file. Later readers get it from the store."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close(error)
        self._resolve_change_waiters(error)

    async def subscribe(self, session: str, after: int = 0, session_id: int = 0) -> AsyncGenerator[list[StoredEvent]]:
        """Yield the events after a cursor in batches, then new ones as they are written, without end.

        With the id of the session that the cursor is of, another one of the same name raises CursorExpiredError.
        """
        cursor, is_live = after, False
        async with self._follow(session) as (channel, record):
            if session_id and (record is None or record.id != session_id):
                raise CursorExpiredError(after, after)
            _check_cursor(record, after)
            own_id = record.id if record else 0
            while True:
                if own_id and channel.session_id not in (0, own_id):  # Replaced before the channel was filled.
                    raise CursorExpiredError(cursor, cursor)
                if cursor < channel.base:
                    if is_live:
                        raise SlowReaderError(cursor)
                    batch = await self._read_stored(session, cursor)
                    if channel.session_id and not await self._is_current(channel):
                        raise CursorExpiredError(cursor, cursor)
                elif cursor < channel.last:
                    is_live = True  # From here on the reader must keep up.
                    batch = channel.after(cursor)
                else:
                    is_live = False  # A reader that waits is not slow, even if a burst is longer than the channel.
                    await channel.wait()
                    continue
                cursor = batch[-1].event.seq
                yield batch

    async def _read_rows(self, session: str, after: int) -> list[tuple[int, bytes]]:
        return await self._store.events(session, after, self._settings.read_page, self._settings.read_page_bytes)

    async def _read_stored(self, session: str, cursor: int) -> list[StoredEvent]:
        rows = await self._read_rows(session, cursor)
        if not rows or rows[0][0] != cursor + 1:
            record = await self._store.session(session)
            raise CursorExpiredError(cursor, record.pruned_seq if record else cursor)
        return [StoredEvent(session, decode_event(body), body) for _, body in rows]

    async def until_ended(self, session: str, call: str) -> None:
        """Wait until a call has ended. One that was deleted counts as ended."""
        async with self._follow(session) as (channel, _):
            while True:
                with channel.expect_end(call) as ended:
                    record = await self._store.call(call)
                    if record is None or record.end:
                        return
                    await _wait_for(ended)

    async def until_closed(self) -> None:
        """Wait until the ledger closes."""
        await self._closed.wait()

    async def close(self) -> None:
        """Raise StoreError in all readers, and stop."""
        self._closed.set()
        self._stop_polling()
        for task in list(self._fills):
            task.cancel()
        for channel in list(self._channels.values()):
            channel.close(StoreError(CLOSED))
        self._resolve_change_waiters(StoreError(CLOSED))
        _resolve(list(self._external_waiters), StoreError(CLOSED))


def _check_cursor(record: SessionRecord | None, after: int) -> None:
    last_seq, pruned_seq = (record.last_seq, record.pruned_seq) if record else (0, 0)
    if not 0 <= after <= last_seq:
        raise InvalidInputError("after", f"must be from 0 to the last event ({last_seq}), got {after}")
    if after < pruned_seq:
        raise CursorExpiredError(after, pruned_seq)
