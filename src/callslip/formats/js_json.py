"""Change JSON values that JavaScript clients misread.

JavaScript rounds integers that a double cannot hold. Strict parsers refuse an object with the key `__proto__`, or with
`prototype` inside `constructor`; other parsers are attacked by it; and zod 3.25 does not accept an object with its own
`constructor`. Streams and histories write such keys in brackets and such integers as text.
"""

from __future__ import annotations

from typing import Any, cast

from callslip.model import codec

_UNSAFE_KEYS = ("__proto__", "constructor")
_QUOTED_KEYS = tuple(f'"{key}"'.encode() for key in _UNSAFE_KEYS)
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_SIXTEEN_DIGITS = b"0" * 16
_MAX_SAFE_INTEGER = 2**53 - 1


def readable(value: Any) -> Any:
    """Return a value that a JavaScript client reads correctly; the same object if nothing has to change."""
    if value is None or isinstance(value, str | bool | float):
        return value
    raw = codec.encode(value)
    if any(key in raw for key in _QUOTED_KEYS) or _SIXTEEN_DIGITS in raw.translate(_TO_ZEROS):
        return _change(value)
    return value


def _change(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {_safe_key(key, members): _change(member) for key, member in members.items()}
    if isinstance(value, list):
        return [_change(item) for item in cast("list[Any]", value)]
    if isinstance(value, int) and not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
        return str(value)
    return value


def _safe_key(key: str, members: dict[str, Any]) -> str:
    if key not in _UNSAFE_KEYS:
        return key
    while (key := f"({key})") in members:
        pass
    return key
