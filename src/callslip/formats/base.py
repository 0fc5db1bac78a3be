"""Define decoders and encoders. A decoder turns foreign messages into drafts; an encoder turns a session into messages.

Both are synchronous and pure: no clock, no store, no randomness. A decoder accepts any JSON value without raising: a
message that it does not understand becomes a `raw` draft of the full message. Formats do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import structs

from callslip.formats.json_fields import as_dict
from callslip.formats.turn_scope import Turn
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Info, Snapshot
from callslip.model.events import Draft, Event
from callslip.rules.entry_blocks import is_of_subagent
from callslip.rules.fold_state import FoldState

Events: TypeAlias = list[Event]
RequiresValidation: TypeAlias = Mapping[str, bool] | Callable[[str], bool]
"""Whether a user must accept the calls of a tool, by its name."""
DeltaType: TypeAlias = type[ev.MessageDelta] | type[ev.ThoughtDelta]


class Decoder(Protocol):
    """Reads one conversation of a format, message by message."""

    def feed(self, message: Any) -> list[Draft]:
        """Return the drafts of one message. Drafts that belong together are returned together."""
        ...

    def close(self, reason: str) -> list[Draft]:
        """Return the drafts that end what is open when the input ends. `reason` is one of `turn.ended`."""
        ...

    def holds_input(self) -> bool:
        """Return whether a part of the input is not in any draft yet: it waits for the next messages."""
        ...


class Unfinished:
    """Tracks what the end of the input would leave open: a turn, or a text outside of turns."""

    def __init__(self) -> None:
        self._in_turn = self._in_text = False

    def follow(self, drafts: Iterable[Draft]) -> None:
        """Update the state from the drafts of a message."""
        for event in (draft.event for draft in drafts if not draft.witness):
            if isinstance(event, ev.TurnStarted | ev.TurnEnded):
                self._in_turn, self._in_text = isinstance(event, ev.TurnStarted), False
            elif isinstance(event, ev.MessageDelta | ev.ThoughtDelta | ev.MessageEnded):
                self._in_text = not isinstance(event, ev.MessageEnded)

    def close(self, reason: str) -> list[Draft]:
        """Return the draft that ends what is open."""
        in_turn, in_text = self._in_turn, self._in_text
        self._in_turn = self._in_text = False
        if in_turn:
            return [Draft(ev.TurnEnded(reason=reason))]
        return [Draft(ev.MessageEnded())] if in_text else []


def drafts_of(events: Iterable[Event], at: int = 0) -> list[Draft]:
    """Return events as drafts, with the time `at` unless it is 0."""
    return [Draft(structs.replace(event, at=at) if at else event) for event in events]


def raw_if(condition: object, format: str, body: Any) -> Events:
    """Return the full message as a raw event if `condition` is true: if other events do not carry all of it."""
    return [ev.Raw(format=format, body=body)] if condition else []


CAPTURE_FIELDS = {"t", "dir", "msg"}


def unwrapped(message: Any) -> tuple[Any, float]:
    """Return the message inside of a capture row and the seconds of the row; another message as it is, with 0."""
    row = as_dict(message)
    if not {"dir", "msg"} <= set(row) <= CAPTURE_FIELDS:
        return message, 0.0
    seconds = row.get("t")
    return row["msg"], float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else 0.0


class Splitter(Protocol):
    """Separates the conversations that share one connection; each has its own decoder."""

    def split(self, message: Any) -> list[tuple[str, Any]]:
        """Return the conversations that a message concerns and what to feed to their decoders. "" is the first one."""
        ...


# Encoders. A history is a function from a state, a snapshot or rendered entries to a list of messages. A stream sends
# one turn to a client that has its own protocol and cannot resume in the middle.

Source = FoldState | Snapshot | Iterable[Entry]


def snapshot_of(source: Source) -> Snapshot:
    """Return a source as a snapshot. Plain entries have no session and no session info."""
    if isinstance(source, FoldState):
        return source.snapshot()
    return source if isinstance(source, Snapshot) else Snapshot("", 0, Info(), list(source))


def conversation_of(source: Source) -> Snapshot:
    """Return a source as a snapshot of what the model of the session saw: without the entries of sub-agents."""
    snapshot = snapshot_of(source)
    if not any(map(is_of_subagent, snapshot.entries)):
        return snapshot
    return structs.replace(snapshot, entries=[entry for entry in snapshot.entries if not is_of_subagent(entry)])


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

    @property
    def turn(self) -> Turn:
        """The turn, which may be a block outside of turns."""
        ...

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
