"""Decode `ui-v5`, `ui-v6` and `ui-v7`: our own streams, streams of real servers, stored messages and posts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import callslip
from callslip.formats import registry
from callslip.formats.ai_sdk import history_v6 as history
from callslip.formats.base import Restart
from callslip.ledger.liveness import Reaper
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, Thought, ToolCall
from callslip.model.events import Draft, Event
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import APPROVAL_OPTIONS
from callslip.settings import Settings
from tests.support import format_cases, scenarios
from tests.support.strategies import MemoryLedger, scripts, write_script
from tests.support.stream_checks import Client, fold_log, list_turns

MAJORS = ("ui-v5", "ui-v6", "ui-v7")


def decode_to_state(messages: Iterable[Any], format: str = "ui-v6", memory: MemoryLedger | None = None) -> SessionFold:
    """Decode messages with one decoder and return the state of the session."""
    decoder = registry.decoder(format)
    memory = memory or MemoryLedger(redact=False)
    for message in messages:
        memory.write(*decoder.feed(json.loads(codec.encode(message))))
    return memory.state


def load_case(name: str) -> list[Any]:
    return [json.loads(line) for line in format_cases.lines_of(name)]


def list_visible(state: SessionFold) -> list[Any]:
    """Return texts, calls and permission requests without generated ids."""
    return [fields for entry in state.snapshot().entries if (fields := visible_fields(entry)) is not None]


def visible_fields(entry: Any) -> Any:
    if isinstance(entry, Message | Thought):
        return [type(entry).__name__, getattr(entry, "role", ""), entry.content]
    if isinstance(entry, ToolCall):
        fields = [entry.status, entry.tool_name, entry.title, entry.raw_input, entry.output, entry.error, entry.reason]
        return ["ToolCall", *fields, entry.iteration, entry.index]
    if isinstance(entry, PermissionRequest):
        return ["PermissionRequest", entry.state, entry.response_option, entry.by, entry.reason]
    return None


# Decode our own streams and messages


def comparable_parts(messages: Iterable[dict[str, Any]]) -> list[Any]:
    """Return the parts of the agent's messages as one list, without ids and fields that depend on timing."""
    result: list[Any] = []
    for part in (part for message in messages if message["role"] == "assistant" for part in message["parts"]):
        fields = {key: value for key, value in part.items() if key != "id"}
        if part["type"] in ("text", "reasoning"):
            del fields["state"]
        if "toolMetadata" in fields:
            metadata, ended = fields["toolMetadata"]["callslip"], part["state"].startswith("output")
            dropped = {"callId"} if ended else {"callId", "exitStatus"}
            fields["toolMetadata"] = {key: value for key, value in metadata.items() if key not in dropped}
        if "approval" in fields:
            descriptor = fields["approval"]["descriptor"]
            options = descriptor.get("options", APPROVAL_OPTIONS)
            fields["approval"] = [descriptor.get("description", part.get("title")), options]
        result += [fields] if part["type"] != "step-start" else []
    return result


def replay_chunks(log: Sequence[Event]) -> list[Any]:
    """Return the chunks of each turn for a client that connects after the last event."""
    state = fold_log(log)
    encoder = registry.streaming("ui-v6").encoder
    return [chunk for turn in list_turns(log) for chunk in encoder(state, turn).opening()]


def live_chunks(log: Sequence[Event]) -> list[Any]:
    """Return the chunks of each turn for a client that is always connected, and reconnects after a restart."""
    chunks: list[Any] = []
    for turn in list_turns(log):
        encoder = registry.streaming("ui-v6").encoder(None, turn)
        for output in map(encoder.feed, log):
            chunks += encoder.opening() if isinstance(output, Restart) else output
    return chunks


def order_as_streamed(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the agent's messages in the order of `list_turns`: those of turns, then the others."""
    answers = [message for message in messages if message["role"] == "assistant"]
    return sorted(answers, key=lambda message: not message["id"].startswith("turn-"))


def stored_messages(log: Sequence[Event]) -> list[Any]:
    """Return all messages of the history."""
    return history(fold_log(log))


SOURCES = {"replayed": replay_chunks, "watched": live_chunks, "stored": stored_messages}
DETACHED = "a detached call stays queued in its message (S3.1); its result is sent elsewhere"
NOT_RESTORED: dict[str, dict[str, str]] = {
    "commands": dict.fromkeys(SOURCES, DETACHED),
    "detached_call": dict.fromkeys(SOURCES, DETACHED),
    "detached_call_changes": dict.fromkeys(SOURCES, DETACHED),
    "plan_mode_commands": dict.fromkeys(SOURCES, "no message has the mode before the first change"),
    "progress_output": {"watched": "a removed title is only left out of later chunks"},
}
"""Scenarios that are not restored completely, with the reason for each source of chunks."""


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_decoding_our_streams_gives_the_same_calls_and_texts(name: str, source: str) -> None:
    """C13: with state, arguments, output and reason. Not compared: ids, whether texts are still streamed, and where
    steps begin. A replay has results next to their calls, so a text written in between follows them.
    """
    log = scenarios.load_events(name)
    expected = history(fold_log(log))
    if source != "stored":
        expected = order_as_streamed(expected)
    is_restored = comparable_parts(history(decode_to_state(SOURCES[source](log)))) == comparable_parts(
        json.loads(codec.encode(expected))
    )
    assert is_restored == (source not in NOT_RESTORED.get(name, {}))


def can_restore(log: Sequence[Event]) -> bool:
    """Return whether the format restores all of a log: see NOT_RESTORED. A turn that occurs twice is one message."""
    turns = [event.turn for event in log if isinstance(event, ev.TurnStarted) and event.verdict == "applied"]
    lossy_types = (ev.SessionMode, ev.SessionCapabilities)
    detached = any(isinstance(event, ev.CallProposed) and event.scope == "detached" for event in log)
    return len(turns) == len(set(turns)) and not detached and not any(isinstance(event, lossy_types) for event in log)


@pytest.mark.parametrize("source", ["replayed", "stored"])
@given(script=scripts())
def test_decoding_the_stream_of_any_log_gives_the_same_calls(source: str, script: list[Event]) -> None:
    """C4, C11: for any events in any order, from streams and from messages."""
    log = write_script([ev.TurnStarted(), *script], redact=False).log
    assume(can_restore(log))
    messages = history(fold_log(log))
    expected = messages if source == "stored" else order_as_streamed(messages)
    assert comparable_parts(history(decode_to_state(SOURCES[source](log)))) == comparable_parts(
        json.loads(codec.encode(expected))
    )


# Streams of real servers and posts of real clients, recorded with npm `ai` 5.0.277, 6.0.326 and 7.0.169

RECORDED = ["weather", "unnamed", "parallel", "failing", "preliminary", "client_tool", "length", "error"]
WITH_APPROVAL = ["approved", "denied"]
CONVERSATIONS = [f"{major}/{name}" for major in MAJORS for name in RECORDED + WITH_APPROVAL * (major != "ui-v5")]
WITH_MESSAGE_IDS = [name for name in CONVERSATIONS if not name.endswith("/unnamed")]


def load_chunks(name: str) -> list[Any]:
    """Return the chunks of a recording, without the posts of the client."""
    return [line for line in load_case(name) if isinstance(line, dict) and "messages" not in line]


@pytest.mark.parametrize("name", RECORDED)
def test_all_major_versions_give_the_same_entries(name: str) -> None:
    """For the same prompts, model and tools, except for texts of the library."""
    views = [list_visible(decode_to_state(load_case(f"{major}/{name}"), major)) for major in MAJORS]
    if name == "failing":  # Each major has its own error text for invalid arguments.
        views = [[entry[:6] for entry in entries] for entries in views]
    assert views[0] == views[1] == views[2]
    assert any(entry[0] == "ToolCall" for entry in views[0]) or name == "error"


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    """The real client of version 6."""
    process = Client(node, "reduce_ui.mjs", "v6")
    yield process
    process.close()


@pytest.mark.parametrize("name", ["weather", "parallel", "failing", "preliminary", "approved", "denied"])
def test_a_stored_message_of_the_client_reads_like_its_stream(client: Client, name: str) -> None:
    """S4.7: the real client builds the message from the chunks."""
    chunks = load_chunks(f"ui-v6/{name}")
    last = max(at for at, chunk in enumerate(chunks) if chunk["type"] == "finish")
    first = max(at for at, chunk in enumerate(chunks[:last]) if chunk["type"] == "start")
    if name in WITH_APPROVAL:
        first, last = 0, next(at for at, chunk in enumerate(chunks) if chunk["type"] == "finish")
    (answer,) = client.ask([{"id": 0, "chunks": chunks[first : last + 1]}])
    assert answer["error"] is None
    assert list_visible(decode_to_state([answer["message"]])) == list_visible(decode_to_state(chunks[first : last + 1]))


@pytest.mark.parametrize("name", WITH_MESSAGE_IDS)
def test_an_interrupted_and_replayed_stream_duplicates_nothing(name: str) -> None:
    """C7: a client that reconnects receives everything again; for any interruption the session is the same."""
    lines = load_case(name)
    expected = list_visible(decode_to_state(lines, format_cases.format_of(name)))
    starts = [at for at, line in enumerate(lines) if isinstance(line, dict) and line.get("type") == "start"]
    ends = [at for at, line in enumerate(lines) if isinstance(line, dict) and line.get("type") in ("finish", "error")]
    start, end = starts[-1], ends[-1]
    for cut in range(start + 1, end):
        assert list_visible(decode_to_state(lines[:cut] + lines[start:], format_cases.format_of(name))) == expected, cut


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_each_post_can_be_decoded_separately(name: str) -> None:
    """S2.11: a stateless server records the same as one with a permanent decoder."""
    lines, format = load_case(name), format_cases.format_of(name)
    memory = MemoryLedger(redact=False)
    requests: list[list[Any]] = []
    for line in lines:
        requests += [[]] if isinstance(line, dict) and "messages" in line else []
        requests[-1].append(line)
    for request in requests:
        decode_to_state(request, format, memory)
    entries = [entry[:8] for entry in list_visible(memory.state)]
    assert entries == [entry[:8] for entry in list_visible(decode_to_state(lines, format))]


@given(st.data())
def test_texts_and_arguments_can_be_split_at_any_position(data: st.DataObject) -> None:
    """S2.4: chunks are deltas, however long each is."""
    lines = load_case("ui-v6/weather")
    split: list[Any] = []
    for line in lines:
        name = next((name for name in ("delta", "inputTextDelta") if isinstance(line, dict) and name in line), None)
        if name is None:
            split.append(line)
            continue
        at = data.draw(st.integers(0, len(line[name])))
        split += [{**line, name: line[name][:at]}, {**line, name: line[name][at:]}]
    assert list_visible(decode_to_state(split)) == list_visible(decode_to_state(lines))


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_repeated_history_adds_only_new_messages(has_ids: bool) -> None:
    """C12: every post has the full history; the log grows by the new messages. Stored messages may have no ids."""

    def count_events(turns: int) -> int:
        memory, decoder, messages = MemoryLedger(redact=False), registry.decoder("ui-v6"), list[Any]()
        for number in range(turns):
            prompt_id, answer_id = (f"u{number}", f"a{number}") if has_ids else ("", "")
            messages.append({"id": prompt_id, "role": "user", "parts": [{"type": "text", "text": "Hi."}]})
            memory.write(*decoder.feed({"id": "chat", "messages": messages, "trigger": "submit-message"}))
            for chunk in ({"type": "start", "messageId": answer_id}, {"type": "text-start", "id": "t"}):
                memory.write(*decoder.feed(chunk))
            memory.write(*decoder.feed({"type": "text-delta", "id": "t", "delta": "Yes."}))
            memory.write(*decoder.feed({"type": "finish"}))
            messages.append({"id": answer_id, "role": "assistant", "parts": [{"type": "text", "text": "Yes."}]})
        return len(memory.log)

    assert count_events(40) - count_events(20) == 2 * (count_events(20) - count_events(10))


# Approval

NO_GRACE = Settings(synchronous="NORMAL", reaper_interval=3600, turn_grace=0.0, reaper_grace=0.0)


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "state"), [("approved", "completed"), ("denied", "denied")])
async def test_an_approval_request_keeps_the_turn_open_after_finish(name: str, state: str) -> None:
    """S2.7: so the reaper does not end the call before the client has answered."""
    lines = load_case(f"ui-v6/{name}")
    answer = next(at for at, line in enumerate(lines) if at and isinstance(line, dict) and "messages" in line)
    decoder = registry.decoder("ui-v6")
    async with await callslip.open("sqlite:///:memory:", NO_GRACE) as ledger:
        for at, line in enumerate(lines):
            if at == answer:
                reaper = Reaper(ledger.log.store, ledger.log.write_context(source="callslip", strict=True), NO_GRACE)
                assert await reaper.reap() == 0
                (pending,) = await ledger.approvals()
                assert (await ledger.log.store.call(pending.call)).state == "awaiting_approval"  # pyright: ignore
            for draft in decoder.feed(line):
                await ledger.log.append("s", [draft], source="ui-v6")
        (call,) = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
        assert call.status == state
        row = await ledger.log.store.session("s")
        assert row is not None and not row.turn


def test_an_approval_request_has_options() -> None:
    """S2.7: the protocol has only yes and no; the user sees options, or those that the request brings."""
    requests = [
        entry
        for entry in decode_to_state(load_case("ui-v6/approvals")).entries.values()
        if isinstance(entry, PermissionRequest)
    ]
    assert requests[0].options == APPROVAL_OPTIONS
    assert [option["name"] for option in requests[2].options] == ["Yes", "No"]


@pytest.mark.parametrize("reason", ["error", "interrupted"])
def test_a_failed_stream_ends_calls_that_wait_for_approval(reason: str) -> None:
    """C5: no answer can follow."""
    lines = [line for line in load_case("ui-v6/approved") if isinstance(line, dict)][:8]
    state = decode_to_state([*lines, {"type": "finish", "finishReason": reason}])
    (call,) = [entry for entry in state.entries.values() if isinstance(entry, ToolCall)]
    assert call.status == {"error": "lost", "interrupted": "cancelled"}[reason]


# Ends of turns


@pytest.mark.parametrize(
    ("last", "reason", "detail"),
    [
        ({"type": "finish"}, "end_turn", ""),
        ({"type": "finish", "finishReason": "stop"}, "end_turn", ""),
        ({"type": "finish", "finishReason": "tool-calls"}, "end_turn", ""),
        ({"type": "finish", "finishReason": "length"}, "max_tokens", ""),
        ({"type": "finish", "finishReason": "content-filter"}, "refusal", ""),
        ({"type": "finish", "finishReason": "error"}, "error", ""),
        ({"type": "finish", "finishReason": "interrupted"}, "cancelled", ""),
        ({"type": "finish", "finishReason": "other"}, "other", ""),
        ({"type": "abort", "reason": "stopped"}, "cancelled", "stopped"),
        ({"type": "error", "errorText": "overloaded"}, "error", "overloaded"),
        ("[DONE]", "end_turn", ""),
    ],
)
def test_every_end_of_a_stream_ends_its_turn(last: Any, reason: str, detail: str) -> None:
    """With the reason of the ledger; an unknown reason is stored unchanged."""
    decoder = registry.decoder("ui-v6")
    started = [draft.event for draft in decoder.feed({"type": "start"})]
    ended = [draft.event for draft in decoder.feed(last)]
    assert started == [ev.TurnStarted()]
    assert ended == [ev.TurnEnded(reason=reason, detail=detail)]
    assert decoder.close("eof") == []


def test_the_end_of_input_ends_open_turns_and_texts() -> None:
    """S2.12: also a text outside of turns."""
    decoder = registry.decoder("ui-v7")
    decoder.feed({"type": "start"})
    assert decoder.close("cancelled") == [Draft(ev.TurnEnded(reason="cancelled"))]
    decoder.feed({"type": "text-delta", "id": "t", "delta": "Late."})
    assert decoder.close("eof") == [Draft(ev.MessageEnded())]


def test_texts_may_be_declared_cumulative() -> None:
    """S2.4: the caller's policy is used."""
    decoder = registry.decoder("ui-v6", chunks="cumulative")
    (draft,) = [*decoder.feed({"type": "text-delta", "id": "t", "delta": "I"})]
    assert isinstance(draft.event, ev.MessageDelta) and draft.event.chunks == "cumulative"


@given(
    st.sampled_from(MAJORS),
    st.lists(format_cases.garbage | st.sampled_from(format_cases.messages_of("ui-v6")), max_size=8),
)
def test_any_value_is_accepted(format: str, messages: list[Any]) -> None:
    """C11: also strings with lone surrogates, which only a Python caller can pass."""
    decoder = registry.decoder(format)
    for message in messages:
        decoder.feed(message)
    decoder.close("eof")
