"""The capacity model of PostgreSQL: what a call takes; throughput and latency against sessions, readers and history.

Servers and readers are measured with `callslip serve` processes and HTTP clients. What a database takes beyond that is
measured without HTTP: several processes, each with a ledger of its own as a server has it. All share one PostgreSQL
server and this machine. Curves are fitted to the figures. `make bench-scale`; --quick takes two minutes, --write
puts the result into docs/scaling.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import uvloop
from ledger_process import Plan, Total, percentile, run_processes
from postgres import (
    TOKEN,
    WRITERS,
    describe_machine,
    durable_server,
    names,
    processor_seconds,
    read_options,
    serving,
    write_figures,
)

import callslip
from callslip.model.events import Alias, CallCompleted, CallProposed, CallStarted, Draft, MessageDelta
from tests.support.postgres import PostgresServer, database_name

CHUNKS_PER_CALL = 20
BATCH = 20
TEXT = "some words, as a model says them "
OUTPUT = "README.md\nsrc\ntests\n" * 20
PARTITIONS = 16
PACE_S, PACED_WRITERS = 0.02, 10
"""The time between two events of a writer whose readers are measured, and how many writers and sessions there are."""
SERVERS = (1, 2, 3)
TABLES = ("events", "calls", "aliases", "keys", "sessions", "entries", "pieces", "checkpoints")


class Lengths(NamedTuple):
    """How long and how much to measure."""

    seconds: float
    rounds: int
    calls: int
    sessions: Sequence[int]
    readers: Sequence[int]
    history: Sequence[int]


FULL = Lengths(3.0, 2, 20_000, (2, 8, 32, 128, 512), (1, 10, 50, 125, 250), (1_000, 10_000, 100_000))
QUICK = Lengths(1.0, 1, 1_000, (2, 16, 64), (1, 10, 50), (1_000, 3_000, 10_000))


# Curves


class Curve(NamedTuple):
    """A fitted curve: its formula, and the share of the variance that it explains, None for two points."""

    formula: str
    r2: float | None

    def __str__(self) -> str:
        return self.formula if self.r2 is None else f"{self.formula} (R² {self.r2:.2f})"


def _fit(xs: list[float], ys: list[float]) -> tuple[float, float, float | None]:
    """Return intercept, slope and R² of the line with the least squares. A line through two points says nothing."""
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = middle_y - slope * middle_x
    total = sum((y - middle_y) ** 2 for y in ys)
    left = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return intercept, slope, (1 - left / total if total else 1.0) if len(xs) > 2 else None


def show(value: float) -> str:
    """Return a number with three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def fit_power(xs: Sequence[float], ys: Sequence[float], name: str, unit: str) -> Curve:
    """Fit a * x^b: an exponent near 0 means that the figure does not depend on x."""
    intercept, slope, r2 = _fit([math.log(x) for x in xs], [math.log(y) for y in ys])
    return Curve(f"{show(math.exp(intercept))} {unit} x {name}^{slope:.2f}", r2)


def fit_line(xs: Sequence[float], ys: Sequence[float], name: str, unit: str) -> Curve:
    """Fit a + b * x."""
    intercept, slope, r2 = _fit(list(map(float, xs)), list(map(float, ys)))
    return Curve(f"{show(intercept)} {unit} + {show(slope)} {unit} x {name}", r2)


class Table(NamedTuple):
    """Rows of figures under a sentence that says what they are, and the curves that were fitted to them."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    curves: Sequence[str] = ()

    def __str__(self) -> str:
        lines = [f"**{self.title}**", "", f"| {' | '.join(self.head)} |", f"|{'---|' * len(self.head)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        lines += ["", *(f"{curve}  " for curve in self.curves)] if self.curves else []
        return "\n".join(line.rstrip() if index else line for index, line in enumerate(lines))


# What a call takes


async def write_calls(url: str, calls: int) -> int:
    """Write calls as a coding agent makes them, with streamed text between them; return the number of events."""
    async with await callslip.open(url) as ledger:
        sessions = names(20)

        async def write(name: str, count: int) -> None:
            for number in range(count):
                aliases = (Alias("bench", f"{calls}-{number}"),)
                chunks = [Draft(MessageDelta(text=TEXT, chunks="delta")) for _ in range(CHUNKS_PER_CALL)]
                await ledger.log.append(name, chunks)
                proposal = CallProposed(tool_name="Bash", title="ls -la", input={"command": "ls -la"}, aliases=aliases)
                await ledger.log.append(name, [Draft(proposal)])
                await ledger.log.append(name, [Draft(CallStarted(aliases=aliases))])
                await ledger.log.append(name, [Draft(CallCompleted(aliases=aliases, output=OUTPUT))])
            await ledger.log.project(name)

        await asyncio.gather(*(write(name, calls // len(sessions)) for name in sessions))
        return sum([row.last_seq for row in (await ledger.sessions(limit=100)).items])


class Costs(NamedTuple):
    """What a number of calls took."""

    calls: int
    events: int
    rows: dict[str, int]
    bytes: dict[str, int]
    index_bytes: dict[str, int]
    wal_bytes: int
    process_s: float
    server_s: float


def measure_calls(server: PostgresServer, calls: int) -> Costs:
    """Write calls, and read the sizes of all tables."""
    url = server.create_database()
    database = database_name(url)
    uvloop.run(write_calls(url, 20))  # The tables exist, and the processor time of the start is not counted.
    read = {
        "rows": "SELECT count(*) FROM {}",
        "bytes": "SELECT pg_table_size('{}')",
        "index_bytes": "SELECT pg_indexes_size('{}')",
    }

    def sizes(kind: str) -> dict[str, int]:
        return {table: server.execute(read[kind].format(table), database=database)[0][0] for table in TABLES}

    server.execute("CHECKPOINT")
    before = {kind: sizes(kind) for kind in read}
    ((position,),) = server.execute("SELECT pg_current_wal_lsn()::text")
    process_s, server_s = time.process_time(), processor_seconds(server)
    events = uvloop.run(write_calls(url, calls)) - (CHUNKS_PER_CALL + 3) * 20
    process_s, server_s = time.process_time() - process_s, processor_seconds(server) - server_s
    ((wal,),) = server.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), $1::text::pg_lsn)::bigint", position)
    server.execute("VACUUM ANALYZE", database=database)
    after = {kind: sizes(kind) for kind in read}
    change = {kind: {table: after[kind][table] - before[kind][table] for table in TABLES} for kind in read}
    costs = Costs(calls, events, change["rows"], change["bytes"], change["index_bytes"], wal, process_s, server_s)
    server.drop_database(url)
    return costs


def costs_tables(costs: Costs) -> list[Table]:
    calls = costs.calls
    total = sum(costs.bytes.values()) + sum(costs.index_bytes.values())
    rows = [
        (
            f"`{table}`",
            f"{costs.rows[table] / calls:.2f}",
            f"{costs.bytes[table] / calls:,.0f}",
            f"{costs.index_bytes[table] / calls:,.0f}",
        )
        for table in TABLES
    ]
    title = (
        f"Rows and bytes for one call with {CHUNKS_PER_CALL} chunks of text, {len(OUTPUT)} bytes of output and "
        f"{costs.events / calls:.0f} events"
    )
    sizes = Table(title, ("table", "rows", "bytes", "bytes of indexes"), rows)
    event_bytes = (costs.bytes["events"] + costs.index_bytes["events"]) / costs.events
    million = calls / 1e6
    figures = [
        ("disk of the database", f"{total / million / 2**30:,.1f} GiB"),
        ("of that, the log, for each event", f"{event_bytes:,.0f} bytes"),
        ("write-ahead log (archive, network of each standby)", f"{costs.wal_bytes / million / 2**30:,.1f} GiB"),
        ("processor time of the processes that write, without HTTP", f"{costs.process_s / million:,.0f} s"),
        ("processor time of PostgreSQL", f"{costs.server_s / million:,.0f} s"),
    ]
    return [sizes, Table("A million such calls", ("resource", "amount"), figures)]


# Curves of throughput and latency


def best_of(rounds: int, run: Callable[[], Total]) -> Total:
    """Return the fastest of several runs."""
    return max((run() for _ in range(rounds)), key=lambda total: total.rate)


def with_database(server: PostgresServer, plans: Callable[[str], list[Plan]]) -> Total:
    """Run processes with ledgers of their own on a new database."""
    url = server.create_database()
    try:
        return run_processes(plans(url))
    finally:
        server.drop_database(url)


def with_servers(server: PostgresServer, count: int, plans: Callable[[list[str]], list[Plan]]) -> Total:
    """Run clients of `callslip serve` processes on a new database, and count the processors that all use."""
    url = server.create_database()
    try:
        with serving(url, count) as places:

            def meter() -> list[float]:
                return [sum(place.processor() for place in places), processor_seconds(server)]

            return run_processes(plans([place.url for place in places]), meter)
    finally:
        server.drop_database(url)


def waits(total: Total) -> tuple[str, str]:
    return f"{percentile(total.waits, 0.5):.1f}", f"{percentile(total.waits, 0.99):.0f}"


def deliveries(total: Total) -> tuple[str, str]:
    return f"{percentile(total.deliveries, 0.5):.1f}", f"{percentile(total.deliveries, 0.99):.0f}"


def rate_and_wait(xs: Sequence[float], totals: Sequence[Total], name: str) -> tuple[str, ...]:
    """Return the curves of the throughput and of the median wait of a write."""
    medians = [percentile(total.waits, 0.5) for total in totals]
    return (
        f"Throughput: {fit_power(xs, [total.rate for total in totals], name, 'events/s')}",
        f"Wait: {fit_power(xs, medians, name, 'ms')}",
    )


def measure_servers(server: PostgresServer, lengths: Lengths) -> Table:
    totals: list[Total] = []
    for count in SERVERS:

        def plans(urls: list[str]) -> list[Plan]:
            groups = [names(64 // len(urls), group) for group in range(len(urls))]
            return [
                Plan(url=url, token=TOKEN, seconds=lengths.seconds, sessions=group, writers=WRITERS)
                for url, group in zip(urls, groups, strict=True)
            ]

        run = lambda count=count, plans=plans: with_servers(server, count, plans)  # noqa: E731
        totals.append(best_of(lengths.rounds, run))
    rows = [
        (str(count), f"{total.rate:,.0f}", *waits(total), *(f"{used:.2f}" for used in total.used))
        for count, total in zip(SERVERS, totals, strict=True)
    ]
    title = (
        f"`callslip serve` processes, each with {WRITERS} clients that post one event after another; 64 sessions, each "
        "written through one server"
    )
    head = ("servers", "events/s", "p50 ms", "p99 ms", "processors used: servers", "PostgreSQL", "clients")
    return Table(title, head, rows, rate_and_wait(SERVERS, totals, "servers"))


def measure_processes(server: PostgresServer, lengths: Lengths) -> Table:
    totals: list[Total] = []
    for count in SERVERS:

        def plans(url: str, count: int = count) -> list[Plan]:
            groups = [names(64 // count, group) for group in range(count)]
            return [Plan(url=url, seconds=lengths.seconds, sessions=group, writers=WRITERS) for group in groups]

        totals.append(best_of(lengths.rounds, lambda plans=plans: with_database(server, plans)))
    rows = [(str(count), f"{total.rate:,.0f}", *waits(total)) for count, total in zip(SERVERS, totals, strict=True)]
    title = f"Processes without HTTP, each with {WRITERS} writers; 64 sessions, each written by one process"
    curves = rate_and_wait(SERVERS, totals, "processes")
    return Table(title, ("processes", "events/s", "p50 ms", "p99 ms"), rows, curves)


def measure_sessions(server: PostgresServer, lengths: Lengths) -> Table:
    totals: list[Total] = []
    for count in lengths.sessions:

        def plans(url: str, count: int = count) -> list[Plan]:
            groups = [names(count // 2, group) for group in range(2)]
            return [Plan(url=url, seconds=lengths.seconds, sessions=group, writers=WRITERS) for group in groups]

        totals.append(best_of(lengths.rounds, lambda plans=plans: with_database(server, plans)))
    rows = [
        (str(count), f"{total.rate:,.0f}", *waits(total)) for count, total in zip(lengths.sessions, totals, strict=True)
    ]
    title = f"Sessions, written by two processes without HTTP, with {WRITERS} writers each"
    curves = rate_and_wait(lengths.sessions, totals, "sessions")
    return Table(title, ("sessions", "events/s", "p50 ms", "p99 ms"), rows, curves)


def run_readers(server: PostgresServer, lengths: Lengths, readers: int, sessions: int, pause: float) -> Total:
    """Write through one server, one writer for each session, and read through another one."""

    def plans(urls: list[str]) -> list[Plan]:
        written = names(sessions)
        followed = [written[number % sessions] for number in range(readers)]
        writer = Plan(
            url=urls[0], token=TOKEN, seconds=lengths.seconds, sessions=written, writers=sessions, pause=pause
        )
        return [writer, Plan(url=urls[1], token=TOKEN, seconds=lengths.seconds, readers=followed)]

    return with_servers(server, 2, plans)


def measure_delivery(server: PostgresServer, lengths: Lengths) -> Table:
    totals = [run_readers(server, lengths, count, PACED_WRITERS, PACE_S) for count in lengths.readers]
    rows = [
        (str(count), f"{total.rate:,.0f}", f"{total.delivery_rate:,.0f}", *deliveries(total))
        for count, total in zip(lengths.readers, totals, strict=True)
    ]
    medians = [percentile(total.deliveries, 0.5) for total in totals]
    title = (
        f"Readers of one server, of {PACED_WRITERS} sessions that are written through another server at "
        f"{PACED_WRITERS / PACE_S:.0f} events/s at most"
    )
    head = ("readers", "events/s", "deliveries/s", "delivery p50 ms", "p99 ms")
    return Table(title, head, rows, (f"Delivery: {fit_line(lengths.readers, medians, 'readers', 'ms')}",))


def measure_readers(server: PostgresServer, lengths: Lengths) -> Table:
    totals = [
        max(
            (run_readers(server, lengths, count, WRITERS, 0) for _ in range(lengths.rounds)),
            key=lambda total: total.rate,
        )
        for count in lengths.readers
    ]
    rows = [
        (str(count), f"{total.rate:,.0f}", *waits(total), f"{total.delivery_rate:,.0f}", *deliveries(total))
        for count, total in zip(lengths.readers, totals, strict=True)
    ]
    title = f"The same with {WRITERS} sessions that are written as fast as possible, on processors that all share"
    head = ("readers", "events/s", "p50 ms", "p99 ms", "deliveries/s", "delivery p50 ms", "p99 ms")
    return Table(title, head, rows, rate_and_wait(lengths.readers, totals, "readers"))


async def fill(url: str, events: int) -> None:
    """Write a session with so many events."""
    async with await callslip.open(url) as ledger:
        for _ in range(events // 1000):
            await ledger.log.append("s0-0", [MessageDelta(text=TEXT, chunks="delta") for _ in range(1000)])
        await ledger.log.project("s0-0")


async def open_newest(url: str) -> float:
    """Return how many ms the newest entries of the session take in a process that did not read it yet."""
    async with await callslip.open(url) as ledger:
        began = time.perf_counter()
        await ledger.snapshot("s0-0", limit=50)
        return (time.perf_counter() - began) * 1e3


def measure_history(server: PostgresServer, lengths: Lengths) -> Table:
    totals: list[Total] = []
    opened: list[float] = []
    for count in lengths.history:
        url = server.create_database()
        uvloop.run(fill(url, count))
        opened.append(min(uvloop.run(open_newest(url)) for _ in range(5)))
        plan = Plan(url=url, seconds=lengths.seconds, sessions=["s0-0"], writers=WRITERS)
        totals.append(best_of(lengths.rounds, lambda plan=plan: run_processes([plan])))
        server.drop_database(url)
    rows = [
        (f"{count:,}", f"{total.rate:,.0f}", *waits(total), f"{took:.1f}")
        for count, total, took in zip(lengths.history, totals, opened, strict=True)
    ]
    curves = (
        *rate_and_wait(lengths.history, totals, "events"),
        f"Opening: {fit_power(lengths.history, opened, 'events', 'ms')}",
    )
    head = ("events in the session", "events/s", "p50 ms", "p99 ms", "newest 50 entries, ms")
    return Table(f"History of one session, {WRITERS} writers of one process without HTTP", head, rows, curves)


# Partitions

PARTITION = """
ALTER TABLE events RENAME TO unpartitioned;
CREATE TABLE events (session bigint NOT NULL, seq bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (session, seq))
  PARTITION BY HASH (session);
DO $$ BEGIN FOR n IN 0..{last} LOOP
  EXECUTE format('CREATE TABLE events_%s PARTITION OF events FOR VALUES WITH (MODULUS {count}, REMAINDER %s)', n, n);
END LOOP; END $$;
DROP TABLE unpartitioned;
"""


def measure_partitions(server: PostgresServer, lengths: Lengths) -> Table:
    rates: dict[int, list[float]] = {0: [], PARTITIONS: []}
    for _ in range(lengths.rounds):
        for count, found in rates.items():
            url = server.create_database()
            uvloop.run(fill(url, 0))
            if count:
                server.execute(PARTITION.format(count=count, last=count - 1), database=database_name(url))
            plan = Plan(url=url, seconds=lengths.seconds, sessions=names(64), writers=WRITERS)
            found.append(run_processes([plan]).rate)
            server.drop_database(url)
    plain, partitioned = (max(found) for found in rates.values())
    rows = [
        ("one table", f"{plain:,.0f}", ""),
        (f"{PARTITIONS} partitions by hash of the session", f"{partitioned:,.0f}", f"{partitioned / plain:.2f}x"),
    ]
    return Table(
        f"Partitions of `events`, 64 sessions, {WRITERS} writers of one process", ("", "events/s", "ratio"), rows
    )


# Output


def report(lengths: Lengths, say: Callable[[Any], None]) -> str:
    """Measure everything; return the figures as a part of a document."""
    with durable_server() as server:
        command = "make bench-scale" + (" ARGS=--quick" if lengths is QUICK else "")
        parts: list[str] = [f"Measured by `{command}` with {describe_machine(server)}."]
        say(parts[0])
        for measure in (
            *(measure_servers, measure_processes, measure_sessions, measure_delivery, measure_readers),
            *(measure_history, measure_partitions),
        ):
            table = measure(server, lengths)
            say(table)
            parts.append(str(table))
        for table in costs_tables(measure_calls(server, lengths.calls)):
            say(table)
            parts.append(str(table))
    return "\n\n".join(parts)


def main() -> None:
    is_quick, writes = read_options()
    figures = report(QUICK if is_quick else FULL, lambda part: print(f"{part}\n", flush=True))
    if writes:
        write_figures("figures", figures)


if __name__ == "__main__":
    main()
