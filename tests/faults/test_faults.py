"""Test files that are read-only, full, damaged, newer or of another program: a clear error, and the file unchanged."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import (
    CorruptDataError,
    DiskFullError,
    InvalidDatabaseError,
    InvalidInputError,
    StoreError,
    UnsupportedVersionError,
)
from callslip.ledger.verify import verify
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, decode_event
from callslip.store import sqlite_open
from callslip.store.sqlite_rows import Rows
from tests.support.faulty_disk import Disk
from tests.support.invariants import PROGRAMS, find_faults, open_with_settings, read_events

pytestmark = pytest.mark.anyio


def messages(*texts: str) -> list[ev.Event]:
    return [ev.MessageUser(text=text) for text in texts]


async def create_ledger(db: str, *texts: str) -> Path:
    """Create a ledger with one session and close it."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", messages(*texts or ("hello",)))
    return Path(db.removeprefix("sqlite:///"))


# Full disk


async def fill_disk(ledger: LocalLedger, session: str, text: str) -> tuple[list[str], DiskFullError]:
    """Append until the disk is full. Return the acknowledged texts and the error."""
    acknowledged: list[str] = []
    for number in range(10_000):
        try:
            await ledger.log.append(session, messages(f"{number} {text}", f"{number}!"))
        except DiskFullError as error:
            return acknowledged, error
        acknowledged += [f"{number} {text}", f"{number}!"]
    raise AssertionError("the disk was never full")


async def test_a_full_disk_rejects_writes_and_keeps_earlier_events(db: str) -> None:
    """No part of the failed write is stored. Reading works, and writing works again once there is space."""
    with Disk() as disk:
        async with await open_with_settings(db, checkpoint_every=10) as ledger:
            disk.max_journal_bytes = 400_000
            acknowledged, error = await fill_disk(ledger, "a", "x" * 3000)
            assert "disk full" in str(error) and "ledger.db" in str(error)
            assert acknowledged and [event.text for event in await read_events(ledger, "a")] == acknowledged
            assert len((await ledger.snapshot("a")).entries) == len(acknowledged)
            for _ in range(3):
                with pytest.raises(DiskFullError):
                    await ledger.log.append("b", messages("y" * 100_000))
            disk.max_journal_bytes = None
            await ledger.log.append("a", messages("after space was freed"))
            assert [event.text for event in await read_events(ledger, "a")] == [*acknowledged, "after space was freed"]
            assert await ledger.log.store.session("b") is None and not await find_faults(ledger)


@pytest.mark.chaos
async def test_a_full_disk_leaves_no_partial_write(tmp_path: Path, scale: int) -> None:
    """A write that fails in the log, in a checkpoint or in a blob leaves a sound ledger without it."""
    for run in range(6 * min(scale, 20)):
        rng = random.Random(run)
        url = f"sqlite:///{tmp_path / str(run) / 'ledger.db'}"
        with Disk() as disk:
            ledger = await open_with_settings(url, checkpoint_every=4, inline_limit=1000, preview=50)
            ledger.log.store._writing.execute("PRAGMA wal_autocheckpoint = 10").fetchall()  # type: ignore[attr-defined]
            acknowledged: list[ev.Event] = []
            full_count = 0
            for number in range(60):
                disk.max_journal_bytes = None if rng.random() < 0.5 else rng.randrange(60_000)
                drafts: list[Any] = messages(f"{number}", "z" * rng.randrange(6000))
                if rng.random() < 0.3:
                    drafts.append(ev.CallCompleted(output="w" * rng.randrange(9000)))
                try:
                    acknowledged += await ledger.log.append("a", drafts)
                except DiskFullError:
                    full_count += 1
            disk.max_journal_bytes = None
            assert full_count, "the disk was never full"
            assert await read_events(ledger, "a") == acknowledged
            await ledger.log.append("a", messages("end"))
            assert not await find_faults(ledger)
            await ledger.close()
        async with await callslip.open(url) as ledger:
            assert (await read_events(ledger, "a"))[:-1] == acknowledged and not await find_faults(ledger)


def wal_size(disk: Disk) -> int:
    return max((size for path, size in disk.sizes.items() if path.endswith("-wal")), default=0)


async def test_a_full_disk_rejects_all_writes_of_the_transaction(db: str) -> None:
    """Every concurrent writer gets the error, and none waits forever."""
    with Disk() as disk:
        async with await callslip.open(db) as ledger:
            await ledger.log.append("a", messages("first"))
            disk.max_journal_bytes = wal_size(disk)
            async with asyncio.timeout(10):
                results = await asyncio.gather(
                    *(ledger.log.append("a", messages(str(n) * 5000)) for n in range(20)), return_exceptions=True
                )
            assert {type(result) for result in results} == {DiskFullError}
            disk.max_journal_bytes = None
            assert [event.text for event in await read_events(ledger, "a")] == ["first"]


async def test_a_page_limit_is_reported_as_a_full_disk(db: str) -> None:
    """The limit of SQLite on the number of pages raises the same error."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", messages("x"))
        pages = ledger.log.store._writing.execute("PRAGMA page_count").fetchall()[0][0]  # type: ignore[attr-defined]
        ledger.log.store._writing.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()  # type: ignore[attr-defined]
        acknowledged, _ = await fill_disk(ledger, "a", "x" * 500)
        ledger.log.store._writing.execute("PRAGMA max_page_count = 1000000").fetchall()  # type: ignore[attr-defined]
        await ledger.log.append("a", messages("after space was freed"))
        assert [event.text for event in await read_events(ledger, "a")] == ["x", *acknowledged, "after space was freed"]
        assert not await find_faults(ledger)


async def test_a_call_that_ends_on_a_full_disk_is_ended_by_closing(db: str) -> None:
    """C5: the program gets DiskFullError; once there is space, closing the ledger ends the call."""
    with Disk() as disk:
        ledger = await callslip.open(db)
        with pytest.raises(DiskFullError):
            async with ledger.session("a").call("t") as call:
                disk.max_journal_bytes = wal_size(disk)
                call.complete("x" * 20_000)
        assert (await call.result()).state == "running"
        disk.max_journal_bytes = None
        await ledger.close()
        async with await callslip.open(db) as ledger:
            row = await ledger.find_call(call.id)
            assert row.state == "lost" and "closed" in row.reason


# Failing disk


@pytest.mark.parametrize("method", ["xWrite", "xSync", "xRead"])
async def test_a_failing_disk_raises_a_store_error(db: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer gets an I/O error during a write as a StoreError, and no partial write is stored."""
    from tests.support import faulty_disk

    with Disk():
        async with await callslip.open(db) as ledger:
            await ledger.log.append("a", messages("before"))
            ledger.log.store._writing.execute("PRAGMA cache_size = 0").fetchall()  # type: ignore[attr-defined]

            def raise_io_error(*_: Any) -> Any:
                raise apsw.IOError("broken")

            with monkeypatch.context() as patch:
                patch.setattr(faulty_disk.File, method, raise_io_error, raising=False)
                results = await asyncio.gather(
                    *(ledger.log.append("a", [ev.CallProposed(tool_name="t")]) for _ in range(5)),
                    return_exceptions=True,
                )
            if method != "xRead":  # Pages may still be in the cache.
                assert all(isinstance(result, StoreError) for result in results)
            assert all(isinstance(result, StoreError | list) for result in results)
            await ledger.log.append("a", messages("after"))
            assert not await find_faults(ledger)
            acknowledged = [event.seq for result in results if isinstance(result, list) for event in result]
            assert len(await read_events(ledger, "a")) == 2 + len(acknowledged)


# Read-only


def run_unprivileged(url: str) -> dict[str, str]:
    run = subprocess.run([sys.executable, str(PROGRAMS / "unprivileged.py"), url], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """Return a folder that every user can read; pytest's own folders are private."""
    with tempfile.TemporaryDirectory(prefix="callslip-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


READ_RESULT = "(2, ['hello', 'there'])"


@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o755), (0o666, 0o555), (0o444, 0o555)])
async def test_a_file_without_write_permission_can_be_read(readable_folder: Path, file: int, folder: int) -> None:
    """A file or a folder without write permission opens read-only; writing raises ReadOnlyStoreError."""
    path = await create_ledger(f"sqlite:///{readable_folder / 'ledger.db'}", "hello", "there")
    path.chmod(file)
    readable_folder.chmod(folder)
    before = path.read_bytes()
    report = run_unprivileged(f"sqlite:///{path}")
    assert report["open"] == "read-only" and report["read"] == READ_RESULT and report["verify"] == "[]"
    assert {report[name].partition(":")[0] for name in ("append", "call", "delete")} == {"ReadOnlyStoreError"}
    assert "ledger.db" in report["append"]
    assert path.read_bytes() == before


async def test_the_newest_events_are_read_from_a_read_only_folder(readable_folder: Path) -> None:
    """Events that a killed process left in the WAL are read too."""
    db = f"sqlite:///{readable_folder / 'ledger.db'}"
    ledger = await callslip.open(db)
    await ledger.log.append("a", messages("hello", "there"))
    copied = readable_folder / "copy"
    copied.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copy(readable_folder / name, copied / name)
    await ledger.close()
    assert (copied / "ledger.db-wal").stat().st_size
    for path in copied.iterdir():
        path.chmod(0o444)
    copied.chmod(0o555)
    report = run_unprivileged(f"sqlite:///{copied / 'ledger.db'}")
    assert (report["open"], report["read"]) == ("read-only", READ_RESULT)


async def test_no_ledger_is_created_in_a_read_only_folder(readable_folder: Path) -> None:
    """The error names the file."""
    readable_folder.chmod(0o555)
    report = run_unprivileged(f"sqlite:///{readable_folder / 'new.db'}")
    assert report["open"].startswith("ReadOnlyStoreError:") and "new.db" in report["open"]
    assert list(readable_folder.iterdir()) == []


async def test_a_file_without_read_permission_raises_an_error(readable_folder: Path) -> None:
    """The error names the file."""
    path = await create_ledger(f"sqlite:///{readable_folder / 'ledger.db'}")
    path.chmod(0o000)
    report = run_unprivileged(f"sqlite:///{path}")
    assert report["open"].startswith("StoreError:") and "ledger.db" in report["open"]


# Files of other programs

OTHER_FILES = {
    "random bytes": random.Random(5).randbytes(50_000),
    "text": b"Dear diary,\n" * 500,
    "a short text": b"x",
    "JSON": b'{"sessions": []}',
    "zeros": bytes(8192),
    "a header and nothing else": b"SQLite format 3\x00",
    "a header and rubbish": b"SQLite format 3\x00" + random.Random(6).randbytes(8176),
}


@pytest.mark.parametrize("name", OTHER_FILES)
async def test_a_file_of_another_kind_is_rejected_and_unchanged(tmp_path: Path, name: str) -> None:
    """The file is unchanged, and no other file is created."""
    path = tmp_path / "diary"
    path.write_bytes(OTHER_FILES[name])
    with pytest.raises(InvalidDatabaseError, match="diary"):
        await callslip.open(f"sqlite:///{path}")
    assert path.read_bytes() == OTHER_FILES[name]
    assert [item.name for item in tmp_path.iterdir()] == ["diary"]


async def test_a_folder_is_not_a_ledger(tmp_path: Path) -> None:
    """A folder, or a path below a file, raises StoreError."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for url in (tmp_path / "folder", tmp_path / "file" / "ledger.db"):
        with pytest.raises(StoreError, match=url.name):
            await callslip.open(f"sqlite:///{url}")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_database_of_another_program_is_rejected_and_unchanged(tmp_path: Path, journal: str) -> None:
    """Its bytes are unchanged, also if it has a WAL that was not checkpointed."""
    path = tmp_path / "places.sqlite"
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
    connection.execute(
        "CREATE TABLE places (id INTEGER PRIMARY KEY, url TEXT); INSERT INTO places VALUES (1, 'x')"
    ).fetchall()
    copied = tmp_path / "copy"
    copied.mkdir()
    for file in tmp_path.glob("places.sqlite*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, copied / file.name)
    connection.close()
    before = {file.name: file.read_bytes() for file in copied.iterdir()}
    with pytest.raises(InvalidDatabaseError, match="another program"):
        await callslip.open(f"sqlite:///{copied / 'places.sqlite'}")
    after = {file.name: file.read_bytes() for file in copied.iterdir() if not file.name.endswith("-shm")}
    assert after == before


async def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    """An empty file, such as `mktemp` creates, opens as a new ledger."""
    path = tmp_path / "ledger.db"
    path.touch()
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.log.append("a", messages("x"))
        assert not await find_faults(ledger)


async def test_a_url_of_another_scheme_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is not used as a file name."""
    monkeypatch.chdir(tmp_path)
    for url in (
        "mysql://localhost/x",
        "postgresql+asyncpg://localhost/x",
        "postgresql://localhost/x",
        "http://localhost:7890",
        "sqlite://agent.db",
        "",
    ):
        with pytest.raises((InvalidInputError, StoreError)):
            await callslip.open(url)
    assert list(tmp_path.iterdir()) == []


# Damaged files


@pytest.mark.chaos
async def test_damage_is_reported(tmp_path: Path, scale: int) -> None:
    """With a part of a page overwritten, opening, reading and writing work or raise an error about the file."""
    texts = [f"{number} " + "x" * 300 for number in range(200)]
    intact = (await create_ledger(f"sqlite:///{tmp_path / 'whole.db'}", *texts)).read_bytes()
    reported = 0
    for run in sorted({*range(20 * scale), 628}):  # The last one makes SQLite return an event without a body.
        rng = random.Random(run)
        data = bytearray(intact)
        start = rng.randrange(len(data) // 4096) * 4096 + rng.choice((0, 100, rng.randrange(4000)))
        data[start : start + 96] = rng.choice((bytes(96), rng.randbytes(96)))
        path = tmp_path / f"{run}.db"
        path.write_bytes(data)
        try:
            async with await callslip.open(f"sqlite:///{path}") as ledger:
                reported += bool(await ledger.log.store.check())
                await read_events(ledger, "a")
                await ledger.log.append("a", messages("more"))
        except CorruptDataError:
            reported += 1  # The bytes of one event, which SQLite does not check.
        except StoreError as error:
            reported += 1
            assert path.name in str(error)
    assert reported


@pytest.mark.parametrize("body", [b"{\x00\x00", b"\xff\xfe", b'{"type":"message.user"}', b"[]"])
async def test_an_unreadable_event_raises_corrupt_data_error(tmp_path: Path, body: bytes) -> None:
    """Reading, folding and verifying report it."""
    file = await create_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "one", "two")
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE events SET body = ? WHERE seq = 2", (body,))
    connection.execute("DELETE FROM checkpoints")
    connection.close()
    async with await callslip.open(f"sqlite:///{file}") as ledger:
        with pytest.raises(CorruptDataError, match="an event cannot be read"):
            await read_events(ledger, "a")
        with pytest.raises(CorruptDataError, match="an event cannot be read"):
            await ledger.snapshot("a")
        differences = [str(difference) for difference in await verify(ledger.log)]
        assert any("event 2 cannot be read" in difference for difference in differences), differences


@pytest.mark.parametrize("read", [decode_event, codec.stored_decoder(dict, "an event")])
def test_a_null_body_raises_corrupt_data_error(read: Any) -> None:
    """An overwritten page may have NULL in a column that does not allow it."""
    with pytest.raises(CorruptDataError, match="an event cannot be read"):
        read(None)


async def test_a_read_that_fails_in_a_transaction_fails_all_its_writes(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite may have rolled back by then, so no write of the transaction is acknowledged."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", messages("before"))

        def raise_corrupt_error(*_: Any) -> Any:
            raise apsw.CorruptError("database disk image is malformed")

        with monkeypatch.context() as patch:
            patch.setattr(Rows, "alias", raise_corrupt_error)
            results = await asyncio.gather(
                ledger.log.append("a", messages("left")),
                ledger.log.append("a", [ev.CallStarted(aliases=(Alias("acp", "c"),))]),
                ledger.log.append("a", messages("right")),
                return_exceptions=True,
            )
        assert [type(result) for result in results] == [InvalidDatabaseError] * 3
        await ledger.log.append("a", messages("after"))
        assert [event.text for event in await read_events(ledger, "a")] == ["before", "after"]


# Versions


def execute(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()


NEWER_SCHEMA = (
    "ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE calls ADD COLUMN price INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE events ADD COLUMN signature BLOB",
    "CREATE TABLE ratings (call TEXT PRIMARY KEY, stars INTEGER)",
    "PRAGMA user_version = 99",
)


async def test_a_compatible_newer_ledger_is_opened(db: str) -> None:
    """S1.7: an older version reads and writes a newer file without a migration, and keeps its version number."""
    path = await create_ledger(db, "hello")
    execute(path, *NEWER_SCHEMA)
    async with await callslip.open(db) as ledger:
        assert [event.text for event in await read_events(ledger, "a")] == ["hello"]
        async with ledger.session("a").call("t") as call:
            call.complete("done")
        assert (await call.result()).state == "completed" and not await find_faults(ledger)
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA user_version").fetchall() == [(99,)]
    assert connection.execute("SELECT count(*) FROM ratings").fetchall() == [(0,)]
    connection.close()


async def test_columns_of_a_newer_version_survive_writes_of_an_older_one(db: str) -> None:
    """S1.7: a downgrade and an upgrade lose no data of the newer version."""
    path = await create_ledger(db, "hello")
    async with await callslip.open(db) as ledger:
        (proposed,) = await ledger.log.append("a", [ev.CallProposed(tool_name="t")])
    execute(path, *NEWER_SCHEMA, "UPDATE calls SET price = 7", "UPDATE sessions SET mood = 'merry'")
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.CallCompleted(call=proposed.call)])
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT price FROM calls").fetchall() == [(7,)]
    assert connection.execute("SELECT mood FROM sessions").fetchall() == [("merry",)]
    connection.close()


async def test_an_unsupported_newer_ledger_is_rejected_and_unchanged(db: str) -> None:
    """S1.7: the error names the required version, and the file is unchanged."""
    path = await create_ledger(db, "hello")
    execute(path, "PRAGMA user_version = 99", "UPDATE meta SET value = '98' WHERE name = 'oldest_reader'")
    before = path.read_bytes()
    with pytest.raises(UnsupportedVersionError, match=r"98.*Upgrade"):
        await callslip.open(db)
    assert path.read_bytes() == before


async def test_a_newer_ledger_without_its_oldest_reader_is_rejected(db: str) -> None:
    """S1.7: a newer file without its oldest reader is rejected."""
    path = await create_ledger(db, "hello")
    execute(path, "PRAGMA user_version = 99", "DELETE FROM meta")
    with pytest.raises(UnsupportedVersionError):
        await callslip.open(db)


async def test_migrations_bring_an_older_ledger_up_to_date(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.7: a later migration runs once when the file is opened, and keeps the data."""
    await create_ledger(db, "hello")
    existing = sqlite_open.migrations("sqlite")
    later = [*existing, (existing[-1][0] + 1, "CREATE TABLE added (x INTEGER); INSERT INTO added VALUES (1)")]
    monkeypatch.setattr(sqlite_open, "migrations", lambda engine: later)
    for _ in range(2):
        async with await callslip.open(db) as ledger:
            assert [event.text for event in await read_events(ledger, "a")] == ["hello"]
            assert ledger.log.store._read.execute("SELECT x FROM added").fetchall() == [(1,)]  # type: ignore[attr-defined]


async def test_a_migration_that_fails_changes_nothing(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.7: a failed migration is rolled back; the previous version still opens the file."""
    path = await create_ledger(db, "hello")
    existing = sqlite_open.migrations("sqlite")
    broken = [*existing, (existing[-1][0] + 1, "CREATE TABLE added (x INTEGER); INSERT INTO nowhere VALUES (1)")]
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_open, "migrations", lambda engine: broken)
        with pytest.raises(StoreError, match=path.name):
            await callslip.open(db)
    async with await callslip.open(db) as ledger:
        assert [event.text for event in await read_events(ledger, "a")] == ["hello"]
        tables = ledger.log.store._read.execute("SELECT name FROM sqlite_schema").fetchall()  # type: ignore[attr-defined]
        assert ("added",) not in tables


async def test_opening_again_after_a_failure_works(db: str) -> None:
    """A failed opening leaves no lock and no open file."""
    path = Path(db.removeprefix("sqlite:///"))
    path.write_bytes(b"not a database, for the moment" * 50)
    for _ in range(3):
        with pytest.raises(InvalidDatabaseError):
            await callslip.open(db)
    assert not [name for name in os.listdir("/proc/self/fd") if _points_to(name, path)]
    path.unlink()
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", messages("x"))


def _points_to(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(path))
    except OSError:
        return False
