"""What many readers follow is made once: a line of frames, and each reader is no more than a number into it.

Whatever waits for a reader is joined into one piece, and readers at the same place get the same piece. A reader that
falls off the back of the line is cut off; it comes back with its cursor and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from callslip.errors import SlowReader


class Line:
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

    def push(self, frames: Iterable[bytes]) -> None:
        """Add frames, and wake whoever waits."""
        self._frames.extend(frames)
        self.next = self.first + len(self._frames)
        while len(self._frames) > self._length:
            self._frames.popleft()
            self.first += 1
        self._wake()

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
            raise SlowReader(number)
        if self._joined[:2] != (number, self.next):
            self._joined = (number, self.next, b"".join(self.frames(number)))
        return self._joined[2]

    def frames(self, number: int) -> list[bytes]:
        """The frames from a number on."""
        return list(islice(self._frames, number - self.first, None))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def wait_with(self, future: asyncio.Future[None]) -> None:
        """Settle a future at the next thing that happens."""
        self._waiting.add(future)

    def forget(self, future: asyncio.Future[None]) -> None:
        self._waiting.discard(future)


async def woken(lines: Sequence[Line]) -> None:
    """Return when something happens on any of these lines."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for line in lines:
        line.wait_with(future)
    try:
        await future
    finally:
        for line in lines:
            line.forget(future)
