"""Where each agent reads its hooks from, and how strictly it reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from callslip.hooks.events import AGENTS


class Place(NamedTuple):
    """The environment that decides where settings are: variables, the user's home, and the folder of the project."""

    environ: Mapping[str, str]
    home: str
    project: str


class Agent(NamedTuple):
    """One agent.

    `title` is its name for people and `program` that of its command. `has_comments` and `has_bom` say what it accepts
    in the file with its hooks: otherwise it ignores the whole file, or does not start. None accepts trailing commas.
    """

    name: str
    title: str
    program: str
    has_comments: bool = False
    has_bom: bool = False
    timeout_units_per_s: int = 1

    def config_folder(self, place: Place) -> str:
        """Return the folder with the user's settings."""
        environ, home = place.environ, place.home
        if self.name == "claude-code":
            return environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
        if self.name == "codex":
            return environ.get("CODEX_HOME") or os.path.join(home, ".codex")
        if self.name == "gemini":
            return os.path.join(environ.get("GEMINI_CLI_HOME") or home, ".gemini")
        return os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "opencode")

    def user_path(self, place: Place) -> str:
        """Return the file with the hooks of a user."""
        return os.path.join(self.config_folder(place), *_FILES[self.name][0])

    def project_path(self, place: Place) -> str:
        """Return the file with the hooks of one project."""
        return os.path.join(place.project, *_FILES[self.name][1])

    def is_found(self, place: Place) -> bool:
        """Return whether the agent is installed or was used."""
        search_path = place.environ.get("PATH")
        return shutil.which(self.program, path=search_path) is not None or os.path.isdir(self.config_folder(place))


# The file of the user in the configuration folder, and that of a project in its folder. The paths in a hook are those
# of this machine, so for Claude Code it is the file that is kept out of version control.
_FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "claude-code": (("settings.json",), (".claude", "settings.local.json")),
    "codex": (("hooks.json",), (".codex", "hooks.json")),
    "gemini": (("settings.json",), (".gemini", "settings.json")),
    "opencode": (("plugins", "callslip.js"), (".opencode", "plugins", "callslip.js")),
}

KNOWN_AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("claude-code", "Claude Code", "claude", has_bom=True),
        Agent("codex", "Codex", "codex"),
        Agent("gemini", "Gemini CLI", "gemini", has_comments=True, timeout_units_per_s=1000),
        Agent("opencode", "opencode", "opencode", has_comments=True, has_bom=True),
    )
}
assert tuple(KNOWN_AGENTS) == AGENTS
