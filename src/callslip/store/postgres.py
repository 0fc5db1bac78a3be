"""The store on a PostgreSQL server, shared by any number of processes on any number of machines.

Reads run on pooled connections. Writes go to the writer, which groups them, or run in a transaction of their own.
Other processes learn of them by notifications; see `postgres_notify`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, TypeVar

from callslip.errors import InvalidInputError, ReadOnlyStoreError, StoreError
from callslip.model import codec
from callslip.model.codec import read_cursor
from callslip.model.records import (
    AliasRecord,
    ApprovalRecord,
    CallRecord,
    ConversationName,
    ConversationRecord,
    KeyRecord,
    ListedSession,
    OwnerRecord,
    Page,
    PostRecord,
    RuleRecord,
    SessionRecord,
    TokenRecord,
)
from callslip.model.summaries import UsageRecord
from callslip.rules.lifecycle import OPEN_STATES
from callslip.settings import Settings
from callslip.store.postgres_blobs import (
    KEPT_MS,
    MAX_UPLOADS,
    PAGE_ROWS,
    PIECES_PER_READ,
    NewBlob,
    drop_unused_blobs,
    put_piece,
)
from callslip.store.postgres_cursor import STATE_COLUMNS, ChangeCursor, ChangePage, ServerState
from callslip.store.postgres_database import Connection, Database
from callslip.store.postgres_maintenance import (
    DELETION_S,
    SUMMARY_TABLES,
    TABLES,
    count_rows,
    delete_session,
    find_copy_faults,
    find_problems,
    prune_session,
    save_progress,
    save_search,
    save_summaries,
)
from callslip.store.postgres_notify import ChangeListener, ChangeNotifier
from callslip.store.postgres_rows import (
    SESSION_COLUMNS,
    approval_record,
    call_record,
    is_storable,
    regex_containing,
    session_record,
)
from callslip.store.postgres_writer import PostgresWriter
from callslip.store.protocol import (
    NOTHING_KNOWN,
    Changes,
    Checkpoint,
    Progress,
    RowCounts,
    StoredEvent,
    Touched,
)
from callslip.store.search import (
    Candidate,
    SearchPlace,
    SearchProgress,
    SearchRow,
    UnindexedSession,
    WordQuery,
    compared_sessions,
    tsquery,
    tsvector,
)
from callslip.store.shared_rows import (
    DAY_MS,
    LAST,
    MONTH_MS,
    conversation_row,
    first,
    first_value,
    replace_meta_statement,
    rule_row,
    rule_values,
    token_row,
    token_values,
)
from callslip.store.sql import statements
from callslip.store.summaries import (
    NEVER_SUMMARIZED,
    SessionQuery,
    StoredSummary,
    SummaryProgress,
    UsageQuery,
    UsageRow,
    session_page,
    sessions_sql,
    usage_record,
    usage_row,
    usage_sql,
    with_unlisted,
)
from callslip.store.unit_of_work import UnitOfWork

T = TypeVar("T")
SQL = statements("postgres.sql")


def _contains(column: str, text: str) -> tuple[str, str]:
    """Return a condition that a column contains a text in any case, and the value of its parameter."""
    return f"{column} ~ ?", regex_containing(text)


FIRST_WITH_SUMMARIES = 2
"""The first schema with summaries and usage."""
MAX = 2**62
ORDERED_PAGES = "SET LOCAL enable_bitmapscan = off"
"""Let the server read pages of a session in the order of an index.

It estimates an average session. For each page of one that is much larger, it would else read and sort all that follows.
Direct connections have this setting anyway; a snapshot behind a pooler needs it too.
"""


class PostgresStore:
    """A store on a PostgreSQL server; see `Store`."""

    def __init__(self, database: Database) -> None:
        """Use `open`."""
        self.url = database.url
        self.display_name = database.name
        self.read_only = database.read_only
        self.was_unused = False
        self._has_summaries = database.schema >= FIRST_WITH_SUMMARIES
        self._database = database
        self._listeners: list[Callable[[list[StoredEvent]], None]] = []
        self._command_listeners: list[Callable[[list[CallRecord]], None]] = []
        self._session_listeners: list[Callable[[list[SessionRecord], int], None]] = []
        self._notifier = ChangeNotifier(database)
        self._changes = ChangeListener(database, self._notifier)
        self._writer: PostgresWriter | None = None
        if not self.read_only:
            self._writer = PostgresWriter(database, self._deliver, self._deliver_sessions, self._deliver_heads)

    @classmethod
    async def open(
        cls, url: str, settings: Settings, *, create: bool = True, allows_incomplete: bool = False
    ) -> PostgresStore:
        """Connect to a database, creating or migrating its schema if needed. Without `create` there must be one."""
        return cls(await Database.open(url, settings, create=create, allows_incomplete=allows_incomplete))

    # Writing

    def transact(self, work: Callable[[UnitOfWork], T], touched: Touched = NOTHING_KNOWN) -> Awaitable[T]:
        """Run a function in a transaction and return its result once it is durable."""
        return self._require_writer().submit(work, touched)

    def _require_writer(self) -> PostgresWriter:
        if self._writer is None:
            raise ReadOnlyStoreError(f"{self.display_name} cannot be written")
        return self._writer

    async def _alone(self, work: Callable[[Connection], Awaitable[T]], *, durable: bool = True) -> T:
        return await self._require_writer().run_alone(work, durable=durable)

    async def _run(self, name: str, *values: Any, durable: bool = True) -> list[Sequence[Any]]:
        """Run one statement that writes."""
        return await self._alone(lambda connection: connection.fetch(SQL[name], *values), durable=durable)

    def on_commit(self, listener: Callable[[list[StoredEvent]], None]) -> None:
        """Call the listener with the events of every commit of this process."""
        self._listeners.append(listener)

    def on_commands(self, listener: Callable[[list[CallRecord]], None]) -> Callable[[], None]:
        """Call the listener with the commands that this process writes; return a function that stops it."""
        self._command_listeners.append(listener)
        return lambda: self._command_listeners.remove(listener)

    def on_sessions(self, listener: Callable[[list[SessionRecord], int], None]) -> None:
        """Call the listener with the sessions that this process writes and the time of the write in ms."""
        self._session_listeners.append(listener)

    def _deliver(self, events: list[StoredEvent], commands: list[CallRecord]) -> None:
        if events:
            for listener in self._listeners:
                listener(events)
        if commands:
            for listener in self._command_listeners:
                listener(commands)

    def _deliver_sessions(self, sessions: list[SessionRecord], now: int) -> None:
        for listener in self._session_listeners:
            listener(sessions, now)

    def _deliver_heads(self, heads: dict[str, int], has_commands: bool) -> None:
        self._notifier.add(Changes(heads, has_commands))

    async def wait_changes(self) -> Changes:
        """Wait until another process may have written since the last call returned."""
        return await self._changes.wait()

    async def clock(self) -> int:
        """Return the time of the server in ms, which all leases and deadlines use."""
        return await self._database.clock()

    def time_ms(self) -> int:
        """Return the time of the server in ms, as far as this process knows it."""
        return self._database.time_ms()

    # Reading

    async def _all(self, name: str, *values: Any) -> list[Sequence[Any]]:
        """Return the rows of a statement. A text that no column can have is in no row."""
        return await self._fetch(SQL[name], values)

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[Sequence[Any]]:
        return await self._database.fetch(sql, *values) if all(map(is_storable, values)) else []

    async def _page(
        self, name: str, max_bytes: int | None, session: str, start: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return rows of a number and a body: up to a size in bytes, but at least one."""
        if max_bytes is None:
            rows = await self._all(name, session, start, limit)
        else:
            rows = await self._all(f"{name}_up_to_size", session, start, limit, max_bytes)
        return [(row[0], row[1]) for row in rows]

    async def session(self, name: str) -> SessionRecord | None:
        return first(await self._all("session", name), session_record)

    async def heads(self, names: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return the id and the last seq of each of these sessions that exists."""
        rows = await self._all("heads", list(filter(is_storable, names)))
        return {name: (identity, head) for name, identity, head in rows}

    async def sessions(self, *, limit: int, cursor: str = "", prefix: str = "") -> Page[SessionRecord]:
        at, number = read_cursor(cursor, int, int) if cursor else (MAX, MAX)
        if prefix:
            rows = await self._all("sessions_with_prefix", at, number, limit, prefix, prefix + LAST)
        else:
            rows = await self._all("sessions", at, number, limit)
        items = [session_record(row) for row in rows]
        full = len(items) == limit
        return Page(items, codec.encode([items[-1].updated_at, items[-1].id]).decode() if full else "")

    async def events(
        self, session: str, after: int, limit: int, max_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        return await self._page("events", max_bytes, session, after, limit)

    async def _calls(self, name: str, *values: Any) -> list[CallRecord]:
        return [call_record(row) for row in await self._all(name, *values)]

    async def call(self, call: str) -> CallRecord | None:
        return first(await self._all("call", call), call_record)

    async def calls(
        self,
        *,
        session: str = "",
        states: Sequence[str] = (),
        prefix: str = "",
        tool: str = "",
        q: str = "",
        limit: int = 100,
        cursor: str = "",
    ) -> Page[CallRecord]:
        """Return calls, newest first. `tool` is a full name; `q` is a part of a title, tool name or id in any case."""
        place: Sequence[int] | None = (MAX, MAX, MAX)
        if cursor and (place := first(await self._all("place_of_call", cursor), tuple)) is None:
            raise InvalidInputError("cursor", "not valid for this list, or retention removed its call")
        wanted = (list(states), tool, regex_containing(q), limit)
        if session:
            items = await self._calls("calls_of_session", *wanted, session, place[2], prefix)
        elif prefix:
            items = await self._calls("calls_with_prefix", *wanted, *place, prefix, prefix + LAST)
        elif states and OPEN_STATES.issuperset(states):
            items = await self._calls("calls_in_open_states", *wanted, *place)
        else:
            items = await self._calls("calls", *wanted, *place)
        return Page(items, items[-1].id if len(items) == limit else "")

    async def open_calls(self) -> list[CallRecord]:
        return await self._calls("open_calls")

    async def open_states(self) -> dict[str, int]:
        """Return the number of calls in each open state."""
        return {row[0]: row[1] for row in await self._all("open_states")}

    async def calls_due(self, until: int) -> list[CallRecord]:
        """Return the open calls whose lease or deadline ends by `until`."""
        return await self._calls("calls_due", until)

    async def calls_of_owners(self, owners: Collection[str]) -> list[CallRecord]:
        """Return the open calls of these owners."""
        return await self._calls("calls_of_owners", list(filter(is_storable, owners)))

    async def turns_of_owners(self, owners: Collection[str]) -> list[SessionRecord]:
        """Return the sessions whose open turn has one of these owners."""
        rows = await self._all("turns_of_owners", list(filter(is_storable, owners)))
        return [record for record in map(session_record, rows) if record.turn]

    async def texts_due(self, until: int, latest: int) -> list[tuple[str, int]]:
        """Return the sessions whose held text is due by `until`, or after `latest`, with its release time."""
        return [(row[0], row[1]) for row in await self._all("texts_due", until, latest)]

    # Commands

    async def queued_commands(self, client: str, session: str, after: str, limit: int) -> list[CallRecord]:
        """Return the queued commands of a client, oldest first."""
        place = first(await self._all("place_of_call", after), tuple) if after else (-MAX, -MAX, -MAX)
        return await self._calls("queued_commands", client, session, limit, *place) if place else []

    async def commands_before(self, row: CallRecord, limit: int) -> int:
        """Return how many queued commands of its client precede a command, at most `limit`."""
        return first_value(await self._all("commands_before", row.id, row.client, limit), 0)

    async def pending_commands(self, client: str, limit: int) -> list[CallRecord]:
        if client:
            return await self._calls("pending_commands_of", limit, client)
        return await self._calls("pending_commands", limit)

    async def completed_commands(self, client: str, limit: int, since: int) -> list[CallRecord]:
        return await self._calls("completed_commands", client, limit, since)

    async def failed_commands(self, client: str, limit: int) -> list[CallRecord]:
        if client:
            return await self._calls("failed_commands_of", limit, client)
        return await self._calls("failed_commands", limit)

    async def commands_changed(self, cursor: str, limit: int) -> tuple[list[CallRecord], str]:
        """Return commands that were written since a cursor, and the next cursor. Some are returned several times.

        After a full page the cursor also has the last row of the page. It is empty if the server has lost transactions
        whose commands were returned.
        """
        page = ChangePage.parse(cursor)
        if page is None:
            raise InvalidInputError("cursor", "not valid for this list")
        rows = await self._all("commands_changed", page.open, *page.place, *page.place_of_later, limit)
        state = ServerState.read(rows[0])
        if not (page.following or page.start).is_valid(state):
            return [], ""
        found = [row[STATE_COLUMNS:] for row in rows[1:]]
        following = page.following or page.start.advance(state)
        if len(found) == limit:
            following = ChangePage(page.start, following, *found[-1][:2])
        return [call_record(row[2:]) for row in found], str(following)

    async def change_cursor(self) -> str:
        """Return the cursor of `commands_changed` for all writes from now on, and perhaps for some before."""
        return str(ChangeCursor.now(ServerState.read((await self._all("change_cursor"))[0])))

    async def sealed(self, call: str) -> bytes | None:
        """Return the unredacted arguments of a command, if they differ from those in the log."""
        return first_value(await self._all("sealed", call))

    async def executors(self) -> dict[str, int]:
        """Return when the workers of each client last asked for work."""
        return {row[0]: row[1] for row in await self._all("executors")}

    async def executor_seen(self, client: str) -> int:
        """Return when the workers of a client last asked for work, 0 for never."""
        return first_value(await self._all("executor", client), 0)

    async def put_executor(self, client: str, asked_at: int) -> None:
        async def put(connection: Connection) -> None:
            await connection.execute(SQL["put_executor"], client, asked_at)
            await connection.execute(SQL["forget_executors"], asked_at - MONTH_MS)

        await self._alone(put, durable=False)

    async def alias(self, identity: str, session: str = "", without: Collection[str] = ()) -> list[CallRecord]:
        """Return the calls with a foreign id, except for ids in the namespaces `without`."""
        return await self._calls("alias_everywhere", identity, session, list(filter(is_storable, without)))

    async def approval(self, approval: str) -> ApprovalRecord | None:
        return first(await self._all("approval", approval), approval_record)

    async def approvals(
        self, *, session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> list[ApprovalRecord]:
        if session:
            rows = await self._all("approvals_of_session", state, limit, prefix, session)
        elif state == "pending":
            rows = await self._all("pending_approvals", limit, prefix)
        else:
            rows = await self._all("approvals", state, limit, prefix, prefix + LAST)
        return [approval_record(row) for row in rows]

    async def answered_approvals(self, *, session: str = "", limit: int = 100) -> list[ApprovalRecord]:
        return [approval_record(row) for row in await self._all("answered_approvals", session, limit)]

    async def approvals_due(self, until: int) -> list[ApprovalRecord]:
        """Return the pending approvals that expire by `until`."""
        return [approval_record(row) for row in await self._all("approvals_due", until)]

    async def owners(self) -> list[OwnerRecord]:
        return [OwnerRecord(*row) for row in await self._all("owners")]

    async def open_owners(self) -> list[OwnerRecord]:
        """Return the owners of open calls and turns with the end of their leases, 0 for an owner without a lease."""
        return [OwnerRecord(*row) for row in await self._all("open_owners")]

    async def drop_owner(self, owner: str) -> None:
        await self._run("drop_owner", owner)

    # Posted conversations

    async def conversation(self, name: ConversationName) -> ConversationRecord | None:
        """Return a posted conversation."""
        return first(await self._all("conversation", *name), conversation_row)

    async def inputs(self, name: ConversationName, after: int) -> list[bytes]:
        """Return the stored bodies of a conversation after a version of it."""
        return [row[0] for row in await self._all("inputs", *name, after)]

    async def post(self, session: str, key: str) -> PostRecord | None:
        """Return the idempotency key of a posted body."""
        return first(await self._all("post", session, key), lambda row: PostRecord(session, key, *row))

    async def drop_conversations(self, before: int) -> None:
        """Delete conversations without a body since a time in ms since the epoch, and keys of older bodies."""

        async def drop(connection: Connection) -> None:
            await connection.execute(SQL["drop_conversations"], before)
            await connection.execute(SQL["drop_posts"], before)

        await self._alone(drop)

    # Transcripts

    async def transcripts(self) -> list[tuple[ConversationName, ConversationRecord]]:
        """Return how far the transcripts of agents were read."""
        rows = await self._all("transcripts")
        return [(ConversationName(*row[:3]), conversation_row(row[3:])) for row in rows]

    async def sessions_with_alias(self, ns: str, identity: str) -> list[str]:
        """Return the sessions that have an alias, in the order of their creation."""
        return [row[0] for row in await self._all("sessions_with_alias", identity, ns)]

    async def deleted_sessions(self) -> dict[str, str]:
        """Return the names of deleted sessions by the agent's own id of each, and by the callers of its transcripts."""
        return {row[0]: row[1] for row in await self._all("deleted_sessions")}

    async def forget_deletion(self, foreign_id: str) -> None:
        """Forget that the session with this id was deleted."""
        await self._run("forget_deletion", foreign_id)

    # Tokens

    async def token(self, digest: str) -> TokenRecord | None:
        return first(await self._all("token", digest), token_row)

    async def tokens(self) -> list[TokenRecord]:
        return [token_row(row) for row in await self._all("tokens")]

    async def put_token(self, row: TokenRecord) -> None:
        await self._run("put_token", *token_values(row))

    async def drop_token(self, identity: str) -> bool:
        is_dropped = is_storable(identity) and bool(await self._run("drop_token", identity))
        self._notifier.add(Changes())
        return is_dropped

    # Rules

    async def rule(self, identity: str) -> RuleRecord | None:
        return first(await self._all("rule", identity), rule_row)

    async def rules(self) -> list[RuleRecord]:
        return [rule_row(row) for row in await self._all("rules")]

    async def rules_for(self, session: str, project: str, now: int) -> list[RuleRecord]:
        return [rule_row(row) for row in await self._all("rules_for", session, project, now)]

    async def put_rule(self, row: RuleRecord) -> None:
        async def put(connection: Connection) -> None:
            await connection.execute(SQL["drop_ended_rules"], row.created_at - MONTH_MS)
            await connection.execute(SQL["put_rule"], *rule_values(row))

        await self._alone(put)

    async def drop_rule(self, identity: str) -> bool:
        return is_storable(identity) and bool(await self._run("drop_rule", identity))

    async def drop_ended_rules(self, before: int) -> None:
        await self._run("drop_ended_rules", before)

    # Checkpoints

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return first(await self._all("checkpoint", session), lambda row: Checkpoint(*row))

    async def base(self, session: str) -> Checkpoint | None:
        return first(await self._all("base", session), lambda row: Checkpoint(*row))

    async def entries(self, session: str, before: int, limit: int) -> list[tuple[int, bytes]]:
        return await self._page("entries", None, session, before, limit)

    async def entries_from(
        self, session: str, first: int, limit: int, max_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        return await self._page("entries_from", max_bytes, session, first, limit)

    async def entry_ids(self, session: str, limit: int) -> list[int]:
        """Return the ids of the stored entries, newest first."""
        return [row[0] for row in await self._all("entry_ids", session, limit)]

    async def pieces(self, session: str, entry: int, field: str) -> str:
        rows = await self._all("pieces", session, entry, field)
        return b"".join(row[0] for row in rows).decode("utf-8", "surrogatepass")

    async def save_progress(self, progress: Progress) -> bool:
        return await self._alone(lambda connection: save_progress(connection, progress), durable=False)

    # Summaries and usage

    async def summary(self, session: str) -> StoredSummary | None:
        if not self._has_summaries:
            return None
        return first(await self._all("summary", session), lambda row: StoredSummary(*row))

    async def stale_sessions(self, since: int, version: int, limit: int) -> list[str]:
        if not self._has_summaries:
            return [row[0] for row in await self._fetch("SELECT name FROM sessions LIMIT $1", [limit])]
        rows = await self._all("stale_sessions", since, version, limit)
        return [row[0] for row in rows or await self._all("outdated_sessions", version, limit)]

    async def open_call_states(self, session: int, limit: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._all("open_call_states", session, limit)}

    async def meta(self, name: str) -> str:
        return first_value(await self._all("meta", name), "")

    async def put_meta(self, name: str, value: str) -> None:
        await self._run("put_meta", name, value, durable=False)

    async def list_meta(self, prefix: str) -> list[tuple[str, str]]:
        return [(row[0], row[1]) for row in await self._all("list_meta", prefix)]

    async def replace_meta(self, name: str, before: str, after: str) -> bool:
        statement, values = replace_meta_statement(name, before, after)
        is_replaced = bool(await self._run(statement, *values, durable=False))
        return is_replaced or await self.meta(name) == after

    async def add_summaries(self, since: int) -> None:
        await self._run("add_summaries", since, durable=False)

    async def save_summaries(self, summaries: Sequence[SummaryProgress]) -> None:
        await self._alone(lambda connection: save_summaries(connection, summaries), durable=False)

    async def list_sessions(self, query: SessionQuery) -> Page[ListedSession]:
        table = "summaries" if self._has_summaries else NEVER_SUMMARIZED
        if self._has_summaries and self.read_only:
            table = with_unlisted(NEVER_SUMMARIZED)
        sql, values = sessions_sql(query, SESSION_COLUMNS, lambda number: f"${number}", _contains, table)
        return session_page(query, [tuple(row) for row in await self._fetch(sql, values)], session_record)

    async def usage_by_ids(self, session: str, ids: Collection[str]) -> list[UsageRecord]:
        if not self._has_summaries:
            return []
        return [usage_record(row) for row in await self._all("usage_by_ids", session, list(ids))]

    async def usage_of_session(self, session: str, after: str, limit: int) -> list[UsageRecord]:
        if not self._has_summaries:
            return []
        return [usage_record(row) for row in await self._all("usage_of_session", session, after, limit)]

    async def add_up_usage(self, query: UsageQuery) -> list[UsageRow]:
        sql, values = usage_sql(query, lambda number: f"${number}", "floor({0} / {1}.0)::bigint")
        return [usage_row(row) for row in await self._fetch(sql, values)] if self._has_summaries else []

    # The search index

    async def has_search_index(self) -> bool:
        return bool(first_value(await self._all("has_search_index")))

    async def search_place(self, session: str) -> SearchPlace | None:
        return first(await self._all("search_place", session), lambda row: SearchPlace(*row))

    async def sessions_to_index(self, since: int, version: int, fold: int, limit: int) -> list[UnindexedSession]:
        return [UnindexedSession(*row) for row in await self._all("sessions_to_index", since, version, fold, limit)]

    async def save_search(self, progress: SearchProgress) -> bool:
        return await self._alone(lambda connection: save_search(connection, progress), durable=False)

    async def search(self, query: WordQuery) -> list[Candidate]:
        """Return the newest rows that match."""
        values = (tsquery(query), query.below, query.since, query.until, compared_sessions(query))
        rows = await self._all("search", *values, sorted(query.without), query.limit)
        return [Candidate(*row) for row in rows]

    async def different_search_rows(self, session: str, after: int, upto: int, rows: Sequence[SearchRow]) -> list[int]:
        columns = zip(*((row.entry, row.rank, row.at, tsvector(row)) for row in rows), strict=True)
        expected = list(map(list, columns)) or [[], [], [], []]
        return [row[0] for row in await self._all("different_search_rows", session, after, upto, *expected)]

    async def sessions_of_project(self, project: str) -> list[int]:
        return [row[0] for row in await self._all("sessions_of_project", project)]

    # Blobs

    async def put_blob(self, data: bytes, media: str) -> str:
        """Store a blob under the hash of its content; in pieces, so that other writes need not wait for all of it."""
        identity = hashlib.blake2b(data, digest_size=32).hexdigest()
        now = await self.clock()
        if not await self._keep_blob(identity, now):
            await self._upload(NewBlob(identity, data, media, now))
        return identity

    async def _keep_blob(self, identity: str, now: int) -> bool:
        """Return whether a blob is stored, and will be until an event uses it."""
        rows = await self._all("blob", identity)
        if not rows or rows[0][2] > now - KEPT_MS:
            return bool(rows)
        return bool(await self._run("keep_blob", identity, now))

    async def _upload(self, blob: NewBlob) -> None:
        for _ in range(MAX_UPLOADS):
            is_whole = False
            for number in range(blob.pieces):
                is_last = number == blob.pieces - 1
                is_whole = await self._alone(lambda c, number=number: put_piece(c, blob, number), durable=is_last)
            if is_whole:
                return
        raise StoreError(f"{self.display_name}: a blob was deleted while it was stored")

    async def blob(self, identity: str) -> tuple[bytes, str] | None:
        rows = await self._all("blob", identity)
        if not rows:
            return None
        size, media, _ = rows[0]
        data = bytearray()
        number = 0
        while len(data) < size:
            pieces = await self._all("blob_pieces", identity, number, number + PIECES_PER_READ)
            if not pieces:
                return None  # It was deleted meanwhile.
            for (piece,) in pieces:
                data += piece
            number += PIECES_PER_READ
        return bytes(data), media

    async def blob_size(self, identity: str) -> tuple[int, str] | None:
        """Return the size and the media type of a blob."""
        return first(await self._all("blob", identity), lambda row: (row[0], row[1]))

    async def blob_piece(self, identity: str, number: int) -> bytes:
        """Return a piece of a blob, or b"" after its end."""
        return first_value(await self._all("blob_piece", identity, number), b"")

    async def used_blob(self, session: str, seq: int) -> str:
        """Return the hash of the blob of an event, or ""."""
        return first_value(await self._all("used_blob", session, seq), "")

    async def sessions_with_blob(self, identity: str) -> list[str]:
        """Return the sessions with an event that uses a blob; access to one of them gives access to the blob."""
        return [row[0] for row in await self._all("sessions_with_blob", identity)]

    # Verification

    @asynccontextmanager
    async def read_snapshot(self) -> AsyncGenerator[PostgresStore]:
        """Return a read-only view of the current state, which later writes do not change."""
        async with self._database.snapshot() as database:
            await database.fetch(ORDERED_PAGES)
            view = copy(self)
            view.read_only, view._writer, view._database = True, None, database
            yield view

    async def row_counts(self, session: str) -> RowCounts:
        return await count_rows(self._database.fetch, session)

    async def keys(self, session: str, after: str, limit: int) -> list[KeyRecord]:
        return [KeyRecord(*row) for row in await self._all("keys", session, after, limit)]

    async def aliases(self, session: str, after: AliasRecord | None, limit: int) -> list[AliasRecord]:
        last = (after.id, after.ns) if after is not None else ("", "")
        return [AliasRecord(*row) for row in await self._all("aliases", session, *last, limit)]

    async def find_copy_faults(self, session: str) -> list[str]:
        return await find_copy_faults(self._database.fetch, session)

    # Maintenance

    async def prune(self, session: SessionRecord, seq: int, base: bytes, kept: dict[int, str]) -> int:
        """Delete the events up to `seq`, unless the session was deleted or pruned since it was read."""
        return await self._erase(session.name, lambda connection: prune_session(connection, session, seq, base, kept))

    async def drop_unused_blobs(self) -> None:
        """Delete blobs that no event uses, except those of the last day. Each page of blobs is read without a lock."""
        writer = self._require_writer()
        last, day_ago = "", await self.clock() - DAY_MS
        while last is not None:
            ((last, unused),) = await self._all("old_unused_blobs", last, day_ago, PAGE_ROWS)
            if unused:
                await writer.run_alone(
                    lambda connection, hashes=unused: drop_unused_blobs(connection, hashes, day_ago), timeout=DELETION_S
                )

    async def delete(self, session: str) -> bool:
        if not is_storable(session):
            return False
        return await self._erase(session, lambda connection: delete_session(connection, session))

    async def _erase(self, session: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        writer = self._require_writer()
        result = await writer.run_alone(work, sessions=(session,), timeout=DELETION_S)
        self._notifier.add(Changes())
        return result

    async def check(self) -> list[str]:
        """Return what contradicts itself in the tables."""
        tables = TABLES if self._has_summaries else [table for table in TABLES if table not in SUMMARY_TABLES]
        return await find_problems(self._database.fetch, tables)

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()
        await self._changes.close()  # It also sends through the notifier.
        await self._notifier.close()
        await self._database.close()
