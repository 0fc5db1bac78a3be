"""Entries as UI messages: where a message begins, and where a step does.

All that the agent did in one turn is one assistant message; what it did outside of any turn is one message up to the
next user message or turn. So a history is the histories of its turns, one after the other. The law: a stream of a turn,
reduced by the client after any event, is this message.
"""

from __future__ import annotations

from typing import Any, cast

from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.parts import is_shown, part_of
from callslip.formats.ai_sdk.wire import Part, UIMessage
from callslip.formats.base import Source, snapshot_of
from callslip.formats.js_json import readable
from callslip.formats.turn_scope import message_id
from callslip.model.entries import Entry, Message, PermissionRequest, Thought, ToolCall
from callslip.rules.entry_blocks import split_blocks

STEP: Part = {"type": "step-start"}


def history(dialect: Dialect, source: Source) -> list[UIMessage]:
    """A session's messages, oldest first, from its state, a snapshot of it, or its rendered entries."""
    return [message for block in split_blocks(snapshot_of(source).entries) for message in _messages(dialect, block)]


def _messages(dialect: Dialect, block: list[Entry]) -> list[UIMessage]:
    """The messages of a block in the order in which they began: what users said, and the one of the agent."""
    asked = {entry.request_id: entry for entry in block if isinstance(entry, PermissionRequest)}
    shown = [entry for entry in block if is_shown(dialect, entry)]
    told = {entry.id: _user_message(entry) for entry in block if isinstance(entry, Message) and _is_user(entry)}
    if shown:
        told[shown[0].id] = _agent_message(dialect, shown, asked)
    return [told[begun] for begun in sorted(told)]


def _is_user(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role == "user"


def _agent_message(dialect: Dialect, entries: list[Entry], asked: dict[str, PermissionRequest]) -> UIMessage:
    parts: list[Part] = []
    steps = Steps()
    for entry in entries:
        if steps.begins_with(entry):
            parts.append(STEP)
        parts.append(part_of(dialect, entry, asked.get(entry.approval) if isinstance(entry, ToolCall) else None))
    identity = message_id(entries[0].turn) if entries[0].turn else f"msg-{entries[0].id}"
    return {"id": identity, "role": "assistant", "parts": parts}


class Steps:
    """Where steps begin in one message: a text after calls begins one, if all these calls had ended before it.

    The client finds a call only in the current step when it is told of new arguments or a new title, so an open call
    stays in it.
    """

    def __init__(self) -> None:
        self.entries: set[int] = set()
        self._open: list[ToolCall] = []
        self._called = False

    def begins_with(self, entry: Entry) -> bool:
        """Whether a step begins before this entry, which comes next."""
        begins = not self.entries or (isinstance(entry, Message | Thought) and self._all_ended(entry.id))
        if begins:
            self.entries, self._open, self._called = set(), [], False
        self.entries.add(entry.id)
        if isinstance(entry, ToolCall):
            self._open.append(entry)
            self._called = True
        return begins

    def _all_ended(self, seq: int) -> bool:
        """Whether the step has calls and all of them had ended by this event. One that had not is not looked past."""
        while self._open and 0 < _answered(self._open[-1]) < seq:
            self._open.pop()
        return self._called and not self._open


def _answered(call: ToolCall) -> int:
    """The event by which the message had its answer to a call; to a detached one it has it at once."""
    return call.id if call.scope == "detached" else call.end


# What a person said


def _user_message(entry: Message) -> UIMessage:
    return {"id": f"msg-{entry.id}", "role": "user", "parts": _user_parts(entry)}


def _user_parts(entry: Message) -> list[Part]:
    blocks = cast("list[Any]", entry.blocks) if isinstance(entry.blocks, list) else []
    return [{"type": "text", "text": entry.content}, *(_block_part(block) for block in blocks if not _is_text(block))]


def _is_text(block: Any) -> bool:
    """The texts among the blocks are the message's own text."""
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == "text"


def _block_part(block: Any) -> Part:
    """A file if the block carries one; else the block itself, which no model reads."""
    told = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
    media, data = told.get("mimeType"), told.get("data")
    if isinstance(media, str) and isinstance(data, str):
        return {"type": "file", "mediaType": media, "url": f"data:{media};base64,{data}"}
    return {"type": "data-block", "data": readable(block)}
