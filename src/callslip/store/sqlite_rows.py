"""Convert rows of SQLite to records and back, and read and write them in the transaction of the writer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from callslip.model import codec
from callslip.model.events import Event, blob_of, decode_event
from callslip.model.records import (
    ApprovalRecord,
    CallRecord,
    ConversationChange,
    ConversationName,
    ConversationRecord,
    HeldText,
    KeyRecord,
    PostRecord,
    RuleRecord,
    SessionRecord,
    record_text,
)
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.store.shared_rows import conversation_row, first, first_value, letter_forms, rule_row
from callslip.store.sql import Connection, statements
from callslip.store.unit_of_work import UnitOfWork

SQL = statements("sqlite.sql")
ROWS_PER_STATEMENT = (64, 8, 1)
MAX_CACHED_ROWS = 8192
_decode_carry: Callable[[str], dict[str, HeldText]] = codec.stored_decoder(dict[str, HeldText], "a session")
_decode_options: Callable[[bytes], Any] = codec.stored_decoder(Any, "a request for approval")


def session_row(row: tuple[Any, ...]) -> SessionRecord:
    """Convert a row to a session."""
    record = SessionRecord(*row)
    record.carry = _decode_carry(row[9]) if row[9] else {}
    try:
        record.labels = msgspec.json.decode(row[13]) if row[13] else None
    except msgspec.DecodeError:
        pass  # Damaged labels stay text, so that lists of sessions still work. `verify` reports them.
    return record


def call_row(row: tuple[Any, ...]) -> CallRecord:
    """Convert a row to a call."""
    record = CallRecord(*row)
    record.idempotent = bool(record.idempotent)
    return record


def glob_containing(text: str) -> str:
    """Return a case-insensitive GLOB pattern for texts that contain this one; LIKE ignores the case of ASCII only."""
    return "*" + "".join(map(_any_case, text)) + "*"


def _any_case(letter: str) -> str:
    forms = letter_forms(letter)
    return f"[{''.join(forms)}]" if len(forms) > 1 or letter in "*?[" else letter


def approval_row(row: tuple[Any, ...]) -> ApprovalRecord:
    """Convert a row to an approval."""
    *columns, request = row
    record = ApprovalRecord(*columns)
    record.options = _decode_options(row[8])
    record.answer_at = _answer_at(request) if request else ""
    return record


class _Request(msgspec.Struct, rename="camel"):
    """The field of a request's event that a row of an approval needs."""

    answer_at: str = ""


_decode_request = msgspec.json.Decoder(_Request).decode


def _answer_at(request: bytes) -> str:
    """Return where a request must be answered. If its event is damaged, `verify` reports that."""
    try:
        return record_text(_decode_request(request).answer_at)
    except codec.DECODE_ERRORS:
        return ""


class Rows:
    """Stored records as the writer reads them, cached until another process writes."""

    def __init__(self, connection: Connection) -> None:
        self._run = connection.execute
        self._version = -1
        self._now = 0
        self._sessions: dict[str, SessionRecord] = {}
        self._calls: dict[str, CallRecord] = {}
        self._waiting: dict[str, int] = {}

    def begin(self) -> None:
        """Drop the cache if another process wrote. Must be the first call in a transaction."""
        version = self._run("PRAGMA data_version").fetchall()[0][0]
        if version != self._version or len(self._sessions) + len(self._calls) > MAX_CACHED_ROWS:
            self.clear_cache()
        self._version = version
        self._now = int(time.time() * 1000)

    def update_cache(self, unit: UnitOfWork) -> None:
        """Cache what a unit wrote, after its commit."""
        self._sessions.update((name, row) for name, row in unit.sessions.items() if row.id)
        self._calls.update(unit.calls)
        for client, more in unit.pending_changes.items():
            if client in self._waiting:
                self._waiting[client] += more

    def clear_cache(self) -> None:
        """Drop the cache."""
        self._waiting.clear()
        self._sessions.clear()
        self._calls.clear()

    def _all(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(SQL[name], values).fetchall()

    def now(self) -> int:
        return self._now

    def session(self, name: str) -> SessionRecord | None:
        return self._sessions.get(name) or first(self._all("session", name), session_row)

    def call(self, call: str) -> CallRecord | None:
        return self._calls.get(call) or first(self._all("call", call), call_row)

    def approval(self, approval: str) -> ApprovalRecord | None:
        return first(self._all("approval", approval), approval_row)

    def alias(self, session: str, ns: str, identity: str) -> str | None:
        return first_value(self._all("alias", session, identity, ns))

    def has_alias(self, session: str, identity: str) -> bool:
        return bool(self._all("has_alias", session, identity))

    def key(self, session: str, key: str) -> KeyRecord | None:
        return first(self._all("key", session, key), lambda row: KeyRecord(session, key, row[1], row[0]))

    def conversation(self, name: ConversationName) -> ConversationRecord | None:
        return first(self._all("conversation", *name), conversation_row)

    def post(self, session: str, key: str) -> PostRecord | None:
        return first(self._all("post", session, key), lambda row: PostRecord(session, key, *row))

    def event(self, session: str, seq: int) -> Event | None:
        return first(self._all("event", session, seq), lambda row: decode_event(row[0]))

    def user_messages(self, session: str) -> list[Event]:
        return [decode_event(row[0]) for row in self._all("user_messages", session)]

    def has_blob(self, identity: str) -> bool:
        return bool(self._all("blob", identity))

    def open_calls(self, session: str) -> list[CallRecord]:
        return [call_row(row) for row in self._all("open_calls", session)]

    def owned_calls(self, owner: str) -> list[CallRecord]:
        return [call_row(row) for row in self._all("owned_calls", owner)]

    def is_taken(self, identity: str) -> bool:
        return (self.call if identity.startswith("exec_") else self.approval)(identity) is not None

    def has_room(self, client: str, added: int, limit: int) -> bool:
        """Return whether a client has fewer pending commands: counted once, and then updated by `update_cache`."""
        count = self._waiting.get(client)
        if count is None:
            count = self._waiting[client] = first_value(self._all("pending_count", client), 0)
        return count + added < limit

    def oldest_pending(self, client: str, limit: int) -> list[CallRecord]:
        return [call_row(row) for row in self._all("oldest_pending", client, limit)]

    def sealed(self, call: str) -> bytes | None:
        return first_value(self._all("sealed", call))

    def rule(self, rule: str) -> RuleRecord | None:
        return first(self._all("rule", rule), rule_row)

    def owned_turns(self, owner: str) -> list[SessionRecord]:
        return [session_row(row) for row in self._all("turns_of_owners", codec.encode([owner]).decode())]


@cache
def _multi_row(name: str, rows: int) -> str:
    """Return a statement that inserts several rows."""
    head, values, tail = re.split(r"VALUES (\([^)]*\))", SQL[name])
    return f"{head}VALUES {', '.join([values] * rows)}{tail}"


def put_many(connection: Connection, name: str, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows with few statements, as each one releases the interpreter lock and must get it back."""
    start = 0
    for size in ROWS_PER_STATEMENT:
        while len(rows) - start >= size:
            flat = [value for row in rows[start : start + size] for value in row]
            connection.execute(_multi_row(name, size), flat)
            start += size


def flush(connection: Connection, unit: UnitOfWork) -> bool:
    """Write the changes of a unit of work. Return whether secrets of ended commands were deleted."""
    ended = [row.id for row in unit.calls.values() if row.client and row.state in TERMINAL_STATES]
    unsealed = [call for call in ended if connection.execute(SQL["unseal"], (call,)).fetchall()]
    sessions = [row for row in unit.sessions.values() if row.last_seq]
    for row in sessions:
        if not row.id:
            row.id = connection.execute(SQL["add_session"], session_values(row)[1:]).fetchall()[0][0]
    put_many(connection, "put_session", [session_values(row) for row in sessions])
    session_ids = {name: row.id for name, row in unit.sessions.items()}
    put_many(connection, "add_event", [(session_ids[m.session], m.event.seq, m.body) for m in unit.events])
    if unit.calls:
        number_changes(connection, unit.commands())
        calls = [astuple(replace(row, session=session_ids[row.session])) for row in unit.calls.values()]
        put_many(connection, "put_call", calls)
    for call, (session, data) in unit.seals.items():
        if unit.calls[call].state in TERMINAL_STATES:  # It ended in the same transaction.
            continue
        connection.execute(SQL["seal"], (call, session_ids[session], data)).fetchall()
    if unit.approvals:
        approvals = [approval_values(session_ids[row.session], row) for row in unit.approvals.values()]
        put_many(connection, "put_approval", approvals)
    if unit.aliases:
        aliases = [(session_ids[s], identity, ns, call) for (s, identity, ns), call in unit.aliases.items() if ns]
        put_many(connection, "put_alias", aliases)
    if unit.keys:
        keys = [(session_ids[row.session], row.key, row.mark, row.seq) for row in unit.keys.values()]
        put_many(connection, "put_key", keys)
    uses = [(session_ids[m.session], m.event.seq, blob.hash) for m in unit.events if (blob := blob_of(m.event))]
    if uses:
        put_many(connection, "use_blob", uses)
    for name, (_, changes) in unit.conversations.items():
        for version, change in changes:
            _change_conversation(connection, name, version, change, unit.now)
    for row in unit.posts.values():
        connection.execute(SQL["put_post"], (*astuple(row), unit.now)).fetchall()
    for rule, uses in unit.rule_uses.items():
        connection.execute(SQL["use_rule"], (rule, uses, unit.now)).fetchall()
    if unit.owners:
        put_many(connection, "put_owner", [(row.id, row.until) for row in unit.owners.values()])
    return bool(unsealed)


def _change_conversation(
    connection: Connection, name: ConversationName, version: int, change: ConversationChange, now: int
) -> None:
    if change.is_ended:
        connection.execute(SQL["drop_conversation"], name).fetchall()
        return
    values = (*name, change.chunks, version, change.claimed_by, change.claimed_until, now)
    conversation = connection.execute(SQL["put_conversation"], values).fetchall()[0][0]
    if change.drops_inputs:
        connection.execute(SQL["drop_inputs"], (conversation,)).fetchall()
    if change.input:
        connection.execute(SQL["add_input"], (conversation, version, change.input)).fetchall()
    if change.state:
        connection.execute(SQL["put_state"], (change.state, version, conversation)).fetchall()


def number_changes(connection: Connection, commands: list[CallRecord]) -> None:
    """Number the changed commands. Numbers have no gaps, as no other process writes meanwhile, and are never reused."""
    if not commands:
        return
    last = connection.execute(SQL["last_change"]).fetchall()[0][0]
    for number, row in enumerate(commands, last + 1):
        row.change = number
    connection.execute(SQL["put_last_change"], (last + len(commands),)).fetchall()


def approval_values(session: int, row: ApprovalRecord) -> tuple[Any, ...]:
    """Convert an approval of a session to a row."""
    return astuple(replace(row, session=session, options=msgspec.json.encode(row.options)))[:-1]


def session_values(row: SessionRecord) -> tuple[Any, ...]:
    """Convert a session to a row."""
    carry = msgspec.json.encode(row.carry) if row.carry else None
    labels = msgspec.json.encode(row.labels).decode() if row.labels is not None else ""
    name, number, *rest = astuple(replace(row, carry=carry, labels=labels))
    return (number, name, *rest, row.release_at)
