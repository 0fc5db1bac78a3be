"""Terminals: what runs in them is told apart from the call that shows them, and ends up as that call's output.

In version 1 the client owns them: the agent asks for the output so far, and for the exit. In draft 2 the agent owns
them: it sends the bytes as they come, each chunk base64 by itself, so that a character may be split between two chunks,
or all the bytes anew.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.acp.growing import Growing
from callslip.formats.acp.update import exited
from callslip.formats.acp.wire import leaves
from callslip.formats.json_fields import as_dict, as_list, identifier

KNOWN_FIELDS = {"sessionUpdate", "terminalId", "output", "exitStatus", "data", "truncated"}


class Terminal(msgspec.Struct):
    """One terminal, the calls that show it and go on, and what it printed before any did. `held` begins a character.

    `last` is the call that showed it last, which may be over.
    """

    calls: dict[str, None] = {}
    last: str = ""
    text: Growing = msgspec.field(default_factory=Growing)
    waiting: list[str] = []
    held: bytes = b""
    exit: Any = UNSET

    def of(self) -> list[str]:
        """The calls that what it prints is told of."""
        return list(self.calls) or ([self.last] if self.last else [])


class TerminalUpdate(msgspec.Struct, frozen=True):
    """What a message about a terminal says, and for which calls: those that show it and are `going` on, or the last.

    `leaves`: there is more to the message.
    """

    calls: list[str]
    going: bool
    said: dict[str, Any]
    leaves: bool


def shown_in(content: Any) -> list[str]:
    """The terminals among some content."""
    found = [block for block in map(as_dict, as_list(content)) if block.get("type") == "terminal"]
    return list(dict.fromkeys(name for block in found if (name := identifier(block.get("terminalId")))))


class Terminals:
    """All terminals of one conversation."""

    def __init__(self) -> None:
        self._known: dict[str, Terminal] = {}
        self._shown: dict[str, list[Terminal]] = {}

    def show(self, call: str, content: Any) -> dict[str, Any]:
        """A call shows these: what was printed before, and how it exited, is the call's to tell."""
        said: dict[str, Any] = {}
        for terminal in map(self._terminal, shown_in(content)):
            mine = self._shown.setdefault(call, [])
            if not any(terminal is known for known in mine):
                mine.append(terminal)
                terminal.calls[call], terminal.last = None, call
                said["text"] = said.get("text", "") + "".join(terminal.waiting)
                terminal.waiting.clear()
                said.update(_known(exit_status=terminal.exit))
        return {name: value for name, value in said.items() if value != ""}

    def forget(self, call: str) -> None:
        """The id is another call's now."""
        for terminal in self._shown.pop(call, []):
            terminal.calls.pop(call, None)
            terminal.last = "" if terminal.last == call else terminal.last

    def ended(self, call: str) -> None:
        """Nothing more is asked of what such a call shows."""
        for terminal in self._shown.get(call, []):
            terminal.calls.pop(call, None)
            if not terminal.calls:
                terminal.text.forget()

    def ending(self, call: str) -> str:
        """What its terminals still hold back when a call ends."""
        return "".join(_flush(terminal) for terminal in self._shown.get(call, []) if terminal.held)

    def screen(self, call: str) -> Any:
        """What the one terminal of a call shows, if that is not what was passed on; else UNSET."""
        mine = self._shown.get(call, [])
        whole = mine[0].text.whole if len(mine) == 1 else None
        return UNSET if whole is None else whole

    def of(self, terminal: Any) -> list[str]:
        """The calls that show a terminal."""
        known = self._known.get(identifier(terminal))
        return known.of() if known else []

    # Draft 2

    def updated(self, update: dict[str, Any]) -> TerminalUpdate | None:
        """`terminal_update`: the bytes anew, the exit, or other facts."""
        terminal = self._named(update)
        if terminal is None:
            return None
        if "output" not in update:
            return self._told(terminal, update, {})
        output = update["output"]
        data = _unpacked("" if output is None else as_dict(output).get("data"))
        if data is None:
            return self._told(terminal, update, {}, left=True)
        text, terminal.held, wrong = _read(b"", data)
        return self._told(terminal, update, _replaced(terminal, text), left=wrong)

    def chunk(self, update: dict[str, Any]) -> TerminalUpdate | None:
        """`terminal_output_chunk`: some more bytes."""
        terminal, data = self._named(update), _unpacked(update.get("data"))
        if terminal is None or data is None:
            return None
        text, terminal.held, wrong = _read(terminal.held, data)
        return self._told(terminal, update, _added(terminal, text), left=wrong)

    # Version 1

    def output(self, params: dict[str, Any], result: dict[str, Any]) -> TerminalUpdate | None:
        """The client's answer to `terminal/output`: all output so far, or the end of it."""
        terminal, text = self._named(params), result.get("output")
        if terminal is None or not isinstance(text, str):
            return None
        return self._told(terminal, result, _replaced(terminal, text), left=result.get("truncated") is True)

    def exit(self, params: dict[str, Any], result: dict[str, Any]) -> TerminalUpdate | None:
        """The client's answer to `terminal/wait_for_exit`."""
        terminal = self._named(params)
        if terminal is None or exited(result) is UNSET:
            return None
        return self._told(terminal, {"exitStatus": result}, {})

    def released(self, params: dict[str, Any]) -> None:
        """The agent's `terminal/release`: if no call shows it by now, none will."""
        name = identifier(params.get("terminalId"))
        if name in self._known and not self._known[name].of():
            del self._known[name]

    def _told(
        self, terminal: Terminal, message: dict[str, Any], said: dict[str, Any], *, left: bool = False
    ) -> TerminalUpdate:
        left = left or leaves(message, KNOWN_FIELDS)
        if "exitStatus" not in message:
            return TerminalUpdate(terminal.of(), bool(terminal.calls), said, left)
        status = message["exitStatus"]
        terminal.exit = None if status is None else exited(as_dict(status))
        tail = _flush(terminal) if status is not None else ""
        text = said.get("text", "") + tail
        known = {**({"text": text} if text else {}), **_known(exit_status=terminal.exit)}
        left = left or bool(tail) or _exit_leaves(status)
        return TerminalUpdate(terminal.of(), bool(terminal.calls), {**said, **known}, left)

    def _named(self, message: dict[str, Any]) -> Terminal | None:
        name = identifier(message.get("terminalId"))
        return self._terminal(name) if name else None

    def _terminal(self, name: str) -> Terminal:
        return self._known.setdefault(name, Terminal())


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not UNSET}


def _exit_leaves(status: Any) -> bool:
    """Whether there is more to an exit than its number, or its signal."""
    said = as_dict(status)
    both = said.get("exitCode") is not None and said.get("signal") is not None
    return status is not None and (both or exited(said) is UNSET or leaves(said, {"exitCode", "signal"}))


def _added(terminal: Terminal, text: str) -> dict[str, Any]:
    terminal.text.add(text)
    if not terminal.of():
        terminal.waiting.append(text)
    return {"text": text} if text else {}


def _replaced(terminal: Terminal, text: str) -> dict[str, Any]:
    """All of the text anew: mostly it has only grown. What was passed on already cannot be taken back."""
    if not terminal.of():
        terminal.text, terminal.waiting = Growing(text), [text]
        return {}
    rest = terminal.text.become(text)
    if rest is None:
        return {"progress": text}
    return {"text": rest} if rest else {}


def _flush(terminal: Terminal) -> str:
    """No more will come: the beginning of a character is none."""
    text, terminal.held, _ = _read(terminal.held, b"", final=True)
    _added(terminal, text)
    return text


def _read(held: bytes, data: bytes, *, final: bool = False) -> tuple[str, bytes, bool]:
    """Bytes as text, what waits for its other half, and whether some were no text at all."""
    data, wrong = held + data, False
    try:
        text, used = codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError:
        text, used = codecs.utf_8_decode(data, "replace", final)
        wrong = True
    return text, data[used:], wrong


def _unpacked(data: Any) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        return None
