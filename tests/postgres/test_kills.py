"""Kill writers and PostgreSQL at seeded moments: nothing that was acknowledged is lost, and no run hangs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator

import pytest

import callslip
from tests.support import kill_run
from tests.support.engines import create_schema
from tests.support.kill_run import KillRun
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]
SEED = os.environ.get("CALLSLIP_SEED", "")
"""Set it to a seed that was printed to repeat that run."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Start a server that keeps what it acknowledged when it is killed."""
    # Writes that nothing waits for stay in memory for long, so that a kill loses them.
    with PostgresServer(durable=True, settings={"wal_writer_delay": "10s"}) as server:
        server.prepare_template(create_schema)
        yield server


@pytest.mark.anyio
async def test_a_command_is_found_after_a_crash_that_reuses_transaction_numbers(server: PostgresServer) -> None:
    """Transactions that were not flushed are lost, and new ones get their numbers, which a cursor may have passed."""
    url = server.create_database()
    async with await callslip.open(url) as ledger:
        store = ledger.log.store
        await ledger.commands.submit("first", queue="q")
        _, cursor = await store.commands_changed(await store.change_cursor(), 100)
        for number in range(20):
            await store.put_executor("q", number)
        _, cursor = await store.commands_changed(cursor, 100)
        late_cursor = await store.change_cursor()
        server.kill9()
        server.start()
        async with await callslip.open(url) as other:
            second = await other.commands.submit("second", queue="q")
        for start in (cursor, late_cursor):
            found, _ = await store.commands_changed(start, 100)
            assert second.correlation_id in [record.client_call_id for record in found]
        # Once it is durable, the cursor is behind it.
        async with asyncio.timeout(60):
            while found:
                found, cursor = await store.commands_changed(cursor, 100)
                await asyncio.sleep(0.01)
    server.drop_database(url)


def test_runs_with_kills_lose_nothing_and_end(
    server: PostgresServer, scale: int, record_property: Callable[[str, object], None]
) -> None:
    """Two processes write while both and the server are killed. Every run ends before its deadline."""
    first = int(SEED or (time.time_ns() if scale > 1 else 0))
    reports: list[kill_run.Report] = []
    for seed in range(first, first + (2 if scale == 1 else 50)):
        run = KillRun(server, seed)
        try:
            report = run.run()
        except BaseException:
            print(f"CALLSLIP_SEED={seed}: {', '.join(run.happened)}")
            raise
        assert not report.faults, f"CALLSLIP_SEED={seed}: {', '.join(run.happened)}\n{report}"
        reports.append(report)
    record_property("counts", f"{len(reports)} runs from CALLSLIP_SEED={first}, {kill_run.total(reports)}")
