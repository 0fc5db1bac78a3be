"""Find the rollouts of Codex: `sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl`, and those that it archived.

A sub-agent has a rollout of its own, which names the session. Codex may compress rollouts that have not changed for
days, with zstd; Python cannot read them without another package, so they are reported as problems.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from callslip.formats.codex.decode import session_of_line
from callslip.transcripts.json_lines import find_files, read_lines, stat_file
from callslip.transcripts.source import Messages, Piece, Problem, Transcript

COMPRESSED = ".jsonl.zst"


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
                if (transcript := stat_file(file)) is not None:
                    yield transcript

    def refresh(self, transcript: Transcript) -> Transcript | None:
        return stat_file(transcript.path, transcript.session)

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
