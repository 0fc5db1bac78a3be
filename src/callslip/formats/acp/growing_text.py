"""A text that is passed on while it grows, where some messages contain a piece of it and others the full text.

Events can only append. The length and a digest of what was passed on are enough to find what a full text adds to it.
"""

from __future__ import annotations

import hashlib

from callslip.formats.json_fields import to_bytes


class GrowingText:
    """One such text. Once a full text differs from what was passed on, all of it is stored."""

    __slots__ = ("_hash", "_length", "_pieces")

    def __init__(self, text: str = "") -> None:
        self._restart(text)
        self._pieces: list[str] | None = None

    def _restart(self, text: str) -> None:
        self._hash, self._length = _hash(text), len(text)

    def __bool__(self) -> bool:
        return bool(self._length)

    @property
    def replacement(self) -> str | None:
        """Return the current text if it differs from what was passed on."""
        return None if self._pieces is None else "".join(self._pieces)

    def add(self, text: str) -> None:
        """Record that a piece was passed on."""
        self._hash.update(to_bytes(text))
        self._length += len(text)
        if self._pieces is not None:
            self._pieces.append(text)

    def forget(self) -> None:
        """Drop the stored text."""
        self._pieces = None

    def extend_to(self, full_text: str) -> str | None:
        """Return what to append so that the text becomes `full_text`; None if appending cannot achieve that."""
        if _hash(full_text[: self._length]).digest() != self._hash.digest():
            self._restart(full_text)
            self._pieces = [full_text]
            return None
        rest = full_text[self._length :]
        self.add(rest)
        return rest


def _hash(text: str) -> hashlib.blake2b:
    return hashlib.blake2b(to_bytes(text), digest_size=16)
