"""Encode a session as AG-UI messages, in the order in which the client has them.

A message of the agent is a text, or the calls of one round, or both. The client puts a result behind the message with
its call, after the results that are there already, also if other messages have followed; so does the history.
"""

from __future__ import annotations

from callslip.formats.ag_ui.entry_messages import (
    Listed,
    activity_message,
    answer_seq,
    arguments_of,
    is_answered,
    is_shown,
    listed_call,
    message_id,
    result_message,
    text_message,
    user_message,
)
from callslip.formats.base import Source, conversation_of
from callslip.model.entries import Entry, Message, ModeChange, Plan, Thought, ToolCall


def history(source: Source) -> list[Listed]:
    """Return the messages of a session, oldest first."""
    listing, turn = Listing(), ""
    for entry in conversation_of(source).entries:
        if entry.turn != turn:
            listing.rounds, turn = Rounds(), entry.turn
        listing.add(entry)
    return listing.messages()


class Rounds:
    """Decides which message holds a call: the text it follows, or the first call of its round.

    A round ends when all its calls have results, or at the next text. Only what was known when a call was announced
    counts, so that a stream and a history decide alike.
    """

    def __init__(self) -> None:
        self._message = ""
        self._open: list[ToolCall] = []
        self._called = False

    def message_of(self, entry: Entry) -> str:
        """Add the next entry and return the id of its message."""
        if isinstance(entry, Plan | ModeChange):
            return message_id(entry)
        if isinstance(entry, ToolCall):
            return self._call(entry)
        self._begin(message_id(entry) if isinstance(entry, Message) else "")
        return message_id(entry)

    def end(self) -> None:
        """End the round at a user message."""
        self._begin("")

    def _begin(self, message: str) -> None:
        self._message, self._open, self._called = message, [], False

    def _call(self, entry: ToolCall) -> str:
        while self._open and is_answered(self._open[-1]) and answer_seq(self._open[-1]) < entry.id:
            self._open.pop()  # One open call is enough, so that the total cost stays linear.
        if not self._message or (self._called and not self._open):
            self._begin(message_id(entry))
        self._open.append(entry)
        self._called = True
        return self._message


class Listing:
    """Collects messages, each with the calls whose results follow it."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self._messages: dict[str, Listed] = {}
        self._calls: dict[str, list[ToolCall]] = {}

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        if isinstance(entry, Message) and entry.role == "user":
            self.rounds.end()
            self._messages[f"msg-{entry.id}"] = user_message(entry)
        elif is_shown(entry):
            message = self.rounds.message_of(entry)
            if isinstance(entry, ToolCall):
                self._call(entry, message)
            elif isinstance(entry, Message | Thought):
                self._messages[message] = text_message(entry)
            elif isinstance(entry, Plan | ModeChange):
                self._messages[message] = activity_message(entry)

    def _call(self, entry: ToolCall, message: str) -> None:
        holder = self._messages.setdefault(message, {"id": message, "role": "assistant"})
        holder.setdefault("toolCalls", []).append(listed_call(entry, arguments_of(entry, entry.input_text)[0]))
        if is_answered(entry):
            self._calls.setdefault(message, []).append(entry)

    def messages(self) -> list[Listed]:
        """Return all messages in the order of the client."""
        messages: list[Listed] = []
        for identity, message in self._messages.items():
            messages.append(message)
            messages += [result_message(call) for call in sorted(self._calls.get(identity, []), key=answer_seq)]
        return messages
