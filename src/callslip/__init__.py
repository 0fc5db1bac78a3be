"""A durable log for the tool calls of AI agents: one id, one state and one history for every call.

Importing this loads nothing else: each name below is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from callslip._version import __version__ as __version__

if TYPE_CHECKING:
    from callslip import sync
    from callslip.api.call import Call
    from callslip.api.commands import Commands
    from callslip.api.follow import Frame
    from callslip.api.ledger import Ledger, LocalLedger, OpenLedger
    from callslip.api.rule_book import RuleBook, RulePreview, RuleTest
    from callslip.api.rules import DecisionView, NewRule, PolicyView, RuleView
    from callslip.api.session import Session
    from callslip.api.tools import tool
    from callslip.api.turn import Turn
    from callslip.api.usage import UsageGroup, UsageReport
    from callslip.client.open import connect, open
    from callslip.client.remote_ledger import RemoteLedger
    from callslip.commands import Claim, Command
    from callslip.errors import (
        AmbiguousIdError,
        AuthenticationError,
        CallDeniedError,
        CallEndedError,
        CallslipError,
        CallTimeoutError,
        CommandNotFoundError,
        ConflictError,
        CorruptDataError,
        CursorExpiredError,
        DatabaseUnavailableError,
        DiskFullError,
        IncompleteCopyError,
        InvalidDatabaseError,
        InvalidInputError,
        InvalidTransitionError,
        LostFileError,
        NoSessionError,
        NotFoundError,
        PermissionDeniedError,
        QueueFullError,
        ReadOnlyStoreError,
        ServerUnavailableError,
        SlowReaderError,
        StaleClaimError,
        StoreError,
        UnsupportedVersionError,
        WaitTimeoutError,
    )
    from callslip.formats.shell import ExtractedCommand, extract_commands, format_tool_results, truncate_output
    from callslip.http.chat import chat
    from callslip.http.turn_runner import Chat
    from callslip.model.entries import Snapshot, ToolCall
    from callslip.model.events import Event
    from callslip.model.records import ApprovalRecord, CallRecord, ListedSession, Page, SessionRecord
    from callslip.model.search import SearchResult, SearchResults
    from callslip.serving import asgi
    from callslip.settings import Limits, Settings
    from callslip.worker import Worker

__all__ = [
    "AmbiguousIdError",
    "ApprovalRecord",
    "AuthenticationError",
    "Call",
    "CallDeniedError",
    "CallEndedError",
    "CallRecord",
    "CallTimeoutError",
    "CallslipError",
    "Chat",
    "Claim",
    "Command",
    "CommandNotFoundError",
    "Commands",
    "ConflictError",
    "CorruptDataError",
    "CursorExpiredError",
    "DatabaseUnavailableError",
    "DecisionView",
    "DiskFullError",
    "Event",
    "ExtractedCommand",
    "Frame",
    "IncompleteCopyError",
    "InvalidDatabaseError",
    "InvalidInputError",
    "InvalidTransitionError",
    "Ledger",
    "Limits",
    "ListedSession",
    "LocalLedger",
    "LostFileError",
    "NewRule",
    "NoSessionError",
    "NotFoundError",
    "OpenLedger",
    "Page",
    "PermissionDeniedError",
    "PolicyView",
    "QueueFullError",
    "ReadOnlyStoreError",
    "RemoteLedger",
    "RuleBook",
    "RulePreview",
    "RuleTest",
    "RuleView",
    "SearchResult",
    "SearchResults",
    "ServerUnavailableError",
    "Session",
    "SessionRecord",
    "Settings",
    "SlowReaderError",
    "Snapshot",
    "StaleClaimError",
    "StoreError",
    "ToolCall",
    "Turn",
    "UnsupportedVersionError",
    "UsageGroup",
    "UsageReport",
    "WaitTimeoutError",
    "Worker",
    "asgi",
    "chat",
    "connect",
    "extract_commands",
    "format_tool_results",
    "open",
    "sync",
    "tool",
    "truncate_output",
]

_MODULES = {
    "AmbiguousIdError": "callslip.errors",
    "ApprovalRecord": "callslip.model.records",
    "AuthenticationError": "callslip.errors",
    "Call": "callslip.api.call",
    "CallDeniedError": "callslip.errors",
    "CallEndedError": "callslip.errors",
    "CallRecord": "callslip.model.records",
    "CallTimeoutError": "callslip.errors",
    "CallslipError": "callslip.errors",
    "Chat": "callslip.http.turn_runner",
    "Claim": "callslip.commands",
    "Command": "callslip.commands",
    "CommandNotFoundError": "callslip.errors",
    "Commands": "callslip.api.commands",
    "ConflictError": "callslip.errors",
    "CorruptDataError": "callslip.errors",
    "CursorExpiredError": "callslip.errors",
    "DatabaseUnavailableError": "callslip.errors",
    "DiskFullError": "callslip.errors",
    "DecisionView": "callslip.api.rules",
    "Event": "callslip.model.events",
    "ExtractedCommand": "callslip.formats.shell",
    "Frame": "callslip.api.follow",
    "InvalidDatabaseError": "callslip.errors",
    "InvalidInputError": "callslip.errors",
    "InvalidTransitionError": "callslip.errors",
    "Ledger": "callslip.api.ledger",
    "Limits": "callslip.settings",
    "ListedSession": "callslip.model.records",
    "LocalLedger": "callslip.api.ledger",
    "IncompleteCopyError": "callslip.errors",
    "LostFileError": "callslip.errors",
    "NewRule": "callslip.api.rules",
    "NoSessionError": "callslip.errors",
    "NotFoundError": "callslip.errors",
    "OpenLedger": "callslip.api.ledger",
    "Page": "callslip.model.records",
    "PermissionDeniedError": "callslip.errors",
    "PolicyView": "callslip.api.rules",
    "QueueFullError": "callslip.errors",
    "ReadOnlyStoreError": "callslip.errors",
    "RemoteLedger": "callslip.client.remote_ledger",
    "RuleBook": "callslip.api.rule_book",
    "RulePreview": "callslip.api.rule_book",
    "RuleTest": "callslip.api.rule_book",
    "RuleView": "callslip.api.rules",
    "SearchResult": "callslip.model.search",
    "SearchResults": "callslip.model.search",
    "ServerUnavailableError": "callslip.errors",
    "Session": "callslip.api.session",
    "SessionRecord": "callslip.model.records",
    "Settings": "callslip.settings",
    "SlowReaderError": "callslip.errors",
    "Snapshot": "callslip.model.entries",
    "StaleClaimError": "callslip.errors",
    "StoreError": "callslip.errors",
    "ToolCall": "callslip.model.entries",
    "Turn": "callslip.api.turn",
    "UnsupportedVersionError": "callslip.errors",
    "UsageGroup": "callslip.api.usage",
    "UsageReport": "callslip.api.usage",
    "WaitTimeoutError": "callslip.errors",
    "Worker": "callslip.worker",
    "asgi": "callslip.serving",
    "chat": "callslip.http.chat",
    "connect": "callslip.client.open",
    "extract_commands": "callslip.formats.shell",
    "format_tool_results": "callslip.formats.shell",
    "open": "callslip.client.open",
    "tool": "callslip.api.tools",
    "truncate_output": "callslip.formats.shell",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "sync":
        return import_module("callslip.sync")
    if name not in _MODULES:
        raise AttributeError(f"module 'callslip' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
