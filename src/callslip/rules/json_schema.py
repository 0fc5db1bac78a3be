"""Validate arguments against the JSON Schema of their tool.

This minimal built-in validator avoids a dependency. It supports the keywords in KEYWORDS, which are those that tools
use; others are ignored, and so are references to other documents. Neither schema nor arguments are trusted, so the work
is limited: no text of more than MAX_TEXT_CHARS characters matches a pattern, and a text whose match might take more
than MAX_WAYS steps is accepted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import count
from reprlib import Repr
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from callslip.rules.regex_cost import MAX_TEXT_CHARS, MAX_WAYS, compile_pattern, estimate_ways

MAX_STEPS = 100_000
MEMBERS_PER_STEP = 10
"""How many members of a list or object count as one step."""
MAX_DEPTH = 100
MAX_VALUE_CHARS = 60

Json: TypeAlias = Any
Schema: TypeAlias = dict[str, Any]


class SchemaViolation(NamedTuple):
    """A value that does not match: its JSON pointer ("" is the root) and why."""

    at: str
    text: str


class TooComplexError(Exception):
    """The check exceeds its limits."""


class SchemaCursor(NamedTuple):
    """A value, its JSON pointer and depth, and the schema to check it against."""

    value: Json
    at: str
    depth: int
    schema: Schema

    def inside(self, key: str | int) -> str:
        """Return the JSON pointer of a member."""
        return f"{self.at}/{str(key).replace('~', '~0').replace('/', '~1')}"

    def problem(self, text: str) -> SchemaViolation:
        return SchemaViolation(self.at, text)


def find_violation(schema: Json, value: Json) -> SchemaViolation | None:
    """Return the first violation of a schema by a JSON value, or None."""
    try:
        return _Check(schema).find(schema, value, "", 0)
    except TooComplexError:
        return SchemaViolation("", "the schema is too deep or too large to check")


class _Check:
    """One check of a value, which counts its steps."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self._steps = 0

    def find(self, schema: Json, value: Json, at: str, depth: int) -> SchemaViolation | None:
        self.spend(1)
        if depth > MAX_DEPTH:
            raise TooComplexError
        if schema is False:
            return SchemaViolation(at, "is not allowed")
        if not isinstance(schema, dict):
            return None
        rules = cast(Schema, schema)
        self.spend(sum(map(_length, rules.values())) // MEMBERS_PER_STEP)
        cursor = SchemaCursor(value, at, depth + 1, rules)
        tests = ((KEYWORDS[word], rule) for word, rule in rules.items() if word in KEYWORDS)
        return next(filter(None, (test(self, rule, cursor) for test, rule in tests)), None)

    def spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise TooComplexError

    def find_with(self, schema: Json, cursor: SchemaCursor) -> SchemaViolation | None:
        """Check the same value against another schema."""
        return self.find(schema, cursor.value, cursor.at, cursor.depth)

    def find_inside(
        self, cursor: SchemaCursor, members: Iterable[tuple[str | int, Json, Json]]
    ) -> SchemaViolation | None:
        """Check members of a value, each given as its key, schema and value."""
        results = (self.find(schema, value, cursor.inside(key), cursor.depth) for key, schema, value in members)
        return next(filter(None, results), None)

    def key(self, value: Json) -> Any:
        """Return a key that equal JSON values share: 1 equals 1.0, but not true."""
        if isinstance(value, list | dict):
            self.spend(1 + _length(value) // MEMBERS_PER_STEP)
        if isinstance(value, list):
            return "list", tuple(self.key(item) for item in _items(value))
        if isinstance(value, dict):
            return "dict", frozenset((name, self.key(item)) for name, item in _members(value).items())
        return isinstance(value, bool), value


# Values


def _length(value: Json) -> int:
    """Return the number of members of a list or object, else 0."""
    return len(cast("list[Json]", value)) if isinstance(value, list | dict) else 0


def _items(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []


def _members(value: Json) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


KINDS: dict[str, Callable[[Json], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


_REPR = Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxlist = _REPR.maxdict = MAX_VALUE_CHARS


def _short_repr(value: Json) -> str:
    text = _REPR.repr(value)  # Limits the work for a large value.
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


# Any value


def _type(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    wanted = [word for word in (_items(rule) or [rule]) if isinstance(word, str)]
    if not wanted or any(word not in KINDS or KINDS[word](cursor.value) for word in wanted):
        return None
    kind = next((word for word, matches in KINDS.items() if matches(cursor.value)), "no JSON")
    return cursor.problem(f"must be {' or '.join(wanted)}, got {kind}")


def _enum(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    key = check.key(cursor.value)
    if not isinstance(rule, list) or any(check.key(item) == key for item in _items(rule)):
        return None
    return cursor.problem(f"must be one of {_short_repr(rule)}")


def _const(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    return None if check.key(rule) == check.key(cursor.value) else cursor.problem(f"must be {_short_repr(rule)}")


# Limits


def _size(value: Json) -> Any:
    return value


Limit: TypeAlias = tuple[Callable[[Json], bool], Callable[[Json], Any], Callable[[Any, Any], bool], str]
LIMITS: dict[str, Limit] = {
    "minimum": (_is_number, _size, operator.ge, "must be at least {}"),
    "maximum": (_is_number, _size, operator.le, "must be at most {}"),
    "exclusiveMinimum": (_is_number, _size, operator.gt, "must be more than {}"),
    "exclusiveMaximum": (_is_number, _size, operator.lt, "must be less than {}"),
    "minLength": (KINDS["string"], len, operator.ge, "must have at least {} characters"),
    "maxLength": (KINDS["string"], len, operator.le, "must have at most {} characters"),
    "minItems": (KINDS["array"], len, operator.ge, "must have at least {} items"),
    "maxItems": (KINDS["array"], len, operator.le, "must have at most {} items"),
    "minProperties": (KINDS["object"], len, operator.ge, "must have at least {} members"),
    "maxProperties": (KINDS["object"], len, operator.le, "must have at most {} members"),
}
"""For each keyword: which values it applies to, their measure, the comparison, and the message."""


def _limit_test(word: str) -> Test:
    applies, size, is_within, message = LIMITS[word]

    def test(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
        if not _is_number(rule) or not applies(cursor.value) or is_within(size(cursor.value), rule):
            return None
        return cursor.problem(message.format(_short_repr(rule)))

    return test


# Texts


def _matches(check: _Check, pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern; True as well if the match would take too long."""
    regex = compile_pattern(pattern)
    cost = estimate_ways(pattern, min(len(text), MAX_TEXT_CHARS)) if regex is not None else 0
    if regex is None or cost > MAX_WAYS:
        return True
    check.spend(cost // 1000)
    return len(text) <= MAX_TEXT_CHARS and regex.search(text) is not None


def _pattern(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    if not isinstance(rule, str) or not isinstance(cursor.value, str) or _matches(check, rule, cursor.value):
        return None
    if len(cursor.value) > MAX_TEXT_CHARS:
        return cursor.problem(f"must have at most {MAX_TEXT_CHARS} characters to match a pattern")
    return cursor.problem(f"must match the pattern {_short_repr(rule)}")


# Arrays


def _prefix_items(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    return check.find_inside(cursor, zip(count(), _items(rule), _items(cursor.value), strict=False))


def _each_item(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    if isinstance(rule, list):
        return None if "prefixItems" in cursor.schema else _prefix_items(check, rule, cursor)
    prefix = _items(cursor.schema.get("prefixItems")) or _items(cursor.schema.get("items"))
    first = len(prefix)  # Older schemas list the schemas of the first items in `items`.
    return check.find_inside(cursor, ((at, rule, item) for at, item in enumerate(_items(cursor.value)[first:], first)))


def _more_items(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    """Check `additionalItems`, which older schemas use for the items after the listed ones."""
    if not isinstance(cursor.schema.get("items"), list):
        return None
    return _each_item(check, rule, cursor) if not isinstance(rule, list) else None


def _unique(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    items = _items(cursor.value)
    if rule is not True or len({check.key(item) for item in items}) == len(items):
        return None
    return cursor.problem("must not have the same item twice")


# Objects


def _properties(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    schemas, values = _members(rule), _members(cursor.value)
    return check.find_inside(cursor, ((name, schemas[name], values[name]) for name in schemas if name in values))


def _pattern_properties(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    members = (
        (name, schema, value)
        for name, value in _members(cursor.value).items()
        for pattern, schema in _members(rule).items()
        if _matches(check, pattern, name)
    )
    return check.find_inside(cursor, members)


def _additional(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    known, patterns = _members(cursor.schema.get("properties")), _members(cursor.schema.get("patternProperties"))
    others = (
        (name, rule, value)
        for name, value in _members(cursor.value).items()
        if name not in known and not any(_matches(check, pattern, name) for pattern in patterns)
    )
    if rule is not False:
        return check.find_inside(cursor, others)
    unknown = next((name for name, _, _ in others), None)
    return SchemaViolation(cursor.inside(unknown), "unknown argument") if unknown is not None else None


def _required(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    values = _members(cursor.value)
    names = _items(rule) if KINDS["object"](cursor.value) else []
    missing = [name for name in names if isinstance(name, str) and name not in values]
    return SchemaViolation(cursor.inside(missing[0]), "is missing") if missing else None


# Combinations of schemas


def _all_of(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    return next(filter(None, (check.find_with(one, cursor) for one in _items(rule))), None)


def _any_of(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    first: SchemaViolation | None = None
    for one in _items(rule):
        violation = check.find_with(one, cursor)
        if violation is None:
            return None
        first = first or violation
    if first is None:
        return None
    reason = f"{first.at[len(cursor.at) :]} {first.text}".strip()
    return cursor.problem(f"matches none of the alternatives; the first: {reason}")


def _one_of(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    matches = sum(check.find_with(one, cursor) is None for one in _items(rule))
    if matches > 1:
        return cursor.problem("matches more than one of the alternatives")
    return None if matches else _any_of(check, rule, cursor)


def _not(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    return cursor.problem("must not match the schema under `not`") if check.find_with(rule, cursor) is None else None


def _ref(check: _Check, rule: Json, cursor: SchemaCursor) -> SchemaViolation | None:
    """Check a reference within the schema; the depth limit stops circular ones."""
    schema = _resolve(check.root, rule) if isinstance(rule, str) and rule.startswith("#") else None
    return check.find_with(schema, cursor)


def _resolve(root: Json, ref: str) -> Json:
    """Return the target of a JSON pointer, or None."""
    target = root
    for part in unquote(ref[1:]).split("/")[1:] if ref != "#" else []:
        part = part.replace("~1", "/").replace("~0", "~")
        members = _members(target) or {str(index): item for index, item in enumerate(_items(target))}
        target = members.get(part)
    return target if ref == "#" or ref.startswith("#/") else None


Test: TypeAlias = Callable[[_Check, Json, SchemaCursor], SchemaViolation | None]

KEYWORDS: dict[str, Test] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **{word: _limit_test(word) for word in LIMITS},
    "pattern": _pattern,
    "prefixItems": _prefix_items,
    "items": _each_item,
    "additionalItems": _more_items,
    "uniqueItems": _unique,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "$ref": _ref,
}
"""The test of each supported keyword."""
