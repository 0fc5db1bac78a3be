"""Record messages that callers post, in any readable format and in one or more bodies.

A poster has no connection: a call that gets no more events ends when its lease expires. What the decoders remember of a
body is stored with its events (`callslip.ingest.stored_conversation`), so that no acknowledged message is lost if the
process dies, and any process can read the next body. A process that finds that another one has read a body meanwhile,
or that needs several transactions, claims the conversation first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec import structs

from callslip.api.access import Access, Writer
from callslip.api.approvals import check_posted_answers
from callslip.api.blobs import check_blobs
from callslip.api.rules import answer_by_rules
from callslip.api.sessions import list_keys, read_by_seq, write_or_create
from callslip.errors import CallslipError, ConflictError, InvalidInputError, PermissionDeniedError
from callslip.formats import registry
from callslip.ingest.answer_place import clear_answer_place
from callslip.ingest.conversations import MAX_PENDING_DRAFTS, Conversation, Conversations
from callslip.ingest.stored_conversation import StoredConversation
from callslip.ledger import liveness
from callslip.ledger.aio import LARGE_BYTES, finish_despite_cancel, run_off_loop
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import WriteContext, write_events
from callslip.model import codec
from callslip.model.events import (
    ApprovalAnswer,
    ApprovalRequested,
    CallEvent,
    Chunks,
    Draft,
    Event,
    Raw,
    SessionInfo,
    blob_of,
    encode_event,
)
from callslip.model.records import ConversationChange, ConversationName, ConversationRecord, PostRecord
from callslip.rules.projection import SESSION_NAMESPACE
from callslip.store.protocol import Touched
from callslip.store.unit_of_work import UnitOfWork

IDLE_S = 600.0
"""How long a conversation stays in memory after its last body."""
MAX_CONVERSATIONS = 1000
"""How many conversations stay in memory."""
CLAIM_MS = 30_000
"""How long a process that died keeps others from reading the next body of a conversation that it claimed."""
CLAIM_POLL_S = 0.02
MAX_CLAIMS = 3
LAST_KEY_SUFFIX = "."
"""Versions before 0.3 marked the last event of a body with it and stored no answer."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A posted body: its messages, size and digest, and how to read it. `is_end`: it is the last one.

    `delivers_answers`: the caller passes answers to the requests for approval in it on to the agent.
    `requires_validation`: the tools whose calls a user must accept; without any, those of the settings.
    """

    messages: list[Any]
    size: int
    digest: str
    key: str = ""
    chunks: Chunks | None = None
    is_end: bool = False
    delivers_answers: bool = False
    requires_validation: Sequence[str] = ()
    with_events: bool = False

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE_BYTES


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
    """Another process has read a body of this conversation, or is reading one."""


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
        self._owner = liveness.new_owner()
        self._open: dict[ConversationName, _OpenConversation] = {}

    async def append(self, name: ConversationName, body: Body, access: Access) -> PostResult:
        """Append a body to a conversation. A body that was posted before with the same key returns the same result."""
        async with self._locked(name) as opened:
            result = await self._find_result(name, body)
            if result is not None:
                return result
            with contextlib.suppress(_StaleConversationError):
                return await self._append(opened, name, body, access, is_claimed=False)
            for _ in range(MAX_CLAIMS):
                with contextlib.suppress(_StaleConversationError):
                    async with self._claimed(name, body):
                        result = await self._find_result(name, body)
                        return result or await self._append(opened, name, body, access, is_claimed=True)
        raise ConflictError("other bodies of this conversation, or with this key, are written now. Try again.")

    async def _append(
        self, opened: _OpenConversation, name: ConversationName, body: Body, access: Access, *, is_claimed: bool
    ) -> PostResult:
        # After an error the stored conversation is loaded again: this one has read what was not written.
        stored, opened.stored = opened.stored, None
        if stored is None or is_claimed:
            stored = await self._load(name, body)
        if body.chunks and body.chunks != (stored.record.chunks or body.chunks):
            raise InvalidInputError("chunks", f"{stored.record.chunks!r} since the first body. Post an end=true first.")
        if body.requires_validation:
            registry.check_validation(name.format)
        stored.required_tools = frozenset(body.requires_validation or self._log.settings.requires_validation)
        prepare = clear_answer_place if body.delivers_answers else None
        await run_off_loop(body.is_large, stored.read, body.messages, prepare, is_end=body.is_end)
        write = _BodyWrite(self._log, stored, body, access, self._owner if is_claimed else "")
        if write.needs_claim and not is_claimed:
            raise _StaleConversationError
        result = await write.run()
        await write.answer_requests()
        if body.is_end:
            self._open.pop(name, None)
        else:
            opened.stored = stored
        return result

    async def _load(self, name: ConversationName, body: Body) -> StoredConversation:
        record = await self._log.store.conversation(name) or ConversationRecord(chunks=body.chunks or "")
        stored = StoredConversation(name, record, self._log.redactor)
        await stored.load(self._log.store)
        return stored

    @contextlib.asynccontextmanager
    async def _claimed(self, name: ConversationName, body: Body) -> AsyncGenerator[None]:
        """Wait until no other process reads a body of the conversation, and keep others from it."""
        is_new = False

        def claim(unit: UnitOfWork) -> bool:
            nonlocal is_new
            record = unit.conversation(name)
            is_new = record is None
            if record is not None and _is_claimed(record, unit.now, self._owner):
                return False
            chunks = record.chunks if record is not None else body.chunks or ""
            claimed_until = unit.now + CLAIM_MS
            change = ConversationChange(chunks=chunks, claimed_by=self._owner, claimed_until=claimed_until)
            unit.change_conversation(name, change)
            return True

        def release(unit: UnitOfWork) -> None:
            """End the claim if the write did not, because it failed."""
            record = unit.conversation(name)
            if record is not None and record.claimed_by == self._owner:
                unit.change_conversation(name, ConversationChange(chunks=record.chunks, is_ended=is_new))

        try:
            while not await self._log.store.transact(claim, Touched((name.session,))):
                await asyncio.sleep(CLAIM_POLL_S)
            yield
        finally:
            await finish_despite_cancel(self._run(release, Touched((name.session,))))

    async def _run(self, work: Callable[[UnitOfWork], None], touched: Touched) -> None:
        await self._log.store.transact(work, touched)

    @contextlib.asynccontextmanager
    async def _locked(self, name: ConversationName) -> AsyncGenerator[_OpenConversation]:
        """Lock a conversation for one body. If it was forgotten while waiting for the lock, start again."""
        while True:
            opened = self._find_or_open(name)
            async with opened.lock:
                if self._open.get(name) is opened:
                    yield opened
                    return

    def _find_or_open(self, name: ConversationName) -> _OpenConversation:
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

    async def _find_result(self, name: ConversationName, body: Body) -> PostResult | None:
        """Return the result of a body that was completely written before; None if a part of it is missing."""
        if not body.key:
            return None
        prefix = _key_prefix(body.key)
        records = await list_keys(self._log, name.session, prefix)
        post = await self._log.store.post(name.session, prefix)
        is_other_body = post is not None and post.mark != _post_mark(name, body)
        if is_other_body or any(record.mark != body.digest for record in records):
            raise ConflictError(f"idempotency-key: {body.key!r} was used before with another body")
        seqs = [record.seq for record in records]
        if post is not None:
            result = _decode_answer(post.answer)
        elif records and records[-1].key.endswith(LAST_KEY_SUFFIX):
            result = PostResult(seq=max(seqs), appended=len(set(seqs)))
        else:
            return None
        if body.with_events:
            result.events = await read_by_seq(self._log, name.session, seqs) if seqs else []
        return result


def _is_claimed(record: ConversationRecord, now: int, owner: str) -> bool:
    """Return whether another process that is not known to be dead has claimed a conversation."""
    return record.claimed_until > now and record.claimed_by != owner and not liveness.is_dead(record.claimed_by)


_decode_answer = codec.stored_decoder(PostResult, "the answer to a posted body")


def check_drafts(drafts: list[Draft], writer: Writer) -> None:
    """Raise if a draft sets what decides about access to a session: its owner, or what the caller may not set.

    An authorizer may decide by labels, and a transcript is imported into the session with the agent's id of it.
    """
    for draft in drafts:
        event = draft.event
        if isinstance(event, SessionInfo):
            if event.owner is not msgspec.UNSET:
                raise InvalidInputError("owner", "is set by the token that creates the session")
            values = {"labels": event.labels, "foreignId": event.foreign_id, "continues": event.continues}
            names = [name for name, value in values.items() if value is not msgspec.UNSET]
        elif isinstance(event, CallEvent):
            names = ["aliases"] * any(alias.ns == SESSION_NAMESPACE for alias in event.aliases)
        else:
            continue
        if names and not writer.can_label:
            raise PermissionDeniedError(
                f"{', '.join(names)}: this caller may not set this. Use the main token, or set it in "
                "the program that serves the ledger."
            )


def _key_prefix(key: str) -> str:
    """Return the prefix of the keys of a body's events. No two bodies have prefixes that overlap."""
    return f"http:{codec.digest(key.encode())[:32]}:"


def _post_mark(name: ConversationName, body: Body) -> str:
    """Return what a body must have in common with an earlier one of the same key."""
    return codec.digest(f"{name.format} {name.caller} {body.digest}".encode())


def _set_keys(conversations: Conversations, prefix: str, mark: str) -> None:
    """Give each draft a key with its number, so that a retry writes none twice."""
    for conversation in conversations.all.values():
        count = 0
        for number, (message, drafts) in enumerate(conversation.waiting):
            keyed = [
                structs.replace(draft, key=f"{prefix}{count + index:08}", mark=mark)
                for index, draft in enumerate(drafts, 1)
            ]
            conversation.waiting[number] = (message, keyed)
            count += len(drafts)


class _BodyWrite:
    """The write of one body that was read. Its last transaction also stores the conversation and the answer."""

    def __init__(self, log: EventLog, stored: StoredConversation, body: Body, access: Access, claimed_by: str) -> None:
        self._log = log
        self._stored = stored
        self._name = stored.name
        self._source = "" if self._name.format == "events" else self._name.format
        self._body = body
        self._access = access
        self._claimed_by = claimed_by
        self._version = stored.record.version
        self._change: ConversationChange | None = None
        self._writers: dict[str, Writer] = {}
        self._events: dict[str, list[Event]] = {}
        waiting = [part.waiting for part in stored.conversations.all.values()]
        self._remaining = sum(len(drafts) for messages in waiting for _, drafts in messages)
        self.needs_claim = self._remaining > MAX_PENDING_DRAFTS or sum(map(bool, waiting)) > 1
        """Whether it takes more than one transaction."""
        self._result: PostResult | None = None

    async def run(self) -> PostResult:
        """Write the drafts of the body, its key, and what changes in the conversation."""
        body, conversations = self._body, self._stored.conversations
        await self._access.require_write(self._name.session)
        if body.key:
            await run_off_loop(body.is_large, _set_keys, conversations, _key_prefix(body.key), body.digest)
        await self._check(conversations)
        self._change = await self._stored.change(body.messages, body.size, is_end=body.is_end)
        await conversations.flush(self._append)
        if self._result is None:
            touched = Touched((self._name.session,))
            self._finished(*await self._log.store.transact(lambda unit: self._finish(unit, []), touched))
        return cast(PostResult, self._result)

    async def answer_requests(self) -> None:
        """Answer the requests in the body that saved rules decide and whose answers reach the agent.

        The body is written, so an error here is not one of the post: the requests wait for a person.
        """
        for events in self._events.values():
            for event in events:
                if isinstance(event, ApprovalRequested) and event.verdict == "applied" and not event.answer_at:
                    with contextlib.suppress(CallslipError):
                        await answer_by_rules(self._log, event.approval)

    async def _check(self, conversations: Conversations) -> None:
        """Raise unless the caller may write all of the body to every session of it, before anything is written."""
        for part in conversations.all.values():
            session = part.session
            if session not in self._events and part.waiting:
                self._writers[session] = await self._access.writer(session)
                self._events[session] = []
            for number, (message, drafts) in enumerate(part.waiting):
                check_drafts(drafts, self._writers[session])
                if any(blob_of(draft.event) for draft in drafts):
                    part.waiting[number] = message, await check_blobs(self._log, session, drafts)

    async def _append(self, part: Conversation, drafts: list[Draft]) -> None:
        """Append drafts to the session of a conversation, creating it if needed."""
        session, check_answer = part.session, None
        writer = self._writers[session]
        if any(isinstance(draft.event, ApprovalAnswer) for draft in drafts):
            check_answer = await check_posted_answers(session, self._source, writer.id, writer.name, self._access)
        is_last = len(drafts) == self._remaining

        async def write(before: Sequence[Draft]) -> tuple[list[Event], tuple[int, PostResult] | None]:
            def work(unit: UnitOfWork, valid: list[Draft], context: WriteContext) -> Any:
                self._check_version(unit)
                events = write_events(unit, session, valid, context)[len(before) :]
                return events, self._finish(unit, [(session, events)]) if is_last else None

            return await self._log.transact_drafts(
                session,
                [*before, *drafts],
                work,
                source=self._source,
                strict=False,
                caller=writer.id,
                check_answer=check_answer,
            )

        events, finished = await write_or_create(self._log, session, write, access=self._access)
        self._remaining -= len(drafts)
        self._events.setdefault(session, []).extend(events)
        if finished is not None:
            self._finished(*finished)

    def _check_version(self, unit: UnitOfWork) -> None:
        """Raise unless the conversation is as it was read."""
        record = unit.conversation(self._name) or ConversationRecord()
        if record.version != self._version or _is_claimed(record, unit.now, self._claimed_by):
            if any(self._events.values()):
                raise ConflictError("the body was not completely written in time. Post it again with the same key.")
            raise _StaleConversationError

    def _finish(self, unit: UnitOfWork, last: list[tuple[str, list[Event]]]) -> tuple[int, PostResult]:
        """Store the conversation and the answer. Return the version of the conversation and the answer."""
        self._check_version(unit)
        result = self._make_result(unit, last)
        name, body, key = self._name, self._body, _key_prefix(self._body.key)
        if body.key:
            if unit.post(name.session, key) is not None:
                raise _StaleConversationError  # Another caller posted it at the same time.
            unit.put_post(PostRecord(name.session, key, _post_mark(name, body), codec.encode(result)))
        change = self._change
        if change is None and self._claimed_by:
            change = ConversationChange(chunks=self._stored.record.chunks)
        return unit.change_conversation(name, change) if change is not None else self._version, result

    def _finished(self, version: int, result: PostResult) -> None:
        self._stored.changed(self._change or ConversationChange(), version)
        self._result = result
        if self._body.with_events:
            result.events = [encode_event(event) for event in self._events.get(self._name.session, [])]

    def _make_result(self, unit: UnitOfWork, last: list[tuple[str, list[Event]]]) -> PostResult:
        events = {session: list(written) for session, written in self._events.items()}
        for session, written in last:
            events.setdefault(session, []).extend(written)
        seqs = {session: max((event.seq for event in written), default=0) for session, written in events.items()}
        record = unit.session(self._name.session)
        all_events = [event for written in events.values() for event in written]
        return PostResult(
            seq=seqs.pop(self._name.session, 0) or (record.last_seq if record else 0),
            appended=len(all_events),
            not_understood=sum(isinstance(event, Raw) for event in all_events),
            others=seqs,
        )
