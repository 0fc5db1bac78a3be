"""Live streams over a real socket: every event once and in order, despite lost connections, built once for all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token, mint_token
from callslip.http.access import AllowAll, TokenAuthorizer
from callslip.http.app import build
from callslip.http.broadcast import Broadcast, wait_any
from callslip.http.streams import follow
from callslip.ledger import checkpoint
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.records import TokenRecord
from callslip.settings import Limits, Settings
from tests.support.live_server import StreamedResponse, fetch, requesting, running, serving_ledger
from tests.support.strategies import canonical_json

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600.0, redact=False)
ALIASES = (Alias("t", "1"),)
S = "s"


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as ledger:
        yield ledger


def text_delta(text: str) -> ev.MessageDelta:
    return ev.MessageDelta(text=text, chunks="delta")


async def read_frames(reply: StreamedResponse, last_id: int) -> list[dict[str, str]]:
    """Return the frames with an id, up to the one with this id."""
    frames: list[dict[str, str]] = []
    async with asyncio.timeout(30):
        async for frame in reply.frames():
            if "id" in frame:
                frames.append(frame)
            if frame.get("id") == str(last_id):
                break
    return frames


class Page:
    """The session that a page builds from the snapshot and the patches of a stream."""

    def __init__(self) -> None:
        self.seq = 0
        self.info: dict[str, Any] = {}
        self.entries: dict[int, dict[str, Any]] = {}

    def apply_frame(self, frame: dict[str, str]) -> None:
        data = json.loads(frame["data"])
        if frame["event"] == "snapshot":
            self.entries = {entry["id"]: entry for entry in data["entries"]}
            self.info = data["info"]
        else:
            assert data["seq"] == self.seq + 1
            for patch in data["patches"]:
                self._apply(patch)
        self.seq = data["seq"]

    def _apply(self, patch: dict[str, Any]) -> None:
        if patch["op"] == "put":
            self.entries[patch["entry"]["id"]] = patch["entry"]
            return
        target = self.entries[patch["id"]] if patch["id"] else self.info
        if patch["op"] == "set":
            for name, value in patch["fields"].items():
                if value is None:
                    target.pop(name, None)
                else:
                    target[name] = value
            return
        text = target.get(patch["field"], "")
        assert len(text.encode("utf-16-le")) // 2 == patch["offset"]
        target[patch["field"]] = text + patch["text"]

    def equals(self, document: dict[str, Any]) -> bool:
        entries = [self.entries[identity] for identity in sorted(self.entries)]
        return canonical_json([entries, self.info, self.seq]) == canonical_json(
            [document["entries"], document["info"], document["seq"]]
        )


async def test_a_stream_without_a_cursor_starts_with_a_snapshot(ledger: LocalLedger) -> None:
    """C9: snapshot and patches together give the session as a full read returns it."""
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("a"), ev.CallStarted(aliases=ALIASES, tool_name="look")])
    async with serving_ledger(ledger) as url, requesting(f"{url}/v1/sessions/{S}/stream") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        await reply.until(b"event: snapshot")
        await ledger.log.append(
            S, [text_delta("b"), ev.CallProgress(aliases=ALIASES, text="x😀"), ev.CallCompleted(aliases=ALIASES)]
        )
        await ledger.log.append(S, [ev.Raw(format="t", body={}), text_delta("c"), ev.TurnEnded()])
        page = Page()
        for frame in await read_frames(reply, 9):
            page.apply_frame(frame)
        assert page.equals((await fetch(f"{url}/v1/sessions/{S}")).json())
        assert reply.body.startswith(b"retry: 1000\n\n")


@pytest.mark.parametrize("format", ["events", "entries"])
async def test_a_stream_continues_after_the_cursor_from_query_or_header(ledger: LocalLedger, format: str) -> None:
    """C8: first from the log, then live, with no gap and no repeat."""
    await ledger.log.append(S, [text_delta(str(number)) for number in range(20)])
    async with serving_ledger(ledger) as url:
        stream_url = f"{url}/v1/sessions/{S}/stream?format={format}"
        async with (
            requesting(f"{stream_url}&after=7") as by_query,
            requesting(stream_url, headers={"Last-Event-ID": "12"}) as by_header,
            requesting(f"{stream_url}&after=3", headers={"Last-Event-ID": "15"}) as both,
        ):
            for reply, after in ((by_query, 7), (by_header, 12), (both, 15)):
                frames = await read_frames(reply, 20)
                assert [int(frame["id"]) for frame in frames] == list(range(after + 1, 21))
            await ledger.log.append(S, [text_delta("more")])
            for reply in (by_query, by_header, both):
                await reply.until(b"id: 21\n")


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("after=-1", {}, 400),
        ("after=21", {}, 400),
        ("after=x", {}, 400),
        ("after=1&after=2", {}, 400),
        ("", {"Last-Event-ID": "abc"}, 400),
        ("", {"Last-Event-ID": "-1"}, 400),
        ("", {"Last-Event-ID": "99999999999999999999999"}, 400),
        ("after=1&turn=t1", {}, 400),
        ("format=ui-v6&after=1", {}, 400),
        ("format=nonsense", {}, 400),
        ("format=openai", {}, 400),
        ("format=ui-v6&turn=none", {}, 404),
        ("format=events&follow=maybe", {}, 400),
        ("fromat=events", {}, 400),
    ],
)
async def test_an_invalid_cursor_is_refused(
    ledger: LocalLedger, query: str, headers: dict[str, str], status: int
) -> None:
    """A stream never silently restarts; the problem names the error."""
    await ledger.log.append(S, [ev.TurnStarted(), *[text_delta(str(number)) for number in range(19)]])
    async with serving_ledger(ledger) as url:
        answer = await fetch(f"{url}/v1/sessions/{S}/stream?{query}", headers=headers)
        assert answer.status == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


async def test_a_cursor_before_the_retained_events_gives_410(ledger: LocalLedger) -> None:
    """The problem has the last removed seq; a stream after it, or without a cursor, works."""
    for number in range(10):
        await ledger.log.append(S, [ev.MessageUser(text=str(number), at=1000 + number)])
    await checkpoint.prune(ledger.log.store, S, 1005)
    row = await ledger.log.store.session(S)
    assert row is not None and row.pruned_seq == 5
    async with serving_ledger(ledger) as url:
        stream_url = f"{url}/v1/sessions/{S}/stream?format=events&follow=false"
        expired = await fetch(f"{stream_url}&after=4")
        assert (expired.status, expired.json()["low"]) == (410, 5)
        assert (await fetch(f"{url}/v1/sessions/{S}/stream", headers={"last-event-id": "1"})).status == 410
        for valid_url in (f"{stream_url}&after=5", stream_url):
            assert (await fetch(valid_url)).body.count(b"\nid: ") + 1 == 6


@pytest.mark.chaos
async def test_a_reader_that_reconnects_many_times_gets_each_event_once(ledger: LocalLedger, scale: int) -> None:
    """C8: disconnected at random 200 times while 20,000 events are written."""
    total = 5_000 * scale
    rng = random.Random(7)

    async def write() -> None:
        for start in range(0, total, 50):
            await ledger.log.append(S, [text_delta(str(number)) for number in range(start, start + 50)])

    await ledger.log.append(S, [ev.MessageUser(text="first")])
    seqs: list[int] = []
    disconnects = 0
    async with serving_ledger(ledger) as url:
        writer = asyncio.ensure_future(write())
        while not seqs or seqs[-1] < total + 1:
            headers = {"last-event-id": str(seqs[-1])} if seqs else {}
            remaining = rng.randint(1, total // 200) if disconnects < 200 else total
            async with requesting(f"{url}/v1/sessions/{S}/stream?format=events", headers=headers) as reply:
                async for frame in reply.frames():
                    if "id" in frame:
                        seqs.append(int(frame["id"]))
                        remaining -= 1
                    if not remaining or seqs[-1:] == [total + 1]:
                        break
            disconnects += 1
        await writer
    assert disconnects > 200
    assert seqs == list(range(1, total + 2))


async def test_a_page_that_reconnects_many_times_shows_the_session(ledger: LocalLedger) -> None:
    """C9: the same for snapshot and patches, while entries of every kind change."""
    rng = random.Random(3)

    async def write() -> None:
        for number in range(150):
            aliases = (Alias("t", str(number)),)
            await ledger.log.append(
                S, [ev.TurnStarted(), text_delta("a"), ev.CallStarted(aliases=aliases), text_delta("b")]
            )
            await ledger.log.append(S, [ev.CallProgress(aliases=aliases, text="out"), ev.ThoughtDelta(text="hm")])
            await ledger.log.append(
                S, [ev.CallCompleted(aliases=aliases, output=number), text_delta("c"), ev.TurnEnded()]
            )
            await ledger.log.append(S, [ev.CallProgress(aliases=aliases, text="late")])
            await asyncio.sleep(0)

    await ledger.log.append(S, [ev.MessageUser(text="first")])
    page = Page()
    async with serving_ledger(ledger) as url:
        writer = asyncio.ensure_future(write())
        while page.seq < 1501:
            headers = {"last-event-id": str(page.seq)} if page.seq else {}
            async with requesting(f"{url}/v1/sessions/{S}/stream", headers=headers) as reply:
                remaining = rng.randint(1, 60)
                async for frame in reply.frames():
                    if "id" in frame:
                        page.apply_frame(frame)
                        remaining -= 1
                    if not remaining or page.seq == 1501:
                        break
        await writer
        assert page.equals((await fetch(f"{url}/v1/sessions/{S}")).json())


async def test_a_reader_that_is_far_behind_gets_a_snapshot(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader with an old cursor gets a snapshot instead of a long replay."""
    monkeypatch.setattr("callslip.ledger.queries.MAX_REPLAY_EVENTS", 5)
    await ledger.log.append(S, [text_delta(str(number)) for number in range(50)])
    await ledger.log.project(S)
    async with serving_ledger(ledger) as url:
        old_reader = await fetch(f"{url}/v1/sessions/{S}/stream?after=10&follow=false")
        new_reader = await fetch(f"{url}/v1/sessions/{S}/stream?after=2&follow=false")
        session = (await fetch(f"{url}/v1/sessions/{S}")).json()
    assert old_reader.body.count(b"event: snapshot") == 1 and b"event: patches" not in old_reader.body
    assert json.loads(old_reader.body.split(b"data: ")[1])["entries"] == session["entries"]
    assert new_reader.body.count(b"event: patches") == 48


async def test_idle_streams_are_kept_alive(ledger: LocalLedger) -> None:
    """The server sends comments, so that proxies do not close the connection."""
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("a")])
    async with serving_ledger(ledger, limits=Limits(heartbeat=0.02)) as url:
        for query in ("format=events", "format=entries", "format=ui-v6"):
            async with requesting(f"{url}/v1/sessions/{S}/stream?{query}") as reply:
                await reply.until(b"\n\n:\n\n:\n\n")


async def test_a_slow_reader_is_disconnected_and_can_resume(ledger: LocalLedger) -> None:
    """It blocks no other reader, and its cursor stays valid."""
    await ledger.log.append(S, [text_delta("a")])
    limits = Limits(backlog=16)
    async with serving_ledger(ledger, limits=limits) as url:
        async with requesting(f"{url}/v1/sessions/{S}/stream?format=events") as slow:
            await slow.until(b"id: 1\n")
            for _ in range(60):
                await ledger.log.append(S, [text_delta("x" * 60_000) for _ in range(5)])
            ids = [int(frame["id"]) async for frame in slow.frames() if "id" in frame]
        assert ids == list(range(1, ids[-1] + 1)) and ids[-1] < 301
        again = await fetch(f"{url}/v1/sessions/{S}/stream?format=events&follow=false&after={ids[-1]}")
        assert again.body.count(b"\nid: ") + again.body.startswith(b"id: ") == 301 - ids[-1]


async def test_a_reader_above_the_limit_gets_503(ledger: LocalLedger) -> None:
    """503, until a reader disconnects."""
    await ledger.log.append(S, [text_delta("a")])
    async with serving_ledger(ledger, limits=Limits(readers=2)) as url:
        stream_url = f"{url}/v1/sessions/{S}/stream"
        async with requesting(stream_url) as first, requesting(stream_url) as second:
            await first.until(b"snapshot")
            await second.until(b"snapshot")
            assert (await fetch(stream_url)).status == 503
        async with asyncio.timeout(20):
            while (await fetch(f"{stream_url}?follow=false")).status != 200:
                await asyncio.sleep(0.01)


async def test_stream_tasks_stop_when_the_last_reader_disconnects(ledger: LocalLedger) -> None:
    """A stream, its tasks and the heartbeat run only while there are readers."""
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("a")])
    server = http.Server(ledger, AllowAll())
    async with running(build(server, http.ROUTES)) as url:
        before = len(asyncio.all_tasks())
        for query in ("format=events", "format=entries", "format=ui-v6"):
            async with requesting(f"{url}/v1/sessions/{S}/stream?{query}") as reply:
                await reply.until(b"id: 2\n")
                assert server.hub.readers == 1
            async with asyncio.timeout(20):
                while server.hub.readers or len(asyncio.all_tasks()) > before:
                    await asyncio.sleep(0.01)
            assert not server.hub._streams and server.hub._heartbeat is None


async def test_a_frame_is_built_once_for_all_readers(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is built once for any number of readers."""
    count = 0
    frame = http.sse.frame

    def count_frame(*args: Any, **more: Any) -> bytes:
        nonlocal count
        count += 1
        return frame(*args, **more)

    await ledger.log.append(S, [text_delta("a")])
    async with serving_ledger(ledger) as url, contextlib.AsyncExitStack() as stack:
        stream_url = f"{url}/v1/sessions/{S}/stream?format=events"
        readers = [await stack.enter_async_context(requesting(stream_url)) for _ in range(20)]
        for reader in readers:
            await reader.until(b"id: 1\n")
        monkeypatch.setattr(http.sse, "frame", count_frame)
        for _ in range(10):
            await ledger.log.append(S, [text_delta("b")])
        for reader in readers:
            await reader.until(b"id: 11\n")
    assert count == 10


async def test_deleting_a_session_ends_its_streams(ledger: LocalLedger) -> None:
    """The stream ends, and a reader that reconnects gets a 404."""
    await ledger.log.append(S, [text_delta("a")])
    async with serving_ledger(ledger) as url:
        async with requesting(f"{url}/v1/sessions/{S}/stream?format=events") as reply:
            await reply.until(b"id: 1\n")
            await ledger.delete(S)
            async with asyncio.timeout(20):
                assert [frame async for frame in reply.frames()]
        assert (await fetch(f"{url}/v1/sessions/{S}/stream?after=1")).status == 404


# Turn streams


async def test_a_turn_stream_replays_the_turn_and_continues(ledger: LocalLedger) -> None:
    """A reader that joins late gets the turn from its start; the stream ends with the turn."""
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("Hel")])
    async with serving_ledger(ledger) as url, requesting(f"{url}/v1/sessions/{S}/stream?format=ui-v6") as reply:
        assert reply.headers["x-vercel-ai-ui-message-stream"] == "v1"
        await reply.until(b'"delta":"Hel"')
        await ledger.log.append(S, [text_delta("lo"), ev.TurnEnded()])
        async with asyncio.timeout(20):
            frames = [frame async for frame in reply.frames()]
        assert frames[-1]["data"] == "[DONE]"
        again = await fetch(f"{url}/v1/sessions/{S}/stream?format=ui-v6")
        assert b'"delta":"Hello"' in again.body and again.body.endswith(b"data: [DONE]\n\n")


async def test_a_change_to_sent_content_ends_the_turn_stream_with_a_restart(ledger: LocalLedger) -> None:
    """A restart: the reader gets a notice, the stream ends, and the next connection replays the current state."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.CallProposed(aliases=ALIASES, tool_name="rm", input={})])
    await ledger.log.append(S, [ev.ApprovalRequested(aliases=ALIASES)])
    async with serving_ledger(ledger) as url:
        async with requesting(f"{url}/v1/sessions/{S}/stream?format=ui-v6") as reply:
            await reply.until(b"tool-approval-request")
            (pending,) = await ledger.approvals()
            await ledger.approve(pending.id, by="ada")
            async with asyncio.timeout(20):
                frames = [frame async for frame in reply.frames()]
        assert "data-restart" in frames[-2]["data"] and frames[-1]["data"] == "[DONE]"
        async with requesting(f"{url}/v1/sessions/{S}/stream?format=ui-v6") as reply:
            await reply.until(b"tool-input-available")
            assert b"approval-request" not in reply.body


async def test_streams_contain_events_of_another_process(ledger: LocalLedger) -> None:
    """The stream has the events that another ledger writes to the same file."""
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("a")])
    async with (
        serving_ledger(ledger) as url,
        await callslip.open(ledger.log.store.url, SETTINGS) as other,
        requesting(f"{url}/v1/sessions/{S}/stream?format=events") as events,
        requesting(f"{url}/v1/sessions/{S}/stream?format=ui-v6") as turn,
    ):
        await events.until(b"id: 2\n")
        await turn.until(b'"delta":"a"')
        await other.log.append(S, [text_delta("b")])
        await events.until(b"id: 3\n")
        await turn.until(b'"delta":"b"')


# Regressions


@pytest.mark.parametrize("format", ["events", "entries"])
async def test_a_stream_without_follow_ends_at_the_last_event(ledger: LocalLedger, format: str) -> None:
    """Also for events that are only buffered for another reader."""
    await ledger.log.append(S, [text_delta("a")])
    async with serving_ledger(ledger) as url:
        stream_url = f"{url}/v1/sessions/{S}/stream?format={format}"
        async with requesting(stream_url) as other:
            await other.until(b"id: 1\n")
            await ledger.log.append(S, [text_delta(str(number)) for number in range(5)])
            await other.until(b"id: 6\n")
            for after in (0, 2, 6):
                response = await fetch(f"{stream_url}&follow=false&after={after}")
                ids = [int(line[4:]) for line in response.body.split(b"\n") if line.startswith(b"id: ")]
                assert ids == list(range(after + 1, 7))


async def test_a_head_request_for_a_stream_returns_only_headers(ledger: LocalLedger) -> None:
    """The connection can be reused, and no reader is counted."""
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("a")])
    async with serving_ledger(ledger) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path in (f"/v1/sessions/{S}/stream", f"/v1/sessions/{S}/stream?format=ui-v6", "/v1/stream?topic=inbox"):
            writer.write(f"HEAD {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        writer.write(f"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        try:
            async with asyncio.timeout(20):
                output = await reader.readuntil(b"callslip_readers 0\n")
        finally:
            writer.close()
    assert output.count(b"200 OK") == 4 and output.count(b"text/event-stream") == 3


async def test_a_turn_stream_defaults_to_the_open_turn(ledger: LocalLedger) -> None:
    """Also while another reader follows the previous turn, which has open calls."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.CallStarted(aliases=ALIASES, tool_name="old"), ev.TurnEnded()])
    async with serving_ledger(ledger) as url:
        stream_url = f"{url}/v1/sessions/{S}/stream?format=ui-v6"
        async with requesting(stream_url) as old:
            await old.until(b'"old"')
            await ledger.log.append(S, [ev.TurnStarted(), text_delta("new")])
            async with requesting(stream_url) as reply:
                assert b'"old"' not in await reply.until(b'"delta":"new"')


async def test_a_long_poll_for_a_deleted_session_gives_404(ledger: LocalLedger) -> None:
    """Not 410, which would mean that retention removed events."""
    await ledger.log.append(S, [text_delta("a")])
    async with serving_ledger(ledger) as url:
        first = await fetch(f"{url}/v1/sessions/{S}")
        headers = {"if-none-match": first.headers["etag"]}
        poll = asyncio.ensure_future(fetch(f"{url}/v1/sessions/{S}?wait=30", headers=headers))
        async with asyncio.timeout(20):
            while S not in ledger.log.feed._channels:
                await asyncio.sleep(0.01)
        await ledger.delete(S)
        assert (await poll).status == 404


async def test_a_burst_of_frames_is_written_in_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader is woken for all frames since the last wake-up; the first frame is sent at once."""
    monkeypatch.setattr("callslip.http.broadcast.COALESCE_S", 3600.0)
    broadcast = Broadcast(1, 1000)
    writes: list[bytes] = []

    async def write(data: bytes) -> None:
        writes.append(data)

    reader = asyncio.ensure_future(follow(broadcast, 1, write))
    await asyncio.sleep(0)
    for number in range(500):
        broadcast.push([b"%d " % number])
        await asyncio.sleep(0)
    broadcast.end()
    await reader
    assert b"".join(writes) == b"".join(b"%d " % number for number in range(500))
    assert writes[0] == b"0 " and len(writes) == 3  # The third one is the empty end of the stream.


async def test_the_first_frame_is_sent_at_once_even_just_after_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock may be smaller than COALESCE_S."""
    monkeypatch.setattr("callslip.http.broadcast.COALESCE_S", 3600.0)
    broadcast = Broadcast(1, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
        broadcast.push([b"first"])
        assert broadcast.wakeups == 1
        broadcast.push([b"second"])
        assert broadcast.wakeups == 1, "the second waits for the pause"


async def test_stream_state_does_not_grow_with_the_session(ledger: LocalLedger) -> None:
    """Entries that can no longer change are removed."""
    await ledger.log.append(S, [text_delta("a")])
    server = http.Server(ledger, AllowAll())
    record = await ledger.log.get_session(S)
    assert record is not None
    async with server.hub.by_seq(record, "entries") as stream:
        for _ in range(30):
            await ledger.log.append(S, [ev.MessageUser(text=str(number)) for number in range(100)])
        async with asyncio.timeout(20):
            while stream.broadcast.next <= 3001:
                await wait_any((stream.broadcast,))
        assert len(stream._state.entries) < 1500


async def test_revoking_a_token_ends_its_streams(ledger: LocalLedger) -> None:
    """A reader without rights is disconnected soon."""
    token = mint_token()
    row = TokenRecord(id="t1", hash=hash_token(token), label="", session=S, verbs=("read",), created_at=1)
    await ledger.log.store.put_token(row)
    await ledger.log.append(S, [ev.TurnStarted(), text_delta("a")])
    authorizer = TokenAuthorizer(ledger.log, "the-main-token-of-this-test")
    headers = {"authorization": f"Bearer {token}"}
    async with serving_ledger(ledger, gate=authorizer, limits=Limits(heartbeat=0.02)) as url:
        for query in ("sessions/s/stream?format=events", "sessions/s/stream?format=ui-v6", f"stream?session={S}"):
            async with requesting(f"{url}/v1/{query}", headers=headers) as reply:
                await reply.until(b"\n\n:\n\n")
                await ledger.log.store.drop_token("t1")
                async with asyncio.timeout(20):
                    async for _ in reply.pieces():
                        pass
            assert (await fetch(f"{url}/v1/{query}", headers=headers)).status == 401
            await ledger.log.store.put_token(row)
