"""Select the turn that a stream covers, and follow the session's state for it."""

from __future__ import annotations

from callslip.model import events as ev
from callslip.model.entries import Entry, Patch, Put
from callslip.model.events import Event
from callslip.rules.entry_blocks import (
    begins_block,
    current_block,
    is_of_subagent,
    is_talk,
    message_name,
    named_entry,
)
from callslip.rules.fold import SessionFold


class Turn:
    """The named turn, or else the current one, or the first that begins (its name is "" until then).

    Outside of turns, a block of entries is treated as a turn without a reason for its end. Its name is the id of a
    message that begins with its first entry; the id of any message in it selects it, too.
    """

    def __init__(self, state: SessionFold | None = None, name: str = "") -> None:
        self.state = state if state is not None else SessionFold()
        info = self.state.info
        self.name = name or current_block(self.state)
        turns = {info.turn, info.last_turn, *(entry.turn for entry in self.state.entries.values())} - {""}
        self.has_begun = self.name in turns
        self._first = self._next = 0  # Outside of turns: the first entry of the block and of the one after it.
        self._last: Entry | None = None
        self._last_block = 0
        for entry in self.state.entries.values():
            self._add(entry)
        self.reason = info.last_reason if self.name and info.last_turn == self.name != info.turn else ""
        """Why the turn ended; "" while it is open, and for a turn that is not the last one of the given state."""
        self.detail = ""

    def apply(self, event: Event) -> list[Patch]:
        """Fold an event and return its patches, also those of other turns."""
        patches = self.state.apply(event)
        if isinstance(event, ev.TurnStarted | ev.TurnEnded) and event.verdict == "applied":
            self.name = self.name or event.turn
            if event.turn == self.name and not self._first:
                self.has_begun = True
                self.reason = ""
                if isinstance(event, ev.TurnEnded):
                    self.reason, self.detail = event.reason, event.detail
        for patch in patches:
            if isinstance(patch, Put) and patch.entry.id == event.seq:
                self._add(patch.entry)
        return patches

    def _add(self, entry: Entry) -> None:
        """Note where blocks begin, and whether the turn begins with an entry or has ended before it."""
        if is_of_subagent(entry):
            return
        previous, self._last = self._last, entry
        if previous is None or (entry.id != previous.id and begins_block(entry, previous)):
            self._last_block = entry.id
            if self._first and not self._next:
                self._next = entry.id
        is_wanted = entry.id == named_entry(self.name) if self.name else is_talk(entry)
        if is_wanted and not entry.turn and not self.has_begun:
            self.has_begun = True
            self._first = self._last_block
            self.name = message_name(self._first)

    @property
    def ended(self) -> bool:
        """Whether the turn has begun and ended. Its last calls may still be open.

        Outside of turns a turn without entries ends a block only while it is open: then the block continues.
        """
        if self._first:
            return self._next > 0 or bool(self.state.info.turn)
        return self.has_begun and self.state.info.turn != self.name

    def owns(self, entry: Entry) -> bool:
        """Return whether an entry belongs to this turn, and not to a sub-agent in it."""
        if is_of_subagent(entry):
            return False
        if self._first:
            return self._first <= entry.id and (not self._next or entry.id < self._next)
        return bool(self.name) and entry.turn == self.name

    def entries(self) -> list[Entry]:
        """Return the turn's entries so far, rendered, in order."""
        self.state.render()
        return [entry for entry in self.state.entries.values() if self.owns(entry)]
