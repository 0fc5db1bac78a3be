"""The MCP sessions that everybody has open. Of too many of one's own, the one that was not used for longest ends.

A client that forgets to end its sessions, or has bad intentions, would else keep everybody else out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "mcp-session-id"
Sessions = dict[str, None]


class Opened:
    """An app that opens sessions and is asked to end them, by the protocol. `most` is how many anybody may have."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._whose: dict[str, Sessions] = {}

    async def __call__(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        mine, used, made = self._whose.setdefault(owner, {}), Headers(scope=scope).get(HEADER, ""), ""

        async def noting(message: Message) -> None:
            nonlocal made
            if message["type"] == "http.response.start" and message["status"] < 400:
                made = Headers(raw=message["headers"]).get(HEADER, "") if not used else ""
            await send(message)

        if mine.pop(used, 0) is None and scope["method"] != "DELETE":
            mine[used] = None  # The last one now.
        try:
            await self._app(scope, receive, noting)
        finally:
            if made:
                mine[made] = None
        while len(mine) > self._most:
            await self._end(mine, scope)

    async def _end(self, mine: Sessions, scope: Scope) -> None:
        """End the oldest, as its client would have. Whoever still uses it is told that it is gone, and begins anew."""
        oldest = next(iter(mine))
        del mine[oldest]
        await self._app(
            {**scope, "method": "DELETE", "headers": [(HEADER.encode(), oldest.encode())]}, _empty, _unheard
        )


async def _empty() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(message: Message) -> None:
    pass
