"""Filter the entries of a session: all of it, with counts."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.export import check_position
from callslip.api.sessions import read_events
from callslip.errors import InvalidInputError
from callslip.ledger.checkpoint import ALL, load_session
from callslip.ledger.entry_matches import EntryMatcher
from callslip.ledger.event_log import EventLog
from callslip.model.codec import read_cursor
from callslip.model.entries import Entry
from callslip.model.events import decode_event
from callslip.rules.entry_filter import FACETS, MatchCounts

MAX_FACET_VALUES = 200
_matchers: WeakKeyDictionary[EventLog, EntryMatcher] = WeakKeyDictionary()


class FilteredEntries(NamedTuple):
    """A page of matching entries, oldest first, the cursor to older ones, and counts of the whole session.

    `calls` counts all calls by state. `facets` has the values of tool, status and kind, each with the number of calls
    that match if the filter's own terms for that facet are left out.
    """

    seq: int
    entries: list[Entry]
    cursor: str
    matched: int
    total: int
    calls: dict[str, int]
    facets: dict[str, dict[str, int]]


async def filter_entries(
    log: EventLog,
    session: str,
    query: str = "",
    *,
    limit: int = 100,
    cursor: str = "",
    at: int | None = None,
    access: Access = FULL_ACCESS,
) -> FilteredEntries:
    """Return the newest entries of a session that match a filter, now or as they were after event `at`.

    The terms of a filter are in `rules/entry_filter.py`; an empty filter matches everything. Text is also searched in
    outputs that are stored outside the log. A limit of 0 returns only counts.
    """
    await access.require(session, "read")
    if limit < 0:
        raise InvalidInputError("limit", "must be 0 or more")
    (before,) = read_cursor(f"[{cursor}]", int) if cursor else (ALL,)
    matcher = _matchers.setdefault(log, EntryMatcher(log.store))
    if at is None:
        found = await matcher.find(session, query, limit, before)
    else:
        record = await load_session(log.store, session)
        check_position(record, at)
        last = (await read_events(log, record, cursor=str(at - 1), at=at)).events if at > record.pruned_seq else []
        time = decode_event(last[0]).at if last else 0
        found = await matcher.find_in_past(await log.state_at(session, at), time, query, limit, before)
    counts = found.counts
    return FilteredEntries(
        seq=found.seq,
        entries=found.entries,
        cursor=str(found.entries[0].id) if found.has_more and found.entries else "",
        matched=len(counts.ids),
        total=counts.total,
        calls=dict(counts.calls),
        facets={facet: _most_common(counts, facet) for facet in FACETS},
    )


def _most_common(counts: MatchCounts, facet: str) -> dict[str, int]:
    """Return the most common values of a facet, and the selected ones."""
    values, selected = counts.facets[facet], counts.filter.selected(facet)
    common = dict(sorted(values.items(), key=lambda item: (-item[1], item[0]))[:MAX_FACET_VALUES])
    return common | {value: count for value, count in values.items() if value.lower() in selected}
