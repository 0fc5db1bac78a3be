"""Keep calls alive that no process owns: their reporter renews a lease."""

from __future__ import annotations

from callslip.api.access import FULL_ACCESS, Access
from callslip.errors import ConflictError, InvalidInputError, NotFoundError
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import WriteOperation
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.store.protocol import Touched
from callslip.store.unit_of_work import UnitOfWork

MAX_LEASE_S = 365 * 24 * 60 * 60


async def renew_lease(
    log: EventLog, record: CallRecord, lease: float | None = None, *, access: Access = FULL_ACCESS
) -> int:
    """Renew the lease of an open call that no process owns. Return its end in ms since the epoch."""
    await access.require(record.session, "write")
    lease_s = log.settings.ingest_lease if lease is None else lease
    if not 0 < lease_s <= MAX_LEASE_S:
        raise InvalidInputError("lease", f"must be more than 0 s, got {lease_s:g}", MAX_LEASE_S)
    context = log.write_context(source=SOURCE_PYTHON)

    def renew(unit: UnitOfWork) -> int:
        current = unit.call(record.id)
        if current is None:
            raise NotFoundError(f"no call {record.id!r}")
        if current.state in TERMINAL_STATES:
            raise ConflictError(f"call {current.id} has ended: {current.state}", current)
        if current.owner:
            raise ConflictError(f"call {current.id} is kept alive by the process that runs it", current)
        return WriteOperation(unit, current.session, context).hold(current, lease_s)

    return await log.store.transact(renew, Touched((record.session,), calls=(record.id,)))
