"""Hold back the end of a streamed text that may begin a secret, until more of the text or a moment of silence.

Only that end is held. It is stored, without the secrets already found in it. If it is released and a secret completes
later, the rest of the secret is still replaced: `sk-ant-api0[redacted:anthropic]`.

A chunk that is not declared as a delta is compared with the chunks around it, which a part of it would distort. So its
beginning is marked as `partial` and its end as `rest`. A chunk that continues a possible secret of the chunk before it
does not repeat that chunk, so both are deltas, and it is declared as one. One that begins with the chunk before it may
be a repetition, so the two are not joined to a secret. Only a chunk with the policy `dedupe` is held in full, as no
part of it can be shown before it is known whether the text ends with it.
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
from callslip.rules.streamed_text import is_same_message

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
    """A chunk to append, and the text held now. `first`: the text held before must be released before it."""

    event: ev.Streamed
    held: HeldText | None
    first: bool = False


def hold_back(redactor: Redactor, held: HeldText | None, event: ev.Streamed, due: int) -> HeldChunk:
    """Return a chunk with the text held before it and without an end that may begin a secret, held until `due`."""
    before = _before(redactor, held, event) if held is not None else None
    first = held is not None and before is None
    if before is None:
        before = _NO_TEXT
    elif before is held and isinstance(event, ev.CHUNKS) and _is_compared(event):
        event = structs.replace(event, chunks="delta", partial=False, rest=True)
    out, carry = redactor.feed(before.carry or before.tail, event.text)
    out, shown = _cut_shown(before.shown, out)
    out, text = before.text + out, ""
    policy = event.chunks if isinstance(event, ev.CHUNKS) else "delta"
    if carry and policy == "dedupe":
        out, text = "", out
    held_now = _hold(redactor, _with_message_id(event, held), carry, shown, text, due) if carry else None
    changed = event if out is event.text else structs.replace(event, text=out)
    if held_now is not None and held_now.due and policy in _SPLIT_POLICIES:
        changed = structs.replace(changed, partial=True)
    return HeldChunk(changed, held_now, first)


def release_text(redactor: Redactor, held: HeldText) -> ev.Streamed | None:
    """Return the held text as a chunk, or None if nothing is held."""
    text = held.text + _cut_shown(held.shown, redactor.flush(held.carry or held.tail))[0]
    event = decode_event(held.event) if text else None
    return structs.replace(event, text=text) if isinstance(event, ev.STREAMED) else None


def remember_release(redactor: Redactor, held: HeldText) -> HeldText:
    """Return what to remember of a released text, so that the rest of a secret that it began is not shown."""
    carry = held.carry or held.tail
    shown, rest = redactor.release(carry)
    if rest:  # A secret was found, and only its remaining characters are dropped.
        return structs.replace(held, tail=rest, text="", due=0, carry="", shown="")
    return structs.replace(held, tail="", text="", due=0, carry=carry, shown=shown)


def continues_text(held: HeldText, event: Event) -> bool:
    """Return whether an event belongs to the text whose end is held."""
    before = decode_event(held.event)
    if isinstance(event, ev.CHUNKS):
        return isinstance(before, type(event)) and is_same_message(before.message_id, event.message_id)
    return isinstance(event, ev.CallEvent) and isinstance(before, type(event)) and before.call == event.call


_NO_TEXT = HeldText("", 0, "", b"")
_SPLIT_POLICIES = ("auto", "cumulative")


def _before(redactor: Redactor, held: HeldText, event: ev.Streamed) -> HeldText | None:
    """Return the held text to join with the chunk, or None if it must be released before it."""
    if not continues_text(held, event):
        return None
    if not _is_compared(event):
        return held
    start = event.text[: held.length]
    repeats = len(event.text) >= held.length and codec.digest(start.encode()) == held.digest
    if isinstance(event, ev.CHUNKS) and event.chunks == "cumulative":
        return _NO_TEXT if repeats else None  # The chunk contains the held text.
    if _is_declared_delta(held):  # It continued a secret, so this chunk does too, even if it repeats it.
        return held
    return held if not repeats and _may_join_secret(redactor, held, event.text) else None


def _is_compared(event: ev.Streamed) -> bool:
    """Return whether the meaning of a chunk depends on the chunks before it."""
    return isinstance(event, ev.CHUNKS) and event.chunks != "delta" and not event.rest


def _is_declared_delta(held: HeldText) -> bool:
    before = decode_event(held.event)
    return isinstance(before, ev.CHUNKS) and before.chunks == "delta"


def _with_message_id(event: ev.Streamed, held: HeldText | None) -> ev.Streamed:
    """Return a chunk with the id of the message that it continues, if it has none."""
    if held is None or not isinstance(event, ev.CHUNKS) or event.message_id or not continues_text(held, event):
        return event
    before = decode_event(held.event)
    return structs.replace(event, message_id=before.message_id) if isinstance(before, ev.CHUNKS) else event


def _may_join_secret(redactor: Redactor, held: HeldText, text: str) -> bool:
    """Return whether a secret may begin in the held text and end in this one, which means that both are deltas."""
    carry = held.carry or held.tail
    flushed = redactor.flush(carry)
    before = flushed or held.text
    alone, rest = redactor.feed("", text, before)
    if redactor.feed(carry, text) != (flushed + alone, rest):
        return True
    return before.endswith("\\") and redactor.feed("", text) != (alone, rest)  # The secret follows an escape.


def _cut_shown(shown: str, text: str) -> tuple[str, str]:
    """Return what follows in `text` after the text shown before, and how much of the latter is not in `text` yet.

    A mark in place of a secret that begins in the text shown is not cut.
    """
    if shown.startswith(text):
        return "", shown[len(text) :]
    pairs = enumerate(zip(shown, text, strict=False))
    return text[next((at for at, (old, new) in pairs if old != new), len(shown)) :], ""


def _hold(redactor: Redactor, event: ev.Streamed, carry: str, shown: str, text: str, due: int) -> HeldText:
    """Return the held text with the ids of its chunk; its other fields may be outdated when it is released."""
    names = ("call", "message_id", "names_message", "chunks", "partial", "parent")
    same = {name: getattr(event, name) for name in names if hasattr(event, name)}
    if isinstance(event, ev.CHUNKS):
        same["rest"] = event.rest or event.chunks in _SPLIT_POLICIES
    bare = type(event)(text="", source=event.source, at=event.at, **same)
    length, digest, body = len(event.text), codec.digest(event.text.encode()), encode_event(bare)
    flushed = redactor.flush(carry)
    hidden = _cut_shown(shown, flushed)[0]
    due = due if text or hidden else 0
    if not shown or not flushed:
        return HeldText(carry, length, digest, body, text, due)
    return HeldText(" " + hidden if hidden else "", length, digest, body, text, due, carry, shown)
