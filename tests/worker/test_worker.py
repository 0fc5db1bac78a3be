"""Workers run what others submit: on a file and over HTTP, beside each other, and whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.commands import CommandQueue
from callslip.api.ledger import Ledger, open_ledger
from callslip.client.address import parse_address
from callslip.client.http import HttpPool
from callslip.commands import Claim, Command
from callslip.errors import AuthenticationError, CallslipError, InvalidInputError, ServerUnavailableError
from callslip.model.events import CallRequeued
from callslip.settings import Settings
from callslip.worker import Worker, command_run
from callslip.worker.actions import Action
from callslip.worker.desks import OnServer
from tests.support import live_server
from tests.support.cli_process import Process, Serving, free_port, process, run, with_ledger
from tests.support.invariants import PROGRAMS

PATIENCE = 30.0
FILE_AND_HTTP = pytest.mark.parametrize("way", ["file", "http"])


@contextlib.asynccontextmanager
async def commands_of(ledger: Ledger) -> AsyncGenerator[CommandQueue]:
    made = CommandQueue(ledger.log)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncGenerator[None]:
    """A worker in this loop, stopped at the end of the block."""
    serving = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await serving


async def ended(commands: CommandQueue, made: Command) -> Command:
    found = await commands.get(made.correlation_id, wait=PATIENCE)
    assert found.final, found
    return found


class Scene:
    """A ledger's file, perhaps a server of it, and workers that are processes of their own."""

    def __init__(self, tmp_path: Path, way: str, stack: contextlib.ExitStack) -> None:
        self.path = tmp_path / "ledger.db"
        self.go = tmp_path / "go"
        self._stack = stack
        self.server: Serving | None = None
        if way == "http":
            self.server = Serving(self.path)
            stack.callback(lambda: self.server and self.server.kill())

    def worker(self, lease: float = 30, concurrency: int = 1) -> Process:
        where = [self.server.url, str(lease), str(concurrency), self.server.token] if self.server else []
        given = where or [f"sqlite:///{self.path}", str(lease), str(concurrency)]
        made = self._stack.enter_context(process(*given, program=str(PROGRAMS / "worker.py")))
        made.until("ready")
        return made

    @contextlib.asynccontextmanager
    async def commands(self) -> AsyncGenerator[CommandQueue]:
        async with await open_ledger(f"sqlite:///{self.path}") as ledger, commands_of(ledger) as commands:
            yield commands

    def held(self, name: str, **more: Any) -> dict[str, Any]:
        """A command that runs until `go` is there."""
        return {"action": "hold", "params": {"until": str(self.go)}, "correlation_id": name, "timeout": 60, **more}


@pytest.fixture
def scene(tmp_path: Path, way: str) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(tmp_path, way, stack)


async def until(worker: Process, text: str, count: int = 1) -> None:
    await asyncio.to_thread(worker.until, text, count)


async def state(commands: CommandQueue, name: str, wanted: str) -> None:
    """Wait until a command is in a state that is no end."""
    async with asyncio.timeout(PATIENCE):
        while (await commands.find(name)).state != wanted:
            await asyncio.sleep(0.02)


# What becomes of a function


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[Ledger]:
    async with await open_ledger(db, Settings(synchronous="NORMAL")) as ledger:
        yield ledger


@contextlib.asynccontextmanager
async def worker_of(ledger: Ledger, way: str, **more: Any) -> AsyncGenerator[Worker]:
    """A worker that gets its commands by way of a server or not; it works once it is told to."""
    if way == "file":
        yield Worker(ledger, **more)
        return
    async with live_server.served(ledger) as url:
        yield Worker(url, **more)


@pytest.mark.anyio
@FILE_AND_HTTP
async def test_a_function_of_any_kind_runs_a_command(ledger: Ledger, way: str) -> None:
    """S3.6: params are arguments by name, or all in one; what a function raises is said without its traceback."""
    async with worker_of(ledger, way) as worker, commands_of(ledger) as commands:

        @worker.action()
        async def add(a: int, b: int = 1) -> int:
            return a + b

        @worker.action("in_a_thread")
        def named_otherwise(**given: int) -> Any:
            return [threading.current_thread() is threading.main_thread(), given]

        @worker.action()
        def pieces(to: int) -> Generator[str]:
            yield from map(str, range(to))

        @worker.action()
        async def whole(params: Any) -> Any:
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

        wanted: list[tuple[str, Any, Any, str]] = [
            ("add", {"a": 2}, 3, ""),
            ("in_a_thread", {"x": 1}, [False, {"x": 1}], ""),
            ("pieces", {"to": 3}, "2", ""),
            ("whole", ["any", 1], ["any", 1], ""),
            ("claimed", {"x": 1}, ["claimed", {"x": 1}, 1], ""),
            ("breaks", None, None, "KeyError: 'no such tab'"),
            ("leaves", None, None, "RuntimeError: the function called exit(3)"),
            ("interrupts", None, None, "RuntimeError: the function raised KeyboardInterrupt"),
            ("add", {"a": 1, "c": 2}, None, "TypeError: the arguments have no place in the function: c"),
            ("add", [1], None, "TypeError: the arguments are not an object"),
            ("remove", None, None, "no action 'remove'; this worker knows add, breaks, claimed,"),
        ]
        async with at_work(worker):
            for action, params, result, error in wanted:
                made = await ended(commands, await commands.submit(action, params))
                if error:
                    assert made.status == "error" and error in str(made.error) and "Traceback" not in str(made.error)
                else:
                    assert (made.status, made.result) == ("complete", result)
        (row,) = (await ledger.calls(session="commands", limit=9)).items[-1:]
        assert row.tool == "pieces" and row.worker == worker.name
        snapshot = await ledger.snapshot("commands")
        told = [entry for entry in snapshot.entries if getattr(entry, "call_id", "") == row.id]
        assert "012" in str(told)


@pytest.mark.anyio
@FILE_AND_HTTP
async def test_a_result_that_cannot_be_kept_ends_its_command_as_an_error(db: str, way: str) -> None:
    """C5: too large, or no JSON or text at all: the submitter hears of it."""
    async with (
        await open_ledger(db, Settings(synchronous="NORMAL", max_blob=2**20)) as ledger,
        worker_of(ledger, way) as worker,
        commands_of(ledger) as commands,
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

        async with at_work(worker):
            for size in (2 * 2**20, 20 * 2**20):  # More than the ledger keeps, more than a server reads.
                made = await ended(commands, await commands.submit("large", {"size": size}))
                assert made.status == "error" and "could not be kept" in str(made.error)
            assert (await ended(commands, await commands.submit("strange"))).status == "complete"
            assert "half a character" in str((await ended(commands, await commands.submit("breaks"))).error)


@pytest.mark.anyio
async def test_progress_that_cannot_be_kept_costs_no_lease(db: str, capfd: Any) -> None:
    """The lease is renewed without it, and the command goes on."""
    settings = Settings(synchronous="NORMAL", max_event=2**16)
    async with await open_ledger(db, settings) as ledger, commands_of(ledger) as commands:
        worker = Worker(ledger, lease=60)

        @worker.action()
        async def tells(it: Claim) -> AsyncGenerator[str]:
            yield "x" * 2**17
            async with asyncio.timeout(PATIENCE / 2):  # The next heartbeat would come later.
                while (row := await ledger.log.store.call(it.call)) is None or row.lease <= it.lease_until:
                    await asyncio.sleep(0.01)
            yield "kept up"

        async with at_work(worker):
            assert (await ended(commands, await commands.submit("tells", timeout=60))).result == "kept up"
    assert capfd.readouterr().err.count("was refused") == 1


def test_a_worker_says_what_is_wrong_with_it(db: str) -> None:
    """Without functions, with two of a name, or for nobody, it does not begin."""
    worker = Worker(db)
    with pytest.raises(InvalidInputError, match="no function yet"):
        worker.run()
    worker.action("a")(print)
    with pytest.raises(InvalidInputError, match="'a' has a function already"):
        worker.action("a")(print)
    with pytest.raises(InvalidInputError, match="concurrency"):
        Worker(db, concurrency=0)
    with pytest.raises(InvalidInputError, match="lease"):
        Worker(db, lease=0)
    elsewhere = Worker("ftp://127.0.0.1")
    elsewhere.action("a")(print)
    with pytest.raises(InvalidInputError, match="ftp:// is not supported"):
        elsewhere.run()


# What cannot be stopped


@pytest.mark.anyio
async def test_a_sync_function_keeps_its_place_until_it_returns(ledger: Ledger, capfd: Any) -> None:
    """A cancelled one counts for nothing, and nothing else is begun beside it."""
    worker, go, begun = Worker(ledger, lease=3), threading.Event(), threading.Event()

    @worker.action()
    def block() -> str:
        begun.set()
        go.wait(PATIENCE)
        return "too late"

    @worker.action()
    async def after() -> str:
        return "done"

    async with commands_of(ledger) as commands, at_work(worker):
        made = await commands.submit("block")
        await asyncio.to_thread(begun.wait, PATIENCE)
        await commands.cancel(made.correlation_id)
        other = await commands.submit("after")
        async with asyncio.timeout(PATIENCE):
            while "cannot be stopped" not in (said := capfd.readouterr().err):
                await asyncio.sleep(0.02)
        assert "block" in said
        assert (await commands.get(other.correlation_id)).status == "pending"
        go.set()
        assert (await ended(commands, other)).result == "done"
        assert (await commands.get(made.correlation_id)).status == "cancelled"


@pytest.mark.anyio
async def test_a_worker_never_runs_one_command_twice_at_once(ledger: Ledger) -> None:
    """Given back behind its back, a command is run again only when its first run is over."""
    worker, go = Worker(ledger, lease=2, concurrency=2), threading.Event()
    running: list[int] = []
    most: list[int] = []
    begun = threading.Event()

    @worker.action()
    def block(it: Claim) -> int:
        running.append(it.attempt)
        most.append(len(running))
        begun.set()
        go.wait(PATIENCE)
        running.remove(it.attempt)
        return it.attempt

    async with commands_of(ledger) as commands, at_work(worker):
        made = await commands.submit("block", idempotent=True, timeout=60)
        await asyncio.to_thread(begun.wait, PATIENCE)
        row = await commands.find(made.correlation_id)
        await ledger.log.append(row.session, [CallRequeued(call=row.id, reason="for a test")])
        async with asyncio.timeout(PATIENCE):
            while (await commands.find(made.correlation_id)).attempt < 2:
                await asyncio.sleep(0.01)
        go.set()
        assert (await ended(commands, made)).result == 2
    assert most == [1, 1]


# Processes that die


@pytest.mark.anyio
@pytest.mark.chaos
@FILE_AND_HTTP
async def test_a_worker_that_dies_gives_back_only_what_may_run_twice(scene: Scene) -> None:
    """S3.6: what is idempotent goes to another worker; the other is lost."""
    first = scene.worker(lease=1, concurrency=2)
    async with scene.commands() as commands:
        again = await commands.submit(**scene.held("again", idempotent=True))
        once = await commands.submit(**scene.held("once"))
        await until(first, "began", 2)
        os.kill(first.pid, signal.SIGKILL)
        second = scene.worker(lease=1)
        await until(second, "began again 2")
        lost = await ended(commands, once)
        assert lost.status == "error" and "nothing more was heard" in str(lost.error)
        scene.go.touch()
        assert (await ended(commands, again)).result == f"held by {second.pid}"
    assert not any("once" in line for line in second.out)


@pytest.mark.anyio
@pytest.mark.chaos
@FILE_AND_HTTP
async def test_two_workers_never_run_the_same_command(scene: Scene, scale: int) -> None:
    """S3.6: every command is run, by one of them, once."""
    workers = [scene.worker(concurrency=3), scene.worker(concurrency=3)]
    names = [f"c{number}" for number in range(30 * scale)]
    async with scene.commands() as commands:
        for start in range(0, len(names), 30):
            made = [await commands.submit(**scene.held(name)) for name in names[start : start + 30]]
            for worker in workers:
                await until(worker, "began", 3)  # As many as one takes at once: the other has the next.
            scene.go.touch()
            for one in made:
                assert (await ended(commands, one)).status == "complete"
    for worker in workers:
        assert worker.signal(signal.SIGTERM) == 0
    began = [line.split()[1] for worker in workers for line in worker.out if line.startswith("began")]
    assert sorted(began) == sorted(names)


@pytest.mark.anyio
@FILE_AND_HTTP
async def test_a_cancelled_command_stops_its_function(scene: Scene) -> None:
    """The worker hears of it with a heartbeat, and goes on to the next command."""
    worker = scene.worker(lease=3)
    async with scene.commands() as commands:
        made = await commands.submit(**scene.held("held"))
        await until(worker, "began held")
        await commands.cancel(made.correlation_id, "not wanted any more")
        await until(worker, "stopped held")
        following = await commands.submit("add", {"a": 2, "b": 3})
        assert (await ended(commands, following)).result == 5
        assert (await commands.get(made.correlation_id)).error == "not wanted any more"


@pytest.mark.anyio
@pytest.mark.parametrize(("way", "number"), [("file", signal.SIGINT), ("http", signal.SIGTERM)])
async def test_a_worker_that_is_told_to_stop_leaves_nothing_half_done(scene: Scene, number: signal.Signals) -> None:
    """Ctrl-C: what may run twice is back in the queue, the other says why it is not done, a thread is left alone."""
    worker = scene.worker(lease=20, concurrency=3)
    async with scene.commands() as commands:
        again = await commands.submit(**scene.held("again", idempotent=True))
        once = await commands.submit(**scene.held("once"))
        blocking = {"until": str(scene.go), "name": "in a thread"}
        thread = await commands.submit("block", blocking, timeout=60)
        await until(worker, "began", 3)
        assert await asyncio.to_thread(worker.signal, number) == 0
        assert "left\n" in worker.out and not any("Traceback" in line for line in worker.err)
        for made in (once, thread):
            stopped = await ended(commands, made)
            assert (stopped.status, "was stopped" in str(stopped.error)) == ("error", True)
        await state(commands, again.correlation_id, "queued")


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["http"])
async def test_a_dead_worker_is_given_nothing(scene: Scene) -> None:
    """Who waited for work and died does not get the next command."""
    waiting, other = scene.worker(), scene.worker()
    async with scene.commands() as commands:
        for name in ("one", "two"):  # Both wait: each takes one.
            await commands.submit(**scene.held(name))
        await until(waiting, "began")
        await until(other, "began")
        scene.go.touch()
        for name in ("one", "two"):
            await commands.get(name, wait=PATIENCE)
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.end()
        for name in ("three", "four"):
            assert (await ended(commands, await commands.submit(**scene.held(name)))).status == "complete"
    assert sum(line.startswith("began") for line in other.out) == 3


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_worker_outlives_its_server(tmp_path: Path) -> None:
    """It may be there before its server, and after: what ran meanwhile is told, and the next command is taken up."""
    path, port, go = tmp_path / "ledger.db", free_port(), tmp_path / "go"
    token = "a-token-that-is-long-enough"
    flags = ("--port", str(port), "--token", token)
    given = (f"http://127.0.0.1:{port}", "30", "1", token)
    with process(*given, program=str(PROGRAMS / "worker.py")) as worker, contextlib.ExitStack() as stack:

        async def serve() -> Serving:
            made = await asyncio.to_thread(Serving, path, *flags)
            stack.callback(made.kill)
            return made

        await until(worker, "trying again")
        server = await serve()
        await until(worker, "is back")
        async with await open_ledger(f"sqlite:///{path}") as ledger, commands_of(ledger) as commands:
            made = await commands.submit("hold", {"until": str(go)}, correlation_id="held", timeout=60)
            await until(worker, "began held")
            server.kill()
            go.touch()
            await until(worker, "trying again", 2)
            assert (await commands.get(made.correlation_id)).status == "pending"
            server = await serve()
            assert (await ended(commands, made)).result == f"held by {worker.pid}"
            await until(worker, "is back", 2)
            server.kill()
            await until(worker, "trying again", 3)
            await serve()
            assert (await ended(commands, await commands.submit("add", {"a": 1}))).result == 2
        assert worker.signal(signal.SIGINT) == 0
        assert sum("trying again" in line for line in worker.err) == 3, worker.err


@pytest.mark.anyio
async def test_a_result_is_given_up_when_its_time_is_long_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it is tried again; whoever runs the worker is told once that nobody answers, and of the end."""
    monkeypatch.setattr(command_run, "LONG_OVER", 0.3)
    times: dict[str, Any] = {
        "created_at": "2026-01-01T00:00:00.000Z",
        "expires_at": "2026-01-01T00:00:00.200Z",
        "lease_until": 0,
    }
    known: dict[str, Any] = {"client": "default", "fence": 1, "attempt": 1, "idempotent": False, "session": "s"}
    claim = Claim(call="exec_1", correlation_id="mine", action="add", params={"a": 1}, **known, **times)
    desk = OnServer(HttpPool(parse_address(f"http://127.0.0.1:{free_port()}", "test"), ""))
    said: list[str] = []

    async def add(a: int) -> int:
        return a

    async def at_once() -> None: ...

    async with asyncio.timeout(PATIENCE):
        doing = command_run.CommandRun(desk, claim, 0.2, command_run.Away(desk.where, said.append), said.append)
        await doing.run({"add": Action("add", add)}, at_once)
    assert ["trying again" in said[0], "the result of command mine did not count" in said[1], len(said)] == [
        True,
        True,
        2,
    ]


def test_a_worker_without_a_right_to_work_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token is no matter of trying again. The right one is found where servers of this user keep it."""
    server = Serving(tmp_path / "ledger.db")
    try:
        monkeypatch.setenv("CALLSLIP_SERVER", server.url)
        worker = Worker(token="a-wrong-token-altogether")
        worker.action("add")(print)
        with pytest.raises(AuthenticationError):
            worker.run()
        with process("", "30", "1", program=str(PROGRAMS / "worker.py")) as other:
            other.until("ready")

            async def add() -> Any:
                url = f"sqlite:///{tmp_path / 'ledger.db'}"
                async with await open_ledger(url) as ledger, commands_of(ledger) as commands:
                    return (await ended(commands, await commands.submit("add", {"a": 1}))).result

            assert asyncio.run(add()) == 2
    finally:
        server.kill()


def test_a_worker_needs_no_more_than_the_right_to_execute(tmp_path: Path) -> None:
    """A token for executors claims, beats and tells results; one without that right ends the worker."""
    path = tmp_path / "ledger.db"
    server = Serving(path)
    try:
        create = ["admin", "token", "create", "--db", str(path), "--can"]
        execute, others = (run(*create, verbs).stdout.strip() for verbs in ("execute", "read,write,approve"))
        refused = Worker(server.url, token=others)
        refused.action("add")(print)
        with pytest.raises(CallslipError, match="may not execute"):
            refused.run()
        with process(server.url, "1", "1", execute, program=str(PROGRAMS / "worker.py")) as worker:
            worker.until("ready")

            async def count(ledger: Ledger) -> Any:
                async with commands_of(ledger) as commands:
                    return (await ended(commands, await commands.submit("count", {"to": 3}))).result

            assert with_ledger(path, count) == "2\n"
            assert worker.signal(signal.SIGTERM) == 0 and len(worker.err) == 0
    finally:
        server.kill()


@pytest.mark.anyio
async def test_a_worker_may_be_there_before_its_session(ledger: Ledger) -> None:
    """Nobody has submitted anything for it yet; then somebody does."""
    async with live_server.served(ledger) as url, commands_of(ledger) as commands:
        worker = Worker(url, token="anything", session="later")
        worker.action("double")(lambda number: 2 * number)
        async with at_work(worker):
            await asyncio.sleep(0.3)  # It has been told by now that there is no such session.
            made = await commands.submit("double", {"number": 21}, session="later")
            assert (await ended(commands, made)).result == 42


@pytest.mark.anyio
async def test_a_heartbeat_that_nobody_answers_costs_nothing(ledger: Ledger) -> None:
    """It is sent again over another connection, while the lease lasts."""
    again = asyncio.Event()
    async with live_server.served(ledger) as url, commands_of(ledger) as commands, swallowing(url, again) as gap:
        worker = Worker(gap, lease=3)

        @worker.action()
        async def wait() -> str:
            await again.wait()
            return "heard"

        async with at_work(worker):
            assert (await ended(commands, await commands.submit("wait", timeout=60))).result == "heard"


@contextlib.asynccontextmanager
async def swallowing(url: str, again: asyncio.Event) -> AsyncGenerator[str]:
    """The way to a server, on which the first heartbeat is lost without a word; `again` is set by the next."""
    there, beats, open_ways = parse_address(url, "test"), list[bytes](), set[asyncio.Task[Any]]()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if b"/heartbeat HTTP" in piece:
                beats.append(piece)
                if len(beats) == 1:
                    continue
                again.set()
            writer.write(piece)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(there.host, there.port)
        ways = {asyncio.ensure_future(pass_on(reader, back)), asyncio.ensure_future(pass_on(onward, writer))}
        open_ways.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, back):
            end.close()
        for way in ways:
            way.cancel()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*open_ways, return_exceptions=True)


# The connection


@pytest.mark.anyio
@pytest.mark.parametrize("answers", [True, False])
async def test_an_answer_on_its_way_is_heard_by_who_asks_no_more(answers: bool) -> None:
    """A command that was given just then is known of. A server that had not answered yet ends the connection."""
    asked: list[asyncio.StreamWriter] = []
    begun = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n1")
        asked.append(writer)
        begun.set()
        if len(asked) == 1:
            await reader.read()
        writer.write(OK if answers or len(asked) > 1 else b"")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    link = HttpPool(parse_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "test"), "")
    asking = asyncio.create_task(link.post("/x", 1, late=True))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        asking.cancel()
        if answers:
            assert await asking == b"{}"
        else:
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert await link.post("/x", 1) == b"{}"
    await link.close()
    server.close()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def answering(*answers: bytes) -> AsyncGenerator[tuple[HttpPool, list[int]]]:
    """A link to somebody who gives these answers, one to each request; b"" closes the connection. And who asked."""
    left, asked = list(answers), list[int]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                asked.append(id(writer))
                answer = left.pop(0)
                if not answer:
                    break
                writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    link = HttpPool(parse_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "test"), "")
    try:
        yield link, asked
    finally:
        await link.close()
        server.close()
        await server.wait_closed()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.anyio
async def test_a_connection_is_used_again_while_it_stands() -> None:
    """Also for an answer in chunks; one that was closed while it lay idle is not noticed outside."""
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK
    async with answering(OK, chunked, early, b"", OK) as (link, asked):
        assert [await link.post("/x", 1) for _ in range(4)] == [b"{}"] * 4
    assert len(set(asked[:4])) == 1 and len(set(asked)) == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "connection was closed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is no callslip server"),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>", "is no callslip server"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", "is no callslip server"),
    ],
)
async def test_whoever_is_no_server_of_ours_counts_as_away(answer: bytes, said: str) -> None:
    """A proxy in between, or another program on the port, may be gone again soon."""
    async with answering(answer) as (link, _):
        with pytest.raises(ServerUnavailableError, match=said):
            await link.post("/x", 1)


def test_workers_and_commands_are_names_of_the_package() -> None:
    """`callslip.Worker` and `callslip.Commands` are loaded when they are used."""
    assert callslip.Worker is Worker and callslip.Commands is CommandQueue
