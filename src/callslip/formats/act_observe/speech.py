"""What is said beside acts and observes: texts and thoughts, in pieces, and whole for those who read no pieces."""

from __future__ import annotations

from callslip import events as ev
from callslip.events import Event
from callslip.formats.act_observe.wire import Message

WORDS = ("content", "text", "message", "delta")

Chunk = type[ev.MessageDelta] | type[ev.ThoughtDelta]


class Speech:
    """What the agent has said since the last time that a text was whole."""

    def __init__(self, chunks: ev.Chunks) -> None:
        self._chunks: ev.Chunks = chunks
        self._pieces: dict[Chunk, list[str]] = {ev.MessageDelta: [], ev.ThoughtDelta: []}

    def piece(self, cls: Chunk, message: Message) -> list[Event] | None:
        """Some more of a text."""
        text = message.said.get("delta", message.said.get("content"))
        if not isinstance(text, str):
            return None
        self._pieces[cls].append(text)
        return [cls(text=text, chunks=self._chunks)]

    def whole(self, cls: Chunk, text: str) -> list[Event]:
        """A text from beginning to end: news, unless its pieces came before."""
        pieces = self._pieces[cls]
        heard = bool(pieces) and text in ("", "".join(pieces), pieces[-1])
        pieces.clear()
        said: list[Event] = [] if heard or not text else [cls(text=text, chunks="delta")]
        return [*said, ev.MessageEnded()] if said or heard else []

    def reset(self) -> None:
        """What comes now belongs to another turn."""
        for pieces in self._pieces.values():
            pieces.clear()
