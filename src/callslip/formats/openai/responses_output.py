"""The output of the model over Responses, item by item, streamed or from a full response.

An item has an id besides the id of its call, and events refer to items by it or only by their index. Proxies may change
the id of an item in every event, so the first id for an index is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from callslip.formats.base import DeltaType, Events
from callslip.formats.call_tracker import TrackedCall
from callslip.formats.json_fields import Fields, as_dict, as_index, as_str, identifier, is_json, parse_arguments
from callslip.formats.openai import responses_items as items
from callslip.formats.openai.responses_items import CALLS, FORMAT, Item, Kind, kind_of
from callslip.formats.providers.conversation import ModelConversation, interrupt_with
from callslip.model import events as ev
from callslip.model.events import Alias

UNNAMED = "@+"
CALL_CUT = "the model's answer broke off before this call was whole"


class ResponseCall(TrackedCall, kw_only=True):
    """A call. `is_proposed`: its item was seen, not only pieces of its arguments. `is_done`: the item is complete."""

    kind: Kind
    is_done: bool = False


class ApprovalRequest(msgspec.Struct):
    """An approval request for a call with this input."""

    input: Any
    is_answered: bool = False


class Output:
    """The items of the current response. `is_refused`: the model declined."""

    def __init__(self, conversation: ModelConversation, chunks: ev.Chunks) -> None:
        self._conversation = conversation
        self._chunks: ev.Chunks = chunks
        self._unnamed = 0
        self._requests: dict[str, ApprovalRequest] = {}
        self._reset("")

    def begin(self, response: str) -> None:
        """Begin a response."""
        self._conversation.begin_round()
        self._reset(response)

    def _reset(self, response: str) -> None:
        self.is_refused = False
        self._response = response
        self._names: dict[int, str] = {}
        self._used_names: set[str] = set()
        self._calls: dict[str, ResponseCall] = {}
        self._call_count = 0
        self._done: set[str] = set()
        self._digests: set[str] = set()
        self._sent: set[tuple[str, str, int]] = set()
        self._printing: dict[str, Alias] = {}
        self._pending_requests: set[str] = set()

    @property
    def awaits_client(self) -> bool:
        """Return whether the response needs a result or an approval from the client."""
        return self._conversation.awaits_result or bool(self._pending_requests)

    def has(self, item: Item) -> bool:
        """Return whether the response contains an item."""
        return items.item_digest(item) in self._digests

    def _key(self, raw_id: Any, raw_index: Any) -> str:
        """Return the key of an item; one without id and index gets a new key."""
        item_id, index = identifier(raw_id), as_index(raw_index)
        if index >= 0 and item_id not in self._used_names:
            name = self._names.setdefault(index, item_id or f"@{index}")
            self._used_names.add(name)
            return name
        self._unnamed += not item_id
        return item_id or f"{UNNAMED}{self._unnamed}"

    def _event_key(self, event: Item) -> str:
        return self._key(event.get("item_id"), event.get("output_index"))

    # Items

    def add(self, item: Item, index: Any) -> Events:
        """Begin an item. Only a call has events already."""
        key, kind = self._key(item.get("id"), index), kind_of(item)
        if kind in items.RESULTS:
            self._printing[key] = Alias(FORMAT, items.call_id(item) or key)
        return self._propose(key, item) if kind in CALLS and not self._is_proposed(key) else []

    def complete(self, item: Item, index: Any = None) -> Events | None:
        """Complete an item; None for an unknown kind. A repeated item counts once."""
        key, kind, digest = self._key(item.get("id"), index), kind_of(item), items.item_digest(item)
        if key in self._done and kind in CALLS and item.get("call_id") and digest not in self._digests:
            key = self._key("", None)  # Another call: its server gives all items one id.
        if key in self._done:
            return []
        self._done.add(key)
        handler = self._HANDLERS.get("call" if kind in CALLS else "result" if kind in items.RESULTS else kind)
        if handler is None:
            return None
        self._digests.add(digest)
        self._conversation.seen.add(digest)
        return handler(self, key, item)

    # Calls

    def _is_proposed(self, key: str) -> bool:
        return key in self._calls and self._calls[key].is_proposed

    def _propose(self, key: str, item: Item) -> Events:
        request = identifier(item.get("approval_request_id"))
        if request in self._requests:
            return self._resume(key, item, request)
        call_id, item_id = items.call_id(item), "" if key[:2] == UNNAMED else identifier(item.get("id"))
        alias = self._conversation.new_alias(call_id, self._response)
        aliases = (alias, Alias(FORMAT, item_id)) if item_id not in ("", alias.id) else (alias,)
        kind, fields = CALLS[kind_of(item)], self._call_fields(item, items.name_of(item))
        is_served = kind.is_served and item.get("execution") != "client"
        call = ResponseCall(kind=kind, aliases=aliases, is_served=is_served, is_proposed=True)
        if key in self._calls:  # Pieces of its arguments arrived before.
            earlier = self._calls[key]
            call.input_pieces, call.aliases = earlier.input_pieces, (*earlier.aliases, alias)
        self._calls[key] = call
        if not kind.streamed_field:
            call.input = fields["input"] = items.input_of(item)
        if not is_served:
            self._conversation.await_result(call_id, items.name_of(item), alias)
        return [ev.CallProposed(aliases=call.aliases, **fields), *self._start(call, as_str(item.get("status")))]

    def _call_fields(self, item: Item, name: str) -> Fields:
        """Return the fields of the next call of the response."""
        self._call_count += 1
        position = {"iteration": self._conversation.round, "index": self._call_count - 1}
        return {"tool_name": name or UNSET, **position, **items.title_field(item)}

    def _resume(self, key: str, item: Item, request_id: str) -> Events:
        """Start a call whose approval was requested: it was granted, even if the answer was not seen."""
        aliases = (Alias(FORMAT, request_id), Alias(FORMAT, identifier(item.get("id")) or request_id))
        request, kind = self._requests[request_id], CALLS[kind_of(item)]
        call = ResponseCall(kind=kind, aliases=aliases, is_served=True, is_proposed=True, input=request.input)
        self._calls[key] = call
        granted: Events = [] if request.is_answered else [ev.ApprovalGranted(aliases=aliases[:1], by="agent")]
        request.is_answered = True
        self._pending_requests.discard(request_id)
        return granted + self._start(call, "in_progress")

    def _start(self, call: ResponseCall, status: str) -> Events:
        if not call.is_served or call.is_started or status not in items.RUNNING:
            return []
        call.is_started = True
        return [ev.CallStarted(aliases=call.aliases)]

    def _complete_call(self, key: str, item: Item) -> Events:
        events = [] if self._is_proposed(key) else self._propose(key, item)
        call = self._calls[key]
        call.is_done = True
        events += self._set_input(call, items.input_of(item))
        end_type = items.end_of(item) if call.is_served else None
        return [*events, end_type(aliases=call.aliases, **items.end_fields(item))] if end_type else events

    def _set_input(self, call: ResponseCall, value: Any) -> Events:
        if value is UNSET or (call.input is not UNSET and call.input == value):
            return []
        call.input = value
        return [ev.CallInput(aliases=call.aliases, input=value)]

    def set_running(self, event: Item, status: str) -> Events:
        """Read the status of a call that the provider runs. Its item has the end."""
        call = self._calls.get(self._event_key(event))
        return self._start(call, status) if call else []

    def add_input(self, event: Item) -> Events | None:
        """Read a piece of arguments; None if its call is unknown."""
        call, piece = self._find_call(event), as_str(event.get("delta"))
        if call is None:
            return None
        if not piece or (call.kind.streamed_field and call.input is not UNSET):
            return []
        call.input_pieces.append(piece)
        return [ev.CallInputDelta(aliases=call.aliases, text=piece)]

    def end_input(self, event: Item) -> Events | None:
        """Read the full arguments of a call that has no other input."""
        call = self._find_call(event)
        if call is None:
            return None
        return self._set_input(call, items.streamed_input(call.kind, event.get(call.kind.streamed_field)))

    def _find_call(self, event: Item) -> ResponseCall | None:
        """Return the call of a piece. An unknown one is identified by its item."""
        key = self._event_key(event)
        if key not in self._calls and identifier(event.get("item_id")):
            self._calls[key] = ResponseCall(kind=CALLS["function_call"], aliases=(Alias(FORMAT, key),))
        return self._calls.get(key)

    def add_printed(self, event: Item) -> Events | None:
        """Read the output of a command that the provider runs; None if its call is unknown."""
        alias = self._printing.get(self._event_key(event))
        delta = as_dict(event.get("delta"))
        text = as_str(delta.get("stdout")) + as_str(delta.get("stderr"))
        return None if alias is None else [ev.CallProgress(aliases=(alias,), text=text)] if text else []

    def _result(self, key: str, item: Item) -> Events:
        end_type, fields = items.result_of(item)
        return [end_type(**self._conversation.result_target(items.call_id(item)), **fields)]

    # Approval

    def _request(self, key: str, item: Item) -> Events:
        alias = self._conversation.new_alias(identifier(item.get("id")), self._response)
        request = self._requests[alias.id] = ApprovalRequest(parse_arguments(item.get("arguments")))
        self._pending_requests.add(alias.id)
        fields = self._call_fields(item, as_str(item.get("name")))
        return [
            ev.CallProposed(aliases=(alias,), input=request.input, **fields),
            ev.ApprovalRequested(aliases=(alias,)),
        ]

    def _answer(self, key: str, item: Item) -> Events:
        request_id = identifier(item.get("approval_request_id"))
        self._pending_requests.discard(request_id)
        if request_id in self._requests:
            self._requests[request_id].is_answered = True
        answer_type = ev.ApprovalGranted if item.get("approve") is True else ev.ApprovalRefused
        aliases = (Alias(FORMAT, request_id),) if request_id else ()
        return [answer_type(aliases=aliases, by="client", reason=as_str(item.get("reason")))]

    # Texts

    def add_text(
        self, event: Item, delta_type: DeltaType, field: str, index: int, text: str, is_complete: bool
    ) -> Events:
        """Read a piece of a text, or the full text, which counts only if no piece arrived."""
        key = self._event_key(event)
        self.is_refused = self.is_refused or "refusal" in as_str(event.get("type"))
        return self._text_events(key, delta_type, field, index, text, is_complete)

    def _text_events(
        self, key: str, delta_type: DeltaType, field: str, index: int, text: str, is_complete: bool
    ) -> Events:
        is_first = (key, field, index) not in self._sent
        if not text or (is_complete and not is_first):
            return []
        self._sent.add((key, field, index))
        separator = "\n\n" if is_first and index > 0 and delta_type is ev.ThoughtDelta else ""
        message_id = "" if key[:1] == "@" else key
        return [delta_type(text=separator + text, message_id=message_id, chunks=self._chunks)]

    def _complete_text(self, key: str, item: Item) -> Events:
        delta_type = ev.ThoughtDelta if kind_of(item) == "reasoning" else ev.MessageDelta
        self.is_refused = self.is_refused or items.is_refusal(item)
        events: Events = []
        for field, index, text in items.texts_of(item):
            events += self._text_events(key, delta_type, field, index, text, True)
        return [*events, ev.MessageEnded()] if delta_type is ev.MessageDelta else events

    # Ends

    def finish(self) -> Events:
        """Complete the arguments that are still open at the end of the response."""
        return [event for call in self._calls.values() for event in self._end_streamed_input(call)]

    def _end_streamed_input(self, call: ResponseCall) -> Events:
        is_known = call.input is not UNSET or not call.input_pieces
        return [] if is_known else self._set_input(call, items.streamed_input(call.kind, call.input_text))

    def interrupt(self, reason: str, cause: str = "") -> Events:
        """End an incomplete response, and its calls that are incomplete or run by the provider."""
        end_call = interrupt_with(reason, CALL_CUT, cause)
        events: Events = []
        for call in self._calls.values():
            has_input = call.input is not UNSET or is_json(call.input_text)
            is_complete = call.is_done or (not call.is_served and has_input)
            events += self._end_streamed_input(call) if is_complete else [end_call(call)]
        return events

    _HANDLERS: ClassVar[dict[str, Callable[[Any, str, Item], Events]]] = {
        "call": _complete_call,
        "result": _result,
        "message": _complete_text,
        "reasoning": _complete_text,
        items.REQUEST: _request,
        items.ANSWER: _answer,
    }
