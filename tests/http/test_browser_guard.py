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
async def test_a_local_name_is_answered(host: str) -> None:
    """In any spelling and with any port, which a tunnel may change."""
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
async def test_a_strangers_name_is_refused(host: str | None) -> None:
    """DNS rebinding: also with a token, and for any path."""
    for path in ("/", "/v1/sessions", f"/?token={TOKEN}"):
        answer = await get(doors(), path, {"authorization": f"Bearer {TOKEN}"}, host=host)
        assert refused(answer) and "set-cookie" not in answer.headers


async def test_two_names_are_none() -> None:
    """A reader that uses the other one would be misled."""
    for pair in (["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]):
        assert refused(await get(doors(), "/", [("host", name) for name in pair]))


async def test_the_bound_name_and_named_ones_are_answered() -> None:
    """A server bound to everything answers to every address, and to no name that was not given."""
    named = doors(hosts=Hosts("192.168.1.7", ["Box.Example", "::2"]))
    for host, status in (("192.168.1.7:80", 200), ("box.example", 200), ("[::2]:1", 200), ("192.168.1.8", 403)):
        assert (await get(named, "/", host=host)).status == status
    for bound in ("0.0.0.0", "::"):
        everywhere = doors(hosts=Hosts(bound))
        for host, status in (("10.0.0.1:7890", 200), ("[fe80::1]", 200), ("localhost", 200), ("evil.example", 403)):
            assert (await get(everywhere, "/", host=host)).status == status


@pytest.mark.parametrize("name", ["", "http://x", "x:80", "a b", "x/", "*", "*.example.org", "[::1]:80", "x."])
def test_a_name_to_allow_must_be_one(name: str) -> None:
    """No scheme, no port, no pattern."""
    with pytest.raises(InvalidInputError):
        Hosts(allowed=[name])


async def test_in_a_host_app_any_name_will_do() -> None:
    """There it is the host's to check; the origin still has to be that of the name."""
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
async def test_our_own_page_may_ask(origin: str, host: str, scheme: str) -> None:
    """With the default port said or not; the answer needs no leave to be read."""
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
async def test_a_foreign_page_is_refused(origin: str, method: str) -> None:
    """Reading and streams too, with a token or a cookie or none, and in a preflight."""
    for more in ({}, {"cookie": f"{COOKIE}={TOKEN}"}, {"authorization": f"Bearer {TOKEN}"}):
        headers = {"origin": origin, "accept": "text/event-stream", "access-control-request-method": "POST"} | more
        assert refused(await get(doors(allow_origins=[EXTENSION]), "/v1/stream", headers, method))


async def test_two_origins_are_none() -> None:
    """Not even if one of them is ours."""
    for pair in ([OWN, OWN], [OWN, "https://evil.example"]):
        assert refused(await get(doors(), "/v1", [("origin", origin) for origin in pair]))


@pytest.mark.parametrize(
    "named", ["https://app.example", EXTENSION, "http://localhost:3000", "https://app.example:444"]
)
async def test_a_named_page_may_ask_and_read(named: str) -> None:
    """It alone is named in the answer, which says that it depends on who asked."""
    app = doors(allow_origins=[named])
    for path in ("/v1", "/nowhere", "/special"):
        status, headers, _ = await get(app, path, {"origin": named})
        assert status == 200 and headers["access-control-allow-origin"] == named
        assert headers["access-control-allow-credentials"] == "true"
        assert headers["cross-origin-resource-policy"] == "cross-origin" and "origin" in headers["vary"].lower()
    assert refused(await get(app, "/v1", {"origin": "https://evil.example"}))
    without = (await get(app, "/v1")).headers
    assert "origin" in without["vary"].lower() and "access-control-allow-origin" not in without


async def test_a_named_page_may_ask_beforehand() -> None:
    """A preflight is answered for the methods there are and the headers it wants, if these are headers."""
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


async def test_every_page_may_be_let_in_only_without_cookies() -> None:
    """`*` with cookies is refused when it is set up; without them nothing is said of credentials."""
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
def test_an_origin_to_allow_must_be_one(name: str) -> None:
    """No path, no pattern, and not the origin that is none."""
    with pytest.raises(InvalidInputError):
        doors(allow_origins=[name])


# Requests that no page signed


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("cookie", [f"{COOKIE}={TOKEN}", "session-of-the-host=1"])
async def test_a_request_of_another_page_cannot_use_a_cookie(site: str, cookie: str) -> None:
    """An image, a script or a frame elsewhere gets nothing by our cookie; a link that was followed does."""
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
async def test_programs_and_our_own_page_need_no_origin(headers: dict[str, str]) -> None:
    """Requests without a cookie, with a token, or of our page (whose forms send `null`) reach the authorizer."""
    for method in ("GET", "POST"):
        assert (await get(doors(), "/v1", headers, method)).status == 200


async def test_a_null_origin_from_elsewhere_is_foreign() -> None:
    """A frame in a sandbox says `null`, too, but not that it is the same page."""
    for site in ("cross-site", "same-site", "none", ""):
        assert refused(await get(doors(), "/v1", {"origin": "null", "sec-fetch-site": site}, "POST"))


@pytest.mark.parametrize(("headers", "reaches"), [({"origin": OWN}, True), ({}, True)])
async def test_a_socket_of_our_own_is_opened(headers: dict[str, str], reaches: bool) -> None:
    """Sockets know no preflight, so the same doors stand before them."""
    assert await opened_socket(headers) is reaches


@pytest.mark.parametrize("headers", [{"origin": origin} for origin in FOREIGN] + [{"host": "evil.example"}])
async def test_a_socket_of_another_page_is_closed(headers: dict[str, str]) -> None:
    """Before it is opened."""
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
async def test_every_answer_tells_the_browser_what_not_to_do(path: str) -> None:
    """Answers of the app, refusals and redirects alike; what an answer says itself stays."""
    for headers in ({}, {"origin": "https://evil.example"}):
        for method in ("GET", "POST"):
            answer = await get(doors(), path, headers, method)
            for name, value in SECURITY_HEADERS.items():
                own = name == "cache-control" and path == "/special" and not headers and method == "GET"
                assert answer.headers.getlist(name) == (["max-age=60"] if own else [value])


async def test_an_error_is_answered_safely() -> None:
    """Also if the app fails; the response does not contain the error."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ZeroDivisionError):  # Starlette answers, then lets the server log it.
        await doors()(scope_of("/broken"), receive, send)
    assert sent[0]["status"] == 500 and b"secret" not in sent[1]["body"]
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]


def test_nothing_runs_that_we_did_not_write() -> None:
    """The policy allows no inline script, no eval, no other origin, no frame and no other base."""
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy


async def test_a_life_span_passes() -> None:
    """What is no request is the app's alone."""
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
async def test_a_token_in_the_address_becomes_a_cookie(path: str, place: str) -> None:
    """The browser is sent to the same place of this server without it, and nowhere else."""
    for method in ("GET", "HEAD"):
        status, headers, body = await get(doors(), path, method=method)
        assert (status, headers["location"], body) == (303, place, b"")
        (cookie,) = headers.getlist("set-cookie")
        message = [part.strip() for part in cookie.split(";")]
        assert message[0] == f"{COOKIE}={TOKEN}" and {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(message)
        assert "Secure" not in message and not any(part.startswith("Domain") for part in message)


async def test_the_cookie_belongs_to_the_mount_and_to_https() -> None:
    """It is sent to no other part of the host, and not in the clear where it came encrypted."""
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
async def test_a_root_path_is_one_whether_the_path_has_it_or_not(path: str, place: str) -> None:
    """Servers differ in this; a place whose name only begins like the root is another."""
    answer = await get(doors(), f"{path}?token={TOKEN}", root_path="/app")
    assert answer.headers["location"] == place and "; Path=/app;" in answer.headers["set-cookie"]


async def test_a_request_need_not_say_its_scheme() -> None:
    """The protocol between server and app lets it out for http."""
    scope = scope_of(f"/?token={TOKEN}", {"origin": OWN})
    del scope["scheme"]
    assert (await call(doors(), scope)).status == 303


@pytest.mark.parametrize("query", ["token=", "token=wrong", f"token={TOKEN}&token={TOKEN}", "token=wr\xf6ng", "token"])
async def test_a_wrong_token_is_told_and_not_repeated(query: str) -> None:
    """401, no cookie, no redirect."""
    status, headers, body = await get(doors(), f"/?{query}")
    assert status == 401 and "set-cookie" not in headers and "location" not in headers
    assert b"wr" not in body and TOKEN.encode() not in body and headers["www-authenticate"].startswith("Bearer")


async def test_only_reading_logs_in() -> None:
    """A token behind the address of anything else is the app's to refuse."""
    answer = await get(doors(), f"/v1?token={TOKEN}", method="POST")
    assert answer.status == 200 and "set-cookie" not in answer.headers
    assert (await get(doors(login=None), f"/?token={TOKEN}")).body == f"GET /?token={TOKEN}".encode()


async def test_logging_out_takes_the_cookie_away() -> None:
    """Only by a POST of our own page: no link and no other page logs a user out."""
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


async def test_no_token_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own log tells the path and the status; even where it traces, nothing behind the question mark."""
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


def test_a_line_of_another_shape_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that is logged without an address is lost or changed."""
    quiet_access_log("tests.access")
    logger = logging.getLogger("tests.access")
    with caplog.at_level(logging.INFO, "tests.access"):
        logger.info("what? %d %s", 5, {"a": 1})
        logger.info("%(path)s", {"path": "/x"})
        logger.info("plain?")
    assert [record.getMessage() for record in caplog.records] == ["what? 5 {'a': 1}", "/x", "plain?"]
