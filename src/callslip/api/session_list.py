"""List sessions by what is known of them: their state, agent, project, model, title and usage."""

from __future__ import annotations

import time
from typing import TypedDict, get_args

from callslip.api.access import FULL_ACCESS, Access, can_see
from callslip.errors import InvalidInputError
from callslip.ledger.event_log import EventLog
from callslip.ledger.summaries import READ_S
from callslip.ledger.validation import NUMBER_LIMIT
from callslip.model.records import ListedSession, Page
from callslip.model.summaries import SessionState
from callslip.store.summaries import SORTS, SessionQuery, Sort

STATES: tuple[str, ...] = get_args(SessionState)


class SessionFilters(TypedDict, total=False):
    """Which sessions to list, and in which order; by default the last active ones first.

    `label` is `name=value`, or a name. `query` is a part of the title in any case, `name` is the whole name and
    `prefix` its beginning.
    """

    name: str
    states: tuple[str, ...]
    agent: str
    project: str
    branch: str
    model: str
    label: str
    query: str
    prefix: str
    sort: Sort
    descending: bool


def session_query(filters: SessionFilters, limit: int, cursor: str) -> SessionQuery:
    """Return the query for these filters, or raise InvalidInputError."""
    if not 0 < limit <= NUMBER_LIMIT:
        raise InvalidInputError("limit", f"must be from 1 to {NUMBER_LIMIT}", NUMBER_LIMIT)
    for state in filters.get("states", ()):
        if state not in STATES:
            raise InvalidInputError("states", f"unknown state {state!r}; known are {', '.join(STATES)}")
    if filters.get("sort", "active") not in SORTS:
        raise InvalidInputError("sort", f"unknown order {filters.get('sort')!r}; known are {', '.join(SORTS)}")
    others = {name: value for name, value in filters.items() if name != "query"}
    return SessionQuery(**others, q=filters.get("query", ""), limit=limit, cursor=cursor)  # pyright: ignore[reportArgumentType]


async def list_sessions(
    log: EventLog, filters: SessionFilters, *, limit: int = 100, cursor: str = "", access: Access = FULL_ACCESS
) -> Page[ListedSession]:
    """Return the sessions that the caller may read and that match."""
    query = session_query(filters, limit, cursor)
    is_complete = await log.summaries.refresh()
    found: list[ListedSession] = []
    while True:
        page = await log.store.list_sessions(query)
        if access is FULL_ACCESS:
            found = page.items
            break
        found += [record for record in page.items if await can_see(access, record.name, "read")]
        if len(found) >= limit or not page.cursor:
            break
        query = session_query(filters, limit - len(found), page.cursor)
    if not is_complete and log.store.read_only:
        until = time.monotonic() + READ_S
        found = [
            await log.summaries.with_summary(record, until) if time.monotonic() < until else record for record in found
        ]
    return Page(found, page.cursor, is_complete)
