"""Queries for monitoring and live lists: whether it can be read, counts, and recent records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from callslip.errors import StoreError
from callslip.ledger.event_log import EventLog
from callslip.model.records import ApprovalRecord, CallRecord

ALL_ROWS = 2**31
MAX_READ_S = 3.0
"""How long a check whether the database can be read may take: load balancers wait a few seconds."""


class OpenCounts(NamedTuple):
    """The number of open calls by state, and of pending approvals."""

    calls: dict[str, int]
    approvals: int


async def can_read(log: EventLog) -> bool:
    """Return whether the database can be read now. A read may wait for a server to return; this does not."""
    reading = asyncio.ensure_future(log.store.sessions(limit=1))
    try:
        await asyncio.wait([reading], timeout=MAX_READ_S)
        if reading.done():
            reading.result()
        return reading.done()
    except StoreError:
        return False
    finally:
        reading.cancel()  # Its end is not awaited: a query on a server ends by its own timeout.


async def count_open(log: EventLog) -> OpenCounts:
    """Count what is open in all sessions."""
    approvals = await log.store.approvals(state="pending", limit=ALL_ROWS)
    return OpenCounts(await log.store.open_states(), len(approvals))


def count_appended(log: EventLog, listener: Callable[[int], None]) -> None:
    """Call `listener` with the number of events of each commit of this process."""
    log.store.on_commit(lambda events: listener(len(events)))


async def list_recent_commands(log: EventLog, limit: int) -> list[CallRecord]:
    """Return the open commands, and those that ended recently."""
    store, settings = log.store, log.settings
    since = await store.clock() - int(settings.completed_window * 1000)
    records = await store.pending_commands("", limit)
    records += await store.completed_commands("", limit, since)
    return records + await store.failed_commands("", min(limit, settings.failed_window))


async def get_approval(log: EventLog, id: str) -> ApprovalRecord | None:
    """Return an approval by its whole id."""
    return await log.store.approval(id)


async def age_ms(log: EventLog, timestamp: int) -> int:
    """Return how long ago a timestamp was, by the clock of the database."""
    return await log.store.clock() - timestamp
