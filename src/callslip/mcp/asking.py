"""Who asks, over MCP: every request is a visit as by HTTP, and the same gate decides. Over stdio it is the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection, Request

from callslip.commands.queue import SESSION
from callslip.http.gate import Open, Principal, Verb
from callslip.http.visit import Route, Server, Visit, answer
from callslip.rows import SessionRow

if TYPE_CHECKING:
    from starlette.responses import Response


async def _nothing(visit: Visit) -> Response:
    return answer(None)


# A visit is of a route; of these only the verb counts, and each tool names its own.
ROUTE = Route(method="POST", path="/mcp", endpoint=_nothing, about="The Model Context Protocol.")
_NOBODY: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}


class Alone(Open):
    """Whoever started the process: everything is theirs already."""

    async def admit(self, request: HTTPConnection, session: SessionRow | None, verb: Verb) -> Principal:
        return Principal("user")


class Desk:
    """What the requests of one MCP server share: the ledger behind its gate, and its commands."""

    def __init__(self, server: Server, session: str = "") -> None:
        self.server = server
        self.ledger = server.ledger
        self.commands = server.commands
        self._session = session

    def session(self, visit: Visit) -> str:
        """Where commands go that name no session: `/mcp?session=NAME`, `callslip mcp --session NAME`, or the usual."""
        return visit.request.query_params.get("session", "") or self._session or SESSION

    def visit(self, request: Any) -> Visit:
        """Whoever sent a message: by the HTTP request that brought it, if one did."""
        brought = cast("Request", request) if isinstance(request, Request) else Request(_NOBODY)
        return Visit(self.server, brought, ROUTE)
