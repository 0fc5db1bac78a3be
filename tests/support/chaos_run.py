"""Run several servers, workers, clients and readers on one PostgreSQL, and kill at moments that a seed chooses.

Everything that is killed is started again. At the end the killing stops, everything that is open must end, and the
history is checked. Every wait has a deadline; when one passes, the stacks of all processes are printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec

import callslip
from callslip.client.address import parse_address
from callslip.client.http import HttpPool
from callslip.errors import CallslipError, ConflictError, NotFoundError, ServerUnavailableError, StoreError
from callslip.model.events import decode_event
from callslip.settings import Settings
from callslip.stacks import describe_tasks
from tests.support import history_checker
from tests.support.cli_process import Process, ServeProcess, free_port
from tests.support.history_checker import Operation, Reader, Report
from tests.support.invariants import find_faults
from tests.support.paths import PROGRAMS
from tests.support.postgres import PostgresServer

TOKEN = "the-token-of-the-chaos-run"
QUEUE = "chaos"
LEASE_S = 3.0
COMMAND_TIMEOUT_S = 8.0
START_S = 60.0
HEAL_S = 90.0
"""How long everything may take to end after the last kill: leases and timeouts, on a busy machine."""
PAUSE_S = 0.4
"""How long a client waits between two operations, on average."""
LOST = (ServerUnavailableError, StoreError)
"""The outcome of a request with one of these errors is not known."""
STATES = {"complete": "completed", "cancelled": "cancelled", "denied": "denied"}
"""The state of a call by the status of its command, if the two differ or if they are the same for one state only."""


class Servers:
    """The servers of one ledger, each with a port of its own that it keeps when it is started again."""

    def __init__(self, url: str, number: int, rng: random.Random) -> None:
        self._url = url
        self._rng = rng
        self._ports = [free_port() for _ in range(number)]
        self.processes: list[ServeProcess | None] = [None] * number
        addresses = [parse_address(f"http://127.0.0.1:{port}", "server") for port in self._ports]
        self.pools = [HttpPool(address, TOKEN) for address in addresses]
        self.urls = [address.url for address in addresses]

    def any(self) -> HttpPool:
        """Return the connections to a random server. It may be down."""
        return self._rng.choice(self.pools)

    def start(self, number: int) -> None:
        """Start a server, again if the database is down."""
        options = ("--port", str(self._ports[number]), "--token", TOKEN, "--queue-limit", "10000")
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.processes[number] = ServeProcess(self._url, *options)
                return
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def kill(self, number: int) -> None:
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.kill()


class Client:
    """Works on one session through random servers, and records what it did."""

    def __init__(self, run: ChaosRun, number: int) -> None:
        self.run = run
        self.session = f"s{number}"
        self.rng = random.Random(f"{run.seed} {number}")
        self._numbers = count(1)

    def text(self) -> str:
        """Return a text that is unique in the run."""
        return f"{self.session}.{next(self._numbers)}\n"

    async def work(self) -> None:
        """Run random operations until the time is over."""
        kinds = [self.write_message, self.write_message, self.write_chunks, self.run_call, self.ask, self.submit]
        while not self.run.is_over.is_set():
            await self.rng.choice(kinds)()
            await asyncio.sleep(2 * PAUSE_S * self.rng.random())

    # Events

    async def write_message(self) -> None:
        text = self.text()
        await self.append([{"type": "message.user", "text": text}], [text], has_key=self.rng.random() < 0.5)

    async def write_chunks(self) -> None:
        texts = [self.text() for _ in range(self.rng.randrange(1, 4))]
        chunks = [{"type": "message.delta", "text": text, "chunks": "delta"} for text in texts]
        await self.append([*chunks, {"type": "message.ended"}], texts, has_key=self.rng.random() < 0.5)

    async def append(self, events: list[Any], texts: list[str], *, has_key: bool) -> list[Any]:
        """Append events and record those with a text. Return the stored events, none if the outcome is not known."""
        headers = {"idempotency-key": uuid4().hex} if has_key else {}
        path = f"/v1/sessions/{self.session}/events"
        started = time.monotonic()

        async def post() -> list[Any]:
            pool = self.run.servers.any()
            body = await pool.post(path, {"events": events}, {"return": "events"}, headers=headers, resend=has_key)
            return [decode_event(bytes(event)) for event in msgspec.json.decode(body, type=_Appended).events]

        stored = await self.attempt(post, has_key)
        seqs = {getattr(event, "text", "") or getattr(event, "output", ""): event.seq for event in stored or ()}
        outcome = "unknown" if stored is None else "acknowledged"
        fields: Any = {"session": self.session, "key": has_key, "started": started, "ended": time.monotonic()}
        for text in texts:
            self.run.record(Operation(kind="event", id=text, outcome=outcome, seq=seqs.get(text, 0), **fields))
        return stored or []

    async def attempt(self, request: Callable[[], Awaitable[Any]], has_key: bool) -> Any:
        """Return the answer to a request; None if it is not known. With a key it is repeated until it is answered."""
        while True:
            try:
                return await request()
            except LOST:
                self.run.failures += 1
                if not has_key:
                    return None
                await asyncio.sleep(0.1 + 0.2 * self.rng.random())

    # Calls

    async def run_call(self) -> None:
        """Run a call with output and a lease. Some are never ended, as if their process had died."""
        alias = [["chaos", self.text().strip()]]
        events = [{"type": "call.proposed", "toolName": "chaos", "scope": "detached", "aliases": alias}]
        events += [{"type": "call.started", "aliases": alias}]
        stored = await self.append(events, [], has_key=True)
        call = stored[0].call
        path = f"/v1/calls/{call}/heartbeat"
        with contextlib.suppress(ConflictError):
            await self.attempt(lambda: self.run.servers.any().post(path, {"lease": LEASE_S}), True)
        for _ in range(self.rng.randrange(3)):
            text = self.text()
            await self.append([{"type": "call.progress", "aliases": alias, "text": text}], [text], has_key=True)
        if self.rng.random() < 0.2:
            return
        kind, state = self.rng.choice([("call.completed", "completed"), ("call.failed", "failed")])
        text = self.text()
        for event in await self.append([{"type": kind, "aliases": alias, "output": text}], [text], has_key=True):
            if event.verdict == "applied":  # Else its lease has ended it before.
                self.run.record(Operation(kind="end", id=call, session=self.session, state=state))

    # Approvals

    async def ask(self) -> None:
        """Request approval for a call, and let two people answer it through any servers at the same time."""
        alias = [["chaos", self.text().strip()]]
        events = [{"type": "call.proposed", "toolName": "chaos", "scope": "detached", "aliases": alias}]
        events += [{"type": "approval.requested", "aliases": alias, "description": "May it run?"}]
        stored = await self.append(events, [], has_key=True)
        approval = stored[1].approval
        await asyncio.gather(self.answer(approval, "approve", "granted"), self.answer(approval, "deny", "refused"))
        text = self.text()
        await self.append([{"type": "call.completed", "aliases": alias, "output": text}], [text], has_key=True)

    async def answer(self, approval: str, decision: str, state: str) -> None:
        async def post() -> bytes:
            body = {"decision": decision}
            return await self.run.servers.any().post(f"/v1/approvals/{approval}", body, resend=False)

        outcome: Any = "acknowledged"
        try:
            if await self.attempt(post, False) is None:
                outcome = "unknown"
        except ConflictError:
            outcome = "refused"
        self.run.record(Operation(kind="answer", id=approval, session=self.session, state=state, outcome=outcome))

    # Commands

    async def submit(self) -> None:
        """Submit a command and wait for its end, through other servers. Some are cancelled."""
        name, has_key = f"{self.session}-{uuid4().hex[:8]}", self.rng.random() < 0.5
        headers = {"idempotency-key": name} if has_key else {}
        command = {
            "action": "work",
            "params": {"text": name},
            "client": QUEUE,
            "session": self.session,
            "timeout": COMMAND_TIMEOUT_S,
            "correlation_id": name,
            "idempotent": self.rng.random() < 0.5,
        }

        async def post() -> bytes:
            return await self.run.servers.any().post("/v1/calls", command, headers=headers, resend=has_key)

        answer = await self.attempt(post, has_key)
        outcome: Any = "unknown" if answer is None else "acknowledged"
        self.run.record(Operation(kind="command", id=name, session=self.session, outcome=outcome, key=has_key))
        if answer is not None:
            if self.rng.random() < 0.1:
                path = f"/v1/calls/{name}/cancel"
                with contextlib.suppress(ConflictError):
                    await self.attempt(lambda: self.run.servers.any().post(path, {}, resend=False), False)
            await self.follow_command(name)

    async def follow_command(self, name: str) -> None:
        """Wait until a command has ended, and record the end."""
        path, query = f"/v1/calls/{name}", {"format": "command", "wait": 5}

        async def read() -> dict[str, Any]:
            return msgspec.json.decode(await self.run.servers.any().get(path, query, wait=5))

        while True:
            command = await self.attempt(read, True)
            if command["final"]:
                state = STATES.get(command["status"], "")
                if state:
                    self.run.record(Operation(kind="result", id=name, session=self.session, state=state))
                return


class _Appended(msgspec.Struct):
    events: list[msgspec.Raw] = []


class ChaosRun:
    """One run."""

    def __init__(self, seed: str, *, seconds: float, servers: int = 3, sessions: int = 50, readers: int = 25) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.is_over = asyncio.Event()
        self.failures = 0
        self.kills: list[str] = []
        self.servers: Servers
        self._seconds = seconds
        self._counts = servers, sessions, readers
        self._operations: list[Operation] = []
        self._readers: list[Reader] = []
        self._workers: list[Process] = []
        self._began = 0.0
        self._phase = ""

    def record(self, operation: Operation) -> None:
        """Add an operation to the history."""
        self._operations.append(operation)

    async def run(self, postgres: PostgresServer) -> Report:
        """Run and return what was counted and found."""
        url = postgres.create_database()
        number_of_servers, number_of_sessions, number_of_readers = self._counts
        self.servers = Servers(url, number_of_servers, self.rng)
        reading: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(self._seconds + 2 * START_S + 2 * HEAL_S):
                self._phase = "the start"
                starts = [asyncio.to_thread(self.servers.start, number) for number in range(number_of_servers)]
                await asyncio.gather(*starts)
                self._start_workers(url)
                clients = [Client(self, number) for number in range(number_of_sessions)]
                self._readers = [
                    Reader(session=f"s{number % number_of_sessions}") for number in range(number_of_readers)
                ]
                reading = [asyncio.create_task(self._read(reader)) for reader in self._readers]
                working = [asyncio.create_task(client.work()) for client in clients]
                self._phase = "the kills"
                await self._kill_until_over(postgres, url)
                self._phase = "the end of the clients"
                async with asyncio.timeout(HEAL_S):
                    await asyncio.gather(*working)
                self._phase = "the check"
                async with asyncio.timeout(HEAL_S):
                    return await self._check(url)
        except TimeoutError:
            raise AssertionError(f"{self._phase} did not end in time\n{await self._dump()}") from None
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            for number in range(number_of_servers):
                self.servers.kill(number)
            for worker in self._workers:
                worker.kill()
            for pool in self.servers.pools:
                await pool.close()

    # Readers

    async def _read(self, reader: Reader) -> None:
        """Follow a session through random servers. After a lost connection continue with the cursor."""
        path = f"/v1/sessions/{reader.session}/stream"
        while True:
            after = reader.seqs[-1] if reader.seqs else 0
            with contextlib.suppress(*LOST, NotFoundError):
                frames = self.servers.any().events(path, {"format": "events", "after": after})
                async with contextlib.aclosing(frames):
                    async for frame in frames:
                        if frame.event == "event":
                            reader.seqs.append(decode_event(frame.data).seq)
            await asyncio.sleep(0.1)

    # Kills

    def _start_workers(self, url: str) -> None:
        """Start a worker that asks a server, and one that uses the database."""
        for ledger in (self.servers.urls[0], url):
            self._workers.append(self._start_worker(ledger))

    def _start_worker(self, ledger: str) -> Process:
        arguments = [ledger, QUEUE, f"{self.seed} {len(self.kills)}", *([TOKEN] if ledger.startswith("http") else [])]
        return Process(*arguments, program=str(PROGRAMS / "run_commands.py"))

    async def _kill_until_over(self, postgres: PostgresServer, url: str) -> None:
        """Kill and start again until the time is over. The last thing is that everything runs."""
        self._began = time.monotonic()
        kinds = ["server", "server", "worker", "database"]
        while time.monotonic() - self._began < self._seconds:
            await asyncio.sleep(0.3 + self.rng.random())
            # The short run kills each at least once.
            kind = ["database", "server", "worker"][len(self.kills)] if len(self.kills) < 3 else self.rng.choice(kinds)
            number = self.rng.randrange(len(self.servers.urls))
            self.kills.append(f"{time.monotonic() - self._began:.2f} s: {kind} {number if kind == 'server' else ''}")
            if kind == "database":
                await asyncio.to_thread(postgres.kill9)
                await asyncio.sleep(self.rng.choice([0.0, 0.5]))
                await asyncio.to_thread(postgres.start)
            elif kind == "worker":
                index = self.rng.randrange(len(self._workers))
                await asyncio.to_thread(self._workers[index].kill)
                ledger = self.rng.choice([*self.servers.urls, url])
                self._workers[index] = self._start_worker(ledger)
            else:
                await asyncio.to_thread(self.servers.kill, number)
                await asyncio.sleep(self.rng.random() * 0.5)
                await asyncio.to_thread(self.servers.start, number)
        self.is_over.set()

    # The end

    async def _check(self, url: str) -> Report:
        async with await callslip.open(url, Settings(reaper_interval=0.5)) as ledger:
            store = ledger.log.store
            while open_calls := await store.open_calls():
                now = await store.clock()
                for call in open_calls:
                    if not call.client and (call.lease or now) > now + 2000 * LEASE_S:
                        # Its client did not learn of it, so it has the long lease of a posted call.
                        with contextlib.suppress(CallslipError):
                            await self.servers.any().post(f"/v1/calls/{call.id}/cancel", {})
                await asyncio.sleep(0.2)
            content = await history_checker.read_content(ledger)
            while any(len(reader.seqs) < content.heads.get(reader.session, 0) for reader in self._readers):
                await asyncio.sleep(0.1)
            content = await history_checker.read_content(ledger)
            report = history_checker.check(self._operations, self._readers, content)
            report.faults += await find_faults(ledger)
        report.counts["failed requests"] = self.failures
        report.counts["kills"] = len(self.kills)
        return report

    async def _dump(self) -> str:
        """Return the stacks of this process and of all others, and who has read how far."""
        processes = [*filter(None, self.servers.processes), *self._workers]
        for process in processes:
            with contextlib.suppress(AssertionError, ProcessLookupError):
                process.request(signal.SIGUSR1)
        await asyncio.sleep(3)
        parts = [f"this process:\n{describe_tasks(asyncio.get_running_loop())}"]
        parts += [f"process {process.pid}:\n{''.join(process.err)}" for process in processes]
        parts += [f"{reader.session}: {len(reader.seqs)}" for reader in self._readers]
        return "\n".join([*parts, *self.kills])
