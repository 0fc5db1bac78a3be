"""Streams that are recorded while they pass: any client's chunks, each durable before it is seen (C6)."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger
from callslip.errors import InvalidInputError
from callslip.ingest.stream_parser import StreamParser
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from tests.support import model_server
from tests.support.invariants import read_events, sound_ledger
from tests.support.model_server import Server, text_answer, tool_call_answer

pytestmark = pytest.mark.anyio

CALLING = tool_call_answer(("call_1", "get_weather", {"city": "Paris"}), text="Let me look.")


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, synchronous="NORMAL") as opened:
        yield opened


async def each(chunks: list[Any]) -> AsyncIterator[Any]:
    for one in chunks:
        yield one


async def call_of(ledger: LocalLedger) -> ToolCall:
    found = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    assert len(found) == 1
    return found[0]


async def test_each_chunk_is_durable_before_the_caller_receives_it(ledger: LocalLedger) -> None:
    """C6: and the chunks are unchanged."""
    chunks = text_answer("Good morning.")
    passed: list[Any] = []
    async for chunk in ledger.session("s").record(each(chunks), format="openai"):
        passed.append(chunk)
        heard = "".join(event.text for event in await read_events(ledger, "s") if isinstance(event, ev.MessageDelta))
        spoken = "".join(item["choices"][0]["delta"].get("content") or "" for item in passed)
        assert heard == spoken
    assert passed == chunks


async def test_live_events_have_the_time_of_their_arrival(ledger: LocalLedger) -> None:
    """And not the creation time of the response, which every chunk repeats."""
    before = await ledger.log.store.clock()
    async for _ in ledger.session("s").record(each(text_answer("Now.")), format="openai"):
        pass
    assert all(before <= event.at <= before + 60_000 for event in await read_events(ledger, "s"))


async def test_a_recorded_call_is_started_by_the_models_id(ledger: LocalLedger) -> None:
    """The stream proposes it and the program runs it: one call, completed."""
    session = ledger.session("s")
    await session.start_turn("How is the weather?")
    async for _ in session.record(each(CALLING), format="openai"):
        pass
    assert (await call_of(ledger)).status == "queued"
    async with session.call("get_weather", {"city": "Paris"}, alias=("openai", "call_1")) as call:
        call.complete({"celsius": 20})
    done = await call_of(ledger)
    assert (done.status, done.tool_call_id, done.raw_input) == ("completed", "call_1", {"city": "Paris"})
    await session.end_turn()


async def test_equal_ids_in_two_rounds_are_two_calls(ledger: LocalLedger) -> None:
    """C2: for a server that names every call `call_0`, with equal or different arguments."""
    session = ledger.session("s")
    await session.start_turn("Twice, please.")
    for number in range(2):
        async for _ in session.record(each(tool_call_answer(("call_0", "ls", {}), number=number)), format="openai"):
            pass
        async with session.call("ls", {}, alias=("openai", "call_0")) as call:
            call.complete(number)
    await session.end_turn()
    recorded = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    assert [(entry.status, entry.output) for entry in recorded] == [("completed", 0), ("completed", 1)]


async def test_sdk_objects_are_recorded(ledger: LocalLedger) -> None:
    """Over a socket, with the official client."""
    from openai import AsyncOpenAI

    with Server([CALLING]).running() as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none") as client:
            stream = await client.chat.completions.create(model="m", messages=[], stream=True)
            async for chunk in ledger.session("s").record(stream, format="openai"):
                assert chunk.choices
    assert (await call_of(ledger)).raw_input == {"city": "Paris"}
    await ledger.session("s").append(ev.CallCancelled(call=(await call_of(ledger)).call_id))


@pytest.mark.parametrize("as_bytes", [False, True])
async def test_sse_lines_and_bytes_are_recorded(ledger: LocalLedger, as_bytes: bool) -> None:
    """Lines as text, or bytes in chunks of any size; comments and the end marker are ignored."""
    frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in text_answer("Grüße!")]
    body = ": hello\n\n" + "".join(frames) + "data: [DONE]\n\n"
    data = body.encode()
    pieces: list[Any] = [data[at : at + 7] for at in range(0, len(data), 7)] if as_bytes else body.split("\n")
    async for _ in ledger.session("s").record(pieces, format="openai"):
        pass
    spoken = (await ledger.snapshot("s")).entries
    assert isinstance(spoken[-1], Message) and spoken[-1].content == "Grüße!"


async def test_an_interrupted_stream_ends_its_calls(ledger: LocalLedger) -> None:
    """C5: the reader gets the error, and the calls have it as their reason."""

    async def broken() -> AsyncIterator[Any]:
        for chunk in CALLING[:4]:
            yield chunk
        raise ConnectionError("reset by peer")

    with pytest.raises(ConnectionError):
        async for _ in ledger.session("s").record(broken(), format="openai"):
            pass
    call = await call_of(ledger)
    assert call.status == "lost" and "broke off" in call.reason


async def test_a_reader_that_stops_cancels_the_proposed_calls(ledger: LocalLedger) -> None:
    """No process is left to run them."""
    reading = ledger.session("s").record(each(CALLING), format="openai")
    async for chunk in reading:
        if chunk["choices"][0]["delta"].get("tool_calls"):
            break
    await reading.aclose()
    assert (await call_of(ledger)).status == "cancelled"


async def test_a_cancelled_reader_leaves_no_open_call(ledger: LocalLedger) -> None:
    """Also when the program's own task is cancelled while the stream hangs."""
    begun = asyncio.Event()

    async def hangs() -> AsyncIterator[Any]:
        for chunk in CALLING[:4]:
            yield chunk
        begun.set()
        await asyncio.sleep(3600)

    async def read() -> None:
        async for _ in ledger.session("s").record(hangs(), format="openai"):
            pass

    reading = asyncio.ensure_future(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await call_of(ledger)).status == "cancelled"


async def test_a_chunk_over_the_size_limit_is_stored_as_a_blob(db: str) -> None:
    """C11: and the recording continues."""
    huge = model_server.chunk({"content": "x" * 100_000})
    async with sound_ledger(db, max_event=50_000, inline_limit=1000, preview=100) as ledger:
        async for _ in ledger.session("s").record(each([huge, *text_answer("Still here.")]), format="openai"):
            pass
        log = await read_events(ledger, "s")
        kept = [event for event in log if isinstance(event, ev.Raw)]
        assert len(kept) == 1 and kept[0].blob is not None
        assert json.loads(await ledger.blob(kept[0].blob.hash)) == huge
        assert "".join(event.text for event in log if isinstance(event, ev.MessageDelta)) == "Still here."


async def test_an_unknown_format_is_refused(ledger: LocalLedger) -> None:
    """Before the stream is read."""
    with pytest.raises(InvalidInputError, match="'acme' cannot be read"):
        async for _ in ledger.session("s").record(each([1]), format="acme"):
            raise AssertionError


def test_a_line_over_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes without a line end are buffered up to a limit."""
    monkeypatch.setattr("callslip.ingest.stream_parser.MAX_LINE_BYTES", 100)
    parser = StreamParser(plain_text=False)
    with pytest.raises(InvalidInputError, match="a line must be at most 100 bytes"):
        for _ in range(20):
            parser.feed(b"x" * 10)


async def test_plain_text_is_recorded_completely(ledger: LocalLedger) -> None:
    """S0.1: a text stream with tags; an unclosed tag is text."""
    text = "First <shell>ls</shell> and then <shell>oops"
    async for _ in ledger.session("s").record(each(list(text)), format="shell"):
        pass
    shown = (await ledger.snapshot("s")).entries
    assert [entry.content for entry in shown if isinstance(entry, Message)] == ["First ", " and then <shell>oops"]
    assert (await call_of(ledger)).raw_input == {"command": "ls"}
    await ledger.log.append("s", [ev.CallCancelled(call=(await call_of(ledger)).call_id)])


TWO = tool_call_answer(("call_1", "ls", {"path": "/a"}), ("call_2", "ls", {"path": "/b"}))


async def statuses(ledger: LocalLedger) -> list[str]:
    return [entry.status for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]


async def test_repeated_cancellation_leaves_no_open_call(ledger: LocalLedger) -> None:
    """C5: in a cancelled scope of a web framework every wait is cancelled, also that for the last write."""
    import anyio

    async def hangs() -> AsyncIterator[Any]:
        for chunk in TWO[:-1]:
            yield chunk
        scope.cancel()
        await anyio.sleep(3600)

    with anyio.CancelScope() as scope:
        async for _ in ledger.session("s").record(hangs(), format="openai"):
            pass
    assert await statuses(ledger) == ["cancelled", "cancelled"]


async def test_a_partial_line_does_not_affect_the_next_stream(ledger: LocalLedger) -> None:
    """Each stream starts with an empty buffer."""

    async def broken() -> AsyncIterator[Any]:
        yield b'data: {"choices": [{"del'
        raise ConnectionError

    session = ledger.session("s")
    with pytest.raises(ConnectionError):
        async for _ in session.record(broken(), format="openai"):
            pass
    whole = model_server.chunk({"content": "Whole."})
    async for _ in session.record([f"data: {json.dumps(whole)}\n\n".encode()], format="openai"):
        pass
    assert [event.text for event in await read_events(ledger, "s") if isinstance(event, ev.MessageDelta)] == ["Whole."]


async def test_sse_frames_with_several_lines_are_recorded(ledger: LocalLedger) -> None:
    """A frame may have an event name before its data; a text may have several frames, or data on several lines."""
    first, *others = [json.dumps(chunk) for chunk in text_answer("Good morning.")]
    frames = [json.dumps(json.loads(first), indent=1), "".join(f"event: x\r\ndata: {one}\r\n\r\n" for one in others)]
    async for _ in ledger.session("s").record(frames, format="openai"):
        pass
    spoken = (await ledger.snapshot("s")).entries
    assert [entry.content for entry in spoken if isinstance(entry, Message)] == ["Good morning."]
    assert not [event for event in await read_events(ledger, "s") if isinstance(event, ev.Raw) and event.body in frames]


async def test_an_interrupted_stream_ends_no_call_of_an_earlier_stream(ledger: LocalLedger) -> None:
    """A call of an earlier, complete stream continues."""

    async def broken() -> AsyncIterator[Any]:
        yield text_answer("Well")[0]
        raise ConnectionError

    session = ledger.session("s")
    await session.start_turn("How is the weather?")
    async for _ in session.record(each(CALLING), format="openai"):
        pass
    async with session.call("get_weather", {"city": "Paris"}, alias=("openai", "call_1")) as call:
        with pytest.raises(ConnectionError):
            async for _ in session.record(broken(), format="openai"):
                pass
        call.complete(20)
    assert (await call_of(ledger)).status == "completed"
    await session.end_turn()


async def test_concurrent_streams_are_recorded_separately(ledger: LocalLedger) -> None:
    """Two responses, interleaved in one session: each keeps its arguments."""
    session = ledger.session("s")
    wanted = {"call_1": {"path": "/a" * 30}, "call_2": {"path": "/b" * 30}}
    both = [
        session.record(each(tool_call_answer((name, "ls", command))), format="openai")
        for name, command in wanted.items()
    ]
    going = list(both)
    while going:
        for stream in list(going):
            if await anext(stream, None) is None:
                going.remove(stream)
    recorded = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    assert {entry.tool_call_id: entry.raw_input for entry in recorded} == wanted
    for entry in recorded:
        await ledger.log.append("s", [ev.CallCancelled(call=entry.call_id)])


def test_the_cost_of_a_long_line_is_linear() -> None:
    """C12: a line in many chunks is joined once."""
    parser = StreamParser(plain_text=False)
    for _ in range(2_000):
        parser.feed(b"x" * 500)
    tracemalloc.start()
    try:
        for _ in range(10):
            parser.feed(b"x" * 500)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
