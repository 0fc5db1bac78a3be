"""`ui-v6` out: a stream, reduced by the real client after any event, is the message that the history has by then."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from callslip import codec
from callslip import events as ev
from callslip.entries import ToolCall
from callslip.events import Alias, Event
from callslip.fold import State
from callslip.formats import ai_sdk
from callslip.formats.ai_sdk import Restart, StreamEncoder, history
from callslip.formats.ai_sdk.parts import is_open
from callslip.formats.ai_sdk.wire import readable
from callslip.formats.importing import import_lines
from callslip.ledger import open_ledger
from callslip.words import WORDS
from tests import scenarios
from tests.strategies import scripts, written

TESTS = Path(__file__).resolve().parent
HARNESS = TESTS / "js" / "reduce_v6.mjs"
CAPTURED = TESTS / "captures"
CAPTURES = sorted(path.stem for path in CAPTURED.glob("*.jsonl"))
WATCHED = 40  # How many events a stream that begins in the middle is watched for, and from how many places, at most.

Job = dict[str, Any]
Message = dict[str, Any]


class Client:
    """The real client in a Node process: jobs in, answers out, as told in the harness."""

    def __init__(self, node: str) -> None:
        self._process = subprocess.Popen([node, str(HARNESS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, jobs: Sequence[Job]) -> list[Job]:
        """An answer for each job; equal ones are asked once."""
        bodies = [codec.encode(job) for job in jobs]
        answers: dict[bytes, Job] = {body: {} for body in bodies}
        sender = threading.Thread(target=self._send, args=(list(answers),))
        sender.start()
        assert self._process.stdout is not None
        for body in answers:
            line = self._process.stdout.readline()
            assert line, "the harness died; its complaint stands in stderr"
            answers[body] = json.loads(line, parse_int=_number)
        sender.join()
        return [answers[body] for body in bodies]

    def _send(self, bodies: list[bytes]) -> None:
        assert self._process.stdin is not None
        for body in bodies:
            self._process.stdin.write(body + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate()


def _number(digits: str) -> int | float:
    """JavaScript has doubles only, and writes large ones without a point."""
    return int(digits) if len(digits) < 16 else float(digits)


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    """One Node process for all tests here."""
    made = Client(node)
    yield made
    made.close()


# What the client must agree with


def histories(log: Sequence[Event]) -> list[list[Message]]:
    """The history after each number of events, read back from its JSON."""
    state = State()
    told = [[]]
    for event in log:
        state.apply(event)
        told.append(json.loads(codec.encode(history(state))))
    return told


def turns_of(log: Sequence[Event]) -> list[str]:
    """The turns of a log."""
    return list(dict.fromkeys(e.turn for e in log if isinstance(e, ev.TurnStarted) and e.verdict == "applied"))


def message_of(messages: list[Message], turn: str) -> Message | None:
    """The assistant message of a turn, if it has begun."""
    return next((message for message in messages if message["id"] == f"turn-{turn}"), None)


class Segment:
    """One connection: its chunks, and how many had been sent after which event."""

    def __init__(self, turn: str, chunks: list[Any], seq: int) -> None:
        self.turn = turn
        self.chunks = list(chunks)
        self.reached = {seq: len(self.chunks)}

    def more(self, chunks: list[Any], seq: int) -> None:
        self.chunks += chunks
        self.reached[seq] = len(self.chunks)

    def job(self) -> Job:
        return {"id": 0, "chunks": self.chunks, "at": list(self.reached.values())}


def folded(log: Sequence[Event]) -> State:
    state = State()
    state.fold(log)
    return state


def connections(log: Sequence[Event], turn: str, after: int = 0, *, resume: bool = True) -> list[Segment]:
    """What a client that watches a turn from an event on is sent, connection by connection."""
    encoder = StreamEncoder(folded(log[:after]) if after else None, turn)
    segments = [Segment(turn, encoder.opening(), after)]
    for seq, event in enumerate(log[after:], after + 1):
        said = encoder.feed(event)
        if not isinstance(said, Restart):
            segments[-1].more(said, seq)
        elif resume:
            segments.append(Segment(turn, encoder.opening(), seq))
        else:
            break
    return segments


def check(client: Client, segments: Sequence[Segment], told: list[list[Message]]) -> None:
    """The client, at every point of every connection, shows what the history holds."""
    for segment, answer in zip(segments, client.ask([segment.job() for segment in segments]), strict=True):
        assert answer["error"] is None
        for seq, shown in zip(segment.reached, answer["messages"], strict=True):
            expected = message_of(told[seq], segment.turn)
            assert shown == expected and exact(shown) == exact(expected), f"turn {segment.turn} after event {seq}"


def exact(value: Any) -> Any:
    """A value that equals another only if JSON does: to Python, 1 and True are equal."""
    if isinstance(value, dict):
        return {key: exact(member) for key, member in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return str(value) if isinstance(value, bool) else value


def replays(log: Sequence[Event], turns: list[str]) -> list[Segment]:
    """A connection that begins after each event, up to its first moment."""
    state, made = State(), [Segment(turn, [], 0) for turn in turns]
    for seq, event in enumerate(log, 1):
        state.apply(event)
        made += [Segment(turn, ai_sdk.stream(state, turn), seq) for turn in turns]
    return made


def check_histories(client: Client, log: Sequence[Event], told: list[list[Message]]) -> None:
    """Every history is valid, and where no call is open a model can be asked to go on from it."""
    state = State()
    jobs: list[Job] = []
    still: list[bool] = []
    for event, messages in zip(log, told[1:], strict=True):
        state.apply(event)
        if messages:  # the client's own check refuses an empty list
            jobs.append({"id": 0, "history": messages})
            still.append(not any(isinstance(e, ToolCall) and is_open(e) for e in state.entries.values()))
    for quiet, answer in zip(still, client.ask(jobs), strict=True):
        assert answer["valid"], answer["validError"]
        assert answer["modelError"] is None
        assert not answer["model"]["repeated"]
        assert not (quiet and answer["model"]["missing"])


def prove(client: Client, log: Sequence[Event], resumed: Iterable[int]) -> None:
    """The whole law, for one log, with streams that begin with it, after every event, and go on after some."""
    told = histories(log)
    turns = turns_of(log)
    check_histories(client, log, told)
    check(client, [segment for turn in turns for segment in connections(log, turn)], told)
    check(client, replays(log, turns), told)
    for after in resumed:
        part = log[: after + WATCHED]
        check(client, [segment for turn in turns for segment in connections(part, turn, after, resume=False)], told)


def places(log: Sequence[Event]) -> Iterable[int]:
    """Where to begin in the middle of a log."""
    return range(1, len(log), 1 + len(log) // WATCHED)


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_stream_and_history_agree_after_every_event(client: Client, name: str) -> None:
    """C13, S4.7: live, replayed and resumed streams show what the history holds, at every prefix of every scenario."""
    log = scenarios.events(name)
    prove(client, log, places(log))


@pytest.mark.parametrize("name", CAPTURES)
def test_what_real_agents_did_streams_as_its_history(client: Client, name: str) -> None:
    """S4.7: the same for the recorded traffic of real agents, as it is imported."""
    for log in asyncio.run(imported(name)):
        prove(client, log, places(log))


async def imported(name: str) -> list[list[Event]]:
    """The logs of the sessions in a capture."""
    async with await open_ledger("sqlite:///:memory:", scenarios.QUIET) as ledger:
        with (CAPTURED / f"{name}.jsonl").open("rb") as lines:
            report = await import_lines(ledger, "capture", "acp", lines, started=scenarios.NOON)
        return [[event async for event in ledger.events(session)] for session in report.sessions]


@given(scripts(), st.integers(0, 40), st.none() | st.lists(st.sampled_from([0, 0, 1, 5]), min_size=1, max_size=9))
def test_any_log_streams_as_its_history(
    client: Client, script: list[Event], after: int, clock: list[int] | None
) -> None:
    """C4, C11: whatever comes, in whatever order, by clocks that go, stand or run back, the client is never wrong."""
    drafts = [ev.TurnStarted(), *script]
    if clock:
        drafts = [structs.replace(draft, at=1000 + clock[n % len(clock)]) for n, draft in enumerate(drafts)]
    log = written(drafts).log
    prove(client, log, [after] if after < len(log) else [])


# When a stream has to begin again

ANSWERED = "a request for approval was closed"
RESTARTS = {
    "approval_expired": [ANSWERED],
    "approval_granted": [ANSWERED],
    "approval_granted_with_other_input": [ANSWERED],
    "approval_refused": [ANSWERED],
    "approval_superseded": [ANSWERED],
    "approval_withdrawn": [ANSWERED],
    "told_piece_by_piece": [ANSWERED],
    "turn_cancelled": [ANSWERED],
    "streamed_arguments": [ANSWERED],
    "cumulative_text": ["a text was repaired"] * 2,
    "cumulative_text_ends_early": ["a text was repaired"] * 2,
    "progress_output": ["a title was taken away"],
    "detached_call_changes": ["a call of an earlier step was changed"],
    "turn_id_reused": ["the turn went on after its end"],
}


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_stream_restarts_only_where_nothing_else_is_left(name: str) -> None:
    """What version 6 can say is said on the open connection; a restart is seen by the application, and costs it."""
    log = scenarios.events(name)
    reasons: list[str] = []
    for turn in turns_of(log):
        encoder = StreamEncoder(turn=turn)
        for event in log:
            said = encoder.feed(event)
            if isinstance(said, Restart):
                reasons.append(said.reason)
                encoder.opening()
    assert reasons == RESTARTS.get(name, [])


def test_after_a_restart_only_a_replay_goes_on() -> None:
    """Until the turn was replayed every event asks for it, also of an encoder that begins in the middle."""
    log = scenarios.events("approval_granted")
    encoder, late = StreamEncoder(), StreamEncoder(folded(log[:5]))
    said = [isinstance(encoder.feed(event), Restart) for event in log]
    assert said == [False] * 5 + [True] * 5
    assert all(isinstance(late.feed(event), Restart) for event in log[5:])
    assert encoder.opening() == late.opening()
    assert encoder.finished and encoder.feed(structs.replace(log[0], turn="t2", seq=11)) == []


def test_the_farewell_of_a_restart_leaves_no_trace(client: Client) -> None:
    """An application can be told to come back without the message showing it."""
    chunks = ai_sdk.stream(folded(scenarios.events("approval_pending")))
    bare, told = client.ask([{"id": 0, "chunks": chunks}, {"id": 0, "chunks": [*chunks, *Restart("").chunks]}])
    assert told["error"] is None
    assert told["message"] == bare["message"]


# How a stream begins and ends


def test_a_stream_without_a_named_turn_takes_the_open_one_or_the_last_or_the_first_to_come() -> None:
    """Whoever does not care which turn it is gets the one that matters."""
    log = scenarios.events("two_turns")
    assert StreamEncoder(folded(log[:10])).turn == "second"
    assert StreamEncoder(folded(log[:7])).turn == "first"
    waiting = StreamEncoder(folded(scenarios.events("no_turns")))
    assert waiting.opening() == []
    assert waiting.feed(log[0]) == []
    assert waiting.turn == "first"


def test_a_stream_finishes_when_the_last_call_of_its_turn_has() -> None:
    """C5: a call that outlives the end of its turn for a moment is still shown; then the stream says how it went."""
    log = scenarios.events("two_turns")
    encoder = StreamEncoder()
    said = [encoder.feed(event) for event in log[:6]]
    assert said[4] == [] and isinstance(log[4], ev.TurnEnded)
    assert [chunk["type"] for chunk in said[5]] == ["tool-output-available", "finish-step", "finish"]  # pyright: ignore
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
def test_the_client_reads_how_the_turn_ended(client: Client, reason: str, word: str) -> None:
    """Every way a turn ends has a word that the client knows."""
    log = written([ev.TurnStarted(), ev.MessageDelta(text="Hi."), ev.TurnEnded(reason=reason)]).log
    chunks = connections(log, "t1")[0].chunks
    assert chunks[-1] == {"type": "finish", "finishReason": word}
    assert client.ask([{"id": 0, "chunks": chunks}])[0]["error"] is None


def test_an_empty_turn_makes_no_message(client: Client) -> None:
    """Nothing was said, so nothing is shown, streamed or stored."""
    log = written([ev.TurnStarted(), ev.TurnEnded()]).log
    chunks = connections(log, "t1")[0].chunks
    assert chunks == [{"type": "finish", "finishReason": "stop"}]
    assert client.ask([{"id": 0, "chunks": chunks}])[0]["message"] is None
    assert history(folded(log)) == []


def test_a_stream_that_is_closed_early_says_why(client: Client) -> None:
    """A server that stops tells its clients, and what they saw stays."""
    encoder = StreamEncoder(folded(scenarios.events("parallel_calls")[:8]))
    seen = encoder.opening()
    last = encoder.close("the server stops")
    bare, told = client.ask([{"id": 0, "chunks": seen}, {"id": 0, "chunks": [*seen, *last]}])
    assert last == [{"type": "abort", "reason": "the server stops"}]
    assert told["error"] is None and told["message"] == bare["message"]


def test_a_stream_is_server_sent_events() -> None:
    """One frame a chunk, each one line whatever the text holds, and the client's word for the end."""
    chunks = ai_sdk.stream(folded(scenarios.events("hostile_strings")))
    frames = ai_sdk.sse(chunks).split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]] == chunks
    assert not any(b"\n" in frame or b"\r" in frame for frame in frames)


def test_a_stream_grows_with_what_is_said(scale: int) -> None:
    """C12: twice the chunks make twice the stream; output still being written is not sent over and over."""

    def size(count: int) -> int:
        log = written(
            [
                ev.TurnStarted(),
                *(ev.MessageDelta(text="word ", chunks="delta") for _ in range(count)),
                ev.CallStarted(aliases=(Alias("t", "1"),), input={"n": 1}),
                *(ev.CallProgress(aliases=(Alias("t", "1"),), text="line\n", progress=n) for n in range(count)),
                *(ev.CallInputDelta(aliases=(Alias("t", "2"),), text="piece") for _ in range(count)),
                ev.CallCompleted(aliases=(Alias("t", "1"),)),
            ]
        ).log
        return sum(len(ai_sdk.frame(chunk)) for chunk in connections(log, "t1")[0].chunks)

    few, many = size(200), size(400 * scale)
    assert many < 2.1 * scale * few


# What the messages say


def parts_of(*drafts: Event) -> list[dict[str, Any]]:
    """The parts of the one turn that these events make, without its first step."""
    (message,) = history(written([ev.TurnStarted(), *drafts]).state)
    assert message["parts"][0] == {"type": "step-start"}
    return message["parts"][1:]


ONE = (Alias("t", "one"),)
ASKED = [ev.CallProposed(aliases=ONE, tool_name="bash", input={"a": 1}), ev.ApprovalRequested(aliases=ONE)]
STATES: dict[str, list[Event]] = {
    "queued": ASKED[:1],
    "awaiting_approval": ASKED,
    "running": [*ASKED[:1], ev.CallStarted(aliases=ONE)],
    "completed": [*ASKED[:1], ev.CallCompleted(aliases=ONE, output="out")],
    "failed": [*ASKED[:1], ev.CallFailed(aliases=ONE, error="no")],
    "denied": [*ASKED, ev.ApprovalRefused(aliases=ONE, reason="no")],
    "cancelled": [*ASKED, ev.ApprovalWithdrawn(aliases=ONE, reason="no")],
    "expired": [*ASKED[:1], ev.CallExpired(aliases=ONE, reason="no")],
    "lost": [*ASKED[:1], ev.CallLost(aliases=ONE, reason="no")],
}


@pytest.mark.parametrize("state", WORDS)
def test_every_state_has_its_word_and_keeps_its_own(state: str) -> None:
    """C13: the word comes from the one table; what version 6 has no word for stands in the part's metadata."""
    (part,) = parts_of(*STATES[state])
    assert part["state"] == WORDS[state].v6
    assert part["toolMetadata"]["callslip"]["state"] == state
    assert ("errorText" in part) == WORDS[state].error
    assert ("approval" in part) == (state == "awaiting_approval")


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
def test_a_call_without_output_tells_the_model_why(end: ev.CallEnd, text: str) -> None:
    """C5: a sentence that a model can act on, with what had come out by then."""
    (part,) = parts_of(ev.CallStarted(aliases=ONE, input={}), structs.replace(end, aliases=ONE))
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
def test_the_output_is_the_best_that_was_told(end: ev.CallEnd, output: Any) -> None:
    """The output itself, else what was shown of it, else what was printed."""
    printed = ev.CallProgress(aliases=ONE, text="printed\n")
    (part,) = parts_of(ev.CallStarted(aliases=ONE), printed, structs.replace(end, aliases=ONE))
    assert part["output"] == output


def test_a_request_shows_its_options_in_the_words_of_whoever_asks() -> None:
    """S2.7: the client can offer exactly what the agent offers."""
    messages = history(folded(scenarios.events("approval_pending")))
    assert messages[-1]["parts"][-1]["approval"] == {
        "id": "appr_000000000001",
        "descriptor": {
            "description": "Remove a folder",
            "options": [
                {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
                {"optionId": "no", "name": "Reject", "kind": "reject_once"},
            ],
        },
    }


def test_a_detached_call_stands_as_queued_for_ever() -> None:
    """S3.1: its answer to the model was its correlation id; how it went is asked for elsewhere."""
    log = scenarios.events("detached_call")
    (call,) = [entry for entry in folded(log).entries.values() if isinstance(entry, ToolCall)]
    part = history(folded(log))[1]["parts"][1]
    assert call.status == "completed"
    assert part["output"] == {"status": "queued", "correlation_id": call.call_id}


def test_late_news_of_an_ended_call_reach_nobody() -> None:
    """C4: the message that was shown when the call ended is the message for good."""
    log = scenarios.events("late_result")
    at_end, now = history(folded(log[:4])), history(folded(log))
    assert now[1]["parts"][1] == at_end[1]["parts"][1]


def test_output_too_large_for_the_log_says_so() -> None:
    """S2.8: a preview, how large the whole is, and where it is kept."""
    small = structs.replace(scenarios.QUIET, inline_limit=100, preview=10)
    drafts = [ev.TurnStarted(), ev.CallStarted(aliases=ONE), ev.CallCompleted(aliases=ONE, output="x" * 1000)]
    (message,) = history(folded(asyncio.run(scenarios.record(drafts, settings=small))))
    part = message["parts"][-1]
    told = part["toolMetadata"]["callslip"]
    assert (part["output"], told["truncated"], told["size"]) == ("x" * 10, True, 1000)
    assert told["blob"]


def test_text_after_results_begins_a_step() -> None:
    """The model reads a text after the results it was written after; one written meanwhile stays beside the call."""
    kinds = [part["type"] for part in history(folded(scenarios.events("parallel_calls")))[-1]["parts"]]
    step, text, tool, thought = "step-start", "text", "dynamic-tool", "reasoning"
    assert kinds == [step, text, tool, tool, tool, thought, text, tool, step, text]


def test_messages_are_one_per_turn_and_one_between_turns() -> None:
    """S2.9: ids are those of entries and turns, so they are the same on every read."""
    messages = history(folded(scenarios.events("two_turns")))
    shown = [(message["id"], message["role"]) for message in messages]
    assert shown == [
        ("msg-2", "user"),
        ("turn-first", "assistant"),
        ("msg-7", "assistant"),
        ("msg-10", "user"),
        ("turn-second", "assistant"),
        ("msg-12", "user"),
        ("turn-third", "assistant"),
    ]


def test_attachments_of_a_user_are_files_or_kept_as_they_are() -> None:
    """What the client can show it shows; the rest is there and reaches no model."""
    assert history(folded(scenarios.events("plan_mode_commands")))[0]["parts"] == [
        {"type": "text", "text": "Plan it."},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "data-block", "data": {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}},
    ]


@pytest.mark.parametrize("name", ["parallel_calls", "two_turns", "approval_pending", "streamed_arguments"])
def test_stored_entries_make_the_same_messages(name: str) -> None:
    """C9: a history read from a checkpoint is the one that is folded from the log."""

    async def read() -> tuple[list[Message], list[Message]]:
        async with await open_ledger("sqlite:///:memory:", scenarios.QUIET) as ledger:
            for draft in scenarios.drafts(name):
                await ledger.append("s", [draft])
                await ledger.project("s")
            return history(await ledger.snapshot("s")), history(await ledger.state_at("s"))

    stored, derived = asyncio.run(read())
    assert stored == derived


# What JavaScript makes of JSON

KEYS = st.sampled_from(["a", "__proto__", "(__proto__)", "((__proto__))", "constructor", "prototype", "(prototype)"])
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


def shape(value: Any) -> Any:
    """How many members stand where."""
    if isinstance(value, dict):
        return [shape(member) for member in value.values()]
    return [shape(item) for item in value] if isinstance(value, list) else 0


def hazards(value: Any, within: str = "") -> Iterator[Any]:
    """What JavaScript would refuse or round."""
    if isinstance(value, dict):
        for key, member in value.items():
            if key == "__proto__" or (within, key) == ("constructor", "prototype"):
                yield key
            yield from hazards(member, key)
    elif isinstance(value, list):
        yield from (hazard for item in value for hazard in hazards(item))
    elif isinstance(value, int) and abs(value) >= 2**53:
        yield value


@given(JSON)
def test_any_value_can_be_read_in_javascript(client: Client, value: Any) -> None:
    """C11: nothing ends the client's stream or is rounded by it, nothing is lost, and what is harmless stays."""
    made = readable(value)
    assert shape(made) == shape(value)
    assert made == value if not list(hazards(value)) else not list(hazards(made))
    call = {"type": "tool-input-available", "toolCallId": "1", "toolName": "x", "dynamic": True, "input": made}
    (answer,) = client.ask([{"id": 0, "chunks": [{"type": "start", "messageId": "m"}, call]}])
    assert answer["error"] is None
    assert answer["message"]["parts"][0]["input"] == made
