"""Parse the chunks of a stream into messages.

A chunk is any value that a client library yields: a JSON value, an SDK object, lines of an SSE response as text, or its
bytes as they arrive.
"""

from __future__ import annotations

from typing import Any

from callslip.errors import InvalidInputError
from callslip.model import codec

MAX_LINE_BYTES = 256 * 2**20


class StreamParser:
    """Turn chunks into messages. With `plain_text` a chunk of text is a message as it is."""

    def __init__(self, plain_text: bool) -> None:
        self._plain_text = plain_text
        self._line_parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: Any) -> list[Any]:
        """Return the messages that are complete with this chunk."""
        if isinstance(chunk, bytes | bytearray):
            return self._feed_bytes(bytes(chunk))
        if isinstance(chunk, str):
            return [chunk] if self._plain_text else _parse_text(chunk.encode("utf-8", "surrogatepass").strip())
        dump = getattr(chunk, "model_dump", None)
        if callable(dump):  # An SDK object
            return [dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)]
        return [codec.to_json(chunk)]

    def _feed_bytes(self, data: bytes) -> list[Any]:
        """Join the parts of a line once, at its end: joining at each part would take quadratic time."""
        *line_ends, rest = data.split(b"\n")
        messages: list[Any] = []
        for end in line_ends:
            messages += _parse_line(b"".join([*self._line_parts, end]))
            self._line_parts, self._size = [], 0
        self._line_parts.append(rest)
        self._size += len(rest)
        if self._size > MAX_LINE_BYTES:
            raise InvalidInputError("stream", f"a line must be at most {MAX_LINE_BYTES} bytes", MAX_LINE_BYTES)
        return messages


def _parse_text(text: bytes) -> list[Any]:
    """Parse one line, several lines, or a JSON value over several lines."""
    lines = text.split(b"\n")
    if len(lines) == 1:
        return _parse_line(text)
    try:
        return [codec.parse_json(text)]
    except InvalidInputError:
        return [message for line in lines for message in _parse_line(line)]


def _parse_line(line: bytes) -> list[Any]:
    """Parse a line of an SSE response or a JSON value. Any other line is a message of text."""
    line = line.strip()
    if line.startswith(b"data:"):
        line = line[5:].strip()
    elif not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
        return []
    if line == b"[DONE]":
        return []
    try:
        return [codec.parse_json(line)]
    except InvalidInputError:
        return [line.decode("utf-8", "replace")]
