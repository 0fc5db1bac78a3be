"""Entries and the checkpoint: folded again from the log, and compared with what is stored."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from callslip.errors import CorruptDataError
from callslip.ledger import checkpoint
from callslip.ledger.verify.problems import Report, canonical, differences
from callslip.model import codec
from callslip.model.entries import Entry, ToolCall
from callslip.model.records import SessionRecord
from callslip.rules.fold import VERSION, SessionFold
from callslip.store.protocol import Checkpoint, RowCounts, Store


class Entries:
    """The stored entries of one session, up to its checkpoint `at`. One that another version made is not looked at."""

    def __init__(self, store: Store, row: SessionRecord, report: Report) -> None:
        self.at: Checkpoint | None = None
        self._store = store
        self._row = row
        self._report = report
        self._reached = False
        self._count = 0
        self._older: set[int] = set()
        self._notes: dict[int, int] = {}
        self._kept_notes: dict[int, int] = {}

    async def begin(self, state: SessionFold) -> None:
        """Find the checkpoint; `state` is what the kept log begins with."""
        self._older = set(state.entries)
        at = await self._store.checkpoint(self._row.name)
        if at is None:
            await self._nothing()
        elif at.version == VERSION:
            self.at = at

    async def _nothing(self) -> None:
        tally = await self._store.row_counts(self._row.name)
        if tally.entries or tally.texts:
            self._report.add("checkpoint", f"there is none, but {tally.entries} entries and {tally.texts} texts")

    async def settle(self, state: SessionFold, finished: Iterable[Entry]) -> None:
        """Compare entries that nothing changes any more, but for the note that something came too late."""
        if self.at is None or self._reached:
            return
        for identity, note in state.noted.items():
            self._notes[identity] = note["late"]
        state.noted.clear()
        for entry in finished:
            await self._entry(entry)

    async def _entry(self, entry: Entry) -> None:
        rows = await self._store.entries(self._row.name, entry.id + 1, 1)
        if not rows or rows[0][0] != entry.id:
            self._report.add("entry", f"{entry.id} is not stored")
            return
        self._count += 1
        try:
            kept = checkpoint.read_entry(rows[0][1])
        except CorruptDataError as error:
            self._report.add("entry", f"{entry.id}: {error}")
            return
        _put_aside(kept, self._kept_notes)
        _put_aside(entry, self._notes)
        if type(kept) is not type(entry):
            self._report.add("entry", f"{entry.id} is a {type(kept).__name__}, should be a {type(entry).__name__}")
        elif wrong := differences(kept, entry):
            self._report.add("entry", f"{entry.id}: {wrong}")

    async def reach(self, state: SessionFold) -> None:
        """Here the log is as far as the checkpoint: what is stored is finished now, and the rest is the state."""
        at = self.at
        if at is None or self._reached:
            return
        self._reached = True
        if not self._row.pruned_seq <= at.seq <= self._row.last_seq:
            self._report.add("checkpoint", f"stands at {at.seq}, outside of the log")
            return
        tally = await self._store.row_counts(self._row.name)
        if tally.entries != self._count:
            self._report.add("entry", f"{tally.entries} are stored, but the log leads to {self._count} of them")
        self._compare_notes()
        if _read(at.state) != _read(checkpoint.encode_state(state)):
            self._report.add("checkpoint", f"the state at {at.seq} is not what the log gives")
        await self._texts(state, tally)

    def _compare_notes(self) -> None:
        low, kept = self._row.pruned_seq, self._kept_notes
        notes = {entry: late for entry, late in self._notes.items() if entry > low or entry in self._older}
        for entry in sorted(notes.keys() | kept.keys()):
            if notes.get(entry) != kept.get(entry):
                self._report.add("entry", f"{entry}: late is {kept.get(entry)}, should be {notes.get(entry)}")

    async def _texts(self, state: SessionFold, tally: RowCounts) -> None:
        texts = {key: value for key, text in checkpoint.open_texts(state).items() if (value := text.value())}
        if tally.texts != len(texts):
            self._report.add("checkpoint", f"pieces of {tally.texts} texts are stored, of {len(texts)} should be")
        for (entry, field), value in texts.items():
            if await self._store.pieces(self._row.name, entry, field) != value:
                self._report.add("checkpoint", f"the pieces of {field} of entry {entry} are not what the log gives")


def _put_aside(entry: Entry, notes: dict[int, int]) -> None:
    if isinstance(entry, ToolCall) and entry.late:
        notes[entry.id], entry.late = entry.late, 0


def _read(data: bytes) -> bytes:
    """A stored state in a form that can be compared; damage reads as itself."""
    try:
        return canonical(msgspec.json.decode(data))
    except codec.DECODE_ERRORS:
        return data
