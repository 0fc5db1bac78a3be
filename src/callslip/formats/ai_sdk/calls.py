"""Make the part of a call. Every tool is a `dynamic-tool`, because the client has no types for our tools.

What the SDK has no field for is in `toolMetadata.callslip`, which is stored with the part and sent to no model.
Output is shown when the call has ended: each preliminary output would repeat all of the output before it, a running
call would have the state of one that has ended, and a model would take partial output for the result.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.wire import Part
from callslip.formats.js_json import readable
from callslip.formats.json_fields import as_dict, parse_json_or
from callslip.formats.outcome import end_facts, error_of, is_open, output_besides_error, output_of, queued
from callslip.model import codec
from callslip.model.entries import PermissionRequest, ToolCall

# The fields of a call, as patches name them, that show in its part. Progress, locations and printed output do not.
RENDERED_FIELDS = frozenset({"status", "toolName", "title", "kind", "rawInput", "approval", "exitStatus", "scope"})

_END_SENTENCES = {
    "failed": "The tool call failed",
    "denied": "The tool call was denied",
    "cancelled": "The tool call was cancelled",
    "expired": "The tool call ran out of time",
    "lost": "The outcome of the tool call is unknown",
}
_JSON_BLANKS = " \t\r\n"
_IS_APPROVED = {"granted": True, "refused": False}


def call_part(dialect: Dialect, entry: ToolCall, input_text: str, request: PermissionRequest | None) -> Part:
    """Return the part of a call. `input_text` is its streamed arguments so far.

    `request` is the last request about it in the same turn: a message contains nothing of other turns.
    """
    part: Part = {
        "type": "dynamic-tool",
        "toolName": entry.tool_name or entry.kind or "unknown",
        "toolCallId": entry.tool_call_id,
    }
    approval, elsewhere = _approval(dialect, entry, request), _answered_elsewhere(request)
    if dialect.has_extras:
        answered = request if "approved" in approval else None
        part["toolMetadata"] = {"callslip": readable(_extras(entry, answered, elsewhere))}
        part |= {"title": entry.title} if entry.title else {}
    if entry.scope == "detached":
        return part | {"state": "output-available", "input": _input(entry, input_text), "output": queued(entry)}
    if not approval and _expects_input(entry, input_text):
        # Streamed arguments show as text: the client would have to guess what partial JSON means. Version 5 can only
        # guess, so it gets complete arguments only.
        part["state"] = "input-streaming"
        if dialect.shows_partial_input:
            part["inputEncoding"] = "text"
            part |= {"input": input_text, "rawInput": input_text} if input_text else {}
        return part
    part |= {"approval": approval} if approval else {}
    answer = approval.get("approved")
    status = "queued" if elsewhere else entry.status
    part["state"] = state = dialect.state_name(status, answer is False, answer is True)
    part["input"] = _input(entry, input_text)
    if state == "output-available":
        part["output"] = readable(output_of(entry))
    elif state == "output-error":
        part["errorText"] = _error_text(entry)
    return part


# Arguments


def _expects_input(entry: ToolCall, input_text: str) -> bool:
    """Return whether more arguments may follow. A call that started, or waited for approval, has all of them unless
    they are streamed."""
    if entry.raw_input is not None or entry.status not in ("queued", "running"):
        return False
    return bool(input_text) or not (entry.approval or entry.started_at)


def may_change(part: Part, entry: ToolCall, piece: str) -> bool:
    """Return whether a delta of a call's arguments may change its part, without reading the rest of them."""
    if entry.raw_input is not None:
        return False
    if is_open(entry) and "approval" not in part and _expects_input(entry, piece):
        return True
    return "}" in piece or (bool(part["input"]) and bool(piece.strip(_JSON_BLANKS)))


def _input(entry: ToolCall, input_text: str) -> Any:
    """Return the arguments; of a call that ended, as much of them as was streamed.

    While more may follow, they show once they are a complete object, which no delta can extend: the cost of showing
    them after every delta would be quadratic.
    """
    if entry.raw_input is not None:
        return readable(entry.raw_input)
    value: Any = parse_json_or(input_text, input_text) if input_text else {}
    is_final = entry.scope != "detached" and not is_open(entry)
    return readable(value) if is_final or isinstance(value, dict) else {}


# Requests for approval


def _approval(dialect: Dialect, entry: ToolCall, request: PermissionRequest | None) -> dict[str, Any]:
    """Return the request that a call shows, with its answer if the client keeps one; {} for none.

    A pending request that the client cannot answer is not shown.
    """
    if dialect.requests == "apart" or entry.scope == "detached" or _answered_elsewhere(request):
        return {}
    approval = {"id": entry.approval, "descriptor": describe_request(request)}
    if entry.status == "awaiting_approval":
        return approval
    if dialect.requests == "waiting" or request is None or request.state not in _IS_APPROVED:
        return {}
    reason = {"reason": request.reason} if request.reason else {}
    return approval | {"approved": _IS_APPROVED[request.state]} | reason


def _answered_elsewhere(request: PermissionRequest | None) -> str:
    """Return where the pending request about a call must be answered; "" if the client can answer it."""
    return request.answer_at if request is not None else ""


def describe_request(request: PermissionRequest | None) -> dict[str, Any]:
    """Return the description, options and expiry of a request, as far as it has them."""
    if request is None:
        return {}
    fields = {"description": request.description, "options": request.options, "expiresAt": request.expires_at}
    return readable({name: value for name, value in fields.items() if value})


# What the SDK has no field for


def _extras(entry: ToolCall, answered: PermissionRequest | None, answer_at: str) -> dict[str, Any]:
    fields: dict[str, Any]
    if entry.scope == "detached":
        fields = {"scope": "detached", "kind": entry.kind}
    else:
        fields = {"state": entry.status, "answerAt": answer_at, **end_facts(entry)}
    if answered is not None:
        fields |= {"option": answered.response_option, "by": answered.by}
    return {"callId": entry.call_id, **{name: value for name, value in fields.items() if value not in (None, "")}}


# The error of a call


def _error_text(entry: ToolCall) -> str:
    """Return a sentence for models about why there is no output, and the output so far."""
    error, output = _as_text(error_of(entry)) or entry.reason, _as_text(output_besides_error(entry))
    if entry.status != "failed" or not (error or output):
        error = _END_SENTENCES[entry.status] + (f": {error}" if error else ".")
    return "\n".join(dict.fromkeys(text for text in (error, output) if text))


def _as_text(value: Any) -> str:
    """Return a text, the message of an error object, or JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    for message in (as_dict(value).get(name) for name in ("message", "error")):
        if message and isinstance(message, str):
            return message
    return codec.encode(readable(value)).decode()
