"""Saved rules: propose, preview, save, list, revoke and test them, and answer requests for approval by them.

A rule is for one session, for the sessions of a project folder, or for all. A token for one session sees and writes
only rules of that session. Times are those of the database.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import structs

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.approvals import load_request
from callslip.api.find import find_approval, list_calls
from callslip.api.policy_file import current_policy
from callslip.api.protected_places import protected_places
from callslip.errors import (
    AmbiguousIdError,
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    InvalidTransitionError,
    NotFoundError,
)
from callslip.ledger.aio import run_off_loop
from callslip.ledger.call_entry import load_call_entry
from callslip.ledger.event_log import EventLog
from callslip.ledger.summaries import complete_summary
from callslip.ledger.write import WriteContext, write_events
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Draft, Event
from callslip.model.names import SOURCE_PYTHON, check_id
from callslip.model.records import ApprovalRecord, CallRecord, RuleRecord
from callslip.model.views import CamelStruct
from callslip.rules.approval_options import choose_option
from callslip.rules.command_pattern import find_obstacle
from callslip.rules.launchers import has_subcommands
from callslip.rules.policy import FILTERS, PermissionQuery, Policy, Rule, permission_query
from callslip.rules.protected_calls import ProtectedPlaces, find_protected
from callslip.rules.saved_rules import (
    Decision,
    Step,
    check_rule,
    compiled_rule,
    decide_call,
    is_complete_text,
)
from callslip.rules.shell_command import ShellCommand
from callslip.rules.text_pattern import EXACT, REGEX, WILDCARD
from callslip.store.unit_of_work import UnitOfWork

Scope = Literal["session", "project", "everywhere"]
Lifetime = Literal["once", "hour", "until-revoked"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
LIFETIMES: tuple[Lifetime, ...] = get_args(Lifetime)
HOUR_MS = 3_600_000
MAX_RULES = 1000
"""How many rules a ledger may have that have not ended."""
MAX_FILTERS_BYTES = 16 * 2**10
MAX_REASON_CHARS = 2000
PREVIEW_CALLS = 200
"""How many of the newest calls a preview looks at."""
PREVIEW_MATCHES = 20
"""How many of the calls that match a preview shows."""


class NewRule(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A rule to save.

    `filters` are those of a rule in a policy file: `tool`, `kind`, `title`, `path` and `input`. `scopeValue` is the
    name of the session or the project folder. A rule that lives `once` ends with the first request that it answers.
    """

    action: Literal["allow", "ask", "deny"]
    filters: dict[str, Any] = {}
    reason: str = ""
    scope: Scope = "session"
    scope_value: str = ""
    lifetime: Lifetime = "until-revoked"


class Proposal(msgspec.Struct, kw_only=True, rename="camel"):
    """A rule that would have allowed a request, to be changed and saved.

    `session` and `project` are the values of the other scopes; without a project that scope is not possible. `problem`
    says why such a request always needs a person: no rule would answer it.
    """

    rule: NewRule
    session: str
    project: str = ""
    problem: str = ""


class Preview(msgspec.Struct, kw_only=True):
    """What a rule would have matched among the newest calls: how many of how many, and the newest of them."""

    calls: list[CallRecord]
    matched: int
    looked_at: int


# Save, list and revoke


async def save_rule(log: EventLog, rule: NewRule, *, by: str = "", access: Access = FULL_ACCESS) -> RuleRecord:
    """Save a rule. `by` is overridden by the name that `access` knows."""
    name = await _require_scope(access, rule.scope, rule.scope_value)
    record = await _new_record(log, rule, name or by)
    now = record.created_at
    if sum(1 for row in await log.store.rules() if row.is_active(now)) >= MAX_RULES:
        raise InvalidInputError("rule", f"there are {MAX_RULES} rules already; revoke some", MAX_RULES)
    await log.store.put_rule(record)
    if await log.store.rule(record.id) is None:
        raise NotFoundError(f"no session {record.scope_value!r}")
    return record


async def list_rules(log: EventLog, *, session: str = "", access: Access = FULL_ACCESS) -> list[RuleRecord]:
    """Return the rules that the caller may see, oldest first, also those that ended; with `session` only its own."""
    if session:
        await access.require(session, "approve")
    rows = [row for row in await log.store.rules() if not session or _is_of(row, session)]
    return [row for row in rows if await _may_see(access, row)]


async def find_rule(log: EventLog, id_or_prefix: str, *, access: Access = FULL_ACCESS) -> RuleRecord:
    """Return a rule that the caller may see by its id, or a prefix of it."""
    rows = await list_rules(log, access=access)
    matches = [row for row in rows if row.id == id_or_prefix]
    matches = matches or [row for row in rows if id_or_prefix and row.id.startswith(id_or_prefix)]
    if len(matches) > 1:
        names = [row.id for row in matches]
        raise AmbiguousIdError(f"{id_or_prefix!r} is ambiguous: matches {', '.join(names)}", names)
    if not matches:
        await access.require_identity()
        raise NotFoundError(f"no rule {id_or_prefix!r}")
    return matches[0]


async def revoke_rule(log: EventLog, id_or_prefix: str, *, access: Access = FULL_ACCESS) -> RuleRecord:
    """Delete a rule, and return it. It answers no request any more."""
    record = await find_rule(log, id_or_prefix, access=access)
    await _require_scope(access, record.scope, record.scope_value)
    if not await log.store.drop_rule(record.id):
        raise NotFoundError(f"no rule {record.id!r}")
    return record


async def _new_record(log: EventLog, rule: NewRule, by: str) -> RuleRecord:
    """Return a valid rule as it is stored, or raise InvalidInputError."""
    filters = codec.validate_json(rule.filters, "filters", max_bytes=MAX_FILTERS_BYTES)
    unknown = sorted(set(filters) - set(FILTERS))
    if unknown:
        raise InvalidInputError("filters", f"unknown filter {unknown[0]!r}; the filters are {', '.join(FILTERS)}")
    if rule.action == "allow" and not filters:
        raise InvalidInputError("filters", "a rule that allows needs a filter")
    if rule.action == "ask" and rule.lifetime == "once":
        raise InvalidInputError("lifetime", "a rule that asks answers no request, so it cannot end with the first one")
    if len(rule.reason) > MAX_REASON_CHARS:
        raise InvalidInputError("reason", f"must be at most {MAX_REASON_CHARS} characters", MAX_REASON_CHARS)
    reason = codec.validate_json(rule.reason, "reason")
    now = await log.store.clock()
    record = RuleRecord(
        id=ids.rule_id(),
        action=rule.action,
        filters=filters,
        reason=reason,
        scope=rule.scope,
        scope_value=_check_scope_value(rule.scope, rule.scope_value),
        expires_at=now + HOUR_MS if rule.lifetime == "hour" else 0,
        uses_left=1 if rule.lifetime == "once" else -1,
        created_at=now,
        created_by=by,
    )
    await run_off_loop(True, check_rule, record)
    return record


def _check_scope_value(scope: Scope, value: str) -> str:
    if scope == "session":
        return check_id(value, "scopeValue")
    if scope == "everywhere":
        if value:
            raise InvalidInputError("scopeValue", "must be empty for a rule that is valid everywhere")
        return ""
    if not os.path.isabs(value) or "\0" in value:
        raise InvalidInputError("scopeValue", "must be the absolute path of a project folder")
    return project_key(check_id(value, "scopeValue", MAX_FILTERS_BYTES))


def project_key(folder: str) -> str:
    """Return the folder of a project without differences of writing; "" for one that is not absolute."""
    return os.path.normpath(folder) if os.path.isabs(folder) else ""


async def _require_scope(access: Access, scope: str, value: str) -> str:
    """Return the caller's name, or raise if it may not write rules of a scope."""
    if scope == "session" and value:
        return await access.require(value, "approve")
    return await access.require_everywhere("approve")


def _is_of(row: RuleRecord, session: str) -> bool:
    return row.scope == "session" and row.scope_value == session


async def _may_see(access: Access, row: RuleRecord) -> bool:
    """Return whether a caller may see a rule: one of its session, or any if it may approve everywhere."""
    if row.scope == "session":
        return await access.may(row.scope_value, "approve")
    return await access.allows_everywhere("approve")


# The call of a request


class StoredCall(msgspec.Struct, frozen=True):
    """What is stored of a call. `is_complete`: nothing that decides is missing, such as a secret or a part."""

    fields: dict[str, Any]
    is_complete: bool


async def load_call(log: EventLog, record: CallRecord) -> StoredCall:
    """Return the fields of a call that rules match."""
    entry = await load_call_entry(log, record)
    return _stored_call(entry) if entry is not None else StoredCall({}, False)


def _stored_call(entry: ToolCall) -> StoredCall:
    fields = {
        "tool_name": entry.raw_tool_name or entry.tool_name,
        "kind": entry.kind,
        "title": entry.title,
        "input": entry.raw_input,
        "locations": entry.locations,
        "content": entry.content,
    }
    is_streamed = entry.raw_input is None and bool(entry.input_text)
    is_cut = is_streamed or entry.content_blob is not None
    return StoredCall(fields, not is_cut and is_complete_text(entry.raw_input, entry.title, entry.locations))


async def session_project(log: EventLog, session: str) -> str:
    """Return the folder that the agent of a session works in, "" if it is not known."""
    if not log.store.read_only:
        await complete_summary(log.store, session)
    record = await log.store.session(session)
    return (await log.summaries.with_summary(record)).project if record is not None else ""


# Decide


async def decide_request(
    log: EventLog,
    call: dict[str, Any],
    *,
    session: str = "",
    project: str = "",
    is_complete: bool = True,
) -> Decision:
    """Return what the policy file and the saved rules decide about the fields of a call. The policy file beats them."""
    try:
        policy = await _read_policy(log)
    except InvalidInputError:  # `view_policy` says why.
        return Decision("ask", reason="the policy file cannot be used", is_policy=True)
    places, steps = _protected_places(log), ()
    if policy is not None:
        decision = await run_off_loop(True, _decide_by_policy, policy, call, places, project, is_complete)
        if decision.action:
            return decision
        steps = decision.steps
    now = await log.store.clock()
    records = await log.store.rules_for(session, project_key(project), now)
    if not records:
        return Decision(reason="no rule matches", steps=steps)
    decision = await run_off_loop(
        True,
        lambda: decide_call(
            records,
            call,
            places=places,
            project=project,
            is_complete=is_complete,
            allows_chains=log.settings.rules_allow_chains,
        ),
    )
    return structs.replace(decision, steps=(*steps, *decision.steps))


async def _read_policy(log: EventLog) -> Policy | None:
    """Return the policy of a ledger, or raise InvalidInputError if its file cannot be used."""
    path = log.settings.policy_file
    return await run_off_loop(True, current_policy, path) if path else None


def _protected_places(log: EventLog) -> ProtectedPlaces:
    return protected_places(log.store.url, log.settings.policy_file)


def _decide_by_policy(
    policy: Policy, call: dict[str, Any], places: ProtectedPlaces, project: str, is_complete: bool
) -> Decision:
    """Return what a policy decides about the fields of a call; without an action, saved rules do."""
    query = permission_query(call)
    found = policy.find_rule(query)
    steps = tuple(Step(_policy_rule_id(rule), rule.action, is_match) for rule, is_match in found.steps)

    def decide(action: Literal["allow", "deny", "ask"], reason: str, rule: Rule | None = None) -> Decision:
        id, always = (_policy_rule_id(rule), rule.always) if rule is not None else ("", False)
        return Decision(action, (), reason, is_policy=True, policy_rule=id, always=always, steps=steps)

    rule = found.rule
    if rule is not None and rule.action != "allow":
        return decide(rule.action, rule.reason, rule)
    if rule is not None and (problem := find_protected(call, query, places, project)):
        return decide("ask", f"the call {problem}, which always needs a person")
    if rule is not None and is_complete:
        return decide("allow", rule.reason, rule)
    if rule is not None:
        return decide("ask", "a part of the call is not stored, for example a secret")
    return decide("ask", "a rule of the policy file may be about it") if found.is_about else Decision(steps=steps)


def _policy_rule_id(rule: Rule) -> str:
    return f"policy:{rule.number}"


async def answer_by_rules(log: EventLog, approval: str) -> Decision:
    """Answer a pending request if a rule of the policy file or a saved rule decides it, and return the decision.

    Call this after a request was recorded, where an answer reaches the agent. Without an answer (the action of the
    decision is "ask" or "") the request waits for a person, also if a saved rule cannot be read. A rule that is used up
    or revoked meanwhile answers nothing.
    """
    try:
        return await _answer_by_rules(log, approval)
    except (CorruptDataError, InvalidInputError) as error:
        return Decision("ask", reason=str(error))


async def _answer_by_rules(log: EventLog, approval: str) -> Decision:
    if not log.settings.policy_file and not await log.store.rules():
        return Decision()
    record = await log.store.approval(approval)
    call = await log.store.call(record.call) if record is not None else None
    if record is None or call is None or record.state != "pending" or record.answer_at:
        return Decision(reason="the request is not pending here")
    if call.input_mark != record.input_mark:  # What runs is what was asked for, or it is not known.
        return Decision("ask", reason="the call has changed since it was requested")
    stored = await load_call(log, call)
    project = await session_project(log, record.session)
    decision = await decide_request(
        log, stored.fields, session=record.session, project=project, is_complete=stored.is_complete
    )
    if decision.action not in ("allow", "deny"):
        return decision
    request = await load_request(log, record)
    answer = _make_answer(record, decision) if request is not None else None
    if answer is None:
        return structs.replace(decision, action="ask", reason="the agent offers no option for this answer")
    try:
        is_answered = await _write_answer(log, record, call, answer, decision)
    except (ConflictError, InvalidTransitionError, NotFoundError):  # It was answered or withdrawn meanwhile.
        return Decision(reason="the request is not pending any more")
    return decision if is_answered else Decision(reason="the rule cannot be used any more")


def _make_answer(record: ApprovalRecord, decision: Decision) -> ev.ApprovalAnswer | None:
    """Return the answer with the option for this call only; None if the agent offers none."""
    is_allowed = decision.action == "allow"
    durations = ("always", "once") if decision.always else ("once",)
    option = choose_option(record.options, is_allowed, durations)
    if record.options and not option:
        return None
    kind = ev.ApprovalGranted if is_allowed else ev.ApprovalRefused
    return kind(approval=record.id, option=option, by=decision.by, reason=decision.reason)


async def _write_answer(
    log: EventLog, record: ApprovalRecord, call: CallRecord, answer: ev.ApprovalAnswer, decision: Decision
) -> bool:
    """Write an answer and count the use of its rules in one transaction. Return False if a rule cannot be used."""

    def work(unit: UnitOfWork, valid: list[Draft], context: WriteContext) -> bool:
        rules = [unit.rule(rule) for rule in decision.rules]
        current = unit.call(call.id)
        if any(rule is None or not rule.is_active(unit.now) for rule in rules):
            return False
        if current is None or current.input_mark != call.input_mark:  # It is another call than the one decided about.
            return False
        events: list[Event] = write_events(unit, record.session, valid, context)
        for rule in decision.rules:
            unit.use_rule(rule)
        return bool(events)

    return await log.transact_drafts(record.session, [answer], work, source=SOURCE_PYTHON)


async def test_rules(
    log: EventLog, call: dict[str, Any], *, session: str = "", project: str = "", access: Access = FULL_ACCESS
) -> Decision:
    """Return what rules decide about the fields of a call, with the rules that were looked at. Nothing is run."""
    await _require_scope(access, "session" if session else "everywhere", session)
    if session and project:
        raise InvalidInputError("project", "is that of the session; pass one of them")
    if session:
        project = await session_project(log, session)
    return await decide_request(log, call, session=session, project=project)


# Propose and preview


async def propose_rule(log: EventLog, approval: str, *, access: Access = FULL_ACCESS) -> Proposal:
    """Return a rule that would have allowed a request, as narrow as it can be said."""
    record = await find_approval(log, approval, access=access, verb="approve")
    await access.require(record.session, "approve")
    if not await access.may(record.session, "read"):
        rule = NewRule(action="allow", scope_value=record.session)
        return Proposal(rule=rule, session=record.session, problem="You may not read the call.")
    call = await log.store.call(record.call)
    stored = await load_call(log, call) if call is not None else StoredCall({}, False)
    project = project_key(await session_project(log, record.session))
    query = permission_query(stored.fields)
    problem = find_protected(stored.fields, query, _protected_places(log), project)
    rule = NewRule(action="allow", filters=propose_filters(stored.fields, query, project), scope_value=record.session)
    if not rule.filters or not stored.is_complete:
        problem = problem or "is not stored completely"
    return Proposal(
        rule=rule,
        session=record.session,
        project=project,
        problem=f"The call {problem}, so it always needs a person." if problem else "",
    )


def propose_filters(call: dict[str, Any], query: PermissionQuery, project: str) -> dict[str, Any]:
    """Return filters that match a call: its command, its tool and files, or its tool."""
    tool = query.tools[0] if query.tools else ""
    filters: dict[str, Any] = {"tool": _exactly(tool)} if tool else {"kind": query.kind} if query.kind else {}
    if len(query.commands) == 1:
        ((path, command),) = query.commands.items()
        return {**filters, "input": _nest(path, _command_pattern(command))} if command.text else {}
    if query.commands:
        return {}
    if query.title_command is not None:
        return {**filters, "title": _command_pattern(query.title_command)}
    if query.is_execute:
        return {}
    if query.paths and not query.has_unknown_path:
        folder = project.rstrip("/") + "/"
        is_inside = all(path.startswith(folder) for path in query.paths)
        is_inside = is_inside and folder != "/" and not WILDCARD.search(folder)
        written = sorted({_exactly(path) for path in query.paths})
        return {**filters, "path": f"{folder}**" if is_inside and filters else written}
    return filters


def _nest(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _exactly(text: str) -> str:
    """Return the pattern that matches only this text."""
    has_meaning = text.startswith((EXACT, REGEX)) or WILDCARD.search(text) is not None
    return EXACT + text if has_meaning else text


def _command_pattern(command: ShellCommand) -> str | list[str]:
    """Return a program and its subcommand with any arguments, if a rule would allow that; else the exact text."""
    words = [word.text for word in command.words]
    has_subcommand = len(words) > 1 and has_subcommands(words[0]) and re.fullmatch(r"[a-z][a-z-]*", words[1])
    if not has_subcommand or find_obstacle(command):
        return _exactly(command.text)
    beginning = f"{words[0]} {words[1]}"
    return [beginning, f"{beginning} *"]


async def preview_rule(log: EventLog, rule: NewRule, *, access: Access = FULL_ACCESS) -> Preview:
    """Return which of the newest calls that the caller may read a rule would have matched. It is not saved."""
    await _require_scope(access, rule.scope, rule.scope_value)
    record = await _new_record(log, rule, "")
    session = record.scope_value if record.scope == "session" else ""
    page = await list_calls(log, session=session, limit=PREVIEW_CALLS, access=access)
    found: list[CallRecord] = []
    looked_at = 0
    projects: dict[str, str] = {}
    for call in page.items:
        if record.scope == "project":
            if call.session not in projects:
                projects[call.session] = project_key(await session_project(log, call.session))
            if projects[call.session] != record.scope_value:
                continue
        looked_at += 1
        stored = await load_call(log, call)
        if await run_off_loop(True, _matches, record, stored):
            found.append(call)
    return Preview(calls=found[:PREVIEW_MATCHES], matched=len(found), looked_at=looked_at)


def _matches(record: RuleRecord, stored: StoredCall) -> bool:
    query = permission_query(stored.fields)
    if record.action == "allow":
        query = structs.replace(query, tools=query.tools[:1])
    return compiled_rule(record).match(query) is True and (stored.is_complete or record.action != "allow")


# Views


class RuleView(CamelStruct):
    """A saved rule. Times are ms since the epoch, 0 for never; `usesLeft` is -1 if it has no limit."""

    rule: str
    action: Literal["allow", "ask", "deny"]
    filters: dict[str, Any]
    reason: str
    scope: Scope
    scope_value: str
    lifetime: Lifetime
    state: Literal["active", "used", "expired"]
    expires_at: int
    uses_left: int
    uses: int
    used_at: int
    created_at: int
    created_by: str


class PolicyRuleView(CamelStruct):
    """A rule of the policy file. `line` is where it begins, 0 if that is not known."""

    rule: str
    line: int
    action: Literal["allow", "ask", "deny"]
    filters: dict[str, Any]
    reason: str
    always: bool


class PolicyView(CamelStruct):
    """The policy file, whose first rule that matches decides before saved rules do.

    With a `problem` the file cannot be used, and a person answers every request.
    """

    file: str
    rules: list[PolicyRuleView]
    problem: str = ""


class StepView(CamelStruct):
    """A rule that was compared with a call. `matches` is null if that is not known, or if a person must decide."""

    rule: str
    action: Literal["allow", "ask", "deny"]
    matches: bool | None


class DecisionView(CamelStruct):
    """What rules decide about a call: `ask` is a person. `rules` are those that decide, several for a chain.

    `steps` are the rules that were looked at, in this order; those of the policy file are named `policy:` and a number.
    """

    action: Literal["allow", "ask", "deny"]
    rules: list[str]
    reason: str
    steps: list[StepView]


def rule_state(record: RuleRecord, now: int) -> Literal["active", "used", "expired"]:
    """Return whether a rule is active, used or expired."""
    return "used" if record.uses_left == 0 else "active" if record.is_active(now) else "expired"


def lifetime_of(record: RuleRecord) -> Lifetime:
    """Return how long a rule lives."""
    if record.uses_left >= 0:
        return "once"
    return "hour" if record.expires_at else "until-revoked"


def rule_view(record: RuleRecord, now: int) -> RuleView:
    """Return the public part of a rule at a time of the database."""
    fields = structs.asdict(record)
    return RuleView(rule=fields.pop("id"), lifetime=lifetime_of(record), state=rule_state(record, now), **fields)


def decision_view(decision: Decision) -> DecisionView:
    """Return the public part of a decision."""
    steps = [StepView(rule=step.rule, action=cast(Any, step.action), matches=step.matches) for step in decision.steps]
    rules = [decision.policy_rule] if decision.policy_rule else list(decision.rules)
    return DecisionView(action=decision.action or "ask", rules=rules, reason=decision.reason, steps=steps)


async def view_policy(log: EventLog, *, access: Access = FULL_ACCESS) -> PolicyView | None:
    """Return the policy file as it is now; None if there is none, or the caller may not approve everywhere."""
    path = log.settings.policy_file
    if not path or not await access.allows_everywhere("approve"):
        return None
    try:
        policy = await _read_policy(log)
    except InvalidInputError as error:
        return PolicyView(file=os.path.abspath(path), rules=[], problem=str(error))
    assert policy is not None
    views = [
        PolicyRuleView(
            rule=_policy_rule_id(rule),
            line=rule.line,
            action=rule.action,
            filters=rule.filters,
            reason=rule.reason,
            always=rule.always,
        )
        for rule in policy.rules
    ]
    return PolicyView(file=policy.path, rules=views)


async def clock(log: EventLog) -> int:
    """Return the time of the database in ms, by which rules end."""
    return await log.store.clock()
