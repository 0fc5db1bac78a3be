"""Find the order of rows, which is oldest first or newest first: by their times, else by numeric ids.

Without either their calls decide: a call precedes its result. Rows with the same time stay in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any

from callslip.formats.ai_sdk_v4.wire import TOOL, USER, Row

OLDEST, UNKNOWN, NEWEST = 1, 0, -1


class OrderDetector:
    """Finds from the first rows whether a thread begins with the oldest or the newest row."""

    def __init__(self) -> None:
        self.order = UNKNOWN
        self._time: datetime | None = None
        self._number: int | None = None
        self._last: Row | None = None
        self._calls: set[str] = set()
        self._answers: set[str] = set()

    def add(self, row: Row) -> int:
        """Return the order once it is known."""
        if self.order == UNKNOWN:
            order = _compare(self._time, row.at) or _compare(self._number, row.number)
            self._time, self._number = self._time or row.at, row.number if self._number is None else self._number
            self.order = order or (self._by_calls(row) if self._time is None else UNKNOWN)
            self._last = row
        return self.order

    def guess(self) -> int:
        """Return the likely order: rows that end with a user's message begin with the newest."""
        ends_with_user = self._last is not None and self._last.kind == USER and not self._time
        return self.order or (NEWEST if ends_with_user else OLDEST)

    def _by_calls(self, row: Row) -> int:
        if self._last is None and row.kind == USER:
            return OLDEST
        if row.kind == TOOL:
            self._answers.add(row.answers)
            return OLDEST if row.answers in self._calls else UNKNOWN
        calls = {call.id for call in row.calls}
        self._calls |= calls
        return NEWEST if calls & self._answers else UNKNOWN


def _compare(before: Any, after: Any) -> int:
    if before is None or after is None or before == after:
        return UNKNOWN
    return OLDEST if before < after else NEWEST


def detect_order(rows: Iterable[Row]) -> int:
    """Return the order of rows."""
    detector = OrderDetector()
    for row in rows:
        if detector.add(row):
            break
    return detector.guess()


def oldest_first(rows: list[Row]) -> list[Row]:
    """Return rows in the order of their times."""
    ordered = rows[::-1] if detect_order(rows) == NEWEST else rows[:]
    if all(row.number is not None for row in ordered):
        ordered.sort(key=attrgetter("number"))
    if any(row.at is None for row in ordered):
        return _by_neighbours(ordered)
    ordered.sort(key=attrgetter("at"))
    return ordered


def _by_neighbours(rows: list[Row]) -> list[Row]:
    """Return rows by time; a row without a time stays after the previous one."""
    at = next((row.at for row in rows if row.at is not None), None)
    if at is None:
        return rows
    times: list[datetime] = []
    for row in rows:
        at = row.at or at
        times.append(at)
    return [rows[index] for index in sorted(range(len(rows)), key=times.__getitem__)]


class RowQueue:
    """Orders rows that arrive one by one: oldest first they pass at once, else they are held until the last one."""

    def __init__(self) -> None:
        self._detector = OrderDetector()
        self._held: list[Row] = []

    def add(self, row: Row) -> list[Row]:
        """Add a row and return those that are ready."""
        self._held.append(row)
        if self._detector.add(row) != OLDEST:
            return []
        ready, self._held = self._held, []
        return ready

    @property
    def holds_rows(self) -> bool:
        return bool(self._held)

    def flush(self) -> list[Row]:
        """Return the held rows in order."""
        held, self._held = self._held, []
        return oldest_first(held)
