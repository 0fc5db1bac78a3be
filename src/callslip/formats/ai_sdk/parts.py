"""One entry, one part: what the AI SDK 6 client shows of an entry. Stream and history both build parts only here.

Every tool is a `dynamic-tool`, since the client knows none of our tools by type. What version 6 has no word for stands
under `toolMetadata.callslip`: it is stored with the part and goes to no model.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

from callslip import codec
from callslip.entries import Entry, Message, ModeChange, PermissionRequest, Plan, Thought, ToolCall
from callslip.errors import Refused
from callslip.formats.ai_sdk.wire import Part, readable
from callslip.lifecycle import ENDS
from callslip.words import WORDS

Spoken = Message | Thought

# What a change of an entry must touch to change its part. Progress, locations and output still being written do not.
SHOWN = frozenset({"status", "toolName", "title", "kind", "rawInput", "approval", "exitStatus", "scope"})

_ENDED_AS = {
    "failed": "The tool call failed",
    "denied": "The tool call was denied",
    "cancelled": "The tool call was cancelled",
    "expired": "The tool call ran out of time",
    "lost": "The outcome of the tool call is unknown",
}


def is_shown(entry: Entry) -> bool:
    """Whether an entry is a part of an assistant message. A request for approval shows on its call."""
    return isinstance(entry, Thought | ToolCall | Plan | ModeChange) or (
        isinstance(entry, Message) and entry.role != "user"
    )


def part_of(entry: Entry, asked: PermissionRequest | None = None) -> Part:
    """The part of an entry that is shown. `asked` is the request that a call awaits."""
    if isinstance(entry, ToolCall):
        return call_part(entry, entry.input_text, asked)
    if isinstance(entry, Message | Thought):
        return _text_part(entry)
    if isinstance(entry, Plan):
        return _data_part("plan", entry, {"entries": entry.entries})
    assert isinstance(entry, ModeChange)
    modes = {"previousModeId": entry.previous_mode_id, "newModeId": entry.new_mode_id}
    return _data_part("mode", entry, modes)


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


def _data_part(kind: str, entry: Entry, data: Any) -> Part:
    return {"type": f"data-{kind}", "id": f"{kind}-{entry.id}", "data": readable(data)}


# Calls


def is_open(entry: ToolCall) -> bool:
    """Whether the message waits for this call. A detached one has its answer already: that it is queued."""
    return entry.scope != "detached" and entry.status not in ENDS


def call_part(entry: ToolCall, input_text: str, asked: PermissionRequest | None) -> Part:
    """The part of a call, whose arguments so far are `input_text` if they come in pieces."""
    part: Part = {
        "type": "dynamic-tool",
        "toolName": entry.tool_name or entry.kind or "unknown",
        "toolCallId": entry.tool_call_id,
        "toolMetadata": {"callslip": readable(_extras(entry))},
    }
    if entry.title:
        part["title"] = entry.title
    return part | _standing(entry, input_text, asked)


def _standing(entry: ToolCall, input_text: str, asked: PermissionRequest | None) -> Part:
    """Where the call stands: its state, and what belongs to that state."""
    if entry.scope == "detached":
        queued = {"status": "queued", "correlation_id": entry.call_id}
        return {"state": "output-available", "input": _input(entry, input_text), "output": queued}
    if _input_is_coming(entry, input_text):
        return _coming(input_text)
    told: Part = {"state": WORDS[entry.status].v6, "input": _input(entry, input_text)}
    if entry.status == "awaiting_approval":
        told["approval"] = {"id": entry.approval, "descriptor": _question(asked)}
    elif told["state"] == "output-available":
        told["output"] = _output(entry)
    elif told["state"] == "output-error":
        told["errorText"] = _error_text(entry)
    return told


def _input_is_coming(entry: ToolCall, input_text: str) -> bool:
    if entry.raw_input is not None or entry.status not in ("queued", "running"):
        return False
    return entry.status == "queued" or bool(input_text)


def _coming(input_text: str) -> Part:
    """Arguments in pieces are shown as text: what an unfinished JSON text means would be a guess of the client's."""
    told: Part = {"state": "input-streaming", "inputEncoding": "text"}
    return told | ({"input": input_text, "rawInput": input_text} if input_text else {})


def _input(entry: ToolCall, input_text: str) -> Any:
    """The arguments, or as much of them as ever came."""
    if entry.raw_input is not None:
        return readable(entry.raw_input)
    if not input_text:
        return {}
    with contextlib.suppress(Refused):
        return readable(codec.parse(input_text))
    return input_text


def _question(asked: PermissionRequest | None) -> dict[str, Any]:
    """What is asked, in the words of whoever asks."""
    if asked is None:
        return {}
    told = {"description": asked.description, "options": asked.options, "expiresAt": asked.expires_at}
    return readable({name: value for name, value in told.items() if value})


def _extras(entry: ToolCall) -> dict[str, Any]:
    if entry.scope == "detached":
        told: dict[str, Any] = {"scope": "detached", "kind": entry.kind}
    else:
        told = {
            "state": entry.status,
            "kind": entry.kind,
            "reason": entry.reason,
            "exitStatus": entry.exit_status,
            "truncated": entry.truncated or None,
            "size": entry.blob and entry.blob.size,
            "blob": entry.blob and entry.blob.hash,
        }
    return {"callId": entry.call_id, **{name: value for name, value in told.items() if value not in (None, "")}}


# What a call came to


def _output(entry: ToolCall) -> Any:
    """The output, else what was shown of it, else what was printed."""
    if entry.output is not None:
        return readable(entry.output)
    shown = _shown(entry.content)
    if not shown:
        return entry.output_text or None
    texts = [_text_of(block) for block in shown]
    if all(text is not None for text in texts):
        return "\n".join(text for text in texts if text)
    return readable(shown)


def _shown(content: Any) -> list[Any]:
    """The blocks of a call's content, but for references to a terminal, whose text is the printed output."""
    blocks = cast("list[Any]", content) if isinstance(content, list) else [] if content is None else [content]
    return [block for block in blocks if not _is(block, "terminal")]


def _is(block: Any, kind: str) -> bool:
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == kind


def _text_of(block: Any) -> str | None:
    """The text of a text block, wrapped as content or not; None for any other block."""
    if _is(block, "content"):
        return _text_of(block.get("content"))
    said = block.get("text") if _is(block, "text") else None
    return said if isinstance(said, str) else None


def _error_text(entry: ToolCall) -> str:
    """Why there is no output, as a model can read it, and what had come out by then."""
    why, output = _said(entry.error) or entry.reason, _said(_output(entry))
    if entry.status != "failed" or not (why or output):
        why = _ENDED_AS[entry.status] + (f": {why}" if why else ".")
    return "\n".join(dict.fromkeys(text for text in (why, output) if text))


def _said(value: Any) -> str:
    """A value as text: what an error object says, or its JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dict):
        for name in ("message", "error"):
            said = cast("dict[str, Any]", value).get(name)
            if said and isinstance(said, str):
                return said
    return codec.encode(readable(value)).decode()
