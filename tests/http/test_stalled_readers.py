"""Clients that stop reading, or never finish their request, against a real `callslip serve`."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
import struct
import termios
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.records import TokenRecord
from tests.support.cli_process import TIMEOUT_S, Process, with_ledger
from tests.support.paths import ROOT

PROGRAM = str(ROOT / "tests/programs/serve_with_limits.py")
MEGABYTE = 2**20
TEXT_BYTES = 20_000
STREAMS = (
    "/v1/sessions/s/stream?format=events",
    "/v1/sessions/s/stream?format=events&after=1",
    "/v1/sessions/s/stream",
    "/v1/sessions/s/stream?after=3",
    "/v1/stream?session=s&limit=1000&topic=sessions",
    "/v1/sessions/s/stream?format=ui-v6",
)


def token(number: int) -> str:
    return f"the-token-with-number-{number}"


async def fill(ledger: LocalLedger, megabytes: float) -> None:
    """Write a session `s` of this size with one open turn, and tokens of four principals."""
    for number in range(4):
        row = TokenRecord(f"t{number}", hash_token(token(number)), f"p{number}", "", ("read", "write"), created_at=1)
        await ledger.log.store.put_token(row)
    await ledger.log.append("s", [ev.TurnStarted()])
    for number in range(int(megabytes * MEGABYTE / TEXT_BYTES)):
        aliases = (Alias("t", str(number)),)
        output = {"text": "y" * (TEXT_BYTES // 2)}
        await ledger.log.append(
            "s",
            [
                ev.MessageUser(text=f"{number} " + "x" * (TEXT_BYTES // 2)),
                ev.CallStarted(aliases=aliases, tool_name="look"),
                ev.CallCompleted(aliases=aliases, output=output),
            ],
        )
    await ledger.log.project("s")


class Server:
    """A running `callslip serve` with other limits, and clients that use sockets."""

    def __init__(self, process: Process, clients: contextlib.ExitStack) -> None:
        self.process = process
        self.info = json.loads(process.out[0])
        self._address = (urlsplit(self.info["url"]).hostname, urlsplit(self.info["url"]).port)
        self._clients = clients
        self.idle_sockets = self.count_sockets()

    def connect(self, data: str = "", *, buffer_bytes: int = 4096) -> socket.socket:
        """Return a connection that has sent this text. It has a small buffer, so that it soon accepts nothing."""
        client = self._clients.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.settimeout(TIMEOUT_S)
        client.connect(self._address)
        client.sendall(data.encode())
        return client

    def head(self, path: str, principal: int = 0, method: str = "GET", more: str = "") -> str:
        host = "{}:{}".format(*self._address)
        return f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token(principal)}\r\n{more}"

    def stall(self, path: str, principal: int = 0) -> socket.socket:
        """Return a connection that has sent a request, and reads nothing."""
        return self.connect(self.head(path, principal) + "\r\n")

    def fetch(self, path: str, principal: int = 0) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        connection.request("GET", path, headers={"authorization": f"Bearer {token(principal)}"})
        response = connection.getresponse()
        with contextlib.closing(connection):
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def metric(self, name: str) -> int:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {self.info['token']}"})
        with contextlib.closing(connection):
            lines = connection.getresponse().read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"callslip_{name} "))

    def memory_mb(self, kind: str = "VmHWM") -> float:
        """Return the largest size of the server so far, or with `VmRSS` the size now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))

    def count_sockets(self) -> int:
        folder = Path(f"/proc/{self.process.pid}/fd")
        count = 0
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                count += os.readlink(folder / name).startswith("socket:")
        return count


@contextlib.contextmanager
def serving(path: Path, **limits: Any) -> Generator[Server]:
    process = Process(json.dumps(limits), "--json", "--db", str(path), "--port", "0", program=PROGRAM)
    try:
        process.until('"url"')
        with contextlib.ExitStack() as clients:
            yield Server(process, clients)
    finally:
        process.kill()


def wait_until(condition: Callable[[], Any], message: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def wait_stalled(server: Server, clients: Sequence[socket.socket]) -> None:
    """Wait until every client has received something, and no client receives anything more."""
    before: list[int] = []

    def is_still() -> bool:
        nonlocal before
        counts = [waiting_bytes(client) for client in clients]
        is_same, before = counts == before, counts
        server.fetch("/healthz")
        return is_same and all(counts)

    wait_until(is_still, f"the clients still receive: {before}")


def waiting_bytes(client: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(client, termios.FIONREAD, b"\0" * 4))[0]


def read_rest(client: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            data += piece
    return data


def disconnected(client: socket.socket) -> bool:
    """Return whether the server has aborted the connection, without reading what arrived before."""
    return struct.unpack("B", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0] != 1  # Not established.


@pytest.fixture(scope="module")
def small_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ledger with a session of 2 MB, which tests only read."""
    path = tmp_path_factory.mktemp("stalled") / "ledger.db"
    with_ledger(path, lambda ledger: fill(ledger, 2))
    return path


@pytest.fixture(scope="module")
def impatient_server(small_ledger: Path) -> Generator[Server]:
    """Return a server with short limits."""
    with serving(small_ledger, stall=0.3, header_timeout=0.3, body_timeout=0.3, header_bytes=20_000) as server:
        yield server


@pytest.mark.chaos
def test_stalled_readers_cost_little_memory(tmp_path: Path, scale: int) -> None:
    """RDR1: 24 readers of a 12 MB session, in `make chaos` 300 of a 36 MB session, over every kind of stream."""
    path = tmp_path / "ledger.db"
    count, megabytes, limit_mb = (24, 12, 120) if scale == 1 else (300, 36, 300)
    with_ledger(path, lambda ledger: fill(ledger, megabytes))
    with serving(path) as server:
        clients = [server.stall(STREAMS[number % len(STREAMS)], number % 4) for number in range(count)]
        wait_until(lambda: server.metric("readers") == count, "not all readers were admitted")
        wait_stalled(server, clients)
        for _ in range(1 if scale == 1 else 100):
            start = time.monotonic()
            assert server.fetch("/healthz")[0] == 200
            if scale > 1:
                assert time.monotonic() - start < 0.25
        assert server.metric("readers") == count
        assert server.memory_mb() < limit_mb


def test_the_sockets_of_stalled_readers_are_closed(impatient_server: Server) -> None:
    """RDR2: also while they have not read what was sent before, and for responses that are no streams."""
    server = impatient_server
    cuts = server.metric("reader_cuts_total")
    clients = [server.stall(path, number % 4) for path in (*STREAMS, "/v1/sessions/s") for number in range(2)]
    wait_until(lambda: all(map(waiting_bytes, clients)), "nothing was sent")
    wait_until(lambda: server.count_sockets() == server.idle_sockets, "the sockets are still open")
    wait_until(lambda: all(map(disconnected, clients)), "the kernel still has the connections")
    assert server.metric("readers") == 0
    assert server.metric("reader_cuts_total") - cuts == 2 * len(STREAMS)
    assert not [line for line in server.process.err if "Exception" in line or "without completing" in line]


def test_a_slow_reader_gets_everything(small_ledger: Path) -> None:
    """RDR2: a reader that accepts a little now and then is not stalled."""
    with serving(small_ledger, stall=20.0) as server:
        path = "/v1/sessions/s/stream?format=events&follow=false"
        client = server.connect(server.head(path, more="connection: close\r\n") + "\r\n")
        data = b""
        while piece := client.recv(20_000):
            data += piece
        assert data.endswith(b"0\r\n\r\n")
        assert data.count(b"\nevent: event\ndata: ") == 1 + 3 * int(2 * MEGABYTE / TEXT_BYTES)
        assert server.metric("reader_cuts_total") == 0


def test_a_principal_has_a_share_of_the_readers(small_ledger: Path) -> None:
    """RDR3: above it the answer is 503 with `Retry-After`; other principals are admitted, up to the limit for all."""
    with serving(small_ledger, principal_readers=2, readers=3) as server:
        clients = [server.stall("/v1/stream?topic=sessions", 0), server.stall("/v1/sessions/s/stream?format=ui-v6", 0)]
        wait_until(lambda: server.metric("readers") == 2, "not admitted")
        for path in STREAMS:
            status, headers, body = server.fetch(path)
            assert (status, headers["retry-after"]) == (503, "1"), body
            assert json.loads(body)["detail"].startswith("you have 2 readers already")
        clients.append(server.stall("/v1/stream?topic=sessions", 1))
        wait_until(lambda: server.metric("readers") == 3, "the other principal was not admitted")
        status, headers, body = server.fetch(STREAMS[0], 2)
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body)["detail"].startswith("the server has 3 readers already")
        clients[0].close()
        clients[1].close()
        wait_until(lambda: server.metric("readers") == 1, "the readers are still counted")
        assert server.fetch(f"{STREAMS[0]}&follow=false")[0] == 200


POST = "content-type: application/json\r\n"
UNFINISHED = (
    ("GET", "x-unfinished: "),
    ("POST", f"{POST}content-length: 100\r\n\r\n["),
    ("POST", f"{POST}transfer-encoding: chunked\r\n\r\n2\r\n[]\r\n"),
)


def test_an_unfinished_request_times_out(impatient_server: Server) -> None:
    """RDR4: the answer is 408, and the connection is closed."""
    server = impatient_server
    clients = [
        server.connect(server.head("/v1/sessions/other/events", method=method, more=more))
        for method, more in UNFINISHED
    ]
    for client in clients:
        data = read_rest(client)
        assert data.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(data.partition(b"\r\n\r\n")[2])["status"] == 408
    wait_until(lambda: server.count_sockets() == server.idle_sockets, "the sockets are still open")
    assert server.fetch("/v1/sessions/other")[0] == 404


def test_a_connection_without_a_request_is_closed(impatient_server: Server) -> None:
    """RDR4: a new one, and one that begins its second request."""
    server = impatient_server
    silent, second = server.connect(), server.connect(server.head("/healthz") + "\r\n")
    answer = second.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    second.sendall(b"GET /hea")
    assert read_rest(silent) == b""
    assert b"HTTP/1.1 408 Request Timeout\r\n" in answer + read_rest(second)


def test_headers_have_a_maximum_size(impatient_server: Server) -> None:
    """RDR4: larger ones are refused before they are complete."""
    server = impatient_server
    end = "connection: close\r\n\r\n"
    accepted = server.connect(server.head("/healthz", more=f"x-long: {'x' * 15_000}\r\n{end}"))
    assert read_rest(accepted).startswith(b"HTTP/1.1 200 OK\r\n")
    refused = server.connect(server.head("/healthz", more=f"x-long: {'x' * 21_000}"))
    assert read_rest(refused).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_a_slow_request_is_answered(small_ledger: Path) -> None:
    """RDR4: the limit for a body is for one pause, not for all of it; a stream may wait longer for its client."""
    with serving(small_ledger, header_timeout=2.0, body_timeout=2.0) as server:
        stream = server.stall("/v1/stream?topic=sessions")
        client = server.connect(server.head("/v1/sessions/slow/events", method="POST", more=POST))
        client.sendall(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        begin = time.monotonic()
        while time.monotonic() - begin < 2.5:
            client.sendall(b"1\r\n \r\n")
            time.sleep(0.1)
        client.sendall(b"2\r\n[]\r\n0\r\n\r\n")
        assert read_rest(client).startswith(b"HTTP/1.1 20")
        assert server.metric("readers") == 1 and not disconnected(stream)
