"""Frames for many readers: each frame is created once, and a reader is only a number into the sequence.

The frames that a reader lacks are joined into writes of a limited size, and readers at the same number share them.
Readers are woken at most fifty times a second, since a delivery costs a write, so a burst becomes a few larger writes.
A reader that falls behind the oldest frame is disconnected and resumes with its cursor.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence

from callslip.errors import SlowReaderError
from callslip.ledger.window import Window

COALESCE_S = 0.02
MAX_BYTES = 16 * 2**20
PAGE_BYTES = 128 * 2**10


class Broadcast:
    """The newest frames of a stream. After `end` no more are added."""

    def __init__(self, next: int, length: int, max_bytes: int = MAX_BYTES, page_bytes: int = PAGE_BYTES) -> None:
        self.frames: Window[bytes] = Window(next, length, max_bytes, len)
        self._page_bytes = page_bytes
        self.heartbeats = 0
        self.ended = False
        self.last_frame = b""
        self.wakeups = 0
        """Counts wakeups, so that a reader knows whether something happened while it was not waiting."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._joined = (-1, -1, 0, b"")
        self._timer: asyncio.TimerHandle | None = None
        self._woken_at = -math.inf

    @property
    def first(self) -> int:
        """The number of the oldest frame."""
        return self.frames.first

    @property
    def next(self) -> int:
        """The number of the next frame."""
        return self.frames.next

    def push(self, frames: Iterable[bytes]) -> None:
        """Add frames, and wake the readers."""
        for frame in frames:
            self.frames.push(frame)
        self._wake_soon()

    def end(self, last_frame: bytes = b"") -> None:
        """End the stream with a last frame."""
        self.ended, self.last_frame = True, last_frame
        self._wake()

    def heartbeat(self) -> None:
        """Let the readers send a heartbeat."""
        self.heartbeats += 1
        self._wake()

    def after(self, number: int) -> tuple[int, bytes]:
        """Return the next frames from a number on, joined, and the number after them."""
        if number < self.first:
            raise SlowReaderError(number)
        if self._joined[:2] != (number, self.next):
            page = self.frames.since(number, self._page_bytes)
            self._joined = (number, self.next, number + len(page), b"".join(page))
        return self._joined[2:]

    def _wake_soon(self) -> None:
        """Wake the readers at once, or in a burst when `COALESCE_S` has passed since the last time."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        delay = self._woken_at + COALESCE_S - loop.time()
        if delay > 0:
            self._timer = loop.call_later(delay, self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._woken_at = None, asyncio.get_running_loop().time()
        self.wakeups += 1
        waiters, self._waiters = self._waiters, set()
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def add_waiter(self, future: asyncio.Future[None]) -> None:
        """Resolve a future at the next wakeup."""
        self._waiters.add(future)

    def remove_waiter(self, future: asyncio.Future[None]) -> None:
        self._waiters.discard(future)


async def wait_any(broadcasts: Sequence[Broadcast]) -> None:
    """Wait for the next wakeup of any of these broadcasts."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for broadcast in broadcasts:
        broadcast.add_waiter(future)
    try:
        await future
    finally:
        for broadcast in broadcasts:
            broadcast.remove_waiter(future)
