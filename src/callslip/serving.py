"""The whole server as an app for other ASGI hosts: HTTP, the web UI, and MCP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from callslip import http
from callslip.http.access import CallbackAuthorizer
from callslip.http.browser_guard import BrowserGuard
from callslip.mcp import http_app

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from callslip.api.ledger import LocalLedger
    from callslip.http.prompts import Answers
    from callslip.settings import Limits


def asgi(
    ledger: LocalLedger,
    *,
    authorize: Callable[..., Any],
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    answers: Answers | None = None,
) -> ASGIApp:
    """Return an app to be mounted under any prefix of a host that authenticates its own users.

    `authorize(request, session, verb)` returns the user, or nothing to refuse. `session` has `name`, `owner` and
    `labels`; it is None for lists, whose sessions are then checked one by one. For the metrics, which count all
    sessions, it has no name and the owner `*`. To allow a caller to post labels, or to tell callers with the same name
    apart, it returns a `callslip.http.Principal`. `answers(ledger, session, text)` answers prompts from the web UI; see
    `callslip.http.prompts`.
    """
    server = http.Server(ledger, CallbackAuthorizer(authorize), limits, answers)
    return BrowserGuard(http.app(server, mcp_app=http_app), allow_origins=allow_origins)
