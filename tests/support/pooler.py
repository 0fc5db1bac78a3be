"""A pooler for PostgreSQL that gives each transaction another connection of the server, as PgBouncer does.

It forwards the messages of the protocol and looks only at those that begin and end a transaction. Between transactions
a client has no connection, so statements, settings and listeners that belong to one do not last. Like PgBouncer it
drops notifications, and refuses parameters of a session in the first message. It knows no passwords and no encryption.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections import deque
from typing import NamedTuple, Self

TIMEOUT_S = 30.0
CANCEL_REQUEST, SSL_REQUEST, GSS_REQUEST = 80877102, 80877103, 80877104
ALLOWED_PARAMETERS = {"user", "database", "client_encoding", "application_name"}
ASKS_FOR_READY = (b"Q", b"S", b"F")
"""The messages of a client that the server answers with ReadyForQuery: query, sync and function call."""
FIRST_PROCESS_ID = 2**30
"""The process ids that clients get begin here: no process of a server has one."""


class Message(NamedTuple):
    """A message of the protocol: its type, and its bytes with type and length."""

    kind: bytes
    data: bytes

    @property
    def body(self) -> bytes:
        return self.data[5:]


class Link:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting: list[bytes] = []
        """The parameters that the server has told."""
        self.key = b""
        """What a request to cancel must contain."""
        self.clients: set[int] = set()
        """The clients that have used it."""

    async def start(self, startup: bytes) -> None:
        """Send the first message of a client, and read until the server is ready."""
        self.writer.write(startup)
        while (message := await read_message(self.reader)).kind != b"Z":
            if message.kind == b"E":
                raise ConnectionError(message.body.decode(errors="replace"))
            if message.kind == b"S":
                self.greeting.append(message.data)
            elif message.kind == b"K":
                self.key = message.body

    def close(self) -> None:
        self.writer.close()


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Read one message with a type."""
    head = await reader.readexactly(5)
    return Message(head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4))


def error_message(code: str, text: str) -> bytes:
    """Return a fatal error of the protocol."""
    body = f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()
    return b"E" + struct.pack("!i", len(body) + 4) + body


class Pooler:
    """Forwards a port of its own to the port of a server, through at most `size` connections for each database.

    A free connection is the one that was not used for the longest time, so a client rarely gets the same one twice.
    """

    def __init__(self, port: int, size: int = 8, host: str = "127.0.0.1") -> None:
        self.host = host
        self.target_port = port
        self.port = 0
        """The port that clients connect to."""
        self.size = size
        self.clients = 0
        """How many clients there were."""
        self.transactions = 0
        """How many transactions were forwarded."""
        self.links: list[Link] = []
        """All connections to the server so far."""
        self.cancelled = 0
        """How many requests to cancel were forwarded."""
        self._free: dict[bytes, deque[Link]] = {}
        self._counts: dict[bytes, int] = {}
        self._returned: dict[bytes, asyncio.Condition] = {}
        self._used: dict[int, Link] = {}
        self._ids = itertools.count(FIRST_PROCESS_ID)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        """Listen on a free port."""
        self._thread.start()
        start = asyncio.start_server(self._accept, self.host, 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(TIMEOUT_S)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    async def _shut_down(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        for link in self.links:
            link.writer.transport.abort()
        if others:
            await asyncio.wait(others, timeout=TIMEOUT_S)

    # Clients

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self, next(self._ids), reader, writer)
        try:
            await client.run()
        except (OSError, EOFError, asyncio.CancelledError):  # It has gone, or the pooler is closing.
            pass
        finally:
            client.close()
            writer.transport.abort()

    async def cancel(self, client: int) -> None:
        """Ask the server to stop what it does for a client now."""
        link = self._used.get(client)
        if link is not None:
            _, writer = await asyncio.open_connection(self.host, self.target_port)
            writer.write(struct.pack("!ii", 16, CANCEL_REQUEST) + link.key)
            await writer.drain()
            writer.close()
            self.cancelled += 1

    # Connections to the server

    async def take(self, startup: bytes, client: int) -> Link:
        """Return a connection that no other client uses; wait for one if all are in use."""
        free = self._free.setdefault(startup, deque())
        returned = self._returned.setdefault(startup, asyncio.Condition())
        async with returned:
            while not free and self._counts.get(startup, 0) >= self.size:
                await returned.wait()
            is_new = self._counts.get(startup, 0) < self.size
            if is_new:
                self._counts[startup] = self._counts.get(startup, 0) + 1
            link = None if is_new else free.popleft()
        if link is None:
            try:
                link = Link(*await asyncio.open_connection(self.host, self.target_port))
                self.links.append(link)
                await link.start(startup)
            except BaseException:
                self._counts[startup] -= 1
                raise
        link.clients.add(client)
        self._used[client] = link
        return link

    async def give_back(self, startup: bytes, client: int, link: Link, *, is_usable: bool) -> None:
        """Let other clients use a connection, or close it."""
        self._used.pop(client, None)
        async with self._returned[startup]:
            if is_usable:
                self._free[startup].append(link)
            else:
                link.close()
                self._counts[startup] -= 1
            self._returned[startup].notify()


class _Client:
    """A connection of a client. It has one of the server from the first message of a transaction to the last."""

    def __init__(
        self, pooler: Pooler, identity: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pooler = pooler
        self._id = identity
        self._reader = reader
        self._writer = writer
        self._startup = b""
        self._link: Link | None = None
        self._answers: asyncio.Task[None] | None = None
        self._awaited = 0
        """How many ReadyForQuery the server will still send."""
        self._is_between = True
        """Whether the last message of the client asks for ReadyForQuery."""

    async def run(self) -> None:
        """Forward messages until the client leaves."""
        if not await self._start():
            return
        try:
            while (message := await read_message(self._reader)).kind != b"X":
                if self._link is None:
                    self._link = await self._pooler.take(self._startup, self._id)
                    self._answers = asyncio.create_task(self._forward_answers(self._link))
                self._is_between = message.kind in ASKS_FOR_READY
                self._awaited += self._is_between
                self._link.writer.write(message.data)
                await self._link.writer.drain()
        finally:
            await self._drop_link()

    async def _start(self) -> bool:
        """Answer the first message; return whether a session begins."""
        while True:
            size, code = struct.unpack("!ii", await self._reader.readexactly(8))
            rest = await self._reader.readexactly(size - 8)
            if code in (SSL_REQUEST, GSS_REQUEST):
                self._writer.write(b"N")
            elif code == CANCEL_REQUEST:
                await self._pooler.cancel(struct.unpack("!i", rest[:4])[0])
                return False
            else:
                break
        names = set(rest.decode().split("\0")[:-2:2])
        if unknown := names - ALLOWED_PARAMETERS:
            self._writer.write(error_message("08P01", f"unsupported startup parameter: {min(unknown)}"))
            await self._writer.drain()
            return False
        self._pooler.clients += 1
        self._startup = struct.pack("!ii", size, code) + rest
        try:
            link = await self._pooler.take(self._startup, self._id)
        except OSError as error:
            self._writer.write(error_message("08006", str(error)))
            await self._writer.drain()
            return False
        key = struct.pack("!ciii", b"K", 12, self._id, 0)
        ready = struct.pack("!cic", b"Z", 5, b"I")
        self._writer.write(struct.pack("!cii", b"R", 8, 0) + b"".join(link.greeting) + key + ready)
        await self._pooler.give_back(self._startup, self._id, link, is_usable=True)
        await self._writer.drain()
        return True

    async def _forward_answers(self, link: Link) -> None:
        """Forward what the server sends, and give the connection back at the end of a transaction."""
        try:
            while True:
                message = await read_message(link.reader)
                if message.kind == b"A":  # A notification, which belongs to an earlier client.
                    continue
                self._writer.write(message.data)
                if message.kind == b"Z":
                    self._awaited -= 1
                    if message.body == b"I" and not self._awaited and self._is_between:
                        self._pooler.transactions += 1
                        self._link = None
                        await self._pooler.give_back(self._startup, self._id, link, is_usable=True)
                        await self._writer.drain()
                        return
                await self._writer.drain()
        except (OSError, EOFError):
            self._writer.transport.abort()  # The client sees that its transaction is lost.

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            if self._answers is not None:
                self._answers.cancel()
            await self._pooler.give_back(self._startup, self._id, link, is_usable=False)

    def close(self) -> None:
        """Stop forwarding."""
        if self._answers is not None and self._link is not None:
            self._answers.cancel()
