"""Real agents' traffic, read: how each call came out, also after the agent's replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from callslip.formats.acp.decode import AcpDecoder
from callslip.ingest.importer import import_lines
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, ToolCall
from callslip.rules.lifecycle import TERMINAL_STATES, next_state
from tests.support.acp_session import CAPTURES, AcpHarness, live, normalized_entries, rows
from tests.support.invariants import sound_ledger
from tests.support.strategies import canonical


class Row(NamedTuple):
    """One call: how it came out live, as a careful reader would say, and how the replay says that it ended."""

    agent: str
    scenario: str
    title: str
    state: str
    replayed: str | None = None
    output: Any = None
    exit: Any = None
    tool: str | None = None


SHELL = "echo hi-from-tool; sleep 1; echo done"
SLOW = "echo hi; sleep 20; echo late"
FILE = "Read /home/dev/project/hello.txt"
READING, EDITING = "Reading project files", "Modifying critical configuration file"
PRINTED, FILE_TEXT = "hi-from-tool\ndone", "1\thello file\n2\t"
TAGGED = "<path>/home/dev/project/hello.txt</path>"
ABORTED = "hi\n\n\n<shell_metadata>\nUser aborted the command"
README = {"content": "# My Project\n\nThis is a sample project..."}
UPDATED = {"success": True, "message": "Configuration updated"}

# A refused call is `denied`, for which agents have no word but `failed`. A command that was stopped and that its agent
# reports as completed is completed; one whose end was not told when the turn was stopped is cancelled.
TABLE = [
    Row("claude", "allow", SHELL, "completed", "completed", PRINTED, tool="Bash"),
    Row("claude", "allow", FILE, "completed", "completed", FILE_TEXT, tool="Read"),
    Row("claude", "reject", SHELL, "completed", "completed", PRINTED, tool="Bash"),
    Row("claude", "reject", FILE, "denied", "failed", tool="Read"),
    Row("codex", "allow", SHELL, "completed", "completed", "done\n", 0),
    Row("codex", "cancel", SLOW, "cancelled", "completed"),
    Row("codex2", "allow", SHELL, "completed", "completed", "done\n", 0, "exec_command"),
    Row("codex2", "v2-allow", SHELL, "completed", "completed", "done\n", 0, "exec_command"),
    Row("gemini", "allow", "hello.txt", "completed"),
    Row("gemini", "allow", SHELL, "completed"),
    Row("opencode", "allow", SHELL, "completed", "completed", PRINTED, 0),
    Row("opencode", "allow", "hello.txt", "completed", "completed", TAGGED),
    Row("opencode", "cancel", SLOW, "completed", "completed", ABORTED),
    Row("ts", "example-allow", READING, "completed", None, README),
    Row("ts", "example-allow", EDITING, "completed", None, UPDATED),
    Row("ts", "example-allow", READING, "completed", None, README),
    Row("ts", "example-allow", EDITING, "completed", None, UPDATED),
    Row("ts", "example-reject", READING, "completed", None, README),
    Row("ts", "example-reject", EDITING, "denied"),
]
SAYS_ONLY = {"py-example-agent"}
REPLAYED = sorted({f"{row.agent}-{row.scenario}" for row in TABLE if row.replayed})


def table(name: str) -> list[Row]:
    """The rows about one capture."""
    return [row for row in TABLE if f"{row.agent}-{row.scenario}" == name]


def came_out(call: ToolCall) -> tuple[Any, ...]:
    output = call.output if call.output is not None else call.output_text or None
    if isinstance(output, dict):
        output = output.get("aggregated_output", output.get("output", output))
    return call.title, call.status, output, call.exit_status, call.tool_name


def same(call: ToolCall, row: Row) -> bool:
    """Equal, but that a long output need only begin so."""
    title, state, output, *more = came_out(call)
    alike = output.startswith(row.output) if isinstance(output, str) and row.output else output == row.output
    return alike and [title, state, *more] == [row.title, row.state, row.exit, row.tool]


def test_the_table_has_a_row_for_every_capture() -> None:
    """Every capture is tested, and every row has a capture."""
    assert {f"{row.agent}-{row.scenario}" for row in TABLE} | SAYS_ONLY == set(CAPTURES)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_call_of_a_capture_ends_as_in_the_table(name: str) -> None:
    """C2, C3, S2.6: after the live part each call is one entry with its state, output, exit status and tool."""
    calls = AcpHarness().feed(*live(name)).calls
    assert len(calls) == len(table(name)), list(map(came_out, calls))
    assert all(map(same, calls, table(name))), list(map(came_out, calls))


@pytest.mark.parametrize("name", CAPTURES)
def test_a_replay_does_not_change_ended_calls_of_a_capture(name: str) -> None:
    """S2.11, C4: after the replay each call still matches the table, and so do the reported differences."""
    reading = AcpHarness().feed(*rows(name)).close()
    assert all(map(same, reading.calls, table(name)))
    ends = {event.call: next_state("queued", event) for event in reading.log(ev.CallEnd) if event.verdict == "witness"}
    assert [ends.get(call.call_id) for call in reading.calls] == [row.replayed for row in table(name)]


@pytest.mark.parametrize("name", CAPTURES)
def test_an_answered_request_has_its_option_and_time(name: str) -> None:
    """S2.13: the id of the chosen option and the time of the answer; nothing stays pending."""
    answers = [row for row in rows(name) if row["dir"] == "c2a" and "outcome" in row["msg"].get("result", {})]
    reading = AcpHarness(started=10**12).feed(*rows(name))
    shown = [(one.response_option, one.response_time, one.by) for one in reading.entries(PermissionRequest)]
    assert shown == [
        (row["msg"]["result"]["outcome"]["optionId"], 10**12 + int(row["t"] * 1000), "client") for row in answers
    ]
    assert not {one.state for one in reading.entries(PermissionRequest)} & {"pending", "moot"}


def test_a_call_first_seen_in_its_permission_request_is_one_call() -> None:
    """S2.6: gemini sends the permission request before the call; the update that ends it is about the same call."""
    reading = AcpHarness().feed(*live("gemini-allow"))
    (request,) = reading.entries(PermissionRequest)
    assert [call.call_id for call in reading.calls if call.title == SHELL] == [request.call_id]


def test_a_call_id_reused_in_the_next_turn_is_another_call() -> None:
    """C2: the example agent numbers its calls from the start in every turn."""
    calls = AcpHarness().feed(*live("ts-example-allow")).calls
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
            calls = [one for one in (await ledger.snapshot(row.name)).entries if isinstance(one, ToolCall)]
            assert not row.turn and {call.status for call in calls} <= TERMINAL_STATES
            assert all(call.reason for call in calls if call.status == "lost")


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_into_an_empty_session_records_the_session(name: str) -> None:
    """S2.11, C5: nothing was recorded, so messages and calls are added, and every call has ended."""
    begin, found = len(live(name)), rows(name)
    reading = AcpHarness().feed(*found[:1], *found[begin:]).close()
    assert [call.status for call in reading.calls] == [row.replayed for row in table(name)]
    assert next(entry.role for entry in reading.entries(Message)) == "user"
    assert not [entry for entry in reading.entries(Message) if entry.streaming]
    again = canonical(normalized_entries(reading))
    assert canonical(normalized_entries(reading.feed(*found[begin:]))) == again


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_without_directions_gives_the_same_entries(name: str) -> None:
    """The direction of bare JSON-RPC messages is derived from their content."""
    bare = [row["msg"] for row in rows(name) if row["dir"] != "mark"]
    assert canonical(normalized_entries(AcpHarness().feed(*bare))) == canonical(
        normalized_entries(AcpHarness().feed(*rows(name)))
    )


HELD = {
    *("user_message_chunk", "agent_message_chunk", "user_message", "agent_message"),
    *("tool_call", "tool_call_update", "terminal_update", "state_update"),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_no_row_of_a_capture_is_dropped(name: str) -> None:
    """Every row gives an event, immediately or after the response to its load."""
    decoder, held = AcpDecoder(), 0
    for row in rows(name):
        drafts = decoder.feed(row)
        held += not drafts
        assert drafts or row["msg"]["params"]["update"]["sessionUpdate"] in HELD
    assert held <= len(rows(name)) - len(live(name))
