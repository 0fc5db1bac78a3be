"""Decode a conversation over a model API in any recorded shape: what the decoders of all APIs have in common.

A request repeats the conversation so far and has settings. Only new messages in it count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from callslip.formats.base import Events, raw_if
from callslip.formats.json_fields import Fields, as_dict, as_list, error_text
from callslip.formats.providers.conversation import ModelConversation
from callslip.formats.providers.reply import ModelReply
from callslip.formats.usage import read_usage
from callslip.model import events as ev
from callslip.model.events import Draft


def usage_events(usage: Any, response_id: str, model: Any) -> Events:
    """Return the events of the tokens that a response used, if they are known."""
    return [ev.SessionInfo(usage=usage), *read_usage(usage, id=response_id, model=model)] if usage else []


class ModelDecoder(ABC):
    """One conversation. An item is a message, or where an API separates them also a call or a result.

    `digest_of` identifies a repeated item. `request_fields` are the fields of a request that are not settings.
    """

    def __init__(
        self,
        format: str,
        digest_of: Callable[[Any], str],
        chunks: ev.Chunks | None,
        request_fields: Collection[str] = ("messages",),
    ) -> None:
        self._format = format
        self._digest_of = digest_of
        self._chunks: ev.Chunks = chunks or "delta"
        self._conversation = ModelConversation(format)
        self._request_fields = request_fields
        self._settings: Fields = {}

    def feed(self, message: Any) -> list[Draft]:
        return self._conversation.drafts(self._read(message))

    def close(self, reason: str) -> list[Draft]:
        return self._conversation.close(self._interrupt(reason), reason)

    @abstractmethod
    def holds_input(self) -> bool:
        """Return whether a response is incomplete: its usage and some arguments are in no draft before its end."""

    @abstractmethod
    def _read(self, message: Any) -> Events:
        """Return the events of a message."""

    @abstractmethod
    def _read_item(self, item: Fields) -> Events:
        """Return the events of an item."""

    @abstractmethod
    def _settle(self) -> Events:
        """Finish an open response: another message implies that it is complete."""

    @abstractmethod
    def _interrupt(self, reason: str, cause: str = "") -> Events:
        """End an open response that is incomplete."""

    def _is_item(self, value: Any) -> bool:
        return isinstance(as_dict(value).get("role"), str)

    def _raw_if(self, condition: object, body: Any) -> Events:
        return raw_if(condition, self._format, body)

    def _fail(self, cause: str, fields: Fields) -> Events:
        """End the response and the turn with an error."""
        interrupted = self._interrupt("error", cause)
        return [*interrupted, *self._conversation.end("error", cause), *self._raw_if(True, fields)]

    def _read_request(self, request: Fields, items: list[Any], *, all_new: bool = False) -> Events:
        """Read the new items of a request.

        The settings are stored raw when they change, the full request if it contains a different past.
        """
        events, seen = self._settle(), self._conversation.seen
        digests = [self._digest_of(item) for item in items]
        known = 0 if all_new else seen.count_known(digests)
        settings = {name: value for name, value in request.items() if name not in self._request_fields}
        is_changed, self._settings = settings != self._settings, settings
        if seen.is_rewritten(digests[:known]):
            raw = self._raw_if(True, request)
        else:
            raw = self._raw_if(settings and is_changed, settings)
        for item in items[known:]:
            events += self._read_item(as_dict(item)) if self._is_item(item) else self._raw_if(True, item)
        return events + raw


ReplyT = TypeVar("ReplyT", bound=ModelReply)


class MessageDecoder(ModelDecoder, Generic[ReplyT]):
    """A conversation whose answers are single messages. `_shape` is how the last answer was recorded."""

    def __init__(
        self, format: str, reply_type: type[ReplyT], digest_of: Callable[[Any], str], chunks: ev.Chunks | None
    ) -> None:
        super().__init__(format, digest_of, chunks)
        self._reply_type = reply_type
        self._reply: ReplyT | None = None
        self._shape = ""

    @abstractmethod
    def _finish(self, reply: ReplyT) -> Events:
        """End a complete answer, and the turn if nothing follows."""

    def _begin(self, shape: str, message_id: str) -> ReplyT:
        self._conversation.begin_round()
        self._shape = shape
        last_id = self._reply.id if self._reply is not None else ""
        self._reply = self._reply_type(self._conversation, message_id, self._chunks)
        # A server may give all its responses one id. Then each counts by itself.
        self._reply.usage_id = message_id if message_id != last_id else ""
        return self._reply

    def _open_reply(self) -> ReplyT | None:
        return self._reply if self._reply is not None and not self._reply.is_finished else None

    def holds_input(self) -> bool:
        return self._open_reply() is not None

    def _settle(self) -> Events:
        reply = self._open_reply()
        return self._finish(reply) if reply is not None else []

    def _interrupt(self, reason: str, cause: str = "") -> Events:
        reply = self._open_reply()
        if reply is None:
            return []
        used = read_usage(reply.usage, id=reply.usage_id, model=reply.model, incomplete=True)
        return reply.interrupt(reason, cause) + used

    def _is_last_answer(self, message: Fields, shape: str) -> bool:
        """Return whether a full answer is the last one again in another shape."""
        return self._shape not in ("", shape) and self._digest_of(message) == self._conversation.seen.last

    def _read_error(self, fields: Fields) -> Events:
        return self._fail(error_text(fields.get("error")), fields)

    def _read_messages(self, request: Fields) -> Events:
        return self._read_request(request, as_list(request["messages"]))
