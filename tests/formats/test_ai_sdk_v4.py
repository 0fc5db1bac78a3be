"""Encode `vercel-v4`: after any event the real client reduces the data stream to the message of the history."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from callslip.api.ledger import open_ledger
from callslip.formats import registry
from callslip.formats.ai_sdk_v4 import format_messages_to_vercel
from callslip.formats.ai_sdk_v4.encode import history
from callslip.formats.ai_sdk_v4.stream import STREAM, open_stream
from callslip.formats.base import Restart
from callslip.formats.js_json import readable
from callslip.formats.outcome import is_open
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message as MessageEntry
from callslip.model.entries import ToolCall
from callslip.model.events import Alias, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.entry_blocks import split_blocks
from callslip.rules.fold import SessionFold
from tests.conftest import LONG
from tests.formats.test_ai_sdk_v4_rows import call, row, time, weather
from tests.support import scenarios, stream_checks
from tests.support.strategies import MemoryLedger, scripts, write_script
from tests.support.stream_checks import Client, Job, Law, fold_log

Message = dict[str, Any]

ONE = (Alias("t", "one"),)
PROPOSED = ev.CallProposed(aliases=ONE, tool_name="bash", input={"a": 1})
APPROVAL_REQUEST: list[Event] = [PROPOSED, ev.ApprovalRequested(aliases=ONE)]
COMPLETED = ev.CallCompleted(aliases=ONE, output="out")


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    """The real client, one Node process for all tests of this file."""
    process = Client(node, "reduce_v4.mjs")
    yield process
    process.close()


@pytest.fixture(scope="module")
def law(client: Client) -> Law:
    return Law(client, "vercel-v4", find_message, is_as_streamed)


def find_message(messages: list[Message], turn: str) -> Message | None:
    """Return the message of a turn, if it has begun, without its time, for which the client uses its own clock."""
    message = next((candidate for candidate in messages if stream_checks.is_answer(candidate, turn)), None)
    return message and {name: value for name, value in message.items() if name != "createdAt"}


def is_as_streamed(shown: Message | None, expected: Message | None) -> bool:
    """Return whether the client has a message of the history, in which only notes about open things may follow.

    Outside of turns a message is open until the next one, although everything in it may have ended.
    """
    if shown is None or expected is None:
        return shown is expected
    count = len(shown["annotations"])
    sent, unsent = expected["annotations"][:count], expected["annotations"][count:]
    is_open = not any(note["isComplete"] for note in unsent if not note.get("messageId", "").startswith("msg-"))
    return is_open and stream_checks.is_equal(shown, {**expected, "annotations": sent})


def check_histories(client: Client, log: Sequence[Event], histories: list[list[Message]]) -> None:
    """Check that a model can continue every history without an open call."""
    state, jobs = SessionFold(), list[Job]()
    seqs = set(stream_checks.sample_items(range(len(log))))
    for seq, (event, messages) in enumerate(zip(log, histories[1:], strict=True)):
        state.apply(event)
        if seq in seqs and not any(isinstance(entry, ToolCall) and is_open(entry) for entry in state.entries.values()):
            jobs.append({"id": 0, "history": messages[::-1]})
    for answer in client.ask(jobs):
        assert answer["modelError"] is None
        assert not answer["model"]["missing"] and not answer["model"]["empty"]
        assert len(set(answer["model"]["calls"])) == len(answer["model"]["calls"])


# Restarts

ANSWERED = "a request for approval was closed"
REPAIRED = "a text was repaired"
UNNAMED = "a call was changed before its arguments came"
RESTARTS: dict[str, list[str]] = {
    "approval_expired": [ANSWERED],
    "approval_granted": [ANSWERED],
    "approval_granted_with_other_input": [ANSWERED],
    "approval_refused": [ANSWERED],
    "approval_superseded": [ANSWERED] * 2,
    "approval_withdrawn": [ANSWERED],
    "cumulative_text": [REPAIRED] * 2,
    "cumulative_text_ends_early": [REPAIRED] * 2,
    "streamed_arguments": [UNNAMED, ANSWERED],
    "told_piece_by_piece": [UNNAMED] * 2 + [ANSWERED] * 2,
    "turn_cancelled": [ANSWERED],
}


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_stream_restarts_only_if_the_protocol_requires_it(name: str) -> None:
    """Other changes are sent on the open connection, since an application notices a restart."""
    assert stream_checks.list_restarts("vercel-v4", scenarios.load_events(name)) == RESTARTS.get(name, [])


def test_every_event_requests_the_restart_until_a_replay() -> None:
    """Also with an encoder that starts in the middle of the turn."""
    log = scenarios.load_events("approval_granted")
    encoder, joined = open_stream(), open_stream(fold_log(log[:5]))
    restarts = [isinstance(encoder.feed(event), Restart) for event in log]
    assert restarts == [False] * 5 + [True] * 5
    assert all(isinstance(joined.feed(event), Restart) for event in log[5:])
    assert encoder.opening() == joined.opening()
    assert encoder.finished and encoder.feed(structs.replace(log[0], turn="t2", seq=11)) == []


def test_the_last_chunk_before_a_restart_changes_no_message(client: Client) -> None:
    """The chunk asks the application to reconnect; without a message it creates none."""
    log = scenarios.load_events("approval_granted")
    encoder = open_stream()
    answers = [encoder.feed(event) for event in log[:6]]
    assert isinstance(answers[-1], Restart)
    sent = [chunk for chunks in answers[:-1] for chunk in chunks]
    before, after = client.ask([{"id": 0, "chunks": sent}, {"id": 0, "chunks": [*sent, *answers[-1].chunks]}])
    assert after["error"] is None and after["message"] == before["message"]
    assert (before["data"], after["data"]) == ([], [{"type": "restart"}])
    empty_turn = open_stream(fold_log(log[:1])).feed(log[1])
    assert isinstance(empty_turn, Restart) and empty_turn.chunks == ()


# Start and end of a stream


def stream_of(log: Sequence[Event]) -> list[Any]:
    """Return all live chunks of the first turn."""
    encoder = open_stream()
    return [chunk for event in log for chunk in encoder.feed(event)]


def test_a_stream_finishes_after_the_last_call_of_its_turn() -> None:
    """C5: a call may end shortly after its turn; the stream shows its result and then ends."""
    log = scenarios.load_events("two_turns")
    encoder = open_stream()
    answers = [encoder.feed(event) for event in log[:6]]
    assert answers[4] == [] and isinstance(log[4], ev.TurnEnded)
    assert [chunk[0] for chunk in answers[5]] == ["a", "8", "8", "e", "d"]
    assert encoder.finished and encoder.close("bye") == []


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content-filter"),
        ("cancelled", "other"),
        ("eof", "error"),
    ],
)
def test_the_client_reads_the_end_of_the_turn(client: Client, reason: str, finish_reason: str) -> None:
    """Every stop reason of a turn has a finish reason that the client knows."""
    log = write_script([ev.TurnStarted(), ev.MessageDelta(text="Hi."), ev.TurnEnded(reason=reason)]).log
    (answer,) = client.ask([{"id": 0, "chunks": stream_of(log)}])
    assert (answer["error"], answer["finish"]) == (None, finish_reason)


def test_an_empty_turn_gives_no_message(client: Client) -> None:
    """Neither in the stream nor in the history."""
    log = write_script([ev.TurnStarted(), ev.TurnEnded()]).log
    chunks = stream_of(log)
    assert chunks == [["d", {"finishReason": "stop"}]]
    assert client.ask([{"id": 0, "chunks": chunks}])[0]["message"] is None
    assert history(fold_log(log)) == []


def test_a_stream_closed_by_the_server_has_the_reason(client: Client) -> None:
    """Messages that the client has received stay unchanged."""
    encoder = open_stream(fold_log(scenarios.load_events("parallel_calls")[:8]))
    sent = encoder.opening()
    before, after = client.ask(
        [{"id": 0, "chunks": sent}, {"id": 0, "chunks": [*sent, *encoder.close("the server stops")]}]
    )
    assert after["error"] == "the server stops" and after["message"] == before["message"]


def test_a_multi_step_client_does_not_resend_an_answered_turn(client: Client) -> None:
    """The client looks for calls in the last step; without a `step-start` it would send the turn again."""
    log = write_script([ev.TurnStarted(), PROPOSED, COMPLETED, ev.MessageDelta(text="Done."), ev.TurnEnded()]).log
    waiting, answered = client.ask([{"id": 0, "chunks": stream_of(part)} for part in (log[:-2], log)])
    assert [part["type"] for part in answered["message"]["parts"]][-2:] == ["step-start", "text"]
    assert (waiting["again"], answered["again"]) == (True, False)


def test_no_chunk_about_a_call_follows_its_result() -> None:
    """S4.7: in any scenario."""
    for name in scenarios.NAMES:
        encoder, ended = open_stream(), set[str]()
        for event in scenarios.load_events(name):
            answer = encoder.feed(event)
            for code, value in encoder.opening() if isinstance(answer, Restart) else answer:
                if isinstance(answer, Restart):
                    ended.clear()
                    break
                assert code not in ("9", "b") or value["toolCallId"] not in ended, name
                ended |= {value["toolCallId"]} if code == "a" else set()


def test_a_detached_call_changes_in_place(client: Client, law: Law) -> None:
    """A change after its answer corrects the call without showing it as running again."""
    drafts = [ev.CallProposed(aliases=ONE, scope="detached"), ev.MessageDelta(text="Queued.")]
    log = write_script([ev.TurnStarted(), *drafts, ev.CallInput(aliases=ONE, tool_name="bash", input={"a": 1})]).log
    law.check_log(log, stream_checks.resume_points(log))
    assert [code for code, _ in stream_of(log)] == ["f", "b", "9", "a", "8", "e", "f", "0", "a"]


def test_a_change_of_a_finished_turn_requests_a_replay() -> None:
    """The end of a detached call does not change its turn, but edited arguments do."""
    pieces = ev.CallInputDelta(aliases=ONE, text='{"a": 1}')
    turn = [ev.TurnStarted(), ev.CallProposed(aliases=ONE, scope="detached"), pieces, ev.TurnEnded()]
    answers: list[Any] = []
    for last in (COMPLETED, ev.CallInput(aliases=ONE, input={"b": 2})):
        log = write_script([*turn, last]).log
        encoder = open_stream(fold_log(log[:-1]))
        assert encoder.opening()[-1][0] == "d" and encoder.finished
        answers.append(encoder.feed(log[-1]))
    assert answers == [[], Restart("the turn continued after its end", (["2", [{"type": "restart"}]],))]


@pytest.mark.parametrize("answer", [ev.ApprovalGranted(aliases=ONE), ev.ApprovalRefused(aliases=ONE)])
def test_a_request_in_a_later_turn_does_not_change_the_message(law: Law, answer: Event) -> None:
    """A call with an approval request in a later turn shows only the events of its own turn."""
    between = [ev.TurnEnded(), ev.TurnStarted()]
    log = write_script(
        [ev.TurnStarted(), PROPOSED, *between, APPROVAL_REQUEST[1], answer, COMPLETED, ev.TurnEnded()]
    ).log
    law.check_log(log, stream_checks.resume_points(log))
    (message,) = history(fold_log(log))
    validated = "accepted" if isinstance(answer, ev.ApprovalGranted) else "rejected"
    assert message["annotations"][0] == {"toolCallId": "one", "validated": validated, "isComplete": True}


# On the wire


def frame_all(chunks: Iterable[Any]) -> bytes:
    return b"".join(map(STREAM.frame, chunks))


@contextmanager
def serving(body: bytes) -> Iterator[str]:
    """Run a server that answers every request with these bytes, 7 at a time, and yield its address."""

    class StreamHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in STREAM.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for start in range(0, len(body), 7):
                self.wfile.write(body[start : start + 7])
                self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), StreamHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("name", ["hostile_strings", "parallel_calls"])
def test_the_client_reads_the_stream_from_a_socket(client: Client, name: str) -> None:
    """The message equals the history, for bytes split at any position and with empty lines between the chunks."""
    log = scenarios.load_events(name)
    body = b"\n".join(map(STREAM.frame, stream_of(log))) + b"\n"
    with serving(body) as url:
        (answer,) = client.ask([{"id": 0, "url": url}])
    assert (answer["error"], answer["finish"]) == (None, "stop")
    assert answer["message"] == find_message(json.loads(codec.encode(history(fold_log(log)))), "t1")
    assert answer["headers"]["content-type"] == "text/plain; charset=utf-8"
    assert answer["headers"]["x-vercel-ai-data-stream"] == "v1"


def test_a_chunk_is_one_line() -> None:
    """The client splits the stream at line feeds only."""
    chunks = stream_of(scenarios.load_events("hostile_strings"))
    lines = frame_all(chunks).split(b"\n")
    assert lines.pop() == b""
    assert [[line[:1].decode(), json.loads(line[2:])] for line in lines] == chunks
    assert not STREAM.events and registry.streaming("vercel-v4") is STREAM


def test_the_stream_grows_linearly_with_its_chunks(scale: int) -> None:
    """C12: incomplete arguments and output are not sent."""

    def stream_size(count: int) -> int:
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
        return len(frame_all(stream_of(log)))

    few, many = stream_size(200), stream_size(400 * scale)
    assert many < 2.1 * scale * few


def test_ten_thousand_chunks_stream_as_their_history(law: Law) -> None:
    """C12: the client reads a long turn to its end, with the right message at every checked event."""
    drafts: list[Event] = [ev.TurnStarted()]
    for number in range(20):
        alias = (Alias("t", str(number)),)
        drafts += [ev.MessageDelta(text=f"{n} ", chunks="delta") for n in range(498)]
        drafts += [ev.CallInputDelta(aliases=alias, text='{"n": 1}'), ev.CallStarted(aliases=alias)]
        drafts += [ev.CallCompleted(aliases=alias, output=number)]
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


# Import rows, export messages


async def import_and_export(rows: list[Any]) -> list[Message]:
    """Import rows into a ledger and return the exported messages."""
    async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
        await import_lines(ledger.log, "thread", "rows", [json.dumps(row).encode() for row in rows])
        return history(await ledger.snapshot("thread"))


def without_steps(message: Message) -> list[Any]:
    return [part for part in message["parts"] if part["type"] != "step-start"]


@pytest.mark.anyio
async def test_rows_imported_into_a_ledger_give_the_same_messages() -> None:
    """S4.8, ROW4: text, call, text; the messages are the same with and without a ledger, but for the steps."""
    answer, question = await import_and_export(weather())
    expected_answer, expected_question = format_messages_to_vercel(weather(), {})
    assert [part["type"] for part in without_steps(answer)] == ["text", "tool-invocation", "text"]
    assert without_steps(answer) == expected_answer["parts"]
    assert {**answer, "parts": without_steps(answer)} == expected_answer
    assert question == expected_question
    assert (answer["id"], answer["createdAt"], answer["content"]) == ("m4", time(4), "The weather in Paris is 20°C")


@pytest.mark.anyio
@pytest.mark.parametrize("validated", [True, False, None])
async def test_annotations_equal_those_of_the_imported_rows(validated: bool | None) -> None:
    """S4.2, S4.3: the annotations of calls are those of the rows that they were imported from."""
    rows = [
        row(1, "USER", {"content": "Go."}),
        row(2, "AI_TOOL", {"content": "", "reasoning": "Hm."}, [call("a", validated), call("b")]),
        row(3, "TOOL", {"tool_call_id": "a", "content": "first"}),
        row(4, "TOOL", {"tool_call_id": "b", "content": "second"}),
        row(5, "AI_MESSAGE", {"content": "Done."}),
        row(6, "USER", {"content": "Thanks."}),
    ]
    exported, expected = await import_and_export(rows), format_messages_to_vercel(rows, {})
    assert [message["role"] for message in exported] == [message["role"] for message in expected]
    notes, expected_notes = exported[1]["annotations"], expected[1]["annotations"]
    assert notes == expected_notes
    types = [part["type"] for part in expected[1]["parts"]]
    assert (
        [part["type"] for part in without_steps(exported[1])]
        == types
        == ["reasoning", *["tool-invocation"] * 2, "text"]
    )


@pytest.mark.parametrize("first", ["call", "thought", "text", "nothing"])
def test_a_stored_message_gives_its_id_to_the_live_message(law: Law, first: str) -> None:
    """ROW4: when the text of its row begins, after anything; only the text of the row is its content."""
    before: dict[str, list[Event]] = {
        "call": [ev.MessageDelta(text="Look.", message_id="m2", chunks="delta"), PROPOSED, COMPLETED],
        "thought": [ev.ThoughtDelta(text="Hm.", message_id="m2", chunks="delta")],
        "text": [ev.MessageDelta(text="Look.", message_id="m2", chunks="delta"), ev.MessageEnded()],
        "nothing": [],
    }
    last = ev.MessageDelta(text="Done.", message_id="m4", chunks="delta", names_message=True)
    log = write_script([ev.TurnStarted(), *before[first], last, ev.TurnEnded()]).log
    stored = Law(
        law.client,
        "vercel-v4",
        lambda messages, turn: find_message(messages, turn) or find_id(messages, "m4"),
        lambda shown, expected: is_as_streamed(_without_content(shown), _without_content(expected)),
    )
    stored.check_log(log, stream_checks.resume_points(log))
    (message,) = history(fold_log(log))
    assert (message["id"], message["content"]) == ("m4", "Done.")
    assert message["annotations"][-1] == {"messageId": "m4", "isComplete": True}


def find_id(messages: list[Message], identity: str) -> Message | None:
    message = next((candidate for candidate in messages if candidate["id"] == identity), None)
    return message and {name: value for name, value in message.items() if name != "createdAt"}


def _without_content(message: Message | None) -> Message | None:
    return message and {**message, "content": ""}


# Content of the messages

STATES: dict[str, list[Event]] = {
    "queued": [PROPOSED],
    "awaiting_approval": APPROVAL_REQUEST,
    "running": [PROPOSED, ev.CallStarted(aliases=ONE)],
    "completed": [PROPOSED, ev.CallCompleted(aliases=ONE, output="out")],
    "failed": [PROPOSED, ev.CallFailed(aliases=ONE, error="no")],
    "denied": [*APPROVAL_REQUEST, ev.ApprovalRefused(aliases=ONE, reason="no")],
    "cancelled": [*APPROVAL_REQUEST, ev.ApprovalWithdrawn(aliases=ONE, reason="no")],
    "expired": [PROPOSED, ev.CallExpired(aliases=ONE, reason="no")],
    "lost": [PROPOSED, ev.CallLost(aliases=ONE, reason="no")],
}


def encode_call(*drafts: Event, turn: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """Return the only call of these events, and the annotations of calls in its message."""
    (message,) = history(write_script([*([ev.TurnStarted()] if turn else []), *drafts]).state)
    (part,) = [part for part in message["parts"] if part["type"] == "tool-invocation"]
    return part["toolInvocation"], [note for note in message["annotations"] if "toolCallId" in note]


@pytest.mark.parametrize("state", STATE_NAMES)
def test_every_state_has_its_name(state: str) -> None:
    """C13, S4.2, ROW3: from the state table, in the part and in the annotation of the call."""
    call, notes = encode_call(*STATES[state])
    assert call["state"] == STATE_NAMES[state].v4
    assert ("result" in call) == (STATE_NAMES[state].v4 == "result")
    assert not STATE_NAMES[state].error or list(call["result"]) == ["error"]
    assert [note["isComplete"] for note in notes] == [STATE_NAMES[state].complete]


@pytest.mark.parametrize("state", STATE_NAMES)
def test_every_call_outside_of_turns_has_an_annotation(state: str) -> None:
    """S4.2: as in a turn."""
    _, (note,) = encode_call(*STATES[state], turn=False)
    assert note["isComplete"] == STATE_NAMES[state].complete


@pytest.mark.parametrize(
    ("drafts", "validated"),
    [
        ([PROPOSED, COMPLETED], "not_required"),
        (APPROVAL_REQUEST, "pending"),
        ([*APPROVAL_REQUEST, ev.ApprovalGranted(aliases=ONE), COMPLETED], "accepted"),
        ([*APPROVAL_REQUEST, ev.ApprovalRefused(aliases=ONE)], "rejected"),
        ([PROPOSED, ev.CallDenied(aliases=ONE)], "rejected"),
        ([*APPROVAL_REQUEST, COMPLETED], "not_required"),
        ([*APPROVAL_REQUEST, ev.ApprovalWithdrawn(aliases=ONE)], "not_required"),
        ([*APPROVAL_REQUEST, APPROVAL_REQUEST[1], ev.ApprovalGranted(aliases=ONE), COMPLETED], "accepted"),
    ],
)
def test_validated_is_the_decision_of_the_user(drafts: list[Event], validated: str) -> None:
    """Accepted, rejected, pending, or not required."""
    _, (note,) = encode_call(*drafts)
    assert note["validated"] == validated
    assert ("approvalId" in note) == (validated == "pending")


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (ev.CallCompleted(output={"a": [1]}), {"a": [1]}),
        (ev.CallCompleted(output=False), False),
        (ev.CallCompleted(output=2**60), str(2**60)),
        (ev.CallCompleted(content=[{"type": "text", "text": "shown"}]), "shown"),
        (ev.CallCompleted(), "printed\n"),
        (ev.CallFailed(error="no such file"), {"error": "no such file\nprinted\n"}),
        (ev.CallFailed(error={"code": 7}), {"error": {"code": 7}, "output": "printed\n"}),
        (ev.CallFailed(error=["x", 1], output={"a": 1}), {"error": ["x", 1], "output": {"a": 1}}),
        (ev.CallFailed(error={"message": "boom"}, output={"a": 1}), {"error": "boom", "output": {"a": 1}}),
        (ev.CallCancelled(reason="stopped"), {"error": "This call was cancelled: stopped\nprinted\n"}),
    ],
)
def test_a_result_is_the_output_or_the_reason(end: ev.CallEnd, result: Any) -> None:
    """C5: the output as a value, or a sentence for the model."""
    printed = ev.CallProgress(aliases=ONE, text="printed\n")
    call, _ = encode_call(ev.CallStarted(aliases=ONE), printed, structs.replace(end, aliases=ONE))
    assert call["result"] == result


@pytest.mark.parametrize(
    ("drafts", "args"),
    [
        ([ev.CallStarted(aliases=ONE, input="ls")], {"input": "ls"}),
        ([ev.CallStarted(aliases=ONE, input=[1])], {"input": [1]}),
        ([ev.CallStarted(aliases=ONE)], {}),
        ([ev.CallStarted(aliases=ONE), ev.CallInputDelta(aliases=ONE, text='{"a": ')], {}),
        ([ev.CallInputDelta(aliases=ONE, text='{"a": 1}'), COMPLETED], {"a": 1}),
        ([ev.CallInputDelta(aliases=ONE, text='{"a": '), COMPLETED], {"input": '{"a": '}),
        ([ev.CallStarted(aliases=ONE, input={"n": 2**53, "__proto__": 1})], {"n": str(2**53), "(__proto__)": 1}),
    ],
)
def test_arguments_are_always_an_object(drafts: list[Event], args: Any) -> None:
    """C11: other values end the client's stream; incomplete arguments are shown when no more can follow."""
    assert encode_call(*drafts)[0]["args"] == args


def test_a_call_with_streaming_arguments_is_partial() -> None:
    """The page shows the call at its position, without parsing incomplete arguments."""
    call, notes = encode_call(
        ev.CallProposed(aliases=ONE, tool_name="bash"), ev.CallInputDelta(aliases=ONE, text='{"a')
    )
    assert call == {"state": "partial-call", "step": 0, "toolCallId": "one", "toolName": "bash"}
    assert notes == [{"toolCallId": "one", "validated": "not_required", "isComplete": False}]


@pytest.mark.parametrize("events", [APPROVAL_REQUEST[1:], [ev.CallStarted(aliases=ONE), ev.CallRequeued(aliases=ONE)]])
def test_a_call_started_without_arguments_is_not_partial(events: list[Event]) -> None:
    """A call that was approved or started does not return to the partial state."""
    answer = [ev.ApprovalGranted(aliases=ONE)] if events == APPROVAL_REQUEST[1:] else []
    call, _ = encode_call(ev.CallProposed(aliases=ONE, tool_name="bash"), *events, *answer)
    assert (call["state"], call["args"]) == ("call", {})


def test_a_detached_call_stays_queued_in_its_message() -> None:
    """S3.1: its result for the model is its correlation id; the final result is not in the message."""
    log = scenarios.load_events("detached_call")
    (entry,) = [entry for entry in fold_log(log).entries.values() if isinstance(entry, ToolCall)]
    message = history(fold_log(log))[-2]
    (part,) = [part for part in message["parts"] if part["type"] == "tool-invocation"]
    assert entry.status == "completed"
    assert part["toolInvocation"]["result"] == {"status": "queued", "correlation_id": entry.call_id}


@pytest.mark.anyio
async def test_output_stored_as_a_blob_has_a_preview_and_its_size() -> None:
    """The result is a preview; the annotation has the full size and the blob."""
    small = structs.replace(scenarios.NO_REAPER, inline_limit=100, preview=10)
    end = ev.CallCompleted(aliases=ONE, output="x" * 1000, exit_status=3)
    log = await scenarios.record_events([ev.TurnStarted(), ev.CallStarted(aliases=ONE), end], settings=small)
    (message,) = history(fold_log(log))
    note = message["annotations"][0]
    assert message["parts"][-1]["toolInvocation"]["result"] == "x" * 10
    assert (note["truncated"], note["size"], note["exitStatus"]) == (True, 1000, 3) and note["blob"]


def test_messages_are_newest_first_with_one_message_per_turn() -> None:
    """S4.1, S4.4: ids are those of entries and turns, so they are the same on every read."""
    messages = history(fold_log(scenarios.load_events("two_turns")))
    assert [(message["id"], message["role"]) for message in messages] == [
        ("turn-third", "assistant"),
        ("msg-12", "user"),
        ("turn-second", "assistant"),
        ("msg-10", "user"),
        ("msg-7", "assistant"),
        ("turn-first", "assistant"),
        ("msg-2", "user"),
    ]
    assert all(note["messageId"] == m["id"] for m in messages for note in m["annotations"] if "messageId" in note)


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_history_is_made_block_by_block(name: str) -> None:
    """The newest block is first; no message needs another block."""
    log = scenarios.load_events(name)
    for count in range(len(log) + 1) if len(log) < 200 else (len(log),):
        entries = fold_log(log[:count]).snapshot().entries
        assert history(entries) == [message for block in split_blocks(entries)[::-1] for message in history(block)]


@given(scripts())
def test_any_history_is_made_block_by_block(script: list[Event]) -> None:
    """For any texts and calls, in turns and between them."""
    snapshot = write_script(script).state.snapshot()
    blocks = [structs.replace(snapshot, entries=block) for block in split_blocks(snapshot.entries)[::-1]]
    assert history(snapshot) == [message for block in blocks for message in history(block)]
    assert history(snapshot.entries) == [message for block in blocks for message in history(block.entries)]


def test_a_message_is_complete_when_its_turn_has_ended() -> None:
    """S4.2, ROW3: not during a pause of the turn."""
    log = write_script([ev.TurnStarted(), *STATES["completed"], ev.TurnEnded()]).log
    (before,), (after,) = history(fold_log(log[:-1])), history(fold_log(log))
    *notes, open_note = before["annotations"]
    assert open_note == {"messageId": "turn-t1", "isComplete": False}
    assert after["annotations"] == [*notes, {"messageId": "turn-t1", "isComplete": True}]


FILES = [
    {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="},
    {"type": "image", "mimeType": "image/png", "data": "no base64"},
    {"type": "image", "mimeType": "image/png,x", "data": "iVBORw0KGgo="},
    {"type": "resource", "mimeType": "text/plain", "data": "aGk="},
    {"type": "resource_link", "uri": "file:///a.txt"},
    "text",
]


def test_files_of_a_user_are_attachments(client: Client) -> None:
    """Only those that the client accepts; an invalid file would make it refuse the full history."""
    log = write_script([ev.MessageUser(text="See.", content=FILES)]).log
    (message,) = history(fold_log(log))
    assert message["experimental_attachments"] == [
        {"contentType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="},
        {"contentType": "text/plain", "url": "data:text/plain;base64,aGk="},
    ]
    assert client.ask([{"id": 0, "history": [message]}])[0]["modelError"] is None


@pytest.mark.parametrize(("at", "shown"), [(1, "1970-01-01T00:00:00.001Z"), (2**53 - 1, None)])
def test_times_are_in_javascript_iso_format(at: int, shown: str | None) -> None:
    """C11: a time out of range is left out."""
    assert history([MessageEntry(id=1, at=at, role="user", content="Hi.")])[0]["createdAt"] == shown


@pytest.mark.parametrize("name", ["parallel_calls", "two_turns", "approval_pending", "streamed_arguments"])
@pytest.mark.anyio
async def test_entries_from_a_checkpoint_give_the_same_messages(name: str) -> None:
    """C9: a history from a checkpoint equals the history from the fold of the log."""
    async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
        for draft in scenarios.load_drafts(name):
            await ledger.log.append("s", [draft])
            await ledger.log.project("s")
        assert history(await ledger.snapshot("s")) == history(await ledger.log.state_at("s"))


# JSON values in JavaScript

KEYS = st.sampled_from(["a", "__proto__", "(__proto__)", "constructor", "prototype", "(prototype)"])
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


@given(JSON)
def test_any_result_is_read_unchanged_by_the_client(client: Client, value: Any) -> None:
    """C11: no number is rounded, and no key changes a prototype."""
    chunks = [["b", {"toolCallId": "1", "toolName": "x"}], ["9", {"toolCallId": "1", "toolName": "x", "args": {}}]]
    (answer,) = client.ask([{"id": 0, "chunks": [*chunks, ["a", {"toolCallId": "1", "result": readable(value)}]]}])
    assert answer["error"] is None
    assert answer["message"]["parts"][0]["toolInvocation"]["result"] == readable(value)
