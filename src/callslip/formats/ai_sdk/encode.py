"""The UI message stream of one turn, made from the fold: each event's patches become the chunks that say the same.

A stream is a replay of the turn as it stands (`opening`) and then what every event changes (`feed`). What a client
cannot be told to take back makes a `Restart`: the connection ends, and the next one begins with a replay.
"""

from __future__ import annotations

from callslip.formats.ai_sdk import changes, wire
from callslip.formats.ai_sdk.calls import RENDERED_FIELDS, call_part, may_change
from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.messages import Steps
from callslip.formats.ai_sdk.parts import is_shown, part_of, text_id, text_kind
from callslip.formats.ai_sdk.wire import Chunk, Part
from callslip.formats.base import Restart
from callslip.formats.outcome import is_open
from callslip.formats.turn_scope import Turn, Unsayable, message_id
from callslip.model.entries import Append, Entry, Message, Patch, PermissionRequest, Put, Set, Thought, ToolCall
from callslip.model.events import Event
from callslip.rules.fold import SessionFold

FAREWELL = (wire.RESTART,)


class StreamEncoder:
    """One turn, in one dialect. `state` is where the session stands now, with every entry of the turn.

    With a state, `opening` comes first.
    """

    def __init__(self, dialect: Dialect, state: SessionFold | None = None, turn: str = "") -> None:
        self.turn = Turn(state, turn)
        self.finished = False
        self._dialect = dialect
        self._forget()

    def _forget(self) -> None:
        """Nothing was sent yet."""
        self._started = False
        self._steps = Steps()
        self._texts: dict[int, Message | Thought] = {}
        self._calls: dict[int, Part] = {}
        self._open: set[int] = set()
        self._requests: dict[str, PermissionRequest] = {}

    def opening(self) -> list[Chunk]:
        """The turn as it stands, from its start."""
        self._forget()
        self.turn.lost = False
        entries = self.turn.entries()
        self._requests = {entry.request_id: entry for entry in entries if isinstance(entry, PermissionRequest)}
        shown = [entry for entry in entries if is_shown(self._dialect, entry)]
        chunks = [chunk for entry in shown for chunk in self._begin(entry, replay=True)]
        self.finished = False
        return chunks + self._ending()

    def feed(self, event: Event) -> list[Chunk] | Restart:
        """What an event changes in the message; nothing for most events of other turns."""
        try:
            return self.turn.tell(event, self._tell, self.finished) + self._ending()
        except Unsayable as error:
            return Restart(str(error), FAREWELL)

    def close(self, reason: str) -> list[Chunk]:
        """The stream ends before its turn does."""
        if self.finished:
            return []
        self.finished = True
        return [wire.abort(reason if self._dialect.reasons else "")]

    def _ending(self) -> list[Chunk]:
        """The last chunks, once the turn has ended and so have its calls."""
        if self.finished or self._open or not self.turn.ended:
            return []
        self.finished = True
        last = wire.finish(self.turn.reason if self._dialect.reasons else "")
        return [wire.FINISH_STEP, last] if self._started else [last]

    # Patches

    def _tell(self, patch: Patch) -> list[Chunk]:
        if isinstance(patch, Put):
            return self._put(patch)
        return self._append(patch) if isinstance(patch, Append) else self._set(patch)

    def _put(self, patch: Put) -> list[Chunk]:
        if patch.entry.id in self._texts:
            raise Unsayable("a text was repaired")
        if not (self.turn.owns(patch.entry) and is_shown(self._dialect, patch.entry)):
            return []
        return self._begin(self.turn.state.entries[patch.entry.id])

    def _append(self, patch: Append) -> list[Chunk]:
        if patch.field == "content" and patch.id in self._texts:
            entry = self._texts[patch.id]
            return [wire.text(text_kind(entry), "delta", text_id(entry), delta=patch.text)]
        if patch.field == "inputText" and patch.id in self._calls:
            return self._more_input(patch)
        return []

    def _more_input(self, patch: Append) -> list[Chunk]:
        sent, entry = self._calls[patch.id], self.turn.state.entries[patch.id]
        if sent["state"] == "input-streaming":
            return [wire.input_delta(sent, patch.text)] if self._dialect.pieces else []
        assert isinstance(entry, ToolCall)
        return self._update(patch.id) if may_change(sent, entry, patch.text) else []

    def _set(self, patch: Set) -> list[Chunk]:
        if patch.id in self._texts and "streaming" in patch.fields:
            entry = self._texts.pop(patch.id)
            return [wire.text(text_kind(entry), "end", text_id(entry))]
        if patch.id in self._calls and not RENDERED_FIELDS.isdisjoint(patch.fields):
            return self._update(patch.id)
        if self._dialect.requests == "apart" and "state" in patch.fields:
            return self._answered(self.turn.state.entries.get(patch.id))
        return []

    def _answered(self, entry: Entry | None) -> list[Chunk]:
        """A request that is a data part: the client puts the new one in the place of the old one."""
        if not isinstance(entry, PermissionRequest) or not self.turn.owns(entry):
            return []
        return [part_of(self._dialect, entry)]

    # Parts

    def _begin(self, entry: Entry, replay: bool = False) -> list[Chunk]:
        """A new part, and the step before it if it begins one. Live, its text comes with the patches that follow."""
        chunks: list[Chunk] = [] if self._started else [wire.start(message_id(self.turn.name))]
        if self._steps.begins_with(entry):
            chunks += [wire.FINISH_STEP, wire.START_STEP] if self._started else [wire.START_STEP]
        self._started = True
        if isinstance(entry, ToolCall):
            return chunks + self._begin_call(entry, replay)
        if isinstance(entry, Message | Thought):
            return chunks + self._begin_text(entry, replay)
        return [*chunks, part_of(self._dialect, entry)]  # a data part is its own chunk

    def _begin_text(self, entry: Message | Thought, replay: bool) -> list[Chunk]:
        kind, identity = text_kind(entry), text_id(entry)
        chunks = [wire.text(kind, "start", identity)]
        if replay and entry.content:
            chunks.append(wire.text(kind, "delta", identity, delta=entry.content))
        if entry.streaming:
            self._texts[entry.id] = entry
            return chunks
        return [*chunks, wire.text(kind, "end", identity)]

    def _begin_call(self, entry: ToolCall, replay: bool) -> list[Chunk]:
        part = self._keep(entry)
        return changes.whole(part, {}) if replay else changes.begin(part)

    def _update(self, identity: int) -> list[Chunk]:
        """How a call stands now, told to a client that saw how it stood."""
        entry = self.turn.state.entries[identity]
        assert isinstance(entry, ToolCall)
        chunks = changes.changes(self._calls[identity], self._keep(entry))
        if any(chunk["type"].startswith("tool-input") for chunk in chunks) and identity not in self._steps.entries:
            raise Unsayable("a call of an earlier step was changed")
        return chunks

    def _keep(self, entry: ToolCall) -> Part:
        """The part of a call as it stands; from here on that is what the client has."""
        text = self.turn.state.texts.get((entry.id, "input_text"))
        part = call_part(self._dialect, entry, text.value() if text else entry.input_text, self._asked(entry))
        self._calls[entry.id] = part
        (self._open.add if is_open(entry) else self._open.discard)(entry.id)
        return part

    def _asked(self, call: ToolCall) -> PermissionRequest | None:
        """The last request about a call, which stays the last when it is answered."""
        pending = self.turn.state.requests.get(call.approval)
        if pending is not None and self.turn.owns(pending):
            self._requests[call.approval] = pending
        return self._requests.get(call.approval)
