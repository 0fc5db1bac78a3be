"""Make the chunks of the UI message stream, as the clients of npm `ai` 5.0.277, 6.0.326 and 7.0.169 read them.

A chunk is a JSON object. The client ends its stream with an error at an unknown type, a missing `input` or `output`, or
null in an unused field, so all chunks are made here. The encoder relies on this measured behaviour:

- All: `start-step` shows with the next visible chunk; `finish-step` drops texts that did not end. A chunk about input
  finds its call in the current step only, a chunk about output or approval in any step; late chunks are applied.
- 5: no approvals, and a chunk about one is an error; titles, metadata and `inputEncoding` are ignored. Every chunk
  about a dynamic call must be marked as dynamic, also its output. `tool-input-delta` shows the client's own repair of
  partial JSON; `tool-input-start` alone shows a call without input. Earlier releases refuse chunks with unknown keys,
  so `finishReason` and the reason of an abort are not sent.
- 6: a request stays on its part, whose later states are then invalid; an answer to it is an error.
- 7: a request and its answer stay on the part through every later chunk. Valid are: a request alone, while it waits;
  any answer with `approval-responded`; an approval with an output or an error; a refusal with `output-denied`, which
  is valid with nothing else and whose chunk carries no metadata. An approval with `input-available` is invalid.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.assistant_message import AI_SDK_FINISH_REASONS
from callslip.formats.base import SSE_HEADERS

Chunk = dict[str, Any]
Part = dict[str, Any]
UIMessage = dict[str, Any]

HEADERS = {**SSE_HEADERS, "connection": "keep-alive", "x-vercel-ai-ui-message-stream": "v1"}
DONE = b"data: [DONE]\n\n"

START_STEP: Chunk = {"type": "start-step"}
FINISH_STEP: Chunk = {"type": "finish-step"}

# Reaches the application's `onData` and does not show in the message: clients do not reconnect after a clean end.
RESTART: Chunk = {"type": "data-restart", "data": {}, "transient": True}


def start(message: str) -> Chunk:
    return {"type": "start", "messageId": message}


def finish(reason: str = "") -> Chunk:
    """Return the end of the stream. `reason` is why the turn ended, "" if it is unknown or not sent."""
    return {"type": "finish", **({"finishReason": AI_SDK_FINISH_REASONS.get(reason, "other")} if reason else {})}


def abort(reason: str = "") -> Chunk:
    return {"type": "abort", **({"reason": reason} if reason else {})}


def text(kind: str, step: str, identity: str, **more: str) -> Chunk:
    """Return a chunk of a text. `kind` is `text` or `reasoning`, `step` is start, delta or end."""
    return {"type": f"{kind}-{step}", "id": identity, **more}


def input_start(part: Part) -> Chunk:
    return _call("tool-input-start", part, "toolName", "title", "toolMetadata", "inputEncoding")


def input_delta(part: Part, piece: str) -> Chunk:
    return {"type": "tool-input-delta", "toolCallId": part["toolCallId"], "inputTextDelta": piece}


def input_available(part: Part) -> Chunk:
    return _call("tool-input-available", part, "toolName", "title", "toolMetadata", "input")


def approval_request(part: Part) -> Chunk:
    approval = part["approval"]
    return {
        "type": "tool-approval-request",
        "toolCallId": part["toolCallId"],
        "approvalId": approval["id"],
        "approvalDescriptor": approval["descriptor"],
    }


def approval_response(part: Part) -> Chunk:
    approval = part["approval"]
    answer = {name: approval[name] for name in ("approved", "reason") if name in approval}
    return {"type": "tool-approval-response", "approvalId": approval["id"], **answer}


def output(part: Part) -> Chunk:
    """Return the end of a call: an output, an error or a denial."""
    if part["state"] == "output-denied":
        return {"type": "tool-output-denied", "toolCallId": part["toolCallId"]}
    return _call(f"tool-{part['state']}", part, "toolMetadata", "output", "errorText")


def _call(kind: str, part: Part, *names: str) -> Chunk:
    """Return a chunk with those of the named fields that the part has."""
    return {"type": kind, "dynamic": True, **{name: part[name] for name in ("toolCallId", *names) if name in part}}
