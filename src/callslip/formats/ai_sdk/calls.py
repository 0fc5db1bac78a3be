"""The part of a call. Every tool is a `dynamic-tool`, since the client knows none of our tools by type.

What the SDK has no word for stands under `toolMetadata.callslip`: it is stored with the part and goes to no model.
Output still being written is not shown: each preliminary output would replace the whole one before it, which costs the
square of what is printed, a running call would have the word of one that has ended (C13), and a model that is asked to
go on would take half an output for the result.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

from callslip.errors import InvalidInputError
from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.wire import Part
from callslip.formats.js_json import readable
from callslip.formats.outcome import is_open, output_of, queued
from callslip.model import codec
from callslip.model.entries import PermissionRequest, ToolCall

# What a change of an entry must touch to change its part. Progress, locations and output still being written do not.
RENDERED_FIELDS = frozenset({"status", "toolName", "title", "kind", "rawInput", "approval", "exitStatus", "scope"})

_ENDED_AS = {
    "failed": "The tool call failed",
    "denied": "The tool call was denied",
    "cancelled": "The tool call was cancelled",
    "expired": "The tool call ran out of time",
    "lost": "The outcome of the tool call is unknown",
}
_BLANK = " \t\r\n"  # to JSON
_APPROVED = {"granted": True, "refused": False}


def call_part(dialect: Dialect, entry: ToolCall, input_text: str, asked: PermissionRequest | None) -> Part:
    """The part of a call, whose arguments so far are `input_text` if they come in pieces.

    `asked` is the last request about it, if that was made in the same turn: a message tells of its own turn only.
    """
    part: Part = {
        "type": "dynamic-tool",
        "toolName": entry.tool_name or entry.kind or "unknown",
        "toolCallId": entry.tool_call_id,
    }
    approval = _approval(dialect, entry, asked)
    if dialect.extras:
        part["toolMetadata"] = {"callslip": readable(_extras(entry, asked if "approved" in approval else None))}
        part |= {"title": entry.title} if entry.title else {}
    if entry.scope == "detached":
        return part | {"state": "output-available", "input": _input(entry, input_text), "output": queued(entry)}
    if not approval and _input_is_coming(entry, input_text):
        return part | _coming(dialect, input_text)
    part |= {"approval": approval} if approval else {}
    answer = approval.get("approved")
    word = dialect.word(entry.status, answer is False, answer is True)
    return part | _standing(word, entry, input_text)


def _standing(word: str, entry: ToolCall, input_text: str) -> Part:
    """Where the call stands: its state, and what belongs to that state."""
    told: Part = {"state": word, "input": _input(entry, input_text)}
    if word == "output-available":
        told["output"] = readable(output_of(entry))
    elif word == "output-error":
        told["errorText"] = _error_text(entry)
    return told


# Arguments


def _input_is_coming(entry: ToolCall, input_text: str) -> bool:
    """Whoever was asked about a call, or began it, took its arguments as they were, unless there are pieces of more."""
    if entry.raw_input is not None or entry.status not in ("queued", "running"):
        return False
    return bool(input_text) or not (entry.approval or entry.started_at)


def may_change(part: Part, entry: ToolCall, piece: str) -> bool:
    """Whether a piece of a call's arguments may change its part: seldom, and told without a look at the rest."""
    if entry.raw_input is not None:
        return False
    if is_open(entry) and "approval" not in part and _input_is_coming(entry, piece):
        return True
    return "}" in piece or (bool(part["input"]) and bool(piece.strip(_BLANK)))


def _coming(dialect: Dialect, input_text: str) -> Part:
    """Arguments in pieces are shown as text: what an unfinished JSON text means would be a guess of the client's.

    Version 5 can only guess, so there they are shown when they are whole.
    """
    if not dialect.pieces:
        return {"state": "input-streaming"}
    told: Part = {"state": "input-streaming", "inputEncoding": "text"}
    return told | ({"input": input_text, "rawInput": input_text} if input_text else {})


def _input(entry: ToolCall, input_text: str) -> Any:
    """The arguments; of a call that ended, as much of them as ever came.

    While more may come they are shown once they are a whole object, which no piece can make longer: shown with every
    piece they would cost the square of their length.
    """
    if entry.raw_input is not None:
        return readable(entry.raw_input)
    given: Any = input_text or {}
    with contextlib.suppress(InvalidInputError):
        given = codec.parse_json(input_text) if input_text else {}
    final = entry.scope != "detached" and not is_open(entry)
    return readable(given) if final or isinstance(given, dict) else {}


# Requests for approval


def _approval(dialect: Dialect, entry: ToolCall, asked: PermissionRequest | None) -> dict[str, Any]:
    """The request that a call shows, with its answer where the client keeps one; {} if it shows none."""
    if dialect.requests == "apart" or entry.scope == "detached":
        return {}
    request = {"id": entry.approval, "descriptor": question(asked)}
    if entry.status == "awaiting_approval":
        return request
    if dialect.requests == "waiting" or asked is None or asked.state not in _APPROVED:
        return {}
    return request | {"approved": _APPROVED[asked.state]} | ({"reason": asked.reason} if asked.reason else {})


def question(asked: PermissionRequest | None) -> dict[str, Any]:
    """What is asked, in the words of whoever asks."""
    if asked is None:
        return {}
    told = {"description": asked.description, "options": asked.options, "expiresAt": asked.expires_at}
    return readable({name: value for name, value in told.items() if value})


# What the SDK has no word for


def _extras(entry: ToolCall, answered: PermissionRequest | None) -> dict[str, Any]:
    told = _detached(entry) if entry.scope == "detached" else _state(entry)
    if answered is not None:
        told |= {"option": answered.response_option, "by": answered.by}
    return {"callId": entry.call_id, **{name: value for name, value in told.items() if value not in (None, "")}}


def _detached(entry: ToolCall) -> dict[str, Any]:
    return {"scope": "detached", "kind": entry.kind}


def _state(entry: ToolCall) -> dict[str, Any]:
    return {
        "state": entry.status,
        "kind": entry.kind,
        "reason": entry.reason,
        "exitStatus": entry.exit_status,
        "truncated": entry.truncated or None,
        "size": entry.blob and entry.blob.size,
        "blob": entry.blob and entry.blob.hash,
    }


# What a call came to


def _error_text(entry: ToolCall) -> str:
    """Why there is no output, as a model can read it, and what had come out by then."""
    why, output = _said(entry.error) or entry.reason, _said(output_of(entry))
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
