"""Differences between a replay of an agent and the recording, and the output of `show --witness`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given

from callslip.cli import main
from callslip.model import events as ev
from callslip.model.entries import Entry
from callslip.model.events import Alias, Draft, Event
from callslip.rules.replay_diff import RESULT_UNKNOWN, ReplayDifference, diff_replay, newest_replay
from tests.support.acp_session import CAPTURES, FOLDER, AcpHarness, rows
from tests.support.strategies import MemoryLedger, json_values

ONE, TWO = (Alias("acp", "1"),), (Alias("acp", "2"),)


def diff_newest_replay(memory: MemoryLedger) -> list[ReplayDifference]:
    entries: list[Entry] = memory.state.snapshot().entries
    return diff_replay(entries, newest_replay(memory.log))


def list_differences(memory: MemoryLedger) -> list[tuple[str, Any, Any]]:
    """Return field and values of the differences, without their positions."""
    return [(one.field, one.recorded, one.replayed) for one in diff_newest_replay(memory)]


def write_replay(memory: MemoryLedger, *events: Event) -> MemoryLedger:
    """Write a replay that adds nothing: one event for each item, between two `message.ended`."""
    edge = ev.MessageEnded()
    memory.write(*(Draft(event, witness=True, adds="nothing") for event in (edge, *events, edge)))
    return memory


def record_turn(*events: Event) -> MemoryLedger:
    """Return a session with one turn of these events."""
    memory = MemoryLedger(redact=False)
    memory.write(ev.TurnStarted(), *events, ev.TurnEnded())
    return memory


WARNING = (
    "Model metadata for `mock-1` not found. Defaulting to fallback metadata; this can degrade performance and cause "
)
SHELL, SLOW_SHELL = "echo hi-from-tool; sleep 1; echo done", "echo hi; sleep 20; echo late"

# For each capture: the fields that differ in its replay with both values; `...` stands for a long value.
CAPTURE_DIFFERENCES: dict[str, list[tuple[str, Any, Any]]] = {
    "claude-allow": [("content", "All done with tools.", None)],
    "claude-reject": [("content", "All done with tools.", None)],
    "codex-allow": [
        ("content", f"{WARNING}issues.Let me look. ", "Let me look. "),
        ("title", SHELL, "exec_command"),
        ("rawInput", ..., {"cmd": SHELL}),
        ("output", ..., ...),
    ],
    "codex-cancel": [
        ("content", f"{WARNING}issues.Let me look. ", "Let me look. "),
        ("title", SLOW_SHELL, "exec_command"),
        ("rawInput", ..., {"cmd": SLOW_SHELL}),
        ("status", "cancelled", "completed"),
        ("output", None, "aborted by user after 2.5s"),
    ],
    "codex2-allow": [("output", "done\n", "hi-from-tool\ndone\n")],
    "codex2-v2-allow": [("output", "done\n", "hi-from-tool\ndone\n")],
    "gemini-allow": [],
    "opencode-allow": [],
    "opencode-cancel": [],
    "py-example-agent": [],
    "ts-example-allow": [],
    "ts-example-reject": [],
}


@pytest.mark.parametrize("name", CAPTURES)
def test_differences_in_replays_of_captures_are_found(name: str) -> None:
    """S2.11: in title, arguments, state and output of calls, and in messages; equal ones are not reported."""
    differences = list_differences(AcpHarness().feed(*rows(name)).ledger)
    assert [difference[0] for difference in differences] == [difference[0] for difference in CAPTURE_DIFFERENCES[name]]
    for difference, expected_difference in zip(differences, CAPTURE_DIFFERENCES[name], strict=True):
        assert all(
            value == expected
            for value, expected in zip(difference, expected_difference, strict=True)
            if expected is not ...
        )


def test_a_difference_has_its_entry_call_and_replay_event() -> None:
    """So both versions can be looked up."""
    memory = write_replay(
        record_turn(ev.CallCompleted(aliases=ONE, title="a")), ev.CallCompleted(aliases=ONE, title="b")
    )
    (difference,) = diff_newest_replay(memory)
    (entry,) = memory.state.snapshot().entries
    assert (difference.entry, difference.call_id, difference.type) == (entry.id, entry.call_id, "tool_call")
    assert memory.log[difference.seq - 1].title == "b"


def test_an_absent_field_of_a_replay_is_no_difference() -> None:
    """C10: null differs from a value."""
    fields = {"title": "a", "kind": "read", "input": {"x": 1}, "content": [], "locations": [], "exit_status": 3}
    memory = record_turn(ev.CallCompleted(aliases=ONE, tool_name="mcp__acp__Read", output="o", **fields))
    assert list_differences(write_replay(memory, ev.CallCompleted(aliases=ONE))) == []
    assert (
        list_differences(write_replay(memory, ev.CallCompleted(aliases=ONE, tool_name="Read", output="o", **fields)))
        == []
    )
    assert list_differences(write_replay(memory, ev.CallCompleted(aliases=ONE, title=None, exit_status=0))) == [
        ("title", "a", None),
        ("exitStatus", 3, 0),
    ]


def test_numbers_are_compared_as_json() -> None:
    """1, 1.0 and true are three values."""
    memory = record_turn(ev.CallCompleted(aliases=ONE, output=1))
    assert list_differences(write_replay(memory, ev.CallCompleted(aliases=ONE, output=True))) == [("output", 1, True)]


def test_streamed_output_equals_the_same_full_output() -> None:
    """It is no difference."""
    memory = record_turn(ev.CallProgress(aliases=ONE, text="a"), ev.CallProgress(aliases=ONE, text="b"))
    memory.write(ev.CallCompleted(aliases=ONE))
    assert list_differences(write_replay(memory, ev.CallCompleted(aliases=ONE, output="ab"))) == []
    assert list_differences(write_replay(memory, ev.CallCompleted(aliases=ONE, output="ac"))) == [
        ("output", "ab", "ac")
    ]


@pytest.mark.parametrize("answer", [ev.ApprovalRefused, ev.ApprovalWithdrawn, ev.CallDenied, ev.CallCancelled])
def test_failed_in_a_replay_matches_a_denied_or_cancelled_call(answer: type[Any]) -> None:
    """The agent has no other status, and its report is the output; `completed` is a difference."""
    memory = record_turn(ev.ApprovalRequested(aliases=ONE), answer(aliases=ONE))
    assert list_differences(write_replay(memory, ev.CallFailed(aliases=ONE, output="refused"))) == []
    (entry,) = [entry for entry in memory.state.snapshot().entries if hasattr(entry, "output")]
    assert ("status", entry.status, "completed") in list_differences(
        write_replay(memory, ev.CallCompleted(aliases=ONE))
    )


def test_a_missing_end_in_a_replay_is_no_difference() -> None:
    """If the recording has no end, an end in the replay is a difference."""
    memory = record_turn(ev.CallCompleted(aliases=ONE, output=1))
    assert list_differences(write_replay(memory, ev.CallFailed(aliases=ONE, reason=RESULT_UNKNOWN))) == []
    lost = record_turn(ev.CallStarted(aliases=ONE))
    lost.write(ev.CallLost(aliases=ONE))
    assert list_differences(write_replay(lost, ev.CallFailed(aliases=ONE))) == [("status", "lost", "failed")]


def test_calls_and_messages_missing_in_the_replay_are_reported() -> None:
    """The replayed value is None."""
    memory = record_turn(ev.MessageUser(text="go"), ev.CallCompleted(aliases=ONE), ev.CallCompleted(aliases=TWO))
    assert list_differences(write_replay(memory, ev.CallCompleted(aliases=TWO))) == [
        ("content", "go", None),
        ("status", "completed", None),
    ]


def test_texts_are_aligned_around_equal_texts() -> None:
    """Agents rarely replay ids: an additional text does not make all later ones differ."""
    messages = [ev.MessageUser(text=text) for text in ("a", "b", "c")]
    memory = record_turn(*messages)
    assert list_differences(write_replay(memory, messages[0], messages[2])) == [("content", "b", None)]
    assert list_differences(write_replay(memory, messages[0], ev.MessageUser(text="B"), messages[2])) == [
        ("content", "b", "B")
    ]
    assert list_differences(write_replay(memory, *messages, ev.MessageUser(text="d"))) == [("content", None, "d")]
    differences = diff_newest_replay(write_replay(memory, *messages, ev.MessageUser(text="d")))[0]
    assert (differences.entry, memory.log[differences.seq - 1].text) == (0, "d")


def test_repeated_texts_of_a_long_session_are_compared_quickly() -> None:
    """Every second message is the same and the others differ; they are compared in order."""
    messages, replayed = (
        [ev.MessageUser(text=f"{who} {n}" if n % 2 else "go on") for n in range(3000)] for who in "ab"
    )
    differences = list_differences(write_replay(record_turn(*messages), *replayed))
    assert differences == [("content", f"a {n}", f"b {n}") for n in range(1, 3000, 2)]


def test_a_message_split_by_a_call_is_joined_by_its_id() -> None:
    """The replay has it as one text; roles and thoughts are compared separately."""
    live = [ev.MessageDelta(text="I ", message_id="m"), ev.CallCompleted(aliases=ONE)]
    memory = record_turn(*live, ev.MessageDelta(text="see", message_id="m"), ev.ThoughtDelta(text="hm", message_id="h"))
    rest = [ev.CallCompleted(aliases=ONE), ev.ThoughtDelta(text="hm", message_id="h")]
    assert list_differences(write_replay(memory, ev.MessageDelta(text="I see", message_id="m"), *rest)) == []
    (difference,) = diff_newest_replay(write_replay(memory, ev.MessageDelta(text="I see", message_id="m"), rest[0]))
    assert (difference.type, difference.recorded, difference.replayed) == ("thought", "hm", None)


def test_only_the_newest_replay_and_earlier_entries_are_compared() -> None:
    """Later entries cannot be in the replay."""
    memory = write_replay(
        record_turn(ev.CallCompleted(aliases=ONE, title="a")), ev.CallCompleted(aliases=ONE, title="b")
    )
    write_replay(memory, ev.CallCompleted(aliases=ONE, title="a"))
    memory.write(ev.TurnStarted(), ev.MessageUser(text="more"), ev.CallCompleted(aliases=TWO), ev.TurnEnded())
    assert list_differences(memory) == []
    assert list_differences(record_turn(ev.CallCompleted(aliases=ONE))) == [] == newest_replay([])


def test_calls_and_messages_missing_in_the_recording_are_reported() -> None:
    """RPL3: the recorded value is None, the entry is 0. A call has its foreign id, title and state."""
    memory = record_turn(ev.CallCompleted(aliases=ONE, title="a"))
    unrecorded = [ev.MessageDelta(text="new", message_id="n"), ev.CallCompleted(aliases=TWO, title="new")]
    write_replay(memory, *unrecorded, ev.CallCompleted(aliases=ONE, title="a"))
    assert [(one.entry, one.call_id, one.field, one.recorded, one.replayed) for one in diff_newest_replay(memory)] == [
        (0, None, "content", None, "new"),
        (0, "2", "title", None, "new"),
        (0, "2", "status", None, "completed"),
    ]
    assert len(memory.state.snapshot().entries) == 1


def test_turns_that_a_replay_adds_are_no_difference() -> None:
    """RPL1: they are entries after the replay began, with or without a recording before it."""
    events = [
        ev.MessageUser(text="go"),
        ev.CallCompleted(aliases=ONE),
        ev.MessageUser(text="on"),
        ev.MessageDelta(text="!"),
    ]
    edge = ev.MessageEnded()
    for memory in (record_turn(*events[:2]), MemoryLedger(redact=False)):
        memory.write(*(Draft(event, witness=True, adds="turns") for event in (edge, *events, edge)))
        assert len(memory.state.snapshot().entries) == 4 and list_differences(memory) == []


@given(json_values, json_values)
def test_a_replay_of_the_recording_has_no_difference(raw_input: Any, output: Any) -> None:
    """For any values."""
    messages: list[Event] = [
        ev.MessageUser(text="go"),
        ev.CallCompleted(aliases=ONE, input=raw_input, output=output, title="t"),
        ev.MessageDelta(text="done", message_id="m", chunks="delta"),
    ]
    assert list_differences(write_replay(record_turn(*messages), *messages)) == []


# The command


def run_cli(*arguments: str) -> Any:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """The path of a ledger with some captures."""
    db = str(tmp_path / "ledger.db")
    for name in ("codex-cancel", "codex-allow", "opencode-allow", "gemini-allow"):
        run_cli("import", "--format", "acp", str(CAPTURES[name]), "--db", db)
    return db


def test_show_lists_recorded_and_replayed_values(ledger: str) -> None:
    """With the call and the field; long values are truncated unless --full."""
    page = run_cli("show", "codex-cancel", "--replay-diff", "--db", ledger).stdout
    lines = [" ".join(line.split()) for line in page.splitlines()]
    at = lines.index("title recorded │ echo hi; sleep 20; echo late")
    assert lines[at - 1].endswith("entry 13 echo hi; sleep 20; echo late")
    assert lines[at + 1] == "replayed │ exec_command"
    assert lines[-4:] == [
        "status recorded │ cancelled",
        "replayed │ completed",
        "output recorded nothing",
        "replayed │ aborted by user after 2.5s",
    ]
    command = ("show", "codex-allow", "--replay-diff", "--db", ledger)
    truncated, full = run_cli(*command).stdout, run_cli(*command, "--full").stdout
    assert ("│ … 3 more lines" in truncated, "│ hi-from-tool" in truncated) == (True, False)
    assert ("more lines" in full, "│ hi-from-tool" in full) == (False, True)


def test_show_lists_a_call_that_only_the_replay_has(tmp_path: Path) -> None:
    """RPL3: by its foreign id, apart from other new items."""
    db = str(tmp_path / "ledger.db")
    run_cli("import", "--format", "acp", str(FOLDER / "runs" / "claude-gap.jsonl"), "--session", "gap", "--db", db)
    page = run_cli("show", "gap", "--replay-diff", "--db", db).stdout
    blocks = [line for line in page.splitlines() if line.endswith("  new")]
    assert [block.partition("_")[0] for block in blocks] == ["toolu", "message  new"]
    assert "recorded  nothing" in page and "cat hello.txt" in page


def test_show_reports_no_difference_and_no_replay(ledger: str) -> None:
    """On stderr: replay and recording agree, or there is no replay."""
    equal = run_cli("show", "opencode-allow", "--replay-diff", "--db", ledger)
    assert (equal.stdout, "agrees with the record" in equal.stderr) == ("", True)
    without_replay = run_cli("show", "gemini-allow", "--replay-diff", "--db", ledger)
    assert (without_replay.stdout, without_replay.stderr) == ("", "no replay of this session was recorded\n")


def test_show_lists_differences_as_json(ledger: str) -> None:
    """With the position of the replay in the log; for one call only its differences, also by its approval."""
    report = json.loads(run_cli("show", "codex-cancel", "--replay-diff", "--json", "--db", ledger).stdout)
    assert report["session"] == "codex-cancel" and report["replay"]["first"] < report["replay"]["last"]
    assert [one["field"] for one in report["disagreements"]] == [one[0] for one in CAPTURE_DIFFERENCES["codex-cancel"]]
    (request,) = [one for one in show_session(ledger)["entries"] if one["type"] == "permission_request"]
    for name in (request["callId"], request["approvalId"]):
        of_call = json.loads(run_cli("show", name, "--replay-diff", "--json", "--db", ledger).stdout)
        assert of_call["disagreements"] == report["disagreements"][1:]
    empty = json.loads(run_cli("show", "gemini-allow", "--replay-diff", "--json", "--db", ledger).stdout)
    assert empty == {"session": "gemini-allow", "replay": None, "disagreements": []}


def show_session(db: str) -> Any:
    return json.loads(run_cli("show", "codex-cancel", "--json", "--db", db).stdout)


def test_hostile_text_of_a_replay_is_escaped(tmp_path: Path) -> None:
    """C11: control characters of an agent's text are shown as visible characters."""
    hostile = "\x1b[2J\u202eevil\x07"
    messages = [
        {"id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}},
        tool_call_update("live"),
        {"id": 1, "result": {"stopReason": "end_turn"}},
        {"id": 2, "method": "session/load", "params": {"sessionId": "s"}},
        tool_call_update(hostile),
        {"id": 2, "result": {}},
    ]
    (tmp_path / "evil.jsonl").write_text("".join(json.dumps(row) + "\n" for row in messages), "utf-8")
    db = str(tmp_path / "x.db")
    run_cli("import", "--format", "acp", str(tmp_path / "evil.jsonl"), "--db", db)
    page = run_cli("show", "evil", "--replay-diff", "--db", db).stdout
    assert "\\x1b[2J\\u202eevil\\x07" in page and not set(hostile) & set("\x1b\u202e\x07") & set(page)


def tool_call_update(title: str) -> dict[str, Any]:
    update = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": title, "status": "completed"}
    return {"method": "session/update", "params": {"sessionId": "s", "update": update}}
