"""Decode `anthropic`: a conversation over the Messages API in any recorded shape.

A message is a streamed event, a full answer, a message of some role, the body of a request, or an error. Requests
repeat the conversation; only new messages in them count. Results are in messages of the user's role, and the text in
such a message belongs to the open turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from callslip.formats.anthropic import blocks
from callslip.formats.anthropic.blocks import FORMAT, block_needs_raw, blocks_of, is_result, message_digest
from callslip.formats.anthropic.reply import Reply
from callslip.formats.base import Events
from callslip.formats.json_fields import Fields, as_dict, as_list, as_str, has_other_content, identifier
from callslip.formats.providers.content import user_message
from callslip.formats.providers.decoder import MessageDecoder, usage_events
from callslip.model import events as ev

DELTA_FIELDS = {"type", "delta", "usage"}
STOP_FIELDS = {"stop_reason", "stop_sequence", "stop_details"}
# Events that a client derives from the events of a stream.
DERIVED = {"text", "thinking", "signature", "citation", "input_json"}


class AnthropicDecoder(MessageDecoder[Reply]):
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        super().__init__(FORMAT, Reply, message_digest, chunks)

    def _read(self, message: Any) -> Events:
        fields: Fields = {"messages": as_list(message)} if isinstance(message, list) else as_dict(message)
        kind = as_str(fields.get("type"))
        if kind in self._HANDLERS:
            return self._HANDLERS[kind](self, fields)
        if kind == "ping" or (kind in DERIVED and self._shape == "stream"):
            return []
        if kind in DERIVED:
            return self._raw_if(True, fields)
        if isinstance(fields.get("messages"), list):
            return self._read_messages(fields)
        return self._read_item(fields) if self._is_item(fields) else self._raw_if(True, message)

    # Streams

    def _message_start(self, fields: Fields) -> Events:
        message = as_dict(fields.get("message"))
        events = self._interrupt("error")
        reply = self._begin("stream", identifier(message.get("id")))
        reply.usage, reply.model = as_dict(message.get("usage")), message.get("model")
        return events

    def _block_start(self, fields: Fields) -> Events:
        events = (self._open_reply() or self._begin("stream", "")).start_block(fields)
        needs_raw = events is None or block_needs_raw(fields.get("content_block"))
        return (events or []) + self._raw_if(needs_raw, fields)

    def _block_delta(self, fields: Fields) -> Events:
        events = (self._open_reply() or self._begin("stream", "")).add_delta(fields)
        return self._raw_if(True, fields) if events is None else events

    def _block_stop(self, fields: Fields) -> Events:
        reply, index = self._open_reply(), fields.get("index")
        return reply.stop_block(index) if reply is not None and type(index) is int else self._raw_if(True, fields)

    def _message_delta(self, fields: Fields) -> Events:
        reply, delta = self._open_reply(), as_dict(fields.get("delta"))
        if reply is None:
            return self._raw_if(True, fields)
        reply.reason = as_str(delta.get("stop_reason")) or reply.reason
        reply.detail = as_str(as_dict(delta.get("stop_details")).get("explanation"))
        reply.usage = {**reply.usage, **{k: v for k, v in as_dict(fields.get("usage")).items() if v is not None}}
        return self._raw_if(has_other_content(fields, DELTA_FIELDS) or has_other_content(delta, STOP_FIELDS), fields)

    def _message_stop(self, fields: Fields) -> Events:
        reply = self._open_reply()
        return self._finish(reply) if reply is not None else self._raw_if(True, fields)

    def _finish(self, reply: Reply) -> Events:
        events = reply.finish() + usage_events(reply.usage, reply.usage_id, reply.model)
        reason = blocks.REASONS.get(reply.reason, reply.reason) or "end_turn"
        return events + ([] if reply.is_continued else self._conversation.end(reason, reply.detail))

    # Full messages

    def _answer(self, message: Fields, shape: str) -> Events:
        """Read a full answer, unless it is the last one again in another shape."""
        events = self._settle()
        if self._is_last_answer(message, shape):
            return events + self._raw_if(True, message)
        reply = self._begin(shape, identifier(message.get("id")))
        for position, block in enumerate(blocks_of(message)):
            events += reply.read_block(position, as_dict(block), is_complete=True) or []
            events += self._raw_if(block_needs_raw(block), block)
        reply.reason, reply.usage = as_str(message.get("stop_reason")), as_dict(message.get("usage"))
        reply.detail = as_str(as_dict(message.get("stop_details")).get("explanation"))
        reply.model = message.get("model")
        needs_raw = has_other_content(message, {*blocks.RESPONSE_FIELDS, "stop_details"})
        return events + self._finish(reply) + self._raw_if(needs_raw, message)

    def _full_answer(self, fields: Fields) -> Events:
        is_answer = fields.get("role", blocks.ASSISTANT) == blocks.ASSISTANT
        return self._answer({**fields, "role": blocks.ASSISTANT}, "whole") if is_answer else self._read_item(fields)

    def _read_item(self, item: Fields) -> Events:
        role = item.get("role")
        if role == blocks.ASSISTANT:
            return self._answer(item, "message")
        events = self._settle()
        self._conversation.seen.add(message_digest(item))
        return events + (self._user_message(item) if role == blocks.USER else self._raw_if(True, item))

    def _user_message(self, message: Fields) -> Events:
        all_blocks = blocks_of(message)
        content = [block for block in all_blocks if not is_result(block)]
        events: Events = []
        for block in [as_dict(block) for block in all_blocks if is_result(block)]:
            end_type, fields = blocks.result_of(block)
            target = self._conversation.result_target(identifier(block.get("tool_use_id")))
            events += [end_type(**target, **fields), *self._raw_if(block_needs_raw(block), block)]
        if content:
            events += self._conversation.add_to_turn() if events else self._conversation.prompt()
            events.append(user_message(content))
        needs_raw = not all_blocks or has_other_content(message, blocks.MESSAGE_FIELDS)
        return events + self._raw_if(needs_raw, message)

    _HANDLERS: ClassVar[dict[str, Callable[[Any, Fields], Events]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "message": _full_answer,
        "error": MessageDecoder[Reply]._read_error,
    }
