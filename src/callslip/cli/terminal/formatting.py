"""Times, spans and counts as text on a terminal. Times are local."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from typing import Any

import click

from callslip.errors import InvalidInputError
from callslip.model.display import call_state_name, parse_time, pluralize


class Seconds(click.ParamType[float]):
    """A finite number of seconds: at least 0, or above 0, and at most a maximum."""

    name = "seconds"

    def __init__(self, *, above_zero: bool = False, maximum: float = math.inf) -> None:
        self._above_zero = above_zero
        self._maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value  # Set by the option itself, not by the user.
        number = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"must be a finite number of seconds, got {value}", param, ctx)
        if number < 0 or (self._above_zero and not number):
            self.fail(f"must be {'above' if self._above_zero else 'at least'} 0 seconds, got {value}", param, ctx)
        if number > self._maximum:
            self.fail(f"must be at most {self._maximum:.0f} seconds, got {value}", param, ctx)
        return number


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def format_time(ms: int) -> str:
    """Return the time of day."""
    at = parse_time(ms)
    return at.strftime("%H:%M:%S") if at else "--:--:--"


def format_date(ms: int) -> str:
    """Return the date."""
    at = parse_time(ms)
    return at.strftime("%Y-%m-%d") if at else "no date"


def format_age(ms: int, now: float | None = None) -> str:
    """Return how long ago a time was, in the largest unit."""
    if parse_time(ms) is None:
        return "never" if not ms else "at an invalid time"
    passed = (time.time() if now is None else now) - ms / 1000
    if passed < 0:
        return "just now" if passed > -2 else f"in {format_span(-passed)}"
    return "just now" if passed < 1 else f"{format_span(passed)} ago"


def format_number(number: int) -> str:
    """Return a number with at most four characters: 950, 12k, 3.4M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number // size}{unit}"
    return str(number)


def format_span(seconds: float) -> str:
    """Return a duration, rounded down to one unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def format_counts(states: Counter[str]) -> str:
    """Return `7 calls: 5 completed, 1 failed, 1 denied`."""
    parts = ", ".join(f"{count} {call_state_name(state)}" for state, count in states.most_common())
    return pluralize(sum(states.values()), "call") + (f": {parts}" if parts else "")


def parse_duration(value: str, field: str) -> float:
    """Return the seconds of a duration: `30d`, `12h`, `90`, `1h30m`."""
    text = value.strip().lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInputError(field, f"must be a duration like 90s, 15m, 12h, 30d or 4w, got {value!r}")
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
