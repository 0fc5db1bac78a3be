"""List the agents whose histories can be read, by the names of their formats."""

from __future__ import annotations

from callslip.errors import InvalidInputError
from callslip.transcripts.claude_code import ClaudeCode
from callslip.transcripts.codex import Codex
from callslip.transcripts.gemini import Gemini
from callslip.transcripts.opencode import Opencode
from callslip.transcripts.source import Source

SOURCES: dict[str, Source] = {source.name: source for source in (ClaudeCode(), Codex(), Gemini(), Opencode())}


def find_source(name: str) -> Source:
    """Return the history of an agent by its name."""
    if name not in SOURCES:
        raise InvalidInputError("agent", f"unknown agent {name!r}; known are {', '.join(SOURCES)}")
    return SOURCES[name]
