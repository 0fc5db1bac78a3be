"""Run writers on one PostgreSQL server and kill them and the server at moments that a seed chooses, then check.

Every wait has a deadline. When one passes, the stacks of all tasks and threads of the writers are in the error.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import signal
import subprocess
import threading
import time
from typing import Any

import msgspec

import callslip
from callslip.api.ledger import LocalLedger
from callslip.settings import Settings
from tests.support import history_checker
from tests.support.history_checker import Operation, Reader, Report
from tests.support.invariants import find_faults, start_program
from tests.support.postgres import PostgresServer

READY_S = 60.0
STOP_S = 60.0
"""How long a writer may take to finish what it does, after the last kill. Its operations take 10 s at most each."""
DUMP_S = 3.0
SETTINGS = Settings(reaper_interval=0.2, reaper_grace=0.5, owner_lease=5.0)


class Hang(AssertionError):
    """A process did not do in time what it must do."""


class WriterProcess:
    """A process that writes, and what it has printed so far."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.is_killed = False
        self._process = start_program("write_until_killed", url, name, stdin=subprocess.PIPE)
        pipes = ((self._process.stdout, self._read_line), (self._process.stderr, self.errors.append))
        self._threads = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: Any, take: Any) -> None:
        with contextlib.suppress(ValueError):
            for line in pipe:
                take(line)

    def _read_line(self, line: str) -> None:
        if line.endswith("}\n"):  # The last one of a killed process may be incomplete.
            self.lines.append(json.loads(line))

    def count(self, kind: str) -> int:
        return sum(line["kind"] == kind for line in list(self.lines))

    def wait_until(self, kind: str, seconds: float) -> None:
        """Wait until the process has printed a line of this kind."""
        deadline = time.monotonic() + seconds
        while not self.count(kind):
            if time.monotonic() > deadline:
                raise Hang(f"writer {self.name} has not printed {kind!r} after {seconds:.0f} s\n{self.dump()}")
            if self._process.poll() is not None:
                self._join()
                if not self.count(kind):
                    raise Hang(f"writer {self.name} ended with {self._process.returncode}\n{''.join(self.errors)}")
            time.sleep(0.01)

    def dump(self) -> str:
        """Return the stacks of all tasks and threads of the process."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(DUMP_S)
        return "".join(self.errors)

    def kill(self) -> None:
        self.is_killed = True
        self._process.kill()
        self._join()

    def stop(self) -> None:
        """Let the process finish what it does and close its ledger."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _join(self) -> None:
        self._process.wait(READY_S)
        for thread in self._threads:
            thread.join(READY_S)

    def close(self) -> None:
        """Kill the process if it runs, and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class KillRun:
    """One run: its writers and what happened."""

    def __init__(self, server: PostgresServer, seed: int, *, writers: int = 2, kills: int = 3) -> None:
        self.server = server
        self.url = server.create_database()
        self.rng = random.Random(seed)
        self.processes: list[WriterProcess] = []
        self.happened: list[str] = []
        self._writers = writers
        self._kills = kills

    def run(self) -> Report:
        """Write, kill, stop and check. Raise Hang if a process does not end in time."""
        try:
            running = [self._start() for _ in range(self._writers)]
            for process in running:
                process.wait_until("ready", READY_S)
            began = time.monotonic()
            for number in range(self._kills):
                self._wait_a_moment(running)
                target = "server" if not number else self.rng.choice(["server", "writer", "both"])
                self.happened.append(f"{time.monotonic() - began:.2f} s: kill {target}")
                if target != "server":
                    index = self.rng.randrange(len(running))
                    running[index].kill()
                    running[index] = self._start()
                if target != "writer":
                    self.server.kill9()
                    time.sleep(self.rng.choice([0.0, 0.0, 0.3]))
                    self.server.start()
            for process in running:
                process.wait_until("ready", READY_S)
            self._wait_a_moment(running)
            for process in running:
                process.stop()
            for process in running:
                process.wait_until("over", STOP_S)
            return asyncio.run(self._check())
        finally:
            for process in self.processes:
                process.close()
            if self.server.is_running:  # The server syncs the files of all databases when it starts after a kill.
                self.server.drop_database(self.url)

    def _start(self) -> WriterProcess:
        process = WriterProcess(self.url, f"w{len(self.processes)}")
        self.processes.append(process)
        return process

    def _wait_a_moment(self, running: list[WriterProcess]) -> None:
        """Wait until some more events were acknowledged, and then a random time, shorter than a few writes."""
        before = [process.count("event") for process in running]
        wanted = self.rng.randrange(1, 60)
        deadline = time.monotonic() + STOP_S
        while sum(process.count("event") for process in running) < sum(before) + wanted:
            if time.monotonic() > deadline:
                dumps = "\n".join(f"{process.name}:\n{process.dump()}" for process in running)
                raise Hang(f"fewer than {wanted} events in {STOP_S:.0f} s\n{dumps}")
            time.sleep(0.002)
        time.sleep(self.rng.random() * 0.05)

    async def _check(self) -> Report:
        operations: list[Operation] = []
        readers: dict[str, Reader] = {}
        for process in self.processes:
            for line in process.lines:
                if line["kind"] in ("event", "end"):
                    operations.append(msgspec.convert(line, Operation))
                elif line["kind"] == "read":
                    # A follower is cancelled before the last events may have arrived.
                    reader = readers.setdefault(line["reader"], Reader(session=line["session"], is_complete=False))
                    reader.seqs.append(line["seq"])
        async with await callslip.open(self.url, SETTINGS) as ledger:
            await until_no_call_is_open(ledger)
            content = await history_checker.read_content(ledger)
            report = history_checker.check(operations, readers.values(), content)
            report.faults += await find_faults(ledger)
        report.counts["failures"] = sum(process.count("error") for process in self.processes)
        report.counts["kills"] = len(self.happened)
        return report


async def until_no_call_is_open(ledger: LocalLedger, seconds: float = 60.0) -> None:
    """Wait until the calls of killed processes have ended. The check reports those that have not."""
    deadline = time.monotonic() + seconds
    while await ledger.log.store.open_calls() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


def total(reports: list[Report]) -> Report:
    """Return the sum of several reports."""
    counts: collections.Counter[str] = collections.Counter()
    for report in reports:
        counts.update(report.counts)
    return Report(dict(counts), [fault for report in reports for fault in report.faults])
