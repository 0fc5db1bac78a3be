"""Read a file that is one JSON value, which is written again as a whole when something is added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callslip.errors import InvalidInputError
from callslip.transcripts.json_lines import MAX_LINE_BYTES, TOO_LONG, open_file, parse_line
from callslip.transcripts.source import Piece, Problem, Transcript


def read_value(path: str) -> tuple[Any, int]:
    """Return the value of a file and its size, or raise InvalidInputError."""
    with open_file(path) as file:
        data = file.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise InvalidInputError("file", TOO_LONG)
    return parse_line(data), len(data)


def read_whole(transcript: Transcript, position: bytes) -> Iterator[Piece]:
    """Yield the value, unless the file is the one that was read before. The decoder leaves out what it knows."""
    mark = transcript.mark.encode()
    if position == mark:
        return
    try:
        message, size = read_value(transcript.path)
    except InvalidInputError as error:
        yield Piece(position=mark, skipped=1, problem=Problem(1, error.problem))
        return
    yield Piece(messages=[message], position=mark, size=size)
