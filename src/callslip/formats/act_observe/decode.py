"""Reads one conversation of an agent runtime, each kind of event by its own row of a table.

A `user_message` begins a turn, and ends the one before it; `complete`, `error` and `cancelled` end the turn, if it was
begun here. Producers that know only acts and observes have no turns at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from callslip.formats.act_observe import wire
from callslip.formats.act_observe.calls import ACT_WORDS, ENDING, GOING_ON, Calls, odd
from callslip.formats.act_observe.speech import WORDS, Speech
from callslip.formats.act_observe.wire import FORMAT, Message, read
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import identifier
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]

NAMES = (*wire.EXECUTION, *wire.CALL, *wire.TOOL)


class ActObserveDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._calls = Calls()
        self._speech = Speech(chunks or "delta")
        self._unfinished = Unfinished()
        self._turn = False

    def feed(self, message: Any) -> list[Draft]:
        said = read(message, self._RULES)
        made = self._RULES[said.kind](self, said) if said.kind else None
        if made is None:
            made = [ev.Raw()]
        drafts = [Draft(_finished(event, message, said.at)) for event in made]
        self._unfinished.see(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        """The line ended, and with it the turn."""
        self._turned(False)
        return [Draft(event) for event in self._unfinished.end(reason)]

    # Calls

    def _act(self, message: Message) -> Events:
        known = message.text("status") in ("", *ACT_WORDS)
        made = self._calls.act(message)
        return made + _kept(message, NAMES, wire.INPUT, ("status",) if known else ())

    def _observe(self, message: Message) -> Events | None:
        made = self._calls.observe(message)
        if not made:
            return None
        words = ("status",) if message.text("status").lower() in ("", *ENDING, *GOING_ON) else ()
        # What it took is told by the times of the call, where it has any.
        took = wire.DURATION if not message.first(wire.DURATION) or made[-1].at else ()
        return made + _kept(message, NAMES, wire.OUTPUT, wire.FAILED, words, took, ("error", "reason"))

    # Turns

    def _user(self, message: Message) -> Events | None:
        text = message.text(*WORDS)
        if not text:
            return None
        ended = self._ended("end_turn")
        self._turned(True)
        identity = identifier(message.said.get("message_id") or message.said.get("id"))
        made: Events = [*ended, ev.TurnStarted(), ev.MessageUser(text=text, message_id=identity)]
        return made + _kept(message, WORDS, ("id", "message_id", "role"))

    def _complete(self, message: Message) -> Events:
        return self._ended("end_turn") + _kept(message)

    def _error(self, message: Message) -> Events | None:
        made = self._ended("error", message.text(*WORDS, "error"))
        return made + _kept(message, WORDS, ("error",)) if made else None

    def _cancelled(self, message: Message) -> Events | None:
        made = self._ended("cancelled", message.text("reason"))
        return made + _kept(message, ("reason",)) if made else None

    def _ended(self, reason: str, detail: str = "") -> Events:
        ours = self._turn
        self._turned(False)
        return [ev.TurnEnded(reason=reason, detail=detail)] if ours else []

    def _turned(self, on: bool) -> None:
        self._turn = on
        self._calls.turn_changed()
        self._speech.reset()

    # Texts

    def _text_delta(self, message: Message) -> Events | None:
        return _said(self._speech.piece(ev.MessageDelta, message), message)

    def _thought_delta(self, message: Message) -> Events | None:
        return _said(self._speech.piece(ev.ThoughtDelta, message), message)

    def _text_start(self, message: Message) -> Events:
        return _kept(message)

    def _text_end(self, message: Message) -> Events | None:
        return _said(self._speech.whole(ev.MessageDelta, message.text("full_text")), message)

    def _text(self, message: Message) -> Events | None:
        text = message.text(*WORDS)
        return _said(self._speech.whole(ev.MessageDelta, text), message) if text else None

    def _thought(self, message: Message) -> Events | None:
        text = message.text(*WORDS)
        return _said(self._speech.whole(ev.ThoughtDelta, text), message) if text else None

    _RULES: ClassVar[dict[str, Callable[[Any, Message], Events | None]]] = {
        "act": _act,
        "observe": _observe,
        "user_message": _user,
        "complete": _complete,
        "error": _error,
        "cancelled": _cancelled,
        "text_start": _text_start,
        "text_delta": _text_delta,
        "text_end": _text_end,
        "assistant_message": _text,
        "thought": _thought,
        "thought_delta": _thought_delta,
    }


def _said(made: Events | None, message: Message) -> Events | None:
    return None if made is None else made + _kept(message, WORDS, ("full_text", "role"))


def _kept(message: Message, *taken: tuple[str, ...]) -> Events:
    """The message, whole, if there is more to it than these."""
    return [ev.Raw()] if message.leaves(*taken) or odd(message) else []


def _finished(event: Event, body: Any, at: int) -> Event:
    """The event with its time; what is kept is kept as it came."""
    if isinstance(event, ev.Raw):
        return ev.Raw(format=FORMAT, body=body, at=at)
    return event if event.at or not at else structs.replace(event, at=at)
