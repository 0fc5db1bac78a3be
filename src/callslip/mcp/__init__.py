"""Callslip as an MCP server over stdio and HTTP, and MCP tasks over a ledger for any MCP server.

The SDK (`pip install callslip[mcp]`) is loaded with the first message, or with a name below that needs it. In this
package `mcp` alone always means the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger
    from callslip.http.server import Server
    from callslip.mcp.http_transport import HttpTransport
    from callslip.mcp.tasks import Tasks

__all__ = ["SDK_MISSING", "Tasks", "http_app", "serve_stdio"]

SDK_MISSING = 'MCP needs the package `mcp`: pip install "callslip[mcp]", in a clone ".[mcp]"'


def http_app(server: Server) -> HttpTransport:
    """Return the app for `/mcp` of an HTTP server, with the same authorizer. It starts with its first request."""
    from callslip.mcp.context import ServerContext
    from callslip.mcp.http_transport import HttpTransport

    def make_server() -> Any:
        from callslip.mcp.server import build

        return build(ServerContext(server))

    wait_stopped = server.ledger.log.feed.until_closed
    return HttpTransport(
        make_server, server.gate, wait_stopped, server.revocations, max_request_body_size=server.limits.body_bytes
    )


async def serve_stdio(ledger: LocalLedger, session: str = "") -> None:
    """Serve the client that started this process, until it closes stdin or stdout. It may do everything but approve.

    `session` is where commands go that name none.
    """
    from mcp.server.stdio import stdio_server

    from callslip.http.server import Server
    from callslip.mcp.context import ServerContext, StdioAuthorizer
    from callslip.mcp.server import build

    context = ServerContext(Server(ledger, StdioAuthorizer()), session)
    server = build(context)
    try:
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
    except* BrokenPipeError:  # The client is gone.
        pass
    finally:
        await context.commands.close()


def __getattr__(name: str) -> Any:
    if name != "Tasks":
        raise AttributeError(f"module 'callslip.mcp' has no attribute {name!r}")
    from callslip.mcp.tasks import Tasks

    return Tasks
