"""A ledger behind a server when the network or the server fails: leases, lost answers, reconnects, names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.client import remote_log
from callslip.client.remote_ledger import RemoteLedger
from callslip.http.access import AllowAll
from callslip.http.app import build
from callslip.model import events as ev
from callslip.settings import Settings
from tests.support.live_server import running

pytestmark = pytest.mark.anyio
TIMEOUT_S = 30.0
LEASE_S = 0.4


class LossyProxy:
    """Forward bytes to a server. While `drops` is positive, the server's answer to a POST is dropped."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self.drops = 0
        self.dropped: list[bytes] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        try:
            while request := await reader.read(65536):
                server_writer.write(request)
                answer = await server_reader.read(65536)
                if self.drops and request.startswith(b"POST"):
                    self.drops -= 1
                    self.dropped.append(answer)
                    return
                writer.write(answer)
        finally:
            server_writer.transport.abort()
            writer.transport.abort()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalLedger]:
    settings = Settings(reaper_interval=0.05, reaper_grace=0.0, ingest_lease=LEASE_S)
    async with callslip.open(tmp_path / "ledger.db", settings) as ledger:
        yield ledger


@pytest.fixture
async def url(backend: LocalLedger) -> AsyncIterator[str]:
    async with running(build(http.Server(backend, AllowAll()), http.ROUTES)) as url:
        yield url


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[tuple[LossyProxy, RemoteLedger]]:
    proxy = LossyProxy(url)
    async with proxy.running() as address, callslip.connect(address) as ledger:
        yield proxy, ledger


async def wait_until(condition: Any) -> None:
    """Wait until an async condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_connecting_does_no_io() -> None:
    """A server that does not run is noticed by the first request."""
    async with callslip.connect("http://127.0.0.1:9", token="t" * 16) as ledger:
        with pytest.raises(callslip.ServerUnavailableError, match=r":9: cannot connect: connection refused$"):
            await ledger.sessions()


async def test_an_address_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, or CALLSLIP_SERVER."""
    with pytest.raises(callslip.InvalidInputError, match="CALLSLIP_SERVER"):
        callslip.connect()
    monkeypatch.setenv("CALLSLIP_SERVER", "http://127.0.0.1:9")
    async with callslip.connect() as ledger:
        assert ledger.url == "http://127.0.0.1:9"
    with pytest.raises(callslip.InvalidInputError):
        callslip.connect("ftp://x")


async def test_a_call_outlives_its_lease(backend: LocalLedger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client renews the lease: a call that runs longer than it is not ended, one without a client is."""
    monkeypatch.setattr(remote_log, "CALL_LEASE_S", LEASE_S)
    async with callslip.connect(url) as ledger:
        async with ledger.session("s").call("slow") as call:
            for _ in range(2):  # Each abandoned call ends after one lease: two leases have passed.
                (started,) = await backend.log.append("s", [ev.CallStarted(call="new:1", tool_name="abandoned")])
                assert isinstance(started, ev.CallStarted)
                await ledger.wait(started.call, TIMEOUT_S)
                assert (await ledger.find_call(started.call)).state in ("lost", "expired")
            assert (await ledger.find_call(call.id)).state == "running"
            call.complete("done")
        assert (await ledger.find_call(call.id)).state == "completed"


async def test_a_call_of_a_disconnected_client_ends(backend: LocalLedger, url: str) -> None:
    """Without renewals the lease ends the call."""
    async with callslip.connect(url) as ledger:
        call = ledger.session("s").call("t")
        await call.__aenter__()
        await call._exit_stack.aclose()  # As if the process had died: no more renewals, no end.
    await wait_until(lambda: _has_state(backend, call.id, ("lost", "expired")))


async def _has_state(backend: LocalLedger, call: str, states: tuple[str, ...]) -> bool:
    record = await backend.find_call(call)
    return record.state in states


async def test_an_append_whose_answer_was_lost_is_written_once(
    backend: LocalLedger, proxy: tuple[LossyProxy, RemoteLedger]
) -> None:
    """The client sends it again with the same idempotency key, and receives the same events."""
    lossy, ledger = proxy
    lossy.drops = 1
    async with ledger.session("s").call("t", {"n": 1}) as call:
        lossy.drops = 1
        await call.progress("half")
        lossy.drops = 1
        call.complete("done")
    assert len(lossy.dropped) == 3 and all(b" 20" in answer[:20] for answer in lossy.dropped)
    types = [type(event).__name__ async for event in backend.events("s") if isinstance(event, ev.CallEvent)]
    assert types == ["CallProposed", "CallStarted", "CallProgress", "CallCompleted"]
    assert (await backend.find_call(call.id)).state == "completed"


async def test_an_answer_whose_confirmation_was_lost_counts(
    backend: LocalLedger, proxy: tuple[LossyProxy, RemoteLedger]
) -> None:
    """The repeated answer finds its own first one, and is no conflict."""
    lossy, ledger = proxy
    (request,) = await backend.log.append("s", [ev.ApprovalRequested(tool_name="t")], owner=backend.log.owner)
    assert isinstance(request, ev.ApprovalRequested)
    lossy.drops = 1
    assert (await ledger.approve(request.approval)).state == "granted"
    assert len(lossy.dropped) == 1
    with pytest.raises(callslip.ConflictError):
        await ledger.approve(request.approval)


async def test_a_command_whose_confirmation_was_lost_is_queued_once(proxy: tuple[LossyProxy, RemoteLedger]) -> None:
    """A submission carries an idempotency key."""
    lossy, ledger = proxy
    lossy.drops = 1
    command = await ledger.commands.submit("resize")
    assert len(lossy.dropped) == 1
    assert [item.correlation_id for item in await ledger.commands.pending()] == [command.correlation_id]


async def test_the_token_names_the_author_of_an_answer(backend: LocalLedger, url: str) -> None:
    """`by` may repeat the name of the token; another one raises and answers nothing."""
    (request,) = await backend.log.append("s", [ev.ApprovalRequested(tool_name="t")], owner=backend.log.owner)
    assert isinstance(request, ev.ApprovalRequested)
    async with callslip.connect(url) as ledger:
        with pytest.raises(callslip.InvalidInputError) as refusal:
            await ledger.approve(request.approval, by="eve")
        assert refusal.value.field == "by"
        assert (await ledger.find_approval(request.approval)).state == "pending"
        with pytest.raises(callslip.InvalidInputError):
            await ledger.cancel(request.call, by="eve")
        name = (await ledger.approve(request.approval)).by
        assert (await backend.find_approval(request.approval)).by == name != "eve"


async def test_followers_and_waiters_survive_a_restart_of_the_server(backend: LocalLedger) -> None:
    """They reconnect by themselves, miss nothing, and report it once."""
    app = build(http.Server(backend, AllowAll()), http.ROUTES)
    reports: list[str] = []
    texts: list[str] = []
    await backend.log.append("s", [ev.MessageUser(text="one")])
    draft = ev.CallStarted(call="new:1", tool_name="t")
    (started,) = await backend.log.append("s", [draft], owner=backend.log.owner)
    assert isinstance(started, ev.CallStarted)

    async def follow(ledger: RemoteLedger) -> None:
        async with contextlib.aclosing(ledger.follow("s")) as events:
            async for event in events:
                if isinstance(event, ev.MessageUser):
                    texts.append(event.text)
                if texts[-1] == "three":
                    return

    async with contextlib.AsyncExitStack() as stack:
        async with running(app) as url:
            ledger = await stack.enter_async_context(callslip.connect(url, report=reports.append))
            follower = asyncio.create_task(follow(ledger))
            waiter = asyncio.create_task(ledger.wait(started.call, TIMEOUT_S))

            async def has_first() -> bool:
                return texts == ["one"]

            await wait_until(has_first)
        await backend.log.append("s", [ev.MessageUser(text="two")])

        async def has_reported() -> bool:
            return bool(reports)

        await wait_until(has_reported)
        async with running(app, port=urlsplit(url).port or 0):
            await backend.log.append("s", [ev.MessageUser(text="three"), ev.CallCompleted(call=started.call)])
            async with asyncio.timeout(TIMEOUT_S):
                await follower
                assert (await waiter).state == "completed"
    assert texts == ["one", "two", "three"]
    assert any(report.startswith("Reconnected to") for report in reports)


async def test_a_server_that_is_not_callslip_is_reported(tmp_path: Path) -> None:
    """The web server of another program is not mistaken for ours."""

    async def serve_html(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with running(serve_html) as url, callslip.connect(url) as ledger:
        for request in (ledger.sessions(), ledger.find_call("x"), ledger.commands.get("x")):
            with pytest.raises(callslip.ServerUnavailableError, match="not a Callslip server"):
                await request
        with pytest.raises(callslip.ServerUnavailableError, match="not a Callslip server"):
            await anext(ledger.follow("s"))
