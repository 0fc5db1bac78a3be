"""Data that readers hold beyond their own share of memory: single events, entries and replays that are large.

It is counted once for all readers that hold the same object, and has a limit. If there is no room, readers that hold
some of it and accept nothing are disconnected; if there is still none, the new reader is.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import msgspec

from callslip.http.problems import TooManyReadersError

PATIENCE_S = 1.0
"""How long a reader that holds shared memory may accept nothing while another reader needs it."""


class Holder(Protocol):
    """A connection that holds data."""

    progress_at: float

    def cut(self) -> bool:
        """Disconnect the reader if it is waiting to accept data, and return whether it was."""
        ...


class _Item(msgspec.Struct):
    data: Any
    size: int
    holders: list[Holder]


class HeldData:
    """What the readers of one server hold."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._items: dict[int, _Item] = {}

    def take(self, data: Any, size: int, holder: Holder) -> None:
        """Count an object for a holder, or raise TooManyReadersError if there is no room for it."""
        item = self._items.get(id(data))
        if item is None:
            if not self._fits(size):
                self._cut_stalled(size)
            if not self._fits(size):
                raise TooManyReadersError("other readers hold too much data that they do not accept; try again later")
            item = self._items[id(data)] = _Item(data, size, [])
            self.used_bytes += size
        item.holders.append(holder)

    def release(self, data: Any, holder: Holder) -> None:
        """Count an object no more for a holder. Does nothing if it was released already."""
        item = self._items.get(id(data))
        if item is not None and holder in item.holders:
            item.holders.remove(holder)
            if not item.holders:
                self.used_bytes -= item.size
                del self._items[id(data)]

    def _fits(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self.max_bytes

    def _cut_stalled(self, size: int) -> None:
        """Disconnect stalled holders until an object of this size fits, those first that have stalled longest."""
        limit = time.monotonic() - PATIENCE_S
        holders = {id(holder): holder for item in self._items.values() for holder in item.holders}
        for holder in sorted(holders.values(), key=lambda holder: holder.progress_at):
            if holder.progress_at > limit or self._fits(size):
                return
            if holder.cut():
                for item in [item for item in self._items.values() if holder in item.holders]:
                    while holder in item.holders:
                        self.release(item.data, holder)
