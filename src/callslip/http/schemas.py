"""What the server takes and gives, as structs: the OpenAPI document is made from these and from nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec

from callslip.model.entries import Info, ToolCall
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
    """Sessions, the last written first, and the cursor to more of them ("" if there are none)."""

    sessions: list[SessionView]
    cursor: str


class Document(CamelStruct):
    """A session in a format: `events`, `entries` or `messages`, whichever it has, and the cursor to older ones."""

    session: str
    seq: int
    events: list[Any] | msgspec.UnsetType = msgspec.UNSET
    entries: list[Any] | msgspec.UnsetType = msgspec.UNSET
    messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    info: Info | msgspec.UnsetType = msgspec.UNSET
    cursor: str | msgspec.UnsetType = msgspec.UNSET


class Spans(CamelStruct):
    """A session in the format `otel`, as OpenTelemetry has it in JSON."""

    resource_spans: list[Any]


class CallDetail(CallView, kw_only=True):
    """A call, with its entry as it stands in its session: arguments, output, progress."""

    tool_call: ToolCall | None


class Calls(CamelStruct):
    """Calls, newest first, and the cursor to more of them ("" if there are none)."""

    calls: list[CallView]
    cursor: str


class Cancel(CamelStruct, forbid_unknown_fields=True):
    """Why a call is to stop; whoever waits for it reads that."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class Approvals(CamelStruct):
    """Requests for approval, oldest first."""

    approvals: list[ApprovalView]


class Health(CamelStruct):
    """Whether the server can do its work."""

    status: Literal["ok", "unavailable"]
    version: str


class Appended(CamelStruct):
    """What came of posted messages: how many events, and the seq of the last of them (0 if there is none).

    `notUnderstood` of them were kept as they came. `others` are further conversations in the body: session and seq.
    """

    session: str
    seq: int
    appended: int
    not_understood: int = 0
    others: dict[str, int] = msgspec.field(default_factory=dict)


class Approve(CamelStruct, tag_field="decision", tag="approve", forbid_unknown_fields=True):
    """Let the call run as it is. `option` is one of those on offer, the first that fits unless it is named."""

    option: str = ""
    reason: str = ""


class Deny(CamelStruct, tag_field="decision", tag="deny", forbid_unknown_fields=True):
    """Refuse the call. The model reads the reason."""

    option: str = ""
    reason: str = ""


class Edit(CamelStruct, tag_field="decision", tag="edit", forbid_unknown_fields=True):
    """Let the call run, with these arguments instead."""

    input: Any
    option: str = ""
    reason: str = ""


Answer = Approve | Deny | Edit


def to_call_detail(row: CallRecord, entry: ToolCall | None) -> CallDetail:
    return CallDetail(**msgspec.structs.asdict(call_view(row)), tool_call=entry)


_OUT: dict[type, Any] = {SessionRecord: session_view, CallRecord: call_view, ApprovalRecord: approval_view}


def to_view(value: Any) -> Any:
    """A row as the outside may see it; anything else that JSON can say as it is; the rest not at all."""
    view = _OUT.get(value.__class__)
    if view is not None:
        return view(value)
    if isinstance(value, list):
        return [to_view(item) for item in cast("list[Any]", value)]
    return cast(Any, value) if isinstance(value, str | int | dict) else None
