"""Encode acts and observes: a turn as a live stream, and a session as a timeline.

Every execution has one act and, however it ends, one observe with the same id. An act that changed is sent again with
the same id, and readers replace it. Ids and results are written under both names that readers look for. A stream ends
with `complete`, `cancelled` or `error`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

from callslip.formats.act_observe.items import (
    RENDERED_FIELDS,
    Act,
    Item,
    Spoken,
    act_of,
    execution_id,
    observe_of,
    text_delta,
    text_end,
    text_item,
    text_start,
)
from callslip.formats.base import SSE_HEADERS, Source, Streaming, conversation_of, sse_frame
from callslip.formats.message_ids import MessageIds
from callslip.formats.turn_stream import TurnStream
from callslip.model import codec
from callslip.model.entries import Append, Entry, Message, Set, Thought, ToolCall
from callslip.rules.entry_blocks import split_blocks

RESTART: Item = {"type": "restart"}
# The last event by the reason that the turn ended; `complete` for any other reason.
ENDINGS = {
    **dict.fromkeys(("cancelled", "superseded"), ("cancelled", "reason")),
    **dict.fromkeys(("error", "eof"), ("error", "message")),
}


# The timeline


def timeline(source: Source) -> list[Item]:
    """Return the items of a session, oldest first."""
    blocks = [(block, MessageIds(execution_id)) for block in split_blocks(conversation_of(source).entries)]
    return [item for block, ids in blocks for entry in block for item in _items(entry, ids)]


def _items(entry: Any, ids: MessageIds) -> list[Item]:
    if isinstance(entry, Message | Thought):
        return [text_item(entry)]
    act = act_of(entry, ids) if isinstance(entry, ToolCall) else None
    if act is None:
        return []
    end = observe_of(entry)
    return [act.item(end), *([end.item(act)] if end else [])]


# One turn, live


class _SentCall(NamedTuple):
    """What the client has of a call. There is no act while the call only waits."""

    act: Act | None
    is_observed: bool


class ActObserveRenderer:
    """Render a turn as act, observe and text events."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = True

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._ids = MessageIds(execution_id)

    def replay(self, entries: list[Entry]) -> list[Item]:
        return self._stream.begin_all(entries)

    def begin(self, entry: Entry) -> list[Item]:
        if not isinstance(entry, Message | Thought):
            return []
        if not entry.streaming:
            return [text_item(entry)]
        replayed = [text_delta(entry, entry.content)] if self._stream.is_replay and entry.content else []
        return text_start(entry) + replayed

    def append_text(self, entry: Spoken, text: str) -> list[Item]:
        return [text_delta(entry, text)]

    def end_text(self, entry: Spoken) -> list[Item]:
        return [text_end(entry)]

    def render_call(
        self, entry: ToolCall, sent: _SentCall | None, changed: Collection[str]
    ) -> tuple[_SentCall, list[Item]]:
        act, end = act_of(entry, self._ids), observe_of(entry)
        before = sent.act if sent else None
        events: list[Item] = []
        is_sent = before is not None and act is not None and before == act and codec.json_equal(before.input, act.input)
        if act is not None and not is_sent:
            events.append(act.event())
        if act is not None and end is not None and not (sent and sent.is_observed):
            events.append(end.event(act))
        return _SentCall(act, end is not None), events

    def render_other(self, patch: Set | Append) -> list[Item]:
        return []

    def finish(self, is_over: bool) -> list[Item]:
        if not is_over:
            return []
        reason = self._stream.turn.reason
        kind, name = ENDINGS.get(reason, ("complete", "reason"))
        return [{"type": kind, **({name: reason} if reason not in ("", "end_turn") else {})}]

    def close(self, reason: str) -> list[Item]:
        return [{"type": "error", "message": reason}]

    def restart(self, reason: str) -> tuple[Item, ...]:
        return (RESTART,)


open_stream = partial(TurnStream, ActObserveRenderer)
STREAM = Streaming(encoder=open_stream, frame=sse_frame, headers=SSE_HEADERS)
