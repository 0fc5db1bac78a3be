"""Keep the summaries of sessions and their usage up to date with the log.

Both are derived: a process that reads a list first adds the events that are missing, whichever process wrote them. So
writers need not know of summaries, and those of an older version do not.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from callslip.errors import CursorExpiredError
from callslip.ledger.aio import LARGE_COUNT, run_off_loop
from callslip.model import codec
from callslip.model.events import decode_event, parse_event
from callslip.model.records import SessionRecord, record_text
from callslip.model.summaries import SessionSummary, UsageRecord
from callslip.rules.session_summary import VERSION, add_event, add_usage, encode_summary, parse_summary
from callslip.store.protocol import Store
from callslip.store.summaries import StoredSummary, SummaryProgress, labels_text

PAGE_ROWS = 2000
PAGE_BYTES = 2**20
BATCH_SESSIONS = 50
"""How many summaries one transaction stores."""
MARGIN_MS = 10_000
"""How much later than its time a write may be seen: its transaction was open, or a clock differs."""
READ_S = 2.0
"""How long a reader waits for missing summaries."""


class Summaries:
    """The summaries of one ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since = 0

    async def refresh(self, seconds: float = READ_S) -> bool:
        """Add the events that summaries lack, the newest sessions first. Return whether none lacks any now."""
        if self._store.read_only:
            return not await self._store.stale_sessions(0, VERSION, 1)
        began, until = await self._store.clock(), time.monotonic() + seconds
        done: set[tuple[str, int]] = set()
        while True:
            stale = await self._store.stale_sessions(self._since, VERSION, BATCH_SESSIONS + len(done))
            todo = [session for session in stale if (session.name, session.head) not in done][:BATCH_SESSIONS]
            if not todo:
                self._since = max(self._since, began - MARGIN_MS)
                return True
            if time.monotonic() > until:
                if any(session.seq < 0 for session in stale):
                    await self._store.add_summaries(self._since)
                return False
            # What cannot be derived, such as a damaged log, must not be tried again and again.
            done.update((session.name, session.head) for session in todo)
            new = [progress for session in todo if (progress := await summarize(self._store, session.name)) is not None]
            await self._store.save_summaries(new)


async def summarize(store: Store, name: str) -> SummaryProgress | None:
    """Return the summary of a session after its last event; None if the session was deleted, or it is stored."""
    record, stored = await store.session(name), await store.summary(name)
    if record is None or (stored is not None and stored.version == VERSION and stored.seq >= record.last_seq):
        return None
    is_new = stored is None or stored.version != VERSION
    summary = SessionSummary(seq=record.pruned_seq) if stored is None or is_new else parse_summary(stored.body)
    if summary.seq < record.pruned_seq:
        summary.seq = record.pruned_seq  # Retention removed events that no process had summarized.
    used: dict[str, UsageRecord] = {}
    try:
        await read_events(store, summary, used, record)
    except CursorExpiredError:
        return None
    earlier = {} if is_new else {usage.id: usage for usage in await store.usage_by_ids(name, used)}
    for identity, usage in used.items():
        add_usage(summary, usage, earlier.get(identity))
    return _progress(record, stored, summary, list(used.values()), replaces_usage=is_new and not record.pruned_seq)


async def read_events(
    store: Store, summary: SessionSummary, used: dict[str, UsageRecord], record: SessionRecord
) -> None:
    """Add the events up to the last one to a summary, and collect the last report of each response."""
    while summary.seq < record.last_seq:
        rows = await store.events(record.name, summary.seq, PAGE_ROWS, PAGE_BYTES)
        if not rows:
            raise CursorExpiredError(summary.seq, record.last_seq)
        bodies = [body for _, body in rows]
        await run_off_loop(len(bodies) >= LARGE_COUNT, _add_events, summary, used, bodies)


def _add_events(summary: SessionSummary, used: dict[str, UsageRecord], bodies: Collection[bytes]) -> None:
    try:
        events = [parse_event(body) for body in bodies]
    except codec.DECODE_ERRORS:
        events = [decode_event(body) for body in bodies]
    for event in events:
        usage = add_event(summary, event)
        if usage is not None:
            used[usage.id] = usage


def _progress(
    record: SessionRecord,
    before: StoredSummary | None,
    summary: SessionSummary,
    usage: list[UsageRecord],
    *,
    replaces_usage: bool,
) -> SummaryProgress:
    totals = summary.usage
    return SummaryProgress(
        session=record.name,
        number=record.id,
        before=before,
        after=StoredSummary(summary.seq, VERSION, encode_summary(summary)),
        state=summary.state,
        title=record.title or summary.prompt,
        agent=summary.agent,
        model=summary.model,
        project=summary.project,
        branch=summary.branch,
        labels=record_text(labels_text(record.labels)),
        calls=record.calls,
        failed=summary.failed,
        tokens=totals.input_tokens + totals.output_tokens,
        started_at=summary.started_at or record.created_at,
        active_at=summary.active_at or record.updated_at,
        usage=usage,
        replaces_usage=replaces_usage,
    )
