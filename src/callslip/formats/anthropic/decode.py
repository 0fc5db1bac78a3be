"""Decode `anthropic`: a conversation over the Messages API in any recorded shape.

A message is a streamed event, a full answer, a message of some role, the body of a request, or an error. Requests
repeat the conversation; only new messages in them count. Results are in messages of the user's role, and the text in
such a message belongs to the open turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from callslip.formats.anthropic import blocks
from callslip.formats.anthropic.blocks import FORMAT, block_needs_raw, blocks_of, is_result
from callslip.formats.anthropic.reply import Reply
from callslip.formats.base import raw_if
from callslip.formats.json_fields import as_dict, as_list, as_str, error_text, has_other_content, identifier
from callslip.formats.providers.conversation import ModelConversation
from callslip.formats.providers.requests import Requests
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Fields: TypeAlias = dict[str, Any]

DELTA_FIELDS = {"type", "delta", "usage"}
STOP_FIELDS = {"stop_reason", "stop_sequence", "stop_details"}


class AnthropicDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._conversation = ModelConversation(FORMAT)
        self._reply: Reply | None = None
        self._shape = ""
        self._requests = Requests(FORMAT, self._conversation.seen, {"messages"})

    def feed(self, message: Any) -> list[Draft]:
        return self._conversation.drafts(self._read(message))

    def close(self, reason: str) -> list[Draft]:
        return self._conversation.close(self._interrupt(reason), reason)

    def _read(self, message: Any) -> Events:
        fields: Fields = {"messages": as_list(message)} if isinstance(message, list) else as_dict(message)
        handler = self._HANDLERS.get(as_str(fields.get("type")))
        if handler is not None:
            return handler(self, fields)
        if isinstance(fields.get("messages"), list):
            return self._request(fields)
        return self._message(fields) if isinstance(fields.get("role"), str) else _raw_if(True, message)

    # Streams

    def _message_start(self, fields: Fields) -> Events:
        message = as_dict(fields.get("message"))
        events = self._interrupt("error")
        self._begin("stream", identifier(message.get("id"))).usage = as_dict(message.get("usage"))
        return events

    def _begin(self, shape: str, message_id: str) -> Reply:
        self._conversation.begin_round()
        self._shape = shape
        self._reply = Reply(self._conversation, message_id, self._chunks)
        return self._reply

    def _open_reply(self) -> Reply | None:
        return self._reply if self._reply is not None and not self._reply.is_finished else None

    def _block_start(self, fields: Fields) -> Events:
        events = (self._open_reply() or self._begin("stream", "")).start_block(fields)
        if events is None:
            return _raw_if(True, fields)
        return events + _raw_if(block_needs_raw(fields.get("content_block")), fields)

    def _block_delta(self, fields: Fields) -> Events:
        events = (self._open_reply() or self._begin("stream", "")).add_delta(fields)
        return _raw_if(True, fields) if events is None else events

    def _block_stop(self, fields: Fields) -> Events:
        reply, index = self._open_reply(), fields.get("index")
        return reply.stop_block(index) if reply is not None and type(index) is int else _raw_if(True, fields)

    def _message_delta(self, fields: Fields) -> Events:
        reply, delta = self._open_reply(), as_dict(fields.get("delta"))
        if reply is None:
            return _raw_if(True, fields)
        reply.reason = as_str(delta.get("stop_reason")) or reply.reason
        reply.detail = as_str(as_dict(delta.get("stop_details")).get("explanation"))
        reply.usage = {**reply.usage, **{k: v for k, v in as_dict(fields.get("usage")).items() if v is not None}}
        return _raw_if(has_other_content(fields, DELTA_FIELDS) or has_other_content(delta, STOP_FIELDS), fields)

    def _message_stop(self, fields: Fields) -> Events:
        reply = self._open_reply()
        return self._finish(reply) if reply is not None else _raw_if(True, fields)

    def _finish(self, reply: Reply) -> Events:
        events = reply.finish()
        events += [ev.SessionInfo(usage=reply.usage)] if reply.usage else []
        reason = blocks.REASONS.get(reply.reason, reply.reason) or "end_turn"
        return events + ([] if reply.is_continued else self._conversation.end(reason, reply.detail))

    def _settle(self) -> Events:
        """Finish an open answer: another message implies that it is complete."""
        reply = self._open_reply()
        return self._finish(reply) if reply is not None else []

    def _interrupt(self, reason: str, cause: str = "") -> Events:
        reply = self._open_reply()
        return reply.interrupt(reason, cause) if reply is not None else []

    def _error(self, fields: Fields) -> Events:
        cause = error_text(fields.get("error"))
        interrupted = self._interrupt("error", cause)
        return [*interrupted, *self._conversation.end("error", cause), *_raw_if(True, fields)]

    def _ping(self, fields: Fields) -> Events:
        return []

    def _derived(self, fields: Fields) -> Events:
        """Skip an event that a client derives from the events of a stream."""
        return _raw_if(self._shape != "stream", fields)

    # Full messages

    def _answer(self, message: Fields, shape: str) -> Events:
        """Read a full answer, unless it is the last one again in another shape."""
        events = self._settle()
        is_repeated = blocks.message_digest(message) == self._conversation.seen.last
        if self._shape not in ("", shape) and is_repeated:
            return events + _raw_if(True, message)
        reply = self._begin(shape, identifier(message.get("id")))
        for position, block in enumerate(blocks_of(message)):
            events += reply.read_block(position, as_dict(block), is_complete=True) or []
            events += _raw_if(block_needs_raw(block), block)
        reply.reason, reply.usage = as_str(message.get("stop_reason")), as_dict(message.get("usage"))
        reply.detail = as_str(as_dict(message.get("stop_details")).get("explanation"))
        needs_raw = has_other_content(message, {*blocks.RESPONSE_FIELDS, "stop_details"})
        return events + self._finish(reply) + _raw_if(needs_raw, message)

    def _full_answer(self, fields: Fields) -> Events:
        is_answer = fields.get("role", blocks.ASSISTANT) == blocks.ASSISTANT
        return self._answer({**fields, "role": blocks.ASSISTANT}, "whole") if is_answer else self._message(fields)

    def _message(self, message: Fields) -> Events:
        role = message.get("role")
        if role == blocks.ASSISTANT:
            return self._answer(message, "message")
        events = self._settle()
        self._conversation.seen.add(blocks.message_digest(message))
        return events + (self._user_message(message) if role == blocks.USER else _raw_if(True, message))

    def _user_message(self, message: Fields) -> Events:
        all_blocks = blocks_of(message)
        content = [block for block in all_blocks if not is_result(block)]
        events = [event for block in all_blocks if is_result(block) for event in self._result(as_dict(block))]
        if content:
            events += self._conversation.add_to_turn() if events else self._conversation.prompt()
            events.append(blocks.user_message(content))
        needs_raw = not all_blocks or has_other_content(message, blocks.MESSAGE_FIELDS)
        return events + _raw_if(needs_raw, message)

    def _result(self, block: Fields) -> Events:
        end_type, fields = blocks.result_of(block)
        target = self._conversation.result_target(identifier(block.get("tool_use_id")))
        return [end_type(**target, **fields), *_raw_if(block_needs_raw(block), block)]

    def _request(self, fields: Fields) -> Events:
        events = self._settle()
        messages, raw = self._requests.read(fields, as_list(fields["messages"]), blocks.message_digest)
        for message in messages:
            is_message = isinstance(as_dict(message).get("role"), str)
            events += self._message(as_dict(message)) if is_message else _raw_if(True, message)
        return events + raw

    _HANDLERS: ClassVar[dict[str, Callable[[Any, Fields], Events]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "message": _full_answer,
        "error": _error,
        "ping": _ping,
        **dict.fromkeys(("text", "thinking", "signature", "citation", "input_json"), _derived),
    }


def _raw_if(condition: object, body: Any) -> Events:
    return raw_if(condition, FORMAT, body)
