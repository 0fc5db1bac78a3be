"""One identity, one lifecycle and one durable log for every tool call of an AI agent.

Importing this does nothing: the names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from callslip._version import __version__ as __version__

if TYPE_CHECKING:
    from callslip.api.call import Call
    from callslip.api.commands import CommandQueue
    from callslip.api.ledger import Ledger
    from callslip.api.ledger import open_ledger as open
    from callslip.api.session import Session
    from callslip.api.sync import SyncLedger as blocking
    from callslip.errors import CallslipError
    from callslip.formats.ai_sdk_v4 import format_messages_to_vercel
    from callslip.http import asgi
    from callslip.http.chat import chat
    from callslip.settings import Settings
    from callslip.worker import Worker

__all__ = [
    "Call",
    "CallslipError",
    "CommandQueue",
    "Ledger",
    "Session",
    "Settings",
    "Worker",
    "asgi",
    "blocking",
    "chat",
    "format_messages_to_vercel",
    "open",
]

_WHERE = {
    "open": ("callslip.api.ledger", "open_ledger"),
    "asgi": ("callslip.http", "asgi"),
    "chat": ("callslip.http.chat", "chat"),
    "blocking": ("callslip.api.sync", "SyncLedger"),
    "Ledger": ("callslip.api.ledger", "Ledger"),
    "Session": ("callslip.api.session", "Session"),
    "Call": ("callslip.api.call", "Call"),
    "Settings": ("callslip.settings", "Settings"),
    "CommandQueue": ("callslip.api.commands", "CommandQueue"),
    "Worker": ("callslip.worker", "Worker"),
    "format_messages_to_vercel": ("callslip.formats.ai_sdk_v4", "format_messages_to_vercel"),
    "CallslipError": ("callslip.errors", "CallslipError"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'callslip' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)
