"""`openai`: reads a conversation over Chat Completions, in whatever shape it was kept.

A message is a streamed chunk, a whole completion, a message of some role, the body of a request, or an error. Requests
repeat the whole conversation; only what is news in them counts. An answer that is told in a second shape is no second
answer. Of several choices the first is the conversation; the others are kept as they came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict, as_list, as_str, complaint, identifier, leaves, milliseconds
from callslip.formats.openai import chat_words as words
from callslip.formats.openai.chat_reply import Reply
from callslip.formats.providers.conversation import ModelConversation
from callslip.formats.providers.requests import Requests
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Said: TypeAlias = dict[str, Any]
DONE = "[DONE]"

# What the SDK makes of the chunks of a stream, and passes on beside them.
_DERIVED = ("content", "refusal", "logprobs.content", "logprobs.refusal", "tool_calls.function.arguments")
DERIVED = {f"{what}.{how}" for what in _DERIVED for how in ("delta", "done")}


class ChatDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._talk = ModelConversation(words.FORMAT)
        self._reply: Reply | None = None
        self._shape = ""
        self._requests = Requests(words.FORMAT, self._talk.told, {"messages"})
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        made = self._read(message)
        at = milliseconds(as_dict(message).get("created"))
        drafts = [Draft(structs.replace(event, at=at) if at else event) for event in made]
        self._unfinished.see(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        """The line ended: so do a response that was under way, and the turn."""
        drafts = [Draft(event) for event in self._break_off(reason)]
        self._unfinished.see(drafts)
        self._talk.ended(reason)
        return drafts + [Draft(event) for event in self._unfinished.end(reason)]

    def _read(self, message: Any) -> Events:
        if message == DONE:
            return self._settle()
        said: Said = {"messages": as_list(message)} if isinstance(message, list) else as_dict(message)
        if as_str(said.get("type")) in DERIVED and self._shape == "chunk":
            return []
        for name, kind, rule in self._SHAPES:
            if isinstance(said.get(name), kind):
                return rule(self, said)
        return [_raw(message)]

    # Responses

    def _response(self, said: Said) -> Events:
        choices = [as_dict(choice) for choice in as_list(said["choices"])]
        first = next((choice for choice in choices if (choice.get("index") or 0) == 0), as_dict(None))
        whole, reason = isinstance(first.get("message"), dict), as_str(first.get("finish_reason"))
        message = as_dict(first.get("message" if whole else "delta"))
        made = self._whole(said, message, reason) if whole else self._chunk(said, message, reason)
        odd = not made and (whole or not first)
        more = len(choices) > bool(first) or leaves(said, words.RESPONSE) or leaves(first, words.CHOICE)
        return made + _kept(said, odd or more or words.message_leaves(message))

    def _chunk(self, said: Said, delta: Said, reason: str) -> Events:
        identity = identifier(said.get("id"))
        made = self._go_on(identity) if self._begins(identity, delta, reason) else []
        reply, usage = self._reply, said.get("usage")
        if reply is None or reply.finished:
            return made + _used(usage)
        made += reply.delta(delta)
        reply.usage = usage or reply.usage
        return made + (self._finish(reply, reason) if reason else [])

    def _begins(self, identity: str, delta: Said, reason: str) -> bool:
        """Whether a chunk may begin a response. What comes after the end of one without a word is about that one."""
        known = self._reply is not None and identity in ("", self._reply.identity)
        return leaves(delta, {"role"}) or (bool(reason) and not known)

    def _go_on(self, identity: str) -> Events:
        """The response that a chunk belongs to. A server may give all its responses one id, or none."""
        reply = self._reply
        if reply is not None and not reply.finished and identity in ("", reply.identity):
            return []
        made = self._break_off("error")
        self._talk.answering()
        self._reply, self._shape = Reply(self._talk, identity, self._chunks), "chunk"
        return made

    def _finish(self, reply: Reply, reason: str) -> Events:
        made = reply.finish() + _used(reply.usage)
        if reply.calls:
            return made
        return made + self._talk.ended("refusal" if reply.refused else words.REASONS.get(reason, reason))

    def _settle(self) -> Events:
        """Something else comes, so the response is whole even if it did not say so."""
        reply = self._reply
        return self._finish(reply, "stop") if reply is not None and not reply.finished else []

    def _break_off(self, reason: str, why: str = "") -> Events:
        reply = self._reply
        return reply.break_off(reason, why) if reply is not None and not reply.finished else []

    def _whole(self, said: Said, message: Said, reason: str) -> Events:
        answer = {**message, "role": words.ASSISTANT}
        made = self._answer(answer, "whole", identifier(said.get("id")), reason or "stop")
        return [*made, *_used(said.get("usage"))] if made else []

    def _answer(self, message: Said, shape: str, identity: str = "", reason: str = "stop") -> Events:
        """A whole answer; nothing if it is the last one told anew in another shape."""
        made = self._settle()
        mark = words.message_mark(message)
        if self._shape not in ("", shape) and mark == self._talk.told.last:
            return made
        self._shape, self._reply = shape, None
        self._talk.answering()
        self._talk.told.add(mark)
        said = words.spoken(message)
        made += [cls(text=piece, message_id=identity, chunks=self._chunks) for cls, piece in said]
        made += [ev.MessageEnded()] if said else []
        calls = self._propose(message, identity)
        refused = bool(as_str(message.get("refusal")))
        return made + (calls or self._talk.ended("refusal" if refused else words.REASONS.get(reason, reason)))

    def _propose(self, message: Said, identity: str) -> Events:
        made: Events = []
        for index, call in enumerate(words.wanted(message)):
            alias = self._talk.alias(call.given, identity)
            self._talk.wait(call.given, call.name, alias)
            told: Said = {"tool_name": call.name} if call.name else {}
            told |= {"input": call.input, "iteration": self._talk.round, "index": index}
            made.append(ev.CallProposed(aliases=(alias,), **told))
        return made

    # Messages

    def _message(self, message: Said) -> Events:
        role = message["role"]
        if role == words.ASSISTANT:
            made = self._answer(message, "message")
            return made + _kept(message, not made or words.message_leaves(message))
        made = self._settle()
        self._talk.told.add(words.message_mark(message))
        rule = self._ROLES.get(role)
        return made + (rule(self, message) if rule else [_raw(message)])

    def _prompt(self, message: Said) -> Events:
        return [*self._talk.prompted(), words.prompt(message), *_kept(message, leaves(message, words.PROMPT))]

    def _result(self, message: Said) -> Events:
        named = self._talk.answered(identifier(message.get("tool_call_id")), as_str(message.get("name")))
        ended = ev.CallCompleted(output=words.output(message), **named)
        return [ended, *_kept(message, leaves(message, words.RESULTS))]

    def _request(self, said: Said) -> Events:
        messages = as_list(said["messages"])
        made = self._settle()
        known, kept = self._requests.read(said, [words.message_mark(message) for message in messages])
        for message in messages[known:]:
            told = as_dict(message)
            made += self._message(told) if isinstance(told.get("role"), str) else [_raw(message)]
        return made + kept

    def _error(self, said: Said) -> Events:
        why = complaint(said["error"])
        return [*self._break_off("error", why), *self._talk.ended("error", why), _raw(said)]

    def _passed_on(self, said: Said) -> Events:
        """A chunk as the SDK passes it on."""
        return self._read(said["chunk"]) if said.get("type") == "chunk" else [_raw(said)]

    _SHAPES: ClassVar[tuple[tuple[str, Any, Callable[[Any, Said], Events]], ...]] = (
        ("role", str, _message),
        ("error", (dict, str), _error),
        ("choices", list, _response),
        ("messages", list, _request),
        ("chunk", dict, _passed_on),
    )
    _ROLES: ClassVar[dict[str, Callable[[Any, Said], Events]]] = {
        words.USER: _prompt,
        **dict.fromkeys(words.RESULT, _result),
    }


def _used(usage: Any) -> Events:
    return [ev.SessionInfo(usage=usage)] if usage else []


def _raw(body: Any) -> Event:
    return ev.Raw(format=words.FORMAT, body=body)


def _kept(body: Any, more: object) -> Events:
    """The message, whole, beside what was made of it."""
    return [_raw(body)] if more else []
