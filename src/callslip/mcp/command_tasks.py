"""Commands as MCP tasks: what `interact` submits is the task, for clients that know tasks. Somebody else runs it."""

from __future__ import annotations

import contextlib
from typing import Any

from mcp_types import CallToolRequestParams

from callslip.api.find import find_call
from callslip.errors import ConflictError
from callslip.http.request import RequestAccess
from callslip.mcp.command_tools import sorted_out, submit
from callslip.mcp.context import ServerContext
from callslip.mcp.results import tool_result
from callslip.mcp.tasks import Context, Verb
from callslip.mcp.tool import ToolRequest, plain_arguments
from callslip.model.records import CallRecord
from callslip.model.state_names import STATE_NAMES


class CommandTasks:
    """The tasks of executors. A task's id is the command's execution id."""

    def __init__(self, desk: ServerContext) -> None:
        self._desk = desk

    async def begin(self, params: CallToolRequestParams, ctx: Context) -> CallRecord | None:
        """The command, queued."""
        if params.name != "interact":
            return None
        asked = ToolRequest(self._desk, ctx)
        command = await submit(asked, sorted_out(plain_arguments(params)))
        return await self._desk.commands.find(command.correlation_id, command.session)

    async def find(self, task: str, ctx: Context) -> CallRecord | None:
        row = await self._desk.ledger.log.store.call(task)
        return row if row is not None and row.client else None

    async def admit(self, ctx: Context, row: CallRecord, verb: Verb) -> None:
        """As for the tools: what they may not see is not there."""
        access = RequestAccess(self._desk.visit(ctx.request))
        await find_call(self._desk.ledger.log, row.id, access=access, verb=verb)
        await access.require(row.session, verb)

    async def result(self, row: CallRecord) -> dict[str, Any]:
        """S3.2's answer as the result of the tool; one that went wrong is a tool's error."""
        made = tool_result(await self._desk.commands.get(row.id), error=STATE_NAMES[row.state].error)
        return made.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def cancel(self, row: CallRecord, reason: str) -> None:
        with contextlib.suppress(ConflictError):  # It has ended meanwhile.
            await self._desk.commands.cancel(row.id, reason)
