"""Make every read of a store wait, as those of a database server do, to find code that relies on reads that do not.

A read sleeps before and after the real read: what happens meanwhile must be neither missed nor undone. Writes are not
changed. `pytest --slow-reads` runs all tests like this, as `make chaos` does.

The tests of `SUITES` run both ways in every run, if they run on every engine and are no property tests. With slow reads
they run on SQLite, each in one of its cases, and only the first `MAX_SLOW_READS` of a test are slow: a test that reads
much takes half a second longer, and not minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest

from callslip.store.protocol import Store
from callslip.store.sqlite import SqliteStore
from tests.support import engines

READ_DELAY_S = 0.005
"""How long a read waits before, and again after, the real read: 10 ms together."""
FAKE_CLOCK_YIELDS = 3
"""How often a read yields instead, before and after the real read, on an event loop with a fake clock."""
WRITES = {
    *("close", "delete", "drop_conversations", "drop_owner", "drop_token", "drop_unused_blobs", "prune", "put_blob"),
    *("put_executor", "put_token", "save_progress", "save_search", "save_summaries", "add_summaries", "put_meta"),
    "replace_meta",
}
WAITS = {"wait_changes"}
READS = {name for name, method in vars(Store).items() if inspect.iscoroutinefunction(method)} - WRITES - WAITS

SUITES = ("tests/api/test_operations.py", "tests/ledger/", "tests/store/test_store.py")
"""The folders and files whose tests run with slow reads too in every run."""
MAX_SLOW_READS = 50
"""How many reads of such a test are slow. Half of the tests have fewer."""


# Selection


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Let a test of `SUITES` run with fast and with slow reads."""
    test_id = metafunc.definition.nodeid
    is_property = hasattr(metafunc.function, "hypothesis")
    if test_id.startswith(SUITES) and not engines.find_reason(test_id) and not is_property:
        metafunc.parametrize("reads", ["fast", "slow"], indirect=True)


def select_cases(nodes: Sequence[pytest.Item | pytest.Collector]) -> list[pytest.Item | pytest.Collector]:
    """Leave out tests with slow reads on PostgreSQL, which is slow as it is, and all but one case of the others."""
    cases: dict[str, list[pytest.Item | pytest.Collector]] = {}
    for node in nodes:
        if _is_slow(node) and not node.get_closest_marker("postgres"):
            cases.setdefault(node.nodeid.partition("[")[0], []).append(node)
    # The number of the case depends on the name of the test: they are not all cases of the same kind of ledger.
    selected = {group[zlib.crc32(test_id.encode()) % len(group)] for test_id, group in cases.items()}
    return [node for node in nodes if not _is_slow(node) or node in selected]


def _is_slow(node: pytest.Item | pytest.Collector) -> bool:
    return getattr(getattr(node, "callspec", None), "params", {}).get("reads") == "slow"


# Reads


def _slowed(read: Callable[..., Awaitable[Any]], delays: Iterator[float]) -> Callable[..., Awaitable[Any]]:
    async def read_slowly(*args: Any, **kwargs: Any) -> Any:
        delay_s = next(delays)
        await _let_others_run(delay_s)
        result = await read(*args, **kwargs)
        await _let_others_run(delay_s)
        return result

    return read_slowly


async def _let_others_run(delay_s: float) -> None:
    """Sleep, or only yield some times to an event loop whose clock does not move by itself."""
    if delay_s and getattr(asyncio.get_running_loop(), "has_fake_clock", False):
        for _ in range(FAKE_CLOCK_YIELDS):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(delay_s)


@contextlib.contextmanager
def slow_reads(store: type[Store] = SqliteStore, count: int | None = None) -> Generator[None]:
    """Slow down the reads of all stores of a class, or only a number of them."""
    slow = itertools.repeat(READ_DELAY_S) if count is None else itertools.repeat(READ_DELAY_S, count)
    delays = itertools.chain(slow, itertools.repeat(0.0))
    with contextlib.ExitStack() as stack:
        for name in sorted(READS):
            stack.enter_context(mock.patch.object(store, name, _slowed(getattr(store, name), delays)))
        yield


class PausedRead:
    """A read whose first call returns its result when `resume` is set. `reached` is set when it waits for that."""

    def __init__(self) -> None:
        self.calls = 0
        self.reached = asyncio.Event()
        self.resume = asyncio.Event()


@contextlib.contextmanager
def pause_read(store: Store, name: str) -> Generator[PausedRead]:
    """Let the first call of a read wait with its result; later calls are not changed."""
    read, paused = getattr(store, name), PausedRead()

    async def read_and_wait(*args: Any, **kwargs: Any) -> Any:
        paused.calls += 1
        is_first = paused.calls == 1
        result = await read(*args, **kwargs)
        if is_first:
            paused.reached.set()
            await paused.resume.wait()
        return result

    with mock.patch.object(store, name, read_and_wait):
        yield paused
