"""Who asks, over MCP: every request is a visit as by HTTP, and the same gate decides. Over stdio it is the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection, Request

from callslip.api.commands import DEFAULT_SESSION
from callslip.http.access import AllowAll, Principal, Verb
from callslip.http.request import RequestContext, Route, Server, answer
from callslip.model.records import SessionRecord

if TYPE_CHECKING:
    from starlette.responses import Response


async def _nothing(visit: RequestContext) -> Response:
    return answer(None)


# A visit is of a route; of these only the verb counts, and each tool names its own.
ROUTE = Route(method="POST", path="/mcp", endpoint=_nothing, about="The Model Context Protocol.")
_NOBODY: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}


class Alone(AllowAll):
    """Whoever started the process: everything is theirs already."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        return Principal("user")


class ServerContext:
    """What the requests of one MCP server share: the ledger behind its gate, and its commands."""

    def __init__(self, server: Server, session: str = "") -> None:
        self.server = server
        self.ledger = server.ledger
        self.commands = server.commands
        self._session = session

    def session(self, visit: RequestContext) -> str:
        """Where commands go that name no session: `/mcp?session=NAME`, `callslip mcp --session NAME`, or the usual."""
        return visit.request.query_params.get("session", "") or self._session or DEFAULT_SESSION

    def visit(self, request: Any) -> RequestContext:
        """Whoever sent a message: by the HTTP request that brought it, if one did."""
        brought = cast("Request", request) if isinstance(request, Request) else Request(_NOBODY)
        return RequestContext(self.server, brought, ROUTE)
