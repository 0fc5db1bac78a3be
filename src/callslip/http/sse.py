"""Server-sent events: frames, and the response that writes them. Raw ASGI, since a reader costs next to nothing so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callslip.errors import CallslipError
from callslip.http import problems
from callslip.http.limits import Limits

Write = Callable[[bytes], Awaitable[None]]

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
HEARTBEAT = b":\n\n"
CHUNK_BYTES = 256 * 2**10

encode = msgspec.json.encode


def frame(data: bytes, *, event: str = "", id: str = "") -> bytes:
    """One server-sent event. `data` is JSON, and has no line break in it."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + data + b"\n\n"


def retry(milliseconds: int) -> bytes:
    """When to come back after a lost connection."""
    return b"retry: %d\n\n" % milliseconds


class Stream(Response):
    """A response that a piece of work writes, until it is done or the reader has gone.

    It begins with the first piece: work that fails before is answered by a problem. Large pieces are cut, so that a
    reader which takes nothing holds up a little of one and not all of it; if it takes nothing for long it is cut off.
    As long as it lasts `still` is asked now and then, and raises when the reader may not read any more.
    """

    def __init__(
        self,
        work: Callable[[Write], Awaitable[None]],
        headers: Mapping[str, str],
        limits: Limits,
        still: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(None, 200, dict(headers))
        del self.headers["content-length"]
        self._work = work
        self._stall = limits.stall
        self._every = limits.heartbeat
        self._still = still

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # What it would write has no end, and nobody would see it.
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        writing = asyncio.current_task()
        assert writing is not None
        begun = gone = False
        clock = asyncio.get_running_loop().time
        asked = clock()

        async def watch() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            writing.cancel()

        async def write(data: bytes) -> None:
            nonlocal begun, asked
            if clock() - asked >= self._every:
                asked = clock()
                await self._still()
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for start in range(0, len(data), CHUNK_BYTES):
                async with asyncio.timeout(self._stall):
                    await send(
                        {"type": "http.response.body", "body": data[start : start + CHUNK_BYTES], "more_body": True}
                    )

        watching = asyncio.ensure_future(watch())
        try:
            await self._work(write)
            await write(b"")
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not gone or writing.uncancel():
                raise
        except TimeoutError:
            pass  # It takes nothing: the connection breaks.
        except CallslipError as error:
            if not begun:
                await problems.response(error)(scope, receive, send)
            else:  # It fell behind, or what it followed is no more: whoever comes back is told.
                await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()
