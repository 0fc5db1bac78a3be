"""Real agents run the hooks that `callslip hook install` writes into their settings."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callslip.cli import exit_status
from callslip.hooks import codex_trust, command, entries, jsonc
from callslip.hooks.agents import KNOWN_AGENTS
from callslip.hooks.events import HOOKS
from tests.support.cli_process import CommandResult, run_in_process
from tests.support.real_agents import AGENTS, ClaudeCode, Codex, GeminiCli, RealAgent, Run, wait_until
from tests.support.scripted_models import Reply, ScriptedModels

pytestmark = pytest.mark.agents

PROMPT = "Look around [[main]]"
RECORDING_SCRIPT = """\
import os, sys, time
folder = os.path.join(sys.argv[2], "spool")
with open(os.path.join(folder, f"{time.time_ns()}-{os.getpid()}.json"), "w") as file:
    file.write(sys.stdin.read())
"""
OPENCODE_EVENTS = {"chat.message", "tool.execute.before", "tool.execute.after", "session.idle", "message.part.updated"}
WITHOUT_FAILURE = {"PostToolUseFailure"}


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels({}).running() as server:
        yield server


@pytest.fixture(params=AGENTS, ids=[agent.name for agent in AGENTS])
def agent(request: pytest.FixtureRequest, models: ScriptedModels, tmp_path: Path) -> Iterator[RealAgent]:
    with contextlib.closing(request.param(tmp_path / "agent", models)) as started:
        yield started


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script of the hooks, in a folder of the test, so that it can be removed."""
    copy = tmp_path / "package" / "hooks" / "script.py"
    copy.parent.mkdir(parents=True)
    installed = Path(command.SCRIPT)
    copy.write_text(installed.read_text() if installed.exists() else RECORDING_SCRIPT)
    monkeypatch.setattr(command, "SCRIPT", str(copy))
    return copy


def hook(agent: RealAgent, *arguments: str) -> CommandResult:
    """Run `callslip hook` with the home of an agent."""
    names = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    env: dict[str, Any] = {"HOME": str(agent.home), **dict.fromkeys(names)}
    return run_in_process("hook", *arguments, env=env)


def settings_path(agent: RealAgent) -> Path:
    return Path(json.loads(hook(agent, "status", agent.name, "--json").stdout.splitlines()[0])["path"])


def payloads(agent: RealAgent) -> list[dict[str, Any]]:
    """Return what the hooks received, oldest first."""
    found = json.loads(hook(agent, "status", agent.name, "--json").stdout.splitlines()[0])
    messages = [json.loads(path.read_text()) for path in sorted(Path(found["folder"], "spool").iterdir())]
    return [message.get("message", message) for message in messages]


def run_one_call(agent: RealAgent) -> None:
    """Let an agent run a shell command."""
    agent.models.scripts["main"] = [Reply("Look.", calls=(agent.shell("echo one"),)), Reply("Done.")]
    if not isinstance(agent, Codex):
        agent.run(PROMPT)
        return
    # Its hooks need a person who trusts them; automation can only bypass that.
    options = ["--dangerously-bypass-hook-trust", *agent.arguments(PROMPT, "", fork=False)]
    process = subprocess.Popen(
        [*agent.start_of_command(), *options],
        cwd=agent.project,
        env=agent.whole_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    agent.runs.append(Run(process))
    agent.runs[-1].succeed()


def test_the_agent_runs_the_installed_hooks(agent: RealAgent) -> None:
    """[HI7] Each event of a run with one call is received once, and after a removal none."""
    assert hook(agent, "install", agent.name, "--yes").returncode == exit_status.OK
    run_one_call(agent)
    events = [payload["hook_event_name"] for payload in payloads(agent)]
    if agent.name == "opencode":
        assert set(events) >= OPENCODE_EVENTS
        calls = [payload for payload in payloads(agent) if payload["hook_event_name"] == "tool.execute.after"]
        assert [payload["properties"]["args"]["command"] for payload in calls] == ["echo one"]
        assert calls[0]["session_id"] and calls[0]["properties"]["callID"] and "one" in calls[0]["properties"]["output"]
    else:
        wanted = {item.event for item in HOOKS[agent.name] if item.records} - WITHOUT_FAILURE
        assert sorted(events) == sorted(wanted)
    count = len(events)
    folder = json.loads(hook(agent, "status", agent.name, "--json").stdout.splitlines()[0])["folder"]
    assert hook(agent, "uninstall", agent.name, "--yes").returncode == exit_status.OK
    run_one_call(agent)
    assert len(list(Path(folder, "spool").iterdir())) == count


def test_the_agent_works_if_callslip_is_gone(agent: RealAgent, script: Path) -> None:
    """[HI5] Without the script the run is as without hooks."""
    assert hook(agent, "install", agent.name, "--approvals", "--yes").returncode == exit_status.OK
    script.unlink()
    run_one_call(agent)
    assert payloads(agent) == []
    assert len(agent.models.truth("main").results) == 1


@pytest.mark.parametrize("agent", [ClaudeCode, Codex, GeminiCli], indirect=True, ids=lambda agent: agent.name)
@pytest.mark.parametrize(("kind", "change"), [("comment", "// c\n{"), ("mark", "\ufeff{")])
def test_the_agent_reads_what_is_not_refused(agent: RealAgent, kind: str, change: str) -> None:
    """[HI7] Comments and a byte order mark are refused exactly where the agent does not read the file with them."""
    hook(agent, "install", agent.name, "--yes")
    path = settings_path(agent)
    path.write_text(path.read_text().replace("{", change, 1))
    known = KNOWN_AGENTS[agent.name]
    is_read = known.has_comments if kind == "comment" else known.has_bom
    folder = agent.home / ".local" / "share" / "callslip" / "hooks"
    (spool,) = folder.glob("*/spool")
    with contextlib.suppress(AssertionError):  # Gemini CLI ends with an error.
        run_one_call(agent)
    assert bool(list(spool.iterdir())) == is_read
    assert (hook(agent, "install", agent.name, "--yes").returncode == exit_status.OK) == is_read


@pytest.mark.parametrize("agent", [Codex], indirect=True, ids=["codex"])
def test_the_trust_of_codex_is_read_as_codex_reads_it(agent: RealAgent) -> None:
    """[HI6] The names and hashes of hooks are those that Codex itself lists."""
    hook(agent, "install", "codex", "--approvals", "--yes")
    path = settings_path(agent)
    path.write_text(jsonc.set_member(path.read_text(), ("hooks", "PreToolUse", 0), "matcher", "^Bash$"))
    root = jsonc.parse(path.read_text())
    groups = root.value["hooks"]
    expected = {
        codex_trust.hook_keys(entry, str(path))[0]: codex_trust.hook_hash(
            entry, groups[entry.event][entry.group].get("matcher")
        )
        for entry in entries.find_entries(root)
    }
    assert {hook["key"]: hook["currentHash"] for hook in listed_hooks(agent)} == expected
    assert {hook["trustStatus"] for hook in listed_hooks(agent)} == {"untrusted"}
    states = "".join(f'[hooks.state."{key}"]\ntrusted_hash = "{value}"\n' for key, value in expected.items())
    with (agent.home / ".codex" / "config.toml").open("a") as config:
        config.write(states)
    assert {hook["trustStatus"] for hook in listed_hooks(agent)} == {"trusted"}
    found = json.loads(hook(agent, "status", "codex", "--json").stdout.splitlines()[0])
    assert found["state"] == "installed"


def listed_hooks(agent: RealAgent) -> list[dict[str, Any]]:
    """Return the hooks as Codex lists them."""
    info = {"clientInfo": {"name": "test", "title": "Test", "version": "1"}}
    requests = [{"id": 1, "method": "initialize", "params": info}, {"method": "initialized"}]
    requests.append({"id": 2, "method": "hooks/list", "params": {"cwds": [str(agent.project)]}})
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(
        [agent.start_of_command()[0], "app-server"],
        cwd=agent.project,
        env=agent.whole_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        output = process.stdout
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, output)))
        reader.start()
        try:
            process.stdin.write("".join(json.dumps(request) + "\n" for request in requests))
            process.stdin.flush()
            wait_until(lambda: [line for line in lines if line.get("id") == 2], "a list of hooks")
        finally:
            process.kill()
            reader.join(30)
    answer = next(line for line in lines if line.get("id") == 2)
    return [item for project in answer["result"]["data"] for item in project["hooks"]]
