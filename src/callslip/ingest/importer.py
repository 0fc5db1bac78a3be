"""Puts a file of foreign messages, one JSON value per line, into a ledger. Doing it twice changes nothing (C7).

The key of a draft is a hash chain over the lines up to its own, and the draft's number within the line: a longer
version of the same file brings only what is new in it. What is compared is the line, so that a better decoder makes no
conflict. The end of the file ends the turn and the calls that are open by then (C5); what a longer version says about
those comes late. Of several conversations in a file the first goes into the named session S, another, x, into `S:x`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.ingest.conversations import Connection, Conversation, Conversations, joined
from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model.events import Chunks, Draft, Event
from callslip.model.names import check_session_name

BATCH_DRAFTS = 256
BATCH_BYTES = 2**20
LINE_BYTES = 256 * 2**20
EOF = "eof"
LEFT_OPEN = "the imported record ends before this call does"
BOM = b"\xef\xbb\xbf"


class Report(msgspec.Struct):
    """What an import did. `seen` counts the drafts that an earlier import had brought, `verdicts` the others."""

    lines: int = 0
    drafts: int = 0
    events: int = 0
    seen: int = 0
    verdicts: dict[str, int] = {}
    sessions: list[str] = []


async def import_lines(
    log: EventLog,
    session: str,
    format: str,
    lines: Iterable[bytes],
    *,
    chunks: Chunks | None = None,
    started: int = 0,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Import messages, one a line. A line that is not JSON is refused by its number; the lines before it stay.

    `chunks` says how texts come in pieces, if that is known. `started` is the time, in ms since the epoch, from which
    the messages count theirs; without it they get the time of the import. `progress` hears of every batch.
    """
    work = _Import(log, check_session_name(session), format, chunks, started, progress)
    try:
        for line in lines:
            await work.take(line)
    finally:
        await work.finish()
    return work.report


async def import_file(
    log: EventLog,
    session: str,
    format: str,
    path: str | os.PathLike[str],
    *,
    chunks: Chunks | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Import a file. Times that count from its beginning are counted back from when it was last written."""
    with open(path, "rb") as file:
        lines = iter(lambda: file.readline(LINE_BYTES + 1), b"")
        started = _started(path)
        return await import_lines(log, session, format, lines, chunks=chunks, started=started, progress=progress)


def _started(path: str | os.PathLike[str]) -> int:
    """When the recording in a file began: its last write, less the time of its last row."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - BATCH_BYTES))
        last = file.read().strip().rpartition(b"\n")[2]
    try:
        row = codec.parse_json(last)
    except InvalidInputError:
        return 0
    seconds: Any = row.get("t") if isinstance(row, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    lasted = seconds * 1000 if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else 0
    return max(0, int(os.stat(path).st_mtime * 1000 - lasted))


class _Import:
    """One import under way."""

    def __init__(
        self,
        log: EventLog,
        session: str,
        format: str,
        chunks: Chunks | None,
        started: int,
        progress: Callable[[Report], None] | None,
    ) -> None:
        self.report = Report()
        self._log = log
        self._session = session
        self._format = format
        self._progress = progress
        self._talks = Conversations(format, self._named, chunks=chunks, started=started)
        self._line = Connection(log, "" if format == "events" else format)
        self._heads: dict[str, int] = {}
        self._chain = codec.digest(format.encode())
        self._number = self._drafts = self._bytes = 0

    async def take(self, line: bytes) -> None:
        """One line of the file. Empty ones say nothing."""
        self._number += 1
        line = (line.removeprefix(BOM) if self._number == 1 else line).strip()
        if not line:
            return
        message = self._parsed(line)
        self.report.lines += 1
        self._chain = codec.digest(self._chain.encode() + line)
        for talk, _, drafts in self._talks.read(message):
            self._keep(talk, message, drafts, codec.digest(line))
        self._bytes += len(line)
        if self._drafts >= BATCH_DRAFTS or self._bytes >= BATCH_BYTES:
            await self._flush()

    def _parsed(self, line: bytes) -> Any:
        try:
            return codec.parse_json(line, max_bytes=LINE_BYTES)
        except InvalidInputError as error:
            problem = f"{error.problem}; {self.report.lines} lines before it were taken, none after it"
            raise InvalidInputError(f"line {self._number}", problem, error.limit) from error

    def _named(self, name: str) -> str:
        session = self._session if not name else joined(self._session, ":", name)
        self.report.sessions.append(session)
        return session

    def _keep(self, talk: Conversation, message: Any, drafts: list[Draft], mark: str, last: str = "") -> None:
        """Give the drafts of a line, or of the end of all lines, their keys, and let them wait."""
        keys = f"{self._format}:{self._chain}{last}:"
        keyed = [structs.replace(draft, key=keys + str(number), mark=mark) for number, draft in enumerate(drafts)]
        talk.keep(message, keyed)
        self._drafts += len(keyed)

    async def _flush(self) -> None:
        self._drafts = self._bytes = 0
        await self._talks.flush(self._write)
        if self._progress is not None:
            self._progress(self.report)

    async def _write(self, talk: Conversation, drafts: list[Draft]) -> None:
        if talk.session not in self._heads:
            self._heads[talk.session] = await self._head(talk.session)
        made = await self._line.append(talk.session, drafts)
        self.report.drafts += len(made)
        for event in made:
            self._count(event, self._heads[talk.session])

    def _count(self, event: Event, head: int) -> None:
        if event.seq <= head:
            self.report.seen += 1
            return
        counts = self.report.verdicts
        counts[event.verdict] = counts.get(event.verdict, 0) + 1
        self._line.see(event)

    async def _head(self, session: str) -> int:
        row = await self._log.store.session(session)
        return row.last_seq if row else 0

    async def finish(self) -> None:
        """End what the end of the file leaves open."""
        for talk in self._talks.all.values():
            self._keep(talk, None, talk.decoder.close(EOF), self._chain, last=":" + EOF)
        await self._flush()
        await self._line.close(LEFT_OPEN)
        for session, head in self._heads.items():
            self.report.events += await self._head(session) - head
