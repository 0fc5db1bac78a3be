"""Find the rollouts of Codex: `sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl`, and those that it archived.

A sub-agent has a rollout of its own, which names the session. Codex may compress rollouts that have not changed for
days, with zstd; Python cannot read them without another package, so they are reported as problems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import structs

from callslip.formats.codex.decode import session_of_line
from callslip.transcripts.json_lines import find_files, open_file, read_lines, stat_file
from callslip.transcripts.source import Messages, Piece, Problem, Transcript

COMPRESSED = ".jsonl.zst"
HEAD_BYTES = 1024
_THREAD = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl\Z")
_SESSION = re.compile(r'"session_id": ?"([^"]+)"')
_PARENT = re.compile(r'"parent_thread_id": ?"([^"]+)"')


class Codex:
    """The history of Codex."""

    name = "codex"
    session_prefix = "codex"

    def folders(self, environ: Mapping[str, str], home: str) -> list[str]:
        folder = environ.get("CODEX_HOME") or os.path.join(home, ".codex")
        return [os.path.join(folder, name) for name in ("sessions", "archived_sessions")]

    def find(self, path: str) -> Iterator[Transcript]:
        for suffix in (".jsonl", COMPRESSED) if os.path.isdir(path) else ("",):
            for file in find_files(path, suffix):
                # A rollout is in one of both forms, for a moment in both.
                if file.endswith(COMPRESSED) and os.path.exists(file.removesuffix(".zst")):
                    continue
                if (transcript := stat_file(file)) is None:
                    continue
                session = _session_of_agent(file) if transcript.size else ""
                yield structs.replace(transcript, session=session, is_secondary=True) if session else transcript

    def refresh(self, transcript: Transcript) -> Transcript | None:
        return stat_file(transcript.path, transcript.session, is_secondary=transcript.is_secondary)

    def session_of(self, transcript: Transcript, messages: Messages) -> str:
        sessions = (session_of_line(line) for line in messages)
        return transcript.session or next((session for session in sessions if session), "")

    def opening(self, transcript: Transcript) -> Messages:
        return ()

    def read(self, transcript: Transcript, position: bytes) -> Iterator[Piece]:
        if not transcript.path.endswith(COMPRESSED):
            yield from read_lines(transcript.path, position)
        elif not position:
            problem = Problem(0, "is compressed with zstd. Decompress it with `zstd -d` and import the result.")
            yield Piece(position=COMPRESSED.encode(), skipped=1, problem=problem)


@lru_cache(maxsize=2**16)
def _session_of_agent(path: str) -> str:
    """Return the session that a sub-agent works for, "" for the rollout of a session. The first line never changes."""
    found = _THREAD.search(path)
    try:
        with open_file(path) as file:
            head = file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    session, parent = _SESSION.search(head), _PARENT.search(head)
    if parent is None or found is None:
        return ""
    return session[1] if session is not None and session[1] != found[1] else parent[1]
