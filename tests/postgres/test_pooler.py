"""A ledger behind a pooler that gives each transaction another connection of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.events import Alias, Draft
from callslip.settings import Settings
from callslip.store.postgres import PostgresStore
from callslip.store.postgres_database import Database
from tests.store.test_store import StoreSuite
from tests.support import cli_process, engines
from tests.support.invariants import find_faults, read_events
from tests.support.pooler import Pooler
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="session")
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


@pytest.fixture
def pooler() -> Iterator[Pooler]:
    with Pooler(engines.server().port, size=3) as pooler:
        yield pooler


@pytest.fixture
def url(db: str, pooler: Pooler) -> str:
    """Return the URL of an empty ledger through the pooler."""
    return db.replace(f":{engines.server().port}/", f":{pooler.port}/")


class TestStoreBehindPooler(StoreSuite):
    """The store suite through a pooler."""

    @pytest.fixture
    def url(self, db: str, pooler: Pooler) -> str:
        return db.replace(f":{engines.server().port}/", f":{pooler.port}/")

    async def test_the_suite_runs_through_the_pooler(self, ledger: LocalLedger, pooler: Pooler) -> None:
        """A write and a read are transactions of the pooler, which gives them different connections."""
        await ledger.log.append("a", [ev.MessageUser(text="hello")])
        assert [event.seq for event in await read_events(ledger, "a")] == [1]
        assert pooler.transactions > 2
        assert max(len(link.clients) for link in pooler.links) > 1


async def test_a_pooler_is_detected(db: str, url: str) -> None:
    """Behind a pooler statements are not cached, because the next transaction has another connection."""
    async with await Database.open(url, Settings()) as pooled, await Database.open(db, Settings()) as direct:
        assert pooled.has_pooler and not direct.has_pooler
        for database, count in ((pooled, 0), (direct, 1)):
            await database.fetch(statement := "SELECT 1 + $1::int", 2)
            rows = await database.fetch("SELECT count(*) FROM pg_prepared_statements WHERE statement = $1", statement)
            assert rows[0][0] == count


def test_processes_do_not_use_the_statements_of_each_other(url: str, pooler: Pooler) -> None:
    """Two processes name their statements equally, and the second gets the connection that the first one had."""
    pooler.size = 1
    for _ in range(2):
        result = cli_process.run("ls", env={"CALLSLIP_DB": url})
        assert result.returncode == 0, result.stderr
    assert len(pooler.links) == 1 and pooler.clients > 2


async def test_a_follower_sees_writes_without_notifications(url: str) -> None:
    """A pooler passes no notification on, so what other processes write is found by polling."""
    async with await callslip.open(url) as reader, await callslip.open(url) as writer:
        seen: list[int] = []

        async def follow() -> None:
            async for batch in reader.log.batches("a", 0):
                seen.extend(stored.event.seq for stored in batch)
                if len(seen) == 3:
                    return

        follower = asyncio.create_task(follow())
        for text in "xyz":
            await writer.log.append("a", [ev.MessageUser(text=text)])
        async with asyncio.timeout(TIMEOUT_S):
            await follower
        assert seen == [1, 2, 3]
        store = reader.log.store
        assert isinstance(store, PostgresStore) and not store._changes.is_listening


async def test_listening_is_given_up_behind_a_pooler(url: str, pooler: Pooler) -> None:
    """Each further try would leave another connection of the pooler that listens."""
    async with await callslip.open(url) as ledger:
        store = ledger.log.store
        assert isinstance(store, PostgresStore)
        async with asyncio.timeout(TIMEOUT_S):
            await store.wait_changes()
            _, listening = store._changes._tasks
            await listening  # It ends by itself.
        await ledger.log.append("a", [ev.MessageUser(text="still works")])
        assert len(pooler.links) <= pooler.size


async def test_commands_are_claimed_by_another_process_behind_a_pooler(url: str) -> None:
    """A worker that waits in another process gets the command, and its result arrives."""
    async with await callslip.open(url) as one, await callslip.open(url) as other:
        claiming = asyncio.create_task(other.commands.claim("w", wait=TIMEOUT_S))
        waiting = asyncio.create_task(one.commands.submit("echo", {"text": "hi"}, queue="w", wait=TIMEOUT_S))
        async with asyncio.timeout(TIMEOUT_S):
            claim = await claiming
            assert claim is not None and claim.params == {"text": "hi"}
            await other.commands.complete(claim.call, "hi", fence=claim.fence)
            assert (await waiting).result == "hi"


def test_commands_that_look_at_a_server_work_behind_a_pooler(url: str) -> None:
    """They connect by themselves, and so have to leave out the settings that a pooler refuses."""
    migrated = cli_process.run("admin", "migrate", env={"CALLSLIP_DB": url})
    assert migrated.returncode == 0, migrated.stderr
    report = cli_process.run("doctor", env={"CALLSLIP_DB": url})
    assert "read and write" in report.stdout, report.stdout + report.stderr


async def test_a_parameter_of_the_session_is_refused_by_the_pooler(url: str) -> None:
    """The error names the parameter. Set it for the role or the database instead."""
    with pytest.raises(callslip.StoreError, match="unsupported startup parameter: search_path"):
        await callslip.open(f"{url}?search_path=tenant")


async def test_calls_written_through_the_pooler_and_directly_are_verified(db: str, url: str) -> None:
    """Writers on both ways take turns on one session, and the ledger has no faults."""
    async with await callslip.open(url) as pooled, await callslip.open(db) as direct:
        for number in range(5):
            for ledger in (pooled, direct):
                aliases = (Alias("t", f"{number}"),)
                await ledger.log.append("a", [Draft(ev.CallProposed(tool_name="t", aliases=aliases))])
        assert [event.seq for event in await read_events(direct, "a")] == list(range(1, 11))
        assert not await find_faults(direct)
