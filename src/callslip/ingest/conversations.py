"""The conversations of one stream of messages, and the connection that writes them: shared by import, HTTP and `wrap`.

Each conversation has a decoder, a session, and the drafts that are not written yet, by message. A message that the
ledger refuses is kept as raw and affects no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.formats.base import Decoder, RequiresValidation, unwrapped
from callslip.ingest.answer_place import set_answer_place
from callslip.ingest.decoder_state import StateMismatchError, encode_state, restore_state
from callslip.ingest.raw_fallback import append_or_keep_raw, group_drafts
from callslip.ingest.recorder import OpenCalls
from callslip.ledger import liveness
from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import CallEvent, Chunks, Draft, Event
from callslip.model.names import NEW_CALL_PREFIX, check_session_name

MAX_PENDING_DRAFTS = 1000


class Conversation(msgspec.Struct):
    """One conversation. Its drafts wait until its session is known."""

    decoder: Decoder
    session: str = ""
    waiting: list[tuple[Any, list[Draft]]] = []
    message_count: int = 0

    def keep(self, message: Any, drafts: list[Draft]) -> None:
        """Add the drafts of a message to those that wait. A long list is split into several writes."""
        self.message_count += 1
        unique = [_with_unique_call(draft, self.message_count) for draft in drafts]
        groups = group_drafts(unique) if len(unique) > MAX_PENDING_DRAFTS else [unique]
        for start in range(0, len(groups) if unique else 0, MAX_PENDING_DRAFTS):
            part = [draft for group in groups[start : start + MAX_PENDING_DRAFTS] for draft in group]
            self.waiting.append((message, part))


Write: TypeAlias = Callable[[Conversation, list[Draft]], Awaitable[None]]


class Conversations:
    """All conversations of one stream. `session_of` returns the session of a new one, "" if it is not known yet."""

    def __init__(
        self,
        format: str,
        session_of: Callable[[str], str],
        *,
        chunks: Chunks | None = None,
        started: int = 0,
        requires_validation: RequiresValidation | None = None,
    ) -> None:
        self.format = format
        self.all: dict[str, Conversation] = {}
        self._session_of = session_of
        self._new_decoder = lambda: registry.decoder(
            format, chunks=chunks, started=started, requires_validation=requires_validation
        )
        self._splitter = registry.splitter(format, started=started)
        self._started = started
        self._new_decoder()  # Refuse an unknown format before a message is read.

    def read(self, message: Any) -> list[tuple[Conversation, Any, list[Draft]]]:
        """Decode a message: return its conversations, the part of the message for each, and the drafts."""
        decoded: list[tuple[Conversation, Any, list[Draft]]] = []
        for name, part, at in self._split(message):
            conversation = self.named(name)
            drafts = set_answer_place(conversation.decoder.feed(part), self.format)
            if at:
                drafts = [
                    draft if draft.event.at else structs.replace(draft, event=structs.replace(draft.event, at=at))
                    for draft in drafts
                ]
            decoded.append((conversation, part, drafts))
        return decoded

    def named(self, name: str) -> Conversation:
        """Return the conversation of a name; the first one has none."""
        conversation = self.all.get(name)
        if conversation is None:
            conversation = self.all[name] = Conversation(self._new_decoder(), self._session_of(name))
        return conversation

    def _split(self, message: Any) -> list[tuple[str, Any, int]]:
        """Return the conversations of a message, the part for each, and its time in ms, 0 if unknown."""
        if self._splitter is not None:
            return [(name, part, 0) for name, part in self._splitter.split(message)]
        bare, seconds = unwrapped(message)
        return [("", bare, int(self._started + seconds * 1000) if self._started and seconds else 0)]

    def close(self, reason: str) -> list[tuple[Conversation, list[Draft]]]:
        """End the input of all conversations: return each with the drafts of its end."""
        return [(each, set_answer_place(each.decoder.close(reason), self.format)) for each in self.all.values()]

    def dump(self, mask: Callable[[str], str]) -> bytes:
        """Return what the decoders remember as bytes that can be stored. `mask` hides secrets."""
        splitter = b"" if self._splitter is None else encode_state(self._splitter, mask)
        decoders = {name: encode_state(each.decoder, mask) for name, each in self.all.items()}
        return msgspec.msgpack.encode((splitter, decoders))

    def load(self, state: bytes) -> None:
        """Continue with what the decoders remembered. Raise StateMismatchError if it cannot be read."""
        try:
            splitter, decoders = msgspec.msgpack.decode(state, type=tuple[bytes, dict[str, bytes]])
        except msgspec.DecodeError as error:
            raise StateMismatchError(str(error)) from error
        if self._splitter is not None:
            restore_state(self._splitter, splitter)
        for name, memory in decoders.items():
            restore_state(self.named(name).decoder, memory)

    def holds_input(self) -> bool:
        """Return whether a decoder holds input back."""
        return any(conversation.decoder.holds_input() for conversation in self.all.values())

    async def flush(self, write: Write) -> None:
        """Write the waiting drafts in few writes. After an error, those that were not written still wait."""
        for conversation in self.all.values():
            while conversation.session and conversation.waiting:
                await self._write_messages(conversation, _batch_size(conversation.waiting), write)

    async def _write_messages(self, conversation: Conversation, count: int, write: Write) -> None:
        """Write messages together; if one of them is refused, each by itself."""
        if count > 1:
            try:
                await write(conversation, [draft for _, drafts in conversation.waiting[:count] for draft in drafts])
                del conversation.waiting[:count]
                return
            except InvalidInputError:
                pass
        for _ in range(count):
            message, drafts = conversation.waiting[0]
            try:
                await append_or_keep_raw(lambda part: write(conversation, part), drafts, self.format, message)
            finally:
                if not drafts:
                    del conversation.waiting[0]


def _batch_size(waiting: list[tuple[Any, list[Draft]]]) -> int:
    """Return how many messages to write at once, so that other writers do not wait long."""
    total = 0
    for number, (_, drafts) in enumerate(waiting):
        total += len(drafts)
        if total > MAX_PENDING_DRAFTS:
            return max(1, number)
    return len(waiting)


def _with_unique_call(draft: Draft, number: int) -> Draft:
    """Return a draft whose name of a new call differs from those of other messages in the same write."""
    event = draft.event
    if not isinstance(event, CallEvent) or not event.call.startswith(NEW_CALL_PREFIX):
        return draft
    return structs.replace(
        draft, event=structs.replace(event, call=f"{NEW_CALL_PREFIX}{number}.{event.call[len(NEW_CALL_PREFIX) :]}")
    )


class Connection:
    """The owner of the calls that a connection writes. They end when it closes."""

    def __init__(self, log: EventLog, source: str) -> None:
        self._log = log
        self._source = source
        self._owner = liveness.new_owner()
        self._open_calls = OpenCalls()

    async def append(self, session: str, drafts: Sequence[Draft]) -> list[Event]:
        """Append drafts. Pass the events to `track`."""
        return await self._log.append(session, drafts, source=self._source, owner=self._owner)

    def track(self, event: Event) -> None:
        """Track which calls are open."""
        self._open_calls.update(event)

    async def close(self, reason: str) -> None:
        """End the open calls: those that it owns, and those in the grace period after their turn."""
        await self._log.close_owner(self._owner, reason)
        await self._open_calls.end(self._log, ev.CallLost, reason)


def joined(first: str, separator: str, name: str) -> str:
    """Join two names to a session name; a second one that is not valid in a session name is replaced by its digest."""
    try:
        return check_session_name(f"{first}{separator}{name}")
    except InvalidInputError:
        return check_session_name(f"{first[:150]}{separator}{codec.digest(name.encode())[:12]}")
