"""Decode `anthropic`: streams, full messages and requests of the Messages API. See also tests/inputs/anthropic."""

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
SDK_CASES = ["two_rounds", "parallel", "server_tools", "pause", "told_twice"]


def decode_events(messages: Sequence[Any], **options: Any) -> list[ev.Event]:
    """Return the events that a decoder drafts before it is closed."""
    decoder = AnthropicDecoder(**options)
    return [draft.event for message in messages for draft in decoder.feed(message)]


def select(kind: type[Any], events: Sequence[ev.Event]) -> list[Any]:
    """Return the events of one type."""
    return [event for event in events if isinstance(event, kind)]


def full_message(*content: Any, reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    """Return a full message of the assistant."""
    reason = "tool_use" if any(block.get("type") == "tool_use" for block in content) else reason
    fields = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    return {
        **fields,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        **more,
    }


def text_block(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool_use(identity: str, name: str = "ls", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def tool_results(*outputs: tuple[str, Any], **more: Any) -> dict[str, Any]:
    blocks = [
        {"type": "tool_result", "tool_use_id": identity, "content": content, **more} for identity, content in outputs
    ]
    return {"role": "user", "content": blocks}


def message_start(identity: str = "msg_1") -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": identity, "role": "assistant", "content": []}}


def block_start(index: int, block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def block_delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def block_stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def message_end(reason: str = "end_turn", **more: Any) -> list[dict[str, Any]]:
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


def load_streams(case: str) -> list[list[dict[str, Any]]]:
    """Return the events of each stream of a case."""
    streams: list[list[dict[str, Any]]] = []
    for message in map(json.loads, format_cases.lines_of(f"anthropic/{case}")):
        if message.get("type") == "message_start":
            streams.append([])
        if str(message.get("type")).startswith(("message_", "content_block_")):
            streams[-1].append(message)
    return streams


# Compared with the SDK


@pytest.mark.parametrize("case", SDK_CASES)
def test_the_decoder_reads_a_stream_like_the_sdk(case: str) -> None:
    """Texts, thoughts, ids, names and arguments of every response are the same."""
    streams = load_streams(case)
    assert streams
    for stream in streams:
        sdk_message = accumulate(stream)
        memory = decode_messages("anthropic", stream)
        texts = [b.text for b in sdk_message.content if b.type == "text"]
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Message)) == "".join(texts)
        thoughts = [b.thinking for b in sdk_message.content if b.type == "thinking"]
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Thought)) == "".join(thoughts)
        uses = [(b.id, b.name, b.input or {}) for b in sdk_message.content if b.type in ("tool_use", "server_tool_use")]
        calls = [(c.tool_call_id, c.tool_name, c.raw_input) for c in list_calls(memory) if c.title is None]
        assert [c for c in calls if c[2] is not None] == uses


@pytest.mark.parametrize("case", [*SDK_CASES, "bad_arguments"])
def test_sdk_event_objects_give_the_same_entries_as_their_json(case: str) -> None:
    """A dumped object has null for absent fields."""
    unparsed = ev.Raw | ev.SessionInfo | ev.CallEnd  # They have the nulls of the dumped object.
    for stream in load_streams(case):
        dumped = [to_sdk_event(event).model_dump(mode="json", warnings=False) for event in stream]
        events, expected = (
            [event for event in decode_events(messages) if not isinstance(event, unparsed)]
            for messages in (dumped, stream)
        )
        assert events == expected


# Chunks


@given(st.lists(st.dictionaries(st.text(max_size=4), st.integers(), max_size=3), min_size=1, max_size=3), st.data())
def test_any_split_of_a_stream_gives_the_same_entries(inputs: list[Any], data: st.DataObject) -> None:
    """Arguments and texts in chunks of any size give the same as the full message."""
    stream, blocks = [message_start()], list[Any]()
    for index, value in enumerate(inputs):
        arguments = json.dumps(value)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
        parts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        stream += [block_start(index, tool_use(f"toolu_{index}"))]
        stream += [block_delta(index, type="input_json_delta", partial_json=part) for part in parts]
        stream += [block_stop(index)]
        blocks.append({**tool_use(f"toolu_{index}"), "input": value})
    calls = [
        [(c.tool_call_id, c.tool_name, c.raw_input, c.iteration, c.index) for c in list_calls(memory)]
        for memory in (
            decode_messages("anthropic", [USER, *stream, *message_end("tool_use")]),
            decode_messages("anthropic", [USER, full_message(*blocks)]),
        )
    ]
    assert calls[0] == calls[1] and len(calls[0]) == len(inputs)


def test_texts_are_deltas_unless_the_caller_declares_otherwise() -> None:
    """S2.4: providers send deltas."""
    stream = [message_start(), block_start(0, text_block("")), block_delta(0, type="text_delta", text="ha")]
    assert [event.chunks for event in decode_events(stream)] == ["delta"]
    assert [event.chunks for event in decode_events(stream, chunks="cumulative")] == ["cumulative"]


def test_calls_with_the_same_block_index_are_separate_calls() -> None:
    """Some servers send every block with the same index, one after the other."""
    stream = [message_start()]
    for name in "abc":
        stream += [
            block_start(0, tool_use(name)),
            block_delta(0, type="input_json_delta", partial_json=f'{{"of":"{name}"}}'),
            block_stop(0),
        ]
    calls = list_calls(decode_messages("anthropic", [*stream, *message_end("tool_use")]))
    assert [(c.raw_input, c.index) for c in calls] == [({"of": name}, index) for index, name in enumerate("abc")]


def test_text_blocks_split_by_citations_are_one_text() -> None:
    """A call between them splits the text."""
    parts = [
        block_start(0, text_block("a")),
        block_stop(0),
        block_start(1, text_block("b")),
        block_stop(1),
        block_start(2, tool_use("t")),
        block_stop(2),
        block_start(3, text_block("c")),
    ]
    memory = decode_messages("anthropic", [message_start(), *parts, *message_end()])
    assert [entry.content for entry in list_entries(memory) if isinstance(entry, Message)] == ["ab", "c"]


# Identity and results


def test_an_id_reused_in_every_response_is_a_new_call_each_time() -> None:
    """C2, C3: also for equal calls with equal results."""
    memory = decode_messages(
        "anthropic", [USER, *[full_message(tool_use("toolu_0")), tool_results(("toolu_0", "ok"))] * 3]
    )
    assert [(c.status, c.iteration) for c in list_calls(memory)] == [("completed", n) for n in range(3)]


@pytest.mark.parametrize("identity", ["", None, "same"])
def test_results_of_calls_without_ids_are_matched_in_order(identity: Any) -> None:
    """Two equal calls of one response, two results."""
    messages = [
        USER,
        full_message(tool_use(identity), tool_use(identity)),
        tool_results((identity, "first"), (identity, "second")),
    ]
    assert [c.output for c in list_calls(decode_messages("anthropic", messages))] == ["first", "second"]


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("plain", "plain"),
        ([text_block("a"), text_block("b")], "a\nb"),
        (None, ""),
        ([], ""),
        ([text_block("a"), {"type": "image"}], [text_block("a"), {"type": "image"}]),
    ],
)
def test_a_result_is_its_text_or_its_blocks(content: Any, output: Any) -> None:
    """With `is_error` it is the error of the call."""
    messages = [USER, full_message(tool_use("toolu_1"))]
    (completed,) = list_calls(decode_messages("anthropic", [*messages, tool_results(("toolu_1", content))]))
    assert (completed.status, completed.output) == ("completed", output)
    (failed,) = list_calls(decode_messages("anthropic", [*messages, tool_results(("toolu_1", content), is_error=True)]))
    assert (failed.status, failed.error) == ("failed", output)


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_provider_tools_are_running_until_their_result(kind: str) -> None:
    """The client need not send their result, so the turn ends with the response."""
    block = {**tool_use("srv_1", "search"), "type": kind}
    running = [USER, message_start(), block_start(0, block), block_stop(0)]
    assert [c.status for c in list_calls(decode_messages("anthropic", running))] == ["running"]
    result = {"type": "search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "https://example.org"}]}
    events = decode_events([*running, block_start(1, result), block_stop(1), *message_end()])
    assert select(ev.CallCompleted, events) and select(ev.TurnEnded, events)


@pytest.mark.parametrize("has_ids", [True, False])
def test_provider_results_are_matched_to_provider_calls_in_order(has_ids: bool) -> None:
    """C2, C3: also with equal or missing ids; calls of the client receive none of them."""
    call_id = {"id": "srv_1"} if has_ids else {}
    result_id = {"tool_use_id": "srv_1"} if has_ids else {}
    blocks: list[Any] = [{"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}]
    for number in range(2):
        blocks.append({"type": "server_tool_use", **call_id, "name": "web_search", "input": {"n": number}})
        blocks.append({"type": "web_search_tool_result", **result_id, "content": [{"n": number}]})
    memory = decode_messages("anthropic", [{"type": "message", "id": "m", "role": "assistant", "content": blocks}])
    assert [(call.raw_input, call.output) for call in list_calls(memory)] == [
        ({}, None),
        ({"n": 0}, [{"n": 0}]),
        ({"n": 1}, [{"n": 1}]),
    ]


def test_pause_turn_does_not_end_the_turn() -> None:
    """A provider call continues in the next response as the same call."""
    block = {**tool_use("srv_1", "search"), "type": "server_tool_use"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    paused = [USER, message_start(), block_start(0, block), block_stop(0), *message_end("pause_turn")]
    assert not select(ev.TurnEnded, decode_events(paused))
    memory = decode_messages(
        "anthropic", [*paused, message_start("msg_2"), block_start(0, result), block_stop(0), *message_end()]
    )
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
    """The turn has a stop reason of the ledger, for streams and full responses."""
    for messages in (
        [message_start(), block_start(0, text_block("Yes.")), block_stop(0), *message_end(stop_reason)],
        [full_message(text_block("Yes."), reason=stop_reason)],
    ):
        assert [event.reason for event in select(ev.TurnEnded, decode_events([USER, *messages]))] == [reason]


def test_the_explanation_of_a_refusal_is_the_detail_of_the_turn() -> None:
    """The provider sends the explanation in the details of its stop reason."""
    details = {"type": "refusal", "category": "bio", "explanation": "It may do harm."}
    (ended,) = select(
        ev.TurnEnded, decode_events([USER, message_start(), *message_end("refusal", stop_details=details)])
    )
    assert (ended.reason, ended.detail) == ("refusal", "It may do harm.")


def test_a_user_message_with_results_begins_no_turn() -> None:
    """Also if it has text; a user message without results begins one."""
    messages = [USER, full_message(tool_use("toolu_1"))]
    both = {"role": "user", "content": [*tool_results(("toolu_1", "ok"))["content"], text_block("Hurry.")]}
    events = decode_events([*messages, both])
    assert len(select(ev.TurnStarted, events)) == 1
    assert [event.text for event in select(ev.MessageUser, events)] == ["Go.", "Hurry."]
    assert len(select(ev.TurnStarted, decode_events([*messages, tool_results(("toolu_1", "ok")), USER]))) == 2


@pytest.mark.parametrize(("reason", "state"), [("eof", "lost"), ("error", "lost"), ("cancelled", "cancelled")])
@pytest.mark.parametrize("prompt", [[USER], []])
def test_an_interrupted_stream_ends_its_incomplete_calls(prompt: list[Any], reason: str, state: str) -> None:
    """C5: with or without a turn of the decoder; a complete call outside of such a turn may still run."""
    stream = [message_start(), block_start(0, tool_use("whole")), block_stop(0), block_start(1, tool_use("cut"))]
    stream.append(block_delta(1, type="input_json_delta", partial_json='{"a'))
    complete, incomplete = list_calls(decode_messages("anthropic", [*prompt, *stream], close=reason))
    assert incomplete.status == state and incomplete.raw_input is None
    assert complete.raw_input == {} and complete.status == (state if prompt else "queued")


def test_an_error_event_ends_the_turn_with_its_message() -> None:
    """The error is stored as raw too."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    events = decode_events([USER, message_start(), block_start(0, text_block("Ye")), error])
    assert [(event.reason, event.detail) for event in select(ev.TurnEnded, events)] == [("error", "Overloaded")]
    assert select(ev.Raw, events)[-1].body == error


# Requests


def test_only_new_messages_of_a_request_are_recorded() -> None:
    """The last messages of a growing conversation; a repeated request after a failure adds nothing."""
    history = [USER, {"role": "assistant", "content": [tool_use("toolu_1")]}, tool_results(("toolu_1", "ok"))]
    decoder = AnthropicDecoder()
    for message in ({"model": "m", "messages": history[:1]}, full_message(text_block("Let me."), tool_use("toolu_1"))):
        decoder.feed(message)
    events = [draft.event for draft in decoder.feed({"model": "m", "messages": history})]
    assert [type(event) for event in events] == [ev.CallCompleted]
    assert not decoder.feed({"model": "m", "messages": history})


def test_a_response_in_another_form_is_the_same_response() -> None:
    """As a stream, in full, and as a message in the next request."""
    stream = [message_start(), block_start(0, text_block("Hi.")), block_stop(0), *message_end()]
    messages = [*stream, full_message(text_block("Hi.")), {"role": "assistant", "content": "Hi."}]
    assert [entry.content for entry in list_entries(decode_messages("anthropic", messages))] == ["Hi."]
    assert len(list_entries(decode_messages("anthropic", [*stream, *stream]))) == 2


def test_usage_is_recorded_once_for_each_response() -> None:
    """The values of the start, updated at the end."""
    first = {**message_start(), "message": {"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}}
    last = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": None, "output_tokens": 9},
    }
    events = decode_events([first, last, {"type": "message_stop"}])
    assert [event.usage for event in select(ev.SessionInfo, events)] == [{"input_tokens": 5, "output_tokens": 9}]


@pytest.mark.parametrize(
    "message",
    [
        block_delta(0, type="signature_delta", signature="Eq"),
        block_delta(0, type="citations_delta", citation={"url": "https://example.org"}),
        block_delta(7, type="input_json_delta", partial_json="{"),
        block_start(0, {"type": "redacted_thinking", "data": "Eq"}),
        block_start(0, {"type": "new_block"}),
        {"type": "message_stop"},
        {"type": "new_event"},
        {"role": "system", "content": "New rules."},
        {"role": "user", "content": []},
        text_block("alone"),
        "text",
        None,
    ],
)
def test_unknown_content_is_stored_as_raw(message: Any) -> None:
    """Nothing is lost, and nothing raises (C11)."""
    assert [event.body for event in select(ev.Raw, decode_events([message]))] == [message]


def test_blocks_with_extra_fields_are_stored_as_raw() -> None:
    """For example a signature; the rest of the response is in other events."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "Eq"}
    assert [event.body for event in select(ev.Raw, decode_events([full_message(thought, text_block("Yes."))]))] == [
        thought
    ]
