"""A process that writes to a ledger and follows sessions: `Processes` starts several of them and collects the results.

Each opens the ledger, waits until all have, and runs for the same time. A writer appends one event after another, with
the time of the machine in its text; a reader compares that with the time at which it has the event.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
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
    """What one process does. The writers take turns to get a session; `pause` is the time between their events."""

    url: str
    seconds: float
    sessions: list[str] = []
    writers: int = 0
    pause: float = 0.0
    readers: list[str] = []
    connections: int = 2


class Result(msgspec.Struct, kw_only=True):
    """What one process has measured: events, waits for a write and for a delivery in ms, and its processor time."""

    events: int
    seconds: float
    waits: list[float]
    deliveries: list[float]
    processor_s: float


class Total(NamedTuple):
    """The results of all processes together."""

    rate: float
    events: int
    waits: list[float]
    deliveries: list[float]
    processor_s: float


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def run_processes(plans: list[Plan]) -> Total:
    """Run a process for each plan, all at the same time."""
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
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate()[0] for process in processes]
        assert not any(process.returncode for process in processes), "a process failed"
        results = [msgspec.json.decode(output, type=Result) for output in outputs]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Total(
        sum(result.events / result.seconds for result in results),
        sum(result.events for result in results),
        [wait for result in results for wait in result.waits],
        [delay for result in results for delay in result.deliveries],
        sum(result.processor_s for result in results),
    )


async def run_plan(plan: Plan, start: Any) -> Result:
    """Write and read as planned; `start` returns when all processes are ready."""
    import callslip
    from callslip.model.events import MessageDelta

    settings = callslip.Settings(write_connections=plan.connections)
    waits: list[float] = []
    deliveries: list[float] = []
    async with await callslip.open(plan.url, settings) as ledger:
        for name in {*plan.sessions, *plan.readers}:
            if await ledger.log.get_session(name) is None:
                await ledger.log.append(name, [MessageDelta(text="0 ", chunks="delta")])

        async def follow(name: str) -> None:
            session = await ledger.log.get_session(name)
            assert session is not None
            async for batch in ledger.log.batches(name, session.last_seq):
                now = time.time()
                deliveries.extend(round((now - float(stored.event.text)) * 1e3, 3) for stored in batch)

        async def write(name: str) -> None:
            session = ledger.session(name)
            while (began := time.perf_counter()) < until:
                await session.append(MessageDelta(text=f"{time.time()} ", chunks="delta"))
                waits.append(round((time.perf_counter() - began) * 1e3, 3))
                if plan.pause:
                    await asyncio.sleep(plan.pause)

        await start()
        readers = [asyncio.ensure_future(follow(name)) for name in plan.readers]
        await asyncio.sleep(SETTLE_S if plan.readers else 0)
        processor_s, began = time.process_time(), time.perf_counter()
        until = began + plan.seconds
        names = plan.sessions
        await asyncio.gather(*(write(names[number % len(names)]) for number in range(plan.writers)))
        seconds = time.perf_counter() - began
        processor_s = time.process_time() - processor_s
        if not plan.writers:
            await asyncio.sleep(plan.seconds)
        await asyncio.sleep(DRAIN_S if plan.readers else 0)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return Result(
        events=len(waits),
        seconds=max(seconds, 1e-9),
        waits=waits[:: len(waits) // SAMPLES + 1],
        deliveries=deliveries[:: len(deliveries) // SAMPLES + 1],
        processor_s=processor_s,
    )


def main() -> None:
    import uvloop

    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)

    async def start() -> None:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

    print(msgspec.json.encode(uvloop.run(run_plan(plan, start))).decode())


if __name__ == "__main__":
    main()
