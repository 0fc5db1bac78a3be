"""A conversation that arrives in several bodies, each read by any process.

What its decoders remember is stored after every body, at a cost that does not grow with the conversation: the body
itself is added to the stored input; only when the input since the last stored state has become larger than that state,
a new state is stored. A process reads the state and the input after it. Input that a decoder holds back is never in a
state only, because a later version of the decoder may not be able to read it. Stored texts have their secrets masked,
but the decoders read the messages as they are: they compare repeated texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import msgspec
from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.ingest.conversations import Conversations, joined
from callslip.ingest.decoder_state import StateMismatchError
from callslip.ledger.aio import LARGE_BYTES, run_off_loop
from callslip.model import codec
from callslip.model.events import Chunks, Draft
from callslip.model.records import ConversationChange, ConversationName, ConversationRecord
from callslip.rules.redaction import Redactor
from callslip.store.protocol import Store

MAX_EARLY_STATE_BYTES = 64 * 1024
"""A state up to this size is stored after each body with a secret: masked input would not be the same input."""
MAX_PLACES = 200
"""Of how many places in messages the end of the last text is remembered."""


class StoredConversation:
    """One conversation. `record` is what is stored of it."""

    def __init__(self, name: ConversationName, record: ConversationRecord, redactor: Redactor) -> None:
        self.name = name
        self.record = record
        self.required_tools: Collection[str] = ()
        """The tools whose calls a user must accept, for the next body."""
        self._redactor = redactor
        self._input_bytes = self._message_count = 0
        self._texts_before: dict[str, str] = {}
        self.conversations = self._new_conversations()

    def _new_conversations(self) -> Conversations:
        session = self.name.session

        def session_of(name: str) -> str:
            return session if not name else joined(session, ":", name)

        chunks = cast("Chunks | None", self.record.chunks or None)
        format = self.name.format
        requires = self._requires_validation if registry.find(format).has_validation else None
        return Conversations(format, session_of, chunks=chunks, requires_validation=requires)

    def _requires_validation(self, tool: str) -> bool:
        return tool in self.required_tools

    async def load(self, store: Store) -> None:
        """Read the stored state and the bodies after it, whose events are in the log; without a state, all bodies."""
        after, state = 0, self.record.state
        if state:
            try:
                await run_off_loop(len(state) >= LARGE_BYTES, self._load_state, state)
                after = self.record.state_version
            except StateMismatchError:  # It was stored by another version, or is damaged.
                self.conversations = self._new_conversations()
        inputs = await store.inputs(self.name, after)
        self._input_bytes = sum(map(len, inputs))
        await run_off_loop(self._input_bytes >= LARGE_BYTES, self._load_inputs, inputs)

    def _load_inputs(self, inputs: list[bytes]) -> None:
        for body in inputs:
            try:
                messages = codec.parse_json(body, max_bytes=len(body) + 1, max_depth=codec.MAX_DEPTH + 1)
            except InvalidInputError:  # It is damaged; the others are still of use.
                continue
            if isinstance(messages, list):
                self._mask(cast("list[Any]", messages))  # It remembers how the last text ends.
                for message in cast("list[Any]", messages):
                    self.conversations.read(message)

    def _load_state(self, state: bytes) -> None:
        try:
            memory, self._texts_before = msgspec.msgpack.decode(state, type=tuple[bytes, dict[str, str]])
        except msgspec.DecodeError as error:
            raise StateMismatchError(str(error)) from error
        self.conversations.load(memory)

    def _dump_state(self) -> bytes:
        return msgspec.msgpack.encode((self.conversations.dump(self._redactor.mask), self._texts_before))

    def read(
        self, messages: list[Any], prepare: Callable[[list[Draft]], list[Draft]] | None = None, *, is_end: bool
    ) -> None:
        """Read a body. Its drafts wait to be written, after `prepare` has changed them."""
        for message in messages:
            for part, part_message, drafts in self.conversations.read(message):
                part.keep(part_message, prepare(drafts) if prepare else drafts)
        if is_end:
            for part, drafts in self.conversations.close("eof"):
                part.keep(None, prepare(drafts) if prepare else drafts)

    async def change(self, messages: list[Any], size: int, *, is_end: bool) -> ConversationChange | None:
        """Return what to store after a body was read; None if nothing changed."""
        if is_end:
            return ConversationChange(is_ended=True) if self.record.version else None
        masked = await run_off_loop(size >= LARGE_BYTES, self._mask, messages)
        limit = MAX_EARLY_STATE_BYTES if masked is not messages else self._input_bytes + size
        if len(self.record.state) > limit:
            return ConversationChange(chunks=self.record.chunks, input=codec.encode(masked))
        holds_input = self.conversations.holds_input()
        is_large = size >= LARGE_BYTES or len(self.record.state) >= LARGE_BYTES
        state = await run_off_loop(is_large, self._dump_state)
        if state == self.record.state and not self._input_bytes and not holds_input:
            return None
        kept_input = codec.encode(masked) if holds_input else b""
        return ConversationChange(
            chunks=self.record.chunks, input=kept_input, state=state, drops_inputs=not holds_input
        )

    def _mask(self, messages: list[Any]) -> list[Any]:
        """Return messages without secrets; the same list if there are none.

        Texts at the same place of consecutive messages may be pieces of one text, so they are masked together: of a
        secret in two of them the second part is masked.
        """
        if not self._redactor.patterns:
            return messages
        masked = [self._mask_pieces(self._redactor.mask_value(message), "") for message in messages]
        is_same = all(one is other for one, other in zip(masked, messages, strict=True))
        return messages if is_same else masked

    def _mask_pieces(self, value: Any, place: str) -> Any:
        if isinstance(value, str):
            if len(self._texts_before) >= MAX_PLACES and place not in self._texts_before:
                self._texts_before.clear()
            masked, self._texts_before[place] = self._redactor.mask_next(self._texts_before.get(place, ""), value)
            return masked
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            new = {name: self._mask_pieces(member, f"{place}.{name}") for name, member in members.items()}
            return members if all(new[name] is members[name] for name in members) else new
        if isinstance(value, list):
            items = cast("list[Any]", value)
            pieces = [self._mask_pieces(item, f"{place}.{number}") for number, item in enumerate(items)]
            return items if all(one is other for one, other in zip(pieces, items, strict=True)) else pieces
        return value

    def changed(self, change: ConversationChange, version: int) -> None:
        """Note that a change was stored."""
        if change.state:
            self._input_bytes = 0
            self.record = structs.replace(self.record, state=change.state, state_version=version)
        else:
            self._input_bytes += len(change.input)
        self.record = structs.replace(self.record, version=version)
