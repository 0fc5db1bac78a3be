"""Make the items and events of one entry, for the timeline and for the stream.

`seq` is the position of an item: acts may begin in another order than their calls, and a reader that sorts by it has
the timeline. An act and its observe have the same `seq`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from callslip.formats.act_observe.wire import CALLSLIP, UNKNOWN
from callslip.formats.message_ids import MessageIds, foreign_id
from callslip.formats.outcome import error_of, error_output, is_open, output_of, parsed_input, queued
from callslip.model.entries import Message, Thought, ToolCall
from callslip.model.names import EXECUTION_NAMESPACE, MODEL_CALL_NAMESPACE
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

Item = dict[str, Any]
Spoken = Message | Thought

# The fields of a call, as patches name them, that show in its items. Printed output shows when the call has ended.
RENDERED_FIELDS = frozenset({"status", "toolName", "rawInput", "startedAt", "scope"})

_INVENTED = re.compile(r"#\d+")
"""The ids that the decoder gives calls without any: they are no ids of the producer."""


class Act(msgspec.Struct, frozen=True):
    """The start of a call: the ids of its producer, its own id, tool, arguments and time."""

    seq: int
    execution: str
    call: str
    callslip_id: str
    tool: str
    input: Any
    since: int

    def event(self) -> Item:
        ids = {"execution_id": self.execution, "tool_execution_id": self.execution, CALLSLIP: self.callslip_id}
        call = {"tool_name": self.tool, "tool_input": self.input, "call_id": self.call, "status": "running"}
        return {"type": "act", "seq": self.seq, **ids, **call, "timestamp": self.since}

    def item(self, end: Observe | None) -> Item:
        times = {"startTime": self.since, "endTime": end.at if end else None}
        execution = {"status": end.status if end else "running", **times}
        tool = {**self.item_ids(), "toolName": self.tool}
        return {"type": "act", "seq": self.seq, **tool, "toolInput": self.input, "execution": execution}

    def item_ids(self) -> Item:
        """Return the ids in an item of the timeline."""
        return {"execution_id": self.execution, CALLSLIP: self.callslip_id, "call_id": self.call}


class Observe(msgspec.Struct, frozen=True):
    """The end of a call: its status, result and time. `cut` describes an output that was truncated.

    `duration` is in ms, as the producer measured it; None if it did not.
    """

    status: str
    error: bool
    result: Any
    at: int
    cut: Item
    duration: int | float | None = None

    def duration_ms(self, act: Act) -> int | float:
        """Return how long the call took, as the producer reports it, or else by the times of its events."""
        if self.duration is not None:
            return self.duration
        return max(0, self.at - act.since) if act.since else 0

    def event(self, act: Act) -> Item:
        ids = {"execution_id": act.execution, "tool_execution_id": act.execution, CALLSLIP: act.callslip_id}
        result = {"tool_name": act.tool, "call_id": act.call, "result": self.result, "observation": self.result}
        end = {
            "duration_ms": self.duration_ms(act),
            "is_error": self.error,
            "status": self.status,
            "timestamp": self.at,
        }
        return {"type": "observe", "seq": act.seq, **ids, **result, **end, **self.cut}

    def item(self, act: Act) -> Item:
        result = {"toolName": act.tool, "toolOutput": self.result, "isError": self.error}
        times = {"duration_ms": self.duration_ms(act)}
        return {"type": "observe", "seq": act.seq, **act.item_ids(), **result, **times, **self.cut}


# Calls


def execution_id(entry: ToolCall) -> str:
    """Return the execution id of the producer, or else the id of the call."""
    name = foreign_id(entry, EXECUTION_NAMESPACE)
    return entry.call_id if not name or _INVENTED.fullmatch(name) else name


def act_of(entry: ToolCall, ids: MessageIds) -> Act | None:
    """Return the act of a call; None for a call that has not started."""
    execution = ids.of(entry)
    if is_open(entry) and entry.status != "running" and not entry.started_at:
        return None
    since = entry.at if entry.scope == "detached" else entry.started_at or entry.at
    tool = entry.tool_name or UNKNOWN
    # Streamed arguments count when no more of them can follow.
    arguments = parsed_input(entry) if entry.status in TERMINAL_STATES else entry.raw_input
    call = foreign_id(entry, MODEL_CALL_NAMESPACE)
    if not call:  # The id in another format is that of the model.
        call = execution if foreign_id(entry, EXECUTION_NAMESPACE) else entry.tool_call_id
    return Act(entry.id, execution, call, entry.call_id, tool, arguments, since)


def observe_of(entry: ToolCall) -> Observe | None:
    """Return the observe of a call that has ended, in any way; None for an open call."""
    if is_open(entry):
        return None
    if entry.scope == "detached":
        return Observe("completed", False, queued(entry), entry.at, {})
    names = STATE_NAMES[entry.status]
    cut = {"truncated": True, "size": entry.blob.size} if entry.blob else {}
    result = _failure(entry) if names.error else _output(entry)
    return Observe(names.act, names.error, result, entry.ended_at, cut, entry.duration_ms)


def _failure(entry: ToolCall) -> Any:
    """Return the error, the reason or the state, with the output so far; the output alone if it has the error."""
    if fields := error_output(entry):
        return fields
    output = _output(entry)
    error = error_of(entry) or entry.reason or entry.status
    return {"error": error, **({} if output == "" else {"output": output})}


def _output(entry: ToolCall) -> Any:
    """Return the output; "" for none, because readers expect a result."""
    output = output_of(entry)
    return "" if output is None else output


# Texts


def text_item(entry: Spoken) -> Item:
    """Return the item of a complete text."""
    if isinstance(entry, Message) and entry.role == "user":
        ids = {"message_id": entry.message_id} if entry.message_id else {}
        return {"type": "user_message", "seq": entry.id, **ids, "content": entry.content}
    kind = "assistant_message" if isinstance(entry, Message) else "thought"
    return {"type": kind, "seq": entry.id, "content": entry.content}


def text_start(entry: Spoken) -> list[Item]:
    """Return the events that begin a streamed text. A thought begins with its first delta."""
    return [{"type": "text_start", "seq": entry.id}] if isinstance(entry, Message) else []


def text_delta(entry: Spoken, text: str) -> Item:
    """Return the event that extends a text."""
    kind = "text_delta" if isinstance(entry, Message) else "thought_delta"
    return {"type": kind, "seq": entry.id, "delta": text}


def text_end(entry: Spoken) -> Item:
    """Return the event that ends a text. It has the full text, which may differ from the deltas."""
    if isinstance(entry, Message):
        return {"type": "text_end", "seq": entry.id, "full_text": entry.content}
    return text_item(entry)
