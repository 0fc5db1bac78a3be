"""Which row came first. Rows come oldest first or newest first; their times tell which, else the ids that count.

Rows without either are taken as their calls say: a call stands before its result. Of rows with the same time those stay
in order that came in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any

from callslip.formats.ai_sdk_v4.wire import TOOL, USER, Row

OLDEST, UNTOLD, NEWEST = 1, 0, -1


class Heading:
    """Tells from the first rows which end of the thread they begin at."""

    def __init__(self) -> None:
        self.way = UNTOLD
        self._time: datetime | None = None
        self._number: int | None = None
        self._last: Row | None = None
        self._calls: set[str] = set()
        self._answers: set[str] = set()

    def see(self, row: Row) -> int:
        """The way, once it is known."""
        if self.way == UNTOLD:
            timed = row.at is not None or self._time is not None
            self.way = self._by_time(row) or (UNTOLD if timed else self._by_calls(row))
            self._last = row
        return self.way

    def guess(self) -> int:
        """The way of rows that do not tell: with the user's words at their end they begin with the newest."""
        ends = self._last is not None and self._last.kind == USER and not self._time
        return self.way or (NEWEST if ends else OLDEST)

    def _by_time(self, row: Row) -> int:
        way = _way(self._time, row.at) or _way(self._number, row.number)
        self._time, self._number = self._time or row.at, row.number if self._number is None else self._number
        return way

    def _by_calls(self, row: Row) -> int:
        if self._last is None and row.kind == USER:
            return OLDEST
        if row.kind == TOOL:
            self._answers.add(row.answers)
            return OLDEST if row.answers in self._calls else UNTOLD
        calls = {call.id for call in row.calls}
        self._calls |= calls
        return NEWEST if calls & self._answers else UNTOLD


def _way(before: Any, after: Any) -> int:
    if before is None or after is None or before == after:
        return UNTOLD
    return OLDEST if before < after else NEWEST


def heading(rows: Iterable[Row]) -> int:
    """Which end of the thread rows begin at."""
    told = Heading()
    for row in rows:
        if told.see(row):
            break
    return told.guess()


def oldest_first(rows: list[Row]) -> list[Row]:
    """The rows in the order of their times, whichever order they came in."""
    ordered = rows[::-1] if heading(rows) == NEWEST else rows[:]
    if all(row.number is not None for row in ordered):
        ordered.sort(key=attrgetter("number"))
    if any(row.at is None for row in ordered):
        return _by_neighbours(ordered)
    ordered.sort(key=attrgetter("at"))
    return ordered


def _by_neighbours(rows: list[Row]) -> list[Row]:
    """A row without a time stays behind the one before it."""
    at = next((row.at for row in rows if row.at is not None), None)
    if at is None:
        return rows
    times: list[datetime] = []
    for row in rows:
        at = row.at or at
        times.append(at)
    return [rows[place] for place in sorted(range(len(rows)), key=times.__getitem__)]


class Arrival:
    """Rows that come one by one: told at once if the oldest came first, else held until the last has come."""

    def __init__(self) -> None:
        self._heading = Heading()
        self._held: list[Row] = []

    def take(self, row: Row) -> list[Row]:
        """The rows that can be told now."""
        self._held.append(row)
        if self._heading.see(row) != OLDEST:
            return []
        ready, self._held = self._held, []
        return ready

    def rest(self) -> list[Row]:
        """The rows that were held, in order."""
        held, self._held = self._held, []
        return oldest_first(held)
