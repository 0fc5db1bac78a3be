"""Read a file that is one JSON value, which is written again as a whole when something is added."""

from __future__ import annotations

from collections.abc import Iterator

from callslip.errors import InvalidInputError
from callslip.transcripts.json_lines import MAX_LINE_BYTES, TOO_LONG, open_file, parse_line
from callslip.transcripts.source import Piece, Problem, Transcript


def read_whole(transcript: Transcript, position: bytes) -> Iterator[Piece]:
    """Yield the value, unless the file is the one that was read before. The decoder leaves out what it knows."""
    mark = transcript.mark.encode()
    if position == mark:
        return
    with open_file(transcript.path) as file:
        data = file.read(MAX_LINE_BYTES + 1)
    try:
        if len(data) > MAX_LINE_BYTES:
            raise InvalidInputError("file", TOO_LONG)
        messages = [parse_line(data)]
    except InvalidInputError as error:
        yield Piece(position=mark, size=len(data), skipped=1, problem=Problem(1, error.problem))
        return
    yield Piece(messages=messages, position=mark, size=len(data))
