"""Save checkpoints, apply retention, delete sessions, and look for faults in the tables of PostgreSQL.

Locks are taken in the order of the statement that writes groups: the session, its rows, blobs by hash, conversations,
and queues last.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from callslip.errors import CorruptDataError
from callslip.model.records import SessionRecord
from callslip.store.postgres_blobs import DELETION_S, drop_unused_blobs
from callslip.store.postgres_database import Connection
from callslip.store.postgres_rows import approval_record, call_record
from callslip.store.protocol import Progress, RowCounts
from callslip.store.search import SearchPlace, SearchProgress, tsvector
from callslip.store.shared_rows import first_value
from callslip.store.sql import statements
from callslip.store.summaries import SummaryProgress, usage_values

Fetch = Callable[..., Awaitable[list[Sequence[Any]]]]
SQL = statements("postgres.sql")
TABLES = (
    *("events", "keys", "calls", "aliases", "approvals", "sealed"),
    *("entries", "pieces", "checkpoints", "bases", "blob_uses"),
    *(SUMMARY_TABLES := ("summaries", "usage")),
)
"""The tables with rows of sessions. A database that can only be read may have no tables of summaries yet."""
PAGE_ROWS = 1000
CHECK_ROWS = 200
"""How many sessions, queues or blobs one statement checks. Each may take some reads of the disk."""
COUNTED_EVENTS = 20_000
"""In how many events of a log one statement counts the entries."""
FIRST_NUMBER = -(2**62)
"""It is lower than any number of a session or an event."""
MAX_PROBLEMS = 100
"""How many faults of one kind are listed."""


async def save_progress(connection: Connection, progress: Progress) -> bool:
    """Advance a checkpoint, unless another process did: it writes the same rows from the same events.

    The rev of the session stays, as writers do not read these rows.
    """
    session = first_value(await connection.fetch(SQL["session_for_progress"], progress.session))
    if session is None or progress.number not in (0, session):
        return False
    new = progress.checkpoint
    if progress.rebuild:
        await connection.execute(SQL["add_checkpoint"], session)
    rows = [tuple(row) for row in await connection.fetch(SQL["lock_checkpoint"], session)]
    if progress.rebuild:
        if rows[0][1] == new.version:
            return False
        await connection.execute(SQL["drop_entries"], session)
        await connection.execute(SQL["drop_all_pieces"], session)
    elif rows != [(progress.after, new.version)]:
        return False
    await _put_pieces(connection, session, progress)
    await _put_entries(connection, session, progress)
    await connection.execute(SQL["put_checkpoint"], session, new.seq, new.version, new.state)
    return True


async def _put_pieces(connection: Connection, session: int, progress: Progress) -> None:
    if progress.dropped:
        entries, fields = zip(*progress.dropped, strict=True)
        await connection.execute(SQL["drop_pieces"], session, entries, fields)
    pieces = {(entry, field, at): text for entry, field, at, text in progress.pieces}
    if pieces:
        entries, fields, ats = zip(*pieces, strict=True)
        texts = [text.encode("utf-8", "surrogatepass") for text in pieces.values()]
        await connection.execute(SQL["put_pieces"], session, entries, fields, ats, texts)


async def _put_entries(connection: Connection, session: int, progress: Progress) -> None:
    entries = dict(progress.entries)
    noted = {identity for identity, _ in progress.notes} - entries.keys()
    if noted:
        rows = await connection.fetch(SQL["entries_to_change"], session, list(noted))
        entries.update({row[0]: row[1] for row in rows})
    for identity, fields in progress.notes:
        if identity in entries:
            entries[identity] = msgspec.json.encode(msgspec.json.decode(entries[identity]) | fields)
    if entries:
        await connection.execute(SQL["put_entries"], session, list(entries), list(entries.values()))


async def save_summaries(connection: Connection, summaries: Sequence[SummaryProgress]) -> None:
    """Store new summaries, except those whose session another process has summarized further."""
    for progress in sorted(summaries, key=lambda progress: progress.number):
        found = first_value(await connection.fetch(SQL["session_for_progress"], progress.session))
        if found != progress.number:
            continue
        before = progress.before
        if before is None:
            await connection.execute(SQL["add_summary"], progress.number)
        rows = [tuple(row) for row in await connection.fetch(SQL["lock_summary"], progress.number)]
        if rows != [(before.seq, before.version) if before is not None else (-1, 0)]:
            continue
        await connection.execute(SQL["put_summary"], *progress.values())
        if progress.replaces_usage:
            await connection.execute(SQL["drop_usage"], progress.number)
        if progress.usage:
            columns = zip(*map(usage_values, progress.usage), strict=True)
            await connection.execute(SQL["put_usage"], progress.number, *map(list, columns))


async def save_search(connection: Connection, progress: SearchProgress) -> bool:
    """Store new rows of the search index, unless another process did, or what they are derived from has gone."""
    session = progress.number
    found = await connection.fetch(SQL["session_for_search"], progress.session)
    if [tuple(row) for row in found] != [(session, progress.pruned_seq)]:
        return False
    if progress.before is None:
        await connection.execute(SQL["add_search_place"], session)
    places = [SearchPlace(*row) for row in await connection.fetch(SQL["lock_search_place"], session)]
    if places != [progress.before or SearchPlace(-2, 0, 0, b"")]:
        return False
    if progress.afresh:
        await connection.execute(SQL["drop_search_rows"], session)
    else:
        entries = [*progress.dropped, *(row.entry for row in progress.rows)]
        await connection.execute(SQL["drop_search_row"], session, entries)
    if progress.rows:
        columns = zip(*((row.entry, row.rank, row.at, tsvector(row)) for row in progress.rows), strict=True)
        await connection.execute(SQL["add_search_rows"], session, *map(list, columns))
    after = progress.after
    await connection.execute(SQL["put_search_place"], session, after.seq, after.version, after.fold, after.body)
    return True


async def _run(connection: Connection, name: str, *values: Any) -> list[Sequence[Any]]:
    return await connection.fetch(SQL[name], *values, timeout=DELETION_S)


async def prune_session(
    connection: Connection, record: SessionRecord, seq: int, base: bytes, kept: dict[int, str]
) -> int:
    """Delete the events up to `seq` and everything that ended by then; return how many events were deleted.

    Delete nothing if the session was deleted or pruned since the record was read: `base` may then be of other events.

    `base` is the state that the remaining log continues from. `kept` are the entries that were open at `seq`, each with
    the hash of its blob, "" for none. The blob then belongs to the event that created the entry.
    """
    run = partial(_run, connection)
    rows = await run("lock_session", record.name)
    if [tuple(row) for row in rows] != [(record.id, record.pruned_seq)]:
        return 0
    session = record.id
    removed = first_value(await run("pruned_events", session, seq))
    await run("prune_keys", session, seq)
    ended = [row[0] for row in await run("prune_calls", session, seq)]
    await run("prune_aliases", session, ended)
    await run("prune_sealed", ended)
    await run("prune_approvals", session, seq, list(kept))
    await run("prune_entries", session, seq, list(kept))
    hashes = [row[0] for row in await run("prune_blob_uses", session, seq)]
    uses = {entry: identity for entry, identity in kept.items() if identity}
    await run("use_blobs", session, list(uses), list(uses.values()))
    await drop_unused_blobs(connection, hashes)
    await run("put_base", session, seq, base)
    await run("prune_session", session, seq)
    return removed


async def delete_session(connection: Connection, name: str) -> bool:
    """Delete a session with all its data; return whether anything of it existed."""
    run = partial(_run, connection)
    session = first_value(await run("lock_session", name))
    pending: list[Sequence[Any]] = []
    if session is not None:
        pending = await run("pending_by_client", session)
        hashes = [row[0] for row in await run("blobs_of_session", session)]
        await run("remember_deletion", name, int(time.time() * 1000), session)
        for table in TABLES:
            await connection.execute(f"DELETE FROM {table} WHERE session = $1", session, timeout=DELETION_S)
        await drop_unused_blobs(connection, hashes)
    await run("remember_transcripts", int(time.time() * 1000), name)
    conversations = await run("drop_conversations_of", name)
    posts = await run("drop_posts_of", name)
    if session is None:
        return bool(conversations or posts)
    # A token of this session would else give access to a new session of the same name.
    await run("drop_tokens_of", name)
    await run("drop_session", session)
    if pending:
        clients, counts = zip(*pending, strict=True)
        await run("lock_queues", clients)
        await run("reduce_queues", clients, counts)
    return True


async def count_rows(fetch: Fetch, session: str) -> RowCounts:
    """Count the rows of a session, in parts of its log."""
    counts = [0] * len(RowCounts.__struct_fields__)
    after, last = FIRST_NUMBER, COUNTED_EVENTS
    while rows := await fetch(SQL["row_counts"], session, after, last):
        length, *found = rows[0]
        counts = [count + more for count, more in zip(counts, found, strict=True)]
        if length <= last:
            break
        after, last = last, last + COUNTED_EVENTS
    return RowCounts(*counts)


async def find_problems(fetch: Fetch, tables: Sequence[str] = TABLES) -> list[str]:
    """Return what contradicts itself in the tables. Only indexes are read, so this says nothing about single rows."""
    problems = await _check_rows(fetch, SQL["heads_to_check"], FIRST_NUMBER, _describe_head)
    problems += await _check_rows(fetch, SQL["queues_to_check"], "", _describe_queue)
    problems += await _check_rows(fetch, SQL["used_blobs_to_check"], "", _describe_blob)
    for table in tables:
        problems += await _check_rows(
            fetch, _numbers_of_sessions(table), FIRST_NUMBER, partial(_describe_number, table)
        )
    return problems


async def _check_rows(fetch: Fetch, sql: str, last: Any, describe: Callable[..., str]) -> list[str]:
    """Return the problems in the rows of a query, which returns a page after a key. The key is the first column."""
    problems: dict[str, None] = {}
    while len(problems) < MAX_PROBLEMS and (rows := await fetch(sql, last, CHECK_ROWS)):
        last = rows[-1][0]
        problems |= dict.fromkeys(problem for row in rows if (problem := describe(*row)))
    return list(problems)[:MAX_PROBLEMS]


def _describe_head(_: int, name: str, low: int, head: int, first: int, last: int) -> str:
    if (first, last) == (low + 1, head):
        return ""
    return f"session {name!r}: has the events {first} to {last}, but must have {low + 1} to {head}"


def _describe_queue(client: str, waiting: int, counted: int) -> str:
    return f"queue {client!r}: has {counted} pending commands, but counts {waiting}" if waiting != counted else ""


def _describe_blob(identity: str, is_whole: bool) -> str:
    return "" if is_whole else f"blob {identity}: an event uses it, but it is not stored"


def _describe_number(table: str, session: int, exists: bool) -> str:
    return "" if exists else f"{table}: has rows of session number {session}, which does not exist"


async def find_copy_faults(fetch: Fetch, session: str) -> list[str]:
    """Return the calls and approvals of a session whose columns differ from their record."""
    faults: list[str] = []
    for table, (read, fields) in _COPIES.items():
        entry, identity = -1, ""
        while rows := await fetch(SQL[f"{table}_copies"], session, entry, identity, PAGE_ROWS):
            for *values, body in rows:
                try:
                    record = read(body)
                except CorruptDataError as error:
                    faults.append(f"{table} {values[0]}: {error}")
                    continue
                expected = [getattr(record, field) for field in fields]
                different = [f for f, value, copy in zip(fields, expected, values, strict=True) if value != copy]
                if different:
                    faults.append(f"{table} {values[0]}: {', '.join(different)} differ from the record")
            identity, entry = rows[-1][0], rows[-1][1]
    return faults


_COPIES: dict[str, tuple[Callable[[bytes], Any], tuple[str, ...]]] = {
    "call": (
        lambda body: call_record(("", 0, body)),
        (
            *("id", "entry", "state", "client_call_id", "tool", "title", "deadline", "created_at", "ended_at", "end"),
            *("owner", "lease", "client"),
        ),
    ),
    "approval": (
        lambda body: approval_record(("", body)),
        ("id", "entry", "call", "state", "expires_at", "created_at"),
    ),
}
"""How to read a record, and which of its fields are columns too."""


def _numbers_of_sessions(table: str) -> str:
    """Return a query for a page of numbers of sessions in a table, with whether the session exists.

    Each step finds the next number in an index, however many rows of a session there are.
    """
    return f"""
        WITH RECURSIVE found (session, number) AS (
          SELECT $1::bigint, 0
          UNION ALL
          SELECT (SELECT min(t.session) FROM {table} t WHERE t.session > found.session), found.number + 1
          FROM found WHERE found.session IS NOT NULL AND found.number < $2)
        SELECT f.session, (SELECT s.id FROM sessions s WHERE s.id = f.session) IS NOT NULL
        FROM found f WHERE f.number > 0 AND f.session IS NOT NULL ORDER BY f.session
    """
