"""The ledger for programs without an event loop: the same names, as plain methods.

The ledger runs on an event loop in a background thread; every method waits for it. Ctrl-C interrupts the wait and
cancels the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

from msgspec import UNSET

from callslip.api.call import Call, CallOptions
from callslip.api.commands import ClaimOptions, Commands, SubmitOptions
from callslip.api.follow import Frame
from callslip.api.ledger import Ledger, OpenLedger
from callslip.api.rule_book import RuleBook, RulePreview, RuleTest
from callslip.api.rules import DecisionView, NewRule, PolicyView, RuleView
from callslip.api.search import SearchFilters
from callslip.api.session import Session, set_in_block
from callslip.api.session_list import SessionFilters
from callslip.api.tools import ToolFunction, to_input
from callslip.api.turn import Turn
from callslip.api.usage import UsageFilters, UsageReport
from callslip.commands import Claim, Command
from callslip.errors import NoSessionError
from callslip.formats.base import RequiresValidation
from callslip.ledger.checkpoint import ALL
from callslip.model.entries import Snapshot, ToolCall
from callslip.model.events import Chunks, Event
from callslip.model.records import ApprovalRecord, CallRecord, ListedSession, Page, SessionRecord
from callslip.model.search import SearchResults

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Ledger)


class BackgroundLoop:
    """An event loop in a thread, and the ways to wait for it from other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callslip-loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the loop and join its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, awaitable: Awaitable[T]) -> T:
        """Return the result of an awaitable."""

        async def wait() -> T:
            return await awaitable

        future = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T]) -> Generator[T]:
        """Yield the items of an async generator, and close it."""
        task: asyncio.Task[Any] | None = None

        async def step() -> list[T]:
            nonlocal task
            task = asyncio.current_task()
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        async def close() -> None:
            if task is not None and not task.done():  # After Ctrl-C the last step may still be running.
                task.cancel()
                await asyncio.wait([task])
            await items.aclose()

        try:
            while found := self.run(step()):
                yield found[0]
        finally:
            self.run(close())

    @contextlib.contextmanager
    def enter(self, manager: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Enter and leave an async context manager.

        One task of the loop stays inside it, so that a timeout of the block takes effect when it is due; the caller
        receives it when it leaves the block.
        """
        entered: Future[T] = Future()
        leaving: asyncio.Future[BaseException | None] = self._loop.create_future()
        inside = asyncio.run_coroutine_threadsafe(_stay_inside(manager, entered, leaving), self._loop)
        inside.add_done_callback(lambda _: entered.cancel())
        try:
            value = entered.result()
        except CancelledError:
            inside.result()  # Raises what prevented entering.
            raise
        except KeyboardInterrupt:
            inside.cancel()
            raise

        def leave(error: BaseException | None) -> bool:
            self._loop.call_soon_threadsafe(lambda: leaving.done() or leaving.set_result(error))
            return inside.result()

        try:
            yield value
        except BaseException as error:
            if not leave(error):
                raise
        else:
            leave(None)


async def _stay_inside(
    manager: AbstractAsyncContextManager[T], entered: Future[T], leaving: asyncio.Future[BaseException | None]
) -> bool:
    """Return whether the manager suppressed the error, which is passed to it, not raised: it must not end the loop."""
    entered.set_result(await manager.__aenter__())
    try:
        error = await leaving
    except asyncio.CancelledError as cancelled:
        await manager.__aexit__(type(cancelled), cancelled, cancelled.__traceback__)
        raise
    if error is None:
        return bool(await manager.__aexit__(None, None, None))
    return bool(await manager.__aexit__(type(error), error, error.__traceback__))


class SyncLedger(Generic[L]):
    """A ledger with plain methods. Open it with `callslip.sync.open` or `callslip.sync.connect`; `with` closes it.

    `ledger` is the asynchronous ledger and `loop` the background loop that it runs on.
    """

    def __init__(self, opener: OpenLedger[L]) -> None:
        self.loop = BackgroundLoop()
        self._run = self.loop.run
        try:
            self.ledger: L = self._run(opener)
        except BaseException:
            self.loop.stop()
            raise
        self.commands = SyncCommands(self.ledger.commands, self.loop)
        self.rules = SyncRules(self.ledger.rules, self.loop)

    def __repr__(self) -> str:
        return f"<SyncLedger {self.ledger!r}>"

    def __enter__(self) -> SyncLedger[L]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the ledger and stop its loop."""
        try:
            self._run(self.ledger.close())
        finally:
            self.loop.stop()

    def session(self, name: str) -> SyncSession:
        """Return a session by name. It is created with its first event."""
        return SyncSession(self.ledger.session(name), self.loop)

    def sessions(self, *, limit: int = 100, cursor: str = "", **filters: Unpack[SessionFilters]) -> Page[ListedSession]:
        """Return sessions, the last active first unless sorted otherwise."""
        return self._run(self.ledger.sessions(limit=limit, cursor=cursor, **filters))

    def usage(self, by: str = "", **filters: Unpack[UsageFilters]) -> UsageReport:
        """Return the tokens and costs of each group: by day, model, project, agent, session, turn or call."""
        return self._run(self.ledger.usage(by, **filters))

    def search(
        self, query: str, *, limit: int = 20, cursor: str = "", **filters: Unpack[SearchFilters]
    ) -> SearchResults:
        """Return the entries whose texts have all words of a query, the best first."""
        return self._run(self.ledger.search(query, limit=limit, cursor=cursor, **filters))

    def calls(
        self, *, session: str = "", states: Sequence[str] = (), limit: int = 100, cursor: str = ""
    ) -> Page[CallRecord]:
        """Return calls, newest first."""
        return self._run(self.ledger.calls(session=session, states=states, limit=limit, cursor=cursor))

    def approvals(self, *, session: str = "", state: str = "pending", limit: int = 100) -> list[ApprovalRecord]:
        """Return approvals, oldest first."""
        return self._run(self.ledger.approvals(session=session, state=state, limit=limit))

    def find(self, id: str, session: str = "") -> SessionRecord | CallRecord | ApprovalRecord:
        """Find what an id names: a session, a call or an approval."""
        return self._run(self.ledger.find(id, session))

    def find_session(self, id: str) -> SessionRecord:
        """Find a session by its name, by a prefix that matches only one, or `@last` for the last written."""
        return self._run(self.ledger.find_session(id))

    def find_call(self, id: str, session: str = "") -> CallRecord:
        """Find a call by its id, a prefix of it, an id of its producer, its approval, or `@last` for the newest."""
        return self._run(self.ledger.find_call(id, session))

    def find_approval(self, id: str, session: str = "") -> ApprovalRecord:
        """Find an approval by its id, a prefix of it, its call, or `@last` for the newest pending one."""
        return self._run(self.ledger.find_approval(id, session))

    def approve(
        self, id: str, *, by: str = "", option: str = "", input: Any = UNSET, reason: str = ""
    ) -> ApprovalRecord:
        """Approve a call, with `input` as its arguments if given."""
        return self._run(self.ledger.approve(id, by=by, option=option, input=input, reason=reason))

    def deny(self, id: str, *, by: str = "", option: str = "", reason: str = "") -> ApprovalRecord:
        """Deny a call. The model reads the reason."""
        return self._run(self.ledger.deny(id, by=by, option=option, reason=reason))

    def cancel(self, id: str, *, by: str = "", reason: str = "") -> CallRecord:
        """Cancel an open call. Raise ConflictError if it has ended otherwise."""
        return self._run(self.ledger.cancel(id, by=by, reason=reason))

    def wait(self, id: str, timeout: float | None = None) -> CallRecord:
        """Wait until a call has ended, and return it. Raise WaitTimeoutError after `timeout` seconds."""
        return self._run(self.ledger.wait(id, timeout))

    def entry(self, call: str) -> ToolCall | None:
        """Return a call's entry: its arguments, progress and output."""
        return self._run(self.ledger.entry(call))

    def snapshot(self, session: str, *, limit: int = ALL, before: int = ALL) -> Snapshot:
        """Return a session's newest entries."""
        return self._run(self.ledger.snapshot(session, limit=limit, before=before))

    def events(self, session: str, after: int = 0, upto: int | None = None) -> Generator[Event]:
        """Yield the recorded events of a session in order, and stop at the last."""
        return self.loop.iterate(self.ledger.events(session, after, upto))

    def follow(self, session: str, after: int = 0) -> Generator[Event]:
        """Yield the events of a session after a cursor, then new ones as they are written."""
        return self.loop.iterate(self.ledger.follow(session, after))

    def frames(self, session: str, format: str = "entries", after: int | None = None) -> Generator[Frame]:
        """Yield a session as frames: `events`, or `entries` as a snapshot and the patches after it."""
        return self.loop.iterate(self.ledger.frames(session, format, after))

    def export(self, session: str, format: str, *, at: int | None = None) -> bytes:
        """Return a session in a format, now or as it was after an event."""
        return self._run(self.ledger.export(session, format, at=at))

    def export_chunks(self, session: str, format: str, *, at: int | None = None) -> Generator[bytes]:
        """Yield what `export` returns, in chunks: a long log is never whole in memory."""
        return self.loop.iterate(self.ledger.export_chunks(session, format, at=at))

    def export_turn(self, session: str, format: str, *, turn: str = "", at: int | None = None) -> Generator[bytes]:
        """Yield one turn as it is streamed in a format."""
        return self.loop.iterate(self.ledger.export_turn(session, format, turn=turn, at=at))

    def blob(self, hash: str) -> bytes:
        """Return a value that was too large to be stored in its event."""
        return self._run(self.ledger.blob(hash))


class SyncRules:
    """The saved rules of a ledger, with plain methods."""

    def __init__(self, rules: RuleBook, loop: BackgroundLoop) -> None:
        self._rules = rules
        self._run = loop.run

    def list(self, session: str = "") -> list[RuleView]:
        """Return the rules, oldest first, also those that have ended; with `session` only its own."""
        return self._run(self._rules.list(session))

    def policy(self) -> PolicyView | None:
        """Return the policy file, which beats the rules; None if there is none."""
        return self._run(self._rules.policy())

    def save(self, rule: NewRule, *, by: str = "") -> RuleView:
        """Save a rule. It answers requests from now on."""
        return self._run(self._rules.save(rule, by=by))

    def revoke(self, id_or_prefix: str) -> RuleView:
        """Delete a rule, and return it."""
        return self._run(self._rules.revoke(id_or_prefix))

    def preview(self, rule: NewRule) -> RulePreview:
        """Return which of the newest calls a rule would have matched. It is not saved."""
        return self._run(self._rules.preview(rule))

    def test(self, call: RuleTest) -> DecisionView:
        """Return what the rules decide about a call. Nothing is run."""
        return self._run(self._rules.test(call))


class SyncCommands:
    """The commands of a ledger, with plain methods."""

    def __init__(self, commands: Commands, loop: BackgroundLoop) -> None:
        self._commands = commands
        self._run = loop.run

    def submit(self, action: str, params: Any = None, **options: Unpack[SubmitOptions]) -> Command:
        """Queue a command for the workers of a queue; raise QueueFullError if too many are pending."""
        return self._run(self._commands.submit(action, params, **options))

    def get(self, id_or_prefix: str, *, wait: float = 0.0, session: str = "") -> Command:
        """Return a command; with `wait`, when it has ended, or after so many seconds."""
        return self._run(self._commands.get(id_or_prefix, wait=wait, session=session))

    def pending(self, queue: str = "", limit: int = 100) -> list[Command]:
        """Return the open commands, oldest first."""
        return self._run(self._commands.pending(queue, limit))

    def completed(self, queue: str = "", limit: int = 100) -> list[Command]:
        """Return the commands completed in the last minute, newest first."""
        return self._run(self._commands.completed(queue, limit))

    def failed(self, queue: str = "", limit: int | None = None) -> list[Command]:
        """Return the last hundred commands that ended otherwise, newest first."""
        return self._run(self._commands.failed(queue, limit))

    def claim(self, queue: str = "default", **options: Unpack[ClaimOptions]) -> Claim | None:
        """Claim the next command of a queue for the length of a lease; wait for one if there is none."""
        return self._run(self._commands.claim(queue, **options))

    def heartbeat(self, command: str, fence: int, *, lease: float | None = None, text: str = "") -> int:
        """Renew the lease of a claimed command, with its progress if given. Return its end in ms since the epoch."""
        return self._run(self._commands.heartbeat(command, fence, lease=lease, text=text))

    def release(self, command: str, fence: int, reason: str = "") -> None:
        """Give a claimed command back: one that was not started, or one that may run twice."""
        self._run(self._commands.release(command, fence, reason))

    def complete(self, command: str, result: Any = None, *, fence: int = 0) -> Command:
        """Complete a command. A repeated result counts once; one with a stale fence is kept as late."""
        return self._run(self._commands.complete(command, result, fence=fence))

    def fail(self, command: str, error: Any, *, fence: int = 0) -> Command:
        """Fail a command."""
        return self._run(self._commands.fail(command, error, fence=fence))


class SyncSession:
    """A session with plain methods."""

    def __init__(self, session: Session, loop: BackgroundLoop) -> None:
        self.name = session.name
        self._session = session
        self._loop = loop

    def __repr__(self) -> str:
        return f"<SyncSession {self.name!r}>"

    def append(self, *events: Event) -> list[Event]:
        """Append events, all or none; an impossible step raises InvalidTransitionError."""
        return self._loop.run(self._session.append(*events))

    def snapshot(self, limit: int | None = None) -> Snapshot:
        """Return the session's entries, or the newest `limit` of them."""
        return self._loop.run(self._session.snapshot(limit))

    def use(self) -> AbstractContextManager[None]:
        """Make this the current session: `@callslip.sync.tool` functions record their calls in it."""
        return set_in_block(_current_session, self)

    @contextlib.contextmanager
    def turn(self, prompt: str = "") -> Generator[SyncTurn]:
        """Start a turn with the user's prompt; leaving the block ends it."""
        with self._loop.enter(self._session.turn(prompt)) as turn, self.use():
            yield SyncTurn(turn, self._loop)

    def start_turn(self, prompt: str = "") -> str:
        """Start a turn with the user's prompt, and return its id."""
        return self._loop.run(self._session.start_turn(prompt))

    def end_turn(self, reason: str = "end_turn", *, detail: str = "", turn: str = "") -> None:
        """End the open turn. With `cancelled` or `error` the calls still open in it end too."""
        self._loop.run(self._session.end_turn(reason, detail=detail, turn=turn))

    def say(self, text: str) -> None:
        """Append to the agent's message."""
        self._loop.run(self._session.say(text))

    def think(self, text: str) -> None:
        """Append to the agent's thinking."""
        self._loop.run(self._session.think(text))

    @contextlib.contextmanager
    def call(self, tool: str, input: Any = None, **options: Unpack[CallOptions]) -> Generator[SyncCall]:
        """Run a call of a tool; leaving the block ends it. See `Session.call`."""
        with self._loop.enter(self._session.call(tool, input, **options)) as call:
            yield SyncCall(call, self._loop)

    def record(
        self,
        stream: Iterable[T],
        format: str,
        *,
        chunks: Chunks | None = None,
        delivers_answers: bool = False,
        requires_validation: RequiresValidation | None = None,
    ) -> Iterator[T]:
        """Yield a stream's items while they are recorded. See `Session.record`."""
        items = self._session.record(
            _in_thread(stream),
            format,
            chunks=chunks,
            delivers_answers=delivers_answers,
            requires_validation=requires_validation,
        )
        return self._loop.iterate(items)


async def _in_thread(stream: Iterable[T]) -> AsyncIterable[T]:
    """Read a blocking stream in a thread, so that it does not block the loop."""
    items, end = iter(stream), object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item  # pyright: ignore[reportReturnType]


class SyncTurn:
    """A turn with plain methods."""

    def __init__(self, turn: Turn, loop: BackgroundLoop) -> None:
        self.id = turn.id
        self._turn = turn
        self._run = loop.run

    def say(self, text: str) -> None:
        """Append to the agent's message."""
        self._run(self._turn.say(text))

    def think(self, text: str) -> None:
        """Append to the agent's thinking."""
        self._run(self._turn.think(text))


class SyncCall:
    """A call while it runs, with plain methods. See `Call`."""

    def __init__(self, call: Call, loop: BackgroundLoop) -> None:
        self.id = call.id
        self.input: Any = call.input
        self.edited = call.edited
        self.complete = call.complete
        self.fail = call.fail
        self.expire = call.expire
        self._call = call
        self._run = loop.run

    def progress(self, text: str = "", **fields: Any) -> None:
        """Record progress: output text to append, or title, content, locations, progress."""
        self._run(self._call.progress(text, **fields))

    def result(self) -> CallRecord:
        """Return the call's record as it is now."""
        return self._run(self._call.result())


_current_session: ContextVar[SyncSession] = ContextVar("callslip_sync_session")


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(
    *, name: str = "", approval: bool = False, timeout: float | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    approval: bool = False,
    timeout: float | None = None,
) -> Any:
    """Record every call of a plain function in the current session, like `callslip.tool` without an event loop.

    A `timeout` does not interrupt the function: the call expires, and CallTimeoutError is raised when it returns.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        unsupported = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_unsupported(function) for is_unsupported in unsupported):
            raise TypeError(f"{function.__name__}: is async or a generator. Use callslip.tool.")
        recorded = ToolFunction(function, name, CallOptions(approval=approval, timeout=timeout))

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            session = _current_session.get(None)
            if session is None:
                raise NoSessionError(
                    "no current session: call the tool inside `with session.turn(...)` or `with session.use()`"
                )
            bound = recorded.bind(args, kwargs)
            with session.call(recorded.name, to_input(bound), **recorded.options) as call:
                arguments = recorded.edited_arguments(call.input, bound) if call.edited else bound
                call.complete(result := function(*arguments.args, **arguments.kwargs))
                return result

        return run

    return decorate(function) if function is not None else decorate
