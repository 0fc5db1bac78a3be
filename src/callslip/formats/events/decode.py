"""Decode the event log of a ledger, so that importing it gives the same entries.

An event is drafted without the fields that the ledger sets: seq, key, verdict. Its execution id may be in use in the
importing ledger, so it is also an alias in the namespace `callslip`: the call gets the id if it is free, and the alias
identifies the call otherwise. The ledger computes every verdict again, from the same events in the same order.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.formats.base import Unfinished, drafts_of, raw_if
from callslip.formats.json_fields import as_dict, as_list
from callslip.model import events as ev
from callslip.model import ids
from callslip.model.events import Alias, Draft, Event, read_event
from callslip.model.names import SOURCE_LEDGER

FORMAT = "events"
RAW = str(ev.Raw.__struct_config__.tag)


def is_raw_event(message: Any) -> bool:
    """Return whether a message is a `raw` event of a log, which is copied as it is."""
    return as_dict(message).get("type") == RAW


class EventsDecoder:
    """The log of one session, event by event, or documents with a list of `events`."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        events = as_dict(message).get("events")
        bodies = as_list(events) if isinstance(events, list) else [message]
        return [draft for body in bodies for draft in self._read(body)]

    def close(self, reason: str) -> list[Draft]:
        return self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return False

    def _read(self, body: Any) -> list[Draft]:
        try:
            event = read_event(body)
        except InvalidInputError:
            return drafts_of(raw_if(True, FORMAT, body))
        is_witness = event.verdict == "witness"  # The original log decided that it adds nothing.
        draft = Draft(_without_ledger_fields(event), witness=is_witness, adds="nothing" if is_witness else "events")
        if event.verdict == "applied":
            self._unfinished.follow([draft])
        return [draft]


def _without_ledger_fields(event: Event) -> Event:
    fields: dict[str, Any] = {"seq": 0, "key": "", "verdict": "applied"}
    if isinstance(event, ev.CallEvent):
        alias = Alias(SOURCE_LEDGER, event.call)
        aliases = event.aliases if not event.call or alias in event.aliases else (*event.aliases, alias)
        call = event.call if ids.CALL.match(event.call) else ""
        fields |= {"aliases": aliases, "call": call, "reused": False, "entry": 0}
    return structs.replace(event, **fields)
