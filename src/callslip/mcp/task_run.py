"""A task while it runs in this process: its tool is called, what that asks is put to the client, its end is written."""

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

from callslip.api.ledger import Ledger
from callslip.errors import CallslipError, InvalidInputError
from callslip.ledger.aio import finish_despite_cancel, race
from callslip.mcp.task_wire import ANSWERED, ASKED, SOURCE, failed, read_responses
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.records import CallRecord

Json = dict[str, Any]
MOST_ROUNDS = 100
STOPPED = "the server that ran this task was stopped"


class Run:
    """One task under way. `asked` is what it still waits to be told."""

    def __init__(
        self,
        ledger: Ledger,
        row: CallRecord,
        params: CallToolRequestParams,
        call: Callable[[], Awaitable[HandlerResult]],
    ) -> None:
        self.asked: Json = {}
        self._ledger = ledger
        self._row = row
        self._params = params
        self._call = call
        self._answers: Json = {}
        self._told = asyncio.Event()

    async def work(self) -> None:
        """Run the tool to its end, unless somebody ends the task first; then the tool is stopped."""
        try:
            ending = await race(self._rounds(), self._over())
        except asyncio.CancelledError:
            ending = ev.CallLost(call=self._row.id, reason=STOPPED)
        except Exception as error:  # A tool's own errors are results; this is what would be an error of the protocol.
            told = modern_error_data(error)
            ending = ev.CallFailed(call=self._row.id, error=codec.to_json(_plain(told)), reason=told.message)
        if ending is not None:
            with contextlib.suppress(CallslipError):  # A closed ledger has ended the call itself.
                await finish_despite_cancel(self._write(ending))

    async def _over(self) -> None:
        await self._ledger.log.feed.until_ended(self._row.session, self._row.id)

    async def _write(self, ending: ev.CallEnd) -> None:
        try:
            await self._append(ending)
        except InvalidInputError as refusal:
            reason = f"what the tool answered could not be kept: {refusal}"
            await self._append(ev.CallFailed(call=self._row.id, error=failed(reason), reason=reason))

    async def _append(self, draft: ev.Event) -> int:
        made = await self._ledger.log.append(self._row.session, [draft], source=SOURCE, owner=self._ledger.log.owner)
        return made[-1].seq

    # Asking

    async def _rounds(self) -> ev.CallEnd:
        for _ in range(MOST_ROUNDS):
            result = await self._call()
            asked = _questions(result)
            if asked is None:
                return self._ending(_plain(result))
            await self._ask(asked)
        raise RuntimeError(f"the tool asked {MOST_ROUNDS} times and was not content")

    async def _ask(self, result: InputRequiredResult) -> None:
        """Put its questions where the client finds them, and wait until all are answered."""
        self.asked, self._answers = _plain(result).get(ASKED) or {}, {}
        self._told.clear()
        if self.asked:
            await self._answered(await self._say({ASKED: self.asked}))
        # The very object that the tool is called with again: the SDK binds it before we are asked.
        self._params.input_responses = self._answers
        self._params.request_state = result.request_state

    async def _answered(self, since: int) -> None:
        """Answers come from this process, or through the log from another one."""
        listening = asyncio.ensure_future(self._listen(since))
        try:
            await self._told.wait()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, since: int) -> None:
        async with contextlib.aclosing(self._ledger.log.batches(self._row.session, since)) as batches:
            async for batch in batches:
                for event in (stored.event for stored in batch):
                    if isinstance(event, ev.CallProgress) and event.call == self._row.id:
                        with contextlib.suppress(MCPError):  # Written by somebody who did not look at the questions.
                            await self.answer(read_responses(self.asked, _answers_in(event.progress)))

    async def answer(self, given: Mapping[str, Any]) -> None:
        """Some of what was asked, or all of it. The first answer to a question counts."""
        fresh = {name: given[name] for name in self.asked if name in given}
        if not fresh:
            return
        self._answers.update(fresh)
        self.asked = {name: asked for name, asked in self.asked.items() if name not in fresh}
        try:
            await self._say({ASKED: self.asked} if self.asked else None)
        finally:  # Nobody answers it twice, so the tool is told even where the log cannot be.
            if not self.asked:
                self._told.set()

    async def _say(self, progress: Json | None) -> int:
        return await self._append(ev.CallProgress(call=self._row.id, progress=progress))

    def _ending(self, result: Json) -> ev.CallEnd:
        """A tool's own error is how its call failed."""
        made = codec.to_json(result)
        if not result.get("isError"):
            return ev.CallCompleted(call=self._row.id, output=made)
        return ev.CallFailed(call=self._row.id, error=made, reason=_said(result) or "the tool reported an error")


async def send_answers(ledger: Ledger, row: CallRecord, asked: Json, answers: Json) -> None:
    """Hand answers to the process that runs the task."""
    rest = {name: question for name, question in asked.items() if name not in answers}
    told = {ASKED: rest, ANSWERED: {name: _plain(answer) for name, answer in answers.items()}}
    await ledger.log.append(row.session, [ev.CallProgress(call=row.id, progress=told)], source=SOURCE)


def _plain(value: Any) -> Json:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True, mode="json", exclude_none=True)
    return cast(Json, value or {})


def _questions(result: HandlerResult) -> InputRequiredResult | None:
    if isinstance(result, InputRequiredResult):
        return result
    asks = isinstance(result, dict) and result.get("resultType") == "input_required"
    return InputRequiredResult.model_validate(result) if asks else None


def _answers_in(progress: Any) -> Json:
    told: Any = cast(Json, progress).get(ANSWERED) if isinstance(progress, dict) else None
    return cast(Json, told) if isinstance(told, dict) else {}


def _said(result: Json) -> str:
    """The text of a result, as the reason why its call failed."""
    blocks = cast("list[Any]", result.get("content") or [])
    texts = [str(cast(Json, one).get("text", "")) for one in blocks if isinstance(one, dict)]
    return " ".join(text for text in texts if text)[:2000]
