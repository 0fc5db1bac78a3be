"""JSON from a stranger, taken apart: what is not of the shape that is asked for counts as absent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.model.names import check_id

EPOCH, LAST = 10**9, 10**11


def as_dict(value: Any) -> dict[str, Any]:
    """The members of an object; of anything else none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The items of a list; of anything else none."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_str(value: Any) -> str:
    """A text; of anything else none."""
    return value if isinstance(value, str) else ""


def as_index(value: Any) -> int:
    """A place in a list; -1 for anything that is none."""
    return value if type(value) is int and 0 <= value < LAST else -1


def identifier(value: Any) -> str:
    """A foreign id as one that can be kept: itself, or a digest of one too long or unprintable. "" for none."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LAST:
        value = str(value)
    if not isinstance(value, str) or not value:
        return ""
    try:
        return check_id(value, "id")
    except InvalidInputError:
        return f"digest:{codec.digest(_bytes(value))}"


def milliseconds(seconds: Any) -> int:
    """A time in seconds since the epoch as one in milliseconds; 0 for none."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < LAST:
        return 0
    return int(seconds * 1000)


def arguments(given: Any) -> Any:
    """The arguments of a call: what their text is JSON of. A text that is none stays as it is; none at all are {}."""
    if not isinstance(given, str):
        return {} if given is None else given
    if not given.strip():
        return {}
    value, whole = _parsed(given)
    return given if not whole else {} if value is None else value


def is_whole(given: str) -> bool:
    """Whether a text is JSON, so that nothing of it can be missing."""
    return _parsed(given)[1]


def _parsed(given: str) -> tuple[Any, bool]:
    try:
        return codec.parse_json(given), True
    except InvalidInputError:
        return None, False


def leaves(said: dict[str, Any], taken: Iterable[str]) -> bool:
    """Whether there is more to a message than was taken over, so that it is to be kept whole."""
    return any(value not in (None, "", [], {}) for name, value in said.items() if name not in taken)


def complaint(error: Any) -> str:
    """What an error says, in a line."""
    said = (
        error if isinstance(error, str) else as_str(as_dict(error).get("message")) or as_str(as_dict(error).get("code"))
    )
    return said[:2000]


def mark(*parts: str) -> str:
    """What a message is known by when it comes again. Space between words is nothing."""
    return codec.digest(_bytes("\0".join(" ".join(part.split()) for part in parts)))


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


# Rows of a recording: {t, dir, msg}


def recorded_at(seconds: Any, started: int) -> int:
    """Milliseconds since the epoch; small numbers count from the start of the recording, if that is known."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < LAST:
        return 0
    since = 0 if seconds >= EPOCH else started
    return since + int(seconds * 1000) if since or seconds >= EPOCH else 0


def parsed(message: Any) -> Any:
    """A message, also if it was written down as text."""
    if not isinstance(message, str):
        return message
    try:
        return codec.parse_json(message)
    except InvalidInputError:
        return None
