"""Who may do what. Everything that the server gives or does passes `Gate.admit`; nothing else decides about people.

A gate answers for one request, one session (None for what is about no session, or about all of them) and one verb. What
it refuses it raises: `Unknown` for somebody without a name, `Forbidden` for somebody who may not do this, and NotFound
for a session that this somebody must not even know of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from callslip.api.access import Verb
from callslip.client.token_file import digest, long_enough, same
from callslip.errors import CallslipError, NotFoundError
from callslip.model.records import SessionRecord, TokenRecord
from callslip.store.protocol import Store

COOKIE = "callslip"


class Unauthenticated(CallslipError):
    """Nobody said who is asking, or with a token that is none. 401"""


class Forbidden(CallslipError):
    """Whoever is asking may not do this. 403"""


class Principal(msgspec.Struct, frozen=True):
    """Somebody who was admitted. `name` stands as `by` on answers and as owner of the sessions that they begin.

    `given` is what a host's own function returned for them.
    """

    name: str
    given: Any = None


class Authorizer(Protocol):
    """Decides."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal: ...


class AllowAll:
    """Admits everybody: for tests, and behind something that has decided already."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        return Principal("anybody")


# Tokens


def bearer_token(request: HTTPConnection) -> str:
    """The token of the Authorization header, "" for none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def cookie_token(request: HTTPConnection) -> bool:
    """Whether it may be the browser that says who is asking, which it does for any page, and not the page itself."""
    return not bearer_token(request) and "cookie" in request.headers


class TokenAuthorizer:
    """Admits by token: the main one to everything, each other to its session and its verbs.

    Without `cookies` a token must stand in the request's header.
    """

    def __init__(self, store: Store, main_token: str, name: str = "user", *, cookies: bool = True) -> None:
        self._store = store
        self._main = digest(long_enough(main_token, "token"))
        self._name = name
        self._cookies = cookies

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        token = bearer_token(request) or (request.cookies.get(COOKIE, "") if self._cookies else "")
        if not token:
            raise Unauthenticated("no token was given")
        hashed = digest(token)
        if same(hashed, self._main):
            return Principal(self._name)
        row = await self._scoped(hashed)
        if row is None:
            raise Unauthenticated("this token is not known, or not any more")
        _within(row, session, verb)
        return Principal(row.label or row.id)

    async def knows(self, token: str) -> bool:
        """Whether a token opens anything at all."""
        hashed = digest(token)
        return same(hashed, self._main) or await self._scoped(hashed) is not None

    async def _scoped(self, hashed: str) -> TokenRecord | None:
        """A token for a part, unless its time is over."""
        row = await self._store.token(hashed)
        if row is None or not same(row.hash, hashed):
            return None
        return row if not row.expires_at or await self._store.clock() < row.expires_at else None


def _within(row: TokenRecord, session: SessionRecord | None, verb: Verb) -> None:
    """Of a session that is not the token's, not even this is told: that it is there."""
    if session is not None and row.session not in ("", session.name):
        _no_session(session)
    if verb not in row.verbs:
        raise Forbidden(f"this token may not {verb}")
    if session is None and row.session and verb != "read":  # A list is read, and leaves out what is not theirs.
        raise Forbidden("this token is for one session")


def _no_session(session: SessionRecord) -> NoReturn:
    raise NotFoundError(f"no session {session.name!r}")


# A host's own people


Admission = Callable[[HTTPConnection, SessionRecord | None, Verb], Any]
"""Gives whoever may do it (any value that is not empty), or nothing; may be async. A list is asked about with None."""

_SAID: dict[int, Callable[[str], CallslipError]] = {401: Unauthenticated, 403: Forbidden, 404: NotFoundError}


class CallbackAuthorizer:
    """Admits whom a function of the host admits. What it raises is a refusal or an error, never an admission."""

    def __init__(self, admits: Admission) -> None:
        self._admits = admits

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        given = await self._ask(request, session, verb)
        if given:
            return given if isinstance(given, Principal) else Principal(_name(given), given)
        if session is not None:
            _no_session(session)
        raise Forbidden(f"you may not {verb} here")

    async def _ask(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Any:
        """A host's HTTPException is how its framework says no."""
        try:
            given = self._admits(request, session, verb)
            return await given if inspect.isawaitable(given) else given
        except HTTPException as error:
            if error.status_code not in _SAID:
                raise
            raise _SAID[error.status_code](str(error.detail)) from None


def _name(given: Any) -> str:
    """A text is a name, and so is the `name` of a thing; True says only that it is somebody."""
    if given is True:
        return "user"
    name = given if isinstance(given, str) else getattr(given, "name", None)
    return name if isinstance(name, str) and name else str(given)
