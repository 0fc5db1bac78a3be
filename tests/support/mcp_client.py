"""The official MCP client, talking to our server: over stdio to a real process, over HTTP to a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from callslip import http
from callslip.api.ledger import Ledger
from callslip.client.token_file import digest
from callslip.http.access import AllowAll, Authorizer
from callslip.mcp.task_wire import EXTENSION
from callslip.model import ids
from callslip.model.records import TokenRecord
from tests.support.live_server import running

MODES = ("legacy", "auto")
"""The protocol of 2025-11-25, with its handshake, and that of 2026-07-28, without."""


@contextlib.asynccontextmanager
async def over_stdio(path: Path, mode: str = "auto", **more: Any) -> AsyncGenerator[Client]:
    """A client of `callslip mcp` on a ledger."""
    started = StdioServerParameters(command=sys.executable, args=["-m", "callslip", "mcp", "--db", str(path)])
    async with Client(stdio_client(started), mode=mode, **more) as client:
        yield client


@contextlib.asynccontextmanager
async def served(ledger: Ledger, gate: Authorizer | None = None) -> AsyncGenerator[str]:
    """The address of a ledger's MCP server."""
    async with running(http.app(http.server(ledger, gate or AllowAll()))) as url:
        yield f"{url}/mcp"


@contextlib.asynccontextmanager
async def over_http(url: str, mode: str = "auto", token: str = "", **more: Any) -> AsyncGenerator[Client]:
    """A client at an address."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as asking,
        Client(streamable_http_client(url, http_client=asking), mode=mode, **more) as client,
    ):
        yield client


async def token_for(ledger: Ledger, *verbs: str, session: str = "") -> str:
    """A token for a part of what the server does."""
    token = f"token-{'-'.join(verbs)}-{session or 'all'}-of-some-length"
    await ledger.log.store.put_token(TokenRecord(ids.approval_id(), digest(token), "", session, verbs, 0))
    return token


async def call(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """What a tool answered; structured and as text it is the same."""
    result = await client.call_tool(name, arguments)
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    assert json.loads(block.text) == result.structured_content
    assert result.is_error == ("error" in result.structured_content and "created_at" not in result.structured_content)
    return result.structured_content


# Tasks, of which the official client knows only where they would come in


class TaskHandle(types.Result):
    """What comes instead of a result."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int | None
    poll_interval_ms: int


class Named(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(types.Request[Named, str]):
    """`tasks/get`, `tasks/update` or `tasks/cancel`. The client sends the id as a header, too."""

    name_param = "taskId"
    method: str
    params: Named


class Task(types.Result):
    """What is told of a task: whatever is."""

    model_config: ClassVar[Any] = {**types.Result.model_config, "extra": "allow"}


class TasksOfClient(ClientExtension):
    """Takes the handle of a task and asks until it has ended."""

    identifier = EXTENSION

    def claims(self) -> Any:
        return (ResultClaim(result_type="task", model=TaskHandle, resolve=self._resolve),)

    async def _resolve(self, handle: TaskHandle, ctx: ClaimContext) -> types.CallToolResult:
        ended = await ended_task(ctx.session, handle.task_id)
        return types.CallToolResult.model_validate(ended["result"])


async def about_task(session: Any, method: str, task: str, **more: Any) -> dict[str, Any]:
    """One request about a task."""
    asked = TaskRequest(method=f"tasks/{method}", params=Named(task_id=task, **more))
    made = await session.send_request(asked, Task)
    return {**made.model_dump(by_alias=True, mode="json"), **(made.model_extra or {})}


async def begun_task(client: Client, tool: str, **arguments: Any) -> str:
    """The id of the task that a tool began."""
    handle = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(handle, TaskHandle), handle
    return handle.task_id


async def task_until(session: Any, task: str, *statuses: str) -> dict[str, Any]:
    """The task once it has one of these statuses."""
    async with asyncio.timeout(20):
        while (told := await about_task(session, "get", task))["status"] not in statuses:
            await asyncio.sleep(0.02)
    return told


async def ended_task(session: Any, task: str) -> dict[str, Any]:
    return await task_until(session, task, "completed", "failed", "cancelled")
