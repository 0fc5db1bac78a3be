"""A tool of the MCP server: its description for models, its arguments as a struct, and its function."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from mcp.server.context import ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, Tool, ToolAnnotations

from callslip.api.find import find_call
from callslip.api.ledger import LocalLedger
from callslip.errors import InvalidInputError, NotFoundError
from callslip.ledger.aio import cancel_all
from callslip.ledger.call_entry import load_call_entry
from callslip.mcp.context import ServerContext
from callslip.model import codec

T = TypeVar("T")
Json = dict[str, Any]
PROGRESS_INTERVAL_S = 1.0
"""How often a client that waits receives progress."""
MAX_PROGRESS_CHARS = 200


class ToolRequest:
    """One call of a tool, with the rights of its caller."""

    def __init__(self, context: ServerContext, ctx: ServerRequestContext[Any, Any]) -> None:
        self.context = context
        self.ledger = context.ledger
        self.commands = context.commands
        self.request_context = context.request_context(ctx.request)
        self.access = self.request_context.access
        self._session = ctx.session
        self._wants_progress = "progress_token" in (ctx.meta or {})

    async def wait_with_progress(
        self, work: Coroutine[Any, Any, T], seconds: float, describe: Callable[[], Awaitable[str]]
    ) -> T:
        """Return the result of `work`; until then report progress, if the client asked for it.

        A client that cancels its request cancels `work`, but not the call that `work` waits for.
        """
        task = asyncio.ensure_future(work)
        try:
            for tick in range(math.ceil(seconds / PROGRESS_INTERVAL_S) if self._wants_progress else 0):
                await self._session.report_progress(tick * PROGRESS_INTERVAL_S, seconds, await describe())
                if (await asyncio.wait([task], timeout=PROGRESS_INTERVAL_S))[0]:
                    break
            return await task
        finally:
            await cancel_all(task)


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. With `flat` it accepts arguments that its struct does not have."""

    name: str
    title: str
    description: str
    arguments: type[msgspec.Struct]
    run: Callable[[ToolRequest, Any], Awaitable[CallToolResult]]
    output_schema: Json
    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    flat: bool = False

    def to_tool(self) -> Tool:
        """Return the tool as the protocol lists it."""
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=input_schema(self.arguments, flat=self.flat),
            output_schema=self.output_schema,
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint=self.read_only,
                destructive_hint=self.destructive,
                idempotent_hint=self.idempotent,
                open_world_hint=self.open_world,
            ),
        )


def input_schema(arguments: type[msgspec.Struct], *, flat: bool = False) -> Json:
    """Return the JSON Schema of arguments without references, which not all hosts resolve for their models."""
    schema = msgspec.json.schema(arguments)["$defs"][arguments.__name__]
    schema.pop("title", None)
    schema.pop("description", None)  # The docstring of the struct is not meant for models.
    schema["additionalProperties"] = flat
    return schema


def checked_arguments(params: CallToolRequestParams) -> Json:
    """Return the arguments if they can be stored: the SDK also accepts values that are not JSON, such as NaN."""
    return codec.validate_json(params.arguments or {}, "arguments")


def parse_arguments(kind: type[T], arguments: Json) -> T:
    """Return arguments as a struct. Null is the same as absent, because models write it so."""
    return msgspec.convert({name: value for name, value in arguments.items() if value is not None}, kind)


async def describe_call(ledger: LocalLedger, call: str) -> str:
    """Return the state of a call and its progress, as a line for a client that waits for it."""
    try:
        record = await find_call(ledger.log, call)
    except NotFoundError:
        return "gone"
    entry = await load_call_entry(ledger.log, record)
    if entry is None or entry.progress is None:
        return record.state
    progress = entry.progress if isinstance(entry.progress, str) else codec.encode(entry.progress).decode()
    return f"{record.state}: {progress[:MAX_PROGRESS_CHARS]}"


def check_wait(request: ToolRequest, wait: float) -> None:
    """Refuse a wait that is longer than the server allows."""
    limit = request.context.server.limits.wait
    if wait > limit:
        raise InvalidInputError("wait", f"must be from 0 to {limit:g} seconds; call again to wait longer")
