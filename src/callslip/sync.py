"""Callslip for programs without an event loop: `with callslip.sync.open("agent.db") as ledger:`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from callslip.api.ledger import LocalLedger
from callslip.api.sync import SyncCall, SyncCommands, SyncLedger, SyncSession, SyncTurn, tool
from callslip.client import open as opening
from callslip.client.remote_ledger import RemoteLedger
from callslip.settings import Settings

__all__ = ["SyncCall", "SyncCommands", "SyncLedger", "SyncSession", "SyncTurn", "connect", "open", "tool"]


def open(url: str | Path | None = None, settings: Settings | None = None) -> SyncLedger[LocalLedger]:
    """Open a ledger in this process. See `callslip.open`."""
    return SyncLedger(opening.open(url, settings))


def connect(
    url: str | None = None, *, token: str = "", report: Callable[[str], None] = lambda message: None
) -> SyncLedger[RemoteLedger]:
    """Use a ledger behind a server. See `callslip.connect`."""
    return SyncLedger(opening.connect(url, token=token, report=report))
