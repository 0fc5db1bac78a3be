"""A digest of a text that arrives in pieces, which can be stored between two pieces.

The state of a hash function cannot be stored. So a stored digest is the digest of the text up to then, and a restored
one hashes the text after it by itself: the text is compared in these segments.
"""

from __future__ import annotations

import hashlib

from callslip.formats.json_fields import to_bytes

DIGEST_BYTES = 16
Segments = list[tuple[int, bytes]]


class TextDigest:
    """The digest of one text. `length` is the number of its characters."""

    __slots__ = ("_hash", "_segments", "_start", "length")

    def __init__(self, text: str = "") -> None:
        self.length = len(text)
        self._segments: Segments = []
        self._start = 0
        self._hash = _hash(text)

    def add(self, piece: str) -> None:
        """Append a piece to the text."""
        self._hash.update(to_bytes(piece))
        self.length += len(piece)

    def matches(self, text: str) -> bool:
        """Return whether this is the text."""
        if len(text) != self.length:
            return False
        start = 0
        for length, digest in self._segments:
            if _hash(text[start : start + length]).digest() != digest:
                return False
            start += length
        return _hash(text[start:]).digest() == self._hash.digest()

    def dump(self) -> Segments:
        """Return the digest as a value that can be stored."""
        length = self.length - self._start
        return [*self._segments, (length, self._hash.digest())] if length else self._segments

    def load(self, segments: Segments) -> None:
        """Continue from a stored digest."""
        self._segments = [(length, digest) for length, digest in segments]
        self._start = self.length = sum(length for length, _ in segments)
        self._hash = _hash("")


def _hash(text: str) -> hashlib.blake2b:
    return hashlib.blake2b(to_bytes(text), digest_size=DIGEST_BYTES)
