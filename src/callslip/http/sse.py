"""Server-sent events: frames, and the response that writes them. Raw ASGI, so that a reader costs little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callslip.errors import CallslipError
from callslip.http import problems
from callslip.settings import Limits

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
    """Return a server-sent event. `data` is JSON without line breaks."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + data + b"\n\n"


def retry(milliseconds: int) -> bytes:
    """Return the frame that sets the delay before a reader reconnects."""
    return b"retry: %d\n\n" % milliseconds


class Stream(Response):
    """A response that `work` writes until it returns or the reader disconnects.

    It starts with the first write: if `work` fails before, the response is a problem. Large writes are split, so that
    a stalled reader holds only a part in memory; it is disconnected after `limits.stall`. `check_access` is called
    every `limits.heartbeat`, and raises when the reader has lost its rights.
    """

    def __init__(
        self,
        work: Callable[[Write], Awaitable[None]],
        headers: Mapping[str, str],
        limits: Limits,
        check_access: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(None, 200, dict(headers))
        del self.headers["content-length"]
        self.work = work
        self._stall_s = limits.stall
        self._check_interval_s = limits.heartbeat
        self._check_access = check_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # The body would have no end.
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        writer = asyncio.current_task()
        assert writer is not None
        has_started = is_gone = False
        clock = asyncio.get_running_loop().time
        checked_at = clock()

        async def watch() -> None:
            nonlocal is_gone
            while (await receive())["type"] != "http.disconnect":
                pass
            is_gone = True
            writer.cancel()

        async def write(data: bytes) -> None:
            nonlocal has_started, checked_at
            if clock() - checked_at >= self._check_interval_s:
                checked_at = clock()
                await self._check_access()
            if not has_started:
                has_started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for start in range(0, len(data), CHUNK_BYTES):
                async with asyncio.timeout(self._stall_s):
                    await send(
                        {"type": "http.response.body", "body": data[start : start + CHUNK_BYTES], "more_body": True}
                    )

        watcher = asyncio.ensure_future(watch())
        try:
            await self.work(write)
            await write(b"")
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not is_gone or writer.uncancel():
                raise
        except TimeoutError:
            pass  # The reader stalls: the connection is closed without an end.
        except CallslipError as error:
            if not has_started:
                await problems.response(error)(scope, receive, send)
            else:  # The reader fell behind, or its session was deleted; it learns why when it reconnects.
                await send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()
