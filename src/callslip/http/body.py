"""Parse the bodies of requests. What they may contain is limited, as nothing else runs while a JSON text is parsed."""

from __future__ import annotations

from typing import Any, cast

from callslip.http.problems import RequestTooLargeError
from callslip.model import codec
from callslip.settings import Limits

MEDIA_JSON = "application/json"
MEDIA_LINES = ("application/x-ndjson", "application/jsonl")


def parse_value(raw: bytes, field: str, limits: Limits) -> Any:
    """Return the value of a JSON text; raise RequestTooLargeError if it has too many values."""
    if codec.has_more_values(raw, limits.body_values):
        raise RequestTooLargeError(
            f"{field}: must have at most {limits.body_values} values. Send it in parts.", limits.body_values
        )
    return codec.parse_json(raw, field=field, max_bytes=limits.body_bytes)


def parse_messages(body: bytes, media_type: str, limits: Limits) -> list[Any]:
    """Return the messages of a body: a JSON array, a single message, or one per line."""
    if media_type in MEDIA_LINES:
        _check_count(body.count(b"\n"), limits)
        lines = enumerate(body.split(b"\n"), 1)
        return [parse_value(line, f"line {number}", limits) for number, line in lines if line.strip()]
    value = parse_value(body, "body", limits)
    messages = cast("list[Any]", value) if isinstance(value, list) else [value]
    _check_count(len(messages), limits)
    return messages


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.body_messages:
        raise RequestTooLargeError(
            f"body: must have at most {limits.body_messages} messages, got {count}. Send it in parts.",
            limits.body_messages,
        )
