"""Read the fields of a message from any producer: fields have several names and may be inside of `data` or `payload`.

This module only knows names. Readers ignore unknown fields and store the full message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import as_dict, first_text, has_other_fields, parse_json_or

FORMAT = "act-observe"
UNKNOWN = "unknown"
"""The placeholder of old producers for a missing tool name."""

# All names of a field: as producers send it, and as timelines store it.
EXECUTION = ("execution_id", "tool_execution_id", "executionId", "toolExecutionId")
CALL = ("call_id", "callId", "tool_call_id", "toolCallId")
TOOL = ("tool_name", "toolName")
INPUT = ("tool_input", "toolInput")
OUTPUT = ("result", "observation", "toolOutput")
FAILED = ("is_error", "isError")
DURATION = ("duration_ms", "durationMs")
CALLSLIP = "callslip_id"
"""Written for readers. It is the id of another call when the message is read into another session."""
KIND = ("type", "event_type", "event")
INSIDE = ("data", "payload")
TIME = ("timestamp",)

_EPOCH = 10**9  # Smaller numbers are not times since the epoch. Seconds have 10 digits, ms have 13, us have 16.
_UNITS = ((10**11, 1000.0), (10**14, 1.0), (10**17, 0.001))


class Message(msgspec.Struct, frozen=True):
    """One message: its kind, its fields and its time in ms since the epoch, 0 if it has none."""

    kind: str
    fields: dict[str, Any]
    at: int = 0

    def first(self, names: Iterable[str]) -> Any:
        """Return the first of some fields that is not null; None if all are null, UNSET if there is none."""
        values = [self.fields[name] for name in names if name in self.fields]
        return next((value for value in values if value is not None), None if values else UNSET)

    def text(self, *names: str) -> str:
        """Return the first of some fields that is a non-empty string, or ""."""
        return first_text(self.fields, *names)

    def has_other_fields(self, *known: Collection[str]) -> bool:
        """Return whether the message has fields besides the known ones."""
        return has_other_fields(self.fields, {name for names in (KIND, INSIDE, TIME, *known) for name in names})


def read(body: Any, kinds: Collection[str]) -> Message:
    """Read a message of one of some kinds; the kind is "" for any other message."""
    outer = as_dict(body)
    inside = [as_dict(_parse_inside(outer.get(name))) for name in INSIDE]
    inner = inside[0] or inside[1]
    names = [fields[name] for fields in (outer, inner) for name in KIND if isinstance(fields.get(name), str)]
    fields = {**outer, **inner}
    has_kind = any(fields.get(name) not in (None, "") for name in KIND)
    kind = next((name for name in names if name in kinds), "") if has_kind else _kind_by_fields(fields)
    return Message(kind, fields, _time_ms(fields.get("timestamp")))


def _kind_by_fields(fields: dict[str, Any]) -> str:
    """Return the kind of an event that has only its fields, such as a dataclass; "" if they belong to no kind."""
    if not any(fields.get(name) for name in (*EXECUTION, *CALL, *TOOL)):
        return ""
    if any(name in fields for name in OUTPUT):
        return "observe"
    return "act" if any(name in fields for name in INPUT) else ""


def _parse_inside(inside: Any) -> Any:
    """Return an inner message, parsed if it is text, as in the data line of an event stream."""
    return parse_json_or(inside, None) if isinstance(inside, str) and inside.startswith("{") else inside


def _time_ms(timestamp: Any) -> int:
    """Return milliseconds since the epoch. A time without a zone is read as UTC."""
    if isinstance(timestamp, str):
        return _iso_time_ms(timestamp)
    if not isinstance(timestamp, int | float) or isinstance(timestamp, bool):
        return 0
    unit = next((unit for limit, unit in _UNITS if _EPOCH <= timestamp < limit), 0.0)
    return int(timestamp * unit)


def _iso_time_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0
    return max(0, round(seconds * 1000))
