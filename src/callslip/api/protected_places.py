"""The places that no rule gives access to: the files of Callslip, and the settings of agents."""

from __future__ import annotations

import os
from pathlib import Path

from callslip.model.data_folder import data_folder
from callslip.rules.protected_calls import ProtectedPlaces

SETTINGS_VARIABLES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CONFIG_DIR", "OPENCODE_CONFIG_DIR", "OPENCODE_CONFIG")
"""Variables that move the settings of an agent to another place."""
_FILE_URL = "sqlite:///"


def protected_places(database: str, policy_file: str = "") -> ProtectedPlaces:
    """Return the protected places of a process that uses a database, and a policy file if there is one."""
    home = str(Path.home())
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    folders = [str(data_folder()), os.path.join(config, "callslip"), os.path.join(config, "opencode")]
    folders += [os.path.abspath(value) for name in SETTINGS_VARIABLES if (value := os.environ.get(name))]
    files = [os.path.abspath(policy_file)] if policy_file else []
    path = database.removeprefix(_FILE_URL)
    if path not in (database, "", ":memory:"):
        files.append(os.path.abspath(os.path.expanduser(path)))
    return ProtectedPlaces(tuple(folders), tuple(files), home)
