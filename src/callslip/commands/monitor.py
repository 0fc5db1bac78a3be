"""Who waits for work, and which command runs out of time next: what it takes to be woken at the right moment.

Rows come from this process's own writes as they are made, and from other processes' by looking what has a larger
`change` than all that was seen. If they come out of order, all are read in order. One timer serves all deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine, Generator
from typing import Any

from callslip.commands.deadlines import DeadlineTracker
from callslip.commands.waiters import Lines, Waiter, WaiterSlot, in_line
from callslip.errors import CallslipError, StoreError
from callslip.ledger import liveness
from callslip.ledger.event_log import EventLog
from callslip.ledger.feed import CLOSED
from callslip.ledger.validation import NUMBER_LIMIT
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES

PAGE = 1000
MOMENT = 1.0
"""How long whoever waits for an end relies on being told, in s."""


class CommandMonitor:
    """The open commands of one ledger, as this process knows them. Begins with the first that has to do with one."""

    def __init__(self, log: EventLog, tracker: DeadlineTracker) -> None:
        self._log = log
        self._store = log.store
        self._tracker = tracker
        self._grace = log.settings.reaper_grace
        self._how = log.write_context(source="callslip", strict=True)
        self._lines: Lines = {}
        self._ends: dict[str, set[asyncio.Future[CallRecord]]] = {}
        self._last = -1
        self._loaded = self._loading = self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._trusted_from = -math.inf
        self._offset = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._noticing: asyncio.Task[None] | None = None
        self._closed = False
        self._leave = [self._store.on_commands(self._written), log.on_close(self.close)]

    @contextlib.contextmanager
    def in_line(self, client: str) -> Generator[Waiter]:
        """Stand in line for work."""
        with in_line(self._lines, client) as waiter:
            self._notice()
            yield waiter

    def standing(self, client: str, most: int) -> list[WaiterSlot]:
        """The first of those who stand in line for a client's work."""
        return self._lines[client].standing(most) if client in self._lines else []

    def reserve(self, client: str, place: WaiterSlot) -> bool:
        """Take one of them out of the line; whether they still stood there."""
        return client in self._lines and self._lines[client].reserve(place)

    async def ended(self, row: CallRecord, wait: float) -> CallRecord | None:
        """A command when it has ended, or as it stands after so long; nothing if it is not there any more."""
        self.start()
        until = time.monotonic() + wait
        future: asyncio.Future[CallRecord] = asyncio.get_running_loop().create_future()
        waiting = self._ends.setdefault(row.id, set())
        waiting.add(future)
        try:
            if self._loading or self._tracker.get(row.id) is None:  # It may have ended before anybody listened.
                return await self._looked_for(row, future, until)
            return await self._told(future, until) or await self._looked_for(row, future, until)
        finally:
            waiting.discard(future)
            if not waiting:
                self._ends.pop(row.id, None)

    async def _told(self, future: asyncio.Future[CallRecord], until: float) -> CallRecord | None:
        """What comes, for a moment: rows that are deleted come no more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(until - time.monotonic(), MOMENT))):
                return await asyncio.shield(future)
        return future.result() if future.done() else None

    async def _looked_for(self, row: CallRecord, future: asyncio.Future[CallRecord], until: float) -> CallRecord | None:
        while True:
            now = await self._store.call(row.id)
            if now is None or now.state in TERMINAL_STATES or time.monotonic() >= until:
                return now
            told = await self._told(future, until)
            if told is not None:
                return told

    @property
    def closed(self) -> bool:
        """Whether nobody will be woken any more."""
        return self._closed

    def start(self) -> None:
        """Begin to watch."""
        if self._last < 0:
            self._last = 0
            self._offset = time.time() - time.monotonic()
            self._catch_up()

    def _written(self, rows: list[CallRecord]) -> None:
        """What this process has just written. If others wrote in between, all of it is read in order."""
        if self._last < 0:
            return
        if self._loading or rows[0].change != self._last + 1:
            self._catch_up()
        else:
            self._apply(rows)

    def _apply(self, rows: list[CallRecord]) -> None:
        self._take(rows)
        self._last = rows[-1].change
        self._arm()
        self._notice()

    def _take(self, rows: list[CallRecord]) -> None:
        for row in rows:
            if self._tracker.take(row) and row.client in self._lines:
                self._lines[row.client].wake()
            if row.id in self._ends and row.state in TERMINAL_STATES:
                for future in self._ends.pop(row.id):
                    if not future.done():
                        future.set_result(row)

    def _catch_up(self) -> None:
        self._again = True
        if not self._loading and not self._closed:
            self._loading = True
            self._spawn(self._load())

    async def _load(self) -> None:
        try:
            while self._again:
                self._again = False
                with contextlib.suppress(CallslipError):
                    if not self._loaded:
                        await self._load_pending()
                    while rows := await self._store.commands_changed(self._last, PAGE):
                        self._apply(rows)
        finally:
            self._loading = False

    async def _load_pending(self) -> None:
        """What stood open before: of all that has ended nobody has to be told."""
        self._last = await self._store.last_change()
        self._take(await self._store.pending_commands("", NUMBER_LIMIT))
        self._loaded = True
        if 0 < self._tracker.next_due <= await self._store.clock():  # Nobody here has watched them run out of time.
            self._trusted_from = time.monotonic() + self._grace
        self._arm()
        self._notice()

    def _notice(self) -> None:
        """While anything is open or anybody waits for work, look what other processes write."""
        if self._noticing is None and not self._closed:
            self._noticing = asyncio.ensure_future(self._look())
            self._noticing.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._noticing = None
        if not task.cancelled() and task.exception() is None and (self._lines or self._tracker.pending):
            self._notice()  # It stopped for want of anything to look for, and there is something now.

    async def _look(self) -> None:
        with self._log.feed.watching():
            while self._lines or self._tracker.pending:
                await self._log.feed.noticed()
                self._catch_up()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Running out of time: one timer, for whatever is due next.

    def _arm(self) -> None:
        due = self._tracker.next_due
        if not due or self._closed:
            return
        at = max(time.monotonic() + due / 1000 - time.time(), self._trusted_from)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_at = at
        self._timer = loop.call_later(max(0.0, at - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self._closed:
            self._spawn(self._sweep())

    def _clock_is_steady(self) -> bool:
        """Whether no more time went by than this process was awake for. If so it waits before it ends anything."""
        offset = time.time() - time.monotonic()
        jumped = offset - self._offset > self._grace
        self._offset = offset
        if jumped:
            self._trusted_from = time.monotonic() + self._grace
        return not jumped

    async def _sweep(self) -> None:
        """End what is due, if it still is."""
        try:
            now = await self._store.clock()
            if not self._clock_is_steady():
                return
            names = self._tracker.due(now)
            for start in range(0, len(names), liveness.TOGETHER):
                await asyncio.gather(*map(self._expire, names[start : start + liveness.TOGETHER]))
        finally:
            self._arm()

    async def _expire(self, name: str) -> None:
        try:
            later = await self._store.transact(lambda unit: liveness.expire_if_due(unit, name, self._how))
        except CallslipError:
            later = await self._store.clock() + 1000  # The disk may come back.
        row = None if later else await self._store.call(name)
        if later:
            self._tracker.again(name, later)
        elif row is None:  # Deleted with its session.
            self._tracker.forget(name)
        else:  # Retention may take its row away before it is read among the others.
            self._take([row])

    async def close(self) -> None:
        """Stop."""
        self._closed = True
        while self._leave:
            self._leave.pop()()
        for line in self._lines.values():
            line.wake_all()
        for future in [future for waiting in self._ends.values() for future in waiting]:
            if not future.done():
                future.set_exception(StoreError(CLOSED))
        if self._timer is not None:
            self._timer.cancel()
        running = [*self._tasks, *([self._noticing] if self._noticing else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
