"""Decode `openai`: a conversation over Chat Completions in any recorded shape.

A message is a streamed chunk, a full completion, a message of some role, the body of a request, or an error. Requests
repeat the conversation; only new messages in them count. An answer in a second shape is not a second answer. Of several
choices the first is the conversation; the others are stored raw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from callslip.formats.base import raw_if
from callslip.formats.json_fields import (
    as_dict,
    as_list,
    as_str,
    error_text,
    has_other_content,
    identifier,
    seconds_to_ms,
)
from callslip.formats.openai import chat_messages
from callslip.formats.openai.chat_messages import FORMAT, REASONS, message_digest
from callslip.formats.openai.chat_reply import Reply
from callslip.formats.providers.conversation import ModelConversation
from callslip.formats.providers.requests import Requests
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Fields: TypeAlias = dict[str, Any]
DONE = "[DONE]"

# Events that the SDK derives from the chunks of a stream.
_DERIVED = ("content", "refusal", "logprobs.content", "logprobs.refusal", "tool_calls.function.arguments")
DERIVED = {f"{subject}.{verb}" for subject in _DERIVED for verb in ("delta", "done")}


class ChatDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._conversation = ModelConversation(FORMAT)
        self._reply: Reply | None = None
        self._shape = ""
        self._requests = Requests(FORMAT, self._conversation.seen, {"messages"})

    def feed(self, message: Any) -> list[Draft]:
        return self._conversation.drafts(self._read(message), seconds_to_ms(as_dict(message).get("created")))

    def close(self, reason: str) -> list[Draft]:
        return self._conversation.close(self._interrupt(reason), reason)

    def _read(self, message: Any) -> Events:
        if message == DONE:
            return self._settle()
        fields: Fields = {"messages": as_list(message)} if isinstance(message, list) else as_dict(message)
        if as_str(fields.get("type")) in DERIVED and self._shape == "chunk":
            return []
        for name, value_type, handler in self._SHAPES:
            if isinstance(fields.get(name), value_type):
                return handler(self, fields)
        return _raw_if(True, message)

    # Responses

    def _response(self, fields: Fields) -> Events:
        choices = [as_dict(choice) for choice in as_list(fields["choices"])]
        first = next((choice for choice in choices if (choice.get("index") or 0) == 0), as_dict(None))
        is_full, reason = isinstance(first.get("message"), dict), as_str(first.get("finish_reason"))
        message = as_dict(first.get("message" if is_full else "delta"))
        events = self._full_response(fields, message, reason) if is_full else self._chunk(fields, message, reason)
        needs_raw = (
            (not events and (is_full or not first))
            or len(choices) > bool(first)
            or has_other_content(fields, chat_messages.RESPONSE_FIELDS)
            or has_other_content(first, chat_messages.CHOICE_FIELDS)
            or chat_messages.answer_needs_raw(message)
        )
        return events + _raw_if(needs_raw, fields)

    def _chunk(self, fields: Fields, delta: Fields, reason: str) -> Events:
        response_id = identifier(fields.get("id"))
        events = self._find_or_begin_reply(response_id) if self._can_begin(response_id, delta, reason) else []
        reply, usage = self._reply, fields.get("usage")
        if reply is None or reply.is_finished:
            return events + _usage_events(usage)
        events += reply.add_delta(delta)
        reply.usage = usage or reply.usage
        return events + (self._finish(reply, reason) if reason else [])

    def _can_begin(self, response_id: str, delta: Fields, reason: str) -> bool:
        """Return whether a chunk may begin a response. One without content after an end belongs to that response."""
        is_known = self._reply is not None and response_id in ("", self._reply.response_id)
        return has_other_content(delta, {"role"}) or (bool(reason) and not is_known)

    def _find_or_begin_reply(self, response_id: str) -> Events:
        """Set the response of a chunk. A server may give all its responses one id, or none."""
        reply = self._open_reply()
        if reply is not None and response_id in ("", reply.response_id):
            return []
        events = self._interrupt("error")
        self._conversation.begin_round()
        self._reply, self._shape = Reply(self._conversation, response_id, self._chunks), "chunk"
        return events

    def _open_reply(self) -> Reply | None:
        return self._reply if self._reply is not None and not self._reply.is_finished else None

    def _finish(self, reply: Reply, reason: str) -> Events:
        events = reply.finish() + _usage_events(reply.usage)
        return events if reply.calls else events + self._end_turn(reply.is_refused, reason)

    def _end_turn(self, is_refused: bool, reason: str) -> Events:
        return self._conversation.end("refusal" if is_refused else REASONS.get(reason, reason))

    def _settle(self) -> Events:
        """Finish an open response: another message implies that it is complete."""
        reply = self._open_reply()
        return self._finish(reply, "stop") if reply is not None else []

    def _interrupt(self, reason: str, cause: str = "") -> Events:
        reply = self._open_reply()
        return reply.interrupt(reason, cause) if reply is not None else []

    def _full_response(self, fields: Fields, message: Fields, reason: str) -> Events:
        answer = {**message, "role": chat_messages.ASSISTANT}
        events = self._answer(answer, "whole", identifier(fields.get("id")), reason or "stop")
        return [*events, *_usage_events(fields.get("usage"))] if events else []

    def _answer(self, message: Fields, shape: str, response_id: str = "", reason: str = "stop") -> Events:
        """Read a full answer; nothing if it is the last one again in another shape."""
        events = self._settle()
        digest = message_digest(message)
        if self._shape not in ("", shape) and digest == self._conversation.seen.last:
            return events
        self._shape, self._reply = shape, None
        self._conversation.begin_round()
        self._conversation.seen.add(digest)
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

    def _message(self, message: Fields) -> Events:
        role = message["role"]
        if role == chat_messages.ASSISTANT:
            events = self._answer(message, "message")
            return events + _raw_if(not events or chat_messages.answer_needs_raw(message), message)
        events = self._settle()
        self._conversation.seen.add(message_digest(message))
        handler = self._ROLES.get(role)
        return events + (handler(self, message) if handler else _raw_if(True, message))

    def _prompt(self, message: Fields) -> Events:
        events = [*self._conversation.prompt(), chat_messages.user_message(message)]
        return events + _raw_if(has_other_content(message, chat_messages.PROMPT_FIELDS), message)

    def _result(self, message: Fields) -> Events:
        call_id, name = identifier(message.get("tool_call_id")), as_str(message.get("name"))
        target = self._conversation.result_target(call_id, name)
        end = ev.CallCompleted(output=chat_messages.result_output(message), **target)
        return [end, *_raw_if(has_other_content(message, chat_messages.RESULT_FIELDS), message)]

    def _request(self, fields: Fields) -> Events:
        events = self._settle()
        messages, raw = self._requests.read(fields, as_list(fields["messages"]), message_digest)
        for message in messages:
            is_message = isinstance(as_dict(message).get("role"), str)
            events += self._message(as_dict(message)) if is_message else _raw_if(True, message)
        return events + raw

    def _error(self, fields: Fields) -> Events:
        cause = error_text(fields["error"])
        interrupted = self._interrupt("error", cause)
        return [*interrupted, *self._conversation.end("error", cause), *_raw_if(True, fields)]

    def _wrapped_chunk(self, fields: Fields) -> Events:
        """Read a chunk inside of an event of the SDK."""
        return self._read(fields["chunk"]) if fields.get("type") == "chunk" else _raw_if(True, fields)

    _SHAPES: ClassVar[tuple[tuple[str, Any, Callable[[Any, Fields], Events]], ...]] = (
        ("role", str, _message),
        ("error", (dict, str), _error),
        ("choices", list, _response),
        ("messages", list, _request),
        ("chunk", dict, _wrapped_chunk),
    )
    _ROLES: ClassVar[dict[str, Callable[[Any, Fields], Events]]] = {
        chat_messages.USER: _prompt,
        **dict.fromkeys(chat_messages.RESULT, _result),
    }


def _usage_events(usage: Any) -> Events:
    return [ev.SessionInfo(usage=usage)] if usage else []


def _raw_if(condition: object, body: Any) -> Events:
    return raw_if(condition, FORMAT, body)
