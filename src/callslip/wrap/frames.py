"""What the front sends to the recorder: pieces, each with who said it and when.

A piece of a direction is any part of its bytes; the recorder finds the lines. The front counts lines too, so both agree
on how many there were.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

CLIENT, AGENT = b"c", b"a"
"""Bytes that the client, or the agent, sent."""
POLICY = b"p"
"""An answer that the policy gave in the client's place: JSON with `msg` and `reason`, and a line end."""
HELD = b"h"
"""A request of the agent, a whole line, that the client does not get: it waits for an answer from the ledger."""
ANSWER = b"r"
"""The answer to one, as the agent gets it. The ledger has it already."""
RELEASED = b"l"
"""A request that was held is the client's now. The data is its id as JSON."""
GONE = b"q"
"""The client hung up: the agent cannot be answered any more."""
GAP = b"g"
"""Here lines are missing. The data says of which direction: what came of its last line is void."""
ENDED = b"x"
"""The agent ended. The data says how, in words; pieces may still follow."""

_HEAD = struct.Struct("<cdI")


class Frame(NamedTuple):
    """One piece."""

    kind: bytes
    at: float
    data: bytes


def pack(frame: Frame) -> bytes:
    """A frame as bytes."""
    return _HEAD.pack(frame.kind, frame.at, len(frame.data)) + frame.data


class Unpacking:
    """Frames out of bytes that come in any portions."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def push(self, data: bytes) -> list[Frame]:
        """The frames that are whole by now."""
        self._rest += data
        found: list[Frame] = []
        start, end = 0, len(self._rest)
        while end - start >= _HEAD.size:
            kind, at, size = _HEAD.unpack_from(self._rest, start)
            if end - start < _HEAD.size + size:
                break
            start += _HEAD.size
            found.append(Frame(kind, at, bytes(self._rest[start : start + size])))
            start += size
        del self._rest[:start]
        return found
