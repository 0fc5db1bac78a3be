"""Terminals: their output is reported separately from the call that shows them and becomes output of that call.

In version 1 the client owns them: the agent requests the output so far and the exit. In draft 2 the agent owns them: it
sends the bytes of each chunk as base64, so a character may be split between two chunks, or all the bytes again.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.acp.growing_text import GrowingText
from callslip.formats.acp.update import exit_status
from callslip.formats.json_fields import as_dict, as_list, has_other_fields, identifier

KNOWN_FIELDS = {"sessionUpdate", "terminalId", "output", "exitStatus", "data", "truncated"}


class Terminal(msgspec.Struct):
    """One terminal. `calls` are the open calls that show it, `last_call` the last one, which may have ended.

    `unread` is what it printed before any call showed it, `partial` the first bytes of an incomplete character.
    """

    calls: dict[str, None] = {}
    last_call: str = ""
    text: GrowingText = msgspec.field(default_factory=GrowingText)
    unread: list[str] = []
    partial: bytes = b""
    exit: Any = UNSET

    def target_calls(self) -> list[str]:
        """Return the calls that get the output of the terminal."""
        return list(self.calls) or ([self.last_call] if self.last_call else [])


class TerminalUpdate(msgspec.Struct, frozen=True):
    """The fields that a message about a terminal adds to the calls that show it. `is_open`: a call has not ended."""

    calls: list[str]
    is_open: bool
    fields: dict[str, Any]
    needs_raw: bool


def terminals_in(content: Any) -> list[str]:
    """Return the ids of the terminals in some content."""
    blocks = [block for block in map(as_dict, as_list(content)) if block.get("type") == "terminal"]
    return list(dict.fromkeys(name for block in blocks if (name := identifier(block.get("terminalId")))))


class Terminals:
    """All terminals of one conversation."""

    def __init__(self) -> None:
        self._terminals: dict[str, Terminal] = {}
        self._shown: dict[str, list[Terminal]] = {}

    def hold_text(self) -> bool:
        """Return whether a terminal has printed what no call shows yet, or a part of a character."""
        return any(terminal.unread or terminal.partial for terminal in self._terminals.values())

    def show(self, call: str, content: Any) -> dict[str, Any]:
        """Add the terminals in some content to a call. Return their earlier output and exit status as fields."""
        fields: dict[str, Any] = {}
        for terminal in map(self._get_or_add, terminals_in(content)):
            shown = self._shown.setdefault(call, [])
            if not any(terminal is other for other in shown):
                shown.append(terminal)
                terminal.calls[call], terminal.last_call = None, call
                fields["text"] = fields.get("text", "") + "".join(terminal.unread)
                terminal.unread.clear()
                fields.update(_exit_field(terminal))
        return {name: value for name, value in fields.items() if value != ""}

    def forget(self, call: str) -> None:
        """Remove the terminals of a call whose id now names another call."""
        for terminal in self._shown.pop(call, []):
            terminal.calls.pop(call, None)
            terminal.last_call = "" if terminal.last_call == call else terminal.last_call

    def end_call(self, call: str) -> None:
        """Drop texts that no open call needs."""
        for terminal in self._shown.get(call, []):
            terminal.calls.pop(call, None)
            if not terminal.calls:
                terminal.text.forget()

    def flush(self, call: str) -> str:
        """Return the incomplete characters of a call's terminals when the call ends."""
        return "".join(_flush(terminal) for terminal in self._shown.get(call, []) if terminal.partial)

    def screen(self, call: str) -> Any:
        """Return the text of a call's only terminal if it differs from what was passed on; else UNSET."""
        shown = self._shown.get(call, [])
        text = shown[0].text.replacement if len(shown) == 1 else None
        return UNSET if text is None else text

    def calls_of(self, terminal_id: Any) -> list[str]:
        """Return the calls that show a terminal."""
        terminal = self._terminals.get(identifier(terminal_id))
        return terminal.target_calls() if terminal else []

    # Draft 2

    def read(self, update: dict[str, Any]) -> TerminalUpdate | None:
        """Read `terminal_output_chunk`: more bytes; or `terminal_update`: all bytes again, the exit, or other facts."""
        if update["sessionUpdate"] == "terminal_output_chunk":
            return self._chunk(update)
        terminal = self._terminal_of(update)
        if terminal is None:
            return None
        if "output" not in update:
            return self._updated(terminal, update, {})
        output = update["output"]
        data = _decode_base64("" if output is None else as_dict(output).get("data"))
        if data is None:
            return self._updated(terminal, update, {}, needs_raw=True)
        text, terminal.partial, is_invalid = _decode_utf8(b"", data)
        return self._updated(terminal, update, _replace_text(terminal, text), needs_raw=is_invalid)

    def _chunk(self, update: dict[str, Any]) -> TerminalUpdate | None:
        terminal, data = self._terminal_of(update), _decode_base64(update.get("data"))
        if terminal is None or data is None:
            return None
        text, terminal.partial, is_invalid = _decode_utf8(terminal.partial, data)
        return self._updated(terminal, update, _add_text(terminal, text), needs_raw=is_invalid)

    # Version 1

    def output(self, params: dict[str, Any], result: dict[str, Any]) -> TerminalUpdate | None:
        """Read the client's answer to `terminal/output`: all output so far, or the end of it."""
        terminal, text = self._terminal_of(params), result.get("output")
        if terminal is None or not isinstance(text, str):
            return None
        is_truncated = result.get("truncated") is True
        return self._updated(terminal, result, _replace_text(terminal, text), needs_raw=is_truncated)

    def exit(self, params: dict[str, Any], result: dict[str, Any]) -> TerminalUpdate | None:
        """Read the client's answer to `terminal/wait_for_exit`."""
        terminal = self._terminal_of(params)
        if terminal is None or exit_status(result) is UNSET:
            return None
        return self._updated(terminal, {"exitStatus": result}, {})

    def release(self, params: dict[str, Any]) -> None:
        """Read the agent's `terminal/release`: forget a terminal that no call shows."""
        name = identifier(params.get("terminalId"))
        if name in self._terminals and not self._terminals[name].target_calls():
            del self._terminals[name]

    def _updated(
        self, terminal: Terminal, message: dict[str, Any], fields: dict[str, Any], *, needs_raw: bool = False
    ) -> TerminalUpdate:
        needs_raw = needs_raw or has_other_fields(message, KNOWN_FIELDS)
        if "exitStatus" in message:
            status = message["exitStatus"]
            terminal.exit = None if status is None else exit_status(as_dict(status))
            tail = _flush(terminal) if status is not None else ""
            text = fields.get("text", "") + tail
            fields = {**fields, **({"text": text} if text else {}), **_exit_field(terminal)}
            needs_raw = needs_raw or bool(tail) or _exit_needs_raw(status)
        return TerminalUpdate(terminal.target_calls(), bool(terminal.calls), fields, needs_raw)

    def _terminal_of(self, message: dict[str, Any]) -> Terminal | None:
        name = identifier(message.get("terminalId"))
        return self._get_or_add(name) if name else None

    def _get_or_add(self, name: str) -> Terminal:
        return self._terminals.setdefault(name, Terminal())


def _exit_field(terminal: Terminal) -> dict[str, Any]:
    return {} if terminal.exit is UNSET else {"exit_status": terminal.exit}


def _exit_needs_raw(status: Any) -> bool:
    """Return whether an exit has more than a number or a signal."""
    fields = as_dict(status)
    has_both = fields.get("exitCode") is not None and fields.get("signal") is not None
    is_odd = exit_status(fields) is UNSET or has_other_fields(fields, {"exitCode", "signal"})
    return status is not None and (has_both or is_odd)


def _add_text(terminal: Terminal, text: str) -> dict[str, Any]:
    terminal.text.add(text)
    if not terminal.target_calls():
        terminal.unread.append(text)
    return {"text": text} if text else {}


def _replace_text(terminal: Terminal, text: str) -> dict[str, Any]:
    """Replace the text of a terminal, which usually has only grown. Output that was passed on cannot be undone."""
    if not terminal.target_calls():
        terminal.text, terminal.unread = GrowingText(text), [text]
        return {}
    rest = terminal.text.extend_to(text)
    if rest is None:
        return {"progress": text}
    return {"text": rest} if rest else {}


def _flush(terminal: Terminal) -> str:
    """Return an incomplete character as replacement characters: its other bytes will not arrive."""
    text, terminal.partial, _ = _decode_utf8(terminal.partial, b"", final=True)
    _add_text(terminal, text)
    return text


def _decode_utf8(partial: bytes, data: bytes, *, final: bool = False) -> tuple[str, bytes, bool]:
    """Return bytes as text, the bytes of an incomplete character, and whether some bytes were invalid."""
    data, is_invalid = partial + data, False
    try:
        text, used = codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError:
        text, used = codecs.utf_8_decode(data, "replace", final)
        is_invalid = True
    return text, data[used:], is_invalid


def _decode_base64(data: Any) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        return None
