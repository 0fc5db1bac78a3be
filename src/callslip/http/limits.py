"""Limits of the server, with their defaults. Times in seconds, sizes in bytes."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server."""

    body: int = 16 * 2**20
    page: int = 100
    """How many items a list returns by default; `most` is the maximum of its `limit`."""
    most: int = 1000
    wait: float = 60.0
    """How long a request may wait for something to happen."""

    heartbeat: float = 15.0
    retry: int = 1000
    """How many ms a reader waits before it reconnects."""
    readers: int = 1000
    backlog: int = 4096
    """How many events a reader may be behind before it is disconnected; it resumes at its cursor."""
    stall: float = 30.0
    """How long a reader may accept no data before it is disconnected."""
