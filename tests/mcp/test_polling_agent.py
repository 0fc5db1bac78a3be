"""An agent that submits commands and polls for their results: the same dialogue over MCP and over HTTP.

The dialogue is tests/fixtures/polling-agent.json. It is read again after the server was restarted.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import open_ledger
from tests.support.live_server import fetch
from tests.support.mcp_client import call_tool, over_http, serving_mcp
from tests.support.paths import TESTS
from tests.support.typescript_client import connecting_sdk

pytestmark = pytest.mark.anyio

DIALOGUE: list[Any] = json.loads((TESTS / "fixtures" / "polling-agent.json").read_text("utf-8"))["dialogue"]
WIRES = ("mcp", "mcp typescript", "http")
ANY_TEXT = "..."

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


@asynccontextmanager
async def connecting(wire: str, node: str, path: Path) -> AsyncGenerator[tuple[Ask, str]]:
    """Serve a ledger, and yield how to call a tool over a wire, and the address of the server."""
    async with await open_ledger(f"sqlite:///{path}") as ledger, serving_mcp(ledger) as mcp_url:
        url = mcp_url.removesuffix("/mcp")
        if wire == "http":
            yield (lambda tool, arguments: ask_http(url, tool, arguments)), url
        elif wire == "mcp typescript":
            async with connecting_sdk(node, mcp_url) as sdk:

                async def ask_sdk(tool: str, arguments: dict[str, Any]) -> Any:
                    return (await sdk.call(tool, **arguments))["structuredContent"]

                yield ask_sdk, url
        else:
            async with over_http(mcp_url) as client:
                yield (lambda tool, arguments: call_tool(client, tool, **arguments)), url


async def ask_http(url: str, tool: str, arguments: dict[str, Any]) -> Any:
    """Send the request of the HTTP API that corresponds to a call of a tool."""
    if tool == "interact":
        own = {name: arguments[name] for name in ("action", "correlation_id", "timeout") if name in arguments}
        params = {name: value for name, value in arguments.items() if name not in own}
        return (await fetch(f"{url}/v1/calls", "POST", value={**own, "params": params})).json()
    if arguments["what"] == "command_result":
        wait = f"&wait={arguments['wait']}" if "wait" in arguments else ""
        return (await fetch(f"{url}/v1/calls/{arguments['correlation_id']}?format=command{wait}")).json()
    lists = (await fetch(f"{url}/v1/commands")).json()
    return lists if arguments["what"] == "pending_commands" else {"commands": lists["failed"]}


async def run_as_executor(url: str, command: str, body: dict[str, Any]) -> None:
    """Find a command as an extension that polls does, and post its result."""
    queries = (await fetch(f"{url}/pending-queries")).json()["queries"]
    (query,) = [query for query in queries if query["correlation_id"] == command]
    assert (query["action"], query["params"]) == ("execute_js", {"script": "document.title"})
    assert (await fetch(f"{url}/v1/calls/{command}/result", "POST", value=body)).status == 200


def check(expected: Any, found: Any) -> None:
    """Check that a response has what is expected of it."""
    if isinstance(expected, dict):
        for name, value in expected.items():  # pyright: ignore[reportUnknownVariableType]
            assert name in found, (name, found)
            check(value, found[name])
    elif isinstance(expected, list):
        assert len(expected) == len(found), found  # pyright: ignore[reportUnknownArgumentType]
        for value, item in zip(expected, found, strict=True):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            check(value, item)
    else:
        assert (isinstance(found, str) and found) if expected == ANY_TEXT else found == expected


@pytest.mark.parametrize("wire", WIRES)
async def test_the_dialogue_of_an_agent_that_polls(wire: str, node: str, tmp_path: Path) -> None:
    """S3.1, S3.2, S3.5, S3.9: the responses are those of the dialogue, live and after a restart of the server."""
    path = tmp_path / "ledger.db"
    async with connecting(wire, node, path) as (ask, url):
        for step in DIALOGUE:
            if "executor" in step:
                await run_as_executor(url, step["executor"], step["posts"])
            elif "ends" in step:
                await ask("observe", {"what": "command_result", "correlation_id": step["ends"], "wait": 20})
            else:
                own = {name: step[name] for name in ("correlation_id", "timeout") if name in step}
                check(step["response"], await ask(step["tool"], {**step["arguments"], **own}))
        live = await read_all(ask)
    async with connecting(wire, node, path) as (ask, _):
        assert await read_all(ask) == live


async def read_all(ask: Ask) -> list[Any]:
    """Return every command and every list."""
    ids = {step["correlation_id"] for step in DIALOGUE if "correlation_id" in step}
    queries = [{"what": "command_result", "correlation_id": name} for name in sorted(ids)]
    queries += [{"what": "pending_commands"}, {"what": "failed_commands"}]
    return [without_poll_time(await ask("observe", query)) for query in queries]


def without_poll_time(response: Any) -> Any:
    """Return a response without the time of the last poll of an executor, which is of no command."""
    if isinstance(response, dict):
        return {name: without_poll_time(value) for name, value in response.items() if name != "executor_seen_at"}  # pyright: ignore[reportUnknownVariableType]
    return [without_poll_time(item) for item in response] if isinstance(response, list) else response  # pyright: ignore[reportUnknownVariableType]
