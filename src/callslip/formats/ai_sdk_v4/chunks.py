"""The lines of the AI SDK 4 data stream, as `@ai-sdk/ui-utils` 1.2.11 reads them. No rules.

A chunk is a code and a JSON value. A code that the client does not know, or a value of another shape, ends its stream
with an error, so chunks are only made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callslip.formats.ai_sdk_v4.messages import Invocation, Note
from callslip.model import codec
from callslip.model.entries import Thought

Chunk = list[Any]

HEADERS = {
    "content-type": "text/plain; charset=utf-8",
    "cache-control": "no-cache",
    "x-vercel-ai-data-stream": "v1",
    "x-accel-buffering": "no",
}

# Reaches the application's `data` and leaves no trace in the message: a clean end alone makes no client come back.
RESTART: Chunk = ["2", [{"type": "restart"}]]

# How a turn ended, in the client's words; a turn that ended otherwise has the word `other`.
FINISH_REASONS = {
    "": "unknown",
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "content-filter",
    "error": "error",
    "eof": "error",
}


def frame(chunk: Chunk) -> bytes:
    """A chunk as one line."""
    return chunk[0].encode() + b":" + codec.encode(chunk[1]) + b"\n"


def step_start(message: str) -> Chunk:
    """The only chunk that gives the message its id."""
    return ["f", {"messageId": message}]


def step_end(called: bool) -> Chunk:
    return ["e", {"finishReason": "tool-calls" if called else "unknown", "isContinued": False}]


def finish(reason: str) -> Chunk:
    """`reason` is how the turn ended, "" if that is not known."""
    return ["d", {"finishReason": FINISH_REASONS.get(reason, "other")}]


def error(reason: str) -> Chunk:
    return ["3", reason]


def text(entry: Any, piece: str) -> Chunk:
    """More of a text, or of a thought."""
    return ["g" if isinstance(entry, Thought) else "0", piece]


def call_start(call: Invocation) -> Chunk:
    """Names a call. Whatever is told of it later then finds its place, whatever its id is and however often."""
    return ["b", {"toolCallId": call.tool_call_id, "toolName": call.tool_name}]


def call(told: Invocation, step: int) -> Chunk:
    """The call and its arguments. Told in a later step, it says which one it is of: else it would change to that."""
    value = {"toolCallId": told.tool_call_id, "toolName": told.tool_name, "args": told.args}
    return ["9", value if told.step == step else {**value, "step": told.step}]


def result(told: Invocation) -> Chunk:
    return ["a", {"toolCallId": told.tool_call_id, "result": told.result}]


def correction(told: Invocation) -> Chunk:
    """A result whose call has changed: all of it in one, since a call after its result would show as running again."""
    value = {"toolCallId": told.tool_call_id, "toolName": told.tool_name, "args": told.args, "result": told.result}
    return ["a", value]


def noted(notes: Iterable[Note]) -> list[Chunk]:
    """More annotations, if there are any. They are added to those that the message has."""
    values = [msgspec.to_builtins(note) for note in notes]
    return [["8", values]] if values else []
