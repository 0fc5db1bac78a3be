"""Compile untrusted regular expressions of schemas, and estimate the cost of a search.

A search cannot be stopped once it has started, so its cost is estimated from the nesting of repetitions.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

MAX_TEXT_CHARS = 2000
MAX_PATTERN_CHARS = 1000
MAX_WAYS = 10**7

_TOKEN = re.compile(
    r"""\\. | \[\^?\]?(?:\\.|[^\]\\])*\] | (?P<open>\((?:\?(?:[:=!>]|<[=!]|P?<\w+>))?)
    | (?P<operator>[*+?])[?+]? | \{(?P<least>\d*)(?P<to>,?)(?P<most>\d*)\}[?+]? | .""",
    re.DOTALL | re.VERBOSE,
)
_UNSUPPORTED = re.compile(r"\(\?(?:#|[a-zA-Z]*x)")
"""Patterns with comments or in verbose mode, which are not supported."""
_MULTILINE = re.compile(r"\(\?[a-zA-Z]*m")
_OPERATORS: dict[str, tuple[int, int]] = {"*": (0, MAX_TEXT_CHARS), "+": (1, MAX_TEXT_CHARS), "?": (0, 1)}


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the compiled pattern, or None if it is not supported and must be ignored."""
    if len(pattern) > MAX_PATTERN_CHARS or _UNSUPPORTED.search(pattern):
        return None
    # In a schema `$` is the end; in Python it also matches before a final newline.
    exact = "".join(r"\Z" if token[0] == "$" else token[0] for token in _TOKEN.finditer(pattern))
    with warnings.catch_warnings(action="ignore"):  # Such as that syntax may change in a future version.
        try:
            re.compile(pattern)
            return re.compile(pattern if _MULTILINE.search(pattern) else exact)
        except (re.error, OverflowError, RecursionError):
            return None


class _Sequence:
    """The content of a group: in how many ways it can match a text, and how many operators leave a choice.

    The last part is kept apart, as a repetition may follow.
    """

    def __init__(self) -> None:
        self._others, self._before, self._last = 0, 1, 1
        self.signs = self._signs_of_last = 0

    def add(self, ways: int = 1, signs: int = 0) -> None:
        self._before = min(self._before * self._last, MAX_WAYS + 1)
        self._last, self._signs_of_last = ways, signs
        self.signs += signs

    def choose(self) -> None:
        self._others, self._before, self._last = self.ways(), 1, 1
        self.signs += 1

    def repeat(self, least: int, most: int, length: int) -> None:
        spare = 1 + max(0, min(most - least, length))
        if self._last > 1:  # Repeats a part that matches in several ways.
            spare = min(spare * self._last ** min(most, 64), (1 + self._signs_of_last) ** length)
        self._last = min(spare, MAX_WAYS + 1)
        self._signs_of_last += least != most
        self.signs += least != most

    def ways(self) -> int:
        return min(self._others + self._before * self._last, MAX_WAYS + 1)


@lru_cache(maxsize=1024)
def estimate_ways(pattern: str, length: int) -> int:
    """Estimate how many ways a search tries for a text of this length; at most a little more than MAX_WAYS."""
    open_groups = [_Sequence()]
    for token in _TOKEN.finditer(pattern):
        repetition = _OPERATORS.get(token["operator"]) or _count_range(token)
        if token["open"]:
            open_groups.append(_Sequence())
        elif token[0] == ")" and len(open_groups) > 1:
            inner = open_groups.pop()
            open_groups[-1].add(inner.ways(), inner.signs)
        elif token[0] == "|":
            open_groups[-1].choose()
        elif repetition:
            open_groups[-1].repeat(*repetition, length)
        else:
            open_groups[-1].add()
    ways = open_groups[0].ways()
    return ways if pattern.startswith("^") and "|" not in pattern else ways * (length + 1)


def _count_range(token: re.Match[str]) -> tuple[int, int] | None:
    """Return the minimum and maximum of `{2}`, `{2,}` or `{2,5}`."""
    least, to, most = token["least"], token["to"], token["most"]
    if not (least or to):
        return None
    first = min(int(least or 0), MAX_TEXT_CHARS)
    return first, min(int(most or MAX_TEXT_CHARS), MAX_TEXT_CHARS) if to else first
