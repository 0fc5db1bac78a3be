"""Read the entry of one call, without reading its session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from callslip.model.entries import ToolCall

if TYPE_CHECKING:
    from callslip.ledger.event_log import EventLog
    from callslip.model.records import CallRecord


async def load_call_entry(log: EventLog, record: CallRecord) -> ToolCall | None:
    """Return the entry of a call, or None if retention removed it."""
    snapshot = await log.snapshot(record.session, limit=1, before=record.entry + 1)
    entry = snapshot.entries[0] if snapshot.entries else None
    return entry if isinstance(entry, ToolCall) and entry.id == record.entry else None


async def call_entry(log: EventLog, record: CallRecord) -> dict[str, Any]:
    """Return the entry of a call as JSON, {} for none."""
    entry = await load_call_entry(log, record)
    return msgspec.json.decode(msgspec.json.encode(entry)) if entry else {}
