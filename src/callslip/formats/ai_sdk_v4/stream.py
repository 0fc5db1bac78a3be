"""The AI SDK 4 data stream of one turn, made from the fold: each event's patches become the lines that say the same.

A stream is a replay of the turn as it stands (`opening`) and then what every event changes (`feed`). What the client
cannot take back makes a `Restart`: a text that was repaired, an annotation that has changed. A page that comes back
must leave the turn's message out of the messages that it begins with, or the client adds the replay to it.
"""

from __future__ import annotations

from typing import cast

from callslip.formats.ai_sdk_v4 import chunks
from callslip.formats.ai_sdk_v4.calls import PARTIAL, Annotation, invocation, note_of
from callslip.formats.ai_sdk_v4.chunks import Chunk
from callslip.formats.ai_sdk_v4.encode import Shown, Steps, call_notes, is_shown
from callslip.formats.ai_sdk_v4.messages import Invocation, MessageNote
from callslip.formats.base import Restart, Streaming
from callslip.formats.outcome import is_open
from callslip.formats.turn_scope import Turn, Unsayable, message_id
from callslip.model import codec
from callslip.model.entries import Append, Patch, PermissionRequest, Put, Thought, ToolCall
from callslip.model.entries import Message as Spoken
from callslip.model.events import Event
from callslip.rules.fold import SessionFold

# What a change of a call must touch to change what is shown of it.
RENDERED_FIELDS = frozenset({"status", "toolName", "kind", "rawInput", "approval"})


class DataStreamEncoder:
    """One turn, as `formats.turn.Turn` chooses it. With a state, `opening` comes first."""

    def __init__(self, state: SessionFold | None = None, turn: str = "") -> None:
        self._turn = Turn(state, turn)
        self.finished = False
        self._forget()

    def _forget(self) -> None:
        """Nothing was sent yet. What was is kept of texts being written and of calls that may still change."""
        self._steps = Steps()
        self._texts: dict[int, Spoken | Thought] = {}
        self._calls: dict[int, Invocation] = {}
        self._open: set[int] = set()
        self._asked: dict[str, PermissionRequest] = {}
        self._noted: dict[int, Annotation] = {}

    @property
    def turn(self) -> str:
        """The turn that is told; "" until one begins."""
        return self._turn.name

    def opening(self) -> list[Chunk]:
        """The turn as it stands, from its start."""
        self._forget()
        self.finished = self._turn.lost = False
        entries = self._turn.entries()
        self._asked = {entry.request_id: entry for entry in entries if isinstance(entry, PermissionRequest)}
        shown = [cast(Shown, entry) for entry in entries if is_shown(entry)]
        said = [chunk for entry in shown for chunk in self._begin(entry, replay=True)]
        return said + self._notes(shown) + self._ending()

    def feed(self, event: Event) -> list[Chunk] | Restart:
        """What an event changes in the message; nothing for most events of other turns."""
        try:
            return self._turn.tell(event, self._tell, self.finished) + self._ending()
        except Unsayable as reason:
            # To a client that has no message yet any other chunk would make one.
            return Restart(str(reason), (chunks.RESTART,) if self._steps.number >= 0 else ())

    def close(self, reason: str) -> list[Chunk]:
        """The stream ends before its turn does: the client is in error, and keeps what it has."""
        if self.finished:
            return []
        self.finished = True
        return [chunks.error(reason)]

    def _ending(self) -> list[Chunk]:
        """The last chunks, once the turn has ended and so have its calls."""
        if self.finished or not self._turn.ended or self._open:
            return []
        self.finished = True
        last = [chunks.finish(self._turn.reason)]
        if self._steps.number < 0:
            return last
        note = MessageNote(message_id(self.turn), True)
        return [*chunks.noted([note]), chunks.step_end(self._steps.called), *last]

    # Patches

    def _tell(self, patch: Patch) -> list[Chunk]:
        if isinstance(patch, Put):
            return self._put(patch)
        if isinstance(patch, Append):
            known = self._texts.get(patch.id) if patch.field == "content" else None
            return [chunks.text(known, patch.text)] if known else []
        if patch.id in self._texts and "streaming" in patch.fields:
            del self._texts[patch.id]
        if patch.id in self._calls and not RENDERED_FIELDS.isdisjoint(patch.fields):
            return self._update(patch.id)
        return []

    def _put(self, patch: Put) -> list[Chunk]:
        if patch.entry.id in self._texts:
            raise Unsayable("a text was repaired")
        entry = self._turn.state.entries[patch.entry.id]
        if not self._turn.owns(entry) or not is_shown(entry):
            return []
        said = self._begin(cast(Shown, entry))
        return said + self._note(entry) if isinstance(entry, ToolCall) else said

    # Parts

    def _begin(self, entry: Shown, replay: bool = False) -> list[Chunk]:
        """A new part, and the step before it if it begins one. Live, its text comes with the patches that follow."""
        called = self._steps.called
        said: list[Chunk] = []
        if self._steps.begins_with(entry):
            said = [chunks.step_end(called)] if self._steps.number else []
            said.append(chunks.step_start(message_id(self.turn)))
        if isinstance(entry, ToolCall):
            return said + self._change(entry, None, invocation(entry, self._steps.number))
        if entry.streaming:
            self._texts[entry.id] = entry
        return [*said, chunks.text(entry, entry.content)] if replay and entry.content else said

    def _update(self, identity: int) -> list[Chunk]:
        """How a call stands now, told to a client that saw how it stood."""
        entry, before = cast(ToolCall, self._turn.state.entries[identity]), self._calls[identity]
        return self._change(entry, before, invocation(entry, before.step)) + self._note(entry)

    def _change(self, entry: ToolCall, before: Invocation | None, now: Invocation) -> list[Chunk]:
        self._calls[entry.id] = now
        (self._open.add if is_open(entry) else self._open.discard)(entry.id)
        if now.state == "result" and entry.scope != "detached":
            del self._calls[entry.id]  # no event changes it any more
        return _changes(before, now, self._steps.number)

    # Annotations

    def _notes(self, entries: list[Shown]) -> list[Chunk]:
        """Those that there are, when nothing was said of them yet."""
        told = call_notes(entries, self._asked)
        self._noted = {note.entry: note for note in told}
        return chunks.noted(note.note for note in told)

    def _note(self, entry: ToolCall) -> list[Chunk]:
        """What is new of one call. The client only ever adds, so none that it has may change."""
        before, now = self._noted.get(entry.id), note_of(entry, self._request(entry))
        if before == now:
            return []
        if before is not None or now is None:
            raise Unsayable("a request for approval was closed")
        self._noted[entry.id] = now
        return chunks.noted([now.note])

    def _request(self, call: ToolCall) -> PermissionRequest | None:
        """What was asked in this turn about a call: it stays the last when it is answered."""
        pending = self._turn.state.requests.get(call.approval)
        if pending is not None and self._turn.owns(pending):
            self._asked[call.approval] = pending
        return self._asked.get(call.approval)


def _changes(before: Invocation | None, now: Invocation, step: int) -> list[Chunk]:
    """What turns the client's idea of a call into another."""
    if before is not None and codec.encode(before) == codec.encode(now):
        return []
    started = [] if before else [chunks.call_start(now)]
    if now.state == PARTIAL:
        if before:
            raise Unsayable("a call was changed before its arguments came")
        return started
    if before and before.state == "result":
        return [chunks.correction(now)]
    known = before and _asked(before) == _asked(now)
    called = [] if known else [chunks.call(now, step)]
    return [*started, *called, *([chunks.result(now)] if now.state == "result" else [])]


def _asked(call: Invocation) -> bytes:
    """What a call asks for, to be compared as JSON: to Python 1 and True are equal too."""
    return codec.encode([call.tool_name, None if call.state == PARTIAL else [call.args]])


STREAM = Streaming(encoder=DataStreamEncoder, frame=chunks.frame, headers=chunks.HEADERS, alive=b"\n", events=False)
