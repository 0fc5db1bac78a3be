"""Read the sessions of opencode from its database, `opencode.db`, which a running opencode writes at the same time.

Sessions of before version 1.2 are read from their files (`opencode_files.py`), unless the database has them too.
The output of `opencode export`, in a file that ends with `.json`, and rows in a file of JSON lines are read as well.

The database is opened for reading only. Each session is a transcript, also that of a sub-agent, which belongs to the
session that started it. Rows change after they were written, so a position is a time: all rows that changed since are
read, in the order in which they were created, message by message. A row may be read again; its drafts then have keys
that are known.

opencode does not store of which session another one is a fork. A fork has copies of messages with the times of the
originals, so they are older than the fork itself, and its origin is the earlier session that has the last of them. The
session is looked for in the reads that have such messages, and added to the row of the session as `forkedFrom`.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict
from callslip.formats.opencode.decode import session_of_row
from callslip.model import codec
from callslip.transcripts.json_file import read_whole
from callslip.transcripts.json_lines import MAX_LINE_BYTES, PIECE_BYTES, find_files, read_lines, stat_file
from callslip.transcripts.opencode_files import find_sessions, is_session_file, read_session
from callslip.transcripts.source import Messages, Piece, Problem, Transcript

DATABASE = "opencode.db"
EXPORTS = (".json", ".jsonl")
PIECE_ROWS = 500
BUSY_TIMEOUT_S = 5.0
ACTIVE_MS = 3_600_000
"""A session that changed so long before the last write to the database may be the one that was written to."""
MAX_DEPTH = 20
MAX_ORIGINS = 100
"""Of how many sessions with the same message one is chosen as the origin of a fork."""

_SESSIONS = "SELECT id, parent_id, time_updated FROM session ORDER BY time_created, id"
_SESSION = """SELECT id, parent_id, title, directory, version, time_created, time_updated FROM session WHERE id = ?"""
_MESSAGES = """SELECT id, time_updated, CASE WHEN json_valid(data) THEN json_extract(data, '$.role') END,
    CASE WHEN json_valid(data) THEN json_extract(data, '$.time.created') END FROM message WHERE session_id = ?"""
_PARTS = "SELECT id, message_id, time_updated FROM part WHERE session_id = ? AND COALESCE(time_updated, 0) >= ?"
_COUNTS = [
    f"SELECT COUNT(*), COALESCE(SUM(time_updated % {2**32}), 0) FROM {table} "
    "WHERE session_id = ? AND COALESCE(time_updated, 0) < ?"
    for table in ("message", "part")
]
_LAST_COPIED = "SELECT max(time_created) FROM message WHERE session_id = ? AND time_created < ?"
# Each session is looked up in the index of its messages by their times.
_ORIGINS = f"""SELECT id, title FROM session WHERE id != ? AND time_created <= ? AND parent_id IS NULL AND EXISTS
    (SELECT 1 FROM message WHERE session_id = session.id AND time_created = ?)
    ORDER BY time_created, id LIMIT {MAX_ORIGINS}"""
_FORK_TITLE = re.compile(r"(.+) \(fork #([0-9]{1,9})\)")
_DATA = ("SELECT data FROM message WHERE id = ?", "SELECT data FROM part WHERE id = ?")


class Row(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A row. That of a message of the user comes before its parts, that of the agent after them: it tells their end."""

    message: str = ""
    place: int = 0
    id: str = ""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """What was read: all rows that changed before `since`, and if `until` is set, those before `until` up to `row`.

    `count` is how many rows changed before `since`, and `times` the sum of their times, -1 if they are not known.
    """

    since: int = 0
    until: int = 0
    row: Row = Row()
    count: int = -1
    times: int = -1


OF_USER, PART, OF_AGENT = range(3)
_decode_position = msgspec.msgpack.Decoder(Position).decode


class Opencode:
    """The history of opencode."""

    name = "opencode"
    session_prefix = "opencode"

    def folders(self, environ: Mapping[str, str], home: str) -> list[str]:
        data = environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
        folder = os.path.join(data, "opencode")
        database = environ.get("OPENCODE_DB") or DATABASE
        return [] if database == ":memory:" else [os.path.join(folder, database)]

    def find(self, path: str) -> Iterator[Transcript]:
        if path.endswith(EXPORTS):
            for file in () if os.path.isdir(path) else find_files(path, ""):
                if (transcript := stat_file(file)) is not None:
                    yield transcript
            return
        path = os.path.join(path, DATABASE) if os.path.isdir(path) else path
        rows: list[Any] = []
        if (written := _written_at(path)) is not None:
            try:
                with closing(_open(path)) as connection:
                    rows = [tuple(row) for row in connection.execute(_SESSIONS)]
            except sqlite3.Error:
                return  # It is not a database of opencode, or is not ready yet.
            yield from _find_rows(path, rows, written)
        if os.path.basename(path) == DATABASE:
            yield from find_sessions(os.path.dirname(path), {str(session) for session, _, _ in rows})

    def refresh(self, transcript: Transcript) -> Transcript | None:
        if not transcript.part:
            return stat_file(transcript.path, transcript.session, is_secondary=transcript.is_secondary)
        written = _written_at(transcript.path)
        if written is None:
            return None
        try:
            with closing(_open(transcript.path)) as connection:
                row = connection.execute(_SESSION, (transcript.part,)).fetchone()
        except sqlite3.Error:
            return transcript
        if row is None:
            return None
        updated = row["time_updated"]
        return _transcript(transcript.path, transcript.part, transcript.session, updated, written, transcript.size)

    def session_of(self, transcript: Transcript, messages: Messages) -> str:
        rows = (as_dict(message).get(name) for message in messages for name in ("session", "info"))
        return transcript.session or next((session for row in rows if (session := session_of_row(row))), "")

    def opening(self, transcript: Transcript) -> Messages:
        return ()

    def read(self, transcript: Transcript, position: bytes) -> Iterator[Piece]:
        """Yield the rows that changed, each piece after the current row of the session itself."""
        if is_session_file(transcript.path):
            yield from read_session(transcript, position)
            return
        if not transcript.part:
            is_rows = transcript.path.endswith(".jsonl")
            yield from read_lines(transcript.path, position) if is_rows else read_whole(transcript, position)
            return
        try:
            start = _decode_position(position) if position else Position()
        except msgspec.DecodeError:
            start = Position()
        try:
            with closing(_open(transcript.path)) as connection:
                yield from _read_rows(connection, transcript.part, start)
        except sqlite3.Error as error:
            problem = Problem(0, f"the database cannot be read: {error}")
            yield Piece(position=position, skipped=1, problem=problem)


def _find_rows(path: str, rows: Sequence[Any], written: tuple[int, str]) -> Iterator[Transcript]:
    """Yield the sessions of a database, those of sub-agents last: their parents name the calls that they belong to."""
    size = _size_of(path) // max(1, len(rows))
    parents = {session: parent for session, parent, _ in rows}
    for session, parent, updated in sorted(rows, key=lambda row: row[1] is not None):
        root = str(_root_of(str(session), parents))
        yield _transcript(path, str(session), root if parent else str(session), updated, written, size)


def _read_rows(connection: sqlite3.Connection, part: str, start: Position) -> Iterator[Piece]:
    session = connection.execute(_SESSION, (part,)).fetchone()
    if session is None:
        return
    connection.execute("BEGIN")  # The rows and their count are of the same moment.
    if start.count >= 0 and not start.until and _has_older_changes(start, *_sum_up(connection, part, start.since)):
        start = Position()  # A row was added or changed with an older time: the clock was set back.
    rows, about, until = _changed_rows(connection, part, start)
    count, times = _sum_up(connection, part, until)
    last = Position(until, count=count, times=times)
    origin = _find_origin(connection, session, rows, about)
    connection.rollback()
    messages: list[Any] = [{"session": _session_fields(session, origin)}]
    problem, skipped, size = None, 0, 0
    for number, row in enumerate(rows, 1):
        found = connection.execute(_DATA[row.place == PART], (row.id,)).fetchone()
        if found is not None:  # Else it was deleted meanwhile.
            try:
                size += _size_of_data(found["data"])
                messages.append(_message_of(row, found["data"], part, *about[row.message]))
            except InvalidInputError as error:
                skipped += 1
                problem = problem or Problem(0, f"{row.id}: {error.problem}")
        if size >= PIECE_BYTES or len(messages) >= PIECE_ROWS:
            position = Position(start.since, until, row) if number < len(rows) else last
            yield _piece(messages, position, size, skipped, problem)
            messages, problem, skipped, size = [], None, 0, 0
    if messages or problem is not None or not rows:
        yield _piece(messages, last, size, skipped, problem)


def _changed_rows(
    connection: sqlite3.Connection, session: str, start: Position
) -> tuple[list[Row], dict[str, tuple[Any, Any]], int]:
    """Return the rows to read in order, the role and time of each message, and the time of the last change."""
    about: dict[str, tuple[Any, Any]] = {}
    changed: list[tuple[int, Row]] = []
    for found, updated, role, created in connection.execute(_MESSAGES, (session,)):
        identity = str(found)
        about[identity] = (role, created)
        if (changed_at := _time_of(updated)) >= start.since:
            changed.append((changed_at, Row(identity, OF_USER if role == "user" else OF_AGENT, identity)))
    for part, message, updated in connection.execute(_PARTS, (session, start.since)):
        if str(message) in about:
            changed.append((_time_of(updated), Row(str(message), PART, str(part))))
    until = start.until or max(start.since, *(updated for updated, _ in changed), 0)
    # A row that changed after `until` is read with the next position.
    rows = sorted(row for updated, row in changed if updated <= until and row > start.row)
    return rows, about, until


def _sum_up(connection: sqlite3.Connection, session: str, until: int) -> tuple[int, int]:
    """Return how many rows of a session changed before a time, and the sum of their times."""
    found = [connection.execute(query, (session, until)).fetchone() for query in _COUNTS]
    return sum(count for count, _ in found), sum(times for _, times in found)


def _has_older_changes(start: Position, count: int, times: int) -> bool:
    """Return whether more rows, or other ones, have a time before that of a position. Rows may have been deleted."""
    return count > start.count or (count == start.count and start.times >= 0 and times != start.times)


def _find_origin(
    connection: sqlite3.Connection, session: sqlite3.Row, rows: Sequence[Row], about: Mapping[str, tuple[Any, Any]]
) -> str:
    """Return the session of which a session is a fork, if one of these rows is a copied message; "" if it is none.

    If several sessions have that message, it is the one whose title opencode gave to the fork, else the oldest.
    """
    begun = _time_of(session["time_created"])
    if session["parent_id"] or not any(0 < _time_of(about[row.message][1]) < begun for row in rows):
        return ""
    (copied,) = connection.execute(_LAST_COPIED, (session["id"], begun)).fetchone()
    found = connection.execute(_ORIGINS, (session["id"], begun, copied)).fetchall()
    forks = (origin for origin in found if _fork_title(str(origin["title"])) == session["title"])
    origin = next(forks, found[0] if found else None)
    return "" if origin is None else str(origin["id"])


def _fork_title(title: str) -> str:
    """Return the title of a fork of a session with this title."""
    forked = _FORK_TITLE.fullmatch(title)
    return f"{forked[1]} (fork #{int(forked[2]) + 1})" if forked else f"{title} (fork #1)"


def _time_of(value: Any) -> int:
    """Return the time of a row; 0 for anything else, so that the row is only read with all others."""
    return value if isinstance(value, int) else 0


def _size_of_data(data: Any) -> int:
    """Return the size of the data of a row, or raise InvalidInputError."""
    if not isinstance(data, str | bytes):
        raise InvalidInputError("data", "is not JSON")
    return len(data)


def _piece(messages: list[Any], position: Position, size: int, skipped: int, problem: Problem | None) -> Piece:
    data = msgspec.msgpack.encode(position)
    return Piece(messages=messages, position=data, size=size, skipped=skipped, problem=problem)


def _session_fields(row: sqlite3.Row, origin: str) -> dict[str, Any]:
    return {
        "id": row["id"],
        "parentID": row["parent_id"],
        **({"forkedFrom": origin} if origin else {}),
        "title": row["title"],
        "directory": row["directory"],
        "version": row["version"],
        "time": {"created": row["time_created"], "updated": row["time_updated"]},
    }


def _message_of(row: Row, data: str, session: str, role: Any, created: Any) -> Any:
    """Return a row of a message or a part as the decoder reads it."""
    fields = as_dict(codec.parse_json(data, max_bytes=MAX_LINE_BYTES))
    if row.place != PART:
        return {"message": {**fields, "id": row.id, "sessionID": session}}
    part = {**fields, "id": row.id, "messageID": row.message, "sessionID": session}
    return {"part": part, "role": role, "created": created}


def _open(path: str) -> sqlite3.Connection:
    """Open the database for reading. Without its log no program has it open, and then reading leaves no files."""
    options = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?{options}", uri=True, timeout=BUSY_TIMEOUT_S)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _decode_text
    return connection


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _written_at(path: str) -> tuple[int, str] | None:
    """Return when the database was last written to, in ms, and a mark of that; None if there is none."""
    try:
        stats = [os.stat(path)]
    except OSError:
        return None
    with suppress(OSError):
        log = os.stat(f"{path}-wal")
        stats += [log] if log.st_size else []  # A reader creates an empty one.
    newest = max(stat.st_mtime_ns for stat in stats)
    return newest // 10**6, ".".join(f"{stat.st_mtime_ns}.{stat.st_size}" for stat in stats)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _transcript(path: str, part: str, session: str, updated: Any, written: tuple[int, str], size: int) -> Transcript:
    changed_at = updated if isinstance(updated, int) else 0
    written_at, mark = written
    is_active = written_at - changed_at < ACTIVE_MS
    mark = f"{changed_at}.{mark}" if is_active else str(changed_at)
    return Transcript(
        path=path,
        part=part,
        mark=mark,
        session=session,
        size=size,
        changed_at=changed_at,
        is_secondary=part != session,
    )


def _root_of(session: str, parents: Mapping[str, str | None]) -> str:
    """Return the session that was not started by another one."""
    for _ in range(MAX_DEPTH):
        parent = parents.get(session)
        if not parent or parent not in parents:
            return session
        session = parent
    return session
