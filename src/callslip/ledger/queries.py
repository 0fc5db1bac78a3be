"""Read a session with its checkpoint: all entries, the newest, one turn, from a cursor, or pages of messages.

A read costs as much as it returns, plus the events since the checkpoint. Other processes may move the checkpoint or
remove events during a read; the read is then repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from callslip.errors import InvalidInputError
from callslip.ledger.aio import LARGE_COUNT, LARGE_HISTORY, run_off_loop
from callslip.ledger.checkpoint import ALL, fold_upto, load_checkpoint, load_session, load_state, read_entry, state_at
from callslip.model import codec
from callslip.model.codec import read_cursor
from callslip.model.entries import Entry, Info, Snapshot
from callslip.model.records import SessionRecord
from callslip.rules.entry_blocks import begins_block, is_talk, named_entry
from callslip.rules.fold import SessionFold
from callslip.store.protocol import Checkpoint, Store

T = TypeVar("T")
PAGE_ROWS = 200
MAX_REPLAY_EVENTS = 20_000


class Head(msgspec.Struct):
    """A session at its last event: its record, its checkpoint, and the fold of the events since."""

    session: SessionRecord
    at: Checkpoint | None
    state: SessionFold


async def _load_head(store: Store, name: str) -> Head:
    session = await load_session(store, name)
    at = await load_checkpoint(store, name)
    state = await load_state(store, name, at, with_texts=True)
    await fold_upto(store, state, session.last_seq)
    return Head(session, at, state)


async def _is_current(store: Store, head: Head) -> bool:
    """Return whether no process has moved the checkpoint or removed events since the head was read."""
    at, record = await load_checkpoint(store, head.session.name), await store.session(head.session.name)
    is_same = record is not None and (record.id, record.pruned_seq) == (head.session.id, head.session.pruned_seq)
    return is_same and (at and at.seq) == (head.at and head.at.seq)


async def read_current(store: Store, name: str, read: Callable[[Head], Awaitable[T]]) -> tuple[Head, T]:
    """Read a session, and again if its checkpoint or its first event has changed meanwhile."""
    while True:
        head = await _load_head(store, name)
        result = await read(head)
        if await _is_current(store, head):
            return head, result


async def load_current(store: Store, name: str) -> Head:
    """Return a session at its last event, without its stored entries."""

    async def read_nothing(head: Head) -> None:
        pass

    return (await read_current(store, name, read_nothing))[0]


async def all_sessions(store: Store) -> AsyncIterator[SessionRecord]:
    """Yield every session, in pages."""
    cursor = ""
    while True:
        page = await store.sessions(limit=PAGE_ROWS, cursor=cursor)
        for session in page.items:
            yield session
        cursor = page.cursor
        if not cursor:
            return


async def snapshot(store: Store, name: str, *, limit: int = ALL, before: int = ALL) -> Snapshot:
    """Return the newest entries of a session up to a limit, or the newest older than `before`."""
    head, stored = await read_current(store, name, lambda head: _read_stored(store, head, before, limit))
    state = head.state
    state.render()
    entries = [entry for entry in state.entries.values() if entry.id < before]
    entries = sorted([*entries, *stored], key=lambda entry: entry.id)
    return Snapshot(name, state.seq, state.info, entries[max(0, len(entries) - limit) :])


async def _read_stored(store: Store, head: Head, before: int, limit: int) -> list[Entry]:
    """Return stored entries older than `before`, newest first."""
    if head.at is None:
        return []
    rows: list[tuple[int, bytes]] = []
    while limit > 0 and (page := await store.entries(head.session.name, before, min(limit, LARGE_COUNT))):
        rows += page
        before, limit = page[-1][0], limit - len(page)
    notes = head.state.noted
    return await run_off_loop(
        len(rows) >= LARGE_COUNT,
        lambda: [with_note(read_entry(body), notes.get(entry_id)) for entry_id, body in rows],
    )


def with_note(entry: Entry, note: dict[str, Any] | None) -> Entry:
    for field, value in (note or {}).items():
        setattr(entry, field, value)
    return entry


async def state_after(store: Store, name: str, seq: int) -> SessionFold:
    """Return the state after an event, to fold later events. Finished entries may be missing, as patches need none."""
    while True:
        session, at = await store.session(name), await load_checkpoint(store, name)
        if session is None or at is None or not at.seq <= seq <= session.last_seq:
            return await state_at(store, name, seq)
        state = await load_state(store, name, at, with_texts=True)
        await fold_upto(store, state, seq)
        if await _is_current(store, Head(session, at, state)):
            return state


async def needs_snapshot(store: Store, name: str, seq: int) -> bool:
    """Return whether resuming after `seq` would fold so many events that a snapshot is cheaper."""
    session, at = await store.session(name), await load_checkpoint(store, name)
    return session is not None and at is not None and seq < at.seq and seq - session.pruned_seq > MAX_REPLAY_EVENTS


# One turn


async def load_turn(store: Store, name: str, turn: str = "") -> SessionFold:
    """Return the last state with every entry of a turn, or of a block outside of turns.

    It is the one that is named, by its turn or by the id of a message, or else the current one.
    """
    head, stored = await read_current(store, name, lambda head: _read_turn(store, head, turn))
    merged = sorted([*head.state.entries.values(), *stored], key=lambda entry: entry.id)
    head.state.entries = {entry.id: entry for entry in merged}
    return head.state


async def _read_turn(store: Store, head: Head, turn: str) -> list[Entry]:
    """Return the stored entries of a turn, or those of a block outside of turns with its neighbours."""
    info = head.state.info
    name = turn or info.turn
    entries: list[Entry] = []
    named = named_entry(turn) if turn not in (info.turn, info.last_turn) else 0
    if named:
        entries = await _read_around(store, head, named)
        name = "" if entries else turn
    elif not name:
        entries = await _read_last(store, head)
        name = "" if any(is_talk(entry) and not entry.turn for entry in entries) else info.last_turn
    if name:
        entries += await _read_named_turn(store, head, name)
    return [entry for entry in entries if entry.id not in head.state.entries]


async def _read_named_turn(store: Store, head: Head, name: str) -> list[Entry]:
    """Return the stored entries of a turn. They are adjacent: read backwards until an older turn."""
    info = head.state.info
    entries: list[Entry] = []
    before = ALL if name else 0
    while page := await _read_stored(store, head, before, PAGE_ROWS):
        for entry in page:
            if entry.turn == name:
                entries.append(entry)
            elif entries or name == info.turn or (name == info.last_turn and entry.turn not in ("", info.turn)):
                return entries
        before = page[-1].id
    return entries


# Outside of turns, blocks are found by their neighbours, so these are read too.


async def _read_last(store: Store, head: Head) -> list[Entry]:
    """Return the newest entries down to the last message, thought or call, and outside of turns all of its block."""
    entries: list[Entry] = []
    has_talk = False
    async for entry in _entries_backwards(store, head, ALL):
        entries.append(entry)
        if (has_talk and begins_block(entries[-2], entry)) or (not has_talk and is_talk(entry) and entry.turn):
            break
        has_talk = has_talk or is_talk(entry)
    return entries


async def _read_around(store: Store, head: Head, named: int) -> list[Entry]:
    """Return the block with an entry; nothing if there is no such entry outside of turns."""
    entries: list[Entry] = []
    async for entry in _entries_forwards(store, head, named):
        if not entries and (entry.id != named or entry.turn):
            return []
        entries.append(entry)
        if len(entries) > 1 and begins_block(entry, entries[-2]):
            break
    if not entries:
        return []
    newer = entries[0]
    async for entry in _entries_backwards(store, head, named):
        entries.append(entry)
        if begins_block(newer, entry):
            break
        newer = entry
    return entries


# Pages of messages. No message extends over two blocks, so blocks can be read one by one.


class Messages(msgspec.Struct):
    """Messages of a session at a seq, and the cursor to older ones ("" if there are none)."""

    seq: int
    info: Info
    messages: list[Any]
    cursor: str


async def messages(
    store: Store, name: str, encode: Any, *, limit: int, cursor: str = "", newest_first: bool = False
) -> Messages:
    """Return the newest messages up to a limit, or the newest before a cursor.

    `encode` turns a snapshot into messages. A cursor is a block and how many of its messages are left. Messages are
    only added at the end of a block, so later writes do not change what a cursor means.
    """
    first, left = read_cursor(cursor, int, int) if cursor else (ALL, 0)
    if left < 0:
        raise InvalidInputError("cursor", "not valid for this list")

    async def read_page(head: Head) -> tuple[list[Any], str]:
        async def encode_block(block: list[Entry]) -> list[Any]:
            snapshot = Snapshot(name, head.state.seq, head.state.info, block)
            encoded = await run_off_loop(len(block) >= LARGE_HISTORY, encode, snapshot)
            return encoded[::-1] if newest_first else encoded

        head.state.render()
        return await _read_page(store, head, encode_block, limit, first, left)

    head, (page, cursor) = await read_current(store, name, read_page)
    return Messages(head.state.seq, head.state.info, page[::-1] if newest_first else page, cursor)


async def _read_page(
    store: Store,
    head: Head,
    encode_block: Callable[[list[Entry]], Awaitable[list[Any]]],
    limit: int,
    first: int,
    left: int,
) -> tuple[list[Any], str]:
    """Return the messages in order, and the cursor to older ones."""
    page: list[Any] = []
    async for block in _blocks_backwards(store, head, first, left):
        encoded = await encode_block(block)
        encoded = encoded[:left] if block[0].id == first else encoded
        if len(page) == limit and encoded:
            return page, _encode_cursor(block[0].id, len(encoded))
        rest = max(0, len(encoded) - (limit - len(page)))
        page = encoded[rest:] + page
        if rest:
            return page, _encode_cursor(block[0].id, rest)
    return page, ""


def _encode_cursor(block: int, left: int) -> str:
    return codec.encode([block, left]).decode()


async def _blocks_backwards(store: Store, head: Head, first: int, left: int) -> AsyncIterator[list[Entry]]:
    """Yield blocks, newest first, starting with that of the cursor if messages of it are left."""
    if left:
        yield await _read_block(store, head, first)
    block: list[Entry] = []
    async for entry in _entries_backwards(store, head, first):
        if block and begins_block(block[-1], entry):
            yield block[::-1]
            block = []
        block.append(entry)
    if block:
        yield block[::-1]


async def _entries_backwards(store: Store, head: Head, before: int) -> AsyncIterator[Entry]:
    """Yield entries older than `before`, newest first: stored ones merged with those since the checkpoint."""
    tail = [entry for entry in head.state.entries.values() if entry.id < before]
    while page := await _read_stored(store, head, before, PAGE_ROWS):
        for entry in page:
            while tail and tail[-1].id > entry.id:
                yield tail.pop()
            yield entry
        before = page[-1].id
    for entry in reversed(tail):
        yield entry


async def _read_block(store: Store, head: Head, first: int) -> list[Entry]:
    """Return the block that begins with an entry."""
    block: list[Entry] = []
    async for entry in _entries_forwards(store, head, first):
        if not block and entry.id != first:
            break
        if block and begins_block(entry, block[-1]):
            break
        block.append(entry)
    if not block:
        raise InvalidInputError("cursor", "not valid for this list, or removed by retention")
    return block


async def _entries_forwards(store: Store, head: Head, first: int) -> AsyncIterator[Entry]:
    """Yield entries from one on, oldest first."""
    tail = [entry for entry in head.state.entries.values() if entry.id >= first]
    tail.reverse()
    while head.at is not None:
        rows = await store.entries_from(head.session.name, first, PAGE_ROWS)
        for entry_id, body in rows:
            while tail and tail[-1].id < entry_id:
                yield tail.pop()
            yield with_note(read_entry(body), head.state.noted.get(entry_id))
        if len(rows) < PAGE_ROWS:
            break
        first = rows[-1][0] + 1
    for entry in reversed(tail):
        yield entry
