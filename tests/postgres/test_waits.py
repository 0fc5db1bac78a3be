"""No wait for the database is without a deadline, and a connection that is lost at any step is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from callslip.errors import StoreError
from callslip.ledger.write import WriteContext, write_events
from callslip.model.events import Draft, MessageUser
from callslip.rules.redaction import make_redactor
from callslip.settings import Settings
from callslip.store import postgres, postgres_database, postgres_maintenance, postgres_writer
from callslip.store.postgres import PostgresStore
from callslip.store.postgres_database import WRITE_LOCK_TIMEOUT_S, Database, LostConnectionError
from callslip.store.postgres_writer import Lane, PostgresWriter
from callslip.store.protocol import Touched
from callslip.store.unit_of_work import UnitOfWork
from tests.support import engines
from tests.support.fault_proxy import Direction, FaultProxy
from tests.support.postgres import database_name

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
CONTEXT = WriteContext(redactor=make_redactor(False, ()))
SETTINGS = Settings(database_timeout=20.0)
SHORT = Settings(statement_timeout=0.5, database_timeout=1.0, read_connections=2)
TIMEOUT_S = 60.0
MAX_STALLED = 10
"""How many stalls are tried at the same time."""


@pytest.fixture
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


@pytest.fixture
def proxy(db: str) -> Iterator[FaultProxy]:
    with FaultProxy(int(urlsplit(db).port or 0)) as proxy:
        yield proxy


@pytest.fixture
def proxied_db(db: str, proxy: FaultProxy) -> str:
    """Return the URL of the ledger through the proxy."""
    return engines.server().url(database_name(db), port=proxy.port)


@pytest.fixture
async def database(proxied_db: str) -> AsyncIterator[Database]:
    async with await Database.open(proxied_db, SETTINGS) as database:
        yield database


async def test_a_read_is_repeated_if_its_connection_is_lost_while_it_waits(
    db: str, proxy: FaultProxy, database: Database
) -> None:
    """The pool has released the connection by then, which is no reason to fail."""
    async with await Database.open(db, SETTINGS) as other:
        connection = await other.connect()
        await connection.execute("SELECT pg_advisory_lock(1)")
        reading = asyncio.ensure_future(database.fetch("SELECT pg_advisory_lock_shared(1), 7"))
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await other.fetch(waiting):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(proxy.cut)
        await connection.close()
    async with asyncio.timeout(TIMEOUT_S):
        assert (await reading)[0][1] == 7


async def test_a_query_that_is_cancelled_twice_still_finishes() -> None:
    """Its connection can be used after that, and its error is not reported as one that nothing handles."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def query() -> None:
        await answer

    task = asyncio.ensure_future(postgres_database.finish(query()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    answer.set_exception(TimeoutError())
    with pytest.raises(asyncio.CancelledError):
        await task


# Writers whose server does not answer


def write(text: str) -> Any:
    """Return the work of a transaction that writes a message to the session `s`."""

    def work(unit: UnitOfWork) -> None:
        write_events(unit, "s", [Draft(MessageUser(text=text))], CONTEXT)

    return work


def make_writer(database: Database) -> PostgresWriter:
    return PostgresWriter(database, lambda *_: None, lambda *_: None, lambda *_: None)


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[PostgresWriter]:
    writer = make_writer(database)
    yield writer
    async with asyncio.timeout(TIMEOUT_S):
        await writer.close()


async def read_log(url: str) -> list[bytes]:
    async with await Database.open(url, SETTINGS) as reader:
        return [row[0] for row in await reader.fetch("SELECT body FROM events ORDER BY session, seq")]


async def test_an_outcome_is_asked_for_again_if_the_question_fails(
    db: str, proxy: FaultProxy, database: Database, writer: PostgresWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write is not reported as failed because the row that has its outcome was locked for too long."""
    monkeypatch.setattr(postgres_writer, "WRITE_LOCK_TIMEOUT_S", TIMEOUT_S)
    await writer.submit(write("1"), Touched(("s",)))
    monkeypatch.setattr(postgres_writer, "WRITE_LOCK_TIMEOUT_S", 0.2)
    waits: list[str] = []
    connect = Database.connect

    async def count_connections(self: Database, *arguments: Any) -> Any:
        connection = await connect(self, *arguments)
        if self is database:
            waits.append("connected")
        return connection

    monkeypatch.setattr(Database, "connect", count_connections)
    async with await Database.open(db, SETTINGS) as other:
        blocker = await other.connect()
        await blocker.execute("BEGIN")
        await blocker.fetch("SELECT 1 FROM lanes FOR UPDATE")
        writing = writer.submit(write("2"), Touched(("s",)))
        while not await other.fetch("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(proxy.cut)
        async with asyncio.timeout(TIMEOUT_S):
            while len(waits) < 3:  # The first question ended with an error, so it is asked again.
                await asyncio.sleep(0.01)
        await blocker.execute("COMMIT")
        await blocker.close()
    async with asyncio.timeout(TIMEOUT_S):
        await writing
    assert len(await read_log(db)) == 2


async def test_a_transaction_of_a_process_that_is_gone_ends_on_the_server(db: str, proxy: FaultProxy) -> None:
    """The locks of a half-open connection are released after the time of a statement."""
    settings = Settings(statement_timeout=0.5, database_timeout=20.0)
    async with await Database.open(engines.server().url(database_name(db), port=proxy.port), settings) as gone:
        async with await Database.open(db, SETTINGS) as database:
            writer = make_writer(database)
            await writer.submit(write("1"), Touched(("s",)))
            connection = await gone.connect()
            await connection.execute(gone.begin())
            await connection.fetch("SELECT 1 FROM sessions FOR UPDATE")
            await asyncio.to_thread(proxy.stall)
            async with asyncio.timeout(TIMEOUT_S):
                await writer.submit(write("2"), Touched(("s",)))
                await writer.close()
        await asyncio.to_thread(proxy.refuse)
    assert len(await read_log(db)) == 2


@pytest.mark.parametrize("has_pooler", [False, True])
async def test_statements_have_timeouts_on_the_server(db: str, has_pooler: bool) -> None:
    """They are settings of the connection, or of each transaction if a pooler shares connections."""
    async with await Database.open(db, Settings(statement_timeout=3.0)) as database:
        database.has_pooler = has_pooler
        connection = await database.connect(WRITE_LOCK_TIMEOUT_S)
        sql = (
            "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), "
            "current_setting('idle_in_transaction_session_timeout')"
        )
        outside = tuple((await connection.fetch(sql))[0])
        await connection.execute(database.begin())
        inside = tuple((await connection.fetch(sql))[0])
        await connection.execute("ROLLBACK")
        await connection.execute(database.begin(60))
        long = tuple((await connection.fetch(sql))[0])
        await connection.close()
    assert outside == (("0", "0", "0") if has_pooler else ("4s", "500ms", "4s"))
    assert inside == ("4s", "500ms", "4s")
    assert long == ("61s", "5s", "61s")


async def test_a_pooler_that_refuses_settings_gets_none(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PgBouncer refuses a connection with settings that it does not know."""
    connect = postgres_database._driver.connect  # pyright: ignore[reportPrivateUsage]

    async def refuse_settings(**options: Any) -> Any:
        if "lock_timeout" in options["server_settings"]:
            raise asyncpg.ProtocolViolationError("unsupported startup parameter: statement_timeout")
        return await connect(**options)

    monkeypatch.setattr(postgres_database._driver, "connect", refuse_settings)  # pyright: ignore[reportPrivateUsage]
    async with await Database.open(db, SETTINGS) as database:
        assert [tuple(row) for row in await database.fetch("SELECT current_setting('lock_timeout')")] == [("0",)]
        assert "lock_timeout" in database.begin()


async def test_a_server_that_starts_is_waited_for(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that recovers after a crash accepts connections a little later."""
    connect = postgres_database._driver.connect  # pyright: ignore[reportPrivateUsage]
    answers = [asyncpg.CannotConnectNowError("the database system is starting up")]

    async def connect_later(**options: Any) -> Any:
        if answers:
            raise answers.pop()
        return await connect(**options)

    monkeypatch.setattr(postgres_database._driver, "connect", connect_later)  # pyright: ignore[reportPrivateUsage]
    async with await Database.open(db, SETTINGS):
        assert not answers


async def test_an_address_without_a_server_is_reported_at_once(proxy: FaultProxy, proxied_db: str) -> None:
    """It may be wrong, so nothing is gained by waiting."""
    proxy.refuse()
    started = time.monotonic()
    with pytest.raises(LostConnectionError):
        await Database.open(proxied_db, SETTINGS)
    assert time.monotonic() - started < SETTINGS.database_timeout


async def test_a_write_that_is_always_disturbed_fails_in_time(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decided again, but not longer than the settings say."""

    async def disturb(*arguments: object) -> None:
        await asyncio.sleep(0)
        raise postgres_writer._Disturbed({"s"})  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(PostgresWriter, "_attempt", disturb)
    async with await Database.open(db, Settings(database_timeout=0.3)) as database:
        writer = make_writer(database)
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(StoreError, match="did not succeed in time"):
                await writer.submit(write("1"), Touched(("s",)))
            await writer.close()


async def test_a_lane_that_was_cancelled_is_replaced(writer: PostgresWriter) -> None:
    """Later writes do not wait for a lane that has ended."""
    await writer.submit(write("1"), Touched(("s",)))
    for lane in list(writer._lanes):  # pyright: ignore[reportPrivateUsage]
        lane.cancel()
        await asyncio.wait([lane])
    async with asyncio.timeout(TIMEOUT_S):
        await writer.submit(write("2"), Touched(("s",)))


async def test_many_writes_fail_together_in_an_outage(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write whose time is over does not wait for the server once more, if the one before it could not reach it."""
    attempts: list[Lane] = []

    async def fail(lane: Lane) -> Any:
        attempts.append(lane)
        await asyncio.sleep(0.3)
        raise LostConnectionError("no server")

    async def nothing(connection: Any) -> None: ...

    monkeypatch.setattr(Lane, "connect", fail)
    async with await Database.open(db, Settings(database_timeout=0.5, write_connections=1)) as database:
        writer = make_writer(database)
        results = await asyncio.gather(*(writer.run_alone(nothing) for _ in range(30)), return_exceptions=True)
        await writer.close()
    assert all(isinstance(result, LostConnectionError) for result in results)
    assert len(attempts) < 10


async def test_a_write_that_hangs_is_logged_with_the_stacks_of_all_tasks(
    db: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No write waits without a deadline; should one do so, the log says where, once."""
    released = asyncio.Event()

    async def wait_without_deadline(*arguments: object) -> None:
        await released.wait()
        raise StoreError("released")

    monkeypatch.setattr(PostgresWriter, "_attempt", wait_without_deadline)
    monkeypatch.setattr(postgres_writer, "MAX_OVERDUE_S", 0.05)
    monkeypatch.setattr(postgres_writer, "CHECK_S", 0.02)
    async with await Database.open(db, Settings(database_timeout=0.05)) as database:
        writer = make_writer(database)
        writing = writer.submit(write("1"), Touched(("s",)))
        async with asyncio.timeout(TIMEOUT_S):
            while not caplog.records:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            released.set()
            with pytest.raises(StoreError, match="released"):
                await writing
            await writer.close()
    (record,) = caplog.records
    text = record.getMessage()
    assert "a write has not ended in time" in text
    assert text.index("PostgresWriter._run_lane") < text.index("wait_without_deadline") < text.index("Event.wait")


# Each step of the engine while the network delivers nothing


class Steps:
    """Everything that the engine does, through a proxy that stalls at one of its messages."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: list[str] = []

    async def run(self) -> None:
        """Do one thing after the other. The first one that fails is the last one."""
        store: PostgresStore | None = None
        waiting: asyncio.Task[Any] | None = None
        try:
            store = await PostgresStore.open(self.url, SHORT)
            waiting = asyncio.create_task(self._wait_for_changes(store))
            await self._append(store, "new")
            await self._append(store, "remembered")
            store._writer._disturbed["s"] = 0  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
            await self._append(store, "locked")
            await store.put_executor("q", 1)
            await store.session("s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(store.session("s"), 0.001)
            await store.put_blob(b"x", "text/plain")
            async with store.read_snapshot() as view:
                await view.session("s")
            await store.delete("gone")
            await store.clock()
        finally:
            if waiting is not None:
                waiting.cancel()
            if store is not None:
                await store.close()

    async def _wait_for_changes(self, store: PostgresStore) -> None:
        while True:
            await store.wait_changes()

    async def _append(self, store: PostgresStore, text: str) -> None:
        await store.transact(write(text), Touched(("s",)))
        self.acknowledged.append(text)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connecting and deleting take no longer than other steps."""
    monkeypatch.setattr(postgres_database, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(postgres, "DELETION_S", 0.5)
    monkeypatch.setattr(postgres_maintenance, "DELETION_S", 0.5)


@pytest.mark.chaos
@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_no_step_waits_longer_than_its_deadline(direction: Direction, scale: int) -> None:
    """While nothing arrives, every step fails in time; what was acknowledged is stored once, the rest at most once.

    `make chaos` stalls at every message, other runs at every eighth.
    """
    with new_proxied_database() as (url, _, proxy):
        await Steps(url).run()
        count = proxy.pieces[direction]
    assert count > 20
    every_piece = range(1, count + 1, 8 if scale == 1 else 1)
    for first in range(0, len(every_piece), MAX_STALLED):
        with contextlib.ExitStack() as stack:
            pieces = every_piece[first : first + MAX_STALLED]
            databases = [stack.enter_context(new_proxied_database()) for _ in pieces]
            await asyncio.gather(
                *(_stall(piece, direction, *found) for piece, found in zip(pieces, databases, strict=True))
            )


async def _stall(piece: int, direction: Direction, url: str, database: str, proxy: FaultProxy) -> None:
    proxy.stall_at_piece(piece, direction)
    steps = Steps(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(StoreError):
                await steps.run()
    except TimeoutError:
        raise AssertionError(f"piece {piece} {direction}: {steps.acknowledged} and then nothing") from None
    await asyncio.to_thread(proxy.resume)
    async with await Database.open(database, SETTINGS) as reader:
        rows = await reader.fetch("SELECT convert_from(body, 'UTF8') FROM events ORDER BY seq")
    stored = [text for (body,) in rows for text in ("new", "remembered", "locked") if f'"{text}"' in body]
    assert len(stored) == len(rows) == len(set(stored)), f"piece {piece} {direction}: {rows}"
    assert stored[: len(steps.acknowledged)] == steps.acknowledged, f"piece {piece} {direction}: {stored}"


@contextlib.contextmanager
def new_proxied_database() -> Iterator[tuple[str, str, FaultProxy]]:
    """Yield the URL of an empty ledger through a proxy, its URL without it, and the proxy."""
    with engines.new_database(engines.POSTGRES) as url, FaultProxy(int(urlsplit(url).port or 0)) as proxy:
        yield engines.server().url(database_name(url), port=proxy.port), url, proxy
