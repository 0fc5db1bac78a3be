"""A revoked token ends the streams and the waiting requests that were opened with it, and no others.

The rights of a stream are also checked with each heartbeat. Here that is once an hour, so that it ends no stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.api.tokens import create_token, revoke_token
from callslip.client.token_file import hash_token
from callslip.http.access import TokenAuthorizer
from callslip.mcp import http_app
from callslip.model import events as ev
from callslip.settings import Limits
from tests.support.live_server import HttpResponse, fetch, requesting, running

pytestmark = pytest.mark.anyio

MAIN = "a-token-that-is-long-enough-for-the-main-one"
LIMITS = Limits(heartbeat=3600, wait=60)
VERBS = ("read", "write", "approve", "execute")
NOTICE_S = 10.0
"""Only a request that does not end takes this long."""


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncGenerator[LocalLedger]:
    async with await callslip.open(str(tmp_path / "a.db")) as ledger:
        alias = (ev.Alias("test", "c1"),)
        call = ev.CallStarted(aliases=alias, tool_name="x")
        await ledger.log.append("s", [ev.TurnStarted(turn="t1"), ev.MessageUser(text="hi"), call])
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncGenerator[str]:
    server = http.Server(ledger, TokenAuthorizer(ledger.log, MAIN), LIMITS)
    async with running(http.app(server, mcp_app=http_app)) as url:
        yield url


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def add_token(ledger: LocalLedger, token: str) -> tuple[str, dict[str, str]]:
    """Create a token with all rights, and return its id and headers."""
    record = await create_token(ledger.log, hash_token(token), verbs=VERBS)
    return record.id, bearer(token)


async def revoke(tmp_path: Path, id: str) -> None:
    """Revoke a token as another process does: by its own connection."""
    async with await callslip.open(str(tmp_path / "a.db")) as other:
        await revoke_token(other.log, id)


STREAMS = [
    "/v1/sessions/s/stream?format=events",
    "/v1/sessions/s/stream?format=entries",
    "/v1/sessions/s/stream?format=ui-v6",
    "/v1/stream?session=s",
    "/v1/stream?topic=sessions",
]


@pytest.mark.parametrize("path", STREAMS)
async def test_a_revoked_token_ends_its_streams(tmp_path: Path, ledger: LocalLedger, url: str, path: str) -> None:
    """EDGE2: The response ends as usual, without an event after the revocation. Streams of other tokens continue."""
    id, revoked = await add_token(ledger, "revoked")
    _, other = await add_token(ledger, "other")
    async with requesting(url + path, headers=revoked) as ending, requesting(url + path, headers=other) as continuing:
        assert (ending.status, continuing.status) == (200, 200)
        await ending.until(b"\n\n")
        await continuing.until(b"\n\n")
        await revoke(tmp_path, id)
        async with asyncio.timeout(NOTICE_S):
            async for _ in ending.pieces():
                pass
        await ledger.log.append("s", [ev.MessageDelta(text="after the revocation"), ev.SessionInfo(title="renamed")])
        await continuing.until(b"renamed" if "topic" in path else b"after the revocation")
        assert b"after the revocation" not in ending.body
    assert (await fetch(url + path, headers=revoked)).status == 401


async def wait_readers(ledger: LocalLedger) -> None:
    """Return when a request waits for changes of the ledger."""
    async with asyncio.timeout(NOTICE_S):
        while not ledger.log.feed._watchers:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", ["session", "call", "claim", "submit"])
async def test_a_revoked_token_ends_waiting_requests(tmp_path: Path, ledger: LocalLedger, url: str, name: str) -> None:
    """EDGE2: They get 401 at once, not at the end of the wait."""
    id, headers = await add_token(ledger, "revoked")
    etag = (await fetch(f"{url}/v1/sessions/s", headers=headers)).headers["etag"]
    requests: dict[str, tuple[str, str, Any, dict[str, str]]] = {
        "session": ("/v1/sessions/s?wait=60", "GET", None, {"if-none-match": etag}),
        "call": ("/v1/calls/c1?wait=60", "GET", None, {}),
        "claim": ("/v1/calls/claim", "POST", {"wait": 60}, {}),
        "submit": ("/v1/calls?wait=60", "POST", {"action": "x", "session": "s"}, {}),
    }
    path, method, value, more = requests[name]
    waiting = asyncio.create_task(fetch(url + path, method, value=value, headers={**headers, **more}))
    await wait_readers(ledger)
    if name == "submit":
        async with asyncio.timeout(NOTICE_S):
            while not (await ledger.commands.pending("", 10)):
                await asyncio.sleep(0.001)
    await revoke(tmp_path, id)
    async with asyncio.timeout(NOTICE_S):
        assert (await waiting).status == 401


async def initialize(url: str, headers: dict[str, str]) -> HttpResponse:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"accept": "application/json, text/event-stream"}
    return await fetch(url, "POST", headers={**headers, **accept}, value=body)


async def test_a_revoked_token_ends_its_mcp_streams(tmp_path: Path, ledger: LocalLedger, url: str) -> None:
    """EDGE2: The stream of messages from the server ends; the next request is refused."""
    id, headers = await add_token(ledger, "revoked")
    session = (await initialize(f"{url}/mcp", headers)).headers["mcp-session-id"]
    stream_headers = {**headers, "accept": "text/event-stream", "mcp-session-id": session}
    async with requesting(f"{url}/mcp", headers=stream_headers) as stream:
        assert stream.status == 200
        await revoke(tmp_path, id)
        async with asyncio.timeout(NOTICE_S):
            async for _ in stream.pieces():
                pass
    assert (await initialize(f"{url}/mcp", headers)).status == 401


async def test_a_token_is_revoked_by_the_process_that_serves() -> None:
    """EDGE2: Also if the ledger is in memory, where no other connection shows the change."""
    async with await callslip.open("sqlite:///:memory:") as memory:
        await memory.log.append("s", [ev.SessionInfo(title="s")])
        server = http.Server(memory, TokenAuthorizer(memory.log, MAIN), LIMITS)
        id, headers = await add_token(memory, "revoked")
        async with (
            running(http.app(server)) as memory_url,
            requesting(f"{memory_url}/v1/sessions/s/stream", headers=headers) as stream,
        ):
            await stream.until(b"\n\n")
            await revoke_token(memory.log, id)
            async with asyncio.timeout(NOTICE_S):
                async for _ in stream.pieces():
                    pass


async def test_a_stream_that_starts_during_the_revocation_ends(ledger: LocalLedger, url: str) -> None:
    """EDGE2: However the start of a request and the revocation interleave, no stream stays open."""
    for number in range(10):
        id, headers = await add_token(ledger, f"revoked {number}".replace(" ", "-"))

        async def read(headers: dict[str, str] = headers) -> int:
            return (await fetch(f"{url}/v1/sessions/s/stream", headers=headers)).status

        reading = asyncio.create_task(read())
        for _ in range(number * 3):
            await asyncio.sleep(0)
        await revoke_token(ledger.log, id)
        async with asyncio.timeout(NOTICE_S):
            assert await reading in (200, 401)


async def test_other_changes_do_not_end_a_stream(tmp_path: Path, ledger: LocalLedger, url: str) -> None:
    """EDGE2: Neither a new token, nor the revocation of another one, nor events of another process."""
    _, headers = await add_token(ledger, "valid")
    async with requesting(f"{url}/v1/sessions/s/stream?format=events", headers=headers) as stream:
        await stream.until(b"\n\n")
        async with await callslip.open(str(tmp_path / "a.db")) as other:
            for number in range(3):
                id, _ = await add_token(other, f"other-{number}")
                await revoke_token(other.log, id)
            await other.log.append("s", [ev.MessageUser(text="the last one")])
        assert json.dumps("the last one").encode() in await stream.until(b"the last one")
