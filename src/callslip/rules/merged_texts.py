"""Recognize a text of the agent that was recorded twice: live, without an id, and from the session file of the agent.

Both sides have the texts of a turn in the same order, so those of each kind are compared from where the last repeated
one ended. White space is not compared, as agents show a text in other lines than they store it. A text of the file is
whole; live it is a series of chunks, of which each belongs to one text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from callslip.model import events as ev
from callslip.model.names import TRANSCRIPT_SOURCES
from callslip.model.records import HeldText
from callslip.rules.continued_text import is_unfinished
from callslip.rules.replayed_turns import comparable_prompt

MIN_COMMON_CHARS = 10
"""How much of an unfinished text must be recorded to find it behind other texts."""
MAX_EXPECTED = 64
"""Of more texts that the file has first, the oldest are not expected any more."""
MAX_COMPARED = 8
"""How many of the next texts a live chunk is compared with: some of the file's are not sent live."""


def comparable_text(text: str) -> str:
    return comparable_prompt(text)


class _Texts:
    """The live texts of one kind, joined. `run` is where the newest text starts.

    A text starts and ends where chunks do, so only these places are compared: chunks and texts may be very long.
    """

    def __init__(self) -> None:
        self.joined = ""
        self._ends = [0]
        self.run = self.length = self.position = 0
        self._parts: list[str] = []
        self._is_end = frozenset(self._ends)

    def add(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self.length += len(text)
            self._ends.append(self.length)

    def join(self) -> None:
        self.joined = "".join(self._parts)
        self._is_end = frozenset(self._ends)

    def find(self, text: str) -> int:
        """Return where a text starts that has not been repeated yet, -1 if it is not there."""
        starts = self._ends[bisect_left(self._ends, self.position) :]
        known = (start for start in starts if start + len(text) in self._is_end)
        return next((start for start in known if self.joined.startswith(text, start)), -1)

    def find_beginning(self, text: str) -> int:
        """Return where the end of the live texts starts with which a longer text begins, -1 if there is none."""
        length = len(self.joined)
        first = max(self.position, length - len(text))
        ends = self._ends[bisect_left(self._ends, first) : bisect_right(self._ends, length - MIN_COMMON_CHARS)]
        starts = [start for start in (self.run, *ends) if first <= start < length]
        return next((start for start in starts if text.startswith(self.joined[start:])), -1)


class LiveTexts:
    """The texts of one turn that were recorded live without ids, and how much of them the file has repeated.

    `events` are the chunks of the turn, and what ended a text. `ended_at` is the time of the newest one.
    """

    def __init__(self, events: Iterable[ev.Event]) -> None:
        self._texts: dict[type[ev.Event], _Texts] = {ev.MessageDelta: _Texts(), ev.ThoughtDelta: _Texts()}
        self._open: type[ev.Event] | None = None
        self._ends_with_space = False
        self.ended_at = 0
        for event in events:
            if event.source not in TRANSCRIPT_SOURCES:
                self.ended_at = max(self.ended_at, event.at)
            if isinstance(event, ev.CHUNKS):
                self._add(event)
            elif not is_unfinished(event):
                self._open = None
        for texts in self._texts.values():
            texts.join()

    def _add(self, chunk: ev.MessageDelta | ev.ThoughtDelta) -> None:
        if chunk.source in TRANSCRIPT_SOURCES or chunk.message_id:
            self._open = None
            return
        texts, kind = self._texts[type(chunk)], type(chunk)
        if self._open is not kind:
            texts.run = texts.length
        self._open = kind
        texts.add(comparable_text(chunk.text))
        self._ends_with_space = chunk.text[-1:].isspace()

    @property
    def is_open(self) -> bool:
        """Whether the newest text may continue."""
        return self._open is not None

    def match(self, kind: type[ev.Event], text: str) -> str | None:
        """Return what of a text of the file was not recorded live: "" for nothing, None for all of it."""
        texts, compared = self._texts[kind], comparable_text(text)
        start = texts.find(compared)
        if start >= 0:
            texts.position = start + len(compared)
            return ""
        start = texts.find_beginning(compared) if self._open is kind else -1
        if start < 0:
            return None
        missing = cut_beginning(text, len(texts.joined) - start)
        texts.position, self._open = len(texts.joined), None
        return missing.lstrip() if self._ends_with_space else missing


class ExpectedTexts(msgspec.Struct, frozen=True):
    """The texts of one kind that the file has first: their events. `arrived` of the first has arrived live.

    It counts characters that are not white space.
    """

    seqs: tuple[int, ...] = ()
    arrived: int = 0

    def add(self, seq: int) -> ExpectedTexts:
        return msgspec.structs.replace(self, seqs=(*self.seqs, seq)[-MAX_EXPECTED:])


def match_chunk(texts: Sequence[str], arrived: int, chunk: str) -> tuple[int, int] | None:
    """Return the expected text that a live chunk is the next part of, and how much of it has arrived then."""
    part = comparable_text(chunk)
    if not part:
        return (0, arrived) if arrived else None
    for number, text in enumerate(map(comparable_text, texts)):
        start = 0 if number else arrived
        if text.startswith(part, start):
            return number, start + len(part)
    return None


def cut_beginning(text: str, count: int) -> str:
    """Return a text without its first characters, of which those that are not white space are counted."""
    return text[_length_of_beginning(text, count) :]


def beginning_of(text: str, count: int) -> str:
    """Return the first characters of a text, of which those that are not white space are counted."""
    return text[: _length_of_beginning(text, count)]


def _length_of_beginning(text: str, count: int) -> int:
    for number, character in enumerate(text):
        count -= not character.isspace()
        if count <= 0:
            return number + 1
    return len(text)


def pack_expected(expected: ExpectedTexts) -> HeldText:
    """Return expected texts as they are stored, beside the held texts of a session."""
    return HeldText(tail="", length=expected.arrived, digest="", event=b"", text=" ".join(map(str, expected.seqs)))


def unpack_expected(stored: HeldText | None) -> ExpectedTexts:
    return ExpectedTexts() if stored is None else ExpectedTexts(tuple(map(int, stored.text.split())), stored.length)
