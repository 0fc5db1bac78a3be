"""Name the sessions of a wrapped agent after its program and the agent's session id.

So a session that is loaded again later is the same session here. Some agents number their sessions from 0 each time
they start: a session that the agent *creates* gets a free name (`agent-0`, then `agent-0.2`), one that the client
*names* is the newest of that name. MCP has no session ids: each run is a session, named after its time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from callslip.ingest.conversations import joined

if TYPE_CHECKING:
    from callslip.ledger.event_log import EventLog

LAUNCHERS = {"bun", "bunx", "deno", "env", "node", "npm", "npx", "pipx", "pnpm", "python", "python3", "sh", "uv", "uvx"}
SUBCOMMANDS = {"dlx", "exec", "run", "x"}
EXTENSIONS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".exe")
MAX_NAME_CHARS = 60


def program_name(command: Sequence[str]) -> str:
    """Return the name of the program that a command runs: its first word that is not a launcher or an option."""
    names = [_base_name(word) for word in command if not word.startswith("-") and "=" not in word]
    program = next((name for name in names if name.rstrip("0123456789.") not in LAUNCHERS | SUBCOMMANDS), "")
    return program or (names[0] if names else "") or "agent"


def _base_name(word: str) -> str:
    """Return `agent` for `/usr/bin/agent.py` and for `@scope/agent@1.2`."""
    name = os.path.basename(word.rstrip("/"))
    name = name.partition("@")[0] or name
    stem, extension = os.path.splitext(name)
    name = stem if extension in EXTENSIONS else name
    return "".join(letter if letter.isalnum() or letter in "._+-" else "_" for letter in name)[:MAX_NAME_CHARS]


class SessionNames:
    """The session names of one run. `chosen` is the name that the user chose for its first session, or ""."""

    def __init__(self, command: Sequence[str], chosen: str = "") -> None:
        self.chosen = chosen
        self._program = program_name(command)

    async def for_agent_id(self, log: EventLog, agent_id: str, *, is_new: bool) -> str:
        """Return the session for an id of the agent: a free name if `is_new`, else the newest of that name."""
        base = joined(self._program, "-", agent_id)
        newest = ""
        for number in count(1):
            name = base if number == 1 else joined(base, ".", str(number))
            if await log.store.session(name) is None:
                return name if is_new or not newest else newest
            newest = name
        raise AssertionError

    async def for_unnamed(self, log: EventLog) -> str:
        """Return a new session, named after the time, for messages that belong to no session of the agent."""
        return await self.for_agent_id(log, time.strftime("%Y%m%d-%H%M%S"), is_new=True)

    def secondary(self, agent_id: str) -> str:
        """Return the name for a further session on a connection whose first session has a chosen name."""
        return joined(self.chosen, ":", agent_id)
