"""An answer of the Messages API while it is streamed: blocks by their index, each with a start, deltas and a stop."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.anthropic import blocks
from callslip.formats.anthropic.blocks import kind_of
from callslip.formats.base import Events
from callslip.formats.json_fields import Fields, as_dict, as_index, as_str, identifier, is_json, parse_arguments
from callslip.formats.providers.conversation import ARGUMENTS_CUT, ModelCall, ModelConversation, interrupt_with
from callslip.formats.providers.reply import ModelReply
from callslip.model import events as ev


class Reply(ModelReply):
    """One answer. `reason` is its stop reason, "" until that is known."""

    def __init__(self, conversation: ModelConversation, reply_id: str, chunks: ev.Chunks) -> None:
        super().__init__(conversation, reply_id, chunks)
        self.reason = ""
        self.detail = ""
        self._calls: dict[int, ModelCall] = {}

    # Blocks, streamed or complete

    def _propose(self, position: int, block: Fields, *, is_complete: bool) -> Events:
        """Open a call. Its arguments follow in pieces unless the block is complete."""
        call_id, fields = identifier(block.get("id")), blocks.call_fields(block)
        alias = self._conversation.new_alias(call_id, self.id)
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

    def read_block(self, position: int, block: Fields, *, is_complete: bool) -> Events | None:
        """Return the events of a block, or of the start of one; None for an unknown kind."""
        kind = kind_of(block)
        if kind in blocks.TEXTS:
            delta_type, field = blocks.TEXTS[kind]
            return self._add_text(delta_type, as_str(block.get(field)))
        if kind in blocks.CALLS:
            return self._propose(position, block, is_complete=is_complete)
        if not blocks.is_result(block):
            return None
        end_type, fields = blocks.result_of(block)  # The provider ran the call.
        self._in_text = False
        target = self._conversation.result_target(identifier(block.get("tool_use_id")), is_served=True)
        return [end_type(**target, **fields)]

    # Events of the stream; the result is None if one is not understood

    def start_block(self, event: Fields) -> Events | None:
        return self.read_block(as_index(event.get("index")), as_dict(event.get("content_block")), is_complete=False)

    def add_delta(self, event: Fields) -> Events | None:
        delta = as_dict(event.get("delta"))
        kind = kind_of(delta)
        if kind in blocks.TEXT_DELTAS:
            delta_type, field = blocks.TEXT_DELTAS[kind]
            return self._add_text(delta_type, as_str(delta.get(field)))
        call, piece = self._calls.get(as_index(event.get("index"))), as_str(delta.get("partial_json"))
        if kind != "input_json_delta" or call is None:
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
        stopped = [event for position in list(self._calls) for event in self.stop_block(position)]
        return stopped + self._end()

    def interrupt(self, reason: str, cause: str = "") -> Events:
        """End an incomplete answer, and its calls that are incomplete or run by the provider."""
        end_call = interrupt_with(reason, ARGUMENTS_CUT, cause)
        events: Events = []
        for position, call in list(self._calls.items()):
            is_lost = not call.is_input_complete and (call.is_served or not is_json(call.input_text))
            events += [end_call(call)] if is_lost else self.stop_block(position)
        return events + self._end()

    def _digest(self) -> str:
        return blocks.answer_digest([call.id for call in self._calls.values()], "".join(self._texts))


def _arguments(call: ModelCall) -> Any:
    """Return the streamed arguments, else those in the start of the block."""
    return parse_arguments(call.input_text) if call.input_pieces or call.input is UNSET else call.input
