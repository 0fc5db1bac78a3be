"""The Agent Client Protocol read: real agents' traffic, and each rule of the decoder by itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip import events as ev
from callslip.entries import Message, PermissionRequest, Plan, ToolCall
from callslip.events import Draft
from callslip.formats.acp.decode import AcpDecoder
from callslip.formats.acp.wire import Wire
from callslip.lifecycle import ENDS
from tests.strategies import Desk, canonical

FOLDER = Path(__file__).resolve().parent / "captures"
CAPTURES = {path.stem: path for path in sorted(FOLDER.glob("*.jsonl"))}
SILENT = ("gemini-allow", "py-example-agent", "ts-example-allow", "ts-example-reject")
REPLAYED = [name for name in CAPTURES if name not in SILENT]


def rows(name: str) -> list[Any]:
    """The rows of a capture."""
    return [json.loads(line) for line in CAPTURES[name].read_text("utf-8").splitlines()]


def live(name: str) -> list[Any]:
    """The rows before the session is loaded again."""
    found = rows(name)
    marks = [number for number, row in enumerate(found) if row["dir"] == "mark"]
    return found[: marks[0]] if marks else found


class Reading:
    """A decoder and the ledger's write path behind it."""

    def __init__(self, **options: Any) -> None:
        self.decoder = AcpDecoder(**options)
        self.desk = Desk()

    def feed(self, *messages: Any) -> Reading:
        for message in messages:
            self.take(self.decoder.feed(message))
        return self

    def close(self) -> Reading:
        self.take(self.decoder.close("eof"))
        return self

    def take(self, drafts: list[Draft]) -> None:
        if drafts:
            self.desk.write(*drafts)

    def entries(self, kind: type[Any] = msgspec.Struct) -> list[Any]:
        return [entry for entry in self.desk.state.snapshot().entries if isinstance(entry, kind)]

    @property
    def calls(self) -> list[ToolCall]:
        return self.entries(ToolCall)

    @property
    def call(self) -> ToolCall:
        (only,) = self.calls
        return only

    @property
    def request(self) -> PermissionRequest:
        return self.entries(PermissionRequest)[-1]

    def log(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.desk.log if isinstance(event, kind)]

    @property
    def raws(self) -> list[Any]:
        return [event.body for event in self.log(ev.Raw)]

    @property
    def verdicts(self) -> list[str]:
        return [event.verdict for event in self.desk.log]


# Real agents


class Outcome(NamedTuple):
    """How one call of a capture came out, as a careful reader would say."""

    title: str
    state: str
    output: Any = None
    exit: Any = None
    tool: str | None = None


SHELL = "echo hi-from-tool; sleep 1; echo done"
SLOW = "echo hi; sleep 20; echo late"
README = {"content": "# My Project\n\nThis is a sample project..."}
UPDATED = {"success": True, "message": "Configuration updated"}
READING, EDITING = "Reading project files", "Modifying critical configuration file"

OUTCOMES: dict[str, list[Outcome]] = {
    "claude-allow": [
        Outcome(SHELL, "completed", "hi-from-tool\ndone", tool="Bash"),
        Outcome("Read /home/dev/project/hello.txt", "completed", "1\thello file\n2\t", tool="Read"),
    ],
    "claude-reject": [
        Outcome(SHELL, "completed", "hi-from-tool\ndone", tool="Bash"),
        Outcome("Read /home/dev/project/hello.txt", "denied", tool="Read"),
    ],
    "codex-allow": [Outcome(SHELL, "completed", "done\n", 0)],
    "codex-cancel": [Outcome(SLOW, "cancelled")],
    "codex2-allow": [Outcome(SHELL, "completed", "done\n", 0, "exec_command")],
    "codex2-v2-allow": [Outcome(SHELL, "completed", tool="exec_command")],
    "gemini-allow": [Outcome("hello.txt", "completed"), Outcome(SHELL, "completed")],
    "opencode-allow": [
        Outcome(SHELL, "completed", "hi-from-tool\ndone\n", 0),
        Outcome("hello.txt", "completed", "<path>/home/dev/project/hello.txt</path>"),
    ],
    "opencode-cancel": [Outcome(SLOW, "completed", "hi\n\n\n<shell_metadata>\nUser aborted the command")],
    "py-example-agent": [],
    "ts-example-allow": [
        Outcome(READING, "completed", README),
        Outcome(EDITING, "completed", UPDATED),
        Outcome(READING, "completed", README),
        Outcome(EDITING, "completed", UPDATED),
    ],
    "ts-example-reject": [Outcome(READING, "completed", README), Outcome(EDITING, "denied")],
}


def outcome(call: ToolCall) -> Outcome:
    """What a call's entry shows."""
    output = call.output if call.output is not None else call.output_text or None
    if isinstance(output, dict):
        output = output.get("aggregated_output", output.get("output", output))
    return Outcome(call.title or "", call.status, output, call.exit_status, call.tool_name)


def same(found: Outcome, wanted: Outcome) -> bool:
    """Equal, but that a long output need only begin so."""
    begins = isinstance(found.output, str) and isinstance(wanted.output, str) and found.output.startswith(wanted.output)
    return found._replace(output=wanted.output) == wanted if begins else found == wanted


@pytest.mark.parametrize("name", CAPTURES)
def test_every_call_of_a_real_agent_is_found_and_ends_as_it_did(name: str) -> None:
    """C2, C3, S2.6: at the end of the live part each call is one entry, with state, output, exit status and tool."""
    reading = Reading().feed(*live(name))
    found = [outcome(call) for call in reading.calls]
    assert len(found) == len(OUTCOMES[name]), found
    assert all(map(same, found, OUTCOMES[name])), found


def test_the_table_of_outcomes_is_whole() -> None:
    """No capture lies about untested."""
    assert set(OUTCOMES) == set(CAPTURES)


@pytest.mark.parametrize("name", CAPTURES)
def test_what_an_agent_replays_changes_nothing_that_was_recorded_live(name: str) -> None:
    """S2.11: the second witness is kept and shown nowhere."""
    before, after = Reading().feed(*live(name)), Reading().feed(*rows(name))
    assert canonical(entries_of(after)) == canonical(entries_of(before))
    witnessed = [event for event in after.desk.log if event.verdict == "witness"]
    assert bool(witnessed) == (name in REPLAYED)


def entries_of(reading: Reading) -> list[Any]:
    """The entries, with one name for each minted id."""
    text = canonical(reading.entries()).decode()
    for number, name in enumerate(reading.desk.names.calls + reading.desk.names.approvals):
        text = text.replace(name, f"#{number}")
    found = json.loads(text)
    for entry in found:
        for field in ("at", "startedAt", "endedAt", "responseTime"):
            entry.pop(field, None)
    return found


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_into_an_empty_session_is_its_record(name: str) -> None:
    """S2.11: what nobody recorded is news: messages and calls are there, and every call has ended (C5)."""
    found = rows(name)
    begin = len(live(name))
    reading = Reading().feed(*found[begin:]).close()
    assert [call.title for call in reading.calls] and {call.status for call in reading.calls} <= ENDS
    assert next(entry.role for entry in reading.entries(Message)) == "user"
    assert not [entry for entry in reading.entries(Message) if entry.streaming]
    again = canonical(entries_of(reading))
    assert canonical(entries_of(reading.feed(*found[begin:]))) == again


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_reads_the_same_without_its_directions(name: str) -> None:
    """Bare JSON-RPC messages tell by themselves who sent them."""
    bare = [row["msg"] for row in rows(name) if row["dir"] != "mark"]
    assert canonical(entries_of(Reading().feed(*bare))) == canonical(entries_of(Reading().feed(*rows(name))))


@pytest.mark.parametrize("name", CAPTURES)
def test_nothing_of_a_capture_is_dropped(name: str) -> None:
    """Every row leaves an event at once, or waits for the answer of the load it belongs to."""
    decoder, held = AcpDecoder(), 0
    for row in rows(name):
        made = decoder.feed(row)
        held += not made
        assert made or row["msg"]["params"]["update"]["sessionUpdate"] in (
            "user_message_chunk",
            "agent_message_chunk",
            "tool_call",
            "tool_call_update",
        )
    assert held <= len(rows(name)) - len(live(name))


# Small talk: messages as both sides write them


def asks(method: str, key: Any, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": {"sessionId": "s1", **params}}


def answers(key: Any, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "result": result}


def fails(key: Any, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "error": {"code": -1, "message": message}}


def c2a(message: Any) -> dict[str, Any]:
    return {"t": 1, "dir": "c2a", "msg": message}


def a2c(message: Any) -> dict[str, Any]:
    return {"t": 1, "dir": "a2c", "msg": message}


def update(word: str, session: str = "s1", /, **fields: Any) -> dict[str, Any]:
    params = {"sessionId": session, "update": {"sessionUpdate": word, **fields}}
    return a2c({"jsonrpc": "2.0", "method": "session/update", "params": params})


def says(text: str, **fields: Any) -> dict[str, Any]:
    return update("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def prompt(key: Any = 1, text: str = "go") -> dict[str, Any]:
    return c2a(asks("session/prompt", key, prompt=[{"type": "text", "text": text}]))


def done(key: Any = 1, reason: str = "end_turn") -> dict[str, Any]:
    return a2c(answers(key, stopReason=reason))


def call(status: str | None = "pending", name: str = "c1", **fields: Any) -> dict[str, Any]:
    told = {} if status is None else {"status": status}
    return update("tool_call", toolCallId=name, **{"title": "T", "kind": "execute", **told, **fields})


def more(status: str | None = None, name: str = "c1", **fields: Any) -> dict[str, Any]:
    told = {} if status is None else {"status": status}
    return update("tool_call_update", toolCallId=name, **told, **fields)


OPTIONS = [
    {"optionId": "yes", "name": "Go ahead", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always", "kind": "allow_always"},
    {"optionId": "no", "name": "Rather not", "kind": "reject_once"},
    {"optionId": "odd", "name": "Hm", "kind": "ponder"},
]


def may_i(key: Any = 0, name: str = "c1", **fields: Any) -> dict[str, Any]:
    told = {"toolCallId": name, **fields}
    return a2c(asks("session/request_permission", key, toolCall=told, options=OPTIONS))


def chosen(option: str, key: Any = 0) -> dict[str, Any]:
    return c2a(answers(key, outcome={"outcome": "selected", "optionId": option}))


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
    assert Reading().feed(prompt(), call(word)).call.status == state
    assert Reading().feed(prompt(), more(word)).call.status == state
    assert Reading().feed(prompt(), call(), more(word)).call.status == state


def test_a_repeated_call_is_told_anew_and_stays_one() -> None:
    """S2.6"""
    reading = Reading().feed(prompt(), call(), call("in_progress", rawInput={"a": 1}), call("in_progress", kind="read"))
    assert (reading.call.status, reading.call.raw_input, reading.call.kind) == ("running", {"a": 1}, "read")


def test_an_end_that_an_update_brings_is_one_event_with_all_it_says() -> None:
    """The design's rule: one draft."""
    end = {"rawOutput": {"x": 1}, "content": [{"type": "diff"}], "locations": [{"path": "/a"}], "title": "Done"}
    reading = Reading().feed(prompt(), call("in_progress"), more("completed", **end))
    last = reading.desk.log[-1]
    assert isinstance(last, ev.CallCompleted)
    assert (last.output, last.content, last.locations, last.title) == tuple(end.values())


def test_what_an_update_leaves_out_stays_and_null_clears() -> None:
    """C10"""
    told = {"rawInput": {"a": 1}, "content": [{"type": "diff"}], "locations": [{"path": "/a"}]}
    reading = Reading().feed(prompt(), call(**told), more("in_progress"), more())
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
        reading = Reading().feed(prompt(), call("in_progress"), more("completed", **fields))
        assert (reading.call.status, reading.call.exit_status) == ("completed", 3)


def test_a_signal_is_an_exit_status_too() -> None:
    """Killed by a signal, there is no number."""
    meta = {"terminal_exit": {"exit_code": None, "signal": "SIGTERM"}}
    assert Reading().feed(prompt(), call(), more("failed", _meta=meta)).call.exit_status == {"signal": "SIGTERM"}


def test_output_in_the_metadata_is_found() -> None:
    """Terminal output is appended as it comes; a tool's own result serves where no other output is given."""
    printed = [more(_meta={"terminal_output_delta": {"data": text}}) for text in ("one\n", "two\n")]
    reading = Reading().feed(prompt(), call("in_progress"), *printed)
    assert (reading.call.output_text, reading.call.status) == ("one\ntwo\n", "running")
    ended = more("completed", _meta={"terminal_output": {"data": "three\n"}, "terminal_exit": {"exit_code": 0}})
    reading.feed(ended)
    assert (reading.call.output_text, reading.call.exit_status) == ("one\ntwo\nthree\n", 0)
    result = {"stdout": "x", "stderr": ""}
    claude = more(_meta={"claudeCode": {"toolName": "Bash", "toolResponse": result}})
    assert Reading().feed(prompt(), call(), claude, more("completed")).call.output == result
    assert Reading().feed(prompt(), call(), claude, more("completed", rawOutput="y")).call.output == "y"


def test_tool_names_come_from_where_agents_put_them() -> None:
    """S2.5: a prefix is cleaned and kept; a kind or a title is no name."""
    named = Reading().feed(
        prompt(), call(name="a"), more(name="a", _meta={"claudeCode": {"toolName": "mcp__acp__Read"}})
    )
    assert (named.call.tool_name, named.call.raw_tool_name) == ("Read", "mcp__acp__Read")
    message = call()
    message["msg"]["params"]["update"]["name"] = "exec_command"
    assert Reading().feed(prompt(), message).call.tool_name == "exec_command"
    assert Reading().feed(prompt(), call()).call.tool_name is None


def test_calls_without_an_id_are_each_one_of_their_own() -> None:
    """C2: nothing is guessed; an update that names no call is kept as it came."""
    nameless = [call("in_progress", name=""), call("in_progress", name=""), call("completed", name="", rawOutput=1)]
    reading = Reading().feed(prompt(), *nameless, more("completed", name=""))
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
            reading = Reading().feed(*first, prompt(2), *again, done(2))
            assert [one.status for one in reading.calls] == ["running", state]


def test_the_same_opening_twice_is_one_call() -> None:
    """C2: byte for byte the same message after the end makes no second call, started or not."""
    for status in ("pending", "in_progress", "completed"):
        reading = Reading().feed(prompt(), call(status), more("completed", rawOutput=1), call(status))
        assert [one.status for one in reading.calls] == ["completed"]
        assert "duplicate" in reading.verdicts


def test_an_update_never_reopens_a_call() -> None:
    """C4: what straggles in after the end is late, also after the turn that ended it, also if it says in_progress."""
    stopped = Reading().feed(prompt(), call("in_progress"), done(reason="cancelled"))
    stopped.feed(more("in_progress", content=[]), more(title="x"), more("completed", rawOutput="late"))
    assert (stopped.call.status, stopped.call.title, stopped.call.output) == ("cancelled", "T", None)
    assert stopped.call.late and stopped.verdicts[-3:] == ["late", "late", "late"]
    ended = Reading().feed(prompt(), call("in_progress"), more("completed", rawOutput=1), more("in_progress"))
    assert (ended.call.status, ended.call.output) == ("completed", 1)


def test_a_result_within_the_grace_after_the_turn_counts() -> None:
    """Updates may come after the prompt's answer."""
    reading = Reading().feed(prompt(), call("in_progress"), done(), more("completed", rawOutput=1))
    assert (reading.call.status, reading.call.output) == ("completed", 1)


def test_unknown_words_and_odd_fields_keep_the_message_whole() -> None:
    """C11: what can be read is; the rest is in the log."""
    message = more("paused", title=["no", "text"], extra=1, kind="read")
    reading = Reading().feed(prompt(), call(), message)
    assert (reading.call.status, reading.call.title, reading.call.kind) == ("queued", "T", "read")
    assert reading.raws == [message]


# Permission


def test_a_request_is_an_update_and_its_options_are_the_agents_words() -> None:
    """S2.6, S2.7"""
    reading = Reading().feed(prompt(), call(), may_i(rawInput={"a": 1}, title="Really?"))
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
    reading = Reading().feed(prompt(), may_i(), chosen(option))
    assert (reading.call.status, reading.request.state) == (state, request_state)
    assert (reading.request.response_option, reading.request.by) == (option, "client")


def test_a_withdrawn_question_cancels_the_call() -> None:
    """The client answers `cancelled`, or cannot answer; the agent's own report of it is no second end."""
    for answer in (answers(0, outcome={"outcome": "cancelled"}), fails(0, "no user")):
        reading = Reading().feed(prompt(), may_i(), c2a(answer), more("failed", rawOutput="stopped"))
        assert (reading.call.status, reading.request.state) == ("cancelled", "withdrawn")
        assert reading.verdicts[-1] == "duplicate"


@pytest.mark.parametrize("option", ["odd", "unheard-of"])
def test_an_answer_of_unknown_meaning_decides_nothing(option: str) -> None:
    """It is kept; what the agent does next tells what it meant."""
    reading = Reading().feed(prompt(), may_i(), chosen(option))
    assert (reading.call.status, reading.request.state, reading.raws) == (
        "awaiting_approval",
        "pending",
        [chosen(option)],
    )
    assert reading.feed(more("in_progress")).call.status == "running"


@pytest.mark.parametrize("start", [call("in_progress"), more("in_progress")])
def test_an_agent_that_starts_while_it_asks_has_granted_itself(start: Any) -> None:
    """The request does not stay pending, and the answer that comes after is kept."""
    reading = Reading().feed(prompt(), call(), may_i(), start)
    assert (reading.call.status, reading.request.state, reading.request.by) == ("running", "granted", "agent")
    reading.feed(chosen("no"))
    assert (reading.call.status, reading.raws) == ("running", [chosen("no")])


def test_an_agent_that_ends_while_it_asks_makes_the_question_moot() -> None:
    """An end is legal by itself."""
    reading = Reading().feed(prompt(), may_i(), more("completed", rawOutput=1))
    assert (reading.call.status, reading.request.state) == ("completed", "moot")


def test_the_answer_to_an_older_question_does_not_count_for_the_newer_one() -> None:
    """A second request for the same call supersedes the first."""
    reading = Reading().feed(prompt(), may_i(0), may_i("0"), chosen("yes", 0))
    assert reading.call.status == "awaiting_approval"
    assert reading.feed(chosen("no", "0")).call.status == "denied"


def test_ids_of_both_directions_do_not_mix() -> None:
    """The agent's request 1 is not the client's request 1, nor is "1" either of them, with directions told or not."""
    told = [prompt(1), may_i(1, "a"), may_i("1", "b"), chosen("no", "1"), chosen("yes", 1), done(1)]
    for messages in (told, [message["msg"] for message in told]):
        reading = Reading().feed(*messages)
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
    reading = Reading().feed(c2a(asks("session/prompt", 1, prompt=blocks)))
    (message,) = reading.entries(Message)
    assert (message.content, message.blocks, message.turn) == ("look at  now\nplease", blocks, "t1")
    (message,) = Reading().feed(prompt()).entries(Message)
    assert (message.content, message.blocks) == ("go", None)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"])
def test_a_turn_ends_with_the_agents_reason(reason: str) -> None:
    """The reason is the agent's word; the usage beside it is kept."""
    answer = a2c(answers(1, stopReason=reason, usage={"totalTokens": 3}))
    reading = Reading().feed(prompt(), answer)
    assert [event.reason for event in reading.log(ev.TurnEnded)] == [reason]
    assert reading.raws == [answer]


def test_an_error_ends_the_turn_with_what_it_says() -> None:
    """C5: the calls of the turn are lost with that as the reason."""
    reading = Reading().feed(prompt(), call("in_progress"), a2c(fails(1, "rate limited")))
    assert [(event.reason, event.detail) for event in reading.log(ev.TurnEnded)] == [("error", "rate limited")]
    assert (reading.call.status, reading.call.reason) == ("lost", "rate limited")


def test_cancelling_ends_nothing_by_itself() -> None:
    """A result may still come until the prompt is answered."""
    cancel = c2a({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}})
    reading = Reading().feed(prompt(), call("in_progress"), cancel)
    assert reading.call.status == "running"
    assert reading.feed(more("completed", rawOutput=1), done(reason="cancelled")).call.status == "completed"
    assert reading.raws == [cancel]


def test_a_prompt_that_waits_has_its_turn_when_the_one_before_is_answered() -> None:
    """Some agents take prompts while they work on one."""
    reading = Reading().feed(prompt(1), call("in_progress"), prompt(2, "and"), more("completed"), done(1), says("ok"))
    assert [event.turn for event in reading.log(ev.TurnStarted)] == ["t1", "t2"]
    assert [entry.turn for entry in reading.entries()] == ["t1", "t1", "t1", "t2"]
    assert len(reading.feed(done(2)).log(ev.TurnEnded)) == 2


def test_the_end_of_the_line_ends_the_turn() -> None:
    """C5: as a row in the record, or where the record stops; once is enough."""
    for end in (a2c({"_eof": True}), {"_eof": True}):
        reading = Reading().feed(prompt(), call("in_progress"), may_i(0, "c2"), end).close()
        assert [event.reason for event in reading.log(ev.TurnEnded)] == ["eof"]
        assert [one.status for one in reading.calls] == ["lost", "lost"]
        assert reading.request.state == "moot"
    assert not AcpDecoder().close("eof")


def test_draft_version_2_ends_its_turns_when_the_agent_is_idle() -> None:
    """There the answer to a prompt only says that it was taken, and the prompt is echoed."""
    hello = [c2a(asks("initialize", 0, protocolVersion=2)), a2c(answers(0, protocolVersion=2))]
    echo = update("user_message_chunk", content={"type": "text", "text": "go"}, messageId="u1")
    reading = Reading().feed(*hello, prompt(), echo, a2c(answers(1, messageId="u1")), more("in_progress"))
    assert not reading.log(ev.TurnEnded) and len(reading.entries(Message)) == 1
    reading.feed(more("cancelled"), update("state_update", state="idle", stopReason="end_turn"))
    assert (reading.call.status, len(reading.log(ev.TurnEnded))) == ("cancelled", 1)


# Texts and facts


def test_chunks_are_joined_by_the_declared_policy() -> None:
    """S2.4: nothing declared is `auto`; what the importer says is taken."""
    grows = [says(text, messageId="m") for text in ("I", "I'll", "I'll check")]
    for options, text in (({}, "I'll check"), ({"chunks": "delta"}, "II'llI'll check")):
        reading = Reading(**options).feed(prompt(), *grows, done())
        assert reading.entries(Message)[1].content == text


def test_content_that_is_not_text_is_kept() -> None:
    """And does not split the text around it (S2.12)."""
    image = update("agent_message_chunk", content={"type": "image", "data": "aGk=", "mimeType": "image/png"})
    noted = says("do", _meta={"from": "a subagent"})
    reading = Reading().feed(prompt(), says("I "), image, noted)
    assert (reading.entries(Message)[1].content, reading.raws) == ("I do", [image, noted])


def test_thoughts_plans_modes_commands_and_facts() -> None:
    """RULES 9 to 12, and the session's own facts."""
    opened = answers(9, sessionId="s1", modes={"currentModeId": "ask", "availableModes": [{"id": "ask"}]})
    reading = Reading().feed(
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
    info = reading.desk.state.info
    assert [type(entry).__name__ for entry in reading.entries()] == ["Meta", "Thought", "Plan", "ModeChange"]
    assert reading.entries(Plan)[0].entries[0]["content"] == "one"
    assert (info.title, info.usage, info.current_mode_id) == ("Title", {"used": 1, "size": 2}, "code")
    assert (info.notice, info.available_commands) == ({"severity": "warning", "title": "careful"}, [{"name": "web"}])
    assert reading.feed(update("session_info_update", title=None)).desk.state.info.title is None


def test_options_tell_modes_and_models_where_nothing_else_does() -> None:
    """S2.10: an agent that has only options; a changed option may be a changed mode."""
    option = {"id": "m", "category": "mode", "currentValue": "plan", "options": [{"value": "plan", "name": "Plan"}]}
    reading = Reading().feed(c2a(asks("session/new", 1)), a2c(answers(1, sessionId="s1", configOptions=[option])))
    meta = reading.entries()[0]
    assert (meta.available_modes, meta.current_mode_id) == ([{"id": "plan", "name": "Plan"}], "plan")
    changed = [{**option, "currentValue": "build"}]
    reading.feed(update("config_option_update", configOptions=changed))
    assert (reading.desk.state.info.options, reading.desk.state.info.current_mode_id) == (changed, "build")
    reading.feed(c2a(asks("session/set_mode", 2, modeId="plan")), a2c(answers(2)))
    assert reading.desk.state.info.current_mode_id == "plan"
    reading.feed(c2a(asks("session/set_mode", 3, modeId="gone")), a2c(fails(3, "no such mode")))
    assert reading.desk.state.info.current_mode_id == "plan"


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
    assert Reading().feed(*odd).raws == odd


def test_a_row_may_hold_its_message_as_text() -> None:
    """Some recorders write down the line as they read it."""
    row = prompt()
    assert Reading().feed({**row, "msg": json.dumps(row["msg"])}).log(ev.TurnStarted)


def test_times_count_from_the_start_of_the_recording() -> None:
    """Small numbers are seconds since then, great ones since the epoch; without a start the ledger's time holds."""
    row = prompt()
    for started, seconds, at in ((5000, 1.5, 6500), (5000, 1.7e9, 1_700_000_000_000), (0, 1.5, 0), (5000, 1e300, 0)):
        assert {draft.event.at for draft in AcpDecoder(started=started).feed({**row, "t": seconds})} == {at}


# Loading again


def test_a_replay_that_fails_shows_nothing() -> None:
    """S2.11: whatever came of it is kept."""
    load = c2a(asks("session/load", 3))
    told = [update("user_message_chunk", content={"type": "text", "text": "hi"}), call("completed")]
    for end in ([a2c(fails(3, "gone"))], []):
        reading = Reading().feed(load, *told, *end).close()
        assert (reading.entries(), reading.raws) == ([], [load, *told, *end])


def test_a_replay_brings_only_what_is_news() -> None:
    """S2.11: known ids, texts without ids and plans are witnesses; a call or message never heard of is shown."""
    plan = update("plan", entries=[{"content": "one"}])
    reading = Reading().feed(prompt(), says("old", messageId="a"), call("in_progress"), more("completed"), plan, done())
    before = entries_of(reading)
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
    news = entries_of(reading)[len(before) :]
    assert entries_of(reading)[: len(before)] == before
    assert [(entry["type"], entry.get("content"), entry.get("status")) for entry in news] == [
        ("message", "news", None),
        ("tool_call", None, "failed"),
        ("mode_change", None, None),
    ]
    assert reading.calls[1].reason == "the agent's replay does not tell how this call ended"


def test_a_plan_is_shown_where_nothing_was_recorded() -> None:
    """The last plan of the replay, where the first one stood."""
    plans = [update("plan", entries=[{"content": text}]) for text in ("one", "two")]
    told = [plans[0], says("hi"), plans[1]]
    reading = Reading().feed(c2a(asks("session/load", 3)), *told, a2c(answers(3)))
    assert [getattr(entry, "entries", None) for entry in reading.entries()] == [[{"content": "two"}], None]


def test_resuming_brings_no_replay_unless_one_is_asked_for() -> None:
    """What comes meanwhile is live."""
    for params, shown in (({}, True), ({"replayFrom": {"type": "start"}}, False)):
        reading = Reading().feed(prompt(), done(), c2a(asks("session/resume", 3, **params)), says("text"))
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


def test_conversations_on_one_wire_do_not_mix() -> None:
    """The same call id, the same prompt key and two turns at once, each in its own."""
    wire, readings = Wire(), {"": Reading(), "s2": Reading()}

    def other(message: dict[str, Any]) -> dict[str, Any]:
        twin = copy.deepcopy(message)
        twin["msg"]["params"]["sessionId"] = "s2"
        return twin

    talk = [prompt(1), other(prompt(2)), call("in_progress"), other(call("in_progress")), may_i(1), other(may_i(2))]
    talk += [chosen("no", 1), chosen("yes", 2), done(1, "cancelled"), other(more("completed")), done(2)]
    for message in talk:
        for name, part in wire.split(message):
            readings[name].feed(part)
    assert [reading.call.status for reading in readings.values()] == ["denied", "completed"]
    assert [len(reading.log(ev.TurnEnded)) for reading in readings.values()] == [1, 1]


# Anything at all

garbage = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.dictionaries(st.sampled_from(["type", "text", "id", "sessionId", "toolCallId", "data", "outcome"]), inside),
    ),
    max_leaves=6,
)
ALL_ROWS = [row for name in CAPTURES for row in rows(name)]


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, member in inside for path in paths(member, (*here, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a place, or with nothing there."""
    if not path:
        return new
    made = copy.copy(value)
    if len(path) == 1 and new is ...:
        del made[path[0]]
    else:
        made[path[0]] = changed(value[path[0]], path[1:], new)
    return made


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A row of real traffic with something in it replaced or taken out."""
    row = draw(st.sampled_from(ALL_ROWS))
    for _ in range(draw(st.integers(1, 3))):
        places = paths(row)[1:] or [()]
        row = changed(row, draw(st.sampled_from(places)), draw(st.one_of(garbage, st.just(...))))
        if not isinstance(row, dict | list):
            break
    return row


@given(st.lists(st.one_of(mutated(), st.sampled_from(ALL_ROWS), garbage), max_size=12), st.booleans())
def test_no_message_makes_the_decoder_raise(messages: list[Any], split: bool) -> None:
    """C11: whatever stands in whatever place, and the ledger takes what comes of it."""
    wire, reading = Wire(), Reading()
    for message in messages:
        for _, part in wire.split(message) if split else [("", message)]:
            reading.feed(part)
    reading.close()
    assert reading.desk.state.snapshot()


@pytest.mark.parametrize("name", CAPTURES)
def test_garbage_in_each_position_of_each_message_is_taken(name: str) -> None:
    """C11: every member of every message of a capture, in turn, replaced by each kind of JSON value."""
    for row in rows(name):
        for path in paths(row["msg"]):
            for new in (None, 7, "", "x", [], {}, [1], {"type": "text"}):
                decoder = AcpDecoder()
                decoder.feed({**row, "msg": changed(row["msg"], path, new)})
                decoder.close("eof")
