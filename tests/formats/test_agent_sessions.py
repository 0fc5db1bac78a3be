"""Decode the stored sessions of Codex, Gemini CLI and opencode. Most files in tests/inputs are of the real programs."""

from __future__ import annotations

import copy
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from msgspec import UNSET

from callslip.formats import registry
from callslip.formats.acp.decode import AcpDecoder
from callslip.formats.base import conversation_of
from callslip.formats.codex.results import end_of, read_result
from callslip.formats.json_fields import as_dict
from callslip.formats.transcripts import CALL_NAMESPACE, key_of
from callslip.model import events as ev
from callslip.model.entries import Message, Notice, ToolCall
from callslip.model.events import Draft
from tests.support import format_cases
from tests.support.acp_session import live_rows
from tests.support.strategies import MemoryLedger

FORMATS = ("codex", "gemini", "opencode")
CASES = [case for case in format_cases.CASES if format_cases.format_of(case) in FORMATS]
CAPTURE = "codex2-allow"
"""The traffic of the session whose rollout is codex/wrapped."""


def messages_of(case: str) -> list[Any]:
    return [json.loads(line) for line in format_cases.lines_of(case)]


def decode(format: str, messages: list[Any]) -> list[Draft]:
    """Return the drafts of a whole transcript, with those of its end."""
    decoder = registry.decoder(format)
    return [draft for message in messages for draft in decoder.feed(message)] + decoder.close("eof")


def write(*cases: str) -> MemoryLedger:
    """Write transcripts into one session, each with a decoder of its own."""
    ledger = MemoryLedger()
    for case in cases:
        ledger.write(*decode(format_cases.format_of(case), messages_of(case)))
    return ledger


def calls_of(ledger: MemoryLedger) -> list[ToolCall]:
    return [entry for entry in ledger.state.snapshot().entries if isinstance(entry, ToolCall)]


def texts_of(ledger: MemoryLedger) -> list[str]:
    return [entry.content for entry in ledger.state.snapshot().entries if isinstance(entry, Message)]


def turns_of(ledger: MemoryLedger) -> list[str]:
    return [event.turn for event in ledger.log if isinstance(event, ev.TurnStarted)]


def usage_of(ledger: MemoryLedger) -> list[ev.UsageReported]:
    """Return the last report of each response."""
    reports = {event.id: event for event in ledger.log if isinstance(event, ev.UsageReported)}
    return list(reports.values())


# Copies


@pytest.mark.parametrize("case", CASES)
def test_every_draft_of_a_message_has_a_key(case: str) -> None:
    """CDX2 GEM2 OPC2: of ids, not of a place, so another decoder gives the same; the end has none."""
    drafts = decode(format_cases.format_of(case), messages_of(case))
    assert all(draft.key and draft.mark for draft in drafts if not isinstance(draft.event, ev.TurnEnded))
    again = decode(format_cases.format_of(case), messages_of(case))
    assert [draft.key for draft in again] == [draft.key for draft in drafts]


@pytest.mark.parametrize("case", CASES)
def test_a_copy_of_a_transcript_adds_nothing(case: str) -> None:
    """CDX2 GEM2 OPC2: no call, no text and no usage is recorded twice."""
    ledger = write(case)
    events = len(ledger.log)
    again = [draft for draft in decode(format_cases.format_of(case), messages_of(case)) if draft.key]
    ledger.write(*again)
    assert len(ledger.log) == events


def test_a_fork_of_a_codex_session_repeats_nothing() -> None:
    """CDX2: earlier versions copy the rollout into that of the fork, with other times."""
    copied = copy.deepcopy(messages_of("codex/legacy"))
    head = copy.deepcopy(copied[0])
    head["payload"] |= {"id": "0199aaaa-0000-7000-8000-0000000000ff", "forked_from_id": head["payload"]["id"]}
    for line in copied:
        line["timestamp"] = "2025-10-04T10:00:00.000Z"
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "New."}]}
    fork = [head, *copied, {"timestamp": "2025-10-04T10:00:01.000Z", "type": "response_item", "payload": answer}]
    ledger, original = write("codex/legacy"), write("codex/legacy")
    ledger.write(*(draft for draft in decode("codex", fork) if draft.key))
    assert [call.tool_call_id for call in calls_of(ledger)] == [call.tool_call_id for call in calls_of(original)]
    assert texts_of(ledger) == [*texts_of(original), "New."]
    assert [report.id for report in usage_of(ledger)] == [report.id for report in usage_of(original)]
    (continued,) = [event.continues for event in ledger.log if isinstance(event, ev.SessionInfo) and event.continues]
    assert continued == copied[0]["payload"]["id"]


def test_a_fork_of_an_opencode_session_repeats_nothing() -> None:
    """OPC2: the copies have other ids of messages and parts."""
    ledger = write("opencode/session_of_fork", "opencode/fork")
    assert [call.raw_input for call in calls_of(ledger)] == [{"command": "echo one"}, {"command": "echo two"}]
    assert texts_of(ledger)[:3] == ['"Do it [[main]]"', "I will look.", "Done."]
    assert len(texts_of(ledger)) == 6 and len(usage_of(ledger)) == 4


@pytest.mark.parametrize(
    ("case", "calls", "notices"), [("codex/compacted", 2, 2), ("gemini/compacted", 2, 1), ("opencode/compacted", 2, 1)]
)
def test_a_compacted_session_has_each_call_once(case: str, calls: int, notices: int) -> None:
    """CDX2 GEM2 OPC2: what replaces the history is shown as a notice, not as messages."""
    ledger = write(case)
    assert len(calls_of(ledger)) == calls and len({call.tool_call_id for call in calls_of(ledger)}) == calls
    found = [entry.content for entry in ledger.state.snapshot().entries if isinstance(entry, Notice)]
    assert len(found) == notices and all(text.startswith("The conversation was compacted") for text in found)
    prompts = [
        entry for entry in ledger.state.snapshot().entries if isinstance(entry, Message) and entry.role == "user"
    ]
    assert len(prompts) == 2


def test_the_export_of_opencode_is_read_like_its_database() -> None:
    """OPC1: the drafts are the same, also their keys."""
    rows, export = (
        [draft for draft in decode("opencode", messages_of(case)) if draft.key]
        for case in ("opencode/agents", "opencode/export")
    )
    assert Counter(draft.key for draft in export) == Counter(draft.key for draft in rows)


# Recorded live as well


def test_the_rollout_of_a_wrapped_codex_has_the_ids_of_its_traffic() -> None:
    """CDX3: the calls have the same aliases, and the messages of the agent the same ids."""
    live = AcpDecoder()
    recorded = [draft.event for row in live_rows(CAPTURE) for draft in live.feed(row)]
    events = [draft.event for draft in decode("codex", messages_of("codex/wrapped"))]
    live_ids, own_ids = (
        (
            {alias for event in log if isinstance(event, ev.CallEvent) for alias in event.aliases},
            {event.message_id for event in log if isinstance(event, ev.MessageDelta)},
        )
        for log in (recorded, events)
    )
    assert own_ids == live_ids and all(own_ids)


@pytest.mark.parametrize("case", CASES)
def test_calls_have_the_ids_of_the_agents_own_protocol(case: str) -> None:
    """CDX3 GEM3 OPC3: each has one alias in the namespace of ACP, and is opened once."""
    drafts = decode(format_cases.format_of(case), messages_of(case))
    started = [draft.event for draft in drafts if isinstance(draft.event, ev.CallStarted)]
    assert all([alias.ns for alias in event.aliases][:1] == [CALL_NAMESPACE] for event in started)
    if case != "codex/odd":
        assert len({event.aliases[0] for event in started}) == len(started)


@pytest.mark.parametrize("case", CASES)
def test_a_turn_starts_directly_before_its_prompt(case: str) -> None:
    """CDX3 GEM3 OPC3: with the id of that message as its name, in the drafts of one message."""
    decoder = registry.decoder(format_cases.format_of(case))
    for message in messages_of(case):
        events = [draft.event for draft in decoder.feed(message)]
        for event, following in pairwise(events):
            if isinstance(event, ev.TurnStarted) and isinstance(following, ev.MessageUser):
                assert event.turn == following.message_id
        assert not events or not isinstance(events[-1], ev.TurnStarted)


# Sub-agents


@pytest.mark.parametrize(
    ("format", "prompt"), [("codex", "Message Type: NEW_TASK"), ("gemini", "Look around"), ("opencode", "Look around")]
)
def test_a_sub_agent_belongs_to_the_call_that_started_it(format: str, prompt: str) -> None:
    """CDX4 GEM4 OPC4: its prompt, texts, calls and usage do; the model of the session sees only the result."""
    ledger = write(f"{format}/agents", f"{format}/agent")
    entries = ledger.state.snapshot().entries
    own = [entry for entry in entries if getattr(entry, "parent", "")]
    (parent,) = {entry.parent for entry in own if isinstance(entry, Message | ToolCall)}
    starter = next(call for call in calls_of(ledger) if call.call_id == parent)
    assert starter.tool_name in ("collaboration__spawn_agent", "invoke_agent", "task")
    assert next(entry.content for entry in own if isinstance(entry, Message)).startswith(prompt)
    assert {call.exit_status for call in own if isinstance(call, ToolCall) and call.status == "failed"} == {4}
    assert not any(isinstance(entry, Message) and entry.streaming for entry in own)
    assert {report.parent for report in usage_of(ledger)} == {"", parent}
    shown = conversation_of(ledger.state).entries
    assert len(shown) + len(own) == len(entries) and not any(getattr(entry, "parent", "") for entry in shown)
    assert turns_of(ledger) == turns_of(write(f"{format}/agents"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_sub_agent_without_its_session_keeps_its_own_id(format: str) -> None:
    """CDX4 GEM4 OPC4: nothing of it looks like a part of the session's conversation."""
    ledger = write(f"{format}/agent")
    assert conversation_of(ledger.state).entries == []
    assert not any(isinstance(event, ev.TurnStarted | ev.SessionInfo) for event in ledger.log)


def test_the_answer_of_a_codex_agent_is_on_its_call() -> None:
    """CDX4: newer versions send it as a message between agents, after the call has completed."""
    starters = [call for call in calls_of(write("codex/agents")) if call.tool_name == "collaboration__spawn_agent"]
    reports = [call.report.text for call in starters if call.report is not None]
    assert len(reports) == 2 and all("FINAL_ANSWER" in text for text in reports)


# Usage


@pytest.mark.parametrize(
    ("case", "input", "output", "cached", "thoughts"),
    [
        ("codex/parallel", 4450, 120, 3500, 10),
        ("codex/legacy", 2300, 90, 1500, 10),
        ("gemini/parallel", 5600, 150, 4500, 10),
        ("gemini/odd", 915, 57, 300, 15),
        ("opencode/parallel", 5600, 150, 4500, 10),
    ],
)
def test_the_usage_is_that_of_each_response(case: str, input: int, output: int, cached: int, thoughts: int) -> None:
    """CDX5 GEM5 OPC5: counts that grow or are repeated are not added up. The model server sent these numbers."""
    reports = usage_of(write(case))
    totals = [
        sum(getattr(report, name) for report in reports)
        for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    ]
    assert totals == [input, output, cached, thoughts]
    assert all(report.model for report in reports)


def test_opencode_states_its_costs() -> None:
    """OPC5: for each response, in dollars."""
    reports = usage_of(write("opencode/parallel"))
    assert sum(report.cost or 0 for report in reports) == pytest.approx(0.00185)
    assert {report.currency for report in reports} == {"USD"}


# The ends of calls


@pytest.mark.parametrize(
    ("output", "state", "status", "text"),
    [
        ("Wall time: 1.5000 seconds\nProcess exited with code 0\nOutput:\nok", ev.CallCompleted, 0, "ok"),
        ("Chunk ID: a1\nWall time: 0.1 seconds\nProcess exited with code 3\nOutput:\n", ev.CallFailed, 3, ""),
        ("Exit code: -1\nWall time: 2 seconds\nTotal output lines: 9\nOutput:\nx", ev.CallFailed, -1, "x"),
        ('{"output":"no","metadata":{"exit_code":2,"duration_seconds":0.1}}', ev.CallFailed, 2, "no"),
        ('{"output":"plain"}', ev.CallCompleted, UNSET, '{"output":"plain"}'),
        ("I saw: Process exited with code 3\nOutput:\n", ev.CallCompleted, UNSET, None),
        ({"content": "closed", "success": False}, ev.CallFailed, UNSET, UNSET),
        ("unsupported call: x", ev.CallFailed, UNSET, UNSET),
        ("exec command rejected by user", ev.CallDenied, UNSET, UNSET),
        (
            'exec_command failed: CreateProcess { message: "Rejected(\\"Not now.\\")" }',
            ev.CallDenied,
            UNSET,
            UNSET,
        ),
        ('exec_command failed: CreateProcess { message: "no such file" }', ev.CallFailed, UNSET, UNSET),
        ("approval policy is Never; reject command — you cannot ask", ev.CallDenied, UNSET, UNSET),
        ("Wall time: 0.1 seconds\naborted by user", ev.CallCancelled, UNSET, UNSET),
        (
            [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}],
            ev.CallCompleted,
            UNSET,
            None,
        ),
        (None, ev.CallCompleted, UNSET, None),
    ],
)
def test_the_output_of_codex_tells_how_the_call_ended(output: Any, state: Any, status: Any, text: Any) -> None:
    """CDX1: the exit status is in a header of the text. A text that only mentions it has none."""
    end, fields = end_of(read_result(output), as_dict(output).get("success"))
    assert end is state and fields.get("exit_status", UNSET) == status
    assert fields.get("output", UNSET) == (output if text is None else text)


def test_a_command_that_ends_after_its_call_is_reported() -> None:
    """CDX1: the call had completed while the command ran; its exit status comes with other input or an item."""
    for case, call_id, status in (("codex/legacy", "call_5", 3), ("codex/odd", "call_h", 4)):
        (call,) = [call for call in calls_of(write(case)) if call.tool_call_id == call_id]
        assert call.status == "completed" and call.report is not None and call.report.exit_status == status


def test_a_script_of_codex_and_the_commands_in_it_are_calls() -> None:
    """CDX1: in code mode each command has its own end, and a script only fails by an error of its own."""
    calls = calls_of(write("codex/code_mode"))
    found = [(call.tool_name, call.status, call.exit_status, call.kind) for call in calls]
    script, command = ("exec", "completed", None, None), ("exec_command", "completed", 0, "execute")
    assert found == [
        *(script, command, command),
        *(script, ("exec_command", "failed", 3, "execute")),
        *(script, ("apply_patch", "completed", None, "edit")),
        ("exec", "failed", None, None),
    ]
    assert [call.output for call in calls if call.tool_name == "exec_command"] == [
        "one\n",
        "two\n",
        "partial\nproblem\n",
    ]
    assert calls[0].raw_input.startswith("const r = await Promise.all(") and '"exit_code":0' in calls[0].output
    assert calls[6].locations == [{"path": "/home/dev/project/new.txt"}]
    assert "Error: mistake" in calls[7].error


def test_a_script_of_codex_in_the_background_is_waited_for() -> None:
    """CDX1: its call ends when it is in the background; what it runs then is recorded, and `wait` has its result."""
    calls = calls_of(write("codex/code_mode_waits"))
    assert [(call.tool_name, call.status, call.exit_status) for call in calls] == [
        *(("exec", "completed", None), ("exec", "completed", None)),
        *(("exec_command", "completed", 0), ("exec_command", "failed", 5), ("wait", "completed", None)),
    ]
    assert calls[0].output.startswith("Script running with cell ID 1\n")
    assert (calls[3].output, calls[3].raw_input["command"][-1][:10]) == ("begun\n", "echo begun")
    assert calls[4].raw_input["cell_id"] == "1" and '"exit_code":5' in calls[4].output


def test_a_failed_command_of_gemini_has_its_exit_status() -> None:
    """GEM1: the chat says success. Only the end of the result is looked at, not what the command printed."""
    found = {call.tool_call_id: (call.status, call.exit_status) for call in calls_of(write("gemini/odd"))}
    assert found["c5"] == ("failed", 127)
    assert found["run_shell_command_1767607203000_0"] == ("completed", None)
    assert (found["c2"][0], found["c3"][0]) == ("cancelled", "failed")


def test_a_call_that_was_not_permitted_is_denied() -> None:
    """OPC1: opencode stores it as an error, and does not continue after it."""
    ledger = write("opencode/refused")
    assert [call.status for call in calls_of(ledger)] == ["failed", "denied"]
    assert [event.reason for event in ledger.log if isinstance(event, ev.TurnEnded)] == ["end_turn"]


@pytest.mark.parametrize("case", ["codex/killed_resumed", "opencode/killed_resumed"])
def test_a_session_that_was_killed_and_resumed_has_both_turns(case: str) -> None:
    """CDX1 OPC1: the call that ran does not complete."""
    ledger = write(case)
    (killed,) = [call for call in calls_of(ledger) if call.status != "completed"]
    assert killed.status in ("lost", "running") and killed.output is None
    assert len(turns_of(ledger)) == 2


def test_a_key_has_a_limited_length() -> None:
    """CDX2: ids of any length and content give keys that can be stored."""
    assert key_of("codex", "a", "b") == "codex:a:b"
    assert len(key_of("codex", "x" * 1000)) < 100 and key_of("codex", "\x00") != key_of("codex", "\x01")
