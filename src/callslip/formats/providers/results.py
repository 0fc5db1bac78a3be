"""Describe a call for a model: a name and an id that its API accepts, arguments as an object, and the result as text.

The same entry always gives the same text. Events after the end of a call are not included.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from callslip.formats.json_fields import as_dict, parse_json_or
from callslip.formats.outcome import error_of, output_besides_error, queued
from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

MAX_NAME_CHARS = 64
NO_OUTPUT = "(no output)"
OUTCOME_UNKNOWN = "The outcome of this call is unknown"

# The text for a call without a result of its own.
MISSING_RESULT_TEXTS: dict[str, str] = {
    "queued": f"{OUTCOME_UNKNOWN}: it had not begun when this was written",
    "running": f"{OUTCOME_UNKNOWN}: it had not ended when this was written",
    "awaiting_approval": "This call has not run: a person has still to approve it",
    "failed": "This call failed",
    "denied": "This call was denied and has not run",
    "cancelled": "This call was cancelled",
    "expired": "This call ran out of time",
    "lost": OUTCOME_UNKNOWN,
}

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


class Result(msgspec.Struct, frozen=True):
    """The result of a call as text."""

    text: str
    error: bool


def result_of(entry: ToolCall) -> Result:
    """Return the only result of a call. A detached call has an immediate result: that it is queued."""
    if entry.scope == "detached":
        return Result(codec.encode(queued(entry)).decode(), False)
    output = _plain(output_besides_error(entry))
    if entry.status == "completed":
        return Result(_lines([output if output.strip() else NO_OUTPUT, *_notes(entry)]), False)
    error = STATE_NAMES[entry.status].error or entry.status not in TERMINAL_STATES
    reason = _reason(entry)
    if entry.status != "failed" or not (reason or output).strip():  # The message of a failed tool is enough.
        reason = MISSING_RESULT_TEXTS[entry.status] + (f": {reason}" if reason.strip() else ".")
    return Result(_lines([reason, output, *_notes(entry)]), error)


def _reason(entry: ToolCall) -> str:
    """Return the error as text, or the reason if there is no error or if the reason is the error with its type."""
    error = _plain(error_of(entry))
    return error if error and not entry.reason.endswith(f": {error}") else entry.reason


def _lines(parts: list[str]) -> str:
    """Return the parts that are not blank, each on its own lines, without repetitions."""
    *first, last = dict.fromkeys(part for part in parts if part.strip())
    return "\n".join([*(part.rstrip("\n") for part in first), last])


def _notes(entry: ToolCall) -> list[str]:
    """Return notes on an exit status other than 0 and on truncated output."""
    status = _exit_status(entry.exit_status)
    notes = [f"({status})"] if status else []
    if entry.truncated:
        size = f" of {entry.blob.size} bytes" if entry.blob else ""
        notes.append(f"(cut: only the beginning{size} is shown)")
    return notes


def _exit_status(status: Any) -> str:
    """Return how a process ended, "" for success. The status is a number, or an object with it or with a signal."""
    fields = as_dict(status) if isinstance(status, dict) else {"exitCode": status}
    signal = fields.get("signal")
    if signal:
        return f"ended by signal {_plain(signal)}"
    code = fields.get("exitCode", fields.get("exit_code"))
    return f"exit status {_plain(code)}" if code not in (None, 0, "") else ""


def _plain(value: Any) -> str:
    """Return a string as it is, any other value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return codec.encode(value).decode()


# The call itself


def name_of(entry: ToolCall) -> str:
    """Return the tool name that the model uses, in characters that are valid in a name."""
    name = entry.raw_tool_name or entry.tool_name or entry.kind or ""
    return _NOT_IN_NAMES.sub("_", name)[:MAX_NAME_CHARS] or "unknown"


def input_of(entry: ToolCall) -> dict[str, Any]:
    """Return the arguments as an object. Any other value, or an incomplete one, becomes its `input`."""
    arguments = entry.raw_input
    if arguments is None and entry.input_text:
        arguments = parse_json_or(entry.input_text, entry.input_text)
    if isinstance(arguments, dict):
        return as_dict(arguments)
    return {} if arguments in (None, "") else {"input": arguments}


def arguments_of(entry: ToolCall) -> str:
    """Return the arguments as JSON text, which some APIs require."""
    return codec.encode(input_of(entry)).decode()


class Ids:
    """Assigns the ids of calls in one request: their own, unless the API rejects it or it is already in use."""

    def __init__(self, max_chars: int) -> None:
        self._used: set[str] = set()
        self._valid = re.compile(rf"[a-zA-Z0-9_-]{{1,{max_chars}}}")

    def next(self, entry: ToolCall) -> str:
        """Return the id of the next call."""
        call_id = entry.tool_call_id
        if not self._valid.fullmatch(call_id) or call_id in self._used:
            call_id = entry.call_id if self._valid.fullmatch(entry.call_id) else "call"
        number, base = 1, call_id
        while call_id in self._used:
            number += 1
            call_id = f"{base[:24]}_{number}"
        self._used.add(call_id)
        return call_id
