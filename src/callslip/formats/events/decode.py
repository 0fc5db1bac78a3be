"""Reads a log that some ledger wrote, so that importing it gives the same entries again.

An event is drafted as it stands, without what the ledger gives: seq, key, verdict. Its execution id may be taken here,
so that the call is also named by it as an alias of the namespace `callslip`: the id is kept where it is free, and the
alias finds the call where it is not. Every verdict is reached anew, from the same facts in the same order.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.formats.base import Unfinished
from callslip.model import events as ev
from callslip.model import ids
from callslip.model.events import Alias, Draft, Event, read_event
from callslip.model.names import SOURCE_LEDGER

FORMAT = "events"


class EventsDecoder:
    """One session's log, event by event, or whole documents with a list of `events`."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        listed = cast("dict[str, Any]", message).get("events") if isinstance(message, dict) else None
        if isinstance(listed, list):
            return [draft for event in cast("list[Any]", listed) for draft in self._one(event)]
        return self._one(message)

    def close(self, reason: str) -> list[Draft]:
        """A log that stops in the middle: nobody will go on with it here."""
        return [Draft(event) for event in self._unfinished.end(reason)]

    def _one(self, body: Any) -> list[Draft]:
        try:
            event = read_event(body)
        except InvalidInputError:
            return [Draft(ev.Raw(format=FORMAT, body=body))]
        draft = Draft(_drafted(event), witness=event.verdict == "witness")
        if event.verdict == "applied":
            self._unfinished.see([draft])
        return [draft]


def _drafted(event: Event) -> Event:
    """The event without what a ledger adds to it."""
    bare: dict[str, Any] = {"seq": 0, "key": "", "verdict": "applied"}
    if isinstance(event, ev.CallEvent):
        known = Alias(SOURCE_LEDGER, event.call)
        named = event.aliases if not event.call or known in event.aliases else (*event.aliases, known)
        call = event.call if ids.CALL.match(event.call) else ""
        bare |= {"aliases": named, "call": call, "reused": False, "entry": 0}
    return structs.replace(event, **bare)
