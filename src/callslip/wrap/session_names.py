"""Name the sessions of a wrapped agent after its program and the agent's session id.

If the command names only a shell or another launcher, the name that the agent gives itself is used.

So a session that is loaded again later is the same session here. Some agents number their sessions from 0 each time
they start: a session that the agent *creates* gets a free name (`agent-0`, then `agent-0.2`), one that the client
*names* is the newest of that name. MCP has no session ids: each run is a session, named after its time.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from callslip.ingest.conversations import joined
from callslip.rules.projection import SESSION_NAMESPACE
from callslip.rules.shell_command import parse_command

if TYPE_CHECKING:
    from callslip.ledger.event_log import EventLog

LAUNCHERS = {"bun", "bunx", "deno", "env", "node", "npm", "npx", "pipx", "pnpm", "python", "python3", "sh", "uv", "uvx"}
SHELLS = {"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"}
PREFIXES = {"command", "exec", "nice", "nohup", "setsid", "sudo", "time", "timeout"}
SUBCOMMANDS = {"dlx", "exec", "run", "x"}
BUILTINS = {".", "cd", "echo", "eval", "export", "set", "source", "trap", "true", "ulimit", "umask", "unset", "wait"}
EXTENSIONS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".exe")
MAX_NAME_CHARS = 60
UNIQUE_ID_CHARS = 16
"""A shorter id may be that of a session of another agent, or of another run."""


def program_name(command: Sequence[str]) -> str:
    """Return the name of the program that a command runs, or of its launcher if the program is not known."""
    return find_program(command) or _launcher_name(command)


def find_program(command: Sequence[str]) -> str:
    """Return the first word that is not a launcher or an option; of a shell's script, the last program that it runs."""
    for number, word in enumerate(command):
        if _is_option(word) or word.rstrip("smhd").isdecimal():  # The number of `timeout 30` or `nice -n 5`.
            continue
        name = _base_name(word)
        if name in SHELLS and (script := _find_script(command[number + 1 :])):
            return _script_program(script)
        if name.rstrip("0123456789.") not in LAUNCHERS | SHELLS | PREFIXES | SUBCOMMANDS:
            return name
    return ""


def _find_script(arguments: Sequence[str]) -> str:
    """Return the script that a shell receives as an argument, or ""."""
    options = list(itertools.takewhile(lambda word: word[:1] == "-", arguments))
    has_script = any(re.fullmatch(r"-[a-z]*c[a-z]*", option) for option in options)
    return arguments[len(options)] if has_script and len(arguments) > len(options) else ""


def _script_program(script: str) -> str:
    """Return the last program that a script runs; "" if a variable or another command names it."""
    parts = [[word.text for word in part] for part in parse_command(script).parts]
    programs = [find_program([*itertools.takewhile(_is_literal, words)]) for words in parts]
    programs = [program for program in programs if program not in BUILTINS]
    return programs[-1] if programs else ""


def _is_literal(word: str) -> bool:
    return "$" not in word and "`" not in word


def _launcher_name(command: Sequence[str]) -> str:
    """Return the name of the first word that may be a program, "agent" if there is none."""
    names = [_base_name(word) for word in command if not _is_option(word)]
    program = next((name for name in names if name.rstrip("0123456789.") not in LAUNCHERS | SUBCOMMANDS), "")
    return program or (names[0] if names else "") or "agent"


def _is_option(word: str) -> bool:
    """Return whether a word is an option, or sets a variable."""
    return word.startswith("-") or ("=" in word and " " not in word)


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
        self._program = find_program(command)
        self._launcher = _launcher_name(command)

    def set_agent_name(self, name: str) -> None:
        """Use the name that the agent gives itself if its command does not have one."""
        self._program = self._program or _base_name(name)

    async def for_agent_id(self, log: EventLog, agent_id: str, *, is_new: bool) -> str:
        """Return the session for an id of the agent: a free name if `is_new`, else the newest of that name.

        Sessions with this id may be known from the agent's own session file, under another name. Like the import of
        that file, this uses the oldest one.
        """
        if len(agent_id) >= UNIQUE_ID_CHARS:
            known = await log.store.sessions_with_alias(SESSION_NAMESPACE, agent_id)
            if known:
                return known[0]
        base = joined(self._program or self._launcher, "-", agent_id)
        newest, free = await self._find_names(log, base)
        if is_new:
            return free
        if not newest:  # Earlier versions named it after the launcher.
            newest, _ = await self._find_names(log, joined(self._launcher, "-", agent_id))
        return newest or free

    async def _find_names(self, log: EventLog, base: str) -> tuple[str, str]:
        """Return the newest session with this base name, "" if there is none, and the next free name."""
        newest = ""
        for number in itertools.count(1):
            name = base if number == 1 else joined(base, ".", str(number))
            if await log.store.session(name) is None:
                return newest, name
            newest = name
        raise AssertionError

    async def for_unnamed(self, log: EventLog) -> str:
        """Return a new session, named after the time, for messages that belong to no session of the agent."""
        return await self.for_agent_id(log, time.strftime("%Y%m%d-%H%M%S"), is_new=True)

    def secondary(self, agent_id: str) -> str:
        """Return the name for a further session on a connection whose first session has a chosen name."""
        return joined(self.chosen, ":", agent_id)
