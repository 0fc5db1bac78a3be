"""Encode a call as one `tool_call` update: its arguments, its status, its output, and why there is none."""

from __future__ import annotations

from typing import Any, TypeAlias

from callslip.formats.acp import blocks
from callslip.formats.json_fields import as_dict
from callslip.formats.outcome import error_of, parsed_input
from callslip.formats.providers.results import MISSING_RESULT_TEXTS
from callslip.model.entries import ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES, strip_mcp_prefix

Update: TypeAlias = dict[str, Any]

KINDS = {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
UNNAMED = "unknown"


def call_update(entry: ToolCall) -> Update:
    """Return the update of a call. Unknown fields are left out, because null would clear them."""
    fields = {
        "name": _name(entry),
        "kind": _kind(entry.kind),
        "content": _content(entry) or None,
        "locations": _locations(entry.locations) or None,
        "rawInput": parsed_input(entry),
        "rawOutput": entry.output if entry.status in TERMINAL_STATES else entry.progress,
    }
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": entry.tool_call_id,
        "title": entry.title or entry.tool_name or entry.kind or UNNAMED,
        "status": STATE_NAMES[entry.status].acp,
        **{name: value for name, value in fields.items() if value is not None},
        "_meta": {"callslip": _extras(entry)},
    }


def _name(entry: ToolCall) -> str | None:
    """Return the tool's name as the agent writes it, if the plain name can be derived from it."""
    raw = entry.raw_tool_name
    return (raw if raw and strip_mcp_prefix(raw) == entry.tool_name else entry.tool_name) or None


def _kind(kind: str | None) -> str | None:
    return kind if kind is None or kind in KINDS else "other"


def _locations(value: Any) -> list[Update]:
    locations = [as_dict(location) for location in blocks.listed(value)]
    return [
        {"path": location["path"], **({"line": location["line"]} if _is_line(location.get("line")) else {})}
        for location in locations
        if isinstance(location.get("path"), str)
    ]


def _is_line(line: Any) -> bool:
    return type(line) is int and 0 <= line < 2**32


# What a user sees


def _content(entry: ToolCall) -> list[Update]:
    """Return the content, or else the output as text, with notes about an error or a cut."""
    items = [item for block in blocks.listed(entry.content) if (item := blocks.item(block))]
    if not items:
        # Any other output is in `rawOutput`.
        text = entry.output if isinstance(entry.output, str) else entry.output_text
        items = [blocks.shown(text)] if text else []
    notes = [item for note in _notes(entry) if (item := blocks.shown(note)) not in items]
    return items + notes


def _notes(entry: ToolCall) -> list[str]:
    error = _error_text(entry) if STATE_NAMES[entry.status].error else ""
    blob = entry.content_blob or entry.blob  # The content is shown before the output.
    size = f" of {blob.size} bytes" if blob else ""
    cut = f"(cut: only the beginning{size} is shown)" if blob or entry.truncated else ""
    return [note for note in (error, cut) if note]


def _error_text(entry: ToolCall) -> str:
    """Return the error or reason of a failed call; any other end also has a sentence of its own."""
    message = error_of(entry)
    error = entry.reason if message is None else blocks.plain(message)
    error = error or (entry.report.text if entry.report is not None else "")
    if entry.status == "failed":
        return error
    return MISSING_RESULT_TEXTS[entry.status] + (f": {error}" if error else ".")


def _extras(entry: ToolCall) -> Update:
    """Return what version 1 has no field for."""
    fields = {
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
        "contentSize": entry.content_blob.size if entry.content_blob else None,
        "contentBlob": entry.content_blob.hash if entry.content_blob else None,
    }
    return {name: value for name, value in fields.items() if value is not None}
