"""What this process knows of the commands that have not ended, and when the next of them runs out of time.

Plain data without a clock, a lock or a timer of its own: one command costs an entry in a map and a place in a bucket of
10 ms, some 200 bytes together. Whoever holds a tracker feeds it with rows and asks it what is due.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from sys import intern

import msgspec

from callslip.model.records import CallRecord
from callslip.rules.lifecycle import OPEN_STATES, expires_at

BUCKET = 10
"""How finely deadlines are told apart, in ms."""
SLACK = 1024
"""So many places of commands that have ended may lie in the buckets, beside as many as there are open ones."""


class Pending(msgspec.Struct, gc=False):
    """A command that has not ended. `deadline` is 0 while its time has not begun."""

    client: str
    state: str
    deadline: int


class DeadlineTracker:
    """The open commands by id, and their deadlines in order."""

    def __init__(self) -> None:
        self.pending: dict[str, Pending] = {}
        self._buckets: dict[int, list[str]] = {}
        self._order: list[int] = []
        self._places = 0

    def get(self, command: str) -> Pending | None:
        """A command that has not ended, as far as this process knows."""
        return self.pending.get(command)

    def take(self, row: CallRecord) -> bool:
        """Bring it up to a command's row. Whether the command may be taken up from now on."""
        known = self.pending.get(row.id)
        if row.state not in OPEN_STATES:
            if known is not None:
                self.forget(row.id)
            return False
        deadline = expires_at(row)
        if known is None:
            self.pending[row.id] = Pending(intern(row.client), intern(row.state), deadline)
        queued = row.state == "queued" and (known is None or known.state != "queued")
        if known is None or known.deadline != deadline:
            self._arm(row.id, deadline)
        if known is not None:
            known.state, known.deadline = intern(row.state), deadline
        return queued

    def _arm(self, command: str, deadline: int) -> None:
        if not deadline:
            return
        if self._places > 2 * len(self.pending) + SLACK:
            self._tidy()
        bucket = -(-deadline // BUCKET)
        if bucket not in self._buckets:
            self._buckets[bucket] = []
            heappush(self._order, bucket)
        self._buckets[bucket].append(command)
        self._places += 1

    def _tidy(self) -> None:
        """Forget the places of what has ended: as many as were taken since the last time."""
        self._buckets, self._places = {}, 0
        for command, row in self.pending.items():
            if row.deadline:
                self._buckets.setdefault(-(-row.deadline // BUCKET), []).append(command)
                self._places += 1
        self._order = list(self._buckets)
        heapify(self._order)

    @property
    def next_due(self) -> int:
        """When to ask again what is due, in ms since the epoch; 0 if nothing has a deadline."""
        return self._order[0] * BUCKET if self._order else 0

    def due(self, now: int) -> list[str]:
        """Commands whose time is over. Each is told once; `again` asks for it once more."""
        found: list[str] = []
        while self._order and self._order[0] * BUCKET <= now:
            bucket = heappop(self._order)
            names = self._buckets.pop(bucket)
            self._places -= len(names)
            for name in dict.fromkeys(names):
                row = self.pending.get(name)
                if row is not None and -(-row.deadline // BUCKET) == bucket:  # Else it has another place by now.
                    found.append(name)
        return found

    def again(self, command: str, deadline: int) -> None:
        """A command that was told to be due has more time."""
        row = self.pending.get(command)
        if row is not None:
            row.deadline = deadline
            self._arm(command, deadline)

    def forget(self, command: str) -> None:
        """A command that has ended, or is nowhere any more. When none is open no room is kept for any."""
        self.pending.pop(command, None)
        if not self.pending:
            self.pending.clear()
            self._buckets.clear()
            self._order.clear()
            self._places = 0
