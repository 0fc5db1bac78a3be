"""The power goes while a ledger is written: what was acknowledged is there afterwards, and nothing is half there."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from callslip.api.ledger import Ledger
from callslip.errors import CallslipError
from callslip.model import events as ev
from tests.support.faulty_disk import Acknowledged, Delete, Disk, Image, Write, images
from tests.support.invariants import events, faults, opened

RUNS = 2
CUTS = 60


async def record(disk: Disk, url: str, synchronous: str, pages: int, chance: random.Random) -> None:
    """Write all kinds of things, several at once, through many resets of the WAL; note what was acknowledged."""
    ledger = await opened(url, synchronous=synchronous, checkpoint_every=8, inline_limit=2000, preview=100)
    ledger.log.store._writing.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()  # type: ignore[attr-defined]
    say = disk.log.append

    async def messages(session: str, count: int) -> None:
        for number in range(count):
            drafts = [ev.MessageUser(text=f"{session} {number} " + "x" * chance.randrange(300))] * chance.randrange(
                1, 4
            )
            say(Acknowledged(await ledger.log.append(session, drafts)))

    async def calls(session: str, count: int) -> None:
        for number in range(count):
            async with ledger.session(session).call("work", {"number": number}) as call:
                await call.progress(f"half of {number}\n")
                call.complete("y" * chance.choice((10, 5000)))
            say(Acknowledged(await events(ledger, session)))

    async def short_lived() -> None:
        for number in range(4):
            await ledger.log.append("brief", [ev.MessageUser(text=f"brief {number}")])
            await ledger.delete("brief")
            say(Acknowledged(number))

    await asyncio.gather(messages("a", 20), messages("b", 20), calls("c", 6), calls("d", 6), short_lived())
    await ledger.close()


async def missing(ledger: Ledger, acknowledged: list[Any]) -> list[Any]:
    """What was acknowledged and is not there."""
    lost: list[Any] = []
    logs: dict[str, dict[int, ev.Event]] = {}
    for session in "abcd":
        logs[session] = {event.seq: event for event in await events(ledger, session)}
    for what in acknowledged:
        if isinstance(what, list):
            # Sessions can be told from the texts and tools of their events; a call's session is c or d.
            lost += [event for event in what if not any(log.get(event.seq) == event for log in logs.values())]
    return lost


async def after(image: Image, folder: Path) -> tuple[Ledger, list[Any]]:
    """The ledger opened from what the disk held, and what it lost."""
    image.lay_out(folder)
    ledger = await opened(f"sqlite:///{folder / 'ledger.db'}")
    return ledger, await missing(ledger, image.acknowledged)


async def risen(ledger: Ledger, acknowledged: list[Any]) -> list[Any]:
    """What was deleted and is there again."""
    deleted = max((what for what in acknowledged if isinstance(what, int)), default=-1)
    return [event.text for event in await events(ledger, "brief") if int(event.text.split()[1]) <= deleted]


async def log_of(folder: Path, synchronous: str, pages: int, chance: random.Random) -> list[Any]:
    with Disk() as disk:
        await record(disk, f"sqlite:///{folder / 'ledger.db'}", synchronous, pages, chance)
        return disk.log


@pytest.mark.anyio
@pytest.mark.chaos
async def test_acknowledged_events_survive_a_power_cut_at_any_moment(tmp_path: Path, scale: int) -> None:
    """C6: whatever of the unsynced writes reaches the disk, the acknowledged events are there, gap-free and sound."""
    torn = 0
    for run in range(RUNS * scale):
        chance = random.Random(run)
        folder = tmp_path / f"run{run}"
        folder.mkdir()
        log = await log_of(folder, "FULL", chance.choice((6, 20, 60)), chance)
        cuts = [chance.randrange(1, len(log) + 1) for _ in range(CUTS)]
        for number, image in enumerate(images(log, cuts, chance)):
            torn += image.unsynced > 0
            ledger, lost = await after(image, folder / f"cut{number}")
            assert not lost, f"run {run}, cut {number}"
            assert not await faults(ledger), f"run {run}, cut {number}"
            assert not await risen(ledger, image.acknowledged), f"run {run}, cut {number}"
            await ledger.log.append("a", [ev.MessageUser(text="on we go")])
            await ledger.close()
            shutil.rmtree(folder / f"cut{number}")
    assert torn > CUTS, "hardly a cut fell between a write and its sync"


@pytest.mark.anyio
async def test_a_power_cut_while_the_file_is_made_leaves_one_that_opens(tmp_path: Path) -> None:
    """C6: at each of the first steps, whatever of them reached the disk, the next opening makes the ledger."""
    chance = random.Random(5)
    log = await log_of(tmp_path, "FULL", 20, chance)
    made = next(number for number, line in enumerate(log, 1) if isinstance(line, Delete))  # of the first journal
    torn = next(number for number, line in enumerate(log, 1) if isinstance(line, Write) and line.path.endswith(".db"))
    cuts = [cut for cut in range(1, made + 4) for _ in range(4)] + [torn] * 30
    for number, image in enumerate(images(log, cuts, chance)):
        ledger, _ = await after(image, tmp_path / f"cut{number}")
        await ledger.log.append("a", [ev.MessageUser(text="on we go")])
        assert not await faults(ledger)
        await ledger.close()


@pytest.mark.anyio
async def test_a_call_open_at_the_power_cut_is_lost_afterwards(tmp_path: Path) -> None:
    """C5: no call is shown as running for ever because the power went."""
    chance = random.Random(7)
    log = await log_of(tmp_path, "FULL", 20, chance)
    cuts = [number for number, line in enumerate(log, 1) if isinstance(line, Acknowledged)][:-1]
    seen = 0
    for number, image in enumerate(images(log, chance.sample(cuts, 12), chance)):
        image.lay_out(tmp_path / f"cut{number}")
        path = tmp_path / f"cut{number}" / "ledger.db"
        _other_boot(path)
        ledger = await opened(f"sqlite:///{path}", owner_lease=0.01, reaper_grace=0.01, reaper_interval=0.01)
        open_before = await ledger.log.store.open_calls()
        seen += len(open_before)
        async with asyncio.timeout(10):
            for row in open_before:
                ended = await ledger.wait(row.id)
                assert (ended.state, ended.reason) == ("lost", "its owner went silent")
        await ledger.close()
    assert seen, "no call was open at any cut"


def _other_boot(path: Path) -> None:
    """After a power cut the machine has a new boot id: what an owner's name begins with is another one now."""
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE calls SET owner = 'boot-before' || substr(owner, 12) WHERE owner <> ''").fetchall()
    connection.execute("UPDATE owners SET id = 'boot-before' || substr(id, 12), until = 1").fetchall()
    connection.close()


@pytest.mark.anyio
async def test_the_disk_of_these_tests_loses_what_was_not_synced(tmp_path: Path) -> None:
    """The same with `synchronous=NORMAL` loses acknowledged events and stays sound: so the tests above can fail."""
    chance = random.Random(1)
    log = await log_of(tmp_path, "NORMAL", 60, chance)
    lossy = 0
    for number, image in enumerate(images(log, [chance.randrange(1, len(log)) for _ in range(30)], chance)):
        ledger, lost = await after(image, tmp_path / f"cut{number}")
        lossy += bool(lost)
        assert not await faults(ledger)
        await ledger.close()
    assert lossy


@pytest.mark.anyio
async def test_a_lying_disk_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Where the disk ignores every sync, all may be lost; but reading what is left works or says what is wrong."""
    chance = random.Random(2)
    log = await log_of(tmp_path, "FULL", 20, chance)
    deaf = [line for line in log if type(line).__name__ != "Sync"]
    for number, image in enumerate(images(deaf, [chance.randrange(1, len(deaf)) for _ in range(20)], chance)):
        image.lay_out(tmp_path / f"cut{number}")
        with contextlib.suppress(CallslipError):
            async with await opened(f"sqlite:///{tmp_path / f'cut{number}' / 'ledger.db'}") as ledger:
                await faults(ledger)
                await ledger.log.append("a", [ev.MessageUser(text="on we go")])
