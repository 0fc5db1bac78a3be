"""Abort the connection of a request: to close it would wait until the client has read everything that was sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ABORT = "callslip.abort"
"""The key of the function in the state of a request's scope."""


def abort(scope: Scope) -> bool:
    """Disconnect the client of a request at once. Return False if the server offers no way to do so."""
    abort_transport = scope.get("state", {}).get(ABORT)
    if abort_transport is None:
        return False
    abort_transport()
    return True


def find_abort(scope: Scope, send: Send) -> None:
    """Enable `abort` for a request that uvicorn passes on directly: its `send` is a method then."""
    transport: Any = getattr(getattr(send, "__self__", None), "transport", None)
    if hasattr(transport, "abort"):
        scope.setdefault("state", {}).setdefault(ABORT, partial(reset, transport))


def reset(transport: asyncio.Transport) -> None:
    """Close a connection at once, and drop what the client has not accepted, also from the buffer of the kernel."""
    opened = transport.get_extra_info("socket")
    if opened is not None:
        with contextlib.suppress(OSError):  # The connection is closed already, or not TCP.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def with_abort(app: ASGIApp) -> ASGIApp:
    """Return an app whose requests can be aborted if uvicorn runs it."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        find_abort(scope, send)
        await app(scope, receive, send)

    return run
