"""Messages of any readable format, posted in one or more bodies.

A decoder remembers earlier messages, so a conversation that is posted in several bodies keeps its decoder for a while.
A poster has no connection: a call that gets no more events ends when its lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, structs
from starlette.responses import Response

from callslip.api.approvals import check_posted_answers
from callslip.api.ledger import LocalLedger
from callslip.api.sessions import list_keys, read_by_seq, write_or_create
from callslip.errors import ConflictError, InvalidInputError
from callslip.formats import registry
from callslip.http import schemas
from callslip.http.body import MEDIA_JSON, MEDIA_LINES, parse_messages
from callslip.http.request import RequestAccess, RequestContext, Route, json_response
from callslip.ingest.conversations import Conversation, Conversations, joined
from callslip.ledger.aio import LARGE_BYTES, run_off_loop
from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model.events import ApprovalAnswer, Chunks, Draft, Event, Raw, SessionInfo, encode_event
from callslip.model.names import check_session_name

IDLE_S = 600.0
"""How long a conversation is remembered after its last body."""
MAX_CONVERSATIONS = 1000


class PostQuery(msgspec.Struct, kw_only=True):
    """The format of the body. `chunks` sets how its texts are split; `end=true` marks the last body."""

    format: Annotated[
        str, Meta(description="The format of the body.", extra_json_schema={"enum": registry.readable()})
    ] = "events"
    chunks: Annotated[Chunks, Meta(description="How texts are split, if not as usual for the format.")] | None = None
    end: Annotated[bool, Meta(description="Whether this is the last body of the conversation.")] = False
    returns: Annotated[
        Literal["summary", "events"], Meta(description="`events`: also return the appended events of this session.")
    ] = msgspec.field(default="summary", name="return")


async def post(context: RequestContext) -> Response:
    """Append messages of any readable format to a session. A new session belongs to the caller."""
    name = check_session_name(context.path_params["session"])
    access = context.access
    caller = await access.require_write(name)
    is_new = await context.ledger.log.get_session(name) is None
    query = context.query(PostQuery)
    key = context.request.headers.get("idempotency-key", "")
    body = await context.raw((MEDIA_JSON, *MEDIA_LINES))
    is_large = len(body) >= LARGE_BYTES
    messages = await run_off_loop(is_large, parse_messages, body, context.media_type, context.server.limits)
    mark = await run_off_loop(is_large, codec.digest, body)
    posts = context.server.posts
    appended = await posts.append((name, query.format, caller), messages, query, key, mark, access, is_large=is_large)
    return json_response(appended, 201 if is_new and appended.appended else 200)


ConversationKey = tuple[str, str, str]
"""The session, the format and the caller: bodies that share them belong to one conversation."""


class _OpenConversation:
    """A conversation between two bodies."""

    def __init__(self, conversations: Conversations) -> None:
        self.conversations = conversations
        self.lock = asyncio.Lock()
        self.used_at = time.monotonic()


class Posts:
    """The conversations that are posted to one server."""

    def __init__(self, ledger: LocalLedger) -> None:
        self._log = ledger.log
        self._open: dict[ConversationKey, _OpenConversation] = {}

    async def append(
        self,
        conversation: ConversationKey,
        messages: list[Any],
        query: PostQuery,
        key: str,
        mark: str,
        access: RequestAccess,
        *,
        is_large: bool,
    ) -> schemas.Appended:
        """Append a body. A body that was posted before with the same key returns the same result."""
        session = conversation[0]
        async with self._locked(conversation, query) as conversations:
            result = await self._find_result(session, key, mark, query.returns == "events")
            if result is not None:
                return result
            write = _Write(self._log, access, query.format, conversation[2])
            async with self._forget_on_error(conversation):
                await run_off_loop(is_large, _decode, conversations, messages, is_last=query.end)
                if query.end:
                    self._open.pop(conversation, None)
                if key:
                    await run_off_loop(is_large, _set_keys, conversations, session, _key_prefix(key), mark)
                await write.check_access(conversations)
                await conversations.flush(write.append)
        return write.result(session, with_events=query.returns == "events")

    @contextlib.asynccontextmanager
    async def _locked(self, key: ConversationKey, query: PostQuery) -> AsyncGenerator[Conversations]:
        """Lock a conversation for one body. If it was forgotten while waiting for the lock, start a new one."""
        while True:
            opened = self._find_or_open(key, query)
            async with opened.lock:
                if self._open.get(key) is opened:
                    yield opened.conversations
                    return

    @contextlib.asynccontextmanager
    async def _forget_on_error(self, key: ConversationKey) -> AsyncGenerator[None]:
        """Start a new conversation after a body was refused: its decoder has read what was not written."""
        try:
            yield
        except BaseException:
            self._open.pop(key, None)
            raise

    def _find_or_open(self, key: ConversationKey, query: PostQuery) -> _OpenConversation:
        now = time.monotonic()
        for old_key, old in list(self._open.items()):
            if old.used_at < now - IDLE_S and not old.lock.locked():
                del self._open[old_key]
        if key not in self._open:
            if len(self._open) >= MAX_CONVERSATIONS:
                del self._open[next(iter(self._open))]

            def session_of(name: str) -> str:
                return key[0] if not name else joined(key[0], ":", name)

            self._open[key] = _OpenConversation(Conversations(query.format, session_of, chunks=query.chunks))
        self._open[key].used_at = now
        return self._open[key]

    async def _find_result(self, session: str, key: str, mark: str, with_events: bool) -> schemas.Appended | None:
        """Return the result of a body that was completely written before; None if a part of it is missing."""
        if not key:
            return None
        records = await list_keys(self._log, session, _key_prefix(key))
        if any(record.mark != mark for record in records):
            raise ConflictError(f"idempotency-key: {key!r} was used before with another body")
        if not records or not records[-1].key.endswith(LAST_KEY_SUFFIX):
            return None
        seqs = {record.seq for record in records}
        result = schemas.Appended(session=session, seq=max(seqs), appended=len(seqs))
        if with_events:
            bodies = await read_by_seq(self._log, session, [record.seq for record in records])
            result.events = [msgspec.Raw(body) for body in bodies]
        return result


def _decode(conversations: Conversations, messages: list[Any], *, is_last: bool) -> None:
    """Decode messages into drafts that wait to be written."""
    for message in messages:
        for part, part_message, drafts in conversations.read(message):
            part.keep(part_message, check_drafts(drafts))
    if is_last:
        for part in conversations.all.values():
            part.keep(None, check_drafts(part.decoder.close("eof")))


LAST_KEY_SUFFIX = "."


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


def check_drafts(drafts: list[Draft]) -> list[Draft]:
    """Return drafts, or raise if one of them sets the owner of its session."""
    for draft in drafts:
        if isinstance(draft.event, SessionInfo) and draft.event.owner is not msgspec.UNSET:
            raise InvalidInputError("owner", "is set by the token that creates the session")
    return drafts


class _Write:
    """The events of one body, by session."""

    def __init__(self, log: EventLog, access: RequestAccess, format: str, caller: str) -> None:
        self._log = log
        self._access = access
        self._caller = caller
        self._source = "" if format == "events" else format
        self._events: dict[str, list[Event]] = {}

    async def check_access(self, conversations: Conversations) -> None:
        """Raise unless the caller may write to every session of the body, before anything is written."""
        for conversation in conversations.all.values():
            if conversation.session not in self._events and conversation.waiting:
                await self._access.require_write(conversation.session)
                self._events[conversation.session] = []

    async def append(self, conversation: Conversation, drafts: list[Draft]) -> None:
        """Append drafts to the session of a conversation, creating it if needed."""

        session, check_answer = conversation.session, None
        if any(isinstance(draft.event, ApprovalAnswer) for draft in drafts):
            check_answer = await check_posted_answers(session, self._source, self._caller, self._access)

        async def write(before: Sequence[Draft]) -> list[Event]:
            events = await self._log.append(
                session, [*before, *drafts], source=self._source, caller=self._caller, check_answer=check_answer
            )
            return events[len(before) :]

        events = await write_or_create(self._log, session, write, access=self._access)
        self._events.setdefault(session, []).extend(events)

    def result(self, session: str, *, with_events: bool) -> schemas.Appended:
        seqs = {name: max((event.seq for event in events), default=0) for name, events in self._events.items()}
        events = [event for events in self._events.values() for event in events]
        result = schemas.Appended(
            session=session,
            seq=seqs.get(session, 0),
            appended=len(events),
            not_understood=sum(isinstance(event, Raw) for event in events),
            others={name: seq for name, seq in seqs.items() if name != session},
        )
        if with_events:
            result.events = [msgspec.Raw(encode_event(event)) for event in self._events.get(session, [])]
        return result


ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{session}/events",
        post,
        "write",
        PostQuery,
        headers=("idempotency-key",),
        body="application/json, application/x-ndjson",
        answers={200: schemas.Appended, 201: schemas.Appended},
    ),
)
