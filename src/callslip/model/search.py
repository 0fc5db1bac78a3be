"""The results of a search, and an excerpt split at its highlights."""

from __future__ import annotations

import msgspec


class SearchResult(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """An entry that was found, or with `entry` 0 a session whose title or name was.

    `excerpt` begins at `offset` in the text of `field`, and `ranges` are the beginnings and ends of what was found in
    the excerpt. All three count UTF-16 code units. `parent` is the call whose sub-agent wrote the entry.
    """

    session: str
    title: str = ""
    entry: int = 0
    at: int = 0
    turn: str = ""
    type: str = "session"
    role: str = ""
    call: str = ""
    parent: str = ""
    tool: str = ""
    state: str = ""
    field: str = ""
    offset: int = 0
    excerpt: str = ""
    ranges: list[tuple[int, int]] = []


class SearchResults(msgspec.Struct, kw_only=True, rename="camel"):
    """A page of results, the best first.

    `words` are the words that were searched for, none if the search has no letter or digit. With `limited`, more
    entries match than are compared, so only the newest of them are results. With `behind`, the newest entries of some
    sessions cannot be found yet.
    """

    results: list[SearchResult]
    words: list[str]
    cursor: str = ""
    limited: bool = False
    behind: bool = False


def split_excerpt(result: SearchResult) -> list[tuple[str, bool]]:
    """Return the parts of an excerpt, each with whether it is highlighted."""
    units = result.excerpt.encode("utf-16-le", "surrogatepass")
    parts: list[tuple[str, bool]] = []
    at = 0
    for start, end in result.ranges:
        parts += [(_part(units, at, start), False), (_part(units, start, end), True)]
        at = end
    parts.append((_part(units, at, len(units) // 2), False))
    return [part for part in parts if part[0]]


def _part(units: bytes, start: int, end: int) -> str:
    return units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")
