"""What a program that runs tools holds in its hands: a session, a call while it runs, a function made a tool."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from callslip import codec
from callslip import events as ev
from callslip.entries import Snapshot
from callslip.errors import CallEnded, Denied, Illegal
from callslip.events import Draft, Event
from callslip.lifecycle import ENDS
from callslip.rows import CallRow

if TYPE_CHECKING:
    from callslip.ledger import Ledger

SOURCE = "python"
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
            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                bound = inspect.signature(function).bind(*args, **kwargs)
                bound.apply_defaults()
                called = self.call(
                    name or function.__name__, codec.safe(dict(bound.arguments)), approve=approve, timeout=timeout
                )
                async with called as call:
                    given: dict[str, Any] = call.input if call.edited else bound.arguments
                    call.complete(result := await _result(function, dict(given), call))
                    return result

            return run

        return wrap(function) if function is not None else wrap


async def _result(function: Callable[..., Any], arguments: dict[str, Any], call: Call) -> Any:
    """Run a function of any kind; a sync one in a thread, so that the loop goes on."""
    if inspect.isasyncgenfunction(function):
        last: Any = None
        async for last in function(**arguments):
            await call.progress(_line(last))
        return last
    if inspect.isgeneratorfunction(function):
        generator = function(**arguments)
        last = None
        while (item := await asyncio.to_thread(next, generator, _DONE)) is not _DONE:
            last = item
            await call.progress(_line(item))
        return last
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await asyncio.to_thread(functools.partial(function, **arguments))
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

    async def __aenter__(self) -> Call:
        proposed = ev.CallProposed(
            call=_NEW,
            tool_name=self._tool,
            title=self._title or UNSET,
            kind=self._kind or UNSET,
            input=UNSET if self.input is None else self.input,
        )
        if self._approve == "ask":
            await self._ask(proposed)
            await self._append(ev.CallStarted(call=self.id))
        else:
            self.id = _id_of((await self._append(proposed, ev.CallStarted(call=_NEW)))[0])
        if self._timeout is not None:
            self._scope = asyncio.timeout(self._timeout)
            await self._scope.__aenter__()
        return self

    async def _append(self, *drafts: Event) -> list[Event]:
        return await self.session.append(*drafts, owner=self.session.ledger.owner)

    async def _ask(self, proposed: ev.CallProposed) -> None:
        ledger = self.session.ledger
        expires = await ledger.store.clock() + int(ledger.settings.approval_expiry * 1000)
        request = ev.ApprovalRequested(call=_NEW, options=self._options or OPTIONS, expires_at=expires)
        _, asked = await self._append(proposed, request)
        self.id = _id_of(asked)
        try:
            await self._answer(asked.seq)
        except BaseException as error:
            await self._abandon(error)
            raise

    async def _answer(self, asked: int) -> None:
        """Wait until somebody has answered, or the call has ended otherwise."""
        async for batch in self.session.ledger.follow(self.session.name, asked):
            for event in (stored.event for stored in batch):
                if not isinstance(event, ev.CallEvent) or event.call != self.id or event.verdict != "applied":
                    continue
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
    ) -> bool:
        timed_out = False
        if self._scope is not None:
            try:
                await self._scope.__aexit__(kind, error, trace)
            except TimeoutError:
                timed_out = True
        await asyncio.shield(self._append(self._ended_by(error, timed_out)))
        if timed_out:
            raise CallEnded("expired", f"no result within {self._timeout:g} s") from error
        return False

    def _ended_by(self, error: BaseException | None, timed_out: bool) -> Event:
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


def _id_of(event: Event) -> str:
    assert isinstance(event, ev.CallEvent)
    return event.call


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
