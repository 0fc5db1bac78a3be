"""Times, sizes and counts as a person says them."""

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
    """A number of seconds. For ever, and `nan`, have no place in a request."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return number


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = ("bytes", "KB", "MB", "GB", "TB")


def moment(ms: int) -> datetime | None:
    """A time of the log; None for none, and for one that no calendar has (foreign clocks may say anything)."""
    try:
        return datetime.fromtimestamp(ms / 1000) if ms else None
    except (OverflowError, ValueError, OSError):
        return None


def clock(ms: int) -> str:
    """The time of day."""
    at = moment(ms)
    return at.strftime("%H:%M:%S") if at else "--:--:--"


def day(ms: int) -> str:
    """The date."""
    at = moment(ms)
    return at.strftime("%Y-%m-%d") if at else "no date"


def format_age(ms: int, now: float | None = None) -> str:
    """How long ago, in the largest unit."""
    if moment(ms) is None:
        return "never" if not ms else "at an impossible time"
    passed = (time.time() if now is None else now) - ms / 1000
    if passed < 0:
        return "just now" if passed > -2 else f"in {span(-passed)}"
    return "just now" if passed < 1 else f"{span(passed)} ago"


def span(seconds: float) -> str:
    """A length of time, rounded down to one unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def format_duration(begin: int, end: int) -> str:
    """How long something took, exact enough to compare."""
    ms = end - begin
    if not begin or not end or ms < 0:
        return ""
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 60_000 else span(ms / 1000)


def size(count: int) -> str:
    """A number of bytes."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if not unit else f"{amount:.1f} {_SIZES[unit]}"


def pluralize(count: int, noun: str) -> str:
    """`1 call`, `1,234 calls`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def tally(states: Counter[str]) -> str:
    """`7 calls: 5 completed, 1 failed, 1 denied`."""
    parts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return pluralize(sum(states.values()), "call") + (f": {parts}" if parts else "")


def seconds(given: str, field: str) -> float:
    """A length of time that a person wrote: `30d`, `12h`, `90`, `1h30m`."""
    text = given.strip().lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInputError(field, f"{given!r} is not a length of time; write 90s, 15m, 12h, 30d or 4w")
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
