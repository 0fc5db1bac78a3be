"""What many readers follow is made once: a line of frames, and each reader is no more than a number into it.

Whatever waits for a reader is joined into one piece, and readers at the same place get the same piece. They are woken
fifty times a second at most: what a delivery costs is the write, so a burst is written as a few larger pieces. Who
falls off the back of the line is cut off, comes back with its cursor and loses nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from callslip.errors import SlowReaderError

COALESCE_S = 0.02


class Broadcast:
    """Frames, numbered from `first`; the next one will be `next`. After `end` nothing more comes."""

    def __init__(self, next: int, length: int) -> None:
        self.first = self.next = next
        self.beats = 0
        self.ended = False
        self.farewell = b""
        self._frames: deque[bytes] = deque()
        self._length = length
        self._waiting: set[asyncio.Future[None]] = set()
        self._joined = (-1, -1, b"")
        self._waking: asyncio.TimerHandle | None = None
        self._woke = -math.inf
        self.happened = 0
        """Counts whatever wakes readers, so that who looked meanwhile knows whether to look again."""

    def push(self, frames: Iterable[bytes]) -> None:
        """Add frames, and wake whoever waits."""
        self._frames.extend(frames)
        self.next = self.first + len(self._frames)
        while len(self._frames) > self._length:
            self._frames.popleft()
            self.first += 1
        self._wake_soon()

    def end(self, farewell: bytes = b"") -> None:
        """Nothing more comes; these are the last words."""
        self.ended, self.farewell = True, farewell
        self._wake()

    def beat(self) -> None:
        """Let the readers show that they are alive."""
        self.beats += 1
        self._wake()

    def after(self, number: int) -> bytes:
        """Everything from a number on, in one piece."""
        if number < self.first:
            raise SlowReaderError(number)
        if self._joined[:2] != (number, self.next):
            self._joined = (number, self.next, b"".join(self.frames(number)))
        return self._joined[2]

    def frames(self, number: int) -> list[bytes]:
        """The frames from a number on."""
        return list(islice(self._frames, number - self.first, None))

    def _wake_soon(self) -> None:
        """At once after a silence; in a burst, when the pause since the last time is over."""
        if self._waking is not None:
            return
        loop = asyncio.get_running_loop()
        pause = self._woke + COALESCE_S - loop.time()
        if pause > 0:
            self._waking = loop.call_later(pause, self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
        self._waking, self._woke = None, asyncio.get_running_loop().time()
        self.happened += 1
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def wait_with(self, future: asyncio.Future[None]) -> None:
        """Settle a future at the next thing that happens."""
        self._waiting.add(future)

    def forget(self, future: asyncio.Future[None]) -> None:
        self._waiting.discard(future)


async def woken(lines: Sequence[Broadcast]) -> None:
    """Return when something happens on any of these lines."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for line in lines:
        line.wait_with(future)
    try:
        await future
    finally:
        for line in lines:
            line.forget(future)
