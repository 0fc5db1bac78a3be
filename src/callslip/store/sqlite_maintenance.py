"""Save checkpoints, apply retention and delete sessions, each in a transaction of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from callslip.model.records import SessionRecord
from callslip.store.protocol import Progress
from callslip.store.search import SearchPlace, SearchProgress
from callslip.store.shared_rows import DAY_MS, first_value
from callslip.store.sql import Connection
from callslip.store.sqlite_rows import SQL
from callslip.store.summaries import SummaryProgress, usage_values

TABLES = (
    *("events", "keys", "calls", "aliases", "approvals"),
    *("entries", "pieces", "checkpoints", "bases", "blob_uses", "summaries", "usage"),
)


def _session_id(connection: Connection, name: str) -> int | None:
    return first_value(connection.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchall())


def save_progress(connection: Connection, progress: Progress) -> bool:
    """Advance a checkpoint, unless another process did: it writes the same rows from the same events."""
    session = _session_id(connection, progress.session)
    if session is None or progress.number not in (0, session):
        return False
    version = progress.checkpoint.version
    rows = connection.execute("SELECT seq, version FROM checkpoints WHERE session = ?", (session,)).fetchall()
    if progress.rebuild:
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
        rows = connection.execute(SQL["entry"], (session, identity)).fetchall()
        if rows:
            entry = msgspec.json.decode(rows[0][0]) | fields
            connection.execute(SQL["put_entry"], (session, identity, msgspec.json.encode(entry))).fetchall()
    new = progress.checkpoint
    connection.execute(SQL["put_checkpoint"], (session, new.seq, new.version, new.state)).fetchall()
    return True


def save_summaries(connection: Connection, summaries: Sequence[SummaryProgress]) -> None:
    """Store new summaries, except those whose session another process has summarized further."""
    for progress in summaries:
        if _session_id(connection, progress.session) != progress.number:
            continue
        rows = connection.execute(SQL["summary_place"], (progress.number,)).fetchall()
        before = progress.before
        if rows != ([(before.seq, before.version)] if before is not None else []):
            continue
        connection.execute(SQL["put_summary"], progress.values()).fetchall()
        if progress.replaces_usage:
            connection.execute("DELETE FROM usage WHERE session = ?", (progress.number,)).fetchall()
        rows = [(progress.number, *usage_values(record)) for record in progress.usage]
        connection.executemany(SQL["put_usage"], rows)


def save_search(connection: Connection, progress: SearchProgress) -> bool:
    """Store new rows of the search index, unless another process did, or what they are derived from has gone."""
    found = connection.execute(SQL["session_for_search"], (progress.session,)).fetchall()
    session = progress.number
    if found != [(session, progress.pruned_seq)]:
        return False
    places = [SearchPlace(*row) for row in connection.execute(SQL["lock_search_place"], (session,)).fetchall()]
    if places != ([progress.before] if progress.before is not None else []):
        return False
    if progress.afresh:
        connection.execute(SQL["drop_search_rows"], (session,)).fetchall()
    else:
        entries = [*progress.dropped, *(row.entry for row in progress.rows)]
        connection.executemany(SQL["drop_search_row"], [(session, entry) for entry in entries])
    last = connection.execute(SQL["last_search_row"]).fetchall()[0][0]
    numbered = list(enumerate(progress.rows, start=last + 1))
    rows = [(number, session, row.entry, row.rank, row.at) for number, row in numbered]
    connection.executemany(SQL["add_search_row"], rows)
    words = [(number, row.words_text, row.names_text) for number, row in numbered]
    connection.executemany(SQL["add_search_words"], words)
    after = progress.after
    connection.execute(SQL["put_search_place"], (session, after.seq, after.version, after.fold, after.body)).fetchall()
    return True


def prune_session(connection: Connection, record: SessionRecord, seq: int, base: bytes, kept: dict[int, str]) -> int:
    """Delete the events up to `seq` and everything that ended by then; return how many events were deleted.

    Delete nothing if the session was deleted or pruned since the record was read: `base` may then be of other events.

    `base` is the state that the remaining log continues from. `kept` are the entries that were open at `seq`, each with
    the hash of its blob, "" for none. The blob then belongs to the event that created the entry.
    """
    session = record.id
    if connection.execute("SELECT low FROM sessions WHERE id = ?", (session,)).fetchall() != [(record.pruned_seq,)]:
        return 0

    def run(sql: str) -> list[tuple[Any]]:
        return connection.execute(
            sql, {"session": session, "seq": seq, "kept": msgspec.json.encode(list(kept)).decode()}
        ).fetchall()

    old = "session = :session AND {} <= :seq"
    closed = " AND {} NOT IN (SELECT value FROM json_each(:kept))"
    ended = f"SELECT id FROM calls WHERE {old.format('[end]')} AND [end] > 0"
    removed = run(f"SELECT count(*) FROM events WHERE {old.format('seq')}")[0][0]
    run(f"DELETE FROM events WHERE {old.format('seq')}")
    run(f"DELETE FROM keys WHERE {old.format('seq')}")
    run(f"DELETE FROM entries WHERE {old.format('id') + closed.format('id')}")
    run(f"DELETE FROM approvals WHERE {old.format('entry') + closed.format('entry')}")
    run(f"DELETE FROM aliases WHERE session = :session AND call IN ({ended})")
    run(f"DELETE FROM calls WHERE id IN ({ended})")
    hashes = [row[0] for row in run(f"SELECT DISTINCT hash FROM blob_uses WHERE {old.format('seq')}")]
    run(f"DELETE FROM blob_uses WHERE {old.format('seq')}")
    connection.executemany(SQL["use_blob"], [(session, entry, hash) for entry, hash in kept.items() if hash])
    _drop_blobs(connection, hashes)
    run("UPDATE sessions SET low = :seq WHERE id = :session")
    connection.execute(SQL["put_base"], (session, seq, base)).fetchall()
    return removed


def drop_unused_blobs(connection: Connection) -> None:
    """Delete blobs that no event uses, except those of the last day."""
    unused = "SELECT hash FROM blobs WHERE created_at < ? AND hash NOT IN (SELECT hash FROM blob_uses)"
    day_ago = int(time.time() * 1000) - DAY_MS
    _drop_blobs(connection, [row[0] for row in connection.execute(unused, (day_ago,)).fetchall()])


def delete_session(connection: Connection, name: str) -> bool:
    """Delete a session with all its data; return whether anything of it existed."""
    connection.execute(SQL["remember_transcripts"], (int(time.time() * 1000), name)).fetchall()
    conversations = connection.execute(SQL["drop_conversations_of"], (name,)).fetchall()
    posts = connection.execute(SQL["drop_posts_of"], (name,)).fetchall()
    session = _session_id(connection, name)
    if session is None:
        return bool(conversations or posts)
    rows = connection.execute("SELECT DISTINCT hash FROM blob_uses WHERE session = ?", (session,)).fetchall()
    connection.execute(SQL["remember_deletion"], (name, int(time.time() * 1000), session)).fetchall()
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE session = ?", (session,)).fetchall()
    _drop_blobs(connection, [row[0] for row in rows])
    # A token of this session would else give access to a new session of the same name.
    connection.execute(SQL["drop_tokens_of"], (name,)).fetchall()
    connection.execute("DELETE FROM sessions WHERE id = ?", (session,)).fetchall()
    return True


def _drop_blobs(connection: Connection, hashes: list[str]) -> None:
    for identity in hashes:
        if not connection.execute("SELECT 1 FROM blob_uses WHERE hash = ? LIMIT 1", (identity,)).fetchall():
            connection.execute("DELETE FROM blob_pieces WHERE hash = ?", (identity,)).fetchall()
            connection.execute("DELETE FROM blobs WHERE hash = ?", (identity,)).fetchall()
