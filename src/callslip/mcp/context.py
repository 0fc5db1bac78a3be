"""What MCP requests share. Each has a RequestContext as over HTTP, and the same authorizer decides what it may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection, Request

from callslip.api.commands import DEFAULT_SESSION
from callslip.http.access import AllowAll, Principal, Verb
from callslip.http.request import RequestContext, Route, json_response
from callslip.http.server import Server
from callslip.model.records import SessionRecord

if TYPE_CHECKING:
    from starlette.responses import Response


async def _no_content(context: RequestContext) -> Response:
    return json_response(None)


# A request context needs a route. Its verb does not matter: each tool names its own.
ROUTE = Route("POST", "/mcp", _no_content)
_EMPTY_SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}


class StdioAuthorizer(AllowAll):
    """Allow everything to the user who started the process: the database is theirs already."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        return Principal("user")


class ServerContext:
    """What the requests of one MCP server share: the HTTP server with its authorizer, the ledger and its commands."""

    def __init__(self, server: Server, session: str = "") -> None:
        self.server = server
        self.ledger = server.ledger
        self.commands = server.commands
        self._session = session

    def command_session(self, context: RequestContext) -> str:
        """Return the session of commands that name none: of `/mcp?session=` or `callslip mcp --session`, if given."""
        return context.request.query_params.get("session", "") or self._session or DEFAULT_SESSION

    def request_context(self, request: Any) -> RequestContext:
        """Return the context of a message: of the HTTP request that brought it, or of the user over stdio."""
        http_request = cast("Request", request) if isinstance(request, Request) else Request(_EMPTY_SCOPE)
        return RequestContext(self.server, http_request, ROUTE)
