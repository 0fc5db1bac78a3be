"""What a sub-agent did belongs to the call that started it. The model of the session saw only its result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callslip.formats import registry
from callslip.formats.html.encode import document
from callslip.formats.otel.spans import spans_of
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, Snapshot, Thought, ToolCall
from callslip.model.events import Alias, Draft
from callslip.rules.fold import SessionFold
from tests.support.acp_session import (
    AcpHarness,
    agent_text,
    call,
    call_update,
    prompt,
    prompt_response,
    request_permission,
    update,
)
from tests.support.strategies import MemoryLedger

TASK, INNER = (Alias("acp", "task"),), (Alias("acp", "inner"),)
OF_TASK: dict[str, Any] = {"_meta": {"claudeCode": {"parentToolUseId": "task"}}}
HISTORIES = [name for name in registry.exportable() if name not in ("entries", "events", "html", "otel", "acp")]


def write_subagent() -> MemoryLedger:
    """Return a ledger with a turn in which a sub-agent wrote a text and made a call, which needed an approval."""
    ledger = MemoryLedger()
    ledger.write(Draft(ev.TurnStarted(turn="t1")), Draft(ev.MessageUser(text="count")))
    ledger.write(Draft(ev.CallProposed(aliases=TASK, tool_name="Task", input={}, iteration=0, index=0)))
    ledger.write(Draft(ev.CallStarted(aliases=TASK)))
    inner = [
        ev.MessageUser(text="INNER prompt"),
        ev.ThoughtDelta(text="INNER thought", message_id="x1", chunks="delta"),
        ev.MessageDelta(text="INNER words", message_id="x2", chunks="delta"),
        ev.CallProposed(aliases=INNER, tool_name="Grep", input={"INNER": 1}, iteration=0, index=0),
    ]
    ledger.write(*(Draft(event, parent=TASK[0]) for event in inner))
    ledger.write(
        Draft(ev.ApprovalRequested(aliases=INNER, description="INNER?")), Draft(ev.ApprovalGranted(aliases=INNER))
    )
    ledger.write(Draft(ev.CallStarted(aliases=INNER)), Draft(ev.CallCompleted(aliases=INNER, output="INNER result")))
    ledger.write(Draft(ev.CallCompleted(aliases=TASK, output="found three")))
    ledger.write(Draft(ev.MessageDelta(text="There are three.", chunks="delta")), Draft(ev.TurnEnded()))
    return ledger


def snapshot() -> Snapshot:
    return write_subagent().state.snapshot()


def test_entries_of_a_subagent_have_its_call_as_parent() -> None:
    """SUB1: its prompt, texts, calls and requests; the entries of the agent itself have none."""
    ledger = write_subagent()
    task, inner = ledger.known_ids.calls
    entries = ledger.state.snapshot().entries
    of_task = [entry for entry in entries if getattr(entry, "parent", "")]
    kinds = ["Message", "Thought", "Message", "ToolCall", "PermissionRequest"]
    assert [type(entry).__name__ for entry in of_task] == kinds and len(entries) == len(kinds) + 3
    assert {getattr(entry, "parent", "") for entry in of_task} == {task}
    assert [entry.call_id for entry in of_task if isinstance(entry, ToolCall)] == [inner]


@pytest.mark.parametrize("format", HISTORIES)
def test_a_history_has_the_result_of_a_subagent_and_not_its_work(format: str) -> None:
    """SUB2: in each format that a model or a chat client reads."""
    text = json.dumps(registry.encoder(format)(snapshot()), default=str)
    assert "INNER" not in text and "found three" in text and "There are three." in text


@pytest.mark.parametrize("format", registry.streamable())
def test_a_stream_of_a_turn_has_the_result_of_a_subagent_and_not_its_work(format: str) -> None:
    """SUB2: event by event."""
    stream = registry.streaming(format).encoder(SessionFold("s"), "t1")
    text = str([chunk for event in write_subagent().log for chunk in stream.feed(event)])
    assert "INNER" not in text and "found three" in text and "There are three." in text


def test_the_span_of_a_subagents_call_is_inside_that_of_its_parent() -> None:
    """SUB3: the waterfall of OpenTelemetry."""
    spans = {span.name: span for span in spans_of(snapshot())}
    turn, task, inner = (spans[name] for name in ("invoke_agent", "execute_tool Task", "execute_tool Grep"))
    assert (inner.parent, task.parent, inner.trace) == (task.span, turn.span, turn.trace)


def test_an_exported_page_shows_the_work_of_a_subagent_apart() -> None:
    """SUB1: in a block under the title of its call; its prompt is not one of the user."""
    page = document(snapshot()).decode().partition("<main>")[2].partition("</main>")[0]
    before, _, block = page.partition('<div class="sub">')
    block, _, after = block.partition("</article></div>")
    assert block.startswith('<p class="who"><b>Sub-agent</b> <bdi>Task</bdi></p>')
    assert "INNER" not in before and "<b>User</b>" in before and "<b>User</b>" not in block
    assert "<b>Prompt</b>" in block and "INNER words" in block
    assert "INNER" not in after and "There are three." in after


def test_acp_updates_with_a_parent_are_of_its_subagent() -> None:
    """SUB4: agents of Claude name the call in the metadata of each update; it needs no raw copy."""
    harness = AcpHarness().feed(
        prompt(),
        call("in_progress", "task"),
        agent_text("Look ", **OF_TASK),
        agent_text("here", **OF_TASK),
        agent_text("Meanwhile"),
        update("agent_thought_chunk", content={"type": "text", "text": "hm"}, **OF_TASK),
        call("pending", "inner", **OF_TASK),
        request_permission(5, "inner"),
        call_update("completed", "inner", rawOutput="3", **OF_TASK),
        call_update("completed", "task", rawOutput="three"),
        prompt_response(),
    )
    task, inner = harness.ledger.known_ids.calls
    assert [(entry.content, entry.parent) for entry in harness.entries(Message)[1:]] == [
        ("Look here", task),
        ("Meanwhile", ""),
    ]
    assert [entry.parent for entry in harness.entries(Thought)] == [task]
    assert {entry.call_id: entry.parent for entry in harness.calls} == {task: "", inner: task}
    assert [entry.parent for entry in harness.entries(PermissionRequest)] == [task]
    assert harness.raws == []


def test_a_parent_that_is_not_known_stays_as_its_foreign_id() -> None:
    """SUB4: the work of such a sub-agent is not shown as that of the agent."""
    harness = AcpHarness().feed(prompt(), call("pending", "inner", **OF_TASK))
    assert harness.call.parent == "task"
