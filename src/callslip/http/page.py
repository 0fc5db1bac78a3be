"""The files of the web page, which are public. Their data comes from the API."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from html import escape
from importlib.resources import files
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from callslip.errors import NotFoundError
from callslip.http.request import Endpoint, RequestContext, Route, root_path
from callslip.model import codec

MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
}
"""The media types of served files, by suffix."""
FILE_MEDIA_TYPES = "text/javascript, text/css, text/html, text/plain"
FOLDERS = ("", "vendor/")
COMMENT_LINES = re.compile(rb"^[ \t]*(?:/\*(?:[^*]|\*(?!/))*\*/[ \t]*|//.*)$", re.MULTILINE)
"""Lines of a module or style sheet that contain only a comment."""
WITH_COMMENTS = ("vendor/", "callslip.js", "example.js")
"""Files that are served with their comments: licences, and what is meant to be read."""
UNQUOTED = "/!$&'()*+,;=:@"
"""Characters that browsers do not quote in a path."""


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


@cache
def _names() -> frozenset[str]:
    """Return the files of the page. Requested names are looked up here and never used as paths."""
    web = files("callslip.web")
    names = [(folder, file.name) for folder in FOLDERS for file in web.joinpath(folder).iterdir() if file.is_file()]
    return frozenset(folder + name for folder, name in names if _suffix(name) in MEDIA_TYPES)


def _empty_lines(match: re.Match[bytes]) -> bytes:
    """Return as many line breaks as a comment has, so that an error names the right line of the source."""
    return b"\n" * match[0].count(b"\n")


@lru_cache(256)
def _file(name: str, root: str) -> tuple[bytes, str]:
    """Return a file, without comments if it is of the page, and its ETag.

    The page refers to its files by the prefix that it is mounted under.
    """
    if name not in _names():
        raise NotFoundError(f"no file {name!r}")
    data = files("callslip.web").joinpath(name).read_bytes()
    if name == "index.html":
        data = data.replace(b"{root}", escape(quote(root, safe=UNQUOTED)).encode())
    if _suffix(name) in (".js", ".css") and not name.startswith(WITH_COMMENTS):
        data = COMMENT_LINES.sub(_empty_lines, data)
    return data, f'"{codec.digest(data)[:16]}"'


def _serve(context: RequestContext, name: str) -> Response:
    """Return a file, or 304. Browsers revalidate it each time, as a changed file keeps its name."""
    data, etag = _file(name, root_path(context.request.scope) if name == "index.html" else "")
    headers = {"etag": etag, "cache-control": "no-cache"}
    if context.has_version(etag):
        return Response(None, 304, headers)
    return Response(data, 200, headers, MEDIA_TYPES[_suffix(name)])


def _file_endpoint(name: str) -> Endpoint:
    async def serve(context: RequestContext) -> Response:
        return _serve(context, name)

    return serve


async def page_file(context: RequestContext) -> Response:
    """Return a file of the page."""
    return _serve(context, context.path_params["file"])


async def vendored(context: RequestContext) -> Response:
    """Return a third-party file of the page."""
    return _serve(context, f"vendor/{context.path_params['module']}")


def _route(path: str, endpoint: Endpoint, media: str, problems: tuple[int, ...] = (), about: str = "") -> Route:
    return Route("GET", path, endpoint, None, answers={200: media, 304: None}, problems=problems, about=about)


PAGES = {
    "/": "The page of all sessions.",
    "/s/{session}": "The page of a session.",
    "/c/{call}": "The page of a call: its session with the call's card open.",
    "/inbox": "The page of pending approvals.",
    "/commands": "The page of the commands.",
    "/rules": "The page of rules.",
    "/usage": "The page of tokens and costs.",
    "/search": "The page of the results of a search.",
}


def not_found_page(request: Request) -> Response | None:
    """Return the page for an unknown address, where it shows an error; None below the paths of the API."""
    path, root = request.scope["path"], root_path(request.scope)
    relative = path.removeprefix(root) if f"{path}/".startswith(f"{root}/") else path
    api = {_first_segment(route.path) for route in request.app.routes} - {_first_segment(path) for path in PAGES}
    if _first_segment(relative) in api:
        return None
    return Response(_file("index.html", root)[0], 404, None, MEDIA_TYPES[".html"])


def _first_segment(path: str) -> str:
    return path.split("/")[1] if path.startswith("/") else ""


ROUTES = (
    *(_route(path, _file_endpoint("index.html"), "text/html", about=about) for path, about in PAGES.items()),
    _route("/callslip.js", _file_endpoint("callslip.js"), "text/javascript", about="A client library for other pages."),
    _route("/callslip.d.ts", _file_endpoint("callslip.d.ts"), "text/plain", about="The types of callslip.js."),
    _route("/web/{file}", page_file, FILE_MEDIA_TYPES, (404,)),
    _route("/web/vendor/{module}", vendored, FILE_MEDIA_TYPES, (404,)),
)
