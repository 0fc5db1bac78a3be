"""Test workers on a file and over HTTP: several at once, and when a worker or a server is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.commands import CommandQueue
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.client.address import parse_address
from callslip.client.http import HttpPool
from callslip.client.remote_ledger import RemoteLedger
from callslip.commands import Claim, Command
from callslip.errors import AuthenticationError, CallslipError, InvalidInputError, ServerUnavailableError
from callslip.model.events import CallRequeued
from callslip.settings import Settings
from callslip.worker import Worker, command_run
from callslip.worker.actions import Action
from tests.support import live_server
from tests.support.cli_process import Process, ServeProcess, free_port, run, running_process, with_ledger
from tests.support.invariants import PROGRAMS

TIMEOUT_S = 30.0
FILE_AND_HTTP = pytest.mark.parametrize("transport", ["file", "http"])


@contextlib.asynccontextmanager
async def open_commands(ledger: LocalLedger) -> AsyncGenerator[CommandQueue]:
    queue = CommandQueue(ledger.log)
    try:
        yield queue
    finally:
        await queue.close()


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncGenerator[None]:
    """Run a worker in this loop and stop it at the end of the block."""
    task = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await task


async def wait_for_end(commands: CommandQueue, command: Command) -> Command:
    ended = await commands.get(command.correlation_id, wait=TIMEOUT_S)
    assert ended.final, ended
    return ended


class WorkerSetup:
    """A database, its server if the transport is HTTP, and workers in processes of their own."""

    def __init__(self, tmp_path: Path, transport: str, stack: contextlib.ExitStack) -> None:
        self.path = tmp_path / "ledger.db"
        self.go = tmp_path / "go"
        self._stack = stack
        self.server: ServeProcess | None = None
        if transport == "http":
            self.server = ServeProcess(self.path)
            stack.callback(lambda: self.server and self.server.kill())

    def start_worker(self, lease: float = 30, concurrency: int = 1) -> Process:
        remote = [self.server.url, str(lease), str(concurrency), self.server.token] if self.server else []
        arguments = remote or [f"sqlite:///{self.path}", str(lease), str(concurrency)]
        worker = self._stack.enter_context(running_process(*arguments, program=str(PROGRAMS / "worker.py")))
        worker.until("ready")
        return worker

    @contextlib.asynccontextmanager
    async def commands(self) -> AsyncGenerator[CommandQueue]:
        async with await open_ledger(f"sqlite:///{self.path}") as ledger, open_commands(ledger) as commands:
            yield commands

    def hold_arguments(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the arguments of a command that runs until the file `go` exists."""
        return {"action": "hold", "params": {"until": str(self.go)}, "correlation_id": name, "timeout": 60, **more}


@pytest.fixture
def worker_setup(tmp_path: Path, transport: str) -> Iterator[WorkerSetup]:
    with contextlib.ExitStack() as stack:
        yield WorkerSetup(tmp_path, transport, stack)


async def wait_for_output(worker: Process, text: str, count: int = 1) -> None:
    await asyncio.to_thread(worker.until, text, count)


async def wait_for_state(commands: CommandQueue, name: str, wanted: str) -> None:
    """Wait until an open command is in a state."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await commands.find(name)).state != wanted:
            await asyncio.sleep(0.02)


# Functions


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await open_ledger(db, Settings(synchronous="NORMAL")) as ledger:
        yield ledger


@contextlib.asynccontextmanager
async def connect_worker(ledger: LocalLedger, transport: str, **more: Any) -> AsyncGenerator[Worker]:
    """Return a worker that gets its commands from the ledger or from a server of it."""
    if transport == "file":
        yield Worker(ledger, **more)
        return
    async with live_server.serving_ledger(ledger) as url:
        yield Worker(url, **more)


@pytest.mark.anyio
@FILE_AND_HTTP
async def test_a_function_of_any_kind_runs_a_command(ledger: LocalLedger, transport: str) -> None:
    """S3.6: params are arguments by name, or one value; an exception becomes the error, without its traceback."""
    async with connect_worker(ledger, transport) as worker, open_commands(ledger) as commands:

        @worker.action()
        async def add(a: int, b: int = 1) -> int:
            return a + b

        @worker.action("in_a_thread")
        def in_a_thread(**arguments: int) -> Any:
            return [threading.current_thread() is threading.main_thread(), arguments]

        @worker.action()
        def chunks(to: int) -> Generator[str]:
            yield from map(str, range(to))

        @worker.action()
        async def unchanged(params: Any) -> Any:
            return params

        @worker.action()
        async def claimed(it: Claim) -> Any:
            return [it.action, it.params, it.fence]

        @worker.action()
        async def breaks() -> None:
            raise KeyError("no such tab")

        @worker.action()
        def leaves() -> None:
            raise SystemExit(3)

        @worker.action()
        def interrupts() -> None:
            raise KeyboardInterrupt

        cases: list[tuple[str, Any, Any, str]] = [
            ("add", {"a": 2}, 3, ""),
            ("in_a_thread", {"x": 1}, [False, {"x": 1}], ""),
            ("chunks", {"to": 3}, "2", ""),
            ("unchanged", ["any", 1], ["any", 1], ""),
            ("claimed", {"x": 1}, ["claimed", {"x": 1}, 1], ""),
            ("breaks", None, None, "KeyError: 'no such tab'"),
            ("leaves", None, None, "RuntimeError: the function called exit(3)"),
            ("interrupts", None, None, "RuntimeError: the function raised KeyboardInterrupt"),
            ("add", {"a": 1, "c": 2}, None, "TypeError: arguments: the function has no parameter c"),
            ("add", [1], None, "TypeError: arguments: must be an object"),
            ("remove", None, None, "no action 'remove'; this worker has add, breaks, chunks, claimed,"),
        ]
        async with serving(worker):
            for action, params, result, error in cases:
                command = await wait_for_end(commands, await commands.submit(action, params))
                if error:
                    assert command.status == "error" and error in str(command.error)
                    assert "Traceback" not in str(command.error)
                else:
                    assert (command.status, command.result) == ("complete", result)
        (row,) = (await ledger.calls(session="commands", limit=9)).items[-1:]
        assert row.tool == "chunks" and row.worker == worker.name
        snapshot = await ledger.snapshot("commands")
        entries = [entry for entry in snapshot.entries if getattr(entry, "call_id", "") == row.id]
        assert "012" in str(entries)


@pytest.mark.anyio
@FILE_AND_HTTP
async def test_a_result_that_cannot_be_stored_is_an_error(db: str, transport: str) -> None:
    """C5: too large, or neither JSON nor text: the submitter gets the error."""
    async with (
        await open_ledger(db, Settings(synchronous="NORMAL", max_blob=2**20)) as ledger,
        connect_worker(ledger, transport) as worker,
        open_commands(ledger) as commands,
    ):

        @worker.action()
        async def large(size: int) -> str:
            return "x" * size

        @worker.action()
        async def strange() -> AsyncGenerator[Any]:
            yield "half a character \ud83d"
            yield {1: {object}}

        @worker.action()
        async def breaks() -> None:
            raise ValueError("half a character \ud83d")

        async with serving(worker):
            for size in (2 * 2**20, 20 * 2**20):  # More than the ledger stores, more than the server reads.
                command = await wait_for_end(commands, await commands.submit("large", {"size": size}))
                assert command.status == "error" and "could not be stored" in str(command.error)
            assert (await wait_for_end(commands, await commands.submit("strange"))).status == "complete"
            assert "half a character" in str((await wait_for_end(commands, await commands.submit("breaks"))).error)


@pytest.mark.anyio
async def test_the_lease_is_renewed_without_progress_that_cannot_be_stored(db: str, capfd: Any) -> None:
    """The command continues."""
    settings = Settings(synchronous="NORMAL", max_event=2**16)
    async with await open_ledger(db, settings) as ledger, open_commands(ledger) as commands:
        worker = Worker(ledger, lease=60)

        @worker.action()
        async def report(it: Claim) -> AsyncGenerator[str]:
            while await ledger.log.store.clock() <= it.lease_until - 60_000:
                await asyncio.sleep(0.001)  # A lease renewed in the millisecond of the claim ends at the same time.
            yield "x" * 2**17
            async with asyncio.timeout(TIMEOUT_S / 2):  # The next heartbeat would come later.
                while (row := await ledger.log.store.call(it.call)) is None or row.lease <= it.lease_until:
                    await asyncio.sleep(0.01)
            yield "renewed"

        async with serving(worker):
            assert (await wait_for_end(commands, await commands.submit("report", timeout=60))).result == "renewed"
    assert capfd.readouterr().err.count("was refused") == 1


def test_a_worker_with_wrong_settings_does_not_start(db: str) -> None:
    """No functions, two with the same name, no concurrency, no lease, or an unknown URL scheme."""
    worker = Worker(db)
    with pytest.raises(InvalidInputError, match="has no functions"):
        worker.run()
    worker.action("a")(print)
    with pytest.raises(InvalidInputError, match="'a' already has a function"):
        worker.action("a")(print)
    with pytest.raises(InvalidInputError, match="concurrency"):
        Worker(db, concurrency=0)
    with pytest.raises(InvalidInputError, match="lease"):
        Worker(db, lease=0)
    other = Worker("ftp://127.0.0.1")
    other.action("a")(print)
    with pytest.raises(InvalidInputError, match="ftp:// is not supported"):
        other.run()


# Functions that cannot be stopped


@pytest.mark.anyio
async def test_a_sync_function_uses_its_slot_until_it_returns(ledger: LocalLedger, capfd: Any) -> None:
    """The result of a cancelled one is ignored, and no other command starts before it returns."""
    worker, released, started = Worker(ledger, lease=3), threading.Event(), threading.Event()

    @worker.action()
    def block() -> str:
        started.set()
        released.wait(TIMEOUT_S)
        return "too late"

    @worker.action()
    async def after() -> str:
        return "done"

    async with open_commands(ledger) as commands, serving(worker):
        command = await commands.submit("block")
        await asyncio.to_thread(started.wait, TIMEOUT_S)
        await commands.cancel(command.correlation_id)
        other = await commands.submit("after")
        async with asyncio.timeout(TIMEOUT_S):
            while "cannot be stopped" not in (stderr := capfd.readouterr().err):
                await asyncio.sleep(0.02)
        assert "block" in stderr
        assert (await commands.get(other.correlation_id)).status == "pending"
        released.set()
        assert (await wait_for_end(commands, other)).result == "done"
        assert (await commands.get(command.correlation_id)).status == "cancelled"


@pytest.mark.anyio
async def test_a_worker_never_runs_a_command_twice_at_once(ledger: LocalLedger) -> None:
    """A command that was requeued by another process runs again only after its first run."""
    worker, released = Worker(ledger, lease=2, concurrency=2), threading.Event()
    running: list[int] = []
    concurrent_runs: list[int] = []
    started = threading.Event()

    @worker.action()
    def block(it: Claim) -> int:
        running.append(it.attempt)
        concurrent_runs.append(len(running))
        started.set()
        released.wait(TIMEOUT_S)
        running.remove(it.attempt)
        return it.attempt

    async with open_commands(ledger) as commands, serving(worker):
        command = await commands.submit("block", idempotent=True, timeout=60)
        await asyncio.to_thread(started.wait, TIMEOUT_S)
        row = await commands.find(command.correlation_id)
        await ledger.log.append(row.session, [CallRequeued(call=row.id, reason="for a test")])
        async with asyncio.timeout(TIMEOUT_S):
            while (await commands.find(command.correlation_id)).attempt < 2:
                await asyncio.sleep(0.01)
        released.set()
        assert (await wait_for_end(commands, command)).result == 2
    assert concurrent_runs == [1, 1]


# Killed processes


@pytest.mark.anyio
@pytest.mark.chaos
@FILE_AND_HTTP
async def test_only_idempotent_commands_of_a_killed_worker_run_again(worker_setup: WorkerSetup) -> None:
    """S3.6: an idempotent command goes to another worker; the other is lost."""
    first = worker_setup.start_worker(lease=1, concurrency=2)
    async with worker_setup.commands() as commands:
        repeatable = await commands.submit(**worker_setup.hold_arguments("again", idempotent=True))
        single = await commands.submit(**worker_setup.hold_arguments("once"))
        await wait_for_output(first, "began", 2)
        os.kill(first.pid, signal.SIGKILL)
        second = worker_setup.start_worker(lease=1)
        await wait_for_output(second, "began again 2")
        lost = await wait_for_end(commands, single)
        assert lost.status == "error" and "stopped renewing its lease" in str(lost.error)
        worker_setup.go.touch()
        assert (await wait_for_end(commands, repeatable)).result == f"held by {second.pid}"
    assert not any("once" in line for line in second.out)


@pytest.mark.anyio
@pytest.mark.chaos
@FILE_AND_HTTP
async def test_two_workers_never_run_the_same_command(worker_setup: WorkerSetup, scale: int) -> None:
    """S3.6: one of them runs each command, once."""
    workers = [worker_setup.start_worker(concurrency=3), worker_setup.start_worker(concurrency=3)]
    names = [f"c{number}" for number in range(30 * scale)]
    async with worker_setup.commands() as commands:
        for start in range(0, len(names), 30):
            submitted = [
                await commands.submit(**worker_setup.hold_arguments(name)) for name in names[start : start + 30]
            ]
            for worker in workers:
                await wait_for_output(worker, "began", 3)  # As many as one runs at once, so the other takes the next.
            worker_setup.go.touch()
            for command in submitted:
                assert (await wait_for_end(commands, command)).status == "complete"
    for worker in workers:
        assert worker.signal(signal.SIGTERM) == 0
    started_names = [line.split()[1] for worker in workers for line in worker.out if line.startswith("began")]
    assert sorted(started_names) == sorted(names)


@pytest.mark.anyio
@FILE_AND_HTTP
async def test_a_cancelled_command_stops_its_function(worker_setup: WorkerSetup) -> None:
    """The worker learns it from a heartbeat and takes the next command."""
    worker = worker_setup.start_worker(lease=3)
    async with worker_setup.commands() as commands:
        command = await commands.submit(**worker_setup.hold_arguments("held"))
        await wait_for_output(worker, "began held")
        await commands.cancel(command.correlation_id, "not wanted any more")
        await wait_for_output(worker, "stopped held")
        next_command = await commands.submit("add", {"a": 2, "b": 3})
        assert (await wait_for_end(commands, next_command)).result == 5
        assert (await commands.get(command.correlation_id)).error == "not wanted any more"


@pytest.mark.anyio
@pytest.mark.parametrize(("transport", "number"), [("file", signal.SIGINT), ("http", signal.SIGTERM)])
async def test_a_stopped_worker_ends_or_requeues_its_commands(
    worker_setup: WorkerSetup, number: signal.Signals
) -> None:
    """Idempotent commands are queued again, the others end with the reason, threads are abandoned."""
    worker = worker_setup.start_worker(lease=20, concurrency=3)
    async with worker_setup.commands() as commands:
        repeatable = await commands.submit(**worker_setup.hold_arguments("again", idempotent=True))
        single = await commands.submit(**worker_setup.hold_arguments("once"))
        blocking = {"until": str(worker_setup.go), "name": "in a thread"}
        thread = await commands.submit("block", blocking, timeout=60)
        await wait_for_output(worker, "began", 3)
        assert await asyncio.to_thread(worker.signal, number) == 0
        assert "left\n" in worker.out and not any("Traceback" in line for line in worker.err)
        for command in (single, thread):
            stopped = await wait_for_end(commands, command)
            assert (stopped.status, "was stopped" in str(stopped.error)) == ("error", True)
        await wait_for_state(commands, repeatable.correlation_id, "queued")


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["http"])
async def test_a_killed_worker_gets_no_command(worker_setup: WorkerSetup) -> None:
    """A claim of a killed worker does not take the next command."""
    killed, other = worker_setup.start_worker(), worker_setup.start_worker()
    async with worker_setup.commands() as commands:
        for name in ("one", "two"):  # Each of them takes one.
            await commands.submit(**worker_setup.hold_arguments(name))
        await wait_for_output(killed, "began")
        await wait_for_output(other, "began")
        worker_setup.go.touch()
        for name in ("one", "two"):
            await commands.get(name, wait=TIMEOUT_S)
        os.kill(killed.pid, signal.SIGKILL)
        killed.end()
        for name in ("three", "four"):
            assert (
                await wait_for_end(commands, await commands.submit(**worker_setup.hold_arguments(name)))
            ).status == "complete"
    assert sum(line.startswith("began") for line in other.out) == 3


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_worker_survives_restarts_of_its_server(tmp_path: Path) -> None:
    """It may start before its server. After a restart it reports the result and takes the next command."""
    path, port, go = tmp_path / "ledger.db", free_port(), tmp_path / "go"
    token = "a-token-that-is-long-enough"
    flags = ("--port", str(port), "--token", token)
    arguments = (f"http://127.0.0.1:{port}", "30", "1", token)
    with running_process(*arguments, program=str(PROGRAMS / "worker.py")) as worker, contextlib.ExitStack() as stack:

        async def serve() -> ServeProcess:
            server = await asyncio.to_thread(ServeProcess, path, *flags)
            stack.callback(server.kill)
            return server

        await wait_for_output(worker, "retrying")
        server = await serve()
        await wait_for_output(worker, "Reconnected to")
        async with await open_ledger(f"sqlite:///{path}") as ledger, open_commands(ledger) as commands:
            command = await commands.submit("hold", {"until": str(go)}, correlation_id="held", timeout=60)
            await wait_for_output(worker, "began held")
            server.kill()
            go.touch()
            await wait_for_output(worker, "retrying", 2)
            assert (await commands.get(command.correlation_id)).status == "pending"
            server = await serve()
            assert (await wait_for_end(commands, command)).result == f"held by {worker.pid}"
            await wait_for_output(worker, "Reconnected to", 2)
            server.kill()
            await wait_for_output(worker, "retrying", 3)
            await serve()
            assert (await wait_for_end(commands, await commands.submit("add", {"a": 1}))).result == 2
        assert worker.signal(signal.SIGINT) == 0
        assert sum("retrying" in line for line in worker.err) == 3, worker.err


@pytest.mark.anyio
async def test_reporting_a_result_stops_after_the_retry_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker prints once that it retries, and once that it stopped."""
    monkeypatch.setattr(command_run, "REPORT_RETRY_S", 0.3)
    times: dict[str, Any] = {
        "created_at": "2026-01-01T00:00:00.000Z",
        "expires_at": "2026-01-01T00:00:00.200Z",
        "lease_until": 0,
    }
    fields: dict[str, Any] = {"client": "default", "fence": 1, "attempt": 1, "idempotent": False, "session": "s"}
    claim = Claim(call="exec_1", correlation_id="mine", action="add", params={"a": 1}, **fields, **times)
    ledger = RemoteLedger(HttpPool(parse_address(f"http://127.0.0.1:{free_port()}", "test"), ""))
    messages: list[str] = []

    async def add(a: int) -> int:
        return a

    async def no_earlier_run() -> None: ...

    async with asyncio.timeout(TIMEOUT_S):
        run = command_run.CommandRun(
            ledger.commands, claim, 0.2, command_run.Connection(ledger.url, messages.append), messages.append
        )
        await run.run({"add": Action("add", add)}, no_earlier_run)
    assert len(messages) == 2
    assert "retrying" in messages[0] and "the result of command mine was not accepted" in messages[1]


def test_a_worker_with_a_wrong_token_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not retry. Without a token it uses the one that servers of this user store."""
    server = ServeProcess(tmp_path / "ledger.db")
    try:
        monkeypatch.setenv("CALLSLIP_SERVER", server.url)
        worker = Worker(token="a-wrong-token-altogether")
        worker.action("add")(print)
        with pytest.raises(AuthenticationError):
            worker.run()
        with running_process("", "30", "1", program=str(PROGRAMS / "worker.py")) as other:
            other.until("ready")

            async def add() -> Any:
                url = f"sqlite:///{tmp_path / 'ledger.db'}"
                async with await open_ledger(url) as ledger, open_commands(ledger) as commands:
                    return (await wait_for_end(commands, await commands.submit("add", {"a": 1}))).result

            assert asyncio.run(add()) == 2
    finally:
        server.kill()


def test_a_worker_needs_only_the_right_to_execute(tmp_path: Path) -> None:
    """A token with `execute` is enough to claim, renew and report; without it the worker ends."""
    path = tmp_path / "ledger.db"
    server = ServeProcess(path)
    try:
        create = ["admin", "token", "create", "--db", str(path), "--can"]
        execute, others = (run(*create, verbs).stdout.strip() for verbs in ("execute", "read,write,approve"))
        refused = Worker(server.url, token=others)
        refused.action("add")(print)
        with pytest.raises(CallslipError, match="may not execute"):
            refused.run()
        with running_process(server.url, "1", "1", execute, program=str(PROGRAMS / "worker.py")) as worker:
            worker.until("ready")

            async def count(ledger: LocalLedger) -> Any:
                async with open_commands(ledger) as commands:
                    return (await wait_for_end(commands, await commands.submit("count", {"to": 3}))).result

            assert with_ledger(path, count) == "2\n"
            assert worker.signal(signal.SIGTERM) == 0
            assert not [line for line in worker.err if not re.search("respond in time|Reconnected", line)]
    finally:
        server.kill()


@pytest.mark.anyio
async def test_a_worker_can_start_before_its_session_exists(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command creates the session."""
    was_answered = asyncio.Event()
    post = HttpPool.post

    async def post_and_notify(pool: HttpPool, *arguments: Any, **options: Any) -> bytes:
        try:
            return await post(pool, *arguments, **options)
        finally:
            was_answered.set()

    monkeypatch.setattr(HttpPool, "post", post_and_notify)
    async with live_server.serving_ledger(ledger) as url, open_commands(ledger) as commands:
        worker = Worker(url, token="anything", session="later")
        worker.action("double")(lambda number: 2 * number)
        async with serving(worker):
            async with asyncio.timeout(TIMEOUT_S):
                await was_answered.wait()  # With the error that the session does not exist.
            command = await commands.submit("double", {"number": 21}, session="later")
            assert (await wait_for_end(commands, command)).result == 42


@pytest.mark.anyio
async def test_a_heartbeat_without_an_answer_is_sent_again(ledger: LocalLedger) -> None:
    """It uses another connection, before the lease ends."""
    resent = asyncio.Event()
    async with (
        live_server.serving_ledger(ledger) as url,
        open_commands(ledger) as commands,
        drop_first_heartbeat(url, resent) as proxy_url,
    ):
        worker = Worker(proxy_url, lease=3)

        @worker.action()
        async def wait() -> str:
            await resent.wait()
            return "renewed"

        async with serving(worker):
            assert (await wait_for_end(commands, await commands.submit("wait", timeout=60))).result == "renewed"


@contextlib.asynccontextmanager
async def drop_first_heartbeat(url: str, resent: asyncio.Event) -> AsyncGenerator[str]:
    """Run a proxy that drops the first heartbeat without an answer and sets `resent` at the next."""
    address, heartbeats, tasks = parse_address(url, "test"), list[bytes](), set[asyncio.Task[Any]]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if b"/heartbeat HTTP" in data:
                heartbeats.append(data)
                if len(heartbeats) == 1:
                    continue
                resent.set()
            writer.write(data)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(address.host, address.port)
        upstream = asyncio.ensure_future(forward(reader, server_writer))
        directions = {upstream, asyncio.ensure_future(forward(server_reader, writer))}
        tasks.update(directions)
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, server_writer):
            end.close()
        for direction in directions:
            direction.cancel()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*tasks, return_exceptions=True)


# The connection


@pytest.mark.anyio
@pytest.mark.parametrize("answers", [True, False])
async def test_a_cancelled_request_still_reads_its_answer(answers: bool) -> None:
    """So a command that was just claimed is not lost. Without an answer the connection ends."""
    connections: list[asyncio.StreamWriter] = []
    requested = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n1")
        connections.append(writer)
        requested.set()
        if len(connections) == 1:
            await reader.read()
        writer.write(OK if answers or len(connections) > 1 else b"")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    pool = HttpPool(parse_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "test"), "")
    request = asyncio.create_task(pool.post("/x", 1, accept_late=True))
    async with asyncio.timeout(TIMEOUT_S):
        await requested.wait()
        request.cancel()
        if answers:
            assert await request == b"{}"
        else:
            with pytest.raises(asyncio.CancelledError):
                await request
        assert await pool.post("/x", 1) == b"{}"
    await pool.close()
    server.close()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def answer_with(*answers: bytes) -> AsyncGenerator[tuple[HttpPool, list[int]]]:
    """Return a pool for a server with these answers, one per request, and the connections used; b"" closes one."""
    remaining, connections = list(answers), list[int]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while remaining:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                connections.append(id(writer))
                answer = remaining.pop(0)
                if not answer:
                    break
                writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    pool = HttpPool(parse_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "test"), "")
    try:
        yield pool, connections
    finally:
        await pool.close()
        server.close()
        await server.wait_closed()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.anyio
async def test_an_open_connection_is_used_again() -> None:
    """Also after a chunked answer. A connection that was closed while idle is replaced."""
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK
    async with answer_with(OK, chunked, early, b"", OK) as (pool, connections):
        assert [await pool.post("/x", 1) for _ in range(4)] == [b"{}"] * 4
    assert len(set(connections[:4])) == 1 and len(set(connections)) == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not a Callslip server"),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>", "not a Callslip server"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", "not a Callslip server"),
    ],
)
async def test_another_program_on_the_port_counts_as_unavailable(answer: bytes, message: str) -> None:
    """A proxy without its server, or another program, may be gone after a retry."""
    async with answer_with(answer) as (pool, _):
        with pytest.raises(ServerUnavailableError, match=message):
            await pool.post("/x", 1)


def test_workers_and_commands_are_names_of_the_package() -> None:
    """`callslip.Worker`, `callslip.Command` and `callslip.Claim` are exported."""
    assert (callslip.Worker, callslip.Command, callslip.Claim) == (Worker, Command, Claim)
