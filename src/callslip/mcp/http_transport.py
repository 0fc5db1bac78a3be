"""MCP over HTTP, as an app to mount at a path: it asks the authorizer, and starts with its first request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from callslip.api.access import VERBS
from callslip.client.token_file import hash_token
from callslip.errors import AuthenticationError, CallslipError, PermissionDeniedError, StoreError
from callslip.http import problems
from callslip.http.access import COOKIE, Authorizer, TokenAuthorizer, bearer_token
from callslip.http.problems import RequestTooLargeError
from callslip.http.revocations import Revocations
from callslip.ledger.aio import LARGE_BYTES, race, run_off_loop
from callslip.mcp import SDK_MISSING
from callslip.mcp.session_limit import SessionLimit
from callslip.model import codec
from callslip.settings import Limits

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 * 2**20
MAX_BODY_VALUES = Limits().body_values
MAX_SESSIONS = 1000
MAX_USER_SESSIONS = 200
"""How many MCP sessions one user may have open, of the MAX_SESSIONS of the server."""


class HttpTransport:
    """An MCP server at one path, for every method. `make_server` is called with the first request.

    Unknown callers are refused here. What a known caller may do is checked again for each message, by the HTTP request
    that brought it. Only the user who opened an MCP session can use it. Hosts and origins are checked by the app that
    mounts this one. All sessions end when `wait_stopped` returns. `settings` are those of the SDK's session manager.
    """

    def __init__(
        self,
        make_server: Callable[[], Server[Any]],
        authorizer: Authorizer,
        wait_stopped: Callable[[], Coroutine[Any, Any, Any]] | None = None,
        revocations: Revocations | None = None,
        **settings: Any,
    ) -> None:
        self._make_server = make_server
        self._authorizer = authorizer
        self._revocations = revocations
        self._settings: dict[str, Any] = {
            "max_request_body_size": MAX_BODY_BYTES,
            "max_sessions": MAX_SESSIONS,
            **settings,
        }
        self._stop = asyncio.Event()
        self._wait_stopped = wait_stopped or self._stop.wait
        self._app: asyncio.Future[SessionLimit] | None = None
        self._hosting: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            user = await self._authenticate(Request(scope))
            app = await self._start()
        except CallslipError as error:
            return await problems.response(error)(scope, receive, send)
        except ModuleNotFoundError:
            return await problems.problem_response(404, "not-found", SDK_MISSING)(scope, receive, send)
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            async with self._while_admitted(Request(scope)):
                receive = await _check_body(scope, receive, self._settings["max_request_body_size"])
                await app(user.username, {**scope, "user": user}, receive, send_and_note)
        except RequestTooLargeError as error:
            await problems.response(error)(scope, receive, send)
        except AuthenticationError as error:
            if not has_started:
                await problems.response(error)(scope, receive, send)
            else:  # The client learns why with its next request.
                await send({"type": "http.response.body", "body": b""})

    def _while_admitted(self, request: Request) -> contextlib.AbstractAsyncContextManager[None]:
        """Cancel the block when the caller's token is revoked, and raise AuthenticationError."""
        if self._revocations is None:
            return contextlib.nullcontext()
        return self._revocations.cancel_when_refused(lambda: self._find_caller(request))

    async def _authenticate(self, request: Request) -> Any:
        """Return the user as the SDK knows the owner of a session: by id and token."""
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        caller = await self._find_caller(request)
        secret = bearer_token(request) or request.cookies.get(COOKIE, "")
        return AuthenticatedUser(AccessToken(token="", client_id=f"{caller} {hash_token(secret)}", scopes=[]))

    async def _find_caller(self, request: Request) -> str:
        """Return the id of a caller that may do anything at all."""
        for verb in VERBS:
            try:
                return (await self._authorizer.admit(request, None, verb)).caller
            except PermissionDeniedError:
                continue
        # A token for a single session, without `read`, is known although it gives no rights outside of that session.
        if isinstance(self._authorizer, TokenAuthorizer):
            return ""
        raise PermissionDeniedError("you have no rights on this server")

    # The SDK's sessions live in a task of their own, because the lifespan of a mounted app does not run.

    async def _start(self) -> SessionLimit:
        if self._stop.is_set():
            raise StoreError("the server is stopping")
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
            self._hosting = asyncio.create_task(self._host(self._app))
        return await asyncio.shield(self._app)

    async def _host(self, ready: asyncio.Future[SessionLimit]) -> None:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            manager = StreamableHTTPSessionManager(self._make_server(), **self._settings)
        except BaseException as error:
            self._app = None  # The next request tries again.
            ready.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        async with manager.run():
            ready.set_result(SessionLimit(manager.handle_request, MAX_USER_SESSIONS))
            await race(self._stop.wait(), self._wait_stopped())
            self._stop.set()

    async def close(self) -> None:
        """End every session. The end of the event loop does the same."""
        self._stop.set()
        if self._hosting is not None:
            await asyncio.gather(self._hosting, return_exceptions=True)


async def _check_body(scope: Scope, receive: Receive, max_bytes: int) -> Receive:
    """Read a body before the SDK parses it on the event loop. Return a function that returns it once more.

    Raise RequestTooLargeError if it has too many bytes or values.
    """
    if scope["method"] != "POST":
        return receive
    pieces, size, has_more = list[bytes](), 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        has_more = message.get("more_body", False)
        if size > max_bytes:
            raise RequestTooLargeError(f"the body is larger than {max_bytes} bytes", max_bytes)
    body = b"".join(pieces)
    if await run_off_loop(size >= LARGE_BYTES, codec.has_more_values, body, MAX_BODY_VALUES):
        raise RequestTooLargeError(f"the body has more than {MAX_BODY_VALUES} values", MAX_BODY_VALUES)
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
