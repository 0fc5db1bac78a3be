"""What `docs/guides/postgres.md` says about operations: settings, roles, backups, replicas and monitoring."""

from __future__ import annotations

import asyncio

import pytest

import callslip
from callslip.settings import Settings
from callslip.store.postgres_database import Database
from tests.support import engines
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


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
