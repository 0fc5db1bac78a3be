"""Render one turn as a UI message stream of the AI SDK.

What the client cannot take back makes a `Restart`: the connection ends, and the next one begins with a replay.
"""

from __future__ import annotations

from collections.abc import Collection

from callslip.formats.ai_sdk import changes, wire
from callslip.formats.ai_sdk.calls import RENDERED_FIELDS, call_part, may_change
from callslip.formats.ai_sdk.dialects import Dialect
from callslip.formats.ai_sdk.messages import Steps
from callslip.formats.ai_sdk.parts import is_shown, part_of, text_id, text_kind
from callslip.formats.ai_sdk.wire import Chunk, Part
from callslip.formats.assistant_message import agent_message_id
from callslip.formats.turn_stream import RestartNeededError, TurnStream
from callslip.model.entries import Append, Entry, Message, PermissionRequest, Set, Thought, ToolCall


class UiRenderer:
    """Render a turn in one dialect."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, dialect: Dialect, stream: TurnStream) -> None:
        self._dialect = dialect
        self._stream = stream
        self._is_started = False
        self._steps = Steps()

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        return self._stream.begin_all(entries)

    def begin(self, entry: Entry) -> list[Chunk]:
        if not is_shown(self._dialect, entry):
            return []
        chunks: list[Chunk] = [] if self._is_started else [wire.start(agent_message_id(entry))]
        if self._steps.begins_with(entry):
            chunks += [wire.FINISH_STEP, wire.START_STEP] if self._is_started else [wire.START_STEP]
        self._is_started = True
        if isinstance(entry, ToolCall):
            return chunks
        if isinstance(entry, Message | Thought):
            chunks.append(wire.text(text_kind(entry), "start", text_id(entry)))
            if self._stream.is_replay and entry.content:
                chunks += self.append_text(entry, entry.content)
            return chunks if entry.streaming else chunks + self.end_text(entry)
        return [*chunks, part_of(self._dialect, entry)]  # a data part is its own chunk

    def append_text(self, entry: Message | Thought, text: str) -> list[Chunk]:
        return [wire.text(text_kind(entry), "delta", text_id(entry), delta=text)]

    def end_text(self, entry: Message | Thought) -> list[Chunk]:
        return [wire.text(text_kind(entry), "end", text_id(entry))]

    def render_call(self, entry: ToolCall, sent: Part | None, changed: Collection[str]) -> tuple[Part, list[Chunk]]:
        stream = self._stream
        part = call_part(self._dialect, entry, stream.input_text(entry), stream.request_of(entry))
        if sent is None:
            return part, changes.whole(part, {}) if stream.is_replay else changes.begin(part)
        chunks = changes.changes(sent, part)
        if any(chunk["type"].startswith("tool-input") for chunk in chunks) and entry.id not in self._steps.entries:
            raise RestartNeededError("a call of an earlier step was changed")
        return part, chunks

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        if isinstance(patch, Append):
            is_input = patch.field == "inputText" and patch.id in self._stream.calls
            return self._append_input(patch) if is_input else []
        if self._dialect.requests != "apart" or "state" not in patch.fields:
            return []
        # A request that is a data part: the client replaces the part it has.
        entry = self._stream.turn.state.entries.get(patch.id)
        if not isinstance(entry, PermissionRequest) or not self._stream.turn.owns(entry):
            return []
        return [part_of(self._dialect, entry)]

    def _append_input(self, patch: Append) -> list[Chunk]:
        sent = self._stream.calls[patch.id]
        if sent["state"] == "input-streaming":
            return [wire.input_delta(sent, patch.text)] if self._dialect.shows_partial_input else []
        may_differ = may_change(sent, self._stream.call(patch.id), patch.text)
        return self._stream.update_call(patch.id) if may_differ else []

    def finish(self, is_over: bool) -> list[Chunk]:
        if not is_over:
            return []
        last = wire.finish(self._stream.turn.reason if self._dialect.has_reasons else "")
        return [wire.FINISH_STEP, last] if self._is_started else [last]

    def close(self, reason: str) -> list[Chunk]:
        return [wire.abort(reason if self._dialect.has_reasons else "")]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        return (wire.RESTART,)
