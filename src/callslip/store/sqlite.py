"""The embedded store: one SQLite file, shared by any number of processes.

Reads run on a connection of the event loop: each takes a few microseconds, and no cursor stays open between pages.
Writes go to the writer thread. `PRAGMA data_version`, which takes 4 us, shows whether another process wrote.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from typing import Any, TypeVar

from callslip.errors import CorruptDataError, InvalidInputError, ReadOnlyStoreError
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
from callslip.settings import Settings
from callslip.store import sqlite_open
from callslip.store.ledger_files import LedgerFiles, create_database
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
    fts5_query,
)
from callslip.store.shared_rows import (
    CHUNK_BYTES,
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
from callslip.store.sql import Connection
from callslip.store.sqlite_maintenance import (
    delete_session,
    drop_unused_blobs,
    prune_session,
    save_progress,
    save_search,
    save_summaries,
)
from callslip.store.sqlite_open import translate_errors
from callslip.store.sqlite_rows import SQL, approval_row, call_row, glob_containing, session_row
from callslip.store.summaries import (
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
from callslip.store.write_lock import WriteLock
from callslip.store.writer import Writer

T = TypeVar("T")
YIELD_ROWS = 100
SESSION_COLUMNS = (
    "s.name, s.id, s.head, s.low, s.turn, s.turns, s.title, s.calls, s.message, s.carry, s.created_at, s.updated_at, "
    "s.owned_by, s.labels, s.turn_owner"
)


def _contains(column: str, text: str) -> tuple[str, str]:
    """Return a condition that a column contains a text in any case, and the value of its parameter."""
    return f"{column} GLOB ?", glob_containing(text)


class SqliteStore:
    """A store in a SQLite file or in memory; see `Store`."""

    def __init__(self, url: str, settings: Settings, *, allows_incomplete: bool = False) -> None:
        self.url = url
        self._allows_incomplete = allows_incomplete
        self.path = sqlite_open.path_of(url)
        self.display_name = self.path or "the database in memory"
        self._settings = settings
        self._listeners: list[Callable[[list[StoredEvent]], None]] = []
        self._command_listeners: list[Callable[[list[CallRecord]], None]] = []
        self._session_listeners: list[Callable[[list[SessionRecord], int], None]] = []
        self._own_changes = (0, 0)
        self._write_lock = WriteLock()
        self._files = LedgerFiles()
        self._open: list[Connection] = []
        self._writer: Writer | None = None
        self.was_unused = False
        self.read_only = bool(self.path) and not sqlite_open.is_writable(self.path)
        with translate_errors(self.path):
            try:
                self._begin()
            except BaseException:
                self._close_connections()
                raise

    def _begin(self) -> None:
        path, settings = self.path, self._settings
        self._memory = memory = "" if path else sqlite_open.memory_name()
        if path:
            sqlite_open.check_file(path, settings)
        if path and not self.read_only:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._write_lock.open(path)
            self.was_unused = self._write_lock.was_unused
            create_database(path)
        self._read = sqlite_open.connect(path, memory, settings, read_only=self.read_only)
        self._open.append(self._read)
        sqlite_open.prepare(
            self._read, path, self._write_lock, read_only=self.read_only, allows_incomplete=self._allows_incomplete
        )
        self._files = LedgerFiles(path, has_wal=bool(path) and not self.read_only)
        self._version = self._data_version()
        if not self.read_only:
            self._writing = sqlite_open.connect(path, memory, settings)
            self._open.append(self._writing)
            listeners = self._deliver, self._deliver_sessions
            self._writer = Writer(self._writing, path, self._write_lock, self._files, *listeners, settings.synchronous)

    def _close_connections(self) -> None:
        for connection in reversed(self._open):
            connection.close()
        self._write_lock.close()

    # Writing

    def transact(self, work: Callable[[UnitOfWork], T], touched: Touched = NOTHING_KNOWN) -> Awaitable[T]:
        """Run a function in a transaction and return its result once it is durable.

        `touched` is not used: a read of a record takes a few microseconds.
        """
        return self._require_writer().submit(work)

    async def _alone(self, work: Callable[[Connection], T], *, durable: bool = True, erases: bool = False) -> T:
        return await self._require_writer().submit(work, alone=True, durable=durable, erases=erases)

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise ReadOnlyStoreError(f"{self.path} cannot be written")
        return self._writer

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
            first, last = self._own_changes
            self._own_changes = (first if commands[0].change == last + 1 else commands[0].change), commands[-1].change
            for listener in self._command_listeners:
                listener(commands)

    def _deliver_sessions(self, sessions: list[SessionRecord], now: int) -> None:
        for listener in self._session_listeners:
            listener(sessions, now)

    async def wait_changes(self) -> Changes:
        """Wait until the database has changed since the last call returned. SQLite does not say what was written."""
        while True:
            await asyncio.sleep(self._settings.notice_interval)
            before, self._version = self._version, self._data_version()
            if self._version != before:
                return Changes()

    def _data_version(self) -> int:
        self._files.check_sometimes()
        with translate_errors(self.path):
            return self._read.execute("PRAGMA data_version").fetchall()[0][0]

    async def clock(self) -> int:
        """Return the time of the store in ms, which all leases and deadlines use."""
        return self.time_ms()

    def time_ms(self) -> int:
        """Return the time of the store in ms."""
        return int(time.time() * 1000)

    # Reading

    def _all(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._fetch(SQL[name], values)

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._files.check_sometimes()
        with translate_errors(self.path):
            try:
                return self._read.execute(sql, values).fetchall()
            except UnicodeEncodeError:  # A text with lone surrogates cannot be in any row.
                return []

    async def _page(
        self, name: str, max_bytes: int | None, session: str, start: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return rows of a number and a body: up to a size in bytes, but at least one.

        Other tasks run after each large page, as its reader waits for nothing else.
        """
        if max_bytes is not None:  # A body that is not part of the page is not read.
            limit = self._count_rows(f"{name}_sizes", max_bytes, session, start, limit)
        rows = self._all(name, session, start, limit)
        if len(rows) >= YIELD_ROWS:
            await asyncio.sleep(0)
        return rows  # pyright: ignore[reportReturnType]

    def _count_rows(self, name: str, max_bytes: int, *values: Any) -> int:
        """Return how many rows, but at least one, are not larger than `max_bytes` together."""
        count = 0
        with translate_errors(self.path), suppress(UnicodeEncodeError):
            cursor = self._read.execute(SQL[name], values)
            for (size,) in cursor:
                if size is None:
                    raise CorruptDataError(
                        f"{self.path} is damaged: a stored row of session {values[0]!r} has no content"
                    )
                max_bytes -= size
                if max_bytes < 0:
                    break
                count += 1
            cursor.close()
        return max(1, count)

    async def session(self, name: str) -> SessionRecord | None:
        return first(self._all("session", name), session_row)

    async def heads(self, names: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return the id and the last seq of each of these sessions that exists."""
        return {
            name: (identity, head) for name, identity, head in self._all("heads", codec.encode(list(names)).decode())
        }

    async def sessions(self, *, limit: int, cursor: str = "", prefix: str = "") -> Page[SessionRecord]:
        at, number = read_cursor(cursor, int, int) if cursor else (2**62, 2**62)
        rows = self._all("sessions", at, number, prefix, prefix + LAST, limit)
        items = [session_row(row) for row in rows]
        full = len(items) == limit
        return Page(items, codec.encode([items[-1].updated_at, items[-1].id]).decode() if full else "")

    async def events(
        self, session: str, after: int, limit: int, max_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        return await self._page("events", max_bytes, session, after, limit)

    async def call(self, call: str) -> CallRecord | None:
        return first(self._all("call", call), call_row)

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
        if cursor and await self.call(cursor) is None:
            raise InvalidInputError("cursor", "not valid for this list, or retention removed its call")
        wanted = "," + ",".join(states) + "," if states else ""
        values = (wanted, prefix, prefix + LAST, cursor, limit, tool, glob_containing(q) if q else "")
        rows = self._all("calls_of_session", *values, session) if session else self._all("calls", *values)
        items = [call_row(row) for row in rows]
        return Page(items, items[-1].id if len(items) == limit else "")

    async def turns_of_owners(self, owners: Collection[str]) -> list[SessionRecord]:
        """Return the sessions whose open turn has one of these owners."""
        return [session_row(row) for row in self._all("turns_of_owners", codec.encode(list(owners)).decode())]

    async def open_calls(self) -> list[CallRecord]:
        return self._calls("all_open_calls")

    async def open_states(self) -> dict[str, int]:
        """Return the number of calls in each open state."""
        return dict(self._all("open_states"))  # pyright: ignore[reportArgumentType]

    async def calls_due(self, until: int) -> list[CallRecord]:
        """Return the open calls whose lease or deadline ends by `until`."""
        rows = [*self._all("calls_leased", until), *self._all("calls_due", until)]
        return list({row[0]: call_row(row) for row in rows}.values())

    async def calls_of_owners(self, owners: Collection[str]) -> list[CallRecord]:
        """Return the open calls of these owners."""
        return self._calls("calls_of_owners", codec.encode(list(owners)).decode())

    async def texts_due(self, until: int, latest: int) -> list[tuple[str, int]]:
        """Return the sessions whose held text is due by `until`, or after `latest`, with its release time."""
        return self._all("texts_due", until, latest)  # pyright: ignore[reportReturnType]

    # Commands

    def _calls(self, name: str, *values: Any) -> list[CallRecord]:
        return [call_row(row) for row in self._all(name, *values)]

    async def queued_commands(self, client: str, session: str, after: str, limit: int) -> list[CallRecord]:
        """Return the queued commands of a client, oldest first."""
        return self._calls("queued_commands", client, session, after, limit)

    async def commands_before(self, row: CallRecord, limit: int) -> int:
        """Return how many queued commands of its client precede a command, at most `limit`."""
        return first_value(self._all("commands_before", row.id, row.client, limit), 0)

    async def pending_commands(self, client: str, limit: int) -> list[CallRecord]:
        return self._calls("pending_commands", client, limit)

    async def completed_commands(self, client: str, limit: int, since: int) -> list[CallRecord]:
        return self._calls("completed_commands", client, limit, since)

    async def failed_commands(self, client: str, limit: int) -> list[CallRecord]:
        return self._calls("failed_commands_of", client, limit) if client else self._calls("failed_commands", limit)

    async def commands_changed(self, cursor: str, limit: int) -> tuple[list[CallRecord], str]:
        """Return the commands that were written since a cursor, in order, and the next cursor."""
        (after,) = read_cursor(f"[{cursor}]", int)
        first, last = self._own_changes
        if first <= after + 1 <= last:  # The next changes are all of this process, whose listeners have got them.
            after = last
        records = self._calls("commands_changed", after, limit)
        return records, str(records[-1].change if records else after)

    async def change_cursor(self) -> str:
        """Return the cursor of `commands_changed` for all writes from now on."""
        return str(first_value(self._all("last_change")))

    async def sealed(self, call: str) -> bytes | None:
        """Return the unredacted arguments of a command, if they differ from those in the log."""
        return first_value(self._all("sealed", call))

    async def executors(self) -> dict[str, int]:
        """Return when the workers of each client last asked for work."""
        return dict(self._all("executors"))  # pyright: ignore[reportArgumentType]

    async def executor_seen(self, client: str) -> int:
        """Return when the workers of a client last asked for work, 0 for never."""
        return first_value(self._all("executor", client), 0)

    async def put_executor(self, client: str, asked_at: int) -> None:
        def put(connection: Connection) -> None:
            connection.execute(SQL["put_executor"], (client, asked_at)).fetchall()
            connection.execute(SQL["forget_executors"], (asked_at - MONTH_MS,)).fetchall()

        await self._alone(put, durable=False)

    async def alias(self, identity: str, session: str = "", without: Collection[str] = ()) -> list[CallRecord]:
        """Return the calls with a foreign id, except for ids in the namespaces `without`."""
        rows = self._all("alias_everywhere", identity, session, codec.encode(sorted(without)).decode())
        calls = [await self.call(row[0]) for row in rows]
        return [call for call in calls if call is not None]

    async def approval(self, approval: str) -> ApprovalRecord | None:
        return first(self._all("approval", approval), approval_row)

    async def approvals(
        self, *, session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> list[ApprovalRecord]:
        return [approval_row(row) for row in self._all("approvals", session, state, prefix, prefix + LAST, limit)]

    async def answered_approvals(self, *, session: str = "", limit: int = 100) -> list[ApprovalRecord]:
        return [approval_row(row) for row in self._all("answered_approvals", session, limit)]

    async def approvals_due(self, until: int) -> list[ApprovalRecord]:
        """Return the pending approvals that expire by `until`."""
        return [approval_row(row) for row in self._all("approvals_due", until)]

    async def owners(self) -> list[OwnerRecord]:
        return [OwnerRecord(*row) for row in self._all("owners")]

    async def open_owners(self) -> list[OwnerRecord]:
        """Return the owners of open calls and turns with the end of their leases, 0 for an owner without a lease."""
        return [OwnerRecord(*row) for row in self._all("open_owners")]

    async def drop_owner(self, owner: str) -> None:
        await self._alone(lambda connection: connection.execute(SQL["drop_owner"], (owner,)).fetchall())

    # Posted conversations

    async def conversation(self, name: ConversationName) -> ConversationRecord | None:
        """Return a posted conversation."""
        return first(self._all("conversation_with_state", *name), conversation_row)

    async def inputs(self, name: ConversationName, after: int) -> list[bytes]:
        """Return the stored bodies of a conversation after a version of it."""
        return [row[0] for row in self._all("inputs", *name, after)]

    async def post(self, session: str, key: str) -> PostRecord | None:
        """Return the idempotency key of a posted body."""
        return first(self._all("post", session, key), lambda row: PostRecord(session, key, *row))

    async def drop_conversations(self, before: int) -> None:
        """Delete conversations without a body since a time in ms since the epoch, and keys of older bodies."""

        def drop(connection: Connection) -> None:
            connection.execute(SQL["drop_conversations"], (before,)).fetchall()
            connection.execute(SQL["drop_posts"], (before,)).fetchall()

        await self._alone(drop)

    # Transcripts

    async def transcripts(self) -> list[tuple[ConversationName, ConversationRecord]]:
        """Return how far the transcripts of agents were read."""
        rows = self._all("transcripts")
        return [(ConversationName(*row[:3]), conversation_row(row[3:])) for row in rows]

    async def sessions_with_alias(self, ns: str, identity: str) -> list[str]:
        """Return the sessions that have an alias, in the order of their creation."""
        return [row[0] for row in self._all("sessions_with_alias", identity, ns)]

    async def deleted_sessions(self) -> dict[str, str]:
        """Return the names of deleted sessions by the agent's own id of each, and by the callers of its transcripts."""
        return {row[0]: row[1] for row in self._all("deleted_sessions")}

    async def forget_deletion(self, foreign_id: str) -> None:
        """Forget that the session with this id was deleted."""

        def forget(connection: Connection) -> None:
            connection.execute(SQL["forget_deletion"], (foreign_id,)).fetchall()

        await self._alone(forget)

    # Tokens

    async def token(self, digest: str) -> TokenRecord | None:
        return first(self._all("token", digest), token_row)

    async def tokens(self) -> list[TokenRecord]:
        return [token_row(row) for row in self._all("tokens")]

    async def put_token(self, row: TokenRecord) -> None:
        await self._alone(lambda connection: connection.execute(SQL["put_token"], token_values(row)).fetchall())

    async def drop_token(self, identity: str) -> bool:
        return bool(await self._alone(lambda c: c.execute(SQL["drop_token"], (identity,)).fetchall()))

    # Rules

    async def rule(self, identity: str) -> RuleRecord | None:
        return first(self._all("rule", identity), rule_row)

    async def rules(self) -> list[RuleRecord]:
        return [rule_row(row) for row in self._all("rules")]

    async def rules_for(self, session: str, project: str, now: int) -> list[RuleRecord]:
        return [rule_row(row) for row in self._all("rules_for", session, project, now)]

    async def put_rule(self, row: RuleRecord) -> None:
        def put(connection: Connection) -> None:
            connection.execute(SQL["drop_ended_rules"], (row.created_at - MONTH_MS,)).fetchall()
            connection.execute(SQL["put_rule"], rule_values(row)).fetchall()

        await self._alone(put)

    async def drop_rule(self, identity: str) -> bool:
        return bool(await self._alone(lambda c: c.execute(SQL["drop_rule"], (identity,)).fetchall()))

    async def drop_ended_rules(self, before: int) -> None:
        await self._alone(lambda c: c.execute(SQL["drop_ended_rules"], (before,)).fetchall())

    # Checkpoints

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return first(self._all("checkpoint", session), lambda row: Checkpoint(*row))

    async def base(self, session: str) -> Checkpoint | None:
        return first(self._all("base", session), lambda row: Checkpoint(*row))

    async def entries(self, session: str, before: int, limit: int) -> list[tuple[int, bytes]]:
        return await self._page("entries", None, session, before, limit)

    async def entries_from(
        self, session: str, first: int, limit: int, max_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        return await self._page("entries_from", max_bytes, session, first, limit)

    async def entry_ids(self, session: str, limit: int) -> list[int]:
        """Return the ids of the stored entries, newest first."""
        return [row[0] for row in self._all("entry_ids", session, limit)]

    async def pieces(self, session: str, entry: int, field: str) -> str:
        return "".join(row[0] for row in self._all("pieces", session, entry, field))

    async def save_progress(self, progress: Progress) -> bool:
        return await self._alone(lambda connection: save_progress(connection, progress), durable=False)

    # Summaries and usage

    async def summary(self, session: str) -> StoredSummary | None:
        return first(self._all("summary", session), lambda row: StoredSummary(*row))

    async def stale_sessions(self, since: int, version: int, limit: int) -> list[str]:
        rows = self._all("stale_sessions", since, version, limit) or self._all("outdated_sessions", version, limit)
        return [row[0] for row in rows]

    async def open_call_states(self, session: int, limit: int) -> dict[str, int]:
        return dict(self._all("open_call_states", session, limit))

    async def meta(self, name: str) -> str:
        return first_value(self._all("meta", name), "")

    async def put_meta(self, name: str, value: str) -> None:
        await self._alone(lambda c: c.execute(SQL["put_meta"], (name, value)).fetchall(), durable=False)

    async def list_meta(self, prefix: str) -> list[tuple[str, str]]:
        return [(row[0], row[1]) for row in self._all("list_meta", prefix, prefix + LAST)]

    async def replace_meta(self, name: str, before: str, after: str) -> bool:
        statement, values = replace_meta_statement(name, before, after)
        is_replaced = bool(await self._alone(lambda c: c.execute(SQL[statement], values).fetchall(), durable=False))
        return is_replaced or await self.meta(name) == after

    async def add_summaries(self, since: int) -> None:
        await self._alone(lambda c: c.execute(SQL["add_summaries"], (since,)).fetchall(), durable=False)

    async def save_summaries(self, summaries: Sequence[SummaryProgress]) -> None:
        await self._alone(lambda connection: save_summaries(connection, summaries), durable=False)

    async def list_sessions(self, query: SessionQuery) -> Page[ListedSession]:
        table = with_unlisted(f"({sqlite_open.NEVER_SUMMARIZED})") if self.read_only else "summaries"
        sql, values = sessions_sql(query, SESSION_COLUMNS, lambda _: "?", _contains, table)
        return session_page(query, self._fetch(sql, values), session_row)

    async def usage_by_ids(self, session: str, ids: Collection[str]) -> list[UsageRecord]:
        rows = self._all("usage_by_ids", session, codec.encode(list(ids)).decode())
        return [usage_record(row) for row in rows]

    async def usage_of_session(self, session: str, after: str, limit: int) -> list[UsageRecord]:
        return [usage_record(row) for row in self._all("usage_of_session", session, after, limit)]

    async def add_up_usage(self, query: UsageQuery) -> list[UsageRow]:
        sql, values = usage_sql(query, lambda _: "?", "CAST(floor({0} / {1}.0) AS INTEGER)")
        return [usage_row(row) for row in self._fetch(sql, values)]

    # The search index

    async def has_search_index(self) -> bool:
        return bool(first_value(self._all("has_search_index")))

    async def search_place(self, session: str) -> SearchPlace | None:
        return first(self._all("search_place", session), lambda row: SearchPlace(*row))

    async def sessions_to_index(self, since: int, version: int, fold: int, limit: int) -> list[UnindexedSession]:
        return [UnindexedSession(*row) for row in self._all("sessions_to_index", since, version, fold, limit)]

    async def save_search(self, progress: SearchProgress) -> bool:
        return await self._alone(lambda connection: save_search(connection, progress), durable=False)

    async def search(self, query: WordQuery) -> list[Candidate]:
        """Return the newest rows that match. A thread reads them, with a connection of its own."""
        self._files.check()
        return await asyncio.to_thread(self._search, query)

    def _search(self, query: WordQuery) -> list[Candidate]:
        sessions = compared_sessions(query)
        values = (
            *(fts5_query(query), query.below, query.since, query.until),
            None if sessions is None else codec.encode(sessions).decode(),
            codec.encode(sorted(query.without)).decode(),
            query.limit,
        )
        with translate_errors(self.path):
            connection = sqlite_open.connect(self.path, self._memory, self._settings, read_only=self.read_only)
            try:
                return [Candidate(*row) for row in connection.execute(SQL["search"], values).fetchall()]
            finally:
                connection.close()

    async def different_search_rows(self, session: str, after: int, upto: int, rows: Sequence[SearchRow]) -> list[int]:
        stored = {row[0]: row[1:] for row in self._all("search_rows_between", session, after, upto)}
        derived = {row.entry: (row.rank, row.at, row.words_text, row.names_text) for row in rows}
        return sorted(entry for entry in stored | derived if stored.get(entry) != derived.get(entry))

    async def sessions_of_project(self, project: str) -> list[int]:
        return [row[0] for row in self._all("sessions_of_project", project)]

    # Blobs

    async def put_blob(self, data: bytes, media: str) -> str:
        """Store a blob under the hash of its content; in pieces, so that other writes need not wait for all of it."""
        identity = hashlib.blake2b(data, digest_size=32).hexdigest()
        if self._all("blob", identity):
            return identity
        now = int(time.time() * 1000)
        await self._alone(lambda c: c.execute(SQL["add_blob"], (identity, len(data), media, now)).fetchall())
        for number, start in enumerate(range(0, len(data), CHUNK_BYTES)):
            row = (identity, number, data[start : start + CHUNK_BYTES])
            await self._alone(lambda c, row=row: c.execute(SQL["put_blob_piece"], row).fetchall())
        await self._alone(lambda c: c.execute(SQL["finish_blob"], (identity,)).fetchall())
        return identity

    async def blob(self, identity: str) -> tuple[bytes, str] | None:
        rows = self._all("blob", identity)
        return (b"".join(piece[0] for piece in self._all("blob_pieces", identity)), rows[0][1]) if rows else None

    async def blob_size(self, identity: str) -> tuple[int, str] | None:
        """Return the size and the media type of a blob."""
        return first(self._all("blob", identity), lambda row: (row[0], row[1]))

    async def blob_piece(self, identity: str, number: int) -> bytes:
        """Return a piece of a blob, or b"" after its end."""
        return first_value(self._all("blob_piece", identity, number), b"")

    async def used_blob(self, session: str, seq: int) -> str:
        """Return the hash of the blob of an event, or ""."""
        return first_value(self._all("used_blob", session, seq), "")

    async def sessions_with_blob(self, identity: str) -> list[str]:
        """Return the sessions with an event that uses a blob; access to one of them gives access to the blob."""
        return [row[0] for row in self._all("sessions_with_blob", identity)]

    # Verification

    @asynccontextmanager
    async def read_snapshot(self) -> AsyncGenerator[SqliteStore]:
        """Return a read-only view of the current state, which later writes do not change."""
        view = copy(self)
        view.read_only, view._writer = True, None
        self._files.check()
        with translate_errors(self.path):
            view._read = sqlite_open.connect(self.path, self._memory, self._settings, read_only=self.read_only)
        try:
            view._read.execute("BEGIN")
            view._all("session", "")  # The first read starts the snapshot.
            yield view
        finally:
            view._read.close()

    async def row_counts(self, session: str) -> RowCounts:
        rows = self._all("row_counts", session)
        return RowCounts(*rows[0]) if rows else RowCounts(0, 0, 0, 0, 0)

    async def keys(self, session: str, after: str, limit: int) -> list[KeyRecord]:
        return [KeyRecord(*row) for row in self._all("keys", session, after, limit)]

    async def aliases(self, session: str, after: AliasRecord | None, limit: int) -> list[AliasRecord]:
        last = (after.id, after.ns) if after is not None else ("", "")
        return [AliasRecord(*row) for row in self._all("aliases", session, *last, limit)]

    async def find_copy_faults(self, session: str) -> list[str]:
        return []  # A row has each value once.

    # Maintenance

    async def prune(self, session: SessionRecord, seq: int, base: bytes, kept: dict[int, str]) -> int:
        """Delete the events up to `seq`, unless the session was deleted or pruned since it was read."""
        return await self._alone(lambda connection: prune_session(connection, session, seq, base, kept), erases=True)

    async def drop_unused_blobs(self) -> None:
        await self._alone(drop_unused_blobs, erases=True)

    async def delete(self, session: str) -> bool:
        try:
            return await self._alone(lambda connection: delete_session(connection, session), erases=True)
        except UnicodeEncodeError:  # No session has a name with lone surrogates.
            return False

    async def check(self) -> list[str]:
        """Return the problems that the integrity check of SQLite finds."""
        if await self.has_search_index():  # A check alone would use what this connection knows of earlier states.
            self._all("search_index_exists")
        with translate_errors(self.path):
            problems = [row[0] for row in self._read.execute("PRAGMA integrity_check").fetchall()]
        return [] if problems == ["ok"] else problems

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()
        self._files = LedgerFiles()  # The last process that closes a ledger deletes its WAL.
        self._close_connections()
