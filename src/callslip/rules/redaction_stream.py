"""Text that may begin a secret waits for what comes next: what of it waits, what leaves, and what it leaves as.

Of a delta only the end waits. Any other chunk waits whole, since what it means shows only when it is compared with the
chunks around it (S2.4): cut or joined it would prove the wrong thing of its source. What waits is durable, and free of
the secrets that were found in it.
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

TEXT = ""
"""The stream of messages and thoughts, of which only one is being written. Each call has two more."""


def stream_of(event: ev.Streamed) -> str:
    """The stream that a chunk belongs to: what is written beside it does not part it."""
    if isinstance(event, ev.CHUNKS):
        return TEXT
    return f"{'in' if isinstance(event, ev.CallInputDelta) else 'out'} {event.call}"


def streams_of(call: str) -> tuple[str, str]:
    """The streams that end with a call: its arguments and its output."""
    return f"in {call}", f"out {call}"


def streams_closed_by(event: ev.CallEvent) -> tuple[str, ...]:
    """The streams that go on no further once this event was applied."""
    if is_terminal(event):
        return streams_of(event.call)
    return () if isinstance(event, ev.CallInputDelta) else (f"in {event.call}",)


class HeldChunk(NamedTuple):
    """A chunk as it may be appended, and what waits now. `first`: what waited before leaves on its own before it."""

    event: ev.Streamed
    carry: HeldText | None
    first: bool = False


def hold_back(redactor: Redactor, carry: HeldText | None, event: ev.Streamed) -> HeldChunk:
    """The chunk without what may begin a secret, and with what was held back before it."""
    before = _before(redactor, carry, event) if carry is not None else None
    text, tail = (before.text, before.tail) if before is not None else ("", "")
    out, tail = redactor.feed(tail, event.text)
    out, text = text + out, ""
    if tail and _whole(event):
        out, text = "", out
    waits = _carry(event, tail, text) if tail else None
    changed = event if out is event.text else structs.replace(event, text=out)
    return HeldChunk(changed, waits, carry is not None and before is None)


def release_text(redactor: Redactor, carry: HeldText) -> ev.Streamed | None:
    """What was held back, as the chunk it is or is the end of."""
    held = decode_event(carry.event)
    text = carry.text + redactor.flush(carry.tail)
    return structs.replace(held, text=text) if text and isinstance(held, ev.STREAMED) else None


def continues_text(carry: HeldText, event: Event) -> bool:
    """Whether an event belongs to the text whose end was held back."""
    held = decode_event(carry.event)
    if isinstance(event, ev.CHUNKS):
        return isinstance(held, type(event)) and held.message_id == event.message_id
    return isinstance(event, ev.CallEvent) and isinstance(held, type(event)) and held.call == event.call


_NOTHING = HeldText("", 0, "", b"")


def _before(redactor: Redactor, carry: HeldText, event: ev.Streamed) -> HeldText | None:
    """What belongs before the chunk and into its event; None where it is a chunk of its own."""
    if not continues_text(carry, event):
        return None
    if not _whole(event):
        return carry
    grew = _grew(event.text, carry)
    if isinstance(event, ev.CHUNKS) and event.chunks == "cumulative":
        return _NOTHING if grew else None  # A chunk that grew brings it again.
    return carry if not grew and _stretches(redactor, carry, event.text) else None


def _whole(event: ev.Streamed) -> bool:
    return isinstance(event, ev.CHUNKS) and event.chunks != "delta"


def _grew(text: str, carry: HeldText) -> bool:
    """Whether a chunk begins with the whole chunk that was held back."""
    return len(text) > carry.length and codec.digest(text[: carry.length].encode()) == carry.digest


def _stretches(redactor: Redactor, carry: HeldText, text: str) -> bool:
    """Whether a secret may begin in what was held back and end in this text: then the two were deltas."""
    held = redactor.flush(carry.tail)
    alone, rest = redactor.feed("", text, held or carry.text)
    return redactor.feed(carry.tail, text) != (held + alone, rest)


def _carry(event: ev.Streamed, tail: str, text: str) -> HeldText:
    """Whose text it is goes with it, and nothing else that the chunk said: by the time it leaves that may be old."""
    same = {name: getattr(event, name) for name in ("call", "message_id", "chunks") if hasattr(event, name)}
    bare = type(event)(text="", source=event.source, at=event.at, **same)
    return HeldText(tail, len(event.text), codec.digest(event.text.encode()), encode_event(bare), text)
