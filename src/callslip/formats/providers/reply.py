"""An answer of a model while it is streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from callslip.formats.base import DeltaType, Events
from callslip.formats.providers.conversation import ModelConversation
from callslip.model import events as ev


class ModelReply(ABC):
    """One answer. `id` is its id in the API, `usage_id` the id of its usage, "" if others have the same."""

    def __init__(self, conversation: ModelConversation, reply_id: str, chunks: ev.Chunks) -> None:
        self.id = reply_id
        self.is_finished = False
        self.usage: Any = {}
        self.usage_id = reply_id
        self.model: Any = ""
        self._conversation = conversation
        self._chunks: ev.Chunks = chunks
        self._texts: list[str] = []
        self._in_text = False

    @abstractmethod
    def interrupt(self, reason: str, cause: str = "") -> Events:
        """End an incomplete answer and those of its calls that nothing can complete."""

    @abstractmethod
    def _digest(self) -> str:
        """Return what identifies the answer."""

    def _add_text(self, delta_type: DeltaType, piece: str) -> Events:
        if not piece:
            return []
        self._in_text = True
        self._texts += [piece] if delta_type is ev.MessageDelta else []
        return [delta_type(text=piece, message_id=self.id, chunks=self._chunks)]

    def _end(self) -> Events:
        """End the answer and its open text."""
        self.is_finished = True
        self._conversation.seen.add(self._digest())
        return [ev.MessageEnded()] if self._in_text else []
