"""Decode acts and observes: pairing, the end of an execution, old and new producers."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from callslip.formats.act_observe.decode import ActObserveDecoder
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message, Thought
from callslip.model.events import Alias
from tests.support.decoder_harness import DecoderHarness
from tests.support.invariants import sound_ledger


class ActObserveHarness(DecoderHarness):
    """The act-observe decoder with a ledger in memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(ActObserveDecoder(**options))


def act(tool: str = "Bash", tool_input: Any = UNSET, **more: Any) -> dict[str, Any]:
    fields = {} if tool_input is UNSET else {"tool_input": tool_input}
    return {"type": "act", "tool_name": tool, **fields, **more}


def observe(result: Any = UNSET, tool: str = "", **more: Any) -> dict[str, Any]:
    fields = {} if result is UNSET else {"result": result}
    return {"type": "observe", **({"tool_name": tool} if tool else {}), **fields, **more}


def user(text: str = "Go") -> dict[str, Any]:
    return {"type": "user_message", "content": text}


E1, E2, E3 = (f"exec_{number:012x}" for number in (1, 2, 3))


# Fields of acts and observes


def test_an_act_starts_a_call_and_its_observe_ends_it() -> None:
    """S1.1: with the tool, its arguments and its result."""
    harness = ActObserveHarness().feed(
        act("MemorySearch", {"q": "Ada"}, execution_id=E1, call_id="c1", status="running")
    )
    assert (harness.call.status, harness.call.tool_call_id) == ("running", E1)
    harness.feed(observe({"hits": 2}, execution_id=E1, call_id="c1", duration_ms=0, is_error=False))
    call = harness.call
    assert (call.status, call.tool_name, call.raw_input, call.output) == (
        "completed",
        "MemorySearch",
        {"q": "Ada"},
        {"hits": 2},
    )


@pytest.mark.parametrize("first", ["execution_id", "tool_execution_id"])
@pytest.mark.parametrize("second", ["execution_id", "tool_execution_id"])
@pytest.mark.parametrize("output", ["result", "observation", "both"])
def test_old_and_new_field_names_are_read(first: str, second: str, output: str) -> None:
    """S1.1: of the id and of the result, also mixed, as producers of different versions send them."""
    fields = {"result": "x", "observation": "x"} if output == "both" else {output: "x"}
    harness = ActObserveHarness().feed({**act(), first: E1}, {"type": "observe", second: E1, **fields})
    assert (harness.call.status, harness.call.output) == ("completed", "x")


def test_an_empty_field_does_not_hide_its_other_spelling() -> None:
    """A null result next to an observation, an empty id next to a non-empty one."""
    message = {"type": "observe", "execution_id": "", "tool_execution_id": E1, "result": None, "observation": "x"}
    assert ActObserveHarness().feed(act(execution_id=E1), message).call.output == "x"


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda fields: fields, id="flat"),
        pytest.param(lambda fields: {"type": fields.pop("type"), "data": fields}, id="data"),
        pytest.param(lambda fields: {"event_type": fields.pop("type"), "payload": fields}, id="payload"),
        pytest.param(lambda fields: {"event": fields.pop("type"), "data": json.dumps(fields)}, id="text"),
        pytest.param(lambda fields: {"event": "message", "data": fields}, id="nested"),
    ],
)
def test_events_are_read_from_any_envelope(wrap: Any) -> None:
    """S1.1: flat, in `data` or in `payload`, as an object or as JSON text."""
    harness = ActObserveHarness().feed(
        wrap(act("Read", {"p": 1}, execution_id=E1)), wrap(observe("x", execution_id=E1))
    )
    assert (harness.call.tool_name, harness.call.raw_input, harness.call.output) == ("Read", {"p": 1}, "x")
    assert not harness.log(ev.Raw)


def test_timeline_items_are_read() -> None:
    """S1.6: with the field names of the timeline."""
    harness = ActObserveHarness().feed(
        user(),
        {"type": "act", "execution_id": E1, "toolName": "Read", "toolInput": {"p": 1}},
        {"type": "observe", "execution_id": E1, "toolName": "Read", "toolOutput": "gone", "isError": True},
    )
    assert (harness.call.tool_name, harness.call.status, harness.call.output) == ("Read", "failed", "gone")


def test_the_tool_name_unknown_is_ignored() -> None:
    """S1.6: `unknown` from an older timeline neither replaces a name nor pairs events."""
    harness = ActObserveHarness().feed(act("Read", execution_id=E1), observe("x", "unknown", execution_id=E1))
    assert harness.call.tool_name == "Read"
    orphan = ActObserveHarness().feed(observe("x", "unknown")).call
    assert orphan.tool_name is None


# Ends of a call


@pytest.mark.parametrize(
    ("fields", "status", "error", "reason"),
    [
        pytest.param({"result": "x"}, "completed", None, "", id="success"),
        pytest.param({"result": None}, "completed", None, "", id="no output"),
        pytest.param(
            {"result": "x", "status": "success", "is_error": False}, "completed", None, "", id="status and flag"
        ),
        pytest.param({"result": {"error": "boom"}, "is_error": True}, "failed", "boom", "", id="exception"),
        pytest.param({"error": "no tool X", "status": "completed"}, "failed", "no tool X", "", id="unknown tool"),
        pytest.param({"result": "x", "status": "failed"}, "failed", None, "", id="status only"),
        pytest.param({"error": "no", "status": "denied"}, "denied", "no", "no", id="denied"),
        pytest.param({"result": {"error": "30 s"}, "status": "timeout"}, "expired", "30 s", "30 s", id="timed out"),
        pytest.param({"status": "cancelled", "reason": "stop"}, "cancelled", None, "stop", id="cancelled"),
        pytest.param(
            {"result": {"error": "kept"}, "is_error": False}, "completed", None, "", id="result with an error field"
        ),
    ],
)
@pytest.mark.parametrize("has_act", [True, False])
def test_every_kind_of_observe_ends_the_call(
    has_act: bool, fields: dict[str, Any], status: str, error: Any, reason: str
) -> None:
    """S1.2: also of a call whose act is missing."""
    harness = ActObserveHarness().feed(
        *[act("X", execution_id=E1)] * has_act, {**observe(execution_id=E1, tool="X"), **fields}
    )
    call = harness.call
    assert (call.status, call.error, call.reason, call.tool_name) == (status, error, reason, "X")
    assert call.output == fields.get("result")
    assert set(harness.verdicts) == {"applied"}


def test_a_partial_result_is_progress() -> None:
    """The call stays running."""
    harness = ActObserveHarness().feed(act(execution_id=E1), observe("half", execution_id=E1, status="running"))
    assert (harness.call.status, harness.call.progress) == ("running", "half")
    assert harness.feed(observe("all", execution_id=E1, status="completed")).call.output == "all"


def test_event_times_are_read_from_the_messages() -> None:
    """Seconds, milliseconds, microseconds and ISO times; an end without a time is the start plus the duration."""
    at = 1_768_644_001_000
    iso = ("2026-01-17T10:00:01Z", "2026-01-17T10:00:01", "2026-01-17T11:00:01+01:00")
    for timestamp in (at, at / 1000, at * 1000, *iso):
        (draft,) = ActObserveDecoder().feed(act(timestamp=timestamp))
        assert draft.event.at == at
    harness = ActObserveHarness().feed(
        act(execution_id=E1, timestamp=at), observe("x", execution_id=E1, duration_ms=1500)
    )
    assert (harness.call.started_at, harness.call.ended_at) == (at, at + 1500)
    assert not harness.log(ev.Raw)


@pytest.mark.parametrize("timestamp", [0, -5, 12.5, True, "yesterday", "", None, [], 10**30, "0001-01-01"])
def test_an_invalid_time_is_replaced_by_the_ledgers_clock(timestamp: Any) -> None:
    """C11: it does not prevent the event."""
    (draft,) = ActObserveDecoder().feed(act(timestamp=timestamp))
    assert draft.event.at == 0


@pytest.mark.parametrize("duration", [-1, "12", True, 10**12, [1]])
def test_an_invalid_duration_is_stored_as_raw(duration: Any) -> None:
    """S1.2: the full message is stored in addition to its events."""
    message = observe("x", execution_id=E1, duration_ms=duration)
    assert [event.body for event in ActObserveHarness().feed(act(execution_id=E1), message).log(ev.Raw)] == [message]


# Pairing of acts and observes


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_acts_and_observes_pair_by_id_in_any_order(started: list[int], ended: list[int]) -> None:
    """S1.3: with the same tool and the same arguments."""
    messages = [act("Read", {"p": 1}, execution_id=f"e{number}") for number in started]
    messages += [observe(number, execution_id=f"e{number}") for number in ended]
    harness = ActObserveHarness().feed(*messages)
    assert {call.tool_call_id: call.output for call in harness.calls} == {f"e{n}": n for n in range(4)}
    assert {call.status for call in harness.calls} == {"completed"}


@given(st.lists(st.sampled_from(["act A", "act B", "observe A", "observe B", "observe", "turn"]), max_size=16))
def test_events_without_ids_pair_by_tool_name_in_order(script: list[str]) -> None:
    """S1.3: within a turn, compared with a simple reference implementation; each observe is used exactly once."""
    waiting: dict[str, list[int]] = {}
    expected: dict[int, int] = {}
    orphans: list[int] = []
    messages: list[Any] = []
    for number, step in enumerate(script):
        kind, _, tool = step.partition(" ")
        if kind == "turn":
            waiting = {}
            messages.append(user())
        elif kind == "act":
            waiting.setdefault(tool, []).append(number)
            messages.append(act(tool, number))
        else:
            messages.append(observe(number, tool))
            acts = waiting.get(tool, []) if tool else []
            if acts:
                expected[acts.pop(0)] = number
            else:
                orphans.append(number)
    harness = ActObserveHarness().feed(*messages)
    paired = {call.raw_input: call.output for call in harness.calls if call.raw_input is not None}
    assert {name: output for name, output in paired.items() if output is not None} == expected
    assert [call.output for call in harness.calls if call.raw_input is None] == orphans
    assert len(paired) == sum(step.startswith("act") for step in script)


@pytest.mark.parametrize("without_id", ["act", "observe"])
def test_an_event_with_an_id_does_not_pair_by_tool_name(without_id: str) -> None:
    """S1.3: the act stays open, and the observe is a separate call."""
    ids = {"execution_id": E1}
    messages = [
        {**act(), **({} if without_id == "act" else ids)},
        {**observe("x", "Bash"), **({} if without_id == "observe" else ids)},
    ]
    harness = ActObserveHarness().feed(*messages)
    assert [(call.status, call.output) for call in harness.calls] == [("running", None), ("completed", "x")]


def test_an_observe_without_an_act_is_a_separate_call() -> None:
    """S1.3: with its id and its tool, if present."""
    harness = ActObserveHarness().feed(observe("x", "Grep", execution_id=E1), observe("y"))
    assert [(call.tool_name, call.output) for call in harness.calls] == [("Grep", "x"), (None, "y")]
    assert harness.calls[0].tool_call_id == E1


def test_a_repeated_act_is_one_call() -> None:
    """S1.3: during the call, and if all messages are sent again after its end."""
    messages = [act("Bash", {"c": 1}, execution_id=E1, call_id="c1"), observe("x", execution_id=E1)]
    harness = ActObserveHarness().feed(messages[0], *messages, *messages)
    assert harness.call.output == "x"
    assert not harness.call.late
    assert harness.verdicts[-2:] == ["duplicate", "duplicate"]


def test_a_reused_execution_id_never_opens_a_second_call() -> None:
    """After the end, with other arguments, in a later turn or after a cancelled turn, the event is late."""
    harness = ActObserveHarness().feed(user(), act("Bash", 1, execution_id=E1), observe("x", execution_id=E1))
    harness.feed(act("Bash", 2, execution_id=E1), user(), act("Bash", 1, execution_id=E1))
    assert (harness.call.raw_input, harness.call.status) == (1, "completed")
    harness.feed(act("Bash", 3, execution_id=E2), {"type": "cancelled"}, act("Bash", 3, execution_id=E2))
    assert [call.status for call in harness.calls] == ["completed", "cancelled"]
    assert harness.verdicts.count("late") == 3


def test_an_act_that_arrives_after_its_observe_is_the_same_call() -> None:
    """S1.3: by either id."""
    for ids in ({"execution_id": E1}, {"call_id": "c1"}):
        harness = ActObserveHarness().feed(observe("x", "Bash", **ids), act("Bash", 1, **ids))
        assert (harness.call.status, harness.call.output, bool(harness.call.late)) == ("completed", "x", True)


def test_a_queued_call_starts_with_a_running_act() -> None:
    """Both acts have the same id."""
    harness = ActObserveHarness().feed(act(execution_id=E1, status="pending"))
    assert harness.call.status == "queued"
    assert harness.feed(act(execution_id=E1, status="running")).call.status == "running"
    assert harness.feed(act("Bash", {"more": 1}, execution_id=E1, status="running")).call.raw_input == {"more": 1}


def test_a_call_that_ended_while_queued_does_not_start() -> None:
    """C4: an act with status running after the end is late."""
    harness = ActObserveHarness().feed(
        act(execution_id=E1, status="pending"), observe(execution_id=E1, status="denied")
    )
    assert (harness.feed(act(execution_id=E1)).call.status, bool(harness.call.late)) == ("denied", True)


def test_a_call_is_found_by_model_id_and_by_execution_id() -> None:
    """S1.1: both are aliases, each in its own namespace."""
    (draft,) = ActObserveDecoder().feed(act(execution_id="1", call_id="1"))
    assert isinstance(draft.event, ev.CallStarted)
    assert draft.event.aliases == (Alias("act-observe", "1"), Alias("act-observe.call", "1"))
    harness = ActObserveHarness().feed(act(execution_id="1", call_id="2"), act(execution_id="2", call_id="1"))
    harness.feed(observe("b", call_id="1"), observe("a", call_id="2"))
    assert harness.outputs == ["a", "b"]


def test_old_and_new_producers_are_paired_by_the_models_id() -> None:
    """S1.4: only the act or only the observe has an execution id."""
    harness = ActObserveHarness().feed(act(call_id="c1"), observe("x", execution_id=E1, call_id="c1"))
    harness.feed(act(execution_id=E2, call_id="c2"), observe("y", call_id="c2"))
    assert harness.outputs == ["x", "y"]


def test_a_retry_with_a_new_execution_id_is_another_call() -> None:
    """Both have the same model id."""
    harness = ActObserveHarness().feed(act(execution_id=E1, call_id="c1"), act(execution_id=E2, call_id="c1"))
    harness.feed(observe("second", execution_id=E2, call_id="c1"), observe("first", execution_id=E1, call_id="c1"))
    assert harness.outputs == ["first", "second"]


@pytest.mark.parametrize("between", [[], [user()]])
def test_an_observe_by_model_id_ends_the_newest_execution(between: list[Any]) -> None:
    """C2, C5: the earlier call keeps its result, and the newest one does not stay open."""
    first = [user(), act(execution_id=E1, call_id="c1"), observe("first", call_id="c1")]
    again = [act(execution_id=E2, call_id="c1"), observe("second", call_id="c1")]
    assert ActObserveHarness().feed(*first, *between, *again).outputs == ["first", "second"]
    assert ActObserveHarness().feed(*first, *between, again[0], *again).outputs == ["first", "second"]


def test_an_act_by_model_id_after_the_execution_ended_is_a_new_call() -> None:
    """C2: in the same turn or in the next one."""
    first = [user(), act(given=1, execution_id=E1, call_id="c1"), observe("first", execution_id=E1)]
    again = [act(given=2, call_id="c1"), observe("second", call_id="c1")]
    for messages in ([*first, *again], [*first, user(), *again]):
        assert ActObserveHarness().feed(*messages).outputs == ["first", "second"]


def test_a_model_id_reused_in_the_next_turn_is_another_call() -> None:
    """C2: without an execution id, even while the first call is open."""
    harness = ActObserveHarness().feed(user(), act("Bash", 1, call_id="c1"), user(), act("Bash", 1, call_id="c1"))
    assert len(harness.calls) == 2
    assert harness.feed(observe("x", call_id="c1")).outputs == [None, "x"]
    harness.feed(act("Bash", 2, call_id="c1"), observe("y", call_id="c1"))
    assert harness.outputs == [None, "x", "y"]


# Turns and texts


def test_a_prompt_begins_a_turn_and_ends_the_previous_turn() -> None:
    """Some conversations have no other end of a turn."""
    harness = ActObserveHarness().feed(user("one"), act(execution_id=E1), user("two")).close()
    assert [entry.content for entry in harness.entries(Message)] == ["one", "two"]
    assert [event.reason for event in harness.log(ev.TurnEnded)] == ["end_turn", "eof"]


@pytest.mark.parametrize(
    ("ending", "reason", "status"),
    [
        ({"type": "complete"}, "end_turn", "running"),
        ({"type": "error", "message": "overloaded"}, "error", "lost"),
        ({"type": "cancelled"}, "cancelled", "cancelled"),
    ],
)
def test_the_end_of_a_turn_decides_how_its_open_calls_end(ending: Any, reason: str, status: str) -> None:
    """C5: after `complete` a result still counts; after the other ends it is late."""
    harness = ActObserveHarness().feed(user(), act(execution_id=E1), ending)
    assert [event.reason for event in harness.log(ev.TurnEnded)] == [reason]
    assert harness.call.status == status


def test_acts_without_a_prompt_begin_no_turn() -> None:
    """S1.4: and they do not end a turn that the caller began."""
    harness = ActObserveHarness().feed(act(), observe("x", "Bash"), {"type": "complete"}).close()
    assert not harness.log(ev.TurnStarted) and not harness.log(ev.TurnEnded)


def test_a_text_sent_in_chunks_and_in_full_is_shown_once() -> None:
    """So is a thought; a text that is only sent in full is shown too."""
    harness = ActObserveHarness().feed(
        {"type": "thought_delta", "delta": "Hm"},
        {"type": "thought_delta", "delta": "m."},
        {"type": "thought", "content": "Hmm."},
        {"type": "text_start"},
        {"type": "text_delta", "delta": "Fo"},
        {"type": "text_delta", "delta": "ur."},
        {"type": "text_end", "full_text": "Four."},
        {"type": "assistant_message", "content": "More?"},
    )
    assert [entry.content for entry in harness.entries(Thought)] == ["Hmm."]
    assert [entry.content for entry in harness.entries(Message)] == ["Four.", "More?"]
    assert not any(entry.streaming for entry in harness.entries(Message))


# Unknown fields and invalid messages


def test_unknown_fields_of_text_messages_are_stored_as_raw() -> None:
    """S1.4: in every kind of message with a text."""
    kinds = ("text_start", "text_delta", "text_end", "assistant_message", "thought", "thought_delta")
    messages = [{"type": kind, "content": "a", "delta": "a", "full_text": "a", "model": "m-1"} for kind in kinds]
    assert ActObserveHarness().feed(*messages).raws == messages


def test_the_decoder_does_not_hold_full_texts_in_memory() -> None:
    """C12: also for a source that repeats the full text in every chunk."""
    decoder = ActObserveDecoder(chunks="cumulative")
    tracemalloc.start()
    for size in range(10_000, 10_200):
        decoder.feed({"type": "text_delta", "delta": "x" * size})
    memory_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory_bytes < 200_000
    (ended,) = decoder.feed({"type": "text_end", "full_text": "x" * size})
    assert isinstance(ended.event, ev.MessageEnded)


def test_unknown_fields_do_not_change_the_call_and_are_stored() -> None:
    """S1.4: the call is the same as without them, and the full message is stored."""
    message = act("Read", {"p": 1}, execution_id=E1, risk={"level": "low"})
    harness = ActObserveHarness().feed(message)
    expected = ActObserveHarness().feed(act("Read", {"p": 1}, execution_id=E1))
    assert msgspec.structs.replace(harness.call, call_id="") == msgspec.structs.replace(expected.call, call_id="")
    assert [event.body for event in harness.log(ev.Raw)] == [message]
    assert not expected.log(ev.Raw)


@pytest.mark.parametrize(
    "message", [None, 5, "act", [], {}, {"type": "status"}, {"type": ["act"]}, {"data": {"type": 1}}, {"type": "error"}]
)
def test_a_message_of_unknown_kind_gives_one_raw_event(message: Any) -> None:
    """C11: and no other event."""
    (draft,) = ActObserveDecoder().feed(message)
    assert draft.event == ev.Raw(format="act-observe", body=message)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "act", "tool_name": ["x"], "execution_id": E1},
        {"type": "act", "tool_name": "x", "execution_id": {"a": 1}},
        {"type": "observe", "tool_name": "x", "execution_id": E1, "is_error": "yes"},
        {"type": "act", "tool_name": "x", "status": 5},
        {"type": "act", "tool_name": "x", "status": "dreaming"},
    ],
)
def test_an_invalid_field_is_stored_and_the_others_are_read(message: Any) -> None:
    """C11: the rest of the message counts."""
    first, second = ActObserveDecoder().feed(message)
    assert isinstance(first.event, ev.CallStarted | ev.CallCompleted)
    assert second.event == ev.Raw(format="act-observe", body=message)


@pytest.mark.anyio
async def test_an_imported_call_is_found_by_both_ids(db: str) -> None:
    """S1.1, S1.4: in a store; a second import changes nothing."""
    messages = [user(), act("Read", {}, tool_execution_id=E1, call_id="c1"), observe("x", execution_id=E1)]
    lines = [codec.encode(message) for message in messages]
    async with sound_ledger(db) as ledger:
        first = await import_lines(ledger.log, "s", "act-observe", lines)
        again = await import_lines(ledger.log, "s", "act-observe", lines)
        assert first.events and not again.events
        (row,) = (await ledger.calls(session="s")).items
        assert (row.client_call_id, row.tool, row.state) == (E1, "Read", "completed")
        late = await ledger.log.append("s", [ev.CallProgress(aliases=(Alias("act-observe.call", "c1"),))], source="x")
        assert (late[0].call, late[0].verdict) == (row.id, "late")
