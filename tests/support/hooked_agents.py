"""The hooks that `callslip hook install` writes into an agent's settings, and the server that they reach."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from callslip.client.location import parse_location
from callslip.hooks import script
from callslip.hooks.command import own_command
from callslip.hooks.folder import hook_folder, prepare_folder
from tests.support.cli_process import callslip_command
from tests.support.real_agents import RealAgent, wait_until

SCRIPT = str(Path(script.__file__).resolve())
MOVED = ("XDG_", "CALLSLIP_", "CLAUDE_", "CODEX_", "GEMINI_")
"""How the names of variables begin that would move a folder."""


class Hooks:
    """The hooks for a ledger in a home: their settings, their folder, and the server."""

    def __init__(self, db: str, home: Path, *, approvals: bool = False, wait_s: int = 60) -> None:
        self.db = db
        self.approvals = approvals
        self.wait_s = wait_s
        data = home / ".local" / "share"
        with _variable("XDG_DATA_HOME", str(data)):
            self.folder = hook_folder(parse_location(db, "test"))
        prepare_folder(self.folder)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(MOVED)}
        self.env = clean | {"HOME": str(home), "XDG_DATA_HOME": str(data)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Callslip for the ledger."""
        command = callslip_command(*arguments, "--db", self.db)
        return subprocess.run(command, env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def install(self, agent: RealAgent) -> Path:
        """Install the hooks of an agent, and return the file with its settings."""
        options = ["--approvals", "--wait-s", str(self.wait_s)] if self.approvals else []
        done = self.run("hook", "install", agent.name, "--yes", *options)
        assert done.returncode == 0, done.stderr
        if agent.name == "codex" and "start_of_command" not in vars(agent):  # Its user trusts hooks with /hooks.
            command = [*agent.start_of_command(), "--dangerously-bypass-hook-trust"]
            agent.start_of_command = lambda: command
        return Path(self.status(agent)["path"])

    def uninstall(self, agent: RealAgent) -> None:
        """Remove the hooks of an agent."""
        done = subprocess.run(
            callslip_command("hook", "uninstall", agent.name, "--yes"), env=self.env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def status(self, agent: RealAgent) -> Any:
        """Return what is said about the hooks of an agent."""
        return json.loads(self.run("hook", "status", agent.name, "--json").stdout.splitlines()[0])

    def spooled(self) -> list[str]:
        """Return the names of the messages that wait."""
        return sorted(path.name for path in (self.folder / "spool").iterdir())

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that wait, oldest first."""
        return [json.loads((self.folder / "spool" / name).read_bytes())["message"] for name in self.spooled()]

    def command(self, agent: str, *, approvals: bool) -> str:
        """Return the command as the settings of an agent have it."""
        return own_command(agent, self.folder, approvals=approvals, wait_s=self.wait_s).shell_text()

    def pass_on(self, agent: str, message: Any, *, approvals: bool = False) -> subprocess.Popen[bytes]:
        """Start the script with a message as an agent does."""
        process: subprocess.Popen[bytes] = subprocess.Popen(
            ["/bin/sh", "-c", self.command(agent, approvals=approvals)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
        )
        assert process.stdin is not None
        process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode())
        process.stdin.close()
        process.stdin = None
        return process

    @contextlib.contextmanager
    def served(self, command: str = "serve") -> Generator[subprocess.Popen[str]]:
        """Run a server for the folder; it may be killed meanwhile."""
        options = ["--port", "0"] if command != "watch" else []
        process = subprocess.Popen(
            callslip_command(command, "--db", self.db, *options),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until(lambda: process.poll() is not None or is_listening(self.folder), "the socket of the hooks")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def is_listening(folder: Path) -> bool:
    """Return whether a server answers a ping."""
    connect = "import os, socket; s = socket.socket(socket.AF_UNIX); os.chdir({!r}); s.connect('socket')"
    code = connect.format(str(folder)) + "; s.sendall(b'{\"ping\":true}\\n'); assert s.recv(100)"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], stderr=subprocess.DEVNULL).returncode == 0


@contextlib.contextmanager
def _variable(name: str, value: str) -> Generator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
