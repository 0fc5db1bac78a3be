"""What a page shows of an entry in this format: text parts, tool parts (S0.8), and thoughts as `reasoning` parts.

Stream and history both build tool parts only here.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.outcome import is_open, queued
from callslip.formats.shell.history import command_of, result_of
from callslip.formats.shell.results import NOTHING, format_tool_results, split_tool_results
from callslip.model import codec
from callslip.model.entries import Entry, Message, Thought, ToolCall
from callslip.model.state_names import STATE_NAMES

Part = dict[str, Any]
Spoken = Message | Thought

UNNAMED = "unknown"

BETWEEN = "\n\n"
"""Stands between two texts that follow each other: their pieces bear no name, so that a page makes one part of them."""

# What a change of an entry must touch to change its part. What a command prints is shown when it has ended.
RENDERED_FIELDS = frozenset({"status", "toolName", "title", "kind", "rawInput", "scope"})


def is_shown(entry: Entry) -> bool:
    """Whether an entry is a part of an assistant message. The format has no words for plans, modes and requests."""
    return isinstance(entry, Thought | ToolCall) or (isinstance(entry, Message) and entry.role != "user")


def text_kind(entry: Spoken) -> str:
    """What a part with this text is called, and the events that bring it."""
    return "text" if isinstance(entry, Message) else "reasoning"


def text_part(kind: str, text: str) -> Part:
    return {"type": kind, "content": text}


def tool_part(entry: ToolCall) -> Part:
    """A call and how it stands; `content` and `isError` come with its end."""
    part: Part = {"type": "tool", "command": _shown_command(entry), "commandId": entry.tool_call_id}
    if is_open(entry):
        return {**part, "toolStatus": STATE_NAMES[entry.status].shell}
    if entry.scope == "detached":
        return {**part, "toolStatus": "completed", "content": codec.encode(queued(entry)).decode(), "isError": False}
    word = STATE_NAMES[entry.status]
    return {**part, "toolStatus": word.shell, "content": _printed(entry), "isError": word.error}


def has_run(entry: ToolCall) -> bool:
    """Whether its command was ever begun: one that was denied, or only heard of by its result, was not."""
    return entry.scope != "detached" and (entry.started_at > 0 or entry.status == "running")


def _shown_command(entry: ToolCall) -> str:
    return command_of(entry) or entry.kind or UNNAMED


def _printed(entry: ToolCall) -> str:
    """The very text that a model is told (S0.6), out of its fence."""
    (body,) = split_tool_results(format_tool_results([result_of(entry)])) or [""]
    return body or NOTHING
