"""Decode `ui-v5`, `ui-v6` and `ui-v7`: the chunks of streams, full messages, and the client's posts.

The three differ only in the namespace of call ids. A name of a newer major version is read in all of them, because no
version changes the meaning of a name of the version before.

Only what is new in a post is read: the prompt, answers to approval requests, results from the client. The history in it
was streamed before; if it was not, it is a second witness.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from callslip.formats.ai_sdk import decode_messages
from callslip.formats.ai_sdk.conversation import Conversation
from callslip.formats.ai_sdk.decode_messages import (
    chunks_of,
    history_events,
    is_message,
    messages_in,
    read_metadata,
    turn_of,
)
from callslip.formats.ai_sdk.message_state import MessageState
from callslip.formats.ai_sdk.wire import UIMessage
from callslip.formats.base import Events, Unfinished, drafts_of, raw_if
from callslip.formats.json_fields import as_dict, as_list, has_other_fields, identifier, value_digest
from callslip.model import events as ev
from callslip.model.events import CallEnd, Draft

DONE = "[DONE]"
REGENERATE = "regenerate-message"
POST_FIELDS = {"id", "messages", "message", "trigger", "messageId"}
ANSWERS = (CallEnd, ev.ApprovalAnswer)
DOCUMENT_FIELDS = {"session", "seq", "messages"}


class UiDecoder:
    """One conversation in any mix of chunks, messages and posts."""

    def __init__(self, format: str, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._format = format
        self._conversation = Conversation(format, chunks or "delta")
        self._history: set[str] = set()
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        drafts = self._read(message)
        drafts = drafts_of(self._raw_if(True, message)) if drafts is None else drafts
        self._unfinished.follow(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        self._conversation.end(reason)
        return self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return False

    def _read(self, message: Any) -> list[Draft] | None:
        """Return the drafts of a message; None if it is not understood."""
        fields = as_dict(message)
        if message == DONE:
            is_unfinished = self._conversation.phase == "streaming"
            return drafts_of(self._finish() if is_unfinished else [])
        if is_message(fields):
            return drafts_of(self._stored_message(fields))
        messages = messages_in(message)
        if messages and ("id" in fields or "trigger" in fields):
            return self._post(fields, messages)
        if messages:
            events = [event for item in messages for event in self._stored_message(item)]
            needs_raw = has_other_fields(fields, DOCUMENT_FIELDS) or len(messages) < len(as_list(message))
            return drafts_of(events + self._raw_if(needs_raw, message))
        events = self._conversation.read(fields)
        if events is None:
            return None
        return drafts_of(events + self._raw_if(self._conversation.needs_raw(fields), fields))

    def _raw_if(self, condition: object, body: Any) -> Events:
        return raw_if(condition, self._format, body)

    def _finish(self) -> Events:
        return self._conversation.read({"type": "finish"}) or []

    # Full messages

    def _stored_message(self, message: UIMessage) -> Events:
        """Read a stored message: what it has beyond earlier messages is new."""
        message_id = identifier(message.get("id"))
        if message["role"] == "user":
            is_known = message_id in self._conversation.prompts
            return [] if is_known else [*self._conversation.prompt(message), *self._raw_message(message, message_id)]
        raw = self._raw_message(message, message_id)
        started = self._conversation.enter(message_id)
        parts = [event for chunk in chunks_of(message) for event in self._conversation.read(chunk) or []]
        used = read_metadata(message.get("metadata"), message_id)
        return [*started, *parts, *raw, *used, *self._finish()]

    def _raw_message(self, message: UIMessage, message_id: str) -> Events:
        """Store a message raw the first time if it has more than its events carry."""
        is_first = not message_id or message_id not in self._conversation.messages
        has_rich_parts = message["role"] != "user" and decode_messages.needs_raw(message)
        has_more = has_rich_parts or has_other_fields(message, decode_messages.MESSAGE_FIELDS)
        return self._raw_if(is_first and has_more, message)

    # Posts

    def _post(self, body: dict[str, Any], messages: list[UIMessage]) -> list[Draft]:
        last = messages[-1]
        newest = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        drafts: list[Draft] = []
        for index, message in enumerate(messages[:-1]):
            drafts += self._history_message(message, index, is_newest=index == newest)
        if last["role"] == "user":
            drafts += self._prompt(last, is_regenerated=body.get("trigger") == REGENERATE)
        else:
            drafts += self._answers(messages)
        settings = {name: value for name, value in body.items() if name not in ("messages", "message")}
        is_odd = len(messages) < len(as_list(body.get("messages")))
        needs_raw = not drafts or is_odd or has_other_fields(body, POST_FIELDS)
        return drafts + drafts_of(self._raw_if(needs_raw, body if is_odd else settings))

    def _history_message(self, message: UIMessage, index: int, *, is_newest: bool) -> list[Draft]:
        """Read a message of the history, which may be unknown. One without an id is identified by its index."""
        message_id, is_user = identifier(message.get("id")), message["role"] == "user"
        known = self._conversation.prompts if is_user and message_id else self._history
        name = message_id or f"#{index}:{value_digest(message)}"
        if name in known:
            return []
        state = None if is_user else self._find_streamed(message_id, is_newest=is_newest)
        if state is not None:
            return drafts_of(self._call_events(message, state))
        known.add(name)
        return [Draft(event, witness=True) for event in history_events(message, self._format)]

    def _prompt(self, message: UIMessage, *, is_regenerated: bool) -> list[Draft]:
        """Read a prompt, new or to answer again. If each post is decoded by itself, the ledger detects it by its id."""
        message_id = identifier(message.get("id"))
        if message_id in self._conversation.prompts:
            return drafts_of(self._conversation.begin() if is_regenerated else [])
        started, prompt = self._conversation.prompt(message)
        started = ev.TurnStarted() if is_regenerated else started
        raw = drafts_of(self._raw_message(message, message_id))
        return [Draft(started), Draft(prompt, witness=bool(message_id)), *raw]

    def _answers(self, messages: list[UIMessage]) -> list[Draft]:
        """Read the agent's message that the client sends back with its answers, for the agent to continue."""
        message_id, turn = identifier(messages[-1].get("id")), turn_of(messages)
        state = self._find_streamed(message_id, is_newest=True)
        if state is None:
            return self._unseen_answers(messages[-1], message_id, turn)
        started = self._conversation.begin(turn) if self._conversation.phase == "idle" else []
        events = self._call_events(messages[-1], state)
        self._conversation.message, self._conversation.phase = state, "held"
        return drafts_of([*started, *events])

    def _unseen_answers(self, message: UIMessage, message_id: str, turn: str) -> list[Draft]:
        """Read answers in a message whose stream was not seen: the client is a witness of all but its own answers."""
        state = MessageState()
        events = self._conversation.read_again(state, chunks_of(message))
        answers = [event for event in events if isinstance(event, ANSWERS)]
        others = [Draft(event, witness=True) for event in events if not isinstance(event, ANSWERS)]
        started = self._conversation.begin(turn)
        self._conversation.message, self._conversation.phase = state, "held"
        self._conversation.set_id(message_id)
        return [*others, *drafts_of([*started, *answers])]

    def _find_streamed(self, message_id: str, *, is_newest: bool) -> MessageState | None:
        """Return the state of a message that was streamed. The newest may have been streamed without an id."""
        if is_newest:
            self._conversation.adopt(message_id)
        return self._conversation.messages.get(message_id)

    def _call_events(self, message: UIMessage, state: MessageState) -> Events:
        """Return what the client's copy of a message adds: the progress of its calls."""
        state.restart()
        events = self._conversation.read_again(state, chunks_of(message))
        return [event for event in events if isinstance(event, ev.CallEvent)]


UiV5Decoder = partial(UiDecoder, "ui-v5")
UiV6Decoder = partial(UiDecoder, "ui-v6")
UiV7Decoder = partial(UiDecoder, "ui-v7")
