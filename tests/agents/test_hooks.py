"""Real agents read the settings that `callslip hook install` has changed as it says."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from callslip.hooks import codex_trust, entries, jsonc
from callslip.hooks.agents import KNOWN_AGENTS
from callslip.hooks.events import HOOKS
from tests.support.hooked_agents import SCRIPT, Hooks
from tests.support.real_agents import ClaudeCode, Codex, GeminiCli, RealAgent, wait_until
from tests.support.scripted_models import Reply

pytestmark = pytest.mark.agents

PROMPT = "Look around [[main]]"
OPENCODE_EVENTS = {"chat.message", "tool.execute.before", "tool.execute.after", "session.idle"}
WITHOUT_FAILURE = {"PostToolUseFailure"}


@pytest.fixture
def hooks(agent: RealAgent, tmp_path: Path) -> Hooks:
    return Hooks(str(tmp_path / "ledger.db"), agent.home)


def run_one_call(agent: RealAgent) -> None:
    """Let an agent run a shell command."""
    agent.models.scripts["main"] = [Reply("Look.", calls=(agent.shell("echo one"),)), Reply("Done.")]
    agent.run(PROMPT)


def test_the_agent_runs_the_installed_hooks(agent: RealAgent, hooks: Hooks) -> None:
    """[HI7] Each event of a run with one call is received once, and after a removal none."""
    hooks.install(agent)
    run_one_call(agent)
    messages = hooks.messages()
    events = [message["hook_event_name"] for message in messages]
    if agent.name == "opencode":
        assert set(events) >= OPENCODE_EVENTS
        (call,) = [message for message in messages if message["hook_event_name"] == "tool.execute.after"]
        assert call["properties"]["args"]["command"] == "echo one" and "one" in call["properties"]["output"]
        assert call["session_id"] and call["properties"]["callID"]
    else:
        wanted = {item.event for item in HOOKS[agent.name] if item.records} - WITHOUT_FAILURE
        assert sorted(events) == sorted(wanted)
    hooks.uninstall(agent)
    run_one_call(agent)
    assert hooks.messages() == messages


def test_the_agent_works_if_callslip_is_gone(agent: RealAgent, hooks: Hooks) -> None:
    """[HI5] Without the script the run is as without hooks."""
    hooks.approvals = True
    path = hooks.install(agent)
    path.write_text(path.read_text().replace(SCRIPT, f"/gone{SCRIPT}"))
    assert hooks.status(agent)["state"] == "broken"
    run_one_call(agent)
    assert hooks.spooled() == []
    assert len(agent.models.truth("main").results) == 1


@pytest.mark.parametrize("agent", [ClaudeCode, Codex, GeminiCli], indirect=True, ids=lambda agent: agent.name)
@pytest.mark.parametrize(("kind", "change"), [("comment", "// c\n{"), ("mark", "\ufeff{")])
def test_the_agent_reads_what_is_not_refused(agent: RealAgent, hooks: Hooks, kind: str, change: str) -> None:
    """[HI7] Comments and a byte order mark are refused exactly where the agent does not read the file with them."""
    path = hooks.install(agent)
    path.write_text(path.read_text().replace("{", change, 1))
    known = KNOWN_AGENTS[agent.name]
    is_read = known.has_comments if kind == "comment" else known.has_bom
    with contextlib.suppress(AssertionError):  # Gemini CLI ends with an error.
        run_one_call(agent)
    assert bool(hooks.spooled()) == is_read
    assert (hooks.run("hook", "install", agent.name, "--yes").returncode == 0) == is_read


@pytest.mark.parametrize("agent", [Codex], indirect=True, ids=["codex"])
def test_the_trust_of_codex_is_read_as_codex_reads_it(agent: RealAgent, hooks: Hooks) -> None:
    """[HI6] The names and hashes of hooks are those that Codex itself lists."""
    hooks.approvals = True
    path = hooks.install(agent)
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
    assert hooks.status(agent)["state"] == "installed"


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
