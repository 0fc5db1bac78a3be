"""Write session files as Claude Code does, for tests of their import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.paths import TESTS

PARALLEL = "a9af48e1-57db-4ebf-acda-e671c3aa37ff"
"""The session of tests/inputs/claude-code/parallel.jsonl, which tests/captures/claude-allow.jsonl recorded live."""


def lines_of(case: str) -> list[dict[str, Any]]:
    """Return the lines of a recorded session file."""
    text = (TESTS / "inputs/claude-code" / f"{case}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def session_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def write_lines(path: Path, lines: list[Any], mode: str = "w") -> Path:
    """Write lines to a file; a text is a line as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return path


class Script:
    """Makes the lines of one session. Each line is a second after the one before it."""

    def __init__(self, number: int = 1, *, agent: str = "", prefix: str = "") -> None:
        self.session = session_id(number)
        self.lines: list[dict[str, Any]] = []
        self._agent = agent
        self._prefix = prefix or f"{number}{agent}"
        self._model_calls = 0

    def line(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = len(self.lines)
        line = {
            "parentUuid": self.lines[-1].get("uuid") if self.lines else None,
            "isSidechain": bool(self._agent),
            "type": kind,
            "uuid": f"{self._prefix}-{number}",
            "timestamp": f"2026-11-15T06:{43 + number // 60:02}:{number % 60:02}.000Z",
            "cwd": "/home/dev/shop",
            "sessionId": self.session,
            "version": "2.1.197",
            "gitBranch": "main",
            **({"agentId": self._agent} if self._agent else {}),
            **fields,
        }
        self.lines.append(line)
        return line

    def prompt(self, text: str) -> Script:
        self.line("user", message={"role": "user", "content": text})
        return self

    def _assistant(self, block: dict[str, Any], stop: str, usage: dict[str, int] | None) -> None:
        message = {"id": f"msg_{self._prefix}_{self._model_calls}", "role": "assistant", "model": "claude-opus-4-8"}
        counts = {"input_tokens": 3, "cache_read_input_tokens": 20, "output_tokens": 5, **(usage or {})}
        self.line("assistant", message={**message, "content": [block], "stop_reason": stop, "usage": counts})

    def text(self, text: str, stop: str = "end_turn", **usage: int) -> Script:
        self._model_calls += 1
        self._assistant({"type": "text", "text": text}, stop, usage)
        return self

    def thought(self, text: str) -> Script:
        self._model_calls += 1
        self._assistant({"type": "thinking", "thinking": text}, "", None)
        return self

    def call(self, identity: str, name: str = "Bash", **arguments: Any) -> Script:
        self._model_calls += 1
        self._assistant({"type": "tool_use", "id": identity, "name": name, "input": arguments}, "tool_use", None)
        return self

    def result(self, identity: str, content: Any = "done", *, is_error: bool = False, **details: Any) -> Script:
        block = {"type": "tool_result", "tool_use_id": identity, "content": content, "is_error": is_error}
        self.line("user", message={"role": "user", "content": [block]}, toolUseResult=details)
        return self

    def turn(self, number: int) -> Script:
        """Add a prompt, a call with its result, and an answer."""
        call = f"toolu_{self._prefix}_{number}"
        return (
            self.prompt(f"prompt {number}")
            .call(call, command=f"echo {number}")
            .result(call, f"output {number}")
            .text(f"answer {number}")
        )

    def path(self, folder: Path) -> Path:
        """Return the path of the file in the history of the agent."""
        project = folder / "projects" / "-home-dev-shop"
        if self._agent:
            return project / self.session / "subagents" / f"agent-{self._agent}.jsonl"
        return project / f"{self.session}.jsonl"

    def write(self, folder: Path) -> Path:
        return write_lines(self.path(folder), list(self.lines))
