"""Acts and observes out: a turn as a live stream, and a session as a timeline.

Every execution gives one act and, however it ends, one observe with the same id (S1.2). An act that says something new
comes again with its id, for its readers collapse it (S1.3). Ids and results are written under both of the names that
readers look for (S1.1). A stream ends with `complete`, `cancelled` or `error`.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.act_observe.items import (
    RENDERED_FIELDS,
    Act,
    Item,
    Spoken,
    act_of,
    begins,
    ended,
    observe_of,
    piece,
    whole,
)
from callslip.formats.base import SSE_HEADERS, Restart, Source, Streaming, snapshot_of, sse_frame
from callslip.formats.turn_scope import Turn, Unsayable
from callslip.model import codec
from callslip.model.entries import Append, Entry, Message, Patch, Put, Thought, ToolCall
from callslip.model.events import Event
from callslip.rules.fold import SessionFold

RESTART: Item = {"type": "restart"}


# The timeline


def timeline(source: Source) -> list[Item]:
    """A session as a list of items, oldest first (S1.6)."""
    return [item for entry in snapshot_of(source).entries for item in _items(entry)]


def _items(entry: Any) -> list[Item]:
    if isinstance(entry, Message | Thought):
        return [whole(entry)]
    act = act_of(entry) if isinstance(entry, ToolCall) else None
    if act is None:
        return []
    end = observe_of(entry)
    return [act.item(end), *([end.item(act)] if end else [])]


# One turn, live


class ActObserveEncoder:
    """One turn. With a state, `opening` comes first."""

    def __init__(self, state: SessionFold | None = None, turn: str = "") -> None:
        self._turn = Turn(state, turn)
        self.finished = False
        self._forget()

    def _forget(self) -> None:
        """Nothing was sent yet."""
        self._texts: dict[int, Spoken] = {}
        self._calls: dict[int, Act | None] = {}
        self._open: set[int] = set()

    def opening(self) -> list[Item]:
        """The turn as it stands, from its start."""
        self._forget()
        self.finished = self._turn.lost = False
        events = [item for entry in self._turn.entries() for item in self._begin(entry, replay=True)]
        return events + self._ending()

    def feed(self, event: Event) -> list[Item] | Restart:
        """What an event changes in the timeline of the turn."""
        try:
            return self._turn.tell(event, self._tell, self.finished) + self._ending()
        except Unsayable as error:
            return Restart(str(error), (RESTART,))

    def close(self, reason: str) -> list[Item]:
        """The stream ends before its turn does."""
        if self.finished:
            return []
        self.finished = True
        return [{"type": "error", "message": reason}]

    def _ending(self) -> list[Item]:
        """The last event, once the turn has ended and so have its calls."""
        if self.finished or self._open or not self._turn.ended:
            return []
        self.finished = True
        return [_end(self._turn.reason)]

    # Patches

    def _tell(self, patch: Patch) -> list[Item]:
        if isinstance(patch, Put):
            return self._put(self._turn.state.entries[patch.entry.id])
        if patch.id in self._texts:
            return self._text(patch)
        if patch.id in self._calls and not isinstance(patch, Append) and not RENDERED_FIELDS.isdisjoint(patch.fields):
            return self._update(patch.id)
        return []

    def _put(self, entry: Entry) -> list[Item]:
        """A new entry, or a text in new words: when it has ended, its end says them."""
        if entry.id not in self._texts:
            return self._begin(entry) if self._turn.owns(entry) else []
        text = self._texts.pop(entry.id)
        if text.streaming:
            raise Unsayable("a text was repaired")
        return [ended(text)]

    def _text(self, patch: Any) -> list[Item]:
        if isinstance(patch, Append):
            return [piece(self._texts[patch.id], patch.text)]
        return [ended(self._texts.pop(patch.id))] if "streaming" in patch.fields else []

    def _begin(self, entry: Entry, replay: bool = False) -> list[Item]:
        """A new item. Live, its text comes with the patches that follow."""
        if isinstance(entry, ToolCall):
            self._calls[entry.id] = None
            return self._update(entry.id)
        if not isinstance(entry, Message | Thought):
            return []
        if not entry.streaming:
            return [whole(entry)]
        self._texts[entry.id] = entry
        return [*begins(entry), *([piece(entry, entry.content)] if replay and entry.content else [])]

    def _update(self, identity: int) -> list[Item]:
        """The act, if there is something new in it, and the observe of one that has ended just now."""
        entry = self._turn.state.entries[identity]
        assert isinstance(entry, ToolCall)
        before, act, end = self._calls[identity], act_of(entry), observe_of(entry)
        first = end is not None and (before is None or identity in self._open)
        (self._open.discard if end else self._open.add)(identity)
        self._calls[identity] = act
        if act is None:
            return []
        told = [] if before is not None and _same(before, act) else [act.event()]
        return [*told, end.event(act)] if end and first else told


def _same(before: Act, act: Act) -> bool:
    return before == act and codec.json_equal(before.input, act.input)


# How a turn ended, in the words of the format; in any other way it is complete.
ENDINGS = {
    **dict.fromkeys(("cancelled", "superseded"), ("cancelled", "reason")),
    **dict.fromkeys(("error", "eof"), ("error", "message")),
}


def _end(reason: str) -> Item:
    kind, name = ENDINGS.get(reason, ("complete", "reason"))
    return {"type": kind, **({name: reason} if reason not in ("", "end_turn") else {})}


STREAM = Streaming(encoder=ActObserveEncoder, frame=sse_frame, headers=SSE_HEADERS)
