"""The page and what it is made of: files of the package, the same for everybody. What they show comes by the API."""

from __future__ import annotations

from functools import cache, lru_cache
from html import escape
from importlib.resources import files
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from callslip.errors import NotFoundError
from callslip.http.request import Endpoint, RequestContext, Route
from callslip.model import codec

KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
}
"""What is given out, by how its name ends."""
PARTS = "text/javascript, text/css, text/html, text/plain"
FOLDERS = ("", "vendor/")
PLAIN = "/!$&'()*+,;=:@"
"""What a browser leaves as it is in a path, beside letters and digits."""


def _ending(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


@cache
def _names() -> frozenset[str]:
    """The files that there are. What is asked for is looked up here and never made into a path."""
    web = files("callslip.web")
    found = [(folder, part.name) for folder in FOLDERS for part in web.joinpath(folder).iterdir() if part.is_file()]
    return frozenset(folder + name for folder, name in found if _ending(name) in KINDS)


@lru_cache(256)
def _file(name: str, root: str) -> tuple[bytes, str]:
    """A file and its ETag. The page names its parts by the prefix that it was mounted under."""
    if name not in _names():
        raise NotFoundError(f"no file {name!r}")
    data = files("callslip.web").joinpath(name).read_bytes()
    if name == "index.html":
        data = data.replace(b"{root}", escape(quote(root, safe=PLAIN)).encode())
    return data, f'"{codec.digest(data)[:16]}"'


def _root(request: Request) -> str:
    return request.scope.get("root_path", "").rstrip("/")


def _give(visit: RequestContext, name: str) -> Response:
    """A file, or the word that the browser has it. It asks each time, as names stay when files change."""
    data, etag = _file(name, _root(visit.request) if name == "index.html" else "")
    headers = {"etag": etag, "cache-control": "no-cache"}
    if etag in visit.request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(data, 200, headers, KINDS[_ending(name)])


def _given(name: str) -> Endpoint:
    async def give(visit: RequestContext) -> Response:
        return _give(visit, name)

    return give


async def part(visit: RequestContext) -> Response:
    """A part of the page, by its name."""
    return _give(visit, visit.request.path_params["file"])


async def vendored(visit: RequestContext) -> Response:
    """A part of the page that others wrote, by its name."""
    return _give(visit, f"vendor/{visit.request.path_params['module']}")


def _route(path: str, endpoint: Endpoint, about: str, media: str, problems: tuple[int, ...] = ()) -> Route:
    return Route(
        method="GET",
        path=path,
        endpoint=endpoint,
        about=about,
        verb=None,
        answers={200: media, 304: None},
        problems=problems,
    )


PAGES = {
    "/": "The page: the sessions.",
    "/s/{session}": "The page of a session.",
    "/c/{call}": "The page of a call: its session, with the call's card open.",
    "/inbox": "The page of what waits for an answer.",
    "/commands": "The page of the commands.",
}


def nowhere(request: Request) -> Response | None:
    """The page, for a person at an address that is none: it says so. Where programs ask, nobody is shown a page."""
    path, root = request.scope["path"], _root(request)
    within = path.removeprefix(root) if f"{path}/".startswith(f"{root}/") else path
    programs = {_first(route.path) for route in request.app.routes} - {_first(path) for path in PAGES}
    if _first(within) in programs:
        return None
    return Response(_file("index.html", root)[0], 404, None, KINDS[".html"])


def _first(path: str) -> str:
    return path.split("/")[1] if path.startswith("/") else ""


ROUTES = (
    *(_route(path, _given("index.html"), about, "text/html") for path, about in PAGES.items()),
    _route(
        "/callslip.js", _given("callslip.js"), "Follows sessions and topics, for pages of others.", "text/javascript"
    ),
    _route("/callslip.d.ts", _given("callslip.d.ts"), "The types of callslip.js.", "text/plain"),
    _route("/web/{file}", part, "A part of the page.", PARTS, (404,)),
    _route("/web/vendor/{module}", vendored, "A part of the page that others wrote.", PARTS, (404,)),
)
