"""Frames between the front of `callslip wrap` and its recorder, in both directions.

A frame has a kind, a payload and the time when it was sent. This module alone knows how frames and payloads are laid
out. Both sides count recorded lines by the line ends in payloads, so a payload has one for each complete line.
"""

from __future__ import annotations

import struct
import time
from enum import Enum
from typing import NamedTuple

_HEADER = struct.Struct("<cdI")


class Kind(bytes, Enum):
    """The kind of a frame: who sends it and what its payload is. A request id is the JSON of a JSON-RPC id."""

    CLIENT_BYTES = b"c"
    """Front: bytes that the client sent to the agent, cut anywhere."""
    AGENT_BYTES = b"a"
    """Front: bytes that the agent sent to the client, cut anywhere."""
    POLICY_ANSWER = b"p"
    """Front: an answer that the policy gave to the agent, with its reason; see `encode_policy_answer`."""
    REQUEST_HELD = b"h"
    """Front: a permission request, a complete line, that is held until it is answered in the ledger."""
    PERSON_REQUEST_HELD = b"H"
    """Front: the same for a request that only a person may answer, because the policy is about it."""
    ANSWER_SENT = b"r"
    """Front: the answer to a held request, a complete line, that the ledger has and the agent receives."""
    REQUEST_RELEASED = b"l"
    """Front: the id of a held request that went to the client."""
    CLIENT_CLOSED = b"q"
    """Front: the client closed its output, so the agent can receive no more answers. No payload."""
    LINES_MISSING = b"g"
    """Front: lines were dropped; discard the partial line. The payload is the kind of the frames left out."""
    AGENT_ENDED = b"x"
    """Front: why calls that are still open end, as text. Frames with bytes may follow."""

    LINES_RECORDED = b"+"
    """Recorder: the number of lines recorded so far; see `encode_count`."""
    PROBLEM = b"-"
    """Recorder: why recording fails, as text; empty once it works again."""
    ANSWER = b"="
    """Recorder: the answer to a held request; see `encode_answer`."""
    RELEASE = b"~"
    """Recorder: the id of a held request that cannot be answered in the ledger. The front sends it to the client."""


class Frame(NamedTuple):
    """A decoded frame; `at` is when it was sent, in seconds since the epoch."""

    kind: Kind
    payload: bytes
    at: float


def encode_frame(kind: Kind, payload: bytes = b"", at: float | None = None) -> bytes:
    """Return a frame as bytes, sent now unless `at` is given."""
    return _HEADER.pack(kind, time.time() if at is None else at, len(payload)) + payload


class FrameDecoder:
    """Decodes frames from bytes that arrive in chunks of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete."""
        self._buffer += data
        frames: list[Frame] = []
        start, end = 0, len(self._buffer)
        while end - start >= _HEADER.size:
            kind, at, size = _HEADER.unpack_from(self._buffer, start)
            if end - start < _HEADER.size + size:
                break
            start += _HEADER.size
            frames.append(Frame(Kind(kind), bytes(self._buffer[start : start + size]), at))
            start += size
        del self._buffer[:start]
        return frames


def encode_text(text: str) -> bytes:
    """Return the payload of AGENT_ENDED or PROBLEM."""
    return text.encode("utf-8", "replace")


def decode_text(payload: bytes) -> str:
    """Return the text of AGENT_ENDED or PROBLEM."""
    return payload.decode()


def encode_count(count: int) -> bytes:
    """Return the payload of LINES_RECORDED."""
    return b"%d" % count


def decode_count(payload: bytes) -> int:
    """Return the number in LINES_RECORDED."""
    return int(payload)


def encode_answer(request_id: bytes, line: bytes) -> bytes:
    """Return the payload of ANSWER. `line` is for the agent; JSON has no tab, so a request id has none."""
    return request_id + b"\t" + line


def decode_answer(payload: bytes) -> tuple[bytes, bytes]:
    """Return the request id and the line of ANSWER."""
    request_id, _, line = payload.partition(b"\t")
    return request_id, line


def encode_policy_answer(line: bytes, reason: str) -> bytes:
    """Return the payload of POLICY_ANSWER. The reason is escaped because its line ends must not be counted."""
    return reason.encode("unicode_escape") + b"\t" + line


def decode_policy_answer(payload: bytes) -> tuple[bytes, str]:
    """Return the line and the reason of POLICY_ANSWER."""
    reason, _, line = payload.partition(b"\t")
    return line, reason.decode("unicode_escape")
