"""Test snapshots that are read in pieces while the session changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import CursorExpiredError
from callslip.ledger import checkpoint
from callslip.ledger.snapshot_pages import SnapshotSource
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.settings import Settings

pytestmark = pytest.mark.anyio

S = "s"
PAGE_BYTES = 400
SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600.0, checkpoint_every=100_000)


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as ledger:
        yield ledger


def alias(name: object) -> tuple[Alias, ...]:
    return (Alias("t", str(name)),)


async def write_calls(ledger: LocalLedger, first: int, count: int, *, at: int = 0) -> None:
    """Write calls that have ended, with messages between them."""
    for number in range(first, first + count):
        await ledger.log.append(
            S,
            [
                ev.MessageUser(text=f"message {number} " + "x" * (number * 37 % 150), at=at),
                ev.CallStarted(aliases=alias(number), tool_name="look", at=at),
                ev.CallCompleted(aliases=alias(number), output=number, at=at),
            ],
        )


async def expected(ledger: LocalLedger, seq: int, limit: int = checkpoint.ALL) -> Any:
    snapshot = (await ledger.log.state_at(S, seq)).snapshot()
    document = json.loads(checkpoint.encode(snapshot))
    return document | {"entries": document["entries"][-limit:]}


def source(ledger: LocalLedger) -> SnapshotSource:
    return SnapshotSource(ledger.log.store, S, PAGE_BYTES)


@pytest.mark.parametrize("limit", [1, 2, 17, 1000, checkpoint.ALL])
@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_the_pieces_are_a_snapshot(ledger: LocalLedger, limit: int, has_checkpoint: bool) -> None:
    """RDR1: with any limit, with finished and open entries, they are the JSON of the same snapshot."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.CallStarted(aliases=alias("open"), tool_name="wait")])
    await write_calls(ledger, 0, 20)
    if has_checkpoint:
        await ledger.log.project(S)
    await write_calls(ledger, 20, 3)
    await ledger.log.append(S, [ev.CallProgress(aliases=alias(3), text="late"), ev.MessageDelta(text="text ✓")])
    snapshot = await source(ledger).open(limit)
    pieces = [piece async for piece in snapshot.pieces()]
    assert json.loads(b"".join(pieces)) == await expected(ledger, snapshot.seq, limit)
    assert all(len(piece) <= PAGE_BYTES + 200 for piece in pieces)


@pytest.mark.parametrize("limit", [60, checkpoint.ALL])
async def test_a_snapshot_stays_as_it_was_while_it_is_read(ledger: LocalLedger, limit: int) -> None:
    """RDR1: later events, checkpoints and late results between two pieces do not change it."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.CallStarted(aliases=alias("open"), tool_name="wait")])
    await write_calls(ledger, 0, 40)
    await ledger.log.append(S, [ev.CallProgress(aliases=alias(39), text="late before the checkpoint")])
    await ledger.log.project(S)
    await write_calls(ledger, 40, 2)
    await ledger.log.append(S, [ev.CallProgress(aliases=alias(38), text="late"), ev.MessageDelta(text="begun")])
    snapshot = await source(ledger).open(limit)
    document = await expected(ledger, snapshot.seq, limit)
    text, number = b"", 100
    async for piece in snapshot.pieces():
        text += piece
        number += 1
        await ledger.log.append(S, [ev.MessageDelta(text=" more"), ev.CallProgress(aliases=alias("open"), text="x")])
        await write_calls(ledger, number, 1)
        if number == 103:
            await ledger.log.append(S, [ev.CallCompleted(aliases=alias("open"), output="done")])
            late = [ev.CallProgress(aliases=alias(call), text="late") for call in (30, 37, 41)]
            await ledger.log.append(S, late)
        await ledger.log.project(S)
    assert number > 105
    assert json.loads(text) == document


async def test_readers_at_the_same_place_share_what_they_hold(ledger: LocalLedger) -> None:
    """RDR1: also a large entry, which is a piece of its own."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.MessageUser(text="x" * 50_000), ev.TurnEnded()])
    await ledger.log.project(S)
    snapshots = source(ledger)
    first, second = await snapshots.open(), await snapshots.open()
    assert first is second
    await write_calls(ledger, 0, 1)
    third = await snapshots.open()
    assert third is not first
    readers = [snapshot.pieces() for snapshot in (first, third)]
    for reader in readers:
        await anext(reader)
    large = [await anext(reader) for reader in readers]
    assert len(large[0]) > 50_000 and large[0] is large[1]
    for reader in readers:
        await reader.aclose()


async def test_much_text_since_the_checkpoint_is_not_held(ledger: LocalLedger) -> None:
    """RDR1: it is stored in a checkpoint first, and then read in pages."""
    await write_calls(ledger, 0, 100)
    snapshot = await source(ledger).open()
    assert snapshot.size <= PAGE_BYTES
    text = b"".join([piece async for piece in snapshot.pieces()])
    assert json.loads(text) == await expected(ledger, snapshot.seq)


async def test_retention_ends_a_snapshot_that_is_being_read(ledger: LocalLedger) -> None:
    """RDR1: a snapshot without the removed entries would not be one."""
    await write_calls(ledger, 0, 20, at=1000)
    await write_calls(ledger, 20, 5, at=5000)
    await ledger.log.project(S)
    snapshot = await source(ledger).open()
    pieces = snapshot.pieces()
    await anext(pieces)
    assert await checkpoint.prune(ledger.log.store, S, 2000)
    with pytest.raises(CursorExpiredError):
        async for _ in pieces:
            pass
