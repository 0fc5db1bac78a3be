"""Verify a ledger: derive all records and entries from the log again, and compare them with the stored ones.

The log of a session is read once, in pages, from one snapshot of the database. Each event goes through the projection
that wrote the records and the fold that wrote the entries. A record is compared and dropped when it cannot change any
more, so a long session takes only the memory of its open calls and its foreign ids. A session that retention has cut is
compared from its base on. If the connection to a server is lost, the session is verified again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from msgspec import structs

from callslip.errors import CorruptDataError, DatabaseUnavailableError
from callslip.ledger import checkpoint
from callslip.ledger.event_log import EventLog
from callslip.ledger.queries import all_sessions
from callslip.ledger.verify.blobs import find_blob_fault
from callslip.ledger.verify.entries import EntryCheck
from callslip.ledger.verify.problems import Problem, Report, differences
from callslip.ledger.verify.rules import check_rules
from callslip.ledger.verify.search import check_index
from callslip.ledger.verify.summaries import SummaryCheck
from callslip.ledger.verify.tables import RecordCheck
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import blob_of_entry
from callslip.model.events import Blob, Event, blob_of, parse_event
from callslip.model.records import SessionRecord, record_text
from callslip.rules.fold import SessionFold
from callslip.rules.projection import apply_event
from callslip.store.protocol import Store

__all__ = ["Problem", "verify"]

PAGE_ROWS = 1000
PAGE_BYTES = 4 * 2**20
SNAPSHOT_S = 1.0
"""How long a snapshot is used for another session. A new one may take a connection, an old one delays VACUUM."""
RETRY_S = 0.5


async def verify(log: EventLog, session: str | None = None) -> list[Problem]:
    """Return the problems of one session, or of all sessions and the database file."""
    problems: list[Problem] = []
    if session is None:
        problems += [Problem("", "file", line) for line in await log.store.check()]
        problems += await check_rules(log.store)
    check = _LogCheck(log)
    try:
        async for name in _session_names(log.store, session):
            problems += await check.verify(name)
    finally:
        await check.close()
    return problems


async def _session_names(store: Store, session: str | None) -> AsyncIterator[str]:
    if session is not None:
        yield (await checkpoint.load_session(store, session)).name
        return
    async for record in all_sessions(store):
        yield record.name


class _LogCheck:
    """Verifies sessions one after another, several of them in one snapshot."""

    def __init__(self, log: EventLog) -> None:
        self._store = log.store
        self._retry_s = log.settings.database_timeout
        self._blobs: dict[Blob, str] = {}
        self._snapshot: Store | None = None
        self._began_at = 0.0
        self._stack = AsyncExitStack()

    async def verify(self, name: str) -> list[Problem]:
        """Return the problems of a session, none if it was deleted meanwhile."""
        until = 0.0
        while True:
            try:
                return await self._verify(name)
            except DatabaseUnavailableError:
                until = until or time.monotonic() + self._retry_s
                if time.monotonic() + RETRY_S >= until:
                    raise
            await self.close()
            await asyncio.sleep(RETRY_S)

    async def _verify(self, name: str) -> list[Problem]:
        if self._snapshot is not None and time.monotonic() - self._began_at > SNAPSHOT_S:
            await self.close()
        store = self._snapshot or await self._begin()
        record = await store.session(name)
        if record is None:  # It may be newer than the snapshot.
            await self.close()
            store = await self._begin()
            record = await store.session(name)
        return await _SessionCheck(store, record, self._blobs).verify() if record is not None else []

    async def _begin(self) -> Store:
        self._began_at = time.monotonic()
        self._snapshot = await self._stack.enter_async_context(self._store.read_snapshot())
        return self._snapshot

    async def close(self) -> None:
        """End the snapshot."""
        self._snapshot = None
        await self._stack.aclose()


class _SessionCheck:
    """Derive one session again. `blobs` has the faults of blobs that were checked already."""

    def __init__(self, store: Store, record: SessionRecord, blobs: dict[Blob, str]) -> None:
        self.store = store
        self.record = record
        self.blobs = blobs
        self.last_seq = record.pruned_seq
        self.key_count = self.blob_use_count = 0
        self.derived = SessionRecord(record.name, last_seq=record.pruned_seq)
        self.state = SessionFold(record.name)
        self.report = Report(record.name)
        self.records = RecordCheck(store, record, self.report)
        self.entries = EntryCheck(store, record, self.report)
        self.summary = SummaryCheck(store, record, self.report)

    async def verify(self) -> list[Problem]:
        """Return the problems of the session."""
        await self._load_base()
        await self.entries.start(self.state)
        await self.summary.start()
        await self._replay()
        await self.entries.check_checkpoint(self.state)
        self._check_session()
        await self.records.finish(self.state)
        await self.summary.finish()
        await self._check_keys_and_blobs()
        for fault in await self.store.find_copy_faults(self.record.name):
            self.report.add("row", fault)
        if not self.report.problems:  # What is derived from damaged entries is no further problem.
            await check_index(self.store, self.record, self.report)
        return self.report.problems

    async def _load_base(self) -> None:
        """Start with the state that retention left."""
        base = await self.store.base(self.record.name)
        base_seq, pruned_seq = base.seq if base else 0, self.record.pruned_seq
        if base_seq != pruned_seq:
            self.report.add("base", f"is at {base_seq}, but the log begins after {pruned_seq}")
        if base is None:
            return
        try:
            self.state = checkpoint.resume_base(self.record.name, base.state)
        except (CorruptDataError, LookupError, AssertionError) as error:
            self.report.add("base", str(error))
            return
        info = self.state.info
        self.derived.turn, self.derived.title = info.turn, record_text(info.title or "")
        self.derived.owner, self.derived.labels = info.owner, info.labels
        await self.records.start(self.state)
        for entry in self.state.entries.values():
            if (blob := blob_of_entry(entry)) is not None:
                await self._check_blob(entry.id, blob)

    async def _replay(self) -> None:
        at, after = self.entries.checkpoint, self.record.pruned_seq
        while rows := await self.store.events(self.record.name, after, PAGE_ROWS, PAGE_BYTES):
            cut = sum(1 for seq, _ in rows if at is None or seq <= at.seq)
            await self._check_page(rows[:cut])
            if cut < len(rows):
                await self.entries.check_checkpoint(self.state)
                await self._check_page(rows[cut:])
            after = rows[-1][0]
            await asyncio.sleep(0)
        if after < self.record.last_seq:
            self.report.add("log", f"events {after + 1} to {self.record.last_seq} are missing")

    async def _check_page(self, rows: list[tuple[int, bytes]]) -> None:
        events: list[Event] = []
        for seq, body in rows:
            if seq != self.last_seq + 1:
                self.report.add("log", f"events {self.last_seq + 1} to {seq - 1} are missing")
            self.last_seq = seq
            event = self._parse_event(seq, body)
            if event is not None:
                events.append(event)
                self.summary.add(event)
                await self._project(event)
        self.state.fold(events)
        finished = self.state.take_finished()
        await self.records.check_ended(finished)
        await self.entries.check_finished(self.state, finished)

    def _parse_event(self, seq: int, body: bytes) -> Event | None:
        try:
            event = parse_event(body)
        except codec.DECODE_ERRORS as error:
            self.report.add("log", f"event {seq} cannot be read: {error}")
            return None
        if event.seq != seq:
            self.report.add("log", f"event {seq} has seq {event.seq}")
            event = structs.replace(event, seq=seq)
        return event

    async def _project(self, event: Event) -> None:
        self.key_count += bool(event.key)
        if (blob := blob_of(event)) is not None:
            await self._check_blob(event.seq, blob)
        fault = await self.records.find_step_fault(event) if isinstance(event, ev.CallEvent) else ""
        if fault:
            self.report.add("call", fault)
            self.derived.last_seq = event.seq
        else:
            apply_event(self.records.tables, self.derived, event)

    async def _check_blob(self, seq: int, blob: Blob) -> None:
        """Check a blob and that it belongs to an event, or to that of an entry that retention left open."""
        if blob not in self.blobs:
            self.blobs[blob] = await find_blob_fault(self.store, blob)
        if self.blobs[blob]:
            self.report.add("blob", f"{blob.hash}, of event {seq}, {self.blobs[blob]}")
        if await self.store.used_blob(self.record.name, seq) != blob.hash:
            self.report.add("blob", f"{blob.hash}, of event {seq}, is not stored for it")
        self.blob_use_count += 1

    def _check_session(self) -> None:
        """Compare the fields of the session that follow from the log. After retention the counts do not."""
        fields = {"last_seq", "turn", "title", "owner", "labels"}
        if not self.record.pruned_seq:
            fields |= {"turns", "calls", "message"}
        elif self.derived.message:
            fields.add("message")
        ignored = tuple(name for name in SessionRecord.__struct_fields__ if name not in fields)
        if difference := differences(self.record, self.derived, ignored):
            self.report.add("session", difference)

    async def _check_keys_and_blobs(self) -> None:
        stored, last = 0, ""
        while keys := await self.store.keys(self.record.name, last, PAGE_ROWS):
            stored, last = stored + len(keys), keys[-1].key
            for key in keys:
                rows = await self.store.events(self.record.name, key.seq - 1, 1)
                body = rows[0][1] if rows and rows[0][0] == key.seq else b"{}"
                if _key_of(body) != key.key:
                    self.report.add("key", f"{key.key!r} refers to event {key.seq}, which does not have it")
        if stored != self.key_count:
            self.report.add("key", f"{stored} are stored, but {self.key_count} events have one")
        blob_uses = (await self.store.row_counts(self.record.name)).blobs
        if blob_uses != self.blob_use_count:
            self.report.add("blob", f"are stored for {blob_uses} events, but {self.blob_use_count} events have one")


def _key_of(body: bytes) -> str:
    try:
        return parse_event(body).key
    except codec.DECODE_ERRORS:  # Reported before.
        return ""
