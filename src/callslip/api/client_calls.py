"""Calls that a chat's client runs: its browser or app, instead of a worker."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from callslip.errors import CallEndedError, StoreError
from callslip.ledger.event_log import EventLog
from callslip.ledger.session_log import SessionLog
from callslip.model.events import CallCompleted, CallEvent, CallFailed, CallStarted
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal

CLIENT_WORKER = "client"
"""The worker of calls that the client runs."""


async def run_on_client(log: SessionLog, session: str, tool: str, input: Any = None, *, title: str = "") -> Any:
    """Start a call for the client to run, wait for its end, and return its output, or raise CallEndedError."""
    start = CallStarted(call="new:1", tool_name=tool, input=input, title=title, worker=CLIENT_WORKER)
    (started,) = await log.append(session, [start], source=SOURCE_PYTHON, owner=log.owner, strict=True)
    assert isinstance(started, CallStarted)
    async with aclosing(log.follow(session, started.seq)) as events:
        async for event in events:
            if not isinstance(event, CallEvent) or event.call != started.call or event.verdict != "applied":
                continue
            if isinstance(event, CallCompleted):
                return event.output
            if is_terminal(event):
                record = await log.get_call(started.call)
                raise CallEndedError(record.state if record else "lost", record.reason if record else "")
    raise StoreError("the ledger was closed")


async def find_client_call(log: EventLog, session: str, id: str) -> CallRecord | None:
    """Return a call that the client runs, by its id or the id that the client knows. It may not finish other calls."""
    matches = [record for record in await log.store.alias(id, session) if record.client_call_id == id]
    record = matches[0] if matches else await log.get_call(id)
    is_own = record is not None and record.session == session and record.worker == CLIENT_WORKER
    return record if is_own else None


async def finish_client_call(
    log: EventLog, session: str, id: str, *, output: Any = None, error: str = "", source: str = SOURCE_PYTHON
) -> None:
    """Complete or fail a call that the client has run. Ignore one that has ended or is not the client's."""
    record = await find_client_call(log, session, id)
    if record is None or record.state in TERMINAL_STATES:
        return
    failed = CallFailed(call=record.id, error=error, reason=error)
    await log.append(session, [failed if error else CallCompleted(call=record.id, output=output)], source=source)
