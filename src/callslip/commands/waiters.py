"""The workers that wait for commands of a queue. One command wakes one worker.

A woken worker that does not take the command (another was faster, it may not run it, it has left) passes the wake-up
on, but only to workers that were already waiting when it was sent. So each wake-up ends, even if no worker takes the
command.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator
from itertools import islice

from callslip.commands.transactions import ClaimedCommand

WaiterQueues = dict[str, "WaiterQueue"]


class WaiterSlot:
    """A place in a waiter queue, with the claim request of the worker that holds it.

    `wake_up` is the number of the last slot that existed when this one was woken; 0 before.
    """

    __slots__ = ("future", "number", "request", "wake_up")

    def __init__(self, number: int) -> None:
        self.request: object = None
        self.future: asyncio.Future[ClaimedCommand | None] = asyncio.get_running_loop().create_future()
        self.number = number
        self.wake_up = 0


class WaiterQueue:
    """The slots of one queue, oldest first."""

    def __init__(self) -> None:
        self.waiters = 0
        self._slots: deque[WaiterSlot] = deque()
        self._last_number = 0

    def join(self) -> WaiterSlot:
        """Add a slot at the end."""
        self._last_number += 1
        slot = WaiterSlot(self._last_number)
        self._slots.append(slot)
        return slot

    def leave(self, slot: WaiterSlot) -> None:
        """Remove a slot, and pass on a wake-up that it got."""
        with contextlib.suppress(ValueError):
            self._slots.remove(slot)
        self.pass_on(slot.wake_up)

    def first(self, limit: int) -> list[WaiterSlot]:
        """Return the oldest slots."""
        return list(islice(self._slots, limit))

    def reserve(self, slot: WaiterSlot) -> bool:
        """Remove a slot to deliver a command to it; return False if it was woken or has left."""
        if slot.future.done() or slot not in self._slots:
            return False
        self._slots.remove(slot)
        return True

    def wake(self) -> None:
        """Wake one worker for one command."""
        self.pass_on(self._last_number)

    def wake_all(self) -> None:
        """Wake every worker, because the ledger closes."""
        while self._slots:
            self.wake()

    def pass_on(self, wake_up: int) -> None:
        """Wake the oldest slot that existed when this wake-up was sent."""
        while self._slots and self._slots[0].number <= wake_up:
            slot = self._slots.popleft()
            if not slot.future.done():
                slot.wake_up = wake_up
                return slot.future.set_result(None)


class Waiter:
    """A worker that reads the queue, and again each time it is woken."""

    def __init__(self, queue: WaiterQueue) -> None:
        self._queue = queue
        self._slot = queue.join()
        self._wake_up = 0
        self._request: object = None

    def enter(self, request: object = None) -> None:
        """Hold a slot before reading the queue, so that no wake-up is missed."""
        if self._slot.future.done():
            self._wake_up, self._slot = self._slot.wake_up, self._queue.join()
        self._request = request

    async def wait(self, seconds: float) -> ClaimedCommand | None:
        """Wait for a wake-up after finding nothing; return the command that was delivered with it, if any."""
        self._queue.pass_on(self._wake_up)
        self._wake_up = 0
        self._slot.request = self._request
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._slot.future
        return self.delivered()

    def delivered(self) -> ClaimedCommand | None:
        """Return the command that was delivered to this worker, if any."""
        future = self._slot.future
        return future.result() if future.done() and not future.cancelled() else None

    def consume_wake_up(self) -> None:
        """Keep the wake-up, because its command was found."""
        self._wake_up = 0

    def leave(self) -> None:
        """Give up the slot, and pass on an unused wake-up."""
        self._queue.leave(self._slot)
        self._queue.pass_on(self._wake_up)


@contextlib.contextmanager
def wait_in_queue(queues: WaiterQueues, name: str) -> Generator[Waiter]:
    """Wait for commands of a queue. A waiter queue without waiters is removed."""
    queue = queues.setdefault(name, WaiterQueue())
    queue.waiters += 1
    waiter = Waiter(queue)
    try:
        yield waiter
    finally:
        waiter.leave()
        queue.waiters -= 1
        if not queue.waiters:
            del queues[name]
