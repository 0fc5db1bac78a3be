"""Simulate a disk that fails: a SQLite VFS that logs every write and sync.

While a `Disk` is registered, every connection of this process uses it. From its log, `images` builds the files as they
may be after a power cut: everything that was synced, and any part of the rest, down to single sectors. The shared
memory of the WAL is not on the disk and is not in the image.

With `max_journal_bytes` the disk is full once a WAL or a journal reaches that size. The main file is not limited:
SQLite ignores a failed checkpoint, but apsw would raise its exception.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import apsw

SECTOR_BYTES = 512
_vfs_numbers = iter(range(1, 2**31))


class Write(NamedTuple):
    path: str
    at: int
    data: bytes


class Truncate(NamedTuple):
    path: str
    size: int


class Sync(NamedTuple):
    path: str


class Delete(NamedTuple):
    path: str
    durable: bool


class Acknowledged(NamedTuple):
    """Marks the position in the log at which a value was acknowledged as stored."""

    value: Any


class Disk(apsw.VFS):
    """Logs every change of a file in `log`."""

    def __init__(self, max_journal_bytes: int | None = None) -> None:
        self.base_vfs_name = apsw.vfs_names()[0]
        self.log: list[Any] = []
        self.max_journal_bytes = max_journal_bytes
        self.sizes: dict[str, int] = {}
        super().__init__(f"disk-{os.getpid()}-{next(_vfs_numbers)}", self.base_vfs_name, makedefault=True)

    def __enter__(self) -> Disk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()

    def xOpen(self, name: Any, flags: list[int]) -> File:
        return File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.log.append(Delete(filename, bool(syncdir)))
        self.sizes.pop(filename, None)

    def reserve(self, path: str, end: int) -> None:
        """Raise FullError if a file may not reach this size."""
        if self.max_journal_bytes is not None and path.endswith(("-wal", "-journal")) and end > self.max_journal_bytes:
            raise apsw.FullError("disk full")
        self.sizes[path] = max(end, self.sizes.get(path, 0))

    def shrink(self, path: str, size: int) -> None:
        self.sizes[path] = min(size, self.sizes.get(path, 0))


class File(apsw.VFSFile):
    """An open file that logs each change."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        super().__init__(disk.base_vfs_name, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.reserve(self.path, offset + len(data))
        super().xWrite(data, offset)
        self.disk.log.append(Write(self.path, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self.disk.shrink(self.path, newsize)
        self.disk.log.append(Truncate(self.path, newsize))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self.disk.log.append(Sync(self.path))


class SimulatedFile:
    """A file on the simulated disk: its synced content and the writes since."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Write | Truncate] = []
        self.is_new = True

    def sync(self) -> None:
        self.is_new = False
        for change in self.pending:
            _apply(self.synced, change, 0)
        self.pending.clear()

    def after_cut(self, rng: random.Random) -> bytes:
        """Return a possible content of the file after a power cut."""
        data = bytearray(self.synced)
        fill_byte = rng.choice((0, rng.randrange(1, 256)))
        for change in CUT_OUTCOMES[rng.randrange(len(CUT_OUTCOMES))](self.pending, rng):
            _apply(data, change, fill_byte)
        return bytes(data)


def _apply(data: bytearray, change: Write | Truncate, fill_byte: int) -> None:
    if isinstance(change, Truncate):
        del data[change.size :]
        return
    if len(data) < change.at:
        data.extend(bytes([fill_byte]) * (change.at - len(data)))
    data[change.at : change.at + len(change.data)] = change.data


Changes = list[Write | Truncate]


def _sectors(change: Write | Truncate) -> Iterator[Write | Truncate]:
    if isinstance(change, Truncate):
        yield change
        return
    for start in range(0, len(change.data), SECTOR_BYTES):
        yield Write(change.path, change.at + start, change.data[start : start + SECTOR_BYTES])


def _lose_all(pending: Changes, rng: random.Random) -> Changes:
    return []


def _keep_all(pending: Changes, rng: random.Random) -> Changes:
    return pending


def _keep_prefix(pending: Changes, rng: random.Random) -> Changes:
    """Return the first sectors, as if the disk stopped in the middle of a write."""
    sectors = [sector for change in pending for sector in _sectors(change)]
    return sectors[: rng.randrange(len(sectors) + 1)]


def _keep_any_writes(pending: Changes, rng: random.Random) -> Changes:
    return [change for change in pending if rng.random() < 0.5]


def _keep_any_sectors(pending: Changes, rng: random.Random) -> Changes:
    probability = rng.choice((0.1, 0.5, 0.9))
    return [sector for change in pending for sector in _sectors(change) if rng.random() < probability]


CUT_OUTCOMES = (_lose_all, _keep_all, _keep_prefix, _keep_any_writes, _keep_any_sectors)


class Image(NamedTuple):
    """The disk after a power cut: what was acknowledged, the files, and the number of unsynced writes."""

    acknowledged: list[Any]
    files: dict[str, bytes]
    unsynced: int

    def write_files(self, folder: Path) -> None:
        """Write the files into a folder."""
        folder.mkdir(parents=True)
        for path, data in self.files.items():
            (folder / os.path.basename(path)).write_bytes(data)


def cut_images(log: Iterable[Any], cuts: Iterable[int], rng: random.Random) -> Iterator[Image]:
    """Yield the disk after a power cut at each of these positions in the log."""
    remaining = sorted(cuts, reverse=True)
    files: dict[str, SimulatedFile] = {}
    restorable: dict[str, bytes] = {}
    acknowledged: list[Any] = []
    for number, operation in enumerate(log, 1):
        if isinstance(operation, Acknowledged):
            acknowledged.append(operation.value)
        else:
            _apply_operation(operation, files, restorable)
        while remaining and remaining[-1] <= number:
            remaining.pop()
            existing = {path: file.after_cut(rng) for path, file in files.items()}
            restored = {path: data for path, data in restorable.items() if path not in existing and rng.random() < 0.5}
            unsynced = sum(len(file.pending) for file in files.values())
            yield Image(list(acknowledged), existing | restored, unsynced)


def _apply_operation(operation: Any, files: dict[str, SimulatedFile], restorable: dict[str, bytes]) -> None:
    if isinstance(operation, Delete):
        deleted = files.pop(operation.path, None)
        if deleted is not None and not operation.durable:
            restorable[operation.path] = bytes(deleted.synced)
        return
    file = files.setdefault(operation.path, SimulatedFile())
    if isinstance(operation, Sync):
        if file.is_new and operation.path.endswith(("-wal", "-journal")):
            restorable.clear()  # SQLite syncs the folder too when it first syncs a new journal.
        file.sync()
    else:
        file.pending.append(operation)
