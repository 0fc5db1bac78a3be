"""One entry, one message or one call in it: what the client holds of an entry. Stream and history build both only here.

A call is told in two places: its message lists it with its arguments, and a message of its own brings the result. The
first cannot be changed once the arguments are whole, so what may still change (its state, its title) is told by events
that leave no trace, and stands with the result in the end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from callslip.formats.ag_ui.outgoing import MAX_DELTA_CHARS, ours
from callslip.formats.ag_ui.wire import parsed
from callslip.formats.js_json import readable
from callslip.formats.json_fields import as_dict, as_list, as_str, is_whole
from callslip.formats.providers.results import result_of
from callslip.model import codec
from callslip.model.entries import Entry, Message, ModeChange, PermissionRequest, Plan, Thought, ToolCall
from callslip.model.state_names import STATE_NAMES

Listed = dict[str, Any]

# What a change of an entry must touch to be told. Progress, locations and output still being written are not.
RENDERED_FIELDS = frozenset({"status", "toolName", "title", "kind", "rawInput", "approval"})

# Kinds of media by the first half of their type; anything else is a document.
_MEDIA = {"image", "audio", "video"}
_PARTS = {*_MEDIA, "document"}
_SOURCES = {"data": {"value", "mimeType"}, "url": {"value"}, "file": {"value"}}


def message_id(entry: Entry) -> str:
    """The id of the message that begins with an entry."""
    return f"turn-{entry.turn}-{entry.id}" if entry.turn else f"msg-{entry.id}"


def is_told(entry: Entry) -> bool:
    """Whether the agent did this and a message shows it. A request for approval shows in a run's outcome only."""
    return isinstance(entry, Thought | ToolCall | Plan | ModeChange) or (
        isinstance(entry, Message) and entry.role != "user"
    )


# Texts


def role_of(entry: Message | Thought) -> str:
    return "reasoning" if isinstance(entry, Thought) else "assistant"


def text_message(entry: Message | Thought) -> Listed:
    """What the agent said or thought."""
    return {"id": message_id(entry), "role": role_of(entry), "content": entry.content}


def activity_message(entry: Plan | ModeChange) -> Listed:
    """What the agent set out to do. The client shows it and sends it to nobody."""
    if isinstance(entry, Plan):
        kind, content = "plan", {"entries": entry.entries}
    else:
        kind, content = "mode", {"previousModeId": entry.previous_mode_id, "newModeId": entry.new_mode_id}
    return {"id": message_id(entry), "role": "activity", "activityType": kind, "content": readable(content)}


def user_message(entry: Message) -> Listed:
    """What a person said: a text, or its parts if it came with files. Files that cannot be read are left out."""
    files = [part for block in as_list(entry.blocks) if (part := _file(as_dict(block)))]
    content: Any = [{"type": "text", "text": entry.content}, *files] if files else entry.content
    return {"id": f"msg-{entry.id}", "role": "user", "content": content}


def _file(block: dict[str, Any]) -> dict[str, Any] | None:
    media, data, source = block.get("mimeType"), block.get("data"), as_dict(block.get("source"))
    if isinstance(media, str) and isinstance(data, str):
        kind = media.partition("/")[0]
        inline = {"type": "data", "value": data, "mimeType": media}
        return {"type": kind if kind in _MEDIA else "document", "source": inline}
    kind, needed = as_str(block.get("type")), _SOURCES.get(as_str(source.get("type")))
    if kind not in _PARTS or needed is None:
        return None
    told = {name: value for name, value in source.items() if isinstance(value, str)}
    kept = {name: told[name] for name in ("type", "value", "mimeType", "provider") if name in told}
    return {"type": kind, "source": kept} if needed <= set(kept) else None


# Calls


def is_answered(entry: ToolCall) -> bool:
    """Whether a call has its result. A detached one has it at once: that it is queued."""
    return entry.scope == "detached" or STATE_NAMES[entry.status].ag_ui == "result"


def is_waiting(entry: ToolCall) -> bool:
    """Whether a call waits for somebody's approval."""
    return STATE_NAMES[entry.status].ag_ui == "interrupt"


def answered(entry: ToolCall) -> int:
    """The event that brought the result of a call that has one."""
    return entry.id if entry.scope == "detached" else entry.end


def name_of(entry: ToolCall) -> str:
    return entry.tool_name or entry.kind or "unknown"


def listed_call(entry: ToolCall, arguments: str) -> Listed:
    """A call in the message that holds it."""
    return {
        "id": entry.tool_call_id,
        "type": "function",
        "function": {"name": name_of(entry), "arguments": arguments},
        "metadata": ours({"callId": entry.call_id}),
    }


def arguments_of(entry: ToolCall, input_text: str) -> tuple[str, bool]:
    """The arguments as a text, and whether they are whole; `input_text` is what came of them in pieces.

    Whole arguments are always JSON. Agents announce calls with no arguments, or an empty object, before they know
    them: such a call has none until it ends or somebody is asked about it.
    """
    if entry.raw_input is not None and entry.raw_input != {}:
        return codec.encode(entry.raw_input).decode(), True
    if not is_answered(entry) and not entry.approval:
        return input_text, False
    if not input_text.strip():
        return "{}", True
    return input_text if is_whole(input_text) else codec.encode(input_text).decode(), True


def mean_the_same(one: str, other: str) -> bool:
    """Whether two texts are the same arguments, differently written."""
    return one == other or _sorted(one) == _sorted(other)


def _sorted(arguments: str) -> bytes:
    return codec.encode(_ordered(parsed(arguments)))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _ordered(members[name]) for name in sorted(members)}
    return [_ordered(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def result_message(entry: ToolCall) -> Listed:
    """What a call came to, in words that a model can read; how it ended stands in the metadata."""
    return {
        "id": f"{message_id(entry)}-result",
        "role": "tool",
        "toolCallId": entry.tool_call_id,
        "content": _cut(result_of(entry).text),
        "metadata": ours(_detached(entry) if entry.scope == "detached" else _end(entry)),
    }


def _cut(text: str) -> str:
    """A result cannot come in pieces, so one that the client would not take is cut."""
    return (
        text
        if len(text) <= MAX_DELTA_CHARS
        else f"{text[:MAX_DELTA_CHARS]}\n(cut: {len(text) - MAX_DELTA_CHARS} more characters)"
    )


def _detached(entry: ToolCall) -> dict[str, Any]:
    return {"callId": entry.call_id, "scope": entry.scope}


def _end(entry: ToolCall) -> dict[str, Any]:
    return {
        "callId": entry.call_id,
        "state": entry.status,
        "error": STATE_NAMES[entry.status].error or None,
        "title": entry.title,
        "kind": entry.kind,
        "reason": entry.reason,
        "exitStatus": entry.exit_status,
        "truncated": entry.truncated or None,
        "size": entry.blob and entry.blob.size,
        "blob": entry.blob and entry.blob.hash,
    }


def standing(entry: ToolCall) -> dict[str, Any]:
    """Where an open call stands, for the event that leaves no trace."""
    waits = entry.approval if is_waiting(entry) else ""
    told = {"state": entry.status, "title": entry.title, "kind": entry.kind, "approval": waits}
    said = {name: value for name, value in told.items() if value}
    return {"toolCallId": entry.tool_call_id, "callId": entry.call_id, **said}


# Requests for approval

_ANSWER = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}, "editedArgs": {}},
    "required": ["approved"],
}


def interrupt(entry: ToolCall, asked: PermissionRequest | None) -> dict[str, Any]:
    """What a call waits for. Its id is that of the approval, and the options are in the words of whoever asks."""
    told: dict[str, Any] = {
        "id": entry.approval,
        "reason": "tool_call",
        "toolCallId": entry.tool_call_id,
        "responseSchema": _ANSWER,
        "metadata": ours({"callId": entry.call_id, "options": (asked.options if asked else None) or None}),
    }
    if asked is not None and asked.description:
        told["message"] = asked.description
    until = _time(asked.expires_at) if asked is not None else ""
    return {**told, "expiresAt": until} if until else told


def _time(at: int) -> str:
    """A time as the client reads one; "" for none, or one that no calendar has."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat().replace("+00:00", "Z") if at > 0 else ""
    except (OverflowError, ValueError, OSError):
        return ""
