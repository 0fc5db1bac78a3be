"""A server over HTTP: requests with JSON answers, bytes as they come, and server-sent events.

It stands on `http.client` of the standard library: the command line does one thing at a time and waits for it, a
blocking read ends at once with Ctrl-C, and no further package has to be installed or loaded.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from callslip.client.address import READ_TIMEOUT_S, ServerAddress, error_from_problem, lost, stranger

Json = dict[str, Any]
Query = Mapping[str, Any]

CHUNK_BYTES = 65536


class Frame(NamedTuple):
    """One server-sent event."""

    event: str
    id: str
    data: bytes


class Remote:
    """Asks one server. Each request has a connection of its own."""

    def __init__(self, address: ServerAddress, token: str) -> None:
        self.url = address.url
        self._address = address
        self._token = token

    def get(self, path: str, query: Query | None = None, *, within: float = 0) -> Any:
        """What is there, as JSON; `within` is how long the server may wait before it answers."""
        with self._asked("GET", path, query, within=within) as answer:
            return _json(self.url, answer)

    def post(self, path: str, value: Any, query: Query | None = None) -> Any:
        """What comes of it."""
        body = msgspec.json.encode(value)
        with self._asked("POST", path, query, {"content-type": "application/json"}, body) as answer:
            return _json(self.url, answer)

    def pieces(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """What is there, as it comes."""
        with self._asked("GET", path, query) as answer:
            yield from _pieces(self.url, answer)

    def frames(self, path: str, query: Query, last: str) -> Iterator[Frame]:
        """A stream of server-sent events, after the one with the id `last`, until it ends."""
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
        with self._asked("GET", path, query, headers) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise stranger(self.url)
            yield Frame("", last, b"")  # It is there.
            yield from _frames(_pieces(self.url, answer), last)

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        within: float = 0,
    ) -> Generator[http.client.HTTPResponse]:
        asked = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        target = quote(self._address.path, safe="/%") + path + (f"?{asked}" if asked else "")
        known = {"authorization": f"Bearer {self._token}"} if self._token else {}
        connection = self._connection(READ_TIMEOUT_S + within)
        try:
            with _lost_is_unreachable(self.url):
                connection.request(method, target, body, {**known, **(headers or {})})
                answer = connection.getresponse()
                problem = None if answer.status < 300 else answer.read()
            if problem is not None:
                raise error_from_problem(self.url, answer.status, problem)
            yield answer
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        where = self._address
        if where.scheme == "https":
            secure = ssl.create_default_context()
            return http.client.HTTPSConnection(where.host, where.port, timeout=timeout, context=secure)
        return http.client.HTTPConnection(where.host, where.port, timeout=timeout)


@contextlib.contextmanager
def _lost_is_unreachable(url: str) -> Generator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise lost(url, error) from error


def _pieces(url: str, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        with _lost_is_unreachable(url):
            piece = answer.read1(CHUNK_BYTES)
        if not piece:
            return
        yield piece


def _json(url: str, answer: http.client.HTTPResponse) -> Any:
    body = b"".join(_pieces(url, answer))
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise stranger(url) from None


def _frames(pieces: Iterator[bytes], last: str) -> Iterator[Frame]:
    event, data = "", list[bytes]()
    for line in _lines(pieces):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id":
            last = value.decode("utf-8", "replace")
        elif name == b"event":
            event = value.decode("utf-8", "replace")
        elif name == b"data":
            data.append(value)
        elif not line and data:
            yield Frame(event, last, b"\n".join(data))
        if not line:
            event, data = "", []


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines. What is begun is put together once it has ended, however many pieces it came in."""
    begun: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        begun.append(first)
        for line in rest:
            yield b"".join(begun).removesuffix(b"\r")
            begun = [line]
