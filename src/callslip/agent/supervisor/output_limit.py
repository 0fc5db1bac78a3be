"""How much of a stream is kept, whatever its size: the first part, sent on at once, and the last part, held back.

Everything else is read and forgotten, so that the command can go on.
"""

from __future__ import annotations

from collections import deque

# Output that changes from one stream to the other with every byte would cost a hundred times its size to keep in order.
MAX_CHUNKS = 10_000
CHUNK_BYTES = 64 * 2**10


class Keep:
    """One stream. A piece is a run of bytes with none of the other stream between them."""

    def __init__(self, head: int, tail: int) -> None:
        self.total = 0
        self.full = False
        self._room = head
        self._limit = tail
        self._held = 0
        self._tail: deque[tuple[int, bytearray]] = deque()
        self._next = -1
        self._pieces = 0

    def take(self, position: int, data: bytes) -> bytes:
        """What of the data is to be sent on now; the rest is held until later output pushes it out."""
        self._count(position, len(data))
        live = data[: self._room]
        self._room -= len(live)
        if len(live) < len(data):
            self.full = True
            self._hold(position + len(live), data[len(live) :])
        return live

    def _count(self, position: int, size: int) -> None:
        self.total += size
        self._pieces += position != self._next
        self._next = position + size
        if self._pieces > MAX_CHUNKS:
            self._room = 0

    def _hold(self, position: int, data: bytes) -> None:
        if self._tail and self._follows(position):
            self._tail[-1][1].extend(data)
        else:
            self._tail.append((position, bytearray(data)))
        self._held += len(data)
        while self._tail and (self._held - len(self._tail[0][1]) >= self._limit or len(self._tail) > MAX_CHUNKS):
            self._held -= len(self._tail.popleft()[1])

    def _follows(self, position: int) -> bool:
        start, data = self._tail[-1]
        return start + len(data) == position and len(data) < CHUNK_BYTES

    def rest(self) -> list[tuple[int, bytes]]:
        """The last part, in pieces, with their positions."""
        over = max(0, self._held - self._limit)
        pieces = [(position, bytes(data)) for position, data in self._tail]
        if over:
            position, data = pieces[0]
            pieces[0] = (position + over, data[over:])
        return pieces
