"""Limit how much output of a stream is kept: its first bytes, which are sent at once, and its last bytes.

The rest is read and dropped, so that the command does not block.
"""

from __future__ import annotations

from collections import deque

# Output that alternates between the streams with every byte would take a hundred times its size in memory.
MAX_CHUNKS = 10_000
CHUNK_BYTES = 64 * 2**10


class OutputLimit:
    """The kept output of a stream. A chunk is a run of bytes without bytes of the other stream in between."""

    def __init__(self, head: int, tail: int) -> None:
        self.total_bytes = 0
        self.is_full = False
        self._head_left = head
        self._max_tail_bytes = tail
        self._tail_bytes = 0
        self._tail: deque[tuple[int, bytearray]] = deque()
        self._next_position = -1
        self._chunks = 0

    def add(self, position: int, data: bytes) -> bytes:
        """Return the part of the data to send now; the rest goes to the tail, which drops older bytes."""
        self._count(position, len(data))
        live = data[: self._head_left]
        self._head_left -= len(live)
        if len(live) < len(data):
            self.is_full = True
            self._add_to_tail(position + len(live), data[len(live) :])
        return live

    def _count(self, position: int, size: int) -> None:
        self.total_bytes += size
        self._chunks += position != self._next_position
        self._next_position = position + size
        if self._chunks > MAX_CHUNKS:
            self._head_left = 0

    def _add_to_tail(self, position: int, data: bytes) -> None:
        start, last = self._tail[-1] if self._tail else (-1, bytearray())
        if start + len(last) == position and len(last) < CHUNK_BYTES:
            last.extend(data)
        else:
            self._tail.append((position, bytearray(data)))
        self._tail_bytes += len(data)
        excess = self._tail_bytes - self._max_tail_bytes
        while self._tail and (len(self._tail[0][1]) <= excess or len(self._tail) > MAX_CHUNKS):
            dropped = len(self._tail.popleft()[1])
            self._tail_bytes, excess = self._tail_bytes - dropped, excess - dropped

    def tail(self) -> list[tuple[int, bytes]]:
        """Return the last bytes in chunks, with their positions."""
        excess = max(0, self._tail_bytes - self._max_tail_bytes)
        chunks = [(position, bytes(data)) for position, data in self._tail]
        if excess:
            position, data = chunks[0]
            chunks[0] = (position + excess, data[excess:])
        return chunks
