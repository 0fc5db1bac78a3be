"""Session: record turns, calls, messages and model streams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from callslip.api.call import Call, CallOptions
from callslip.api.turn import Turn
from callslip.errors import NoSessionError
from callslip.formats.base import RequiresValidation
from callslip.ingest.recorder import Recorder, record_stream
from callslip.model import events as ev
from callslip.model.entries import Snapshot
from callslip.model.events import Chunks, Event
from callslip.model.names import SOURCE_PYTHON

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger

T = TypeVar("T")
_current_session: ContextVar[Session] = ContextVar("callslip_session")


@contextlib.contextmanager
def set_in_block(variable: ContextVar[T], value: T) -> Generator[None]:
    """Set a context variable, and reset it at the end of the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # The block was left in another context, where it was never set.
            variable.reset(token)


class Session:
    """One conversation of an agent, by name. It is created with its first event."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.log = ledger.log
        self.name = name
        self._recorders: dict[str, Recorder] = {}

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"

    async def append(self, *events: Event) -> list[Event]:
        """Append events, all or none; an impossible step raises InvalidTransitionError."""
        return await self.log.append(self.name, events, source=SOURCE_PYTHON, strict=True)

    async def snapshot(self, limit: int | None = None) -> Snapshot:
        """Return the session's entries, or the newest `limit` of them."""
        return await self.log.snapshot(self.name, **({} if limit is None else {"limit": limit}))

    def use(self) -> AbstractContextManager[None]:
        """Make this the current session: `@callslip.tool` functions record their calls in it."""
        return set_in_block(_current_session, self)

    # Turns and messages

    def turn(self, prompt: str = "") -> Turn:
        """Return a turn that starts with the user's prompt, to be used with `async with`."""
        return Turn(self, prompt)

    async def start_turn(self, prompt: str = "", *, owned: bool = False) -> str:
        """Start a turn with the user's prompt, and return its id. An `owned` turn ends when this process does."""
        events: list[Event] = [ev.TurnStarted()]
        if prompt:
            events.append(ev.MessageUser(text=prompt))
        owner = self.log.owner if owned else ""
        started = (await self.log.append(self.name, events, source=SOURCE_PYTHON, owner=owner, strict=True))[0]
        assert isinstance(started, ev.TurnStarted)
        return started.turn

    async def end_turn(self, reason: str = "end_turn", *, detail: str = "", turn: str = "") -> None:
        """End the open turn. With `cancelled` or `error` the calls still open in it end too."""
        await self.append(ev.TurnEnded(turn=turn, reason=reason, detail=detail))

    async def say(self, text: str) -> None:
        """Append to the agent's message."""
        await self.append(ev.MessageDelta(text=text, chunks="delta"))

    async def think(self, text: str) -> None:
        """Append to the agent's thinking."""
        await self.append(ev.ThoughtDelta(text=text, chunks="delta"))

    # Calls

    def call(self, tool: str, input: Any = None, **options: Unpack[CallOptions]) -> Call:
        """Return a call of a tool, to be used with `async with`. See `Call` and `CallOptions`."""
        return Call(self, tool, input, options)

    async def record(
        self,
        stream: AsyncIterable[T] | Iterable[T],
        format: str,
        *,
        chunks: Chunks | None = None,
        delivers_answers: bool = False,
        requires_validation: RequiresValidation | None = None,
    ) -> AsyncGenerator[T]:
        """Yield a stream's items while they are recorded: `async for chunk in session.record(stream, "openai")`.

        Each item is durable before it is yielded. If the stream is interrupted, or its reader stops, the calls that it
        left open end; after a complete stream they are pending. Record the rounds of one turn through the same session
        object: rounds are distinguished by their order.

        Requests for approval in the stream must be answered in the program that runs it. With `delivers_answers` they
        can be answered in the ledger, and your program passes the answers on to the agent. `requires_validation` is for
        stored messages (`rows`): it returns for a tool name whether a user must accept its calls.
        """
        recorder = self._recorders.pop(format, None)  # A second stream at the same time needs its own.
        is_other = recorder is not None and (
            (chunks and chunks != recorder.chunks)
            or (requires_validation is not None and requires_validation != recorder.requires_validation)
        )
        if recorder is None or is_other:
            recorder = Recorder(self.log, self.name, format, chunks=chunks, requires_validation=requires_validation)
        recorder.delivers_answers = delivers_answers
        try:
            async with contextlib.aclosing(record_stream(recorder, stream)) as items:
                async for item in items:
                    yield item
        finally:
            self._recorders[format] = recorder


def current_session() -> Session:
    """Return the session that `Session.use` or a turn made the current one."""
    try:
        return _current_session.get()
    except LookupError:
        raise NoSessionError(
            "no current session: call the tool inside `async with session.turn(...)` or `with session.use()`"
        ) from None
