"""Project events to the records of sessions, calls, approvals and aliases.

The ledger does this in the transaction that appends the event. `verify` repeats it for the whole log and compares.
Every text that is not an id goes through `record_text`, so that no record contains NUL.
"""

from __future__ import annotations

from copy import copy
from typing import Protocol

from msgspec import UNSET

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event
from callslip.model.names import SUBAGENT_NAMESPACE, TRANSCRIPT_SOURCES, UNNAMED_NAMESPACE
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord, record_text
from callslip.rules.lifecycle import (
    ANSWER_STATES,
    TERMINAL_STATES,
    client_call_id,
    deadline_of,
    ending_mark,
    next_state,
    opening_mark,
    scope_of,
    strip_mcp_prefix,
)
from callslip.rules.unnamed_calls import UNNAMED_CALLS


class Tables(Protocol):
    """The tables that a projection reads and writes."""

    def call(self, call: str) -> CallRecord | None: ...
    def put_call(self, row: CallRecord) -> None: ...
    def approval(self, approval: str) -> ApprovalRecord | None: ...
    def put_approval(self, row: ApprovalRecord) -> None: ...
    def put_alias(self, session: str, ns: str, identity: str, call: str) -> None: ...


TEXT_EVENTS = (ev.MessageDelta, ev.ThoughtDelta, ev.MessageUser)
MESSAGE_NAMESPACE = "message"
"""The alias namespace of message ids, which distinguishes a replay from new messages."""
TRANSCRIPT_NAMESPACE = "transcript"
"""The alias namespace of the message ids and turns that were read from the agent's session file."""
TRANSCRIPT_READ = "session"
"""The alias of a session whose session file was read."""
CONTINUED_NAMESPACE = "continued"
"""The alias namespace of message ids that were recorded live until the session file continued them."""
LIVE_NAMESPACE = "live"
LIVE_PROMPT = "prompt"
"""The alias of a session with a prompt that was recorded live, without an id that the session file could repeat."""
TURN_NAMESPACE = "turn"
"""The alias namespace of turn names, which keeps them unique."""
SESSION_NAMESPACE = "session"
"""The alias namespace of the agent's own id of a session, by which its files are found again."""


def apply_event(tables: Tables, session: SessionRecord, event: Event) -> None:
    """Update the records for an event that is about to be appended."""
    session.last_seq = event.seq
    if event.verdict == "applied":
        if isinstance(event, TEXT_EVENTS):
            _apply_text(tables, session, event)
        elif isinstance(event, ev.CallEvent):
            if isinstance(event, ev.CallReported):
                _name_sub_agent(tables, session, event)
            else:
                _apply_call_event(tables, session, event)
        elif isinstance(event, ev.TurnStarted):
            session.turn = event.turn
            session.turns += 1
            tables.put_alias(session.name, TURN_NAMESPACE, event.turn, "")
            if event.source in TRANSCRIPT_SOURCES:
                tables.put_alias(session.name, TRANSCRIPT_NAMESPACE, event.turn, "")
        elif isinstance(event, ev.TurnEnded):
            session.turn = ""
        elif isinstance(event, ev.SessionInfo):
            _apply_info(tables, session, event)
        elif isinstance(event, ev.UsageReported) and event.id and event.source in TRANSCRIPT_SOURCES:
            tables.put_alias(session.name, TRANSCRIPT_NAMESPACE, event.id, "")
    elif isinstance(event, ev.CallEvent):
        _name_sub_agent(tables, session, event)
        if event.verdict == "witness" and any(alias.ns == UNNAMED_NAMESPACE for alias in event.aliases):
            _put_aliases(tables, session, event)  # The session file tells the id of a call.
    elif isinstance(event, ev.MessageUser) and not event.message_id and event.source not in TRANSCRIPT_SOURCES:
        tables.put_alias(session.name, LIVE_NAMESPACE, LIVE_PROMPT, "")


def _name_sub_agent(tables: Tables, session: SessionRecord, event: ev.CallEvent) -> None:
    """Add the id of the sub-agent that a call started, which only the session file has. It changes no call."""
    if event.call and event.source in TRANSCRIPT_SOURCES:
        for alias in event.aliases:
            if alias.ns == SUBAGENT_NAMESPACE:
                tables.put_alias(session.name, alias.ns, alias.id, event.call)


def _apply_text(
    tables: Tables, session: SessionRecord, event: ev.MessageDelta | ev.ThoughtDelta | ev.MessageUser
) -> None:
    if event.message_id and event.source in TRANSCRIPT_SOURCES:
        tables.put_alias(session.name, TRANSCRIPT_NAMESPACE, event.message_id, "")
        if event.message_id == session.message:
            tables.put_alias(session.name, CONTINUED_NAMESPACE, event.message_id, "")
            session.message = ""
    elif event.message_id and event.message_id != session.message:
        if not event.parent:
            session.message = event.message_id
        tables.put_alias(session.name, MESSAGE_NAMESPACE, event.message_id, "")
    elif isinstance(event, ev.MessageUser) and not event.message_id:
        tables.put_alias(session.name, LIVE_NAMESPACE, LIVE_PROMPT, "")


def _apply_info(tables: Tables, session: SessionRecord, event: ev.SessionInfo) -> None:
    if event.title is not UNSET:
        session.title = record_text(str(event.title or ""))
    if event.labels is not UNSET:
        session.labels = event.labels
    if event.owner is not UNSET:
        session.owner = session.owner or event.owner
    if event.foreign_id is not UNSET and event.foreign_id:
        tables.put_alias(session.name, SESSION_NAMESPACE, event.foreign_id, "")
        if event.source in TRANSCRIPT_SOURCES:
            tables.put_alias(session.name, TRANSCRIPT_NAMESPACE, TRANSCRIPT_READ, "")


def input_mark(value: object) -> str:
    """Return a digest of the arguments that an approval is for."""
    return "" if value is UNSET or value is None else codec.digest(codec.encode(value))


def _apply_call_event(tables: Tables, session: SessionRecord, event: ev.CallEvent) -> None:
    _put_aliases(tables, session, event)
    existing = tables.call(event.call)
    row = copy(existing) if existing is not None else _new_call(session, event)
    state = next_state(row.state, event)
    if state is None:
        return
    pending = row.approval
    _update_call(row, event)
    if isinstance(event, ev.ApprovalRequested):
        _close_approval(tables, pending, "superseded", event)
        tables.put_approval(_new_approval(row, event))
    elif isinstance(event, ev.ApprovalAnswer):
        _close_approval(tables, event.approval, ANSWER_STATES[type(event)], event)
    elif state != "awaiting_approval":
        _close_approval(tables, pending, "moot", event)
    row.approval = event.approval if isinstance(event, ev.ApprovalRequested) else row.approval
    if state != "awaiting_approval":
        row.approval = ""
    if state == "running" and row.state != "running":
        row.started_at = event.at
    if state in TERMINAL_STATES:
        row.ended_at, row.end = event.at, event.seq
    row.state = state
    tables.put_call(row)


def _put_aliases(tables: Tables, session: SessionRecord, event: ev.CallEvent) -> None:
    """Let a call be found by its aliases. The place of one without an id is free again when its id is known."""
    for alias in event.aliases:
        is_place = alias.ns == UNNAMED_NAMESPACE
        call = "" if is_place and event.source in TRANSCRIPT_SOURCES else event.call
        tables.put_alias(session.name, alias.ns, alias.id, call)
        if is_place and call:
            tables.put_alias(session.name, UNNAMED_CALLS.ns, UNNAMED_CALLS.id, call)


def _new_call(session: SessionRecord, event: ev.CallEvent) -> CallRecord:
    session.calls += 1
    return CallRecord(
        id=event.call,
        session=session.name,
        entry=event.seq,
        client_call_id=client_call_id(event, event.call),
        source=event.source,
        turn=session.turn,
        opening=opening_mark(event),
        created_at=event.at,
    )


def _update_call(row: CallRecord, event: ev.CallEvent) -> None:
    row.deadline = deadline_of(row, event)
    if isinstance(event, ev.CallUpdate):
        if isinstance(event.tool_name, str):
            row.tool = record_text(strip_mcp_prefix(event.tool_name))
        if event.title is not UNSET:
            row.title = record_text(str(event.title or ""))
        if event.kind is not UNSET:
            row.kind = record_text(str(event.kind or ""))
        if event.input is not UNSET:
            row.input_mark = input_mark(event.input)
    if isinstance(event, ev.CallProposed):
        row.iteration = event.iteration if event.iteration >= 0 else row.iteration
        row.index = event.index if event.index >= 0 else row.index
        row.scope = scope_of(row.state, row.scope, event)
        row.idempotent = event.idempotent or row.idempotent
        if row.state == "none":
            row.client, row.timeout = record_text(event.client), event.timeout
    elif isinstance(event, ev.CallStarted):
        row.attempt = event.attempt or row.attempt
        row.worker = record_text(event.worker) or row.worker
    elif isinstance(event, ev.CallEnd):
        row.ending = ending_mark(event)
        row.reason = record_text(event.reason)
    elif isinstance(event, ev.ApprovalGranted):
        if event.input is not UNSET:
            row.input_mark = input_mark(event.input)
        if event.title is not UNSET:
            row.title = record_text(str(event.title or ""))
    elif isinstance(event, ev.ApprovalAnswer):
        row.reason = record_text(event.reason)


def _new_approval(row: CallRecord, event: ev.ApprovalRequested) -> ApprovalRecord:
    return ApprovalRecord(
        id=event.approval,
        session=row.session,
        call=row.id,
        entry=event.seq,
        input_mark=row.input_mark,
        attempt=row.attempt,
        description=record_text(event.description) or row.title,
        options=event.options,
        expires_at=event.expires_at,
        created_at=event.at,
        answer_at=record_text(event.answer_at),
    )


def _close_approval(tables: Tables, approval: str, state: str, event: ev.CallEvent) -> None:
    existing = tables.approval(approval) if approval else None
    if existing is None or existing.state != "pending":
        return
    row = copy(existing)
    row.state, row.answer_at = state, ""
    row.answered_at = event.at
    if isinstance(event, ev.ApprovalAnswer):
        row.option, row.by, row.reason = map(record_text, (event.option, event.by, event.reason))
    tables.put_approval(row)
