"""Read one conversation of an agent runtime, each kind of message by its entry of a table.

A `user_message` begins a turn and ends the previous one; `complete`, `error` and `cancelled` end the turn if a
`user_message` began it. Producers that send only acts and observes have no turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from callslip.formats.act_observe import wire
from callslip.formats.act_observe.calls import ACT_STATUSES, ENDING, OPEN_STATUSES, Calls, has_odd_fields
from callslip.formats.act_observe.texts import TEXT_FIELDS, DeltaType, Texts
from callslip.formats.act_observe.wire import FORMAT, Message, read
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import identifier
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]

DELTA_TYPES: dict[str, DeltaType] = {
    **dict.fromkeys(("text_delta", "assistant_message"), ev.MessageDelta),
    **dict.fromkeys(("thought_delta", "thought"), ev.ThoughtDelta),
}
NAME_FIELDS = (*wire.EXECUTION, *wire.CALL, *wire.TOOL, wire.CALLSLIP)


class ActObserveDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._calls = Calls()
        self._texts = Texts(chunks or "delta")
        self._unfinished = Unfinished()
        self._in_turn = False

    def feed(self, message: Any) -> list[Draft]:
        parsed = read(message, self._HANDLERS)
        events = self._HANDLERS[parsed.kind](self, parsed) if parsed.kind else None
        if events is None:
            events = [ev.Raw()]
        drafts = [Draft(_complete_event(event, message, parsed.at)) for event in events]
        self._unfinished.follow(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        self._change_turn(False)
        return self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return False

    # Calls

    def _act(self, message: Message) -> Events:
        is_known_status = message.text("status") in ("", *ACT_STATUSES)
        events = self._calls.act(message)
        return events + _raw_if_needed(message, NAME_FIELDS, wire.INPUT, ("status",) if is_known_status else ())

    def _observe(self, message: Message) -> Events | None:
        events = self._calls.observe(message)
        if not events:
            return None
        is_known_status = message.text("status").lower() in ("", *ENDING, *OPEN_STATUSES)
        status = ("status",) if is_known_status else ()
        known = (NAME_FIELDS, wire.OUTPUT, wire.FAILED, status, wire.DURATION, ("error", "reason"))
        return events + _raw_if_needed(message, *known)

    # Turns

    def _user_message(self, message: Message) -> Events | None:
        text = message.text(*TEXT_FIELDS)
        if not text:
            return None
        ended = self._end_turn("end_turn")
        self._change_turn(True)
        message_id = identifier(message.fields.get("message_id") or message.fields.get("id"))
        events: Events = [*ended, ev.TurnStarted(), ev.MessageUser(text=text, message_id=message_id)]
        return events + _raw_if_needed(message, TEXT_FIELDS, ("id", "message_id", "role"))

    def _complete(self, message: Message) -> Events:
        return self._end_turn("end_turn") + _raw_if_needed(message)

    def _error(self, message: Message) -> Events | None:
        events = self._end_turn("error", message.text(*TEXT_FIELDS, "error"))
        return events + _raw_if_needed(message, TEXT_FIELDS, ("error",)) if events else None

    def _cancelled(self, message: Message) -> Events | None:
        events = self._end_turn("cancelled", message.text("reason"))
        return events + _raw_if_needed(message, ("reason",)) if events else None

    def _end_turn(self, reason: str, detail: str = "") -> Events:
        was_in_turn = self._in_turn
        self._change_turn(False)
        return [ev.TurnEnded(reason=reason, detail=detail)] if was_in_turn else []

    def _change_turn(self, in_turn: bool) -> None:
        self._in_turn = in_turn
        self._calls.change_turn()
        self._texts.reset()

    # Texts

    def _delta(self, message: Message) -> Events | None:
        return _text_events(self._texts.add_piece(DELTA_TYPES[message.kind], message), message)

    def _text_start(self, message: Message) -> Events:
        return _raw_if_needed(message)

    def _text_end(self, message: Message) -> Events | None:
        return _text_events(self._texts.end_text(ev.MessageDelta, message.text("full_text")), message)

    def _full_text(self, message: Message) -> Events | None:
        text = message.text(*TEXT_FIELDS)
        return _text_events(self._texts.end_text(DELTA_TYPES[message.kind], text), message) if text else None

    _HANDLERS: ClassVar[dict[str, Callable[[Any, Message], Events | None]]] = {
        "act": _act,
        "observe": _observe,
        "user_message": _user_message,
        "complete": _complete,
        "error": _error,
        "cancelled": _cancelled,
        "text_start": _text_start,
        "text_delta": _delta,
        "text_end": _text_end,
        "assistant_message": _full_text,
        "thought": _full_text,
        "thought_delta": _delta,
    }


def _text_events(events: Events | None, message: Message) -> Events | None:
    return None if events is None else events + _raw_if_needed(message, TEXT_FIELDS, ("full_text", "role"))


def _raw_if_needed(message: Message, *known: tuple[str, ...]) -> Events:
    """Return a raw event if the message has more than the known fields."""
    return [ev.Raw()] if message.has_other_fields(*known) or has_odd_fields(message) else []


def _complete_event(event: Event, body: Any, at: int) -> Event:
    """Return the event with its time, and a raw one with the body of the message."""
    if isinstance(event, ev.Raw):
        return ev.Raw(format=FORMAT, body=body, at=at)
    return event if event.at or not at else structs.replace(event, at=at)
