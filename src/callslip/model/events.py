"""Every fact the log can hold, as frozen structs in one tagged union.

An event names what happened, in the past tense, and who may assert it is in its docstring. A draft is the same struct
before the ledger gave it `seq`, `at`, `source` and `verdict`. On the wire the fields are camelCase and defaults are
left out; UNSET marks a field that the producer did not mention, so absent and null stay apart (C10).
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from callslip.errors import CorruptDataError, InvalidInputError
from callslip.model import codec

Verdict = Literal["applied", "duplicate", "late", "orphan", "illegal", "witness"]
Chunks = Literal["auto", "delta", "cumulative", "dedupe"]
Maybe: TypeAlias = str | UnsetType | None
MaybeJson: TypeAlias = Any


class Alias(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A foreign id of a call: the namespace it comes from, and the id as that producer writes it."""

    ns: str
    id: str


class Blob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Where the whole of a value is kept that was too large to stand in the event."""

    hash: str
    size: int
    media: str = "text/plain"


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="type",
    rename="camel",
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=False,
):
    """The envelope. `seq` and `verdict` are the ledger's; `at` is the source's time in ms if it gives one."""

    seq: int = 0
    at: int = 0
    source: str = ""
    key: str = ""
    verdict: Verdict = "applied"


# Session


class SessionCapabilities(Event, frozen=True, tag="session.capabilities"):
    """The agent says which modes, models and options it offers. RULE 7."""

    modes: list[Any] = []
    models: list[Any] = []
    current_mode: str = ""
    current_model: str = ""
    options: list[Any] = []


class SessionCommands(Event, frozen=True, tag="session.commands"):
    """The agent lists the commands a person may type. RULE 12."""

    commands: list[Any]


class SessionMode(Event, frozen=True, tag="session.mode"):
    """The agent or a person switched the mode. RULE 11."""

    mode: str


class SessionInfo(Event, frozen=True, tag="session.info"):
    """Anybody tells more about the session: title, usage, options. What is absent stays as it was.

    `owner` counts only where nobody was named before: whose a session is never changes.
    """

    title: Maybe = UNSET
    usage: MaybeJson = UNSET
    options: MaybeJson = UNSET
    notice: MaybeJson = UNSET
    labels: MaybeJson = UNSET
    owner: str | UnsetType = UNSET


# Turns


class TurnStarted(Event, frozen=True, tag="turn.started"):
    """A person's prompt began to be worked on."""

    turn: str = ""


class TurnEnded(Event, frozen=True, tag="turn.ended"):
    """The agent stopped working on the prompt, or the line to it was lost."""

    turn: str = ""
    reason: str = "end_turn"
    detail: str = ""


# Text


class MessageUser(Event, frozen=True, tag="message.user"):
    """A person said this. RULE 8."""

    text: str
    message_id: str = ""
    content: MaybeJson = UNSET


class MessageDelta(Event, frozen=True, tag="message.delta"):
    """The agent said some more. RULE 1."""

    text: str
    message_id: str = ""
    chunks: Chunks = "auto"


class ThoughtDelta(Event, frozen=True, tag="thought.delta"):
    """The agent thought some more. RULE 9."""

    text: str
    message_id: str = ""
    chunks: Chunks = "auto"


class MessageEnded(Event, frozen=True, tag="message.ended"):
    """The text that was streaming is whole. RULE 2."""

    message_id: str = ""


class PlanUpdated(Event, frozen=True, tag="plan.updated"):
    """The agent states its whole plan anew. RULE 10."""

    entries: list[Any]


# Calls


class CallEvent(Event, frozen=True, kw_only=True):
    """Names a call: by execution id, or in a draft by alias. `reused` and `entry` are the ledger's.

    `reused`: an earlier call of the session had the same foreign id. `entry`: where the call stands, for `late` ones.
    """

    call: str = ""
    aliases: tuple[Alias, ...] = ()
    reused: bool = False
    entry: int = 0


class CallUpdate(CallEvent, frozen=True, kw_only=True):
    """What any message about a call may tell of it. Absent erases nothing; null clears (C10)."""

    tool_name: Maybe = UNSET
    raw_tool_name: Maybe = UNSET
    title: Maybe = UNSET
    kind: Maybe = UNSET
    input: MaybeJson = UNSET
    content: MaybeJson = UNSET
    locations: MaybeJson = UNSET


class CallProposed(CallUpdate, frozen=True, tag="call.proposed"):
    """The model, or whoever submits a command, wants this call. Queued. RULE 3.

    With a `client` it is a command: executors of that name take it up, within `timeout` ms of being queued.
    """

    iteration: int = -1
    index: int = -1
    scope: Literal["turn", "detached"] = "turn"
    deadline: int = 0
    idempotent: bool = False
    client: str = ""
    timeout: int = 0


class CallInputDelta(CallEvent, frozen=True, tag="call.inputDelta"):
    """The model wrote some more of the arguments."""

    text: str


class CallInput(CallUpdate, frozen=True, tag="call.input"):
    """The arguments are whole."""


class CallStarted(CallUpdate, frozen=True, tag="call.started"):
    """Whoever executes the call began. Running."""

    attempt: int = 0
    worker: str = ""


class CallRequeued(CallEvent, frozen=True, tag="call.requeued"):
    """The ledger took the call back from a worker that died. Queued again."""

    reason: str = ""


class CallProgress(CallUpdate, frozen=True, tag="call.progress"):
    """Whoever executes the call tells more. `text` is output to append. RULE 4."""

    text: str = ""
    progress: MaybeJson = UNSET
    exit_status: MaybeJson = UNSET
    attempt: int = 0


class CallEnd(CallUpdate, frozen=True):
    """How a call ended. Terminal: nothing later changes it. `attempt` is the claim on a command that this is of."""

    reason: str = ""
    exit_status: MaybeJson = UNSET
    output: MaybeJson = UNSET
    error: MaybeJson = UNSET
    blob: Blob | None = None
    attempt: int = 0


class CallCompleted(CallEnd, frozen=True, tag="call.completed"):
    """Whoever executes the call says it is done."""


class CallFailed(CallEnd, frozen=True, tag="call.failed"):
    """Whoever executes the call says it went wrong."""


class CallDenied(CallEnd, frozen=True, tag="call.denied"):
    """A person or a policy refused the call without a recorded request."""


class CallCancelled(CallEnd, frozen=True, tag="call.cancelled"):
    """A person, a client or the end of the turn stopped the call."""


class CallExpired(CallEnd, frozen=True, tag="call.expired"):
    """The ledger found the deadline passed."""


class CallLost(CallEnd, frozen=True, tag="call.lost"):
    """The ledger found nobody left who could finish the call."""


# Approvals


class ApprovalRequested(CallUpdate, frozen=True, tag="approval.requested"):
    """An agent, or a tool of ours, asks whether the call may run. RULE 5.

    `schema` is the JSON Schema of the tool's arguments: what an edited input must fit, whoever edits it.
    """

    approval: str = ""
    description: str = ""
    options: list[Any] = []
    expires_at: int = 0
    schema: MaybeJson = None


class ApprovalAnswer(CallEvent, frozen=True):
    """An answer to a request. `by` says whose. RULE 6."""

    approval: str = ""
    option: str = ""
    by: str = ""
    reason: str = ""


class ApprovalGranted(ApprovalAnswer, frozen=True, tag="approval.granted"):
    """The call may run; with `input`, with these arguments instead."""

    input: MaybeJson = UNSET


class ApprovalRefused(ApprovalAnswer, frozen=True, tag="approval.refused"):
    """The call may not run; the reason is for the model to read."""


class ApprovalWithdrawn(ApprovalAnswer, frozen=True, tag="approval.withdrawn"):
    """Whoever asked does not ask any more."""


class Raw(Event, frozen=True, tag="raw"):
    """A message that no decoder understood, whole."""

    format: str = ""
    body: MaybeJson = None
    blob: Blob | None = None


AnyEvent = (
    SessionCapabilities
    | SessionCommands
    | SessionMode
    | SessionInfo
    | TurnStarted
    | TurnEnded
    | MessageUser
    | MessageDelta
    | ThoughtDelta
    | MessageEnded
    | PlanUpdated
    | CallProposed
    | CallInputDelta
    | CallInput
    | CallStarted
    | CallRequeued
    | CallProgress
    | CallCompleted
    | CallFailed
    | CallDenied
    | CallCancelled
    | CallExpired
    | CallLost
    | ApprovalRequested
    | ApprovalGranted
    | ApprovalRefused
    | ApprovalWithdrawn
    | Raw
)

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in AnyEvent.__args__}
TERMINAL: tuple[type[CallEnd], ...] = (CallCompleted, CallFailed, CallDenied, CallCancelled, CallExpired, CallLost)
CHUNKS = (MessageDelta, ThoughtDelta)
STREAMED = (*CHUNKS, CallInputDelta, CallProgress)
Streamed: TypeAlias = MessageDelta | ThoughtDelta | CallInputDelta | CallProgress

MAY_BE_LARGE = frozenset[type[Event]]((*TERMINAL, Raw))
"""The events of which a field may be kept as a blob."""

parse_event = msgspec.json.Decoder(AnyEvent).decode
encode_event = msgspec.json.Encoder().encode


def blob_of(event: Event) -> Blob | None:
    """The blob that holds the whole of what this event shows the beginning of."""
    if type(event) not in MAY_BE_LARGE:
        return None
    assert isinstance(event, CallEnd | Raw)
    return event.blob


_told = codec.reader(Any, "an event")
_ENVELOPE = {"seq": int, "at": int, "source": str, "key": str}


def decode_event(body: bytes) -> Event:
    """A stored event. One of a kind or shape that only a newer version knows is kept whole, as `raw` (C11)."""
    try:
        return parse_event(body)
    except codec.UNREADABLE:
        found = _told(body)
        told = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        same = {name: told[name] for name in _ENVELOPE if type(told.get(name)) is _ENVELOPE[name]}
        if "seq" not in same:
            raise CorruptDataError("an event cannot be read: it has no seq") from None
        return Raw(format="events", body=told, **same)


def read_event(body: Any) -> Event:
    """Convert decoded JSON to an event, or raise InvalidInputError that names the invalid field."""
    if not isinstance(body, dict):
        raise InvalidInputError("event", "must be a JSON object")
    kind = cast("dict[str, object]", body).get("type")
    if not isinstance(kind, str) or kind not in EVENT_TYPES:
        raise InvalidInputError("type", f"unknown event type {str(kind)[:100]!r}")
    try:
        return msgspec.convert(body, EVENT_TYPES[kind])
    except msgspec.ValidationError as error:
        raise InvalidInputError(*locate_error(error)) from error


_MISSING_FIELD = re.compile(r"missing required field `(\w+)`")


def locate_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split a message such as "Expected `int`, got `str` - at `$.seq`" into field and problem."""
    problem, _, path = str(error).partition(" - at `$")
    missing = _MISSING_FIELD.search(problem)
    return path.strip("`.") or (missing[1] if missing else "event"), problem


def type_of(event: Event) -> str:
    """The word that stands in the event's `type`."""
    return str(type(event).__struct_config__.tag)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event on its way in.

    `mark` is a digest of the foreign message it came from: what an idempotency key and a repeated opening compare.
    `witness` says that it comes from an agent's replay of what it did before (S2.11).
    """

    event: Event
    key: str = ""
    mark: str = ""
    witness: bool = False
