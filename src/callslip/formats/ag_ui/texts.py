"""Texts that come in pieces: whose they are, and what of them was told before."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from callslip.formats.ag_ui.messages import SPOKEN, user_message
from callslip.model import events as ev
from callslip.model.events import Event

Events: TypeAlias = list[Event]


class Text(msgspec.Struct):
    """One text. `told` and `seen` count its characters; those of a person are kept until they are whole."""

    role: str
    told: int = 0
    seen: int = 0
    open: bool = True
    pieces: list[str] = []

    def news(self, piece: str) -> str:
        """What of a piece was not told yet."""
        begin, self.seen = self.seen, self.seen + len(piece)
        fresh = piece[max(0, self.told - begin) :]
        self.told = max(self.told, self.seen)
        return fresh


class Texts:
    """All texts of one conversation, by role and id."""

    def __init__(self, chunks: ev.Chunks) -> None:
        self._chunks: ev.Chunks = chunks
        self._known: dict[tuple[str, str], Text] = {}
        self._roles: dict[str, str] = {}

    def read_again(self) -> None:
        """A run is told another time."""
        for text in self._known.values():
            text.seen = 0

    def begin(self, identity: str, role: str) -> None:
        if role != "reasoning":
            self._roles[identity] = role
        text = self._text(identity, role)
        text.open = text.open or text.seen >= text.told

    def _text(self, identity: str, role: str) -> Text:
        return self._known.get((role, identity)) or self._known.setdefault((role, identity), Text(role))

    def role_of(self, identity: str) -> str:
        """Who writes the text of this id; without a beginning, the agent."""
        return self._roles.get(identity, "assistant")

    def more(self, identity: str, role: str, piece: str) -> Events:
        text = self._text(identity, role)
        fresh = text.news(piece)
        if not fresh:
            return []
        text.open = True
        if role in SPOKEN:
            return [SPOKEN[role](text=fresh, message_id=identity, chunks=self._chunks)]
        text.pieces.append(fresh)
        return []

    def end(self, identity: str, role: str) -> Events:
        """A text is whole; only now can it be told what a person said."""
        text = self._known.get((role, identity))
        if text is None or not text.open or text.seen < text.told:
            return []
        text.open = False
        if role in SPOKEN:
            return [ev.MessageEnded(message_id=identity)] if text.told else []
        said: dict[str, Any] = {"id": identity, "content": "".join(text.pieces)}
        text.pieces = []
        return [user_message(said)]
