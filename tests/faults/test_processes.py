"""Test several processes on one file, some of which are killed: no acknowledged event is lost or delivered twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support.invariants import find_faults, read_events, session_names, start_program

MEGABYTE = 2**20


async def follow(ledger: LocalLedger, session: str, seen: list[tuple[str, int, float]]) -> None:
    """Append every delivered event of a session to `seen`, with the time, until cancelled."""
    async for batch in ledger.log.batches(session):
        now = time.time()
        seen += [(session, stored.event.seq, now) for stored in batch]


async def record_sizes(path: Path, sizes: list[int]) -> None:
    while True:
        await asyncio.sleep(0.02)
        if path.exists():
            sizes.append(path.stat().st_size)


def format_percentiles(values: list[float]) -> str:
    ordered = sorted(values) or [0.0]
    return ", ".join(
        f"p{p} {ordered[min(len(ordered) - 1, len(ordered) * p // 100)] * 1000:.1f} ms" for p in (50, 95, 100)
    )


@pytest.mark.anyio
@pytest.mark.chaos
async def test_four_processes_write_and_a_fifth_follows(db: str, tmp_path: Path, scale: int) -> None:
    """C6, C8: no writer gets an error, no event is lost or delivered twice, and the WAL stays small."""
    seconds = min(3 * scale, 20)
    sizes: list[int] = []
    seen: list[tuple[str, int, float]] = []
    async with await callslip.open(db) as ledger:
        writers = [start_program("write", db, number, seconds) for number in range(4)]
        sessions = ["shared", *(f"{kind}-{number}" for kind in ("own", "calls") for number in range(4))]
        followers = [asyncio.create_task(follow(ledger, session, seen)) for session in sessions]
        followers.append(asyncio.create_task(record_sizes(tmp_path / "ledger.db-wal", sizes)))
        outputs = await asyncio.gather(*(asyncio.to_thread(writer.communicate) for writer in writers))
        last_seqs = {row.name: row.last_seq for row in (await ledger.sessions()).items}
        async with asyncio.timeout(10):
            while len(seen) < sum(last_seqs.values()):
                await asyncio.sleep(0.01)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

        assert [errors for _, errors in outputs] == [""] * 4
        reports = [json.loads(out.partition("\n")[2]) for out, _ in outputs]
        assert [report["errors"] for report in reports] == [[]] * 4
        acknowledged = {
            (session, seq): (text, at) for report in reports for session, seq, text, at in report["acknowledged"]
        }
        assert len(acknowledged) == sum(len(report["acknowledged"]) for report in reports), (
            "two events have the same seq"
        )
        assert await _find_missing(ledger, acknowledged) == []
        assert [(session, seq) for session, seq, _ in sorted(seen)] == [
            (session, seq) for session in sorted(last_seqs) for seq in range(1, last_seqs[session] + 1)
        ]
        assert await find_faults(ledger) == []

    waits = [wait for report in reports for wait in report["waits"]]
    delays = [at - acknowledged[session, seq][1] for session, seq, at in seen if (session, seq) in acknowledged]
    print(f"\n4 processes, {seconds} s: {sum(last_seqs.values())} events, {len(waits) / seconds:.0f} messages/s")
    print(f"a write took {format_percentiles(waits)}; delivery to the follower took {format_percentiles(delays)}")
    print(f"WAL at most {max(sizes) / MEGABYTE:.1f} MB")
    assert max(sizes) < 64 * MEGABYTE


async def _find_missing(ledger: LocalLedger, acknowledged: dict[tuple[str, int], tuple[str, float]]) -> list[Any]:
    logs = {
        session: {event.seq: event for event in await read_events(ledger, session)}
        for session in await session_names(ledger)
    }
    return [
        (session, seq, text)
        for (session, seq), (text, _) in acknowledged.items()
        if text not in (getattr(logs[session].get(seq), name, None) for name in ("text", "output"))
        and text != str(getattr(logs[session].get(seq), "output", None))
    ]


class WriterProcess:
    """A writing process, and the lines it printed before it was killed."""

    def __init__(self, db: str, name: str) -> None:
        self.process = start_program("crash", db, name, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()

    def kill(self) -> list[list[Any]]:
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGKILL)
        lines = self.process.stdout.read().split("\n")
        self.process.stdout.close()
        assert self.process.wait() == -signal.SIGKILL
        return [json.loads(line) for line in lines if line.endswith("]")]


async def check_ledger(db: str, lines: list[list[Any]]) -> None:
    """Check that every printed line is true, no call is open, and the ledger is sound."""
    async with await callslip.open(db) as ledger:
        # Without waiting for a lease, since the owner is known to be dead.
        assert await ledger.log.store.open_calls() == []
        logs = {session: await read_events(ledger, session) for session in await session_names(ledger)}
        for line in lines:
            if line[0] == "event":
                event = logs[line[1]][line[2] - 1]
                assert event.seq == line[2] and isinstance(event, ev.MessageUser | ev.MessageDelta)
                assert isinstance(event, ev.MessageDelta) or event.text == line[3]
            elif line[0] == "ended":
                assert (await ledger.find_call(line[1])).state == "completed"
            elif line[0] == "open":
                row = await ledger.find_call(line[1])
                assert (row.state, row.reason) == ("lost", "the process that ran this call ended")
        assert await find_faults(ledger) == []


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_process_killed_at_any_moment_loses_nothing_acknowledged(db: str, scale: int) -> None:
    """C5, C6, C8: after SIGKILL every acknowledged event is stored, and the calls of the process are lost at once."""
    rng = random.Random(3)
    lines: list[list[Any]] = []
    seen: set[str] = set()
    kills = 0
    while kills < (5 if scale == 1 else 50) or not {"event", "open"} <= seen:
        writer = WriterProcess(db, str(kills))
        await asyncio.sleep(rng.random() * 0.25)
        new_lines = writer.kill()
        kills += 1
        seen |= {line[0] for line in new_lines}
        lines = [*lines[-200:], *new_lines]
        await check_ledger(db, lines)


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_process_can_write_while_others_are_killed(db: str, scale: int) -> None:
    """C5, C8: a process killed in a transaction blocks no other, and its calls end."""
    rng = random.Random(4)
    async with await callslip.open(db) as ledger:
        seen: list[tuple[str, int, float]] = []
        follower = asyncio.create_task(follow(ledger, "shared", seen))
        acknowledged: dict[int, str] = {}

        async def write() -> None:
            number = 0
            while True:
                number += 1
                (event,) = await ledger.log.append("shared", [ev.MessageUser(text=f"living {number}")])
                acknowledged[event.seq] = f"living {number}"
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        open_calls: list[str] = []
        for number in range(3 if scale == 1 else 30):
            writer = await asyncio.to_thread(WriterProcess, db, f"v{number}")
            before = len(acknowledged)
            await asyncio.sleep(0.05 + rng.random() * 0.1)
            lines = await asyncio.to_thread(writer.kill)
            open_calls += [line[1] for line in lines if line[0] == "open"]
            assert len(acknowledged) > before
        async with asyncio.timeout(20):
            for call in open_calls:
                assert (await ledger.wait(call)).state == "lost"
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        last_seq = (await ledger.find_session("shared")).last_seq
        async with asyncio.timeout(10):
            while len(seen) < last_seq:
                await asyncio.sleep(0.01)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        assert [seq for _, seq, _ in seen] == list(range(1, last_seq + 1))
        log = await read_events(ledger, "shared")
        assert all(log[seq - 1].text == text for seq, text in acknowledged.items())
        assert await find_faults(ledger) == []


@pytest.mark.anyio
async def test_the_calls_of_a_zombie_process_are_lost(db: str) -> None:
    """C5: a killed process that its parent has not reaped does not keep its calls running."""
    writer = WriterProcess(db, "zombie")
    assert writer.process.stdout is not None
    try:
        while "open" not in writer.process.stdout.readline():
            pass
        os.kill(writer.process.pid, signal.SIGKILL)
        while Path(f"/proc/{writer.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            await asyncio.sleep(0.01)
        async with await callslip.open(db) as ledger:
            assert await ledger.log.store.open_calls() == []
            assert {row.state for row in (await ledger.calls()).items} <= TERMINAL_STATES
    finally:
        writer.kill()


@pytest.mark.anyio
@pytest.mark.chaos
async def test_many_processes_can_create_the_file_at_once(tmp_path: Path, scale: int) -> None:
    """The first one creates the tables, and all of them write."""
    for number in range(2 * min(scale, 10)):
        db = f"sqlite:///{tmp_path / str(number) / 'ledger.db'}"
        writers = [start_program("write", db, n, 0.05) for n in range(6)]
        outputs = await asyncio.gather(*(asyncio.to_thread(writer.communicate) for writer in writers))
        assert [(writer.returncode, errors) for writer, (_, errors) in zip(writers, outputs, strict=True)] == [
            (0, "")
        ] * 6
        async with await callslip.open(db) as ledger:
            assert await find_faults(ledger) == []


@pytest.mark.anyio
async def test_a_writer_waits_for_the_lock_and_readers_do_not(db: str, tmp_path: Path) -> None:
    """While another process writes, writing waits without an error and reading works."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.MessageUser(text="before")])
        holder = subprocess.Popen(
            [sys.executable, "-c", LOCK_HOLDER, str(tmp_path / "ledger.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            assert holder.stdout is not None and holder.stdin is not None
            await asyncio.to_thread(holder.stdout.readline)
            writing = asyncio.create_task(ledger.log.append("a", [ev.MessageUser(text="waited")]))
            await asyncio.wait([writing], timeout=0.2)
            assert not writing.done() and [event.text for event in await read_events(ledger, "a")] == ["before"]
            holder.stdin.close()
            async with asyncio.timeout(10):
                await writing
        assert [event.text for event in await read_events(ledger, "a")] == ["before", "waited"]


LOCK_HOLDER = """
import sys
from callslip.store.write_lock import WriteLock
with WriteLock(sys.argv[1]).turn():
    print("holding", flush=True)
    sys.stdin.read()
"""
