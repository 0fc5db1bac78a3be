"""A conversation that arrives in several bodies, each read by any process.

What its decoders remember is stored after every body, at a cost that depends on the body and not on the conversation:
either the body itself is added to the stored input, or, when that input has become larger than the state of the
decoders, the state replaces it. Input that a decoder holds back is never in a state only, because a later version of
the decoder may not be able to read the state. Secrets are masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from msgspec import structs

from callslip.ingest.conversations import Conversation, Conversations, joined
from callslip.ingest.decoder_state import StateMismatchError
from callslip.model import codec
from callslip.model.events import Chunks, Draft
from callslip.model.records import ConversationChange, ConversationRecord
from callslip.rules.redaction import Redactor

BATCH_MESSAGES = 500
"""How many messages are read before other tasks get a turn."""


class StoredConversation:
    """One conversation. `record` is what is stored of it."""

    def __init__(self, record: ConversationRecord, redactor: Redactor) -> None:
        self.record = record
        self._redactor = redactor
        self.conversations = self._new_conversations()
        if record.state:
            try:
                self.conversations.load(record.state)
            except StateMismatchError:  # Of another version: like after a restart of that version, begin again.
                self.conversations = self._new_conversations()

    def _new_conversations(self) -> Conversations:
        session = self.record.session

        def session_of(name: str) -> str:
            return session if not name else joined(session, ":", name)

        chunks = cast("Chunks | None", self.record.chunks or None)
        return Conversations(self.record.format, session_of, chunks=chunks)

    async def load_inputs(self) -> None:
        """Read the stored input. Its events are in the log."""
        for body in self.record.inputs:
            async for _ in self._decode(codec.parse_json(body, max_bytes=len(body) + 1)):
                pass
        self.record = structs.replace(self.record, inputs=[])

    async def read(self, messages: list[Any], check: Callable[[list[Draft]], list[Draft]], *, is_end: bool) -> None:
        """Read a body. Its drafts wait to be written."""
        async for part, message, drafts in self._decode(messages):
            part.keep(message, check(drafts))
        if is_end:
            for part in self.conversations.all.values():
                part.keep(None, check(part.decoder.close("eof")))

    async def _decode(self, messages: list[Any]) -> AsyncIterator[tuple[Conversation, Any, list[Draft]]]:
        for number, message in enumerate(messages, 1):
            for decoded in self.conversations.read(message):
                yield decoded
            if not number % BATCH_MESSAGES:
                await asyncio.sleep(0)

    def change(self, messages: list[Any], size: int, *, is_end: bool) -> ConversationChange | None:
        """Return what to store after a body was read; None if nothing changed."""
        record = self.record
        if is_end:
            return ConversationChange(record, is_ended=True) if record.version else None
        if record.input_bytes + size >= len(record.state) and not self.holds_input():
            state = self.conversations.dump(self._redactor.mask)
            is_same = state == record.state and not record.input_bytes
            return None if is_same else ConversationChange(record, state=state)
        return ConversationChange(record, input=codec.encode(self._redactor.mask_value(messages)))

    def holds_input(self) -> bool:
        """Return whether a decoder holds input back."""
        return any(part.decoder.holds_input() for part in self.conversations.all.values())

    def changed(self, change: ConversationChange, version: int) -> None:
        """Note that a change was stored."""
        size = self.record.input_bytes + len(change.input) if change.input else 0
        self.record = structs.replace(
            self.record, version=version, state=self.record.state if change.input else change.state, input_bytes=size
        )
