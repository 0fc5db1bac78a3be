"""The rows of the search index, and the words of a search in the query languages of the engines.

A row has the words of an entry, and marks: words that no text has, for the session, the tool, the state and the time of
the entry. With them a search for a common word in one session reads no rows of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date, timedelta
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from callslip.rules.search_words import GAP, IndexedText, Phrase
from callslip.store.shared_rows import DAY_MS

MAX_MARKED_SESSIONS = 200
"""With more sessions a search compares the columns of rows instead."""
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2100, 12, 31)
"""Times before and after have the marks of these days."""
MAX_ID = 2**62


class SearchRow(NamedTuple):
    """An entry in the index; entry 0 is the title of its session. A higher rank is earlier in the results."""

    entry: int
    rank: int
    at: int
    words: list[str]
    names: list[str]

    @property
    def words_text(self) -> str:
        return " ".join(self.words)

    @property
    def names_text(self) -> str:
        return " ".join(self.names)


class SearchPlace(msgspec.Struct, frozen=True):
    """How far a session is in the index: all events up to `seq`, -1 while it is added, by a version of its rules.

    `fold` is the version of the fold whose entries they are. `body` is the state of the process that adds them.
    """

    seq: int
    version: int
    fold: int
    body: bytes


class SearchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """New rows of a session, to be stored unless the stored place is not the `before` that they follow.

    Nothing is stored if the session is no longer the one with the id `number`, or if retention has removed events after
    `pruned_seq`: the rows may then be of entries that are gone. With `afresh` no earlier row stays.
    """

    session: str
    number: int
    pruned_seq: int
    before: SearchPlace | None
    after: SearchPlace
    rows: Sequence[SearchRow] = ()
    dropped: Sequence[int] = ()
    afresh: bool = False


class WordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for. An empty filter selects all. Times are in ms, 0 for none; `sessions` are ids.

    Only rows with an id below `below` are found, newest first.
    """

    phrases: Sequence[Phrase]
    sessions: Collection[int] | None = None
    without: Collection[int] = ()
    tool: str = ""
    states: Sequence[str] = ()
    since: int = 0
    until: int = 0
    below: int = MAX_ID
    limit: int = 100


class UnindexedSession(NamedTuple):
    """A session with events that are not in the index. `head` is its last event."""

    name: str
    head: int


class Candidate(NamedTuple):
    """A row that matches. `number` is the id of its session."""

    id: int
    number: int
    session: str
    entry: int
    rank: int
    at: int


# Marks


def session_mark(number: int) -> str:
    return f"{GAP}s{number}"


def tool_mark(name: str) -> str:
    digest = blake2b(name.lower().encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{GAP}t{digest}"


def state_mark(state: str) -> str:
    return f"{GAP}a{state.replace('_', '')}"


def time_marks(at: int) -> list[str]:
    """Return the marks of a day, of its month and of its year."""
    day = _day_of(at)
    return [f"{GAP}d{day:%Y%m%d}", f"{GAP}m{day:%Y%m}", f"{GAP}y{day:%Y}"]


def range_marks(since: int, until: int) -> Iterator[str]:
    """Yield marks, of which each time from `since` and before `until` has one: as few as cover the days."""
    day = _day_of(since)
    last = _day_of(until - 1) if until else LAST_DAY
    while day <= last:
        year_end = date(day.year, 12, 31)
        month_end = date(day.year + day.month // 12, day.month % 12 + 1, 1) - timedelta(1)
        if (day.month, day.day) == (1, 1) and year_end <= last:
            yield f"{GAP}y{day:%Y}"
            day = year_end
        elif day.day == 1 and month_end <= last:
            yield f"{GAP}m{day:%Y%m}"
            day = month_end
        else:
            yield f"{GAP}d{day:%Y%m%d}"
        day += timedelta(1)


def _day_of(at: int) -> date:
    return FIRST_DAY + timedelta(min(max(at // DAY_MS, 0), (LAST_DAY - FIRST_DAY).days))


def marked_row(
    session: int, entry: int, rank: int, at: int, indexed: IndexedText, tools: Iterable[str] = (), state: str = ""
) -> SearchRow:
    """Return the row of an entry with its marks."""
    marks = [session_mark(session), *time_marks(at), *sorted(map(tool_mark, tools))]
    if state:
        marks.append(state_mark(state))
    return SearchRow(entry, rank, at, indexed.words, [*indexed.names, *marks])


def _mark_sets(query: WordQuery) -> list[list[str]]:
    """Return sets of marks, of which a row must have one each."""
    sets: list[list[str]] = []
    if query.sessions is not None and len(query.sessions) <= MAX_MARKED_SESSIONS:
        sets.append([session_mark(number) for number in query.sessions])
    if query.tool:
        sets.append([tool_mark(query.tool)])
    if query.states:
        sets.append([state_mark(state) for state in query.states])
    if query.since or query.until:
        sets.append(list(range_marks(query.since, query.until)))
    return sets


def compared_sessions(query: WordQuery) -> list[int] | None:
    """Return the sessions that marks do not select, None if they do or all are selected."""
    is_large = query.sessions is not None and len(query.sessions) > MAX_MARKED_SESSIONS
    return list(query.sessions or ()) if is_large else None


# Query languages. Words have letters, digits and non-ASCII characters only, so none can end its quotes.


def fts5_query(query: WordQuery) -> str:
    """Return the query in the language of FTS5."""
    parts = [_fts5_phrase(phrase) for phrase in query.phrases]
    parts += [f"names : ({' OR '.join(_quote(mark) for mark in marks)})" for marks in _mark_sets(query)]
    return " AND ".join(parts)


def _fts5_phrase(phrase: Phrase) -> str:
    if len(phrase.words) == 1:
        return _quote(phrase.words[0])
    words = f"words : {_quote(' '.join(phrase.words))}"
    return f"({words} OR {_quote(phrase.name)})" if phrase.name else f"({words})"


def _quote(words: str) -> str:
    return f'"{words}"'


def tsquery(query: WordQuery) -> str:
    """Return the query in the language of PostgreSQL."""
    parts = [_ts_phrase(phrase) for phrase in query.phrases]
    parts += [f"({' | '.join(_lexeme(mark) for mark in marks)})" for marks in _mark_sets(query)]
    return " & ".join(parts)


def _ts_phrase(phrase: Phrase) -> str:
    words = " <-> ".join(map(_lexeme, phrase.words))
    return f"(({words}) | {_lexeme(phrase.name)})" if phrase.name else f"({words})"


def _lexeme(word: str) -> str:
    return f"'{word}'"


def tsvector(row: SearchRow) -> str:
    """Return the words of a row as PostgreSQL reads them: each with its places, those of `names` without."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(row.words, start=1):
        if word != GAP:
            places.setdefault(word, []).append(place)
    lexemes = [f"{_lexeme(word)}:{','.join(map(str, found))}" for word, found in places.items()]
    return " ".join([*lexemes, *(_lexeme(name) for name in row.names if name not in places)])
