"""Decode `ag-ui`: the events of runs, and the inputs that start them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.formats import registry
from callslip.ledger.liveness import Reaper
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, Thought, ToolCall
from callslip.model.events import Draft
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import APPROVAL_OPTIONS
from callslip.settings import Settings
from tests.support import format_cases
from tests.support.strategies import MemoryLedger

FORMAT = "ag-ui"


def decode_to_state(messages: Iterable[Any], memory: MemoryLedger | None = None) -> SessionFold:
    """Decode messages with one decoder and return the state of the session."""
    decoder = registry.decoder(FORMAT)
    memory = memory or MemoryLedger(redact=False)
    for message in messages:
        memory.write(*decoder.feed(json.loads(codec.encode(message))))
    return memory.state


def load_case(name: str) -> list[Any]:
    return [json.loads(line) for line in format_cases.lines_of(f"ag-ui/{name}")]


def list_visible(state: SessionFold) -> list[Any]:
    """Return texts, calls and permission requests without generated ids."""
    return [fields for entry in state.snapshot().entries if (fields := visible_fields(entry)) is not None]


def visible_fields(entry: Any) -> Any:
    if isinstance(entry, Message | Thought):
        return [type(entry).__name__, getattr(entry, "role", ""), entry.content, entry.message_id]
    if isinstance(entry, ToolCall):
        fields = [entry.status, entry.tool_name, entry.raw_input, entry.output, entry.error, entry.reason]
        return ["ToolCall", *fields, entry.iteration, entry.index]
    if isinstance(entry, PermissionRequest):
        return ["PermissionRequest", entry.state, entry.response_option, entry.by, entry.reason]
    return None


def decode_last(*messages: Any) -> list[Any]:
    """Decode messages and return the events of the last one."""
    decoder = registry.decoder(FORMAT)
    events = [[draft.event for draft in decoder.feed(message)] for message in messages]
    return events[-1]


RUN = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
CALL = [
    {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "ls"},
    {"type": "TOOL_CALL_END", "toolCallId": "c"},
]

# Event types of the package (PyPI `ag-ui-protocol` 1.0.0): decoded ones with all their fields, and those stored as raw.

MESSAGE, TOOL = {"messageId": "m", "subagentRunId": None}, {"toolCallId": "c", "subagentRunId": None}
DECODED_FIELDS: dict[str, dict[str, Any]] = {
    "RUN_STARTED": {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "input": None},
    "RUN_FINISHED": {"threadId": "t", "runId": "r", "outcome": {"type": "success"}, "usage": [{"totalTokens": 1}]},
    "RUN_ERROR": {"message": "no", "usage": []},
    "TEXT_MESSAGE_START": {**MESSAGE, "role": "assistant"},
    "TEXT_MESSAGE_CONTENT": {**MESSAGE, "delta": "x"},
    "TEXT_MESSAGE_END": MESSAGE,
    "TEXT_MESSAGE_CHUNK": {**MESSAGE, "role": "assistant", "delta": "x"},
    "REASONING_START": MESSAGE,
    "REASONING_MESSAGE_START": {**MESSAGE, "role": "reasoning"},
    "REASONING_MESSAGE_CONTENT": {**MESSAGE, "delta": "x"},
    "REASONING_MESSAGE_END": MESSAGE,
    "REASONING_MESSAGE_CHUNK": {**MESSAGE, "delta": "x"},
    "REASONING_END": MESSAGE,
    "TOOL_CALL_START": {**TOOL, "toolCallName": "ls", "parentMessageId": "m"},
    "TOOL_CALL_ARGS": {**TOOL, "delta": "{}"},
    "TOOL_CALL_END": TOOL,
    "TOOL_CALL_CHUNK": {**TOOL, "toolCallName": "ls", "parentMessageId": "m", "delta": "{}"},
    "TOOL_CALL_RESULT": {**MESSAGE, **TOOL, "content": "a", "role": "tool"},
    "MESSAGES_SNAPSHOT": {"messages": []},
}
RAW_ONLY = {
    *("STATE_SNAPSHOT", "STATE_DELTA", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "RAW", "CUSTOM", "STEP_STARTED"),
    *("STEP_FINISHED", "REASONING_ENCRYPTED_VALUE", "SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"),
}


@pytest.mark.parametrize("kind", sorted({*DECODED_FIELDS, *RAW_ONLY}))
def test_every_kind_of_event_is_decoded_or_stored_as_raw(kind: str) -> None:
    """C11: an event that is not about texts or calls is only in the log."""
    event = {"type": kind, "rawEvent": {"for": "debugging"}, **DECODED_FIELDS.get(kind, {"value": 1})}
    events = decode_last(RUN, CALL[0], event)
    raw_event = ev.Raw(format=FORMAT, body=event)
    assert events == [raw_event] if kind in RAW_ONLY else raw_event not in events


@pytest.mark.parametrize("kind", sorted(DECODED_FIELDS))
def test_unknown_fields_of_an_event_are_stored_as_raw(kind: str) -> None:
    """C11: a reader may need them."""
    event = {"type": kind, **DECODED_FIELDS[kind], "fromTheFuture": 1}
    assert ev.Raw(format=FORMAT, body=event) in decode_last(RUN, CALL[0], event)


def test_event_times_are_milliseconds_of_the_producer() -> None:
    """An invalid time is ignored."""
    event = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"}
    times = [1_761_000_000_000, 1_761_000_000, -5, 1.5, "now", None, 2**60, True]
    assert [decode_last({**event, "timestamp": at})[0].at for at in times] == [times[0], *[0] * 7]


# Runs and turns

INTERRUPT = {"type": "interrupt", "interrupts": [{"id": "i", "reason": "tool_call", "toolCallId": "c"}]}
UNANSWERED_OUTCOMES = [INTERRUPT, {"type": "success", "pendingToolCallIds": ["c"]}, {"type": "success"}, None]


@pytest.mark.parametrize("outcome", UNANSWERED_OUTCOMES)
def test_a_run_with_an_unanswered_call_leaves_its_turn_open(outcome: Any) -> None:
    """S2.7: with an interrupt or with a call without a result; the next run continues the turn."""
    end = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", **({"outcome": outcome} if outcome else {})}
    assert not [event for event in decode_last(RUN, *CALL, end) if isinstance(event, ev.TurnEnded)]
    assert decode_last(RUN, *CALL, end, {**RUN, "runId": "r2"}) == []
    result = {"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c", "content": ""}
    last = decode_last(RUN, *CALL, end, {**RUN, "runId": "r2"}, result, {**end, "runId": "r2", "outcome": None})
    assert last == [ev.TurnEnded(reason="end_turn")]


@pytest.mark.parametrize(
    ("end", "reason", "detail"),
    [
        ({"type": "RUN_FINISHED", "runId": "r"}, "end_turn", ""),
        ({"type": "RUN_FINISHED", "runId": "r", "outcome": {"type": "success"}}, "end_turn", ""),
        ({"type": "RUN_FINISHED", "runId": "r", "outcome": {"type": "cancelled"}}, "cancelled", ""),
        ({"type": "RUN_ERROR", "message": "overloaded"}, "error", "overloaded"),
    ],
)
def test_every_end_of_a_run_ends_its_turn(end: Any, reason: str, detail: str) -> None:
    """Except for a run that waits for an answer."""
    assert decode_last(RUN, end) == [ev.TurnEnded(reason=reason, detail=detail)]
    assert decode_last(RUN, end, {**RUN, "runId": "r2"}) == [ev.TurnStarted()]


def test_a_cancelled_run_ends_its_unanswered_calls() -> None:
    """C5: they end as cancelled."""
    state = decode_to_state([RUN, *CALL, {"type": "RUN_FINISHED", "runId": "r", "outcome": {"type": "cancelled"}}])
    assert [entry.status for entry in state.entries.values() if isinstance(entry, ToolCall)] == ["cancelled"]


def test_the_end_of_the_stream_ends_the_turn() -> None:
    """S2.12, C5."""
    decoder = registry.decoder(FORMAT)
    decoder.feed(RUN)
    assert decoder.close("eof") == [Draft(ev.TurnEnded(reason="eof"))]
    assert decoder.close("eof") == []


NO_GRACE = Settings(synchronous="NORMAL", reaper_interval=3600, turn_grace=0.0, reaper_grace=0.0)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["approved", "client_approval", "frontend_tool", "client_frontend_tool"])
async def test_an_interrupted_call_waits_for_the_next_run(name: str) -> None:
    """S2.7: the reaper does not end it before the client has answered."""
    lines = load_case(name)
    answer = [at for at, line in enumerate(lines) if "type" not in line][1]
    decoder = registry.decoder(FORMAT)
    async with await callslip.open("sqlite:///:memory:", NO_GRACE) as ledger:
        for at, line in enumerate(lines):
            if at == answer:
                reaper = Reaper(ledger.log.store, ledger.log.write_context(source="callslip", strict=True), NO_GRACE)
                assert await reaper.reap() == 0
                (call,) = await ledger.log.store.open_calls()
                assert call.state == ("queued" if "frontend" in name else "awaiting_approval")
            for draft in decoder.feed(line):
                await ledger.log.append("s", [draft], source=FORMAT)
        (entry,) = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
        assert entry.status == "completed"
        row = await ledger.log.store.session("s")
        assert row is not None and not row.turn


# Approval


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, ev.ApprovalGranted(option="approve")),
        ({"status": "resolved", "payload": True}, ev.ApprovalGranted(option="approve")),
        ({"status": "resolved"}, ev.ApprovalGranted(option="approve")),
        ({"status": "resolved", "payload": {"approved": False}}, ev.ApprovalRefused(option="deny")),
        ({"status": "resolved", "payload": False}, ev.ApprovalRefused(option="deny")),
        (
            {"status": "resolved", "payload": {"approved": False, "reason": "no"}},
            ev.ApprovalRefused(option="deny", reason="no"),
        ),
        (
            {"status": "resolved", "payload": {"approved": True, "editedArgs": {"a": 1}}},
            ev.ApprovalGranted(option="approve", input={"a": 1}),
        ),
        ({"status": "cancelled"}, ev.ApprovalWithdrawn()),
    ],
)
def test_the_answer_is_read_from_the_resume_payload(entry: Any, answer: ev.ApprovalAnswer) -> None:
    """S2.7: approval, denial with a reason, edited arguments, or no answer."""
    finished = {"type": "RUN_FINISHED", "runId": "r", "outcome": INTERRUPT}
    body = {"threadId": "t", "runId": "r2", "messages": [], "resume": [{"interruptId": "i", **entry}]}
    (event,) = decode_last(RUN, *CALL, finished, body)
    assert type(event) is type(answer) and event.by == "client"
    assert (event.option, event.reason) == (answer.option, answer.reason)
    assert getattr(event, "input", None) == getattr(answer, "input", None)


def test_an_interrupt_without_a_call_is_stored_as_raw() -> None:
    """Only calls can be approved; the interrupt still keeps the turn open."""
    finished = {"type": "RUN_FINISHED", "runId": "r", "outcome": {"type": "interrupt", "interrupts": [{"id": "i"}]}}
    assert decode_last(RUN, finished) == [ev.Raw(format=FORMAT, body=finished)]
    assert decode_last(RUN, finished, {**RUN, "runId": "r2"}) == []


def test_an_answer_is_matched_without_its_request_in_memory() -> None:
    """S2.7: the id of the interrupt leads to the call, also in another process."""
    lines, memory = load_case("client_approval"), MemoryLedger(redact=False)
    second_input = [at for at, line in enumerate(lines) if "type" not in line][1]
    decode_to_state(lines[:second_input], memory)
    decode_to_state(lines[second_input:], memory)
    assert list_visible(memory.state) == list_visible(decode_to_state(lines))
    (request,) = [entry for entry in memory.state.entries.values() if isinstance(entry, PermissionRequest)]
    assert (request.state, request.by, request.options) == ("granted", "client", APPROVAL_OPTIONS)


# Repeated messages

CASES_WITH_RUNS = [
    "weather",
    "parallel",
    "failing",
    "approved",
    "denied",
    "frontend_tool",
    "ids_reused",
    "client_approval",
]


@pytest.mark.parametrize("name", CASES_WITH_RUNS)
def test_an_interrupted_and_replayed_run_duplicates_nothing(name: str) -> None:
    """C7: for any position of the interruption the session is the same."""
    lines = load_case(name)
    expected = list_visible(decode_to_state(lines))
    run_start = max(at for at, line in enumerate(lines) if line.get("type") == "RUN_STARTED")
    for cut in range(run_start + 1, len(lines) + 1):
        assert list_visible(decode_to_state(lines[:cut] + lines[run_start:])) == expected, cut


@pytest.mark.parametrize("name", [*CASES_WITH_RUNS, "client_frontend_tool"])
def test_each_run_can_be_decoded_separately(name: str) -> None:
    """S2.11: a stateless server records the same as one with a permanent decoder."""
    lines, memory = load_case(name), MemoryLedger(redact=False)
    runs: list[list[Any]] = []
    for line in lines:
        runs += [[]] if "type" not in line or not runs else []
        runs[-1].append(line)
    for run in runs:
        decode_to_state(run, memory)
    assert list_visible(memory.state) == list_visible(decode_to_state(lines))


@pytest.mark.parametrize("name", CASES_WITH_RUNS)
def test_a_messages_snapshot_after_the_stream_adds_no_entry(name: str) -> None:
    """Its messages are those of the streamed events."""
    lines = load_case(name)
    bodies = [line for line in lines if "type" not in line and line.get("messages")]
    last = max(at for at, line in enumerate(lines) if line.get("type") in ("RUN_FINISHED", "RUN_ERROR"))
    snapshots = [{"type": "MESSAGES_SNAPSHOT", "messages": body["messages"]} for body in bodies]
    assert list_visible(decode_to_state([*lines[:last], *snapshots, *lines[last:]])) == list_visible(
        decode_to_state(lines)
    )


def test_a_messages_snapshot_alone_gives_the_conversation() -> None:
    """S2.11: without a stream; each call is one event with its result."""
    messages = next(line["messages"] for line in reversed(load_case("weather")) if "type" not in line)
    entries = [
        entry[:-2]
        for entry in list_visible(decode_to_state([RUN, {"type": "MESSAGES_SNAPSHOT", "messages": messages}]))
    ]
    assert [entry[0] for entry in entries] == ["Message", "Thought", "Message", "ToolCall", "Message", "Message"]
    assert entries[3][1:5] == ["completed", "weather", {"city": "Paris"}, '{"sky":"rain"}']


def test_the_tools_of_run_inputs_are_stored_once() -> None:
    """Other fields of an input are stored if they changed, without the conversation."""
    lines = load_case("client_frontend_tool")
    decoder = registry.decoder(FORMAT)
    raw_events = [draft.event for line in lines for draft in decoder.feed(line) if isinstance(draft.event, ev.Raw)]
    assert len(raw_events) == 1
    assert "tools" in raw_events[0].body and "messages" not in raw_events[0].body


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_repeated_history_adds_only_new_messages(has_ids: bool) -> None:
    """C12: every request has the full history; the log grows by the new messages."""

    def count_events(turns: int) -> int:
        memory, decoder, messages = MemoryLedger(redact=False), registry.decoder(FORMAT), list[Any]()
        for number in range(turns):
            messages.append({"role": "user", "content": "Hi.", **({"id": f"u{number}"} if has_ids else {})})
            run = {"threadId": "t", "runId": f"r{number}"}
            memory.write(*decoder.feed({**run, "messages": messages}))
            for event in (
                {"type": "RUN_STARTED", **run},
                {"type": "TEXT_MESSAGE_CHUNK", "messageId": f"a{number}", "delta": "Yes."},
                {"type": "RUN_FINISHED", **run},
            ):
                memory.write(*decoder.feed(event))
            messages.append({"role": "assistant", "content": "Yes.", **({"id": f"a{number}"} if has_ids else {})})
        return len(memory.log)

    assert count_events(40) - count_events(20) == 2 * (count_events(20) - count_events(10))


def test_the_decoder_drops_arguments_after_their_turn() -> None:
    """A conversation may last for days, and the log has the arguments."""
    decoder = registry.decoder(FORMAT)

    def feed_turn(number: int) -> None:
        args = {"type": "TOOL_CALL_ARGS", "toolCallId": f"c{number}", "delta": f'"{number}{"x" * 20_000}"'}
        start, end = ({**event, "toolCallId": f"c{number}"} for event in CALL)
        result = {"type": "TOOL_CALL_RESULT", "toolCallId": f"c{number}", "content": "ok"}
        finished = {"type": "RUN_FINISHED", "runId": f"r{number}"}
        for event in ({**RUN, "runId": f"r{number}"}, start, args, end, result, finished):
            decoder.feed(event)

    tracemalloc.start()
    try:
        for number in range(50):
            feed_turn(number)
        memory_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory_bytes < 50 * 10_000


def test_a_late_end_of_arguments_changes_nothing() -> None:
    """C4, C10: an end that arrives turns later is stored as raw."""
    args = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"a":1}'}
    finished = {"type": "RUN_FINISHED", "runId": "r", "outcome": {"type": "success"}}
    prompt = {"runId": "r2", "messages": [{"id": "u", "role": "user", "content": "x"}]}
    state = decode_to_state([RUN, CALL[0], args, CALL[1], finished, prompt, {**RUN, "runId": "r2"}, CALL[1]])
    assert [entry[3] for entry in list_visible(state) if entry[0] == "ToolCall"] == [{"a": 1}]


@pytest.mark.parametrize("parents", [(None, None), ("m1", "m2")])
def test_a_reused_id_of_an_open_call_has_its_own_arguments(parents: tuple[str | None, str | None]) -> None:
    """C2: some producers number their calls from the start in every round."""
    events: list[Any] = [RUN]
    for number, parent in enumerate(parents):
        args = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": f'{{"n":{number}}}'}
        events += [{**CALL[0], "parentMessageId": parent}, args, CALL[1]]
    inputs = [entry[3] for entry in list_visible(decode_to_state(events)) if entry[0] == "ToolCall"]
    assert inputs == ([{"n": 0}, {"n": 1}] if all(parents) else [{"n": 1}])


# Chunks


def test_chunk_events_read_like_start_content_and_end_events() -> None:
    """The first chunk starts the message or call, and the next other event ends it."""
    events = load_case("parallel")
    chunk_events: list[Any] = []
    for event in events:
        kind = event["type"].rpartition("_")[2]
        if event["type"].startswith("TOOL_CALL") and kind in ("START", "ARGS"):
            chunk_events.append({**event, "type": "TOOL_CALL_CHUNK"})
        elif kind != "END":
            chunk_events.append(event)
    one_call_chunks = [event for event in chunk_events if event.get("toolCallId") in (None, "c3")]
    one_call_events = [event for event in events if event.get("toolCallId") in (None, "c3")]
    assert list_visible(decode_to_state(one_call_chunks)) == list_visible(decode_to_state(one_call_events))


@given(st.data())
def test_texts_and_arguments_can_be_split_at_any_position(data: st.DataObject) -> None:
    """S2.4: chunks are deltas of any length."""
    lines = load_case("weather")
    split: list[Any] = []
    for line in lines:
        if not isinstance(line.get("delta"), str):
            split.append(line)
            continue
        at = data.draw(st.integers(0, len(line["delta"])))
        split += [{**line, "delta": line["delta"][:at]}, {**line, "delta": line["delta"][at:]}]
    assert list_visible(decode_to_state(split)) == list_visible(decode_to_state(lines))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("", {}), (" ", {}), ("{}", {}), ('{"a":1}', {"a": 1}), ("[1]", [1]), ('{"a":', '{"a":'), ("null", None)],
)
def test_arguments_that_are_not_json_stay_text(arguments: str, expected: Any) -> None:
    """C11: and the call continues."""
    args = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": arguments}
    (event,) = decode_last(RUN, CALL[0], args, CALL[1])
    assert isinstance(event, ev.CallInput) and event.input == expected


@given(st.lists(format_cases.garbage | st.sampled_from(format_cases.messages_of(FORMAT)), max_size=8))
def test_any_value_is_accepted(messages: list[Any]) -> None:
    """C11: also strings with lone surrogates, which only a Python caller can pass."""
    decoder = registry.decoder(FORMAT)
    for message in messages:
        decoder.feed(message)
    decoder.close("eof")
