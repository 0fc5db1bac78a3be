"""Read the sessions of opencode before version 1.2, which had no database but a JSON file for each row.

`storage/session/PROJECT/SESSION.json`, `storage/message/SESSION/MESSAGE.json` and `storage/part/MESSAGE/PART.json` are
the rows of today's database, with their ids. Version 1.2 copied them into its database; current versions do not, so a
session may be only in these files. It is read again as a whole when the file of the session has changed: the drafts of
what was read before have known keys.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, identifier
from callslip.transcripts.json_file import read_value
from callslip.transcripts.json_lines import PIECE_BYTES, find_files, stat_file
from callslip.transcripts.source import Piece, Problem, Transcript

STORAGE = "storage"
SUFFIX = ".json"
UNFINISHED = b"unfinished"
"""The position in the middle of a session, which is read from its start again."""

MAX_DEPTH = 20

Row = tuple[Any, int, Problem | None]
"""A message for the decoder and its size, or why it cannot be read."""


def find_sessions(folder: str, others: Collection[str]) -> Iterator[Transcript]:
    """Yield the sessions in a data folder, without others that the database has; those of sub-agents last."""
    secondary: list[Transcript] = []
    for path in find_files(os.path.join(folder, STORAGE, "session"), SUFFIX, depth=1):
        session = _name_of(path)
        if session in others or (transcript := stat_file(path, session)) is None:
            continue
        if (root := _root_of(path)) != session:
            secondary.append(structs.replace(transcript, session=root, is_secondary=True))
        else:
            yield transcript
    yield from secondary


def is_session_file(path: str) -> bool:
    """Return whether a file is that of a session."""
    return path.split(os.sep)[-4:-2] == [STORAGE, "session"]


def read_session(transcript: Transcript, position: bytes) -> Iterator[Piece]:
    """Yield the rows of a session as the decoder reads them, unless its file is the one that was read before."""
    mark = transcript.mark.encode()
    if position == mark:
        return
    messages: list[Any] = []
    problem, skipped, size = None, 0, 0
    for message, row_size, row_problem in _read_rows(transcript.path):
        if row_problem is not None:
            skipped, problem = skipped + 1, problem or row_problem
            continue
        messages.append(message)
        size += row_size
        if size >= PIECE_BYTES:
            yield Piece(messages=messages, position=UNFINISHED, size=size, skipped=skipped, problem=problem)
            messages, problem, skipped, size = [], None, 0, 0
    yield Piece(messages=messages, position=mark, size=size, skipped=skipped, problem=problem)


def _read_rows(path: str) -> Iterator[Row]:
    """Yield the row of a session and those of its messages, one of the agent after its parts: it tells their end."""
    storage = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    yield _read_row(path, "session")
    for file in find_files(os.path.join(storage, "message", _name_of(path)), SUFFIX, depth=0):
        row = _read_row(file, "message")
        info = as_dict(as_dict(row[0]).get("message"))
        is_prompt = info.get("role") == "user"
        if is_prompt:
            yield row
        about = {"role": info.get("role"), "created": as_dict(info.get("time")).get("created")}
        for part in find_files(os.path.join(storage, "part", _name_of(file)), SUFFIX, depth=0):
            yield _read_row(part, "part", **about)
        if not is_prompt:
            yield row


def _read_row(path: str, kind: str, **about: Any) -> Row:
    try:
        fields, size = read_value(path)
    except (InvalidInputError, OSError) as error:
        return None, 0, Problem(0, f"{os.path.basename(path)}: {error}")
    return {kind: fields, **about}, size, None


def _root_of(path: str) -> str:
    """Return the session that was not started by another one."""
    session = _name_of(path)
    for _ in range(MAX_DEPTH):
        parent = _parent_of(os.path.join(os.path.dirname(path), session + SUFFIX))
        if not parent:
            break
        session = parent
    return session


@lru_cache(maxsize=2**16)
def _parent_of(path: str) -> str:
    """Return the session that started another one, "" if there is none. It never changes."""
    try:
        return identifier(as_dict(read_value(path)[0]).get("parentID"))
    except (InvalidInputError, OSError):
        return ""


def _name_of(path: str) -> str:
    return os.path.basename(path).removesuffix(SUFFIX)
