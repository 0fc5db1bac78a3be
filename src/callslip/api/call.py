"""A call while it runs in this process: begun, perhaps approved, told about, and certainly ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET

from callslip.errors import CallDeniedError, CallEndedError, InvalidInputError, InvalidTransitionError, StoreError
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import APPROVAL_OPTIONS, TERMINAL_STATES

if TYPE_CHECKING:
    from callslip.api.session import Session

T = TypeVar("T")
S = TypeVar("S")
SOURCE = SOURCE_PYTHON
MAX_REASON_CHARS = 2000
_NEW = "new:1"


class _Ended:
    """That somebody else ended the call, and how."""

    def __init__(self, row: CallRecord) -> None:
        self.row = row


class Call:
    """A call while it runs. Leaving the block ends it: completed, failed with the exception, cancelled, or expired.

    Somebody else may end it first, with `callslip cancel` for one. The block is not interrupted by that: what it does
    is its own, and how it leaves is noted as late. Work that is to stop then goes through `run`.

    With `approve="ask"` entering waits for a person; a refusal raises Denied. Arguments that the person changed are in
    `input` then, and `edited` says so; they fit the `schema`, if there is one.
    """

    def __init__(
        self,
        session: Session,
        tool: str,
        input: Any,
        *,
        title: str = "",
        kind: str = "",
        timeout: float | None = None,
        approve: str = "",
        options: list[Any] | None = None,
        schema: Any = None,
        aliases: tuple[Alias, ...] = (),
        proposed: str = "",
    ) -> None:
        self.session = session
        self.id = ""
        self.input: Any = input
        self.edited = False
        self._tool = tool
        self._title = title
        self._kind = kind
        self._timeout = timeout
        self._approve = approve
        self._options = options
        self._schema = schema
        self._aliases = aliases
        self._proposed = proposed
        self._outcome: ev.CallEnd | None = None
        self._scope: asyncio.Timeout | None = None
        self._asked = 0
        self._over = False
        if approve not in ("", "ask"):
            raise InvalidInputError("approve", f"is {approve!r}, not 'ask'")

    async def __aenter__(self) -> Call:
        try:
            await finish_despite_cancel(self._begin())
            if self._approve:
                await self._answer()
                await finish_despite_cancel(self._open(ev.CallStarted(call=self.id)))
        except BaseException as error:
            if self.id:
                with contextlib.suppress(StoreError):  # A closed ledger has ended the call itself.
                    await finish_despite_cancel(self._abandon(error))
            raise
        if self._timeout is not None:
            self._scope = asyncio.timeout(self._timeout)
            await self._scope.__aenter__()
        return self

    async def _append(self, *drafts: Event) -> list[Event]:
        return await self.session.append(*drafts, owner=self.session.ledger.log.owner)

    async def _begin(self) -> None:
        ledger = self.session.ledger
        name = self._proposed or _NEW
        told = {} if not self._proposed else self._told()
        drafts: list[Event] = [ev.CallStarted(call=name, **told)]
        if self._approve:
            expires = await ledger.log.store.clock() + int(ledger.log.settings.approval_expiry * 1000)
            options = self._options or APPROVAL_OPTIONS
            drafts = [
                ev.ApprovalRequested(
                    call=name, options=options, expires_at=expires, schema=codec.to_json(self._schema), **told
                )
            ]
        if not self._proposed:
            drafts.insert(0, self._proposal())
        await self._open(*drafts)

    async def _open(self, *drafts: Event) -> None:
        """Write what must come before the work. A call that somebody has ended by then is not run."""
        done = (await self._append(*drafts))[-1]
        assert isinstance(done, ev.CallEvent)
        self.id, self._asked = done.call, done.seq
        if done.verdict != "applied":
            row = await self.result()
            raise CallEndedError(row.state, row.reason or "the call had ended before it could be run")

    def _proposal(self) -> Event:
        return ev.CallProposed(
            call=_NEW,
            aliases=self._aliases,
            tool_name=self._tool,
            input=UNSET if self.input is None else self.input,
            **self._told(),
        )

    def _told(self) -> dict[str, Any]:
        return {"title": self._title or UNSET, "kind": self._kind or UNSET}

    async def _answer(self) -> None:
        """Wait until somebody has answered, or the call has ended otherwise."""
        async with contextlib.aclosing(self.session.ledger.log.batches(self.session.name, self._asked)) as batches:
            async for batch in batches:
                for event in (stored.event for stored in batch):
                    if isinstance(event, ev.CallEvent) and event.call == self.id and event.verdict == "applied":
                        if isinstance(event, ev.ApprovalGranted):
                            if event.input is not UNSET:
                                restored = self.session.ledger.log.redactor.restored
                                self.input, self.edited = restored(event.input, self.input), True
                            return
                        if isinstance(event, ev.ApprovalAnswer | ev.CallEnd):
                            raise CallDeniedError(event.reason or "the call was not approved")

    async def _abandon(self, error: BaseException) -> None:
        row = await self.session.ledger.log.store.call(self.id)
        if row is not None and row.state not in TERMINAL_STATES:
            await self._append(ev.CallCancelled(call=self.id, reason=describe_error(error)))

    def complete(self, output: Any = None, **told: Any) -> None:
        """What came out; taken at the end of the block. Anything will do: it is made JSON (S1.5)."""
        self._outcome = ev.CallCompleted(call=self.id, output=codec.to_json(output), **told)

    def fail(self, error: Any = UNSET, reason: str = "", **told: Any) -> None:
        """Say that it went wrong without raising."""
        said = UNSET if error is UNSET else codec.to_json(error)
        self._outcome = ev.CallFailed(call=self.id, error=said, reason=reason, **told)

    def expire(self, reason: str, **told: Any) -> None:
        """Say that it took too long."""
        self._outcome = ev.CallExpired(call=self.id, reason=reason, **told)

    @property
    def has_outcome(self) -> bool:
        """Whether it was said how the call ends."""
        return self._outcome is not None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work. If somebody ends the call meanwhile the work is stopped, and CallEnded raised."""
        made = await race(work, self._ended())
        if not isinstance(made, _Ended):
            return made
        self._over = True
        raise CallEndedError(made.row.state, made.row.reason or "somebody ended the call while it ran")

    async def _ended(self) -> _Ended:
        await self.session.ledger.log.feed.until_ended(self.session.name, self.id)
        return _Ended(await self.result())

    async def progress(self, text: str = "", **told: Any) -> None:
        """Tell more while it runs: output to append, or title, content, locations, progress."""
        await self._append(ev.CallProgress(call=self.id, text=text, **told))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timed_out = False
        if self._scope is not None:
            try:
                await self._scope.__aexit__(kind, error, trace)
            except TimeoutError:
                timed_out = True
        if self._over:
            return
        ending = self._ended_by(error, timed_out)
        try:
            await finish_despite_cancel(self._append(ending))
        except InvalidInputError as refusal:
            await finish_despite_cancel(self._append(_without_outcome(ending, refusal)))
        if timed_out:
            raise CallEndedError("expired", f"no result within {self._timeout:g} s") from error

    def _ended_by(self, error: BaseException | None, timed_out: bool) -> ev.CallEnd:
        if timed_out:
            return ev.CallExpired(call=self.id, reason=f"no result within {self._timeout:g} s")
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return ev.CallCancelled(call=self.id, reason=describe_error(error))
        if error is not None:
            return ev.CallFailed(call=self.id, error=codec.to_json(error), reason=describe_error(error))
        return self._outcome or ev.CallCompleted(call=self.id)

    async def result(self) -> CallRecord:
        """The call's row as it stands."""
        row = await self.session.ledger.log.store.call(self.id)
        if row is None:
            raise InvalidTransitionError(f"call {self.id} was never begun")
        return row


async def finish_despite_cancel(writing: Coroutine[Any, Any, T]) -> T:
    """Finish a write although its writer is cancelled meanwhile: what became of a call must be known."""
    task = asyncio.ensure_future(writing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    task.exception()  # Nobody waits for it any more.
    raise cancelled


async def race(work: Coroutine[Any, Any, T], stop: Coroutine[Any, Any, S]) -> T | S:
    """The result of some work, or what stops it: whichever is there first. The other has ended then too."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        return (working if working.done() else stopping).result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _without_outcome(ending: ev.CallEnd, refusal: InvalidInputError) -> ev.CallEnd:
    """An outcome that the ledger cannot keep still ends its call (C5)."""
    kind = ev.CallFailed if isinstance(ending, ev.CallCompleted) else type(ending)
    reason = ending.reason or "what came out could not be kept"
    return kind(call=ending.call, reason=reason[:MAX_REASON_CHARS], error=str(refusal))


def describe_error(error: BaseException) -> str:
    """What went wrong, in a line that a model and a person can read."""
    if isinstance(error, asyncio.CancelledError) and not error.args:
        return "cancelled by the program that ran it"
    try:
        said = str(error)
    except Exception:  # Its text is somebody else's code.
        said = ""
    name = type(error).__name__
    return f"{name}: {said}"[:MAX_REASON_CHARS] if said else name
