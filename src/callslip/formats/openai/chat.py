"""Decode `openai`: a conversation over Chat Completions in any recorded shape.

A message is a streamed chunk, a full completion, a message of some role, the body of a request, or an error. Requests
repeat the conversation; only new messages in them count. An answer in a second shape is not a second answer. Of several
choices the first is the conversation; the others are stored raw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from callslip.formats.base import Events
from callslip.formats.json_fields import Fields, as_dict, as_list, as_str, has_other_content, identifier, seconds_to_ms
from callslip.formats.openai import chat_messages
from callslip.formats.openai.chat_messages import FORMAT, REASONS, message_digest
from callslip.formats.openai.chat_reply import Reply
from callslip.formats.providers.content import plain_output, user_message
from callslip.formats.providers.decoder import MessageDecoder, usage_events
from callslip.model import events as ev
from callslip.model.events import Draft

DONE = "[DONE]"

# Events that the SDK derives from the chunks of a stream.
_DERIVED = ("content", "refusal", "logprobs.content", "logprobs.refusal", "tool_calls.function.arguments")
DERIVED = {f"{subject}.{verb}" for subject in _DERIVED for verb in ("delta", "done")}


class ChatDecoder(MessageDecoder[Reply]):
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        super().__init__(FORMAT, Reply, message_digest, chunks)

    def feed(self, message: Any) -> list[Draft]:
        return self._conversation.drafts(self._read(message), seconds_to_ms(as_dict(message).get("created")))

    def _read(self, message: Any) -> Events:
        if message == DONE:
            return self._settle()
        fields: Fields = {"messages": as_list(message)} if isinstance(message, list) else as_dict(message)
        if as_str(fields.get("type")) in DERIVED and self._shape == "chunk":
            return []
        for name, value_type, handler in self._SHAPES:
            if isinstance(fields.get(name), value_type):
                return handler(self, fields)
        return self._raw_if(True, message)

    # Responses

    def _response(self, fields: Fields) -> Events:
        choices = [as_dict(choice) for choice in as_list(fields["choices"])]
        first = next((choice for choice in choices if (choice.get("index") or 0) == 0), as_dict(None))
        is_full, reason = isinstance(first.get("message"), dict), as_str(first.get("finish_reason"))
        message = as_dict(first.get("message" if is_full else "delta"))
        if is_full:
            answer = {**message, "role": chat_messages.ASSISTANT}
            response_id = identifier(fields.get("id"))
            events = self._answer(answer, "whole", response_id, reason or "stop")
            events += usage_events(fields.get("usage"), response_id, fields.get("model")) if events else []
        else:
            events = self._chunk(fields, message, reason)
        needs_raw = (
            (not events and (is_full or not first))
            or len(choices) > bool(first)
            or has_other_content(fields, chat_messages.RESPONSE_FIELDS)
            or has_other_content(first, chat_messages.CHOICE_FIELDS)
            or chat_messages.answer_needs_raw(message)
        )
        return events + self._raw_if(needs_raw, fields)

    def _chunk(self, fields: Fields, delta: Fields, reason: str) -> Events:
        response_id = identifier(fields.get("id"))
        reply, usage = self._reply, fields.get("usage")
        is_known = reply is not None and response_id in ("", reply.id)
        # A chunk without content after the end of a response belongs to that response.
        can_begin = has_other_content(delta, {"role"}) or (bool(reason) and not is_known)
        events: Events = []
        # A server may give all its responses one id, or none.
        if can_begin and not (is_known and self._open_reply()):
            events = self._interrupt("error")
            reply = self._begin("chunk", response_id)
        if reply is None or reply.is_finished:
            usage_id = reply.usage_id if reply is not None and is_known else response_id
            return events + usage_events(usage, usage_id, fields.get("model"))
        events += reply.add_delta(delta)
        reply.usage, reply.model = usage or reply.usage, fields.get("model") or reply.model
        return events + (self._finish(reply, reason) if reason else [])

    def _finish(self, reply: Reply, reason: str = "stop") -> Events:
        events = reply.finish() + usage_events(reply.usage, reply.usage_id, reply.model)
        return events if reply.calls else events + self._end_turn(reply.is_refused, reason)

    def _end_turn(self, is_refused: bool, reason: str) -> Events:
        return self._conversation.end("refusal" if is_refused else REASONS.get(reason, reason))

    def _answer(self, message: Fields, shape: str, response_id: str = "", reason: str = "stop") -> Events:
        """Read a full answer; nothing if it is the last one again in another shape."""
        events = self._settle()
        if self._is_last_answer(message, shape):
            return events
        self._shape, self._reply = shape, None
        self._conversation.begin_round()
        self._conversation.seen.add(message_digest(message))
        texts = chat_messages.answer_texts(message)
        for delta_type, text in texts:
            events.append(delta_type(text=text, message_id=response_id, chunks=self._chunks))
        events += [ev.MessageEnded()] if texts else []
        calls = self._propose_calls(message, response_id)
        return events + (calls or self._end_turn(bool(as_str(message.get("refusal"))), reason))

    def _propose_calls(self, message: Fields, response_id: str) -> Events:
        events: Events = []
        for index, call in enumerate(chat_messages.read_calls(message)):
            alias = self._conversation.new_alias(call.id, response_id)
            self._conversation.await_result(call.id, call.name, alias)
            fields: Fields = {"tool_name": call.name} if call.name else {}
            fields |= {"input": call.input, "iteration": self._conversation.round, "index": index}
            events.append(ev.CallProposed(aliases=(alias,), **fields))
        return events

    # Messages

    def _read_item(self, item: Fields) -> Events:
        role = item["role"]
        if role == chat_messages.ASSISTANT:
            events = self._answer(item, "message")
            return events + self._raw_if(not events or chat_messages.answer_needs_raw(item), item)
        events = self._settle()
        self._conversation.seen.add(message_digest(item))
        if role == chat_messages.USER:
            known_fields = chat_messages.PROMPT_FIELDS
            events += [*self._conversation.prompt(), user_message(item.get("content"))]
        elif role in chat_messages.RESULT:
            known_fields = chat_messages.RESULT_FIELDS
            call_id, name = identifier(item.get("tool_call_id")), as_str(item.get("name"))
            target = self._conversation.result_target(call_id, name)
            events.append(ev.CallCompleted(output=plain_output(item.get("content")), **target))
        else:
            return events + self._raw_if(True, item)
        return events + self._raw_if(has_other_content(item, known_fields), item)

    def _wrapped_chunk(self, fields: Fields) -> Events:
        """Read a chunk inside of an event of the SDK."""
        return self._read(fields["chunk"]) if fields.get("type") == "chunk" else self._raw_if(True, fields)

    _SHAPES: ClassVar[tuple[tuple[str, Any, Callable[[Any, Fields], Events]], ...]] = (
        ("role", str, _read_item),
        ("error", (dict, str), MessageDecoder[Reply]._read_error),
        ("choices", list, _response),
        ("messages", list, MessageDecoder[Reply]._read_messages),
        ("chunk", dict, _wrapped_chunk),
    )
