"""Give commands to workers: from the queue, or directly when a command is submitted.

A waiting worker leaves its claim request in the waiter queue. A command submitted meanwhile is queued and claimed in
one transaction, if no other command is ahead of it: one disk sync instead of two. A command claimed for a worker that
has left is queued again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.commands import transactions
from callslip.commands.monitor import CommandMonitor
from callslip.commands.transactions import ClaimedCommand
from callslip.commands.views import Claim, moment
from callslip.commands.waiters import WaiterSlot
from callslip.errors import CallslipError
from callslip.ledger import liveness
from callslip.ledger.aio import finish_despite_cancel
from callslip.ledger.call_entry import load_call_entry
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import WriteContext
from callslip.model import events as ev
from callslip.model.records import CallRecord
from callslip.rules.projection import input_mark
from callslip.store.protocol import Touched

PAGE_ROWS = 16
CLAIM_POLL_S = 2.0
"""How often a waiting worker reads the queue if nothing wakes it."""
POLL_RECORD_INTERVAL_MS = 5_000
"""How often the store records that workers of a queue ask for work."""
MAX_POLLED_QUEUES = 1000
"""For how many queues the last poll is remembered in memory; the store has all of them."""
MAX_OFFERED_WAITERS = 8
"""How many waiting workers are checked for a new command."""


class ClaimRequest(msgspec.Struct, frozen=True):
    """A worker's request for a command. An empty `session` means every session that it may execute."""

    queue: str
    worker: str
    lease: float
    session: str = ""
    can_execute: Callable[[str], Awaitable[bool]] | None = None

    async def accepts(self, session: str) -> bool:
        """Return whether the worker may have a command of this session."""
        return self.session in ("", session) and (self.can_execute is None or await self.can_execute(session))


class Dispatcher:
    """Decide which worker gets which command."""

    def __init__(self, log: EventLog, monitor: CommandMonitor, context: WriteContext) -> None:
        self._log = log
        self._store = log.store
        self._monitor = monitor
        self._context = context
        self._polled_at: dict[str, int] = {}

    async def last_poll(self, queue: str) -> int:
        """Return when a worker last asked for commands of a queue, in ms since the epoch; 0 for never."""
        return max(self._polled_at.get(queue, 0), await self._store.executor_seen(queue))

    async def record_poll(self, queue: str) -> None:
        """Record that a worker asks for commands of a queue."""
        now = await self._store.clock()
        if now - self._polled_at.get(queue, 0) >= POLL_RECORD_INTERVAL_MS:
            if len(self._polled_at) >= MAX_POLLED_QUEUES:
                self._polled_at.clear()
            self._polled_at[queue] = now
            with contextlib.suppress(CallslipError):
                await self._store.put_executor(queue, now)

    # Claiming

    async def claim(self, request: ClaimRequest, wait: float) -> Claim | None:
        """Claim the next command, waiting up to `wait` seconds; return None if there is none or the ledger closes."""
        claimed = await self._claim_next(request, time.monotonic() + wait)
        if claimed is None:
            return None
        try:
            return await self._claim_view(claimed)
        except BaseException:
            await finish_despite_cancel(self._requeue(claimed.record))
            raise

    async def _claim_next(self, request: ClaimRequest, until: float) -> ClaimedCommand | None:
        await self.record_poll(request.queue)
        with self._monitor.wait_in_queue(request.queue) as waiter:
            while not self._monitor.closed:
                waiter.enter(request)
                claimed = await self._claim_queued(request)
                if claimed is not None:
                    waiter.consume_wake_up()
                    return claimed
                remaining = until - time.monotonic()
                if not remaining > 0:
                    return None
                try:
                    claimed = await waiter.wait(min(remaining, CLAIM_POLL_S))
                except BaseException:
                    if (delivered := waiter.delivered()) is not None:
                        await finish_despite_cancel(self._requeue(delivered.record))
                    raise
                if claimed is not None:
                    return claimed
                await self.record_poll(request.queue)
        return None

    async def _claim_queued(self, request: ClaimRequest) -> ClaimedCommand | None:
        after = ""
        while records := await self._store.queued_commands(request.queue, request.session, after, PAGE_ROWS):
            candidates = [record.id for record in records if await request.accepts(record.session)]
            claimed = await self._claim_or_requeue(candidates, request)
            if claimed is not None:
                return claimed
            after = records[-1].id
        return None

    async def _claim_or_requeue(self, candidates: list[str], request: ClaimRequest) -> ClaimedCommand | None:
        """Claim one of these commands, and queue it again if the caller is cancelled meanwhile."""

        async def requeue_claimed() -> None:
            with contextlib.suppress(CallslipError):  # The transaction failed, so nothing was claimed.
                claimed = await task
                if claimed is not None:
                    await self._requeue(claimed.record)

        task = asyncio.ensure_future(
            self._store.transact(
                lambda unit: transactions.claim(unit, candidates, request.worker, request.lease, self._context),
                Touched(calls=candidates),
            )
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await finish_despite_cancel(requeue_claimed())
            raise

    async def _requeue(self, record: CallRecord) -> None:
        """Queue a claimed command again that no worker has started."""
        event = ev.CallRequeued(call=record.id, reason="its worker left before it was handed over")
        with contextlib.suppress(CallslipError):
            await self._store.transact(
                lambda unit: liveness.end_if_unchanged(unit, record, event, self._context),
                Touched((record.session,), calls=(record.id,)),
            )

    # Handing over

    async def reserve_waiter(self, queue: str, session: str) -> tuple[WaiterSlot, ClaimRequest] | None:
        """Reserve a waiting worker that accepts a command of this session. `deliver` must follow."""
        for slot in self._monitor.first_waiters(queue, MAX_OFFERED_WAITERS):
            request = slot.request
            if not isinstance(request, ClaimRequest):
                continue
            try:
                accepts = await request.accepts(session)
            except Exception:  # The worker gets this error when it reads the queue itself.
                continue
            if accepts and self._monitor.reserve(queue, slot):
                return slot, request
        return None

    async def deliver(self, slot: WaiterSlot, claimed: ClaimedCommand | None) -> None:
        """Give a reserved worker the command claimed for it, or wake it to read the queue."""
        if not slot.future.done():
            slot.future.set_result(claimed)
        elif claimed is not None:
            await self._requeue(claimed.record)

    # Views

    async def peek(self, record: CallRecord) -> Claim:
        """Return a queued command as its worker would get it."""
        event = await self._log.event_at(record.session, record.entry)
        proposal = event if isinstance(event, ev.CallProposed) else None
        return await self._claim_view(ClaimedCommand(record, proposal, await self._store.sealed(record.id), 0))

    async def _claim_view(self, claimed: ClaimedCommand) -> Claim:
        record = claimed.record
        return Claim(
            call=record.id,
            correlation_id=record.client_call_id or record.id,
            session=record.session,
            action=record.tool,
            params=await self._params(claimed),
            client=record.client,
            fence=record.attempt,
            attempt=record.attempt,
            idempotent=record.idempotent,
            created_at=moment(record.created_at),
            expires_at=moment(record.deadline) if record.deadline else None,
            lease_until=claimed.lease_until,
        )

    async def _params(self, claimed: ClaimedCommand) -> Any:
        """Return the arguments with their secrets, and with the edits of the approver."""
        proposed = claimed.proposal.input if claimed.proposal is not None else UNSET
        is_edited = claimed.proposal is None or input_mark(proposed) != claimed.record.input_mark
        if is_edited:
            entry = await load_call_entry(self._log, claimed.record)
            proposed = entry.raw_input if entry is not None else None
        if claimed.full_params is None:
            return None if proposed is UNSET else proposed
        full_params = msgspec.json.decode(claimed.full_params)
        return self._log.redactor.restore_secrets(proposed, full_params) if is_edited else full_params
