"""Which turn is open, and which runs are under way in it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from callslip.model import events as ev
from callslip.model.events import Draft, Event

Phase: TypeAlias = Literal["idle", "asked", "running", "held"]

# What begins a turn when a run is told again whose turn is over; more than how a call of it went on.
NEWS = (ev.MessageDelta, ev.ThoughtDelta, ev.CallProposed)


class Turns:
    """`idle`: no turn is open. `asked`: a prompt came. `running`: a run is under way. `held`: it ended, and left the
    turn open."""

    def __init__(self) -> None:
        self.phase: Phase = "idle"
        self._due = False
        self._runs: list[str] = []
        self._seen: set[str] = set()

    def begin(self, turn: str = "") -> Event:
        """A turn; one that is still open is superseded, unless it is this one."""
        self.phase, self._due, self._runs = "asked", False, []
        return ev.TurnStarted(turn=turn)

    def end(self, reason: str, detail: str = "") -> list[Event]:
        """The turn is over, if there is one: a run that was only told again had none."""
        due, self._due, self.phase = self._due, False, "idle"
        self._runs = []
        return [] if due else [ev.TurnEnded(reason=reason, detail=detail)]

    def is_known(self, run: str) -> bool:
        """Whether a run was told before."""
        return bool(run) and run in self._seen

    def run_started(self, run: str, parent: str) -> list[Event]:
        """A run: it goes on with the turn that is open. One that was started by another run is part of that."""
        known, before = self.is_known(run), self.phase
        self._seen.add(run)
        self._runs = [*self._runs, run] if parent and parent in self._runs else [run]
        self.phase, self._due = "running", known and before == "idle"
        return [] if known or before != "idle" else [ev.TurnStarted()]

    def run_ended(self, run: str) -> bool:
        """Whether a run was the last one under way."""
        self._runs = [other for other in self._runs if other != run] if run in self._runs else []
        return not self._runs

    def hold(self) -> list[Event]:
        """The run ended, the turn goes on with the next."""
        if self._due:
            return self.end("")
        self.phase = "held"
        return []

    def due(self, made: list[Draft]) -> list[Draft]:
        """The turn that news of an old run begins."""
        if not self._due or not any(isinstance(draft.event, NEWS) for draft in made):
            return []
        self._due = False
        return [Draft(ev.TurnStarted())]
