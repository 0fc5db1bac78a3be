"""asyncio helpers: wait despite cancellation, race two coroutines, run large work in a thread, cancel tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")

LARGE_BYTES = 64 * 2**10
LARGE_COUNT = 1000
LARGE_HISTORY = 100
"""Work on JSON of this many bytes, on this many events or entries, or on a history of this many entries is large."""
MAX_WORK_THREADS = 2  # Threads compete with the event loop for the interpreter; more of them would delay it.


@cache
def _work_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_WORK_THREADS, "large-work")


async def run_off_loop(is_large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `work`: large work runs in a thread, so that the event loop answers others meanwhile.

    Small work runs here, because a thread costs more than it. If the caller is cancelled, the thread still finishes.
    """
    if not is_large:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_work_threads(), partial(work, *args, **kwargs))


async def wait_despite_cancel(*futures: asyncio.Future[Any]) -> None:
    """Wait for all futures even if the caller is cancelled, and raise the cancellation after that."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    for future in futures:
        if not future.cancelled():
            future.exception()  # Mark it as retrieved: no caller may be left to receive it.
    if cancelled is not None:
        raise cancelled


async def finish_despite_cancel(write: Coroutine[Any, Any, T]) -> T:
    """Finish a write even if its caller is cancelled meanwhile, then raise the cancellation."""
    task = asyncio.ensure_future(write)
    await wait_despite_cancel(task)
    return task.result()


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but not longer than this."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await wait_despite_cancel(*tasks)  # A second cancellation must not interrupt their clean-up.


async def race(work: Coroutine[Any, Any, T], stop: Coroutine[Any, Any, S]) -> T | S:
    """Return the result of whichever ends first. The other is cancelled and awaited."""
    work_task, stop_task = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([work_task, stop_task], return_when=asyncio.FIRST_COMPLETED)
        return (work_task if work_task.done() else stop_task).result()
    finally:
        await cancel_all(work_task, stop_task)
