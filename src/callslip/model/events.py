"""All events of the log, as frozen structs in one tagged union.

A draft is the same struct before the ledger sets `seq`, `at`, `source` and `verdict`. In JSON the fields are camelCase
and defaults are left out. UNSET is the value of a field that the source did not send, which differs from null.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from callslip.errors import CorruptDataError, InvalidInputError
from callslip.model import codec

Verdict = Literal["applied", "duplicate", "late", "orphan", "illegal", "witness"]
Chunks = Literal["auto", "delta", "cumulative", "dedupe"]
Maybe: TypeAlias = str | UnsetType | None
MaybeJson: TypeAlias = Any
MAX_TOKENS, MAX_COST = 10**12, 10**9
"""The most tokens and the highest cost of one response, so that no sum of them is too large to be stored."""
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Cost: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MAX_COST)]


class Alias(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An id of a call in a foreign system, and the namespace of that system."""

    ns: str
    id: str


class Blob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A reference to the full value of a field that is too large for the event.

    `fields` are the fields it belongs to: none for `output`, or `body` of a raw message. If there are several, it is a
    JSON object with the value of each.
    """

    hash: str
    size: int
    media: str = "text/plain"
    fields: tuple[str, ...] = ()


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
    """The common fields. `seq` and `verdict` are set by the ledger; `at` is the time of the source in ms, if known."""

    seq: int = 0
    at: int = 0
    source: str = ""
    key: str = ""
    verdict: Verdict = "applied"


# Session


class SessionCapabilities(Event, frozen=True, tag="session.capabilities"):
    """The agent lists its modes, models and options. RULE 7."""

    modes: list[Any] = []
    models: list[Any] = []
    current_mode: str = ""
    current_model: str = ""
    options: list[Any] = []


class SessionCommands(Event, frozen=True, tag="session.commands"):
    """The agent lists the commands that the user can type. RULE 12."""

    commands: list[Any]


class SessionMode(Event, frozen=True, tag="session.mode"):
    """The agent or the user changed the mode. RULE 11."""

    mode: str


class SessionInfo(Event, frozen=True, tag="session.info"):
    """Info about the session changed: title, usage, options. Absent fields keep their values.

    The first `owner` is final; later ones are ignored. `agent` is the program, `project` the folder that it works in,
    `branch` the branch of that folder. `foreignId` is the agent's own id of the session, and `continues` that of the
    session from which it was forked. `ended`: the agent's program has ended; the next turn continues the session.
    """

    title: Maybe = UNSET
    agent: Maybe = UNSET
    agent_version: Maybe = UNSET
    model: Maybe = UNSET
    project: Maybe = UNSET
    branch: Maybe = UNSET
    foreign_id: str | UnsetType = UNSET
    continues: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET
    usage: MaybeJson = UNSET
    options: MaybeJson = UNSET
    notice: MaybeJson = UNSET
    labels: MaybeJson = UNSET
    owner: str | UnsetType = UNSET


# Turns


class TurnStarted(Event, frozen=True, tag="turn.started"):
    """The agent started to work on a prompt."""

    turn: str = ""


class TurnEnded(Event, frozen=True, tag="turn.ended"):
    """The agent stopped working on the prompt, or the connection to it was lost."""

    turn: str = ""
    reason: str = "end_turn"
    detail: str = ""


# Text


class MessageUser(Event, frozen=True, tag="message.user"):
    """The user sent a message. RULE 8. `namesMessage`: it is a stored message, whose id other programs use.

    With a `parent` it is the prompt of a sub-agent, which that call started.
    """

    text: str
    message_id: str = ""
    content: MaybeJson = UNSET
    names_message: bool = False
    parent: str = ""


class MessageDelta(Event, frozen=True, tag="message.delta"):
    """The agent wrote a chunk of a message. RULE 1.

    The ledger may write a chunk as two events, as its end may begin a secret: `partial` is the first, `rest` the other.
    `namesMessage`: the message id and the time are those of a stored message that contains all of the turn. With a
    `parent` a sub-agent wrote it; it then has a message id.
    """

    text: str
    message_id: str = ""
    chunks: Chunks = "auto"
    partial: bool = False
    rest: bool = False
    names_message: bool = False
    parent: str = ""


class ThoughtDelta(Event, frozen=True, tag="thought.delta"):
    """The agent wrote a chunk of a thought. RULE 9. All fields are as in `message.delta`."""

    text: str
    message_id: str = ""
    chunks: Chunks = "auto"
    partial: bool = False
    rest: bool = False
    names_message: bool = False
    parent: str = ""


class MessageEnded(Event, frozen=True, tag="message.ended"):
    """The streaming text is complete. RULE 2."""

    message_id: str = ""


class PlanUpdated(Event, frozen=True, tag="plan.updated"):
    """The agent replaced its plan. RULE 10."""

    entries: list[Any]


# Usage


class UsageReported(Event, frozen=True, tag="usage.reported"):
    """The agent reported the tokens of one response of a model. Of several reports with one `id` the last counts.

    A report without an `id` counts by itself. `inputTokens` includes those that were read from the cache
    (`cachedTokens`) and written to it (`cacheWriteTokens`), `outputTokens` includes `reasoningTokens`. `cost` is what
    the agent states, in `currency`. `incomplete`: the response was interrupted, or the agent reported only a part.
    `ofTurn`: it is the sum of a turn, which counts only in a session without reports of single responses. With a
    `parent` a sub-agent used them.
    """

    id: str = ""
    model: str = ""
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0
    reasoning_tokens: Tokens = 0
    cost: Cost | None = None
    currency: str = ""
    incomplete: bool = False
    of_turn: bool = False
    parent: str = ""


# Calls


class CallEvent(Event, frozen=True, kw_only=True):
    """An event about a call, which is identified by its id or, in a draft, by an alias.

    `reused` and `entry` are set by the ledger: whether an earlier call of the session had the same foreign id, and the
    entry of the call if the event is about a call that has ended: a `late` one, an agent's own report of a call that
    was denied or cancelled, or `call.reported`.
    """

    call: str = ""
    aliases: tuple[Alias, ...] = ()
    reused: bool = False
    entry: int = 0


class CallUpdate(CallEvent, frozen=True, kw_only=True):
    """Fields of a call that an event can set. Absent fields keep their values; null clears a field.

    `parent` is the call whose sub-agent made this call, or the sub-agent's foreign id if that call is not known. The
    first one is final. Each event of this kind also has `blob`, the full value of a field that is too large and of
    which it has a preview.
    """

    tool_name: Maybe = UNSET
    raw_tool_name: Maybe = UNSET
    title: Maybe = UNSET
    kind: Maybe = UNSET
    input: MaybeJson = UNSET
    content: MaybeJson = UNSET
    locations: MaybeJson = UNSET
    parent: str = ""


class CallProposed(CallUpdate, frozen=True, tag="call.proposed"):
    """A model or a client requested the call. It is queued. RULE 3.

    With a `client` it is a command: a worker of that client runs it, within `timeout` ms.
    """

    iteration: int = -1
    index: int = -1
    scope: Literal["turn", "detached"] = "turn"
    deadline: int = 0
    idempotent: bool = False
    client: str = ""
    timeout: int = 0
    blob: Blob | None = None


class CallInputDelta(CallEvent, frozen=True, tag="call.inputDelta"):
    """The model wrote a chunk of the arguments."""

    text: str


class CallInput(CallUpdate, frozen=True, tag="call.input"):
    """The arguments are complete."""

    blob: Blob | None = None


class CallStarted(CallUpdate, frozen=True, tag="call.started"):
    """The call started. It is running."""

    attempt: int = 0
    worker: str = ""
    blob: Blob | None = None


class CallRequeued(CallEvent, frozen=True, tag="call.requeued"):
    """The ledger took the call back from a dead worker. It is queued again."""

    reason: str = ""


class CallProgress(CallUpdate, frozen=True, tag="call.progress"):
    """The running call reported progress. `text` is output to append. RULE 4."""

    text: str = ""
    progress: MaybeJson = UNSET
    exit_status: MaybeJson = UNSET
    attempt: int = 0
    blob: Blob | None = None


class CallEnd(CallUpdate, frozen=True):
    """The call ended, and no later event changes it. `attempt` identifies the claim of the worker on a command.

    `cut_bytes` is how much of the output its producer left out: it is not stored anywhere. `duration_ms` is how long
    the call took, as its producer reports it.
    """

    reason: str = ""
    exit_status: MaybeJson = UNSET
    output: MaybeJson = UNSET
    error: MaybeJson = UNSET
    blob: Blob | None = None
    cut_bytes: int = 0
    attempt: int = 0
    duration_ms: int | float | UnsetType = UNSET


class CallCompleted(CallEnd, frozen=True, tag="call.completed"):
    """The call completed."""


class CallFailed(CallEnd, frozen=True, tag="call.failed"):
    """The call failed."""


class CallDenied(CallEnd, frozen=True, tag="call.denied"):
    """A person or a policy refused the call without a recorded request."""


class CallCancelled(CallEnd, frozen=True, tag="call.cancelled"):
    """A person, a client or the end of the turn stopped the call."""


class CallExpired(CallEnd, frozen=True, tag="call.expired"):
    """The deadline of the call passed."""


class CallLost(CallEnd, frozen=True, tag="call.lost"):
    """The owner of the call is gone."""


class CallReported(CallEvent, frozen=True, tag="call.reported"):
    """The agent's own record of a call that has completed or was lost says more, for example that its command failed.

    It changes no state. RULE 4.
    """

    text: str = ""
    exit_status: MaybeJson = UNSET


# Approvals


class ApprovalRequested(CallUpdate, frozen=True, tag="approval.requested"):
    """The agent or a tool requested approval for the call. RULE 5.

    `request_id` is the id of the request in the protocol of the agent. `schema` is the JSON Schema of the arguments,
    which edited arguments must match. `requested_by` is the id of the
    caller that posted the request to a server; the ledger sets it. `answer_at` is the program in which a person must
    answer, for example "the ACP client", if an answer given here would not reach the agent.
    """

    approval: str = ""
    request_id: str | int | UnsetType = UNSET
    description: str = ""
    options: list[Any] = []
    expires_at: int = 0
    schema: MaybeJson = None
    requested_by: str = ""
    answer_at: str = ""
    blob: Blob | None = None


class ApprovalAnswer(CallEvent, frozen=True):
    """An answer to a request for approval. `by` is who answered. RULE 6."""

    approval: str = ""
    option: str = ""
    by: str = ""
    reason: str = ""


class ApprovalGranted(ApprovalAnswer, frozen=True, tag="approval.granted"):
    """The call may run, with the arguments in `input` if there are any.

    `title` is the title of the call with these arguments; the ledger sets it.
    """

    input: MaybeJson = UNSET
    title: Maybe = UNSET


class ApprovalRefused(ApprovalAnswer, frozen=True, tag="approval.refused"):
    """The call may not run. The reason is for the model."""


class ApprovalWithdrawn(ApprovalAnswer, frozen=True, tag="approval.withdrawn"):
    """The request was withdrawn."""


class ApprovalReleased(ApprovalAnswer, frozen=True, tag="approval.released"):
    """The agent's own program has the answer to the request, or asks for it. Its report of the call tells which it is.

    Only agents that run their calls themselves can be left to answer.
    """


class Raw(Event, frozen=True, tag="raw"):
    """A message that no decoder understood, unchanged."""

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
    | UsageReported
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
    | CallReported
    | ApprovalRequested
    | ApprovalGranted
    | ApprovalRefused
    | ApprovalWithdrawn
    | ApprovalReleased
    | Raw
)

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in AnyEvent.__args__}
TERMINAL: tuple[type[CallEnd], ...] = (CallCompleted, CallFailed, CallDenied, CallCancelled, CallExpired, CallLost)
CHUNKS = (MessageDelta, ThoughtDelta)
STREAMED = (*CHUNKS, CallInputDelta, CallProgress)
Streamed: TypeAlias = MessageDelta | ThoughtDelta | CallInputDelta | CallProgress

_ALWAYS_LARGE = frozenset[type[Event]]((*TERMINAL, Raw))

parse_event = msgspec.json.Decoder(AnyEvent).decode
encode_event = msgspec.json.Encoder().encode


def may_be_large(event: Event) -> bool:
    """Return whether an event has a field that is stored as a blob if it is large."""
    return type(event) in _ALWAYS_LARGE or (isinstance(event, CallUpdate) and bool(event.content))


def blob_of(event: Event) -> Blob | None:
    """Return the blob with the full value of a field of this event, if there is one."""
    return getattr(event, "blob", None)


def read_blob(blob: Blob, data: bytes) -> dict[str, Any]:
    """Return the values in a blob by their fields. A single value without a field is the `output`."""
    value = msgspec.json.decode(data) if blob.media == "application/json" else data.decode("utf-8", "replace")
    names = [name for name in blob.fields if name in ("output", "content")]
    if len(names) < 2:
        return {names[0] if names else "output": value}
    values = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {name: values[name] for name in names if name in values}


_decode_json = codec.stored_decoder(Any, "an event")
_COMMON_FIELDS = {"seq": int, "at": int, "source": str, "key": str}


def decode_event(body: bytes) -> Event:
    """Decode a stored event. An event of a newer version becomes `raw`, with its content unchanged."""
    try:
        return parse_event(body)
    except codec.DECODE_ERRORS:
        value = _decode_json(body)
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        common = {name: fields[name] for name, kind in _COMMON_FIELDS.items() if type(fields.get(name)) is kind}
        if "seq" not in common:
            raise CorruptDataError("an event cannot be read: it has no seq") from None
        return Raw(format="events", body=fields, **common)


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
    """Return the `type` tag of an event."""
    return str(type(event).__struct_config__.tag)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event to append.

    `mark` is a digest of the foreign message that it comes from, which is compared for an idempotency key and for a
    repeated opening of a call. `witness` is set if the event comes from the agent's replay of an earlier session, or
    from the history of a client. `adds` is what it may add to the log: each event that is not recorded, whole turns
    (all drafts of the replay must be in one write), or nothing. `parent` is a foreign id of the call whose sub-agent
    the event comes from; the ledger finds the call.
    """

    event: Event
    key: str = ""
    mark: str = ""
    witness: bool = False
    adds: Literal["events", "turns", "nothing"] = "events"
    parent: Alias | None = None


def replace_fields(drafts: list[Draft], kind: type[Event], **fields: Any) -> list[Draft]:
    """Return drafts with these fields set in all events of a type."""
    replace = msgspec.structs.replace
    return [
        replace(draft, event=replace(draft.event, **fields)) if isinstance(draft.event, kind) else draft
        for draft in drafts
    ]
