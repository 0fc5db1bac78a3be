"""Run a real server on a socket in the test's event loop, with a client that keeps every received byte and header.

Code that blocks the loop, such as waiting for a subprocess, must run in a thread: `await asyncio.to_thread(...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn

from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.http.access import AllowAll, Authorizer
from callslip.http.app import build
from callslip.settings import Limits

TIMEOUT_S = 20.0
"""Only something that hangs takes this long."""


class UvicornServer(uvicorn.Server):
    """Uvicorn without signal handlers, which pytest has, and without periodic ticks, so that it stops immediately."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False, date_header=False)
        )
        self.stop_requested = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        await self.stop_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners, without the tenth of a second that Uvicorn waits: `stop` has ended all connections."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        await self._abort_connections()

    async def stop(self, serving: asyncio.Task[None]) -> None:
        """Stop accepting connections, then close the open ones, which ends the streams."""
        loop = asyncio.get_running_loop()
        for listener in [listener for server in self.servers for listener in server.sockets]:
            loop.remove_reader(listener)  # Closing it now would leave connections that were just accepted half open.
        await self._abort_connections()
        if self.server_state.tasks:
            await asyncio.wait(list(self.server_state.tasks), timeout=1)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self.should_exit = self.force_exit = True
        self.stop_requested.set()
        async with asyncio.timeout(TIMEOUT_S):
            await serving

    async def _abort_connections(self) -> None:
        for _ in range(3):  # The server learns of an accepted connection some loop iterations after the event loop.
            await asyncio.sleep(0)
            for connection in list(self.server_state.connections):
                connection.transport.abort()


def _listen(port: int) -> socket.socket:
    """Return a listening socket. Only if its protocol is TCP does asyncio turn off Nagle's algorithm."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    return listener


@contextlib.asynccontextmanager
async def running(app: Any, port: int = 0) -> AsyncGenerator[str]:
    """Serve an ASGI app, and yield its URL without a trailing slash."""
    with _listen(port) as listener:
        server = UvicornServer(app)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await server.stop(serving)


@contextlib.asynccontextmanager
async def serving_ledger(
    ledger: LocalLedger, *, gate: Authorizer | None = None, limits: Limits | None = None, port: int = 0
) -> AsyncGenerator[str]:
    """Serve a ledger over HTTP; without `gate` every caller may do everything."""
    async with running(build(http.Server(ledger, gate or AllowAll(), limits), http.ROUTES), port) as url:
        yield url


class HttpResponse:
    """A complete response. Header names are in lower case."""

    def __init__(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self.headers = dict(headers)
        self.body = b""

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class StreamedResponse(HttpResponse):
    """A response whose body is still arriving."""

    def __init__(self, status: int, headers: list[tuple[str, str]], pieces: AsyncGenerator[bytes]) -> None:
        super().__init__(status, headers)
        self._pieces = pieces

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body as they arrive."""
        async for piece in self._pieces:
            self.body += piece
            yield piece

    async def until(self, wanted: bytes) -> bytes:
        """Read until the body contains `wanted`, and return the body so far."""
        async with asyncio.timeout(TIMEOUT_S):
            while wanted not in self.body:
                self.body += await anext(self._pieces)
        return self.body

    async def frames(self) -> AsyncIterator[dict[str, str]]:
        """Yield the fields of each server-sent event as it arrives, without comments."""
        buffer = self.body
        while True:
            block, separator, buffer = buffer.partition(b"\n\n")
            if not separator:
                piece = await anext(self._pieces, b"")
                if not piece:
                    return
                self.body += piece
                buffer = block + piece
                continue
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if ": " in line and line[0] != ":")
            if fields:
                yield fields


@contextlib.asynccontextmanager
async def requesting(
    url: str, method: str = "GET", *, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> AsyncGenerator[StreamedResponse]:
    """Send a request on its own connection, and yield the response once its headers have arrived."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    connection = h11.Connection(h11.CLIENT)
    sent_headers = {
        "host": parts.netloc,
        "connection": "close",
        **{name.lower(): text for name, text in (headers or {}).items()},
    }
    if body is not None and "transfer-encoding" not in sent_headers:
        sent_headers.setdefault("content-length", str(len(body)))
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        fields = [(name, text.encode("latin-1")) for name, text in sent_headers.items()]
        data = connection.send(h11.Request(method=method, target=target, headers=fields))
        data = (data or b"") + (connection.send(h11.Data(body)) or b"" if body else b"")
        writer.write(data + (connection.send(h11.EndOfMessage()) or b""))
        with contextlib.suppress(ConnectionError):  # The server may respond before it has read the whole body.
            await writer.drain()
        pieces = _events(connection, reader)
        async with asyncio.timeout(TIMEOUT_S), contextlib.aclosing(pieces):
            start = await anext(pieces)
            assert isinstance(start, h11.Response)
        response_headers = [(name.decode(), text.decode("latin-1")) for name, text in start.headers]
        async with contextlib.aclosing(_body(connection, reader)) as body_pieces:
            yield StreamedResponse(start.status_code, response_headers, body_pieces)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()  # Otherwise its warning could appear in a later test.


async def _events(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncGenerator[Any]:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return
        else:
            yield event


async def _body(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    async for event in _events(connection, reader):
        yield bytes(event.data)


async def fetch(
    url: str,
    method: str = "GET",
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    value: Any = None,
) -> HttpResponse:
    """Send a request and return the complete response. `value` is sent as JSON."""
    all_headers = dict(headers or {})
    if value is not None:
        body = json.dumps(value).encode()
        all_headers.setdefault("content-type", "application/json")
    async with asyncio.timeout(TIMEOUT_S + 60), requesting(url, method, headers=all_headers, body=body) as reply:
        async for _ in reply.pieces():
            pass
        return reply
