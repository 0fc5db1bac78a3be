"""Decide a request for approval by saved rules. They match as the rules of a policy file do (`callslip.rules.policy`).

Their order does not matter: a rule that denies beats one that asks, which beats one that allows. A request is allowed
only if it is known that no other rule denies it or asks, and if no rule that allows has matched its command only as a
text, because it is not one simple command.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from callslip.model import codec
from callslip.model.records import RuleRecord
from callslip.rules.command_pattern import find_obstacle
from callslip.rules.policy import PermissionQuery, Rule, parse_rule, permission_query
from callslip.rules.protected_calls import ProtectedPlaces, find_protected
from callslip.rules.shell_command import is_shell, split_chain

MAX_CHAIN_PARTS = 10
REDACTED = b"[redacted:"
_ORDER = {"deny": 0, "ask": 1, "allow": 2}


class Step(msgspec.Struct, frozen=True):
    """A rule that was compared with a call. `matches` is None if that is not known, or if a person must decide.

    `rule` is the id of a saved rule, or `policy:` and the number of a rule in the policy file.
    """

    rule: str
    action: str
    matches: bool | None


class Decision(msgspec.Struct, frozen=True):
    """What rules decide about a request. Without an action no rule is about it, and a person decides, as for `ask`.

    `rules` are the ids of the saved rules that decide. It is one, except for a chain of commands; none if the policy
    file decides, with its rule `policy_rule`. `steps` are the rules that were looked at.
    """

    action: Literal["allow", "deny", "ask", ""] = ""
    rules: tuple[str, ...] = ()
    reason: str = ""
    is_policy: bool = False
    policy_rule: str = ""
    always: bool = False
    """Whether the option is allowed that the agent remembers."""
    steps: tuple[Step, ...] = ()

    @property
    def rule(self) -> str:
        """The rule that decides, "" if none does."""
        return self.rules[0] if self.rules else ""

    @property
    def by(self) -> str:
        """Who answers, as answers name it."""
        if self.is_policy:
            return "policy"
        return f"rule {self.rule}" if len(self.rules) == 1 else f"rules {', '.join(self.rules)}"


def check_rule(record: RuleRecord) -> Rule:
    """Return a saved rule to match with, or raise InvalidInputError."""
    return parse_rule(0, {**record.filters, "action": record.action, "reason": record.reason}, "rule")


@functools.lru_cache(maxsize=2048)
def _compile(action: str, filters: bytes) -> Rule:
    return parse_rule(0, {**codec.parse_json(filters), "action": action}, "rule")


def compiled_rule(record: RuleRecord) -> Rule:
    """Return a saved rule to match with. It is compiled once."""
    return _compile(record.action, codec.encode(record.filters))


def decide_call(
    records: Sequence[RuleRecord],
    call: dict[str, Any],
    *,
    places: ProtectedPlaces,
    project: str = "",
    is_complete: bool = True,
    allows_chains: bool = False,
) -> Decision:
    """Return what rules decide about the fields of a call. `is_complete`: nothing of the call is missing."""
    return _Deciding(records, call, places, project, is_complete, allows_chains).decide()


class _Deciding:
    """One decision. Rules with an end of their own are used last."""

    def __init__(
        self,
        records: Sequence[RuleRecord],
        call: dict[str, Any],
        places: ProtectedPlaces,
        project: str,
        is_complete: bool,
        allows_chains: bool,
    ) -> None:
        self._records = sorted(records, key=lambda row: (_ORDER[row.action], row.uses_left > 0, row.created_at, row.id))
        self._call, self._places, self._project = call, places, project
        self._is_complete, self._allows_chains = is_complete, allows_chains
        self._steps: list[Step] = []

    def _end(self, action: Any, reason: str, *rules: str) -> Decision:
        return Decision(action, rules, reason, steps=tuple(self._steps))

    def decide(self) -> Decision:
        query = permission_query(self._call)
        unknown = ""
        for record in self._records:
            if record.action == "allow":
                break
            is_match = self._compare(record, query)
            if is_match:
                return self._end(record.action, record.reason or f"rule {record.id}", record.id)
            if is_match is None:
                unknown = unknown or record.id
        if problem := find_protected(self._call, query, self._places, self._project):
            return self._end("ask", f"the call {problem}, which always needs a person")
        if unknown:
            return self._end("ask", f"it is not known whether {unknown} matches")
        allowing = [record for record in self._records if record.action == "allow"]
        if allowing and not self._is_complete:
            return self._end("ask", "a part of the call is not stored, for example a secret")
        return self._decide_allowed(allowing, query)

    def _compare(self, record: RuleRecord, query: PermissionQuery) -> bool | None:
        if record.action == "allow":  # A tool of an MCP server is allowed only by its full name.
            query = msgspec.structs.replace(query, tools=query.tools[:1])
        is_match = compiled_rule(record).match(query)
        self._steps.append(Step(record.id, record.action, is_match))
        return is_match

    def _decide_allowed(self, allowing: list[RuleRecord], query: PermissionQuery) -> Decision:
        matching: list[RuleRecord] = []
        is_unclear = False
        for record in allowing:
            is_match = self._compare(record, query)
            if is_match and compiled_rule(record).names_commands(query):
                return self._allow([record])
            matching += [record] if is_match else []
            is_unclear = is_unclear or is_match is None
        if matching and not is_unclear:
            return self._allow(matching[:1])
        if self._allows_chains and (chain := self._decide_chain(allowing, query)):
            return self._allow(chain)
        if matching or is_unclear:
            obstacles = [problem for command in query.list_commands() if (problem := find_obstacle(command))]
            problem = f"the command {obstacles[0]}" if obstacles else "it is not known what the call runs"
            return self._end("ask", f"not one simple command: {problem}")
        return self._end("", "no rule matches")

    def _allow(self, records: list[RuleRecord]) -> Decision:
        rules = tuple(dict.fromkeys(record.id for record in records))
        reason = records[0].reason if len(rules) == 1 else ""
        return self._end("allow", reason or f"allowed by {', '.join(rules)}", *rules)

    # A chain of commands, each of which is allowed by itself

    def _decide_chain(self, allowing: list[RuleRecord], query: PermissionQuery) -> list[RuleRecord]:
        """Return the rules that allow the parts of a chain; none if a part is not allowed by itself."""
        used: list[RuleRecord] = []
        parts = list(_split_call(self._call, query))
        if not 1 < len(parts) <= MAX_CHAIN_PARTS:
            return []
        for part, is_piped in parts:
            query = permission_query(part)
            if is_piped and any(map(find_obstacle, query.list_commands())):
                return []  # Its exact text is allowed, but not what an interpreter reads from the command before.
            query = msgspec.structs.replace(query, tools=query.tools[:1])
            matches = [(record, compiled_rule(record).match(query)) for record in allowing]
            exact = [r for r, is_match in matches if is_match and compiled_rule(r).names_commands(query)]
            found = exact or [record for record, is_match in matches if is_match]
            if not found or (not exact and any(is_match is None for _, is_match in matches)):
                return []
            used.append(found[0])
        return used


def _split_call(call: dict[str, Any], query: PermissionQuery) -> list[tuple[dict[str, Any], bool]]:
    """Return a call for each command of a chain, and whether it is piped; none if its command is not one text."""
    title = call.get("title")
    if not query.commands:
        parts = split_chain(title) if isinstance(title, str) and query.title_command is not None else []
        return [({**call, "title": part.text}, part.is_piped) for part in parts]
    if len(query.commands) > 1:
        return []
    ((path, command),) = query.commands.items()
    value = _member_at(call.get("input"), path)
    shell: list[str] = []
    if isinstance(value, list):
        match cast("list[Any]", value):
            case [str() as program, "-c" | "-lc" as option, str() as script] if is_shell(program):
                shell, value = [program, option], script
            case _:
                return []
    if not isinstance(value, str) or command.text != value.strip(" \t\n"):
        return []
    calls: list[tuple[dict[str, Any], bool]] = []
    for part, is_piped in split_chain(value):
        new_title = part if isinstance(title, str) and title.strip(" \t\n") == command.text else title
        new_value = [*shell, part] if shell else part
        new_input = _with_member(call.get("input"), path, new_value)
        calls.append(({**call, "title": new_title, "input": new_input}, is_piped))
    return calls


def _member_at(input: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        input = cast("dict[str, Any]", input).get(name) if isinstance(input, dict) else None
    return input


def _with_member(input: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    members = cast("dict[str, Any]", input)
    return {**members, path[0]: _with_member(members[path[0]], path[1:], value)}


def is_complete_text(*values: Any) -> bool:
    """Return whether no secret of these values was replaced, so that they are what will run."""
    return REDACTED not in codec.encode(values)
