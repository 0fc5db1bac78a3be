"""`anthropic` in: the Messages API as streams, whole messages and requests. tests/inputs/anthropic tells the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
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


def to_sdk_event(event: dict[str, Any]) -> Any:
    """Return an event as the SDK returns it."""
    # The SDK takes 1.6 s to import, so do it only when a test needs it.
    from anthropic._models import construct_type
    from anthropic.types import RawMessageStreamEvent

    return construct_type(type_=cast(Any, RawMessageStreamEvent), value=event)


def accumulate(stream: list[dict[str, Any]]) -> Any:
    """Return the message that the SDK builds from the events of a stream."""
    from anthropic.lib.streaming._messages import accumulate_event

    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in stream:
        message = accumulate_event(event=to_sdk_event(event), current_snapshot=message, json_bufs=buffers)
    return message


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
def test_the_decoder_reads_a_stream_like_the_sdk(case: str) -> None:
    """Texts, thoughts, ids, names and arguments of every response are the same."""
    streams = streams_of(case)
    assert streams
    for stream in streams:
        judged = accumulate(stream)
        memory = decode_messages("anthropic", stream)
        texts = [b.text for b in judged.content if b.type == "text"]
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Message)) == "".join(texts)
        thought = [b.thinking for b in judged.content if b.type == "thinking"]
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Thought)) == "".join(thought)
        uses = [(b.id, b.name, b.input or {}) for b in judged.content if b.type in ("tool_use", "server_tool_use")]
        found = [(c.tool_call_id, c.tool_name, c.raw_input) for c in list_calls(memory) if c.title is None]
        assert [c for c in found if c[2] is not None] == uses


@pytest.mark.parametrize("case", [*ORACLE, "bad_arguments"])
def test_sdk_event_objects_give_the_same_entries_as_their_json(case: str) -> None:
    """A dumped object has null for absent fields."""
    kept_as_it_came = ev.Raw | ev.SessionInfo | ev.CallEnd
    for stream in streams_of(case):
        dumped = [to_sdk_event(event).model_dump(mode="json", warnings=False) for event in stream]
        read, expected = (
            [event for event in drafted(one) if not isinstance(event, kept_as_it_came)] for one in (dumped, stream)
        )
        assert read == expected


# Pieces


@given(st.lists(st.dictionaries(st.text(max_size=4), st.integers(), max_size=3), min_size=1, max_size=3), st.data())
def test_any_split_of_a_stream_gives_the_same_entries(given_inputs: list[Any], data: st.DataObject) -> None:
    """Arguments and texts in chunks of any size give the same as the full message."""
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


def test_texts_are_deltas_unless_the_caller_declares_otherwise() -> None:
    """S2.4: providers send deltas."""
    stream = [begin(), start(0, text("")), delta(0, type="text_delta", text="ha")]
    assert [event.chunks for event in drafted(stream)] == ["delta"]
    assert [event.chunks for event in drafted(stream, chunks="cumulative")] == ["cumulative"]


def test_calls_with_the_same_block_index_are_separate_calls() -> None:
    """Some servers send every block with the same index, one after the other."""
    stream = [begin()]
    for name in "abc":
        stream += [start(0, call(name)), delta(0, type="input_json_delta", partial_json=f'{{"of":"{name}"}}'), stop(0)]
    found = list_calls(decode_messages("anthropic", [*stream, *end("tool_use")]))
    assert [(c.raw_input, c.index) for c in found] == [({"of": name}, index) for index, name in enumerate("abc")]


def test_text_blocks_split_by_citations_are_one_text() -> None:
    """A call between them splits the text."""
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


def test_an_id_reused_in_every_response_is_a_new_call_each_time() -> None:
    """C2, C3: also for equal calls with equal results."""
    memory = decode_messages("anthropic", [USER, *[whole(call("toolu_0")), results(("toolu_0", "ok"))] * 3])
    assert [(c.status, c.iteration) for c in list_calls(memory)] == [("completed", n) for n in range(3)]


@pytest.mark.parametrize("identity", ["", None, "same"])
def test_results_of_calls_without_ids_are_matched_in_order(identity: Any) -> None:
    """Two equal calls of one response, two results."""
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
def test_a_result_is_its_text_or_its_blocks(content: Any, output: Any) -> None:
    """With `is_error` it is the error."""
    messages = [USER, whole(call("toolu_1"))]
    (good,) = list_calls(decode_messages("anthropic", [*messages, results(("toolu_1", content))]))
    assert (good.status, good.output) == ("completed", output)
    (bad,) = list_calls(decode_messages("anthropic", [*messages, results(("toolu_1", content), is_error=True)]))
    assert (bad.status, bad.error) == ("failed", output)


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_provider_tools_are_running_until_their_result(kind: str) -> None:
    """The client need not send their result, so the turn ends with the response."""
    block = {**call("srv_1", "search"), "type": kind}
    running = [USER, begin(), start(0, block), stop(0)]
    assert [c.status for c in list_calls(decode_messages("anthropic", running))] == ["running"]
    result = {"type": "search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "https://example.org"}]}
    events = drafted([*running, start(1, result), stop(1), *end()])
    assert of(ev.CallCompleted, events) and of(ev.TurnEnded, events)


@pytest.mark.parametrize("named", [True, False])
def test_provider_results_are_matched_to_provider_calls_in_order(named: bool) -> None:
    """C2, C3: also with equal or missing ids; calls of the client receive none of them."""
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


def test_pause_turn_does_not_end_the_turn() -> None:
    """A provider call continues in the next response as the same call."""
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
def test_a_turn_ends_with_a_response_without_calls(stop_reason: str, reason: str) -> None:
    """With a stop reason of the ledger, for streams and full responses."""
    for answer in (
        [begin(), start(0, text("Yes.")), stop(0), *end(stop_reason)],
        [whole(text("Yes."), reason=stop_reason)],
    ):
        assert [event.reason for event in of(ev.TurnEnded, drafted([USER, *answer]))] == [reason]


def test_the_explanation_of_a_refusal_is_the_detail_of_the_turn() -> None:
    """The provider sends the explanation."""
    details = {"type": "refusal", "category": "bio", "explanation": "It may do harm."}
    (ended,) = of(ev.TurnEnded, drafted([USER, begin(), *end("refusal", stop_details=details)]))
    assert (ended.reason, ended.detail) == ("refusal", "It may do harm.")


def test_a_user_message_with_results_begins_no_turn() -> None:
    """Also if it has text; a user message without results begins one."""
    called = [USER, whole(call("toolu_1"))]
    both = {"role": "user", "content": [*results(("toolu_1", "ok"))["content"], text("Hurry.")]}
    events = drafted([*called, both])
    assert len(of(ev.TurnStarted, events)) == 1
    assert [event.text for event in of(ev.MessageUser, events)] == ["Go.", "Hurry."]
    assert len(of(ev.TurnStarted, drafted([*called, results(("toolu_1", "ok")), USER]))) == 2


@pytest.mark.parametrize(("reason", "state"), [("eof", "lost"), ("error", "lost"), ("cancelled", "cancelled")])
@pytest.mark.parametrize("prompt", [[USER], []])
def test_an_interrupted_stream_ends_its_incomplete_calls(prompt: list[Any], reason: str, state: str) -> None:
    """C5: with or without a turn of the decoder; a complete call outside of such a turn may still run."""
    stream = [begin(), start(0, call("whole")), stop(0), start(1, call("cut"))]
    stream.append(delta(1, type="input_json_delta", partial_json='{"a'))
    one, other = list_calls(decode_messages("anthropic", [*prompt, *stream], close=reason))
    assert other.status == state and other.raw_input is None
    assert one.raw_input == {} and one.status == (state if prompt else "queued")


def test_an_error_event_ends_the_turn_with_its_message() -> None:
    """The error is stored as raw too."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    events = drafted([USER, begin(), start(0, text("Ye")), error])
    assert [(event.reason, event.detail) for event in of(ev.TurnEnded, events)] == [("error", "Overloaded")]
    assert of(ev.Raw, events)[-1].body == error


# Requests


def test_only_new_messages_of_a_request_are_recorded() -> None:
    """The last messages of a growing conversation; a repeated request after a failure adds nothing."""
    history = [USER, {"role": "assistant", "content": [call("toolu_1")]}, results(("toolu_1", "ok"))]
    decoder = AnthropicDecoder()
    for message in ({"model": "m", "messages": history[:1]}, whole(text("Let me."), call("toolu_1"))):
        decoder.feed(message)
    news = [draft.event for draft in decoder.feed({"model": "m", "messages": history})]
    assert [type(event) for event in news] == [ev.CallCompleted]
    assert not decoder.feed({"model": "m", "messages": history})


def test_a_response_in_another_form_is_the_same_response() -> None:
    """As a stream, in full, and as a message in the next request."""
    stream = [begin(), start(0, text("Hi.")), stop(0), *end()]
    messages = [*stream, whole(text("Hi.")), {"role": "assistant", "content": "Hi."}]
    assert [entry.content for entry in list_entries(decode_messages("anthropic", messages))] == ["Hi."]
    assert len(list_entries(decode_messages("anthropic", [*stream, *stream]))) == 2


def test_usage_is_recorded_once_for_each_response() -> None:
    """The values of the start, updated at the end."""
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
def test_unknown_content_is_stored_as_raw(message: Any) -> None:
    """Nothing is lost, and nothing raises (C11)."""
    assert [event.body for event in of(ev.Raw, drafted([message]))] == [message]


def test_blocks_with_extra_fields_are_stored_as_raw() -> None:
    """For example a signature; the rest of the response is in other events."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "Eq"}
    assert [event.body for event in of(ev.Raw, drafted([whole(thought, text("Yes."))]))] == [thought]
