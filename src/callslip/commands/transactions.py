"""Command steps inside the store's transaction: whether a queue has room, and which worker gets the next command.

Each step is an event like any other: `WriteOperation` writes it by the rules of `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callslip.errors import ConflictError, NotFoundError, QueueFullError, StaleClaimError
from callslip.ledger.write import WriteContext, WriteOperation
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES, is_held, opening_mark
from callslip.settings import Settings
from callslip.store.unit_of_work import UnitOfWork


class CommandRequest(msgspec.Struct, frozen=True):
    """A command to submit. The last of its drafts proposes it; `approval` has the request for approval, if any.

    `full_params` are its arguments if the draft has them without their secrets.
    """

    session: str
    queue: str
    drafts: Sequence[Draft]
    approval: Sequence[Draft] = ()
    full_params: bytes | None = None


def enqueue(unit: UnitOfWork, request: CommandRequest, context: WriteContext, settings: Settings) -> CallRecord:
    """Queue a command if there is room. Return the existing one if it was submitted before."""
    operation = WriteOperation(unit, request.session, context)
    draft = request.drafts[-1]
    if request.approval:  # The same command without a request for approval is a different one.
        draft = msgspec.structs.replace(draft, mark="ask " + opening_mark(_proposal(draft.event)))
    if draft.key and unit.key(request.session, draft.key) is not None:
        event = operation.run([*request.drafts[:-1], draft])[-1]
        return _check_same_secrets(unit, _record_of(unit, event), request)
    existing = _find_by_correlation_id(unit, request.session, _proposal(draft.event))
    if existing is not None:
        return _check_same_secrets(unit, existing, request)
    _make_room(unit, request.queue, context, settings)
    event = operation.run([*request.drafts[:-1], draft])[-1]
    operation.run(request.approval)
    record = _record_of(unit, event)
    if request.full_params is not None:
        unit.seal(record, request.full_params)
    return record


def _proposal(event: Event) -> ev.CallProposed:
    assert isinstance(event, ev.CallProposed)
    return event


def _find_by_correlation_id(unit: UnitOfWork, session: str, proposal: ev.CallProposed) -> CallRecord | None:
    """Find the command with the same correlation id, even if retention removed the key of its submission."""
    for alias in proposal.aliases:
        call = unit.alias(session, alias.ns, alias.id)
        existing = unit.call(call) if call else None
        if existing is not None and existing.opening != opening_mark(proposal):
            raise ConflictError(f"correlation id {alias.id!r} was used before for a different command", existing)
        if existing is not None:
            return existing
    return None


def _check_same_secrets(unit: UnitOfWork, record: CallRecord, request: CommandRequest) -> CallRecord:
    """Refuse a repeated submission that differs only in its secrets, while they are stored."""
    full_params = unit.sealed(record.id)
    if full_params is not None and full_params != request.full_params:
        raise ConflictError(f"command {record.id} was submitted before with other secrets", record)
    return record


def _record_of(unit: UnitOfWork, event: Event) -> CallRecord:
    record = unit.call(event.call) if isinstance(event, ev.CallEvent) else None
    if record is None:
        raise ConflictError("the command that this repeats was removed by retention")
    return record


def _make_room(unit: UnitOfWork, queue: str, context: WriteContext, settings: Settings) -> None:
    """Raise QueueFullError if a queue is full, or expire its oldest command if the settings say so."""
    while not unit.has_room(queue, settings.queue_limit):
        oldest = unit.oldest_pending(queue) if settings.queue_overflow == "expire_oldest" else None
        if oldest is None:
            raise QueueFullError(queue, settings.queue_limit)
        reason = "a newer command took its place in a full queue"
        WriteOperation(unit, oldest.session, context).run([Draft(ev.CallExpired(call=oldest.id, reason=reason))])


class ClaimedCommand(msgspec.Struct, frozen=True):
    """A command that was claimed for a worker, with its arguments. `full_params` include the secrets."""

    record: CallRecord
    proposal: ev.CallProposed | None
    full_params: bytes | None
    lease_until: int


def claim(
    unit: UnitOfWork, candidates: Sequence[str], worker: str, lease: float, context: WriteContext
) -> ClaimedCommand | None:
    """Claim the first of these commands that is still queued. The number of the attempt is its fence."""
    for call in candidates:
        record = unit.call(call)
        if record is None or record.state != "queued" or 0 < record.deadline <= unit.now:
            continue
        operation = WriteOperation(unit, record.session, context)
        operation.run([Draft(ev.CallStarted(call=call, attempt=record.attempt + 1, worker=worker))])
        lease_until = operation.hold(_get_command(unit, call), lease)
        event = unit.event(record.session, record.entry)
        proposal = event if isinstance(event, ev.CallProposed) else None
        return ClaimedCommand(_get_command(unit, call), proposal, unit.sealed(call), lease_until)
    return None


def renew_lease(unit: UnitOfWork, call: str, fence: int, lease: float, context: WriteContext) -> int:
    """Renew the lease of a claimed command, and return its end in ms since the epoch."""
    record = _get_held(unit, call, fence)
    return WriteOperation(unit, record.session, context).hold(record, lease)


def release(unit: UnitOfWork, call: str, fence: int, reason: str, context: WriteContext) -> None:
    """Queue a claimed command again."""
    record = _get_held(unit, call, fence)
    WriteOperation(unit, record.session, context).run([Draft(ev.CallRequeued(call=record.id, reason=reason))])


def _get_held(unit: UnitOfWork, call: str, fence: int) -> CallRecord:
    record = _get_command(unit, call)
    if record.state in TERMINAL_STATES:
        raise ConflictError(f"command {call} has ended: {record.state}", record)
    if not is_held(record, fence):
        raise stale(record)
    return record


def stale(record: CallRecord) -> StaleClaimError:
    """Return the error for a worker whose claim is not the current one."""
    if record.state == "awaiting_approval":
        return StaleClaimError(f"command {record.id} waits for approval and cannot be run yet", record)
    holder = f"is held with fence {record.attempt}" if record.state == "running" else "is queued and not claimed"
    return StaleClaimError(f"command {record.id} {holder}", record)


def _get_command(unit: UnitOfWork, call: str) -> CallRecord:
    record = unit.call(call)
    if record is None:
        raise NotFoundError(f"no command {call!r}")
    return record
