"""The words of AG-UI 1.0 (PyPI `ag-ui-protocol` 1.0.0, npm `@ag-ui/core` 1.0.0), and JSON that may be anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import CallEnd

FORMAT = "ag-ui"
OPTIONS = [
    {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
    {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
]

# Every event may carry these. The provider's own event, for whoever debugs it, is no part of the conversation.
ENVELOPE = {"type", "timestamp", "rawEvent"}

# Events of streams from before 1.0, which are read as what replaced them.
RENAMED = {
    "THINKING_START": "REASONING_START",
    "THINKING_END": "REASONING_END",
    "THINKING_TEXT_MESSAGE_START": "REASONING_MESSAGE_START",
    "THINKING_TEXT_MESSAGE_CONTENT": "REASONING_MESSAGE_CONTENT",
    "THINKING_TEXT_MESSAGE_END": "REASONING_MESSAGE_END",
}

# How a call ended, where a producer says so under `metadata.callslip`: a result has no word for it.
ENDED: dict[str, type[CallEnd]] = {
    "failed": ev.CallFailed,
    "denied": ev.CallDenied,
    "cancelled": ev.CallCancelled,
    "expired": ev.CallExpired,
    "lost": ev.CallLost,
}

_EARLIEST, _LATEST = 10**11, 10**14  # 1973 to 5138: anything else is no time in milliseconds


def mark(*values: Any) -> str:
    """What values are compared by. Of texts that are no Unicode too."""
    return codec.digest(repr(values).encode("utf-8", "surrogatepass"))


def leaves(said: dict[str, Any], taken: Collection[str]) -> bool:
    """Whether there is more to a message than was taken over."""
    return any(value is not None for name, value in said.items() if name not in taken)


def time_of(event: dict[str, Any]) -> int:
    """The producer's time in milliseconds; 0 for none, or one that cannot be meant."""
    at = event.get("timestamp")
    return at if type(at) is int and _EARLIEST <= at < _LATEST else 0


def parsed(arguments: str) -> Any:
    """The arguments of a call: what their JSON says, or the text itself where it is none."""
    if not arguments.strip():
        return {}
    try:
        return codec.parse_json(arguments)
    except InvalidInputError:
        return arguments
