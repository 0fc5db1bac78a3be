"""The checks of `callslip doctor`: files, schema, open calls and their owners."""

from __future__ import annotations

import os
import platform
import shutil
import time
from typing import Any

import msgspec

from callslip._version import __version__
from callslip.api import diagnose
from callslip.api.diagnose import OpenWork
from callslip.cli.commands.doctor_commands import Finding, Queues, check_commands
from callslip.cli.terminal.formatting import format_age, format_span
from callslip.client.location import LedgerLocation
from callslip.client.server_file import running_server
from callslip.errors import CallslipError, UnsupportedVersionError
from callslip.ledger.liveness import is_dead, is_here
from callslip.model.display import call_state_name, format_size
from callslip.model.records import ApprovalRecord, CallRecord
from callslip.settings import Settings

try:
    import fcntl
except ImportError:  # As in the store: without flock there are no locks to check.
    fcntl = None

Facts = dict[str, Any]
LARGE_WAL_BYTES = 64 * 2**20
MIN_FREE_BYTES = 200 * 2**20
MAX_CLOCK_SKEW_S = 60
DATA_SUFFIXES = ("-wal", "-shm")
LOCK_SUFFIXES = ("-queue", "-work")


async def examine(location: LedgerLocation) -> tuple[Facts, list[Finding]]:
    """Return the facts about a ledger and what is wrong with it, without changing it."""
    versions = {
        "callslip": __version__,
        "sqlite": diagnose.database_version(),
        "python": platform.python_version(),
    }
    path = location.path
    facts: Facts = {"path": path, "url": location.url, "saidBy": location.origin, "versions": versions}
    running = running_server(location)
    settings = running.settings if running else Settings()
    facts["settings"] = msgspec.to_builtins(settings)
    facts["exists"] = bool(path) and os.path.isfile(path) and os.path.getsize(path) > 0
    if not facts["exists"]:
        return facts, [_missing(location)]
    findings = _check_files(path, facts)
    try:
        facts |= diagnose.read_facts(path)
        if facts["schema"]["version"] >= facts["schema"]["newest"]:
            findings += _check_calls(await diagnose.read_open_work(location.url), facts, settings)
    except CallslipError as error:
        findings.append(_unreadable(error))
    return facts, findings + _check_schema(facts)


def _missing(location: LedgerLocation) -> Finding:
    if os.path.isdir(location.path):
        return Finding("problem", f"{location.path} is a folder", f"set by {location.origin}", "name a file in it")
    cause = "no ledger has been created at this path"
    what = f"no ledger at {location.path}" if location.path else "the ledger is in memory"
    return Finding("problem", what, cause, "name the file with --db")


def _unreadable(error: CallslipError) -> Finding:
    if isinstance(error, UnsupportedVersionError):
        return Finding("problem", str(error), "a newer callslip wrote the file", "upgrade callslip")
    cause = "the file belongs to another program, is truncated, or its disk failed"
    return Finding("problem", str(error), cause, "keep a copy of the file and its -wal; use another file with --db")


def _check_files(path: str, facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    sizes = {"db": os.path.getsize(path)}
    for suffix in DATA_SUFFIXES:
        if os.path.exists(path + suffix):
            sizes[suffix[1:]] = os.path.getsize(path + suffix)
    facts["files"] = sizes
    facts["locks"] = {suffix[1:]: _lock_state(path + suffix) for suffix in LOCK_SUFFIXES}
    is_writable = diagnose.is_writable(path)
    facts["access"] = "read and write" if is_writable else "read only"
    if not is_writable:
        cause = "the file or its folder belongs to another user, or the disk is mounted read-only"
        advice = "reading works; to write, change the owner or mode, or copy the file"
        findings.append(Finding("note", f"{path} cannot be written by this user", cause, advice))
    if sizes.get("wal", 0) > LARGE_WAL_BYTES:
        cause = "a reader keeps a transaction open, so the log cannot be moved into the file"
        advice = "stop long-running readers; the next write then shortens the log"
        findings.append(Finding("note", f"the write-ahead log is {format_size(sizes['wal'])}", cause, advice))
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < MIN_FREE_BYTES:
        advice = "free some space, or run `callslip admin prune --keep 30d`"
        findings.append(Finding("problem", f"{format_size(free)} free on the disk", "the disk is nearly full", advice))
    return findings


def _lock_state(path: str) -> str:
    """Return whether a lock file exists, and whether a writer holds it now."""
    if not os.path.exists(path):
        return "absent"
    if fcntl is None:
        return "present"
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


def _check_schema(facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    schema = facts.get("schema")
    if schema and schema["oldestReader"] > schema["newest"]:
        what = f"schema {schema['version']} needs a callslip that supports schema {schema['oldestReader']}"
        findings.append(Finding("problem", what, "a newer callslip wrote the file", "upgrade callslip"))
    elif schema and schema["version"] < schema["newest"]:
        what = f"the file has schema {schema['version']}, this callslip writes schema {schema['newest']}"
        advice = "nothing: the next command that writes migrates the file"
        findings.append(Finding("note", what, "an older callslip wrote the file", advice))
    ahead_s = facts.get("newest", 0) / 1000 - time.time()
    if ahead_s > MAX_CLOCK_SKEW_S:
        what = f"the newest event is {format_span(ahead_s)} in the future"
        advice = "set the clock; leases and deadlines depend on it"
        findings.append(Finding("problem", what, "the clock of this machine or of another writer is wrong", advice))
    return findings


def _check_calls(work: OpenWork, facts: Facts, settings: Settings) -> list[Finding]:
    queues = Queues([record for record in work.calls if record.client], work.failed_commands, work.workers, work.now)
    facts["open"] = [_call_facts(record, work) for record in work.calls]
    facts["approvals"] = [_approval_facts(record) for record in work.approvals]
    facts["commands"] = queues.counts()
    facts["executors"] = queues.workers
    is_read_only = facts["access"] == "read only"
    findings = [_dead_owner(record, work, is_read_only) for record in work.calls if not _is_alive(record, work)]
    findings += [_pending_approval(record, work.now) for record in work.approvals]
    return findings + check_commands(queues, settings)


def _call_facts(record: CallRecord, work: OpenWork) -> Facts:
    return {
        "call": record.id,
        "session": record.session,
        "state": record.state,
        "tool": record.tool,
        "createdAt": record.created_at,
        "owner": _describe_owner(record, work),
        "alive": _is_alive(record, work),
    }


def _approval_facts(record: ApprovalRecord) -> Facts:
    return {
        "approval": record.id,
        "call": record.call,
        "session": record.session,
        "description": record.description,
        "createdAt": record.created_at,
        "expiresAt": record.expires_at,
        "answerAt": record.answer_at,
    }


def _is_alive(record: CallRecord, work: OpenWork) -> bool:
    if not record.owner:
        return not record.lease or record.lease > work.now
    if is_here(record.owner):
        return not is_dead(record.owner)
    return record.owner in work.owners and work.owners[record.owner].until > work.now


def _describe_owner(record: CallRecord, work: OpenWork) -> str:
    if not record.owner:
        return f"no owner; its lease ends {format_age(record.lease)}" if record.lease else "no owner"
    pid = record.owner.partition(" ")[2].partition(" ")[0]
    if is_here(record.owner):
        return f"process {pid}, {'gone' if is_dead(record.owner) else 'alive'}"
    lease = work.owners[record.owner].until if record.owner in work.owners else 0
    return f"process {pid} on another machine or in another container, lease ends {format_age(lease)}"


def _dead_owner(record: CallRecord, work: OpenWork, is_read_only: bool) -> Finding:
    what = f"call {record.id} is {call_state_name(record.state)}, but {_describe_owner(record, work)}"
    cause = "its process ended without closing the ledger" if record.owner else "its lease was not renewed"
    effect = "gives it to another worker" if record.client and record.idempotent else "ends it as lost"
    advice = f"any command that opens the ledger {effect} within seconds (`callslip ls`)"
    if is_read_only:
        advice = "it stays open until a user who may write opens the ledger"
    return Finding("note", what, cause, advice)


def _pending_approval(record: ApprovalRecord, now: int) -> Finding:
    what = f"approval {record.id} is pending: {record.description or record.call}"
    if record.expires_at and record.expires_at < now:
        return Finding("note", what, "it has expired while no process had the ledger open", "it will be refused soon")
    if record.answer_at:
        return Finding("note", what, "not answered yet", f"answer it in {record.answer_at}")
    return Finding("note", what, "not answered yet", f"`callslip approve {record.id}` or `callslip deny {record.id}`")
