"""JSON in and out. What passes here reads back the same, and one bad value never makes a session unreadable.

`parse` takes text from strangers, `check` takes Python values that claim to be JSON already, `safe` takes anything.
All three give the same canonical form: None, bool, int of at most 300 digits, finite float, str without lone
surrogates, list, and dict with str keys, at most 128 containers deep. `encode` writes it.

Of keys that are the same, or become the same, the last one wins.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import accumulate
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

import msgspec

from callslip.errors import CorruptDataError, InvalidInputError

MAX_EVENT_BYTES = 16 * 2**20
MAX_DEPTH = 128
MAX_DIGITS = 300  # Python, JavaScript, SQLite and Postgres all read such an integer; a double holds its size (1e308)
MAX_ITEMS = 2**20  # what `safe` visits of one value: objects that point at each other have endlessly many paths

# Bound methods, as a `def` around them would double their cost. Only canonical values may reach `encode`: by itself
# it writes NaN as null and bytes as base64, in silence.
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode

_TOO_LONG = 10**MAX_DIGITS
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_DIGIT_RUN = b"0" * (MAX_DIGITS + 1)

_BRACKETS = b"[{]}"
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")  # read as signed bytes: one level in, one level out
_NO_BRACKET = bytes(set(range(256)) - set(_BRACKETS))

_HIGH = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW))


def json_equal(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Python says so of 1, 1.0 and True as well."""
    return one == other and (isinstance(other, str) or encode(one) == encode(other))


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, TypeError)
"""What reading gives if bytes are not what they were, or are no bytes at all any more."""


def reader(kind: Any, what: str) -> Callable[[bytes | str], Any]:
    """Reads what this program wrote itself: if it cannot, the database is damaged."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes | str) -> Any:
        try:
            return decode(body)
        except UNREADABLE as error:
            raise CorruptDataError(f"{what} cannot be read: {error}") from error

    return read


def digest(data: bytes) -> str:
    """The name of some bytes: 32 hex digits of BLAKE2b."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def text(value: str) -> str:
    """The same text with U+FFFD for every lone surrogate; a pair that came as two halves is joined."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def depth_of(data: bytes) -> int:
    """How deep the JSON text nests: 0 for a scalar. Linear, whatever the depth, and never raises."""
    delimited = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(delimited.split(b'"')[::2])
    return max(accumulate(memoryview(outside.translate(_STEPS, _NO_BRACKET)).cast("b"), initial=0))


def parse_json(
    data: bytes | str, *, field: str = "body", max_bytes: int = MAX_EVENT_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """The value of a JSON text from a stranger, or Refused."""
    if len(data) > max_bytes:  # of a str this is the least it can be, so that no huge one is encoded to be refused
        raise _too_big(field, len(data), max_bytes)
    raw = text(data).encode() if isinstance(data, str) else data
    if len(raw) > max_bytes:
        raise _too_big(field, len(raw), max_bytes)
    if _deeper(raw, max_depth):
        raise _too_deep(field, max_depth)
    value = _read(raw, field, max_depth)
    return _walked(value, field, max_depth) if _long_digits(raw) else value


def validate_json(value: Any, field: str, max_depth: int = MAX_DEPTH, *, max_bytes: int = MAX_EVENT_BYTES) -> Any:
    """A canonical copy of a value that claims to be JSON, or Refused with the path of what is not.

    Tuples become lists, and keys that are numbers, booleans or None become the text JSON has for them.
    """
    if type(value) is str and 6 * len(value) + 2 <= max_bytes:  # the longest escape has six bytes
        return text(value)
    copy, size = _round_trip(value, max_depth)
    if size < 0:
        copy = _walked(value, field, max_depth)
        size = len(encode(copy))
    if size > max_bytes:
        raise _too_big(field, size, max_bytes)
    return copy


def to_json(value: object) -> Any:
    """Any object as JSON. Never raises; what cannot be shown becomes a text in square brackets that says so."""
    try:
        return _Walk().plain(value, 0)
    except Exception:  # not even the name of its type could be read, or the stack was full before we began
        return "[unreadable]"


def _read(raw: bytes, field: str, max_depth: int) -> Any:
    try:
        return _decode(raw)
    except UnicodeDecodeError as error:
        raise InvalidInputError(field, "not UTF-8 text") from error
    except RecursionError as error:  # the caller's own stack was nearly full
        raise _too_deep(field, max_depth) from error
    except msgspec.DecodeError as error:
        mended = _mend(raw)
        if mended != raw:
            return _read(mended, field, max_depth)
        problem = str(error)
        raise InvalidInputError(field, f"not JSON: {problem}", MAX_DIGITS if "Integer" in problem else None) from error


def _mend(raw: bytes) -> bytes:
    r"""The same text with \ufffd for escaped lone surrogates, which are JSON and yet no text.

    Escaped backslashes stand aside meanwhile, as NUL bytes, which JSON text never holds: `\\ud800` is not an escape.
    """
    if b"\\u" not in raw or b"\0" in raw:
        return raw
    return _LONE.sub(rb"\\ufffd", raw.replace(rb"\\", b"\0\0")).replace(b"\0\0", rb"\\")


def _round_trip(value: Any, max_depth: int) -> tuple[Any, int]:
    """The value written and read again, and its size; or a size of -1 where that is not the value that was given.

    This is all in C. What `encode` changes in silence (NaN, bytes, sets, dates, keys) comes back unequal.
    """
    try:
        raw = encode(value)
        copy = _decode(raw)
        if copy == value and not _deeper(raw, max_depth) and not _long_digits(raw):
            return copy, len(raw)
    except Exception:  # too deep, a cycle, a surrogate, a type unknown to JSON: the walk tells which, and where
        pass
    return None, -1


def _deeper(raw: bytes, max_depth: int) -> bool:
    return raw.count(b"[") + raw.count(b"{") > max_depth and depth_of(raw) > max_depth


def _long_digits(raw: bytes) -> bool:
    """Whether an integer might be too long. May be a text of digits; never misses one."""
    return len(raw) > MAX_DIGITS and _DIGIT_RUN in raw.translate(_DIGITS)


def _walked(value: Any, field: str, max_depth: int) -> Any:
    try:
        return _canonical(value, field, max_depth)
    except RecursionError as error:
        raise _too_deep(field, max_depth) from error


def _canonical(value: Any, field: str, depth: int) -> Any:
    """The walk behind `check`: `depth` more levels of containers are allowed."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(str.__str__(value))
    if isinstance(value, int):
        return _integer(value, field)
    if isinstance(value, float):
        return _finite(value, field)
    if not isinstance(value, dict | list | tuple):
        raise InvalidInputError(field, f"{type(value).__name__} is not JSON")
    if depth <= 0:
        raise RecursionError  # names the field it began at: the path to here is no help
    if isinstance(value, dict):
        return _members(cast("dict[object, Any]", value), field, depth)
    items = cast("list[Any] | tuple[Any, ...]", value)
    return [_canonical(item, f"{field}[{index}]", depth - 1) for index, item in enumerate(items)]


def _members(value: dict[object, Any], field: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, member in value.items():
        name = _key(key, field)
        found[name] = _canonical(member, f"{field}.{name[:40]}", depth - 1)
    return found


def _key(key: object, field: str) -> str:
    if isinstance(key, str):
        return text(str.__str__(key))
    if key is None or isinstance(key, int | float):
        return encode(_canonical(key, f"a key of {field}", 0)).decode()
    raise InvalidInputError(field, f"a key is {type(key).__name__}, which is not JSON")


def _integer(value: int, field: str) -> int:
    if -_TOO_LONG < value < _TOO_LONG:
        return int.__index__(value)
    raise InvalidInputError(field, "an integer of too many digits", MAX_DIGITS)


def _finite(value: float, field: str) -> float:
    if math.isfinite(value):
        return float.__float__(value)
    raise InvalidInputError(field, f"{float.__repr__(value)} is not JSON")


def _too_big(field: str, size: int, limit: int) -> InvalidInputError:
    return InvalidInputError(field, f"{size} bytes are too many", limit)


def _too_deep(field: str, limit: int) -> InvalidInputError:
    return InvalidInputError(field, "nested too deep, or inside itself", limit)


class _Walk:
    """One walk of `safe` over one value: the containers that are open, and how many items it may still visit."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.left = MAX_ITEMS

    def plain(self, value: object, depth: int) -> Any:
        self.left -= 1
        try:
            layer = _layer(value)
            return layer if isinstance(layer, _SCALARS) else self._inside(value, layer, depth)
        except Exception:
            return text(f"[unreadable {type(value).__name__}]")

    def _inside(self, value: object, layer: object, depth: int) -> Any:
        if id(value) in self.open:
            return "[cycle]"
        if depth >= MAX_DEPTH:
            return "[too deep]"
        self.open.add(id(value))
        try:
            return self._children(value, layer, depth + 1)
        finally:
            self.open.discard(id(value))

    def _children(self, value: object, layer: object, depth: int) -> Any:
        if isinstance(layer, dict):
            return self._members(cast("dict[object, object]", layer), depth)
        if isinstance(layer, list):
            items = self._items(cast("list[object]", layer), depth)
            # A set has another order in each process.
            return sorted(items, key=encode) if isinstance(value, set | frozenset) else items
        return self.plain(layer, depth)

    def _members(self, layer: dict[object, object], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, member in layer.items():
            if self.left <= 0:
                made[_CUT] = None
                break
            made[self._name(key, depth)] = self.plain(member, depth)
        return made

    def _items(self, layer: list[object], depth: int) -> list[Any]:
        made: list[Any] = []
        for item in layer:
            if self.left <= 0:
                made.append(_CUT)
                break
            made.append(self.plain(item, depth))
        return made

    def _name(self, key: object, depth: int) -> str:
        name = self.plain(key, depth)
        return name if isinstance(name, str) else encode(name).decode()


def _layer(value: object) -> object:
    """The outermost layer of a value: a scalar of JSON, a list or dict of anything, or the value it stands for."""
    exact = _EXACT.get(type(value))
    if exact is not None:
        return exact(value)
    for kinds, unwrap in _LAYERS:
        if isinstance(value, kinds):
            return unwrap(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for method in ("model_dump", "tolist"):  # pydantic; numpy. On the type, as some objects answer to every name
        if callable(getattr(type(value), method, None)):
            return getattr(value, method)()
    return text(_ADDRESS.sub("", repr(value)))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # another in each process


def _integer_text(value: int) -> int | str:
    if -_TOO_LONG < value < _TOO_LONG:
        return int.__index__(value)
    try:
        return int.__repr__(value)
    except ValueError:  # Python writes at most 4300 decimal digits, hexadecimal ones without limit
        return hex(value)


def _float_text(value: float) -> float | str:
    if math.isfinite(value):
        return float.__float__(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes_text(value: bytes | bytearray | memoryview) -> str | dict[str, str]:
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _struct_fields(value: msgspec.Struct) -> dict[str, object]:
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    return {name: getattr(value, field) for name, field in names}


_SCALARS = (str, int, float, type(None))
_CUT = "[too many items]"

# The first that fits. An Enum may also be a str or an int, and bool is an int, so these come first.
_LAYERS: tuple[tuple[tuple[type, ...], Callable[[Any], object]], ...] = (
    ((bool, type(None)), lambda value: value),
    ((Enum,), lambda value: value.value),
    ((str,), lambda value: text(str.__str__(value))),
    ((int,), _integer_text),
    ((float,), _float_text),
    ((dict,), dict),
    ((list, tuple, set, frozenset, deque), list),
    ((bytes, bytearray, memoryview), _bytes_text),
    ((date, time), lambda value: value.isoformat()),
    ((timedelta, Decimal, UUID, PurePath, complex), str),
    ((BaseException,), lambda value: {"error": str(value), "type": type(value).__name__}),
    ((msgspec.Struct,), _struct_fields),
    ((Mapping,), dict),
)

# For nearly all values the whole search.
_EXACT: dict[type, Callable[[Any], object]] = {kind: unwrap for kinds, unwrap in _LAYERS for kind in kinds}
