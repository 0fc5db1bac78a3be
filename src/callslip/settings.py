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

    # PostgreSQL: how many connections a process uses, how long one statement may take, and how long a read or a write
    # waits for a server that cannot be reached.
    read_connections: int = 4
    write_connections: int = 2
    statement_timeout: float = 10.0
    database_timeout: float = 30.0

    max_event: int = 16 * 2**20
    max_blob: int = 2**30
    inline_limit: int = 64 * 2**10
    preview: int = 2 * 2**10

    redact: bool = True
    secret_patterns: tuple[tuple[str, str, str, int], ...] = ()
    # How long the end of a streamed text that may begin a secret is held back if nothing follows.
    text_hold: float = 1.0

    # Tools whose calls a user must accept, for formats in which the calls do not say so (`rows`).
    requires_validation: tuple[str, ...] = ()

    ingest_lease: float = 600.0
    owner_lease: float = 30.0
    turn_grace: float = 2.0
    reaper_interval: float = 1.0
    reaper_grace: float = 2.0
    approval_expiry: float = 300.0

    # A file with rules that decide requests before saved rules do (`callslip serve --policy`). It is read again when it
    # has changed; while it cannot be read, every request waits for a person.
    policy_file: str = ""

    # Whether saved rules allow a chain of simple commands (`a && b`) if each of them is allowed by itself.
    rules_allow_chains: bool = False

    command_timeout: float = 30.0
    command_lease: float = 30.0
    # How many commands may be pending in one queue. Beyond that a new one is refused, or the oldest one expires.
    queue_limit: int = 100
    queue_overflow: Literal["refuse", "expire_oldest"] = "refuse"
    completed_window: float = 60.0
    failed_window: int = 100

    checkpoint_every: int = 512
    feed_length: int = 4096
    # The newest events of a followed session are kept for its readers, up to this size or `feed_length` of them.
    feed_bytes: int = 16 * 2**20
    read_page: int = 1000
    read_page_bytes: int = 2**20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server."""

    body_bytes: int = 16 * 2**20
    body_values: int = 250_000
    """How many values one JSON text may have, a body or a line; all lines of a body may have twice as many."""
    body_messages: int = 100_000
    page_rows: int = 100
    """How many items a list returns by default; `max_page_rows` is the maximum of its `limit`."""
    max_page_rows: int = 1000
    wait: float = 60.0
    """How long a request may wait for something to happen."""

    heartbeat: float = 15.0
    retry_ms: int = 1000
    """How long a reader waits before it reconnects."""
    readers: int = 1000
    principal_readers: int = 250
    """How many of the readers may belong to one principal: a token, or a user of the host app."""
    backlog: int = 4096
    """How many events a reader may be behind before it is disconnected; it resumes at its cursor."""
    backlog_bytes: int = 16 * 2**20
    """The same limit in bytes, for each stream."""
    reader_bytes: int = 128 * 2**10
    """How much of a stream is read ahead for one reader."""
    shared_bytes: int = 64 * 2**20
    """How much all readers may hold beyond `reader_bytes`: larger events, entries, replays and other responses."""
    stall: float = 30.0
    """How long a reader may accept no data before it is disconnected."""

    header_bytes: int = 64 * 2**10
    header_timeout: float = 15.0
    """How long a client may take to send the headers of a request."""
    body_timeout: float = 30.0
    """How long a client may pause while it sends a body."""
