"""Parse the bodies of requests. What they may contain is limited, as nothing else runs while a JSON text is parsed."""

from __future__ import annotations

from typing import Any, cast

from callslip.http.problems import RequestTooLargeError
from callslip.model import codec
from callslip.settings import Limits

MEDIA_JSON = "application/json"
MEDIA_LINES = ("application/x-ndjson", "application/jsonl")
LINES_FACTOR = 2
"""How many times the values of one JSON text all lines may have: Python's garbage collector visits all of them."""


def parse_value(raw: bytes, field: str, limits: Limits) -> Any:
    """Return the value of a JSON text; raise RequestTooLargeError if it has too many values."""
    _check_values(raw, field, limits.body_values)
    return codec.parse_json(raw, field=field, max_bytes=limits.body_bytes)


def parse_messages(body: bytes, media_type: str, limits: Limits) -> list[Any]:
    """Return the messages of a body: a JSON array, a single message, or one per line."""
    if media_type in MEDIA_LINES:
        _check_count(body.count(b"\n"), limits)
        _check_values(body, "body", limits.body_values * LINES_FACTOR)
        lines = enumerate(body.split(b"\n"), 1)
        return [parse_value(line, f"line {number}", limits) for number, line in lines if line.strip()]
    value = parse_value(body, "body", limits)
    messages = cast("list[Any]", value) if isinstance(value, list) else [value]
    _check_count(len(messages), limits)
    return messages


def _check_values(raw: bytes, field: str, limit: int) -> None:
    if codec.has_more_values(raw, limit):
        raise RequestTooLargeError(f"{field}: must have at most {limit} values. Send it in parts.", limit)


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.body_messages:
        raise RequestTooLargeError(
            f"body: must have at most {limits.body_messages} messages, got {count}. Send it in parts.",
            limits.body_messages,
        )
