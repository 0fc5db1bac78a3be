"""What a message says, whoever wrote it: members have several names, and may stand inside of `data` or `payload`.

Only names are known here. What is not known of a message is ignored by those who read it, and kept (S1.4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict
from callslip.model import codec

FORMAT = "act-observe"
UNKNOWN = "unknown"
"""What readers of old producers show for a name that they were not told; it names nothing."""

# One thing, under all the names it goes by: what is sent, and what timelines hold.
EXECUTION = ("execution_id", "tool_execution_id", "executionId", "toolExecutionId")
CALL = ("call_id", "callId", "tool_call_id", "toolCallId")
TOOL = ("tool_name", "toolName")
INPUT = ("tool_input", "toolInput")
OUTPUT = ("result", "observation", "toolOutput")
FAILED = ("is_error", "isError")
DURATION = ("duration_ms", "durationMs")
KIND = ("type", "event_type", "event")
INSIDE = ("data", "payload")
TIME = ("timestamp",)

_EPOCH = 10**9  # Smaller numbers are no times of day. Seconds have 10 digits, ms have 13, us have 16.
_UNITS = ((10**11, 1000.0), (10**14, 1.0), (10**17, 0.001))


class Message(msgspec.Struct, frozen=True):
    """One message: its kind, what it says, and when, in ms since the epoch; 0 if it does not say."""

    kind: str
    said: dict[str, Any]
    at: int = 0

    def first(self, names: Iterable[str]) -> Any:
        """The first of these members that says something; None if one is there and none does, UNSET without any."""
        found = [self.said[name] for name in names if name in self.said]
        return next((value for value in found if value is not None), None if found else UNSET)

    def text(self, *names: str) -> str:
        """The first of these members that is a text, "" if there is none."""
        return next((value for name in names if isinstance(value := self.said.get(name), str) and value), "")

    def leaves(self, *taken: Collection[str]) -> bool:
        """Whether there is more to it than was taken over."""
        known = {name for names in (KIND, INSIDE, TIME, *taken) for name in names}
        return any(value is not None for name, value in self.said.items() if name not in known)


def read(body: Any, kinds: Collection[str]) -> Message:
    """A message of one of these kinds; of kind "" if it is of no kind that is known here."""
    outer = as_dict(body)
    inside = [as_dict(_parsed(outer.get(name))) for name in INSIDE]
    inner = inside[0] or inside[1]
    named = [said[name] for said in (outer, inner) for name in KIND if isinstance(said.get(name), str)]
    said = {**outer, **inner}
    return Message(next((name for name in named if name in kinds), ""), said, _time(said.get("timestamp")))


def _parsed(inside: Any) -> Any:
    """What stands there as text, as the line of an event stream has it."""
    if not isinstance(inside, str) or not inside.startswith("{"):
        return inside
    try:
        return codec.parse_json(inside)
    except InvalidInputError:
        return None


def _time(given: Any) -> int:
    """Milliseconds since the epoch. A time of day without a zone is read as UTC: there is no clock here to ask."""
    if isinstance(given, str):
        return _moment(given)
    if not isinstance(given, int | float) or isinstance(given, bool):
        return 0
    unit = next((unit for limit, unit in _UNITS if _EPOCH <= given < limit), 0.0)
    return int(given * unit)


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0
    return max(0, round(seconds * 1000))
