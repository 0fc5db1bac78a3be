"""Agents that wait for an approval while what is between them and the person who answers is restarted.

The agent uses one server and the person another one. As in `test_several_servers.py` the servers do not poll the
database: what was written while one of them had no connection must be read when it has one again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import Ledger
from callslip.client.http import HttpPool, ServerSentEvent
from callslip.model import events as ev
from tests.support.cluster import (
    HEADERS,
    SHORT_LEASE_S,
    TIMEOUT_S,
    TOKEN,
    Cluster,
    Server,
    find_requests,
    is_idle,
    running_cluster,
    start_held_turn,
    until,
)
from tests.support.fault_proxy import FaultProxy
from tests.support.live_server import fetch
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
OUTPUT = {"deployed": "staging"}


class Agent:
    """An agent whose call waits for an approval."""

    def __init__(self, ledger: Ledger, session: str, reports: list[str]) -> None:
        self._ledger = ledger
        self._session = session
        self._reports = reports
        self._task = asyncio.create_task(self._call())

    async def _call(self) -> str:
        """Run a call that needs an approval, and return its id."""
        async with self._ledger.session(self._session).call("deploy", {"to": "staging"}, approval=True) as call:
            call.complete(OUTPUT)
        return call.id

    async def until_asked(self, server: Server) -> str:
        """Wait until a server shows the request, and return its id."""
        (request,) = await self._until(lambda: find_requests(server, self._session), "no request arrived")
        return request["approval"]

    async def until_disconnected(self) -> None:
        """Wait until the agent has reported that it lost its server."""

        async def is_disconnected() -> bool:
            return any(report.endswith("; retrying") for report in self._reports)

        await self._until(is_disconnected, "the agent is still connected")

    async def _until(self, condition: Callable[[], Any], problem: str) -> Any:
        async def check() -> Any:
            if self._task.done():
                raise AssertionError(f"the call has ended: {self._task.result()}")
            return await condition()

        return await until(check, problem)

    async def check_completed(self, server: Server) -> None:
        """Check that the call runs and completes, each step once."""
        async with asyncio.timeout(TIMEOUT_S):
            call = await self._task
        events = [event for event in await server.events(self._session) if event.get("call") == call]
        expected = ["call.proposed", "approval.requested", "approval.granted", "call.started", "call.completed"]
        assert [event["type"] for event in events] == expected
        assert events[-1]["output"] == OUTPUT
        assert not [event for event in events if "verdict" in event]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def waiting_agent(url: str, session: str) -> AsyncGenerator[Agent]:
    """Run an agent that is connected to a server."""
    reports: list[str] = []
    async with callslip.connect(url, token=TOKEN, report=reports.append) as ledger:
        await ledger.log.append(session, [ev.MessageUser(text="Deploy it.")])
        agent = Agent(ledger, session, reports)
        try:
            yield agent
        finally:
            await agent.stop()


async def approve(server: Server, approval: str) -> None:
    response = await server.post(f"/v1/approvals/{approval}", {"decision": "approve"})
    assert response.status == 200, response.text


@pytest.mark.parametrize("is_away", [True, False], ids=["while-it-is-away", "after-it-is-back"])
async def test_a_waiting_call_outlives_its_server(cluster: Cluster, session: str, is_away: bool) -> None:
    """PGS6: the server is killed and starts again on its port. Meanwhile, or later, another server gets the answer.

    What the killed server owned itself has ended before the later answer.
    """
    settings: dict[str, Any] = {"owner_lease": SHORT_LEASE_S}
    server = Server("machine-c", cluster.database, cluster.home, **settings)
    try:
        async with waiting_agent(server.url, session) as agent:
            approval = await agent.until_asked(cluster.b)
            await start_held_turn(server, f"{session}-turn")
            await asyncio.to_thread(server.kill)
            await agent.until_disconnected()
            if is_away:
                await approve(cluster.b, approval)
            server = await asyncio.to_thread(
                Server, "machine-c", cluster.database, cluster.home, server.port, **settings
            )
            if not is_away:
                await until(lambda: is_idle(cluster.b, f"{session}-turn"), "the turn has not ended")
                await approve(cluster.b, approval)
            await agent.check_completed(server)
    finally:
        server.kill()


async def test_a_waiting_call_outlives_its_server_before_it_follows(
    cluster: Cluster, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGS6: the server has taken the request, and is away before the agent has a stream of its session."""
    can_follow = asyncio.Event()
    open_stream = HttpPool.events

    async def open_stream_later(*arguments: Any) -> AsyncGenerator[ServerSentEvent]:
        await can_follow.wait()
        async with aclosing(open_stream(*arguments)) as events:
            async for event in events:
                yield event

    monkeypatch.setattr(HttpPool, "events", open_stream_later)
    with FaultProxy(cluster.a.port) as proxy:
        async with waiting_agent(f"http://127.0.0.1:{proxy.port}", session) as agent:
            approval = await agent.until_asked(cluster.b)
            proxy.refuse()
            can_follow.set()
            await agent.until_disconnected()
            await approve(cluster.b, approval)
            proxy.accept()
            await agent.check_completed(cluster.a)


async def test_a_waiting_call_outlives_a_restart_of_the_database(tmp_path: Path) -> None:
    """PGS7: after a restart of PostgreSQL, and after a crash, an answer through another server reaches the agent."""
    with PostgresServer() as postgres, running_cluster(postgres.create_database(), tmp_path) as cluster:

        def crash() -> None:
            postgres.kill9()
            postgres.start()

        for session, restart in (("restart", postgres.restart), ("crash", crash)):
            async with waiting_agent(cluster.a.url, session) as agent:
                approval = await agent.until_asked(cluster.b)
                await asyncio.to_thread(restart)
                await approve(cluster.b, approval)
                await agent.check_completed(cluster.a)
        for server in (cluster.a, cluster.b):
            assert (await fetch(f"{server.url}/healthz", headers=HEADERS)).status == 200
