"""The times of imported events that have none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import callslip
from callslip.ingest.importer import import_lines
from callslip.model.entries import ToolCall


@pytest.mark.anyio
async def test_an_event_without_a_time_has_that_of_the_event_before_it() -> None:
    """The time that an import takes is not the duration of the imported calls. VIEW5"""
    lines: list[dict[str, Any]] = [
        {"type": "call.started", "aliases": [["t", "a"]]},
        *[{"type": "message.user", "text": "hi"}] * 600,
        {"type": "call.completed", "aliases": [["t", "a"]]},
        {"type": "call.started", "aliases": [["t", "b"]], "at": 1_000},
        {"type": "call.completed", "aliases": [["t", "b"]]},
    ]
    async with await callslip.open("sqlite:///:memory:") as ledger:
        await import_lines(ledger.log, "s", "events", [msgspec.json.encode(line) for line in lines])
        entries = (await ledger.log.snapshot("s")).entries
    calls = [entry for entry in entries if isinstance(entry, ToolCall)]
    assert [call.ended_at - call.started_at for call in calls] == [0, 0]
    assert (calls[1].started_at, calls[0].started_at > 1_000) == (1_000, True)
