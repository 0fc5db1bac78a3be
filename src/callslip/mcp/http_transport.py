"""MCP over HTTP, as an app to be put at a path of another one: admitted by its gate, started with its first request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from callslip.api.access import VERBS
from callslip.client.token_file import digest
from callslip.errors import CallslipError, StoreError
from callslip.http import problems
from callslip.http.access import COOKIE, Authorizer, Forbidden, TokenAuthorizer, bearer_token
from callslip.ledger.aio import race
from callslip.mcp import MISSING
from callslip.mcp.session_limit import Opened

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import Receive, Scope, Send

BODY = 16 * 2**20
SESSIONS = 1000
EACH = 200
"""How many MCP sessions there may be, and how many of them one may have who opens them."""


class Streamable:
    """An MCP server at one path, for every method. `make` is called for the first request and not before.

    Somebody who is nobody is turned away here; what somebody may do is asked again for each message, with the request
    that brought it as its context. Whoever opened an MCP session is the only one who can use it. Hosts and origins are
    checked by whatever this stands behind. `until` returns when all is to end. `settings` are those of the SDK's
    session manager.
    """

    def __init__(
        self,
        make: Callable[[], Server[Any]],
        gate: Authorizer,
        until: Callable[[], Awaitable[Any]] | None = None,
        **settings: Any,
    ) -> None:
        self._make = make
        self._gate = gate
        self._until = until
        self._settings: dict[str, Any] = {"max_request_body_size": BODY, "max_sessions": SESSIONS, **settings}
        self._stop = asyncio.Event()
        self._manager: asyncio.Future[Opened] | None = None
        self._hosting: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            user = await self._user(request)
            opened = await self._started()
        except CallslipError as error:
            return await problems.response(error)(scope, receive, send)
        except ModuleNotFoundError:
            return await problems.problem_response(404, "not-found", MISSING)(scope, receive, send)
        await opened(user.username, {**scope, "user": user}, receive, send)

    async def _user(self, request: Request) -> Any:
        """Whom the SDK takes a session to belong to: the name and the very token."""
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        name = await self._name(request)
        secret = bearer_token(request) or request.cookies.get(COOKIE, "")
        return AuthenticatedUser(AccessToken(token="", client_id=f"{name} {digest(secret)}", scopes=[]))

    async def _name(self, request: Request) -> str:
        """Whoever may do anything at all."""
        for verb in VERBS:
            try:
                return (await self._gate.admit(request, None, verb)).name
            except Forbidden:
                continue
        if isinstance(
            self._gate, TokenAuthorizer
        ):  # It knows the token: one for a single session, and not for reading it.
            return ""
        raise Forbidden("you may do nothing here")

    # The SDK's sessions live in a task of their own: the lifespan of an app that is mounted does not run.

    async def _started(self) -> Opened:
        if self._stop.is_set():
            raise StoreError("the server is about to stop")
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            self._hosting = asyncio.create_task(self._host(self._manager))
        return await asyncio.shield(self._manager)

    async def _host(self, ready: asyncio.Future[Opened]) -> None:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            manager = StreamableHTTPSessionManager(self._make(), **self._settings)
        except BaseException as error:
            self._manager = None  # The next request may try again.
            ready.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        async with manager.run():
            ready.set_result(Opened(manager.handle_request, EACH))
            await race(self._stop.wait(), self._ended())
            self._stop.set()

    async def _ended(self) -> None:
        await (self._until() if self._until is not None else self._stop.wait())

    async def close(self) -> None:
        """End every session. The end of the event loop does the same."""
        self._stop.set()
        if self._hosting is not None:
            await asyncio.gather(self._hosting, return_exceptions=True)
