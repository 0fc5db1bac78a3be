"""The rows of summaries and usage, and the queries over them, which are the same for every engine.

An engine passes how it writes a parameter and how it tests that a text contains another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple

from callslip.errors import CorruptDataError, InvalidInputError
from callslip.model import codec
from callslip.model.records import ListedSession, Page, SessionRecord
from callslip.model.summaries import RESPONSE_COSTS, RESPONSE_TOKENS, SessionState, SessionSummary, UsageRecord
from callslip.rules.session_summary import parse_summary
from callslip.store.shared_rows import LAST

Sort = Literal["active", "started", "title", "calls", "failed", "tokens", "duration"]
Group = Literal["day", "model", "project", "agent", "session", "turn", "call"]

SORTS: dict[Sort, tuple[str, type]] = {
    "active": ("m.active_at", int),
    "started": ("m.started_at", int),
    "title": ("m.title", str),
    "calls": ("m.calls", int),
    "failed": ("m.failed", int),
    "tokens": ("m.tokens", int),
    "duration": ("m.active_at - m.started_at", int),
}
"""The expression that each order compares, and its type."""
_GROUPS: dict[Group, str] = {
    "model": "u.model",
    "project": "coalesce(m.project, '')",
    "agent": "coalesce(m.agent, '')",
    "session": "s.name",
    "turn": "u.turn",
    # A sub-agent may be read before its call: then its own id, which the call has later, is the parent.
    "call": "coalesce((SELECT max(a.call) FROM aliases a WHERE a.session = u.session AND a.id = u.parent "
    "AND a.call <> ''), u.parent)",
}
_COUNTS_TOKENS = f"(u.of_turn = 0 OR coalesce(m.has_responses, 0) IN (0, {RESPONSE_COSTS}))"
_COUNTS_COST = f"(u.of_turn = 0 OR coalesce(m.has_responses, 0) IN (0, {RESPONSE_TOKENS}))"
DAY_MS = 86_400_000
USAGE_COLUMNS = UsageRecord.__struct_fields__
SUMMARY_COLUMNS = (
    *("session", "seq", "version", "state", "title", "agent", "model", "project", "branch", "labels"),
    *("calls", "open_calls", "pending", "failed", "tokens", "has_responses", "started_at", "active_at", "body"),
)
NEVER_SUMMARIZED = (
    "(SELECT s.id AS session, 0 AS seq, 0 AS version, 'idle' AS state, '' AS title, '' AS agent, '' AS model, "
    "'' AS project, '' AS branch, '' AS labels, 0 AS calls, 0 AS open_calls, 0 AS pending, 0 AS failed, 0 AS tokens, "
    "0 AS has_responses, s.updated_at AS started_at, s.updated_at AS active_at, '{}'::bytea AS body FROM sessions s)"
)
"""In place of the table `summaries` of PostgreSQL, for a database that cannot be migrated as it can only be read."""


def with_unlisted(never_summarized: str) -> str:
    """Return the summaries, and with what is known of them the sessions that have none.

    A store that can only be read cannot add the latter to the table. `never_summarized` is a query for all sessions.
    """
    columns = ", ".join(SUMMARY_COLUMNS)
    return (
        f"(SELECT {columns} FROM summaries UNION ALL SELECT {columns} FROM {never_summarized} n "
        "WHERE NOT EXISTS (SELECT 1 FROM summaries o WHERE o.session = n.session))"
    )


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list, and in which order. An empty field selects all.

    `label` is a label `name=value`, or a name without a value. `q` is a part of the title in any case.
    """

    states: tuple[str, ...] = ()
    agent: str = ""
    project: str = ""
    branch: str = ""
    model: str = ""
    label: str = ""
    q: str = ""
    name: str = ""
    prefix: str = ""
    sort: Sort = "active"
    descending: bool = True
    limit: int = 100
    cursor: str = ""


class StoredSummary(msgspec.Struct, frozen=True):
    """A summary as it is stored, at event `seq`."""

    seq: int
    version: int
    body: bytes


class SummaryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A new summary, to be stored unless the stored one is not the `before` that it was derived from.

    `number` is the id of the session. With `replaces_usage` no earlier row of usage stays. `has_responses` is that of
    the summary.
    """

    session: str
    number: int
    before: StoredSummary | None
    after: StoredSummary
    state: SessionState
    title: str
    agent: str
    model: str
    project: str
    branch: str
    labels: str
    calls: int
    open_calls: int
    pending: int
    failed: int
    tokens: int
    has_responses: int
    started_at: int
    active_at: int
    usage: list[UsageRecord]
    replaces_usage: bool = False

    def values(self) -> tuple[Any, ...]:
        """Return the values of SUMMARY_COLUMNS."""
        after = self.after
        texts = (self.state, self.title, self.agent, self.model, self.project, self.branch, self.labels)
        counts = (self.calls, self.open_calls, self.pending, self.failed, self.tokens, self.has_responses)
        return (self.number, after.seq, after.version, *texts, *counts, self.started_at, self.active_at, after.body)


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which usage to add up. Times are in ms since the epoch, 0 for none.

    Days begin `utc_offset_ms` before those of UTC.
    """

    by: Group | None = None
    session: str = ""
    project: str = ""
    agent: str = ""
    model: str = ""
    since: int = 0
    until: int = 0
    utc_offset_ms: int = 0


class UsageRow(NamedTuple):
    """The usage of a group in one session and currency. For days, `group` is the number of the day.

    `tokens_without_cost` are those of responses for which no cost is stated, also not by turns.
    """

    group: Any
    session: str
    currency: str
    responses: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float
    incomplete: int
    tokens_without_cost: int


def labels_text(labels: Any) -> str:
    """Return labels in the form of the column: a line for each, and an empty one before and after them."""
    pairs = labels.items() if isinstance(labels, dict) else ((label, "") for label in labels or () if label)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    lines = [" ".join(f"{name}={value}".split()) if value != "" else f"{name}" for name, value in pairs]  # pyright: ignore[reportUnknownVariableType]
    return "\n".join(["", *lines, ""]) if lines else ""


def listed_session(
    record: SessionRecord, body: bytes, state: SessionState, open_calls: int, pending: int
) -> ListedSession:
    """Return a session with what its stored summary says."""
    try:
        summary = parse_summary(body)
    except CorruptDataError:  # `verify` reports it.
        summary = SessionSummary()
    started_at, active_at = times_of(record, summary)
    fields: dict[str, Any] = {name: getattr(record, name) for name in SessionRecord.__struct_fields__}
    return ListedSession(
        **fields,
        state=state,
        agent=summary.agent,
        agent_version=summary.agent_version,
        model=summary.model,
        project=summary.project,
        branch=summary.branch,
        prompt=summary.prompt,
        continues=summary.continues,
        open_calls=open_calls,
        pending=pending,
        failed=summary.failed,
        started_at=started_at,
        active_at=active_at,
        usage=summary.counted_usage,
    )


def times_of(record: SessionRecord, summary: SessionSummary) -> tuple[int, int]:
    """Return when a session began and when it was last active. It was not active after it was written."""
    active_at = min(summary.active_at or record.updated_at, record.updated_at)
    return min(summary.started_at or record.created_at, active_at), active_at


def usage_row(row: Sequence[Any]) -> UsageRow:
    """Convert a row of sums, which are decimal numbers in PostgreSQL."""
    return UsageRow(
        *row[:3], *map(int, row[3:9]), cost=float(row[9]), incomplete=int(row[10]), tokens_without_cost=int(row[11])
    )


def usage_record(row: Sequence[Any]) -> UsageRecord:
    """Convert a row of USAGE_COLUMNS."""
    record = UsageRecord(**dict(zip(USAGE_COLUMNS, row, strict=True)))
    return msgspec.structs.replace(record, incomplete=bool(record.incomplete), of_turn=bool(record.of_turn))


def usage_values(record: UsageRecord) -> tuple[Any, ...]:
    """Convert the usage of a response to a row of USAGE_COLUMNS."""
    return astuple(msgspec.structs.replace(record, incomplete=int(record.incomplete), of_turn=int(record.of_turn)))


class _Conditions:
    """The conditions of a query and the values of its parameters, after those of conditions that precede them."""

    def __init__(self, parameter: Callable[[int], str], values: Sequence[Any] = ()) -> None:
        self.values: list[Any] = [*values]
        self._parameter = parameter
        self._parts: list[str] = []

    def add(self, condition: str, *values: Any) -> None:
        """Add a condition, in which each `?` is replaced by a parameter."""
        for value in values:
            condition = condition.replace("?", self.bind(value), 1)
        self._parts.append(condition)

    def bind(self, value: Any) -> str:
        """Return the parameter for a value. It must not contain a question mark if a condition has more values."""
        self.values.append(value)
        return self._parameter(len(self.values))

    def text(self) -> str:
        return f"WHERE {' AND '.join(self._parts)}" if self._parts else ""


def sessions_sql(
    query: SessionQuery,
    columns: str,
    parameter: Callable[[int], str],
    contains: Callable[[str, str], tuple[str, Any]],
    table: str = "summaries",
) -> tuple[str, list[Any]]:
    """Return a statement that lists sessions, and its values. After the columns it reads the summary and the cursor."""
    expression, kind = SORTS[query.sort]
    where = _Conditions(parameter)
    if query.states:
        where.add(f"m.state IN ({', '.join('?' * len(query.states))})", *query.states)
    for column in ("agent", "project", "branch", "model"):
        if value := getattr(query, column):
            where.add(f"m.{column} = ?", value)
    if query.label:
        ending = "\n" if "=" in query.label else ""
        condition, value = contains("m.labels", f"\n{query.label}{ending}")
        where.add(condition, value)
    if query.q:
        condition, value = contains("m.title", query.q)
        where.add(condition, value)
    if query.name:
        where.add("s.name = ?", query.name)
    if query.prefix:
        where.add("s.name >= ? AND s.name < ?", query.prefix, query.prefix + LAST)
    if query.cursor:
        where.add(f"({expression}, m.session) {'<' if query.descending else '>'} (?, ?)", *_read_cursor(query, kind))
    direction = "DESC" if query.descending else "ASC"
    return (
        f"SELECT {columns}, m.body, m.state, m.open_calls, m.pending, {expression}, m.session "
        f"FROM {table} m JOIN sessions s ON s.id = m.session "
        f"{where.text()} ORDER BY {expression} {direction}, m.session {direction} LIMIT {int(query.limit)}",
        where.values,
    )


def _read_cursor(query: SessionQuery, kind: type) -> tuple[Any, int]:
    sort, is_descending, value, session = codec.read_cursor(query.cursor, str, bool, kind, int)
    if (sort, is_descending) != (query.sort, query.descending):
        raise InvalidInputError("cursor", "not valid for this list")
    return value, session


LIST_COLUMNS = 6
"""How many columns `sessions_sql` adds to those of a session."""


def session_page(query: SessionQuery, rows: list[Any], read: Callable[[Any], SessionRecord]) -> Page[ListedSession]:
    """Return the sessions in rows of `sessions_sql`; `read` converts the columns of a session."""
    items = [listed_session(read(row[:-LIST_COLUMNS]), *row[-LIST_COLUMNS:-2]) for row in rows]
    return Page(items, _encode_cursor(query, *rows[-1][-2:]) if rows and len(rows) == query.limit else "")


def _encode_cursor(query: SessionQuery, value: Any, session: int) -> str:
    return codec.encode([query.sort, query.descending, value, session]).decode()


def _sum_if(condition: str, *values: str) -> str:
    return ", ".join(f"sum(CASE WHEN {condition} THEN {value} ELSE 0 END)" for value in values)


def usage_sql(query: UsageQuery, parameter: Callable[[int], str], quotient: str) -> tuple[str, list[Any]]:
    """Return a statement that adds up usage by group, session and currency, and its values.

    `quotient` is how the engine divides integers and rounds down, with the parts `{0}` and `{1}`.
    """
    # Sessions of which turns state the costs. They count only if no response states one.
    turns = _Conditions(parameter)
    turns.add("w.of_turn = 1 AND w.cost IS NOT NULL")
    if query.session:
        turns.add("w.session = (SELECT id FROM sessions WHERE name = ?)", query.session)
    if query.since:
        turns.add("w.at >= ?", query.since)
    where = _Conditions(parameter, turns.values)
    where.add(f"({_COUNTS_TOKENS} OR ({_COUNTS_COST} AND u.cost IS NOT NULL))")
    if query.by == "day":
        group = quotient.format(f"(u.at + {int(query.utc_offset_ms)})", DAY_MS)
    else:
        group = _GROUPS[query.by] if query.by else "''"
    if query.session:
        where.add("s.name = ?", query.session)
    for column in ("project", "agent"):
        if value := getattr(query, column):
            where.add(f"m.{column} = ?", value)
    if query.model:
        where.add("u.model = ?", query.model)
    if query.since:
        where.add("u.at >= ?", query.since)
    if query.until:
        where.add("u.at < ?", query.until)
    tokens = ["CASE WHEN u.input_tokens + u.output_tokens > 0 THEN 1 ELSE 0 END"]
    tokens += [f"u.{name}" for name in UsageRow._fields[4:9]]
    cost = "coalesce(u.cost, 0)"
    without_cost = f"u.cost IS NULL AND t.session IS NULL AND coalesce(m.has_responses, 0) <> {RESPONSE_COSTS}"
    uncosted = f"CASE WHEN {without_cost} THEN u.input_tokens + u.output_tokens ELSE 0 END"
    return (
        f"SELECT {group}, s.name, u.currency, {_sum_if(_COUNTS_TOKENS, *tokens)}, {_sum_if(_COUNTS_COST, cost)}, "
        f"{_sum_if(_COUNTS_TOKENS, 'u.incomplete', uncosted)} FROM usage u JOIN sessions s ON s.id = u.session "
        f"LEFT JOIN summaries m ON m.session = u.session "
        f"LEFT JOIN (SELECT DISTINCT w.session FROM usage w {turns.text()}) t ON t.session = u.session "
        f"AND coalesce(m.has_responses, 0) IN (0, {RESPONSE_TOKENS}) {where.text()} GROUP BY 1, 2, 3",
        where.values,
    )
