"""Decode `openai`: Chat Completions as real servers send them. See also the cases in tests/inputs/openai."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.formats.json_fields import is_json
from callslip.formats.openai import chat_reply
from callslip.formats.openai.chat import ChatDecoder
from callslip.model import events as ev
from callslip.model.entries import Message, Thought
from tests.support import format_cases
from tests.support.provider_rules import decode_messages, list_calls, list_entries

USER = {"role": "user", "content": "Go."}
SDK_CASES = ["two_rounds", "parallel_interleaved", "bad_arguments", "refusals", "same_id_in_every_response"]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of a stream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    fields = {
        "id": "r1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [choice],
    }
    return {**fields, **more}


def call_part(index: int, text: str = "", **more: Any) -> dict[str, Any]:
    """Return a part of a tool call in a chunk."""
    function = {"arguments": text, **({"name": more.pop("name")} if "name" in more else {})}
    return {"index": index, "function": function, **more}


def completion(**message: Any) -> dict[str, Any]:
    """Return a full completion."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return {"id": "r1", "object": "chat.completion", "created": 1_700_000_000, "model": "m", "choices": [choice]}


def tool_call(identity: str, name: str = "ls", arguments: str = "{}") -> dict[str, Any]:
    """Return a call in a full message."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_message(identity: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def decode_events(messages: Sequence[Any], **options: Any) -> list[ev.Event]:
    """Return the events that a decoder drafts before it is closed."""
    decoder = ChatDecoder(**options)
    return [draft.event for message in messages for draft in decoder.feed(message)]


def select(kind: type[Any], events: Sequence[ev.Event]) -> list[Any]:
    """Return the events of one type."""
    return [event for event in events if isinstance(event, kind)]


# Compared with the SDK


@pytest.mark.parametrize("case", SDK_CASES)
def test_the_decoder_reads_a_stream_like_the_sdk(case: str) -> None:
    """Texts, refusals, names, ids and argument texts of every response are the same."""
    # The SDK takes 0.6 s to import, so do it only when a test needs it.
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    messages = [json.loads(line) for line in format_cases.lines_of(f"openai/{case}")]
    chunks = [message for message in messages if message.get("object") == "chat.completion.chunk"]
    assert chunks
    for _, response in groupby(chunks, key=lambda message: message["id"]):
        stream = list(response)
        state: Any = ChatCompletionStreamState()
        for message in stream:
            state.handle_chunk(ChatCompletionChunk.model_validate(message))
        sdk_message = state.current_completion_snapshot.choices[0].message
        memory = decode_messages("openai", stream)
        text = "".join(entry.content for entry in list_entries(memory) if isinstance(entry, Message))
        assert text == (sdk_message.content or "") + (sdk_message.refusal or "")
        calls = [(entry.tool_call_id, entry.tool_name) for entry in list_calls(memory)]
        assert calls == [(call.id, call.function.name) for call in sdk_message.tool_calls or []]
        texts: dict[str, str] = {}
        for event in select(ev.CallInputDelta, memory.log):
            texts[event.call] = texts.get(event.call, "") + event.text
        arguments = [texts.get(entry.call_id, "") for entry in list_calls(memory)]
        assert arguments == [call.function.arguments for call in sdk_message.tool_calls or []]


@pytest.mark.parametrize("case", SDK_CASES)
def test_sdk_objects_give_the_same_entries_as_their_json(case: str) -> None:
    """A dumped object has null for absent fields."""
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    models: dict[str, Any] = {"chat.completion.chunk": ChatCompletionChunk, "chat.completion": ChatCompletion}
    messages = [json.loads(line) for line in format_cases.lines_of(f"openai/{case}")]
    dumped = [
        models[message["object"]].construct(**message).model_dump(mode="json", warnings=False)
        if "object" in message
        else message
        for message in messages
    ]
    assert dumped != messages
    unparsed = ev.Raw | ev.SessionInfo  # They have the nulls of the dumped object.
    events, expected = (
        [event for event in decode_events(source) if not isinstance(event, unparsed)] for source in (dumped, messages)
    )
    assert events == expected


# Chunks


@given(
    st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), min_size=1, max_size=4),
    st.text(max_size=20),
    st.data(),
)
def test_any_split_of_a_stream_gives_the_same_entries(inputs: list[Any], content: str, data: st.DataObject) -> None:
    """Interleaved calls, arguments and text in chunks of any size give the same as the full response."""
    texts = [json.dumps(value) for value in inputs]
    pending = [
        [call_part(n, id=f"call_{n}", name="tool"), *split_arguments(data, text, n)] for n, text in enumerate(texts)
    ]
    stream = [chunk({"content": part}) for part in split_text(data, content)]
    while any(pending):
        parts = data.draw(st.sampled_from([parts for parts in pending if parts]))
        stream.append(chunk({"tool_calls": [parts.pop(0)]}))
    streamed = decode_messages("openai", [USER, *stream, chunk(finish="tool_calls")])
    calls = [tool_call(f"call_{n}", "tool", text) for n, text in enumerate(texts)]
    full = decode_messages("openai", [USER, completion(content=content, tool_calls=calls)])
    call_sets = [
        {(call.tool_call_id, call.tool_name, json.dumps(call.raw_input), call.iteration) for call in list_calls(memory)}
        for memory in (streamed, full)
    ]
    assert call_sets[0] == call_sets[1] and len(call_sets[0]) == len(texts)
    assert {call.input_text for call in list_calls(streamed)} == {""}
    contents = [
        [entry.content for entry in list_entries(memory) if isinstance(entry, Message)] for memory in (streamed, full)
    ]
    assert contents[0] == contents[1]


def split_text(data: st.DataObject, text: str) -> list[str]:
    """Return a text in parts of any size."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def split_arguments(data: st.DataObject, text: str, index: int) -> list[dict[str, Any]]:
    return [call_part(index, part) for part in split_text(data, text)]


def test_arguments_are_complete_only_at_the_finish() -> None:
    """A prefix may be valid JSON too, such as 1 of 12."""
    stream = [chunk({"tool_calls": [call_part(0, id="a", name="t")]}), chunk({"tool_calls": [call_part(0, "1")]})]
    assert not select(ev.CallInput, decode_events(stream))
    stream += [chunk({"tool_calls": [call_part(0, "2")]}), chunk(finish="tool_calls")]
    assert [event.input for event in select(ev.CallInput, decode_events(stream))] == [12]


def test_texts_are_deltas_unless_the_caller_declares_otherwise() -> None:
    """S2.4: providers send deltas."""
    stream = [chunk({"content": "ha", "reasoning_content": "hm"})]
    assert [event.chunks for event in decode_events(stream)] == ["delta", "delta"]
    assert [event.chunks for event in decode_events(stream, chunks="cumulative")] == ["cumulative", "cumulative"]


# Identity


def test_an_id_reused_in_every_response_is_a_new_call_each_time() -> None:
    """C2, C3: also for equal calls with equal results."""
    call_chunk = chunk({"tool_calls": [call_part(0, "{}", id="call_0", name="ls")]})
    memory = decode_messages("openai", [USER, *[call_chunk, chunk(finish="tool_calls"), tool_message("call_0")] * 3])
    assert [(call.status, call.iteration) for call in list_calls(memory)] == [("completed", n) for n in range(3)]
    assert {event.verdict for event in memory.log} == {"applied"}


def test_a_generated_id_does_not_collide_with_a_sent_id() -> None:
    """C3: the second `a` needs a generated id, which a third call already has."""
    message = completion(tool_calls=[tool_call("a", "one"), tool_call("a", "two"), tool_call("a#1", "three")])
    memory = decode_messages(
        "openai", [USER, message, tool_message("a", 1), tool_message("a", 2), tool_message("a#1", 3)]
    )
    assert [(call.tool_name, call.output) for call in list_calls(memory)] == [("one", 1), ("two", 2), ("three", 3)]


@pytest.mark.parametrize("repeats", [{}, {"id": "a"}])
def test_a_tool_name_repeated_in_every_chunk_is_one_name(repeats: dict[str, Any]) -> None:
    """Also in chunks before the first arguments."""
    parts = [
        call_part(0, "", id="a", name="ls"),
        *(call_part(0, text, name="ls", **repeats) for text in ("", '{"a":', "1}")),
    ]
    memory = decode_messages("openai", [*(chunk({"tool_calls": [part]}) for part in parts), chunk(finish="tool_calls")])
    assert [(call.tool_name, call.raw_input) for call in list_calls(memory)] == [("ls", {"a": 1})]


def test_id_and_name_may_follow_the_first_chunk() -> None:
    """They may arrive in the second chunk of the call."""
    parts = [call_part(0), call_part(0, "{}", id="a", name="ls")]
    memory = decode_messages("openai", [*(chunk({"tool_calls": [part]}) for part in parts), chunk(finish="tool_calls")])
    assert [(call.tool_name, call.raw_input) for call in list_calls(memory)] == [("ls", {})]


def test_rounds_are_counted_per_turn_and_continue_without_turns() -> None:
    """A stream recorded without prompts is divided by rounds only."""
    round_ = [completion(tool_calls=[tool_call("call_0")]), tool_message("call_0")]
    with_prompts = decode_messages("openai", [USER, *round_, *round_, completion(content="Done."), USER, *round_])
    assert [call.iteration for call in list_calls(with_prompts)] == [0, 1, 0]
    without_prompts = decode_messages("openai", [*round_, *round_, completion(content="Done."), *round_])
    assert [call.iteration for call in list_calls(without_prompts)] == [0, 1, 3]


@pytest.mark.parametrize("identity", [None, "", 0, "same"])
def test_results_of_calls_without_ids_are_matched_in_order(identity: Any) -> None:
    """Two equal calls of one response, two results."""
    call = {"id": identity, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        USER,
        completion(tool_calls=[call, call]),
        tool_message(identity, "first"),
        tool_message(identity, "second"),
    ]
    assert [call.output for call in list_calls(decode_messages("openai", messages))] == ["first", "second"]


def test_calls_without_ids_of_two_decoders_are_separate() -> None:
    """A generated id contains the id of its response, so a second recording of the session does not collide."""
    first, second = ({**completion(tool_calls=[tool_call("")]), "id": name} for name in ("r1", "r2"))
    aliases = [decode_events([message])[0].aliases[0].id for message in (first, second)]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(set(aliases)) == 2


def test_a_result_of_an_unknown_call_is_a_separate_call() -> None:
    """The call has the name of the tool, if the result has one."""
    (call,) = list_calls(decode_messages("openai", [{**tool_message("call_x"), "name": "cp"}]))
    assert (call.tool_call_id, call.tool_name, call.status) == ("call_x", "cp", "completed")


# Turns


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("odd", "odd")],
)
def test_a_turn_ends_with_a_response_without_calls(finish: str, reason: str) -> None:
    """The turn has a stop reason of the ledger."""
    ended = select(ev.TurnEnded, decode_events([USER, chunk({"content": "Yes."}), chunk(finish=finish)]))
    assert [event.reason for event in ended] == [reason]


def test_a_turn_continues_while_calls_have_no_result() -> None:
    """Also if the finish reason of the server is `stop`."""
    stream = [
        USER,
        chunk({"tool_calls": [call_part(0, "{}", id="a", name="t")]}),
        chunk(finish="stop"),
        tool_message("a"),
    ]
    assert not select(ev.TurnEnded, decode_events(stream))


def test_the_decoder_does_not_end_a_turn_of_the_caller() -> None:
    """A caller that records only the model's stream has its own turns."""
    assert not select(
        ev.TurnEnded, decode_events([chunk({"content": "Yes."}), chunk(finish="stop"), {"error": "gone"}])
    )


def test_user_messages_before_the_response_are_one_turn() -> None:
    """The first message after a response begins another turn."""
    events = decode_events([USER, USER, completion(content="Yes."), USER])
    assert [type(event).__name__ for event in events if isinstance(event, ev.TurnStarted | ev.MessageUser)] == [
        "TurnStarted",
        "MessageUser",
        "MessageUser",
        "TurnStarted",
        "MessageUser",
    ]


@pytest.mark.parametrize(("reason", "state"), [("eof", "lost"), ("error", "lost"), ("cancelled", "cancelled")])
@pytest.mark.parametrize("prompt", [[USER], []])
def test_an_interrupted_stream_ends_its_incomplete_calls(prompt: list[Any], reason: str, state: str) -> None:
    """C5: with or without a turn of the decoder; a complete call outside of such a turn may still run."""
    stream = [
        chunk({"tool_calls": [call_part(0, "{}", id="whole", name="t"), call_part(1, '{"a', id="cut", name="t")]})
    ]
    complete, incomplete = list_calls(decode_messages("openai", [*prompt, *stream], close=reason))
    assert incomplete.status == state and incomplete.raw_input is None
    assert complete.raw_input == {} and complete.status == (state if prompt else "queued")


def test_a_stream_without_a_finish_is_complete_with_its_result() -> None:
    """Some servers never send a finish reason."""
    stream = [chunk({"tool_calls": [call_part(0, "{}", id="a", name="t")]}), tool_message("a")]
    (call,) = list_calls(decode_messages("openai", stream))
    assert (call.raw_input, call.status) == ({}, "completed")


# Requests


def test_only_new_messages_of_a_request_are_recorded() -> None:
    """The last messages of a growing conversation; a repeated request after a failure adds nothing."""
    first = completion(content="Which?", tool_calls=[tool_call("call_1")])
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [tool_call("call_1")]},
        tool_message("call_1"),
    ]
    events = decode_events([{"model": "m", "messages": history[:1]}, first])
    decoder = ChatDecoder()
    for message in ({"model": "m", "messages": history[:1]}, first):
        decoder.feed(message)
    new_events = [draft.event for draft in decoder.feed({"model": "m", "messages": history})]
    assert [type(event) for event in new_events] == [ev.CallCompleted]
    assert not decoder.feed({"model": "m", "messages": history})
    assert len(select(ev.MessageUser, events)) == 1


WORDS = st.sampled_from(["yes", "no", "go on"])
TURNS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6)


@given(TURNS, st.integers(0, 5))
def test_repeated_messages_of_requests_are_recorded_once(turns: list[tuple[str, str]], old_count: int) -> None:
    """Also if the client leaves out old messages."""
    decoder, history, events = ChatDecoder(), list[Any](), list[ev.Event]()
    for prompt, reply in turns:
        history.append({"role": "user", "content": prompt})
        sent = history[-1 - old_count :] if old_count else history
        for message in ({"model": "m", "messages": sent}, completion(content=reply)):
            events += [draft.event for draft in decoder.feed(message)]
        history.append({"role": "assistant", "content": reply})
    assert list_texts(events) == [text for turn in turns for text in turn]


@given(TURNS)
def test_a_conversation_of_requests_only_is_recorded_once(turns: list[tuple[str, str]]) -> None:
    """Each request contains the earlier responses."""
    history = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    requests = [{"messages": history[: 2 * number + 1]} for number in range(len(turns))]
    assert list_texts(decode_events(requests)) == [text for turn in turns for text in turn][:-1]


def test_a_shortened_conversation_is_aligned_by_its_longest_match() -> None:
    """The last known message may occur several times."""
    texts = ["a", "ok", "b", "no", "b", "ok", "b"]
    history = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
    events = decode_events([{"messages": history[:5]}, {"messages": history[2:]}])
    assert list_texts(events) == texts


def list_texts(events: list[ev.Event]) -> list[str]:
    """Return the texts of the user and of the assistant, in order."""
    return [event.text for event in events if isinstance(event, ev.MessageUser | ev.MessageDelta)]


def test_other_request_fields_are_stored_when_they_change() -> None:
    """For example the tools, but not again with every message."""
    requests = [{"model": name, "tools": [1], "messages": [USER]} for name in ("a", "a", "b")]
    assert [event.body for event in select(ev.Raw, decode_events(requests))] == [
        {"model": "a", "tools": [1]},
        {"model": "b", "tools": [1]},
    ]


def test_a_request_with_a_changed_history_is_stored_as_raw() -> None:
    """A client may replace old messages by a summary."""
    shortened = {"messages": [{"role": "user", "content": "In short."}, {"role": "assistant", "content": "Yes."}, USER]}
    assert select(ev.Raw, decode_events([USER, completion(content="Yes."), shortened]))[-1].body == shortened


def test_a_changed_history_is_stored_once() -> None:
    """C12: the client sends its summary with every later request."""
    history = [{"role": "user", "content": "In short."}, {"role": "assistant", "content": "Yes."}]
    decoder, raw_events = ChatDecoder(), list[ev.Event]()
    decoder.feed(completion(content="Yes."))
    for number in range(5):
        history.append({"role": "user", "content": f"And {number}?"})
        raw_events += select(ev.Raw, [draft.event for draft in decoder.feed({"messages": list(history)})])
        history.append({"role": "assistant", "content": f"{number}."})
        decoder.feed(completion(content=f"{number}."))
    assert len(raw_events) == 1


def test_a_text_and_a_text_part_are_equal() -> None:
    """Clients move a cache marker to the newest message, which then has parts."""
    parts = [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]
    assert (
        len(select(ev.MessageUser, decode_events([{"messages": [{**USER, "content": parts}]}, {"messages": [USER]}])))
        == 1
    )


# Cost


def count_parsed(monkeypatch: pytest.MonkeyPatch, messages: Sequence[Any]) -> int:
    """Return how many characters of arguments the decoder parses as JSON while it reads the messages."""
    count = 0

    def count_and_check(text: str) -> bool:
        nonlocal count
        count += len(text)
        return is_json(text)

    monkeypatch.setattr(chat_reply, "is_json", count_and_check)
    decode_events(messages)
    return count


def test_arguments_are_not_parsed_again_with_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """C12: if a server repeats the name, each chunk looks like the first one of another call."""
    parts = [call_part(0, text, name="t") for text in ('{"a": "', *["word "] * 300)]
    assert count_parsed(monkeypatch, [chunk({"tool_calls": [part]}) for part in parts]) == 0


def test_a_response_in_another_form_is_the_same_response() -> None:
    """As chunks, in full, and as a message in the next request."""
    stream = [chunk({"content": "Hi."}), chunk(finish="stop")]
    messages = [*stream, completion(content="Hi."), {"role": "assistant", "content": "Hi.\n"}]
    assert [entry.content for entry in list_entries(decode_messages("openai", messages))] == ["Hi."]
    assert len(list_entries(decode_messages("openai", [*stream, *stream]))) == 2


# Raw events and other fields


@pytest.mark.parametrize(
    "message",
    [
        chunk({"content": "x", "audio": {"id": "a"}}),
        chunk({"content": "x"}, citations=["https://example.org"]),
        chunk({"tool_calls": [call_part(0, "{}", id="a", name="t", extra_content={"signature": "s"})]}),
        {**chunk(), "choices": [{"index": 1, "delta": {"content": "another"}}]},
        completion(content="x", annotations=[{"type": "url_citation"}]),
        {"role": "user", "content": "x", "name": "ann"},
        {"role": "system", "content": "Be brief."},
        {"choices": []},
        {"role": "critic"},
        ["no message"],
        "text",
        None,
    ],
)
def test_unknown_content_is_stored_as_raw(message: Any) -> None:
    """Nothing is lost, and nothing raises (C11)."""
    bodies = [event.body for event in select(ev.Raw, decode_events([message]))]
    assert bodies == ([message] if not isinstance(message, list) else message)


def test_usage_is_recorded_once_for_each_response() -> None:
    """After the finish, with it, or on every chunk."""
    usage = {"total_tokens": 3}
    after = [chunk({"content": "x"}), chunk(finish="stop"), {**chunk(), "choices": [], "usage": usage}]
    on_every_chunk = [chunk({"content": "x"}, usage={"total_tokens": 1}), chunk(finish="stop", usage=usage)]
    for stream in (after, on_every_chunk, [completion(content="x") | {"usage": usage}]):
        assert [event.usage for event in select(ev.SessionInfo, decode_events(stream))] == [usage]


def test_a_response_has_the_time_in_its_created_field() -> None:
    """Seconds in the response, milliseconds in the log; a message without the field has no time."""
    events = decode_events([USER, chunk({"content": "x"})])
    assert [event.at for event in events] == [0, 0, 1_700_000_000_000]


def test_thoughts_are_read_from_either_field_once() -> None:
    """Some servers send both fields."""
    memory = decode_messages("openai", [chunk({"reasoning": "a", "reasoning_content": "a"}), chunk({"reasoning": "b"})])
    assert [entry.content for entry in list_entries(memory) if isinstance(entry, Thought)] == ["ab"]


@pytest.mark.parametrize("case", [case for case in format_cases.CASES if format_cases.format_of(case) == "openai"])
def test_no_case_leaves_an_open_turn_or_text(case: str) -> None:
    """C5: the end of the stream ends every turn and every text."""
    messages = [json.loads(line) for line in format_cases.lines_of(case)]
    memory = decode_messages("openai", messages, close="cancelled")
    assert memory.state.info.turn == ""
    assert not [entry for entry in list_entries(memory) if getattr(entry, "streaming", False)]
