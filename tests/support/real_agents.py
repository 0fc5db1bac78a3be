"""The real programs of four vendors, run headless against a scripted model server.

Each has its own home and project folder, and starts from the package of its platform in `.cache/agents`, which
`make .cache/agents/ready` installs. None needs a network or an account.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from tests.support.paths import ROOT
from tests.support.scripted_models import Call, ScriptedModels

PACKAGES = ROOT / ".cache" / "agents" / "node_modules"
BRANCH = "feature-x"
RUN_SECONDS = 90
"""Far more than any of the agents needs."""


def platform_name() -> str:
    """Return the name of this platform as npm packages have it."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(machine, machine)}"


@dataclasses.dataclass
class Run:
    """One process of an agent, in a process group of its own."""

    process: subprocess.Popen[str]
    output: str = ""
    errors: str = ""

    def wait(self, seconds: float = RUN_SECONDS) -> Run:
        """Wait for the end, and kill the agent if it takes longer."""
        try:
            self.output, self.errors = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {seconds:g} s: {self.output}{self.errors}") from None
        return self

    def kill(self, number: int = signal.SIGKILL) -> Run:
        """Send a signal, by default SIGKILL, to the agent and all that it started; collect what it printed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        if number == signal.SIGKILL:
            self.output, self.errors = self.process.communicate(timeout=30)
        return self

    def succeed(self) -> Run:
        """Wait for the end, which must be a success."""
        self.wait()
        assert self.process.returncode == 0, f"exit {self.process.returncode}: {self.output}{self.errors}"
        return self


class RealAgent:
    """One agent in its own home and project folder."""

    name: ClassVar[str]
    """The name of its format."""

    def __init__(self, folder: Path, models: ScriptedModels) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.models = models
        self.runs: list[Run] = []
        self.home.mkdir(parents=True)
        self.project.mkdir()
        _git(self.project, "init", "--quiet", f"--initial-branch={BRANCH}")
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        _git(self.project, *who, "commit", "--quiet", "--allow-empty", "--message=Start")
        self.configure()

    def configure(self) -> None:
        """Write the configuration files."""

    def command(self, prompt: str, resume: str, fork: bool, options: tuple[str, ...]) -> list[str]:
        """Return the command of a run; `resume` is the id of a session, or `last`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the variables beyond PATH and HOME."""
        return {}

    def history(self) -> list[Path]:
        """Return the files in which the agent keeps its sessions, oldest first."""
        raise NotImplementedError

    def session_id(self, run: Run) -> str:
        """Return the id of the session of a finished run."""
        raise NotImplementedError

    def shell(self, command: str) -> Call:
        """Return a call of the tool that runs a shell command."""
        raise NotImplementedError

    def start(self, prompt: str, *, resume: str = "", fork: bool = False, options: tuple[str, ...] = ()) -> Run:
        """Start the agent with a prompt and return at once."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "NO_COLOR": "1"}
        process = subprocess.Popen(
            self.command(prompt, resume, fork, options),
            cwd=self.project,
            env=environment | self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.runs.append(Run(process))
        return self.runs[-1]

    def run(self, prompt: str, *, resume: str = "", fork: bool = False, options: tuple[str, ...] = ()) -> Run:
        """Run the agent with a prompt until it ends with success."""
        return self.start(prompt, resume=resume, fork=fork, options=options).succeed()

    def close(self) -> None:
        """Kill what still runs."""
        for run in self.runs:
            if run.process.poll() is None:
                run.kill()


class ClaudeCode(RealAgent):
    name = "claude-code"

    def command(self, prompt: str, resume: str, fork: bool, options: tuple[str, ...]) -> list[str]:
        program = PACKAGES / "@anthropic-ai" / f"claude-code-{platform_name()}" / "claude"
        session = [] if not resume else ["--continue"] if resume == "last" else ["--resume", resume]
        # Without a person who answers, tools that are not allowed here are refused.
        allowed = ["--allowedTools", "Bash,Edit,Write,Read,Agent"]
        tail = ["--fork-session"] * fork + list(options)
        return [str(program), "-p", prompt, "--output-format", "json", *session, *allowed, *tail]

    def environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.models.url,
            "ANTHROPIC_API_KEY": "any",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }

    def history(self) -> list[Path]:
        return _by_age(self.home.glob(".claude/projects/**/*.jsonl"))

    def session_id(self, run: Run) -> str:
        return json.loads(run.output)["session_id"]

    def shell(self, command: str) -> Call:
        return Call("Bash", {"command": command, "description": "Run it"})

    def write(self, path: Path, content: str) -> Call:
        return Call("Write", {"file_path": str(path), "content": content})

    def delegate(self, prompt: str) -> Call:
        return Call("Agent", {"description": "Look", "prompt": prompt, "subagent_type": "general-purpose"})


class Codex(RealAgent):
    name = "codex"

    def configure(self) -> None:
        config = self.home / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text(
            f"""
model = "{self.model}"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.scripted]
name = "scripted"
base_url = "{self.models.url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
"""
        )

    model = "gpt-5"

    def command(self, prompt: str, resume: str, fork: bool, options: tuple[str, ...]) -> list[str]:
        (program,) = (PACKAGES / f"codex-{platform_name()}").glob("vendor/*/bin/codex")
        verb = ["fork"] if fork else ["resume"] if resume else []
        session = ["--last"] if resume == "last" else [resume] if resume else []
        return [str(program), "exec", *verb, "--json", *options, *session, prompt]

    def environment(self) -> dict[str, str]:
        return {"SCRIPTED_KEY": "any"}

    def history(self) -> list[Path]:
        return _by_age(self.home.glob(".codex/sessions/**/*.jsonl"))

    def session_id(self, run: Run) -> str:
        events = [json.loads(line) for line in run.output.splitlines()]
        return next(event["thread_id"] for event in events if event["type"] == "thread.started")

    def shell(self, command: str) -> Call:
        return Call("exec_command", {"cmd": command})

    def delegate(self, prompt: str) -> Call:
        return Call("multi_agent_v1.spawn_agent", {"message": prompt})


class OpenCode(RealAgent):
    name = "opencode"

    def configure(self) -> None:
        model = {"name": "Scripted", "limit": {"context": 200_000, "output": 10_000}}
        model |= {"cost": {"input": 1, "output": 2, "cache_read": 0.1}, "reasoning": True}
        options = {"baseURL": f"{self.models.url}/v1", "apiKey": "any"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Scripted", "options": options}
        config = {
            "autoupdate": False,
            "share": "disabled",
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "provider": {"scripted": {**provider, "models": {"scripted": model}}},
        }
        path = self.home / ".config" / "opencode" / "opencode.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(config))

    def command(self, prompt: str, resume: str, fork: bool, options: tuple[str, ...]) -> list[str]:
        build = f"{platform_name()}-baseline" if platform_name().endswith("x64") else platform_name()
        program = PACKAGES / f"opencode-{build}" / "bin" / "opencode"
        session = [] if not resume else ["--continue"] if resume == "last" else ["--session", resume]
        return [str(program), "run", "--format", "json", *session, *["--fork"] * fork, *options, prompt]

    def environment(self) -> dict[str, str]:
        # It would install packages for plugins, so its registry is the model server, which has none.
        return {
            "npm_config_registry": self.models.url,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }

    def history(self) -> list[Path]:
        return _by_age(self.home.glob(".local/share/opencode/opencode.db"))

    def session_id(self, run: Run) -> str:
        return json.loads(run.output.splitlines()[0])["sessionID"]

    def shell(self, command: str) -> Call:
        return Call("bash", {"command": command})

    def write(self, path: Path, content: str) -> Call:
        return Call("write", {"filePath": str(path), "content": content})

    def delegate(self, prompt: str) -> Call:
        return Call("task", {"description": "Look", "prompt": prompt, "subagent_type": "general"})


def _git(folder: Path, *arguments: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=folder, env=clean, check=True)


def _by_age(paths: Iterator[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.stat().st_mtime, path.name))
