"""Wait until tasks have reached a function, instead of giving them some time."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any

TIMEOUT_S = 60.0
"""Nothing takes this long unless it hangs."""


async def until_in(function: str, *tasks: asyncio.Task[Any]) -> None:
    """Return once each task waits in a function, which is named as in `Class.method`."""
    async with asyncio.timeout(TIMEOUT_S):
        for task in tasks:
            while function not in _awaiting(task):
                assert not task.done(), f"the task ended before it reached {function}"
                await asyncio.sleep(0.001)


async def until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


def _awaiting(task: asyncio.Task[Any]) -> Iterator[str]:
    """Yield the qualified names of the functions that a task is in, from the outermost to the innermost."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        if inspect.iscoroutine(awaited):
            yield awaited.cr_code.co_qualname
            awaited = awaited.cr_await
        elif inspect.isasyncgen(awaited):
            yield awaited.ag_code.co_qualname
            awaited = awaited.ag_await
        else:  # A step of an asynchronous generator only refers to it.
            awaited = next(filter(inspect.isasyncgen, gc.get_referents(awaited)), None)
