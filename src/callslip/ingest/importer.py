"""Import a file of messages, one JSON value per line, into sessions. Importing it twice changes nothing.

The idempotency key of a draft is a hash chain over the lines up to its own, and its number within the line. So a longer
version of the same file adds only its new lines. Facts that earlier versions did not read are numbered apart: a file
that an earlier version imported adds only these. The key is compared by the line, not the draft, so that a decoder of a
later version causes no conflict. The end of the file ends its open turn and calls; later events of a longer version
about them are late. The first conversation of a file goes into the named session S, a conversation x into `S:x`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, structs

from callslip.errors import InvalidInputError
from callslip.formats.base import RequiresValidation
from callslip.ingest.conversations import Connection, Conversation, Conversations, joined
from callslip.ingest.detection import BOM, is_understood
from callslip.ingest.recorder import settings_validation
from callslip.ingest.stream_parser import MAX_LINE_BYTES
from callslip.ledger.event_log import EventLog
from callslip.ledger.session_log import last_seq
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import CallEnd, Chunks, Draft, Event, blob_of
from callslip.model.names import check_session_name

BATCH_DRAFTS = 256
BATCH_BYTES = 2**20
EOF = "eof"
FACT = "fact"
"""The prefix of the numbers of facts that versions before 0.3 did not read."""
LATER_FIELDS = ("agent", "agent_version", "model", "project", "branch", "foreign_id", "continues", "ended")
"""The fields of `session.info` since 0.3."""
LEFT_OPEN = "the imported record ends before this call does"


class Report(msgspec.Struct, rename="camel"):
    """The result of an import. `seen` counts the drafts that an earlier import wrote, `verdicts` the others.

    `not_understood` counts lines that are stored as they are, `missing_values` large values of an exported log that are
    not in the file: only their beginnings are imported.
    """

    format: str = ""
    lines: int = 0
    not_understood: int = 0
    missing_values: int = 0
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
    requires_validation: RequiresValidation | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Import messages, one per line. A line that is not JSON raises an error; the lines before it are imported.

    `chunks` is how streamed texts are chunked, if known. `started` is the start, in ms since the epoch, of the times in
    the messages; without it they get the time of the import. `requires_validation` returns for a tool name whether a
    user must accept its calls, if their messages do not say so; without it the settings of the ledger do. `progress` is
    called after every batch.
    """
    required = settings_validation(log, format) if requires_validation is None else requires_validation
    work = _Import(log, check_session_name(session), format, chunks, started, required, progress)
    try:
        for line in lines:
            await work.add_line(line)
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
    requires_validation: RequiresValidation | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Import a file. Its relative times are based on the time of its last write."""
    with open(path, "rb") as file:
        lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
        started = _estimate_start(path)
        return await import_lines(
            log,
            session,
            format,
            lines,
            chunks=chunks,
            started=started,
            requires_validation=requires_validation,
            progress=progress,
        )


def _estimate_start(path: str | os.PathLike[str]) -> int:
    """Return when the recording in a file began: its last write minus the time of its last row."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - BATCH_BYTES))
        last = file.read().strip().rpartition(b"\n")[2]
    try:
        row = codec.parse_json(last)
    except InvalidInputError:
        return 0
    seconds: Any = row.get("t") if isinstance(row, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    duration_ms = seconds * 1000 if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else 0
    return max(0, int(os.stat(path).st_mtime * 1000 - duration_ms))


def _is_later_fact(event: Event) -> bool:
    """Return whether versions before 0.3 did not read an event: usage, or the agent of a session and where it works."""
    if isinstance(event, ev.SessionInfo):
        return any(getattr(event, name) is not UNSET for name in LATER_FIELDS)
    return isinstance(event, ev.UsageReported)


class _Import:
    """An import in progress."""

    def __init__(
        self,
        log: EventLog,
        session: str,
        format: str,
        chunks: Chunks | None,
        started: int,
        requires_validation: RequiresValidation | None,
        progress: Callable[[Report], None] | None,
    ) -> None:
        self.report = Report(format=format)
        self._log = log
        self._session = session
        self._format = format
        self._progress = progress
        self._conversations = Conversations(
            format, self._session_of, chunks=chunks, started=started, requires_validation=requires_validation
        )
        self._connection = Connection(log, "" if format == "events" else format)
        self._first_seqs: dict[str, int] = {}
        self._chain = codec.digest(format.encode())
        self._line_number = self._pending_drafts = self._pending_bytes = 0
        self._last_times: dict[int, int] = {}
        self._imported_at = int(time.time() * 1000)

    async def add_line(self, line: bytes) -> None:
        """Import a line of the file. Empty lines are ignored."""
        self._line_number += 1
        line = (line.removeprefix(BOM) if self._line_number == 1 else line).strip()
        if not line:
            return
        message = self._parse(line)
        self.report.lines += 1
        self._chain = codec.digest(self._chain.encode() + line)
        decoded = self._conversations.read(message)
        self.report.not_understood += not is_understood(self._format, decoded)
        for conversation, _, drafts in decoded:
            self._keep(conversation, message, drafts, codec.digest(line))
        self._pending_bytes += len(line)
        if self._pending_drafts >= BATCH_DRAFTS or self._pending_bytes >= BATCH_BYTES:
            await self._flush()

    def _parse(self, line: bytes) -> Any:
        try:
            return codec.parse_json(line, max_bytes=MAX_LINE_BYTES)
        except InvalidInputError as error:
            problem = f"{error.problem}. The {self.report.lines} lines before it were imported, none after it."
            raise InvalidInputError(f"line {self._line_number}", problem, error.limit) from error

    def _session_of(self, name: str) -> str:
        session = self._session if not name else joined(self._session, ":", name)
        self.report.sessions.append(session)
        return session

    def _keep(self, conversation: Conversation, message: Any, drafts: list[Draft], mark: str, suffix: str = "") -> None:
        """Give the drafts of a line, or of the end of the file, their keys, and add them to the next batch."""
        prefix = f"{self._format}:{self._chain}{suffix}:"
        numbers = {kind: itertools.count() for kind in ("", FACT)}
        keyed: list[Draft] = []
        for draft in drafts:
            kind = FACT if _is_later_fact(draft.event) else ""
            draft = structs.replace(draft, key=f"{prefix}{kind}{next(numbers[kind])}", mark=mark)
            keyed.append(self._with_time(conversation, draft))
        conversation.keep(message, keyed)
        self._pending_drafts += len(keyed)

    def _with_time(self, conversation: Conversation, draft: Draft) -> Draft:
        """Give a draft without a time that of the draft before it: the time of the import is no duration of a call."""
        if draft.event.at:
            if draft.event.at <= self._imported_at:  # Else its clock was wrong, or it is no time.
                self._last_times[id(conversation)] = draft.event.at
            return draft
        at = self._last_times.get(id(conversation), self._imported_at)
        return structs.replace(draft, event=structs.replace(draft.event, at=at))

    async def _flush(self) -> None:
        self._pending_drafts = self._pending_bytes = 0
        await self._conversations.flush(self._write)
        if self._progress is not None:
            self._progress(self.report)

    async def _write(self, conversation: Conversation, drafts: list[Draft]) -> None:
        session = conversation.session
        if session not in self._first_seqs:
            self._first_seqs[session] = await last_seq(self._log, session)
        drafts = [await self._without_missing_blob(draft) for draft in drafts]
        events = await self._connection.append(session, drafts)
        self.report.drafts += len(events)
        for event in events:
            self._count(event, self._first_seqs[session])

    async def _without_missing_blob(self, draft: Draft) -> Draft:
        """Remove a reference to a value that is only in the ledger from which the log was exported."""
        event, blob = draft.event, blob_of(draft.event)
        if blob is None or await self._log.store.blob_size(blob.hash) is not None:
            return draft
        self.report.missing_values += 1
        changes: dict[str, Any] = {"blob": None}
        if isinstance(event, CallEnd) and isinstance(event.output, str):
            changes["cut_bytes"] = max(0, blob.size - len(event.output.encode()))
        return structs.replace(draft, event=structs.replace(event, **changes))

    def _count(self, event: Event, first_seq: int) -> None:
        if event.seq <= first_seq:
            self.report.seen += 1
            return
        counts = self.report.verdicts
        counts[event.verdict] = counts.get(event.verdict, 0) + 1
        self._connection.track(event)

    async def finish(self) -> None:
        """End the turns and calls that are open at the end of the file."""
        for conversation, drafts in self._conversations.close(EOF):
            self._keep(conversation, None, drafts, self._chain, suffix=":" + EOF)
        await self._flush()
        await self._connection.close(LEFT_OPEN)
        for session, first_seq in self._first_seqs.items():
            self.report.events += await last_seq(self._log, session) - first_seq
