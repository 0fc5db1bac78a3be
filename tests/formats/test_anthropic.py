"""`anthropic` in: the Messages API as streams, whole messages and requests. tests/inputs/anthropic tells the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from anthropic._models import construct_type
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st

from callslip.formats.anthropic.decode import AnthropicDecoder
from callslip.model import events as ev
from callslip.model.entries import Message, Thought
from tests.support import format_cases
from tests.support.provider_rules import decode_messages, list_calls, list_entries

USER = {"role": "user", "content": "Go."}
ORACLE = ["two_rounds", "parallel", "server_tools", "pause", "told_twice"]


def drafted(messages: Sequence[Any], **options: Any) -> list[ev.Event]:
    """What a decoder drafts, without its end."""
    decoder = AnthropicDecoder(**options)
    return [draft.event for message in messages for draft in decoder.feed(message)]


def of(kind: type[Any], events: Sequence[ev.Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def whole(*content: Any, reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    """A whole answer."""
    reason = "tool_use" if any(block.get("type") == "tool_use" for block in content) else reason
    fields = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    return {
        **fields,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        **more,
    }


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(identity: str, name: str = "ls", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def results(*outputs: tuple[str, Any], **more: Any) -> dict[str, Any]:
    blocks = [
        {"type": "tool_result", "tool_use_id": identity, "content": content, **more} for identity, content in outputs
    ]
    return {"role": "user", "content": blocks}


def begin(identity: str = "msg_1") -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": identity, "role": "assistant", "content": []}}


def start(index: int, block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str = "end_turn", **more: Any) -> list[dict[str, Any]]:
    fields = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None, **more}, "usage": {}}
    return [fields, {"type": "message_stop"}]


def as_sdk(event: dict[str, Any]) -> Any:
    """An event as the SDK hands it out."""
    return construct_type(type_=cast(Any, RawMessageStreamEvent), value=event)


def streams_of(case: str) -> list[list[dict[str, Any]]]:
    """The events of a case, answer by answer."""
    found: list[list[dict[str, Any]]] = []
    for message in map(json.loads, format_cases.lines_of(f"anthropic/{case}")):
        if message.get("type") == "message_start":
            found.append([])
        if str(message.get("type")).startswith(("message_", "content_block_")):
            found[-1].append(message)
    return found


# The SDK as a judge


@pytest.mark.parametrize("case", ORACLE)
def test_a_stream_reads_as_the_sdk_reads_it(case: str) -> None:
    """Texts, thoughts, ids, names and arguments of every answer."""
    streams = streams_of(case)
    assert streams
    for stream in streams:
        judged: Any = None
        buffers: dict[int, bytes] = {}
        for event in stream:
            judged = accumulate_event(event=as_sdk(event), current_snapshot=judged, json_bufs=buffers)
        memory = decode_messages("anthropic", stream)
        texts = [b.text for b in judged.content if b.type == "text"]
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Message)) == "".join(texts)
        thought = [b.thinking for b in judged.content if b.type == "thinking"]
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Thought)) == "".join(thought)
        uses = [(b.id, b.name, b.input or {}) for b in judged.content if b.type in ("tool_use", "server_tool_use")]
        found = [(c.tool_call_id, c.tool_name, c.raw_input) for c in list_calls(memory) if c.title is None]
        assert [c for c in found if c[2] is not None] == uses


@pytest.mark.parametrize("case", [*ORACLE, "bad_arguments"])
def test_an_sdks_event_reads_as_what_it_was_read_from(case: str) -> None:
    """An event that is dumped says null where the wire said nothing."""
    kept_as_it_came = ev.Raw | ev.SessionInfo | ev.CallEnd
    for stream in streams_of(case):
        dumped = [as_sdk(event).model_dump(mode="json", warnings=False) for event in stream]
        read, expected = (
            [event for event in drafted(one) if not isinstance(event, kept_as_it_came)] for one in (dumped, stream)
        )
        assert read == expected


# Pieces


@given(st.lists(st.dictionaries(st.text(max_size=4), st.integers(), max_size=3), min_size=1, max_size=3), st.data())
def test_wherever_a_stream_is_cut_it_says_the_same(given_inputs: list[Any], data: st.DataObject) -> None:
    """Arguments and texts in any pieces, as the whole message says it."""
    stream, blocks = [begin()], list[Any]()
    for index, value in enumerate(given_inputs):
        arguments = json.dumps(value)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
        parts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        stream += [start(index, call(f"toolu_{index}"))]
        stream += [delta(index, type="input_json_delta", partial_json=part) for part in parts]
        stream += [stop(index)]
        blocks.append({**call(f"toolu_{index}"), "input": value})
    facts = [
        [(c.tool_call_id, c.tool_name, c.raw_input, c.iteration, c.index) for c in list_calls(memory)]
        for memory in (
            decode_messages("anthropic", [USER, *stream, *end("tool_use")]),
            decode_messages("anthropic", [USER, whole(*blocks)]),
        )
    ]
    assert facts[0] == facts[1] and len(facts[0]) == len(given_inputs)


def test_texts_come_as_deltas_unless_the_caller_knows_better() -> None:
    """S2.4: providers send deltas."""
    stream = [begin(), start(0, text("")), delta(0, type="text_delta", text="ha")]
    assert [event.chunks for event in drafted(stream)] == ["delta"]
    assert [event.chunks for event in drafted(stream, chunks="cumulative")] == ["cumulative"]


def test_calls_in_one_place_are_as_many_calls() -> None:
    """A server that gives all blocks one index still sends them one after the other."""
    stream = [begin()]
    for name in "abc":
        stream += [start(0, call(name)), delta(0, type="input_json_delta", partial_json=f'{{"of":"{name}"}}'), stop(0)]
    found = list_calls(decode_messages("anthropic", [*stream, *end("tool_use")]))
    assert [(c.raw_input, c.index) for c in found] == [({"of": name}, index) for index, name in enumerate("abc")]


def test_blocks_of_text_that_citations_part_are_one_text() -> None:
    """A call between them parts it."""
    parts = [
        start(0, text("a")),
        stop(0),
        start(1, text("b")),
        stop(1),
        start(2, call("t")),
        stop(2),
        start(3, text("c")),
    ]
    memory = decode_messages("anthropic", [begin(), *parts, *end()])
    assert [entry.content for entry in list_entries(memory) if isinstance(entry, Message)] == ["ab", "c"]


# Identity and results


def test_an_id_that_comes_in_every_answer_is_a_new_call_each_time() -> None:
    """C2, C3: also when the calls are equal to the letter, and their results too."""
    memory = decode_messages("anthropic", [USER, *[whole(call("toolu_0")), results(("toolu_0", "ok"))] * 3])
    assert [(c.status, c.iteration) for c in list_calls(memory)] == [("completed", n) for n in range(3)]


@pytest.mark.parametrize("identity", ["", None, "same"])
def test_calls_without_ids_of_their_own_get_their_results_in_order(identity: Any) -> None:
    """Two equal calls of one answer, two results."""
    messages = [USER, whole(call(identity), call(identity)), results((identity, "first"), (identity, "second"))]
    assert [c.output for c in list_calls(decode_messages("anthropic", messages))] == ["first", "second"]


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("plain", "plain"),
        ([text("a"), text("b")], "a\nb"),
        (None, ""),
        ([], ""),
        ([text("a"), {"type": "image"}], [text("a"), {"type": "image"}]),
    ],
)
def test_a_result_is_its_text_or_else_its_blocks(content: Any, output: Any) -> None:
    """With `is_error` it is what went wrong."""
    messages = [USER, whole(call("toolu_1"))]
    (good,) = list_calls(decode_messages("anthropic", [*messages, results(("toolu_1", content))]))
    assert (good.status, good.output) == ("completed", output)
    (bad,) = list_calls(decode_messages("anthropic", [*messages, results(("toolu_1", content), is_error=True)]))
    assert (bad.status, bad.error) == ("failed", output)


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_tools_that_the_provider_runs_are_running_until_their_result(kind: str) -> None:
    """And the client is not asked for it, so that the turn ends with the answer."""
    block = {**call("srv_1", "search"), "type": kind}
    running = [USER, begin(), start(0, block), stop(0)]
    assert [c.status for c in list_calls(decode_messages("anthropic", running))] == ["running"]
    result = {"type": "search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "https://example.org"}]}
    events = drafted([*running, start(1, result), stop(1), *end()])
    assert of(ev.CallCompleted, events) and of(ev.TurnEnded, events)


@pytest.mark.parametrize("named", [True, False])
def test_results_of_the_provider_go_to_its_calls_in_order(named: bool) -> None:
    """C2, C3: also where two calls have one id, or none; a call that we are to run takes none of them."""
    named_by = {"id": "srv_1"} if named else {}
    answers_to = {"tool_use_id": "srv_1"} if named else {}
    blocks: list[Any] = [{"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}]
    for number in range(2):
        blocks.append({"type": "server_tool_use", **named_by, "name": "web_search", "input": {"n": number}})
        blocks.append({"type": "web_search_tool_result", **answers_to, "content": [{"n": number}]})
    memory = decode_messages("anthropic", [{"type": "message", "id": "m", "role": "assistant", "content": blocks}])
    assert [(call.raw_input, call.output) for call in list_calls(memory)] == [
        ({}, None),
        ({"n": 0}, [{"n": 0}]),
        ({"n": 1}, [{"n": 1}]),
    ]


def test_a_pause_is_not_the_end_of_the_turn() -> None:
    """What the provider was running continues in its next answer, and is the same call."""
    block = {**call("srv_1", "search"), "type": "server_tool_use"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    paused = [USER, begin(), start(0, block), stop(0), *end("pause_turn")]
    assert not of(ev.TurnEnded, drafted(paused))
    memory = decode_messages("anthropic", [*paused, begin("msg_2"), start(0, result), stop(0), *end()])
    assert [c.status for c in list_calls(memory)] == ["completed"]


# Turns


@pytest.mark.parametrize(
    ("stop_reason", "reason"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("refusal", "refusal"),
        ("new_word", "new_word"),
    ],
)
def test_a_turn_ends_with_the_answer_that_asks_for_nothing(stop_reason: str, reason: str) -> None:
    """In the words of the ledger, streamed or whole."""
    for answer in (
        [begin(), start(0, text("Yes.")), stop(0), *end(stop_reason)],
        [whole(text("Yes."), reason=stop_reason)],
    ):
        assert [event.reason for event in of(ev.TurnEnded, drafted([USER, *answer]))] == [reason]


def test_why_the_model_declined_is_told_with_the_end_of_the_turn() -> None:
    """The provider explains it."""
    details = {"type": "refusal", "category": "bio", "explanation": "It may do harm."}
    (ended,) = of(ev.TurnEnded, drafted([USER, begin(), *end("refusal", stop_details=details)]))
    assert (ended.reason, ended.detail) == ("refusal", "It may do harm.")


def test_results_begin_no_turn_and_words_beside_them_neither() -> None:
    """A person's message does, if it brings no result."""
    called = [USER, whole(call("toolu_1"))]
    both = {"role": "user", "content": [*results(("toolu_1", "ok"))["content"], text("Hurry.")]}
    events = drafted([*called, both])
    assert len(of(ev.TurnStarted, events)) == 1
    assert [event.text for event in of(ev.MessageUser, events)] == ["Go.", "Hurry."]
    assert len(of(ev.TurnStarted, drafted([*called, results(("toolu_1", "ok")), USER]))) == 2


@pytest.mark.parametrize(("reason", "state"), [("eof", "lost"), ("error", "lost"), ("cancelled", "cancelled")])
@pytest.mark.parametrize("prompt", [[USER], []])
def test_a_stream_that_breaks_off_ends_what_is_not_whole(prompt: list[Any], reason: str, state: str) -> None:
    """C5: with or without a turn of ours; a call that is whole outside of one may still be run."""
    stream = [begin(), start(0, call("whole")), stop(0), start(1, call("cut"))]
    stream.append(delta(1, type="input_json_delta", partial_json='{"a'))
    one, other = list_calls(decode_messages("anthropic", [*prompt, *stream], close=reason))
    assert other.status == state and other.raw_input is None
    assert one.raw_input == {} and one.status == (state if prompt else "queued")


def test_an_error_in_the_stream_ends_the_turn_with_what_it_says() -> None:
    """And the error is kept."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    events = drafted([USER, begin(), start(0, text("Ye")), error])
    assert [(event.reason, event.detail) for event in of(ev.TurnEnded, events)] == [("error", "Overloaded")]
    assert of(ev.Raw, events)[-1].body == error


# Requests


def test_of_a_request_only_the_news_count() -> None:
    """The end of a conversation that grows; the same request again after a failure brings nothing."""
    history = [USER, {"role": "assistant", "content": [call("toolu_1")]}, results(("toolu_1", "ok"))]
    decoder = AnthropicDecoder()
    for message in ({"model": "m", "messages": history[:1]}, whole(text("Let me."), call("toolu_1"))):
        decoder.feed(message)
    news = [draft.event for draft in decoder.feed({"model": "m", "messages": history})]
    assert [type(event) for event in news] == [ev.CallCompleted]
    assert not decoder.feed({"model": "m", "messages": history})


def test_an_answer_told_in_another_shape_is_the_same_answer() -> None:
    """As events, whole, and as the message that goes into the next request."""
    stream = [begin(), start(0, text("Hi.")), stop(0), *end()]
    messages = [*stream, whole(text("Hi.")), {"role": "assistant", "content": "Hi."}]
    assert [entry.content for entry in list_entries(decode_messages("anthropic", messages))] == ["Hi."]
    assert len(list_entries(decode_messages("anthropic", [*stream, *stream]))) == 2


def test_usage_is_told_once_an_answer() -> None:
    """What came at the beginning, brought up to date at the end."""
    first = {**begin(), "message": {"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}}
    last = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": None, "output_tokens": 9},
    }
    events = drafted([first, last, {"type": "message_stop"}])
    assert [event.usage for event in of(ev.SessionInfo, events)] == [{"input_tokens": 5, "output_tokens": 9}]


@pytest.mark.parametrize(
    "message",
    [
        delta(0, type="signature_delta", signature="Eq"),
        delta(0, type="citations_delta", citation={"url": "https://example.org"}),
        delta(7, type="input_json_delta", partial_json="{"),
        start(0, {"type": "redacted_thinking", "data": "Eq"}),
        start(0, {"type": "new_block"}),
        {"type": "message_stop"},
        {"type": "new_event"},
        {"role": "system", "content": "New rules."},
        {"role": "user", "content": []},
        text("alone"),
        "text",
        None,
    ],
)
def test_what_is_not_taken_over_is_kept_whole(message: Any) -> None:
    """Nothing is lost, and nothing raises (C11)."""
    assert [event.body for event in of(ev.Raw, drafted([message]))] == [message]


def test_of_a_whole_answer_the_blocks_that_say_more_are_kept() -> None:
    """A signature, say; the rest of the answer is in the log already."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "Eq"}
    assert [event.body for event in of(ev.Raw, drafted([whole(thought, text("Yes."))]))] == [thought]
