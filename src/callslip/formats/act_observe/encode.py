"""Acts and observes out: a live stream from events, and a timeline from entries.

Every execution gives one act and, however it ends, one observe with the same id (S1.2). Ids and results are written
under both of the names that readers look for (S1.1).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip import codec
from callslip import events as ev
from callslip.board import Board
from callslip.entries import Message, Snapshot, ToolCall
from callslip.events import Event
from callslip.lifecycle import ENDS, clean_name, ends, next_state, shown_id
from callslip.words import WORDS

UNKNOWN = "unknown"


class _Known(msgspec.Struct):
    """What was heard of a call so far."""

    call_id: str
    tool: str = UNKNOWN
    input: Any = None
    state: str = "none"
    since: int = 0
    acted: bool = False
    output: list[str] = []


class ActObserveEncoder:
    """Events of one session, in order, as acts, observes and user messages."""

    def __init__(self) -> None:
        self._calls: dict[str, _Known] = {}

    def feed(self, event: Event) -> list[dict[str, Any]]:
        if event.verdict != "applied":
            return []
        if isinstance(event, ev.MessageUser):
            return [{"type": "user_message", "content": event.text}]
        return self._call(event) if isinstance(event, ev.CallEvent) else []

    def close(self, reason: str) -> list[dict[str, Any]]:
        """Nothing: every call ends by an event of its own."""
        return []

    def _call(self, event: ev.CallEvent) -> list[dict[str, Any]]:
        known = self._calls.get(event.call)
        if known is None:
            known = self._calls[event.call] = _Known(shown_id(event, event.call), since=event.at)
        _tell(known, event)
        known.state = next_state(known.state, event) or known.state
        if isinstance(event, ev.CallStarted):
            known.since = event.at
            return self._act(event.call, known)
        if ends(event):
            return [*self._act(event.call, known), self._observe(event, known)]
        return []

    def _act(self, call: str, known: _Known) -> list[dict[str, Any]]:
        if known.acted:
            return []
        known.acted = True
        said = {"tool_name": known.tool, "tool_input": known.input, "call_id": known.call_id, "status": "running"}
        return [{"type": "act", **_ids(call), **said}]

    def _observe(self, event: ev.CallEvent, known: _Known) -> dict[str, Any]:
        del self._calls[event.call]
        error = WORDS[known.state].error
        result = _result(event, known, error)
        return {
            "type": "observe",
            **_ids(event.call),
            "tool_name": known.tool,
            "call_id": known.call_id,
            "result": result,
            "observation": result,
            "duration_ms": max(0, event.at - known.since) if known.since else 0,
            "is_error": error,
            "status": WORDS[known.state].act,
        }


def _ids(call: str) -> dict[str, str]:
    return {"execution_id": call, "tool_execution_id": call}


def _tell(known: _Known, event: ev.CallEvent) -> None:
    if isinstance(event, ev.CallUpdate):
        known.tool = clean_name(event.tool_name) if isinstance(event.tool_name, str) else known.tool
        known.input = known.input if event.input is UNSET else event.input
    if isinstance(event, ev.ApprovalGranted) and event.input is not UNSET:
        known.input = event.input
    if isinstance(event, ev.CallProgress):
        known.output.append(event.text)


def _result(event: ev.CallEvent, known: _Known, error: bool) -> Any:
    output = getattr(event, "output", UNSET)
    if not error:
        return "".join(known.output) if output is UNSET else output
    failed = {"error": _why(getattr(event, "error", UNSET), getattr(event, "reason", ""), known.state)}
    return failed if output is UNSET or output is None else {**failed, "output": output}


def _why(error: Any, reason: str, state: str) -> str:
    """A text that says what went wrong: the error itself, else the reason, else the bare state."""
    if error is UNSET or error is None or error == "":
        return reason or state
    return error if isinstance(error, str) else codec.encode(error).decode()


def timeline(source: Board | Snapshot | list[Any]) -> list[dict[str, Any]]:
    """A session as a list of items, oldest first (S1.6)."""
    snapshot = source.snapshot() if isinstance(source, Board) else source
    entries: list[Any] = snapshot.entries if isinstance(snapshot, Snapshot) else snapshot
    return [item for entry in entries for item in _items(entry)]


def _items(entry: Any) -> list[dict[str, Any]]:
    if isinstance(entry, Message) and entry.role == "user":
        return [{"type": "user_message", "content": entry.content}]
    if not isinstance(entry, ToolCall):
        return []
    word = WORDS[entry.status]
    name = {"execution_id": entry.call_id, "toolName": entry.tool_name or UNKNOWN}
    execution = {"status": word.act, "startTime": entry.started_at or entry.at, "endTime": entry.ended_at or None}
    act = {"type": "act", **name, "toolInput": entry.raw_input, "execution": execution}
    if entry.status not in ENDS:
        return [act]
    failed: dict[str, Any] = {"error": _why(entry.error, entry.reason, entry.status)}
    if entry.output is not None:
        failed["output"] = entry.output
    shown = failed if word.error else entry.output_text if entry.output is None else entry.output
    return [act, {"type": "observe", **name, "toolOutput": shown, "isError": word.error}]
