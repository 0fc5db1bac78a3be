"""Settings of a ledger and limits of a server. Times are in seconds unless the name has a unit, sizes in bytes."""

from __future__ import annotations

from typing import Literal

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one ledger. The defaults suit one user on one machine."""

    # FULL keeps every acknowledged event after a power failure. NORMAL is several times faster for a single writer and
    # may lose the newest events in a power failure, but not when only the process dies.
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    busy_timeout: float = 30.0
    notice_interval: float = 0.025

    max_event: int = 16 * 2**20
    max_blob: int = 2**30
    inline_limit: int = 64 * 2**10
    preview: int = 2 * 2**10

    redact: bool = True
    secret_patterns: tuple[tuple[str, str, str, int], ...] = ()
    # How long the end of a streamed text that may begin a secret is held back if nothing follows.
    text_hold: float = 1.0

    ingest_lease: float = 600.0
    owner_lease: float = 30.0
    turn_grace: float = 2.0
    reaper_interval: float = 1.0
    reaper_grace: float = 2.0
    approval_expiry: float = 300.0

    command_timeout: float = 30.0
    command_lease: float = 30.0
    # How many commands may be pending in one queue. Beyond that a new one is refused, or the oldest one expires.
    queue_limit: int = 100
    queue_overflow: Literal["refuse", "expire_oldest"] = "refuse"
    completed_window: float = 60.0
    failed_window: int = 100

    checkpoint_every: int = 512
    feed_length: int = 4096
    read_page: int = 1000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server."""

    body_bytes: int = 16 * 2**20
    page_rows: int = 100
    """How many items a list returns by default; `max_page_rows` is the maximum of its `limit`."""
    max_page_rows: int = 1000
    wait: float = 60.0
    """How long a request may wait for something to happen."""

    heartbeat: float = 15.0
    retry_ms: int = 1000
    """How long a reader waits before it reconnects."""
    readers: int = 1000
    backlog: int = 4096
    """How many events a reader may be behind before it is disconnected; it resumes at its cursor."""
    stall: float = 30.0
    """How long a reader may accept no data before it is disconnected."""
