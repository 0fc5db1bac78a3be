"""Track the open turn and the runs that are in progress in it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from callslip.model import events as ev
from callslip.model.events import Draft, Event

Phase: TypeAlias = Literal["idle", "prompted", "running", "held"]

# Events that begin a turn if a repeated run of a closed turn contains them: new content, not the progress of a call.
NEW_CONTENT = (ev.MessageDelta, ev.ThoughtDelta, ev.CallProposed)


class Turns:
    """`idle`: no turn is open. `prompted`: a prompt arrived. `running`: a run is in progress. `held`: the run ended and
    left the turn open."""

    def __init__(self) -> None:
        self.phase: Phase = "idle"
        self._is_start_due = False
        self._runs: list[str] = []
        self._known_runs: set[str] = set()

    def begin(self, turn: str = "") -> Event:
        """Begin a turn; it supersedes another open turn."""
        self.phase, self._is_start_due, self._runs = "prompted", False, []
        return ev.TurnStarted(turn=turn)

    def end(self, reason: str, detail: str = "") -> list[Event]:
        """End the turn. A run that was only repeated has none."""
        had_turn, self._is_start_due, self.phase = not self._is_start_due, False, "idle"
        self._runs = []
        return [ev.TurnEnded(reason=reason, detail=detail)] if had_turn else []

    def is_known(self, run: str) -> bool:
        """Return whether a run is a repetition."""
        return bool(run) and run in self._known_runs

    def start_run(self, run: str, parent: str) -> list[Event]:
        """Begin a run in the open turn, or in a new one. A run that another run started is part of it."""
        is_known, was_idle = self.is_known(run), self.phase == "idle"
        self._known_runs.add(run)
        self._runs = [*self._runs, run] if parent and parent in self._runs else [run]
        self.phase, self._is_start_due = "running", is_known and was_idle
        return [ev.TurnStarted()] if was_idle and not is_known else []

    def end_run(self, run: str) -> bool:
        """End a run. Return whether it was the last one in progress."""
        self._runs = [other for other in self._runs if other != run] if run in self._runs else []
        return not self._runs

    def hold(self) -> list[Event]:
        """Keep the turn open after its run has ended, for the next run."""
        if self._is_start_due:
            return self.end("")
        self.phase = "held"
        return []

    def start_if_due(self, drafts: list[Draft]) -> list[Draft]:
        """Begin the turn that new content of a repeated run needs."""
        if not self._is_start_due or not any(isinstance(draft.event, NEW_CONTENT) for draft in drafts):
            return []
        self._is_start_due = False
        return [Draft(ev.TurnStarted())]
