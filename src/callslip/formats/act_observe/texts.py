"""What is said beside acts and observes: texts and thoughts, in pieces, and whole for those who read no pieces."""

from __future__ import annotations

import hashlib

from callslip.formats.act_observe.wire import Message
from callslip.model import events as ev
from callslip.model.events import Event

WORDS = ("content", "text", "message", "delta")

Chunk = type[ev.MessageDelta] | type[ev.ThoughtDelta]


class TextDigest:
    """The pieces of a text: a digest of all of them, and the last one, are enough to know the whole by."""

    def __init__(self) -> None:
        self._all = hashlib.blake2b()
        self._last: str | None = None

    def add(self, piece: str) -> None:
        self._all.update(_bytes(piece))
        self._last = piece

    def were(self, text: str) -> bool:
        """Whether these are the pieces of a text, as deltas or cumulative; "" is whatever they are the pieces of."""
        if self._last is None or text in ("", self._last):
            return self._last is not None
        return hashlib.blake2b(_bytes(text)).digest() == self._all.digest()


class Speech:
    """What the agent has said since the last time that a text was whole."""

    def __init__(self, chunks: ev.Chunks) -> None:
        self._chunks: ev.Chunks = chunks
        self._heard: dict[Chunk, TextDigest] = {}

    def piece(self, cls: Chunk, message: Message) -> list[Event] | None:
        """Some more of a text."""
        text = message.said.get("delta", message.said.get("content"))
        if not isinstance(text, str):
            return None
        self._heard.setdefault(cls, TextDigest()).add(text)
        return [cls(text=text, chunks=self._chunks)]

    def whole(self, cls: Chunk, text: str) -> list[Event]:
        """A text from beginning to end: news, unless its pieces came before."""
        heard = self._heard.pop(cls, TextDigest()).were(text)
        said: list[Event] = [] if heard or not text else [cls(text=text, chunks="delta")]
        return [*said, ev.MessageEnded()] if said or heard else []

    def reset(self) -> None:
        """What comes now belongs to another turn."""
        self._heard.clear()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
