"""Read and write JSON in a canonical form that every reader can decode.

`parse_json` reads JSON text from outside, `validate_json` takes Python values that should be JSON, `to_json` takes any
object. All three return None, bool, int of at most 300 digits, finite float, str without lone surrogates, list, and
dict with str keys, at most 128 containers deep. `encode` writes it.

Of keys that are the same, or become the same, the last one wins.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
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
MAX_DIGITS = 300  # Python, JavaScript, SQLite and PostgreSQL can read this; a double holds up to 1e308.
LARGE_VALUES = 5000  # With more values than this, work on a JSON value takes long enough to need a thread.
MAX_ITEMS = 2**20  # `to_json` stops here: objects that refer to each other have infinitely many paths.

# Bound methods, as a `def` around them would double their cost. `encode` must get canonical values only: it silently
# writes NaN as null and bytes as base64.
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode

_TOO_LARGE = 10**MAX_DIGITS
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_DIGIT_RUN = b"0" * (MAX_DIGITS + 1)
_SAMPLE_BYTES = 100  # Of a longer run of digits than is allowed, three samples or more are digits.
_DIGIT_SAMPLES = b"0" * (MAX_DIGITS // _SAMPLE_BYTES)

_BRACKETS = b"[{]}"
_PIECE_BYTES = 64 * 2**10
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")  # as signed bytes: one level in, one level out
_NO_BRACKET = bytes(set(range(256)) - set(_BRACKETS))

_HIGH_SURROGATE = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW_SURROGATE = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(
    rb"%b(?!%b)|(?<!%b)%b" % (_HIGH_SURROGATE, _LOW_SURROGATE, _HIGH_SURROGATE, _LOW_SURROGATE)
)


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON; to Python 1, 1.0 and True are equal too."""
    return one == other and (isinstance(other, str) or encode(one) == encode(other))


DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, TypeError)
"""The exceptions of decoding damaged data."""


def stored_decoder(kind: Any, what: str) -> Callable[[bytes | str], Any]:
    """Return a decoder for stored JSON, which raises CorruptDataError that names `what`."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes | str) -> Any:
        try:
            return decode(body)
        except DECODE_ERRORS as error:
            raise CorruptDataError(f"{what} cannot be read: {error}") from error

    return read


def digest(data: bytes) -> str:
    """Return the BLAKE2b digest of `data` as 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def clean_text(value: str) -> str:
    """Return the text with surrogate pairs joined and each lone surrogate replaced by U+FFFD."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def json_depth(data: bytes) -> int:
    """Return the nesting depth of a JSON text: 0 for a scalar. Takes linear time and never raises."""
    depth = deepest = 0
    for outside in _outside_strings(data):
        steps = memoryview(outside.translate(_STEPS, _NO_BRACKET)).cast("b")
        depths = list(accumulate(steps, initial=depth))
        depth, deepest = depths[-1], max(deepest, max(depths))
    return deepest


def has_more_values(data: bytes, limit: int) -> bool:
    """Return whether a JSON text has more values than a limit, before it is parsed. Keys do not count."""
    if _count_values(data) <= limit:  # An upper bound: it includes commas and brackets inside of strings.
        return False
    return sum(map(_count_values, _outside_strings(data))) > limit


def is_large(value: Any, limit: int = LARGE_VALUES) -> bool:
    """Return whether a JSON value has more values inside than a limit. Visits no more values than that."""
    count, stack = 0, [value]
    while stack:
        inside = stack.pop()
        count += len(inside)
        if count > limit:
            return True
        items = cast("dict[str, Any]", inside).values() if type(inside) is dict else inside
        stack += [item for item in items if type(item) is dict or type(item) is list]
    return False


def _count_values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """Yield a JSON text without its strings, in pieces, so that other threads can run between them."""
    delimited = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    in_string = 0
    for start in range(0, len(delimited), _PIECE_BYTES):
        parts = delimited[start : start + _PIECE_BYTES].split(b'"')
        yield b"".join(parts[in_string::2])
        in_string ^= (len(parts) - 1) & 1


def parse_json(
    data: bytes | str, *, field: str = "body", max_bytes: int = MAX_EVENT_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """Return the value of a JSON text, or raise InvalidInputError."""
    if len(data) > max_bytes:  # A str has at least as many bytes; do not encode a huge one only to refuse it.
        raise _too_big(field, len(data), max_bytes)
    raw = clean_text(data).encode() if isinstance(data, str) else data
    if len(raw) > max_bytes:
        raise _too_big(field, len(raw), max_bytes)
    if _is_deeper(raw, max_depth):
        raise _too_deep(field, max_depth)
    value = _read(raw, field, max_depth)
    return _canonical_copy(value, field, max_depth) if _has_long_digits(raw) else value


def validate_json(value: Any, field: str, max_depth: int = MAX_DEPTH, *, max_bytes: int = MAX_EVENT_BYTES) -> Any:
    """Return a canonical copy of a JSON value, or raise InvalidInputError with the path of what is not JSON.

    Tuples become lists. Keys that are numbers, booleans or None become their JSON text.
    """
    if type(value) is str and 6 * len(value) + 2 <= max_bytes:  # The longest escape has six bytes.
        return clean_text(value)
    copy, size = _round_trip(value, max_depth)
    if size < 0:
        copy = _canonical_copy(value, field, max_depth)
        size = len(encode(copy))
    if size > max_bytes:
        raise _too_big(field, size, max_bytes)
    return copy


def to_json(value: object) -> Any:
    """Convert any object to JSON. Never raises: what cannot be converted becomes a text such as `[cycle]`."""
    try:
        return _Converter().convert(value, 0)
    except Exception:  # Reading its type name failed, or the stack was already full.
        return "[unreadable]"


def _read(raw: bytes, field: str, max_depth: int) -> Any:
    try:
        return _decode(raw)
    except UnicodeDecodeError as error:
        raise InvalidInputError(field, "must be UTF-8 text") from error
    except RecursionError as error:  # The stack of the caller was nearly full.
        raise _too_deep(field, max_depth) from error
    except msgspec.DecodeError as error:
        fixed = _replace_lone_surrogates(raw)
        if fixed != raw:
            return _read(fixed, field, max_depth)
        reason = str(error).replace("Input data was truncated", "unexpected end of input")
        raise InvalidInputError(
            field, f"invalid JSON: {reason}", MAX_DIGITS if "Integer" in reason else None
        ) from error


def _replace_lone_surrogates(raw: bytes) -> bytes:
    r"""Replace escaped lone surrogates, which are valid JSON but not valid text, by \ufffd.

    Escaped backslashes become NUL bytes meanwhile, which JSON text never contains: `\\ud800` is not an escape.
    """
    if b"\\u" not in raw or b"\0" in raw:
        return raw
    return _LONE_SURROGATE.sub(rb"\\ufffd", raw.replace(rb"\\", b"\0\0")).replace(b"\0\0", rb"\\")


def _round_trip(value: Any, max_depth: int) -> tuple[Any, int]:
    """Encode and decode a value; return the copy and its size, or a size of -1 if the copy differs.

    This runs in C. What `encode` changes silently (NaN, bytes, sets, dates, keys) comes back unequal.
    """
    try:
        raw = encode(value)
        copy = _decode(raw)
        if copy == value and not _is_deeper(raw, max_depth) and not _has_long_digits(raw):
            return copy, len(raw)
    except Exception:  # Too deep, a cycle, a surrogate, or not JSON: _canonical finds out what and where.
        pass
    return None, -1


def _is_deeper(raw: bytes, max_depth: int) -> bool:
    return raw.count(b"[") + raw.count(b"{") > max_depth and json_depth(raw) > max_depth


def _has_long_digits(raw: bytes) -> bool:
    """Return whether an integer may be too long. Digits in a text count too, so this can be a false positive."""
    if len(raw) <= MAX_DIGITS or _DIGIT_SAMPLES not in raw[::_SAMPLE_BYTES].translate(_DIGITS_TO_ZERO):
        return False
    return _DIGIT_RUN in raw.translate(_DIGITS_TO_ZERO)


def _canonical_copy(value: Any, field: str, max_depth: int) -> Any:
    try:
        return _canonical(value, field, max_depth)
    except RecursionError as error:
        raise _too_deep(field, max_depth) from error


def _canonical(value: Any, field: str, depth: int) -> Any:
    """Return a canonical copy; `depth` is how many more levels of containers are allowed."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, int):
        if -_TOO_LARGE < value < _TOO_LARGE:
            return int.__index__(value)
        raise InvalidInputError(field, f"integers must have at most {MAX_DIGITS} digits", MAX_DIGITS)
    if isinstance(value, float):
        if math.isfinite(value):
            return float.__float__(value)
        raise InvalidInputError(field, f"must be a finite number, got {float.__repr__(value)}")
    if not isinstance(value, dict | list | tuple):
        raise InvalidInputError(field, f"must be JSON, got {type(value).__name__}")
    if depth <= 0:
        raise RecursionError  # The caller reports the whole field: the path to here is too long to help.
    if isinstance(value, dict):
        return _members(cast("dict[object, Any]", value), field, depth)
    items = cast("list[Any] | tuple[Any, ...]", value)
    return [_canonical(item, f"{field}[{index}]", depth - 1) for index, item in enumerate(items)]


def _members(value: dict[object, Any], field: str, depth: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, member in value.items():
        name = _key(key, field)
        members[name] = _canonical(member, f"{field}.{name[:40]}", depth - 1)
    return members


def _key(key: object, field: str) -> str:
    if isinstance(key, str):
        return clean_text(str.__str__(key))
    if key is None or isinstance(key, int | float):
        return encode(_canonical(key, f"a key of {field}", 0)).decode()
    raise InvalidInputError(field, f"keys must be JSON, got {type(key).__name__}")


def _too_big(field: str, size: int, limit: int) -> InvalidInputError:
    return InvalidInputError(field, f"must be at most {limit} bytes, got {size}", limit)


def _too_deep(field: str, limit: int) -> InvalidInputError:
    return InvalidInputError(field, f"must be nested at most {limit} levels deep and not contain itself", limit)


class _Converter:
    """Converts one value for `to_json`: `open` are the containers around it, `left` is how many items it may visit."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.left = MAX_ITEMS

    def convert(self, value: object, depth: int) -> Any:
        self.left -= 1
        try:
            layer = _layer(value)
            return layer if isinstance(layer, _SCALARS) else self._inside(value, layer, depth)
        except Exception:
            return clean_text(f"[unreadable {type(value).__name__}]")

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
            # The order of a set differs between processes.
            return sorted(items, key=encode) if isinstance(value, set | frozenset) else items
        return self.convert(layer, depth)

    def _members(self, layer: dict[object, object], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, member in layer.items():
            if self.left <= 0:
                members[_TOO_MANY_ITEMS] = None
                break
            name = self.convert(key, depth)
            members[name if isinstance(name, str) else encode(name).decode()] = self.convert(member, depth)
        return members

    def _items(self, layer: list[object], depth: int) -> list[Any]:
        items: list[Any] = []
        for item in layer:
            if self.left <= 0:
                items.append(_TOO_MANY_ITEMS)
                break
            items.append(self.convert(item, depth))
        return items


def _layer(value: object) -> object:
    """Return the outermost layer of a value: a JSON scalar, a list or dict of anything, or a simpler value."""
    exact = _EXACT.get(type(value))
    if exact is not None:
        return exact(value)
    for kinds, unwrap in _LAYERS:
        if isinstance(value, kinds):
            return unwrap(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for method in ("model_dump", "tolist"):  # pydantic; numpy. On the type, as some objects have every attribute.
        if callable(getattr(type(value), method, None)):
            return getattr(value, method)()
    return clean_text(_ADDRESS.sub("", repr(value)))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs between processes


def _integer_text(value: int) -> int | str:
    if -_TOO_LARGE < value < _TOO_LARGE:
        return int.__index__(value)
    try:
        return int.__repr__(value)
    except ValueError:  # Python limits decimal digits to 4300, but not hexadecimal ones.
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
_TOO_MANY_ITEMS = "[too many items]"

# The first match is used. An Enum may also be a str or an int, and bool is an int, so these come first.
_LAYERS: tuple[tuple[tuple[type, ...], Callable[[Any], object]], ...] = (
    ((bool, type(None)), lambda value: value),
    ((Enum,), lambda value: value.value),
    ((str,), lambda value: clean_text(str.__str__(value))),
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

# Finds the function for nearly all values in one step.
_EXACT: dict[type, Callable[[Any], object]] = {kind: unwrap for kinds, unwrap in _LAYERS for kind in kinds}


def read_cursor(cursor: str, *kinds: type) -> list[Any]:
    """Return the parts of a cursor, or raise InvalidInputError: a list must not silently restart."""
    value: Any = parse_json(cursor, field="cursor")
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    if [type(part) for part in parts] != list(kinds) or any(type(part) is int and abs(part) >= 2**63 for part in parts):
        raise InvalidInputError("cursor", "not valid for this list")
    return parts
