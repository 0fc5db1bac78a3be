"""Encode `shell`: after any event a page that applies the stream has the parts of the history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from msgspec import structs

from callslip.formats import registry
from callslip.formats.base import Restart
from callslip.formats.base import sse_frame as frame
from callslip.formats.shell.decode import ShellDecoder
from callslip.formats.shell.encode import history, open_stream
from callslip.formats.shell.history import model_messages
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Message, ToolCall
from callslip.model.events import Alias, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES
from tests.support import stream_checks
from tests.support.strategies import scripts, write_script

Parts = list[dict[str, Any]]
Card = dict[str, Any]

NEXT_STATUSES = {"queued": ("running", "completed"), "running": ("completed",), "completed": ()}


class CardPage:
    """The page of the format's own client: a text extends the last part of its type, and a card is found by its id."""

    def __init__(self) -> None:
        self.parts: Parts = []
        self.done = 0
        self._cards: dict[str, Card] = {}

    def handle(self, event: dict[str, Any]) -> None:
        assert not self.done, "an event after `done`"
        self.HANDLERS.get(event["type"], CardPage._ignore)(self, event)

    def _ignore(self, event: dict[str, Any]) -> None:
        """Ignore events of other versions."""

    def _text(self, event: dict[str, Any]) -> None:
        if not self.parts or self.parts[-1]["type"] != event["type"]:
            self.parts.append({"type": event["type"], "content": ""})
        self.parts[-1]["content"] += event["content"]

    def _call(self, event: dict[str, Any]) -> None:
        assert event["commandId"] not in self._cards, "one card for each id"
        names = ("command", "commandId", "callslip_id")
        card = {"type": "tool", **{name: event[name] for name in names}, "toolStatus": "queued"}
        self._cards[event["commandId"]] = card
        self.parts.append(card)

    def _start(self, event: dict[str, Any]) -> None:
        self._move(event, "running")

    def _result(self, event: dict[str, Any]) -> None:
        self._move(event, "completed", content=event["result"], isError=event["isError"])

    def _move(self, event: dict[str, Any], status: str, **fields: Any) -> None:
        """Set the status of a card to a later one; ignore events with unknown ids."""
        card = self._cards.get(event["commandId"])
        if card is not None and status in NEXT_STATUSES[card["toolStatus"]]:
            assert card["command"] == event["command"]
            card.update(toolStatus=status, **fields)

    def _done(self, event: dict[str, Any]) -> None:
        self.done += 1

    HANDLERS: ClassVar[dict[str, Callable[[Any, dict[str, Any]], None]]] = {
        "text": _text,
        "reasoning": _text,
        "tool-call": _call,
        "tool-start": _start,
        "tool-result": _result,
        "done": _done,
    }


class PageClient(stream_checks.Client):
    """A client that reads with `CardPage` instead of a Node process."""

    def __init__(self) -> None:
        pass

    def ask(self, jobs: Sequence[stream_checks.Job]) -> list[stream_checks.Job]:
        return [{"error": None, "messages": reduce_parts(job["chunks"], job["at"])} for job in jobs]


def reduce_parts(chunks: list[Any], counts: list[int]) -> list[Parts]:
    """Return the parts after each of these numbers of events, parsed from their frames."""
    page, reduced, read_count = CardPage(), [], 0
    for count in counts:
        for chunk in chunks[read_count:count]:
            page.handle(json.loads(frame(chunk).removeprefix(b"data: ")))
        read_count = count
        reduced.append([dict(part) for part in page.parts])
    return reduced


def parts_of(messages: list[Any], turn: str) -> Parts:
    """Return the parts of the assistant message of a turn, or none before it begins."""
    return next((message["parts"] for message in messages if stream_checks.is_answer(message, turn)), [])


def new_law() -> stream_checks.Law:
    return stream_checks.Law(PageClient(), "shell", parts_of)


# The law


@given(scripts())
def test_events_of_a_call_are_in_order_and_done_is_sent_once(script: list[Event]) -> None:
    """S0.4: `tool-call`, `tool-start`, `tool-result` for each id, each at most once; one `done`, and nothing after."""
    log = write_script(script).log
    for turn in stream_checks.list_turns(log):
        for segment in new_law().connections(log, turn):
            check_order([event for event in segment.chunks if event["type"].startswith("tool-")])
            kinds = [event["type"] for event in segment.chunks]
            assert "done" not in kinds[:-1]


def check_order(events: list[dict[str, Any]]) -> None:
    order = ["tool-call", "tool-start", "tool-result"]
    types_by_id: dict[str, list[str]] = {}
    for event in events:
        types_by_id.setdefault(event["commandId"], []).append(event["type"])
    for kinds in types_by_id.values():
        assert kinds[0] == "tool-call"
        assert kinds == [kind for kind in order if kind in kinds]


@given(scripts())
def test_a_history_page_is_made_from_its_turns_alone(script: list[Event]) -> None:
    """So a page of a long history needs no other entries."""
    entries = write_script(script).state.snapshot().entries
    assert history(entries) == [message for block in split_turns(entries) for message in history(block)]
    identities = [message["id"] for message in history(entries)]
    assert len(identities) == len(set(identities))


def split_turns(entries: list[Entry]) -> list[list[Entry]]:
    blocks: list[list[Entry]] = []
    for entry in entries:
        is_prompt = isinstance(entry, Message) and entry.role == "user" and not entry.turn
        if not blocks or is_prompt or blocks[-1][-1].turn != entry.turn:
            blocks.append([])
        blocks[-1].append(entry)
    return blocks


# Content of the events


LS = ev.CallProposed(aliases=(Alias("shell", "cmd-0-0"),), tool_name="shell", input={"command": "ls"})


def stream_of(*script: Event) -> list[dict[str, Any]]:
    """Return all events of the first turn of a script, which must need no restart."""
    encoder, stream = open_stream(), []
    for event in write_script([ev.TurnStarted(), *script]).log:
        chunks = encoder.feed(event)
        assert not isinstance(chunks, Restart), chunks.reason
        stream += chunks
    return stream


def call_event(cls: type[ev.CallEvent], **fields: Any) -> ev.CallEvent:
    return cls(aliases=LS.aliases, **fields)


def test_a_command_goes_from_queued_to_completed() -> None:
    """S0.4: each event has the command and its id; the result is the text for the model."""
    ended = call_event(ev.CallFailed, output={"stdout": "a\n", "stderr": "no b"}, exit_status=2)
    stream = stream_of(ev.MessageDelta(text="See: "), LS, call_event(ev.CallStarted), ended, ev.TurnEnded())
    ids = {"command": "ls", "commandId": "cmd-0-0", "callslip_id": stream[1]["callslip_id"]}
    assert stream == [
        {"type": "text", "content": "See: "},
        {"type": "tool-call", **ids},
        {"type": "tool-start", **ids},
        {"type": "tool-result", **ids, "result": "a\n[stderr]\nno b\n[exit status 2]", "isError": True},
        {"type": "done", "reason": "end_turn"},
    ]


def test_card_part_and_model_have_the_same_result_text() -> None:
    """S0.6: on the card, in the stored part, and in the block for the model."""
    for output in ("", "a\n", "x" * 40_000, "```\nfence\n````", "\n\n", {"n": 1}, None, {"stderr": "e"}):
        state = write_script(
            [ev.TurnStarted(), LS, call_event(ev.CallStarted), call_event(ev.CallCompleted, output=output)]
        ).state
        (part,) = history(state)[-1]["parts"]
        block = model_messages(state)[-1]["content"]
        assert block.split("\n", 1)[1].rsplit("\n", 1)[0] == part["content"]
        assert part["content"]


def test_a_call_that_never_ran_has_no_start_event() -> None:
    """A denied command shows the denial only."""
    stream = stream_of(LS, call_event(ev.ApprovalRequested), ev.ApprovalRefused(approval="#0", reason="never"))
    assert [event["type"] for event in stream] == ["tool-call", "tool-result"]
    assert stream[-1]["isError"] and "[error: never]" in stream[-1]["result"]


def test_calls_of_other_tools_are_shown() -> None:
    """With their title, or else the name of the tool, or else `unknown`."""
    state = write_script(
        [
            ev.CallProposed(aliases=(Alias("t", "1"),), tool_name="read", title="Read a.txt", input={"path": "a.txt"}),
            ev.CallProposed(aliases=(Alias("t", "2"),), tool_name="read", input=["command"]),
            ev.CallProposed(aliases=(Alias("t", "3"),), input={"command": 7}),
        ]
    ).state
    assert [part["command"] for part in history(state)[0]["parts"]] == ["Read a.txt", "read", "unknown"]


def test_content_blocks_without_output_are_the_result() -> None:
    """Some agents send content blocks instead of output; the card has their text."""
    block = {"type": "content", "content": {"type": "text", "text": "done it"}}
    stream = stream_of(LS, call_event(ev.CallCompleted, content=[block, {"type": "terminal", "terminalId": "1"}]))
    assert stream[-1]["result"] == "done it"


def test_content_blocks_precede_printed_output() -> None:
    """As in every other format."""
    block = {"type": "content", "content": {"type": "text", "text": "3 files"}}
    stream = stream_of(LS, call_event(ev.CallProgress, text="a b c"), call_event(ev.CallCompleted, content=[block]))
    assert stream[-1]["result"] == "3 files"


@pytest.mark.parametrize(
    ("failed", "error"),
    [
        ({"exit_status": 2, "reason": "exit status 2"}, "half\n[exit status 2]"),
        ({"exit_status": 2}, "half\n[exit status 2]"),
        ({"exit_status": 2, "error": {"message": "boom"}}, "half\n[error: boom]\n[exit status 2]"),
        ({"exit_status": 2, "reason": "the disk is full"}, "half\n[error: the disk is full]\n[exit status 2]"),
        ({"exit_status": 0, "error": "boom"}, "half\n[error: boom]"),
        ({"exit_status": 0}, "half\n[error: failed]"),
        ({}, "half\n[error: failed]"),
    ],
)
def test_a_failure_has_its_reason_and_its_exit_status(failed: dict[str, Any], error: str) -> None:
    """S0.6: an exit status replaces no other reason, and status 0 is not a success by itself."""
    assert stream_of(LS, call_event(ev.CallFailed, output="half", **failed))[-1]["result"] == error


def test_every_state_has_its_name() -> None:
    """C13: `toolStatus` is from the state table, and every end is `completed`, with `isError`."""
    for status in (*OPEN_STATES, *TERMINAL_STATES):
        call = ToolCall(id=1, call_id="exec_1", tool_call_id="cmd-0-0", status=status)
        (part,) = history([call])[0]["parts"]
        assert part["toolStatus"] == STATE_NAMES[status].shell
        assert part.get("isError") == (STATE_NAMES[status].error if status in TERMINAL_STATES else None)
        assert ("content" in part) == (status in TERMINAL_STATES)


def test_consecutive_texts_are_paragraphs_of_one_part() -> None:
    """Text chunks have no id, so the texts are one part, with a blank line between them."""
    stream = stream_of(ev.MessageDelta(text="One."), ev.PlanUpdated(entries=[]), ev.MessageDelta(text="Two."))
    assert "".join(event["content"] for event in stream) == "One.\n\nTwo."


def test_user_messages_are_separate_messages() -> None:
    """S0.8: in the turn or before it."""
    state = write_script(
        [ev.MessageUser(text="a"), ev.TurnStarted(), ev.MessageUser(text="b"), ev.MessageDelta(text="d")]
    ).state
    assert [(message["role"], message["parts"]) for message in history(state)] == [
        ("user", [{"type": "text", "content": "a"}]),
        ("user", [{"type": "text", "content": "b"}]),
        ("assistant", [{"type": "text", "content": "d"}]),
    ]


def test_decoding_stored_messages_gives_the_same_session() -> None:
    """The decoder of the format gives the same texts, commands, ids and ends."""
    ended = call_event(ev.CallFailed, output="no", error="gone")
    script = [
        ev.TurnStarted(),
        ev.MessageUser(text="go"),
        ev.MessageDelta(text="I do"),
        LS,
        call_event(ev.CallStarted),
        ended,
    ]
    first = history(write_script([*script, ev.MessageDelta(text="So."), ev.TurnEnded()]).state)
    decoder = ShellDecoder()
    drafts = [draft.event for message in json.loads(codec.encode(first)) for draft in decoder.feed(message)]
    decoded = history(write_script([ev.TurnStarted(), *drafts]).state)
    ignored = {"content": "...", "callslip_id": "..."}
    expected = [[{**part, **ignored} for part in message["parts"]] for message in first]
    assert [[{**part, **ignored} for part in message["parts"]] for message in decoded] == expected
    assert not [event for event in drafts if isinstance(event, ev.Raw)]


# Restart and end of a stream


@pytest.mark.parametrize(
    "event",
    [
        call_event(ev.CallProgress, input={"command": "rm"}),
        call_event(ev.CallRequeued),
        call_event(ev.ApprovalRequested),
    ],
)
def test_a_change_that_cards_cannot_show_requests_a_restart(event: Event) -> None:
    """Every later event requests it again until the turn is replayed."""
    log = write_script([ev.TurnStarted(), LS, call_event(ev.CallStarted), event, ev.MessageDelta(text="Well.")]).log
    encoder = open_stream()
    *outputs, changed, after = [encoder.feed(event) for event in log]
    assert not [output for output in outputs if isinstance(output, Restart)]
    assert isinstance(changed, Restart) and isinstance(after, Restart)
    assert [chunk["type"] for chunk in changed.chunks] == ["restart"]
    opening = encoder.opening()
    assert opening[-1] == {"type": "text", "content": "Well."}
    assert encoder.feed(ev.MessageUser(seq=99, text="next")) == []


def test_a_stream_ends_after_the_last_call_of_its_turn() -> None:
    """If a command ends after its turn, `done` is sent after the result."""
    encoder = open_stream()
    log = write_script(
        [ev.TurnStarted(), LS, call_event(ev.CallStarted), ev.TurnEnded(), call_event(ev.CallCompleted)]
    ).log
    for event in log[:-1]:
        encoder.feed(event)
    assert not encoder.finished
    assert [event["type"] for event in encoder.feed(log[-1])] == ["tool-result", "done"]
    assert encoder.finished
    assert encoder.feed(ev.MessageUser(seq=99, text="next")) == []


def test_a_change_after_the_end_of_the_stream_requests_a_restart() -> None:
    """A detached call is answered immediately; a change after the end of the stream needs a new stream."""
    detached = structs.replace(LS, scope="detached")
    rename = call_event(ev.CallProgress, input={"command": "pwd"})
    encoder = open_stream()
    log = write_script([ev.TurnStarted(), detached, ev.TurnEnded(), rename]).log
    *outputs, after = [encoder.feed(event) for event in log]
    assert [event["type"] for output in outputs for event in output] == ["tool-call", "tool-result", "done"]
    assert json.loads(outputs[1][-1]["result"])["status"] == "queued"
    assert isinstance(after, Restart)
    assert encoder.opening()[0]["command"] == "pwd"


def test_a_closed_stream_has_the_reason_and_no_done() -> None:
    """Once; after `done` nothing is sent."""
    encoder = open_stream()
    encoder.feed(ev.TurnStarted(seq=1, turn="t"))
    assert encoder.close("the server stops") == [{"type": "error", "error": "the server stops"}]
    assert encoder.finished and encoder.close("again") == []


def test_the_cost_of_a_chunk_does_not_grow_with_the_text() -> None:
    """C12: a chunk of text is one event with that chunk only."""
    encoder = open_stream()
    encoder.feed(ev.TurnStarted(seq=1, turn="t"))
    outputs = [encoder.feed(text_delta(seq)) for seq in range(2, 2000)]
    assert outputs == [[{"type": "text", "content": "12345678"}]] * len(outputs)


def text_delta(seq: int) -> Event:
    return ev.MessageDelta(seq=seq, text="12345678", chunks="delta")


def test_the_registry_has_the_stream_encoder() -> None:
    """Server-sent events, by the name in the list of formats."""
    stream = registry.streaming("shell")
    assert stream.events and stream.headers["content-type"] == "text/event-stream"
    assert stream.frame({"type": "done"}) == b'data: {"type":"done"}\n\n'
    assert registry.encoder("shell") is history
