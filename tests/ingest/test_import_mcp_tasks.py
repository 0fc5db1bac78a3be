"""Import recorded MCP traffic with tasks: the end of the file ends each call once, and only calls that are open."""

from __future__ import annotations

import json
from typing import Any

import pytest

import callslip
from callslip.ingest.importer import Report, import_lines
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

INPUTS = sorted((TESTS / "inputs" / "mcp").glob("*.jsonl"))
DONE = {"content": [{"type": "text", "text": "the report"}]}


def request(id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"dir": "c2s", "msg": {"jsonrpc": "2.0", "id": id, "method": method, "params": params}}


def answer(id: int, result: Any) -> dict[str, Any]:
    return {"dir": "s2c", "msg": {"jsonrpc": "2.0", "id": id, "result": result}}


def task(status: str) -> dict[str, Any]:
    return {"taskId": "t1", "status": status}


BEGIN = [request(1, "tools/call", name="report", arguments={}, task={}), answer(1, {"task": task("working")})]
# The client fetches the result while the task runs, and asks for the state of the task once more.
FETCHED_FIRST = [
    *BEGIN,
    request(2, "tasks/result", taskId="t1"),
    answer(2, DONE),
    request(3, "tasks/get", taskId="t1"),
    answer(3, task("completed")),
]
# The server confirms the cancellation, and reports later that the task was cancelled.
CANCELLED_LATER = [
    *BEGIN,
    request(2, "tasks/cancel", taskId="t1"),
    answer(2, {}),
    request(3, "tasks/get", taskId="t1"),
    answer(3, task("cancelled")),
]
# The client does not fetch the result: the end of the file ends the call.
NOT_FETCHED = [*BEGIN, request(2, "tasks/get", taskId="t1"), answer(2, task("completed"))]


async def import_messages(messages: list[Any]) -> tuple[Report, list[ev.Event], list[ToolCall]]:
    async with callslip.open("sqlite:///:memory:") as ledger:
        lines = [message if isinstance(message, bytes) else json.dumps(message).encode() for message in messages]
        report = await import_lines(ledger.log, "s", "mcp", lines)
        events = [event async for event in ledger.events("s")]
        entries = (await ledger.snapshot("s")).entries
        return report, events, [entry for entry in entries if isinstance(entry, ToolCall)]


@pytest.mark.parametrize(
    ("messages", "state", "output"),
    [
        pytest.param(FETCHED_FIRST, "completed", "the report", id="fetched-first"),
        pytest.param(CANCELLED_LATER, "cancelled", None, id="cancelled-later"),
        pytest.param(NOT_FETCHED, "completed", None, id="not-fetched"),
    ],
)
async def test_the_end_of_the_file_marks_no_ended_call_as_late(messages: list[Any], state: str, output: Any) -> None:
    """IMP4: a call whose task has ended stays as it is, with its result, and every event about it has an effect."""
    report, events, (call,) = await import_messages(messages)
    assert (call.status, call.output, call.late) == (state, output, 0)
    assert report.verdicts == {"applied": len(events)}
    ends = [event for event in events if isinstance(event, ev.CallEnd)]
    assert len(ends) == 1


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
async def test_the_end_of_a_recording_has_no_event_without_effect(path: Any) -> None:
    """IMP4: the events that the importer itself adds at the end are applied."""
    _, events, _ = await import_messages(path.read_bytes().splitlines())
    assert {event.verdict for event in events if ":eof:" in event.key} <= {"applied"}
