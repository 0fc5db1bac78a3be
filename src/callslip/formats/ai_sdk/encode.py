"""The AI SDK 6 stream of one turn, made from the fold: each event's patches become the chunks that say the same.

A stream is a replay of the turn as it stands (`opening`) and then what every event changes (`feed`). What version 6
cannot take back makes a `Restart`: the connection ends, and the next one begins with a replay.
"""

from __future__ import annotations

import msgspec

from callslip import codec
from callslip import events as ev
from callslip.entries import Append, Entry, Message, Patch, Put, Thought, ToolCall
from callslip.events import Event
from callslip.fold import State
from callslip.formats.ai_sdk import wire
from callslip.formats.ai_sdk.messages import Steps, turn_message_id
from callslip.formats.ai_sdk.parts import SHOWN, call_part, is_open, is_shown, part_of, text_id, text_kind
from callslip.formats.ai_sdk.wire import Chunk, Part


class Restart(msgspec.Struct, frozen=True):
    """The client cannot be told: send `chunks`, end the connection, and replay to whoever comes back."""

    reason: str
    chunks: tuple[Chunk, ...] = (wire.RESTART,)


class _Unsayable(Exception):
    """Version 6 has no chunk for this."""


class StreamEncoder:
    """One turn: the named one, or the open one, or the last one, or the first that begins.

    `state` is where the session stands now, with every entry of the turn; the encoder folds on from there. With a
    state, `opening` comes first.
    """

    def __init__(self, state: State | None = None, turn: str = "") -> None:
        self.state = state if state is not None else State()
        self.turn = turn or self.state.info.turn or _last_turn(self.state)
        self.finished = False
        self._begun = bool(self.turn) and (
            self.turn == self.state.info.turn or any(entry.turn == self.turn for entry in self.state.entries.values())
        )
        self._reason = ""
        self._forget()
        self._lost = self.state.seq > 0  # whatever happened so far has to be replayed first

    def _forget(self) -> None:
        """Nothing was sent yet."""
        self._started = False
        self._steps = Steps()
        self._texts: dict[int, Message | Thought] = {}
        self._calls: dict[int, Part] = {}
        self._open: set[int] = set()
        self._lost = False

    def opening(self) -> list[Chunk]:
        """The turn as it stands, from its start."""
        self._forget()
        self.state.render()
        entries = [entry for entry in self.state.entries.values() if self._is_ours(entry)]
        chunks = [chunk for entry in entries for chunk in self._begin(entry, replay=True)]
        self.finished = False
        return chunks + self._ending()

    def feed(self, event: Event) -> list[Chunk] | Restart:
        """What an event changes in the message; nothing for most events of other turns."""
        patches = self.state.apply(event)
        if isinstance(event, ev.TurnStarted | ev.TurnEnded) and event.verdict == "applied":
            self._turn(event)
        if self._lost:
            return Restart("the turn was not replayed")
        try:
            chunks = [chunk for patch in patches for chunk in self._tell(patch)]
            if chunks and self.finished:
                raise _Unsayable("the turn went on after its end")
        except _Unsayable as error:
            self._lost = True
            return Restart(str(error))
        return chunks + self._ending()

    def close(self, reason: str) -> list[Chunk]:
        """The stream ends before its turn does."""
        if self.finished:
            return []
        self.finished = True
        return [wire.abort(reason)]

    def _turn(self, event: ev.TurnStarted | ev.TurnEnded) -> None:
        self.turn = self.turn or event.turn
        if event.turn == self.turn:
            self._begun = True
            self._reason = event.reason if isinstance(event, ev.TurnEnded) else ""

    def _ending(self) -> list[Chunk]:
        """The last chunks, once the turn has ended and so have its calls."""
        if self.finished or not self._begun or self.state.info.turn == self.turn or self._open:
            return []
        self.finished = True
        return [*([wire.FINISH_STEP] if self._started else []), wire.finish(self._reason)]

    def _is_ours(self, entry: Entry) -> bool:
        return bool(self.turn) and entry.turn == self.turn and is_shown(entry)

    # Patches

    def _tell(self, patch: Patch) -> list[Chunk]:
        if isinstance(patch, Put):
            return self._put(patch)
        if isinstance(patch, Append):
            return self._append(patch)
        if patch.id in self._texts and "streaming" in patch.fields:
            entry = self._texts.pop(patch.id)
            return [wire.text(text_kind(entry), "end", text_id(entry))]
        if patch.id in self._calls and not SHOWN.isdisjoint(patch.fields):
            return self._update(patch.id)
        return []

    def _put(self, patch: Put) -> list[Chunk]:
        if patch.entry.id in self._texts:
            raise _Unsayable("a text was repaired")
        return self._begin(self.state.entries[patch.entry.id]) if self._is_ours(patch.entry) else []

    def _append(self, patch: Append) -> list[Chunk]:
        if patch.field == "content" and patch.id in self._texts:
            entry = self._texts[patch.id]
            return [wire.text(text_kind(entry), "delta", text_id(entry), delta=patch.text)]
        if patch.field == "inputText" and patch.id in self._calls:
            sent = self._calls[patch.id]
            if sent["state"] == "input-streaming":
                return [wire.input_delta(sent, patch.text)]
            return self._update(patch.id)
        return []

    # Parts

    def _begin(self, entry: Entry, replay: bool = False) -> list[Chunk]:
        """A new part, and the step before it if it begins one. Live, its text comes with the patches that follow."""
        chunks: list[Chunk] = [] if self._started else [wire.start(turn_message_id(self.turn))]
        if self._steps.begins_with(entry):
            chunks += [wire.FINISH_STEP, wire.START_STEP] if self._started else [wire.START_STEP]
        self._started = True
        if isinstance(entry, ToolCall):
            return chunks + self._begin_call(entry, replay)
        if isinstance(entry, Message | Thought):
            return chunks + self._begin_text(entry, replay)
        return [*chunks, part_of(entry)]  # a data part is its own chunk

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
        part = self._part(entry)
        self._keep(entry, part)
        return _chunks(part, replay)

    def _update(self, identity: int) -> list[Chunk]:
        """How a call stands now, told to a client that saw how it stood."""
        entry = self.state.entries[identity]
        assert isinstance(entry, ToolCall)
        before, now = self._calls[identity], self._part(entry)
        self._keep(entry, now)
        chunks = _changes(before, now)
        if any(chunk["type"].startswith("tool-input") for chunk in chunks) and identity not in self._steps.entries:
            raise _Unsayable("a call of an earlier step was changed")
        return chunks

    def _part(self, entry: ToolCall) -> Part:
        text = self.state.texts.get((entry.id, "input_text"))
        return call_part(entry, text.value() if text else entry.input_text, self.state.requests.get(entry.approval))

    def _keep(self, entry: ToolCall, part: Part) -> None:
        self._calls[entry.id] = part
        (self._open.add if is_open(entry) else self._open.discard)(entry.id)


def _last_turn(state: State) -> str:
    return next((entry.turn for entry in reversed(state.entries.values()) if entry.turn), "")


def stream(state: State, turn: str = "") -> list[Chunk]:
    """The stream of a turn, as far as it has come."""
    return StreamEncoder(state, turn).opening()


# Chunks of one call


def _chunks(part: Part, replay: bool) -> list[Chunk]:
    """All that makes the part, from nothing or from any other state of it."""
    if part["state"] == "input-streaming":
        text = part.get("rawInput", "") if replay else ""
        return [wire.input_start(part), *([wire.input_delta(part, text)] if text else [])]
    return [wire.input_available(part), *_outcome(part)]


def _outcome(part: Part) -> list[Chunk]:
    if part["state"] == "approval-requested":
        return [wire.approval_request(part)]
    return [wire.output(part)] if part["state"].startswith("output") else []


def _changes(before: Part, now: Part) -> list[Chunk]:
    """What turns one part into the other. An approval and a title stay with a part for good."""
    if "approval" in before and "approval" not in now:
        raise _Unsayable("a request for approval was closed")
    if "title" in before and "title" not in now:
        raise _Unsayable("a title was taken away")
    if _same(before, now, *before, *now):
        return []
    known = before["state"] == "input-available" and _same(before, now, "toolName", "title", "input")
    if known and now["state"].startswith("output"):
        return [wire.output(now)]
    if before["state"] == now["state"] == "input-streaming" and _same(before, now, "toolName", "title", "toolMetadata"):
        return []
    return _chunks(now, replay=True)


def _same(before: Part, now: Part, *names: str) -> bool:
    """Equal as JSON: to Python 1 and True are equal too."""
    return all((name in before) == (name in now) for name in names) and codec.encode(
        [before.get(name) for name in names]
    ) == codec.encode([now.get(name) for name in names])
