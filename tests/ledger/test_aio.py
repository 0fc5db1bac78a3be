"""The asyncio helpers of the ledger."""

from __future__ import annotations

import asyncio

import pytest

from callslip.ledger.aio import cancel_all

pytestmark = pytest.mark.anyio


async def test_a_second_cancellation_does_not_interrupt_a_clean_up() -> None:
    """A task that is being cancelled finishes its clean-up even if the waiting task is cancelled too."""
    started, cleaning, may_finish = asyncio.Event(), asyncio.Event(), asyncio.Event()
    log: list[str] = []

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await may_finish.wait()
            log.append("cleaned up")

    task = asyncio.create_task(work())
    await started.wait()
    waiter = asyncio.create_task(cancel_all(task))
    await cleaning.wait()
    waiter.cancel()
    may_finish.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert task.cancelled() and log == ["cleaned up"]
