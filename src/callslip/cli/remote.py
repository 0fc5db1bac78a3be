"""A server over HTTP: requests with JSON answers, bytes as they come, and server-sent events.

It stands on `http.client` of the standard library: the command line does one thing at a time and waits for it, a
blocking read ends at once with Ctrl-C, and no further package has to be installed or loaded.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import click
import msgspec

from callslip import errors
from callslip.cli.exits import NotAdmitted, Unreachable

Json = dict[str, Any]
Query = Mapping[str, Any]

PATIENCE = 30.0
"""Seconds without a byte after which a connection counts as lost. A stream says something every 15."""
PIECE = 65536


class Frame(NamedTuple):
    """One server-sent event."""

    event: str
    id: str
    data: bytes


class Address(NamedTuple):
    """Where a server is, and the token that its address brought along."""

    scheme: str
    host: str
    port: int
    path: str
    token: str

    @property
    def url(self) -> str:
        """The address without the token, as one may say it aloud."""
        named = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{named}:{self.port}{self.path}"

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def read_address(given: str, said_by: str) -> Address:
    """The address of a server as a person gives it, also with `?token=` as `serve` prints it."""
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise click.UsageError(f"{said_by}: not the address of a server; write it as http://127.0.0.1:7890")
    tokens = parse_qs(parts.query).get("token", [""])
    default = 443 if parts.scheme == "https" else 80
    return Address(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"), tokens[0])


class Remote:
    """Asks one server. Each request has a connection of its own."""

    def __init__(self, address: Address, token: str) -> None:
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
                raise _stranger(self.url)
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
        connection = self._connection(PATIENCE + within)
        try:
            with _lost_is_unreachable(self.url):
                connection.request(method, target, body, {**known, **(headers or {})})
                answer = connection.getresponse()
                problem = None if answer.status < 300 else answer.read()
            if problem is not None:
                raise _error(self.url, answer, problem)
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
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreachable(f"no server can be reached at {url}: {why}") from error


def _pieces(url: str, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        with _lost_is_unreachable(url):
            piece = answer.read1(PIECE)
        if not piece:
            return
        yield piece


def _json(url: str, answer: http.client.HTTPResponse) -> Any:
    body = b"".join(_pieces(url, answer))
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise _stranger(url) from None


def _stranger(url: str) -> Unreachable:
    return Unreachable(f"what answers at {url} is no callslip server")


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


# Problems


class _Problem(msgspec.Struct):
    type: str = ""
    detail: str = ""
    title: str = ""
    field: str = ""
    limit: int | None = None
    low: int = 0
    current: Any = None


def _refused(said: _Problem) -> errors.CallslipError:
    """The server's words begin with the field and end with the limit, as ours do."""
    told = said.detail.removeprefix(f"{said.field}: ").removesuffix(f" (limit {said.limit})")
    return errors.Refused(said.field or "request", told, said.limit)


_KINDS: dict[str, Callable[[_Problem], errors.CallslipError]] = {
    "unknown": lambda said: NotAdmitted(f"{said.detail}; give a token with --token or CALLSLIP_TOKEN"),
    "forbidden": lambda said: errors.CallslipError(said.detail),
    "ambiguous": lambda said: errors.Ambiguous(said.detail, said.current),
    "conflict": lambda said: errors.Conflict(said.detail, said.current),
    "illegal": lambda said: errors.Illegal(said.detail),
    "not-found": lambda said: errors.NotFound(said.detail),
    "gone": lambda said: _Gone(said.detail, said.low),
    "refused": _refused,
    "read-only": lambda said: errors.ReadOnly(said.detail),
    "full": lambda said: errors.StoreFull(said.detail),
    "busy": lambda said: Unreachable(said.detail),
}


class _Gone(errors.Gone):
    """In the server's words: it knows the cursor."""

    def __init__(self, told: str, low: int) -> None:
        super().__init__(0, low)
        self.args = (told,)


def _error(url: str, answer: http.client.HTTPResponse, body: bytes) -> errors.CallslipError:
    """The exception that a problem document stands for."""
    try:
        said = msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return _stranger(url)
    prefix, _, kind = said.type.rpartition(":")
    if prefix != "urn:callslip":
        return _stranger(url)
    if kind in _KINDS:
        return _KINDS[kind](said)
    return errors.StoreError(said.detail or f"the server failed ({answer.status})")
