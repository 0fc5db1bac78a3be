"""The MCP server with the client of the TypeScript SDK 1.x, which validates every structured result by its schema."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callslip.api.commands import CommandQueue
from callslip.api.ledger import open_ledger
from tests.support.mcp_client import serving_mcp
from tests.support.stream_checks import Client

pytestmark = pytest.mark.anyio

ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("interact", {}),
    ("interact", {"action": "go", "timeout": -1}),
    ("observe", {"what": "command_result"}),
    ("observe", {"what": "command_result", "correlation_id": "exec_123"}),
    ("list_calls", {"limit": 0}),
    ("read_call", {"call": "exec_0123456789ab"}),
    ("wait_for_call", {"call": "exec_0123456789ab", "wait": -1}),
    ("cancel_call", {"call": "exec_0123456789ab"}),
]


class SdkClient:
    """A connected client in a Node process."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return the result. An exception of the client fails the test."""
        (answer,) = await asyncio.to_thread(self._client.ask, [{"tool": tool, "arguments": arguments}])
        assert "thrown" not in answer, (tool, arguments, answer)
        return answer["result"]


@asynccontextmanager
async def connected(node: str, server: dict[str, Any]) -> AsyncGenerator[SdkClient]:
    """Connect a client to a server."""
    client = Client(node, "mcp_client.mjs")
    try:
        (answer,) = await asyncio.to_thread(client.ask, [server])
        assert {"interact", "observe", "read_call"} <= set(answer["tools"])
        yield SdkClient(client)
    finally:
        await asyncio.to_thread(client.close)


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_errors_are_results_for_the_typescript_sdk(tmp_path: Path, node: str, transport: str) -> None:
    """IMP6: every tool has an output schema; an error is text only, so the client returns it and does not throw."""
    path = tmp_path / "ledger.db"
    async with await open_ledger(f"sqlite:///{path}") as ledger, serving_mcp(ledger) as url:
        command = [sys.executable, "-m", "callslip", "mcp", "--db", str(path)]
        async with connected(node, {"url": url} if transport == "http" else {"command": command}) as client:
            for tool, arguments in ERRORS:
                result = await client.call(tool, **arguments)
                assert result["isError"] is True and "structuredContent" not in result, (tool, result)
                (block,) = result["content"]
                assert json.loads(block["text"])["error"], tool


async def test_results_have_structured_content_for_the_typescript_sdk(tmp_path: Path, node: str) -> None:
    """A result that is no error passes the validation, and equals its text."""
    async with await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger, serving_mcp(ledger) as url:
        commands = CommandQueue(ledger.log)
        async with connected(node, {"url": url}) as client:
            queued = await client.call("interact", action="execute_js", script="document.title")
            correlation_id = queued["structuredContent"]["correlation_id"]
            await commands.complete(correlation_id, {"value": "Example"})
            done = await client.call("observe", what="command_result", correlation_id=correlation_id)
            calls = await client.call("list_calls")
            for result in (queued, done, calls):
                assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
            assert done["structuredContent"]["result"] == {"value": "Example"}
        await commands.close()
