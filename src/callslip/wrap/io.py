"""The two ends of a direction: where its bytes are read, and where they are written.

Nothing here changes how the other side's file works: whoever started this process may share it with others, so it
stays blocking, and an end is given up by putting nothing in its place.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

from callslip.wrap.recorder_pipe import write_all

CHUNK_BYTES = 2**16
DRAIN_MS = 1000
"""How long (ms) an agent that has ended may leave its output silent in the hands of its children."""


def pieces(fd: int, gone: int = -1) -> Iterator[bytes]:
    """All that comes, as it comes. Once `gone` is readable, silence is an end too."""
    ready = select.poll()
    for end in (fd, gone):
        if end >= 0:
            ready.register(end, select.POLLIN)
    alone = select.poll()
    alone.register(fd, select.POLLIN)
    while True:
        if gone >= 0 and fd not in dict(ready.poll()) and not alone.poll(DRAIN_MS):
            return
        data = os.read(fd, CHUNK_BYTES)
        if not data:
            return
        yield data


def let_go(fd: int) -> None:
    """Close one of our own standard streams: its other side hears that nobody is here any more."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, fd)
    os.close(nothing)


class Outlet:
    """Where one direction is written. Lines of our own go between its lines, never into one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._turn = threading.Condition()
        self._torn = self._closed = False

    def write(self, data: bytes) -> None:
        """Pass a piece on."""
        with self._turn:
            write_all(self._fd, data)
            self._torn = not data.endswith(b"\n")
            self._turn.notify_all()

    def insert(self, line: bytes) -> None:
        """Write a line of our own as soon as no other is under way. What is closed takes none."""
        with self._turn:
            self._turn.wait_for(lambda: self._closed or not self._torn)
            if not self._closed:
                write_all(self._fd, line)

    def close(self) -> None:
        """No more will be written."""
        with self._turn:
            if not self._closed:
                self._closed = True
                os.close(self._fd)
            self._turn.notify_all()
