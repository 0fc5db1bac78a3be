"""Select the turn that a stream covers, and follow the session's state for it."""

from __future__ import annotations

from callslip.model import events as ev
from callslip.model.entries import Entry, Patch
from callslip.model.events import Event
from callslip.rules.fold import SessionFold


class Turn:
    """The named turn, or else the open one, or the last one, or the first that begins (its name is "" until then)."""

    def __init__(self, state: SessionFold | None = None, name: str = "") -> None:
        self.state = state if state is not None else SessionFold()
        info = self.state.info
        self.name = name or info.turn or info.last_turn
        self.reason = info.last_reason if self.name and info.last_turn == self.name != info.turn else ""
        """Why the turn ended; "" while it is open, and for a turn that is not the last one of the given state."""
        self.detail = ""
        self._has_begun = bool(self.name) and (self.name in (info.turn, info.last_turn) or bool(self.entries()))

    def apply(self, event: Event) -> list[Patch]:
        """Fold an event and return its patches, also those of other turns."""
        patches = self.state.apply(event)
        if isinstance(event, ev.TurnStarted | ev.TurnEnded) and event.verdict == "applied":
            self.name = self.name or event.turn
            if event.turn == self.name:
                self._has_begun = True
                self.reason = ""
                if isinstance(event, ev.TurnEnded):
                    self.reason, self.detail = event.reason, event.detail
        return patches

    @property
    def ended(self) -> bool:
        """Whether the turn has begun and ended. Its last calls may still be open."""
        return self._has_begun and self.state.info.turn != self.name

    def owns(self, entry: Entry) -> bool:
        """Return whether an entry belongs to this turn."""
        return bool(self.name) and entry.turn == self.name

    def entries(self) -> list[Entry]:
        """Return the turn's entries so far, rendered, in order."""
        self.state.render()
        return [entry for entry in self.state.entries.values() if self.owns(entry)]
