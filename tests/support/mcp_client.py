"""The official MCP client: over stdio with a real process, over HTTP with a real socket."""

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
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.http.access import AllowAll, Authorizer
from callslip.mcp import http_app
from callslip.mcp.task_wire import EXTENSION
from callslip.model import ids
from callslip.model.records import TokenRecord
from tests.support.live_server import running

MODES = ("legacy", "auto")
"""Protocol 2025-11-25, with its handshake, and 2026-07-28, without."""


@contextlib.asynccontextmanager
async def over_stdio(path: Path, mode: str = "auto", **options: Any) -> AsyncGenerator[Client]:
    """Connect a client to `callslip mcp` on a ledger."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "callslip", "mcp", "--db", str(path)])
    async with Client(stdio_client(server), mode=mode, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def serving_mcp(ledger: LocalLedger, gate: Authorizer | None = None) -> AsyncGenerator[str]:
    """Serve a ledger over HTTP, and return the address of its MCP server."""
    async with running(http.app(http.Server(ledger, gate or AllowAll()), mcp_app=http_app)) as url:
        yield f"{url}/mcp"


@contextlib.asynccontextmanager
async def over_http(url: str, mode: str = "auto", token: str = "", **options: Any) -> AsyncGenerator[Client]:
    """Connect a client to an address."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http_client,
        Client(streamable_http_client(url, http_client=http_client), mode=mode, **options) as client,
    ):
        yield client


async def create_token(ledger: LocalLedger, *verbs: str, session: str = "") -> str:
    """Create a token for some verbs, in one session or all."""
    token = f"token-{'-'.join(verbs)}-{session or 'all'}-of-some-length"
    await ledger.log.store.put_token(TokenRecord(ids.approval_id(), hash_token(token), "", session, verbs, 0))
    return token


async def call_tool(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its result. Structured content must equal the text; an error has none."""
    result = await client.call_tool(name, arguments)
    fields = result_fields(result)
    assert result.structured_content == (None if result.is_error else fields)
    assert result.is_error == ("error" in fields and "created_at" not in fields)
    return fields


def result_fields(result: types.CallToolResult) -> dict[str, Any]:
    """Return the fields of a result from its text."""
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return json.loads(block.text)


# Tasks, which the official client supports only by an extension


class TaskHandle(types.Result):
    """The result of a tool call that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int | None
    poll_interval_ms: int


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(types.Request[TaskParams, str]):
    """`tasks/get`, `tasks/update` or `tasks/cancel`. The client also sends the id as a header."""

    name_param = "taskId"
    method: str
    params: TaskParams


class Task(types.Result):
    """The result of a request about a task, with all its fields."""

    model_config: ClassVar[Any] = {**types.Result.model_config, "extra": "allow"}


class ClientTasks(ClientExtension):
    """Take the handle of a task and poll until it has ended."""

    identifier = EXTENSION

    def claims(self) -> Any:
        return (ResultClaim(result_type="task", model=TaskHandle, resolve=self._resolve),)

    async def _resolve(self, handle: TaskHandle, ctx: ClaimContext) -> types.CallToolResult:
        ended = await wait_for_task(ctx.session, handle.task_id)
        return types.CallToolResult.model_validate(ended["result"])


async def request_task(session: Any, method: str, task: str, **params: Any) -> dict[str, Any]:
    """Send a request about a task, and return its result."""
    request = TaskRequest(method=f"tasks/{method}", params=TaskParams(task_id=task, **params))
    result = await session.send_request(request, Task)
    return {**result.model_dump(by_alias=True, mode="json"), **(result.model_extra or {})}


async def begin_task(client: Client, tool: str, /, **arguments: Any) -> str:
    """Call a tool as a task, and return the id of the task."""
    handle = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(handle, TaskHandle), handle
    return handle.task_id


async def wait_for_status(session: Any, task: str, *statuses: str) -> dict[str, Any]:
    """Poll until the task has one of these statuses, and return it."""
    async with asyncio.timeout(20):
        while (detail := await request_task(session, "get", task))["status"] not in statuses:
            await asyncio.sleep(0.02)
    return detail


async def wait_for_task(session: Any, task: str) -> dict[str, Any]:
    return await wait_for_status(session, task, "completed", "failed", "cancelled")
