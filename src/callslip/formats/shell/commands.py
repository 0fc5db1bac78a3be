"""Which command an event is about: what the text and the producer's events call the same one.

Ids tell commands apart (C3). A command that was found in the text has its id from us before the producer names it, so
that a `tool-call` by another id is taken for the oldest one of that text which no `tool-call` named yet; its id becomes
a second name of the call. Events of producers that send no ids are taken in their order: each for the oldest call of
that command that no such event was about.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Literal

import msgspec

from callslip.formats.shell.parse import Command, command_id
from callslip.model import events as ev
from callslip.model.events import Alias

NS = "shell"
TOOL = "shell"
ROUNDS = 10**6

Kind = Literal["call", "start", "result"]
KINDS: tuple[Kind, ...] = ("call", "start", "result")

_NUMBERED = re.compile(r"cmd-(\d{1,6})-(\d{1,6})", re.ASCII)


class CommandRef(msgspec.Struct, frozen=True):
    """A command of this turn: what it is called, and where it stands."""

    id: str
    command: str = ""
    iteration: int = -1
    index: int = -1


class Commands:
    """The commands of the turn that is going on."""

    def __init__(self) -> None:
        self._first = 0  # what the producer calls its first round: some count from 1
        self._invented = 0
        self.next_turn()

    def next_turn(self) -> None:
        self.next_round(0)
        self._places: dict[str, CommandRef] = {}
        self._waiting: dict[tuple[Kind, str], deque[str]] = {}
        self._settled: set[tuple[Kind, str]] = set()
        self._ended: set[str] = set()

    def next_round(self, iteration: int | None = None) -> None:
        self.iteration = self.iteration + 1 if iteration is None else iteration
        self._found: dict[str, CommandRef] = {}
        self._named: dict[str, CommandRef] = {}

    # What is said of them

    def found(self, piece: Command) -> ev.CallProposed:
        """A command was read in the text."""
        name = command_id(self.iteration + self._first, piece.index)
        place = self._found[name] = CommandRef(name, piece.command, self.iteration, piece.index)
        self._await(place, "call", "start", "result")
        return proposal(place, name)

    def called(self, command: str, name: str) -> ev.CallProposed:
        """A `tool-call`: the command may be known from the text. A repeated one says what the first one said."""
        known = self._named.get(name)
        if known is not None and command in ("", known.command):
            return proposal(known, known.id)
        place = self._meant(command, name) or self._unheard(command, name)
        if name:
            self._named[name] = self._places[name] = place
            self._ended.discard(place.id)
            self._spoken_of(name)
            self._learn(place, name)
        return proposal(place, place.id, name)

    def started(self, command: str, name: str) -> ev.CallUpdate:
        """A `tool-start`. Without an id and a call for it, it makes one that a result may be about."""
        self._spoken_of(name)
        name = name or self._oldest("start", command)
        if name:
            # After the end a start would open another call; this one only comes late.
            cls = ev.CallProgress if self._own(name) in self._ended else ev.CallStarted
            return cls(**self._about(name, command))
        place = self._unheard(command, "")
        self._settle(place.id, "start")
        return ev.CallStarted(aliases=aliases(place.id), **described(command))

    def ended(self, cls: type[ev.CallEnd], command: str, name: str, **came: Any) -> ev.CallEnd:
        """A `tool-result`. One that nobody can place stands by itself."""
        self._spoken_of(name)
        name = name or self._oldest("result", command)
        self._ended.add(self._own(name))
        return cls(**self._about(name, command), **came)

    def answered(self, outputs: list[str]) -> list[ev.CallEnd]:
        """Results without names, if there is one for each command of this round's text that has none yet."""
        lacking = [name for name in self._found if ("result", name) not in self._settled]
        if len(lacking) != len(outputs):
            return []
        self._settled.update(("result", name) for name in lacking)
        return [
            ev.CallCompleted(aliases=aliases(name), output=output)
            for name, output in zip(lacking, outputs, strict=True)
        ]

    def _about(self, name: str, command: str) -> dict[str, Any]:
        """Which call an event is about, and what it is if this is the first that is heard of it."""
        if name in self._places:
            return {"aliases": aliases(name)}
        if name:
            self._places.setdefault(name, CommandRef(name, command))
        return {"aliases": aliases(name), **described(command)}

    # Which one is meant

    def _meant(self, command: str, name: str) -> CommandRef | None:
        """What was found in the text and not called yet: by its own id, else the oldest of that command."""
        place = self._found.get(name)
        if place is not None and command in ("", place.command):
            return place
        return self._places.get(self._oldest("call", command))

    def _unheard(self, command: str, name: str) -> CommandRef:
        """A command that was not in the text."""
        numbers = _NUMBERED.fullmatch(name)
        if numbers:
            iteration = int(numbers[1]) - self._first
            return CommandRef(name, command, iteration if iteration >= 0 else -1, int(numbers[2]))
        if name:
            return CommandRef(name, command, self.iteration)
        self._invented += 1
        place = CommandRef(f"#{self._invented}", command, self.iteration)
        self._await(place, "start", "result")
        return place

    def _learn(self, place: CommandRef, name: str) -> None:
        """From the first id that is not ours, what the producer counts its rounds from."""
        numbers = _NUMBERED.fullmatch(name)
        if numbers and name != place.id and place.iteration == 0 and int(numbers[2]) == place.index:
            self._first = int(numbers[1])

    def _own(self, name: str) -> str:
        """What a command is called here, if the producer calls it otherwise."""
        return self._places[name].id if name in self._places else name

    # Order

    def _await(self, place: CommandRef, *kinds: Kind) -> None:
        self._places[place.id] = place
        for kind in kinds:
            self._waiting.setdefault((kind, place.command), deque()).append(place.id)

    def _oldest(self, kind: Kind, command: str) -> str:
        """The oldest call of a command that no event of this kind was about."""
        waiting = self._waiting.get((kind, command), ())
        while waiting:
            name = waiting.popleft()
            if (kind, name) not in self._settled:
                self._settled.add((kind, name))
                return name
        return ""

    def _spoken_of(self, name: str) -> None:
        """By its id: so it is not meant where there is none."""
        self._settle(self._own(name), *KINDS)

    def _settle(self, name: str, *kinds: Kind) -> None:
        """Events of these kinds that bear no id are not about this call."""
        self._settled.update((kind, name) for kind in kinds)


def proposal(place: CommandRef, *names: str) -> ev.CallProposed:
    told = described(place.command)
    return ev.CallProposed(aliases=aliases(*names), iteration=place.iteration, index=place.index, **told)


def described(command: str) -> dict[str, Any]:
    """A call of this command; "" if it is not known."""
    told = {"title": command, "input": {"command": command}} if command else {}
    return {"tool_name": TOOL, "kind": "execute", **told}


def aliases(*names: str) -> tuple[Alias, ...]:
    """Each name once."""
    return tuple(Alias(NS, name) for name in dict.fromkeys(names) if name)


# Reading
