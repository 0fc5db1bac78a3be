"""The tracker of open commands: small, fast, and in agreement with a plain list of the commands (S3.8)."""

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
from callslip.commands.deadlines import BUCKET_MS, STALE_SLACK, DeadlineTracker
from callslip.commands.waiters import WaiterQueues, wait_in_queue
from callslip.model.records import CallRecord

NOW = 1_700_000_000_000


def make_row(name: str, state: str = "queued", deadline: int = NOW, client: str = "default") -> CallRecord:
    return CallRecord(id=name, session="s", entry=1, state=state, deadline=deadline, client=client)


def count_steps(work: Callable[[], Any]) -> int:
    """Return how many lines of the tracker run; a duration would depend on the machine."""
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


# Open commands


def test_a_command_is_tracked_until_it_ends() -> None:
    tracker = DeadlineTracker()
    assert tracker.update(make_row("a")) and tracker.get("a") == module.Pending("default", "queued", NOW)
    assert not tracker.update(make_row("a", "running")) and tracker.get("a") == module.Pending(
        "default", "running", NOW
    )
    assert not tracker.update(make_row("a", "completed")) and tracker.get("a") is None
    assert not tracker.update(make_row("a", "completed")) and tracker.pending == {}


@pytest.mark.parametrize("state", ["completed", "failed", "denied", "cancelled", "expired", "lost"])
def test_an_ended_command_is_never_due(state: str) -> None:
    """S3.4: the end and the deadline in either order."""
    tracker = DeadlineTracker()
    tracker.update(make_row("a"))
    tracker.update(make_row("a", state))
    assert tracker.due(NOW * 2) == [] and tracker.next_due == 0


def test_update_returns_true_when_a_command_becomes_claimable() -> None:
    """When it is queued and when it is requeued, but not for a repeated update."""
    tracker = DeadlineTracker()
    claimable = [
        tracker.update(make_row("a", state)) for state in ("queued", "queued", "running", "running", "queued", "queued")
    ]
    assert claimable == [True, False, False, False, True, False]
    assert not tracker.update(make_row("b", "awaiting_approval")) and tracker.update(make_row("b"))


# Due commands


def test_a_command_is_due_at_its_deadline_and_not_before() -> None:
    """S3.4: at most one bucket late, never early; and the time of the next check is known."""
    for deadline in range(NOW, NOW + 2 * BUCKET_MS):
        tracker = DeadlineTracker()
        tracker.update(make_row("a", deadline=deadline))
        assert deadline <= tracker.next_due < deadline + BUCKET_MS
        assert tracker.due(deadline - 1) == []
        assert tracker.due(tracker.next_due) == ["a"]


def test_a_due_command_is_returned_once() -> None:
    """The caller tries to end it; if that fails, it reschedules it."""
    tracker = DeadlineTracker()
    tracker.update(make_row("a"))
    assert tracker.due(NOW) == ["a"] and tracker.due(NOW + 1000) == [] and tracker.next_due == 0
    tracker.update(make_row("a", "running"))
    assert tracker.due(NOW + 1000) == []
    tracker.reschedule("a", NOW + 2000)
    assert tracker.next_due == NOW + 2000 and tracker.due(NOW + 1999) == [] and tracker.due(NOW + 2000) == ["a"]
    tracker.reschedule("nobody", NOW)
    assert tracker.due(NOW + 3000) == []


def test_a_command_awaiting_approval_is_not_due() -> None:
    """S3.4: the clock starts after approval."""
    tracker = DeadlineTracker()
    tracker.update(make_row("a", "awaiting_approval"))
    assert tracker.next_due == 0 and tracker.due(NOW * 2) == []
    tracker.update(make_row("a", deadline=NOW + 500))
    assert tracker.due(NOW + 499) == [] and tracker.due(NOW + 500) == ["a"]


def test_a_moved_deadline_replaces_the_earlier_deadline() -> None:
    """Moved later, earlier and back, within a bucket and beyond: due once, at the last deadline."""
    for moves in ([NOW, NOW + 5], [NOW + 5, NOW], [NOW, NOW + 500, NOW], [NOW + 500, NOW, NOW + 500], [NOW, 0, NOW]):
        tracker = DeadlineTracker()
        for deadline in moves:
            tracker.update(make_row("a", deadline=deadline))
        assert tracker.due(moves[-1] - 1) == []
        assert tracker.due(NOW + 5000) == ["a"] and tracker.due(NOW + 9000) == []


def test_a_removed_command_is_no_longer_tracked() -> None:
    tracker = DeadlineTracker()
    tracker.update(make_row("a"))
    tracker.remove("a")
    tracker.remove("a")
    assert tracker.pending == {} and tracker.due(NOW) == []


# Cost


def test_checking_for_due_commands_takes_constant_time() -> None:
    """S3.8: the same few steps for one open command and for ten thousand."""
    few, many = DeadlineTracker(), DeadlineTracker()
    few.update(make_row("a", deadline=NOW + 10))
    for number in range(10_000):
        many.update(make_row(f"c{number}", deadline=NOW + 10 + number))
    assert count_steps(lambda: few.due(NOW)) == count_steps(lambda: many.due(NOW)) <= 5
    assert count_steps(lambda: few.get("a")) == count_steps(lambda: many.get("c77")) == 1


def test_adding_or_ending_a_command_takes_constant_time() -> None:
    """S3.8: the number of steps does not depend on the number of commands."""
    tracker = DeadlineTracker()
    costs: list[int] = []
    for number in range(3000):
        costs.append(count_steps(lambda number=number: tracker.update(make_row(f"c{number}", deadline=NOW + number))))
    assert max(costs) <= 20
    assert max(count_steps(lambda n=n: tracker.update(make_row(f"c{n}", "completed"))) for n in range(3000)) <= 12
    assert tracker.pending == {}


def test_ended_commands_leave_no_growing_set_of_buckets() -> None:
    """S3.8: a server that runs for months keeps only the buckets of open commands and a few more."""
    tracker = DeadlineTracker()
    tracker.update(make_row("stays"))
    total_steps = 0
    for number in range(20_000):  # Each ends at once, a day before its deadline.
        total_steps += count_steps(
            lambda n=number: tracker.update(make_row(f"c{n}", deadline=NOW + 86_400_000 + n * BUCKET_MS))
        )
        tracker.update(make_row(f"c{number}", "completed"))
        assert tracker._places <= STALE_SLACK + 5  # pyright: ignore[reportPrivateUsage]
    assert len(tracker._buckets) <= STALE_SLACK + 5 and total_steps / 20_000 <= 20  # pyright: ignore[reportPrivateUsage]


def test_an_idle_tracker_is_small_and_a_command_costs_about_200_bytes() -> None:
    """S3.8: under 50 KB when nothing is open, however much there was before."""
    names = [(f"exec_{number:012x}", "client-" + str(number % 3)) for number in range(20_000)]
    gc.collect()
    tracemalloc.start()
    try:
        tracker = DeadlineTracker()
        start_bytes = tracemalloc.get_traced_memory()[0]
        for number, (name, client) in enumerate(names):
            tracker.update(make_row(name, deadline=NOW + number * 3, client=client))
        assert (tracemalloc.get_traced_memory()[0] - start_bytes) / len(names) < 300
        for name, _ in names:
            tracker.update(make_row(name, "completed"))
        idle_bytes = tracemalloc.get_traced_memory()[0] - start_bytes
    finally:
        tracemalloc.stop()
    assert idle_bytes < 50_000


# Comparison with a naive tracker


class NaiveTracker:
    """A tracker that checks every command."""

    def __init__(self) -> None:
        self.open: dict[str, CallRecord] = {}
        self.armed: dict[str, int] = {}

    def update(self, record: CallRecord) -> bool:
        existing = self.open.pop(record.id, None)
        if record.state == "completed":
            self.armed.pop(record.id, None)
            return False
        deadline = record.deadline if record.state != "awaiting_approval" else 0
        before = 0 if existing is None else existing.deadline
        self.open[record.id] = make_row(record.id, record.state, deadline)
        if existing is None or before != deadline:
            self.arm(record.id, deadline)
        return record.state == "queued" and (existing is None or existing.state != "queued")

    def arm(self, name: str, deadline: int) -> None:
        self.armed.pop(name, None)
        if deadline:
            self.armed[name] = -(-deadline // BUCKET_MS) * BUCKET_MS

    def reschedule(self, name: str, deadline: int) -> None:
        if name in self.open:
            self.open[name].deadline = deadline
            self.arm(name, deadline)

    def due(self, now: int) -> set[str]:
        due = {name for name, at in self.armed.items() if at <= now}
        for name in due:
            del self.armed[name]
        return due


NAMES = st.sampled_from("abcdef")
TIMES = st.integers(NOW, NOW + 60)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("update"), NAMES, st.sampled_from(["queued", "running", "awaiting_approval", "completed"]), TIMES
        ),
        st.tuples(st.just("reschedule"), NAMES, st.just(""), TIMES),
        st.tuples(st.just("due"), st.just(""), st.just(""), TIMES),
    ),
    max_size=80,
)


@given(OPERATIONS)
def test_the_tracker_agrees_with_a_naive_list(operations: list[tuple[str, str, str, int]]) -> None:
    """For updates in any order: the same open commands and the same due commands, each once."""
    tracker, naive = DeadlineTracker(), NaiveTracker()
    for operation, name, state, at in operations:
        if operation == "update":
            assert tracker.update(make_row(name, state, at)) == naive.update(make_row(name, state, at))
        elif operation == "reschedule":
            tracker.reschedule(name, at)
            naive.reschedule(name, at)
        else:
            due = tracker.due(at)
            assert len(due) == len(set(due)) and set(due) == naive.due(at)
        assert {name: (command.state, command.deadline) for name, command in tracker.pending.items()} == {
            name: (command.state, command.deadline) for name, command in naive.open.items()
        }
        assert not naive.armed or 0 < tracker.next_due <= min(naive.armed.values())


@given(OPERATIONS)
def test_rebuilding_the_buckets_loses_no_command(operations: list[tuple[str, str, str, int]]) -> None:
    """Rebuilt at every step, it still returns every due command once, and none before its deadline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STALE_SLACK", -100)
        tracker, naive = DeadlineTracker(), NaiveTracker()
        for operation, name, state, at in operations:
            if operation == "update":
                tracker.update(make_row(name, state, at))
                naive.update(make_row(name, state, at))
            elif operation == "reschedule":
                tracker.reschedule(name, at)
                naive.reschedule(name, at)
            else:
                due = tracker.due(at)
                assert naive.due(at) <= set(due) and len(due) == len(set(due))
                assert all(0 < tracker.pending[name].deadline <= at for name in due)
            assert tracker._places <= 2 * len(tracker.pending) + 1  # pyright: ignore[reportPrivateUsage]


# Waiters


async def wait_for_work(queues: WaiterQueues, name: str, log: list[str], work: list[str], *, wants: str = "") -> str:
    """Wait in a queue until there is work with the text `wants`, and return it."""
    with wait_in_queue(queues, "c") as waiter:
        while True:
            waiter.enter()
            log.append(name)
            await asyncio.sleep(0)
            if work and wants in work[0]:
                waiter.consume_wake_up()
                return work.pop(0)
            await waiter.wait(5)


async def settle() -> None:
    """Let all other tasks run until they wait."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_a_wake_up_wakes_a_single_waiter() -> None:
    """S3.3: waiters that find no work wait again without polling."""
    queues: WaiterQueues = {}
    log: list[str] = []
    work: list[str] = []
    waiters = [asyncio.create_task(wait_for_work(queues, str(number), log, work)) for number in range(50)]
    await settle()
    assert len(log) == 50
    work.append("x")
    queues["c"].wake()
    await settle()
    assert await waiters[0] == "x" and log[50:] == ["0"]
    queues["c"].wake()  # There is no work, because another worker was faster.
    await settle()
    assert sorted(log[51:]) == sorted(map(str, range(1, 50)))
    for task in waiters[1:]:
        task.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert queues == {}


@pytest.mark.anyio
async def test_a_wake_up_is_passed_on_to_a_waiter_that_can_use_it() -> None:
    """By waiters that want other work, and by one that is cancelled at that moment."""
    queues: WaiterQueues = {}
    log: list[str] = []
    work: list[str] = []
    first = asyncio.create_task(wait_for_work(queues, "first", log, work))
    await settle()
    others = [asyncio.create_task(wait_for_work(queues, "other", log, work, wants="other")) for _ in range(5)]
    right = asyncio.create_task(wait_for_work(queues, "right", log, work, wants="right"))
    await settle()
    work.append("right")
    queues["c"].wake()
    first.cancel()
    await settle()
    assert right.done() and right.result() == "right" and first.cancelled()
    assert log.count("other") == 10
    for task in others:
        task.cancel()
    await asyncio.gather(first, *others, return_exceptions=True)
    assert queues == {}


@pytest.mark.anyio
async def test_a_wake_up_of_a_busy_waiter_is_passed_to_the_next() -> None:
    """A second command arrives while the first waiter is about to claim another."""
    queues: WaiterQueues = {}
    log: list[str] = []
    work: list[str] = []
    with wait_in_queue(queues, "c") as busy:
        busy.enter()
        second = asyncio.create_task(wait_for_work(queues, "second", log, work))
        await settle()
        work.append("x")
        queues["c"].wake()
        busy.consume_wake_up()
        await settle()
        assert log == ["second"]
    assert await second == "x" and log == ["second", "second"] and queues == {}


@pytest.mark.anyio
async def test_wake_all_wakes_every_waiter() -> None:
    queues: WaiterQueues = {}
    with wait_in_queue(queues, "c") as first, wait_in_queue(queues, "c") as second:
        first.enter()
        second.enter()
        queues["c"].wake_all()
        async with asyncio.timeout(30):
            await asyncio.gather(first.wait(60), second.wait(60))
