"""Encode commands and texts: a session as stored messages with parts, and a turn as the events that make its parts.

Everything the agent did in a turn is one assistant message, `turn-` and the turn's name. Outside of turns a message
ends at the next user message or turn. A page that reads the events of a turn has the parts of that message after every
event. A change of a command that no event can express makes a `Restart`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from callslip.formats.assistant_message import agent_message_id, is_text_or_call
from callslip.formats.base import SSE_HEADERS, Source, Streaming, conversation_of, sse_frame
from callslip.formats.message_ids import MessageIds
from callslip.formats.shell.parts import (
    BETWEEN,
    RENDERED_FIELDS,
    Part,
    Spoken,
    has_run,
    own_id,
    text_kind,
    text_part,
    tool_part,
)
from callslip.formats.turn_stream import RestartNeededError, TurnStream
from callslip.model.entries import Append, Entry, Message, Set, Thought, ToolCall
from callslip.rules.entry_blocks import split_blocks

Chunk = dict[str, Any]
Stored = dict[str, Any]

RESTART: Chunk = {"type": "restart"}


# Stored messages


def history(source: Source) -> list[Stored]:
    """Return the messages of a session, oldest first."""
    return [message for block in split_blocks(conversation_of(source).entries) for message in _messages(block)]


def _messages(block: list[Entry]) -> list[Stored]:
    """Return the messages of a block in the order in which they began: user messages and one of the agent."""
    messages: list[Stored] = []
    answer: Stored = {}
    ids = MessageIds(own_id)
    for entry in block:
        if isinstance(entry, Message) and entry.role == "user":
            messages.append(_user_message(entry))
        elif is_text_or_call(entry):
            if not answer:
                answer = {"id": agent_message_id(entry), "role": "assistant", "parts": []}
                messages.append(answer)
            _add(answer["parts"], entry, ids)
    for part in answer.get("parts", ()):
        if isinstance(part.get("content"), list):
            part["content"] = BETWEEN.join(part["content"])
    return messages


def _user_message(entry: Message) -> Stored:
    """Return a user's text as a part, and as the `content` that readers of plain messages look for."""
    parts = [text_part("text", entry.content)]
    return {"id": f"msg-{entry.id}", "role": "user", "content": entry.content, "parts": parts}


def _add(parts: list[Part], entry: Entry, ids: MessageIds) -> None:
    """Add an entry. Consecutive texts of a kind are collected in a list in one part, to be joined at the end."""
    if isinstance(entry, ToolCall):
        parts.append(tool_part(entry, ids.of(entry)))
    elif isinstance(entry, Message | Thought):
        kind = text_kind(entry)
        if not parts or parts[-1]["type"] != kind:
            parts.append({"type": kind, "content": []})
        parts[-1]["content"].append(entry.content)


# One turn, live


class ShellRenderer:
    """Render a turn as text and tool events."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._last = ""
        self._ids = MessageIds(own_id)

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        return self._stream.begin_all(entries)

    def begin(self, entry: Entry) -> list[Chunk]:
        if isinstance(entry, ToolCall):
            self._last = "tool"
        elif is_text_or_call(entry):
            assert isinstance(entry, Message | Thought)
            kind = text_kind(entry)
            text = (BETWEEN if self._last == kind else "") + (entry.content if self._stream.is_replay else "")
            self._last = kind
            return [text_part(kind, text)] if text else []
        return []

    def append_text(self, entry: Spoken, text: str) -> list[Chunk]:
        return [text_part(text_kind(entry), text)]

    def end_text(self, entry: Spoken) -> list[Chunk]:
        return []

    def render_call(self, entry: ToolCall, sent: Part | None, changed: Collection[str]) -> tuple[Part, list[Chunk]]:
        part = tool_part(entry, self._ids.of(entry))
        if sent is None:
            return part, [_event("tool-call", part), *_progress(part, started=has_run(entry))]
        if sent == part:
            return part, []
        if (sent["command"], sent["commandId"]) != (part["command"], part["commandId"]):
            raise RestartNeededError("a command was changed")
        if sent["toolStatus"] == "running" and part["toolStatus"] == "queued":
            raise RestartNeededError("a command went back to the queue")
        return part, _progress(part, started=sent["toolStatus"] == "queued" and has_run(entry))

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        return []

    def finish(self, is_over: bool) -> list[Chunk]:
        reason = self._stream.turn.reason
        return [{"type": "done", **({"reason": reason} if reason else {})}] if is_over else []

    def close(self, reason: str) -> list[Chunk]:
        return [{"type": "error", "error": reason}]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        return (RESTART,)


def _progress(part: Part, *, started: bool) -> list[Chunk]:
    """Return the events that bring a queued command to its state. A command that waits for approval is queued."""
    if part["toolStatus"] == "queued":
        return []
    chunks = [_event("tool-start", part)] if started else []
    if part["toolStatus"] == "completed":
        chunks.append({**_event("tool-result", part), "result": part["content"], "isError": part["isError"]})
    return chunks


def _event(kind: str, part: Part) -> Chunk:
    return {"type": kind, **{name: part[name] for name in ("command", "commandId", "callslip_id")}}


open_stream = partial(TurnStream, ShellRenderer)
STREAM = Streaming(encoder=open_stream, frame=sse_frame, headers=SSE_HEADERS)
