"""Notices for a person, and which of several processes sends one, on every engine."""

from __future__ import annotations

import asyncio

import pytest

import callslip
from callslip.api import notices
from callslip.api.notices import KEY_PREFIX, NoticeClaims, find_notices
from callslip.api.session_list import list_sessions
from callslip.model import events as ev
from callslip.model.notices import NoticeDelays
from callslip.settings import Settings

pytestmark = pytest.mark.anyio

SETTINGS = Settings(reaper_interval=3600.0)


async def test_one_of_many_claims_a_notice(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NTF4: also at the same time; a claim is renewed, finished and released by its owner only."""
    async with callslip.open(db, SETTINGS) as one, callslip.open(db, SETTINGS) as other:
        claims = [NoticeClaims(ledger.log, "receiver") for ledger in (one, other) * 4]
        results = await asyncio.gather(*(claim.claim("a", 60) for claim in claims))
        assert results.count(0) == 1 and None not in results
        owner = claims[results.index(0)]
        loser = claims[results.index(0) - 1]
        assert await owner.claim("a", 60) == 0
        await loser.finish("a", is_sent=True)
        await loser.release("a")
        assert await loser.claim("a", 60) != 0
        await owner.finish("a", is_sent=True)
        assert [await claim.claim("a", 60) for claim in claims] == [None] * 8
        assert await NoticeClaims(one.log, "another receiver").claim("a", 60) == 0

        assert await owner.claim("b", 60) == 0
        await owner.release("b")
        assert await loser.claim("b", 0) == 0
        async with asyncio.timeout(60):
            while await owner.claim("b", 60) != 0:  # Its clock may be a little behind that of the other one.
                await asyncio.sleep(0.001)
        await loser.finish("b", is_sent=True)

        names = [name for name, _ in await one.log.store.list_meta(KEY_PREFIX)]
        assert names == [f"{KEY_PREFIX}another receiver:a", f"{KEY_PREFIX}receiver:a", f"{KEY_PREFIX}receiver:b"]
        monkeypatch.setattr(notices, "KEPT_MS", -1000)
        await owner.forget_old({"a"})
        assert [name for name, _ in await other.log.store.list_meta(KEY_PREFIX)] == names, "b is claimed for a minute"
        await owner.finish("b", is_sent=False)
        await owner.forget_old({"a"})
        assert [name for name, _ in await other.log.store.list_meta(KEY_PREFIX)] == names[:2]


async def test_a_value_is_replaced_only_as_it_was_read(db: str) -> None:
    """NTF4: "" is a value that is not stored. A repeated call returns the same."""
    async with callslip.open(db, SETTINGS) as ledger:
        store = ledger.log.store
        assert [await store.replace_meta("k", "", value) for value in ("1", "2")] == [True, False]
        assert [await store.replace_meta("k", "1", value) for value in ("3", "4")] == [True, False]
        assert await store.meta("k") == "3"
        assert [await store.replace_meta("k", value, "") for value in ("1", "3", "3")] == [False, True, True]
        assert await store.meta("k") == "" and await store.list_meta("k") == []


async def test_a_label_of_an_old_session_is_no_news(db: str) -> None:
    """NTF3: what is known about a session may change long after its agent has finished."""
    async with callslip.open(db, SETTINGS) as ledger:
        old = 1_500_000_000_000
        turn = [ev.TurnStarted(at=old), ev.MessageUser(text="hi", at=old), ev.TurnEnded(at=old + 1)]
        await ledger.log.append("old", turn)
        await ledger.log.append("old", [ev.SessionInfo(labels={"a": "b"}, title="T")])
        await ledger.log.append("new", [ev.TurnStarted(), ev.TurnEnded()])
        found = await find_notices(ledger.log, NoticeDelays(), ("finished", "idle"), old + 1000)
        assert {notice.session for notice in found.values()} == {"new"}
        assert [each.active_at for each in (await list_sessions(ledger.log, {"name": "old"})).items] == [old + 1]


async def test_requests_that_are_known_are_not_read_again(db: str) -> None:
    """NTF1: a notice stays the same while its request is pending."""
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("s", [ev.ApprovalRequested(tool_name="Bash", description="may I?")])
        found = await find_notices(ledger.log, NoticeDelays(), ("approval",), 0)
        (notice,) = found.values()
        assert (notice.kind, notice.tool, notice.due - notice.at) == ("approval", "Bash", 2000)
        again = await find_notices(ledger.log, NoticeDelays(), ("approval",), 0, found)
        assert again[notice.id] is notice
        assert await find_notices(ledger.log, NoticeDelays(), ("finished", "idle"), 0) == {}
        await ledger.deny(notice.id)
        assert await find_notices(ledger.log, NoticeDelays(), ("approval",), 0, found) == {}
