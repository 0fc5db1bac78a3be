"""The files of the web page: which addresses give the page, which files are served, compression and caching."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.errors import PermissionDeniedError
from callslip.http.browser_guard import SECURITY_HEADERS
from callslip.http.page import PAGES
from callslip.http.request import RequestContext
from callslip.mcp import http_app
from callslip.model import events as ev
from tests.support.live_server import fetch, running
from tests.support.paths import ROOT

WEB = Path(callslip.__file__).parent / "web"

pytestmark = pytest.mark.anyio

TOKEN = "the-main-token-of-this-server"
BROWSER_HEADERS = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
PROBLEM = "application/problem+json"
HTML = "text/html; charset=utf-8"


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncIterator[str]:
    async with running(http.standalone(ledger, TOKEN, mcp_app=http_app)) as url:
        yield url


@pytest.mark.parametrize(
    "path", ["/nowhere", "/s", "/s/a/b", "/s/a%2Fb", "/s/", "/c/claim", "/inbox/x", "/v1x", "//v1/x", "/%F0%9F%8C%8A"]
)
async def test_an_unknown_address_gives_browsers_the_page_with_404(ledger: LocalLedger, url: str, path: str) -> None:
    """The page is the same as `/`, with or without a token; programs get a problem document."""
    await ledger.session("a").append(ev.MessageUser(text="secret"))
    for headers in (BROWSER_HEADERS, {**BROWSER_HEADERS, "authorization": f"Bearer {TOKEN}"}):
        response = await fetch(url + path, headers=headers)
        assert (response.status, response.headers["content-type"]) == (404, HTML)
        assert response.body == (await fetch(f"{url}/", headers=BROWSER_HEADERS)).body
        assert SECURITY_HEADERS.items() <= response.headers.items() and "etag" not in response.headers
    head = await fetch(url + path, "HEAD", headers=BROWSER_HEADERS)
    assert (head.status, head.headers["content-type"], head.body) == (404, HTML, b"")
    for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}, {"accept": "text/html;q=0, */*"}):
        assert (await fetch(url + path, headers=headers)).headers["content-type"] == PROBLEM
    assert (await fetch(url + path, "POST", headers=BROWSER_HEADERS, value={})).headers["content-type"] == PROBLEM


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/v1", "/web/none.js", "/web", "/mcp/x", "/openapi.json/x", "/healthz/x"]
)
async def test_an_unknown_api_path_gives_a_problem_document(url: str, path: str) -> None:
    """For any Accept header, because a script must not get a page instead of data."""
    response = await fetch(url + path, headers=BROWSER_HEADERS)
    assert (response.status, response.headers["content-type"]) == (404, PROBLEM)


@pytest.mark.parametrize("query", ["token=wrong", "token=", f"token={TOKEN}&token={TOKEN}", f"token={TOKEN}x"])
async def test_a_wrong_token_in_the_url_redirects_browsers_to_the_page(url: str, query: str) -> None:
    """No cookie is set, and the token is removed from the URL; programs get 401."""
    response = await fetch(f"{url}/s/a?q=b&{query}", headers=BROWSER_HEADERS)
    assert (response.status, response.headers["location"]) == (303, "/s/a?q=b#unknown-token")
    assert "set-cookie" not in response.headers and response.body == b""
    assert (await fetch(f"{url}/s/a?q=b&{query}")).status == 401
    assert (await fetch(f"{url}/v1/sessions?{query}", headers={"accept": "application/json"})).status == 401
    accepted = await fetch(f"{url}/s/a?q=b&token={TOKEN}", headers=BROWSER_HEADERS)
    assert accepted.headers["location"] == "/s/a?q=b" and TOKEN in accepted.headers["set-cookie"]


async def test_additional_routes_require_the_token(ledger: LocalLedger) -> None:
    """Unknown paths below such a route give a problem document."""

    async def refuse(context: RequestContext) -> Response:
        await context.admit()
        raise PermissionDeniedError("seen")

    route = http.Route(method="GET", path="/more", endpoint=refuse, about="More.")
    async with running(http.standalone(ledger, TOKEN, routes=[route])) as url:
        assert (await fetch(f"{url}/more")).status == 401
        response = await fetch(f"{url}/more", headers={"authorization": f"Bearer {TOKEN}"})
        assert (response.status, response.json()["detail"]) == (403, "seen")
        assert (await fetch(f"{url}/more/x", headers=BROWSER_HEADERS)).headers["content-type"] == PROBLEM


@pytest.mark.parametrize("name", ["a", "a.b", "..a", "%C3%BC%20x", "%25", "%F0%9F%8C%8A", "-", "claim", "a%3Fb", "%00"])
async def test_every_session_address_gives_the_same_page(url: str, name: str) -> None:
    """The page is the same for all names, so it does not reveal which sessions exist."""
    response = await fetch(f"{url}/s/{name}", headers=BROWSER_HEADERS)
    assert (response.status, response.body) == (200, (await fetch(f"{url}/")).body)


async def test_an_html_export_is_served_as_a_download(ledger: LocalLedger, url: str) -> None:
    """Content of others is never shown on this origin; the file has the name of the session."""
    await ledger.log.append('ü "x"', [ev.MessageUser(text="hello")])
    headers = {**BROWSER_HEADERS, "authorization": f"Bearer {TOKEN}"}
    response = await fetch(f"{url}/v1/sessions/%C3%BC%20%22x%22?format=html", headers=headers)
    assert (response.status, response.headers["content-type"]) == (200, HTML) and "hello" in response.text
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC%20%22x%22.html"
    assert "content-disposition" not in (await fetch(f"{url}/v1/sessions/%C3%BC%20%22x%22", headers=headers)).headers


@pytest.mark.parametrize("path", [*(path for path in PAGES if "{" not in path), "/web/app.js", "/callslip.js"])
async def test_page_files_are_compressed_and_cached_by_etag(url: str, path: str) -> None:
    """It is compressed if the client accepts that, 304 if the client has it in either form, and HEAD matches."""
    plain = await fetch(url + path)
    compressed = await fetch(url + path, headers={"accept-encoding": "gzip"})
    assert compressed.headers["content-encoding"] == "gzip" and gzip.decompress(compressed.body) == plain.body
    for response in (plain, compressed):
        assert response.headers["cache-control"] == "no-cache" and response.headers["vary"] == "Accept-Encoding"
        for etag in (response.headers["etag"], f'"other", {response.headers["etag"]}'):
            repeated = await fetch(url + path, headers={"if-none-match": etag})
            assert (repeated.status, repeated.body) == (304, b"")
        assert (await fetch(url + path, headers={"if-none-match": '"other"'})).status == 200
    head = await fetch(url + path, "HEAD")
    assert (head.status, head.headers, head.body) == (200, plain.headers, b"")
    assert {**SECURITY_HEADERS, "cache-control": "no-cache"}.items() <= plain.headers.items()


async def test_every_file_that_the_page_loads_is_served(url: str) -> None:
    """Also every file that a loaded file imports, with the right content type."""
    page = (await fetch(f"{url}/")).text
    pending = re.findall(r'(?:src|href)="(/web/[^"]+)"', page)
    loaded: set[str] = set()
    while pending:
        path = pending.pop()
        if path in loaded:
            continue
        loaded.add(path)
        response = await fetch(url + path)
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        assert (response.status, response.headers["content-type"]) == (200, f"{kind}; charset=utf-8"), path
        folder = path.rpartition("/")[0]
        pending += [f"{folder}/{name}" for name in re.findall(r'(?:from |import\()"\./([^"]+\.js)"', response.text)]
    assert {"/web/app.js", "/web/page.css", "/web/state.js"} < loaded and len(loaded) > 20


async def test_modules_are_served_without_comments_only(url: str, node: str) -> None:
    """TypeScript finds the same code in what is served and in the source, on the same lines."""
    files = [file for file in WEB.glob("*.js") if file.name not in ("callslip.js", "example.js")]
    jobs = [
        {"name": file.name, "source": file.read_text(), "served": (await fetch(f"{url}/web/{file.name}")).text}
        for file in files
    ]
    assert all(job["source"].count("\n") == job["served"].count("\n") for job in jobs)
    assert sum(len(job["served"]) for job in jobs) < 0.9 * sum(len(job["source"]) for job in jobs)
    script = str(ROOT / "tests" / "js" / "same_code.mjs")
    done = subprocess.run([node, script], input=json.dumps(jobs), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {job["name"]: True for job in jobs}


@pytest.mark.parametrize(
    "path",
    [
        "/web/__init__.py",
        "/web/vendor",
        "/web/vendor/..%2Fcallslip.js",
        "/web/..%2F__init__.py",
        "/web/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/web/%2Fetc%2Fpasswd",
        "/web/..",
        "/web/../errors.py",
        "/web/app.js%00",
        "/web/APP.JS",
        "/web/vendor/../../codec.py",
        "/web/%ff",
    ],
)
async def test_only_files_of_the_page_are_served(url: str, path: str) -> None:
    """A name is looked up and never made into a path."""
    response = await fetch(url + path)
    assert (response.status, response.headers["content-type"]) == (404, PROBLEM)


@pytest.mark.parametrize(
    ("root", "expected_root"), [("/team/slips", "/team/slips"), ("/my slips/ü'&", "/my%20slips/%C3%BC'&")]
)
async def test_a_mounted_page_links_its_files_under_the_prefix(
    ledger: LocalLedger, root: str, expected_root: str
) -> None:
    """The page contains the prefix as in a browser's address, also at an unknown address."""
    app = Starlette(routes=[Mount(root, callslip.asgi(ledger, authorize=lambda *_: None))])
    prefix = expected_root.replace("'", "%27")
    async with running(app) as url:
        page = (await fetch(f"{url}{prefix}/inbox")).text
        assert unescape(re.findall(r'data-root="([^"]*)"', page)[0]) == expected_root
        paths = [unescape(path) for path in re.findall(r'(?:src|href)="([^"]*/web/[^"]+)"', page)]
        assert paths and {(await fetch(url + path)).status for path in paths} == {200}
        unknown = await fetch(f"{url}{prefix}/nowhere", headers=BROWSER_HEADERS)
        assert (unknown.status, unknown.text) == (404, page)
        assert (await fetch(f"{url}{prefix}/v1/nothing", headers=BROWSER_HEADERS)).headers["content-type"] == PROBLEM
