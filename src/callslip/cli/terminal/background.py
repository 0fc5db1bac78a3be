"""Run work in the background of a command: watch a session, prompt for answers, handle signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError


@contextlib.asynccontextmanager
async def run_in_background(*work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run coroutines until the block ends; an error in one of them ends the block."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


@contextlib.asynccontextmanager
async def cancel_on_signal() -> AsyncGenerator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C: open calls are ended first."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    numbers = [number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if number is not None]
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def first_result(*work: Coroutine[Any, Any, Any]) -> Any:
    """Return the first result of several coroutines, and cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()


async def read_answer(keys: asyncio.Queue[str]) -> str:
    """Return the first key that is `y` or `n`."""
    while (key := (await keys.get()).lower()) not in ("y", "n"):
        pass
    return key


async def answer_request(ledger: LocalLedger, approval: str, *, yes: bool, by: str) -> None:
    """Answer a request for the user at this terminal."""
    try:
        if yes:
            await ledger.approve(approval, by=by)
        else:
            await ledger.deny(approval, by=by, reason="denied by the user")
    except ConflictError:
        pass  # Another answer was first.
