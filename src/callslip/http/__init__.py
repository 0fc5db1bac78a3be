"""The HTTP edge: REST, server-sent events, the page. `asgi` makes it an app that any ASGI host can mount."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from callslip.http import (
    approvals,
    blobs,
    calls,
    commands,
    health,
    ingest,
    openapi,
    page,
    page_stream,
    prompts,
    sessions,
)
from callslip.http.access import Authorizer, CallbackAuthorizer, TokenAuthorizer
from callslip.http.app import build
from callslip.http.browser_guard import BrowserGuard
from callslip.http.ingest import Posts
from callslip.http.limits import Limits
from callslip.http.origins import Hosts
from callslip.http.prompts import Answers, Prompts
from callslip.http.request import Route, Server
from callslip.http.streams import Hub
from callslip.mcp import http_app

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from callslip.api.ledger import Ledger

ROUTES: tuple[Route, ...] = (
    *sessions.ROUTES,
    *prompts.ROUTES,
    *ingest.ROUTES,
    *page_stream.ROUTES,
    *commands.ROUTES,
    *calls.ROUTES,
    *approvals.ROUTES,
    *blobs.ROUTES,
    *openapi.ROUTES,
    *health.ROUTES,
    *page.ROUTES,
)


def server(ledger: Ledger, gate: Authorizer, limits: Limits | None = None, answers: Answers | None = None) -> Server:
    """What the requests of one server share. Nothing runs before the first of them."""
    limits = limits or Limits()
    return Server(ledger, gate, limits, Hub(ledger, limits), Posts(ledger), Prompts(ledger, answers))


def asgi(
    ledger: Ledger,
    *,
    authorize: Callable[..., Any],
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    answers: Answers | None = None,
) -> ASGIApp:
    """An app to be mounted under any prefix of a host that knows its own users.

    `authorize(request, session, verb)` gives whoever asks, or nothing. `session` is the session meant, with `name`,
    `owner` and `labels`, or None for lists, which are then filtered by asking for each of their sessions. For the
    metrics, which count all sessions, it is one without a name whose owner is `*`. `answers(ledger, session, text)`
    answers what people type into the page; see `callslip.http.prompts`.
    """
    return BrowserGuard(
        app(server(ledger, CallbackAuthorizer(authorize), limits, answers)), allow_origins=allow_origins
    )


def app(made: Server, routes: Sequence[Route] = ()) -> ASGIApp:
    """All of it, behind the server's gate, with further routes where somebody has them."""
    return build(made, (*ROUTES, *routes), {"/mcp": http_app(made)}, page.nowhere)


def standalone(
    ledger: Ledger,
    token: str,
    *,
    host: str = "127.0.0.1",
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    answers: Answers | None = None,
    routes: Sequence[Route] = (),
) -> ASGIApp:
    """The app that `callslip serve` runs: behind a token, at names that it knows as its own.

    `answers(ledger, session, text)` answers what people type into the page; see `callslip.http.prompts`. `routes` are
    further ones, behind the same gate.
    """
    cookies = "*" not in allow_origins
    gate = TokenAuthorizer(ledger.log.store, token, cookies=cookies)
    made = app(server(ledger, gate, limits, answers), routes)
    return BrowserGuard(made, hosts=Hosts(host, allow_hosts), allow_origins=allow_origins, cookies=cookies, login=gate)
