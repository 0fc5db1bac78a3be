"""Our MCP server: the tools, resources and tasks of one ledger, for whoever the gate lets in. It approves nothing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)
from pydantic import ValidationError

from callslip._version import __version__
from callslip.errors import CallslipError, StoreError
from callslip.mcp import call_tools, command_tools, resources
from callslip.mcp.command_tasks import CommandTasks
from callslip.mcp.context import ServerContext
from callslip.mcp.results import refusal
from callslip.mcp.tasks import Tasks
from callslip.mcp.tool import ToolRequest, ToolSpec, plain_arguments, read

log = logging.getLogger("callslip.mcp")

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

TOOLS: dict[str, ToolSpec] = {tool.name: tool for tool in (*command_tools.TOOLS, *call_tools.TOOLS)}
INSTRUCTIONS = (
    "Callslip keeps every tool call of agents in one durable log. Submit a command with `interact`, then ask `observe` "
    "for its result; `list_calls`, `read_call` and `wait_for_call` show any recorded call. A call in the state "
    "awaiting_approval waits for a person: nothing here can approve it, so tell the user."
)


class Answering:
    """What is asked of the server, method by method."""

    def __init__(self, desk: ServerContext) -> None:
        self._desk = desk

    async def tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.described() for tool in TOOLS.values()])

    async def call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        """A tool's own refusals are results, for the model to read; only a tool that is none is an error."""
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"no tool {params.name!r}; there are {', '.join(TOOLS)}")
        try:
            given = plain_arguments(params)
            arguments = command_tools.sorted_out(given) if tool.flat else read(tool.arguments, given)
            return await tool.run(ToolRequest(self._desk, ctx), arguments)
        except (CallslipError, msgspec.ValidationError) as error:
            return refusal(error)

    async def resources(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await _or_error(resources.listed(self._desk.visit(ctx.request), params))

    async def templates(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return await resources.templates()

    async def read(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await _or_error(resources.read(self._desk.visit(ctx.request), params), {"uri": params.uri})


async def _or_error(work: Awaitable[T], data: Any = None) -> T:
    """Resources have no results that tell of errors; these are the protocol's."""
    try:
        return await work
    except CallslipError as error:
        raise _said(error, data) from None


def _said(error: CallslipError, data: Any = None) -> MCPError:
    """Whose fault it is stands in the code."""
    return MCPError(INTERNAL_ERROR if isinstance(error, StoreError) else INVALID_PARAMS, str(error), data)


async def explained(ctx: Context, call_next: Any) -> Any:
    """What went wrong inside is in the log, and not told: it may hold paths, names and values of others."""
    try:
        return await call_next(ctx)
    except CallslipError as error:
        raise _said(error) from None
    except (MCPError, ValidationError):
        raise
    except Exception:
        log.exception("%s", ctx.method)
        raise MCPError(INTERNAL_ERROR, "something is wrong with the server") from None


def build(desk: ServerContext) -> Server[Any]:
    """The server of one desk, for any transport."""
    answering = Answering(desk)
    server: Server[Any] = Server(
        "callslip",
        version=__version__,
        title="Callslip",
        instructions=INSTRUCTIONS,
        on_list_tools=answering.tools,
        on_call_tool=answering.call,
        on_list_resources=answering.resources,
        on_list_resource_templates=answering.templates,
        on_read_resource=answering.read,
    )
    server.middleware.append(explained)
    commands = CommandTasks(desk)
    tasks = Tasks(desk.ledger, admit=commands.admit, elsewhere=commands)
    tasks.serve("interact")
    tasks.attach(server)
    return server
