"""asyncio helpers: finish a write despite cancellation, and run work until something else happens first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
S = TypeVar("S")


async def finish_despite_cancel(write: Coroutine[Any, Any, T]) -> T:
    """Finish a write even if its caller is cancelled meanwhile, then raise the cancellation."""
    task = asyncio.ensure_future(write)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    task.exception()  # Mark it as retrieved: no caller is left to receive it.
    raise cancelled


async def race(work: Coroutine[Any, Any, T], stop: Coroutine[Any, Any, S]) -> T | S:
    """Return the result of whichever ends first. The other is cancelled and awaited."""
    work_task, stop_task = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([work_task, stop_task], return_when=asyncio.FIRST_COMPLETED)
        return (work_task if work_task.done() else stop_task).result()
    finally:
        work_task.cancel()
        stop_task.cancel()
        await asyncio.gather(work_task, stop_task, return_exceptions=True)
