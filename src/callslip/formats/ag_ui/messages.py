"""The conversation as a list: what the client sends with every run, and what the agent sends as a snapshot.

Most of it was told before, event by event. A message that was not told here may still be known to the ledger, by its
id: so it comes as a second witness (S2.11). Results are news wherever their call is still open.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.ag_ui import calls
from callslip.formats.ag_ui.calls import Calls
from callslip.formats.ag_ui.wire import FORMAT, leaves, mark
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Draft, Event

RESULT_UNKNOWN = "the history does not tell how this call ended"
MESSAGE = {"id", "role", "content", "toolCalls", "toolCallId", "error"}
SPOKEN: dict[str, type[ev.MessageDelta] | type[ev.ThoughtDelta]] = {
    "assistant": ev.MessageDelta,
    "reasoning": ev.ThoughtDelta,
}
ROLES = {"user", "assistant", "tool", "reasoning", "system", "developer", "activity"}

Message = dict[str, Any]


def messages_in(value: Any) -> list[Message]:
    """The messages of a list."""
    return [as_dict(item) for item in as_list(value) if as_str(as_dict(item).get("role")) in ROLES]


def user_message(message: Message) -> Event:
    """What a person said; with all its parts if it was more than a text."""
    content = message.get("content")
    texts = [as_str(as_dict(part).get("text")) for part in as_list(content) if as_dict(part).get("type") == "text"]
    text = content if isinstance(content, str) else "\n".join(texts)
    rich = UNSET if isinstance(content, str) else content
    return ev.MessageUser(text=text, message_id=identifier(message.get("id")), content=rich)


class Listing:
    """What lists of messages tell. `known` are the ids of messages that were told, by any event."""

    def __init__(self, tools: Calls) -> None:
        self.known: set[str] = set()
        self._calls = tools

    def read(self, messages: list[Message]) -> list[Draft]:
        """What is new in a list."""
        results = {identifier(one.get("toolCallId")): one for one in messages if one["role"] == "tool"}
        last = max((n for n, one in enumerate(messages) if one["role"] != "tool"), default=-1)
        made: list[Draft] = []
        for number, message in enumerate(messages):
            if message["role"] == "tool":
                made += self._result(message, number)
                continue
            fresh = self._is_new(message, number)
            made += self._said(message) if fresh else []
            for call in map(as_dict, as_list(message.get("toolCalls"))):
                made += self._call(call, results, newest=number == last)
        return made

    def _is_new(self, message: Message, number: int) -> bool:
        """Whether a message was not told. One without id is known by its place, as the lists only grow."""
        name = identifier(message.get("id")) or f"#{number}:{mark(message)}"
        fresh = name not in self.known
        self.known.add(name)
        return fresh

    def _said(self, message: Message) -> list[Draft]:
        """A message that was not told here: the ledger may know its id."""
        role, content = message["role"], message.get("content")
        made: list[Event] = []
        if role == "user":
            made = [user_message(message)]
        elif role in SPOKEN and content and isinstance(content, str):
            identity = identifier(message.get("id"))
            made = [SPOKEN[role](text=content, message_id=identity, chunks="delta"), ev.MessageEnded()]
        kept = leaves(message, MESSAGE) or not (made or message.get("toolCalls"))
        drafts = [Draft(event, witness=True) for event in made]
        return [*drafts, Draft(ev.Raw(format=FORMAT, body=message))] if kept else drafts

    def _result(self, message: Message, number: int) -> list[Draft]:
        identity = identifier(message.get("toolCallId"))
        self._is_new(message, number)
        return [Draft(event) for event in self._calls.news(identity, message)] if self._calls.knows(identity) else []

    def _call(self, call: dict[str, Any], results: dict[str, Message], *, newest: bool) -> list[Draft]:
        """A call that no event told of. One of the past is over, however it ended: all of it is one event."""
        identity, function = identifier(call.get("id")), as_dict(call.get("function"))
        if not identity or self._calls.knows(identity):
            return []
        said = self._calls.listed(identity, function)
        if newest:
            return [Draft(said, witness=True)]
        end = calls.ended(results[identity]) if identity in results else ev.CallFailed(reason=RESULT_UNKNOWN)
        return [Draft(self._calls.over(identity, function, end), witness=True)]
