"""A session as a model is shown it that calls tools by `<shell>` tags: plain messages, made from entries alone.

What it wrote stands there as it wrote it, commands in their tags; what came of the commands of one round follows as one
message of formatted results (S0.6). The same entries give the same text, live and after a reload.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from callslip.formats.base import Source, snapshot_of
from callslip.formats.outcome import output_of
from callslip.formats.shell.parse import CLOSE, OPEN
from callslip.formats.shell.results import format_tool_results
from callslip.model.entries import Message, ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

UNKNOWN = "the outcome of this command is not known yet"
FIRST = "(the conversation begins with the answer)"


class _Round(msgspec.Struct):
    """One answer of the model, and the commands in it. `name` is what its texts call it, "" if nothing is known yet."""

    name: str = ""
    place: tuple[str, int] = ("", -1)
    parts: list[str] = []
    calls: list[ToolCall] = []

    def goes_on(self, entry: Message | ToolCall) -> bool:
        """Whether an entry belongs to this answer. A text after commands begins the next, unless it says otherwise."""
        if not self.calls:
            return True
        if isinstance(entry, ToolCall):
            return self.place == (entry.turn, entry.iteration)
        return entry.message_id == self.name


def round_name(turn: str, iteration: int) -> str:
    """What the texts of one answer are called in the log: so they can be told from those of the next."""
    return f"{turn}.{iteration}"


def model_messages(source: Source) -> list[dict[str, str]]:
    """Messages for a model, oldest first: each a role and a text."""
    said: list[dict[str, str]] = []
    current = _Round()
    for entry in snapshot_of(source).entries:
        if isinstance(entry, Message) and entry.role == "user":
            said += [*_told(current), _message("user", entry.content)]
            current = _Round()
        elif isinstance(entry, Message | ToolCall):
            if not current.goes_on(entry):
                said += _told(current)
                current = _Round()
            _add(current, entry)
    return _merged([*said, *_told(current)])


def _add(current: _Round, entry: Message | ToolCall) -> None:
    if isinstance(entry, ToolCall):
        current.place = (entry.turn, entry.iteration)
        current.name = current.name or round_name(*current.place)
        current.calls.append(entry)
        current.parts.append(f"{OPEN}{command_of(entry)}{CLOSE}")
    else:
        current.name = current.name or entry.message_id
        current.parts.append(entry.content)


def _told(current: _Round) -> list[dict[str, str]]:
    said = [_message("assistant", "".join(current.parts))] if current.parts else []
    if current.calls:
        said.append(_message("user", format_tool_results(map(result_of, current.calls))))
    return said


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _merged(said: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Without empty messages, with one message where a role speaks twice in a row, and begun by the person."""
    merged: list[dict[str, str]] = []
    for message in said:
        if not message["content"].strip():
            continue
        if not merged and message["role"] == "assistant":
            merged.append(_message("user", FIRST))
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = _message(message["role"], f"{merged[-1]['content']}\n\n{message['content']}")
        else:
            merged.append(message)
    return merged


def command_of(call: ToolCall) -> str:
    """The command, or of a call of another tool what is known of it."""
    command = _fields(call.raw_input).get("command")
    return command if isinstance(command, str) else call.title or call.tool_name or ""


def result_of(call: ToolCall) -> dict[str, Any]:
    """What came of a call, as `format_tool_results` takes it."""
    if call.status not in TERMINAL_STATES:
        return {"result": call.output_text, "error": UNKNOWN}
    output = output_of(call)
    told: dict[str, Any] = {"result": output}
    if call.blob is not None and isinstance(output, str):
        told["result"] = f"{output}\n[... cut here; the whole has {call.blob.size} bytes ...]"
    if call.exit_status is not None:
        told["exitStatus"] = call.exit_status
    if STATE_NAMES[call.status].error and (why := _why(call)):
        told["error"] = why
    return told


def _why(call: ToolCall) -> Any:
    """What went wrong; nothing if the exit status of a command that failed says all that is known."""
    told = f"exit status {call.exit_status}" if call.exit_status not in (None, 0) else ""
    if call.status == "failed" and told and not call.error and call.reason in ("", told):
        return None
    return call.error or call.reason or call.status


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
