"""A task that runs in this process: call its tool, pass input requests to the client, record its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from mcp.server.context import HandlerResult
from mcp.server.runner import modern_error_data
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, InputRequiredResult
from pydantic import BaseModel

from callslip.api.ledger import LocalLedger
from callslip.api.tasks import Task, record_progress
from callslip.errors import CallslipError, InvalidInputError
from callslip.ledger.aio import cancel_all, finish_despite_cancel, race
from callslip.mcp.task_wire import INPUT_REQUESTS, INPUT_RESPONSES, SOURCE, failed_result, parse_responses
from callslip.model.records import CallRecord

Json = dict[str, Any]
MAX_ROUNDS = 100
MAX_REASON_CHARS = 2000
STOPPED = "the server that ran this task was stopped"


class TaskRun:
    """A running task. `input_requests` are those that the client has not answered yet."""

    def __init__(
        self, task: Task, params: CallToolRequestParams, call_tool: Callable[[], Awaitable[HandlerResult]]
    ) -> None:
        self.input_requests: Json = {}
        self._task = task
        self._params = params
        self._call_tool = call_tool
        self._responses: Json = {}
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Run the tool and record how it ended. If the task ends first, for example by `cancel`, stop the tool."""
        try:
            result = await race(self._run_rounds(), self._task.wait_ended())
            if result is None:
                return
            write = self._end(result)
        except asyncio.CancelledError:
            write = self._task.lose(STOPPED)
        except Exception as error:  # A tool's own errors are results; this one is an error of the protocol.
            data = modern_error_data(error)
            write = self._task.fail(_to_json(data), data.message)
        with contextlib.suppress(CallslipError):  # A closed ledger has ended the call itself.
            await finish_despite_cancel(write)

    async def _end(self, result: Json) -> None:
        """Record the result. A tool's own error fails its call."""
        try:
            if result.get("isError"):
                await self._task.fail(result, _result_text(result) or "the tool reported an error")
            else:
                await self._task.complete(result)
        except InvalidInputError as error:
            reason = f"the result of the tool could not be recorded: {error}"
            await self._task.fail(failed_result(reason), reason)

    # Input requests

    async def _run_rounds(self) -> Json:
        """Call the tool until it returns a result that requires no more input."""
        for _ in range(MAX_ROUNDS):
            result = await self._call_tool()
            required = _input_required(result)
            if required is None:
                return _to_json(result)
            await self._request_input(required)
        raise RuntimeError(f"the tool requested input more than {MAX_ROUNDS} times")

    async def _request_input(self, result: InputRequiredResult) -> None:
        """Record the input requests for the client, and wait until all have a response."""
        self.input_requests, self._responses = _to_json(result).get(INPUT_REQUESTS) or {}, {}
        self._answered.clear()
        if self.input_requests:
            await self._wait_answered(await self._task.progress({INPUT_REQUESTS: self.input_requests}))
        # Change the object that the SDK has bound already: the tool is called again with these parameters.
        self._params.input_responses = self._responses
        self._params.request_state = result.request_state

    async def _wait_answered(self, after: int) -> None:
        """Wait for responses, which come from this process, or through the log from another one."""
        listening = asyncio.ensure_future(self._listen(after))
        try:
            await self._answered.wait()
        finally:
            await cancel_all(listening)

    async def _listen(self, after: int) -> None:
        async with contextlib.aclosing(self._task.follow_progress(after)) as updates:
            async for progress in updates:
                responses: Any = cast(Json, progress).get(INPUT_RESPONSES) if isinstance(progress, dict) else None
                if isinstance(responses, dict):
                    with contextlib.suppress(MCPError):  # The other process did not check the responses.
                        await self.respond(parse_responses(self.input_requests, cast(Json, responses)))

    async def respond(self, responses: Mapping[str, Any]) -> None:
        """Take responses to some or all input requests. The first response to a request counts."""
        new = {name: responses[name] for name in self.input_requests if name in responses}
        if not new:
            return
        self._responses.update(new)
        self.input_requests = {name: request for name, request in self.input_requests.items() if name not in new}
        try:
            await self._task.progress({INPUT_REQUESTS: self.input_requests} if self.input_requests else None)
        finally:  # The client does not send a response twice, so the tool gets it even if the log cannot be written.
            if not self.input_requests:
                self._answered.set()


async def send_responses(ledger: LocalLedger, record: CallRecord, requests: Json, responses: Json) -> None:
    """Pass responses through the log to the process that runs the task."""
    rest = {name: request for name, request in requests.items() if name not in responses}
    progress = {INPUT_REQUESTS: rest, INPUT_RESPONSES: {name: _to_json(value) for name, value in responses.items()}}
    await record_progress(ledger.log, record, progress, source=SOURCE)


def _to_json(value: Any) -> Json:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True, mode="json", exclude_none=True)
    return cast(Json, value or {})


def _input_required(result: HandlerResult) -> InputRequiredResult | None:
    if isinstance(result, InputRequiredResult):
        return result
    is_required = isinstance(result, dict) and result.get("resultType") == "input_required"
    return InputRequiredResult.model_validate(result) if is_required else None


def _result_text(result: Json) -> str:
    """Return the text of a result, as the reason why its call failed."""
    blocks = cast("list[Any]", result.get("content") or [])
    texts = [str(cast(Json, block).get("text", "")) for block in blocks if isinstance(block, dict)]
    return " ".join(text for text in texts if text)[:MAX_REASON_CHARS]
