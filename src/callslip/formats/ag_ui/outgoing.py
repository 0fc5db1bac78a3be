"""Make the events of AG-UI 1.0, as npm `@ag-ui/client` 1.0.0 reads them.

The client ends its run with an error at a null, at a call or text that is opened twice or left open, and at any event
after the end. It removes unknown fields with a warning, so all events are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callslip.formats.js_json import readable

Chunk = dict[str, Any]

# The name of our custom event: the client passes it to the application, and no message shows it.
CALL_EVENT = "callslip.call"

# The client refuses a frame of 10 MiB. A character may take six bytes in JSON.
MAX_DELTA_CHARS = 2**20

_MAX_SAFE_INTEGER = 2**53 - 1


def metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what the protocol has no field for as the metadata of an event, without empty fields."""
    return {"callslip": readable({name: value for name, value in fields.items() if value is not None and value != ""})}


def split_text(text: str) -> Iterator[str]:
    """Yield a text in pieces that the client accepts."""
    return (text[begin : begin + MAX_DELTA_CHARS] for begin in range(0, len(text), MAX_DELTA_CHARS))


def started(thread: str, run: str) -> Chunk:
    return {"type": "RUN_STARTED", "threadId": thread, "runId": run}


def finished(thread: str, run: str, outcome: dict[str, Any] | None = None, reason: str = "") -> Chunk:
    """Return the end of a run; without an outcome it is a success for the client."""
    chunk: Chunk = {"type": "RUN_FINISHED", "threadId": thread, "runId": run}
    if outcome:
        chunk["outcome"] = outcome
    return {**chunk, "metadata": metadata({"reason": reason})} if reason else chunk


def failed(message: str, code: str) -> Chunk:
    return {"type": "RUN_ERROR", "message": message, "code": code}


def text_started(role: str, message: str, at: int) -> list[Chunk]:
    """Return the start of a text of the agent. `role` is `assistant` or `reasoning`."""
    if role == "assistant":
        return [_timed({"type": "TEXT_MESSAGE_START", "messageId": message, "role": role}, at)]
    span: Chunk = {"type": "REASONING_START", "messageId": message}
    return [_timed(span, at), {"type": "REASONING_MESSAGE_START", "messageId": message, "role": role}]


def text_more(role: str, message: str, piece: str) -> Chunk:
    return {"type": f"{_TEXTS[role]}_CONTENT", "messageId": message, "delta": piece}


def text_ended(role: str, message: str) -> list[Chunk]:
    ends: list[Chunk] = [{"type": f"{_TEXTS[role]}_END", "messageId": message}]
    return [*ends, {"type": "REASONING_END", "messageId": message}] if role == "reasoning" else ends


_TEXTS = {"assistant": "TEXT_MESSAGE", "reasoning": "REASONING_MESSAGE"}


def call_started(call: dict[str, Any], message: str, at: int) -> Chunk:
    """Return the start of a call that its message lists."""
    chunk: Chunk = {
        "type": "TOOL_CALL_START",
        "toolCallId": call["id"],
        "toolCallName": call["function"]["name"],
        "parentMessageId": message,
        "metadata": call["metadata"],
    }
    return _timed(chunk, at)


def call_more(call: str, piece: str) -> Chunk:
    return {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": piece}


def call_whole(call: str) -> Chunk:
    return {"type": "TOOL_CALL_END", "toolCallId": call}


def call_result(message: dict[str, Any], at: int) -> Chunk:
    """Return the result of a call, which becomes this message."""
    names = ("toolCallId", "role", "content", "metadata")
    chunk: Chunk = {"type": "TOOL_CALL_RESULT", "messageId": message["id"], **{key: message[key] for key in names}}
    return _timed(chunk, at)


def activity(message: dict[str, Any], at: int) -> Chunk:
    """Return an activity of the agent, which becomes this message."""
    names = ("activityType", "content")
    chunk: Chunk = {"type": "ACTIVITY_SNAPSHOT", "messageId": message["id"], **{key: message[key] for key in names}}
    return _timed(chunk, at)


def custom(name: str, value: dict[str, Any]) -> Chunk:
    return {"type": "CUSTOM", "name": name, "value": value}


def _timed(chunk: Chunk, at: int) -> Chunk:
    return {**chunk, "timestamp": at} if 0 < at <= _MAX_SAFE_INTEGER else chunk
