"""Group commit on PostgreSQL: several writers on one database, lost connections, and what may not be decided twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import pytest

from callslip.errors import ConflictError, StoreError
from callslip.ledger.write import WriteContext, WriteOperation, write_events
from callslip.model import events as ev
from callslip.model import ids
from callslip.model.events import Draft, Event, decode_event
from callslip.model.records import OwnerRecord
from callslip.rules.redaction import make_redactor
from callslip.settings import Settings
from callslip.store import postgres_cache, postgres_notify, postgres_writer
from callslip.store.postgres_cache import GroupReads
from callslip.store.postgres_database import Database
from callslip.store.postgres_notify import MAX_PENDING_SESSIONS, ChangeListener, ChangeNotifier, PendingChanges
from callslip.store.postgres_writer import Lane, PostgresWriter
from callslip.store.protocol import Changes, StoredEvent, Touched
from callslip.store.unit_of_work import UnitOfWork
from tests.support import engines
from tests.support.fault_proxy import FaultProxy
from tests.support.postgres import TIMEOUT_S, database_name

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
CONTEXT = WriteContext(redactor=make_redactor(False, ()))
STRICT = msgspec.structs.replace(CONTEXT, strict=True)
SETTINGS = Settings(database_timeout=20.0)


@pytest.fixture
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


class Process:
    """A database and a writer, as one process has them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.delivered: list[StoredEvent] = []
        self.writer = PostgresWriter(
            database, lambda events, _: self.delivered.extend(events), lambda *_: None, lambda *_: None
        )

    def append(self, session: str, *drafts: Event | Draft, context: WriteContext = CONTEXT) -> asyncio.Future[Any]:
        """Write drafts to a session."""
        valid = [draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts]
        return self.writer.submit(lambda unit: write_events(unit, session, valid, context), Touched((session,), valid))

    async def log(self, session: str) -> list[Event]:
        """Return the stored events of a session."""
        sql = "SELECT body FROM events WHERE session = (SELECT id FROM sessions WHERE name = $1) ORDER BY seq"
        return [decode_event(row[0]) for row in await self.database.fetch(sql, session)]


@asynccontextmanager
async def open_process(url: str, settings: Settings = SETTINGS) -> AsyncIterator[Process]:
    async with await Database.open(url, settings) as database:
        process = Process(database)
        try:
            yield process
        finally:
            await process.writer.close()


@pytest.fixture
async def process(db: str) -> AsyncIterator[Process]:
    async with open_process(db) as process:
        yield process


@pytest.fixture
async def other(db: str) -> AsyncIterator[Process]:
    async with open_process(db) as process:
        yield process


def message(text: str) -> ev.MessageUser:
    return ev.MessageUser(text=text)


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, ev.MessageUser)]


def proposed(name: str) -> ev.CallProposed:
    return ev.CallProposed(tool_name="x", aliases=(ev.Alias("test", name),))


# Several processes


async def test_two_processes_that_write_to_one_session_leave_no_gap(process: Process, other: Process) -> None:
    """Every event is stored once, in one order, though each process remembers the session."""
    writes = [
        writer.append("a", message(f"{number} {count}"))
        for count in range(25)
        for number, writer in enumerate([process, other])
    ]
    stored = [event for events in await asyncio.gather(*writes) for event in events]
    log = await process.log("a")
    assert [event.seq for event in log] == list(range(1, 51))
    assert sorted(stored, key=lambda event: event.seq) == log
    for number in range(2):
        mine = [text for text in texts(log) if text.startswith(f"{number} ")]
        assert mine == [f"{number} {count}" for count in range(25)]


async def test_alternating_writers_see_the_writes_of_each_other(process: Process, other: Process) -> None:
    """A process whose remembered records are old reads them again."""
    for count in range(6):
        for writer in (process, other):
            await writer.append("a", message(f"{count}"))
    assert [event.seq for event in await other.log("a")] == list(range(1, 13))


async def test_a_new_session_is_created_once_by_two_processes(process: Process, other: Process) -> None:
    """Both processes take the session to be new; one of them finds out when it writes."""
    await asyncio.gather(process.append("a", message("1")), other.append("a", message("2")))
    assert sorted(texts(await process.log("a"))) == ["1", "2"]
    assert [row[0] for row in await process.database.fetch("SELECT count(*) FROM sessions")] == [1]


async def test_a_refusal_is_decided_on_current_records(process: Process, other: Process) -> None:
    """A process that remembers an open call does not refuse by it after another process has changed the call."""
    ((opened,),) = [await process.append("a", proposed("c"))]
    await process.append("a", ev.CallStarted(call=opened.call))
    await other.append("a", ev.CallCompleted(call=opened.call, output="done"))
    (late,) = await process.append("a", ev.CallCompleted(call=opened.call, output="again"))
    assert late.verdict in ("late", "duplicate")


@pytest.mark.parametrize("is_created", [False, True], ids=["changed", "created"])
async def test_a_record_is_found_that_another_process_writes_between_two_reads(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    """A decision reads in steps. What it has found or missed in the first step may not count after the second one."""
    approval = ids.approval_id()
    request = ev.ApprovalRequested(approval=approval, tool_name="x")
    drafts: list[Event] = [message("before"), request] if is_created else [request, message("after")]
    await other.append("a", proposed("known"), drafts.pop(0))
    load = GroupReads.load

    async def load_and_write(reads: GroupReads, *values: Any) -> None:
        await load(reads, *values)
        if drafts and values[1].approvals:
            await other.append("a", drafts.pop())

    def find(unit: UnitOfWork) -> tuple[bool, bool]:
        record = unit.approval(approval)
        if unit.has_alias("a", "known"):
            unit.alias("a", "test", "x")  # It is read with the next query, and the session with it.
        return record is not None, record is not None and unit.call(record.call) is not None

    with monkeypatch.context() as patch:
        patch.setattr(GroupReads, "load", load_and_write)
        assert await process.writer.submit(find, Touched(("a",))) == (True, True)


async def test_what_was_refused_before_is_allowed_after_a_change_elsewhere(process: Process, other: Process) -> None:
    """A refusal counts only on records that were read after the write was submitted."""
    await process.append("a", ev.TurnStarted())

    def start_if_idle(unit: UnitOfWork) -> list[Event]:
        session = unit.session("a")
        if session is not None and session.turn:
            raise ConflictError("a turn is open")
        return write_events(unit, "a", [Draft(ev.TurnStarted())], CONTEXT)

    with pytest.raises(ConflictError):
        await process.writer.submit(start_if_idle, Touched(("a",)))
    await other.append("a", ev.TurnEnded())
    (started,) = await process.writer.submit(start_if_idle, Touched(("a",)))
    assert started.seq == 3


async def test_a_key_counts_once_for_all_processes(process: Process, other: Process) -> None:
    """A key is taken to be unused at first; the write finds out that another process used it."""
    await process.append("a", message("before"))
    await other.append("a", message("before too"))
    draft = Draft(message("once"), key="k")
    first, second = await asyncio.gather(process.append("a", draft), other.append("a", draft))
    assert first == second == await process.append("a", draft)
    assert texts(await process.log("a")).count("once") == 1


async def test_a_retry_with_a_key_is_not_refused_for_what_has_changed_since(process: Process, other: Process) -> None:
    """The write of a refused decision cannot find out that its key was used, so the key is read."""
    await other.append("a", Draft(message("first"), key="k"))
    await process.append("a", message("The session is remembered, its keys are not."))

    def submit(unit: UnitOfWork) -> str:
        if unit.key("a", "k") is None:
            raise ConflictError("the queue is full")
        return "repeated"

    assert await process.writer.submit(submit, Touched(("a",))) == "repeated"


async def test_a_decision_that_names_no_session_is_locked_after_a_disturbance(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sessions are known once another process has changed one of them."""
    await process.append("a", message("1"))
    await other.append("a", message("2"))
    locks: list[set[str] | None] = []
    run_group = PostgresWriter._run_group

    async def spy(writer: PostgresWriter, lane: Lane, tasks: list[Any], locked: set[str] | None) -> None:
        locks.append(locked)
        await run_group(writer, lane, tasks, locked)

    monkeypatch.setattr(PostgresWriter, "_run_group", spy)
    (event,) = await process.writer.submit(lambda unit: write_events(unit, "a", [Draft(message("3"))], CONTEXT))
    assert event.seq == 3 and locks == [None, {"a"}]


async def test_a_long_transaction_of_one_session_delays_no_other_and_no_owner(process: Process) -> None:
    """While a deletion runs, calls of a closed connection end, and others write."""
    is_running, may_end = asyncio.Event(), asyncio.Event()

    async def run_long(connection: Any) -> None:
        is_running.set()
        await may_end.wait()

    deleting = asyncio.ensure_future(process.writer.run_alone(run_long, sessions=("b",), timeout=TIMEOUT_S))
    async with asyncio.timeout(TIMEOUT_S):
        await is_running.wait()
        close = process.writer.submit(lambda unit: len(unit.owned_calls("gone")), Touched(owner="gone"))
        await process.append("a", message("1"))
        assert await close == 0 and not deleting.done()
        may_end.set()
        await deleting


async def test_a_transaction_of_its_own_continues_after_a_day(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has removed the row of the idle connection. A new row is used at once."""
    monkeypatch.setattr(postgres_writer, "RETRY_DELAYS_S", (1000.0,))

    async def remove_rows(connection: Any) -> None:
        await connection.execute("DELETE FROM lanes")

    async def write(connection: Any) -> None:
        await connection.execute("INSERT INTO meta VALUES ('x', 'y')")

    async with asyncio.timeout(TIMEOUT_S):
        await process.writer.run_alone(remove_rows)
        await process.writer.run_alone(write)
    assert [row[0] for row in await process.database.fetch("SELECT value FROM meta WHERE name = 'x'")] == ["y"]


async def test_a_large_group_is_written_in_parts(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, and an event that is larger than a part alone."""
    monkeypatch.setattr(postgres_writer, "MAX_GROUP_BYTES", 1000)
    counts: list[int] = []
    process.writer._deliver = lambda events, _: counts.append(len(events))
    sizes = [300, 300, 300, 300, 5000, 300, 300]
    await asyncio.gather(
        *(process.append("a", message(f"{number} " + "x" * size)) for number, size in enumerate(sizes))
    )
    assert [text.split()[0] for text in texts(await process.log("a"))] == list("0123456")
    assert sum(counts) == len(sizes) and max(counts) < len(sizes)


async def test_a_write_over_a_slow_link_succeeds(db: str) -> None:
    """A decision that takes more than a second to arrive is made for the time of its arrival."""
    with FaultProxy(engines.server().port) as proxy:
        url = engines.server().url(database_name(db), port=proxy.port)
        async with open_process(url) as process:
            await process.append("a", message("before"))
            proxy.delay(1.3)
            (event,) = await process.append("a", message("after"))
            proxy.resume()
            assert event.seq == 2


def test_a_correction_does_not_set_the_known_time_back() -> None:
    """What this process writes is in the order of its times, unless the clock of the server is set back."""
    database = Database("postgresql://localhost/unused", SETTINGS)
    database.note_clock(1_000_500, time.monotonic())
    first = database.time_ms()
    assert 1_000_500 <= first < 1_001_000
    database.note_clock(1_000_000, time.monotonic())
    assert first == database.time_ms()
    database.note_clock(2_000_000, time.monotonic())
    assert database.time_ms() >= 2_000_000
    database.note_clock(1_000_000, time.monotonic())
    assert 1_000_000 <= database.time_ms() < 1_001_000


async def test_sessions_created_together_are_listed_newest_first(process: Process) -> None:
    """Also if they have the same time: the newer session has the greater id."""
    names = [f"s{number}" for number in (3, 1, 2, 0, 4)]
    await asyncio.gather(*(process.append(name, message("x")) for name in names))
    rows = await process.database.fetch("SELECT name FROM sessions ORDER BY id")
    assert [name for (name,) in rows] == names


def test_changes_that_no_task_waits_for_take_little_memory() -> None:
    """The names of many sessions become the notice that anything may have changed."""
    pending = PendingChanges()
    for number in range(MAX_PENDING_SESSIONS + 1):
        pending.add(Changes({f"s{number}": 1}, commands=False))
    assert pending.take() == Changes(None, commands=False) and pending.take() is None


async def test_a_process_remembers_a_limited_number_of_records(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many sessions with calls it forgets those used the longest time ago, and reads them again when necessary."""
    monkeypatch.setattr(postgres_cache, "MAX_RECORDS", 50)
    for number in range(20):
        await process.append(f"s{number}", *[ev.CallStarted(tool_name="t") for _ in range(8)])
    cache = process.writer._cache
    assert len(cache.call_sessions) == cache.record_count == sum(item.size() for item in cache.sessions.values()) == 48
    assert list(cache.sessions) == [f"s{number}" for number in range(14, 20)]
    events = await process.append("s0", *[ev.CallStarted(tool_name="t") for _ in range(3)])
    assert [event.seq for event in events] == [9, 10, 11]
    assert list(cache.sessions) == [*(f"s{number}" for number in range(15, 20)), "s0"]
    cache.clear()
    assert (cache.record_count, cache.call_sessions) == (0, {})


async def test_a_fault_while_looking_for_changes_is_logged_and_does_not_end_it(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that nothing wakes any more would wait forever."""
    monkeypatch.setattr(postgres_notify, "RETRY_S", 0.01)
    fetch, connect, failing = process.database.fetch, process.database.connect, {"fetch", "connect"}

    async def fetch_later(*values: Any) -> Any:
        if "fetch" in failing:
            failing.remove("fetch")
            raise RuntimeError("a fault of the poll")
        return await fetch(*values)

    async def connect_later() -> Any:
        if "connect" in failing:
            failing.remove("connect")
            raise RuntimeError("a fault of the listener")
        return await connect()

    monkeypatch.setattr(process.database, "fetch", fetch_later)
    monkeypatch.setattr(process.database, "connect", connect_later)
    notifier = ChangeNotifier(process.database)
    listener = ChangeListener(process.database, notifier)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while failing or not listener.is_listening:
                await listener.wait()
        faults = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
        assert faults == {"a fault of the poll", "a fault of the listener"}
    finally:
        await listener.close()
        await notifier.close()


async def test_a_queue_does_not_exceed_its_limit_by_writes_of_two_processes(process: Process, other: Process) -> None:
    """The room of a queue is checked again in the transaction."""

    def submit(session: str) -> Callable[[UnitOfWork], bool]:
        def work(unit: UnitOfWork) -> bool:
            if not unit.has_room("worker", 5):
                return False
            call = ev.CallProposed(tool_name="x", client="worker")
            write_events(unit, session, [Draft(call)], CONTEXT)
            return True

        return work

    writes = [
        writer.writer.submit(submit(f"{name}{number}"), Touched((f"{name}{number}",), queue="worker"))
        for number in range(10)
        for name, writer in (("a", process), ("b", other))
    ]
    assert sum(await asyncio.gather(*writes)) == 5
    rows = await process.database.fetch("SELECT waiting FROM queues WHERE client = 'worker'")
    assert [row[0] for row in rows] == [5]


async def test_sessions_do_not_wait_for_each_other(process: Process, db: str) -> None:
    """While one session is locked, writes to another one are committed."""
    await asyncio.gather(process.append("a", message("1")), process.append("b", message("1")))
    connection = await asyncpg.connect(db)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT 1 FROM sessions WHERE name = 'a' FOR UPDATE")
        waiting = process.append("a", message("2"))
        for number in range(5):
            await asyncio.wait_for(process.append("b", message(str(number))), 10)
        assert not waiting.done()
        await transaction.rollback()
        await asyncio.wait_for(waiting, 10)
    finally:
        await connection.close()


@asynccontextmanager
async def locked_sessions(url: str, names: Sequence[str]) -> AsyncIterator[None]:
    """Lock the rows of sessions in a transaction of another program."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM sessions WHERE name = ANY ($1) FOR UPDATE", names)
            yield
    finally:
        await connection.close()


async def test_locked_sessions_delay_no_other_write(process: Process, db: str) -> None:
    """While more sessions are locked than there are connections, others are written, and leases are renewed."""
    locked = [f"locked {number}" for number in range(SETTINGS.write_connections + 2)]
    await asyncio.gather(*(process.append(name, message("0")) for name in [*locked, "free"]))
    async with locked_sessions(db, locked):
        waiting = [process.append(name, message(str(number))) for number in range(1, 4) for name in locked]
        for number in range(20):
            await asyncio.wait_for(process.append("free", message(str(number))), 5)
        renewal = process.writer.submit(lambda unit: unit.put_owner(OwnerRecord("me", 1)))
        await asyncio.wait_for(renewal, 5)
        assert not any(write.done() for write in waiting)
    await asyncio.wait_for(asyncio.gather(*waiting), SETTINGS.database_timeout)
    for name in locked:
        assert texts(await process.log(name)) == ["0", "1", "2", "3"]


async def test_a_close_of_an_owner_waits_for_locked_writes_before_it(process: Process, db: str) -> None:
    """It ends calls of sessions that it cannot name, so it keeps its place. Later writes to other sessions pass it."""
    mine = msgspec.structs.replace(CONTEXT, owner="me")
    (opened,) = await process.append("a", ev.CallStarted(tool_name="x"), context=mine)
    async with locked_sessions(db, ["a"]):
        completed = process.append("a", ev.CallCompleted(call=opened.call, output="done"))
        owned = process.writer.submit(lambda unit: [row.id for row in unit.owned_calls("me")], Touched(owner="me"))
        await asyncio.wait_for(process.append("b", message("1")), 5)
        assert not completed.done() and not owned.done()
    await asyncio.wait_for(completed, SETTINGS.database_timeout)
    assert await asyncio.wait_for(owned, SETTINGS.database_timeout) == []


async def test_long_tasks_delay_no_other_write(process: Process) -> None:
    """Deletions, which may take minutes, have a connection of their own. A write to their session comes after them."""
    await asyncio.gather(*(process.append(name, message("0")) for name in "abc"))
    may_end = asyncio.Event()
    started: list[str] = []

    def work(name: str) -> Callable[[Any], Awaitable[None]]:
        async def wait(_: Any) -> None:
            started.append(name)
            await may_end.wait()

        return wait

    count = SETTINGS.write_connections + 1
    tasks = [
        asyncio.create_task(process.writer.run_alone(work(name), sessions=(name,), timeout=60.0))
        for name in ("a", "b", *(f"more {number}" for number in range(count)))
    ]
    async with asyncio.timeout(TIMEOUT_S):
        while not started:
            await asyncio.sleep(0.01)
    after = process.append("a", message("1"))
    for number in range(20):
        await asyncio.wait_for(process.append("c", message(str(number))), 5)
    assert started == ["a"] and not after.done()
    may_end.set()
    await asyncio.wait_for(asyncio.gather(after, *tasks), TIMEOUT_S)
    assert len(started) == len(tasks)


async def test_a_write_to_a_locked_session_fails_at_its_deadline(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why, also of writes that have not been tried, and the connections are free again."""
    monkeypatch.setattr(postgres_writer, "CHECK_S", 0.1)
    async with open_process(db, Settings(database_timeout=1.0)) as process:
        await asyncio.gather(process.append("a", message("0")), process.append("b", message("0")))
        async with locked_sessions(db, ["a"]):
            writes = [process.append("a", message("1")), process.append("a", message("2"), proposed("c"))]
            done = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), TIMEOUT_S)
            assert [type(error) for error in done] == [StoreError, StoreError]
            assert all("was locked by another transaction for too long" in str(error) for error in done)
        await asyncio.wait_for(process.append("a", message("3")), TIMEOUT_S)
        assert texts(await process.log("a")) == ["0", "3"]


async def test_a_write_does_not_wait_for_a_deletion_forever(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails at its deadline while the session is being deleted, in this process too."""
    monkeypatch.setattr(postgres_writer, "CHECK_S", 0.1)
    async with open_process(db, Settings(database_timeout=1.0)) as process:
        may_end = asyncio.Event()

        async def work(_: Any) -> None:
            await may_end.wait()

        task = asyncio.create_task(process.writer.run_alone(work, sessions=("a",), timeout=60.0))
        await process.append("b", message("0"))
        with pytest.raises(StoreError, match="was locked"):
            await asyncio.wait_for(process.append("a", message("1")), TIMEOUT_S)
        may_end.set()
        await asyncio.wait_for(task, TIMEOUT_S)


async def test_a_decision_ends_although_another_process_writes_before_each_read(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read finds a session that has changed, and so are the records that were read before it."""
    (opened,) = await other.append("a", proposed("c"))
    load = GroupReads.load

    async def write_and_load(reads: GroupReads, *arguments: Any) -> None:
        if reads._cache is process.writer._cache:
            await other.append("a", message("before a read"))
        await load(reads, *arguments)

    def find(unit: UnitOfWork) -> str:
        record = unit.call(unit.alias("a", "test", "c") or "")
        return record.id if record is not None else "none"

    monkeypatch.setattr(GroupReads, "load", write_and_load)
    assert await process.writer.submit(find) == opened.call


@pytest.fixture
def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an item for each time that records are read for decisions."""
    loads: list[int] = []
    load = GroupReads.load

    async def count(reads: GroupReads, *arguments: Any) -> None:
        loads.append(1)
        await load(reads, *arguments)

    monkeypatch.setattr(GroupReads, "load", count)
    return loads


async def test_records_of_a_large_write_are_read_together(
    process: Process, other: Process, count_reads: list[int]
) -> None:
    """The number of reads does not grow with the number of keys, aliases and calls that another process wrote."""
    drafts = [
        Draft(event, key=f"{type(event).__name__} {number}")
        for number in range(300)
        for event in (proposed(f"c{number}"), ev.CallStarted(aliases=(ev.Alias("test", f"c{number}"),)))
    ]
    stored = await process.append("a", *drafts)
    count_reads.clear()
    for _ in range(2):
        assert await other.append("a", *drafts) == stored
    assert len(count_reads) <= 5
    count_reads.clear()
    requests = [ev.ApprovalRequested(aliases=(ev.Alias("test", f"c{number}"),)) for number in range(150)]
    await process.append("a", *requests)
    answers = [ev.ApprovalGranted(aliases=request.aliases) for request in requests]
    assert {event.verdict for event in await other.append("a", *answers)} == {"applied"}
    assert len(count_reads) <= 10
    count_reads.clear()
    ends = [ev.CallCompleted(aliases=(ev.Alias("test", f"c{number}"),), output="x") for number in range(300)]
    other.writer._cache.clear()
    assert {event.verdict for event in await other.append("a", *ends)} == {"applied"}
    assert len(count_reads) <= 5


async def test_all_calls_of_an_owner_are_read_together(
    process: Process, other: Process, count_reads: list[int]
) -> None:
    """Calls and turns in many sessions are ended by a process that does not know them."""
    mine = msgspec.structs.replace(CONTEXT, owner="me")
    opened = [ev.TurnStarted(), *(ev.CallStarted(tool_name="x") for _ in range(3))]
    await asyncio.gather(*(process.append(f"s{number}", *opened, context=mine) for number in range(100)))

    def find(unit: UnitOfWork) -> tuple[int, int]:
        return len(unit.owned_calls("me")), len(unit.owned_turns("me"))

    assert await other.writer.submit(find, Touched(owner="me")) == (300, 100)
    assert len(count_reads) <= 5


async def test_the_oldest_commands_of_a_full_queue_are_read_together(
    process: Process, other: Process, count_reads: list[int]
) -> None:
    """Each write of a group makes room for itself."""
    await process.append("a", *(ev.CallProposed(tool_name="x", client="worker") for _ in range(200)))

    def replace_oldest(number: int) -> Callable[[UnitOfWork], str]:
        def work(unit: UnitOfWork) -> str:
            oldest = unit.oldest_pending("worker") if not unit.has_room("worker", 200) else None
            assert oldest is not None
            expired = ev.CallExpired(call=oldest.id)
            write_events(unit, "a", [Draft(expired)], CONTEXT)
            write_events(unit, f"new {number}", [Draft(ev.CallProposed(tool_name="x", client="worker"))], CONTEXT)
            return oldest.id

        return work

    writes = [other.writer.submit(replace_oldest(number), Touched(queue="worker")) for number in range(150)]
    assert len(set(await asyncio.gather(*writes))) == 150
    assert len(count_reads) <= 20
    rows = await process.database.fetch("SELECT waiting FROM queues WHERE client = 'worker'")
    assert [row[0] for row in rows] == [200]


async def test_a_decision_without_end_fails_alone(process: Process) -> None:
    """A fault in the code of one write does not fail the writes of its group."""
    numbers = iter(range(10**6))
    endless = process.writer.submit(lambda unit: unit.call(f"exec_{next(numbers):012x}"))
    writes = [process.append("a", message(str(number))) for number in range(20)]
    await asyncio.wait_for(asyncio.gather(*writes), TIMEOUT_S)
    with pytest.raises(StoreError, match="without end"):
        await asyncio.wait_for(endless, TIMEOUT_S)


# One process


async def test_a_failed_write_of_a_group_leaves_the_others(process: Process) -> None:
    """Writes that are decided together succeed or fail each for itself."""
    writes = [
        process.append("a", message("1")),
        process.append("a", ev.ApprovalGranted(approval="appr_1", call="exec_1"), context=STRICT),
        process.append("a", message("2")),
        process.append("b", message("3")),
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(results[1], ConflictError)
    assert texts(await process.log("a")) == ["1", "2"] and texts(await process.log("b")) == ["3"]
    assert [event.seq for event in await process.log("a")] == [1, 2]


REFUSED_OWNERS = {
    "lone surrogate": ("\ud800", "surrogates not allowed"),
    "NUL": ("a\0b", "a text with NUL cannot be stored"),
    "too long for an index": (random.Random(1).randbytes(10_000).hex(), "index row"),
}


@pytest.mark.parametrize("name", REFUSED_OWNERS)
async def test_a_row_that_the_server_refuses_fails_only_its_task(process: Process, name: str) -> None:
    """The other writes of the group are stored, in their order."""
    owner, problem = REFUSED_OWNERS[name]
    writes = [process.append("a", message("1")), process.append("b", message("2"))]
    writes.append(process.writer.submit(lambda unit: unit.put_owner(OwnerRecord(owner, 1))))
    writes += [process.append("a", message(text)) for text in "345"]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, Exception)] == [StoreError]
    assert problem in str(results[2])
    assert texts(await process.log("a")) == ["1", "3", "4", "5"] and texts(await process.log("b")) == ["2"]
    assert len(process.delivered) == 5


async def test_a_write_to_two_sessions_lands_whole_or_not_at_all(process: Process, other: Process) -> None:
    """A decision over several sessions is repeated as a whole if one of them has changed."""
    for session in ("a", "b"):
        await process.append(session, message("start"))
    await other.append("b", message("in between"))

    def write_both(unit: UnitOfWork) -> int:
        for session in ("a", "b"):
            WriteOperation(unit, session, CONTEXT).run([Draft(message("both"))])
        return 2

    assert await process.writer.submit(write_both, Touched(("a", "b"))) == 2
    assert texts(await other.log("a")) == ["start", "both"]
    assert texts(await other.log("b")) == ["start", "in between", "both"]


async def test_any_text_is_stored_as_it_is(process: Process) -> None:
    """Texts are written as those of arrays, in which quotes, commas and the word NULL have a meaning."""
    keys = ["a", "NULL", "{}", "a,b", 'say "x"', "back\\slash", '\\"', " space ", "line\nline", "ü 日"]
    for session in ("plain", 'odd "name", {} \\'):
        events = [event for key in keys for event in await process.append(session, Draft(message(key), key=key))]
        again = await process.append(session, *(Draft(message(key), key=key) for key in keys))
        assert texts(again) == texts(await process.log(session)) == keys and again == events
    rows = await process.database.fetch("SELECT DISTINCT key FROM keys")
    assert {row[0] for row in rows} == set(keys)


async def test_a_generated_id_that_is_taken_is_replaced(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is taken to be free, and the write finds out that another session has it."""
    (first,) = await other.append("b", proposed("1"))
    fresh = ids.call_id()
    answers = iter([first.call, fresh])
    monkeypatch.setattr(ids, "call_id", lambda: next(answers))
    (second,) = await process.append("a", proposed("1"))
    assert second.call == fresh


async def test_a_decision_that_runs_again_keeps_its_ids(process: Process, other: Process) -> None:
    """A disturbed write returns an id that is stored."""
    await process.append("a", message("1"))
    await other.append("a", message("2"))
    (opened,) = await process.append("a", proposed("c"))
    assert [event.call for event in await process.log("a") if isinstance(event, ev.CallEvent)] == [opened.call]


# Lost connections


class FaultyConnection:
    """A connection whose next use of a statement fails before or after the server has run it."""

    def __init__(self, connection: Any, statement: str, error: Exception, *, is_done: bool) -> None:
        self._connection = connection
        self._statement = statement
        self._error = error
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def _run(self, run: Callable[..., Awaitable[Any]], sql: str, *values: Any, **options: Any) -> Any:
        if not sql.startswith(self._statement):
            return await run(sql, *values, **options)
        self._statement = "never"
        if self._is_done:
            await run(sql, *values, **options)
        self._connection.terminate()
        raise self._error

    async def fetch(self, sql: str, *values: Any, **options: Any) -> Any:
        return await self._run(self._connection.fetch, sql, *values, **options)

    async def execute(self, sql: str, *values: Any, **options: Any) -> Any:
        return await self._run(self._connection.execute, sql, *values, **options)


LOST = ConnectionResetError("connection lost")


def break_connections(
    monkeypatch: pytest.MonkeyPatch, statement: str, error: Exception = LOST, *, is_done: bool
) -> None:
    """Let the next use of a statement fail on the first connection of each lane."""
    connect = Lane.connect
    faulty: dict[Lane, Any] = {}

    async def connect_faulty(lane: Lane) -> Any:
        connection = await connect(lane)
        if lane not in faulty:
            faulty[lane] = connection, FaultyConnection(connection, statement, error, is_done=is_done)
        return faulty[lane][1] if faulty[lane][0] is connection else connection

    monkeypatch.setattr(Lane, "connect", connect_faulty)


@pytest.mark.parametrize("error", [LOST, asyncpg.InternalClientError("unexpected answer")])
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_write_whose_connection_is_lost_is_stored_once(
    process: Process, monkeypatch: pytest.MonkeyPatch, is_done: bool, error: Exception
) -> None:
    """The caller gets the result, and the events are stored once, whether or not the server committed."""
    break_connections(monkeypatch, "SELECT reason", error, is_done=is_done)
    (event,) = await process.append("a", message("once"))
    assert await process.log("a") == [event]
    assert [stored.event for stored in process.delivered] == [event]
    (second,) = await process.append("a", message("after"))
    assert second.seq == 2


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_locked_write_whose_connection_is_lost_is_stored_once(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """The same for a session that is locked before it is read."""
    await process.append("a", message("1"))
    await other.append("a", message("2"))
    break_connections(monkeypatch, "COMMIT", is_done=is_done)
    (event,) = await process.append("a", message("3"))
    assert texts(await process.log("a")) == ["1", "2", "3"]
    assert event.seq == 3


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_transaction_alone_whose_connection_is_lost_runs_once(
    process: Process, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """Its result reaches the caller also if the answer to the commit was lost."""
    break_connections(monkeypatch, "COMMIT", is_done=is_done)

    async def count(connection: Any) -> int:
        insert = "INSERT INTO meta VALUES ('count', '1')"
        sql = f"{insert} ON CONFLICT (name) DO UPDATE SET value = (meta.value::int + 1)::text"
        await connection.execute(sql)
        return (await connection.fetch("SELECT value::int FROM meta WHERE name = 'count'"))[0][0]

    assert await process.writer.run_alone(count) == 1
    assert [row[0] for row in await process.database.fetch("SELECT value FROM meta WHERE name = 'count'")] == ["1"]


async def test_a_group_that_was_given_up_is_not_committed_later(process: Process) -> None:
    """A server that receives a statement late refuses it, because its caller got an error."""
    lane = Lane(process.database)
    connection = await lane.connect()
    number = lane.next_number()
    assert not await lane.is_committed(asyncio.get_running_loop().time() + 30)
    connection = await lane.connect()
    rows = await connection.fetch(postgres_writer.USE_LANE, lane.id, number)
    assert rows == []
    await lane.close()


async def test_a_lane_whose_row_was_removed_gets_another_one(process: Process) -> None:
    """A process that did not write for a day can write."""
    await process.append("a", message("1"))
    await process.database.fetch("DELETE FROM lanes")
    await process.append("a", message("2"))
    await process.database.fetch("DELETE FROM lanes")

    async def read_one(connection: Any) -> int:
        return (await connection.fetch("SELECT 1"))[0][0]

    assert await process.writer.run_alone(read_one) == 1
    assert texts(await process.log("a")) == ["1", "2"]


async def test_an_unreachable_server_fails_writes_in_time(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write waits for the server, but not longer than the settings say."""
    async with open_process(db, Settings(database_timeout=0.3)) as process:

        async def refuse(lane: Lane) -> Any:
            raise postgres_writer.LostConnectionError("no server")

        monkeypatch.setattr(Lane, "connect", refuse)
        with pytest.raises(StoreError, match="no server"):
            await process.append("a", message("1"))
