"""The conversation as a list: what the client sends with every run, and what the agent sends as a snapshot.

Most of it was sent before as events. The ledger may know other messages by their ids, so they are drafted as a second
witness. A result is new if its call is still open.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.ag_ui import calls
from callslip.formats.ag_ui.calls import Calls
from callslip.formats.ag_ui.wire import FORMAT
from callslip.formats.base import DeltaType, drafts_of, raw_if
from callslip.formats.call_tracker import RESULT_UNKNOWN
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields, identifier, value_digest
from callslip.formats.providers.content import join_texts
from callslip.model import events as ev
from callslip.model.events import Draft, Event

KNOWN_FIELDS = {"id", "role", "content", "toolCalls", "toolCallId", "error"}
DELTA_TYPES: dict[str, DeltaType] = {"assistant": ev.MessageDelta, "reasoning": ev.ThoughtDelta}
ROLES = {"user", "assistant", "tool", "reasoning", "system", "developer", "activity"}

Message = dict[str, Any]


def messages_in(value: Any) -> list[Message]:
    """Return the messages of a list."""
    return [as_dict(item) for item in as_list(value) if as_str(as_dict(item).get("role")) in ROLES]


def user_message(message: Message) -> Event:
    """Return the event of a user's message, with all its parts if it has more than a text."""
    content = message.get("content")
    parts = UNSET if isinstance(content, str) else content
    return ev.MessageUser(text=join_texts(content), message_id=identifier(message.get("id")), content=parts)


class MessageLists:
    """Reads lists of messages. `known` are the ids of messages that any event or list contained."""

    def __init__(self, tracked_calls: Calls) -> None:
        self.known: set[str] = set()
        self._calls = tracked_calls

    def read(self, messages: list[Message]) -> list[Draft]:
        """Return the drafts of what is new in a list."""
        results = {identifier(message.get("toolCallId")): message for message in messages if message["role"] == "tool"}
        last = max((index for index, message in enumerate(messages) if message["role"] != "tool"), default=-1)
        drafts: list[Draft] = []
        for index, message in enumerate(messages):
            if message["role"] == "tool":
                drafts += self._result(message, index)
                continue
            drafts += self._message(message) if self._is_new(message, index) else []
            for call in map(as_dict, as_list(message.get("toolCalls"))):
                drafts += self._call(call, results, is_newest=index == last)
        return drafts

    def _is_new(self, message: Message, index: int) -> bool:
        """Return whether a message is new. One without an id is identified by its index, as lists only grow."""
        name = identifier(message.get("id")) or f"#{index}:{value_digest(message)}"
        is_new = name not in self.known
        self.known.add(name)
        return is_new

    def _message(self, message: Message) -> list[Draft]:
        """Return the drafts of a message that no event contained; the ledger may know its id."""
        role, content = message["role"], message.get("content")
        events: list[Event] = []
        if role == "user":
            events = [user_message(message)]
        elif role in DELTA_TYPES and content and isinstance(content, str):
            message_id = identifier(message.get("id"))
            events = [DELTA_TYPES[role](text=content, message_id=message_id, chunks="delta"), ev.MessageEnded()]
        needs_raw = has_other_fields(message, KNOWN_FIELDS) or not (events or message.get("toolCalls"))
        return [Draft(event, witness=True) for event in events] + drafts_of(raw_if(needs_raw, FORMAT, message))

    def _result(self, message: Message, index: int) -> list[Draft]:
        call_id = identifier(message.get("toolCallId"))
        self._is_new(message, index)
        return drafts_of(self._calls.result_if_open(call_id, message)) if self._calls.is_known(call_id) else []

    def _call(self, call: dict[str, Any], results: dict[str, Message], *, is_newest: bool) -> list[Draft]:
        """Return the draft of a call that no event contained. One of an older message has ended."""
        call_id, function = identifier(call.get("id")), as_dict(call.get("function"))
        if not call_id or self._calls.is_known(call_id):
            return []
        proposed = self._calls.add_listed(call_id, function)
        if is_newest:
            return [Draft(proposed, witness=True)]
        end = calls.read_end(results[call_id]) if call_id in results else ev.CallFailed(reason=RESULT_UNKNOWN)
        return [Draft(self._calls.add_ended(call_id, function, end), witness=True)]
