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
What was not told cannot allow: if a rule that would stop or ask may fit, and only for want of what it looks at is not
known to, a later rule does not allow; the client is asked. A path counts as it is written and as links lead it.
A tool of an MCP server is stopped by its own name or by the whole one, and allowed by the whole one alone: `Read` does
not allow `mcp__fs__Read`, which anybody's server may offer.
"""

from __future__ import annotations

import os
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.rules.lifecycle import strip_mcp_prefix

Action = Literal["allow", "deny", "ask"]
ACTIONS = ("allow", "ask", "deny")
REGEX = "regex:"
WILD = r"(\*\*|\*|\?)"


class PermissionQuery(msgspec.Struct, frozen=True):
    """What is known of a call that needs permission. Nothing is known by default, and nothing fits it then."""

    tools: tuple[str, ...] = ()
    """The whole name first, then the one without its server's prefix."""
    kind: str = ""
    title: str = ""
    input: Any = None
    paths: tuple[str, ...] = ()
    unplaced: bool = True
    """Some path is not known: none was told of, or one that does not say where it begins."""


Test: TypeAlias = Callable[[PermissionQuery], bool | None]
"""Whether a filter fits; None if that is not known."""


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

    def decide(self, asked: PermissionQuery) -> Rule | None:
        """The first rule that fits; none if it would allow what an earlier one might have stopped."""
        doubt = False
        by_whole_name = msgspec.structs.replace(asked, tools=asked.tools[:1])
        for rule in self.rules:
            known = by_whole_name if rule.action == "allow" else asked
            found = _each(test(known) for test in rule.tests)
            if found:
                return None if doubt and rule.action == "allow" else rule
            doubt = doubt or (found is None and rule.action != "allow")
        return None


def _each(found: Iterable[bool | None]) -> bool | None:
    """Whether all fit: one that does not decides, then one that is not known."""
    results = list(found)
    return False if False in results else None if None in results else True


def permission_query(told: dict[str, Any]) -> PermissionQuery:
    """A request as rules see it, from what was told of its call."""
    tool = told.get("tool_name")
    names = dict.fromkeys((tool, strip_mcp_prefix(tool))) if isinstance(tool, str) else ()
    places = _places(told)
    return PermissionQuery(
        tools=tuple(names),
        kind=_word(told.get("kind")),
        title=_word(told.get("title")),
        input=told.get("input"),
        paths=tuple(way for path in places for way in _ways(path)),
        unplaced=not all(map(os.path.isabs, places)) or not (places or isinstance(told.get("locations"), list)),
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _places(told: dict[str, Any]) -> list[str]:
    """Every path that the call names as a place or as what it changes; "" for one that is no text."""
    listed = [told.get("locations"), told.get("content")]
    items = [item for items in listed if isinstance(items, list) for item in _objects(items)]
    return [_word(item["path"]) for item in items if "path" in item]


def _ways(path: str) -> set[str]:
    """A path without detours through `..`, as it is written and as links lead it."""
    written = "/" + os.path.normpath(path).lstrip("/")  # Two slashes at the beginning would be kept.
    ways = (written, os.path.realpath(path)) if os.path.isabs(path) else ()
    return {unicodedata.normalize("NFC", way) for way in ways}


def _objects(items: Any) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


# Filters: what a value in the file becomes


def _pattern(text: str, place: bool, flags: int) -> re.Pattern[str]:
    if text.startswith(REGEX):
        return re.compile(text.removeprefix(REGEX), flags)
    one, many = ("[^/]", "[^/]*") if place else (".", ".*")
    wild = {"?": one, "*": many, "**": ".*"}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in re.split(WILD, text)), flags)


def _spellings(text: str) -> set[str]:
    """A path's pattern as it is written, and as links lead the folder that it begins with."""
    if text.startswith(REGEX):
        return {text}
    text = unicodedata.normalize("NFC", os.path.expanduser(text))
    head, slash, rest = re.split(WILD, text)[0].rpartition("/")
    led = os.path.realpath(head or "/") if slash == "/" and text.startswith("/") else ""
    plain = led and not re.search(WILD, led)
    return {text, f"{led.rstrip('/')}/{rest}{text[len(head) + 1 + len(rest) :]}"} if plain else {text}


def _patterns(value: Any, *, place: bool = False, flags: int = re.DOTALL) -> Callable[[str], bool]:
    """Whether a text fits one of the patterns that a filter lists."""
    listed = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not listed or not all(isinstance(text, str) and text for text in listed):
        raise ValueError("must be a text or a list of texts, none of them empty")
    try:
        spelt = [way for text in listed for way in (_spellings(text) if place else (text,))]
        made = [_pattern(text, place, flags) for text in spelt]
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return lambda text: any(pattern.fullmatch(text) for pattern in made)


def _tool(value: Any, action: str) -> Test:
    fits = _patterns(value)
    return lambda asked: any(map(fits, asked.tools)) if asked.tools else None


def _kind(value: Any, action: str) -> Test:
    fits = _patterns(value)
    return lambda asked: fits(asked.kind) if asked.kind else None


def _title(value: Any, action: str) -> Test:
    fits = _patterns(value)
    return lambda asked: fits(asked.title) if asked.title else None


def _path(value: Any, action: str) -> Test:
    """To allow, all paths must be known and fit; to stop or ask, one will do, in whatever case it is written."""
    if action == "allow":
        fits = _patterns(value, place=True)
        return lambda asked: not asked.unplaced and bool(asked.paths) and all(map(fits, asked.paths))
    stops = _patterns(value, place=True, flags=re.DOTALL | re.IGNORECASE)
    return lambda asked: any(map(stops, asked.paths)) or (None if asked.unplaced else False)


def _input(value: Any, action: str) -> Test:
    """The whole input as text, or with a name behind a dot one of its members."""
    if not isinstance(value, dict):
        fits = _patterns(value)
        return lambda asked: None if asked.input is None else fits(_text(asked.input))
    tests = [_member((name,), inner) for name, inner in cast("dict[str, Any]", value).items()]
    return lambda asked: _each(test(asked.input) for test in tests)


def _member(path: tuple[str, ...], value: Any) -> Callable[[Any], bool | None]:
    """Of an input that is no object, or has null there, nothing is known; what an object lacks is not there."""
    if isinstance(value, dict):
        tests = [_member((*path, name), inner) for name, inner in cast("dict[str, Any]", value).items()]
        return lambda given: _each(test(given) for test in tests)
    fits = _patterns(value)

    def test(given: Any) -> bool | None:
        for name in path:
            if isinstance(given, dict) and name not in given:
                return False
            given = cast("dict[str, Any]", given)[name] if isinstance(given, dict) else None
        return None if given is None else fits(_text(given))

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
        raise InvalidInputError(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(str(path), f"is not TOML: {error}") from error
    odd = sorted(set(found) - {"rule"})
    if odd:
        raise InvalidInputError(str(path), f"knows no {odd[0]!r}; write rules, each under [[rule]]")
    given: Any = found.get("rule", [])
    rules = _objects(given) if isinstance(given, list) else []
    if rules != given:
        raise InvalidInputError(str(path), "write each rule under [[rule]], with two brackets")
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
        raise InvalidInputError(where, f"knows no {odd[0]!r}; known are {', '.join(MEMBERS)}")
    action, reason, always = given.get("action"), given.get("reason", ""), given.get("always", False)
    if action not in ACTIONS:
        raise InvalidInputError(
            where, f"action must be one of {', '.join(ACTIONS)}" + (f", not {action!r}" if action else "")
        )
    if not isinstance(reason, str) or not isinstance(always, bool):
        raise InvalidInputError(where, "reason must be a text and always must be true or false")
    tests: list[Test] = []
    for name in FILTERS:
        if name in given:
            try:
                tests.append(FILTERS[name](given[name], action))
            except ValueError as error:
                raise InvalidInputError(where, f"{name} {error}") from error
    return Rule(number, action, reason or f"rule {number} of the policy", always, tuple(tests))
