"""One call as it stands in its session: its entry as it is sent, without reading the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from callslip.model.entries import ToolCall

if TYPE_CHECKING:
    from callslip.ledger.event_log import EventLog
    from callslip.model.records import CallRecord

Json = dict[str, Any]


async def load_call_entry(log: EventLog, row: CallRecord) -> ToolCall | None:
    """The call's entry, or nothing if there is none any more."""
    snapshot = await log.snapshot(row.session, limit=1, before=row.entry + 1)
    entry = snapshot.entries[0] if snapshot.entries else None
    return entry if isinstance(entry, ToolCall) and entry.id == row.entry else None


async def call_entry(log: EventLog, row: CallRecord, *, full: bool = False) -> Json:
    """The same as it is sent, {} for none; with `full`, its output whole."""
    entry = await load_call_entry(log, row)
    return (await as_sent(log, [entry], full=full))[0] if entry else {}


async def as_sent(log: EventLog, entries: Sequence[Any], *, full: bool = False) -> list[Json]:
    """Entries as they are sent; with `full`, what is kept beside the log stands in its place."""
    sent: list[Json] = msgspec.json.decode(msgspec.json.encode(entries))
    for entry in sent:
        if full and entry.get("blob"):
            put_output(entry, await log.blob(entry["blob"]["hash"]))
    return sent


def put_output(entry: Json, data: bytes) -> None:
    """Put an output that is kept beside the log in its place."""
    plain = entry["blob"].get("media") != "application/json"
    entry["output"] = data.decode("utf-8", "replace") if plain else msgspec.json.decode(data)
    entry.pop("truncated", None)
