"""Server-sent events: frames, and the response that writes them. Raw ASGI, so that a reader costs little."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callslip.errors import CallslipError
from callslip.http import connection, problems
from callslip.http.held_data import HeldData
from callslip.settings import Limits

Write = Callable[[bytes], Awaitable[None]]
CheckAccess = Callable[[], Awaitable[None]]

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
HEARTBEAT = b":\n\n"
FRAME_END = b"\n\n"
CHUNK_BYTES = 128 * 2**10
ABORT_S = 1.0
"""How long to wait until the server knows that a connection was aborted."""

encode = msgspec.json.encode


def frame(data: bytes, *, event: str = "", id: str = "") -> bytes:
    """Return a server-sent event. `data` is JSON without line breaks."""
    return frame_start(event=event, id=id) + data + FRAME_END


def frame_start(*, event: str = "", id: str = "") -> bytes:
    """Return a server-sent event up to its data. `FRAME_END` follows the data."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: "


def retry(milliseconds: int) -> bytes:
    """Return the frame that sets the delay before a reader reconnects."""
    return b"retry: %d\n\n" % milliseconds


class Writer:
    """Write to one reader. Large data is sent in pieces, and a reader that accepts none of them is disconnected."""

    def __init__(
        self, send: Send, headers: Any, limits: Limits, held: HeldData, check_access: CheckAccess, status: int = 200
    ) -> None:
        self.has_started = False
        self._status = status
        self.progress_at = time.monotonic()
        self._send = send
        self._headers = headers
        self._limits = limits
        self._held = held
        self._check_access = check_access
        self._checked_at = self.progress_at
        self._timeout: asyncio.Timeout | None = None

    async def __call__(self, data: bytes) -> None:
        now = time.monotonic()
        if now - self._checked_at >= self._limits.heartbeat:
            self._checked_at = now
            await self._check_access()
        if len(data) <= CHUNK_BYTES:
            await self._send_body(data)
            return
        with self.hold(data, len(data)):
            for start in range(0, len(data), CHUNK_BYTES):
                await self._send_body(data[start : start + CHUNK_BYTES])

    async def end(self) -> None:
        """End the response."""
        await self._send_body(b"", more=False)

    async def _send_body(self, body: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._limits.stall) as self._timeout:
                if not self.has_started:
                    self.has_started = True
                    await self._send({"type": "http.response.start", "status": self._status, "headers": self._headers})
                if body or not more:
                    await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._timeout = None
        self.progress_at = time.monotonic()

    @contextlib.contextmanager
    def hold(self, data: Any, size: int) -> Generator[None]:
        """Hold an object while the block runs. Raise TooManyReadersError if it is large and there is no room for it."""
        if size <= self._limits.reader_bytes:
            yield
            return
        self._held.take(data, size, self)
        try:
            yield
        finally:
            self._held.release(data, self)

    def cut(self) -> bool:
        """Disconnect the reader if it is waiting to accept data, and return whether it was."""
        if self._timeout is None:
            return False
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
        return True


Work = Callable[[Writer], Awaitable[None]]


class LargeResponse:
    """A complete response that is sent in pieces, and counts as held data until the client has accepted it."""

    def __init__(self, response: Response, limits: Limits, held: HeldData) -> None:
        self._response = response
        self._limits = limits
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def check_access() -> None:
            """Do nothing: the response is complete."""

        response = self._response
        write = Writer(send, response.raw_headers, self._limits, self._held, check_access, response.status_code)
        try:
            await write(bytes(response.body))
            await write.end()
        except CallslipError as error:
            if write.has_started:
                raise
            await problems.response(error)(scope, receive, send)
        except TimeoutError:  # The client stalls. To close the connection would wait until it has read the rest.
            if connection.abort(scope):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ABORT_S):
                        while (await receive())["type"] != "http.disconnect":
                            pass


class Stream(Response):
    """A response that `work` writes until it returns or the reader disconnects.

    It starts with the first write: if `work` fails before, the response is a problem. A reader that accepts nothing for
    `limits.stall` is disconnected. `check_access` is called every `limits.heartbeat`, and raises when the reader has
    lost its rights.
    """

    def __init__(
        self, work: Work, headers: Mapping[str, str], limits: Limits, held: HeldData, check_access: CheckAccess
    ) -> None:
        super().__init__(None, 200, dict(headers))
        del self.headers["content-length"]
        self.work = work
        self._limits = limits
        self._held = held
        self._check_access = check_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # The body would have no end.
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        task = asyncio.current_task()
        assert task is not None
        is_gone = has_ended = False
        write = Writer(send, self.raw_headers, self._limits, self._held, self._check_access)

        async def watch() -> None:
            nonlocal is_gone
            while (await receive())["type"] != "http.disconnect":
                pass
            is_gone = True
            if not has_ended:
                task.cancel()

        watcher = asyncio.ensure_future(watch())
        try:
            await self._run(write, scope, receive, send)
        except asyncio.CancelledError:
            if not is_gone or task.uncancel():
                raise
        except TimeoutError:  # The reader stalls. To close the connection would wait until it has read the rest.
            has_ended = True
            if connection.abort(scope):
                await asyncio.wait([watcher], timeout=ABORT_S)
        finally:
            watcher.cancel()

    async def _run(self, write: Writer, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.work(write)
        except CallslipError as error:
            if not write.has_started:
                return await problems.response(error)(scope, receive, send)
            # The reader fell behind, or its session was deleted; it learns why when it reconnects.
        await write.end()
