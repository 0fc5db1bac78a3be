"""What the shell tool cuts from a long output is recorded with its size."""

from __future__ import annotations

import msgspec
import pytest

import callslip
from callslip.agent.shell_tool import shell_tool


@pytest.mark.anyio
@pytest.mark.parametrize(("end", "state"), [("true", "completed"), ("false", "failed")])
async def test_a_call_says_how_much_of_its_output_was_cut(end: str, state: str) -> None:
    """The text has the first and the last bytes, and the entry the number of bytes between them. VIEW4"""
    command = f"seq 1 1000; {end}"
    tool = shell_tool(cap=1000)
    async with await callslip.open("sqlite:///:memory:") as ledger:
        async with ledger.session("s").call("shell", {"command": command}) as call:
            await tool.run(call, {"command": command})
        (entry,) = (msgspec.to_builtins(entry) for entry in (await ledger.log.snapshot("s")).entries)
    printed = len("".join(f"{number}\n" for number in range(1, 1001)))
    assert (entry["status"], entry.get("cutBytes")) == (state, printed - 1000)
    assert entry["output"].endswith("\n999\n1000\n")
