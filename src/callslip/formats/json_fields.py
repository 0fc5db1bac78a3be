"""Read fields of untrusted JSON. A value of another shape than the expected one counts as absent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias, cast

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.model.names import check_id

Fields: TypeAlias = dict[str, Any]

MIN_EPOCH_S, MAX_NUMBER = 10**9, 10**11


def as_dict(value: Any) -> dict[str, Any]:
    """Return an object, or {} for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list, or [] for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_str(value: Any) -> str:
    """Return a string, or "" for anything else."""
    return value if isinstance(value, str) else ""


def as_index(value: Any) -> int:
    """Return a list index, or -1 for anything else."""
    return value if type(value) is int and 0 <= value < MAX_NUMBER else -1


def identifier(value: Any) -> str:
    """Return a foreign id, a digest of one that is too long or unprintable, or "" for none."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER:
        value = str(value)
    if not isinstance(value, str) or not value:
        return ""
    try:
        return check_id(value, "id")
    except InvalidInputError:
        return f"digest:{codec.digest(to_bytes(value))}"


def first_text(fields: Mapping[str, Any], *names: str) -> str:
    """Return the first of some fields that is a non-empty string, or ""."""
    return next((value for name in names if isinstance(value := fields.get(name), str) and value), "")


def seconds_to_ms(seconds: Any) -> int:
    """Return a time in seconds since the epoch in milliseconds; 0 for none."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < MAX_NUMBER:
        return 0
    return int(seconds * 1000)


def parse_json_or(text: str, default: Any, max_bytes: int = codec.MAX_EVENT_BYTES) -> Any:
    """Return the value of a JSON text, or `default` if it is not JSON."""
    try:
        return codec.parse_json(text, max_bytes=max_bytes)
    except InvalidInputError:
        return default


def is_json(text: str) -> bool:
    """Return whether a text is complete JSON."""
    return parse_json_or(text, ...) is not ...


def parse_arguments(value: Any) -> Any:
    """Return the arguments of a call: parsed if they are JSON text, {} if there are none, else the value itself."""
    if isinstance(value, str):
        value = parse_json_or(value, value) if value.strip() else None
    return {} if value is None else value


def has_other_fields(fields: Mapping[str, Any], known: Collection[str]) -> bool:
    """Return whether a field outside `known` has a value other than null."""
    return any(value is not None for name, value in fields.items() if name not in known)


def has_other_content(fields: Mapping[str, Any], known: Collection[str]) -> bool:
    """Return whether a field outside `known` has a value that is neither null nor empty."""
    return any(value not in (None, "", [], {}) for name, value in fields.items() if name not in known)


def error_text(error: Any) -> str:
    """Return the message of an error, cut to 2000 characters."""
    fields = as_dict(error)
    return (error if isinstance(error, str) else as_str(fields.get("message")) or as_str(fields.get("code")))[:2000]


def text_digest(*parts: str) -> str:
    """Return a digest by which a repeated message is recognized. It ignores differences in white space."""
    return codec.digest(to_bytes("\0".join(" ".join(part.split()) for part in parts)))


def value_digest(*values: Any) -> str:
    """Return a digest by which values are compared, also of strings that are not valid Unicode."""
    return codec.digest(to_bytes(repr(values)))


def to_bytes(text: str) -> bytes:
    """Return a text as bytes, also if it is not valid Unicode."""
    return text.encode("utf-8", "surrogatepass")


# Rows of a recording: {t, dir, msg}


def recording_time_ms(seconds: Any, started_ms: int) -> int:
    """Return the time of a row in milliseconds since the epoch, 0 if it is unknown.

    Small numbers count from the start of the recording.
    """
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < MAX_NUMBER:
        return 0
    is_epoch = seconds >= MIN_EPOCH_S
    return (0 if is_epoch else started_ms) + int(seconds * 1000) if is_epoch or started_ms else 0


def parse_message(message: Any) -> Any:
    """Return a message, parsed if it was recorded as text; None if that text is not JSON."""
    return parse_json_or(message, None) if isinstance(message, str) else message
