"""Watch the open commands: wake workers, waiters and the timer of deadlines at the right moment.

Records of this process's own writes are applied as they are committed. Those of other processes are read after a
cursor, when the feed notices a change. The two may arrive in any order and more than once: an older record of a command
never replaces a newer one. One timer serves all deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine, Generator
from typing import Any

from callslip.commands.deadlines import DeadlineTracker
from callslip.commands.waiters import Waiter, WaiterQueues, WaiterSlot, wait_in_queue
from callslip.errors import CallslipError, StoreError
from callslip.ledger import liveness
from callslip.ledger.aio import cancel_all
from callslip.ledger.event_log import EventLog
from callslip.ledger.feed import CLOSED
from callslip.ledger.validation import NUMBER_LIMIT
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES

PAGE_ROWS = 1000
END_POLL_S = 1.0
"""How often a caller that waits for an end reads the store, because a deleted command sends no notice."""
RETRY_DELAY_MS = 1000
MAX_REMEMBERED = 4096
"""Of how many commands the newest change is remembered, to recognise older records that arrive late."""


class CommandMonitor:
    """The open commands of one ledger, as this process knows them. Reading starts with the first use."""

    def __init__(self, log: EventLog, tracker: DeadlineTracker) -> None:
        self._log = log
        self._store = log.store
        self._tracker = tracker
        self._grace = log.settings.reaper_grace
        self._context = log.write_context(source="callslip", strict=True)
        self._waiter_queues: WaiterQueues = {}
        self._end_waiters: dict[str, set[asyncio.Future[CallRecord]]] = {}
        self._changes: dict[str, int] = {}
        self._cursor: str | None = None
        self._is_started = self._is_loading = self._must_load = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._expire_from = -math.inf
        self._clock_offset = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False
        self._unsubscribe = [self._store.on_commands(self._on_written), log.on_close(self.close)]

    @contextlib.contextmanager
    def wait_in_queue(self, queue: str) -> Generator[Waiter]:
        """Wait for commands of a queue."""
        with wait_in_queue(self._waiter_queues, queue) as waiter:
            self._watch()
            yield waiter

    def first_waiters(self, queue: str, limit: int) -> list[WaiterSlot]:
        """Return the slots of the workers that have waited longest."""
        return self._waiter_queues[queue].first(limit) if queue in self._waiter_queues else []

    def reserve(self, queue: str, slot: WaiterSlot) -> bool:
        """Remove a slot from its queue to deliver a command to it; return False if it was woken or has left."""
        return queue in self._waiter_queues and self._waiter_queues[queue].reserve(slot)

    async def wait_ended(self, record: CallRecord, wait: float) -> CallRecord | None:
        """Return a command once it has ended, or as it is after `wait` seconds; None if it was deleted."""
        self.start()
        until = time.monotonic() + wait
        future: asyncio.Future[CallRecord] = asyncio.get_running_loop().create_future()
        waiters = self._end_waiters.setdefault(record.id, set())
        waiters.add(future)
        self._watch()
        try:
            if self._is_loading or self._tracker.get(record.id) is None:  # It may have ended before this call.
                return await self._poll_ended(record, future, until)
            return await self._wait_notice(future, until) or await self._poll_ended(record, future, until)
        finally:
            waiters.discard(future)
            if not waiters:
                self._end_waiters.pop(record.id, None)

    async def _wait_notice(self, future: asyncio.Future[CallRecord], until: float) -> CallRecord | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(until - time.monotonic(), END_POLL_S))):
                return await asyncio.shield(future)
        return future.result() if future.done() else None

    async def _poll_ended(
        self, record: CallRecord, future: asyncio.Future[CallRecord], until: float
    ) -> CallRecord | None:
        while True:
            current = await self._store.call(record.id)
            if current is None or current.state in TERMINAL_STATES or time.monotonic() >= until:
                return current
            ended = await self._wait_notice(future, until)
            if ended is not None:
                return ended

    @property
    def closed(self) -> bool:
        """Whether the monitor has stopped and wakes no more waiters."""
        return self._closed

    def start(self) -> None:
        """Start watching."""
        if not self._is_started:
            self._is_started = True
            self._clock_offset = self._store.time_ms() / 1000 - time.monotonic()
            self._schedule_load()

    def _on_written(self, records: list[CallRecord]) -> None:
        """Apply what this process wrote."""
        if self._is_started:
            self._apply(records)

    def _apply(self, records: list[CallRecord]) -> None:
        self._notify(records)
        self._set_timer()
        self._watch()

    def _notify(self, records: list[CallRecord]) -> None:
        for record in records:
            if not self._remember(record):
                continue
            if self._tracker.update(record) and record.client in self._waiter_queues:
                self._waiter_queues[record.client].wake()
            if record.id in self._end_waiters and record.state in TERMINAL_STATES:
                for future in self._end_waiters.pop(record.id):
                    if not future.done():
                        future.set_result(record)

    def _remember(self, record: CallRecord) -> bool:
        """Return whether a record is newer than what is known of its command."""
        changes = self._changes
        known = changes.pop(record.id, -1)
        changes[record.id] = max(known, record.change)  # The last one was changed last.
        if len(changes) > MAX_REMEMBERED and not self._is_loading:  # A load may still return older records of all.
            for command in list(changes)[: len(changes) - MAX_REMEMBERED // 2]:
                del changes[command]
        return record.change > known

    def _schedule_load(self) -> None:
        self._must_load = True
        if not self._is_loading and not self._closed:
            self._is_loading = True
            self._spawn(self._load())

    async def _load(self) -> None:
        try:
            while self._must_load:
                self._must_load = False
                try:
                    await self._load_changes()
                except CallslipError:  # The disk may recover.
                    self._must_load = True
                    await asyncio.sleep(RETRY_DELAY_MS / 1000)
        finally:
            self._is_loading = False

    async def _load_changes(self) -> None:
        """Read what was written since the last time; the first time, all open commands."""
        if self._cursor is None:
            self._cursor = await self._load_open()
        is_complete = False
        while not is_complete:
            records, cursor = await self._store.commands_changed(self._cursor, PAGE_ROWS)
            if not cursor:  # Commands are lost, and numbers of changes are used again.
                self._cursor = None
                self._changes.clear()
                self._cursor = await self._load_open()
                return
            self._cursor = cursor
            is_complete = len(records) < PAGE_ROWS
            if records:
                self._apply(records)

    async def _load_open(self) -> str:
        """Read all open commands, and return the cursor for what is written later."""
        known = set(self._tracker.pending)
        cursor = await self._store.change_cursor()
        records = await self._store.pending_commands("", NUMBER_LIMIT)
        self._notify(records)
        for command in known.difference(record.id for record in records):  # They have ended, or are lost.
            record = await self._store.call(command)
            if record is not None:
                self._notify([record])
            else:
                self._tracker.remove(command)
        if 0 < self._tracker.next_due <= self._store.time_ms():  # This process did not see them expire.
            self._expire_from = time.monotonic() + self._grace
        self._set_timer()
        self._watch()
        return cursor

    def _watch(self) -> None:
        """Read what other processes write while a command is open or a caller waits for work or for an end."""
        if self._watcher is None and not self._closed:
            self._watcher = asyncio.ensure_future(self._watch_other_processes())
            self._watcher.add_done_callback(self._on_watcher_done)

    def _on_watcher_done(self, task: asyncio.Task[None]) -> None:
        self._watcher = None
        if not task.cancelled() and task.exception() is None and self._must_watch():
            self._watch()  # A command or a waiter arrived while the watcher was stopping.

    def _must_watch(self) -> bool:
        return bool(self._waiter_queues or self._end_waiters or self._tracker.pending)

    async def _watch_other_processes(self) -> None:
        feed = self._log.feed
        with feed.watch():
            while self._must_watch():
                seen = feed.external_changes
                self._schedule_load()
                await feed.wait_external_change(seen)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Deadlines: one timer, for the next command that is due

    def _set_timer(self) -> None:
        due = self._tracker.next_due
        if not due or self._closed:
            return
        left_s = (due - self._store.time_ms()) / 1000
        if self._clock_jump_s() > self._grace:  # What is due by the new time had more time before.
            left_s = max(left_s, self._grace)
        at = max(time.monotonic() + left_s, self._expire_from)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_at = at
        self._timer = loop.call_later(max(0.0, at - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._closed:
            self._spawn(self._expire_due())

    def _has_clock_jumped(self) -> bool:
        """Return whether the clock was set or the machine slept; if so, expire nothing for the grace period."""
        jump_s = self._clock_jump_s()
        self._clock_offset += jump_s
        if jump_s > self._grace:
            self._expire_from = time.monotonic() + self._grace
        return jump_s > self._grace

    def _clock_jump_s(self) -> float:
        """Return how far the store's clock was set forward since the last timer, compared with the time that passed."""
        return self._store.time_ms() / 1000 - time.monotonic() - self._clock_offset

    async def _expire_due(self) -> None:
        try:
            now = await self._store.clock()
            if self._has_clock_jumped():
                return
            commands = self._tracker.due(now)
            for start in range(0, len(commands), liveness.MAX_CONCURRENT_ENDS):
                await asyncio.gather(*map(self._expire, commands[start : start + liveness.MAX_CONCURRENT_ENDS]))
        finally:
            self._set_timer()

    async def _expire(self, command: str) -> None:
        try:
            deadline = await self._store.transact(lambda unit: liveness.expire_if_due(unit, command, self._context))
        except CallslipError:
            deadline = await self._store.clock() + RETRY_DELAY_MS  # The disk may recover.
        record = None if deadline else await self._store.call(command)
        if deadline:
            self._tracker.reschedule(command, deadline)
        elif record is None:  # Deleted with its session.
            self._tracker.remove(command)
        else:  # Retention may delete the record before it is read with the others.
            self._notify([record])

    async def close(self) -> None:
        """Stop, wake all workers, and fail the waits for an end."""
        self._closed = True
        while self._unsubscribe:
            self._unsubscribe.pop()()
        for queue in self._waiter_queues.values():
            queue.wake_all()
        for future in [future for waiters in self._end_waiters.values() for future in waiters]:
            if not future.done():
                future.set_exception(StoreError(CLOSED))
        if self._timer is not None:
            self._timer.cancel()
        await cancel_all(*self._tasks, *([self._watcher] if self._watcher else []))
