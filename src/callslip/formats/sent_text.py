"""A text that was passed on, and is compared with what a replayed stream sends again."""

from __future__ import annotations

import msgspec

from callslip.formats.repeated_text import RepeatedText


class SentText(RepeatedText, kw_only=True):
    """A text in pieces that detects a replay with a different text, until it is forgotten."""

    pieces: list[str] = msgspec.field(default_factory=list[str])
    is_stored: bool = True

    def forget(self) -> None:
        """Drop the text and keep only its length."""
        self.pieces, self.is_stored = [], False

    def add(self, piece: str) -> tuple[str, bool]:
        """Return the new part of a piece and False, or the full text so far and True if it differs from before."""
        start = self.seen
        if self.length > start and self.is_stored:
            text = "".join(self.pieces)
            if not text.startswith(piece, start) and not piece.startswith(text[start:]):
                self.seen += len(piece)
                text = text[:start] + piece
                self.pieces, self.length = [text], len(text)
                return text, True
            self.pieces = [text]
        new = self.take_new(piece)
        self.pieces += [new] if new and self.is_stored else []
        return new, False
