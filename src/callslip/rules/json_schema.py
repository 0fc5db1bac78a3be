"""Whether arguments fit the JSON Schema of their tool.

Written by hand because a validator must not be a dependency of everybody who records calls, and tools use little of the
language: the words in WORDS. Others are ignored, as are references that lead out of the schema. A schema comes from
somebody else as much as the arguments do, so that the work has a limit. A pattern may take for ever: no text beyond
LONGEST_TEXT fits one, and a text is let through if comparing it might take more than MOST_WAYS.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import Repr
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from callslip.rules.regex_cost import LONGEST_TEXT, MOST_WAYS, compiled, ways_of

STEPS = 100_000
CHEAP = 10
"""How many members of a list, or names of an object, may be looked through in one step."""
DEPTH = 100
MAX_VALUE_CHARS = 60

Json: TypeAlias = Any
Schema: TypeAlias = dict[str, Any]


class SchemaViolation(NamedTuple):
    """What does not fit: where, as a JSON pointer ("" is the whole), and why."""

    at: str
    text: str


class TooMuch(Exception):
    """Nobody can say whether it fits within the limits."""


class SchemaCursor(NamedTuple):
    """A value on its way through a schema."""

    value: Json
    at: str
    depth: int
    schema: Schema

    def inside(self, key: str | int) -> str:
        """The pointer to a member."""
        return f"{self.at}/{str(key).replace('~', '~0').replace('/', '~1')}"

    def problem(self, text: str) -> SchemaViolation:
        return SchemaViolation(self.at, text)


def find_violation(schema: Json, value: Json) -> SchemaViolation | None:
    """The first thing about a JSON value that does not fit a schema; None if all does."""
    try:
        return _Check(schema).look(schema, value, "", 0)
    except TooMuch:
        return SchemaViolation("", "the schema is too deep or too large to be checked against")


class _Check:
    """One comparison, and how much of its work is done."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self._steps = 0

    def look(self, schema: Json, value: Json, at: str, depth: int) -> SchemaViolation | None:
        self.spend(1)
        if depth > DEPTH:
            raise TooMuch
        if schema is False:
            return SchemaViolation(at, "may not be there")
        if not isinstance(schema, dict):
            return None
        rules = cast(Schema, schema)
        self.spend(sum(map(_length, rules.values())) // CHEAP)
        place = SchemaCursor(value, at, depth + 1, rules)
        tests = ((KEYWORDS[word], rule) for word, rule in rules.items() if word in KEYWORDS)
        return next((found for test, rule in tests if (found := test(self, rule, place)) is not None), None)

    def spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > STEPS:
            raise TooMuch

    def again(self, schema: Json, place: SchemaCursor) -> SchemaViolation | None:
        """The same value by another schema."""
        return self.look(schema, place.value, place.at, place.depth)

    def key(self, value: Json) -> Any:
        """What equal values have in common. JSON knows one kind of number, and no number is a boolean."""
        if isinstance(value, list | dict):
            self.spend(1 + _length(value) // CHEAP)
        if isinstance(value, list):
            return "list", tuple(self.key(item) for item in _items(value))
        if isinstance(value, dict):
            return "dict", frozenset((name, self.key(item)) for name, item in _members(value).items())
        return isinstance(value, bool), value


# Values


def _length(value: Json) -> int:
    """How many values stand in one."""
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


_BRIEF = Repr()
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxlist = _BRIEF.maxdict = MAX_VALUE_CHARS


def _shown(value: Json) -> str:
    said = _BRIEF.repr(value)  # Of what is large, not all is written only to be cut off.
    return said if len(said) <= MAX_VALUE_CHARS else said[: MAX_VALUE_CHARS - 3] + "..."


# Any value


def _type(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    wanted = [word for word in (_items(rule) or [rule]) if isinstance(word, str)]
    if not wanted or any(word not in KINDS or KINDS[word](place.value) for word in wanted):
        return None
    return place.problem(f"is {_kind_of(place.value)}, not {' or '.join(wanted)}")


def _kind_of(value: Json) -> str:
    return next((word for word, fits in KINDS.items() if fits(value)), "no JSON")


def _enum(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    key = check.key(place.value)
    if not isinstance(rule, list) or any(check.key(item) == key for item in _items(rule)):
        return None
    return place.problem(f"is none of {_shown(rule)}")


def _const(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    return None if check.key(rule) == check.key(place.value) else place.problem(f"is not {_shown(rule)}")


# Limits


def _size(value: Json) -> Any:
    return value


Limit: TypeAlias = tuple[Callable[[Json], bool], Callable[[Json], Any], Callable[[Any, Any], bool], str]
LIMITS: dict[str, Limit] = {
    "minimum": (_is_number, _size, lambda size, limit: size >= limit, "is less than {}"),
    "maximum": (_is_number, _size, lambda size, limit: size <= limit, "is more than {}"),
    "exclusiveMinimum": (_is_number, _size, lambda size, limit: size > limit, "is not more than {}"),
    "exclusiveMaximum": (_is_number, _size, lambda size, limit: size < limit, "is not less than {}"),
    "minLength": (KINDS["string"], len, lambda size, limit: size >= limit, "has fewer than {} characters"),
    "maxLength": (KINDS["string"], len, lambda size, limit: size <= limit, "has more than {} characters"),
    "minItems": (KINDS["array"], len, lambda size, limit: size >= limit, "has fewer than {} items"),
    "maxItems": (KINDS["array"], len, lambda size, limit: size <= limit, "has more than {} items"),
    "minProperties": (KINDS["object"], len, lambda size, limit: size >= limit, "has fewer than {} members"),
    "maxProperties": (KINDS["object"], len, lambda size, limit: size <= limit, "has more than {} members"),
}
"""Which values a limit is about, what of them is measured, whether that is within it, and what to say if not."""


def _limited(word: str) -> Test:
    concerns, size, within, said = LIMITS[word]

    def test(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
        if not _is_number(rule) or not concerns(place.value) or within(size(place.value), rule):
            return None
        return place.problem(said.format(_shown(rule)))

    return test


# Texts


def _fits(check: _Check, pattern: str, text: str) -> bool:
    """Whether a text fits a pattern, or that cannot be told in time."""
    wanted = compiled(pattern)
    ways = ways_of(pattern, min(len(text), LONGEST_TEXT)) if wanted is not None else 0
    if wanted is None or ways > MOST_WAYS:
        return True
    check.spend(ways // 1000)
    return len(text) <= LONGEST_TEXT and wanted.search(text) is not None


def _pattern(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    if not isinstance(rule, str) or not isinstance(place.value, str) or _fits(check, rule, place.value):
        return None
    if len(place.value) > LONGEST_TEXT:
        return place.problem(f"is too long to be compared with a pattern ({LONGEST_TEXT} characters)")
    return place.problem(f"does not fit the pattern {_shown(rule)}")


# Arrays


def _prefix(schema: Schema) -> list[Json]:
    """Schemas for the first items, each its own; older schemas list them as `items`."""
    return _items(schema.get("prefixItems")) or _items(schema.get("items"))


def _prefix_items(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    pairs = zip(_items(rule), _items(place.value), strict=False)
    looked = (check.look(one, item, place.inside(at), place.depth) for at, (one, item) in enumerate(pairs))
    return next((found for found in looked if found), None)


def _each_item(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    if isinstance(rule, list):
        return None if "prefixItems" in place.schema else _prefix_items(check, rule, place)
    first = len(_prefix(place.schema))
    rest = enumerate(_items(place.value)[first:], first)
    looked = (check.look(rule, item, place.inside(at), place.depth) for at, item in rest)
    return next((found for found in looked if found), None)


def _more_items(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    """`additionalItems`: what older schemas say of items behind those that are listed."""
    if not isinstance(place.schema.get("items"), list):
        return None
    return _each_item(check, rule, place) if not isinstance(rule, list) else None


def _unique(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    items = _items(place.value)
    if rule is not True or len({check.key(item) for item in items}) == len(items):
        return None
    return place.problem("has the same item twice")


# Objects


def _properties(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    known, given = _members(rule), _members(place.value)
    looked = (check.look(known[name], given[name], place.inside(name), place.depth) for name in known if name in given)
    return next((found for found in looked if found), None)


def _pattern_properties(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    for name, value in _members(place.value).items():
        for pattern, schema in _members(rule).items():
            if _fits(check, pattern, name) and (found := check.look(schema, value, place.inside(name), place.depth)):
                return found
    return None


def _additional(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    known, patterns = _members(place.schema.get("properties")), _members(place.schema.get("patternProperties"))
    for name, value in _members(place.value).items():
        if name in known or any(_fits(check, pattern, name) for pattern in patterns):
            continue
        if rule is False:
            return SchemaViolation(place.inside(name), "is no argument that is known here")
        if found := check.look(rule, value, place.inside(name), place.depth):
            return found
    return None


def _required(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    given = _members(place.value)
    names = _items(rule) if KINDS["object"](place.value) else []
    lacking = [name for name in names if isinstance(name, str) and name not in given]
    return SchemaViolation(place.inside(lacking[0]), "is missing") if lacking else None


# Schemas of schemas


def _all_of(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    return next((found for one in _items(rule) if (found := check.again(one, place))), None)


def _any_of(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    first: SchemaViolation | None = None
    for one in _items(rule):
        found = check.again(one, place)
        if found is None:
            return None
        first = first or found
    return place.problem(f"fits none of the alternatives; of the first: {_told(first, place)}") if first else None


def _told(found: SchemaViolation, place: SchemaCursor) -> str:
    return f"{found.at[len(place.at) :]} {found.text}".strip()


def _one_of(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    fitting = sum(check.again(one, place) is None for one in _items(rule))
    if fitting > 1:
        return place.problem("fits more than one of the alternatives")
    return None if fitting else _any_of(check, rule, place)


def _not(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    return place.problem("is what it may not be") if check.again(rule, place) is None else None


def _ref(check: _Check, rule: Json, place: SchemaCursor) -> SchemaViolation | None:
    """A reference within the schema; the limit of depth ends those that lead in a circle."""
    found = _pointed(check.root, rule) if isinstance(rule, str) and rule.startswith("#") else None
    return check.again(found, place)


def _pointed(root: Json, ref: str) -> Json:
    """What a JSON pointer leads to; None if that is nothing."""
    found = root
    for part in unquote(ref[1:]).split("/")[1:] if ref != "#" else []:
        part = part.replace("~1", "/").replace("~0", "~")
        found = _members(found).get(part) if isinstance(found, dict) else dict(_numbered(found)).get(part)
    return found if ref == "#" or ref.startswith("#/") else None


def _numbered(value: Json) -> list[tuple[str, Json]]:
    return [(str(number), item) for number, item in enumerate(_items(value))]


Test: TypeAlias = Callable[[_Check, Json, SchemaCursor], SchemaViolation | None]

KEYWORDS: dict[str, Test] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **{word: _limited(word) for word in LIMITS},
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
"""What each word of a schema demands."""
