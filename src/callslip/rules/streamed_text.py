"""The rules for streamed text: how chunks are joined, and which events end a text.

A text is a list of blocks and a short list of the newest pieces, so that a chunk costs the same for a long text and
200,000 chunks do not need 200,000 string objects. Offsets count UTF-16 code units, as browsers do.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal, NamedTuple

from msgspec import UNSET

from callslip.model import events as ev

Proof = Literal["", "delta", "cumulative"]

MAX_PIECES = 256
MIN_WHOLE_TEXT_CHARS = 10
MIN_GROWTHS = 3
MIN_PROOF_CHARS = 24
MIN_GROWTHS_AT_END = 2


# Events that neither add an entry nor end a text.
_NEUTRAL = (ev.SessionCommands, ev.UsageReported, ev.Raw)


def ends_text(event: ev.Event, *, known: bool) -> bool:
    """Return whether an event ends the streaming text: it adds an entry, or ends the message or the turn.

    `known` is whether the call of the event, if it has one, already has an entry.
    """
    if isinstance(event, ev.CallEvent):
        return not known or isinstance(event, ev.ApprovalRequested)
    if isinstance(event, ev.SessionInfo):
        return event.notice is not UNSET and bool(event.notice)
    return not isinstance(event, (*ev.CHUNKS, *_NEUTRAL))


def is_same_message(first_id: str, second_id: str) -> bool:
    """Return whether two chunks may belong to one message. A chunk without an id belongs to any message."""
    return not first_id or not second_id or first_id == second_id


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class IncompleteTextError(Exception):
    """A comparison needs a full text whose beginning is not in memory."""


class StreamedText:
    """A streamed text. Its beginning, `missing` units or `missing_chars` characters, may be in a checkpoint instead.

    `units` is valid only if `counted`, as a bulk fold does not count; `length` computes it if needed. `partial` is the
    newest chunk if its rest has not arrived yet.
    """

    # Defaults. Set on the instance only if they differ, as most texts are plain and short.
    units = 0
    counted = True
    missing = 0
    missing_chars = 0
    generation = 0
    previous = ""
    growths = 0
    only_growths = True
    partial: str | None = None

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.pieces: list[str] = []

    def value(self) -> str:
        """Return the text that is in memory."""
        self.blocks = ["".join(self.blocks) + "".join(self.pieces)]
        self.pieces.clear()
        return self.blocks[0]

    def full_text(self) -> str:
        """Return the full text, or raise IncompleteTextError if its beginning is missing."""
        if self.missing:
            raise IncompleteTextError
        return self.value()

    def length(self) -> int:
        """Return the length in UTF-16 code units, with the missing part."""
        if not self.counted:
            self.units = self.missing + utf16_length(self.value())
            self.counted = True
        return self.units

    def squash(self) -> None:
        """Join the newest pieces into one block."""
        self.blocks.append("".join(self.pieces))
        self.pieces.clear()

    def append(self, piece: str) -> None:
        """Append a piece."""
        self.pieces.append(piece)
        self.units += utf16_length(piece)
        if len(self.pieces) >= MAX_PIECES:
            self.squash()

    def replace(self, text: str) -> None:
        """Replace the full text."""
        self.blocks, self.pieces = [text], []
        self.units = utf16_length(text)
        self.missing = self.missing_chars = 0
        self.generation += 1

    def ends_with(self, tail: str) -> bool:
        """Return whether the text ends with `tail`, without joining more of it than needed."""
        ending: list[str] = []
        remaining = len(tail)
        for piece in filter(None, chain(reversed(self.pieces), reversed(self.blocks))):
            if not ending and piece[-1] != tail[-1]:
                return False
            ending.append(piece)
            remaining -= len(piece)
            if remaining <= 0:
                return "".join(reversed(ending)).endswith(tail)
        return False


class Change(NamedTuple):
    """The effect of a chunk: text `added` at the end, or all of it `replaced`; `proof` is the policy it proves."""

    added: str = ""
    replaced: bool = False
    proof: Proof = ""


def merge_chunk(
    text: StreamedText, chunk: str, policy: str, proven: Proof = "", *, partial: bool = False, rest: bool = False
) -> Change:
    """Add a chunk by the declared policy of its source, or by the proven one if none is declared.

    A `partial` chunk is added at once; what it means is decided with its `rest`, as if both had arrived together.
    """
    if policy == "auto":
        policy = proven or "auto"
    if partial or text.partial is not None:
        return _merge_part(text, chunk, policy, partial, rest)
    return _POLICIES[policy](text, chunk) if chunk else Change()


def _merge_part(text: StreamedText, part: str, policy: str, partial: bool, rest: bool) -> Change:
    before, chunk = text.partial, part
    if rest and before is not None:
        chunk = before + part
        partial = partial and not part  # A chunk has one rest; many would make each one copy all before it.
    elif before and policy == "auto":  # Its rest did not arrive, so nothing follows from it.
        text.previous, text.only_growths = before, False
    text.partial = chunk if partial else None
    if not chunk:
        return Change()
    if policy == "auto":
        return _delta(text, part) if partial else _undeclared(text, chunk, part)
    return _POLICIES[policy](text, chunk if policy == "cumulative" else part)


def replace_if_cumulative(text: StreamedText) -> bool:
    """Replace an undeclared text at its end if all its chunks turn out to be cumulative; return whether they do."""
    if text.only_growths and text.growths >= MIN_GROWTHS_AT_END and text.partial is None:
        text.replace(text.previous)
        return True
    return False


def _delta(text: StreamedText, chunk: str) -> Change:
    text.append(chunk)
    return Change(added=chunk)


def _cumulative(text: StreamedText, chunk: str) -> Change:
    """Take the chunk as the full text so far; an older version of it changes nothing."""
    full_text = text.full_text()
    if full_text.startswith(chunk):
        return Change()
    if chunk.startswith(full_text):
        added = chunk[len(full_text) :]
        text.append(added)
        return Change(added=added)
    text.replace(chunk)
    return Change(replaced=True)


def _dedupe(text: StreamedText, chunk: str) -> Change:
    """Ignore a chunk that repeats the end; take one that starts with the full text as cumulative."""
    if text.missing:
        raise IncompleteTextError
    if text.ends_with(chunk):
        return Change()
    # A character has at most two UTF-16 code units: a shorter chunk cannot contain the full text.
    if text.length() and len(chunk) * 2 >= text.length() and chunk.startswith(full_text := text.value()):
        chunk = chunk[len(full_text) :]
    return _delta(text, chunk)


def _undeclared(text: StreamedText, chunk: str, added: str | None = None) -> Change:
    """Take chunks as deltas until one repeats the whole text, or several in a row repeat the one before.

    Both prove cumulative chunks. `added` is the part of the chunk that is not in the text yet, if not all of it.
    """
    added = chunk if added is None else added
    before, text.previous = text.previous, chunk
    if not before:
        return _delta(text, added)
    if not chunk.startswith(before):
        text.only_growths = False
        return Change(added=_delta(text, added).added, proof="delta")
    if len(chunk) == len(before):
        text.growths, text.only_growths = 0, False
        return _delta(text, added)
    text.growths += 1
    has_grown_often = text.growths >= MIN_GROWTHS and len(chunk) >= MIN_PROOF_CHARS
    if has_grown_often or _repeats_whole_text(text, chunk, len(chunk) - len(added)):
        text.replace(chunk)
        text.only_growths = False
        return Change(replaced=True, proof="cumulative")
    return _delta(text, added)


def _repeats_whole_text(text: StreamedText, chunk: str, part_chars: int) -> bool:
    """Return whether a chunk begins with the whole text so far and is longer, and the text proves something.

    `part_chars` characters of the chunk are in the text already. A text that repeats itself proves nothing: the next
    delta may repeat it too.
    """
    # A character has at most two UTF-16 code units: a shorter chunk cannot contain the full text.
    if text.length() > 2 * (len(chunk) + part_chars):
        return False
    full_text = text.full_text()
    whole = full_text[: len(full_text) - part_chars]
    return len(chunk) > len(whole) >= MIN_WHOLE_TEXT_CHARS and chunk.startswith(whole) and not _repeats_itself(whole)


def _repeats_itself(text: str) -> bool:
    """Return whether a text is a shorter piece, repeated at least twice; the last one may be cut off."""
    half = len(text) - len(text) // 2
    period = text.find(text[:half], 1)  # The first place decides: no other can be a period if it is not.
    return period != -1 and text.startswith(text[period:])


_POLICIES = {"delta": _delta, "cumulative": _cumulative, "dedupe": _dedupe, "auto": _undeclared}
