"""The MCP client of the TypeScript SDK 1.x in a Node process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.stream_checks import Client


class SdkClient:
    """A connected client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return the result. An exception of the client fails the test."""
        (answer,) = await asyncio.to_thread(self._client.ask, [{"tool": tool, "arguments": arguments}])
        assert "thrown" not in answer, (tool, arguments, answer)
        return answer["result"]


@asynccontextmanager
async def connecting_sdk(node: str, url: str) -> AsyncGenerator[SdkClient]:
    """Connect a client to a server over HTTP."""
    client = Client(node, "mcp_client.mjs")
    try:
        (answer,) = await asyncio.to_thread(client.ask, [{"url": url}])
        assert {"interact", "observe", "read_call"} <= set(answer["tools"])
        yield SdkClient(client)
    finally:
        await asyncio.to_thread(client.close)
