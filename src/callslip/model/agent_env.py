"""The environment of programs that an agent controls: wrapped agents, and commands that a tool runs.

They must not answer their own requests for approval, so they get no token and no password of a database: not from the
environment, and a variable tells Callslip's own client that it may not read the user's token file. This does not stop a
program that reads the file by itself: it runs under the user's account.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from callslip.model.database_url import DATABASE_VARIABLE, mask_password

TOKEN_VARIABLE = "CALLSLIP_TOKEN"
AGENT_VARIABLE = "CALLSLIP_AGENT"
AGENT_MARKS = (AGENT_VARIABLE, "CLAUDECODE", "CODEX_THREAD_ID", "CODEX_SANDBOX", "GEMINI_CLI", "OPENCODE")
"""Variables of commands that an agent runs: ours, and those of agents that Callslip did not start."""


def agent_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment, by default that of this process, without secrets and with the mark of an agent."""
    variables = dict(os.environ if env is None else env)
    variables.pop(TOKEN_VARIABLE, None)
    database = variables.get(DATABASE_VARIABLE, "")
    if mask_password(database) != database:
        del variables[DATABASE_VARIABLE]
    return {**variables, AGENT_VARIABLE: "1"}


def is_agent() -> bool:
    """Return whether this process was started by an agent that Callslip started."""
    return bool(os.environ.get(AGENT_VARIABLE))


def find_agent_mark() -> str:
    """Return the variable that says that any agent started this process, "" if there is none."""
    return next((name for name in AGENT_MARKS if os.environ.get(name)), "")
