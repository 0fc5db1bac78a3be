"""Record streams: every chunk is durable before the caller receives it (C6)."""

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

CALL_CHUNKS = tool_call_answer(("call_1", "get_weather", {"city": "Paris"}), text="Let me look.")


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, synchronous="NORMAL") as instance:
        yield instance


async def stream_of(chunks: list[Any]) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk


async def only_call(ledger: LocalLedger) -> ToolCall:
    calls = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    assert len(calls) == 1
    return calls[0]


async def test_each_chunk_is_durable_before_the_caller_receives_it(ledger: LocalLedger) -> None:
    """C6: and the chunks are unchanged."""
    chunks = text_answer("Good morning.")
    received: list[Any] = []
    async for chunk in ledger.session("s").record(stream_of(chunks), format="openai"):
        received.append(chunk)
        stored_text = "".join(
            event.text for event in await read_events(ledger, "s") if isinstance(event, ev.MessageDelta)
        )
        received_text = "".join(item["choices"][0]["delta"].get("content") or "" for item in received)
        assert stored_text == received_text
    assert received == chunks


async def test_live_events_have_the_time_of_their_arrival(ledger: LocalLedger) -> None:
    """And not the creation time of the response, which every chunk repeats."""
    before = await ledger.log.store.clock()
    async for _ in ledger.session("s").record(stream_of(text_answer("Now.")), format="openai"):
        pass
    assert all(before <= event.at <= before + 60_000 for event in await read_events(ledger, "s"))


async def test_a_recorded_call_is_started_by_the_models_id(ledger: LocalLedger) -> None:
    """The stream proposes it and the program runs it: one call, completed."""
    session = ledger.session("s")
    await session.start_turn("How is the weather?")
    async for _ in session.record(stream_of(CALL_CHUNKS), format="openai"):
        pass
    assert (await only_call(ledger)).status == "queued"
    async with session.call("get_weather", {"city": "Paris"}, alias=("openai", "call_1")) as call:
        call.complete({"celsius": 20})
    ended_call = await only_call(ledger)
    assert (ended_call.status, ended_call.tool_call_id, ended_call.raw_input) == (
        "completed",
        "call_1",
        {"city": "Paris"},
    )
    await session.end_turn()


async def test_equal_ids_in_two_rounds_are_two_calls(ledger: LocalLedger) -> None:
    """C2: for a server that names every call `call_0`, with equal or different arguments."""
    session = ledger.session("s")
    await session.start_turn("Twice, please.")
    for number in range(2):
        async for _ in session.record(
            stream_of(tool_call_answer(("call_0", "ls", {}), number=number)), format="openai"
        ):
            pass
        async with session.call("ls", {}, alias=("openai", "call_0")) as call:
            call.complete(number)
    await session.end_turn()
    recorded = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    assert [(entry.status, entry.output) for entry in recorded] == [("completed", 0), ("completed", 1)]


async def test_sdk_objects_are_recorded(ledger: LocalLedger) -> None:
    """Over a socket, with the official client."""
    from openai import AsyncOpenAI

    with Server([CALL_CHUNKS]).running() as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none") as client:
            stream = await client.chat.completions.create(model="m", messages=[], stream=True)
            async for chunk in ledger.session("s").record(stream, format="openai"):
                assert chunk.choices
    assert (await only_call(ledger)).raw_input == {"city": "Paris"}
    await ledger.session("s").append(ev.CallCancelled(call=(await only_call(ledger)).call_id))


@pytest.mark.parametrize("as_bytes", [False, True])
async def test_sse_lines_and_bytes_are_recorded(ledger: LocalLedger, as_bytes: bool) -> None:
    """Lines as text, or bytes in chunks of any size; comments and the end marker are ignored."""
    frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in text_answer("Grüße!")]
    body = ": hello\n\n" + "".join(frames) + "data: [DONE]\n\n"
    data = body.encode()
    pieces: list[Any] = [data[at : at + 7] for at in range(0, len(data), 7)] if as_bytes else body.split("\n")
    async for _ in ledger.session("s").record(pieces, format="openai"):
        pass
    entries = (await ledger.snapshot("s")).entries
    assert isinstance(entries[-1], Message) and entries[-1].content == "Grüße!"


async def test_an_interrupted_stream_ends_its_calls(ledger: LocalLedger) -> None:
    """C5: the reader gets the error, and the calls have it as their reason."""

    async def interrupted_stream() -> AsyncIterator[Any]:
        for chunk in CALL_CHUNKS[:4]:
            yield chunk
        raise ConnectionError("reset by peer")

    with pytest.raises(ConnectionError):
        async for _ in ledger.session("s").record(interrupted_stream(), format="openai"):
            pass
    call = await only_call(ledger)
    assert call.status == "lost" and "broke off" in call.reason


async def test_a_reader_that_stops_cancels_the_proposed_calls(ledger: LocalLedger) -> None:
    """No process is left to run them."""
    recording = ledger.session("s").record(stream_of(CALL_CHUNKS), format="openai")
    async for chunk in recording:
        if chunk["choices"][0]["delta"].get("tool_calls"):
            break
    await recording.aclose()
    assert (await only_call(ledger)).status == "cancelled"


async def test_a_cancelled_reader_leaves_no_open_call(ledger: LocalLedger) -> None:
    """Also when the program's own task is cancelled while the stream hangs."""
    all_sent = asyncio.Event()

    async def hanging_stream() -> AsyncIterator[Any]:
        for chunk in CALL_CHUNKS[:4]:
            yield chunk
        all_sent.set()
        await asyncio.sleep(3600)

    async def read_stream() -> None:
        async for _ in ledger.session("s").record(hanging_stream(), format="openai"):
            pass

    reading = asyncio.ensure_future(read_stream())
    await all_sent.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await only_call(ledger)).status == "cancelled"


async def test_a_chunk_over_the_size_limit_is_stored_as_a_blob(db: str) -> None:
    """C11: and the recording continues."""
    huge = model_server.chunk({"content": "x" * 100_000})
    async with sound_ledger(db, max_event=50_000, inline_limit=1000, preview=100) as ledger:
        async for _ in ledger.session("s").record(stream_of([huge, *text_answer("Still here.")]), format="openai"):
            pass
        log = await read_events(ledger, "s")
        raw_events = [event for event in log if isinstance(event, ev.Raw)]
        assert len(raw_events) == 1 and raw_events[0].blob is not None
        assert json.loads(await ledger.blob(raw_events[0].blob.hash)) == huge
        assert "".join(event.text for event in log if isinstance(event, ev.MessageDelta)) == "Still here."


async def test_an_unknown_format_is_refused(ledger: LocalLedger) -> None:
    """Before the stream is read."""
    with pytest.raises(InvalidInputError, match="'acme' cannot be read"):
        async for _ in ledger.session("s").record(stream_of([1]), format="acme"):
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
    async for _ in ledger.session("s").record(stream_of(list(text)), format="shell"):
        pass
    shown = (await ledger.snapshot("s")).entries
    assert [entry.content for entry in shown if isinstance(entry, Message)] == ["First ", " and then <shell>oops"]
    assert (await only_call(ledger)).raw_input == {"command": "ls"}
    await ledger.log.append("s", [ev.CallCancelled(call=(await only_call(ledger)).call_id)])


TWO_CALLS = tool_call_answer(("call_1", "ls", {"path": "/a"}), ("call_2", "ls", {"path": "/b"}))


async def list_statuses(ledger: LocalLedger) -> list[str]:
    return [entry.status for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]


async def test_repeated_cancellation_leaves_no_open_call(ledger: LocalLedger) -> None:
    """C5: in a cancelled scope of a web framework every wait is cancelled, also that for the last write."""
    import anyio

    async def hanging_stream() -> AsyncIterator[Any]:
        for chunk in TWO_CALLS[:-1]:
            yield chunk
        scope.cancel()
        await anyio.sleep(3600)

    with anyio.CancelScope() as scope:
        async for _ in ledger.session("s").record(hanging_stream(), format="openai"):
            pass
    assert await list_statuses(ledger) == ["cancelled", "cancelled"]


async def test_a_partial_line_does_not_affect_the_next_stream(ledger: LocalLedger) -> None:
    """Each stream starts with an empty buffer."""

    async def interrupted_stream() -> AsyncIterator[Any]:
        yield b'data: {"choices": [{"del'
        raise ConnectionError

    session = ledger.session("s")
    with pytest.raises(ConnectionError):
        async for _ in session.record(interrupted_stream(), format="openai"):
            pass
    chunk = model_server.chunk({"content": "Whole."})
    async for _ in session.record([f"data: {json.dumps(chunk)}\n\n".encode()], format="openai"):
        pass
    assert [event.text for event in await read_events(ledger, "s") if isinstance(event, ev.MessageDelta)] == ["Whole."]


async def test_sse_frames_with_several_lines_are_recorded(ledger: LocalLedger) -> None:
    """A frame may have an event name before its data; a text may have several frames, or data on several lines."""
    first, *others = [json.dumps(chunk) for chunk in text_answer("Good morning.")]
    frames = [json.dumps(json.loads(first), indent=1), "".join(f"event: x\r\ndata: {data}\r\n\r\n" for data in others)]
    async for _ in ledger.session("s").record(frames, format="openai"):
        pass
    entries = (await ledger.snapshot("s")).entries
    assert [entry.content for entry in entries if isinstance(entry, Message)] == ["Good morning."]
    assert not [event for event in await read_events(ledger, "s") if isinstance(event, ev.Raw) and event.body in frames]


async def test_an_interrupted_stream_ends_no_call_of_an_earlier_stream(ledger: LocalLedger) -> None:
    """A call of an earlier, complete stream continues."""

    async def interrupted_stream() -> AsyncIterator[Any]:
        yield text_answer("Well")[0]
        raise ConnectionError

    session = ledger.session("s")
    await session.start_turn("How is the weather?")
    async for _ in session.record(stream_of(CALL_CHUNKS), format="openai"):
        pass
    async with session.call("get_weather", {"city": "Paris"}, alias=("openai", "call_1")) as call:
        with pytest.raises(ConnectionError):
            async for _ in session.record(interrupted_stream(), format="openai"):
                pass
        call.complete(20)
    assert (await only_call(ledger)).status == "completed"
    await session.end_turn()


async def test_concurrent_streams_are_recorded_separately(ledger: LocalLedger) -> None:
    """Two responses, interleaved in one session: each keeps its arguments."""
    session = ledger.session("s")
    expected = {"call_1": {"path": "/a" * 30}, "call_2": {"path": "/b" * 30}}
    streams = [
        session.record(stream_of(tool_call_answer((name, "ls", command))), format="openai")
        for name, command in expected.items()
    ]
    open_streams = list(streams)
    while open_streams:
        for stream in list(open_streams):
            if await anext(stream, None) is None:
                open_streams.remove(stream)
    recorded = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    assert {entry.tool_call_id: entry.raw_input for entry in recorded} == expected
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
