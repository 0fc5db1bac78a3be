"""Saved rules: saving, answering requests, scopes, lifetimes, proposals, previews, and answers to several requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest

import callslip
from callslip.api import rules
from callslip.api.access import FULL_ACCESS
from callslip.api.approvals import BulkAnswer, answer_several
from callslip.api.ledger import LocalLedger
from callslip.api.posts import Body, Posts
from callslip.api.rules import Lifetime, NewRule, Scope
from callslip.errors import (
    AmbiguousIdError,
    CallDeniedError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from callslip.ledger.verify import verify
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import PermissionRequest
from callslip.model.records import ApprovalRecord, ConversationName, RuleRecord
from callslip.rules.lifecycle import APPROVAL_OPTIONS
from callslip.rules.saved_rules import Decision
from callslip.settings import Settings
from tests.support import engines
from tests.support.command_corpus import COMMAND_RULES, ORDINARY, WAYS_AROUND
from tests.support.invariants import sound_ledger

pytestmark = pytest.mark.anyio
GIT = {"input": {"command": ["git status", "git log *"]}}


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, reaper_interval=0.02) as ledger:
        yield ledger


async def add_rule(ledger: LocalLedger, action: Any = "allow", filters: Any = None, **fields: Any) -> RuleRecord:
    fields.setdefault("scope", "everywhere")
    rule = NewRule(action=action, filters=GIT if filters is None else filters, **fields)
    return await rules.save_rule(ledger.log, rule, by="ann")


async def request(
    ledger: LocalLedger, command: Any, session: str = "s", *, tool: str = "Bash", **fields: Any
) -> ApprovalRecord:
    """Record a request for approval of a command, as an agent's recorder does, and return it."""
    input = {"command": command} if isinstance(command, str | list) else command
    proposed = ev.CallProposed(call="new:1", tool_name=tool, kind="execute" if tool == "Bash" else "", input=input)
    requested = ev.ApprovalRequested(call="new:1", options=fields.pop("options", APPROVAL_OPTIONS), **fields)
    events = await ledger.log.append(session, [proposed, requested], source="acp")
    assert isinstance(events[1], ev.ApprovalRequested)
    return await ledger.find_approval(events[1].approval)


async def answer(ledger: LocalLedger, command: Any, session: str = "s", **fields: Any) -> ApprovalRecord:
    """Record a request, apply the rules, and return it as it is then."""
    record = await request(ledger, command, session, **fields)
    await rules.answer_by_rules(ledger.log, record.id)
    return await ledger.find_approval(record.id)


async def set_project(ledger: LocalLedger, session: str, project: str) -> None:
    await ledger.log.append(session, [ev.SessionInfo(project=project)])


# Answers


async def test_a_rule_answers_a_request_and_is_named(ledger: LocalLedger) -> None:
    """RUL6: the answer's `by` names the rule, and the entry of the request shows it with its reason."""
    allowing = await add_rule(ledger, reason="reads only")
    denying = await add_rule(ledger, "deny", {"input": {"command": "rm *"}})
    granted, refused, pending = [await answer(ledger, text) for text in ("git status", "rm x", "make")]
    assert (granted.state, granted.by, granted.option) == ("granted", f"rule {allowing.id}", "approve")
    assert (refused.state, refused.by, refused.option) == ("refused", f"rule {denying.id}", "deny")
    assert pending.state == "pending"
    entries = (await ledger.snapshot("s")).entries
    shown = {entry.approval: entry for entry in entries if isinstance(entry, PermissionRequest)}
    assert (shown[granted.id].by, shown[granted.id].reason) == (f"rule {allowing.id}", "reads only")
    assert (await ledger.find_call(refused.call)).state == "denied"
    used = {row.id: row for row in await rules.list_rules(ledger.log)}
    assert [(used[rule.id].uses, used[rule.id].used_at > 0) for rule in (allowing, denying)] == [(1, True)] * 2


async def test_a_rule_answers_own_calls_commands_and_posted_requests(ledger: LocalLedger) -> None:
    """RUL6: a call with approval=True, a command that asks, and a request in a posted body."""
    rule = await add_rule(ledger, filters={"tool": ["deploy", "go", "posted"]})
    async with ledger.session("own").call("deploy", {"n": 1}, approval=True) as call:
        call.complete("done")
    with pytest.raises(CallDeniedError, match="never"):
        await add_rule(ledger, "deny", {"tool": "never"}, reason="never")
        async with ledger.session("own").call("never", {}, approval=True):
            pass
    await ledger.commands.submit("go", {}, approval=True, session="commands")
    assert [call.state for call in (await ledger.calls(session="commands")).items] == ["queued"]
    messages = [
        {"type": "call.proposed", "call": "new:1", "toolName": "posted", "input": {"x": 1}},
        {"type": "approval.requested", "call": "new:1", "options": APPROVAL_OPTIONS},
    ]
    raw = json.dumps(messages).encode()
    body = Body(messages=messages, size=len(raw), digest=codec.digest(raw))
    await Posts(ledger.log).append(ConversationName("posts", "events", "bot"), body, FULL_ACCESS)
    answers = await ledger.approvals(state="")
    assert [(row.session, row.by) for row in answers if row.state == "granted"] == [
        (session, f"rule {rule.id}") for session in ("own", "commands", "posts")
    ]


async def test_a_posted_request_does_not_start_the_call_of_another_program(ledger: LocalLedger) -> None:
    """RUL6: it could describe the call in words that a rule allows, so it does not replace the request of the call."""
    await add_rule(ledger, filters={"tool": "ls"})

    async def run_call() -> None:
        async with ledger.session("own").call("deploy", {"n": 1}, approval=True, alias=("openai", "c1")):
            pass

    running = asyncio.ensure_future(run_call())
    async with asyncio.timeout(20):
        while not (waiting := await ledger.approvals()):
            await asyncio.sleep(0.005)
    posted = [
        {"type": "approval.requested", "aliases": [["openai", "c1"]], "toolName": "ls", "options": APPROVAL_OPTIONS}
    ]
    raw = json.dumps(posted).encode()
    body = Body(messages=posted, size=len(raw), digest=codec.digest(raw))
    with pytest.raises(PermissionDeniedError):
        await Posts(ledger.log).append(ConversationName("own", "events", "bot"), body, FULL_ACCESS)
    assert [row.id for row in await ledger.approvals()] == [waiting[0].id]
    await ledger.deny(waiting[0].id)
    with pytest.raises(CallDeniedError):
        await running


async def test_a_request_that_is_answered_elsewhere_is_left_alone(ledger: LocalLedger) -> None:
    """RUL6: an answer would not reach the agent."""
    await add_rule(ledger)
    assert (await answer(ledger, "git status", answer_at="the ACP client")).state == "pending"


async def test_only_the_option_for_this_call_is_chosen(ledger: LocalLedger) -> None:
    """RUL6: never the one that the agent remembers. Without a suitable option a person answers."""
    await add_rule(ledger)
    options = [{"optionId": "A", "kind": "allow_always"}, {"optionId": "n", "kind": "reject_once"}]
    assert (await answer(ledger, "git status", options=options)).state == "pending"
    options.append({"optionId": "a", "kind": "allow_once"})
    assert (await answer(ledger, "git status", options=options)).option == "a"


async def test_a_secret_in_a_call_leaves_it_to_a_person(ledger: LocalLedger) -> None:
    """RUL2: what runs is not what is stored. A rule may deny it."""
    await add_rule(ledger, filters={"tool": "Bash"})
    command = "curl -H 'x-api-key: sk-ant-" + "Abc123" * 6 + "' https://a.example"
    assert (await answer(ledger, command)).state == "pending"
    await add_rule(ledger, "deny", {"input": {"command": "curl *"}})
    assert (await answer(ledger, command)).state == "refused"


async def test_the_first_answer_wins(ledger: LocalLedger) -> None:
    """RUL6: a request that a person has answered is not answered again, and the rule is not used."""
    rule = await add_rule(ledger, lifetime="once")
    record = await request(ledger, "git status")
    await ledger.deny(record.id, by="ann")
    assert (await rules.answer_by_rules(ledger.log, record.id)).action == ""
    assert (await rules.find_rule(ledger.log, rule.id)).uses_left == 1
    record = await request(ledger, "git status")
    await rules.answer_by_rules(ledger.log, record.id)
    with pytest.raises(ConflictError, match="not pending"):
        await ledger.deny(record.id, by="ann")


POLICY = """\
[[rule]]
action = "deny"
input.command = "git push*"
reason = "not from here"

[[rule]]
action = "ask"
title = "Deploy"
[[rule]]
action = "allow"
tool = "Bash"
input.command = ["make", "cat *"]
"""


async def test_a_call_that_has_changed_since_the_request_waits_for_a_person(ledger: LocalLedger) -> None:
    """RUL6: the agent asked about other arguments than those that a rule would allow now."""
    rule = await add_rule(ledger)
    record = await request(ledger, "rm -rf ~")
    await ledger.log.append("s", [ev.CallProgress(call=record.call, input={"command": "git status"})], source="acp")
    assert "has changed" in (await rules.answer_by_rules(ledger.log, record.id)).reason
    assert (await ledger.find_approval(record.id)).state == "pending"
    assert (await rules.find_rule(ledger.log, rule.id)).uses == 0


async def test_the_policy_file_beats_saved_rules(db: str, tmp_path: Path) -> None:
    """RUL1: also if it asks, or if it is not known whether one of its rules matches. A test names its rules.

    It is read again when it has changed; while it cannot be used, every request waits for a person.
    """
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    async with callslip.open(db, Settings(policy_file=str(file))) as ledger:
        saved = [
            await add_rule(ledger, filters={"input": {"command": "*"}}),
            await add_rule(ledger, "deny", {"input": {"command": "make"}}),
        ]
        for command, title, state, by in (
            ("git push", "Run", "refused", "policy"),
            ("sudo git push", "Run", "pending", ""),
            ("git status", "Run", "granted", f"rule {saved[0].id}"),
            ("git status", "Deploy", "pending", ""),
            ("make", "Run", "granted", "policy"),
            ("cat x | sh", "Run", "pending", ""),
            (f"cat {file}", "Run", "pending", ""),
        ):
            found = await answer(ledger, command, title=title)
            assert (found.state, found.by) == (state, by), (command, title)
        call = {"tool_name": "Bash", "kind": "execute", "input": {"command": "git push"}}
        decision = rules.decision_view(await rules.test_rules(ledger.log, call))
        assert (decision.action, decision.rules, decision.reason) == ("deny", ["policy:1"], "not from here")
        assert [(step.rule, step.matches) for step in decision.steps] == [("policy:1", True)]
        call["input"] = {"command": "ls"}
        decision = rules.decision_view(await rules.test_rules(ledger.log, {**call, "title": "List"}))
        looked_at = ["policy:1", "policy:2", "policy:3", saved[1].id, saved[0].id]
        assert (decision.rules, [step.rule for step in decision.steps]) == ([saved[0].id], looked_at)
        view = await ledger.rules.policy()
        assert view is not None and view.file == str(file)
        assert [(rule.rule, rule.line, rule.action) for rule in view.rules] == [
            *(("policy:1", 1, "deny"), ("policy:2", 6, "ask"), ("policy:3", 9, "allow"))
        ]
        assert view.rules[2].filters == {"tool": "Bash", "input": {"command": ["make", "cat *"]}}
        file.write_text("[[rule]]\naction = 'deny'\ninput.command = 'git status'\n")
        assert (await answer(ledger, "git push", title="Run")).state == "granted"
        assert (await answer(ledger, "git status", title="Run")).by == "policy"
        file.write_text("[[rule]]\naction = 'never'\n")
        assert (await answer(ledger, "git log", title="Run")).state == "pending"
        view = await ledger.rules.policy()
        assert view is not None and "action must be one of" in view.problem and view.rules == []
        file.unlink()
        assert (await answer(ledger, "git log", title="Run")).state == "pending"
    async with callslip.open(db) as ledger:
        assert await ledger.rules.policy() is None


# Scopes and lifetimes


async def test_a_rule_is_valid_in_its_scope(ledger: LocalLedger) -> None:
    """RUL4: in its session, in the sessions of its project folder, or everywhere."""
    for session, project in (("a", "/home/dev/p"), ("b", "/home/dev/p/"), ("c", "/home/dev/other"), ("d", "")):
        await set_project(ledger, session, project)
    by_scope = [
        await add_rule(ledger, filters={"input": {"command": text}}, scope=scope, scope_value=value)
        for text, scope, value in (
            ("s", "session", "a"),
            ("p", "project", "/home/dev/x/../p/"),
            ("e", "everywhere", ""),
        )
    ]
    assert by_scope[1].scope_value == "/home/dev/p"
    states = {
        session: [(await answer(ledger, text, session)).state == "granted" for text in "spe"] for session in "abcd"
    }
    assert states == {"a": [True] * 3, "b": [False, True, True], "c": [False, False, True], "d": [False, False, True]}


async def test_a_rule_for_one_use_answers_one_request(ledger: LocalLedger, db: str) -> None:
    """RUL4: also if two processes apply it at the same time; its use is in the transaction of the answer."""
    rule = await add_rule(ledger, lifetime="once")
    async with callslip.open(db) as other:
        records = [await request(ledger, "git status", f"s{number}") for number in range(6)]
        logs = itertools.cycle((ledger.log, other.log))
        await asyncio.gather(*(rules.answer_by_rules(next(logs), record.id) for record in records))
    states = [(await ledger.find_approval(record.id)).state for record in records]
    assert sorted(states) == ["granted"] + ["pending"] * 5
    row = await rules.find_rule(ledger.log, rule.id)
    assert (row.uses, row.uses_left, rules.rule_state(row, 0)) == (1, 0, "used")


async def test_a_revoked_rule_answers_nothing(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """RUL4: also if it is revoked between the decision and the answer."""
    rule = await add_rule(ledger)
    record = await request(ledger, "git status")
    write = rules._write_answer  # pyright: ignore[reportPrivateUsage]

    async def revoke_first(*arguments: Any) -> bool:
        await rules.revoke_rule(ledger.log, rule.id[:9])
        return await write(*arguments)

    monkeypatch.setattr(rules, "_write_answer", revoke_first)
    assert (await rules.answer_by_rules(ledger.log, record.id)).action == ""
    assert (await ledger.find_approval(record.id)).state == "pending" and await rules.list_rules(ledger.log) == []


async def test_a_rule_ends_after_an_hour_by_the_clock_of_the_database(ledger: LocalLedger, engine: str) -> None:
    """RUL4: then it answers nothing. Retention removes it."""
    rule = await add_rule(ledger, lifetime="hour")
    assert (await answer(ledger, "git status")).state == "granted"

    class Clock:
        time = staticmethod(lambda: time.monotonic() - began + real + 3601)

    began, real = time.monotonic(), time.time()
    record = await request(ledger, "git status")
    patches = engines.list_clock_patches(engine, Clock)
    for patch in patches:
        patch.start()
    try:
        assert (await rules.answer_by_rules(ledger.log, record.id)).action == ""
        row = await rules.find_rule(ledger.log, rule.id)
        assert rules.rule_state(row, await ledger.log.store.clock()) == "expired"
        await ledger.prune(0)
        assert await rules.list_rules(ledger.log) == []
    finally:
        for patch in patches:
            patch.stop()


async def test_rules_are_deleted_with_their_session(ledger: LocalLedger) -> None:
    """RUL4: another session of the same name does not get them."""
    await set_project(ledger, "a", "/p")
    await add_rule(ledger, scope="session", scope_value="a")
    kept = await add_rule(ledger, scope="project", scope_value="/p")
    await ledger.delete("a")
    assert [row.id for row in await rules.list_rules(ledger.log)] == [kept.id]
    assert (await answer(ledger, "git status", "a")).state == "pending"


@pytest.mark.parametrize("scope", get_args(Scope))
@pytest.mark.parametrize("lifetime", get_args(Lifetime))
async def test_the_corpora_are_decided_alike_in_every_scope_and_lifetime(db: str, scope: Any, lifetime: Any) -> None:
    """RUL2: requests are decided as in use: no way around is allowed, also where chains are, and ordinary commands are.

    In another session and project nothing is decided.
    """
    value = {"session": "s", "project": "/home/dev/p", "everywhere": ""}[scope]
    filters = {"input": {"command": COMMAND_RULES}}
    others = list(itertools.product([""] if scope == "everywhere" else ["", "x"], ["git status", "ls -la"]))
    async with callslip.open(db, Settings(rules_allow_chains=True)) as ledger:
        await set_project(ledger, "s", "/home/dev/p")
        rule = await add_rule(ledger, filters=filters, scope=scope, scope_value=value, lifetime=lifetime)

        async def decide(command: str, session: str = "s", project: str = "/home/dev/p") -> Decision:
            call = {"kind": "execute", "input": {"command": command}}
            return await rules.decide_request(ledger.log, call, session=session, project=project)

        for command in WAYS_AROUND:
            assert (await decide(command)).action != "allow", command
        for command in ORDINARY:
            decision = await decide(command)
            assert (decision.action, decision.rule) == ("allow", rule.id), command
        for other, command in others:
            decision = await decide(command, other or "t", "/home/dev/q")
            assert (decision.action == "allow") == (scope == "everywhere"), (other, command)
        assert (await answer(ledger, "git status; rm -rf ~")).state == "pending"
        assert (await answer(ledger, "git status")).by == f"rule {rule.id}"
        assert (await answer(ledger, "git status")).state == ("pending" if lifetime == "once" else "granted")
        denying = await add_rule(ledger, "deny", filters, scope=scope, scope_value=value, lifetime=lifetime)
        for command in ORDINARY[::20]:
            decision = await decide(command)
            assert (decision.action, decision.rule) == ("deny", denying.id), command


async def test_the_setting_for_chains(db: str) -> None:
    """RUL3: a chain of commands that rules allow is answered, and both rules are used."""
    async with callslip.open(db, Settings(rules_allow_chains=True)) as ledger:
        used = [await add_rule(ledger, filters={"input": {"command": f"{name} *"}}) for name in ("git", "npm")]
        record = await answer(ledger, "git status && npm test")
        assert record.by == f"rules {used[0].id}, {used[1].id}"
        assert [row.uses for row in await rules.list_rules(ledger.log)] == [1, 1]
        assert (await answer(ledger, "git status && rm x")).state == "pending"


# Save, list, revoke, verify


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"filters": {}}, "needs a filter"),
        ({"filters": {"command": "x"}}, "unknown filter 'command'"),
        ({"filters": {"tool": [1]}}, "tool must be a string"),
        ({"filters": {"tool": "regex:("}}, "not a regular expression"),
        ({"filters": {"title": "x" * 20_000}}, "filters"),
        ({"action": "ask", "lifetime": "once"}, "answers no request"),
        ({"scope": "project", "scope_value": "p"}, "absolute path"),
        ({"scope": "everywhere", "scope_value": "p"}, "must be empty"),
        ({"scope": "session", "scope_value": ""}, "scopeValue"),
        ({"reason": "x" * 3000}, "at most 2000"),
    ],
)
async def test_an_invalid_rule_is_refused(ledger: LocalLedger, fields: dict[str, Any], problem: str) -> None:
    """RUL7: with the field and the problem, and nothing is saved."""
    with pytest.raises(InvalidInputError, match=problem):
        await add_rule(ledger, **fields)
    with pytest.raises(NotFoundError, match="no session 'x'"):
        await add_rule(ledger, scope="session", scope_value="x")
    assert await rules.list_rules(ledger.log) == []


async def test_rules_are_found_by_prefix_and_revoked(ledger: LocalLedger) -> None:
    """RUL7: a prefix of several is ambiguous, and one of none is not found."""
    first, second = await add_rule(ledger), await add_rule(ledger, "deny", {"tool": "x"}, lifetime="hour")
    listed = await rules.list_rules(ledger.log)
    assert listed == sorted((first, second), key=lambda rule: (rule.created_at, rule.id))
    assert (first.created_by, rules.lifetime_of(first), rules.lifetime_of(second)) == ("ann", "until-revoked", "hour")
    with pytest.raises(AmbiguousIdError):
        await rules.revoke_rule(ledger.log, "rule_")
    with pytest.raises(NotFoundError):
        await rules.revoke_rule(ledger.log, "rule_x")
    assert (await rules.revoke_rule(ledger.log, first.id)).id == first.id
    assert [row.id for row in await rules.list_rules(ledger.log)] == [second.id]


async def test_the_number_of_rules_is_limited(ledger: LocalLedger) -> None:
    """RUL7: each request is compared with all of them."""
    with mock.patch.object(rules, "MAX_RULES", 2):
        await add_rule(ledger)
        await add_rule(ledger)
        with pytest.raises(InvalidInputError, match="revoke some"):
            await add_rule(ledger)


async def test_verify_reports_a_rule_that_cannot_be_used(ledger: LocalLedger, db: str) -> None:
    """RUL7: a damaged rule answers nothing, and no other rule answers while it is there."""
    await set_project(ledger, "s", "/p")
    rule, other = await add_rule(ledger), await add_rule(ledger, filters={"tool": "Bash"})
    assert await verify(ledger.log) == []
    change = "UPDATE rules SET filters = ? WHERE id = ?"
    for filters in (b"{", b'{"tool":[1]}'):
        engines.change_rows(db, change, filters, rule.id)
        assert [problem.what for problem in await verify(ledger.log)] == ["rule"]
        assert (await answer(ledger, "git status")).state == "pending"
    await ledger.log.store.drop_rule(rule.id)
    assert (await answer(ledger, "git status")).by == f"rule {other.id}"


# Propose, preview and test


@pytest.mark.parametrize(
    ("call", "filters"),
    [
        (
            {"tool": "Bash", "command": "git log --oneline -5"},
            {"tool": "Bash", "input": {"command": ["git log", "git log *"]}},
        ),
        ({"tool": "Bash", "command": "npm test"}, {"tool": "Bash", "input": {"command": ["npm test", "npm test *"]}}),
        ({"tool": "Bash", "command": "rm notes.txt"}, {"tool": "Bash", "input": {"command": "rm notes.txt"}}),
        ({"tool": "Bash", "command": "ls *.py"}, {"tool": "Bash", "input": {"command": "exact:ls *.py"}}),
        ({"tool": "Bash", "command": "cd a && x"}, {"tool": "Bash", "input": {"command": "cd a && x"}}),
        ({"tool": "Bash", "command": "sudo git log"}, {"tool": "Bash", "input": {"command": "sudo git log"}}),
        ({"tool": "mcp__fs__read", "command": {"n": 1}}, {"tool": "mcp__fs__read"}),
    ],
)
async def test_a_proposal_is_narrow_and_matches(ledger: LocalLedger, call: dict[str, Any], filters: Any) -> None:
    """RUL8: a subcommand with any arguments if such a rule would allow it, else the exact text; or the tool."""
    record = await request(ledger, call["command"], tool=call["tool"])
    proposal = await rules.propose_rule(ledger.log, record.id)
    assert proposal.rule.filters == filters and proposal.problem == ""
    assert (proposal.rule.scope, proposal.rule.scope_value, proposal.rule.lifetime) == ("session", "s", "until-revoked")
    preview = await rules.preview_rule(ledger.log, proposal.rule)
    assert [row.id for row in preview.calls] == [record.call] and (preview.matched, preview.looked_at) == (1, 1)
    await rules.save_rule(ledger.log, proposal.rule)
    await rules.answer_by_rules(ledger.log, record.id)
    assert (await ledger.find_approval(record.id)).state == "granted"


async def test_a_proposal_for_files_names_the_project(ledger: LocalLedger) -> None:
    """RUL8: a tool with files in the project folder is proposed for that folder, another one for its files."""
    await set_project(ledger, "s", "/home/dev/p")
    for path, pattern in (("/home/dev/p/src/a.py", "/home/dev/p/**"), ("/etc/hosts", ["/etc/hosts"])):
        proposed = ev.CallProposed(call="new:1", tool_name="edit", kind="edit", locations=[{"path": path}], input={})
        requested = ev.ApprovalRequested(call="new:1", options=APPROVAL_OPTIONS)
        event = (await ledger.log.append("s", [proposed, requested], source="acp"))[1]
        assert isinstance(event, ev.ApprovalRequested)
        proposal = await rules.propose_rule(ledger.log, event.approval)
        assert (proposal.rule.filters, proposal.project) == ({"tool": "edit", "path": pattern}, "/home/dev/p")


async def test_a_proposal_for_a_protected_call_says_so(ledger: LocalLedger) -> None:
    """RUL5, RUL8: no rule would answer it."""
    record = await request(ledger, "callslip approve @last")
    assert "command line of Callslip" in (await rules.propose_rule(ledger.log, record.id)).problem
    await add_rule(ledger, filters={"tool": "Bash"})
    assert (await answer(ledger, "callslip approve @last")).state == "pending"
    assert (await answer(ledger, f"cat {ledger.log.store.display_name}")).state == (
        "granted" if engines.is_postgres(ledger.log.store.url) else "pending"
    )


async def test_a_preview_is_bounded_and_newest_first(ledger: LocalLedger) -> None:
    """RUL8: it says how many calls it looked at, and saves nothing."""
    matching: set[str] = set()
    for number in range(6):
        matching.add((await request(ledger, f"git log -{number}", f"s{number % 2}")).call)
        await request(ledger, "make")
    await set_project(ledger, "s1", "/p")
    rule = NewRule(action="allow", filters=GIT, scope="everywhere")
    with mock.patch.multiple(rules, PREVIEW_CALLS=9, PREVIEW_MATCHES=2):
        preview = await rules.preview_rule(ledger.log, rule)
        newest = [call.id for call in (await ledger.calls(limit=9)).items if call.id in matching]
        assert (preview.matched, preview.looked_at) == (len(newest), 9) and len(newest) < len(matching)
        assert [call.id for call in preview.calls] == newest[:2]
    for scope, value, matched in (("session", "s0", 3), ("project", "/p", 3), ("project", "/q", 0)):
        rule = NewRule(action="allow", filters=GIT, scope=scope, scope_value=value)  # type: ignore[arg-type]
        assert (await rules.preview_rule(ledger.log, rule)).matched == matched
    assert await rules.list_rules(ledger.log) == []


async def test_a_test_of_rules_runs_nothing(ledger: LocalLedger) -> None:
    """RUL9: it returns the decision with the rules that were looked at, up to the deciding one."""
    allowing, denying = await add_rule(ledger, lifetime="once"), await add_rule(ledger, "deny", {"tool": "x"})
    call = {"tool_name": "Bash", "kind": "execute", "input": {"command": "git status"}}
    decision = await rules.test_rules(ledger.log, call)
    assert (decision.action, decision.rules) == ("allow", (allowing.id,))
    assert [(step.rule, step.matches) for step in decision.steps] == [(denying.id, False), (allowing.id, True)]
    denied = await rules.test_rules(ledger.log, {"tool_name": "x"})
    assert [step.rule for step in denied.steps] == [denying.id] and denied.action == "deny"
    assert (await rules.find_rule(ledger.log, allowing.id)).uses == 0
    with pytest.raises(InvalidInputError, match="is that of the session"):
        await rules.test_rules(ledger.log, call, session="s", project="/p")


# Answers to several requests


async def test_several_answers_apply_to_what_was_shown(ledger: LocalLedger) -> None:
    """RUL13: each counts only for a request that is pending with the same arguments."""
    records = [await request(ledger, text) for text in ("a", "b", "c", "d")]
    await ledger.log.append("s", [ev.CallProgress(call=records[1].call, input={"command": "rm -rf ~"})], source="acp")
    await ledger.deny(records[2].id, by="bob")
    shown = [BulkAnswer(id=row.id, input_hash=row.input_hash, action="approve") for row in records[:3]]
    shown.append(BulkAnswer(id=records[3].id, input_hash=records[3].input_hash, action="deny", reason="no"))
    shown.append(BulkAnswer(id="appr_000000000000", input_hash="x", action="approve"))
    shown.append(BulkAnswer(id=records[0].id[:8], input_hash=records[0].input_hash, action="approve"))
    results = await answer_several(ledger.log, shown, by="ann")
    assert [result.result for result in results] == [
        *("answered", "changed", "not-pending", "answered", "not-found", "not-found")
    ]
    found = [await ledger.find_approval(row.id) for row in records]
    assert [(row.state, row.by) for row in found] == [
        *(("granted", "ann"), ("pending", ""), ("refused", "bob"), ("refused", "ann"))
    ]
    wrong = BulkAnswer(id=records[1].id, input_hash=records[0].input_hash, action="approve")
    assert (await answer_several(ledger.log, [wrong]))[0].result == "changed"
    with pytest.raises(InvalidInputError, match="must be 1 to 100"):
        await answer_several(ledger.log, [wrong] * 101)
