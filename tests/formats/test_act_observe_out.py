"""Encode `act-observe`: a reader that matches the events of a stream by id has the timeline of the session."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import pytest
from hypothesis import given
from msgspec import structs

from callslip.formats import registry
from callslip.formats.act_observe.decode import ActObserveDecoder
from callslip.formats.act_observe.encode import open_stream, timeline
from callslip.formats.base import Restart
from callslip.formats.base import sse_frame as frame
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Blob, ToolCall
from callslip.model.events import Alias, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support import scenarios, stream_checks
from tests.support.strategies import scripts, write_script

Item = dict[str, Any]


class TimelineReader:
    """Builds a timeline from events: an observe belongs to the act with its id, a repeated act replaces it (S1.3)."""

    def __init__(self) -> None:
        self._items: dict[tuple[int, int], Item] = {}
        self._acts: dict[str, Item] = {}
        self.ended = ""

    def read(self, event: Item) -> None:
        assert not self.ended, "an event after the end"
        self.HANDLERS[event["type"]](self, event)

    def timeline(self) -> list[Item]:
        return [deepcopy(self._items[position]) for position in sorted(self._items)]

    def _act(self, event: Item) -> None:
        assert event["execution_id"] == event["tool_execution_id"] and event["status"] == "running"
        earlier_act = self._acts.get(event["execution_id"])
        execution = earlier_act["execution"] if earlier_act else {"status": "running", "endTime": None}
        act = {"type": "act", **_ids(event)}
        act |= {"toolName": event["tool_name"], "toolInput": event["tool_input"]}
        act["execution"] = {**execution, "startTime": event["timestamp"]}
        self._acts[event["execution_id"]] = self._items[event["seq"], 0] = act
        if (event["seq"], 1) in self._items:
            self._items[event["seq"], 1]["toolName"] = event["tool_name"]

    def _observe(self, event: Item) -> None:
        act = self._acts[event["execution_id"]]
        assert (event["seq"], 1) not in self._items, "one observe for each act"
        assert event["tool_name"] == act["toolName"] and event["result"] == event["observation"]
        act["execution"] |= {"status": event["status"], "endTime": event["timestamp"]}
        item = {"type": "observe", **_ids(event), "duration_ms": event["duration_ms"]}
        item |= {"toolName": event["tool_name"], "toolOutput": event["result"], "isError": event["is_error"]}
        item |= {name: event[name] for name in ("truncated", "size") if name in event}
        self._items[event["seq"], 1] = item

    def _full_item(self, event: Item) -> None:
        self._items[event["seq"], 0] = dict(event)

    def _text_start(self, event: Item) -> None:
        self._items[event["seq"], 0] = {"type": "assistant_message", "seq": event["seq"], "content": ""}

    def _delta(self, event: Item) -> None:
        thought = {"type": "thought", "seq": event["seq"], "content": ""}
        self._items.setdefault((event["seq"], 0), thought)["content"] += event["delta"]

    def _text_end(self, event: Item) -> None:
        self._items[event["seq"], 0]["content"] = event["full_text"]

    def _end(self, event: Item) -> None:
        self.ended = event["type"]

    HANDLERS: ClassVar[dict[str, Callable[[Any, Item], None]]] = {
        "act": _act,
        "observe": _observe,
        "user_message": _full_item,
        "assistant_message": _full_item,
        "thought": _full_item,
        "text_start": _text_start,
        "text_delta": _delta,
        "thought_delta": _delta,
        "text_end": _text_end,
        "complete": _end,
        "cancelled": _end,
        "error": _end,
    }


def _ids(event: Item) -> Item:
    return {name: event[name] for name in ("seq", "execution_id", "callslip_id", "call_id")}


class ReaderClient(stream_checks.Client):
    """A client that reads with `TimelineReader` instead of a Node process."""

    def __init__(self) -> None:
        pass

    def ask(self, jobs: Sequence[stream_checks.Job]) -> list[stream_checks.Job]:
        return [{"error": None, "messages": read_timelines(job["chunks"], job["at"])} for job in jobs]


def read_timelines(chunks: list[Any], counts: list[int]) -> list[list[Item]]:
    """Return the timeline after each of these numbers of events, parsed from their frames."""
    reader, timelines, read_count = TimelineReader(), [], 0
    for count in counts:
        for chunk in chunks[read_count:count]:
            reader.read(json.loads(frame(chunk).removeprefix(b"data: "), parse_int=stream_checks.parse_js_number))
        read_count = count
        timelines.append(reader.timeline())
    return timelines


def law_of(log: Sequence[Event]) -> stream_checks.Law:
    """Return the law for a log, whose entries give the turn of each item."""
    turns = {entry.id: entry.turn for entry in stream_checks.fold_log(log).entries.values()}

    def items_of_turn(items: list[Item], turn: str) -> list[Item]:
        if isinstance(turn, stream_checks.BlockName):
            return [item for item in items if item["seq"] in turn.entries]
        return [item for item in items if turns[item["seq"]] == turn]

    return stream_checks.Law(ReaderClient(), "act-observe", items_of_turn)


# The law


@given(scripts())
def test_every_execution_is_observed_once(script: list[Event]) -> None:
    """S1.2: every ended call has an act before its observe, with one id; an open call has no observe."""
    state = write_script(script).state
    items = timeline(state)
    calls = [entry for entry in state.entries.values() if isinstance(entry, ToolCall)]
    ended = {call.call_id for call in calls if call.status in TERMINAL_STATES or call.scope == "detached"}
    observed = [item["execution_id"] for item in items if item["type"] == "observe"]
    acts = [item["execution_id"] for item in items if item["type"] == "act"]
    assert len(observed) == len(set(observed)) and set(observed) == ended
    assert len(acts) == len(set(acts)) and set(acts) >= ended


@given(scripts())
def test_a_timeline_page_is_made_from_its_entries_alone(script: list[Event]) -> None:
    """So a page of a long timeline needs no other entries."""
    entries = write_script(script).state.snapshot().entries
    assert timeline(entries) == [item for entry in entries for item in timeline([entry])]


# Content of the events

CALL = (Alias("act-observe", "one"),)
READ = ev.CallProposed(aliases=CALL, tool_name="read", input={"path": "a"})


def stream_of(*script: Event) -> list[Item]:
    """Return all events of the first turn of a script, which must need no restart."""
    encoder, stream = open_stream(), []
    for event in write_script([ev.TurnStarted(), *script]).log:
        chunks = encoder.feed(event)
        assert not isinstance(chunks, Restart), chunks.reason
        stream += chunks
    return stream


def call_event(cls: type[ev.CallEvent], **fields: Any) -> ev.CallEvent:
    return cls(aliases=CALL, **fields)


def test_the_act_is_sent_when_the_call_starts() -> None:
    """One act, also if the call was proposed, changed and approved before."""
    approved = [READ, call_event(ev.ApprovalRequested), ev.ApprovalGranted(approval="#0", input={"path": "b"})]
    stream = stream_of(
        *approved, call_event(ev.CallStarted), call_event(ev.CallCompleted, output="text"), ev.TurnEnded()
    )
    assert [event["type"] for event in stream] == ["act", "observe", "complete"]
    assert stream[0]["tool_input"] == {"path": "b"} and stream[0]["call_id"] == stream[1]["call_id"] == "one"
    assert stream[0]["execution_id"] == stream[1]["execution_id"] == stream[1]["tool_execution_id"]
    assert stream[1]["duration_ms"] == stream[1]["timestamp"] - stream[0]["timestamp"] > 0


def test_a_changed_act_is_sent_again_with_its_id() -> None:
    """S1.3: so a reader has one act with the current values."""
    stream = stream_of(
        call_event(ev.CallStarted), call_event(ev.CallProgress, tool_name="read"), call_event(ev.CallProgress, text="x")
    )
    assert [(event["type"], event["tool_name"]) for event in stream] == [("act", "unknown"), ("act", "read")]
    assert len({event["execution_id"] for event in stream}) == 1


def test_an_act_whose_argument_type_changes_is_sent_again() -> None:
    """1 and true are equal in Python but not in JSON."""
    stream = stream_of(
        call_event(ev.CallStarted, input=1),
        call_event(ev.CallProgress, input=True),
        call_event(ev.CallProgress, input=1.0),
    )
    assert [codec.encode(event["tool_input"]) for event in stream] == [b"1", b"true", b"1.0"]


@pytest.mark.parametrize("cls", ev.TERMINAL)
def test_every_end_state_gives_an_observe(cls: type[ev.CallEnd]) -> None:
    """S1.2: with the same id, `is_error` from the state table, and an error with the reason."""
    stream = stream_of(READ, call_event(ev.CallStarted), call_event(cls, reason="because"))
    state = write_script([ev.TurnStarted(), READ, call_event(ev.CallStarted), call_event(cls, reason="because")]).state
    (call,) = (entry for entry in state.entries.values() if isinstance(entry, ToolCall))
    assert stream[-1]["is_error"] == STATE_NAMES[call.status].error
    assert stream[-1]["status"] == STATE_NAMES[call.status].act
    assert stream[-1]["result"] == ("" if call.status == "completed" else {"error": "because"})


def test_a_denied_call_has_an_act_and_an_observe() -> None:
    """S1.2: the observe has the reason."""
    stream = stream_of(READ, call_event(ev.ApprovalRequested), ev.ApprovalRefused(approval="#0", reason="never"))
    assert [event["type"] for event in stream] == ["act", "observe"]
    assert stream[1]["result"] == {"error": "never"}


def test_output_before_a_failure_is_in_the_observe() -> None:
    """In addition to the error."""
    failed = call_event(ev.CallFailed, error={"code": 7})
    stream = stream_of(call_event(ev.CallStarted), call_event(ev.CallProgress, text="half of it"), failed)
    assert stream[-1]["result"] == {"error": {"code": 7}, "output": "half of it"}


def test_content_is_the_result_if_there_is_no_output() -> None:
    """Before printed text, as in every other format; a reference to a terminal is not a result."""
    block = {"type": "content", "content": {"type": "text", "text": "3 files"}}
    terminal = {"type": "terminal", "terminalId": "1"}
    printed = call_event(ev.CallProgress, text="a b c")
    for content, result in (([block, terminal], "3 files"), ([terminal], "a b c"), ({"n": 1}, [{"n": 1}])):
        stream = stream_of(call_event(ev.CallStarted), printed, call_event(ev.CallCompleted, content=content))
        assert stream[-1]["result"] == result
    assert stream_of(call_event(ev.CallCompleted, content=[terminal]))[-1]["result"] == ""


def test_arguments_streamed_in_chunks_are_shown() -> None:
    """As the joined value, after the call has ended."""
    for text, expected in (('{"a": 1}', {"a": 1}), ('{"a": ', '{"a": ')):
        stream = stream_of(call_event(ev.CallInputDelta, text=text), call_event(ev.CallCompleted, output=1))
        assert stream[0]["tool_input"] == expected


def test_a_detached_call_shows_streamed_arguments_after_its_end() -> None:
    """Its observe is sent immediately, and chunks may follow: stream and timeline agree."""
    detached = ev.CallProposed(aliases=CALL, tool_name="read", scope="detached")
    pieces = [
        call_event(ev.CallInputDelta, text='{"a":'),
        call_event(ev.CallInputDelta, text="1}"),
        call_event(ev.CallProgress),
    ]
    log = write_script([ev.TurnStarted(), detached, *pieces, call_event(ev.CallCompleted), ev.TurnEnded()]).log
    law_of(log).check_log(log, stream_checks.resume_points(log))
    assert [timeline(stream_checks.fold_log(log[:seq]))[0]["toolInput"] for seq in (4, 6)] == [None, {"a": 1}]


def test_a_truncated_output_has_its_full_size() -> None:
    """In the stream and in the timeline."""
    blob = Blob("sha", 5_000_000)
    call = ToolCall(id=1, call_id="e", tool_call_id="t", status="completed", output="start", truncated=True, blob=blob)
    _, observe = timeline([call])
    assert observe["truncated"] and observe["size"] == 5_000_000


def test_a_tool_is_unknown_only_without_a_name() -> None:
    """S1.6"""
    names = ("read", None, "")
    calls = [ToolCall(id=n, call_id=f"e{n}", tool_call_id="t", tool_name=names[n], status="running") for n in range(3)]
    assert [item["toolName"] for item in timeline(calls)] == ["read", "unknown", "unknown"]


def test_texts_and_thoughts_are_in_the_timeline() -> None:
    """In chunks and in full, in order with the calls."""
    texts = [ev.MessageUser(text="go", message_id="m"), ev.ThoughtDelta(text="hm. "), ev.MessageDelta(text="Well. ")]
    stream = stream_of(*texts, ev.MessageDelta(text="Done."), ev.TurnEnded(reason="cancelled"))
    assert [event["type"] for event in stream] == [
        "user_message",
        "thought_delta",
        "thought",
        "text_start",
        "text_delta",
        "text_delta",
        "text_end",
        "cancelled",
    ]
    shown = [(item["type"], item["content"]) for item in timeline(write_script(texts).state)]
    assert shown == [("user_message", "go"), ("thought", "hm. "), ("assistant_message", "Well. ")]
    assert stream[-2]["full_text"] == "Well. Done."


def test_decoding_a_stream_gives_the_same_timeline() -> None:
    """Except for positions."""
    call_events = [READ, call_event(ev.CallStarted), call_event(ev.CallFailed, error="gone")]
    script = [ev.MessageUser(text="go"), ev.ThoughtDelta(text="hm. "), ev.MessageDelta(text="Well. "), *call_events]
    decoder = ActObserveDecoder()
    events = json.loads(codec.encode(stream_of(*script, ev.TurnEnded())))
    drafts = [draft.event for event in events for draft in decoder.feed(event)]
    first, decoded = (timeline(write_script(script).state) for script in ([ev.TurnStarted(), *script], drafts))
    names = ("type", "content", "toolName", "toolInput", "toolOutput", "isError")
    assert [select_fields(item, names) for item in decoded] == [select_fields(item, names) for item in first]


def select_fields(item: Item, names: tuple[str, ...]) -> Item:
    fields = {name: item[name] for name in names if name in item}
    return {**fields, **({"status": item["execution"]["status"]} if "execution" in item else {})}


# Restart and end of a stream


def test_a_replaced_text_requests_a_restart() -> None:
    """While the text is streamed; every later event requests it again until the turn is replayed."""
    log = scenarios.load_events("cumulative_text")
    encoder = open_stream()
    outputs = [encoder.feed(event) for event in log]
    first_restart = next(n for n, output in enumerate(outputs) if isinstance(output, Restart))
    assert all(isinstance(output, Restart) for output in outputs[first_restart:])
    assert not [event for event in encoder.opening() if event["type"] == "restart"]


def test_a_change_after_the_end_of_the_stream_requests_a_restart() -> None:
    """A detached call is answered immediately; a change after the end of the stream needs a new stream."""
    detached = structs.replace(READ, scope="detached")
    log = write_script([ev.TurnStarted(), detached, ev.TurnEnded(), call_event(ev.CallProgress, tool_name="write")]).log
    encoder = open_stream()
    *outputs, after = [encoder.feed(event) for event in log]
    assert [event["type"] for output in outputs for event in output] == ["act", "observe", "complete"]
    assert isinstance(after, Restart)
    assert [event["tool_name"] for event in encoder.opening()[:2]] == ["write", "write"]
    assert encoder.finished


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("end_turn", "complete"),
        ("max_tokens", "complete"),
        ("cancelled", "cancelled"),
        ("superseded", "cancelled"),
        ("eof", "error"),
    ],
)
def test_a_stream_ends_with_the_stop_reason_of_its_turn(reason: str, kind: str) -> None:
    """Once, at the end."""
    stream = stream_of(ev.MessageUser(text="go"), ev.TurnEnded(reason=reason))
    assert [event["type"] for event in stream] == ["user_message", kind]


def test_a_stream_ends_after_the_last_call_of_its_turn() -> None:
    """Also if the turn ended before the call."""
    encoder = open_stream()
    log = write_script(
        [ev.TurnStarted(), READ, call_event(ev.CallStarted), ev.TurnEnded(), call_event(ev.CallCompleted)]
    ).log
    for event in log[:-1]:
        encoder.feed(event)
    assert not encoder.finished
    assert [event["type"] for event in encoder.feed(log[-1])] == ["observe", "complete"]
    assert encoder.finished and encoder.feed(ev.MessageUser(seq=99, text="next")) == []
    assert encoder.close("late") == []


def test_a_closed_stream_has_the_reason() -> None:
    """And no further event."""
    encoder = open_stream()
    assert encoder.close("the server stops") == [{"type": "error", "message": "the server stops"}]
    assert encoder.finished


def test_the_registry_has_the_stream_encoder() -> None:
    """Server-sent events, by the name in the list of formats."""
    stream = registry.streaming("act-observe")
    assert stream.events and stream.headers["content-type"] == "text/event-stream"
    assert stream.frame({"type": "complete"}) == b'data: {"type":"complete"}\n\n'
    assert registry.encoder("act-observe") is timeline
