"""What is decided about commands inside the store's transaction: whether one more may wait, who gets the next.

The steps themselves are events like all others, decided in `decide.py` by the rules of `lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callslip.errors import ConflictError, NotFoundError, QueueFullError, StaleClaimError
from callslip.ledger.write import WriteContext, WriteOperation
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES, holds, opening_mark
from callslip.settings import Settings
from callslip.store.unit_of_work import UnitOfWork


class CommandRequest(msgspec.Struct, frozen=True):
    """A command to be submitted: the last of its drafts proposes it, and what a person is asked about it.

    `whole` are its arguments as they were given, if the draft lacks their secrets.
    """

    session: str
    client: str
    drafts: Sequence[Draft]
    questions: Sequence[Draft] = ()
    whole: bytes | None = None


def enqueue(unit: UnitOfWork, order: CommandRequest, how: WriteContext, settings: Settings) -> CallRecord:
    """Queue a command, if there is room; one that was submitted before is what it has become."""
    writing = WriteOperation(unit, order.session, how)
    draft = _marked(order.drafts[-1], asks=bool(order.questions))
    if draft.key and unit.key(order.session, draft.key) is not None:
        return _same(unit, _row(unit, writing.run([*order.drafts[:-1], draft])[-1]), order)
    known = _by_name(unit, order.session, draft.event)
    if known is not None:
        return _same(unit, known, order)
    _make_room(unit, order.client, how, settings)
    done = writing.run([*order.drafts[:-1], draft])[-1]
    writing.run(order.questions)
    row = _row(unit, done)
    if order.whole is not None:
        unit.seal(row, order.whole)
    return row


def _marked(draft: Draft, *, asks: bool) -> Draft:
    """One that a person is to be asked about is not the same as one that nobody is asked about."""
    return msgspec.structs.replace(draft, mark="ask " + opening_mark(_proposal(draft.event))) if asks else draft


def _proposal(event: Event) -> ev.CallProposed:
    assert isinstance(event, ev.CallProposed)
    return event


def _by_name(unit: UnitOfWork, session: str, event: Event) -> CallRecord | None:
    """The command that bears the same correlation id: also where retention took away the key of its submission."""
    proposal = _proposal(event)
    for alias in proposal.aliases:
        call = unit.alias(session, alias.ns, alias.id)
        known = unit.call(call) if call else None
        if known is not None and known.opening != opening_mark(proposal):
            raise ConflictError(f"correlation id {alias.id!r} was used before for something else", known)
        if known is not None:
            return known
    return None


def _same(unit: UnitOfWork, row: CallRecord, order: CommandRequest) -> CallRecord:
    """Two that differ in nothing but their secrets are not the same, as long as those are known."""
    kept = unit.sealed(row.id)
    if kept is not None and kept != order.whole:
        raise ConflictError(f"command {row.id} was submitted before with other secrets", row)
    return row


def _row(unit: UnitOfWork, event: Event) -> CallRecord:
    row = unit.call(event.call) if isinstance(event, ev.CallEvent) else None
    if row is None:
        raise ConflictError("the command that this repeats is no longer kept")
    return row


def _make_room(unit: UnitOfWork, client: str, how: WriteContext, settings: Settings) -> None:
    """S3.7: a full queue refuses, or lets go of what has waited longest."""
    while unit.waiting(client) >= settings.queue_limit:
        oldest = unit.oldest_waiting(client) if settings.queue_overflow == "expire_oldest" else None
        if oldest is None:
            raise QueueFullError(client, settings.queue_limit)
        reason = "a newer command took its place in a full queue"
        WriteOperation(unit, oldest.session, how).run([Draft(ev.CallExpired(call=oldest.id, reason=reason))])


class ClaimedCommand(msgspec.Struct, frozen=True):
    """A command that a worker was given, with all that says what is to be done."""

    row: CallRecord
    proposal: ev.CallProposed | None
    whole: bytes | None
    until: int


def claim(
    unit: UnitOfWork, candidates: Sequence[str], worker: str, lease: float, how: WriteContext
) -> ClaimedCommand | None:
    """Give a worker the first of these commands that is still to be had. Its attempt is the fence (S3.6)."""
    for identity in candidates:
        row = unit.call(identity)
        if row is None or row.state != "queued" or 0 < row.deadline <= unit.now:
            continue
        writing = WriteOperation(unit, row.session, how)
        writing.run([Draft(ev.CallStarted(call=row.id, attempt=row.attempt + 1, worker=worker))])
        until = writing.hold(_known(unit, row.id), lease)
        proposal = unit.event(row.session, row.entry)
        told = proposal if isinstance(proposal, ev.CallProposed) else None
        return ClaimedCommand(_known(unit, row.id), told, unit.sealed(row.id), until)
    return None


def renew_lease(unit: UnitOfWork, identity: str, fence: int, lease: float, how: WriteContext) -> int:
    """A worker goes on with its command. Until when it holds it."""
    row = _held(unit, identity, fence)
    return WriteOperation(unit, row.session, how).hold(row, lease)


def release(unit: UnitOfWork, identity: str, fence: int, reason: str, how: WriteContext) -> None:
    """A worker gives its command back: it is queued again, for whoever asks next."""
    row = _held(unit, identity, fence)
    WriteOperation(unit, row.session, how).run([Draft(ev.CallRequeued(call=row.id, reason=reason))])


def _held(unit: UnitOfWork, identity: str, fence: int) -> CallRecord:
    """A command that this claim of it holds."""
    row = _known(unit, identity)
    if row.state in TERMINAL_STATES:
        raise ConflictError(f"command {identity} has ended: {row.state}", row)
    if not holds(row, fence):
        raise stale(row)
    return row


def stale(row: CallRecord) -> StaleClaimError:
    """Why a worker's word does not count."""
    if row.state == "awaiting_approval":
        return StaleClaimError(f"command {row.id} waits for approval: nobody may run it yet", row)
    holds = f"is held with fence {row.attempt}" if row.state == "running" else "is in the queue, held by nobody"
    return StaleClaimError(f"command {row.id} {holds}", row)


def _known(unit: UnitOfWork, identity: str) -> CallRecord:
    row = unit.call(identity)
    if row is None:
        raise NotFoundError(f"no command {identity!r}")
    return row
