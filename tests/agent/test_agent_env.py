"""Programs that an agent controls get no token, so that they cannot answer their own requests for approval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from callslip.agent.shell import run_shell
from callslip.client.address import parse_address
from callslip.client.location import data_folder
from callslip.client.open import find_token
from callslip.client.token_file import main_token
from tests.support.cli_process import run

TOKEN = "a-token-that-may-approve-everything"
PRINT = "env; tr '\\0' '\\n' < /proc/$PPID/environ"


@pytest.mark.anyio
@pytest.mark.parametrize("env", [None, {"CALLSLIP_TOKEN": TOKEN, "PATH": "/usr/bin:/bin"}])
async def test_a_command_has_no_token(monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str] | None) -> None:
    """Neither in its own environment nor in that of the process that started it."""
    monkeypatch.setenv("CALLSLIP_TOKEN", TOKEN)
    result = await run_shell(PRINT, env=env)
    assert result.exit_status == 0 and "CALLSLIP_AGENT=1" in result.output
    assert TOKEN not in result.output


def test_a_wrapped_agent_has_no_token(tmp_path: Path) -> None:
    """The token of the terminal in which `wrap` runs is not passed on."""
    command = ["wrap", "--db", str(tmp_path / "ledger.db"), "--", "sh", "-c", f"env > {tmp_path / 'env'}"]
    assert run(*command, env={"CALLSLIP_TOKEN": TOKEN}).returncode == 0
    variables = (tmp_path / "env").read_text()
    assert "CALLSLIP_AGENT=1" in variables and TOKEN not in variables


def test_an_agent_does_not_use_the_token_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own processes do, for a server on this machine."""
    address = parse_address("http://127.0.0.1:7890", "url")
    token = main_token(data_folder())
    assert find_token(address) == token
    monkeypatch.setenv("CALLSLIP_AGENT", "1")
    assert find_token(address) == ""
    assert find_token(address, "given") == "given"
