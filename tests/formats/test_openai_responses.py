"""Decode `responses`: streams, full responses and items of OpenAI Responses. See also tests/inputs/responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.formats.openai.responses import ResponsesDecoder
from callslip.model import events as ev
from callslip.model.entries import Message, Thought
from tests.support import format_cases
from tests.support.provider_rules import decode_messages, list_calls, list_entries

USER = {"role": "user", "content": "Go."}
SDK_CASES = ["stream", "parallel_interleaved", "built_in_tools", "tools_run_by_us", "bad_arguments"]


def to_sdk_event(event: dict[str, Any]) -> Any:
    """Return an event as the SDK returns it."""
    # The SDK takes 0.6 s to import, so do it only when a test needs it.
    from openai._models import construct_type
    from openai.types.responses import ResponseStreamEvent

    return construct_type(type_=cast(Any, ResponseStreamEvent), value=event)


def accumulate(stream: list[dict[str, Any]]) -> Any:
    """Return the response that the SDK builds from the events of a stream."""
    from openai import omit
    from openai.lib.streaming.responses._responses import ResponseStreamState

    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    response: Any = None
    for event in stream:
        state.handle_event(to_sdk_event(event))
        response = state._completed_response or response
    return response


def decode_events(messages: Sequence[Any], **options: Any) -> list[ev.Event]:
    """Return the events that a decoder drafts before it is closed."""
    decoder = ResponsesDecoder(**options)
    return [draft.event for message in messages for draft in decoder.feed(message)]


def select(kind: type[Any], events: Sequence[ev.Event]) -> list[Any]:
    """Return the events of one type."""
    return [event for event in events if isinstance(event, kind)]


def full_response(*output: Any, status: str = "completed", identity: str = "resp_1", **more: Any) -> dict[str, Any]:
    """Return a full response."""
    return {"id": identity, "object": "response", "created_at": 1, "status": status, "output": list(output), **more}


def function_call(identity: str, name: str = "ls", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": name, "arguments": arguments, **more}


def call_output(identity: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identity, "output": output}


def text_item(text: str, identity: str = "msg_1") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": identity, "role": "assistant", "status": "completed", "content": [part]}


def load_streams(case: str) -> list[list[dict[str, Any]]]:
    """Return the events of each response of a case."""
    streams: list[list[dict[str, Any]]] = []
    for line in format_cases.lines_of(f"responses/{case}"):
        message = json.loads(line)
        kind = message.get("type", "") if isinstance(message, dict) else ""
        if kind == "response.created":
            streams.append([])
        if kind.startswith("response."):
            streams[-1].append(message)
    return streams


# Compared with the SDK


@pytest.mark.parametrize("case", SDK_CASES)
def test_the_decoder_reads_a_stream_like_the_sdk(case: str) -> None:
    """Texts, names and arguments of every response are the same."""
    streams = load_streams(case)
    assert streams
    for stream in streams:
        sdk_response = accumulate(stream)
        memory = decode_messages("responses", stream)
        assert "".join(e.content for e in list_entries(memory) if isinstance(e, Message)) == sdk_response.output_text
        functions = [item for item in sdk_response.output if item.type == "function_call"]
        names = {item.name for item in functions}
        inputs = [json.dumps(c.raw_input) for c in list_calls(memory) if c.tool_name in names]
        assert inputs == [json.dumps(_parse_arguments(item.arguments)) for item in functions]


def _parse_arguments(arguments: str) -> Any:
    """Return parsed arguments, or their text if it is not JSON."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


@pytest.mark.parametrize("case", [*SDK_CASES, "same_ids"])
def test_a_full_response_reads_like_its_stream(case: str) -> None:
    """The last event of a stream contains the full response."""
    for stream in load_streams(case):
        from_stream, from_response = (
            decode_messages("responses", stream),
            decode_messages("responses", [stream[-1]["response"]]),
        )
        calls = [
            [(c.tool_call_id, c.tool_name, json.dumps(c.raw_input), c.status, c.iteration) for c in list_calls(memory)]
            for memory in (from_stream, from_response)
        ]
        assert calls[0] == calls[1]
        texts = [
            [e.content for e in list_entries(memory) if isinstance(e, Message | Thought)]
            for memory in (from_stream, from_response)
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("case", [*SDK_CASES, "same_ids"])
def test_sdk_event_objects_give_the_same_entries_as_their_json(case: str) -> None:
    """A dumped event has null for absent fields."""
    unparsed = ev.Raw | ev.SessionInfo  # They have the nulls of the dumped object.
    for stream in load_streams(case):
        dumped = [to_sdk_event(event).model_dump(mode="json", warnings=False) for event in stream]
        events, expected = (
            [_remove_nulls(event) for event in decode_events(messages) if not isinstance(event, unparsed)]
            for messages in (dumped, stream)
        )
        assert events == expected


def _remove_nulls(event: ev.Event) -> Any:
    """Replace a call event by fields that have no nulls; its arguments and output may have some."""
    if isinstance(event, ev.CallUpdate):
        return (type(event), event.aliases, event.tool_name)
    return event


# Chunks


@given(st.text(max_size=12), st.integers(0, 200), st.data())
def test_any_split_of_a_stream_gives_the_same_entries(text: str, number: int, data: st.DataObject) -> None:
    """Arguments in chunks of any size give the same call, whichever event completes it."""
    arguments = json.dumps({"n": number, "t": text})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
    parts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    item = function_call("call_1", arguments="", id="fc_1")
    stream: list[Any] = [
        {"type": "response.created", "response": full_response(status="in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
    ]
    delta = {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0}
    stream += [{**delta, "delta": part} for part in parts]
    done = {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": arguments}}
    for end in (
        [done],
        [{"type": "response.completed", "response": full_response(done["item"])}],
        [call_output("call_1")],
    ):
        (found,) = list_calls(decode_messages("responses", [*stream, *end]))
        assert found.raw_input == {"n": number, "t": text} and found.input_text == ""


def test_a_call_is_found_by_call_id_and_by_item_id() -> None:
    """Results have the id of the call, events that of the item."""
    proposed = select(ev.CallProposed, decode_events([full_response(function_call("call_1", id="fc_1"))]))[0]
    assert {alias.id for alias in proposed.aliases} == {"call_1", "fc_1"}
    assert proposed.aliases[0].id == "call_1"


def test_chunks_before_their_item_belong_to_its_call() -> None:
    """A reader that connects late first sees an item id, which may change later."""
    late = {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": "{}"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": function_call("call_1", id="fc_2")}
    (found,) = list_calls(decode_messages("responses", [late, done, call_output("call_1")]))
    assert (found.tool_call_id, found.tool_name, found.raw_input, found.output) == ("fc_1", "ls", {}, "ok")


def test_texts_are_deltas_unless_the_caller_declares_otherwise() -> None:
    """S2.4: providers send deltas."""
    delta = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "x"}
    assert [event.chunks for event in select(ev.MessageDelta, decode_events([delta]))] == ["delta"]
    assert [event.chunks for event in select(ev.MessageDelta, decode_events([delta], chunks="dedupe"))] == ["dedupe"]


def test_events_repeated_after_a_reconnect_are_ignored() -> None:
    """They are recognised by their sequence numbers."""
    stream = load_streams("stream")[0]
    middle = len(stream) // 2
    assert decode_events([*stream[:middle], *stream[3:middle], *stream[middle:]]) == decode_events(stream)


def test_the_last_event_may_be_repeated_after_a_reconnect() -> None:
    """A replay normally starts with the event after it."""
    created = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}
    position = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    stream = [created] + [
        {"type": "response.output_text.delta", **position, "sequence_number": number, "delta": text}
        for number, text in enumerate("abc", 1)
    ]
    for cut in range(1, len(stream) + 1):
        assert decode_events(stream[:cut] + stream) == decode_events(stream)


def test_events_with_the_same_sequence_number_are_all_read() -> None:
    """Some servers send the same number with every event."""
    position = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "sequence_number": 0}
    created = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}
    stream = [{"type": "response.output_text.delta", **position, "delta": text} for text in "abc"]
    assert [event.text for event in select(ev.MessageDelta, decode_events([created, *stream]))] == list("abc")


@pytest.mark.parametrize("is_streamed", [True, False])
def test_calls_with_the_same_item_id_are_separate_calls(is_streamed: bool) -> None:
    """C3: the call id counts, not the item id."""
    items = [function_call(f"call_{n}", arguments=f'{{"n":{n}}}', id="fc_0") for n in range(3)]
    events = [
        {"type": f"response.output_item.{verb}", "output_index": n, "item": item if verb == "done" else empty}
        for n, item in enumerate(items)
        for empty in ({**item, "arguments": ""},)
        for verb in ("added", "done")
    ]
    end = {"type": "response.completed", "response": full_response(*items)}
    memory = decode_messages("responses", [*events, end] if is_streamed else [full_response(*items)])
    assert [(one.tool_call_id, one.raw_input) for one in list_calls(memory)] == [
        (f"call_{n}", {"n": n}) for n in range(3)
    ]


def test_an_item_whose_id_changes_in_every_event_is_one_call() -> None:
    """It is identified by its output index."""
    search = {"type": "web_search_call", "status": "completed", "action": {"query": "x"}}
    done = {"type": "response.output_item.done", "output_index": 0, "item": {**search, "id": "ws_1"}}
    end = {"type": "response.completed", "response": full_response({**search, "id": "ws_2"})}
    assert len(list_calls(decode_messages("responses", [done, end]))) == 1


# Tools that the provider runs


@pytest.mark.parametrize(
    ("status", "state"),
    [("completed", "completed"), ("failed", "failed"), ("incomplete", "failed"), ("searching", "running")],
)
def test_the_status_of_a_provider_tool_is_the_state_of_its_call(status: str, state: str) -> None:
    """No other message has its result."""
    item = {"type": "web_search_call", "id": "ws_1", "status": status, "action": {"type": "search", "query": "x"}}
    added = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    (found,) = list_calls(decode_messages("responses", [added, done]))
    assert (found.tool_name, found.status) == ("web_search", state)


def test_a_completed_item_does_not_complete_a_client_call() -> None:
    """`completed` means that the model has written the call."""
    (found,) = list_calls(decode_messages("responses", [full_response(function_call("call_1", status="completed"))]))
    assert found.status == "queued"


def test_an_mcp_approval_request_and_its_call_are_one_call() -> None:
    """S2.6, S2.7: from the request to the result in another response."""
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "wipe", "arguments": "{}", "server_label": "d"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    run = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", "name": "wipe", "arguments": "{}"}
    messages = [USER, full_response(request)]
    assert [c.status for c in list_calls(decode_messages("responses", messages))] == ["awaiting_approval"]
    refused = decode_messages("responses", [*messages, {**answer, "approve": False, "reason": "no"}])
    assert [(c.status, c.reason) for c in list_calls(refused)] == [("denied", "no")]
    done = full_response({**run, "output": "clean", "server_label": "d"}, text_item("Done."), identity="resp_2")
    granted = decode_messages("responses", [*messages, answer, done])
    assert [(c.status, c.output) for c in list_calls(granted)] == [("completed", "clean")]
    assert not decode_messages("responses", [*messages, done]).state.requests
    assert not select(ev.TurnEnded, decode_events(messages)) and select(
        ev.TurnEnded, decode_events([*messages, answer, done])
    )


# Turns


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (full_response(text_item("Yes.")), "end_turn"),
        (
            full_response(text_item("Ye"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            "max_tokens",
        ),
        (
            full_response(text_item("Ye"), status="incomplete", incomplete_details={"reason": "content_filter"}),
            "refusal",
        ),
        (full_response(status="failed", error={"code": "x", "message": "broken"}), "error"),
        (full_response(status="cancelled"), "cancelled"),
        (full_response({**text_item(""), "content": [{"type": "refusal", "refusal": "No."}]}), "refusal"),
        ({"type": "error", "message": "gone", "code": None, "param": None, "sequence_number": 3}, "error"),
        ({"error": {"message": "bad key"}}, "error"),
    ],
)
def test_a_turn_ends_with_a_response_without_calls(response: Any, reason: str) -> None:
    """The turn has a stop reason of the ledger."""
    assert [event.reason for event in select(ev.TurnEnded, decode_events([USER, response]))] == [reason]


def test_items_without_responses_form_rounds_and_turns() -> None:
    """A round lasts until a result or a prompt; a final message ends the turn normally."""
    items = [
        USER,
        text_item("I look."),
        function_call("1"),
        function_call("2"),
        call_output("1"),
        call_output("2"),
        function_call("3"),
        call_output("3"),
        text_item("So."),
    ]
    decoder = ResponsesDecoder()
    events = [draft.event for item in [*items, USER] for draft in decoder.feed(item)]
    assert [event.iteration for event in select(ev.CallProposed, events)] == [0, 0, 1]
    assert [event.reason for event in select(ev.TurnEnded, events)] == ["end_turn"]
    assert [draft.event for draft in decoder.close("eof")] == [ev.TurnEnded(reason="eof")]
    ended = ResponsesDecoder()
    for item in items:
        ended.feed(item)
    assert [draft.event for draft in ended.close("eof")] == [ev.TurnEnded(reason="end_turn")]


@pytest.mark.parametrize(("reason", "state"), [("eof", "lost"), ("cancelled", "cancelled")])
@pytest.mark.parametrize("prompt", [[USER], []])
def test_an_interrupted_stream_ends_its_incomplete_calls(prompt: list[Any], reason: str, state: str) -> None:
    """C5: also the calls of the provider."""
    added = [
        {"type": "response.output_item.added", "output_index": n, "item": item}
        for n, item in enumerate(
            [
                function_call("a", arguments="", id="fc_a"),
                {"type": "web_search_call", "id": "ws", "status": "in_progress"},
            ]
        )
    ]
    delta = {"type": "response.function_call_arguments.delta", "item_id": "fc_a", "output_index": 0, "delta": '{"x'}
    found = list_calls(decode_messages("responses", [*prompt, *added, delta], close=reason))
    assert [c.status for c in found] == [state, state] and found[0].raw_input is None


# Requests


def test_only_new_messages_of_a_request_are_recorded() -> None:
    """With the full conversation, or with the id of the previous response."""
    messages = [USER, full_response(function_call("call_1", id="fc_1"))]
    full = {"model": "m", "input": [USER, function_call("call_1"), call_output("call_1")]}
    short = {"model": "m", "previous_response_id": "resp_1", "input": [call_output("call_1")]}
    for request in (full, short):
        decoder = ResponsesDecoder()
        for message in messages:
            decoder.feed(message)
        events = [draft.event for draft in decoder.feed(request) if not isinstance(draft.event, ev.Raw)]
        assert [type(event) for event in events] == [ev.CallCompleted]


def test_all_input_after_a_previous_response_id_is_new() -> None:
    """The provider has the rest, so a prompt with the same text is another prompt."""
    request = {"model": "m", "previous_response_id": "resp_1", "input": "Go."}
    events = decode_events([USER, full_response(text_item("Which?")), request])
    assert [event.text for event in select(ev.MessageUser, events)] == ["Go.", "Go."]


def test_all_input_of_a_server_side_conversation_is_new() -> None:
    """A user may send the same text again."""
    request = {"model": "m", "conversation": "conv_1", "input": "Yes."}
    messages = [
        message
        for n in range(3)
        for message in (request, full_response(text_item(f"{n}", f"msg_{n}"), identity=f"resp_{n}"))
    ]
    assert len(select(ev.MessageUser, decode_events(messages))) == 3


def test_a_prompt_may_be_a_string() -> None:
    """Also over a WebSocket, where a request is an event."""
    for request in ({"model": "m", "input": "Hi."}, {"type": "response.create", "model": "m", "input": "Hi."}):
        assert [event.text for event in select(ev.MessageUser, decode_events([request]))] == ["Hi."]


def test_a_response_item_repeated_in_a_request_is_the_same_item() -> None:
    """Clients send the items of a response back with the conversation."""
    messages = [
        USER,
        full_response(text_item("Hi."), function_call("call_1", id="fc_1")),
        text_item("Hi."),
        function_call("call_1"),
        call_output("call_1"),
    ]
    memory = decode_messages("responses", messages)
    assert [entry.content for entry in list_entries(memory) if isinstance(entry, Message)] == ["Go.", "Hi."]
    assert [c.status for c in list_calls(memory)] == ["completed"]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "response.new.event", "sequence_number": 1},
        {"type": "mcp_list_tools", "id": "l", "tools": []},
        {"type": "item_reference", "id": "x"},
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"},
        function_call("call_1", surprise=1),
        {"role": "critic", "content": "x"},
        {"nothing": "known"},
        "text",
        None,
    ],
)
def test_unknown_content_is_stored_as_raw(message: Any) -> None:
    """Nothing is lost, and nothing raises (C11)."""
    assert [event.body for event in select(ev.Raw, decode_events([message]))] == [message]
