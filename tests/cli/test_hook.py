"""`callslip hook`: what is shown, asked, written and reported."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callslip.cli import exit_status
from callslip.hooks import codex_trust, command, entries, jsonc
from callslip.hooks.agents import KNOWN_AGENTS
from callslip.hooks.server import try_lock
from tests.support.cli_process import CommandResult, run_in_process

AGENTS = tuple(KNOWN_AGENTS)
SETTINGS = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "opencode": ".config/opencode/plugins/callslip.js",
}
IN_PROJECT = {
    "claude-code": ".claude/settings.local.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "opencode": ".opencode/plugins/callslip.js",
}
MOVED = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CALLSLIP_DB")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without agents, a project, and a script that exists."""
    folder, project = tmp_path / "home", tmp_path / "project"
    folder.mkdir()
    project.mkdir()
    monkeypatch.chdir(project)
    for name in (*MOVED, "GEMINI_CLI_SYSTEM_SETTINGS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    script = tmp_path / "hooks" / "script.py"
    script.parent.mkdir()
    script.write_text("")
    monkeypatch.setattr(command, "SCRIPT", str(script))
    return folder


def hook(*arguments: str) -> CommandResult:
    return run_in_process("hook", *arguments)


def read_status(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in hook("status", *arguments, "--json").stdout.splitlines()]


def state(agent: str) -> str:
    return read_status(agent)[0]["state"]


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> str:
    return request.param


def test_an_installation_is_shown_and_kept_as_a_copy(home: Path, agent: str) -> None:
    """[HI1] A diff on stdout, the file with entries, and a copy of the old file that is named."""
    path = home / SETTINGS[agent]
    path.parent.mkdir(parents=True)
    before = "// mine\n" if agent == "opencode" else '{\n  "description": "mine"\n}\n'
    path.write_text(before)
    done = hook("install", agent, "--yes")
    assert done.returncode == exit_status.OK
    assert done.stdout.startswith(f"--- {path}\n+++ {path}\n@@ ")
    assert "+" in done.stdout and "script.py" in done.stdout
    copy = Path(done.stderr.splitlines()[0].rpartition("the old file is ")[2])
    assert copy.read_text() == before and stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert "mine" in path.read_text() and "script.py" in path.read_text()
    assert hook("install", agent, "--yes").stdout == ""
    assert hook("uninstall", agent, "--yes").returncode == exit_status.OK
    assert path.read_text() == before
    assert f"{agent}: not installed in {path}" in hook("uninstall", agent, "--yes").stderr


def test_a_file_that_was_created_is_removed_again(home: Path, agent: str) -> None:
    """[HI3] Without a file before, there is none after."""
    assert hook("install", agent, "--approvals", "--yes").returncode == exit_status.OK
    assert (home / SETTINGS[agent]).exists()
    assert hook("uninstall", agent, "--yes").returncode == exit_status.OK
    assert not (home / SETTINGS[agent]).exists()


@pytest.mark.parametrize(
    "before", ["", "\n", "{}", "{ }\n", '{"hooks": {\n}}', '{"hooks":{"Stop":[ ],"AfterTool":[]}}']
)
@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini"])
def test_empty_objects_and_lists_are_left_as_they_were(home: Path, agent: str, before: str) -> None:
    """[HI3] Also after a second installation with other options."""
    path = home / SETTINGS[agent]
    path.parent.mkdir()
    path.write_text(before)
    assert hook("install", agent, "--yes").returncode == exit_status.OK
    assert hook("install", agent, "--approvals", "--yes").returncode == exit_status.OK
    assert hook("uninstall", agent, "--yes").returncode == exit_status.OK
    assert path.read_text() == before


EDITS = {
    "claude-code": ('{\r\n  "model": "a"\r\n}\r\n', lambda text: text.replace('"a"', '"b",\r\n\t"c":   [1,2]')),
    "codex": ('{ "description": "a",\n  "hooks": {} }', lambda text: text.replace('"a"', '"b" ')),
    "gemini": (
        '// top\n{\n  "ui": {}, // ui\n  /* end */ "x": 1 // one\n}',
        lambda text: text.replace("// ui", "// changed").replace('"x": 1', '"x": 2, // two\n  "y": 3'),
    ),
    "opencode": (
        "// mine\nexport const Mine = async () => ({});\n",
        lambda text: text.replace("mine", "mine too") + "//\n",
    ),
}


def test_edits_by_hand_survive(home: Path, agent: str) -> None:
    """[HI3] Install, edit, install again, uninstall: the file is the edited one, byte for byte."""
    before, edit = EDITS[agent]
    path = home / SETTINGS[agent]
    path.parent.mkdir(parents=True)
    path.write_bytes(before.encode())
    assert hook("install", agent, "--yes").returncode == exit_status.OK
    path.write_bytes(edit(path.read_bytes().decode()).encode())
    assert hook("install", agent, "--approvals", "--yes").returncode == exit_status.OK
    assert hook("uninstall", agent, "--yes").returncode == exit_status.OK
    assert path.read_bytes().decode() == edit(before)


def test_nothing_is_written_without_a_confirmation(home: Path, agent: str) -> None:
    """[HI1] Without a terminal `--yes` is required, and a dry run shows the same diff."""
    refused = hook("install", agent)
    assert refused.returncode == exit_status.USAGE
    assert "no terminal to prompt on; pass --yes, or --dry-run" in refused.stderr
    dry = hook("install", agent, "--dry-run")
    assert (dry.returncode, dry.stdout) == (exit_status.OK, refused.stdout)
    assert not (home / SETTINGS[agent]).exists() and not (home / ".local").exists()


def test_all_agents_that_are_found_are_installed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent is found by its folder or its program; without any, agents must be named."""
    assert "found none of claude-code, codex, gemini, opencode" in hook("install", "--yes").stderr
    (home / ".gemini").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "codex").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = hook("install", "--yes")
    assert "Codex runs new or changed hooks only after you trust them: run /hooks in Codex" in done.stderr
    assert [item["agent"] for item in read_status() if item["isInstalled"]] == ["codex", "gemini"]
    assert [item["state"] for item in read_status() if not item["isInstalled"]] == ["not-found", "not-found"]


def test_one_bad_file_does_not_stop_the_others(home: Path) -> None:
    """The problem is reported, the file is not changed, and the exit status is 1."""
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text("{oops")
    done = hook("install", "claude-code", "gemini", "--yes")
    assert done.returncode == exit_status.FAILED
    assert "line 1, column 2: expected a key in quotes: Claude Code does not read this file" in done.stderr
    assert (home / ".claude" / "settings.json").read_text() == "{oops"
    assert state("gemini") == "installed" and state("claude-code") == "unreadable"
    assert hook("status").returncode == exit_status.FAILED


def test_a_project_has_its_own_settings(home: Path, tmp_path: Path, agent: str) -> None:
    """`--project` uses the files of the project in this folder, which status lists, too."""
    assert hook("install", agent, "--project", "--yes").returncode == exit_status.OK
    path = tmp_path / "project" / IN_PROJECT[agent]
    assert path.exists() and not (home / SETTINGS[agent]).exists()
    found = read_status(agent)
    assert [(item["scope"], item["isInstalled"]) for item in found] == [("user", False), ("project", True)]
    assert found[1]["path"] == str(path)
    assert hook("uninstall", agent, "--project", "--yes").returncode == exit_status.OK
    assert not path.exists()


def test_status_tells_that_hooks_are_installed_twice(agent: str) -> None:
    """[HI6] Hooks of the user and of the project would both run."""
    for options in ([], ["--project"]):
        hook("install", agent, "--yes", *options)
    assert "twice" in [problem["state"] for problem in read_status(agent)[1]["problems"]]
    assert hook("status", agent).returncode == exit_status.FAILED


def test_moved_settings_are_found(tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that move an agent's folder are respected."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "moved"))
    assert hook("install", agent, "--yes").returncode == exit_status.OK
    found = [path.name for path in (tmp_path / "moved").rglob("*") if path.is_file()]
    assert found == [os.path.basename(SETTINGS[agent])]


def test_the_folder_of_the_ledger_is_private(home: Path) -> None:
    """The folder that the command names exists, and only its owner can read it."""
    hook("install", "gemini", "--yes")
    folder = Path(read_status("gemini")[0]["folder"])
    assert folder.parent == home / ".local" / "share" / "callslip" / "hooks"
    for path in (folder, folder / "spool"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_status_tells_another_ledger(tmp_path: Path, agent: str) -> None:
    """[HI6] Hooks for another ledger are said to be that, and an installation moves them."""
    hook("install", agent, "--yes", "--db", str(tmp_path / "other.db"))
    assert "other-ledger" in [problem["state"] for problem in read_status(agent)[0]["problems"]]
    assert "for another ledger" in hook("status", agent).stdout
    hook("install", agent, "--yes")
    assert "other-ledger" not in [problem["state"] for problem in read_status(agent)[0]["problems"]]


def test_status_tells_what_is_gone(tmp_path: Path, agent: str) -> None:
    """[HI6] A script or a Python that is gone is named."""
    hook("install", agent, "--yes")
    (tmp_path / "hooks" / "script.py").unlink()
    assert state(agent) == "broken"
    assert f"{tmp_path / 'hooks' / 'script.py'} is gone, so nothing is recorded" in hook("status", agent).stdout
    assert hook("status", agent).returncode == exit_status.FAILED


def test_status_tells_missing_events(home: Path) -> None:
    """[HI6] An entry that was removed by hand is named, and installed again."""
    hook("install", "claude-code", "--yes")
    path = home / SETTINGS["claude-code"]
    path.write_text(jsonc.remove(path.read_text(), ("hooks", "Stop")))
    assert "not for Stop: run `callslip hook install claude-code`" in hook("status", "claude-code").stdout
    hook("install", "claude-code", "--yes")
    assert state("claude-code") == "installed"


def test_status_tells_how_to_install_them_as_they_are(tmp_path: Path, agent: str) -> None:
    """[HI6] With the options that they were installed with: what is run as advised must not drop the approvals."""
    db = str(tmp_path / "other.db")
    hook("install", agent, "--approvals", "--wait-s", "45", "--project", "--yes", "--db", db)
    script = tmp_path / "hooks" / "script.py"
    script.unlink()
    advice = f"run `callslip hook install {agent} --project --approvals --wait-s 45 --db {db}`"
    assert advice in hook("status", agent, "--db", db).stdout
    script.write_text("")
    hook("install", agent, "--approvals", "--project", "--yes")
    script.unlink()
    assert f"run `callslip hook install {agent} --project --approvals`" in hook("status", agent).stdout


def test_status_tells_a_plugin_of_another_version(home: Path) -> None:
    """[HI6] It may do less; an installation replaces it."""
    hook("install", "opencode", "--approvals", "--yes")
    path = home / SETTINGS["opencode"]
    path.write_text(path.read_text().replace("RECORD_TIMEOUT_MS = 10_000", "RECORD_TIMEOUT_MS = 9_000", 1))
    assert "the plugin is that of another version: run `callslip hook install opencode --approvals`" in (
        hook("status", "opencode").stdout
    )
    hook("install", "opencode", "--approvals", "--yes")
    assert state("opencode") == "installed"


def test_status_tells_what_waits_for_a_server(home: Path) -> None:
    """[HI8] Stored messages and approvals need a running Callslip; without a ledger each command says so."""
    hook("install", "gemini", "--approvals", "--yes")
    stays = "no server runs, so requests for approval are only in the terminals: run `callslip up`"
    assert stays in hook("status").stdout and "stored message" not in hook("status").stdout
    assert (read_status("gemini")[0]["isServed"], read_status("gemini")[0]["waiting"]) == (False, 0)
    folder = Path(read_status("gemini")[0]["folder"])
    for number in range(2):
        (folder / "spool" / f"{10**18 + number}-1-abcdef01.json").write_text("{}")
    ledger = home / ".local" / "share" / "callslip" / "ledger.db"
    waiting = "2 stored messages of hooks not imported yet"
    assert f"{waiting}, and {ledger} does not exist yet: run `callslip up`" in hook("status", "codex").stdout
    assert read_status("gemini")[0]["waiting"] == 2
    for arguments in (["ls"], ["show", "@last"]):
        done = run_in_process(*arguments)
        assert done.returncode == exit_status.NOT_FOUND
        assert f"no ledger at {ledger}; {waiting}: run `callslip up`" in done.stderr
    findings = json.loads(run_in_process("doctor", "--json").stdout)["findings"]
    assert findings[1]["what"] == waiting and findings[1]["advice"] == "run `callslip up`, which creates the ledger"
    assert not (folder / "lock").exists()
    with try_lock(folder):
        assert stays not in hook("status").stdout and waiting not in hook("status").stdout
        assert read_status("gemini")[0]["isServed"] is True


def test_settings_stay_if_no_copy_can_be_kept(home: Path, agent: str) -> None:
    """[HI1] What cannot be kept is not changed, and the message has the reason."""
    path = home / SETTINGS[agent]
    path.parent.mkdir(parents=True)
    path.write_text("" if agent == "opencode" else "{}")
    hook("install", agent, "--yes")
    installed = path.read_text()
    backups = home / ".local" / "share" / "callslip" / "hooks" / "backups"
    shutil.rmtree(backups)
    backups.write_text("")
    for arguments in (["uninstall"], ["install", "--approvals"]):
        done = hook(*arguments, agent, "--yes")
        assert done.returncode == exit_status.FAILED
        assert f"{agent}: {backups}: cannot be written (File exists); nothing was changed" in done.stderr
    assert path.read_text() == installed


def test_status_tells_approvals(agent: str) -> None:
    """[HI6] Whether the hooks answer requests, and how long they wait."""
    hook("install", agent, "--yes")
    assert "installed (records only)" in hook("status", agent).stdout
    hook("install", agent, "--approvals", "--wait-s", "45", "--yes")
    assert "installed (with approvals, waits 45 s)" in hook("status", agent).stdout
    assert (read_status(agent)[0]["approvals"], read_status(agent)[0]["waitS"]) == (True, 45)


@pytest.mark.parametrize(
    ("agent", "file", "text", "reason"),
    [
        ("claude-code", "home/.claude/settings.json", '{"disableAllHooks": true}', "disableAllHooks"),
        ("claude-code", "project/.claude/settings.json", '{"disableAllHooks": true}', "disableAllHooks"),
        ("gemini", "home/.gemini/settings.json", '{"hooksConfig": {"enabled": false}}', "hooksConfig.enabled"),
        ("gemini", "project/.gemini/settings.json", '{"hooksConfig": {"enabled": false}}', "hooksConfig.enabled"),
        ("gemini", "home/.gemini/settings.json", '{"hooksConfig": {"disabled": ["callslip"]}}', "hooksConfig.disabled"),
        ("codex", "home/.codex/config.toml", "[features]\nhooks = false", "features.hooks"),
    ],
)
def test_status_tells_that_the_agent_switched_hooks_off(
    tmp_path: Path, agent: str, file: str, text: str, reason: str
) -> None:
    """[HI6] Settings of the agent that keep hooks from running are named with their file."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    hook("install", agent, "--yes")
    assert state(agent) == "disabled"
    assert f"switched off by {reason} in {path}" in hook("status", agent).stdout


def test_status_tells_whether_codex_trusts_the_hooks(home: Path) -> None:
    """[HI6] Trusted with the hash of what is installed, else not; nothing here writes a hash."""
    hook("install", "codex", "--yes")
    path, config = home / SETTINGS["codex"], home / ".codex" / "config.toml"
    assert not config.exists()
    assert state("codex") == "not-trusted"
    assert "installed (records only); not trusted: run /hooks in Codex" in hook("status", "codex").stdout
    found = entries.find_entries(jsonc.parse(path.read_text()))
    hashes = {codex_trust.hook_keys(entry, str(path))[0]: codex_trust.hook_hash(entry, None) for entry in found}
    config.write_text("".join(f'[hooks.state."{key}"]\ntrusted_hash = "{value}"\n' for key, value in hashes.items()))
    before = config.read_bytes()
    assert state("codex") == "installed"
    hook("install", "codex", "--approvals", "--yes")
    assert state("codex") == "not-trusted"
    hook("uninstall", "codex", "--yes")
    assert config.read_bytes() == before
    config.write_text(config.read_text() + "x =")
    hook("install", "codex", "--yes")
    assert state("codex") == "unreadable"


def test_results_as_json(home: Path) -> None:
    """[HI1] Scripts get one object for each agent: what happened, the diff and the copy."""
    first, second = (json.loads(hook("install", "gemini", "--yes", "--json").stdout) for _ in range(2))
    assert (first["result"], first["backup"], first["path"]) == ("changed", None, str(home / SETTINGS["gemini"]))
    assert first["diff"].startswith("--- /dev/null\n") and (second["result"], second["diff"]) == ("unchanged", "")
    planned = json.loads(hook("uninstall", "gemini", "--dry-run", "--json").stdout)
    assert planned["result"] == "planned" and planned["diff"].startswith("--- ")


def test_a_ledger_in_memory_is_refused() -> None:
    """It would end with the command."""
    done = hook("install", "gemini", "--yes", "--db", ":memory:")
    assert done.returncode == exit_status.USAGE and "a ledger in memory ends with its process" in done.stderr


def test_a_terminal_is_asked(home: Path) -> None:
    """[HI1] On a terminal the change is confirmed; without a yes nothing is written."""
    for answer, is_written in (("n", False), ("y", True)):
        leader, follower = os.openpty()
        arguments = [sys.executable, "-m", "callslip", "hook", "install", "gemini"]
        process = subprocess.Popen(arguments, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        os.write(leader, f"{answer}\n".encode())
        _, errors = process.communicate(timeout=60)
        os.close(leader)
        os.close(follower)
        assert f"Change {home / SETTINGS['gemini']}?" in errors
        assert (home / SETTINGS["gemini"]).exists() == is_written
        assert process.returncode == (exit_status.OK if is_written else exit_status.FAILED)
