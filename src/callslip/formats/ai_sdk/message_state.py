"""The state of one assistant message, so that reading it again gives only what is new.

A message may arrive as a stream, as a stream that is replayed from its beginning, and in full, as it was stored or as
the client posts it. All three identify its parts by position: the step, and the index among the texts of their kind.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callslip.formats.call_tracker import TrackedCall
from callslip.formats.json_fields import identifier
from callslip.formats.sent_text import SentText

KINDS = ("text", "reasoning")


class UiCall(TrackedCall, kw_only=True):
    """A call. `input_digest` identifies its latest arguments, `arguments` are those that were streamed."""

    iteration: int = -1
    index: int = -1
    input_digest: str = ""
    options: list[Any] = msgspec.field(default_factory=list[Any])
    arguments: SentText = msgspec.field(default_factory=SentText)


_BEGINNING: tuple[int, dict[str, int]] = (-1, dict.fromkeys(KINDS, 0))


class MessageState:
    """One message. `is_repeated` while it is read again; `rounds` is the count of rounds in its turn before it."""

    def __init__(self, message_id: str = "", rounds: int = 0) -> None:
        self.id = message_id
        self.is_repeated = False
        self.digests: set[str] = set()
        self.calls: dict[tuple[int, str], UiCall] = {}
        self._dropped: dict[tuple[int, str], UiCall] = {}
        self._rounds = rounds
        self._texts: dict[str, SentText] = {}
        self._call_counts: dict[int, int] = {}
        self._origin = _BEGINNING
        self._rewind(*_BEGINNING)

    def _rewind(self, step: int, text_counts: dict[str, int]) -> None:
        self.step = step
        self._text_counts = dict(text_counts)
        self._counts_before_step = dict(text_counts)
        self._parts: dict[tuple[str, str], str] = {}

    def restart(self, *, from_beginning: bool = True) -> None:
        """Read the message again, from its beginning or from the beginning of the current stream."""
        self.is_repeated = True
        self._rewind(*(_BEGINNING if from_beginning else self._origin))
        for (step, _), call in (*self.calls.items(), *self._dropped.items()):
            if step > self.step or self.step < 0:
                call.arguments.restart()
        for kind in KINDS:
            for number in range(self._text_counts[kind], len(self._texts)):
                if text := self._texts.get(_part_name(kind, number)):
                    text.restart()

    def resume(self) -> None:
        """Continue the message with a stream of new parts."""
        self.is_repeated = False
        self._origin = (self.step, dict(self._text_counts))

    def forget(self) -> None:
        """Drop the texts when another message begins; their lengths are enough."""
        for text in (*self._texts.values(), *(call.arguments for call in self.calls.values())):
            text.forget()

    def is_empty(self) -> bool:
        """Return whether the message has no parts."""
        return not (self._texts or self.calls)

    def awaits_client(self) -> bool:
        """Return whether the client must act on a call."""
        return any(call.awaits_client for call in self.calls.values())

    # Steps

    def iteration(self) -> int:
        """Return the model round of this step in its turn; -1 before the first step."""
        return self._rounds + self.step if self.step >= 0 else -1

    def rounds(self) -> int:
        """Return the count of rounds in the turn so far."""
        return self._rounds + self.step + 1

    def begin_step(self) -> None:
        self.step += 1
        self._counts_before_step = dict(self._text_counts)
        self._parts.clear()

    def drop_step(self) -> list[str]:
        """Drop the parts of a step that the model restarts. Return the ids of its open calls."""
        for kind in KINDS:
            for number in range(self._counts_before_step[kind], self._text_counts[kind]):
                part = _part_name(kind, number)
                if not self.is_repeated:
                    self._texts.pop(part, None)
                elif part in self._texts:
                    self._texts[part].restart()
        self._text_counts = dict(self._counts_before_step)
        self._parts.clear()
        return [] if self.is_repeated else self._drop_calls()

    def _drop_calls(self) -> list[str]:
        self._rounds += 1
        self._call_counts.pop(self.step, None)
        dropped = {key: call for key, call in self.calls.items() if key[0] == self.step}
        open_calls = [name for (_, name), call in dropped.items() if not call.end]
        self._dropped |= dropped
        for key, call in dropped.items():
            call.end = call.end or "dropped"
            del self.calls[key]
        return open_calls

    # Texts

    def begin_text(self, kind: str, name: str) -> str:
        """Begin a text that chunks call by this name and return its part of the message."""
        part = self._parts[kind, name] = _part_name(kind, self._text_counts[kind])
        self._text_counts[kind] += 1
        return part

    def find_text(self, kind: str, name: str) -> str:
        """Return the part that chunks call by this name."""
        return self._parts.get((kind, name)) or self.begin_text(kind, name)

    def add_text(self, part: str, piece: str) -> tuple[str, bool]:
        """Return the new part of a piece and False, or the full text and True if it differs from before."""
        text = self._texts.get(part) or self._texts.setdefault(part, SentText())
        return text.add(piece)

    def text_id(self, part: str) -> str:
        """Return the id of a text: that of the message for its first text. "" in a message without an id."""
        if not self.id or part == _part_name("text", 0):
            return self.id
        return identifier(f"{self.id}:{part}")

    # Calls

    def find_call(self, call_id: str) -> UiCall | None:
        """Return a call of this step: an id that is used again in a later step names another call."""
        key = (self.step, call_id)
        return self.calls.get(key) or (self._dropped.get(key) if self.is_repeated else None)

    def begin_call(self, call_id: str) -> UiCall:
        call = self.calls[self.step, call_id] = UiCall(iteration=self.iteration(), index=self.next_index())
        return call

    def next_index(self) -> int:
        """Return the index of the next call of this step."""
        index = self._call_counts[self.step] = self._call_counts.get(self.step, -1) + 1
        return index


def _part_name(kind: str, number: int) -> str:
    return f"{kind}-{number + 1}"
