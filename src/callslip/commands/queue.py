"""Commands over a ledger: submitted, waited for, taken up, finished. Every step is an event; the rows say who is next.

The database is asked for the truth. What is in memory is only to be woken by: who waits for work, and which command
runs out of time next. One timer serves them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from callslip import codec, ids, liveness
from callslip import events as ev
from callslip.call import OPTIONS, certainly
from callslip.callview import entry_of
from callslip.commands import orders
from callslip.commands.shown import Claim, Command, moment, shown
from callslip.commands.tracker import Tracker
from callslip.commands.watch import Watch
from callslip.decide import How
from callslip.errors import CallslipError, Conflict, Gone, NoCommand, NotFound, Refused, StaleFence
from callslip.events import Alias, Draft
from callslip.intake import NUMBER_LIMIT, identity, session_name
from callslip.ledger import Ledger
from callslip.lifecycle import ENDS
from callslip.project import input_mark
from callslip.rows import CallRow
from callslip.store.unit import Unit

T = TypeVar("T")
CLIENT = "default"
SESSION = "commands"
SOURCE = "command"
NAMESPACE = "command"
"""Where correlation ids that the submitter chose are looked up."""
NAME_LIMIT = 200
LONGEST = 365 * 24 * 60 * 60
PAGE = 16
FRONT = 1000
"""How far back in a queue a command is told its position."""
PATIENCE = 2.0
"""Whoever waits for work looks for itself this often, should nobody wake it."""
ASKED_EVERY = 5_000
"""How often it is written down that executors ask for work, in ms."""

Admits = Callable[[str], Awaitable[bool]]
"""Whether whoever asks may run commands of a session."""


class Commands:
    """The commands of one ledger. One per process is enough."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.tracker = Tracker()
        self._store = ledger.store
        self._settings = ledger.settings
        self._how = ledger.how(source=SOURCE, strict=True)
        self._watch = Watch(ledger, self.tracker)
        self._asked: dict[str, int] = {}

    # Submitting

    async def register(
        self,
        action: str,
        params: Any = None,
        *,
        client: str = CLIENT,
        session: str = SESSION,
        timeout: float | None = None,
        idempotent: bool = False,
        approve: str = "",
        correlation_id: str = "",
        title: str = "",
        key: str = "",
        before: Sequence[Draft] = (),
    ) -> Command:
        """Queue a command for a client's executors (S3.1). Refused if too many wait for them already.

        With `approve="ask"` a person is asked first, and its time begins when they say yes. One that is `idempotent`
        is given to another worker if the first one dies. The same correlation id, or `key`, again is the same command.
        """
        identity(action, "action", NAME_LIMIT)
        identity(client, "client", NAME_LIMIT)
        if approve not in ("", "ask"):
            raise Refused("approve", f"is {approve!r}, not 'ask'")
        if correlation_id:
            key = key or f"command {_own(correlation_id)}"
        params = None if params is None else codec.check(params, "params")
        proposal = ev.CallProposed(
            call="new:1",
            aliases=(Alias(NAMESPACE, correlation_id),) if correlation_id else (),
            tool_name=action,
            title=title or UNSET,
            input=UNSET if params is None else params,
            scope="detached",
            client=client,
            timeout=self._milliseconds(timeout, self._settings.command_timeout, "timeout"),
            idempotent=idempotent,
        )
        order = orders.Order(session_name(session), client, (*before, Draft(proposal, key=key)))
        return await shown(self.ledger, await self._submit(order, params, ask=bool(approve)))

    def _milliseconds(self, given: float | None, default: float, field: str) -> int:
        seconds = default if given is None else given
        if not 0 < seconds <= LONGEST:
            raise Refused(field, f"{seconds:g} is not more than 0 s, or more than the limit", LONGEST)
        return min(max(1, int(seconds * 1000)), NUMBER_LIMIT)

    async def _submit(self, order: orders.Order, params: Any, *, ask: bool) -> CallRow:
        self._watch.start()
        asked = [Draft(await self._request())] if ask else []

        def work(unit: Unit, admitted: list[Draft], how: How) -> CallRow:
            drafts, questions = admitted[: len(order.drafts)], admitted[len(order.drafts) :]
            given = drafts[-1].event
            assert isinstance(given, ev.CallProposed)
            whole = None if given.input is UNSET or codec.same(given.input, params) else codec.encode(params)
            made = orders.Order(order.session, order.client, drafts, questions, whole)
            return orders.register(unit, made, how, self._settings)

        return await self.ledger.decided([*order.drafts, *asked], work, source=SOURCE)

    async def _request(self) -> ev.ApprovalRequested:
        expires = await self._store.clock() + int(self._settings.approval_expiry * 1000)
        return ev.ApprovalRequested(call="new:1", options=OPTIONS, expires_at=expires)

    # Looking

    async def find(self, given: str, session: str = "") -> CallRow:
        """A command by its correlation id, or any other way that a call can be named."""
        try:
            return await self.ledger.find_call(given, session)
        except NotFound:
            raise NoCommand(given) from None

    async def get(self, given: str, *, wait: float = 0.0, session: str = "") -> Command:
        """How a command stands; with `wait`, when it has ended, or after so many seconds."""
        row = await self.find(given, session)
        if wait > 0 and row.state not in ENDS:
            self._watch.start()
            row = await self._ended(row, wait)
        return await self.shown(row)

    async def _ended(self, row: CallRow, wait: float) -> CallRow:
        try:
            return await self.ledger.wait(row.id, wait)
        except TimeoutError:
            return await self._store.call(row.id) or row
        except Gone:
            raise NoCommand(row.shown or row.id) from None

    async def shown(self, row: CallRow) -> Command:
        """How a command stands; of one that is queued also how near its turn is, and whether anybody asks (S3.11)."""
        made = await shown(self.ledger, row)
        if row.state == "queued" and row.client:
            before = await self._store.commands_before(row, FRONT)
            if before < FRONT:
                made.position = before + 1
            seen = max(self._asked.get(row.client, 0), (await self._store.executors()).get(row.client, 0))
            made.executor_seen_at = moment(seen) if seen else None
        return made

    # S3.5: lists are windows.

    async def pending(self, client: str = "", limit: int = 100) -> list[Command]:
        """Commands that have not ended, the oldest first."""
        return await self._all(await self._store.pending_commands(client, limit))

    async def completed(self, client: str = "", limit: int = 100) -> list[Command]:
        """Those that were completed in the last minute, the newest first."""
        since = await self._store.clock() - int(self._settings.completed_window * 1000)
        return await self._all(await self._store.completed_commands(client, limit, since))

    async def failed(self, client: str = "", limit: int | None = None) -> list[Command]:
        """The last hundred that ended otherwise, the newest first."""
        most = self._settings.failed_window
        return await self._all(await self._store.failed_commands(client, min(limit or most, most)))

    async def _all(self, rows: list[CallRow]) -> list[Command]:
        return [await shown(self.ledger, row) for row in rows]

    # Running

    async def queued(
        self, client: str = CLIENT, *, session: str = "", limit: int = 100, admits: Admits | None = None
    ) -> list[Claim]:
        """What a client's executors may run, the longest queued first. Nothing is taken out of the queue (S3.6)."""
        await self._note(client)
        found: list[Claim] = []
        after = ""
        while len(found) < limit:
            rows = await self._store.queued_commands(client, session, after, min(limit, 100))
            for row in rows:
                if len(found) < limit and (admits is None or await admits(row.session)):
                    found.append(await self._peeked(row))
            if not rows:
                break
            after = rows[-1].id
        return found

    async def _peeked(self, row: CallRow) -> Claim:
        events = await self._store.events(row.session, row.entry - 1, 1)
        proposal = ev.decode_event(events[0][1]) if events and events[0][0] == row.entry else None
        told = proposal if isinstance(proposal, ev.CallProposed) else None
        return await self._claimed(orders.Taken(row, told, await self._store.sealed(row.id), 0))

    async def claim(
        self,
        client: str = CLIENT,
        *,
        worker: str = "",
        wait: float = 0.0,
        lease: float | None = None,
        session: str = "",
        admits: Admits | None = None,
    ) -> Claim | None:
        """Take up the next command of a client, for as long as the lease is kept up; wait for one if there is none."""
        self._watch.start()
        identity(client, "client", NAME_LIMIT)
        if worker:
            identity(worker, "worker", NAME_LIMIT)
        held = self._milliseconds(lease, self._settings.command_lease, "lease") / 1000
        until = time.monotonic() + wait
        await self._note(client)
        with self._watch.in_line(client) as waiter:
            while not self._watch.closed:
                waiter.stand()
                taken = await self._take(client, worker, held, session, admits)
                if taken is not None:
                    waiter.served()
                    return taken
                remaining = until - time.monotonic()
                if not remaining > 0:
                    return None
                await waiter.woken(min(remaining, PATIENCE))
                await self._note(client)
        return None

    async def _take(self, client: str, worker: str, lease: float, session: str, admits: Admits | None) -> Claim | None:
        after = ""
        while True:
            rows = await self._store.queued_commands(client, session, after, PAGE)
            if not rows:
                return None
            open_to = [row.id for row in rows if admits is None or await admits(row.session)]
            taken = await self._surely(
                self._store.transact(lambda unit, names=open_to: orders.claim(unit, names, worker, lease, self._how))
            )
            if taken is not None:
                return await self._claimed(taken)
            after = rows[-1].id

    async def _surely(self, taking: Awaitable[orders.Taken | None]) -> orders.Taken | None:
        """What was taken. If whoever asked has gone meanwhile it goes back: nobody has begun with it."""
        task = asyncio.ensure_future(taking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            taken = await certainly(_finished(task))
            if taken is not None:
                await certainly(self._give_back(taken.row))
            raise

    async def _give_back(self, row: CallRow) -> None:
        again = ev.CallRequeued(call=row.id, reason="whoever claimed this command went away before it was handed over")
        with contextlib.suppress(CallslipError):
            await self._store.transact(lambda unit: liveness.end_if_unchanged(unit, row, again, self._how))

    async def _claimed(self, taken: orders.Taken) -> Claim:
        row = taken.row
        return Claim(
            call=row.id,
            correlation_id=row.shown or row.id,
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

    async def _params(self, taken: orders.Taken) -> Any:
        """The arguments as they were given, or as whoever approved them changed them."""
        proposed = taken.proposal.input if taken.proposal is not None else UNSET
        edited = taken.proposal is None or input_mark(proposed) != taken.row.input_mark
        if edited:
            entry = await entry_of(self.ledger, taken.row)
            proposed = entry.raw_input if entry is not None else None
        if taken.whole is None:
            return None if proposed is UNSET else proposed
        whole = msgspec.json.decode(taken.whole)
        return self.ledger.redactor.restored(proposed, whole) if edited else whole

    async def heartbeat(
        self, given: str, fence: int, *, lease: float | None = None, text: str = "", progress: Any = UNSET
    ) -> int:
        """A worker goes on, and may tell how far it is. Until when it holds the command, in ms since the epoch."""
        held = self._milliseconds(lease, self._settings.command_lease, "lease") / 1000
        row = await self._command(given)
        if text or progress is not UNSET:
            await self._say(row, ev.CallProgress(call=row.id, text=text, progress=progress, attempt=fence))
        return await self._store.transact(lambda unit: orders.beat(unit, row.id, fence, held, self._how))

    async def complete(self, given: str, result: Any = None, *, fence: int = 0) -> Command:
        """What came of a command. Said twice it counts once; from who does not hold it, it is kept as late (S3.6)."""
        row = await self._command(given)
        return await self._say(row, ev.CallCompleted(call=row.id, output=codec.safe(result), attempt=fence))

    async def fail(self, given: str, error: Any, *, fence: int = 0) -> Command:
        """That a command went wrong."""
        row = await self._command(given)
        reason = error if isinstance(error, str) else ""
        failed = ev.CallFailed(call=row.id, error=codec.safe(error), reason=reason[:2000], attempt=fence)
        return await self._say(row, failed)

    async def expire(self, given: str, reason: str = "") -> Command:
        """End a command before its time, as if that were over."""
        row = await self._command(given)
        return await self._say(row, ev.CallExpired(call=row.id, reason=reason or liveness.expired(row).reason))

    async def cancel(self, given: str, reason: str = "") -> Command:
        """Stop a command. Its worker hears of it with the next heartbeat."""
        row = await self._command(given)
        return await self._say(row, ev.CallCancelled(call=row.id, reason=reason))

    async def _command(self, given: str) -> CallRow:
        row = await self.find(given)
        if not row.client:
            raise Refused("call", f"{row.id} is no command: whoever made it runs it")
        return row

    async def _say(self, row: CallRow, event: ev.CallEvent) -> Command:
        done = (await self.ledger.append(row.session, [event], source=SOURCE))[-1]
        now = await self._store.call(row.id) or row
        if done.verdict in ("applied", "duplicate"):
            return await self.shown(now)
        if now.state not in ENDS:
            raise orders.stale(now)
        ended = f"command {row.id} has ended: {now.state}"
        fenced = isinstance(event, ev.CallCompleted | ev.CallFailed | ev.CallProgress)
        raise StaleFence(ended, now) if fenced and event.attempt != now.attempt else Conflict(ended, now)

    # S3.11: whether anybody asks for work.

    async def _note(self, client: str) -> None:
        now = await self._store.clock()
        if now - self._asked.get(client, 0) >= ASKED_EVERY:
            self._asked[client] = now
            with contextlib.suppress(CallslipError):
                await self._store.put_executor(client, now)

    async def close(self) -> None:
        """Wait for nobody and nothing any more. The commands stay as they are."""
        await self._watch.close()


async def _finished(task: asyncio.Future[T]) -> T:
    return await task


def _own(correlation_id: str) -> str:
    identity(correlation_id, "correlation_id", NAME_LIMIT)
    if ids.CALL.match(correlation_id) or correlation_id.startswith("@"):
        raise Refused("correlation_id", "looks like an execution id or a name for one; leave it out to be given one")
    return correlation_id
