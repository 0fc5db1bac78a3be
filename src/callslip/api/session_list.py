"""List sessions by what is known of them: their state, agent, project, model, title and usage."""

from __future__ import annotations

from typing import TypedDict, get_args

from callslip.api.access import FULL_ACCESS, Access, can_see
from callslip.errors import InvalidInputError
from callslip.ledger.event_log import EventLog
from callslip.model.records import ListedSession, Page, SessionRecord
from callslip.model.summaries import SessionState
from callslip.store.summaries import SORTS, SessionQuery, Sort, listed_session

STATES: tuple[str, ...] = get_args(SessionState)


class SessionFilters(TypedDict, total=False):
    """Which sessions to list, and in which order; by default the last active ones first.

    `label` is `name=value`, or a name. `query` is a part of the title in any case, `prefix` the beginning of the name.
    """

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
    await log.summaries.refresh()
    found: list[ListedSession] = []
    while True:
        page = await log.store.list_sessions(query)
        if access is FULL_ACCESS:
            return page
        found += [record for record in page.items if await can_see(access, record.name, "read")]
        if len(found) >= limit or not page.cursor:
            return Page(found, page.cursor)
        query = session_query(filters, limit - len(found), page.cursor)


async def with_summary(log: EventLog, record: SessionRecord) -> ListedSession:
    """Return a session with its summary."""
    await log.summaries.refresh()
    stored = await log.store.summary(record.name)
    return listed_session(record, stored.body if stored is not None else b"{}")
