"""Public JSON of sessions, calls and approvals, for HTTP and `--json`."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from callslip.model.records import ApprovalRecord, CallRecord, ListedSession, SessionRecord
from callslip.model.summaries import SessionState, UsageTotals

T = TypeVar("T", bound=msgspec.Struct)


class CamelStruct(msgspec.Struct, rename="camel", kw_only=True):
    """A struct whose JSON fields are camelCase."""


class SessionView(CamelStruct):
    """A session. `low` is the last event that retention removed.

    `state` is what it does: running, waiting (for an approval), idle, or ended. `project` is the folder that its agent
    works in, `prompt` the beginning of its first prompt, `continues` the agent's id of the session from which it was
    forked. `openCalls` counts calls that have not ended, `pending` those of them that wait for an approval (both up to
    10,000), `failed` those that did not succeed. `usage` is the sum over all responses of models. `startedAt` and
    `activeAt` are the times of its first event, and of the last one of its agent.
    """

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
    state: SessionState = "idle"
    agent: str = ""
    agent_version: str = ""
    model: str = ""
    project: str = ""
    branch: str = ""
    prompt: str = ""
    continues: str = ""
    open_calls: int = 0
    pending: int = 0
    failed: int = 0
    started_at: int = 0
    active_at: int = 0
    usage: UsageTotals = msgspec.field(default_factory=UsageTotals)


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


class ApprovalView(CamelStruct, omit_defaults=True):
    """A request for approval, and its answer.

    `answerAt` is the program in which a person must answer while it is pending, if that is not possible here.
    `inputHash` is a digest of the call, its arguments and the options; answers to several requests name it.
    """

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
    answer_at: str = ""
    input_hash: str = ""


# Fields of a view that have another name in the record.
_SESSION_FIELDS = {"session": "name", "seq": "last_seq", "low": "pruned_seq"}
_CALL_FIELDS = {"call": "id", "tool_call_id": "client_call_id", "tool_name": "tool"}
_APPROVAL_FIELDS = {"approval": "id"}


def session_view(row: SessionRecord) -> SessionView:
    """Return the public part of a session."""
    return _to_view(SessionView, row, _SESSION_FIELDS)


def call_view(row: CallRecord) -> CallView:
    """Return the public part of a call."""
    return _to_view(CallView, row, _CALL_FIELDS)


def approval_view(row: ApprovalRecord) -> ApprovalView:
    """Return the public part of an approval."""
    return _to_view(ApprovalView, row, _APPROVAL_FIELDS)


def session_record(view: SessionView) -> ListedSession:
    """Return a session's record, as far as its public part tells."""
    return _to_record(ListedSession, view, _SESSION_FIELDS)


def call_record(view: CallView) -> CallRecord:
    """Return a call's record, as far as its public part tells."""
    return _to_record(CallRecord, view, _CALL_FIELDS)


def approval_record(view: ApprovalView) -> ApprovalRecord:
    """Return an approval's record, as far as its public part tells."""
    return _to_record(ApprovalRecord, view, _APPROVAL_FIELDS)


def _to_view(kind: type[T], row: msgspec.Struct, names: dict[str, str]) -> T:
    known = {field: names.get(field, field) for field in kind.__struct_fields__}
    return kind(**{field: getattr(row, name) for field, name in known.items() if hasattr(row, name)})


def _to_record(kind: type[T], view: msgspec.Struct, names: dict[str, str]) -> T:
    fields = {names.get(field, field): getattr(view, field) for field in view.__struct_fields__}
    return kind(**{name: value for name, value in fields.items() if name in kind.__struct_fields__})
