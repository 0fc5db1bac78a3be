"""Commands as the outside sees them: how one stands (S3.2), and what a worker is given. The names are the seed's."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model.events import Event
from callslip.model.records import CallRecord
from callslip.model.state_names import command_state_name
from callslip.rules.lifecycle import TERMINAL_STATES


class Command(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a command stands. `position` 1 is the next to be taken up; of a long queue only the front is counted."""

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
    """A command in the hands of a worker. The `fence` must come with whatever the worker says of it."""

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
    """A time as RFC 3339 has it, to the millisecond."""
    return f"{_second(ms // 1000)}.{ms % 1000:03}Z"


@lru_cache(64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def command_view(log: EventLog, row: CallRecord, ending: Event | None = None) -> Command:
    """How a command stands, with what came of it. `ending` is the event that ended it, if that is at hand."""
    made = Command(
        correlation_id=row.client_call_id or row.id,
        status=command_state_name(row.state, bool(row.started_at)),
        created_at=moment(row.created_at),
        final=row.state in TERMINAL_STATES,
        action=row.tool,
        client=row.client,
        session=row.session,
    )
    if row.state in TERMINAL_STATES:
        made.completed_at = moment(row.ended_at)
        await _outcome(log, row, made, ending or await log.ending_event(row))
    return made


async def _outcome(log: EventLog, row: CallRecord, made: Command, ending: Event | None) -> None:
    if row.state == "completed":
        made.result = None if ending is None else await _output(log, ending)
    else:
        made.error = _error(getattr(ending, "error", UNSET)) or row.reason or row.state


async def _output(log: EventLog, ending: Any) -> Any:
    """The whole of it: what is too large for the log is kept beside it."""
    blob = getattr(ending, "blob", None)
    if blob is None:
        output = getattr(ending, "output", UNSET)
        return None if output is UNSET else output
    data = await log.blob(blob.hash)
    return msgspec.json.decode(data) if blob.media == "application/json" else data.decode("utf-8", "replace")


def _error(error: Any) -> str:
    if error is UNSET or error is None:
        return ""
    return error if isinstance(error, str) else codec.encode(error).decode()
