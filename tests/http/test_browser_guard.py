"""What a browser may do to the server: strangers' names, foreign pages, forged requests, and what every answer says."""

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
from tests.support.asgi_client import Answer, call, get, scope_of

pytestmark = pytest.mark.anyio

TOKEN = "the-token-of-this-test"
OWN = "http://localhost:7890"
EXTENSION = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
FOREIGN = ("https://evil.example", "http://localhost:3000", "null")


class Knows:
    """Knows one token."""

    async def is_valid(self, token: str) -> bool:
        return token == TOKEN


async def reached(request: Request) -> Response:
    """Tells that the app was reached, and as what."""
    return PlainTextResponse(f"{request.method} {request.url.path}?{request.url.query}")


async def special(request: Request) -> Response:
    """An answer that has its own opinion."""
    return PlainTextResponse("x", headers={"cache-control": "max-age=60", "vary": "accept", "etag": '"1"'})


async def broken(request: Request) -> Response:
    raise ZeroDivisionError("a secret detail")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


METHODS = ["GET", "POST", "DELETE", "OPTIONS"]
PLAIN = Starlette(
    routes=[
        Route("/special", special),
        Route("/broken", broken),
        WebSocketRoute("/socket", socket),
        Route("/{path:path}", reached, methods=METHODS),
    ]
)


def doors(app: ASGIApp = PLAIN, **more: Any) -> BrowserGuard:
    return BrowserGuard(app, **({"hosts": Hosts(), "login": Knows()} | more))


def refused(answer: Answer) -> bool:
    """Whether the doors refused it, in a problem document that repeats nothing."""
    if answer.status != 403:
        return False
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["type"] == "urn:callslip:forbidden"
    assert b"evil" not in answer.body and "access-control-allow-origin" not in answer.headers
    return True


# Names


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:7890", "127.0.0.1:1", "[::1]", "[::1]:7890", "LOCALHOST:7890", "[0:0:0:0:0:0:0:1]"]
)
async def test_a_local_host_header_is_accepted(host: str) -> None:
    """In any spelling and with any port, because a tunnel may change the port."""
    assert (await get(doors(), "/v1/sessions", host=host)).status == 200


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
        answer = await get(doors(), path, {"authorization": f"Bearer {TOKEN}"}, host=host)
        assert refused(answer) and "set-cookie" not in answer.headers


async def test_two_host_headers_are_refused() -> None:
    """Another parser might use the other header."""
    for pair in (["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]):
        assert refused(await get(doors(), "/", [("host", name) for name in pair]))


async def test_the_bound_address_and_allowed_hosts_are_accepted() -> None:
    """A server bound to all addresses accepts any IP address, but no host name that is not allowed."""
    named = doors(hosts=Hosts("192.168.1.7", ["Box.Example", "::2"]))
    for host, status in (("192.168.1.7:80", 200), ("box.example", 200), ("[::2]:1", 200), ("192.168.1.8", 403)):
        assert (await get(named, "/", host=host)).status == status
    for bound in ("0.0.0.0", "::"):
        everywhere = doors(hosts=Hosts(bound))
        for host, status in (("10.0.0.1:7890", 200), ("[fe80::1]", 200), ("localhost", 200), ("evil.example", 403)):
            assert (await get(everywhere, "/", host=host)).status == status


@pytest.mark.parametrize("name", ["", "http://x", "x:80", "a b", "x/", "*", "*.example.org", "[::1]:80", "x."])
def test_an_invalid_allowed_host_is_refused(name: str) -> None:
    """No scheme, no port, no pattern."""
    with pytest.raises(InvalidInputError):
        Hosts(allowed=[name])


async def test_a_mounted_app_accepts_any_host_header() -> None:
    """The host app checks the Host header; the origin must still match it."""
    mounted = Starlette(routes=[Mount("/slips", BrowserGuard(PLAIN))])
    assert (await get(mounted, "/slips/x", host="app.example")).status == 200
    assert (await get(mounted, "/slips/x", {"origin": "http://app.example"}, host="app.example")).status == 200
    assert refused(await get(mounted, "/slips/x", {"origin": "https://evil.example"}, host="app.example"))
    assert refused(await get(mounted, "/slips/x", {"origin": "http://app.example"}, host=None))


# Origins


@pytest.mark.parametrize(
    ("origin", "host", "scheme"),
    [
        (OWN, "localhost:7890", "http"),
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
        answer = await get(doors(), "/v1", {"origin": origin}, method, host=host, scheme=scheme)
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
        assert refused(await get(doors(allow_origins=[EXTENSION]), "/v1/stream", headers, method))


async def test_two_origin_headers_are_refused() -> None:
    """Also if one of them is our own origin."""
    for pair in ([OWN, OWN], [OWN, "https://evil.example"]):
        assert refused(await get(doors(), "/v1", [("origin", origin) for origin in pair]))


@pytest.mark.parametrize(
    "named", ["https://app.example", EXTENSION, "http://localhost:3000", "https://app.example:444"]
)
async def test_an_allowed_origin_gets_cors_headers(named: str) -> None:
    """The response allows only this origin and has `Vary: Origin`."""
    app = doors(allow_origins=[named])
    for path in ("/v1", "/nowhere", "/special"):
        status, headers, _ = await get(app, path, {"origin": named})
        assert status == 200 and headers["access-control-allow-origin"] == named
        assert headers["access-control-allow-credentials"] == "true"
        assert headers["cross-origin-resource-policy"] == "cross-origin" and "origin" in headers["vary"].lower()
    assert refused(await get(app, "/v1", {"origin": "https://evil.example"}))
    without = (await get(app, "/v1")).headers
    assert "origin" in without["vary"].lower() and "access-control-allow-origin" not in without


async def test_a_preflight_of_an_allowed_origin_is_answered() -> None:
    """The response allows the existing methods and the requested headers, if their names are valid."""
    asks = {"origin": EXTENSION, "access-control-request-method": "POST"}
    app = doors(allow_origins=[EXTENSION])
    for wanted, allowed in (
        ("content-type, x-thing", "content-type, x-thing"),
        ("authorization,last-event-id", "authorization,last-event-id"),
        ("", None),
        ("x\r\nset-cookie: a=b", None),
        ("x" * 3000, None),
    ):
        status, headers, body = await get(app, "/v1", asks | {"access-control-request-headers": wanted}, "OPTIONS")
        assert (status, body, headers.get("access-control-allow-headers")) == (204, b"", allowed)
        assert "POST" in headers["access-control-allow-methods"] and int(headers["access-control-max-age"]) > 0
        assert headers["access-control-allow-origin"] == EXTENSION
        assert {"origin", "access-control-request-headers"} <= {
            name.strip().lower() for name in headers["vary"].split(",")
        }
    private = await get(app, "/v1", asks | {"access-control-request-private-network": "true"}, "OPTIONS")
    assert private.headers["access-control-allow-private-network"] == "true"
    assert (await get(app, "/v1", method="OPTIONS")).status == 200  # No page asks: it is the app's.


async def test_a_wildcard_origin_is_allowed_only_without_cookies() -> None:
    """`*` with cookies is refused at construction; without cookies no credentials header is sent."""
    with pytest.raises(InvalidInputError, match="cookie"):
        doors(allow_origins=["*"])
    app = doors(allow_origins=["*", EXTENSION], cookies=False)
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
        doors(allow_origins=[name])


# Requests that no page signed


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("cookie", [f"{COOKIE}={TOKEN}", "session-of-the-host=1"])
async def test_a_cross_site_request_cannot_use_a_cookie(site: str, cookie: str) -> None:
    """Images, scripts and frames of another site are refused with our cookie; a followed link is accepted."""
    forged = {"sec-fetch-site": site, "cookie": cookie}
    for mode, dest in (
        ("no-cors", "image"),
        ("no-cors", "script"),
        ("navigate", "iframe"),
        ("cors", "empty"),
        ("", ""),
    ):
        for method in ("GET", "POST"):
            headers = forged | {"sec-fetch-mode": mode, "sec-fetch-dest": dest}
            assert refused(await get(doors(), "/v1/sessions", headers, method))
    followed = forged | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await get(doors(), "/", followed)).status == 200
    assert refused(await get(doors(), "/", followed, "POST"))


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
        assert (await get(doors(), "/v1", headers, method)).status == 200


async def test_a_null_origin_is_refused_unless_it_is_same_origin() -> None:
    """A sandboxed frame also sends `null`, but not `Sec-Fetch-Site: same-origin`."""
    for site in ("cross-site", "same-site", "none", ""):
        assert refused(await get(doors(), "/v1", {"origin": "null", "sec-fetch-site": site}, "POST"))


@pytest.mark.parametrize(("headers", "reaches"), [({"origin": OWN}, True), ({}, True)])
async def test_a_same_origin_websocket_is_opened(headers: dict[str, str], reaches: bool) -> None:
    """WebSockets have no preflight, so the guard checks their handshake."""
    assert await opened_socket(headers) is reaches


@pytest.mark.parametrize("headers", [{"origin": origin} for origin in FOREIGN] + [{"host": "evil.example"}])
async def test_a_cross_origin_websocket_is_closed(headers: dict[str, str]) -> None:
    """The guard closes it before the handshake is accepted."""
    assert not await opened_socket(headers)


async def opened_socket(headers: dict[str, str]) -> bool:
    scope = scope_of("/socket", headers) | {"type": "websocket", "scheme": "ws", "subprotocols": []}
    del scope["method"]
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await doors()(scope, receive, send)
    return sent[0] == "websocket.accept"


# What every answer says


@pytest.mark.parametrize("path", ["/v1", "/special", f"/?token={TOKEN}", "/?token=wrong", "/logout"])
async def test_every_response_has_the_security_headers(path: str) -> None:
    """Also on refusals and redirects; a header that the app sets itself is kept."""
    for headers in ({}, {"origin": "https://evil.example"}):
        for method in ("GET", "POST"):
            answer = await get(doors(), path, headers, method)
            for name, value in SECURITY_HEADERS.items():
                own = name == "cache-control" and path == "/special" and not headers and method == "GET"
                assert answer.headers.getlist(name) == (["max-age=60"] if own else [value])


async def test_an_app_error_gives_500_without_its_text() -> None:
    """The response has the security headers and does not contain the error."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ZeroDivisionError):  # Starlette answers, then lets the server log it.
        await doors()(scope_of("/broken"), receive, send)
    assert sent[0]["status"] == 500 and b"secret" not in sent[1]["body"]
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]


def test_the_content_security_policy_allows_no_foreign_code() -> None:
    """The policy allows no inline script, no eval, no other origin, no frame and no other base."""
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy


async def test_lifespan_messages_reach_the_app() -> None:
    """The guard checks only HTTP and WebSocket scopes."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await doors(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


# Logging in


@pytest.mark.parametrize(
    ("path", "place"),
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
async def test_a_token_in_the_url_becomes_a_cookie(path: str, place: str) -> None:
    """The browser is redirected to the same path on this server without the token."""
    for method in ("GET", "HEAD"):
        status, headers, body = await get(doors(), path, method=method)
        assert (status, headers["location"], body) == (303, place, b"")
        (cookie,) = headers.getlist("set-cookie")
        message = [part.strip() for part in cookie.split(";")]
        assert message[0] == f"{COOKIE}={TOKEN}" and {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(message)
        assert "Secure" not in message and not any(part.startswith("Domain") for part in message)


async def test_the_cookie_is_limited_to_the_mount_path_and_https() -> None:
    """It is not sent to other paths of the host, nor over http if it was set over https."""
    mounted = Starlette(routes=[Mount("/a/slips", doors(hosts=None))])
    answer = await get(mounted, f"/a/slips/s?token={TOKEN}", scheme="https")
    assert answer.headers["location"] == "/a/slips/s"
    assert "; Path=/a/slips;" in answer.headers["set-cookie"] and answer.headers["set-cookie"].endswith("; Secure")
    gone = await get(mounted, "/a/slips/logout", method="POST", scheme="https")
    assert gone.status == 204 and "; Path=/a/slips;" in gone.headers["set-cookie"]


@pytest.mark.parametrize(
    ("path", "place"),
    [("/app/x", "/app/x"), ("/app", "/app"), ("/x", "/app/x"), ("/apple", "/app/apple"), ("/", "/app/")],
)
async def test_a_root_path_is_accepted_with_or_without_it_in_the_path(path: str, place: str) -> None:
    """Servers differ in this; a path that only starts with the same characters is another path."""
    answer = await get(doors(), f"{path}?token={TOKEN}", root_path="/app")
    assert answer.headers["location"] == place and "; Path=/app;" in answer.headers["set-cookie"]


async def test_a_request_without_a_scheme_is_http() -> None:
    """ASGI allows a server to omit the scheme."""
    scope = scope_of(f"/?token={TOKEN}", {"origin": OWN})
    del scope["scheme"]
    assert (await call(doors(), scope)).status == 303


@pytest.mark.parametrize("query", ["token=", "token=wrong", f"token={TOKEN}&token={TOKEN}", "token=wr\xf6ng", "token"])
async def test_a_wrong_token_in_the_url_gives_401_without_repeating_it(query: str) -> None:
    """401, no cookie, no redirect."""
    status, headers, body = await get(doors(), f"/?{query}")
    assert status == 401 and "set-cookie" not in headers and "location" not in headers
    assert b"wr" not in body and TOKEN.encode() not in body and headers["www-authenticate"].startswith("Bearer")


async def test_only_get_requests_log_in_by_a_url_token() -> None:
    """The token in the URL of another method is left to the app."""
    answer = await get(doors(), f"/v1?token={TOKEN}", method="POST")
    assert answer.status == 200 and "set-cookie" not in answer.headers
    assert (await get(doors(login=None), f"/?token={TOKEN}")).body == f"GET /?token={TOKEN}".encode()


async def test_logout_deletes_the_cookie() -> None:
    """Only a POST of our own page logs out; a link or another page cannot."""
    status, headers, _ = await get(doors(), "/logout", {"origin": OWN}, "POST")
    assert status == 204 and headers["set-cookie"].startswith(f"{COOKIE}=; ") and "Max-Age=0" in headers["set-cookie"]
    assert "set-cookie" not in (await get(doors(), "/logout")).headers
    assert refused(await get(doors(), "/logout", {"origin": "https://evil.example"}, "POST"))


# What is logged


async def asked_over_a_socket(app: ASGIApp, path: str, **headers: str) -> bytes:
    """One request to a real server, which then ends."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="trace", log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve())
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
    await running
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
    answer = await asked_over_a_socket(doors(), f"/page?token={TOKEN}", Cookie=f"{COOKIE}={TOKEN}2")
    wrong = await asked_over_a_socket(doors(), f"/page?token={TOKEN}3", Authorization=f"Bearer {TOKEN}4")
    assert b" 303 " in answer and b" 401 " in wrong
    response = [record for record in caplog.records if record.name == "uvicorn.access"]
    lines = [record.getMessage() for record in dict.fromkeys(response)]  # Each parent logger shows it once more.
    assert len(lines) == 2 and "GET /page HTTP" in lines[0] and lines[0].endswith("303") and lines[1].endswith("401")
    traced = [record.getMessage() for record in caplog.records if record.name == "uvicorn.asgi"]
    assert any("'path': '/page'" in line for line in traced)
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
