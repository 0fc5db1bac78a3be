"""Create the files of a ledger for their owner only, and notice if one is deleted or replaced while it is open.

A process that has a deleted file open could write to it without an error, but no other process would read that.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time

from callslip.errors import LostFileError, StoreError

CHECK_INTERVAL_S = 0.1
"""How often readers check the files. Writers check them before each transaction."""

Identity = tuple[int, int]


def create_file(path: str, flags: int = 0, mode: int = 0o600) -> int | None:
    """Create a file that only its owner can read, or with another mode, with any umask. Return None if it exists."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | flags, 0o600)
    except FileExistsError:
        return None
    with contextlib.suppress(AttributeError, OSError):  # Windows, and file systems without modes.
        os.fchmod(file, mode)
    return file


def create_database(path: str) -> None:
    """Create an empty database file, unless it exists. SQLite gives its other files the same mode."""
    has_wal = _size(_real(path) + "-wal") > 0
    if has_wal and not os.path.exists(path):  # SQLite would delete it, with the newest events of the lost ledger.
        raise StoreError(
            f"{path}: the file is missing, but {path}-wal has events of it. "
            f"Restore the file, or move {path}-wal away to create a new ledger."
        )
    file = create_file(_real(path))
    if file is not None:
        os.close(file)


def open_lock_file(database: str, suffix: str) -> int:
    """Open a lock file, and create it if needed: for all users who can open the database.

    A symbolic link is not followed: it could name any file.
    """
    path, no_follow = database + suffix, getattr(os, "O_NOFOLLOW", 0)
    try:
        mode = os.stat(database).st_mode & 0o666
    except FileNotFoundError:
        mode = 0o600
    file = create_file(path, no_follow, mode)
    if file is not None:
        return file
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | no_follow, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreError(f"{path}: the lock file is a symbolic link. Remove it.") from None
        raise


class LedgerFiles:
    """The files of an open ledger. For a database in memory there are none."""

    def __init__(self, path: str = "", *, has_wal: bool = False) -> None:
        """Remember which files are open now. Those of the WAL exist as long as a connection that can write is open."""
        self._path = path
        paths = [os.path.abspath(path)] if path else []
        if has_wal:
            paths += [_real(path) + "-wal", _real(path) + "-shm"]
        self._identities = [(name, identity) for name in paths if (identity := _identity(name)) is not None]
        self._check_at = -math.inf

    def check(self) -> None:
        """Raise LostFileError if a file is not the one that was opened."""
        self._check_at = -math.inf
        for name, identity in self._identities:
            current = _identity(name)
            if current != identity:
                change = "deleted" if current is None else "replaced"
                raise LostFileError(
                    f"{self._path}: {os.path.basename(name)} was {change} while the ledger was open; nothing was"
                    " written. Put the file back, or restart to use what is there now."
                )
        self._check_at = time.monotonic() + CHECK_INTERVAL_S

    def check_sometimes(self) -> None:
        """Check as `check` does, at most every `CHECK_INTERVAL_S` unless a file is lost."""
        if time.monotonic() >= self._check_at:
            self.check()


def _identity(path: str) -> Identity | None:
    """Return what tells a file from another one of the same name, or None if there is no file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _real(path: str) -> str:
    """Return the file that a link names; SQLite creates its other files next to that one."""
    return os.path.realpath(path)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
