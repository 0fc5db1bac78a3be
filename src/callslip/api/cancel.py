"""Cancel a call. Cancelling is idempotent; a call that ended in another state raises ConflictError."""

from __future__ import annotations

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.find import find_call
from callslip.errors import ConflictError
from callslip.ledger.event_log import EventLog
from callslip.model.events import CallCancelled
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES


async def cancel_call(
    log: EventLog,
    id_or_prefix: str,
    *,
    by: str = "",
    reason: str = "",
    session: str = "",
    source: str = SOURCE_PYTHON,
    access: Access = FULL_ACCESS,
) -> CallRecord:
    """Cancel an open call and return it. `by` is overridden by the name that `access` knows."""
    record = await find_call(log, id_or_prefix, session=session, access=access, verb="write")
    by = await access.require(record.session, "write") or by
    if record.state not in TERMINAL_STATES:
        text = ": ".join(part for part in (f"cancelled by {by}" if by else "", reason) if part)
        await log.append(record.session, [CallCancelled(call=record.id, reason=text)], source=source)
        record = await find_call(log, record.id)
    if record.state != "cancelled":
        raise ConflictError(f"call {record.id} has already ended: it is {record.state}", record)
    return record
