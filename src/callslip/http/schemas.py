"""Request and response bodies as structs, which the OpenAPI document is generated from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec

from callslip.api.approvals import BulkResult
from callslip.api.rules import PolicyView, RuleView
from callslip.model.entries import Info, ToolCall
from callslip.model.receipts import call_receipt
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.model.views import (
    ApprovalView,
    CallView,
    CamelStruct,
    SessionView,
    approval_view,
    call_view,
    session_view,
)


class Sessions(CamelStruct):
    """Sessions, the last active first unless sorted otherwise, and the cursor to the next page ("" on the last one).

    If the list is not `complete`, it lacks some of what was written last: ask again.
    """

    sessions: list[SessionView]
    cursor: str
    complete: bool = True


class Document(CamelStruct):
    """A session in a format: its `events`, `entries` or `messages`, and the cursor to older ones."""

    session: str
    seq: int
    events: list[Any] | msgspec.UnsetType = msgspec.UNSET
    entries: list[Any] | msgspec.UnsetType = msgspec.UNSET
    messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    info: Info | msgspec.UnsetType = msgspec.UNSET
    cursor: str | msgspec.UnsetType = msgspec.UNSET


class FacetValue(CamelStruct):
    """A value of a facet, and how many calls have it."""

    value: str
    count: int


class FilteredEntries(CamelStruct):
    """Matching entries, the cursor to older ones, and counts of the whole session.

    `matched` of `total` entries match. `calls` counts all calls by state. A count of a facet is that of the calls that
    match without the filter's own terms for the facet.
    """

    session: str
    seq: int
    entries: list[Any]
    cursor: str
    matched: int
    total: int
    calls: dict[str, int]
    facets: dict[str, list[FacetValue]]


class Spans(CamelStruct):
    """A session in the format `otel`: OTLP as JSON."""

    resource_spans: list[Any]


class CallDetail(CallView, kw_only=True):
    """A call with its entry: arguments, output, progress."""

    tool_call: ToolCall | None


class Calls(CamelStruct):
    """Calls, newest first, and the cursor to the next page ("" on the last one)."""

    calls: list[CallView]
    cursor: str


class Cancel(CamelStruct, forbid_unknown_fields=True):
    """Why a call is cancelled; the agent and its user read it."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class Approvals(CamelStruct):
    """Approvals, oldest first."""

    approvals: list[ApprovalView]


class BulkResults(CamelStruct):
    """The result of each answer, in the order of the answers."""

    results: list[BulkResult]


class Rules(CamelStruct):
    """Saved rules, oldest first, and the policy file that beats them, if there is one."""

    rules: list[RuleView]
    policy: PolicyView | None


class Match(CamelStruct, omit_defaults=True):
    """What an id names: one of the three."""

    session: SessionView | None = None
    call: CallView | None = None
    approval: ApprovalView | None = None


class Health(CamelStruct):
    """Whether the server can read its database."""

    status: Literal["ok", "unavailable"]
    version: str


class Appended(CamelStruct, kw_only=True):
    """The result of posted messages: how many events were appended, and the seq of the last one.

    If no event resulted, the messages are stored until the next ones complete them, and `seq` is the last event of the
    session; it is missing if the session has no event yet.
    `notUnderstood` counts messages that were stored as they are. `others` are further conversations in the body, by
    session with their last seq. `events` are those of this session, with `return=events`.
    """

    session: str
    seq: int | msgspec.UnsetType = msgspec.UNSET
    appended: int
    not_understood: int = 0
    others: dict[str, int] = msgspec.field(default_factory=dict)
    events: list[Any] | msgspec.UnsetType = msgspec.UNSET


class Approve(CamelStruct, tag_field="decision", tag="approve", forbid_unknown_fields=True):
    """Allow the call. `option` is one of those on offer; by default the first one that allows it.

    `by` may only be the name of the token.
    """

    option: str = ""
    reason: str = ""
    by: str = ""


class Deny(CamelStruct, tag_field="decision", tag="deny", forbid_unknown_fields=True):
    """Deny the call. The model reads the reason."""

    option: str = ""
    reason: str = ""
    by: str = ""


class Edit(CamelStruct, tag_field="decision", tag="edit", forbid_unknown_fields=True):
    """Allow the call with other arguments."""

    input: Any
    option: str = ""
    reason: str = ""
    by: str = ""


Answer = Approve | Deny | Edit


def to_call_detail(record: CallRecord, entry: ToolCall | None) -> CallDetail:
    """Return a call with its entry."""
    return CallDetail(**msgspec.structs.asdict(call_view(record)), tool_call=entry)


def to_call_receipt(record: CallRecord) -> CallDetail:
    """Return a call for a caller without the right to read."""
    return CallDetail(**msgspec.structs.asdict(call_receipt(call_view(record))), tool_call=None)


_VIEWS: dict[type, Any] = {SessionRecord: session_view, CallRecord: call_view, ApprovalRecord: approval_view}


def to_view(value: Any) -> Any:
    """Return a record as its view, other JSON values unchanged, and None for the rest."""
    view = _VIEWS.get(value.__class__)
    if view is not None:
        return view(value)
    if isinstance(value, list):
        return [to_view(item) for item in cast("list[Any]", value)]
    return cast(Any, value) if isinstance(value, str | int | dict) else None
