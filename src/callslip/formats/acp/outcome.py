"""A call as one `tool_call` update: what was asked, where it stands, what came out, and why if nothing did."""

from __future__ import annotations

from typing import Any, TypeAlias

from callslip.errors import InvalidInputError
from callslip.formats.acp import blocks
from callslip.formats.json_fields import as_dict
from callslip.formats.providers.results import HOW
from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES, strip_mcp_prefix

Update: TypeAlias = dict[str, Any]

KINDS = {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
UNNAMED = "unknown"


def call_update(entry: ToolCall) -> Update:
    """The update. What is not known is left out: null would say that it was taken back (C10)."""
    told = {
        "name": _name(entry),
        "kind": _kind(entry.kind),
        "content": _content(entry) or None,
        "locations": _locations(entry.locations) or None,
        "rawInput": _input(entry),
        "rawOutput": entry.output if entry.status in TERMINAL_STATES else entry.progress,
    }
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": entry.tool_call_id,
        "title": entry.title or entry.tool_name or entry.kind or UNNAMED,
        "status": STATE_NAMES[entry.status].acp,
        **{name: value for name, value in told.items() if value is not None},
        "_meta": {"callslip": _extras(entry)},
    }


def _name(entry: ToolCall) -> str | None:
    """The tool's name as its agent writes it, from which the clean one can be had again (S2.5)."""
    raw = entry.raw_tool_name
    return (raw if raw and strip_mcp_prefix(raw) == entry.tool_name else entry.tool_name) or None


def _kind(kind: str | None) -> str | None:
    return kind if kind is None or kind in KINDS else "other"


def _input(entry: ToolCall) -> Any:
    """The arguments, or as much as came of them."""
    if entry.raw_input is not None or not entry.input_text:
        return entry.raw_input
    try:
        return codec.parse_json(entry.input_text)
    except InvalidInputError:
        return entry.input_text


def _locations(given: Any) -> list[Update]:
    found = [as_dict(one) for one in blocks.listed(given)]
    return [
        {"path": one["path"], **({"line": one["line"]} if _is_line(one.get("line")) else {})}
        for one in found
        if isinstance(one.get("path"), str)
    ]


def _is_line(line: Any) -> bool:
    return type(line) is int and 0 <= line < 2**32


# What a person sees of it


def _content(entry: ToolCall) -> list[Update]:
    """What the agent showed; else the text that came out. Behind it, why there is nothing more."""
    shown = [made for one in blocks.listed(entry.content) if (made := blocks.item(one))]
    if not shown:
        printed = _printed(entry)
        shown = [blocks.shown(printed)] if printed else []
    said = [made for note in _notes(entry) if (made := blocks.shown(note)) not in shown]
    return shown + said


def _printed(entry: ToolCall) -> str:
    """The output if it is a text, else what was printed. Any other output is in `rawOutput`, for programs."""
    return entry.output if isinstance(entry.output, str) else entry.output_text


def _notes(entry: ToolCall) -> list[str]:
    why = _why(entry) if STATE_NAMES[entry.status].error else ""
    size = f" of {entry.blob.size} bytes" if entry.blob else ""
    cut = f"(cut: only the beginning{size} is shown)" if entry.truncated else ""
    return [note for note in (why, cut) if note]


def _why(entry: ToolCall) -> str:
    """Why it did not end well. Of a failure only what is said about it; any other end has a name of its own."""
    said = as_dict(entry.error).get("message")
    error = said if isinstance(said, str) and said else blocks.plain(entry.error) if entry.error is not None else ""
    why = error or entry.reason
    if entry.status == "failed":
        return why
    return HOW[entry.status] + (f": {why}" if why else ".")


def _extras(entry: ToolCall) -> Update:
    """What version 1 has no word for."""
    told = {
        "callId": entry.call_id,
        "state": entry.status,
        "kind": entry.kind if _kind(entry.kind) != entry.kind else None,
        "exitStatus": entry.exit_status,
        "error": entry.error,
        "reason": entry.reason or None,
        "approval": entry.approval or None,
        "scope": "detached" if entry.scope == "detached" else None,
        "iteration": entry.iteration if entry.iteration >= 0 else None,
        "index": entry.index if entry.index >= 0 else None,
        "startedAt": entry.started_at or None,
        "endedAt": entry.ended_at or None,
        "truncated": entry.truncated or None,
        "size": entry.blob.size if entry.blob else None,
        "blob": entry.blob.hash if entry.blob else None,
    }
    return {name: value for name, value in told.items() if value is not None}
