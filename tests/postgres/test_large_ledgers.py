"""A database of any size: no statement of `verify` and of retention reads more than a page, or takes long."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import DatabaseUnavailableError
from callslip.ledger import verify as verification
from callslip.ledger.verify import tables, verify
from callslip.model import events as ev
from callslip.model.events import Alias, Blob, Draft
from callslip.model.records import ApprovalRecord
from callslip.settings import Settings
from callslip.store import postgres, postgres_maintenance
from callslip.store.postgres import PostgresStore
from callslip.store.postgres_database import Database
from callslip.store.postgres_rows import approval_body
from callslip.store.protocol import Store
from tests.support import engines
from tests.support.postgres import database_name

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
SESSIONS = 1500
PAGE = 20
MAX_ROWS_PER_PAGED_ROW = 4
"""How many rows of tables a statement may read for each row of its page."""
FILL = f"""
INSERT INTO sessions SELECT n, 's' || n, 1, 3, 0, n, n, '', 0, false, '' FROM generate_series(1, {SESSIONS}) n;
INSERT INTO events SELECT n, seq, '' FROM generate_series(1, {SESSIONS}) n, generate_series(1, 3) seq;
INSERT INTO keys SELECT n, 'key', '', 1 FROM generate_series(1, {SESSIONS}) n;
INSERT INTO aliases SELECT n, 'x' || n, 'a', 'c' || n FROM generate_series(1, {SESSIONS}) n;
INSERT INTO calls SELECT 'c' || n, n, 1, CASE WHEN n % 2 = 0 THEN 'queued' ELSE 'completed' END, '', '', '', 0, n, 0, 0,
  '', 0, CASE WHEN n % 3 = 0 THEN '' ELSE 'client' || n END, pg_current_xact_id(), 1, ''
  FROM generate_series(1, {SESSIONS}) n;
INSERT INTO queues SELECT client, CASE state WHEN 'queued' THEN 1 ELSE 0 END FROM calls WHERE client <> '';
INSERT INTO approvals SELECT 'a' || n, n, 'c' || n, 1, 'granted', 0, n, '' FROM generate_series(1, {SESSIONS}) n;
INSERT INTO blobs SELECT 'hash' || n, 1, '', true, 1 FROM generate_series(1, {SESSIONS}) n;
INSERT INTO blob_uses SELECT n, seq, 'hash' || n FROM generate_series(1, {SESSIONS}) n, generate_series(1, 3) seq;
ALTER SEQUENCE session_ids RESTART {SESSIONS + 1};
ANALYZE
"""


@pytest.fixture
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


class Statement(NamedTuple):
    """A query, and how many rows of tables it has read."""

    sql: str
    rows: int


@pytest.fixture
async def store(db: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """A store of many sessions, of which a check reads few at a time."""
    for statement in FILL.split(";"):
        engines.change_rows(db, statement)
    monkeypatch.setattr(postgres_maintenance, "CHECK_ROWS", PAGE)
    monkeypatch.setattr(postgres, "PAGE_ROWS", PAGE)
    opened = await PostgresStore.open(db, Settings())
    yield opened
    await opened.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    """Return a list that receives every query of stores that only reads."""
    found: list[Statement] = []
    fetch = Database.fetch

    async def record(self: Database, sql: str, *values: Any) -> Any:
        if not sql.startswith("SET"):
            ((plan,),) = await fetch(self, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *values)
            found.append(Statement(sql, count_rows(json.loads(plan)[0]["Plan"])))
        return await fetch(self, sql, *values)

    monkeypatch.setattr(Database, "fetch", record)
    return found


def count_rows(plan: dict[str, Any]) -> int:
    """Return how many rows of tables a plan has read, also those that it did not use."""
    count = sum(map(count_rows, plan.get("Plans", ())))
    if "Relation Name" in plan:
        unused = sum(plan.get(f"Rows Removed by {step}", 0) for step in ("Filter", "Index Recheck"))
        count += round((plan["Actual Rows"] + unused) * plan["Actual Loops"])
    return count


async def test_a_round_of_the_reaper_reads_only_what_is_due(
    store: PostgresStore, statements: list[Statement], db: str
) -> None:
    """Not the calls of living owners, nor those whose leases and deadlines are in the future."""
    engines.change_rows(db, f"UPDATE calls SET state = 'running', owner = 'alive', lease = {2**60}, deadline = {2**60}")
    engines.change_rows(db, "ANALYZE calls")
    assert [owner.id for owner in await store.open_owners()] == ["alive"]
    assert await store.calls_due(10) == []
    assert len(statements) == 2
    assert max(statement.rows for statement in statements) <= PAGE


async def test_a_page_of_a_large_session_is_read_in_order(
    store: PostgresStore, statements: list[Statement], db: str
) -> None:
    """Also beside many small sessions, by which the server estimates its size."""
    engines.change_rows(db, "INSERT INTO events SELECT 1, seq, '' FROM generate_series(4, 20000) seq")
    engines.change_rows(db, "ANALYZE events")
    assert len(await store.events("s1", 0, PAGE)) == PAGE
    assert len(await store.events("s1", 0, PAGE, 10**6)) == PAGE
    assert max(statement.rows for statement in statements) <= MAX_ROWS_PER_PAGED_ROW * PAGE


async def test_the_requests_answered_last_are_read_by_index(
    store: PostgresStore, statements: list[Statement], db: str
) -> None:
    """The inbox reads a few of them, however many there are."""
    record = approval_body(ApprovalRecord("id", "s", "call", 1, "granted")).decode()
    engines.change_rows(db, f"UPDATE approvals SET state = 'granted', record = '{record}'")
    engines.change_rows(db, "ANALYZE approvals")
    assert len(await store.answered_approvals(limit=PAGE)) == PAGE
    assert max(statement.rows for statement in statements) <= MAX_ROWS_PER_PAGED_ROW * PAGE


async def test_a_check_reads_pages_of_the_tables(store: PostgresStore, statements: list[Statement]) -> None:
    """Each statement reads a few rows for each session, queue or blob of its page, however many there are."""
    assert await store.check() == []
    checks = list(statements)
    assert len(checks) > 6 * SESSIONS / PAGE
    assert max(statement.rows for statement in checks) <= MAX_ROWS_PER_PAGED_ROW * PAGE


async def test_a_check_finds_faults_on_every_page(store: PostgresStore, db: str) -> None:
    """In the first row, in the last one, and between them; up to a number of each kind."""
    damage = (
        "DELETE FROM events WHERE seq = 3 AND session IN (1, 700, 1500)",
        "UPDATE queues SET waiting = 7 WHERE client IN ('client1', 'client700', 'client998')",
        "UPDATE calls SET client = 'uncounted' WHERE id = 'c10'",
        "DELETE FROM blobs WHERE hash IN ('hash1', 'hash999')",
        "UPDATE blobs SET whole = false WHERE hash = 'hash70'",
        "UPDATE keys SET session = -5 WHERE session = 1",
        "UPDATE approvals SET session = 9999 WHERE session = 1500",
    )
    for statement in damage:
        assert engines.change_rows(db, statement)
    problems = await store.check()
    assert problems == [
        *(f"session 's{n}': has the events 1 to 2, but must have 1 to 3" for n in (1, 700, 1500)),
        "queue 'client1': has 0 pending commands, but counts 7",
        "queue 'client10': has 0 pending commands, but counts 1",
        "queue 'client700': has 1 pending commands, but counts 7",
        "queue 'client998': has 1 pending commands, but counts 7",
        "queue 'uncounted': has 1 pending commands, but counts 0",
        *(f"blob hash{n}: an event uses it, but it is not stored" for n in (1, 70, 999)),
        "keys: has rows of session number -5, which does not exist",
        "approvals: has rows of session number 9999, which does not exist",
    ]
    engines.change_rows(db, "DELETE FROM events WHERE seq = 3")
    wrong = [problem for problem in await store.check() if problem.startswith("session")]
    assert len(wrong) == postgres_maintenance.MAX_PROBLEMS


async def test_a_session_is_verified_in_pages(
    store: PostgresStore, statements: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement reads a few rows for each one of its page, however many the session has, or others have."""
    monkeypatch.setattr(postgres_maintenance, "PAGE_ROWS", PAGE)
    monkeypatch.setattr(postgres_maintenance, "COUNTED_EVENTS", PAGE)
    for module in (verification, tables):
        monkeypatch.setattr(module, "PAGE_ROWS", PAGE)
    async with await callslip.open(store.url, Settings(inline_limit=1000)) as ledger:
        for number in range(100):
            aliases = (Alias("a", f"x{number}"),)
            ended = ev.CallCompleted(aliases=aliases, output="x" * 2000)
            drafts = [Draft(ev.CallProposed(aliases=aliases, tool_name="t"), key=f"key {number}"), Draft(ended)]
            await ledger.log.append("real", drafts)
        await ledger.log.project("real")
        before = len(statements)
        assert await verify(ledger.log, "real") == []
    checks = statements[before:]
    assert len(checks) > 200
    assert max(statement.rows for statement in checks) <= MAX_ROWS_PER_PAGED_ROW * PAGE


async def test_the_rows_of_a_session_are_counted_in_parts(
    db: str, statements: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement counts those of a part of the log; rows before and after the log are counted, too."""
    monkeypatch.setattr(postgres_maintenance, "COUNTED_EVENTS", 20)
    async with await callslip.open(db, Settings(inline_limit=1000)) as ledger:
        for number in range(40):
            events = [ev.CallProposed(call="new:1", tool_name="t"), ev.CallCompleted(call="new:1", output="x" * 2000)]
            await ledger.log.append("s", events)
            await ledger.log.append("other", [ev.MessageUser(text=str(number))])
        await ledger.log.append("s", [ev.CallProposed(call="new:1", tool_name="t"), ev.ApprovalRequested(call="new:1")])
        await ledger.log.append("s", [ev.MessageDelta(text="open", chunks="delta", message_id="m")])
        await ledger.log.project("s")
        await ledger.log.append("s", [ev.MessageUser(text="x")])
        session = await ledger.find_session("s")
        engines.change_rows(db, "UPDATE sessions SET low = 30 WHERE name = 's'")
        engines.change_rows(db, "INSERT INTO entries VALUES (?, 100000, '')", session.id)
        before = len(statements)
        counts = await ledger.log.store.row_counts("s")
        assert len(statements) - before == 3
        expected = [
            engines.fetch_rows(db, f"SELECT count(*) FROM {table} WHERE session = ?", session.id)[0][0]
            for table in ("calls", "approvals", "entries", "pieces", "blob_uses")
        ]
        assert [getattr(counts, name) for name in counts.__struct_fields__] == expected
        assert all(expected) and expected[0] == 41
        parts = [statement.rows for statement in statements[before:]]
        assert max(parts) < sum(parts) * 2 / 3
        assert await ledger.log.store.row_counts("missing") == type(counts)(0, 0, 0, 0, 0)


# Connections


async def write_sessions(ledger: LocalLedger, count: int) -> None:
    for number in range(count):
        await ledger.log.append(f"s{number}", [ev.MessageUser(text=f"{number} {n}") for n in range(5)])


END_SNAPSHOTS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ? AND state = 'idle in transaction'
"""


class LostSnapshots:
    """Ends the connections of snapshots when a blob is checked, a number of times."""

    def __init__(self, url: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = count
        self._url = url
        self._find_fault = verification.find_blob_fault
        monkeypatch.setattr(verification, "RETRY_S", 0.01)
        monkeypatch.setattr(verification, "find_blob_fault", self._lose)

    async def _lose(self, store: Store, blob: Blob) -> str:
        if self.count:
            self.count -= 1
            assert engines.fetch_rows(self._url, END_SNAPSHOTS, database_name(self._url)) == [(True,)]
        return await self._find_fault(store, blob)


async def write_blob(ledger: LocalLedger) -> None:
    await ledger.log.append("s2", [ev.CallCompleted(output="x" * 5000)])


@pytest.mark.parametrize("losses", [1, 3])
async def test_a_session_is_verified_again_after_a_lost_connection(
    db: str, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """No problem is missed or reported twice, and a lost connection is no problem of a blob."""
    async with await callslip.open(db, Settings(inline_limit=1000)) as ledger:
        await write_sessions(ledger, 5)
        await write_blob(ledger)
        engines.change_rows(db, "DELETE FROM events WHERE seq = 3")
        expected = await verify(ledger.log)
        assert len(expected) == 5
        lost = LostSnapshots(db, losses, monkeypatch)
        assert await verify(ledger.log) == expected
        assert lost.count == 0


async def test_a_verification_fails_if_the_connection_is_lost_again_and_again(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time that a read tries to reach the server."""
    async with await callslip.open(db, Settings(inline_limit=1000, database_timeout=0.5)) as ledger:
        await write_blob(ledger)
        lost = LostSnapshots(db, 10**6, monkeypatch)
        with pytest.raises(DatabaseUnavailableError):
            await verify(ledger.log)
        assert lost.count < 10**6 - 1


# Retention


async def test_unused_blobs_are_found_in_pages(store: PostgresStore, db: str, statements: list[Statement]) -> None:
    """All statements together read each blob a few times, and only a page with unused ones is written."""
    unused = ("hash1", "hash500", "hash1500")
    engines.change_rows(db, "DELETE FROM blob_uses WHERE hash = ANY (?)", list(unused))
    engines.change_rows(db, "INSERT INTO blobs VALUES ('new', 1, '', true, callslip_clock())")
    with mock.patch.object(postgres, "drop_unused_blobs", wraps=postgres.drop_unused_blobs) as drop:
        await store.drop_unused_blobs()
    assert drop.call_count == len(unused)
    left = {hash for (hash,) in engines.fetch_rows(db, "SELECT hash FROM blobs")}
    assert left == {*(f"hash{n}" for n in range(1, SESSIONS + 1)), "new"} - set(unused)
    pages = [statement for statement in statements if "FROM blobs" in statement.sql]
    assert len(pages) > SESSIONS / PAGE
    assert sum(statement.rows for statement in pages) <= MAX_ROWS_PER_PAGED_ROW * SESSIONS


async def test_a_blob_that_is_stored_again_is_not_deleted(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finds it stored after retention has found it unused, and its event is still to come."""
    drop = postgres.drop_unused_blobs
    async with await callslip.open(db) as ledger, await callslip.open(db) as other:
        kept, dropped = [await ledger.log.store.put_blob(data, "") for data in (b"kept", b"dropped")]
        engines.change_rows(db, "UPDATE blobs SET created_at = 1000")

        async def drop_late(*values: Any) -> None:
            assert await other.log.store.put_blob(b"kept", "") == kept
            await drop(*values)

        monkeypatch.setattr(postgres, "drop_unused_blobs", drop_late)
        await ledger.prune(3600)
        assert await ledger.log.store.blob(kept) == (b"kept", "")
        assert await ledger.log.store.blob(dropped) is None


async def test_retention_looks_for_unused_blobs_once(db: str) -> None:
    """Not for each session, while the session is locked."""
    async with await callslip.open(db) as ledger:
        for number in range(3):
            await ledger.log.append(f"s{number}", [Draft(ev.MessageUser(text="old", at=1000))])
        drop = PostgresStore.drop_unused_blobs
        with mock.patch.object(PostgresStore, "drop_unused_blobs", autospec=True, side_effect=drop) as dropping:
            assert await ledger.prune(3600) == 3
        assert dropping.call_count == 1
