"""Format times and values for people. Times are UTC, because readers of a page may be anywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from callslip.formats.html.markup import NO_HTML, Html, element, text
from callslip.formats.json_fields import as_dict
from callslip.model import codec
from callslip.model.display import parse_time

MAX_INDENT_DEPTH = 20
"""Values that are nested deeper are not indented: the page would grow with the square of their depth."""


def time_of_day(ms: int) -> Html:
    """Return the time of day."""
    at = parse_time(ms, UTC)
    return element("time", text(f"{at:%H:%M:%S}"), datetime=_iso_time(at)) if at else NO_HTML


def date_of(ms: int) -> str:
    """Return the date, "" for none."""
    at = parse_time(ms, UTC)
    return f"{at:%Y-%m-%d}" if at else ""


def date_and_time(ms: int) -> Html:
    """Return the date and time of day."""
    at = parse_time(ms, UTC)
    return element("time", text(f"{at:%Y-%m-%d %H:%M:%S} UTC"), datetime=_iso_time(at)) if at else NO_HTML


def _iso_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
