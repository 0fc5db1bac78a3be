"""Measurements, each as a ratio to a limit or a peer taken in the same run. `make bench`; ARGS="fold append" narrows.

Nothing here is asserted in tests: machines differ, ratios much less. Each line says what it should reach.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from commands import bench_commands
from hooks import bench_hooks
from measure import best, say
from postgres import bench_postgres
from rows import bench_rows
from search import bench_search
from serving import bench_serve
from transcripts import bench_transcripts
from wrap import bench_wrap

import callslip
from callslip.model.entries import Patch
from callslip.model.events import (
    Alias,
    CallCompleted,
    CallProposed,
    CallStarted,
    Event,
    MessageDelta,
    decode_event,
    encode_event,
)
from callslip.rules.fold import SessionFold

# Folding


def log(chunks: int, calls: int) -> list[bytes]:
    """A session as a coding agent makes it: streamed text, and now and then a call."""
    rand = random.Random(7)
    words = ["hello ", "the ", "quick ", "brown fox ", "0 ", "ünï ", "- ", "\n    "]
    script: list[Event] = []
    every = chunks // calls
    for number in range(chunks):
        text = rand.choice(words) + rand.choice(words)
        script.append(MessageDelta(text=text, source="acp", at=1_700_000_000_000 + number))
        if number % every == 0:
            call = f"exec_{number:012x}"
            alias = (Alias("acp", f"toolu_{number}"),)
            script.append(
                CallProposed(call=call, aliases=alias, tool_name="Bash", title="ls", input={"command": "ls -la"})
            )
            script.append(CallStarted(call=call))
            script.append(CallCompleted(call=call, output="README.md\nsrc\ntests\n"))
    return [encode_event(_numbered(event, seq)) for seq, event in enumerate(script, 1)]


def _numbered(event: Event, seq: int) -> Event:
    from msgspec.structs import replace

    return replace(event, seq=seq)


def pages(data: list[bytes], size: int = 1000) -> Iterator[Iterator[Event]]:
    for start in range(0, len(data), size):
        yield map(decode_event, data[start : start + size])


def fold(data: list[bytes]) -> SessionFold:
    state = SessionFold()
    for page in pages(data):
        state.fold(page)
    return state


def fold_with_patches(data: list[bytes]) -> None:
    state = SessionFold()
    for page in pages(data):
        out: list[Patch] = []
        state.fold(page, out)


def decode(data: list[bytes]) -> None:
    for page in pages(data):
        for _ in page:
            pass


def naive(data: list[bytes]) -> None:
    """A peer: the newest text is joined again with every chunk, as reducers of UI messages do."""
    text = ""
    parts: list[dict[str, str]] = []
    for page in pages(data):
        for event in page:
            if isinstance(event, MessageDelta):
                text = "".join([text, event.text])
                parts = [*parts[-1:], {"text": text}]


def bench_fold() -> None:
    print("fold: 200k chunks and 5k calls")
    small, large = log(10_000, 250), log(200_000, 5_000)
    limit, plain, patched = best(lambda: decode(large), lambda: fold(large), lambda: fold_with_patches(large))
    for name, took, goal in (
        ("decode and fold, to decoding alone", plain, "<= 2x"),
        ("decode and fold with patches, to decoding alone", patched, "<= 3x"),
    ):
        say(name, f"{took / limit:.2f}x  ({took * 1e3:.0f} / {limit * 1e3:.0f} ms)", goal)
    many = [log(10_000, 250) for _ in range(20)]
    one, twenty = best(lambda: fold(large), lambda: [fold(data) for data in many])
    say("one session of 200k chunks, to twenty of 10k", f"{one / twenty:.2f}x", "<= 1.1x")
    joined, ours = best(lambda: naive(small), lambda: fold(small), rounds=5)
    say("a reducer that joins per chunk, 10k chunks, to ours", f"{joined / ours:.1f}x")
    texts = sum(len(event.text.encode()) for page in pages(large) for event in page if isinstance(event, MessageDelta))
    only_text = [encode_event(MessageDelta(text=f"some words {n} ", seq=n)) for n in range(1, 200_001)]
    size = sum(len(f"some words {n} ") for n in range(1, 200_001))
    tracemalloc.start()
    state = fold(only_text)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state.seq == 200_000 and texts
    say("memory held by 200k chunks of one text, to the text", f"{held / size:.2f}x  (peak {peak / size:.2f}x)", "< 3x")


# Appending


def raw_one_by_one(path: str, synchronous: str, events: int) -> float:
    connection = _raw(path, synchronous)
    start = time.perf_counter()
    for seq in range(events):
        connection.execute("INSERT INTO e VALUES (1, ?, ?)", (seq, BODY))
    return events / (time.perf_counter() - start)


def raw_batches(path: str, synchronous: str, events: int) -> float:
    connection = _raw(path, synchronous)
    start = time.perf_counter()
    for first in range(0, events, 64):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO e VALUES (1, ?, ?)", [(first + n, BODY) for n in range(64)])
        connection.execute("COMMIT")
    return events / (time.perf_counter() - start)


BODY = encode_event(MessageDelta(text="some words ", seq=1, at=1_700_000_000_000, source="bench"))


def _raw(path: str, synchronous: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE e (s INTEGER, q INTEGER, b BLOB, PRIMARY KEY (s, q)) WITHOUT ROWID")
    return connection


async def ours(path: str, synchronous: str, writers: int, events: int, apart: bool = False) -> tuple[float, float]:
    """Events per second, and the median wait of a writer in ms. `apart`: each writer has a session of its own."""
    settings = callslip.Settings(synchronous=synchronous)  # pyright: ignore
    waits: list[float] = []
    async with await callslip.open(path, settings) as ledger:

        async def write(number: int) -> None:
            session = ledger.session(f"writer-{number}" if apart else "together")
            for _ in range(events // writers):
                start = time.perf_counter()
                await session.append(MessageDelta(text="some words ", chunks="delta"))
                waits.append(time.perf_counter() - start)

        start = time.perf_counter()
        await asyncio.gather(*(write(number) for number in range(writers)))
        rate = len(waits) / (time.perf_counter() - start)
    return rate, sorted(waits)[len(waits) // 2] * 1e3


class SlowFile(apsw.VFSFile):
    def xSync(self, flags: int) -> None:
        time.sleep(LONGER)
        super().xSync(flags)


class SlowDisk(apsw.VFS):
    """The same disk, which takes a while longer to sync: group commit is for disks."""

    def __init__(self) -> None:
        super().__init__("slow", "", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
        return SlowFile("unix", name, flags)


LONGER = 0.001


def run(work: Any) -> Any:
    import uvloop

    return uvloop.run(work)


def bench_append() -> None:
    for synchronous in ("FULL", "NORMAL"):
        print(f"append, synchronous={synchronous}")
        with tempfile.TemporaryDirectory(dir=os.environ.get("CALLSLIP_BENCH_DIR")) as folder:
            place = Path(folder)
            single = max(raw_one_by_one(str(place / f"a{n}"), synchronous, 2_000) for n in range(3))
            limit = max(raw_batches(str(place / f"b{n}"), synchronous, 64_000) for n in range(3))
            alone, wait = max(run(ours(str(place / f"c{n}"), synchronous, 1, 2_000)) for n in range(3))
            many, group = max(run(ours(str(place / f"d{n}"), synchronous, 64, 64_000)) for n in range(5))
            apart, _ = max(run(ours(str(place / f"e{n}"), synchronous, 64, 64_000, True)) for n in range(3))
        say("bare SQLite, a commit per event", f"{single:,.0f}/s")
        say("bare SQLite, 64 events a commit (the limit)", f"{limit:,.0f}/s")
        say("ours, one writer, a commit per event", f"{alone:,.0f}/s  p50 {wait:.2f} ms", "")
        say("ours, 64 writers of one session", f"{many:,.0f}/s  p50 {group:.2f} ms")
        say("ours, 64 writers of 64 sessions", f"{apart:,.0f}/s")
        say(
            "ours with 64 writers, to our commit per event",
            f"{many / alone:.1f}x",
            ">= 20x" if synchronous == "FULL" else "",
        )
        say("ours with 64 writers, to a bare commit per event", f"{many / single:.1f}x")
        say("ours with 64 writers, to the limit", f"{many / limit:.2f}x")
    _append_slowly()


def _append_slowly() -> None:
    print(f"append, synchronous=FULL, on a disk that takes {LONGER * 1e3:g} ms longer to sync")
    disk = SlowDisk()
    with tempfile.TemporaryDirectory(dir=os.environ.get("CALLSLIP_BENCH_DIR")) as folder:
        alone, wait = max(run(ours(f"{folder}/a{n}", "FULL", 1, 500)) for n in range(3))
        many, group = max(run(ours(f"{folder}/b{n}", "FULL", 64, 32_000)) for n in range(3))
    disk.unregister()
    say("ours, one writer, a commit per event", f"{alone:,.0f}/s  p50 {wait:.2f} ms")
    say("ours, 64 writers of one session", f"{many:,.0f}/s  p50 {group:.2f} ms")
    say("ours with 64 writers, to our commit per event", f"{many / alone:.1f}x", ">= 20x")


# Opening


async def fill(path: str, session: str, events: int) -> None:
    async with await callslip.open(path, callslip.Settings(synchronous="NORMAL")) as ledger:
        drafts: list[Event] = []
        for body in log(events * 10 // 11, max(1, events // 40)):
            drafts.append(decode_event(body))
            if len(drafts) == 500:
                await ledger.log.append(session, drafts)
                drafts = []
        await ledger.log.append(session, drafts)
        await ledger.log.project(session)
        await ledger.log.append(session, [MessageDelta(text=f"{n} ", chunks="delta") for n in range(100)])


async def cold(path: str, session: str) -> tuple[float, float]:
    ledger = await callslip.open(path)
    start = time.perf_counter()
    snapshot = await ledger.snapshot(session, limit=50)
    opened = time.perf_counter() - start
    assert len(snapshot.entries) == 50
    start = time.perf_counter()
    await ledger.session(session).append(MessageDelta(text="more "))
    appended = time.perf_counter() - start
    await ledger.close()
    return opened, appended


def bench_open() -> None:
    print("a cold session of 200k events, to one of 1k")
    with tempfile.TemporaryDirectory() as folder:
        times: dict[int, tuple[float, float]] = {}
        for events in (1_000, 200_000):
            path = str(Path(folder) / f"{events}.db")
            run(fill(path, "s", events))
            runs = [run(cold(path, "s")) for _ in range(15)]
            times[events] = (min(r[0] for r in runs), sorted(r[1] for r in runs)[len(runs) // 2])
    for part, name in enumerate(("newest 50 entries", "first append")):
        small, large = times[1_000][part], times[200_000][part]
        say(name, f"{large / small:.2f}x  ({large * 1e3:.2f} / {small * 1e3:.2f} ms)", "<= 1.5x")


# Noticing


def bench_notice() -> None:
    print("an append in one process, seen by a follower in another")
    with tempfile.TemporaryDirectory() as folder:
        delays = run(_notice(str(Path(folder) / "n.db")))
    delays.sort()
    say(
        "p50 / p99", f"{delays[len(delays) // 2] * 1e3:.0f} / {delays[int(len(delays) * 0.99)] * 1e3:.0f} ms", "< 50 ms"
    )


async def _notice(path: str) -> list[float]:
    script = (
        "import asyncio, sys, time, callslip\n"
        "from callslip.model.events import MessageDelta\n"
        "async def main():\n"
        "    async with await callslip.open(sys.argv[1]) as ledger:\n"
        "        for n in range(100):\n"
        "            await asyncio.sleep(0.02)\n"
        "            await ledger.log.append('s', [MessageDelta(text=str(time.time()))])\n"
        "asyncio.run(main())\n"
    )
    delays: list[float] = []
    async with await callslip.open(path) as ledger:
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", script, path)
        async for batch in ledger.log.batches("s", 0):
            for stored in batch:
                assert isinstance(stored.event, MessageDelta)
                delays.append(time.time() - float(stored.event.text))
            if len(delays) >= 100:
                break
        await writer.wait()
    return delays


BENCHES = {
    "fold": bench_fold,
    "append": bench_append,
    "open": bench_open,
    "notice": bench_notice,
    "wrap": bench_wrap,
    "hooks": bench_hooks,
    "rows": bench_rows,
    "transcripts": bench_transcripts,
    "serve": bench_serve,
    "commands": bench_commands,
    "postgres": bench_postgres,
    "search": bench_search,
}


def main() -> None:
    wanted = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        sys.exit(f"no such measurement: {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    for name in wanted:
        BENCHES[name]()


if __name__ == "__main__":
    main()
