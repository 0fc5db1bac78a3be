"""The open commands that this process knows of, and which of them expires next.

Plain data without a clock, a lock or a timer: one command costs a dict entry and a place in a bucket of 10 ms, about
200 bytes together. The owner of a tracker passes it records and asks it what is due.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from sys import intern

import msgspec

from callslip.model.records import CallRecord
from callslip.rules.lifecycle import OPEN_STATES, expires_at

BUCKET_MS = 10
"""The resolution of deadlines."""
STALE_SLACK = 1024
"""How many places of ended commands the buckets may hold, in addition to as many as there are open commands."""


class Pending(msgspec.Struct, gc=False):
    """A command that has not ended. `deadline` is 0 while its timeout has not started."""

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
        """Return a command that has not ended, as far as this process knows."""
        return self.pending.get(command)

    def update(self, record: CallRecord) -> bool:
        """Track the new state of a command. Return True if it can be claimed from now on."""
        existing = self.pending.get(record.id)
        if record.state not in OPEN_STATES:
            if existing is not None:
                self.remove(record.id)
            return False
        deadline = expires_at(record)
        if existing is None:
            self.pending[record.id] = Pending(intern(record.client), intern(record.state), deadline)
        is_claimable = record.state == "queued" and (existing is None or existing.state != "queued")
        if existing is None or existing.deadline != deadline:
            self._add_place(record.id, deadline)
        if existing is not None:
            existing.state, existing.deadline = intern(record.state), deadline
        return is_claimable

    def _add_place(self, command: str, deadline: int) -> None:
        if not deadline:
            return
        if self._places > 2 * len(self.pending) + STALE_SLACK:
            self._rebuild_buckets()
        bucket = -(-deadline // BUCKET_MS)
        if bucket not in self._buckets:
            self._buckets[bucket] = []
            heappush(self._order, bucket)
        self._buckets[bucket].append(command)
        self._places += 1

    def _rebuild_buckets(self) -> None:
        """Drop the places of ended commands. This costs as much as adding them did."""
        self._buckets, self._places = {}, 0
        for command, pending in self.pending.items():
            if pending.deadline:
                self._buckets.setdefault(-(-pending.deadline // BUCKET_MS), []).append(command)
                self._places += 1
        self._order = list(self._buckets)
        heapify(self._order)

    @property
    def next_due(self) -> int:
        """When to call `due` again, in ms since the epoch; 0 if no command has a deadline."""
        return self._order[0] * BUCKET_MS if self._order else 0

    def due(self, now: int) -> list[str]:
        """Return the commands whose deadline has passed. Each is returned once, unless `reschedule` adds it again."""
        commands: list[str] = []
        while self._order and self._order[0] * BUCKET_MS <= now:
            bucket = heappop(self._order)
            candidates = self._buckets.pop(bucket)
            self._places -= len(candidates)
            for command in dict.fromkeys(candidates):
                pending = self.pending.get(command)
                if pending is not None and -(-pending.deadline // BUCKET_MS) == bucket:  # Else it was rescheduled.
                    commands.append(command)
        return commands

    def reschedule(self, command: str, deadline: int) -> None:
        """Give a command that was due a later deadline."""
        pending = self.pending.get(command)
        if pending is not None:
            pending.deadline = deadline
            self._add_place(command, deadline)

    def remove(self, command: str) -> None:
        """Remove a command that has ended or was deleted. Without open commands all memory is freed."""
        self.pending.pop(command, None)
        if not self.pending:
            self.pending.clear()
            self._buckets.clear()
            self._order.clear()
            self._places = 0
