"""A tool of our MCP server: what a model is told of it, its arguments as a struct, and the function behind it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from mcp.server.context import ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, Tool, ToolAnnotations

from callslip.api.ledger import Ledger
from callslip.errors import InvalidInputError
from callslip.http.request import RequestContext
from callslip.ledger.call_entry import load_call_entry
from callslip.mcp.context import ServerContext
from callslip.model import codec
from callslip.model.records import CallRecord

T = TypeVar("T")
Json = dict[str, Any]
TICK = 1.0
"""How often somebody who waits is told that they still do."""
SAID = 200


class ToolRequest:
    """One call of a tool: who asks, with which arguments, and the line back to them while it goes on."""

    def __init__(self, desk: ServerContext, ctx: ServerRequestContext[Any, Any]) -> None:
        self.desk = desk
        self.ledger = desk.ledger
        self.commands = desk.commands
        self.visit: RequestContext = desk.visit(ctx.request)
        self._session = ctx.session
        self._progress = "progress_token" in (ctx.meta or {})

    async def waiting(self, work: Coroutine[Any, Any, T], seconds: float, how: Callable[[], Awaitable[str]]) -> T:
        """The result of some waiting, with a word of progress now and then for clients that asked for it.

        A client that cancels its request ends the waiting, and nothing else.
        """
        task = asyncio.ensure_future(work)
        try:
            for passed in range(math.ceil(seconds / TICK) if self._progress else 0):
                await self._session.report_progress(passed * TICK, seconds, await how())
                if (await asyncio.wait([task], timeout=TICK))[0]:
                    break
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


Run = Callable[[ToolRequest, Any], Awaitable[CallToolResult]]


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. With `flat`, arguments that it does not know are taken too."""

    name: str
    title: str
    about: str
    arguments: type[msgspec.Struct]
    run: Run
    answers: Json
    reads: bool = True
    destroys: bool = False
    repeatable: bool = True
    open_world: bool = False
    flat: bool = False

    def described(self) -> Tool:
        """As it is listed."""
        return Tool(
            name=self.name,
            title=self.title,
            description=self.about,
            input_schema=schema(self.arguments, flat=self.flat),
            output_schema=self.answers,
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint=self.reads,
                destructive_hint=self.destroys,
                idempotent_hint=self.repeatable,
                open_world_hint=self.open_world,
            ),
        )


def schema(arguments: type[msgspec.Struct], *, flat: bool = False) -> Json:
    """The JSON Schema of some arguments, in one piece: models read it, and not all of their hosts follow references."""
    made = msgspec.json.schema(arguments)["$defs"][arguments.__name__]
    made.pop("title", None)
    made.pop("description", None)  # The struct's docstring is for us.
    made["additionalProperties"] = flat
    return made


def plain_arguments(params: CallToolRequestParams) -> Json:
    """What was given, once it is JSON that can be kept: the SDK lets through what Python's reader does."""
    return codec.validate_json(params.arguments or {}, "arguments")


def read(arguments: type[T], given: Json) -> T:
    """Arguments as their struct; null is the same as left out, since models write it so."""
    return msgspec.convert({name: value for name, value in given.items() if value is not None}, arguments)


async def standing(ledger: Ledger, row: CallRecord) -> str:
    """How a call stands, in a line for somebody who waits for it: its state, and what its executor says of it."""
    now = await ledger.log.store.call(row.id)
    entry = await load_call_entry(ledger.log, now) if now is not None else None
    if now is None or entry is None or entry.progress is None:
        return now.state if now is not None else "gone"
    said = entry.progress if isinstance(entry.progress, str) else codec.encode(entry.progress).decode()
    return f"{now.state}: {said[:SAID]}"


def check_wait(asked: ToolRequest, wait: float) -> None:
    """Nobody waits for longer than a server lets them."""
    longest = asked.desk.server.limits.wait
    if wait > longest:
        raise InvalidInputError("wait", f"must be from 0 to {longest:g} seconds; ask again for more")
