"""Entries as AI SDK 6 UI messages: where a message begins, and where a step does.

All that the agent did in one turn is one assistant message; what it did outside of any turn is one message up to the
next user message or turn. The law: a stream of a turn, reduced by the client after any event, is this message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from callslip.board import Board
from callslip.entries import Entry, Message, PermissionRequest, Snapshot, Thought, ToolCall
from callslip.formats.ai_sdk.parts import is_shown, part_of
from callslip.formats.ai_sdk.wire import Part, UIMessage, readable

STEP: Part = {"type": "step-start"}

Source = Board | Snapshot | Iterable[Entry]


def history(source: Source) -> list[UIMessage]:
    """A session's messages, oldest first, from its state, a snapshot of it, or its rendered entries."""
    entries = entries_of(source)
    asked = {entry.request_id: entry for entry in entries if isinstance(entry, PermissionRequest)}
    return [_message(identity, group, asked) for identity, group in _groups(entries).items()]


def entries_of(source: Source) -> list[Entry]:
    """The rendered entries that messages are made of."""
    if isinstance(source, Board):
        source = source.snapshot()
    return list(source.entries if isinstance(source, Snapshot) else source)


def turn_message_id(turn: str) -> str:
    """The id of the assistant message of a turn."""
    return f"turn-{turn}"


def _groups(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Each message's id and entries, in the order in which the messages began."""
    groups: dict[str, list[Entry]] = {}
    loose = ""
    for entry in entries:
        if isinstance(entry, Message) and entry.role == "user":
            groups[f"msg-{entry.id}"] = [entry]
            loose = ""
        elif is_shown(entry):
            loose = "" if entry.turn else loose or f"msg-{entry.id}"
            groups.setdefault(loose or turn_message_id(entry.turn), []).append(entry)
    return groups


def _message(identity: str, entries: list[Entry], asked: dict[str, PermissionRequest]) -> UIMessage:
    first = entries[0]
    if isinstance(first, Message) and first.role == "user":
        return {"id": identity, "role": "user", "parts": _user_parts(first)}
    parts: list[Part] = []
    steps = Steps()
    for entry in entries:
        if steps.begins_with(entry):
            parts.append(STEP)
        parts.append(part_of(entry, asked.get(entry.approval) if isinstance(entry, ToolCall) else None))
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
        """Whether the step has calls and all of them had ended by this event."""
        self._open = [call for call in self._open if not 0 < _answered(call) < seq]
        return self._called and not self._open


def _answered(call: ToolCall) -> int:
    """The event by which the message had its answer to a call; to a detached one it has it at once."""
    return call.id if call.scope == "detached" else call.end


# What a person said


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
