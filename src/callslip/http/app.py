"""The server as an ASGI app: run the endpoint of each route, and return its errors as problems."""

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
from starlette.routing import Route as StarletteRoute

from callslip.api.find import hide_unreadable
from callslip.errors import CallslipError
from callslip.http import problems, sse
from callslip.http.accept import accepts_gzip, accepts_html
from callslip.http.connection import with_abort
from callslip.http.request import Endpoint, RequestContext, Route
from callslip.http.server import Server

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("callslip.http")

MIN_GZIP_BYTES = 1024
MIN_THREAD_BYTES = 64 * 2**10
"""Responses of this size or larger are compressed in a thread."""
GZIP_LEVEL = 5
COMPRESSIBLE = re.compile(r"text/|application/(\S+\+)?(json|javascript|xml)\b|image/svg\+xml")


def _convertor(*others: str) -> StringConvertor:
    """Return the convertor of an id in a path: any text but the names of other routes in its place."""
    regex = f"(?!(?:{'|'.join(others)})(?:/|$))[^/]+"
    return type("_Id", (StringConvertor,), {"regex": regex})()


_CONVERTORS = {
    "call": _convertor("claim"),
    "approval": _convertor("answers"),
    "rule": _convertor("preview", "test"),
}
_IDS = re.compile(rf"{{({'|'.join(_CONVERTORS)})}}")


NotFoundPage = Callable[[Request], Response | None]


def build(
    server: Server,
    routes: Sequence[Route],
    apps: Mapping[str, ASGIApp] | None = None,
    not_found_page: NotFoundPage | None = None,
) -> ASGIApp:
    """Return an app with these routes, to be mounted under any prefix. `apps` are further apps by path.

    `not_found_page` may return a page for browsers at an unknown address.
    """
    for parameter, convertor in _CONVERTORS.items():
        register_url_convertor(parameter, convertor)
    paths = [
        StarletteRoute(_IDS.sub(r"{\1:\1}", route.path), _endpoint(server, route), methods=[route.method])
        for route in routes
    ]
    paths += [StarletteRoute(path, _counted_app(server, path, app)) for path, app in (apps or {}).items()]
    server.routes = tuple(routes)
    handlers: dict[Any, Any] = {
        404: partial(_not_found, server, not_found_page),
        405: partial(_method_not_allowed, server),
        Exception: partial(_server_error, server),
    }
    return with_abort(Starlette(routes=paths, exception_handlers=handlers))


def _endpoint(server: Server, route: Route):  # pyright: ignore[reportUnknownParameterType]
    async def run(request: Request) -> ASGIApp:
        context = RequestContext(server, request, route)
        response = await _compress(request, await _run(context, route.endpoint))
        if isinstance(response, sse.Stream):
            response.work = server.metrics.count_cuts(response.work)
        elif len(getattr(response, "body", b"")) > server.limits.reader_bytes and request.method != "HEAD":
            response = sse.LargeResponse(response, server.limits, server.hub.held)
        return _counted(server, route.path, request.method, response)

    return run


def _counted_app(server: Server, path: str, app: ASGIApp) -> ASGIApp:
    """Return an app for all methods of a path, with its requests counted."""

    class Counted:  # A class, as starlette takes a function for an endpoint.
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await _counted(server, path, scope["method"], app)(scope, receive, send)

    return Counted()


def _counted(server: Server, path: str, method: str, app: ASGIApp) -> ASGIApp:
    """Count a response by the status that it starts with: a stream may become a problem."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                server.metrics.count_request(path, method, message["status"])
            await send(message)

        await app(scope, receive, counting_send)

    return counted


async def _run(context: RequestContext, endpoint: Endpoint) -> Response:
    try:
        return await endpoint(context)
    except CallslipError as error:
        return problems.response(await _error_for_caller(context, error))
    except ClientDisconnect:
        return Response(None, 400)  # The client is gone.
    except Exception as error:
        log.exception("%s %s", context.route.method, context.route.path)  # The pattern has no ids and no tokens.
        return problems.response(error)


async def _error_for_caller(context: RequestContext, error: CallslipError) -> CallslipError:
    """Return an error without what the caller may not read. An unknown caller learns only that it is unknown."""
    try:
        if context.route.verb is not None:
            await context.require_authenticated()
    except CallslipError as refusal:
        return refusal
    await hide_unreadable(error, context.access)
    return error


async def _not_found(server: Server, page: NotFoundPage | None, request: Request, error: Exception) -> Response:
    server.metrics.count_request("", "", 404)  # An unknown path must not become a label.
    response = page(request) if page is not None and accepts_html(request) else None
    if response is not None:
        return await _compress(request, response)
    return problems.problem_response(404, "not-found", f"no route {request.scope['path']}")


async def _method_not_allowed(server: Server, request: Request, error: Exception) -> Response:
    server.metrics.count_request("", "", 405)
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = ", ".join(sorted({method for route in routes for method in route.methods}))
    detail = f"{request.method} is not allowed at {request.scope['path']}; allowed: {allowed}"
    return problems.problem_response(405, "method", detail, {"allow": allowed})


async def _server_error(server: Server, request: Request, error: Exception) -> ASGIApp:
    """Return a problem for an error outside an endpoint. Starlette raises it again, for the log."""
    return _counted(server, "", "", problems.response(error))


# Compression. Streams and blobs are sent uncompressed.


async def _compress(request: Request, response: Response) -> Response:
    """Compress a response if the client accepts it and it is large enough."""
    if isinstance(response, sse.Stream):
        return response
    body = bytes(getattr(response, "body", b""))
    if response.status_code != 304 and not COMPRESSIBLE.match(response.headers.get("content-type", "")):
        return response
    response.headers.add_vary_header("Accept-Encoding")
    is_excluded = response.status_code in (206, 304) or "content-encoding" in response.headers
    if len(body) <= MIN_GZIP_BYTES or is_excluded or not accepts_gzip(request):
        return response
    pack = partial(gzip.compress, body, GZIP_LEVEL, mtime=0)
    response.body = await asyncio.to_thread(pack) if len(body) >= MIN_THREAD_BYTES else pack()
    response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))
    etag = response.headers.get("etag", "")
    if etag.startswith('"'):
        response.headers["etag"] = f"W/{etag}"  # Other bytes with the same meaning.
    return response
