"""Writes of hundreds of records that their process does not know: they are read in a few steps, on every engine."""

from __future__ import annotations

import asyncio

import pytest

import callslip
from callslip.model import events as ev
from callslip.model.events import Alias, Draft
from callslip.settings import Settings
from tests.support.invariants import find_faults, read_events

pytestmark = pytest.mark.anyio
COUNT = 300


async def test_a_large_write_with_keys_can_be_repeated_elsewhere(db: str) -> None:
    """Another process returns the same events, and writes nothing."""
    drafts = [Draft(ev.MessageUser(text=str(number)), key=f"key {number}") for number in range(COUNT)]
    async with callslip.open(db) as first, callslip.open(db) as second:
        stored = await first.log.append("s", drafts)
        for _ in range(2):
            assert await second.log.append("s", drafts) == stored
        assert await read_events(first, "s") == stored


async def test_a_log_of_many_calls_can_be_copied_twice(db: str) -> None:
    """The calls are found by their foreign ids, which another process has written."""
    drafts = [
        Draft(event, key=f"{type(event).__name__} {number}")
        for number in range(COUNT)
        for event in (
            ev.CallProposed(tool_name="x", aliases=(Alias("test", str(number)),)),
            ev.CallStarted(aliases=(Alias("test", str(number)),)),
            ev.CallCompleted(aliases=(Alias("test", str(number)),), output="done"),
        )
    ]
    async with callslip.open(db) as first, callslip.open(db) as second:
        await first.log.append("other", drafts)
        stored = await first.log.append("s", drafts)
        assert await second.log.append("s", drafts) == stored
        assert not await find_faults(second)


async def test_many_calls_of_a_closed_process_end_together(db: str) -> None:
    """Another process ends them, in all sessions."""
    opened = [ev.TurnStarted(), *(ev.CallStarted(tool_name="x") for _ in range(30))]
    async with callslip.open(db) as first, callslip.open(db) as second:
        await asyncio.gather(*(first.log.append(f"s{number}", opened, owner="gone") for number in range(10)))
        assert await second.log.close_owner("gone", "the process ended") == 310  # With the turns.
        assert not (await second.calls(states=["running"])).items
        assert not await find_faults(second)


async def test_many_large_outputs_are_written_together(db: str) -> None:
    """Each is stored outside of its event, before it."""
    outputs = [f"{number} " + "x" * 2000 for number in range(150)]
    events = [
        event
        for number, output in enumerate(outputs)
        for event in (
            ev.CallStarted(tool_name="x", aliases=(Alias("test", str(number)),)),
            ev.CallCompleted(aliases=(Alias("test", str(number)),), output=output),
        )
    ]
    async with await callslip.open(db, Settings(inline_limit=1000)) as ledger:
        stored = await ledger.log.append("s", events)
        assert len({event.blob.hash for event in stored if isinstance(event, ev.CallCompleted) and event.blob}) == 150
        assert not await find_faults(ledger)


async def test_a_full_queue_makes_room_for_many_commands_at_once(db: str) -> None:
    """Each new command expires the oldest one."""
    settings = Settings(queue_limit=100, queue_overflow="expire_oldest")
    async with await callslip.open(db, settings) as ledger:
        await asyncio.gather(*(ledger.commands.submit("x", {"n": n}, queue="q") for n in range(250)))
        pending = await ledger.commands.pending("q", limit=1000)
        assert len(pending) == 100
        assert not await find_faults(ledger)
