"""Encode a session as UI messages.

Everything the agent did in a turn is one assistant message; outside of turns a message ends at the next user message or
turn. So a history is the histories of its turns, one after the other. The stream of a turn, reduced by the client after
any event, equals this message.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.parts import is_shown, part_of
from callslip.formats.ai_sdk.wire import Part, UIMessage
from callslip.formats.assistant_message import agent_message_id
from callslip.formats.base import Source, conversation_of
from callslip.formats.js_json import readable
from callslip.formats.json_fields import as_dict, as_list
from callslip.model.entries import Entry, Message, PermissionRequest, Thought, ToolCall
from callslip.rules.entry_blocks import split_blocks

STEP: Part = {"type": "step-start"}


def history(dialect: Dialect, source: Source) -> list[UIMessage]:
    """Return the messages of a session, oldest first."""
    return [message for block in split_blocks(conversation_of(source).entries) for message in _messages(dialect, block)]


def _messages(dialect: Dialect, block: list[Entry]) -> list[UIMessage]:
    """Return the messages of a block in the order in which they began: user messages and one of the agent."""
    requests = {entry.approval: entry for entry in block if isinstance(entry, PermissionRequest)}
    shown = [entry for entry in block if is_shown(dialect, entry)]
    messages = {
        entry.id: _user_message(entry) for entry in block if isinstance(entry, Message) and entry.role == "user"
    }
    if shown:
        messages[shown[0].id] = _agent_message(dialect, shown, requests)
    return [messages[first] for first in sorted(messages)]


def _agent_message(dialect: Dialect, entries: list[Entry], requests: dict[str, PermissionRequest]) -> UIMessage:
    parts: list[Part] = []
    steps = Steps()
    for entry in entries:
        if steps.begins_with(entry):
            parts.append(STEP)
        parts.append(part_of(dialect, entry, requests.get(entry.approval) if isinstance(entry, ToolCall) else None))
    return {"id": agent_message_id(entries[0]), "role": "assistant", "parts": parts}


class Steps:
    """Decides where the steps of a message begin: at a text after calls, if all these calls had ended before it.

    The client applies new arguments or a new title only to calls of the current step, so an open call stays in it.
    """

    def __init__(self) -> None:
        self.entries: set[int] = set()
        self._open: list[ToolCall] = []
        self._called = False

    def begins_with(self, entry: Entry) -> bool:
        """Add the next entry and return whether a step begins before it."""
        begins = not self.entries or (isinstance(entry, Message | Thought) and self._all_ended(entry.id))
        if begins:
            self.entries, self._open, self._called = set(), [], False
        self.entries.add(entry.id)
        if isinstance(entry, ToolCall):
            self._open.append(entry)
            self._called = True
        return begins

    def _all_ended(self, seq: int) -> bool:
        """Return whether the step has calls and all of them had ended by this event."""
        while self._open:
            call = self._open[-1]
            end = call.id if call.scope == "detached" else call.end  # A detached call has its answer at once.
            if not 0 < end < seq:
                return False
            self._open.pop()
        return self._called


# Messages of users


def _user_message(entry: Message) -> UIMessage:
    """Return the text and the blocks of a user message. Text blocks are part of the text already."""
    blocks = [block for block in as_list(entry.blocks) if as_dict(block).get("type") != "text"]
    parts: list[Part] = [{"type": "text", "text": entry.content}, *map(_block_part, blocks)]
    return {"id": f"msg-{entry.id}", "role": "user", "parts": parts}


def _block_part(block: Any) -> Part:
    """Return a file if the block has one, else the block itself, which no model reads."""
    fields = as_dict(block)
    media, data = fields.get("mimeType"), fields.get("data")
    if isinstance(media, str) and isinstance(data, str):
        return {"type": "file", "mediaType": media, "url": f"data:{media};base64,{data}"}
    return {"type": "data-block", "data": readable(block)}
