"""A conversation with a model: whose turn it is, which round the model is in, which calls wait, what was said before.

A response of the model is a round; rounds count from 0 in every turn. A turn begins with a person's message and ends
with an answer that asks for nothing. Whoever else began the turn also ends it. Providers may give a call no id, or one
that they gave before: here every call gets an alias of its own, and a result finds the call that it follows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callslip.formats.json_fields import identifier
from callslip.model import events as ev
from callslip.model.events import Alias, Event

FARTHEST = 50


class Waiting(msgspec.Struct):
    """A call of the last round that has no result yet. `given` is its id on the wire; `served` by the provider."""

    given: str
    name: str
    alias: Alias
    served: bool


class ModelConversation:
    """One conversation."""

    def __init__(self, ns: str) -> None:
        self.round = -1
        self.told = SeenMessages()
        self._ns = ns
        self._turn = False
        self._made_up = 0
        self._used: set[str] = set()
        self._waiting: list[Waiting] = []

    # Turns and rounds

    def prompted(self) -> list[Event]:
        """A person speaks. What they say before the model has answered belongs to the turn that has begun."""
        if self._turn and self.round < 0:
            return []
        self._turn, self.round = True, -1
        self._forget()
        return [ev.TurnStarted()]

    def interrupted(self) -> list[Event]:
        """A person speaks beside the results that they send: the turn goes on, if there is one."""
        return [] if self._turn else self.prompted()

    def answering(self) -> None:
        """A response begins."""
        self.round += 1
        self._forget()

    def ended(self, reason: str, detail: str = "") -> list[Event]:
        """The turn is over, if it is ours to end."""
        if not self._turn:
            return []
        self._turn = False
        return [ev.TurnEnded(reason=reason, detail=detail)]

    def _forget(self) -> None:
        self._used.clear()
        self._waiting.clear()

    # Calls

    @property
    def asks(self) -> bool:
        """Whether the last response wants a result that has not come."""
        return any(not one.served for one in self._waiting)

    def alias(self, given: str, response: str) -> Alias:
        """What a new call is known by: its id, or one made up if it has none or another of its round has the same."""
        name = given
        while not name or name in self._used:
            self._made_up += 1
            name = identifier(f"{given or response}#{self._made_up}")
        self._used.add(name)
        return Alias(self._ns, name)

    def wait(self, given: str, name: str, alias: Alias, *, served: bool = False) -> None:
        """The result of this call is to come, with the response itself if the provider runs it."""
        self._waiting.append(Waiting(given, name, alias, served))

    def _waits(self, given: str, name: str, served: bool) -> Waiting | None:
        """The call that a result is of: that of its id, else that of its name, else the first. Each has one (C3)."""
        for one in self._waiting:
            if one.served == served and (one.given == given if given else name in ("", one.name)):
                self._waiting.remove(one)
                return one
        return None

    def answered(self, given: str, name: str = "", *, served: bool = False) -> dict[str, Any]:
        """How the result of a call names it. One that nobody asked for here may tell the tool's name too."""
        found = self._waits(given, name, served)
        if found is not None:
            return {"aliases": (found.alias,)}
        return {"aliases": (Alias(self._ns, given),) if given else (), **({"tool_name": name} if name else {})}


class SeenMessages:
    """The messages of a conversation in their order, each by its mark. What a request repeats of them is no news."""

    def __init__(self) -> None:
        self._marks: list[str] = []
        self._newest: dict[str, int] = {}  # How many were said up to the last message of a mark, itself included.
        self._retold: set[str] = set()

    @property
    def last(self) -> str:
        return self._marks[-1] if self._marks else ""

    def add(self, mark: str) -> None:
        self._marks.append(mark)
        self._newest[mark] = len(self._marks)

    def known(self, marks: list[str]) -> int:
        """How many of the messages of a request are no news: those up to the last one that was said before.

        Clients shorten and change what lies further back, so the place is looked for from the end. Where a message was
        said several times it is the place before which most is the same.
        """
        if marks[: len(self._marks)] == self._marks:
            return len(self._marks)
        upto = max((self._newest.get(mark, 0) for mark in marks), default=0)
        if not upto:
            return 0
        places = [place for place, mark in enumerate(marks, 1) if mark == self._marks[upto - 1]]
        return max(places, key=lambda place: (self._agree(marks, place, upto), place))

    def _agree(self, marks: list[str], place: int, upto: int) -> int:
        """How many messages before a place are those that were said before the last known one."""
        most = min(place, upto, FARTHEST)
        return next((n for n in range(most) if marks[place - 1 - n] != self._marks[upto - 1 - n]), most)

    def rewritten(self, marks: list[str]) -> bool:
        """Whether there is a message among them that was never said. A client repeats that too: it is news once."""
        fresh = {mark for mark in marks if mark not in self._newest and mark not in self._retold}
        self._retold |= fresh
        return bool(fresh)
