"""Decode draft 2 of the Agent Client Protocol, and check that every kind of update is decoded or stored as raw."""

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
    agent_text,
    c2a,
    call_update,
    normalized_entries,
    permission_answer,
    prompt,
    rpc_error,
    rpc_request,
    rpc_response,
    update,
)

HANDSHAKE = [c2a(rpc_request("initialize", 0, protocolVersion=2)), a2c(rpc_response(0, protocolVersion=2))]
RUNNING, IDLE = update("state_update", state="running"), update("state_update", state="idle", stopReason="end_turn")
PROMPT_ACCEPTED = a2c(rpc_response(1, messageId="u1"))
TERMINAL_CONTENT = {"content": [{"type": "terminal", "terminalId": "t"}]}


def start_turn(*messages: Any) -> AcpHarness:
    """Return a harness in whose session a turn is running, after these messages."""
    return AcpHarness().feed(*HANDSHAKE, prompt(), RUNNING, PROMPT_ACCEPTED).feed(*messages)


def other_raws(harness: AcpHarness) -> list[Any]:
    """Return the messages stored as raw, except those that start the turn."""
    return [body for body in harness.raws if body not in (*HANDSHAKE, RUNNING, PROMPT_ACCEPTED)]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def item(value: str) -> dict[str, Any]:
    return {"type": "content", "content": text(value)}


def full_message(kind: str, *texts: str, name: str = "m", **fields: Any) -> dict[str, Any]:
    return update(kind, messageId=name, content=[text(one) for one in texts], **fields)


def output_chunk(data: bytes | str, name: str = "t", **fields: Any) -> dict[str, Any]:
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return update("terminal_output_chunk", terminalId=name, data=encoded, **fields)


def terminal_snapshot(data: bytes | None, **fields: Any) -> dict[str, Any]:
    output = None if data is None else {"data": base64.b64encode(data).decode()}
    return update("terminal_update", terminalId="t", output=output, **fields)


# Turns


def test_a_turn_lasts_from_the_prompt_until_the_agent_is_idle() -> None:
    """Neither the response to the prompt nor an unknown state ends it."""
    harness = start_turn(
        update("state_update", state="requires_action"), update("state_update", state="_napping"), RUNNING
    )
    assert [type(event) for event in harness.log(ev.TurnStarted | ev.TurnEnded)] == [ev.TurnStarted]
    assert [event.reason for event in harness.feed(IDLE, IDLE).log(ev.TurnEnded)] == ["end_turn"]


def test_work_without_a_prompt_is_a_turn() -> None:
    """A prompt that arrives during it belongs to the same turn."""
    harness = AcpHarness().feed(
        *HANDSHAKE, RUNNING, call_update("in_progress"), prompt(), PROMPT_ACCEPTED, IDLE, RUNNING
    )
    assert [event.turn for event in harness.log(ev.TurnStarted)] == ["t1", "t2"]
    assert [entry.turn for entry in harness.entries()] == ["t1", "t1"]


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "_bored"])
def test_a_turn_ends_with_the_stop_reason_of_the_agent(reason: str) -> None:
    """Any stop reason is stored unchanged, and so is the usage."""
    idle = update("state_update", state="idle", stopReason=reason, usage={"totalTokens": 3})
    harness = start_turn(idle)
    assert ([event.reason for event in harness.log(ev.TurnEnded)], other_raws(harness)) == ([reason], [idle])


def test_an_error_response_ends_the_turn_with_its_message() -> None:
    """C5: the calls of the turn are lost with that as the reason."""
    harness = start_turn(
        call_update("in_progress"), update("state_update", state="idle", stopReason="error", error={"message": "x"})
    )
    assert [(event.reason, event.detail) for event in harness.log(ev.TurnEnded)] == [("error", "x")]
    assert (harness.call.status, harness.call.reason) == ("lost", "x")


def test_a_refused_prompt_does_not_end_a_running_turn() -> None:
    """If the agent is not running, the refusal ends the turn that the prompt began."""
    refused = a2c(rpc_error(2, "not now"))
    assert start_turn(prompt(2, "and"), refused).log(ev.TurnEnded) == []
    alone = AcpHarness().feed(*HANDSHAKE, prompt(), a2c(rpc_error(1, "no")))
    assert [(event.reason, event.detail) for event in alone.log(ev.TurnEnded)] == [("error", "no")]


def test_an_echoed_prompt_is_shown_once() -> None:
    """In chunks or in full, before or after the response, also if the previous turn ended in between."""
    echoes = [
        full_message("user_message", "go", name="u1"),
        update("user_message_chunk", messageId="u1", content=text("go")),
    ]
    for echo in echoes:
        for messages in (
            [echo, RUNNING, PROMPT_ACCEPTED],
            [RUNNING, PROMPT_ACCEPTED, echo],
            [RUNNING, IDLE, RUNNING, echo, PROMPT_ACCEPTED, IDLE],
        ):
            harness = AcpHarness().feed(*HANDSHAKE, prompt(), *messages)
            assert [entry.content for entry in harness.entries(Message)] == ["go"]
            assert echo in harness.raws


def test_a_message_of_another_client_is_shown() -> None:
    """User messages of another client arrive as updates, in full or in chunks, also with content other than text."""
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    rich = update("user_message", messageId="u3", content=[text("see "), link])
    harness = start_turn(
        full_message("user_message", "and you", name="u2"), full_message("user_message", "and you", name="u2"), rich
    )
    shown = [(entry.content, entry.blocks) for entry in harness.entries(Message)]
    assert shown == [("go", None), ("and you", None), ("see ", [text("see "), link])]


# Messages


def test_chunks_are_deltas() -> None:
    """S2.4: as the draft defines; a policy of the importer still has priority."""
    chunks = [agent_text(text, messageId="m") for text in ("I", "I'll", "I'll check")]
    assert start_turn(*chunks, IDLE).entries(Message)[1].content == "II'llI'll check"
    harness = AcpHarness(chunks="cumulative").feed(*HANDSHAKE, prompt(), *chunks, IDLE)
    assert harness.entries(Message)[1].content == "I'll check"


@pytest.mark.parametrize(
    ("kind", "piece", "entry"),
    [("agent_message", "agent_message_chunk", Message), ("agent_thought", "agent_thought_chunk", Thought)],
)
def test_a_message_sent_again_stays_one_entry(kind: str, piece: str, entry: type[Any]) -> None:
    """Equal to its chunks, longer, or with another text; later chunks are appended to it."""
    pieces = [update(piece, messageId="m", content=text(part)) for part in ("ha", "ha")]
    harness = start_turn(*pieces, full_message(kind, "haha"), full_message(kind, "ha", "ha!"))
    assert [one.content for one in harness.entries(entry)][-1] == "haha!"
    other = full_message(kind, "No.")
    harness.feed(other, update(piece, messageId="m", content=text(" Yes.")))
    assert [one.content for one in harness.entries(entry)][-1] == "No. Yes."
    assert len(harness.entries()) == 2 and other in harness.raws


def test_a_message_sent_again_after_a_call_adds_only_its_new_text() -> None:
    """S2.3: the new text follows the call, and no text is shown twice."""
    harness = start_turn(
        full_message("agent_message", "I look"), call_update("in_progress"), full_message("agent_message", "I look")
    )
    assert [entry.content for entry in harness.entries(Message)] == ["go", "I look"]
    harness.feed(full_message("agent_message", "I look again"))
    assert [entry.content for entry in harness.entries(Message)] == ["go", "I look", " again"]


def test_an_emptied_message_is_ended() -> None:
    """Shown text cannot be removed; later text makes a new entry, and the message is stored as raw."""
    cleared = update("agent_message", messageId="m", content=None)
    harness = start_turn(full_message("agent_message", "Wrong"), cleared, agent_text("Right", messageId="m"))
    assert [entry.content for entry in harness.entries(Message)] == ["go", "Wrong", "Right"]
    assert other_raws(harness) == [cleared]


def test_message_content_other_than_text_is_stored_as_raw() -> None:
    """So are a message with changed metadata only, and one without an id."""
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    odd = [
        update("agent_message", messageId="m", content=[text("look"), image]),
        update("agent_message", messageId="m", _meta={"x": 1}),
        update("agent_message", content=[text("whose?")]),
        full_message("agent_message", "noted", name="n", _meta={"x": 1}),
    ]
    harness = start_turn(*odd)
    assert [entry.content for entry in harness.entries(Message)] == ["go", "look", "noted"]
    assert other_raws(harness) == odd


@given(st.lists(st.text("ab", max_size=4), max_size=5), st.text("ab", max_size=12))
def test_growing_text_finds_the_new_part_of_a_full_text(pieces: list[str], full_text: str) -> None:
    """If the full text does not start with the earlier chunks, it becomes the replacement."""
    growing = GrowingText()
    for piece in pieces:
        growing.add(piece)
    joined, new_part = "".join(pieces), growing.extend_to(full_text)
    assert new_part == (full_text[len(joined) :] if full_text.startswith(joined) else None)
    growing.add("!")
    assert growing.replacement == (None if new_part is not None else full_text + "!")
    assert growing.extend_to(full_text + "!?") == "?"


# Calls


def test_the_first_update_creates_a_call_and_later_ones_change_it() -> None:
    """S2.6: draft 2 has updates only; null clears a field."""
    harness = start_turn(
        call_update(title="T", kind="read", rawInput={"a": 1}),
        call_update("in_progress"),
        call_update("completed", kind=None),
    )
    assert (harness.call.status, harness.call.title, harness.call.kind) == ("completed", "T", None)


@pytest.mark.parametrize("status", ["paused", "_digesting"])
def test_an_unknown_status_means_in_progress_and_is_stored(status: str) -> None:
    """The draft defines this; the message is stored as raw."""
    harness = start_turn(call_update(status), call_update("completed"))
    assert (harness.call.status, other_raws(harness)) == ("completed", [call_update(status)])
    assert start_turn(call_update(status)).call.status == "running"


def test_null_for_a_status_or_a_name_is_stored_as_raw() -> None:
    """A status or a name cannot be cleared."""
    cleared = update("tool_call_update", toolCallId="c1", status=None, name=None)
    harness = start_turn(call_update("in_progress", title="T"), cleared)
    assert (harness.call.status, other_raws(harness)) == ("running", [cleared])
    with_capabilities = call_update(capabilities={"cancel": {}})
    assert other_raws(start_turn(with_capabilities)) == [with_capabilities]


def content_chunk(content: Any, name: str = "c1") -> dict[str, Any]:
    return update("tool_call_content_chunk", toolCallId=name, content=content)


def test_content_chunks_are_appended_to_the_output() -> None:
    """Text is appended; other items are sent with all items before them."""
    diff = {"type": "diff", "path": "/a", "changes": []}
    harness = start_turn(
        call_update("in_progress", **TERMINAL_CONTENT),
        content_chunk(item("a\n")),
        content_chunk(diff),
        content_chunk(item("b\n")),
        call_update("completed"),
    )
    assert (harness.call.output_text, harness.call.content) == ("a\nb\n", [*TERMINAL_CONTENT["content"], diff])
    assert (harness.call.output, other_raws(harness)) == (None, [])
    with_metadata = content_chunk({**item("c"), "_meta": {"x": 1}})
    assert other_raws(start_turn(with_metadata)) == [with_metadata]


def test_the_log_grows_linearly_with_content_items() -> None:
    """C12: the cost of an item does not grow with their number; the end has all items, and none is lost before it."""
    items = [{"type": "diff", "path": f"/{number}", "changes": []} for number in range(1000)]
    harness = start_turn(*map(content_chunk, items))
    assert sum(len(event.content) for event in harness.log(ev.CallProgress)) < 20 * len(items)
    shown = harness.call.content or []
    assert shown == items[: len(shown)]
    assert [content_chunk(one) for one in items[len(shown) :]] == other_raws(harness)[-len(items) + len(shown) :]
    assert harness.feed(call_update("completed")).call.content == items


def test_full_content_after_chunks_is_the_output_of_the_call() -> None:
    """An equal or longer text continues the chunks; another text replaces the output at the end."""
    full_content = {"content": [item("a\nb\nc\n")]}
    assert start_turn(content_chunk(item("a\n")), call_update(content=[item("a\n")])).call.output_text == "a\n"
    assert start_turn(content_chunk(item("a\n")), call_update(**full_content)).call.output_text == "a\nb\nc\n"
    other = start_turn(content_chunk(item("x\n")), call_update("completed", **full_content)).call
    assert (other.output_text, other.output) == ("x\n", "a\nb\nc\n")
    assert (
        start_turn(content_chunk(item("x\n")), call_update("completed", rawOutput=1, **full_content)).call.output == 1
    )


# Terminals that the agent owns


@given(st.text(max_size=12), st.lists(st.integers(0, 48), max_size=6), st.integers(0, 6))
def test_terminal_output_is_complete_for_any_split_of_its_bytes(printed: str, cuts: list[int], shown: int) -> None:
    """Each chunk is separate base64, may split a character, and may arrive before its call."""
    data = printed.encode()
    offsets = sorted({min(cut, len(data)) for cut in cuts})
    chunks = [data[a:b] for a, b in zip([0, *offsets], [*offsets, len(data)], strict=True)]
    messages = [output_chunk(piece) for piece in chunks]
    messages.insert(min(shown, len(messages)), call_update("in_progress", **TERMINAL_CONTENT))
    harness = start_turn(
        *messages, update("terminal_update", terminalId="t", exitStatus={"exitCode": 0}), call_update("completed")
    )
    assert (harness.call.output_text, harness.call.exit_status) == (printed, 0)


def test_output_bytes_that_are_not_utf8_are_marked_and_stored() -> None:
    """Invalid base64, and output without a terminal, are stored as raw."""
    odd = [output_chunk(b"1\xff2\n"), output_chunk("no base64"), update("terminal_output_chunk", data="YQ==")]
    harness = start_turn(call_update("in_progress", **TERMINAL_CONTENT), *odd)
    assert (harness.call.output_text, other_raws(harness)) == ("1\ufffd2\n", odd)


def test_an_incomplete_last_character_is_added_at_the_end() -> None:
    """When the terminal exits, or when the call ends."""
    exited = update("terminal_update", terminalId="t", exitStatus={"exitCode": 1})
    for end in (exited, call_update("failed")):
        harness = start_turn(call_update("in_progress", **TERMINAL_CONTENT), output_chunk("é".encode()[:1]))
        assert harness.call.output_text == ""
        assert harness.feed(end).call.output_text == "\ufffd"


def test_a_terminal_snapshot_is_the_output_of_the_call() -> None:
    """A longer snapshot is appended; a different one, with what follows it, is the output at the end."""
    harness = start_turn(
        call_update("in_progress", **TERMINAL_CONTENT), output_chunk(b"1\n"), terminal_snapshot(b"1\n2\n")
    )
    assert (harness.call.output_text, harness.call.progress) == ("1\n2\n", None)
    harness.feed(terminal_snapshot(b"3\n"), output_chunk(b"4\n"))
    assert harness.call.progress == "3\n"
    assert harness.feed(call_update("completed")).call.output == "3\n4\n"
    assert (
        start_turn(
            call_update("in_progress", **TERMINAL_CONTENT),
            output_chunk(b"1\n"),
            terminal_snapshot(None),
            call_update("completed"),
        ).call.output
        == ""
    )
    early = start_turn(output_chunk(b"x"), terminal_snapshot(b"1\n"), call_update("completed", **TERMINAL_CONTENT)).call
    assert (early.output_text, early.output) == ("1\n", None)


def test_the_output_of_an_ended_call_is_not_held_in_memory() -> None:
    """The screen of a terminal is read at the end of its call and then dropped."""
    terminals = Terminals()
    terminals.show("c1", TERMINAL_CONTENT["content"])
    for output in ("one", "another"):
        terminals.output({"terminalId": "t"}, {"output": output})
    assert terminals.screen("c1") == "another"
    terminals.end_call("c1")
    assert terminals.screen("c1") is UNSET


def test_the_output_of_two_terminals_of_a_call_is_joined() -> None:
    """Neither of them has the full output of the call."""
    both = {"content": [*TERMINAL_CONTENT["content"], {"type": "terminal", "terminalId": "u"}]}
    messages = [output_chunk(b"t1\n"), output_chunk(b"u1\n", "u"), terminal_snapshot(b"t2\n"), call_update("completed")]
    harness = start_turn(call_update("in_progress", **both), *messages)
    assert (harness.call.output_text, harness.call.output) == ("t1\nu1\n", None)


def test_other_terminal_fields_are_stored_as_raw() -> None:
    """Command, folder and size, an exit without a status, and an invalid snapshot."""
    odd = [
        update("terminal_update", terminalId="t", command="ls", cwd="/w"),
        update("terminal_update", terminalId="t", exitStatus={}),
        update("terminal_update", terminalId="t", output={"data": 7}),
        update("terminal_update", output=None),
    ]
    harness = start_turn(call_update("in_progress", **TERMINAL_CONTENT), *odd)
    assert (harness.call.exit_status, other_raws(harness)) == (None, odd)
    both = update("terminal_update", terminalId="t", output=7, exitStatus={"exitCode": 130, "signal": "SIGINT"})
    harness.feed(both)
    assert (harness.call.exit_status, other_raws(harness)) == (130, [*odd, both])
    harness.feed(update("terminal_update", terminalId="t", exitStatus=None))
    assert (harness.call.exit_status, other_raws(harness)) == (None, [*odd, both])


# Permission


def permission_request(key: Any = 7, **params: Any) -> dict[str, Any]:
    return a2c(rpc_request("session/request_permission", key, options=OPTIONS, **params))


def test_a_permission_request_has_its_own_description() -> None:
    """S2.6: it does not change the title of the call, which the request describes too."""
    about = {"type": "tool_call", "toolCall": {"toolCallId": "c1", "rawInput": {"a": 1}}}
    question = permission_request(title="May I?", description="It matters.", subject=about)
    harness = start_turn(call_update(title="T"), question, permission_answer("no", 7))
    assert (harness.call.title, harness.call.raw_input, harness.call.status) == ("T", {"a": 1}, "denied")
    assert (harness.request.description, harness.request.raw_input) == ("May I?\nIt matters.", {"a": 1})
    assert other_raws(harness) == []


def test_a_request_about_a_command_is_about_its_call() -> None:
    """By the id of the call or of its terminal; an unknown call is described by the command."""
    command = {"type": "command", "command": "rm x", "cwd": "/w"}
    for named in ({"toolCallId": "c1"}, {"terminalId": "t"}):
        harness = start_turn(
            call_update(title="T", **TERMINAL_CONTENT),
            permission_request(title="Run?", subject={**command, **named}),
            permission_answer("yes", 7),
        )
        assert (harness.call.title, harness.call.status, len(harness.calls)) == ("T", "queued", 1)
    alone = start_turn(permission_request(title="Run?", subject=command), permission_answer("yes", 7))
    assert (alone.call.title, alone.call.kind, alone.call.raw_input["command"]) == ("rm x", "execute", "rm x")
    assert alone.feed(IDLE).close().call.status in ("queued", "lost")
    assert other_raws(alone)[0] == permission_request(title="Run?", subject=command)


def test_a_request_without_a_call_ends_with_its_answer() -> None:
    """C5: no call follows; the subject of the request is stored."""
    for subject in ({}, {"subject": {"type": "_network"}}):
        harness = start_turn(permission_request(title="Use it?", **subject), permission_answer("yes", 7))
        assert (harness.call.title, harness.call.status, harness.request.state) == ("Use it?", "completed", "granted")
        assert other_raws(harness) == [permission_request(title="Use it?", **subject)] * len(subject)
    assert start_turn(permission_request(title="Use it?"), permission_answer("no", 7)).call.status == "denied"


def test_an_option_that_was_not_offered_does_not_approve() -> None:
    """The draft defines this. An offered option of unknown kind is left to the agent."""
    assert start_turn(permission_request(title="May I?"), permission_answer("unheard-of", 7)).call.status == "denied"
    assert (
        start_turn(permission_request(title="May I?"), permission_answer("odd", 7)).call.status == "awaiting_approval"
    )


def test_a_malformed_permission_request_is_stored_as_raw() -> None:
    """A request without options or without a title cannot be answered."""
    odd = [permission_request(), a2c(rpc_request("session/request_permission", 8, title="May I?"))]
    assert other_raws(start_turn(*odd)) == odd


# Session resume


def resume_session(*replay: Any, **result: Any) -> list[Any]:
    return [
        c2a(rpc_request("session/resume", 3, replayFrom={"type": "start"})),
        *replay,
        a2c(rpc_response(3, **result)),
    ]


def test_a_replay_adds_messages_calls_and_terminal_output() -> None:
    """S2.11: into an empty session, in the order of their first updates."""
    harness = AcpHarness().feed(
        *HANDSHAKE,
        *resume_session(
            full_message("user_message", "go", name="u1"),
            update("agent_message", messageId="m", content=[]),
            update(
                "terminal_update", terminalId="t", command="ls", output={"data": "YQo="}, exitStatus={"exitCode": 2}
            ),
            output_chunk("ü\n".encode()[:1]),
            output_chunk("ü\n".encode()[1:]),
            agent_text("I ", messageId="m"),
            call_update("completed", title="ls", **TERMINAL_CONTENT),
            agent_text("see", messageId="m"),
            content_chunk(item("x"), "c2"),
            update("plan_update", plan={"type": "items", "planId": "p", "entries": [{"content": "one"}]}),
        ),
    )
    shown = [entry["type"] for entry in normalized_entries(harness)]
    assert shown == ["message", "message", "tool_call", "tool_call", "plan"]
    assert [entry.content for entry in harness.entries(Message)] == ["go", "I see"]
    assert (harness.calls[0].output, harness.calls[0].exit_status) == ("a\nü\n", 2)
    assert (harness.calls[1].output, harness.entries(Plan)[0].entries) == ("x", [{"content": "one"}])


def test_replayed_items_without_an_entry_are_stored() -> None:
    """Terminal output without a call, empty messages, and a removed plan."""
    odd = [output_chunk(b"x"), update("user_message", messageId="u", content=[]), update("plan_removed", planId="p")]
    harness = AcpHarness().feed(*HANDSHAKE, *resume_session(*odd))
    assert harness.entries() == []
    assert all(message in harness.raws for message in odd)


def test_unusual_items_of_a_replay_are_stored() -> None:
    """Images, metadata, and chunks without a message; a user message is shown with its blocks."""
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    odd = [
        update("agent_message_chunk", messageId="m", content=image),
        update("user_message_chunk", messageId="u", content=image),
        full_message("agent_message", "hi", name="n", _meta={"x": 1}),
        full_message("agent_message", "whose?", name=""),
        content_chunk({**item("x"), "_meta": {"x": 1}}),
        content_chunk({"type": "diff", "path": "/a"}),
        content_chunk("no item"),
        output_chunk("no base64"),
        update("plan_update", plan={"type": "_drawing", "planId": "p"}),
        update("session_message", messageId="s", content=[]),
        update("state_update", state="running"),
        update("state_update", state="idle"),
    ]
    harness = AcpHarness().feed(*HANDSHAKE, *resume_session(*odd, exitCode=0))
    assert [message for message in odd if message not in harness.raws] == [
        content_chunk({"type": "diff", "path": "/a"})
    ]
    assert [(entry.content, entry.blocks) for entry in harness.entries(Message)] == [("", [image]), ("hi", None)]
    assert (harness.call.output, harness.call.content) == ("x", [{"type": "diff", "path": "/a"}])


def test_a_replay_that_ends_with_a_running_agent_begins_a_turn() -> None:
    """The turn ends when the agent is idle. What was replayed is a turn of its own before it."""
    for state in ("running", "idle"):
        harness = AcpHarness().feed(
            *HANDSHAKE, *resume_session(full_message("user_message", "go"), update("state_update", state=state))
        )
        assert [entry.turn for entry in harness.entries()] == ["t1"]
        assert len(harness.log(ev.TurnStarted)) == 1 + (state == "running")
        assert len(harness.feed(agent_text("on", messageId="n"), IDLE).log(ev.TurnEnded)) == 1 + (state == "running")


def test_a_replay_does_not_change_recorded_entries() -> None:
    """S2.11: another title, another output, another text."""
    harness = start_turn(
        agent_text("Hi", messageId="m"),
        call_update("in_progress", title="T", **TERMINAL_CONTENT),
        output_chunk(b"1"),
        call_update("failed"),
        IDLE,
    )
    before = normalized_entries(harness)
    messages = [
        full_message("user_message", "gone"),
        full_message("agent_message", "Ho"),
        call_update("completed", title="U", **TERMINAL_CONTENT),
    ]
    harness.feed(*resume_session(*messages, terminal_snapshot(b"2")))
    assert normalized_entries(harness) == before


# All kinds of update

# An example of every kind of update in the protocol's own package, and whether it gives more than a raw event.
PACKAGE_KINDS: dict[str, tuple[dict[str, Any], bool]] = {
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
# Newer kinds of version 1, and the kinds of the draft.
NEWER_KINDS: dict[str, tuple[dict[str, Any], bool]] = {
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


def package_update_kinds() -> set[str]:
    """Return every kind of update for which the installed package has a model."""
    models = [model for model in vars(acp.schema).values() if isinstance(model, type)]
    fields = [getattr(model, "model_fields", {}).get("session_update") for model in models]
    return {get_args(field.annotation)[0] for field in fields if field is not None}


def test_the_table_has_every_kind_of_update() -> None:
    """The examples cover exactly the kinds of the protocol's package, and the package accepts them."""
    assert package_update_kinds() == set(PACKAGE_KINDS)
    for kind, (fields, _) in PACKAGE_KINDS.items():
        body = {"sessionId": "s1", "update": {"sessionUpdate": kind, **fields}}
        assert acp.schema.SessionNotification.model_validate(body)


@pytest.mark.parametrize("kind", PACKAGE_KINDS | NEWER_KINDS)
def test_every_kind_of_update_is_decoded_or_stored_as_raw(kind: str) -> None:
    """No kind is dropped."""
    fields, is_decoded = (PACKAGE_KINDS | NEWER_KINDS)[kind]
    message = update(kind, **fields)
    log = AcpHarness().feed(message).ledger.log
    assert log
    assert (message in [event.body for event in log if isinstance(event, ev.Raw)]) or is_decoded
    assert (len([event for event in log if not isinstance(event, ev.Raw)]) > 0) == is_decoded
