"""A disk that can fail: SQLite's own files through a VFS that remembers what was written since the last sync.

While it stands, every connection of this process goes through it. From what it remembers, `images` makes the files as
they may lie after the power went: all that was synced, and any part of what was not, down to single sectors. The
shared memory of the WAL is not on the disk and is not in the image.

With `room` it is a disk that gets full: its WALs and journals are written no further than that. The main file is, since
SQLite ignores a checkpoint that fails, but apsw would raise the exception that told it so.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import apsw

SECTOR = 512
_numbers = iter(range(1, 2**31))


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
    """Not done to the disk: what somebody was told is safe, at this point."""

    what: Any


class Disk(apsw.VFS):
    """All that happened to the files, in order, in `log`."""

    def __init__(self, room: int | None = None) -> None:
        self.below = apsw.vfs_names()[0]
        self.log: list[Any] = []
        self.room = room
        self.sizes: dict[str, int] = {}
        super().__init__(f"disk-{os.getpid()}-{next(_numbers)}", self.below, makedefault=True)

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

    def take(self, path: str, end: int) -> None:
        """Room for a file to reach so far, or there is none."""
        if self.room is not None and path.endswith(("-wal", "-journal")) and end > self.room:
            raise apsw.FullError("no room")
        self.sizes[path] = max(end, self.sizes.get(path, 0))

    def shrink(self, path: str, size: int) -> None:
        self.sizes[path] = min(size, self.sizes.get(path, 0))


class File(apsw.VFSFile):
    """One open file: the real one, and a line in the log for each change."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        super().__init__(disk.below, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.take(self.path, offset + len(data))
        super().xWrite(data, offset)
        self.disk.log.append(Write(self.path, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self.disk.shrink(self.path, newsize)
        self.disk.log.append(Truncate(self.path, newsize))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self.disk.log.append(Sync(self.path))


class Platter:
    """One file on the disk: what is surely there, and what may be."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Write | Truncate] = []
        self.fresh = True

    def sync(self) -> None:
        self.fresh = False
        for change in self.pending:
            _apply(self.synced, change, 0)
        self.pending.clear()

    def after_cut(self, chance: random.Random) -> bytes:
        """What a reader finds after the power went at this moment."""
        data = bytearray(self.synced)
        garbage = chance.choice((0, chance.randrange(1, 256)))
        for change in WAYS[chance.randrange(len(WAYS))](self.pending, chance):
            _apply(data, change, garbage)
        return bytes(data)


def _apply(data: bytearray, change: Write | Truncate, hole: int) -> None:
    if isinstance(change, Truncate):
        del data[change.size :]
        return
    if len(data) < change.at:
        data.extend(bytes([hole]) * (change.at - len(data)))
    data[change.at : change.at + len(change.data)] = change.data


Changes = list[Write | Truncate]


def _sectors(change: Write | Truncate) -> Iterator[Write | Truncate]:
    if isinstance(change, Truncate):
        yield change
        return
    for start in range(0, len(change.data), SECTOR):
        yield Write(change.path, change.at + start, change.data[start : start + SECTOR])


def _none(pending: Changes, chance: random.Random) -> Changes:
    return []


def _all(pending: Changes, chance: random.Random) -> Changes:
    return pending


def _prefix(pending: Changes, chance: random.Random) -> Changes:
    """As far as the disk had come, in the middle of a write."""
    sectors = [sector for change in pending for sector in _sectors(change)]
    return sectors[: chance.randrange(len(sectors) + 1)]


def _any_writes(pending: Changes, chance: random.Random) -> Changes:
    return [change for change in pending if chance.random() < 0.5]


def _any_sectors(pending: Changes, chance: random.Random) -> Changes:
    likely = chance.choice((0.1, 0.5, 0.9))
    return [sector for change in pending for sector in _sectors(change) if chance.random() < likely]


WAYS = (_none, _all, _prefix, _any_writes, _any_sectors)


class Image(NamedTuple):
    """The disk after a power cut: what had been acknowledged, its files, and how many writes were not synced."""

    acknowledged: list[Any]
    files: dict[str, bytes]
    unsynced: int

    def lay_out(self, folder: Path) -> None:
        """Write the files into a folder."""
        folder.mkdir(parents=True)
        for path, data in self.files.items():
            (folder / os.path.basename(path)).write_bytes(data)


def images(log: Iterable[Any], cuts: Iterable[int], chance: random.Random) -> Iterator[Image]:
    """The disk as it may lie if the power goes after so many lines of the log, for each of the cuts."""
    wanted = sorted(cuts, reverse=True)
    files: dict[str, Platter] = {}
    ghosts: dict[str, bytes] = {}
    acknowledged: list[Any] = []
    for number, line in enumerate(log, 1):
        if isinstance(line, Acknowledged):
            acknowledged.append(line.what)
        else:
            _take(line, files, ghosts)
        while wanted and wanted[-1] <= number:
            wanted.pop()
            found = {path: file.after_cut(chance) for path, file in files.items()}
            risen = {path: data for path, data in ghosts.items() if path not in found and chance.random() < 0.5}
            unsynced = sum(len(file.pending) for file in files.values())
            yield Image(list(acknowledged), found | risen, unsynced)


def _take(line: Any, files: dict[str, Platter], ghosts: dict[str, bytes]) -> None:
    if isinstance(line, Delete):
        gone = files.pop(line.path, None)
        if gone is not None and not line.durable:
            ghosts[line.path] = bytes(gone.synced)
        return
    file = files.setdefault(line.path, Platter())
    if isinstance(line, Sync):
        if file.fresh and line.path.endswith(("-wal", "-journal")):
            ghosts.clear()  # SQLite syncs the folder too when it first syncs a new journal.
        file.sync()
    else:
        file.pending.append(line)
