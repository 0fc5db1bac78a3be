"""Messages of any readable format, posted: one body after another of what may be one long conversation.

A format is read by a decoder that remembers what came before, so a conversation that is posted in several bodies keeps
its decoder for a while. Nobody is connected: a call that nothing more is heard of ends by its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, structs
from starlette.responses import Response

from callslip.api.ledger import Ledger
from callslip.errors import ConflictError, InvalidInputError
from callslip.formats import registry
from callslip.http import schemas
from callslip.http.access import Principal
from callslip.http.problems import Unsupported
from callslip.http.request import RequestContext, Route, answer
from callslip.ingest.conversations import Conversation, Conversations, joined
from callslip.model import codec
from callslip.model.events import Chunks, Draft, Event, Raw, SessionInfo
from callslip.model.names import check_session_name
from callslip.model.records import KeyRecord, SessionRecord

IDLE = 600.0
"""For how many seconds a conversation is remembered after its last body."""
MAX_CONVERSATIONS = 1000


class PostQuery(msgspec.Struct, kw_only=True):
    """What is posted. `chunks` says how texts come in pieces; `end=true` says that nothing more comes."""

    format: Annotated[str, Meta(description="What is posted.", extra_json_schema={"enum": registry.readable()})] = (
        "events"
    )
    chunks: Annotated[Chunks, Meta(description="How texts come in pieces, if not as usual.")] | None = None
    end: Annotated[bool, Meta(description="Nothing more comes after this body.")] = False


async def post(visit: RequestContext) -> Response:
    """Take messages into a session. It comes to be with its first event, and belongs to whoever began it."""
    name = check_session_name(visit.request.path_params["session"])
    row = await visit.ledger.log.store.session(name)
    who = await visit.admit(row or SessionRecord(name=name))
    query = visit.query(PostQuery)
    key = visit.request.headers.get("idempotency-key", "")
    body = await visit.raw()
    posts = visit.server.posts
    made = await posts.take(visit, who, name, query, key, body)
    return answer(made, 201 if row is None and made.appended else 200)


# Whose a session is


OWNER = "session:owner"


def owned_by(who: Principal) -> Draft:
    """What makes a new session theirs. Two people who begin it at once do not say the same, so that one is refused."""
    return Draft(SessionInfo(owner=who.name), key=OWNER)


async def write(
    visit: RequestContext,
    who: Principal,
    session: str,
    drafts: Sequence[Event | Draft],
    *,
    source: str,
    owner: str = "",
) -> list[Event]:
    """Append; to a session that somebody else has begun meanwhile only what they may, and nothing before they may."""
    try:
        return await visit.ledger.log.append(session, drafts, source=source, owner=owner)
    except ConflictError:
        row = await visit.ledger.log.store.session(session)
        others = [draft for draft in drafts if not (isinstance(draft, Draft) and draft.key == OWNER)]
        if row is None or row.owner == who.name or len(others) == len(drafts):
            raise
        await visit.admit(row)
        return await visit.ledger.log.append(session, others, source=source, owner=owner)


class _Talk:
    """One conversation, between two bodies."""

    def __init__(self, talks: Conversations) -> None:
        self.talks = talks
        self.lock = asyncio.Lock()
        self.used = time.monotonic()


Place = tuple[str, str, str]
"""The session, the format and who posts: what bodies must have in common to be one conversation."""


class Posts:
    """The conversations that are posted to one server."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[Place, _Talk] = {}

    async def take(
        self, visit: RequestContext, who: Principal, session: str, query: PostQuery, key: str, body: bytes
    ) -> schemas.Appended:
        """What a body came to. One that was taken before by the same key comes to the same, and is not read again."""
        messages = list(_messages(body, visit.request.headers.get("content-type", "")))
        place, mark = (session, query.format, who.name), codec.digest(body)
        async with self._talking(place, query) as talks:
            known = await self._known(session, key, mark)
            if known is not None:
                return known
            written = _Written(self._ledger, visit, who, query.format)
            async with self._forgetting(place):
                for message in messages:
                    for one, part, drafts in talks.read(message):
                        one.keep(part, checked(drafts))
                if query.end:
                    for one in talks.all.values():
                        one.keep(None, checked(one.decoder.close("eof")))
                    self._open.pop(place, None)
                if key:
                    _name(talks, session, _prefix(key), mark)
                await written.admitted(talks)
                await talks.flush(written.write)
        return written.told(session)

    @contextlib.asynccontextmanager
    async def _talking(self, place: Place, query: PostQuery) -> AsyncGenerator[Conversations]:
        """The conversation, for one body at a time. One that was forgotten while its lock was awaited is begun anew."""
        while True:
            talk = self._talk(place, query)
            async with talk.lock:
                if self._open.get(place) is talk:
                    yield talk.talks
                    return

    @contextlib.asynccontextmanager
    async def _forgetting(self, place: Place) -> AsyncGenerator[None]:
        """After a body that was refused the conversation begins anew: its decoder has read what nobody wrote."""
        try:
            yield
        except BaseException:
            self._open.pop(place, None)
            raise

    def _talk(self, place: Place, query: PostQuery) -> _Talk:
        now = time.monotonic()
        for old in [at for at, talk in self._open.items() if talk.used < now - IDLE and not talk.lock.locked()]:
            del self._open[old]
        if place not in self._open:
            if len(self._open) >= MAX_CONVERSATIONS:
                del self._open[next(iter(self._open))]

            def named(name: str) -> str:
                return place[0] if not name else joined(place[0], ":", name)

            self._open[place] = _Talk(Conversations(query.format, named, chunks=query.chunks))
        self._open[place].used = now
        return self._open[place]

    async def _known(self, session: str, key: str, mark: str) -> schemas.Appended | None:
        """What a body came to, if all of it was written; of one that was broken off the rest is still to come."""
        if not key:
            return None
        prefix = after = _prefix(key)
        found: list[KeyRecord] = []
        while rows := await self._ledger.log.store.keys(session, after, MAX_CONVERSATIONS):
            ours = [row for row in rows if row.key.startswith(prefix)]
            if any(row.mark != mark for row in ours):
                raise ConflictError(f"the idempotency key {key!r} was used before with another body")
            found += ours
            after = rows[-1].key
            if len(ours) < len(rows):
                break
        if not found or not found[-1].key.endswith(LAST):
            return None
        seqs = {row.seq for row in found}
        return schemas.Appended(session=session, seq=max(seqs), appended=len(seqs))


LAST = "."


def _prefix(key: str) -> str:
    """What the keys of a body's events begin with, which is never the beginning of another's."""
    return f"http:{codec.digest(key.encode())[:32]}:"


def _name(talks: Conversations, session: str, prefix: str, mark: str) -> None:
    """Give drafts keys: the body's and their number. The posted session comes last, so its last key stands for all."""
    talks.all = dict(sorted(talks.all.items(), key=lambda item: item[1].session == session))
    for talk in talks.all.values():
        count = sum(len(drafts) for _, drafts in talk.waiting)
        keys = (f"{prefix}{number:08}{LAST if number == count else ''}" for number in range(1, count + 1))
        talk.waiting = [
            (message, [structs.replace(draft, key=next(keys), mark=mark) for draft in drafts])
            for message, drafts in talk.waiting
        ]


def checked(drafts: list[Draft]) -> list[Draft]:
    """The same drafts, unless they say what is not theirs to say."""
    for draft in drafts:
        if isinstance(draft.event, SessionInfo) and draft.event.owner is not msgspec.UNSET:
            raise InvalidInputError("owner", "is whoever began the session; nobody else can say it")
    return drafts


class _Written:
    """What one body writes."""

    def __init__(self, ledger: Ledger, visit: RequestContext, who: Principal, format: str) -> None:
        self._ledger = ledger
        self._visit = visit
        self._who = who
        self._source = "" if format == "events" else format
        self._made: dict[str, list[Event]] = {}

    async def admitted(self, talks: Conversations) -> None:
        """Every session that the body speaks of must be one that they may write to; a new one becomes theirs."""
        for talk in talks.all.values():
            if talk.session in self._made or not talk.waiting:
                continue
            row = await self._ledger.log.store.session(talk.session)
            await self._visit.admit(row or SessionRecord(name=talk.session))
            self._made[talk.session] = []
            if row is None:
                talk.waiting.insert(0, (None, [owned_by(self._who)]))

    async def write(self, talk: Conversation, drafts: list[Draft]) -> None:
        made = await write(self._visit, self._who, talk.session, drafts, source=self._source)
        self._made.setdefault(talk.session, []).extend(
            event for event in made if not (isinstance(event, SessionInfo) and event.owner is not msgspec.UNSET)
        )

    def told(self, session: str) -> schemas.Appended:
        seqs = {name: max((event.seq for event in made), default=0) for name, made in self._made.items()}
        made = [event for events in self._made.values() for event in events]
        raw = sum(isinstance(event, Raw) for event in made)
        others = {name: seq for name, seq in seqs.items() if name != session}
        return schemas.Appended(
            session=session, seq=seqs.get(session, 0), appended=len(made), not_understood=raw, others=others
        )


def _messages(body: bytes, kind: str) -> Iterator[Any]:
    """The messages of a body: a JSON array of them, one alone, or one a line."""
    media = kind.partition(";")[0].strip().lower()
    if media in ("application/x-ndjson", "application/jsonl"):
        for number, line in enumerate(body.split(b"\n"), 1):
            if line.strip():
                yield codec.parse_json(line, field=f"line {number}")
    elif media in ("", "application/json"):
        found = codec.parse_json(body, field="body", max_bytes=len(body) + 1)
        yield from cast("list[Any]", found) if isinstance(found, list) else [found]
    else:
        raise Unsupported(f"{media} is not read here: application/json or application/x-ndjson")


ROUTES = (
    Route(
        method="POST",
        path="/v1/sessions/{session}/events",
        endpoint=post,
        verb="write",
        about="Take messages of any readable format into a session.",
        query=PostQuery,
        headers={"idempotency-key": "A name for this body: posted again under it, it changes nothing."},
        body="application/json, application/x-ndjson",
        answers={200: schemas.Appended, 201: schemas.Appended},
        problems=(400, 401, 403, 404, 409, 413, 415, 503, 507),
    ),
)
