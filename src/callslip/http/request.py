"""An HTTP request with its principal, query and body, and the table of routes. Endpoints are functions of a context."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callslip.api.access import Writer
from callslip.api.sessions import wait_for_seq
from callslip.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from callslip.http import sse
from callslip.http.access import Principal, Verb
from callslip.http.body import MEDIA_JSON, parse_value
from callslip.http.problems import RequestTooLargeError, UnsupportedMediaTypeError
from callslip.ledger.aio import LARGE_BYTES, run_off_loop
from callslip.model.records import SessionRecord

if TYPE_CHECKING:
    from starlette.types import Scope

    from callslip.http.server import Server

T = TypeVar("T")


Endpoint = Callable[["RequestContext"], Awaitable[Response]]


class Route(msgspec.Struct, frozen=True):
    """An operation of the server, for routing and for the OpenAPI document.

    `query` is a struct whose fields are the query parameters; `body` and `answers` are types, or names of media types;
    `problems` are the statuses of errors that its other fields do not imply (see `callslip.http.openapi`). `about` is
    the endpoint's docstring by default. A route without a `verb` needs no authentication.
    """

    method: str
    path: str
    endpoint: Endpoint
    verb: Verb | None = "read"
    query: type[msgspec.Struct] | None = None
    body: Any = None
    answers: Mapping[int, Any] = {}
    problems: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    about: str = ""


class NoQuery(msgspec.Struct):
    """Takes no parameters."""


class RequestContext:
    """An HTTP request with its server and route."""

    def __init__(self, server: Server, request: Request, route: Route) -> None:
        self.server = server
        self.ledger = server.ledger
        self.request = request
        self.path_params = request.path_params
        self.route = route
        self._principal_id = ""

    # The caller

    @cached_property
    def access(self) -> RequestAccess:
        """The rights of the caller when the request began. After a wait, ask `admit_to` again."""
        return RequestAccess(self)

    async def admit(self, session: SessionRecord | None = None, verb: Verb | None = None) -> Principal:
        """Return the caller, or raise if it may not use the session in this way."""
        required = verb or self.route.verb
        assert required is not None
        principal = await self.server.gate.admit(self.request, session, required)
        self._principal_id = principal.caller
        return principal

    async def require_authenticated(self) -> None:
        """Raise AuthenticationError for an unknown caller, before the request is validated."""
        with contextlib.suppress(PermissionDeniedError, NotFoundError):
            await self.admit(None, "read")

    async def admit_to(self, name: str, verb: Verb | None = None) -> tuple[SessionRecord | None, Principal]:
        """Return a session (None if there is none) and the caller, or raise if it may not use it in this way."""
        record = await self.ledger.log.get_session(name)
        return record, await self.admit(record or SessionRecord(name=name), verb)

    async def session(
        self, name: str, verb: Verb | None = None, *, min_seq: int = 0, field: str = "min_seq"
    ) -> SessionRecord:
        """Return a session that the caller may use in this way. One that it may not read is reported as not found.

        It has the event `min_seq`, for which a standby waits. `field` is the parameter that asked for it.
        """
        record, _ = await self.admit_to(name, verb)
        if min_seq > (record.last_seq if record is not None else 0):
            await wait_for_seq(self.ledger.log, name, min_seq)
            record, _ = await self.admit_to(name, verb)
        if record is None:
            raise NotFoundError(f"no session {name!r}")
        if min_seq > record.last_seq:
            raise InvalidInputError(field, f"{min_seq} is beyond the last event ({record.last_seq})")
        return record

    def stream(self, work: sse.Work, headers: Mapping[str, str], *sessions: str) -> Response:
        """Return a stream about these sessions. It ends when the caller's rights do: a token may be revoked."""
        hub, principal = self.server.hub, self._principal_id

        async def write_while_admitted(write: sse.Writer) -> None:
            with hub.reader(principal):
                async with self.while_admitted(*sessions):
                    await work(write)

        check_access = partial(self._check_access, *sessions)
        return sse.Stream(write_while_admitted, headers, self.server.limits, hub.held, check_access)

    def while_admitted(self, *sessions: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Cancel the block when the caller's token is revoked, and raise AuthenticationError."""
        revocations = self.server.revocations
        if revocations is None:
            return contextlib.nullcontext()
        return revocations.cancel_when_refused(partial(self._check_access, *sessions))

    async def _check_access(self, *sessions: str) -> None:
        for name in sessions:
            await self.admit_to(name)
        if not sessions:
            await self.admit()

    # The request

    async def wait_disconnected(self) -> None:
        """Wait until the client disconnects. The body must have been read."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    @property
    def media_type(self) -> str:
        """The media type of the body, "" if the client did not name it."""
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    def has_version(self, etag: str) -> bool:
        """Return whether the client has this version already, so that the response is 304."""
        return etag in self.request.headers.get("if-none-match", "")

    def query(self, kind: type[T]) -> T:
        """Return the query parameters. Raise for one that is unknown, repeated or of the wrong type."""
        known, repeatable = _parameters(kind)
        values: dict[str, Any] = {}
        for name, value in self.request.query_params.multi_items() if self.request.scope["query_string"] else ():
            if name not in known:
                names = f"; the parameters are {', '.join(sorted(known))}" if known else ""
                raise InvalidInputError(name, f"unknown parameter{names}")
            if name in repeatable:
                values.setdefault(name, []).append(value)
                continue
            if name in values:
                raise InvalidInputError(name, "given more than once")
            values[name] = value
        try:
            query = msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as error:
            raise validation_error(error, "query") from None
        for name in values:
            if getattr(query, known[name]) is None:
                raise InvalidInputError(name, "must not be null; leave it out")
        return query

    async def raw(self, media_types: tuple[str, ...] = (MEDIA_JSON,)) -> bytes:
        """Return the body, up to the limit. Raise UnsupportedMediaTypeError if the client names another media type."""
        limit = self.server.limits.body_bytes
        if self.media_type and self.media_type not in media_types:
            raise UnsupportedMediaTypeError(
                f"content-type {self.media_type!r} is not supported; use {' or '.join(media_types)}"
            )
        encoding = self.request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise UnsupportedMediaTypeError(
                f"content-encoding {encoding!r} is not supported; send the body uncompressed"
            )
        length = self.request.headers.get("content-length", "")
        size, pieces = int(length) if length.isdigit() else 0, list[bytes]()
        if size <= limit:
            size = 0
            async for piece in self.request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    break
        if size > limit:
            raise RequestTooLargeError(f"body: must be at most {limit} bytes. Send it in parts.", limit)
        return b"".join(pieces)

    async def body(self, kind: type[T]) -> T:
        """Return the body, decoded from JSON."""
        raw = await self.raw() or b"null"
        limits = self.server.limits
        try:
            return await run_off_loop(
                len(raw) >= LARGE_BYTES, lambda: msgspec.convert(parse_value(raw, "body", limits), kind)
            )
        except msgspec.ValidationError as error:
            raise validation_error(error, "body") from None


class RequestAccess:
    """The rights of the caller of one request. A decision is remembered for `ttl_s` seconds."""

    def __init__(self, context: RequestContext, ttl_s: float = math.inf) -> None:
        self._context = context
        self._ttl_s = ttl_s
        self._decisions: dict[tuple[str, Verb], bool] = {}
        self._fresh_until = -math.inf

    async def may(self, session: str, verb: Verb) -> bool:
        if time.monotonic() > self._fresh_until:
            self._decisions.clear()
            self._fresh_until = time.monotonic() + self._ttl_s
        if (session, verb) not in self._decisions:
            self._decisions[session, verb] = await self._decide(session, verb)
        return self._decisions[session, verb]

    async def _decide(self, session: str, verb: Verb) -> bool:
        record = await self._context.ledger.log.get_session(session)
        try:
            await self._context.admit(record, verb)
        except (NotFoundError, PermissionDeniedError):
            return False
        return record is not None

    async def require(self, session: str, verb: Verb) -> str:
        record, principal = await self._context.admit_to(session, verb)
        if record is None:
            raise NotFoundError(f"no session {session!r}")
        return principal.name

    async def require_write(self, session: str) -> str:
        return (await self.writer(session)).name

    async def writer(self, session: str) -> Writer:
        _, principal = await self._context.admit_to(session, "write")
        return Writer(principal.caller, principal.name, principal.can_label)

    async def allows(self, session: str, verb: Verb) -> bool:
        try:
            await self._context.admit_to(session, verb)
        except (NotFoundError, PermissionDeniedError):
            return False
        return True

    async def require_everywhere(self, verb: Verb) -> str:
        principal = await self._context.admit(None, verb)
        if not principal.has_all_sessions:
            raise PermissionDeniedError(f"not allowed to {verb} in all sessions")
        return principal.name

    async def allows_everywhere(self, verb: Verb) -> bool:
        try:
            await self.require_everywhere(verb)
        except (NotFoundError, PermissionDeniedError):
            return False
        return True

    async def require_identity(self) -> None:
        await self._context.require_authenticated()


@cache
def _parameters(kind: type) -> tuple[dict[str, str], set[str]]:
    """Return the field of each query parameter, and the parameters that may be repeated."""
    fields = msgspec.structs.fields(kind)
    repeatable = {field.encode_name for field in fields if field.default_factory is list}
    return {field.encode_name: field.name for field in fields}, repeatable


def root_path(scope: Scope) -> str:
    """Return the path that the app is mounted at, without a slash at its end."""
    return scope.get("root_path", "").rstrip("/")


def validation_error(error: msgspec.ValidationError, field: str) -> InvalidInputError:
    """Return msgspec's error with the path of the value as its field."""
    message, _, path = str(error).partition(" - at `$")
    return InvalidInputError(path.rstrip("`").lstrip(".") or field, message)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as a JSON response."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")
