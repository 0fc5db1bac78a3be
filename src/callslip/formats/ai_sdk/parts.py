"""One entry, one part: what the AI SDK client shows of an entry. Stream and history both build parts only here."""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk.calls import call_part, question
from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.wire import Part
from callslip.formats.js_json import readable
from callslip.model.entries import Entry, Message, ModeChange, PermissionRequest, Plan, Thought, ToolCall

Spoken = Message | Thought


def is_shown(dialect: Dialect, entry: Entry) -> bool:
    """Whether an entry is a part of an assistant message. A request shows on its call where calls can say it."""
    if isinstance(entry, PermissionRequest):
        return dialect.requests == "apart"
    return isinstance(entry, Thought | ToolCall | Plan | ModeChange) or (
        isinstance(entry, Message) and entry.role != "user"
    )


def part_of(dialect: Dialect, entry: Entry, asked: PermissionRequest | None = None) -> Part:
    """The part of an entry that is shown. `asked` is the last request about a call."""
    if isinstance(entry, ToolCall):
        return call_part(dialect, entry, entry.input_text, asked)
    if isinstance(entry, Message | Thought):
        return _text_part(entry)
    kind, data = _data(entry)
    return {"type": f"data-{kind}", "id": f"{kind}-{entry.id}", "data": readable(data)}


def text_kind(entry: Spoken) -> str:
    """What the client calls a text of this kind."""
    return "text" if isinstance(entry, Message) else "reasoning"


def text_id(entry: Spoken) -> str:
    """The id by which chunks name a text."""
    return f"{text_kind(entry)}-{entry.id}"


def _text_part(entry: Spoken) -> Part:
    kind = text_kind(entry)
    named = {"id": text_id(entry)} if kind == "reasoning" else {}
    return {"type": kind, **named, "text": entry.content, "state": "streaming" if entry.streaming else "done"}


def _data(entry: Entry) -> tuple[str, dict[str, Any]]:
    """What reaches no model, and how it is called."""
    if isinstance(entry, Plan):
        return "plan", {"entries": entry.entries}
    if isinstance(entry, ModeChange):
        return "mode", {"previousModeId": entry.previous_mode_id, "newModeId": entry.new_mode_id}
    assert isinstance(entry, PermissionRequest)
    answer = {"option": entry.response_option, "by": entry.by, "reason": entry.reason}
    return "approval", {
        "approvalId": entry.request_id,
        "toolCallId": entry.tool_call_id,
        "state": entry.state,
        **question(entry),
        **{name: value for name, value in answer.items() if value},
    }
