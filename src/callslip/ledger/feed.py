"""Following sessions: catch up from the store, then go live; no gap, no repeat.

One channel per followed session keeps the newest events once, whoever reads them; a reader is only a cursor into it. A
reader that falls out of the channel's back is dropped and told where to resume, so that nobody waits for the slow.
Events of other processes are noticed by asking the store a few dozen times a second, only while somebody follows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from itertools import islice

from callslip.errors import CallslipError, CursorExpiredError, InvalidInputError, SlowReaderError, StoreError
from callslip.model.events import CallEvent, decode_event
from callslip.model.records import SessionRecord
from callslip.rules.lifecycle import is_terminal
from callslip.settings import Settings
from callslip.store.protocol import Store, StoredEvent

CLOSED = "the ledger is closed"


class Channel:
    """The newest events of one session: `newest` ends at seq `last` and begins after seq `base`."""

    def __init__(self, session: str, row: SessionRecord | None, length: int) -> None:
        self.session = session
        self.number = row.id if row else 0
        self.base = self.last = row.last_seq if row else 0
        self.newest: deque[StoredEvent] = deque()
        self.readers = 0
        self.filling = self.again = False
        self.end: CallslipError | None = None
        self._length = length
        self._wake: set[asyncio.Future[None]] = set()
        self._ended: dict[str, set[asyncio.Future[None]]] = {}

    def push(self, stored: StoredEvent) -> None:
        self.newest.append(stored)
        event = stored.event
        self.last = event.seq
        if len(self.newest) > self._length:
            self.newest.popleft()
            self.base += 1
        if self._ended and event.verdict == "applied" and isinstance(event, CallEvent) and is_terminal(event):
            _settle(self._ended.pop(event.call, ()))

    def skip_to(self, seq: int) -> None:
        """What lies before this event was removed by retention."""
        self.newest.clear()
        self.base = self.last = seq - 1

    def wake(self) -> None:
        _settle(self._wake)
        self._wake.clear()

    def close(self, why: CallslipError) -> None:
        """Nothing more will come; whoever waits is told why."""
        self.end = why
        for waiting in self._ended.values():
            _settle(waiting, why)
        self.wake()

    def after(self, cursor: int) -> list[StoredEvent]:
        return list(islice(self.newest, cursor - self.base, None))

    async def wait(self) -> None:
        """Return when something has come."""
        await self._wait_in(self._wake)

    async def ended(self, call: str) -> None:
        """Return when the end of this call has come."""
        try:
            await self._wait_in(self._ended.setdefault(call, set()))
        finally:
            if not self._ended.get(call, True):
                del self._ended[call]

    async def _wait_in(self, waiting: set[asyncio.Future[None]]) -> None:
        if self.end is not None:
            raise self.end
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)


def _settle(waiting: Iterable[asyncio.Future[None]], error: BaseException | None = None) -> None:
    for future in waiting:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class Feed:
    """Everything that follows anything, in one process."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._channels: dict[str, Channel] = {}
        self._noticing: asyncio.Task[None] | None = None
        self._fills: set[asyncio.Task[None]] = set()
        self._behind = False
        self._closed = asyncio.Event()
        self._watching = 0
        self._anything: set[asyncio.Future[None]] = set()
        self._elsewhere: set[asyncio.Future[None]] = set()
        store.on_commit(self.publish)

    def publish(self, made: list[StoredEvent]) -> None:
        """Pass on what has just become durable (C6)."""
        if self._anything:
            self._changed()
        if not self._channels:
            return
        touched: set[Channel] = set()
        for stored in made:
            channel = self._channels.get(stored.session)
            if channel is None or stored.event.seq <= channel.last:
                continue
            if stored.event.seq == channel.last + 1:
                channel.push(stored)
                touched.add(channel)
            else:
                self._fill_soon(channel)  # Another process wrote in between.
        for channel in touched:
            channel.wake()

    def _fill_soon(self, channel: Channel) -> None:
        channel.again = True  # What is read at this moment may be too early.
        if not channel.filling:
            channel.filling = True
            task = asyncio.ensure_future(self._fill(channel))
            self._fills.add(task)
            task.add_done_callback(self._fills.discard)

    async def _fill(self, channel: Channel) -> None:
        """Read what the channel lacks from the store."""
        try:
            while channel.again:
                channel.again = False
                await self._fill_from_store(channel)
        except StoreError:
            self._behind = True
        finally:
            channel.filling = False
            channel.wake()

    async def _fill_from_store(self, channel: Channel) -> None:
        row = await self._store.session(channel.session)
        if row is None or channel.number not in (0, row.id):
            if channel.number:
                self._drop(channel, CursorExpiredError(channel.last, channel.last))
            return
        channel.number = row.id
        while channel.last < row.last_seq:
            rows = await self._store.events(channel.session, channel.last, self._settings.read_page)
            if not rows:
                return
            if rows[0][0] > channel.last + 1:
                channel.skip_to(rows[0][0])
            for seq, body in rows:
                if seq == channel.last + 1:
                    channel.push(StoredEvent(channel.session, decode_event(body), body))

    def _drop(self, channel: Channel, why: CallslipError) -> None:
        """The session was deleted. One that comes by the same name has another channel."""
        channel.close(why)
        if self._channels.get(channel.session) is channel:
            del self._channels[channel.session]

    @contextlib.asynccontextmanager
    async def _follow(self, session: str) -> AsyncGenerator[Channel]:
        if self._closed.is_set():
            raise StoreError(CLOSED)
        channel = self._channels.get(session)
        if channel is None:
            row = await self._store.session(session)
            channel = self._channels.setdefault(session, Channel(session, row, self._settings.feed_length))
        channel.readers += 1
        try:
            with self.watching():
                yield channel
        finally:
            channel.readers -= 1
            if not channel.readers and self._channels.get(session) is channel:
                del self._channels[session]

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """As long as anybody is in here, what other processes write is noticed."""
        self._watching += 1
        if self._noticing is None:
            self._noticing = asyncio.ensure_future(self._notice())
        try:
            yield
        finally:
            self._watching -= 1
            if not self._watching:
                self._stop_noticing()

    async def change(self) -> None:
        """Return when anything was written anywhere. Only who is `watching` hears of other processes."""
        await self._until_in(self._anything)

    async def noticed(self) -> None:
        """Return when something may have been written by others; what this process writes tells the store itself."""
        await self._until_in(self._elsewhere)

    async def _until_in(self, waiting: set[asyncio.Future[None]]) -> None:
        if self._closed.is_set():
            raise StoreError(CLOSED)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)

    def _changed(self, error: BaseException | None = None) -> None:
        _settle(list(self._anything), error)
        self._anything.clear()

    def _stop_noticing(self) -> None:
        noticing, self._noticing = self._noticing, None
        if noticing is not None:
            noticing.cancel()

    async def _notice(self) -> None:
        while True:
            await asyncio.sleep(self._settings.notice_interval)
            with contextlib.suppress(StoreError):  # The disk may come back; readers wait for it.
                if await self._store.changed() or self._behind:
                    self._behind = False
                    self._changed()
                    _settle(list(self._elsewhere))
                    for channel in list(self._channels.values()):
                        self._fill_soon(channel)

    async def subscribe(self, session: str, after: int = 0) -> AsyncGenerator[list[StoredEvent]]:
        """Every event after a cursor, in order, in batches; never ends by itself."""
        await self._check_cursor(session, after)
        cursor, slow = after, False
        async with self._follow(session) as channel:
            while True:
                if cursor < channel.base:
                    if slow:
                        raise SlowReaderError(cursor)
                    batch = await self._stored(session, cursor)
                elif cursor < channel.last:
                    slow = True  # From here on it is up to the reader to keep up.
                    batch = channel.after(cursor)
                else:
                    slow = False  # A burst longer than the channel is not the fault of one who waited.
                    await channel.wait()
                    continue
                cursor = batch[-1].event.seq
                yield batch

    async def _stored(self, session: str, cursor: int) -> list[StoredEvent]:
        rows = await self._store.events(session, cursor, self._settings.read_page)
        if not rows or rows[0][0] != cursor + 1:
            row = await self._store.session(session)
            raise CursorExpiredError(cursor, row.pruned_seq if row else cursor)
        return [StoredEvent(session, decode_event(body), body) for _, body in rows]

    async def _check_cursor(self, session: str, after: int) -> None:
        row = await self._store.session(session)
        head, low = (row.last_seq, row.pruned_seq) if row else (0, 0)
        if after < 0 or after > head:
            raise InvalidInputError("after", f"{after} is not a seq of this session, which goes to {head}")
        if after < low:
            raise CursorExpiredError(after, low)

    async def until_ended(self, session: str, call: str) -> None:
        """Return once the call has ended."""
        async with self._follow(session) as channel:
            row = await self._store.call(call)
            if row is None or not row.end:
                await channel.ended(call)

    async def until_closed(self) -> None:
        """Return when the ledger is closed, or about to be."""
        await self._closed.wait()

    async def close(self) -> None:
        """Tell everybody who still follows."""
        self._closed.set()
        self._stop_noticing()
        for task in list(self._fills):
            task.cancel()
        for channel in list(self._channels.values()):
            channel.close(StoreError(CLOSED))
        self._changed(StoreError(CLOSED))
        _settle(list(self._elsewhere), StoreError(CLOSED))
