"""Make every read of a store wait, as those of a database server do, to find code that relies on reads that do not.

A read sleeps before and after the real read: what happens meanwhile must be neither missed nor undone. Writes are not
changed. `pytest --slow-reads` runs all tests like this; some tests run both ways always.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any
from unittest import mock

from callslip.store.protocol import Store
from callslip.store.sqlite import SqliteStore

READ_DELAY_S = 0.01
"""How long a read waits before, and again after, the real read."""
WRITES = {
    *("close", "delete", "drop_conversations", "drop_owner", "drop_token", "prune", "put_blob", "put_executor"),
    *("put_token", "save_progress"),
}
WAITS = {"wait_changes"}
READS = {name for name, method in vars(Store).items() if inspect.iscoroutinefunction(method)} - WRITES - WAITS

TESTS: dict[str, tuple[str, ...]] = {
    "tests/store/test_store.py": (),
    "tests/ledger/test_feed.py": (),
}
"""The tests that run with slow reads in every run: a file, and the names of its tests, or none for all of them."""


def _slowed(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def read_slowly(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(READ_DELAY_S)
        result = await read(*args, **kwargs)
        await asyncio.sleep(READ_DELAY_S)
        return result

    return read_slowly


@contextlib.contextmanager
def slow_reads(store: type[Store] = SqliteStore) -> Generator[None]:
    """Slow down the reads of all stores of a class."""
    with contextlib.ExitStack() as stack:
        for name in sorted(READS):
            stack.enter_context(mock.patch.object(store, name, _slowed(getattr(store, name))))
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
