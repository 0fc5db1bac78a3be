"""How the sessions of a wrapped agent are called: after its program and the agent's own id of the session.

So a session that is loaded again later is the same one here. Some agents count their sessions anew each time they are
started: a session that the agent *makes* gets a free name (`agent-0`, then `agent-0.2`), one that the client *names*
is the newest of that name. An MCP server has no such ids: each run is a session, called after its time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from callslip.ingest.conversations import joined

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger

LAUNCHERS = {"bun", "bunx", "deno", "env", "node", "npm", "npx", "pipx", "pnpm", "python", "python3", "sh", "uv", "uvx"}
STEPS = {"dlx", "exec", "run", "x"}
ENDINGS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".exe")
MAX_NAME_CHARS = 60


def program_name(command: Sequence[str]) -> str:
    """What a command runs: the first of its words that is no launcher, no option of one and no path."""
    words = [word for word in command if not word.startswith("-") and "=" not in word]
    names = [_bare(word) for word in words]
    chosen = next((name for name in names if name.rstrip("0123456789.") not in LAUNCHERS | STEPS), "")
    return chosen or (names[0] if names else "") or "agent"


def _bare(word: str) -> str:
    """`/usr/bin/agent.py` is `agent`, `@scope/agent@1.2` is `agent`."""
    name = os.path.basename(word.rstrip("/"))
    name = name.partition("@")[0] or name
    stem, ending = os.path.splitext(name)
    kept = stem if ending in ENDINGS else name
    return "".join(letter if letter.isalnum() or letter in "._+-" else "_" for letter in kept)[:MAX_NAME_CHARS]


class Names:
    """The names of one run. `given` is the name that the user chose for its first session."""

    def __init__(self, command: Sequence[str], given: str = "") -> None:
        self.given = given
        self._agent = program_name(command)

    async def session(self, ledger: Ledger, identity: str, *, made: bool) -> str:
        """The session for an id of the agent. `made` if the agent made it, so that it is a new one."""
        base = joined(self._agent, "-", identity)
        newest = ""
        for number in count(1):
            name = base if number == 1 else joined(base, ".", str(number))
            if await ledger.log.store.session(name) is None:
                return name if made or not newest else newest
            newest = name
        raise AssertionError

    async def nameless(self, ledger: Ledger) -> str:
        """The session for what was said before, or without, any session of the agent."""
        return await self.session(ledger, time.strftime("%Y%m%d-%H%M%S"), made=True)

    def other(self, identity: str) -> str:
        """Where the user chose the name: the one for another session on the same connection."""
        return joined(self.given, ":", identity)
