"""Say what is true about the hooks in the settings of an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from callslip.formats.json_fields import as_dict, as_list
from callslip.hooks import codex_trust, entries, jsonc, opencode
from callslip.hooks.agents import KNOWN_AGENTS, Agent, Place
from callslip.hooks.command import HookCommand
from callslip.hooks.events import GATE_MARGIN_S, WAIT_S, wanted_hooks
from callslip.hooks.settings_file import SettingsError, read_settings

MANAGED_FILES = {
    "claude-code": (
        "/Library/Application Support/ClaudeCode/managed-settings.json"
        if sys.platform == "darwin"
        else "/etc/claude-code/managed-settings.json"
    ),
    "gemini": (
        "/Library/Application Support/GeminiCli/settings.json"
        if sys.platform == "darwin"
        else "/etc/gemini-cli/settings.json"
    ),
}


class Status(NamedTuple):
    """What is true about one settings file.

    `problems` are names and texts of what keeps hooks from working, the most important first. `command` is that of the
    gate if there is one, else of any hook.
    """

    agent: Agent
    scope: str
    path: str
    is_found: bool
    problems: list[tuple[str, str]]
    command: HookCommand | None = None

    @property
    def is_installed(self) -> bool:
        """Whether there are hooks of ours."""
        return self.command is not None

    @property
    def state(self) -> str:
        """The first problem, else that the hooks are installed."""
        return self.problems[0][0] if self.problems else "installed"

    def describe(self) -> str:
        """Return the state as text."""
        if self.command is None:
            return self.problems[0][1]
        gate = f"with approvals, waits {self.command.wait_s} s" if self.command.approvals else "records only"
        return "; ".join([f"installed ({gate})", *(text for _, text in self.problems)])


def read_status(agent: Agent, place: Place, folder: str, *, is_project: bool = False, flags: str = "") -> Status:
    """Return what is true about the settings of a user or of a project, for the hook folder of a ledger.

    `flags` are the options that make another command select the same ledger.
    """
    scope, path = ("project", agent.project_path(place)) if is_project else ("user", agent.user_path(place))
    is_found = agent.is_found(place)
    try:
        file = read_settings(path)
        if agent.name == "opencode":
            commands = [command] if (command := opencode.find_command(file.text)) else []
            again = _install_command(agent, commands, is_project, flags)
            problems = list(_problems_of_commands(commands, folder, again))
            if commands and not opencode.is_current(file.text):
                problems.append(("incomplete", f"the plugin is that of another version: run `{again}`"))
        else:
            text = file.text
            root = entries.parse_settings(agent, path, text.strip() and text, has_bom=file.has_bom)
            found = entries.find_entries(root)
            commands = [entry.command for entry in found]
            again = _install_command(agent, commands, is_project, flags)
            problems = list(_problems_of_commands(commands, folder, again))
            if found:
                problems += _problems_of_entries(agent, found, again)
                problems += _problems_of_settings(agent, place, path, root, found)
    except SettingsError as error:
        return Status(agent, scope, path, is_found, [("unreadable", str(error))])
    if not commands:
        state = ("not-installed", "not installed") if is_found else ("not-found", f"{agent.title} is not found")
        return Status(agent, scope, path, is_found, [state])
    if not is_found:
        problems.append(("not-found", f"{agent.title} is not found"))
    return Status(agent, scope, path, is_found, problems, _main_command(commands))


def _main_command(commands: list[HookCommand]) -> HookCommand:
    return next((command for command in commands if command.approvals), commands[0])


def _install_command(agent: Agent, commands: list[HookCommand], is_project: bool, flags: str) -> str:
    """Return the command that installs the hooks again as they are."""
    options = " --project" if is_project else ""
    if commands and (command := _main_command(commands)).approvals:
        options += " --approvals" if command.wait_s == WAIT_S else f" --approvals --wait-s {command.wait_s}"
    return f"callslip hook install {agent.name}{options}{flags}"


def _problems_of_commands(commands: list[HookCommand], folder: str, again: str) -> Iterator[tuple[str, str]]:
    for python in dict.fromkeys(command.python for command in commands):
        if not os.access(python, os.X_OK):
            yield "broken", f"{python} is gone, so nothing is recorded: run `{again}`"
    for script in dict.fromkeys(command.script for command in commands):
        if not os.access(script, os.R_OK):
            yield "broken", f"{script} is gone, so nothing is recorded: run `{again}`"
    for other in dict.fromkeys(command.folder for command in commands):
        if other != folder:
            yield "other-ledger", f"for another ledger (its hook folder is {other})"


def _problems_of_entries(agent: Agent, found: list[entries.Entry], again: str) -> Iterator[tuple[str, str]]:
    approvals = any(entry.command.approvals for entry in found)
    events = {entry.event for entry in found}
    missing = [hook.event for hook in wanted_hooks(agent.name, approvals=approvals) if hook.event not in events]
    if missing:
        yield "incomplete", f"not for {', '.join(missing)}: run `{again}`"
    for entry in found:
        timeout = entry.fields.get("timeout")
        enough = (entry.command.wait_s + GATE_MARGIN_S // 2) * agent.timeout_units_per_s
        if entry.command.approvals and not (isinstance(timeout, int | float) and timeout >= enough):
            yield "incomplete", f"the timeout of {entry.event} is shorter than our wait: run `{again}`"


def _problems_of_settings(
    agent: Agent, place: Place, path: str, root: jsonc.Node, found: list[entries.Entry]
) -> Iterator[tuple[str, str]]:
    if agent.name == "claude-code":
        yield from _claude_problems(place)
    elif agent.name == "gemini":
        yield from _gemini_problems(place, found)
    else:
        yield from _codex_problems(agent, place, path, root, found)


def _read_json(path: str) -> dict[str, Any]:
    """Return another settings file of an agent, {} if it cannot be read."""
    try:
        text = read_settings(path).text
        return as_dict(jsonc.parse(text).value) if text.strip() else {}
    except (SettingsError, jsonc.JsonTextError):
        return {}


def _claude_problems(place: Place) -> Iterator[tuple[str, str]]:
    folder = KNOWN_AGENTS["claude-code"].config_folder(place)
    own = [os.path.join(place.project, ".claude", name) for name in ("settings.json", "settings.local.json")]
    for path in (os.path.join(folder, "settings.json"), *own, MANAGED_FILES["claude-code"]):
        if _read_json(path).get("disableAllHooks") is True:
            yield "disabled", f"switched off by disableAllHooks in {path}"
    if _read_json(MANAGED_FILES["claude-code"]).get("allowManagedHooksOnly") is True:
        yield "disabled", f"switched off by allowManagedHooksOnly in {MANAGED_FILES['claude-code']}"


def _gemini_problems(place: Place, found: list[entries.Entry]) -> Iterator[tuple[str, str]]:
    folder = KNOWN_AGENTS["gemini"].config_folder(place)
    own = os.path.join(place.project, ".gemini", "settings.json")
    system = place.environ.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH") or MANAGED_FILES["gemini"]
    switch: tuple[bool, str] = (True, "")
    names = {name for entry in found for name in (entry.fields.get("name"), entry.fields.get("command"))}
    for path in (os.path.join(folder, "settings.json"), own, system):
        config = as_dict(_read_json(path).get("hooksConfig"))
        enabled = config.get("enabled")
        if isinstance(enabled, bool):
            switch = (enabled, path)
        if any(name in names for name in as_list(config.get("disabled")) if isinstance(name, str)):
            yield "disabled", f"switched off by hooksConfig.disabled in {path}"
    if not switch[0]:
        yield "disabled", f"switched off by hooksConfig.enabled in {switch[1]}"


def _codex_problems(
    agent: Agent, place: Place, path: str, root: jsonc.Node, found: list[entries.Entry]
) -> Iterator[tuple[str, str]]:
    folder = agent.config_folder(place)
    try:
        config = codex_trust.read_config(folder)
    except SettingsError as error:
        yield "unreadable", str(error)
        return
    if codex_trust.are_hooks_disabled(config):
        yield "disabled", f"switched off by features.hooks in {os.path.join(folder, codex_trust.CONFIG_FILE)}"
    trust: set[str] = set()
    for entry in found:
        group = jsonc.find(root, entry.path[:3])
        trust.add(codex_trust.trust_of(entry, group.value.get("matcher") if group else None, path, config))
    if "disabled" in trust:
        yield "disabled", "switched off with /hooks in Codex"
    if trust & {"untrusted", "modified"}:
        yield "not-trusted", "not trusted: run /hooks in Codex"
