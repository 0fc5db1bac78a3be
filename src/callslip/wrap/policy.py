"""A policy: rules in a TOML file, of which the first that fits a permission request decides it.

    [[rule]]
    action = "allow"                            # allow, deny, or ask: leave it to the client
    kind = ["read", "search"]                   # one value or several, of which one must fit
    path = "~/project/**"

    [[rule]]
    action = "deny"
    input.command = "regex:.*\\brm\\s+-rf.*"
    reason = "nothing is removed here"

A rule fits if each of its filters does; one without filters fits everything. A request that no rule fits is asked.
Patterns must fit the whole text. `*` is any text, but in a path it ends at the next slash, and `**` does not.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from callslip import codec
from callslip.errors import Refused
from callslip.lifecycle import clean_name

Action = Literal["allow", "deny", "ask"]
ACTIONS = ("allow", "ask", "deny")
REGEX = "regex:"


class Asked(msgspec.Struct, frozen=True):
    """What is known of a call that needs permission. Nothing is known by default, and nothing fits it then."""

    tools: tuple[str, ...] = ()
    kind: str = ""
    title: str = ""
    input: Any = None
    paths: tuple[str, ...] = ()


Test: TypeAlias = Callable[[Asked], bool]


class Rule(msgspec.Struct, frozen=True):
    """One rule. `always` lets an answer be chosen that the agent remembers."""

    number: int
    action: Action
    reason: str
    always: bool
    tests: tuple[Test, ...]


class Policy(msgspec.Struct, frozen=True):
    """The rules of a file, in its order."""

    rules: tuple[Rule, ...]

    def decide(self, asked: Asked) -> Rule | None:
        """The first rule that fits."""
        return next((rule for rule in self.rules if all(test(asked) for test in rule.tests)), None)


def asked_of(told: dict[str, Any]) -> Asked:
    """A request as rules see it, from what was told of its call."""
    tool = told.get("tool_name")
    names = dict.fromkeys((tool, clean_name(tool))) if isinstance(tool, str) else ()
    return Asked(
        tools=tuple(names),
        kind=_word(told.get("kind")),
        title=_word(told.get("title")),
        input=told.get("input"),
        paths=tuple(_paths(told)),
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _paths(told: dict[str, Any]) -> list[str]:
    """Every path that the call names as a place or as what it changes, without detours through `..`."""
    listed = [told.get("locations"), told.get("content")]
    found = [item.get("path") for items in listed if isinstance(items, list) for item in _objects(items)]
    return [os.path.normpath(path) for path in found if isinstance(path, str) and path]


def _objects(items: Any) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


# Filters: what a value in the file becomes


def _pattern(text: str, place: bool = False) -> re.Pattern[str]:
    if text.startswith(REGEX):
        return re.compile(text.removeprefix(REGEX), re.DOTALL)
    if place:
        text = os.path.expanduser(text)
    one, many = ("[^/]", "[^/]*") if place else (".", ".*")
    wild = {"?": one, "*": many, "**": ".*"}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in re.split(r"(\*\*|\*|\?)", text)), re.DOTALL)


def _patterns(value: Any, *, place: bool = False) -> Callable[[str], bool]:
    """Whether a text fits one of the patterns that a filter lists."""
    listed = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not listed or not all(isinstance(text, str) and text for text in listed):
        raise ValueError("must be a text or a list of texts, none of them empty")
    try:
        made = [_pattern(text, place) for text in listed]
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return lambda text: any(pattern.fullmatch(text) for pattern in made)


def _tool(value: Any, action: str) -> Test:
    fits = _patterns(value)
    return lambda asked: any(map(fits, asked.tools))


def _kind(value: Any, action: str) -> Test:
    fits = _patterns(value)
    return lambda asked: bool(asked.kind) and fits(asked.kind)


def _title(value: Any, action: str) -> Test:
    fits = _patterns(value)
    return lambda asked: bool(asked.title) and fits(asked.title)


def _path(value: Any, action: str) -> Test:
    """To allow, all paths must fit; to stop or ask, one will do."""
    fits = _patterns(value, place=True)
    enough = all if action == "allow" else any
    return lambda asked: bool(asked.paths) and enough(map(fits, asked.paths))


def _input(value: Any, action: str) -> Test:
    """The whole input as text, or with a name behind a dot one of its members."""
    if not isinstance(value, dict):
        fits = _patterns(value)
        return lambda asked: asked.input is not None and fits(_text(asked.input))
    tests = [_member((name,), inner) for name, inner in cast("dict[str, Any]", value).items()]
    return lambda asked: all(test(asked.input) for test in tests)


def _member(path: tuple[str, ...], value: Any) -> Callable[[Any], bool]:
    if isinstance(value, dict):
        tests = [_member((*path, name), inner) for name, inner in cast("dict[str, Any]", value).items()]
        return lambda given: all(test(given) for test in tests)
    fits = _patterns(value)

    def test(given: Any) -> bool:
        for name in path:
            given = cast("dict[str, Any]", given).get(name) if isinstance(given, dict) else None
        return given is not None and fits(_text(given))

    return test


def _text(value: Any) -> str:
    """A text as it is, a list of texts as one line, anything else as JSON."""
    if isinstance(value, str):
        return value
    listed = cast("list[object]", value) if isinstance(value, list) else []
    words = [word for word in listed if isinstance(word, str)]
    return " ".join(words) if words and words == listed else codec.encode(cast(object, value)).decode()


FILTERS: dict[str, Callable[[Any, str], Test]] = {
    "tool": _tool,
    "kind": _kind,
    "title": _title,
    "input": _input,
    "path": _path,
}
MEMBERS = ("action", "reason", "always", *FILTERS)


# The file


def load(path: str | os.PathLike[str]) -> Policy:
    """The policy in a file, or Refused with where it is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        found = tomllib.loads(text)
    except OSError as error:
        raise Refused(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(str(path), f"is not TOML: {error}") from error
    odd = sorted(set(found) - {"rule"})
    if odd:
        raise Refused(str(path), f"knows no {odd[0]!r}; write rules, each under [[rule]]")
    given: Any = found.get("rule", [])
    rules = _objects(given) if isinstance(given, list) else []
    if rules != given:
        raise Refused(str(path), "write each rule under [[rule]], with two brackets")
    lines = _lines(text, len(rules))
    return Policy(tuple(_rule(number, rule, f"{path}{lines(number)}") for number, rule in enumerate(rules, 1)))


def _lines(text: str, count: int) -> Callable[[int], str]:
    """Where a rule begins in the file, if it is written in the usual way."""
    heads = [text.count("\n", 0, found.end()) + 1 for found in re.finditer(r"^[ \t]*\[\[", text, re.MULTILINE)]
    return lambda number: f", line {heads[number - 1]}" if len(heads) == count else ""


def _rule(number: int, given: dict[str, Any], where: str) -> Rule:
    where = f"{where}, rule {number}"
    odd = sorted(set(given) - set(MEMBERS))
    if odd:
        raise Refused(where, f"knows no {odd[0]!r}; known are {', '.join(MEMBERS)}")
    action, reason, always = given.get("action"), given.get("reason", ""), given.get("always", False)
    if action not in ACTIONS:
        raise Refused(where, f"action must be one of {', '.join(ACTIONS)}" + (f", not {action!r}" if action else ""))
    if not isinstance(reason, str) or not isinstance(always, bool):
        raise Refused(where, "reason must be a text and always must be true or false")
    tests: list[Test] = []
    for name in FILTERS:
        if name in given:
            try:
                tests.append(FILTERS[name](given[name], action))
            except ValueError as error:
                raise Refused(where, f"{name} {error}") from error
    return Rule(number, action, reason or f"rule {number} of the policy", always, tuple(tests))
