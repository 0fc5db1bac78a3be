"""What every request meets before the app, and every answer after it: whose page may ask, and what a browser may do.

Three things are kept apart. A *host name* that is not ours means that a stranger's name was made to point at this
machine (DNS rebinding): the browser takes the stranger's page for ours, so such a request is refused whatever else it
says. A foreign *origin* means that another page asks from a visitor's browser: refused, also for reading and for
streams, unless it was named. A request *without an origin* comes from a program, from our own page, or from a link or
an image of another page. The first has no cookie and the second says `Sec-Fetch-Site: same-origin`; the last is
refused if the browser added a cookie to it and it does more than open a document. SameSite=Strict alone is not
enough: it keeps the cookie from other sites, but every port of localhost is the same site.

Mounted into another app, host names are that app's to check.
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

from callslip.http import problems
from callslip.http.accept import READING, takes_page
from callslip.http.access import COOKIE, Forbidden, Unauthenticated, cookie_token
from callslip.http.origins import Hosts, Origin, Origins, read_host, read_origin

SAFE: dict[str, str] = {
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
_SAFE = [(name.encode(), value.encode()) for name, value in SAFE.items()]
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
EXPOSED = (
    "etag, last-modified, link, location, mcp-session-id, retry-after, x-callslip-turn, x-vercel-ai-ui-message-stream"
)
PREFLIGHT_AGE = "600"
COOKIE_AGE = 30 * 24 * 60 * 60
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
WRONG = "#unknown-token"
"""What the page's address ends in when a person gave a token that is none."""
ELSEWHERE = ("cross-site", "same-site")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?: *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LONGEST = 2000


class Login(Protocol):
    """Knows tokens."""

    async def knows(self, token: str) -> bool: ...


class BrowserGuard:
    """An app behind its doors. Without `hosts` any Host will do; without `login` there is no cookie to be had here."""

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
        asked = HTTPConnection(scope)
        try:
            named = self._check(asked)
        except Forbidden as error:
            return await _refuse(problems.response(error), scope, receive, self._dressed(send, ""))
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        own = await self._own_answer(asked, named)
        await (own or self._app)(scope, receive, self._dressed(send, named))

    # Who asks

    def _check(self, asked: HTTPConnection) -> str:
        """The origin to be named in the answer ("" for none), or Forbidden."""
        own = self._own(asked)
        said = asked.headers.getlist("origin")
        if said and not _by_our_form(asked, said):
            return self._named(said, own)
        if not said and _by_another_page(asked):
            raise Forbidden("another page may not ask with your cookie")
        return ""

    def _named(self, said: list[str], own: Origin | None) -> str:
        origin = read_origin(said[0]) if len(said) == 1 else None
        if origin is not None and origin in self._origins:
            return said[0]
        if origin is not None and origin == own:
            return ""
        if self._origins.any:
            return "*"
        raise Forbidden("pages of this origin may not ask here; it is not among the allowed origins")

    def _own(self, asked: HTTPConnection) -> Origin | None:
        said = asked.headers.getlist("host")
        scheme = SCHEMES.get(asked.scope.get("scheme", "http"), "http")
        own = read_host(said[0], scheme) if len(said) == 1 else None
        if self._hosts is not None and (own is None or own.host not in self._hosts):
            raise Forbidden("this server does not go by that name; it is not among the allowed hosts")
        return own

    # What is answered here

    async def _own_answer(self, asked: HTTPConnection, named: str) -> Response | None:
        method = asked.scope["method"]
        if method == "OPTIONS" and named and "access-control-request-method" in asked.headers:
            return _preflight(asked.headers)
        if self._login is None:
            return None
        if method == "POST" and asked.scope["path"] in (f"{_root(asked.scope)}/logout", "/logout"):
            return Response(status_code=204, headers={"set-cookie": _cookie(asked.scope, "", 0)})
        return await _logged_in(asked, self._login) if method in READING else None

    # How it is answered

    def _dressed(self, send: Send, named: str) -> Send:
        """The same `send`, with what every answer says to a browser."""

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                if named or self._origins:
                    headers = MutableHeaders(scope=message)
                    if named:
                        self._name(headers, named)
                    if self._origins:
                        headers.add_vary_header("Origin")
                said = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in _SAFE if one[0] not in said)]
            await send(message)

        return dressed

    def _name(self, headers: MutableHeaders, named: str) -> None:
        headers["access-control-allow-origin"] = named
        headers["access-control-expose-headers"] = EXPOSED
        headers["cross-origin-resource-policy"] = "cross-origin"
        if self._cookies and named != "*":
            headers["access-control-allow-credentials"] = "true"


def _by_our_form(asked: HTTPConnection, said: list[str]) -> bool:
    """A page without referrers has forms that say no origin; a frame in a sandbox says none, but is another site."""
    return said == ["null"] and asked.headers.get("sec-fetch-site") == "same-origin"


def _by_another_page(asked: HTTPConnection) -> bool:
    """Whether a browser put a cookie on a request of another page that is more than a link that was followed."""
    if asked.headers.get("sec-fetch-site", "") not in ELSEWHERE or not cookie_token(asked):
        return False
    followed = asked.headers.get("sec-fetch-mode") == "navigate" and asked.headers.get("sec-fetch-dest") == "document"
    return not (followed and asked.scope.get("method") in READING)


async def _refuse(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await answer(scope, receive, send)


def _preflight(headers: Headers) -> Response:
    """What a named page may send: any header, for whatever it says is checked all the same."""
    given = {"access-control-allow-methods": METHODS, "access-control-max-age": PREFLIGHT_AGE}
    wanted = headers.get("access-control-request-headers", "")
    if len(wanted) <= _LONGEST and _HEADER_NAMES.fullmatch(wanted):
        given["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        given["access-control-allow-private-network"] = "true"
    given["vary"] = "Access-Control-Request-Headers"
    return Response(status_code=204, headers=given)


async def _logged_in(asked: HTTPConnection, login: Login) -> Response | None:
    """A token in the address is exchanged for a cookie, and the address goes on without it.

    With one that is not known a person is led on all the same: the page says what to do.
    """
    scope = asked.scope
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    tokens = [value for name, value in query if name == "token"]
    if not tokens:
        return None
    where = _place(scope, [pair for pair in query if pair[0] != "token"])
    if len(tokens) == 1 and await login.knows(tokens[0]):
        cookie = _cookie(scope, tokens[0], COOKIE_AGE)
        return Response(status_code=303, headers={"location": where, "set-cookie": cookie})
    if takes_page(asked):
        return Response(status_code=303, headers={"location": where + WRONG})
    return problems.response(Unauthenticated("this token is not known, or not any more"))


def _root(scope: Scope) -> str:
    return scope.get("root_path", "").rstrip("/")


def _cookie(scope: Scope, token: str, age: int) -> str:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    path = quote(_root(scope), safe="/") or "/"
    return f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path={path}; Max-Age={age}{secure}"


def _place(scope: Scope, query: list[tuple[str, str]]) -> str:
    """The same place without the token, on this server whatever it looks like: `//` would lead to another."""
    path, root = scope["path"], _root(scope)
    whole = path if f"{path}/".startswith(f"{root}/") else root + path
    return "/" + quote(whole.lstrip("/")) + (f"?{urlencode(query)}" if query else "")


# What is logged


class _NoQueries(logging.Filter):
    """Cuts each address in a line at its question mark, and the query out of a scope: tokens travel there."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_without_query(arg) for arg in record.args)
        return True


def _without_query(arg: Any) -> Any:
    if isinstance(arg, str):
        return arg.partition("?")[0]
    if isinstance(arg, dict):
        known = cast("dict[str, Any]", arg)
        return {name: value for name, value in known.items() if name != "query_string"}
    return arg


def quiet_access_log(*names: str) -> None:
    """Let the server's logs tell paths and never queries: the access log, and what uvicorn tells when it traces."""
    for name in names or ("uvicorn.access", "uvicorn.asgi", "uvicorn.error"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, _NoQueries) for known in logger.filters):
            logger.addFilter(_NoQueries())
