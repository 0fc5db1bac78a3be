"""Decode the Agent Client Protocol: calls, permissions, turns, texts, replays, several sessions, arbitrary input."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from hypothesis import given
from hypothesis import strategies as st

from callslip.formats.acp.decode import AcpDecoder
from callslip.formats.acp.wire import Wire
from callslip.model import events as ev
from callslip.model.entries import Message, Plan
from callslip.rules.replay_diff import RESULT_UNKNOWN
from tests.support.acp_session import (
    CAPTURES,
    OPTIONS,
    AcpHarness,
    a2c,
    agent_text,
    c2a,
    call,
    call_update,
    live_rows,
    normalized_entries,
    permission_answer,
    prompt,
    prompt_response,
    request_permission,
    rows,
    rpc_error,
    rpc_request,
    rpc_response,
    update,
)
from tests.support.format_cases import CASES, format_of, lines_of, replace_at, value_paths
from tests.support.strategies import canonical_json

CAPTURES_WITHOUT_REPLAY = ("gemini-allow", "py-example-agent", "ts-example-allow", "ts-example-reject")


@pytest.mark.parametrize("name", CAPTURES)
def test_a_replay_does_not_change_recorded_entries(name: str) -> None:
    """S2.11: the replayed messages are stored and not shown."""
    before, after = AcpHarness().feed(*live_rows(name)), AcpHarness().feed(*rows(name))
    assert canonical_json(normalized_entries(after)) == canonical_json(normalized_entries(before))
    replayed = [event for event in after.ledger.log if event.verdict == "witness"]
    assert bool(replayed) == (name not in CAPTURES_WITHOUT_REPLAY)


# Calls


@pytest.mark.parametrize(
    ("acp_status", "state"),
    [
        (None, "queued"),
        ("pending", "queued"),
        ("in_progress", "running"),
        ("completed", "completed"),
        ("failed", "failed"),
    ],
)
def test_each_acp_status_maps_to_a_call_state(acp_status: str | None, state: str) -> None:
    """S2.6: also if the first message about a call is an update."""
    assert AcpHarness().feed(prompt(), call(acp_status)).call.status == state
    assert AcpHarness().feed(prompt(), call_update(acp_status)).call.status == state
    assert AcpHarness().feed(prompt(), call(), call_update(acp_status)).call.status == state


def test_a_repeated_tool_call_message_updates_the_same_call() -> None:
    """S2.6"""
    harness = AcpHarness().feed(
        prompt(), call(), call("in_progress", rawInput={"a": 1}), call("in_progress", kind="read")
    )
    assert (harness.call.status, harness.call.raw_input, harness.call.kind) == ("running", {"a": 1}, "read")


def test_an_update_that_ends_a_call_gives_one_event_with_all_fields() -> None:
    """The output, content, locations and title are in the event that ends the call."""
    end = {"rawOutput": {"x": 1}, "content": [{"type": "diff"}], "locations": [{"path": "/a"}], "title": "Done"}
    harness = AcpHarness().feed(prompt(), call("in_progress"), call_update("completed", **end))
    last = harness.ledger.log[-1]
    assert isinstance(last, ev.CallCompleted)
    assert (last.output, last.content, last.locations, last.title) == tuple(end.values())


def test_absent_fields_of_an_update_stay_and_null_clears_them() -> None:
    """C10"""
    fields = {"rawInput": {"a": 1}, "content": [{"type": "diff"}], "locations": [{"path": "/a"}]}
    harness = AcpHarness().feed(prompt(), call(**fields), call_update("in_progress"), call_update())
    assert (harness.call.title, harness.call.raw_input, harness.call.locations) == ("T", {"a": 1}, [{"path": "/a"}])
    harness.feed(call_update(title=None, rawInput=None, locations=None))
    assert (harness.call.title, harness.call.raw_input, harness.call.locations) == (None, None, None)
    assert harness.call.content == [{"type": "diff"}]
    assert harness.call.status == "running"


def test_a_nonzero_exit_status_does_not_override_the_agents_status() -> None:
    """A command that exits with 3 and is reported as completed is completed, and the 3 is shown."""
    for fields in (
        {"rawOutput": {"output": "no such file", "metadata": {"exit": 3}}},
        {"rawOutput": {"stdout": "", "exit_code": 3}},
        {"_meta": {"terminal_exit": {"exit_code": 3, "signal": None}}},
    ):
        harness = AcpHarness().feed(prompt(), call("in_progress"), call_update("completed", **fields))
        assert (harness.call.status, harness.call.exit_status) == ("completed", 3)


def test_a_signal_is_recorded_as_the_exit_status() -> None:
    """A process that was killed by a signal has no exit code."""
    meta = {"terminal_exit": {"exit_code": None, "signal": "SIGTERM"}}
    assert AcpHarness().feed(prompt(), call(), call_update("failed", _meta=meta)).call.exit_status == {
        "signal": "SIGTERM"
    }


def test_output_in_the_metadata_is_recorded() -> None:
    """Terminal output is appended as it arrives; the raw output of the tool is used if there is no other."""
    printed = [call_update(_meta={"terminal_output_delta": {"data": text}}) for text in ("one\n", "two\n")]
    harness = AcpHarness().feed(prompt(), call("in_progress"), *printed)
    assert (harness.call.output_text, harness.call.status) == ("one\ntwo\n", "running")
    ended = call_update("completed", _meta={"terminal_output": {"data": "three\n"}, "terminal_exit": {"exit_code": 0}})
    harness.feed(ended)
    assert (harness.call.output_text, harness.call.exit_status) == ("one\ntwo\nthree\n", 0)
    result = {"stdout": "x", "stderr": ""}
    claude = call_update(_meta={"claudeCode": {"toolName": "Bash", "toolResponse": result}})
    assert AcpHarness().feed(prompt(), call(), claude, call_update("completed")).call.output == result
    assert AcpHarness().feed(prompt(), call(), claude, call_update("completed", rawOutput="y")).call.output == "y"


def test_tool_names_are_read_from_every_known_field() -> None:
    """S2.5: a server prefix is removed and stored separately; a kind or a title is not a name."""
    named = AcpHarness().feed(
        prompt(), call(name="a"), call_update(name="a", _meta={"claudeCode": {"toolName": "mcp__acp__Read"}})
    )
    assert (named.call.tool_name, named.call.raw_tool_name) == ("Read", "mcp__acp__Read")
    message = call()
    message["msg"]["params"]["update"]["name"] = "exec_command"
    assert AcpHarness().feed(prompt(), message).call.tool_name == "exec_command"
    assert AcpHarness().feed(prompt(), call()).call.tool_name is None


def test_each_call_without_an_id_is_a_new_call() -> None:
    """C2: calls are never matched by content; an update without a call id is stored as raw."""
    calls = [call("in_progress", name=""), call("in_progress", name=""), call("completed", name="", rawOutput=1)]
    harness = AcpHarness().feed(prompt(), *calls, call_update("completed", name=""))
    assert [entry.status for entry in harness.calls] == ["running", "running", "completed"]
    assert len(harness.raws) == 1
    assert {entry.status for entry in harness.close().calls} == {"lost", "completed"}


def test_foreign_ids_reused_in_a_later_turn_are_new_calls() -> None:
    """C2: also if the call of the earlier turn never ended, or if one message opens and ends the call."""
    first = [prompt(1), call("in_progress"), prompt_response(1)]
    later = {
        "running": ([call("in_progress")], [call(), call_update("in_progress")]),
        "completed": ([call("completed", rawOutput=2)], [call(), call_update("completed")]),
    }
    for state, openings in later.items():
        for again in openings:
            harness = AcpHarness().feed(*first, prompt(2), *again, prompt_response(2))
            assert [entry.status for entry in harness.calls] == ["running", state]


def test_an_identical_opening_message_makes_no_second_call() -> None:
    """C2: the same bytes after the end are a repetition, whether the call had started or not."""
    for status in ("pending", "in_progress", "completed"):
        harness = AcpHarness().feed(prompt(), call(status), call_update("completed", rawOutput=1), call(status))
        assert [entry.status for entry in harness.calls] == ["completed"]
        assert "duplicate" in harness.verdicts


def test_an_update_never_reopens_an_ended_call() -> None:
    """C4: an update after the end is late, also after the end of the turn, and also with status in_progress."""
    cancelled = AcpHarness().feed(prompt(), call("in_progress"), prompt_response(reason="cancelled"))
    cancelled.feed(
        call_update("in_progress", content=[]), call_update(title="x"), call_update("completed", rawOutput="late")
    )
    assert (cancelled.call.status, cancelled.call.title, cancelled.call.output) == ("cancelled", "T", None)
    assert cancelled.call.late and cancelled.verdicts[-3:] == ["late", "late", "late"]
    ended = AcpHarness().feed(
        prompt(), call("in_progress"), call_update("completed", rawOutput=1), call_update("in_progress")
    )
    assert (ended.call.status, ended.call.output) == ("completed", 1)


def test_a_result_within_the_grace_period_after_the_turn_counts() -> None:
    """Updates may arrive after the response to the prompt."""
    harness = AcpHarness().feed(prompt(), call("in_progress"), prompt_response(), call_update("completed", rawOutput=1))
    assert (harness.call.status, harness.call.output) == ("completed", 1)


def test_a_message_with_unknown_values_is_also_stored_as_raw() -> None:
    """C11: known fields are applied, and the log has the full message."""
    message = call_update("paused", title=["no", "text"], extra=1, kind="read")
    harness = AcpHarness().feed(prompt(), call(), message)
    assert (harness.call.status, harness.call.title, harness.call.kind) == ("queued", "T", "read")
    assert harness.raws == [message]


def test_a_status_back_to_pending_is_stored_and_changes_nothing() -> None:
    """A started call cannot become queued again; after a permission request `pending` is legal."""
    back = call_update("pending")
    harness = AcpHarness().feed(prompt(), call("in_progress"), back)
    assert (harness.call.status, harness.raws) == ("running", [back])
    assert AcpHarness().feed(prompt(), call("in_progress"), request_permission(), back).raws == []


def test_a_call_without_an_id_has_output_and_status_of_its_message() -> None:
    """C2: one message opens the call and has its output and its status."""
    printed = {"_meta": {"terminal_output": {"data": "half"}}}
    harness = AcpHarness().feed(
        prompt(), call("cancelled", name="", **printed), call("in_progress", name="", **printed)
    )
    assert [(entry.status, entry.output_text) for entry in harness.calls] == [
        ("cancelled", "half"),
        ("running", "half"),
    ]


# Terminals that the client owns


def terminal(method: str, key: Any, **params: Any) -> dict[str, Any]:
    return a2c(rpc_request(f"terminal/{method}", key, **{"terminalId": "t", **params}))


TERMINAL_CONTENT = {"content": [{"type": "terminal", "terminalId": "t"}]}


def poll_output(output: str, key: Any = 9, **fields: Any) -> list[Any]:
    """Return the agent's request for the output of a terminal, and the response."""
    answer = rpc_response(key, output=output, truncated=False, **fields)
    return [terminal("output", key), c2a(answer)]


def test_terminal_output_is_the_output_of_the_call_that_shows_it() -> None:
    """Each response has the full output: the new part is appended, and an unchanged response adds no event."""
    harness = AcpHarness().feed(
        prompt(), call("in_progress", **TERMINAL_CONTENT), *poll_output("one\n"), *poll_output("one\n")
    )
    assert harness.call.output_text == "one\n"
    harness.feed(*poll_output("one\ntwo\n", exitStatus={"exitCode": 3}), call_update("completed"))
    assert (harness.call.status, harness.call.output_text, harness.call.exit_status) == ("completed", "one\ntwo\n", 3)
    requests = [terminal("output", 9)] * 3
    assert harness.raws == requests


def test_terminal_output_before_its_call_is_added_to_the_call() -> None:
    """It is logged immediately, and added to the call when the call refers to the terminal."""
    waited = [terminal("wait_for_exit", 8), c2a(rpc_response(8, exitCode=None, signal="SIGTERM"))]
    early = [*poll_output("early\n"), *waited]
    harness = AcpHarness().feed(prompt(), *early, call("in_progress", **TERMINAL_CONTENT))
    assert harness.raws == early
    assert (harness.call.output_text, harness.call.exit_status) == ("early\n", {"signal": "SIGTERM"})
    at_once = AcpHarness().feed(prompt(), *early, call("completed", **TERMINAL_CONTENT)).call
    assert (at_once.status, at_once.output_text, at_once.exit_status) == ("completed", "early\n", {"signal": "SIGTERM"})


def test_terminal_output_with_a_truncated_start_replaces_the_output() -> None:
    """Appended text cannot be removed, so the end event has the output that the terminal shows."""
    cut = [terminal("output", 9), c2a(rpc_response(9, output="8\n9\n", truncated=True))]
    harness = AcpHarness().feed(prompt(), call("in_progress", **TERMINAL_CONTENT), *poll_output("1\n2\n"), *cut)
    assert (harness.call.output_text, harness.call.progress) == ("1\n2\n", "8\n9\n")
    assert harness.raws == [terminal("output", 9), *cut]
    harness.feed(*poll_output("8\n9\n10\n"), call_update("completed"))
    assert (harness.call.output, harness.call.output_text) == ("8\n9\n10\n", "1\n2\n10\n")
    ended = call_update("completed", rawOutput="x")
    other = AcpHarness().feed(prompt(), call("in_progress", **TERMINAL_CONTENT), *poll_output("1"), *cut, ended)
    assert other.call.output == "x"


def test_terminal_output_after_the_call_ended_is_late() -> None:
    """C4: unless an open call shows the same terminal, which then receives the output."""
    harness = AcpHarness().feed(
        prompt(), call("in_progress", **TERMINAL_CONTENT), *poll_output("one\n"), call_update("completed")
    )
    harness.feed(*poll_output("one\ntwo\n"))
    assert (harness.call.output_text, harness.verdicts[-1]) == ("one\n", "late")
    harness.feed(call("in_progress", name="c2", **TERMINAL_CONTENT), *poll_output("one\ntwo\nthree\n"))
    assert [entry.output_text for entry in harness.calls] == ["one\n", "three\n"]
    assert harness.feed(*poll_output("one\ntwo\nthree\n")).verdicts[-1] == "applied"


def test_a_reused_call_id_has_no_terminals_of_the_earlier_call() -> None:
    """C2"""
    first = [
        prompt(1),
        call("in_progress", **TERMINAL_CONTENT),
        *poll_output("one\n"),
        call_update("completed"),
        prompt_response(1),
    ]
    harness = AcpHarness().feed(*first, prompt(2), call("in_progress"), *poll_output("one\ntwo\n"))
    assert [entry.output_text for entry in harness.calls] == ["one\n", ""]


def test_terminal_output_waits_for_a_call_until_the_release() -> None:
    """Output of a terminal that no call shows before its release stays in the log only."""
    printed = [prompt(), *poll_output("one\n")]
    shown = call("in_progress", **TERMINAL_CONTENT)
    assert AcpHarness().feed(*printed, shown, terminal("release", 9)).call.output_text == "one\n"
    assert AcpHarness().feed(*printed, terminal("release", 9), shown).call.output_text == ""


def test_other_terminal_messages_are_stored_as_raw() -> None:
    """Creating, killing and releasing a terminal, and malformed responses."""
    messages = [
        terminal("create", 1, command="ls", args=["-l"]),
        c2a(rpc_response(1, terminalId="t")),
        terminal("kill", 2),
        c2a(rpc_response(2)),
        terminal("release", 3),
        c2a({"jsonrpc": "2.0", "id": 3, "result": None}),
        terminal("output", 4),
        c2a(rpc_error(4, "no such terminal")),
        terminal("output", 5, terminalId=None),
        c2a(rpc_response(5, output="whose?")),
        terminal("wait_for_exit", 6),
        c2a(rpc_response(6, exitCode=None, signal=None)),
    ]
    assert AcpHarness().feed(*messages).raws == messages


# Permission


def test_an_answer_is_recorded_on_its_request() -> None:
    """S2.13: with the option and the time; nothing stays pending, and other fields of the answer are stored."""
    answer = permission_answer("ever")
    answer["msg"]["result"]["_meta"] = {"seconds": 3}
    harness = AcpHarness(started=10**12).feed(prompt(), request_permission(), {**answer, "t": 5})
    permission = harness.request
    assert (permission.response_option, permission.response_time, permission.state) == (
        "ever",
        10**12 + 5000,
        "granted",
    )
    assert [row.state for row in harness.ledger.unit.approvals.values()] == ["granted"]
    assert harness.raws == [{**answer, "t": 5}]


def test_a_permission_request_updates_its_call_and_keeps_options() -> None:
    """S2.6, S2.7: the request updates its call, and the options are stored as the agent sent them."""
    harness = AcpHarness().feed(prompt(), call(), request_permission(rawInput={"a": 1}, title="Really?"))
    assert (harness.call.status, harness.call.raw_input, harness.call.title) == (
        "awaiting_approval",
        {"a": 1},
        "Really?",
    )
    assert (harness.request.options, harness.request.state) == (OPTIONS, "pending")


@pytest.mark.parametrize(
    ("option", "state", "request_state"),
    [("yes", "queued", "granted"), ("ever", "queued", "granted"), ("no", "denied", "refused")],
)
def test_the_kind_of_the_chosen_option_decides_the_answer(option: str, state: str, request_state: str) -> None:
    """S2.7: a request may be the first message about its call; the answer is recorded on the request."""
    harness = AcpHarness().feed(prompt(), request_permission(), permission_answer(option))
    assert (harness.call.status, harness.request.state) == (state, request_state)
    assert (harness.request.response_option, harness.request.by) == (option, "client")


def test_a_cancelled_permission_request_cancels_the_call() -> None:
    """The client answers `cancelled` or with an error; the agent's own report of it is not a second end."""
    for answer in (rpc_response(0, outcome={"outcome": "cancelled"}), rpc_error(0, "no user")):
        harness = AcpHarness().feed(
            prompt(), request_permission(), c2a(answer), call_update("failed", rawOutput="stopped")
        )
        assert (harness.call.status, harness.request.state) == ("cancelled", "withdrawn")
        assert harness.verdicts[-1] == "duplicate"


@pytest.mark.parametrize("option", ["odd", "unheard-of"])
def test_an_unknown_answer_neither_grants_nor_denies(option: str) -> None:
    """It is stored; the next update of the agent decides."""
    harness = AcpHarness().feed(prompt(), request_permission(), permission_answer(option))
    assert (harness.call.status, harness.request.state, harness.raws) == (
        "awaiting_approval",
        "pending",
        [permission_answer(option)],
    )
    assert harness.feed(call_update("in_progress")).call.status == "running"


@pytest.mark.parametrize("start", [call("in_progress"), call_update("in_progress")])
def test_a_call_started_before_the_answer_is_granted_by_the_agent(start: Any) -> None:
    """The request does not stay pending, and a later answer is stored."""
    harness = AcpHarness().feed(prompt(), call(), request_permission(), start)
    assert (harness.call.status, harness.request.state, harness.request.by) == ("running", "granted", "agent")
    harness.feed(permission_answer("no"))
    assert (harness.call.status, harness.raws) == ("running", [permission_answer("no")])


def test_a_call_ended_before_the_answer_makes_its_request_moot() -> None:
    """An end is legal in every open state."""
    harness = AcpHarness().feed(prompt(), request_permission(), call_update("completed", rawOutput=1))
    assert (harness.call.status, harness.request.state) == ("completed", "moot")


def test_an_answer_to_a_superseded_request_does_not_count() -> None:
    """A second request for the same call supersedes the first."""
    harness = AcpHarness().feed(prompt(), request_permission(0), request_permission("0"), permission_answer("yes", 0))
    assert harness.call.status == "awaiting_approval"
    assert harness.feed(permission_answer("no", "0")).call.status == "denied"


def test_request_ids_of_both_directions_are_distinct() -> None:
    """The agent's request 1 is not the client's request 1, and "1" is neither, with or without recorded directions."""
    messages = [
        prompt(1),
        request_permission(1, "a"),
        request_permission("1", "b"),
        permission_answer("no", "1"),
        permission_answer("yes", 1),
        prompt_response(1),
    ]
    for lines in (messages, [message["msg"] for message in messages]):
        harness = AcpHarness().feed(*lines)
        assert [entry.status for entry in harness.calls] == ["queued", "denied"]
        assert [event.reason for event in harness.log(ev.TurnEnded)] == ["end_turn"]


# Turns


def test_a_prompt_begins_a_turn_and_its_blocks_are_stored() -> None:
    """RULE 8: texts are joined; a prompt with other content also has its blocks."""
    blocks = [
        {"type": "text", "text": "look at "},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "text", "text": " now"},
        {"type": "text", "text": "please"},
    ]
    harness = AcpHarness().feed(c2a(rpc_request("session/prompt", 1, prompt=blocks)))
    (message,) = harness.entries(Message)
    assert (message.content, message.blocks, message.turn) == ("look at  now\nplease", blocks, "t1")
    (message,) = AcpHarness().feed(prompt()).entries(Message)
    assert (message.content, message.blocks) == ("go", None)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"])
def test_a_turn_ends_with_the_stop_reason_of_the_agent(reason: str) -> None:
    """The stop reason is stored unchanged, with the usage of the response."""
    answer = a2c(rpc_response(1, stopReason=reason, usage={"totalTokens": 3}))
    harness = AcpHarness().feed(prompt(), answer)
    assert [event.reason for event in harness.log(ev.TurnEnded)] == [reason]
    assert harness.raws == [answer]


def test_an_error_response_ends_the_turn_with_its_message() -> None:
    """C5: the calls of the turn are lost with the message as the reason."""
    harness = AcpHarness().feed(prompt(), call("in_progress"), a2c(rpc_error(1, "rate limited")))
    assert [(event.reason, event.detail) for event in harness.log(ev.TurnEnded)] == [("error", "rate limited")]
    assert (harness.call.status, harness.call.reason) == ("lost", "rate limited")


def test_a_cancel_notification_ends_no_call() -> None:
    """Results may arrive until the response to the prompt."""
    cancel = c2a({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}})
    harness = AcpHarness().feed(prompt(), call("in_progress"), cancel)
    assert harness.call.status == "running"
    assert (
        harness.feed(call_update("completed", rawOutput=1), prompt_response(reason="cancelled")).call.status
        == "completed"
    )
    assert harness.raws == [cancel]


def test_a_queued_prompt_begins_its_turn_after_the_previous_response() -> None:
    """Some agents accept prompts during a turn."""
    harness = AcpHarness().feed(
        prompt(1), call("in_progress"), prompt(2, "and"), call_update("completed"), prompt_response(1), agent_text("ok")
    )
    assert [event.turn for event in harness.log(ev.TurnStarted)] == ["t1", "t2"]
    assert [entry.turn for entry in harness.entries()] == ["t1", "t1", "t1", "t2"]
    assert len(harness.feed(prompt_response(2)).log(ev.TurnEnded)) == 2


def test_the_end_of_the_stream_ends_the_turn() -> None:
    """C5: by a row in the recording or by the end of the recording, once."""
    for end in (a2c({"_eof": True}), {"_eof": True}):
        harness = AcpHarness().feed(prompt(), call("in_progress"), request_permission(0, "c2"), end).close()
        assert [event.reason for event in harness.log(ev.TurnEnded)] == ["eof"]
        assert [entry.status for entry in harness.calls] == ["lost", "lost"]
        assert harness.request.state == "moot"
    assert not AcpDecoder().close("eof")


def test_in_draft_2_a_turn_ends_when_the_agent_is_idle() -> None:
    """There the response only accepts the prompt, and the agent echoes the prompt."""
    handshake = [c2a(rpc_request("initialize", 0, protocolVersion=2)), a2c(rpc_response(0, protocolVersion=2))]
    echo = update("user_message_chunk", content={"type": "text", "text": "go"}, messageId="u1")
    harness = AcpHarness().feed(
        *handshake, prompt(), echo, a2c(rpc_response(1, messageId="u1")), call_update("in_progress")
    )
    assert not harness.log(ev.TurnEnded) and len(harness.entries(Message)) == 1
    harness.feed(call_update("cancelled"), update("state_update", state="idle", stopReason="end_turn"))
    assert (harness.call.status, len(harness.log(ev.TurnEnded))) == ("cancelled", 1)


# Texts and session information


def test_chunks_are_joined_by_the_declared_policy() -> None:
    """S2.4: the default is `auto`; a policy of the importer is used unchanged."""
    chunks = [agent_text(text, messageId="m") for text in ("I", "I'll", "I'll check")]
    for options, text in (({}, "I'll check"), ({"chunks": "delta"}, "II'llI'll check")):
        harness = AcpHarness(**options).feed(prompt(), *chunks, prompt_response())
        assert harness.entries(Message)[1].content == text


def test_content_other_than_text_is_stored_as_raw() -> None:
    """S2.12: it does not split the text around it."""
    image = update("agent_message_chunk", content={"type": "image", "data": "aGk=", "mimeType": "image/png"})
    with_metadata = agent_text("do", _meta={"from": "a subagent"})
    harness = AcpHarness().feed(prompt(), agent_text("I "), image, with_metadata)
    assert (harness.entries(Message)[1].content, harness.raws) == ("I do", [image, with_metadata])


def test_thoughts_plans_modes_commands_and_session_info_are_read() -> None:
    """RULES 9 to 12, and the information about the session."""
    response = rpc_response(9, sessionId="s1", modes={"currentModeId": "ask", "availableModes": [{"id": "ask"}]})
    harness = AcpHarness().feed(
        c2a({"jsonrpc": "2.0", "id": 9, "method": "session/new", "params": {"cwd": "/"}}),
        update("available_commands_update", availableCommands=[{"name": "web"}]),
        a2c(response),
        update("agent_thought_chunk", content={"type": "text", "text": "hm"}),
        update("plan", entries=[{"content": "one", "priority": "high", "status": "pending"}]),
        update("current_mode_update", currentModeId="code"),
        update("session_info_update", title="Title"),
        update("usage_update", used=1, size=2),
        update("notice", severity="warning", title="careful"),
    )
    info = harness.ledger.state.info
    assert [type(entry).__name__ for entry in harness.entries()] == ["Meta", "Thought", "Plan", "ModeChange", "Notice"]
    assert harness.entries(Plan)[0].entries[0]["content"] == "one"
    assert (info.title, info.usage, info.current_mode_id) == ("Title", {"used": 1, "size": 2}, "code")
    assert (info.notice, info.available_commands) == ({"severity": "warning", "title": "careful"}, [{"name": "web"}])
    assert harness.feed(update("session_info_update", title=None)).ledger.state.info.title is None


def test_the_cost_stays_if_an_update_omits_it() -> None:
    """C10: the cost is a total of the session."""
    cost = {"amount": 1, "currency": "USD"}
    harness = AcpHarness().feed(
        update("usage_update", used=1, size=9, cost=cost), update("usage_update", used=2, size=9)
    )
    assert harness.ledger.state.info.usage == {"used": 2, "size": 9, "cost": cost}
    harness.feed(update("usage_update", used=3, size=9, cost=None), update("usage_update", used=4, size=9))
    assert harness.ledger.state.info.usage == {"used": 4, "size": 9}


def test_named_plans_are_read_and_a_removed_plan_is_empty() -> None:
    """RULE 10: as entries, as text or as a file; the message is stored because of the name in it."""
    plans = [
        {"type": "items", "planId": "p", "entries": [{"content": "one"}]},
        {"type": "markdown", "planId": "p", "content": "# Two"},
        {"type": "file", "planId": "q", "uri": "file:///plan"},
    ]
    updates = [update("plan_update", plan=plan) for plan in plans]
    removals = [update("plan_removed", planId=name) for name in ("p", "q")]
    odd = update("plan_update", plan={"type": "_drawing", "planId": "p"})
    harness = AcpHarness().feed(prompt(), *updates, odd, *removals)
    shown = [plan.entries for plan in harness.entries(Plan)]
    assert shown == [[{"content": "one"}], [{"content": "# Two"}], [{"content": "file:///plan"}], []]
    assert harness.raws == [*updates, odd, *removals]


def test_a_title_set_by_a_user_is_stored_as_the_agent_returns_it() -> None:
    """The agent may trim the title or refuse it."""
    request = c2a(rpc_request("session/set_title", 4, title=" My work "))
    assert AcpHarness().feed(request, a2c(rpc_response(4, title="My work"))).ledger.state.info.title == "My work"
    assert AcpHarness().feed(request, a2c(rpc_error(4, "no"))).ledger.state.info.title is None


def test_metadata_of_session_updates_is_stored_as_raw() -> None:
    """An update with metadata is stored as a raw message too."""
    updates: list[tuple[str, dict[str, Any]]] = [
        ("available_commands_update", {"availableCommands": []}),
        ("current_mode_update", {"currentModeId": "ask"}),
        ("config_option_update", {"configOptions": []}),
        ("session_info_update", {"title": "T", "updatedAt": "now"}),
        ("plan", {"entries": []}),
    ]
    messages = [update(kind, _meta={"x": 1}, **fields) for kind, fields in updates]
    assert AcpHarness().feed(*messages).raws == messages


def test_modes_are_read_from_config_options() -> None:
    """S2.10: some agents have config options only; a changed option may change the mode."""
    option = {"id": "m", "category": "mode", "currentValue": "plan", "options": [{"value": "plan", "name": "Plan"}]}
    harness = AcpHarness().feed(
        c2a(rpc_request("session/new", 1)), a2c(rpc_response(1, sessionId="s1", configOptions=[option]))
    )
    meta = harness.entries()[0]
    assert (meta.available_modes, meta.current_mode_id) == ([{"id": "plan", "name": "Plan"}], "plan")
    changed = [{**option, "currentValue": "build"}]
    harness.feed(update("config_option_update", configOptions=changed))
    assert (harness.ledger.state.info.options, harness.ledger.state.info.current_mode_id) == (changed, "build")
    harness.feed(c2a(rpc_request("session/set_mode", 2, modeId="plan")), a2c(rpc_response(2)))
    assert harness.ledger.state.info.current_mode_id == "plan"
    harness.feed(c2a(rpc_request("session/set_mode", 3, modeId="gone")), a2c(rpc_error(3, "no such mode")))
    assert harness.ledger.state.info.current_mode_id == "plan"
    option_request = c2a(rpc_request("session/set_config_option", 4, configId="m", value="build"))
    harness.feed(option_request, a2c(rpc_response(4, configOptions=changed)))
    assert harness.ledger.state.info.current_mode_id == "build"


def test_grouped_config_choices_are_read() -> None:
    """S2.10"""
    groups = [{"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}]}, {"value": "b", "name": "B"}]
    option = {"id": "m", "category": "model", "currentValue": "a", "options": groups}
    harness = AcpHarness().feed(
        c2a(rpc_request("session/new", 1)), a2c(rpc_response(1, sessionId="s1", configOptions=[option]))
    )
    assert harness.entries()[0].available_models == [{"modelId": "a", "name": "A"}, {"modelId": "b", "name": "B"}]


def test_unknown_updates_and_methods_are_stored_as_raw() -> None:
    """No message is dropped."""
    messages = [
        update("subagent_update", state="busy"),
        a2c({"jsonrpc": "2.0", "method": "_vendor/thing", "params": {"a": 1}}),
        a2c(rpc_request("fs/read_text_file", 5, path="/a")),
        c2a(rpc_response(5, content="text")),
        a2c(rpc_request("terminal/create", 6, command="ls")),
        c2a(rpc_response(77, nobody="asked")),
        a2c("{not json"),
        [1, 2],
        None,
    ]
    assert AcpHarness().feed(*messages).raws == messages


def test_a_row_may_contain_its_message_as_json_text() -> None:
    """Some recorders store each line as a string."""
    row = prompt()
    assert AcpHarness().feed({**row, "msg": json.dumps(row["msg"])}).log(ev.TurnStarted)


def test_small_times_are_seconds_since_the_start_of_the_recording() -> None:
    """Large numbers are times since the epoch; without a start time the ledger's clock is used."""
    row = prompt()
    for started, seconds, at in ((5000, 1.5, 6500), (5000, 1.7e9, 1_700_000_000_000), (0, 1.5, 0), (5000, 1e300, 0)):
        assert {draft.event.at for draft in AcpDecoder(started=started).feed({**row, "t": seconds})} == {at}


# Session load


def test_a_failed_replay_adds_no_entry() -> None:
    """S2.11: all of its messages are stored."""
    load = c2a(rpc_request("session/load", 3))
    updates = [update("user_message_chunk", content={"type": "text", "text": "hi"}), call("completed")]
    for end in ([a2c(rpc_error(3, "gone"))], []):
        harness = AcpHarness().feed(load, *updates, *end).close()
        assert (harness.entries(), harness.raws) == ([], [load, *updates, *end])


def test_an_open_call_ends_normally_during_a_session_load() -> None:
    """C5: an update of a call of the open turn is not part of the replay, although the load is pending."""
    loading = c2a(rpc_request("session/load", 2))
    completed = call_update("completed", rawOutput="out")
    harness = AcpHarness().feed(
        prompt(), call("in_progress"), loading, completed, a2c(rpc_response(2)), prompt_response()
    )
    assert (harness.call.status, harness.call.output) == ("completed", "out")


def test_a_load_in_the_same_turn_does_not_repeat_an_ended_call() -> None:
    """S2.11: its messages in the replay are stored as replayed."""
    replayed_updates = [call("pending"), call_update("failed", rawOutput="otherwise")]
    loaded = [c2a(rpc_request("session/load", 2)), *replayed_updates, a2c(rpc_response(2))]
    harness = AcpHarness().feed(
        prompt(), call("in_progress"), call_update("completed", rawOutput="out"), *loaded, prompt_response()
    )
    assert (harness.call.status, harness.call.output) == ("completed", "out")
    assert [event.verdict for event in harness.log(ev.CallFailed)] == ["witness"]


def test_a_replay_adds_nothing_to_a_recorded_turn() -> None:
    """S2.11: what is new in it, with or without an id, is stored as replayed. Only the mode is the current one."""
    plan = update("plan", entries=[{"content": "one"}])
    harness = AcpHarness().feed(
        prompt(),
        agent_text("old", messageId="a"),
        call("in_progress"),
        call_update("completed"),
        plan,
        prompt_response(),
    )
    before = normalized_entries(harness)
    replay = [
        update("user_message_chunk", content={"type": "text", "text": "go"}, messageId="u-new"),
        agent_text("o", messageId="a"),
        call("completed", rawOutput="other", rawInput={"x": 1}),
        agent_text("nameless"),
        agent_text("ld", messageId="a"),
        plan,
        update("current_mode_update", currentModeId="x"),
        agent_text("ne", messageId="b"),
        call("in_progress", name="c2"),
        agent_text("ws", messageId="b"),
    ]
    harness.feed(c2a(rpc_request("session/load", 3)), *replay, a2c(rpc_response(3)))
    added = normalized_entries(harness)[len(before) :]
    assert normalized_entries(harness)[: len(before)] == before
    assert [entry["type"] for entry in added] == ["notice", "mode_change"]
    (replayed,) = [event for event in harness.log(ev.CallFailed) if event.verdict == "witness"]
    assert (replayed.call, replayed.reason) == ("", RESULT_UNKNOWN)


def test_a_replayed_plan_is_shown_in_an_empty_session() -> None:
    """The last plan of the replay is shown, at the position of the first one."""
    plans = [update("plan", entries=[{"content": text}]) for text in ("one", "two")]
    updates = [plans[0], agent_text("hi"), plans[1]]
    harness = AcpHarness().feed(c2a(rpc_request("session/load", 3)), *updates, a2c(rpc_response(3)))
    assert [getattr(entry, "entries", None) for entry in harness.entries()] == [[{"content": "two"}], None]


def test_a_replayed_call_without_an_id_makes_no_call() -> None:
    """S2.11: it cannot be distinguished from a recorded call, and a second load would duplicate it."""
    harness = AcpHarness().feed(c2a(rpc_request("session/load", 3)), call("completed", name=""), a2c(rpc_response(3)))
    assert (harness.calls, call("completed", name="") in harness.raws) == ([], True)


def test_a_replayed_call_without_an_end_ends_with_unknown_result() -> None:
    """C5: an unrecorded call of the replay has ended too."""
    harness = AcpHarness().feed(c2a(rpc_request("session/load", 3)), call("in_progress"), a2c(rpc_response(3)))
    assert (harness.call.status, harness.call.reason) == ("failed", RESULT_UNKNOWN)


def test_resuming_a_session_has_no_replay_unless_requested() -> None:
    """Updates during a resume are live."""
    for params, shown in (({}, True), ({"replayFrom": {"type": "start"}}, False)):
        harness = AcpHarness().feed(
            prompt(), prompt_response(), c2a(rpc_request("session/resume", 3, **params)), agent_text("text")
        )
        assert (len(harness.entries(Message)) == 2) is shown


# Several sessions on one connection


def test_a_connection_is_split_by_session_id() -> None:
    """Messages without a session id belong to the first session; the end of the stream belongs to all."""
    wire = Wire()
    first, second = c2a(rpc_request("session/new", 1)), c2a({"jsonrpc": "2.0", "id": 2, "method": "session/new"})
    messages = [first, second, update("plan", "s1"), a2c(rpc_response(2, sessionId="s2")), update("plan", "s2")]
    parts = [wire.split(message) for message in messages]
    assert [[name for name, _ in part] for part in parts] == [[""], [""], [""], ["s2"], ["s2"]]
    assert [name for name, _ in wire.split({"_eof": True})] == ["", "s2"]
    assert parts[3][0][1].method == "session/new"


def test_a_forked_session_is_a_separate_conversation() -> None:
    """Its modes and options do not change those of the original session."""
    wire = Wire()
    requests = [
        c2a(rpc_request("session/new", 1)),
        c2a(rpc_request("session/fork", 2)),
        a2c(rpc_response(2, sessionId="s2")),
    ]
    assert [name for message in requests for name, _ in wire.split(message)] == ["", "", "s2"]


@pytest.mark.parametrize(
    ("method", "sender"),
    [
        *((method, "c2a") for method in AGENT_METHODS.values() if method not in CLIENT_METHODS.values()),
        *((method, "a2c") for method in CLIENT_METHODS.values() if method not in AGENT_METHODS.values()),
        *((method, "c2a") for method in ("terminal/cancel", "tool_call/cancel", "auth/login", "session/set_title")),
        ("auth/status_update", "a2c"),
        ("mcp/message", ""),
        ("$/cancel_request", ""),
        ("_vendor/thing", ""),
    ],
)
def test_the_direction_of_a_message_is_derived_from_its_method(method: str, sender: str) -> None:
    """For every method of the protocol and of the draft; methods of both sides or of neither have no direction."""
    assert Wire().read({"id": 1, "method": method, "params": {}}).direction == sender


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("terminal/create", {"terminalId": "t"}),
        ("terminal/output", {"output": "x", "truncated": False}),
        ("fs/read_text_file", {"content": "x"}),
        ("session/request_permission", {"outcome": {"outcome": "cancelled"}}),
        ("elicitation/create", {"action": "cancel"}),
    ],
)
def test_responses_with_equal_ids_are_matched_by_their_fields(method: str, result: Any) -> None:
    """In a recording without directions, in which both sides count from 0."""
    for prompt_result in ({"messageId": "m"}, {}, {"stopReason": "end_turn"}):
        wire = Wire()
        wire.read(rpc_request("session/prompt", 0))
        wire.read(rpc_request(method, 0))
        methods = [wire.read({"id": 0, "result": answer}).method for answer in (prompt_result, result)]
        assert methods == ["session/prompt", method]


def test_conversations_on_one_connection_are_separate() -> None:
    """The same call id, the same prompt key and two simultaneous turns, each in its own session."""
    wire, harnesses = Wire(), {"": AcpHarness(), "s2": AcpHarness()}

    def in_second_session(message: dict[str, Any]) -> dict[str, Any]:
        copied = copy.deepcopy(message)
        copied["msg"]["params"]["sessionId"] = "s2"
        return copied

    messages = [
        prompt(1),
        in_second_session(prompt(2)),
        call("in_progress"),
        in_second_session(call("in_progress")),
        request_permission(1),
        in_second_session(request_permission(2)),
    ]
    messages += [
        permission_answer("no", 1),
        permission_answer("yes", 2),
        prompt_response(1, "cancelled"),
        in_second_session(call_update("completed")),
        prompt_response(2),
    ]
    for message in messages:
        for name, part in wire.split(message):
            harnesses[name].feed(part)
    assert [harness.call.status for harness in harnesses.values()] == ["denied", "completed"]
    assert [len(harness.log(ev.TurnEnded)) for harness in harnesses.values()] == [1, 1]


# Arbitrary input

NAMES = ["type", "text", "id", "sessionId", "toolCallId", "terminalId", "data", "outcome", "content"]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)


def containers(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(members, max_size=3), st.dictionaries(st.sampled_from(NAMES), members))


json_values = st.recursive(scalars, containers, max_leaves=6)
ALL_ROWS = [
    *(row for name in CAPTURES for row in rows(name)),
    *(json.loads(line) for case in CASES if format_of(case) == "acp" for line in lines_of(case)),
]


def row_at(index: int) -> Any:
    return ALL_ROWS[index]


any_row = st.integers(0, len(ALL_ROWS) - 1).map(row_at)


@st.composite
def changed_rows(draw: st.DrawFn) -> Any:
    """Draw a row of real traffic with some values replaced or removed."""
    row = draw(any_row)
    for _ in range(draw(st.integers(1, 3))):
        paths = value_paths(row)[1:] or [()]
        row = replace_at(row, draw(st.sampled_from(paths)), draw(st.one_of(json_values, st.just(...))))
        if not isinstance(row, dict | list):
            break
    return row


@given(st.lists(st.one_of(changed_rows(), any_row, json_values), max_size=12), st.booleans())
def test_no_message_makes_the_decoder_raise(messages: list[Any], split: bool) -> None:
    """C11: any value at any position gives drafts that the ledger accepts."""
    wire, harness = Wire(), AcpHarness()
    for message in messages:
        for _, part in wire.split(message) if split else [("", message)]:
            harness.feed(part)
    harness.close()
    assert harness.ledger.state.snapshot()


@pytest.mark.parametrize("name", CAPTURES)
def test_any_json_value_in_any_message_field_is_accepted(name: str) -> None:
    """C11: every member of every message of a capture is replaced by each kind of JSON value."""
    for row in rows(name):
        for path in value_paths(row["msg"]):
            for new in (None, 7, "", "x", [], {}, [1], {"type": "text"}):
                decoder = AcpDecoder()
                decoder.feed({**row, "msg": replace_at(row["msg"], path, new)})
                decoder.close("eof")
