"""Commands over real sockets: a server, an executor and a submitter, each a process of its own.

The client is as cheap as it can be, so that what is measured is the server: one connection, kept, and no parsing beyond
what it needs. `python exchange.py URL TOKEN` is the executor: it claims, and answers with what it was asked for. With
`worker` after it, the executor is a `callslip.Worker`, as people have it.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
EVERY = 2.0
"""How often a client that is not woken polls, in s."""
PLAIN = [sys.executable, str(HERE / "peers" / "plain_http.py")]


class Client:
    """One connection that is kept."""

    def __init__(self, url: str, token: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"

    def ask(self, what: str, body: Any = None) -> tuple[int, Any]:
        """`what` is the method and the path. The status, and the body if there is one."""
        self.send(what, body)
        status, data = self.answer()
        return status, json.loads(data) if data else None

    def send(self, what: str, body: Any = None) -> None:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{what} {self._head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._socket.sendall(head.encode() + data)

    def answer(self) -> tuple[int, bytes]:
        got = self._socket.recv(65536)
        while b"\r\n\r\n" not in got:
            got += self._more()
        head, _, body = got.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        while len(body) < int(length or 0):
            body += self._more()
        return int(head[9:12]), body

    def _more(self) -> bytes:
        got = self._socket.recv(65536)
        if not got:
            raise ConnectionError("the server is gone")
        return got

    def fileno(self) -> int:
        """So that several can be waited for at once."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


# Processes


class Place(NamedTuple):
    """Where a server is."""

    url: str
    token: str
    pid: int

    def client(self) -> Client:
        return Client(self.url, self.token)

    def processor(self) -> float:
        """Seconds of processor that it has used, all threads together; on Linux, else nan."""
        try:
            used = [path.read_text().split()[0] for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat")]
        except OSError:
            used = []
        return sum(map(int, used)) / 1e9 if used else math.nan


@contextlib.contextmanager
def served(command: list[str], log: Path) -> Generator[Place]:
    """A server that says on its first line where it is, and with which token."""
    with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server:
        try:
            assert server.stdout is not None
            reply = json.loads(server.stdout.readline() or "{}")
            if not reply:
                raise RuntimeError(f"the server did not start: {log.read_text()[-500:]}")
            yield Place(reply["url"], reply["token"], server.pid)
        finally:
            server.terminate()


def callslip(folder: Path, name: str) -> list[str]:
    """`callslip serve` as it comes: every commit is on the disk before it is answered."""
    token = "a-token-for-the-measurements"
    serve = ["serve", "--port", "0", "--json", "--token", token, "--db", str(folder / f"{name}.db")]
    return [sys.executable, "-m", "callslip", *serve]


@contextlib.contextmanager
def executing(place: Place, *how: str) -> Generator[None]:
    with subprocess.Popen([sys.executable, __file__, place.url, place.token, *how]) as process:
        try:
            yield
        finally:
            process.terminate()


def execute(url: str, token: str) -> None:
    client = Client(url, token)
    while True:
        status, claim = client.ask("POST /v1/calls/claim", {"wait": 30})
        if status == 204:
            continue
        assert status == 200, claim
        answer = {"result": {"found": claim["params"]["what"]}, "fence": claim["fence"]}
        status, reply = client.ask(f"POST /v1/calls/{claim['correlation_id']}/result", answer)
        assert status == 200, reply


def execute_as_people_do(url: str, token: str) -> None:
    import callslip

    worker = callslip.Worker(url, token=token)

    @worker.action()
    async def look(what: int) -> dict[str, int]:
        return {"found": what}

    worker.run()


# Trips


def _command(number: int) -> dict[str, Any]:
    return {"action": "look", "params": {"what": number}}


def trip(client: Client, number: int) -> None:
    """Submitted and awaited in one request."""
    status, reply = client.ask("POST /v1/calls?wait=30", _command(number))
    assert status == 200 and reply["result"] == {"found": number}, reply


def trip_in_two(client: Client, number: int) -> None:
    """Submitted, and then awaited."""
    status, queued = client.ask("POST /v1/calls", _command(number))
    assert status == 202, queued
    status, reply = client.ask(f"GET /v1/calls/{queued['correlation_id']}?format=command&wait=30")
    assert status == 200 and reply["result"] == {"found": number}, reply


def trip_by_asking(client: Client, number: int) -> None:
    """Submitted, and asked for now and then until it is there."""
    status, queued = client.ask("POST /v1/calls", _command(number))
    assert status == 202, queued
    reply: dict[str, Any] = {}
    while not reply.get("final"):
        time.sleep(EVERY)
        _, reply = client.ask(f"GET /v1/calls/{queued['correlation_id']}?format=command")
    assert reply["result"] == {"found": number}, reply


def timed(client: Client, one: Any, trips: int) -> list[float]:
    times: list[float] = []
    for number in range(trips):
        start = time.perf_counter()
        one(client, number)
        times.append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        (execute_as_people_do if sys.argv[3:] == ["worker"] else execute)(*sys.argv[1:3])
