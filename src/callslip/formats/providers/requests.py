"""Requests: each repeats the conversation so far and has settings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from callslip.formats.base import raw_if
from callslip.formats.providers.conversation import SeenMessages
from callslip.model.events import Event


class Requests:
    """All requests of one conversation. `conversation_fields` are not settings."""

    def __init__(self, format: str, seen: SeenMessages, conversation_fields: Collection[str]) -> None:
        self._format = format
        self._seen = seen
        self._conversation_fields = conversation_fields
        self._settings: dict[str, Any] = {}

    def read(
        self, request: dict[str, Any], messages: list[Any], digest: Callable[[Any], str], *, all_new: bool = False
    ) -> tuple[list[Any], list[Event]]:
        """Return the new messages of a request, and raw events.

        The settings are stored raw when they change, the full request if it contains a different past.
        """
        digests = [digest(message) for message in messages]
        known = 0 if all_new else self._seen.count_known(digests)
        settings = {name: value for name, value in request.items() if name not in self._conversation_fields}
        is_changed, self._settings = settings != self._settings, settings
        if self._seen.is_rewritten(digests[:known]):
            return messages[known:], raw_if(True, self._format, request)
        return messages[known:], raw_if(settings and is_changed, self._format, settings)
