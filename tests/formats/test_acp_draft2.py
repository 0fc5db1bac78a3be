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


def test_a_turn_lasts_from_the_prompt_until_the_agent_is_idle() -> None:
    """Neither the response to the prompt nor an unknown state ends it."""
    reading = begun(update("state_update", state="requires_action"), update("state_update", state="_napping"), RUNNING)
    assert [type(event) for event in reading.log(ev.TurnStarted | ev.TurnEnded)] == [ev.TurnStarted]
    assert [event.reason for event in reading.feed(IDLE, IDLE).log(ev.TurnEnded)] == ["end_turn"]


def test_work_without_a_prompt_is_a_turn() -> None:
    """A prompt that arrives during it belongs to the same turn."""
    reading = AcpHarness().feed(*HELLO, RUNNING, more("in_progress"), prompt(), TAKEN, IDLE, RUNNING)
    assert [event.turn for event in reading.log(ev.TurnStarted)] == ["t1", "t2"]
    assert [entry.turn for entry in reading.entries()] == ["t1", "t1"]


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "_bored"])
def test_a_turn_ends_with_the_stop_reason_of_the_agent(reason: str) -> None:
    """Any stop reason is stored unchanged, and so is the usage."""
    idle = update("state_update", state="idle", stopReason=reason, usage={"totalTokens": 3})
    reading = begun(idle)
    assert ([event.reason for event in reading.log(ev.TurnEnded)], raws(reading)) == ([reason], [idle])


def test_an_error_response_ends_the_turn_with_its_message() -> None:
    """C5: the calls of the turn are lost with that as the reason."""
    reading = begun(
        more("in_progress"), update("state_update", state="idle", stopReason="error", error={"message": "x"})
    )
    assert [(event.reason, event.detail) for event in reading.log(ev.TurnEnded)] == [("error", "x")]
    assert (reading.call.status, reading.call.reason) == ("lost", "x")


def test_a_refused_prompt_does_not_end_a_running_turn() -> None:
    """If the agent is not running, the refusal ends the turn that the prompt began."""
    refused = a2c(fails(2, "not now"))
    assert begun(prompt(2, "and"), refused).log(ev.TurnEnded) == []
    alone = AcpHarness().feed(*HELLO, prompt(), a2c(fails(1, "no")))
    assert [(event.reason, event.detail) for event in alone.log(ev.TurnEnded)] == [("error", "no")]


def test_an_echoed_prompt_is_shown_once() -> None:
    """In chunks or in full, before or after the response, also if the previous turn ended in between."""
    echoes = [whole("user_message", "go", name="u1"), update("user_message_chunk", messageId="u1", content=text("go"))]
    for echo in echoes:
        for talk in ([echo, RUNNING, TAKEN], [RUNNING, TAKEN, echo], [RUNNING, IDLE, RUNNING, echo, TAKEN, IDLE]):
            reading = AcpHarness().feed(*HELLO, prompt(), *talk)
            assert [entry.content for entry in reading.entries(Message)] == ["go"]
            assert echo in reading.raws


def test_a_message_of_another_client_is_shown() -> None:
    """User messages of another client arrive as updates, in full or in chunks, also with content other than text."""
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    rich = update("user_message", messageId="u3", content=[text("see "), link])
    reading = begun(whole("user_message", "and you", name="u2"), whole("user_message", "and you", name="u2"), rich)
    shown = [(entry.content, entry.blocks) for entry in reading.entries(Message)]
    assert shown == [("go", None), ("and you", None), ("see ", [text("see "), link])]


# Messages


def test_chunks_are_deltas() -> None:
    """S2.4: as the draft defines; a policy of the importer still has priority."""
    grows = [says(text, messageId="m") for text in ("I", "I'll", "I'll check")]
    assert begun(*grows, IDLE).entries(Message)[1].content == "II'llI'll check"
    reading = AcpHarness(chunks="cumulative").feed(*HELLO, prompt(), *grows, IDLE)
    assert reading.entries(Message)[1].content == "I'll check"


@pytest.mark.parametrize(
    ("kind", "piece", "entry"),
    [("agent_message", "agent_message_chunk", Message), ("agent_thought", "agent_thought_chunk", Thought)],
)
def test_a_message_sent_again_stays_one_entry(kind: str, piece: str, entry: type[Any]) -> None:
    """Equal to its chunks, longer, or with another text; later chunks are appended to it."""
    pieces = [update(piece, messageId="m", content=text(part)) for part in ("ha", "ha")]
    reading = begun(*pieces, whole(kind, "haha"), whole(kind, "ha", "ha!"))
    assert [one.content for one in reading.entries(entry)][-1] == "haha!"
    other = whole(kind, "No.")
    reading.feed(other, update(piece, messageId="m", content=text(" Yes.")))
    assert [one.content for one in reading.entries(entry)][-1] == "No. Yes."
    assert len(reading.entries()) == 2 and other in reading.raws


def test_a_message_sent_again_after_a_call_adds_only_its_new_text() -> None:
    """S2.3: the new text follows the call, and no text is shown twice."""
    reading = begun(whole("agent_message", "I look"), more("in_progress"), whole("agent_message", "I look"))
    assert [entry.content for entry in reading.entries(Message)] == ["go", "I look"]
    reading.feed(whole("agent_message", "I look again"))
    assert [entry.content for entry in reading.entries(Message)] == ["go", "I look", " again"]


def test_an_emptied_message_is_ended() -> None:
    """Shown text cannot be removed; later text makes a new entry, and the message is stored as raw."""
    cleared = update("agent_message", messageId="m", content=None)
    reading = begun(whole("agent_message", "Wrong"), cleared, says("Right", messageId="m"))
    assert [entry.content for entry in reading.entries(Message)] == ["go", "Wrong", "Right"]
    assert raws(reading) == [cleared]


def test_message_content_other_than_text_is_stored_as_raw() -> None:
    """So are a message with changed metadata only, and one without an id."""
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
def test_growing_text_finds_the_new_part_of_a_full_text(pieces: list[str], anew: str) -> None:
    """If the full text does not start with the earlier chunks, it becomes the replacement."""
    growing = GrowingText()
    for piece in pieces:
        growing.add(piece)
    joined, rest = "".join(pieces), growing.extend_to(anew)
    assert rest == (anew[len(joined) :] if anew.startswith(joined) else None)
    growing.add("!")
    assert growing.replacement == (None if rest is not None else anew + "!")
    assert growing.extend_to(anew + "!?") == "?"


# Calls


def test_the_first_update_creates_a_call_and_later_ones_change_it() -> None:
    """S2.6: draft 2 has updates only; null clears a field."""
    reading = begun(more(title="T", kind="read", rawInput={"a": 1}), more("in_progress"), more("completed", kind=None))
    assert (reading.call.status, reading.call.title, reading.call.kind) == ("completed", "T", None)


@pytest.mark.parametrize("word", ["paused", "_digesting"])
def test_an_unknown_status_means_in_progress_and_is_stored(word: str) -> None:
    """The draft defines this; the message is stored as raw."""
    reading = begun(more(word), more("completed"))
    assert (reading.call.status, raws(reading)) == ("completed", [more(word)])
    assert begun(more(word)).call.status == "running"


def test_null_for_a_status_or_a_name_is_stored_as_raw() -> None:
    """A status or a name cannot be cleared."""
    cleared = update("tool_call_update", toolCallId="c1", status=None, name=None)
    reading = begun(more("in_progress", title="T"), cleared)
    assert (reading.call.status, raws(reading)) == ("running", [cleared])
    controls = more(capabilities={"cancel": {}})
    assert raws(begun(controls)) == [controls]


def grown(content: Any, name: str = "c1") -> dict[str, Any]:
    return update("tool_call_content_chunk", toolCallId=name, content=content)


def test_content_chunks_are_appended_to_the_output() -> None:
    """Text is appended; other items are sent with all items before them."""
    diff = {"type": "diff", "path": "/a", "changes": []}
    reading = begun(
        more("in_progress", **SHOWS), grown(item("a\n")), grown(diff), grown(item("b\n")), more("completed")
    )
    assert (reading.call.output_text, reading.call.content) == ("a\nb\n", [*SHOWS["content"], diff])
    assert (reading.call.output, raws(reading)) == (None, [])
    noted = grown({**item("c"), "_meta": {"x": 1}})
    assert raws(begun(noted)) == [noted]


def test_the_log_grows_linearly_with_content_items() -> None:
    """C12: the cost of an item does not grow with their number; the end has all items, and none is lost before it."""
    items = [{"type": "diff", "path": f"/{number}", "changes": []} for number in range(1000)]
    reading = begun(*map(grown, items))
    assert sum(len(event.content) for event in reading.log(ev.CallProgress)) < 20 * len(items)
    shown = reading.call.content or []
    assert shown == items[: len(shown)]
    assert [grown(one) for one in items[len(shown) :]] == raws(reading)[-len(items) + len(shown) :]
    assert reading.feed(more("completed")).call.content == items


def test_full_content_after_chunks_is_the_output_of_the_call() -> None:
    """An equal or longer text continues the chunks; another text replaces the output at the end."""
    anew = {"content": [item("a\nb\nc\n")]}
    assert begun(grown(item("a\n")), more(content=[item("a\n")])).call.output_text == "a\n"
    assert begun(grown(item("a\n")), more(**anew)).call.output_text == "a\nb\nc\n"
    other = begun(grown(item("x\n")), more("completed", **anew)).call
    assert (other.output_text, other.output) == ("x\n", "a\nb\nc\n")
    assert begun(grown(item("x\n")), more("completed", rawOutput=1, **anew)).call.output == 1


# Terminals that the agent owns


@given(st.text(max_size=12), st.lists(st.integers(0, 48), max_size=6), st.integers(0, 6))
def test_terminal_output_is_complete_for_any_split_of_its_bytes(printed: str, cuts: list[int], shown: int) -> None:
    """Each chunk is separate base64, may split a character, and may arrive before its call."""
    data = printed.encode()
    places = sorted({min(cut, len(data)) for cut in cuts})
    chunks = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    talk = [chunk(piece) for piece in chunks]
    talk.insert(min(shown, len(talk)), more("in_progress", **SHOWS))
    reading = begun(*talk, update("terminal_update", terminalId="t", exitStatus={"exitCode": 0}), more("completed"))
    assert (reading.call.output_text, reading.call.exit_status) == (printed, 0)


def test_output_bytes_that_are_not_utf8_are_marked_and_stored() -> None:
    """Invalid base64, and output without a terminal, are stored as raw."""
    odd = [chunk(b"1\xff2\n"), chunk("no base64"), update("terminal_output_chunk", data="YQ==")]
    reading = begun(more("in_progress", **SHOWS), *odd)
    assert (reading.call.output_text, raws(reading)) == ("1\ufffd2\n", odd)


def test_an_incomplete_last_character_is_added_at_the_end() -> None:
    """When the terminal exits, or when the call ends."""
    exited = update("terminal_update", terminalId="t", exitStatus={"exitCode": 1})
    for end in (exited, more("failed")):
        reading = begun(more("in_progress", **SHOWS), chunk("é".encode()[:1]))
        assert reading.call.output_text == ""
        assert reading.feed(end).call.output_text == "\ufffd"


def test_a_terminal_snapshot_is_the_output_of_the_call() -> None:
    """A longer snapshot is appended; a different one, with what follows it, is the output at the end."""
    reading = begun(more("in_progress", **SHOWS), chunk(b"1\n"), screen(b"1\n2\n"))
    assert (reading.call.output_text, reading.call.progress) == ("1\n2\n", None)
    reading.feed(screen(b"3\n"), chunk(b"4\n"))
    assert reading.call.progress == "3\n"
    assert reading.feed(more("completed")).call.output == "3\n4\n"
    assert begun(more("in_progress", **SHOWS), chunk(b"1\n"), screen(None), more("completed")).call.output == ""
    early = begun(chunk(b"x"), screen(b"1\n"), more("completed", **SHOWS)).call
    assert (early.output_text, early.output) == ("1\n", None)


def test_the_output_of_an_ended_call_is_not_held_in_memory() -> None:
    """The screen of a terminal is read at the end of its call and then dropped."""
    terminals = Terminals()
    terminals.show("c1", SHOWS["content"])
    for screen in ("one", "another"):
        terminals.output({"terminalId": "t"}, {"output": screen})
    assert terminals.screen("c1") == "another"
    terminals.end_call("c1")
    assert terminals.screen("c1") is UNSET


def test_the_output_of_two_terminals_of_a_call_is_joined() -> None:
    """Neither of them has the full output of the call."""
    both = {"content": [*SHOWS["content"], {"type": "terminal", "terminalId": "u"}]}
    talk = [chunk(b"t1\n"), chunk(b"u1\n", "u"), screen(b"t2\n"), more("completed")]
    reading = begun(more("in_progress", **both), *talk)
    assert (reading.call.output_text, reading.call.output) == ("t1\nu1\n", None)


def test_other_terminal_fields_are_stored_as_raw() -> None:
    """Command, folder and size, an exit without a status, and an invalid snapshot."""
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


def test_a_permission_request_has_its_own_description() -> None:
    """S2.6: it does not change the title of the call, which the request describes too."""
    about = {"type": "tool_call", "toolCall": {"toolCallId": "c1", "rawInput": {"a": 1}}}
    question = ask(title="May I?", description="It matters.", subject=about)
    reading = begun(more(title="T"), question, chosen("no", 7))
    assert (reading.call.title, reading.call.raw_input, reading.call.status) == ("T", {"a": 1}, "denied")
    assert (reading.request.description, reading.request.raw_input) == ("May I?\nIt matters.", {"a": 1})
    assert raws(reading) == []


def test_a_request_about_a_command_is_about_its_call() -> None:
    """By the id of the call or of its terminal; an unknown call is described by the command."""
    command = {"type": "command", "command": "rm x", "cwd": "/w"}
    for named in ({"toolCallId": "c1"}, {"terminalId": "t"}):
        reading = begun(more(title="T", **SHOWS), ask(title="Run?", subject={**command, **named}), chosen("yes", 7))
        assert (reading.call.title, reading.call.status, len(reading.calls)) == ("T", "queued", 1)
    alone = begun(ask(title="Run?", subject=command), chosen("yes", 7))
    assert (alone.call.title, alone.call.kind, alone.call.raw_input["command"]) == ("rm x", "execute", "rm x")
    assert alone.feed(IDLE).close().call.status in ("queued", "lost")
    assert raws(alone)[0] == ask(title="Run?", subject=command)


def test_a_request_without_a_call_ends_with_its_answer() -> None:
    """C5: no call follows; the subject of the request is stored."""
    for subject in ({}, {"subject": {"type": "_network"}}):
        reading = begun(ask(title="Use it?", **subject), chosen("yes", 7))
        assert (reading.call.title, reading.call.status, reading.request.state) == ("Use it?", "completed", "granted")
        assert raws(reading) == [ask(title="Use it?", **subject)] * len(subject)
    assert begun(ask(title="Use it?"), chosen("no", 7)).call.status == "denied"


def test_an_option_that_was_not_offered_does_not_approve() -> None:
    """The draft defines this. An offered option of unknown kind is left to the agent."""
    assert begun(ask(title="May I?"), chosen("unheard-of", 7)).call.status == "denied"
    assert begun(ask(title="May I?"), chosen("odd", 7)).call.status == "awaiting_approval"


def test_a_malformed_permission_request_is_stored_as_raw() -> None:
    """A request without options or without a title cannot be answered."""
    odd = [ask(), a2c(asks("session/request_permission", 8, title="May I?"))]
    assert raws(begun(*odd)) == odd


# Taking a session up again


def resumed(*replay: Any, **result: Any) -> list[Any]:
    return [c2a(asks("session/resume", 3, replayFrom={"type": "start"})), *replay, a2c(answers(3, **result))]


def test_a_replay_adds_messages_calls_and_terminal_output() -> None:
    """S2.11: into an empty session, in the order of their first updates."""
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


def test_replayed_items_without_an_entry_are_stored() -> None:
    """Terminal output without a call, empty messages, and a removed plan."""
    odd = [chunk(b"x"), update("user_message", messageId="u", content=[]), update("plan_removed", planId="p")]
    reading = AcpHarness().feed(*HELLO, *resumed(*odd))
    assert reading.entries() == []
    assert all(message in reading.raws for message in odd)


def test_unusual_items_of_a_replay_are_stored() -> None:
    """Images, metadata, and chunks without a message; a user message is shown with its blocks."""
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


def test_a_replay_that_ends_with_a_running_agent_begins_a_turn() -> None:
    """The turn ends when the agent is idle; replayed entries belong to no turn."""
    for state in ("running", "idle"):
        reading = AcpHarness().feed(*HELLO, *resumed(whole("user_message", "go"), update("state_update", state=state)))
        assert [entry.turn for entry in reading.entries()] == [""]
        assert len(reading.log(ev.TurnStarted)) == (state == "running")
        assert len(reading.feed(says("on", messageId="n"), IDLE).log(ev.TurnEnded)) == (state == "running")


def test_a_replay_does_not_change_recorded_entries() -> None:
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


def test_the_table_has_every_kind_of_update() -> None:
    """The examples cover exactly the kinds of the protocol's package, and the package accepts them."""
    assert kinds_of_the_package() == set(VERSION_1)
    for kind, (fields, _) in VERSION_1.items():
        body = {"sessionId": "s1", "update": {"sessionUpdate": kind, **fields}}
        assert acp.schema.SessionNotification.model_validate(body)


@pytest.mark.parametrize("kind", VERSION_1 | LATER)
def test_every_kind_of_update_is_decoded_or_stored_as_raw(kind: str) -> None:
    """No kind is dropped."""
    fields, read = (VERSION_1 | LATER)[kind]
    message = update(kind, **fields)
    log = AcpHarness().feed(message).ledger.log
    assert log
    assert (message in [event.body for event in log if isinstance(event, ev.Raw)]) or read
    assert (len([event for event in log if not isinstance(event, ev.Raw)]) > 0) == read
