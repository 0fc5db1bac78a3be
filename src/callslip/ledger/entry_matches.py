"""Filter all entries of a session, in memory that does not grow with its texts.

A finished entry does not change, so the result for the stored entries is kept and only extended: a reader who asks
again after each change of a long session pays for the changed entries, not for the session.
"""

from __future__ import annotations

import asyncio
import codecs
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from callslip.ledger.aio import LARGE_BYTES, run_off_loop
from callslip.ledger.checkpoint import VERSION, read_entry
from callslip.ledger.queries import Head, read_current, with_note
from callslip.model.entries import Entry, Info, ToolCall
from callslip.model.events import Blob
from callslip.rules.entry_filter import EntryFilter, MatchCounts, as_text
from callslip.rules.fold import SessionFold
from callslip.store.protocol import Store

PAGE_ROWS = 500
PAGE_BYTES = 2**20
MAX_PARSED_BYTES = 16 * 2**20
"""A larger JSON output is searched as it is written, not as the strings in it."""
MAX_KEPT_RESULTS = 32
MAX_KEPT_BLOBS = 10_000


class Matches(NamedTuple):
    """The counts of a filter after event `seq`, and the newest matching entries, oldest first."""

    seq: int
    info: Info
    counts: MatchCounts
    entries: list[Entry]
    has_more: bool


class EntryMatcher:
    """Filters the sessions of one store, and keeps the results of the last filters."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[int, int, int, str], _StoredMatches] = OrderedDict()

    async def find(self, name: str, query: str, limit: int, before: int) -> Matches:
        """Return the newest matching entries of a session that are older than `before`, and the counts of all."""
        filter = EntryFilter(query)

        async def read(head: Head) -> tuple[MatchCounts, list[Entry], bool]:
            head.state.render()
            stored = self._stored(head, query, filter)
            async with stored.lock:  # Two readers of the same filter share the work.
                await stored.update(head)
                counts = stored.counts.copy()
                await stored.scan.add(counts, list(head.state.entries.values()), self._store.time_ms())
            counts.finish()
            ids, has_more = _newest(counts.ids, limit, before)
            return counts, await self._read_entries(head, ids), has_more

        head, (counts, entries, has_more) = await read_current(self._store, name, read)
        return Matches(head.state.seq, head.state.info, counts, entries, has_more)

    async def find_in_past(self, state: SessionFold, at: int, query: str, limit: int, before: int) -> Matches:
        """Return the same for a session as it was; `at` is the time of its last event in ms."""
        state.render()
        counts = MatchCounts(EntryFilter(query))
        entries = dict(state.entries)
        await _Scan(self._store, counts.filter).add(counts, list(entries.values()), at)
        counts.finish()
        ids, has_more = _newest(counts.ids, limit, before)
        return Matches(state.seq, state.info, counts, [entries[id] for id in ids], has_more)

    def _stored(self, head: Head, query: str, filter: EntryFilter) -> _StoredMatches:
        key = (head.session.id, head.session.pruned_seq, VERSION if head.at else 0, query)
        stored = self._kept.pop(key, None) or _StoredMatches(self._store, filter)
        self._kept[key] = stored
        while len(self._kept) > MAX_KEPT_RESULTS:
            self._kept.popitem(last=False)
        return stored

    async def _read_entries(self, head: Head, ids: Sequence[int]) -> list[Entry]:
        entries: list[Entry] = []
        for id in ids:
            entry = head.state.entries.get(id)
            if entry is None:
                rows = await self._store.entries_from(head.session.name, id, 1)
                if rows and rows[0][0] == id:
                    entry = with_note(read_entry(rows[0][1]), head.state.noted.get(id))
            if entry is not None:  # Else another process removed it; the read is then repeated.
                entries.append(entry)
        return entries


def _newest(ids: list[int], limit: int, before: int) -> tuple[list[int], bool]:
    end = bisect_left(ids, before)
    return ids[max(0, end - limit) : end], end > limit


class _StoredMatches:
    """The matches among the stored entries of a session: all with an id less than `_next`, except the open ones."""

    def __init__(self, store: Store, filter: EntryFilter) -> None:
        self.counts = MatchCounts(filter)
        self.scan = _Scan(store, filter)
        self.lock = asyncio.Lock()
        self._store = store
        self._next = 0
        self._open: set[int] = set()

    async def update(self, head: Head) -> None:
        """Add the entries that were stored since the last time. Those that the head holds may still change."""
        if head.at is None:
            return
        name = head.session.name
        tail = head.state.entries
        for id in sorted(self._open - tail.keys()):
            rows = [row for row in await self._store.entries_from(name, id, 1) if row[0] == id]
            if rows:  # Else this head is older than the one that had it, and the entry is still open.
                await self._add(rows)
                self._open.discard(id)
        while rows := await self._store.entries_from(name, self._next, PAGE_ROWS, PAGE_BYTES):
            rows = [row for row in rows if row[0] <= head.at.seq]  # Others were stored after the head was read.
            if not rows:
                break
            await self._add([row for row in rows if row[0] not in tail])
            last = rows[-1][0]
            self._open |= {id for id in tail if self._next <= id <= last}
            self._next = last + 1

    async def _add(self, rows: list[tuple[int, bytes]]) -> None:
        is_large = sum(len(body) for _, body in rows) >= LARGE_BYTES
        entries = await run_off_loop(is_large, lambda: [read_entry(body) for _, body in rows])
        await self.scan.add(self.counts, entries, self._store.time_ms())


class _Scan:
    """Tests entries, and searches the outputs and content that are stored as blobs."""

    def __init__(self, store: Store, filter: EntryFilter) -> None:
        self._store = store
        self._filter = filter
        self._blobs: dict[str, int] = {}

    async def add(self, counts: MatchCounts, entries: Sequence[Entry], now: int) -> None:
        """Add entries to counts: all or, if the caller is cancelled meanwhile, none."""
        held = await run_off_loop(len(entries) > 20, lambda: [self._filter.test(entry, now) for entry in entries])
        for number, entry in enumerate(entries):
            for blob in (entry.blob, entry.content_blob) if isinstance(entry, ToolCall) else ():
                held[number] |= await self._search_blob(blob, held[number]) if blob is not None else 0
        for entry, bits in zip(entries, held, strict=True):
            counts.add(entry, bits)

    async def _search_blob(self, blob: Blob, held: int) -> int:
        """Return the bits of the text terms that are found only in the full output or content."""
        wanted = [(bit, text) for bit, text in self._filter.text_bits if not held & bit]
        if not wanted:
            return 0
        if blob.hash not in self._blobs:
            if len(self._blobs) >= MAX_KEPT_BLOBS:
                self._blobs.clear()
            self._blobs[blob.hash] = await self._read_blob(blob, self._filter.text_bits)
        return self._blobs[blob.hash]

    async def _read_blob(self, blob: Blob, wanted: list[tuple[int, str]]) -> int:
        if blob.media == "application/json" and blob.size <= MAX_PARSED_BYTES:
            stored = await self._store.blob(blob.hash)
            return await run_off_loop(True, _search_json, stored[0], wanted) if stored else 0
        search, number = _TextSearch(wanted), 0
        while piece := await self._store.blob_piece(blob.hash, number):
            await run_off_loop(len(piece) >= LARGE_BYTES, search.read, piece)
            number += 1
        return search.found


def _search_json(data: bytes, wanted: list[tuple[int, str]]) -> int:
    try:
        text = as_text(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = data.decode("utf-8", "replace")
    return _search(text.lower(), wanted)


def _search(text: str, wanted: Iterable[tuple[int, str]]) -> int:
    return sum(bit for bit, part in wanted if part in text)


class _TextSearch:
    """Searches a text that is read in pieces."""

    def __init__(self, wanted: list[tuple[int, str]]) -> None:
        self.found = 0
        self._wanted = wanted
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._overlap = max(len(text) for _, text in wanted) - 1
        self._rest = ""

    def read(self, piece: bytes) -> None:
        text = self._rest + self._decoder.decode(piece).lower()
        self.found |= _search(text, [(bit, part) for bit, part in self._wanted if not self.found & bit])
        self._rest = text[len(text) - self._overlap :] if self._overlap else ""
