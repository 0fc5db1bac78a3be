"""The newest items of a numbered sequence, which many readers share: a reader is only a number into it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Window(Generic[T]):
    """Items `first` to `next - 1`, at most `length` of them; the oldest are dropped."""

    def __init__(self, next: int, length: int) -> None:
        self.first = self.next = next
        self._items: deque[T] = deque()
        self._length = length

    def push(self, item: T) -> None:
        """Add the item with the number `next`."""
        self._items.append(item)
        self.next += 1
        if len(self._items) > self._length:
            self._items.popleft()
            self.first += 1

    def restart(self, next: int) -> None:
        """Drop all items; the next one has this number."""
        self._items.clear()
        self.first = self.next = next

    def since(self, number: int) -> list[T]:
        """Return the items from a number on, which must not be less than `first`."""
        return list(islice(self._items, number - self.first, None))
