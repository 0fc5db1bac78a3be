"""What a model is told of a call: a name and an id that its API takes, arguments that are an object, how it went.

The same entry gives the same words on every day. What came after a call's end is told to nobody but people.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats.outcome import output_of, queued
from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

MAX_NAME_CHARS = 64
NOTHING = "(no output)"
UNKNOWN = "The outcome of this call is unknown"

# What is said of a call that brought no result of its own.
HOW: dict[str, str] = {
    "queued": f"{UNKNOWN}: it had not begun when this was written",
    "running": f"{UNKNOWN}: it had not ended when this was written",
    "awaiting_approval": "This call has not run: a person has still to approve it",
    "failed": "This call failed",
    "denied": "This call was denied and has not run",
    "cancelled": "This call was cancelled",
    "expired": "This call ran out of time",
    "lost": UNKNOWN,
}

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


class Result(msgspec.Struct, frozen=True):
    """What a call came to, as text."""

    text: str
    error: bool


def result_of(entry: ToolCall) -> Result:
    """The one result of a call. A detached one has its answer at once: that it is queued."""
    if entry.scope == "detached":
        return Result(codec.encode(queued(entry)).decode(), False)
    output = _plain(output_of(entry))
    if entry.status == "completed":
        return Result(_lines([output if output.strip() else NOTHING, *_notes(entry)]), False)
    error = STATE_NAMES[entry.status].error or entry.status not in TERMINAL_STATES
    return Result(_lines([_why(entry, output), output, *_notes(entry)]), error)


def _lines(parts: list[str]) -> str:
    """The parts that say something, each on its own lines, none twice."""
    *before, last = dict.fromkeys(part for part in parts if part.strip())
    return "\n".join([*(part.rstrip("\n") for part in before), last])


def _why(entry: ToolCall, output: str) -> str:
    """Why there is no result. A tool that failed speaks for itself, if it says anything."""
    why = _message(entry.error) or entry.reason
    if entry.status == "failed" and (why or output).strip():
        return why
    return HOW[entry.status] + (f": {why}" if why.strip() else ".")


def _notes(entry: ToolCall) -> list[str]:
    """What the output does not show by itself: an exit status other than 0, and that it was cut."""
    status = _exit_status(entry.exit_status)
    notes = [f"({status})"] if status else []
    if entry.truncated:
        size = f" of {entry.blob.size} bytes" if entry.blob else ""
        notes.append(f"(cut: only the beginning{size} is shown)")
    return notes


def _exit_status(status: Any) -> str:
    """How a process ended, "" if well. Agents write a number, or an object with it or with the signal."""
    told = cast("dict[str, Any]", status) if isinstance(status, dict) else {"exitCode": status}
    signal = told.get("signal")
    if signal:
        return f"ended by signal {_plain(signal)}"
    code = told.get("exitCode", told.get("exit_code"))
    return f"exit status {_plain(code)}" if code not in (None, 0, "") else ""


def _plain(value: Any) -> str:
    """A value as text: itself, or its JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return codec.encode(value).decode()


def _message(error: Any) -> str:
    """What an error says: its message if it has one."""
    told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    said = told.get("message")
    return said if said and isinstance(said, str) else _plain(told or error)


# The call itself


def name_of(entry: ToolCall) -> str:
    """The tool, by the name under which the model was offered it, in the letters that a name may have."""
    name = entry.raw_tool_name or entry.tool_name or entry.kind or ""
    return _NOT_IN_NAMES.sub("_", name)[:MAX_NAME_CHARS] or "unknown"


def input_of(entry: ToolCall) -> dict[str, Any]:
    """The arguments as an object. Anything else that was given, or as much as came of it, is its `input`."""
    given = entry.raw_input
    if given is None and entry.input_text:
        try:
            given = codec.parse_json(entry.input_text)
        except InvalidInputError:
            given = entry.input_text
    if isinstance(given, dict):
        return cast("dict[str, Any]", given)
    return {} if given in (None, "") else {"input": given}


def arguments_of(entry: ToolCall) -> str:
    """The same as a text, which is how some APIs want it."""
    return codec.encode(input_of(entry)).decode()


class Ids:
    """The ids of calls in one request: their own, unless the API would refuse one or it was used before."""

    def __init__(self, longest: int) -> None:
        self._used: set[str] = set()
        self._valid = re.compile(rf"[a-zA-Z0-9_-]{{1,{longest}}}")

    def named(self, calls: list[ToolCall]) -> list[tuple[str, ToolCall]]:
        """The next calls, each with its id."""
        return [(self.next(call), call) for call in calls]

    def next(self, entry: ToolCall) -> str:
        """The id of the next call."""
        identity = entry.tool_call_id
        if not self._valid.fullmatch(identity) or identity in self._used:
            identity = entry.call_id if self._valid.fullmatch(entry.call_id) else "call"
        number, wanted = 1, identity
        while identity in self._used:
            number += 1
            identity = f"{wanted[:24]}_{number}"
        self._used.add(identity)
        return identity
