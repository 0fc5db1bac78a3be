"""Find the command of an event: the text and the producer's events may use different ids for the same command.

A command that was found in the text has an id from this module before the producer names it. A `tool-call` with another
id is matched with the oldest such command with the same text that has no `tool-call` yet; its id becomes a second name
of the call. Events without ids are matched in their order: each with the oldest call of that command that had no event
of this kind.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Literal

from callslip.formats.call_tracker import ENDED, CallTracker, TrackedCall
from callslip.formats.shell.parse import Command, command_id
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.names import SHELL_NAMESPACE

TOOL = "shell"
MAX_ROUNDS = 10**6

Kind = Literal["call", "start", "result"]
KINDS: tuple[Kind, ...] = ("call", "start", "result")

_NUMBERED = re.compile(r"cmd-(\d{1,6})-(\d{1,6})", re.ASCII)


class ShellCommand(TrackedCall, kw_only=True):
    """A command of this turn: its first id, its text and its position."""

    id: str
    command: str = ""
    iteration: int = -1
    index: int = -1


class Commands:
    """The commands of the current turn."""

    def __init__(self) -> None:
        self._first_round = 0  # The number that the producer gives its first round: some count from 1.
        self._calls: CallTracker[str, ShellCommand] = CallTracker(ShellCommand)
        self.next_turn()

    def next_turn(self) -> None:
        self.next_round(0)
        self._calls.forget()
        self._waiting: dict[tuple[Kind, str], deque[str]] = {}
        self._matched: set[tuple[Kind, str]] = set()

    def next_round(self, iteration: int | None = None) -> None:
        self.iteration = self.iteration + 1 if iteration is None else iteration
        self._found: dict[str, ShellCommand] = {}
        self._called: dict[str, ShellCommand] = {}

    # Events

    def propose(self, piece: Command) -> ev.CallProposed:
        """Return the event of a command in the text."""
        name = command_id(self.iteration + self._first_round, piece.index)
        earlier = self._calls.find(name)
        call = self._new_call(name, piece.command, self.iteration, piece.index)
        call.end = earlier.end if earlier else ""
        self._found[name] = call
        self._await_events(call, "call", "start", "result")
        return _proposal(call, name)

    def call(self, command: str, name: str) -> ev.CallProposed:
        """Read a `tool-call`, whose command may be known from the text. A repeated one gives the same event."""
        call = self._called.get(name)
        if call is not None and command in ("", call.command):
            return _proposal(call, call.id)
        call = self._find_uncalled(command, name) or self._unseen_call(command, name)
        if name:
            self._called[name] = self._calls.add(call, name)
            call.end = ""
            self._match(name)
            self._learn_first_round(call, name)
        return _proposal(call, call.id, name)

    def start(self, command: str, name: str) -> ev.CallUpdate:
        """Read a `tool-start`. Without an id and a matching call it opens a call that a result may match."""
        self._match(name)
        name = name or self._next_unmatched("start", command)
        if name:
            # After the end a start would open another call, but this one is only late.
            call = self._calls.find(name)
            event_type = ev.CallProgress if call and call.end else ev.CallStarted
            return event_type(**self._call_fields(name, command))
        call = self._unseen_call(command, "")
        self._matched.add(("start", call.id))
        return ev.CallStarted(aliases=_aliases(call.id), **_command_fields(command))

    def end(self, end_type: type[ev.CallEnd], command: str, name: str, **fields: Any) -> ev.CallEnd:
        """Read a `tool-result`. One that matches no call is a call of its own."""
        self._match(name)
        name = name or self._next_unmatched("result", command)
        event = end_type(**self._call_fields(name, command), **fields)
        if call := self._calls.find(name):
            call.end = ENDED
        return event

    def answer(self, outputs: list[str]) -> list[ev.CallEnd]:
        """Return the ends for results without ids, if there is one for each command of this round without a result."""
        names = [name for name in self._found if ("result", name) not in self._matched]
        if len(names) != len(outputs):
            return []
        self._matched.update(("result", name) for name in names)
        return [
            ev.CallCompleted(aliases=_aliases(name), output=output) for name, output in zip(names, outputs, strict=True)
        ]

    def _call_fields(self, name: str, command: str) -> dict[str, Any]:
        """Return the alias of a call, and its description if this is the first event about it."""
        if self._calls.find(name):
            return {"aliases": _aliases(name)}
        if name:
            self._calls.add(self._new_call(name, command), name)
        return {"aliases": _aliases(name), **_command_fields(command)}

    # Matching

    def _find_uncalled(self, command: str, name: str) -> ShellCommand | None:
        """Return a command of the text without a `tool-call`: by its own id, else the oldest with the same text."""
        call = self._found.get(name)
        if call is not None and command in ("", call.command):
            return call
        return self._calls.find(self._next_unmatched("call", command))

    def _unseen_call(self, command: str, name: str) -> ShellCommand:
        """Return a command that was not in the text."""
        numbers = _NUMBERED.fullmatch(name)
        if numbers:
            iteration = int(numbers[1]) - self._first_round
            return self._new_call(name, command, iteration if iteration >= 0 else -1, int(numbers[2]))
        if name:
            return self._new_call(name, command, self.iteration)
        call = self._new_call(self._calls.invent_id(), command, self.iteration)
        self._await_events(call, "start", "result")
        return call

    def _new_call(self, name: str, command: str, iteration: int = -1, index: int = -1) -> ShellCommand:
        return ShellCommand(id=name, command=command, iteration=iteration, index=index)

    def _learn_first_round(self, call: ShellCommand, name: str) -> None:
        """Learn from the producer's first id how it numbers its rounds."""
        numbers = _NUMBERED.fullmatch(name)
        if numbers and name != call.id and call.iteration == 0 and int(numbers[2]) == call.index:
            self._first_round = int(numbers[1])

    def _await_events(self, call: ShellCommand, *kinds: Kind) -> None:
        self._calls.add(call, call.id)
        for kind in kinds:
            self._waiting.setdefault((kind, call.command), deque()).append(call.id)

    def _next_unmatched(self, kind: Kind, command: str) -> str:
        """Return the id of the oldest call of a command without an event of this kind; "" for none."""
        waiting = self._waiting.get((kind, command), ())
        while waiting:
            name = waiting.popleft()
            if (kind, name) not in self._matched:
                self._matched.add((kind, name))
                return name
        return ""

    def _match(self, name: str) -> None:
        """Exclude a call that events name by its id from matching in order."""
        call = self._calls.find(name)
        self._matched.update((kind, call.id if call else name) for kind in KINDS)


def _proposal(call: ShellCommand, *names: str) -> ev.CallProposed:
    fields = _command_fields(call.command)
    return ev.CallProposed(aliases=_aliases(*names), iteration=call.iteration, index=call.index, **fields)


def _command_fields(command: str) -> dict[str, Any]:
    """Return the fields of a call of this command; "" if it is not known."""
    fields = {"title": command, "input": {"command": command}} if command else {}
    return {"tool_name": TOOL, "kind": "execute", **fields}


def _aliases(*names: str) -> tuple[Alias, ...]:
    return tuple(Alias(SHELL_NAMESPACE, name) for name in dict.fromkeys(names) if name)
