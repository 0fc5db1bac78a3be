"""The HTTP server: REST, server-sent events and the web UI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from callslip.http import (
    approvals,
    blobs,
    calls,
    commands,
    find,
    health,
    ingest,
    openapi,
    page,
    page_stream,
    prompts,
    rights,
    rules,
    search,
    sessions,
    sign_in,
    usage,
)
from callslip.http.access import Principal as Principal
from callslip.http.access import TokenAuthorizer
from callslip.http.app import build
from callslip.http.browser_guard import BrowserGuard
from callslip.http.origins import Hosts
from callslip.http.prompts import Answers
from callslip.http.request import Route
from callslip.http.server import Server
from callslip.settings import Limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from callslip.api.ledger import LocalLedger

ROUTES: tuple[Route, ...] = (
    *sessions.ROUTES,
    *prompts.ROUTES,
    *ingest.ROUTES,
    *page_stream.ROUTES,
    *commands.ROUTES,
    *calls.ROUTES,
    *approvals.ROUTES,
    *rules.ROUTES,
    *rights.ROUTES,
    *find.ROUTES,
    *usage.ROUTES,
    *search.ROUTES,
    *blobs.ROUTES,
    *sign_in.ROUTES,
    *openapi.ROUTES,
    *health.ROUTES,
    *page.ROUTES,
)

McpApp = Callable[[Server], "ASGIApp"]
"""Return the app for `/mcp` of a server: `callslip.mcp.http_app`."""


def app(server: Server, routes: Sequence[Route] = (), mcp_app: McpApp | None = None) -> ASGIApp:
    """Return the app of a server, with further `routes` and an app for `/mcp`."""
    apps = {"/mcp": mcp_app(server)} if mcp_app is not None else {}
    return build(server, (*ROUTES, *routes), apps, page.not_found_page)


def standalone(
    ledger: LocalLedger,
    token: str,
    *,
    host: str = "127.0.0.1",
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    answers: Answers | None = None,
    routes: Sequence[Route] = (),
    mcp_app: McpApp | None = None,
) -> ASGIApp:
    """Return the app that `callslip serve` runs: it requires a token, and answers only to its own host names.

    `answers(ledger, session, text)` answers prompts from the web UI; see `callslip.http.prompts`. `routes` are further
    routes behind the same token.
    """
    cookies = "*" not in allow_origins
    authorizer = TokenAuthorizer(ledger.log, token, cookies=cookies)
    inner = app(Server(ledger, authorizer, limits, answers), routes, mcp_app)
    return BrowserGuard(
        inner, hosts=Hosts(host, allow_hosts), allow_origins=allow_origins, cookies=cookies, login=authorizer
    )
