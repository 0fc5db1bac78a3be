"""The AI SDK 4 data stream of one turn, made from the fold: each event's patches become the lines that say the same.

A stream is a replay of the turn as it stands (`opening`) and then what every event changes (`feed`). What the client
cannot take back makes a `Restart`: a text that was repaired, an annotation that has changed. A page that comes back
must leave the turn's message out of the messages that it begins with, or the client adds the replay to it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import cast

from callslip.formats.ai_sdk_v4 import chunks
from callslip.formats.ai_sdk_v4.calls import PARTIAL, Annotation, invocation, note_of
from callslip.formats.ai_sdk_v4.chunks import Chunk
from callslip.formats.ai_sdk_v4.encode import Shown, Steps, call_notes, is_shown
from callslip.formats.ai_sdk_v4.messages import Invocation, MessageNote
from callslip.formats.base import Streaming
from callslip.formats.turn_scope import message_id
from callslip.formats.turn_stream import RestartNeeded, TurnStream
from callslip.model import codec
from callslip.model.entries import Append, Entry, Set, Thought, ToolCall
from callslip.model.entries import Message as Spoken

# What a change of a call must touch to change what is shown of it.
RENDERED_FIELDS = frozenset({"status", "toolName", "kind", "rawInput", "approval"})


class DataStreamRenderer:
    """Render a turn as lines of the data stream."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._steps = Steps()
        self._noted: dict[int, Annotation] = {}

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        said = self._stream.begin_all(entries)
        notes = call_notes(entries, self._stream.requests)
        self._noted = {note.entry: note for note in notes}
        return said + chunks.noted(note.note for note in notes)

    def begin(self, entry: Entry) -> list[Chunk]:
        if not is_shown(entry):
            return []
        called = self._steps.called
        said: list[Chunk] = []
        if self._steps.begins_with(cast(Shown, entry)):
            said = [chunks.step_end(called)] if self._steps.number else []
            said.append(chunks.step_start(message_id(self._stream.turn.name)))
        if isinstance(entry, Spoken | Thought) and self._stream.is_replay and entry.content:
            said.append(chunks.text(entry, entry.content))
        return said

    def append_text(self, entry: Spoken | Thought, text: str) -> list[Chunk]:
        return [chunks.text(entry, text)]

    def end_text(self, entry: Spoken | Thought) -> list[Chunk]:
        return []

    def render_call(
        self, entry: ToolCall, sent: Invocation | None, changed: Collection[str]
    ) -> tuple[Invocation | None, list[Chunk]]:
        call = invocation(entry, sent.step if sent else self._steps.number)
        said = _changes(sent, call, self._steps.number)
        if not self._stream.is_replay:
            said += self._note(entry)
        return None if call.state == "result" and entry.scope != "detached" else call, said

    def _note(self, entry: ToolCall) -> list[Chunk]:
        """What is new of one call. The client only ever adds, so none that it has may change."""
        before, now = self._noted.get(entry.id), note_of(entry, self._stream.request_of(entry))
        if before == now:
            return []
        if before is not None or now is None:
            raise RestartNeeded("a request for approval was closed")
        self._noted[entry.id] = now
        return chunks.noted([now.note])

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        return []

    def finish(self, is_over: bool) -> list[Chunk]:
        if not is_over:
            return []
        turn = self._stream.turn
        last = [chunks.finish(turn.reason)]
        if self._steps.number < 0:
            return last
        note = MessageNote(message_id(turn.name), True)
        return [*chunks.noted([note]), chunks.step_end(self._steps.called), *last]

    def close(self, reason: str) -> list[Chunk]:
        """The client is in error, and keeps what it has."""
        return [chunks.error(reason)]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        # To a client that has no message yet any other chunk would make one.
        return (chunks.RESTART,) if self._steps.number >= 0 else ()


def _changes(before: Invocation | None, now: Invocation, step: int) -> list[Chunk]:
    """What turns the client's idea of a call into another."""
    if before is not None and codec.encode(before) == codec.encode(now):
        return []
    started = [] if before else [chunks.call_start(now)]
    if now.state == PARTIAL:
        if before:
            raise RestartNeeded("a call was changed before its arguments came")
        return started
    if before and before.state == "result":
        return [chunks.correction(now)]
    known = before and _asked(before) == _asked(now)
    called = [] if known else [chunks.call(now, step)]
    return [*started, *called, *([chunks.result(now)] if now.state == "result" else [])]


def _asked(call: Invocation) -> bytes:
    """What a call asks for, to be compared as JSON: to Python 1 and True are equal too."""
    return codec.encode([call.tool_name, None if call.state == PARTIAL else [call.args]])


open_stream = partial(TurnStream, DataStreamRenderer)
STREAM = Streaming(encoder=open_stream, frame=chunks.frame, headers=chunks.HEADERS, alive=b"\n", events=False)
