"""Sessions over HTTP: the list, one in any format and by pages, and its streams."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.errors import CursorExpiredError, InvalidInputError
from callslip.formats import registry
from callslip.http import schemas, sse, streams
from callslip.http.request import RequestContext, Route, Server, answer
from callslip.ledger import queries
from callslip.model import codec
from callslip.model.entries import Snapshot
from callslip.model.records import SessionRecord
from callslip.store.protocol import read_cursor

NATIVE = ("entries", "events")

Limit = Annotated[int, Meta(ge=1, description="How many at most.")]
Seq = Annotated[int, Meta(ge=0)]
Cursor = Annotated[str, Meta(description="The cursor of the page before.")]
Written = Annotated[str, Meta(extra_json_schema={"enum": sorted({*NATIVE, *registry.writable()})})]
Streamed = Annotated[str, Meta(extra_json_schema={"enum": sorted({*NATIVE, *registry.streamable()})})]


class ListQuery(msgspec.Struct, kw_only=True):
    """Which sessions. `prefix` is how their names begin."""

    limit: Limit | None = None
    cursor: Cursor = ""
    prefix: Annotated[str, Meta(description="How the names begin.")] = ""


async def sessions(visit: RequestContext) -> Response:
    """Sessions, the last written first: those that whoever asks may read."""
    await visit.admit()
    query = visit.query(ListQuery)
    limit = limit_of(visit, query.limit)
    found: list[schemas.SessionView] = []
    cursor = query.cursor
    while True:
        page = await visit.ledger.sessions(limit=limit - len(found), cursor=cursor, prefix=query.prefix)
        found += [schemas.session_view(row) for row in page.items if await visit.may_see(row.name)]
        cursor = page.cursor
        if not cursor or len(found) >= limit:
            return answer(schemas.Sessions(sessions=found, cursor=cursor))


def limit_of(visit: RequestContext, given: int | None) -> int:
    """How many items to give."""
    limits = visit.server.limits
    if given is not None and not 1 <= given <= limits.most:
        raise InvalidInputError("limit", f"must be from 1 to {limits.most}", limits.most)
    return limits.page if given is None else given


def waited(visit: RequestContext, wait: float) -> float:
    """For how long a request may wait."""
    if not 0 <= wait <= visit.server.limits.wait:
        raise InvalidInputError("wait", f"must be from 0 to {visit.server.limits.wait:g} seconds")
    return wait


# One session


class ReadQuery(msgspec.Struct, kw_only=True):
    """How to see a session: in which format, as of which event, which page; and how long to wait for news of it."""

    format: Annotated[Written, Meta(description="In which format.")] = "entries"
    at: Annotated[Seq, Meta(description="As it stood after this event.")] | None = None
    limit: Limit | None = None
    cursor: Cursor = ""
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for news, if the ETag is still right.")] = 0.0


async def session(visit: RequestContext) -> Response:
    """A session in a format. With an ETag that is still right it is not sent again, after `wait` seconds at most."""
    row = await visit.session(visit.request.path_params["session"])
    query = visit.query(ReadQuery)
    _check(visit, row, query)
    etag = _etag(row, query)
    if etag in visit.request.headers.get("if-none-match", ""):
        if not await _news(visit, row, query):
            return Response(None, 304, {"etag": etag})
        row = await visit.session(row.name)
        etag = _etag(row, query)
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    entry = None if query.format in NATIVE else registry.find(query.format)
    if entry is not None and entry.document:
        if entry.media.startswith("text/html"):  # A file to be kept, and no page of this server's.
            headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(row.name, safe='')}.html"
        return Response(await _document(visit, row, query), 200, headers, entry.media)
    return answer(await _read(visit, row, query), headers=headers)


def _check(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> None:
    paged = bool(query.limit or query.cursor)
    if query.format not in NATIVE and query.format not in registry.writable():
        raise InvalidInputError("format", f"{query.format!r} cannot be written; these can: {', '.join(_written())}")
    if paged and query.format not in NATIVE and not registry.find(query.format).paged:
        raise InvalidInputError("limit", f"{query.format} has no pages: it is whole or nothing")
    if query.at is not None and (paged or query.wait):
        raise InvalidInputError("at", "goes with no page and no wait")
    if query.at is not None and not 0 <= query.at <= row.last_seq:
        raise InvalidInputError("at", f"{query.at} is not a seq of this session, which goes to {row.last_seq}")
    if query.at is not None and query.at < row.pruned_seq:
        raise CursorExpiredError(query.at, row.pruned_seq)
    waited(visit, query.wait)
    limit_of(visit, query.limit)


def _written() -> list[str]:
    return sorted({*NATIVE, *registry.writable()})


def _etag(row: SessionRecord, query: ReadQuery) -> str:
    """Changes with everything that may change the answer: a session that came again by its name has another number."""
    shown = codec.digest(codec.encode([query.format, query.at, query.limit, query.cursor]))
    return f'"{row.id}.{row.last_seq}.{row.pruned_seq}.{shown[:8]}"'


async def _news(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> bool:
    """Whether anything happens in a session within the time that the reader waits."""
    if not query.wait:
        return False
    try:
        async with asyncio.timeout(query.wait), aclosing(visit.ledger.log.batches(row.name, row.last_seq)) as news:
            async for _ in news:
                return True
    except TimeoutError:
        pass
    except CursorExpiredError:  # It was deleted: whoever asks for it again is told.
        return True
    return False


async def _read(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> schemas.Document:
    if query.format == "events":
        return await _events(visit, row, query)
    if query.format == "entries":
        return await _entries(visit, row, query)
    return await _messages(visit, row, query)


async def _events(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> schemas.Document:
    """The log, oldest first; the cursor is the seq to go on after."""
    (after,) = read_cursor(f"[{query.cursor}]", int) if query.cursor else (row.pruned_seq,)
    if after < row.pruned_seq:
        raise CursorExpiredError(after, row.pruned_seq)
    last = row.last_seq if query.at is None else query.at
    if after > last:
        raise InvalidInputError("cursor", f"{after} is not a seq of this session, which goes to {last}")
    limit = limit_of(visit, query.limit) if query.limit or query.cursor else last - after
    rows: list[tuple[int, bytes]] = []
    while after < last and len(rows) < limit:
        wanted = min(limit - len(rows), last - after, visit.ledger.log.settings.read_page)
        page = await visit.ledger.log.store.events(row.name, after, wanted)
        if not page:
            break
        rows += page
        after = rows[-1][0]
    told = [msgspec.Raw(body) for _, body in rows]
    return schemas.Document(session=row.name, seq=last, events=told, cursor=str(after) if after < last else "")


async def _entries(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> schemas.Document:
    """Entries, oldest first; pages go from the newest back."""
    if query.at is not None:
        return _whole(await visit.ledger.log.state_at(row.name, query.at))
    (before,) = read_cursor(f"[{query.cursor}]", int) if query.cursor else (queries.ALL,)
    paged = bool(query.limit or query.cursor)
    limit = limit_of(visit, query.limit) + 1 if paged else queries.ALL
    found = await visit.ledger.snapshot(row.name, limit=limit, before=before)
    more = paged and len(found.entries) == limit
    kept = found.entries[1:] if more else found.entries
    return _told(found, kept, str(kept[0].id) if more else "")


def _whole(state: Any) -> schemas.Document:
    found: Snapshot = state.snapshot()
    return _told(found, found.entries, "")


def _told(found: Snapshot, entries: list[Any], cursor: str) -> schemas.Document:
    return schemas.Document(session=found.session, seq=found.seq, info=found.info, entries=entries, cursor=cursor)


async def _messages(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> schemas.Document:
    entry, encode = registry.find(query.format), registry.encoder(query.format)
    if query.limit or query.cursor:
        limit, ledger = limit_of(visit, query.limit), visit.ledger
        page = await queries.messages(
            ledger.log.store, row.name, encode, limit=limit, cursor=query.cursor, newest_first=entry.newest_first
        )
        return schemas.Document(session=row.name, seq=page.seq, messages=page.messages, cursor=page.cursor)
    seq, source = await _source(visit, row, query)
    return schemas.Document(session=row.name, seq=seq, messages=encode(source), cursor="")


async def _source(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> tuple[int, Any]:
    """A session whole, now or at an event."""
    if query.at is None:
        found = await visit.ledger.snapshot(row.name)
        return found.seq, found
    state = await visit.ledger.log.state_at(row.name, query.at)
    return state.seq, state.snapshot()


async def _document(visit: RequestContext, row: SessionRecord, query: ReadQuery) -> bytes:
    return registry.document(query.format)((await _source(visit, row, query))[1])


# Streams


class StreamQuery(msgspec.Struct, kw_only=True):
    """What to follow: `after` which event, or which `turn`. With `follow=false` it ends where the session stands."""

    format: Annotated[Streamed, Meta(description="In which format.")] = "entries"
    after: Annotated[Seq, Meta(description="Go on after this event; for events and entries.")] | None = None
    turn: Annotated[str, Meta(description="Which turn; for the formats that go by turn.")] = ""
    limit: Annotated[Limit, Meta(description="How many entries the snapshot has at most.")] | None = None
    follow: Annotated[bool, Meta(description="Whether to go on when all that is there has been sent.")] = True


async def stream(visit: RequestContext) -> Response:
    """A session as it goes on, as server-sent events."""
    row = await visit.session(visit.request.path_params["session"])
    query = visit.query(StreamQuery)
    if query.format in NATIVE:
        return _by_seq(visit, row, query)
    streaming = registry.streaming(query.format)
    if query.after is not None or query.limit is not None:
        raise InvalidInputError("after", f"{query.format} is replayed from the start of its turn; it has no cursor")
    turn = query.turn or row.turn  # The line of those who named none may still be with the turn before.
    work = partial(write_turn, visit.server, row.name, query.format, turn, query.follow)
    return visit.stream(work, streaming.headers, row.name)


def _by_seq(visit: RequestContext, row: SessionRecord, query: StreamQuery) -> Response:
    if query.turn:
        raise InvalidInputError("turn", f"{query.format} has all turns")
    after = cursor_of(visit, query.after)
    if after is not None and not 0 <= after <= row.last_seq:
        raise InvalidInputError("after", f"{after} is not a seq of this session, which goes to {row.last_seq}")
    if after is not None and after < row.pruned_seq:
        raise CursorExpiredError(after, row.pruned_seq)
    limit = queries.ALL if query.limit is None else limit_of(visit, query.limit)
    work = partial(_write_by_seq, visit.server, row, query.format, after, limit, query.follow)
    return visit.stream(work, sse.HEADERS, row.name)


def cursor_of(visit: RequestContext, given: int | None) -> int | None:
    """Where a reader was: what it says in the query, or what its browser remembers of the last connection."""
    said = visit.request.headers.get("last-event-id", "")
    if not said:
        return given
    if not (said.isascii() and said.isdigit() and len(said) < 19):
        raise InvalidInputError("last-event-id", "is no seq")
    return max(int(said), given or 0)


async def _write_by_seq(
    server: Server, row: SessionRecord, format: str, after: int | None, limit: int, follow: bool, write: sse.Write
) -> None:
    with server.hub.reader():
        await write(sse.retry(server.limits.retry))
        async with server.hub.by_seq(row.name, format) as numbered:
            if format == "entries" and (after is None or await numbered.is_far(after)):
                snapshot = await server.ledger.snapshot(row.name, limit=limit)
                await write(streams.snapshot_frame(snapshot))
                after = snapshot.seq
            after = row.pruned_seq if after is None else after
            async for reached, piece in numbered.caught_up(after, 0 if follow else row.last_seq):
                await write(piece)
                after = reached
            if follow:
                await streams.follow(numbered.line, after + 1, write)


async def write_turn(server: Server, session: str, format: str, turn: str, follow: bool, write: sse.Write) -> None:
    """A turn from its start, and as it goes on."""
    with server.hub.reader():
        async with server.hub.by_turn(session, format, turn) as source:
            number = source.line.next
            await write(source.replay())
            if follow:
                await streams.follow(source.line, number, write, source.streaming.alive)
            else:
                await write(source.streaming.done)


ROUTES = (
    Route(
        method="GET",
        path="/v1/sessions",
        endpoint=sessions,
        about="Sessions, the last written first.",
        query=ListQuery,
        answers={200: schemas.Sessions},
        problems=(400, 401, 403),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session}",
        endpoint=session,
        about="A session in a format, whole, by pages, or as it stood after an event.",
        query=ReadQuery,
        headers={"if-none-match": "The ETag of what you have: 304 if it is still right, after `wait` seconds."},
        answers={200: (schemas.Document, schemas.Spans), 304: None},
        problems=(400, 401, 403, 404, 410),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session}/stream",
        endpoint=stream,
        about="A session as it goes on. events and entries go by seq, the other formats by turn.",
        query=StreamQuery,
        headers={"last-event-id": "The seq to go on after, as browsers send it."},
        answers={200: "text/event-stream"},
        problems=(400, 401, 403, 404, 410, 503),
    ),
)
