"""One connection for a page: several sessions and lists at once, with one cursor.

A frame names its session or topic. The cursor is the id of the last frame: for each session its id (a session that is
created again by its name has another) and the seq, so that a page that reconnects receives the patches since then.
Lists are short and sent again as a whole.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from starlette.responses import Response

from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError, PermissionDeniedError
from callslip.http import sse, streams
from callslip.http.broadcast import wait_any
from callslip.http.lists import TOPICS, LiveList
from callslip.http.request import RequestContext
from callslip.http.sessions import check_limit, is_seq, stream_route
from callslip.model.records import SessionRecord

MAX_SUBSCRIPTIONS = 20


class PageQuery(msgspec.Struct, kw_only=True):
    """What a page follows: sessions by name and topics, both repeatable; `limit` is the entries of each snapshot."""

    session: list[str] = []
    topic: list[str] = []
    after: str = ""
    limit: int | None = None


async def stream(context: RequestContext) -> Response:
    """Stream sessions and lists on one connection: snapshots, patches, rows."""
    await context.admit()
    query = context.query(PageQuery)
    _check_query(query)
    limit = check_limit(context, query.limit)
    cursors = _parse_cursors(context.request.headers.get("last-event-id") or query.after)
    sessions = [await _Session.find(context, name, cursors.get(name), limit) for name in dict.fromkeys(query.session)]
    work = partial(_write, context, sessions, list(dict.fromkeys(query.topic)))
    return context.stream(work, sse.HEADERS, *query.session)


def _check_query(query: PageQuery) -> None:
    unknown = sorted(set(query.topic) - set(TOPICS))
    if unknown:
        raise InvalidInputError("topic", f"unknown topic {unknown[0]!r}; known topics: {', '.join(TOPICS)}")
    if not query.session and not query.topic:
        raise InvalidInputError("session", "required unless a topic is given")
    if len(query.session) > MAX_SUBSCRIPTIONS:
        raise InvalidInputError("session", f"at most {MAX_SUBSCRIPTIONS} per connection", MAX_SUBSCRIPTIONS)


SessionCursor = tuple[int, int]
"""The id of a session, and a seq of it."""


def _parse_cursors(text: str) -> dict[str, SessionCursor]:
    """Return the cursor of each session, as the id of a frame lists them."""
    cursors: dict[str, SessionCursor] = {}
    for part in text.split():
        name, *numbers = part.rsplit(":", 2)
        if len(numbers) != 2 or not all(map(is_seq, numbers)):
            raise InvalidInputError("after", "not a cursor of this stream")
        cursors[unquote(name)] = (int(numbers[0]), int(numbers[1]))
    return cursors


class _Session:
    """A session, and how far the page has received it."""

    def __init__(self, record: SessionRecord, seq: int | None, limit: int) -> None:
        self.name = record.name
        self.record = record
        self.seq = seq or 0
        self._is_new = seq is None
        self._limit = limit
        self._cursor_prefix = f"{quote(record.name, safe='')}:{record.id}"

    @classmethod
    async def find(cls, context: RequestContext, name: str, cursor: SessionCursor | None, limit: int) -> _Session:
        record = await context.session(name)
        session_id, seq = cursor or (record.id, None)
        if seq is not None and seq > record.last_seq and session_id == record.id:
            record = await context.session(name, min_seq=seq, field="after")
        if seq is not None and (seq < record.pruned_seq or session_id != record.id):
            raise CursorExpiredError(seq, record.pruned_seq)
        return cls(record, seq, limit)

    def cursor(self) -> str:
        return f"{self._cursor_prefix}:{self.seq}"

    async def open(self, source: streams.SessionStream, write: sse.Writer) -> None:
        """Write what the page needs before the live frames."""
        self.broadcast = source.broadcast
        if self._is_new or await source.needs_snapshot(self.seq):
            self.seq = await source.write_snapshot(write, self._limit, has_id=False)
        self.seq = await source.catch_up(write, self.seq)

    async def more(self) -> bytes:
        next, data = self.broadcast.after(self.seq + 1)
        self.seq = max(self.seq, next - 1)
        return data


class _List:
    """A live list, and how far the page has received it."""

    def __init__(self, context: RequestContext, source: LiveList) -> None:
        self._context = context
        self._source = source
        self._number = source.broadcast.next
        self.broadcast = source.broadcast

    async def open(self, write: sse.Writer) -> None:
        rows = self._source.rows
        visible = await self._find_visible([session for session, _ in rows.values()])
        with write.hold(rows, sum(len(body) for _, body in rows.values())):
            for piece in self._source.list_pieces(rows, visible):
                await write(piece)

    async def more(self) -> bytes:
        changes = self._source.after(self._number)
        self._number += len(changes)
        visible = await self._find_visible([session for session, _ in changes])
        return b"".join([frame for session, frame in changes if session.id in visible])

    async def _find_visible(self, sessions: list[SessionRecord]) -> set[int]:
        """Return the ids of the sessions that the caller may see, or was able to see before they were deleted."""
        visible: set[int] = set()
        for last in {session.id: session for session in sessions}.values():
            current = await self._context.ledger.log.get_session(last.name)
            is_deleted = current is None or current.id != last.id  # Another session may have the name now.
            with suppress(NotFoundError, PermissionDeniedError):
                await self._context.admit(last if is_deleted else current, "read")
                visible.add(last.id)
        return visible


async def _write(context: RequestContext, sessions: list[_Session], topics: list[str], write: sse.Writer) -> None:
    hub = context.server.hub
    async with AsyncExitStack() as stack:
        await write(sse.retry(context.server.limits.retry_ms))
        for session in sessions:
            source = await stack.enter_async_context(hub.by_seq(session.record, "page"))
            await session.open(source, write)
        followed: list[Any] = [*sessions]
        for name in topics:
            live_list = _List(context, await stack.enter_async_context(hub.by_topic(name)))
            await live_list.open(write)
            followed.append(live_list)
        await write(_cursor_frame(sessions))
        await _follow(followed, sessions, write)


async def _follow(followed: list[Any], sessions: list[_Session], write: sse.Write) -> None:
    broadcasts = [source.broadcast for source in followed]
    heartbeats = [broadcast.heartbeats for broadcast in broadcasts]
    while not any(broadcast.ended for broadcast in broadcasts):
        wakeups = [broadcast.wakeups for broadcast in broadcasts]
        pending, has_data = b"", False
        for source in followed:
            data = await source.more()
            if pending and len(pending) + len(data) > sse.CHUNK_BYTES:
                await write(pending)
                pending = b""
            pending, has_data = pending + data, has_data or bool(data)
        if has_data and len(pending) <= sse.CHUNK_BYTES:
            await write(pending + _cursor_frame(sessions))
        elif has_data:  # A large frame stays the object that all readers share.
            await write(pending)
            await write(_cursor_frame(sessions))
        elif heartbeats != [broadcast.heartbeats for broadcast in broadcasts]:
            await write(sse.HEARTBEAT)
        else:
            # A wakeup while the authorizer was asked is not waited for again.
            if wakeups == [broadcast.wakeups for broadcast in broadcasts]:
                await wait_any(broadcasts)
            continue
        heartbeats = [broadcast.heartbeats for broadcast in broadcasts]


def _cursor_frame(sessions: list[_Session]) -> bytes:
    """Return a frame without data that moves the cursor."""
    if not sessions:
        return b""
    return f"id: {' '.join(session.cursor() for session in sessions)}\n\n".encode()


ROUTES = (stream_route("/v1/stream", stream, PageQuery, 404),)
