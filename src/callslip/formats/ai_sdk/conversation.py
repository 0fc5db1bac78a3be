"""The course of one conversation: turns, messages, steps and texts, chunk by chunk.

A turn begins with a prompt, or with a stream if no prompt was seen, and ends with `finish`. While a call waits for the
client, for an approval or for a result that the client brings, `finish` leaves the turn open: the client answers in the
message that it posts next, and the stream after that goes on with the same turn. Were the turn to end there, the ledger
would close the call before it can be answered.

A stream that begins again before it finished is a replay. What was told before is not told again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

from callslip.formats.ai_sdk import decode_calls
from callslip.formats.ai_sdk.account import Account
from callslip.formats.ai_sdk.decode_calls import Calls
from callslip.formats.ai_sdk.decode_messages import SPOKEN, user_message
from callslip.formats.ai_sdk.reading import leaves, mark
from callslip.formats.ai_sdk.wire import Chunk, UIMessage
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Event

Events: TypeAlias = list[Event]
Phase: TypeAlias = Literal["idle", "asked", "telling", "held"]

# What the reasons of `finish` are called here; one not named here keeps its own name.
ENDED = {
    "": "end_turn",
    "stop": "end_turn",
    "tool-calls": "end_turn",
    "length": "max_tokens",
    "content-filter": "refusal",
    "interrupted": "cancelled",
}
BADLY = ("error", "cancelled")

# What begins a message where no `start` came first: writers may leave it out.
OPENING = {
    *("start-step", "text-start", "reasoning-start"),
    *("tool-input-start", "tool-input-available", "tool-input-error"),
}
# What is news of a message that was told before: more than how a call of it went on.
NEWS = (ev.MessageDelta, ev.ThoughtDelta, ev.MessageUser, ev.CallProposed)


class Conversation:
    """`idle`: no turn is open. `asked`: a prompt came. `telling`: a stream is under way. `held`: it finished, and left
    the turn open."""

    def __init__(self, format: str, chunks: ev.Chunks) -> None:
        self.phase: Phase = "idle"
        self.message = Account()
        self.messages: dict[str, Account] = {}
        self.prompts: set[str] = set()
        self._calls = Calls(format)
        self._chunks: ev.Chunks = chunks
        self._text = ""
        self._due = False  # A message is told again whose turn is over: another begins if there is news.

    def read(self, chunk: Chunk) -> Events | None:
        """What a chunk says; None if it is not understood."""
        kind = as_str(chunk.get("type"))
        opens = kind in OPENING and (kind != "tool-input-start" or bool(identifier(chunk.get("toolCallId"))))
        begun = self._enter("") if opens and self.phase in ("idle", "asked") else []
        made = self._said(kind, chunk)
        if self._due and any(isinstance(event, NEWS) for event in made or ()):
            self._due = False
            begun = [ev.TurnStarted()]
        return None if made is None else begun + made

    def look_again(self, account: Account, chunks: list[Chunk]) -> Events:
        """What chunks tell of a message that is not under way."""
        before = self.message, self._text
        self.message, self._text = account, ""
        made = [event for chunk in chunks for event in self._said(as_str(chunk.get("type")), chunk) or []]
        account.go_on()
        self.message, self._text = before
        return made

    def _said(self, kind: str, chunk: Chunk) -> Events | None:
        if kind in Calls.KINDS:
            return self._calls.read(self.message, chunk)
        if kind.startswith("data-"):
            return self._data(kind, chunk)
        rule = self._RULES.get(kind)
        return rule[0](self, chunk) if rule else None

    def says_more(self, chunk: Chunk) -> bool:
        """Whether a chunk is to be kept whole beside what was made of it."""
        kind = as_str(chunk.get("type"))
        if kind in Calls.KINDS or kind == "tool-approval-response":
            return decode_calls.says_more(chunk)
        return kind in self._RULES and leaves(chunk, self._RULES[kind][1])

    # Turns

    def prompt(self, message: UIMessage) -> Events:
        """A person's message. Its turn has its id, so that whoever reads on later knows the turn."""
        identity = identifier(message.get("id"))
        self.prompts.update({identity} - {""})
        return [*self.begin(identity), user_message(message, identity)]

    def begin(self, turn: str = "") -> Events:
        """A turn; one that is still open is superseded, unless it is this one."""
        self.message.forget()
        self.phase, self.message, self._due, self._text = "asked", Account(), False, ""
        return [ev.TurnStarted(turn=turn)]

    def end(self, reason: str, detail: str = "") -> Events:
        """The turn is over, if there is one: a message that was only told again had none."""
        due, self._due, self._text, self.phase = self._due, False, "", "idle"
        return [] if due else [ev.TurnEnded(reason=reason, detail=detail)]

    def _finish(self, chunk: Chunk) -> Events | None:
        if self.phase == "idle":
            return None
        reason = as_str(chunk.get("finishReason"))
        reason = ENDED.get(reason, reason)
        if reason in BADLY or self._due or not self.message.waits():
            return self.end(reason)
        text, self._text, self.phase = self._text, "", "held"
        return [ev.MessageEnded()] if text else []

    def _abort(self, chunk: Chunk) -> Events | None:
        return None if self.phase == "idle" else self.end("cancelled", as_str(chunk.get("reason")))

    def _error(self, chunk: Chunk) -> Events | None:
        """The client reads no further than this."""
        return None if self.phase == "idle" else self.end("error", as_str(chunk.get("errorText")))

    # Messages

    def _start(self, chunk: Chunk) -> Events:
        """A stream: it goes on with the message that was left open, or it tells another, or one again."""
        identity = identifier(chunk.get("messageId"))
        if self.phase == "held" and self.messages.get(identity, self.message) is self.message:
            self.phase = "telling"
            self.message.go_on()
            self.call_it(identity)
            return []
        return self._enter(identity, whole=self.phase != "telling")

    def enter(self, identity: str) -> Events:
        """A whole message, which may be the one that was streamed without an id."""
        self.adopt(identity)
        return self._enter(identity)

    def _enter(self, identity: str, *, whole: bool = True) -> Events:
        phase, self.phase = self.phase, "telling"
        known = self.messages.get(identity)
        if known is not None:
            self.message, self._due = known, phase == "idle"
            known.read_again(whole=whole)
            return []
        self.message.forget()
        self.message = Account(identity, self.message.rounds() if phase == "held" else 0)
        self.call_it(identity)
        return [] if phase in ("asked", "held") else [ev.TurnStarted()]

    def adopt(self, identity: str) -> None:
        """The message that was told last has this id, if it was told without one."""
        if identity not in self.messages and not self.message.id and not self.message.is_empty():
            self.call_it(identity)

    def call_it(self, identity: str) -> None:
        """The message at hand has this id."""
        if identity:
            self.message.id = self.message.id or identity
            self.messages[identity] = self.message

    # Steps

    def _step(self, chunk: Chunk) -> Events:
        self.message.begin_step()
        return []

    def _step_finished(self, chunk: Chunk) -> Events:
        return []

    def _step_reset(self, chunk: Chunk) -> Events:
        """What was said of the step stays said; what comes next is said anew."""
        text, self._text = self._text, ""
        dropped = self._calls.dropped(self.message)
        return [ev.MessageEnded(), *dropped] if text else dropped

    # Texts

    def _text_started(self, chunk: Chunk) -> Events:
        kind, _, _ = chunk["type"].rpartition("-")
        self.message.begin_text(kind, as_str(chunk.get("id")))
        return []

    def _text_more(self, chunk: Chunk) -> Events | None:
        kind, _, _ = chunk["type"].rpartition("-")
        piece = chunk.get("delta")
        if not isinstance(piece, str):
            return None
        part = self.message.text(kind, as_str(chunk.get("id")))
        fresh, other = self.message.news(part, piece)
        if not fresh:
            return []
        before, self._text = self._text, part
        name = self.message.name(part)
        ended = [ev.MessageEnded()] if before and before != part and not name else []
        chunks: ev.Chunks = "cumulative" if other else self._chunks  # A replay may tell a text that was repaired.
        return [*ended, SPOKEN[kind](text=fresh, message_id=name, chunks=chunks)]

    def _text_ended(self, chunk: Chunk) -> Events:
        kind, _, _ = chunk["type"].rpartition("-")
        part = self.message.text(kind, as_str(chunk.get("id")))
        if part != self._text:
            return []
        self._text = ""
        return [ev.MessageEnded(message_id=self.message.name(part))]

    def _steered(self, chunk: Chunk) -> Events:
        """What a person said while the agent worked."""
        identity = identifier(chunk.get("id"))
        if identity in self.prompts:
            return []
        self.prompts.update({identity} - {""})
        return [user_message(chunk, identity)]

    # Parts of an application's own; two of them are ours

    def _data(self, kind: str, chunk: Chunk) -> Events | None:
        data = as_dict(chunk.get("data"))
        made: Event | None = None
        if kind == "data-plan" and set(data) == {"entries"} and isinstance(data["entries"], list):
            made = ev.PlanUpdated(entries=as_list(data["entries"]))
        elif kind == "data-mode" and set(data) == {"previousModeId", "newModeId"} and as_str(data["newModeId"]):
            made = ev.SessionMode(mode=data["newModeId"])
        if made is None:
            return None
        said = mark(chunk)
        known = said in self.message.marks
        self.message.marks.add(said)
        return [] if known and self.message.again else [made]

    def _responded(self, chunk: Chunk) -> Events | None:
        return self._calls.responded(chunk)

    _RULES: ClassVar[dict[str, tuple[Callable[[Any, Chunk], Events | None], set[str]]]] = {
        "start": (_start, {"type", "messageId"}),
        "finish": (_finish, {"type", "finishReason"}),
        "abort": (_abort, {"type", "reason"}),
        "error": (_error, {"type", "errorText"}),
        "start-step": (_step, {"type"}),
        "finish-step": (_step_finished, {"type"}),
        "reset-step": (_step_reset, {"type"}),
        **dict.fromkeys(("text-start", "reasoning-start"), (_text_started, {"type", "id"})),
        **dict.fromkeys(("text-delta", "reasoning-delta"), (_text_more, {"type", "id", "delta"})),
        **dict.fromkeys(("text-end", "reasoning-end"), (_text_ended, {"type", "id"})),
        "steering-message": (_steered, {"type", "id", "parts"}),
        "tool-approval-response": (_responded, set()),
    }
