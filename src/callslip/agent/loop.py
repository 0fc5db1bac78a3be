"""The loop of an agent: ask the model, record what it says, run what it calls, show it the results, ask again.

What the model is shown is made from the ledger each time, never from what the loop remembers, so that a reloaded
session is answered as the live one would have been. A turn ends exactly once, whatever happens in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from callslip.agent.model_view import Shown
from callslip.agent.models import Model
from callslip.agent.shell_tags import Tagged
from callslip.agent.tools import Tool
from callslip.api.call import describe_error
from callslip.api.ledger import Ledger
from callslip.api.session import Session
from callslip.errors import CallDeniedError, CallEndedError, InvalidTransitionError
from callslip.formats import registry
from callslip.formats.base import Decoder
from callslip.formats.shell.history import model_messages
from callslip.ingest.recorder import Recorder
from callslip.ledger.aio import finish_despite_cancel, race
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal

GAVE_UP = "the tool cancelled itself"
NO_OBJECT = "the arguments are not a JSON object"
_STOPS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop. `repeats` is how often one turn may make the very same call."""

    iterations: int = 25
    repeats: int = 3
    parallel: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """How a turn went: why it ended, how many answers the model gave, and the last words it said."""

    turn: str
    reason: str
    iterations: int
    text: str


class Wanted(msgspec.Struct):
    """A call that the model asks for."""

    call: str
    tool: str = ""
    input: Any = UNSET


class Agent:
    """One session, one model, some tools.

    With `shell` the model is offered no tools: it writes commands as `<shell>` tags, and that tool runs them.
    """

    def __init__(
        self,
        session: Session,
        model: Model,
        *,
        tools: Sequence[Tool] = (),
        shell: Tool | None = None,
        system: str = "",
        limits: Limits | None = None,
    ) -> None:
        self.session = session
        self.model = model
        self.limits = limits or Limits()
        self._shell = shell
        self._offered = () if shell else tuple(tools)
        self._tools = {shell.name: shell} if shell else {tool.name: tool for tool in tools}
        self._system = system
        self._shown = Shown(session)
        self._history = model_messages if shell else registry.encoder(model.format)

    async def run(self, prompt: str, *, turn: str = "") -> Outcome:
        """Answer a prompt. Cancelling it ends the tool that runs, and the turn; so does who ends the turn elsewhere.

        `turn` is one that has begun already, with the prompt in it.
        """
        running = _Turn(self)
        try:
            await finish_despite_cancel(running.begin(prompt, turn))
            reason = await running.answer()
        except _STOPS:
            await finish_despite_cancel(running.end("cancelled"))
            raise
        except Exception as error:
            await finish_despite_cancel(running.end("error", describe_error(error)))
            raise
        await finish_despite_cancel(running.end(reason))
        return Outcome(running.turn, reason, running.iterations, await running.said())

    async def messages(self) -> list[Any]:
        """The session as the model is shown it."""
        return self._history(await self._shown.snapshot())

    def stream(self, messages: list[Any]) -> Any:
        return self.model.stream(messages, system=self._system, tools=self._offered)

    def tagged(self, turn: str) -> Tagged | None:
        """What finds commands in the model's text, if that is how it calls tools."""
        return Tagged(registry.decoder(self.model.format), self._shell.name, turn) if self._shell else None

    # Running calls

    async def execute(self, wanted: Wanted) -> None:
        """Run one call to its end. What goes wrong with it is the model's to read, not ours to raise."""
        tool = self._tools.get(wanted.tool)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            await self.refuse(wanted, f"there is no tool {wanted.tool!r}; there are: {known}")
        elif wanted.input is UNSET:
            await self.refuse(wanted, "the answer ended before the arguments were whole")
        elif not isinstance(wanted.input, dict | None):
            await self.refuse(wanted, NO_OBJECT)
        else:
            with contextlib.suppress(CallDeniedError, CallEndedError):
                await self._run(wanted, tool)

    async def refuse(self, wanted: Wanted, why: str) -> None:
        """End a call that is not run."""
        await finish_despite_cancel(self._fail(wanted.call, why))

    async def _fail(self, call: str, why: str) -> None:
        row = await self.session.ledger.log.store.call(call)
        if row is not None and row.state not in TERMINAL_STATES:
            await self.session.append(ev.CallFailed(call=call, error=why, reason=why))

    async def _run(self, wanted: Wanted, tool: Tool) -> None:
        input = cast("dict[str, Any]", wanted.input or {})
        title = tool.title(input) if tool.title else ""
        made = self.session.call(
            tool.name,
            input,
            title=title,
            kind=tool.kind,
            timeout=tool.timeout,
            approve=tool.approve,
            schema=tool.parameters,
            proposed=wanted.call,
        )
        async with made as call:
            given: Any = call.input if call.edited else input
            if not isinstance(given, dict):
                return call.fail(NO_OBJECT, NO_OBJECT)
            try:
                output = await call.run(tool.run(call, cast("dict[str, Any]", given)))
                if not call.has_outcome:
                    call.complete(output)
            except CallEndedError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                call.fail(
                    codec.to_json(error),
                    GAVE_UP if isinstance(error, asyncio.CancelledError) else describe_error(error),
                )


class Listener(Recorder):
    """Remembers the arguments as the model wrote them: the log has them without what looks like a secret."""

    def __init__(self, ledger: Ledger, session: str, format: str, *, decoder: Decoder | None = None) -> None:
        super().__init__(ledger.log, session, format, decoder=decoder)
        self.inputs: dict[str, Any] = {}

    async def write(self, drafts: list[Draft], message: Any = None) -> list[Event]:
        made = await super().write(drafts, message)
        for draft, event in zip(drafts, made, strict=False):
            drafted = draft.event
            if isinstance(drafted, ev.CallUpdate) and isinstance(event, type(drafted)) and drafted.input is not UNSET:
                self.inputs[event.call] = drafted.input
        return made


def _is_cancelled(error: BaseException) -> bool:
    """Whether somebody cancelled us. A tool may also give up by itself, which is an error like any other."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class _Turn:
    """One turn under way."""

    def __init__(self, agent: Agent) -> None:
        self.turn = ""
        self.iterations = 0
        self._agent = agent
        self._session = agent.session
        self._tagged: Tagged | None = None
        self._seen = self._asked = 0
        self._made: Counter[bytes] = Counter()

    async def begin(self, prompt: str, turn: str) -> None:
        session, format = self._session, self._agent.model.format
        self._seen = await self._head()
        self.turn = await self._go_on(turn) if turn else await session.turn(prompt, owned=True)
        self._tagged = self._agent.tagged(self.turn)
        self._recorder = Listener(session.ledger, session.name, format, decoder=self._tagged)

    async def _go_on(self, turn: str) -> str:
        row = await self._session.ledger.log.store.session(self._session.name)
        if row is None or row.turn != turn:
            raise InvalidTransitionError(f"turn {turn!r} is not the one that is open")
        return turn

    async def end(self, reason: str, detail: str = "") -> None:
        """Once: somebody else may have ended the turn meanwhile, or deleted the session."""
        row = await self._session.ledger.log.store.session(self._session.name)
        if row is not None and self.turn and row.turn == self.turn:
            await self._session.append(ev.TurnEnded(turn=self.turn, reason=reason, detail=detail))

    async def answer(self) -> str:
        """Go through the rounds, unless somebody else ends the turn meanwhile. Why it is over."""
        return await race(self.rounds(), self._ended())

    async def _ended(self) -> str:
        """Why somebody else ended the turn, once they have."""
        session = self._session
        return (await session.ledger.log.wait_for_turn(session.name, self.turn, self._seen)).reason

    async def said(self) -> str:
        """What the model said last. From the log: what was held back of it came after its events."""
        log = self._session.ledger.events(self._session.name, self._asked)
        deltas = [event async for event in log if isinstance(event, ev.MessageDelta)]
        source = self._agent.model.format
        return "".join(event.text for event in deltas if (event.source, event.verdict) == (source, "applied"))

    async def _head(self) -> int:
        row = await self._session.ledger.log.store.session(self._session.name)
        return row.last_seq if row else 0

    async def rounds(self) -> str:
        """Ask and run until the model wants nothing more, or a limit is reached. Why it stopped."""
        limits = self._agent.limits
        while self.iterations < limits.iterations:
            wanted = await self._ask()
            self.iterations += 1
            if not wanted:
                return "end_turn"
            fresh = [call for call in wanted if await self._is_fresh(call)]
            if not fresh:
                return "repeated_calls"
            await self._execute(fresh)
        return "max_turn_requests"

    async def _ask(self) -> list[Wanted]:
        """One answer of the model, recorded as it comes. The calls that it leaves for us to run."""
        wanted: dict[str, Wanted] = {}
        self._asked = await self._head()
        stream = self._agent.stream(await self._agent.messages())
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    self._hear(await self._recorder.feed(chunk), wanted)
            self._hear(await self._recorder.finish(), wanted)
            if self._tagged is not None:
                self._hear(await self._recorder.write(self._tagged.end_round()), wanted)
        except BaseException as error:
            reason = "cancelled" if isinstance(error, asyncio.CancelledError) else "error"
            await finish_despite_cancel(self._recorder.close(reason, str(error)[:500]))
            raise
        return list(wanted.values())

    def _hear(self, made: list[Event], wanted: dict[str, Wanted]) -> None:
        for event in made:
            if event.verdict != "applied":
                continue
            if isinstance(event, ev.CallEvent) and is_terminal(event):
                wanted.pop(event.call, None)
            elif isinstance(event, ev.CallUpdate):
                call = wanted.setdefault(event.call, Wanted(event.call))
                call.tool = event.tool_name if isinstance(event.tool_name, str) else call.tool
                call.input = self._recorder.inputs.pop(event.call, call.input)

    async def _is_fresh(self, wanted: Wanted) -> bool:
        """Whether a call may be made once more; if not it ends here."""
        key = codec.encode([wanted.tool, None if wanted.input is UNSET else wanted.input])
        self._made[key] += 1
        most = self._agent.limits.repeats
        if self._made[key] <= most:
            return True
        await self._agent.refuse(wanted, f"this very call was made {most} times in this turn and is not run again")
        return False

    async def _execute(self, wanted: list[Wanted]) -> None:
        if self._agent.limits.parallel:
            return await self._execute_together(wanted)
        for call in wanted:
            await self._agent.execute(call)

    async def _execute_together(self, wanted: list[Wanted]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for call in wanted:
                    group.create_task(self._agent.execute(call))
        except ExceptionGroup as errors:  # The first of them ended the others.
            raise errors.exceptions[0] from errors
