"""Give an event about a call that a hook recorded without an id the place by which the call is found."""

from __future__ import annotations

import msgspec
from msgspec import structs

from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.names import HOOK_SOURCES, SOURCE_LEDGER, TRANSCRIPT_SOURCES, UNNAMED_NAMESPACE
from callslip.rules.unnamed_calls import UNNAMED_CALLS, has_place, places, unnamed_alias
from callslip.store.unit_of_work import UnitOfWork


def with_place(unit: UnitOfWork, session: str, event: ev.CallEvent, source: str) -> ev.CallEvent:
    """Return an event with the place of its call as an alias: of a hook a free one, of the session file a taken one."""
    if source in TRANSCRIPT_SOURCES:
        return _with_taken_place(unit, session, event)
    if source in HOOK_SOURCES:
        return _with_free_place(unit, session, event)
    return event


def _with_taken_place(unit: UnitOfWork, session: str, event: ev.CallEvent) -> ev.CallEvent:
    if not (isinstance(event, ev.CallProposed | ev.CallStarted) and event.aliases):
        return event
    has_alias = any(alias.ns in (UNNAMED_NAMESPACE, SOURCE_LEDGER) for alias in event.aliases)
    if has_alias or not isinstance(event.tool_name, str) or event.input is msgspec.UNSET:
        return event
    if not _is_taken(unit, session, UNNAMED_CALLS) or any(_is_taken(unit, session, alias) for alias in event.aliases):
        return event
    of_call = places(unnamed_alias(event.tool_name, event.input))
    taken = next((place for place in of_call if _is_taken(unit, session, place)), None)
    return event if taken is None else structs.replace(event, aliases=(*event.aliases, taken))


def _with_free_place(unit: UnitOfWork, session: str, event: ev.CallEvent) -> ev.CallEvent:
    for alias in event.aliases:
        if alias.ns == UNNAMED_NAMESPACE and not has_place(alias):
            others = tuple(other for other in event.aliases if other != alias)
            free = next((place for place in places(alias) if not _is_taken(unit, session, place)), None)
            event = structs.replace(event, aliases=others if free is None else (*others, free))
    return event


def _is_taken(unit: UnitOfWork, session: str, alias: Alias) -> bool:
    return bool(unit.alias(session, alias.ns, alias.id))
