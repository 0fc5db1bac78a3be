"""Ways in and out. A decoder turns foreign messages into drafts; an encoder turns what is recorded into foreign ones.

Both are sync and pure: no clock, no store, no randomness. A decoder takes any JSON value without raising: what it does
not understand it drafts as `raw`, whole. Formats know the ledger's words and know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, cast

from callslip import events as ev
from callslip.events import Draft, Event


class Decoder(Protocol):
    """Reads one conversation of a format, message by message."""

    def feed(self, message: Any) -> list[Draft]:
        """What one message says. Drafts that belong together come together."""
        ...

    def close(self, reason: str) -> list[Draft]:
        """The line ended here: what that ends. `reason` is why, in the words of `turn.ended`."""
        ...


class Unfinished:
    """What the end of the line would leave open: a turn, or a text outside of turns (S2.12)."""

    def __init__(self) -> None:
        self._turn = self._text = False

    def see(self, drafts: Iterable[Draft]) -> None:
        """Follow what a decoder drafts."""
        for event in (draft.event for draft in drafts if not draft.witness):
            if isinstance(event, ev.TurnStarted | ev.TurnEnded):
                self._turn, self._text = isinstance(event, ev.TurnStarted), False
            elif isinstance(event, ev.MessageDelta | ev.ThoughtDelta | ev.MessageEnded):
                self._text = not isinstance(event, ev.MessageEnded)

    def end(self, reason: str) -> list[Event]:
        """What ends it."""
        turn, text = self._turn, self._text
        self._turn = self._text = False
        if turn:
            return [ev.TurnEnded(reason=reason)]
        return [ev.MessageEnded()] if text else []


ROW = {"t", "dir", "msg"}


def unwrapped(message: Any) -> tuple[Any, float]:
    """A message without the capture row it stands in, and the seconds of that row."""
    row = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
    if not {"dir", "msg"} <= set(row) <= ROW:
        return cast(Any, message), 0.0
    seconds = row.get("t")
    return row["msg"], float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else 0.0


class Splitter(Protocol):
    """Tells apart the conversations that share one wire; each has a decoder of its own."""

    def split(self, message: Any) -> list[tuple[str, Any]]:
        """Which conversations a message concerns, and what their decoders are to be fed. "" is the first one."""
        ...
