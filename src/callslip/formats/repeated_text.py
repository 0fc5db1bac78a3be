"""A text in pieces that a replayed stream sends again from its beginning."""

from __future__ import annotations

import msgspec


class RepeatedText(msgspec.Struct, kw_only=True):
    """Counts the characters of a text: `length` in total, `seen` in the current reading."""

    length: int = 0
    seen: int = 0

    def restart(self) -> None:
        """Begin another reading."""
        self.seen = 0

    def take_new(self, piece: str) -> str:
        """Return the part of a piece that no earlier reading had."""
        start, self.seen = self.seen, self.seen + len(piece)
        new = piece[max(0, self.length - start) :]
        self.length = max(self.length, self.seen)
        return new
