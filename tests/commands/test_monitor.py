"""The monitor of commands: own writes and those of other processes may arrive in any order, and more than once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import callslip
from callslip.api.commands import CommandQueue
from callslip.commands import monitor
from callslip.errors import StoreError
from callslip.model.records import CallRecord
from callslip.settings import Settings
from callslip.store import sqlite, sqlite_rows
from tests.support.slow_store import pause_read
from tests.support.tasks import TIMEOUT_S

pytestmark = pytest.mark.anyio

SETTINGS = Settings(reaper_interval=1e6)


@pytest.fixture
async def commands(db: str) -> AsyncIterator[CommandQueue]:
    async with await callslip.open(db, SETTINGS) as ledger:
        yield ledger.commands


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def written(queue: CommandQueue) -> list[list[CallRecord]]:
    """Return a list that receives the commands that this process writes."""
    received: list[list[CallRecord]] = []
    queue.log.store.on_commands(received.append)
    return received


async def test_a_read_does_not_undo_an_own_write_meanwhile(commands: CommandQueue) -> None:
    """S3.4: a command that ends while the open ones are read is not open again."""
    await commands.submit("a", correlation_id="c")
    late = CommandQueue(commands.log)
    with pause_read(commands.log.store, "pending_commands") as paused:
        await late.submit("b", correlation_id="d")
        await paused.reached.wait()
        await commands.complete("c", 1)
        paused.resume.set()
        await until(lambda: late._monitor._cursor is not None)
    (command,) = late.tracker.pending
    assert command == (await commands.find("d")).id
    await late.close()


async def test_a_late_notice_of_an_own_write_does_not_undo_a_read(commands: CommandQueue) -> None:
    """Another process has ended the command since the write that is reported now."""
    received = await written(commands)
    await commands.submit("a", correlation_id="c")
    await commands.complete("c", 1)
    (queued,), (completed,) = received
    assert completed.change > queued.change
    commands._monitor._on_written([queued])
    assert not commands.tracker.pending


async def test_a_repeated_record_wakes_nobody(commands: CommandQueue) -> None:
    """A store may return a command more than once."""
    await commands.submit("a", correlation_id="c")
    with commands._monitor.wait_in_queue("default") as waiter:
        commands._monitor._apply([await commands.find("c")])
        assert not waiter._slot.future.done()


async def test_commands_of_another_process_are_read_in_pages(
    commands: CommandQueue, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, also those written while no command was open here."""
    monkeypatch.setattr(monitor, "PAGE_ROWS", 2)
    await commands.submit("first", correlation_id="first")
    await until(lambda: commands._monitor._cursor is not None)
    async with await callslip.open(db, SETTINGS) as other:
        for number in range(7):
            await other.commands.submit("a", correlation_id=f"c{number}")
        await until(lambda: len(commands.tracker.pending) == 8)
        await other.commands.complete("first", 1)
        await until(lambda: len(commands.tracker.pending) == 7)


async def test_what_happened_before_the_watch_started_again_is_read(db: str) -> None:
    """Also if the feed has noticed the change for another reader, and notices nothing later."""
    async with await callslip.open(db, Settings(reaper_interval=1e6, notice_interval=1e6)) as ledger:
        commands, feed = ledger.commands, ledger.log.feed
        await commands.submit("a", correlation_id="c")
        await until(lambda: commands._monitor._cursor is not None)
        await commands.complete("c", 1)
        feed.notice_change()
        await until(lambda: commands._monitor._watcher is None)
        async with await callslip.open(db, SETTINGS) as other:
            await other.commands.submit("a", correlation_id="d")
        feed.notice_change()
        assert not commands.tracker.pending
        await commands.submit("a", correlation_id="e")
        await until(lambda: len(commands.tracker.pending) == 2)


async def test_a_failed_load_is_repeated(commands: CommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another change."""
    await commands.submit("a")
    await until(lambda: not commands._monitor._is_loading)  # It uses the same store.
    monkeypatch.setattr(monitor, "RETRY_DELAY_MS", 1)
    failures = 0
    read = commands.log.store.pending_commands

    async def fail_twice(client: str, limit: int) -> list[CallRecord]:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise StoreError("the disk failed")
        return await read(client, limit)

    monkeypatch.setattr(commands.log.store, "pending_commands", fail_twice)
    late = CommandQueue(commands.log)
    await late.submit("b")
    await until(lambda: len(late.tracker.pending) == 2)
    assert failures == 3
    await late.close()


async def test_few_changes_are_remembered(commands: CommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the number of commands."""
    monkeypatch.setattr(monitor, "MAX_REMEMBERED", 10)
    for number in range(40):
        await commands.submit("a", correlation_id=f"c{number}")
        await commands.complete(f"c{number}", number)
    await until(lambda: not commands._monitor._is_loading)
    await commands.submit("a")
    assert len(commands._monitor._changes) <= 11


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
async def test_deadlines_follow_the_clock_of_the_store(
    commands: CommandQueue, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.4: a server's clock may differ from that of this machine."""
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s, monotonic=time.monotonic)
    for module in (sqlite, sqlite_rows):
        monkeypatch.setattr(module, "time", clock)
    started = time.monotonic()
    result = await commands.submit("a", timeout=0.1, wait=TIMEOUT_S)
    assert result.status == "expired" and 0.1 <= time.monotonic() - started < TIMEOUT_S / 2
