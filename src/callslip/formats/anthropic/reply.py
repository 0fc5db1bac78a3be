"""An answer over Messages while it is streamed: blocks by their index, each begun, added to, and ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET

from callslip.formats.anthropic import blocks as read
from callslip.formats.anthropic.blocks import kind_of
from callslip.formats.json_fields import arguments, as_dict, as_index, as_str, identifier, is_whole
from callslip.formats.providers.conversation import ModelConversation
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.lifecycle import TURN_CLOSES

Events: TypeAlias = list[Event]
Said: TypeAlias = dict[str, Any]

CUT = "the model's answer broke off before the arguments were whole"


class StreamedCall(msgspec.Struct):
    """A call as far as it has come. `value` are arguments that came with its beginning."""

    aliases: tuple[Alias, ...]
    given: str
    name: str
    served: bool
    value: Any = UNSET
    pieces: list[str] = []
    whole: bool = False

    @property
    def said(self) -> str:
        return "".join(self.pieces)

    @property
    def input(self) -> Any:
        return arguments(self.said) if self.pieces or self.value is UNSET else self.value


class Reply:
    """One answer. `reason` is why it stopped, "" as long as it did not say."""

    def __init__(self, talk: ModelConversation, identity: str, chunks: ev.Chunks) -> None:
        self.identity = identity
        self.finished = False
        self.reason = ""
        self.detail = ""
        self.usage: Said = {}
        self._talk = talk
        self._chunks: ev.Chunks = chunks
        self._calls: dict[int, StreamedCall] = {}
        self._said: list[str] = []
        self._speaks = False

    # What a block says, streamed or not

    def say(self, cls: read.Speech, piece: str) -> Events:
        if not piece:
            return []
        self._speaks = True
        self._said += [piece] if cls is ev.MessageDelta else []
        return [cls(text=piece, message_id=self.identity, chunks=self._chunks)]

    def propose(self, place: int, block: Said, *, whole: bool) -> Events:
        """A call begins. Its arguments come in pieces, unless it is whole already."""
        given, told = identifier(block.get("id")), read.told_of(block)
        alias = self._talk.alias(given, self.identity)
        served = read.CALLS[kind_of(block)]
        called = StreamedCall(
            (alias,), given, told.get("tool_name", ""), served, block.get("input") or UNSET, whole=whole
        )
        index = len(self._calls)
        if place in self._calls:  # Two blocks in one place: what comes now is about the second.
            self._calls[-1 - index] = self._calls.pop(place)
        self._calls[place] = called
        self._speaks = False  # A new entry ends the text.
        self._talk.wait(given, called.name, alias, served=served)
        told |= {"iteration": self._talk.round, "index": index, **({"input": called.input} if whole else {})}
        return [ev.CallProposed(aliases=called.aliases, **told), *self._start(called)]

    def _start(self, called: StreamedCall) -> Events:
        """What the provider runs it runs once the arguments are whole."""
        return [ev.CallStarted(aliases=called.aliases)] if called.served and called.whole else []

    def result(self, block: Said) -> Events:
        """The provider ran a tool of its own."""
        ending, told = read.result_of(block)
        self._speaks = False
        return [ending(**self._talk.answered(identifier(block.get("tool_use_id")), served=True), **told)]

    def block(self, place: int, block: Said, *, whole: bool) -> Events | None:
        """A block, or the beginning of one; None if it is of a kind that is not known."""
        kind = kind_of(block)
        if kind in read.SPEECH:
            cls, field = read.SPEECH[kind]
            return self.say(cls, as_str(block.get(field)))
        if kind in read.CALLS:
            return self.propose(place, block, whole=whole)
        return self.result(block) if read.is_result(block) else None

    # Events of the stream; None is what was not understood

    def start(self, event: Said) -> Events | None:
        return self.block(as_index(event.get("index")), as_dict(event.get("content_block")), whole=False)

    def delta(self, event: Said) -> Events | None:
        delta = as_dict(event.get("delta"))
        rule = self._DELTAS.get(kind_of(delta))
        return rule(self, as_index(event.get("index")), delta) if rule else None

    def _text(self, place: int, delta: Said) -> Events | None:
        return self.say(ev.MessageDelta, as_str(delta.get("text")))

    def _thinking(self, place: int, delta: Said) -> Events | None:
        return self.say(ev.ThoughtDelta, as_str(delta.get("thinking")))

    def _piece(self, place: int, delta: Said) -> Events | None:
        called, more = self._calls.get(place), as_str(delta.get("partial_json"))
        if called is None:
            return None
        called.pieces.append(more)
        return [ev.CallInputDelta(aliases=called.aliases, text=more)] if more else []

    def stop(self, place: int) -> Events:
        """A block is whole."""
        called = self._calls.get(place)
        if called is None or called.whole:
            return []
        called.whole = True
        return [ev.CallInput(aliases=called.aliases, input=called.input), *self._start(called)]

    # Ends

    @property
    def pauses(self) -> bool:
        """Whether the answer is to be gone on with: by results, or by asking for the rest of it."""
        return self._talk.asks or self.reason == read.PAUSED

    def finish(self) -> Events:
        made = [event for place in list(self._calls) for event in self.stop(place)]
        return made + self._over()

    def break_off(self, reason: str, why: str = "") -> Events:
        """The answer stops in the middle: a call that is not whole, or that the provider ran, ends with it."""
        closing, detail = TURN_CLOSES.get(reason, ev.CallLost), f"{CUT}: {why}" if why else CUT
        made: Events = []
        for place, called in list(self._calls.items()):
            lost = not called.whole and (called.served or not is_whole(called.said))
            made += [closing(aliases=called.aliases, reason=detail)] if lost else self.stop(place)
        return made + self._over()

    def _over(self) -> Events:
        self.finished = True
        self._talk.told.add(read.answer_mark([called.given for called in self._calls.values()], "".join(self._said)))
        return [ev.MessageEnded()] if self._speaks else []

    _DELTAS: ClassVar[dict[str, Callable[[Any, int, Said], Events | None]]] = {
        "text_delta": _text,
        "thinking_delta": _thinking,
        "input_json_delta": _piece,
    }
