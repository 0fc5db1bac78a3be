"""`openai` in: Chat Completions as servers really send them. The cases of tests/inputs/openai tell the rest."""

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
ORACLE = ["two_rounds", "parallel_interleaved", "bad_arguments", "refusals", "same_id_in_every_response"]
DEPTH_OF_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(max_size=8)),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=6,
)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of a stream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    fields = {
        "id": "r1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [choice],
    }
    return {**fields, **more}


def piece(index: int, text: str = "", **more: Any) -> dict[str, Any]:
    """A piece of a call."""
    function = {"arguments": text, **({"name": more.pop("name")} if "name" in more else {})}
    return {"index": index, "function": function, **more}


def answer(**message: Any) -> dict[str, Any]:
    """A whole completion."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return {"id": "r1", "object": "chat.completion", "created": 1_700_000_000, "model": "m", "choices": [choice]}


def tool_call(identity: str, name: str = "ls", arguments: str = "{}") -> dict[str, Any]:
    """A call in a whole message."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(identity: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def drafted(messages: Sequence[Any], **options: Any) -> list[ev.Event]:
    """What a decoder drafts, without its end."""
    decoder = ChatDecoder(**options)
    return [draft.event for message in messages for draft in decoder.feed(message)]


def of(kind: type[Any], events: Sequence[ev.Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# The SDK as a judge


@pytest.mark.parametrize("case", ORACLE)
def test_the_decoder_reads_a_stream_like_the_sdk(case: str) -> None:
    """Texts, refusals, names, ids and argument texts of every response are the same."""
    # The SDK takes 0.6 s to import, so do it only when a test needs it.
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    messages = [json.loads(line) for line in format_cases.lines_of(f"openai/{case}")]
    chunks = [message for message in messages if message.get("object") == "chat.completion.chunk"]
    assert chunks
    for _, response in groupby(chunks, key=lambda message: message["id"]):
        one = list(response)
        state: Any = ChatCompletionStreamState()
        for message in one:
            state.handle_chunk(ChatCompletionChunk.model_validate(message))
        judged = state.current_completion_snapshot.choices[0].message
        memory = decode_messages("openai", one)
        text = "".join(entry.content for entry in list_entries(memory) if isinstance(entry, Message))
        assert text == (judged.content or "") + (judged.refusal or "")
        called = [(entry.tool_call_id, entry.tool_name) for entry in list_calls(memory)]
        assert called == [(call.id, call.function.name) for call in judged.tool_calls or []]
        texts: dict[str, str] = {}
        for event in of(ev.CallInputDelta, memory.log):
            texts[event.call] = texts.get(event.call, "") + event.text
        written = [texts.get(entry.call_id, "") for entry in list_calls(memory)]
        assert written == [call.function.arguments for call in judged.tool_calls or []]


@pytest.mark.parametrize("case", ORACLE)
def test_sdk_objects_give_the_same_entries_as_their_json(case: str) -> None:
    """A dumped object has null for absent fields."""
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    shapes: dict[str, Any] = {"chat.completion.chunk": ChatCompletionChunk, "chat.completion": ChatCompletion}
    bare = [json.loads(line) for line in format_cases.lines_of(f"openai/{case}")]
    dumped = [
        shapes[one["object"]].construct(**one).model_dump(mode="json", warnings=False) if "object" in one else one
        for one in bare
    ]
    assert any(one != other for one, other in zip(bare, dumped, strict=True))
    kept_as_it_came = ev.Raw | ev.SessionInfo
    read, expected = (
        [event for event in drafted(one) if not isinstance(event, kept_as_it_came)] for one in (dumped, bare)
    )
    assert read == expected


# Pieces


@given(
    st.lists(st.dictionaries(st.text(max_size=4), DEPTH_OF_JSON, max_size=3), min_size=1, max_size=4),
    st.text(max_size=20),
    st.data(),
)
def test_any_split_of_a_stream_gives_the_same_entries(inputs_of: list[Any], content: str, data: st.DataObject) -> None:
    """Interleaved calls, arguments and text in chunks of any size give the same as the full response."""
    texts = [json.dumps(value) for value in inputs_of]
    waiting = [[piece(n, id=f"call_{n}", name="tool"), *cut(data, text, n)] for n, text in enumerate(texts)]
    stream = [chunk({"content": part}) for part in split(data, content)]
    while any(waiting):
        first = data.draw(st.sampled_from([pieces for pieces in waiting if pieces]))
        stream.append(chunk({"tool_calls": [first.pop(0)]}))
    streamed = decode_messages("openai", [USER, *stream, chunk(finish="tool_calls")])
    calls = [tool_call(f"call_{n}", "tool", text) for n, text in enumerate(texts)]
    whole = decode_messages("openai", [USER, answer(content=content, tool_calls=calls)])
    facts = [
        {(call.tool_call_id, call.tool_name, json.dumps(call.raw_input), call.iteration) for call in list_calls(memory)}
        for memory in (streamed, whole)
    ]
    assert facts[0] == facts[1] and len(facts[0]) == len(texts)
    assert {call.input_text for call in list_calls(streamed)} == {""}
    spoken = [
        [entry.content for entry in list_entries(memory) if isinstance(entry, Message)] for memory in (streamed, whole)
    ]
    assert spoken[0] == spoken[1]


def split(data: st.DataObject, text: str) -> list[str]:
    """A text in pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def cut(data: st.DataObject, text: str, index: int) -> list[dict[str, Any]]:
    return [piece(index, part) for part in split(data, text)]


def test_arguments_are_complete_only_at_the_finish() -> None:
    """A prefix may be valid JSON too: 1 is, and so is 12."""
    stream = [chunk({"tool_calls": [piece(0, id="a", name="t")]}), chunk({"tool_calls": [piece(0, "1")]})]
    assert not of(ev.CallInput, drafted(stream))
    stream += [chunk({"tool_calls": [piece(0, "2")]}), chunk(finish="tool_calls")]
    assert [event.input for event in of(ev.CallInput, drafted(stream))] == [12]


def test_texts_are_deltas_unless_the_caller_declares_otherwise() -> None:
    """S2.4: providers send deltas."""
    stream = [chunk({"content": "ha", "reasoning_content": "hm"})]
    assert [event.chunks for event in drafted(stream)] == ["delta", "delta"]
    assert [event.chunks for event in drafted(stream, chunks="cumulative")] == ["cumulative", "cumulative"]


# Identity


def test_an_id_reused_in_every_response_is_a_new_call_each_time() -> None:
    """C2, C3: also for equal calls with equal results."""
    called = chunk({"tool_calls": [piece(0, "{}", id="call_0", name="ls")]})
    memory = decode_messages("openai", [USER, *[called, chunk(finish="tool_calls"), result("call_0")] * 3])
    assert [(call.status, call.iteration) for call in list_calls(memory)] == [("completed", n) for n in range(3)]
    assert {event.verdict for event in memory.log} == {"applied"}


def test_a_generated_id_does_not_collide_with_a_sent_id() -> None:
    """C3: the second `a` needs a generated id, which a third call already has."""
    called = answer(tool_calls=[tool_call("a", "one"), tool_call("a", "two"), tool_call("a#1", "three")])
    memory = decode_messages("openai", [USER, called, result("a", 1), result("a", 2), result("a#1", 3)])
    assert [(call.tool_name, call.output) for call in list_calls(memory)] == [("one", 1), ("two", 2), ("three", 3)]


@pytest.mark.parametrize("repeats", [{}, {"id": "a"}])
def test_a_tool_name_repeated_in_every_chunk_is_one_name(repeats: dict[str, Any]) -> None:
    """Also before the first arguments."""
    pieces = [piece(0, "", id="a", name="ls"), *(piece(0, part, name="ls", **repeats) for part in ("", '{"a":', "1}"))]
    memory = decode_messages("openai", [*(chunk({"tool_calls": [one]}) for one in pieces), chunk(finish="tool_calls")])
    assert [(call.tool_name, call.raw_input) for call in list_calls(memory)] == [("ls", {"a": 1})]


def test_id_and_name_may_follow_the_first_chunk() -> None:
    """Both together, for a call that started without them."""
    pieces = [piece(0), piece(0, "{}", id="a", name="ls")]
    memory = decode_messages("openai", [*(chunk({"tool_calls": [one]}) for one in pieces), chunk(finish="tool_calls")])
    assert [(call.tool_name, call.raw_input) for call in list_calls(memory)] == [("ls", {})]


def test_rounds_are_counted_per_turn_and_continue_without_turns() -> None:
    """A stream recorded without prompts is divided by rounds only."""
    called = [answer(tool_calls=[tool_call("call_0")]), result("call_0")]
    with_prompts = decode_messages("openai", [USER, *called, *called, answer(content="Done."), USER, *called])
    assert [call.iteration for call in list_calls(with_prompts)] == [0, 1, 0]
    without = decode_messages("openai", [*called, *called, answer(content="Done."), *called])
    assert [call.iteration for call in list_calls(without)] == [0, 1, 3]


@pytest.mark.parametrize("identity", [None, "", 0, "same"])
def test_results_of_calls_without_ids_are_matched_in_order(identity: Any) -> None:
    """Two equal calls of one response, two results."""
    call = {"id": identity, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [USER, answer(tool_calls=[call, call]), result(identity, "first"), result(identity, "second")]
    assert [call.output for call in list_calls(decode_messages("openai", messages))] == ["first", "second"]


def test_calls_without_ids_of_two_decoders_are_separate() -> None:
    """A generated id contains the id of its response, so a second recording of the session does not collide."""
    first, second = ({**answer(tool_calls=[tool_call("")]), "id": name} for name in ("r1", "r2"))
    aliases = [drafted([one])[0].aliases[0].id for one in (first, second)]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(set(aliases)) == 2


def test_a_result_of_an_unknown_call_is_a_separate_call() -> None:
    """With the name of its tool, if present."""
    (call,) = list_calls(decode_messages("openai", [{**result("call_x"), "name": "cp"}]))
    assert (call.tool_call_id, call.tool_name, call.status) == ("call_x", "cp", "completed")


# Turns


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("odd", "odd")],
)
def test_a_turn_ends_with_a_response_without_calls(finish: str, reason: str) -> None:
    """With a stop reason of the ledger."""
    ended = of(ev.TurnEnded, drafted([USER, chunk({"content": "Yes."}), chunk(finish=finish)]))
    assert [event.reason for event in ended] == [reason]


def test_a_turn_continues_while_calls_have_no_result() -> None:
    """Also if the finish reason of the server is `stop`."""
    stream = [USER, chunk({"tool_calls": [piece(0, "{}", id="a", name="t")]}), chunk(finish="stop"), result("a")]
    assert not of(ev.TurnEnded, drafted(stream))


def test_the_decoder_does_not_end_a_turn_of_the_caller() -> None:
    """A caller that records only the model's stream has its own turns."""
    assert not of(ev.TurnEnded, drafted([chunk({"content": "Yes."}), chunk(finish="stop"), {"error": "gone"}]))


def test_user_messages_before_the_response_are_one_turn() -> None:
    """The first message after a response begins another turn."""
    events = drafted([USER, USER, answer(content="Yes."), USER])
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
    """C5: with or without a turn of ours; a call that is whole outside of one may still be run."""
    stream = [chunk({"tool_calls": [piece(0, "{}", id="whole", name="t"), piece(1, '{"a', id="cut", name="t")]})]
    whole, cut_off = list_calls(decode_messages("openai", [*prompt, *stream], close=reason))
    assert cut_off.status == state and cut_off.raw_input is None
    assert whole.raw_input == {} and whole.status == (state if prompt else "queued")


def test_a_stream_without_a_finish_is_complete_with_its_result() -> None:
    """Some servers never send a finish reason."""
    stream = [chunk({"tool_calls": [piece(0, "{}", id="a", name="t")]}), result("a")]
    (call,) = list_calls(decode_messages("openai", stream))
    assert (call.raw_input, call.status) == ({}, "completed")


# Requests


def test_only_new_messages_of_a_request_are_recorded() -> None:
    """The end of a conversation that grows; the same request again after a failure brings nothing."""
    first = answer(content="Which?", tool_calls=[tool_call("call_1")])
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [tool_call("call_1")]}, result("call_1")]
    events = drafted([{"model": "m", "messages": history[:1]}, first])
    decoder = ChatDecoder()
    for message in ({"model": "m", "messages": history[:1]}, first):
        decoder.feed(message)
    news = [draft.event for draft in decoder.feed({"model": "m", "messages": history})]
    assert [type(event) for event in news] == [ev.CallCompleted]
    assert not decoder.feed({"model": "m", "messages": history})
    assert len(of(ev.MessageUser, events)) == 1


words = st.sampled_from(["yes", "no", "go on"])
spoken_in_turns = st.lists(st.tuples(words, words), min_size=1, max_size=6)


@given(spoken_in_turns, st.integers(0, 5))
def test_repeated_messages_of_requests_are_recorded_once(turns: list[tuple[str, str]], kept: int) -> None:
    """Also if the client leaves out old messages."""
    decoder, history, events = ChatDecoder(), list[Any](), list[ev.Event]()
    for prompt, reply in turns:
        history.append({"role": "user", "content": prompt})
        sent = history[-1 - kept :] if kept else history
        for message in ({"model": "m", "messages": sent}, answer(content=reply)):
            events += [draft.event for draft in decoder.feed(message)]
        history.append({"role": "assistant", "content": reply})
    assert heard(events) == [text for turn in turns for text in turn]


@given(spoken_in_turns)
def test_a_conversation_of_requests_only_is_recorded_once(turns: list[tuple[str, str]]) -> None:
    """Each request contains the earlier responses."""
    history = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    requests = [{"messages": history[: 2 * number + 1]} for number in range(len(turns))]
    assert heard(drafted(requests)) == [text for turn in turns for text in turn][:-1]


def test_a_shortened_conversation_is_aligned_by_its_longest_match() -> None:
    """The last known message may occur several times."""
    texts = ["a", "ok", "b", "no", "b", "ok", "b"]
    history = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
    events = drafted([{"messages": history[:5]}, {"messages": history[2:]}])
    assert heard(events) == texts


def heard(events: list[ev.Event]) -> list[str]:
    """What was said, by whomever."""
    return [event.text for event in events if isinstance(event, ev.MessageUser | ev.MessageDelta)]


def test_other_request_fields_are_stored_when_they_change() -> None:
    """For example the tools, but not again with every message."""
    requests = [{"model": name, "tools": [1], "messages": [USER]} for name in ("a", "a", "b")]
    assert [event.body for event in of(ev.Raw, drafted(requests))] == [
        {"model": "a", "tools": [1]},
        {"model": "b", "tools": [1]},
    ]


def test_a_request_with_a_changed_history_is_stored_as_raw() -> None:
    """A client may replace old messages by a summary."""
    summed = {"messages": [{"role": "user", "content": "In short."}, {"role": "assistant", "content": "Yes."}, USER]}
    assert of(ev.Raw, drafted([USER, answer(content="Yes."), summed]))[-1].body == summed


def test_a_changed_history_is_stored_once() -> None:
    """C12: the client sends its summary with every later request."""
    history = [{"role": "user", "content": "In short."}, {"role": "assistant", "content": "Yes."}]
    decoder, kept = ChatDecoder(), list[ev.Event]()
    decoder.feed(answer(content="Yes."))
    for number in range(5):
        history.append({"role": "user", "content": f"And {number}?"})
        kept += of(ev.Raw, [draft.event for draft in decoder.feed({"messages": list(history)})])
        history.append({"role": "assistant", "content": f"{number}."})
        decoder.feed(answer(content=f"{number}."))
    assert len(kept) == 1


def test_a_text_and_a_text_part_are_equal() -> None:
    """Clients move a cache marker to the newest message, which then has parts."""
    parts = [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]
    assert len(of(ev.MessageUser, drafted([{"messages": [{**USER, "content": parts}]}, {"messages": [USER]}]))) == 1


# Cost


def looked_at(monkeypatch: pytest.MonkeyPatch, messages: Sequence[Any]) -> int:
    """How many characters of arguments are looked at as JSON while they come."""
    seen = 0

    def counting(text: str) -> bool:
        nonlocal seen
        seen += len(text)
        return is_json(text)

    monkeypatch.setattr(chat_reply, "is_json", counting)
    drafted(messages)
    return seen


def test_arguments_are_not_parsed_again_with_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """C12: if a server repeats the name, each chunk looks like the first one of another call."""
    pieces = [piece(0, part, name="t") for part in ('{"a": "', *["word "] * 300)]
    assert looked_at(monkeypatch, [chunk({"tool_calls": [one]}) for one in pieces]) == 0


def test_a_response_in_another_form_is_the_same_response() -> None:
    """As chunks, in full, and as a message in the next request."""
    stream = [chunk({"content": "Hi."}), chunk(finish="stop")]
    messages = [*stream, answer(content="Hi."), {"role": "assistant", "content": "Hi.\n"}]
    assert [entry.content for entry in list_entries(decode_messages("openai", messages))] == ["Hi."]
    assert len(list_entries(decode_messages("openai", [*stream, *stream]))) == 2


# What is kept


@pytest.mark.parametrize(
    "message",
    [
        chunk({"content": "x", "audio": {"id": "a"}}),
        chunk({"content": "x"}, citations=["https://example.org"]),
        chunk({"tool_calls": [piece(0, "{}", id="a", name="t", extra_content={"signature": "s"})]}),
        {**chunk(), "choices": [{"index": 1, "delta": {"content": "another"}}]},
        answer(content="x", annotations=[{"type": "url_citation"}]),
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
    bodies = [event.body for event in of(ev.Raw, drafted([message]))]
    assert bodies == ([message] if not isinstance(message, list) else message)


def test_usage_is_recorded_once_for_each_response() -> None:
    """After the finish, with it, or on every chunk."""
    usage = {"total_tokens": 3}
    after = [chunk({"content": "x"}), chunk(finish="stop"), {**chunk(), "choices": [], "usage": usage}]
    always = [chunk({"content": "x"}, usage={"total_tokens": 1}), chunk(finish="stop", usage=usage)]
    for stream in (after, always, [answer(content="x") | {"usage": usage}]):
        assert [event.usage for event in of(ev.SessionInfo, drafted(stream))] == [usage]


def test_a_response_has_the_time_in_its_created_field() -> None:
    """Seconds in the response, milliseconds in the log; a message without the field has no time."""
    events = drafted([USER, chunk({"content": "x"})])
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
