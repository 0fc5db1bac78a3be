"""Keep the search index up to date with the log.

The index is derived from finished entries, as checkpoints store them, and from those that are still open. A process
that searches first adds what is missing, whichever process wrote it; servers also do so in the background. So writers
need not know of the index, and those of an older version do not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import blake2b

import msgspec

from callslip.errors import CorruptDataError, StoreError
from callslip.ledger.aio import run_off_loop
from callslip.ledger.checkpoint import VERSION as FOLD_VERSION
from callslip.ledger.checkpoint import load_checkpoint, load_state, project, read_entry
from callslip.model import codec
from callslip.model.entries import Entry, ToolCall
from callslip.model.events import Blob
from callslip.model.records import SessionRecord
from callslip.rules import search_words
from callslip.rules.fold import SessionFold
from callslip.rules.search_text import (
    MAX_TEXT_CHARS,
    Field,
    entry_fields,
    index_fields,
    rank_entry,
    state_of,
    tools_of,
)
from callslip.store.protocol import Checkpoint, Store
from callslip.store.search import SearchPlace, SearchProgress, SearchRow, marked_row

VERSION = search_words.VERSION
PAGE_ROWS = 200
PAGE_BYTES = 2**18
"""How much is added in one transaction, which other writers wait for."""
EVENT_ROWS = 2000
EVENT_BYTES = 2**20
LARGE_CHARS = 16 * 2**10
BATCH_SESSIONS = 50
MARGIN_MS = 10_000
"""How much later than its time a write may be seen: its transaction was open, or a clock differs."""
READ_S = 2.0
"""How long a search waits until the index has the newest entries."""
ROUND_S = 5.0
PAUSE_S = 0.2
"""How long a server waits before it adds new entries, and between the parts of a large addition."""
FULL_ROUND_S = 60.0
"""How often all sessions are compared, instead of those that were written since the last time."""
MAX_TRIES = 3


class PlaceState(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where the index of a session is.

    All entries up to `last` were added, except for the `open` ones, each with a digest of what was added of it. Events
    up to `noted` have changed no other entry since. `title` is the digest of the title.
    """

    last: int = 0
    noted: int = 0
    open: dict[int, str] = {}
    title: str = ""


class _Noted(msgspec.Struct):
    """The field of an event that names the finished entry which it changes."""

    entry: int = 0


read_place = codec.stored_decoder(PlaceState, "a place in the search index")
_read_noted = codec.stored_decoder(_Noted, "an event")


class SearchIndex:
    """The search index of one ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since = 0
        self._full_at = 0.0
        self._lock = asyncio.Lock()

    async def refresh(self, seconds: float | None = None) -> bool:
        """Add what the index lacks, the newest sessions first. Return whether it lacks nothing now.

        The time includes that of waiting for other callers, who add the same. If it is over then, nothing is compared.
        """
        if self._store.read_only:
            return await self._store.has_search_index() and not await self.stale_sessions(1)
        until = time.monotonic() + (READ_S if seconds is None else seconds)
        has_to_wait = self._lock.locked()
        async with self._lock:
            if has_to_wait and time.monotonic() > until:
                return False
            return await self._refresh(until)

    async def keep_current(self) -> None:
        """Add new entries every few seconds, with pauses, until the task is cancelled."""
        is_current = True
        while True:
            await asyncio.sleep(ROUND_S if is_current else PAUSE_S)
            try:
                is_current = await self.refresh()
            except StoreError:
                is_current = True

    async def stale_sessions(self, limit: int) -> list[str]:
        """Return sessions with events that are not in the index."""
        return [stale.name for stale in await self._store.sessions_to_index(0, VERSION, FOLD_VERSION, limit)]

    async def _refresh(self, until: float) -> bool:
        began, started = await self._store.clock(), time.monotonic()
        is_full = started >= self._full_at
        since = 0 if is_full else self._since
        done: set[tuple[str, int]] = set()
        while True:
            count = BATCH_SESSIONS + len(done)
            stale = await self._store.sessions_to_index(since, VERSION, FOLD_VERSION, count)
            todo = [session for session in stale if (session.name, session.head) not in done]
            if not todo:
                self._since = max(self._since, began - MARGIN_MS)
                self._full_at = started + FULL_ROUND_S if is_full else self._full_at
                return True
            for session in todo:
                # What cannot be read, such as a damaged log, must not be tried again and again.
                if await self._add_session(session.name, until):
                    done.add((session.name, session.head))
                if time.monotonic() > until:
                    return False

    async def _add_session(self, name: str, until: float) -> bool:
        """Add what the index lacks of a session. Return False if the time was not enough."""
        for _ in range(MAX_TRIES):
            try:
                while await project(self._store, name) is None:
                    pass
                record, at = await self._store.session(name), await load_checkpoint(self._store, name)
                if record is None or at is None:
                    return True
                return await _SessionIndex(self._store, record, await self._store.search_place(name)).update(at, until)
            except _OvertakenError:
                pass
            except CorruptDataError:
                return True
        return True


class _OvertakenError(Exception):
    """Another process has changed the index or the entries of the session meanwhile."""


class _SessionIndex:
    """Adds one session to the index."""

    def __init__(self, store: Store, record: SessionRecord, before: SearchPlace | None) -> None:
        self._store = store
        self._record = record
        self._before = before
        self._afresh = before is None or (before.version, before.fold) != (VERSION, FOLD_VERSION)

    async def update(self, at: Checkpoint, until: float) -> bool:
        """Add what is missing up to a checkpoint. Return False if the time was not enough."""
        before = self._before
        if before is not None and not self._afresh and before.seq >= at.seq:
            return True
        place = PlaceState(noted=at.seq) if before is None or self._afresh else read_place(before.body)
        state = await load_state(self._store, self._record.name, at, with_texts=True)
        state.render()
        changed = {entry async for entry in noted_entries(self._store, self._record, place.noted, at.seq)}
        changed = {entry for entry in changed if entry <= place.last} | place.open.keys()
        # An entry may end after its page was added, so all open ones are remembered.
        place.open = dict.fromkeys(state.entries, "") | place.open
        if not await self._add_pages(place, at.seq, until):
            return False
        await self._finish(place, at, state, changed - state.entries.keys())
        return True

    async def _add_pages(self, place: PlaceState, upto: int, until: float) -> bool:
        """Add the stored entries after the last one, in pages. Return False if the time was not enough."""
        while rows := await self._store.entries_from(self._record.name, place.last + 1, PAGE_ROWS, PAGE_BYTES):
            entries = [read_entry(body) for entry, body in rows if entry <= upto]
            if not entries:
                return True
            place.last = entries[-1].id
            await self._save(place, -1, await index_entries(self._store, self._record.id, entries))
            if time.monotonic() > until:
                return False
        return True

    async def _finish(self, place: PlaceState, at: Checkpoint, state: SessionFold, changed: Iterable[int]) -> None:
        """Add the entries that have ended or changed, the open ones, and the title."""
        rows: list[SearchRow] = []
        dropped: list[int] = []
        for entry in sorted(changed):
            stored = await self._store.entries_from(self._record.name, entry, 1)
            if stored and stored[0][0] == entry:
                rows += await index_entries(self._store, self._record.id, [read_entry(stored[0][1])])
            else:
                dropped.append(entry)
        opened = await index_entries(self._store, self._record.id, state.entries.values())
        digests = dict.fromkeys(state.entries, "") | {row.entry: _digest(row) for row in opened}
        rows += [row for row in opened if place.open.get(row.entry) != digests[row.entry]]
        title = title_row(self._record)
        if place.title != _digest(title):
            rows.append(title)
        await self._save(PlaceState(at.seq, at.seq, digests, _digest(title)), at.seq, rows, dropped)

    async def _save(self, place: PlaceState, seq: int, rows: Sequence[SearchRow], dropped: Sequence[int] = ()) -> None:
        after = SearchPlace(seq, VERSION, FOLD_VERSION, msgspec.json.encode(place))
        progress = SearchProgress(
            session=self._record.name,
            number=self._record.id,
            pruned_seq=self._record.pruned_seq,
            before=self._before,
            after=after,
            rows=rows,
            dropped=dropped,
            afresh=self._afresh,
        )
        if not await self._store.save_search(progress):
            raise _OvertakenError
        self._before, self._afresh = after, False


async def noted_entries(store: Store, record: SessionRecord, after: int, upto: int) -> AsyncIterator[int]:
    """Yield the entries that events have changed after their end."""
    after = max(after, record.pruned_seq)
    while after < upto and (rows := await store.events(record.name, after, EVENT_ROWS, EVENT_BYTES)):
        for _, body in rows:
            if b'"entry":' in body and (entry := _read_noted(body).entry):
                yield entry
        after = rows[-1][0]


async def index_entries(store: Store, number: int, entries: Iterable[Entry]) -> list[SearchRow]:
    """Return the rows of entries of a session, by its id. Some entries have none."""
    fields = [(entry, found) for entry in entries if (found := await load_fields(store, entry))]
    size = sum(len(field.text) for _, found in fields for field in found)
    return await run_off_loop(
        size >= LARGE_CHARS, lambda: [_index_entry(number, entry, found) for entry, found in fields]
    )


def _index_entry(number: int, entry: Entry, fields: list[Field]) -> SearchRow:
    indexed = index_fields(fields)
    rank = rank_entry(entry, len(indexed.words))
    return marked_row(number, entry.id, rank, entry.at, indexed, tools_of(entry), state_of(entry))


async def load_fields(store: Store, entry: Entry) -> list[Field]:
    """Return the texts of an entry that can be found, with the beginning of an output that is stored as a blob."""
    blob = entry.blob if isinstance(entry, ToolCall) else None
    return entry_fields(entry, await _read_beginning(store, blob) if blob is not None else "")


async def _read_beginning(store: Store, blob: Blob) -> str:
    piece = await store.blob_piece(blob.hash, 0)
    text = piece[: 4 * MAX_TEXT_CHARS].decode("utf-8", "replace")[:MAX_TEXT_CHARS]
    return text.replace("\\n", "\n") if blob.media == "application/json" else text


def title_fields(record: SessionRecord) -> list[Field]:
    """Return the texts of a session itself."""
    return [Field(name, text) for name, text in (("title", record.title), ("session", record.name)) if text]


def title_row(record: SessionRecord) -> SearchRow:
    """Return the row of the title and the name of a session."""
    indexed = index_fields(title_fields(record))
    return marked_row(record.id, 0, rank_entry(None, len(indexed.words)), record.created_at, indexed)


def _digest(row: SearchRow) -> str:
    text = f"{row.rank} {row.at}\n{row.words_text}\n{row.names_text}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
