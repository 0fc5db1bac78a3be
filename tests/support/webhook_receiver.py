"""A receiver of webhooks on a socket: it keeps what it gets, and answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def answer(status: int, *headers: str) -> bytes:
    """Return an answer without a body."""
    lines = [f"HTTP/1.1 {status} Something", "content-length: 0", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


class Delivery(NamedTuple):
    """A request that the receiver has got."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebhookReceiver:
    """What arrived at a receiver, in order. `answers` are used up one by one, then every request gets `OK`.

    An answer is bytes, or None to answer nothing until the test ends.
    """

    def __init__(self) -> None:
        self.port = 0
        self.deliveries: list[Delivery] = []
        self.connections = 0
        self.answers: list[bytes | None] = []
        self._arrived = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is checked after each delivery."""
        async with asyncio.timeout(60):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    async def until_count(self, count: int) -> list[Delivery]:
        """Return the deliveries once there are so many."""
        await self.until(lambda: len(self.deliveries) >= count)
        return self.deliveries

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            line, *lines = head.split("\r\n")
            headers = dict(part.lower().split(": ", 1) if ":" in part else (part, "") for part in lines if part)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.deliveries.append(Delivery(line, headers, body))
            reply = self.answers.pop(0) if self.answers else OK
            self._arrived.set()
            if reply is None:
                await reader.read()  # Until the sender gives up.
            else:
                writer.write(reply)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def receiving(
    tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[WebhookReceiver]:
    """Run a receiver, by default on a free port."""
    receiver = WebhookReceiver()
    server = await asyncio.start_server(receiver.serve, host, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
