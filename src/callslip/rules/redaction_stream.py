"""Hold back streamed text that may begin a secret until the next chunk shows whether it does.

Of a delta only the end is held. Any other chunk is held in full, because its meaning depends on a comparison with the
chunks around it, which a part of it would distort. Held text is stored, without the secrets already found in it.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event, decode_event, encode_event
from callslip.model.records import HeldText
from callslip.rules.lifecycle import is_terminal
from callslip.rules.redaction import Redactor

TEXT_STREAM = ""
"""The stream of messages and thoughts, which follow each other. Each call has two streams of its own."""


def stream_of(event: ev.Streamed) -> str:
    """Return the stream of a chunk. Events of other streams do not interrupt it."""
    if isinstance(event, ev.CHUNKS):
        return TEXT_STREAM
    return f"{'in' if isinstance(event, ev.CallInputDelta) else 'out'} {event.call}"


def streams_of(call: str) -> tuple[str, str]:
    """Return the two streams of a call: its arguments and its output."""
    return f"in {call}", f"out {call}"


def streams_closed_by(event: ev.CallEvent) -> tuple[str, ...]:
    """Return the streams that an applied event ends."""
    if is_terminal(event):
        return streams_of(event.call)
    return () if isinstance(event, ev.CallInputDelta) else (f"in {event.call}",)


class HeldChunk(NamedTuple):
    """A chunk to append, and the text held now. `first`: the text held before must be appended as a chunk before it."""

    event: ev.Streamed
    carry: HeldText | None
    first: bool = False


def hold_back(redactor: Redactor, carry: HeldText | None, event: ev.Streamed) -> HeldChunk:
    """Return a chunk with the text held before it and without an end that may begin a secret."""
    before = _before(redactor, carry, event) if carry is not None else None
    text, tail = (before.text, before.tail) if before is not None else ("", "")
    out, tail = redactor.feed(tail, event.text)
    out, text = text + out, ""
    if tail and _is_held_in_full(event):
        out, text = "", out
    held = _hold(event, tail, text) if tail else None
    changed = event if out is event.text else structs.replace(event, text=out)
    return HeldChunk(changed, held, carry is not None and before is None)


def release_text(redactor: Redactor, carry: HeldText) -> ev.Streamed | None:
    """Return the held text as a chunk, or None if nothing of it remains."""
    held = decode_event(carry.event)
    text = carry.text + redactor.flush(carry.tail)
    return structs.replace(held, text=text) if text and isinstance(held, ev.STREAMED) else None


def continues_text(carry: HeldText, event: Event) -> bool:
    """Return whether an event belongs to the text whose end is held."""
    held = decode_event(carry.event)
    if isinstance(event, ev.CHUNKS):
        return isinstance(held, type(event)) and held.message_id == event.message_id
    return isinstance(event, ev.CallEvent) and isinstance(held, type(event)) and held.call == event.call


_NO_TEXT = HeldText("", 0, "", b"")


def _before(redactor: Redactor, carry: HeldText, event: ev.Streamed) -> HeldText | None:
    """Return the held text to join with the chunk, or None if it must be a chunk of its own."""
    if not continues_text(carry, event):
        return None
    if not _is_held_in_full(event):
        return carry
    start = event.text[: carry.length]
    repeats = len(event.text) > carry.length and codec.digest(start.encode()) == carry.digest
    if isinstance(event, ev.CHUNKS) and event.chunks == "cumulative":
        return _NO_TEXT if repeats else None  # The chunk contains the held text.
    return carry if not repeats and _may_join_secret(redactor, carry, event.text) else None


def _is_held_in_full(event: ev.Streamed) -> bool:
    return isinstance(event, ev.CHUNKS) and event.chunks != "delta"


def _may_join_secret(redactor: Redactor, carry: HeldText, text: str) -> bool:
    """Return whether a secret may begin in the held text and end in this one, which means that both are deltas."""
    held = redactor.flush(carry.tail)
    alone, rest = redactor.feed("", text, held or carry.text)
    return redactor.feed(carry.tail, text) != (held + alone, rest)


def _hold(event: ev.Streamed, tail: str, text: str) -> HeldText:
    """Return the held text with the ids of its chunk; its other fields may be outdated when it is released."""
    same = {name: getattr(event, name) for name in ("call", "message_id", "chunks") if hasattr(event, name)}
    bare = type(event)(text="", source=event.source, at=event.at, **same)
    return HeldText(tail, len(event.text), codec.digest(event.text.encode()), encode_event(bare), text)
