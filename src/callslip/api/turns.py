"""Start turns that this process answers, and cancel them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from msgspec import UNSET

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.find import list_calls
from callslip.api.sessions import find_event_by_key, read_rows, write_or_create
from callslip.errors import ConflictError, NotFoundError
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import WriteContext, write_events
from callslip.model.events import Draft, Event, MessageUser, TurnEnded, TurnStarted, decode_event
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import SessionRecord
from callslip.rules.lifecycle import OPEN_STATES
from callslip.store.unit_of_work import UnitOfWork

NEWEST_EVENTS = 64
"""Among how many of the newest events the end of a turn is looked for."""


async def start_turn(
    log: EventLog,
    session: str,
    prompt: str,
    *,
    message_id: str = "",
    content: Any = UNSET,
    key: str = "",
    source: str = SOURCE_PYTHON,
    access: Access = FULL_ACCESS,
) -> TurnStarted:
    """Start a turn with a user's prompt, superseding an open one. It ends when this process does.

    A session that does not exist is created for the caller. A second turn with the same `key` is a conflict.
    """
    start = Draft(TurnStarted(), key=key, mark=uuid4().hex if key else "")
    drafts = [start, Draft(MessageUser(text=prompt, message_id=message_id, content=content))]

    def write(before: Sequence[Draft]) -> Any:
        return log.append(session, [*before, *drafts], source=source, owner=log.owner)

    return _started(await write_or_create(log, session, write, access=access))


async def start_turn_if_idle(
    log: EventLog, session: str, prompt: str, *, source: str = SOURCE_PYTHON, access: Access = FULL_ACCESS
) -> TurnStarted:
    """Start a turn in an existing session; raise ConflictError while another turn is open."""
    await access.require(session, "write")

    def write(unit: UnitOfWork, drafts: list[Draft], context: WriteContext) -> list[Event]:
        if _open_turn(unit, session):
            raise ConflictError("a turn is in progress in this session: wait for its end, or stop it")
        return write_events(unit, session, drafts, context)

    drafts = [TurnStarted(), MessageUser(text=prompt)]
    return _started(await log.transact_drafts(session, drafts, write, source=source, owner=log.owner, strict=False))


def _started(events: list[Event]) -> TurnStarted:
    return next(event for event in events if isinstance(event, TurnStarted))


def _open_turn(unit: UnitOfWork, session: str) -> str:
    record = unit.session(session)
    if record is None:
        raise NotFoundError(f"no session {session!r}")
    return record.turn


async def cancel_turn(
    log: EventLog, session: str, *, by: str = "", source: str = SOURCE_PYTHON, access: Access = FULL_ACCESS
) -> bool:
    """Cancel the open turn and its open calls. Return False if no turn is open."""
    by = await access.require(session, "write") or by

    def write(unit: UnitOfWork, drafts: list[Draft], context: WriteContext) -> bool:
        is_open = bool(_open_turn(unit, session))
        if is_open:
            write_events(unit, session, drafts, context)
        return is_open

    end = TurnEnded(reason="cancelled", detail=f"stopped by {by}" if by else "")
    return await log.transact_drafts(session, [end], write, source=source, strict=False)


async def find_turn_end(log: EventLog, session: str, turn: str, seq: int) -> TurnEnded | None:
    """Return the event that ended a turn, if it is one of the newest events up to `seq`."""
    rows = await read_rows(log, session, max(0, seq - NEWEST_EVENTS), NEWEST_EVENTS)
    events = [decode_event(body) for _, body in rows]
    ends = [event for event in events if isinstance(event, TurnEnded) and event.verdict == "applied"]
    return next((event for event in reversed(ends) if event.turn == turn), None)


async def find_running_turn(log: EventLog, record: SessionRecord) -> str:
    """Return the open turn, or one that has ended and still has open calls, or ""."""
    if record.turn:
        return record.turn
    page = await list_calls(log, session=record.name, states=sorted(OPEN_STATES), limit=100)
    return next((call.turn for call in page.items if call.scope == "turn" and call.turn), "")


async def find_turn_by_key(log: EventLog, session: str, key: str) -> str:
    """Return the turn that was started under an idempotency key, or ""."""
    event = await find_event_by_key(log, session, key) if key else None
    return event.turn if isinstance(event, TurnStarted) else ""
