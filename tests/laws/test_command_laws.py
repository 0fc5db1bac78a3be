"""The law of commands: each has exactly one end, no result of a stalled worker is used, and no caller waits forever.

First in one process, in any order that Hypothesis thinks of, on a clock that only the test moves; then with processes
that share nothing but the file, some of which are killed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Coroutine
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
from callslip.store import sqlite, sqlite_maintenance, sqlite_rows
from tests.support.invariants import find_faults, read_events, session_names, start_program

T = TypeVar("T")
SETTINGS = Settings(
    synchronous="NORMAL", reaper_interval=10**6, checkpoint_every=10**9, approval_expiry=50.0, queue_limit=6
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


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers use that clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        super().__init__()

    def time(self) -> float:
        return self.clock.now


class Waiting:
    """A caller that waits for a command to end."""

    def __init__(self, call: str, until: float, task: asyncio.Task[Command]) -> None:
        self.call = call
        self.until = until
        self.task = task


class Seen:
    """All events about one command, and the expected state."""

    def __init__(self) -> None:
        self.end: ev.CallEvent | None = None
        self.fence = self.timeout = self.deadline = 0
        self.idempotent = False

    def take(self, event: ev.CallEvent) -> None:
        if event.verdict != "applied":
            return
        if isinstance(event, ev.CallProposed):
            assert not self.timeout, "it was proposed twice"
            self.timeout, self.idempotent, self.deadline = event.timeout, event.idempotent, event.at + event.timeout
        elif isinstance(event, ev.ApprovalGranted):
            self.deadline = event.at + self.timeout
        elif isinstance(event, ev.CallStarted):
            assert event.attempt == self.fence + 1, "a fence that was given before"
            self.fence = event.attempt
        elif isinstance(event, ev.CallRequeued):
            assert self.idempotent or "before it was handed over" in event.reason, "it may have run, and runs again"
        elif isinstance(event, ev.CallLost):
            assert not self.idempotent, "it could have run again"
        if is_terminal(event):
            assert self.end is None, "it ended twice"
            self.end = event
        if isinstance(event, ev.CallExpired) and "time" in event.reason and not event.reason.startswith("by hand"):
            assert event.at >= self.deadline, "it had more time"


class Machine(RuleBasedStateMachine):
    """Two ledgers on one file, each with workers and waiting callers."""

    places = st.integers(0, 1)
    which = st.integers(0, 99)
    clients = st.sampled_from(CLIENTS)

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.folder = tempfile.mkdtemp()
        modules = (sqlite, sqlite_rows, sqlite_maintenance, monitor, claims)
        self.patches = [mock.patch.object(module, "time", self.clock) for module in modules]
        for patch in self.patches:
            patch.start()
        self.places_open: list[CommandQueue] = []
        self.seen: dict[str, Seen] = {}
        self.cursors = dict.fromkeys(SESSIONS, 0)
        self.claims: list[Claim] = []
        self.waiting: list[Waiting] = []
        self.looking: list[tuple[str, int, asyncio.Task[Claim | None]]] = []
        self.accepted: dict[str, str] = {}
        self.refused: set[tuple[str, str]] = set()
        self.values = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def ledger(self) -> LocalLedger:
        return LocalLedger(self.places_open[0].log)

    @initialize()
    def open(self) -> None:
        self.places_open = [self.opened(), self.opened()]
        self.reap_here()

    def reap_here(self) -> None:
        """In the first of the two, at every look."""
        how = self.ledger.log.write_context(source="callslip", strict=True)
        self.reaper = Reaper(self.ledger.log.store, how, SETTINGS, monotonic=self.clock.monotonic)
        self.reaping_since = math.inf

    def opened(self) -> CommandQueue:
        async def open_queue() -> CommandQueue:
            return CommandQueue((await callslip.open(f"sqlite:///{self.folder}/ledger.db", SETTINGS)).log)

        return self.run(open_queue())

    def teardown(self) -> None:
        try:
            if self.places_open:
                self.everything_ends()
                for commands in self.places_open:
                    self.run(self.close(commands))
        finally:
            self.loop.close()
            for patch in self.patches:
                patch.stop()
            shutil.rmtree(self.folder)

    async def close(self, commands: CommandQueue) -> None:
        await commands.close()
        await commands.log.close()

    # Invariants after every step

    async def settled(self, step: float = 0.03) -> None:
        """Run until all timers, writers and watchers of the other ledger are idle."""
        for _ in range(4):
            self.clock.now += step
            for commands in self.places_open:
                for _ in range(4):
                    await asyncio.sleep(0)
                await commands.log.store.transact(lambda unit: None)
        for _ in range(8):
            await asyncio.sleep(0)

    def rows(self) -> dict[str, CallRecord]:
        found = self.run(self.ledger.calls(limit=10_000)).items
        return {row.id: row for row in found}

    def step(self, work: Coroutine[Any, Any, T]) -> T | Exception:
        """Run one step, then check the invariants."""
        try:
            done: T | Exception = self.run(work)
        except (ConflictError, QueueFullError, NotFoundError) as error:
            done = error
        self.look()
        return done

    def look(self) -> None:
        """Wait until both ledgers know all changes up to now."""
        self.reap()
        before, then = self.rows(), self.clock.time() * 1000
        self.run(self.settled())
        for _ in range(200):  # On a busy machine a thread may be late, though the fake clock does not move.
            if not self.unheard(before):
                break
            time.sleep(0.005)
            self.run(self.settled(0))
        rows = self.at_rest()
        for call, seen in self.seen.items():
            row = rows.get(call)
            assert row is not None or seen.end is not None, "an open command is gone"
            if row is not None:
                assert (row.state in TERMINAL_STATES) == (seen.end is not None)
                assert (row.end, row.deadline) == (seen.end.seq if seen.end else 0, seen.deadline)
            was = before.get(call)
            if was is not None and was.state in ("queued", "running") and self.due(was) <= then:
                assert seen.end is not None, "its time is over and it has not ended"
        self.look_at_waiters(before)
        self.look_at_looking({call: row for call, row in rows.items() if call in before and before[call] == row})

    def reap(self) -> None:
        self.reaping_since = min(self.reaping_since, self.clock.now)
        self.run(self.reaper.reap())

    def due(self, row: CallRecord) -> float:
        """Return when it must have ended. A reaper that starts after the deadline first waits its grace period."""
        came = (self.reaping_since + self.clock.time() - self.clock.now) * 1000
        return row.deadline if row.deadline > came else came + SETTINGS.reaper_grace * 1000

    def at_rest(self) -> dict[str, CallRecord]:
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
                    self.seen.setdefault(event.call, Seen()).take(event)

    def unheard(self, rows: dict[str, CallRecord]) -> list[Waiting]:
        """Return the callers that wait for an ended command."""
        open_ = [waiting for waiting in self.waiting if not waiting.task.done()]
        return [one for one in open_ if one.call in rows and rows[one.call].state in TERMINAL_STATES]

    def look_at_waiters(self, rows: dict[str, CallRecord]) -> None:
        """Callers have the result of an ended command, or their timeout."""
        left: list[Waiting] = []
        assert not self.unheard(rows), "somebody waits for what has ended"
        for waiting in self.waiting:
            if not waiting.task.done():
                assert self.clock.now < waiting.until + 1, "somebody waits longer than they wanted"
                left.append(waiting)
            elif isinstance(waiting.task.exception(), StoreError | NotFoundError):
                pass  # Its ledger was closed.
            else:
                self.check_shown(waiting.call, waiting.task.result())
        self.waiting = left

    def look_at_looking(self, rows: dict[str, CallRecord]) -> None:
        """No worker waits while its client has a queued command."""
        left: list[tuple[str, int, asyncio.Task[Claim | None]]] = []
        work = {row.client for row in rows.values() if row.state == "queued"}
        for client, place, task in self.looking:
            if not task.done():
                assert client not in work, "somebody waits while there is work"
                left.append((client, place, task))
            elif (claim := task.result()) is not None:
                self.claims.append(claim)
        self.looking = left

    def check_shown(self, call: str, command: Command) -> None:
        """A refused value is never the result, and an accepted one always is."""
        end = self.seen[call].end
        if command.final:
            assert end is not None
        shown = command.result if command.status == "complete" else command.error
        assert (call, str(shown)) not in self.refused
        if call in self.accepted:
            assert command.final and shown == self.accepted[call]

    # Submitting

    @rule(
        place=places,
        client=clients,
        session=st.sampled_from(SESSIONS),
        timeout=st.sampled_from([1, 5, 60]),
        idempotent=st.booleans(),
        approval=st.sampled_from([False, False, True]),
        own=st.sampled_from(["", "", "one", "two"]),
        secret=st.booleans(),
    )
    def submit(self, place: int, client: str, session: str, own: str, secret: bool, **how: Any) -> None:
        params = {"key": SECRET if secret else "none"}
        self.step(
            self.places_open[place].submit("work", params, queue=client, session=session, correlation_id=own, **how)
        )

    @rule(which=which, verb=st.sampled_from(["approve", "approve", "deny", "withdraw"]))
    def answer(self, which: int, verb: str) -> None:
        pending = self.run(self.ledger.approvals())
        if pending:
            row = pending[which % len(pending)]
            self.step(getattr(approvals, verb)(self.ledger.log, row.id, by="ann"))

    # Running

    @rule(place=places, client=clients, lease=st.sampled_from([1, 10]))
    def claim(self, place: int, client: str, lease: float) -> None:
        claim = self.step(self.places_open[place].claim(client, lease=lease))
        if isinstance(claim, Claim):
            assert claim.params["key"] in (SECRET, "none")
            self.claims.append(claim)

    @rule(place=places, client=clients, wait=st.sampled_from([1, 30]))
    def wait_for_work(self, place: int, client: str, wait: float) -> None:
        task = self.loop.create_task(self.places_open[place].claim(client, wait=wait, lease=5))
        self.looking.append((client, place, task))
        self.look()

    @rule(place=places, client=clients, turns=st.integers(0, 12))
    def leave_when_work_comes(self, place: int, client: str, turns: int) -> None:
        """A worker that is woken and cancelled at the same moment leaves the command to the next one."""
        self.wait_for_work(place, client, 30)
        self.wait_for_work(place, client, 30)
        if len(self.looking) < 2 or self.looking[-2][2].done():
            return
        _, _, task = self.looking.pop(-2)

        async def come_and_go() -> None:
            await self.places_open[place].submit("work", {"key": "none"}, queue=client, session="a", timeout=60)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            found = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(found, Claim):
                self.claims.append(found)

        self.step(come_and_go())

    @rule(which=which)
    def stop_waiting_for_work(self, which: int) -> None:
        """A cancelled worker takes no command."""
        if self.looking:
            _, _, task = self.looking.pop(which % len(self.looking))

            async def leave() -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            self.step(leave())

    def held(self, claim: Claim) -> bool:
        row = self.rows().get(claim.call)
        return row is not None and row.state == "running" and row.attempt == claim.fence

    @rule(place=places, which=which, lease=st.sampled_from([1, 10]), text=st.sampled_from(["", "step\n"]))
    def heartbeat(self, place: int, which: int, lease: float, text: str) -> None:
        if self.claims:
            claim = self.claims[which % len(self.claims)]
            held = self.held(claim)
            done = self.step(self.places_open[place].heartbeat(claim.call, claim.fence, lease=lease, text=text))
            assert isinstance(done, int) == held

    @rule(place=places, which=which, fenced=st.sampled_from([True, True, False]), failing=st.booleans())
    def finish(self, place: int, which: int, fenced: bool, failing: bool) -> None:
        """Only the worker that holds a command can finish it, however late and often others try."""
        if self.claims:
            claim = self.claims[which % len(self.claims)]
            self.say(place, claim.call, claim.fence if fenced else 0, failing)

    @rule(place=places, client=clients)
    def finish_by_polling(self, place: int, client: str) -> None:
        found = self.run(self.places_open[place].queued(client))
        if found:
            self.say(place, found[0].call, 0, failing=False)

    def say(self, place: int, call: str, fence: int, failing: bool) -> None:
        self.values += 1
        value = f"value {self.values}"
        row = self.rows().get(call)
        may = row is not None and (row.state, row.attempt) == ("running", fence) if fence else False
        may = may or (fence == 0 and row is not None and row.state == "queued")
        echoes = row is not None and row.state in ("cancelled", "denied") and failing
        commands = self.places_open[place]
        done = self.step((commands.fail if failing else commands.complete)(call, value, fence=fence))
        assert isinstance(done, Command) == (may or echoes), (row, fence, done)
        if may:
            self.accepted[call] = value
        else:
            self.refused.add((call, value))
        if row is not None and row.state not in TERMINAL_STATES and not may:
            assert isinstance(done, StaleClaimError)

    @rule(
        place=places, client=clients, session=st.sampled_from(SESSIONS), others=st.integers(0, 2), failing=st.booleans()
    )
    def stall(self, place: int, client: str, session: str, others: int, failing: bool) -> None:
        """A worker stalls, its command goes to another one, and it continues at the worst time."""
        self.step(
            self.places_open[place].submit("work", {"key": SECRET}, queue=client, session=session, idempotent=True)
        )
        claim = self.step(self.places_open[place].claim(client, lease=1))
        if not isinstance(claim, Claim):
            return
        self.claims.append(claim)
        self.time_passes(2)
        if others:
            self.claim(1 - place, client, 10)
        if others == 2 and self.claims:
            last = self.claims[-1]
            self.say(1 - place, last.call, last.fence, failing=False)
        self.say(place, claim.call, claim.fence, failing)

    # Other ends, waiting

    def some_command(self, which: int) -> str:
        calls = sorted(self.rows())
        return calls[which % len(calls)] if calls else ""

    @rule(place=places, which=which, verb=st.sampled_from(["cancel", "expire"]))
    def end_it(self, place: int, which: int, verb: str) -> None:
        if call := self.some_command(which):
            self.step(getattr(self.places_open[place], verb)(call, "by hand"))

    @rule(place=places, which=which, wait=st.sampled_from([0.5, 10, 1000]))
    def wait_for_the_end(self, place: int, which: int, wait: float) -> None:
        if call := self.some_command(which):
            task = self.loop.create_task(self.places_open[place].get(call, wait=wait))
            self.waiting.append(Waiting(call, self.clock.now + wait, task))
            self.look()

    @rule(which=which, place=places)
    def poll(self, which: int, place: int) -> None:
        if call := self.some_command(which):
            self.check_shown(call, self.run(self.places_open[place].get(call)))

    @rule(seconds=st.sampled_from([0.5, 2, 6, 40]))
    def time_passes(self, seconds: float) -> None:
        """Advance time in small steps. Due commands end, and no claim outlives its lease."""
        steps = max(1, int(seconds / 4))
        for _ in range(4):
            for _ in range(steps):
                self.clock.now += seconds / 4 / steps
                self.reap()
            self.look()
        late = self.clock.now - SETTINGS.reaper_grace - 1
        if self.reaping_since < late:
            at = int((late + self.clock.time() - self.clock.now) * 1000)
            assert not [row for row in self.rows().values() if row.state == "running" and row.lease < at]

    # Maintenance

    @rule(place=places)
    def restart(self, place: int) -> None:
        """A process is replaced by another one: its callers get an error, and the commands do not change."""
        before = {call: (row.state, row.attempt, row.deadline) for call, row in self.rows().items()}
        old = self.places_open[place]
        self.run(self.close(old))
        self.places_open[place] = self.opened()
        if place == 0:
            self.reap_here()
        self.run(self.settled())
        for _, where, task in self.looking:
            assert where != place or task.done(), "somebody waits for work of a process that has ended"
        after = {call: (row.state, row.attempt, row.deadline) for call, row in self.rows().items()}
        for call, was in before.items():
            assert after[call] == was or after[call][0] in TERMINAL_STATES or after[call][0] == "running"
        self.look()

    @rule()
    def forget_the_old(self) -> None:
        """Retention keeps open commands and their callers."""
        self.clock.now += 0.01
        self.run(self.ledger.prune(0))
        self.look()

    @rule()
    def derive_it_all_again(self) -> None:
        assert self.run(verify(self.ledger.log)) == []

    def everything_ends(self) -> None:
        """Finally every command has ended, all callers have its result, and no sealed input is left."""
        for seconds in (1, 10, 45, 30):
            self.time_passes(seconds)
        self.time_passes(40)
        assert not [row for row in self.rows().values() if row.state not in TERMINAL_STATES]
        assert all(seen.end is not None for seen in self.seen.values())
        self.clock.now += 1000
        self.look()
        assert self.waiting == [] and self.looking == []
        for call in self.rows():
            self.check_shown(call, self.run(self.places_open[1].get(call)))
            assert self.run(self.ledger.log.store.sealed(call)) is None
        assert self.run(find_faults(self.ledger)) == []
        assert not self.places_open[0].tracker.pending and not self.places_open[1].tracker.pending


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=25)


# With processes


class Process:
    """A program that submits or runs commands, and its output lines."""

    def __init__(self, db: str, role: str, seed: str) -> None:
        self.role = role
        self.process = start_program("traffic", db, role, seed, stdin=subprocess.PIPE)
        assert self.process.stdout is not None
        first = b""
        while not first.endswith(b"\n"):  # By the byte, as `communicate` does not return what is in a buffer.
            first += (byte := os.read(self.process.stdout.fileno(), 1))
            assert byte, "it did not start"

    def kill(self) -> list[list[Any]]:
        self.process.send_signal(signal.SIGKILL)
        out, _ = self.process.communicate()
        return _lines(out)

    def finish(self) -> list[list[Any]]:
        """Let it finish, which must always work."""
        out, errors = self.process.communicate("", timeout=60)
        assert (self.process.returncode, errors) == (0, "")
        lines = _lines(out)
        assert lines.pop() == ["over"]
        return lines


def _lines(out: str) -> list[list[Any]]:
    return [json.loads(line) for line in out.split("\n") if line.endswith("]")]


@pytest.mark.anyio
@pytest.mark.chaos
async def test_each_command_ends_once_when_processes_are_killed(db: str, scale: int) -> None:
    """S3.4, S3.6, C4, C5: submitters and workers in six processes, of which one is killed every few moments."""
    chance = random.Random(7)
    roles = ["submit", "submit", "run", "run", "run"]
    lines: list[list[Any]] = []
    async with await callslip.open(db, Settings(reaper_interval=0.05, reaper_grace=0.1)) as ledger:
        commands = CommandQueue(ledger.log)
        processes = await asyncio.gather(
            *(asyncio.to_thread(Process, db, role, f"p{number}") for number, role in enumerate(roles))
        )
        for number in range(4 if scale == 1 else 80):
            await asyncio.sleep(0.1 + chance.random() * 0.4)
            at = chance.randrange(len(processes))
            lines += await asyncio.to_thread(processes[at].kill)
            processes[at] = await asyncio.to_thread(Process, db, processes[at].role, f"q{number}")
        await asyncio.sleep(0.3)
        submitters = [process for process in processes if process.role == "submit"]
        for group in (submitters, [process for process in processes if process.role == "run"]):
            for found in await asyncio.gather(*(asyncio.to_thread(process.finish) for process in group)):
                lines += found
        submitted = {line[1] for line in lines if line[0] == "made"}
        async with asyncio.timeout(20):
            ended = {one: await commands.get(one, wait=15) for one in submitted}
            while await commands.pending():
                await asyncio.sleep(0.05)
        await check(commands, lines, ended)
        await commands.close()


async def check(commands: CommandQueue, lines: list[list[Any]], ended: dict[str, Command]) -> None:
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
        shown = getattr(end, "output", None) if finals[call].status == "complete" else getattr(end, "error", None)
        assert finals[call].final and (finals[call].result == shown or finals[call].status != "complete")
        fences = [event.attempt for event in log if isinstance(event, ev.CallStarted) and event.verdict == "applied"]
        assert fences == list(range(1, len(fences) + 1))
    for what, *rest in lines:
        if what == "ended":
            assert (ended[rest[0]].status, rest[2]) == (
                rest[1],
                None if rest[1] != "complete" else ended[rest[0]].result,
            )
        elif what == "done":
            assert finals[rest[0]].result == rest[1]
        elif what == "failed" and finals[rest[0]].status != "cancelled":
            assert finals[rest[0]].error == rest[1]
        elif what == "refused":
            assert rest[1] not in (finals[rest[0]].result, finals[rest[0]].error)
    claims = [tuple(line[1:]) for line in lines if line[0] == "claimed"]
    assert len(claims) == len(set(claims)), "two were given the same fence"
    kinds = {line[0] for line in lines}
    assert kinds >= {"made", "claimed", "done", "failed", "refused", "ended"}, kinds
    statuses = {one.status for one in finals.values()}
    assert statuses >= {"complete", "error", "expired"}, statuses
    late = sum(event.verdict == "late" for log in logs.values() for event in log)
    requeued = sum(isinstance(event, ev.CallRequeued) for log in logs.values() for event in log)
    print(f"\n{len(logs)} commands, {len(claims)} claims, {requeued} given back, {late} late; {sorted(statuses)}")
    assert late and requeued
    assert await find_faults(ledger) == []
