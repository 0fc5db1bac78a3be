"""Deriving everything again: whatever is stored beside the log must be what the log gives, or it is a problem.

The log is read once, in pages, as of one moment: each event goes through the projection that wrote the rows and through
the fold that wrote the entries. A row is compared as soon as nothing can change it any more and is then forgotten, so
that a long session takes no more memory than its open calls and its foreign ids. Of a session that retention has cut,
the part that is kept is compared, from its base on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from msgspec import structs

from callslip.errors import CorruptDataError, NotFoundError
from callslip.ledger import checkpoint
from callslip.ledger.event_log import EventLog
from callslip.ledger.verify.blobs import fault
from callslip.ledger.verify.entries import Entries
from callslip.ledger.verify.problems import Problem, Report, differences
from callslip.ledger.verify.tables import Rows
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Blob, Event, blob_of, parse_event
from callslip.model.records import SessionRecord
from callslip.rules.fold import SessionFold
from callslip.rules.projection import apply_event
from callslip.store.protocol import Store

__all__ = ["Problem", "verify"]

PAGE = 1000


async def verify(log: EventLog, session: str | None = None) -> list[Problem]:
    """Every problem of one session, or of all of them and the file they are in; none, if all is well."""
    found: list[Problem] = []
    if session is None:
        found += [Problem("", "file", line) for line in await log.store.check()]
    blobs: dict[Blob, str] = {}
    async for name in _names(log.store, session):
        async with log.store.read_snapshot() as store:
            row = await store.session(name)
            if row is not None:
                found += await _Session(store, row, blobs).verify()
    return found


async def _names(store: Store, session: str | None) -> AsyncIterator[str]:
    if session is not None:
        if await store.session(session) is None:
            raise NotFoundError(f"no session {session!r}")
        yield session
        return
    page = await store.sessions(limit=100)
    while True:
        for row in page.items:
            yield row.name
        if not page.cursor:
            return
        page = await store.sessions(limit=100, cursor=page.cursor)


class _Session:
    """One session, while it is derived again."""

    def __init__(self, store: Store, row: SessionRecord, blobs: dict[Blob, str]) -> None:
        self.store = store
        self.row = row
        self.blobs = blobs
        self.last = row.pruned_seq
        self.keys = self.uses = 0
        self.derived = SessionRecord(row.name, last_seq=row.pruned_seq)
        self.state = SessionFold(row.name)
        self.report = Report(row.name)
        self.rows = Rows(store, row, self.report)
        self.entries = Entries(store, row, self.report)

    async def verify(self) -> list[Problem]:
        await self._begin()
        await self.entries.begin(self.state)
        await self._replay()
        await self.entries.reach(self.state)
        self._session()
        await self.rows.end(self.state)
        await self._keys()
        return self.report.problems

    async def _begin(self) -> None:
        """The kept log begins where retention cut it: with what was open then."""
        base = await self.store.base(self.row.name)
        if (base.seq if base else 0) != self.row.pruned_seq:
            self.report.add("base", f"is at {base.seq if base else 0}, but the log begins after {self.row.pruned_seq}")
        if base is None:
            return
        try:
            self.state = checkpoint.resume_base(self.row.name, base.state)
        except (CorruptDataError, LookupError, AssertionError) as error:
            self.report.add("base", str(error))
            return
        info = self.state.info
        self.derived.turn, self.derived.title = info.turn, info.title or ""
        self.derived.owner, self.derived.labels = info.owner, info.labels
        await self.rows.begin(self.state)

    async def _replay(self) -> None:
        at, after = self.entries.at, self.row.pruned_seq
        while rows := await self.store.events(self.row.name, after, PAGE):
            cut = sum(1 for seq, _ in rows if at is None or seq <= at.seq)
            await self._page(rows[:cut])
            if cut < len(rows):
                await self.entries.reach(self.state)
                await self._page(rows[cut:])
            after = rows[-1][0]
            await asyncio.sleep(0)
        if after < self.row.last_seq:
            self.report.add("log", f"events {after + 1} to {self.row.last_seq} are missing")

    async def _page(self, rows: list[tuple[int, bytes]]) -> None:
        events: list[Event] = []
        for seq, body in rows:
            if seq != self.last + 1:
                self.report.add("log", f"events {self.last + 1} to {seq - 1} are missing")
            self.last = seq
            event = self._event(seq, body)
            if event is not None:
                events.append(event)
                await self._take(event)
        self.state.fold(events)
        finished = self.state.take_finished()
        await self.rows.settle(finished)
        await self.entries.settle(self.state, finished)

    def _event(self, seq: int, body: bytes) -> Event | None:
        try:
            event = parse_event(body)
        except codec.DECODE_ERRORS as error:
            self.report.add("log", f"event {seq} cannot be read: {error}")
            return None
        if event.seq != seq:
            self.report.add("log", f"event {seq} says it is {event.seq}")
            event = structs.replace(event, seq=seq)
        return event

    async def _take(self, event: Event) -> None:
        self.keys += bool(event.key)
        if (blob := blob_of(event)) is not None:
            await self._blob(event, blob)
        if isinstance(event, ev.CallEvent) and await self.rows.is_over(event):
            self.report.add("call", f"event {event.seq} was applied to {event.call}, which was not open")
            self.derived.last_seq = event.seq
        else:
            apply_event(self.rows.tables, self.derived, event)

    async def _blob(self, event: Event, blob: Blob) -> None:
        if blob not in self.blobs:
            self.blobs[blob] = await fault(self.store, blob)
        if self.blobs[blob]:
            self.report.add("blob", f"{blob.hash}, of event {event.seq}, {self.blobs[blob]}")
        if await self.store.used_blob(self.row.name, event.seq) != blob.hash:
            self.report.add("blob", f"{blob.hash}, of event {event.seq}, is not kept for it")
        self.uses += 1

    def _session(self) -> None:
        """Retention takes away what the counts of a session counted; the rest of its row can be told."""
        known = ["last_seq", "turn", "title", "owner", "labels"]
        known += (
            ["turns", "calls", "message"] if not self.row.pruned_seq else ["message"] if self.derived.message else []
        )
        but = tuple(name for name in SessionRecord.__struct_fields__ if name not in known)
        if wrong := differences(self.row, self.derived, but):
            self.report.add("session", wrong)

    async def _keys(self) -> None:
        stored, last = 0, ""
        while rows := await self.store.keys(self.row.name, last, PAGE):
            stored, last = stored + len(rows), rows[-1].key
            for row in rows:
                named = await self.store.events(self.row.name, row.seq - 1, 1)
                body = named[0][1] if named and named[0][0] == row.seq else b"{}"
                if _key(body) != row.key:
                    self.report.add("key", f"{row.key!r} leads to event {row.seq}, which does not bear it")
        if stored != self.keys:
            self.report.add("key", f"{stored} are stored, but {self.keys} events bear one")
        kept = (await self.store.row_counts(self.row.name)).blobs
        if kept != self.uses:
            self.report.add("blob", f"are kept for {kept} events, but {self.uses} events name one")


def _key(body: bytes) -> str:
    try:
        return parse_event(body).key
    except codec.DECODE_ERRORS:  # Told before.
        return ""
