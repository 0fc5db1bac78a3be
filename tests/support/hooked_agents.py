"""The real agents with the hook of Callslip in their settings, and the server that their hooks reach."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from callslip.client.location import parse_location
from callslip.hooks import script
from callslip.hooks.folder import hook_folder, prepare_folder
from tests.support.cli_process import callslip_command
from tests.support.real_agents import RealAgent, wait_until

SCRIPT = str(Path(script.__file__).resolve())
EVENTS = {
    "claude-code": (
        *("SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse"),
        *("PostToolUseFailure", "Stop", "SessionEnd"),
    ),
    "codex": (
        *("SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "Stop"),
        "SessionEnd",
    ),
    "gemini": ("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
}
GATES = ("PermissionRequest", "BeforeTool")
PLUGIN = Path(script.__file__).with_name("opencode_plugin.js")


class Hooks:
    """The hook folder of a ledger, and the environment in which its server and its hooks use it."""

    def __init__(self, db: str, home: Path, *, approvals: bool = False, wait_s: int = 60) -> None:
        self.db = db
        self.home = home
        self.approvals = approvals
        self.wait_s = wait_s
        data = home / ".local" / "share"
        with _variable("XDG_DATA_HOME", str(data)):
            self.folder = hook_folder(parse_location(db, "test"))
        prepare_folder(self.folder)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CALLSLIP_"))}
        self.env = clean | {"HOME": str(home), "XDG_DATA_HOME": str(data)}

    def words(self, agent: str, *, approvals: bool) -> list[str]:
        """Return the program that a hook starts, with its arguments."""
        options = ["--approvals", "--wait-s", str(self.wait_s)] if approvals else []
        return [sys.executable, "-I", "-S", SCRIPT, agent, str(self.folder), *options]

    def command(self, agent: str, *, approvals: bool) -> str:
        """Return the command as the settings of an agent have it."""
        checks = f"[ -x {shlex.quote(sys.executable)} ] && [ -r {shlex.quote(SCRIPT)} ]"
        return f"{checks} && exec {shlex.join(self.words(agent, approvals=approvals))}; exit 0"

    def install(self, agent: RealAgent) -> None:
        """Write the settings of an agent."""
        if agent.name == "opencode":
            return self._install_plugin(agent)
        hooks: dict[str, Any] = {}
        for event in EVENTS[agent.name]:
            is_gate = self.approvals and event in GATES
            if event == "PermissionRequest" and not is_gate:
                continue
            seconds = 3 if event == "SessionEnd" else self.wait_s + 30 if is_gate else 10
            timeout = seconds * 1000 if agent.name == "gemini" else seconds
            hook = {"type": "command", "command": self.command(agent.name, approvals=is_gate), "timeout": timeout}
            hooks[event] = [{"hooks": [hook]}]
        names = {
            "claude-code": ".claude/settings.json",
            "codex": ".codex/hooks.json",
            "gemini": ".gemini/settings.json",
        }
        path = agent.home / names[agent.name]
        path.parent.mkdir(exist_ok=True)
        settings: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**settings, "hooks": hooks}))

    def _install_plugin(self, agent: RealAgent) -> None:
        path = agent.home / ".config" / "opencode" / "plugins" / "callslip.js"
        path.parent.mkdir(parents=True)
        words = json.dumps(self.words("opencode", approvals=self.approvals))
        path.write_text(PLUGIN.read_text().replace("const COMMAND = [];", f"const COMMAND = {words};", 1))

    def spooled(self) -> list[str]:
        """Return the names of the messages that wait."""
        return sorted(path.name for path in (self.folder / "spool").iterdir())

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
