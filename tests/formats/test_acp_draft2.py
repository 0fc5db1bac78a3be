"""The draft of version 2 of the Agent Client Protocol, rule by rule; and that no kind of update is forgotten."""

from __future__ import annotations

import base64
from typing import Any, get_args

import acp.schema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from callslip.formats.acp.growing_text import GrowingText
from callslip.formats.acp.terminals import Terminals
from callslip.model import events as ev
from callslip.model.entries import Message, Plan, Thought
from tests.support.acp_session import (
    OPTIONS,
    AcpHarness,
    a2c,
    answers,
    asks,
    c2a,
    chosen,
    fails,
    more,
    normalized_entries,
    prompt,
    says,
    update,
)

HELLO = [c2a(asks("initialize", 0, protocolVersion=2)), a2c(answers(0, protocolVersion=2))]
RUNNING, IDLE = update("state_update", state="running"), update("state_update", state="idle", stopReason="end_turn")
TAKEN = a2c(answers(1, messageId="u1"))
SHOWS = {"content": [{"type": "terminal", "terminalId": "t"}]}


def begun(*messages: Any) -> AcpHarness:
    """A conversation in which a prompt is being worked on."""
    return AcpHarness().feed(*HELLO, prompt(), RUNNING, TAKEN).feed(*messages)


def raws(reading: AcpHarness) -> list[Any]:
    """What was kept whole, but for how the conversation began."""
    return [body for body in reading.raws if body not in (*HELLO, RUNNING, TAKEN)]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def item(value: str) -> dict[str, Any]:
    return {"type": "content", "content": text(value)}


def whole(kind: str, *texts: str, name: str = "m", **fields: Any) -> dict[str, Any]:
    return update(kind, messageId=name, content=[text(one) for one in texts], **fields)


def chunk(data: bytes | str, name: str = "t", **fields: Any) -> dict[str, Any]:
    packed = data if isinstance(data, str) else base64.b64encode(data).decode()
    return update("terminal_output_chunk", terminalId=name, data=packed, **fields)


def screen(data: bytes | None, **fields: Any) -> dict[str, Any]:
    output = None if data is None else {"data": base64.b64encode(data).decode()}
    return update("terminal_update", terminalId="t", output=output, **fields)


# Turns


def test_a_turn_is_from_the_prompt_until_the_agent_is_idle() -> None:
    """That the prompt was taken ends nothing, nor does an unknown state."""
    reading = begun(update("state_update", state="requires_action"), update("state_update", state="_napping"), RUNNING)
    assert [type(event) for event in reading.log(ev.TurnStarted | ev.TurnEnded)] == [ev.TurnStarted]
    assert [event.reason for event in reading.feed(IDLE, IDLE).log(ev.TurnEnded)] == ["end_turn"]


def test_work_that_nobody_asked_for_is_a_turn_of_its_own() -> None:
    """A prompt that comes meanwhile joins it."""
    reading = AcpHarness().feed(*HELLO, RUNNING, more("in_progress"), prompt(), TAKEN, IDLE, RUNNING)
    assert [event.turn for event in reading.log(ev.TurnStarted)] == ["t1", "t2"]
    assert [entry.turn for entry in reading.entries()] == ["t1", "t1"]


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "_bored"])
def test_a_turn_ends_with_the_agents_reason(reason: str) -> None:
    """For any word; the usage is stored too."""
    idle = update("state_update", state="idle", stopReason=reason, usage={"totalTokens": 3})
    reading = begun(idle)
    assert ([event.reason for event in reading.log(ev.TurnEnded)], raws(reading)) == ([reason], [idle])


def test_an_error_ends_the_turn_with_what_it_says() -> None:
    """C5: the calls of the turn are lost with that as the reason."""
    reading = begun(
        more("in_progress"), update("state_update", state="idle", stopReason="error", error={"message": "x"})
    )
    assert [(event.reason, event.detail) for event in reading.log(ev.TurnEnded)] == [("error", "x")]
    assert (reading.call.status, reading.call.reason) == ("lost", "x")


def test_a_prompt_that_is_refused_ends_no_other_work() -> None:
    """But while the agent is not running, it ends what the prompt began."""
    refused = a2c(fails(2, "not now"))
    assert begun(prompt(2, "and"), refused).log(ev.TurnEnded) == []
    alone = AcpHarness().feed(*HELLO, prompt(), a2c(fails(1, "no")))
    assert [(event.reason, event.detail) for event in alone.log(ev.TurnEnded)] == [("error", "no")]


def test_a_prompt_is_echoed_and_shown_once() -> None:
    """In pieces or whole, before or after it was taken, also if the work before it ended meanwhile."""
    echoes = [whole("user_message", "go", name="u1"), update("user_message_chunk", messageId="u1", content=text("go"))]
    for echo in echoes:
        for talk in ([echo, RUNNING, TAKEN], [RUNNING, TAKEN, echo], [RUNNING, IDLE, RUNNING, echo, TAKEN, IDLE]):
            reading = AcpHarness().feed(*HELLO, prompt(), *talk)
            assert [entry.content for entry in reading.entries(Message)] == ["go"]
            assert echo in reading.raws


def test_a_message_of_another_client_is_shown() -> None:
    """What a person said elsewhere comes as an update, whole or in pieces, with blocks that are no text."""
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    rich = update("user_message", messageId="u3", content=[text("see "), link])
    reading = begun(whole("user_message", "and you", name="u2"), whole("user_message", "and you", name="u2"), rich)
    shown = [(entry.content, entry.blocks) for entry in reading.entries(Message)]
    assert shown == [("go", None), ("and you", None), ("see ", [text("see "), link])]


# Messages


def test_chunks_are_deltas() -> None:
    """S2.4: the draft says so; what the importer says still comes first."""
    grows = [says(text, messageId="m") for text in ("I", "I'll", "I'll check")]
    assert begun(*grows, IDLE).entries(Message)[1].content == "II'llI'll check"
    reading = AcpHarness(chunks="cumulative").feed(*HELLO, prompt(), *grows, IDLE)
    assert reading.entries(Message)[1].content == "I'll check"


@pytest.mark.parametrize(
    ("kind", "piece", "entry"),
    [("agent_message", "agent_message_chunk", Message), ("agent_thought", "agent_thought_chunk", Thought)],
)
def test_a_message_that_is_told_anew_stays_one(kind: str, piece: str, entry: type[Any]) -> None:
    """As its chunks said it, grown since, or as another text; later chunks continue there."""
    pieces = [update(piece, messageId="m", content=text(part)) for part in ("ha", "ha")]
    reading = begun(*pieces, whole(kind, "haha"), whole(kind, "ha", "ha!"))
    assert [one.content for one in reading.entries(entry)][-1] == "haha!"
    other = whole(kind, "No.")
    reading.feed(other, update(piece, messageId="m", content=text(" Yes.")))
    assert [one.content for one in reading.entries(entry)][-1] == "No. Yes."
    assert len(reading.entries()) == 2 and other in reading.raws


def test_a_message_told_anew_after_something_else_adds_only_what_is_new() -> None:
    """S2.3: a call came in between, so the rest follows it; nothing is shown twice."""
    reading = begun(whole("agent_message", "I look"), more("in_progress"), whole("agent_message", "I look"))
    assert [entry.content for entry in reading.entries(Message)] == ["go", "I look"]
    reading.feed(whole("agent_message", "I look again"))
    assert [entry.content for entry in reading.entries(Message)] == ["go", "I look", " again"]


def test_a_message_that_is_emptied_is_over() -> None:
    """What was shown cannot be taken back; what comes then stands for itself, and the message is kept."""
    cleared = update("agent_message", messageId="m", content=None)
    reading = begun(whole("agent_message", "Wrong"), cleared, says("Right", messageId="m"))
    assert [entry.content for entry in reading.entries(Message)] == ["go", "Wrong", "Right"]
    assert raws(reading) == [cleared]


def test_what_is_not_text_in_a_message_is_kept() -> None:
    """As is one of which only the metadata changes, or that has no id."""
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    odd = [
        update("agent_message", messageId="m", content=[text("look"), image]),
        update("agent_message", messageId="m", _meta={"x": 1}),
        update("agent_message", content=[text("whose?")]),
        whole("agent_message", "noted", name="n", _meta={"x": 1}),
    ]
    reading = begun(*odd)
    assert [entry.content for entry in reading.entries(Message)] == ["go", "look", "noted"]
    assert raws(reading) == odd


@given(st.lists(st.text("ab", max_size=4), max_size=5), st.text("ab", max_size=12))
def test_what_a_whole_text_adds_is_found_without_the_text(pieces: list[str], anew: str) -> None:
    """The law of `GrowingText`: pieces and the rest give the whole; where none does, the whole is kept from then on."""
    growing = GrowingText()
    for piece in pieces:
        growing.add(piece)
    joined, rest = "".join(pieces), growing.extend_to(anew)
    assert rest == (anew[len(joined) :] if anew.startswith(joined) else None)
    growing.add("!")
    assert growing.replacement == (None if rest is not None else anew + "!")
    assert growing.extend_to(anew + "!?") == "?"


# Calls


def test_an_update_is_all_there_is_of_a_call() -> None:
    """S2.6: the first one makes it, the others tell more, null clears."""
    reading = begun(more(title="T", kind="read", rawInput={"a": 1}), more("in_progress"), more("completed", kind=None))
    assert (reading.call.status, reading.call.title, reading.call.kind) == ("completed", "T", None)


@pytest.mark.parametrize("word", ["paused", "_digesting"])
def test_a_word_for_being_at_work_is_read_so_and_kept(word: str) -> None:
    """The draft: a status that is not known is still in progress."""
    reading = begun(more(word), more("completed"))
    assert (reading.call.status, raws(reading)) == ("completed", [more(word)])
    assert begun(more(word)).call.status == "running"


def test_what_null_takes_back_is_kept() -> None:
    """A status or a name cannot be cleared."""
    cleared = update("tool_call_update", toolCallId="c1", status=None, name=None)
    reading = begun(more("in_progress", title="T"), cleared)
    assert (reading.call.status, raws(reading)) == ("running", [cleared])
    controls = more(capabilities={"cancel": {}})
    assert raws(begun(controls)) == [controls]


def grown(content: Any, name: str = "c1") -> dict[str, Any]:
    return update("tool_call_content_chunk", toolCallId=name, content=content)


def test_content_that_comes_in_pieces_is_output() -> None:
    """Text is appended, other items are sent with all items before."""
    diff = {"type": "diff", "path": "/a", "changes": []}
    reading = begun(
        more("in_progress", **SHOWS), grown(item("a\n")), grown(diff), grown(item("b\n")), more("completed")
    )
    assert (reading.call.output_text, reading.call.content) == ("a\nb\n", [*SHOWS["content"], diff])
    assert (reading.call.output, raws(reading)) == (None, [])
    noted = grown({**item("c"), "_meta": {"x": 1}})
    assert raws(begun(noted)) == [noted]


def test_many_items_of_content_are_told_in_few_words() -> None:
    """C12: what each item costs does not grow with their number; the end tells all, and none is lost before it."""
    items = [{"type": "diff", "path": f"/{number}", "changes": []} for number in range(1000)]
    reading = begun(*map(grown, items))
    assert sum(len(event.content) for event in reading.log(ev.CallProgress)) < 20 * len(items)
    shown = reading.call.content or []
    assert shown == items[: len(shown)]
    assert [grown(one) for one in items[len(shown) :]] == raws(reading)[-len(items) + len(shown) :]
    assert reading.feed(more("completed")).call.content == items


def test_content_told_anew_after_pieces_is_what_the_call_gave() -> None:
    """The same text or more of it is no other; another text is the output in the end."""
    anew = {"content": [item("a\nb\nc\n")]}
    assert begun(grown(item("a\n")), more(content=[item("a\n")])).call.output_text == "a\n"
    assert begun(grown(item("a\n")), more(**anew)).call.output_text == "a\nb\nc\n"
    other = begun(grown(item("x\n")), more("completed", **anew)).call
    assert (other.output_text, other.output) == ("x\n", "a\nb\nc\n")
    assert begun(grown(item("x\n")), more("completed", rawOutput=1, **anew)).call.output == 1


# Terminals that the agent owns


@given(st.text(max_size=12), st.lists(st.integers(0, 48), max_size=6), st.integers(0, 6))
def test_output_is_whole_however_its_bytes_are_split(printed: str, cuts: list[int], shown: int) -> None:
    """Each chunk is base64 by itself, a character may be cut in two, and the call may come after its output."""
    data = printed.encode()
    places = sorted({min(cut, len(data)) for cut in cuts})
    chunks = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    talk = [chunk(piece) for piece in chunks]
    talk.insert(min(shown, len(talk)), more("in_progress", **SHOWS))
    reading = begun(*talk, update("terminal_update", terminalId="t", exitStatus={"exitCode": 0}), more("completed"))
    assert (reading.call.output_text, reading.call.exit_status) == (printed, 0)


def test_bytes_that_are_no_text_are_shown_as_such_and_kept() -> None:
    """As is what is no base64, and what belongs to no terminal."""
    odd = [chunk(b"1\xff2\n"), chunk("no base64"), update("terminal_output_chunk", data="YQ==")]
    reading = begun(more("in_progress", **SHOWS), *odd)
    assert (reading.call.output_text, raws(reading)) == ("1\ufffd2\n", odd)


def test_half_a_character_at_the_end_is_told_with_the_end() -> None:
    """When the terminal exits, or when the call does."""
    exited = update("terminal_update", terminalId="t", exitStatus={"exitCode": 1})
    for end in (exited, more("failed")):
        reading = begun(more("in_progress", **SHOWS), chunk("é".encode()[:1]))
        assert reading.call.output_text == ""
        assert reading.feed(end).call.output_text == "\ufffd"


def test_a_terminal_told_anew_is_what_the_call_gave() -> None:
    """A snapshot that has grown is appended to; another one is the output in the end, with what came after it."""
    reading = begun(more("in_progress", **SHOWS), chunk(b"1\n"), screen(b"1\n2\n"))
    assert (reading.call.output_text, reading.call.progress) == ("1\n2\n", None)
    reading.feed(screen(b"3\n"), chunk(b"4\n"))
    assert reading.call.progress == "3\n"
    assert reading.feed(more("completed")).call.output == "3\n4\n"
    assert begun(more("in_progress", **SHOWS), chunk(b"1\n"), screen(None), more("completed")).call.output == ""
    early = begun(chunk(b"x"), screen(b"1\n"), more("completed", **SHOWS)).call
    assert (early.output_text, early.output) == ("1\n", None)


def test_of_a_call_that_ended_no_output_is_kept_in_memory() -> None:
    """What a terminal shows is asked for at the end of its call, and not after it."""
    terminals = Terminals()
    terminals.show("c1", SHOWS["content"])
    for screen in ("one", "another"):
        terminals.output({"terminalId": "t"}, {"output": screen})
    assert terminals.screen("c1") == "another"
    terminals.end_call("c1")
    assert terminals.screen("c1") is UNSET


def test_two_terminals_of_one_call_share_its_output() -> None:
    """None of them is the whole of it."""
    both = {"content": [*SHOWS["content"], {"type": "terminal", "terminalId": "u"}]}
    talk = [chunk(b"t1\n"), chunk(b"u1\n", "u"), screen(b"t2\n"), more("completed")]
    reading = begun(more("in_progress", **both), *talk)
    assert (reading.call.output_text, reading.call.output) == ("t1\nu1\n", None)


def test_other_facts_of_a_terminal_are_kept() -> None:
    """The command, the folder, the size; an exit of which nothing is known; a snapshot that is none."""
    odd = [
        update("terminal_update", terminalId="t", command="ls", cwd="/w"),
        update("terminal_update", terminalId="t", exitStatus={}),
        update("terminal_update", terminalId="t", output={"data": 7}),
        update("terminal_update", output=None),
    ]
    reading = begun(more("in_progress", **SHOWS), *odd)
    assert (reading.call.exit_status, raws(reading)) == (None, odd)
    both = update("terminal_update", terminalId="t", output=7, exitStatus={"exitCode": 130, "signal": "SIGINT"})
    reading.feed(both)
    assert (reading.call.exit_status, raws(reading)) == (130, [*odd, both])
    reading.feed(update("terminal_update", terminalId="t", exitStatus=None))
    assert (reading.call.exit_status, raws(reading)) == (None, [*odd, both])


# Permission


def ask(key: Any = 7, **params: Any) -> dict[str, Any]:
    return a2c(asks("session/request_permission", key, options=OPTIONS, **params))


def test_a_question_has_words_of_its_own() -> None:
    """They are no title of the call, which the question describes too (S2.6)."""
    about = {"type": "tool_call", "toolCall": {"toolCallId": "c1", "rawInput": {"a": 1}}}
    question = ask(title="May I?", description="It matters.", subject=about)
    reading = begun(more(title="T"), question, chosen("no", 7))
    assert (reading.call.title, reading.call.raw_input, reading.call.status) == ("T", {"a": 1}, "denied")
    assert (reading.request.description, reading.request.raw_input) == ("May I?\nIt matters.", {"a": 1})
    assert raws(reading) == []


def test_a_question_about_a_command_is_one_about_its_call() -> None:
    """By the call's id or its terminal's; an unknown call is described by the command."""
    command = {"type": "command", "command": "rm x", "cwd": "/w"}
    for named in ({"toolCallId": "c1"}, {"terminalId": "t"}):
        reading = begun(more(title="T", **SHOWS), ask(title="Run?", subject={**command, **named}), chosen("yes", 7))
        assert (reading.call.title, reading.call.status, len(reading.calls)) == ("T", "queued", 1)
    alone = begun(ask(title="Run?", subject=command), chosen("yes", 7))
    assert (alone.call.title, alone.call.kind, alone.call.raw_input["command"]) == ("rm x", "execute", "rm x")
    assert alone.feed(IDLE).close().call.status in ("queued", "lost")
    assert raws(alone)[0] == ask(title="Run?", subject=command)


def test_a_question_about_nothing_is_answered_and_over() -> None:
    """C5: no call will come of it; its subject is stored."""
    for subject in ({}, {"subject": {"type": "_network"}}):
        reading = begun(ask(title="Use it?", **subject), chosen("yes", 7))
        assert (reading.call.title, reading.call.status, reading.request.state) == ("Use it?", "completed", "granted")
        assert raws(reading) == [ask(title="Use it?", **subject)] * len(subject)
    assert begun(ask(title="Use it?"), chosen("no", 7)).call.status == "denied"


def test_an_option_that_was_not_offered_approves_nothing() -> None:
    """The draft says so. One that was, of an unknown kind, only the agent can interpret."""
    assert begun(ask(title="May I?"), chosen("unheard-of", 7)).call.status == "denied"
    assert begun(ask(title="May I?"), chosen("odd", 7)).call.status == "awaiting_approval"


def test_what_is_no_question_is_kept() -> None:
    """Without options or a title there is nothing to answer."""
    odd = [ask(), a2c(asks("session/request_permission", 8, title="May I?"))]
    assert raws(begun(*odd)) == odd


# Taking a session up again


def resumed(*replay: Any, **result: Any) -> list[Any]:
    return [c2a(asks("session/resume", 3, replayFrom={"type": "start"})), *replay, a2c(answers(3, **result))]


def test_a_replay_tells_messages_calls_and_terminals() -> None:
    """S2.11: into an empty session, in the order in which each was first told of."""
    reading = AcpHarness().feed(
        *HELLO,
        *resumed(
            whole("user_message", "go", name="u1"),
            update("agent_message", messageId="m", content=[]),
            update(
                "terminal_update", terminalId="t", command="ls", output={"data": "YQo="}, exitStatus={"exitCode": 2}
            ),
            chunk("ü\n".encode()[:1]),
            chunk("ü\n".encode()[1:]),
            says("I ", messageId="m"),
            more("completed", title="ls", **SHOWS),
            says("see", messageId="m"),
            grown(item("x"), "c2"),
            update("plan_update", plan={"type": "items", "planId": "p", "entries": [{"content": "one"}]}),
        ),
    )
    shown = [entry["type"] for entry in normalized_entries(reading)]
    assert shown == ["message", "message", "tool_call", "tool_call", "plan"]
    assert [entry.content for entry in reading.entries(Message)] == ["go", "I see"]
    assert (reading.calls[0].output, reading.calls[0].exit_status) == ("a\nü\n", 2)
    assert (reading.calls[1].output, reading.entries(Plan)[0].entries) == ("x", [{"content": "one"}])


def test_what_nobody_shows_in_a_replay_is_kept() -> None:
    """Output of a terminal without a call, messages that say nothing, a plan that was removed."""
    odd = [chunk(b"x"), update("user_message", messageId="u", content=[]), update("plan_removed", planId="p")]
    reading = AcpHarness().feed(*HELLO, *resumed(*odd))
    assert reading.entries() == []
    assert all(message in reading.raws for message in odd)


def test_what_is_odd_in_a_replay_is_kept() -> None:
    """Pictures, metadata, pieces that belong to nothing; a message of the user is shown with its blocks."""
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    odd = [
        update("agent_message_chunk", messageId="m", content=image),
        update("user_message_chunk", messageId="u", content=image),
        whole("agent_message", "hi", name="n", _meta={"x": 1}),
        whole("agent_message", "whose?", name=""),
        grown({**item("x"), "_meta": {"x": 1}}),
        grown({"type": "diff", "path": "/a"}),
        grown("no item"),
        chunk("no base64"),
        update("plan_update", plan={"type": "_drawing", "planId": "p"}),
        update("session_message", messageId="s", content=[]),
        update("state_update", state="running"),
        update("state_update", state="idle"),
    ]
    reading = AcpHarness().feed(*HELLO, *resumed(*odd, exitCode=0))
    assert [message for message in odd if message not in reading.raws] == [grown({"type": "diff", "path": "/a"})]
    assert [(entry.content, entry.blocks) for entry in reading.entries(Message)] == [("", [image]), ("hi", None)]
    assert (reading.call.output, reading.call.content) == ("x", [{"type": "diff", "path": "/a"}])


def test_how_the_agent_stands_is_told_after_the_past() -> None:
    """If it still works, a turn begins that its idling ends; the past belongs to no turn."""
    for state in ("running", "idle"):
        reading = AcpHarness().feed(*HELLO, *resumed(whole("user_message", "go"), update("state_update", state=state)))
        assert [entry.turn for entry in reading.entries()] == [""]
        assert len(reading.log(ev.TurnStarted)) == (state == "running")
        assert len(reading.feed(says("on", messageId="n"), IDLE).log(ev.TurnEnded)) == (state == "running")


def test_a_replay_does_not_change_what_was_recorded() -> None:
    """S2.11: another title, another output, another text."""
    reading = begun(
        says("Hi", messageId="m"), more("in_progress", title="T", **SHOWS), chunk(b"1"), more("failed"), IDLE
    )
    before = normalized_entries(reading)
    messages = [whole("user_message", "gone"), whole("agent_message", "Ho"), more("completed", title="U", **SHOWS)]
    reading.feed(*resumed(*messages, screen(b"2")))
    assert normalized_entries(reading) == before


# Nothing is forgotten

# For every kind of update that the protocol's own package knows an example, and whether it is more than kept.
VERSION_1: dict[str, tuple[dict[str, Any], bool]] = {
    "user_message_chunk": ({"content": text("hi")}, True),
    "agent_message_chunk": ({"content": text("hi")}, True),
    "agent_thought_chunk": ({"content": text("hi")}, True),
    "tool_call": ({"toolCallId": "c", "title": "T"}, True),
    "tool_call_update": ({"toolCallId": "c"}, True),
    "plan": ({"entries": []}, True),
    "plan_update": ({"plan": {"type": "items", "planId": "p", "entries": []}}, True),
    "plan_removed": ({"planId": "p"}, False),
    "available_commands_update": ({"availableCommands": []}, True),
    "current_mode_update": ({"currentModeId": "m"}, True),
    "config_option_update": ({"configOptions": []}, True),
    "session_info_update": ({"title": "T"}, True),
    "usage_update": ({"used": 1, "size": 2}, True),
}
# Newer ones of version 1, and those of the draft.
LATER: dict[str, tuple[dict[str, Any], bool]] = {
    "notice": ({"severity": "info", "title": "T"}, True),
    "compaction_update": ({"compactionId": "k", "status": "completed"}, False),
    "compaction_summary_chunk": ({"compactionId": "k", "content": text("hi")}, False),
    "subagent_update": ({"sessionId": "s2"}, False),
    "session_message": ({"messageId": "m", "content": []}, False),
    "session_message_chunk": ({"messageId": "m", "content": text("hi")}, False),
    "user_message": ({"messageId": "m", "content": [text("hi")]}, True),
    "agent_message": ({"messageId": "m", "content": [text("hi")]}, True),
    "agent_thought": ({"messageId": "m", "content": [text("hi")]}, True),
    "state_update": ({"state": "running"}, True),
    "tool_call_content_chunk": ({"toolCallId": "c", "content": item("x")}, True),
    "terminal_update": ({"terminalId": "t", "command": "ls"}, False),
    "terminal_output_chunk": ({"terminalId": "t", "data": "YQ=="}, False),
    "some_future_update": ({"x": 1}, False),
}


def kinds_of_the_package() -> set[str]:
    """Every kind of update that the installed package has a model for."""
    models = [model for model in vars(acp.schema).values() if isinstance(model, type)]
    fields = [getattr(model, "model_fields", {}).get("session_update") for model in models]
    return {get_args(field.annotation)[0] for field in fields if field is not None}


def test_the_table_of_kinds_is_whole() -> None:
    """The examples are of exactly the kinds that the protocol's own package knows, and it takes them."""
    assert kinds_of_the_package() == set(VERSION_1)
    for kind, (fields, _) in VERSION_1.items():
        body = {"sessionId": "s1", "update": {"sessionUpdate": kind, **fields}}
        assert acp.schema.SessionNotification.model_validate(body)


@pytest.mark.parametrize("kind", VERSION_1 | LATER)
def test_no_kind_of_update_is_lost(kind: str) -> None:
    """It is read, or it is kept whole; never neither."""
    fields, read = (VERSION_1 | LATER)[kind]
    message = update(kind, **fields)
    log = AcpHarness().feed(message).ledger.log
    assert log
    assert (message in [event.body for event in log if isinstance(event, ev.Raw)]) or read
    assert (len([event for event in log if not isinstance(event, ev.Raw)]) > 0) == read
