"""States, sizes, durations and counts as text for people, on a terminal and on a page."""

from __future__ import annotations

from datetime import datetime, tzinfo

# The sign and the label of each state of a call, as in web/states.js.
CALL_STATES: dict[str, tuple[str, str]] = {
    "queued": ("○", "Queued"),
    "awaiting_approval": ("?", "Waiting for approval"),
    "running": ("●", "Running"),
    "completed": ("✓", "Completed"),
    "failed": ("✗", "Failed"),
    "denied": ("⊘", "Denied"),
    "cancelled": ("■", "Cancelled"),
    "expired": ("!", "Expired"),
    "lost": ("~", "Lost"),
}
APPROVAL_STATES: dict[str, tuple[str, str]] = {
    "pending": ("?", "Pending"),
    "granted": ("✓", "Approved"),
    "refused": ("⊘", "Denied"),
    "withdrawn": ("■", "Withdrawn"),
    "released": ("↦", "Answered in terminal"),
    "moot": ("■", "No longer needed"),
    "superseded": ("■", "Replaced"),
}
_SIZE_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def call_state_name(state: str) -> str:
    """Return the name of a call state within a sentence."""
    return CALL_STATES[state][1].lower() if state in CALL_STATES else state


def approval_state_name(state: str) -> str:
    """Return the name of an approval state within a sentence."""
    return APPROVAL_STATES[state][1].lower() if state in APPROVAL_STATES else state


def parse_time(ms: int, zone: tzinfo | None = None) -> datetime | None:
    """Return a time of the log, local without a zone; None if it is missing or out of range: clocks may be wrong."""
    try:
        return datetime.fromtimestamp(ms / 1000, zone) if ms > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def format_duration(begin: int, end: int) -> str:
    """Return the time between two moments in ms, precise enough to compare; "" if it is unknown."""
    return _format_ms(end - begin) if 0 < begin <= end else ""


def format_call_duration(started: int, ended: int, measured_ms: float | None = None) -> str:
    """Return how long a call took, as its producer measured it or else by its times; "" if it is unknown.

    An imported call without times of its own has two equal ones, which say nothing.
    """
    if measured_ms is not None:
        return _format_ms(round(measured_ms))
    return format_duration(started, ended) if ended > started else ""


def _format_ms(ms: int) -> str:
    if ms < 60_000:
        return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_size(count: int) -> str:
    """Return a number of bytes with its unit."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if not unit else f"{amount:.1f} {_SIZE_UNITS[unit]}"


def pluralize(count: int, noun: str) -> str:
    """Return `1 call` or `1,234 calls`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
