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

from callslip import codec, liveness
from callslip import events as ev
from callslip.errors import Refused
from callslip.events import CallEvent, Chunks, Draft, Event
from callslip.formats import Decoder, registry
from callslip.intake import session_name
from callslip.ledger import Ledger
from callslip.lifecycle import ENDS, ends

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
    ledger: Ledger,
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
    work = _Import(ledger, session_name(session), format, chunks, started, progress)
    try:
        for line in lines:
            await work.take(line)
    finally:
        await work.finish()
    return work.report


async def import_file(
    ledger: Ledger,
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
        return await import_lines(ledger, session, format, lines, chunks=chunks, started=started, progress=progress)


def _started(path: str | os.PathLike[str]) -> int:
    """When the recording in a file began: its last write, less the time of its last row."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - BATCH_BYTES))
        last = file.read().strip().rpartition(b"\n")[2]
    try:
        row = codec.parse(last)
    except Refused:
        return 0
    seconds: Any = row.get("t") if isinstance(row, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    lasted = seconds * 1000 if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else 0
    return max(0, int(os.stat(path).st_mtime * 1000 - lasted))


class _Conversation(msgspec.Struct):
    """One of the conversations in a file: its session, its decoder, and what waits to be appended, line by line."""

    session: str
    decoder: Decoder
    head: int
    waiting: list[tuple[Any, list[Draft]]] = []


class _Import:
    """One import under way."""

    def __init__(
        self,
        ledger: Ledger,
        session: str,
        format: str,
        chunks: Chunks | None,
        started: int,
        progress: Callable[[Report], None] | None,
    ) -> None:
        self.report = Report()
        self._ledger = ledger
        self._session = session
        self._format = format
        self._made = lambda: registry.decoder(format, chunks=chunks, started=started)
        self._splitter = registry.splitter(format, started=started)
        self._progress = progress
        self._talks: dict[str, _Conversation] = {}
        self._owner = liveness.new_owner()
        self._open: set[str] = set()
        self._chain = codec.digest(format.encode())
        self._number = self._drafts = self._bytes = 0
        self._made()  # A format that cannot be read is refused before anything is.

    async def take(self, line: bytes) -> None:
        """One line of the file. Empty ones say nothing."""
        self._number += 1
        line = (line.removeprefix(BOM) if self._number == 1 else line).strip()
        if not line:
            return
        message = self._parsed(line)
        self.report.lines += 1
        self._chain = codec.digest(self._chain.encode() + line)
        parts = self._splitter.split(message) if self._splitter else [("", message)]
        for name, part in parts:
            talk = await self._talk(name)
            self._keep(talk, message, talk.decoder.feed(part), codec.digest(line))
        self._bytes += len(line)
        if self._drafts >= BATCH_DRAFTS or self._bytes >= BATCH_BYTES:
            await self._flush()

    def _parsed(self, line: bytes) -> Any:
        try:
            return codec.parse(line, max_bytes=LINE_BYTES)
        except Refused as error:
            problem = f"{error.problem}; {self.report.lines} lines before it were taken, none after it"
            raise Refused(f"line {self._number}", problem, error.limit) from error

    async def _talk(self, name: str) -> _Conversation:
        talk = self._talks.get(name)
        if talk is None:
            session = self._named(name)
            row = await self._ledger.store.session(session)
            talk = self._talks[name] = _Conversation(session, self._made(), row.head if row else 0)
            self.report.sessions.append(session)
        return talk

    def _named(self, name: str) -> str:
        if not name:
            return self._session
        try:
            return session_name(f"{self._session}:{name}")
        except Refused:
            return session_name(f"{self._session[:150]}:{codec.digest(name.encode())[:12]}")

    def _keep(self, talk: _Conversation, message: Any, drafts: list[Draft], mark: str, last: str = "") -> None:
        """Put the drafts of a line, or of the end of all lines, with the others that wait."""
        if not drafts:
            return
        keys = f"{self._format}:{self._chain}{last}:"
        keyed = [structs.replace(draft, key=keys + str(number), mark=mark) for number, draft in enumerate(drafts)]
        talk.waiting.append((message, keyed))
        self._drafts += len(keyed)

    async def _flush(self) -> None:
        self._drafts = self._bytes = 0
        for talk in self._talks.values():
            waiting, talk.waiting = talk.waiting, []
            if waiting:
                await self._append(talk, waiting)
        if self._progress is not None:
            self._progress(self.report)

    async def _append(self, talk: _Conversation, waiting: list[tuple[Any, list[Draft]]]) -> None:
        """Append lines together; if one of them is refused, each by itself, and that one as it came (C11)."""
        try:
            await self._write(talk, [draft for _, drafts in waiting for draft in drafts])
        except Refused:
            if len(waiting) > 1:
                for one in waiting:
                    await self._append(talk, [one])
                return
            message, drafts = waiting[0]
            if isinstance(drafts[0].event, ev.Raw):
                raise
            await self._write(talk, [structs.replace(drafts[0], event=ev.Raw(format=self._format, body=message))])

    async def _write(self, talk: _Conversation, drafts: list[Draft]) -> None:
        source = "" if self._format == "events" else self._format
        made = await self._ledger.append(talk.session, drafts, source=source, owner=self._owner)
        self.report.drafts += len(made)
        for event in made:
            self._count(talk, event)

    def _count(self, talk: _Conversation, event: Event) -> None:
        if event.seq <= talk.head:
            self.report.seen += 1
            return
        counts = self.report.verdicts
        counts[event.verdict] = counts.get(event.verdict, 0) + 1
        if isinstance(event, CallEvent) and event.verdict == "applied":
            (self._open.discard if ends(event) else self._open.add)(event.call)

    async def finish(self) -> None:
        """End what the end of the file leaves open."""
        for talk in self._talks.values():
            self._keep(talk, None, talk.decoder.close(EOF), self._chain, last=":" + EOF)
        await self._flush()
        await self._ledger.close_owner(self._owner, LEFT_OPEN)
        for call in sorted(self._open):
            row = await self._ledger.store.call(call)
            if row is not None and row.state not in ENDS:
                await self._ledger.append(row.session, [ev.CallLost(call=call, reason=LEFT_OPEN)], source="callslip")
        for talk in self._talks.values():
            row = await self._ledger.store.session(talk.session)
            self.report.events += (row.head if row else 0) - talk.head
