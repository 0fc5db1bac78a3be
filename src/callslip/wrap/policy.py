"""A policy: rules in a TOML file. The first rule that matches a permission request decides it.

    [[rule]]
    action = "allow"                            # allow, deny, or ask: the client decides
    kind = ["read", "search"]                   # one value, or several of which one must match
    path = "~/project/**"

    [[rule]]
    action = "deny"
    input.command = "regex:.*\\brm\\s+-rf.*"
    reason = "nothing is removed here"

A rule matches if each of its filters does; one without filters matches everything. The client decides a request that no
rule matches. A pattern must match the complete text. `*` is any text, but in a path it ends at the next slash; `**`
does not. Missing fields never allow a request: if it is unknown whether an earlier `deny` or `ask` rule matches, a
later rule does not allow the request, and the client decides. A path is matched as it is written and with links
resolved. A tool of an MCP server is denied by its own name or by the full one, and allowed only by the full one: `Read`
does not allow `mcp__fs__Read`, which any server may offer.
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
from callslip.formats.json_fields import as_list, as_str
from callslip.model import codec
from callslip.rules.lifecycle import strip_mcp_prefix

Action = Literal["allow", "deny", "ask"]
ACTIONS = ("allow", "ask", "deny")
REGEX = "regex:"
WILDCARD = r"(\*\*|\*|\?)"


class PermissionQuery(msgspec.Struct, frozen=True):
    """What is known about the call of a permission request. A filter does not match what is not known."""

    tools: tuple[str, ...] = ()
    """The full name, then the one without the prefix of its MCP server."""
    kind: str = ""
    title: str = ""
    input: Any = None
    paths: tuple[str, ...] = ()
    has_unknown_path: bool = True
    """Whether a path is not known: the agent sent no list of paths, or a path that is not absolute."""


Test: TypeAlias = Callable[[PermissionQuery], bool | None]
"""Return whether a filter matches; None if that is not known."""


class Rule(msgspec.Struct, frozen=True):
    """A rule. `always` allows an option that the agent remembers."""

    number: int
    action: Action
    reason: str
    always: bool
    tests: tuple[Test, ...]


class Policy(msgspec.Struct, frozen=True):
    """The rules of a file, in order."""

    rules: tuple[Rule, ...]

    def decide(self, query: PermissionQuery) -> Rule | None:
        """Return the first rule that matches; None if it would allow what an earlier one might deny."""
        might_deny = False
        with_full_name = msgspec.structs.replace(query, tools=query.tools[:1])
        for rule in self.rules:
            is_match = _all_match(test(with_full_name if rule.action == "allow" else query) for test in rule.tests)
            if is_match:
                return None if might_deny and rule.action == "allow" else rule
            might_deny = might_deny or (is_match is None and rule.action != "allow")
        return None


def _all_match(matches: Iterable[bool | None]) -> bool | None:
    """Return whether all match: False if one does not, else None if one is not known."""
    results = list(matches)
    return False if False in results else None if None in results else True


def permission_query(call: dict[str, Any]) -> PermissionQuery:
    """Return what rules can match, from the fields of a call."""
    tool = call.get("tool_name")
    names = dict.fromkeys((tool, strip_mcp_prefix(tool))) if isinstance(tool, str) else ()
    items = _objects([*as_list(call.get("locations")), *as_list(call.get("content"))])
    paths = [as_str(item["path"]) for item in items if "path" in item]  # "" for one that is not a string.
    return PermissionQuery(
        tools=tuple(names),
        kind=as_str(call.get("kind")),
        title=as_str(call.get("title")),
        input=call.get("input"),
        paths=tuple(form for path in paths for form in _path_forms(path)),
        has_unknown_path=not all(map(os.path.isabs, paths)) or not (paths or isinstance(call.get("locations"), list)),
    )


def _path_forms(path: str) -> set[str]:
    """Return an absolute path without `..`, as it is written and with links resolved."""
    written = "/" + os.path.normpath(path).lstrip("/")  # `normpath` keeps two slashes at the beginning.
    forms = (written, os.path.realpath(path)) if os.path.isabs(path) else ()
    return {unicodedata.normalize("NFC", form) for form in forms}


def _objects(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


# Compile the filters of a rule


def _compile_pattern(text: str, is_path: bool, flags: int) -> re.Pattern[str]:
    if text.startswith(REGEX):
        return re.compile(text.removeprefix(REGEX), flags)
    one, many = ("[^/]", "[^/]*") if is_path else (".", ".*")
    wildcards = {"?": one, "*": many, "**": ".*"}
    return re.compile("".join(wildcards.get(part) or re.escape(part) for part in re.split(WILDCARD, text)), flags)


def _pattern_forms(text: str) -> set[str]:
    """Return a pattern of paths as it is written, and with the links in its fixed first folders resolved."""
    if text.startswith(REGEX):
        return {text}
    text = unicodedata.normalize("NFC", os.path.expanduser(text))
    folder, slash, rest = re.split(WILDCARD, text)[0].rpartition("/")
    resolved = os.path.realpath(folder or "/") if slash == "/" and text.startswith("/") else ""
    if not resolved or re.search(WILDCARD, resolved):
        return {text}
    return {text, f"{resolved.rstrip('/')}/{rest}{text[len(folder) + 1 + len(rest) :]}"}


def _compile(value: Any, *, is_path: bool = False, flags: int = re.DOTALL) -> Callable[[str], bool]:
    """Return a function that returns whether a text matches one of the patterns of a filter."""
    texts = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("must be a string or a list of strings, none of them empty")
    try:
        forms = [form for text in texts for form in (_pattern_forms(text) if is_path else (text,))]
        patterns = [_compile_pattern(form, is_path, flags) for form in forms]
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return lambda text: any(pattern.fullmatch(text) for pattern in patterns)


def _tool_test(value: Any, action: str) -> Test:
    matches = _compile(value)
    return lambda query: any(map(matches, query.tools)) if query.tools else None


def _kind_test(value: Any, action: str) -> Test:
    matches = _compile(value)
    return lambda query: matches(query.kind) if query.kind else None


def _title_test(value: Any, action: str) -> Test:
    matches = _compile(value)
    return lambda query: matches(query.title) if query.title else None


def _path_test(value: Any, action: str) -> Test:
    """To allow, all paths must be known and match. To deny or ask, one match in any case of letters is enough."""
    if action == "allow":
        matches = _compile(value, is_path=True)
        return lambda query: not query.has_unknown_path and bool(query.paths) and all(map(matches, query.paths))
    denies = _compile(value, is_path=True, flags=re.DOTALL | re.IGNORECASE)
    return lambda query: any(map(denies, query.paths)) or (None if query.has_unknown_path else False)


def _input_test(value: Any, action: str) -> Test:
    """Match the complete input as text, or with `input.NAME` one of its members."""
    if not isinstance(value, dict):
        matches = _compile(value)
        return lambda query: None if query.input is None else matches(_as_text(query.input))
    tests = [_member_test((name,), inner) for name, inner in cast("dict[str, Any]", value).items()]
    return lambda query: _all_match(test(query.input) for test in tests)


def _member_test(path: tuple[str, ...], value: Any) -> Callable[[Any], bool | None]:
    """Match a member of the input: False if an object lacks it, None if it is null or its parent is not an object."""
    if isinstance(value, dict):
        tests = [_member_test((*path, name), inner) for name, inner in cast("dict[str, Any]", value).items()]
        return lambda input: _all_match(test(input) for test in tests)
    matches = _compile(value)

    def test(member: Any) -> bool | None:
        for name in path:
            if isinstance(member, dict) and name not in member:
                return False
            member = cast("dict[str, Any]", member)[name] if isinstance(member, dict) else None
        return None if member is None else matches(_as_text(member))

    return test


def _as_text(value: Any) -> str:
    """Return a string unchanged, a list of strings joined with spaces, and anything else as JSON."""
    if isinstance(value, str):
        return value
    words = [word for word in as_list(value) if isinstance(word, str)]
    return " ".join(words) if words and words == value else codec.encode(value).decode()


FILTERS: dict[str, Callable[[Any, str], Test]] = {
    "tool": _tool_test,
    "kind": _kind_test,
    "title": _title_test,
    "input": _input_test,
    "path": _path_test,
}
RULE_FIELDS = ("action", "reason", "always", *FILTERS)


# Read the file


def load(path: str | os.PathLike[str]) -> Policy:
    """Return the policy in a file, or raise InvalidInputError with the place of the error."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidInputError(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(str(path), f"is not TOML: {error}") from error
    unknown = sorted(set(document) - {"rule"})
    if unknown:
        raise InvalidInputError(str(path), f"unknown key {unknown[0]!r}; write each rule under [[rule]]")
    value: Any = document.get("rule", [])
    rules = _objects(as_list(value))
    if rules != value:
        raise InvalidInputError(str(path), "write each rule under [[rule]], with two brackets")
    heads = [text.count("\n", 0, match.end()) + 1 for match in re.finditer(r"^[ \t]*\[\[", text, re.MULTILINE)]
    lines = [f", line {head}" for head in heads] if len(heads) == len(rules) else [""] * len(rules)
    numbered = enumerate(zip(rules, lines, strict=True), 1)
    return Policy(tuple(_parse_rule(number, rule, f"{path}{line}, rule {number}") for number, (rule, line) in numbered))


def _parse_rule(number: int, fields: dict[str, Any], location: str) -> Rule:
    unknown = sorted(set(fields) - set(RULE_FIELDS))
    if unknown:
        raise InvalidInputError(location, f"unknown key {unknown[0]!r}; the keys are {', '.join(RULE_FIELDS)}")
    action, reason, always = fields.get("action"), fields.get("reason", ""), fields.get("always", False)
    if action not in ACTIONS:
        got = f", got {action!r}" if action else ""
        raise InvalidInputError(location, f"action must be one of {', '.join(ACTIONS)}{got}")
    if not isinstance(reason, str) or not isinstance(always, bool):
        raise InvalidInputError(location, "reason must be a string and always must be true or false")
    tests: list[Test] = []
    for name in FILTERS:
        if name in fields:
            try:
                tests.append(FILTERS[name](fields[name], action))
            except ValueError as error:
                raise InvalidInputError(location, f"{name} {error}") from error
    return Rule(number, action, reason or f"rule {number} of the policy", always, tuple(tests))
