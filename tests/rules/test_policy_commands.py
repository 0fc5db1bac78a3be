"""Rules about shell commands in a policy file: what is allowed, denied, and left to the client."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from callslip.api.policy_file import read_policy
from callslip.rules.policy import Policy, permission_query
from tests.support.command_corpus import COMMAND_RULES, ORDINARY, WAYS_AROUND
from tests.support.doc_examples import find_blocks
from tests.support.paths import ROOT


def rule(action: str, **filters: Any) -> str:
    """Return a rule as TOML; `input__command` is written as `input.command`."""
    lines = [f"{name.replace('__', '.')} = {json.dumps(value)}\n" for name, value in filters.items()]
    return f'[[rule]]\naction = "{action}"\n' + "".join(lines)


@pytest.fixture
def decide(tmp_path: Path) -> Any:
    """Return a function that returns the action of a policy for the fields of a call; "" if the client decides."""
    policies: dict[str, Policy] = {}

    def decide_call(text: str, **call: Any) -> str:
        if text not in policies:
            (tmp_path / "policy.toml").write_text(text)
            policies[text] = read_policy(tmp_path / "policy.toml")
        decision = policies[text].decide(permission_query(call))
        return "" if decision is None else decision.action

    return decide_call


ALLOW_GIT = rule("allow", input__command="git *")
ALLOW_ALL = rule("allow", kind="execute")


def test_no_way_around_a_rule_is_allowed(decide: Any) -> None:
    """POL1: None of the commands of the corpus that run something else is allowed, as a text, a list or a title."""
    policy = rule("allow", input__command=COMMAND_RULES) + rule("allow", title=COMMAND_RULES)
    for command in WAYS_AROUND:
        for call in (
            {"input": {"command": command}},
            {"input": {"command": ["bash", "-lc", command]}, "kind": "execute"},
            {"title": command, "kind": "execute"},
            {"title": command},
            {"title": command, "kind": "execute", "input": {"cwd": "/p"}},
            {"title": "git status", "input": {"cmd": command}},
        ):
            assert decide(policy, **call) == "", call


def test_ordinary_commands_are_allowed(decide: Any) -> None:
    """POL2: Also if the agent sends them as a list, or only as the title."""
    policy = rule("allow", input__command=COMMAND_RULES) + rule("allow", title=COMMAND_RULES)
    for command in ORDINARY:
        for call in (
            {"input": {"command": command}},
            {"input": {"command": ["bash", "-lc", command]}, "kind": "execute"},
            {"title": command, "kind": "execute"},
        ):
            assert decide(policy, **call) == "allow", call


@pytest.mark.parametrize(
    "command", ["git status; rm -rf ~", "git log $(id)", "git -c a=b log", "git log 'x", "true; git log"]
)
def test_a_command_that_is_not_simple_is_left_to_the_client(decide: Any, command: str) -> None:
    """POL5: Also if a later rule allows every command. A later rule may deny it, or have its exact text."""
    call = {"kind": "execute", "input": {"command": command}}
    assert decide(ALLOW_GIT, **call) == ""
    assert decide(ALLOW_GIT + ALLOW_ALL, **call) == ""
    assert decide(ALLOW_GIT + rule("deny", kind="execute"), **call) == "deny"
    assert decide(ALLOW_GIT + rule("allow", input__command=command), **call) == "allow"
    assert decide(rule("allow", input__command="npm *") + ALLOW_ALL, **call) == "allow"


def test_an_exact_text_allows_any_command(decide: Any) -> None:
    """POL3: A chain, an interpreter, and with `exact:` also a text with wildcards."""
    for command in ("cd web && npm test", "python -m pytest", "find . -name *.pyc -delete"):
        assert decide(rule("allow", input__command=f"exact:{command}"), input={"command": command}) == "allow"
        assert decide(rule("allow", input__command=f"exact:{command}"), input={"command": f"{command} x"}) == ""
        assert decide(rule("allow", input__command=f"{command}*"), input={"command": command}) == ""
    assert decide(rule("allow", input__command="exact:"), input={"command": None}) == ""
    assert decide(rule("allow", input__command="exact:"), input={"command": 5}) == ""
    with_pager = {"command": "git log", "env": {"GIT_PAGER": "id"}}
    assert decide(rule("allow", input__command="git log"), input=with_pager) == ""
    assert decide(rule("allow", input__command="git"), input={"command": "git", "args": ["-c", "a=b", "log"]}) == ""


def test_words_are_compared_not_texts(decide: Any) -> None:
    """POL1: A blank inside a word does not separate words, and quotes do not change them."""
    policy = rule("allow", input__command=["deploy * --dry-run", "deploy * --dry-run *", "regex:send .* --test( .*)?"])
    for command in ("deploy a --dry-run", "deploy 'a b' --dry-run 'c d'", 'deploy "a" "--dry-run"', "send x --test"):
        assert decide(policy, input={"command": command}) == "allow"
    for command in (
        "deploy a ' --dry-run'",
        "deploy a \\ --dry-run",
        "deploy a ' --dry-run b'",
        "send 'x --test'",
        "send x ' --test y'",
    ):
        assert decide(policy, input={"command": command}) == "", command
    assert decide(policy, input={"command": ["deploy", "a", "x --dry-run"]}) == ""
    assert decide(policy, input={"command": ["deploy", "a", "--dry-run"]}) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        *(
            "rm x",
            "true; rm x",
            "true && rm x",
            "true | rm x",
            "true\nrm x",
            "(rm x)",
            "{ rm x; }",
            "! rm x",
            "time rm x",
        ),
        *("\\rm x", 'r"m" x', "'rm' x", "r\\\nm x", "/bin/rm x", "RM x", "A=1 rm x", ">y rm x", "rm x >y", "rm\tx"),
        *("{fd}>y rm x", "2>y rm x"),
        *("if true; then rm x; fi", "for i in a; do rm x; done", "echo $(rm x)", "echo `rm x`", "f() { rm x; }; f"),
        *(["bash", "-lc", "true; rm x"], ["/bin/rm", "x"], ["rm", "x"]),
    ],
)
def test_a_denied_command_is_found_in_every_form(decide: Any, command: Any) -> None:
    """POL6: In a chain, in quotes, with a folder, after an assignment."""
    policy = rule("deny", input__command="rm *") + ALLOW_ALL
    assert decide(policy, kind="execute", input={"command": command}) == "deny"
    assert decide(rule("deny", input="rm *") + ALLOW_ALL, kind="execute", input={"command": command}) == "deny"
    assert decide(rule("ask", input__command="rm *") + ALLOW_ALL, kind="execute", input={"command": command}) == "ask"
    if isinstance(command, str):
        assert decide(rule("deny", title="rm *") + ALLOW_ALL, kind="execute", title=command) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        *(
            "$X x",
            "r$X x",
            "r$=X x",
            "=rm x",
            "true; =rm x",
            "r{m,} x",
            "/bin/r? x",
            "eval 'r''m x'",
            "sudo rm x",
            "env rm x",
            "xargs rm",
            "bash -c 'rm x'",
        ),
        *("find . -exec rm {} +", "nohup rm x", "command rm x", "rm' x", "cat <<E\nrm x\nE", "git -C /p push"),
        *(["sudo", "rm", "x"], ["true; rm x"], ["sh", "-c", "rm x", "y"], ["rm", 1]),
    ],
)
def test_a_command_that_may_be_denied_is_not_allowed_later(decide: Any, command: Any) -> None:
    """POL6: If it is not known what runs, the client decides. The complete text is still matched."""
    policy = rule("deny", input__command=["rm *", "git push*"]) + ALLOW_ALL
    assert decide(policy, kind="execute", input={"command": command}) == ""
    assert decide(rule("deny", input__command="*") + ALLOW_ALL, kind="execute", input={"command": command}) == "deny"


@pytest.mark.parametrize(
    "command", ["ls", "cd x && ls *.py | wc -l", "python x.py", "ls >x 2>&1", "echo 'rm x'", "rmdir x"]
)
def test_other_commands_are_not_denied(decide: Any, command: str) -> None:
    """POL6: Each command of a chain is known to be another one."""
    policy = rule("deny", input__command="rm *") + ALLOW_ALL
    assert decide(policy, kind="execute", input={"command": command}) == "allow"


def test_a_rule_about_another_text_allows_only_simple_commands(decide: Any) -> None:
    """POL4: About the complete input, or a member that is no command. The folder is different."""
    for filters in ({"input": "*"}, {"input__note": "x"}, {"input__note": "?"}):
        call = {"kind": "execute", "title": "Run it"}
        simple, chained = {"command": "ls", "note": "x", "cwd": "/p"}, {"command": "ls; id", "note": "x", "cwd": "/p"}
        assert decide(rule("allow", **filters), input=simple, **call) == "allow", filters
        assert decide(rule("allow", **filters), input=chained, **call) == "", filters
    for filters in ({}, {"kind": "execute"}, {"tool": "Bash"}, {"input__cwd": "/p"}):
        call = {"kind": "execute", "tool_name": "Bash", "input": {"command": "ls; id", "cwd": "/p"}}
        assert decide(rule("allow", **filters), **call) == "allow", filters


def test_a_title_allows_only_the_command_that_it_shows(decide: Any) -> None:
    """POL4: The agent chooses the title. If the input has another command, that must match as well."""
    for title, command, decision in (
        ("git log", "git log", "allow"),
        ("git log", "git show", "allow"),
        ("git log", "git show; id", ""),
        ("git log", "rm x", ""),
        ("git log", ["rm", "x"], ""),
        ("Run it", "ls", ""),
        ("cd web && npm test", "cd web && npm test", "allow"),
        ("cd web && npm test", "rm x", ""),
    ):
        call = {"kind": "execute", "title": title, "input": {"command": command}}
        for titles in (["git *", "Run*", "cd web && npm test"], ["regex:git .*", "Run it", "cd web && npm test"]):
            assert decide(rule("allow", title=titles), **call) == decision, call
            assert decide(rule("allow", title=titles) + ALLOW_ALL, **call) == decision, call
    assert decide(rule("allow", title="git *"), title="git log", input={"command": "git log", "cmd": "rm x"}) == ""
    assert decide(rule("deny", title="git *"), title="git log", input={"command": "rm x"}) == "deny"


def test_a_call_with_two_commands_is_left_to_the_client(decide: Any) -> None:
    """POL4: It is not known which of them runs."""
    call = {"input": {"command": "git status", "cmd": "git push"}}
    assert decide(ALLOW_GIT, **call) == ""
    assert decide(rule("allow", input__command="git status", input__cmd="git push"), **call) == "allow"
    assert decide(ALLOW_GIT, input={"command": "git status", "cmd": "git status"}) == "allow"


@pytest.mark.parametrize(
    "others",
    [
        *({"argv": ["-c"]}, {"params": ["-c"]}, {"arg": "-c"}, {"command_args": ["-c"]}, {"env_vars": {"A": "b"}}),
        *({"executable": "x"}, {"shell_path": "x"}, {"shell": ["x"]}, {"stdin": "x"}, {"pre_command": "rm x"}),
        *({"steps": [{"command": "rm x"}]}, {"steps": [[{"cmd": "rm x"}]]}, {"unknown": "x"}),
    ],
)
def test_a_call_with_unknown_members_is_left_to_the_client(decide: Any, others: dict[str, Any]) -> None:
    """POL4: They may change what the command runs. A denied command is still found."""
    call = {"kind": "execute", "input": {"command": "git log", **others}}
    for policy in (ALLOW_GIT, rule("allow", input__command="git log"), rule("allow", title="git log")):
        assert decide(policy, title="git log", **call) == ""
    assert decide(rule("deny", input__command="git *") + ALLOW_ALL, **call) == "deny"
    chain = {"command": "cd web && npm test", **others}
    assert decide(rule("allow", input__command="cd web && npm test"), input=chain) == ""


def test_a_call_without_a_known_command_is_left_to_the_client(decide: Any) -> None:
    """POL4: A call that executes something has a command, even if the agent does not report it."""
    assert decide(rule("allow", input="*"), kind="execute", input={"n": 1}) == ""
    assert decide(rule("allow", input="*"), kind="read", input={"n": 1}) == "allow"
    assert decide(ALLOW_GIT, kind="execute", input={"command": None}, title="git status") == ""


def test_a_rule_about_paths_only_allows_no_command(decide: Any) -> None:
    """POL4: Agents report the folder of a command as its path, not the files that it changes."""
    call = {"locations": [{"path": "/p"}], "input": {"command": "rm -rf /"}}
    assert decide(rule("allow", path="/p"), kind="execute", **call) == ""
    assert decide(rule("allow", path="/p"), **call) == ""
    assert decide(rule("allow", path="/p", kind="execute"), kind="execute", **call) == "allow"
    assert decide(rule("allow", path="/p"), kind="read", locations=[{"path": "/p"}]) == "allow"


def test_texts_that_are_no_commands_are_matched_as_before(decide: Any) -> None:
    """POL7: The title or input of a call that reads may contain anything."""
    call = {"kind": "read", "title": "Read notes (1); then stop", "input": {"query": "a | b > c", "note": "x"}}
    for filters in ({"title": "Read *"}, {"input__query": "a*"}, {"input": "*query*"}, {"title": "regex:Read .*stop"}):
        assert decide(rule("allow", **filters), **call) == "allow"
        assert decide(rule("deny", **filters) + ALLOW_ALL, **call) == "deny"


def test_the_table_in_the_guide_is_correct(decide: Any) -> None:
    """POL1: Each command in the guide about policies has the answer that the guide shows."""
    guide = (ROOT / "docs" / "guides" / "approvals.md").read_text("utf-8")
    (policy,) = [block.body for block in find_blocks(guide) if block.name == "commands.toml"]
    rows = re.findall(r"^\| `(.+)` \| (allow|ask|deny) \|$", guide, re.MULTILINE)
    assert len(rows) > 10
    for command, answer in rows:
        decision = decide(policy, kind="execute", input={"command": command})
        assert (decision or "ask") == answer, command


def test_the_time_for_a_rule_grows_linearly(decide: Any) -> None:
    """POL8: Eight times the text takes about eight times as long, however many stars a rule has."""

    def measure(text: str, **call: Any) -> float:
        decide(text, **call)
        times: list[float] = []
        for _ in range(3):
            start = time.thread_time()
            decide(text, **call)
            times.append(time.thread_time() - start)
        return min(times)

    for filters, fields in (
        ({"title": "*rm*-r*f*/*x"}, lambda size: {"kind": "read", "title": "rm -rf /" * size}),
        ({"input__command": "*rm*-r*f*/*x"}, lambda size: {"input": {"command": "rm -rf / ;" * size}}),
        ({"input__command": "*a*a*a*b"}, lambda size: {"input": {"command": "git " + "-a " * size}}),
        ({"path": "/**a*a**a*a*b"}, lambda size: {"locations": [{"path": "/" + "a" * 8 * size}]}),
    ):
        for action in ("deny", "allow"):
            text = rule(action, **filters)
            for size in (8, 60):
                assert measure(text, **fields(8 * size)) < 64 * max(measure(text, **fields(size)), 2e-4), filters
