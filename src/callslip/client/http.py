"""Requests to a server over connections that stay open, without a thread: a heartbeat must never wait for one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any
from urllib.parse import quote

import httptools
import msgspec

from callslip.client.address import READ_TIMEOUT_S, ServerAddress, error_from_problem, lost, stranger

CHUNK_BYTES = 65536
LATE = 2.0
"""How long an answer may still be on its way to somebody who has said that they ask no more, in s."""


class HttpPool:
    """One server. Any number of requests may be under way at once, each on a connection of its own."""

    def __init__(self, address: ServerAddress, token: str) -> None:
        self.url = address.url
        self._address = address
        self._token = token
        self._idle: list[_Connection] = []

    async def post(
        self, path: str, value: Any, *, within: float = 0.0, patience: float = READ_TIMEOUT_S, late: bool = False
    ) -> bytes:
        """The body of the answer; `within` is how long the server may wait before it answers.

        With `late`, whoever is cancelled is given an answer all the same, if it was on its way.
        """
        data = self._request(path, msgspec.json.encode(value))
        try:
            async with asyncio.timeout(patience + within):
                answer = await self._exchanged(data, late)
        except (OSError, EOFError) as error:
            raise lost(self.url, error) from error
        except httptools.HttpParserError as error:
            raise stranger(self.url) from error
        if answer.status >= 300:
            raise error_from_problem(self.url, answer.status, answer.body)
        return answer.body

    def _request(self, path: str, body: bytes) -> bytes:
        target = quote(self._address.path, safe="/%") + path
        lines = [f"POST {target} HTTP/1.1", f"host: {self._address.authority}", "content-type: application/json"]
        lines += [f"authorization: Bearer {self._token}"] if self._token else []
        lines += [f"content-length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1", "replace") + body

    async def _exchanged(self, data: bytes, late: bool) -> _Answer:
        while True:
            known = self._open()
            connection = known or await self._connected()
            try:
                answer = await connection.ask(data, late)
            except (OSError, EOFError):
                connection.close()
                if known and not connection.heard:  # The server had closed it while nobody looked.
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            if answer.stays and not connection.ended:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _open(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.ended:
                return connection
            connection.close()
        return None

    async def _connected(self) -> _Connection:
        where = self._address
        secure = ssl.create_default_context() if where.scheme == "https" else None
        return _Connection(*await asyncio.open_connection(where.host, where.port, ssl=secure))

    async def close(self) -> None:
        """Close what is open."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # So long an aborted connection takes to be gone.


class _Answer:
    """An answer as its parser tells it."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.complete = False

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = self._parser.get_status_code() >= 200  # Before it there may be others, which say nothing yet.
        self.stays = self._parser.should_keep_alive()

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @property
    def status(self) -> int:
        return self._parser.get_status_code()

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asks_no_more = False
        self.heard = False

    @property
    def ended(self) -> bool:
        return self._asks_no_more or self._reader.at_eof() or self._writer.is_closing()

    async def ask(self, data: bytes, late: bool) -> _Answer:
        self.heard = False
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):  # It may have answered before it took all of it.
            await self._writer.drain()
        answer = _Answer()
        try:
            await self._read(answer)
        except asyncio.CancelledError:
            if not late or not await self._late(answer):
                raise
        return answer

    async def _read(self, answer: _Answer) -> None:
        while not answer.complete:
            piece = await self._reader.read(CHUNK_BYTES)
            if not piece:
                raise EOFError("the connection was closed")
            self.heard = True
            answer.feed(piece)

    async def _late(self, answer: _Answer) -> bool:
        """Ask no more. The server closes the connection, and what it had answered before comes first."""
        self._asks_no_more = True
        if self._writer.can_write_eof():  # TLS has no such thing.
            with contextlib.suppress(OSError, EOFError, httptools.HttpParserError):
                self._writer.write_eof()
                async with asyncio.timeout(LATE):
                    await self._read(answer)
        return answer.complete

    def close(self) -> None:
        self._writer.transport.abort()


def decoded(url: str, body: bytes, kind: Any) -> Any:
    """An answer's body as what it should be; of anybody else it is not."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise stranger(url) from None
