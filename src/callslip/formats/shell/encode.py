"""Commands and texts out: stored messages with parts (S0.8), and one turn as the events that make its parts (S0.4).

All that the agent did in a turn is one assistant message, `turn-` and the turn's name; what it did outside of any turn
is one message up to the next user message or turn. A page that reads a turn's events has the parts of that message,
after every event. What no event can say of a card makes a `Restart`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from callslip.formats.base import SSE_HEADERS, Source, Streaming, snapshot_of, sse_frame
from callslip.formats.shell.parts import (
    BETWEEN,
    RENDERED_FIELDS,
    Part,
    Spoken,
    has_run,
    is_shown,
    text_kind,
    text_part,
    tool_part,
)
from callslip.formats.turn_scope import message_id
from callslip.formats.turn_stream import RestartNeeded, TurnStream
from callslip.model.entries import Append, Entry, Message, Set, Thought, ToolCall
from callslip.rules.entry_blocks import split_blocks

Chunk = dict[str, Any]
Stored = dict[str, Any]

RESTART: Chunk = {"type": "restart"}


# Stored messages


def history(source: Source) -> list[Stored]:
    """A session's messages, oldest first, from its state, a snapshot of it, or its rendered entries."""
    return [message for block in split_blocks(snapshot_of(source).entries) for message in _messages(block)]


def _messages(block: list[Entry]) -> list[Stored]:
    """The messages of a block in the order in which they began: what a person said, and the one of the agent."""
    made: list[Stored] = []
    answer: Stored = {}
    for entry in block:
        if isinstance(entry, Message) and entry.role == "user":
            made.append(_prompt(entry))
        elif is_shown(entry):
            if not answer:
                identity = message_id(entry.turn) if entry.turn else f"msg-{entry.id}"
                answer = {"id": identity, "role": "assistant", "parts": []}
                made.append(answer)
            _add(answer["parts"], entry)
    return [_joined(message) for message in made]


def _prompt(entry: Message) -> Stored:
    """What a person said: as a part, and under the name that readers of plain messages look for."""
    parts = [text_part("text", entry.content)]
    return {"id": f"msg-{entry.id}", "role": "user", "content": entry.content, "parts": parts}


def _add(parts: list[Part], entry: Entry) -> None:
    """A text that follows one of its kind goes on with that part. Its pieces are joined in the end."""
    if isinstance(entry, ToolCall):
        parts.append(tool_part(entry))
    elif isinstance(entry, Message | Thought):
        kind = text_kind(entry)
        if not parts or parts[-1]["type"] != kind:
            parts.append({"type": kind, "content": []})
        parts[-1]["content"].append(entry.content)


def _joined(message: Stored) -> Stored:
    for part in message["parts"]:
        if isinstance(part.get("content"), list):
            part["content"] = BETWEEN.join(part["content"])
    return message


# One turn, live


class ShellRenderer:
    """Render a turn as text and tool events."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._last = ""

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        return self._stream.begin_all(entries)

    def begin(self, entry: Entry) -> list[Chunk]:
        if isinstance(entry, ToolCall):
            self._last = "tool"
        elif is_shown(entry):
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
        part = tool_part(entry)
        if sent is None:
            return part, [_event("tool-call", part), *_steps(part, started=has_run(entry))]
        if sent == part:
            return part, []
        if sent["command"] != part["command"]:
            raise RestartNeeded("a command was changed")
        if sent["toolStatus"] == "running" and part["toolStatus"] == "queued":
            raise RestartNeeded("a command went back to the queue")
        return part, _steps(part, started=sent["toolStatus"] == "queued" and has_run(entry))

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        return []

    def finish(self, is_over: bool) -> list[Chunk]:
        reason = self._stream.turn.reason
        return [{"type": "done", **({"reason": reason} if reason else {})}] if is_over else []

    def close(self, reason: str) -> list[Chunk]:
        return [{"type": "error", "error": reason}]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        return (RESTART,)


def _steps(part: Part, *, started: bool) -> list[Chunk]:
    """What takes a queued card to where its command stands. A command that waits again is queued (C13)."""
    if part["toolStatus"] == "queued":
        return []
    chunks = [_event("tool-start", part)] if started else []
    if part["toolStatus"] == "completed":
        chunks.append({**_event("tool-result", part), "result": part["content"], "isError": part["isError"]})
    return chunks


def _event(kind: str, part: Part) -> Chunk:
    return {"type": kind, "command": part["command"], "commandId": part["commandId"]}


open_stream = partial(TurnStream, ShellRenderer)
STREAM = Streaming(encoder=open_stream, frame=sse_frame, headers=SSE_HEADERS)
