"""Giving commands to those who run them: from the queue, or straight from the hands of whoever submits.

A worker that waits offers itself. A command that is submitted meanwhile is queued and taken up in one transaction, if
nothing else waits before it: one sync of the disk instead of two. What comes to somebody who has gone is given back.
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

PAGE = 16
CLAIM_POLL_S = 2.0
"""Whoever waits for work looks for itself this often, should nobody wake it."""
ASKED_EVERY = 5_000
"""How often it is written down that executors ask for work, in ms."""
ASKERS = 1000
"""For how many clients this is remembered here; the store knows it anyhow."""
OFFERS = 8
"""How many of those who wait are asked whether they take a command."""

Admits = Callable[[str], Awaitable[bool]]
"""Whether whoever asks may run commands of a session."""


class ClaimRequest(msgspec.Struct, frozen=True):
    """What somebody who wants work says of themselves. `session` "" is all of those that they are admitted to."""

    client: str
    worker: str
    lease: float
    session: str = ""
    admits: Admits | None = None

    async def takes(self, session: str) -> bool:
        """Whether a command of this session may be theirs."""
        return self.session in ("", session) and (self.admits is None or await self.admits(session))


async def _would_take(offer: ClaimRequest, session: str) -> bool:
    """The same, for whoever submits: what goes wrong in asking is told to those who wait, when they look themselves."""
    try:
        return await offer.takes(session)
    except Exception:
        return False


class Dispatcher:
    """Who gets which command."""

    def __init__(self, log: EventLog, watch: CommandMonitor, how: WriteContext) -> None:
        self._log = log
        self._store = log.store
        self._watch = watch
        self._how = how
        self._asked: dict[str, int] = {}

    async def seen(self, client: str) -> int:
        """When anybody last asked for this client's work, in ms; 0 for never (S3.11)."""
        return max(self._asked.get(client, 0), await self._store.executor_seen(client))

    async def note(self, client: str) -> None:
        """Somebody asks for work."""
        now = await self._store.clock()
        if now - self._asked.get(client, 0) >= ASKED_EVERY:
            if len(self._asked) >= ASKERS:
                self._asked.clear()
            self._asked[client] = now
            with contextlib.suppress(CallslipError):
                await self._store.put_executor(client, now)

    # Claiming

    async def claim(self, offer: ClaimRequest, wait: float) -> Claim | None:
        """The next command for whoever offers this, within the time; nothing if the ledger closes."""
        taken = await self._next(offer, time.monotonic() + wait)
        if taken is None:
            return None
        try:
            return await self.told(taken)
        except BaseException:
            await finish_despite_cancel(self.give_back(taken.row))
            raise

    async def _next(self, offer: ClaimRequest, until: float) -> transactions.ClaimedCommand | None:
        await self.note(offer.client)
        with self._watch.in_line(offer.client) as waiter:
            while not self._watch.closed:
                waiter.stand(offer)
                taken = await self._take(offer)
                if taken is not None:
                    waiter.served()
                    return taken
                remaining = until - time.monotonic()
                if not remaining > 0:
                    return None
                try:
                    taken = await waiter.woken(min(remaining, CLAIM_POLL_S))
                except BaseException:
                    if (handed := waiter.handed()) is not None:
                        await finish_despite_cancel(self.give_back(handed.row))
                    raise
                if taken is not None:
                    return taken
                await self.note(offer.client)
        return None

    async def _take(self, offer: ClaimRequest) -> transactions.ClaimedCommand | None:
        after = ""
        while rows := await self._store.queued_commands(offer.client, offer.session, after, PAGE):
            open_to = [row.id for row in rows if await offer.takes(row.session)]
            taken = await self._surely(
                self._store.transact(
                    lambda unit, names=open_to: transactions.claim(unit, names, offer.worker, offer.lease, self._how)
                )
            )
            if taken is not None:
                return taken
            after = rows[-1].id
        return None

    async def _surely(
        self, taking: Awaitable[transactions.ClaimedCommand | None]
    ) -> transactions.ClaimedCommand | None:
        """What was taken. If whoever asked has gone meanwhile it goes back: nobody has begun with it."""
        task = asyncio.ensure_future(taking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await finish_despite_cancel(self._undone(task))
            raise

    async def _undone(self, taking: asyncio.Future[transactions.ClaimedCommand | None]) -> None:
        with contextlib.suppress(CallslipError):  # Then nothing was taken.
            taken = await taking
            if taken is not None:
                await self.give_back(taken.row)

    async def give_back(self, row: CallRecord) -> None:
        """Nobody has begun with a command that was claimed: it is queued again."""
        again = ev.CallRequeued(call=row.id, reason="whoever claimed this command went away before it was handed over")
        with contextlib.suppress(CallslipError):
            await self._store.transact(lambda unit: liveness.end_if_unchanged(unit, row, again, self._how))

    # Handing over

    async def ready(self, client: str, session: str) -> tuple[WaiterSlot, ClaimRequest] | None:
        """Somebody who waits for just such a command. Nobody else wakes them until they are `handed` something."""
        for place in self._watch.standing(client, OFFERS):
            offer = place.offer
            if (
                isinstance(offer, ClaimRequest)
                and await _would_take(offer, session)
                and self._watch.reserve(client, place)
            ):
                return place, offer
        return None

    async def hand(self, place: WaiterSlot, taken: transactions.ClaimedCommand | None) -> None:
        """Give them what was taken for them, or let them look for themselves."""
        if not place.future.done():
            place.future.set_result(taken)
        elif taken is not None:
            await self.give_back(taken.row)

    # Telling

    async def peek(self, row: CallRecord) -> Claim:
        """What a queued command would be told as."""
        events = await self._store.events(row.session, row.entry - 1, 1)
        proposal = ev.decode_event(events[0][1]) if events and events[0][0] == row.entry else None
        told = proposal if isinstance(proposal, ev.CallProposed) else None
        return await self.told(transactions.ClaimedCommand(row, told, await self._store.sealed(row.id), 0))

    async def told(self, taken: transactions.ClaimedCommand) -> Claim:
        """A command as a worker is given it."""
        row = taken.row
        return Claim(
            call=row.id,
            correlation_id=row.client_call_id or row.id,
            session=row.session,
            action=row.tool,
            params=await self._params(taken),
            client=row.client,
            fence=row.attempt,
            attempt=row.attempt,
            idempotent=row.idempotent,
            created_at=moment(row.created_at),
            expires_at=moment(row.deadline) if row.deadline else None,
            lease_until=taken.until,
        )

    async def _params(self, taken: transactions.ClaimedCommand) -> Any:
        """The arguments as they were given, or as whoever approved them changed them."""
        proposed = taken.proposal.input if taken.proposal is not None else UNSET
        edited = taken.proposal is None or input_mark(proposed) != taken.row.input_mark
        if edited:
            entry = await load_call_entry(self._log, taken.row)
            proposed = entry.raw_input if entry is not None else None
        if taken.whole is None:
            return None if proposed is UNSET else proposed
        whole = msgspec.json.decode(taken.whole)
        return self._log.redactor.restored(proposed, whole) if edited else whole
