"""HTTP requests to one server over connections that stay open, on asyncio.

Written by hand on httptools, which the server needs anyway: a heartbeat must not wait for a thread, a claim that is
cancelled must still read a response that is already in transit, and importing a general client costs more time than
most commands of the CLI take.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import httptools
import msgspec

from callslip.client.address import READ_TIMEOUT_S, ServerAddress
from callslip.client.problems import connection_lost, error_from_problem, not_a_server
from callslip.errors import StoreError

CHUNK_BYTES = 65536
LATE_ANSWER_S = 2.0
"""How long an answer that is already on its way is awaited after the caller was cancelled."""

Query = Mapping[str, Any]


class ServerSentEvent(NamedTuple):
    """One event of a stream."""

    event: str
    id: str
    data: bytes


class HttpPool:
    """Requests to one server. Any number may be in progress at once, each on a connection of its own.

    `timeout_s` is how long a request may take, and how long a stream may send nothing.
    """

    def __init__(self, address: ServerAddress, token: str, timeout_s: float = READ_TIMEOUT_S) -> None:
        self.url = address.url
        self.timeout_s = timeout_s
        self.server_time = 0.0
        """The time of the server's last answer by its own clock, in seconds since the epoch."""
        self.has_answered = False
        """Whether the server has answered any request, so that its address is right."""
        self._address = address
        self._token = token
        self._idle: list[_Connection] = []
        self._is_closed = False

    async def get(self, path: str, query: Query | None = None, *, wait: float = 0.0) -> bytes:
        """Return the body at a path; `wait` is how long the server may take before it answers, in seconds."""
        return await self._request(self._encode("GET", path, query), self.timeout_s + wait)

    async def delete(self, path: str) -> bytes:
        """Delete what is at a path, and return the body of the answer."""
        return await self._request(self._encode("DELETE", path, None), self.timeout_s, resend=False)

    async def post(
        self,
        path: str,
        value: Any,
        query: Query | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
        accept_late: bool = False,
        resend: bool = True,
    ) -> bytes:
        """Post a value as JSON and return the body of the answer.

        With `accept_late`, a caller that is cancelled still receives an answer that was already on its way. With
        `resend`, a request is sent once more if an idle connection was closed before it was answered.
        """
        body = msgspec.json.encode(value)
        data = self._encode("POST", path, query, {"content-type": "application/json", **(headers or {})}, body)
        timeout = self.timeout_s if timeout is None else timeout
        return await self._request(data, timeout + wait, accept_late, resend)

    async def chunks(self, path: str, query: Query | None = None) -> AsyncGenerator[bytes]:
        """Yield the body at a path as it arrives."""
        async with contextlib.aclosing(self._stream(path, query, {})) as chunks:
            async for chunk in chunks:
                yield chunk

    async def events(self, path: str, query: Query, last_id: str = "") -> AsyncGenerator[ServerSentEvent]:
        """Yield server-sent events after the one with an id. The first, without data, marks the start of the stream."""
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last_id} if last_id else {})
        parser = _EventParser(last_id)
        async with contextlib.aclosing(self._stream(path, query, headers, media_type="text/event-stream")) as chunks:
            async for chunk in chunks:
                for event in parser.feed(chunk) if chunk else [ServerSentEvent("", last_id, b"")]:
                    yield event

    # Requests

    def _encode(
        self, method: str, path: str, query: Query | None, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        parameters = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        target = quote(self._address.path, safe="/%") + path + (f"?{parameters}" if parameters else "")
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._address.authority}"]
        lines += [f"authorization: Bearer {self._token}"] if self._token else []
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"content-length: {len(body)}"] if method != "GET" else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body

    async def _request(self, data: bytes, timeout: float, accept_late: bool = False, resend: bool = True) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                response = await self._exchange(data, accept_late, resend)
        except (OSError, EOFError) as error:
            raise connection_lost(self.url, error) from error
        except httptools.HttpParserError as error:
            raise not_a_server(self.url) from error
        self._check(response)
        return response.take_body()

    async def _exchange(self, data: bytes, accept_late: bool, resend: bool) -> _Response:
        while True:
            connection = self._take_idle()
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                response = await connection.exchange(data, accept_late)
            except (OSError, EOFError):
                connection.close()
                if resend and is_reused and not connection.has_received:  # The server closed the idle connection.
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            self._release(connection, response)
            return response

    async def _stream(
        self, path: str, query: Query | None, headers: Mapping[str, str], media_type: str = ""
    ) -> AsyncGenerator[bytes]:
        """Yield an empty chunk once the answer has begun, then its body as it arrives."""
        data = self._encode("GET", path, query, headers)
        response = _Response()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                connection = await self._connect()
                connection.send(data)
                while not response.has_headers:
                    await connection.receive(response)
            if response.status >= 300:
                async with asyncio.timeout(self.timeout_s):
                    while not response.is_complete:
                        await connection.receive(response)
            self._check(response)
            if media_type and not response.media_type.startswith(media_type):
                raise not_a_server(self.url)
            yield b""
            while True:
                if chunk := response.take_body():
                    yield chunk
                if response.is_complete:
                    break
                async with asyncio.timeout(self.timeout_s):
                    await connection.receive(response)
        except (OSError, EOFError) as error:
            raise connection_lost(self.url, error) from error
        except httptools.HttpParserError as error:
            raise not_a_server(self.url) from error
        finally:
            if connection is not None:
                connection.close()

    def _check(self, response: _Response) -> None:
        self.server_time = response.date or self.server_time
        self.has_answered = True
        if response.status >= 300:
            raise error_from_problem(self.url, response.status, response.take_body())

    # Connections

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_ended:
                return connection
            connection.close()
        return None

    def _release(self, connection: _Connection, response: _Response) -> None:
        if response.keeps_alive and not connection.has_ended:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> _Connection:
        if self._is_closed:
            raise StoreError("the ledger is closed")
        address = self._address
        context = ssl.create_default_context() if address.scheme == "https" else None
        return _Connection(*await asyncio.open_connection(address.host, address.port, ssl=context))

    async def close(self) -> None:
        """Close the idle connections, and open no new ones."""
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # An aborted connection is closed in the next step of the loop.


class _Response:
    """A response while it is parsed; the callbacks are httptools'."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self.has_headers = False
        self.has_length = False
        self.is_complete = False
        self.keeps_alive = False
        self.media_type = ""
        self.date = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.media_type = value.decode("latin-1").lower()
        elif name.lower() in (b"content-length", b"transfer-encoding"):
            self.has_length = True
        elif name.lower() == b"date":
            with contextlib.suppress(ValueError, TypeError):
                self.date = email.utils.parsedate_to_datetime(value.decode("latin-1")).timestamp()

    def on_headers_complete(self) -> None:
        self.has_headers = self.status >= 200  # Informational responses precede the one that counts.

    def on_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        self.is_complete = self.status >= 200
        self.keeps_alive = self._parser.should_keep_alive()

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @property
    def status(self) -> int:
        return self._parser.get_status_code()

    def take_body(self) -> bytes:
        """Return the part of the body that was not taken yet."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        return body


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_half_closed = False
        self.has_received = False

    @property
    def has_ended(self) -> bool:
        return self._is_half_closed or self._reader.at_eof() or self._writer.is_closing()

    def send(self, data: bytes) -> None:
        self.has_received = False
        self._writer.write(data)

    async def receive(self, response: _Response) -> None:
        """Feed the next bytes to a response."""
        chunk = await self._reader.read(CHUNK_BYTES)
        if not chunk:
            response.is_complete = response.has_headers and not response.has_length  # The end of the body is the EOF.
            if response.is_complete:
                return
            raise EOFError("the connection was closed")
        self.has_received = True
        response.feed(chunk)

    async def exchange(self, data: bytes, accept_late: bool) -> _Response:
        self.send(data)
        with contextlib.suppress(ConnectionError):  # The server may answer before it has read the whole request.
            await self._writer.drain()
        response = _Response()
        try:
            while not response.is_complete:
                await self.receive(response)
        except asyncio.CancelledError:
            if not accept_late or not await self._finish_late(response):
                raise
        return response

    async def _finish_late(self, response: _Response) -> bool:
        """Close our side. The server closes the connection, and sends before that what it had answered already."""
        self._is_half_closed = True
        if self._writer.can_write_eof():  # TLS has no half-closed connections.
            with contextlib.suppress(OSError, EOFError, httptools.HttpParserError):
                self._writer.write_eof()
                async with asyncio.timeout(LATE_ANSWER_S):
                    while not response.is_complete:
                        await self.receive(response)
        return response.is_complete

    def close(self) -> None:
        self._writer.transport.abort()


class _EventParser:
    """Parses server-sent events from chunks that may end anywhere."""

    def __init__(self, last_id: str) -> None:
        self._id = last_id
        self._event = ""
        self._data: list[bytes] = []
        self._line: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        first, *rest = chunk.split(b"\n")
        self._line.append(first)
        for start in rest:
            line = b"".join(self._line).removesuffix(b"\r")
            self._line = [start]
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                self._id = value.decode("utf-8", "replace")
            elif name == b"event":
                self._event = value.decode("utf-8", "replace")
            elif name == b"data":
                self._data.append(value)
            elif not line:
                if self._data:
                    events.append(ServerSentEvent(self._event, self._id, b"\n".join(self._data)))
                self._event, self._data = "", []
        return events
