"""Texts and thoughts: in pieces, and again in full for readers that skip the pieces."""

from __future__ import annotations

from callslip.formats.act_observe.wire import Message
from callslip.formats.text_digest import TextDigest
from callslip.model import events as ev
from callslip.model.events import Event

TEXT_FIELDS = ("content", "text", "message", "delta")

DeltaType = type[ev.MessageDelta] | type[ev.ThoughtDelta]


class Pieces:
    """The pieces of a text: a digest of all of them, and the last one, are enough to recognize the full text."""

    def __init__(self) -> None:
        self._digest = TextDigest()
        self._last: str | None = None

    def add(self, piece: str) -> None:
        self._digest.add(piece)
        self._last = piece

    def matches(self, text: str) -> bool:
        """Return whether the pieces are those of a text, as deltas or cumulative; "" matches any pieces."""
        if self._last is None or text in ("", self._last):
            return self._last is not None
        return self._digest.matches(text)


class Texts:
    """The pieces since the last full text."""

    def __init__(self, chunks: ev.Chunks) -> None:
        self._chunks: ev.Chunks = chunks
        self._pieces: dict[DeltaType, Pieces] = {}

    def add_piece(self, delta_type: DeltaType, message: Message) -> list[Event] | None:
        """Return the event of a piece of a text; None if the message has no text."""
        text = message.fields.get("delta", message.fields.get("content"))
        if not isinstance(text, str):
            return None
        self._pieces.setdefault(delta_type, Pieces()).add(text)
        return [delta_type(text=text, chunks=self._chunks)]

    def end_text(self, delta_type: DeltaType, text: str) -> list[Event]:
        """Return the events of a full text, which is new unless its pieces arrived before."""
        is_known = self._pieces.pop(delta_type, Pieces()).matches(text)
        events: list[Event] = [] if is_known or not text else [delta_type(text=text, chunks="delta")]
        return [*events, ev.MessageEnded()] if events or is_known else []

    def reset(self) -> None:
        """Forget the pieces of the last turn."""
        self._pieces.clear()
