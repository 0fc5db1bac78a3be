"""Validation of arguments: a table of all keywords, and the same results as a complete validator."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.rules import json_schema
from callslip.rules.json_schema import SchemaViolation, find_violation
from tests.conftest import LONG

with warnings.catch_warnings(action="ignore"):
    from jsonschema import Draft202012Validator

TREE = {"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}, "required": ["v"]}
PAIR = {"$defs": {"a/b~": {"type": "string"}}, "items": {"$ref": "#/$defs/a~1b~0"}}

TABLE: list[tuple[Any, Any, str | None]] = [
    # A schema, a value, and the pointer to the violation; None if there is none.
    (True, {"x": 1}, None),
    (False, 1, ""),
    ({}, [1, {"a": None}], None),
    (None, 1, None),
    ("nonsense", 1, None),
    (
        {"type": 5, "required": "x", "properties": [], "enum": 1, "items": 3, "anyOf": {}, "minimum": "1"},
        {"a": 1},
        None,
    ),
    ({"unknownWord": False, "format": "email"}, "no mail", None),
    ({"type": "string"}, "x", None),
    ({"type": "string"}, None, ""),
    ({"type": ["string", "null"]}, None, None),
    ({"type": ["string", "null"]}, 1, ""),
    ({"type": "integer"}, True, ""),
    ({"type": "integer"}, 1.0, None),
    ({"type": "integer"}, 1.5, ""),
    ({"type": "number"}, False, ""),
    ({"type": "boolean"}, 0, ""),
    ({"type": "tupel"}, 1, None),
    ({"enum": ["a", 1, None]}, 1.0, None),
    ({"enum": ["a", 1]}, True, ""),
    ({"const": {"a": [1, {"b": False}]}}, {"a": [1, {"b": False}]}, None),
    ({"const": {"a": [1, {"b": False}]}}, {"a": [1, {"b": 0}]}, ""),
    ({"minimum": 1, "maximum": 3}, 3, None),
    ({"minimum": 1}, 0.5, ""),
    ({"maximum": 10**30}, 10**31, ""),
    ({"exclusiveMinimum": 1}, 1, ""),
    ({"exclusiveMaximum": 1}, 1, ""),
    ({"exclusiveMaximum": True}, 1, None),
    ({"minimum": 5}, "1", None),
    ({"minLength": 2}, "\U0001f600", ""),
    ({"maxLength": 1}, "\U0001f600", None),
    ({"maxLength": 1}, "ab", ""),
    ({"minItems": 1}, [], ""),
    ({"maxItems": 1}, [1, 2], ""),
    ({"maxProperties": 1}, {"a": 1, "b": 2}, ""),
    ({"minProperties": 1}, {}, ""),
    ({"pattern": "^a"}, "ba", ""),
    ({"pattern": "a"}, "ba", None),
    ({"pattern": "("}, "x", None),
    ({"pattern": "[[a]"}, "a", None),
    ({"pattern": "^x*$"}, "x" * 2000, None),
    ({"pattern": "^x*$"}, "x" * 2001, ""),
    ({"pattern": r"^[a-z]+(-[a-z]+)*$"}, "a--b", ""),
    ({"pattern": "^a$"}, "a\n", ""),
    ({"pattern": "^[$]$"}, "$", None),
    ({"pattern": r"^(\d{1,3}\.){3}\d{1,3}$"}, "x" * 200, ""),
    ({"pattern": r"^[^@]+@[^@]+\.[^@]+$"}, "x" * 100, ""),
    ({"pattern": "(?x) a # ["}, "b", None),
    ({"pattern": "^" + "a?" * 40 + "[ab]{40}$"}, "a" * 39, None),
    ({"uniqueItems": True}, [1, 1.0], ""),
    ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], None),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ""),
    ({"items": {"type": "integer"}}, [1, "x"], "/1"),
    ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "/1"),
    ({"prefixItems": [{"type": "string"}]}, [1], "/0"),
    ({"items": [{"type": "string"}], "additionalItems": False}, ["a"], None),
    ({"items": [{"type": "string"}], "additionalItems": False}, ["a", "b"], "/1"),
    ({"items": [{"type": "string"}]}, [1], "/0"),
    ({"properties": {"a": {"type": "string"}}}, {"a": 1}, "/a"),
    ({"properties": {"a/b~c": False}}, {"a/b~c": 1}, "/a~1b~0c"),
    ({"properties": {"__proto__": {"type": "string"}}}, {"__proto__": 1}, "/__proto__"),
    ({"required": ["a", "b"]}, {"a": 1}, "/b"),
    ({"required": ["a"]}, [], None),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "b": 2}, "/b"),
    ({"additionalProperties": {"type": "string"}}, {"b": 2}, "/b"),
    ({"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False}, {"xa": "1"}, None),
    ({"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False}, {"xa": 1}, "/xa"),
    ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"y": 1}, "/y"),
    ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "a", ""),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, ""),
    ({"anyOf": [False]}, 1, ""),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 3, ""),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 1, None),
    ({"oneOf": [{"type": "string"}]}, 1, ""),
    ({"not": {"type": "string"}}, "a", ""),
    ({"not": {"type": "string"}}, 1, None),
    (TREE, {"v": 1, "next": {"v": 2, "next": {"v": 3}}}, None),
    (TREE, {"v": 1, "next": {"v": 2, "next": {"v": "x"}}}, "/next/next/v"),
    (PAIR, ["a"], None),
    (PAIR, [1], "/0"),
    ({"$ref": "#/definitions/x", "definitions": {"x": {"type": "string"}}}, 1, ""),
    ({"$ref": "#/anyOf/1", "anyOf": [{}, {"type": "string"}]}, 1, ""),
    ({"$ref": "https://example.org/schema"}, 1, None),
    ({"$ref": "#name"}, 1, None),
    ({"$ref": "#/no/such"}, 1, None),
    ({"$ref": 5}, 1, None),
]


@pytest.mark.parametrize(("schema", "value", "at"), TABLE)
def test_a_value_is_valid_or_the_pointer_names_the_violation(schema: Any, value: Any, at: str | None) -> None:
    """Valid and invalid values for each keyword; an invalid schema allows everything."""
    violation = find_violation(schema, value)
    assert (violation.at if violation else None) == at
    assert violation is None or violation.text


def test_the_table_has_every_supported_keyword() -> None:
    """Each keyword has at least one row."""
    assert not {
        keyword for keyword in json_schema.KEYWORDS if not any(f"'{keyword}'" in repr(schema) for schema, _, _ in TABLE)
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"not": {"$ref": "#"}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": "#"}] * 50},
        {"not": {"allOf": [{"not": {"anyOf": [{"$ref": "#"}]}}]}},
        {"$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(40)}, "$ref": "#/$defs/0"},
    ],
)
def test_an_infinite_schema_stops_at_the_limit(schema: Any) -> None:
    """For circular references and exponential trees; no value is valid then."""
    assert find_violation(schema, {"a": 1}) == SchemaViolation("", "the schema is too deep or too large to check")


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$",
        "^(a|a)*$",
        "^((a*)b?)*$",
        "^(?:a{1,}){2,}$",
        r"^([\d\]a]+)+$",
        "^(?:a|ab?|ac?|ad?)*$",
        r"^\w*\w*\w*\w*\w*$",
        "a*a*a*[bc]",
        "^x|a*a*a*[bc]",
        "^(?:a?){40}[ab]{40}$",
        "^(((a+)+)+)+$",
        "^(a{1,3}){1,200}$",
    ],
)
def test_patterns_are_not_matched_against_long_texts(pattern: str) -> None:
    """A pattern may take exponential time; longer texts are accepted."""
    started = time.process_time()
    assert find_violation({"pattern": pattern}, "aaaa!") is not None
    for length in (10, 15, 20, 30, 100, 500, 1999):
        find_violation({"pattern": pattern}, "a" * length + "!")
    assert find_violation({"pattern": pattern}, "a" * 1999 + "!") is None
    assert time.process_time() - started < 30, "a pattern took exponential time"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"required": ["x"] * 10_000}}, [{"x": 5}] * 10_000),
        ({"items": {"properties": dict.fromkeys(map(str, range(10_000)), True)}}, [{}] * 10_000),
        ({"items": {"not": {"enum": [[n] * 9 for n in range(10_000)]}}}, [0] * 10_000),
        ({"items": {"not": {"const": "x" * 10**6}}}, [0] * 60_000),
        ({"items": {"not": {"const": [[[0] * 9] * 9] * 9}}}, [0] * 10_000),
        ({"items": {"not": {"pattern": "^a*a*a*[bc]"}}}, ["a" * 200] * 10_000),
    ],
)
def test_validation_stops_at_the_work_limit(schema: Any, value: Any) -> None:
    """Each item is compared with a list in the schema: the product of two large numbers exceeds the limit."""
    assert find_violation(schema, value) == SchemaViolation("", "the schema is too deep or too large to check")


# Comparison with a complete validator

names = st.sampled_from(["a", "b", "c/d", "~"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([1.0, 0.5, -1.5]), st.text("ab", max_size=3)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
type_names = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
sizes = st.integers(0, 3)


def schemas(subschemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas with the supported keywords."""
    schema_lists = st.lists(subschemas, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": type_names | st.lists(type_names, min_size=1, max_size=3, unique=True),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 2)),
            **dict.fromkeys(
                ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), sizes
            ),
            "pattern": st.sampled_from(["^a", "b$", "a.*b", "^(ab?)*$"]),
            "uniqueItems": st.booleans(),
            "items": subschemas,
            "prefixItems": schema_lists,
            "required": st.lists(names, max_size=2, unique=True),
            "properties": st.dictionaries(names, subschemas, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["a", "^c"]), subschemas, max_size=2),
            "additionalProperties": subschemas,
            **dict.fromkeys(("allOf", "anyOf", "oneOf"), schema_lists),
            "not": subschemas,
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y~1z"]),
        },
    )


branches = st.recursive(st.booleans() | schemas(st.booleans()), schemas, max_leaves=6)


@pytest.mark.chaos
@settings(max_examples=2000 if LONG else 60)
@given(schemas(branches), st.fixed_dictionaries({"x": schemas(st.booleans()), "y/z": st.booleans()}), values)
def test_results_match_a_complete_validator(schema: dict[str, Any], defs: dict[str, Any], value: Any) -> None:
    """For any schema of these keywords and any value."""
    defs["x"].pop("$ref", None)  # It would be circular.
    full_schema = {**schema, "$defs": defs}
    assert (find_violation(full_schema, value) is None) == Draft202012Validator(full_schema).is_valid(value)
