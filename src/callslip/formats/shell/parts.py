"""Make the parts of this format: texts, tools, and thoughts as `reasoning`, for the stream and for the history."""

from __future__ import annotations

from typing import Any

from callslip.formats.message_ids import foreign_id
from callslip.formats.outcome import is_open, queued
from callslip.formats.shell.history import command_of, result_of
from callslip.formats.shell.results import NO_OUTPUT, format_tool_results, split_tool_results
from callslip.model import codec
from callslip.model.entries import Message, Thought, ToolCall
from callslip.model.names import SHELL_NAMESPACE
from callslip.model.state_names import STATE_NAMES

Part = dict[str, Any]
Spoken = Message | Thought

UNNAMED = "unknown"

BETWEEN = "\n\n"
"""Separates consecutive texts: their chunks have no id, so that a page joins them to one part."""

# The fields of a call, as patches name them, that show in its part. Printed output shows when the command has ended.
RENDERED_FIELDS = frozenset({"status", "toolName", "title", "kind", "rawInput", "scope", "foreignIds"})


def text_kind(entry: Spoken) -> str:
    """Return the type of the parts and events of a text."""
    return "text" if isinstance(entry, Message) else "reasoning"


def text_part(kind: str, text: str) -> Part:
    return {"type": kind, "content": text}


def own_id(entry: ToolCall) -> str:
    """Return the id of a command as its producer gave it; of another call the id that all clients see."""
    return foreign_id(entry, SHELL_NAMESPACE) or entry.tool_call_id


def tool_part(entry: ToolCall, command_id: str) -> Part:
    """Return the part of a call; `content` and `isError` are set when it has ended."""
    command = command_of(entry) or entry.kind or UNNAMED
    part: Part = {"type": "tool", "command": command, "commandId": command_id, "callslip_id": entry.call_id}
    if is_open(entry):
        return {**part, "toolStatus": STATE_NAMES[entry.status].shell}
    if entry.scope == "detached":
        return {**part, "toolStatus": "completed", "content": codec.encode(queued(entry)).decode(), "isError": False}
    names = STATE_NAMES[entry.status]
    # The same text that a model reads, without its fence.
    (body,) = split_tool_results(format_tool_results([result_of(entry)])) or [""]
    return {**part, "toolStatus": names.shell, "content": body or NO_OUTPUT, "isError": names.error}


def has_run(entry: ToolCall) -> bool:
    """Return whether a command was started. One that was denied, or reported only by its result, was not."""
    return entry.scope != "detached" and (entry.started_at > 0 or entry.status == "running")
