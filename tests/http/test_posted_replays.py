"""Test that the replay of an agent adds the same turns however its messages are posted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callslip.ingest.importer import import_lines
from callslip.model.entries import Message, ToolCall
from tests.http.test_posted_input import running_servers
from tests.support.acp_session import FOLDER
from tests.support.invariants import find_faults, normalize_entries

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("name", "prompts", "calls"), [("claude", 4, 2), ("codex", 4, 2), ("codex-resume", 2, 1)])
async def test_a_replay_posted_in_pieces_adds_the_turns_of_an_import(
    name: str, prompts: int, calls: int, tmp_path: Path
) -> None:
    """RPL4: bodies go to two servers in turn and are sent twice. Both restart while the replay is held back."""
    lines = (FOLDER / "runs" / f"{name}.jsonl").read_bytes().splitlines()
    rows = [json.loads(line) for line in lines]
    (loaded, *_) = [number for number, row in enumerate(rows) if row["msg"].get("method") == "session/load"]
    async with running_servers(tmp_path / "a.db") as servers:
        for number, start in enumerate(range(0, len(rows), 4)):
            for _ in range(2):
                response = await servers.post("acp", rows[start : start + 4], server=number % 2, key=f"body {number}")
                assert response.status in (200, 201), response.body
            if start - 4 <= loaded < start:
                await servers.restart()
        await import_lines(servers.ledgers[0].log, "imported", "acp", lines)
        posted, imported = await servers.entries(), await servers.entries("imported")
        assert normalize_entries(posted) == normalize_entries(imported)
        assert sum(isinstance(entry, Message) and entry.role == "user" for entry in posted) == prompts
        assert sum(isinstance(entry, ToolCall) for entry in posted) == calls
        assert not await find_faults(servers.ledgers[0])
