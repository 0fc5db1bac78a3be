"""Copies between any two engines have every row, continue after an interruption, and can be used like the source."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callslip.api.databases import CopyProgress, CopyReport, copy_ledger
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import exit_status
from callslip.client.token_file import hash_token
from callslip.errors import IncompleteCopyError, InvalidInputError, NotFoundError, StoreError
from callslip.ledger import copy as copying
from callslip.model import events as ev
from callslip.model.events import Draft
from callslip.model.records import TokenRecord
from callslip.settings import Settings
from callslip.store import open as databases
from callslip.store.copying import PAGE_BYTES, TABLES, CopyMark, CopyTarget, Table
from callslip.store.sql import migrations
from tests.support import engines, full_ledger
from tests.support.cli_process import run_in_process
from tests.support.full_ledger import CONVERSATION, EVENT_KEY, POST_KEY, list_rows
from tests.support.invariants import find_faults, session_names

FORMATS = ("events", "entries", "openai", "ui-v6")
NewDatabase = Callable[[str], str]
ON_EACH_ENGINE = pytest.mark.parametrize(
    "engine_of_target", [engines.SQLITE, pytest.param(engines.POSTGRES, marks=pytest.mark.postgres)]
)


@pytest.fixture(scope="module")
def full_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a ledger with rows in every table. Tests use copies of it."""
    path = tmp_path_factory.mktemp("full") / "full.db"
    full_ledger.create_full_ledger(path)
    return path


@pytest.fixture
def full(full_file: Path, tmp_path: Path) -> str:
    """Return the URL of a ledger with rows in every table."""
    shutil.copyfile(full_file, tmp_path / "full.db")
    return f"sqlite:///{tmp_path / 'full.db'}"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return the URL of a ledger with some sessions of some events."""
    url = f"sqlite:///{tmp_path / 'small.db'}"
    run_on(url, add_sessions)
    return url


async def add_sessions(ledger: LocalLedger) -> None:
    for number in range(3):
        await ledger.log.append(f"s{number}", [ev.MessageUser(text=f"{number} {n}") for n in range(20)])


@pytest.fixture
def new_database(tmp_path: Path) -> Iterator[NewDatabase]:
    """Return a function that returns the URL of a database of an engine. A SQLite file does not exist."""
    with contextlib.ExitStack() as stack:

        def create(engine: str) -> str:
            path = tmp_path / f"target-{len(list(tmp_path.iterdir()))}.db"
            return stack.enter_context(engines.new_database(engine, path))

        yield create


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for connections that stay."""
    monkeypatch.setattr("callslip.store.postgres_copy.LEAVE_S", 0.1)


@pytest.fixture
def target(engine_of_target: str, new_database: NewDatabase) -> str:
    return new_database(engine_of_target)


def copy(source: str, target: str, **options: Any) -> CopyReport:
    return asyncio.run(copy_ledger(source, target, **options))


def run_on(url: str, work: Callable[[LocalLedger], Any]) -> Any:
    """Open a ledger, do something with it, and close it."""

    async def run() -> Any:
        async with await open_ledger(url) as ledger:
            return await work(ledger)

    return asyncio.run(run())


def export_all(url: str) -> dict[tuple[str, str], bytes]:
    """Return each session in some formats."""

    async def export(ledger: LocalLedger) -> dict[tuple[str, str], bytes]:
        names = sorted(await session_names(ledger))
        return {(name, format): await ledger.export(name, format) for name in names for format in FORMATS}

    return run_on(url, export)


def check_copy(source: str, target: str, new_database: NewDatabase) -> None:
    """Check that a target has the rows of a file. Those of PostgreSQL are copied to a file to compare them."""
    if engines.is_postgres(target):
        file = new_database(engines.SQLITE)
        copy(target, file)
    else:
        file = target
    assert list_rows(file) == list_rows(source)


# What a copy has


@pytest.mark.parametrize(
    "route",
    [
        [engines.SQLITE],
        pytest.param([engines.POSTGRES, engines.SQLITE], marks=pytest.mark.postgres),
        pytest.param([engines.POSTGRES, engines.POSTGRES, engines.SQLITE], marks=pytest.mark.postgres),
    ],
    ids="-".join,
)
def test_a_copy_has_every_row_of_every_table(full: str, new_database: NewDatabase, route: list[str]) -> None:
    """Through one or several engines. Left out is only an upload that was interrupted."""
    rows = list_rows(full)
    assert [name for name, found in rows.items() if not found] == []
    last = full
    for engine in route:
        source, last = last, new_database(engine)
        report = copy(source, last)
        assert report.problems == [] and report.written == sum(report.rows.values())
        assert report.rows == {table.name: len(rows[table.name]) for table in TABLES}
    assert list_rows(last) == rows
    assert export_all(last) == export_all(full)


def test_every_table_of_an_engine_is_copied_or_derived(full: str) -> None:
    """A table that a later migration adds must be copied, too."""
    names = {name for (name,) in engines.fetch_rows(full, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {name for name in names if not name.startswith("search_")} == {table.name for table in TABLES} | {
        "meta",
        "sqlite_sequence",
    }


@pytest.mark.postgres
def test_every_table_and_column_of_postgres_is_copied_or_derived(new_database: NewDatabase) -> None:
    """A column that a later migration adds must be copied, too."""
    url = new_database(engines.POSTGRES)
    names = {name for (name,) in engines.fetch_rows(url, "SELECT relname::text FROM pg_stat_user_tables")}
    derived = {"meta", "lanes", "queues", "search_places", "search_rows"}
    assert names == {table.name for table in TABLES} | derived
    for table in TABLES:
        if not table.is_of_records:
            columns = {*table.names, *(name for name, _ in table.constants)}
            assert set(engines.list_columns(url, table.name)) == columns, table.name


@ON_EACH_ENGINE
def test_pages_of_large_rows_are_limited(target: str) -> None:
    """However large the rows are, a copy has only a few of them in memory."""

    pieces = next(table for table in TABLES if table.name == "blob_pieces")

    async def read_pages() -> list[list[tuple[Any, ...]]]:
        side = await databases.open_copy_source(target, Settings())
        pages: list[list[tuple[Any, ...]]] = []
        after = None
        while page := await side.read(pieces, after):
            pages.append(page)
            after = pieces.key(page[-1])
        await side.close()
        return pages

    run_on(target, lambda ledger: ledger.log.store.put_blob(b"a large value" * 2**20, ""))
    pages = asyncio.run(read_pages())
    assert b"".join(row[-1] for page in pages for row in page) == b"a large value" * 2**20
    assert len(pages) > 2
    assert all(sum(len(row[-1]) for row in page) <= PAGE_BYTES for page in pages)


# Use of a copy


@ON_EACH_ENGINE
def test_a_copy_continues_like_its_source(full: str, target: str) -> None:
    """Approvals, commands, keys, conversations, blobs and tokens work, and nothing is wrong afterwards."""
    last_id = engines.fetch_rows(full, "SELECT seq FROM sqlite_sequence WHERE name = 'sessions'")[0][0]
    copy(full, target)
    run_on(target, lambda ledger: use(ledger, last_id))


async def use(ledger: LocalLedger, last_id: int) -> None:
    store = ledger.log.store
    pending = await ledger.approvals(session="decisions")
    assert len(pending) == 2
    assert (await ledger.approve(pending[0].id, by="ann")).state == "granted"
    (request,) = await ledger.approvals(session="commands")
    await ledger.approve(request.id, by="ann")

    claims = [await ledger.commands.claim("moved", worker="w") for _ in range(2)]
    assert [(claim.correlation_id, claim.params) for claim in claims if claim] == [
        ("moved-1", {"token": full_ledger.SECRET_ARGUMENT}),
        ("moved-2", {"n": 2}),
    ]
    for claim in filter(None, claims):
        await ledger.commands.complete(claim.call, "done", fence=claim.fence)
    await ledger.commands.submit("go", {}, queue="moved", correlation_id="moved-3", timeout=9e5)
    with pytest.raises(Exception, match=r"stale|fence"):
        await ledger.commands.complete("leased-1", "old", fence=1)

    head = (await ledger.find_session("texts")).last_seq
    (again,) = await ledger.log.append("texts", [Draft(ev.MessageUser(text="once"), key=EVENT_KEY)])
    assert (await ledger.find_session("texts")).last_seq == head >= again.seq
    repeated = await full_ledger.post(ledger, full_ledger.FIRST_HALF, POST_KEY)
    await full_ledger.post(ledger, full_ledger.SECOND_HALF)
    (call,) = (await ledger.calls(session=CONVERSATION.session)).items
    assert call.title == "ls -la" and repeated.seq <= call.entry

    for seq, body in await store.events("texts", 0, 100):
        blob = json.loads(body).get("blob")
        if blob:
            assert len(await ledger.blob(blob["hash"])) == blob["size"], seq
    for row in map(json.loads, (full_ledger.FIXTURE / "tokens.jsonl").read_bytes().splitlines()):
        record = await store.token(hash_token(row["token"]))
        assert record is not None and (record.id, list(record.verbs)) == (row["id"], row["can"])

    await ledger.log.append("later", [ev.MessageUser(text="new")])
    assert (await ledger.find_session("later")).id > last_id
    await ledger.log.append("held", [ev.TurnEnded()])
    await ledger.prune(3600 * 24 * 3650)
    assert await find_faults(ledger) == []


@ON_EACH_ENGINE
def test_ids_of_deleted_sessions_are_not_given_again(full: str, target: str) -> None:
    """The copy continues with the ids of sessions and of conversations where the source is."""
    sequences = "SELECT name, seq FROM sqlite_sequence ORDER BY name"
    ids = dict(engines.fetch_rows(full, sequences))
    assert ids["sessions"] > engines.fetch_rows(full, "SELECT max(id) FROM sessions")[0][0]
    copy(full, target)
    if engines.is_postgres(target):
        last_ids = "SELECT (SELECT last_value FROM conversations_id_seq), (SELECT last_value FROM session_ids)"
        assert engines.fetch_rows(target, last_ids) == [(ids["conversations"], ids["sessions"])]
    else:
        assert dict(engines.fetch_rows(target, sequences)) == ids


@pytest.mark.postgres
def test_a_queue_of_a_copy_has_as_much_room_as_before(full: str, new_database: NewDatabase) -> None:
    """PostgreSQL counts the pending commands in a row, which a file does not have."""
    target = new_database(engines.POSTGRES)
    copy(full, target)
    assert dict(engines.fetch_rows(target, "SELECT client, waiting FROM queues")) == dict(
        engines.fetch_rows(
            full,
            "SELECT client, count(*) FROM calls WHERE client <> '' AND state IN ('queued', 'awaiting_approval') "
            "GROUP BY client",
        )
    )


# Interruption


class Interrupted(Exception):
    """Stops a copy as a kill does: nothing after it runs."""


def interrupt(patch: pytest.MonkeyPatch, writes: int) -> None:
    """Let a copy fail after so many writes. The last one is stored, but the copy does not learn that."""
    interrupt_if(patch, lambda count, _: count == writes)


def interrupt_after(patch: pytest.MonkeyPatch, table: Table) -> None:
    """Let a copy fail after its first write to a table."""
    interrupt_if(patch, lambda _, written: written is table)


def interrupt_if(patch: pytest.MonkeyPatch, has_failed: Callable[[int, Table], bool]) -> None:
    """Let a copy fail after a write, chosen by the number of writes and the table."""
    make_target = databases.open_copy_target

    async def open_copy_target(url: str, settings: Settings) -> CopyTarget:
        target = await make_target(url, settings)
        write, count = target.write, 0

        async def count_writes(table: Table, removed: list[Any], added: list[Any]) -> None:
            nonlocal count
            await write(table, removed, added)
            count += 1
            if has_failed(count, table):
                raise Interrupted

        target.write = count_writes
        return target

    patch.setattr(databases, "open_copy_target", open_copy_target)


@ON_EACH_ENGINE
def test_an_interrupted_copy_continues(
    full: str, target: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run copies a bit more, and writes nothing twice. The result is the same."""
    for writes in (1, 3, 7, 5):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            interrupt(patch, writes)
            copy(full, target)
    report = copy(full, target)
    assert report.is_resumed and 0 < report.written < sum(report.rows.values())
    check_copy(full, target, new_database)
    again = copy(full, target)
    assert again.completed_at and again.written == 0


@ON_EACH_ENGINE
def test_a_copy_continues_after_the_source_has_changed(
    full: str, target: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied before is replaced: new events, deleted, pruned and repeated sessions, revoked tokens."""

    async def change(ledger: LocalLedger) -> None:
        await ledger.log.append("texts", [ev.MessageUser(text="more")])
        await ledger.delete("ends")
        await ledger.log.append("ends", [ev.MessageUser(text="again")])
        await ledger.prune(0)
        await ledger.log.store.drop_token((await ledger.log.store.tokens())[0].id)
        await full_ledger.post(ledger, full_ledger.SECOND_HALF)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, len(TABLES))
        copy(full, target)
    run_on(full, change)
    assert copy(full, target).is_resumed
    check_copy(full, target, new_database)


async def interrupt_then_create_again(source: str, target: str) -> None:
    """Interrupt a copy, and create one of its sessions again through a process with lower ids than the others have."""
    async with await open_ledger(source) as first, await open_ledger(source) as second:
        await first.log.append("first", [ev.MessageUser(text="first")])  # It takes a block of ids.
        for number in range(10):
            await second.log.append(f"s{number}", [ev.MessageUser(text=str(number))])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            interrupt(patch, 6)
            await copy_ledger(source, target, snapshot=True)
        before = (await first.find_session("s9")).id
        await first.delete("s9")
        await first.log.append("s9", [ev.MessageUser(text="again")])
        assert (await first.find_session("s9")).id < before - 10


@pytest.mark.postgres
@ON_EACH_ENGINE
def test_a_copy_continues_after_a_session_was_created_again_with_a_lower_id(
    target: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is still in the target, in a row that the copy reads later."""
    for engine in ("postgres", "sqlite"):
        monkeypatch.setattr(f"callslip.store.{engine}_copy.PAGE_ROWS", 2)
    source = new_database(engines.POSTGRES)
    asyncio.run(interrupt_then_create_again(source, target))
    report = copy(source, target)
    assert report.is_resumed and report.problems == []
    assert export_all(target) == export_all(source)


@ON_EACH_ENGINE
def test_a_copy_continues_if_unique_values_have_moved_to_lower_keys(
    full: str, target: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of a token, and the names of a conversation. Each page has one row."""
    for engine in ("postgres", "sqlite"):
        monkeypatch.setattr(f"callslip.store.{engine}_copy.PAGE_ROWS", 1)
    run_on(full, lambda ledger: ledger.log.store.put_token(TokenRecord("tok_z", "z", "", "", ("read",), 1)))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(patch, TABLES[-1])
        copy(full, target)
    for change in (
        "UPDATE tokens SET id = 'tok_0' WHERE id = 'tok_z'",
        "UPDATE inputs SET conversation = -conversation",
        "UPDATE conversations SET id = -id",
    ):
        assert engines.change_rows(full, change)
    assert copy(full, target).is_resumed
    check_copy(full, target, new_database)


def test_the_unique_columns_of_tables_are_known(full: str) -> None:
    """A row that is added replaces those with the same values in them."""
    unique = """
        SELECT i.name FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i
        WHERE l."unique" AND l.origin <> 'pk' ORDER BY l.name, i.seqno
    """
    for table in TABLES:
        assert [name for (name,) in engines.fetch_rows(full, unique, table.name)] == list(table.unique), table.name


@pytest.mark.postgres
def test_the_unique_columns_of_postgres_are_known(new_database: NewDatabase) -> None:
    """A row that is added replaces those with the same values in them."""
    unique = """
        SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place), pg_attribute a
        WHERE i.indrelid = ?::text::regclass AND i.indisunique AND NOT i.indisprimary
        AND a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY i.indexrelid, k.place
    """
    url = new_database(engines.POSTGRES)
    for table in TABLES:
        assert [name for (name,) in engines.fetch_rows(url, unique, table.name)] == list(table.unique), table.name


@ON_EACH_ENGINE
def test_an_incomplete_copy_is_not_a_ledger(small: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program opens it, not even to read it, until the copy is finished; the error says how."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, 2)
        copy(small, target)
    with pytest.raises(IncompleteCopyError, match=r"callslip admin copy .*small\.db"):
        run_on(target, session_names)
    with monkeypatch.context() as patch, pytest.raises(IncompleteCopyError):
        run_on(engines.read_only_url(target, patch), session_names)
    for command in (("ls",), ("verify",), ("doctor",), ("admin", "migrate")):
        result = run_in_process(*command, env={"CALLSLIP_DB": target})
        assert result.returncode == exit_status.FAILED, command
        assert "is an incomplete copy of" in result.stdout + result.stderr, command
    with pytest.raises(IncompleteCopyError):
        copy(target, f"{small}.other")
    copy(small, target)
    assert sorted(run_on(target, session_names)) == ["s0", "s1", "s2"]


def test_an_older_version_cannot_open_an_incomplete_copy(small: str, tmp_path: Path, monkeypatch: Any) -> None:
    """It does not know the mark, but the oldest version that may read the file."""
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, 2)
        copy(small, target)
    newest = str(migrations("sqlite")[-1][0])
    assert engines.fetch_rows(target, "SELECT value FROM meta WHERE name = 'oldest_reader'") == [(newest,)]
    copy(small, target)
    assert engines.fetch_rows(target, "SELECT value FROM meta WHERE name = 'oldest_reader'") == [("1",)]


@ON_EACH_ENGINE
def test_a_run_that_was_replaced_cannot_write(small: str, target: str) -> None:
    """A process that was stopped and continues later finds that another one has taken over."""

    async def take_over() -> None:
        first = await databases.open_copy_target(target, Settings())
        await first.begin(CopyMark("source", "small", "1"))
        if engines.is_postgres(target):
            second = await databases.open_copy_target(target, Settings())
            await second.begin(CopyMark("source", "small", "2"))
            await second.close()
        else:  # The lock of users keeps a second process away, but not every system has it.
            engines.change_rows(target, "UPDATE meta SET value = '{}' WHERE name = 'copy'")
        with pytest.raises(StoreError, match="another process continues this copy"):
            await first.write(copying.OWNERS, [], [("owner", 1)])
        await first.close()

    asyncio.run(take_over())
    assert engines.fetch_rows(target, "SELECT * FROM owners") == []


# Refusals


@ON_EACH_ENGINE
@pytest.mark.usefixtures("short_wait")
def test_a_source_in_use_is_refused(small: str, target: str) -> None:
    """The target is not created. A snapshot is possible, and does not have later writes."""

    async def copy_in_use(ledger: LocalLedger, to: str) -> None:
        await ledger.log.append("s0", [ev.MessageUser(text="before")])
        with pytest.raises(StoreError, match=r"is in use: .*--snapshot"):
            await copy_ledger(target, to)
        assert not Path(to).exists()

        def write(progress: CopyProgress) -> None:
            if progress.step == copying.COPYING and progress.table == "owners":
                writes.append(asyncio.ensure_future(ledger.log.append("s0", [ev.MessageUser(text="after")])))

        writes: list[asyncio.Future[Any]] = []
        await ledger.log.append("s1", [ev.CallProposed(call="new:1", tool_name="t")], owner=ledger.log.owner)
        await copy_ledger(target, to, snapshot=True, listener=write)
        await asyncio.gather(*writes)
        assert writes
        assert b"after" in await ledger.export("s0", "events")

    to = f"{small.removeprefix('sqlite:///')}.copy"
    run_on(target, add_sessions)
    run_on(target, lambda ledger: copy_in_use(ledger, to))

    async def check(ledger: LocalLedger) -> None:
        exported = await ledger.export("s0", "events")
        assert b"before" in exported and b"after" not in exported
        (call,) = (await ledger.calls(session="s1")).items
        assert call.owner.startswith(copying.STOPPED_OWNER)

    run_on(to, check)


@ON_EACH_ENGINE
def test_a_source_that_is_written_during_the_copy_is_noticed(small: str, target: str, tmp_path: Path) -> None:
    """The copy is not complete then. Running it again copies the rest."""
    copy(small, target)
    to = str(tmp_path / "copy.db")
    was_written = False

    def write(progress: CopyProgress) -> None:
        nonlocal was_written
        if not was_written and progress.step == copying.COMPARING:
            was_written = True
            result = run_in_thread(lambda: run_on(target, lambda ledger: ledger.log.append("s0", [ev.TurnStarted()])))
            assert len(result) == 1

    with pytest.raises(StoreError, match="was written during the copy"):
        copy(target, to, listener=write)
    assert was_written
    with pytest.raises(IncompleteCopyError):
        run_on(to, session_names)
    assert copy(target, to).is_resumed
    assert export_all(to) == export_all(target)


def run_in_thread(work: Callable[[], Any]) -> Any:
    """Run work that has an event loop of its own while another loop runs in this thread."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


@ON_EACH_ENGINE
def test_a_target_with_another_ledger_is_refused(small: str, full: str, target: str, tmp_path: Path) -> None:
    """Nothing of it changes. An empty ledger may be the target, also if it was opened before."""
    run_on(target, session_names)
    copy(small, target)
    before = export_all(target)
    with pytest.raises(StoreError, match="already contains a ledger"):
        copy(full, target)
    assert export_all(target) == before


@ON_EACH_ENGINE
def test_an_incomplete_copy_of_another_ledger_is_refused(
    small: str, full: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the ledger whose copy it is."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, 2)
        copy(small, target)
    with pytest.raises(StoreError, match=r"incomplete copy of .*small\.db\. Finish that copy"):
        copy(full, target)


@ON_EACH_ENGINE
@pytest.mark.usefixtures("short_wait")
def test_a_target_in_use_is_refused(small: str, target: str) -> None:
    """A process that has an empty ledger open would else write into the copy. The ledger stays usable."""

    async def copy_to_used(ledger: LocalLedger) -> None:
        with pytest.raises(StoreError, match="is in use"):
            await copy_ledger(small, target)
        await ledger.log.append("mine", [ev.MessageUser(text="still works")])

    run_on(target, copy_to_used)
    assert run_on(target, session_names) == ["mine"]


@ON_EACH_ENGINE
def test_a_ledger_is_not_copied_to_itself(small: str, target: str) -> None:
    """By each of its names."""
    copy(small, target)
    if engines.is_postgres(target):
        other = target.replace("127.0.0.1", "localhost")
    else:
        path = Path(target.removeprefix("sqlite:///"))
        other = f"{path.parent}/../{path.parent.name}/{path.name}"
    for to in (target, other):
        with pytest.raises(InvalidInputError, match="TO: is the same database as FROM"):
            copy(target, to)


@ON_EACH_ENGINE
def test_an_empty_source_is_copied_and_a_missing_one_is_not(target: str, tmp_path: Path, new_database: Any) -> None:
    """A ledger without sessions is a ledger."""
    to = str(tmp_path / "copy.db")
    if engines.is_postgres(target):
        empty = engines.server().create_database(template="template0")
        with pytest.raises(NotFoundError, match="contains no ledger"):
            copy(empty, to)
        engines.server().drop_database(empty)
    else:
        with pytest.raises(NotFoundError, match="no ledger at"):
            copy(target, to)
    assert not Path(to).exists()
    run_on(target, session_names)
    assert set(copy(target, to).rows.values()) == {0}


@pytest.mark.postgres
def test_a_text_that_postgres_cannot_store_is_named(small: str, new_database: NewDatabase) -> None:
    """An id with NUL cannot be in a ledger of this version. The copy stays incomplete."""
    engines.change_rows(small, "INSERT INTO aliases VALUES (1, 'a' || char(0) || 'b', 'ns', '')")
    target = new_database(engines.POSTGRES)
    with pytest.raises(StoreError, match="a row of aliases cannot be stored"):
        copy(small, target)
    with pytest.raises(IncompleteCopyError):
        run_on(target, session_names)


def test_problems_of_the_source_are_reported(small: str, tmp_path: Path) -> None:
    """The copy is exact and complete, and `verify` finds in it what it finds in the source."""
    engines.change_rows(small, "UPDATE sessions SET title = 'changed' WHERE name = 's1'")
    report = copy(small, str(tmp_path / "copy.db"))
    assert [problem.session for problem in report.problems] == ["s1"]
    assert export_all(str(tmp_path / "copy.db")) == export_all(small)


def test_an_older_schema_is_migrated_first(tmp_path: Path) -> None:
    """The error names the command."""
    shutil.copyfile(full_ledger.FIXTURE / "ledger.db", tmp_path / "older.db")
    with pytest.raises(StoreError, match=r"has schema 3\. Migrate it first: callslip admin migrate --db"):
        copy(f"sqlite:///{tmp_path / 'older.db'}", str(tmp_path / "copy.db"))
