"""A text that is passed on as it grows, where some messages bring a piece of it and others the whole.

Events can only append. Of what was passed on, its length and a digest are enough to tell what a whole text adds to it.
"""

from __future__ import annotations

import hashlib


class Growing:
    """One such text. Once it turned out to be another text than what was passed on, all of it is kept."""

    __slots__ = ("_hash", "_length", "_pieces")

    def __init__(self, text: str = "") -> None:
        self._begin(text)
        self._pieces: list[str] | None = None

    def _begin(self, text: str) -> None:
        self._hash, self._length = _hashed(text), len(text)

    def __bool__(self) -> bool:
        return bool(self._length)

    @property
    def whole(self) -> str | None:
        """The text as it is, if that is not what was passed on."""
        return None if self._pieces is None else "".join(self._pieces)

    def add(self, text: str) -> None:
        """A piece was passed on."""
        self._hash.update(_bytes(text))
        self._length += len(text)
        if self._pieces is not None:
            self._pieces.append(text)

    def forget(self) -> None:
        """Nobody will ask for the text any more."""
        self._pieces = None

    def become(self, whole: str) -> str | None:
        """What is to be passed on so that it is the whole text; None if no addition makes it so."""
        if _hashed(whole[: self._length]).digest() != self._hash.digest():
            self._begin(whole)
            self._pieces = [whole]
            return None
        rest = whole[self._length :]
        self.add(rest)
        return rest


def _hashed(text: str) -> hashlib.blake2b:
    return hashlib.blake2b(_bytes(text), digest_size=16)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
