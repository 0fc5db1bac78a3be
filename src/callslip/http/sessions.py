"""Sessions over HTTP: list them, read one in any format and by pages, and stream it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.entry_filter import filter_entries
from callslip.api.export import check_position
from callslip.api.find import find_session
from callslip.api.session_list import STATES, SessionFilters, Sort, list_sessions
from callslip.api.sessions import read_document, read_entries, read_events, read_messages
from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError, PermissionDeniedError
from callslip.formats import registry
from callslip.http import schemas, sse, streams
from callslip.http.request import Endpoint, NoQuery, RequestContext, Route, json_response
from callslip.ledger.aio import race
from callslip.ledger.checkpoint import ALL
from callslip.model import codec
from callslip.model.records import SessionRecord

if TYPE_CHECKING:
    from callslip.http.server import Server

Limit = Annotated[int, Meta(ge=1, description="The maximum number of items.")]
Seq = Annotated[int, Meta(ge=0)]
Cursor = Annotated[str, Meta(description="The cursor of the previous page.")]
MinSeq = Annotated[int, Meta(ge=0, description="Read a session that has this event. A standby waits for it, then 503.")]
Written = Annotated[str, Meta(extra_json_schema={"enum": registry.exportable()})]
Streamed = Annotated[str, Meta(extra_json_schema={"enum": sorted({*registry.NATIVE_FORMATS, *registry.streamable()})})]


class ListQuery(msgspec.Struct, kw_only=True):
    """Filters for sessions."""

    limit: Limit | None = None
    cursor: Cursor = ""
    state: Annotated[str, Meta(description=f"Only sessions in these states: {', '.join(STATES)}.")] = ""
    agent: Annotated[str, Meta(description="Only sessions of this agent.")] = ""
    project: Annotated[str, Meta(description="Only sessions in this folder.")] = ""
    branch: Annotated[str, Meta(description="Only sessions on this branch.")] = ""
    model: Annotated[str, Meta(description="Only sessions that used this model last.")] = ""
    label: Annotated[str, Meta(description="Only sessions with this label: name=value, or a name.")] = ""
    q: Annotated[str, Meta(description="A part of the title, in any case.")] = ""
    name: Annotated[str, Meta(description="Only the session of this name.")] = ""
    prefix: Annotated[str, Meta(description="The beginning of the names.")] = ""
    sort: Annotated[Sort, Meta(description="The order.")] = "active"
    descending: Annotated[bool, Meta(description="Whether the largest value comes first.")] = True
    id: Annotated[str, Meta(description="Only this session: its name, a prefix that matches only one, or @last.")] = ""


async def sessions(context: RequestContext) -> Response:
    """List the sessions that the caller may read, by default the last active first."""
    await context.admit()
    query = context.query(ListQuery)
    if query.id:
        found = await find_session(context.ledger.log, query.id, access=context.access)
        record = await context.ledger.log.summaries.with_summary(found)
        return json_response(schemas.Sessions(sessions=[schemas.session_view(record)], cursor=""))
    filters = SessionFilters(
        states=tuple(query.state.split(",")) if query.state else (),
        agent=query.agent,
        project=query.project,
        branch=query.branch,
        model=query.model,
        label=query.label,
        query=query.q,
        name=query.name,
        prefix=query.prefix,
        sort=query.sort,
        descending=query.descending,
    )
    page = await list_sessions(
        context.ledger.log,
        filters,
        limit=check_limit(context, query.limit),
        cursor=query.cursor,
        access=context.access,
    )
    views = [schemas.session_view(record) for record in page.items]
    return json_response(schemas.Sessions(sessions=views, cursor=page.cursor, complete=page.is_complete))


def check_limit(context: RequestContext, limit: int | None) -> int:
    """Return how many items to return, or raise if the limit is out of range."""
    limits = context.server.limits
    if limit is not None and not 1 <= limit <= limits.max_page_rows:
        raise InvalidInputError("limit", f"must be from 1 to {limits.max_page_rows}", limits.max_page_rows)
    return limits.page_rows if limit is None else limit


def check_wait(context: RequestContext, wait: float) -> float:
    """Return how many seconds to wait, or raise if that is out of range."""
    if not 0 <= wait <= context.server.limits.wait:
        raise InvalidInputError("wait", f"must be from 0 to {context.server.limits.wait:g} seconds")
    return wait


# One session


class ReadQuery(msgspec.Struct, kw_only=True):
    """The format of a session, the event or page to read, and how long to wait for a change."""

    format: Annotated[Written, Meta(description="The format.")] = "entries"
    at: Annotated[Seq, Meta(description="Return the session as it was after this event.")] | None = None
    limit: Limit | None = None
    cursor: Cursor = ""
    min_seq: MinSeq = 0
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for a change if the ETag still matches.")] = 0.0


async def session(context: RequestContext) -> Response:
    """Return a session in a format: all of it, a page, or as it was after an event.

    While its ETag matches, return 304 after `wait` seconds.
    """
    query = context.query(ReadQuery)
    record = await context.session(context.path_params["session"], min_seq=query.min_seq)
    _check_query(context, record, query)
    etag = _etag(record, query)
    if context.has_version(etag):
        async with context.while_admitted(record.name):
            has_changed = await _wait_changed(context, record, query.wait)
        if not has_changed:
            return Response(None, 304, {"etag": etag})
        record = await context.session(record.name)
        etag = _etag(record, query)
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    format = None if query.format in registry.NATIVE_FORMATS else registry.find(query.format)
    if format is not None and format.document:
        if format.media.startswith("text/html"):  # A download: it must not run as a page of this server.
            headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(record.name, safe='')}.html"
        body = await read_document(context.ledger.log, record, query.format, query.at)
        return Response(body, 200, headers, format.media)
    return json_response(await _read(context, record, query), headers=headers)


def _check_query(context: RequestContext, record: SessionRecord, query: ReadQuery) -> None:
    is_paged = bool(query.limit or query.cursor)
    registry.check_exportable(query.format)
    if is_paged and query.format not in registry.NATIVE_FORMATS and not registry.find(query.format).paged:
        raise InvalidInputError("limit", f"{query.format} has no pages; leave out limit and cursor")
    if query.at is not None and (is_paged or query.wait):
        raise InvalidInputError("at", "cannot be combined with limit, cursor or wait")
    check_position(record, query.at)
    check_wait(context, query.wait)
    check_limit(context, query.limit)


def _etag(record: SessionRecord, query: ReadQuery) -> str:
    """Return an ETag of everything that affects the response. A session created again by its name has another id."""
    selection = codec.digest(codec.encode([query.format, query.at, query.limit, query.cursor]))
    return f'"{record.id}.{record.last_seq}.{record.pruned_seq}.{selection[:8]}"'


async def _wait_changed(context: RequestContext, record: SessionRecord, wait: float) -> bool:
    """Return whether a session changes within `wait` seconds."""
    if not wait:
        return False
    try:
        events = context.ledger.log.batches(record.name, record.last_seq, record.id)
        async with asyncio.timeout(wait), aclosing(events) as batches:
            async for _ in batches:
                return True
    except TimeoutError:
        pass
    except CursorExpiredError:  # It was deleted; reading it again raises.
        return True
    return False


async def _read(context: RequestContext, record: SessionRecord, query: ReadQuery) -> schemas.Document:
    log, cursor, at = context.ledger.log, query.cursor, query.at
    limit = check_limit(context, query.limit) if query.limit or query.cursor else None
    if query.format == "events":
        page = await read_events(log, record, limit=limit, cursor=cursor, at=at)
        bodies = [msgspec.Raw(body) for body in page.events]
        return schemas.Document(session=record.name, seq=page.seq, events=bodies, cursor=page.cursor)
    if query.format == "entries":
        page = await read_entries(log, record, limit=limit, cursor=cursor, at=at)
        return schemas.Document(
            session=record.name, seq=page.seq, info=page.info, entries=list(page.entries), cursor=page.cursor
        )
    page = await read_messages(log, record, query.format, limit=limit, cursor=cursor, at=at)
    return schemas.Document(session=record.name, seq=page.seq, messages=page.messages, cursor=page.cursor)


# Filtered entries


class FilterQuery(msgspec.Struct, kw_only=True):
    """A filter such as `tool:bash status:failed >5s "no such file"`, and the page of matching entries."""

    q: Annotated[str, Meta(description="The filter; without one, all entries match.")] = ""
    at: Annotated[Seq, Meta(description="Filter the session as it was after this event.")] | None = None
    min_seq: MinSeq = 0
    limit: Annotated[int, Meta(ge=0, description="The maximum number of entries; 0 returns only counts.")] | None = None
    cursor: Cursor = ""


async def entries(context: RequestContext) -> Response:
    """Filter the entries of a session. The counts are of the whole session, not of the page."""
    query = context.query(FilterQuery)
    if query.min_seq:
        await context.session(context.path_params["session"], min_seq=query.min_seq)
    work = filter_entries(
        context.ledger.log,
        context.path_params["session"],
        query.q,
        limit=0 if query.limit == 0 else check_limit(context, query.limit),
        cursor=query.cursor,
        at=query.at,
        access=context.access,
    )
    found = await race(work, context.wait_disconnected())  # The page aborts it when the user continues to type.
    if found is None:
        return Response(None, 204)
    facets = {
        facet: [schemas.FacetValue(value=value, count=count) for value, count in values.items()]
        for facet, values in found.facets.items()
    }
    fields: dict[str, Any] = {**found._asdict(), "session": context.path_params["session"], "facets": facets}
    return json_response(schemas.FilteredEntries(**fields))


# Streams


class StreamQuery(msgspec.Struct, kw_only=True):
    """What to stream: `after` which event, or which `turn`. With `follow=false` the stream ends at the last event."""

    format: Annotated[Streamed, Meta(description="The format.")] = "entries"
    after: Annotated[Seq, Meta(description="Continue after this event; for events and entries.")] | None = None
    turn: Annotated[str, Meta(description="The turn, or a message id outside of turns; for other formats.")] = ""
    min_seq: MinSeq = 0
    limit: Annotated[Limit, Meta(description="The maximum number of entries in the snapshot.")] | None = None
    follow: Annotated[bool, Meta(description="Whether to continue with new events.")] = True


async def stream(context: RequestContext) -> Response:
    """Stream a session. events and entries are numbered by seq, the other formats stream one turn.

    Outside of turns that is one block of the history: what follows a user message.
    """
    query = context.query(StreamQuery)
    record = await context.session(context.path_params["session"], min_seq=query.min_seq)
    if query.format in registry.NATIVE_FORMATS:
        return await _stream_by_seq(context, record, query)
    streaming = registry.streaming(query.format)
    if query.after is not None or query.limit is not None:
        raise InvalidInputError("after", f"{query.format} is replayed from the start of its turn; it has no cursor")
    turn = query.turn or record.turn  # A shared stream without a turn may still be at the previous one.
    hub = context.server.hub
    work = partial(streams.write_turn, hub.by_turn(record, query.format, turn), is_live=query.follow)
    return context.stream(work, streaming.headers, record.name)


async def _stream_by_seq(context: RequestContext, record: SessionRecord, query: StreamQuery) -> Response:
    if query.turn:
        raise InvalidInputError("turn", f"{query.format} streams all turns; leave it out")
    after = parse_cursor(context, query.after)
    if after is not None and after > record.last_seq:  # A reader may continue on a standby what it read elsewhere.
        record = await context.session(record.name, min_seq=after, field="after")
    if after is not None and after < record.pruned_seq:
        raise CursorExpiredError(after, record.pruned_seq)
    limit = ALL if query.limit is None else check_limit(context, query.limit)
    work = partial(_write_by_seq, context.server, record, query.format, after, limit, query.follow)
    return context.stream(work, sse.HEADERS, record.name)


def is_seq(text: str) -> bool:
    """Return whether a text is a number that can be a seq."""
    return text.isascii() and text.isdigit() and len(text) < 19


def parse_cursor(context: RequestContext, after: int | None) -> int | None:
    """Return a reader's cursor: the query's, or the newer one that a browser sends when it reconnects."""
    last_id = context.request.headers.get("last-event-id", "")
    if not last_id:
        return after
    if not is_seq(last_id):
        raise InvalidInputError("last-event-id", f"must be a seq, got {last_id!r}")
    return max(int(last_id), after or 0)


async def _write_by_seq(
    server: Server, record: SessionRecord, format: str, after: int | None, limit: int, follow: bool, write: sse.Writer
) -> None:
    await write(sse.retry(server.limits.retry_ms))
    async with server.hub.by_seq(record, format) as source:
        if format == "entries" and (after is None or await source.needs_snapshot(after)):
            after = await source.write_snapshot(write, limit, has_id=True)
        after = record.pruned_seq if after is None else after
        after = await source.catch_up(write, after, 0 if follow else record.last_seq)
        if follow:
            await streams.follow(source.broadcast, after + 1, write)


def stream_route(path: str, endpoint: Endpoint, query: type[msgspec.Struct], *problems: int) -> Route:
    """Return a route of server-sent events that a reader can continue, unless its cursor has expired."""
    answers = {200: "text/event-stream"}
    headers = ("last-event-id",)
    return Route("GET", path, endpoint, query=query, answers=answers, problems=(410, *problems), headers=headers)


async def delete_session(context: RequestContext) -> Response:
    """Delete a session with all its events, calls and blobs. Its agent's own files stay."""
    context.query(NoQuery)
    name = context.path_params["session"]
    record, principal = await context.admit_to(name)
    if record is None:
        raise NotFoundError(f"no session {name!r}")
    if not principal.can_delete:
        raise PermissionDeniedError("this token may not delete sessions; use the main token")
    await context.ledger.delete(name)
    return Response(status_code=204)


ROUTES = (
    Route("GET", "/v1/sessions", sessions, query=ListQuery, answers={200: schemas.Sessions}, problems=(404, 409)),
    Route(
        "GET",
        "/v1/sessions/{session}",
        session,
        query=ReadQuery,
        headers=("if-none-match",),
        answers={200: (schemas.Document, schemas.Spans), 304: None},
        problems=(410,),
    ),
    Route("DELETE", "/v1/sessions/{session}", delete_session, "write", NoQuery, answers={204: None}),
    Route(
        "GET",
        "/v1/sessions/{session}/entries",
        entries,
        query=FilterQuery,
        answers={200: schemas.FilteredEntries},
        problems=(410,),
    ),
    stream_route("/v1/sessions/{session}/stream", stream, StreamQuery),
)
