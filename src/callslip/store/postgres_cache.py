"""The records that a process remembers of the sessions it writes, and how it reads the ones it lacks.

Every write to a session increases its `rev`. What was read together with a rev is valid while the session has it, and
the statement that writes compares it. So most transactions need no read at all: one statement decides and writes.

A decision is a plain function that asks for records. One that is not known is noted, and taken not to exist, so that
the decision asks for more. Then the missing records of all decisions of a group are read with one query, and the
decisions run again. What a decision did without a record is never used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from callslip.model.events import Event, decode_event
from callslip.model.records import (
    ApprovalRecord,
    CallRecord,
    ConversationName,
    ConversationRecord,
    KeyRecord,
    PostRecord,
    RuleRecord,
    SessionRecord,
)
from callslip.rules.lifecycle import OPEN_STATES
from callslip.store.postgres_database import Connection
from callslip.store.postgres_rows import (
    CALL_COLUMNS,
    SESSION_COLUMNS,
    Row,
    approval_record,
    call_record,
    session_record,
)
from callslip.store.shared_rows import rule_row
from callslip.store.sql import statements
from callslip.store.unit_of_work import UnitOfWork

SQL = statements("postgres.sql")
MAX_SESSIONS = 2048
MAX_SESSION_RECORDS = 4096
MAX_RECORDS = 2**16
"""How many records of all sessions are remembered."""

_OPEN = "('queued', 'awaiting_approval', 'running')"
_NO_SESSION = "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
LOAD = f"""
SELECT 1, {SESSION_COLUMNS}, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::bytea
  FROM sessions s WHERE s.name = ANY ($1)
UNION ALL SELECT 2, {SESSION_COLUMNS}, NULL, NULL, NULL, c.rev, c.record
  FROM calls c JOIN sessions s ON s.id = c.session WHERE c.id = ANY ($2)
UNION ALL SELECT 3, {SESSION_COLUMNS}, NULL, NULL, NULL, c.rev, c.record
  FROM sessions s JOIN calls c ON c.session = s.id WHERE s.name = ANY ($3) AND c.state IN {_OPEN}
UNION ALL SELECT 4, {SESSION_COLUMNS}, NULL, NULL, NULL, NULL, a.record
  FROM approvals a JOIN sessions s ON s.id = a.session WHERE a.id = ANY ($4)
UNION ALL SELECT 5, {_NO_SESSION}, u.session, a.id, a.ns, NULL, convert_to(a.call, 'UTF8')
  FROM unnest($5::text[], $6::text[]) AS u(session, id) JOIN sessions s ON s.name = u.session
  JOIN aliases a ON a.session = s.id AND a.id = u.id
UNION ALL SELECT 6, {_NO_SESSION}, u.session, k.key, k.mark, k.seq, e.body
  FROM unnest($7::text[], $8::text[]) AS u(session, key) JOIN sessions s ON s.name = u.session
  JOIN keys k ON k.session = s.id AND k.key = u.key LEFT JOIN events e ON e.session = s.id AND e.seq = k.seq
UNION ALL SELECT 7, {_NO_SESSION}, u.session, NULL, NULL, e.seq, e.body
  FROM unnest($9::text[], $10::bigint[]) AS u(session, seq) JOIN sessions s ON s.name = u.session
  JOIN events e ON e.session = s.id AND e.seq = u.seq
UNION ALL SELECT 8, {_NO_SESSION}, q.client, NULL, NULL, q.waiting, NULL FROM queues q WHERE q.client = ANY ($11)
"""
OWNED_CALLS = f"""
SELECT {CALL_COLUMNS} FROM calls c JOIN sessions s ON s.id = c.session
WHERE c.owner = $1 AND c.owner <> '' AND c.state IN {_OPEN} ORDER BY c.session, c.entry
"""
OWNED_TURNS = f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.turn_owner = $1 AND s.turn_owner <> ''"
OLDEST_PENDING = f"""
SELECT {CALL_COLUMNS} FROM calls c JOIN sessions s ON s.id = c.session
WHERE c.client = $1 AND c.client <> '' AND c.state IN ('queued', 'awaiting_approval')
ORDER BY c.created_at, c.session, c.entry LIMIT $2
"""
USER_MESSAGES = """
SELECT e.body FROM events e JOIN sessions s ON s.id = e.session
WHERE s.name = $1 AND substr(e.body, 1, 22) = '{"type":"message.user"'::bytea ORDER BY e.seq
"""
CONVERSATION = """
SELECT chunks, version, claimed_by, claimed_until FROM conversations WHERE (session, format, caller) = ($1, $2, $3)
"""


class Missing:
    """The records to read with the next query."""

    __slots__ = ("aliases", "approvals", "calls", "events", "keys", "open_calls", "other", "queues", "sessions")

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.calls: set[str] = set()
        self.open_calls: set[str] = set()
        self.approvals: set[str] = set()
        self.aliases: set[tuple[str, str]] = set()
        self.keys: set[tuple[str, str]] = set()
        self.events: set[tuple[str, int]] = set()
        self.queues: set[str] = set()
        self.other: set[tuple[Any, ...]] = set()

    def add(self, missing: Missing) -> None:
        """Add other records to read, and keep the ones of LOAD."""
        for name in self.__slots__:
            if name == "other":
                self.other = missing.other
            else:
                getattr(self, name).update(getattr(missing, name))

    def has_common(self) -> bool:
        """Return whether the query LOAD has anything to read."""
        return any(getattr(self, name) for name in self.__slots__ if name != "other")

    def __bool__(self) -> bool:
        return bool(self.other) or self.has_common()


class CachedSession:
    """What is known of a session at a rev. `is_complete`: a record that is not known does not exist.

    `valid_at` is a time of the event loop at which the session had this rev. `counted` is how many of its records the
    cache has counted.
    """

    __slots__ = (
        *("aliases", "approvals", "calls", "counted", "has_open_calls", "is_complete", "keys", "record", "rev"),
        "valid_at",
    )

    def __init__(self, record: SessionRecord | None, rev: int, valid_at: float) -> None:
        self.record = record
        self.rev = rev
        self.valid_at = valid_at
        self.is_complete = self.has_open_calls = record is None
        self.calls: dict[str, CallRecord] = {}
        self.approvals: dict[str, ApprovalRecord] = {}
        self.aliases: dict[str, dict[str, str]] = {}
        self.keys: dict[str, KeyRecord | None] = {}
        self.counted = 0

    def size(self) -> int:
        return len(self.calls) + len(self.approvals) + len(self.aliases) + len(self.keys)


class Cache:
    """The sessions that this process has written or read to write, the last used ones last."""

    def __init__(self) -> None:
        self.sessions: dict[str, CachedSession] = {}
        self.call_sessions: dict[str, str] = {}
        self.approval_sessions: dict[str, str] = {}
        self.record_count = 0

    def drop(self, names: Iterable[str]) -> None:
        """Forget sessions."""
        for name in names:
            cached = self.sessions.pop(name, None)
            if cached is not None:
                self.record_count -= cached.counted
                for call in cached.calls:
                    self.call_sessions.pop(call, None)
                for approval in cached.approvals:
                    self.approval_sessions.pop(approval, None)

    def clear(self) -> None:
        """Forget all sessions."""
        self.drop(list(self.sessions))

    def names_of(self, identities: Iterable[int]) -> set[str]:
        """Return the names of sessions by their numbers."""
        wanted = set(identities)
        return {name for name, cached in self.sessions.items() if cached.record and cached.record.id in wanted}

    def trim(self) -> None:
        """While there are too many sessions or records, forget the session that was not used for the longest time."""
        if len(self.sessions) > MAX_SESSIONS or self.record_count > MAX_RECORDS:
            for name in list(self.sessions):
                self.drop([name])
                if len(self.sessions) <= MAX_SESSIONS and self.record_count <= MAX_RECORDS:
                    break

    def count_records(self, names: Iterable[str]) -> None:
        """Count the records of sessions again, which have changed."""
        for name in names:
            cached = self.sessions.get(name)
            if cached is None:
                continue
            size = cached.size()
            self.record_count += size - cached.counted
            cached.counted = size

    def put_session(self, record: SessionRecord, rev: int, valid_at: float) -> CachedSession:
        """Take over a session that was read. What was known at another rev is forgotten."""
        cached = self.sessions.get(record.name)
        if cached is not None and cached.rev == rev and cached.record is not None and cached.record.id == record.id:
            cached.valid_at = max(cached.valid_at, valid_at)
            return cached
        self.drop([record.name])
        cached = self.sessions[record.name] = CachedSession(record, rev, valid_at)
        return cached

    def put_sessions(self, names: Collection[str], rows: Iterable[Row], valid_at: float) -> None:
        """Take over rows of SESSION_COLUMNS. Sessions of these names without a row do not exist."""
        found: set[str] = set()
        for row in rows:
            found.add(row[1])
            self.put_session(session_record(row), row[2], valid_at)
        for name in names:
            if name not in found:
                self.drop([name])
                self.sessions[name] = CachedSession(None, 0, valid_at)

    def put_call(self, cached: CachedSession, record: CallRecord) -> None:
        cached.calls[record.id] = record
        self.call_sessions[record.id] = record.session

    def put_approval(self, cached: CachedSession, record: ApprovalRecord) -> None:
        cached.approvals[record.id] = record
        self.approval_sessions[record.id] = record.session

    def update(self, unit: UnitOfWork, revs: dict[str, int], valid_at: float) -> None:
        """Take over what a unit of work has written to sessions that had these revs, after its commit."""
        current: dict[str, CachedSession] = {}
        for name, rev in revs.items():
            cached = self.sessions.get(name)
            if cached is None or cached.rev != rev:  # Another lane has read it again.
                self.drop([name])
                continue
            del self.sessions[name]
            self.sessions[name] = current[name] = cached  # The last used one is the last.
            cached.record = unit.sessions[name]
            cached.rev += 1
            cached.valid_at = valid_at
        for record in unit.calls.values():
            if record.session in current:
                self.put_call(current[record.session], record)
        for record in unit.approvals.values():
            if record.session in current:
                self.put_approval(current[record.session], record)
        for (session, identity, ns), call in unit.aliases.items():
            cached = current.get(session)
            if ns and cached is not None and (cached.is_complete or identity in cached.aliases):
                cached.aliases.setdefault(identity, {})[ns] = call
        for record in unit.keys.values():
            if record.session in current:
                current[record.session].keys[record.key] = record
        self.count_records(current)
        self.drop([name for name, cached in current.items() if cached.counted > MAX_SESSION_RECORDS])


class GroupReads:
    """The records of one group of transactions. `used` are the sessions that its decisions have read.

    Records that no rev protects, such as the length of a queue, are in `unversioned` and are read again for each group.
    """

    def __init__(self, cache: Cache, now_ms: int) -> None:
        self._cache = cache
        self._now = now_ms
        self._generated: set[str] = set()
        self.unversioned: dict[tuple[Any, ...], Any] = {}
        self.missing = Missing()
        self.is_incomplete = False
        """Whether a record was not known since this was set to false."""
        self.used: set[str] = set()
        self.most_waiting: dict[str, int] = {}
        """How many commands may be pending in a queue, at most, for the decisions to be right."""
        self.reads_keys = False
        """Whether keys are read. At first they are taken to be unused, and the write finds out."""
        self.send_delay_ms = 0
        """How much later than now the decisions are expected to arrive at the server."""
        self.assumed_keys = False
        """Whether a decision has taken a key to be unused."""

    def begin(self, now_ms: int) -> None:
        """Prepare another run of the decisions."""
        self._now = now_ms
        self._generated.clear()
        self.used = set()
        self.most_waiting = {}
        self.assumed_keys = False
        self.missing = Missing()

    def forget_unversioned(self) -> None:
        """Read again what no rev protects."""
        self.unversioned.clear()

    # What a decision asks for

    def now(self) -> int:
        return self._now

    def is_taken(self, identity: str) -> bool:
        """Take a generated id to be free, unless it is known. The write finds out if it is not."""
        if identity in self._cache.call_sessions or identity in self._cache.approval_sessions:
            return True
        self._generated.add(identity)
        return False

    def _note(self, missing: set[Any], record: Any) -> None:
        missing.add(record)
        self.is_incomplete = True

    def _session(self, name: str) -> CachedSession:
        cached = self._cache.sessions.get(name)
        if cached is None:
            self._note(self.missing.sessions, name)
            return CachedSession(None, 0, 0.0)
        self.used.add(name)
        return cached

    def _other(self, absent: Any, *key: Any) -> Any:
        if key not in self.unversioned:
            self._note(self.missing.other, key)
            return absent
        return self.unversioned[key]

    def session(self, name: str) -> SessionRecord | None:
        return self._session(name).record

    def call(self, call: str) -> CallRecord | None:
        session = self._cache.call_sessions.get(call)
        if session is not None:
            return self._session(session).calls.get(call)
        if call not in self._generated and ("call", call) not in self.unversioned:
            self._note(self.missing.calls, call)
        return None

    def approval(self, approval: str) -> ApprovalRecord | None:
        session = self._cache.approval_sessions.get(approval)
        if session is not None:
            return self._session(session).approvals.get(approval)
        if approval not in self._generated and ("approval", approval) not in self.unversioned:
            self._note(self.missing.approvals, approval)
        return None

    def _aliases(self, session: str, identity: str) -> dict[str, str]:
        cached = self._session(session)
        found = cached.aliases.get(identity)
        if found is None:
            if not cached.is_complete:
                self._note(self.missing.aliases, (session, identity))
            return {}
        return found

    def alias(self, session: str, ns: str, identity: str) -> str | None:
        return self._aliases(session, identity).get(ns)

    def has_alias(self, session: str, identity: str) -> bool:
        return any(self._aliases(session, identity).values())

    def key(self, session: str, key: str) -> KeyRecord | None:
        cached = self._session(session)
        if key in cached.keys or cached.is_complete:
            return cached.keys.get(key)
        if self.reads_keys:
            self._note(self.missing.keys, (session, key))
        else:
            self.assumed_keys = True
        return None

    def event(self, session: str, seq: int) -> Event | None:
        if self._session(session).record is None:
            return None
        if ("event", session, seq) not in self.unversioned:
            self._note(self.missing.events, (session, seq))
            return None
        body = self.unversioned["event", session, seq]
        return decode_event(body) if body is not None else None

    def open_calls(self, session: str) -> list[CallRecord]:
        cached = self._session(session)
        if not (cached.has_open_calls or cached.is_complete):
            self._note(self.missing.open_calls, session)
            return []
        return sorted((row for row in cached.calls.values() if row.state in OPEN_STATES), key=lambda row: row.entry)

    def has_room(self, client: str, added: int, limit: int) -> bool:
        if ("queue", client) not in self.unversioned:
            self._note(self.missing.queues, client)
            return True
        if self.unversioned["queue", client] + added >= limit:
            return False
        self.most_waiting[client] = min(self.most_waiting.get(client, limit), limit - added - 1)
        return True

    def _calls(self, rows: list[CallRecord]) -> list[CallRecord]:
        """Return the calls of rows that no rev protects, as their sessions have them."""
        return [call for row in rows if (call := self.call(row.id)) is not None]

    def owned_calls(self, owner: str) -> list[CallRecord]:
        return self._calls(self._other([], "owned_calls", owner))

    def owned_turns(self, owner: str) -> list[SessionRecord]:
        names: list[str] = self._other([], "owned_turns", owner)
        return [session for name in names if (session := self.session(name)) is not None]

    def oldest_pending(self, client: str, limit: int) -> list[CallRecord]:
        # Tasks of one group ask for one more each. A few sizes serve them all.
        rows: list[CallRecord] = self._other([], "oldest_pending", client, 1 << (limit - 1).bit_length())
        return self._calls(rows[:limit])

    def user_messages(self, session: str) -> list[Event]:
        if self._session(session).record is None:
            return []
        return [decode_event(body) for body in self._other([], "user_messages", session)]

    def sealed(self, call: str) -> bytes | None:
        return None if call in self._generated else self._other(None, "sealed", call)

    def has_blob(self, identity: str) -> bool:
        return self._other(True, "blob", identity)

    def conversation(self, name: ConversationName) -> ConversationRecord | None:
        return self._other(None, "conversation", *name)

    def rule(self, rule: str) -> RuleRecord | None:
        return self._other(None, "rule", rule)

    def post(self, session: str, key: str) -> PostRecord | None:
        return self._other(None, "post", session, key)

    # Reading what is missing

    async def load(self, connection: Connection, missing: Missing, sent_at: float) -> None:
        """Read records. Those of one session are read with its rev."""
        if missing.has_common():
            await self._load_common(connection, missing, sent_at)
        for kind, read in _BATCH_READERS.items():
            if wanted := [key[1] for key in missing.other if key[0] == kind]:
                found = await read(connection, wanted)
                self.unversioned.update({(kind, identity): found.get(identity) for identity in wanted})
        for key in missing.other:
            if key[0] in _READERS:
                self.unversioned[key] = await _READERS[key[0]](connection, *key[1:])

    async def _load_common(self, connection: Connection, missing: Missing, sent_at: float) -> None:
        aliases, keys, events = list(missing.aliases), list(missing.keys), list(missing.events)
        names = {*missing.sessions, *missing.open_calls}
        names.update(session for session, _ in aliases)
        names.update(session for session, _ in keys)
        rows = await connection.fetch(
            LOAD,
            list(names),
            list(missing.calls),
            list(missing.open_calls),
            list(missing.approvals),
            [session for session, _ in aliases],
            [identity for _, identity in aliases],
            [session for session, _ in keys],
            [key for _, key in keys],
            [session for session, _ in events],
            [seq for _, seq in events],
            list(missing.queues),
        )
        of_sessions = [row[1:9] for row in rows if row[0] <= 4]
        self._cache.put_sessions(names, of_sessions, sent_at)
        self._mark_as_read(missing)
        for row in rows:
            self._take_over(row)
        self._cache.count_records(names.union(row[1] for row in of_sessions))

    def _mark_as_read(self, missing: Missing) -> None:
        """Note what was asked for: what the query did not return does not exist."""
        for session, identity in missing.aliases:
            self._cache.sessions[session].aliases[identity] = {}
        for session, key in missing.keys:
            self._cache.sessions[session].keys[key] = None
        for session in missing.open_calls:
            self._cache.sessions[session].has_open_calls = True
        self.unversioned.update({("call", call): None for call in missing.calls})
        self.unversioned.update({("approval", approval): None for approval in missing.approvals})
        self.unversioned.update({("event", session, seq): None for session, seq in missing.events})
        self.unversioned.update({("queue", client): 0 for client in missing.queues})

    def _take_over(self, row: Row) -> None:
        kind, name, (text1, text2, text3, number, body) = row[0], row[2], row[9:14]
        match kind:
            # What was found is not in `unversioned`: if its session is forgotten meanwhile, it is read again.
            case 2 | 3:
                call = call_record((name, number, body))
                self._cache.put_call(self._cache.sessions[name], call)
                self.unversioned.pop(("call", call.id), None)
            case 4:
                approval = approval_record((name, body))
                self._cache.put_approval(self._cache.sessions[name], approval)
                self.unversioned.pop(("approval", approval.id), None)
            case 5:
                self._cache.sessions[text1].aliases[text2][text3] = bytes(body).decode()
            case 6:
                self._cache.sessions[text1].keys[text2] = KeyRecord(text1, text2, text3, number)
                self.unversioned["event", text1, number] = body  # The answer to a repeated write.
            case 7:
                self.unversioned["event", text1, number] = body
            case 8:
                self.unversioned["queue", text1] = number
            case _:
                pass


async def _read_owned_calls(connection: Connection, owner: str) -> list[CallRecord]:
    return [call_record(row) for row in await connection.fetch(OWNED_CALLS, owner)]


async def _read_owned_turns(connection: Connection, owner: str) -> list[str]:
    return [row[1] for row in await connection.fetch(OWNED_TURNS, owner)]


async def _read_oldest_pending(connection: Connection, client: str, limit: int) -> list[CallRecord]:
    return [call_record(row) for row in await connection.fetch(OLDEST_PENDING, client, limit)]


async def _read_user_messages(connection: Connection, session: str) -> list[bytes]:
    return [row[0] for row in await connection.fetch(USER_MESSAGES, session)]


async def _read_sealed(connection: Connection, calls: list[str]) -> dict[str, bytes]:
    rows = await connection.fetch("SELECT call, input FROM sealed WHERE call = ANY ($1::text[])", calls)
    return {row[0]: row[1] for row in rows}


async def _read_blobs(connection: Connection, hashes: list[str]) -> dict[str, bool]:
    rows = await connection.fetch("SELECT hash FROM blobs WHERE hash = ANY ($1::text[]) AND whole", hashes)
    return {identity: identity in {row[0] for row in rows} for identity in hashes}


async def _read_conversation(
    connection: Connection, session: str, format: str, caller: str
) -> ConversationRecord | None:
    rows = await connection.fetch(CONVERSATION, session, format, caller)
    if not rows:
        return None
    chunks, version, claimed_by, claimed_until = rows[0]
    return ConversationRecord(chunks=chunks, version=version, claimed_by=claimed_by, claimed_until=claimed_until)


async def _read_post(connection: Connection, session: str, key: str) -> PostRecord | None:
    rows = await connection.fetch("SELECT mark, answer FROM posts WHERE session = $1 AND key = $2", session, key)
    return PostRecord(session, key, rows[0][0], rows[0][1]) if rows else None


async def _read_rule(connection: Connection, rule: str) -> RuleRecord | None:
    rows = await connection.fetch(SQL["rule"], rule)
    return rule_row(rows[0]) if rows else None


_READERS: dict[str, Any] = {
    "owned_calls": _read_owned_calls,
    "owned_turns": _read_owned_turns,
    "oldest_pending": _read_oldest_pending,
    "user_messages": _read_user_messages,
    "conversation": _read_conversation,
    "post": _read_post,
    "rule": _read_rule,
}
_BATCH_READERS: dict[str, Any] = {"sealed": _read_sealed, "blob": _read_blobs}
