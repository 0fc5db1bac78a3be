"""`anthropic`: reads a conversation over the Messages API, in whatever shape it was kept.

A message is a streamed event, a whole answer, a message of some role, the body of a request, or an error. Requests
repeat the whole conversation; only what is news in them counts. Results come in messages of the person's role, and
what the person says beside them belongs to the turn that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from callslip.formats.anthropic import blocks as read
from callslip.formats.anthropic.blocks import FORMAT, block_leaves, blocks_of, is_result
from callslip.formats.anthropic.reply import Reply
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict, as_list, as_str, complaint, identifier, leaves
from callslip.formats.providers.conversation import ModelConversation
from callslip.formats.providers.requests import Requests
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Said: TypeAlias = dict[str, Any]

DELTA = {"type", "delta", "usage"}
STOP = {"stop_reason", "stop_sequence", "stop_details"}


class AnthropicDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._talk = ModelConversation(FORMAT)
        self._reply: Reply | None = None
        self._shape = ""
        self._requests = Requests(FORMAT, self._talk.told, {"messages"})
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        drafts = [Draft(event) for event in self._read(message)]
        self._unfinished.see(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        """The line ended: so do an answer that was under way, and the turn."""
        drafts = [Draft(event) for event in self._break_off(reason)]
        self._unfinished.see(drafts)
        self._talk.ended(reason)
        return drafts + [Draft(event) for event in self._unfinished.end(reason)]

    def _read(self, message: Any) -> Events:
        said: Said = {"messages": as_list(message)} if isinstance(message, list) else as_dict(message)
        rule = self._EVENTS.get(as_str(said.get("type")))
        if rule is not None:
            return rule(self, said)
        if isinstance(said.get("messages"), list):
            return self._request(said)
        return self._message(said) if isinstance(said.get("role"), str) else [_raw(message)]

    # Streams

    def _message_start(self, said: Said) -> Events:
        message = as_dict(said.get("message"))
        made = self._break_off("error")
        self._begin("stream", identifier(message.get("id"))).usage = as_dict(message.get("usage"))
        return made

    def _begin(self, shape: str, identity: str) -> Reply:
        self._talk.answering()
        self._shape = shape
        self._reply = Reply(self._talk, identity, self._chunks)
        return self._reply

    def _open(self) -> Reply | None:
        return self._reply if self._reply is not None and not self._reply.finished else None

    def _block_start(self, said: Said) -> Events:
        made = (self._open() or self._begin("stream", "")).start(said)
        return [_raw(said)] if made is None else made + _kept(said, block_leaves(said.get("content_block")))

    def _block_delta(self, said: Said) -> Events:
        made = (self._open() or self._begin("stream", "")).delta(said)
        return [_raw(said)] if made is None else made

    def _block_stop(self, said: Said) -> Events:
        reply, index = self._open(), said.get("index")
        return reply.stop(index) if reply is not None and type(index) is int else [_raw(said)]

    def _message_delta(self, said: Said) -> Events:
        reply, delta = self._open(), as_dict(said.get("delta"))
        if reply is None:
            return [_raw(said)]
        reply.reason = as_str(delta.get("stop_reason")) or reply.reason
        reply.detail = as_str(as_dict(delta.get("stop_details")).get("explanation"))
        reply.usage = {**reply.usage, **{k: v for k, v in as_dict(said.get("usage")).items() if v is not None}}
        return _kept(said, leaves(said, DELTA) or leaves(delta, STOP))

    def _message_stop(self, said: Said) -> Events:
        reply = self._open()
        return self._finish(reply) if reply is not None else [_raw(said)]

    def _finish(self, reply: Reply) -> Events:
        made = reply.finish()
        made += [ev.SessionInfo(usage=reply.usage)] if reply.usage else []
        reason = read.REASONS.get(reply.reason, reply.reason) or "end_turn"
        return made + ([] if reply.pauses else self._talk.ended(reason, reply.detail))

    def _settle(self) -> Events:
        """Something else comes, so the answer is whole even if it did not say so."""
        reply = self._open()
        return self._finish(reply) if reply is not None else []

    def _break_off(self, reason: str, why: str = "") -> Events:
        reply = self._open()
        return reply.break_off(reason, why) if reply is not None else []

    def _error(self, said: Said) -> Events:
        why = complaint(said.get("error"))
        return [*self._break_off("error", why), *self._talk.ended("error", why), _raw(said)]

    def _ping(self, said: Said) -> Events:
        return []

    def _derived(self, said: Said) -> Events:
        """What a client makes of the events of a stream, and passes on beside them."""
        return _kept(said, self._shape != "stream")

    # Whole messages

    def _answer(self, message: Said, shape: str) -> Events:
        """A whole answer, unless it is the last one told anew in another shape."""
        made = self._settle()
        if self._shape not in ("", shape) and read.message_mark(message) == self._talk.told.last:
            return [*made, _raw(message)]
        reply = self._begin(shape, identifier(message.get("id")))
        for place, block in enumerate(blocks_of(message)):
            made += (reply.block(place, as_dict(block), whole=True) or []) + _kept(block, block_leaves(block))
        reply.reason, reply.usage = as_str(message.get("stop_reason")), as_dict(message.get("usage"))
        reply.detail = as_str(as_dict(message.get("stop_details")).get("explanation"))
        return made + self._finish(reply) + _kept(message, leaves(message, {*read.MESSAGE, "stop_details"}))

    def _whole(self, said: Said) -> Events:
        return self._answer({**said, "role": read.ASSISTANT}, "whole") if _is_answer(said) else self._message(said)

    def _message(self, message: Said) -> Events:
        role = message.get("role")
        if role == read.ASSISTANT:
            return self._answer(message, "message")
        made = self._settle()
        self._talk.told.add(read.message_mark(message))
        return made + (self._from_person(message) if role == read.USER else [_raw(message)])

    def _from_person(self, message: Said) -> Events:
        blocks = blocks_of(message)
        said = [block for block in blocks if not is_result(block)]
        made = [event for block in blocks if is_result(block) for event in self._result(as_dict(block))]
        if said:
            made += self._talk.interrupted() if made else self._talk.prompted()
            made.append(read.prompt(said))
        return made + _kept(message, not blocks or leaves(message, read.PARAM))

    def _result(self, block: Said) -> Events:
        ending, told = read.result_of(block)
        ended = ending(**self._talk.answered(identifier(block.get("tool_use_id"))), **told)
        return [ended, *_kept(block, block_leaves(block))]

    def _request(self, said: Said) -> Events:
        messages = as_list(said["messages"])
        made = self._settle()
        known, kept = self._requests.read(said, [read.message_mark(message) for message in messages])
        for message in messages[known:]:
            told = as_dict(message)
            made += self._message(told) if isinstance(told.get("role"), str) else [_raw(message)]
        return made + kept

    _EVENTS: ClassVar[dict[str, Callable[[Any, Said], Events]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "message": _whole,
        "error": _error,
        "ping": _ping,
        **dict.fromkeys(("text", "thinking", "signature", "citation", "input_json"), _derived),
    }


def _is_answer(said: Said) -> bool:
    return said.get("role", read.ASSISTANT) == read.ASSISTANT


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)


def _kept(body: Any, more: object) -> Events:
    """The message, whole, beside what was made of it."""
    return [_raw(body)] if more else []
