"""What a ledger in PostgreSQL answers when its server is full, read-only, restarted or out of connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import (
    CursorExpiredError,
    DiskFullError,
    InvalidInputError,
    ReadOnlyStoreError,
    StoreError,
)
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.settings import Settings
from callslip.store.postgres import SQL
from callslip.store.postgres_database import Database
from tests.support import engines, live_server
from tests.support.invariants import find_faults, read_events
from tests.support.live_server import serving_ledger
from tests.support.paths import PROGRAMS
from tests.support.postgres import PostgresServer
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
MAX_CONNECTIONS = 30
READERS = 2000
READ_SESSIONS = 100
MAX_READER_BYTES = 40_000
"""How much memory one idle reader may take, with all that belongs to it."""

END_OTHERS = """
SELECT count(*), count(pg_terminate_backend(pid)) FILTER (WHERE datname = $1 AND pid <> ALL ($2))
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""


@pytest.fixture
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop, with few connections."""
    with PostgresServer(settings={"max_connections": str(MAX_CONNECTIONS)}) as server:
        yield server


@pytest.fixture
def own_db(own_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty ledger on the server that a test may stop."""
    url = own_server.create_database()
    yield url
    own_server.drop_database(url)


def message(text: str, key: str = "") -> Draft:
    return Draft(ev.MessageUser(text=text), key=key)


async def texts(ledger: LocalLedger, session: str = "a") -> list[str]:
    return [event.text for event in await read_events(ledger, session)]


async def until(condition: Any) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


def end_connections(url: str) -> None:
    """End all connections to a database, as a restart or a failover does."""
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()"
    engines.server().execute(sql, url.rpartition("/")[2])


# A full disk


@contextlib.contextmanager
def full_disk(url: str) -> Iterator[None]:
    """Let the kernel refuse to store any large body of an event, with the error of a full disk.

    PostgreSQL keeps large values in a file of their own. Here this file is the device that is always full. This needs
    no rights and no limit for other files, and the error takes its whole way through the server.
    """
    oid = "SELECT reltoastrelid FROM pg_class WHERE relname = 'events'"
    ((path,),) = engines.fetch_rows(url, f"SELECT pg_relation_filepath(({oid})::oid::regclass)")
    file = engines.server().folder / "data" / path
    assert file.stat().st_size == 0, "no large value is stored yet"
    file.unlink()
    file.symlink_to("/dev/full")
    try:
        yield
    finally:
        engines.change_rows(url, "VACUUM FULL events")  # It writes new files, on a disk with space.


async def test_a_full_disk_refuses_what_needs_space(db: str) -> None:
    """The error says so, nothing of the write is stored, reading works, and so do writes once there is space."""
    large = [message(secrets.token_hex(20_000)), message("with it")]
    async with callslip.open(db) as ledger, serving_ledger(ledger) as server:
        await ledger.log.append("a", [message("before")])
        with full_disk(db):
            for session in ("a", "a", "b"):
                with pytest.raises(DiskFullError, match="disk full; nothing was written"):
                    await ledger.log.append(session, large)
            answer = await live_server.fetch(
                f"{server}/v1/sessions/a/events",
                "POST",
                value={"type": "message.user", "text": secrets.token_hex(9000)},
            )
            assert (answer.status, answer.json()["type"]) == (507, "urn:callslip:full")
            assert await texts(ledger) == ["before"] and await ledger.log.store.session("b") is None
            await ledger.log.append("a", [message("small")])
        stored = await ledger.log.append("a", large)
        assert [event.seq for event in stored] == [3, 4]
        assert await read_events(ledger, "b") == [] and not await find_faults(ledger)


# A database that can only be read


async def test_a_database_that_becomes_read_only_refuses_writes_until_it_is_writable(db: str) -> None:
    """As after a failover, connections that cannot write are replaced, so the ledger need not be opened again."""
    name = db.rpartition("/")[2]
    async with callslip.open(db, Settings(write_connections=1, database_timeout=1.0)) as ledger:
        await ledger.log.append("a", [message("before")])
        engines.change_rows(db, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        end_connections(db)
        with pytest.raises(StoreError, match="cannot be written"):  # It may be sent before the connection is closed.
            await ledger.log.append("a", [message("refused")])
        for _ in range(2):
            with pytest.raises(ReadOnlyStoreError, match="cannot be written"):
                await ledger.log.append("a", [message("refused")])
            with pytest.raises(ReadOnlyStoreError, match="cannot be written"):
                await ledger.log.store.put_blob(b"x", "text/plain")
        assert await texts(ledger) == ["before"]
        engines.server().execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await ledger.log.append("a", [message("after")])
        await ledger.log.store.put_blob(b"x", "text/plain")
        assert await texts(ledger) == ["before", "after"]


async def test_a_role_without_rights_can_only_read(db: str) -> None:
    """The ledger opens, is read, and says that it cannot be written."""
    name = db.rpartition("/")[2]
    role = f"reader_{name}"
    async with callslip.open(db) as ledger:
        await ledger.log.append("a", [message("1")])
        engines.change_rows(db, f"CREATE ROLE {role} LOGIN")
        engines.change_rows(db, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        try:
            async with callslip.open(db.replace("postgres@", f"{role}@")) as reader:
                assert reader.log.store.read_only and await texts(reader) == ["1"]
                follower = aiter(reader.log.follow("a"))
                assert (await anext(follower)).seq == 1
                await ledger.log.append("a", [message("2")])
                assert (await asyncio.wait_for(anext(follower), TIMEOUT_S)).seq == 2
                await follower.aclose()
                with pytest.raises(ReadOnlyStoreError, match="cannot be written"):
                    await reader.log.append("a", [message("3")])
        finally:
            engines.change_rows(db, f"DROP OWNED BY {role}")
            engines.change_rows(db, f"DROP ROLE {role}")


async def test_a_standby_can_only_be_read_until_it_is_promoted(own_server: PostgresServer, own_db: str) -> None:
    """A ledger that was opened on a standby is read-only; one that is opened after the promotion is not."""
    async with callslip.open(own_db) as ledger:
        await ledger.log.append("a", [message("1")])
    signal = own_server.folder / "data" / "standby.signal"
    await asyncio.to_thread(own_server.stop)
    signal.touch()
    os.chmod(signal, 0o666)
    await asyncio.to_thread(own_server.start)
    async with callslip.open(own_db) as ledger:
        assert ledger.log.store.read_only and await texts(ledger) == ["1"]
        with pytest.raises(ReadOnlyStoreError, match="cannot be written"):
            await ledger.log.append("a", [message("2")])
    own_server.execute("SELECT pg_promote()")
    async with callslip.open(own_db) as ledger:
        await ledger.log.append("a", [message("2")])
        assert await texts(ledger) == ["1", "2"] and not await find_faults(ledger)


# A server that is restarted, or has no free connection


async def test_a_restart_of_postgres_is_only_a_pause(own_server: PostgresServer, own_db: str) -> None:
    """Writes and reads during a restart wait for it, each event is stored once, and followers miss none."""
    settings = Settings(database_timeout=TIMEOUT_S)
    is_over = False

    async def write(ledger: LocalLedger, name: str) -> list[str]:
        written: list[str] = []
        while not is_over or len(written) < 10:
            written.append(f"{name} {len(written)}")
            await ledger.log.append("a", [message(written[-1])])
            assert await ledger.log.get_session("a")
        return written

    async with callslip.open(own_db, settings) as ledger, callslip.open(own_db, settings) as other:
        await ledger.log.append("a", [message("first")])
        seqs: list[int] = []

        async def follow() -> None:
            async for event in other.log.follow("a"):
                seqs.append(event.seq)

        follower = asyncio.create_task(follow())
        writers = [asyncio.create_task(write(each, name)) for each, name in ((ledger, "x"), (other, "y"))]
        for _ in range(2):
            count = len(seqs)
            await until(lambda count=count: len(seqs) > count + 5)
            await asyncio.to_thread(own_server.restart)
        is_over = True
        written = await asyncio.wait_for(asyncio.gather(*writers), TIMEOUT_S)
        stored = await texts(ledger)
        assert sorted(stored[1:]) == sorted(written[0] + written[1])
        await until(lambda: len(seqs) >= len(stored))
        assert seqs == list(range(1, len(stored) + 1))
        follower.cancel()
        assert not await find_faults(ledger)


async def test_reads_that_find_all_connections_in_use_fail_in_time(db: str) -> None:
    """The error names the cause, and writes are not affected."""
    async with callslip.open(db, Settings(read_connections=2, statement_timeout=0.3)) as ledger:
        await ledger.log.append("a", [message("1")])
        async with take_read_connections(ledger):
            results = await asyncio.gather(*(ledger.log.get_session("a") for _ in range(3)), return_exceptions=True)
            assert all("all 2 connections for reads are in use" in str(result) for result in results)
            assert {type(result) for result in results} == {StoreError}
            await ledger.log.append("a", [message("2")])


async def test_reads_that_find_all_connections_in_use_wait_for_one(db: str) -> None:
    """All reads that wait get their result once a connection is free."""
    async with callslip.open(db, Settings(read_connections=2, statement_timeout=TIMEOUT_S)) as ledger:
        await ledger.log.append("a", [message("1")])
        async with take_read_connections(ledger):
            waiting = asyncio.gather(*(ledger.log.get_session("a") for _ in range(20)))
        assert all(await waiting) and await texts(ledger) == ["1"]


@contextlib.asynccontextmanager
async def take_read_connections(ledger: LocalLedger) -> AsyncGenerator[None]:
    """Hold both connections for reads."""
    pool: Any = ledger.log.store._database._pool  # type: ignore[attr-defined]
    held = [await pool.acquire() for _ in range(2)]
    try:
        yield
    finally:
        for connection in held:
            await pool.release(connection)


async def test_a_server_without_a_free_connection_is_tried_until_the_timeout(own_db: str) -> None:
    """The error names the cause; a write that waits succeeds once a connection is free."""
    held: list[Any] = []

    async def take_all() -> None:
        """Take all connections of the server. Those of the ledger are ended, which takes a moment."""
        name = own_db.rpartition("/")[2]
        total = ended = 0
        async with asyncio.timeout(TIMEOUT_S):
            while total < MAX_CONNECTIONS or ended:
                with contextlib.suppress(asyncpg.TooManyConnectionsError):
                    while True:
                        held.append(await asyncpg.connect(own_db))
                own = [connection.get_server_pid() for connection in held]
                ((total, ended),) = await held[0].fetch(END_OTHERS, name, own)

    try:
        async with callslip.open(own_db, Settings(database_timeout=1.0)) as ledger:
            await ledger.log.append("a", [message("1")])
            await take_all()
            for operation in (
                lambda: ledger.log.append("a", [message("2", "key")]),
                lambda: ledger.log.get_session("a"),
            ):
                started_at = time.monotonic()
                with pytest.raises(StoreError, match="no free connection"):
                    await operation()
                assert time.monotonic() - started_at >= 0.4
            with pytest.raises(StoreError, match="no free connection"):
                await callslip.open(own_db)
            waiting = asyncio.create_task(ledger.log.append("a", [message("2", "key")]))
            for connection in held:
                connection.terminate()
            await asyncio.wait_for(waiting, TIMEOUT_S)
            assert await texts(ledger) == ["1", "2"]
    finally:
        for connection in held:
            connection.terminate()


# A clock that jumps


async def test_a_clock_of_one_machine_that_jumps_by_an_hour_ends_nothing(db: str) -> None:
    """Leases and deadlines use the clock of the database, on the machine with the wrong clock and on all others."""
    async with callslip.open(db, Settings(reaper_interval=0.05)) as ledger:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAMS / "jumping_clock.py"), db),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S), ledger.session("here").call("t") as call:
                assert process.stdout is not None
                for _ in range(3):
                    facts = json.loads(await process.stdout.readline())
                    assert facts["states"] == ["awaiting_approval", "queued", "running", "running", "running"]
                    assert facts["approvals"] == ["pending"]
                    assert abs(facts["at"] - await ledger.log.store.clock()) < TIMEOUT_S * 1000
                call.complete(1)
                await process.communicate(b"\n")
            assert process.returncode == 0
            states = sorted(record.state for record in (await ledger.calls()).items)
            assert states == ["awaiting_approval", "completed", "completed", "queued", "running"]
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


# Readers


async def test_2000_idle_readers_cost_little_and_miss_nothing(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share few connections, and queries do not grow with them. A write reaches all readers of its session."""
    sessions = [f"s{number}" for number in range(READ_SESSIONS)]
    counts = dict.fromkeys(sessions, 0)
    per_session = READERS // READ_SESSIONS
    queries: list[str] = []
    fetch = Database.fetch

    async def note_query(self: Database, sql: str, *values: Any) -> Any:
        queries.append(sql)
        return await fetch(self, sql, *values)

    async def follow(ledger: LocalLedger, session: str) -> None:
        async for event in ledger.log.follow(session, 1):
            assert event.seq == 2
            counts[session] += 1

    settings = Settings(reaper_interval=3600.0)
    async with callslip.open(db, settings) as writer, callslip.open(db, settings) as ledger:
        await asyncio.gather(*(writer.log.append(session, [message("1")]) for session in sessions))
        before = memory_in_use()
        tasks = [asyncio.create_task(follow(ledger, session)) for session in sessions for _ in range(per_session)]
        listener: Any = ledger.log.store._changes  # type: ignore[attr-defined]
        feed: Any = ledger.log.feed
        await until(lambda: listener.is_listening and feed._watchers == READERS)
        await until(lambda: all(len(channel._readers) == per_session for channel in feed._channels.values()))
        assert (memory_in_use() - before) / READERS < MAX_READER_BYTES
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1"
        ((connections,),) = engines.server().execute(sql, db.rpartition("/")[2])
        # Of each ledger: those for reads and writes, and one each to notify and to listen.
        assert connections <= 2 * (4 + 2 + 2)

        monkeypatch.setattr(Database, "fetch", note_query)
        await until(lambda: queries[-3:] == [SQL["snapshot"]] * 3)  # Only one query for all readers is repeated.
        monkeypatch.undo()

        await writer.log.append("s7", [message("2")])
        await until(lambda: counts["s7"] == per_session)
        assert sum(counts.values()) == per_session
        await asyncio.gather(*(writer.log.append(session, [message("2")]) for session in sessions if session != "s7"))
        await until(lambda: sum(counts.values()) == READERS)
        for task in tasks:
            task.cancel()
        assert not [result for result in await asyncio.gather(*tasks, return_exceptions=True) if result is None]


def memory_in_use() -> int:
    """Return how many bytes of memory this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def next_event(ledger: LocalLedger, after: int) -> Event:
    async with contextlib.aclosing(ledger.log.follow("a", after)) as events:
        return await asyncio.wait_for(anext(events), TIMEOUT_S)


@pytest.fixture
async def ledgers(db: str) -> AsyncIterator[list[LocalLedger]]:
    """Two servers' ledgers."""
    async with callslip.open(db) as first, callslip.open(db) as second:
        yield [first, second]


async def test_a_cursor_ahead_of_the_head_is_refused(ledgers: list[LocalLedger]) -> None:
    """On every server; but the cursor of an event that another server has just written is valid on all of them."""
    first, second = ledgers
    reader = asyncio.create_task(next_event(second, 0))  # So that the second server has read the session before.
    await first.log.append("a", [message("1")])
    await reader
    for seq in range(2, 12):
        await first.log.append("a", [message(str(seq))])
        waiting = asyncio.create_task(next_event(second, seq))
        await asyncio.sleep(0)
        (event,) = await first.log.append("b", [message("other")])
        assert event.seq == seq - 1
        if seq == 11:
            await first.log.append("a", [message("12")])
            assert (await waiting).seq == 12
        else:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    for ledger in ledgers:
        with pytest.raises(InvalidInputError, match=r"after: must be from 0 to the last event \(12\), got 13"):
            await next_event(ledger, 13)
        async with serving_ledger(ledger) as url:
            for path in ("stream?format=events&after=13", "stream?format=entries&after=13"):
                answer = await live_server.fetch(f"{url}/v1/sessions/a/{path}")
                assert answer.status == 400 and "12" in answer.json()["detail"]


async def test_a_cursor_below_retention_is_expired(ledgers: list[LocalLedger]) -> None:
    """On every server, also on one that has read the session before another one pruned it."""
    first, second = ledgers
    await first.log.append("a", [message("1"), message("2")])
    assert (await next_event(second, 0)).seq == 1
    assert await first.prune(-60) == 2
    await second.log.append("a", [message("3")])
    for ledger in ledgers:
        with pytest.raises(CursorExpiredError) as expiry:
            await next_event(ledger, 1)
        assert (expiry.value.cursor, expiry.value.pruned_seq) == (1, 2)
        assert (await next_event(ledger, 2)).seq == 3
        async with serving_ledger(ledger) as url:
            answer = await live_server.fetch(f"{url}/v1/sessions/a/stream?format=events&after=1")
            assert (answer.status, answer.json()["type"], answer.json()["low"]) == (410, "urn:callslip:gone", 2)
