"""What the model puts out over Responses, item by item, while a response is streamed or from one that is whole.

An item has an id of its own beside the id of its call, and events name items by it, or only by their place. Servers in
between may give an item another id in every event, so that the first one that is heard for a place stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import arguments, as_dict, as_index, as_str, identifier, is_whole
from callslip.formats.openai import items as read
from callslip.formats.openai.items import CALLS, FORMAT, Kind, kind_of
from callslip.formats.providers.conversation import ModelConversation
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.lifecycle import TURN_CLOSES

Events: TypeAlias = list[Event]
Item: TypeAlias = dict[str, Any]
Speech: TypeAlias = type[ev.MessageDelta] | type[ev.ThoughtDelta]

NAMELESS = "@+"
CUT = "the model's answer broke off before this call was whole"


class StreamedCall(msgspec.Struct):
    """A call as far as it has come. `proposed`: its item was seen, not only pieces of its arguments."""

    kind: Kind
    aliases: tuple[Alias, ...]
    served: bool = False
    proposed: bool = True
    pieces: list[str] = []
    input: Any = UNSET
    started: bool = False
    done: bool = False

    @property
    def said(self) -> str:
        return "".join(self.pieces)


class Leave(msgspec.Struct):
    """Leave to go on that the model asked for, for a call with this input."""

    input: Any
    answered: bool = False


class Output:
    """The items of one response after the other. `refused` says that the model declined."""

    def __init__(self, talk: ModelConversation, chunks: ev.Chunks) -> None:
        self.refused = False
        self._talk = talk
        self._chunks: ev.Chunks = chunks
        self._response = ""
        self._names: dict[int, str] = {}
        self._named: set[str] = set()
        self._calls: dict[str, StreamedCall] = {}
        self._count = 0
        self._nameless = 0
        self._done: set[str] = set()
        self._marks: set[str] = set()
        self._said: set[tuple[str, str, int]] = set()
        self._printing: dict[str, Alias] = {}
        self._leaves: dict[str, Leave] = {}
        self._wants_leave: set[str] = set()

    def begin(self, response: str) -> None:
        """A response begins."""
        self._talk.answering()
        self.refused, self._response, self._count = False, response, 0
        for kept in (self._names, self._named, self._calls, self._printing, self._done, self._marks, self._said):
            kept.clear()
        self._wants_leave.clear()

    @property
    def asks(self) -> bool:
        """Whether the response wants something of whoever reads it: a result, or leave to go on."""
        return self._talk.asks or bool(self._wants_leave)

    def has(self, item: Item) -> bool:
        """Whether the response had this item."""
        return read.item_mark(item) in self._marks

    def _key(self, given: Any, place: Any) -> str:
        """What an item is called here; one without id and place is heard of once."""
        identity, at = identifier(given), as_index(place)
        if at >= 0 and identity not in self._named:
            name = self._names.setdefault(at, identity or f"@{at}")
            self._named.add(name)
            return name
        self._nameless += not identity
        return identity or f"{NAMELESS}{self._nameless}"

    # Items

    def added(self, item: Item, place: Any) -> Events:
        """An item begins. Only of a call is there anything to tell yet."""
        key, kind = self._key(item.get("id"), place), kind_of(item)
        if kind in read.RESULTS:
            self._printing[key] = Alias(FORMAT, read.call_id(item) or key)
        return self._propose(key, item) if kind in CALLS and not self._is_proposed(key) else []

    def done(self, item: Item, place: Any = None) -> Events | None:
        """An item is whole; None if it is of a kind that is not known. What is told twice counts once."""
        key, kind, mark = self._key(item.get("id"), place), kind_of(item), read.item_mark(item)
        if key in self._done and kind in CALLS and item.get("call_id") and mark not in self._marks:
            key = self._key("", None)  # Another call: its server gives all items one id.
        if key in self._done:
            return []
        self._done.add(key)
        table = "call" if kind in CALLS else "result" if kind in read.RESULTS else kind
        rule = self._DONE.get(table)
        if rule is None:
            return None
        self._marks.add(mark)
        self._talk.told.add(mark)
        return rule(self, key, item)

    # Calls

    def _is_proposed(self, key: str) -> bool:
        return key in self._calls and self._calls[key].proposed

    def _propose(self, key: str, item: Item) -> Events:
        approved = identifier(item.get("approval_request_id"))
        if approved in self._leaves:
            return self._resume(key, item, approved)
        given, own = read.call_id(item), "" if key[:2] == NAMELESS else identifier(item.get("id"))
        alias = self._talk.alias(given, self._response)
        aliases = (alias, Alias(FORMAT, own)) if own not in ("", alias.id) else (alias,)
        kind, name = CALLS[kind_of(item)], read.name_of(item)
        called = StreamedCall(kind, aliases, kind.served and item.get("execution") != "client")
        if key in self._calls:  # By its pieces it is known already.
            heard = self._calls[key]
            called.pieces, called.aliases = heard.pieces, (*heard.aliases, alias)
        self._calls[key] = called
        told: dict[str, Any] = {"tool_name": name} if name else {}
        if not kind.streamed:
            called.input = told["input"] = read.input_of(item)
        told |= {"iteration": self._talk.round, "index": self._count, **read.title_of(item)}
        self._count += 1
        if not called.served:
            self._talk.wait(given, name, alias)
        return [ev.CallProposed(aliases=called.aliases, **told), *self._start(called, item)]

    def _resume(self, key: str, item: Item, approved: str) -> Events:
        """A call for which leave was asked goes on: whoever gave it, it was given."""
        aliases = (Alias(FORMAT, approved), Alias(FORMAT, identifier(item.get("id")) or approved))
        leave = self._leaves[approved]
        self._calls[key] = called = StreamedCall(CALLS[kind_of(item)], aliases, served=True, input=leave.input)
        granted: Events = [] if leave.answered else [ev.ApprovalGranted(aliases=aliases[:1], by="agent")]
        leave.answered = True
        self._wants_leave.discard(approved)
        return granted + self._start(called, {"status": "in_progress"})

    def _start(self, called: StreamedCall, item: Item) -> Events:
        if not called.served or called.started or as_str(item.get("status")) not in read.RUNNING:
            return []
        called.started = True
        return [ev.CallStarted(aliases=called.aliases)]

    def _call_done(self, key: str, item: Item) -> Events:
        made = [] if self._is_proposed(key) else self._propose(key, item)
        called = self._calls[key]
        called.done = True
        made += self._whole(called, read.input_of(item))
        ending = read.end_of(item) if called.served else None
        return [*made, ending(aliases=called.aliases, **read.came_out(item))] if ending else made

    def _whole(self, called: StreamedCall, given: Any) -> Events:
        if given is UNSET or (called.input is not UNSET and called.input == given):
            return []
        called.input = given
        return [ev.CallInput(aliases=called.aliases, input=given)]

    def running(self, event: Item, verb: str) -> Events:
        """The provider tells how far it is with a call. That it is done is told with the item."""
        called = self._calls.get(self._key(event.get("item_id"), event.get("output_index")))
        return self._start(called, {"status": verb}) if called else []

    def piece(self, event: Item) -> Events | None:
        """More of the arguments; None if nobody knows of which call."""
        called = self._meant(event)
        more = as_str(event.get("delta"))
        if called is None:
            return None
        if not more or (called.kind.streamed and called.input is not UNSET):
            return []
        called.pieces.append(more)
        return [ev.CallInputDelta(aliases=called.aliases, text=more)]

    def pieces_done(self, event: Item) -> Events | None:
        """All of the arguments, where they are all there is to the input."""
        called = self._meant(event)
        if called is None:
            return None
        return self._whole(called, read.whole(called.kind, event.get(called.kind.streamed)))

    def _meant(self, event: Item) -> StreamedCall | None:
        """The call of a piece. One that is heard of for the first time is known by its item alone."""
        key = self._key(event.get("item_id"), event.get("output_index"))
        if key not in self._calls and identifier(event.get("item_id")):
            self._calls[key] = StreamedCall(CALLS["function_call"], (Alias(FORMAT, key),), proposed=False)
        return self._calls.get(key)

    def printed(self, event: Item) -> Events | None:
        """What a command printed that the provider runs; None if nobody knows of which call."""
        alias = self._printing.get(self._key(event.get("item_id"), event.get("output_index")))
        delta = as_dict(event.get("delta"))
        more = as_str(delta.get("stdout")) + as_str(delta.get("stderr"))
        return None if alias is None else [ev.CallProgress(aliases=(alias,), text=more)] if more else []

    def _result(self, key: str, item: Item) -> Events:
        ending, told = read.result_of(item)
        return [ending(**self._talk.answered(read.call_id(item)), **told)]

    # Leave to go on

    def _requested(self, key: str, item: Item) -> Events:
        given = identifier(item.get("id"))
        alias = self._talk.alias(given, self._response)
        leave = self._leaves[alias.id] = Leave(arguments(item.get("arguments")))
        self._wants_leave.add(alias.id)
        told: dict[str, Any] = {"tool_name": as_str(item.get("name")) or UNSET, "input": leave.input}
        told |= {"aliases": (alias,), **read.title_of(item)}
        index, self._count = self._count, self._count + 1
        proposed = ev.CallProposed(iteration=self._talk.round, index=index, **told)
        return [proposed, ev.ApprovalRequested(aliases=(alias,))]

    def _answered(self, key: str, item: Item) -> Events:
        given = identifier(item.get("approval_request_id"))
        self._wants_leave.discard(given)
        if given in self._leaves:
            self._leaves[given].answered = True
        cls = ev.ApprovalGranted if item.get("approve") is True else ev.ApprovalRefused
        return [cls(aliases=(Alias(FORMAT, given),) if given else (), by="client", reason=as_str(item.get("reason")))]

    # Speech

    def speech(self, event: Item, cls: Speech, field: str, at: int, piece: str, whole: bool) -> Events:
        """More of a text, or all of it: that counts if no piece of it came."""
        key = self._key(event.get("item_id"), event.get("output_index"))
        self.refused = self.refused or "refusal" in as_str(event.get("type"))
        return [] if whole and (key, field, at) in self._said else self._say(key, cls, field, at, piece)

    def _say(self, key: str, cls: Speech, field: str, at: int, piece: str) -> Events:
        if not piece:
            return []
        begins = (key, field, at) not in self._said
        self._said.add((key, field, at))
        apart = "\n\n" if begins and at > 0 and cls is ev.ThoughtDelta else ""
        return [cls(text=apart + piece, message_id="" if key[:1] == "@" else key, chunks=self._chunks)]

    def _spoken(self, key: str, item: Item) -> Events:
        cls = ev.ThoughtDelta if kind_of(item) == "reasoning" else ev.MessageDelta
        self.refused = self.refused or read.refuses(item)
        made: Events = []
        for field, at, piece in read.parts_of(item):
            made += [] if (key, field, at) in self._said else self._say(key, cls, field, at, piece)
        return [*made, ev.MessageEnded()] if cls is ev.MessageDelta else made

    # Ends

    def finish(self) -> Events:
        """The response is over: so are arguments that nobody called whole."""
        return [event for called in self._calls.values() for event in self._last(called)]

    def _last(self, called: StreamedCall) -> Events:
        known = called.input is not UNSET or not called.pieces
        return [] if known else self._whole(called, read.whole(called.kind, called.said))

    def break_off(self, reason: str, why: str = "") -> Events:
        """The response stops in the middle: what the provider ran, and what is not whole, ends with it."""
        closing, detail = TURN_CLOSES.get(reason, ev.CallLost), f"{CUT}: {why}" if why else CUT
        made: Events = []
        for called in self._calls.values():
            whole = called.done or (not called.served and (called.input is not UNSET or is_whole(called.said)))
            made += self._last(called) if whole else [closing(aliases=called.aliases, reason=detail)]
        return made

    _DONE: ClassVar[dict[str, Callable[[Any, str, Item], Events]]] = {
        "call": _call_done,
        "result": _result,
        "message": _spoken,
        "reasoning": _spoken,
        read.ASKS: _requested,
        read.ANSWERS: _answered,
    }
