"""The browser guard: host names, foreign origins, forged requests, security headers, login and log records."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from callslip.errors import InvalidInputError
from callslip.http.access import COOKIE
from callslip.http.browser_guard import SECURITY_HEADERS, BrowserGuard, quiet_access_log
from callslip.http.origins import Hosts
from tests.support.asgi_client import AsgiResponse, get, make_scope, send_scope

pytestmark = pytest.mark.anyio

TOKEN = "the-token-of-this-test"
OWN_ORIGIN = "http://localhost:7890"
EXTENSION = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
FOREIGN_ORIGINS = ("https://evil.example", "http://localhost:3000", "null")


class OneToken:
    """Accept a single token."""

    async def is_valid(self, token: str) -> bool:
        return token == TOKEN


async def echo_request(request: Request) -> Response:
    """Return method, path and query of the request."""
    return PlainTextResponse(f"{request.method} {request.url.path}?{request.url.query}")


async def send_own_headers(request: Request) -> Response:
    """Return a response that sets its own caching headers."""
    return PlainTextResponse("x", headers={"cache-control": "max-age=60", "vary": "accept", "etag": '"1"'})


async def raise_error(request: Request) -> Response:
    raise ZeroDivisionError("a secret detail")


async def accept_socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


METHODS = ["GET", "POST", "DELETE", "OPTIONS"]
ECHO_APP = Starlette(
    routes=[
        Route("/special", send_own_headers),
        Route("/broken", raise_error),
        WebSocketRoute("/socket", accept_socket),
        Route("/{path:path}", echo_request, methods=METHODS),
    ]
)


def make_guard(app: ASGIApp = ECHO_APP, **more: Any) -> BrowserGuard:
    return BrowserGuard(app, **({"hosts": Hosts(), "login": OneToken()} | more))


def is_refused(answer: AsgiResponse) -> bool:
    """Return whether the guard refused the request, with a problem document that does not repeat the input."""
    if answer.status != 403:
        return False
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["type"] == "urn:callslip:forbidden"
    assert b"evil" not in answer.body and "access-control-allow-origin" not in answer.headers
    return True


# Host names


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:7890", "127.0.0.1:1", "[::1]", "[::1]:7890", "LOCALHOST:7890", "[0:0:0:0:0:0:0:1]"]
)
async def test_a_local_host_header_is_accepted(host: str) -> None:
    """In any spelling and with any port, because a tunnel may change the port."""
    assert (await get(make_guard(), "/v1/sessions", host=host)).status == 200


HOSTILE_HOSTS = [
    None,
    "",
    ":7890",
    "evil.example",
    "localhost.evil.com",
    "evil.com:7890",
    "127.0.0.1.evil.com",
    "127.0.0.1:7890@evil",
    "evil@localhost",
    "localhost:7890.evil",
    "localhost.",
    "localhost..",
    "localhost:",
    "localhost:7890:1",
    "localhost:-1",
    "localhost:999999",
    "localhost/evil",
    "localhost evil",
    "localhost\n",
    "localhost\x00",
    "localhost#",
    "localhost?x",
    "localhost,evil.com",
    "notlocalhost",
    "127.0.0.2",
    "127.1",
    "0.0.0.0:7890",
    "192.168.1.7",
    "2130706433",
    "[::]",
    "[::2]:7890",
    "[::1",
    "::1",
    "[::1]evil",
    "[evil]",
    "\xb5ocalhost",
]


@pytest.mark.parametrize("host", HOSTILE_HOSTS)
async def test_a_foreign_host_header_is_refused(host: str | None) -> None:
    """Against DNS rebinding: also with a token, and for any path."""
    for path in ("/", "/v1/sessions", f"/?token={TOKEN}"):
        answer = await get(make_guard(), path, {"authorization": f"Bearer {TOKEN}"}, host=host)
        assert is_refused(answer) and "set-cookie" not in answer.headers


async def test_two_host_headers_are_refused() -> None:
    """Another parser might use the other header."""
    for pair in (["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]):
        assert is_refused(await get(make_guard(), "/", [("host", name) for name in pair]))


async def test_the_bound_address_and_allowed_hosts_are_accepted() -> None:
    """A server bound to all addresses accepts any IP address, but no host name that is not allowed."""
    guard = make_guard(hosts=Hosts("192.168.1.7", ["Box.Example", "::2"]))
    for host, status in (("192.168.1.7:80", 200), ("box.example", 200), ("[::2]:1", 200), ("192.168.1.8", 403)):
        assert (await get(guard, "/", host=host)).status == status
    for bound_host in ("0.0.0.0", "::"):
        open_guard = make_guard(hosts=Hosts(bound_host))
        for host, status in (("10.0.0.1:7890", 200), ("[fe80::1]", 200), ("localhost", 200), ("evil.example", 403)):
            assert (await get(open_guard, "/", host=host)).status == status


@pytest.mark.parametrize("name", ["", "http://x", "x:80", "a b", "x/", "*", "*.example.org", "[::1]:80", "x."])
def test_an_invalid_allowed_host_is_refused(name: str) -> None:
    """No scheme, no port, no pattern."""
    with pytest.raises(InvalidInputError):
        Hosts(allowed=[name])


async def test_a_mounted_app_accepts_any_host_header() -> None:
    """The host app checks the Host header; the origin must still match it."""
    mounted = Starlette(routes=[Mount("/slips", BrowserGuard(ECHO_APP))])
    assert (await get(mounted, "/slips/x", host="app.example")).status == 200
    assert (await get(mounted, "/slips/x", {"origin": "http://app.example"}, host="app.example")).status == 200
    assert is_refused(await get(mounted, "/slips/x", {"origin": "https://evil.example"}, host="app.example"))
    assert is_refused(await get(mounted, "/slips/x", {"origin": "http://app.example"}, host=None))


# Origins


@pytest.mark.parametrize(
    ("origin", "host", "scheme"),
    [
        (OWN_ORIGIN, "localhost:7890", "http"),
        ("HTTP://LOCALHOST:7890", "localhost:7890", "http"),
        ("http://[::1]:7890", "[::1]:7890", "http"),
        ("http://localhost", "localhost", "http"),
        ("http://localhost:80", "localhost", "http"),
        ("https://localhost", "localhost:443", "https"),
    ],
)
async def test_same_origin_requests_are_accepted(origin: str, host: str, scheme: str) -> None:
    """With or without the default port; the response needs no CORS header."""
    for method in ("GET", "POST", "DELETE"):
        answer = await get(make_guard(), "/v1", {"origin": origin}, method, host=host, scheme=scheme)
        assert answer.status == 200 and "access-control-allow-origin" not in answer.headers


HOSTILE_ORIGINS = [
    "null",
    "",
    "*",
    "https://evil.example",
    "https://localhost:7890",
    "http://localhost:7891",
    "http://localhost",
    "http://127.0.0.1:7890",
    "http://localhost:7890.evil",
    "http://localhost:7890@evil",
    "http://localhost.:7890",
    "http://localhost.evil.com:7890",
    "http://localhost:7890/",
    "http://localhost:7890/path",
    "http://localhost:7890 ",
    "http://localhost:7890\n",
    "http://localhost:7890, http://evil.example",
    "http://localhost:7890#",
    "http:/localhost:7890",
    "//localhost:7890",
    "localhost:7890",
    "file://",
    "data:text/html,x",
    "chrome-extension://ponmlkjihgfedcbaponmlkjihgfedcba",
    "http://localhost:7890\xa0",
]


@pytest.mark.parametrize("origin", HOSTILE_ORIGINS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_a_foreign_origin_is_refused(origin: str, method: str) -> None:
    """Also for reads, streams and preflights, with a token, with a cookie or without both."""
    for more in ({}, {"cookie": f"{COOKIE}={TOKEN}"}, {"authorization": f"Bearer {TOKEN}"}):
        headers = {"origin": origin, "accept": "text/event-stream", "access-control-request-method": "POST"} | more
        assert is_refused(await get(make_guard(allow_origins=[EXTENSION]), "/v1/stream", headers, method))


async def test_two_origin_headers_are_refused() -> None:
    """Also if one of them is our own origin."""
    for pair in ([OWN_ORIGIN, OWN_ORIGIN], [OWN_ORIGIN, "https://evil.example"]):
        assert is_refused(await get(make_guard(), "/v1", [("origin", origin) for origin in pair]))


@pytest.mark.parametrize(
    "allowed", ["https://app.example", EXTENSION, "http://localhost:3000", "https://app.example:444"]
)
async def test_an_allowed_origin_gets_cors_headers(allowed: str) -> None:
    """The response allows only this origin and has `Vary: Origin`."""
    app = make_guard(allow_origins=[allowed])
    for path in ("/v1", "/nowhere", "/special"):
        status, headers, _ = await get(app, path, {"origin": allowed})
        assert status == 200 and headers["access-control-allow-origin"] == allowed
        assert headers["access-control-allow-credentials"] == "true"
        assert headers["cross-origin-resource-policy"] == "cross-origin" and "origin" in headers["vary"].lower()
    assert is_refused(await get(app, "/v1", {"origin": "https://evil.example"}))
    plain_headers = (await get(app, "/v1")).headers
    assert "origin" in plain_headers["vary"].lower() and "access-control-allow-origin" not in plain_headers


async def test_a_preflight_of_an_allowed_origin_is_answered() -> None:
    """The response allows the existing methods and the requested headers, if their names are valid."""
    preflight = {"origin": EXTENSION, "access-control-request-method": "POST"}
    app = make_guard(allow_origins=[EXTENSION])
    for requested, allowed in (
        ("content-type, x-thing", "content-type, x-thing"),
        ("authorization,last-event-id", "authorization,last-event-id"),
        ("", None),
        ("x\r\nset-cookie: a=b", None),
        ("x" * 3000, None),
    ):
        status, headers, body = await get(
            app, "/v1", preflight | {"access-control-request-headers": requested}, "OPTIONS"
        )
        assert (status, body, headers.get("access-control-allow-headers")) == (204, b"", allowed)
        assert "POST" in headers["access-control-allow-methods"] and int(headers["access-control-max-age"]) > 0
        assert headers["access-control-allow-origin"] == EXTENSION
        assert {"origin", "access-control-request-headers"} <= {
            name.strip().lower() for name in headers["vary"].split(",")
        }
    private = await get(app, "/v1", preflight | {"access-control-request-private-network": "true"}, "OPTIONS")
    assert private.headers["access-control-allow-private-network"] == "true"
    assert (await get(app, "/v1", method="OPTIONS")).status == 200  # Without an origin it is a request to the app.


async def test_a_wildcard_origin_is_allowed_only_without_cookies() -> None:
    """`*` with cookies is refused at construction; without cookies no credentials header is sent."""
    with pytest.raises(InvalidInputError, match="cookie"):
        make_guard(allow_origins=["*"])
    app = make_guard(allow_origins=["*", EXTENSION], cookies=False)
    for origin in ("https://any.example", "null", EXTENSION):
        status, headers, _ = await get(app, "/v1", {"origin": origin})
        assert status == 200 and headers["access-control-allow-origin"] in ("*", EXTENSION)
        assert "access-control-allow-credentials" not in headers
    assert "set-cookie" not in (await get(app, f"/?token={TOKEN}")).headers


@pytest.mark.parametrize(
    "name", ["", "null", "example.org", "https://example.org/", "https://*.example.org", "https://"]
)
def test_an_invalid_allowed_origin_is_refused(name: str) -> None:
    """No path, no pattern, and not `null`."""
    with pytest.raises(InvalidInputError):
        make_guard(allow_origins=[name])


# Forged requests


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("cookie", [f"{COOKIE}={TOKEN}", "session-of-the-host=1"])
async def test_a_cross_site_request_cannot_use_a_cookie(site: str, cookie: str) -> None:
    """Images, scripts and frames of another site are refused with our cookie; a followed link is accepted."""
    cross_site = {"sec-fetch-site": site, "cookie": cookie}
    for mode, dest in (
        ("no-cors", "image"),
        ("no-cors", "script"),
        ("navigate", "iframe"),
        ("cors", "empty"),
        ("", ""),
    ):
        for method in ("GET", "POST"):
            headers = cross_site | {"sec-fetch-mode": mode, "sec-fetch-dest": dest}
            assert is_refused(await get(make_guard(), "/v1/sessions", headers, method))
    link = cross_site | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await get(make_guard(), "/", link)).status == 200
    assert is_refused(await get(make_guard(), "/", link, "POST"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": f"{COOKIE}={TOKEN}", "sec-fetch-site": "same-origin"},
        {"cookie": f"{COOKIE}={TOKEN}", "sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site", "authorization": f"Bearer {TOKEN}", "cookie": "a=b"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
    ],
)
async def test_programs_and_same_origin_pages_need_no_origin_header(headers: dict[str, str]) -> None:
    """Requests without a cookie, with a token, or of our page (whose forms send `null`) reach the authorizer."""
    for method in ("GET", "POST"):
        assert (await get(make_guard(), "/v1", headers, method)).status == 200


async def test_a_null_origin_is_refused_unless_it_is_same_origin() -> None:
    """A sandboxed frame also sends `null`, but not `Sec-Fetch-Site: same-origin`."""
    for site in ("cross-site", "same-site", "none", ""):
        assert is_refused(await get(make_guard(), "/v1", {"origin": "null", "sec-fetch-site": site}, "POST"))


@pytest.mark.parametrize(("headers", "is_opened"), [({"origin": OWN_ORIGIN}, True), ({}, True)])
async def test_a_same_origin_websocket_is_opened(headers: dict[str, str], is_opened: bool) -> None:
    """WebSockets have no preflight, so the guard checks their handshake."""
    assert await opens_socket(headers) is is_opened


@pytest.mark.parametrize("headers", [{"origin": origin} for origin in FOREIGN_ORIGINS] + [{"host": "evil.example"}])
async def test_a_cross_origin_websocket_is_closed(headers: dict[str, str]) -> None:
    """The guard closes it before the handshake is accepted."""
    assert not await opens_socket(headers)


async def opens_socket(headers: dict[str, str]) -> bool:
    scope = make_scope("/socket", headers) | {"type": "websocket", "scheme": "ws", "subprotocols": []}
    del scope["method"]
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await make_guard()(scope, receive, send)
    return sent[0] == "websocket.accept"


# Security headers


@pytest.mark.parametrize("path", ["/v1", "/special", f"/?token={TOKEN}", "/?token=wrong", "/logout"])
async def test_every_response_has_the_security_headers(path: str) -> None:
    """Also on refusals and redirects; a header that the app sets itself is kept."""
    for headers in ({}, {"origin": "https://evil.example"}):
        for method in ("GET", "POST"):
            answer = await get(make_guard(), path, headers, method)
            for name, value in SECURITY_HEADERS.items():
                is_own = name == "cache-control" and path == "/special" and not headers and method == "GET"
                assert answer.headers.getlist(name) == (["max-age=60"] if is_own else [value])


async def test_an_app_error_gives_500_without_its_text() -> None:
    """The response has the security headers and does not contain the error."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ZeroDivisionError):  # Starlette responds, then raises the error again.
        await make_guard()(make_scope("/broken"), receive, send)
    assert sent[0]["status"] == 500 and b"secret" not in sent[1]["body"]
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]


def test_the_content_security_policy_allows_no_foreign_code() -> None:
    """The policy allows no inline script, no eval, no other origin, no frame and no other base."""
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy


async def test_lifespan_messages_reach_the_app() -> None:
    """The guard checks only HTTP and WebSocket scopes."""
    scope_types: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope_types.append(scope["type"])

    await make_guard(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert scope_types == ["lifespan"]


# Logging in


@pytest.mark.parametrize(
    ("path", "location"),
    [
        (f"/?token={TOKEN}", "/"),
        (f"/s/a%20b?token={TOKEN}", "/s/a%20b"),
        (f"/?a=1&token={TOKEN}&b=%26", "/?a=1&b=%26"),
        (f"//evil.example/?token={TOKEN}", "/evil.example/"),
        (f"///evil.example?token={TOKEN}", "/evil.example"),
        (f"/%5Cevil.example?token={TOKEN}", "/%5Cevil.example"),
        (f"/%2F%2Fevil.example?token={TOKEN}", "/evil.example"),
        (f"/x%0D%0Aset-cookie:%20a=b?token={TOKEN}", "/x%0D%0Aset-cookie%3A%20a%3Db"),
        (f"/%E6%97%A5?token={TOKEN}", "/%E6%97%A5"),
    ],
)
async def test_a_token_in_the_url_becomes_a_cookie(path: str, location: str) -> None:
    """The browser is redirected to the same path on this server without the token."""
    for method in ("GET", "HEAD"):
        status, headers, body = await get(make_guard(), path, method=method)
        assert (status, headers["location"], body) == (303, location, b"")
        (cookie,) = headers.getlist("set-cookie")
        attributes = [part.strip() for part in cookie.split(";")]
        assert attributes[0] == f"{COOKIE}={TOKEN}" and {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
        assert "Secure" not in attributes and not any(part.startswith("Domain") for part in attributes)


async def test_the_cookie_is_limited_to_the_mount_path_and_https() -> None:
    """It is not sent to other paths of the host, nor over http if it was set over https."""
    mounted = Starlette(routes=[Mount("/a/slips", make_guard(hosts=None))])
    answer = await get(mounted, f"/a/slips/s?token={TOKEN}", scheme="https")
    assert answer.headers["location"] == "/a/slips/s"
    assert "; Path=/a/slips;" in answer.headers["set-cookie"] and answer.headers["set-cookie"].endswith("; Secure")
    logout = await get(mounted, "/a/slips/logout", method="POST", scheme="https")
    assert logout.status == 204 and "; Path=/a/slips;" in logout.headers["set-cookie"]


@pytest.mark.parametrize(
    ("path", "location"),
    [("/app/x", "/app/x"), ("/app", "/app"), ("/x", "/app/x"), ("/apple", "/app/apple"), ("/", "/app/")],
)
async def test_a_root_path_is_accepted_with_or_without_it_in_the_path(path: str, location: str) -> None:
    """Servers differ in this; a path that only starts with the same characters is another path."""
    answer = await get(make_guard(), f"{path}?token={TOKEN}", root_path="/app")
    assert answer.headers["location"] == location and "; Path=/app;" in answer.headers["set-cookie"]


async def test_a_request_without_a_scheme_is_http() -> None:
    """ASGI allows a server to omit the scheme."""
    scope = make_scope(f"/?token={TOKEN}", {"origin": OWN_ORIGIN})
    del scope["scheme"]
    assert (await send_scope(make_guard(), scope)).status == 303


@pytest.mark.parametrize("query", ["token=", "token=wrong", f"token={TOKEN}&token={TOKEN}", "token=wr\xf6ng", "token"])
async def test_a_wrong_token_in_the_url_gives_401_without_repeating_it(query: str) -> None:
    """401, no cookie, no redirect."""
    status, headers, body = await get(make_guard(), f"/?{query}")
    assert status == 401 and "set-cookie" not in headers and "location" not in headers
    assert b"wr" not in body and TOKEN.encode() not in body and headers["www-authenticate"].startswith("Bearer")


async def test_only_get_requests_log_in_by_a_url_token() -> None:
    """The token in the URL of another method is left to the app."""
    answer = await get(make_guard(), f"/v1?token={TOKEN}", method="POST")
    assert answer.status == 200 and "set-cookie" not in answer.headers
    assert (await get(make_guard(login=None), f"/?token={TOKEN}")).body == f"GET /?token={TOKEN}".encode()


async def test_logout_deletes_the_cookie() -> None:
    """Only a POST of our own page logs out; a link or another page cannot."""
    status, headers, _ = await get(make_guard(), "/logout", {"origin": OWN_ORIGIN}, "POST")
    assert status == 204 and headers["set-cookie"].startswith(f"{COOKIE}=; ") and "Max-Age=0" in headers["set-cookie"]
    assert "set-cookie" not in (await get(make_guard(), "/logout")).headers
    assert is_refused(await get(make_guard(), "/logout", {"origin": "https://evil.example"}, "POST"))


# Log records


async def request_over_socket(app: ASGIApp, path: str, **headers: str) -> bytes:
    """Send a request to a real server, stop the server, and return the response."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="trace", log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = await reader.read()
    writer.close()
    server.should_exit = True
    await task
    return answer


async def test_tokens_are_not_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The access log contains path and status, but no query string, also at trace level."""
    for name in ("uvicorn", "uvicorn.access", "uvicorn.asgi", "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        caplog.set_level(1, name)
    quiet_access_log()
    quiet_access_log()
    assert len(logging.getLogger("uvicorn.access").filters) == 1
    answer = await request_over_socket(make_guard(), f"/page?token={TOKEN}", Cookie=f"{COOKIE}={TOKEN}2")
    wrong_answer = await request_over_socket(make_guard(), f"/page?token={TOKEN}3", Authorization=f"Bearer {TOKEN}4")
    assert b" 303 " in answer and b" 401 " in wrong_answer
    records = [record for record in caplog.records if record.name == "uvicorn.access"]
    lines = [record.getMessage() for record in dict.fromkeys(records)]  # Parent loggers repeat each record.
    assert len(lines) == 2 and "GET /page HTTP" in lines[0] and lines[0].endswith("303") and lines[1].endswith("401")
    trace_lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.asgi"]
    assert any("'path': '/page'" in line for line in trace_lines)
    assert TOKEN not in caplog.text


def test_other_log_records_are_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    """The filter changes only records that contain a URL."""
    quiet_access_log("tests.access")
    logger = logging.getLogger("tests.access")
    with caplog.at_level(logging.INFO, "tests.access"):
        logger.info("what? %d %s", 5, {"a": 1})
        logger.info("%(path)s", {"path": "/x"})
        logger.info("plain?")
    assert [record.getMessage() for record in caplog.records] == ["what? 5 {'a': 1}", "/x", "plain?"]
