"""Read files that are compressed with zstd. Python itself can do that since 3.14; earlier ones need a package."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

from callslip.transcripts.json_lines import COMPARED_BYTES, PIECE_BYTES, ReadAt, open_file

MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
KEPT_BYTES = 2 * PIECE_BYTES + COMPARED_BYTES
"""How much of the content before the last byte that was read can be read again."""


class DamagedFileError(Exception):
    """The content cannot be decompressed any further."""


@lru_cache(maxsize=1)
def load_zstd() -> Any:
    """Return the module that reads zstd, None if it is not installed."""
    try:
        return import_module(MODULE)
    except ImportError:
        return None


@contextmanager
def open_compressed(path: str) -> Generator[ReadAt]:
    """Open a compressed file, to read its content at any offset that is not far before the last one, or the start."""
    module = load_zstd()
    with open_file(path) as file, module.ZstdFile(file) as stream:
        yield _Content(stream, (module.ZstdError, EOFError)).read_at


class _Content:
    """The content of a compressed file: its first bytes, and a window that only moves forward."""

    def __init__(self, stream: Any, errors: tuple[type[Exception], ...]) -> None:
        self._stream = stream
        self._errors = errors
        self._damage: Exception | None = None
        self._window = b""
        self._start = 0
        self._head = self.read_at(COMPARED_BYTES, 0)

    def read_at(self, size: int, offset: int) -> bytes:
        """Return so many bytes at an offset, fewer at the end. Raise DamagedFileError if no more can be read."""
        if self._start and offset + size <= len(self._head):
            return self._head[offset : offset + size]
        while self._start + len(self._window) < offset + size and (data := self._read()):
            dropped = max(0, len(self._window) - KEPT_BYTES)
            self._window, self._start = self._window[dropped:] + data, self._start + dropped
        begin = offset - self._start
        assert begin >= 0, "this part of the content was read too long ago"
        found = self._window[begin : begin + size]
        if not found and self._damage is not None:
            raise DamagedFileError(str(self._damage)) from self._damage
        return found

    def _read(self) -> bytes:
        """Return what follows, nothing at the end and where the file is damaged."""
        try:
            return b"" if self._damage is not None else self._stream.read1(PIECE_BYTES)
        except self._errors as error:
            self._damage = error
            return b""
