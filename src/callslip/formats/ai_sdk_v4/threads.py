"""Tells the threads in a dump of a whole table apart: each is a conversation of its own."""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk_v4.wire import THREAD, first, listed, members, name_of
from callslip.formats.base import unwrapped


class Threads:
    """The first thread that is named is the first conversation, "", with all rows that name none."""

    def __init__(self, *, started: int = 0) -> None:
        self._first = ""

    def split(self, message: Any) -> list[tuple[str, Any]]:
        """The conversations that a row is of, or the rows of a document are of."""
        bare, _ = unwrapped(message)
        parts: dict[str, list[Any]] = {}
        for row in listed(bare):
            parts.setdefault(self._name(row), []).append(row)
        if len(parts) < 2:
            return [(next(iter(parts), ""), bare)]
        return list(parts.items())

    def _name(self, row: Any) -> str:
        thread = name_of(first(members(row), THREAD))
        self._first = self._first or thread
        return "" if thread == self._first else thread
