"""Read the entry of one call, without reading its session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from callslip.model.entries import ToolCall

if TYPE_CHECKING:
    from callslip.ledger.event_log import EventLog
    from callslip.model.records import CallRecord

Json = dict[str, Any]


async def load_call_entry(log: EventLog, record: CallRecord) -> ToolCall | None:
    """Return the entry of a call, or None if retention removed it."""
    snapshot = await log.snapshot(record.session, limit=1, before=record.entry + 1)
    entry = snapshot.entries[0] if snapshot.entries else None
    return entry if isinstance(entry, ToolCall) and entry.id == record.entry else None


async def call_entry(log: EventLog, record: CallRecord, *, full: bool = False) -> Json:
    """Return the entry of a call as JSON, {} for none; with `full`, with its full output."""
    entry = await load_call_entry(log, record)
    return (await as_sent(log, [entry], full=full))[0] if entry else {}


async def as_sent(log: EventLog, entries: Sequence[Any], *, full: bool = False) -> list[Json]:
    """Return entries as JSON; with `full`, with the outputs that are stored as blobs."""
    sent: list[Json] = msgspec.json.decode(msgspec.json.encode(entries))
    for entry in sent:
        if full and entry.get("blob"):
            put_output(entry, await log.blob(entry["blob"]["hash"]))
    return sent


def put_output(entry: Json, data: bytes) -> None:
    """Put an output that is stored as a blob into its entry."""
    is_text = entry["blob"].get("media") != "application/json"
    entry["output"] = data.decode("utf-8", "replace") if is_text else msgspec.json.decode(data)
    entry.pop("truncated", None)
