"""The page and what it is made of: files of the package, the same for everybody. What they show comes by the API."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from importlib.resources import files

from starlette.responses import Response

from callslip import codec
from callslip.errors import NotFound
from callslip.http.visit import Endpoint, Route, Visit

KINDS = {
    "callslip.js": "text/javascript; charset=utf-8",
    "callslip.d.ts": "text/plain; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "index.html": "text/html; charset=utf-8",
}


@lru_cache(64)
def _file(name: str, root: str) -> tuple[bytes, str]:
    """A file and its ETag. The page names its parts by the prefix that it was mounted under."""
    found = files("callslip.web").joinpath(name)
    if not found.is_file():
        raise NotFound(f"no file {name!r}")
    data = found.read_bytes()
    if name == "index.html":
        data = data.replace(b"{root}", escape(root).encode())
    return data, f'"{codec.digest(data)[:16]}"'


def _given(name: str) -> Endpoint:
    async def give(visit: Visit) -> Response:
        root = visit.request.scope.get("root_path", "").rstrip("/")
        data, etag = _file(name, root if name == "index.html" else "")
        headers = {"etag": etag, "cache-control": "no-cache"}
        if etag in visit.request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(data, 200, headers, KINDS[name])

    return give


def _route(path: str, name: str, about: str) -> Route:
    media = KINDS[name].partition(";")[0]
    return Route(
        method="GET", path=path, endpoint=_given(name), about=about, verb=None, answers={200: media, 304: None}
    )


ROUTES = (
    _route("/", "index.html", "The page."),
    _route("/s/{session}", "index.html", "The page of a session."),
    *(_route(f"/{name}", name, f"A part of the page: {name}.") for name in KINDS if name != "index.html"),
)
