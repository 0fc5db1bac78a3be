"""What JavaScript makes of JSON, for formats whose readers are written in it.

It rounds integers that a double cannot hold. An object with the key `__proto__`, or with `prototype` inside
`constructor`, is refused by the careful among its parsers and dangerous to the others; and zod 3.25 takes an object
with any `constructor` of its own for no plain one. Such keys are shown in brackets and such integers as texts, in
stream and history alike.
"""

from __future__ import annotations

from typing import Any, cast

from callslip.model import codec

_FORBIDDEN = ("__proto__", "constructor")
_QUOTED = tuple(f'"{key}"'.encode() for key in _FORBIDDEN)
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_SIXTEEN = b"0" * 16
_EXACT = 2**53 - 1


def readable(value: Any) -> Any:
    """A JSON value that the client reads as it is meant; the same object when nothing has to be changed."""
    if value is None or isinstance(value, str | bool | float):
        return value
    raw = codec.encode(value)
    if any(key in raw for key in _QUOTED) or _SIXTEEN in raw.translate(_DIGITS):
        return _readable(value)
    return value


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {_key(key, members): _readable(member) for key, member in members.items()}
    if isinstance(value, list):
        return [_readable(item) for item in cast("list[Any]", value)]
    if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
        return str(value)
    return value


def _key(key: str, members: dict[str, Any]) -> str:
    if key not in _FORBIDDEN:
        return key
    while (key := f"({key})") in members:
        pass
    return key
