"""Public JSON of sessions, calls and approvals, for HTTP and `--json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord

R = TypeVar("R", bound=msgspec.Struct)
V = TypeVar("V", bound=msgspec.Struct)


class CamelStruct(msgspec.Struct, rename="camel", kw_only=True):
    """A struct whose JSON fields are camelCase."""


class SessionView(CamelStruct):
    """A session. `low` is the last event that retention removed."""

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


class CallView(CamelStruct, omit_defaults=True):
    """A call in a list. Times are ms since the epoch, 0 if not reached. A call with a `client` is a command."""

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
    client: str = ""


class ApprovalView(CamelStruct):
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


def _conversions(record: type[R], view: type[V], **names: str) -> tuple[Callable[[R], V], Callable[[V], R]]:
    """Return the functions that convert a record to its public part, and back as far as that part tells.

    `names` are fields of the view that have another name in the record.
    """
    fields = [(field, names.get(field, field)) for field in view.__struct_fields__]
    return (
        lambda row: view(**{field: getattr(row, name) for field, name in fields}),
        lambda public: record(**{name: getattr(public, field) for field, name in fields}),
    )


session_view, session_record = _conversions(
    SessionRecord, SessionView, session="name", seq="last_seq", low="pruned_seq"
)
call_view, call_record = _conversions(CallRecord, CallView, call="id", tool_call_id="client_call_id", tool_name="tool")
approval_view, approval_record = _conversions(ApprovalRecord, ApprovalView, approval="id")
