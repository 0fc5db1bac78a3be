"""Every call ends: by its result, or because no process is left to send one (C5). And none ends too early."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError, StoreError
from callslip.ledger.liveness import Reaper, is_dead, is_here, new_owner
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.records import CallRecord, OwnerRecord, SessionRecord
from callslip.settings import Settings
from tests.support.invariants import open_with_settings, read_events, sound_ledger

pytestmark = pytest.mark.anyio

NEVER = 1e6
ELSEWHERE = "other-boot/pid:[1] 77 12345 1"


class Clocks:
    """The wall clock, which may be set, and the one that only ever runs."""

    def __init__(self) -> None:
        self.wall = time.time()
        self.monotonic = 1000.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    created = Clocks()
    monkeypatch.setattr(time, "time", lambda: created.wall)
    return created


@pytest.fixture
async def ledger(db: str, clocks: Clocks) -> AsyncIterator[LocalLedger]:
    """A ledger that reaps nothing by itself."""
    async with sound_ledger(db, reaper_interval=NEVER) as created:
        yield created


@pytest.fixture
def reaper(ledger: LocalLedger, clocks: Clocks) -> Reaper:
    return reaper_of(ledger, clocks)


def reaper_of(ledger: LocalLedger, clocks: Clocks) -> Reaper:
    how = ledger.log.write_context(source="callslip", strict=True)
    return Reaper(ledger.log.store, how, ledger.log.settings, monotonic=lambda: clocks.monotonic)


async def call_of(ledger: LocalLedger, *drafts: ev.Event, owner: str = "", session: str = "a") -> str:
    created = await ledger.log.append(session, drafts or [ev.CallStarted(tool_name="t")], owner=owner)
    assert isinstance(created[-1], ev.CallEvent)
    return created[-1].call


async def state(ledger: LocalLedger, call: str) -> tuple[str, str]:
    row = await ledger.find_call(call)
    return row.state, row.reason


# Owners


def test_an_owner_is_told_from_one_that_only_has_its_number() -> None:
    """C5: a pid used again by another process, or on another machine, is not the owner."""
    mine = new_owner()
    place, pid, started, number = mine.split(" ")
    assert int(pid) == os.getpid() and not is_dead(mine) and is_here(mine)
    assert is_dead(f"{place} {pid} 1{started} {number}")
    assert is_dead(f"{place} 999999999 {started} {number}")
    assert not is_dead(f"elsewhere {pid} 1{started} {number}") and not is_here(f"elsewhere {pid}")
    for strange in ("", "x", f"{place}", f"{place} x y z", f"{place} {pid}"):
        assert not is_dead(strange)
    assert new_owner() != mine


async def test_an_owner_has_a_lease_on_a_machine_that_has_just_booted(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write of an owner records its lease, however small the monotonic clock is."""
    monkeypatch.setattr("callslip.ledger.event_log.time", SimpleNamespace(monotonic=lambda: 0.0))
    await call_of(ledger, owner=ELSEWHERE)
    assert [row.id for row in await ledger.log.store.owners()] == [ELSEWHERE]


async def test_a_dead_owners_calls_are_lost_when_the_ledger_opens(db: str) -> None:
    """C5: at once, with a reason; the living and those of other machines keep theirs."""
    place, pid, started, _ = new_owner().split(" ")
    async with await callslip.open(db) as ledger:
        dead = await call_of(ledger, owner=f"{place} 999999999 {started} 1")
        reused = await call_of(ledger, owner=f"{place} {pid} 1{started} 1")
        foreign = await call_of(ledger, owner=ELSEWHERE)
        living = await call_of(ledger, owner=ledger.log.owner)
        async with await callslip.open(db) as other:
            assert await state(other, dead) == ("lost", "the process that ran this call ended")
            assert (await state(other, reused))[0] == "lost"
            assert (await state(other, foreign))[0] == (await state(other, living))[0] == "running"
            kept = {row.id for row in await other.log.store.owners()}
            assert kept == {ELSEWHERE, ledger.log.owner}, "the rows of dead owners stay behind"


async def test_closing_ends_what_the_process_owned(db: str) -> None:
    """C5: a ledger that is closed leaves no call running that only it could finish."""
    ledger = await callslip.open(db)
    mine = await call_of(ledger, owner=ledger.log.owner)
    connection = await call_of(ledger, owner=new_owner())
    ingested = await call_of(ledger)
    await ledger.close()
    async with await callslip.open(db) as ledger:
        for call in (mine, connection):
            assert await state(ledger, call) == ("lost", "the process that ran this call closed its ledger")
        assert (await state(ledger, ingested))[0] == "running"
        assert await ledger.log.store.owners() == []


async def test_a_connections_end_ends_its_calls_and_no_others(ledger: LocalLedger) -> None:
    """C5: each connection of a process is an owner of its own."""
    first, second = new_owner(), new_owner()
    ended = [await call_of(ledger, owner=first, session=session) for session in ("a", "b")]
    stays = await call_of(ledger, owner=second)
    assert await ledger.log.close_owner(first, "the agent's process ended with status 1") == 2
    for call in ended:
        assert await state(ledger, call) == ("lost", "the agent's process ended with status 1")
    assert (await state(ledger, stays))[0] == "running"
    assert first not in [row.id for row in await ledger.log.store.owners()]


async def test_owners_are_renewed_while_they_live(db: str) -> None:
    """C5: other machines see by the lease that this process, and each of its connections, lives."""
    async with await open_with_settings(db, owner_lease=0.3, reaper_interval=0.05) as ledger:
        connection = new_owner()
        await call_of(ledger, owner=ledger.log.owner)
        await call_of(ledger, owner=connection)
        first = {row.id: row.until for row in await ledger.log.store.owners()}
        assert set(first) == {ledger.log.owner, connection}
        async with asyncio.timeout(10):
            while any(row.until <= first[row.id] for row in await ledger.log.store.owners()):
                await asyncio.sleep(0.05)


async def test_a_silent_owner_elsewhere_is_given_up(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: a call lives by its owner's lease, not by its own events; when the lease lapses it is lost."""
    call = await call_of(ledger, owner=ELSEWHERE)
    assert await reaper.reap() == 0
    for _ in range(5):
        clocks.pass_time(20)
        until = int(clocks.wall * 1000) + 30_000
        await ledger.log.store.transact(lambda unit, until=until: unit.put_owner(OwnerRecord(ELSEWHERE, until)))
        assert await reaper.reap() == 0
    clocks.pass_time(31)
    assert await reaper.reap() == 1
    assert await state(ledger, call) == ("lost", "its owner went silent")


async def test_an_owner_nobody_knows_keeps_nothing_alive(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: a call whose owner's row is gone is given up after the grace, not kept for ever."""
    call = await call_of(ledger, owner=ELSEWHERE)
    await ledger.log.store.drop_owner(ELSEWHERE)
    assert await reaper.reap() == 0
    clocks.pass_time(2)
    assert await reaper.reap() == 1
    assert (await state(ledger, call))[0] == "lost"


# Clocks


async def test_a_jump_of_the_clock_ends_nothing(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: a suspended laptop or a corrected clock is no silence; the lease must pass on the running clock too."""
    call = await call_of(ledger)
    assert await reaper.reap() == 0
    clocks.wall += 365 * 24 * 3600
    assert await reaper.reap() == 0
    clocks.monotonic += 599
    assert await reaper.reap() == 0
    clocks.monotonic += 1
    assert await reaper.reap() == 1
    assert await state(ledger, call) == ("lost", "nothing more was heard of this call")


async def test_whoever_slept_with_the_machine_has_as_much_time_as_before(db: str, clocks: Clocks) -> None:
    """C5: with a reaper that looks only a little ahead, and whether the clock stands beyond the time or before it."""
    async with sound_ledger(db, reaper_interval=NEVER) as ledger:
        settings = msgspec.structs.replace(ledger.log.settings, reaper_interval=1.0)
        how = ledger.log.write_context(source="callslip", strict=True)
        reaper = Reaper(ledger.log.store, how, settings, monotonic=lambda: clocks.monotonic)
        call = await call_of(ledger)
        requested = await call_of(
            ledger, ev.ApprovalRequested(tool_name="t", expires_at=int(clocks.wall * 1000) + 300_000)
        )
        assert await reaper.reap() == 0
        for slept in (250, 3600):
            clocks.wall += slept
            for _ in range(100):
                assert await reaper.reap() == 0
                clocks.pass_time(1)
        fresh = await call_of(ledger)
        for _ in range(98):
            assert await reaper.reap() == 0
            clocks.pass_time(1)
        clocks.pass_time(3)
        assert await reaper.reap() == 1 and (await state(ledger, requested))[0] == "denied"
        clocks.pass_time(299)
        assert await reaper.reap() == 1 and (await state(ledger, call))[0] == "lost"
        clocks.pass_time(200)
        assert await reaper.reap() == 0
        clocks.pass_time(3)
        assert await reaper.reap() == 1 and (await state(ledger, fresh))[0] == "lost"


async def test_a_clock_set_back_ends_nothing(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: both clocks must agree that the time is over."""
    await call_of(ledger)
    assert await reaper.reap() == 0
    clocks.wall -= 3600
    clocks.monotonic += 10_000
    assert await reaper.reap() == 0
    clocks.wall += 3600 + 600
    assert await reaper.reap() == 1


async def test_a_reaper_that_comes_late_watches_first(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: what had lapsed before the first round gets a grace period, in which its events still count."""
    heard, silent = await call_of(ledger), await call_of(ledger)
    clocks.pass_time(5000)
    assert await reaper.reap() == 0
    clocks.pass_time(1.9)
    await ledger.log.append("a", [ev.CallProgress(call=heard, text="still here")])
    assert await reaper.reap() == 0
    clocks.pass_time(0.2)
    assert await reaper.reap() == 1
    assert (await state(ledger, silent))[0] == "lost" and (await state(ledger, heard))[0] == "running"


@pytest.mark.parametrize(
    "news",
    [
        ev.CallProgress(text="x"),
        ev.CallProgress(title="x"),
        ev.CallInput(input=1),
        ev.CallStarted(),
        ev.ApprovalRequested(),
    ],
)
async def test_any_event_of_an_ingested_call_renews_it(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks, news: Any
) -> None:
    """C5: a call that came without a connection lives as long as something is heard of it."""
    alias = (Alias("acp", "c"),)
    call = await call_of(ledger, ev.CallStarted(tool_name="t", aliases=alias))
    for _ in range(3):
        assert await reaper.reap() == 0
        clocks.pass_time(500)
        await ledger.log.append("a", [type(news)(aliases=alias, **_fields(news))])
    assert await reaper.reap() == 0
    clocks.pass_time(601)
    assert await reaper.reap() == 1
    assert (await state(ledger, call))[0] == "lost"


def _fields(event: ev.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("text", "title", "input") if hasattr(event, name)}


# Turns


@pytest.mark.parametrize(("reason", "ends_as"), [("cancelled", "cancelled"), ("error", "lost"), ("eof", "lost")])
async def test_a_turn_that_broke_off_ends_its_calls_at_once(ledger: LocalLedger, reason: str, ends_as: str) -> None:
    """C5: queued, running or waiting for an answer: each ends with the turn, and says so."""
    await ledger.log.append("a", [ev.TurnStarted()])
    calls = [
        await call_of(ledger, ev.CallProposed(tool_name="queued")),
        await call_of(ledger, ev.CallStarted(tool_name="running")),
        await call_of(ledger, ev.ApprovalRequested(tool_name="waiting")),
        await call_of(ledger, ev.CallStarted(tool_name="owned"), owner=ledger.log.owner),
    ]
    await ledger.end_turn("a", reason)
    for call in calls:
        ended, why = await state(ledger, call)
        assert ended == ends_as and reason in why
    assert await ledger.approvals() == []
    assert isinstance((await read_events(ledger, "a"))[-1], ev.TurnEnded)


async def test_a_turns_detail_is_the_reason_of_its_calls(ledger: LocalLedger) -> None:
    """C5: the last message of an interrupted agent is what a person reads on the call."""
    await ledger.log.append("a", [ev.TurnStarted()])
    call = await call_of(ledger)
    await ledger.end_turn("a", "error", "the model refused to go on")
    assert await state(ledger, call) == ("lost", "the model refused to go on")


async def test_a_result_just_after_the_turn_still_counts(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: an orderly end leaves two seconds for what was on its way; then the call is lost."""
    await ledger.log.append("a", [ev.TurnStarted()])
    quick, slow, owned = await call_of(ledger), await call_of(ledger), await call_of(ledger, owner=ledger.log.owner)
    await ledger.end_turn("a")
    assert await reaper.reap() == 0
    clocks.pass_time(1.5)
    assert await reaper.reap() == 0
    (result,) = await ledger.log.append("a", [ev.CallCompleted(call=quick, output="in time")])
    assert result.verdict == "applied"
    clocks.pass_time(0.6)
    assert await reaper.reap() == 2
    assert (await state(ledger, quick))[0] == "completed"
    assert (await state(ledger, slow))[0] == (await state(ledger, owned))[0] == "lost"
    (late,) = await ledger.log.append("a", [ev.CallCompleted(call=slow, output="too late")])
    assert late.verdict == "late" and (await state(ledger, slow))[0] == "lost"


async def test_a_new_turn_ends_the_one_before(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: an agent that never says that a turn ended still ends its calls, by beginning the next."""
    await ledger.log.append("a", [ev.TurnStarted()])
    call = await call_of(ledger)
    await ledger.log.append("a", [ev.TurnStarted()])
    assert await reaper.reap() == 0
    clocks.pass_time(2.1)
    assert await reaper.reap() == 1
    assert (await state(ledger, call))[0] == "lost"


@pytest.mark.parametrize("reason", ["end_turn", "cancelled", "error", "eof"])
async def test_a_detached_call_outlives_its_turn(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks, reason: str
) -> None:
    """C5: a command runs in another process, and does not end with the turn that submitted it."""
    await ledger.log.append("a", [ev.TurnStarted()])
    call = await call_of(ledger, ev.CallProposed(tool_name="t", scope="detached"))
    await ledger.end_turn("a", reason)
    await reaper.reap()
    clocks.pass_time(10)
    assert await reaper.reap() == 0
    assert (await state(ledger, call))[0] == "queued"


# Whose a turn is

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


async def turn_of(ledger: LocalLedger, owner: str = "", session: str = "a") -> str:
    """The name of a turn that was begun."""
    (begun,) = await ledger.log.append(session, [ev.TurnStarted()], owner=owner)
    assert isinstance(begun, ev.TurnStarted)
    return begun.turn


async def open_turn(ledger: LocalLedger, session: str = "a") -> str:
    row = await ledger.log.store.session(session)
    assert row is not None
    return row.turn


async def last(ledger: LocalLedger, session: str = "a") -> Any:
    return (await read_events(ledger, session))[-1]


def gone() -> str:
    """An owner of this machine that lives no more."""
    place, _, started, number = new_owner().split(" ")
    return f"{place} 999999999 {started} {number}"


async def test_the_turn_of_a_killed_process_ends_with_its_calls(db: str) -> None:
    """C5: while it lives nothing is touched; once it is killed the turn ends as cut off, and every call with it."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, db], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            async with await callslip.open(db) as ledger:
                assert await open_turn(ledger) == "work"
        finally:
            process.send_signal(signal.SIGKILL)
    async with await callslip.open(db) as ledger:
        ended = await last(ledger)
        assert (ended.turn, ended.reason, ended.verdict) == ("work", "eof", "applied")
        assert ended.detail == "the process that worked on this turn ended" and await open_turn(ledger) == ""
        rows = {row.tool: (row.state, row.reason) for row in (await ledger.calls()).items}
        assert rows == {
            "mine": ("lost", "the process that ran this call ended"),
            "other": ("lost", "the process that worked on this turn ended"),
            "detached": ("queued", ""),
        }
        head = ended.seq
    async with sound_ledger(db) as ledger:
        assert (await last(ledger)).seq == head, "it ended twice"


async def test_a_turn_that_nobody_owns_stays(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """What is posted or hooked comes from many short-lived processes: none of their ends is the turn's."""
    turn = await turn_of(ledger)
    for _ in range(3):
        assert await reaper.reap() == 0
        clocks.pass_time(100_000)
    assert await open_turn(ledger) == turn


async def test_a_turn_lives_as_long_as_its_owner(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: of a process on this machine no lease is asked; of one elsewhere the lease alone tells."""
    mine, other = await turn_of(ledger, ledger.log.owner, "mine"), await turn_of(ledger, ELSEWHERE, "other")
    for _ in range(5):
        clocks.pass_time(20)
        until = int(clocks.wall * 1000) + 30_000
        await ledger.log.store.transact(lambda unit, until=until: unit.put_owner(OwnerRecord(ELSEWHERE, until)))
        assert await reaper.reap() == 0
    assert (await open_turn(ledger, "mine"), await open_turn(ledger, "other")) == (mine, other)
    clocks.pass_time(31)
    assert await reaper.reap() == 1
    ended = await last(ledger, "other")
    assert (ended.reason, ended.detail) == ("eof", "the owner of this turn went silent")
    assert (await open_turn(ledger, "mine"), await open_turn(ledger, "other")) == (mine, "")


async def test_a_machine_that_slept_ends_no_turn(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: the wall clock jumped, but no reaper has watched the owner for that long."""
    turn = await turn_of(ledger, ELSEWHERE)
    assert await reaper.reap() == 0
    clocks.wall += 10_000
    assert await reaper.reap() == 0
    until = int(clocks.wall * 1000) + 30_000
    await ledger.log.store.transact(lambda unit: unit.put_owner(OwnerRecord(ELSEWHERE, until)))
    clocks.pass_time(29)
    assert await reaper.reap() == 0 and await open_turn(ledger) == turn


async def test_a_turn_whose_owner_nobody_knows_is_given_up(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: after the grace, not at once and not never."""
    await turn_of(ledger, ELSEWHERE)
    await ledger.log.store.drop_owner(ELSEWHERE)
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
async def test_a_reapers_verdict_on_a_turn_vanishes_if_it_went_on(
    ledger: LocalLedger, reaper: Reaper, meanwhile: list[ev.Event]
) -> None:
    """C5: between the look and the deed the turn may be over: the next one is not ended in its place."""
    await turn_of(ledger, gone())
    stale = await ledger.log.store.sessions_with_owned_turn()
    await ledger.log.append("a", meanwhile)
    before = await read_events(ledger, "a")

    async def as_it_was() -> list[SessionRecord]:
        return stale

    ledger.log.store.sessions_with_owned_turn = as_it_was  # type: ignore[method-assign]
    assert await reaper.reap() == 0
    del ledger.log.store.sessions_with_owned_turn
    assert await read_events(ledger, "a") == before


async def test_the_next_turn_has_an_owner_of_its_own(ledger: LocalLedger, reaper: Reaper) -> None:
    """A turn without an owner does not inherit the owner of the one before, be it ended or superseded."""
    for session, between in (("ended", [ev.TurnEnded()]), ("superseded", [])):
        await turn_of(ledger, gone(), session)
        await ledger.log.append(session, [*between, ev.TurnStarted(turn="mine")])
    assert await reaper.reap() == 0
    assert [await open_turn(ledger, session) for session in ("ended", "superseded")] == ["mine", "mine"]


async def test_a_connections_end_is_its_turns(ledger: LocalLedger) -> None:
    """C5: the turn that it worked on ends as cut off, in every session; those of others continue."""
    first, second = new_owner(), new_owner()
    for session, owner in (("a", first), ("b", first), ("c", second), ("d", "")):
        await turn_of(ledger, owner, session)
        await call_of(ledger, ev.CallProposed(tool_name="t"), session=session)
    assert await ledger.log.close_owner(first, "the agent's process ended") == 2
    assert [await open_turn(ledger, session) for session in "abcd"] == ["", "", "t1", "t1"]
    ended = await last(ledger)
    assert (ended.reason, ended.detail) == ("eof", "the agent's process ended")
    rows = {row.session: (row.state, row.reason) for row in (await ledger.calls()).items}
    assert rows["a"] == rows["b"] == ("lost", "the agent's process ended")
    assert rows["c"] == rows["d"] == ("queued", "")
    assert await ledger.log.close_owner(first, "again") == 0


async def test_closing_ends_the_turns_of_the_process(db: str) -> None:
    """C5: as its calls do; it leaves no turn to be found open by the next one."""
    ledger = await callslip.open(db)
    await turn_of(ledger, ledger.log.owner, "mine")
    await turn_of(ledger, "", "posted")
    await ledger.close()
    async with sound_ledger(db, reaper_interval=NEVER) as ledger:
        assert (await last(ledger, "mine")).reason == "eof" and await open_turn(ledger, "mine") == ""
        assert await open_turn(ledger, "posted") == "t1"


# Deadlines and approvals


async def test_a_deadline_is_kept_queued_or_running(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: what ran out of time is expired, and the reason tells whether it had begun."""
    deadline = int(clocks.wall * 1000) + 30_000
    queued = await call_of(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    running = await call_of(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    done = await call_of(ledger, ev.CallProposed(tool_name="t", scope="detached", deadline=deadline))
    await ledger.log.append("a", [ev.CallStarted(call=running), ev.CallCompleted(call=done)])
    assert await reaper.reap() == 0
    clocks.pass_time(30)
    assert await reaper.reap() == 2
    assert await state(ledger, queued) == ("expired", "no worker claimed it in time")
    assert await state(ledger, running) == ("expired", "its time ran out while it ran")
    assert (await state(ledger, done))[0] == "completed"


async def test_an_owners_calls_have_deadlines_too(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5: that its owner lives does not keep a call beyond its time."""
    deadline = int(clocks.wall * 1000) + 30_000
    call = await call_of(ledger, ev.CallProposed(tool_name="t", deadline=deadline), owner=ledger.log.owner)
    await reaper.reap()
    clocks.pass_time(31)
    assert await reaper.reap() == 1
    assert (await state(ledger, call))[0] == "expired"


async def test_an_unanswered_approval_denies(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """C5, S2.7: the call is denied with words for the model, the request is closed, and an answer comes too late."""
    expires = int(clocks.wall * 1000) + 300_000
    call = await call_of(ledger, ev.ApprovalRequested(tool_name="rm", expires_at=expires), owner=ledger.log.owner)
    (requested,) = await ledger.approvals()
    assert await reaper.reap() == 0
    clocks.pass_time(299)
    assert await reaper.reap() == 0
    clocks.pass_time(1)
    assert await reaper.reap() == 1
    assert await state(ledger, call) == ("denied", "no answer in time")
    closed = await ledger.find_approval(requested.id)
    assert (closed.state, closed.by) == ("refused", "expiry")
    with pytest.raises(ConflictError) as conflict:
        await ledger.approve(requested.id, by="ann")
    assert conflict.value.winner == closed


async def test_an_answer_just_before_the_expiry_counts(ledger: LocalLedger, reaper: Reaper, clocks: Clocks) -> None:
    """S2.7: of an answer and the expiry the first one wins, and the other changes nothing."""
    expires = int(clocks.wall * 1000) + 300_000
    call = await call_of(ledger, ev.ApprovalRequested(tool_name="rm", expires_at=expires), owner=ledger.log.owner)
    (requested,) = await ledger.approvals()
    await reaper.reap()
    clocks.pass_time(301)
    # The reaper has looked, and a person answers before it acts.
    stale = await ledger.log.store.approvals(state="pending")
    await ledger.approve(requested.id, by="ann")

    async def as_it_was(**_: Any) -> Any:
        return stale

    ledger.log.store.approvals = as_it_was  # type: ignore[method-assign]
    assert await reaper.reap() == 0
    del ledger.log.store.approvals
    assert (await ledger.find_approval(requested.id)).by == "ann" and (await state(ledger, call))[0] == "queued"


# Reapers


async def test_of_two_reapers_one_ends_a_call(ledger: LocalLedger, db: str, clocks: Clocks) -> None:
    """C4, C5: any number of processes may reap: each call has one ending."""
    calls = [await call_of(ledger) for _ in range(20)]
    async with await callslip.open(db, Settings(reaper_interval=NEVER)) as other:
        reapers = [reaper_of(one, clocks) for one in (ledger, other, ledger, other)]
        assert sum(await asyncio.gather(*(one.reap() for one in reapers))) == 0
        clocks.pass_time(700)
        assert sum(await asyncio.gather(*(one.reap() for one in reapers))) == 20
    endings = [event.call for event in await read_events(ledger, "a") if isinstance(event, ev.CallLost)]
    assert sorted(endings) == sorted(calls)


@pytest.mark.parametrize(
    "meanwhile", [ev.CallProgress(text="alive"), ev.CallStarted(attempt=2), ev.CallCompleted(output=1)]
)
async def test_a_reapers_verdict_vanishes_if_anything_happened(
    ledger: LocalLedger, reaper: Reaper, clocks: Clocks, meanwhile: Any
) -> None:
    """C5: between the reaper's look and its deed the call may speak up: then it is not lost."""
    call = await call_of(ledger)
    await reaper.reap()
    clocks.pass_time(700)
    stale = await ledger.log.store.calls_due(2**62)
    await ledger.log.append("a", [type(meanwhile)(call=call, **_spoken(meanwhile))])

    async def as_it_was(until: int) -> list[CallRecord]:
        return stale

    ledger.log.store.calls_due = as_it_was  # type: ignore[method-assign]
    assert await reaper.reap() == 0
    del ledger.log.store.calls_due
    assert (await state(ledger, call))[0] != "lost"


def _spoken(event: ev.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("text", "attempt", "output") if hasattr(event, name)}


async def test_the_ledger_reaps_by_itself(db: str) -> None:
    """C5: a running process needs no request."""
    async with await open_with_settings(db, ingest_lease=0.1, reaper_interval=0.02, reaper_grace=0.02) as ledger:
        call = await call_of(ledger)
        async with asyncio.timeout(10):
            assert (await ledger.wait(call)).state == "lost"


async def test_the_watch_goes_on_after_a_failure(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: a full disk or a broken one stops the reaping only as long as it lasts."""
    async with await open_with_settings(db, ingest_lease=0.1, reaper_interval=0.02, reaper_grace=0.02) as ledger:
        call = await call_of(ledger)
        tried = asyncio.Event()

        async def broken(until: int) -> list[CallRecord]:
            tried.set()
            raise StoreError("the disk failed")

        with monkeypatch.context() as patch:
            patch.setattr(ledger.log.store, "calls_due", broken)
            await asyncio.wait_for(tried.wait(), 10)
        async with asyncio.timeout(10):
            assert (await ledger.wait(call)).state == "lost"


async def test_a_reader_of_a_file_it_may_not_write_reaps_nothing(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a ledger read-only changes nothing in it."""
    place, _, started, _ = new_owner().split(" ")
    async with await callslip.open(db) as ledger:
        call = await call_of(ledger, owner=f"{place} 999999999 {started} 1")
        monkeypatch.setattr("callslip.store.sqlite_open.is_writable", lambda path: False)
        async with await callslip.open(db) as reader:
            assert reader.log.store.read_only and (await state(reader, call))[0] == "running"
