"""Test that the secrets of a command are gone from all files of the ledger soon after its end, while it is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

import callslip
from callslip.api.commands import CommandQueue
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev

pytestmark = pytest.mark.anyio

SECRET = "sk-Z9qR7wXk2LmN4pTvB8sDfG6hJ3aQ5eYcU1iO0z"
TIMEOUT_S = 30.0


def files_with_secret(folder: Path) -> list[str]:
    """Return the files of the ledger that contain the secret."""
    return sorted(path.name for path in folder.iterdir() if SECRET.encode() in path.read_bytes())


async def until_erased(folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while files := files_with_secret(folder):
        assert time.monotonic() < deadline, f"the secret is still in {files}"
        await asyncio.sleep(0.05)


async def complete(commands: CommandQueue) -> None:
    claim = await commands.claim()
    assert claim is not None and claim.params == {"key": SECRET}
    await commands.complete("c", "done", fence=claim.fence)


async def fail(commands: CommandQueue) -> None:
    claim = await commands.claim()
    assert claim is not None
    await commands.fail("c", "wrong", fence=claim.fence)


async def cancel(commands: CommandQueue) -> None:
    await commands.cancel("c")


async def expire(commands: CommandQueue) -> None:
    await commands.expire("c")


async def delete(commands: CommandQueue) -> None:
    await commands.log.delete("commands")


ENDS = (complete, fail, cancel, expire, delete)


@pytest.mark.parametrize("end", ENDS)
async def test_the_secrets_of_an_ended_command_are_erased(
    tmp_path: Path, end: Callable[[CommandQueue], Awaitable[None]]
) -> None:
    """Neither the database nor its WAL has them, although the ledger stays open."""
    async with await callslip.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        await ledger.commands.submit("a", {"key": SECRET}, correlation_id="c")
        assert files_with_secret(tmp_path), "an open command keeps its secrets for its worker"
        await end(ledger.commands)
        await until_erased(tmp_path)
    assert not files_with_secret(tmp_path)


async def test_a_long_reader_delays_erasing_but_no_write(tmp_path: Path) -> None:
    """While another process reads an old state, writes continue; the secrets are erased after it."""
    path = tmp_path / "ledger.db"
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.commands.submit("a", {"key": SECRET}, correlation_id="c")
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT count(*) FROM events").fetchall()
        await complete(ledger.commands)
        await write_others(ledger)
        assert files_with_secret(tmp_path)
        reader.execute("COMMIT")
        reader.close()
        await until_erased(tmp_path)


async def write_others(ledger: LocalLedger) -> None:
    """Write for longer than the writer waits before it erases."""
    deadline = time.monotonic() + 1.5
    async with asyncio.timeout(TIMEOUT_S):
        while time.monotonic() < deadline:
            await ledger.log.append("b", [ev.MessageUser(text="hello")])


async def test_closing_a_ledger_erases_at_once(tmp_path: Path) -> None:
    """Also if another process has the ledger open, so that the WAL stays."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with await callslip.open(url):
        async with await callslip.open(url) as ledger:
            await ledger.commands.submit("a", {"key": SECRET}, correlation_id="c")
            await complete(ledger.commands)
        assert (tmp_path / "ledger.db-wal").exists() and not files_with_secret(tmp_path)
