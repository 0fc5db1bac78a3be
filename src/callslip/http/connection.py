"""Abort the connection of a request: to close it would wait until the client has read everything that was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ABORT = "callslip.abort"
"""The key of the function in the state of a request's scope."""


def abort(scope: Scope) -> None:
    """Disconnect the client of a request at once. Under a server that offers no way to do so, do nothing."""
    abort_transport = scope.get("state", {}).get(ABORT)
    if abort_transport is not None:
        abort_transport()


def find_abort(scope: Scope, send: Send) -> None:
    """Enable `abort` for a request that uvicorn passes on directly: its `send` is a method then."""
    abort_transport: Any = getattr(getattr(getattr(send, "__self__", None), "transport", None), "abort", None)
    if abort_transport is not None:
        scope.setdefault("state", {}).setdefault(ABORT, abort_transport)


def with_abort(app: ASGIApp) -> ASGIApp:
    """Return an app whose requests can be aborted if uvicorn runs it."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        find_abort(scope, send)
        await app(scope, receive, send)

    return run
