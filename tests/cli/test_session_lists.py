"""`callslip ls` and `callslip usage` list sessions and add up tokens, from a file as from a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import callslip
from callslip.model import events as ev
from tests.support.cli_process import run_in_process


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two sessions, of which one has no usage."""
    path = tmp_path_factory.mktemp("lists") / "ledger.db"

    async def write() -> None:
        async with callslip.open(f"sqlite:///{path}") as ledger:
            info = ev.SessionInfo(agent="Claude Code", project="/home/ann/shop", labels={"team": "a"}, at=1)
            used = ev.UsageReported(id="r", model="large", input_tokens=1_234_567, cost=0.5, currency="USD", at=1)
            part = ev.UsageReported(id="q", model="large", output_tokens=7, incomplete=True, at=1)
            await ledger.log.append("one", [info, ev.MessageUser(text="Fix the cart"), used, part])
            await ledger.log.append("two", [ev.TurnStarted(), ev.MessageUser(text="Write \x1b[31mtests")])

    asyncio.run(write())
    return path


def run(db: Path, *arguments: str) -> str:
    result = run_in_process(*arguments, "--db", str(db))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_ls_filters_and_sorts_sessions(db: Path) -> None:
    """LIST2: each filter alone, and the facts of each session in a table."""
    lines = {line.split()[0]: line for line in run(db, "ls").splitlines()}
    assert "Claude Code" in lines["one"] and "shop" in lines["one"] and "1.2M" in lines["one"]
    assert "Fix the cart" in lines["one"] and "running" in lines["two"] and "\x1b" not in lines["two"]

    def listed(*arguments: str) -> list[str]:
        return [json.loads(line)["session"] for line in run(db, "ls", "--json", *arguments).splitlines()]

    for arguments in (
        ("--activity", "idle"),
        ("--agent", "Claude Code"),
        ("--project", "/home/ann/shop"),
        ("--model", "large"),
        ("--label", "team=a"),
        ("--title", "CART"),
    ):
        assert listed(*arguments) == ["one"], arguments
    assert listed("--sort", "tokens") == ["one", "two"] and listed("--sort", "tokens", "--reverse") == ["two", "one"]
    assert listed("--branch", "none") == []


def test_usage_is_a_table_or_json(db: Path) -> None:
    """USE2: numbers that are not final are marked, and costs have their currency."""
    head, row = run(db, "usage", "--by", "model").splitlines()
    assert head.split() == ["MODEL", "RESPONSES", "INPUT", "CACHED", "OUTPUT", "COST"]
    assert row.split() == ["large", "2", "1,234,567", "0", "7*", "0.5000", "USD"]
    (group,) = [json.loads(line) for line in run(db, "usage", "--session", "one", "--json").splitlines()]
    assert (group["inputTokens"], group["costs"], group["incomplete"]) == (1_234_567, {"USD": 0.5}, 1)
    assert run(db, "usage", "--agent", "nobody") == ""
    assert run_in_process("usage", "--by", "turn", "--db", str(db)).returncode != 0
