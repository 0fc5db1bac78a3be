"""Test the limit for large data that readers hold."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.http.access import AllowAll
from callslip.http.app import build
from callslip.http.held_data import HeldData
from callslip.http.problems import TooManyReadersError
from callslip.model import events as ev
from callslip.settings import Limits, Settings
from tests.support.live_server import fetch, requesting, running

pytestmark = pytest.mark.anyio


class Holder:
    def __init__(self, progress_at: float) -> None:
        self.progress_at = progress_at
        self.is_cut = False

    def cut(self) -> bool:
        self.is_cut = True
        return True


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, Settings(synchronous="NORMAL", reaper_interval=3600.0)) as ledger:
        yield ledger


def test_the_same_object_is_counted_once() -> None:
    """RDR1: until the last holder has released it."""
    held, data, holders = HeldData(100), b"x" * 80, [Holder(time.monotonic()), Holder(time.monotonic())]
    for holder in holders:
        held.take(data, 80, holder)
    assert held.used_bytes == 80
    held.release(data, holders[0])
    assert held.used_bytes == 80
    with pytest.raises(TooManyReadersError):
        held.take(b"y" * 30, 30, holders[0])
    held.release(data, holders[1])
    assert held.used_bytes == 0
    held.take(b"z" * 500, 500, holders[0])  # One object is always possible, else its session could not be read.


def test_stalled_holders_are_cut_for_a_new_one() -> None:
    """RDR1: the one first that has stalled longest, and none that still reads."""
    now = time.monotonic()
    held, holders = HeldData(100), [Holder(now - 5), Holder(now - 60), Holder(now)]
    pieces = [bytes([number]) * 30 for number in range(3)]
    for piece, holder in zip(pieces, holders, strict=True):
        held.take(piece, 30, holder)
    held.take(b"n" * 40, 40, Holder(now))
    assert [holder.is_cut for holder in holders] == [False, True, False] and held.used_bytes == 100
    held.release(pieces[1], holders[1])  # It does so when it notices.
    assert held.used_bytes == 100
    with pytest.raises(TooManyReadersError):
        held.take(b"m" * 90, 90, Holder(now))


async def test_readers_of_many_large_events_do_not_add_up(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """RDR1: readers that stall in different large events are cut when another one needs the memory."""
    monkeypatch.setattr("callslip.http.held_data.PATIENCE_S", 0.05)
    await ledger.log.append("s", [ev.MessageUser(text=f"{number}" + "x" * 3_000_000) for number in range(6)])
    limits = Limits(shared_bytes=10_000_000, stall=600.0)
    server = http.Server(ledger, AllowAll(), limits)
    async with running(build(server, http.ROUTES)) as url, contextlib.AsyncExitStack() as stack:
        stream_url = f"{url}/v1/sessions/s/stream?format=events"
        for after in range(6):
            await stack.enter_async_context(requesting(f"{stream_url}&after={after}"))
            assert server.hub.held.used_bytes <= 10_000_000
        async with asyncio.timeout(60):
            while (again := await fetch(f"{stream_url}&after=2&follow=false")).body.count(b"event: event") < 4:
                assert server.hub.held.used_bytes <= 10_000_000
                await asyncio.sleep(0.05)
        assert again.status == 200
        assert server.hub.held.used_bytes <= 10_000_000
