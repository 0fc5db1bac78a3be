"""Requests: each repeats the conversation so far, and says some things beside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from callslip.formats.providers.conversation import SeenMessages
from callslip.model import events as ev
from callslip.model.events import Event


class Requests:
    """All requests of one conversation. `apart` names the fields that are not kept."""

    def __init__(self, format: str, told: SeenMessages, apart: Collection[str]) -> None:
        self._format = format
        self._told = told
        self._apart = apart
        self._settings: dict[str, Any] = {}

    def read(self, said: dict[str, Any], marks: list[str], *, is_news: bool = False) -> tuple[int, list[Event]]:
        """How many of its messages were said before, by their marks, and what of it is to be kept as it came.

        That is what it says beside the conversation, when that changes; all of it if it tells the past otherwise.
        """
        known = 0 if is_news else self._told.known(marks)
        settings = {name: value for name, value in said.items() if name not in self._apart}
        changed, self._settings = settings != self._settings, settings
        if self._told.rewritten(marks[:known]):
            return known, [ev.Raw(format=self._format, body=said)]
        return known, [ev.Raw(format=self._format, body=settings)] if settings and changed else []
