"""Lists of sessions, their usage and their deletion over HTTP, as the library has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import HTTPConnection

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.errors import NotFoundError
from callslip.http.access import AllowAll, Principal
from callslip.http.app import build
from callslip.model import events as ev
from callslip.model.records import SessionRecord
from callslip.model.views import session_view
from callslip.settings import Settings
from tests.support.live_server import fetch, running

pytestmark = pytest.mark.anyio
SETTINGS = Settings(synchronous="OFF", reaper_interval=3600)


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    """A ledger with three sessions, which used 10, 20 and 30 tokens."""
    async with callslip.open("sqlite:///:memory:", SETTINGS) as instance:
        for number in (1, 2, 3):
            info = ev.SessionInfo(
                agent=f"agent {number % 2}", project="/work", labels={"n": number}, at=number * 10**12
            )
            used = ev.UsageReported(id="r", model="m", input_tokens=10 * number, cost=0.5, currency="USD", at=10**12)
            await instance.log.append(f"s{number}", [info, ev.MessageUser(text=f"Prompt {number}"), used])
        yield instance


class Guard:
    """Admit each caller to the sessions in its header, and let only `boss` delete."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: str) -> Principal:
        user = request.headers.get("x-user", "")
        if session is not None and user != "boss" and session.name != user:
            raise NotFoundError(f"no session {session.name!r}")
        return Principal(user or "nobody", can_delete=user == "boss")


async def test_a_list_over_http_is_that_of_the_ledger(ledger: LocalLedger) -> None:
    """LIST2: with the same filters, orders and pages; wrong ones are refused by name."""
    queries: list[dict[str, Any]] = [
        {},
        {"agent": "agent 1", "sort": "tokens"},
        {"states": ("idle", "running"), "label": "n=2"},
        {"query": "prompt 3", "project": "/work", "limit": 1},
        {"sort": "started", "descending": False, "limit": 2},
        {"name": "s2"},
    ]
    async with running(build(http.Server(ledger, AllowAll()), http.ROUTES)) as url, callslip.connect(url) as remote:
        for query in queries:
            local, found = await ledger.sessions(**query), await remote.sessions(**query)
            assert [session_view(row) for row in found.items] == [session_view(row) for row in local.items]
            assert found.items and found.cursor == local.cursor and found.is_complete
        for wrong in ("state=busy", "sort=size", "descending=perhaps", "colour=red", "cursor=x"):
            assert (await fetch(f"{url}/v1/sessions?{wrong}")).status == 400, wrong


async def test_usage_over_http_is_that_of_the_ledger(ledger: LocalLedger) -> None:
    """USE2: each group and filter; a wrong one is refused."""
    async with running(build(http.Server(ledger, AllowAll()), http.ROUTES)) as url, callslip.connect(url) as remote:
        for by, filters in (
            ("", {}),
            ("day", {"utc_offset_minutes": 60}),
            ("agent", {"model": "m"}),
            ("turn", {"session": "s1"}),
        ):
            report = await ledger.usage(by, **filters)
            assert report == await remote.usage(by, **filters) and report.groups
        for wrong in (
            "by=size",
            "by=turn",
            "since=-1",
            f"since={10**30}",
            f"until={2**53 + 1}",
            "utcOffsetMinutes=99999",
        ):
            assert (await fetch(f"{url}/v1/usage?{wrong}")).status == 400, wrong


async def test_usage_of_sessions_that_a_caller_may_not_read_is_left_out(ledger: LocalLedger) -> None:
    """USE2: sums as well as names."""
    async with running(build(http.Server(ledger, Guard()), http.ROUTES)) as url:
        mine = (await fetch(f"{url}/v1/usage?by=session", headers={"x-user": "s2"})).json()
        assert [(group["group"], group["inputTokens"]) for group in mine["groups"]] == [("s2", 20)]
        total = (await fetch(f"{url}/v1/usage", headers={"x-user": "s2"})).json()
        assert total["groups"][0]["inputTokens"] == 20


async def test_a_session_is_deleted_by_callers_with_that_right(ledger: LocalLedger) -> None:
    """LIST6: others get 403, or 404 for a session that they may not see; the rows are gone."""
    async with running(build(http.Server(ledger, Guard()), http.ROUTES)) as url:

        async def delete(session: str, user: str) -> int:
            return (await fetch(f"{url}/v1/sessions/{session}", "DELETE", headers={"x-user": user})).status

        assert await delete("s1", "s1") == 403 and await delete("s1", "s2") == 404
        assert await delete("nobody", "boss") == 404
        assert await delete("s1", "boss") == 204 and await delete("s1", "boss") == 404
    assert {record.name for record in (await ledger.sessions()).items} == {"s2", "s3"}
    with pytest.raises(NotFoundError):
        await ledger.find_session("s1")
