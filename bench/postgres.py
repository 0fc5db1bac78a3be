"""PostgreSQL: writes of one and of several processes against plain batches of the same rows, and delivery.

The peer writes the same bodies of events and the same rows of sessions with one prepared statement for each batch of
64: a group commit cannot be cheaper. The server is the one of the tests, with the settings of production, on a disk.
`python bench/postgres.py` runs it by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import os
import platform
import pstats
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # The server is started by the tests' own module.

import asyncpg
import uvloop
from exchange import Place, served
from ledger_process import Plan, Result, Total, percentile, run_plan, run_processes
from measure import say

import callslip
from callslip.model.events import MessageDelta, encode_event
from callslip.model.records import SessionRecord
from callslip.store.postgres_rows import session_body
from tests.support.postgres import PostgresServer

WRITERS, BATCH = 64, 64
SECONDS, ROUNDS = 3.0, 3
NOW_MS = 1_700_000_000_000
BODY = encode_event(MessageDelta(text="1700000000.0000000 ", seq=1, at=NOW_MS, source="bench", chunks="delta"))
RECORD = session_body(SessionRecord(name="s", id=1, last_seq=1, message="m", created_at=NOW_MS, updated_at=NOW_MS))
TOKEN = "a-token-for-the-measurements"
SETTLE_S = 0.02
DELIVERIES = 200
TOP = 14
"""How many functions a profile shows."""

PLAIN = """
CREATE TABLE plain_events (session bigint, seq bigint, body bytea, PRIMARY KEY (session, seq));
CREATE TABLE plain_sessions (id bigint PRIMARY KEY, rev bigint, head bigint, updated_at bigint, record bytea)
  WITH (fillfactor = 50);
INSERT INTO plain_sessions SELECT n, 1, 0, 0, '' FROM generate_series(1, 64) n;
"""
PLAIN_BATCH = """
WITH added AS (INSERT INTO plain_events SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]))
UPDATE plain_sessions s SET rev = s.rev + 1, head = u.head, updated_at = u.updated_at, record = u.record
FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]) AS u(id, head, updated_at, record) WHERE s.id = u.id
"""


# The server


@contextlib.contextmanager
def durable_server() -> Generator[PostgresServer]:
    """A server as in production, but for its size: everything is synced."""
    settings = {"shared_buffers": "256MB", "max_wal_size": "2GB", "autovacuum": "on"}
    with PostgresServer(durable=True, settings=settings) as server:
        yield server


def processor_seconds(server: PostgresServer) -> float:
    """Return the processor time of all processes of a server, also of those that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()
            if server.pid in (int(fields[1]), int(path.parent.name)):
                ticks += int(fields[11]) + int(fields[12])
                if int(path.parent.name) == server.pid:
                    ticks += int(fields[13]) + int(fields[14])
    return ticks / os.sysconf("SC_CLK_TCK")


def describe_machine(server: PostgresServer) -> str:
    """Return what the figures depend on."""
    ((version,),) = server.execute("SHOW server_version")
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} processors ({platform.machine()}), load {load:.1f} at the start, Python "
        f"{platform.python_version()}, PostgreSQL {version} on the same machine, fsync on"
    )


# Writing


async def write_plain(url: str, sessions: int, seconds: float) -> float:
    """Return how many rows a second one connection inserts, in batches."""
    connection: Any = await asyncpg.connect(url)
    await connection.execute("DROP TABLE IF EXISTS plain_events, plain_sessions")
    await connection.execute(PLAIN)
    statement = await connection.prepare(PLAIN_BATCH)
    ids = list(range(1, sessions + 1))
    heads = dict.fromkeys(ids, 0)
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        written = [ids[number % sessions] for number in range(BATCH)]
        seqs: list[int] = []
        for session in written:
            heads[session] += 1
            seqs.append(heads[session])
        values = [heads[session] for session in ids]
        rows = (ids, values, [NOW_MS + count] * sessions, [RECORD] * sessions)
        await statement.fetch(written, seqs, [BODY] * BATCH, *rows)
        count += BATCH
    rate = count / (time.perf_counter() - began)
    await connection.close()
    return rate


def names(sessions: int, group: int = 0) -> list[str]:
    """Return names of sessions; those of another group are others."""
    return [f"s{group}-{number}" for number in range(sessions)]


def write_in_process(url: str, sessions: int, seconds: float) -> Result:
    """Write with 64 writers in this process."""

    async def start() -> None: ...

    plan = Plan(url=url, seconds=seconds, sessions=names(sessions), writers=WRITERS)
    return uvloop.run(run_plan(plan, start))


def bench_writes(server: PostgresServer) -> None:
    """Compare with plain batches, by turns."""
    for sessions in (1, 64):
        limits: list[float] = []
        rates: list[Result] = []
        for _ in range(ROUNDS):
            url = server.create_database()
            limits.append(uvloop.run(write_plain(url, sessions, SECONDS)))
            rates.append(write_in_process(url, sessions, SECONDS))
            server.drop_database(url)
        limit, best = max(limits), max(rates, key=lambda result: result.events / result.seconds)
        rate = best.events / best.seconds
        what = "1 session" if sessions == 1 else f"{sessions} sessions"
        say(f"plain batches of {BATCH} with head updates, {what} (the limit)", f"{limit:,.0f}/s")
        waits = f"p50 {percentile(best.waits, 0.5):.1f} p99 {percentile(best.waits, 0.99):.0f} ms"
        say(f"ours, {WRITERS} writers on {what}", f"{rate:,.0f}/s  {waits}")
        say("ours to the limit", f"{rate / limit:.2f}x", ">= 0.4x")


def write_in_processes(server: PostgresServer, sessions: list[list[str]], seconds: float = SECONDS) -> Total:
    """Write with 64 writers in each process; each has its list of sessions."""
    url = server.create_database()
    try:
        plans = [Plan(url=url, seconds=seconds, sessions=group, writers=WRITERS) for group in sessions]
        return run_processes(plans)
    finally:
        server.drop_database(url)


def bench_processes(server: PostgresServer) -> None:
    """Compare three processes with one."""
    ways = {
        "64 sessions, each of one process": [names(21, group) for group in range(3)],
        "64 sessions, shared by all": [names(64)] * 3,
        "1 session, shared by all": [names(1)] * 3,
    }
    one = {count: [] for count in (1, 64)}
    three: dict[str, list[Total]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for count, totals in one.items():
            totals.append(write_in_processes(server, [names(count)]))
        for way, groups in ways.items():
            three[way].append(write_in_processes(server, groups))
    for way, totals in three.items():
        best = max(totals, key=lambda total: total.rate)
        peer = max(total.rate for total in one[1 if way.startswith("1 ") else 64])
        waits = f"p99 {percentile(best.waits, 0.99):.0f} ms"
        goal = ">= 1x" if "each of one" in way else ""
        say(f"three processes, {way}, to one", f"{best.rate / peer:.2f}x  {best.rate:,.0f}/s {waits}", goal)


# Delivery


def bench_delivery(server: PostgresServer) -> None:
    """Measure how long an event takes from the call that appends it to a reader in another process."""
    url = server.create_database()
    seconds = DELIVERIES * SETTLE_S
    writer = Plan(url=url, seconds=seconds, sessions=["s"], writers=1, pause=SETTLE_S)
    reader = Plan(url=url, seconds=seconds, readers=["s"])
    total = run_processes([writer, reader])
    figures = f"{percentile(total.deliveries, 0.5):.1f} / {percentile(total.deliveries, 0.99):.1f} ms"
    say("append to delivery in another process, p50 / p99", figures, "p50 < 5 ms")
    server.drop_database(url)


async def _deliver(writer: Place, reader: Place) -> list[float]:
    """Append events through one server, and return how many ms each takes to a stream of the other server."""
    delays: list[float] = []
    async with (
        callslip.connect(writer.url, token=TOKEN) as first,
        callslip.connect(reader.url, token=TOKEN) as second,
    ):
        await first.log.append("s", [MessageDelta(text="x", chunks="delta")])
        received: asyncio.Queue[float] = asyncio.Queue()

        async def follow() -> None:
            async with contextlib.aclosing(second.follow("s")) as events:
                async for _ in events:
                    received.put_nowait(time.perf_counter())

        task = asyncio.create_task(follow())
        await received.get()
        for _ in range(DELIVERIES):
            await asyncio.sleep(SETTLE_S)
            began = time.perf_counter()
            await first.log.append("s", [MessageDelta(text="x", chunks="delta")])
            delays.append((await received.get() - began) * 1000)
        task.cancel()
        await asyncio.wait([task])
    return delays


def bench_servers(server: PostgresServer) -> None:
    """Measure how long an event takes from the request that appends it at one server to a stream of another one."""
    url = server.create_database()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "callslip", "serve", "--port", "0", "--json", "--token", TOKEN, "--db", url]
        places = [stack.enter_context(served(command, Path(folder) / f"{name}.log")) for name in ("a", "b")]
        same = uvloop.run(_deliver(places[0], places[0]))
        other = uvloop.run(_deliver(*places))
    for where, delays in (("the same server", same), ("another server", other)):
        figures = f"{percentile(delays, 0.5):.1f} / {percentile(delays, 0.99):.1f} ms"
        goal = "p50 < 5 ms" if delays is other else ""
        say(f"request to delivery by {where}, p50 / p99", figures, goal)
    server.drop_database(url)


# Where the time goes


def bench_profile(server: PostgresServer) -> None:
    """Print the functions of a process that writes with the most time of their own, per event."""
    for sessions in (1, 64):
        url = server.create_database()
        before, own_before = processor_seconds(server), time.process_time()
        result = write_in_process(url, sessions, SECONDS)
        of_server, own = processor_seconds(server) - before, time.process_time() - own_before
        share = of_server / (of_server + own)
        say(
            f"processor time per event, {sessions} sessions: Python / server",
            f"{own / result.events * 1e6:.1f} / {of_server / result.events * 1e6:.1f} us",
        )
        say("share of the server", f"{share:.0%}")
        profile = cProfile.Profile(time.process_time)  # Without the time that the process waits.
        profile.enable()
        result = write_in_process(url, sessions, SECONDS)
        profile.disable()
        _print_profile(profile, result.events)
        server.drop_database(url)


def _print_profile(profile: cProfile.Profile, events: int) -> None:
    print("    own us per event (with the cost of the profiler), calls per event, function")
    stats: Any = pstats.Stats(profile).stats  # pyright: ignore
    rows = sorted(((own, calls, place) for place, (_, calls, own, _, _) in stats.items()), reverse=True)
    for own, calls, (file, line, function) in rows[:TOP]:
        where = f"{Path(file).name}:{line} {function}" if line else function
        print(f"    {own / events * 1e6:7.2f} {calls / events:7.2f}  {where}")


def bench_postgres() -> None:
    print(f"PostgreSQL, {WRITERS} writers of one event at a time")
    with durable_server() as server:
        print(f"  {describe_machine(server)}")
        bench_writes(server)
        bench_processes(server)
        bench_delivery(server)
        bench_servers(server)
        bench_profile(server)


if __name__ == "__main__":
    bench_postgres()
