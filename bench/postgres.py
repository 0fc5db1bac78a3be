"""PostgreSQL: writes of one and of several processes against plain batches of the same rows, and delivery.

The peer writes the same bodies of events and the same rows of sessions with one prepared statement for each batch of
64: a group commit cannot be cheaper. The server is the one of the tests, with the settings of production, on a disk.
`python bench/postgres.py` runs it by itself; --quick takes half a minute, --write puts the result into docs/scaling.md.
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
from typing import Any, NamedTuple

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

DOCUMENT = Path(__file__).parent.parent / "docs" / "scaling.md"
WRITERS, BATCH = 64, 64
NOW_MS = 1_700_000_000_000
BODY = encode_event(MessageDelta(text="1700000000.0000000 ", seq=1, at=NOW_MS, source="bench", chunks="delta"))
RECORD = session_body(SessionRecord(name="s", id=1, last_seq=1, message="m", created_at=NOW_MS, updated_at=NOW_MS))
TOKEN = "a-token-for-the-measurements"
SETTLE_S = 0.02
DELIVERIES = 200
TOP, TOP_OF_SUMMARY = 14, 5
"""How many functions a profile shows, and how many of them the document has."""

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


class Lengths(NamedTuple):
    """How long and how often to measure."""

    seconds: float
    rounds: int


FULL, QUICK = Lengths(3.0, 3), Lengths(1.0, 1)


# Output


class Goal(NamedTuple):
    """What a figure should reach, and why it may not."""

    text: str
    is_met: bool
    cause: str = ""


class Findings:
    """What was measured. It is printed as it comes, and kept for the document."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, Goal | None]] = []
        self.profiles: list[str] = []

    def add(self, what: str, figure: str, goal: Goal | None = None) -> None:
        self.rows.append((what, figure, goal))
        say(what, figure, goal.text + ("" if goal.is_met else "  NOT MET") if goal else "")

    def failures(self) -> list[str]:
        """Return the goals that are not met, with what was measured and the cause."""
        return [
            f"{what}: {figure.replace('  ', ', ')}; the goal is {goal.text}. {goal.cause}".strip()
            for what, figure, goal in self.rows
            if goal is not None and not goal.is_met
        ]

    def __str__(self) -> str:
        lines = ["| measurement | result | goal | met |", "|---|---|---|---|"]
        for what, figure, goal in self.rows:
            shown = (goal.text, "yes" if goal.is_met else "**no**") if goal else ("", "")
            lines.append(f"| {what} | {figure.replace('  ', ', ')} | {shown[0]} | {shown[1]} |")
        failures = self.failures()
        parts = ["\n".join(lines)]
        parts.append("\n".join(["Goals that are not met:", "", *(f"- {failure}" for failure in failures)]))
        return "\n\n".join([*(parts if failures else [parts[0], "All goals are met."]), *self.profiles])


def write_figures(part: str, figures: str) -> None:
    """Replace the figures of one part of the document, which are between two marks."""
    text = DOCUMENT.read_text("utf-8")
    begin, end = f"<!-- {part} -->", f"<!-- end of {part} -->"
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        sys.exit(f"{DOCUMENT.name} has no lines {begin} and {end}")
    DOCUMENT.write_text(f"{before}{begin}\n\n{figures}\n\n{end}{after}", "utf-8")
    print(f"wrote {DOCUMENT}")


def read_options() -> tuple[bool, bool]:
    """Return whether to measure for a short time, and whether to write the document."""
    unknown = set(sys.argv[1:]) - {"--quick", "--write"}
    if unknown:
        sys.exit(f"no such option: {', '.join(sorted(unknown))}; there are --quick and --write")
    return "--quick" in sys.argv, "--write" in sys.argv


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


@contextlib.contextmanager
def serving(url: str, count: int) -> Generator[list[Place]]:
    """Run so many processes of `callslip serve` on a database."""
    command = [sys.executable, "-m", "callslip", "serve", "--port", "0", "--json", "--token", TOKEN, "--db", url]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        yield [stack.enter_context(served(command, Path(folder) / f"{number}.log")) for number in range(count)]


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


def bench_writes(server: PostgresServer, lengths: Lengths, findings: Findings) -> None:
    """Compare with plain batches, by turns."""
    for sessions in (1, 64):
        limits: list[float] = []
        rates: list[Result] = []
        for _ in range(lengths.rounds):
            url = server.create_database()
            limits.append(uvloop.run(write_plain(url, sessions, lengths.seconds)))
            rates.append(write_in_process(url, sessions, lengths.seconds))
            server.drop_database(url)
        limit, best = max(limits), max(rates, key=lambda result: result.events / result.seconds)
        rate = best.events / best.seconds
        what = "1 session" if sessions == 1 else f"{sessions} sessions"
        findings.add(f"plain batches of {BATCH} with head updates, {what} (the limit)", f"{limit:,.0f}/s")
        waits = f"p50 {percentile(best.waits, 0.5):.1f} p99 {percentile(best.waits, 0.99):.0f} ms"
        findings.add(f"ours, {WRITERS} writers on {what}", f"{rate:,.0f}/s  {waits}")
        findings.add(f"ours to the limit, {what}", f"{rate / limit:.2f}x", Goal(">= 0.4x", rate >= 0.4 * limit))


def write_in_processes(server: PostgresServer, sessions: list[list[str]], seconds: float) -> Total:
    """Write with 64 writers in each process; each has its list of sessions."""
    url = server.create_database()
    try:
        plans = [Plan(url=url, seconds=seconds, sessions=group, writers=WRITERS) for group in sessions]
        return run_processes(plans, lambda: [processor_seconds(server)])
    finally:
        server.drop_database(url)


REASONS = {
    "64 sessions, each of one process": "The processors of the machine are all in use.",
    "64 sessions, shared by all": "Every process writes to every session, so it waits for locks of the others and "
    "reads again what they changed. A load balancer that sends a session to one server avoids this.",
    "1 session, shared by all": "The session has one order: a group of a process waits for those of the others, and "
    "then reads the session again. A load balancer that sends a session to one server avoids this.",
}


def describe_cost(total: Total) -> str:
    """Return the processor time of an event: in the processes that write, and in PostgreSQL."""
    of_server, own = total.used
    return f"{own / total.rate * 1e6:.0f} us in the processes and {of_server / total.rate * 1e6:.0f} us in PostgreSQL"


def bench_processes(server: PostgresServer, lengths: Lengths, findings: Findings) -> None:
    """Compare three processes with one."""
    groups_of_three = ([names(21, group) for group in range(3)], [names(64)] * 3, [names(1)] * 3)
    ways = dict(zip(REASONS, groups_of_three, strict=True))
    one: dict[int, list[Total]] = {1: [], 64: []}
    three: dict[str, list[Total]] = {way: [] for way in ways}
    for _ in range(lengths.rounds):
        for count, totals in one.items():
            totals.append(write_in_processes(server, [names(count)], lengths.seconds))
        for way, groups in ways.items():
            three[way].append(write_in_processes(server, groups, lengths.seconds))
    for way, totals in three.items():
        best = max(totals, key=lambda total: total.rate)
        peer = max(one[1 if way.startswith("1 ") else 64], key=lambda total: total.rate)
        waits = f"p50 {percentile(best.waits, 0.5):.1f} p99 {percentile(best.waits, 0.99):.0f} ms"
        cause = f"{REASONS[way]} An event takes {describe_cost(best)}; with one process {describe_cost(peer)}."
        figure = f"{best.rate / peer.rate:.2f}x  {best.rate:,.0f}/s  {waits}"
        findings.add(f"three processes, {way}, to one", figure, Goal(">= 1x", best.rate >= peer.rate, cause))


# Delivery


def bench_delivery(server: PostgresServer, findings: Findings) -> None:
    """Measure how long an event takes from the call that appends it to a reader in another process."""
    url = server.create_database()
    seconds = DELIVERIES * SETTLE_S
    writer = Plan(url=url, seconds=seconds, sessions=["s"], writers=1, pause=SETTLE_S)
    reader = Plan(url=url, seconds=seconds, readers=["s"])
    total = run_processes([writer, reader])
    add_delays(findings, "append to delivery in another process, p50 / p99", total.deliveries, total.waits)
    server.drop_database(url)


def add_delays(
    findings: Findings, what: str, delays: list[float], waits: list[float], *, has_goal: bool = True
) -> None:
    """Add how long events took to a reader. The writer waited a part of that for its own answer."""
    middle = percentile(delays, 0.5)
    cause = f"The write itself took {percentile(waits, 0.5):.1f} ms (p50)."
    goal = Goal("p50 < 5 ms", middle < 5, cause) if has_goal else None
    findings.add(what, f"{middle:.1f} / {percentile(delays, 0.99):.1f} ms", goal)


async def _deliver(writer: Place, reader: Place) -> tuple[list[float], list[float]]:
    """Append events through one server. Return how many ms each takes to a stream of the other, and to its answer."""
    began: dict[int, float] = {}
    answered: dict[int, float] = {}
    ended: dict[int, float] = {}
    async with (
        callslip.connect(writer.url, token=TOKEN) as first,
        callslip.connect(reader.url, token=TOKEN) as second,
    ):

        async def append() -> int:
            start = time.perf_counter()
            seq = (await first.log.append("s", [MessageDelta(text="x", chunks="delta")]))[-1].seq
            began[seq], answered[seq] = start, time.perf_counter()
            return seq

        async def follow() -> None:
            async with contextlib.aclosing(second.follow("s")) as events:
                async for event in events:
                    ended[event.seq] = time.perf_counter()

        async def received(seq: int) -> None:
            async with asyncio.timeout(10):
                while seq not in ended:
                    await asyncio.sleep(SETTLE_S / 10)

        first_seq = await append()
        task = asyncio.create_task(follow())
        await received(last_seq := first_seq)
        for _ in range(DELIVERIES):
            await asyncio.sleep(SETTLE_S)
            last_seq = await append()
        await received(last_seq)
        task.cancel()
        await asyncio.wait([task])
    del began[first_seq]
    delays = [(ended[seq] - start) * 1000 for seq, start in began.items()]
    return delays, [(answered[seq] - start) * 1000 for seq, start in began.items()]


def bench_servers(server: PostgresServer, findings: Findings) -> None:
    """Measure how long an event takes from the request that appends it at one server to a stream of another one."""
    url = server.create_database()
    with serving(url, 2) as places:
        same = uvloop.run(_deliver(places[0], places[0]))
        other = uvloop.run(_deliver(*places))
    add_delays(findings, "request to delivery by the same server, p50 / p99", *same, has_goal=False)
    add_delays(findings, "request to delivery by another server, p50 / p99", *other)
    server.drop_database(url)


# Where the time goes


def bench_profile(server: PostgresServer, lengths: Lengths, findings: Findings) -> None:
    """Print the functions of a process that writes with the most time of their own, per event."""
    for sessions in (1, 64):
        url = server.create_database()
        before, own_before = processor_seconds(server), time.process_time()
        result = write_in_process(url, sessions, lengths.seconds)
        of_server, own = processor_seconds(server) - before, time.process_time() - own_before
        what = "1 session" if sessions == 1 else f"{sessions} sessions"
        share = of_server / (of_server + own)
        figures = f"{own / result.events * 1e6:.1f} / {of_server / result.events * 1e6:.1f} us"
        findings.add(f"processor time per event, {what}: Python / server", figures)
        findings.add(f"share of the server, {what}", f"{share:.0%}")
        profile = cProfile.Profile(time.process_time)  # Without the time that the process waits.
        profile.enable()
        result = write_in_process(url, sessions, lengths.seconds)
        profile.disable()
        rows = _profile_rows(profile, result.events)
        print("    own us per event (with the cost of the profiler), calls per event, function")
        for own_us, calls, function in rows[:TOP]:
            print(f"    {own_us:7.2f} {calls:7.2f}  {function}")
        title = f"Functions with the most time of their own, {what} (us and calls per event, with the profiler)"
        lines = [f"| {own_us:.2f} | {calls:.2f} | `{function}` |" for own_us, calls, function in rows[:TOP_OF_SUMMARY]]
        findings.profiles.append("\n".join([f"**{title}**", "", "| us | calls | function |", "|---|---|---|", *lines]))
        server.drop_database(url)


def _profile_rows(profile: cProfile.Profile, events: int) -> list[tuple[float, float, str]]:
    """Return the own time in us and the calls per event of each function, the largest first."""
    stats: Any = pstats.Stats(profile).stats  # pyright: ignore
    rows = sorted(((own, calls, place) for place, (_, calls, own, _, _) in stats.items()), reverse=True)
    return [
        (own / events * 1e6, calls / events, f"{Path(file).name}:{line} {function}" if line else function)
        for own, calls, (file, line, function) in rows
    ]


def bench_postgres(lengths: Lengths = FULL, *, writes: bool = False) -> None:
    """Measure everything, name the goals that are not met, and write the document if wanted."""
    print(f"PostgreSQL, {WRITERS} writers of one event at a time")
    findings = Findings()
    with durable_server() as server:
        machine = describe_machine(server)
        print(f"  {machine}")
        bench_writes(server, lengths, findings)
        bench_processes(server, lengths, findings)
        bench_delivery(server, findings)
        bench_servers(server, findings)
        bench_profile(server, lengths, findings)
    failures = findings.failures()
    print("  goals that are not met:" if failures else "  all goals are met")
    for failure in failures:
        print(f"  - {failure}")
    if writes:
        command = "python bench/postgres.py" + (" --quick" if lengths is QUICK else "")
        write_figures("goals", f"Measured by `{command}` with {machine}.\n\n{findings}")


def main() -> None:
    is_quick, writes = read_options()
    bench_postgres(QUICK if is_quick else FULL, writes=writes)


if __name__ == "__main__":
    main()
