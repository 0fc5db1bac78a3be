"""Edit JSON with comments as text: insert, replace or remove one value, and keep every other character."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from callslip.errors import CallslipError

MAX_DEPTH = 100
DEFAULT_INDENT = "  "
_BLANK = " \t\r\n"
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_LINE_END = re.compile(r"\r\n|\n|\r|\Z")

Path = Sequence[str | int]
Span = tuple[int, int]


class JsonTextError(CallslipError):
    """A text is not the JSON that was expected; `line` and `column` count from 1."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        before = text[:position]
        self.line = before.count("\n") + 1
        self.column = position - before.rfind("\n")
        self.problem = problem
        super().__init__(f"line {self.line}, column {self.column}: {problem}")


@dataclass(slots=True)
class Node:
    """A value and its place in the text. `items` are those of an object or an array."""

    start: int
    end: int
    value: Any
    items: list[Item] = field(default_factory=list["Item"])


@dataclass(slots=True)
class Item:
    """A member of an object or an element of an array, from its key or value. `comma` is the place after its comma.

    `comma` is 0 if there is none.
    """

    key: str | int
    start: int
    node: Node
    comma: int = 0

    @property
    def end(self) -> int:
        """The end of the value."""
        return self.node.end


def parse(text: str, *, has_comments: bool = True, has_trailing_commas: bool = True) -> Node:
    """Parse a document. Without the options, comments or trailing commas are errors."""
    return _Parser(text, has_comments, has_trailing_commas).parse()


def find(node: Node, path: Path) -> Node | None:
    """Return the value at a path, None if there is none. Of equal keys the last one counts."""
    for key in path:
        found = [item for item in node.items if item.key == key]
        if not found:
            return None
        node = found[-1].node
    return node


def append(text: str, path: Path, value: Any) -> str:
    """Insert a value after the last element of the array at a path."""
    return _insert(text, _container(text, path, list), "", value)


def set_member(text: str, path: Path, key: str, value: Any) -> str:
    """Set a member of the object at a path: replace its value, or insert it after the last member."""
    container = _container(text, path, dict)
    if (node := find(container, [key])) is not None:
        return text[: node.start] + _render(text, value, _line_indent(text, node.start)) + text[node.end :]
    return _insert(text, container, f"{_dump(key)}: ", value)


def blank_inside(text: str, path: Path) -> str | None:
    """Return what is inside an empty object or array, None if that is more than blanks or there is no such value."""
    node = find(parse(text), path)
    if node is None or not isinstance(node.value, dict | list):
        return None
    inside = text[node.start + 1 : node.end - 1]
    return None if inside.strip(_BLANK) else inside


def remove(text: str, path: Path, blank: str = "") -> str:
    """Remove the member or element at a path, with the comma and the blanks that belong to it.

    Comments beside it stay. If nothing is left in its container, this is filled with `blank`.
    """
    container = find(parse(text), path[:-1])
    matching = [number for number, item in enumerate(container.items if container else ()) if item.key == path[-1]]
    if container is None or not matching:
        raise KeyError(path)
    number, items = matching[-1], container.items
    item = items[number]
    if len(items) == 1:
        before, after = text[container.start + 1 : item.start], text[item.comma or item.end : container.end - 1]
        if not (before + after + text[item.end : item.comma - 1 if item.comma else item.end]).strip(_BLANK):
            return text[: container.start + 1] + blank + text[container.end - 1 :]
    start, end = _span_to_cut(text, container, number)
    cuts = [(start, end)]
    if item.comma:
        cuts.append((item.comma - 1, item.comma))
    elif number:
        cuts.append((items[number - 1].comma - 1, items[number - 1].comma))
    if number == 0 and item.comma and start == item.start and item.comma == item.end + 1:
        cuts[-1] = (item.comma - 1, _skip_blanks(text, item.comma))
    for cut_start, cut_end in sorted(cuts, reverse=True):
        text = text[:cut_start] + text[cut_end:]
    return text


def _span_to_cut(text: str, container: Node, number: int) -> Span:
    """Return the place of an item with the blanks before it, unless a comment before it would then be continued."""
    item = container.items[number]
    first = container.items[number - 1].end if number else container.start + 1
    start = _end_of_comments(text, first, item.start)
    rest = text[item.end : item.comma - 1] + text[item.comma :] if item.comma else text[item.end :]
    line = rest[: _match_line_end(rest, 0)]
    if line and _ends_in_line_comment(text, first, start):
        start = item.start
    return start, item.end


def _container(text: str, path: Path, kind: type) -> Node:
    node = find(parse(text), path)
    if node is None or not isinstance(node.value, kind):
        raise KeyError(path)
    return node


def _insert(text: str, container: Node, prefix: str, value: Any) -> str:
    """Insert a member or an element at the end of a container, in the layout of the items before it."""
    if not container.items:
        return _insert_first(text, container, prefix, value)
    last = container.items[-1]
    place = _end_of_line_comment(text, last.comma or last.end)
    line_indent = _line_indent(text, last.start)
    is_own_line = not text[_line_start(text, last.start) : last.start].strip(_BLANK)
    if is_own_line or _ends_in_line_comment(text, last.comma or last.end, place):
        indent = line_indent if is_own_line else line_indent + _unit(text)
        inserted = _newline(text) + indent + prefix + _render(text, value, indent)
    elif "\n" in text[container.start : container.end]:
        inserted = " " + prefix + _render(text, value, line_indent)
    else:
        inserted = " " + prefix + _dump(value)
    if last.comma:
        return text[:place] + inserted + "," + text[place:]
    return text[: last.end] + "," + text[last.end : place] + inserted + text[place:]


def _insert_first(text: str, container: Node, prefix: str, value: Any) -> str:
    start, end = container.start + 1, container.end - 1
    if text[start:end].strip(_BLANK):  # Comments.
        place = _end_of_comments(text, start, end)
        if "\n" not in text[start:end]:
            return text[:place] + " " + prefix + _dump(value) + text[place:]
        indent = _line_indent(text, container.start) + _unit(text)
        return text[:place] + _newline(text) + indent + prefix + _render(text, value, indent) + text[place:]
    if "\n" not in text.strip(_BLANK) and text.strip(_BLANK) != text[container.start : container.end]:
        return text[:start] + prefix + _dump(value) + text[end:]
    outer = _newline(text) + _line_indent(text, container.start)
    indent = _line_indent(text, container.start) + _unit(text)
    inserted = _newline(text) + indent + prefix + _render(text, value, indent) + outer
    return text[:start] + inserted + text[end:]


# Layout


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _render(text: str, value: Any, indent: str) -> str:
    """Return a value as JSON over several lines, of which all but the first are indented."""
    if not isinstance(value, dict | list):
        return _dump(value)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return (_newline(text) + indent).join(lines)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_start(text: str, position: int) -> int:
    return max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1


def _line_indent(text: str, position: int) -> str:
    line = text[_line_start(text, position) : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """Return what one level is indented by: that of the first member of the document which has its own line."""
    for item in parse(text).items:
        if not text[_line_start(text, item.start) : item.start].strip(_BLANK) and (
            indent := _line_indent(text, item.start)
        ):
            return indent
    return DEFAULT_INDENT


# Comments


def _match_line_end(text: str, position: int) -> int:
    found = _LINE_END.search(text, position)
    assert found is not None
    return found.start()


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANK:
        position += 1
    return position


def _end_of_line_comment(text: str, position: int) -> int:
    """Return the end of the comments that follow on the same line, else the position itself."""
    end = position
    while True:
        while position < len(text) and text[position] in " \t":
            position += 1
        if text.startswith("//", position):
            return _match_line_end(text, position)
        close = text.find("*/", position + 2) + 2 if text.startswith("/*", position) else 0
        if not close or "\n" in text[position:close]:
            return end
        position = end = close


def _end_of_comments(text: str, position: int, end: int) -> int:
    """Return the end of the last comment or comma in a part of the text that has only these and blanks."""
    last = position
    while position < end:
        if text.startswith("//", position):
            position = last = _match_line_end(text, position)
        elif text.startswith("/*", position):
            position = last = text.find("*/", position + 2) + 2
        else:
            if text[position] == ",":
                last = position + 1
            position += 1
    return last


def _ends_in_line_comment(text: str, position: int, end: int) -> bool:
    """Return whether the last of the comments in a part of the text needs a line end after it."""
    while position < end:
        if text.startswith("//", position):
            position = _match_line_end(text, position)
            if position >= end:
                return True
        elif text.startswith("/*", position):
            position = text.find("*/", position + 2) + 2
        else:
            position += 1
    return False


class _Parser:
    def __init__(self, text: str, has_comments: bool, has_trailing_commas: bool) -> None:
        self.text = text
        self.position = 0
        self.has_comments = has_comments
        self.has_trailing_commas = has_trailing_commas

    def parse(self) -> Node:
        self.skip()
        node = self.value(0)
        self.skip()
        if self.position < len(self.text):
            raise self.error("text after the end of the document")
        return node

    def error(self, problem: str, position: int | None = None) -> JsonTextError:
        return JsonTextError(self.text, self.position if position is None else position, problem)

    def skip(self) -> None:
        """Skip blanks and comments."""
        text = self.text
        while True:
            self.position = _skip_blanks(text, self.position)
            if not text.startswith(("//", "/*"), self.position):
                return
            if not self.has_comments:
                raise self.error("a comment")
            if text.startswith("//", self.position):
                self.position = _match_line_end(text, self.position)
                continue
            end = text.find("*/", self.position + 2)
            if end < 0:
                raise self.error("a comment without an end")
            self.position = end + 2

    def take(self, character: str) -> bool:
        if not self.text.startswith(character, self.position):
            return False
        self.position += 1
        return True

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} levels")
        start = self.position
        if self.take("{"):
            return self.container(start, "}", depth)
        if self.take("["):
            return self.container(start, "]", depth)
        if self.text.startswith('"', start):
            value = self.string()
            return Node(start, self.position, value)
        found = _SCALAR.match(self.text, start)
        if found is None or re.match(r"[\w.+-]", self.text[found.end() : found.end() + 1]):
            raise self.error("expected a value" if start < len(self.text) else "the document is not complete")
        self.position = found.end()
        return Node(start, self.position, json.loads(found[0]))

    def string(self) -> str:
        found = _STRING.match(self.text, self.position)
        if found is None:
            raise self.error("a string that is not valid or has no end")
        self.position = found.end()
        return json.loads(found[0])

    def container(self, start: int, close: str, depth: int) -> Node:
        items: list[Item] = []
        while True:
            self.skip()
            if self.take(close):
                break
            if items and not items[-1].comma:
                raise self.error(f"expected , or {close}")
            items.append(self.item(len(items), depth, is_member=close == "}"))
            self.skip()
            if self.take(","):
                items[-1].comma = self.position
        if items and items[-1].comma and not self.has_trailing_commas:
            raise self.error("a comma after the last value", items[-1].comma - 1)
        value: Any = [item.node.value for item in items]
        if close == "}":
            value = {item.key: item.node.value for item in items}
        return Node(start, self.position, value, items)

    def item(self, number: int, depth: int, *, is_member: bool) -> Item:
        start = self.position
        if not is_member:
            return Item(number, start, self.value(depth + 1))
        if not self.text.startswith('"', start):
            raise self.error("expected a key in quotes" if start < len(self.text) else "the document is not complete")
        key = self.string()
        self.skip()
        if not self.take(":"):
            raise self.error("expected a colon after the key")
        self.skip()
        return Item(key, start, self.value(depth + 1))
