"""An answer of the Messages API while it is streamed: blocks by their index, each with a start, deltas and a stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET

from callslip.formats.anthropic import blocks
from callslip.formats.anthropic.blocks import kind_of
from callslip.formats.json_fields import as_dict, as_index, as_str, identifier, is_json, parse_arguments
from callslip.formats.providers.conversation import ARGUMENTS_CUT, ModelCall, ModelConversation, interrupt_with
from callslip.model import events as ev
from callslip.model.events import Event

Events: TypeAlias = list[Event]
Fields: TypeAlias = dict[str, Any]


class Reply:
    """One answer. `reason` is its stop reason, "" until that is known."""

    def __init__(self, conversation: ModelConversation, message_id: str, chunks: ev.Chunks) -> None:
        self.message_id = message_id
        self.is_finished = False
        self.reason = ""
        self.detail = ""
        self.usage: Fields = {}
        self._conversation = conversation
        self._chunks: ev.Chunks = chunks
        self._calls: dict[int, ModelCall] = {}
        self._texts: list[str] = []
        self._in_text = False

    # Blocks, streamed or complete

    def _add_text(self, delta_type: blocks.DeltaType, piece: str) -> Events:
        if not piece:
            return []
        self._in_text = True
        self._texts += [piece] if delta_type is ev.MessageDelta else []
        return [delta_type(text=piece, message_id=self.message_id, chunks=self._chunks)]

    def _propose(self, position: int, block: Fields, *, is_complete: bool) -> Events:
        """Open a call. Its arguments follow in pieces unless the block is complete."""
        call_id, fields = identifier(block.get("id")), blocks.call_fields(block)
        alias = self._conversation.new_alias(call_id, self.message_id)
        call = ModelCall(
            aliases=(alias,),
            id=call_id,
            name=fields.get("tool_name", ""),
            is_served=blocks.CALLS[kind_of(block)],
            input=block.get("input") or UNSET,
            is_input_complete=is_complete,
        )
        index = len(self._calls)
        if position in self._calls:  # Two blocks at one position: deltas belong to the second.
            self._calls[-1 - index] = self._calls.pop(position)
        self._calls[position] = call
        self._in_text = False  # A call ends the text.
        self._conversation.await_result(call_id, call.name, alias, is_served=call.is_served)
        fields |= {"iteration": self._conversation.round, "index": index}
        fields |= {"input": _arguments(call)} if is_complete else {}
        return [ev.CallProposed(aliases=call.aliases, **fields), *self._start(call)]

    def _start(self, call: ModelCall) -> Events:
        """Start a call that the provider runs, once its arguments are complete."""
        return [ev.CallStarted(aliases=call.aliases)] if call.is_served and call.is_input_complete else []

    def _result(self, block: Fields) -> Events:
        """End a call that the provider ran."""
        end_type, fields = blocks.result_of(block)
        self._in_text = False
        target = self._conversation.result_target(identifier(block.get("tool_use_id")), is_served=True)
        return [end_type(**target, **fields)]

    def read_block(self, position: int, block: Fields, *, is_complete: bool) -> Events | None:
        """Return the events of a block, or of the start of one; None for an unknown kind."""
        kind = kind_of(block)
        if kind in blocks.TEXTS:
            delta_type, field = blocks.TEXTS[kind]
            return self._add_text(delta_type, as_str(block.get(field)))
        if kind in blocks.CALLS:
            return self._propose(position, block, is_complete=is_complete)
        return self._result(block) if blocks.is_result(block) else None

    # Events of the stream; the result is None if one is not understood

    def start_block(self, event: Fields) -> Events | None:
        return self.read_block(as_index(event.get("index")), as_dict(event.get("content_block")), is_complete=False)

    def add_delta(self, event: Fields) -> Events | None:
        delta = as_dict(event.get("delta"))
        handler = self._DELTAS.get(kind_of(delta))
        return handler(self, as_index(event.get("index")), delta) if handler else None

    def _text_delta(self, position: int, delta: Fields) -> Events | None:
        return self._add_text(ev.MessageDelta, as_str(delta.get("text")))

    def _thinking_delta(self, position: int, delta: Fields) -> Events | None:
        return self._add_text(ev.ThoughtDelta, as_str(delta.get("thinking")))

    def _input_delta(self, position: int, delta: Fields) -> Events | None:
        call, piece = self._calls.get(position), as_str(delta.get("partial_json"))
        if call is None:
            return None
        call.input_pieces.append(piece)
        return [ev.CallInputDelta(aliases=call.aliases, text=piece)] if piece else []

    def stop_block(self, position: int) -> Events:
        """Complete the arguments of a call."""
        call = self._calls.get(position)
        if call is None or call.is_input_complete:
            return []
        call.is_input_complete = True
        return [ev.CallInput(aliases=call.aliases, input=_arguments(call)), *self._start(call)]

    # Ends

    @property
    def is_continued(self) -> bool:
        """Return whether the turn continues: with results, or with a request for the rest of the answer."""
        return self._conversation.awaits_result or self.reason == blocks.PAUSED

    def finish(self) -> Events:
        """End a complete answer."""
        return [event for position in list(self._calls) for event in self.stop_block(position)] + self._end()

    def interrupt(self, reason: str, cause: str = "") -> Events:
        """End an incomplete answer, and its calls that are incomplete or run by the provider."""
        end_call = interrupt_with(reason, ARGUMENTS_CUT, cause)
        events: Events = []
        for position, call in list(self._calls.items()):
            is_lost = not call.is_input_complete and (call.is_served or not is_json(call.input_text))
            events += [end_call(call)] if is_lost else self.stop_block(position)
        return events + self._end()

    def _end(self) -> Events:
        self.is_finished = True
        call_ids = [call.id for call in self._calls.values()]
        self._conversation.seen.add(blocks.answer_digest(call_ids, "".join(self._texts)))
        return [ev.MessageEnded()] if self._in_text else []

    _DELTAS: ClassVar[dict[str, Callable[[Any, int, Fields], Events | None]]] = {
        "text_delta": _text_delta,
        "thinking_delta": _thinking_delta,
        "input_json_delta": _input_delta,
    }


def _arguments(call: ModelCall) -> Any:
    """Return the streamed arguments, else those in the start of the block."""
    return parse_arguments(call.input_text) if call.input_pieces or call.input is UNSET else call.input
