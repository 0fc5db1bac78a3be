"""Times, sizes and values as a person reads them. Times are UTC: whoever gets the page may be anywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from callslip.formats.html.markup import NOTHING, Html, element, text
from callslip.model import codec

DEEPEST = 20
"""Values that are nested deeper are not indented: their page would grow with the square of their depth."""

_SIZES = ("bytes", "KB", "MB", "GB", "TB")


def moment(ms: int) -> datetime | None:
    """A time of the log; None for none, and for one that no calendar has (foreign clocks may say anything)."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC) if ms > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def clock(ms: int) -> Html:
    """The time of day."""
    at = moment(ms)
    return element("time", text(f"{at:%H:%M:%S}"), datetime=_exact(at)) if at else NOTHING


def day(ms: int) -> str:
    """The date, "" if there is none."""
    at = moment(ms)
    return f"{at:%Y-%m-%d}" if at else ""


def full(ms: int) -> Html:
    """Date and time of day."""
    at = moment(ms)
    return element("time", text(f"{at:%Y-%m-%d %H:%M:%S} UTC"), datetime=_exact(at)) if at else NOTHING


def _exact(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def took(begin: int, end: int) -> str:
    """How long something took; "" if that is not known."""
    ms = end - begin
    if begin <= 0 or ms < 0:
        return ""
    if ms < 60_000:
        return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """A number of bytes."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if not unit else f"{amount:.1f} {_SIZES[unit]}"


def counted(count: int, noun: str) -> str:
    """`1 call`, `1,234 calls`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def short(identity: str) -> str:
    """The beginning of an id, enough to tell it from its neighbours."""
    return identity if len(identity) <= 14 else identity[:13] + "…"


def json(value: Any) -> str:
    """A value as JSON, indented."""
    raw = codec.encode(value)
    return (msgspec.json.format(raw, indent=2) if codec.depth_of(raw) <= DEEPEST else raw).decode()


def plain(value: Any) -> str:
    """A value as text: texts as they are, blocks of content by their texts, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        texts = [block_text(item) for item in cast("list[Any]", value)]
        if texts and None not in texts:
            return "\n".join(part for part in texts if part)
    return json(value)


def fields(value: Any) -> dict[str, Any]:
    """The members of an object; of anything else, none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def block_text(block: Any) -> str | None:
    """The text of a text block, wrapped as content or not; None for any other block."""
    told = fields(block)
    told = fields(told.get("content")) or told
    said = told.get("text")
    return said if isinstance(said, str) and told.get("type", "text") == "text" else None
