"""What a caller without the right to read gets back of what it wrote: ids, states and times, but no content."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from msgspec import structs

from callslip.model.events import Event
from callslip.model.views import ApprovalView, CallView

S = TypeVar("S", bound=Event | CallView | ApprovalView)

_TIMES = {"created_at", "started_at", "ended_at", "expires_at", "answered_at"}
_EVENT_FIELDS = {"seq", "at", "verdict", "call", "approval", "turn"}
_CALL_FIELDS = {"call", "session", "state", "scope", "attempt", "approval", "entry", "client", *_TIMES}
_APPROVAL_FIELDS = {"approval", "session", "call", "state", "option", "by", "reason", "entry", *_TIMES}
"""The option, the name and the reason are those of the caller's own answer."""


def event_receipt(event: Event) -> Event:
    """Return an event without its content."""
    return _keep(event, _EVENT_FIELDS)


def call_receipt(view: CallView) -> CallView:
    """Return a call without its content: neither its tool nor a title, an entry or a reason."""
    return _keep(view, _CALL_FIELDS)


def approval_receipt(view: ApprovalView) -> ApprovalView:
    """Return an approval that the caller has answered without the content of the request."""
    return _keep(view, _APPROVAL_FIELDS)


def _keep(value: S, names: set[str]) -> S:
    """Return a struct with these fields, and all others empty."""
    kept = {name: getattr(value, name) for name in value.__struct_fields__ if name in names}
    return type(value)(**{**_empty_fields(type(value)), **kept})


@cache
def _empty_fields(kind: type[Event | CallView | ApprovalView]) -> dict[str, Any]:
    """Return empty values for the fields without a default."""
    return {field.name: "" if field.type is str else [] for field in structs.fields(kind) if field.required}
