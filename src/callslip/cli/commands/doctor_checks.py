"""What `doctor` looks at: the file and its neighbours, the schema, the calls that are open and who keeps them alive."""

from __future__ import annotations

import os
import platform
import shutil
import time
from typing import Any

import apsw
import msgspec

from callslip._version import __version__
from callslip.cli.commands.doctor_commands import Finding, Queues, about_commands
from callslip.cli.terminal.formatting import format_age, size, span
from callslip.client.location import LedgerLocation
from callslip.errors import CallslipError, UnsupportedVersionError
from callslip.ledger.liveness import is_dead, is_here
from callslip.model.records import ApprovalRecord, CallRecord, OwnerRecord
from callslip.settings import Settings
from callslip.store import sqlite_open
from callslip.store.sql import migrations
from callslip.store.sqlite import SqliteStore

try:
    import fcntl
except ImportError:  # As in the store: without flock there are no locks to look at.
    fcntl = None

Facts = dict[str, Any]
BIG_WAL = 64 * 2**20
LITTLE_ROOM = 200 * 2**20
NEIGHBOURS = ("-wal", "-shm", "-queue", "-work")


Examined = tuple[Facts, list[Finding]]


async def examine(place: LedgerLocation) -> Examined:
    """Everything that can be known of a ledger without changing it."""
    versions = {"callslip": __version__, "sqlite": apsw.sqlite_lib_version(), "python": platform.python_version()}
    facts: Facts = {"path": place.path, "url": place.url, "saidBy": place.origin, "versions": versions}
    facts["settings"] = msgspec.to_builtins(Settings())
    findings: list[Finding] = []
    facts["exists"] = bool(place.path) and os.path.isfile(place.path) and os.path.getsize(place.path) > 0
    if not facts["exists"]:
        findings.append(_missing(place))
        return facts, findings
    _files(place.path, facts, findings)
    try:
        _schema(place.path, facts)
        if facts["schema"]["version"] >= facts["schema"]["newest"]:
            await _calls(place, facts, findings)
    except CallslipError as error:
        findings.append(_unreadable(error))
    findings += _about_schema(facts)
    return facts, findings


def _missing(place: LedgerLocation) -> Finding:
    if os.path.isdir(place.path):
        return Finding("problem", f"{place.path} is a folder", f"{place.origin} names it", "name a file in it")
    cause = "nothing was recorded here yet, or the ledger is elsewhere"
    return Finding("problem", f"no ledger at {place.path or 'all: it is in memory'}", cause, "name it with --db")


def _unreadable(error: CallslipError) -> Finding:
    if isinstance(error, UnsupportedVersionError):
        return Finding("problem", str(error), "a newer callslip wrote it", "upgrade callslip")
    cause = "the file is of another program, was cut short, or its disk failed"
    return Finding("problem", str(error), cause, "keep a copy of the file and its -wal; name another with --db")


def _files(path: str, facts: Facts, findings: list[Finding]) -> None:
    sizes = {"db": os.path.getsize(path)}
    for ending in NEIGHBOURS[:2]:
        if os.path.exists(path + ending):
            sizes[ending[1:]] = os.path.getsize(path + ending)
    facts["files"] = sizes
    facts["locks"] = {ending[1:]: _lock(path + ending) for ending in NEIGHBOURS[2:]}
    may_write = sqlite_open.is_writable(path)
    facts["access"] = "read and write" if may_write else "read only"
    if not may_write:
        cause = "the file or its folder belongs to somebody else, or the disk is mounted read-only"
        advice = "reading works; to write, change its owner or mode, or copy it"
        findings.append(Finding("note", f"{path} cannot be written by this user", cause, advice))
    if sizes.get("wal", 0) > BIG_WAL:
        cause = "a reader has kept one transaction open, so that the log cannot be moved into the file"
        advice = "end long-running readers; the next write then shortens it"
        findings.append(Finding("note", f"the write-ahead log is {size(sizes['wal'])}", cause, advice))
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < LITTLE_ROOM:
        advice = "make room, or `callslip admin prune --keep 30d`"
        findings.append(Finding("problem", f"only {size(free)} free on its disk", "the disk is nearly full", advice))


def _lock(path: str) -> str:
    """Whether a lock file is there, and whether a writer holds it at this moment."""
    if not os.path.exists(path):
        return "absent"
    if fcntl is None:
        return "there"
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return "unreadable"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "free"
    except OSError:
        return "held"
    finally:
        os.close(lock)


COUNTS = {
    "sessions": "SELECT count(*) FROM sessions",
    "events": "SELECT coalesce(sum(head - low), 0) FROM sessions",
    "newest": "SELECT coalesce(max(updated_at), 0) FROM sessions",
}


def _schema(path: str, facts: Facts) -> None:
    """Read with a connection of our own that cannot write: the store would bring an old file up to date."""
    with sqlite_open.translate_errors(path):
        connection = sqlite_open.connect(path, "", Settings(), read_only=True)
        try:
            run = connection.execute
            if run("PRAGMA application_id").fetchall()[0][0] != sqlite_open.APPLICATION_ID:
                raise sqlite_open.InvalidDatabaseError(f"{path} is a SQLite database of another program")
            oldest = run("SELECT value FROM meta WHERE name = 'oldest_reader'").fetchall()
            version = run("PRAGMA user_version").fetchall()[0][0]
            newest = migrations("sqlite")[-1][0]
            facts["schema"] = {
                "version": version,
                "newest": newest,
                "oldestReader": int(oldest[0][0]) if oldest else version,
                "journal": run("PRAGMA journal_mode").fetchall()[0][0],
            }
            for name, sql in COUNTS.items():
                facts[name] = run(sql).fetchall()[0][0]
            facts["calls"] = dict(run("SELECT state, count(*) FROM calls GROUP BY state ORDER BY 2 DESC").fetchall())
            count, stored = run("SELECT count(*), coalesce(sum(size), 0) FROM blobs").fetchall()[0]
            facts["blobs"] = {"count": count, "bytes": stored}
        finally:
            connection.close()


def _about_schema(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    schema = facts.get("schema")
    if schema and schema["oldestReader"] > schema["newest"]:
        what = f"schema {schema['version']} needs a callslip that knows schema {schema['oldestReader']}"
        found.append(Finding("problem", what, "a newer callslip wrote it", "upgrade callslip"))
    elif schema and schema["version"] < schema["newest"]:
        what = f"the file has schema {schema['version']}, this program knows {schema['newest']}"
        advice = "nothing: the next command that may write brings it up to date"
        found.append(Finding("note", what, "an older callslip wrote it", advice))
    ahead = facts.get("newest", 0) / 1000 - time.time()
    if ahead > 60:
        what = f"the newest event lies {span(ahead)} in the future"
        advice = "set the clock; leases and deadlines go by it"
        found.append(Finding("problem", what, "the clock of this machine, or of another writer, is wrong", advice))
    return found


async def _calls(place: LedgerLocation, facts: Facts, findings: list[Finding]) -> None:
    store = SqliteStore(place.url, Settings())
    try:
        now = await store.clock()
        owners = {owner.id: owner for owner in await store.owners()}
        rows = await store.open_calls()
        asked = await store.approvals(state="pending", limit=10_000)
        facts["open"] = [_open(row, owners, now) for row in rows]
        facts["approvals"] = [_asked(row) for row in asked]
        failed = await store.failed_commands("", Settings().failed_window)
        queues = Queues([row for row in rows if row.client], failed, await store.executors(), now)
    finally:
        await store.close()
    facts["commands"] = queues.counts()
    facts["executors"] = queues.executors
    for row in rows:
        findings += _about_call(row, owners, now, read_only=facts["access"] == "read only")
    findings += [_about_request(row, now) for row in asked]
    findings += about_commands(queues, Settings())


def _open(row: CallRecord, owners: dict[str, OwnerRecord], now: int) -> Facts:
    return {
        "call": row.id,
        "session": row.session,
        "state": row.state,
        "tool": row.tool,
        "createdAt": row.created_at,
        "owner": _owner(row, owners, now),
        "alive": _alive(row, owners, now),
    }


def _asked(row: ApprovalRecord) -> Facts:
    about = {"approval": row.id, "call": row.call, "session": row.session, "description": row.description}
    return {**about, "createdAt": row.created_at, "expiresAt": row.expires_at}


def _alive(row: CallRecord, owners: dict[str, OwnerRecord], now: int) -> bool:
    if not row.owner:
        return not row.lease or row.lease > now
    if is_here(row.owner):
        return not is_dead(row.owner)
    return row.owner in owners and owners[row.owner].until > now


def _owner(row: CallRecord, owners: dict[str, OwnerRecord], now: int) -> str:
    """Who keeps a call alive, as a person would say it."""
    if not row.owner:
        return f"no owner; its lease ends {format_age(row.lease)}" if row.lease else "no owner"
    pid = row.owner.partition(" ")[2].partition(" ")[0]
    if is_here(row.owner):
        return f"process {pid}, {'gone' if is_dead(row.owner) else 'alive'}"
    lease = owners[row.owner].until if row.owner in owners else 0
    return f"process {pid} on another machine or in another container, lease ends {format_age(lease)}"


def _about_call(row: CallRecord, owners: dict[str, OwnerRecord], now: int, *, read_only: bool) -> list[Finding]:
    if _alive(row, owners, now):
        return []
    what = f"call {row.id} is {row.state}, but {_owner(row, owners, now)}"
    cause = "its process ended without closing the ledger" if row.owner else "nothing more was heard of it"
    ends = "gives it to another worker" if row.client and row.idempotent else "ends it as lost"
    advice = f"any command that opens the ledger {ends} within seconds (`callslip ls`)"
    if read_only:
        advice = "it stays so until somebody who may write opens the ledger"
    return [Finding("note", what, cause, advice)]


def _about_request(row: ApprovalRecord, now: int) -> Finding:
    what = f"approval {row.id} waits for an answer: {row.description or row.call}"
    if row.expires_at and row.expires_at < now:
        return Finding("note", what, "its time is over and no process has looked since", "it will be refused soon")
    return Finding("note", what, "nobody has answered yet", f"`callslip approve {row.id}` or `callslip deny {row.id}`")
