"""Search: how fast entries are indexed, how large the index is, and how long searches for rare and common words take.

`python bench/search.py [--quick] [sqlite] [postgres]` runs it by itself; --quick has 100,000 entries, not a million.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # The server is started by the tests' own module.

from measure import say
from postgres import durable_server

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model.events import CallCompleted, CallProposed, CallStarted, Event, MessageUser
from callslip.settings import Settings

ENTRIES, QUICK_ENTRIES = 1_000_000, 100_000
SESSION_ENTRIES = 1_000
WORDS_PER_ENTRY = 40
VOCABULARY = 20_000
MEDIUM_EVERY = 1_000
RUNS = 5
GOAL_S = 1.0
SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9)


def _texts(count: int) -> Iterator[str]:
    """Yield texts with words as frequent as in a language. `the` is in every text, `walrus` in one of a thousand."""
    rand = random.Random(7)
    vocabulary = [f"{rand.choice('bcdfgklmnprstv')}{rand.choice('aeiou')}{number:x}" for number in range(VOCABULARY)]
    weights = [1 / (rank + 1) for rank in range(VOCABULARY)]
    pool = rand.choices(vocabulary, weights, k=1_000_000)
    for number in range(count):
        start = rand.randrange(len(pool) - WORDS_PER_ENTRY)
        words = ["the", *pool[start : start + WORDS_PER_ENTRY], f"src/module_{number % 977}/fileName{number % 31}.py"]
        if number % MEDIUM_EVERY == 500:
            words.append("walrus")
        if number in (count // 3, count // 2):
            words.append("needle")
        yield " ".join(words)


async def _fill(ledger: LocalLedger, count: int) -> int:
    """Write entries, half of them calls, and return how many bytes their texts have."""
    size = 0
    drafts: list[Event] = []
    for number, text in enumerate(_texts(count)):
        size += len(text)
        if number % 2:
            call = f"new:{number % SESSION_ENTRIES}"
            drafts.append(CallProposed(call=call, tool_name=("bash", "read", "edit")[number % 3], input={"n": number}))
            drafts += [CallStarted(call=call), CallCompleted(call=call, output=text)]
        else:
            drafts.append(MessageUser(text=text))
        if number % SESSION_ENTRIES == SESSION_ENTRIES - 1:
            await ledger.log.append(f"s{number // SESSION_ENTRIES}", drafts)
            drafts = []
    return size


async def _measure(url: str, count: int, read_size: Callable[[LocalLedger], Any]) -> None:
    async with await callslip.open(url, SETTINGS) as ledger:
        size = await _fill(ledger, count)
        for number in range(count // SESSION_ENTRIES):
            await ledger.log.project(f"s{number}")
        before = await read_size(ledger)
        start = time.perf_counter()
        assert await ledger.log.search_index.refresh(3600)
        taken = time.perf_counter() - start
        index_bytes = await read_size(ledger) - before
        say("indexed", f"{count / taken:,.0f}/s  {size / taken / 1e6:.2f} MB/s")
        say("size of the index, to that of the texts", f"{index_bytes / size:.2f}x  ({size / 1e6:,.0f} MB)")
        searches: list[tuple[str, str, dict[str, Any]]] = [
            ("a word in 2 entries", "needle", {}),
            ("a word in one of a thousand", "walrus", {}),
            ("the word in every entry", "the", {}),
            ("the same, in one session", "the", {"session": "s1"}),
            ("the same, of one tool", "the", {"tool": "bash"}),
            ("the same, in a project that has no session", "the", {"project": "/none"}),
            ("the same, until a time before all entries", "the", {"until": 1}),
            ("a path in one of a thousand", "src/module_7/", {}),
        ]
        for what, query, filters in searches:
            times: list[float] = []
            for _ in range(RUNS):
                start = time.perf_counter()
                found = await ledger.search(query, **filters)
                times.append(time.perf_counter() - start)
            limited = ", limited" if found.limited else ""
            figure = f"{sorted(times)[RUNS // 2] * 1e3:,.0f} ms  (first {times[0] * 1e3:,.0f}{limited})"
            say(what, figure, f"< {GOAL_S:g} s")


async def _sqlite_size(ledger: LocalLedger) -> int:
    rows = ledger.log.store._read.execute(  # type: ignore[attr-defined] # pyright: ignore
        "SELECT (SELECT * FROM pragma_page_count) * (SELECT * FROM pragma_page_size)"
    ).fetchall()
    return rows[0][0]


async def _postgres_size(ledger: LocalLedger) -> int:
    rows = await ledger.log.store._database.fetch(  # type: ignore[attr-defined] # pyright: ignore
        "SELECT pg_total_relation_size('search_rows')"
    )
    return rows[0][0]


def bench_search(count: int = ENTRIES, engines: tuple[str, ...] = ("sqlite", "postgres")) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "sqlite" in engines:
            print(f"search over {count:,} entries, SQLite")
            asyncio.run(_measure(f"sqlite:///{folder}/search.db", count, _sqlite_size))
        if "postgres" in engines:
            print(f"search over {count:,} entries, PostgreSQL")
            with durable_server() as server:
                asyncio.run(_measure(server.create_database(), count, _postgres_size))


if __name__ == "__main__":
    chosen = tuple(name for name in ("sqlite", "postgres") if name in sys.argv)
    bench_search(QUICK_ENTRIES if "--quick" in sys.argv else ENTRIES, chosen or ("sqlite", "postgres"))
