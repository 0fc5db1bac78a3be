"""Find the chat files of Gemini CLI: `tmp/PROJECT/chats/session-TIME-ID.jsonl`, and those of its sub-agents.

A sub-agent has the file `chats/SESSION/AGENT.jsonl`. Earlier versions store a chat as one JSON object, in a `.json`
file, which is written again after each message. A file `.project_root` names the folder of the project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from callslip.formats.gemini.decode import PROJECT
from callslip.formats.json_fields import as_dict, identifier
from callslip.transcripts.json_file import read_whole
from callslip.transcripts.json_lines import find_files, open_file, read_lines, stat_file
from callslip.transcripts.source import Messages, Piece, Transcript

CHATS = "chats"
PROJECT_FILE = ".project_root"
MAX_PATH_BYTES = 4096
_SESSION_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Gemini:
    """The history of Gemini CLI."""

    name = "gemini"
    session_prefix = "gemini"

    def folders(self, environ: Mapping[str, str], home: str) -> list[str]:
        return [os.path.join(environ.get("GEMINI_CLI_HOME") or home, ".gemini", "tmp")]

    def find(self, path: str) -> Iterator[Transcript]:
        files = (file for suffix in (".jsonl", ".json") for file in find_files(path, suffix) if _is_chat(file))
        for file in files if os.path.isdir(path) else find_files(path, ""):
            session = _parent_session(file)
            if (transcript := stat_file(file, session, is_secondary=bool(session))) is not None:
                yield transcript

    def refresh(self, transcript: Transcript) -> Transcript | None:
        return stat_file(transcript.path, transcript.session, is_secondary=transcript.is_secondary)

    def session_of(self, transcript: Transcript, messages: Messages) -> str:
        ids = (identifier(as_dict(message).get("sessionId")) for message in messages)
        return transcript.session or next((session for session in ids if session), "")

    def opening(self, transcript: Transcript) -> Messages:
        """Return the folder of the project, which the chat itself may not name."""
        chats = os.path.dirname(transcript.path)
        if transcript.session or os.path.basename(chats) != CHATS:
            return ()
        try:
            with open_file(os.path.join(os.path.dirname(chats), PROJECT_FILE)) as file:
                project = file.read(MAX_PATH_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ()
        return ({PROJECT: project},) if project else ()

    def read(self, transcript: Transcript, position: bytes) -> Iterator[Piece]:
        if transcript.path.endswith(".json"):
            return read_whole(transcript, position)
        return read_lines(transcript.path, position)


def _is_chat(path: str) -> bool:
    """Return whether a file is a chat: the folders next to `chats` have other files of JSON."""
    folders = os.path.dirname(path).split(os.sep)
    name = os.path.basename(path)
    return CHATS in folders[-2:] and (name.endswith(".jsonl") or name.startswith("session-"))


def _parent_session(path: str) -> str:
    """Return the session of a sub-agent's chat, "" for others."""
    folder = os.path.basename(os.path.dirname(path))
    return folder if folder != CHATS and _SESSION_ID.fullmatch(folder) else ""
