"""Encode `ui-v5`, `ui-v6` and `ui-v7`: after any event the real client shows the message of the history."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from callslip.api.ledger import open_ledger
from callslip.formats import registry
from callslip.formats.ai_sdk import wire
from callslip.formats.base import Restart, Streaming
from callslip.formats.js_json import readable
from callslip.formats.outcome import is_open
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Alias, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.entry_blocks import split_blocks
from callslip.rules.fold import SessionFold
from tests.conftest import LONG
from tests.support import scenarios, stream_checks
from tests.support.strategies import MemoryLedger, scripts, write_script
from tests.support.stream_checks import Client, Job, Law, fold_log

MAJORS = ("v5", "v6", "v7")
Message = dict[str, Any]


@pytest.fixture(scope="module", params=MAJORS)
def major(request: pytest.FixtureRequest) -> str:
    """Return each major version of the SDK."""
    return request.param


@pytest.fixture(scope="module")
def client(node: str, major: str) -> Iterator[Client]:
    """Yield the real client of a major version: one Node process for all tests of this module."""
    process = Client(node, "reduce_ui.mjs", major)
    yield process
    process.close()


@pytest.fixture(scope="module")
def law(client: Client, major: str) -> Law:
    return Law(client, f"ui-{major}", find_message)


@pytest.fixture(scope="module")
def stream(major: str) -> Streaming:
    return registry.streaming(f"ui-{major}")


@pytest.fixture(scope="module")
def history(major: str) -> Any:
    return registry.encoder(f"ui-{major}")


# What the client must show


def find_message(messages: list[Message], turn: str) -> Message | None:
    """Return the assistant message of a turn, or None before it begins."""
    return next((message for message in messages if stream_checks.is_answer(message, turn)), None)


def check_histories(client: Client, log: Sequence[Event], histories: list[list[Message]]) -> None:
    """Check that every history is valid, and that a model can continue it if no call is open."""
    state = SessionFold()
    jobs: list[Job] = []
    is_settled: list[bool] = []
    seqs = set(stream_checks.sample_items(range(len(log))))
    for seq, (event, messages) in enumerate(zip(log, histories[1:], strict=True)):
        state.apply(event)
        if messages and seq in seqs:  # The client refuses an empty list.
            jobs.append({"id": 0, "history": messages})
            is_settled.append(not any(isinstance(e, ToolCall) and is_open(e) for e in state.entries.values()))
    for settled, answer in zip(is_settled, client.ask(jobs), strict=True):
        assert answer["valid"], answer["validError"]
        assert answer["modelError"] is None
        assert not answer["model"]["repeated"]
        assert not (settled and answer["model"]["missing"])


def check_log(law: Law, log: Sequence[Event], resume_after: Iterable[int]) -> None:
    """Check the streams and the histories of one log."""
    check_histories(law.client, log, law.histories(log))
    law.check_log(log, resume_after)


# Pages


def check_pages(history: Any, state: SessionFold) -> None:
    """Check that the messages of all entries are those of each block, one after the other."""
    entries = state.snapshot().entries
    assert history(entries) == [message for block in split_blocks(entries) for message in history(block)]


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_history_is_the_concatenation_of_its_turns(history: Any, name: str) -> None:
    """S4.7: a page of messages needs only its own turns, after every event of every scenario."""
    state = SessionFold()
    for event in scenarios.load_events(name):
        state.apply(event)
        check_pages(history, state)


@given(scripts())
def test_any_history_is_the_concatenation_of_its_turns(history: Any, script: list[Event]) -> None:
    """S4.7: requests, answers and ends may be in the turn of their call or in a later one."""
    state = SessionFold()
    for event in write_script([ev.TurnStarted(), *script]).log:
        state.apply(event)
        check_pages(history, state)


def test_a_request_in_a_later_turn_only_marks_the_call_as_waiting(law: Law, major: str) -> None:
    """Request and answer are entries of the later turn and do not change the message of the call."""
    drafts = [
        ev.CallStarted(aliases=ONE, tool_name="bash", input={}),
        ev.TurnEnded(),
        ev.ApprovalRequested(aliases=ONE, description="may I?"),
        ev.ApprovalGranted(aliases=ONE, by="ann"),
    ]
    waiting, answered = (call_part(law.history, *drafts[:count]) for count in (3, 4))
    assert waiting.get("approval", {}).get("descriptor") == ({} if major != "v5" else None)
    assert "approval" not in answered
    memory = write_script([ev.TurnStarted(), *drafts])
    check_pages(law.history, memory.state)
    check_log(law, memory.log, range(1, len(memory.log)))


# When a stream restarts

REQUEST_CLOSED = "a request for approval was closed"
TEXT_RESTARTS = {
    "cumulative_text": ["a text was repaired"] * 2,
    "cumulative_text_ends_early": ["a text was repaired"] * 2,
}
RESTARTS_SINCE_V6 = {
    **TEXT_RESTARTS,
    "approval_superseded": [REQUEST_CLOSED],
    "approval_withdrawn": [REQUEST_CLOSED],
    "told_piece_by_piece": [REQUEST_CLOSED],
    "turn_cancelled": [REQUEST_CLOSED],
    "streamed_arguments": [REQUEST_CLOSED],
    "progress_output": ["a title was taken away"],
    "detached_call_changes": ["a call of an earlier step was changed"],
}
ANSWERED_REQUESTS = ("approval_expired", "approval_granted", "approval_granted_with_other_input", "approval_refused")
RESTARTS_AFTER_THE_END = {"commands": ["the turn continued after its end"]}
RESTARTS = {
    "v5": TEXT_RESTARTS | RESTARTS_AFTER_THE_END,
    "v6": RESTARTS_SINCE_V6 | {name: [REQUEST_CLOSED] for name in ANSWERED_REQUESTS},
    "v7": RESTARTS_SINCE_V6,
}


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_stream_restarts_only_if_the_protocol_requires_it(major: str, name: str) -> None:
    """Changes that the version supports are sent on the open connection; a restart makes the application reconnect."""
    assert stream_checks.list_restarts(f"ui-{major}", scenarios.load_events(name)) == RESTARTS[major].get(name, [])


INPUT, REQUEST, RESPONSE = "tool-input-available", "tool-approval-request", "tool-approval-response"


@pytest.mark.parametrize(
    ("name", "chunks", "approval"),
    [
        (
            "approval_granted",
            [[INPUT, REQUEST], [INPUT, RESPONSE], [INPUT, RESPONSE], ["tool-output-available"]],
            {"approved": True},
        ),
        (
            "approval_refused",
            [[INPUT, REQUEST], [INPUT, RESPONSE, "tool-output-denied"]],
            {"approved": False, "reason": "not on a Friday"},
        ),
    ],
)
def test_version_7_sends_the_answer_on_the_open_stream(
    name: str, chunks: list[list[str]], approval: dict[str, Any]
) -> None:
    """One stream has request, answer and end; the part keeps the request, the answer and its author."""
    log = scenarios.load_events(name)
    encoder = registry.streaming("ui-v7").encoder(None, "")
    all_types = [[chunk["type"] for chunk in feed_chunks(encoder, event)] for event in log]
    chunk_types = [[name for name in types if name.startswith("tool-")] for types in all_types]
    assert [types for types in chunk_types if types][1:] == chunks
    (part,) = [part for part in registry.encoder("ui-v7")(fold_log(log))[-1]["parts"] if part["type"] == "dynamic-tool"]
    assert approval.items() <= part["approval"].items()
    assert part["approval"]["descriptor"]["options"]
    assert part["toolMetadata"]["callslip"]["by"] == "ann"


def feed_chunks(encoder: Any, event: Event) -> list[Any]:
    """Return the chunks of an event in a stream that does not restart."""
    chunks = encoder.feed(event)
    assert not isinstance(chunks, Restart)
    return chunks


def test_every_event_requests_the_restart_until_a_replay(stream: Streaming) -> None:
    """Every event requests it until the turn was replayed, also in an encoder that begins in the middle."""
    log = scenarios.load_events("cumulative_text")
    encoder, late = stream.encoder(None, ""), stream.encoder(fold_log(log[:4]), "")
    restarts = [isinstance(encoder.feed(event), Restart) for event in log]
    assert restarts.index(True) < len(log) - 1 and all(restarts[restarts.index(True) :])
    assert all(isinstance(late.feed(event), Restart) for event in log[4:])
    assert encoder.opening() == late.opening()
    assert encoder.finished and encoder.feed(structs.replace(log[0], turn="other", seq=len(log) + 1)) == []


def test_the_last_chunk_before_a_restart_changes_no_message(client: Client, stream: Streaming) -> None:
    """The chunk asks the application to reconnect."""
    log = scenarios.load_events("cumulative_text")
    encoder = stream.encoder(None, "")
    results = [encoder.feed(event) for event in log]
    chunks = [chunk for result in results if isinstance(result, list) for chunk in result]
    (last,) = next(result for result in results if isinstance(result, Restart)).chunks
    before, after = client.ask([{"id": 0, "chunks": chunks}, {"id": 0, "chunks": [*chunks, last]}])
    assert last["transient"]
    assert after["error"] is None
    assert before["message"] and after["message"] == before["message"]


# How a stream begins and ends


def test_a_stream_without_a_turn_id_takes_the_open_or_last_turn(stream: Streaming) -> None:
    """Without a turn name the stream covers the open turn, or else the last one, or the text after it."""
    log = scenarios.load_events("two_turns")
    first = {"type": "start", "messageId": "turn-first"}
    assert stream.encoder(fold_log(log[:11]), "").opening()[0] == {"type": "start", "messageId": "turn-second"}
    assert stream.encoder(fold_log(log[:7]), "").opening()[0] == {"type": "start", "messageId": "msg-7"}
    assert stream.encoder(fold_log(log[:6]), "").opening()[0] == first
    waiting = stream.encoder(None, "")
    assert waiting.opening() == []
    assert next(chunk for event in log[:4] for chunk in feed_chunks(waiting, event)) == first


def test_a_stream_finishes_after_the_last_call_of_its_turn(stream: Streaming) -> None:
    """C5: a call that ends shortly after its turn is still sent, and then the stream finishes."""
    log = scenarios.load_events("two_turns")
    encoder = stream.encoder(None, "")
    chunks = [feed_chunks(encoder, event) for event in log[:6]]
    assert chunks[4] == [] and isinstance(log[4], ev.TurnEnded)
    assert [chunk["type"] for chunk in chunks[5]] == ["tool-output-available", "finish-step", "finish"]
    assert encoder.finished and encoder.close("bye") == []


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content-filter"),
        ("cancelled", "other"),
        ("eof", "error"),
    ],
)
def test_the_client_reads_the_end_of_the_turn(law: Law, major: str, reason: str, word: str) -> None:
    """Each reason of a turn has a finish reason of the client; early releases of version 5 have none."""
    log = write_script([ev.TurnStarted(), ev.MessageDelta(text="Hi."), ev.TurnEnded(reason=reason)]).log
    chunks = law.connections(log, "t1")[0].chunks
    assert chunks[-1] == {"type": "finish", **({"finishReason": word} if major != "v5" else {})}
    assert law.client.ask([{"id": 0, "chunks": chunks}])[0]["error"] is None


def test_an_empty_turn_gives_no_message(law: Law) -> None:
    """Without content, no message is streamed, shown or stored."""
    log = write_script([ev.TurnStarted(), ev.TurnEnded()]).log
    chunks = law.connections(log, "t1")[0].chunks
    assert [chunk["type"] for chunk in chunks] == ["finish"]
    assert law.client.ask([{"id": 0, "chunks": chunks}])[0]["message"] is None
    assert law.history(fold_log(log)) == []


def test_a_stream_closed_by_the_server_ends_with_an_abort(client: Client, stream: Streaming, major: str) -> None:
    """Messages that the client has received stay unchanged."""
    encoder = stream.encoder(fold_log(scenarios.load_events("parallel_calls")[:8]), "")
    first = encoder.opening()
    last = encoder.close("the server stops")
    before, after = client.ask([{"id": 0, "chunks": first}, {"id": 0, "chunks": [*first, *last]}])
    assert last == [{"type": "abort", **({"reason": "the server stops"} if major != "v5" else {})}]
    assert after["error"] is None and after["message"] == before["message"]


def encode_scenario(stream: Streaming, name: str) -> tuple[list[Any], bytes]:
    """Return the chunks of the stream of a scenario, and its bytes."""
    chunks = stream.encoder(fold_log(scenarios.load_events(name)), "").opening()
    return chunks, b"".join(map(stream.frame, chunks)) + stream.done


def test_a_stream_is_server_sent_events(stream: Streaming) -> None:
    """One frame of one line for each chunk, for any text, and the end marker of the client."""
    chunks, body = encode_scenario(stream, "hostile_strings")
    frames = body.split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]] == chunks
    assert not any(b"\n" in frame or b"\r" in frame for frame in frames)


def test_a_stream_can_be_read_from_a_socket(client: Client, stream: Streaming, history: Any) -> None:
    """The client's own parser, on a real connection, with ids and keep-alive comments between the frames."""
    body = b": still here\n\nid: 1\n" + encode_scenario(stream, "hostile_strings")[1]
    headers = {name: value for name, value in stream.headers.items() if name != "connection"}

    class StreamHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["authorization"] == "Bearer t" else 401)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), StreamHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        good, bad = client.ask(
            [{"id": 0, "url": url, "headers": {"authorization": "Bearer t"}}, {"id": 1, "url": url}],
        )
        server.shutdown()
    assert good["error"] is None
    assert headers.items() <= good["headers"].items()
    assert good["message"] == json.loads(codec.encode(history(fold_log(scenarios.load_events("hostile_strings")))[-1]))
    assert bad["message"] is None and bad["error"].startswith("401")


def test_the_stream_grows_linearly_with_its_chunks(law: Law, stream: Streaming, scale: int) -> None:
    """C12: twice the chunks give twice the bytes; incomplete output is not sent again with every chunk."""

    def measure(count: int) -> int:
        log = write_script(
            [
                ev.TurnStarted(),
                *(ev.MessageDelta(text="word ", chunks="delta") for _ in range(count)),
                ev.CallStarted(aliases=(Alias("t", "1"),), input={"n": 1}),
                *(ev.CallProgress(aliases=(Alias("t", "1"),), text="line\n", progress=n) for n in range(count)),
                *(ev.CallInputDelta(aliases=(Alias("t", "2"),), text="piece") for _ in range(count)),
                ev.CallCompleted(aliases=(Alias("t", "1"),)),
            ]
        ).log
        return sum(len(stream.frame(chunk)) for chunk in law.connections(log, "t1")[0].chunks)

    few, many = measure(200), measure(400 * scale)
    assert many < 2.1 * scale * few


@pytest.mark.parametrize(
    "before",
    [
        [ev.CallProposed(aliases=(Alias("t", "one"),), scope="detached")],
        [ev.ApprovalRequested(aliases=(Alias("t", "one"),))],
        [ev.ApprovalRequested(aliases=(Alias("t", "one"),)), ev.ApprovalGranted(aliases=(Alias("t", "one"),))],
    ],
)
def test_arguments_after_the_request_are_sent_once(law: Law, before: list[Event]) -> None:
    """They are not sent again with every delta, in any state of a call, and are right when complete."""
    pieces = ['{"a": "', *["piece "] * 200, '}"', "}", " ", "\u00a0", "}"]
    log = write_script(
        [ev.TurnStarted(), *before, *(ev.CallInputDelta(aliases=ONE, text=piece) for piece in pieces)]
    ).log
    law.check_log(log, [3, len(log) - 4])
    chunks = [chunk for segment in law.connections(log, "t1") for chunk in segment.chunks]
    assert sum(len(codec.encode(chunk)) for chunk in chunks if chunk["type"] == "tool-input-available") < 5_000


def test_ten_thousand_chunks_stream_as_their_history(law: Law) -> None:
    """C12: the client's message equals the history at the end and in between."""
    drafts: list[Event] = [ev.TurnStarted()]
    for number in range(20):
        alias = (Alias("t", str(number)),)
        drafts += [ev.MessageDelta(text=f"{n} ", chunks="delta") for n in range(300)]
        drafts += [ev.CallInputDelta(aliases=alias, text=text) for text in ('{"n": [', *["1, "] * 98, "1]}")]
        drafts += [ev.CallStarted(aliases=alias), *[ev.CallProgress(aliases=alias, text="line\n")] * 100]
        drafts += [ev.CallCompleted(aliases=alias)]
    memory = MemoryLedger()
    memory.write(*drafts, ev.TurnEnded())
    assert len(memory.log) > 10_000
    (segment,) = law.connections(memory.log, "t1")
    step = 450 if LONG else 2250
    segment.chunk_counts = {
        seq: at for seq, at in segment.chunk_counts.items() if seq % step == 7 or seq == len(memory.log)
    }
    histories = {seq: json.loads(codec.encode(law.history(fold_log(memory.log[:seq])))) for seq in segment.chunk_counts}
    law.check_segments([segment], histories)


@pytest.mark.parametrize(
    "changes", [[ev.ApprovalRequested(), ev.ApprovalGranted()], [ev.CallStarted(), ev.CallRequeued()]]
)
def test_a_call_started_without_arguments_does_not_become_streaming(history: Any, changes: list[Event]) -> None:
    """An approved or started call without arguments has the state of a queued call."""
    part = call_part(
        history, ev.CallProposed(aliases=ONE), *(structs.replace(change, aliases=ONE) for change in changes)
    )
    assert (part["state"], part["input"]) in [("input-available", {}), ("approval-responded", {})]


# Contents of messages


def turn_parts(history: Any, *drafts: Event) -> list[dict[str, Any]]:
    """Return the parts of the only turn of these events, without its first step."""
    (message,) = history(write_script([ev.TurnStarted(), *drafts]).state)
    assert message["parts"][0] == {"type": "step-start"}
    return message["parts"][1:]


def call_part(history: Any, *drafts: Event) -> dict[str, Any]:
    """Return the part of the only call of these events."""
    messages = history(write_script([ev.TurnStarted(), *drafts]).state)
    (part,) = [part for message in messages for part in message["parts"] if part["type"] == "dynamic-tool"]
    return part


ONE = (Alias("t", "one"),)
REQUESTED = [ev.CallProposed(aliases=ONE, tool_name="bash", input={"a": 1}), ev.ApprovalRequested(aliases=ONE)]
STATES: dict[str, list[Event]] = {
    "queued": REQUESTED[:1],
    "awaiting_approval": REQUESTED,
    "running": [*REQUESTED[:1], ev.CallStarted(aliases=ONE)],
    "completed": [*REQUESTED[:1], ev.CallCompleted(aliases=ONE, output="out")],
    "failed": [*REQUESTED[:1], ev.CallFailed(aliases=ONE, error="no")],
    "denied": [*REQUESTED, ev.ApprovalRefused(aliases=ONE, reason="no")],
    "cancelled": [*REQUESTED, ev.ApprovalWithdrawn(aliases=ONE, reason="no")],
    "expired": [*REQUESTED[:1], ev.CallExpired(aliases=ONE, reason="no")],
    "lost": [*REQUESTED[:1], ev.CallLost(aliases=ONE, reason="no")],
}


@pytest.mark.parametrize("state", STATE_NAMES)
def test_every_state_has_its_name_and_the_original_in_metadata(history: Any, major: str, state: str) -> None:
    """The state comes from the state table; a state that the version does not have is in the metadata of the part."""
    part = call_part(history, *STATES[state])
    assert part["state"] == getattr(STATE_NAMES[state], major)
    assert ("errorText" in part) == (STATE_NAMES[state].error and part["state"] != "output-denied")
    assert ("approval" in part) == (part["state"] in ("approval-requested", "output-denied"))
    if major != "v5":
        assert part["toolMetadata"]["callslip"]["state"] == state


GRANT = ev.ApprovalGranted(aliases=ONE, reason="once")
GRANTED = [*REQUESTED, GRANT]


@pytest.mark.parametrize(
    ("drafts", "states"),
    [
        (GRANTED, ["input-available", "input-available", "approval-responded"]),
        ([*GRANTED, ev.CallStarted(aliases=ONE)], ["input-available", "input-available", "approval-responded"]),
        ([ev.ApprovalRequested(aliases=ONE), GRANT], ["input-available", "input-available", "approval-responded"]),
        ([*GRANTED, ev.CallCompleted(aliases=ONE)], ["output-available"] * 3),
        ([*GRANTED, ev.CallDenied(aliases=ONE)], ["output-error"] * 3),
        ([*REQUESTED, ev.CallDenied(aliases=ONE)], ["output-error"] * 3),
    ],
)
def test_version_7_keeps_the_granted_approval_on_the_part(
    client: Client, history: Any, major: str, drafts: list[Event], states: list[str]
) -> None:
    """Version 7 keeps the answer on the part, in states that allow it; the other versions show none."""
    part = call_part(history, *drafts)
    assert part["state"] == states[MAJORS.index(major)]
    assert part.get("approval", {}).get("approved") is (True if major == "v7" and GRANT in drafts else None)
    (answer,) = client.ask([{"id": 0, "history": history(write_script([ev.TurnStarted(), *drafts]).state)}])
    assert answer["valid"], answer["validError"]


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ev.CallFailed(error="no such file"), "no such file"),
        (ev.CallFailed(error={"message": "no", "code": 1}, output="half"), "no\nhalf"),
        (ev.CallFailed(error={"code": 1}), '{"code":1}'),
        (ev.CallFailed(reason="gone"), "gone"),
        (ev.CallFailed(content=[{"type": "text", "text": "bad"}]), "bad"),
        (ev.CallFailed(), "The tool call failed."),
        (ev.CallDenied(reason="not today"), "The tool call was denied: not today"),
        (ev.CallDenied(), "The tool call was denied."),
        (ev.CallCancelled(reason="stopped", output="half"), "The tool call was cancelled: stopped\nhalf"),
        (ev.CallExpired(reason="5 s"), "The tool call ran out of time: 5 s"),
        (ev.CallLost(reason="eof"), "The outcome of the tool call is unknown: eof"),
    ],
)
def test_a_call_without_output_has_a_reason_for_the_model(history: Any, end: ev.CallEnd, text: str) -> None:
    """C5: a sentence for the model, with the output so far."""
    (part,) = turn_parts(history, ev.CallStarted(aliases=ONE, input={}), structs.replace(end, aliases=ONE))
    assert part["errorText"] == text


@pytest.mark.parametrize(
    ("end", "output"),
    [
        (ev.CallCompleted(output={"a": [1]}), {"a": [1]}),
        (ev.CallCompleted(output=False, content=[{"type": "text", "text": "shown"}]), False),
        (ev.CallCompleted(content=[{"type": "content", "content": {"type": "text", "text": "shown"}}]), "shown"),
        (ev.CallCompleted(content=[{"type": "terminal", "terminalId": "1"}]), "printed\n"),
        (ev.CallCompleted(content=[{"type": "diff", "path": "a"}]), [{"type": "diff", "path": "a"}]),
        (ev.CallCompleted(), "printed\n"),
    ],
)
def test_the_output_is_the_result_or_content_or_printed_text(history: Any, end: ev.CallEnd, output: Any) -> None:
    """The first of them that exists."""
    printed = ev.CallProgress(aliases=ONE, text="printed\n")
    (part,) = turn_parts(history, ev.CallStarted(aliases=ONE), printed, structs.replace(end, aliases=ONE))
    assert part["output"] == output


def test_streamed_output_of_a_running_call_is_not_its_output(history: Any) -> None:
    """C13: the call has the state of a running call, so that a model does not take partial output for the result."""
    progress = ev.CallProgress(aliases=ONE, text="one\n", content=[{"type": "text", "text": "one"}])
    (part,) = turn_parts(history, ev.CallStarted(aliases=ONE, input={}), progress)
    assert part["state"] == "input-available" and "output" not in part


def test_streamed_arguments_are_text_until_they_are_complete(history: Any, major: str) -> None:
    """Version 5 would guess the rest of incomplete arguments, so it receives only complete ones."""
    delta = ev.CallInputDelta(aliases=ONE, text="[1, ")
    (part,) = turn_parts(history, ev.CallProposed(aliases=ONE, tool_name="bash"), delta)
    assert part["state"] == "input-streaming"
    assert part.get("input") == ("[1, " if major != "v5" else None)
    (part,) = turn_parts(history, delta, ev.CallInput(aliases=ONE, input={"a": 1}), ev.CallStarted(aliases=ONE))
    assert part["input"] == {"a": 1}


REQUEST_FIELDS = {
    "description": "Remove a folder",
    "options": [
        {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
        {"optionId": "no", "name": "Reject", "kind": "reject_once"},
    ],
}


def test_a_request_shows_the_options_of_the_agent(history: Any, major: str) -> None:
    """S2.7: the client can offer the same options; version 5 finds them in a data part."""
    last = history(fold_log(scenarios.load_events("approval_pending")))[-1]["parts"][-1]
    identity = "appr_000000000001"
    if major == "v5":
        data = {"approvalId": identity, "toolCallId": "call_1", "state": "pending", **REQUEST_FIELDS}
        assert (last["type"], last["data"]) == ("data-approval", data)
    else:
        assert last["approval"] == {"id": identity, "descriptor": REQUEST_FIELDS}


def test_version_5_replaces_the_request_by_its_answer() -> None:
    """A data part with the id of an existing one replaces it."""
    drafts = [*REQUESTED, ev.ApprovalRefused(aliases=ONE, option="no", by="ann", reason="not today")]
    call, request = turn_parts(registry.encoder("ui-v5"), *drafts)
    assert call["errorText"] == "The tool call was denied: not today"
    data = {"state": "refused", "option": "no", "by": "ann", "reason": "not today"}
    assert data.items() <= request["data"].items()


def test_a_detached_call_stays_queued_in_its_message(history: Any) -> None:
    """S3.1: its output for the model is its correlation id; the result is queried separately."""
    log = scenarios.load_events("detached_call")
    (call,) = [entry for entry in fold_log(log).entries.values() if isinstance(entry, ToolCall)]
    part = history(fold_log(log))[1]["parts"][1]
    assert call.status == "completed"
    assert part["output"] == {"status": "queued", "correlation_id": call.call_id}


def test_late_events_do_not_change_the_message_of_an_ended_call(history: Any) -> None:
    """C4: the message that was sent when the call ended is final."""
    log = scenarios.load_events("late_result")
    at_end, later = history(fold_log(log[:4])), history(fold_log(log))
    assert later[1]["parts"][1] == at_end[1]["parts"][1]


def test_output_stored_as_a_blob_has_a_preview_and_its_size(history: Any, major: str) -> None:
    """S2.8: the part has a preview, the size of the full output and the hash of its blob."""
    small = structs.replace(scenarios.NO_REAPER, inline_limit=100, preview=10)
    drafts = [ev.TurnStarted(), ev.CallStarted(aliases=ONE), ev.CallCompleted(aliases=ONE, output="x" * 1000)]
    (message,) = history(fold_log(asyncio.run(scenarios.record_events(drafts, settings=small))))
    part = message["parts"][-1]
    assert part["output"] == "x" * 10
    if major != "v5":
        metadata = part["toolMetadata"]["callslip"]
        assert (metadata["truncated"], metadata["size"]) == (True, 1000)
        assert metadata["blob"]


def test_text_after_results_begins_a_step(history: Any) -> None:
    """Text before the results stays in the step of the call, so that the model reads text after them as later."""
    kinds = [part["type"] for part in history(fold_log(scenarios.load_events("parallel_calls")))[-1]["parts"]]
    step, text, tool, thought = "step-start", "text", "dynamic-tool", "reasoning"
    assert kinds == [step, text, tool, tool, tool, thought, text, tool, step, text]


def test_messages_are_one_per_turn_and_one_between_turns(history: Any) -> None:
    """S2.9: ids are those of entries and turns, so they are the same on every read."""
    messages = history(fold_log(scenarios.load_events("two_turns")))
    assert [(message["id"], message["role"]) for message in messages] == [
        ("msg-2", "user"),
        ("turn-first", "assistant"),
        ("msg-7", "assistant"),
        ("msg-10", "user"),
        ("turn-second", "assistant"),
        ("msg-12", "user"),
        ("turn-third", "assistant"),
    ]


def test_user_attachments_are_files_or_data_parts(history: Any) -> None:
    """Files that the client can show are file parts; other attachments are data parts, which no model receives."""
    assert history(fold_log(scenarios.load_events("plan_mode_commands")))[0]["parts"] == [
        {"type": "text", "text": "Plan it."},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "data-block", "data": {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}},
    ]


@pytest.mark.parametrize("name", ["parallel_calls", "two_turns", "approval_granted", "streamed_arguments"])
def test_entries_from_a_checkpoint_give_the_same_messages(history: Any, name: str) -> None:
    """C9: the same as entries that are folded from the log."""

    async def read() -> tuple[list[Message], list[Message]]:
        async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
            for draft in scenarios.load_drafts(name):
                await ledger.log.append("s", [draft])
                await ledger.log.project("s")
            return history(await ledger.snapshot("s")), history(await ledger.log.state_at("s"))

    stored, derived = asyncio.run(read())
    assert stored == derived


# JSON in JavaScript

KEYS = st.sampled_from(
    ["a", "__proto__", "(__proto__)", "((__proto__))", "constructor", "(constructor)", "prototype", "toString"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**53 - 2, 2**53 + 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def member_counts(value: Any) -> Any:
    """Return the structure of a value without keys and scalars."""
    if isinstance(value, dict):
        return [member_counts(member) for member in value.values()]
    return [member_counts(item) for item in value] if isinstance(value, list) else 0


def find_unsafe(value: Any) -> Iterator[Any]:
    """Yield the keys and numbers that JavaScript would refuse or round."""
    if isinstance(value, dict):
        yield from (key for key in value if key in ("__proto__", "constructor"))
        yield from (unsafe for member in value.values() for unsafe in find_unsafe(member))
    elif isinstance(value, list):
        yield from (unsafe for item in value for unsafe in find_unsafe(item))
    elif isinstance(value, int) and abs(value) >= 2**53:
        yield value


@given(JSON)
def test_any_value_is_readable_in_javascript(client: Client, value: Any) -> None:
    """C11: no value ends the client's stream, is rounded or is lost."""
    result = readable(value)
    assert member_counts(result) == member_counts(value)
    assert result == value if not list(find_unsafe(value)) else not list(find_unsafe(result))
    part = {"type": "dynamic-tool", "toolCallId": "1", "toolName": "x", "input": result, "output": result}
    message = {"id": "m", "role": "assistant", "parts": [{**part, "state": "output-available"}]}
    chunks = [{"type": "start", "messageId": "m"}, wire.input_available(part), wire.output(message["parts"][0])]
    (answer,) = client.ask([{"id": 0, "chunks": chunks, "history": [message]}])
    assert answer["error"] is None
    assert answer["message"] == message
    assert answer["valid"] and answer["modelError"] is None
