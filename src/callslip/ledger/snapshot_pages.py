"""A snapshot of a session as JSON in pieces, so that a slow reader holds one piece of a long session and not all of it.

The finished entries are read from the store page by page, each when the reader has accepted the one before; only the
entries since the checkpoint are held. A finished entry never changes, except for its notes `late` and `report`, so the
pieces belong to the snapshot's seq although they are read later. If retention removes entries meanwhile, the reader is
disconnected.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from weakref import WeakValueDictionary

from callslip.errors import CursorExpiredError
from callslip.ledger import queries
from callslip.ledger.checkpoint import ALL, encode, load_checkpoint, project, read_entry
from callslip.ledger.queries import Head
from callslip.model.entries import Info, Snapshot, ToolCall
from callslip.model.records import SessionRecord
from callslip.store.protocol import Store

PAGE_ROWS = 1000
LATE_CHARS = 40
"""The field `late` is the last one of an entry, so it is found in so many bytes at the end."""

Rows = list[tuple[int, bytes]]
"""The id and the JSON of each entry."""


class _Page:
    """Stored entries. Readers at the same place share them."""

    __slots__ = ("__weakref__", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows


class PagedSnapshot:
    """A session after event `seq`. `size` is how many bytes of it are held."""

    def __init__(self, source: SnapshotSource, head: Head, first: int, tail: Rows) -> None:
        self.seq = head.state.seq
        self.size = sum(len(body) for _, body in tail)
        self._source = source
        self._record = head.session
        self._at = head.at.seq if head.at else None
        self._info: Info = head.state.info
        self._notes = {entry: dict(note) for entry, note in head.state.noted.items()}
        self._first = first
        self._tail = tail

    def is_of(self, id: int, last_seq: int, pruned_seq: int) -> bool:
        """Return whether a session is still as it was at this snapshot."""
        return (self._record.id, self.seq, self._record.pruned_seq) == (id, last_seq, pruned_seq)

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the JSON of a `Snapshot`, in pieces that are read when the one before was accepted."""
        frame = encode(Snapshot(self._record.name, self.seq, self._info, []))
        head, separator = frame[:-2], b""  # Without `]}`.
        async for rows in self._pages():
            bodies = [body for _, body in rows]
            if len(bodies) == 1:  # It may be large, and is the same object for all readers.
                yield head + separator
                yield bodies[0]
            else:
                yield head + separator + b",".join(bodies)
            head, separator = b"", b","
        yield head + b"]}"

    async def _pages(self) -> AsyncIterator[Rows]:
        """Yield all entries in order: stored ones merged with those since the checkpoint."""
        first, position = self._first, 0
        tail_ids = {entry for entry, _ in self._tail}
        while self._at is not None:
            page = await self._source.read_page(self._at, first, self._record)
            if not page.rows:
                break
            first = page.rows[-1][0] + 1
            merged: Rows = []
            for entry, body in page.rows:
                while position < len(self._tail) and self._tail[position][0] < entry:
                    merged.append(self._tail[position])
                    position += 1
                if entry not in tail_ids and entry <= self._at:  # Else it was not finished at the checkpoint.
                    merged.append((entry, self._with_notes(entry, body)))
            for rows in _split(merged, self._source.max_bytes):
                yield rows
        for rows in _split(self._tail[position:], self._source.max_bytes):
            yield rows

    def _with_notes(self, entry_id: int, body: bytes) -> bytes:
        """Return an entry with the notes that it had at this snapshot; it may have been read later."""
        note = self._notes.get(entry_id, {})
        if not note and b'"late":' not in body[-LATE_CHARS:] and b'"report":' not in body:
            return body
        entry, at = read_entry(body), self._at or 0
        if not isinstance(entry, ToolCall):
            return body
        if "late" in note or entry.late > at:
            entry.late = note.get("late", 0)
        if "report" in note or (entry.report is not None and entry.report.seq > at):
            entry.report = note.get("report")
        return encode(entry)


def _split(rows: Rows, max_bytes: int) -> Iterable[Rows]:
    """Yield rows in groups up to a size, but with at least one each."""
    group: Rows = []
    size = 0
    for row in rows:
        if group and size + len(row[1]) > max_bytes:
            yield group
            group, size = [], 0
        group.append(row)
        size += len(row[1])
    if group:
        yield group


class SnapshotSource:
    """The snapshots of one session. Readers that are at the same place share what they hold."""

    def __init__(self, store: Store, session: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._store = store
        self._session = session
        self._pages: WeakValueDictionary[tuple[int, int, int], _Page] = WeakValueDictionary()
        self._snapshots: WeakValueDictionary[int, PagedSnapshot] = WeakValueDictionary()

    async def open(self, limit: int = ALL) -> PagedSnapshot:
        """Return a snapshot of the session's newest entries up to a limit."""
        record = await self._store.session(self._session)
        snapshot = self._snapshots.get(limit)
        if record is None or snapshot is None or not snapshot.is_of(record.id, record.last_seq, record.pruned_seq):
            snapshot = self._snapshots[limit] = await self._load(limit)
        return snapshot

    async def _load(self, limit: int) -> PagedSnapshot:
        head, tail = await self._load_tail()
        if sum(len(body) for _, body in tail) > self.max_bytes and not self._store.read_only:
            await project(self._store, self._session)  # Most of it can then be read in pages.
            head, tail = await self._load_tail()
        first = 0 if limit == ALL else await self._find_first(head, tail, limit)
        return PagedSnapshot(self, head, first, [row for row in tail if row[0] >= first])

    async def _find_first(self, head: Head, tail: Rows, limit: int) -> int:
        """Return the oldest of the newest entries."""
        ids = {entry for entry, _ in tail}
        if head.at is not None:
            ids.update(entry for entry in await self._store.entry_ids(self._session, limit) if entry <= head.at.seq)
        return min(sorted(ids)[-limit:], default=0)

    async def _load_tail(self) -> tuple[Head, Rows]:
        head = await queries.load_current(self._store, self._session)
        head.state.render()
        return head, [(entry.id, encode(entry)) for entry in sorted(head.state.entries.values(), key=lambda e: e.id)]

    async def read_page(self, at: int, first: int, record: SessionRecord) -> _Page:
        """Return the stored entries from one on, as they were at a checkpoint or later."""
        key = (record.id, at, first)
        page = self._pages.get(key)
        if page is None:
            rows = await self._store.entries_from(self._session, first, PAGE_ROWS, self.max_bytes)
            current = await self._store.session(self._session)
            checkpoint = await load_checkpoint(self._store, self._session)
            identity = (record.id, record.pruned_seq)
            if checkpoint is None or current is None or (current.id, current.pruned_seq) != identity:
                raise CursorExpiredError(first, current.pruned_seq if current else first)
            page = self._pages[key] = _Page(rows)
        return page
