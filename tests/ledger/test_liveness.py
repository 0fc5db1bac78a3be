"""Every call ends, by its result or because no process is left to send one, and no call ends too early (C5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

import callslip
from callslip.api.access import FULL_ACCESS
from callslip.api.commands import ClaimOptions, CommandQueue
from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError, StoreError
from callslip.ledger import liveness
from callslip.ledger.liveness import Reaper, is_dead, is_here, new_owner
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.records import CallRecord, OwnerRecord, SessionRecord
from callslip.settings import Settings
from tests.support.engines import read_only_url
from tests.support.invariants import open_with_settings, read_events, sound_ledger

pytestmark = pytest.mark.anyio

NEVER_S = 1e6
REMOTE_OWNER = "other-boot/pid:[1] 77 12345 1"
OTHER_REMOTE_OWNER = "third-boot/pid:[1] 77 12345 1"


class Clocks:
    """A fake wall clock, which can be set, and a fake monotonic clock."""

    def __init__(self) -> None:
        self.wall = time.time()
        self.monotonic = 1000.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    new_clocks = Clocks()
    monkeypatch.setattr(time, "time", lambda: new_clocks.wall)
    return new_clocks


@pytest.fixture
async def ledger(db: str, clocks: Clocks) -> AsyncIterator[LocalLedger]:
    """A ledger whose own reaper never runs."""
    async with sound_ledger(db, reaper_interval=NEVER_S) as instance:
        yield instance


@pytest.fixture
def reaper(ledger: LocalLedger, clocks: Clocks) -> Reaper:
    return make_reaper(ledger, clocks)


def make_reaper(ledger: LocalLedger, clocks: Clocks) -> Reaper:
    context = ledger.log.write_context(source="callslip", strict=True)
    return Reaper(ledger.log.store, context, ledger.log.settings, monotonic=lambda: clocks.monotonic)


def leave_lease(ledger: LocalLedger, owner: str) -> None:
    """Let the lease of an owner end unless another process renews it: this one would, in slow tests."""
    if owner in (REMOTE_OWNER, OTHER_REMOTE_OWNER):
        ledger.log._owner_leases.pop(owner)  # pyright: ignore[reportPrivateUsage]


async def start_call(ledger: LocalLedger, *drafts: ev.Event, owner: str = "", session: str = "a") -> str:
    events = await ledger.log.append(session, drafts or [ev.CallStarted(tool_name="t")], owner=owner)
    leave_lease(ledger, owner)
    assert isinstance(events[-1], ev.CallEvent)
    return events[-1].call


async def call_state(ledger: LocalLedger, call: str) -> tuple[str, str]:
    row = await ledger.find_call(call)
    return row.state, row.reason


# Owners


def test_a_reused_pid_is_not_the_owner() -> None:
    """C5: a pid used again by another process, or on another machine."""
    mine = new_owner()
    host, pid, started, number = mine.split(" ")
    assert int(pid) == os.getpid() and not is_dead(mine) and is_here(mine)
    assert is_dead(f"{host} {pid} 1{started} {number}")
    assert is_dead(f"{host} 999999999 {started} {number}")
    assert not is_dead(f"elsewhere {pid} 1{started} {number}") and not is_here(f"elsewhere {pid}")
    for invalid_owner in ("", "x", f"{host}", f"{host} x y z", f"{host} {pid}"):
        assert not is_dead(invalid_owner)
    assert new_owner() != mine


class Host:
    """The files and the name by which a machine is identified, which a test may change."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        for file, text in (("BOOT_ID_FILE", "same-boot"), ("MACHINE_ID_FILE", "same-id")):
            (folder / file).write_text(text)
            patch.setattr(liveness, file, str(folder / file))
        patch.setattr(liveness, "NETWORK_FOLDER", str(folder / "net"))
        self.set_name("same-name")
        self.add_card("eth0", "00:00:00:00:00:01")

    def set_machine_id(self, text: str) -> None:
        (self._folder / "MACHINE_ID_FILE").write_text(text)

    def set_name(self, name: str) -> None:
        self._patch.setattr(os, "uname", lambda: SimpleNamespace(nodename=name))

    def add_card(self, name: str, address: str, bus: str = "pci", *files: str) -> None:
        device, folder = self._folder / bus / name, self._folder / "net" / name
        for path in (device, folder, *(folder / file for file in files)):
            path.mkdir(parents=True, exist_ok=True)
        (folder / "address").write_text(address)
        with contextlib.suppress(FileExistsError):
            (folder / "device").symlink_to(device)

    def add_bridge(self, name: str, address: str) -> None:
        (self._folder / "net" / name).mkdir()
        (self._folder / "net" / name / "address").write_text(address)

    def restart_program(self) -> str:
        """Forget what a process has read, and return the first owner of a new process."""
        forget_machine()
        return new_owner()


def forget_machine() -> None:
    liveness._machine.cache_clear()  # pyright: ignore[reportPrivateUsage]
    liveness._boot.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    (tmp_path / "host").mkdir()
    with monkeypatch.context() as patch:
        forget_machine()
        yield Host(tmp_path / "host", patch)
    forget_machine()


@pytest.mark.parametrize("difference", ["machine id", "name", "network card"])
def test_a_copy_of_a_machine_is_another_machine(host: Host, difference: str) -> None:
    """HOST1: copies of a virtual machine may share the boot id, but the processes of one are unknown to the other."""
    mine = host.restart_program()
    gone = mine.replace(f" {os.getpid()} ", " 999999999 ")
    assert host.restart_program().split(" ")[0] == mine.split(" ")[0]
    assert is_here(mine) and not is_dead(mine) and is_dead(gone)
    if difference == "machine id":
        host.set_machine_id("other-id")
    elif difference == "name":
        host.set_name("other-name")
    else:
        host.add_card("eth0", "00:00:00:00:00:02")
    host.restart_program()
    assert not is_here(mine) and not is_dead(mine) and not is_dead(gone)


def test_docks_radios_and_bridges_do_not_change_a_machine(host: Host) -> None:
    """HOST1: their addresses change while a machine runs, and dead processes must still be known at once."""
    mine = host.restart_program()
    host.add_card("eth1", "00:00:00:00:00:03", "usb1")
    host.add_card("wlan0", "00:00:00:00:00:04", "pci", "phy80211")
    host.add_bridge("docker0", "00:00:00:00:00:05")
    host.restart_program()
    assert is_here(mine)


async def test_a_dead_owner_of_an_earlier_version_is_known(db: str) -> None:
    """HOST1: its id lacks the machine; its calls end at once after an upgrade, those of a living one stay open."""
    machine, pid, started, _ = new_owner().split(" ")
    boot, namespace, host = machine.split("/")
    assert boot and namespace and host
    living, dead = f"{boot}/{namespace} {pid} {started} 1", f"{boot}/{namespace} 999999999 {started} 1"
    before_boot = f"earlier-boot/{namespace} 999999999 {started} 1"
    assert is_here(living) and is_here(dead) and not is_here(before_boot)
    async with await callslip.open(db) as ledger:
        calls = [await start_call(ledger, owner=owner) for owner in (living, dead, before_boot)]
        async with await callslip.open(db) as upgraded:
            states = [(await call_state(upgraded, call))[0] for call in calls]
            assert states == ["running", "lost", "running"]
            assert {row.id for row in await upgraded.log.store.owners()} == {living, before_boot}


async def test_an_owner_has_a_lease_on_a_machine_that_has_just_booted(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write of an owner records its lease, however small the monotonic clock is."""
    monkeypatch.setattr("callslip.ledger.event_log.time", SimpleNamespace(monotonic=lambda: 0.0))
    await start_call(ledger, owner=REMOTE_OWNER)
    assert [row.id for row in await ledger.log.store.owners()] == [REMOTE_OWNER]


async def test_calls_of_a_dead_owner_are_lost_when_the_ledger_opens(db: str) -> None:
    """C5: at once, with a reason; calls of living owners and of other machines stay open."""
    host, pid, started, _ = new_owner().split(" ")
    async with await callslip.open(db) as ledger:
        dead = await start_call(ledger, owner=f"{host} 999999999 {started} 1")
        reused = await start_call(ledger, owner=f"{host} {pid} 1{started} 1")
        foreign = await start_call(ledger, owner=REMOTE_OWNER)
        living = await start_call(ledger, owner=ledger.log.owner)
        async with await callslip.open(db) as other:
            assert await call_state(other, dead) == ("lost", "the process that ran this call ended")
            assert (await call_state(other, reused))[0] == "lost"
            assert (await call_state(other, foreign))[0] == (await call_state(other, living))[0] == "running"
            remaining = {row.id for row in await other.log.store.owners()}
            assert remaining == {REMOTE_OWNER, ledger.log.owner}, "rows of dead owners were not removed"


async def test_closing_the_ledger_ends_the_calls_of_the_process(db: str) -> None:
    """C5: no other process could finish them."""
    ledger = await callslip.open(db)
    mine = await start_call(ledger, owner=ledger.log.owner)
    connection = await start_call(ledger, owner=new_owner())
    ingested = await start_call(ledger)
    await ledger.close()
    async with await callslip.open(db) as ledger:
        for call in (mine, connection):
            assert await call_state(ledger, call) == ("lost", "the process that ran this call closed its ledger")
        assert (await call_state(ledger, ingested))[0] == "running"
        assert await ledger.log.store.owners() == []


async def test_a_closed_connection_ends_only_its_own_calls(ledger: LocalLedger) -> None:
    """C5: each connection of a process is a separate owner."""
    first, second = new_owner(), new_owner()
    ended = [await start_call(ledger, owner=first, session=session) for session in ("a", "b")]
    stays = await start_call(ledger, owner=second)
    assert await ledger.log.close_owner(first, "the agent's process ended with status 1") == 2
    for call in ended:
        assert await call_state(ledger, call) == ("lost", "the agent's process ended with status 1")
    assert (await call_state(ledger, stays))[0] == "running"
    assert first not in [row.id for row in await ledger.log.store.owners()]


async def test_leases_of_living_owners_are_renewed(db: str) -> None:
    """C5: other machines see by the lease that this process and its connections are alive."""
    async with await open_with_settings(db, owner_lease=0.3, reaper_interval=0.05) as ledger:
        connection = new_owner()
        await start_call(ledger, owner=ledger.log.owner)
        await start_call(ledger, owner=connection)
        first = {row.id: row.until for row in await ledger.log.store.owners()}
        assert set(first) == {ledger.log.owner, connection}
        async with asyncio.timeout(10):
            while any(row.until <= first[row.id] for row in await ledger.log.store.owners()):
                await asyncio.sleep(0.05)


async def test_calls_of_a_remote_owner_are_lost_when_its_lease_expires(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks
) -> None:
    """C5: events of the call do not renew the lease of its owner."""
    call = await start_call(ledger, owner=REMOTE_OWNER)
    assert await reaper.reap() == 0
    for _ in range(5):
        clocks.pass_time(20)
        until = int(clocks.wall * 1000) + 30_000
        await ledger.log.store.transact(lambda unit, until=until: unit.put_owner(OwnerRecord(REMOTE_OWNER, until)))
        assert await reaper.reap() == 0
    clocks.pass_time(31)
    assert await reaper.reap() == 1
    assert await call_state(ledger, call) == ("lost", "the process that owns this call stopped renewing its lease")


async def test_calls_of_an_unknown_owner_are_lost_after_the_grace_period(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks
) -> None:
    """C5: the row of the owner is missing."""
    call = await start_call(ledger, owner=REMOTE_OWNER)
    await ledger.log.store.drop_owner(REMOTE_OWNER)
    assert await reaper.reap() == 0
    clocks.pass_time(2)
    assert await reaper.reap() == 1
    assert (await call_state(ledger, call))[0] == "lost"


# Clocks


async def test_a_clock_jump_ends_no_call(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: after a suspend or a clock correction; the lease must also expire on the monotonic clock."""
    call = await start_call(ledger)
    assert await reaper.reap() == 0
    clocks.wall += 365 * 24 * 3600
    assert await reaper.reap() == 0
    clocks.monotonic += 599
    assert await reaper.reap() == 0
    clocks.monotonic += 1
    assert await reaper.reap() == 1
    assert await call_state(ledger, call) == ("lost", "no event of this call arrived before its lease expired")


async def test_a_suspend_does_not_shorten_leases_and_deadlines(db: str, clocks: Clocks) -> None:
    """C5: with a short reaper interval, and with the wall clock before or after the deadline."""
    async with sound_ledger(db, reaper_interval=NEVER_S) as ledger:
        settings = msgspec.structs.replace(ledger.log.settings, reaper_interval=1.0)
        context = ledger.log.write_context(source="callslip", strict=True)
        reaper = Reaper(ledger.log.store, context, settings, monotonic=lambda: clocks.monotonic)
        call = await start_call(ledger)
        requested = await start_call(
            ledger, ev.ApprovalRequested(tool_name="t", expires_at=int(clocks.wall * 1000) + 300_000)
        )
        assert await reaper.reap() == 0
        for jump_seconds in (250, 3600):
            clocks.wall += jump_seconds
            for _ in range(100):
                assert await reaper.reap() == 0
                clocks.pass_time(1)
        new_call = await start_call(ledger)
        for _ in range(98):
            assert await reaper.reap() == 0
            clocks.pass_time(1)
        clocks.pass_time(3)
        assert await reaper.reap() == 1 and (await call_state(ledger, requested))[0] == "denied"
        clocks.pass_time(299)
        assert await reaper.reap() == 1 and (await call_state(ledger, call))[0] == "lost"
        clocks.pass_time(200)
        assert await reaper.reap() == 0
        clocks.pass_time(3)
        assert await reaper.reap() == 1 and (await call_state(ledger, new_call))[0] == "lost"


async def test_a_clock_set_back_ends_no_call(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: the time must be over on both clocks."""
    await start_call(ledger)
    assert await reaper.reap() == 0
    clocks.wall -= 3600
    clocks.monotonic += 10_000
    assert await reaper.reap() == 0
    clocks.wall += 3600 + 600
    assert await reaper.reap() == 1


async def test_a_new_reaper_waits_a_grace_period_first(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: events of calls that had expired before the first round still count in that period."""
    active, silent = await start_call(ledger), await start_call(ledger)
    clocks.pass_time(5000)
    assert await reaper.reap() == 0
    clocks.pass_time(1.9)
    await ledger.log.append("a", [ev.CallProgress(call=active, text="still here")])
    assert await reaper.reap() == 0
    clocks.pass_time(0.2)
    assert await reaper.reap() == 1
    assert (await call_state(ledger, silent))[0] == "lost" and (await call_state(ledger, active))[0] == "running"


@pytest.mark.parametrize(
    "event",
    [
        ev.CallProgress(text="x"),
        ev.CallProgress(title="x"),
        ev.CallInput(input=1),
        ev.CallStarted(),
        ev.ApprovalRequested(),
    ],
)
async def test_any_event_renews_an_ingested_call(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks, event: Any
) -> None:
    """C5: a call without a connection stays open as long as events about it arrive."""
    alias = (Alias("acp", "c"),)
    call = await start_call(ledger, ev.CallStarted(tool_name="t", aliases=alias))
    for _ in range(3):
        assert await reaper.reap() == 0
        clocks.pass_time(500)
        await ledger.log.append("a", [type(event)(aliases=alias, **event_fields(event))])
    assert await reaper.reap() == 0
    clocks.pass_time(601)
    assert await reaper.reap() == 1
    assert (await call_state(ledger, call))[0] == "lost"


def event_fields(event: ev.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("text", "title", "input") if hasattr(event, name)}


# Turns


@pytest.mark.parametrize(("reason", "expected_state"), [("cancelled", "cancelled"), ("error", "lost"), ("eof", "lost")])
async def test_an_interrupted_turn_ends_its_calls_at_once(
    ledger: LocalLedger, reason: str, expected_state: str
) -> None:
    """C5: queued, running or waiting for approval, with the turn as the reason."""
    await ledger.log.append("a", [ev.TurnStarted()])
    calls = [
        await start_call(ledger, ev.CallProposed(tool_name="queued")),
        await start_call(ledger, ev.CallStarted(tool_name="running")),
        await start_call(ledger, ev.ApprovalRequested(tool_name="waiting")),
        await start_call(ledger, ev.CallStarted(tool_name="owned"), owner=ledger.log.owner),
    ]
    await ledger.end_turn("a", reason)
    for call in calls:
        ended, reason_text = await call_state(ledger, call)
        assert ended == expected_state and reason in reason_text
    assert await ledger.approvals() == []
    assert isinstance((await read_events(ledger, "a"))[-1], ev.TurnEnded)


async def test_the_detail_of_a_turn_is_the_reason_of_its_calls(ledger: LocalLedger) -> None:
    """C5: the last message of an interrupted agent is shown on the call."""
    await ledger.log.append("a", [ev.TurnStarted()])
    call = await start_call(ledger)
    await ledger.end_turn("a", "error", "the model refused to go on")
    assert await call_state(ledger, call) == ("lost", "the model refused to go on")


async def test_a_result_within_the_grace_period_after_the_turn_counts(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks
) -> None:
    """C5: two seconds after a normal end; then the call is lost."""
    await ledger.log.append("a", [ev.TurnStarted()])
    quick, slow, owned = (
        await start_call(ledger),
        await start_call(ledger),
        await start_call(ledger, owner=ledger.log.owner),
    )
    await ledger.end_turn("a")
    assert await reaper.reap() == 0
    clocks.pass_time(1.5)
    assert await reaper.reap() == 0
    (result,) = await ledger.log.append("a", [ev.CallCompleted(call=quick, output="in time")])
    assert result.verdict == "applied"
    clocks.pass_time(0.6)
    assert await reaper.reap() == 2
    assert (await call_state(ledger, quick))[0] == "completed"
    assert (await call_state(ledger, slow))[0] == (await call_state(ledger, owned))[0] == "lost"
    (late,) = await ledger.log.append("a", [ev.CallCompleted(call=slow, output="too late")])
    assert late.verdict == "late" and (await call_state(ledger, slow))[0] == "lost"


async def test_a_new_turn_ends_the_previous_turn(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: and its calls, for agents that never report the end of a turn."""
    await ledger.log.append("a", [ev.TurnStarted()])
    call = await start_call(ledger)
    await ledger.log.append("a", [ev.TurnStarted()])
    assert await reaper.reap() == 0
    clocks.pass_time(2.1)
    assert await reaper.reap() == 1
    assert (await call_state(ledger, call))[0] == "lost"


@pytest.mark.parametrize("reason", ["end_turn", "cancelled", "error", "eof"])
async def test_a_detached_call_outlives_its_turn(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks, reason: str
) -> None:
    """C5: a command runs in another process, and does not end with the turn that submitted it."""
    await ledger.log.append("a", [ev.TurnStarted()])
    call = await start_call(ledger, ev.CallProposed(tool_name="t", scope="detached"))
    await ledger.end_turn("a", reason)
    await reaper.reap()
    clocks.pass_time(10)
    assert await reaper.reap() == 0
    assert (await call_state(ledger, call))[0] == "queued"


# Owners of turns

WORKER = """
import asyncio, sys, callslip
from callslip.model import events as ev

async def work():
    ledger = await callslip.open(sys.argv[1])
    owned = [ev.TurnStarted(turn="work"), ev.CallStarted(tool_name="mine")]
    await ledger.log.append("a", owned, owner=ledger.log.owner)
    detached = ev.CallProposed(tool_name="detached", scope="detached")
    await ledger.log.append("a", [ev.CallProposed(tool_name="other"), detached])
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(work())
"""


async def start_turn(ledger: LocalLedger, owner: str = "", session: str = "a") -> str:
    """Start a turn and return its id."""
    (started_turn,) = await ledger.log.append(session, [ev.TurnStarted()], owner=owner)
    leave_lease(ledger, owner)
    assert isinstance(started_turn, ev.TurnStarted)
    return started_turn.turn


async def open_turn(ledger: LocalLedger, session: str = "a") -> str:
    row = await ledger.log.store.session(session)
    assert row is not None
    return row.turn


async def last_event(ledger: LocalLedger, session: str = "a") -> Any:
    return (await read_events(ledger, session))[-1]


def dead_owner() -> str:
    """Return an owner on this machine whose process has ended."""
    host, _, started, number = new_owner().split(" ")
    return f"{host} 999999999 {started} {number}"


async def test_the_turn_of_a_killed_process_ends_with_its_calls(db: str) -> None:
    """C5: as interrupted; nothing changes while the process lives."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, db], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            async with await callslip.open(db) as ledger:
                assert await open_turn(ledger) == "work"
        finally:
            process.send_signal(signal.SIGKILL)
    async with await callslip.open(db) as ledger:
        ended = await last_event(ledger)
        assert (ended.turn, ended.reason, ended.verdict) == ("work", "eof", "applied")
        assert ended.detail == "the process that worked on this turn ended" and await open_turn(ledger) == ""
        rows = {row.tool: (row.state, row.reason) for row in (await ledger.calls()).items}
        assert rows == {
            "mine": ("lost", "the process that ran this call ended"),
            "other": ("lost", "the process that worked on this turn ended"),
            "detached": ("queued", ""),
        }
        last_seq = ended.seq
    async with sound_ledger(db) as ledger:
        assert (await last_event(ledger)).seq == last_seq, "the turn ended twice"


async def test_a_turn_without_an_owner_stays_open(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """Posted events and hooks come from many short-lived processes, whose ends do not end the turn."""
    turn = await start_turn(ledger)
    for _ in range(3):
        assert await reaper.reap() == 0
        clocks.pass_time(100_000)
    assert await open_turn(ledger) == turn


async def test_a_turn_lives_as_long_as_its_owner(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: a local owner is checked by its process, a remote one by its lease."""
    mine, other = await start_turn(ledger, ledger.log.owner, "mine"), await start_turn(ledger, REMOTE_OWNER, "other")
    for _ in range(5):
        clocks.pass_time(20)
        until = int(clocks.wall * 1000) + 30_000
        await ledger.log.store.transact(lambda unit, until=until: unit.put_owner(OwnerRecord(REMOTE_OWNER, until)))
        assert await reaper.reap() == 0
    assert (await open_turn(ledger, "mine"), await open_turn(ledger, "other")) == (mine, other)
    clocks.pass_time(31)
    assert await reaper.reap() == 1
    ended = await last_event(ledger, "other")
    assert (ended.reason, ended.detail) == ("eof", "the process that owns this turn stopped renewing its lease")
    assert (await open_turn(ledger, "mine"), await open_turn(ledger, "other")) == (mine, "")


async def test_a_suspend_ends_no_turn(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: the wall clock jumped, but no reaper has watched the owner for that time."""
    turn = await start_turn(ledger, REMOTE_OWNER)
    assert await reaper.reap() == 0
    clocks.wall += 10_000
    assert await reaper.reap() == 0
    until = int(clocks.wall * 1000) + 30_000
    await ledger.log.store.transact(lambda unit: unit.put_owner(OwnerRecord(REMOTE_OWNER, until)))
    clocks.pass_time(29)
    assert await reaper.reap() == 0 and await open_turn(ledger) == turn


async def test_a_turn_of_an_unknown_owner_ends_after_the_grace_period(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks
) -> None:
    """C5: not before the grace period is over."""
    await start_turn(ledger, REMOTE_OWNER)
    await ledger.log.store.drop_owner(REMOTE_OWNER)
    assert await reaper.reap() == 0
    clocks.pass_time(2)
    assert await reaper.reap() == 1 and await open_turn(ledger) == ""


@pytest.mark.parametrize(
    "meanwhile",
    [
        [ev.TurnEnded()],
        [ev.TurnStarted(turn="next")],
        [ev.TurnEnded(), ev.TurnStarted(turn="t1")],
    ],
    ids=["ended", "superseded", "again"],
)
async def test_a_stale_reaper_decision_does_not_end_the_next_turn(
    ledger: LocalLedger, reaper: Reaper, meanwhile: list[ev.Event]
) -> None:
    """C5: the turn may end between the reaper's read and its write."""
    owner = dead_owner()
    await start_turn(ledger, owner)
    stale_owners, stale = await ledger.log.store.open_owners(), await ledger.log.store.turns_of_owners([owner])
    await ledger.log.append("a", meanwhile)
    before = await read_events(ledger, "a")

    async def read_stale_owners() -> list[OwnerRecord]:
        return stale_owners

    async def read_stale_turns(owners: Collection[str]) -> list[SessionRecord]:
        assert list(owners) == [owner]
        return stale

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.log.store, "open_owners", read_stale_owners)
        patch.setattr(ledger.log.store, "turns_of_owners", read_stale_turns)
        assert await reaper.reap() == 0
    assert await read_events(ledger, "a") == before


async def test_a_turn_does_not_inherit_the_previous_owner(ledger: LocalLedger, reaper: Reaper) -> None:
    """Whether the previous turn ended or was superseded."""
    for session, between in (("ended", [ev.TurnEnded()]), ("superseded", [])):
        await start_turn(ledger, dead_owner(), session)
        await ledger.log.append(session, [*between, ev.TurnStarted(turn="mine")])
    assert await reaper.reap() == 0
    assert [await open_turn(ledger, session) for session in ("ended", "superseded")] == ["mine", "mine"]


async def test_a_closed_connection_ends_its_turns(ledger: LocalLedger) -> None:
    """C5: as interrupted, in every session; turns of other connections continue."""
    first, second = new_owner(), new_owner()
    for session, owner in (("a", first), ("b", first), ("c", second), ("d", "")):
        await start_turn(ledger, owner, session)
        await start_call(ledger, ev.CallProposed(tool_name="t"), session=session)
    assert await ledger.log.close_owner(first, "the agent's process ended") == 2
    assert [await open_turn(ledger, session) for session in "abcd"] == ["", "", "t1", "t1"]
    ended = await last_event(ledger)
    assert (ended.reason, ended.detail) == ("eof", "the agent's process ended")
    rows = {row.session: (row.state, row.reason) for row in (await ledger.calls()).items}
    assert rows["a"] == rows["b"] == ("lost", "the agent's process ended")
    assert rows["c"] == rows["d"] == ("queued", "")
    assert await ledger.log.close_owner(first, "again") == 0


async def test_closing_the_ledger_ends_the_turns_of_the_process(db: str) -> None:
    """C5: like its calls, so the next process finds none of them open."""
    ledger = await callslip.open(db)
    await start_turn(ledger, ledger.log.owner, "mine")
    await start_turn(ledger, "", "posted")
    await ledger.close()
    async with sound_ledger(db, reaper_interval=NEVER_S) as ledger:
        assert (await last_event(ledger, "mine")).reason == "eof" and await open_turn(ledger, "mine") == ""
        assert await open_turn(ledger, "posted") == "t1"


# Deadlines and approvals


async def test_queued_and_running_calls_expire_at_their_deadline(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks
) -> None:
    """C5: the reason has whether the call had started."""
    deadline = int(clocks.wall * 1000) + 30_000
    queued = await start_call(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    running = await start_call(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    done = await start_call(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    await ledger.log.append("a", [ev.CallStarted(call=running), ev.CallCompleted(call=done)])
    assert await reaper.reap() == 0
    clocks.pass_time(30)
    assert await reaper.reap() == 2
    assert await call_state(ledger, queued) == ("expired", "no worker claimed it before its timeout")
    assert await call_state(ledger, running) == ("expired", "timed out while running")
    assert (await call_state(ledger, done))[0] == "completed"


async def test_a_living_owner_does_not_extend_deadlines(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: a call of a living owner expires too."""
    deadline = int(clocks.wall * 1000) + 30_000
    call = await start_call(ledger, ev.CallProposed(tool_name="t", deadline=deadline), owner=ledger.log.owner)
    await reaper.reap()
    clocks.pass_time(31)
    assert await reaper.reap() == 1
    assert (await call_state(ledger, call))[0] == "expired"


async def test_an_expired_approval_denies_the_call(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5, S2.7: with a reason for the model; the request is closed, and a later answer is late."""
    expires = int(clocks.wall * 1000) + 300_000
    call = await start_call(ledger, ev.ApprovalRequested(tool_name="rm", expires_at=expires), owner=ledger.log.owner)
    (requested,) = await ledger.approvals()
    assert await reaper.reap() == 0
    clocks.pass_time(299)
    assert await reaper.reap() == 0
    clocks.pass_time(1)
    assert await reaper.reap() == 1
    assert await call_state(ledger, call) == ("denied", "no answer in time")
    closed = await ledger.find_approval(requested.id)
    assert (closed.state, closed.by) == ("refused", "expiry")
    with pytest.raises(ConflictError) as conflict:
        await ledger.approve(requested.id, by="ann")
    assert conflict.value.current == closed


async def test_an_answer_before_the_expiry_counts(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """S2.7: the first of the two counts, the other changes nothing."""
    expires = int(clocks.wall * 1000) + 300_000
    call = await start_call(ledger, ev.ApprovalRequested(tool_name="rm", expires_at=expires), owner=ledger.log.owner)
    (requested,) = await ledger.approvals()
    await reaper.reap()
    clocks.pass_time(301)
    # An answer arrives between the read and the write of the reaper.
    stale = await ledger.log.store.approvals(state="pending")
    await ledger.approve(requested.id, by="ann")

    async def stale_rows(**_: Any) -> Any:
        return stale

    ledger.log.store.approvals = stale_rows  # type: ignore[method-assign]
    assert await reaper.reap() == 0
    del ledger.log.store.approvals
    assert (await ledger.find_approval(requested.id)).by == "ann" and (await call_state(ledger, call))[0] == "queued"


# Reapers


async def test_concurrent_reapers_end_a_call_once(ledger: LocalLedger, db: str, clocks: Clocks) -> None:
    """C4, C5: for any number of processes."""
    calls = [await start_call(ledger) for _ in range(20)]
    async with await callslip.open(db, Settings(reaper_interval=NEVER_S)) as other:
        reapers = [make_reaper(item, clocks) for item in (ledger, other, ledger, other)]
        assert sum(await asyncio.gather(*(item.reap() for item in reapers))) == 0
        clocks.pass_time(700)
        assert sum(await asyncio.gather(*(item.reap() for item in reapers))) == 20
    endings = [event.call for event in await read_events(ledger, "a") if isinstance(event, ev.CallLost)]
    assert sorted(endings) == sorted(calls)


@pytest.mark.parametrize(
    "meanwhile", [ev.CallProgress(text="alive"), ev.CallStarted(attempt=2), ev.CallCompleted(output=1)]
)
async def test_a_stale_reaper_decision_does_not_end_an_active_call(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks, meanwhile: Any
) -> None:
    """C5: an event may arrive between the reaper's read and its write."""
    call = await start_call(ledger)
    await reaper.reap()
    clocks.pass_time(700)
    stale = await ledger.log.store.calls_due(2**62)
    await ledger.log.append("a", [type(meanwhile)(call=call, **update_fields(meanwhile))])

    async def stale_rows(until: int) -> list[CallRecord]:
        return stale

    ledger.log.store.calls_due = stale_rows  # type: ignore[method-assign]
    assert await reaper.reap() == 0
    del ledger.log.store.calls_due
    assert (await call_state(ledger, call))[0] != "lost"


def update_fields(event: ev.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("text", "attempt", "output") if hasattr(event, name)}


async def test_an_open_ledger_runs_the_reaper(db: str) -> None:
    """C5: without any request."""
    async with await open_with_settings(db, ingest_lease=0.1, reaper_interval=0.02, reaper_grace=0.02) as ledger:
        call = await start_call(ledger)
        async with asyncio.timeout(10):
            assert (await ledger.wait(call)).state == "lost"


async def test_the_reaper_continues_after_a_disk_error(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: a full or broken disk stops it only while the error lasts."""
    times = {"ingest_lease": 0.1, "owner_lease": 1.0, "command_lease": 1.0}
    async with await open_with_settings(db, **times, reaper_interval=0.02, reaper_grace=0.02) as ledger:
        call = await start_call(ledger)
        was_called = asyncio.Event()

        async def fail_to_read(until: int) -> list[CallRecord]:
            was_called.set()
            raise StoreError("the disk failed")

        with monkeypatch.context() as patch:
            patch.setattr(ledger.log.store, "calls_due", fail_to_read)
            await asyncio.wait_for(was_called.wait(), 60)
        async with asyncio.timeout(60):
            assert (await ledger.wait(call)).state == "lost"


async def test_a_read_only_ledger_does_not_run_the_reaper(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a ledger changes nothing in it."""
    host, _, started, _ = new_owner().split(" ")
    async with await callslip.open(db) as ledger:
        call = await start_call(ledger, owner=f"{host} 999999999 {started} 1")
        async with await callslip.open(read_only_url(db, monkeypatch)) as reader:
            assert reader.log.store.read_only and (await call_state(reader, call))[0] == "running"


async def count_steps(ledger: LocalLedger, reaper: Reaper) -> int:
    """Return how often the database steps to another row in a round that ends nothing."""
    steps: list[int] = []
    connection: Any = cast("Any", ledger.log.store)._read
    connection.set_progress_handler(lambda: bool(steps.append(1)), 1)
    assert await reaper.reap() == 0
    connection.set_progress_handler(None, 1)
    return len(steps)


@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "elsewhere"])
async def test_a_round_does_not_read_the_calls_of_living_owners(db: str, clocks: Clocks, is_remote: bool) -> None:
    """HOST3: a round costs the same with one call and one turn as with a thousand calls and a hundred turns."""
    async with sound_ledger(db, reaper_interval=NEVER_S) as ledger:
        settings = Settings()
        context = ledger.log.write_context(source="callslip", strict=True)
        reaper = Reaper(ledger.log.store, context, settings, monotonic=lambda: clocks.monotonic)
        owner = REMOTE_OWNER if is_remote else ledger.log.owner
        await start_turn(ledger, owner)
        await start_call(ledger, owner=owner)
        few = await count_steps(ledger, reaper)
        await ledger.log.append("a", [ev.CallStarted(tool_name="t") for _ in range(999)], owner=owner)
        for number in range(99):
            await start_turn(ledger, owner, f"s{number}")
        assert len(await ledger.log.store.calls_of_owners([owner])) == 1000
        assert await count_steps(ledger, reaper) == few
        await start_call(ledger, owner=OTHER_REMOTE_OWNER)
        assert few < await count_steps(ledger, reaper) < 2 * few


# Outages


class FailingStore:
    """A store whose reads, writes or both fail while a test says so."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.failing: tuple[str, ...] = ()
        self.done: list[str] = []
        self.before_read: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        kind = "write" if name in ("transact", "drop_owner") else "read"
        method = getattr(self._store, name)

        async def run(*values: Any) -> Any:
            if kind in self.failing:
                raise StoreError(f"the database is down: {name}")
            if kind == "read" and self.before_read is not None:
                before, self.before_read = self.before_read, None
                before()
            result = await method(*values)
            self.done.append(name)
            return result

        return run


class Outage:
    """A ledger, a reaper over a store that fails on demand, and the calls that it may end."""

    def __init__(self, ledger: LocalLedger, clocks: Clocks) -> None:
        self.ledger, self.clocks, self.store = ledger, clocks, FailingStore(ledger.log.store)
        context = ledger.log.write_context(source="callslip", strict=True)
        store: Any = self.store
        self.reaper = Reaper(store, context, Settings(), monotonic=lambda: clocks.monotonic)

    async def run_rounds(self, seconds: int) -> int:
        """Run a round each second, and return how many calls and turns ended."""
        ended = 0
        for _ in range(seconds):
            with contextlib.suppress(StoreError):
                ended += await self.reaper.reap()
            self.clocks.pass_time(1)
        return ended

    async def fail(self, seconds: int, *failing: str) -> None:
        """Let the database fail for a time."""
        self.store.failing = failing
        assert await self.run_rounds(seconds) == 0
        self.store.failing = ()

    async def wait(self, seconds: int) -> None:
        """Run a round in which a read waits for the database before it succeeds."""
        self.store.before_read = lambda: self.clocks.pass_time(seconds)
        assert await self.run_rounds(1) == 0

    async def renew(self, owner: str) -> None:
        until = int((self.clocks.wall + 30) * 1000)
        await self.ledger.log.store.transact(lambda unit: unit.put_owner(OwnerRecord(owner, until)))


@pytest.fixture
def outage(ledger: LocalLedger, clocks: Clocks) -> Outage:
    return Outage(ledger, clocks)


@pytest.mark.parametrize("failing", [("read", "write"), ("write",)], ids=["all", "writes"])
async def test_after_an_outage_owners_have_one_lease_to_renew(outage: Outage, failing: tuple[str, ...]) -> None:
    """OUTAGE1: longer than a lease, no process could renew; one that never does ends one lease after the outage."""
    ledger = outage.ledger
    alive, gone = await start_call(ledger, owner=REMOTE_OWNER), await start_call(ledger, owner=OTHER_REMOTE_OWNER)
    turn = await start_turn(ledger, REMOTE_OWNER, "alive")
    await start_turn(ledger, OTHER_REMOTE_OWNER, "gone")
    await outage.run_rounds(5)
    await outage.fail(100, *failing)
    assert await outage.run_rounds(25) == 0
    await outage.renew(REMOTE_OWNER)
    assert await outage.run_rounds(5) == 0 and await call_state(ledger, gone) == ("running", "")
    assert await outage.run_rounds(1) == 2
    assert await call_state(ledger, gone) == ("lost", "the process that owns this call stopped renewing its lease")
    assert (await call_state(ledger, alive))[0] == "running"
    assert (await open_turn(ledger, "alive"), await open_turn(ledger, "gone")) == (turn, "")


async def test_after_an_outage_workers_have_one_lease_to_renew(outage: Outage) -> None:
    """OUTAGE1: a command whose worker sends a heartbeat after the outage is not lost; the other one is."""
    commands = CommandQueue(outage.ledger.log)
    claims: list[Any] = []
    for name in ("alive", "gone"):
        await commands.submit("a", correlation_id=name, timeout=10_000)
        claims.append(await commands.claim_as(FULL_ACCESS, "default", ClaimOptions(lease=30)))
    await outage.run_rounds(5)
    await outage.fail(100, "read", "write")
    assert await outage.run_rounds(29) == 0
    await commands.heartbeat("alive", claims[0].fence, lease=30)
    assert await outage.run_rounds(1) == 0
    assert await outage.run_rounds(1) == 1
    assert [(await commands.find(name)).state for name in ("alive", "gone")] == ["running", "lost"]
    await commands.close()


async def test_an_outage_delays_no_other_ends(outage: Outage) -> None:
    """OUTAGE1: a dead process is known at once, and deadlines only wait for the grace period."""
    ledger = outage.ledger
    deadline = int(outage.clocks.wall * 1000) + 30_000
    late = await start_call(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    await start_call(ledger, ev.ApprovalRequested(tool_name="t", expires_at=deadline))
    assert await outage.run_rounds(29) == 0
    dead = await start_call(ledger, owner=dead_owner())
    await outage.fail(100, "read", "write")
    assert await outage.run_rounds(1) == 1 and (await call_state(ledger, dead))[0] == "lost"
    assert await outage.run_rounds(1) == 0
    assert await outage.run_rounds(1) == 2 and (await call_state(ledger, late))[0] == "expired"


async def test_an_outage_during_which_a_round_waits_ends_nothing_that_lives(outage: Outage) -> None:
    """OUTAGE1: an engine may wait for its server, so no round fails; a lease ended before the database was back."""
    ledger = outage.ledger
    alive, gone = await start_call(ledger, owner=REMOTE_OWNER), await start_call(ledger, owner=OTHER_REMOTE_OWNER)
    assert await outage.run_rounds(29) == 0
    await outage.wait(100)
    assert await outage.run_rounds(25) == 0
    await outage.renew(REMOTE_OWNER)
    assert await outage.run_rounds(6) == 1
    assert (await call_state(ledger, gone))[0] == "lost" and (await call_state(ledger, alive))[0] == "running"


async def test_each_failed_round_starts_the_wait_again(outage: Outage) -> None:
    """OUTAGE1: a database that fails again and again gives no process the time to renew."""
    call = await start_call(outage.ledger, owner=REMOTE_OWNER)
    for _ in range(5):
        await outage.fail(1, "read")
        assert await outage.run_rounds(29) == 0
    assert (await call_state(outage.ledger, call))[0] == "running"
    assert await outage.run_rounds(2) == 1


async def test_a_process_renews_its_leases_before_it_reaps_after_an_outage(db: str) -> None:
    """OUTAGE1: soon after the database is back, although its own leases ended meanwhile."""
    async with await open_with_settings(db, owner_lease=1.5, command_lease=1.5, reaper_interval=0.02) as ledger:
        await start_call(ledger, owner=ledger.log.owner)
        store = FailingStore(ledger.log.store)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("transact", "drop_owner", "clock", "open_owners"):
                patch.setattr(ledger.log.store, name, getattr(store, name))
            store.failing = ("read", "write")
            (owner,) = await ledger.log.store.owners()
            async with asyncio.timeout(60):
                while time.time() * 1000 <= owner.until:
                    await asyncio.sleep(0.02)
                store.done.clear()
                store.failing = ()
                while "open_owners" not in store.done:
                    await asyncio.sleep(0.02)
        assert store.done[:4] == ["transact", "drop_owner", "clock", "open_owners"]
        (renewed,) = await ledger.log.store.owners()
        assert renewed.id == ledger.log.owner and renewed.until > owner.until


async def test_leases_are_renewed_also_if_the_reaper_runs_rarely(db: str) -> None:
    """C5: a reaper interval longer than a lease ends no lease."""
    async with await open_with_settings(db, owner_lease=0.3, reaper_interval=NEVER_S) as ledger:
        await start_call(ledger, owner=ledger.log.owner)
        (first,) = await ledger.log.store.owners()
        async with asyncio.timeout(10):
            while (await ledger.log.store.owners())[0].until <= first.until:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("ahead_s", [-7200, 7200])
async def test_only_the_clock_of_the_store_counts(db: str, monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    """HOST2, TAIL3: leases, approvals and held texts end in time if the clock of the machine differs."""
    real_time = time.time
    for module in ("sqlite", "sqlite_rows"):
        shifted = SimpleNamespace(time=lambda: real_time() + ahead_s, monotonic=time.monotonic)
        monkeypatch.setattr(f"callslip.store.{module}.time", shifted)
    times = {"text_hold": 0.05, "approval_expiry": 0.2, "ingest_lease": 1.5, "owner_lease": 1.5}
    async with await open_with_settings(db, **times, reaper_interval=0.02, reaper_grace=0.02) as ledger:
        silent, owned = await start_call(ledger), await start_call(ledger, owner=ledger.log.owner)
        remote = await start_call(ledger, owner=REMOTE_OWNER)
        expires = await ledger.log.approval_deadline()
        request = ev.ApprovalRequested(tool_name="t", expires_at=expires)
        requested = await start_call(ledger, request, owner=ledger.log.owner)
        await ledger.log.append("b", [ev.MessageDelta(text="see sk-ant-api0")])
        async with asyncio.timeout(60):
            ends = [(await ledger.wait(call)).state for call in (silent, remote)]
            while (await call_state(ledger, requested))[0] == "awaiting_approval":
                await asyncio.sleep(0.02)
            while sum(len(event.text) for event in await read_events(ledger, "b")) < len("see sk-ant-api0"):
                await asyncio.sleep(0.02)
        assert ends == ["lost", "lost"] and (await call_state(ledger, requested))[0] == "denied"
        assert (await call_state(ledger, owned))[0] == "running"
