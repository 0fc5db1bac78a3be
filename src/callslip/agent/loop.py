"""The loop of an agent: request an answer of the model, record it, run its calls, and repeat with the results.

The messages for the model are read from the ledger each time, so that a reloaded session continues like a live one. A
turn ends exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from callslip.agent.model_view import ModelView
from callslip.agent.models import Model
from callslip.agent.shell_tags import ShellTagDecoder
from callslip.agent.tools import Tool
from callslip.api.call import describe_error
from callslip.api.session import Session
from callslip.errors import CallDeniedError, CallEndedError, InvalidTransitionError
from callslip.formats import registry
from callslip.formats.base import Decoder
from callslip.formats.shell.history import model_messages
from callslip.ingest.recorder import Recorder
from callslip.ledger.aio import finish_despite_cancel, race
from callslip.ledger.session_log import SessionLog, last_seq, wait_for_turn
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal

TOOL_CANCELLED = "the tool cancelled itself"
NOT_AN_OBJECT = "the arguments are not a JSON object"
_CANCELLATIONS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a turn stops. `repeats` is how often a turn may make the same call; `parallel` runs calls together."""

    iterations: int = 25
    repeats: int = 3
    parallel: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """How a turn ended: the reason, the number of answers of the model, and the text of the last one."""

    turn: str
    reason: str
    iterations: int
    text: str


class ProposedCall(msgspec.Struct):
    """A call that the model proposes."""

    call: str
    tool: str = ""
    input: Any = UNSET


class Agent:
    """Runs a model with tools in a session.

    With `shell` the model receives no tools: it writes commands as `<shell>` tags, and that tool runs them.
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
        self._model_tools = () if shell else tuple(tools)
        self._tools = {shell.name: shell} if shell else {tool.name: tool for tool in tools}
        self._system = system
        self._view = ModelView(session)
        self._encode = model_messages if shell else registry.encoder(model.format)

    async def run(self, prompt: str, *, turn: str = "") -> Outcome:
        """Run a turn for a prompt. It stops if it is cancelled, or if another process ends the turn.

        `turn` is a turn that has started already and contains the prompt.
        """
        running = _TurnRun(self)
        try:
            await finish_despite_cancel(running.start(prompt, turn))
            reason = await running.run()
        except _CANCELLATIONS:
            await finish_despite_cancel(running.end("cancelled"))
            raise
        except Exception as error:
            await finish_despite_cancel(running.end("error", describe_error(error)))
            raise
        await finish_despite_cancel(running.end(reason))
        return Outcome(running.turn, reason, running.iterations, await running.last_text())

    async def messages(self) -> list[Any]:
        """Return the session as messages for the model."""
        return self._encode(await self._view.snapshot())

    def stream(self, messages: list[Any]) -> Any:
        return self.model.stream(messages, system=self._system, tools=self._model_tools)

    def tag_decoder(self, turn: str) -> ShellTagDecoder | None:
        """Return the decoder for commands in the model's text, if it calls tools by tags."""
        return ShellTagDecoder(registry.decoder(self.model.format), self._shell.name, turn) if self._shell else None

    # Run calls

    async def execute(self, proposed: ProposedCall) -> None:
        """Run a call until it ends. An error of the call is recorded for the model and not raised."""
        tool = self._tools.get(proposed.tool)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            await self.refuse(proposed, f"there is no tool {proposed.tool!r}; there are: {names}")
        elif proposed.input is UNSET:
            await self.refuse(proposed, "the answer ended before the arguments were complete")
        elif not isinstance(proposed.input, dict | None):
            await self.refuse(proposed, NOT_AN_OBJECT)
        else:
            with contextlib.suppress(CallDeniedError, CallEndedError):
                await self._run(proposed, tool)

    async def refuse(self, proposed: ProposedCall, reason: str) -> None:
        """Fail a call that is not run."""
        await finish_despite_cancel(self._fail(proposed.call, reason))

    async def _fail(self, call: str, reason: str) -> None:
        row = await self.session.log.get_call(call)
        if row is not None and row.state not in TERMINAL_STATES:
            await self.session.append(ev.CallFailed(call=call, error=reason, reason=reason))

    async def _run(self, proposed: ProposedCall, tool: Tool) -> None:
        input = cast("dict[str, Any]", proposed.input or {})
        title = tool.title(input) if tool.title else ""
        context = self.session.call(
            tool.name,
            input,
            title=title,
            kind=tool.kind,
            timeout=tool.timeout,
            approval=tool.approval,
            schema=tool.parameters,
            proposed=proposed.call,
        )
        async with context as call:
            arguments: Any = call.input if call.edited else input
            if not isinstance(arguments, dict):
                return call.fail(NOT_AN_OBJECT, NOT_AN_OBJECT)
            try:
                output = await call.run(tool.run(call, cast("dict[str, Any]", arguments)))
                if not call.has_outcome:
                    call.complete(output)
            except CallEndedError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                is_cancellation, task = isinstance(error, asyncio.CancelledError), asyncio.current_task()
                if is_cancellation and task is not None and task.cancelling():
                    raise
                # A tool that cancels itself is an error like any other.
                call.fail(codec.to_json(error), TOOL_CANCELLED if is_cancellation else describe_error(error))


class InputRecorder(Recorder):
    """Records a stream and keeps the arguments as the model wrote them, because the log has them redacted."""

    def __init__(self, log: SessionLog, session: str, format: str, *, decoder: Decoder | None = None) -> None:
        super().__init__(log, session, format, decoder=decoder)
        self.inputs: dict[str, Any] = {}

    async def write(self, drafts: list[Draft], message: Any = None) -> list[Event]:
        events = await super().write(drafts, message)
        for draft, event in zip(drafts, events, strict=False):
            drafted = draft.event
            if isinstance(drafted, ev.CallUpdate) and isinstance(event, type(drafted)) and drafted.input is not UNSET:
                self.inputs[event.call] = drafted.input
        return events


class _TurnRun:
    """A turn in progress."""

    def __init__(self, agent: Agent) -> None:
        self.turn = ""
        self.iterations = 0
        self._agent = agent
        self._session = agent.session
        self._tag_decoder: ShellTagDecoder | None = None
        self._start_seq = self._request_seq = 0
        self._call_counts: Counter[bytes] = Counter()

    async def start(self, prompt: str, turn: str) -> None:
        session, format = self._session, self._agent.model.format
        self._start_seq = await last_seq(session.log, session.name)
        if turn:
            row = await session.log.get_session(session.name)
            if row is None or row.turn != turn:
                raise InvalidTransitionError(f"turn {turn!r} is not open")
        self.turn = turn or await session.start_turn(prompt, owned=True)
        self._tag_decoder = self._agent.tag_decoder(self.turn)
        self._recorder = InputRecorder(session.log, session.name, format, decoder=self._tag_decoder)

    async def end(self, reason: str, detail: str = "") -> None:
        """End the turn, unless another process has ended it or deleted the session."""
        row = await self._session.log.get_session(self._session.name)
        if row is not None and self.turn and row.turn == self.turn:
            await self._session.append(ev.TurnEnded(turn=self.turn, reason=reason, detail=detail))

    async def run(self) -> str:
        """Run the rounds until the turn ends, also if another process ends it. Return the reason."""
        return await race(self._run_rounds(), self._wait_ended())

    async def _wait_ended(self) -> str:
        """Wait until another process ends the turn, and return the reason."""
        session = self._session
        return (await wait_for_turn(session.log, session.name, self.turn, self._start_seq)).reason

    async def last_text(self) -> str:
        """Return the last text of the model, from the log: the end of a text may be written after its events."""
        log = self._session.ledger.events(self._session.name, self._request_seq)
        deltas = [event async for event in log if isinstance(event, ev.MessageDelta)]
        source = self._agent.model.format
        return "".join(event.text for event in deltas if (event.source, event.verdict) == (source, "applied"))

    async def _run_rounds(self) -> str:
        """Request answers and run their calls until there are no calls or a limit is reached. Return the reason."""
        limits = self._agent.limits
        while self.iterations < limits.iterations:
            proposed = await self._request_answer()
            self.iterations += 1
            if not proposed:
                return "end_turn"
            allowed = [call for call in proposed if await self._check_repeats(call)]
            if not allowed:
                return "repeated_calls"
            if limits.parallel:
                await self._execute_together(allowed)
            else:
                for call in allowed:
                    await self._agent.execute(call)
        return "max_turn_requests"

    async def _request_answer(self) -> list[ProposedCall]:
        """Record an answer of the model, and return the calls to run."""
        proposed: dict[str, ProposedCall] = {}
        self._request_seq = await last_seq(self._session.log, self._session.name)
        stream = self._agent.stream(await self._agent.messages())
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    self._collect_calls(await self._recorder.feed(chunk), proposed)
            self._collect_calls(await self._recorder.finish(), proposed)
            if self._tag_decoder is not None:
                self._collect_calls(await self._recorder.write(self._tag_decoder.end_round()), proposed)
        except BaseException as error:
            reason = "cancelled" if isinstance(error, asyncio.CancelledError) else "error"
            await finish_despite_cancel(self._recorder.close(reason, str(error)[:500]))
            raise
        return list(proposed.values())

    def _collect_calls(self, events: list[Event], proposed: dict[str, ProposedCall]) -> None:
        for event in events:
            if event.verdict != "applied":
                continue
            if isinstance(event, ev.CallEvent) and is_terminal(event):
                proposed.pop(event.call, None)
            elif isinstance(event, ev.CallUpdate):
                call = proposed.setdefault(event.call, ProposedCall(event.call))
                call.tool = event.tool_name if isinstance(event.tool_name, str) else call.tool
                call.input = self._recorder.inputs.pop(event.call, call.input)

    async def _check_repeats(self, proposed: ProposedCall) -> bool:
        """Return whether a call may be run, or fail it if the turn has made it too often."""
        key = codec.encode([proposed.tool, None if proposed.input is UNSET else proposed.input])
        self._call_counts[key] += 1
        repeats = self._agent.limits.repeats
        if self._call_counts[key] <= repeats:
            return True
        await self._agent.refuse(proposed, f"this call was made {repeats} times in this turn and is not run again")
        return False

    async def _execute_together(self, proposed: list[ProposedCall]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for call in proposed:
                    group.create_task(self._agent.execute(call))
        except ExceptionGroup as errors:  # The first error cancelled the other calls.
            raise errors.exceptions[0] from errors
