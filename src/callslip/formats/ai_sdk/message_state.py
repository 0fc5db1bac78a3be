"""What was told of one assistant message so far, so that reading it again tells only what is new.

A message may come as a stream, as a stream that is replayed from its beginning, and whole, as it was stored or as the
client posts it. All three name its parts by where they stand: the step, and which text of its kind it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callslip.formats.json_fields import identifier

KINDS = ("text", "reasoning")


class SentText:
    """A text that came in pieces: what was told of it, and how far it was read this time."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = self._seen = 0
        self._kept = True

    def read_again(self) -> None:
        self._seen = 0

    def forget(self) -> None:
        """Keep no more than its length."""
        self._pieces, self._kept = [], False

    def news(self, piece: str) -> tuple[str, bool]:
        """What of a piece was not told yet. True with the whole text so far, if it is another than was told."""
        begin, known = self._seen, self._length - self._seen
        self._seen += len(piece)
        if known > 0 and self._kept and not self._agrees(begin, piece):
            return self._become(self._value()[:begin] + piece), True
        fresh = piece[max(0, known) :]
        if fresh:
            self._length = self._seen
            self._pieces += [fresh] if self._kept else []
        return fresh, False

    def _agrees(self, begin: int, piece: str) -> bool:
        told = self._value()
        return told.startswith(piece, begin) or piece.startswith(told[begin:])

    def _become(self, whole: str) -> str:
        self._pieces, self._length = [whole], len(whole)
        return whole

    def _value(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Call(msgspec.Struct):
    """A call as its chunks told of it. `said` and `ended` are marks of its latest arguments and of its end.

    `whole`: its arguments are; `written` is what was streamed of them. `remote`: the provider runs it. `asked` is the
    request that waits for an answer, `closed` holds those that wait no more.
    """

    iteration: int = -1
    index: int = -1
    proposed: bool = False
    said: str = ""
    ended: str = ""
    whole: bool = False
    remote: bool = False
    started: bool = False
    refused: bool = False
    asked: str = ""
    options: list[Any] = []
    closed: set[str] = set()
    written: SentText = msgspec.field(default_factory=SentText)

    def waits(self) -> bool:
        """Whether the next word about it is the client's: it asks for approval, or the client is to run it."""
        return not self.ended and bool(self.asked or (self.whole and not self.remote))


_BEGINNING: tuple[int, dict[str, int]] = (-1, dict.fromkeys(KINDS, 0))


class Account:
    """One message. `again` while it is read another time; `rounds` is how many its turn had before it."""

    def __init__(self, identity: str = "", rounds: int = 0) -> None:
        self.id = identity
        self.again = False
        self.marks: set[str] = set()
        self.calls: dict[tuple[int, str], Call] = {}
        self._dropped: dict[tuple[int, str], Call] = {}
        self._rounds = rounds
        self._told: dict[str, SentText] = {}
        self._calls_of: dict[int, int] = {}
        self._origin = _BEGINNING
        self._rewind(*_BEGINNING)

    def _rewind(self, step: int, begun: dict[str, int]) -> None:
        self.step = step
        self._begun = dict(begun)
        self._before = dict(begun)
        self._parts: dict[tuple[str, str], str] = {}

    def read_again(self, *, whole: bool = True) -> None:
        """It comes another time: the whole of it, or what the stream under way has told of it."""
        self.again = True
        self._rewind(*(_BEGINNING if whole else self._origin))
        for (step, _), call in (*self.calls.items(), *self._dropped.items()):
            if step > self.step or self.step < 0:
                call.written.read_again()
        for kind in KINDS:
            for number in range(self._begun[kind], len(self._told)):
                if told := self._told.get(_part(kind, number)):
                    told.read_again()

    def go_on(self) -> None:
        """A stream goes on with it: what comes next was never told."""
        self.again = False
        self._origin = (self.step, dict(self._begun))

    def forget(self) -> None:
        """Another message is under way: how long its texts were is enough to know."""
        for told in (*self._told.values(), *(call.written for call in self.calls.values())):
            told.forget()

    def is_empty(self) -> bool:
        """Whether nothing was told of it."""
        return not (self._told or self.calls)

    def waits(self) -> bool:
        """Whether it is the client's turn to say how a call goes on."""
        return any(call.waits() for call in self.calls.values())

    # Steps

    def iteration(self) -> int:
        """Which model round of its turn this step is; -1 while no step has begun."""
        return self._rounds + self.step if self.step >= 0 else -1

    def rounds(self) -> int:
        """How many rounds the turn had up to here."""
        return self._rounds + self.step + 1

    def begin_step(self) -> None:
        self.step += 1
        self._before = dict(self._begun)
        self._parts.clear()

    def drop_step(self) -> list[str]:
        """The model begins its step anew: where its parts stood others will. The calls that it leaves open."""
        for kind in KINDS:
            for number in range(self._before[kind], self._begun[kind]):
                self._drop_text(_part(kind, number))
        self._begun = dict(self._before)
        self._parts.clear()
        return [] if self.again else self._drop_calls()

    def _drop_text(self, part: str) -> None:
        if not self.again:
            self._told.pop(part, None)
        elif part in self._told:
            self._told[part].read_again()

    def _drop_calls(self) -> list[str]:
        self._rounds += 1
        self._calls_of.pop(self.step, None)
        dropped = {key: call for key, call in self.calls.items() if key[0] == self.step}
        left = [name for (_, name), call in dropped.items() if not call.ended]
        self._dropped |= dropped
        for key, call in dropped.items():
            call.ended = call.ended or "dropped"
            del self.calls[key]
        return left

    # Texts

    def begin_text(self, kind: str, name: str) -> str:
        """A text begins that chunks call by this name; which part of the message it is."""
        part = self._parts[kind, name] = _part(kind, self._begun[kind])
        self._begun[kind] += 1
        return part

    def text(self, kind: str, name: str) -> str:
        """The part that chunks call by this name."""
        return self._parts.get((kind, name)) or self.begin_text(kind, name)

    def news(self, part: str, piece: str) -> tuple[str, bool]:
        """What of a piece of a text was not told yet; True with the whole text, if it was told otherwise."""
        told = self._told.get(part) or self._told.setdefault(part, SentText())
        return told.news(piece)

    def name(self, part: str) -> str:
        """The id of a text: the message's own for its first text, else one made of it. "" in a message without id."""
        if not self.id or part == _part("text", 0):
            return self.id
        return identifier(f"{self.id}:{part}")

    # Calls

    def call(self, identity: str) -> Call | None:
        """A call of this step: an id that comes again in a later step is another call."""
        key = (self.step, identity)
        return self.calls.get(key) or (self._dropped.get(key) if self.again else None)

    def begin_call(self, identity: str) -> Call:
        made = self.calls[self.step, identity] = Call(iteration=self.iteration(), index=self.next_index())
        return made

    def next_index(self) -> int:
        """Which call of its step the next one is."""
        index = self._calls_of[self.step] = self._calls_of.get(self.step, -1) + 1
        return index


def _part(kind: str, number: int) -> str:
    return f"{kind}-{number + 1}"
