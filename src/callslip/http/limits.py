"""Every limit of the server, with its default. Times are in seconds, sizes in bytes."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one server takes upon itself."""

    body: int = 16 * 2**20
    page: int = 100
    """How many items a list gives unless asked for more or fewer, and `most` is the most that may be asked for."""
    most: int = 1000
    wait: float = 60.0
    """The longest that a request may wait for something to happen."""

    heartbeat: float = 15.0
    retry: int = 1000
    """After how many ms a reader that lost its connection should come back."""
    readers: int = 1000
    backlog: int = 4096
    """How many events a reader may be behind before it is cut off, to come back by its cursor."""
    stall: float = 30.0
    """How long a reader may take nothing at all before it is cut off."""
