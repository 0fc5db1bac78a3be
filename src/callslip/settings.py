"""Every knob, with its default. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from typing import Literal

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How one ledger behaves. The defaults suit a person with one machine."""

    # FULL keeps every acknowledged event through a power cut. NORMAL is several times faster for single writers and may
    # lose the last moments when the power goes, never when only the process dies.
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    busy_timeout: float = 30.0
    notice_interval: float = 0.025

    max_event: int = 16 * 2**20
    max_blob: int = 2**30
    inline_limit: int = 64 * 2**10
    preview: int = 2 * 2**10

    redact: bool = True
    secret_patterns: tuple[tuple[str, str, str, int], ...] = ()

    ingest_lease: float = 600.0
    owner_lease: float = 30.0
    turn_grace: float = 2.0
    reaper_interval: float = 1.0
    reaper_grace: float = 2.0
    approval_expiry: float = 300.0

    command_timeout: float = 30.0
    command_lease: float = 30.0
    # How many commands may wait for one client, and what happens to one more: it is refused, or the oldest expires.
    queue_limit: int = 100
    queue_overflow: Literal["refuse", "expire_oldest"] = "refuse"
    completed_window: float = 60.0
    failed_window: int = 100

    checkpoint_every: int = 512
    feed_length: int = 4096
    read_page: int = 1000
