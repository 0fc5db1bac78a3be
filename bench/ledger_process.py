"""A process that writes to a ledger and follows sessions: `run_processes` starts several and collects the results.

Each opens the ledger, or connects to a server, waits until all have, and runs for the same time. A writer appends one
event after another, with the time of the machine in its text; a reader compares that with the time at which it has the
event. Over HTTP both do no more than they must, so that the servers are what is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

PROGRAM = Path(__file__)
SETTLE_S = 0.2
"""Readers are connected before the writers begin."""
SAMPLES = 2000
"""How many times a result has at most. A pipe takes that many at once."""
DRAIN_S = 0.5
"""How long readers may take for the last events."""


class Plan(msgspec.Struct, kw_only=True):
    """What one process does. The writers share the sessions out; `pause` is the time between the events of a writer.

    `url` names the database, or with a `token` a server.
    """

    url: str
    seconds: float
    token: str = ""
    sessions: list[str] = []
    writers: int = 0
    pause: float = 0.0
    readers: list[str] = []
    connections: int = 2


class Result(msgspec.Struct, kw_only=True):
    """What one process has measured: events, deliveries, waits for both in ms, and its processor time."""

    events: int
    delivered: int
    seconds: float
    waits: list[float]
    deliveries: list[float]
    processor_s: float


class Total(NamedTuple):
    """The results of all processes together. `used` is what the meter has counted meanwhile, for each second."""

    rate: float
    delivery_rate: float
    waits: list[float]
    deliveries: list[float]
    used: list[float]


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def run_processes(plans: list[Plan], meter: Callable[[], list[float]] = list) -> Total:
    """Run a process for each plan, all at the same time. The meter is read before and after."""
    processes = [
        subprocess.Popen([sys.executable, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in plans
    ]
    try:
        for process, plan in zip(processes, plans, strict=True):
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(plan).decode() + "\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n", "a process did not start"
        before, began = meter(), time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate()[0] for process in processes]
        after, seconds = meter(), time.perf_counter() - began
        assert not any(process.returncode for process in processes), "a process failed"
        results = [msgspec.json.decode(output, type=Result) for output in outputs]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    used = [(later - earlier) / seconds for earlier, later in zip(before, after, strict=True)]
    return Total(
        sum(result.events / result.seconds for result in results),
        sum(result.delivered / result.seconds for result in results),
        [wait for result in results for wait in result.waits],
        [delay for result in results for delay in result.deliveries],
        [*used, sum(result.processor_s / result.seconds for result in results)],
    )


class _Run:
    """What the writers and readers of a process do, and what they measure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.waits: list[float] = []
        self.deliveries: list[float] = []

    async def write(self, append: Callable[[], Any], until: float) -> None:
        """Append one event after another."""
        while (began := time.perf_counter()) < until:
            await append()
            self.waits.append(round((time.perf_counter() - began) * 1e3, 3))
            if self.plan.pause:
                await asyncio.sleep(self.plan.pause)

    async def measure(
        self, start: Callable[[], Any], appends: list[Callable[[], Any]], readers: list[Callable[[], Any]]
    ) -> Result:
        """Run all writers and readers for the time of the plan, and return what was measured."""
        plan = self.plan
        await start()
        reading = [asyncio.ensure_future(follow()) for follow in readers]
        await asyncio.sleep(SETTLE_S if readers else 0)
        processor_s, began = time.process_time(), time.perf_counter()
        until = began + plan.seconds
        if appends:
            await asyncio.gather(*(self.write(append, until) for append in appends))
        else:
            await asyncio.sleep(plan.seconds)
        seconds = time.perf_counter() - began
        delivered, processor_s = len(self.deliveries), time.process_time() - processor_s
        await asyncio.sleep(DRAIN_S if readers else 0)
        for reader in reading:
            reader.cancel()
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise RuntimeError(f"a reader ended: {outcome!r}")
        return Result(
            events=len(self.waits),
            delivered=delivered,
            seconds=seconds,
            waits=self.waits[:: len(self.waits) // SAMPLES + 1],
            deliveries=self.deliveries[:: len(self.deliveries) // SAMPLES + 1],
            processor_s=processor_s,
        )


async def run_plan(plan: Plan, start: Callable[[], Any]) -> Result:
    """Write and read as planned; `start` returns when all processes are ready."""
    run = _Run(plan)
    shares = [plan.sessions[number % len(plan.sessions) :: plan.writers] for number in range(plan.writers)]
    return await (_run_with_server if plan.token else _run_with_ledger)(run, shares, start)


# With a ledger


async def _run_with_ledger(run: _Run, shares: list[list[str]], start: Callable[[], Any]) -> Result:
    import callslip
    from callslip.model.events import MessageDelta

    plan = run.plan
    settings = callslip.Settings(write_connections=plan.connections)
    async with await callslip.open(plan.url, settings) as ledger:
        for name in {*plan.sessions, *plan.readers}:
            if await ledger.log.get_session(name) is None:
                await ledger.log.append(name, [MessageDelta(text="0 ", chunks="delta")])

        async def follow(name: str) -> None:
            session = await ledger.log.get_session(name)
            assert session is not None
            async for batch in ledger.log.batches(name, session.last_seq):
                now = time.time()
                run.deliveries.extend(round((now - float(stored.event.text)) * 1e3, 3) for stored in batch)

        def appender(share: list[str]) -> Callable[[], Any]:
            sessions = itertools.cycle([ledger.session(name) for name in share])
            return lambda: next(sessions).append(MessageDelta(text=f"{time.time()} ", chunks="delta"))

        readers = [lambda name=name: follow(name) for name in plan.readers]
        return await run.measure(start, [appender(share) for share in shares], readers)


# With a server

_TIMES = re.compile(rb'"text":"([0-9.]+) "')


class _Connection:
    """One HTTP connection to the server, which is kept."""

    def __init__(self, plan: Plan) -> None:
        host, _, port = plan.url.removeprefix("http://").partition(":")
        self._place = host, int(port)
        self._head = f"Host: {host}:{port}\r\nAuthorization: Bearer {plan.token}\r\n"
        self.reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> _Connection:
        self.reader, self._writer = await asyncio.open_connection(*self._place, limit=2**20)
        return self

    def send(self, what: str, body: str = "") -> None:
        """Send a request: its method and path, and its body."""
        content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{what} HTTP/1.1\r\n{self._head}{content}\r\n{body}".encode())

    async def head(self) -> tuple[int, int]:
        """Return the status and the length of the body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return int(head[9:12]), int(length or 0)

    async def ask(self, what: str, body: str = "") -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        self.send(what, body)
        status, length = await self.head()
        return status, await self.reader.readexactly(length)

    async def append(self, name: str, text: str) -> None:
        """Append a chunk of text to a session."""
        body = f'[{{"type":"message.delta","text":"{text} ","chunks":"delta"}}]'
        status, answer = await self.ask(f"POST /v1/sessions/{name}/events", body)
        assert status in (200, 201), answer

    def close(self) -> None:
        self._writer.close()


async def _run_with_server(run: _Run, shares: list[list[str]], start: Callable[[], Any]) -> Result:
    plan = run.plan
    first = await _Connection(plan).open()
    heads: dict[str, int] = {}
    for name in {*plan.sessions, *plan.readers}:
        if (await first.ask(f"GET /v1/sessions/{name}"))[0] == 404:
            await first.append(name, "0")
        heads[name] = msgspec.json.decode((await first.ask(f"GET /v1/sessions/{name}"))[1])["seq"]
    streams = [await _Connection(plan).open() for _ in plan.readers]
    for stream, name in zip(streams, plan.readers, strict=True):
        stream.send(f"GET /v1/sessions/{name}/stream?format=events&after={heads[name]}")
        status, _ = await stream.head()
        assert status == 200, f"a stream was refused: {status}"

    async def follow(stream: _Connection) -> None:
        rest = b""
        while piece := await stream.reader.read(2**18):
            now = time.time()
            done, end, rest = (rest + piece).rpartition(b"\n\n")
            if not end:
                continue
            run.deliveries.extend(round((now - float(found)) * 1e3, 3) for found in _TIMES.findall(done))

    def appender(connection: _Connection, share: list[str]) -> Callable[[], Any]:
        sessions = itertools.cycle(share)
        return lambda: connection.append(next(sessions), str(time.time()))

    writers = [await _Connection(plan).open() for _ in shares]
    appends = [appender(writer, share) for writer, share in zip(writers, shares, strict=True)]
    readers = [lambda stream=stream: follow(stream) for stream in streams]
    result = await run.measure(start, appends, readers)
    for connection in (first, *writers, *streams):
        connection.close()
    return result


def main() -> None:
    import uvloop

    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)

    async def start() -> None:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

    print(msgspec.json.encode(uvloop.run(run_plan(plan, start))).decode())


if __name__ == "__main__":
    main()
