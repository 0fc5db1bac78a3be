"""Commands as callers see them, and as workers get them. The field names are part of the public JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model.events import CallUpdate, Event
from callslip.model.records import CallRecord
from callslip.model.state_names import command_state_name
from callslip.rules.call_content import output_blob, read_output
from callslip.rules.lifecycle import TERMINAL_STATES


class Command(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A command and its result. `position` 1 is the next to be claimed; it is counted only at the front of a queue."""

    correlation_id: str
    status: str
    created_at: str
    completed_at: str | UnsetType = UNSET
    result: Any = UNSET
    error: str | UnsetType = UNSET
    final: bool
    action: str = ""
    client: str = ""
    session: str = ""
    position: int | UnsetType = UNSET
    executor_seen_at: str | UnsetType | None = UNSET


class Claim(msgspec.Struct, kw_only=True):
    """A command that a worker has claimed. The worker sends its `fence` with each heartbeat and with the result."""

    call: str
    correlation_id: str
    session: str
    action: str
    params: Any
    client: str
    fence: int
    attempt: int
    idempotent: bool
    created_at: str
    expires_at: str | None
    lease_until: int


def moment(ms: int) -> str:
    """Format ms since the epoch as RFC 3339 with milliseconds."""
    return f"{_format_second(ms // 1000)}.{ms % 1000:03}Z"


@lru_cache(64)
def _format_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def command_view(log: EventLog, record: CallRecord, end: Event | None = None) -> Command:
    """Return a command with its result. `end` is the event that ended it, if the caller has it."""
    command = Command(
        correlation_id=record.client_call_id or record.id,
        status=command_state_name(record.state, bool(record.started_at)),
        created_at=moment(record.created_at),
        final=record.state in TERMINAL_STATES,
        action=record.tool,
        client=record.client,
        session=record.session,
    )
    if command.final:
        command.completed_at = moment(record.ended_at)
        end = end or await log.ending_event(record)
        if record.state == "completed":
            command.result = None if end is None else await _load_output(log, end)
        else:
            command.error = _error_text(getattr(end, "error", UNSET)) or record.reason or record.state
    return command


async def _load_output(log: EventLog, end: Event) -> Any:
    """Return the full output, also if it is stored as a blob."""
    blob, output = output_blob(end) if isinstance(end, CallUpdate) else None, getattr(end, "output", UNSET)
    if blob is not None:
        output = read_output(blob, await log.blob(blob.hash))
    return None if output is UNSET else output


def _error_text(error: Any) -> str:
    if error is UNSET or error is None:
        return ""
    return error if isinstance(error, str) else codec.encode(error).decode()
