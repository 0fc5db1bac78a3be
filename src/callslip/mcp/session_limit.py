"""Limit the MCP sessions of each user. When a user has too many, the least recently used one ends.

Without this limit, a client that does not end its sessions would use up the server's and keep other users out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_HEADER = "mcp-session-id"
Sessions = dict[str, None]
"""Session ids, the least recently used first."""


class SessionLimit:
    """Wrap an app that opens MCP sessions, and end those of a user beyond `limit`."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._sessions: dict[str, Sessions] = {}

    async def __call__(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        sessions = self._sessions.setdefault(user, {})
        used, opened = Headers(scope=scope).get(SESSION_HEADER, ""), ""

        async def send_and_note(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                opened = Headers(raw=message["headers"]).get(SESSION_HEADER, "") if not used else ""
            await send(message)

        if sessions.pop(used, 0) is None and scope["method"] != "DELETE":
            sessions[used] = None  # Now the most recently used.
        try:
            await self._app(scope, receive, send_and_note)
        finally:
            if opened:
                sessions[opened] = None
        while len(sessions) > self._limit:
            await self._end_oldest(sessions, scope)

    async def _end_oldest(self, sessions: Sessions, scope: Scope) -> None:
        """End the least recently used session with a DELETE request. A client that uses it gets 404 and reopens."""
        oldest = next(iter(sessions))
        del sessions[oldest]
        headers = [(SESSION_HEADER.encode(), oldest.encode())]
        await self._app({**scope, "method": "DELETE", "headers": headers}, _receive_nothing, _ignore)


async def _receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignore(message: Message) -> None:
    pass
