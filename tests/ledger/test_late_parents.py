"""A sub-agent is read before it is known which call started it: its entries get the call as their parent later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.formats.transcripts import subagent_alias
from callslip.ledger import checkpoint
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Draft
from callslip.rules.fold import SessionFold
from callslip.settings import Settings
from callslip.transcripts.agents import find_source
from callslip.transcripts.importer import TranscriptImporter
from tests.support.claude_files import Script, session_id

pytestmark = pytest.mark.anyio
SETTINGS = Settings(reaper_interval=3600)
AGENT = "agent-7"
OWN = [
    ev.MessageUser(text="look", message_id="p1"),
    ev.ThoughtDelta(text="hm", message_id="m0", chunks="delta"),
    ev.MessageDelta(text="found", message_id="m1", chunks="delta"),
    ev.CallStarted(aliases=(ev.Alias("acp", "inner"),), tool_name="ls"),
    ev.CallCompleted(aliases=(ev.Alias("acp", "inner"),)),
    ev.UsageReported(id="m1", input_tokens=7),
]
TASK = (ev.Alias("acp", "task"),)
NAMED_TASK = (*TASK, subagent_alias(AGENT))


def parents(entries: list[Any]) -> set[str]:
    """Return the parents of all entries of the sub-agent."""
    own = [entry for entry in entries if not (isinstance(entry, ToolCall) and entry.tool_call_id == "task")]
    assert len(own) == 4
    return {entry.parent for entry in own}


@pytest.mark.parametrize(
    "link",
    [
        [ev.CallStarted(aliases=NAMED_TASK, source="gemini")],
        [ev.CallStarted(aliases=TASK), ev.CallCompleted(aliases=NAMED_TASK, source="gemini")],
        # The call has ended, as its live recording says; the session file names the sub-agent.
        [
            ev.CallStarted(aliases=TASK),
            ev.CallCompleted(aliases=TASK),
            ev.CallCompleted(aliases=NAMED_TASK, source="gemini"),
        ],
        [
            ev.CallStarted(aliases=TASK),
            ev.CallCompleted(aliases=TASK),
            ev.CallFailed(aliases=NAMED_TASK, source="gemini"),
        ],
    ],
    ids=["start", "end", "after the end", "report"],
)
@pytest.mark.parametrize("is_stored", [False, True])
async def test_entries_of_a_sub_agent_get_their_parent_later(db: str, link: list[ev.Event], is_stored: bool) -> None:
    """SUB5: when the call is known, in the live view, in the stored one after a restart, and in the usage."""
    async with callslip.open(db, SETTINGS) as ledger:
        drafts = [Draft(event, parent=subagent_alias(AGENT)) if event is not OWN[4] else Draft(event) for event in OWN]
        await ledger.log.append("s", [ev.SessionInfo(foreign_id="f"), *drafts], source="gemini")
        assert parents(await read(ledger)) == {AGENT}
        if is_stored:
            assert await checkpoint.project(ledger.log.store, "s") is not None
        await ledger.log.append("s", link, source="acp")
        await ledger.log.append("s", [Draft(ev.MessageEnded()), *late()], source="gemini")
        entries = await read(ledger)
        (call,) = [entry for entry in entries if isinstance(entry, ToolCall) and entry.tool_call_id == "task"]
        assert parents(entries) == {call.call_id}
        assert [group.group for group in (await ledger.usage("call", session="s")).groups] == [call.call_id]
        assert await checkpoint.project(ledger.log.store, "s") is not None
        assert await verify(ledger.log) == []
    async with callslip.open(db, SETTINGS) as ledger:
        assert parents(await read(ledger)) == {call.call_id}


def late() -> list[Draft]:
    """Return what is read of the sub-agent after its call is known."""
    return [Draft(ev.UsageReported(id="m2", input_tokens=8), parent=subagent_alias(AGENT))]


async def read(ledger: LocalLedger) -> list[Any]:
    """Return the entries, which the patches of all events give, too."""
    snapshot = await ledger.snapshot("s")
    fold, shown = SessionFold("s"), dict[int, Any]()
    async for event in ledger.events("s"):
        for patch in fold.apply(event):
            if type(patch).__name__ == "Put":
                shown[patch.entry.id] = patch.entry.parent if hasattr(patch.entry, "parent") else ""
            elif type(patch).__name__ == "Set" and "parent" in patch.fields:
                shown[patch.id] = patch.fields["parent"]
    assert shown == {entry.id: getattr(entry, "parent", "") for entry in snapshot.entries}
    return list(snapshot.entries)


async def test_a_file_of_a_sub_agent_may_be_read_first(db: str, tmp_path: Path) -> None:
    """SUB5: the file of the session, with the call, is imported later."""
    source = find_source("claude-code")
    path = Script(agent="abc").prompt("look").text("found").write(tmp_path)
    path.with_suffix(".meta.json").write_text(json.dumps({"toolUseId": "task"}))
    async with callslip.open(db, SETTINGS) as ledger:
        importer = TranscriptImporter(ledger.log)
        await importer.load()
        await importer.run(source, source.find(str(path)))
        Script().prompt("start").call("task", "Agent").result("task").write(tmp_path)
        await importer.run(source, source.find(str(tmp_path)))
        entries = (await ledger.snapshot(f"claude-{session_id(1)}")).entries
        (call,) = [entry for entry in entries if isinstance(entry, ToolCall)]
        assert [entry.parent for entry in entries if getattr(entry, "content", "") in ("look", "found")] == [
            call.call_id
        ] * 2
        assert await verify(ledger.log) == []
