"""A real server on a real socket, in the test's own loop, and a client that keeps every byte and header it is given.

What blocks the loop (a subprocess that asks the server) must run in a thread: `await asyncio.to_thread(...)`.
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
"""How long anything may take before a test gives up; nothing takes so long unless it hangs."""


class UvicornServer(uvicorn.Server):
    """Uvicorn without signals, which belong to pytest, and without its ticking, so that it stops at once."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False, date_header=False)
        )
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        await self.stopping.wait()

    async def stop(self, serving: asyncio.Task[None]) -> None:
        """Stop accepting connections, then close the open ones, which ends the streams."""
        loop = asyncio.get_running_loop()
        for listening in [listening for server in self.servers for listening in server.sockets]:
            loop.remove_reader(listening)  # Closed at once, asyncio would leave who was let in just now half open.
        await self._break()
        if self.server_state.tasks:
            await asyncio.wait(list(self.server_state.tasks), timeout=1)
        for task in list(self.server_state.tasks):
            task.cancel()
        self.should_exit = self.force_exit = True
        self.stopping.set()
        async with asyncio.timeout(TIMEOUT_S):
            await serving

    async def _break(self) -> None:
        for _ in range(3):  # Who was let in just now is known to the loop first, to the server later.
            await asyncio.sleep(0)
            for connection in list(self.server_state.connections):
                connection.transport.abort()


def _listen(port: int) -> socket.socket:
    """As an event loop makes it: only of one that says TCP does asyncio turn off the waiting for more to send."""
    created = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    created.bind(("127.0.0.1", port))
    created.listen(1024)
    return created


@contextlib.asynccontextmanager
async def running(app: Any, port: int = 0) -> AsyncGenerator[str]:
    """Any ASGI app, served: the URL it stands at, without a slash at its end."""
    with _listen(port) as listening:
        server = UvicornServer(app)
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
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
    """What came back. Header names are in lower case."""

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
    """An answer that is still coming."""

    def __init__(self, status: int, headers: list[tuple[str, str]], pieces: AsyncGenerator[bytes]) -> None:
        super().__init__(status, headers)
        self._pieces = pieces

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, to its end."""
        async for piece in self._pieces:
            self.body += piece
            yield piece

    async def until(self, wanted: bytes) -> bytes:
        """What has come so far, once this has come."""
        async with asyncio.timeout(TIMEOUT_S):
            while wanted not in self.body:
                self.body += await anext(self._pieces)
        return self.body

    async def frames(self) -> AsyncIterator[dict[str, str]]:
        """Server-sent events as they arrive: their fields by name; comments are left out."""
        waiting = self.body
        while True:
            block, found, waiting = waiting.partition(b"\n\n")
            if not found:
                piece = await anext(self._pieces, b"")
                if not piece:
                    return
                self.body += piece
                waiting = block + piece
                continue
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if ": " in line and line[0] != ":")
            if fields:
                yield fields


@contextlib.asynccontextmanager
async def requesting(
    url: str, method: str = "GET", *, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> AsyncGenerator[StreamedResponse]:
    """One request on a connection of its own; its answer as soon as its headers are there."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    connection = h11.Connection(h11.CLIENT)
    value = {
        "host": parts.netloc,
        "connection": "close",
        **{name.lower(): text for name, text in (headers or {}).items()},
    }
    if body is not None and "transfer-encoding" not in value:
        value.setdefault("content-length", str(len(body)))
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        fields = [(name, text.encode("latin-1")) for name, text in value.items()]
        sent = connection.send(h11.Request(method=method, target=target, headers=fields))
        sent = (sent or b"") + (connection.send(h11.Data(body)) or b"" if body else b"")
        writer.write(sent + (connection.send(h11.EndOfMessage()) or b""))
        with contextlib.suppress(ConnectionError):  # It may have answered before it took all of it.
            await writer.drain()
        pieces = _events(connection, reader)
        async with asyncio.timeout(TIMEOUT_S), contextlib.aclosing(pieces):
            start = await anext(pieces)
            assert isinstance(start, h11.Response)
        response = [(name.decode(), text.decode("latin-1")) for name, text in start.headers]
        async with contextlib.aclosing(_body(connection, reader)) as coming:
            yield StreamedResponse(start.status_code, response, coming)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()  # Else it may outlive the loop, and complain in some later test.


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
    """One request and its whole answer. `value` is sent as JSON."""
    values = dict(headers or {})
    if value is not None:
        body = json.dumps(value).encode()
        values.setdefault("content-type", "application/json")
    async with asyncio.timeout(TIMEOUT_S + 60), requesting(url, method, headers=values, body=body) as reply:
        async for _ in reply.pieces():
            pass
        return reply
