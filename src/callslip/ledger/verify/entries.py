"""Compare the stored entries and the checkpoint with those folded from the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callslip.errors import CorruptDataError
from callslip.ledger import checkpoint
from callslip.ledger.verify.problems import Report, canonical, differences
from callslip.model import codec
from callslip.model.entries import Entry, Message, PermissionRequest, Thought, ToolCall
from callslip.model.records import SessionRecord
from callslip.rules.fold import VERSION, SessionFold
from callslip.store.protocol import Checkpoint, RowCounts, Store

Notes = dict[str, Any]
"""The fields of a finished entry that later events may set."""


class EntryCheck:
    """The stored entries of one session up to its checkpoint. A checkpoint of another version is not compared."""

    def __init__(self, store: Store, session: SessionRecord, report: Report) -> None:
        self.checkpoint: Checkpoint | None = None
        self._store = store
        self._session = session
        self._report = report
        self._is_done = False
        self._count = 0
        self._base_entries: set[int] = set()
        self._notes: dict[int, Notes] = {}
        self._stored_notes: dict[int, Notes] = {}

    async def start(self, state: SessionFold) -> None:
        """Load the checkpoint; `state` is the base of the log."""
        self._base_entries = set(state.entries)
        saved = await self._store.checkpoint(self._session.name)
        if saved is None:
            counts = await self._store.row_counts(self._session.name)
            if counts.entries or counts.texts:
                self._report.add("checkpoint", f"there is none, but {counts.entries} entries and {counts.texts} texts")
        elif saved.version == VERSION:
            self.checkpoint = saved

    async def check_finished(self, state: SessionFold, finished: Iterable[Entry]) -> None:
        """Compare finished entries. Only their notes can still change, and are compared later."""
        if self.checkpoint is None or self._is_done:
            return
        for entry_id, note in state.noted.items():
            self._notes.setdefault(entry_id, {}).update(note)
        state.noted.clear()
        for entry in finished:
            await self._check_entry(entry)

    async def _check_entry(self, entry: Entry) -> None:
        rows = await self._store.entries(self._session.name, entry.id + 1, 1)
        if not rows or rows[0][0] != entry.id:
            self._report.add("entry", f"{entry.id} is not stored")
            return
        self._count += 1
        try:
            stored = checkpoint.read_entry(rows[0][1])
        except CorruptDataError as error:
            self._report.add("entry", f"{entry.id}: {error}")
            return
        _move_notes(stored, self._stored_notes)
        _move_notes(entry, self._notes)
        if type(stored) is not type(entry):
            self._report.add("entry", f"{entry.id} is a {type(stored).__name__}, should be a {type(entry).__name__}")
        elif difference := differences(stored, entry):
            self._report.add("entry", f"{entry.id}: {difference}")

    async def check_checkpoint(self, state: SessionFold) -> None:
        """Compare the checkpoint with the state that was folded up to it."""
        saved = self.checkpoint
        if saved is None or self._is_done:
            return
        self._is_done = True
        if not self._session.pruned_seq <= saved.seq <= self._session.last_seq:
            self._report.add("checkpoint", f"is at {saved.seq}, outside of the log")
            return
        counts = await self._store.row_counts(self._session.name)
        if counts.entries != self._count:
            self._report.add("entry", f"{counts.entries} are stored, but the log gives {self._count}")
        self._check_notes()
        if _normalize(saved.state) != _normalize(checkpoint.encode_state(state)):
            self._report.add("checkpoint", f"the state at {saved.seq} is not what the log gives")
        await self._check_texts(state, counts)

    def _check_notes(self) -> None:
        pruned_seq = self._session.pruned_seq
        notes = {id: note for id, note in self._notes.items() if id > pruned_seq or id in self._base_entries}
        for entry in sorted(notes.keys() | self._stored_notes.keys()):
            note, stored = notes.get(entry, {}), self._stored_notes.get(entry, {})
            for name in sorted(note.keys() | stored.keys()):
                if note.get(name) != stored.get(name):
                    self._report.add("entry", f"{entry}: {name} is {stored.get(name)}, should be {note.get(name)}")

    async def _check_texts(self, state: SessionFold, counts: RowCounts) -> None:
        texts = {key: value for key, text in checkpoint.open_texts(state).items() if (value := text.value())}
        if counts.texts != len(texts):
            self._report.add("checkpoint", f"pieces of {counts.texts} texts are stored, of {len(texts)} should be")
        for (entry, field), value in texts.items():
            if await self._store.pieces(self._session.name, entry, field) != value:
                self._report.add("checkpoint", f"the pieces of {field} of entry {entry} are not what the log gives")


def _move_notes(entry: Entry, notes: dict[int, Notes]) -> None:
    found: Notes = {}
    if isinstance(entry, ToolCall):
        found = {"late": entry.late, "report": entry.report}
        entry.late, entry.report = 0, None
    if isinstance(entry, Message | Thought | ToolCall | PermissionRequest):
        found["parent"] = entry.parent
        entry.parent = ""
    if found := {name: value for name, value in found.items() if value}:
        notes[entry.id] = found


def _normalize(data: bytes) -> bytes:
    """Return a stored state in a form that can be compared; damaged data is returned unchanged."""
    try:
        return canonical(msgspec.json.decode(data))
    except codec.DECODE_ERRORS:
        return data
