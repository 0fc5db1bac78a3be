"""Following sessions: catch up from the store, then go live; no gap, no repeat.

One channel per followed session keeps the newest events once, whoever reads them; a reader is only a cursor into it. A
reader that falls out of the channel's back is dropped and told where to resume, so that nobody waits for the slow.
Events of other processes are noticed by asking the store a few dozen times a second, only while somebody follows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import islice

from callslip.errors import Gone, Refused, SlowReader
from callslip.events import CallEvent, decode_event
from callslip.lifecycle import ends
from callslip.settings import Settings
from callslip.store.protocol import Store, Stored


class Channel:
    """The newest events of one session: `newest` ends at seq `last` and begins after seq `base`."""

    def __init__(self, session: str, head: int, length: int) -> None:
        self.session = session
        self.base = self.last = head
        self.newest: deque[Stored] = deque()
        self.readers = 0
        self.filling = False
        self._length = length
        self._wake: set[asyncio.Future[None]] = set()

    def push(self, stored: Stored) -> None:
        self.newest.append(stored)
        self.last = stored.event.seq
        if len(self.newest) > self._length:
            self.newest.popleft()
            self.base += 1

    def wake(self) -> None:
        for waiting in self._wake:
            if not waiting.done():
                waiting.set_result(None)
        self._wake.clear()

    def after(self, cursor: int) -> list[Stored]:
        return list(islice(self.newest, cursor - self.base, None))

    async def wait(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._wake.add(waiting)
        try:
            await waiting
        finally:
            self._wake.discard(waiting)


class Feed:
    """Everything that follows anything, in one process."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._channels: dict[str, Channel] = {}
        self._ended: dict[str, set[asyncio.Future[None]]] = {}
        self._noticing: asyncio.Task[None] | None = None
        self._fills: set[asyncio.Task[None]] = set()
        store.on_commit(self.publish)

    def publish(self, made: list[Stored]) -> None:
        """Pass on what has just become durable (C6)."""
        touched: set[Channel] = set()
        for stored in made:
            channel = self._channels.get(stored.session)
            if channel is None or stored.event.seq <= channel.last:
                continue
            if stored.event.seq == channel.last + 1:
                self._push(channel, stored)
                touched.add(channel)
            else:
                self._fill_soon(channel)  # Another process wrote in between.
        for channel in touched:
            channel.wake()

    def _push(self, channel: Channel, stored: Stored) -> None:
        channel.push(stored)
        event = stored.event
        if self._ended and event.verdict == "applied" and isinstance(event, CallEvent) and ends(event):
            for waiting in self._ended.pop(event.call, ()):
                if not waiting.done():
                    waiting.set_result(None)

    def _fill_soon(self, channel: Channel) -> None:
        if not channel.filling:
            channel.filling = True
            task = asyncio.ensure_future(self._fill(channel))
            self._fills.add(task)
            task.add_done_callback(self._fills.discard)

    async def _fill(self, channel: Channel) -> None:
        """Read what the channel lacks from the store."""
        try:
            while True:
                rows = await self._store.events(channel.session, channel.last, self._settings.read_page)
                for seq, body in rows:
                    if seq == channel.last + 1:
                        self._push(channel, Stored(channel.session, decode_event(body), body))
                if len(rows) < self._settings.read_page:
                    break
        finally:
            channel.filling = False
            channel.wake()

    @contextlib.asynccontextmanager
    async def _follow(self, session: str) -> AsyncGenerator[Channel]:
        channel = self._channels.get(session)
        if channel is None:
            row = await self._store.session(session)
            channel = self._channels.setdefault(
                session, Channel(session, row.head if row else 0, self._settings.feed_length)
            )
        channel.readers += 1
        if self._noticing is None:
            self._noticing = asyncio.ensure_future(self._notice())
        try:
            yield channel
        finally:
            channel.readers -= 1
            if not channel.readers:
                self._channels.pop(session, None)
            if not self._channels:
                self._stop_noticing()

    def _stop_noticing(self) -> None:
        noticing, self._noticing = self._noticing, None
        if noticing is not None:
            noticing.cancel()

    async def _notice(self) -> None:
        while True:
            await asyncio.sleep(self._settings.notice_interval)
            if await self._store.changed():
                for channel in list(self._channels.values()):
                    self._fill_soon(channel)

    async def subscribe(self, session: str, after: int = 0) -> AsyncGenerator[list[Stored]]:
        """Every event after a cursor, in order, in batches; never ends by itself."""
        await self._check_cursor(session, after)
        cursor, live = after, False
        async with self._follow(session) as channel:
            while True:
                if cursor < channel.base:
                    if live:
                        raise SlowReader(cursor)
                    rows = await self._store.events(session, cursor, self._settings.read_page)
                    if not rows:
                        raise Gone(cursor, channel.base)
                    batch = [Stored(session, decode_event(body), body) for _, body in rows]
                elif cursor < channel.last:
                    batch = channel.after(cursor)
                else:
                    live = True
                    await channel.wait()
                    continue
                cursor = batch[-1].event.seq
                yield batch

    async def _check_cursor(self, session: str, after: int) -> None:
        row = await self._store.session(session)
        head, low = (row.head, row.low) if row else (0, 0)
        if after < 0 or after > head:
            raise Refused("after", f"{after} is not a seq of this session, which goes to {head}")
        if after < low:
            raise Gone(after, low)

    async def until_ended(self, session: str, call: str) -> None:
        """Return once the call has ended."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with self._follow(session):
            self._ended.setdefault(call, set()).add(waiting)
            try:
                row = await self._store.call(call)
                if row is None or not row.end:
                    await waiting
            finally:
                if call in self._ended:
                    self._ended[call].discard(waiting)
                    if not self._ended[call]:
                        del self._ended[call]

    async def close(self) -> None:
        self._stop_noticing()
        for task in list(self._fills):
            task.cancel()
        for channel in self._channels.values():
            channel.wake()
