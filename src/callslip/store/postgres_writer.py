"""Group commit on PostgreSQL: tasks that are queued together are decided together and written with one statement.

A process writes through a few lanes, each with a connection of its own. A session is written by one lane at a time, so
the tasks of one session keep their order. Decisions use the records that the process remembers. The statement that
writes compares the rev of every session that was used; if another process has changed one, nothing is written, and the
decisions run again. A session that is disturbed in this way is then locked before it is read, for as long as others
write to it, because otherwise a slow writer could lose forever.

A write does not wait long for a lock, because sessions must not wait for each other. If another transaction keeps the
lock, the tasks of its session are tried again later, by one lane at a time. Deletions and retention, which may take
minutes, have a lane of their own.

If a connection is lost during a commit, the outcome is read from the row of the lane: the group was committed, or it
is fenced, which keeps it from being committed later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, count
from typing import Any, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from callslip.errors import ReadOnlyStoreError, StoreError
from callslip.model.events import ApprovalAnswer, CallEvent, Draft, blob_of
from callslip.model.records import CallRecord, SessionRecord
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.stacks import describe_tasks
from callslip.store.postgres_cache import Cache, GroupReads, Missing
from callslip.store.postgres_database import (
    DRIVER_ERRORS,
    RETRY_DELAYS_S,
    WRITE_LOCK_TIMEOUT_S,
    Connection,
    Database,
    LostConnectionError,
    is_lost,
    translate_errors,
)
from callslip.store.postgres_rows import SESSION_COLUMNS, approval_body, call_body, session_body
from callslip.store.protocol import NOTHING_KNOWN, StoredEvent, Touched
from callslip.store.unit_of_work import GeneratedIds, UnitOfWork

T = TypeVar("T")
log = logging.getLogger("callslip.store")
MAX_BATCH = 1024
MAX_SCANNED_TASKS = 4096
MAX_ROUNDS = 100
"""How often the decisions of a group may ask for more records. Each time they ask for all that they can know of, so
more times are a fault of their code."""
UNDISTURBED_ROUNDS = 8
"""After how many writes without a disturbance a session is no longer locked first."""
SESSION_ID_BLOCK = 64
MAX_GROUP_BYTES = 4 * 2**20
MAX_DISTURBED = 2048
MAX_CONFLICT_RETRIES = 3
MAX_OVERDUE_S = 60.0
"""How long after its deadline a write must have ended. If it has not, something waits without a deadline."""
CHECK_S = 10.0
RETRIED_STATES = ("40P01", "40001")
"""Deadlock and serialization failure."""
LOCK_TIMEOUT = "55P03"
MIN_LOCK_DELAY_S, MAX_LOCK_DELAY_S = 0.05, 1.0
"""How long a task whose lock another transaction keeps waits for its next attempt. The delay doubles each time."""
REFUSED_STATES = ("22", "23", "54")
"""The start of the SQL states of a row that cannot be stored: invalid or repeated values, and limits of the server."""
CHANGED, ID_TAKEN, QUEUE_CHANGED, FENCED = "CS001", "CS002", "CS003", "CS004"

LOCK_SESSIONS = f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.name = ANY ($1) ORDER BY s.id FOR NO KEY UPDATE"
"""It returns what was committed before it got the locks."""
ADD_LANE = "INSERT INTO lanes (id, last, used_at) SELECT nextval('lane_ids'), 0, callslip_clock() RETURNING id"
USE_LANE = "UPDATE lanes SET last = $2, used_at = callslip_clock() WHERE id = $1 AND last < $2 RETURNING last"
RESOLVE_LANE = """
UPDATE lanes SET last = CASE WHEN last < $2 THEN $2 + 1 ELSE last END, used_at = callslip_clock()
WHERE id = $1 RETURNING last
"""
USE_RULES = "SELECT callslip_use_rules($1, $2, $3)"
SESSION_IDS = "SELECT nextval('session_ids') FROM generate_series(1, $1)"


class Task(msgspec.Struct, eq=False):
    """Something to write: `work` on a unit of work with others, or `alone` on a connection in its own transaction.

    There is one for each event of a busy process, so it is a struct, which is created quickly.
    """

    touched: Touched
    sessions: Collection[str]
    """The sessions that it is known to use. More are found when another process has changed them."""
    future: asyncio.Future[Any]
    submitted_at: float
    """The monotonic time of its creation."""
    work: Callable[[Any], Any] | None = None
    alone: Callable[[Connection], Awaitable[Any]] | None = None
    durable: bool = True
    timeout: float | None = None
    is_long: bool = False
    """Whether it may take minutes, as a deletion."""
    is_exclusive: bool = False
    """Whether all earlier tasks must have ended, because it concerns sessions that it cannot name."""
    generated: GeneratedIds = msgspec.field(default_factory=GeneratedIds)
    lock_timeouts: int = 0
    """How often another transaction has kept a lock that it needs."""
    retry_at: float = 0.0
    """The monotonic time of the next attempt."""


class Outcome:
    """What a task returned or raised, and which sessions it has used. `wrote` is whether it changed anything."""

    __slots__ = ("error", "task", "used", "value", "wrote")

    def __init__(self, task: Task, value: Any, error: Exception | None, used: set[str], wrote: bool) -> None:
        self.task = task
        self.value = value
        self.error = error
        self.used = used
        self.wrote = wrote


class _Disturbed(Exception):
    """Other processes have changed these sessions since they were read."""

    def __init__(self, sessions: set[str]) -> None:
        super().__init__()
        self.sessions = sessions


class _Again(Exception):
    """The decisions must run again, `send_delay_ms` later than now if their rows take that long to arrive."""

    def __init__(self, send_delay_ms: int = 0) -> None:
        super().__init__()
        self.send_delay_ms = send_delay_ms


class _LockTimeout(Exception):
    """Another transaction keeps a lock that a group needs."""


class _TooLarge(Exception):
    """The events of a group take too long to send, or too much memory, so a part of its tasks must run alone."""


class _Refused(Exception):
    """A task of a group cannot be written, so they are written in smaller groups: only the one that failed fails."""


class _MustLock(Exception):
    """A group must lock these sessions first: it has used more than it locked, or it uses rules."""

    def __init__(self, sessions: set[str]) -> None:
        super().__init__()
        self.sessions = sessions


class Lane:
    """A connection that writes. Its row in the database has the number of its last group.

    Groups have even numbers. An odd number fences the group before it. `on_connect` is called for each new connection.
    """

    def __init__(self, database: Database, on_connect: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._on_connect = on_connect
        self._connection: Connection | None = None
        self.id = 0
        self.number = 0

    async def connect(self) -> Connection:
        """Return the connection; open another one if it was lost."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect(WRITE_LOCK_TIMEOUT_S)
            self._on_connect()
        if not self.id:
            with translate_errors(self._database.name):
                self.id = (await self._connection.fetch(ADD_LANE))[0][0]
                self.number = 0
        return self._connection

    def next_number(self) -> int:
        """Return the number of a new group."""
        self.number += 2
        return self.number

    def drop(self) -> None:
        """Give up the connection, whose state is not known."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def is_committed(self, until: float) -> bool:
        """Return whether the last group was committed. If not, it cannot be committed any more."""
        self.drop()
        delays = iter(RETRY_DELAYS_S)
        while True:
            try:
                connection = await self.connect()
                with translate_errors(self._database.name):
                    rows = await connection.fetch(RESOLVE_LANE, self.id, self.number)
                break
            except StoreError as error:  # For any reason: without an answer the outcome is not known.
                self.drop()
                delay_s = next(delays, RETRY_DELAYS_S[-1])
                if time.monotonic() + delay_s > until:
                    self.renew()  # The outcome of its group stays unknown, so the next group uses another row.
                    raise StoreError(
                        f"{error}. Whether the last write was stored is not known. Repeat it with an idempotency key."
                    ) from error
                await asyncio.sleep(delay_s)
        if not rows:
            self.renew()
            raise StoreError(f"{self._database.name}: the row of a write connection is gone; outcome unknown")
        return rows[0][0] == self.number

    def renew(self) -> None:
        """Use another row, because this one is gone: rows that were not used for a day are removed."""
        self.id = 0

    async def close(self) -> None:
        """Close the connection and remove the row."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.execute("DELETE FROM lanes WHERE id = $1", self.id, timeout=1.0)
            await connection.close(timeout=1.0)
        except DRIVER_ERRORS:
            connection.terminate()


class PostgresWriter:
    """Runs tasks, those of one session in order.

    After each commit `deliver` gets the events and commands, `deliver_sessions` the sessions and the time of the
    transaction, and `deliver_heads` the last seq of each session and whether commands have changed.
    """

    def __init__(
        self,
        database: Database,
        deliver: Callable[[list[StoredEvent], list[CallRecord]], None],
        deliver_sessions: Callable[[list[SessionRecord], int], None],
        deliver_heads: Callable[[dict[str, int], bool], None],
    ) -> None:
        self._database = database
        self._deliver = deliver
        self._deliver_sessions = deliver_sessions
        self._deliver_heads = deliver_heads
        self._cache = Cache()
        self._queue: deque[Task] = deque()
        self._busy: set[str] = set()
        self._active = self._active_groups = 0
        """How many lanes are busy, and how many of them with groups."""
        self._has_exclusive = False
        self._waits_for_lock = False
        """Whether a lane tries a task again whose lock another transaction has kept."""
        self._disturbed: dict[str, int] = {}
        """The sessions that are locked first, with how often they were not disturbed since."""
        self._session_ids: deque[int] = deque()
        self._lanes: list[asyncio.Task[None]] = []
        self._long_lane: asyncio.Task[None] | None = None
        """Runs long tasks, while there are any."""
        self._long_sessions: Collection[str] = ()
        """The sessions of the long task that runs."""
        self._idle: set[asyncio.Future[None]] = set()
        self._idle_long: set[asyncio.Future[None]] = set()
        self._outage: LostConnectionError | None = None
        """The error of the last task, if the server could not be reached in time."""
        self._deadlines: dict[Lane, float] = {}
        """When the work of each lane must have ended."""
        self._check: asyncio.TimerHandle | None = None
        self._closed = False

    # Taking tasks

    def submit(self, work: Callable[[Any], Any], touched: Touched = NOTHING_KNOWN) -> asyncio.Future[Any]:
        """Queue a task and return a future that is done when its transaction is durable."""
        future = asyncio.get_running_loop().create_future()
        task = Task(touched, touched.sessions, future, time.monotonic(), work, is_exclusive=touched.owner != "")
        return self._put(task)

    async def run_alone(
        self,
        work: Callable[[Connection], Awaitable[T]],
        *,
        durable: bool = True,
        sessions: tuple[str, ...] = (),
        timeout: float | None = None,
    ) -> T:
        """Run a function in a transaction of its own; it may run several times. Forget what is known of `sessions`.

        `timeout` is the time of the whole transaction in seconds, by default that of a statement.
        """
        task = Task(
            Touched(sessions),
            sessions,
            asyncio.get_running_loop().create_future(),
            time.monotonic(),
            alone=work,
            durable=durable,
            timeout=timeout,
            is_long=timeout is not None,
        )
        return await self._put(task)

    def _put(self, task: Task) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreError("the ledger is closed")
        self._queue.append(task)
        if task.is_long:
            if self._long_lane is None:
                self._long_lane = self._start_lane(self._run_long_lane, self._on_long_lane_ended)
            self._wake()
        elif self._idle:
            self._wake(1)
        elif len(self._lanes) < self._database.settings.write_connections:
            self._lanes.append(self._start_lane(self._run_lane, self._on_lane_ended))
        return task.future

    def _start_lane(
        self, run: Callable[[Lane], Coroutine[Any, Any, None]], on_end: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        # A new connection may be to a server that has lost the last transactions, with other rows at the same rev.
        lane = asyncio.ensure_future(run(Lane(self._database, self._cache.clear)))
        lane.add_done_callback(on_end)
        return lane

    def _on_lane_ended(self, lane: asyncio.Task[None]) -> None:
        """Let the next task start another lane if one was cancelled. Without any, fail what is queued."""
        if lane.cancelled() or lane.exception() is not None:
            self._lanes.remove(lane)
            if not self._lanes:
                self._fail(list(self._queue), StoreError("interrupted"))
                self._queue.clear()

    def _on_long_lane_ended(self, lane: asyncio.Task[None]) -> None:
        """Start another lane if there is a long task again."""
        self._long_lane = None
        waiting = [task for task in self._queue if task.is_long]
        if lane.cancelled() or lane.exception() is not None:
            self._fail(waiting, StoreError("interrupted"))
            self._queue = deque(task for task in self._queue if not task.is_long)
        elif waiting:
            self._long_lane = self._start_lane(self._run_long_lane, self._on_long_lane_ended)

    def _wake(self, count: int | None = None) -> None:
        for future in list(self._idle)[:count]:
            self._idle.discard(future)
            if not future.done():
                future.set_result(None)
        if count is None:
            for future in self._idle_long:
                if not future.done():
                    future.set_result(None)

    async def close(self) -> None:
        """Finish the queued tasks, then close the lanes."""
        self._closed = True
        self._wake()
        while lanes := [*self._lanes, *([self._long_lane] if self._long_lane is not None else [])]:
            await asyncio.wait(lanes)
            if all(lane.done() for lane in self._lanes) and self._long_lane is None:
                break
        if self._check is not None:
            self._check.cancel()

    async def _run_lane(self, lane: Lane) -> None:
        try:
            while True:
                tasks, locked = self._take()
                if tasks:
                    await self._run_tasks(lane, tasks, locked)
                elif self._closed and not self._queue and not self._active:
                    self._wake()
                    return
                else:
                    await _wait_in(self._idle)
        finally:
            await lane.close()

    async def _run_long_lane(self, lane: Lane) -> None:
        try:
            while any(task.is_long for task in self._queue):
                task = self._take_long()
                if task is not None:
                    await self._run_tasks(lane, [task], locked=False)
                else:
                    await _wait_in(self._idle_long)
        finally:
            await lane.close()

    def _take_long(self) -> Task | None:
        """Return a long task to run now: one whose sessions no earlier task uses."""
        blocked = set(self._busy)
        for task in self._queue:
            if task.is_long and blocked.isdisjoint(task.sessions):
                self._queue.remove(task)
                return task
            blocked.update(task.sessions)
        return None

    def _take(self) -> tuple[list[Task], bool]:
        """Return tasks to run now, and whether their sessions are locked first.

        Tasks that wait for a lock, and long ones, are left, and later tasks of their sessions with them. So they delay
        no other session.
        """
        if self._has_exclusive:
            return [], False
        now = time.monotonic()
        taken: list[Task] = []
        left: list[Task] = []
        blocked = set(self._busy)
        disturbed = self._disturbed.keys()
        locked = has_delayed = False
        for _ in range(min(len(self._queue), MAX_SCANNED_TASKS)):
            task = self._queue[0]
            is_delayed = task.retry_at > now or (bool(task.lock_timeouts) and self._waits_for_lock)
            if len(taken) >= MAX_BATCH or (task.is_exclusive and taken):
                break
            if task.is_exclusive and not is_delayed and not has_delayed:
                if self._active_groups or not all(earlier.is_long for earlier in left):
                    break
                self._has_exclusive = True
            self._queue.popleft()
            sessions = task.sessions
            is_disturbed = bool(task.lock_timeouts) or (bool(disturbed) and not disturbed.isdisjoint(sessions))
            if not self._has_exclusive and (
                is_delayed
                or task.is_exclusive
                or task.is_long
                or (blocked and not blocked.isdisjoint(sessions))
                or (taken and not _can_join(task, taken[0], is_disturbed=is_disturbed, locked=locked))
            ):
                left.append(task)
                blocked.update(sessions)
                has_delayed = has_delayed or is_delayed
                continue
            locked = is_disturbed
            taken.append(task)
            if task.alone is not None or self._has_exclusive:
                break
        self._queue.extendleft(reversed(left))
        return taken, bool(taken) and locked and taken[0].alone is None

    async def _run_tasks(self, lane: Lane, tasks: list[Task], locked: bool) -> None:
        sessions = {name for task in tasks for name in task.sessions}
        is_group, is_exclusive, is_long = tasks[0].alone is None, tasks[0].is_exclusive, tasks[0].is_long
        waits_for_lock = tasks[0].lock_timeouts > 0
        self._busy |= sessions
        self._waits_for_lock = self._waits_for_lock or waits_for_lock
        if is_long:
            self._long_sessions = sessions
        self._active += 1
        self._active_groups += is_group
        self._deadlines[lane] = max(time.monotonic(), self._deadline(tasks)) + (tasks[0].timeout or 0.0)
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._check_deadlines)
        try:
            if self._outage is not None:  # Each of many tasks would else wait once more for the server.
                tasks = self._fail(tasks, self._outage, only_overdue=True)
            if not tasks:
                return
            if tasks[0].alone is not None:
                await self._run_alone(lane, tasks[0])
            size = len(tasks)
            while tasks and is_group:
                try:
                    await self._run_group(lane, tasks[:size], sessions if locked else None)
                except (_TooLarge, _Refused) as error:
                    if size > 1:
                        size = -(-size // 2)
                        continue
                    self._fail(tasks[:1], StoreError(f"{self._database.name}: {error}"))
                tasks = tasks[size:]
        except _LockTimeout:
            late = StoreError(f"{self._database.name}: the session was locked by another transaction for too long")
            self._retry_later(self._fail(tasks, late, only_overdue=True), sessions)
        except _Disturbed as error:
            self._disturbed.update(dict.fromkeys(error.sessions, 0))
            for name in list(self._disturbed)[:-MAX_DISTURBED]:
                del self._disturbed[name]
            late = StoreError(f"{self._database.name}: the write did not succeed in time")
            tasks = self._fail(tasks, late, only_overdue=True)
            self._queue.extendleft(reversed(tasks))
        except BaseException as error:  # Every caller must get it, or it would wait forever.
            if isinstance(error, LostConnectionError):
                self._outage = error
            self._fail(tasks, error if isinstance(error, Exception) else StoreError("interrupted"))
            if isinstance(error, ReadOnlyStoreError):
                lane.drop()  # After a failover a new connection may be to a server that can be written.
            if not isinstance(error, Exception):
                raise
        else:
            self._outage = None
        finally:
            self._active -= 1
            self._active_groups -= is_group
            self._deadlines.pop(lane, None)
            self._busy -= sessions
            if waits_for_lock:
                self._waits_for_lock = False
            if is_exclusive:
                self._has_exclusive = False
            if is_long:
                self._long_sessions = ()
            self._cache.trim()
            self._wake()

    def _retry_later(self, tasks: list[Task], sessions: set[str]) -> None:
        """Put tasks back into the queue that another transaction has locked out.

        If the group had several sessions, it is not known which of them is locked, so each is first tried alone.
        """
        is_known = len(tasks) == 1 or all(set(task.sessions) == sessions for task in tasks)
        number = max((task.lock_timeouts for task in tasks), default=0)
        delay_s = min(MIN_LOCK_DELAY_S * 2**number, MAX_LOCK_DELAY_S) if is_known else 0.0
        for task in tasks:
            task.lock_timeouts = number + 1
            task.retry_at = time.monotonic() + delay_s
        asyncio.get_running_loop().call_later(delay_s, self._wake)
        # At the end of the queue, so that all get their turn. Later tasks of their sessions stay behind them, and those
        # that wait for all earlier tasks.
        before: deque[Task] = deque()
        moved = list(tasks)
        for task in self._queue:
            if sessions.isdisjoint(task.sessions) and not task.is_exclusive:
                before.append(task)
            else:
                moved.append(task)
                sessions = sessions.union(task.sessions)
        self._queue = before
        self._queue.extend(moved)

    def _check_deadlines(self) -> None:
        """Log what all tasks of the process wait for, if a write has not ended long after it must have."""
        loop = asyncio.get_running_loop()
        overdue = [lane for lane, until in self._deadlines.items() if time.monotonic() > until + MAX_OVERDUE_S]
        if overdue:
            log.error("%s: a write has not ended in time. Tasks:\n%s", self._database.name, describe_tasks(loop))
            for lane in overdue:
                del self._deadlines[lane]  # It is reported once.
        self._fail_blocked()
        self._check = loop.call_later(CHECK_S, self._check_deadlines) if self._active or self._queue else None

    def _fail_blocked(self) -> None:
        """Fail the tasks in the queue whose time is over because another transaction, or a long task, blocks them."""
        blocking = set(self._long_sessions).union(*(task.sessions for task in self._queue if task.lock_timeouts))
        blocked = [task for task in self._queue if task.lock_timeouts or not blocking.isdisjoint(task.sessions)]
        late = StoreError(f"{self._database.name}: the session was locked by another transaction for too long")
        left = self._fail(blocked, late, only_overdue=True)
        failed = {id(task) for task in blocked}.difference(id(task) for task in left)
        self._queue = deque(task for task in self._queue if id(task) not in failed)

    def _fail(self, tasks: list[Task], error: Exception, *, only_overdue: bool = False) -> list[Task]:
        """Give an error to the callers of tasks, or of those whose time is over. Return the other tasks."""
        left: list[Task] = []
        for task in tasks:
            if only_overdue and time.monotonic() <= self._deadline([task]):
                left.append(task)
            elif not task.future.done():
                task.future.set_exception(error)
        return left

    # One group

    def _deadline(self, tasks: Iterable[Task]) -> float:
        return min(task.submitted_at for task in tasks) + self._database.settings.database_timeout

    async def _run_group(self, lane: Lane, tasks: list[Task], locked: set[str] | None) -> None:
        """Decide and write tasks. With `locked`, lock these sessions first."""
        until = self._deadline(tasks)
        conflicts = attempts = 0
        reads = GroupReads(self._cache, self._database.time_ms())
        while True:
            try:
                return await self._attempt(lane, tasks, reads, locked, until)
            except _MustLock as error:
                locked = error.sessions
            except _Again as error:
                reads.send_delay_ms = error.send_delay_ms
                if time.monotonic() > until:
                    raise StoreError(f"{self._database.name}: the write did not succeed in time") from None
            except LostConnectionError:
                lane.drop()
                delay_s = RETRY_DELAYS_S[min(attempts, len(RETRY_DELAYS_S) - 1)]
                attempts += 1
                if time.monotonic() + delay_s > until:
                    raise
                await asyncio.sleep(delay_s)
            except asyncpg.PostgresError as error:
                state = str(getattr(error, "sqlstate", ""))
                if state == LOCK_TIMEOUT:
                    raise _LockTimeout from error
                if (state in RETRIED_STATES or state == FENCED) and conflicts < MAX_CONFLICT_RETRIES:
                    conflicts += 1
                    if state == FENCED:
                        lane.renew()
                elif state.startswith(REFUSED_STATES):
                    raise _Refused(f"a row cannot be stored ({error})") from error
                elif state not in (CHANGED, ID_TAKEN, QUEUE_CHANGED) or time.monotonic() > until:
                    with translate_errors(self._database.name):
                        raise
                else:
                    self._prepare_again(tasks, reads, state)

    def _prepare_again(self, tasks: list[Task], reads: GroupReads, state: str) -> None:
        """Forget what led to a conflict."""
        self._cache.drop({*reads.used, *(name for task in tasks for name in task.sessions)})
        reads.forget_unversioned()
        reads.reads_keys = True
        if state == ID_TAKEN:
            for task in tasks:
                task.generated.clear()

    async def _attempt(
        self, lane: Lane, tasks: list[Task], reads: GroupReads, locked: set[str] | None, until: float
    ) -> None:
        connection = await lane.connect()
        if locked is not None:
            with self._unless_lost():
                await connection.execute(self._database.begin())
        try:
            await self._decide_and_write(lane, connection, tasks, reads, locked, until)
        except BaseException as error:
            if locked is not None and not connection.is_closed():
                await self._roll_back(lane, connection, error)
            raise

    async def _roll_back(self, lane: Lane, connection: Connection, error: BaseException) -> None:
        if is_lost(error) or isinstance(error, LostConnectionError | asyncio.CancelledError):
            return lane.drop()
        try:
            await connection.execute("ROLLBACK")
        except DRIVER_ERRORS:
            lane.drop()

    @contextlib.contextmanager
    def _unless_lost(self) -> Any:
        """Translate the loss of a connection; other errors of the server have a meaning for the group."""
        try:
            yield
        except DRIVER_ERRORS as error:
            if is_lost(error):
                problem = str(error) or "the server did not answer in time"
                raise LostConnectionError(f"{self._database.name}: {problem}") from error
            raise

    async def _decide_and_write(
        self,
        lane: Lane,
        connection: Connection,
        tasks: list[Task],
        reads: GroupReads,
        locked: set[str] | None,
        until: float,
    ) -> None:
        reads.forget_unversioned()
        if locked is not None:
            await self._lock(connection, locked)
        await self._reserve_session_ids(connection, len(tasks))
        missing = self._expected(tasks)
        unit, outcomes = await self._decide(connection, tasks, reads, missing)
        if locked is None and unit.rule_uses:
            raise _MustLock(reads.used | {name for task in tasks for name in task.sessions})
        if locked is not None and not reads.used <= locked:
            raise _MustLock(locked | reads.used)
        if len(tasks) > 1 and sum(len(stored.body) for stored in unit.events) > MAX_GROUP_BYTES:
            raise _TooLarge
        if not unit.change_count and not _changed_sessions(unit, self._cache):
            if locked is not None:
                with self._unless_lost():
                    await connection.execute("ROLLBACK")
            return self._settle(outcomes, None, set())
        await self._write(lane, connection, unit, reads, outcomes, locked, until)

    async def _lock(self, connection: Connection, names: set[str]) -> None:
        """Lock sessions, and count those that no other process has changed since they were written here."""
        before = {name: self._cache.sessions[name].rev for name in names if name in self._cache.sessions}
        with self._unless_lost():
            sent_at = time.monotonic()
            rows = await connection.fetch(LOCK_SESSIONS, list(names))
        self._cache.put_sessions(names, rows, sent_at)
        for name in names & self._disturbed.keys():
            is_undisturbed = before.get(name) == self._cache.sessions[name].rev
            self._disturbed[name] = self._disturbed[name] + 1 if is_undisturbed else 0
            if self._disturbed[name] >= UNDISTURBED_ROUNDS:
                del self._disturbed[name]

    def _expected(self, tasks: list[Task]) -> Missing:
        """Return what the tasks are expected to read and is not known."""
        missing, cache = Missing(), self._cache
        for task in tasks:
            touched = task.touched
            for name in touched.sessions:
                if name not in cache.sessions:
                    missing.sessions.add(name)
            missing.calls.update(call for call in touched.calls if call not in cache.call_sessions)
            if touched.queue:
                missing.queues.add(touched.queue)
            if touched.drafts:
                self._add_expected(missing, touched.sessions[0], touched.drafts)
        return missing

    def _add_expected(self, missing: Missing, name: str, drafts: Sequence[Draft]) -> None:
        """Add what drafts for a session are expected to read."""
        cache = self._cache
        cached = cache.sessions.get(name)
        for draft in drafts:
            event = draft.event
            if key := draft.key or event.key:
                if cached is None:
                    missing.keys.add((name, key))
                elif record := cached.keys.get(key):
                    missing.events.add((name, record.seq))
            if (cached is not None and cached.is_complete) or not isinstance(event, CallEvent):
                continue
            missing.aliases.update(
                (name, alias.id) for alias in event.aliases if cached is None or alias.id not in cached.aliases
            )
            if event.call.startswith("exec_") and event.call not in cache.call_sessions:
                missing.calls.add(event.call)
            if isinstance(event, ApprovalAnswer) and event.approval not in cache.approval_sessions:
                missing.approvals.add(event.approval)

    async def _decide(
        self, connection: Connection, tasks: list[Task], reads: GroupReads, missing: Missing
    ) -> tuple[UnitOfWork, list[Outcome]]:
        """Run the decisions, and again with the records that they lack, until they lack none.

        A session that another process changes meanwhile is forgotten with all its records, so they are all read again
        together: one by one they might never be of the same rev.
        """
        wanted = Missing()
        for _ in range(MAX_ROUNDS):
            if missing:
                wanted.add(missing)
                with self._unless_lost():
                    await reads.load(connection, wanted, time.monotonic())
            unit, outcomes = self._run_decisions(tasks, reads)
            missing = reads.missing
            if reads.assumed_keys and not all(outcome.wrote for outcome in outcomes):
                reads.reads_keys = True  # No write finds out whether the keys are used.
            elif not missing and not (missing := self._find_outdated(outcomes)):
                return unit, outcomes
        raise _Refused("a transaction asks for records without end")

    def _run_decisions(self, tasks: list[Task], reads: GroupReads) -> tuple[UnitOfWork, list[Outcome]]:
        """Run each decision over what the ones before it have written. If one fails, each gets a nested unit."""
        now = self._database.time_ms() + reads.send_delay_ms
        for is_nested in (False, True):
            reads.begin(now)
            unit = UnitOfWork(reads)
            outcomes = [self._run_decision(task, unit, reads, is_nested) for task in tasks]
            if is_nested or reads.missing or not any(outcome.error for outcome in outcomes if outcome is not None):
                break
        return unit, [outcome for outcome in outcomes if outcome is not None]

    def _run_decision(self, task: Task, unit: UnitOfWork, reads: GroupReads, is_nested: bool) -> Outcome | None:
        assert task.work is not None
        own = unit.nested() if is_nested else unit
        own.generated = task.generated
        task.generated.rewind()
        all_used, reads.used = reads.used, set()
        before = own.change_count
        value, error = None, None
        reads.is_incomplete = False
        try:
            value = task.work(own)
        except Exception as raised:
            error = raised
        finally:
            used, reads.used = reads.used, reads.used | all_used
        if reads.is_incomplete:
            return None
        if is_nested and error is None:
            unit.merge(own)
        return Outcome(task, value, error, used, error is None and own.change_count > before)

    def _find_outdated(self, outcomes: list[Outcome]) -> Missing:
        """Return the sessions to read again: a refusal, or a decision to write nothing, must not use older records."""
        missing = Missing()
        for outcome in outcomes:
            if not outcome.wrote:
                submitted_at = outcome.task.submitted_at
                missing.sessions.update(
                    name
                    for name in outcome.used
                    if name not in self._cache.sessions or self._cache.sessions[name].valid_at < submitted_at
                )
        return missing

    # Writing

    async def _reserve_session_ids(self, connection: Connection, count: int) -> None:
        if len(self._session_ids) < count:
            with self._unless_lost():
                rows = await connection.fetch(SESSION_IDS, max(count, SESSION_ID_BLOCK))
            self._session_ids.extend(row[0] for row in rows)

    async def _write(
        self,
        lane: Lane,
        connection: Connection,
        unit: UnitOfWork,
        reads: GroupReads,
        outcomes: list[Outcome],
        locked: set[str] | None,
        until: float,
    ) -> None:
        written = _changed_sessions(unit, self._cache)
        created = {name for name in written if not unit.sessions[name].id}
        if len(self._session_ids) < len(created):
            await self._reserve_session_ids(connection, len(created))
            raise _Again
        revs = {name: self._cache.sessions[name].rev for name in written}
        for name, row in unit.sessions.items():
            if name in created:
                row.id = self._session_ids.popleft()  # Of sessions of the same time the newer has the greater id.
        for row in unit.calls.values():
            row.change = revs[row.session] + 1
        sent_at = time.monotonic()
        number = lane.next_number()
        try:
            if unit.rule_uses:  # In the same transaction: a group that uses rules locks its sessions first.
                await connection.execute(USE_RULES, list(unit.rule_uses), list(unit.rule_uses.values()), unit.now)
            statement, values = self._write_statement(lane, number, unit, reads, written, created)
            rows = await connection.fetch(statement, *values)
            reason, clock, stale = rows[0]
            if locked is not None and not reason:
                await connection.execute("COMMIT")
        except DRIVER_ERRORS as error:
            if not is_lost(error) and not connection.is_closed():
                raise
            if not await lane.is_committed(until):
                raise LostConnectionError(f"{self._database.name}: {error}") from error
            reason, clock, stale = "", 0, None
        except asyncio.CancelledError:
            lane.drop()
            raise
        if clock:
            self._database.note_clock(clock - self._database.clock_shift_ms, sent_at)
        if reason == "clock":
            sent_ms = self._database.time_ms() - int((time.monotonic() - sent_at) * 1000)
            raise _Again(max(0, clock - sent_ms))
        if reason:
            names = self._cache.names_of(stale or ())
            self._cache.drop(names)
            for outcome in outcomes:
                outcome.task.sessions = {*outcome.task.sessions, *outcome.used}
            raise _Disturbed(names)
        self._cache.update(unit, revs, sent_at)
        self._settle(outcomes, unit, written)

    def _write_statement(
        self, lane: Lane, number: int, unit: UnitOfWork, reads: GroupReads, written: set[str], created: set[str]
    ) -> tuple[str, list[Any]]:
        """Return the statement that writes, and its parameters."""
        cache = self._cache.sessions
        used = [name for name in {*reads.used, *written} if cache[name].record is not None or name in written]
        sessions = [unit.sessions[name] if name in written else cache[name].record for name in used]
        ids = {name: row.id for name, row in zip(used, sessions, strict=True) if row is not None}
        rows = [row for row in sessions if row is not None]
        events = unit.events
        calls = list(unit.calls.values())
        approvals = list(unit.approvals.values())
        aliases = [(ids[s], identity, ns, call) for (s, identity, ns), call in unit.aliases.items() if ns]
        keys = list(unit.keys.values())
        uses = [(ids[e.session], e.event.seq, blob.hash) for e in events if (blob := blob_of(e.event))]
        ended = [row.id for row in calls if row.client and row.state in TERMINAL_STATES]
        seals = [(call, ids[s], data) for call, (s, data) in unit.seals.items() if call not in ended]
        owners = list(unit.owners.values())
        queues = sorted({*unit.pending_changes, *reads.most_waiting})
        conversations = [
            _conversation_values(name, changes, reads) for name, (_, changes) in unit.conversations.items()
        ]
        inputs = [row for values in conversations for row in values[1]]
        posts = list(unit.posts.values())
        return _apply_statement(
            [lane.id, number, unit.now, self._database.clock_shift_ms],
            [
                [
                    [row.id for row in rows],
                    [0 if name in created else cache[name].rev for name in used],
                    [name if name in created else "" for name in used],
                    [name in written for name in used],
                    [row.last_seq for row in rows],
                    [row.updated_at for row in rows],
                    [row.turn_owner for row in rows],
                    [row.release_at for row in rows],
                    [bool(row.release_at) for row in rows],
                    [session_body(row) if name in written else b"" for name, row in zip(used, rows, strict=True)],
                ],
                [
                    [ids[stored.session] for stored in events],
                    [stored.event.seq for stored in events],
                    [stored.body for stored in events],
                ],
                [
                    [row.id for row in calls],
                    [row.id not in self._cache.call_sessions for row in calls],
                    [ids[row.session] for row in calls],
                    [row.entry for row in calls],
                    [row.state for row in calls],
                    [row.client_call_id for row in calls],
                    [row.tool for row in calls],
                    [row.title for row in calls],
                    [row.deadline for row in calls],
                    [row.created_at for row in calls],
                    [row.ended_at for row in calls],
                    [row.end for row in calls],
                    [row.owner for row in calls],
                    [row.lease for row in calls],
                    [row.client for row in calls],
                    [call_body(row) for row in calls],
                ],
                [
                    [row.id for row in approvals],
                    [row.id not in self._cache.approval_sessions for row in approvals],
                    [ids[row.session] for row in approvals],
                    [row.call for row in approvals],
                    [row.entry for row in approvals],
                    [row.state for row in approvals],
                    [row.expires_at for row in approvals],
                    [row.created_at for row in approvals],
                    [approval_body(row) for row in approvals],
                ],
                _columns(aliases),
                _columns([(ids[row.session], row.key, row.mark, row.seq) for row in keys]),
                _columns(uses),
                _columns(seals),
                [ended],
                _columns([(row.id, row.until) for row in owners]),
                [
                    queues,
                    [unit.pending_changes.get(client, 0) for client in queues],
                    [reads.most_waiting.get(client, 2**62) for client in queues],
                ],
                _columns([values[0] for values in conversations]),
                _columns(inputs),
                _columns([(row.session, row.key, row.mark, row.answer) for row in posts]),
            ],
        )

    def _settle(self, outcomes: list[Outcome], unit: UnitOfWork | None, written: set[str]) -> None:
        """Deliver what was written, then the results."""
        try:
            if unit is not None:
                commands = unit.commands()
                if unit.events or commands:
                    self._deliver(unit.events, commands)
                self._deliver_sessions(list(unit.sessions.values()), unit.now)
                self._deliver_heads({name: unit.sessions[name].last_seq for name in written}, bool(commands))
        except Exception as error:  # The write is durable, and its callers get their results.
            context = {"message": "a listener of a store failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            for outcome in outcomes:
                future = outcome.task.future
                if future.done():
                    continue
                if outcome.error is not None:
                    future.set_exception(outcome.error)
                else:
                    future.set_result(outcome.value)

    # A task in a transaction of its own

    async def _run_alone(self, lane: Lane, task: Task) -> None:
        until = self._deadline([task])
        attempts = conflicts = 0
        while True:
            try:
                value = await self._attempt_alone(lane, task, until)
                break
            except _Again:  # The row of the lane was gone.
                if time.monotonic() > until:
                    raise StoreError(f"{self._database.name}: the write did not succeed in time") from None
            except LostConnectionError:
                lane.drop()
                delay_s = RETRY_DELAYS_S[min(attempts, len(RETRY_DELAYS_S) - 1)]
                attempts += 1
                if time.monotonic() + delay_s > until:
                    raise
                await asyncio.sleep(delay_s)
            except asyncpg.PostgresError as error:
                state = str(getattr(error, "sqlstate", ""))
                if state == LOCK_TIMEOUT and not task.is_long:
                    raise _LockTimeout from error
                if state not in (*RETRIED_STATES, LOCK_TIMEOUT) or conflicts >= MAX_CONFLICT_RETRIES:
                    with translate_errors(self._database.name):
                        raise
                conflicts += 1
        self._cache.drop(task.touched.sessions)
        if not task.future.done():
            task.future.set_result(value)

    async def _attempt_alone(self, lane: Lane, task: Task, until: float) -> Any:
        assert task.alone is not None
        connection = await lane.connect()
        number = lane.next_number()
        is_committing = False
        try:
            with self._unless_lost():
                begin = self._database.begin(task.timeout)
                await connection.execute(begin if task.durable else f"{begin}; SET LOCAL synchronous_commit = off")
                async with asyncio.timeout(task.timeout or self._database.settings.statement_timeout):
                    if not await connection.fetch(USE_LANE, lane.id, number):
                        lane.renew()
                        raise _Again
                    value = await task.alone(connection)
                is_committing = True
                await connection.execute("COMMIT")
        except BaseException as error:
            if is_committing and isinstance(error, LostConnectionError):
                if await lane.is_committed(until):
                    return value  # pyright: ignore[reportPossiblyUnboundVariable]
                raise
            if connection.is_closed():
                lane.drop()
            else:
                await self._roll_back(lane, connection, error)
            raise
        return value


async def _wait_in(idle: set[asyncio.Future[None]]) -> None:
    """Wait in a set for a result."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    idle.add(future)
    try:
        await future
    finally:
        idle.discard(future)


def _can_join(task: Task, first: Task, *, is_disturbed: bool, locked: bool) -> bool:
    """Return whether a task can be written in the group of another one."""
    if task.alone is not None or first.alone is not None or is_disturbed != locked:
        return False
    if task.lock_timeouts or first.lock_timeouts:
        return set(task.sessions) == set(first.sessions)
    return True


def _columns(rows: list[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _changed_sessions(unit: UnitOfWork, cache: Cache) -> set[str]:
    """Return the sessions that a unit has changed in any of their rows."""
    changed = {stored.session for stored in unit.events}
    changed.update(row.session for row in unit.calls.values())
    changed.update(row.session for row in unit.approvals.values())
    changed.update(session for session, _, _ in unit.aliases)
    changed.update(row.session for row in unit.keys.values())
    changed.update(session for session, _ in unit.seals.values())
    for name, row in unit.sessions.items():
        if name not in changed and row.last_seq and row != cache.sessions[name].record:
            changed.add(name)
    return changed


def _conversation_values(name: Any, changes: list[Any], reads: GroupReads) -> tuple[tuple[Any, ...], list[Any]]:
    """Return what a list of changes leaves of a conversation: its row, and the bodies to add."""
    before = reads.unversioned.get(("conversation", *name))
    inputs: list[Any] = []
    drops_inputs, state, state_version = False, None, 0
    version, last = changes[-1]
    chunks = before.chunks if before is not None else None
    for number, change in changes:
        if change.is_ended:
            inputs, drops_inputs, state, state_version, chunks = [], True, b"", 0, None
            continue
        chunks = change.chunks if chunks is None else chunks
        if change.drops_inputs:
            inputs, drops_inputs = [], True
        if change.input:
            inputs.append((*name, number, change.input))
        if change.state:
            state, state_version = change.state, number
    row = (
        *name,
        before.version if before is not None else 0,
        last.is_ended,
        chunks or "",
        version,
        last.claimed_by,
        last.claimed_until,
        drops_inputs,
        state,
        state_version,
    )
    return row, [] if last.is_ended else inputs


_SCALARS = 4
_GROUPS = (
    *("nntbnntnbd", "nnd", "tbnnttttnnnntntd", "tbntntnnd", "nttt", "nttn", "nnt", "tnd", "t", "tn", "tnn"),
    *("tttnbtntnbmn", "tttnd", "tttd"),
)
"""The types of the parameters of `callslip_apply` after the first ones: number, boolean, text, data, and data that may
be missing (`m`). Each group has the columns of one table, and often no rows. Their prefixes in the function are
`s` sessions, `e` events, `c` calls, `a` approvals, `l` aliases, `k` keys, `b` uses of blobs, `x` sealed arguments,
`o` owners, `q` queues, `v` conversations, `i` their inputs and `p` posts."""


def _apply_statement(scalars: list[Any], groups: list[list[list[Any]]]) -> tuple[str, list[Any]]:
    """Return the statement that writes rows, and its parameters. Groups without rows have none."""
    values = scalars
    present = 0
    for index, columns in enumerate(groups):
        if columns and columns[0]:
            present |= 1 << index
            for kind, column in zip(_GROUPS[index], columns, strict=True):
                values += _encode_column(kind, column)
    return _statement_for(present), values


@cache
def _statement_for(present: int) -> str:
    """Return the statement with parameters for some groups. There are a few dozen of them in practice."""
    numbers = count(_SCALARS + 1)
    arguments = [f"${number}" for number in range(1, _SCALARS + 1)]
    for index, types in enumerate(_GROUPS):
        for kind in types:
            arguments.append(_PARAMETERS[kind](numbers) if present >> index & 1 else "'{}'")
    return f"SELECT reason, clock, stale FROM callslip_apply({', '.join(arguments)})"


_PARAMETERS: dict[str, Callable[[Iterator[int]], str]] = {
    "n": lambda numbers: f"${next(numbers)}::text::bigint[]",
    "b": lambda numbers: f"${next(numbers)}::text::boolean[]",
    "t": lambda numbers: f"${next(numbers)}::text::text[]",
    "d": lambda numbers: (
        f"ARRAY(SELECT substr(${next(numbers)}::bytea, u.start, u.size) "
        f"FROM unnest(${next(numbers)}::text::int[], ${next(numbers)}::text::int[]) AS u(start, size))"
    ),
    "m": lambda numbers: f"${next(numbers)}",
}
"""How the statement reads the parameters of each type of column, given the numbers of its parameters."""


def _encode_column(kind: str, values: list[Any]) -> tuple[Any, ...]:
    """Return the parameters of a column. The driver takes several times as long for a list as for one value."""
    if kind == "n":
        return (f"{{{','.join(map(str, values))}}}",)
    if kind == "b":
        return (f"{{{','.join(['t' if value else 'f' for value in values])}}}",)
    if kind == "t":
        return (_encode_texts(values),)
    if kind == "d":
        sizes = list(map(len, values))
        starts = accumulate(sizes[:-1], initial=1)
        return b"".join(values), f"{{{','.join(map(str, starts))}}}", f"{{{','.join(map(str, sizes))}}}"
    return (values,)


def _encode_texts(values: list[str]) -> str:
    """Return the text of an array. No text that can be stored has NUL, so it separates them until they are escaped."""
    text = "\0".join(values)
    if text.count("\0") >= len(values):
        raise _Refused("a text with NUL cannot be stored")
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{text}"}}'
