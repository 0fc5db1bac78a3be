"""`verify` derives all data from the log again: it reports nothing for an undamaged ledger, and finds every damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import NotFoundError
from callslip.ledger import checkpoint
from callslip.ledger.verify import Problem, verify
from callslip.model import events as ev
from callslip.model.events import Alias, Draft
from callslip.rules import fold
from callslip.rules.projection import TURN_NAMESPACE
from callslip.settings import Settings

pytestmark = pytest.mark.anyio

SETTINGS = Settings(
    synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=3600, text_hold=3600, inline_limit=1000
)
ONE, TWO, THREE = ((Alias("acp", name),) for name in ("1", "2", "3"))
SCRIPT: list[ev.Event | Draft] = [
    ev.TurnStarted(),
    ev.MessageUser(text="look", message_id="m0"),
    Draft(ev.CallProposed(aliases=ONE, tool_name="ls", input={"path": "."}, iteration=0), key="k1"),
    ev.CallStarted(aliases=ONE),
    ev.CallProgress(aliases=ONE, text="one "),
    Draft(ev.CallCompleted(aliases=ONE, output="x" * 5000), key="k2"),
    ev.CallProgress(aliases=ONE, text="too late"),
    ev.ApprovalRequested(aliases=TWO, tool_name="rm", input={"path": "/"}),
    ev.ApprovalRefused(aliases=TWO, option="no", by="ann", reason="never"),
    ev.SessionInfo(title="tidying"),
    ev.ApprovalRequested(aliases=THREE, tool_name="mv"),
    ev.CallInputDelta(aliases=(Alias("acp", "4"),), text='{"a'),
    ev.MessageDelta(text="so far", chunks="delta", message_id="m1"),
    ev.MessageDelta(text=" so good", chunks="delta", message_id="m1"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def ledger(file: Path) -> AsyncIterator[LocalLedger]:
    """A ledger with one session that has rows in every table."""
    async with await callslip.open(f"sqlite:///{file}", SETTINGS) as instance:
        await instance.log.append("s", SCRIPT)
        await instance.log.project("s")
        yield instance


def damage(file: Path, sql: str, *values: Any) -> None:
    """Change the database file with a separate connection."""
    connection = apsw.Connection(str(file))
    connection.execute(sql, values)
    assert connection.changes() or sql.startswith("PRAGMA"), "nothing was damaged"
    connection.close()


def problem_kinds(problems: list[Problem]) -> set[str]:
    return {problem.what for problem in problems}


async def test_an_undamaged_ledger_has_no_problem(ledger: LocalLedger) -> None:
    """With a checkpoint at the head, before it, and without one."""
    assert await verify(ledger.log) == await verify(ledger.log, "s") == []
    await ledger.log.append(
        "s", [ev.CallCompleted(aliases=THREE), ev.MessageDelta(text="more", chunks="delta"), ev.TurnEnded()]
    )
    await ledger.log.append("new", [ev.CallStarted(), ev.MessageDelta(text="hello")])
    assert await verify(ledger.log) == []


async def test_an_unknown_session_is_not_found(ledger: LocalLedger) -> None:
    """It is reported neither as undamaged nor as damaged."""
    with pytest.raises(NotFoundError):
        await verify(ledger.log, "nobody")


# Every kind of damage: the SQL statement that causes it, and the kind of problem that must be found.
DAMAGE_CASES: dict[str, tuple[str, str]] = {
    # The log
    "an event is missing": ("DELETE FROM events WHERE seq = 5", "log"),
    "the first event is missing": ("DELETE FROM events WHERE seq = 1", "log"),
    "the last event is missing": ("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)", "log"),
    "an event is no JSON": ("UPDATE events SET body = CAST('{' AS BLOB) WHERE seq = 5", "log"),
    "an event is no UTF-8": ("UPDATE events SET body = x'7bff' WHERE seq = 5", "log"),
    "an event has another number": (
        "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), '\"seq\":5', '\"seq\":6') AS BLOB) WHERE seq = 5",
        "log",
    ),
    "an event has another text": (
        "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'one ', 'two ') AS BLOB) WHERE seq = 5",
        "entry",
    ),
    "an event lost its verdict": (
        "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), '\"verdict\":\"late\",', '') AS BLOB) WHERE seq = 7",
        "call",
    ),
    # The session
    "the head is too low": ("UPDATE sessions SET head = head - 1", "session"),
    "the head is too high": ("UPDATE sessions SET head = head + 1", "log"),
    "the turn is another": ("UPDATE sessions SET turn = 't9'", "session"),
    "the number of turns is another": ("UPDATE sessions SET turns = 7", "session"),
    "the title is another": ("UPDATE sessions SET title = 'x'", "session"),
    "the number of calls is another": ("UPDATE sessions SET calls = 9", "session"),
    "the newest message is another": ("UPDATE sessions SET message = 'm9'", "session"),
    "the first position is too high": ("UPDATE sessions SET low = 2", "base"),
    # Calls
    "a call has another state": ("UPDATE calls SET state = 'failed' WHERE shown = '1'", "call"),
    "an open call has another state": ("UPDATE calls SET state = 'running' WHERE shown = '3'", "call"),
    "a call is missing": ("DELETE FROM calls WHERE shown = '1'", "call"),
    "an open call is missing": ("DELETE FROM calls WHERE shown = '3'", "call"),
    "a call ended at another event": ("UPDATE calls SET \"end\" = 5 WHERE shown = '1'", "call"),
    "a call has other arguments": ("UPDATE calls SET input_mark = 'x' WHERE shown = '2'", "call"),
    "a call may run twice": ("UPDATE calls SET idempotent = 1 WHERE shown = '1'", "call"),
    "a call too many": (
        "INSERT INTO calls SELECT 'exec_ffffffffffff', session, entry, state, shown, tool, title, kind, source, turn,"
        ' iteration, "index", scope, idempotent, attempt, worker, approval, opening, ending, input_mark, deadline,'
        ' created_at, started_at, ended_at, "end", reason, owner, lease, client, timeout, change'
        " FROM calls WHERE shown = '1'",
        "call",
    ),
    # Approvals
    "an answer is another": ("UPDATE approvals SET state = 'granted' WHERE state = 'refused'", "approval"),
    "a request was never answered": ("UPDATE approvals SET state = 'refused' WHERE state = 'pending'", "approval"),
    "an approval is missing": ("DELETE FROM approvals WHERE state = 'refused'", "approval"),
    "the options are others": (
        "UPDATE approvals SET options = CAST('[1]' AS BLOB) WHERE state = 'pending'",
        "approval",
    ),
    "an approval too many": (
        "INSERT INTO approvals SELECT 'appr_x', session, call, entry, state, input_mark, attempt, description, options,"
        " expires_at, created_at, answered_at, option, by, reason FROM approvals WHERE state = 'refused'",
        "approval",
    ),
    # Aliases and keys
    "an alias leads elsewhere": ("UPDATE aliases SET call = 'exec_0' WHERE id = '1'", "alias"),
    "an alias is missing": ("DELETE FROM aliases WHERE id = '2'", "alias"),
    "the alias of a message is missing": ("DELETE FROM aliases WHERE id = 'm1'", "alias"),
    "an alias too many": ("INSERT INTO aliases SELECT session, 'x', ns, call FROM aliases WHERE id = '1'", "alias"),
    "a key leads elsewhere": ("UPDATE keys SET seq = 4 WHERE key = 'k1'", "key"),
    "a key leads nowhere": ("UPDATE keys SET seq = 400 WHERE key = 'k1'", "key"),
    "a key is missing": ("DELETE FROM keys WHERE key = 'k2'", "key"),
    "a key too many": ("INSERT INTO keys SELECT session, 'k9', mark, seq FROM keys WHERE key = 'k1'", "key"),
    # Entries
    "an entry has another text": (
        "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), 'look', 'leave') AS BLOB) WHERE id = 2",
        "entry",
    ),
    "an entry is missing": ("DELETE FROM entries WHERE id = 2", "entry"),
    "an entry is no JSON": ("UPDATE entries SET body = CAST('[' AS BLOB) WHERE id = 2", "entry"),
    "an entry is of another type": (
        'UPDATE entries SET body = CAST(\'{"type":"thought","id":2,"content":"look"}\' AS BLOB) WHERE id = 2',
        "entry",
    ),
    "an entry too many": ("INSERT INTO entries SELECT session, 1, body FROM entries WHERE id = 2", "entry"),
    "a late note is lost": (
        "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), ',\"late\":7', '') AS BLOB) WHERE id = 3",
        "entry",
    ),
    # The checkpoint
    "the checkpoint is too high": ("UPDATE checkpoints SET seq = 400", "checkpoint"),
    "the checkpoint is too low": ("UPDATE checkpoints SET seq = 4", "checkpoint"),
    "the checkpoint's state is another": (
        "UPDATE checkpoints SET state = CAST(replace(CAST(state AS TEXT), 'tidying', 'other') AS BLOB)",
        "checkpoint",
    ),
    "the checkpoint's state is no JSON": ("UPDATE checkpoints SET state = x'00'", "checkpoint"),
    "the checkpoint is missing": ("DELETE FROM checkpoints", "checkpoint"),
    "a piece has another text": ("UPDATE pieces SET text = 'x' WHERE field = 'content'", "checkpoint"),
    "a piece is missing": ("DELETE FROM pieces WHERE field = 'input_text'", "checkpoint"),
    "a piece too many": ("INSERT INTO pieces SELECT session, 2, field, 0, text FROM pieces LIMIT 1", "checkpoint"),
    # Blobs
    "a blob is missing": ("DELETE FROM blobs", "blob"),
    "the use of a blob is missing": ("DELETE FROM blob_uses", "blob"),
    "the use of a blob has another hash": ("UPDATE blob_uses SET hash = 'x'", "blob"),
    "a use of a blob too many": (
        "INSERT INTO blob_uses SELECT session, 1, hash FROM blob_uses",
        "blob",
    ),
    "a blob is incomplete": ("UPDATE blobs SET whole = 0", "blob"),
    "a blob is shorter": ("UPDATE blob_pieces SET data = substr(data, 2)", "blob"),
    "a blob has another content": ("UPDATE blob_pieces SET data = CAST(replace(data, 'x', 'y') AS BLOB)", "blob"),
    "a piece of a blob is missing": ("DELETE FROM blob_pieces", "blob"),
}


@pytest.mark.parametrize("name", DAMAGE_CASES)
async def test_every_kind_of_damage_is_found(ledger: LocalLedger, file: Path, name: str) -> None:
    """In a ledger that is open and in use."""
    sql, kind = DAMAGE_CASES[name]
    damage(file, sql)
    problems = await verify(ledger.log, "s")
    assert kind in problem_kinds(problems), problems
    assert all(problem.session == "s" and problem.detail for problem in problems)


# Columns that cannot be derived from the log: owners and leases, times of rows, marks of foreign messages.
NOT_DERIVED = {
    "sessions": {"id", "name", "carry", "created_at", "updated_at", "turn_owner", "release_at"},
    "keys": {"mark"},
    "calls": {"owner", "lease", "change"},
    "pieces": {"at"},
    "checkpoints": {"version"},
    "blobs": {"size", "media", "created_at"},
}
TABLES = ["sessions", "events", "keys", "calls", "aliases", "approvals", "entries", "pieces", "checkpoints", "blobs"]


def derived_cells(connection: apsw.Connection) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the table, the column and the row of every stored value that can be derived from the log."""
    cells_found: list[tuple[str, str, dict[str, Any]]] = []
    for table in [*TABLES, "blob_pieces", "blob_uses"]:
        cursor = connection.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.get_description()]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            cells_found += [(table, name, row) for name in names if name not in NOT_DERIVED.get(table, ())]
    return cells_found


def change_value(value: Any) -> Any:
    """Return another value of the same type; JSON loses its last byte."""
    if isinstance(value, bytes):
        return value[:-1]
    return value + 1000 if isinstance(value, int) else f"{value}x"


async def test_every_changed_value_is_found(ledger: LocalLedger, file: Path) -> None:
    """Each stored value in every table, including the session of a row."""
    connection = apsw.Connection(str(file))
    undetected: list[str] = []
    for table, column, row in derived_cells(connection):
        if row.get("ns") == TURN_NAMESPACE and column == "session":
            continue  # Aliases of turns may be missing: the first version stores none (S1.7).
        condition = " AND ".join(f'"{name}" IS ?' for name in row)
        changed = row | {column: change_value(row[column])}
        sql = f'UPDATE {table} SET "{column}" = ? WHERE {condition}'
        connection.execute(sql, (changed[column], *row.values()))
        assert connection.changes() == 1
        if not await verify(ledger.log, "s"):
            undetected.append(f"{table}.{column} of {row}")
        connection.execute(sql, (row[column], *changed.values()))
    connection.close()
    assert not undetected
    assert await verify(ledger.log) == []


async def test_a_damaged_file_is_reported_once(ledger: LocalLedger, file: Path) -> None:
    """A problem that SQLite finds is reported for the file and not for a session."""
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'entry)', 'entry, state)') WHERE name = 'calls_by_session'"
    )
    connection.close()
    async with await callslip.open(f"sqlite:///{file}", SETTINGS) as reopened:
        problems = await verify(reopened.log)
    assert problems and {(problem.session, problem.what) for problem in problems} == {("", "file")}


async def test_two_endings_of_one_call_are_found(ledger: LocalLedger, file: Path) -> None:
    """C4: at most one event that ends a call was applied."""
    await ledger.log.append("s", [ev.CallFailed(aliases=ONE, error="again")])
    sql = (
        "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), '\"verdict\":\"late\",', '') AS BLOB) WHERE seq = ?"
    )
    row = await ledger.log.store.session("s")
    assert row is not None
    damage(file, sql, row.last_seq)
    details = [problem.detail for problem in await verify(ledger.log, "s") if problem.what == "call"]
    assert any(f"event {row.last_seq} was applied" in detail for detail in details)


@pytest.mark.parametrize(
    ("events", "verdict", "expected"),
    [
        ([ev.CallStarted(aliases=THREE)], "illegal", "call.started is impossible while"),
        ([ev.CallRequeued(aliases=THREE)], "illegal", "call.requeued is impossible while"),
        ([ev.CallCancelled(aliases=(Alias("acp", "unknown"),))], "orphan", "call.cancelled is impossible while"),
    ],
    ids=["started while awaiting approval", "requeued while awaiting approval", "cancelled without a call"],
)
async def test_an_invalid_transition_of_an_open_call_is_found(
    ledger: LocalLedger, file: Path, events: list[ev.Event], verdict: str, expected: str
) -> None:
    """C4: it changes neither records nor entries, so only the transition shows that its verdict is wrong."""
    (event,) = await ledger.log.append("s", events)
    assert event.verdict == verdict and await verify(ledger.log, "s") == []
    sql = "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), ?, '') AS BLOB) WHERE seq = ?"
    damage(file, sql, f'"verdict":"{verdict}",', event.seq)
    problems = await verify(ledger.log, "s")
    assert [(problem.what, expected in problem.detail) for problem in problems] == [("call", True)]


async def test_checkpoints_of_another_version_are_ignored(ledger: LocalLedger, file: Path) -> None:
    """They are rebuilt when they are needed."""
    damage(file, "UPDATE checkpoints SET version = version + 1, state = x'00'")
    assert await verify(ledger.log) == []


async def test_a_pruned_session_is_verified_from_its_base(file: Path) -> None:
    """It has no problem, and damage is found in calls before and after the cut."""
    async with await callslip.open(f"sqlite:///{file}", SETTINGS) as ledger:
        await ledger.log.append("s", [with_time(event, number) for number, event in enumerate(SCRIPT, 1)])
        for cut in (3, 5, 8, 11, 12):
            await checkpoint.prune(ledger.log.store, "s", cut + 1)
            assert await verify(ledger.log) == [], cut
        row = await ledger.log.store.session("s")
        (call,) = await ledger.log.store.alias("3")
        assert row is not None and call.entry < row.pruned_seq < row.last_seq
        await ledger.log.append(
            "s", [ev.ApprovalGranted(aliases=THREE), ev.CallStarted(aliases=THREE), ev.CallProposed()]
        )
        await ledger.log.append(
            "s", [ev.CallCompleted(aliases=THREE, title="done"), ev.MessageDelta(text="!", chunks="delta")]
        )
        assert await verify(ledger.log) == []
        await ledger.log.project("s")
        assert await verify(ledger.log) == []
        for sql, kind in (
            ("UPDATE calls SET title = 'x' WHERE shown = '3'", "call"),
            ("UPDATE approvals SET state = 'refused' WHERE state = 'granted'", "approval"),
            ("UPDATE aliases SET call = 'x' WHERE id = '3'", "alias"),
            ("UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), 'done', 'x') AS BLOB)", "entry"),
            ("UPDATE bases SET state = x'00'", "base"),
            ("UPDATE bases SET seq = 5", "base"),
        ):
            damage(file, sql)
            assert kind in problem_kinds(await verify(ledger.log, "s")), sql


def with_time(event_or_draft: ev.Event | Draft, at: int) -> Draft:
    draft = event_or_draft if isinstance(event_or_draft, Draft) else Draft(event_or_draft)
    return msgspec.structs.replace(draft, event=msgspec.structs.replace(draft.event, at=at))


async def test_a_ledger_is_verified_at_one_position_during_writes(ledger: LocalLedger) -> None:
    """Events, rows and checkpoints written meanwhile are no problems."""
    running = True

    async def write_continuously() -> None:
        number = 0
        while running:
            number += 1
            alias = (Alias("acp", f"busy-{number}"),)
            await ledger.log.append(
                "s", [ev.CallStarted(aliases=alias), ev.CallCompleted(aliases=alias), ev.TurnEnded()]
            )

    writing = asyncio.create_task(write_continuously())
    results = [await verify(ledger.log) for _ in range(20)]
    running = False
    await writing
    assert results == [[]] * 20


async def test_memory_does_not_grow_with_ended_calls(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and entries are compared page by page, and ended calls are not held."""
    import callslip.ledger.verify as module

    monkeypatch.setattr(module, "PAGE_ROWS", 20)
    calls = [ev.CallCompleted(aliases=(Alias("acp", f"n{number}"),)) for number in range(200)]
    await ledger.log.append("s", calls)
    await ledger.log.project("s")
    held_counts: list[int] = []
    check_page = module._SessionCheck._check_page

    async def counting_check(self: Any, rows: list[tuple[int, bytes]]) -> None:
        await check_page(self, rows)
        tables = self.records.tables
        held_counts.append(len(self.state.entries) + len(tables.calls) + len(tables.closed) + len(tables.answered))

    monkeypatch.setattr(module._SessionCheck, "_check_page", counting_check)
    assert await verify(ledger.log) == []
    assert len(held_counts) > 10 and max(held_counts) < 10


async def test_only_entries_of_the_current_fold_version_are_compared(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade old entries are ignored, and a new checkpoint is compared."""
    for module in (fold, checkpoint, __import__("callslip.ledger.verify.entries", fromlist=["VERSION"])):
        monkeypatch.setattr(module, "VERSION", fold.VERSION + 1 if module is not fold else fold.VERSION)
    assert await verify(ledger.log) == []
    await ledger.log.project("s")
    saved = await ledger.log.store.checkpoint("s")
    assert saved is not None and saved.version == fold.VERSION + 1
    assert await verify(ledger.log) == []
