"""Follow sessions: read from the store, then receive new events, without a gap or a repeat.

One channel per followed session holds the newest events once for all its readers; a reader is a cursor into it. A
reader that falls behind the channel gets SlowReaderError with its cursor, so a slow reader blocks no other. Events of
other processes are found by asking the store a few dozen times a second, only while a session is followed.
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
from callslip.store.protocol import Store, StoredEvent

CLOSED = "the ledger is closed"


class Channel:
    """The newest events of one session: those after seq `base` up to seq `last`."""

    def __init__(self, session: str, record: SessionRecord | None, length: int, max_bytes: int) -> None:
        self.session = session
        self.session_id = record.id if record else 0
        first = record.last_seq + 1 if record else 1
        self.events: Window[StoredEvent] = Window(first, length, max_bytes, lambda stored: len(stored.body))
        self.readers = 0
        self.is_filling = self.must_fill = False
        self.error: CallslipError | None = None
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

    def push(self, stored: StoredEvent) -> None:
        self.events.push(stored)
        event = stored.event
        if self._end_waiters and event.verdict == "applied" and isinstance(event, CallEvent) and is_terminal(event):
            _resolve(self._end_waiters.pop(event.call, ()))

    def skip_to(self, seq: int) -> None:
        """Continue at an event, because retention removed those before it."""
        self.events.restart(seq)

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

    async def wait_ended(self, call: str) -> None:
        """Wait for the end of a call."""
        try:
            await _wait_in(self._end_waiters.setdefault(call, set()), self.error)
        finally:
            if not self._end_waiters.get(call, True):
                del self._end_waiters[call]


async def _wait_in(waiting: set[asyncio.Future[None]], error: CallslipError | None) -> None:
    """Wait until `_resolve` is called for these waiters, or raise the error of what is already closed."""
    if error is not None:
        raise error
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.add(future)
    try:
        await future
    finally:
        waiting.discard(future)


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
        self._is_behind = False
        self._closed = asyncio.Event()
        self._watchers = 0
        self._change_waiters: set[asyncio.Future[None]] = set()
        self._external_waiters: set[asyncio.Future[None]] = set()
        store.on_commit(self.publish)

    def publish(self, events: list[StoredEvent]) -> None:
        """Pass events on to their readers. They are durable."""
        if self._change_waiters:
            self._resolve_change_waiters()
        if not self._channels:
            return
        touched: set[Channel] = set()
        for stored in events:
            channel = self._channels.get(stored.session)
            if channel is None:
                continue
            if stored.event.seq == 1 <= channel.last:
                self._fill_soon(channel)  # It may be the start of a new session with the name of a deleted one.
            elif stored.event.seq == channel.last + 1 and channel.session_id and not channel.is_filling:
                channel.push(stored)
                touched.add(channel)
            elif stored.event.seq > channel.last:
                self._fill_soon(channel)  # Another process wrote in between, or the session must be checked first.
        for channel in touched:
            channel.wake()

    def _fill_soon(self, channel: Channel) -> None:
        channel.must_fill = True  # A read in progress may have missed it.
        if not channel.is_filling:
            channel.is_filling = True
            task = asyncio.ensure_future(self._fill(channel))
            self._fills.add(task)
            task.add_done_callback(self._fills.discard)

    async def _fill(self, channel: Channel) -> None:
        """Read what is missing in a channel from the store."""
        try:
            while channel.must_fill:
                channel.must_fill = False
                await self._fill_from_store(channel)
        except StoreError:
            self._is_behind = True
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
            if not rows:
                return
            if not await self._is_current(channel):
                return self._close_deleted(channel)
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
    async def _follow(self, session: str) -> AsyncGenerator[Channel]:
        if (error := self._error()) is not None:
            raise error
        channel = self._channels.get(session)
        if channel is not None and channel.session_id and not await self._is_current(channel):
            self._close_deleted(channel)
            channel = self._channels.get(session)
        if channel is None:
            record = await self._store.session(session)
            settings = self._settings
            channel = Channel(session, record, settings.feed_length, settings.feed_bytes)
            channel = self._channels.setdefault(session, channel)
        channel.readers += 1
        try:
            with self.watch():
                yield channel
        finally:
            channel.readers -= 1
            if not channel.readers and self._channels.get(session) is channel:
                del self._channels[session]

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

    async def wait_change(self) -> None:
        """Wait until a process has written to the store. Changes of other processes are found inside `watch`."""
        await _wait_in(self._change_waiters, self._error())

    def notice_change(self) -> None:
        """Wake all who wait for a change, after one that is no event."""
        self._resolve_change_waiters()
        _resolve(list(self._external_waiters))

    async def wait_external_change(self) -> None:
        """Wait until another process may have written to the store."""
        await _wait_in(self._external_waiters, self._error())

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
            await asyncio.sleep(self._settings.notice_interval)
            try:
                if await self._store.changed() or self._is_behind:
                    self._is_behind = False
                    self.notice_change()
                    for channel in list(self._channels.values()):
                        self._fill_soon(channel)
            except LostFileError as error:
                self._fail_readers(error)
            except StoreError:  # The disk may recover; readers wait for it.
                pass

    def _fail_readers(self, error: StoreError) -> None:
        """Raise an error in everything that waits for events of this file. Later readers get it from the store."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close(error)
        self._resolve_change_waiters(error)

    async def subscribe(self, session: str, after: int = 0) -> AsyncGenerator[list[StoredEvent]]:
        """Yield the events after a cursor in batches, then new ones as they are written, without end."""
        await self._check_cursor(session, after)
        cursor, is_live = after, False
        async with self._follow(session) as channel:
            while True:
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

    async def _check_cursor(self, session: str, after: int) -> None:
        record = await self._store.session(session)
        last_seq, pruned_seq = (record.last_seq, record.pruned_seq) if record else (0, 0)
        if not 0 <= after <= last_seq:
            raise InvalidInputError("after", f"must be from 0 to the last event ({last_seq}), got {after}")
        if after < pruned_seq:
            raise CursorExpiredError(after, pruned_seq)

    async def until_ended(self, session: str, call: str) -> None:
        """Wait until a call has ended."""
        async with self._follow(session) as channel:
            record = await self._store.call(call)
            if record is None or not record.end:
                await channel.wait_ended(call)

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
