"""Store what a decoder remembers, and continue with it in another process.

Decoders are plain objects: attributes, containers and structs. This module writes any such graph of objects as
MessagePack and reads it into a new decoder. `pickle` could do that too, but it runs code that the file names. Here a
file can only name classes of this package that are already loaded, and no constructor of them runs. Functions and
classes among the attributes are no state: the new decoder has its own.

An object that can be changed is written once, with a number, and after that by its number.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct, structs

from callslip.formats.sent_text import SentText
from callslip.formats.text_digest import TextDigest

VERSION = 3
"""Increase it if an attribute of a decoder is added, removed or gets another meaning."""

REFERENCE, LIST, TUPLE, DICT, SET, DEQUE, OBJECT, CLASS, UNSET_VALUE, TIME, DIGEST, INTEGER = range(12)
_MAX_INTEGER = 2**63
_CONTAINERS: dict[int, type[Any]] = {LIST: list, SET: set, DEQUE: deque}


class StateMismatchError(Exception):
    """A stored state is not one of this version of the decoder."""


def encode_state(value: object, mask: Callable[[str], str]) -> bytes:
    """Return a value as bytes. `mask` hides the secrets in a text and keeps its length."""
    return msgspec.msgpack.encode([VERSION, _Encoder(mask).encode(value)])


def restore_state(value: object, state: bytes) -> None:
    """Read a state into a new object of the same kind, or raise StateMismatchError."""
    try:
        version, encoded = msgspec.msgpack.decode(state)
        if version != VERSION:
            raise StateMismatchError(f"version {version}")
        if _Restorer().restore(encoded, value) is not value:
            raise StateMismatchError("the state of another class")
    except (msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise StateMismatchError(str(error)) from error


class _Encoder:
    """Encodes one graph."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask_text = mask
        self._masked_count = 0
        self._numbers: dict[int, int] = {}
        self._copies: list[object] = []  # They keep their ids while the graph is encoded.

    def encode(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if kind is str:
            return self._mask(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is int:
            return value if abs(value) < _MAX_INTEGER else [INTEGER, str(value)]
        if kind is tuple:
            return [TUPLE, *map(self.encode, value)]
        number = self._numbers.get(id(value))
        if number is not None:
            return [REFERENCE, number]
        self._numbers[id(value)] = len(self._numbers)
        return self._encode_new(value, kind)

    def _encode_new(self, value: Any, kind: type) -> Any:
        if kind is list:
            texts = self._mask_pieces(value)
            return [LIST, *(map(self.encode, value) if texts is None else texts)]
        if kind is dict:
            members = cast("dict[Any, Any]", value).items()
            return [DICT, *(self.encode(item) for member in members for item in member)]
        if kind is set:
            return [SET, *map(self.encode, sorted(value, key=repr))]
        if kind is deque:
            return [DEQUE, *map(self.encode, value)]
        if kind is datetime:
            return [TIME, value.isoformat()]
        if kind is TextDigest:
            return [DIGEST, value.dump()]
        if value is UNSET:
            return [UNSET_VALUE]
        if isinstance(value, type):
            return [CLASS, _class_name(value)]
        if isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            return [OBJECT, _class_name(kind), {"": [self.encode(item) for item in items]}]
        masked_count, object_count = self._masked_count, len(self._numbers)
        fields = {name: self.encode(member) for name, member in _fields(value).items()}
        if self._masked_count > masked_count and isinstance(value, SentText):
            copy = structs.replace(value)  # A text cannot be compared with its masked form, but its length can.
            copy.forget()
            self._copies.append(copy)
            for other in list(self._numbers)[object_count:]:  # What was encoded for it is not used.
                del self._numbers[other]
            fields = {name: self.encode(member) for name, member in _fields(copy).items()}
        return [OBJECT, _class_name(kind), fields]

    def _mask(self, text: str) -> str:
        masked = self._mask_text(text)
        self._masked_count += masked is not text
        return masked

    def _mask_pieces(self, value: list[Any]) -> list[str] | None:
        """Mask the pieces of a text together, as a secret may be split between them; None for other lists."""
        if len(value) < 2 or any(type(item) is not str for item in value):
            return None
        masked = self._mask("".join(map(self._mask, value)))
        ends = accumulate(map(len, value), initial=0)
        return [masked[start:end] for start, end in pairwise(ends)]


class _Restorer:
    """Restores one graph, in the order in which it was encoded."""

    def __init__(self) -> None:
        self._objects: list[Any] = []

    def restore(self, encoded: Any, current: Any = None) -> Any:
        """Return a value. An object that exists is changed in place, because others may refer to it."""
        if not isinstance(encoded, list):
            return encoded
        tag, *items = cast("list[Any]", encoded)
        if tag == TUPLE:
            return tuple(map(self.restore, items))
        if tag == REFERENCE:
            return self._objects[items[0]]
        if tag == INTEGER:
            return int(items[0])
        number = len(self._objects)
        self._objects.append(None)
        if tag in _CONTAINERS or tag == DICT:
            return self._restore_container(tag, items, number)
        if tag == OBJECT:
            name, fields = items
            return self._restore_object(name, fields, current, number)
        value = self._restore_leaf(tag, items)
        self._objects[number] = value
        return value

    def _restore_leaf(self, tag: int, items: list[Any]) -> Any:
        if tag == CLASS:
            return _find_class(items[0])
        if tag == TIME:
            return datetime.fromisoformat(items[0])
        if tag == DIGEST:
            digest = TextDigest()
            digest.load(items[0])
            return digest
        if tag == UNSET_VALUE:
            return UNSET
        raise StateMismatchError(f"unknown kind {tag}")

    def _restore_container(self, tag: int, items: list[Any], number: int) -> Any:
        if tag == DICT:
            members: dict[Any, Any] = {}
            self._objects[number] = members
            values = map(self.restore, items)
            members.update(zip(values, values, strict=True))
            return members
        container: Any = _CONTAINERS[tag]()
        self._objects[number] = container
        (container.update if tag == SET else container.extend)(map(self.restore, items))
        return container

    def _restore_object(self, name: str, fields: dict[str, Any], current: Any, number: int) -> Any:
        kind: Any = _find_class(name)
        if issubclass(kind, Struct | tuple):
            built = self._objects[number] = self._build(kind, fields)
            return built
        value: Any = current if type(current) is kind else object.__new__(kind)
        self._objects[number] = value
        if value is current and not set(_fields(current)) <= set(fields):
            raise StateMismatchError(f"{name} has other attributes")
        for field, encoded in fields.items():
            if value is current and not hasattr(value, field):
                raise StateMismatchError(f"{name} has no attribute {field}")
            setattr(value, field, self.restore(encoded, getattr(value, field, None)))
        return value

    def _build(self, kind: Any, fields: dict[str, Any]) -> Any:
        """Build a struct or a named tuple."""
        if "" in fields:
            return kind(*map(self.restore, fields[""]))
        return kind(**{field: self.restore(encoded) for field, encoded in fields.items()})


def _fields(value: object) -> dict[str, Any]:
    """Return the attributes of an object that are state."""
    if isinstance(value, Struct):
        members = ((name, getattr(value, name), default) for name, default in _defaults(type(value)))
        return {name: member for name, member, default in members if member is not default and member != default}
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    members = {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})
    return {name: member for name, member in members.items() if not _has_functions(member)}


@cache
def _defaults(kind: type[Struct]) -> list[tuple[str, Any]]:
    """Return the fields of a struct and their defaults, which are not stored."""
    return [(field.name, field.default) for field in structs.fields(kind)]


def _has_functions(member: Any) -> bool:
    """Return whether an attribute is a function, a class or a table of them."""
    values: Iterable[Any] = cast("dict[Any, Any]", member).values() if isinstance(member, dict) else (member,)
    first = next(iter(values), None)
    return callable(first)


def _class_name(kind: type) -> str:
    if not kind.__module__.startswith("callslip."):
        raise TypeError(f"a decoder must not store a {kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__}:{kind.__qualname__}"


def _find_class(name: str) -> type:
    """Return a class of this package that is loaded."""
    module, _, path = name.partition(":")
    if not module.startswith("callslip.") or module not in sys.modules:
        raise StateMismatchError(f"no class {name}")
    kind: Any = getattr(sys.modules[module], path)
    if not isinstance(kind, type):
        raise StateMismatchError(f"{name} is not a class")
    return kind
