"""Commands as MCP tasks: what `interact` submits is the task, for clients that know tasks. Somebody else runs it."""

from __future__ import annotations

import contextlib
from typing import Any

from mcp_types import CallToolRequestParams

from callslip.errors import Conflict
from callslip.http.calls import find
from callslip.mcp.answers import told
from callslip.mcp.asking import Desk
from callslip.mcp.command_tools import sorted_out, submit
from callslip.mcp.tasks import Context, Verb
from callslip.mcp.tool import Asked, plain_arguments
from callslip.rows import CallRow
from callslip.words import WORDS


class CommandTasks:
    """The tasks of executors. A task's id is the command's execution id."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def begin(self, params: CallToolRequestParams, ctx: Context) -> CallRow | None:
        """The command, queued."""
        if params.name != "interact":
            return None
        asked = Asked(self._desk, ctx)
        command = await submit(asked, sorted_out(plain_arguments(params)))
        return await self._desk.commands.find(command.correlation_id, command.session)

    async def find(self, task: str, ctx: Context) -> CallRow | None:
        row = await self._desk.ledger.store.call(task)
        return row if row is not None and row.client else None

    async def admit(self, ctx: Context, row: CallRow, verb: Verb) -> None:
        """As for the tools: what they may not see is not there."""
        visit = self._desk.visit(ctx.request)
        await find(visit, row.id, "", verb)
        await visit.session(row.session, verb)

    async def result(self, row: CallRow) -> dict[str, Any]:
        """S3.2's answer as the result of the tool; one that went wrong is a tool's error."""
        made = told(await self._desk.commands.get(row.id), error=WORDS[row.state].error)
        return made.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def cancel(self, row: CallRow, reason: str) -> None:
        with contextlib.suppress(Conflict):  # It has ended meanwhile.
            await self._desk.commands.cancel(row.id, reason)
