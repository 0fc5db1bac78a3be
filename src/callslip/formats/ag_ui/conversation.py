"""Entries as AG-UI messages: which of them a turn makes, and in what order the client holds them.

A message of the agent's is a text, or the calls of one round, or both. The client puts a result behind the message that
holds its call, after the results that are there already, wherever the talk has gone since; so does the history.
"""

from __future__ import annotations

from callslip.formats.ag_ui.account import (
    Listed,
    activity_message,
    answered,
    arguments_of,
    is_answered,
    is_told,
    listed_call,
    message_id,
    result_message,
    text_message,
    user_message,
)
from callslip.formats.base import Source, snapshot_of
from callslip.model.entries import Entry, Message, ModeChange, Plan, Thought, ToolCall


def history(source: Source) -> list[Listed]:
    """A session's messages, oldest first, from its state, a snapshot of it, or its rendered entries."""
    listing, turn = Listing(), ""
    for entry in snapshot_of(source).entries:
        if entry.turn != turn:
            listing.rounds, turn = Rounds(), entry.turn
        listing.add(entry)
    return listing.messages()


class Rounds:
    """Which message holds a call: the text it follows, or the first call of its round.

    A round is over when all its calls have results, or something else was said. Only what stood when a call came
    decides, so that a stream and a history decide alike.
    """

    def __init__(self) -> None:
        self._message = ""
        self._open: list[ToolCall] = []
        self._called = False

    def message_of(self, entry: Entry) -> str:
        """The id of the message of an entry, which comes next."""
        if isinstance(entry, Plan | ModeChange):
            return message_id(entry)
        if isinstance(entry, ToolCall):
            return self._call(entry)
        self._begin(message_id(entry) if isinstance(entry, Message) else "")
        return message_id(entry)

    def end(self) -> None:
        """A person spoke."""
        self._begin("")

    def _begin(self, message: str) -> None:
        self._message, self._open, self._called = message, [], False

    def _call(self, entry: ToolCall) -> str:
        while self._open and is_answered(self._open[-1]) and answered(self._open[-1]) < entry.id:
            self._open.pop()  # One that is still open is enough to know: no call is looked at twice in vain.
        if not self._message or (self._called and not self._open):
            self._begin(message_id(entry))
        self._open.append(entry)
        self._called = True
        return self._message


class Listing:
    """Messages as they come together: each with the calls whose results are to follow it."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self._messages: dict[str, Listed] = {}
        self._calls: dict[str, list[ToolCall]] = {}

    def add(self, entry: Entry) -> None:
        """The next entry."""
        if isinstance(entry, Message) and entry.role == "user":
            self.rounds.end()
            self._messages[f"msg-{entry.id}"] = user_message(entry)
        elif is_told(entry):
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
        """All of them, in the client's order."""
        made: list[Listed] = []
        for identity, message in self._messages.items():
            made.append(message)
            made += [result_message(call) for call in sorted(self._calls.get(identity, []), key=answered)]
        return made
