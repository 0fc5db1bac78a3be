"""What a program that runs tools holds in its hands: a session, a function made a tool, a stream that is recorded."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from callslip.api.call import SOURCE, Call
from callslip.ingest.recorder import Recorder, record_stream
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Snapshot
from callslip.model.events import Alias, Chunks, Draft, Event
from callslip.rules.function_schema import bind_arguments, function_schema, run_function

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger

T = TypeVar("T")


class Session:
    """One conversation of an agent, by name."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.name = name
        self._recorders: dict[str, Recorder] = {}

    def append(self, *drafts: Event | Draft, source: str = SOURCE, owner: str = "") -> Coroutine[Any, Any, list[Event]]:
        """Append events, all or none; an impossible step raises Illegal."""
        return self.ledger.log.append(self.name, drafts, source=source, owner=owner, strict=True)

    async def snapshot(self, limit: int | None = None) -> Snapshot:
        """The session as a reader sees it."""
        return await self.ledger.snapshot(self.name, **({} if limit is None else {"limit": limit}))

    async def turn(self, prompt: str = "", *, owned: bool = False) -> str:
        """Begin a turn with what a person said. Gives its id. One that is `owned` ends when this process does."""
        drafts: list[Event] = [ev.TurnStarted()]
        if prompt:
            drafts.append(ev.MessageUser(text=prompt))
        started = (await self.append(*drafts, owner=self.ledger.log.owner if owned else ""))[0]
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
        schema: Any = None,
        alias: tuple[str, str] | None = None,
        proposed: str = "",
    ) -> Call:
        """A call of a tool, to be used with `async with`. See `Call`.

        `schema` is the JSON Schema of the arguments: a person who is asked may change them to what fits it.
        A call that a recorded stream has proposed is taken up by its `alias`, the format and the id that the model gave
        it (`("openai", "call_1")`), or by the execution id that it was `proposed` under.
        """
        return Call(
            self,
            tool,
            input,
            title=title,
            kind=kind,
            timeout=timeout,
            approve=approve,
            options=options,
            schema=schema,
            aliases=(Alias(*alias),) if alias else (),
            proposed=proposed,
        )

    async def record(
        self, stream: AsyncIterable[T] | Iterable[T], format: str, *, chunks: Chunks | None = None
    ) -> AsyncGenerator[T]:
        """Pass a stream on while it is recorded: `async for chunk in session.record(stream, format="openai")`.

        Each chunk is durable before it is passed on. If the stream breaks off, or whoever reads it stops, the calls
        that it has left open end; after a whole stream they wait to be run. Rounds are told apart by their order, so
        record those of one turn through the same session object.
        """
        recorder = self._recorders.pop(format, None)  # Another stream that comes meanwhile needs its own.
        if recorder is None or (chunks and chunks != recorder.chunks):
            recorder = Recorder(self.ledger.log, self.name, format, chunks=chunks)
        try:
            async with contextlib.aclosing(record_stream(recorder, stream)) as passed:
                async for chunk in passed:
                    yield chunk
        finally:
            self._recorders[format] = recorder

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str = "",
        approve: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Make every call of a function a call in this session: sync, async or (async) generator functions.

        `approve="ask"` asks a person first, who may change the arguments to others that fit the annotations. A
        generator's items are progress, the last one is also the output.
        """

        def wrap(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
            signature = inspect.signature(function)
            schema = function_schema(function, signature) if approve else None

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                called = self.call(
                    name or function.__name__,
                    codec.to_json(dict(bound.arguments)),
                    approve=approve,
                    timeout=timeout,
                    schema=schema,
                )
                async with called as call:
                    given = bind_arguments(signature, call.input, bound) if call.edited else bound
                    call.complete(result := await call.run(run_function(function, given, call)))
                    return result

            return run

        return wrap(function) if function is not None else wrap
