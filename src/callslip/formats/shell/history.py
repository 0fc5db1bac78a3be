"""Encode a session for a model that calls tools by `<shell>` tags, as plain messages.

The model's texts contain its commands in their tags. The results of the commands of one answer follow as one message.
The same entries give the same text, live and after a reload.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callslip.formats.base import Source, conversation_of
from callslip.formats.json_fields import as_dict
from callslip.formats.outcome import error_of, output_besides_error
from callslip.formats.shell.parse import CLOSE, OPEN
from callslip.formats.shell.results import format_tool_results
from callslip.model.entries import Message, ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

UNKNOWN = "the outcome of this command is not known yet"
FIRST = "(the conversation begins with the answer)"


class _Round(msgspec.Struct):
    """An answer of the model with its commands. `name` is the message id of its texts, "" if it is not known yet."""

    name: str = ""
    iteration: tuple[str, int] = ("", -1)
    parts: list[str] = []
    calls: list[ToolCall] = []

    def includes(self, entry: Message | ToolCall) -> bool:
        """Return whether the next entry belongs to this answer. A text after commands does only by its message id."""
        if not self.calls:
            return True
        if isinstance(entry, ToolCall):
            return self.iteration == (entry.turn, entry.iteration)
        return entry.message_id == self.name

    def add(self, entry: Message | ToolCall) -> None:
        """Add an entry."""
        if isinstance(entry, ToolCall):
            self.iteration = (entry.turn, entry.iteration)
            self.name = self.name or round_name(*self.iteration)
            self.calls.append(entry)
            self.parts.append(f"{OPEN}{command_of(entry)}{CLOSE}")
        else:
            self.name = self.name or entry.message_id
            self.parts.append(entry.content)

    def messages(self) -> list[dict[str, str]]:
        """Return the answer, and the results of its commands."""
        messages = [_message("assistant", "".join(self.parts))] if self.parts else []
        if self.calls:
            messages.append(_message("user", format_tool_results(map(result_of, self.calls))))
        return messages


def round_name(turn: str, iteration: int) -> str:
    """Return the message id in the log for the texts of one answer."""
    return f"{turn}.{iteration}"


def model_messages(source: Source) -> list[dict[str, str]]:
    """Return the messages for a model, oldest first, each with a role and a text."""
    messages: list[dict[str, str]] = []
    current = _Round()
    for entry in conversation_of(source).entries:
        if isinstance(entry, Message) and entry.role == "user":
            messages += [*current.messages(), _message("user", entry.content)]
            current = _Round()
        elif isinstance(entry, Message | ToolCall):
            if not current.includes(entry):
                messages += current.messages()
                current = _Round()
            current.add(entry)
    return _merge([*messages, *current.messages()])


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _merge(messages: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Drop empty messages, join consecutive messages of a role, and let the user begin: model APIs require this."""
    merged: list[dict[str, str]] = []
    for message in messages:
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
    """Return the command; of another tool the title or the name."""
    command = as_dict(call.raw_input).get("command")
    return command if isinstance(command, str) else call.title or call.tool_name or ""


def result_of(call: ToolCall) -> dict[str, Any]:
    """Return the result of a call for `format_tool_results`."""
    if call.status not in TERMINAL_STATES:
        return {"result": call.output_text, "error": UNKNOWN}
    output = output_besides_error(call)
    result: dict[str, Any] = {"result": output}
    if call.blob is not None and isinstance(output, str):
        result["result"] = f"{output}\n[... cut here; the whole has {call.blob.size} bytes ...]"
    if call.exit_status is not None:
        result["exitStatus"] = call.exit_status
    if STATE_NAMES[call.status].error and (error := _error_of(call)):
        result["error"] = error
    return result


def _error_of(call: ToolCall) -> Any:
    """Return the error; None if the exit status of a failed command is all that is known."""
    status = f"exit status {call.exit_status}" if call.exit_status not in (None, 0) else ""
    error = error_of(call)
    if call.status == "failed" and status and not error and call.reason in ("", status):
        return None
    return error or call.reason or call.status
