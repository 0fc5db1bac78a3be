"""Create sessions for a caller, and read them: their records, events, entries and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.export import check_position
from callslip.errors import (
    ConflictError,
    CursorExpiredError,
    DatabaseUnavailableError,
    InvalidInputError,
    NotFoundError,
)
from callslip.formats import registry
from callslip.ledger import queries
from callslip.ledger.aio import LARGE_HISTORY, run_off_loop
from callslip.ledger.event_log import EventLog
from callslip.ledger.snapshot_pages import SnapshotSource
from callslip.model.codec import read_cursor
from callslip.model.entries import Entry, Info, Snapshot
from callslip.model.events import Draft, Event, SessionInfo, decode_event
from callslip.model.names import check_session_name
from callslip.model.records import KeyRecord, SessionRecord
from callslip.rules.fold import SessionFold

T = TypeVar("T")
OWNER_KEY = "session:owner"
"""The key of the event that sets a session's owner: of two callers who create a session, one gets a conflict."""
KEY_PAGE_ROWS = 1000
STANDBY_WAIT_S = 5.0
"""How long a read waits for an event that a standby does not have yet."""


# Writing


async def write_or_create(
    log: EventLog,
    session: str,
    write: Callable[[Sequence[Draft]], Awaitable[T]],
    *,
    access: Access = FULL_ACCESS,
    is_owned: bool = True,
) -> T:
    """Run a write to a session that may not exist. If it creates the session, that belongs to the caller.

    `write` must append the drafts that it receives before its own. If another caller creates the session meanwhile,
    the write is repeated without them, provided that this caller may write to the other's session.
    """
    # Read before the check of access: if another caller creates the session after the check, the write conflicts.
    exists = await log.get_session(check_session_name(session)) is not None
    name = await access.require_write(session)
    if not name or not is_owned or exists:
        return await write(())
    try:
        return await write((Draft(SessionInfo(owner=name), key=OWNER_KEY),))
    except ConflictError:
        record = await log.get_session(session)
        if record is None or record.owner == name:
            raise
        await access.require(session, "write")
        return await write(())


# Reading


class EventPage(NamedTuple):
    """Events as JSON, oldest first; `seq` is the last one of the session, `cursor` the seq to continue after."""

    events: list[bytes]
    seq: int
    cursor: str


class EntryPage(NamedTuple):
    """Entries, oldest first, and the cursor to older ones."""

    entries: list[Entry]
    seq: int
    info: Info
    cursor: str


class MessagePage(NamedTuple):
    """Messages of a format, and the cursor to older ones."""

    messages: list[Any]
    seq: int
    cursor: str


async def check_same_session(log: EventLog, name: str, session_id: int) -> None:
    """Raise NotFoundError unless a session still exists: what was read by its name may be of a new one."""
    record = await log.get_session(name)
    if (record.id if record else 0) != session_id:
        raise NotFoundError(f"no session {name!r}")


async def wait_for_seq(log: EventLog, session: str, seq: int) -> None:
    """Wait until a standby has event `seq` of a session. A ledger that can be written has all events already."""
    if not log.store.read_only:
        return
    try:
        async with asyncio.timeout(STANDBY_WAIT_S):
            with log.feed.watch():
                seen = log.feed.changes
                while (record := await log.get_session(session)) is None or record.last_seq < seq:
                    await log.feed.wait_change(seen)
                    seen = log.feed.changes
    except TimeoutError:
        problem = f"session {session!r} does not have event {seq} here yet. Try again, or read from the primary."
        raise DatabaseUnavailableError(problem) from None


async def read_events(
    log: EventLog, record: SessionRecord, *, limit: int | None = None, cursor: str = "", at: int | None = None
) -> EventPage:
    """Return the events of a session after a cursor, up to event `at` or the last one."""
    check_position(record, at)
    (after,) = read_cursor(f"[{cursor}]", int) if cursor else (record.pruned_seq,)
    if after < record.pruned_seq:
        raise CursorExpiredError(after, record.pruned_seq)
    last = record.last_seq if at is None else at
    if after > last:
        raise InvalidInputError("cursor", f"{after} is beyond the last event ({last})")
    count = last - after if limit is None else limit
    events: list[bytes] = []
    while after < last and len(events) < count:
        page = await read_rows(log, record.name, after, min(count - len(events), last - after))
        if not page:
            break
        events += [body for _, body in page]
        after = page[-1][0]
    await check_same_session(log, record.name, record.id)
    return EventPage(events, last, str(after) if after < last else "")


async def read_entries(
    log: EventLog, record: SessionRecord, *, limit: int | None = None, cursor: str = "", at: int | None = None
) -> EntryPage:
    """Return the newest entries of a session, or the newest before a cursor."""
    if at is not None:
        snapshot = await read_snapshot(log, record, at)
        return EntryPage(snapshot.entries, snapshot.seq, snapshot.info, "")
    (before,) = read_cursor(f"[{cursor}]", int) if cursor else (queries.ALL,)
    snapshot = await log.snapshot(record.name, limit=queries.ALL if limit is None else limit + 1, before=before)
    await check_same_session(log, record.name, record.id)
    has_more = limit is not None and len(snapshot.entries) > limit
    entries = snapshot.entries[1:] if has_more else snapshot.entries
    return EntryPage(entries, snapshot.seq, snapshot.info, str(entries[0].id) if has_more else "")


async def read_messages(
    log: EventLog,
    record: SessionRecord,
    format: str,
    *,
    limit: int | None = None,
    cursor: str = "",
    at: int | None = None,
) -> MessagePage:
    """Return a session as messages of a format: all of them, or with `limit` the newest before a cursor."""
    encode = registry.encoder(format)
    if limit is None:
        snapshot = await read_snapshot(log, record, at)
        messages = await run_off_loop(len(snapshot.entries) >= LARGE_HISTORY, encode, snapshot)
        return MessagePage(messages, snapshot.seq, "")
    newest_first = registry.find(format).newest_first
    page = await queries.messages(log.store, record.name, encode, limit=limit, cursor=cursor, newest_first=newest_first)
    await check_same_session(log, record.name, record.id)
    return MessagePage(page.messages, page.seq, page.cursor)


async def read_document(log: EventLog, record: SessionRecord, format: str, at: int | None = None) -> bytes:
    """Return a session as one document of a format that has no list of messages."""
    snapshot = await read_snapshot(log, record, at)
    return await run_off_loop(len(snapshot.entries) >= LARGE_HISTORY, registry.document(format), snapshot)


async def read_snapshot(log: EventLog, record: SessionRecord, at: int | None = None) -> Snapshot:
    """Return all entries of a session, now or as they were after event `at`."""
    check_position(record, at)
    state = None if at is None else await log.state_at(record.name, at)
    snapshot = await log.snapshot(record.name) if state is None else state.snapshot()
    await check_same_session(log, record.name, record.id)
    return snapshot


def open_snapshots(log: EventLog, session: str, max_bytes: int) -> SnapshotSource:
    """Return a source of snapshots in pieces of `max_bytes`, unless one entry is larger."""
    return SnapshotSource(log.store, session, max_bytes)


async def read_rows(
    log: EventLog, session: str, after: int, limit: int | None = None, max_bytes: int | None = None
) -> list[tuple[int, bytes]]:
    """Return the seq and the JSON of the next events after a cursor: one page, of `max_bytes` unless one is larger."""
    page = log.settings.read_page
    return await log.store.events(session, after, page if limit is None else min(page, limit), max_bytes)


async def read_by_seq(log: EventLog, session: str, seqs: Collection[int]) -> list[bytes]:
    """Return the JSON of these events in order, without those that retention has removed."""
    bodies: dict[int, bytes] = {}
    for seq in seqs:
        if seq not in bodies:
            bodies.update(await read_rows(log, session, seq - 1, max(seqs) - seq + 1))
    return [bodies[seq] for seq in seqs if seq in bodies]


# States to continue from


async def load_state(log: EventLog, session: str, seq: int) -> SessionFold:
    """Return the state to fold the events after `seq` on. Its finished entries may be missing."""
    return await queries.state_after(log.store, session, seq) if seq else SessionFold(session)


async def load_turn(log: EventLog, session: str, turn: str = "") -> SessionFold:
    """Return the last state with all entries of a turn: the named one, the open one, or the last one."""
    return await queries.load_turn(log.store, session, turn)


async def needs_snapshot(log: EventLog, session: str, after: int) -> bool:
    """Return whether a reader at a cursor is served faster with a snapshot than with the events it missed."""
    return await queries.needs_snapshot(log.store, session, after)


# Idempotency keys


async def list_keys(log: EventLog, session: str, prefix: str) -> list[KeyRecord]:
    """Return the idempotency keys of a session that start with a prefix, in their order."""
    records: list[KeyRecord] = []
    after = prefix
    while page := await log.store.keys(session, after, KEY_PAGE_ROWS):
        matches = [record for record in page if record.key.startswith(prefix)]
        records += matches
        if len(matches) < len(page):
            break
        after = page[-1].key
    return records


async def find_event_by_key(log: EventLog, session: str, key: str) -> Event | None:
    """Return the event that was written under an idempotency key, unless retention has removed it."""
    keys = await log.store.keys(session, key[:-1], 1)
    rows = await log.store.events(session, keys[0].seq - 1, 1) if keys and keys[0].key == key else []
    return decode_event(rows[0][1]) if rows else None
