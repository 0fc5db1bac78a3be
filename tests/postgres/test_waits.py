"""No wait for the database is without a deadline, and a connection that is lost at any step is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest

from callslip.settings import Settings
from callslip.store.postgres_database import Database
from tests.support import engines
from tests.support.fault_proxy import FaultProxy
from tests.support.postgres import database_name

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
SETTINGS = Settings(database_timeout=20.0)
TIMEOUT_S = 60.0


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
