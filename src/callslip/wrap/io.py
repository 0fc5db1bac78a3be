"""Read and write the two ends of a stream between the client and the agent.

The files stay in blocking mode, because other processes may share them. A standard stream is closed by replacing it
with the null device, so that its number is not reused.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

CHUNK_BYTES = 2**16
DRAIN_MS = 1000
"""How long to wait for more output of an agent that has ended; its children may keep the stream open."""


def read_chunks(fd: int, ended_fd: int = -1) -> Iterator[bytes]:
    """Yield what arrives until the stream ends. Once `ended_fd` is readable, silence for DRAIN_MS ends it too."""
    both = select.poll()
    for watched in (fd, ended_fd):
        if watched >= 0:
            both.register(watched, select.POLLIN)
    alone = select.poll()
    alone.register(fd, select.POLLIN)
    while True:
        if ended_fd >= 0 and fd not in dict(both.poll()) and not alone.poll(DRAIN_MS):
            return
        data = os.read(fd, CHUNK_BYTES)
        if not data:
            return
        yield data


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, in as many writes as necessary."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def close_standard_stream(fd: int) -> None:
    """Close a standard stream of this process, so that the process at the other end notices."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


class LineWriter:
    """Writes a stream. Inserted lines go between its lines, never into one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._condition = threading.Condition()
        self._is_mid_line = self._is_closed = False

    def write(self, data: bytes) -> None:
        """Write a chunk of the stream."""
        with self._condition:
            write_all(self._fd, data)
            self._is_mid_line = not data.endswith(b"\n")
            self._condition.notify_all()

    def insert(self, line: bytes) -> None:
        """Write a line as soon as the current one is complete. Do nothing if the stream is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_closed or not self._is_mid_line)
            if not self._is_closed:
                write_all(self._fd, line)

    def close(self) -> None:
        """Close the stream."""
        with self._condition:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._fd)
            self._condition.notify_all()
