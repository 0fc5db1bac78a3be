"""Keep the summaries of sessions and their usage up to date with the log.

Both are derived: a process that reads a list first adds the events that are missing, whichever process wrote them. So
writers need not know of summaries, and those of an older version do not. Which sessions were written since everything
was up to date is found by an index, so a list costs the same for any number of sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from callslip.errors import CorruptDataError, StoreError
from callslip.ledger.aio import LARGE_COUNT, run_off_loop
from callslip.model import codec
from callslip.model.events import Event, decode_event, parse_event
from callslip.model.records import ListedSession, SessionRecord, record_text
from callslip.model.summaries import SessionSummary, UsageRecord
from callslip.rules.session_summary import VERSION, add_event, add_usage, encode_summary, parse_summary
from callslip.store.protocol import Store
from callslip.store.summaries import StoredSummary, SummaryProgress, labels_text, listed_session, times_of

PAGE_ROWS = 2000
PAGE_BYTES = 2**20
BATCH_SESSIONS = 50
"""How many summaries one transaction stores."""
MARGIN_MS = 60_000
"""How much later than its time a write may be seen: its transaction was open, or a clock differs."""
READ_S = 1.0
"""How long a reader waits for missing summaries."""
MAX_OPEN_CALLS = 10_000
"""Up to how many open calls of a session are counted."""
COMPLETE_UNTIL = "summaries"
"""The name under which a database has the time (ms) of a write before which no summary lacks one."""


class Summaries:
    """The summaries of one ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()

    async def refresh(self, seconds: float = READ_S) -> bool:
        """Add the events that summaries lack, the newest sessions first. Return whether none lacks any now."""
        until = time.monotonic() + seconds
        async with self._lock:
            try:
                return await self._refresh(until)
            except StoreError:  # For example of a full disk. The list then shows what is stored.
                return False

    async def _refresh(self, until: float) -> bool:
        store, began = self._store, await self._store.clock()
        text = await store.meta(COMPLETE_UNTIL)
        since = int(text) if text.isdecimal() else 0
        if since > began:  # The clock was set back, so later writes may have earlier times.
            since = 0
        while names := await store.stale_sessions(since, VERSION, BATCH_SESSIONS):
            if store.read_only:
                return False
            new: list[SummaryProgress] = []
            for name in names:
                if (progress := await summarize(store, name, until)) is not None:
                    new.append(progress)
                if time.monotonic() > until:
                    await store.save_summaries(new)
                    await store.add_summaries(since)
                    return False
            await store.save_summaries(new)
        if not store.read_only and began - MARGIN_MS > since + MARGIN_MS:
            await store.put_meta(COMPLETE_UNTIL, str(began - MARGIN_MS))
        return True

    async def with_summary(self, record: SessionRecord, until: float = 0.0) -> ListedSession:
        """Return a session with its summary. What is not stored is added for this answer, until a time if given."""
        progress = await summarize(self._store, record.name, until)
        if progress is None:
            stored = await self._store.summary(record.name)
            counts = await self._store.open_call_states(record.id, MAX_OPEN_CALLS)
            pending, open_calls = counts.get("awaiting_approval", 0), sum(counts.values())
            state = _read_stored(stored, record).state(open_calls, pending)
            return listed_session(record, stored.body if stored is not None else b"{}", state, open_calls, pending)
        return listed_session(record, progress.after.body, progress.state, progress.open_calls, progress.pending)


async def complete_summary(store: Store, name: str) -> None:
    """Store the summary of a session after its last event, before retention removes events."""
    while (progress := await summarize(store, name)) is not None:
        await store.save_summaries([progress])


async def summarize(store: Store, name: str, until: float = 0.0) -> SummaryProgress | None:
    """Return the summary of a session with events that the stored one lacks; None if it lacks none.

    At the time `until` it ends with the page that was read, so a long log is summarized in several steps.
    """
    record, stored = await store.session(name), await store.summary(name)
    if record is None or (stored is not None and stored.version >= VERSION and stored.seq >= record.last_seq):
        return None
    summary = _read_stored(stored, record)
    is_new = not summary.seq
    summary.seq = max(summary.seq, record.pruned_seq)
    used: dict[str, UsageRecord] = {}
    while summary.seq < record.last_seq:
        await _read_page(store, record, summary, used)
        if until and time.monotonic() > until:
            break
    earlier = {} if is_new or not used else {usage.id: usage for usage in await store.usage_by_ids(name, used)}
    for identity, usage in used.items():
        add_usage(summary, usage, earlier.get(identity))
    counts = await store.open_call_states(record.id, MAX_OPEN_CALLS)
    return _progress(record, stored, summary, counts, list(used.values()), replaces_usage=is_new)


def _read_stored(stored: StoredSummary | None, record: SessionRecord) -> SessionSummary:
    """Return the summary to continue, a new one if the log must be read from its beginning.

    What retention removed cannot be derived again, so then a summary of an older version is continued, too.
    """
    if stored is None or (stored.version < VERSION and not record.pruned_seq):
        return SessionSummary()
    try:
        summary = parse_summary(stored.body)
    except CorruptDataError:
        return SessionSummary()
    summary.seq = stored.seq
    return summary


async def _read_page(
    store: Store, record: SessionRecord, summary: SessionSummary, used: dict[str, UsageRecord]
) -> None:
    """Add the next events to a summary, up to the last one of the record, and the last report of each response."""
    rows = await store.events(record.name, summary.seq, PAGE_ROWS, PAGE_BYTES)
    bodies = [body for seq, body in rows if seq <= record.last_seq]
    if not bodies:  # Events are missing, which `verify` reports.
        summary.seq = record.last_seq
        return
    events = await run_off_loop(len(bodies) >= LARGE_COUNT, _parse_events, bodies)
    add_events(summary, used, events)
    summary.seq = rows[len(bodies) - 1][0]


def _parse_events(bodies: Collection[bytes]) -> list[Event]:
    """Decode events. A damaged one is left out; `verify` reports it."""
    try:
        return [parse_event(body) for body in bodies]
    except codec.DECODE_ERRORS:
        return [event for body in bodies if (event := _parse_one(body)) is not None]


def _parse_one(body: bytes) -> Event | None:
    try:
        return decode_event(body)
    except CorruptDataError:
        return None


def add_events(summary: SessionSummary, used: dict[str, UsageRecord], events: Collection[Event]) -> None:
    """Add events to a summary, and the last report of each response to `used`."""
    for event in events:
        usage = add_event(summary, event)
        if usage is not None:
            used[usage.id] = usage


def _progress(
    record: SessionRecord,
    before: StoredSummary | None,
    summary: SessionSummary,
    counts: dict[str, int],
    usage: list[UsageRecord],
    *,
    replaces_usage: bool,
) -> SummaryProgress:
    totals = summary.counted_usage
    started_at, active_at = times_of(record, summary)
    open_calls, pending = sum(counts.values()), counts.get("awaiting_approval", 0)
    return SummaryProgress(
        session=record.name,
        number=record.id,
        before=before,
        after=StoredSummary(summary.seq, VERSION, encode_summary(summary)),
        state=summary.state(open_calls, pending),
        title=record.title or summary.prompt,
        agent=summary.agent,
        model=summary.model,
        project=summary.project,
        branch=summary.branch,
        labels=record_text(labels_text(record.labels)),
        calls=record.calls,
        open_calls=open_calls,
        pending=pending,
        failed=summary.failed,
        tokens=totals.input_tokens + totals.output_tokens,
        has_responses=summary.has_responses,
        started_at=started_at,
        active_at=active_at,
        usage=usage,
        replaces_usage=replaces_usage,
    )
