"""Authorization: an `Authorizer` decides about one request, one session and one verb.

The session is None for requests about no session or about all of them. To refuse, an authorizer raises
AuthenticationError for an unknown caller, PermissionDeniedError for a caller without the right, and NotFoundError for a
session that the caller must not know of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from callslip.api.access import Verb
from callslip.api.tokens import find_token
from callslip.client.token_file import check_main_token, hash_token, hashes_equal
from callslip.errors import AuthenticationError, CallslipError, NotFoundError, PermissionDeniedError
from callslip.ledger.event_log import EventLog
from callslip.model.records import SessionRecord, TokenRecord

COOKIE = "callslip"
MAIN_ID = "main"
"""The id of the caller with the main token. Ids of other tokens begin with `tok_`."""


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. `name` is the `by` of its answers and the owner of the sessions that it creates.

    `user` is the value that a host's `authorize` returned for it. `id` tells callers with the same name apart; without
    one it is the name. Only a caller that `can_label` may post labels, because an authorizer may decide by them, and
    the agent's ids of sessions, because transcripts are imported by them. Only one that `can_delete` may delete
    sessions that it may write. Only one that `has_all_sessions` may write rules for more than one session: what it may
    do in a request about no session says nothing about the sessions of others.
    """

    name: str
    user: Any = None
    id: str = ""
    can_label: bool = False
    can_delete: bool = False
    has_all_sessions: bool = False

    @property
    def caller(self) -> str:
        """The id, or the name of a caller without one."""
        return self.id or self.name


class Authorizer(Protocol):
    """Decide which callers are admitted."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal: ...


class AllowAll:
    """Admit every caller: for tests, and behind an app that authorizes its requests itself."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        return Principal("anonymous", can_label=True, can_delete=True, has_all_sessions=True)


# Tokens


def bearer_token(request: HTTPConnection) -> str:
    """Return the token of the Authorization header, or ""."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def has_only_cookie(request: HTTPConnection) -> bool:
    """Return whether only a cookie identifies the caller: browsers add it to requests of any page."""
    return not bearer_token(request) and "cookie" in request.headers


class TokenAuthorizer:
    """Admit callers by token: the main token to everything, any other to its session and its verbs.

    Without `cookies` the token must be in the Authorization header.
    """

    def __init__(self, log: EventLog, main_token: str, name: str = "user", *, cookies: bool = True) -> None:
        self._log = log
        self._main_hash = hash_token(check_main_token(main_token, "token"))
        self._name = name
        self.cookies = cookies

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        token = bearer_token(request) or (request.cookies.get(COOKIE, "") if self.cookies else "")
        if not token:
            raise AuthenticationError("no token; send one as `Authorization: Bearer TOKEN`")
        token_hash = hash_token(token)
        if hashes_equal(token_hash, self._main_hash):
            return Principal(self._name, id=MAIN_ID, can_label=True, can_delete=True, has_all_sessions=True)
        record = await find_token(self._log, token_hash)
        if record is None:
            raise AuthenticationError("the token is invalid, expired or revoked")
        _check_scope(record, session, verb)
        return Principal(record.label or record.id, id=record.id, has_all_sessions=not record.session)

    async def is_valid(self, token: str) -> bool:
        """Return whether a token gives access to anything."""
        token_hash = hash_token(token)
        return hashes_equal(token_hash, self._main_hash) or await find_token(self._log, token_hash) is not None


def _check_scope(record: TokenRecord, session: SessionRecord | None, verb: Verb) -> None:
    """Raise unless a token covers the session and the verb. It must not reveal that another session exists."""
    if session is not None and record.session not in ("", session.name):
        _raise_not_found(session)
    if verb not in record.verbs:
        raise PermissionDeniedError(f"this token may not {verb}")
    if session is None and record.session and verb != "read":  # A list leaves out what the token does not cover.
        raise PermissionDeniedError("this token is for one session")


def _raise_not_found(session: SessionRecord) -> NoReturn:
    raise NotFoundError(f"no session {session.name!r}")


# Users of a host app


Authorize = Callable[[HTTPConnection, SessionRecord | None, Verb], Any]
"""Return the user (any true value) or nothing; may be async. The session is None for a list."""

_ERRORS: dict[int, Callable[[str], CallslipError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
}


class CallbackAuthorizer:
    """Admit the callers that a function of the host admits. An exception is a refusal or an error."""

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        user = await self._find_user(request, session, verb)
        if user:
            return user if isinstance(user, Principal) else Principal(_user_name(user), user, _user_id(user))
        if session is not None:
            _raise_not_found(session)
        raise PermissionDeniedError(f"not allowed to {verb}")

    async def _find_user(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Any:
        """Call the host's function. Its framework refuses with an HTTPException."""
        try:
            user = self._authorize(request, session, verb)
            return await user if inspect.isawaitable(user) else user
        except HTTPException as error:
            if error.status_code not in _ERRORS:
                raise
            raise _ERRORS[error.status_code](str(error.detail)) from None


def _user_name(user: Any) -> str:
    """Return a user's name: a text itself, the `name` of an object, or "user" for True."""
    if user is True:
        return "user"
    name = user if isinstance(user, str) else getattr(user, "name", None)
    return name if isinstance(name, str) and name else str(user)


def _user_id(user: Any) -> str:
    """Return the `id` of a user object, or "" if it has none."""
    identity = getattr(user, "id", None)
    return "" if identity is None or callable(identity) else str(identity)
