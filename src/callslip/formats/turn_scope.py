"""Which turn a stream covers, and how far that turn is. What every stream of a turn needs, whatever its format.

A stream has a state of its own, which it folds on: what an event changes is told by the fold's patches alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callslip.model import events as ev
from callslip.model.entries import Entry, Patch
from callslip.model.events import Event
from callslip.rules.fold import SessionFold


class Unsayable(Exception):
    """The client cannot be told this. The stream begins again."""


def message_id(turn: str) -> str:
    """The id of the one message that formats make of all that the agent did in a turn."""
    return f"turn-{turn}"


class Turn:
    """One turn: the named one, or the open one, or the last one, or the first that begins ("" until then)."""

    def __init__(self, state: SessionFold | None = None, name: str = "") -> None:
        self.state = state if state is not None else SessionFold()
        info = self.state.info
        self.name = name or info.turn or info.last_turn
        self.reason = info.last_reason if self.name and info.last_turn == self.name != info.turn else ""
        """Why it ended; "" while it is open, and of one that another turn came after."""
        self.lost = self.state.seq > 0
        """Whether the client must be told the turn from its start before it can be told more."""
        self._begun = bool(self.name) and (self.name in (info.turn, info.last_turn) or bool(self.entries()))

    def apply(self, event: Event) -> list[Patch]:
        """Take an event into the state; what it changed, in this turn or elsewhere."""
        patches = self.state.apply(event)
        if isinstance(event, ev.TurnStarted | ev.TurnEnded) and event.verdict == "applied":
            self.name = self.name or event.turn
            if event.turn == self.name:
                self._begun = True
                self.reason = event.reason if isinstance(event, ev.TurnEnded) else ""
        return patches

    def tell(self, event: Event, say: Callable[[Patch], list[Any]], finished: bool) -> list[Any]:
        """Take an event, and say what it changed. Unsayable too: anything before the replay, or after the end."""
        patches = self.apply(event)
        try:
            if self.lost:
                raise Unsayable("the turn was not replayed")
            said = [chunk for patch in patches for chunk in say(patch)]
            if said and finished:
                raise Unsayable("the turn went on after its end")
        except Unsayable:
            self.lost = True
            raise
        return said

    @property
    def ended(self) -> bool:
        """Whether it began and is over. Its last calls may still be open."""
        return self._begun and self.state.info.turn != self.name

    def owns(self, entry: Entry) -> bool:
        """Whether an entry was made in this turn."""
        return bool(self.name) and entry.turn == self.name

    def entries(self) -> list[Entry]:
        """Its entries so far, rendered, in order."""
        self.state.render()
        return [entry for entry in self.state.entries.values() if self.owns(entry)]
