"""Make the lines of the AI SDK 4 data stream, as `@ai-sdk/ui-utils` 1.2.11 reads them.

A chunk is a code and a JSON value. The client ends its stream with an error at an unknown code or a value of another
shape, so all chunks are made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callslip.formats.ai_sdk_v4.messages import Invocation, Note
from callslip.formats.assistant_message import AI_SDK_FINISH_REASONS
from callslip.formats.base import SSE_HEADERS
from callslip.model import codec
from callslip.model.entries import Thought

Chunk = list[Any]

HEADERS = {**SSE_HEADERS, "content-type": "text/plain; charset=utf-8", "x-vercel-ai-data-stream": "v1"}

# Reaches the application's `data` and does not show in the message: clients do not reconnect after a clean end.
RESTART: Chunk = ["2", [{"type": "restart"}]]


def frame(chunk: Chunk) -> bytes:
    """Return a chunk as one line."""
    return chunk[0].encode() + b":" + codec.encode(chunk[1]) + b"\n"


def step_start(message: str) -> Chunk:
    """Return the start of a step, the only chunk that carries the id of the message."""
    return ["f", {"messageId": message}]


def step_end(called: bool) -> Chunk:
    return ["e", {"finishReason": "tool-calls" if called else "unknown", "isContinued": False}]


def finish(reason: str) -> Chunk:
    """Return the end of the stream. `reason` is why the turn ended, "" if unknown."""
    return ["d", {"finishReason": AI_SDK_FINISH_REASONS.get(reason, "other") if reason else "unknown"}]


def error(reason: str) -> Chunk:
    return ["3", reason]


def text(entry: Any, piece: str) -> Chunk:
    """Return more of a text or a thought."""
    return ["g" if isinstance(entry, Thought) else "0", piece]


def call_start(call: Invocation) -> Chunk:
    """Return the announcement of a call. Later chunks then find it, also if its id is used twice."""
    return ["b", {"toolCallId": call.tool_call_id, "toolName": call.tool_name}]


def call(invocation: Invocation, step: int) -> Chunk:
    """Return a call with its arguments. In a later step it names its own step, or the client would move it."""
    value = _call_value(invocation)
    return ["9", value if invocation.step == step else {**value, "step": invocation.step}]


def result(invocation: Invocation) -> Chunk:
    return ["a", {"toolCallId": invocation.tool_call_id, "result": invocation.result}]


def correction(invocation: Invocation) -> Chunk:
    """Return a changed call with its result in one chunk: a call after its result would show as running again."""
    return ["a", {**_call_value(invocation), "result": invocation.result}]


def _call_value(invocation: Invocation) -> dict[str, Any]:
    return {"toolCallId": invocation.tool_call_id, "toolName": invocation.tool_name, "args": invocation.args}


def add_annotations(notes: Iterable[Note]) -> list[Chunk]:
    """Return the chunk that adds annotations to the message, if there are any."""
    values = [msgspec.to_builtins(note) for note in notes]
    return [["8", values]] if values else []
