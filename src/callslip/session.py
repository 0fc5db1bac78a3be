"""What a program that runs tools holds in its hands: a session, a call while it runs, a function made a tool."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import UNSET

from callslip import codec
from callslip import events as ev
from callslip.entries import Snapshot
from callslip.errors import CallEnded, Denied, Illegal, Refused, StoreError
from callslip.events import Draft, Event
from callslip.lifecycle import ENDS
from callslip.rows import CallRow

if TYPE_CHECKING:
    from callslip.ledger import Ledger

T = TypeVar("T")
SOURCE = "python"
LONGEST_REASON = 2000
OPTIONS = [
    {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
    {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
]


class Session:
    """One conversation of an agent, by name."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def append(self, *drafts: Event | Draft, source: str = SOURCE, owner: str = "") -> Coroutine[Any, Any, list[Event]]:
        """Append events, all or none; an impossible step raises Illegal."""
        return self.ledger.append(self.name, drafts, source=source, owner=owner, strict=True)

    async def snapshot(self, limit: int | None = None) -> Snapshot:
        """The session as a reader sees it."""
        return await self.ledger.snapshot(self.name, **({} if limit is None else {"limit": limit}))

    async def turn(self, prompt: str = "") -> str:
        """Begin a turn with what a person said. Gives its id."""
        drafts: list[Event] = [ev.TurnStarted()]
        if prompt:
            drafts.append(ev.MessageUser(text=prompt))
        started = (await self.append(*drafts))[0]
        assert isinstance(started, ev.TurnStarted)
        return started.turn

    async def end_turn(self, reason: str = "end_turn") -> None:
        """End the turn; with `cancelled` or `error` the calls still open in it end too."""
        await self.append(ev.TurnEnded(reason=reason))

    async def say(self, text: str) -> None:
        """The agent says some more."""
        await self.append(ev.MessageDelta(text=text, chunks="delta"))

    async def think(self, text: str) -> None:
        """The agent thinks some more."""
        await self.append(ev.ThoughtDelta(text=text, chunks="delta"))

    def call(
        self,
        tool: str,
        input: Any = None,
        *,
        title: str = "",
        kind: str = "",
        timeout: float | None = None,
        approve: str = "",
        options: list[Any] | None = None,
    ) -> Call:
        """A call of a tool, to be used with `async with`. See `Call`."""
        return Call(self, tool, input, title=title, kind=kind, timeout=timeout, approve=approve, options=options)

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str = "",
        approve: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Make every call of a function a call in this session: sync, async or (async) generator functions.

        `approve="ask"` asks a person first. A generator's items are progress, the last one is also the output.
        """

        def wrap(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
            signature = inspect.signature(function)

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                called = self.call(
                    name or function.__name__, codec.safe(dict(bound.arguments)), approve=approve, timeout=timeout
                )
                async with called as call:
                    given = _edited(signature, call.input) if call.edited else bound
                    call.complete(result := await _result(function, given, call))
                    return result

            return run

        return wrap(function) if function is not None else wrap


def _edited(signature: inspect.Signature, input: Any) -> inspect.BoundArguments:
    """The arguments that a person put in place of the function's own. What does not fit is not run."""
    if not isinstance(input, dict):
        raise TypeError("the edited arguments are not an object")
    given = cast("dict[str, Any]", input)
    unknown = sorted(set(given) - set(signature.parameters))
    if unknown:
        raise TypeError(f"the edited arguments have no place in the function: {', '.join(unknown)}")
    return inspect.BoundArguments(signature, OrderedDict(given))


async def _result(function: Callable[..., Any], given: inspect.BoundArguments, call: Call) -> Any:
    """Run a function of any kind; a sync one in a thread, so that the loop goes on."""
    run = functools.partial(function, *given.args, **given.kwargs)
    last: Any = None
    if inspect.isasyncgenfunction(function):
        async with contextlib.aclosing(run()) as items:
            async for last in items:
                await call.progress(_line(last))
        return last
    if inspect.isgeneratorfunction(function):
        generator = run()
        while (item := await asyncio.to_thread(next, generator, _DONE)) is not _DONE:
            last = item
            await call.progress(_line(item))
        return last
    if inspect.iscoroutinefunction(function):
        return await run()
    result = await asyncio.to_thread(run)
    return await result if inspect.isawaitable(result) else result


_DONE = object()
_NEW = "new:1"


def _line(item: Any) -> str:
    return item if isinstance(item, str) else codec.encode(codec.safe(item)).decode() + "\n"


class Call:
    """A call while it runs. Leaving the block ends it: completed, failed with the exception, cancelled, or expired.

    With `approve="ask"` entering waits for a person; a refusal raises Denied.
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
        self._outcome: ev.CallEnd | None = None
        self._scope: asyncio.Timeout | None = None
        self._asked = 0
        if approve not in ("", "ask"):
            raise Refused("approve", f"is {approve!r}, not 'ask'")

    async def __aenter__(self) -> Call:
        try:
            await _certainly(self._begin())
            if self._approve:
                await self._answer()
                await _certainly(self._append(ev.CallStarted(call=self.id)))
        except BaseException as error:
            if self.id:
                with contextlib.suppress(StoreError):  # A closed ledger has ended the call itself.
                    await _certainly(self._abandon(error))
            raise
        if self._timeout is not None:
            self._scope = asyncio.timeout(self._timeout)
            await self._scope.__aenter__()
        return self

    async def _append(self, *drafts: Event) -> list[Event]:
        return await self.session.append(*drafts, owner=self.session.ledger.owner)

    async def _begin(self) -> None:
        ledger = self.session.ledger
        proposed = ev.CallProposed(
            call=_NEW,
            tool_name=self._tool,
            title=self._title or UNSET,
            kind=self._kind or UNSET,
            input=UNSET if self.input is None else self.input,
        )
        second: Event = ev.CallStarted(call=_NEW)
        if self._approve:
            expires = await ledger.store.clock() + int(ledger.settings.approval_expiry * 1000)
            second = ev.ApprovalRequested(call=_NEW, options=self._options or OPTIONS, expires_at=expires)
        _, done = await self._append(proposed, second)
        assert isinstance(done, ev.CallEvent)
        self.id, self._asked = done.call, done.seq

    async def _answer(self) -> None:
        """Wait until somebody has answered, or the call has ended otherwise."""
        async with contextlib.aclosing(self.session.ledger.follow(self.session.name, self._asked)) as batches:
            async for batch in batches:
                for event in (stored.event for stored in batch):
                    if isinstance(event, ev.CallEvent) and event.call == self.id and event.verdict == "applied":
                        if isinstance(event, ev.ApprovalGranted):
                            if event.input is not UNSET:
                                self.input, self.edited = event.input, True
                            return
                        if isinstance(event, ev.ApprovalAnswer | ev.CallEnd):
                            raise Denied(event.reason or "the call was not approved")

    async def _abandon(self, error: BaseException) -> None:
        row = await self.session.ledger.store.call(self.id)
        if row is not None and row.state not in ENDS:
            await self._append(ev.CallCancelled(call=self.id, reason=_why(error)))

    def complete(self, output: Any = None) -> None:
        """What came out; taken at the end of the block. Anything will do: it is made JSON (S1.5)."""
        self._outcome = ev.CallCompleted(call=self.id, output=codec.safe(output))

    def fail(self, error: Any, reason: str = "") -> None:
        """Say that it went wrong without raising."""
        self._outcome = ev.CallFailed(call=self.id, error=codec.safe(error), reason=reason)

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
        ending = self._ended_by(error, timed_out)
        try:
            await _certainly(self._append(ending))
        except Refused as refusal:
            await _certainly(self._append(_without_outcome(ending, refusal)))
        if timed_out:
            raise CallEnded("expired", f"no result within {self._timeout:g} s") from error

    def _ended_by(self, error: BaseException | None, timed_out: bool) -> ev.CallEnd:
        if timed_out:
            return ev.CallExpired(call=self.id, reason=f"no result within {self._timeout:g} s")
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return ev.CallCancelled(call=self.id, reason=_why(error))
        if error is not None:
            return ev.CallFailed(call=self.id, error=codec.safe(error), reason=_why(error))
        return self._outcome or ev.CallCompleted(call=self.id)

    async def result(self) -> CallRow:
        """The call's row as it stands."""
        row = await self.session.ledger.store.call(self.id)
        if row is None:
            raise Illegal(f"call {self.id} was never begun")
        return row


async def _certainly(writing: Coroutine[Any, Any, T]) -> T:
    """Finish a write although its writer is cancelled meanwhile: what became of a call must be known."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _without_outcome(ending: ev.CallEnd, refusal: Refused) -> ev.CallEnd:
    """An outcome that the ledger cannot keep still ends its call (C5)."""
    kind = ev.CallFailed if isinstance(ending, ev.CallCompleted) else type(ending)
    reason = ending.reason or "what came out could not be kept"
    return kind(call=ending.call, reason=reason[:LONGEST_REASON], error=str(refusal))


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError) and not error.args:
        return "cancelled by the program that ran it"
    try:
        said = str(error)
    except Exception:  # Its text is somebody else's code.
        said = ""
    name = type(error).__name__
    return f"{name}: {said}"[:LONGEST_REASON] if said else name
