"""Texts in pieces: who writes them, and which part of them is new."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from callslip.formats.ag_ui.messages import DELTA_TYPES, user_message
from callslip.formats.repeated_text import RepeatedText
from callslip.model import events as ev
from callslip.model.events import Event

Events: TypeAlias = list[Event]


class Text(RepeatedText, kw_only=True):
    """One text. The pieces of a user's text are collected until it is complete."""

    is_open: bool = True
    pieces: list[str] = msgspec.field(default_factory=list[str])


class Texts:
    """All texts of one conversation by role and id."""

    def __init__(self, chunks: ev.Chunks) -> None:
        self._chunks: ev.Chunks = chunks
        self._texts: dict[tuple[str, str], Text] = {}
        self._roles: dict[str, str] = {}

    def restart(self) -> None:
        """Prepare for a run that is sent again."""
        for text in self._texts.values():
            text.restart()

    def begin(self, message_id: str, role: str) -> None:
        if role != "reasoning":
            self._roles[message_id] = role
        text = self._find_or_add(message_id, role)
        text.is_open = text.is_open or text.seen >= text.length

    def _find_or_add(self, message_id: str, role: str) -> Text:
        return self._texts.get((role, message_id)) or self._texts.setdefault((role, message_id), Text())

    def role_of(self, message_id: str) -> str:
        """Return the role of a text; "assistant" if its beginning was not seen."""
        return self._roles.get(message_id, "assistant")

    def add(self, message_id: str, role: str, piece: str) -> Events:
        """Return the event of a piece if it is new."""
        text = self._find_or_add(message_id, role)
        new = text.take_new(piece)
        if not new:
            return []
        text.is_open = True
        if role in DELTA_TYPES:
            return [DELTA_TYPES[role](text=new, message_id=message_id, chunks=self._chunks)]
        text.pieces.append(new)
        return []

    def hold_user_text(self) -> bool:
        """Return whether a user's text is incomplete."""
        return any(text.pieces for text in self._texts.values())

    def end(self, message_id: str, role: str) -> Events:
        """End a text. A user's message becomes an event only now."""
        text = self._texts.get((role, message_id))
        if text is None or not text.is_open or text.seen < text.length:
            return []
        text.is_open = False
        if role in DELTA_TYPES:
            return [ev.MessageEnded(message_id=message_id)] if text.length else []
        message: dict[str, Any] = {"id": message_id, "content": "".join(text.pieces)}
        text.pieces = []
        return [user_message(message)]
