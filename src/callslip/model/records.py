"""Records of sessions, calls, approvals and other tables, which writes and queries read.

They are projections of the log, written in the same transaction as the events, so that a write never has to fold a
session. All their fields follow from the log except those in OPERATIONAL.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from callslip.model import codec
from callslip.model.summaries import SessionState, UsageTotals

T = TypeVar("T")


def record_text(text: str) -> str:
    """Return a text as records have it: NUL, which PostgreSQL cannot store in a text, becomes U+FFFD.

    The event keeps the text as it was. Ids and names need no change, because `check_id` refuses NUL.
    """
    return text.replace("\0", "\ufffd") if "\0" in text else text


class HeldText(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a streamed text that may begin a secret, held back until more of it arrives or until `due` (ms).

    `tail` is the carry of the redactor, `event` the chunk to append it with. `length` and `digest` identify the chunk
    whose end it is, to recognize a cumulative chunk that repeats it. The chunk itself is not stored, as it may contain
    a secret. After a release `shown` is the text that was released, `carry` the carry with it, and `tail` only what is
    held since, so that an older version releases nothing twice. `text` is redacted text before `tail`, if a chunk is
    held in full.
    """

    tail: str
    length: int
    digest: str
    event: bytes
    text: str = ""
    due: int = 0
    carry: str = ""
    shown: str = ""


class SessionRecord(msgspec.Struct, gc=False):
    """A session.

    `last_seq` is its newest event, `pruned_seq` the last one that retention removed, `turn` its open turn or "".
    `message` is the newest message id. `carry` has the held text of each stream, and which texts of the session
    file may still arrive live; it is replaced, never mutated. `owner` is the first owner in the log, `labels` are the
    newest labels.
    """

    name: str
    id: int = 0
    last_seq: int = 0
    pruned_seq: int = 0
    turn: str = ""
    turns: int = 0
    title: str = ""
    calls: int = 0
    message: str = ""
    carry: dict[str, HeldText] = {}
    created_at: int = 0
    updated_at: int = 0
    owner: str = ""
    labels: Any = None
    turn_owner: str = ""

    @property
    def release_at(self) -> int:
        """When the first of the held texts must be released, in ms; 0 if none must."""
        return min((held.due for held in self.carry.values() if held.due), default=0) if self.carry else 0


def hold_text(session: SessionRecord, stream: str, held: HeldText | None) -> None:
    """Replace the held text of a stream, or remove it."""
    others = {name: other for name, other in session.carry.items() if name != stream}
    session.carry = {**others, stream: held} if held is not None else others


class ListedSession(SessionRecord, kw_only=True, gc=False):
    """A session in a list, with what its summary says. `pending` counts the open calls that wait for an approval."""

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


class CallRecord(msgspec.Struct, gc=False):
    """A call. One with a `client` is a command.

    `owner` and `lease` keep it alive. `change` grows with every write to a command, so that an older record of it
    is known from a newer one.
    """

    id: str
    session: str
    entry: int
    state: str = "none"
    client_call_id: str = ""
    tool: str = ""
    title: str = ""
    kind: str = ""
    source: str = ""
    turn: str = ""
    iteration: int = -1
    index: int = -1
    scope: str = "turn"
    idempotent: bool = False
    attempt: int = 0
    worker: str = ""
    approval: str = ""
    opening: str = ""
    ending: str = ""
    input_mark: str = ""
    deadline: int = 0
    created_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    end: int = 0
    reason: str = ""
    owner: str = ""
    lease: int = 0
    client: str = ""
    timeout: int = 0
    change: int = 0


class ApprovalRecord(msgspec.Struct, gc=False):
    """A request for approval and its answer.

    `answer_at` is read from the event of a pending request: the program in which a person must answer, "" if here.
    """

    id: str
    session: str
    call: str
    entry: int
    state: str = "pending"
    input_mark: str = ""
    attempt: int = 0
    description: str = ""
    options: list[Any] = []
    expires_at: int = 0
    created_at: int = 0
    answered_at: int = 0
    option: str = ""
    by: str = ""
    reason: str = ""
    answer_at: str = ""

    @property
    def input_hash(self) -> str:
        """A digest of what a person sees before an answer: the call, its arguments and the options."""
        return codec.digest(codec.encode([self.call, self.attempt, self.input_mark, self.description, self.options]))


class AliasRecord(msgspec.Struct, gc=False):
    """A foreign id and the newest call of the session that has it."""

    session: str
    ns: str
    id: str
    call: str


class KeyRecord(msgspec.Struct, gc=False):
    """An idempotency key with the digest of its draft and the event that was written for it."""

    session: str
    key: str
    mark: str
    seq: int


class ConversationName(NamedTuple):
    """What identifies a posted conversation: bodies that share all of it belong together."""

    session: str
    format: str
    caller: str


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a posted conversation: the state of its decoders, and the bodies after it.

    `version` changes with every body, and differs between conversations of one name. `state_version` is the version
    that the state was stored with, 0 for none. `claimed_by` alone may write until `claimed_until`.
    """

    chunks: str = ""
    version: int = 0
    state_version: int = 0
    state: bytes = b""
    claimed_by: str = ""
    claimed_until: int = 0


class ConversationChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a body changes in a conversation; without any field set, only its version and its claim.

    `input` is added to the stored bodies. `state` replaces the state; if `drops_inputs`, the bodies are not needed any
    more. `is_ended`: the conversation is deleted.
    """

    chunks: str = ""
    input: bytes = b""
    state: bytes = b""
    drops_inputs: bool = False
    is_ended: bool = False
    claimed_by: str = ""
    claimed_until: int = 0


class PostRecord(msgspec.Struct, frozen=True):
    """The idempotency key of a posted body, with the digest of the body and the answer to it."""

    session: str
    key: str
    mark: str
    answer: bytes


class OwnerRecord(msgspec.Struct, gc=False):
    """A process or connection that keeps its calls alive until `until`."""

    id: str
    until: int


class TokenRecord(msgspec.Struct, frozen=True):
    """An access token. Only its hash is stored.

    An empty `session` means all sessions, an `expires_at` of 0 means never.
    """

    id: str
    hash: str
    label: str
    session: str
    verbs: tuple[str, ...]
    created_at: int
    expires_at: int = 0


class RuleRecord(msgspec.Struct, frozen=True):
    """A saved rule, which answers requests for approval.

    `filters` are those of a rule in a policy file. The rule is for the session or the project folder `scope_value`, or
    for everything. It ends at `expires_at` in ms, 0 for never, or once `uses_left` is 0; -1 is no limit.
    """

    id: str
    action: Literal["allow", "ask", "deny"]
    filters: dict[str, Any]
    reason: str = ""
    scope: Literal["session", "project", "everywhere"] = "everywhere"
    scope_value: str = ""
    expires_at: int = 0
    uses_left: int = -1
    created_at: int = 0
    created_by: str = ""
    used_at: int = 0
    uses: int = 0

    def is_active(self, now: int) -> bool:
        """Return whether the rule may answer at a time in ms."""
        return self.uses_left != 0 and (not self.expires_at or now < self.expires_at)


OPERATIONAL = ("owner", "lease", "change")
"""The fields of a call that do not follow from the log."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some records of a list, and the cursor to the next ones ("" at the end).

    A list of sessions that is not complete lacks some of what was written last; it is soon.
    """

    items: list[T]
    cursor: str = ""
    is_complete: bool = True
