"""Several servers on one PostgreSQL database: each accepts writes, serves streams and answers for any session.

The servers are processes that count as running on different machines. They learn of each other's writes by
notifications alone: with polling off, what is not notified never arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.tokens import create_token, revoke_token
from callslip.client.token_file import hash_token
from tests.support import engines
from tests.support.cluster import (
    HEADERS,
    SHORT_LEASE_S,
    TIMEOUT_S,
    TOKEN,
    Cluster,
    Server,
    find_calls,
    find_requests,
    is_idle,
    start_held_turn,
    until,
)
from tests.support.fault_proxy import FaultProxy
from tests.support.live_server import StreamedResponse, fetch, requesting
from tests.support.mcp_client import (
    ClientTasks,
    begin_task,
    over_http,
    request_task,
    wait_for_status,
    wait_for_task,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ANSWERS = ("approval.granted", "approval.refused")
ENDS = ("call.completed", "call.cancelled")


def message(text: str) -> dict[str, Any]:
    return {"type": "message.user", "text": text}


# Reading


async def test_a_reader_gets_what_another_server_wrote(cluster: Cluster, session: str) -> None:
    """PGS1: each event once and in order, through streams of events and of entries."""
    seq = await cluster.a.append(session, message("first"))
    async with (
        cluster.a.streaming(f"/v1/sessions/{session}/stream?format=events") as events,
        cluster.a.streaming(f"/v1/sessions/{session}/stream?format=entries") as entries,
    ):
        for number in range(20):
            server = cluster.a if number % 5 == 4 else cluster.b
            seq = await server.append(session, message(f"text {number}."))
            await events.until(f'"text":"text {number}."'.encode())
        await entries.until(b'"text 19."')
    assert list_seqs(events) == list(range(1, seq + 1))
    assert await cluster.a.events(session) == await cluster.b.events(session)


def list_seqs(stream: StreamedResponse) -> list[int]:
    """Return the ids of the events that a stream has sent."""
    return [int(line.split(b": ")[1]) for line in stream.body.split(b"\n") if line.startswith(b"id: ")]


async def test_lists_show_what_another_server_wrote(cluster: Cluster, session: str) -> None:
    """PGS1: sessions, the inbox and commands on one connection."""
    async with cluster.a.streaming("/v1/stream?topic=sessions&topic=inbox&topic=commands") as lists:
        await lists.until(b'"commands"')
        await cluster.b.append(session, message("hello"))
        await lists.until(f'"{session}"'.encode())
        await cluster.b.append(
            session, {"type": "approval.requested", "toolName": "pay", "approval": "appr_00000000000a"}
        )
        await lists.until(b"appr_00000000000a")
        command = {"action": "print", "client": session, "session": session, "correlation_id": f"{session}-command"}
        assert (await cluster.b.post("/v1/calls", command)).status in (200, 202)
        await lists.until(f"{session}-command".encode())


async def test_a_blob_is_read_through_another_server(cluster: Cluster, session: str) -> None:
    """PGS1: it is stored in the database, before the event that names it."""
    text = "large " * 50_000
    start = {"type": "call.started", "aliases": [["me", "c1"]], "toolName": "read"}
    await cluster.a.append(session, start, {"type": "call.completed", "aliases": [["me", "c1"]], "output": text})
    (stored,) = [event["blob"] for event in await cluster.b.events(session) if "blob" in event]
    blob = await fetch(f"{cluster.b.url}/v1/blobs/{stored['hash']}", headers=HEADERS)
    assert blob.status == 200 and text in blob.text


async def test_a_conversation_continues_on_another_server(cluster: Cluster, session: str) -> None:
    """PGS1: the halves of a tag arrive at different servers."""
    path = f"/v1/sessions/{session}/events?format=shell"
    for server, body in ((cluster.a, ["Look: <sh"]), (cluster.b, ["ell>ls -l"]), (cluster.a, [" /tmp</shell> done"])):
        assert (await server.post(path, body)).status in (200, 201)
    entries = (await cluster.b.get(f"/v1/sessions/{session}?format=entries"))["entries"]
    shown = [entry.get("content") or entry.get("title") for entry in entries]
    assert shown == ["Look: ", "ls -l /tmp", " done"]


# Approvals


async def test_a_call_that_waits_is_approved_through_another_server(cluster: Cluster, session: str) -> None:
    """PGS2: the program that asked uses one server, the person who answers another one."""
    await cluster.b.append(session, message("Deploy it."))
    async with callslip.connect(cluster.a.url, token=TOKEN) as agent:

        async def ask() -> str:
            async with agent.session(session).call("deploy", {"to": "staging"}, approval=True) as call:
                call.complete("deployed")
            return (await agent.find_call(call.id)).state

        waiting = asyncio.create_task(ask())
        (request,) = await until(lambda: find_requests(cluster.b, session), "no request arrived")
        response = await cluster.b.post(f"/v1/approvals/{request['approval']}", {"decision": "approve"})
        assert response.status == 200, response.text
        async with asyncio.timeout(TIMEOUT_S):
            assert await waiting == "completed"


def request_approval(number: int) -> dict[str, Any]:
    """Return a request of a program elsewhere."""
    return {"type": "approval.requested", "aliases": [["me", f"c{number}"]], "toolName": "pay", "input": {"n": number}}


async def test_of_two_answers_through_two_servers_one_wins(cluster: Cluster, session: str, scale: int) -> None:
    """PGS2: the other one gets a conflict that names the first; the log has one answer."""
    await cluster.a.append(session, *map(request_approval, range(10 * scale)))
    requests = await find_requests(cluster.b, session)
    assert len(requests) == 10 * scale
    for number, request in enumerate(requests):
        path = f"/v1/approvals/{request['approval']}"
        servers = (cluster.a, cluster.b) if number % 2 else (cluster.b, cluster.a)
        answers = await asyncio.gather(
            servers[0].post(path, {"decision": "approve"}), servers[1].post(path, {"decision": "deny", "reason": "no"})
        )
        assert sorted(answer.status for answer in answers) == [200, 409]
        first, second = sorted(answers, key=lambda answer: answer.status)
        assert second.json().get("current") == first.json(), (second.text, first.text)
    answered = [event for event in await cluster.a.events(session) if event["type"] in ANSWERS]
    assert len(answered) == len(requests) and not [event for event in answered if "verdict" in event]


# Calls and commands


async def test_of_cancel_and_result_through_two_servers_one_ends_the_call(
    cluster: Cluster, session: str, scale: int
) -> None:
    """PGS3: each call has one end that is applied, which both servers report."""
    for number in range(10 * scale):
        call = f"{session}-{number}"
        command = {"action": "x", "client": session, "session": session, "correlation_id": call}
        assert (await cluster.a.post("/v1/calls", command)).status in (200, 202)
        claim = (await cluster.b.post("/v1/calls/claim", {"client": session})).json()
        result = {"result": "done", "fence": claim["fence"]}
        await asyncio.gather(
            cluster.a.post(f"/v1/calls/{call}/result", result), cluster.b.post(f"/v1/calls/{call}/cancel", {})
        )
        states = [(await server.get(f"/v1/calls/{call}"))["state"] for server in (cluster.a, cluster.b)]
        assert states[0] == states[1] and states[0] in ("completed", "cancelled")
        ends = [event for event in await cluster.a.events(session) if event.get("call") == claim["call"]]
        applied = [event["type"] for event in ends if event["type"] in ENDS and "verdict" not in event]
        assert applied == [f"call.{states[0]}"]


async def test_a_worker_gets_a_command_that_another_server_took(cluster: Cluster, session: str) -> None:
    """PGS3: the worker waits at one server and the caller at another; both hear of the other by notification."""
    async with serve_worker(cluster.b, session), callslip.connect(cluster.a.url, token=TOKEN) as caller:
        for number in range(5):
            command = await caller.commands.submit("double", {"n": number}, queue=session, wait=TIMEOUT_S)
            assert (command.status, command.result) == ("complete", 2 * number)


async def test_an_mcp_task_is_read_and_cancelled_through_another_server(cluster: Cluster, session: str) -> None:
    """PGS3: MCP clients of two servers see the same command, whose worker is connected to the second one."""
    a, b = (
        over_http(f"{server.url}/mcp", token=TOKEN, extensions=[ClientTasks()]) for server in (cluster.a, cluster.b)
    )
    async with a as caller, b as other, serve_worker(cluster.b, session):
        result = await caller.call_tool("interact", {"action": "double", "params": {"n": 21}, "client": session})
        assert result.structured_content is not None and result.structured_content["result"] == 42
        done = await wait_for_task(other.session, result.structured_content["correlation_id"])
        assert done["result"]["structuredContent"] == result.structured_content
        waiting = await begin_task(caller, "interact", action="double", client=f"{session}-no-worker")
        assert (await request_task(other.session, "get", waiting))["status"] == "working"
        await request_task(other.session, "cancel", waiting)
        assert (await wait_for_status(caller.session, waiting, "cancelled"))["taskId"] == waiting


@asynccontextmanager
async def serve_worker(server: Server, queue: str) -> AsyncGenerator[None]:
    """Run a worker that is connected to a server."""
    worker = callslip.Worker(server.url, queue=queue, token=TOKEN)

    @worker.action("double")
    async def double(n: int) -> int:
        return 2 * n

    task = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await task


# Prompts


async def test_a_prompt_is_stopped_through_another_server(cluster: Cluster, session: str) -> None:
    """PGS4: one turn runs at a time. The server that answers it stops its work, and both accept the next prompt."""
    turn = await start_held_turn(cluster.a, session)
    path = f"/v1/sessions/{session}/prompt"
    refused = await cluster.b.post(path, {"text": "another"})
    assert refused.status == 409, refused.text
    assert (await cluster.b.post(f"{path}/stop")).json() == {"stopped": True}
    assert await until(lambda: find_calls(cluster.a, session, "cancelled"), "the call has not ended")
    (ended,) = [event for event in await cluster.a.events(session) if event["type"] == "turn.ended"]
    assert (ended["turn"], ended["reason"]) == (turn, "cancelled")
    for server in (cluster.a, cluster.b):
        assert (await server.post(path, {"text": f"by {server.machine}"})).status == 202
        await until(lambda: is_idle(cluster.b, session), "the turn has not ended")
    entries = (await cluster.b.get(f"/v1/sessions/{session}?format=entries"))["entries"]
    replies = [entry["content"] for entry in entries if entry.get("role") == "assistant"]
    assert replies == ["by machine-a", "by machine-b"]


# Access


async def test_a_token_is_revoked_for_all_servers_at_once(cluster: Cluster, session: str) -> None:
    """PGS5: its streams end, and its next request is refused, although another process revoked it."""
    await cluster.a.append(session, message("hello"))
    async with callslip.open(cluster.database) as ledger:
        record = await create_token(ledger.log, hash_token("a-token-to-be-revoked"), verbs=("read",))
        headers = {"authorization": "Bearer a-token-to-be-revoked"}
        async with (
            requesting(f"{cluster.a.url}/v1/sessions/{session}/stream?format=events", headers=headers) as first,
            requesting(f"{cluster.b.url}/v1/stream?topic=sessions", headers=headers) as second,
        ):
            await first.until(b"hello")
            await second.until(session.encode())
            await revoke_token(ledger.log, record.id)
            async with asyncio.timeout(TIMEOUT_S):
                for stream in (first, second):
                    async for _ in stream.pieces():
                        pass
        for server in (cluster.a, cluster.b):
            assert (await fetch(f"{server.url}/v1/sessions", headers=headers)).status == 401


async def test_each_server_reports_the_whole_ledger(cluster: Cluster, session: str) -> None:
    """PGS1: health, counts of open calls, and a search."""
    await cluster.a.append(session, {"type": "call.proposed", "toolName": f"tool-of-{session}", "scope": "detached"})
    for server in (cluster.a, cluster.b):
        assert (await fetch(f"{server.url}/healthz")).json()["status"] == "ok"
        metrics = (await fetch(f"{server.url}/metrics", headers=HEADERS)).text
        (count,) = [
            line.split()[1] for line in metrics.split("\n") if line.startswith('callslip_open_calls{state="queued"')
        ]
        assert int(count) >= 1
        (found,) = (await server.get(f"/v1/calls?q=OF-{session.upper()}&session={session}"))["calls"]
        assert (await server.get(f"/v1/find?id={found['call']}"))["call"]["session"] == session
        assert (await server.get(f"/v1/sessions/{session}/entries?q=tool:tool-of-{session}"))["entries"]


# Servers that end


async def test_a_killed_server_ends_what_it_owned_after_one_lease(cluster: Cluster, session: str) -> None:
    """PGS6: with a reason, and not before its lease has ended by the clock of the database."""
    server = Server("machine-c", cluster.database, cluster.home, owner_lease=SHORT_LEASE_S)
    try:
        turn = await start_held_turn(server, session)
    finally:
        server.kill()
    leases = engines.fetch_rows(cluster.database, "SELECT until FROM owners WHERE strpos(id, 'machine-c ') = 1")
    await until(lambda: is_idle(cluster.b, session), "the turn has not ended")
    (ended,) = [event for event in await cluster.a.events(session) if event["type"] == "turn.ended"]
    assert (ended["turn"], ended["reason"]) == (turn, "eof")
    assert ended["detail"] == "the process that owns this turn stopped renewing its lease"
    (lost,) = [event for event in await cluster.a.events(session) if event["type"] == "call.lost"]
    assert leases and min(ended["at"], lost["at"]) > max(until for (until,) in leases)


async def test_an_approval_outlives_the_server_that_took_it(cluster: Cluster, session: str) -> None:
    """PGS6: it is answered through another server, and the restarted one has the answer."""
    server = Server("machine-c", cluster.database, cluster.home, owner_lease=SHORT_LEASE_S)
    try:
        await server.append(session, request_approval(1))
    finally:
        server.kill()
    (request,) = await find_requests(cluster.a, session)
    server = Server("machine-c", cluster.database, cluster.home, owner_lease=SHORT_LEASE_S)
    try:
        assert await find_requests(server, session) == [request]
        answer = await cluster.b.post(f"/v1/approvals/{request['approval']}", {"decision": "approve"})
        assert answer.status == 200
        assert await server.get(f"/v1/approvals/{request['approval']}") == answer.json()
    finally:
        server.kill()


async def test_an_outage_of_the_database_ends_nothing_that_lives(tmp_path: Path, session: str) -> None:
    """PGS7: it lasts longer than a lease, so no server can renew; afterwards readers continue without a gap.

    One server is connected again before the other one, which then has the time of a lease to renew its own.
    """
    port = engines.server().port
    with FaultProxy(port) as first, FaultProxy(port) as second, engines.new_database(engines.POSTGRES) as database:
        urls = [database.replace(f":{port}/", f":{proxy.port}/") for proxy in (first, second)]
        settings: dict[str, Any] = {"owner_lease": SHORT_LEASE_S, "command_lease": TIMEOUT_S}
        one = Server("machine-1", urls[0], tmp_path, **settings)
        two = Server("machine-2", urls[1], tmp_path, **settings)
        try:
            turn = await start_held_turn(one, session)
            async with two.streaming(f"/v1/sessions/{session}/stream?format=events") as stream:
                await stream.until(b"call.started")
                deadline = await request_with_deadline(two, database, session)
                for proxy in (first, second):
                    await asyncio.to_thread(proxy.stall)
                health = await fetch(f"{one.url}/healthz")  # It does not wait for the database to return.
                assert (health.status, health.json()["status"]) == (503, "unavailable")
                end = max(*list_leases(database).values(), deadline)
                await until_clock_passes(database, end + 1000 * SHORT_LEASE_S)
                await asyncio.to_thread(second.resume)
                await stream.until(b"approval.refused")  # A round of the reaper has run.
                await asyncio.to_thread(first.resume)
                for number in range(5):
                    await one.append(session, message(f"after {number}."))
                await stream.until(b"after 4.")
                seqs = list_seqs(stream)
            assert seqs == list(range(1, len(seqs) + 1))
            await until_clock_passes(database, max(list_leases(database).values()))  # Both have renewed since.
            assert (await two.get(f"/v1/sessions?id={session}"))["sessions"][0]["turn"] == turn
            assert (await two.post(f"/v1/sessions/{session}/prompt/stop")).json() == {"stopped": True}
        finally:
            one.kill()
            two.kill()


async def request_with_deadline(server: Server, database: str, session: str) -> int:
    """Request an approval that expires soon, and return when, by the clock of the database."""
    ((now,),) = engines.fetch_rows(database, "SELECT callslip_clock()")
    await server.append(session, {**request_approval(1), "expiresAt": now + 1000})
    return now + 1000


def list_leases(database: str) -> dict[str, int]:
    """Return the end of the lease of each owner."""
    return dict(engines.fetch_rows(database, "SELECT id, until FROM owners"))


async def until_clock_passes(database: str, time_ms: float) -> None:
    """Wait until the clock of the database is past a time."""

    async def is_past() -> bool:
        ((now,),) = await asyncio.to_thread(engines.fetch_rows, database, "SELECT callslip_clock()")
        return now > time_ms

    await until(is_past, "the clock of the database stands still")
