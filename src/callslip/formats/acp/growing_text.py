"""A text that is passed on while it grows, where some messages contain a piece of it and others the full text.

Events can only append. The length and a digest of what was passed on are enough to find what a full text adds to it.
"""

from __future__ import annotations

from callslip.formats.text_digest import TextDigest


class GrowingText:
    """One such text. Once a full text differs from what was passed on, all of it is stored."""

    __slots__ = ("_digest", "_pieces")

    def __init__(self, text: str = "") -> None:
        self._digest = TextDigest(text)
        self._pieces: list[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._digest.length)

    @property
    def replacement(self) -> str | None:
        """Return the current text if it differs from what was passed on."""
        return None if self._pieces is None else "".join(self._pieces)

    def add(self, text: str) -> None:
        """Record that a piece was passed on."""
        self._digest.add(text)
        if self._pieces is not None:
            self._pieces.append(text)

    def forget(self) -> None:
        """Drop the stored text."""
        self._pieces = None

    def extend_to(self, full_text: str) -> str | None:
        """Return what to append so that the text becomes `full_text`; None if appending cannot achieve that."""
        length = self._digest.length
        if not self._digest.matches(full_text[:length]):
            self._digest = TextDigest(full_text)
            self._pieces = [full_text]
            return None
        rest = full_text[length:]
        self.add(rest)
        return rest
