"""Separate the threads in a dump of a table: each is its own conversation."""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk_v4.wire import THREAD, as_id, as_mapping, first_value, rows_in
from callslip.formats.base import unwrapped


class Threads:
    """The first thread is the first conversation, "", which also gets all rows without a thread."""

    def __init__(self, *, started: int = 0) -> None:
        self._first = ""

    def split(self, message: Any) -> list[tuple[str, Any]]:
        """Return the conversations of a row or of the rows of a document."""
        bare, _ = unwrapped(message)
        parts: dict[str, list[Any]] = {}
        for row in rows_in(bare):
            thread = as_id(first_value(as_mapping(row), THREAD))
            self._first = self._first or thread
            parts.setdefault("" if thread == self._first else thread, []).append(row)
        if len(parts) < 2:
            return [(next(iter(parts), ""), bare)]
        return list(parts.items())
