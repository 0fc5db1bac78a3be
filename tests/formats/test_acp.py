"""The Agent Client Protocol read, rule by rule: calls, permission, turns, texts, replays, conversations, anything."""

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
    answers,
    asks,
    c2a,
    call,
    chosen,
    done,
    fails,
    live,
    more,
    normalized_entries,
    prompt,
    request_permission,
    rows,
    says,
    update,
)
from tests.support.format_cases import CASES, format_of, lines_of
from tests.support.strategies import canonical

SILENT = ("gemini-allow", "py-example-agent", "ts-example-allow", "ts-example-reject")


@pytest.mark.parametrize("name", CAPTURES)
def test_what_an_agent_replays_changes_nothing_that_was_recorded_live(name: str) -> None:
    """S2.11: the second witness is kept and shown nowhere."""
    before, after = AcpHarness().feed(*live(name)), AcpHarness().feed(*rows(name))
    assert canonical(normalized_entries(after)) == canonical(normalized_entries(before))
    witnessed = [event for event in after.ledger.log if event.verdict == "witness"]
    assert bool(witnessed) == (name not in SILENT)


# Calls


@pytest.mark.parametrize(
    ("word", "state"),
    [
        (None, "queued"),
        ("pending", "queued"),
        ("in_progress", "running"),
        ("completed", "completed"),
        ("failed", "failed"),
    ],
)
def test_a_status_word_is_a_state(word: str | None, state: str) -> None:
    """S2.6: however the first message about a call says it, as a call or as an update of one never heard of."""
    assert AcpHarness().feed(prompt(), call(word)).call.status == state
    assert AcpHarness().feed(prompt(), more(word)).call.status == state
    assert AcpHarness().feed(prompt(), call(), more(word)).call.status == state


def test_a_repeated_call_is_told_anew_and_stays_one() -> None:
    """S2.6"""
    reading = AcpHarness().feed(
        prompt(), call(), call("in_progress", rawInput={"a": 1}), call("in_progress", kind="read")
    )
    assert (reading.call.status, reading.call.raw_input, reading.call.kind) == ("running", {"a": 1}, "read")


def test_an_end_that_an_update_brings_is_one_event_with_all_it_says() -> None:
    """The design's rule: one draft."""
    end = {"rawOutput": {"x": 1}, "content": [{"type": "diff"}], "locations": [{"path": "/a"}], "title": "Done"}
    reading = AcpHarness().feed(prompt(), call("in_progress"), more("completed", **end))
    last = reading.ledger.log[-1]
    assert isinstance(last, ev.CallCompleted)
    assert (last.output, last.content, last.locations, last.title) == tuple(end.values())


def test_what_an_update_leaves_out_stays_and_null_clears() -> None:
    """C10"""
    fields = {"rawInput": {"a": 1}, "content": [{"type": "diff"}], "locations": [{"path": "/a"}]}
    reading = AcpHarness().feed(prompt(), call(**fields), more("in_progress"), more())
    assert (reading.call.title, reading.call.raw_input, reading.call.locations) == ("T", {"a": 1}, [{"path": "/a"}])
    reading.feed(more(title=None, rawInput=None, locations=None))
    assert (reading.call.title, reading.call.raw_input, reading.call.locations) == (None, None, None)
    assert reading.call.content == [{"type": "diff"}]
    assert reading.call.status == "running"


def test_an_exit_status_does_not_overrule_the_agents_word() -> None:
    """A command that exits with 3 and is reported as completed is completed, and the 3 is shown."""
    for fields in (
        {"rawOutput": {"output": "no such file", "metadata": {"exit": 3}}},
        {"rawOutput": {"stdout": "", "exit_code": 3}},
        {"_meta": {"terminal_exit": {"exit_code": 3, "signal": None}}},
    ):
        reading = AcpHarness().feed(prompt(), call("in_progress"), more("completed", **fields))
        assert (reading.call.status, reading.call.exit_status) == ("completed", 3)


def test_a_signal_is_an_exit_status_too() -> None:
    """Killed by a signal, there is no number."""
    meta = {"terminal_exit": {"exit_code": None, "signal": "SIGTERM"}}
    assert AcpHarness().feed(prompt(), call(), more("failed", _meta=meta)).call.exit_status == {"signal": "SIGTERM"}


def test_output_in_the_metadata_is_found() -> None:
    """Terminal output is appended as it comes; a tool's own result serves where no other output is given."""
    printed = [more(_meta={"terminal_output_delta": {"data": text}}) for text in ("one\n", "two\n")]
    reading = AcpHarness().feed(prompt(), call("in_progress"), *printed)
    assert (reading.call.output_text, reading.call.status) == ("one\ntwo\n", "running")
    ended = more("completed", _meta={"terminal_output": {"data": "three\n"}, "terminal_exit": {"exit_code": 0}})
    reading.feed(ended)
    assert (reading.call.output_text, reading.call.exit_status) == ("one\ntwo\nthree\n", 0)
    result = {"stdout": "x", "stderr": ""}
    claude = more(_meta={"claudeCode": {"toolName": "Bash", "toolResponse": result}})
    assert AcpHarness().feed(prompt(), call(), claude, more("completed")).call.output == result
    assert AcpHarness().feed(prompt(), call(), claude, more("completed", rawOutput="y")).call.output == "y"


def test_tool_names_come_from_where_agents_put_them() -> None:
    """S2.5: a prefix is cleaned and kept; a kind or a title is no name."""
    named = AcpHarness().feed(
        prompt(), call(name="a"), more(name="a", _meta={"claudeCode": {"toolName": "mcp__acp__Read"}})
    )
    assert (named.call.tool_name, named.call.raw_tool_name) == ("Read", "mcp__acp__Read")
    message = call()
    message["msg"]["params"]["update"]["name"] = "exec_command"
    assert AcpHarness().feed(prompt(), message).call.tool_name == "exec_command"
    assert AcpHarness().feed(prompt(), call()).call.tool_name is None


def test_calls_without_an_id_are_each_one_of_their_own() -> None:
    """C2: nothing is guessed; an update that names no call is kept as it came."""
    nameless = [call("in_progress", name=""), call("in_progress", name=""), call("completed", name="", rawOutput=1)]
    reading = AcpHarness().feed(prompt(), *nameless, more("completed", name=""))
    assert [one.status for one in reading.calls] == ["running", "running", "completed"]
    assert len(reading.raws) == 1
    assert {one.status for one in reading.close().calls} == {"lost", "completed"}


def test_ids_that_start_anew_with_every_turn_are_new_calls() -> None:
    """C2: also where the call of the earlier turn was never ended, and where call and end come as one."""
    first = [prompt(1), call("in_progress"), done(1)]
    later = {
        "running": ([call("in_progress")], [call(), more("in_progress")]),
        "completed": ([call("completed", rawOutput=2)], [call(), more("completed")]),
    }
    for state, openings in later.items():
        for again in openings:
            reading = AcpHarness().feed(*first, prompt(2), *again, done(2))
            assert [one.status for one in reading.calls] == ["running", state]


def test_the_same_opening_twice_is_one_call() -> None:
    """C2: byte for byte the same message after the end makes no second call, started or not."""
    for status in ("pending", "in_progress", "completed"):
        reading = AcpHarness().feed(prompt(), call(status), more("completed", rawOutput=1), call(status))
        assert [one.status for one in reading.calls] == ["completed"]
        assert "duplicate" in reading.verdicts


def test_an_update_never_reopens_a_call() -> None:
    """C4: what straggles in after the end is late, also after the turn that ended it, also if it says in_progress."""
    stopped = AcpHarness().feed(prompt(), call("in_progress"), done(reason="cancelled"))
    stopped.feed(more("in_progress", content=[]), more(title="x"), more("completed", rawOutput="late"))
    assert (stopped.call.status, stopped.call.title, stopped.call.output) == ("cancelled", "T", None)
    assert stopped.call.late and stopped.verdicts[-3:] == ["late", "late", "late"]
    ended = AcpHarness().feed(prompt(), call("in_progress"), more("completed", rawOutput=1), more("in_progress"))
    assert (ended.call.status, ended.call.output) == ("completed", 1)


def test_a_result_within_the_grace_after_the_turn_counts() -> None:
    """Updates may come after the prompt's answer."""
    reading = AcpHarness().feed(prompt(), call("in_progress"), done(), more("completed", rawOutput=1))
    assert (reading.call.status, reading.call.output) == ("completed", 1)


def test_unknown_words_and_odd_fields_keep_the_message_whole() -> None:
    """C11: what can be read is; the rest is in the log."""
    message = more("paused", title=["no", "text"], extra=1, kind="read")
    reading = AcpHarness().feed(prompt(), call(), message)
    assert (reading.call.status, reading.call.title, reading.call.kind) == ("queued", "T", "read")
    assert reading.raws == [message]


def test_a_status_that_goes_back_is_kept_and_changes_nothing() -> None:
    """No event says that a call which has started has not; after a question it may well wait again."""
    back = more("pending")
    reading = AcpHarness().feed(prompt(), call("in_progress"), back)
    assert (reading.call.status, reading.raws) == ("running", [back])
    assert AcpHarness().feed(prompt(), call("in_progress"), request_permission(), back).raws == []


def test_a_call_without_an_id_tells_all_there_is_in_one_message() -> None:
    """C2: what was printed and how it ended, in any order."""
    printed = {"_meta": {"terminal_output": {"data": "half"}}}
    reading = AcpHarness().feed(
        prompt(), call("cancelled", name="", **printed), call("in_progress", name="", **printed)
    )
    assert [(one.status, one.output_text) for one in reading.calls] == [("cancelled", "half"), ("running", "half")]


# Terminals that the client owns


def terminal(method: str, key: Any, **params: Any) -> dict[str, Any]:
    return a2c(asks(f"terminal/{method}", key, **{"terminalId": "t", **params}))


SHOWS = {"content": [{"type": "terminal", "terminalId": "t"}]}


def polled(output: str, key: Any = 9, **more_said: Any) -> list[Any]:
    """The agent asks for the output so far, and gets it."""
    answer = answers(key, output=output, truncated=False, **more_said)
    return [terminal("output", key), c2a(answer)]


def test_what_a_terminal_prints_is_the_output_of_the_call_that_shows_it() -> None:
    """Each answer tells all of it; what is new is appended, and an answer without news changes nothing."""
    reading = AcpHarness().feed(prompt(), call("in_progress", **SHOWS), *polled("one\n"), *polled("one\n"))
    assert reading.call.output_text == "one\n"
    reading.feed(*polled("one\ntwo\n", exitStatus={"exitCode": 3}), more("completed"))
    assert (reading.call.status, reading.call.output_text, reading.call.exit_status) == ("completed", "one\ntwo\n", 3)
    requests = [terminal("output", 9)] * 3
    assert reading.raws == requests


def test_output_that_came_before_the_call_shows_its_terminal_is_not_lost() -> None:
    """It is in the log at once, and on the call as soon as that is known."""
    waited = [terminal("wait_for_exit", 8), c2a(answers(8, exitCode=None, signal="SIGTERM"))]
    early = [*polled("early\n"), *waited]
    reading = AcpHarness().feed(prompt(), *early, call("in_progress", **SHOWS))
    assert reading.raws == early
    assert (reading.call.output_text, reading.call.exit_status) == ("early\n", {"signal": "SIGTERM"})
    at_once = AcpHarness().feed(prompt(), *early, call("completed", **SHOWS)).call
    assert (at_once.status, at_once.output_text, at_once.exit_status) == ("completed", "early\n", {"signal": "SIGTERM"})


def test_output_of_which_the_beginning_was_cut_off_is_told_anew() -> None:
    """What was appended cannot be taken back; at the end the call's output is what the terminal shows."""
    cut = [terminal("output", 9), c2a(answers(9, output="8\n9\n", truncated=True))]
    reading = AcpHarness().feed(prompt(), call("in_progress", **SHOWS), *polled("1\n2\n"), *cut)
    assert (reading.call.output_text, reading.call.progress) == ("1\n2\n", "8\n9\n")
    assert reading.raws == [terminal("output", 9), *cut]
    reading.feed(*polled("8\n9\n10\n"), more("completed"))
    assert (reading.call.output, reading.call.output_text) == ("8\n9\n10\n", "1\n2\n10\n")
    ended = more("completed", rawOutput="x")
    other = AcpHarness().feed(prompt(), call("in_progress", **SHOWS), *polled("1"), *cut, ended)
    assert other.call.output == "x"


def test_output_after_the_call_ended_is_late_and_shown_by_the_call_that_goes_on() -> None:
    """C4: unless another call shows the same terminal by then."""
    begun = AcpHarness().feed(prompt(), call("in_progress", **SHOWS), *polled("one\n"), more("completed"))
    begun.feed(*polled("one\ntwo\n"))
    assert (begun.call.output_text, begun.verdicts[-1]) == ("one\n", "late")
    begun.feed(call("in_progress", name="c2", **SHOWS), *polled("one\ntwo\nthree\n"))
    assert [one.output_text for one in begun.calls] == ["one\n", "three\n"]
    assert begun.feed(*polled("one\ntwo\nthree\n")).verdicts[-1] == "applied"


def test_a_call_id_that_comes_again_does_not_show_the_terminals_of_the_call_before() -> None:
    """C2"""
    first = [prompt(1), call("in_progress", **SHOWS), *polled("one\n"), more("completed"), done(1)]
    reading = AcpHarness().feed(*first, prompt(2), call("in_progress"), *polled("one\ntwo\n"))
    assert [one.output_text for one in reading.calls] == ["one\n", ""]


def test_what_a_terminal_printed_waits_for_a_call_until_it_is_released() -> None:
    """An agent shows a terminal before it lets go of it; the output of one that it never shows is in the log alone."""
    printed = [prompt(), *polled("one\n")]
    shown = call("in_progress", **SHOWS)
    assert AcpHarness().feed(*printed, shown, terminal("release", 9)).call.output_text == "one\n"
    assert AcpHarness().feed(*printed, terminal("release", 9), shown).call.output_text == ""


def test_everything_else_about_terminals_is_kept() -> None:
    """Making, killing and releasing one, and answers that make no sense."""
    talk = [
        terminal("create", 1, command="ls", args=["-l"]),
        c2a(answers(1, terminalId="t")),
        terminal("kill", 2),
        c2a(answers(2)),
        terminal("release", 3),
        c2a({"jsonrpc": "2.0", "id": 3, "result": None}),
        terminal("output", 4),
        c2a(fails(4, "no such terminal")),
        terminal("output", 5, terminalId=None),
        c2a(answers(5, output="whose?")),
        terminal("wait_for_exit", 6),
        c2a(answers(6, exitCode=None, signal=None)),
    ]
    assert AcpHarness().feed(*talk).raws == talk


# Permission


def test_an_answer_is_shown_on_its_request_and_leaves_nothing_pending() -> None:
    """S2.13: which option, and when; what else the answer holds is kept."""
    answer = chosen("ever")
    answer["msg"]["result"]["_meta"] = {"seconds": 3}
    reading = AcpHarness(started=10**12).feed(prompt(), request_permission(), {**answer, "t": 5})
    shown = reading.request
    assert (shown.response_option, shown.response_time, shown.state) == ("ever", 10**12 + 5000, "granted")
    assert [row.state for row in reading.ledger.unit.approvals.values()] == ["granted"]
    assert reading.raws == [{**answer, "t": 5}]


def test_a_request_is_an_update_and_its_options_are_the_agents_words() -> None:
    """S2.6, S2.7"""
    reading = AcpHarness().feed(prompt(), call(), request_permission(rawInput={"a": 1}, title="Really?"))
    assert (reading.call.status, reading.call.raw_input, reading.call.title) == (
        "awaiting_approval",
        {"a": 1},
        "Really?",
    )
    assert (reading.request.options, reading.request.state) == (OPTIONS, "pending")


@pytest.mark.parametrize(
    ("option", "state", "request_state"),
    [("yes", "queued", "granted"), ("ever", "queued", "granted"), ("no", "denied", "refused")],
)
def test_the_kind_of_the_option_is_the_answer(option: str, state: str, request_state: str) -> None:
    """S2.7: first heard of by its request, the call is one; the answer is written on the request."""
    reading = AcpHarness().feed(prompt(), request_permission(), chosen(option))
    assert (reading.call.status, reading.request.state) == (state, request_state)
    assert (reading.request.response_option, reading.request.by) == (option, "client")


def test_a_withdrawn_question_cancels_the_call() -> None:
    """The client answers `cancelled`, or cannot answer; the agent's own report of it is no second end."""
    for answer in (answers(0, outcome={"outcome": "cancelled"}), fails(0, "no user")):
        reading = AcpHarness().feed(prompt(), request_permission(), c2a(answer), more("failed", rawOutput="stopped"))
        assert (reading.call.status, reading.request.state) == ("cancelled", "withdrawn")
        assert reading.verdicts[-1] == "duplicate"


@pytest.mark.parametrize("option", ["odd", "unheard-of"])
def test_an_answer_of_unknown_meaning_decides_nothing(option: str) -> None:
    """It is kept; what the agent does next tells what it meant."""
    reading = AcpHarness().feed(prompt(), request_permission(), chosen(option))
    assert (reading.call.status, reading.request.state, reading.raws) == (
        "awaiting_approval",
        "pending",
        [chosen(option)],
    )
    assert reading.feed(more("in_progress")).call.status == "running"


@pytest.mark.parametrize("start", [call("in_progress"), more("in_progress")])
def test_an_agent_that_starts_while_it_asks_has_granted_itself(start: Any) -> None:
    """The request does not stay pending, and the answer that comes after is kept."""
    reading = AcpHarness().feed(prompt(), call(), request_permission(), start)
    assert (reading.call.status, reading.request.state, reading.request.by) == ("running", "granted", "agent")
    reading.feed(chosen("no"))
    assert (reading.call.status, reading.raws) == ("running", [chosen("no")])


def test_an_agent_that_ends_while_it_asks_makes_the_question_moot() -> None:
    """An end is legal by itself."""
    reading = AcpHarness().feed(prompt(), request_permission(), more("completed", rawOutput=1))
    assert (reading.call.status, reading.request.state) == ("completed", "moot")


def test_the_answer_to_an_older_question_does_not_count_for_the_newer_one() -> None:
    """A second request for the same call supersedes the first."""
    reading = AcpHarness().feed(prompt(), request_permission(0), request_permission("0"), chosen("yes", 0))
    assert reading.call.status == "awaiting_approval"
    assert reading.feed(chosen("no", "0")).call.status == "denied"


def test_ids_of_both_directions_do_not_mix() -> None:
    """The agent's request 1 is not the client's request 1, nor is "1" either of them, with directions told or not."""
    messages = [
        prompt(1),
        request_permission(1, "a"),
        request_permission("1", "b"),
        chosen("no", "1"),
        chosen("yes", 1),
        done(1),
    ]
    for lines in (messages, [message["msg"] for message in messages]):
        reading = AcpHarness().feed(*lines)
        assert [one.status for one in reading.calls] == ["queued", "denied"]
        assert [event.reason for event in reading.log(ev.TurnEnded)] == ["end_turn"]


# Turns


def test_a_prompt_is_a_turn_and_its_blocks_are_kept() -> None:
    """RULE 8: texts are joined; what is not text alone stays there block by block."""
    blocks = [
        {"type": "text", "text": "look at "},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "text", "text": " now"},
        {"type": "text", "text": "please"},
    ]
    reading = AcpHarness().feed(c2a(asks("session/prompt", 1, prompt=blocks)))
    (message,) = reading.entries(Message)
    assert (message.content, message.blocks, message.turn) == ("look at  now\nplease", blocks, "t1")
    (message,) = AcpHarness().feed(prompt()).entries(Message)
    assert (message.content, message.blocks) == ("go", None)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"])
def test_a_turn_ends_with_the_agents_reason(reason: str) -> None:
    """The reason is the agent's word; the usage beside it is kept."""
    answer = a2c(answers(1, stopReason=reason, usage={"totalTokens": 3}))
    reading = AcpHarness().feed(prompt(), answer)
    assert [event.reason for event in reading.log(ev.TurnEnded)] == [reason]
    assert reading.raws == [answer]


def test_an_error_ends_the_turn_with_what_it_says() -> None:
    """C5: the calls of the turn are lost with that as the reason."""
    reading = AcpHarness().feed(prompt(), call("in_progress"), a2c(fails(1, "rate limited")))
    assert [(event.reason, event.detail) for event in reading.log(ev.TurnEnded)] == [("error", "rate limited")]
    assert (reading.call.status, reading.call.reason) == ("lost", "rate limited")


def test_cancelling_ends_nothing_by_itself() -> None:
    """A result may still come until the prompt is answered."""
    cancel = c2a({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}})
    reading = AcpHarness().feed(prompt(), call("in_progress"), cancel)
    assert reading.call.status == "running"
    assert reading.feed(more("completed", rawOutput=1), done(reason="cancelled")).call.status == "completed"
    assert reading.raws == [cancel]


def test_a_prompt_that_waits_has_its_turn_when_the_one_before_is_answered() -> None:
    """Some agents take prompts while they work on one."""
    reading = AcpHarness().feed(
        prompt(1), call("in_progress"), prompt(2, "and"), more("completed"), done(1), says("ok")
    )
    assert [event.turn for event in reading.log(ev.TurnStarted)] == ["t1", "t2"]
    assert [entry.turn for entry in reading.entries()] == ["t1", "t1", "t1", "t2"]
    assert len(reading.feed(done(2)).log(ev.TurnEnded)) == 2


def test_the_end_of_the_line_ends_the_turn() -> None:
    """C5: as a row in the record, or where the record stops; once is enough."""
    for end in (a2c({"_eof": True}), {"_eof": True}):
        reading = AcpHarness().feed(prompt(), call("in_progress"), request_permission(0, "c2"), end).close()
        assert [event.reason for event in reading.log(ev.TurnEnded)] == ["eof"]
        assert [one.status for one in reading.calls] == ["lost", "lost"]
        assert reading.request.state == "moot"
    assert not AcpDecoder().close("eof")


def test_draft_version_2_ends_its_turns_when_the_agent_is_idle() -> None:
    """There the answer to a prompt only says that it was taken, and the prompt is echoed."""
    hello = [c2a(asks("initialize", 0, protocolVersion=2)), a2c(answers(0, protocolVersion=2))]
    echo = update("user_message_chunk", content={"type": "text", "text": "go"}, messageId="u1")
    reading = AcpHarness().feed(*hello, prompt(), echo, a2c(answers(1, messageId="u1")), more("in_progress"))
    assert not reading.log(ev.TurnEnded) and len(reading.entries(Message)) == 1
    reading.feed(more("cancelled"), update("state_update", state="idle", stopReason="end_turn"))
    assert (reading.call.status, len(reading.log(ev.TurnEnded))) == ("cancelled", 1)


# Texts and facts


def test_chunks_are_joined_by_the_declared_policy() -> None:
    """S2.4: nothing declared is `auto`; what the importer says is taken."""
    grows = [says(text, messageId="m") for text in ("I", "I'll", "I'll check")]
    for options, text in (({}, "I'll check"), ({"chunks": "delta"}, "II'llI'll check")):
        reading = AcpHarness(**options).feed(prompt(), *grows, done())
        assert reading.entries(Message)[1].content == text


def test_content_that_is_not_text_is_kept() -> None:
    """And does not split the text around it (S2.12)."""
    image = update("agent_message_chunk", content={"type": "image", "data": "aGk=", "mimeType": "image/png"})
    noted = says("do", _meta={"from": "a subagent"})
    reading = AcpHarness().feed(prompt(), says("I "), image, noted)
    assert (reading.entries(Message)[1].content, reading.raws) == ("I do", [image, noted])


def test_thoughts_plans_modes_commands_and_facts() -> None:
    """RULES 9 to 12, and the session's own facts."""
    opened = answers(9, sessionId="s1", modes={"currentModeId": "ask", "availableModes": [{"id": "ask"}]})
    reading = AcpHarness().feed(
        c2a({"jsonrpc": "2.0", "id": 9, "method": "session/new", "params": {"cwd": "/"}}),
        update("available_commands_update", availableCommands=[{"name": "web"}]),
        a2c(opened),
        update("agent_thought_chunk", content={"type": "text", "text": "hm"}),
        update("plan", entries=[{"content": "one", "priority": "high", "status": "pending"}]),
        update("current_mode_update", currentModeId="code"),
        update("session_info_update", title="Title"),
        update("usage_update", used=1, size=2),
        update("notice", severity="warning", title="careful"),
    )
    info = reading.ledger.state.info
    assert [type(entry).__name__ for entry in reading.entries()] == ["Meta", "Thought", "Plan", "ModeChange"]
    assert reading.entries(Plan)[0].entries[0]["content"] == "one"
    assert (info.title, info.usage, info.current_mode_id) == ("Title", {"used": 1, "size": 2}, "code")
    assert (info.notice, info.available_commands) == ({"severity": "warning", "title": "careful"}, [{"name": "web"}])
    assert reading.feed(update("session_info_update", title=None)).ledger.state.info.title is None


def test_the_cost_stays_where_an_update_does_not_mention_it() -> None:
    """C10: it is a sum of the session."""
    cost = {"amount": 1, "currency": "USD"}
    reading = AcpHarness().feed(
        update("usage_update", used=1, size=9, cost=cost), update("usage_update", used=2, size=9)
    )
    assert reading.ledger.state.info.usage == {"used": 2, "size": 9, "cost": cost}
    reading.feed(update("usage_update", used=3, size=9, cost=None), update("usage_update", used=4, size=9))
    assert reading.ledger.state.info.usage == {"used": 4, "size": 9}


def test_plans_with_names_are_plans_and_one_that_is_removed_is_empty() -> None:
    """RULE 10: as entries, as text, as a file; the message is kept for the name in it."""
    plans = [
        {"type": "items", "planId": "p", "entries": [{"content": "one"}]},
        {"type": "markdown", "planId": "p", "content": "# Two"},
        {"type": "file", "planId": "q", "uri": "file:///plan"},
    ]
    updates = [update("plan_update", plan=plan) for plan in plans]
    gone = [update("plan_removed", planId=name) for name in ("p", "q")]
    odd = update("plan_update", plan={"type": "_drawing", "planId": "p"})
    reading = AcpHarness().feed(prompt(), *updates, odd, *gone)
    shown = [plan.entries for plan in reading.entries(Plan)]
    assert shown == [[{"content": "one"}], [{"content": "# Two"}], [{"content": "file:///plan"}], []]
    assert reading.raws == [*updates, odd, *gone]


def test_a_title_that_a_person_sets_is_the_one_that_the_agent_keeps() -> None:
    """The agent may shorten it, or refuse."""
    request = c2a(asks("session/set_title", 4, title=" My work "))
    assert AcpHarness().feed(request, a2c(answers(4, title="My work"))).ledger.state.info.title == "My work"
    assert AcpHarness().feed(request, a2c(fails(4, "no"))).ledger.state.info.title is None


def test_what_comes_beside_a_fact_is_kept() -> None:
    """Metadata of any update: the message is kept whole."""
    updates: list[tuple[str, dict[str, Any]]] = [
        ("available_commands_update", {"availableCommands": []}),
        ("current_mode_update", {"currentModeId": "ask"}),
        ("config_option_update", {"configOptions": []}),
        ("session_info_update", {"title": "T", "updatedAt": "now"}),
        ("plan", {"entries": []}),
    ]
    messages = [update(kind, _meta={"x": 1}, **fields) for kind, fields in updates]
    assert AcpHarness().feed(*messages).raws == messages


def test_options_tell_modes_and_models_where_nothing_else_does() -> None:
    """S2.10: an agent that has only options; a changed option may be a changed mode."""
    option = {"id": "m", "category": "mode", "currentValue": "plan", "options": [{"value": "plan", "name": "Plan"}]}
    reading = AcpHarness().feed(c2a(asks("session/new", 1)), a2c(answers(1, sessionId="s1", configOptions=[option])))
    meta = reading.entries()[0]
    assert (meta.available_modes, meta.current_mode_id) == ([{"id": "plan", "name": "Plan"}], "plan")
    changed = [{**option, "currentValue": "build"}]
    reading.feed(update("config_option_update", configOptions=changed))
    assert (reading.ledger.state.info.options, reading.ledger.state.info.current_mode_id) == (changed, "build")
    reading.feed(c2a(asks("session/set_mode", 2, modeId="plan")), a2c(answers(2)))
    assert reading.ledger.state.info.current_mode_id == "plan"
    reading.feed(c2a(asks("session/set_mode", 3, modeId="gone")), a2c(fails(3, "no such mode")))
    assert reading.ledger.state.info.current_mode_id == "plan"
    chosen_by_person = c2a(asks("session/set_config_option", 4, configId="m", value="build"))
    reading.feed(chosen_by_person, a2c(answers(4, configOptions=changed)))
    assert reading.ledger.state.info.current_mode_id == "build"


def test_choices_that_stand_in_groups_are_choices() -> None:
    """S2.10"""
    groups = [{"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}]}, {"value": "b", "name": "B"}]
    option = {"id": "m", "category": "model", "currentValue": "a", "options": groups}
    reading = AcpHarness().feed(c2a(asks("session/new", 1)), a2c(answers(1, sessionId="s1", configOptions=[option])))
    assert reading.entries()[0].available_models == [{"modelId": "a", "name": "A"}, {"modelId": "b", "name": "B"}]


def test_unknown_kinds_and_methods_are_kept_whole() -> None:
    """Nothing that was said is dropped."""
    odd = [
        update("subagent_update", state="busy"),
        a2c({"jsonrpc": "2.0", "method": "_vendor/thing", "params": {"a": 1}}),
        a2c(asks("fs/read_text_file", 5, path="/a")),
        c2a(answers(5, content="text")),
        a2c(asks("terminal/create", 6, command="ls")),
        c2a(answers(77, nobody="asked")),
        a2c("{not json"),
        [1, 2],
        None,
    ]
    assert AcpHarness().feed(*odd).raws == odd


def test_a_row_may_hold_its_message_as_text() -> None:
    """Some recorders write down the line as they read it."""
    row = prompt()
    assert AcpHarness().feed({**row, "msg": json.dumps(row["msg"])}).log(ev.TurnStarted)


def test_times_count_from_the_start_of_the_recording() -> None:
    """Small numbers are seconds since then, great ones since the epoch; without a start the ledger's time holds."""
    row = prompt()
    for started, seconds, at in ((5000, 1.5, 6500), (5000, 1.7e9, 1_700_000_000_000), (0, 1.5, 0), (5000, 1e300, 0)):
        assert {draft.event.at for draft in AcpDecoder(started=started).feed({**row, "t": seconds})} == {at}


# Loading again


def test_a_replay_that_fails_shows_nothing() -> None:
    """S2.11: all of it is stored."""
    load = c2a(asks("session/load", 3))
    updates = [update("user_message_chunk", content={"type": "text", "text": "hi"}), call("completed")]
    for end in ([a2c(fails(3, "gone"))], []):
        reading = AcpHarness().feed(load, *updates, *end).close()
        assert (reading.entries(), reading.raws) == ([], [load, *updates, *end])


def test_a_call_that_goes_on_while_the_session_is_loaded_ends_as_it_does() -> None:
    """C5: what comes of a call of the open turn is no replay, although a load waits for its answer."""
    loading = c2a(asks("session/load", 2))
    over = more("completed", rawOutput="out")
    reading = AcpHarness().feed(prompt(), call("in_progress"), loading, over, a2c(answers(2)), done())
    assert (reading.call.status, reading.call.output) == ("completed", "out")


def test_a_call_that_ended_is_not_told_anew_by_a_load_in_the_same_turn() -> None:
    """S2.11: the replay of it is a witness."""
    past = [call("pending"), more("failed", rawOutput="otherwise")]
    loaded = [c2a(asks("session/load", 2)), *past, a2c(answers(2))]
    reading = AcpHarness().feed(prompt(), call("in_progress"), more("completed", rawOutput="out"), *loaded, done())
    assert (reading.call.status, reading.call.output) == ("completed", "out")
    assert [event.verdict for event in reading.log(ev.CallFailed)] == ["witness"]


def test_a_replay_brings_only_what_is_news() -> None:
    """S2.11: known ids, texts without ids and plans are witnesses; a call or message never heard of is shown."""
    plan = update("plan", entries=[{"content": "one"}])
    reading = AcpHarness().feed(
        prompt(), says("old", messageId="a"), call("in_progress"), more("completed"), plan, done()
    )
    before = normalized_entries(reading)
    replay = [
        update("user_message_chunk", content={"type": "text", "text": "go"}, messageId="u-new"),
        says("o", messageId="a"),
        call("completed", rawOutput="other", rawInput={"x": 1}),
        says("nameless"),
        says("ld", messageId="a"),
        plan,
        update("current_mode_update", currentModeId="x"),
        says("ne", messageId="b"),
        call("in_progress", name="c2"),
        says("ws", messageId="b"),
    ]
    reading.feed(c2a(asks("session/load", 3)), *replay, a2c(answers(3)))
    news = normalized_entries(reading)[len(before) :]
    assert normalized_entries(reading)[: len(before)] == before
    assert [(entry["type"], entry.get("content"), entry.get("status")) for entry in news] == [
        ("message", "news", None),
        ("tool_call", None, "failed"),
        ("mode_change", None, None),
    ]
    assert reading.calls[1].reason == "the agent's replay does not tell how this call ended"


def test_a_plan_is_shown_where_nothing_was_recorded() -> None:
    """The last plan of the replay, where the first one stood."""
    plans = [update("plan", entries=[{"content": text}]) for text in ("one", "two")]
    updates = [plans[0], says("hi"), plans[1]]
    reading = AcpHarness().feed(c2a(asks("session/load", 3)), *updates, a2c(answers(3)))
    assert [getattr(entry, "entries", None) for entry in reading.entries()] == [[{"content": "two"}], None]


def test_a_call_without_an_id_in_a_replay_is_kept_and_made_no_call() -> None:
    """S2.11: it could not be told from one that was recorded; loading twice would double it."""
    reading = AcpHarness().feed(c2a(asks("session/load", 3)), call("completed", name=""), a2c(answers(3)))
    assert (reading.calls, call("completed", name="") in reading.raws) == ([], True)


def test_a_replayed_call_without_an_end_is_untold() -> None:
    """C5: if it was not recorded, it has ended too, with an unknown result."""
    reading = AcpHarness().feed(c2a(asks("session/load", 3)), call("in_progress"), a2c(answers(3)))
    assert (reading.call.status, reading.call.reason) == ("failed", RESULT_UNKNOWN)


def test_resuming_brings_no_replay_unless_one_is_asked_for() -> None:
    """What comes meanwhile is live."""
    for params, shown in (({}, True), ({"replayFrom": {"type": "start"}}, False)):
        reading = AcpHarness().feed(prompt(), done(), c2a(asks("session/resume", 3, **params)), says("text"))
        assert (len(reading.entries(Message)) == 2) is shown


# Several conversations


def test_a_wire_is_split_by_sessions() -> None:
    """The first that is named takes what names none; the end of the line concerns all."""
    wire = Wire()
    first, second = c2a(asks("session/new", 1)), c2a({"jsonrpc": "2.0", "id": 2, "method": "session/new"})
    messages = [first, second, update("plan", "s1"), a2c(answers(2, sessionId="s2")), update("plan", "s2")]
    parts = [wire.split(message) for message in messages]
    assert [[name for name, _ in part] for part in parts] == [[""], [""], [""], ["s2"], ["s2"]]
    assert [name for name, _ in wire.split({"_eof": True})] == ["", "s2"]
    assert parts[3][0][1].method == "session/new"


def test_a_fork_is_a_conversation_of_its_own() -> None:
    """What the agent offers for the new session does not become the old one's."""
    wire = Wire()
    requests = [c2a(asks("session/new", 1)), c2a(asks("session/fork", 2)), a2c(answers(2, sessionId="s2"))]
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
def test_a_method_tells_who_sends_it(method: str, sender: str) -> None:
    """Every method of the protocol's own list, and of the draft; of methods of both or neither, nothing is known."""
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
def test_answers_to_equal_ids_are_told_apart_by_what_they_hold(method: str, result: Any) -> None:
    """Where no directions were written down, and both sides count from 0."""
    for mine in ({"messageId": "m"}, {}, {"stopReason": "end_turn"}):
        wire = Wire()
        wire.read(asks("session/prompt", 0))
        wire.read(asks(method, 0))
        found = [wire.read({"id": 0, "result": answer}).method for answer in (mine, result)]
        assert found == ["session/prompt", method]


def test_conversations_on_one_wire_do_not_mix() -> None:
    """The same call id, the same prompt key and two turns at once, each in its own."""
    wire, readings = Wire(), {"": AcpHarness(), "s2": AcpHarness()}

    def other(message: dict[str, Any]) -> dict[str, Any]:
        twin = copy.deepcopy(message)
        twin["msg"]["params"]["sessionId"] = "s2"
        return twin

    talk = [
        prompt(1),
        other(prompt(2)),
        call("in_progress"),
        other(call("in_progress")),
        request_permission(1),
        other(request_permission(2)),
    ]
    talk += [chosen("no", 1), chosen("yes", 2), done(1, "cancelled"), other(more("completed")), done(2)]
    for message in talk:
        for name, part in wire.split(message):
            readings[name].feed(part)
    assert [reading.call.status for reading in readings.values()] == ["denied", "completed"]
    assert [len(reading.log(ev.TurnEnded)) for reading in readings.values()] == [1, 1]


# Anything at all

NAMES = ["type", "text", "id", "sessionId", "toolCallId", "terminalId", "data", "outcome", "content"]
leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())


def nested(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inside, max_size=3), st.dictionaries(st.sampled_from(NAMES), inside))


garbage = st.recursive(leaf, nested, max_leaves=6)
ALL_ROWS = [
    *(row for name in CAPTURES for row in rows(name)),
    *(json.loads(line) for case in CASES if format_of(case) == "acp" for line in lines_of(case)),
]


def row_at(index: int) -> Any:
    return ALL_ROWS[index]


any_row = st.integers(0, len(ALL_ROWS) - 1).map(row_at)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """A position in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, member in inside for path in paths(member, (*here, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a place, or with nothing there."""
    if not path:
        return new
    copied = copy.copy(value)
    if len(path) == 1 and new is ...:
        del copied[path[0]]
    else:
        copied[path[0]] = changed(value[path[0]], path[1:], new)
    return copied


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A row of real traffic with something in it replaced or taken out."""
    row = draw(any_row)
    for _ in range(draw(st.integers(1, 3))):
        places = paths(row)[1:] or [()]
        row = changed(row, draw(st.sampled_from(places)), draw(st.one_of(garbage, st.just(...))))
        if not isinstance(row, dict | list):
            break
    return row


@given(st.lists(st.one_of(mutated(), any_row, garbage), max_size=12), st.booleans())
def test_no_message_makes_the_decoder_raise(messages: list[Any], split: bool) -> None:
    """C11: any value at any position gives drafts that the ledger accepts."""
    wire, reading = Wire(), AcpHarness()
    for message in messages:
        for _, part in wire.split(message) if split else [("", message)]:
            reading.feed(part)
    reading.close()
    assert reading.ledger.state.snapshot()


@pytest.mark.parametrize("name", CAPTURES)
def test_garbage_in_each_position_of_each_message_is_taken(name: str) -> None:
    """C11: every member of every message of a capture, in turn, replaced by each kind of JSON value."""
    for row in rows(name):
        for path in paths(row["msg"]):
            for new in (None, 7, "", "x", [], {}, [1], {"type": "text"}):
                decoder = AcpDecoder()
                decoder.feed({**row, "msg": changed(row["msg"], path, new)})
                decoder.close("eof")
