"""Middleware against attacks from web pages: check where a request comes from, and restrict what browsers may do.

Three checks. An unknown *host name* means that a foreign name points at this machine (DNS rebinding), so that the
browser takes a foreign page for ours: always refused. A foreign *origin* means that another page sends the request from
the user's browser: refused, also for reading and for streams, unless it is allowed. A request *without an origin* comes
from a program, from our own page, or from a link or an image of another page. The first has no cookie and the second
has `Sec-Fetch-Site: same-origin`; the last is refused if the browser added a cookie and it does more than open a
document. SameSite=Strict alone is not enough: it keeps the cookie from other sites, but every port of localhost is the
same site.

Mounted into another app, host names are checked by that app.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callslip.errors import AuthenticationError, PermissionDeniedError
from callslip.http import problems
from callslip.http.accept import READ_METHODS, accepts_html
from callslip.http.access import COOKIE, has_only_cookie
from callslip.http.connection import find_abort
from callslip.http.origins import Hosts, Origin, Origins, parse_host, parse_origin
from callslip.http.request import root_path

SECURITY_HEADERS: dict[str, str] = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "form-action 'self'",
        )
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_SECURITY_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
EXPOSED = (
    "etag, last-modified, link, location, mcp-session-id, retry-after, x-callslip-turn, x-vercel-ai-ui-message-stream"
)
PREFLIGHT_AGE_S = "600"
COOKIE_AGE_S = 30 * 24 * 60 * 60
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
UNKNOWN_TOKEN = "#unknown-token"
"""The end of the page's address after a login with an unknown token."""
OTHER_SITES = ("cross-site", "same-site")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?: *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_MAX_HEADER_CHARS = 2000


class Login(Protocol):
    """Check tokens."""

    async def is_valid(self, token: str) -> bool: ...


class BrowserGuard:
    """Check the requests to an app. Without `hosts` any Host is accepted; without `login` no cookie is set."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Hosts | None = None,
        allow_origins: Iterable[str] = (),
        cookies: bool = True,
        login: Login | None = None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = Origins(allow_origins, cookies=cookies)
        self._cookies = cookies
        self._login = login if cookies else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        find_abort(scope, send)
        request = HTTPConnection(scope)
        try:
            origin = self._check(request)
        except PermissionDeniedError as error:
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": 1008})
            return await problems.response(error)(scope, receive, self._add_headers(send, ""))
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        response = await self._handle(request, origin)
        await (response or self._app)(scope, receive, self._add_headers(send, origin))

    # Checks

    def _check(self, request: HTTPConnection) -> str:
        """Return the origin to allow in the response ("" for none), or raise PermissionDeniedError."""
        own = self._own_origin(request)
        origins = request.headers.getlist("origin")
        # Our own form sends `null`, as it has no referrer. A sandboxed frame does too, but cross-site.
        is_own_form = origins == ["null"] and request.headers.get("sec-fetch-site") == "same-origin"
        if origins and not is_own_form:
            return self._allowed_origin(origins, own)
        if not origins and _is_from_other_page(request):
            raise PermissionDeniedError("cross-site request with a cookie. Send the token in the Authorization header.")
        return ""

    def _allowed_origin(self, origins: list[str], own: Origin | None) -> str:
        origin = parse_origin(origins[0]) if len(origins) == 1 else None
        if origin is not None and origin in self._origins:
            return origins[0]
        if origin is not None and origin == own:
            return ""
        if self._origins.any:
            return "*"
        raise PermissionDeniedError("origin: not allowed; allow it with --allow-origin")

    def _own_origin(self, request: HTTPConnection) -> Origin | None:
        hosts = request.headers.getlist("host")
        scheme = SCHEMES.get(request.scope.get("scheme", "http"), "http")
        own = parse_host(hosts[0], scheme) if len(hosts) == 1 else None
        if self._hosts is not None and (own is None or own.host not in self._hosts):
            raise PermissionDeniedError("host: not a name of this server; allow it with --allow-host")
        return own

    # Requests that are answered here

    async def _handle(self, request: HTTPConnection, origin: str) -> Response | None:
        method = request.scope["method"]
        if method == "OPTIONS" and origin and "access-control-request-method" in request.headers:
            return _preflight(request.headers)
        if self._login is None:
            return None
        if method == "POST" and request.scope["path"] in (f"{root_path(request.scope)}/logout", "/logout"):
            return Response(status_code=204, headers={"set-cookie": token_cookie(request.scope, "", 0)})
        return await _log_in(request, self._login) if method in READ_METHODS else None

    # Response headers

    def _add_headers(self, send: Send, origin: str) -> Send:
        """Return a `send` that adds the security headers to the response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if origin or self._origins:
                    headers = MutableHeaders(scope=message)
                    if origin:
                        self._allow(headers, origin)
                    if self._origins:
                        headers.add_vary_header("Origin")
                present = {name.lower() for name, _ in message["headers"]}
                missing = (header for header in _SECURITY_HEADERS if header[0] not in present)
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        return send_with_headers

    def _allow(self, headers: MutableHeaders, origin: str) -> None:
        headers["access-control-allow-origin"] = origin
        headers["access-control-expose-headers"] = EXPOSED
        headers["cross-origin-resource-policy"] = "cross-origin"
        if self._cookies and origin != "*":
            headers["access-control-allow-credentials"] = "true"


def _is_from_other_page(request: HTTPConnection) -> bool:
    """Return whether another page sends a request with the user's cookie, unless the user followed a link."""
    if request.headers.get("sec-fetch-site", "") not in OTHER_SITES or not has_only_cookie(request):
        return False
    is_link = (
        request.headers.get("sec-fetch-mode") == "navigate" and request.headers.get("sec-fetch-dest") == "document"
    )
    return not (is_link and request.scope.get("method") in READ_METHODS)


def _preflight(headers: Headers) -> Response:
    """Return what an allowed page may send: any header, as the request itself is checked."""
    allowed = {"access-control-allow-methods": METHODS, "access-control-max-age": PREFLIGHT_AGE_S}
    names = headers.get("access-control-request-headers", "")
    if len(names) <= _MAX_HEADER_CHARS and _HEADER_NAMES.fullmatch(names):
        allowed["access-control-allow-headers"] = names
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    allowed["vary"] = "Access-Control-Request-Headers"
    return Response(status_code=204, headers=allowed)


async def _log_in(request: HTTPConnection, login: Login) -> Response | None:
    """Replace a token in the address with a cookie, and redirect to the address without it.

    A browser with an unknown token is redirected too: the page explains what to do.
    """
    scope = request.scope
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    tokens = [value for name, value in query if name == "token"]
    if not tokens:
        return None
    target = _address(scope, [pair for pair in query if pair[0] != "token"])
    if len(tokens) == 1 and await login.is_valid(tokens[0]):
        cookie = token_cookie(scope, tokens[0], COOKIE_AGE_S)
        return Response(status_code=303, headers={"location": target, "set-cookie": cookie})
    if accepts_html(request):
        return Response(status_code=303, headers={"location": target + UNKNOWN_TOKEN})
    return problems.response(AuthenticationError("the token is invalid, expired or revoked"))


def token_cookie(scope: Scope, token: str, age: int) -> str:
    """Return the header that stores a token in the browser for so many seconds."""
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    path = quote(root_path(scope), safe="/") or "/"
    return f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path={path}; Max-Age={age}{secure}"


def _address(scope: Scope, query: list[tuple[str, str]]) -> str:
    """Return the address without the token. It starts with one slash: `//` would be another server."""
    path, root = scope["path"], root_path(scope)
    full_path = path if f"{path}/".startswith(f"{root}/") else root + path
    return "/" + quote(full_path.lstrip("/")) + (f"?{urlencode(query)}" if query else "")


# Logging


class _NoQueries(logging.Filter):
    """Remove the queries of addresses and scopes from log records: they may contain tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_without_query(arg) for arg in record.args)
        return True


def _without_query(arg: Any) -> Any:
    if isinstance(arg, str):
        return arg.partition("?")[0]
    if isinstance(arg, dict):
        scope = cast("dict[str, Any]", arg)
        return {name: value for name, value in scope.items() if name != "query_string"}
    return arg


def quiet_access_log(*names: str) -> None:
    """Keep queries out of the logs of uvicorn: the access log and its traces."""
    for name in names or ("uvicorn.access", "uvicorn.asgi", "uvicorn.error"):
        logger = logging.getLogger(name)
        if not any(isinstance(filter, _NoQueries) for filter in logger.filters):
            logger.addFilter(_NoQueries())
