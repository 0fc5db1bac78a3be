"""`callslip wrap`: how its sessions are named, and how the texts of its agent are joined."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from callslip.api.ledger import open_ledger
from callslip.cli import main
from callslip.model import events as ev
from callslip.wrap.session_names import SessionNames, program_name
from tests.support.acp_process import AGENT, Client, read_entries, read_sessions, wrap_command


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a ledger that does not exist yet."""
    return str(tmp_path / "ledger.db")


# Names


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["bash", "-lc", "my-agent --acp"], "my-agent"),
        (["/bin/bash", "-l", "-c", "cd /srv && exec npx -y @scope/my-agent@1.2 --acp"], "my-agent"),
        (["zsh", "-c", "export A=1; A=2 B=3 /opt/bin/my-agent"], "my-agent"),
        (["sh", "-c", "source env.sh; exec python3 -u my-agent.py"], "my-agent"),
        (["bash", "my-agent.sh"], "my-agent"),
        (["timeout", "30", "bash", "./my-agent.sh"], "my-agent"),
        (["nice", "-n", "5", "my-agent"], "my-agent"),
        (["bash", "-c", "'unclosed"], "bash"),
        (["bash", "-c"], "bash"),
        (["bash"], "bash"),
    ],
)
def test_a_command_of_a_shell_is_named_after_its_program(command: list[str], name: str) -> None:
    """ENT12: neither a shell nor what precedes the program in its script is the name."""
    assert program_name(command) == name


@pytest.mark.parametrize("script", ["exec {agent}", "AGENT={quoted}; exec $AGENT"])
def test_sessions_are_named_after_the_agent_and_not_after_bash(path: str, script: str) -> None:
    """ENT12: by the program in the script, or else by the name that the agent gives itself."""
    agent = shlex.join([*AGENT, "one"])
    command = ["bash", "-c", script.format(agent=agent, quoted=shlex.quote(agent))]
    with Client([*wrap_command(path), *command]) as client:
        client.reply_to(client.open_session(), "say hello")
        client.end()
    assert read_sessions(path) == ["acp_agent-one" if "$" not in script else "small-one"]


@pytest.mark.anyio
async def test_a_session_that_was_named_after_bash_continues(path: str) -> None:
    """ENT12: a session that an earlier version recorded is found again when the agent loads it; a new one is not."""
    async with await open_ledger(f"sqlite:///{path}") as ledger:
        await ledger.log.append("bash-one", [ev.MessageUser(text="earlier")])
        names = SessionNames(["bash", "-c", "my-agent --acp"])
        assert await names.for_agent_id(ledger.log, "one", is_new=False) == "bash-one"
        assert await names.for_agent_id(ledger.log, "one", is_new=True) == "my-agent-one"
        await ledger.log.append("my-agent-one", [ev.MessageUser(text="later")])
        assert await names.for_agent_id(ledger.log, "one", is_new=False) == "my-agent-one"
        assert await names.for_agent_id(ledger.log, "two", is_new=False) == "my-agent-two"


# Chunks


@pytest.mark.parametrize(
    ("option", "text"), [((), "haha!"), (("--chunks", "delta"), "haha!"), (("--chunks", "dedupe"), "ha!")]
)
def test_the_chunks_of_an_agent_can_be_declared(path: str, tmp_path: Path, option: tuple[str, ...], text: str) -> None:
    """ENT10: as for an import. Without the option the policy is detected."""
    updates = [
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": piece}}
        for piece in ["ha", "ha", "!"]
    ]
    lines = [
        {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": one}} for one in updates
    ]
    (tmp_path / "output").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [*wrap_command(path, "--session", "work", *option), "cat", str(tmp_path / "output")]
    assert subprocess.run(command, input=b"", capture_output=True, timeout=60).returncode == 0
    assert [entry.content for entry in read_entries(path, "work")] == [text]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["wrap", "--chunks", "whole", "--", "cat"], "'whole' is not one of"),
        (["wrap", "--mcp", "--chunks", "delta", "--", "cat"], "--chunks is for agents"),
    ],
)
def test_an_invalid_use_of_chunks_is_an_error(arguments: list[str], problem: str) -> None:
    """ENT10: exit status 2, and nothing is started."""
    result: Any = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and problem in result.output
