"""Find and read the session files of agents that a hook is about."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from callslip.formats.json_fields import Fields, as_str, identifier
from callslip.ledger.event_log import EventLog
from callslip.transcripts.agents import SOURCES
from callslip.transcripts.importer import Report, TranscriptImporter
from callslip.transcripts.source import Source, Transcript

FOLLOWED_S = 600.0
"""How long after the last message of a session its files are still looked at."""
MAX_FOLLOWED = 200
MAX_PATH_CHARS = 4096


class Located(msgspec.Struct):
    """The session files that a message is about. `session` is the agent's id of the session that it belongs to.

    `is_readable`: they are where the agent keeps its history, so all texts are read from there.
    """

    source: Source
    session: str
    transcripts: list[Transcript]
    is_readable: bool


class FollowedTranscripts:
    """The session files of the sessions that hooks name."""

    def __init__(self, log: EventLog, environ: Mapping[str, str] | None = None, home: str = "") -> None:
        self._environ = os.environ if environ is None else environ
        self._home = home or os.path.expanduser("~")
        self._log = log
        self._importer: TranscriptImporter | None = None
        self._lock = asyncio.Lock()
        self._followed: dict[tuple[str, str], tuple[Source, Transcript, float]] = {}

    def locate(self, agent: str, payload: Fields) -> Located:
        """Return the session files that a message is about."""
        source, session = SOURCES[agent], identifier(payload.get("session_id"))
        if agent == "opencode":
            return self._locate_in_database(source, session)
        path = _path_in_history(as_str(payload.get("transcript_path")), source.folders(self._environ, self._home))
        if not path:
            return Located(source, session, [], False)
        paths = [path]
        if agent == "claude-code" and (agent_id := identifier(payload.get("agent_id"))) and os.sep not in agent_id:
            paths.append(os.path.join(path.removesuffix(".jsonl"), "subagents", f"agent-{agent_id}.jsonl"))
        found = [transcript for each in paths for transcript in _find_one(source, each)]
        return Located(source, next((one.session for one in found if one.session), "") or session, found, True)

    def _locate_in_database(self, source: Source, session: str) -> Located:
        paths = source.folders(self._environ, self._home)
        with contextlib.suppress(OSError):
            all_found = [transcript for path in paths for transcript in source.find(path)]
            root = next((each.session for each in all_found if each.part == session), "")
            found = [each for each in all_found if root and each.session == root]
            return Located(source, root or session, found, bool(found))
        return Located(source, session, [], False)

    async def read(self, located: Located) -> None:
        """Import what is new in session files, and follow them from now on."""
        until = time.monotonic() + FOLLOWED_S
        for transcript in located.transcripts:
            self._followed[located.source.name, transcript.name] = (located.source, transcript, until)
        while len(self._followed) > MAX_FOLLOWED:
            del self._followed[next(iter(self._followed))]
        await self._import(located.source, located.transcripts)

    async def poll(self) -> None:
        """Import what is new in the session files that are followed."""
        now = time.monotonic()
        for key, (source, transcript, until) in list(self._followed.items()):
            if until < now:
                del self._followed[key]
                continue
            newest = source.refresh(transcript)
            if newest is not None and self._importer is not None and not self._importer.is_unchanged(source, newest):
                await self._import(source, [newest])

    @property
    def is_following(self) -> bool:
        return bool(self._followed)

    async def _import(self, source: Source, transcripts: list[Transcript]) -> Report:
        async with self._lock:
            if self._importer is None:
                importer = TranscriptImporter(self._log, is_live=True)
                await importer.load()
                self._importer = importer
            refreshed = [newest for each in transcripts if (newest := source.refresh(each)) is not None]
            return await self._importer.run(source, refreshed)


def _find_one(source: Source, path: str) -> list[Transcript]:
    """Return the transcript of a path, if it is one; a file that does not exist yet is none."""
    if not os.path.isfile(path) or os.path.islink(path):
        return []
    found: list[Any] = list(source.find(path))
    return found[:1]


def _path_in_history(path: str, folders: list[str]) -> str:
    """Return a path as it is found below one of the folders, "" if it leads out of them.

    A hook names the file, and any program can send a message of a hook: no other file may be read.
    """
    if not path or len(path) > MAX_PATH_CHARS or "\0" in path or not path.endswith((".jsonl", ".json")):
        return ""
    real = os.path.realpath(path)
    for folder in folders:
        base = os.path.realpath(folder)
        if real.startswith(base + os.sep):
            return os.path.join(folder, os.path.relpath(real, base))
    return ""
