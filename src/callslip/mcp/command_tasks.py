"""Commands as MCP tasks: for clients that support tasks, the command that `interact` submits is the task."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolRequestParams

from callslip.api.find import find_call
from callslip.errors import ConflictError, NotFoundError
from callslip.mcp.command_tools import parse_flat, submit
from callslip.mcp.context import ServerContext
from callslip.mcp.results import tool_result
from callslip.mcp.tasks import Context, Verb
from callslip.mcp.tool import ToolRequest, checked_arguments
from callslip.model.records import CallRecord
from callslip.model.state_names import STATE_NAMES


class CommandTasks:
    """The tasks that workers run. The id of a task is the execution id of its command."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def begin(self, params: CallToolRequestParams, ctx: Context) -> CallRecord | None:
        """Queue the command and return its call."""
        if params.name != "interact":
            return None
        command = await submit(ToolRequest(self._context, ctx), parse_flat(checked_arguments(params)))
        return await self._context.commands.find(command.correlation_id, command.session)

    async def find(self, task: str, ctx: Context) -> CallRecord | None:
        """Return the call of a command by its whole execution id, or None."""
        try:
            record = await find_call(self._context.ledger.log, task)
        except (NotFoundError, ConflictError):
            return None
        return record if record.client and record.id == task else None

    async def admit(self, ctx: Context, record: CallRecord, verb: Verb) -> None:
        """Raise if the client may not use the task; a session that it may not see does not exist for it."""
        access = self._context.request_context(ctx.request).access
        await find_call(self._context.ledger.log, record.id, access=access, verb=verb)
        await access.require(record.session, verb)

    async def result(self, record: CallRecord) -> dict[str, Any]:
        """Return the command as the result of the tool; a command that failed is an error of the tool."""
        result = tool_result(await self._context.commands.get(record.id), error=STATE_NAMES[record.state].error)
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
