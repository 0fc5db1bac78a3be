"""The board that the rules of `fold.py` write on: entries, open calls, open requests, and the texts being written.

Here are only the moves that several rules share; each tells the patch it amounts to when patches are asked for.
"""

from __future__ import annotations

from copy import copy
from typing import Any, cast

from callslip.model import events as ev
from callslip.model.entries import (
    Entry,
    Info,
    Message,
    Patch,
    PermissionRequest,
    Put,
    Set,
    Snapshot,
    Thought,
    ToolCall,
    fields_patch,
)
from callslip.model.events import Event
from callslip.rules.streamed_text import Proof, StreamedText, settle

Out = list[Patch] | None
TextKey = tuple[int, str]


class Stream:
    """The one message or thought being written. `plain` is its event class while its chunks are sure to be deltas."""

    __slots__ = ("chunks", "cls", "entry", "kind", "message_id", "plain", "source", "text")

    def __init__(self, entry: Message | Thought, cls: type[Event], source: str, chunks: str) -> None:
        self.entry = entry
        self.cls = cls
        self.kind = "message" if cls is ev.MessageDelta else "thought"
        self.message_id = entry.message_id
        self.source = source
        self.chunks = chunks
        self.text = StreamedText()
        self.plain: type[Event] | None = None


class FoldState:
    """A session as its events so far have made it."""

    def __init__(self, session: str = "") -> None:
        self.session = session
        self.seq = 0
        self.info = Info()
        self.entries: dict[int, Entry] = {}
        self.calls: dict[str, ToolCall] = {}
        self.requests: dict[str, PermissionRequest] = {}
        self.stream: Stream | None = None
        self.texts: dict[TextKey, StreamedText] = {}
        self.proven: dict[tuple[str, str], Proof] = {}
        # Only a state resumed from a checkpoint has these: texts whose beginning is stored, notes on stored entries.
        self.headless: dict[TextKey, StreamedText] = {}
        self.noted: dict[int, dict[str, Any]] = {}

    def snapshot(self) -> Snapshot:
        """The whole state, rendered."""
        self.render()
        return Snapshot(self.session, self.seq, self.info, list(self.entries.values()))

    def render(self) -> None:
        """Join every text that is still being written into its entry."""
        if self.stream is not None:
            self.stream.entry.content = self.stream.text.value()
        for (entry, field), text in self.texts.items():
            setattr(self.entries[entry], field, text.value())

    def finished(self) -> list[Entry]:
        """Take out the entries that no applied event can change any more."""
        busy = {entry.id for entry in self.calls.values()} | {entry.id for entry in self.requests.values()}
        if self.stream is not None:
            busy.add(self.stream.entry.id)
        done = [entry for entry in self.entries.values() if entry.id not in busy]
        for entry in done:
            del self.entries[entry.id]
        return done


def put(entry: Entry, out: Out) -> None:
    if out is not None:
        out.append(Put(cast(Any, copy(entry))))


def set_fields(entry: Entry, changed: tuple[str, ...] | list[str], out: Out) -> None:
    if out is not None and changed:
        out.append(fields_patch(entry, entry.id, changed))


def set_info(state: FoldState, out: Out, *names: str) -> None:
    if out is not None:
        out.append(fields_patch(state.info, 0, names))


def make(state: FoldState, entry: Entry, out: Out) -> None:
    """A new entry ends the text that was being written. RULE 2"""
    if state.stream is not None:
        end_text(state, out)
    entry.turn = state.info.turn
    state.entries[entry.id] = entry
    if out is not None:
        put(entry, out)


def close_text(state: FoldState, entry: Entry, field: str, text: StreamedText) -> None:
    setattr(entry, field, text.value())
    if text.missing:
        state.headless[entry.id, field] = text


def end_text(state: FoldState, out: Out) -> None:
    stream, state.stream = state.stream, None
    if stream is None:
        return
    undecided = stream.chunks == "auto" and not state.proven.get((stream.source, stream.kind))
    repaired = undecided and settle(stream.text)
    close_text(state, stream.entry, "content", stream.text)
    stream.entry.streaming = False
    if repaired:
        put(stream.entry, out)
    elif out is not None:
        out.append(Set(stream.entry.id, {"streaming": None}))
