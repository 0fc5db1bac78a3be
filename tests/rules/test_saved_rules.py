"""Saved rules: which one decides, what they never allow, and chains of commands."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from callslip.model.records import RuleRecord
from callslip.rules.policy import permission_query
from callslip.rules.protected_calls import ProtectedPlaces, find_protected
from callslip.rules.saved_rules import Decision, decide_call
from callslip.rules.shell_command import split_chain
from tests.support.command_corpus import COMMAND_RULES, ORDINARY, WAYS_AROUND

PLACES = ProtectedPlaces(
    ("/home/me/.local/share/callslip",), ("/home/dev/p/agent.db", "/home/dev/p/policy.toml"), "/home/me"
)
CORPUS_RULES = [
    ("allow", {"input": {"command": COMMAND_RULES}}),
    ("allow", {"title": COMMAND_RULES}),
]


def record(action: Any, filters: dict[str, Any], number: int = 1, **fields: Any) -> RuleRecord:
    return RuleRecord(f"rule_{number:012x}", action, filters, created_at=number, **fields)


def decide(rules: list[tuple[str, dict[str, Any]]], call: dict[str, Any], **options: Any) -> Decision:
    records = [record(action, filters, number) for number, (action, filters) in enumerate(rules, 1)]
    return decide_call(records, call, places=PLACES, **options)


def command(text: Any, **fields: Any) -> dict[str, Any]:
    return {"tool_name": "Bash", "kind": "execute", "input": {"command": text}, **fields}


def calls_with(text: str) -> list[dict[str, Any]]:
    """Return the ways in which agents send a command."""
    return [
        {"input": {"command": text}},
        {"input": {"command": ["bash", "-lc", text]}, "kind": "execute"},
        {"title": text, "kind": "execute"},
    ]


@pytest.mark.parametrize("allows_chains", [False, True])
def test_no_way_around_a_saved_rule_is_allowed(allows_chains: bool) -> None:
    """RUL2: of the commands of the corpus that run something else none is allowed, also where chains are."""
    for text in WAYS_AROUND:
        for call in [*calls_with(text), {"title": "git status", "input": {"cmd": text}}]:
            assert decide(CORPUS_RULES, call, allows_chains=allows_chains).action != "allow", call


def test_ordinary_commands_are_allowed_by_saved_rules() -> None:
    """RUL2: the commands of the corpus, in each form in which agents send them."""
    for text in ORDINARY:
        for call in calls_with(text):
            assert decide(CORPUS_RULES, call).action == "allow", call


def test_deny_beats_ask_beats_allow_in_any_order() -> None:
    """RUL1: for each order of the rules, and also if it is not known whether one that denies matches."""
    filters = {"deny": {"input": {"command": "rm *"}}, "ask": {"kind": "execute"}, "allow": {"tool": "Bash"}}
    for count in (1, 2, 3):
        for actions in itertools.permutations(filters, count):
            rules = [(action, filters[action]) for action in actions]
            expected = next(action for action in ("deny", "ask", "allow") if action in actions)
            decision = decide(rules, command("rm x"))
            assert decision.action == expected, actions
            assert decision.rule == f"rule_{actions.index(expected) + 1:012x}"
    for rules in itertools.permutations([("deny", {"input": {"command": "rm *"}}), ("allow", {"tool": "Bash"})]):
        assert decide(list(rules), command("sudo rm x")).action == "ask"
        assert decide(list(rules), command("ls")).action == "allow"
    assert decide([("deny", {"tool": "x"})], command("ls")).action == ""


def test_a_command_that_matches_only_as_a_text_asks_in_any_order() -> None:
    """RUL2: also if another rule allows every command. The exact text is allowed."""
    for rules in itertools.permutations([("allow", {"input": {"command": "git *"}}), ("allow", {"kind": "execute"})]):
        assert decide(list(rules), command("git log; rm x")).action == "ask"
        assert decide([*rules, ("allow", {"input": {"command": "git log; rm x"}})], command("git log; rm x")).rule
        assert decide(list(rules), command("npm ci; rm x")).action == "allow"


def test_a_rule_for_one_use_is_used_last() -> None:
    """RUL4: another rule that allows the call is taken before it."""
    once, other = record("allow", {"tool": "Bash"}, 1, uses_left=1), record("allow", {"kind": "execute"}, 2)
    assert decide_call([once, other], command("ls"), places=PLACES).rule == other.id
    assert decide_call([once], command("ls"), places=PLACES).rule == once.id


def test_an_mcp_tool_is_allowed_only_by_its_full_name() -> None:
    """RUL2: and denied by either name."""
    call = {"tool_name": "mcp__fs__Read", "input": {"x": 1}}
    assert decide([("allow", {"tool": "Read"})], call).action == ""
    assert decide([("allow", {"tool": "mcp__fs__Read"})], call).action == "allow"
    assert decide([("deny", {"tool": "Read"})], call).action == "deny"


def test_a_call_that_is_not_stored_completely_is_not_allowed() -> None:
    """RUL2: it may run something else than what is stored. It can be denied."""
    rules = [("allow", {"tool": "Bash"})]
    assert decide(rules, command("ls"), is_complete=False).action == "ask"
    assert decide([*rules, ("deny", {"tool": "Bash"})], command("ls"), is_complete=False).action == "deny"


# Chains

ALLOWED = [
    ("allow", {"input": {"command": ["git *", "npm test", "npm run *", "cd *", "grep *"]}}),
    ("allow", {"input": {"command": ["python -m pytest", "make"]}}),
]


@pytest.mark.parametrize(
    "text",
    [
        *("git status && npm test", "git status; npm test", "npm test || git stash", "git log | grep x"),
        *("cd web && npm test", "cd web && python -m pytest", "cd a/b; make", "git log --format='a;b' && npm test"),
    ],
)
def test_a_setting_allows_a_chain_of_allowed_commands(text: str) -> None:
    """RUL3: only with the setting, and only if each part is allowed by itself."""
    for call in calls_with(text):
        rules = [*ALLOWED, *[(action, {"title": filters["input"]["command"]}) for action, filters in ALLOWED]]
        assert decide(rules, call).action == "ask"
        assert decide(rules, call, allows_chains=True).action == "allow", call
        assert decide([*rules, ("deny", {"kind": "*", "input": {"command": "npm *"}})], call).action in ("ask", "deny")


@pytest.mark.parametrize(
    "text",
    [
        *("git status && rm x", "git status & npm test", "(git status; npm test)", "git log > x; npm test"),
        *("git status && $X", "if git status; then npm test; fi", "git status\nnpm test", "git status # ; npm test"),
        *("cd /tmp && git status", "cd .. && git status", "cd ~ && git status", "cd - && git status", "cd && git log"),
        *("git log | python -m pytest", "git status && git -c a=b log", "git status && sudo npm test", "npm test; x=1"),
        *("git a `id` && npm test", "git status && 'npm test", "; ".join(["git status"] * 11)),
    ],
)
def test_other_chains_are_not_allowed(text: str) -> None:
    """RUL3: a part that is not allowed, no simple command, in another folder, or an interpreter that reads a pipe."""
    assert decide(ALLOWED, command(text), allows_chains=True).action != "allow"


def test_the_parts_of_a_chain_are_known() -> None:
    """RUL3: quoted operators do not divide commands."""
    parts = split_chain("git log 'a && b' | grep -c \\; && npm test")
    assert [part.text for part in parts] == ["git log 'a && b'", "grep -c \\;", "npm test"]
    assert [part.is_piped for part in parts] == [False, True, False]


# Protected calls

PROTECTED = [
    *("callslip approve @last", "/usr/bin/callslip rules add", "python -m callslip approve x", "sudo callslip deny x"),
    *("bash -c 'callslip approve x'", 'call"slip" approve x', "uvx callslip serve", "CALLSLIP_TOKEN=x git status"),
    *(
        "cat ~/.local/share/callslip/token",
        "cp -r $HOME/.local/share/callslip /tmp",
        "ls /home/me/.local/share/callslip",
    ),
    *("sqlite3 agent.db", "cat /home/dev/p/agent.db-wal", "rm ../p/agent.db", "cp policy.toml x", "tar cf x /home/me"),
    *("rm -rf ~", "cat callslip/token", "cat .claude/settings.json", "rm ~/.claude.json", "cat ~/.codex/config.toml"),
    *("vim .mcp.json", "ls .gemini", "cat opencode.json", "ls ~/.config/opencode", "cat .cla*/settings.json"),
    *("cat ~/.local/share/call*/token", "cat --file=/home/dev/p/agent.db", "sed -i s/a/b/ 'po'licy.toml"),
    *(
        "cat ~/.local/share/*/token",
        "cat ~/.l*/s*/c*/t*",
        "rm -rf /*",
        "ls /home/*",
        "cat /home/me/.[a-z]*/share/c?llslip/x",
    ),
    *(
        "cat $XDG_DATA_HOME/callslip/token",
        "cat ~me/.local/share/callslip/token",
        "cp -r $HOME/.local x",
        "cp -r ../../me x",
    ),
    *("cat ../me/.local/share/callslip/token", "cat ./callslip/token", "cat agent.db-queue", "tee agent.db.server"),
    *(
        "bash -c 'call\"\"slip approve x'",
        "bash <<E\nca''llslip approve x\nE",
        "eval call$@slip deny x",
        "sh -c 'cat .cl\\aude/a'",
    ),
    *("cat .claude/worktrees/../settings.json", "cat .ｃlaude/settings.json", "cat .cl\u200caude/settings.json"),
    *(
        "curl file:///home/me/.local/share/call%73lip/token",
        "echo x > .claude/settings.json",
        "cat <~/.codex/auth.json",
    ),
    *(
        "find . -name x -exec callslip approve {} +",
        "git -c alias.x='!callslip deny x' x",
        "cd ~/.local && cat share/*/token",
    ),
]


@pytest.mark.parametrize("text", PROTECTED)
def test_a_command_about_files_of_callslip_always_needs_a_person(text: str) -> None:
    """RUL5: also if a rule has the exact text, or allows every command. A rule may deny it."""
    for call in [*calls_with(text), command(text, title=text)]:
        rules = [
            ("allow", {"input": {"command": f"exact:{text}"}}),
            ("allow", {"kind": "*"}),
            ("allow", {"title": "*"}),
        ]
        assert decide(rules, call, project="/home/dev/p").action == "ask", call
    assert decide([("deny", {"kind": "execute"})], command(text)).action == "deny"


@pytest.mark.parametrize(
    "call",
    [
        {"tool_name": "Read", "input": {"file_path": "/home/me/.local/share/callslip/token"}},
        {"tool_name": "Write", "input": {"file_path": "/home/dev/p/.claude/settings.json", "content": "{}"}},
        {"tool_name": "edit", "locations": [{"path": "/home/dev/p/agent.db"}], "input": {}},
        {"tool_name": "edit", "locations": [{"path": ".mcp.json"}], "input": {}},
        {"tool_name": "edit", "content": [{"type": "diff", "path": "/home/me/.codex/config.toml"}], "input": {}},
        {"tool_name": "Read", "input": {"path": "agent.db"}},
        {"tool_name": "mcp__fs__move", "input": {"from": "/tmp/x", "to": "/home/me/.claude.json"}},
        {"tool_name": "apply_patch", "input": {"patch": "*** Update File: .codex/config.toml\n+x"}},
        {"tool_name": "apply_patch", "input": "*** Begin Patch\n*** Update File: .claude/settings.json\n"},
        {"tool_name": "Read", "input": {"path": "//home/me/.local/share/./callslip/token"}},
        {"tool_name": "Read", "input": {"path": "../../me/.local/share/callslip/token"}},
        {"tool_name": "Read", "input": {"uri": "file:///home/me/.local/share/call%73lip/token"}},
        {"tool_name": "Read", "input": {"path": "/HOME/ME/.LOCAL/SHARE/CALLSLIP/TOKEN"}},
        {"tool_name": "Grep", "input": {"path": "/home/me", "pattern": "callslip_"}},
        {"tool_name": "Glob", "input": {"pattern": "**/.claude/*"}},
        {"tool_name": "mcp__fs__put", "input": {"to": "sub/../.claude/settings.json"}},
        {"tool_name": "mcp__fs__put", "input": {"items": [{"n": n} for n in range(9_999)] + [{"path": "agent.db"}]}},
        {
            "tool_name": "Bash",
            "kind": "execute",
            "input": {"command": "cat token", "cwd": "/home/me/.local/share/callslip"},
        },
        {"tool_name": "Bash", "kind": "execute", "input": {"command": "cat */token", "cwd": "/home/me/.local/share"}},
        {"tool_name": "Bash", "kind": "execute", "input": {"command": "cat ../agent.db", "cwd": "web"}},
        {"tool_name": "AskUserQuestion", "input": {"questions": ["Deploy?"]}},
        {"tool_name": "ExitPlanMode", "input": {"plan": "Deploy."}},
    ],
)
def test_a_tool_call_about_files_of_callslip_always_needs_a_person(call: dict[str, Any]) -> None:
    """RUL5: by its locations, its path members and its patch."""
    decision = decide([("allow", {"tool": "*"})], call, project="/home/dev/p")
    assert decision.action == "ask" and "always needs a person" in decision.reason


def test_a_link_into_protected_places_always_needs_a_person(tmp_path: Path) -> None:
    """RUL5: for a tool and in a command, also if the link is relative to the project. Work trees of agents are free."""
    (tmp_path / ".claude" / "worktrees" / "w").mkdir(parents=True)
    (tmp_path / "data" / "callslip").mkdir(parents=True)
    (tmp_path / "docs").symlink_to(".claude")
    (tmp_path / "cache").symlink_to("data/callslip")
    places = ProtectedPlaces((str(tmp_path / "data" / "callslip"),))
    for path, is_free in (
        *(("docs/settings.json", False), ("cache/token", False), ("docs2/settings.json", True)),
        *((".claude/worktrees/w/a.py", True), (".claude/worktrees/w/.claude/settings.json", False)),
    ):
        for text in (path, str(tmp_path / path)):
            for call in ({"tool_name": "Edit", "input": {"file_path": text}}, command(f"cat {text}")):
                found = find_protected(call, permission_query(call), places, str(tmp_path))
                assert (found == "") == is_free, (call, found)


def test_other_calls_are_not_protected() -> None:
    """RUL5: ordinary commands, files of the project, and texts that only mention a name."""
    others = [
        *map(command, ORDINARY),
        {"tool_name": "Write", "input": {"file_path": "/home/dev/p/doc.md", "content": "See .claude/settings.json"}},
        {"tool_name": "Read", "input": {"file_path": "/home/dev/callslip/src/a.py"}},
        {"tool_name": "WebFetch", "input": {"url": "https://docs.claude.example/callslip"}},
        command("cd /home/dev/callslip/src"),
        command("ls /home/dev/p"),
        command("cat claude.md CLAUDE.md my.claude"),
        *map(
            command,
            ("ls *", "ls /home/dev/p/*", "ls /home/dev/p/src/*.py", "cat ../other/*.md", "cat /tmp/*", "wc -l src/*"),
        ),
        {"tool_name": "Bash", "kind": "execute", "input": {"command": "ls *", "cwd": "/home/dev/p"}},
        {"tool_name": "Grep", "input": {"path": "/home/dev/p", "pattern": "a/b"}},
        {"tool_name": "Write", "input": {"file_path": "/home/dev/p/a.js", "content": "// see .claude/x\nlet a\n"}},
        {"tool_name": "Edit", "input": {"file_path": "/home/dev/p/.claude/worktrees/w/a.py"}},
    ]
    for call in others:
        assert find_protected(call, permission_query(call), PLACES, "/home/dev/p") == "", call
