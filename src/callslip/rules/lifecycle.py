"""The only rules about a call's state, and about which call a message means.

TRANSITIONS is the whole lifecycle. Where a key is missing, the state itself says what the event is worth: on no call an
orphan, on an open call illegal, on an ended one late (or a duplicate). Terminal states are absorbing (C4).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from callslip.model import codec
from callslip.model.events import (
    TERMINAL,
    ApprovalAnswer,
    ApprovalGranted,
    ApprovalRefused,
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
    CallRequeued,
    CallStarted,
    CallUpdate,
    Event,
    Verdict,
    encode_event,
    type_of,
)
from callslip.model.records import ApprovalRecord, CallRecord

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


def _telling(state: CallState) -> dict[type[Event], CallState]:
    """What tells more about a call and leaves it where it is."""
    return {CallProposed: state, CallInputDelta: state, CallInput: state, CallProgress: state}


TRANSITIONS: dict[CallState, dict[type[Event], CallState]] = {
    "none": {
        **_telling("queued"),
        CallStarted: "running",
        CallCompleted: "completed",
        CallFailed: "failed",
    },
    "queued": {
        **_telling("queued"),
        **_ENDING,
        CallStarted: "running",
        ApprovalRequested: "awaiting_approval",
    },
    "awaiting_approval": {
        **_telling("awaiting_approval"),
        **_ENDING,
        ApprovalRequested: "awaiting_approval",
        ApprovalGranted: "queued",
        ApprovalRefused: "denied",
        ApprovalWithdrawn: "cancelled",
    },
    "running": {
        **_telling("running"),
        **_ENDING,
        CallStarted: "running",
        CallRequeued: "queued",
        ApprovalRequested: "awaiting_approval",
    },
    "completed": {},
    "failed": {},
    "denied": {},
    "cancelled": {},
    "expired": {},
    "lost": {},
}

TERMINAL_STATES: frozenset[str] = frozenset(_ENDING.values())
OPEN_STATES: frozenset[str] = frozenset(TRANSITIONS) - TERMINAL_STATES - {"none"}
PENDING_STATES: frozenset[str] = frozenset({"queued", "awaiting_approval"})
OPENING: tuple[type[Event], ...] = (CallProposed, CallStarted, ApprovalRequested)

# Agents often report the refusal or the stop again in their own words; that is no second ending.
_ECHO: dict[str, tuple[type[Event], ...]] = {
    "denied": (CallFailed, CallCancelled),
    "cancelled": (CallFailed, CallCancelled),
}

# What the end of a turn does to the calls still open in it. Reasons not named here leave them a grace period.
TURN_CLOSES: dict[str, type[CallEnd]] = {"cancelled": CallCancelled, "error": CallLost, "eof": CallLost}

ANSWERED: dict[type[Event], str] = {
    ApprovalGranted: "granted",
    ApprovalRefused: "refused",
    ApprovalWithdrawn: "withdrawn",
}

APPROVAL_OPTIONS = [
    {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
    {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
]


def next_state(state: str, event: Event) -> CallState | None:
    """Where an event takes a call, or None when the table has no such step."""
    return TRANSITIONS[state].get(type(event))  # pyright: ignore[reportArgumentType]


def is_terminal(event: Event) -> bool:
    """Whether an applied event of this kind ends its call."""
    return isinstance(event, (*TERMINAL, ApprovalRefused, ApprovalWithdrawn))


def ending_mark(event: CallEnd) -> str:
    """What two endings are compared by: their kind, and what they say came out."""
    said = {"output": event.output, "error": event.error, "content": event.content}
    kept = {name: value for name, value in said.items() if value}
    blob = event.blob.hash if event.blob else ""
    return codec.digest(codec.encode([type_of(event), kept, blob]))


def classify_event(row: CallRecord | None, event: CallEvent) -> Verdict:
    """What an event is worth to the call it means."""
    state = row.state if row else "none"
    if row is not None and is_stale(row, event):
        return "late"
    if next_state(state, event) is not None:
        return "applied"
    if row is None:
        return "orphan"
    if state not in TERMINAL_STATES:
        return "illegal"
    again = isinstance(event, TERMINAL) and (
        isinstance(event, _ECHO.get(state, ())) or ending_mark(event) == row.ending
    )
    return "duplicate" if again else "late"


def is_stale(row: CallRecord, event: CallEvent) -> bool:
    """S3.6: whether somebody speaks for an open command who does not hold it: the attempt is the fence.

    While nobody has claimed it, an executor that only polls may finish it. One that waits for approval nobody may.
    """
    if row.state in TERMINAL_STATES or not _for_a_command(row, event):
        return False
    if row.state == "awaiting_approval":
        return True
    return _attempt(event) != (row.attempt if row.state == "running" else 0)


def came_stale(row: CallRecord, event: CallEvent) -> bool:
    """The same for one that has ended: its last attempt held it."""
    return _for_a_command(row, event) and _attempt(event) != row.attempt


def _for_a_command(row: CallRecord, event: CallEvent) -> bool:
    """Whether it is the word of whoever runs a command, which needs the fence."""
    return bool(row.client) and isinstance(event, CallCompleted | CallFailed | CallProgress)


def _attempt(event: CallEvent) -> int:
    return event.attempt if isinstance(event, CallEnd | CallProgress) else 0


def holds(row: CallRecord, attempt: int) -> bool:
    """Whether a command is in the hands of the worker that claimed it with this attempt."""
    return row.state == "running" and row.attempt == attempt


def expires_at(row: CallRecord) -> int:
    """When a call runs out of time, in ms; 0 if it does not, or as long as somebody is asked whether it may run."""
    return 0 if row.state == "awaiting_approval" else row.deadline


def deadline_of(row: CallRecord, event: CallEvent) -> int:
    """S3.4: a command's time is counted from its proposal, and anew from its approval; a deadline may also be told."""
    if isinstance(event, CallProposed):
        return event.deadline or row.deadline or (event.timeout and event.at + event.timeout)
    return event.at + row.timeout if isinstance(event, ApprovalGranted) and row.timeout else row.deadline


def given_up(row: CallRecord, reason: str) -> CallLost | CallRequeued:
    """What becomes of a call that nobody keeps alive any more: only a command that may run twice is given back."""
    again = row.client and row.idempotent and row.state == "running"
    return CallRequeued(call=row.id, reason=reason) if again else CallLost(call=row.id, reason=reason)


def classify_answer(row: CallRecord | None, approval: ApprovalRecord | None, event: ApprovalAnswer) -> Verdict:
    """An answer counts once, for the request that its call awaits."""
    if approval is None or row is None:
        return "orphan"
    if approval.state == "pending":
        return classify_event(row, event)
    same = approval.state == ANSWERED[type(event)] and approval.option == event.option
    return "duplicate" if same else "late"


def proposal_of(event: ApprovalRequested) -> CallProposed:
    """The proposal that a request for approval implies when nobody proposed the call before."""
    told = {name: getattr(event, name) for name in CallUpdate.__struct_fields__ if name not in Event.__struct_fields__}
    return CallProposed(**told, at=event.at, source=event.source)


def opening_mark(event: CallEvent) -> str:
    """What a repeated opening is compared by: everything it says, without the ledger's own additions."""
    if isinstance(event, ApprovalRequested):
        event = proposal_of(event)
    bare = msgspec.structs.replace(event, seq=0, at=0, source="", key="", verdict="applied", call="", reused=False)
    return codec.digest(encode_event(bare))


Meant = Literal["same", "new", "duplicate"]


def resolve_call(newest: CallRecord | None, event: CallEvent, turn: str) -> Meant:
    """Which call a foreign id means: the newest that bears it, or a new one (C2).

    A later turn or model round is looked at first: some agents count their ids anew in every turn and send the very
    same opening again, and that is another call.
    """
    if newest is None:
        return "new"
    ended = newest.state in TERMINAL_STATES
    if not isinstance(event, OPENING):
        return "same"
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
    """The id a foreign client sees: its own, unless an earlier call of the session had it."""
    return event.aliases[0].id if event.aliases and not event.reused else call


def scope_of(state: str, known: str, event: CallProposed) -> str:
    """Whether a call outlives its turn is settled by the event that makes it: messages that show it cannot follow."""
    return event.scope if state == "none" else known


def strip_mcp_prefix(name: str) -> str:
    """A tool's own name without the prefix of the MCP server that offers it (S2.5)."""
    if name[:5] != "mcp__":
        return name
    _, _, tool = name[5:].partition("__")
    return tool or name
