"""Test power cuts during writes: acknowledged events survive, and no write is partial."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from callslip.api.ledger import LocalLedger
from callslip.errors import CallslipError
from callslip.model import events as ev
from tests.support.faulty_disk import Acknowledged, Delete, Disk, Image, Write, cut_images
from tests.support.invariants import find_faults, open_with_settings, read_events

RUNS = 2
CUTS = 60


async def write_ledger(disk: Disk, url: str, synchronous: str, pages: int, rng: random.Random) -> None:
    """Write messages, calls and deletions concurrently through many resets of the WAL. Note what was acknowledged."""
    ledger = await open_with_settings(url, synchronous=synchronous, checkpoint_every=8, inline_limit=2000, preview=100)
    ledger.log.store._writing.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()  # type: ignore[attr-defined]
    log_operation = disk.log.append

    async def write_messages(session: str, count: int) -> None:
        for number in range(count):
            drafts = [ev.MessageUser(text=f"{session} {number} " + "x" * rng.randrange(300))] * rng.randrange(1, 4)
            log_operation(Acknowledged(await ledger.log.append(session, drafts)))

    async def run_calls(session: str, count: int) -> None:
        for number in range(count):
            async with ledger.session(session).call("work", {"number": number}) as call:
                await call.progress(f"half of {number}\n")
                call.complete("y" * rng.choice((10, 5000)))
            log_operation(Acknowledged(await read_events(ledger, session)))

    async def delete_sessions() -> None:
        for number in range(4):
            await ledger.log.append("brief", [ev.MessageUser(text=f"brief {number}")])
            await ledger.delete("brief")
            log_operation(Acknowledged(number))

    await asyncio.gather(
        write_messages("a", 20), write_messages("b", 20), run_calls("c", 6), run_calls("d", 6), delete_sessions()
    )
    await ledger.close()


async def find_missing(ledger: LocalLedger, acknowledged: list[Any]) -> list[Any]:
    """Return the acknowledged events that are not in the ledger."""
    missing: list[Any] = []
    logs: dict[str, dict[int, ev.Event]] = {}
    for session in "abcd":
        logs[session] = {event.seq: event for event in await read_events(ledger, session)}
    for item in acknowledged:
        if isinstance(item, list):
            # Texts and tools identify the session of an event; a call's session is c or d.
            missing += [event for event in item if not any(log.get(event.seq) == event for log in logs.values())]
    return missing


async def open_image(image: Image, folder: Path) -> tuple[LocalLedger, list[Any]]:
    """Open the ledger from the disk image. Return it with the events it lost."""
    image.write_files(folder)
    ledger = await open_with_settings(f"sqlite:///{folder / 'ledger.db'}")
    return ledger, await find_missing(ledger, image.acknowledged)


async def find_undeleted(ledger: LocalLedger, acknowledged: list[Any]) -> list[Any]:
    """Return the deleted texts that are in the ledger again."""
    deleted = max((item for item in acknowledged if isinstance(item, int)), default=-1)
    return [event.text for event in await read_events(ledger, "brief") if int(event.text.split()[1]) <= deleted]


async def record_disk_log(folder: Path, synchronous: str, pages: int, rng: random.Random) -> list[Any]:
    with Disk() as disk:
        await write_ledger(disk, f"sqlite:///{folder / 'ledger.db'}", synchronous, pages, rng)
        return disk.log


@pytest.mark.anyio
@pytest.mark.chaos
async def test_acknowledged_events_survive_a_power_cut_at_any_moment(tmp_path: Path, scale: int) -> None:
    """C6: whichever unsynced writes reach the disk, the acknowledged events are stored without gaps."""
    unsynced_cuts = 0
    for run in range(RUNS * scale):
        rng = random.Random(run)
        folder = tmp_path / f"run{run}"
        folder.mkdir()
        log = await record_disk_log(folder, "FULL", rng.choice((6, 20, 60)), rng)
        cuts = [rng.randrange(1, len(log) + 1) for _ in range(CUTS)]
        for number, image in enumerate(cut_images(log, cuts, rng)):
            unsynced_cuts += image.unsynced > 0
            ledger, missing = await open_image(image, folder / f"cut{number}")
            assert not missing, f"run {run}, cut {number}"
            assert not await find_faults(ledger), f"run {run}, cut {number}"
            assert not await find_undeleted(ledger, image.acknowledged), f"run {run}, cut {number}"
            await ledger.log.append("a", [ev.MessageUser(text="continue")])
            await ledger.close()
            shutil.rmtree(folder / f"cut{number}")
    assert unsynced_cuts > CUTS, "too few cuts were between a write and its sync"


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_power_cut_during_creation_leaves_a_file_that_opens(tmp_path: Path) -> None:
    """C6: after a cut at any of the first operations, opening the file completes its creation."""
    rng = random.Random(5)
    log = await record_disk_log(tmp_path, "FULL", 20, rng)
    steps = list(enumerate(log, 1))
    created = next(number for number, step in steps if isinstance(step, Delete))  # Of the first journal.
    first_write = next(number for number, step in steps if isinstance(step, Write) and step.path.endswith(".db"))
    cuts = [cut for cut in range(1, created + 4) for _ in range(4)] + [first_write] * 30
    for number, image in enumerate(cut_images(log, cuts, rng)):
        ledger, _ = await open_image(image, tmp_path / f"cut{number}")
        await ledger.log.append("a", [ev.MessageUser(text="continue")])
        assert not await find_faults(ledger)
        await ledger.close()


@pytest.mark.anyio
async def test_a_call_open_at_the_power_cut_is_lost_afterwards(tmp_path: Path) -> None:
    """C5: no call stays running forever after a power cut."""
    rng = random.Random(7)
    log = await record_disk_log(tmp_path, "FULL", 20, rng)
    cuts = [number for number, operation in enumerate(log, 1) if isinstance(operation, Acknowledged)][:-1]
    open_count = 0
    for number, image in enumerate(cut_images(log, rng.sample(cuts, 12), rng)):
        image.write_files(tmp_path / f"cut{number}")
        path = tmp_path / f"cut{number}" / "ledger.db"
        _change_boot_id(path)
        ledger = await open_with_settings(f"sqlite:///{path}", owner_lease=3.0, reaper_grace=0.01, reaper_interval=0.01)
        open_before = await ledger.log.store.open_calls()
        open_count += len(open_before)
        async with asyncio.timeout(60):
            for row in open_before:
                ended = await ledger.wait(row.id)
                assert (ended.state, ended.reason) == (
                    "lost",
                    "the process that owns this call stopped renewing its lease",
                )
        await ledger.close()
    assert open_count, "no call was open at any cut"


def _change_boot_id(path: Path) -> None:
    """Change the boot id, the start of an owner's name, as a restart of the machine does."""
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE calls SET owner = 'boot-before' || substr(owner, 12) WHERE owner <> ''").fetchall()
    connection.execute("UPDATE owners SET id = 'boot-before' || substr(id, 12), until = 1").fetchall()
    connection.close()


@pytest.mark.anyio
async def test_the_simulated_disk_loses_unsynced_writes(tmp_path: Path) -> None:
    """With `synchronous=NORMAL` acknowledged events are lost, so the tests above can fail."""
    rng = random.Random(1)
    log = await record_disk_log(tmp_path, "NORMAL", 60, rng)
    lossy_cuts = 0
    for number, image in enumerate(cut_images(log, [rng.randrange(1, len(log)) for _ in range(30)], rng)):
        ledger, missing = await open_image(image, tmp_path / f"cut{number}")
        lossy_cuts += bool(missing)
        assert not await find_faults(ledger)
        await ledger.close()
    assert lossy_cuts


@pytest.mark.anyio
async def test_a_disk_that_ignores_syncs_never_crashes_the_reader(tmp_path: Path) -> None:
    """Events may be lost, but reading the rest works or raises an error of ours."""
    rng = random.Random(2)
    log = await record_disk_log(tmp_path, "FULL", 20, rng)
    unsynced_log = [operation for operation in log if type(operation).__name__ != "Sync"]
    for number, image in enumerate(
        cut_images(unsynced_log, [rng.randrange(1, len(unsynced_log)) for _ in range(20)], rng)
    ):
        image.write_files(tmp_path / f"cut{number}")
        with contextlib.suppress(CallslipError):
            async with await open_with_settings(f"sqlite:///{tmp_path / f'cut{number}' / 'ledger.db'}") as ledger:
                await find_faults(ledger)
                await ledger.log.append("a", [ev.MessageUser(text="continue")])
