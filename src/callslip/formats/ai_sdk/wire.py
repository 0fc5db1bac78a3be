"""The words of the AI SDK 6 UI message stream, as the client of npm `ai` 6.0.326 reads them. No rules.

A chunk is a JSON object. One that the client does not know, an absent `input` or `output`, or null for an unused field
ends its stream with an error, so chunks are only made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from callslip import codec

Chunk = dict[str, Any]
Part = dict[str, Any]
UIMessage = dict[str, Any]

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "connection": "keep-alive",
    "x-vercel-ai-ui-message-stream": "v1",
    "x-accel-buffering": "no",
}
DONE = b"data: [DONE]\n\n"

START_STEP: Chunk = {"type": "start-step"}
FINISH_STEP: Chunk = {"type": "finish-step"}

# Leaves no trace in the message, and reaches the application's `onData`: a clean end alone makes no client reconnect.
RESTART: Chunk = {"type": "data-restart", "data": {}, "transient": True}

# How a turn ended, in the client's words; a turn that ended otherwise has the word `other`.
FINISH_REASONS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "content-filter",
    "error": "error",
    "eof": "error",
}


def frame(chunk: Chunk) -> bytes:
    """A chunk as one server-sent event."""
    return b"data: " + codec.encode(chunk) + b"\n\n"


def sse(chunks: Iterable[Chunk]) -> bytes:
    """A whole stream as it would be sent."""
    return b"".join(map(frame, chunks)) + DONE


def start(message: str) -> Chunk:
    return {"type": "start", "messageId": message}


def finish(reason: str = "") -> Chunk:
    """`reason` is how the turn ended, "" if that is not known."""
    return {"type": "finish", **({"finishReason": FINISH_REASONS.get(reason, "other")} if reason else {})}


def abort(reason: str) -> Chunk:
    return {"type": "abort", "reason": reason}


def text(kind: str, step: str, identity: str, **more: str) -> Chunk:
    """`kind` is `text` or `reasoning`, `step` is start, delta or end."""
    return {"type": f"{kind}-{step}", "id": identity, **more}


def input_start(part: Part) -> Chunk:
    return {**_call("tool-input-start", part), "inputEncoding": part["inputEncoding"]}


def input_delta(part: Part, piece: str) -> Chunk:
    return {"type": "tool-input-delta", "toolCallId": part["toolCallId"], "inputTextDelta": piece}


def input_available(part: Part) -> Chunk:
    return {**_call("tool-input-available", part), "input": part["input"]}


def approval_request(part: Part) -> Chunk:
    asked = part["approval"]
    return {
        "type": "tool-approval-request",
        "toolCallId": part["toolCallId"],
        "approvalId": asked["id"],
        "approvalDescriptor": asked["descriptor"],
    }


def output(part: Part) -> Chunk:
    """The end of a call, whichever it is."""
    name = "errorText" if part["state"] == "output-error" else "output"
    kept = ("toolCallId", "toolMetadata", name)
    return {"type": f"tool-{part['state']}", **{key: part[key] for key in kept}}


def _call(kind: str, part: Part) -> Chunk:
    kept = ("toolCallId", "toolName", "title", "toolMetadata")
    return {"type": kind, "dynamic": True, **{key: part[key] for key in kept if key in part}}


# What JavaScript makes of JSON. The client refuses an object with the key `__proto__`, or with `prototype` inside
# `constructor`, and with it the stream; and it rounds integers that a double cannot hold. The first are shown in
# brackets, the second as texts, in stream and history alike.

_FORBIDDEN = (b'"__proto__"', b'"prototype"')
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_SIXTEEN = b"0" * 16
_EXACT = 2**53 - 1


def readable(value: Any) -> Any:
    """A JSON value that the client reads as it is meant; the same object when nothing has to be changed."""
    if value is None or isinstance(value, str | bool | float):
        return value
    raw = codec.encode(value)
    if any(key in raw for key in _FORBIDDEN) or _SIXTEEN in raw.translate(_DIGITS):
        return _readable(value)
    return value


def _readable(value: Any, within: str = "") -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {_key(key, within, members): _readable(member, key) for key, member in members.items()}
    if isinstance(value, list):
        return [_readable(item) for item in cast("list[Any]", value)]
    if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
        return str(value)
    return value


def _key(key: str, within: str, members: dict[str, Any]) -> str:
    if key != "__proto__" and (key, within) != ("prototype", "constructor"):
        return key
    while (key := f"({key})") in members:
        pass
    return key
