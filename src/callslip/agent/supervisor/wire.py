"""The protocol between host and supervisor: one request, then frames until the socket closes.

The host ends the command by closing its side of the socket; its death has the same effect.
"""

from __future__ import annotations

import os

LENGTH_BYTES = 4
HEADER_BYTES = 1 + 8 + LENGTH_BYTES

NAMES = {1: "stdout", 2: "stderr"}

# Kinds of frames: output as it is printed, the end of the output, which is sent last, "a stream exceeds its limit", and
# the report. The position of output counts the bytes of both streams.
LIVE = {1: b"o", 2: b"e"}
LAST = {1: b"O", 2: b"E"}
FULL = b"F"
REPORT = b"X"


class Request:
    """A command, how to run it, and how many bytes of each stream to keep."""

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
        """Return the request as bytes. None of its parts can contain a NUL."""
        numbers = [str(number).encode() for number in (self.head, self.tail, self.grace, self.host)]
        variables = [name + b"=" + value for name, value in self.env.items()]
        body = b"\0".join([*numbers, self.cwd, self.command, *variables])
        return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_request(body: bytes) -> Request:
    """Decode the result of `encode` without its length."""
    head, tail, grace, host, cwd, command, *variables = body.split(b"\0")
    pairs = [variable.partition(b"=") for variable in variables]
    env = {name: value for name, _, value in pairs}
    return Request(command, cwd, env, int(head), int(tail), float(grace), int(host))


def receive_request(fd: int) -> Request | None:
    """Wait for the request; None if the host closed the socket instead."""
    length = _receive(fd, LENGTH_BYTES)
    body = _receive(fd, int.from_bytes(length, "big")) if length else None
    return decode_request(body) if body else None


def _receive(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            return None
        data += more
    return data


def encode_frame(kind: bytes, position: int, data: bytes) -> bytes:
    """Return a frame as bytes. A kind is a single byte."""
    return kind + position.to_bytes(8, "big") + len(data).to_bytes(LENGTH_BYTES, "big") + data


def decode_facts(data: bytes) -> dict[str, str]:
    """Decode the lines of a report, each of which is a name and a value."""
    lines = [line.partition(" ") for line in data.decode().splitlines()]
    return {name: value for name, _, value in lines}


def take_frames(buffer: bytearray) -> list[tuple[bytes, int, bytes]]:
    """Remove the complete frames from the start of the buffer, and return them."""
    frames: list[tuple[bytes, int, bytes]] = []
    start = 0
    while len(buffer) >= start + HEADER_BYTES:
        end = start + HEADER_BYTES + int.from_bytes(buffer[start + 9 : start + HEADER_BYTES], "big")
        if len(buffer) < end:
            break
        position = int.from_bytes(buffer[start + 1 : start + 9], "big")
        frames.append((bytes(buffer[start : start + 1]), position, bytes(buffer[start + HEADER_BYTES : end])))
        start = end
    del buffer[:start]
    return frames
