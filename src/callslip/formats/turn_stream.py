"""Stream one turn, or one block outside of turns, in the chunks of a format.

The stream folds the events, keeps what the client has of each entry, and decides when the stream starts over or ends.
A renderer of the format makes the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from callslip.formats.base import Restart
from callslip.formats.outcome import is_open
from callslip.formats.turn_scope import Turn
from callslip.model.entries import Append, Entry, Message, Patch, PermissionRequest, Put, Set, Thought, ToolCall
from callslip.model.events import Event
from callslip.rules.entry_blocks import is_of_subagent
from callslip.rules.fold import SessionFold


class RestartNeededError(Exception):
    """The format has no chunks for this change."""


class Renderer(Protocol):
    """Make the chunks of a format. Every replay gets a new renderer, so it may keep what it sent."""

    call_fields: frozenset[str]
    """The fields of a call, as patches name them, that show in its chunks."""
    has_full_text_at_end: bool
    """Whether the end of a text repeats it, so that a client gets a late repair."""

    def replay(self, entries: list[Entry]) -> list[Any]:
        """Return the chunks of the turn so far."""
        ...

    def begin(self, entry: Entry) -> list[Any]:
        """Return the chunks before a new call, or those of another new entry. Its live text follows as patches."""
        ...

    def append_text(self, entry: Message | Thought, text: str) -> list[Any]:
        """Return the chunks that extend a text."""
        ...

    def end_text(self, entry: Message | Thought) -> list[Any]:
        """Return the chunks that end a text."""
        ...

    def render_call(self, entry: ToolCall, sent: Any, changed: Collection[str]) -> tuple[Any, list[Any]]:
        """Return a call as the client has it from now on, and the chunks that bring it there.

        `sent` is what was returned for the call before, None for a new call. A call returned as None is not updated
        any more.
        """
        ...

    def render_other(self, patch: Set | Append) -> list[Any]:
        """Return the chunks for a patch of anything but a text or the rendered fields of a call."""
        ...

    def finish(self, is_over: bool) -> list[Any]:
        """Return the last chunks, if the stream ends here. `is_over`: the turn and its calls have ended."""
        ...

    def close(self, reason: str) -> list[Any]:
        """Return the last chunks of a stream that ends before its turn."""
        ...

    def restart(self, reason: str) -> tuple[Any, ...]:
        """Return the last chunks before the client has to connect again."""
        ...


class TurnStream:
    """The chunks of one turn. A stream that is made with a state must send `opening` first."""

    def __init__(
        self, make_renderer: Callable[[TurnStream], Renderer], state: SessionFold | None = None, turn: str = ""
    ) -> None:
        self.turn = Turn(state, turn)
        self.is_replay = False
        self._make_renderer = make_renderer
        self._reset()
        self._is_out_of_sync = self.turn.state.seq > 0

    def _reset(self) -> None:
        self.finished = self._is_over = False
        self.texts: dict[int, Message | Thought] = {}
        """The unfinished texts that the client has."""
        self.calls: dict[int, Any] = {}
        """The calls that may still be updated, as the client has them."""
        self.open_calls: set[int] = set()
        self.requests: dict[str, PermissionRequest] = {}
        """The requests of this turn that a call may show."""
        self._is_out_of_sync = False
        self._renderer = self._make_renderer(self)

    # The interface of a turn encoder

    def opening(self) -> list[Any]:
        """Return the turn so far, from its start."""
        self._reset()
        return self._replay(self.turn.entries()) + self._finish()

    def feed(self, event: Event) -> list[Any] | Restart:
        """Return what an event changes."""
        had_begun = self.turn.has_begun
        patches = self.turn.apply(event)
        try:
            if self._is_out_of_sync:
                raise RestartNeededError("the turn was not replayed")
            chunks = [] if had_begun or not self.turn.has_begun else self._replay_before(event.seq)
            chunks += [chunk for patch in patches for chunk in self._render(patch)]
            if self.finished and (chunks or (self._is_over and not self.turn.ended)):
                raise RestartNeededError("the turn continued after its end")
        except RestartNeededError as error:
            self._is_out_of_sync = True
            return Restart(str(error), self._renderer.restart(str(error)))
        return chunks + self._finish()

    def close(self, reason: str) -> list[Any]:
        """End the stream before its turn ends."""
        if self.finished:
            return []
        self.finished = True
        return self._renderer.close(reason)

    def _replay(self, entries: list[Entry]) -> list[Any]:
        self.requests = {entry.approval: entry for entry in entries if isinstance(entry, PermissionRequest)}
        self.is_replay = True
        chunks = self._renderer.replay(entries)
        self.is_replay = False
        return chunks

    def _replay_before(self, seq: int) -> list[Any]:
        """Return the chunks of the entries, such as a plan, that a turn outside of turns has before its first text."""
        entries = [entry for entry in self.turn.entries() if entry.id < seq]
        return self._replay(entries) if entries else []

    def _finish(self) -> list[Any]:
        if self.finished:
            return []
        is_over = not self.open_calls and self.turn.ended
        chunks = self._renderer.finish(is_over)
        self.finished = bool(chunks)
        self._is_over = self.finished and is_over
        return chunks

    def _render(self, patch: Patch) -> list[Any]:
        identity = patch.entry.id if isinstance(patch, Put) else patch.id
        if (entry := self.turn.state.entries.get(identity)) is not None and is_of_subagent(entry):
            return []
        if isinstance(patch, Put):
            return self._render_entry(patch.entry.id)
        if patch.id in self.texts:
            if isinstance(patch, Append):
                return self._renderer.append_text(self.texts[patch.id], patch.text)
            return self._renderer.end_text(self.texts.pop(patch.id)) if "streaming" in patch.fields else []
        if isinstance(patch, Set) and patch.id in self.calls:
            is_shown = not self._renderer.call_fields.isdisjoint(patch.fields)
            return self.update_call(patch.id, patch.fields) if is_shown else []
        return self._renderer.render_other(patch)

    def _render_entry(self, identity: int) -> list[Any]:
        entry = self.turn.state.entries[identity]
        if identity not in self.texts:
            return self.begin(entry) if self.turn.owns(entry) else []
        text = self.texts.pop(identity)
        if text.streaming or not self._renderer.has_full_text_at_end:
            raise RestartNeededError("a text was repaired")
        return self._renderer.end_text(text)

    # For renderers

    def begin(self, entry: Entry) -> list[Any]:
        """Return the chunks of a new entry."""
        chunks = self._renderer.begin(entry)
        if isinstance(entry, ToolCall):
            return chunks + self.update_call(entry.id)
        if isinstance(entry, Message | Thought) and entry.streaming:
            self.texts[entry.id] = entry
        return chunks

    def begin_all(self, entries: list[Entry]) -> list[Any]:
        """Return the chunks of entries in their order."""
        return [chunk for entry in entries for chunk in self.begin(entry)]

    def update_call(self, identity: int, changed: Collection[str] = ()) -> list[Any]:
        """Return the chunks that bring a call of the client up to date."""
        entry = self.call(identity)
        sent, chunks = self._renderer.render_call(entry, self.calls.get(identity), changed)
        if sent is not None:
            self.calls[identity] = sent
        else:
            self.calls.pop(identity, None)
        (self.open_calls.add if is_open(entry) else self.open_calls.discard)(identity)
        return chunks

    def call(self, identity: int) -> ToolCall:
        """Return the entry of a call."""
        entry = self.turn.state.entries[identity]
        assert isinstance(entry, ToolCall)
        return entry

    def input_text(self, call: ToolCall) -> str:
        """Return the arguments of a call as far as they were streamed."""
        text = self.turn.state.texts.get((call.id, "input_text"))
        return text.value() if text else call.input_text

    def request_of(self, call: ToolCall) -> PermissionRequest | None:
        """Return the last request of this turn about a call, also after its answer."""
        pending = self.turn.state.requests.get(call.approval)
        if pending is not None and self.turn.owns(pending):
            self.requests[call.approval] = pending
        return self.requests.get(call.approval)
