"""A call that this process runs: proposed, approved if needed, started, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from msgspec import UNSET

from callslip.api.keywords import check_keywords
from callslip.api.rules import answer_by_rules
from callslip.errors import (
    CallDeniedError,
    CallEndedError,
    CallTimeoutError,
    InvalidInputError,
    InvalidTransitionError,
    NotFoundError,
    StoreError,
)
from callslip.ledger.aio import finish_despite_cancel, race
from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import APPROVAL_OPTIONS, TERMINAL_STATES

if TYPE_CHECKING:
    from callslip.api.session import Session

T = TypeVar("T")
MAX_REASON_CHARS = 2000
_NEW_CALL = "new:1"


class CallOptions(TypedDict, total=False):
    """What a call may have besides its tool and its arguments."""

    title: str
    kind: str
    timeout: float | None
    """Seconds after which the call expires."""
    approval: bool
    """Wait for a person's approval before the call starts."""
    options: Sequence[Any] | None
    """The answers that the person may choose from. Approve and deny by default."""
    schema: Any
    """The JSON Schema of the arguments, which edited arguments must match."""
    alias: tuple[str, str] | None
    """The format and the id that the model gave the call, to start one that a recorded stream has proposed."""
    proposed: str
    """The execution id of a call that was proposed, to start that one."""


class Call:
    """A call while it runs. Leaving the block ends it: completed, failed with the exception, cancelled, or expired.

    Another process may end it first, for example with `callslip cancel`. The block is not interrupted; its outcome
    is then recorded as late. Use `run` for work that should stop in this case.

    With `approval` entering the block waits for a person; a denial raises CallDeniedError. Arguments that the person
    edited are in `input` then, and `edited` is true; they match the `schema`, if there is one.
    """

    def __init__(self, session: Session, tool: str, input: Any, options: CallOptions) -> None:
        check_keywords("call", options, CallOptions)
        self.session = session
        self.id = ""
        self.input: Any = input
        self.edited = False
        self._log = session.log
        self._tool = tool
        self._title = options.get("title", "")
        self._kind = options.get("kind", "")
        self._timeout = options.get("timeout")
        self._approval = options.get("approval", False)
        self._answers = options.get("options")
        self._schema = options.get("schema")
        alias = options.get("alias")
        self._aliases = (Alias(*alias),) if alias else ()
        self._proposed = options.get("proposed", "")
        self._outcome: ev.CallEnd | None = None
        self._timeout_scope: asyncio.Timeout | None = None
        self._exit_stack = contextlib.AsyncExitStack()
        self._last_seq = 0
        self._requested = ""
        self._ended_elsewhere = False

    def __repr__(self) -> str:
        return f"<Call {self.id or 'not started'} {self._tool!r} in session {self.session.name!r}>"

    async def __aenter__(self) -> Call:
        if self.id:
            raise InvalidTransitionError(f"call {self.id} was started before. Create a new call.")
        try:
            await finish_despite_cancel(self._begin())
            await self._exit_stack.enter_async_context(self._log.keep_alive(self.id))
            if self._approval:
                await self._apply_rules()
                await self._wait_for_answer()
                await finish_despite_cancel(self._open(ev.CallStarted(call=self.id)))
        except BaseException as error:
            if self.id:
                with contextlib.suppress(StoreError):  # A closed ledger has ended the call itself.
                    await finish_despite_cancel(self._abandon(error))
            await self._exit_stack.aclose()
            raise
        if self._timeout is not None:
            self._timeout_scope = asyncio.timeout(self._timeout)
            await self._timeout_scope.__aenter__()
        return self

    async def _append(self, *events: Event) -> list[Event]:
        """Append events; the call ends with this process."""
        log = self._log
        return await log.append(self.session.name, events, source=SOURCE_PYTHON, owner=log.owner, strict=True)

    async def _begin(self) -> None:
        call = self._proposed or _NEW_CALL
        labels: dict[str, Any] = {"title": self._title or UNSET, "kind": self._kind or UNSET}
        drafts: list[Event] = []
        if not self._proposed:
            input = UNSET if self.input is None else self.input
            drafts.append(
                ev.CallProposed(call=call, aliases=self._aliases, tool_name=self._tool, input=input, **labels)
            )
            labels = {}
        if self._approval:
            request = ev.ApprovalRequested(
                call=call,
                options=list(self._answers or APPROVAL_OPTIONS),
                expires_at=await self._log.approval_deadline(),
                schema=codec.to_json(self._schema),
                **labels,
            )
            drafts.append(request)
        else:
            drafts.append(ev.CallStarted(call=call, **labels))
        await self._open(*drafts)

    async def _open(self, *drafts: Event) -> None:
        """Append the opening events. Raise CallEndedError if the call has already ended."""
        event = (await self._append(*drafts))[-1]
        assert isinstance(event, ev.CallEvent)
        self.id, self._last_seq = event.call, event.seq
        self._requested = event.approval if isinstance(event, ev.ApprovalRequested) else ""
        if event.verdict != "applied":
            record = await self.result()
            raise CallEndedError(record.state, record.reason or "the call had ended before it could run")

    async def _apply_rules(self) -> None:
        """Answer the request if a saved rule decides it. A server does that for the calls of its clients."""
        if isinstance(self._log, EventLog):
            await answer_by_rules(self._log, self._requested)

    async def _wait_for_answer(self) -> None:
        async with contextlib.aclosing(self._log.follow(self.session.name, self._last_seq)) as events:
            async for event in events:
                if not isinstance(event, ev.CallEvent) or event.call != self.id or event.verdict != "applied":
                    continue
                if isinstance(event, ev.ApprovalGranted):
                    if event.input is not UNSET:
                        self.input, self.edited = self._log.restore_secrets(event.input, self.input), True
                    return
                if isinstance(event, ev.ApprovalAnswer | ev.CallEnd):
                    raise CallDeniedError(event.reason or "the call was not approved")

    async def _abandon(self, error: BaseException) -> None:
        record = await self._log.get_call(self.id)
        if record is not None and record.state not in TERMINAL_STATES:
            await self._append(ev.CallCancelled(call=self.id, reason=describe_error(error)))

    def complete(self, output: Any = None, **fields: Any) -> None:
        """Set the output; it is recorded when the block ends. Any value is accepted: it is converted to JSON."""
        self._outcome = ev.CallCompleted(call=self.id, output=codec.to_json(output), **fields)

    def fail(self, error: Any = UNSET, reason: str = "", **fields: Any) -> None:
        """Set the outcome to failed without raising an exception."""
        error = UNSET if error is UNSET else codec.to_json(error)
        self._outcome = ev.CallFailed(call=self.id, error=error, reason=reason, **fields)

    def expire(self, reason: str, **fields: Any) -> None:
        """Set the outcome to expired."""
        self._outcome = ev.CallExpired(call=self.id, reason=reason, **fields)

    @property
    def has_outcome(self) -> bool:
        """Whether `complete`, `fail` or `expire` was called."""
        return self._outcome is not None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Cancel it and raise CallEndedError if the call ends first."""
        outcome = await race(work, self._wait_ended())
        if not isinstance(outcome, _Ended):
            return outcome
        self._ended_elsewhere = True
        record = outcome.record
        raise CallEndedError(record.state, record.reason or "another process ended the call while it ran")

    async def _wait_ended(self) -> _Ended:
        await self._log.wait_ended(self.session.name, self.id)
        return _Ended(await self.result())

    async def progress(self, text: str = "", **fields: Any) -> None:
        """Record progress: output text to append, or title, content, locations, progress."""
        self._require_started()
        await self._append(ev.CallProgress(call=self.id, text=text, **fields))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timed_out = False
        if self._timeout_scope is not None:
            try:
                await self._timeout_scope.__aexit__(kind, error, trace)
            except TimeoutError:
                timed_out = True
        try:
            if self._ended_elsewhere:
                return
            end = self._end_event(error, timed_out)
            try:
                await finish_despite_cancel(self._append(end))
            except InvalidInputError as refusal:
                await finish_despite_cancel(self._append(_without_outcome(end, refusal)))
        finally:
            await self._exit_stack.aclose()
        if timed_out:
            raise CallTimeoutError("expired", f"no result within {self._timeout:g} s") from error

    def _end_event(self, error: BaseException | None, timed_out: bool) -> ev.CallEnd:
        if timed_out:
            return ev.CallExpired(call=self.id, reason=f"no result within {self._timeout:g} s")
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return ev.CallCancelled(call=self.id, reason=describe_error(error))
        if error is not None:
            return ev.CallFailed(call=self.id, error=codec.to_json(error), reason=describe_error(error))
        return self._outcome or ev.CallCompleted(call=self.id)

    async def result(self) -> CallRecord:
        """Return the call's record as it is now."""
        self._require_started()
        record = await self._log.get_call(self.id)
        if record is None:
            raise NotFoundError(f"call {self.id} was deleted with its session")
        return record

    def _require_started(self) -> None:
        if not self.id:
            raise InvalidTransitionError("the call has not started. Use it with `async with`.")


class _Ended:
    """The record of a call that another process ended."""

    def __init__(self, record: CallRecord) -> None:
        self.record = record


def _without_outcome(end: ev.CallEnd, refusal: InvalidInputError) -> ev.CallEnd:
    """Return an end without its output, for an output that the ledger cannot store."""
    kind = ev.CallFailed if isinstance(end, ev.CallCompleted) else type(end)
    reason = end.reason or "the output could not be stored"
    return kind(call=end.call, reason=reason[:MAX_REASON_CHARS], error=str(refusal))


def describe_error(error: BaseException) -> str:
    """Return what went wrong in one line, for a model and a person."""
    if isinstance(error, asyncio.CancelledError) and not error.args:
        return "cancelled by the program that ran it"
    try:
        text = str(error)
    except Exception:  # str() of an exception runs code of others.
        text = ""
    name = type(error).__name__
    return f"{name}: {text}"[:MAX_REASON_CHARS] if text else name
