"""Read the messages of producers: tests/inputs/FORMAT/CASE.jsonl, one message per line.

CASE.entries.json has the entries of a session into which the messages were imported. `CALLSLIP_GOLDENS=1` writes it
again; read it before you commit it.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.support.paths import TESTS

FOLDER = TESTS / "inputs"
CAPTURES = TESTS / "captures"
CASES = [f"{path.parent.name}/{path.stem}" for path in sorted(FOLDER.glob("*/*.jsonl"))]


def input_path(case: str) -> Path:
    return FOLDER / f"{case}.jsonl"


def golden_path(case: str) -> Path:
    return FOLDER / f"{case}.entries.json"


def format_of(case: str) -> str:
    return case.partition("/")[0]


def lines_of(case: str) -> list[bytes]:
    return input_path(case).read_bytes().splitlines(keepends=True)


@cache
def messages_of(format: str) -> tuple[Any, ...]:
    """Return every message of the cases of a format."""
    folders = (FOLDER / format, *((CAPTURES,) if format == "acp" else ()))
    files = sorted(file for folder in folders for file in folder.glob("*.jsonl"))
    return tuple(json.loads(line) for file in files for line in file.read_bytes().splitlines() if line.strip())


# Damage

_leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["", "\x00", "\udc80", "{", "<shell>", "completed", "[]", "-1"]),
)


def _nested(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(members, max_size=3), st.dictionaries(st.text(max_size=8), members, max_size=3))


garbage = st.recursive(_leaf, _nested, max_leaves=6)


def value_paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(place for key, member in members for place in value_paths(member, (*prefix, key)))]


def replace_at(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return the value with another value at a path, or without it if `new` is `...`."""
    if not place:
        return None if new is ... else new
    copied = copy.copy(value)
    if len(place) == 1 and new is ...:
        del copied[place[0]]
    else:
        copied[place[0]] = replace_at(value[place[0]], place[1:], new)
    return copied


@st.composite
def intact(draw: st.DrawFn, format: str) -> Any:
    """Draw a message of the format's cases, by index, since Hypothesis would print all of them."""
    messages = messages_of(format)
    return messages[draw(st.integers(0, len(messages) - 1))]


@st.composite
def damaged(draw: st.DrawFn, format: str) -> Any:
    """Draw a message of the format's cases with some values replaced or removed."""
    message = draw(intact(format))
    for _ in range(draw(st.integers(1, 3))):
        message = replace_at(
            message, draw(st.sampled_from(value_paths(message))), draw(st.one_of(garbage, st.just(...)))
        )
    return message


def streams(format: str) -> st.SearchStrategy[list[Any]]:
    """Draw intact, damaged and meaningless messages in any order."""
    message = st.one_of(intact(format), damaged(format), garbage)
    return st.lists(message, max_size=14)
