"""Encode `ag-ui`: after any event the real client shows the messages of the agent that the history has for the turn."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from msgspec import structs

from callslip.formats import registry
from callslip.formats.ag_ui.encode import STREAM, history, open_stream
from callslip.formats.ag_ui.wire import parse_arguments
from callslip.formats.base import Restart
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Message, ToolCall
from callslip.model.events import Alias, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.fold import SessionFold
from tests.support import scenarios, stream_checks
from tests.support.strategies import scripts, write_script
from tests.support.stream_checks import Client, Job, Law, fold_log, resume_points

AgUiMessage = dict[str, Any]
Chunk = dict[str, Any]

ONE, TWO = (Alias("t", "one"),), (Alias("t", "two"),)
TURN_MESSAGE_ID = re.compile(r"turn-(.*)-\d+(-result)?", re.DOTALL)
BLOCK_MESSAGE_ID = re.compile(r"msg-(\d+)(-result)?")


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    """The real client, one Node process for all tests of this file."""
    process = Client(node, "reduce_ag_ui.mjs")
    yield process
    process.close()


# The law


def of_turn(messages: list[AgUiMessage], turn: str) -> list[AgUiMessage]:
    """Return the agent's messages of a turn, by their ids. The client adds the user's messages itself."""
    if isinstance(turn, stream_checks.BlockName):
        agent = [
            (BLOCK_MESSAGE_ID.fullmatch(message["id"]), message) for message in messages if message["role"] != "user"
        ]
        return [message for match, message in agent if match and int(match[1]) in turn.entries]
    matches = [(TURN_MESSAGE_ID.fullmatch(message["id"]), message) for message in messages]
    return [message for match, message in matches if match and match[1] == turn]


def parse_calls(messages: list[AgUiMessage]) -> list[AgUiMessage]:
    """Return messages with parsed arguments: their spacing does not matter."""
    return [
        {**message, "toolCalls": [_parse_call(call) for call in message.get("toolCalls", ())]} for message in messages
    ]


def _parse_call(call: AgUiMessage) -> AgUiMessage:
    function = call["function"]
    arguments = codec.encode(parse_arguments(function["arguments"]))
    return {**call, "function": {**function, "arguments": json.loads(arguments, parse_int=str)}}


class ArgumentParsingClient:
    """A client whose answers have parsed arguments."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ask(self, jobs: Sequence[Job]) -> list[Job]:
        answers = self._client.ask(jobs)
        return [
            {**answer, "messages": [parse_calls(shown or []) for shown in answer["messages"]]} for answer in answers
        ]


def check_log(client: Client, log: Sequence[Event], resume_after: Iterable[int]) -> None:
    """Check the law for one log: a replay equals the history exactly, a live stream after parsing the arguments."""
    live = Law(ArgumentParsingClient(client), "ag-ui", lambda messages, turn: parse_calls(of_turn(messages, turn)))  # pyright: ignore
    histories, turns = live.histories(log), stream_checks.list_turns(log)
    segments = [segment for turn in turns for segment in live.connections(log, turn)]
    live.check_segments(segments, histories)
    replays = live.replays(log, turns)
    Law(client, "ag-ui", of_turn).check_segments(replays, histories)
    for after in resume_after:
        part = log[: after + stream_checks.RESUME_LIMIT]
        live.check_segments([s for turn in turns for s in live.connections(part, turn, after, resume=False)], histories)
    late = [segment for turn in turns for segment in live.late_connections(log, turn)]
    live.check_segments(late, histories)
    for segment in (*segments, *replays, *late):
        check_order(segment.chunks)
    check_sendable(client, histories)


def check_sendable(client: Client, histories: list[list[AgUiMessage]]) -> None:
    """Check that the client accepts every history unchanged, and sends all of it except activities."""
    nonempty = stream_checks.sample_items(messages for messages in histories if messages)
    for messages, answer in zip(nonempty, client.ask([{"id": 0, "history": one} for one in nonempty]), strict=True):
        assert answer["error"] is None
        assert answer["sent"] == [message for message in messages if message["role"] != "activity"]
        assert len({message["id"] for message in messages}) == len(messages)
        answered = {message["toolCallId"] for message in messages if message["role"] == "tool"}
        calls = {call["id"]: call["function"] for message in messages for call in message.get("toolCalls", ())}
        assert answered <= set(calls)
        for call in answered:
            json.loads(calls[call]["arguments"])  # A model API parses the arguments of an answered call.


def check_order(chunks: list[Chunk]) -> None:
    """Check what the client does not: each id opened once, and one result per call, after the end of its arguments."""
    opened: set[str] = set()
    ended: set[str] = set()
    with_result: set[str] = set()
    states: dict[str, Chunk] = {}
    for position, chunk in enumerate(chunks):
        kind = chunk["type"]
        assert (kind == "RUN_STARTED") == (position == 0)
        assert kind not in ("RUN_FINISHED", "RUN_ERROR") or position == len(chunks) - 1
        assert None not in chunk.values() and type(chunk.get("timestamp", 0)) is int
        if kind in ("TEXT_MESSAGE_START", "REASONING_MESSAGE_START", "ACTIVITY_SNAPSHOT", "TOOL_CALL_RESULT"):
            add_once(chunk["messageId"], opened)
        if kind == "TOOL_CALL_START":
            add_once(f"call {chunk['toolCallId']}", opened)
            assert chunk["parentMessageId"] and chunk["toolCallName"]
        if kind == "TOOL_CALL_END":
            add_once(chunk["toolCallId"], ended)
        if kind == "TOOL_CALL_RESULT":
            assert chunk["toolCallId"] in ended and isinstance(chunk["content"], str)
            add_once(chunk["toolCallId"], with_result)
        if kind == "CUSTOM":
            call, status = chunk["value"]["toolCallId"], chunk["value"]
            assert states.get(call) != status and call not in with_result
            states[call] = status
        if kind == "RUN_FINISHED" and chunk.get("outcome", {}).get("type") != "interrupt":
            assert ended == with_result


def add_once(identity: str, seen: set[str]) -> None:
    assert identity not in seen, f"{identity} is sent twice"
    seen.add(identity)


def split_turns(entries: list[Entry]) -> list[list[Entry]]:
    """Group entries by turn; outside of turns, a user message begins a group."""
    group_numbers, number = list[int](), 0
    for entry in entries:
        number += isinstance(entry, Message) and entry.role == "user" and not entry.turn
        group_numbers.append(number)
    pairs = zip(entries, group_numbers, strict=True)
    return [[entry for entry, _ in block] for _, block in groupby(pairs, key=lambda pair: (pair[0].turn, pair[1]))]


@given(scripts())
def test_a_history_is_made_turn_by_turn(script: list[Event]) -> None:
    """S4.5: pages of complete turns have every message once, and no call without its result."""
    entries = write_script(script).state.snapshot().entries
    assert history(entries) == [message for block in split_turns(entries) for message in history(block)]


# Restarts

CONTINUED, REPLACED, RENAMED = (
    "the turn continued after its end",
    "the arguments of a call were replaced",
    "a call got another name",
)
RESTARTS = {
    "approval_expired": [CONTINUED],
    "approval_granted": [CONTINUED],
    "approval_granted_with_other_input": [REPLACED],
    "approval_pending": [REPLACED],
    "approval_refused": [CONTINUED],
    "approval_superseded": [REPLACED, CONTINUED],
    "approval_withdrawn": [CONTINUED],
    "turn_cancelled": [CONTINUED],
    "cumulative_text": ["a text was repaired"] * 2,
    "cumulative_text_ends_early": ["a text was repaired"] * 2,
    "hostile_strings": [RENAMED],
    "streamed_arguments": [RENAMED, REPLACED, CONTINUED],
    "told_piece_by_piece": [RENAMED, RENAMED, REPLACED, REPLACED, RENAMED, CONTINUED, CONTINUED, RENAMED, REPLACED],
}


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_stream_restarts_only_if_the_protocol_requires_it(name: str) -> None:
    """Other changes are sent on the open connection, since an application notices a restart."""
    assert stream_checks.list_restarts("ag-ui", scenarios.load_events(name)) == RESTARTS.get(name, [])


def test_every_event_requests_the_restart_until_a_replay() -> None:
    """Also with an encoder that starts in the middle of the turn."""
    log = scenarios.load_events("approval_granted")
    encoder, joined = open_stream(), open_stream(fold_log(log[:5]))
    restarts = [isinstance(encoder.feed(event), Restart) for event in log]
    assert restarts == [False] * 5 + [True] * 5
    assert all(isinstance(joined.feed(event), Restart) for event in log[5:])
    assert encoder.opening() == joined.opening()
    assert encoder.finished and encoder.feed(structs.replace(log[0], turn="t2", seq=11)) == []


def test_a_restart_ends_the_run_with_an_error_code(client: Client) -> None:
    """The code tells the application to reconnect, and the messages do not show it."""
    log = write_script([ev.TurnStarted(), ev.CallProposed(aliases=ONE, tool_name="a"), ev.MessageDelta(text="Hi.")]).log
    encoder = open_stream(fold_log(log))
    chunks = encoder.opening()
    restart = encoder.feed(ev.CallProgress(call=log[1].call, seq=9, tool_name="b"))  # pyright: ignore
    assert isinstance(restart, Restart)
    before, after = client.ask([{"id": 0, "chunks": chunks}, {"id": 0, "chunks": [*chunks, *restart.chunks]}])
    assert after["error"] is None and (before["outcome"], after["outcome"]) == (None, "error")
    assert restart.chunks[0]["code"] == "restart"
    assert after["message"] == before["message"]


@pytest.mark.parametrize(
    ("pieces", "final", "restarts"),
    [
        (['{"a"', ': [1, "é"]}'], {"a": [1, "é"]}, []),
        (['{"b": 1, "a": "\\u00e9"}'], {"a": "é", "b": 1}, []),
        (["{}"], {}, []),
        ([" "], {}, []),
        (["ls -l"], "ls -l", []),
        (['{"a": 1'], {"a": 1}, [REPLACED]),
        (['{"a": 1}'], {"a": True}, [REPLACED]),
        (['{"a": 1}'], {"a": 2}, [REPLACED]),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict | str) else None,
)
def test_streamed_arguments_with_equal_json_need_no_restart(
    client: Client, pieces: list[str], final: Any, restarts: list[str]
) -> None:
    """C10: streamed and final arguments may differ in white space."""
    drafts: list[Event] = [ev.TurnStarted(), ev.CallProposed(aliases=ONE, tool_name="t")]
    drafts += [ev.CallInputDelta(aliases=ONE, text=piece) for piece in pieces]
    log = write_script([*drafts, ev.CallInput(aliases=ONE, input=final), ev.CallCompleted(aliases=ONE)]).log
    assert stream_checks.list_restarts("ag-ui", log) == restarts
    check_log(client, log, resume_points(log))


def test_arguments_are_sent_when_they_are_complete() -> None:
    """Agents announce a call before its arguments; an initial empty object is not sent yet."""
    log = write_script(
        [
            ev.TurnStarted(),
            ev.CallProposed(aliases=ONE, tool_name="read", input={}),
            ev.CallStarted(aliases=ONE, input={"path": "a"}),
            ev.CallStarted(aliases=TWO, tool_name="list", input={}),
            ev.CallCompleted(aliases=TWO, output="a"),
        ]
    ).log
    assert stream_checks.list_restarts("ag-ui", log) == []
    chunks = stream_of(log)
    arguments = {chunk["toolCallId"]: chunk["delta"] for chunk in chunks if chunk["type"] == "TOOL_CALL_ARGS"}
    assert arguments == {"one": '{"path":"a"}', "two": "{}"}


def test_repeated_arguments_in_another_key_order_send_nothing(client: Client) -> None:
    """C10: they are equal, and the arguments of a call end once."""
    log = write_script(
        [
            ev.TurnStarted(),
            ev.CallProposed(aliases=ONE, tool_name="t", input={"a": 1, "b": {"c": 2, "d": 3}}),
            ev.CallStarted(aliases=ONE, input={"b": {"d": 3, "c": 2}, "a": 1}),
        ]
    ).log
    assert stream_checks.list_restarts("ag-ui", log) == []
    check_log(client, log, resume_points(log))


def test_argument_chunks_after_complete_arguments_need_a_restart(client: Client) -> None:
    """A client that has received an empty object cannot replace it."""
    drafts = [ev.CallInputDelta(aliases=ONE, text="{}"), ev.CallInput(aliases=ONE, input={})]
    log = write_script([ev.TurnStarted(), *drafts, ev.CallInputDelta(aliases=ONE, text='{"a": 1}')]).log
    assert stream_checks.list_restarts("ag-ui", log) == [REPLACED]
    check_log(client, log, resume_points(log))


def test_a_reader_that_joins_during_a_request_reads_the_same(client: Client) -> None:
    """The arguments in a request stay complete after the answer, for every reader of the stream."""
    log = write_script(
        [
            ev.TurnStarted(),
            ev.CallStarted(aliases=TWO, tool_name="read"),
            ev.CallProposed(aliases=ONE, tool_name="stop"),
            ev.ApprovalRequested(aliases=ONE),
            ev.ApprovalGranted(aliases=ONE),
            ev.CallCompleted(aliases=ONE),
            ev.CallCompleted(aliases=TWO),
            ev.TurnEnded(),
        ]
    ).log
    assert stream_checks.list_restarts("ag-ui", log) == []
    check_log(client, log, resume_points(log))


def test_a_replay_has_results_in_their_original_order() -> None:
    """A reader of a replayed turn receives events in the order in which they happened."""
    log = scenarios.load_events("parallel_calls")
    live, again = stream_of(log), open_stream(fold_log(log)).opening()
    types = ("TEXT_MESSAGE_START", "TOOL_CALL_START", "TOOL_CALL_RESULT")
    order = [
        [chunk.get("messageId", chunk.get("toolCallId")) for chunk in one if chunk["type"] in types]
        for one in (live, again)
    ]
    assert order[0] == order[1] and len(order[0]) > 4


# Start and end of a run


def stream_of(log: Sequence[Event], turn: str = "t1") -> list[Chunk]:
    """Return the chunks of one connection from the start of a log, which must need no restart."""
    encoder = open_stream(turn=turn)
    chunks: list[Chunk] = []
    for event in log:
        answer = encoder.feed(event)
        assert not isinstance(answer, Restart), answer
        chunks += answer
    return chunks


def test_a_stream_without_a_turn_id_takes_the_open_or_last_turn() -> None:
    """Or the first turn, if the session has none yet."""
    log = scenarios.load_events("two_turns")
    assert open_stream(fold_log(log[:10])).turn.name == "second"
    assert open_stream(fold_log(log[:7])).turn.name == "msg-7"
    assert open_stream(fold_log(log[:6])).turn.name == "first"
    encoder = open_stream(None)
    assert encoder.opening() == []
    assert encoder.feed(log[0]) == [{"type": "RUN_STARTED", "threadId": "", "runId": "first"}]


def test_run_and_thread_ids_are_those_of_turn_and_session() -> None:
    """The run id is the turn of the ledger, and the thread id is the session."""
    state = SessionFold("thread-1")
    state.fold(scenarios.load_events("text_only"))
    first, *_, last = open_stream(state).opening()
    assert first == {"type": "RUN_STARTED", "threadId": "thread-1", "runId": "t1"}
    assert (last["threadId"], last["runId"]) == ("thread-1", "t1")


def test_a_stream_finishes_after_the_last_call_of_its_turn() -> None:
    """C5: a call may end shortly after its turn; the stream shows its result and then ends."""
    log = scenarios.load_events("two_turns")
    encoder = open_stream()
    answers = [encoder.feed(event) for event in log[:6]]
    assert answers[4] == [] and isinstance(log[4], ev.TurnEnded)
    assert [chunk["type"] for chunk in answers[5]] == ["TOOL_CALL_RESULT", "RUN_FINISHED"]  # pyright: ignore
    assert encoder.finished and encoder.close("bye") == []


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("end_turn", "success"),
        ("max_tokens", "success"),
        ("refusal", "success"),
        ("cancelled", "cancelled"),
        ("superseded", "cancelled"),
        ("error", "error"),
        ("eof", "error"),
    ],
)
def test_the_client_reads_the_end_of_the_turn(client: Client, reason: str, outcome: str) -> None:
    """Every stop reason has an outcome that the client knows, and no call is left pending."""
    drafts = [ev.TurnStarted(), ev.MessageDelta(text="Hi."), ev.CallStarted(aliases=ONE), ev.CallLost(aliases=ONE)]
    log = write_script([*drafts, ev.TurnEnded(reason=reason, detail="a fuse blew")]).log
    (answer,) = client.ask([{"id": 0, "chunks": (chunks := stream_of(log))}])
    assert answer["error"] is None
    assert (answer["outcome"], answer["pending"], answer["interrupts"]) == (outcome, [], [])
    assert outcome != "error" or chunks[-1]["message"] == "a fuse blew"


def test_an_empty_turn_gives_no_message(client: Client) -> None:
    """Neither in the stream nor in the history."""
    log = write_script([ev.TurnStarted(), ev.TurnEnded()]).log
    (answer,) = client.ask([{"id": 0, "chunks": stream_of(log)}])
    assert (answer["message"], answer["outcome"], answer["error"]) == ([], "success", None)
    assert history(fold_log(log)) == []


def test_a_stream_closed_by_the_server_has_the_reason(client: Client) -> None:
    """Messages that the client has received stay unchanged."""
    encoder = open_stream(fold_log(scenarios.load_events("parallel_calls")[:8]))
    chunks = encoder.opening()
    last = encoder.close("the server stops")
    before, after = client.ask([{"id": 0, "chunks": chunks}, {"id": 0, "chunks": [*chunks, *last]}])
    assert last == [{"type": "RUN_ERROR", "message": "the server stops", "code": "closed"}]
    assert after["error"] is None and after["message"] == before["message"]


def test_the_stream_grows_linearly_with_its_chunks(scale: int) -> None:
    """C12: output that is still streamed is not sent repeatedly."""

    def stream_size(count: int) -> int:
        log = write_script(
            [
                ev.TurnStarted(),
                *(ev.MessageDelta(text="word ", chunks="delta") for _ in range(count)),
                ev.CallStarted(aliases=ONE, input={"n": 1}),
                *(ev.CallProgress(aliases=ONE, text="line\n", progress=n) for n in range(count)),
                *(ev.CallInputDelta(aliases=TWO, text="piece") for _ in range(count)),
                ev.CallCompleted(aliases=ONE),
            ]
        ).log
        return sum(len(STREAM.frame(chunk)) for chunk in stream_of(log))

    few, many = stream_size(200), stream_size(400 * scale)
    assert many < 2.1 * scale * few


# Requests for approval

APPROVAL_REQUEST: list[Event] = [
    ev.TurnStarted(),
    ev.CallProposed(aliases=ONE, tool_name="bash", title="List", kind="execute", input={"command": "ls"}),
    ev.ApprovalRequested(
        aliases=ONE, description="List the files?", options=[{"optionId": "y", "name": "Yes"}], expires_at=1794700000000
    ),
]


def test_an_approval_request_ends_the_run_with_an_interrupt(client: Client) -> None:
    """S2.7: the interrupt has the call, the options and the expiry."""
    memory = write_script(APPROVAL_REQUEST)
    (answer,) = client.ask([{"id": 0, "chunks": stream_of(memory.log)}])
    (interrupt,) = answer["interrupts"]
    call = next(entry for entry in memory.state.entries.values() if isinstance(entry, ToolCall))
    assert (answer["error"], answer["outcome"], answer["message"][0]["id"]) == (None, "interrupt", "turn-t1-2")
    assert (interrupt["id"], interrupt["toolCallId"], interrupt["message"]) == (call.approval, "one", "List the files?")
    assert interrupt["expiresAt"] == "2026-11-14T23:46:40Z"
    assert interrupt["metadata"]["callslip"] == {"callId": call.call_id, "options": [{"optionId": "y", "name": "Yes"}]}
    assert interrupt["responseSchema"]["required"] == ["approved"]


def test_after_the_answer_the_turn_continues_on_a_new_connection() -> None:
    """The connection that ended with the request is closed."""
    memory = write_script([*APPROVAL_REQUEST, ev.ApprovalGranted(aliases=ONE)])
    before, after = open_stream(fold_log(memory.log[:3])), open_stream(fold_log(memory.log))
    assert before.opening()[-1]["type"] == "RUN_FINISHED" and before.finished
    assert after.opening()[-1]["type"] == "CUSTOM" and not after.finished
    assert before.feed(memory.log[3]) == Restart(CONTINUED)
    answer = after.feed(ev.CallCompleted(call=memory.log[1].call, seq=5, output="a"))  # pyright: ignore
    assert not isinstance(answer, Restart) and [chunk["type"] for chunk in answer] == ["TOOL_CALL_RESULT"]


def test_a_run_continues_until_only_waiting_calls_are_left(client: Client) -> None:
    """A custom event has the waiting call; the interrupt at the end has all of them."""
    log = write_script(
        [
            *APPROVAL_REQUEST[:1],
            ev.CallStarted(aliases=TWO, tool_name="read", input={"n": 1}),
            ev.CallProposed(aliases=(Alias("t", "three"),), tool_name="bash"),
            *APPROVAL_REQUEST[1:],
            ev.MessageDelta(text="While you think: "),
            ev.CallCompleted(aliases=TWO, output="ok"),
            ev.ApprovalRequested(aliases=(Alias("t", "three"),)),
        ]
    ).log
    encoder = open_stream()
    answers = [encoder.feed(event) for event in log]
    (answer,) = client.ask([{"id": 0, "chunks": [chunk for one in answers if isinstance(one, list) for chunk in one]}])
    assert answer["error"] is None
    assert [interrupt["toolCallId"] for interrupt in answer["interrupts"]] == ["one", "three"]
    waiting = [value["toolCallId"] for _, value in answer["customs"] if value["state"] == "awaiting_approval"]
    assert waiting == ["one", "three"]


def test_a_request_is_sent_although_a_text_is_still_open(client: Client) -> None:
    """Many agents never end their texts."""
    other = [ev.CallStarted(aliases=TWO, tool_name="read", input={"n": 1}), ev.CallProposed(aliases=ONE)]
    text = [ev.ThoughtDelta(text="Hm."), ev.MessageDelta(text="One moment"), ev.CallCompleted(aliases=TWO)]
    log = write_script(
        [*APPROVAL_REQUEST[:1], *other, *APPROVAL_REQUEST[2:], *text, ev.MessageDelta(text=", please")]
    ).log
    encoder = open_stream()
    *_, ending, after = (encoder.feed(event) for event in log)
    assert isinstance(ending, list)
    assert [chunk["type"] for chunk in ending][-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert after == Restart(CONTINUED)
    (answer,) = client.ask([{"id": 0, "chunks": open_stream(fold_log(log)).opening()}])
    assert (answer["error"], answer["outcome"]) == (None, "interrupt")
    assert answer["message"][-1]["content"] == "One moment, please"
    check_log(client, log, resume_points(log))


@pytest.mark.parametrize("at", [-1, 0, 10**15 + 1, 10**300])
def test_an_expiry_out_of_range_is_left_out(client: Client, at: int) -> None:
    """C11: it does not break the stream."""
    state = write_script(APPROVAL_REQUEST).state
    state.requests[next(iter(state.requests))].expires_at = at
    (answer,) = client.ask([{"id": 0, "chunks": open_stream(state).opening()}])
    assert answer["error"] is None and "expiresAt" not in answer["interrupts"][0]


# Over a socket


@contextmanager
def serving(body: bytes, chunk_size: int = 7) -> Generator[str]:
    """Run a server that sends these bytes in pieces of a fixed size, and yield its address."""

    class StreamHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in STREAM.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for begin in range(0, len(body), chunk_size):
                self.wfile.write(body[begin : begin + chunk_size])

        def log_message(self, format: str, *args: Any) -> None:
            """Discard the output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), StreamHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("name", ["parallel_calls", "hostile_strings", "thoughts_and_text", "approval_pending"])
def test_the_official_http_client_reads_the_stream(client: Client, name: str) -> None:
    """S4.7: over a socket, with comments between the frames, the result equals the history."""
    state = fold_log(scenarios.load_events(name))
    frames = [STREAM.frame(chunk) for chunk in open_stream(state).opening()]
    with serving(b": still here\n\n".join(frames) + STREAM.done) as url:
        (answer,) = client.ask([{"id": 0, "url": url}])
    assert answer["error"] is None
    assert answer["headers"]["content-type"] == "text/event-stream"
    assert answer["message"] == of_turn(json.loads(codec.encode(history(state))), "t1")


def test_no_frame_exceeds_the_clients_limit(client: Client) -> None:
    """C11: 10 MiB; long texts are split, and a long result is truncated with a note."""
    long = "\x01" * 1_800_000
    log = write_script(
        [
            ev.TurnStarted(),
            ev.MessageDelta(text=long),
            ev.CallStarted(aliases=ONE, tool_name="print"),
            ev.CallInputDelta(aliases=ONE, text=long),
            ev.CallProgress(aliases=ONE, text=long),
            ev.CallCompleted(aliases=ONE),
        ]
    ).log
    chunks = stream_of(log)
    with serving(b"".join(map(STREAM.frame, chunks)), chunk_size=2**20) as url:
        (answer,) = client.ask([{"id": 0, "url": url}])
    assert answer["error"] is None
    call, result = answer["message"]
    assert call["content"] == call["toolCalls"][0]["function"]["arguments"] == long
    assert result["content"].endswith(f"\n(cut: {len(long) - 2**20} more characters)")
    assert max(len(STREAM.frame(chunk)) for chunk in (*chunks, *open_stream(fold_log(log)).opening())) < 10 * 2**20


def test_every_frame_is_one_line_ended_by_lf() -> None:
    """One frame for each chunk, for any text, and no end marker."""
    chunks = open_stream(fold_log(scenarios.load_events("hostile_strings"))).opening()
    frames = b"".join(map(STREAM.frame, chunks)).split(b"\n\n")
    assert frames.pop() == b"" and STREAM.done == b""
    assert [json.loads(frame.removeprefix(b"data: ")) for frame in frames] == chunks
    assert not any(b"\n" in frame or b"\r" in frame for frame in frames)


# Content of the messages


def history_of(*drafts: Event) -> list[AgUiMessage]:
    """Return the history of a session with one turn of these events."""
    return history(write_script([ev.TurnStarted(), *drafts]).state)


STATES: dict[str, list[Event]] = {
    "queued": APPROVAL_REQUEST[1:2],
    "awaiting_approval": APPROVAL_REQUEST[1:],
    "running": [*APPROVAL_REQUEST[1:2], ev.CallStarted(aliases=ONE)],
    "completed": [*APPROVAL_REQUEST[1:2], ev.CallCompleted(aliases=ONE, output="out", exit_status=3)],
    "failed": [*APPROVAL_REQUEST[1:2], ev.CallFailed(aliases=ONE, error="no")],
    "denied": [*APPROVAL_REQUEST[1:], ev.ApprovalRefused(aliases=ONE, reason="no")],
    "cancelled": [*APPROVAL_REQUEST[1:], ev.ApprovalWithdrawn(aliases=ONE, reason="no")],
    "expired": [*APPROVAL_REQUEST[1:2], ev.CallExpired(aliases=ONE, reason="no")],
    "lost": [*APPROVAL_REQUEST[1:2], ev.CallLost(aliases=ONE, reason="no")],
}


@pytest.mark.parametrize("state", STATE_NAMES)
def test_every_state_has_its_name_and_the_original_in_metadata(client: Client, state: str) -> None:
    """C13: a call is open, interrupted or has a result, as in the state table; the metadata has the exact state."""
    memory = write_script([ev.TurnStarted(), *STATES[state]])
    call, *results = history(memory.state)
    assert call["toolCalls"][0]["function"] == {"name": "bash", "arguments": '{"command":"ls"}'}
    assert bool(results) == (STATE_NAMES[state].ag_ui == "result")
    (answer,) = client.ask([{"id": 0, "chunks": open_stream(memory.state).opening()}])
    assert bool(answer["interrupts"]) == (STATE_NAMES[state].ag_ui == "interrupt")
    for result in results:
        metadata = result["metadata"]["callslip"]
        assert (metadata["state"], metadata.get("error", False)) == (state, STATE_NAMES[state].error)
        assert metadata["callId"] == call["toolCalls"][0]["metadata"]["callslip"]["callId"]
        assert (metadata["title"], metadata["kind"]) == ("List", "execute")
        assert metadata.get("exitStatus") == (3 if state == "completed" else None)
        assert ("no" if STATE_NAMES[state].error else "out") in result["content"]
    if not results:
        assert answer["customs"][-1][1]["state"] == state


@pytest.mark.parametrize(
    ("output", "content"),
    [("text", "text"), ({"a": [1]}, '{"a":[1]}'), ([], "[]"), (0, "0"), (False, "false"), (None, "(no output)")],
)
def test_a_result_is_sent_as_text(output: Any, content: str) -> None:
    """Outputs of other types are sent as JSON text."""
    *_, result = history_of(ev.CallCompleted(aliases=ONE, tool_name="t", output=output))
    assert result["content"] == content


def test_incomplete_arguments_of_an_ended_call_are_a_json_string(client: Client) -> None:
    """A call that ended before its arguments has the streamed part as text."""
    log = write_script(
        [ev.TurnStarted(), ev.CallInputDelta(aliases=ONE, text='{"path": "a'), ev.CallLost(aliases=ONE)]
    ).log
    assert json.loads(history(fold_log(log))[0]["toolCalls"][0]["function"]["arguments"]) == '{"path": "a'
    assert stream_checks.list_restarts("ag-ui", log) == []
    check_log(client, log, resume_points(log))


def test_numbers_beyond_javascript_precision_are_sent_as_text(client: Client) -> None:
    """In arguments and results; JavaScript would round them."""
    log = write_script(
        [
            ev.TurnStarted(),
            ev.PlanUpdated(entries=[{"content": 2**60, "__proto__": {"a": 1}}]),
            ev.CallCompleted(aliases=ONE, tool_name="t", input={"n": 2**60}, output=2**60, exit_status=2**60),
        ]
    ).log
    (answer,) = client.ask([{"id": 0, "chunks": stream_of(log)}])
    plan, call, result = answer["message"]
    assert plan["content"] == {"entries": [{"content": str(2**60), "(__proto__)": {"a": 1}}]}
    assert call["toolCalls"][0]["function"]["arguments"] == f'{{"n":{2**60}}}'
    assert result["content"].startswith(str(2**60)) and result["metadata"]["callslip"]["exitStatus"] == str(2**60)


def test_a_result_follows_the_message_with_its_call() -> None:
    """Calls of a round are in one message, also if other messages arrived before the result."""
    messages = history_of(
        ev.ThoughtDelta(text="Hm."),
        ev.MessageDelta(text="Let me see."),
        ev.CallStarted(aliases=ONE, tool_name="a"),
        ev.CallStarted(aliases=TWO, tool_name="b"),
        ev.CallCompleted(aliases=TWO, output="2"),
        ev.MessageDelta(text="Wait."),
        ev.CallCompleted(aliases=ONE, output="1"),
        ev.CallCompleted(aliases=(Alias("t", "three"),), tool_name="c", output="3"),
        ev.CallCompleted(aliases=(Alias("t", "four"),), tool_name="d", output="4"),
    )
    events = [
        (message["role"], message.get("content"), [call["id"] for call in message.get("toolCalls", ())])
        for message in messages
    ]
    assert events == [
        ("reasoning", "Hm.", []),
        ("assistant", "Let me see.", ["one", "two"]),
        ("tool", "2", []),
        ("tool", "1", []),
        ("assistant", "Wait.", ["three"]),
        ("tool", "3", []),
        ("assistant", None, ["four"]),
        ("tool", "4", []),
    ]


def test_a_user_message_within_a_turn_ends_the_round(client: Client) -> None:
    """A later call is in a new message, in the stream and in the history."""
    prompt = ev.MessageUser(text="And?")
    log = write_script([ev.TurnStarted(), ev.CallStarted(aliases=ONE), prompt, ev.CallStarted(aliases=TWO)]).log
    assert [message["id"] for message in history(fold_log(log))] == ["turn-t1-2", "msg-3", "turn-t1-4"]
    check_log(client, log, resume_points(log))


def test_a_detached_call_is_answered_immediately() -> None:
    """S3.1: it can outlive the turn, so the turn does not wait for it."""
    log = scenarios.load_events("detached_call")
    call = next(entry for entry in fold_log(log).entries.values() if isinstance(entry, ToolCall))
    (result,) = [m for m in history(fold_log(log)) if m["role"] == "tool" and m["toolCallId"] == call.tool_call_id]
    assert json.loads(result["content"]) == {"status": "queued", "correlation_id": call.call_id}


def test_plans_and_modes_are_shown_but_not_sent_to_the_model(client: Client) -> None:
    """S2.10: they keep their position."""
    state = fold_log(scenarios.load_events("plan_mode_commands"))
    shown = [message["activityType"] for message in history(state) if message["role"] == "activity"]
    assert {"plan", "mode"} <= set(shown)
    (answer,) = client.ask([{"id": 0, "history": history(state)}])
    assert answer["error"] is None and not [m for m in answer["sent"] if m["role"] == "activity"]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "text", "text": "hi"}, None),
        (
            {"type": "image", "mimeType": "image/png", "data": "AA=="},
            {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
        ),
        (
            {"type": "resource", "mimeType": "application/pdf", "data": "AA=="},
            {"type": "document", "source": {"type": "data", "value": "AA==", "mimeType": "application/pdf"}},
        ),
        (
            {"type": "audio", "source": {"type": "url", "value": "https://x/y", "extra": 1}},
            {"type": "audio", "source": {"type": "url", "value": "https://x/y"}},
        ),
        ({"type": "image", "source": {"type": "data", "value": "AA=="}}, None),
        ({"type": "image", "source": {"type": [], "value": 1}}, None),
        ({"__proto__": 1}, None),
        ("odd", None),
    ],
)
def test_files_of_a_user_message_are_parts_of_it(client: Client, block: Any, part: Any) -> None:
    """The client accepts any prompt: readable files become parts next to the text."""
    messages = history_of(ev.MessageUser(text="hi", content=[block]))
    assert messages[0]["content"] == ([{"type": "text", "text": "hi"}, part] if part else "hi")
    (answer,) = client.ask([{"id": 0, "history": messages}])
    assert answer["error"] is None and answer["sent"] == messages


def test_decoding_our_stream_gives_the_same_calls() -> None:
    """With the same ends."""
    decoder, drafts = registry.decoder("ag-ui"), list[Event]()
    log = write_script(
        [event for name in ("failed", "denied", "lost") for event in rename_call(STATES[name], name)]
    ).log
    log = write_script([ev.TurnStarted(), *(structs.replace(event, seq=0, verdict="applied") for event in log)]).log
    for chunk in open_stream(fold_log(log)).opening():
        drafts += [draft.event for draft in decoder.feed(chunk)]
    calls = [entry for entry in write_script(drafts).state.entries.values() if isinstance(entry, ToolCall)]
    assert [entry.status for entry in calls] == ["failed", "denied", "lost"]
    assert all(entry.raw_input == {"command": "ls"} for entry in calls)


def rename_call(drafts: list[Event], name: str) -> list[Event]:
    return [structs.replace(draft, aliases=(Alias("t", name),)) for draft in drafts]  # pyright: ignore
