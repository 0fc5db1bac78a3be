"""What is done to a SQLite file now and then, each in a transaction of its own: checkpoints, retention, deletion."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from callslip.store.protocol import Progress
from callslip.store.sql import Connection
from callslip.store.sqlite_rows import SQL

TABLES = (
    *("events", "keys", "calls", "aliases", "approvals"),
    *("entries", "pieces", "checkpoints", "bases", "blob_uses"),
)
DAY = 24 * 60 * 60 * 1000


def _session(connection: Connection, name: str) -> int | None:
    rows = connection.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchall()
    return rows[0][0] if rows else None


def save_progress(connection: Connection, progress: Progress) -> bool:
    """Move a checkpoint on, unless somebody else did: the same events give the same rows, so one is enough."""
    session = _session(connection, progress.session)
    if session is None or progress.number not in (0, session):
        return False
    version = progress.checkpoint.version
    rows = connection.execute("SELECT seq, version FROM checkpoints WHERE session = ?", (session,)).fetchall()
    if progress.afresh:
        if rows and rows[0][1] == version:
            return False
        connection.execute("DELETE FROM entries WHERE session = ?", (session,)).fetchall()
        connection.execute("DELETE FROM pieces WHERE session = ?", (session,)).fetchall()
    elif rows != [(progress.after, version)]:
        return False
    for entry, field in progress.dropped:
        connection.execute(SQL["drop_pieces"], (session, entry, field)).fetchall()
    connection.executemany(SQL["put_piece"], [(session, *piece) for piece in progress.pieces])
    connection.executemany(SQL["put_entry"], [(session, identity, body) for identity, body in progress.entries])
    for identity, fields in progress.notes:
        _note(connection, session, identity, fields)
    at = progress.checkpoint
    connection.execute(SQL["put_checkpoint"], (session, at.seq, at.version, at.state)).fetchall()
    return True


def _note(connection: Connection, session: int, identity: int, fields: dict[str, object]) -> None:
    rows = connection.execute(SQL["entry"], (session, identity)).fetchall()
    if rows:
        entry = msgspec.json.decode(rows[0][0]) | fields
        connection.execute(SQL["put_entry"], (session, identity, msgspec.json.encode(entry))).fetchall()


def prune_session(connection: Connection, name: str, seq: int, base: bytes, kept: list[int]) -> int:
    """Forget the events up to `seq` and all that ended by then; `base` is what the kept log goes on from.

    The entries that were open at `seq` are `kept`: they belong to what follows.
    """
    session = _session(connection, name)
    if session is None:
        return 0

    def run(sql: str) -> list[tuple[Any]]:
        return connection.execute(
            sql, {"session": session, "seq": seq, "kept": msgspec.json.encode(kept).decode()}
        ).fetchall()

    old = "session = :session AND {} <= :seq"
    closed = " AND {} NOT IN (SELECT value FROM json_each(:kept))"
    gone = f"SELECT id FROM calls WHERE {old.format('[end]')} AND [end] > 0"
    removed = run(f"SELECT count(*) FROM events WHERE {old.format('seq')}")[0][0]
    run(f"DELETE FROM events WHERE {old.format('seq')}")
    run(f"DELETE FROM keys WHERE {old.format('seq')}")
    run(f"DELETE FROM entries WHERE {old.format('id') + closed.format('id')}")
    run(f"DELETE FROM approvals WHERE {old.format('entry') + closed.format('entry')}")
    run(f"DELETE FROM aliases WHERE session = :session AND call IN ({gone})")
    run(f"DELETE FROM calls WHERE id IN ({gone})")
    hashes = [row[0] for row in run(f"SELECT DISTINCT hash FROM blob_uses WHERE {old.format('seq')}")]
    run(f"DELETE FROM blob_uses WHERE {old.format('seq')}")
    _drop_blobs(connection, hashes + _unused_blobs(connection))
    run("UPDATE sessions SET low = :seq WHERE id = :session")
    connection.execute(SQL["put_base"], (session, seq, base)).fetchall()
    return removed


def delete_session(connection: Connection, name: str) -> bool:
    """Forget a session altogether."""
    session = _session(connection, name)
    if session is None:
        return False
    rows = connection.execute("SELECT DISTINCT hash FROM blob_uses WHERE session = ?", (session,)).fetchall()
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE session = ?", (session,)).fetchall()
    _drop_blobs(connection, [row[0] for row in rows])
    connection.execute(SQL["drop_tokens_of"], (name,)).fetchall()  # Else they would open another of the same name.
    connection.execute("DELETE FROM sessions WHERE id = ?", (session,)).fetchall()
    return True


def _unused_blobs(connection: Connection) -> list[str]:
    """Blobs of events that never came to be. Recent ones may belong to one that is being written."""
    unused = "SELECT hash FROM blobs WHERE created_at < ? AND hash NOT IN (SELECT hash FROM blob_uses)"
    return [row[0] for row in connection.execute(unused, (int(time.time() * 1000) - DAY,)).fetchall()]


def _drop_blobs(connection: Connection, hashes: list[str]) -> None:
    for identity in hashes:
        if not connection.execute("SELECT 1 FROM blob_uses WHERE hash = ? LIMIT 1", (identity,)).fetchall():
            connection.execute("DELETE FROM blob_pieces WHERE hash = ?", (identity,)).fetchall()
            connection.execute("DELETE FROM blobs WHERE hash = ?", (identity,)).fetchall()
