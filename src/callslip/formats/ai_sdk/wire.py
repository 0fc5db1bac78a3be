"""The words of the UI message stream, as the clients of npm `ai` 5.0.277, 6.0.326 and 7.0.169 read them. No rules.

A chunk is a JSON object. One of a type that the client does not know, an absent `input` or `output`, or null for an
unused field ends its stream with an error, so chunks are only made here. What was measured, and is relied upon:

- All: `start-step` shows with the next visible chunk; `finish-step` forgets texts that did not end. A chunk about input
  finds its call in the current step only, one about output or approval in any; a late one is applied like any other.
- 5: no approvals, and a chunk about one is fatal; titles, metadata and `inputEncoding` are read over. Every chunk about
  a dynamic call must say that it is one, its output too. `tool-input-delta` shows the client's own repair of half a
  JSON text; `tool-input-start` alone shows a call without input. Earlier releases refuse chunks with unknown keys, so
  `finishReason` and the reason of an abort are not sent.
- 6: a request stays with its part, whose later states are then invalid; an answer to it is fatal.
- 7: a request and its answer stay with the part through every later chunk. Valid are: a request alone, while it waits;
  any answer under `approval-responded`; an approval with an output or an error; a refusal with `output-denied`, which
  is valid with nothing else and whose chunk takes no metadata. An approval with `input-available` is invalid.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.base import SSE_HEADERS

Chunk = dict[str, Any]
Part = dict[str, Any]
UIMessage = dict[str, Any]

HEADERS = {**SSE_HEADERS, "connection": "keep-alive", "x-vercel-ai-ui-message-stream": "v1"}
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


def start(message: str) -> Chunk:
    return {"type": "start", "messageId": message}


def finish(reason: str = "") -> Chunk:
    """`reason` is how the turn ended, "" if that is not known or not said."""
    return {"type": "finish", **({"finishReason": FINISH_REASONS.get(reason, "other")} if reason else {})}


def abort(reason: str = "") -> Chunk:
    return {"type": "abort", **({"reason": reason} if reason else {})}


def text(kind: str, step: str, identity: str, **more: str) -> Chunk:
    """`kind` is `text` or `reasoning`, `step` is start, delta or end."""
    return {"type": f"{kind}-{step}", "id": identity, **more}


def input_start(part: Part) -> Chunk:
    return _call("tool-input-start", part, "toolName", "title", "toolMetadata", "inputEncoding")


def input_delta(part: Part, piece: str) -> Chunk:
    return {"type": "tool-input-delta", "toolCallId": part["toolCallId"], "inputTextDelta": piece}


def input_available(part: Part) -> Chunk:
    return _call("tool-input-available", part, "toolName", "title", "toolMetadata", "input")


def approval_request(part: Part) -> Chunk:
    asked = part["approval"]
    return {
        "type": "tool-approval-request",
        "toolCallId": part["toolCallId"],
        "approvalId": asked["id"],
        "approvalDescriptor": asked["descriptor"],
    }


def approval_response(part: Part) -> Chunk:
    asked = part["approval"]
    said = {name: asked[name] for name in ("approved", "reason") if name in asked}
    return {"type": "tool-approval-response", "approvalId": asked["id"], **said}


def output(part: Part) -> Chunk:
    """The end of a call, whichever it is."""
    if part["state"] == "output-denied":
        return {"type": "tool-output-denied", "toolCallId": part["toolCallId"]}
    return _call(f"tool-{part['state']}", part, "toolMetadata", "output", "errorText")


def _call(kind: str, part: Part, *names: str) -> Chunk:
    """A chunk with what the part has of these."""
    return {"type": kind, "dynamic": True, **{name: part[name] for name in ("toolCallId", *names) if name in part}}
