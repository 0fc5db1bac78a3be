"""What the server takes and gives, as structs: the OpenAPI document is made from these and from nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec

from callslip.entries import Info, ToolCall
from callslip.rows import ApprovalRow, CallRow, SessionRow


class Wire(msgspec.Struct, rename="camel", kw_only=True):
    """Camel case outside, snake case inside."""


class SessionOut(Wire):
    """A session. `low`: how far retention removed its events."""

    session: str
    title: str
    seq: int
    low: int
    turn: str
    turns: int
    calls: int
    created_at: int
    updated_at: int
    owner: str = ""
    labels: Any = None


class CallOut(Wire):
    """A call, as lists give it. Times are ms since the epoch, 0 for not yet."""

    call: str
    session: str
    tool_call_id: str
    state: str
    tool_name: str
    title: str
    kind: str
    source: str
    turn: str
    scope: str
    attempt: int
    approval: str
    reason: str
    entry: int
    created_at: int
    started_at: int
    ended_at: int


class ApprovalOut(Wire):
    """A request for approval, and its answer."""

    approval: str
    session: str
    call: str
    state: str
    description: str
    options: list[Any]
    option: str
    by: str
    reason: str
    entry: int
    created_at: int
    expires_at: int
    answered_at: int


class Sessions(Wire):
    """Sessions, the last written first, and the cursor to more of them ("" if there are none)."""

    sessions: list[SessionOut]
    cursor: str


class Document(Wire):
    """A session in a format: `events`, `entries` or `messages`, whichever it has, and the cursor to older ones."""

    session: str
    seq: int
    events: list[Any] | msgspec.UnsetType = msgspec.UNSET
    entries: list[Any] | msgspec.UnsetType = msgspec.UNSET
    messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    info: Info | msgspec.UnsetType = msgspec.UNSET
    cursor: str | msgspec.UnsetType = msgspec.UNSET


class CallShown(CallOut):
    """A call, with its entry as it stands in its session: arguments, output, progress."""

    tool_call: ToolCall | None


class Calls(Wire):
    """Calls, newest first, and the cursor to more of them ("" if there are none)."""

    calls: list[CallOut]
    cursor: str


class Cancel(Wire, forbid_unknown_fields=True):
    """Why a call is to stop; whoever waits for it reads that."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class Approvals(Wire):
    """Requests for approval, oldest first."""

    approvals: list[ApprovalOut]


class Health(Wire):
    """Whether the server can do its work."""

    status: Literal["ok", "unavailable"]
    version: str


class Appended(Wire):
    """What came of posted messages: how many events, and the seq of the last of them (0 if there is none).

    `notUnderstood` of them were kept as they came. `others` are further conversations in the body: session and seq.
    """

    session: str
    seq: int
    appended: int
    not_understood: int = 0
    others: dict[str, int] = {}


class Approve(Wire, tag_field="decision", tag="approve", forbid_unknown_fields=True):
    """Let the call run as it is. `option` is one of those on offer, the first that fits unless it is named."""

    option: str = ""
    reason: str = ""


class Deny(Wire, tag_field="decision", tag="deny", forbid_unknown_fields=True):
    """Refuse the call. The model reads the reason."""

    option: str = ""
    reason: str = ""


class Edit(Wire, tag_field="decision", tag="edit", forbid_unknown_fields=True):
    """Let the call run, with these arguments instead."""

    input: Any
    option: str = ""
    reason: str = ""


Answer = Approve | Deny | Edit


def session_out(row: SessionRow) -> SessionOut:
    return SessionOut(
        session=row.name,
        title=row.title,
        seq=row.head,
        low=row.low,
        turn=row.turn,
        turns=row.turns,
        calls=row.calls,
        created_at=row.created_at,
        updated_at=row.updated_at,
        owner=row.owner,
        labels=row.labels,
    )


def call_out(row: CallRow) -> CallOut:
    return CallOut(
        call=row.id,
        session=row.session,
        tool_call_id=row.shown,
        state=row.state,
        tool_name=row.tool,
        title=row.title,
        kind=row.kind,
        source=row.source,
        turn=row.turn,
        scope=row.scope,
        attempt=row.attempt,
        approval=row.approval,
        reason=row.reason,
        entry=row.entry,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def call_shown(row: CallRow, entry: ToolCall | None) -> CallShown:
    return CallShown(**msgspec.structs.asdict(call_out(row)), tool_call=entry)


def approval_out(row: ApprovalRow) -> ApprovalOut:
    return ApprovalOut(
        approval=row.id,
        session=row.session,
        call=row.call,
        state=row.state,
        description=row.description,
        options=row.options,
        option=row.option,
        by=row.by,
        reason=row.reason,
        entry=row.entry,
        created_at=row.created_at,
        expires_at=row.expires_at,
        answered_at=row.answered_at,
    )


_OUT: dict[type, Any] = {SessionRow: session_out, CallRow: call_out, ApprovalRow: approval_out}


def shown(value: Any) -> Any:
    """A row as the outside may see it; anything else that JSON can say as it is; the rest not at all."""
    made = _OUT.get(value.__class__)
    if made is not None:
        return made(value)
    return cast(Any, value) if isinstance(value, str | int | list | dict) else None
