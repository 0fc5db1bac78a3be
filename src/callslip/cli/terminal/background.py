"""What runs beside something else on a terminal: watching, asking, and ending politely."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError


@contextlib.asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run these as long as the block lasts; an error in one of them ends the block."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


@contextlib.asynccontextmanager
async def ended_politely() -> AsyncGenerator[None]:
    """A request to terminate is treated like Ctrl-C: open calls are ended first."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asked = [number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if number is not None]
    for number in asked:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in asked:
            loop.remove_signal_handler(number)


async def first(*waiting: Coroutine[Any, Any, Any]) -> Any:
    """The first result of several; the others are given up."""
    tasks = [asyncio.create_task(one) for one in waiting]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()


async def yes_or_no(pressed: asyncio.Queue[str]) -> str:
    """The first key that is an answer."""
    while (key := (await pressed.get()).lower()) not in ("y", "n"):
        pass
    return key


async def answered(ledger: LocalLedger, approval: str, *, yes: bool, by: str) -> None:
    """Answer a request as a person at this terminal said."""
    try:
        if yes:
            await ledger.approve(approval, by=by)
        else:
            await ledger.deny(approval, by=by, reason="the person said no")
    except ConflictError:
        pass  # Somebody answered from another terminal in the meantime, and was first.
