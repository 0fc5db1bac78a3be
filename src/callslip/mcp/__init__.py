"""Callslip as an MCP server, over stdio and HTTP, and MCP tasks over a ledger for anybody's server.

The SDK (`pip install callslip[mcp]`) is loaded with the first message, or with a name below that needs it. Here `mcp`
alone always means the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger
    from callslip.http.request import Server
    from callslip.mcp.http_transport import Streamable
    from callslip.mcp.tasks import Tasks

__all__ = ["MISSING", "Tasks", "http_app", "serve_stdio"]

MISSING = 'MCP needs the package `mcp`: pip install "callslip[mcp]", in a clone ".[mcp]"'


def http_app(server: Server) -> Streamable:
    """The app for `/mcp` of an HTTP server, behind the same gate. It starts with its first request."""
    from callslip.mcp.context import ServerContext
    from callslip.mcp.http_transport import Streamable

    def make() -> Any:
        from callslip.mcp.server import build

        return build(ServerContext(server))

    until = server.ledger.log.feed.until_closed
    return Streamable(make, server.gate, until, max_request_body_size=server.limits.body)


async def serve_stdio(ledger: Ledger, session: str = "") -> None:
    """Serve whoever started this process, until they close its stdin or stdout. They may do everything but approve.

    `session` is where commands go that name none.
    """
    from mcp.server.stdio import stdio_server

    from callslip import http
    from callslip.mcp.context import Alone, ServerContext
    from callslip.mcp.server import build

    desk = ServerContext(http.server(ledger, Alone()), session)
    made = build(desk)
    try:
        async with stdio_server() as (reading, writing):
            await made.run(reading, writing, made.create_initialization_options())
    except* BrokenPipeError:  # Nobody is left to be answered.
        pass
    finally:
        await desk.commands.close()


def __getattr__(name: str) -> Any:
    if name != "Tasks":
        raise AttributeError(f"module 'callslip.mcp' has no attribute {name!r}")
    from callslip.mcp.tasks import Tasks

    return Tasks
