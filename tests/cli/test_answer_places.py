"""The command line and requests whose answer would not reach their agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import callslip
from callslip.cli import exit_status
from tests.support.cli_process import CommandResult, Terminal, run_in_process
from tests.support.live_server import fetch, serving_ledger

pytestmark = pytest.mark.anyio

OPTIONS = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
PARAMS = {"sessionId": "x", "toolCall": {"toolCallId": "c1", "title": "rm -r build"}, "options": OPTIONS}
REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": PARAMS}


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    """A ledger with a request that an ACP agent posted."""
    path = tmp_path / "ledger.db"
    async with callslip.open(f"sqlite:///{path}") as ledger, serving_ledger(ledger) as url:
        assert (await fetch(f"{url}/v1/sessions/s/events?format=acp", "POST", value=[REQUEST])).status == 201
        yield str(path)


async def callslip_command(path: str, name: str, *words: str) -> CommandResult:
    return await asyncio.to_thread(run_in_process, name, "--db", path, *words)


async def test_an_answer_that_would_not_reach_the_agent_is_refused(path: str) -> None:
    """`approve` and `deny` name the place, and the request stays pending."""
    shown = json.loads((await callslip_command(path, "show", "c1", "--json")).stdout)
    approval = shown["approvalRequest"]["approval"]
    for command in ("approve", "deny"):
        result = await callslip_command(path, command, approval)
        assert result.returncode == exit_status.FAILED
        assert f"approval {approval}: must be answered in the ACP client." in result.stderr
        newest = await callslip_command(path, command, "@last")
        assert newest.returncode != 0 and "no pending approvals that can be answered here" in newest.stderr
    again = json.loads((await callslip_command(path, "show", "c1", "--json")).stdout)
    assert again["approvalRequest"] == shown["approvalRequest"]
    assert shown["approvalRequest"]["answerAt"] == "the ACP client"


async def test_the_place_of_the_answer_is_shown(path: str) -> None:
    """`show` and `doctor` name it, without a command that answers; `ls` does not count the request as to approve."""
    session, call = [(await callslip_command(path, "show", id)).stdout for id in ("s", "c1")]
    assert "pending, answer in the ACP client" in session
    assert "answer in" in call and "the ACP client" in call
    doctor = await callslip_command(path, "doctor")
    assert "answer it in the ACP client" in doctor.stdout and "callslip approve" not in doctor.stdout
    listed = await callslip_command(path, "ls")
    assert "\ns " in listed.stdout and "to approve" not in listed.stdout
    assert json.loads((await callslip_command(path, "ls", "--json")).stdout)["pendingApprovals"] == 0


async def test_a_live_view_prints_no_command_that_cannot_answer(path: str) -> None:
    """`tail` on a terminal prints the request and the place of its answer."""

    def tail() -> str:
        terminal = Terminal("tail", "s", "--db", path, "--until-end")
        assert terminal.close() == 0
        return terminal.screen_text

    screen_text = await asyncio.to_thread(tail)
    assert "pending, answer in the ACP client" in screen_text
    assert "callslip approve" not in screen_text and "callslip deny" not in screen_text
