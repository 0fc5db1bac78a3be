"""The shell command that an agent's settings have for a hook, and how it is found again there."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import NamedTuple

from callslip.errors import InvalidInputError
from callslip.hooks.events import AGENTS, WAIT_S

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "script.py")
_OWN_SCRIPT = os.path.join("hooks", "script.py")
_OWN_FOLDER = re.compile(r"/hooks/[0-9a-f]{12}\Z")


class HookCommand(NamedTuple):
    """What the command of a hook starts. `wait_s` counts only with approvals."""

    agent: str
    folder: str
    python: str
    script: str
    approvals: bool = False
    wait_s: int = WAIT_S

    def words(self) -> list[str]:
        """Return the program and its arguments."""
        options = ["--approvals", "--wait-s", str(self.wait_s)] if self.approvals else []
        return [self.python, "-I", "-S", self.script, self.agent, self.folder, *options]

    def shell_text(self) -> str:
        """Return the command for a shell. It exits with 0 and without output if the program or the script is gone."""
        checks = f"[ -x {quote(self.python)} ] && [ -r {quote(self.script)} ]"
        return f"{checks} && exec {' '.join(map(quote, self.words()))}; exit 0"


def hook_command(agent: str, folder: str | os.PathLike[str], *, approvals: bool, wait_s: int = WAIT_S) -> str:
    """Return the command for the settings of an agent, with the Python that runs now."""
    return own_command(agent, folder, approvals=approvals, wait_s=wait_s).shell_text()


def own_command(agent: str, folder: str | os.PathLike[str], *, approvals: bool, wait_s: int = WAIT_S) -> HookCommand:
    """Return what the hook of an agent starts, with the Python that runs now."""
    command = HookCommand(agent, os.fspath(folder), sys.executable, SCRIPT, approvals, wait_s if approvals else WAIT_S)
    for path in (command.folder, command.python, command.script):
        if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in path):
            raise InvalidInputError("path", f"{path!r} has control characters or is not UTF-8; no hook can name it")
    return command


def parse_command(text: object) -> HookCommand | None:
    """Return what a command of a hook starts, None if it is not one of ours."""
    if not isinstance(text, str) or _OWN_SCRIPT not in text:
        return None
    try:
        words = shlex.split(text.removesuffix("; exit 0"))
        start = words.index("exec") + 1
    except ValueError:
        return None
    return parse_words(words[start:])


def parse_words(words: list[str]) -> HookCommand | None:
    """Return what a program with its arguments is, None if it is not one of ours."""
    if len(words) < 6 or words[1:3] != ["-I", "-S"] or words[4] not in AGENTS:
        return None
    python, _, _, script, agent, folder, *options = words
    if not script.endswith(_OWN_SCRIPT) or not _OWN_FOLDER.search(folder):
        return None
    approvals = "--approvals" in options
    wait = options[options.index("--wait-s") + 1 :][:1] if "--wait-s" in options else []
    wait_s = int(wait[0]) if wait and wait[0].isdecimal() else WAIT_S
    return HookCommand(agent, folder, python, script, approvals, wait_s)


def quote(word: str) -> str:
    """Return a word quoted for a shell.

    Gemini CLI replaces `$NAME` in its settings also in quotes, so a quote follows each dollar sign.
    """
    return shlex.quote(word).replace("$", "$''")
