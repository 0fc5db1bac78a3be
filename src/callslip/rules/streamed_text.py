"""The only rules about streamed text: how chunks are joined (S2.4), and what ends a text (S2.12).

A text is kept as blocks and a short list of newest pieces, so that a chunk costs the same however long the text is,
and 200,000 chunks do not cost 200,000 string objects. Offsets count UTF-16 units, as browsers do.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal, NamedTuple

from callslip.model import events as ev

Proof = Literal["", "delta", "cumulative"]

SQUASH = 256
GROWTHS = 3
PROOF_LENGTH = 24
ENDING_GROWTHS = 2


# What neither makes an entry nor ends anything.
_SILENT = (ev.SessionInfo, ev.SessionCommands, ev.Raw)


def ends_text(event: ev.Event, *, known: bool) -> bool:
    """Whether an event ends the text being written (S2.12): it makes an entry (S2.3), or ends the message or the turn.

    `known`: the call it is about, if it is about one, has its entry already.
    """
    if isinstance(event, ev.CallEvent):
        return not known or isinstance(event, ev.ApprovalRequested)
    return not isinstance(event, (*ev.CHUNKS, *_SILENT))


def units(text: str) -> int:
    """The length as a browser counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class Headless(Exception):
    """A text whose beginning is not here had to be compared with all of it."""


class StreamedText:
    """One streamed text. Its beginning may be in a checkpoint instead: `missing` units, `missing_chars` characters.

    A bulk fold does not count as it goes (`counted` is False); whoever needs the length asks `length`.
    """

    # Set on the instance only when they differ: most texts are plain and short.
    units = 0
    counted = True
    missing = 0
    missing_chars = 0
    generation = 0
    previous = ""
    growths = 0
    only_growths = True

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.pieces: list[str] = []

    def value(self) -> str:
        """The text, as far as it is here."""
        self.blocks = ["".join(self.blocks) + "".join(self.pieces)]
        self.pieces.clear()
        return self.blocks[0]

    def whole(self) -> str:
        """The text, if all of it is here."""
        if self.missing:
            raise Headless
        return self.value()

    def length(self) -> int:
        """How many UTF-16 units long the text is, with what is missing here."""
        if not self.counted:
            self.units = self.missing + units(self.value())
            self.counted = True
        return self.units

    def squash(self) -> None:
        """Make one string of the newest pieces."""
        self.blocks.append("".join(self.pieces))
        self.pieces.clear()

    def append(self, piece: str) -> None:
        """Add to the end."""
        self.pieces.append(piece)
        self.units += units(piece)
        if len(self.pieces) >= SQUASH:
            self.squash()

    def replace(self, text: str) -> None:
        """Become another text."""
        self.blocks, self.pieces = [text], []
        self.units = units(text)
        self.missing = self.missing_chars = 0
        self.generation += 1

    def ends_with(self, tail: str) -> bool:
        """Whether the text ends so; looks at no more of it than it must."""
        held: list[str] = []
        lacking = len(tail)
        for piece in filter(None, chain(reversed(self.pieces), reversed(self.blocks))):
            if not held and piece[-1] != tail[-1]:
                return False
            held.append(piece)
            lacking -= len(piece)
            if lacking <= 0:
                return "".join(reversed(held)).endswith(tail)
        return False


class Change(NamedTuple):
    """What a chunk did to a text: `added` at the end, or all of it `replaced`; and what it proved of its source."""

    added: str = ""
    replaced: bool = False
    proof: Proof = ""


def merge_chunk(text: StreamedText, chunk: str, policy: str, proven: Proof = "") -> Change:
    """Join one chunk by the policy its source declared, or by what an undeclared source has shown."""
    if not chunk:
        return Change()
    if policy == "auto":
        policy = proven or "auto"
    return _POLICIES[policy](text, chunk)


def settle(text: StreamedText) -> bool:
    """At the end of an undeclared text: one that only ever grew was cumulative. True if that repaired it."""
    if text.only_growths and text.growths >= ENDING_GROWTHS:
        text.replace(text.previous)
        return True
    return False


def _delta(text: StreamedText, chunk: str) -> Change:
    text.append(chunk)
    return Change(added=chunk)


def _cumulative(text: StreamedText, chunk: str) -> Change:
    """The chunk is the whole text so far; an older state of it changes nothing."""
    whole = text.whole()
    if whole.startswith(chunk):
        return Change()
    if chunk.startswith(whole):
        added = chunk[len(whole) :]
        text.append(added)
        return Change(added=added)
    text.replace(chunk)
    return Change(replaced=True)


def _dedupe(text: StreamedText, chunk: str) -> Change:
    """The literal rule: a chunk that repeats the end is a duplicate, one that begins with all of it is cumulative."""
    if text.missing:
        raise Headless
    if text.ends_with(chunk):
        return Change()
    # Twice the characters is the most that UTF-16 units can be: a shorter chunk cannot hold the whole text.
    if text.length() and len(chunk) * 2 >= text.length() and chunk.startswith(whole := text.value()):
        chunk = chunk[len(whole) :]
    return _delta(text, chunk)


def _undeclared(text: StreamedText, chunk: str) -> Change:
    """Reads deltas until shown otherwise."""
    before, text.previous = text.previous, chunk
    if not before:
        return _delta(text, chunk)
    if not chunk.startswith(before):
        text.only_growths = False
        return Change(added=_delta(text, chunk).added, proof="delta")
    if len(chunk) == len(before):
        text.growths, text.only_growths = 0, False
        return _delta(text, chunk)
    text.growths += 1
    if text.growths >= GROWTHS and len(chunk) >= PROOF_LENGTH:
        text.replace(chunk)
        text.only_growths = False
        return Change(replaced=True, proof="cumulative")
    return _delta(text, chunk)


_POLICIES = {"delta": _delta, "cumulative": _cumulative, "dedupe": _dedupe, "auto": _undeclared}
