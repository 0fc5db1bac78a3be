"""The MCP server of a ledger: its tools, resources and tasks, for clients that the authorizer admits."""

from __future__ import annotations

import logging
from typing import Any

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
from callslip.api.find import hide_unreadable
from callslip.errors import CallslipError, StoreError
from callslip.mcp import call_tools, command_tools, resources
from callslip.mcp.command_tasks import CommandTasks
from callslip.mcp.context import ServerContext
from callslip.mcp.results import error_result
from callslip.mcp.tasks import Tasks
from callslip.mcp.tool import ToolRequest, ToolSpec, checked_arguments, parse_arguments

log = logging.getLogger("callslip.mcp")

Context = ServerRequestContext[Any, Any]

TOOLS: dict[str, ToolSpec] = {tool.name: tool for tool in (*command_tools.TOOLS, *call_tools.TOOLS)}
INSTRUCTIONS = (
    "Callslip keeps every tool call of agents in one durable log. Submit a command with `interact`, then ask `observe` "
    "for its result; `list_calls`, `read_call` and `wait_for_call` show any recorded call. A call in the state "
    "awaiting_approval waits for a person: nothing here can approve it, so tell the user."
)


class RequestHandlers:
    """The handlers of the server, one per method of the protocol."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.to_tool() for tool in TOOLS.values()])

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        """Call a tool. Its errors are results, which the model reads; only an unknown tool is a protocol error."""
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"no tool {params.name!r}; known tools: {', '.join(TOOLS)}")
        try:
            raw = checked_arguments(params)
            arguments = command_tools.parse_flat(raw) if tool.flat else parse_arguments(tool.arguments, raw)
            return await tool.run(ToolRequest(self._context, ctx), arguments)
        except msgspec.ValidationError as error:
            return error_result(error)
        except CallslipError as error:
            await hide_unreadable(error, self._context.request_context(ctx.request).access)
            return error_result(error)

    async def list_resources(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await resources.list_resources(self._context.request_context(ctx.request), params)

    async def list_templates(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=list(resources.TEMPLATES))

    async def read_resource(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            return await resources.read_resource(self._context.request_context(ctx.request), params)
        except CallslipError as error:
            raise _protocol_error(error, {"uri": params.uri}) from None


def _protocol_error(error: CallslipError, data: Any = None) -> MCPError:
    """Return an error of the protocol: unlike a tool, a resource has no error results."""
    return MCPError(INTERNAL_ERROR if isinstance(error, StoreError) else INVALID_PARAMS, str(error), data)


async def hide_internal_errors(ctx: Context, call_next: Any) -> Any:
    """Log unexpected errors and hide their text from the client: it may hold paths, names and values of others."""
    try:
        return await call_next(ctx)
    except CallslipError as error:
        raise _protocol_error(error) from None
    except (MCPError, ValidationError):
        raise
    except Exception:
        log.exception("%s", ctx.method)
        raise MCPError(INTERNAL_ERROR, "internal error of the server; see its log") from None


def build(context: ServerContext) -> Server[Any]:
    """Return an MCP server for any transport."""
    handlers = RequestHandlers(context)
    server: Server[Any] = Server(
        "callslip",
        version=__version__,
        title="Callslip",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )
    server.middleware.append(hide_internal_errors)
    commands = CommandTasks(context)
    tasks = Tasks(context.ledger, admit=commands.admit, external=commands)
    tasks.serve("interact")
    tasks.attach(server)
    return server
