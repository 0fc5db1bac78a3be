"""One conversation chunk by chunk: turns, messages, steps and texts.

A turn begins with a prompt, or with a stream if there was no prompt, and ends with `finish`. While a call waits for the
client, for an approval or for a result, `finish` leaves the turn open: the client answers in the message that it posts
next, and the stream after that continues the turn. Otherwise the ledger would close the call before it can be answered.

A stream that begins again before it finished is a replay. It gives no event twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

from callslip.formats.ai_sdk import decode_calls
from callslip.formats.ai_sdk.decode_calls import Calls
from callslip.formats.ai_sdk.decode_messages import DELTA_TYPES, read_metadata, user_message
from callslip.formats.ai_sdk.message_state import MessageState
from callslip.formats.ai_sdk.wire import Chunk, UIMessage
from callslip.formats.base import Events
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields, identifier, value_digest
from callslip.model import events as ev
from callslip.model.events import Event

Phase: TypeAlias = Literal["idle", "prompted", "streaming", "held"]

# The reasons of `turn.ended` for those of `finish`; others are the same.
REASONS = {
    "": "end_turn",
    "stop": "end_turn",
    "tool-calls": "end_turn",
    "length": "max_tokens",
    "content-filter": "refusal",
    "interrupted": "cancelled",
}
FAILURES = ("error", "cancelled")

# Chunks that begin a message without a `start`, which producers may omit.
OPENING = {
    *("start-step", "text-start", "reasoning-start"),
    *("tool-input-start", "tool-input-available", "tool-input-error"),
}
# Events that are new content of a repeated message, not only the progress of a call.
NEW_CONTENT = (ev.MessageDelta, ev.ThoughtDelta, ev.MessageUser, ev.CallProposed)


class Conversation:
    """`idle`: no turn is open. `prompted`: a prompt arrived. `streaming`: a stream is in progress. `held`: it finished
    and left the turn open."""

    def __init__(self, format: str, chunks: ev.Chunks) -> None:
        self.phase: Phase = "idle"
        self.message = MessageState()
        self.messages: dict[str, MessageState] = {}
        self.prompts: set[str] = set()
        self._calls = Calls(format)
        self._chunks: ev.Chunks = chunks
        self._open_text = ""
        self._is_start_due = False  # A message of a closed turn is repeated: new content begins another turn.

    def read(self, chunk: Chunk) -> Events | None:
        """Return the events of a chunk; None if it is not understood."""
        kind = as_str(chunk.get("type"))
        is_opening = kind in OPENING and (kind != "tool-input-start" or bool(identifier(chunk.get("toolCallId"))))
        started = self._enter("") if is_opening and self.phase in ("idle", "prompted") else []
        events = self._read_chunk(kind, chunk)
        if self._is_start_due and any(isinstance(event, NEW_CONTENT) for event in events or ()):
            self._is_start_due = False
            started = [ev.TurnStarted()]
        if events is None:
            return None
        # A replay reports the usage again, which the id of the message shows.
        return started + events + read_metadata(chunk.get("messageMetadata"), self.message.id)

    def read_again(self, message: MessageState, chunks: list[Chunk]) -> Events:
        """Return the events of chunks of a message other than the current one."""
        current = self.message, self._open_text
        self.message, self._open_text = message, ""
        events = [event for chunk in chunks for event in self._read_chunk(as_str(chunk.get("type")), chunk) or []]
        message.resume()
        self.message, self._open_text = current
        return events

    def _read_chunk(self, kind: str, chunk: Chunk) -> Events | None:
        if kind in Calls.KINDS:
            return self._calls.read(self.message, chunk)
        if kind.startswith("data-"):
            return self._data(kind, chunk)
        handler = self._HANDLERS.get(kind)
        return handler[0](self, chunk) if handler else None

    def needs_raw(self, chunk: Chunk) -> bool:
        """Return whether a chunk has more than its events carry."""
        kind = as_str(chunk.get("type"))
        if kind in Calls.KINDS or kind == "tool-approval-response":
            return decode_calls.needs_raw(chunk)
        return kind in self._HANDLERS and has_other_fields(chunk, self._HANDLERS[kind][1])

    # Turns

    def prompt(self, message: UIMessage) -> Events:
        """Begin a turn with a user's message. Its id is the id of the turn, so that later readers can find the turn."""
        message_id = identifier(message.get("id"))
        self.prompts.update({message_id} - {""})
        return [*self.begin(message_id), user_message(message, message_id)]

    def begin(self, turn: str = "") -> Events:
        """Begin a turn; it supersedes another open turn."""
        self.message.forget()
        self.phase, self.message, self._is_start_due, self._open_text = "prompted", MessageState(), False, ""
        return [ev.TurnStarted(turn=turn)]

    def end(self, reason: str, detail: str = "") -> Events:
        """End the turn. A message that was only repeated has none."""
        had_turn, self._is_start_due, self._open_text, self.phase = not self._is_start_due, False, "", "idle"
        return [ev.TurnEnded(reason=reason, detail=detail)] if had_turn else []

    def _finish(self, chunk: Chunk) -> Events | None:
        if self.phase == "idle":
            return None
        reason = as_str(chunk.get("finishReason"))
        reason = REASONS.get(reason, reason)
        if reason in FAILURES or self._is_start_due or not self.message.awaits_client():
            return self.end(reason)
        text, self._open_text, self.phase = self._open_text, "", "held"
        return [ev.MessageEnded()] if text else []

    def _stop(self, chunk: Chunk) -> Events | None:
        """End the turn: the client stops reading at an abort or an error."""
        reason, field = ("cancelled", "reason") if chunk["type"] == "abort" else ("error", "errorText")
        return None if self.phase == "idle" else self.end(reason, as_str(chunk.get(field)))

    # Messages

    def _start(self, chunk: Chunk) -> Events:
        """Begin a stream: it continues the held message, or has another, or repeats one."""
        message_id = identifier(chunk.get("messageId"))
        if self.phase == "held" and self.messages.get(message_id, self.message) is self.message:
            self.phase = "streaming"
            self.message.resume()
            self.set_id(message_id)
            return []
        return self._enter(message_id, from_beginning=self.phase != "streaming")

    def enter(self, message_id: str) -> Events:
        """Begin to read a full message, which may be the one that was streamed without an id."""
        self.adopt(message_id)
        return self._enter(message_id)

    def _enter(self, message_id: str, *, from_beginning: bool = True) -> Events:
        phase, self.phase = self.phase, "streaming"
        message = self.messages.get(message_id)
        if message is not None:
            self.message, self._is_start_due = message, phase == "idle"
            message.restart(from_beginning=from_beginning)
            return []
        self.message.forget()
        self.message = MessageState(message_id, self.message.rounds() if phase == "held" else 0)
        self.set_id(message_id)
        return [] if phase in ("prompted", "held") else [ev.TurnStarted()]

    def adopt(self, message_id: str) -> None:
        """Give the last message this id if it was streamed without one."""
        if message_id not in self.messages and not self.message.id and not self.message.is_empty():
            self.set_id(message_id)

    def set_id(self, message_id: str) -> None:
        """Give the current message this id."""
        if message_id:
            self.message.id = self.message.id or message_id
            self.messages[message_id] = self.message

    # Steps

    def _start_step(self, chunk: Chunk) -> Events:
        self.message.begin_step()
        return []

    def _reset_step(self, chunk: Chunk) -> Events:
        """End the text of a step that restarts; it stays recorded, and the next text is a new one."""
        text, self._open_text = self._open_text, ""
        dropped = self._calls.drop_step(self.message)
        return [ev.MessageEnded(), *dropped] if text else dropped

    # Texts

    def _start_text(self, chunk: Chunk) -> Events:
        kind, _, _ = chunk["type"].rpartition("-")
        self.message.begin_text(kind, as_str(chunk.get("id")))
        return []

    def _add_text(self, chunk: Chunk) -> Events | None:
        kind, _, _ = chunk["type"].rpartition("-")
        piece = chunk.get("delta")
        if not isinstance(piece, str):
            return None
        part = self.message.find_text(kind, as_str(chunk.get("id")))
        new, is_different = self.message.add_text(part, piece)
        if not new:
            return []
        previous, self._open_text = self._open_text, part
        text_id = self.message.text_id(part)
        ended = [ev.MessageEnded()] if previous and previous != part and not text_id else []
        chunks: ev.Chunks = "cumulative" if is_different else self._chunks  # A replay may have a corrected text.
        return [*ended, DELTA_TYPES[kind](text=new, message_id=text_id, chunks=chunks)]

    def _end_text(self, chunk: Chunk) -> Events:
        kind, _, _ = chunk["type"].rpartition("-")
        part = self.message.find_text(kind, as_str(chunk.get("id")))
        if part != self._open_text:
            return []
        self._open_text = ""
        return [ev.MessageEnded(message_id=self.message.text_id(part))]

    def _steering_message(self, chunk: Chunk) -> Events:
        """Read a message that the user sent while the agent was running."""
        message_id = identifier(chunk.get("id"))
        if message_id in self.prompts:
            return []
        self.prompts.update({message_id} - {""})
        return [user_message(chunk, message_id)]

    # Data parts of the application; two of them are ours

    def _data(self, kind: str, chunk: Chunk) -> Events | None:
        data = as_dict(chunk.get("data"))
        event: Event | None = None
        if kind == "data-plan" and set(data) == {"entries"} and isinstance(data["entries"], list):
            event = ev.PlanUpdated(entries=as_list(data["entries"]))
        elif kind == "data-mode" and set(data) == {"previousModeId", "newModeId"} and as_str(data["newModeId"]):
            event = ev.SessionMode(mode=data["newModeId"])
        if event is None:
            return None
        digest = value_digest(chunk)
        is_known = digest in self.message.digests
        self.message.digests.add(digest)
        return [] if is_known and self.message.is_repeated else [event]

    _HANDLERS: ClassVar[dict[str, tuple[Callable[[Any, Chunk], Events | None], set[str]]]] = {
        "start": (_start, {"type", "messageId"}),
        "finish": (_finish, {"type", "finishReason"}),
        "abort": (_stop, {"type", "reason"}),
        "error": (_stop, {"type", "errorText"}),
        "start-step": (_start_step, {"type"}),
        "message-metadata": (lambda self, chunk: [], {"type"}),
        "finish-step": (lambda self, chunk: [], {"type"}),
        "reset-step": (_reset_step, {"type"}),
        **dict.fromkeys(("text-start", "reasoning-start"), (_start_text, {"type", "id"})),
        **dict.fromkeys(("text-delta", "reasoning-delta"), (_add_text, {"type", "id", "delta"})),
        **dict.fromkeys(("text-end", "reasoning-end"), (_end_text, {"type", "id"})),
        "steering-message": (_steering_message, {"type", "id", "parts"}),
        "tool-approval-response": (lambda self, chunk: self._calls.respond(chunk), set()),
    }
