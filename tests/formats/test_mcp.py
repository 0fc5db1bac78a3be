"""Decode recorded traffic of the Model Context Protocol: the end of a call, and messages that are not its result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import LocalLedger
from callslip.formats.mcp.decode import McpDecoder
from callslip.formats.mcp.wire import key_of
from callslip.ingest.importer import import_lines
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Alias, Event
from callslip.settings import Settings
from tests.support import format_cases
from tests.support.invariants import find_faults

SESSION = "s"

anyio = pytest.mark.anyio


async def open_ledger(**settings: Any) -> LocalLedger:
    return await callslip.open("sqlite:///:memory:", Settings(synchronous="NORMAL", reaper_interval=3600, **settings))


def encode_lines(*messages: Any) -> list[bytes]:
    return [json.dumps(message).encode() + b"\n" for message in messages]


def c2s(message: Any, t: float = 1.0) -> Any:
    return {"t": t, "dir": "c2s", "msg": message}


def s2c(message: Any, t: float = 1.0) -> Any:
    return {"t": t, "dir": "s2c", "msg": message}


def request(identity: Any, method: str, **params: Any) -> Any:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def call(identity: Any, tool: str = "tool", **params: Any) -> Any:
    return request(identity, "tools/call", name=tool, arguments={}, **params)


def notification(method: str, **params: Any) -> Any:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result(identity: Any, text: str = "done", **more: Any) -> Any:
    return {"jsonrpc": "2.0", "id": identity, "result": {"content": [{"type": "text", "text": text}], **more}}


def decode_events(*messages: Any) -> list[Event]:
    """Decode messages and return their events."""
    decoder = McpDecoder()
    return [draft.event for message in messages for draft in decoder.feed(message)]


def end_events(events: list[Event]) -> list[ev.CallEnd]:
    return [event for event in events if isinstance(event, ev.CallEnd)]


async def list_calls(ledger: LocalLedger, session: str = SESSION) -> list[ToolCall]:
    return [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]


async def list_events(ledger: LocalLedger, session: str = SESSION) -> list[Any]:
    return [event async for event in ledger.events(session)]


# Ids


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()), unique_by=repr))
def test_different_request_ids_have_different_foreign_ids(ids: list[Any]) -> None:
    """1, 1.0 and "1" are different, and so is a text that looks like the foreign id of another request."""
    valid_ids = [identity for identity in ids if identity != ""]
    names = [key_of(identity) for identity in valid_ids]
    assert "" not in names and len(set(names)) == len({json.dumps(identity) for identity in valid_ids})


def test_a_response_matches_requests_of_its_direction_only() -> None:
    """A client's response to the server with the id of a call is no result, and a server's request is no call."""
    events = decode_events(
        c2s(call(1)),
        s2c(request(1, "sampling/createMessage", messages=[])),
        s2c(call(2)),
        c2s(result(1, "what the model said")),
        c2s(result(2, "of a client")),
        c2s({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}),
        s2c(notification("notifications/cancelled", requestId=1)),
        c2s(notification("notifications/progress", progressToken=1, progress=1)),
    )
    assert not end_events(events) and len([event for event in events if isinstance(event, ev.CallProposed)]) == 1
    assert [type(event) for event in events[2:]] == [ev.Raw] * 7


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("sampling/createMessage", {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}),
        ("elicitation/create", {"action": "accept", "content": {}}),
        ("roots/list", {"roots": []}),
        ("ping", {}),
    ],
)
@pytest.mark.parametrize("first", ["call", "server request"])
def test_without_directions_a_response_is_matched_by_its_fields(method: str, answer: Any, first: str) -> None:
    """Bare messages: two requests with one id, in either order, and their responses."""
    requests = [call(1), request(1, method)]
    answers = [result(1, "the tool's"), {"jsonrpc": "2.0", "id": 1, "result": answer}]
    for order in (answers, answers[::-1]):
        (end,) = end_events(decode_events(*(requests if first == "call" else requests[::-1]), *order))
        assert isinstance(end, ev.CallCompleted) and end.output == "the tool's"


def test_a_response_id_of_another_type_matches_if_unambiguous() -> None:
    """As clients do. While 7 and "7" are both pending they are different."""
    assert [end.aliases[0].id for end in end_events(decode_events(c2s(call(7)), s2c(result("7"))))] == ["7"]
    assert [end.aliases[0].id for end in end_events(decode_events(c2s(call("7")), s2c(result(7))))] == ['"7"']
    both = decode_events(c2s(call("7")), c2s(call(7)), s2c(result(7)), s2c(result("7")))
    assert [end.aliases[0].id for end in end_events(both)] == ["7", '"7"']
    assert not end_events(decode_events(c2s(call("a")), s2c(result("b")), s2c(result(None))))


@anyio
async def test_a_request_with_a_reused_id_is_another_call() -> None:
    """Also with the same bytes, before or after the first response; an id belongs to the newest request."""
    async with await open_ledger() as ledger:
        messages = [call(1), result(1, "first"), call(1), result(1, "second"), call(2), call(2), result(2, "newer")]
        await import_lines(ledger.log, SESSION, "mcp", encode_lines(*messages))
        outcomes = [(entry.status, entry.output) for entry in await list_calls(ledger)]
        assert outcomes == [("completed", "first"), ("completed", "second"), ("lost", None), ("completed", "newer")]
        log = await list_events(ledger)
        assert {event.verdict for event in log} == {"applied"} and not await find_faults(ledger)
        call_ids = [event.call for event in log if Alias("mcp", "1") in getattr(event, "aliases", ())]
        assert call_ids == [entry.call_id for entry in (await list_calls(ledger))[:2]], (
            "the id belongs to the newest request"
        )


@anyio
async def test_calls_of_two_recordings_in_one_session_are_separate() -> None:
    """Both number their requests from the start."""
    async with await open_ledger() as ledger:
        for at in (10.0**9, 10.0**9 + 60):
            messages = encode_lines(c2s(call(1), at), s2c(result(1), at + 1))
            await import_lines(ledger.log, SESSION, "mcp", messages)
            await import_lines(ledger.log, SESSION, "mcp", messages)
        calls = await list_calls(ledger)
        assert [(entry.status, entry.at) for entry in calls] == [("completed", 10**12), ("completed", 10**12 + 60_000)]
        assert {event.verdict for event in await list_events(ledger)} == {"applied"}
        assert not await find_faults(ledger)


# Ends


def test_a_cancellation_counts_once_and_before_the_response() -> None:
    """With the reason of the client."""
    cancel = notification("notifications/cancelled", requestId=1, reason="enough")
    (end,) = end_events(decode_events(c2s(call(1)), c2s(cancel), c2s(cancel)))
    assert isinstance(end, ev.CallCancelled) and end.reason == "enough"
    (end,) = end_events(decode_events(c2s(call(1)), s2c(result(1)), c2s(cancel)))
    assert isinstance(end, ev.CallCompleted)


@anyio
async def test_progress_and_result_after_a_cancellation_are_late() -> None:
    """The server's confirmation of the cancellation adds nothing."""
    async with await open_ledger() as ledger:
        messages = [
            c2s(call(1, _meta={"progressToken": "t"})),
            c2s(notification("notifications/cancelled", requestId=1)),
            s2c(notification("notifications/progress", progressToken="t", progress=1)),
            s2c({"jsonrpc": "2.0", "id": 1, "error": {"code": 0, "message": "Request cancelled"}}),
            s2c(result(1, "after all")),
        ]
        await import_lines(ledger.log, SESSION, "mcp", encode_lines(*messages))
        (entry,) = await list_calls(ledger)
        assert entry.status == "cancelled" and entry.late == 6 and entry.output is None
        verdicts = [event.verdict for event in await list_events(ledger)]
        assert verdicts == ["applied", "applied", "applied", "late", "duplicate", "late"]


def result_with(**members: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "result": members}


IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
TEXT = {"type": "text", "text": '{"n": 1}'}


@pytest.mark.parametrize(
    ("answer", "output", "content"),
    [
        (result_with(content=[TEXT]), '{"n": 1}', None),
        (result_with(content=[TEXT], structuredContent={"n": 1}), {"n": 1}, None),
        (result_with(content=[TEXT], structuredContent={"n": 2}), {"n": 2}, [TEXT]),
        (result_with(content=[], structuredContent=[1]), [1], None),
        (result_with(content=[TEXT, IMAGE]), [TEXT, IMAGE], [TEXT, IMAGE]),
        (result_with(content=[]), [], None),
        (result_with(toolResult={"old": 1}), {"old": 1}, None),
        (result_with(), {}, None),
        (result_with(content="no list"), "no list", None),
    ],
)
def test_the_output_is_structured_content_or_text_or_blocks(answer: Any, output: Any, content: Any) -> None:
    """Content is shown only if the output does not have it."""
    (end,) = end_events(decode_events(call(1), answer))
    assert isinstance(end, ev.CallCompleted) and end.output == output
    assert (end.content or None) == content


@anyio
@pytest.mark.parametrize("is_error", [False, True])
async def test_a_result_of_any_size_ends_its_call(is_error: bool) -> None:
    """A result over the size limit of an event is stored as a blob, for any end."""
    blocks = [
        {"type": "text", "text": "x" * 300_000},
        {"type": "image", "data": "A" * 300_000, "mimeType": "image/png"},
    ]
    async with await open_ledger(max_event=200_000, inline_limit=50_000) as ledger:
        answers = [
            result_with(content=blocks[:1], isError=is_error),
            result_with(content=blocks, isError=is_error),
            result_with(content=blocks, structuredContent={"n": 1}, isError=is_error),
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "y" * 300_000}},
        ]
        for answer in answers:
            await import_lines(ledger.log, SESSION, "mcp", encode_lines(c2s(call(1), 10**9 + len(str(answer))), answer))
        calls = await list_calls(ledger)
        state = "failed" if is_error else "completed"
        assert [entry.status for entry in calls] == [state, state, state, "failed"]
        assert all(entry.blob and entry.blob.size >= 300_000 for entry in calls)


@anyio
async def test_a_call_with_refused_arguments_keeps_its_other_fields() -> None:
    """Arguments over the size limit are stored as raw, and the call has its tool, its progress and its end."""
    huge = {"name": "write", "arguments": {"text": "x" * 300_000}}
    async with await open_ledger(max_event=100_000) as ledger:
        messages = [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": huge}, call(2), result(1), result(2)]
        await import_lines(ledger.log, SESSION, "mcp", encode_lines(*messages))
        outcomes = [(entry.tool_name, entry.status, entry.output) for entry in await list_calls(ledger)]
        assert outcomes == [("write", "completed", "done"), ("tool", "completed", "done")]
        (raw_event,) = [event for event in await list_events(ledger) if isinstance(event, ev.Raw)]
        assert raw_event.blob is not None and raw_event.blob.size > 300_000


# Tasks and input requests


def task(status: str, **more: Any) -> dict[str, Any]:
    return {"taskId": "t", "status": status, "createdAt": "", "lastUpdatedAt": "", "ttl": None, **more}


def test_a_poll_without_changes_adds_no_event() -> None:
    """Clients poll often."""
    handle = {"jsonrpc": "2.0", "id": 1, "result": {"task": task("working")}}
    poll = [request(2, "tasks/get", taskId="t"), {"jsonrpc": "2.0", "id": 2, "result": task("working")}]
    once = decode_events(call(1, task={}), handle)
    assert len(decode_events(call(1, task={}), handle, *poll, *poll)) == len(once)
    changed = {"jsonrpc": "2.0", "id": 2, "result": task("working", statusMessage="half")}
    last_event = decode_events(call(1, task={}), handle, *poll, poll[0], changed)[-1]
    assert isinstance(last_event, ev.CallProgress) and last_event.text == "half\n"


def test_a_finished_task_without_a_read_result_ends_with_the_stream() -> None:
    """Until then the client may still request the result."""
    for status, ending in (("completed", ev.CallCompleted), ("failed", ev.CallFailed)):
        decoder = McpDecoder()
        decoder.feed(call(1, task={}))
        decoder.feed({"jsonrpc": "2.0", "id": 1, "result": {"task": task("working")}})
        events = [draft.event for draft in decoder.feed(notification("notifications/tasks/status", **task(status)))]
        assert not end_events(events)
        (end,) = decoder.close("eof")
        assert isinstance(end.event, ending) and not decoder.close("eof")


def test_tasks_of_client_and_server_are_separate() -> None:
    """Both may have the same id, and both sides poll."""
    handle = {"jsonrpc": "2.0", "id": 1, "result": {"task": task("working")}}
    poll = s2c(request(7, "tasks/get", taskId="t"))
    answer = c2s({"jsonrpc": "2.0", "id": 7, "result": task("cancelled")})
    events = decode_events(
        c2s(call(1, task={})), s2c(handle), poll, answer, c2s(notification("notifications/tasks", **task("cancelled")))
    )
    assert not end_events(events) and [type(event) for event in events[-3:]] == [ev.Raw] * 3


def test_a_call_that_requests_input_continues_under_the_next_id() -> None:
    """Version 2026-07-28: two such calls are distinguished by their input requests and their state."""
    input_requests = [
        {"jsonrpc": "2.0", "id": identity, "result": {"resultType": "input_required", "requestState": state}}
        for identity, state in ((1, "a"), (2, "b"))
    ]
    retries = [call(3, requestState="b", inputResponses={}), call(4, requestState="a", inputResponses={})]
    events = decode_events(call(1), call(2), *input_requests, *retries, result(3, "of b"), result(4, "of a"))
    assert len([event for event in events if isinstance(event, ev.CallProposed)]) == 2
    assert [(end.aliases[0].id, end.output) for end in end_events(events)] == [("2", "of b"), ("1", "of a")]


# Raw messages


def test_messages_that_are_not_about_calls_are_stored_as_raw() -> None:
    """Pings, lists, resources, prompts, logs, and responses without a request."""
    messages = [
        c2s({"jsonrpc": "2.0", "id": 1, "method": "ping"}),
        s2c({"jsonrpc": "2.0", "id": 1, "result": {}}),
        c2s(request(2, "resources/read", uri="file:///a", _meta={"progressToken": 2})),
        s2c(notification("notifications/progress", progressToken=2, progress=1)),
        s2c({"jsonrpc": "2.0", "id": 2, "result": {"contents": []}}),
        s2c(notification("notifications/message", level="info", data="x")),
        s2c({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}),
        s2c(result(99)),
        c2s({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "a notification"}}),
        "no JSON-RPC at all",
    ]
    events = decode_events(*messages)
    assert [event.body for event in events if isinstance(event, ev.Raw)] == messages and len(events) == len(messages)


@pytest.mark.parametrize("case", [case for case in format_cases.CASES if case.startswith("mcp/")])
def test_a_batch_reads_like_its_messages(case: str) -> None:
    """Consecutive messages of one side in an array, as in older versions of the protocol."""
    rows = [json.loads(line) for line in format_cases.lines_of(case)]
    rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("msg"), dict)]
    rows = [row for row in rows if row["dir"] != "sideways"]
    batches: list[Any] = []
    for row in rows:
        if batches and (batches[-1]["dir"], batches[-1]["t"]) == (row["dir"], row["t"]):
            batches[-1]["msg"].append(row["msg"])
        else:
            batches.append({**row, "msg": [row["msg"]]})
    assert encode_without_aliases(decode_events(*batches)) == encode_without_aliases(decode_events(*rows))


def encode_without_aliases(events: list[Event]) -> str:
    """Return events as JSON without their aliases, which depend on the first line of the connection."""
    return json.dumps([{**json.loads(ev.encode_event(event)), "aliases": None} for event in events])
