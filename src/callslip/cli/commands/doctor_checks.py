"""The checks of `callslip doctor`: files or access to a server, schema, open calls and their owners."""

from __future__ import annotations

import os
import platform
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
from callslip.errors import CallslipError, NotFoundError, StoreError, UnsupportedVersionError
from callslip.hooks.folder import SPOOL, check_folder, count_spooled, describe_spooled, hook_folder
from callslip.hooks.script import MAX_SPOOL_FILES
from callslip.hooks.server import is_served
from callslip.ledger.liveness import is_dead, is_here
from callslip.model.database_url import mask_password
from callslip.model.display import call_state_name, format_size
from callslip.model.records import ApprovalRecord, CallRecord
from callslip.settings import Settings

Facts = dict[str, Any]
READ_AND_WRITE, READ_ONLY = "read and write", "read only"
LARGE_WAL_BYTES = 64 * 2**20
MIN_FREE_BYTES = 200 * 2**20
MAX_CLOCK_SKEW_S = 60
MAX_USED_CONNECTIONS = 0.9
"""The share of a server's connections beyond which a process may not get one."""


async def examine(location: LedgerLocation) -> tuple[Facts, list[Finding]]:
    """Return the facts about a ledger and what is wrong with it, without changing it."""
    library, version = diagnose.database_version(location.url)
    versions = {"callslip": __version__, library: version, "python": platform.python_version()}
    facts: Facts = {"path": location.path, "url": mask_password(location.url), "saidBy": location.origin}
    facts["versions"] = versions
    running = running_server(location)
    settings = running.settings if running else Settings()
    facts["settings"] = msgspec.to_builtins(settings)
    facts |= diagnose.read_file_facts(location.url)
    findings: list[Finding] = _check_hooks(location, facts)
    if not facts["exists"]:
        return facts, [_missing(location), *findings]
    if location.path:
        facts["access"] = READ_AND_WRITE if await diagnose.is_writable(location.url) else READ_ONLY
        findings += _check_files(location.path, facts)
    try:
        read = await diagnose.read_facts(location.url)
        versions |= read.pop("versions", {})
        facts |= read
        if location.is_server:
            findings += _check_server_access(location, facts)
            findings += _check_server(facts.get("database"))
        if facts["schema"]["version"] >= facts["schema"]["newest"]:
            findings += _check_calls(await diagnose.read_open_work(location.url), facts, settings)
    except NotFoundError:
        facts["exists"] = False
        return facts, [_missing(location), *findings]
    except CallslipError as error:
        findings.append(_unreadable(error, location))
    return facts, findings + _check_schema(facts, "database" if location.is_server else "file")


def _check_hooks(location: LedgerLocation, facts: Facts) -> list[Finding]:
    """Look at the folder through which hooks of agents reach the ledger, if there is one."""
    folder = hook_folder(location)
    if location.is_in_memory or not os.path.isdir(folder):
        return []
    try:
        check_folder(folder)
        check_folder(folder / SPOOL)
        waiting = count_spooled(folder)
    except (StoreError, OSError) as error:
        cause = "its mode or owner was changed, so hooks store nothing"
        return [
            Finding("problem", f"hooks cannot be recorded: {error}", cause, f"delete {folder}; a server creates it")
        ]
    served = is_served(folder)
    facts["hooks"] = {"folder": str(folder), "served": served, "waiting": waiting}
    findings: list[Finding] = []
    if waiting and not served:
        cause = "no server runs for this ledger, so hooks store what they record"
        advice = "run `callslip up`, or any command that reads the ledger"
        if not facts["exists"]:
            advice = "run `callslip up`, which creates the ledger"
        findings.append(Finding("note", describe_spooled(waiting), cause, advice))
    if waiting >= MAX_SPOOL_FILES:
        cause = "the folder is full, so hooks leave new messages out; session files still have most of it"
        findings.append(Finding("problem", f"{folder / SPOOL} is full", cause, "run `callslip up`"))
    return findings


def _missing(location: LedgerLocation) -> Finding:
    if location.is_server:
        cause = "no ledger has been created in this database"
        advice = "name another database with --db or CALLSLIP_DB; a command that writes creates the ledger"
        return Finding("problem", f"no ledger in {location.display_name}", cause, advice)
    if os.path.isdir(location.path):
        return Finding("problem", f"{location.path} is a folder", f"set by {location.origin}", "name a file in it")
    cause = "no ledger has been created at this path"
    what = f"no ledger at {location.path}" if location.path else "the ledger is in memory"
    return Finding("problem", what, cause, "name the file with --db")


def _unreadable(error: CallslipError, location: LedgerLocation) -> Finding:
    noun = "database" if location.is_server else "file"
    if isinstance(error, UnsupportedVersionError):
        return Finding("problem", str(error), f"a newer callslip wrote the {noun}", "upgrade callslip")
    if location.is_server:
        cause = "the server does not run, refuses this user, or has no such database"
        return Finding("problem", str(error), cause, "check the URL, the server and the rights of the user")
    cause = "the file belongs to another program, is truncated, or its disk failed"
    return Finding("problem", str(error), cause, "keep a copy of the file and its -wal; use another file with --db")


def _check_server_access(location: LedgerLocation, facts: Facts) -> list[Finding]:
    if facts.setdefault("access", READ_AND_WRITE) != READ_ONLY:
        return []
    cause = "the server is a standby or allows only reads, or the user lacks rights"
    advice = "reading works; to write, name the primary server, or grant the rights"
    return [Finding("note", f"{location.display_name} cannot be written by this user", cause, advice)]


def _check_server(database: Facts | None) -> list[Finding]:
    """Return what is wrong with the settings of a server, its connections and the clock of this machine."""
    if database is None:
        return []
    findings: list[Finding] = []
    connections = database["connections"]
    unsafe = [name for name, value in database["settings"].items() if value == "off"]
    if unsafe:
        what = f"the server has {' and '.join(unsafe)} off"
        advice = "turn this on in its settings, unless the data may be lost"
        cause = "the server is configured for speed: a crash of it may lose or damage acknowledged events"
        findings.append(Finding("problem", what, cause, advice))
    if connections["used"] > MAX_USED_CONNECTIONS * connections["max"]:
        what = f"{connections['used']} of {connections['max']} connections of the server are in use"
        cause = "more processes are connected than max_connections of the server allows for"
        advice = "raise max_connections, use a pooler, or lower read_connections and write_connections"
        findings.append(Finding("problem", what, cause, advice))
    skew_s = database["clock"] / 1000 - time.time()
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        order = "behind" if skew_s > 0 else "ahead of"
        what = f"the clock of this machine is {format_span(abs(skew_s))} {order} that of the server"
        cause = "leases and deadlines use the clock of the server, so only displayed ages are wrong"
        findings.append(Finding("note", what, cause, "set the clock of this machine, or that of the server"))
    return findings


def _check_files(path: str, facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    if facts["access"] == READ_ONLY:
        cause = "the file or its folder belongs to another user, or the disk is mounted read-only"
        advice = "reading works; to write, change the owner or mode, or copy the file"
        findings.append(Finding("note", f"{path} cannot be written by this user", cause, advice))
    wal_bytes, free = facts["files"].get("wal", 0), facts["freeBytes"]
    if wal_bytes > LARGE_WAL_BYTES:
        cause = "a reader keeps a transaction open, so the log cannot be moved into the file"
        advice = "stop long-running readers; the next write then shortens the log"
        findings.append(Finding("note", f"the write-ahead log is {format_size(wal_bytes)}", cause, advice))
    if free < MIN_FREE_BYTES:
        advice = "free some space, or run `callslip admin prune --keep 30d`"
        findings.append(Finding("problem", f"{format_size(free)} free on the disk", "the disk is nearly full", advice))
    return findings


def _check_schema(facts: Facts, noun: str) -> list[Finding]:
    findings: list[Finding] = []
    schema = facts.get("schema")
    if schema and schema["oldestReader"] > schema["newest"]:
        what = f"schema {schema['version']} needs a callslip that supports schema {schema['oldestReader']}"
        findings.append(Finding("problem", what, f"a newer callslip wrote the {noun}", "upgrade callslip"))
    elif schema and schema["version"] < schema["newest"]:
        what = f"the {noun} has schema {schema['version']}, this callslip writes schema {schema['newest']}"
        advice = f"nothing: the next command that writes migrates the {noun}"
        findings.append(Finding("note", what, f"an older callslip wrote the {noun}", advice))
    now = facts["database"]["clock"] / 1000 if "database" in facts else time.time()
    ahead_s = facts.get("newest", 0) / 1000 - now
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
    is_read_only = facts["access"] == READ_ONLY
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
