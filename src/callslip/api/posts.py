"""Record messages that callers post, in any readable format and in one or more bodies.

A poster has no connection: a call that gets no more events ends when its lease expires. What the decoder remembers of a
body is stored with its events (`callslip.ingest.stored_conversation`), so that no acknowledged message is lost if the
process dies, and any process can read the next body.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from callslip.api.access import Access
from callslip.api.approvals import check_posted_answers
from callslip.api.sessions import list_keys, read_by_seq, write_or_create
from callslip.errors import ConflictError, InvalidInputError
from callslip.ingest.conversations import Conversation, Conversations
from callslip.ingest.stored_conversation import StoredConversation
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import WriteContext, write_events
from callslip.model import codec
from callslip.model.events import ApprovalAnswer, Chunks, Draft, Event, Raw, SessionInfo, encode_event
from callslip.model.records import ConversationChange, ConversationRecord, KeyRecord
from callslip.store.unit_of_work import UnitOfWork

IDLE_S = 600.0
"""How long a conversation stays in memory after its last body."""
MAX_CONVERSATIONS = 1000
MAX_ATTEMPTS = 5
"""How often a body is read again because another process read one of the same conversation meanwhile."""
LAST_KEY_SUFFIX = "."


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A posted body: its messages, size and digest, and how to read it. `is_end`: it is the last one."""

    messages: list[Any]
    size: int
    digest: str
    key: str = ""
    chunks: Chunks | None = None
    is_end: bool = False
    with_events: bool = False


class PostResult(msgspec.Struct):
    """The result of a body.

    `seq` is its last event, or the last event of the session if it has none. `others` are the last events in further
    sessions. Without an event the messages are stored and wait for the next ones.
    """

    seq: int
    appended: int
    not_understood: int = 0
    others: dict[str, int] = {}
    events: list[bytes] | None = None


class _StaleConversationError(Exception):
    """Another process has read a body of this conversation."""


ConversationKey = tuple[str, str, str]
"""The session, the format and the caller: bodies that share them belong to one conversation."""


class _OpenConversation:
    """A conversation in memory between two bodies. `stored` is None until it was loaded."""

    def __init__(self) -> None:
        self.stored: StoredConversation | None = None
        self.lock = asyncio.Lock()
        self.used_at = time.monotonic()


class Posts:
    """The conversations that callers post to one process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._open: dict[ConversationKey, _OpenConversation] = {}

    async def append(self, name: ConversationKey, body: Body, access: Access) -> PostResult:
        """Append a body to a conversation. A body that was posted before with the same key returns the same result."""
        async with self._locked(name) as opened:
            for _ in range(MAX_ATTEMPTS):
                result = await self._find_result(name[0], body)
                if result is not None:
                    return result
                with contextlib.suppress(_StaleConversationError):
                    return await self._append(opened, name, body, access)
        raise ConflictError("other processes keep posting to this conversation. Try again.")

    async def _append(self, opened: _OpenConversation, name: ConversationKey, body: Body, access: Access) -> PostResult:
        stored, opened.stored = opened.stored or await self._load(name, body), None
        # After an error the stored conversation is loaded again: this one has read what was not written.
        write = _BodyWrite(self._log, stored, name, body, access)
        await stored.read(body.messages, check_drafts, is_end=body.is_end)
        await write.run()
        if body.is_end:
            self._open.pop(name, None)
        else:
            opened.stored = stored
        return await write.result()

    async def _load(self, name: ConversationKey, body: Body) -> StoredConversation:
        session, format, caller = name
        record = await self._log.store.conversation(session, format, caller)
        if record is None:
            record = ConversationRecord(session=session, format=format, caller=caller, chunks=body.chunks or "")
        stored = StoredConversation(record, self._log.redactor)
        await stored.load_inputs()
        return stored

    @contextlib.asynccontextmanager
    async def _locked(self, name: ConversationKey) -> AsyncGenerator[_OpenConversation]:
        """Lock a conversation for one body. If it was forgotten while waiting for the lock, start again."""
        while True:
            opened = self._find_or_open(name)
            async with opened.lock:
                if self._open.get(name) is opened:
                    yield opened
                    return

    def _find_or_open(self, name: ConversationKey) -> _OpenConversation:
        now = time.monotonic()
        for other_name, other in list(self._open.items()):
            if other.lock.locked():
                continue
            if other.used_at < now - IDLE_S or len(self._open) >= MAX_CONVERSATIONS:
                del self._open[other_name]
        opened = self._open.pop(name, None) or _OpenConversation()
        self._open[name] = opened  # The least recently used conversation is the first one.
        opened.used_at = now
        return opened

    async def _find_result(self, session: str, body: Body) -> PostResult | None:
        """Return the result of a body that was completely written before; None if a part of it is missing."""
        if not body.key:
            return None
        prefix = _key_prefix(body.key)
        records = await list_keys(self._log, session, prefix)
        held = await self._log.store.input_key(session, prefix)
        if any(record.mark != body.digest for record in (*records, *([held] if held else ()))):
            raise ConflictError(f"idempotency-key: {body.key!r} was used before with another body")
        if held is not None:
            return PostResult(seq=held.seq, appended=0, events=[] if body.with_events else None)
        if not records or not records[-1].key.endswith(LAST_KEY_SUFFIX):
            return None
        seqs = [record.seq for record in records]
        events = await read_by_seq(self._log, session, seqs) if body.with_events else None
        return PostResult(seq=max(seqs), appended=len(set(seqs)), events=events)


def check_drafts(drafts: list[Draft]) -> list[Draft]:
    """Return drafts, or raise if one of them sets the owner of its session."""
    for draft in drafts:
        if isinstance(draft.event, SessionInfo) and draft.event.owner is not msgspec.UNSET:
            raise InvalidInputError("owner", "is set by the token that creates the session")
    return drafts


def _key_prefix(key: str) -> str:
    """Return the prefix of the keys of a body's events. No two bodies have prefixes that overlap."""
    return f"http:{codec.digest(key.encode())[:32]}:"


def _set_keys(conversations: Conversations, session: str, prefix: str, mark: str) -> None:
    """Give each draft a key with its number. The posted session comes last, so its last key marks the whole body."""
    conversations.all = dict(sorted(conversations.all.items(), key=lambda item: item[1].session == session))
    for conversation in conversations.all.values():
        count = sum(len(drafts) for _, drafts in conversation.waiting)
        keys = (f"{prefix}{number:08}{LAST_KEY_SUFFIX if number == count else ''}" for number in range(1, count + 1))
        conversation.waiting = [
            (message, [structs.replace(draft, key=next(keys), mark=mark) for draft in drafts])
            for message, drafts in conversation.waiting
        ]


class _BodyWrite:
    """The write of one body that was read, in one or more transactions. The last one stores the conversation."""

    def __init__(
        self, log: EventLog, stored: StoredConversation, name: ConversationKey, body: Body, access: Access
    ) -> None:
        self._log = log
        self._stored = stored
        self._session, format, self._caller = name
        self._source = "" if format == "events" else format
        self._body = body
        self._access = access
        self._events: dict[str, list[Event]] = {}
        self._before = stored.record
        self._change: ConversationChange | None = None
        self._input_key: KeyRecord | None = None
        self._remaining = 0

    async def run(self) -> None:
        """Write the drafts of the body, its key, and what changes in the conversation."""
        body, conversations = self._body, self._stored.conversations
        if body.key:
            _set_keys(conversations, self._session, _key_prefix(body.key), body.digest)
        await self._check_access(conversations)
        self._change = self._stored.change(body.messages, body.size, is_end=body.is_end)
        has_events = any(part.waiting for part in conversations.all.values() if part.session == self._session)
        if body.key and not has_events:
            self._input_key = KeyRecord(self._session, _key_prefix(body.key), body.digest, 0)
        self._remaining = sum(len(drafts) for part in conversations.all.values() for _, drafts in part.waiting)
        await conversations.flush(self._append)
        if self._change is not None or self._input_key is not None:
            await self._access.require_write(self._session)
            self._note(await self._log.store.transact(lambda unit: self._finish(unit)))

    async def _check_access(self, conversations: Conversations) -> None:
        """Raise unless the caller may write to every session of the body, before anything is written."""
        for part in conversations.all.values():
            if part.session not in self._events and part.waiting:
                await self._access.require_write(part.session)
                self._events[part.session] = []

    async def _append(self, part: Conversation, drafts: list[Draft]) -> None:
        """Append drafts to the session of a conversation, creating it if needed."""
        session, check_answer = part.session, None
        if any(isinstance(draft.event, ApprovalAnswer) for draft in drafts):
            check_answer = await check_posted_answers(session, self._source, self._caller, self._access)
        is_last = len(drafts) == self._remaining

        async def write(before: Sequence[Draft]) -> tuple[list[Event], int]:
            def work(unit: UnitOfWork, valid: list[Draft], context: WriteContext) -> tuple[list[Event], int]:
                self._check_version(unit)
                events = write_events(unit, session, valid, context)
                return events[len(before) :], self._finish(unit) if is_last else 0

            return await self._log.transact_drafts(
                [*before, *drafts],
                work,
                source=self._source,
                strict=False,
                caller=self._caller,
                check_answer=check_answer,
            )

        events, version = await write_or_create(self._log, session, write, access=self._access)
        self._remaining -= len(drafts)
        self._events.setdefault(session, []).extend(events)
        if is_last:
            self._note(version)

    def _check_version(self, unit: UnitOfWork) -> None:
        if unit.conversation_version(self._before) == self._before.version:
            return
        if any(self._events.values()):
            raise ConflictError("another process read a body of this conversation meanwhile. Post this one again.")
        raise _StaleConversationError

    def _finish(self, unit: UnitOfWork) -> int:
        """Store the conversation and the key of the body. Return the version of the conversation."""
        self._check_version(unit)
        if self._input_key is not None:
            session = unit.session(self._session)
            unit.put_input_key(structs.replace(self._input_key, seq=session.last_seq if session else 0))
        return self._before.version if self._change is None else unit.change_conversation(self._change)

    def _note(self, version: int) -> None:
        if self._change is not None:
            self._stored.changed(self._change, version)
        self._change = self._input_key = None

    async def result(self) -> PostResult:
        """Return what was written."""
        seqs = {name: max((event.seq for event in events), default=0) for name, events in self._events.items()}
        events = [event for events in self._events.values() for event in events]
        own = self._events.get(self._session, [])
        record = None if own else await self._log.get_session(self._session)
        return PostResult(
            seq=seqs.get(self._session, 0) or (record.last_seq if record else 0),
            appended=len(events),
            not_understood=sum(isinstance(event, Raw) for event in events),
            others={name: seq for name, seq in seqs.items() if name != self._session},
            events=[encode_event(event) for event in own] if self._body.with_events else None,
        )
