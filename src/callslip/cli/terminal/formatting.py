"""Times, sizes, counts and states as text for people."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from datetime import datetime
from typing import Any

import click

from callslip.errors import InvalidInputError


class Seconds(click.FloatRange):
    """A finite number of seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"must be a finite number of seconds, got {value}", param, ctx)
        return number


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = ("bytes", "KB", "MB", "GB", "TB")


def to_datetime(ms: int) -> datetime | None:
    """Return a time of the log, or None if it is missing or out of range: other clocks may be wrong."""
    try:
        return datetime.fromtimestamp(ms / 1000) if ms else None
    except (OverflowError, ValueError, OSError):
        return None


def format_time(ms: int) -> str:
    """Return the time of day."""
    at = to_datetime(ms)
    return at.strftime("%H:%M:%S") if at else "--:--:--"


def format_date(ms: int) -> str:
    """Return the date."""
    at = to_datetime(ms)
    return at.strftime("%Y-%m-%d") if at else "no date"


def format_age(ms: int, now: float | None = None) -> str:
    """Return how long ago a time was, in the largest unit."""
    if to_datetime(ms) is None:
        return "never" if not ms else "at an invalid time"
    passed = (time.time() if now is None else now) - ms / 1000
    if passed < 0:
        return "just now" if passed > -2 else f"in {format_span(-passed)}"
    return "just now" if passed < 1 else f"{format_span(passed)} ago"


def format_span(seconds: float) -> str:
    """Return a duration, rounded down to one unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def format_duration(begin: int, end: int) -> str:
    """Return the time between two moments, precise enough to compare."""
    ms = end - begin
    if not begin or not end or ms < 0:
        return ""
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 60_000 else format_span(ms / 1000)


def format_size(count: int) -> str:
    """Return a number of bytes with its unit."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if not unit else f"{amount:.1f} {_SIZES[unit]}"


def state_name(state: str) -> str:
    """Return the name of a call state for people."""
    return "waiting for approval" if state == "awaiting_approval" else state


APPROVAL_STATE_NAMES = {
    "granted": "approved",
    "refused": "denied",
    "moot": "no longer needed",
    "superseded": "replaced",
}


def approval_state_name(state: str) -> str:
    """Return the name of an approval state for people."""
    return APPROVAL_STATE_NAMES.get(state, state)


def pluralize(count: int, noun: str) -> str:
    """Return `1 call` or `1,234 calls`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_counts(states: Counter[str]) -> str:
    """Return `7 calls: 5 completed, 1 failed, 1 denied`."""
    parts = ", ".join(f"{count} {state_name(state)}" for state, count in states.most_common())
    return pluralize(sum(states.values()), "call") + (f": {parts}" if parts else "")


def parse_duration(value: str, field: str) -> float:
    """Return the seconds of a duration: `30d`, `12h`, `90`, `1h30m`."""
    text = value.strip().lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInputError(field, f"must be a duration like 90s, 15m, 12h, 30d or 4w, got {value!r}")
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
