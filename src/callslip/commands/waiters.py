"""The line of those who wait for a client's work. One command wakes one of them.

Whoever was woken and has no use for it (another was quicker, the command is not for them, they have gone) passes the
wake-up on, but only to those who stood in line when it came: so it ends, however many wait in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator
from itertools import islice

from callslip.commands.transactions import ClaimedCommand

Lines = dict[str, "WaiterQueue"]


class WaiterSlot:
    """A place in a line, and what whoever stands there offers to take.

    `token` is the number of the last who stood there when it was woken; 0 before.
    """

    __slots__ = ("future", "number", "offer", "token")

    def __init__(self, number: int) -> None:
        self.offer: object = None
        self.future: asyncio.Future[ClaimedCommand | None] = asyncio.get_running_loop().create_future()
        self.number = number
        self.token = 0


class WaiterQueue:
    """Places in the order in which they were taken."""

    def __init__(self) -> None:
        self.waiters = 0
        self._places: deque[WaiterSlot] = deque()
        self._count = 0

    def join(self) -> WaiterSlot:
        """A place at the end."""
        self._count += 1
        place = WaiterSlot(self._count)
        self._places.append(place)
        return place

    def leave(self, place: WaiterSlot) -> None:
        """Give up a place; a wake-up that came to it goes on."""
        with contextlib.suppress(ValueError):
            self._places.remove(place)
        self.pass_on(place.token)

    def standing(self, most: int) -> list[WaiterSlot]:
        """The first of them."""
        return list(islice(self._places, most))

    def reserve(self, place: WaiterSlot) -> bool:
        """Take somebody out of the line, to give them something. Whether they still stood there."""
        if place.future.done() or place not in self._places:
            return False
        self._places.remove(place)
        return True

    def wake(self) -> None:
        """There is work for one."""
        self.pass_on(self._count)

    def wake_all(self) -> None:
        """There will be no more work."""
        while self._places:
            self.wake()

    def pass_on(self, token: int) -> None:
        """Wake the first of those who stood here when there came to be work."""
        while self._places and self._places[0].number <= token:
            place = self._places.popleft()
            if not place.future.done():
                place.token = token
                return place.future.set_result(None)


class Waiter:
    """Somebody who looks for work, again whenever they are woken."""

    def __init__(self, line: WaiterQueue) -> None:
        self._line = line
        self._place = line.join()
        self._token = 0
        self._offer: object = None

    def stand(self, offer: object = None) -> None:
        """Before every look: from here on no wake-up is missed."""
        if self._place.future.done():
            self._token, self._place = self._place.token, self._line.join()
        self._offer = offer

    async def woken(self, seconds: float) -> ClaimedCommand | None:
        """Having found nothing, wait for a wake-up, or so long. Perhaps something was handed over with it."""
        self._line.pass_on(self._token)
        self._token = 0
        self._place.offer = self._offer
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._place.future
        return self.handed()

    def handed(self) -> ClaimedCommand | None:
        """What was handed over, if anything."""
        future = self._place.future
        return future.result() if future.done() and not future.cancelled() else None

    def served(self) -> None:
        """Work was found: that is what the wake-up was for."""
        self._token = 0

    def leave(self) -> None:
        self._line.leave(self._place)
        self._line.pass_on(self._token)


@contextlib.contextmanager
def in_line(lines: Lines, client: str) -> Generator[Waiter]:
    """Wait for the work of a client. A line that nobody stands in is forgotten."""
    line = lines.setdefault(client, WaiterQueue())
    line.waiters += 1
    waiter = Waiter(line)
    try:
        yield waiter
    finally:
        waiter.leave()
        line.waiters -= 1
        if not line.waiters:
            del lines[client]
