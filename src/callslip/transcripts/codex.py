"""Find the rollouts of Codex: `sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl`, and those that it archived.

A sub-agent has a rollout of its own, which names the session. With the setting `local_thread_store_compression` Codex
compresses rollouts that have not changed for seven days: `.jsonl` becomes `.jsonl.zst`, and `.jsonl` again when the
session is resumed. Both are one transcript with one position, and its path is that without `.zst`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import structs

from callslip.formats.codex.decode import session_of_line
from callslip.transcripts.json_lines import find_files, open_content, read_lines, stat_file
from callslip.transcripts.source import Messages, Piece, Problem, Transcript
from callslip.transcripts.zstd_file import DamagedFileError, load_zstd, open_compressed

COMPRESSED = ".zst"
NEEDS_PACKAGE = f"is compressed ({COMPRESSED}): install callslip[zstd], or decompress it with `zstd -d`"
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
        files = (file for suffix in (".jsonl", f".jsonl{COMPRESSED}") for file in find_files(path, suffix))
        for file in files if os.path.isdir(path) else find_files(path, ""):
            rollout = file.removesuffix(COMPRESSED)
            if file != rollout and os.path.exists(rollout):
                continue  # It is in both forms for a moment.
            if (transcript := _stat_rollout(rollout)) is None:
                continue
            session = _session_of_agent(rollout) if transcript.size else ""
            yield structs.replace(transcript, session=session, is_secondary=True) if session else transcript

    def refresh(self, transcript: Transcript) -> Transcript | None:
        newest = _stat_rollout(transcript.path)
        if newest is None:
            return None
        return structs.replace(newest, session=transcript.session, is_secondary=transcript.is_secondary)

    def session_of(self, transcript: Transcript, messages: Messages) -> str:
        sessions = (session_of_line(line) for line in messages)
        return transcript.session or next((session for session in sessions if session), "")

    def opening(self, transcript: Transcript) -> Messages:
        return ()

    def read(self, transcript: Transcript, position: bytes) -> Iterator[Piece]:
        if os.path.exists(transcript.path):
            yield from read_lines(transcript.path, position)
            return
        if load_zstd() is None:
            yield Piece(position=position, skipped=1, problem=Problem(0, NEEDS_PACKAGE))
            return
        has_read = False
        try:
            for piece in read_lines(transcript.path + COMPRESSED, position, open_compressed):
                has_read, position = True, piece.position
                yield piece
            if position and not has_read:
                yield Piece(position=position)  # It is not decompressed again to find nothing.
        except DamagedFileError as error:
            yield Piece(position=position, skipped=1, problem=Problem(0, f"cannot be decompressed: {error}"))


def _stat_rollout(path: str) -> Transcript | None:
    """Return a rollout in either form as a transcript; None if there is none."""
    if (transcript := stat_file(path)) is not None:
        return transcript
    if (compressed := stat_file(path + COMPRESSED)) is None:
        return None
    # What cannot be decompressed now is tried again when it can.
    mark = compressed.mark if load_zstd() is not None else f"{compressed.mark}.unread"
    return structs.replace(compressed, path=path, mark=mark)


@lru_cache(maxsize=2**16)
def _session_of_agent(path: str) -> str:
    """Return the session that a sub-agent works for, "" for the rollout of a session. The first line never changes."""
    found = _THREAD.search(path)
    is_plain = os.path.exists(path)
    if not is_plain and load_zstd() is None:
        return ""
    try:
        with open_content(path) if is_plain else open_compressed(path + COMPRESSED) as read_at:
            head = read_at(HEAD_BYTES, 0).decode("utf-8", "replace")
    except (OSError, DamagedFileError):
        return ""
    session, parent = _SESSION.search(head), _PARENT.search(head)
    if parent is None or found is None:
        return ""
    return session[1] if session is not None and session[1] != found[1] else parent[1]
