"""Import what is new in the transcripts of agents.

What was read is stored in the transaction of its events: the position in the transcript, and what its decoder
remembers. So a process that is killed leaves neither a gap nor a repetition, and the next one continues. A draft with a
known key is a copy, or was read before: it is left out, with those after it that have no key.

A call has no owner, because the agent is another process. It ends with its result, with its turn, or when its
transcript did not change for hours.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, structs

from callslip.errors import InvalidInputError, StoreError
from callslip.formats import registry
from callslip.formats.base import Decoder
from callslip.formats.transcripts import MARK
from callslip.ingest.conversations import joined
from callslip.ingest.decoder_state import StateMismatchError, encode_state, restore_state
from callslip.ledger.checkpoint import read_pruned_until
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import WriteContext, WriteOperation
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Draft
from callslip.model.records import ConversationChange, ConversationName, ConversationRecord
from callslip.rules.projection import SESSION_NAMESPACE, TRANSCRIPT_NAMESPACE
from callslip.store.unit_of_work import UnitOfWork
from callslip.transcripts.source import Piece, Problem, Source, Transcript

CALLER_PREFIX = "transcript:"
ABANDONED_S = 6 * 3600
"""After this time without a change, what is open in a transcript has ended."""
LEASE_S = 24 * 3600.0
MAX_DRAFTS = 1000
"""How many drafts are written together."""
MAX_TRIES = 5
PARENT_WAIT_S = 30.0
COPY_DELAY_MS = 60_000
"""A file that was written so much later than its last message says may be a copy."""
MAX_COMPARED_IDS = 3
"""How many ids of messages at the start of a transcript are looked up in other sessions."""
ENDING_TEXT = (
    *(ev.MessageUser, ev.MessageEnded, ev.PlanUpdated, ev.TurnStarted, ev.TurnEnded),
    *(ev.CallProposed, ev.CallStarted),
)
"""Events that add an entry, or end a text or a turn: the text before them has ended."""


MESSAGES = (ev.MessageUser, ev.MessageDelta, ev.ThoughtDelta)


class Skipped(msgspec.Struct, frozen=True, rename="camel"):
    """What could not be read in one transcript."""

    path: str
    count: int
    line: int
    reason: str


class Report(msgspec.Struct, rename="camel"):
    """The result of an import. `deleted` counts transcripts of deleted sessions, which were left out."""

    transcripts: int = 0
    messages: int = 0
    events: int = 0
    skipped: int = 0
    deleted: int = 0
    problems: list[Skipped] = []
    sessions: list[str] = []

    def add_problem(self, path: str, count: int, problem: Problem) -> None:
        """Count what was skipped in a transcript. The first problem of each transcript is kept."""
        self.skipped += count
        for number, known in enumerate(self.problems):
            if known.path == path:
                self.problems[number] = structs.replace(known, count=known.count + count)
                return
        self.problems.append(Skipped(path, count, problem.line, problem.reason))

    def add(self, other: Report) -> None:
        """Add the result of another import."""
        self.transcripts += other.transcripts
        self.messages += other.messages
        self.events += other.events
        self.skipped += other.skipped
        self.deleted += other.deleted
        self.problems += other.problems
        self.sessions += other.sessions


class Place(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a transcript. `is_closed`: what was open in it was ended, because it did not change for long.

    `copied_from` is the session whose messages it repeats at its start, "" after them. `last_at` is the last time in
    it, in ms since the epoch, 0 if there is none yet.
    """

    position: bytes
    mark: str
    foreign_id: str
    decoder: bytes
    is_closed: bool = False
    copied_from: str = ""
    last_at: int = 0


_encode_place = msgspec.msgpack.Encoder().encode
_decode_place = msgspec.msgpack.Decoder(Place).decode


class _Open(msgspec.Struct):
    """A transcript that was read by this process, or of which something is stored."""

    name: ConversationName
    record: ConversationRecord
    place: Place
    decoder: Decoder | None = None
    session_number: int = 0


class _StaleError(Exception):
    """Another process has read the transcript, or the session was deleted."""


class _DeletedError(Exception):
    """The session of a transcript was deleted."""


class _EarlyError(Exception):
    """The call that started a sub-agent is not known yet."""


class TranscriptImporter:
    """Imports transcripts into one ledger. `restores`: sessions that were deleted are imported again.

    `progress` is called with each piece that was read. `is_live`: a transcript is read again soon, so the new one of a
    sub-agent may wait for the call that started it, because both files are written at once.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        restores: bool = False,
        is_live: bool = False,
        progress: Callable[[Transcript, int], None] | None = None,
    ) -> None:
        self._log = log
        self.progress = progress
        self._restores = restores
        self._is_live = is_live
        self._open: dict[tuple[str, str], _Open] = {}
        self._ignored: dict[tuple[str, str], str] = {}
        self._failed: dict[tuple[str, str], str] = {}
        self._deleted: dict[str, str] = {}

    async def load(self) -> None:
        """Read how far all transcripts were read, and which sessions were deleted."""
        self._open = {}
        for name, record in await self._log.store.transcripts():
            try:
                place = _decode_place(record.state)
            except msgspec.DecodeError:
                continue
            self._open[name.format, name.caller.removeprefix(CALLER_PREFIX)] = _Open(name, record, place)
        await self.load_deleted()

    async def load_deleted(self) -> None:
        """Read which sessions were deleted."""
        self._deleted = await self._log.store.deleted_sessions()

    def is_unchanged(self, source: Source, transcript: Transcript) -> bool:
        """Return whether everything in a transcript was read."""
        if self._failed.get((source.name, transcript.name)) == transcript.mark:
            return True
        known = self._open.get((source.name, transcript.name))
        mark = known.place.mark if known is not None else self._ignored.get((source.name, transcript.name))
        needs_close = known is not None and not known.place.is_closed and _is_old(transcript)
        return mark == transcript.mark and not needs_close

    async def run(self, source: Source, transcripts: Iterable[Transcript]) -> Report:
        """Import what is new in transcripts."""
        report = Report()
        changed = [transcript for transcript in transcripts if not self.is_unchanged(source, transcript)]
        for transcript in sorted(changed, key=lambda each: (each.is_secondary, each.changed_at)):
            await self._import(source, transcript, report)
        return report

    async def _import(self, source: Source, transcript: Transcript, report: Report) -> None:
        key = source.name, transcript.name
        for _ in range(MAX_TRIES):
            try:
                events = report.events
                await self._read(source, transcript, report)
                report.transcripts += 1
                session = self._open[key].name.session if key in self._open else ""
                if report.events > events and session not in report.sessions:
                    report.sessions.append(session)
                return
            except _StaleError:
                await self._reload(key)
            except _DeletedError:
                self._open.pop(key, None)
                self._ignored[key] = transcript.mark
                report.deleted += 1
                return
            except _EarlyError:
                self._open.pop(key, None)
                return
            except OSError as error:  # It is gone, or may not be read: nothing is deleted.
                report.add_problem(transcript.shown_path, 0, Problem(0, error.strerror or str(error)))
                return
            except StoreError:
                raise
            except Exception as error:  # Other transcripts are still imported. This one is tried again when it changes.
                self._failed[key] = transcript.mark
                report.add_problem(transcript.shown_path, 0, Problem(0, f"{type(error).__name__}: {error}"))
                return
        report.add_problem(transcript.shown_path, 0, Problem(0, "other processes import it now"))

    async def _reload(self, key: tuple[str, str]) -> None:
        """Read again how far a transcript was read."""
        known = self._open.pop(key, None)
        await self.load_deleted()
        record = await self._log.store.conversation(known.name) if known is not None else None
        if known is not None and record is not None and record.state:
            self._open[key] = _Open(known.name, record, _decode_place(record.state))

    async def _read(self, source: Source, transcript: Transcript, report: Report) -> None:
        key = source.name, transcript.name
        known = self._open.get(key)
        if known is not None:
            await self.load_deleted()
            if self._is_deleted(_deletion_key(transcript, known.place.foreign_id)):
                raise _DeletedError
        is_abandoned = _is_old(transcript)
        pieces = iter(source.read(transcript, known.place.position if known is not None else b""))
        piece = next(pieces, None)
        while piece is not None:
            following = next(pieces, None)
            known = self._open.get(key) or await self._begin(source, transcript, piece)
            if piece.skipped and piece.problem is not None:
                report.add_problem(transcript.shown_path, piece.skipped, piece.problem)
            if known is None:  # Nothing in this piece can be read: the session is in a later one.
                piece = following
                continue
            self._open[key] = known
            report.messages += len(piece.messages)
            mark = transcript.mark if following is None else ""
            try:
                await self._write(source, transcript, known, piece, mark, report, closes=is_abandoned and bool(mark))
            except BaseException:
                known.decoder = None  # It has read what was not written.
                raise
            if self.progress is not None:
                self.progress(transcript, piece.size)
            await asyncio.sleep(0)  # Let others of this process run.
            piece = following
        if known is None:
            self._ignored[key] = transcript.mark
        elif is_abandoned and not known.place.is_closed:
            piece = Piece(position=known.place.position)
            await self._write(source, transcript, known, piece, transcript.mark, report, closes=True)
        elif known.place.mark != transcript.mark:  # It has no more complete messages than before.
            known.place = structs.replace(known.place, mark=transcript.mark)

    def _is_deleted(self, key: str) -> bool:
        return key in self._deleted and not self._restores

    # The session of a transcript that is read for the first time

    async def _begin(self, source: Source, transcript: Transcript, piece: Piece) -> _Open | None:
        """Find the session of a transcript; None if there is no message yet."""
        if not piece.messages:
            return None
        foreign_id = source.session_of(transcript, piece.messages)
        key = _deletion_key(transcript, foreign_id)
        await self.load_deleted()
        if self._is_deleted(key):
            raise _DeletedError
        if key in self._deleted:
            await self._log.store.forget_deletion(key)
            await self.load_deleted()
        session = await self._find_session(source, transcript, foreign_id)
        name = ConversationName(session, source.name, CALLER_PREFIX + transcript.name)
        record = await self._log.store.conversation(name) or ConversationRecord()
        known = _Open(name, record, Place(b"", "", foreign_id, b""))
        if record.state:  # Another process has read it since this one looked.
            self._open[source.name, transcript.name] = known
            raise _StaleError
        return known

    async def _find_session(self, source: Source, transcript: Transcript, foreign_id: str) -> str:
        """Return the session of an agent's id: the one that another source recorded, or a new one."""
        if not foreign_id:
            stem = os.path.basename(transcript.shown_path).partition(".")[0]
            return joined(source.session_prefix, "-", stem or "unnamed")
        recorded = await self._log.store.sessions_with_alias(SESSION_NAMESPACE, foreign_id)
        return recorded[0] if recorded else joined(source.session_prefix, "-", foreign_id)

    async def _find_origin(self, known: _Open, units: Sequence[_Unit]) -> str:
        """Return the session from which the beginning of a transcript was copied, "" if it was not.

        A fork repeats the messages of another session, or their tokens, with their ids.
        """
        events = [draft.event for unit in units for draft in unit.drafts]
        messages = (event.message_id for event in events if isinstance(event, MESSAGES) and event.message_id)
        usages = (event.id for event in events if isinstance(event, ev.UsageReported) and event.id)
        for identity in (*itertools.islice(messages, MAX_COMPARED_IDS), *itertools.islice(usages, 1)):
            sessions = await self._log.store.sessions_with_alias(TRANSCRIPT_NAMESPACE, identity)
            if others := [session for session in sessions if session != known.name.session]:
                return "" if len(others) < len(sessions) else others[0]
        return ""

    async def _is_origin(self, transcript: Transcript, other: str, units: Sequence[_Unit]) -> bool:
        """Return whether a whole transcript is the beginning of a session that does not say which one it continues.

        A fork that has nothing of its own yet was written some time after the last message that was copied.
        """
        events = [draft.event for unit in units for draft in unit.drafts if isinstance(draft.event, MESSAGES)]
        if not events or transcript.changed_at - max(event.at for event in events) > COPY_DELAY_MS:
            return False
        alias = Alias(TRANSCRIPT_NAMESPACE, events[-1].message_id)
        return await self._has_any(other, [alias]) and not (await self._log.snapshot(other, limit=1)).info.continues

    async def _leave_out_copied_usage(self, known: _Open, units: Sequence[_Unit]) -> str:
        """Leave out the tokens that the original counts, and return the original if more copies may follow."""
        for unit in units:
            ids = [draft.event.id for draft in unit.drafts if isinstance(draft.event, ev.UsageReported)]
            if not ids:
                continue
            sessions = await self._log.store.sessions_with_alias(TRANSCRIPT_NAMESPACE, ids[0])
            if not any(session != known.name.session for session in sessions):
                return ""
            unit.drafts = [draft for draft in unit.drafts if not isinstance(draft.event, ev.UsageReported)]
        return known.place.copied_from

    async def _leave_out_pruned(self, known: _Open, units: list[_Unit]) -> list[_Unit]:
        """Leave out messages that are as old as what retention removed, with the keys by which they were known."""
        until = await read_pruned_until(self._log.store, known.name.session)
        return [unit for unit in units if not 0 < unit.time <= until]

    async def _check_parent(self, known: _Open, units: Sequence[_Unit]) -> None:
        """Raise unless the call that started the sub-agent of a transcript is known."""
        parent = next((draft.parent for unit in units for draft in unit.drafts if draft.parent is not None), None)
        if parent is not None and not await self._has_any(known.name.session, [parent]):
            raise _EarlyError

    async def _has_any(self, session: str, ids: Iterable[Alias]) -> bool:
        """Return whether a session has one of some messages or calls."""
        for alias in ids:
            if session in await self._log.store.sessions_with_alias(alias.ns, alias.id):
                return True
        return False

    # Writing

    async def _write(
        self,
        source: Source,
        transcript: Transcript,
        known: _Open,
        piece: Piece,
        mark: str,
        report: Report,
        *,
        closes: bool,
    ) -> None:
        """Write a piece with the position after it. `closes`: nothing follows."""
        if known.decoder is None or piece.restarted:
            known.decoder = _new_decoder(source, transcript, b"" if piece.restarted else known.place.decoder)
        is_first = not known.place.position
        units = [unit for message in piece.messages if (unit := _decode(known.decoder, message)).drafts]
        if is_first and self._is_live and transcript.changed_at / 1000 > time.time() - PARENT_WAIT_S:
            await self._check_parent(known, units)
        if is_first and (origin := await self._find_origin(known, units)):
            known.place = structs.replace(known.place, copied_from=origin)
            foreign_id = next(
                (other.place.foreign_id for other in self._open.values() if other.name.session == origin), ""
            )
            # The one that was read first may be the fork.
            if mark and known.place.foreign_id and await self._is_origin(transcript, origin, units):
                await self._log.append(origin, [_continues(known.place.foreign_id)], source=source.name)
            elif foreign_id and (await self._log.snapshot(origin, limit=1)).info.continues != known.place.foreign_id:
                units.insert(0, _Unit([_continues(foreign_id)]))
        copied_from = await self._leave_out_copied_usage(known, units) if known.place.copied_from else ""
        _end_text(units)
        if closes:
            units.append(_Unit(known.decoder.close("eof")))
        before = 0 if piece.restarted else known.place.last_at
        last_at = _add_times(units, before, transcript.changed_at)
        if not before or any(0 < unit.time <= before for unit in units):
            units = await self._leave_out_pruned(known, units)
        place = Place(
            piece.position,
            mark,
            known.place.foreign_id,
            encode_state(known.decoder, self._log.redactor.mask),
            is_closed=closes,
            copied_from=copied_from,
            last_at=last_at,
        )
        batch: list[_Unit] = []
        count = 0
        for unit in units:
            if batch and count + len(unit.drafts) > MAX_DRAFTS:
                report.events += await self._append(source, transcript, known, batch, None, report)
                batch, count = [], 0
            batch.append(unit)
            count += len(unit.drafts)
        report.events += await self._append(source, transcript, known, batch, place, report)

    async def _append(
        self,
        source: Source,
        transcript: Transcript,
        known: _Open,
        units: list[_Unit],
        place: Place | None,
        report: Report,
    ) -> int:
        """Append the drafts of messages, and store the place after them. A message that is refused becomes raw."""
        while True:
            drafts = [draft for unit in units for draft in unit.drafts]
            write = _UnitWrite(known, [len(unit.drafts) for unit in units], place)
            try:
                done = await self._log.transact_drafts(
                    known.name.session, drafts, write.run, source=source.name, strict=False
                )
            except InvalidInputError as error:
                refused = _unit_at(units, error.position, len(drafts))
                if refused is None:
                    raise
                if refused.drafts and isinstance(refused.drafts[0].event, ev.Raw):
                    report.add_problem(transcript.shown_path, 1, Problem(0, str(error)))
                    refused.drafts = []
                else:
                    raw = ev.Raw(format=source.name, body=refused.message, at=refused.drafts[0].event.at)
                    refused.drafts = [structs.replace(refused.drafts[0], event=raw, parent=None)]
                continue
            break
        if not known.session_number and drafts:
            row = await self._log.store.session(known.name.session)
            known.session_number = row.id if row is not None else 0
        if place is not None:
            known.place = place
            known.record = structs.replace(known.record, version=done.version)
        return done.events


class _Unit(msgspec.Struct):
    """The drafts of one message, which are written together. Those that are known are left out."""

    drafts: list[Draft]
    message: Any = None

    @property
    def time(self) -> int:
        """When the message was written, in ms; 0 for what the importer adds."""
        return self.drafts[0].event.at if self.drafts and self.message is not None else 0


class _Done(msgspec.Struct):
    """The result of a write: how many events are new, and the version of what is stored of the transcript."""

    events: int
    version: int


class _UnitWrite:
    """Writes messages of a transcript that are not known yet. `sizes` are the counts of their drafts."""

    def __init__(self, known: _Open, sizes: Sequence[int], place: Place | None) -> None:
        self._name = known.name
        self._version = known.record.version
        self._session_number = known.session_number
        self._sizes = sizes
        self._place = place

    def run(self, unit: UnitOfWork, drafts: list[Draft], context: WriteContext) -> _Done:
        """Write them in a transaction, unless another process has read the transcript or deleted the session."""
        session, row = self._name.session, unit.session(self._name.session)
        record = unit.conversation(self._name)
        if (record.version if record is not None else 0) != self._version:
            raise _StaleError
        if self._session_number and (row is None or row.id != self._session_number):
            raise _StaleError
        operation: WriteOperation | None = None
        events = start = 0
        for size in self._sizes:
            part = _leave_out_known(drafts[start : start + size], unit, session)
            start += size
            if not part:
                continue
            if operation is None:
                operation = WriteOperation(unit, session, structs.replace(context, ingest_lease=LEASE_S))
            operation.new_key = part[0].key
            events += len(operation.run(part))
        version = self._version
        if self._place is not None:
            change = ConversationChange(state=_encode_place(self._place), drops_inputs=True)
            version = unit.change_conversation(self._name, change)
        return _Done(events, version)


def _continues(foreign_id: str) -> Draft:
    return Draft(ev.SessionInfo(continues=foreign_id), "continues", MARK)


def _leave_out_known(drafts: Sequence[Draft], unit: UnitOfWork, session: str) -> list[Draft]:
    """Return the drafts of a message that are new. A draft without a key belongs to the one with a key before it."""
    new: list[Draft] = []
    is_known = False
    for draft in drafts:
        if draft.key:
            is_known = unit.key(session, draft.key) is not None
        if not is_known:
            new.append(draft)
    return new


def _decode(decoder: Decoder, message: Any) -> _Unit:
    """Return the drafts of a message. One without an id is identified by its content."""
    drafts = decoder.feed(message)
    if drafts and not drafts[0].key:
        digest = codec.digest(msgspec.json.encode(message))
        drafts[0] = structs.replace(drafts[0], key=f"digest.{digest}", mark=MARK)
    return _Unit(drafts, message)


def _end_text(units: Sequence[_Unit]) -> None:
    """End the last text of a piece, unless something after it does: a text in a transcript is complete."""
    for unit in reversed(units):
        for position, draft in reversed(list(enumerate(unit.drafts))):
            event = draft.event
            if isinstance(event, ev.CHUNKS):
                end = ev.MessageEnded(message_id=event.message_id, at=event.at)
                unit.drafts.insert(position + 1, Draft(end))
                return
            if isinstance(event, ENDING_TEXT) or (isinstance(event, ev.SessionInfo) and event.notice is not UNSET):
                return


def _add_times(units: Sequence[_Unit], last_at: int, changed_at: int) -> int:
    """Give drafts without a time that of the draft before them, and return the last time.

    At the start of a transcript it is the first time in it, or if it has none, that of its last change. A time in the
    future is of a wrong clock, and not passed on.
    """
    now = int(time.time() * 1000)
    times = (draft.event.at for unit in units for draft in unit.drafts)
    at = last_at or next((at for at in times if 0 < at <= now), changed_at)
    for unit in units:
        for position, draft in enumerate(unit.drafts):
            if 0 < draft.event.at <= now:
                at = last_at = draft.event.at
            elif at and not draft.event.at:
                unit.drafts[position] = structs.replace(draft, event=structs.replace(draft.event, at=at))
    return last_at


def _new_decoder(source: Source, transcript: Transcript, state: bytes) -> Decoder:
    """Return a decoder that continues from a stored state, or a new one."""
    decoder = registry.decoder(source.name)
    if state:
        try:
            restore_state(decoder, state)
            return decoder
        except StateMismatchError:  # It was stored by another version: facts may be repeated.
            decoder = registry.decoder(source.name)
    for message in source.opening(transcript):
        decoder.feed(message)
    return decoder


def _unit_at(units: Sequence[_Unit], position: int | None, count: int) -> _Unit | None:
    """Return the message of a draft that was refused; None if it is not known which one it is."""
    if position is None or not count:
        return None
    ends = itertools.accumulate(len(unit.drafts) for unit in units)
    return next(unit for unit, end in zip(units, ends, strict=True) if position % count < end)


def _deletion_key(transcript: Transcript, foreign_id: str) -> str:
    """Return by what the ledger knows that the session of a transcript was deleted."""
    return foreign_id or CALLER_PREFIX + transcript.name


def _is_old(transcript: Transcript) -> bool:
    """Return whether what is open in a transcript has ended."""
    return bool(transcript.changed_at) and transcript.changed_at / 1000 < time.time() - ABANDONED_S
