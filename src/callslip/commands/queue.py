"""Commands over a ledger: submitted, waited for, taken up, finished. Every step is an event; the rows say who is next.

The database is asked for the truth. What is in memory is only to be woken by: who waits for work, and which command
runs out of time next. One timer serves them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import UNSET

from callslip.api.call import finish_despite_cancel
from callslip.api.ledger import Ledger
from callslip.commands import transactions
from callslip.commands.claims import Admits, ClaimRequest, Dispatcher
from callslip.commands.deadlines import DeadlineTracker
from callslip.commands.monitor import CommandMonitor
from callslip.commands.views import Claim, Command, command_view, moment
from callslip.commands.waiters import WaiterSlot
from callslip.errors import CommandNotFoundError, ConflictError, InvalidInputError, NotFoundError, StaleClaimError
from callslip.ledger import liveness
from callslip.ledger.validation import NUMBER_LIMIT
from callslip.ledger.write import WriteContext, write_events
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.model.names import check_id, check_session_name
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import APPROVAL_OPTIONS, TERMINAL_STATES, came_stale
from callslip.store.unit_of_work import UnitOfWork

CLIENT = "default"
SESSION = "commands"
SOURCE = "command"
NAMESPACE = "command"
"""Where correlation ids that the submitter chose are looked up."""
NAME_LIMIT = 200
MAX_COMMAND_TIMEOUT_S = 365 * 24 * 60 * 60
FRONT = 1000
"""How far back in a queue a command is told its position."""


class Commands:
    """The commands of one ledger. One per process is enough."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.tracker = DeadlineTracker()
        self._store = ledger.store
        self._settings = ledger.settings
        self._how = ledger.write_context(source=SOURCE, strict=True)
        self._watch = CommandMonitor(ledger, self.tracker)
        self._claims = Dispatcher(ledger, self._watch, self._how)

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
        wait: float = 0.0,
        before: Sequence[Draft] = (),
    ) -> Command:
        """Queue a command for a client's executors (S3.1). Refused if too many wait for them already.

        With `approve="ask"` a person is asked first, and its time begins when they say yes. One that is `idempotent`
        is given to another worker if the first one dies. The same correlation id, or `key`, again is the same command.
        With `wait` the answer comes when it has ended, or after so many seconds.
        """
        check_id(action, "action", NAME_LIMIT)
        check_id(client, "client", NAME_LIMIT)
        if approve not in ("", "ask"):
            raise InvalidInputError("approve", f"is {approve!r}, not 'ask'")
        if correlation_id:
            key = key or f"command {_own(correlation_id)}"
        params = None if params is None else codec.validate_json(params, "params")
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
        order = transactions.CommandRequest(check_session_name(session), client, (*before, Draft(proposal, key=key)))
        row = await self._submit(order, params, ask=bool(approve))
        if wait > 0 and row.state not in TERMINAL_STATES:
            row = await self._ended(row, wait)
        return await command_view(self.ledger, row)

    def _milliseconds(self, given: float | None, default: float, field: str) -> int:
        seconds = default if given is None else given
        if not 0 < seconds <= MAX_COMMAND_TIMEOUT_S:
            raise InvalidInputError(
                field, f"{seconds:g} is not more than 0 s, or more than the limit", MAX_COMMAND_TIMEOUT_S
            )
        return min(max(1, int(seconds * 1000)), NUMBER_LIMIT)

    async def _submit(self, order: transactions.CommandRequest, params: Any, *, ask: bool) -> CallRecord:
        """Queue it; if somebody waits for just this, it is theirs at once."""
        self._watch.start()
        asked = [Draft(await self._request())] if ask else []
        ready = None if ask else await self._claims.ready(order.client, order.session)
        if ready is None:
            return (await self._registered(order, asked, params, None))[0]
        return await finish_despite_cancel(self._handed_over(order, params, *ready))

    async def _handed_over(
        self, order: transactions.CommandRequest, params: Any, place: WaiterSlot, offer: ClaimRequest
    ) -> CallRecord:
        """Queue it and give it to whoever offers to take it, unless another one waits before it."""
        taken: transactions.ClaimedCommand | None = None
        try:
            row, taken = await self._registered(order, [], params, offer)
        finally:
            await self._claims.hand(place, taken)
        return row

    async def _registered(
        self, order: transactions.CommandRequest, asked: list[Draft], params: Any, offer: ClaimRequest | None
    ) -> tuple[CallRecord, transactions.ClaimedCommand | None]:
        def work(
            unit: UnitOfWork, admitted: list[Draft], how: WriteContext
        ) -> tuple[CallRecord, transactions.ClaimedCommand | None]:
            drafts, questions = admitted[: len(order.drafts)], admitted[len(order.drafts) :]
            given = drafts[-1].event
            assert isinstance(given, ev.CallProposed)
            whole = None if given.input is UNSET or codec.json_equal(given.input, params) else codec.encode(params)
            made = transactions.CommandRequest(order.session, order.client, drafts, questions, whole)
            row = transactions.enqueue(unit, made, how, self._settings)
            if offer is None or row.state != "queued" or unit.waiting(row.client) > 1:
                return row, None
            taken = transactions.claim(unit, [row.id], offer.worker, offer.lease, self._how)
            return row if taken is None else taken.row, taken

        return await self.ledger.transact_drafts([*order.drafts, *asked], work, source=SOURCE)

    async def _request(self) -> ev.ApprovalRequested:
        expires = await self._store.clock() + int(self._settings.approval_expiry * 1000)
        return ev.ApprovalRequested(call="new:1", options=APPROVAL_OPTIONS, expires_at=expires)

    # Looking

    async def find(self, given: str, session: str = "") -> CallRecord:
        """A command by its correlation id, or any other way that a call can be named."""
        try:
            return await self.ledger.find_call(given, session)
        except NotFoundError:
            raise CommandNotFoundError(given) from None

    async def get(self, given: str, *, wait: float = 0.0, session: str = "") -> Command:
        """How a command stands; with `wait`, when it has ended, or after so many seconds."""
        row = await self.find(given, session)
        if wait > 0 and row.state not in TERMINAL_STATES:
            row = await self._ended(row, wait)
        return await self.shown(row)

    async def _ended(self, row: CallRecord, wait: float) -> CallRecord:
        ended = await self._watch.ended(row, wait)
        if ended is None:
            raise CommandNotFoundError(row.client_call_id or row.id)
        return ended

    async def shown(self, row: CallRecord) -> Command:
        """How a command stands; of one that is queued also how near its turn is, and whether anybody asks (S3.11)."""
        made = await command_view(self.ledger, row)
        if row.state == "queued" and row.client:
            before = await self._store.commands_before(row, FRONT)
            if before < FRONT:
                made.position = before + 1
            seen = await self._claims.seen(row.client)
            made.executor_seen_at = moment(seen) if seen else None
        return made

    # S3.5: lists are windows.

    async def pending(self, client: str = "", limit: int = 100, admits: Admits | None = None) -> list[Command]:
        """Commands that have not ended, the oldest first."""
        return await self._window(lambda most: self._store.pending_commands(client, most), limit, admits)

    async def completed(self, client: str = "", limit: int = 100, admits: Admits | None = None) -> list[Command]:
        """Those that were completed in the last minute, the newest first."""
        since = await self._store.clock() - int(self._settings.completed_window * 1000)
        return await self._window(lambda most: self._store.completed_commands(client, most, since), limit, admits)

    async def failed(self, client: str = "", limit: int | None = None, admits: Admits | None = None) -> list[Command]:
        """The last hundred that ended otherwise, the newest first."""
        window = self._settings.failed_window
        wanted = window if limit is None else limit
        return await self._window(lambda most: self._store.failed_commands(client, min(most, window)), wanted, admits)

    async def _window(
        self, look: Callable[[int], Awaitable[list[CallRecord]]], limit: int, admits: Admits | None
    ) -> list[Command]:
        """So many as whoever asks may see, however many of others lie in between."""
        most = _most(limit)
        while True:
            rows = await look(most)
            theirs = [row for row in rows if admits is None or await admits(row.session)][:limit]
            if len(theirs) == limit or len(rows) < most:
                return [await command_view(self.ledger, row) for row in theirs]
            most = min(4 * most, NUMBER_LIMIT)

    # Running

    async def queued(
        self, client: str = CLIENT, *, session: str = "", limit: int = 100, admits: Admits | None = None
    ) -> list[Claim]:
        """What a client's executors may run, the longest queued first. Nothing is taken out of the queue (S3.6)."""
        check_id(client, "client", NAME_LIMIT)
        _most(limit)
        await self._claims.note(client)
        found: list[Claim] = []
        after = ""
        while len(found) < limit:
            rows = await self._store.queued_commands(client, session, after, min(limit, 100))
            for row in rows:
                if len(found) < limit and (admits is None or await admits(row.session)):
                    found.append(await self._claims.peek(row))
            if not rows:
                break
            after = rows[-1].id
        return found

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
        check_id(client, "client", NAME_LIMIT)
        if worker:
            check_id(worker, "worker", NAME_LIMIT)
        held = self._milliseconds(lease, self._settings.command_lease, "lease") / 1000
        return await self._claims.claim(ClaimRequest(client, worker, held, session, admits), wait)

    async def heartbeat(
        self, given: str | CallRecord, fence: int, *, lease: float | None = None, text: str = "", progress: Any = UNSET
    ) -> int:
        """A worker goes on, and may tell how far it is. Until when it holds the command, in ms since the epoch."""
        held = self._milliseconds(lease, self._settings.command_lease, "lease") / 1000
        row = await self._command(given)
        if text or progress is not UNSET:
            await self._say(row, ev.CallProgress(call=row.id, text=text, progress=progress, attempt=fence))
        return await self._store.transact(lambda unit: transactions.renew_lease(unit, row.id, fence, held, self._how))

    async def release(self, given: str | CallRecord, fence: int, reason: str = "") -> None:
        """A worker gives a command back. For one that it has not begun with, or one that may run twice."""
        row, told = await self._command(given), reason or "whoever claimed this command gave it back"
        await self._store.transact(lambda unit: transactions.release(unit, row.id, fence, told, self._how))

    async def complete(self, given: str | CallRecord, result: Any = None, *, fence: int = 0) -> Command:
        """What came of a command. Said twice it counts once; from who does not hold it, it is kept as late (S3.6)."""
        row = await self._command(given)
        return await self._say(row, ev.CallCompleted(call=row.id, output=codec.to_json(result), attempt=fence))

    async def fail(self, given: str | CallRecord, error: Any, *, fence: int = 0) -> Command:
        """That a command went wrong."""
        row = await self._command(given)
        reason = error if isinstance(error, str) else ""
        failed = ev.CallFailed(call=row.id, error=codec.to_json(error), reason=reason[:2000], attempt=fence)
        return await self._say(row, failed)

    async def expire(self, given: str, reason: str = "") -> Command:
        """End a command before its time, as if that were over."""
        row = await self._command(given)
        return await self._say(row, ev.CallExpired(call=row.id, reason=reason or liveness.expired(row).reason))

    async def cancel(self, given: str, reason: str = "") -> Command:
        """Stop a command. Its worker hears of it with the next heartbeat."""
        row = await self._command(given)
        return await self._say(row, ev.CallCancelled(call=row.id, reason=reason))

    async def _command(self, given: str | CallRecord) -> CallRecord:
        row = given if isinstance(given, CallRecord) else await self.find(given)
        if not row.client:
            raise InvalidInputError("call", f"{row.id} is no command: whoever made it runs it")
        return row

    async def _say(self, row: CallRecord, event: ev.CallEvent) -> Command:
        def work(unit: UnitOfWork, drafts: list[Draft], how: WriteContext) -> tuple[Event, CallRecord]:
            return write_events(unit, row.session, drafts, how)[-1], unit.call(row.id) or row

        done, now = await self.ledger.transact_drafts([event], work, source=SOURCE, strict=False)
        if done.verdict == "applied" and now.end == done.seq:
            return await command_view(self.ledger, now, done)
        if done.verdict in ("applied", "duplicate"):
            return await self.shown(now)
        if now.state not in TERMINAL_STATES:
            raise transactions.stale(now)
        ended = f"command {row.id} has ended: {now.state}"
        raise StaleClaimError(ended, now) if came_stale(now, event) else ConflictError(ended, now)

    async def close(self) -> None:
        """Wait for nobody and nothing any more. The commands stay as they are."""
        await self._watch.close()


def _most(limit: int) -> int:
    if not 0 < limit <= NUMBER_LIMIT:
        raise InvalidInputError("limit", f"{limit} is not from 1 to {NUMBER_LIMIT}", NUMBER_LIMIT)
    return limit


def _own(correlation_id: str) -> str:
    check_id(correlation_id, "correlation_id", NAME_LIMIT)
    if ids.CALL.match(correlation_id) or correlation_id.startswith("@"):
        raise InvalidInputError(
            "correlation_id", "looks like an execution id or a name for one; leave it out to be given one"
        )
    return correlation_id
