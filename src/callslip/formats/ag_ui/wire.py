"""Names of AG-UI 1.0 (PyPI `ag-ui-protocol` 1.0.0, npm `@ag-ui/core` 1.0.0)."""

from __future__ import annotations

from typing import Any

from callslip.formats.call_tracker import ENDS_WITHOUT_RESULT
from callslip.formats.json_fields import parse_json_or
from callslip.model import events as ev
from callslip.model.events import CallEnd

FORMAT = "ag-ui"

# Every event may have these. The provider's own event is for debugging and not part of the conversation.
ENVELOPE = {"type", "timestamp", "rawEvent"}

# Names of events before 1.0 and their current names.
RENAMED = {
    "THINKING_START": "REASONING_START",
    "THINKING_END": "REASONING_END",
    "THINKING_TEXT_MESSAGE_START": "REASONING_MESSAGE_START",
    "THINKING_TEXT_MESSAGE_CONTENT": "REASONING_MESSAGE_CONTENT",
    "THINKING_TEXT_MESSAGE_END": "REASONING_MESSAGE_END",
}

# How a call ended, if a producer sets it under `metadata.callslip`: a result has no field for it.
ENDED: dict[str, type[CallEnd]] = {"failed": ev.CallFailed, **ENDS_WITHOUT_RESULT}

_MIN_TIME_MS, _MAX_TIME_MS = 10**11, 10**14  # The years 1973 to 5138: other numbers are not milliseconds.


def time_of(event: dict[str, Any]) -> int:
    """Return the producer's time in milliseconds; 0 for none or an implausible one."""
    at = event.get("timestamp")
    return at if type(at) is int and _MIN_TIME_MS <= at < _MAX_TIME_MS else 0


def parse_arguments(text: str) -> Any:
    """Return the arguments of a call: the value of JSON text, or the text itself if it is not JSON."""
    return parse_json_or(text, text) if text.strip() else {}
