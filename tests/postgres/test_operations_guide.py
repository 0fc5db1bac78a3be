"""What `docs/guides/postgres.md` says about operations: settings, roles, backups, replicas and monitoring."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.events import Alias, Draft
from callslip.settings import Settings
from callslip.store.postgres_database import Database
from tests.support import engines
from tests.support.invariants import find_faults
from tests.support.postgres import PostgresServer, database_name
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
SPENT_TRANSACTIONS = 5000
SPEND_TRANSACTIONS = f"""
DO $$ BEGIN FOR n IN 1..{SPENT_TRANSACTIONS} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
"""
OPTIONS = [{"optionId": "yes", "kind": "allow_once", "name": "Yes"}, {"optionId": "no", "kind": "reject_once"}]


@pytest.fixture(scope="session")
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


# Pools and timeouts


async def test_the_server_ends_a_read_that_was_given_up(db: str) -> None:
    """A read that takes longer than `statement_timeout` fails, and does not run on without a client."""
    settings = Settings(statement_timeout=0.2, database_timeout=0.2)
    async with await Database.open(db, settings) as database:
        with pytest.raises(callslip.StoreError, match="did not answer in time"):
            await database.fetch("SELECT pg_sleep(600)")
        running = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
        async with asyncio.timeout(TIMEOUT_S):
            while engines.fetch_rows(db, running):
                await asyncio.sleep(0.01)


# Backups


async def fill(ledger: LocalLedger) -> None:
    """Write a session with calls, an answered and a pending approval, a blob, pruned events, and a pending command."""
    async with ledger.session("work").turn("Go."):
        for number in range(3):
            async with ledger.session("work").call("t", {"number": number}) as call:
                call.complete("done" * (1 + 50_000 * (number == 2)))
    aliases = (Alias("t", "asking"),)
    proposal = ev.CallProposed(tool_name="rm", title="Remove", input={"path": "/"}, scope="detached", aliases=aliases)
    request = ev.ApprovalRequested(aliases=aliases, description="may I?", options=OPTIONS)
    await ledger.log.append("asking", [Draft(proposal), Draft(request)])
    await ledger.commands.submit("echo", {"text": "hi"}, queue="w", session="queue", timeout=3600)


def copy_database(url: str, server: PostgresServer) -> str:
    """Restore a dump of a database on another server, and return the URL of the copy."""
    dump = engines.server().folder / "ledger.dump"
    engines.server().run_program("pg_dump", "--format=custom", f"--file={dump}", url)
    copy = server.create_database()
    server.run_program("pg_restore", "--exit-on-error", f"--dbname={copy}", dump)
    dump.unlink()
    return copy


async def read_all(ledger: LocalLedger) -> dict[str, list[bytes]]:
    """Return the stored events of all sessions."""
    names = [row.name for row in (await ledger.sessions(limit=1000)).items]
    return {name: [body for _, body in await ledger.log.store.events(name, 0, 10_000)] for name in names}


@pytest.fixture
def new_server() -> Iterator[PostgresServer]:
    """A server without databases, whose transactions have small numbers."""
    with PostgresServer() as server:
        yield server


async def test_a_restored_dump_continues_on_a_new_server(db: str, new_server: PostgresServer) -> None:
    """OPS3: a dump of a ledger in use has everything that was acknowledged, and other processes learn of what changes.

    The rows of calls have numbers of transactions that the new server has not reached yet.
    """
    engines.server().execute(SPEND_TRANSACTIONS, database=database_name(db))
    async with await callslip.open(db) as source:
        await fill(source)
        stored = await read_all(source)
        copy = copy_database(db, new_server)
    numbers = "SELECT max(change::text::bigint), min(pg_current_xact_id()::text::bigint) FROM calls"
    ((restored, current),) = new_server.execute(numbers, database=database_name(copy))
    assert restored > current + SPENT_TRANSACTIONS / 2
    async with await callslip.open(copy) as one, await callslip.open(copy) as other:
        assert await find_faults(one) == [] and await read_all(one) == stored
        [queued] = await one.commands.pending("w")
        waiting = asyncio.create_task(one.commands.get(queued.correlation_id, wait=TIMEOUT_S))
        async with asyncio.timeout(TIMEOUT_S):
            claim = await other.commands.claim("w", wait=TIMEOUT_S)
            assert claim is not None and claim.params == {"text": "hi"}
            await other.commands.complete(claim.call, "hi", fence=claim.fence)
            assert (await waiting).result == "hi"
        [request] = await one.approvals(session="asking")
        await other.approve(request.id, by="Ada")
        assert await one.approvals(session="asking") == []
        await one.log.append("work", [Draft(ev.MessageUser(text="more"))])
        # The numbers of the new server reach those of the old one.
        for _ in range(2):
            new_server.execute(SPEND_TRANSACTIONS, database=database_name(copy))
        waiting = asyncio.create_task(one.commands.submit("echo", queue="w", session="queue", wait=TIMEOUT_S))
        async with asyncio.timeout(TIMEOUT_S):
            claim = await other.commands.claim("w", wait=TIMEOUT_S)
            assert claim is not None
            await other.commands.complete(claim.call, "again", fence=claim.fence)
            assert (await waiting).result == "again"
        assert await find_faults(other) == []


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    """A server that archives its log."""
    settings = {"archive_mode": "on", "archive_command": "cp %p ../archive/%f", "wal_level": "replica"}
    with PostgresServer(settings=settings) as server:
        archive = server.folder / "archive"
        archive.mkdir()
        archive.chmod(0o777)
        yield server


async def until(server: PostgresServer, condition: str, database: str = "") -> None:
    """Wait until a query returns true."""
    async with asyncio.timeout(TIMEOUT_S):
        while server.execute(condition, database=database) != [(True,)]:
            await asyncio.sleep(0.01)


async def test_a_base_backup_and_the_archived_log_have_every_event(primary: PostgresServer) -> None:
    """OPS3: a backup that was taken during writes, and the log after it, restore the ledger as it was last."""
    url = primary.create_database()
    settings = {"restore_command": f"cp {primary.folder}/archive/%f %p"}
    backup = PostgresServer(settings=settings, origin=primary)
    try:
        async with await callslip.open(url) as ledger:
            await fill(ledger)
            is_saved = asyncio.Event()

            async def write() -> None:
                while not is_saved.is_set():
                    await ledger.log.append("work", [ev.MessageUser(text="during the backup")])

            writing = asyncio.create_task(write())
            await asyncio.to_thread(backup.create)
            is_saved.set()
            await writing
            await ledger.log.append("work", [ev.MessageUser(text="after the backup")])
            stored = await read_all(ledger)
            ((file,),) = primary.execute("SELECT pg_walfile_name(pg_switch_wal())")
            await until(primary, f"SELECT last_archived_wal >= '{file}' FROM pg_stat_archiver")
        backup.start()
        await until(backup, "SELECT NOT pg_is_in_recovery()")
        async with await callslip.open(backup.url(database_name(url))) as restored:
            assert await read_all(restored) == stored
            assert await find_faults(restored) == []
            await restored.log.append("work", [ev.MessageUser(text="on the restored server")])
    finally:
        backup.close()


# Replicas


async def test_a_standby_is_read_and_can_take_over(primary: PostgresServer) -> None:
    """OPS4: a standby follows its primary and refuses writes. After its promotion it is the ledger."""
    url = primary.create_database()
    with PostgresServer(origin=primary, is_standby=True) as standby:
        async with await callslip.open(url) as ledger:
            await fill(ledger)
            ((position,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
            await until(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
            copy_url = standby.url(database_name(url))
            async with await callslip.open(copy_url) as copy:
                assert await read_all(copy) == await read_all(ledger)
                with pytest.raises(callslip.ReadOnlyStoreError):
                    await copy.log.append("work", [ev.MessageUser(text="refused")])
                session = await copy.log.get_session("work")
                assert session is not None
                following = asyncio.create_task(anext(copy.follow("work", session.last_seq)))
                await ledger.log.append("work", [ev.MessageUser(text="to the primary")])
                async with asyncio.timeout(TIMEOUT_S):
                    event = await following
                assert isinstance(event, ev.MessageUser) and event.text == "to the primary"
            expected = await read_all(ledger)
        standby.execute("SELECT pg_promote()")
        async with await callslip.open(copy_url) as promoted:
            assert await read_all(promoted) == expected
            await promoted.log.append("work", [ev.MessageUser(text="to the new primary")])
            assert await find_faults(promoted) == []
