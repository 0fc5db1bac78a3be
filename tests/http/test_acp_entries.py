"""Entries of ACP clients at the wire: posted in pieces, followed live, read after a reload and by another process.

The messages are those of a client that shows every kind of entry: as JSON-RPC, and as the events that its own code has.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import callslip
from tests.support.format_cases import golden_path, lines_of
from tests.support.invariants import find_faults
from tests.support.live_server import fetch, requesting, serving_ledger

pytestmark = pytest.mark.anyio

PLAN = [
    {"content": "Read", "priority": "high", "status": "completed"},
    {"content": "Write", "priority": "medium", "status": "in_progress"},
    {"content": "Tell", "priority": "low", "status": "pending"},
]
# The entries by their type and the fields that a client reads.
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "acp/entry-rules": [
        {"type": "meta", "currentModeId": "agent", "currentModelId": "m-1"},
        {"type": "message", "role": "user", "content": "What is the weather in Paris?"},
        {"type": "thought", "content": "The user wants the weather."},
        {"type": "message", "role": "assistant", "content": "I'll check the weather in Paris."},
        {"type": "notice", "severity": "warning", "content": "Rate limit\n2 requests are left."},
        {
            **{"type": "tool_call", "toolCallId": "tc-1", "toolName": "Read", "rawToolName": "mcp__acp__Read"},
            **{"title": "Read", "status": "completed", "kind": "read", "rawInput": {"path": "/w/paris.txt"}},
            "output": "18 degrees\nno wind",
        },
        {"type": "tool_call", "toolCallId": "tc-2", "toolName": "Edit", "status": "completed", "output": None},
        {
            **{"type": "permission_request", "requestId": "perm-1", "toolName": "Edit", "description": "Edit f.txt"},
            "responseOption": "allow",
        },
        {"type": "tool_call", "toolCallId": "tc-3", "toolName": "run", "rawToolName": "mcp__sh__run"},
        {"type": "plan", "entries": PLAN},
        {"type": "mode_change", "previousModeId": "agent", "newModeId": "plan"},
        {"type": "message", "role": "assistant", "content": "It is warm."},
    ],
    "acp/bare-events": [
        {"type": "meta", "currentModeId": "agent", "currentModelId": "m-1"},
        {"type": "message", "role": "user", "content": "What is the weather in Paris?"},
        {"type": "thought", "content": "The user wants the weather."},
        {"type": "message", "role": "assistant", "content": "I'll check the weather in Paris."},
        {
            **{"type": "tool_call", "toolCallId": "tc-1", "toolName": "Read", "rawToolName": "mcp__acp__Read"},
            **{"title": "Read paris.txt", "status": "completed", "kind": "read", "output": "18 degrees"},
        },
        {"type": "tool_call", "toolCallId": "tc-2", "toolName": "Edit", "status": "completed", "output": "Written."},
        {
            **{"type": "permission_request", "requestId": 7, "toolName": "Edit", "description": "Write the forecast"},
            "responseOption": "allow",
        },
        {"type": "plan", "entries": PLAN},
        {"type": "mode_change", "previousModeId": "agent", "newModeId": "plan"},
        {"type": "message", "role": "assistant", "content": "It is warm."},
        {"type": "meta", "currentModeId": "agent"},
    ],
}


class Page:
    """The entries of a client: a snapshot, and the patches after it."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[str, Any]] = {}
        self.seq = 0

    def apply_frame(self, frame: dict[str, str]) -> None:
        data = json.loads(frame.get("data", '{"patches": []}'))
        if frame.get("event") == "snapshot":
            self.entries, self.seq = {entry["id"]: entry for entry in data["entries"]}, data["seq"]
            return
        self.seq = int(frame.get("id", self.seq))
        for patch in data["patches"]:
            self._apply(patch)

    def _apply(self, patch: dict[str, Any]) -> None:
        if patch["op"] == "put":
            self.entries[patch["entry"]["id"]] = patch["entry"]
        elif patch["op"] == "append":
            entry = self.entries[patch["id"]]
            entry[patch["field"]] = entry.get(patch["field"], "") + patch["text"]
        elif patch["id"]:
            changed = {**self.entries[patch["id"]], **patch["fields"]}
            self.entries[patch["id"]] = {name: value for name, value in changed.items() if value is not None}


@pytest.mark.parametrize("case", EXPECTED)
async def test_the_entries_of_an_acp_client_are_equal_live_and_after_a_reload(db: str, case: str) -> None:
    """ENT1, S2.2, S2.9: each message is a request of its own; the stream, a read and a new process show the same."""
    page = Page()
    async with callslip.open(db) as ledger, serving_ledger(ledger) as url:
        session = f"{url}/v1/sessions/s"
        first, *rest = map(json.loads, lines_of(case))
        await post(session, first)
        async with requesting(f"{session}/stream?format=entries") as reply:
            for message in rest:
                await post(session, message)
            await post(session, end=True)
            last_seq = (await ledger.find_session("s")).last_seq
            async for frame in reply.frames():
                page.apply_frame(frame)
                if page.seq >= last_seq:
                    break
        read = (await fetch(session)).json()["entries"]
        assert list(page.entries.values()) == read
        assert not await find_faults(ledger)
    async with callslip.open(db) as ledger, serving_ledger(ledger) as url:
        assert (await fetch(f"{url}/v1/sessions/s")).json()["entries"] == read
    shown = [{name: entry.get(name) for name in fields} for entry, fields in zip(read, EXPECTED[case], strict=True)]
    assert shown == EXPECTED[case]
    assert len(json.loads(golden_path(case).read_text("utf-8"))) == len(read), "an import gives the same entries"


async def post(session: str, *messages: Any, end: bool = False) -> None:
    query = "format=acp" + ("&end=true" if end else "")
    reply = await fetch(f"{session}/events?{query}", "POST", value=list(messages))
    assert reply.status in (200, 201), reply.text
