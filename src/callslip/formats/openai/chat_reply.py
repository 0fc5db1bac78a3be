"""A response of Chat Completions while it is streamed.

The index identifies the pieces of a call, and only the first piece has the id and the name. Not every server conforms:
some send no id, one id for all calls, no index, index 0 for all, or the name with every piece. Arguments are complete
when the response has a stop reason, not when they happen to be JSON.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.base import Events
from callslip.formats.json_fields import (
    Fields,
    as_dict,
    as_index,
    as_list,
    as_str,
    identifier,
    is_json,
    parse_arguments,
)
from callslip.formats.openai.chat_messages import answer_digest, answer_texts
from callslip.formats.providers.conversation import ARGUMENTS_CUT, ModelCall, ModelConversation, interrupt_with
from callslip.formats.providers.reply import ModelReply
from callslip.model import events as ev
from callslip.model.events import Event


class StreamedCall(ModelCall, kw_only=True):
    """A call. `last_char` is the last character of its arguments. The input of a custom tool is any text."""

    index: int
    last_char: str = ""
    is_custom: bool = False

    @property
    def has_input(self) -> bool:
        """Return whether the arguments are complete, in a response that was interrupted."""
        return self.input is not UNSET or (not self.is_custom and is_json(self.input_text))

    def input_event(self) -> Event:
        """Return the event of the complete arguments."""
        text = self.input_text
        streamed_input = text if self.is_custom else parse_arguments(text)
        return ev.CallInput(aliases=self.aliases, input=streamed_input if self.input is UNSET else self.input)


class Reply(ModelReply):
    """One response. `is_refused`: the model declined."""

    def __init__(self, conversation: ModelConversation, reply_id: str, chunks: ev.Chunks) -> None:
        super().__init__(conversation, reply_id, chunks)
        self.is_refused = False
        self.calls: list[StreamedCall] = []
        self._newest: dict[int | str, StreamedCall] = {}  # By position and by id.

    def add_delta(self, delta: Fields) -> Events:
        """Return the events of a delta: thoughts, text, calls."""
        events: Events = []
        for delta_type, text in answer_texts(delta):
            events += self._add_text(delta_type, text)
        self.is_refused = self.is_refused or bool(as_str(delta.get("refusal")))
        for fragment in as_list(delta.get("tool_calls")):
            events += self._add_fragment(as_dict(fragment)) if isinstance(fragment, dict) else []
        if isinstance(delta.get("function_call"), dict):
            events += self._add_fragment({"index": 0, "function": delta["function_call"]})
        return events

    # Calls

    def _add_fragment(self, fragment: Fields) -> Events:
        custom = as_dict(fragment.get("custom"))
        inner = custom or as_dict(fragment.get("function"))
        call_id, name = identifier(fragment.get("id")), as_str(inner.get("name"))
        position = as_index(fragment.get("index"))
        call = self._find_call(position, call_id, name)
        is_new = call is None
        call = call or self._begin_call(position, call_id)
        call.is_custom = call.is_custom or bool(custom)
        if call_id and not call.id:
            call.id, self._newest[call_id] = call_id, call
            call.aliases = (*call.aliases, self._conversation.new_alias(call_id, self.id))
        # A name may come in pieces, or again with every piece. It precedes the arguments.
        has_name = bool(name) and name != call.name and not call.input_pieces
        call.name += name if has_name else ""
        proposed: Events = []
        if is_new or has_name:
            fields: Fields = {"iteration": self._conversation.round, "index": call.index}
            proposed = [ev.CallProposed(aliases=call.aliases, tool_name=call.name or UNSET, **fields)]
        return proposed + self._add_input(call, inner.get("input" if custom else "arguments"))

    def _find_call(self, position: int, call_id: str, name: str) -> StreamedCall | None:
        """Return the call that a piece continues; None if it begins one."""
        key = position if position >= 0 else call_id
        call = self._newest.get(key) if key != "" else self.calls[-1] if self.calls else None
        if call is None or (call_id and call.id and call_id != call.id):
            return None
        is_next = name and not call_id and call.last_char == "}" and is_json(call.input_text)
        return None if is_next else call

    def _begin_call(self, position: int, call_id: str) -> StreamedCall:
        alias = self._conversation.new_alias(call_id, self.id)
        call = StreamedCall(aliases=(alias,), id=call_id, index=len(self.calls))
        self.calls.append(call)
        self._newest |= {key: call for key in (position, call_id) if key not in (-1, "")}
        self._in_text = False  # A call ends the text.
        return call

    def _add_input(self, call: StreamedCall, piece: Any) -> Events:
        if isinstance(piece, str) and piece:
            call.input_pieces.append(piece)
            call.last_char = piece.rstrip()[-1:] or call.last_char
            return [ev.CallInputDelta(aliases=call.aliases, text=piece)]
        if isinstance(piece, dict | list):
            call.input = piece
        return []

    # Ends

    def finish(self) -> Events:
        """End a complete response and complete the arguments of its calls."""
        return [*self._end_calls(), *(call.input_event() for call in self.calls)]

    def interrupt(self, reason: str, cause: str = "") -> Events:
        """End an incomplete response, and the calls with incomplete arguments: no client can run them."""
        end_call = interrupt_with(reason, ARGUMENTS_CUT, cause)
        ends = [call.input_event() if call.has_input else end_call(call) for call in self.calls]
        return self._end_calls() + ends

    def _end_calls(self) -> Events:
        for call in self.calls:
            self._conversation.await_result(call.id, call.name, call.aliases[0])
        return self._end()

    def _digest(self) -> str:
        return answer_digest([*self.calls], "".join(self._texts))
