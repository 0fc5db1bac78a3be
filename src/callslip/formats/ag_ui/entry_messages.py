"""Make the AG-UI message of an entry, or the call in a message, for the stream and for the history.

A call is in two messages: one lists it with its arguments, another has its result. The first cannot change once the
arguments are complete. So changes of its state or title are sent as custom events, which no message shows, and the
result has them in the end.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any, cast

from callslip.formats.ag_ui.outgoing import MAX_DELTA_CHARS, metadata
from callslip.formats.assistant_message import activity_data, is_text_or_call
from callslip.formats.js_json import readable
from callslip.formats.json_fields import as_dict, as_list, as_str, parse_json_or
from callslip.formats.outcome import end_facts, is_open
from callslip.formats.providers.results import result_of
from callslip.model import codec
from callslip.model.display import parse_time
from callslip.model.entries import Entry, Message, ModeChange, PermissionRequest, Plan, Thought, ToolCall
from callslip.model.state_names import STATE_NAMES

Listed = dict[str, Any]

# The fields of a call, as patches name them, that the client gets. Progress, locations and printed output are not sent.
RENDERED_FIELDS = frozenset({"status", "toolName", "title", "kind", "rawInput", "approval"})

# Types of parts by the first half of the media type; anything else is a document.
_MEDIA_TYPES = {"image", "audio", "video"}
_PART_TYPES = {*_MEDIA_TYPES, "document"}
_SOURCE_FIELDS = {"data": {"value", "mimeType"}, "url": {"value"}, "file": {"value"}}


def message_id(entry: Entry) -> str:
    """Return the id of the message that begins with an entry."""
    return f"turn-{entry.turn}-{entry.id}" if entry.turn else f"msg-{entry.id}"


def is_shown(entry: Entry) -> bool:
    """Return whether a message of the agent shows an entry. A request for approval is in the outcome of a run only."""
    return is_text_or_call(entry) or isinstance(entry, Plan | ModeChange)


# Texts


def role_of(entry: Message | Thought) -> str:
    return "reasoning" if isinstance(entry, Thought) else "assistant"


def text_message(entry: Message | Thought) -> Listed:
    """Return the message of a text or thought."""
    return {"id": message_id(entry), "role": role_of(entry), "content": entry.content}


def activity_message(entry: Plan | ModeChange) -> Listed:
    """Return the message of a plan or mode. The client shows it and sends it to no model."""
    kind, content = activity_data(entry)
    return {"id": message_id(entry), "role": "activity", "activityType": kind, "content": readable(content)}


def user_message(entry: Message) -> Listed:
    """Return a user message: a text, or parts if it has files. Files of unknown form are left out."""
    files = [part for block in as_list(entry.blocks) if (part := _file(as_dict(block)))]
    content: Any = [{"type": "text", "text": entry.content}, *files] if files else entry.content
    return {"id": f"msg-{entry.id}", "role": "user", "content": content}


def _file(block: dict[str, Any]) -> dict[str, Any] | None:
    media, data, source = block.get("mimeType"), block.get("data"), as_dict(block.get("source"))
    if isinstance(media, str) and isinstance(data, str):
        kind = media.partition("/")[0]
        inline = {"type": "data", "value": data, "mimeType": media}
        return {"type": kind if kind in _MEDIA_TYPES else "document", "source": inline}
    kind, needed = as_str(block.get("type")), _SOURCE_FIELDS.get(as_str(source.get("type")))
    if kind not in _PART_TYPES or needed is None:
        return None
    names = ("type", "value", "mimeType", "provider")
    fields = {name: source[name] for name in names if isinstance(source.get(name), str)}
    return {"type": kind, "source": fields} if needed <= set(fields) else None


# Calls


def is_answered(entry: ToolCall) -> bool:
    """Return whether a call has its result. A detached call has it at once: that it is queued."""
    return not is_open(entry)


def is_waiting(entry: ToolCall) -> bool:
    """Return whether a call waits for approval."""
    return STATE_NAMES[entry.status].ag_ui == "interrupt"


def answer_seq(entry: ToolCall) -> int:
    """Return the seq of the event with the result of a call that has one."""
    return entry.id if entry.scope == "detached" else entry.end


def name_of(entry: ToolCall) -> str:
    return entry.tool_name or entry.kind or "unknown"


def listed_call(entry: ToolCall, arguments: str) -> Listed:
    """Return a call as its message lists it."""
    return {
        "id": entry.tool_call_id,
        "type": "function",
        "function": {"name": name_of(entry), "arguments": arguments},
        "metadata": metadata({"callId": entry.call_id}),
    }


def arguments_of(entry: ToolCall, input_text: str) -> tuple[str, bool]:
    """Return the arguments as text, and whether they are complete; `input_text` is what was streamed of them.

    Complete arguments are always JSON. Agents announce calls with no arguments, or an empty object, before they know
    them: such a call has none until it ends or waits for approval.
    """
    if entry.raw_input is not None and entry.raw_input != {}:
        return codec.encode(entry.raw_input).decode(), True
    if not is_answered(entry) and not entry.approval:
        return input_text, False
    if not input_text.strip():
        return "{}", True
    is_json = parse_json_or(input_text, input_text) != input_text
    return input_text if is_json else codec.encode(input_text).decode(), True


def is_same_input(one: str, other: str) -> bool:
    """Return whether two JSON texts are the same arguments."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(arguments: str) -> bytes:
    return codec.encode(_sort_keys(parse_json_or(arguments, arguments) if arguments.strip() else {}))


def _sort_keys(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _sort_keys(members[name]) for name in sorted(members)}
    return [_sort_keys(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def result_message(entry: ToolCall) -> Listed:
    """Return the message with the result of a call as text for models. Its state is in the metadata."""
    detached = {"callId": entry.call_id, "scope": entry.scope}
    return {
        "id": f"{message_id(entry)}-result",
        "role": "tool",
        "toolCallId": entry.tool_call_id,
        "content": _cut(result_of(entry).text),
        "metadata": metadata(detached if entry.scope == "detached" else _end(entry)),
    }


def _cut(text: str) -> str:
    """Cut a result that is too long for the client: results cannot be streamed."""
    extra = len(text) - MAX_DELTA_CHARS
    return text if extra <= 0 else f"{text[:MAX_DELTA_CHARS]}\n(cut: {extra} more characters)"


def _end(entry: ToolCall) -> dict[str, Any]:
    return {
        "callId": entry.call_id,
        "state": entry.status,
        "error": STATE_NAMES[entry.status].error or None,
        "title": entry.title,
        **end_facts(entry),
    }


def call_status(entry: ToolCall, answer_at: str) -> dict[str, Any]:
    """Return the status of an open call, for the custom event. `answer_at` is where its request must be answered."""
    approval = entry.approval if is_waiting(entry) and not answer_at else ""
    fields = {"state": entry.status, "title": entry.title, "kind": entry.kind, "approval": approval}
    fields |= {"answerAt": answer_at}
    status = {name: value for name, value in fields.items() if value}
    return {"toolCallId": entry.tool_call_id, "callId": entry.call_id, **status}


# Requests for approval

_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}, "editedArgs": {}},
    "required": ["approved"],
}


def interrupt(entry: ToolCall, request: PermissionRequest | None) -> dict[str, Any]:
    """Return the interrupt for a call that waits for approval. Its id is that of the approval."""
    fields: dict[str, Any] = {
        "id": entry.approval,
        "reason": "tool_call",
        "toolCallId": entry.tool_call_id,
        "responseSchema": _ANSWER_SCHEMA,
        "metadata": metadata({"callId": entry.call_id, "options": (request.options if request else None) or None}),
    }
    if request is not None and request.description:
        fields["message"] = request.description
    expires_at = parse_time(request.expires_at, UTC) if request is not None else None
    if expires_at is not None:
        fields["expiresAt"] = expires_at.isoformat().replace("+00:00", "Z")
    return fields
