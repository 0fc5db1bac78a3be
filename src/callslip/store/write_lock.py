"""A fair lock between the writers of several processes, made of lock files.

The busy handler of SQLite sleeps and retries, so that under load a process can starve for seconds. Here a writer takes
the queue lock, then the work lock, and releases the queue lock: one writer works, and the next one cannot be overtaken.
The operating system releases the locks of a dead process.

A third file says whether a ledger is in use: each process that has it open for writing holds a shared lock of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from contextlib import contextmanager

from callslip.store.ledger_files import open_lock_file

try:
    import fcntl
except ImportError:  # Windows has no flock; there the busy timeout of SQLite has to suffice.
    fcntl = None


def is_used(path: str, own: WriteLock | None = None) -> bool:
    """Return whether another process has a database open for writing. `own` is the open lock of this process.

    No lock file is created: without one no process uses the database.
    """
    if fcntl is None:
        return False
    if own is not None:
        return own.is_shared()
    try:
        lock = os.open(path + "-use", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


class WriteLock:
    """The lock files next to a database file. Before `open`, and for a database in memory, nothing is locked.

    `was_unused` is set by `open`: no other process had the database open for writing.
    """

    def __init__(self, path: str = "") -> None:
        self._queue = self._work = self._use = -1
        self.was_unused = False
        if path:
            self.open(path)

    def open(self, path: str) -> None:
        """Open the lock files, and create them if needed."""
        if fcntl is not None:
            self._queue = open_lock_file(path, "-queue")
            self._work = open_lock_file(path, "-work")
            self._use = open_lock_file(path, "-use")
            with contextlib.suppress(OSError):  # Another process uses it.
                fcntl.flock(self._use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.was_unused = True
            fcntl.flock(self._use, fcntl.LOCK_SH)

    def is_shared(self) -> bool:
        """Return whether another process has the database open for writing, too."""
        if fcntl is None or self._use < 0:
            return False
        try:
            fcntl.flock(self._use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            fcntl.flock(self._use, fcntl.LOCK_SH)
        return False

    @contextmanager
    def turn(self) -> Generator[None]:
        """Hold the work lock within a `with` block."""
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
        """Close the lock files."""
        for lock in (self._queue, self._work, self._use):
            if lock >= 0:
                os.close(lock)
        self._queue = self._work = self._use = -1
