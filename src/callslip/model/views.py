"""Rows as the outside sees them, by HTTP and with `--json`: the public part, in the words of the wire."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord

T = TypeVar("T", bound=msgspec.Struct)


class CamelStruct(msgspec.Struct, rename="camel", kw_only=True):
    """Camel case outside, snake case inside."""


class SessionView(CamelStruct):
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


class CallView(CamelStruct, omit_defaults=True):
    """A call, as lists give it. Times are ms since the epoch, 0 for not yet. One with a `client` is a command."""

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


# What a row calls otherwise.
_SESSION = {"session": "name", "seq": "last_seq", "low": "pruned_seq"}
_CALL = {"call": "id", "tool_call_id": "client_call_id", "tool_name": "tool"}
_APPROVAL = {"approval": "id"}


def session_view(row: SessionRecord) -> SessionView:
    return _out(SessionView, row, _SESSION)


def call_view(row: CallRecord) -> CallView:
    return _out(CallView, row, _CALL)


def approval_view(row: ApprovalRecord) -> ApprovalView:
    return _out(ApprovalView, row, _APPROVAL)


def _out(kind: type[T], row: msgspec.Struct, names: dict[str, str]) -> T:
    return kind(**{field: getattr(row, names.get(field, field)) for field in kind.__struct_fields__})
