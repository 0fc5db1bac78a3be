"""Format times, sizes and values for people. Times are UTC, because readers of a page may be anywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from callslip.formats.html.markup import NOTHING, Html, element, text
from callslip.formats.json_fields import as_dict
from callslip.model import codec

MAX_INDENT_DEPTH = 20
"""Values that are nested deeper are not indented: the page would grow with the square of their depth."""

_SIZE_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def parse_time(ms: int) -> datetime | None:
    """Return a time of the log; None for none, and for one that is out of range, as foreign clocks may send."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC) if ms > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def time_of_day(ms: int) -> Html:
    """Return the time of day."""
    at = parse_time(ms)
    return element("time", text(f"{at:%H:%M:%S}"), datetime=_iso_time(at)) if at else NOTHING


def date_of(ms: int) -> str:
    """Return the date, "" for none."""
    at = parse_time(ms)
    return f"{at:%Y-%m-%d}" if at else ""


def date_and_time(ms: int) -> Html:
    """Return the date and time of day."""
    at = parse_time(ms)
    return element("time", text(f"{at:%Y-%m-%d %H:%M:%S} UTC"), datetime=_iso_time(at)) if at else NOTHING


def _iso_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(begin: int, end: int) -> str:
    """Return a duration; "" if it is unknown."""
    ms = end - begin
    if begin <= 0 or ms < 0:
        return ""
    if ms < 60_000:
        return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_size(count: int) -> str:
    """Return a number of bytes with a unit."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if not unit else f"{amount:.1f} {_SIZE_UNITS[unit]}"


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: `1 call`, `1,234 calls`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def shorten(identity: str) -> str:
    """Return the beginning of a long id."""
    return identity if len(identity) <= 14 else identity[:13] + "…"


def indented_json(value: Any) -> str:
    """Return a value as indented JSON."""
    raw = codec.encode(value)
    return (msgspec.json.format(raw, indent=2) if codec.json_depth(raw) <= MAX_INDENT_DEPTH else raw).decode()


def as_text(value: Any) -> str:
    """Return a value as text: text itself, the texts of content blocks, or JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        texts = [block_text(item) for item in cast("list[Any]", value)]
        if texts and None not in texts:
            return "\n".join(part for part in texts if part)
    return indented_json(value)


def block_text(block: Any) -> str | None:
    """Return the text of a text block, wrapped as content or not; None for any other block."""
    fields = as_dict(block)
    fields = as_dict(fields.get("content")) or fields
    value = fields.get("text")
    return value if isinstance(value, str) and fields.get("type", "text") == "text" else None
