"""Reading a session by its checkpoint: whole, its newest entries, one turn, from a cursor, or by pages of messages.

What a read costs is what it gives, and the tail of the log since the checkpoint. Checkpoints move and events are
removed while one reads; whatever was not of one piece is read again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from callslip.errors import InvalidInputError, NotFoundError
from callslip.ledger.checkpoint import ALL, fold_on, newest, read_entry, start, state_at
from callslip.model import codec
from callslip.model.entries import Entry, Info, Snapshot
from callslip.model.records import SessionRecord
from callslip.rules.entry_blocks import begins_block
from callslip.rules.fold import SessionFold
from callslip.store.protocol import Checkpoint, Store, read_cursor

STRIDE = 200


class Head(msgspec.Struct):
    """A session at its head: the fold of its tail, and the way to its stored entries."""

    session: SessionRecord
    at: Checkpoint | None
    state: SessionFold


async def _head(store: Store, name: str) -> Head:
    session = await store.session(name)
    if session is None:
        raise NotFoundError(f"no session {name!r}")
    at = await newest(store, name)
    state = await start(store, name, at, whole=True)
    await fold_on(store, state, session.last_seq)
    return Head(session, at, state)


async def _stands(store: Store, head: Head) -> bool:
    """Whether what was read is of one piece: nobody moved the checkpoint or removed events or all of it meanwhile."""
    now, row = await newest(store, head.session.name), await store.session(head.session.name)
    same = row is not None and (row.id, row.pruned_seq) == (head.session.id, head.session.pruned_seq)
    return same and (now and now.seq) == (head.at and head.at.seq)


async def snapshot(store: Store, name: str, *, limit: int = ALL, before: int = ALL) -> Snapshot:
    """A session as it stands: its newest entries up to a limit, or the newest older than `before`."""
    while True:
        head = await _head(store, name)
        stored = await _stored(store, head, before, limit)
        if await _stands(store, head):
            break
    state = head.state
    state.render()
    entries = [entry for entry in state.entries.values() if entry.id < before]
    entries = sorted([*entries, *stored], key=lambda entry: entry.id)
    return Snapshot(name, state.seq, state.info, entries[max(0, len(entries) - limit) :])


async def _stored(store: Store, head: Head, before: int, limit: int) -> list[Entry]:
    """Finished entries older than `before`, the newest first."""
    if head.at is None:
        return []
    rows = await store.entries(head.session.name, before, limit)
    return [_with_note(read_entry(body), head.state.noted.get(identity)) for identity, body in rows]


def _with_note(entry: Entry, note: dict[str, Any] | None) -> Entry:
    for field, value in (note or {}).items():
        setattr(entry, field, value)
    return entry


async def state_after(store: Store, name: str, seq: int) -> SessionFold:
    """The state to fold on from after an event. Its finished entries may be missing: patches need none of them."""
    while True:
        session, at = await store.session(name), await newest(store, name)
        if session is None or at is None or not at.seq <= seq <= session.last_seq:
            return await state_at(store, name, seq)
        state = await start(store, name, at, whole=True)
        await fold_on(store, state, seq)
        if await _stands(store, Head(session, at, state)):
            return state


MAX_REPLAY_EVENTS = 20_000


async def needs_snapshot(store: Store, name: str, seq: int) -> bool:
    """Whether resuming there means folding a long log: then a snapshot is the better answer."""
    session, at = await store.session(name), await newest(store, name)
    return session is not None and at is not None and seq < at.seq and seq - session.pruned_seq > MAX_REPLAY_EVENTS


# One turn


async def load_turn(store: Store, name: str, turn: str = "") -> SessionFold:
    """The state at the head with every entry of a turn: the named one, or the open one, or the last one."""
    while True:
        head = await _head(store, name)
        stored = await _entries_of_turn(store, head, turn)
        if await _stands(store, head):
            break
    merged = sorted([*head.state.entries.values(), *stored], key=lambda entry: entry.id)
    head.state.entries = {entry.id: entry for entry in merged}
    return head.state


async def _entries_of_turn(store: Store, head: Head, turn: str) -> list[Entry]:
    """Its stored entries, which stand together: read backwards until an older one shows that there are no more."""
    info = head.state.info
    wanted = turn or info.turn or info.last_turn
    found: list[Entry] = []
    before = ALL if wanted else 0
    while page := await _stored(store, head, before, STRIDE):
        for entry in page:
            if entry.turn == wanted:
                found.append(entry)
            elif found or wanted == info.turn or (wanted == info.last_turn and entry.turn not in ("", info.turn)):
                return found
        before = page[-1].id
    return found


# Pages of messages. A message never reaches over the end of its block, so blocks can be read one by one.


class Messages(msgspec.Struct):
    """Some messages of a session, the cursor to older ones ("" if there are none), and where the session stood."""

    seq: int
    info: Info
    messages: list[Any]
    cursor: str


async def messages(
    store: Store, name: str, encode: Any, *, limit: int, cursor: str = "", newest_first: bool = False
) -> Messages:
    """The newest messages up to a limit, or the newest before a cursor; oldest first unless said otherwise.

    `encode` makes messages of a snapshot. A cursor names a block and how many of its messages are still to come;
    messages are only ever added at the end of a block, so it means the same whatever was written meanwhile.
    """
    first, left = read_cursor(cursor, int, int) if cursor else (ALL, 0)
    if left < 0:
        raise InvalidInputError("cursor", "is none that this list gave")

    def told(block: list[Entry]) -> list[Any]:
        made = encode(Snapshot(name, head.state.seq, head.state.info, block))
        return made[::-1] if newest_first else made

    while True:
        head = await _head(store, name)
        head.state.render()
        taken, at = await _page(store, head, told, limit, first, left)
        if await _stands(store, head):
            break
    return Messages(head.state.seq, head.state.info, taken[::-1] if newest_first else taken, at)


async def _page(
    store: Store, head: Head, told: Callable[[list[Entry]], list[Any]], limit: int, first: int, left: int
) -> tuple[list[Any], str]:
    """The messages in order, and the cursor to those before them."""
    taken: list[Any] = []
    async for block in _blocks_backwards(store, head, first, left):
        made = told(block)
        made = made[:left] if block[0].id == first else made
        if len(taken) == limit and made:
            return taken, _cursor(block[0].id, len(made))
        rest = max(0, len(made) - (limit - len(taken)))
        taken = made[rest:] + taken
        if rest:
            return taken, _cursor(block[0].id, rest)
    return taken, ""


def _cursor(block: int, left: int) -> str:
    return codec.encode([block, left]).decode()


async def _blocks_backwards(store: Store, head: Head, first: int, left: int) -> AsyncIterator[list[Entry]]:
    """Blocks, the newest first: from the one that a cursor names on, if it has any messages left."""
    if left:
        yield await _block_at(store, head, first)
    block: list[Entry] = []
    async for entry in _backwards(store, head, first):
        if block and begins_block(block[-1], entry):
            yield block[::-1]
            block = []
        block.append(entry)
    if block:
        yield block[::-1]


async def _backwards(store: Store, head: Head, before: int) -> AsyncIterator[Entry]:
    """Entries older than `before`, the newest first: the stored ones, and between them those of the tail."""
    tail = [entry for entry in head.state.entries.values() if entry.id < before]
    while page := await _stored(store, head, before, STRIDE):
        for entry in page:
            while tail and tail[-1].id > entry.id:
                yield tail.pop()
            yield entry
        before = page[-1].id
    for entry in reversed(tail):
        yield entry


async def _block_at(store: Store, head: Head, first: int) -> list[Entry]:
    """The block that begins with this entry."""
    block: list[Entry] = []
    async for entry in _forwards(store, head, first):
        if not block and entry.id != first:
            break
        if block and begins_block(entry, block[-1]):
            break
        block.append(entry)
    if not block:
        raise InvalidInputError("cursor", "is none that this list gave, or retention removed what it named")
    return block


async def _forwards(store: Store, head: Head, first: int) -> AsyncIterator[Entry]:
    """Entries from one on."""
    tail = [entry for entry in head.state.entries.values() if entry.id >= first]
    tail.reverse()
    while head.at is not None:
        rows = await store.entries_from(head.session.name, first, STRIDE)
        for identity, body in rows:
            while tail and tail[-1].id < identity:
                yield tail.pop()
            yield _with_note(read_entry(body), head.state.noted.get(identity))
        if len(rows) < STRIDE:
            break
        first = rows[-1][0] + 1
    for entry in reversed(tail):
        yield entry
