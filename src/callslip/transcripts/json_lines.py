"""Read files of JSON lines that grow, in pieces, from a position that was stored earlier.

A position has digests of the beginning and of the last bytes that were read. If they are not in the file any more, it
was replaced or rewritten, and is read from its start.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from typing import Any, BinaryIO

import msgspec

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.transcripts.source import Piece, Problem, Transcript

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is skipped."""
PIECE_BYTES = 2**20
COMPARED_BYTES = 512
MAX_FOLDER_DEPTH = 8
BOM = b"\xef\xbb\xbf"
TOO_LONG = f"has more than {MAX_LINE_BYTES:,} bytes"

ReadAt = Callable[[int, int], bytes]
"""Returns so many bytes at an offset, fewer at the end."""

_encode_position = msgspec.msgpack.Encoder().encode
_decode_position = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes]).decode


def find_files(path: str, suffix: str, *, depth: int = MAX_FOLDER_DEPTH) -> Iterator[str]:
    """Yield the files below a folder whose names end with `suffix`, or the file itself, in the order of their names.

    What cannot be read is left out, and in a folder symbolic links, which may lead to files that are no transcripts.
    """
    try:
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except NotADirectoryError:
        yield os.path.realpath(path) if os.path.islink(path) else path
        return
    except OSError:
        return
    for entry in entries:
        try:
            is_folder, is_link = entry.is_dir(follow_symlinks=False), entry.is_symlink()
        except OSError:
            continue
        if is_folder:
            if depth > 0:
                yield from find_files(entry.path, suffix, depth=depth - 1)
        elif entry.name.endswith(suffix) and not is_link:
            yield entry.path


def stat_file(path: str, session: str = "", *, is_secondary: bool = False) -> Transcript | None:
    """Return a file as a transcript; None if it is gone or is no file, but for example a link."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    mark = f"{status.st_size}.{status.st_mtime_ns}.{status.st_ino}"
    changed_at = status.st_mtime_ns // 10**6
    return Transcript(
        path=path,
        mark=mark,
        session=session,
        size=status.st_size,
        changed_at=changed_at,
        is_secondary=is_secondary,
    )


def open_file(path: str) -> BinaryIO:
    """Open a file for reading, or raise OSError if it is no file: a link is not followed, and a pipe not waited for."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a file", path)
    return os.fdopen(file, "rb")


def parse_line(line: bytes) -> Any:
    """Return the value of a line, or raise InvalidInputError."""
    return codec.parse_json(line, field="line", max_bytes=MAX_LINE_BYTES)


@contextmanager
def open_content(path: str) -> Generator[ReadAt]:
    """Open a file to read it at any offset."""
    with open_file(path) as file:
        yield lambda size, offset: os.pread(file.fileno(), size, offset)


def read_lines(
    path: str, position: bytes, open_: Callable[[str], AbstractContextManager[ReadAt]] = open_content
) -> Iterator[Piece]:
    """Yield the values of the complete lines after a position, in pieces. Lines that cannot be read are skipped."""
    with open_(path) as read_at:
        start = _find_start(read_at, position)
        offset, number = start or (0, 0)
        restarted = bool(position) and start is None
        for lines, size in _chunks(read_at, offset):
            messages: list[Any] = []
            problem, skipped = None, 0
            for line in lines:
                number += 1
                if number == 1:
                    line = line.removeprefix(BOM)
                if not line or line.isspace():
                    continue
                try:
                    messages.append(parse_line(line))
                except InvalidInputError as error:
                    skipped += 1
                    problem = problem or Problem(number, error.problem)
            if not lines:  # Of a line that is too long.
                number, skipped, problem = number + 1, 1, Problem(number + 1, TOO_LONG)
            offset += size
            position = _encode_position((offset, number, *_digests(read_at, offset)))
            yield Piece(
                messages=messages, position=position, size=size, skipped=skipped, problem=problem, restarted=restarted
            )
            restarted = False


def _find_start(read_at: ReadAt, position: bytes) -> tuple[int, int] | None:
    """Return the offset of a position and the number of lines before it; None if this is not the file it is of."""
    if not position:
        return 0, 0
    try:
        offset, number, *digests = _decode_position(position)
    except msgspec.DecodeError:
        return None
    return (offset, number) if _digests(read_at, offset) == tuple(digests) else None


def _digests(read_at: ReadAt, offset: int) -> tuple[bytes, bytes]:
    """Return the digests of the first bytes and of the last bytes before an offset."""
    size = min(offset, COMPARED_BYTES)
    head, tail = read_at(size, 0), read_at(size, offset - size)
    return blake2b(head, digest_size=16).digest(), blake2b(tail, digest_size=16).digest()


def _chunks(read_at: ReadAt, offset: int) -> Iterator[tuple[list[bytes], int]]:
    """Yield complete lines and their size with all line ends; for a line that is too long no line, and its size.

    An incomplete line at the end is left out.
    """
    rest: list[bytes] = []
    rest_size, is_too_long = 0, False
    while data := read_at(PIECE_BYTES, offset):
        end = data.find(b"\n") if is_too_long else data.rfind(b"\n")
        if end < 0:
            rest.append(data)
            rest_size += len(data)
            offset += len(data)
            if rest_size > MAX_LINE_BYTES:
                rest, is_too_long = [], True
            continue
        offset += end + 1
        if is_too_long:
            yield [], rest_size + end + 1
        else:
            complete = b"".join((*rest, data[:end]))
            yield complete.split(b"\n"), len(complete) + 1
        rest, rest_size, is_too_long = [], 0, False
