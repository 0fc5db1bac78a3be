"""The law of commands: each has exactly one end, no result of a stalled worker is used, and no caller waits forever.

First in one process, with any sequence of steps and a fake clock; then with several processes that share only the file,
some of which are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import callslip
from callslip.api import approvals
from callslip.api.commands import CommandQueue
from callslip.api.ledger import LocalLedger
from callslip.commands import Claim, Command, claims, monitor
from callslip.errors import ConflictError, NotFoundError, QueueFullError, StaleClaimError, StoreError
from callslip.ledger.liveness import Reaper
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal
from callslip.settings import Settings
from callslip.stacks import describe_tasks
from tests.conftest import LONG
from tests.support import engines
from tests.support.invariants import find_faults, read_events, session_names, start_program
from tests.support.paths import find_memory_folder

T = TypeVar("T")
SETTINGS = Settings(
    synchronous="NORMAL",
    reaper_interval=10**6,
    checkpoint_every=10**9,
    approval_expiry=50.0,
    queue_limit=6,
    statement_timeout=10**6,  # The clock of the event loop, by which it is measured, jumps.
)
CLIENTS = ("x", "y")
SESSIONS = ("a", "b")
SECRET = "sk-ant-api03-" + "aB3" * 30


class Clock:
    """The clock of all processes, for time of day and monotonic time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class FakeClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers use that clock."""

    has_fake_clock = True
    """Nobody sleeps on it until a condition is true: the clock moves only between steps."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        super().__init__()

    def time(self) -> float:
        return self.clock.now


class WaitingCaller:
    """A caller that waits for a command to end."""

    def __init__(self, call: str, until: float, task: asyncio.Task[Command]) -> None:
        self.call = call
        self.until = until
        self.task = task


class ExpectedCommand:
    """All events about one command, and the expected state."""

    def __init__(self) -> None:
        self.end: ev.CallEvent | None = None
        self.fence = self.timeout = self.deadline = 0
        self.idempotent = False

    def add_event(self, event: ev.CallEvent) -> None:
        if event.verdict != "applied":
            return
        if isinstance(event, ev.CallProposed):
            assert not self.timeout, "proposed twice"
            self.timeout, self.idempotent, self.deadline = event.timeout, event.idempotent, event.at + event.timeout
        elif isinstance(event, ev.ApprovalGranted):
            self.deadline = event.at + self.timeout
        elif isinstance(event, ev.CallStarted):
            assert event.attempt == self.fence + 1, "a fence was used twice"
            self.fence = event.attempt
        elif isinstance(event, ev.CallRequeued):
            assert self.idempotent or "before it was handed over" in event.reason, (
                "a command that may have run is run again"
            )
        elif isinstance(event, ev.CallLost):
            assert not self.idempotent, "an idempotent command is lost"
        if is_terminal(event):
            assert self.end is None, "ended twice"
            self.end = event
        if isinstance(event, ev.CallExpired) and "time" in event.reason and not event.reason.startswith("by hand"):
            assert event.at >= self.deadline, "expired before its deadline"


SETTLING_S = 30.0
"""How long the notices of other processes may take. Nothing takes this long unless it is lost."""


class Machine(RuleBasedStateMachine):
    """Two ledgers on one database, each with workers and waiting callers."""

    engine = engines.SQLITE

    queue_indexes = st.integers(0, 1)
    which = st.integers(0, 99)
    clients = st.sampled_from(CLIENTS)

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.loop = FakeClockLoop(self.clock)
        self.resources = contextlib.ExitStack()
        folder = self.resources.enter_context(tempfile.TemporaryDirectory(dir=find_memory_folder()))
        self.url = self.resources.enter_context(engines.new_database(self.engine, Path(folder) / "ledger.db"))
        patches = [mock.patch.object(module, "time", self.clock) for module in (monitor, claims)]
        for patch in [*patches, *engines.list_clock_patches(self.engine, self.clock)]:
            self.resources.enter_context(patch)
        self.queues: list[CommandQueue] = []
        self.expected_commands: dict[str, ExpectedCommand] = {}
        self.cursors = dict.fromkeys(SESSIONS, 0)
        self.claims: list[Claim] = []
        self.checked_at = self.clock.now
        self.waiting: list[WaitingCaller] = []
        self.waiting_workers: list[tuple[str, int, asyncio.Task[Claim | None]]] = []
        self.accepted: dict[str, str] = {}
        self.refused: set[tuple[str, str]] = set()
        self.values = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def ledger(self) -> LocalLedger:
        return LocalLedger(self.queues[0].log)

    @initialize()
    def open(self) -> None:
        self.queues = [self.open_queue(), self.open_queue()]
        self.start_reaper()

    def start_reaper(self) -> None:
        """Start the reaper of the first ledger, which runs before every check."""
        context = self.ledger.log.write_context(source="callslip", strict=True)
        self.reaper = Reaper(self.ledger.log.store, context, SETTINGS, monotonic=self.clock.monotonic)
        self.reaping_since = math.inf

    def open_queue(self) -> CommandQueue:
        async def connect() -> CommandQueue:
            return CommandQueue((await callslip.open(self.url, SETTINGS)).log)

        return self.run(connect())

    def teardown(self) -> None:
        try:
            if self.queues:
                self.check_all_ended()
                for commands in self.queues:
                    self.run(self.close(commands))
        finally:
            self.loop.close()
            self.resources.close()

    async def close(self, commands: CommandQueue) -> None:
        await commands.close()
        await commands.log.close()

    # Invariants after every step

    async def settle(self, step: float = 0.03) -> None:
        """Run until all timers, writers and watchers of the other ledger are idle."""
        for _ in range(4):
            self.clock.now += step
            for commands in self.queues:
                for _ in range(4):
                    await asyncio.sleep(0)
                await commands.log.store.transact(lambda unit: None)
        for _ in range(8):
            await asyncio.sleep(0)

    def rows(self) -> dict[str, CallRecord]:
        calls = self.run(self.ledger.calls(limit=10_000)).items
        return {row.id: row for row in calls}

    def step(self, work: Coroutine[Any, Any, T]) -> T | Exception:
        """Run one step, then check the invariants."""
        try:
            result: T | Exception = self.run(work)
        except (ConflictError, QueueFullError, NotFoundError) as error:
            result = error
        self.check_state()
        return result

    def check_state(self) -> None:
        """Wait until both ledgers know all changes up to now."""
        self.checked_at = self.clock.now
        self.reap()
        before, now_ms = self.rows(), self.clock.time() * 1000
        self.run(self.settle())
        until = time.monotonic() + SETTLING_S  # Threads and servers may be late, and the fake clock does not move.
        while time.monotonic() < until and (
            self.waiting_for_ended(before) or self.waiting_for_work(before) or self.waiting_too_long()
        ):
            time.sleep(0.005)
            self.run(self.settle(0))
        rows = self.read_consistent_rows()
        for call, expected in self.expected_commands.items():
            row = rows.get(call)
            assert row is not None or expected.end is not None, "an open command has no row"
            if row is not None:
                assert (row.state in TERMINAL_STATES) == (expected.end is not None)
                assert (row.end, row.deadline) == (expected.end.seq if expected.end else 0, expected.deadline)
            earlier = before.get(call)
            if earlier is not None and earlier.state in ("queued", "running") and self.due_at(earlier) <= now_ms:
                assert expected.end is not None, "a due command has not ended"
        self.check_waiting_callers(before)
        self.check_waiting_workers({call: row for call, row in rows.items() if call in before and before[call] == row})

    def reap(self) -> None:
        self.reaping_since = min(self.reaping_since, self.clock.now)
        self.run(self.reaper.reap())

    def due_at(self, row: CallRecord) -> float:
        """Return when it must have ended. A reaper that starts after the deadline first waits its grace period."""
        reaping_start = (self.reaping_since + self.clock.time() - self.clock.now) * 1000
        return row.deadline if row.deadline > reaping_start else reaping_start + SETTINGS.reaper_grace * 1000

    def read_consistent_rows(self) -> dict[str, CallRecord]:
        """Return the rows and the log at the same point: nothing was written while they were read."""
        while True:
            rows = self.rows()
            self.catch_up()
            if self.rows() == rows:
                return rows

    def catch_up(self) -> None:
        for session in SESSIONS:
            for event in self.run(read_events(self.ledger, session, self.cursors[session])):
                assert event.seq == self.cursors[session] + 1
                self.cursors[session] = event.seq
                if isinstance(event, ev.CallEvent):
                    self.expected_commands.setdefault(event.call, ExpectedCommand()).add_event(event)

    def waiting_for_ended(self, rows: dict[str, CallRecord]) -> list[WaitingCaller]:
        """Return the callers that still wait for an ended command."""
        open_callers = [caller for caller in self.waiting if not caller.task.done()]
        return [caller for caller in open_callers if caller.call in rows and rows[caller.call].state in TERMINAL_STATES]

    def waiting_too_long(self) -> list[WaitingCaller]:
        """Return the callers that still wait a second after their timeout."""
        return [caller for caller in self.waiting if not caller.task.done() and self.clock.now >= caller.until + 1]

    def waiting_for_work(self, before: dict[str, CallRecord]) -> bool:
        """Return whether a worker waits while its queue has a command, which had been queued before."""
        clients = {client for client, _, task in self.waiting_workers if not task.done()}
        if not clients:
            return False
        rows = self.rows()
        return any(
            row.state == "queued" and row.client in clients and before.get(row.id) == row for row in rows.values()
        )

    def check_waiting_callers(self, rows: dict[str, CallRecord]) -> None:
        """Check that callers have the result of an ended command, or their timeout."""
        still_waiting: list[WaitingCaller] = []
        assert not self.waiting_for_ended(rows), f"a caller waits for an ended command: {self.describe_ledgers()}"
        assert not self.waiting_too_long(), f"a caller waits longer than its timeout: {self.describe_ledgers()}"
        for caller in self.waiting:
            if not caller.task.done():
                still_waiting.append(caller)
            elif isinstance(caller.task.exception(), StoreError | NotFoundError):
                pass  # Its ledger was closed.
            else:
                self.check_result(caller.call, caller.task.result())
        self.waiting = still_waiting

    def describe_ledgers(self) -> str:
        """Return how far each ledger knows the commands, and what its tasks wait for."""
        parts: list[str] = []
        for commands in self.queues:
            known: dict[str, Any] = {**vars(vars(commands)["_monitor"]), **vars(commands.log.feed)}
            names = ("_cursor", "_is_loading", "_must_load", "_watcher", "_poller", "changes", "external_changes")
            parts.append(f"{ {name: known[name] for name in names} }, pending {list(commands.tracker.pending)}")
        return "\n".join([*parts, describe_tasks(self.loop)])

    def check_waiting_workers(self, rows: dict[str, CallRecord]) -> None:
        """Check that no worker waits while its queue has a command."""
        still_waiting: list[tuple[str, int, asyncio.Task[Claim | None]]] = []
        work = {row.client for row in rows.values() if row.state == "queued"}
        for client, queue_index, task in self.waiting_workers:
            if not task.done():
                assert client not in work, "a worker waits while a command is queued"
                still_waiting.append((client, queue_index, task))
            elif (claim := task.result()) is not None:
                self.claims.append(claim)
        self.waiting_workers = still_waiting

    def check_result(self, call: str, command: Command) -> None:
        """Check that a refused value is never the result, and an accepted one always is."""
        end = self.expected_commands[call].end
        if command.final:
            assert end is not None
        value = command.result if command.status == "complete" else command.error
        assert (call, str(value)) not in self.refused
        if call in self.accepted:
            assert command.final and value == self.accepted[call]

    # Submit and approve

    @rule(
        queue_index=queue_indexes,
        client=clients,
        session=st.sampled_from(SESSIONS),
        timeout=st.sampled_from([1, 5, 60]),
        idempotent=st.booleans(),
        approval=st.sampled_from([False, False, True]),
        correlation_id=st.sampled_from(["", "", "one", "two"]),
        secret=st.booleans(),
    )
    def submit(
        self, queue_index: int, client: str, session: str, correlation_id: str, secret: bool, **options: Any
    ) -> None:
        params = {"key": SECRET if secret else "none"}
        self.step(
            self.queues[queue_index].submit(
                "work", params, queue=client, session=session, correlation_id=correlation_id, **options
            )
        )

    @rule(which=which, verb=st.sampled_from(["approve", "approve", "deny", "withdraw"]))
    def answer(self, which: int, verb: str) -> None:
        pending = self.run(self.ledger.approvals())
        if pending:
            row = pending[which % len(pending)]
            self.step(getattr(approvals, verb)(self.ledger.log, row.id, by="ann"))

    # Claim and finish

    @rule(queue_index=queue_indexes, client=clients, lease=st.sampled_from([1, 10]))
    def claim(self, queue_index: int, client: str, lease: float) -> None:
        claim = self.step(self.queues[queue_index].claim(client, lease=lease))
        if isinstance(claim, Claim):
            assert claim.params["key"] in (SECRET, "none")
            self.claims.append(claim)

    @rule(queue_index=queue_indexes, client=clients, wait=st.sampled_from([1, 30]))
    def wait_for_work(self, queue_index: int, client: str, wait: float) -> None:
        task = self.loop.create_task(self.queues[queue_index].claim(client, wait=wait, lease=5))
        self.waiting_workers.append((client, queue_index, task))
        self.check_state()

    @rule(queue_index=queue_indexes, client=clients, turns=st.integers(0, 12))
    def leave_when_work_comes(self, queue_index: int, client: str, turns: int) -> None:
        """A worker that is woken and cancelled at the same moment leaves the command to the next one."""
        self.wait_for_work(queue_index, client, 30)
        self.wait_for_work(queue_index, client, 30)
        if len(self.waiting_workers) < 2 or self.waiting_workers[-2][2].done():
            return
        _, _, task = self.waiting_workers.pop(-2)

        async def submit_and_cancel() -> None:
            await self.queues[queue_index].submit("work", {"key": "none"}, queue=client, session="a", timeout=60)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(result, Claim):
                self.claims.append(result)

        self.step(submit_and_cancel())

    @rule(which=which)
    def stop_waiting_for_work(self, which: int) -> None:
        """A cancelled worker takes no command."""
        if self.waiting_workers:
            _, _, task = self.waiting_workers.pop(which % len(self.waiting_workers))

            async def cancel_worker() -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            self.step(cancel_worker())

    def is_held(self, claim: Claim) -> bool:
        row = self.rows().get(claim.call)
        return row is not None and row.state == "running" and row.attempt == claim.fence

    @rule(queue_index=queue_indexes, which=which, lease=st.sampled_from([1, 10]), text=st.sampled_from(["", "step\n"]))
    def heartbeat(self, queue_index: int, which: int, lease: float, text: str) -> None:
        if self.claims:
            claim = self.claims[which % len(self.claims)]
            was_held = self.is_held(claim)
            result = self.step(self.queues[queue_index].heartbeat(claim.call, claim.fence, lease=lease, text=text))
            assert isinstance(result, int) == was_held

    @rule(queue_index=queue_indexes, which=which, with_fence=st.sampled_from([True, True, False]), fails=st.booleans())
    def finish(self, queue_index: int, which: int, with_fence: bool, fails: bool) -> None:
        """Only the worker that holds a command can finish it, however late and often others try."""
        if self.claims:
            claim = self.claims[which % len(self.claims)]
            self.send_result(queue_index, claim.call, claim.fence if with_fence else 0, fails)

    @rule(queue_index=queue_indexes, client=clients)
    def finish_by_polling(self, queue_index: int, client: str) -> None:
        queued = self.run(self.queues[queue_index].queued(client))
        if queued:
            self.send_result(queue_index, queued[0].call, 0, fails=False)

    def send_result(self, queue_index: int, call: str, fence: int, fails: bool) -> None:
        self.values += 1
        value = f"value {self.values}"
        row = self.rows().get(call)
        is_allowed = row is not None and (row.state, row.attempt) == ("running", fence) if fence else False
        is_allowed = is_allowed or (fence == 0 and row is not None and row.state == "queued")
        is_repeated = row is not None and row.state in ("cancelled", "denied") and fails
        commands = self.queues[queue_index]
        result = self.step((commands.fail if fails else commands.complete)(call, value, fence=fence))
        assert isinstance(result, Command) == (is_allowed or is_repeated), (row, fence, result)
        if is_allowed:
            self.accepted[call] = value
        else:
            self.refused.add((call, value))
        if row is not None and row.state not in TERMINAL_STATES and not is_allowed:
            assert isinstance(result, StaleClaimError)

    @rule(
        queue_index=queue_indexes,
        client=clients,
        session=st.sampled_from(SESSIONS),
        other_steps=st.integers(0, 2),
        fails=st.booleans(),
    )
    def stall(self, queue_index: int, client: str, session: str, other_steps: int, fails: bool) -> None:
        """A worker stalls past its lease and then finishes, before, during or after the run of another worker."""
        self.step(
            self.queues[queue_index].submit("work", {"key": SECRET}, queue=client, session=session, idempotent=True)
        )
        claim = self.step(self.queues[queue_index].claim(client, lease=1))
        if not isinstance(claim, Claim):
            return
        self.claims.append(claim)
        self.time_passes(2)
        if other_steps:
            self.claim(1 - queue_index, client, 10)
        if other_steps == 2 and self.claims:
            last = self.claims[-1]
            self.send_result(1 - queue_index, last.call, last.fence, fails=False)
        self.send_result(queue_index, claim.call, claim.fence, fails)

    # Cancel, expire, wait

    def some_command(self, which: int) -> str:
        calls = sorted(self.rows())
        return calls[which % len(calls)] if calls else ""

    @rule(queue_index=queue_indexes, which=which, verb=st.sampled_from(["cancel", "expire"]))
    def end_command(self, queue_index: int, which: int, verb: str) -> None:
        if call := self.some_command(which):
            self.step(getattr(self.queues[queue_index], verb)(call, "by hand"))

    @rule(queue_index=queue_indexes, which=which, wait=st.sampled_from([0.5, 10, 1000]))
    def wait_for_end(self, queue_index: int, which: int, wait: float) -> None:
        if call := self.some_command(which):
            task = self.loop.create_task(self.queues[queue_index].get(call, wait=wait))
            self.waiting.append(WaitingCaller(call, self.clock.now + wait, task))
            self.check_state()

    @rule(which=which, queue_index=queue_indexes)
    def poll(self, which: int, queue_index: int) -> None:
        if call := self.some_command(which):
            self.check_result(call, self.run(self.queues[queue_index].get(call)))

    @rule(seconds=st.sampled_from([0.5, 2, 6, 40]))
    def time_passes(self, seconds: float) -> None:
        """Advance time in small steps. Due commands end, and no claim outlives its lease."""
        steps = max(1, int(seconds / 4))
        for _ in range(4):
            for _ in range(steps):
                self.clock.now += seconds / 4 / steps
                self.reap()
            self.check_state()
        latest_start = self.clock.now - SETTINGS.reaper_grace - 1
        if self.reaping_since < latest_start:
            latest_ms = int((latest_start + self.clock.time() - self.clock.now) * 1000)
            assert not [row for row in self.rows().values() if row.state == "running" and row.lease < latest_ms]

    # Maintenance

    @rule(queue_index=queue_indexes)
    def restart(self, queue_index: int) -> None:
        """A process is replaced by another one: its callers get an error, and the commands do not change."""
        before = {call: (row.state, row.attempt, row.deadline) for call, row in self.rows().items()}
        old = self.queues[queue_index]
        self.run(self.close(old))
        self.queues[queue_index] = self.open_queue()
        if queue_index == 0:
            self.start_reaper()
        self.run(self.settle())
        for _, position, task in self.waiting_workers:
            assert position != queue_index or task.done(), "a worker waits for a process that has ended"
        after = {call: (row.state, row.attempt, row.deadline) for call, row in self.rows().items()}
        for call, earlier in before.items():
            assert after[call] == earlier or after[call][0] in TERMINAL_STATES or after[call][0] == "running"
        self.check_state()

    @rule()
    def prune(self) -> None:
        """Retention keeps open commands and their callers. Events that the last check may have missed stay."""
        self.clock.now += 0.01
        self.run(self.ledger.prune(self.clock.now - self.checked_at))
        self.check_state()

    @rule()
    def verify_ledger(self) -> None:
        assert self.run(verify(self.ledger.log)) == []

    def check_all_ended(self) -> None:
        """Finally every command has ended, all callers have its result, and no sealed input is left."""
        for seconds in (1, 10, 45, 30):
            self.time_passes(seconds)
        self.time_passes(40)
        assert not [row for row in self.rows().values() if row.state not in TERMINAL_STATES]
        assert all(expected.end is not None for expected in self.expected_commands.values())
        self.clock.now += 1000
        self.check_state()
        assert self.waiting == [] and self.waiting_workers == []
        for call in self.rows():
            self.check_result(call, self.run(self.queues[1].get(call)))
            assert self.run(self.ledger.log.store.sealed(call)) is None
        assert self.run(find_faults(self.ledger)) == []
        assert not self.queues[0].tracker.pending and not self.queues[1].tracker.pending


class PostgresMachine(Machine):
    """The same on PostgreSQL."""

    engine = engines.POSTGRES


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=25)
TestPostgresMachine = pytest.mark.postgres(PostgresMachine.TestCase)
TestPostgresMachine.settings = settings(
    stateful_step_count=25, max_examples=settings().max_examples // (1 if LONG else engines.POSTGRES_SHARE)
)


# Several processes


class Process:
    """A program that submits or runs commands, and its output lines."""

    def __init__(self, db: str, role: str, seed: str) -> None:
        self.role = role
        self.process = start_program("traffic", db, role, seed, stdin=subprocess.PIPE)
        assert self.process.stdout is not None
        first = b""
        # Byte by byte, since `communicate` does not return bytes that are already buffered.
        while not first.endswith(b"\n"):
            first += (byte := os.read(self.process.stdout.fileno(), 1))
            assert byte, "the program did not start"

    def kill(self) -> list[list[Any]]:
        self.process.send_signal(signal.SIGKILL)
        output, _ = self.process.communicate()
        return parse_lines(output)

    def finish(self) -> list[list[Any]]:
        """Let it finish, which must always work."""
        output, errors = self.process.communicate("", timeout=60)
        assert (self.process.returncode, errors) == (0, "")
        lines = parse_lines(output)
        assert lines.pop() == ["over"]
        return lines


def parse_lines(output: str) -> list[list[Any]]:
    return [json.loads(line) for line in output.split("\n") if line.endswith("]")]


KINDS = {"made", "claimed", "done", "failed", "refused", "ended"}
"""What the processes of the next test must have reported before it ends."""


@pytest.mark.anyio
@pytest.mark.chaos
async def test_each_command_ends_once_when_processes_are_killed(db: str, scale: int) -> None:
    """S3.4, S3.6, C4, C5: submitters and workers in six processes, of which one is killed every few moments."""
    rng = random.Random(7)
    roles = ["submit", "submit", "run", "run", "run"]
    lines: list[list[Any]] = []
    async with await callslip.open(db, Settings(reaper_interval=0.05, reaper_grace=0.1)) as ledger:
        commands = CommandQueue(ledger.log)
        processes = await asyncio.gather(
            *(asyncio.to_thread(Process, db, role, f"p{number}") for number, role in enumerate(roles))
        )
        for number in itertools.count():
            if number >= (4 if scale == 1 else 80) and {line[0] for line in lines} >= KINDS:
                break
            await asyncio.sleep(0.1 + rng.random() * 0.4)
            index = rng.randrange(len(processes))
            lines += await asyncio.to_thread(processes[index].kill)
            processes[index] = await asyncio.to_thread(Process, db, processes[index].role, f"q{number}")
        await asyncio.sleep(0.3)
        submitters = [process for process in processes if process.role == "submit"]
        for group in (submitters, [process for process in processes if process.role == "run"]):
            for output in await asyncio.gather(*(asyncio.to_thread(process.finish) for process in group)):
                lines += output
        submitted = {line[1] for line in lines if line[0] == "made"}
        async with asyncio.timeout(20):
            ended = {call: await commands.get(call, wait=15) for call in submitted}
            while await commands.pending():
                await asyncio.sleep(0.05)
        await check_logs(commands, lines, ended)
        await commands.close()


async def check_logs(commands: CommandQueue, lines: list[list[Any]], ended: dict[str, Command]) -> None:
    """Check the result of every output line, and that the log of every command has one end."""
    ledger = LocalLedger(commands.log)
    logs: dict[str, list[ev.CallEvent]] = {}
    for session in await session_names(ledger):
        for event in await read_events(ledger, session):
            if isinstance(event, ev.CallEvent):
                logs.setdefault(event.call, []).append(event)
    assert len(logs) >= len(ended)
    finals: dict[str, Command] = {}
    for call, log in logs.items():
        (end,) = [event for event in log if event.verdict == "applied" and is_terminal(event)]
        finals[call] = await commands.get(call)
        value = getattr(end, "output", None) if finals[call].status == "complete" else getattr(end, "error", None)
        assert finals[call].final and (finals[call].result == value or finals[call].status != "complete")
        fences = [event.attempt for event in log if isinstance(event, ev.CallStarted) and event.verdict == "applied"]
        assert fences == list(range(1, len(fences) + 1))
    # A worker without a fence may be refused while the command is queued, and accepted after its next claim.
    accepted = {tuple(rest) for kind, *rest in lines if kind in ("done", "failed")}
    for kind, *rest in lines:
        if kind == "ended":
            assert (ended[rest[0]].status, rest[2]) == (
                rest[1],
                None if rest[1] != "complete" else ended[rest[0]].result,
            )
        elif kind == "done":
            assert finals[rest[0]].result == rest[1]
        elif kind == "failed" and finals[rest[0]].status != "cancelled":
            assert finals[rest[0]].error == rest[1]
        elif kind == "refused" and tuple(rest) not in accepted:
            assert rest[1] not in (finals[rest[0]].result, finals[rest[0]].error)
    claims = [tuple(line[1:]) for line in lines if line[0] == "claimed"]
    assert len(claims) == len(set(claims)), "two claims have the same fence"
    statuses = {command.status for command in finals.values()}
    assert statuses >= {"complete", "error", "expired"}, statuses
    late_count = sum(event.verdict == "late" for log in logs.values() for event in log)
    requeued_count = sum(isinstance(event, ev.CallRequeued) for log in logs.values() for event in log)
    counts = f"{len(logs)} commands, {len(claims)} claims, {requeued_count} requeued, {late_count} late"
    print(f"\n{counts}; {sorted(statuses)}")
    assert late_count and requeued_count
    assert await find_faults(ledger) == []
