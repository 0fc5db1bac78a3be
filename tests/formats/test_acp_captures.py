"""Decode the recorded traffic of real agents: the end of each call, also after the agent's replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from callslip.formats.acp.decode import AcpDecoder
from callslip.ingest.importer import import_lines
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, ToolCall
from callslip.rules.lifecycle import TERMINAL_STATES, next_state
from tests.support.acp_session import CAPTURES, AcpHarness, live_rows, normalized_entries, rows
from tests.support.invariants import sound_ledger
from tests.support.strategies import canonical_json


class ExpectedCall(NamedTuple):
    """The expected entry of one call of a capture, and the state in which the agent's replay ends it."""

    agent: str
    scenario: str
    title: str
    state: str
    replayed: str | None = None
    output: Any = None
    exit: Any = None
    tool: str | None = None


SHELL = "echo hi-from-tool; sleep 1; echo done"
SLOW_SHELL = "echo hi; sleep 20; echo late"
READ_FILE = "Read /home/dev/project/hello.txt"
READ_TITLE, EDIT_TITLE = "Reading project files", "Modifying critical configuration file"
SHELL_OUTPUT, FILE_TEXT = "hi-from-tool\ndone", "1\thello file\n2\t"
FILE_TAG = "<path>/home/dev/project/hello.txt</path>"
ABORTED_OUTPUT = "hi\n\n\n<shell_metadata>\nUser aborted the command"
READ_RESULT = {"content": "# My Project\n\nThis is a sample project..."}
EDIT_RESULT = {"success": True, "message": "Configuration updated"}

# A refused call is `denied`, which agents report as `failed`. A stopped command that its agent reports as completed is
# completed; a call without a reported end is cancelled with its turn.
EXPECTED_CALLS = [
    ExpectedCall("claude", "allow", SHELL, "completed", "completed", SHELL_OUTPUT, tool="Bash"),
    ExpectedCall("claude", "allow", READ_FILE, "completed", "completed", FILE_TEXT, tool="Read"),
    ExpectedCall("claude", "reject", SHELL, "completed", "completed", SHELL_OUTPUT, tool="Bash"),
    ExpectedCall("claude", "reject", READ_FILE, "denied", "failed", tool="Read"),
    ExpectedCall("codex", "allow", SHELL, "completed", "completed", "done\n", 0),
    ExpectedCall("codex", "cancel", SLOW_SHELL, "cancelled", "completed"),
    ExpectedCall("codex2", "allow", SHELL, "completed", "completed", "done\n", 0, "exec_command"),
    ExpectedCall("codex2", "v2-allow", SHELL, "completed", "completed", "done\n", 0, "exec_command"),
    ExpectedCall("gemini", "allow", "hello.txt", "completed"),
    ExpectedCall("gemini", "allow", SHELL, "completed"),
    ExpectedCall("opencode", "allow", SHELL, "completed", "completed", SHELL_OUTPUT, 0),
    ExpectedCall("opencode", "allow", "hello.txt", "completed", "completed", FILE_TAG),
    ExpectedCall("opencode", "cancel", SLOW_SHELL, "completed", "completed", ABORTED_OUTPUT),
    ExpectedCall("ts", "example-allow", READ_TITLE, "completed", None, READ_RESULT),
    ExpectedCall("ts", "example-allow", EDIT_TITLE, "completed", None, EDIT_RESULT),
    ExpectedCall("ts", "example-allow", READ_TITLE, "completed", None, READ_RESULT),
    ExpectedCall("ts", "example-allow", EDIT_TITLE, "completed", None, EDIT_RESULT),
    ExpectedCall("ts", "example-reject", READ_TITLE, "completed", None, READ_RESULT),
    ExpectedCall("ts", "example-reject", EDIT_TITLE, "denied"),
]
WITHOUT_CALLS = {"py-example-agent"}
REPLAYED = sorted({f"{row.agent}-{row.scenario}" for row in EXPECTED_CALLS if row.replayed})


def rows_of_capture(name: str) -> list[ExpectedCall]:
    """Return the expected calls of a capture."""
    return [row for row in EXPECTED_CALLS if f"{row.agent}-{row.scenario}" == name]


def outcome(call: ToolCall) -> tuple[Any, ...]:
    """Return the title, state, output, exit status and tool of a call."""
    output = call.output if call.output is not None else call.output_text or None
    if isinstance(output, dict):
        output = output.get("aggregated_output", output.get("output", output))
    return call.title, call.status, output, call.exit_status, call.tool_name


def matches(call: ToolCall, row: ExpectedCall) -> bool:
    """Return whether a call is as expected; a long output only has to begin with the expected text."""
    title, state, output, *more = outcome(call)
    is_same_output = output.startswith(row.output) if isinstance(output, str) and row.output else output == row.output
    return is_same_output and [title, state, *more] == [row.title, row.state, row.exit, row.tool]


def test_the_table_has_a_row_for_every_capture() -> None:
    """Every capture is tested, and every row has a capture."""
    assert {f"{row.agent}-{row.scenario}" for row in EXPECTED_CALLS} | WITHOUT_CALLS == set(CAPTURES)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_call_of_a_capture_ends_as_in_the_table(name: str) -> None:
    """C2, C3, S2.6: after the live part each call is one entry with its state, output, exit status and tool."""
    calls = AcpHarness().feed(*live_rows(name)).calls
    assert len(calls) == len(rows_of_capture(name)), list(map(outcome, calls))
    assert all(map(matches, calls, rows_of_capture(name))), list(map(outcome, calls))


@pytest.mark.parametrize("name", CAPTURES)
def test_a_replay_does_not_change_ended_calls_of_a_capture(name: str) -> None:
    """S2.11, C4: after the replay each call still matches the table, and so do the reported differences."""
    harness = AcpHarness().feed(*rows(name)).close()
    assert all(map(matches, harness.calls, rows_of_capture(name)))
    ends = {event.call: next_state("queued", event) for event in harness.log(ev.CallEnd) if event.verdict == "witness"}
    assert [ends.get(call.call_id) for call in harness.calls] == [row.replayed for row in rows_of_capture(name)]


@pytest.mark.parametrize("name", CAPTURES)
def test_an_answered_request_has_its_option_and_time(name: str) -> None:
    """S2.13: the id of the chosen option and the time of the answer; nothing stays pending."""
    answers = [row for row in rows(name) if row["dir"] == "c2a" and "outcome" in row["msg"].get("result", {})]
    harness = AcpHarness(started=10**12).feed(*rows(name))
    shown = [(entry.response_option, entry.response_time, entry.by) for entry in harness.entries(PermissionRequest)]
    assert shown == [
        (row["msg"]["result"]["outcome"]["optionId"], 10**12 + int(row["t"] * 1000), "client") for row in answers
    ]
    assert not {entry.state for entry in harness.entries(PermissionRequest)} & {"pending", "moot"}


def test_a_call_first_seen_in_its_permission_request_is_one_call() -> None:
    """S2.6: gemini sends the permission request before the call; the update that ends it is about the same call."""
    harness = AcpHarness().feed(*live_rows("gemini-allow"))
    (request,) = harness.entries(PermissionRequest)
    assert [call.call_id for call in harness.calls if call.title == SHELL] == [request.call_id]


def test_a_call_id_reused_in_the_next_turn_is_another_call() -> None:
    """C2: the example agent numbers its calls from the start in every turn."""
    calls = AcpHarness().feed(*live_rows("ts-example-allow")).calls
    assert [(call.turn, call.tool_call_id == call.call_id) for call in calls] == [
        ("t1", False),
        ("t1", False),
        ("t2", True),
        ("t2", True),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_a_truncated_capture_has_no_open_call_and_verifies(name: str, db: str, prefix_step: int) -> None:
    """C5, C9: the capture is cut after each line in turn; `verify` reports no problem."""
    lines = CAPTURES[name].read_bytes().splitlines(keepends=True)
    async with sound_ledger(db, synchronous="NORMAL", reaper_interval=3600, checkpoint_every=7) as ledger:
        for cut in range(len(lines), -1, -prefix_step):
            await import_lines(ledger.log, f"cut-{cut}", "acp", lines[:cut])
        assert not await ledger.log.store.open_calls() and not await ledger.approvals()
        for row in (await ledger.sessions(limit=1000)).items:
            calls = [entry for entry in (await ledger.snapshot(row.name)).entries if isinstance(entry, ToolCall)]
            assert not row.turn and {call.status for call in calls} <= TERMINAL_STATES
            assert all(call.reason for call in calls if call.status == "lost")


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_into_an_empty_session_records_the_session(name: str) -> None:
    """S2.11, C5: nothing was recorded, so messages and calls are added, and every call has ended."""
    replay_start, captured = len(live_rows(name)), rows(name)
    harness = AcpHarness().feed(*captured[:1], *captured[replay_start:]).close()
    assert [call.status for call in harness.calls] == [row.replayed for row in rows_of_capture(name)]
    assert next(entry.role for entry in harness.entries(Message)) == "user"
    assert not [entry for entry in harness.entries(Message) if entry.streaming]
    entries = canonical_json(normalized_entries(harness))
    assert canonical_json(normalized_entries(harness.feed(*captured[replay_start:]))) == entries


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_without_directions_gives_the_same_entries(name: str) -> None:
    """The direction of bare JSON-RPC messages is derived from their content."""
    messages = [row["msg"] for row in rows(name) if row["dir"] != "mark"]
    assert canonical_json(normalized_entries(AcpHarness().feed(*messages))) == canonical_json(
        normalized_entries(AcpHarness().feed(*rows(name)))
    )


DELAYED_UPDATES = {
    *("user_message_chunk", "agent_message_chunk", "user_message", "agent_message"),
    *("tool_call", "tool_call_update", "terminal_update", "state_update"),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_no_row_of_a_capture_is_dropped(name: str) -> None:
    """Every row gives an event, immediately or after the response to its load."""
    decoder, delayed_count = AcpDecoder(), 0
    for row in rows(name):
        drafts = decoder.feed(row)
        delayed_count += not drafts
        assert drafts or row["msg"]["params"]["update"]["sessionUpdate"] in DELAYED_UPDATES
    assert delayed_count <= len(rows(name)) - len(live_rows(name))
