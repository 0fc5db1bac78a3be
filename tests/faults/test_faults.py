"""Files that cannot be written, are full, damaged, newer than we are, or somebody else's: told in words, left as is."""

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
from callslip.api.ledger import Ledger
from callslip.errors import CorruptDataError, DiskFullError, InvalidDatabaseError, StoreError, UnsupportedVersionError
from callslip.ledger.verify import verify
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, decode_event
from callslip.store import sqlite_open
from callslip.store.sqlite_rows import Rows
from tests.support.faulty_disk import Disk
from tests.support.invariants import PROGRAMS, events, faults, opened

pytestmark = pytest.mark.anyio


def said(*texts: str) -> list[ev.Event]:
    return [ev.MessageUser(text=text) for text in texts]


async def made(db: str, *texts: str) -> Path:
    """A ledger of one session, closed."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", said(*texts or ("hello",)))
    return Path(db.removeprefix("sqlite:///"))


# Full


async def fill(ledger: Ledger, session: str, text: str) -> tuple[list[str], DiskFullError]:
    """Append until there is no room; what was acknowledged, and what was said then."""
    kept: list[str] = []
    for number in range(10_000):
        try:
            await ledger.log.append(session, said(f"{number} {text}", f"{number}!"))
        except DiskFullError as full:
            return kept, full
        kept += [f"{number} {text}", f"{number}!"]
    raise AssertionError("the disk never got full")


async def test_a_full_disk_refuses_and_keeps_what_it_had(db: str) -> None:
    """Nothing of the refused write is there, all before it is; reading goes on, and writing when there is room."""
    with Disk() as disk:
        async with await opened(db, checkpoint_every=10) as ledger:
            disk.room = 400_000
            kept, full = await fill(ledger, "a", "x" * 3000)
            assert "no room" in str(full) and "ledger.db" in str(full)
            assert kept and [event.text for event in await events(ledger, "a")] == kept
            assert len((await ledger.snapshot("a")).entries) == len(kept)
            for _ in range(3):
                with pytest.raises(DiskFullError):
                    await ledger.log.append("b", said("y" * 100_000))
            disk.room = None
            await ledger.log.append("a", said("room again"))
            assert [event.text for event in await events(ledger, "a")] == [*kept, "room again"]
            assert await ledger.log.store.session("b") is None and not await faults(ledger)


@pytest.mark.chaos
async def test_whenever_the_disk_gets_full_nothing_is_half_written(tmp_path: Path, scale: int) -> None:
    """A write that met a full disk, in the log, in a checkpoint or in a blob, leaves a sound ledger without it."""
    for run in range(6 * min(scale, 20)):
        chance = random.Random(run)
        url = f"sqlite:///{tmp_path / str(run) / 'ledger.db'}"
        with Disk() as disk:
            ledger = await opened(url, checkpoint_every=4, inline_limit=1000, preview=50)
            ledger.log.store._writing.execute("PRAGMA wal_autocheckpoint = 10").fetchall()  # type: ignore[attr-defined]
            acknowledged: list[ev.Event] = []
            full = 0
            for number in range(60):
                disk.room = None if chance.random() < 0.5 else chance.randrange(60_000)
                drafts: list[Any] = said(f"{number}", "z" * chance.randrange(6000))
                if chance.random() < 0.3:
                    drafts.append(ev.CallCompleted(output="w" * chance.randrange(9000)))
                try:
                    acknowledged += await ledger.log.append("a", drafts)
                except DiskFullError:
                    full += 1
            disk.room = None
            assert full, "the disk was never full"
            assert await events(ledger, "a") == acknowledged
            await ledger.log.append("a", said("end"))
            assert not await faults(ledger)
            await ledger.close()
        async with await callslip.open(url) as ledger:
            assert (await events(ledger, "a"))[:-1] == acknowledged and not await faults(ledger)


def disk_use(disk: Disk) -> int:
    return max((size for path, size in disk.sizes.items() if path.endswith("-wal")), default=0)


async def test_a_full_disk_refuses_all_who_share_the_transaction(db: str) -> None:
    """Of many writers at once, each hears that nothing of its own was kept, and none waits for ever."""
    with Disk() as disk:
        async with await callslip.open(db) as ledger:
            await ledger.log.append("a", said("first"))
            disk.room = disk_use(disk)
            async with asyncio.timeout(10):
                results = await asyncio.gather(
                    *(ledger.log.append("a", said(str(n) * 5000)) for n in range(20)), return_exceptions=True
                )
            assert {type(result) for result in results} == {DiskFullError}
            disk.room = None
            assert [event.text for event in await events(ledger, "a")] == ["first"]


async def test_a_limit_on_the_file_is_a_full_disk_too(db: str) -> None:
    """SQLite's own bound on the number of pages is told in the same words."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", said("x"))
        pages = ledger.log.store._writing.execute("PRAGMA page_count").fetchall()[0][0]  # type: ignore[attr-defined]
        ledger.log.store._writing.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()  # type: ignore[attr-defined]
        kept, _ = await fill(ledger, "a", "x" * 500)
        ledger.log.store._writing.execute("PRAGMA max_page_count = 1000000").fetchall()  # type: ignore[attr-defined]
        await ledger.log.append("a", said("room again"))
        assert [event.text for event in await events(ledger, "a")] == ["x", *kept, "room again"]
        assert not await faults(ledger)


async def test_a_call_that_ends_on_a_full_disk_is_told_and_can_still_end(db: str) -> None:
    """C5: the program hears StoreFull; when there is room again, closing the ledger ends the call."""
    with Disk() as disk:
        ledger = await callslip.open(db)
        with pytest.raises(DiskFullError):
            async with ledger.session("a").call("t") as call:
                disk.room = disk_use(disk)
                call.complete("x" * 20_000)
        assert (await call.result()).state == "running"
        disk.room = None
        await ledger.close()
        async with await callslip.open(db) as ledger:
            row = await ledger.find_call(call.id)
            assert row.state == "lost" and "closed" in row.reason


# Disks that fail


@pytest.mark.parametrize("method", ["xWrite", "xSync", "xRead"])
async def test_a_failing_disk_is_told_in_our_words(db: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error in the middle of a write reaches the writer as a StoreError, and nothing is half-written."""
    from tests.support import faulty_disk as disks

    with Disk():
        async with await callslip.open(db) as ledger:
            await ledger.log.append("a", said("before"))
            ledger.log.store._writing.execute("PRAGMA cache_size = 0").fetchall()  # type: ignore[attr-defined]

            def broken(*_: Any) -> Any:
                raise apsw.IOError("broken")

            with monkeypatch.context() as patch:
                patch.setattr(disks.File, method, broken, raising=False)
                results = await asyncio.gather(
                    *(ledger.log.append("a", [ev.CallProposed(tool_name="t")]) for _ in range(5)),
                    return_exceptions=True,
                )
            if method != "xRead":  # Pages may still be remembered.
                assert all(isinstance(result, StoreError) for result in results)
            assert all(isinstance(result, StoreError | list) for result in results)
            await ledger.log.append("a", said("after"))
            assert not await faults(ledger)
            kept = [event.seq for result in results if isinstance(result, list) for event in result]
            assert len(await events(ledger, "a")) == 2 + len(kept)


# Read-only


def as_nobody(url: str) -> dict[str, str]:
    run = subprocess.run([sys.executable, str(PROGRAMS / "as_nobody.py"), url], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that anybody may enter and read; pytest's own are for their owner alone."""
    with tempfile.TemporaryDirectory(prefix="callslip-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


READS = "(2, ['hello', 'there'])"


@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o755), (0o666, 0o555), (0o444, 0o555)])
async def test_what_may_not_be_written_is_read(reachable: Path, file: int, folder: int) -> None:
    """A file or a folder without write permission opens read-only: reading works, writing says why not."""
    path = await made(f"sqlite:///{reachable / 'ledger.db'}", "hello", "there")
    path.chmod(file)
    reachable.chmod(folder)
    before = path.read_bytes()
    told = as_nobody(f"sqlite:///{path}")
    assert told["open"] == "read-only" and told["read"] == READS and told["verify"] == "[]"
    assert {told[name].partition(":")[0] for name in ("append", "call", "delete")} == {"ReadOnly"}
    assert "ledger.db" in told["append"]
    assert path.read_bytes() == before


async def test_the_newest_events_are_read_from_a_folder_that_may_not_be_written(reachable: Path) -> None:
    """What a process that was killed left in the WAL is read too."""
    db = f"sqlite:///{reachable / 'ledger.db'}"
    ledger = await callslip.open(db)
    await ledger.log.append("a", said("hello", "there"))
    copied = reachable / "copy"
    copied.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copy(reachable / name, copied / name)
    await ledger.close()
    assert (copied / "ledger.db-wal").stat().st_size
    for path in copied.iterdir():
        path.chmod(0o444)
    copied.chmod(0o555)
    told = as_nobody(f"sqlite:///{copied / 'ledger.db'}")
    assert (told["open"], told["read"]) == ("read-only", READS)


async def test_a_folder_that_may_not_be_written_takes_no_new_ledger(reachable: Path) -> None:
    """The error names the file and says what is wrong."""
    reachable.chmod(0o555)
    told = as_nobody(f"sqlite:///{reachable / 'new.db'}")
    assert told["open"].startswith("ReadOnly:") and "new.db" in told["open"]
    assert list(reachable.iterdir()) == []


async def test_a_file_that_may_not_be_read_says_so(reachable: Path) -> None:
    """No permission at all is an error in words."""
    path = await made(f"sqlite:///{reachable / 'ledger.db'}")
    path.chmod(0o000)
    told = as_nobody(f"sqlite:///{path}")
    assert told["open"].startswith("StoreError:") and "ledger.db" in told["open"]


# Somebody else's

ALIEN = {
    "random bytes": random.Random(5).randbytes(50_000),
    "text": b"Dear diary,\n" * 500,
    "a short text": b"x",
    "JSON": b'{"sessions": []}',
    "zeros": bytes(8192),
    "a header and nothing else": b"SQLite format 3\x00",
    "a header and rubbish": b"SQLite format 3\x00" + random.Random(6).randbytes(8176),
}


@pytest.mark.parametrize("name", ALIEN)
async def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    """What is not a database is never made one, nor is anything left beside it."""
    path = tmp_path / "diary"
    path.write_bytes(ALIEN[name])
    with pytest.raises(InvalidDatabaseError, match="diary"):
        await callslip.open(f"sqlite:///{path}")
    assert path.read_bytes() == ALIEN[name]
    assert [item.name for item in tmp_path.iterdir()] == ["diary"]


async def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    """Nor is a path through a file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for url in (tmp_path / "folder", tmp_path / "file" / "ledger.db"):
        with pytest.raises(StoreError, match=url.name):
            await callslip.open(f"sqlite:///{url}")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path, journal: str) -> None:
    """Its bytes are the same afterwards, also where it has a WAL of its own that nobody took over yet."""
    path = tmp_path / "places.sqlite"
    theirs = apsw.Connection(str(path))
    theirs.execute(f"PRAGMA journal_mode = {journal}").fetchall()
    theirs.execute(
        "CREATE TABLE places (id INTEGER PRIMARY KEY, url TEXT); INSERT INTO places VALUES (1, 'x')"
    ).fetchall()
    copied = tmp_path / "copy"
    copied.mkdir()
    for file in tmp_path.glob("places.sqlite*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, copied / file.name)
    theirs.close()
    before = {file.name: file.read_bytes() for file in copied.iterdir()}
    with pytest.raises(InvalidDatabaseError, match="another program"):
        await callslip.open(f"sqlite:///{copied / 'places.sqlite'}")
    after = {file.name: file.read_bytes() for file in copied.iterdir() if not file.name.endswith("-shm")}
    assert after == before


async def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    """As `mktemp` makes them."""
    path = tmp_path / "ledger.db"
    path.touch()
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.log.append("a", said("x"))
        assert not await faults(ledger)


async def test_postgres_is_not_taken_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of another kind never becomes the name of a file."""
    monkeypatch.chdir(tmp_path)
    for url in (
        "mysql://localhost/x",
        "postgresql+asyncpg://localhost/x",
        "http://localhost:7890",
        "sqlite://agent.db",
        "",
    ):
        with pytest.raises(StoreError):
            await callslip.open(url)
    assert list(tmp_path.iterdir()) == []


# Damaged


@pytest.mark.chaos
async def test_damage_is_told_in_words(tmp_path: Path, scale: int) -> None:
    """With a part of a page overwritten, opening, reading and writing work or say that the file is damaged."""
    texts = [f"{number} " + "x" * 300 for number in range(200)]
    whole = (await made(f"sqlite:///{tmp_path / 'whole.db'}", *texts)).read_bytes()
    told = 0
    for run in range(20 * scale):
        chance = random.Random(run)
        data = bytearray(whole)
        start = chance.randrange(len(data) // 4096) * 4096 + chance.choice((0, 100, chance.randrange(4000)))
        data[start : start + 96] = chance.choice((bytes(96), chance.randbytes(96)))
        path = tmp_path / f"{run}.db"
        path.write_bytes(data)
        try:
            async with await callslip.open(f"sqlite:///{path}") as ledger:
                told += bool(await ledger.log.store.check())
                await events(ledger, "a")
                await ledger.log.append("a", said("more"))
        except CorruptDataError:
            told += 1  # The bytes of one event: SQLite cannot know.
        except StoreError as error:
            told += 1
            assert path.name in str(error)
    assert told


@pytest.mark.parametrize("body", [b"{\x00\x00", b"\xff\xfe", b'{"type":"message.user"}', b"[]"])
async def test_an_event_that_cannot_be_read_is_told_as_damage(tmp_path: Path, body: bytes) -> None:
    """Whoever reads it, and however: its bytes are not what was written."""
    file = await made(f"sqlite:///{tmp_path / 'ledger.db'}", "one", "two")
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE events SET body = ? WHERE seq = 2", (body,))
    connection.execute("DELETE FROM checkpoints")
    connection.close()
    async with await callslip.open(f"sqlite:///{file}") as ledger:
        with pytest.raises(CorruptDataError, match="an event cannot be read"):
            await events(ledger, "a")
        with pytest.raises(CorruptDataError, match="an event cannot be read"):
            await ledger.snapshot("a")
        told = [str(difference) for difference in await verify(ledger.log)]
        assert any("event 2 cannot be read" in one for one in told), told


@pytest.mark.parametrize("read", [decode_event, codec.reader(dict, "an event")])
def test_what_are_no_bytes_any_more_is_told_as_damage(read: Any) -> None:
    """A page that was overwritten may have a NULL where no column allows one."""
    with pytest.raises(CorruptDataError, match="an event cannot be read"):
        read(None)


async def test_a_read_that_fails_inside_a_write_fails_the_whole_of_it(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite may have undone the transaction by then: nobody in it is told that his part was kept."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", said("before"))

        def damaged(*_: Any) -> Any:
            raise apsw.CorruptError("database disk image is malformed")

        with monkeypatch.context() as patch:
            patch.setattr(Rows, "alias", damaged)
            results = await asyncio.gather(
                ledger.log.append("a", said("left")),
                ledger.log.append("a", [ev.CallStarted(aliases=(Alias("acp", "c"),))]),
                ledger.log.append("a", said("right")),
                return_exceptions=True,
            )
        assert [type(result) for result in results] == [InvalidDatabaseError] * 3
        await ledger.log.append("a", said("after"))
        assert [event.text for event in await events(ledger, "a")] == ["before", "after"]


# Versions


def change(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()


NEWER = (
    "ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE calls ADD COLUMN price INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE events ADD COLUMN signature BLOB",
    "CREATE TABLE ratings (call TEXT PRIMARY KEY, stars INTEGER)",
    "PRAGMA user_version = 99",
)


async def test_a_newer_ledger_that_only_added_is_opened(db: str) -> None:
    """S1.7: an older version reads and writes what a newer one left, without a migration, and leaves its mark alone."""
    path = await made(db, "hello")
    change(path, *NEWER)
    async with await callslip.open(db) as ledger:
        assert [event.text for event in await events(ledger, "a")] == ["hello"]
        async with ledger.session("a").call("t") as call:
            call.complete("done")
        assert (await call.result()).state == "completed" and not await faults(ledger)
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA user_version").fetchall() == [(99,)]
    assert connection.execute("SELECT count(*) FROM ratings").fetchall() == [(0,)]
    connection.close()


async def test_a_newer_version_finds_its_own_columns_after_an_older_one_wrote(db: str) -> None:
    """S1.7: rolling back and forth loses nothing of what only the newer version knows."""
    path = await made(db, "hello")
    async with await callslip.open(db) as ledger:
        (proposed,) = await ledger.log.append("a", [ev.CallProposed(tool_name="t")])
    change(path, *NEWER, "UPDATE calls SET price = 7", "UPDATE sessions SET mood = 'merry'")
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.CallCompleted(call=proposed.call)])
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT price FROM calls").fetchall() == [(7,)]
    assert connection.execute("SELECT mood FROM sessions").fetchall() == [("merry",)]
    connection.close()


async def test_a_newer_ledger_that_we_cannot_read_is_left_alone(db: str) -> None:
    """S1.7: the error says what is needed, and the file is as it was."""
    path = await made(db, "hello")
    change(path, "PRAGMA user_version = 99", "UPDATE meta SET value = '98' WHERE name = 'oldest_reader'")
    before = path.read_bytes()
    with pytest.raises(UnsupportedVersionError, match=r"98.*Upgrade"):
        await callslip.open(db)
    assert path.read_bytes() == before


async def test_the_oldest_reader_of_a_newer_ledger_must_be_known(db: str) -> None:
    """S1.7: a newer file that does not say who can read it is not guessed at."""
    path = await made(db, "hello")
    change(path, "PRAGMA user_version = 99", "DELETE FROM meta")
    with pytest.raises(UnsupportedVersionError):
        await callslip.open(db)


async def test_migrations_bring_an_older_ledger_up_to_date(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.7: what a later migration adds is there after opening, what was there stays, and it is done once."""
    await made(db, "hello")
    known = sqlite_open.migrations("sqlite")
    later = [*known, (known[-1][0] + 1, "CREATE TABLE added (x INTEGER); INSERT INTO added VALUES (1)")]
    monkeypatch.setattr(sqlite_open, "migrations", lambda engine: later)
    for _ in range(2):
        async with await callslip.open(db) as ledger:
            assert [event.text for event in await events(ledger, "a")] == ["hello"]
            assert ledger.log.store._read.execute("SELECT x FROM added").fetchall() == [(1,)]  # type: ignore[attr-defined]


async def test_a_migration_that_fails_changes_nothing(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.7: half a migration is none; the version before it still opens the file."""
    path = await made(db, "hello")
    known = sqlite_open.migrations("sqlite")
    broken = [*known, (known[-1][0] + 1, "CREATE TABLE added (x INTEGER); INSERT INTO nowhere VALUES (1)")]
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_open, "migrations", lambda engine: broken)
        with pytest.raises(StoreError, match=path.name):
            await callslip.open(db)
    async with await callslip.open(db) as ledger:
        assert [event.text for event in await events(ledger, "a")] == ["hello"]
        tables = ledger.log.store._read.execute("SELECT name FROM sqlite_schema").fetchall()  # type: ignore[attr-defined]
        assert ("added",) not in tables


async def test_opening_again_after_a_failure_works(db: str) -> None:
    """No lock and no thread of a failed opening stays behind."""
    path = Path(db.removeprefix("sqlite:///"))
    path.write_bytes(b"not a database, for the moment" * 50)
    for _ in range(3):
        with pytest.raises(InvalidDatabaseError):
            await callslip.open(db)
    assert not [name for name in os.listdir("/proc/self/fd") if _points_to(name, path)]
    path.unlink()
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", said("x"))


def _points_to(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(path))
    except OSError:
        return False
