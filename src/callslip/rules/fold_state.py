"""The state of a fold: entries, open calls, open requests and streaming texts, and the changes that rules share.

Each change also appends its patch to `out`, unless `out` is None.
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
from callslip.model.ids import CALL
from callslip.rules.streamed_text import Proof, StreamedText, replace_if_cumulative

Out = list[Patch] | None
MAX_PARENTLESS = 5000
"""How many entries may wait for the call of their sub-agent."""
TextKey = tuple[int, str]


class Stream:
    """The message or thought being streamed. `plain` is its event class while its chunks are known to be deltas."""

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
    """The state of a session after its events so far."""

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
        # Only after a resume from a checkpoint: texts whose beginning is stored, changes of stored entries.
        self.headless: dict[TextKey, StreamedText] = {}
        self.noted: dict[int, dict[str, Any]] = {}
        # The entries of sub-agents whose calls are not known yet, by the foreign id that is their parent.
        self.parentless: dict[str, list[int]] = {}

    def snapshot(self) -> Snapshot:
        """Return the whole state with all texts joined."""
        self.render()
        return Snapshot(self.session, self.seq, self.info, list(self.entries.values()))

    def render(self) -> None:
        """Copy each streaming text into its entry."""
        if self.stream is not None:
            self.stream.entry.content = self.stream.text.value()
        for (entry, field), text in self.texts.items():
            setattr(self.entries[entry], field, text.value())

    def take_finished(self) -> list[Entry]:
        """Remove and return the entries that no applied event can change any more."""
        open_ids = {entry.id for entry in self.calls.values()} | {entry.id for entry in self.requests.values()}
        if self.stream is not None:
            open_ids.add(self.stream.entry.id)
        finished = [entry for entry in self.entries.values() if entry.id not in open_ids]
        for entry in finished:
            del self.entries[entry.id]
        return finished


def put_entry(entry: Entry, out: Out) -> None:
    """Append a patch with a copy of the entry."""
    if out is not None:
        out.append(Put(cast(Any, copy(entry))))


def set_fields(entry: Entry, changed: tuple[str, ...] | list[str], out: Out) -> None:
    """Append a patch with the changed fields of an entry."""
    if out is not None and changed:
        out.append(fields_patch(entry, entry.id, changed))


def set_info(state: FoldState, out: Out, *names: str) -> None:
    """Append a patch with the changed fields of the info."""
    if out is not None:
        out.append(fields_patch(state.info, 0, names))


def note_parentless(state: FoldState, parent: str, entry: Entry) -> None:
    """Note that an entry has the foreign id of a sub-agent as its parent, until the call with that id is known.

    Each checkpoint stores these entries, and the call may never come, so only the first ones are noted.
    """
    if sum(map(len, state.parentless.values())) < MAX_PARENTLESS:
        state.parentless.setdefault(parent, []).append(entry.id)


def add_entry(state: FoldState, entry: Entry, out: Out) -> None:
    """RULE 2: add an entry, which ends the streaming text."""
    if state.stream is not None:
        end_text(state, out)
    entry.turn = state.info.turn
    state.entries[entry.id] = entry
    parent = getattr(entry, "parent", "")
    if parent and not CALL.match(parent):
        note_parentless(state, parent, entry)
    if out is not None:
        put_entry(entry, out)


def close_text(state: FoldState, entry: Entry, field: str, text: StreamedText) -> None:
    """Copy a finished text into its entry."""
    setattr(entry, field, text.value())
    if text.missing:
        state.headless[entry.id, field] = text


def end_text(state: FoldState, out: Out) -> None:
    """End the streaming message or thought, if there is one."""
    stream, state.stream = state.stream, None
    if stream is None:
        return
    is_undecided = stream.chunks == "auto" and not state.proven.get((stream.source, stream.kind))
    is_replaced = is_undecided and replace_if_cumulative(stream.text)
    close_text(state, stream.entry, "content", stream.text)
    stream.entry.streaming = False
    if is_replaced:
        put_entry(stream.entry, out)
    elif out is not None:
        out.append(Set(stream.entry.id, {"streaming": None}))
