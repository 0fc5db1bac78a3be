"""Search the texts of all sessions: messages, thoughts, the inputs and outputs of calls, and titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec

from callslip.api.access import FULL_ACCESS, Access, can_see
from callslip.api.find import APPROVAL_STATES, CALL_STATES, check_states
from callslip.errors import InvalidInputError, NotFoundError
from callslip.ledger.aio import run_off_loop
from callslip.ledger.checkpoint import read_entry
from callslip.ledger.event_log import EventLog
from callslip.ledger.queries import load_current
from callslip.ledger.search_index import load_fields, title_fields
from callslip.model import codec
from callslip.model.entries import Entry
from callslip.model.records import SessionRecord
from callslip.model.search import SearchResult, SearchResults
from callslip.rules.search_text import Field, describe_result
from callslip.rules.search_words import Phrase, parse_query
from callslip.rules.session_summary import parse_summary
from callslip.store.search import MAX_ID, Candidate, WordQuery

MAX_RANKED = 10_000
"""How many of the newest matches are put in order."""
RESULTS, MAX_RESULTS = 20, 100
"""How many results a page has by default, and at most."""
MAX_TIME_MS = 2**53
STATES = tuple(dict.fromkeys((*CALL_STATES, *APPROVAL_STATES)))
MAX_STALE = 100
"""How many sessions that are not indexed are looked at for `behind`."""

_Position = tuple[int, int, str, int]


class SearchFilters(TypedDict, total=False):
    """Where to search. `session` is a whole name, and `project` a folder; `tool` is a whole name in any case.

    `states` are those of calls and requests for approval. Times are ms since the epoch: from `since`, before `until`.
    """

    session: str
    project: str
    tool: str
    states: Sequence[str]
    since: int
    until: int


async def search(
    log: EventLog,
    query: str,
    filters: SearchFilters | None = None,
    *,
    limit: int = RESULTS,
    cursor: str = "",
    access: Access = FULL_ACCESS,
) -> SearchResults:
    """Return the entries that have all words of a query, the best first, from the sessions that the caller may read."""
    filters = filters or {}
    phrases = parse_query(query)
    if limit < 1:
        raise InvalidInputError("limit", "must be at least 1")
    check_times(since=filters.get("since", 0), until=filters.get("until", 0))
    limit = min(limit, MAX_RESULTS)
    check_states(filters.get("states", ()), STATES, "state")
    after = _read_cursor(cursor) if cursor else None
    words = [" ".join(phrase.words) for phrase in phrases]
    has_index = await log.store.has_search_index()
    is_behind = not has_index or (not await log.search_index.refresh() and await _is_behind(log, access))
    if not phrases or not has_index:
        return SearchResults(results=[], words=words, behind=is_behind)
    found, is_limited = await _find(log, await _word_query(log, phrases, filters), access)
    found.sort(key=_position)
    loader = _Loader(log, phrases)
    results: list[SearchResult] = []
    last = None
    for candidate in found:
        if after is not None and _position(candidate) <= after:
            continue
        if len(results) == limit:
            return SearchResults(
                results=results, words=words, cursor=_write_cursor(last), limited=is_limited, behind=is_behind
            )
        result = await loader.load(candidate)
        if result is not None:
            results.append(result)
            last = candidate
    return SearchResults(results=results, words=words, limited=is_limited, behind=is_behind)


def check_times(**times: int) -> None:
    """Raise InvalidInputError for a time that no event can have; 0 stands for no time."""
    for name, time in times.items():
        if not 0 <= time <= MAX_TIME_MS:
            raise InvalidInputError(name, f"must be from 0 to {MAX_TIME_MS}", MAX_TIME_MS)


async def _is_behind(log: EventLog, access: Access) -> bool:
    """Return whether a session that the caller may read is not indexed up to its end."""
    names = await log.search_index.stale_sessions(MAX_STALE)
    return any([await can_see(access, name) for name in names])


async def _word_query(log: EventLog, phrases: list[Phrase], filters: SearchFilters) -> WordQuery:
    sessions: set[int] | None = None
    if name := filters.get("session"):
        record = await log.store.session(name)
        sessions = {record.id} if record is not None else set()
    if project := filters.get("project"):
        await log.summaries.refresh()
        of_project = set(await log.store.sessions_of_project(project))
        sessions = of_project if sessions is None else sessions & of_project
    return WordQuery(
        phrases=phrases,
        sessions=sessions,
        tool=filters.get("tool", ""),
        states=filters.get("states", ()),
        since=filters.get("since", 0),
        until=filters.get("until", 0),
    )


async def _find(log: EventLog, query: WordQuery, access: Access) -> tuple[list[Candidate], bool]:
    """Return the newest matches in the sessions that the caller may read, and whether there are more of them.

    Sessions that it may not read are left out of the next statement, so they do not count.
    """
    found: list[Candidate] = []
    hidden: set[int] = set()
    visible: set[int] = set()
    below = MAX_ID
    if (query.sessions is not None and not query.sessions) or 0 < query.until <= query.since:
        return [], False
    while True:
        count = MAX_RANKED + 1 - len(found)
        rows = await log.store.search(msgspec.structs.replace(query, without=hidden, below=below, limit=count))
        for number, name in {(row.number, row.session) for row in rows}:
            if number not in visible and number not in hidden:
                (visible if access is FULL_ACCESS or await can_see(access, name) else hidden).add(number)
        found += [row for row in rows if row.number in visible]
        if len(rows) < count or len(found) > MAX_RANKED:
            return found[:MAX_RANKED], len(found) > MAX_RANKED
        below = rows[-1].id


def _position(row: Candidate) -> _Position:
    """Return the place of a row among the results."""
    return -row.rank, -row.at, row.session, -row.entry


def _write_cursor(row: Candidate | None) -> str:
    assert row is not None
    return codec.encode([row.rank, row.at, row.session, row.entry]).decode()


def _read_cursor(cursor: str) -> _Position:
    rank, at, session, entry = codec.read_cursor(cursor, int, int, str, int)
    return -rank, -at, session, -entry


class _Loader:
    """Reads the entries of results, and makes excerpts."""

    def __init__(self, log: EventLog, phrases: list[Phrase]) -> None:
        self._store = log.store
        self._phrases = phrases
        self._sessions: dict[int, tuple[SessionRecord, str] | None] = {}
        self._open: dict[int, dict[int, Entry]] = {}

    async def load(self, row: Candidate) -> SearchResult | None:
        """Return a result, or None if it was deleted meanwhile."""
        if row.number not in self._sessions:
            self._sessions[row.number] = await self._load_session(row)
        known = self._sessions[row.number]
        if known is None:
            return None
        record, title = known
        entry = await self._load_entry(row) if row.entry else None
        if row.entry and entry is None:
            return None
        fields: list[Field] = title_fields(record) if entry is None else await load_fields(self._store, entry)
        size = sum(len(field.text) for field in fields)
        return await run_off_loop(size >= 2**14, describe_result, record.name, title, entry, fields, self._phrases)

    async def _load_session(self, row: Candidate) -> tuple[SessionRecord, str] | None:
        record = await self._store.session(row.session)
        if record is None or record.id != row.number:
            return None
        stored = await self._store.summary(row.session)
        return record, record.title or (parse_summary(stored.body).prompt if stored is not None else "")

    async def _load_entry(self, row: Candidate) -> Entry | None:
        stored = await self._store.entries_from(row.session, row.entry, 1)
        if stored and stored[0][0] == row.entry:
            return read_entry(stored[0][1])
        if row.number not in self._open:
            try:
                state = (await load_current(self._store, row.session)).state
            except NotFoundError:
                return None
            state.render()
            self._open[row.number] = dict(state.entries)
        return self._open[row.number].get(row.entry)
