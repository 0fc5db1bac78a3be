"""One request: who asks, what for, and the ways to what they may see. Every endpoint is a function of a visit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callslip.api.ledger import Ledger
from callslip.errors import InvalidInputError, NotFoundError
from callslip.http import sse
from callslip.http.access import Authorizer, Forbidden, Principal, Verb
from callslip.http.limits import Limits
from callslip.http.metrics import Metrics
from callslip.http.problems import TooLarge, Unsupported
from callslip.model import codec
from callslip.model.records import SessionRecord

if TYPE_CHECKING:
    from callslip.http.ingest import Posts
    from callslip.http.prompts import Prompts
    from callslip.http.streams import Hub

T = TypeVar("T")


class Server:
    """What all requests share."""

    def __init__(
        self, ledger: Ledger, gate: Authorizer, limits: Limits, hub: Hub, posts: Posts, prompts: Prompts
    ) -> None:
        self.ledger = ledger
        self.gate = gate
        self.limits = limits
        self.hub = hub
        self.posts = posts
        self.prompts = prompts
        self.metrics = Metrics(ledger.log.store)
        self.commands = ledger.commands
        self.routes: tuple[Route, ...] = ()


Endpoint = Callable[["RequestContext"], Awaitable[Response]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One thing the server does, told so that requests can be routed and the OpenAPI document be written.

    `query` is a struct whose fields are the query's parameters; `body` and `answers` are types, or texts that name a
    media type; `problems` are the statuses that may come instead. Without `verb` nobody is asked who they are.
    """

    method: str
    path: str
    endpoint: Endpoint
    about: str
    verb: Verb | None = "read"
    query: type[msgspec.Struct] | None = None
    headers: Mapping[str, str] = {}
    body: Any = None
    answers: Mapping[int, Any] = {}
    problems: tuple[int, ...] = ()


class RequestContext:
    """One request, in the hands of an endpoint."""

    def __init__(self, server: Server, request: Request, route: Route) -> None:
        self.server = server
        self.ledger = server.ledger
        self.request = request
        self.route = route

    # Who

    async def admit(self, session: SessionRecord | None = None, verb: Verb | None = None) -> Principal:
        """Whoever asks, if they may."""
        wanted = verb or self.route.verb
        assert wanted is not None
        return await self.server.gate.admit(self.request, session, wanted)

    async def known(self) -> None:
        """Somebody who is nobody is told to say who they are, before anything of what they say is looked at."""
        with contextlib.suppress(Forbidden, NotFoundError):
            await self.admit(None, "read")

    async def session(self, name: str, verb: Verb | None = None) -> SessionRecord:
        """A session that is there and that they may use so; else there is none."""
        row = await self.ledger.log.store.session(name)
        await self.admit(row or SessionRecord(name=name), verb)
        if row is None:
            raise NotFoundError(f"no session {name!r}")
        return row

    async def may_see(self, name: str) -> bool:
        """Whether they may read a session, for lists that leave out what is not theirs."""
        row = await self.ledger.log.store.session(name)
        try:
            await self.admit(row, "read")
        except (NotFoundError, Forbidden):
            return False
        return row is not None

    def stream(self, work: Callable[[sse.Write], Awaitable[None]], headers: Mapping[str, str], *names: str) -> Response:
        """A stream about these sessions, for as long as they may see them: a token may be revoked meanwhile."""

        async def still() -> None:
            for name in names:
                await self.admit(await self.ledger.log.store.session(name) or SessionRecord(name=name))
            if not names:
                await self.admit()

        return sse.Stream(work, headers, self.server.limits, still)

    # What

    def query(self, kind: type[T]) -> T:
        """The query's parameters. One that is not known, given twice or of the wrong kind is refused."""
        known, several = _parameters(kind)
        given: dict[str, Any] = {}
        for name, value in self.request.query_params.multi_items() if self.request.scope["query_string"] else ():
            if name not in known:
                raise InvalidInputError(
                    name, "is no parameter here" + (f"; there are {', '.join(sorted(known))}" if known else "")
                )
            if name in several:
                given.setdefault(name, []).append(value)
                continue
            if name in given:
                raise InvalidInputError(name, "was given twice")
            given[name] = value
        try:
            made = msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise refused_by(error, "query") from None
        for name in given:
            if getattr(made, known[name]) is None:
                raise InvalidInputError(name, "is not null: leave it out")
        return made

    async def raw(self) -> bytes:
        """The body, up to the limit."""
        limit = self.server.limits.body
        packed = self.request.headers.get("content-encoding", "").strip().lower()
        if packed not in ("", "identity"):
            raise Unsupported(f"a body is not unpacked here: send it as it is, without content-encoding {packed!r}")
        said = self.request.headers.get("content-length", "")
        size, pieces = int(said) if said.isdigit() else 0, list[bytes]()
        if size <= limit:
            size = 0
            async for piece in self.request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    break
        if size > limit:
            raise TooLarge(f"a body may have {limit} bytes")
        return b"".join(pieces)

    async def body(self, kind: type[T]) -> T:
        """The body, read as JSON of a kind."""
        try:
            return msgspec.convert(codec.parse_json(await self.raw() or b"null", field="body"), kind)
        except msgspec.ValidationError as error:
            raise refused_by(error, "body") from None


class RequestAccess:
    """The rights of the caller of one request. An answer is remembered for `ttl_s` seconds."""

    def __init__(self, context: RequestContext, ttl_s: float = math.inf) -> None:
        self._context = context
        self._ttl_s = ttl_s
        self._answers: dict[tuple[str, Verb], bool] = {}
        self._fresh_until = -math.inf

    async def may(self, session: str, verb: Verb) -> bool:
        if time.monotonic() > self._fresh_until:
            self._answers.clear()
            self._fresh_until = time.monotonic() + self._ttl_s
        if (session, verb) not in self._answers:
            self._answers[session, verb] = await self._ask(session, verb)
        return self._answers[session, verb]

    async def _ask(self, session: str, verb: Verb) -> bool:
        record = await self._context.ledger.log.store.session(session)
        try:
            await self._context.admit(record, verb)
        except (NotFoundError, Forbidden):
            return False
        return record is not None

    async def require(self, session: str, verb: Verb) -> str:
        record = await self._context.ledger.log.store.session(session)
        principal = await self._context.admit(record or SessionRecord(name=session), verb)
        if record is None:
            raise NotFoundError(f"no session {session!r}")
        return principal.name

    async def require_identity(self) -> None:
        await self._context.known()


@cache
def _parameters(kind: type) -> tuple[dict[str, str], set[str]]:
    """The names of a query's parameters and of their fields, and those that may be given several times."""
    structure = msgspec.structs.fields(kind)
    several = {field.encode_name for field in structure if field.default_factory is list}
    return {field.encode_name: field.name for field in structure}, several


def refused_by(error: msgspec.ValidationError, field: str) -> InvalidInputError:
    """msgspec's words, with the place they are about as the field."""
    said, _, place = str(error).partition(" - at `$")
    return InvalidInputError(place.rstrip("`").lstrip(".") or field, said)


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as a JSON response."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")
