"""The MCP server with the client of the TypeScript SDK 1.x, which validates every structured result by its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callslip.api.commands import CommandQueue
from callslip.api.ledger import open_ledger
from tests.support.mcp_client import serving_mcp
from tests.support.typescript_client import connecting_sdk

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


async def test_errors_are_results_for_the_typescript_sdk(tmp_path: Path, node: str) -> None:
    """IMP5: every tool has an output schema; an error is text only, so the client returns it and does not throw."""
    async with (
        await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger,
        serving_mcp(ledger) as url,
        connecting_sdk(node, url) as client,
    ):
        for tool, arguments in ERRORS:
            result = await client.call(tool, **arguments)
            assert result["isError"] is True and "structuredContent" not in result, (tool, result)
            (block,) = result["content"]
            assert json.loads(block["text"])["error"], tool


async def test_results_have_structured_content_for_the_typescript_sdk(tmp_path: Path, node: str) -> None:
    """A result that is no error passes the validation, and equals its text."""
    async with await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger, serving_mcp(ledger) as url:
        commands = CommandQueue(ledger.log)
        async with connecting_sdk(node, url) as client:
            queued = await client.call("interact", action="execute_js", script="document.title")
            correlation_id = queued["structuredContent"]["correlation_id"]
            await commands.complete(correlation_id, {"value": "Example"})
            done = await client.call("observe", what="command_result", correlation_id=correlation_id)
            calls = await client.call("list_calls")
            for result in (queued, done, calls):
                assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
            assert done["structuredContent"]["result"] == {"value": "Example"}
        await commands.close()
