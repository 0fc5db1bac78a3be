"""The newest items of a numbered sequence, which many readers share: a reader is only a number into it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Window(Generic[T]):
    """Items `first` to `next - 1`, at most `length` of them and `max_bytes` in size; the oldest are dropped.

    The newest item is kept even if it is larger.
    """

    def __init__(self, next: int, length: int, max_bytes: int, size: Callable[[T], int] | Callable[[Any], int]) -> None:
        self.first = self.next = next
        self._items: deque[T] = deque()
        self._length = length
        self._size = size
        self._free_bytes = self._max_bytes = max_bytes

    def push(self, item: T) -> None:
        """Add the item with the number `next`."""
        self._items.append(item)
        self.next += 1
        self._free_bytes -= self._size(item)
        while len(self._items) > self._length or (self._free_bytes < 0 and len(self._items) > 1):
            self._free_bytes += self._size(self._items.popleft())
            self.first += 1

    def restart(self, next: int) -> None:
        """Drop all items; the next one has this number."""
        self._items.clear()
        self._free_bytes = self._max_bytes
        self.first = self.next = next

    def since(self, number: int, max_bytes: int | None = None) -> list[T]:
        """Return the items from a number on, which must not be less than `first`: up to a size, but at least one."""
        items = islice(self._items, number - self.first, None)
        if max_bytes is None:
            return list(items)
        page: list[T] = []
        for item in items:
            max_bytes -= self._size(item)
            if page and max_bytes < 0:
                break
            page.append(item)
        return page
