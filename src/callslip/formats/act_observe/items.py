"""What is said of one entry, live and in a timeline (S1.1, S1.6): both are built from the same facts, only here.

`seq` says where an item stands: acts may begin in another order than their calls came, and a reader that sorts by it
has the timeline. An act and its observe stand together. A reader that knows no `seq` has them in the order they came.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats.act_observe.wire import UNKNOWN
from callslip.formats.outcome import is_open, output_of, queued
from callslip.model import codec
from callslip.model.entries import Message, Thought, ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

Item = dict[str, Any]
Spoken = Message | Thought

# What a change of an entry must touch to change its items. What is printed is shown when the call has ended.
RENDERED_FIELDS = frozenset({"status", "toolName", "rawInput", "startedAt", "scope"})


class Act(msgspec.Struct, frozen=True):
    """What is done: by which execution, with which tool and arguments, since when."""

    seq: int
    execution: str
    call: str
    tool: str
    input: Any
    since: int

    def event(self) -> Item:
        ids = {"execution_id": self.execution, "tool_execution_id": self.execution}
        said = {"tool_name": self.tool, "tool_input": self.input, "call_id": self.call, "status": "running"}
        return {"type": "act", "seq": self.seq, **ids, **said, "timestamp": self.since}

    def item(self, end: Observe | None) -> Item:
        times = {"startTime": self.since, "endTime": end.at if end else None}
        execution = {"status": end.status if end else "running", **times}
        named = {"execution_id": self.execution, "toolName": self.tool}
        return {"type": "act", "seq": self.seq, **named, "toolInput": self.input, "execution": execution}


class Observe(msgspec.Struct, frozen=True):
    """What came of an act, and when. `more` is said of an output that is not all of it."""

    status: str
    error: bool
    result: Any
    at: int
    more: Item

    def event(self, act: Act) -> Item:
        ids = {"execution_id": act.execution, "tool_execution_id": act.execution}
        took = max(0, self.at - act.since) if act.since else 0
        said = {"tool_name": act.tool, "call_id": act.call, "result": self.result, "observation": self.result}
        end = {"duration_ms": took, "is_error": self.error, "status": self.status, "timestamp": self.at}
        return {"type": "observe", "seq": act.seq, **ids, **said, **end, **self.more}

    def item(self, act: Act) -> Item:
        said = {"execution_id": act.execution, "toolName": act.tool, "toolOutput": self.result, "isError": self.error}
        return {"type": "observe", "seq": act.seq, **said, **self.more}


# Calls


def act_of(entry: ToolCall) -> Act | None:
    """The act of a call; None for one that only waits: nothing is done yet."""
    if is_open(entry) and entry.status != "running" and not entry.started_at:
        return None
    since = entry.at if entry.scope == "detached" else entry.started_at or entry.at
    tool = entry.tool_name or UNKNOWN
    return Act(entry.id, entry.call_id, entry.tool_call_id, tool, _input(entry), since)


def observe_of(entry: ToolCall) -> Observe | None:
    """However a call ended, it is observed (S1.2)."""
    if is_open(entry):
        return None
    if entry.scope == "detached":
        return Observe("completed", False, queued(entry), entry.at, {})
    word = STATE_NAMES[entry.status]
    more = {"truncated": True, "size": entry.blob.size} if entry.blob else {}
    return Observe(word.act, word.error, _failure(entry) if word.error else _output(entry), entry.ended_at, more)


def _input(entry: ToolCall) -> Any:
    """The arguments; if they only ever came in pieces, what these are together, once no more can come."""
    if entry.raw_input is not None or entry.status not in TERMINAL_STATES or not entry.input_text:
        return entry.raw_input
    with contextlib.suppress(InvalidInputError):
        return codec.parse_json(entry.input_text)
    return entry.input_text


def _failure(entry: ToolCall) -> Any:
    """Why it went wrong, and what had come out by then: an output that says why, as this format has it, says it all."""
    why, output = _why(entry), _output(entry)
    said = cast("dict[str, Any]", output) if isinstance(output, dict) else {}
    if said.get("error") == why:
        return said
    return {"error": why, **({} if output in (None, "") else {"output": cast(Any, output)})}


def _why(entry: ToolCall) -> str:
    """A text that says what went wrong: the error itself, else the reason, else the bare state."""
    if entry.error is None or entry.error == "":
        return entry.reason or entry.status
    return entry.error if isinstance(entry.error, str) else codec.encode(entry.error).decode()


def _output(entry: ToolCall) -> Any:
    """What came out; a text for nothing, which is what readers of a result take."""
    output = output_of(entry)
    return "" if output is None else output


# Texts


def whole(entry: Spoken) -> Item:
    """A text, from beginning to end: the same live and in the timeline."""
    if isinstance(entry, Message) and entry.role == "user":
        named = {"message_id": entry.message_id} if entry.message_id else {}
        return {"type": "user_message", "seq": entry.id, **named, "content": entry.content}
    kind = "assistant_message" if isinstance(entry, Message) else "thought"
    return {"type": kind, "seq": entry.id, "content": entry.content}


def begins(entry: Spoken) -> list[Item]:
    """A text that comes in pieces. A thought begins with its first one."""
    return [{"type": "text_start", "seq": entry.id}] if isinstance(entry, Message) else []


def piece(entry: Spoken, text: str) -> Item:
    """Some more of it."""
    kind = "text_delta" if isinstance(entry, Message) else "thought_delta"
    return {"type": kind, "seq": entry.id, "delta": text}


def ended(entry: Spoken) -> Item:
    """Its end: the whole of it, for those who read no pieces, and for a last correction."""
    if isinstance(entry, Message):
        return {"type": "text_end", "seq": entry.id, "full_text": entry.content}
    return whole(entry)
