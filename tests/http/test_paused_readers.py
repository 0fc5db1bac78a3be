"""Test readers that pause, and what changes meanwhile: lists, sessions that are replaced, and large responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.responses import Response

import callslip
from callslip.api.ledger import LocalLedger
from callslip.http.held_data import HeldData
from callslip.http.problems import TooManyReadersError
from callslip.http.sse import LargeResponse, Writer
from callslip.model import events as ev
from callslip.settings import Limits
from tests.support.live_server import fetch, running

pytestmark = pytest.mark.anyio

TIMEOUT_S = 20.0


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


async def authorize(request: Any, session: Any, verb: str) -> str | None:
    """Admit the owner of a session after a while, as an app does that asks its database."""
    await asyncio.sleep(0.001)
    user = request.headers["x-user"]
    return user if session is None or session.owner in ("", user) else None


class Reader:
    """A request to an app whose client can pause."""

    def __init__(self, app: Any, path: str, query: str = "") -> None:
        self.body = b""
        self.accepts = asyncio.Event()
        self.has_paused = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._changed = asyncio.Condition()
        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"},
            **{"path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http"},
            **{"query_string": query.encode(), "headers": [(b"host", b"localhost"), (b"x-user", b"ann")]},
            **{"server": ("localhost", 80), "client": ("127.0.0.1", 1)},
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.has_paused.set()
        await self.accepts.wait()
        async with self._changed:
            self.body += message.get("body", b"")
            self._changed.notify_all()

    async def until(self, condition: Callable[[bytes], bool]) -> None:
        """Wait until the body fulfils a condition, or the response has ended."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            while not condition(self.body) and not self.task.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()

    async def close(self) -> None:
        self._is_gone.set()
        await asyncio.wait([self.task])


@pytest.mark.parametrize("topic", ["inbox", "sessions"])
async def test_a_list_is_complete_although_its_readers_are_admitted_slowly(ledger: LocalLedger, topic: str) -> None:
    """The list is read again while the rights of a reader are checked."""
    for number in range(20):
        request = ev.ApprovalRequested(aliases=(ev.Alias("t", "1"),), tool_name="x")
        await ledger.log.append(f"s{number}", [request])
    reader = Reader(callslip.asgi(ledger, authorize=authorize), "/v1/stream", f"topic={topic}")
    reader.accepts.set()
    await reader.until(lambda body: b"\n\n" in body.partition(b"event: topic")[2])
    frame = reader.body.partition(b"event: topic")[2].partition(b"\n\n")[0]
    assert all(f'"s{number}"'.encode() in frame for number in range(20))
    await reader.close()


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/stream", "session=a&session=b"),
        ("/v1/sessions/b/stream", "format=entries"),
        ("/v1/sessions/b/stream", "format=events"),
        ("/v1/sessions/b/stream", "format=ui-v6"),
    ],
)
async def test_a_paused_reader_does_not_get_a_new_session_of_the_same_name(
    ledger: LocalLedger, path: str, query: str
) -> None:
    """Another user creates a session with the name of one that was deleted while its reader paused."""
    for name in "ab":
        await ledger.log.append(name, [ev.SessionInfo(owner="ann"), ev.MessageUser(text="mine")])
    reader = Reader(callslip.asgi(ledger, authorize=authorize), path, query)
    await asyncio.wait_for(reader.has_paused.wait(), TIMEOUT_S)
    await ledger.delete("b")
    await ledger.log.append("b", [ev.SessionInfo(owner="bob"), ev.MessageUser(text="a secret of bob")])
    reader.accepts.set()
    await ledger.log.append("b", [ev.MessageUser(text="another secret of bob")])
    await reader.until(lambda body: b"of bob" in body)
    assert b"of bob" not in reader.body
    await reader.close()


async def test_large_responses_that_are_not_accepted_have_a_limit() -> None:
    """A complete response counts as held data; if there is no room, the next one is answered with 503."""
    limits, held = Limits(reader_bytes=1000), HeldData(250_000)
    app = LargeResponse(Response(b"x" * 200_000, media_type="text/html"), limits, held)
    first, second = Reader(app, "/"), Reader(LargeResponse(Response(b"y" * 200_000), limits, held), "/")
    second.accepts.set()
    await asyncio.wait_for(first.has_paused.wait(), TIMEOUT_S)
    await asyncio.wait_for(second.task, TIMEOUT_S)
    assert b"try again later" in second.body and held.used_bytes == 200_000
    first.accepts.set()
    await asyncio.wait_for(first.task, TIMEOUT_S)
    assert first.body == b"x" * 200_000 and held.used_bytes == 0


async def test_a_large_export_counts_as_held_data(ledger: LocalLedger) -> None:
    """The limit applies to plain responses of the server too."""
    await ledger.log.append("s", [ev.MessageUser(text="x" * 300_000)])
    app = callslip.asgi(ledger, authorize=authorize, limits=Limits(shared_bytes=400_000))
    first, second = Reader(app, "/v1/sessions/s"), Reader(app, "/v1/sessions/s")
    second.accepts.set()
    await asyncio.wait_for(first.has_paused.wait(), TIMEOUT_S)
    await asyncio.wait_for(second.task, TIMEOUT_S)
    third = Reader(app, "/v1/sessions/s")
    third.accepts.set()
    await asyncio.wait_for(third.task, TIMEOUT_S)
    assert b"try again later" in third.body
    first.accepts.set()
    await asyncio.wait_for(first.task, TIMEOUT_S)
    assert first.body.count(b"x") >= 300_000


async def test_a_reader_whose_time_is_over_can_be_cut() -> None:
    """Its own timeout and the need of another reader may come at the same moment."""
    held, limits = HeldData(1000), Limits(stall=0.01, reader_bytes=1)

    async def send(_: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, lambda: results.append(writer.cut()))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            results.append(writer.cut())
            raise

    async def check_access() -> None: ...

    results: list[bool] = []
    writer = Writer(send, [], limits, held, check_access)
    with pytest.raises(TimeoutError):
        await writer(b"x" * 10)
    assert writer.cut() is False and True in results
    with contextlib.suppress(TooManyReadersError):
        held.take(object(), 10, writer)


async def test_an_mcp_body_of_too_many_values_is_refused(ledger: LocalLedger) -> None:
    """The SDK would parse it on the event loop."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[' + b"1," * 300_000 + b"1]}"
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with running(callslip.asgi(ledger, authorize=authorize)) as url:
        headers["x-user"] = "ann"
        response = await fetch(f"{url}/mcp", "POST", body=body, headers=headers)
        assert response.status == 413 and response.json()["limit"] == Limits().body_values
        small = await fetch(f"{url}/mcp", "POST", body=b'{"jsonrpc":"2.0","id":1,"method":"ping"}', headers=headers)
        assert small.status == 400 and "session" in small.text.lower()
