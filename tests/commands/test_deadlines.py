"""What a process remembers of open commands: small, quick, and the same as a plain list of them would say (S3.8)."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.commands import deadlines as module
from callslip.commands.deadlines import BUCKET, SLACK, DeadlineTracker
from callslip.commands.waiters import Lines, in_line
from callslip.model.records import CallRecord

NOW = 1_700_000_000_000


def row(name: str, state: str = "queued", deadline: int = NOW, client: str = "default") -> CallRecord:
    return CallRecord(id=name, session="s", entry=1, state=state, deadline=deadline, client=client)


def steps(work: Callable[[], Any]) -> int:
    """How many lines of the tracker run: time would depend on the machine."""
    count = 0

    def trace(frame: FrameType, kind: str, value: object) -> Any:
        nonlocal count
        count += kind == "line"
        return trace if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


# What is open


def test_a_command_is_known_until_it_ends() -> None:
    tracker = DeadlineTracker()
    assert tracker.take(row("a")) and tracker.get("a") == module.Pending("default", "queued", NOW)
    assert not tracker.take(row("a", "running")) and tracker.get("a") == module.Pending("default", "running", NOW)
    assert not tracker.take(row("a", "completed")) and tracker.get("a") is None
    assert not tracker.take(row("a", "completed")) and tracker.pending == {}


@pytest.mark.parametrize("state", ["completed", "failed", "denied", "cancelled", "expired", "lost"])
def test_what_ended_is_never_due(state: str) -> None:
    """S3.4: whatever comes first, the end or the deadline."""
    tracker = DeadlineTracker()
    tracker.take(row("a"))
    tracker.take(row("a", state))
    assert tracker.due(NOW * 2) == [] and tracker.next_due == 0


def test_whoever_waits_is_told_when_a_command_may_be_taken_up() -> None:
    """Once when it is queued, again when it comes back into the queue, not when it is told of again."""
    tracker = DeadlineTracker()
    told = [tracker.take(row("a", state)) for state in ("queued", "queued", "running", "running", "queued", "queued")]
    assert told == [True, False, False, False, True, False]
    assert not tracker.take(row("b", "awaiting_approval")) and tracker.take(row("b"))


# What is due


def test_a_command_is_due_when_its_time_is_over_and_no_sooner() -> None:
    """S3.4: at most one bucket late, never early; and the moment to ask again is told."""
    for deadline in range(NOW, NOW + 2 * BUCKET):
        tracker = DeadlineTracker()
        tracker.take(row("a", deadline=deadline))
        assert deadline <= tracker.next_due < deadline + BUCKET
        assert tracker.due(deadline - 1) == []
        assert tracker.due(tracker.next_due) == ["a"]


def test_what_is_due_is_told_once() -> None:
    """Whoever was told tries to end it; if that fails they ask for it again."""
    tracker = DeadlineTracker()
    tracker.take(row("a"))
    assert tracker.due(NOW) == ["a"] and tracker.due(NOW + 1000) == [] and tracker.next_due == 0
    tracker.take(row("a", "running"))
    assert tracker.due(NOW + 1000) == []
    tracker.again("a", NOW + 2000)
    assert tracker.next_due == NOW + 2000 and tracker.due(NOW + 1999) == [] and tracker.due(NOW + 2000) == ["a"]
    tracker.again("nobody", NOW)
    assert tracker.due(NOW + 3000) == []


def test_time_that_has_not_begun_does_not_run_out() -> None:
    """S3.4: the clock starts after approval."""
    tracker = DeadlineTracker()
    tracker.take(row("a", "awaiting_approval"))
    assert tracker.next_due == 0 and tracker.due(NOW * 2) == []
    tracker.take(row("a", deadline=NOW + 500))
    assert tracker.due(NOW + 499) == [] and tracker.due(NOW + 500) == ["a"]


def test_a_deadline_that_moves_counts_where_it_stands() -> None:
    """Forth, back and to where it was, within a bucket and beyond: told once, at the last of them."""
    for moves in ([NOW, NOW + 5], [NOW + 5, NOW], [NOW, NOW + 500, NOW], [NOW + 500, NOW, NOW + 500], [NOW, 0, NOW]):
        tracker = DeadlineTracker()
        for deadline in moves:
            tracker.take(row("a", deadline=deadline))
        assert tracker.due(moves[-1] - 1) == []
        assert tracker.due(NOW + 5000) == ["a"] and tracker.due(NOW + 9000) == []


def test_a_command_that_is_nowhere_any_more_is_forgotten() -> None:
    tracker = DeadlineTracker()
    tracker.take(row("a"))
    tracker.forget("a")
    tracker.forget("a")
    assert tracker.pending == {} and tracker.due(NOW) == []


# What it costs


def test_nothing_due_costs_nothing() -> None:
    """S3.8: the same few steps, whether one command is open or ten thousand."""
    few, many = DeadlineTracker(), DeadlineTracker()
    few.take(row("a", deadline=NOW + 10))
    for number in range(10_000):
        many.take(row(f"c{number}", deadline=NOW + 10 + number))
    assert steps(lambda: few.due(NOW)) == steps(lambda: many.due(NOW)) <= 5
    assert steps(lambda: few.get("a")) == steps(lambda: many.get("c77")) == 1


def test_a_command_costs_as_much_as_any_other() -> None:
    """S3.8: to take one in, and to let it end, takes the same steps however many there are."""
    tracker = DeadlineTracker()
    costs: list[int] = []
    for number in range(3000):
        costs.append(steps(lambda number=number: tracker.take(row(f"c{number}", deadline=NOW + number))))
    assert max(costs) <= 20
    assert max(steps(lambda n=n: tracker.take(row(f"c{n}", "completed"))) for n in range(3000)) <= 12
    assert tracker.pending == {}


def test_places_of_what_has_ended_do_not_pile_up() -> None:
    """S3.8: a server that runs for months keeps the buckets of what is open, and a few more; swept seldom."""
    tracker = DeadlineTracker()
    tracker.take(row("stays"))
    spent = 0
    for number in range(20_000):  # Each ends at once, and would have had a day.
        spent += steps(lambda n=number: tracker.take(row(f"c{n}", deadline=NOW + 86_400_000 + n * BUCKET)))
        tracker.take(row(f"c{number}", "completed"))
        assert tracker._places <= SLACK + 5  # pyright: ignore[reportPrivateUsage]
    assert len(tracker._buckets) <= SLACK + 5 and spent / 20_000 <= 20  # pyright: ignore[reportPrivateUsage]


def test_an_idle_tracker_is_small_and_a_command_costs_about_200_bytes() -> None:
    """S3.8: under 50 KB when nothing is open, however much there was before."""
    names = [(f"exec_{number:012x}", "client-" + str(number % 3)) for number in range(20_000)]
    gc.collect()
    tracemalloc.start()
    try:
        tracker = DeadlineTracker()
        begun = tracemalloc.get_traced_memory()[0]
        for number, (name, client) in enumerate(names):
            tracker.take(row(name, deadline=NOW + number * 3, client=client))
        assert (tracemalloc.get_traced_memory()[0] - begun) / len(names) < 300
        for name, _ in names:
            tracker.take(row(name, "completed"))
        idle = tracemalloc.get_traced_memory()[0] - begun
    finally:
        tracemalloc.stop()
    assert idle < 50_000


# The law


class Naive:
    """The same by looking at everything."""

    def __init__(self) -> None:
        self.open: dict[str, CallRecord] = {}
        self.armed: dict[str, int] = {}

    def take(self, given: CallRecord) -> bool:
        known = self.open.pop(given.id, None)
        if given.state == "completed":
            self.armed.pop(given.id, None)
            return False
        deadline = given.deadline if given.state != "awaiting_approval" else 0
        before = 0 if known is None else known.deadline
        self.open[given.id] = row(given.id, given.state, deadline)
        if known is None or before != deadline:
            self.arm(given.id, deadline)
        return given.state == "queued" and (known is None or known.state != "queued")

    def arm(self, name: str, deadline: int) -> None:
        self.armed.pop(name, None)
        if deadline:
            self.armed[name] = -(-deadline // BUCKET) * BUCKET

    def again(self, name: str, deadline: int) -> None:
        if name in self.open:
            self.open[name].deadline = deadline
            self.arm(name, deadline)

    def due(self, now: int) -> set[str]:
        over = {name for name, at in self.armed.items() if at <= now}
        for name in over:
            del self.armed[name]
        return over


NAMES = st.sampled_from("abcdef")
TIMES = st.integers(NOW, NOW + 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("take"), NAMES, st.sampled_from(["queued", "running", "awaiting_approval", "completed"]), TIMES
        ),
        st.tuples(st.just("again"), NAMES, st.just(""), TIMES),
        st.tuples(st.just("due"), st.just(""), st.just(""), TIMES),
    ),
    max_size=80,
)


@given(STEPS)
def test_the_tracker_tells_what_a_plain_list_would(steps: list[tuple[str, str, str, int]]) -> None:
    """Whatever comes in whatever order: the same commands are open, and the same are due, each once."""
    tracker, naive = DeadlineTracker(), Naive()
    for step, name, state, at in steps:
        if step == "take":
            assert tracker.take(row(name, state, at)) == naive.take(row(name, state, at))
        elif step == "again":
            tracker.again(name, at)
            naive.again(name, at)
        else:
            told = tracker.due(at)
            assert len(told) == len(set(told)) and set(told) == naive.due(at)
        assert {name: (known.state, known.deadline) for name, known in tracker.pending.items()} == {
            name: (known.state, known.deadline) for name, known in naive.open.items()
        }
        assert not naive.armed or 0 < tracker.next_due <= min(naive.armed.values())


@given(STEPS)
def test_tidying_up_loses_nobody(steps: list[tuple[str, str, str, int]]) -> None:
    """Swept at every turn, it still tells all that is due, nobody twice in one breath, and nobody who has time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLACK", -100)
        tracker, naive = DeadlineTracker(), Naive()
        for step, name, state, at in steps:
            if step == "take":
                tracker.take(row(name, state, at))
                naive.take(row(name, state, at))
            elif step == "again":
                tracker.again(name, at)
                naive.again(name, at)
            else:
                told = tracker.due(at)
                assert naive.due(at) <= set(told) and len(told) == len(set(told))
                assert all(0 < tracker.pending[name].deadline <= at for name in told)
            assert tracker._places <= 2 * len(tracker.pending) + 1  # pyright: ignore[reportPrivateUsage]


# Standing in line


async def wait_in(lines: Lines, name: str, log: list[str], work: list[str], *, wants: str = "") -> str:
    with in_line(lines, "c") as waiter:
        while True:
            waiter.stand()
            log.append(name)
            await asyncio.sleep(0)
            if work and wants in work[0]:
                waiter.served()
                return work.pop(0)
            await waiter.woken(5)


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_one_command_wakes_one_who_waits() -> None:
    """S3.3: not all of them, and none of them again and again while there is nothing."""
    lines: Lines = {}
    log: list[str] = []
    work: list[str] = []
    waiting = [asyncio.create_task(wait_in(lines, str(number), log, work)) for number in range(50)]
    await settled()
    assert len(log) == 50
    work.append("x")
    lines["c"].wake()
    await settled()
    assert await waiting[0] == "x" and log[50:] == ["0"]
    lines["c"].wake()  # For nothing: somebody else was quicker.
    await settled()
    assert sorted(log[51:]) == sorted(map(str, range(1, 50)))
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert lines == {}


@pytest.mark.anyio
async def test_a_wake_up_reaches_whoever_has_a_use_for_it() -> None:
    """Passed on by those whom it does not concern, and by one who goes away at that very moment."""
    lines: Lines = {}
    log: list[str] = []
    work: list[str] = []
    first = asyncio.create_task(wait_in(lines, "first", log, work))
    await settled()
    others = [asyncio.create_task(wait_in(lines, "other", log, work, wants="other")) for _ in range(5)]
    right = asyncio.create_task(wait_in(lines, "right", log, work, wants="right"))
    await settled()
    work.append("right")
    lines["c"].wake()
    first.cancel()
    await settled()
    assert right.done() and right.result() == "right" and first.cancelled()
    assert log.count("other") == 10
    for task in others:
        task.cancel()
    await asyncio.gather(first, *others, return_exceptions=True)
    assert lines == {}


@pytest.mark.anyio
async def test_a_wake_up_for_one_who_is_served_already_goes_on() -> None:
    """A second command comes while the first in line is about to take another: the next in line gets it."""
    lines: Lines = {}
    log: list[str] = []
    work: list[str] = []
    with in_line(lines, "c") as busy:
        busy.stand()
        second = asyncio.create_task(wait_in(lines, "second", log, work))
        await settled()
        work.append("x")
        lines["c"].wake()
        busy.served()
        await settled()
        assert log == ["second"]
    assert await second == "x" and log == ["second", "second"] and lines == {}


@pytest.mark.anyio
async def test_whoever_waits_is_sent_home_when_there_will_be_no_more_work() -> None:
    lines: Lines = {}
    with in_line(lines, "c") as one, in_line(lines, "c") as two:
        one.stand()
        two.stand()
        lines["c"].wake_all()
        async with asyncio.timeout(1):
            await asyncio.gather(one.woken(60), two.woken(60))
