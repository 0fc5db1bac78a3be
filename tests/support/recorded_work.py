"""Read what a ledger recorded of agents, to compare it with what the scripted model server knows to be true."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callslip.api.ledger import LocalLedger
from callslip.api.usage import UsageGroup
from callslip.model.entries import Message, Thought, ToolCall
from callslip.model.records import ListedSession
from tests.support.acp_process import with_ledger
from tests.support.cli_process import callslip_command, run_in_process
from tests.support.scripted_models import NO_USAGE, Usage


@dataclasses.dataclass
class Work:
    """What all sessions of a ledger contain, in the order of their starts. `seqs` are the last events of each.

    `prompts`, `texts` and `thoughts` are those of the agents themselves. `delegated` has the texts of each sub-agent,
    by the id of the call that started it.
    """

    sessions: list[ListedSession]
    seqs: dict[str, int]
    calls: list[ToolCall]
    calls_of: dict[str, set[str]]
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


def import_history(db: str, format: str, *paths: Any, home: Path | None = None) -> None:
    """Run `callslip import` on these files and folders, or on the agent's own folder in a home; it must succeed."""
    env: dict[str, Any] = {} if home is None else {"HOME": str(home), "XDG_DATA_HOME": None}
    result = run_in_process("import", "--format", format, *map(str, paths), "--db", db, env=env)
    assert result.returncode == 0, f"{result.stdout}{result.stderr}"


@contextlib.contextmanager
def following(command: str, db: str, home: Path) -> Iterator[None]:
    """Run `callslip watch` or `callslip up` for the agents of a home."""
    options = ["--port", "0"] if command == "up" else []
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    process = subprocess.Popen(
        callslip_command(command, "--db", db, *options),
        env=env | {"HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def read_work(db: str) -> Work:
    """Return what a ledger recorded; its invariants hold."""

    async def read(ledger: LocalLedger) -> Work:
        sessions = (await ledger.sessions(limit=1000, sort="started", descending=False)).items
        seqs = {session.name: session.last_seq for session in sessions}
        groups = (await ledger.usage()).groups
        responses = sum(group.responses for group in groups)
        work = Work(sessions, seqs, [], {}, [], [], [], {}, _add_up(groups), {}, responses)
        for session in sessions:
            for group in (await ledger.usage("call", session=session.name)).groups:
                if group.group:
                    work.delegated_usage[group.group] = _add_up([group])
            for entry in (await ledger.snapshot(session.name)).entries:
                if isinstance(entry, ToolCall):
                    work.calls.append(entry)
                    work.calls_of.setdefault(session.name, set()).add(entry.call_id)
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
