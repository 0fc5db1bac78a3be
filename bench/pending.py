"""The index of pending commands: what 100,000 of them cost in memory, to look one up, and to see that none is due.

The peer is what one writes first, a dict of dicts with a heap of deadlines; the limit is a dict from id to deadline.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from measure import best

import callslip
from callslip.api.commands import CommandQueue
from callslip.commands import DeadlineTracker
from callslip.model.records import CallRecord

MANY = 100_000
NOW = 1_800_000_000_000
TIMEOUT = 30_000
WINDOW, BUCKET = 10_000, 10

Line = tuple[str, str, str]


def rows() -> Iterator[CallRecord]:
    """Commands as they come in over ten seconds. Nothing of a row is shared with the row before, as in a store."""
    for number in range(MANY):
        created = NOW + number * 10_000 // MANY
        name, client = f"exec_{number * 7919:012x}", "".join(["def", "ault"])
        deadline = created + TIMEOUT
        yield CallRecord(name, "commands", number, "queued", client=client, created_at=created, deadline=deadline)


class Naive:
    """The peer."""

    def __init__(self) -> None:
        self.pending: dict[str, dict[str, Any]] = {}
        self.heap: list[tuple[int, str]] = []

    def update(self, row: CallRecord) -> None:
        self.pending[row.id] = {"client": row.client, "state": row.state, "deadline": row.deadline}
        heappush(self.heap, (row.deadline, row.id))

    def due(self, now: int) -> list[str]:
        found: list[str] = []
        while self.heap and self.heap[0][0] <= now:
            found.append(heappop(self.heap)[1])
        return found

    def scan(self, now: int) -> list[str]:
        return [name for name, row in self.pending.items() if row["deadline"] <= now]


def tracked() -> DeadlineTracker:
    built = DeadlineTracker()
    for row in rows():
        built.update(row)
    return built


def naive() -> Naive:
    built = Naive()
    for row in rows():
        built.update(row)
    return built


def bare() -> dict[str, int]:
    return {row.id: row.deadline for row in rows()}


def held(make: Callable[[], Any]) -> int:
    """Bytes of what is made and kept; what it was made from is gone."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    built = make()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert built is not None
    return after - before


def each(get: Callable[[str], Any], names: list[str]) -> Callable[[], None]:
    def work() -> None:
        for name in names:
            get(name)

    return work


def sweeps(due: Callable[[int], Any], every: int) -> Callable[[], None]:
    """A window in which nothing is due, asked about at every so many ms."""

    def work() -> None:
        for now in range(NOW + WINDOW, NOW + 2 * WINDOW, every):
            assert not due(now)

    return work


async def _idle() -> int:
    """Bytes of everything that is there for commands while there are none, over an open ledger."""
    with tempfile.TemporaryDirectory() as folder:
        async with await callslip.open(f"sqlite:///{Path(folder) / 'idle.db'}") as ledger:
            await _beat(ledger)  # What is imported and cached at the first time is not the tracker's.
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            commands = await _beat(ledger, keep=True)
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert commands is not None
            await commands.close()
    return after - before


async def _beat(ledger: callslip.LocalLedger, keep: bool = False) -> CommandQueue | None:
    commands = CommandQueue(ledger.log)
    assert await commands.claim() is None  # Now it watches, too.
    await asyncio.sleep(0.2)
    if keep:
        return commands
    await commands.close()
    return None


def figures() -> Iterator[Line]:
    size, peers, least = (held(make) / MANY for make in (tracked, naive, bare))
    yield "bytes each", f"{size:.0f}  (dicts and heap {peers:.0f})", "about 200"
    yield "  to a dict from id to deadline (the limit)", f"{size / least:.2f}x  ({least:.0f})", ""
    yield (
        "bytes of an idle one: all of Commands / the index",
        f"{asyncio.run(_idle()):,} / {held(DeadlineTracker):,}",
        "< 50 KB",
    )
    ours, theirs, limit = tracked(), naive(), bare()
    names = random.Random(7).sample(list(limit), len(limit))
    got, gotten, bound = best(each(ours.get, names), each(theirs.pending.get, names), each(limit.get, names))
    to_peer = f"(dict of dicts {gotten / MANY * 1e6:.2f}, limit {bound / MANY * 1e6:.2f})"
    yield "lookup, us", f"{got / MANY * 1e6:.2f}  {to_peer}", "< 1"
    swept, peeked, scanned = best(
        sweeps(ours.due, BUCKET), sweeps(theirs.due, BUCKET), sweeps(theirs.scan, 1000), rounds=5
    )
    yield "nothing due: asked every 10 ms for 10 s, ms", f"{swept * 1e3:.2f}  (heap {peeked * 1e3:.2f})", "< 1"
    yield "  looking through all of them each second, to ours", f"{scanned / swept:,.0f}x  ({scanned * 1e3:.0f} ms)", ""
    yield from _all_due()


def _all_due() -> Iterator[Line]:
    end = NOW + WINDOW + TIMEOUT + BUCKET
    built = [tracked() for _ in range(3)]
    others = [naive() for _ in built]
    ours, theirs = best(lambda: built.pop().due(end), lambda: others.pop().due(end), rounds=len(built))
    yield "all due at once, us each", f"{ours / MANY * 1e6:.2f}  (heap {theirs / MANY * 1e6:.2f})", ""
