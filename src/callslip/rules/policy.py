"""A policy: rules that answer permission requests. The first rule that matches a request decides it.

A policy file has them as TOML (`callslip.api.policy_file`):

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

A text that is a shell command is matched by rules/command_pattern.py. With wildcards a rule allows only one simple
command; if its text matches but the command is not simple, the client decides, unless a later rule has the exact text.
The same holds for a rule about the title or another text of a call that runs a command.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.rules.call_commands import PLACE_NAMES, find_commands, plain_name, runs_commands
from callslip.rules.command_pattern import CommandPattern, any_matches, find_obstacle
from callslip.rules.lifecycle import strip_mcp_prefix
from callslip.rules.shell_command import ShellCommand, parse_command
from callslip.rules.text_pattern import EXACT, REGEX, WILDCARD, TextPattern

Action = Literal["allow", "deny", "ask"]
ACTIONS = ("allow", "ask", "deny")


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
    commands: dict[tuple[str, ...], ShellCommand] = {}
    """The shell commands in the input, by the path of their member."""
    is_execute: bool = False
    """Whether the call runs a command, or may do so: neither its kind nor its input is known."""
    title_command: ShellCommand | None = None
    """The title of a call that runs a command: it often is the command."""

    def list_commands(self) -> list[ShellCommand]:
        """Return the commands that the call runs, as far as they are known."""
        title = [self.title_command] if self.title_command is not None else []
        return list(self.commands.values()) or title


FilterTest: TypeAlias = Callable[[PermissionQuery], bool | None]
"""Return whether a filter matches; None if that is not known, or to allow, if the client must decide."""


class Rule(msgspec.Struct, frozen=True):
    """A rule. `always` allows an option that the agent remembers. It begins at `line` of its file, 0 if unknown."""

    number: int
    action: Action
    filters: dict[str, Any]
    reason: str
    always: bool
    tests: tuple[FilterTest, ...]
    exact_texts: frozenset[str] | None
    """The texts without wildcards in the filters title and input; None without such filters."""
    line: int = 0

    def match(self, query: PermissionQuery) -> bool | None:
        """Return whether each filter matches; None if that is not known, or to allow, if the client must decide."""
        is_match = _all_match(test(query) for test in self.tests)
        if not is_match or self.action != "allow" or self.exact_texts is None or self.names_commands(query):
            return is_match
        commands = query.list_commands()
        has_one = len({command.text for command in commands}) == 1 or not query.is_execute
        return True if has_one and not any(map(find_obstacle, commands)) else None

    def names_commands(self, query: PermissionQuery) -> bool:
        """Return whether the call runs commands, and the rule has their exact texts."""
        texts = {command.text for command in query.list_commands()}
        return bool(texts) and "" not in texts and self.exact_texts is not None and texts <= self.exact_texts


class PolicyMatch(msgspec.Struct, frozen=True):
    """The rule of a policy that decides a call, if one does. If the policy `is_about` the call, no other rule decides.

    `steps` are the rules that were looked at, each with whether it matches.
    """

    rule: Rule | None
    is_about: bool
    steps: tuple[tuple[Rule, bool | None], ...]


class Policy(msgspec.Struct, frozen=True):
    """The rules of a file, in order, and its path."""

    rules: tuple[Rule, ...]
    path: str = ""

    def decide(self, query: PermissionQuery) -> Rule | None:
        """Return the first rule that matches; None if an earlier rule may deny what it allows, or asks a person."""
        return self.find_rule(query).rule

    def find_rule(self, query: PermissionQuery) -> PolicyMatch:
        """Return what `decide` does, with the rules that were looked at."""
        might_deny = needs_person = False
        with_full_name = msgspec.structs.replace(query, tools=query.tools[:1])
        steps: list[tuple[Rule, bool | None]] = []
        for rule in self.rules:
            is_match = rule.match(with_full_name if rule.action == "allow" else query)
            steps.append((rule, is_match))
            if is_match:
                is_blocked = might_deny or (needs_person and not rule.names_commands(query))
                decides = rule.action != "allow" or not is_blocked
                return PolicyMatch(rule if decides else None, True, tuple(steps))
            if is_match is None and rule.action == "allow":
                needs_person = True
            elif is_match is None:
                might_deny = True
        return PolicyMatch(None, might_deny or needs_person, tuple(steps))


def _all_match(matches: Iterable[bool | None]) -> bool | None:
    """Return whether all match: False if one does not, else None if one is not known."""
    results = list(matches)
    return False if False in results else None if None in results else True


def permission_query(call: dict[str, Any]) -> PermissionQuery:
    """Return what rules can match, from the fields of a call."""
    tool, input = call.get("tool_name"), call.get("input")
    kind, title = _text(call.get("kind")), _text(call.get("title"))
    names = dict.fromkeys((tool, strip_mcp_prefix(tool))) if isinstance(tool, str) else ()
    items = _objects([*_list(call.get("locations")), *_list(call.get("content"))])
    paths = [_text(item["path"]) for item in items if "path" in item]  # "" for one that is not a string.
    is_execute = runs_commands(kind, _text(tool)) or (kind in ("", "other") and isinstance(input, str | None))
    commands = find_commands(input, is_execute=is_execute)
    return PermissionQuery(
        tools=tuple(names),
        kind=kind,
        title=title,
        input=input,
        paths=tuple(form for path in paths for form in _path_forms(path)),
        has_unknown_path=not all(map(os.path.isabs, paths)) or not (paths or isinstance(call.get("locations"), list)),
        commands=commands,
        is_execute=is_execute or bool(commands),
        title_command=parse_command(title) if title and (is_execute or commands) else None,
    )


def _path_forms(path: str) -> set[str]:
    """Return an absolute path without `..`, as it is written and with links resolved."""
    written = "/" + os.path.normpath(path).lstrip("/")  # `normpath` keeps two slashes at the beginning.
    forms = (written, os.path.realpath(path)) if os.path.isabs(path) else ()
    return {unicodedata.normalize("NFC", form) for form in forms}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _objects(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


# Compile the filters of a rule


def _pattern_forms(text: str) -> set[str]:
    """Return a pattern of paths as it is written, and with the links in its fixed first folders resolved."""
    if text.startswith((REGEX, EXACT)):
        return {text}
    text = unicodedata.normalize("NFC", os.path.expanduser(text))
    folder, slash, rest = WILDCARD.split(text)[0].rpartition("/")
    resolved = os.path.realpath(folder or "/") if slash == "/" and text.startswith("/") else ""
    if not resolved or WILDCARD.search(resolved):
        return {text}
    return {text, f"{resolved.rstrip('/')}/{rest}{text[len(folder) + 1 + len(rest) :]}"}


def _texts(value: Any) -> list[str]:
    """Return the patterns of a filter."""
    texts = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("must be a string or a list of strings, none of them empty")
    return texts


class _Patterns:
    """The patterns of a filter, of which one must match."""

    def __init__(self, value: Any, action: str) -> None:
        self._patterns = [CommandPattern(text) for text in _texts(value)]
        self._is_allow = action == "allow"
        self.unknown = False if self._is_allow else None
        """The result for a field that is not known."""

    def match_text(self, text: str) -> bool | None:
        """Return whether a text that is no command matches."""
        return any_matches(pattern.text.matches(text) for pattern in self._patterns)

    def match_command(self, text: str, *commands: ShellCommand) -> bool | None:
        """Return whether a text with commands matches: to allow, as a command, and to deny or ask, also as a text."""
        if self._is_allow:
            return any_matches(pattern.allows(command) for pattern in self._patterns for command in commands)
        finds = [pattern.finds(command) for pattern in self._patterns for command in commands]
        return any_matches([self.match_text(text), *finds])


def _tool_test(value: Any, action: str) -> FilterTest:
    patterns = _Patterns(value, action)
    return lambda query: any_matches(map(patterns.match_text, query.tools)) if query.tools else patterns.unknown


def _kind_test(value: Any, action: str) -> FilterTest:
    patterns = _Patterns(value, action)
    return lambda query: patterns.match_text(query.kind) if query.kind else patterns.unknown


def _title_test(value: Any, action: str) -> FilterTest:
    patterns = _Patterns(value, action)

    def test(query: PermissionQuery) -> bool | None:
        if query.title_command is None:
            return patterns.match_text(query.title) if query.title else patterns.unknown
        is_match = patterns.match_command(query.title, query.title_command)
        has_same_text = {each.text for each in query.list_commands()} == {query.title_command.text}
        if action != "allow" or not is_match or has_same_text:
            return is_match
        # The agent chooses the title, so it allows no other command than the one that it shows.
        return all(patterns.match_command(each.text, each) for each in query.commands.values()) or None

    return test


def _path_test(value: Any, action: str) -> FilterTest:
    """To allow, all paths must be known and match. To deny or ask, one match in any case of letters is enough."""
    is_allow = action == "allow"
    forms = [form for text in _texts(value) for form in _pattern_forms(text)]
    patterns = [TextPattern(form, is_path=True, ignore_case=not is_allow) for form in forms]

    def test(query: PermissionQuery) -> bool | None:
        matches = [any_matches(pattern.matches(path) for pattern in patterns) for path in query.paths]
        if is_allow:
            return not query.has_unknown_path and bool(matches) and all(matches)
        return any_matches(matches) or (None if query.has_unknown_path else any_matches(matches))

    return test


def _input_test(value: Any, action: str) -> FilterTest:
    """Match the complete input as text, or with `input.NAME` one of its members."""
    if isinstance(value, dict):
        return _member_test((), value, action)
    patterns = _Patterns(value, action)

    def test(query: PermissionQuery) -> bool | None:
        if query.input is None:
            return patterns.unknown
        if action == "allow" and () not in query.commands:
            return patterns.match_text(_as_text(query.input))
        return patterns.match_command(_as_text(query.input), *query.commands.values())

    return test


def _member_test(path: tuple[str, ...], value: Any, action: str) -> FilterTest:
    """Match a member of the input: not if an object lacks it, unknown if it is null or its parent is not an object."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        tests = [_member_test((*path, name), inner, action) for name, inner in members]
        return lambda query: _all_match(test(query) for test in tests)
    patterns = _Patterns(value, action)

    def test(query: PermissionQuery) -> bool | None:
        member = query.input
        for name in path:
            if isinstance(member, dict) and name not in member:
                return False
            member = cast("dict[str, Any]", member)[name] if isinstance(member, dict) else None
        if member is None:
            return patterns.unknown
        if path in query.commands:
            return patterns.match_command(_as_text(member), query.commands[path])
        return patterns.match_text(_as_text(member))

    return test


def _as_text(value: Any) -> str:
    """Return a string unchanged, a list of strings joined with spaces, and anything else as JSON."""
    if isinstance(value, str):
        return value
    words = [word for word in _list(value) if isinstance(word, str)]
    return " ".join(words) if words and words == value else codec.encode(value).decode()


FILTERS: dict[str, Callable[[Any, str], FilterTest]] = {
    "tool": _tool_test,
    "kind": _kind_test,
    "title": _title_test,
    "input": _input_test,
    "path": _path_test,
}
RULE_FIELDS = ("action", "reason", "always", *FILTERS)


# Check and compile rules


def parse_rule(number: int, fields: dict[str, Any], location: str, line: int = 0) -> Rule:
    """Return the rule with these fields, as in the file, or raise InvalidInputError, which names the location."""
    unknown = sorted(set(fields) - set(RULE_FIELDS))
    if unknown:
        raise InvalidInputError(location, f"unknown key {unknown[0]!r}; the keys are {', '.join(RULE_FIELDS)}")
    action, reason, always = fields.get("action"), fields.get("reason", ""), fields.get("always", False)
    if action not in ACTIONS:
        got = f", got {action!r}" if action else ""
        raise InvalidInputError(location, f"action must be one of {', '.join(ACTIONS)}{got}")
    if not isinstance(reason, str) or not isinstance(always, bool):
        raise InvalidInputError(location, "reason must be a string and always must be true or false")
    tests: list[FilterTest] = []
    for name in FILTERS:
        if name in fields:
            try:
                tests.append(FILTERS[name](fields[name], action))
            except re.error as error:
                raise InvalidInputError(location, f"{name} is not a regular expression: {error}") from error
            except ValueError as error:
                raise InvalidInputError(location, f"{name} {error}") from error
    if action == "allow" and [name for name in FILTERS if name in fields] == ["path"]:
        tests.append(lambda query: query.kind != "execute" and not query.commands)  # Its files are not known.
    reason = reason or f"rule {number} of the policy"
    filters = {name: fields[name] for name in FILTERS if name in fields}
    return Rule(number, action, filters, reason, always, tuple(tests), _exact_texts(fields), line)


def _exact_texts(fields: dict[str, Any]) -> frozenset[str] | None:
    """Return the patterns without wildcards in the filters of texts; None if a rule has only other filters."""
    values = [fields[name] for name in ("title", "input") if name in fields]
    patterns: list[str] = []
    for value in values:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value).items()
            values.extend(inner for name, inner in members if plain_name(name) not in PLACE_NAMES)
        else:
            patterns += _texts(value)
    exact_texts = (TextPattern(pattern).exact for pattern in patterns)
    return frozenset(text for text in exact_texts if text is not None) if patterns else None
