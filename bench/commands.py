"""Commands: the round trip through a server, the index of those that are pending, and what polling costs who writes.

The limit of the round trip is the same exchange over HTTP with a dict behind it, and of one that is durable the same
with a bare commit for each step; the peers are task queues in their own usual setup. `python bench/commands.py` runs it
by itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import exchange
import pending
import polling
import queues
from measure import say

ROUNDS, TRIPS = 5, 200
WARM = 30


def middle(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


def percentiles(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{middle(ordered) * 1e3:.2f} / {ordered[int(len(ordered) * 0.99)] * 1e3:.2f} ms"


# Round trips


class Trips:
    """The quietest of several rounds of one way to go, and the processor that the server used for one, at the least."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.processor = math.inf

    def round(self, place: exchange.Place, one: Any, trips: int) -> None:
        with contextlib.closing(place.client()) as client:
            exchange.timed(client, exchange.trip, WARM)
            before = place.processor()
            times = exchange.timed(client, one, trips)
            self.processor = min(self.processor, (place.processor() - before) / trips)
        if not self.times or self.middle > middle(times):
            self.times = times

    @property
    def middle(self) -> float:
        return middle(self.times)


def _by_turns(places: list[exchange.Place], one: Any) -> list[Trips]:
    """By turns, and each round with a connection of its own: one that idles meanwhile would be closed."""
    measured = [Trips() for _ in places]
    for _ in range(ROUNDS):
        for place, trips in zip(places, measured, strict=True):
            trips.round(place, one, TRIPS)
    return measured


def _bench_trips(folder: Path) -> float:
    """The seconds of ours, at the median, with the executor that people have: so are those of others."""
    print("commands: submitted, claimed, completed, the waiter woken; durable at FULL")
    print(f"  p50 / p99 of {TRIPS} trips, the quietest of {ROUNDS} rounds")
    with contextlib.ExitStack() as stack:
        places: list[exchange.Place] = []
        for name, command, how in (
            ("plain", exchange.PLAIN, ()),
            ("kept", [*exchange.PLAIN, str(folder / "kept.db")], ()),
            ("ours", exchange.callslip(folder, "trips"), ()),
            ("worker", exchange.callslip(folder, "worker"), ("worker",)),
        ):
            places.append(stack.enter_context(exchange.served(command, folder / f"{name}.log")))
            stack.enter_context(exchange.executing(places[-1], *how))
        plain, kept, ours, by_worker = _by_turns(places, exchange.trip)
        plain_in_two, kept_in_two, in_two = _by_turns(places[:3], exchange.trip_in_two)
        asking = Trips()
        asking.round(places[2], exchange.trip_by_asking, 2)
    say("the same requests with a dict behind them (the limit)", percentiles(plain.times))
    say("  and a bare commit for each step", percentiles(kept.times))
    say("  to the limit", f"{kept.middle / plain.middle:.2f}x")
    say("ours, awaited by the request that submits", percentiles(ours.times))
    say("  to the limit", f"{ours.middle / plain.middle:.2f}x", "<= 3x")
    say("  to the limit with bare commits", f"{ours.middle / kept.middle:.2f}x")
    used = f"({ours.processor * 1e3:.2f} / {plain.processor * 1e3:.2f} ms)"
    say("  processor of the server, to the limit", f"{ours.processor / plain.processor:.2f}x  {used}")
    say("ours, run by a callslip.Worker", percentiles(by_worker.times))
    say("ours, submitted and then awaited", percentiles(in_two.times))
    say("  to the limit", f"{in_two.middle / plain_in_two.middle:.2f}x  ({percentiles(plain_in_two.times)})", "<= 3x")
    say(
        "  to the limit with bare commits",
        f"{in_two.middle / kept_in_two.middle:.2f}x  ({percentiles(kept_in_two.times)})",
    )
    say(
        f"asking every {exchange.EVERY:g} s, to ours",
        f"{asking.middle / ours.middle:,.0f}x  ({asking.middle:.2f} s)",
        ">= 100x",
    )
    return by_worker.middle


def _quietest(times: list[float]) -> list[float]:
    """Of as many rounds as ours had, the quietest, too."""
    return min((times[start : start + TRIPS] for start in range(0, len(times), TRIPS)), key=middle)


def _bench_others(folder: Path, ours: float) -> None:
    if why := queues.missing():
        print(f"  {why}")
        return
    for what, options in (("Redis as it comes", queues.AS_IT_COMES), ("Redis durable, too", queues.DURABLE)):
        place = folder / what.replace(" ", "-")
        place.mkdir()
        for name in queues.NAMES:
            try:
                measured = queues.trips(name, ROUNDS * TRIPS, place, options)
            except (OSError, RuntimeError, ValueError) as error:
                print(f"  {name} is left out: {error}")
                continue
            for variant, times in ((variant, _quietest(all_times)) for variant, all_times in measured.items()):
                say(f"{variant}, {what}, to ours by a Worker", f"{middle(times) / ours:.1f}x  ({percentiles(times)})")


# The rest


def _bench_pending() -> None:
    print(f"commands: {pending.MANY:,} pending in one process")
    for line in pending.figures():
        say(*line)


def _bench_polling(folder: Path) -> None:
    print(f"commands: {polling.PACE:,} questions a second about pending ones, and what is written meanwhile at FULL")
    for line in polling.figures(folder):
        say(*line)


def bench_commands() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("CALLSLIP_BENCH_DIR")) as measured:
        folder = Path(measured)
        ours = _bench_trips(folder)
        _bench_others(folder, ours)
        _bench_pending()
        _bench_polling(folder)


if __name__ == "__main__":
    bench_commands()
