"""Two lock files that make writers of several processes wait in turn.

SQLite's own busy handler sleeps and retries, so under load one process can starve for seconds. Here a writer first
takes the queue lock, then the work lock, and gives the queue lock back: one works, one stands next, and who stands next
cannot be overtaken. Locks of a dead process vanish with it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # Windows has no flock; SQLite's busy timeout alone keeps writers apart there.
    fcntl = None


class WriteLock:
    """The two locks beside one database file. Until it is opened, and in memory, nobody waits."""

    def __init__(self, path: str = "") -> None:
        self._queue = self._work = -1
        if path:
            self.open(path)

    def open(self, path: str) -> None:
        """Make the lock files, or find them."""
        if fcntl is not None:
            self._queue = os.open(path + "-queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._work = os.open(path + "-work", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def turn(self) -> Generator[None]:
        """Hold the work lock."""
        if fcntl is None or self._work < 0:
            yield
            return
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._work, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._work, fcntl.LOCK_UN)

    def close(self) -> None:
        for lock in (self._queue, self._work):
            if lock >= 0:
                os.close(lock)
        self._queue = self._work = -1
