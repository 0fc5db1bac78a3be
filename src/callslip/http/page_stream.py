"""One connection for a page: several sessions and topics at once, with one cursor for all of them.

A frame names its session or topic. The cursor is the id of the last frame: of each session its number (one that comes
again by its name has another) and the seq, so that whoever comes back gets the patches since then. Topics are told
whole to whoever comes; they are short.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from starlette.responses import Response

from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError
from callslip.http import sse, streams
from callslip.http.access import Forbidden
from callslip.http.broadcast import woken
from callslip.http.lists import TOPICS, LiveList
from callslip.http.request import RequestContext, Route
from callslip.http.sessions import limit_of
from callslip.ledger import queries
from callslip.model.records import SessionRecord

MAX_SUBSCRIPTIONS = 20


class PageQuery(msgspec.Struct, kw_only=True):
    """What a page follows: sessions by name, topics, both any number of times; `limit` entries of each at first."""

    session: list[str] = []
    topic: list[str] = []
    after: str = ""
    limit: int | None = None


async def stream(visit: RequestContext) -> Response:
    """Sessions and topics as they go on, on one connection."""
    await visit.admit()
    query = visit.query(PageQuery)
    _check(query)
    limit = limit_of(visit, query.limit)
    cursors = _cursors(visit.request.headers.get("last-event-id") or query.after)
    followed = [await _Session.of(visit, name, cursors.get(name), limit) for name in dict.fromkeys(query.session)]
    work = partial(_write, visit, followed, list(dict.fromkeys(query.topic)))
    return visit.stream(work, sse.HEADERS, *query.session)


def _check(query: PageQuery) -> None:
    unknown = sorted(set(query.topic) - set(TOPICS))
    if unknown:
        raise InvalidInputError("topic", f"{unknown[0]!r} is none; there are {', '.join(TOPICS)}")
    if not query.session and not query.topic:
        raise InvalidInputError("session", "name a session or a topic to follow")
    if len(query.session) > MAX_SUBSCRIPTIONS:
        raise InvalidInputError("session", "are too many for one connection", MAX_SUBSCRIPTIONS)


Place = tuple[int, int]
"""The number of a session, and a seq of it."""


def _cursors(said: str) -> dict[str, Place]:
    """Where the page was in each session, as the id of a frame told it."""
    cursors: dict[str, Place] = {}
    for place in said.split():
        name, *numbers = place.rsplit(":", 2)
        if len(numbers) != 2 or not all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers):
            raise InvalidInputError("after", "is no cursor of this stream")
        cursors[unquote(name)] = (int(numbers[0]), int(numbers[1]))
    return cursors


class _Session:
    """One session, and how far this page has it."""

    def __init__(self, row: SessionRecord, seq: int | None, limit: int) -> None:
        self.name = row.name
        self.seq = seq or 0
        self._new = seq is None
        self._limit = limit
        self._said = f"{quote(row.name, safe='')}:{row.id}"

    @classmethod
    async def of(cls, visit: RequestContext, name: str, place: Place | None, limit: int) -> _Session:
        row = await visit.session(name)
        number, seq = place or (row.id, None)
        if seq is not None and (seq < row.pruned_seq or number != row.id):
            raise CursorExpiredError(seq, row.pruned_seq)
        if seq is not None and seq > row.last_seq:
            raise InvalidInputError("after", f"{seq} is not a seq of session {name!r}, which goes to {row.last_seq}")
        return cls(row, seq, limit)

    def cursor(self) -> str:
        return f"{self._said}:{self.seq}"

    async def open(self, visit: RequestContext, numbered: streams.SessionStream, write: sse.Write) -> None:
        """What the page needs to go on with the line."""
        self.numbered, self.line = numbered, numbered.line
        if self._new or await numbered.is_far(self.seq):
            snapshot = await queries.snapshot(visit.ledger.log.store, self.name, limit=self._limit)
            await write(sse.frame(sse.encode(snapshot), event="snapshot"))
            self.seq = snapshot.seq
        async for reached, piece in numbered.caught_up(self.seq):
            await write(piece)
            self.seq = reached

    async def more(self) -> bytes:
        data = self.line.after(self.seq + 1)
        self.seq = max(self.seq, self.line.next - 1)
        return data


class _Topic:
    """One topic, and how far this page has it."""

    def __init__(self, visit: RequestContext, topic: LiveList) -> None:
        self._visit = visit
        self._topic = topic
        self._number = topic.line.next
        self.line = topic.line

    async def open(self, write: sse.Write) -> None:
        seen = await self._seen({session for session, _ in self._topic.rows.values()})
        await write(self._topic.whole(seen))

    async def more(self) -> bytes:
        changes = self._topic.after(self._number)
        self._number = self.line.next
        seen = await self._seen({session for session, _ in changes})
        return b"".join([frame for session, frame in changes if session in seen])

    async def _seen(self, sessions: set[str]) -> set[str]:
        return {session for session in sessions if await self._may(session)}

    async def _may(self, session: str) -> bool:
        """Also of a session that was deleted just now, if its name was theirs to know."""
        row = await self._visit.ledger.log.store.session(session)
        try:
            await self._visit.admit(row or SessionRecord(name=session), "read")
        except (NotFoundError, Forbidden):
            return False
        return True


async def _write(visit: RequestContext, sessions: list[_Session], topics: list[str], write: sse.Write) -> None:
    hub = visit.server.hub
    with hub.reader():
        async with AsyncExitStack() as stack:
            await write(sse.retry(visit.server.limits.retry))
            for one in sessions:
                await one.open(visit, await stack.enter_async_context(hub.by_seq(one.name, "page")), write)
            followed: list[Any] = [*sessions]
            for name in topics:
                topic = _Topic(visit, await stack.enter_async_context(hub.by_topic(name)))
                await topic.open(write)
                followed.append(topic)
            await write(_cursor(sessions))
            await _follow(followed, sessions, write)


async def _follow(followed: list[Any], sessions: list[_Session], write: sse.Write) -> None:
    lines = [one.line for one in followed]
    beats = [line.beats for line in lines]
    while not any(line.ended for line in lines):
        happened = [line.happened for line in lines]
        data = b"".join([await one.more() for one in followed])
        if data:
            await write(data + _cursor(sessions))
        elif beats != [line.beats for line in lines]:
            await write(sse.HEARTBEAT)
        else:
            if happened == [line.happened for line in lines]:  # Else something came while the gate was asked.
                await woken(lines)
            continue
        beats = [line.beats for line in lines]


def _cursor(sessions: list[_Session]) -> bytes:
    """A frame that shows nothing and moves the cursor."""
    if not sessions:
        return b""
    return f"id: {' '.join(one.cursor() for one in sessions)}\n\n".encode()


ROUTES = (
    Route(
        method="GET",
        path="/v1/stream",
        endpoint=stream,
        about="Sessions and topics as they go on, on one connection: snapshots, patches, rows.",
        query=PageQuery,
        headers={"last-event-id": "The cursor to go on from, as browsers send it."},
        answers={200: "text/event-stream"},
        problems=(400, 401, 403, 404, 410, 503),
    ),
)
