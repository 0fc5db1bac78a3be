"""Render one turn as an AI SDK 4 data stream.

What the client cannot take back makes a `Restart`: a repaired text, a changed annotation. A page that reconnects must
leave the message of the turn out of its initial messages, or the client appends the replay to it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import cast

from callslip.formats.ai_sdk_v4 import chunks
from callslip.formats.ai_sdk_v4.calls import PARTIAL, Annotation, invocation, note_of
from callslip.formats.ai_sdk_v4.chunks import Chunk
from callslip.formats.ai_sdk_v4.encode import Shown, Steps, call_notes
from callslip.formats.ai_sdk_v4.messages import Invocation, MessageNote
from callslip.formats.assistant_message import agent_message_id, is_text_or_call
from callslip.formats.base import Streaming
from callslip.formats.turn_stream import RestartNeededError, TurnStream
from callslip.model import codec
from callslip.model.entries import Append, Entry, Set, Thought, ToolCall
from callslip.model.entries import Message as Spoken

# The fields of a call, as patches name them, that show in its part or annotation.
RENDERED_FIELDS = frozenset({"status", "toolName", "kind", "rawInput", "approval"})


class DataStreamRenderer:
    """Render a turn as lines of the data stream."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._steps = Steps()
        self._message = ""
        self._notes: dict[int, Annotation] = {}

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        lines = self._stream.begin_all(entries)
        notes = [note for note in call_notes(entries, self._stream.requests) if note.sent_at]
        self._notes = {note.entry: note for note in notes}
        return lines + chunks.add_annotations(note.note for note in notes)

    def begin(self, entry: Entry) -> list[Chunk]:
        if not is_text_or_call(entry):
            return []
        had_calls = self._steps.called
        lines: list[Chunk] = []
        if self._steps.begins_with(cast(Shown, entry)):
            lines = [chunks.step_end(had_calls)] if self._steps.number else []
            self._message = self._steps.name or self._message or agent_message_id(entry)
            lines.append(chunks.step_start(self._message))
        if isinstance(entry, Spoken | Thought) and self._stream.is_replay and entry.content:
            lines.append(chunks.text(entry, entry.content))
        return lines

    def append_text(self, entry: Spoken | Thought, text: str) -> list[Chunk]:
        return [chunks.text(entry, text)]

    def end_text(self, entry: Spoken | Thought) -> list[Chunk]:
        return []

    def render_call(
        self, entry: ToolCall, sent: Invocation | None, changed: Collection[str]
    ) -> tuple[Invocation | None, list[Chunk]]:
        call = invocation(entry, sent.step if sent else self._steps.number)
        lines = _changes(sent, call, self._steps.number)
        if not self._stream.is_replay:
            lines += self._note(entry)
        return None if call.state == "result" and entry.scope != "detached" else call, lines

    def _note(self, entry: ToolCall) -> list[Chunk]:
        """Return the new annotation of a call. The client cannot replace one that it has."""
        before, now = self._notes.get(entry.id), note_of(entry, self._stream.request_of(entry))
        if before == now or (before is None and not now.sent_at):
            return []
        if before is not None:
            raise RestartNeededError("a request for approval was closed")
        self._notes[entry.id] = now
        return chunks.add_annotations([now.note])

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        return []

    def finish(self, is_over: bool) -> list[Chunk]:
        if not is_over:
            return []
        last = [chunks.finish(self._stream.turn.reason)]
        if self._steps.number < 0:
            return last
        note = MessageNote(self._message, True)
        return [*chunks.add_annotations([note]), chunks.step_end(self._steps.called), *last]

    def close(self, reason: str) -> list[Chunk]:
        return [chunks.error(reason)]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        # A client that has no message yet would begin one at any chunk.
        return (chunks.RESTART,) if self._steps.number >= 0 else ()


def _changes(before: Invocation | None, now: Invocation, step: int) -> list[Chunk]:
    """Return the chunks that change a call of the client; `before` is None for a new call."""
    if before is not None and codec.encode(before) == codec.encode(now):
        return []
    started = [] if before else [chunks.call_start(now)]
    if now.state == PARTIAL:
        if before:
            raise RestartNeededError("a call was changed before its arguments came")
        return started
    if before and before.state == "result":
        return [chunks.correction(now)]
    is_known = before and _request_of(before) == _request_of(now)
    called = [] if is_known else [chunks.call(now, step)]
    return [*started, *called, *([chunks.result(now)] if now.state == "result" else [])]


def _request_of(call: Invocation) -> bytes:
    """Return the tool and arguments as JSON for comparison: in Python, 1 equals True."""
    return codec.encode([call.tool_name, None if call.state == PARTIAL else [call.args]])


open_stream = partial(TurnStream, DataStreamRenderer)
STREAM = Streaming(encoder=open_stream, frame=chunks.frame, headers=chunks.HEADERS, alive=b"\n", events=False)
