"""What passes between host and watch: one request, then frames until the line closes.

The host says that the command must end by closing its side; dying has the same effect.
"""

from __future__ import annotations

import os

LENGTH = 4
HEADER = 1 + 8 + LENGTH

NAMES = {1: "stdout", 2: "stderr"}

# Output as it comes, and the last of it, which is sent when all is over. The position counts the bytes of both streams.
LIVE = {1: b"o", 2: b"e"}
LAST = {1: b"O", 2: b"E"}
FULL = b"F"
REPORT = b"X"


class Request:
    """One command, how it is to be run, and how much of each stream is to be kept."""

    def __init__(
        self, command: bytes, cwd: bytes, env: dict[bytes, bytes], head: int, tail: int, grace: float, host: int
    ) -> None:
        self.command = command
        self.cwd = cwd
        self.env = env
        self.head = head
        self.tail = tail
        self.grace = grace
        self.host = host

    def encode(self) -> bytes:
        """None of the parts can hold a NUL: no system would take it."""
        numbers = [str(number).encode() for number in (self.head, self.tail, self.grace, self.host)]
        variables = [name + b"=" + value for name, value in self.env.items()]
        body = b"\0".join([*numbers, self.cwd, self.command, *variables])
        return len(body).to_bytes(LENGTH, "big") + body


def decode_request(body: bytes) -> Request:
    """What `encode` made, without its length."""
    head, tail, grace, host, cwd, command, *variables = body.split(b"\0")
    pairs = [variable.partition(b"=") for variable in variables]
    env = {name: value for name, _, value in pairs}
    return Request(command, cwd, env, int(head), int(tail), float(grace), int(host))


def receive_request(line: int) -> Request | None:
    """The request, once it is there; None if the host thought better of it."""
    length = _receive(line, LENGTH)
    body = _receive(line, int.from_bytes(length, "big")) if length else None
    return decode_request(body) if body else None


def _receive(line: int, size: int) -> bytes | None:
    got = b""
    while len(got) < size:
        more = os.read(line, size - len(got))
        if not more:
            return None
        got += more
    return got


def frame(kind: bytes, position: int, data: bytes) -> bytes:
    """One frame; kinds are single bytes."""
    return kind + position.to_bytes(8, "big") + len(data).to_bytes(LENGTH, "big") + data


def frames(buffer: bytearray) -> list[tuple[bytes, int, bytes]]:
    """The whole frames at the start of the buffer, which loses them."""
    found: list[tuple[bytes, int, bytes]] = []
    start = 0
    while len(buffer) >= start + HEADER:
        end = start + HEADER + int.from_bytes(buffer[start + 9 : start + HEADER], "big")
        if len(buffer) < end:
            break
        position = int.from_bytes(buffer[start + 1 : start + 9], "big")
        found.append((bytes(buffer[start : start + 1]), position, bytes(buffer[start + HEADER : end])))
        start = end
    del buffer[:start]
    return found
