"""`callslip rules`, and that a program which an agent started can neither answer nor write a rule."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api import rules
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.agent_env import AGENT_MARKS
from callslip.model.records import ApprovalRecord
from callslip.rules.lifecycle import APPROVAL_OPTIONS
from tests.support.cli_process import ServeProcess, run, run_in_process

AGENT = {"CALLSLIP_AGENT": "1"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a ledger with a pending request for `git status`."""
    path = str(tmp_path / "ledger.db")
    asyncio.run(with_ledger(path, ask))
    return path


@contextlib.contextmanager
def serving(path: str, *options: str) -> Generator[ServeProcess]:
    server = ServeProcess(path, "--port", "0", *options)
    try:
        yield server
    finally:
        server.kill()


async def with_ledger(path: str, work: Any) -> Any:
    async with callslip.open(path) as ledger:
        return await work(ledger)


async def ask(ledger: LocalLedger) -> None:
    proposed = ev.CallProposed(
        call="new:1", tool_name="Bash", kind="execute", title="git status", input={"command": "git status"}
    )
    requested = ev.ApprovalRequested(call="new:1", options=APPROVAL_OPTIONS)
    await ledger.log.append("s", [ev.SessionInfo(project="/home/dev/p"), proposed, requested], source="acp")


def pending(path: str) -> list[ApprovalRecord]:
    return asyncio.run(with_ledger(path, lambda ledger: ledger.approvals()))


def test_rules_are_added_listed_tested_and_revoked(path: str) -> None:
    """RUL11: a rule is saved with a preview; a dry run saves nothing."""
    words = ("allow", "--command", "git status", "--command", "git log *", "--session", "s", "--for", "hour")
    dry = run("rules", "add", *words, "--dry-run", "--db", path)
    assert dry.returncode == 0 and "matches 1 of the newest 1 call" in dry.stderr and "git status" in dry.stderr
    assert "no rules" in run("rules", "ls", "--db", path).stderr
    added = run("rules", "add", *words, "--db", path, "--json")
    saved = json.loads(added.stdout)
    assert (saved["scope"], saved["scopeValue"], saved["lifetime"], saved["state"]) == (
        "session",
        "s",
        "hour",
        "active",
    )
    assert saved["filters"] == {"input": {"command": ["git status", "git log *"]}} and saved["createdBy"]
    assert saved["rule"] in run("rules", "ls", "--db", path).stdout
    tested = run("rules", "test", "git status", "--session", "s", "--db", path)
    assert tested.stdout == "allow\n" and f"{saved['rule']}  allow  matches" in tested.stderr
    other = run("rules", "test", "git status; rm x", "--session", "s", "--db", path, "--json")
    assert json.loads(other.stdout)["action"] == "ask"
    assert len(pending(path)) == 1
    assert f"revoked {saved['rule']}" in run("rules", "revoke", saved["rule"][:9], "--db", path).stderr
    assert run("rules", "revoke", saved["rule"], "--db", path).returncode == 3


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--tool", "x"), "pass one of --session, --project and --everywhere"),
        (("--tool", "x", "--session", "s", "--everywhere"), "pass one of"),
        (("--everywhere",), "needs a filter"),
        (("--everywhere", "--input", "x"), "NAME=PATTERN"),
        (("--everywhere", "--input", "x=1", "--input", "x.y=1"), "has a pattern already"),
    ],
)
def test_a_wrong_rule_is_refused(path: str, words: tuple[str, ...], problem: str) -> None:
    """RUL11: exit status 2 with the problem."""
    result = run("rules", "add", "allow", *words, "--db", path)
    assert result.returncode == 2 and problem in result.stderr


def test_a_server_takes_rules_only_with_a_token(path: str) -> None:
    """RUL11: where a server runs, the token file is not enough, and a token for one session writes only its rules."""
    token = run("admin", "token", "create", "--can", "read,approve", "--session", "s", "--db", path).stdout.strip()
    with serving(path):
        words = ("rules", "add", "allow", "--command", "git status", "--db", path)
        without = run(*words, "--session", "s")
        assert without.returncode == 2 and "needs a token" in without.stderr
        refused = run(*words, "--everywhere", "--token", token)
        assert refused.returncode == 1 and "one session" in refused.stderr
        added = run(*words, "--session", "s", "--token", token, "--json")
        rule = json.loads(added.stdout)["rule"]
        assert run("rules", "revoke", rule, "--db", path, "--token", token).returncode == 0


def test_a_server_has_a_policy_file(path: str, tmp_path: Path) -> None:
    """RUL15: it is checked at the start, decides before saved rules, and chains are allowed with the setting."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[[rule]]\naction = 'never'\n")
    refused = run_in_process("serve", "--port", "0", "--policy", str(policy), "--db", path)
    assert refused.returncode == 2 and "line 1" in refused.stderr
    policy.write_text("\n[[rule]]\naction = 'deny'\ninput.command = 'git push*'\n")
    for command in ("git *", "ls *"):
        assert (
            run_in_process("rules", "add", "allow", "--command", command, "--everywhere", "--db", path).returncode == 0
        )
    chain, push = "git log && ls -l", "git push"
    with serving(path, "--policy", str(policy), "--rules-allow-chains"):
        listed = run_in_process("rules", "ls", "--db", path)
        assert f"policy file {policy}" in listed.stderr and "line 2  deny" in listed.stderr and "git *" in listed.stdout
        assert run_in_process("rules", "test", chain, "--db", path).stdout == "allow\n"
        denied = run_in_process("rules", "test", push, "--db", path)
        assert denied.stdout == "deny\n" and "policy:1" in denied.stderr
    assert [run_in_process("rules", "test", command, "--db", path).stdout for command in (chain, push)] == [
        "ask\n",
        "allow\n",
    ]


def test_a_program_that_an_agent_started_cannot_answer_or_write_rules(path: str) -> None:
    """RUL12: without a server, with its file in the working folder, and with a server that it could start itself."""
    (request,) = pending(path)
    granted = Path(path).with_name("answer.jsonl")
    granted.write_text(json.dumps({"type": "approval.granted", "approval": request.id, "call": request.call}) + "\n")
    for words in (
        ("approve", request.id),
        ("deny", "@last"),
        ("rules", "add", "allow", "--tool", "*", "--everywhere"),
        ("rules", "revoke", "rule_0"),
        ("admin", "token", "create", "--can", "read,approve"),
        ("serve", "--port", "0", "--token", "a-token-of-my-own-choice"),
        ("up", "--port", "0"),
        ("import", "--format", "events", str(granted), "--session", "s"),
        ("admin", "token", "qr", "--url", "http://192.0.2.1:7890"),
        ("admin", "delete", "s", "--yes"),
        ("demo", "--no-browser", "--port", "0"),
    ):
        result = run_in_process(*words, "--db", path, env=AGENT)
        assert result.returncode == 1, (words, result)
        assert "programs that an agent started may not" in result.stderr and "CALLSLIP_AGENT" in result.stderr
    for mark in AGENT_MARKS[1:]:  # Of agents that Callslip did not start.
        result = run_in_process("approve", request.id, "--db", path, env={mark: "1"})
        assert result.returncode == 1 and f"{mark} is set" in result.stderr
    assert run_in_process("ls", "--db", path, env=AGENT).returncode == 0
    assert run_in_process("rules", "ls", "--db", path, env=AGENT).returncode == 0
    assert [row.id for row in pending(path)] == [request.id]
    assert asyncio.run(with_ledger(path, lambda ledger: rules.list_rules(ledger.log))) == []
