"""Streams over a store whose reads wait: nothing that is written meanwhile is missed or mixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.api.tokens import create_token, revoke_token
from callslip.client.token_file import hash_token
from callslip.errors import NotFoundError
from callslip.http.access import AllowAll
from callslip.http.broadcast import wait_any
from callslip.http.revocations import Revocations
from callslip.model import events as ev
from callslip.settings import Limits, Settings
from tests.support.slow_store import pause_read
from tests.support.tasks import TIMEOUT_S

pytestmark = pytest.mark.anyio

NEVER_S = 1e6


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, Settings(notice_interval=NEVER_S, reaper_interval=NEVER_S)) as instance:
        yield instance


async def say(ledger: LocalLedger, session: str, *texts: str) -> None:
    await ledger.log.append(session, [ev.MessageUser(text=text) for text in texts])


async def test_a_write_while_a_list_is_read_updates_the_list(ledger: LocalLedger) -> None:
    """Without a later write, and without a poll."""
    await say(ledger, "a", "x")
    hub = http.Server(ledger, AllowAll()).hub
    async with hub.by_topic("sessions") as live_list, asyncio.timeout(TIMEOUT_S):
        while ledger.log.feed._watchers == 0:
            await asyncio.sleep(0.001)
        with pause_read(ledger.log.store, "list_sessions") as paused:
            await say(ledger, "b", "x")
            await paused.reached.wait()
            await say(ledger, "c", "x")
            paused.resume.set()
            while set(live_list.rows) != {"a", "b", "c"}:
                await wait_any((live_list.broadcast,))


async def test_a_token_that_is_removed_while_tokens_are_read_ends_its_requests(ledger: LocalLedger) -> None:
    """The removal is not missed, although the read began before it."""
    token = await create_token(ledger.log, hash_token("the token of a test"), verbs=("read",))
    revocations = Revocations(ledger.log)

    async def check_access() -> None:
        if token.id not in {record.id for record in await ledger.log.store.tokens()}:
            raise NotFoundError("no token")

    async def wait() -> None:
        async with revocations.cancel_when_refused(check_access):
            await asyncio.Event().wait()

    request = asyncio.create_task(wait())
    async with asyncio.timeout(TIMEOUT_S):
        while not ledger.log.feed._external_waiters:
            await asyncio.sleep(0.001)
        with pause_read(ledger.log.store, "tokens") as paused:
            ledger.log.feed.notice_change()
            await paused.reached.wait()
            await revoke_token(ledger.log, token.id)
            paused.resume.set()
            with pytest.raises(NotFoundError):
                await request


@pytest.mark.parametrize("format", ["entries", "ui-v6"])
async def test_a_stream_does_not_continue_in_a_session_that_replaced_its_own(ledger: LocalLedger, format: str) -> None:
    """The new session of the same name may belong to another user."""
    await say(ledger, "a", "own")
    record = await ledger.find_session("a")
    hub = http.Server(ledger, AllowAll()).hub

    async def open_stream() -> None:
        opening = hub.by_seq(record, format) if format == "entries" else hub.by_turn(record, format, "")
        async with opening:
            pass

    with pause_read(ledger.log.store, "checkpoint") as paused:
        reading = asyncio.create_task(open_stream())
        await paused.reached.wait()
        await ledger.delete("a")
        await say(ledger, "a", "of", "somebody", "else")
        paused.resume.set()
        with pytest.raises(NotFoundError):
            await reading


async def test_a_stream_that_an_older_read_replaced_still_gets_heartbeats(ledger: LocalLedger) -> None:
    """Its readers stay connected until they leave."""
    await say(ledger, "a", "x")
    record = await ledger.find_session("a")
    hub = http.Server(ledger, AllowAll(), Limits(heartbeat=0.001)).hub

    async def open_stream() -> None:
        async with hub.by_seq(record, "entries"):
            pass

    with hub.reader(""), pause_read(ledger.log.store, "session") as paused:
        late = asyncio.create_task(open_stream())
        await paused.reached.wait()
        await ledger.delete("a")
        await say(ledger, "a", "y")
        new = await ledger.find_session("a")
        async with hub.by_seq(new, "entries") as stream, asyncio.timeout(TIMEOUT_S):
            paused.resume.set()
            with pytest.raises(NotFoundError):
                await late
            heartbeats = stream.broadcast.heartbeats
            while stream.broadcast.heartbeats == heartbeats:
                await wait_any((stream.broadcast,))
