"""The server as an ASGI app: each route of the table, admitted, run, and its errors told as problems."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as Path

from callslip.errors import CallslipError
from callslip.http import problems, sse
from callslip.http.accept import takes_gzip, takes_page
from callslip.http.request import Endpoint, RequestContext, Route, Server

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("callslip.http")

SMALL = 1024
LARGE = 64 * 2**10
"""Answers from this size on are compressed in a thread."""
LEVEL = 5
COMPRESSIBLE = re.compile(r"text/|application/(\S+\+)?(json|javascript|xml)\b|image/svg\+xml")


class _CallId(StringConvertor):
    """What may stand for a call in a path: all but the word by which the next one is claimed."""

    regex = "(?!claim(?:/|$))[^/]+"


Nowhere = Callable[[Request], Response | None]


def build(
    server: Server,
    routes: Sequence[Route],
    apps: Mapping[str, ASGIApp] | None = None,
    nowhere: Nowhere | None = None,
) -> ASGIApp:
    """An app that answers these routes, under whatever prefix it is mounted. `apps` are others, each at its path.

    `nowhere` may have an answer of its own for people who come to an address that is none.
    """
    register_url_convertor("call", _CallId())
    paths = [
        Path(route.path.replace("{call}", "{call:call}"), _endpoint(server, route), methods=[route.method])
        for route in routes
    ]
    paths += [Path(path, _beside(server, path, app)) for path, app in (apps or {}).items()]
    server.routes = tuple(routes)
    elsewhere: dict[Any, Any] = {
        404: partial(_nowhere, server, nowhere),
        405: partial(_not_so, server),
        Exception: partial(_broken, server),
    }
    return Starlette(routes=paths, exception_handlers=elsewhere)


def _endpoint(server: Server, route: Route):  # pyright: ignore[reportUnknownParameterType]
    async def run(request: Request) -> ASGIApp:
        visit = RequestContext(server, request, route)
        made = await _squeezed(request, await _answered(visit, route.endpoint))
        if isinstance(made, sse.Stream):
            made._work = server.metrics.watched(made._work)  # pyright: ignore[reportPrivateUsage]
        return _counted(server, route.path, request.method, made)

    return run


def _beside(server: Server, path: str, app: ASGIApp) -> ASGIApp:
    """An app that answers every method, counted like the rest."""

    class Beside:  # A class: starlette takes a function for an endpoint.
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await _counted(server, path, scope["method"], app)(scope, receive, send)

    return Beside()


def _counted(server: Server, path: str, method: str, made: ASGIApp) -> ASGIApp:
    """The same answer, which counts as what it begins with: a stream may still turn out to be a problem."""

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                server.metrics.answered(path, method, message["status"])
            await send(message)

        await made(scope, receive, sent)

    return counting


async def _answered(visit: RequestContext, endpoint: Endpoint) -> Response:
    try:
        return await endpoint(visit)
    except CallslipError as error:
        return problems.response(error)
    except ClientDisconnect:
        return Response(None, 400)  # Half a body, and nobody to tell.
    except Exception as error:
        log.exception("%s %s", visit.route.method, visit.route.path)  # The path as a pattern: no ids, no tokens.
        return problems.response(error)


async def _nowhere(server: Server, nowhere: Nowhere | None, request: Request, error: Exception) -> Response:
    server.metrics.answered("", "", 404)  # Whatever path and method they made up is no label.
    shown = nowhere(request) if nowhere is not None and takes_page(request) else None
    if shown is not None:
        return await _squeezed(request, shown)
    return problems.problem_response(404, "not-found", f"nothing is at {request.scope['path']}")


async def _not_so(server: Server, request: Request, error: Exception) -> Response:
    server.metrics.answered("", "", 405)
    said = f"{request.method} is not done at {request.scope['path']}"
    return problems.problem_response(405, "method", said, _allowed(request))


async def _broken(server: Server, request: Request, error: Exception) -> ASGIApp:
    """What goes wrong after an endpoint, if no answer has begun yet. Starlette raises it again, for the log."""
    return _counted(server, "", "", problems.response(error))


def _allowed(request: Request) -> dict[str, str]:
    """What is done there, by all the routes of the path and not only by the first."""
    routes = [path for path in request.app.routes if path.matches(request.scope)[0] is not Match.NONE]
    return {"allow": ", ".join(sorted({method for path in routes for method in path.methods}))}


# Compression. Streams and pieces are sent as they are.


async def _squeezed(request: Request, made: Response) -> Response:
    """The answer by gzip, if whoever asks takes that and it is worth it."""
    if isinstance(made, sse.Stream):
        return made
    body = bytes(getattr(made, "body", b""))
    if made.status_code != 304 and not COMPRESSIBLE.match(made.headers.get("content-type", "")):
        return made
    made.headers.add_vary_header("Accept-Encoding")
    plain = len(body) <= SMALL or made.status_code in (206, 304) or "content-encoding" in made.headers
    if plain or not takes_gzip(request):
        return made
    pack = partial(gzip.compress, body, LEVEL, mtime=0)
    made.body = await asyncio.to_thread(pack) if len(body) >= LARGE else pack()
    made.headers["content-encoding"] = "gzip"
    made.headers["content-length"] = str(len(made.body))
    etag = made.headers.get("etag", "")
    if etag.startswith('"'):
        made.headers["etag"] = f"W/{etag}"  # The same thing in other bytes.
    return made
