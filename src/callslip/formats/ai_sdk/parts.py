"""Make the part of an entry that the AI SDK client shows, for the stream and for the history."""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk.calls import call_part, describe_request
from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.wire import Part
from callslip.formats.assistant_message import activity_data, is_text_or_call
from callslip.formats.js_json import readable
from callslip.model.entries import Entry, Message, ModeChange, PermissionRequest, Plan, Thought, ToolCall

Spoken = Message | Thought


def is_shown(dialect: Dialect, entry: Entry) -> bool:
    """Return whether an entry is a part of an assistant message. Most dialects show a request on its call."""
    if isinstance(entry, PermissionRequest):
        return dialect.requests == "apart"
    return is_text_or_call(entry) or isinstance(entry, Plan | ModeChange)


def part_of(dialect: Dialect, entry: Entry, request: PermissionRequest | None = None) -> Part:
    """Return the part of an entry that is shown. `request` is the last request about a call."""
    if isinstance(entry, ToolCall):
        return call_part(dialect, entry, entry.input_text, request)
    if isinstance(entry, Message | Thought):
        kind = text_kind(entry)
        ids = {"id": text_id(entry)} if kind == "reasoning" else {}
        return {"type": kind, **ids, "text": entry.content, "state": "streaming" if entry.streaming else "done"}
    kind, data = _data(entry)
    return {"type": f"data-{kind}", "id": f"{kind}-{entry.id}", "data": readable(data)}


def text_kind(entry: Spoken) -> str:
    """Return the client's type for a text."""
    return "text" if isinstance(entry, Message) else "reasoning"


def text_id(entry: Spoken) -> str:
    """Return the id of a text in chunks."""
    return f"{text_kind(entry)}-{entry.id}"


def _data(entry: Entry) -> tuple[str, dict[str, Any]]:
    """Return the kind and the data of an entry that no model reads."""
    if isinstance(entry, Plan | ModeChange):
        return activity_data(entry)
    assert isinstance(entry, PermissionRequest)
    answer = {"option": entry.response_option, "by": entry.by, "reason": entry.reason, "answerAt": entry.answer_at}
    return "approval", {
        "approvalId": entry.approval,
        "toolCallId": entry.tool_call_id,
        "state": entry.state,
        **describe_request(entry),
        **{name: value for name, value in answer.items() if value},
    }
