"""Patterns of schemas: regular expressions of strangers, and how long it may take to compare a text with one.

There is no way to stop a search once it has begun, so its work is estimated before: from what repeats, and within what.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

LONGEST_TEXT = 2000
LONGEST_PATTERN = 1000
MOST_WAYS = 10**7

_TOKEN = re.compile(
    r"""\\. | \[\^?\]?(?:\\.|[^\]\\])*\] | (?P<open>\((?:\?(?:[:=!>]|<[=!]|P?<\w+>))?)
    | (?P<sign>[*+?])[?+]? | \{(?P<least>\d*)(?P<to>,?)(?P<most>\d*)\}[?+]? | .""",
    re.DOTALL | re.VERBOSE,
)
_ODD = re.compile(r"\(\?(?:#|[a-zA-Z]*x)")
"""Comments, and patterns with blanks that mean nothing: in these signs do not count."""
_MANY_LINES = re.compile(r"\(\?[a-zA-Z]*m")
_SIGNS: dict[str, tuple[int, int]] = {"*": (0, LONGEST_TEXT), "+": (1, LONGEST_TEXT), "?": (0, 1)}


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """None for what is no pattern here: it is ignored like an unknown word."""
    if len(pattern) > LONGEST_PATTERN or _ODD.search(pattern):
        return None
    # In a schema the end is the end; here it may also stand before a last line end.
    exact = "".join(r"\Z" if found[0] == "$" else found[0] for found in _TOKEN.finditer(pattern))
    with warnings.catch_warnings(action="ignore"):  # That it may mean something else one day is nobody's concern here.
        try:
            re.compile(pattern)
            return re.compile(pattern if _MANY_LINES.search(pattern) else exact)
        except (re.error, OverflowError, RecursionError):
            return None


class _Sequence:
    """What stands between two brackets of a pattern: in how many ways a text may be read by it, and how many signs
    leave a choice. The last part waits, as it may be repeated."""

    def __init__(self) -> None:
        self._others, self._before, self._last = 0, 1, 1
        self.signs = self._signs_of_last = 0

    def add(self, ways: int = 1, signs: int = 0) -> None:
        self._before = min(self._before * self._last, MOST_WAYS + 1)
        self._last, self._signs_of_last = ways, signs
        self.signs += signs

    def choose(self) -> None:
        self._others, self._before, self._last = self.ways(), 1, 1
        self.signs += 1

    def repeat(self, least: int, most: int, length: int) -> None:
        spare = 1 + max(0, min(most - least, length))
        if self._last > 1:  # What may be read in several ways, again and again.
            spare = min(spare * self._last ** min(most, 64), (1 + self._signs_of_last) ** length)
        self._last = min(spare, MOST_WAYS + 1)
        self._signs_of_last += least != most
        self.signs += least != most

    def ways(self) -> int:
        return min(self._others + self._before * self._last, MOST_WAYS + 1)


@lru_cache(maxsize=1024)
def ways_of(pattern: str, length: int) -> int:
    """About how many ways a search tries at most for a text of this length; a little more than MOST_WAYS for more."""
    open_groups = [_Sequence()]
    for token in _TOKEN.finditer(pattern):
        repeated = _SIGNS.get(token["sign"]) or _counted(token)
        if token["open"]:
            open_groups.append(_Sequence())
        elif token[0] == ")" and len(open_groups) > 1:
            inner = open_groups.pop()
            open_groups[-1].add(inner.ways(), inner.signs)
        elif token[0] == "|":
            open_groups[-1].choose()
        elif repeated:
            open_groups[-1].repeat(*repeated, length)
        else:
            open_groups[-1].add()
    found = open_groups[0].ways()
    return found if pattern.startswith("^") and "|" not in pattern else found * (length + 1)


def _counted(token: re.Match[str]) -> tuple[int, int] | None:
    """From and to for `{2}`, `{2,}` and `{2,5}`."""
    least, to, most = token["least"], token["to"], token["most"]
    if not (least or to):
        return None
    first = min(int(least or 0), LONGEST_TEXT)
    return first, min(int(most or LONGEST_TEXT), LONGEST_TEXT) if to else first
