"""What producers send, as data: tests/inputs/FORMAT/CASE.jsonl, one message per line, with the entries beside it.

CASE.entries.json is what a session shows once the messages were imported. `CALLSLIP_GOLDENS=1` writes it anew, to be
read before it is committed.
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


def path_of(case: str) -> Path:
    return FOLDER / f"{case}.jsonl"


def golden_of(case: str) -> Path:
    return FOLDER / f"{case}.entries.json"


def format_of(case: str) -> str:
    return case.partition("/")[0]


def lines_of(case: str) -> list[bytes]:
    return path_of(case).read_bytes().splitlines(keepends=True)


@cache
def messages_of(format: str) -> tuple[Any, ...]:
    """Every message that the cases of a format hold."""
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


def _nested(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inside, max_size=3), st.dictionaries(st.text(max_size=8), inside, max_size=3))


garbage = st.recursive(_leaf, _nested, max_leaves=6)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Everywhere in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, member in inside for place in places(member, (*here, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a place, or with nothing there."""
    if not place:
        return None if new is ... else new
    made = copy.copy(value)
    if len(place) == 1 and new is ...:
        del made[place[0]]
    else:
        made[place[0]] = changed(value[place[0]], place[1:], new)
    return made


@st.composite
def whole(draw: st.DrawFn, format: str) -> Any:
    """A message of the format's cases. Drawn by number: Hypothesis would describe all of them at once."""
    messages = messages_of(format)
    return messages[draw(st.integers(0, len(messages) - 1))]


@st.composite
def damaged(draw: st.DrawFn, format: str) -> Any:
    """A message of the format's cases, with something in it replaced or taken out."""
    message = draw(whole(format))
    for _ in range(draw(st.integers(1, 3))):
        message = changed(message, draw(st.sampled_from(places(message))), draw(st.one_of(garbage, st.just(...))))
    return message


def streams(format: str) -> st.SearchStrategy[list[Any]]:
    """Messages in any order, whole, damaged and meaningless."""
    one = st.one_of(whole(format), damaged(format), garbage)
    return st.lists(one, max_size=14)
