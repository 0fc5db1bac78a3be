"""Edits of JSON with comments: only the edited place changes, and a removal undoes an insertion."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.hooks import jsonc

BLANKS = st.text(" \t\n", max_size=3)
COMMENT_TEXT = st.text('abc "{}[],:*\\', max_size=8)
COMMENTS = st.one_of(
    COMMENT_TEXT.map(lambda text: f"// {text}\n"),
    COMMENT_TEXT.map(lambda text: f"/* {text.replace('*/', '')} */"),
    COMMENT_TEXT.map(lambda text: f"/* {text.replace('*/', '')}\n */"),
)
TRIVIA = st.lists(st.one_of(BLANKS, COMMENTS), max_size=3).map("".join)
KEYS = st.sampled_from(["a", "b", "hooks", "é", 'q"', "// no"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6)
)


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> str:
    """Draw a value as text, with comments and blanks in every place, and perhaps trailing commas."""
    kind = draw(st.sampled_from(["scalar", "array", "object"])) if depth else "scalar"
    if kind == "scalar":
        return json.dumps(draw(SCALARS), ensure_ascii=draw(st.booleans()))
    keys = draw(st.lists(KEYS, max_size=3, unique=True))
    items: list[str] = []
    for key in keys:
        value = draw(documents(depth - 1))
        if kind == "object":
            value = f"{json.dumps(key)}{draw(TRIVIA)}:{draw(TRIVIA)}{value}"
        items.append(draw(TRIVIA) + value + draw(TRIVIA))
    if items and draw(st.booleans()):
        items.append(draw(TRIVIA))
    brackets = "{}" if kind == "object" else "[]"
    return brackets[0] + (",".join(items) or draw(TRIVIA)) + brackets[1]


WHOLE = st.builds(lambda before, text, after: before + text + after, TRIVIA, documents(), TRIVIA)


def containers(node: jsonc.Node, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all objects and arrays."""
    found = [path] if isinstance(node.value, dict | list) else []
    return found + [inner for item in node.items for inner in containers(item.node, (*path, item.key))]


def add(text: str, path: tuple[str | int, ...], key: str, value: Any) -> tuple[str, tuple[str | int, ...]]:
    """Insert a value into a container, and return the text and the path of the value."""
    node = jsonc.find(jsonc.parse(text), path)
    assert node is not None
    if isinstance(node.value, dict):
        return jsonc.set_member(text, path, key, value), (*path, key)
    return jsonc.append(text, path, value), (*path, len(node.items))


def strip_comments(text: str) -> str:
    """Return the text as plain JSON, by a method other than that of the parser."""
    token = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n\r]*|/\*.*?\*/', re.DOTALL)
    plain = token.sub(lambda found: found[1] or " ", text)
    closing = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])', re.DOTALL)
    return closing.sub(lambda found: found[1] or found[2], plain)


def comments(text: str) -> list[str]:
    token = re.compile(r'"(?:[^"\\]|\\.)*"|(//[^\n\r]*|/\*.*?\*/)', re.DOTALL)
    return [found[1] for found in token.finditer(text) if found[1]]


@given(WHOLE)
def test_a_document_is_read_as_json_reads_it_without_comments(text: str) -> None:
    """Comments and trailing commas change no value."""
    assert jsonc.parse(text).value == json.loads(strip_comments(text))


@given(st.text('{}[]",:/*ab01\\ \n-.eu', max_size=12))
def test_a_text_that_json_refuses_is_refused(text: str) -> None:
    """Without comments and trailing commas exactly JSON is accepted."""
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(jsonc.JsonTextError):
            jsonc.parse(text, has_comments=False, has_trailing_commas=False)
    else:
        assert jsonc.parse(text, has_comments=False, has_trailing_commas=False).value == expected


@given(st.data(), WHOLE, SCALARS)
def test_a_removal_undoes_an_insertion(data: st.DataObject, text: str, scalar: Any) -> None:
    """Each character of the document is as before, and each comment was there all the time."""
    paths = containers(jsonc.parse(text))
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    blank = jsonc.blank_inside(text, path) or ""
    longer, place = add(text, path, "new", {"hooks": [scalar]})
    assert jsonc.find(jsonc.parse(longer), place) is not None
    assert comments(longer) == comments(text)
    assert jsonc.remove(longer, place, blank) == text


@given(st.data(), WHOLE)
def test_a_removal_keeps_what_was_inserted_later(data: st.DataObject, text: str) -> None:
    """An insertion, a second one after it and the removal of the first are the second alone."""
    filled = [path for path in containers(jsonc.parse(text)) if jsonc.blank_inside(text, path) is None]
    if not filled:
        return
    path = data.draw(st.sampled_from(filled))
    first, place = add(text, path, "ours", {"hooks": [1]})
    both, _ = add(first, path, "later", "x")
    alone, _ = add(text, path, "later", "x")
    assert jsonc.parse(jsonc.remove(both, place)).value == jsonc.parse(alone).value
    assert comments(jsonc.remove(both, place)) == comments(text)


@given(st.data(), WHOLE)
def test_a_removal_changes_nothing_else(data: st.DataObject, text: str) -> None:
    """Any item can be removed: the other values are as before, and all comments outside the item."""
    root = jsonc.parse(text)
    items = [(path, item) for path in containers(root) for item in _node(root, path).items]
    if not items:
        return
    path, item = data.draw(st.sampled_from(items))
    shorter = jsonc.remove(text, (*path, item.key))
    expected = json.loads(strip_comments(text))
    container = expected
    for key in path:
        container = container[key]
    del container[item.key]
    assert jsonc.parse(shorter).value == expected
    assert comments(shorter) == comments(text[: item.start] + text[item.end :])


def _node(root: jsonc.Node, path: tuple[str | int, ...]) -> jsonc.Node:
    node = jsonc.find(root, path)
    assert node is not None
    return node


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "k": [\n    1\n  ]\n}'),
        ('{"a": 1}', '{"a": 1, "k": [1]}'),
        ('{\n    "a": 1\n}\n', '{\n    "a": 1,\n    "k": [\n        1\n    ]\n}\n'),
        ('{\n\t"a": 1, // one\n}', '{\n\t"a": 1, // one\n\t"k": [\n\t\t1\n\t],\n}'),
        ('{\n  "a": 1 // one\n}', '{\n  "a": 1, // one\n  "k": [\n    1\n  ]\n}'),
        ('{\r\n  "a": 1\r\n}', '{\r\n  "a": 1,\r\n  "k": [\r\n    1\r\n  ]\r\n}'),
    ],
)
def test_an_insertion_has_the_layout_of_what_is_there(before: str, after: str) -> None:
    """Indentation, line ends, comments at the end of a line and trailing commas are continued."""
    assert jsonc.set_member(before, [], "k", [1]) == after


def test_an_error_has_its_place() -> None:
    """The line and column of the first problem are known."""
    with pytest.raises(jsonc.JsonTextError, match=r"line 2, column 7: a comment") as caught:
        jsonc.parse('{\n  "a":/* x */ 1}', has_comments=False)
    assert (caught.value.line, caught.value.column) == (2, 7)
    with pytest.raises(jsonc.JsonTextError, match=r"line 1, column 9: a comma after the last value"):
        jsonc.parse('{"a": 1 ,}', has_trailing_commas=False)
    with pytest.raises(jsonc.JsonTextError, match="more than 100 levels"):
        jsonc.parse("[" * 200)
