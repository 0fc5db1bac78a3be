"""Shell commands are found in the inputs that agents send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from callslip.model import codec
from callslip.rules.call_commands import MAX_COMMANDS, find_commands, runs_commands
from callslip.rules.shell_command import ShellCommand
from tests.support.format_cases import CAPTURES, garbage


def only_command(input: Any, *, is_execute: bool = False) -> ShellCommand:
    """Return the only command in an input."""
    (command,) = find_commands(input, is_execute=is_execute).values()
    return command


@pytest.mark.parametrize(
    ("input", "path", "text"),
    [
        ({"command": "git log", "description": "history"}, ("command",), "git log"),
        ({"cmd": "git log", "workdir": "/p"}, ("cmd",), "git log"),
        ({"shell_command": "git log"}, ("shell_command",), "git log"),
        ({"shellCommand": "git log"}, ("shellCommand",), "git log"),
        ({"commandLine": "git log"}, ("commandLine",), "git log"),
        ({"Script": "git log"}, ("Script",), "git log"),
        ({"command": ["/bin/bash", "-lc", "git log"], "cwd": "/p"}, ("command",), "git log"),
        ({"command": ["git", "log", "a b"]}, ("command",), "git log 'a b'"),
        ({"params": {"args": {"command": "git log"}}}, ("params", "args", "command"), "git log"),
        ({"command": "git", "args": ["log", "a b"]}, ("command",), "git log 'a b'"),
        ({"command": "git", "args": "log"}, ("command",), "git log"),
        ({"command": "git log", "args": ["a b"]}, ("command",), "git log 'a b'"),
        ({"command": "bash", "args": ["-c", "git log"]}, ("command",), "git log"),
        ({"command": ["bash", "-c"], "arguments": ["git log"]}, ("command",), "git log"),
        (
            {"command": "git log", "run_in_background": True, "timeout": 5, "is_background": False},
            ("command",),
            "git log",
        ),
        ({"command": "git log", "stdin": "", "env_vars": {}, "argv": [], "n": 1}, ("command",), "git log"),
        ({"command": "git log", "parsed_cmd": [{"cmd": "git log"}], "call_id": "c"}, ("command",), "git log"),
        ({"command": "git log", "args": [], "env": {}, "shell": "/bin/bash"}, ("command",), "git log"),
    ],
)
def test_a_command_is_found(input: Any, path: tuple[str, ...], text: str) -> None:
    """POL4: Under each name that agents use, as a text, as a list, and with its arguments next to it."""
    commands = find_commands(input, is_execute=False)
    assert list(commands) == [path]
    assert commands[path].text == text
    assert not commands[path].problem


@pytest.mark.parametrize(
    ("input", "problem"),
    [
        ({"command": None}, "is not a text"),
        ({"command": 5}, "is not a text"),
        ({"command": ["git", 1]}, "is not a text"),
        ({"command": "git", "args": {"x": 1}}, "has arguments that are not texts"),
        ({"command": "git", "args": ["log", 1]}, "has arguments that are not texts"),
        ({"command": "git log", "env": {"GIT_PAGER": "id"}}, "sets variables"),
        ({"command": "git log", "environment": [{"name": "GIT_PAGER", "value": "id"}]}, "sets variables"),
        ({"command": "git log; id", "env": {"GIT_PAGER": "id"}}, "sets variables"),
        ({"command": "git log", "shell": "/tmp/evil"}, "runs in '/tmp/evil'"),
        ({"command": "git log", "shell": ["/tmp/evil"]}, "runs in"),
        ({"command": "git", "argv": ["-c", "a=b", "log"]}, "has the unknown member 'argv'"),
        ({"command": "git", "params": ["-c", "a=b", "log"]}, "has the unknown member 'params'"),
        ({"command": "git", "arg": "-c a=b log"}, "has the unknown member 'arg'"),
        ({"command": "git", "command_args": ["-c"]}, "has the unknown member 'command_args'"),
        ({"command": "git log", "env_vars": {"GIT_PAGER": "id"}}, "has the unknown member 'env_vars.GIT_PAGER'"),
        ({"command": "git log", "envs": ["GIT_PAGER=id"]}, "has the unknown member 'envs'"),
        ({"command": "git log", "environmentVariables": {"A": "b"}}, "has the unknown member 'environmentVariables.A'"),
        ({"command": "git log", "executable": "/tmp/evil"}, "has the unknown member 'executable'"),
        ({"command": "git log", "shell_path": "/tmp/evil"}, "has the unknown member 'shell_path'"),
        ({"command": "git apply", "stdin": "x"}, "has the unknown member 'stdin'"),
        ({"command": None, "args": ["x"]}, "has arguments that are not texts"),
        ({"command": ["git", 1], "args": ["x"]}, "has arguments that are not texts"),
    ],
)
def test_a_command_that_is_not_known_has_no_text(input: Any, problem: str) -> None:
    """POL4: So no exact text of a rule is equal to it. What denies its own text still finds it."""
    command = only_command(input)
    assert (command.text, command.words) == ("", ())
    assert command.problem.startswith(problem)
    if isinstance(input["command"], str):
        assert input["command"] in command.other_texts


def test_any_text_can_be_the_command_of_a_call_that_executes() -> None:
    """POL4: If no member has a known name. The folder and the explanation are no commands."""
    input = {"run": "a; b", "cwd": "/p", "description": "Run it (now)", "deep": {"then": "c"}, "n": 1}
    assert find_commands(input, is_execute=False) == {}
    found = find_commands(input, is_execute=True)
    assert {path: command.text for path, command in found.items()} == {("run",): "a; b", ("deep", "then"): "c"}
    assert find_commands("a; b", is_execute=False) == {}
    assert only_command("a; b", is_execute=True).text == "a; b"


def test_commands_in_lists_of_objects_are_found() -> None:
    """POL4: And commands that run before another one, so that a rule about one of them does not allow the call."""
    steps = find_commands({"command": "git log", "steps": [{"command": "rm x"}]}, is_execute=False)
    assert [command.parts[0][0].text for command in steps.values()] == ["git", "rm"]
    before = find_commands({"command": "git log", "pre_command": "rm x"}, is_execute=False)
    assert [command.text for command in before.values()] == ["git log", "rm x"]
    assert only_command([{"command": "rm x"}]).text == "rm x"


def test_the_number_of_commands_in_one_input_is_limited() -> None:
    """POL8: More of them are not parsed, and not known."""
    commands = find_commands({"_" * count + "command": "ls" for count in range(MAX_COMMANDS + 1)}, is_execute=False)
    assert [command.is_known for command in commands.values()] == [*[True] * MAX_COMMANDS, False]


@pytest.mark.parametrize(
    ("kind", "tool", "expected"),
    [
        ("execute", "", True),
        ("", "Bash", True),
        ("other", "run_shell_command", True),
        ("other", "exec_command", True),
        ("", "", False),
        ("read", "Bash", False),
        ("other", "mcp__db__execute_sql", False),
    ],
)
def test_the_kind_or_the_tool_says_that_a_call_executes(kind: str, tool: str, expected: bool) -> None:
    """A kind that is known is more reliable than the name of the tool."""
    assert runs_commands(kind, tool) is expected


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_commands_of_real_agents_are_found(path: Any) -> None:
    """POL4: Every call of the recorded traffic that executes something has one command, with the text that was run."""
    messages = [json.loads(line)["msg"] for line in path.read_bytes().splitlines() if line.strip()]
    params = [message.get("params") or {} for message in messages]
    calls = [param[name] for param in params for name in ("toolCall", "update") if isinstance(param.get(name), dict)]
    inputs = [call.get("rawInput") for call in calls if call.get("kind") == "execute"]
    for input in (input for input in inputs if {"command", "cmd"} & set(input or {})):
        assert only_command(input, is_execute=True).text.startswith("echo hi")


@given(garbage)
def test_every_input_has_a_result(input: Any) -> None:
    """An agent may send any JSON."""
    for is_execute in (True, False):
        assert isinstance(find_commands(codec.to_json(input), is_execute=is_execute), dict)
