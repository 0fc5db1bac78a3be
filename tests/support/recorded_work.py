"""Read what a ledger recorded of agents, to compare it with what the scripted model server knows to be true."""

from __future__ import annotations

import dataclasses
from typing import Any

from callslip.api.ledger import LocalLedger
from callslip.api.usage import UsageGroup
from callslip.model.entries import Message, Thought, ToolCall
from callslip.model.records import ListedSession
from tests.support.acp_process import with_ledger
from tests.support.cli_process import run_in_process
from tests.support.scripted_models import NO_USAGE, Usage


@dataclasses.dataclass
class Work:
    """What all sessions of a ledger contain, in the order of their starts. `seqs` are their last events.

    `prompts`, `texts` and `thoughts` are those of the agents themselves. `delegated` has the texts of each sub-agent,
    by the id of the call that started it.
    """

    sessions: list[ListedSession]
    seqs: dict[str, int]
    calls: list[ToolCall]
    prompts: list[str]
    texts: list[str]
    thoughts: list[str]
    delegated: dict[str, list[str]]
    usage: Usage
    delegated_usage: dict[str, Usage]
    responses: int

    def call(self, foreign_id: str) -> ToolCall:
        """Return the one call with this id of the agent."""
        (found,) = (call for call in self.calls if call.tool_call_id == foreign_id)
        return found


def import_history(db: str, format: str, *paths: Any) -> None:
    """Run `callslip import` on these files and folders; it must understand all of them."""
    result = run_in_process("import", "--format", format, *map(str, paths), "--db", db)
    assert result.returncode == 0, f"{result.stdout}{result.stderr}"


def read_work(db: str) -> Work:
    """Return what a ledger recorded; its invariants hold."""

    async def read(ledger: LocalLedger) -> Work:
        sessions = (await ledger.sessions(limit=1000, sort="started", descending=False)).items
        seqs = {session.name: session.last_seq for session in sessions}
        groups = await ledger.usage()
        responses = sum(group.responses for group in groups)
        work = Work(sessions, seqs, [], [], [], [], {}, _add_up(groups), {}, responses)
        for session in sessions:
            for group in await ledger.usage("call", session=session.name):
                if group.group:
                    work.delegated_usage[group.group] = _add_up([group])
            for entry in (await ledger.snapshot(session.name)).entries:
                if isinstance(entry, ToolCall):
                    work.calls.append(entry)
                elif isinstance(entry, Message) and entry.parent:
                    if entry.role != "user":
                        work.delegated.setdefault(entry.parent, []).append(entry.content)
                elif isinstance(entry, Message):
                    (work.prompts if entry.role == "user" else work.texts).append(entry.content)
                elif isinstance(entry, Thought) and not entry.parent:
                    work.thoughts.append(entry.content)
        return work

    return with_ledger(db, read)


def _add_up(groups: list[UsageGroup]) -> Usage:
    usage = NO_USAGE
    for group in groups:
        usage += Usage(group.input_tokens, group.output_tokens, group.cached_tokens, group.reasoning_tokens)
    return usage
