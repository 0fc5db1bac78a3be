"""The rules about the state of a call and about which call an event belongs to.

TRANSITIONS is the whole lifecycle. An event without a transition is an orphan if there is no such call, illegal if the
call is open, and late or a duplicate if it has ended. No event leaves a terminal state; one only adds what the agent's
own record says about a call that has completed or was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.model.events import (
    TERMINAL,
    Alias,
    ApprovalAnswer,
    ApprovalGranted,
    ApprovalRefused,
    ApprovalReleased,
    ApprovalRequested,
    ApprovalWithdrawn,
    CallCancelled,
    CallCompleted,
    CallDenied,
    CallEnd,
    CallEvent,
    CallExpired,
    CallFailed,
    CallInput,
    CallInputDelta,
    CallLost,
    CallProgress,
    CallProposed,
    CallReported,
    CallRequeued,
    CallStarted,
    CallUpdate,
    Event,
    Verdict,
    encode_event,
    type_of,
)
from callslip.model.names import HOOK_SOURCES, RETURNED_NAMESPACES, TRANSCRIPT_SOURCES, UNNAMED_NAMESPACE
from callslip.model.records import ApprovalRecord, CallRecord, record_text

CallState = Literal[
    "none",
    "queued",
    "awaiting_approval",
    "running",
    "completed",
    "failed",
    "denied",
    "cancelled",
    "expired",
    "lost",
]

_ENDING: dict[type[Event], CallState] = {
    CallCompleted: "completed",
    CallFailed: "failed",
    CallDenied: "denied",
    CallCancelled: "cancelled",
    CallExpired: "expired",
    CallLost: "lost",
}


def _updates(state: CallState) -> dict[type[Event], CallState]:
    """Return the transitions of events that update a call without changing its state."""
    return {CallProposed: state, CallInputDelta: state, CallInput: state, CallProgress: state}


TRANSITIONS: dict[CallState, dict[type[Event], CallState]] = {
    "none": {
        **_updates("queued"),
        CallStarted: "running",
        CallCompleted: "completed",
        CallFailed: "failed",
    },
    "queued": {
        **_updates("queued"),
        **_ENDING,
        CallStarted: "running",
        ApprovalRequested: "awaiting_approval",
    },
    "awaiting_approval": {
        **_updates("awaiting_approval"),
        **_ENDING,
        ApprovalRequested: "awaiting_approval",
        ApprovalGranted: "queued",
        ApprovalRefused: "denied",
        ApprovalWithdrawn: "cancelled",
        ApprovalReleased: "queued",
    },
    "running": {
        **_updates("running"),
        **_ENDING,
        CallStarted: "running",
        CallRequeued: "queued",
        ApprovalRequested: "awaiting_approval",
    },
    "completed": {CallReported: "completed"},
    "failed": {},
    "denied": {},
    "cancelled": {},
    "expired": {},
    "lost": {CallReported: "lost"},
}

TERMINAL_STATES: frozenset[str] = frozenset(_ENDING.values())
OPEN_STATES: frozenset[str] = frozenset(TRANSITIONS) - TERMINAL_STATES - {"none"}
PENDING_STATES: frozenset[str] = frozenset({"queued", "awaiting_approval"})
OPENING_EVENTS: tuple[type[Event], ...] = (CallProposed, CallStarted, ApprovalRequested)

# Agents often report a refusal or a cancellation again; that is not a second end.
_ECHO: dict[str, tuple[type[Event], ...]] = {
    "denied": (CallFailed, CallCancelled),
    "cancelled": (CallFailed, CallCancelled),
}

# How the end of a turn ends its open calls, by reason. With other reasons the calls have a grace period.
TURN_CLOSES: dict[str, type[CallEnd]] = {"cancelled": CallCancelled, "error": CallLost, "eof": CallLost}

ANSWER_STATES: dict[type[Event], str] = {
    ApprovalGranted: "granted",
    ApprovalRefused: "refused",
    ApprovalWithdrawn: "withdrawn",
    ApprovalReleased: "released",
}

AGENT_SOURCES = HOOK_SOURCES | TRANSCRIPT_SOURCES
"""The sources of calls that an agent runs itself, also without an answer from here."""

APPROVAL_OPTIONS = [
    {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
    {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
]


def next_state(state: str, event: Event) -> CallState | None:
    """Return the state after an event, or None if there is no such transition."""
    return TRANSITIONS[state].get(type(event))  # pyright: ignore[reportArgumentType]


def is_terminal(event: Event) -> bool:
    """Return whether an applied event of this type ends its call."""
    return isinstance(event, (*TERMINAL, ApprovalRefused, ApprovalWithdrawn))


def ending_mark(event: CallEnd) -> str:
    """Return a digest of the type and the result of an end, to recognize the same end when it is reported again."""
    fields = {"output": event.output, "error": event.error, "content": event.content}
    result = {name: value for name, value in fields.items() if value}
    blob = event.blob.hash if event.blob else ""
    return codec.digest(codec.encode([type_of(event), result, blob]))


def classify_event(row: CallRecord | None, event: CallEvent) -> Verdict:
    """Return the verdict for an event about a call."""
    state = row.state if row else "none"
    if row is not None and is_stale(row, event):
        return "late"
    if next_state(state, event) is not None:
        return "applied"
    if row is None:
        return "orphan"
    if state not in TERMINAL_STATES:
        return "illegal"
    is_duplicate = isinstance(event, TERMINAL) and (repeats_refusal(row, event) or ending_mark(event) == row.ending)
    return "duplicate" if is_duplicate else "late"


def repeats_refusal(row: CallRecord, event: CallEvent) -> bool:
    """Return whether an event reports again that a call was denied or cancelled."""
    return isinstance(event, _ECHO.get(row.state, ()))


def is_stale(row: CallRecord, event: CallEvent) -> bool:
    """Return whether an event about an open command comes from a worker that does not hold it.

    The attempt must match the claim. A worker that only polls may finish a command that is not claimed. A command that
    awaits approval cannot be finished.
    """
    if row.state in TERMINAL_STATES or not _is_worker_report(row, event):
        return False
    if row.state == "awaiting_approval":
        return True
    return _attempt(event) != (row.attempt if row.state == "running" else 0)


def was_stale(row: CallRecord, event: CallEvent) -> bool:
    """Return whether an event about an ended command comes from another worker than the last one."""
    return _is_worker_report(row, event) and _attempt(event) != row.attempt


def _is_worker_report(row: CallRecord, event: CallEvent) -> bool:
    """Return whether the worker of a command sent this event, so that its attempt must match."""
    return bool(row.client) and isinstance(event, CallCompleted | CallFailed | CallProgress)


def _attempt(event: CallEvent) -> int:
    return event.attempt if isinstance(event, CallEnd | CallProgress) else 0


def may_be_posted(row: CallRecord, event: CallEvent) -> bool:
    """Return whether posted messages may contain this event: about a command only reports, which change no argument."""
    if not row.client or isinstance(event, CallEnd):
        return True
    return isinstance(event, CallProgress) and not isinstance(event.tool_name, str) and event.input is msgspec.UNSET


def is_held(row: CallRecord, attempt: int) -> bool:
    """Return whether the worker that claimed a command with this attempt still holds it."""
    return row.state == "running" and row.attempt == attempt


def expires_at(row: CallRecord) -> int:
    """Return the deadline of a call in ms; 0 if it has none or awaits approval."""
    return 0 if row.state == "awaiting_approval" else row.deadline


def deadline_of(row: CallRecord, event: CallEvent) -> int:
    """Return the deadline after an event: the timeout of a command starts at its proposal and again at its approval."""
    if isinstance(event, CallProposed):
        return event.deadline or row.deadline or (event.timeout and event.at + event.timeout)
    return event.at + row.timeout if isinstance(event, ApprovalGranted) and row.timeout else row.deadline


def owner_lost_event(row: CallRecord, reason: str) -> CallLost | CallRequeued:
    """Return the event for a call whose owner is gone: an idempotent command is queued again, other calls are lost."""
    can_retry = row.client and row.idempotent and row.state == "running"
    return CallRequeued(call=row.id, reason=reason) if can_retry else CallLost(call=row.id, reason=reason)


def classify_answer(row: CallRecord | None, approval: ApprovalRecord | None, event: ApprovalAnswer) -> Verdict:
    """Return the verdict for an answer; only the first one to a pending request is applied."""
    if approval is None or row is None:
        return "orphan"
    if approval.state == "pending":
        is_possible = not isinstance(event, ApprovalReleased) or row.source in AGENT_SOURCES
        return classify_event(row, event) if is_possible else "illegal"
    same = approval.state == ANSWER_STATES[type(event)] and approval.option == record_text(event.option)
    return "duplicate" if same else "late"


def proposal_of(event: ApprovalRequested) -> CallProposed:
    """Return the proposal that a request for approval implies if the call does not exist yet."""
    names = [name for name in (*CallUpdate.__struct_fields__, "blob") if name not in Event.__struct_fields__]
    return CallProposed(**{name: getattr(event, name) for name in names}, at=event.at, source=event.source)


def opening_mark(event: CallEvent) -> str:
    """Return a digest of the first event of a call, without fields set by the ledger, to recognize a repetition."""
    if isinstance(event, ApprovalRequested):
        event = proposal_of(event)
    bare = msgspec.structs.replace(event, seq=0, at=0, source="", key="", verdict="applied", call="", reused=False)
    return codec.digest(encode_event(bare))


CallMatch = Literal["same", "new", "duplicate"]


def resolve_call(newest: CallRecord | None, event: CallEvent, turn: str, source: str = "") -> CallMatch:
    """Return whether an event with a foreign id belongs to the newest call with that id, or to a new call.

    Turn and model round are compared first: some agents restart their ids in every turn and send the same opening
    again, and that is a new call. A session file and a live recording of it have the same calls, and repeat an opening
    with its time. So a call is new to a file only if the file has both, in other turns and one after the other.
    """
    if newest is None:
        return "new"
    ended = newest.state in TERMINAL_STATES
    if not isinstance(event, OPENING_EVENTS):
        return "same"
    source = event.source or source
    if newest.source in TRANSCRIPT_SOURCES or source in TRANSCRIPT_SOURCES:
        is_later = ended and event.at > newest.ended_at and bool(turn) and turn != newest.turn
        return "new" if is_later and newest.source == source else "same"
    if isinstance(event, CallProposed) or ended:
        later_turn = bool(turn) and turn != newest.turn
        iteration = event.iteration if isinstance(event, CallProposed) else -1
        later_round = min(iteration, newest.iteration) >= 0 and iteration != newest.iteration
        if later_turn or later_round:
            return "new"
    if not ended:
        return "same"
    return "duplicate" if opening_mark(event) == newest.opening else "new"


def client_call_id(event: CallEvent, call: str) -> str:
    """Return the id for foreign clients: their own id, unless an earlier call of the session has it."""
    named = () if event.reused else (alias.id for alias in event.aliases if alias.ns != UNNAMED_NAMESPACE)
    return next(iter(named), call)


def returned_ids(entry: ToolCall, aliases: Iterable[Alias]) -> dict[str, str] | None:
    """Return the ids that readers of the producer's format get back: the first of each namespace.

    They are final when the call has started, because readers have them from then on.
    """
    if entry.started_at or entry.status not in ("none", *PENDING_STATES):
        return entry.foreign_ids
    named = {alias.ns: alias.id for alias in reversed([*aliases]) if alias.ns in RETURNED_NAMESPACES}
    return {**named, **(entry.foreign_ids or {})} or None


def scope_of(state: str, scope: str, event: CallProposed) -> str:
    """Return the scope of a call, which only its first event sets: messages already sent cannot change."""
    return event.scope if state == "none" else scope


def strip_mcp_prefix(name: str) -> str:
    """Return the name of a tool without the prefix of its MCP server."""
    if name[:5] != "mcp__":
        return name
    _, _, tool = name[5:].partition("__")
    return tool or name
