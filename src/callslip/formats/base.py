"""Ways in and out. A decoder turns foreign messages into drafts; an encoder turns what is recorded into foreign ones.

Both are sync and pure: no clock, no store, no randomness. A decoder takes any JSON value without raising: what it does
not understand it drafts as `raw`, whole. Formats know the ledger's words and know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import msgspec

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Info, Snapshot
from callslip.model.events import Draft, Event
from callslip.rules.fold_state import FoldState


class Decoder(Protocol):
    """Reads one conversation of a format, message by message."""

    def feed(self, message: Any) -> list[Draft]:
        """What one message says. Drafts that belong together come together."""
        ...

    def close(self, reason: str) -> list[Draft]:
        """The line ended here: what that ends. `reason` is why, in the words of `turn.ended`."""
        ...


class Unfinished:
    """What the end of the line would leave open: a turn, or a text outside of turns (S2.12)."""

    def __init__(self) -> None:
        self._turn = self._text = False

    def see(self, drafts: Iterable[Draft]) -> None:
        """Follow what a decoder drafts."""
        for event in (draft.event for draft in drafts if not draft.witness):
            if isinstance(event, ev.TurnStarted | ev.TurnEnded):
                self._turn, self._text = isinstance(event, ev.TurnStarted), False
            elif isinstance(event, ev.MessageDelta | ev.ThoughtDelta | ev.MessageEnded):
                self._text = not isinstance(event, ev.MessageEnded)

    def end(self, reason: str) -> list[Event]:
        """What ends it."""
        turn, text = self._turn, self._text
        self._turn = self._text = False
        if turn:
            return [ev.TurnEnded(reason=reason)]
        return [ev.MessageEnded()] if text else []


ROW = {"t", "dir", "msg"}


def unwrapped(message: Any) -> tuple[Any, float]:
    """A message without the capture row it stands in, and the seconds of that row."""
    row = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
    if not {"dir", "msg"} <= set(row) <= ROW:
        return cast(Any, message), 0.0
    seconds = row.get("t")
    return row["msg"], float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else 0.0


class Splitter(Protocol):
    """Tells apart the conversations that share one wire; each has a decoder of its own."""

    def split(self, message: Any) -> list[tuple[str, Any]]:
        """Which conversations a message concerns, and what their decoders are to be fed. "" is the first one."""
        ...


# Encoders. A history is a function from a state, a snapshot or rendered entries to a list of messages. A stream sends
# one turn to a client that has its own protocol and cannot resume in the middle.

Source = FoldState | Snapshot | Iterable[Entry]


def snapshot_of(source: Source) -> Snapshot:
    """Return a source as a snapshot. Plain entries have no session and no session info."""
    if isinstance(source, FoldState):
        return source.snapshot()
    return source if isinstance(source, Snapshot) else Snapshot("", 0, Info(), list(source))


SSE_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


def sse_frame(chunk: Any) -> bytes:
    """Return a chunk as one server-sent event whose lines end with LF."""
    return b"data: " + codec.encode(chunk) + b"\n\n"


class Restart(msgspec.Struct, frozen=True):
    """The protocol has no chunks for a change: send `chunks`, end the connection, and replay to clients that return."""

    reason: str
    chunks: tuple[Any, ...] = ()


class TurnEncoder(Protocol):
    """Encodes one turn as chunks, from the current state of its session: first `opening`, then `feed` for each event.

    After the opening, and after each feed, the client has the message that the history has.
    """

    finished: bool

    def opening(self) -> list[Any]:
        """Return the turn so far, from its start."""
        ...

    def feed(self, event: Event) -> list[Any] | Restart:
        """Return what an event changes: nothing for most events of other turns, and nothing after the end."""
        ...

    def close(self, reason: str) -> list[Any]:
        """End the stream before its turn ends."""
        ...


class Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """Streams a format: `encoder(state, turn)` makes chunks, `frame` makes the bytes of a chunk.

    With `events` the bytes are server-sent events, and the server may add ids to them. `done` ends every connection
    that ends in order; `alive` keeps an idle connection open, and clients ignore it.
    """

    encoder: Callable[[Any, str], TurnEncoder]
    frame: Callable[[Any], bytes]
    headers: Mapping[str, str]
    done: bytes = b""
    alive: bytes = b":\n\n"
    events: bool = True
