"""Find the session files of Claude Code: `projects/FOLDER/SESSION.jsonl`, and those of its sub-agents.

A sub-agent has its own file: `SESSION/subagents/agent-ID.jsonl` next to the session's, in earlier versions
`agent-ID.jsonl` beside it, and in still earlier ones its lines are in the session's file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, identifier
from callslip.model import codec
from callslip.transcripts.json_lines import find_files, open_file, read_lines, stat_file
from callslip.transcripts.source import Messages, Piece, Transcript

SESSION_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SUBAGENTS = "subagents"
MAX_DETAILS_BYTES = 2**20
_AGENT_FILE = re.compile(r"agent-(.+)\.jsonl")


class ClaudeCode:
    """The history of Claude Code."""

    name = "claude-code"
    session_prefix = "claude"

    def folders(self, environ: Mapping[str, str], home: str) -> list[str]:
        return [os.path.join(environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude"), "projects")]

    def find(self, path: str) -> Iterator[Transcript]:
        for file in find_files(path, ".jsonl"):
            is_secondary = _AGENT_FILE.fullmatch(os.path.basename(file)) is not None
            if (transcript := stat_file(file, _session_in_path(file), is_secondary=is_secondary)) is not None:
                yield transcript

    def refresh(self, transcript: Transcript) -> Transcript | None:
        return stat_file(transcript.path, transcript.session, is_secondary=transcript.is_secondary)

    def session_of(self, transcript: Transcript, messages: Messages) -> str:
        ids = (identifier(as_dict(line).get("sessionId")) for line in messages)
        return transcript.session or next((session for session in ids if session), "")

    def opening(self, transcript: Transcript) -> Messages:
        """Return the session, and the call that started the sub-agent: it is in a file beside the transcript."""
        agent = _AGENT_FILE.fullmatch(os.path.basename(transcript.path))
        details = _read_details(transcript.path.removesuffix(".jsonl") + ".meta.json") if agent else {}
        call_id = details.get("toolUseId")
        opening = {"type": "transcript", "sessionId": transcript.session, "agentId": agent[1] if agent else None}
        return [{**opening, "toolUseId": call_id}]

    def read(self, transcript: Transcript, position: bytes) -> Iterator[Piece]:
        return read_lines(transcript.path, position)


def _session_in_path(path: str) -> str:
    """Return the session that a path names, "" if it names none."""
    folder, name = os.path.split(path)
    folders = folder.split(os.sep)
    if SUBAGENTS in folders[1:]:
        name = folders[len(folders) - folders[::-1].index(SUBAGENTS) - 2]
    else:
        name = name.removesuffix(".jsonl")
    return name if SESSION_ID.fullmatch(name) else ""


def _read_details(path: str) -> dict[str, Any]:
    """Return what the program notes about a sub-agent, {} if it notes nothing."""
    try:
        with open_file(path) as file:
            return as_dict(codec.parse_json(file.read(MAX_DETAILS_BYTES)))
    except (OSError, InvalidInputError):
        return {}
