"""How a process reads the commands that others have changed: each row once, and after a failover all that are open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import callslip
from callslip.settings import Settings
from tests.support import engines
from tests.support.fault_proxy import FaultProxy
from tests.support.postgres import PostgresServer, connect, database_name
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
ROUNDS = 10
ROUND_COMMANDS = 5
SPENT_TRANSACTIONS = 200
SPEND_TRANSACTIONS = f"""
DO $$ BEGIN FOR n IN 1..{SPENT_TRANSACTIONS} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
"""


@pytest.fixture(scope="session")
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("limit", [2, 1000])
async def test_an_open_transaction_does_not_let_commands_be_read_again(db: str, limit: int) -> None:
    """PGS9: however long a transaction is open, a read returns what is new, and last what that transaction wrote."""
    transaction = await connect(db)
    async with await callslip.open(db) as ledger:
        store = ledger.log.store
        first = await ledger.commands.submit("first")
        await transaction.execute("BEGIN")
        update = "UPDATE calls SET change = pg_current_xact_id() WHERE client_call_id = $1"
        assert await transaction.execute(update, first.correlation_id) == "UPDATE 1"

        async def read_changes() -> list[str]:
            nonlocal cursor
            ids: list[str] = []
            is_last = False
            while not is_last:
                page, cursor = await store.commands_changed(cursor, limit)
                ids += [record.client_call_id for record in page]
                is_last = len(page) < limit
            return ids

        try:
            cursor = await store.change_cursor()
            async with asyncio.timeout(TIMEOUT_S):
                while await read_changes():  # Until what was written so far is flushed.
                    await asyncio.sleep(0.01)
            count = 0
            for _ in range(ROUNDS):
                written = {(await ledger.commands.submit("t")).correlation_id for _ in range(ROUND_COMMANDS)}
                found = await read_changes()
                assert written <= set(found) and first.correlation_id not in found
                count += len(found)
            assert count <= 2 * ROUNDS * ROUND_COMMANDS  # What was not flushed at once is read a second time.
            await transaction.execute("COMMIT")
            assert first.correlation_id in await read_changes()
        finally:
            await transaction.close()


async def test_a_cursor_of_an_older_version_is_accepted(db: str) -> None:
    """PGS9: it returns the same commands, in pages."""
    async with await callslip.open(db) as ledger:
        written = {(await ledger.commands.submit("t")).correlation_id for _ in range(3)}
        store = ledger.log.store
        assert {record.client_call_id for record in (await store.commands_changed("1", 10))[0]} == written
        page, cursor = await store.commands_changed("1/2/0", 2)
        assert len(page) == 2
        # An older version had the place of the last row after the first transaction of the next round.
        head, _, change, call = cursor.split(":", 3)
        last, _ = await store.commands_changed(f"{change}:{change}:{call}", 2)
        assert head and {record.client_call_id for record in [*page, *last]} == written


async def test_after_a_failover_all_open_commands_are_read() -> None:
    """PGS10: the new primary has lost transactions, and uses their numbers for other commands, then for many more."""
    with PostgresServer() as primary, FaultProxy(primary.port) as proxy:
        url = primary.create_database(template="template0")
        async with await callslip.open(url) as ledger:
            kept = await ledger.commands.submit("kept", queue="q")
        with PostgresServer(origin=primary, is_standby=True) as standby:
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            await until(lambda: standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])
            through_proxy = url.replace(f":{primary.port}/", f":{proxy.port}/")
            async with await callslip.open(through_proxy, Settings(reaper_interval=1e6)) as ledger:
                monitor = ledger.commands._monitor
                primary.execute(SPEND_TRANSACTIONS, database=database_name(url))
                lost = [await ledger.commands.submit("lost", queue="q") for _ in range(20)]
                waiting = asyncio.create_task(ledger.commands.get(lost[0].correlation_id, wait=TIMEOUT_S))
                await until(lambda: len(ledger.commands.tracker.pending) == 21 and not monitor._is_loading)

                standby.execute("SELECT pg_promote()")
                async with await callslip.open(standby.url(database_name(url))) as other:
                    claim = await other.commands.claim("q")
                    assert claim is not None and claim.correlation_id == kept.correlation_id
                    await other.commands.complete(claim.call, 1, fence=claim.fence)
                    new = await other.commands.submit("new", queue="q")
                for _ in range(3):
                    standby.execute(SPEND_TRANSACTIONS, database=database_name(url))
                proxy.target_port = standby.port
                proxy.cut()

                await until(lambda: len(ledger.commands.tracker.pending) == 1)
                assert list(ledger.commands.tracker.pending) == [(await ledger.commands.find(new.correlation_id)).id]
                with pytest.raises(callslip.NotFoundError):
                    async with asyncio.timeout(TIMEOUT_S):
                        await waiting
                claim = await ledger.commands.claim("q", wait=TIMEOUT_S)
                assert claim is not None and claim.correlation_id == new.correlation_id
                await ledger.commands.complete(claim.call, 2, fence=claim.fence)
                await until(lambda: not ledger.commands.tracker.pending)
