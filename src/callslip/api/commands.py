"""Commands: submit one, wait for it, claim it as a worker, finish it. Every step is an event.

The database decides who is next. Memory holds only what wakes waiters: who waits for work, and which command reaches
its deadline next. One timer serves them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypedDict, Unpack

from msgspec import UNSET

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.find import find_command, first_visible
from callslip.api.keywords import check_keywords
from callslip.api.rules import answer_by_rules
from callslip.api.sessions import write_or_create
from callslip.commands import transactions
from callslip.commands.claims import ClaimRequest, Dispatcher
from callslip.commands.deadlines import DeadlineTracker
from callslip.commands.monitor import CommandMonitor
from callslip.commands.views import Claim, Command, command_view, moment
from callslip.commands.waiters import WaiterSlot
from callslip.errors import CommandNotFoundError, ConflictError, InvalidInputError, StaleClaimError
from callslip.ledger import liveness
from callslip.ledger.aio import finish_despite_cancel, run_off_loop
from callslip.ledger.event_log import EventLog
from callslip.ledger.validation import NUMBER_LIMIT
from callslip.ledger.write import WriteContext, write_events
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.model.names import check_id, check_session_name
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import APPROVAL_OPTIONS, TERMINAL_STATES, was_stale
from callslip.store.protocol import Touched
from callslip.store.unit_of_work import UnitOfWork

DEFAULT_QUEUE = "default"
DEFAULT_SESSION = "commands"
SOURCE = "command"
ALIAS_NAMESPACE = "command"
"""The namespace of correlation ids that the submitter chose."""
MAX_NAME_CHARS = 200
MAX_COMMAND_TIMEOUT_S = 365 * 24 * 60 * 60
MAX_POSITION = 1000
"""How far back in a queue a command's position is counted."""
MAX_REASON_CHARS = 2000


class SubmitOptions(TypedDict, total=False):
    """What a command may have besides its action and its params."""

    queue: str
    session: str
    timeout: float | None
    """Seconds after which the command expires; with `approval`, counted from the answer."""
    idempotent: bool
    """Whether another worker may run the command if its worker dies."""
    approval: bool
    """Wait for a person's approval before the command is queued."""
    correlation_id: str
    """Your own id: the same id is the same command."""
    title: str
    key: str
    """An idempotency key: the same key is the same command."""
    wait: float
    """Return when the command has ended, or after so many seconds."""


class ClaimOptions(TypedDict, total=False):
    """How a worker claims a command."""

    worker: str
    wait: float
    lease: float | None
    session: str


class Commands(Protocol):
    """The commands of a ledger."""

    async def submit(self, action: str, params: Any = None, **options: Unpack[SubmitOptions]) -> Command:
        """Queue a command for the workers of a queue; raise QueueFullError if too many are pending."""
        ...

    async def get(self, id_or_prefix: str, *, wait: float = 0.0, session: str = "") -> Command:
        """Return a command; with `wait`, when it has ended, or after so many seconds."""
        ...

    async def pending(self, queue: str = "", limit: int = 100) -> list[Command]:
        """Return the open commands, oldest first."""
        ...

    async def completed(self, queue: str = "", limit: int = 100) -> list[Command]:
        """Return the commands completed in the last minute, newest first."""
        ...

    async def failed(self, queue: str = "", limit: int | None = None) -> list[Command]:
        """Return the last hundred commands that ended otherwise, newest first."""
        ...

    max_claim_wait_s: float
    """How long one claim should wait for a command."""
    can_cancel_claim: bool
    """Whether a waiting claim may be cancelled without losing a command that was claimed at that moment."""

    async def claim(self, queue: str = "default", **options: Unpack[ClaimOptions]) -> Claim | None:
        """Claim the next command of a queue for the length of a lease; wait for one if there is none."""
        ...

    async def heartbeat(self, command: str, fence: int, *, lease: float | None = None, text: str = "") -> int:
        """Renew the lease of a claimed command, with its progress if given. Return its end in ms since the epoch."""
        ...

    async def release(self, command: str, fence: int, reason: str = "") -> None:
        """Give a claimed command back: one that was not started, or one that may run twice."""
        ...

    async def complete(self, command: str, result: Any = None, *, fence: int = 0) -> Command:
        """Complete a command. A repeated result counts once; one with a stale fence is kept as late."""
        ...

    async def fail(self, command: str, error: Any, *, fence: int = 0) -> Command:
        """Fail a command."""
        ...


class CommandQueue(Commands):
    """The commands of one ledger. One per process is enough."""

    max_claim_wait_s = 0.5
    can_cancel_claim = False

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.tracker = DeadlineTracker()
        self._store = log.store
        self._settings = log.settings
        self._context = log.write_context(source=SOURCE, strict=True)
        self._monitor = CommandMonitor(log, self.tracker)
        self._dispatcher = Dispatcher(log, self._monitor, self._context)

    # Submitting

    async def submit(self, action: str, params: Any = None, **options: Unpack[SubmitOptions]) -> Command:
        """Queue a command for the workers of a queue; raise QueueFullError if too many are pending."""
        return await self.submit_after((), action, params, options)

    async def submit_as(
        self, access: Access, action: str, params: Any, options: SubmitOptions, *, is_owned: bool = True
    ) -> Command:
        """Queue a command for a caller. If `is_owned`, a session that it creates belongs to the caller."""

        def write(before: Sequence[Draft]) -> Awaitable[Command]:
            return self.submit_after(before, action, params, options)

        session = options.get("session", DEFAULT_SESSION)
        return await write_or_create(self.log, session, write, access=access, is_owned=is_owned)

    async def submit_after(self, before: Sequence[Draft], action: str, params: Any, options: SubmitOptions) -> Command:
        """Queue a command, and write the drafts in `before` ahead of it in the same transaction."""
        check_keywords("submit", options, SubmitOptions)
        queue, wait = options.get("queue", DEFAULT_QUEUE), options.get("wait", 0.0)
        correlation_id, key = options.get("correlation_id", ""), options.get("key", "")
        check_id(action, "action", MAX_NAME_CHARS)
        check_id(queue, "queue", MAX_NAME_CHARS)
        if correlation_id:
            key = key or f"command {_check_correlation_id(correlation_id)}"
        if params is not None:
            params = await run_off_loop(codec.is_large([params]), codec.validate_json, params, "params")
        proposal = ev.CallProposed(
            call="new:1",
            aliases=(Alias(ALIAS_NAMESPACE, correlation_id),) if correlation_id else (),
            tool_name=action,
            title=options.get("title") or UNSET,
            input=UNSET if params is None else params,
            scope="detached",
            client=queue,
            timeout=self._milliseconds(options.get("timeout"), self._settings.command_timeout, "timeout"),
            idempotent=options.get("idempotent", False),
        )
        session = check_session_name(options.get("session", DEFAULT_SESSION))
        request = transactions.CommandRequest(session, queue, (*before, Draft(proposal, key=key)))
        record = await self._submit(request, params, approval=options.get("approval", False))
        if wait > 0 and record.state not in TERMINAL_STATES:
            record = await self._wait_ended(record, wait)
        return await command_view(self.log, record)

    def _milliseconds(self, seconds: float | None, default: float, field: str) -> int:
        seconds = default if seconds is None else seconds
        if not 0 < seconds <= MAX_COMMAND_TIMEOUT_S:
            raise InvalidInputError(field, f"must be more than 0 s, got {seconds:g}", MAX_COMMAND_TIMEOUT_S)
        return min(max(1, int(seconds * 1000)), NUMBER_LIMIT)

    async def _submit(self, request: transactions.CommandRequest, params: Any, *, approval: bool) -> CallRecord:
        """Queue a command; hand it to a waiting worker in the same transaction if there is one."""
        self._monitor.start()
        if approval:
            expires = await self._store.clock() + int(self._settings.approval_expiry * 1000)
            approval_request = ev.ApprovalRequested(call="new:1", options=APPROVAL_OPTIONS, expires_at=expires)
            record = (await self._enqueue(request, [Draft(approval_request)], params, None))[0]
            if record.state == "awaiting_approval":
                await answer_by_rules(self.log, record.approval)
            return await self._store.call(record.id) or record
        ready = await self._dispatcher.reserve_waiter(request.queue, request.session)
        if ready is None:
            return (await self._enqueue(request, [], params, None))[0]
        return await finish_despite_cancel(self._hand_over(request, params, *ready))

    async def _hand_over(
        self, request: transactions.CommandRequest, params: Any, slot: WaiterSlot, worker: ClaimRequest
    ) -> CallRecord:
        """Queue a command and give it to a waiting worker, unless another command is ahead of it."""
        claimed: transactions.ClaimedCommand | None = None
        try:
            record, claimed = await self._enqueue(request, [], params, worker)
        finally:
            await self._dispatcher.deliver(slot, claimed)
        return record

    async def _enqueue(
        self,
        request: transactions.CommandRequest,
        approval: list[Draft],
        params: Any,
        worker: ClaimRequest | None,
    ) -> tuple[CallRecord, transactions.ClaimedCommand | None]:
        def work(
            unit: UnitOfWork, valid: list[Draft], context: WriteContext
        ) -> tuple[CallRecord, transactions.ClaimedCommand | None]:
            drafts, questions = valid[: len(request.drafts)], valid[len(request.drafts) :]
            proposal = drafts[-1].event
            assert isinstance(proposal, ev.CallProposed)
            is_unchanged = proposal.input is UNSET or codec.json_equal(proposal.input, params)
            full_params = None if is_unchanged else codec.encode(params)
            checked = transactions.CommandRequest(request.session, request.queue, drafts, questions, full_params)
            record = transactions.enqueue(unit, checked, context, self._settings)
            if worker is None or record.state != "queued" or not unit.has_room(record.client, 2):
                return record, None
            claimed = transactions.claim(unit, [record.id], worker.worker, worker.lease, self._context)
            return record if claimed is None else claimed.record, claimed

        return await self.log.transact_drafts(
            request.session, [*request.drafts, *approval], work, source=SOURCE, queue=request.queue
        )

    # Reading

    async def find(self, id_or_prefix: str, session: str = "", *, access: Access = FULL_ACCESS) -> CallRecord:
        """Find a command by its correlation id, or any other id of its call."""
        return await find_command(self.log, id_or_prefix, session=session, access=access)

    async def get(
        self, id_or_prefix: str, *, wait: float = 0.0, session: str = "", access: Access = FULL_ACCESS
    ) -> Command:
        """Return a command; with `wait`, when it has ended, or after so many seconds."""
        record = await self.find(id_or_prefix, session, access=access)
        if wait > 0 and record.state not in TERMINAL_STATES:
            record = await self._wait_ended(record, wait)
        return await self.view(record)

    async def _wait_ended(self, record: CallRecord, wait: float) -> CallRecord:
        ended = await self._monitor.wait_ended(record, wait)
        if ended is None:
            raise CommandNotFoundError(record.client_call_id or record.id)
        return ended

    async def view(self, record: CallRecord) -> Command:
        """Return a command; a queued one with its position, and when a worker last asked for work."""
        command = await command_view(self.log, record)
        if record.state == "queued" and record.client:
            before = await self._store.commands_before(record, MAX_POSITION)
            if before < MAX_POSITION:
                command.position = before + 1
            seen_at = await self._dispatcher.last_poll(record.client)
            command.executor_seen_at = moment(seen_at) if seen_at else None
        return command

    async def pending(self, queue: str = "", limit: int = 100, access: Access = FULL_ACCESS) -> list[Command]:
        """Return the open commands, oldest first."""
        return await self._list(lambda count: self._store.pending_commands(queue, count), limit, access)

    async def completed(self, queue: str = "", limit: int = 100, access: Access = FULL_ACCESS) -> list[Command]:
        """Return the commands completed in the last minute, newest first."""
        since = await self._store.clock() - int(self._settings.completed_window * 1000)
        return await self._list(lambda count: self._store.completed_commands(queue, count, since), limit, access)

    async def failed(self, queue: str = "", limit: int | None = None, access: Access = FULL_ACCESS) -> list[Command]:
        """Return the last hundred commands that ended otherwise, newest first."""
        window = self._settings.failed_window
        return await self._list(
            lambda count: self._store.failed_commands(queue, min(count, window)),
            window if limit is None else limit,
            access,
        )

    async def _list(
        self, read: Callable[[int], Awaitable[list[CallRecord]]], limit: int, access: Access
    ) -> list[Command]:
        records = await first_visible(read, lambda record: access.may(record.session, "read"), _check_limit(limit))
        return [await command_view(self.log, record) for record in records]

    # Running

    async def queued(
        self, queue: str = DEFAULT_QUEUE, *, session: str = "", limit: int = 100, access: Access = FULL_ACCESS
    ) -> list[Claim]:
        """Return the queued commands of a queue, oldest first, without claiming them."""
        check_id(queue, "queue", MAX_NAME_CHARS)
        _check_limit(limit)
        await self._dispatcher.record_poll(queue)
        claims: list[Claim] = []
        after = ""
        while len(claims) < limit:
            records = await self._store.queued_commands(queue, session, after, min(limit, 100))
            for record in records:
                if len(claims) < limit and await access.may(record.session, "execute"):
                    claims.append(await self._dispatcher.peek(record))
            if not records:
                break
            after = records[-1].id
        return claims

    async def claim(self, queue: str = DEFAULT_QUEUE, **options: Unpack[ClaimOptions]) -> Claim | None:
        """Claim the next command of a queue for the length of a lease; wait for one if there is none."""
        return await self.claim_as(FULL_ACCESS, queue, options)

    async def claim_as(self, access: Access, queue: str, options: ClaimOptions) -> Claim | None:
        """Claim the next command of a queue that the caller may run."""
        check_keywords("claim", options, ClaimOptions)
        worker, session = options.get("worker", ""), options.get("session", "")
        self._monitor.start()
        check_id(queue, "queue", MAX_NAME_CHARS)
        if worker:
            check_id(worker, "worker", MAX_NAME_CHARS)
        lease_s = self._milliseconds(options.get("lease"), self._settings.command_lease, "lease") / 1000

        async def may_execute(name: str) -> bool:
            return await access.may(name, "execute")

        request = ClaimRequest(queue, worker, lease_s, session, may_execute)
        return await self._dispatcher.claim(request, options.get("wait", 0.0))

    async def heartbeat(
        self,
        command: str | CallRecord,
        fence: int,
        *,
        lease: float | None = None,
        text: str = "",
        progress: Any = UNSET,
    ) -> int:
        """Renew the lease of a claimed command, with its progress if given. Return its end in ms since the epoch."""
        lease_s = self._milliseconds(lease, self._settings.command_lease, "lease") / 1000
        record = await self._record(command)
        if text or progress is not UNSET:
            await self._append(record, ev.CallProgress(call=record.id, text=text, progress=progress, attempt=fence))
        return await self._store.transact(
            lambda unit: transactions.renew_lease(unit, record.id, fence, lease_s, self._context),
            Touched((record.session,), calls=(record.id,)),
        )

    async def release(self, command: str | CallRecord, fence: int, reason: str = "") -> None:
        """Give a claimed command back: one that was not started, or one that may run twice."""
        record = await self._record(command)
        reason = reason or "released by its worker"
        await self._store.transact(
            lambda unit: transactions.release(unit, record.id, fence, reason, self._context),
            Touched((record.session,), calls=(record.id,)),
        )

    async def complete(self, command: str | CallRecord, result: Any = None, *, fence: int = 0) -> Command:
        """Complete a command. A repeated result counts once; one with a stale fence is kept as late."""
        record = await self._record(command)
        return await self._append(record, ev.CallCompleted(call=record.id, output=codec.to_json(result), attempt=fence))

    async def fail(self, command: str | CallRecord, error: Any, *, fence: int = 0) -> Command:
        """Fail a command."""
        record = await self._record(command)
        reason = error[:MAX_REASON_CHARS] if isinstance(error, str) else ""
        failed = ev.CallFailed(call=record.id, error=codec.to_json(error), reason=reason, attempt=fence)
        return await self._append(record, failed)

    async def expire(self, command: str | CallRecord, reason: str = "") -> Command:
        """End a command as if its timeout had passed."""
        record = await self._record(command)
        reason = reason or liveness.expired(record).reason
        return await self._append(record, ev.CallExpired(call=record.id, reason=reason))

    async def cancel(self, command: str | CallRecord, reason: str = "") -> Command:
        """Cancel a command. Its worker learns of it with the next heartbeat."""
        record = await self._record(command)
        return await self._append(record, ev.CallCancelled(call=record.id, reason=reason))

    async def _record(self, command: str | CallRecord) -> CallRecord:
        record = command if isinstance(command, CallRecord) else await self.find(command)
        if not record.client:
            raise InvalidInputError("call", f"{record.id} is not a command. Only its own program can report its end.")
        return record

    async def _append(self, record: CallRecord, event: ev.CallEvent) -> Command:
        def work(unit: UnitOfWork, drafts: list[Draft], context: WriteContext) -> tuple[Event, CallRecord]:
            return write_events(unit, record.session, drafts, context)[-1], unit.call(record.id) or record

        done, now = await self.log.transact_drafts(record.session, [event], work, source=SOURCE, strict=False)
        if done.verdict == "applied" and now.end == done.seq:
            return await command_view(self.log, now, done)
        if done.verdict in ("applied", "duplicate"):
            return await self.view(now)
        if now.state not in TERMINAL_STATES:
            raise transactions.stale(now)
        message = f"command {record.id} has ended: {now.state}"
        raise StaleClaimError(message, now) if was_stale(now, event) else ConflictError(message, now)

    async def close(self) -> None:
        """Stop watching and wake all waiters. The commands stay as they are."""
        await self._monitor.close()


def _check_limit(limit: int) -> int:
    if not 0 < limit <= NUMBER_LIMIT:
        raise InvalidInputError("limit", f"must be from 1 to {NUMBER_LIMIT}, got {limit}", NUMBER_LIMIT)
    return limit


def _check_correlation_id(correlation_id: str) -> str:
    check_id(correlation_id, "correlation_id", MAX_NAME_CHARS)
    if ids.CALL.match(correlation_id) or correlation_id.startswith("@"):
        raise InvalidInputError("correlation_id", "must not look like an execution id or start with @; leave it out")
    return correlation_id
