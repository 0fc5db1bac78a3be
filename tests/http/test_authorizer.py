"""Which requests the authorizers admit: tokens and their scopes, and the users of a host app."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import combinations
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

import callslip
from callslip.api.access import VERBS, Verb
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.errors import AuthenticationError, InvalidInputError, NotFoundError, PermissionDeniedError
from callslip.http.access import COOKIE, AllowAll, Authorizer, CallbackAuthorizer, Principal, TokenAuthorizer
from callslip.http.app import build
from callslip.http.request import RequestAccess, RequestContext, Route, json_response
from callslip.http.server import Server
from callslip.model import events as ev
from callslip.model.records import SessionRecord, TokenRecord
from tests.support.asgi_client import get, make_scope

pytestmark = pytest.mark.anyio

MAIN_TOKEN = "main-token-of-this-test"
MINE, THEIRS = SessionRecord(name="mine", owner="ann"), SessionRecord(name="theirs", owner="bob")
SCOPES = [verbs for size in range(1, len(VERBS) + 1) for verbs in combinations(VERBS, size)]


def make_request(**headers: str) -> HTTPConnection:
    return HTTPConnection(
        make_scope("/v1/sessions", {name.replace("_", "-"): value for name, value in headers.items()})
    )


def request_with_token(token: str) -> HTTPConnection:
    return make_request(authorization=f"Bearer {token}")


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db) as ledger:
        yield ledger


@pytest.fixture
def authorizer(ledger: LocalLedger) -> TokenAuthorizer:
    return TokenAuthorizer(ledger.log, MAIN_TOKEN)


async def create_token(
    ledger: LocalLedger, session: str, verbs: tuple[str, ...], *, expires_at: int = 0, label: str = ""
) -> str:
    """Store a token of this scope, and return it."""
    token = f"callslip_{session}-{'-'.join(verbs)}-{expires_at}"
    row = TokenRecord(f"tok_{hash_token(token)[:12]}", hash_token(token), label, session, verbs, 1, expires_at)
    await ledger.log.store.put_token(row)
    return token


async def admit_outcome(authorizer: Any, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> object:
    """Return the name of the admitted caller, or the type of the refusal."""
    try:
        return (await authorizer.admit(request, session, verb)).name
    except (AuthenticationError, PermissionDeniedError, NotFoundError) as error:
        return type(error)


# Tokens


async def test_the_main_token_grants_every_verb_on_every_session(authorizer: TokenAuthorizer) -> None:
    """Every verb, every session, by header or by cookie."""
    for request in (
        request_with_token(MAIN_TOKEN),
        make_request(authorization=f"bEARER {MAIN_TOKEN}"),
        make_request(cookie=f"a=b; {COOKIE}={MAIN_TOKEN}; c=d"),
    ):
        for session in (MINE, THEIRS, None):
            assert [await admit_outcome(authorizer, request, session, verb) for verb in VERBS] == ["user"] * 4


@pytest.mark.parametrize("verbs", SCOPES, ids=",".join)
async def test_a_session_token_grants_only_its_session_and_verbs(
    ledger: LocalLedger, authorizer: TokenAuthorizer, verbs: tuple[str, ...]
) -> None:
    """Another session is not found, another verb is forbidden, and without a session only reading is allowed."""
    request = request_with_token(await create_token(ledger, "mine", verbs, label="ci"))
    for verb in VERBS:
        assert await admit_outcome(authorizer, request, MINE, verb) == (
            "ci" if verb in verbs else PermissionDeniedError
        )
        assert await admit_outcome(authorizer, request, THEIRS, verb) is NotFoundError
        assert await admit_outcome(authorizer, request, None, verb) == (
            "ci" if verb in verbs and verb == "read" else PermissionDeniedError
        )


@pytest.mark.parametrize("verbs", SCOPES, ids=",".join)
async def test_a_token_for_all_sessions_grants_its_verbs_on_every_session(
    ledger: LocalLedger, authorizer: TokenAuthorizer, verbs: tuple[str, ...]
) -> None:
    """With and without a session; without a label the user name is the id of the token."""
    token = await create_token(ledger, "", verbs)
    name = f"tok_{hash_token(token)[:12]}"
    for session in (MINE, THEIRS, None):
        for verb in VERBS:
            assert await admit_outcome(authorizer, request_with_token(token), session, verb) == (
                name if verb in verbs else PermissionDeniedError
            )


async def test_a_session_outside_the_token_looks_like_a_missing_session(
    ledger: LocalLedger, authorizer: TokenAuthorizer
) -> None:
    """The error message contains only the requested name."""
    token = await create_token(ledger, "mine", ("read",))
    messages: list[str] = []
    for session in (THEIRS, SessionRecord(name="nobody")):
        with pytest.raises(NotFoundError) as refusal:
            await authorizer.admit(request_with_token(token), session, "read")
        messages.append(str(refusal.value).replace(session.name, "NAME"))
    assert messages == ["no session 'NAME'"] * 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {MAIN_TOKEN}x"},
        {"authorization": f"Bearer {MAIN_TOKEN[:-1]}"},
        {"authorization": f"Bearer {MAIN_TOKEN.upper()}"},
        {"authorization": f"Bearer {hash_token(MAIN_TOKEN)}"},
        {"authorization": f"Basic {MAIN_TOKEN}"},
        {"authorization": MAIN_TOKEN},
        {"authorization": f"Bearer {MAIN_TOKEN}, Bearer {MAIN_TOKEN}"},
        {"authorization": "Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 100_000},
        {"cookie": f"{COOKIE}="},
        {"cookie": f"{COOKIE}=wrong"},
        {"cookie": f"other={MAIN_TOKEN}"},
        {"cookie": f"{COOKIE}2={MAIN_TOKEN}"},
        {"authorization": "Bearer wrong", "cookie": f"{COOKIE}={MAIN_TOKEN}"},
    ],
    ids=str,
)
async def test_requests_without_a_valid_token_are_refused(authorizer: TokenAuthorizer, headers: dict[str, str]) -> None:
    """Wrong, truncated, of another scheme or in another cookie; a valid cookie does not replace a wrong header."""
    for session in (MINE, None):
        with pytest.raises(AuthenticationError) as refusal:
            await authorizer.admit(make_request(**headers), session, "read")
        assert MAIN_TOKEN not in str(refusal.value) and "wrong" not in str(refusal.value)


async def test_a_token_hash_or_id_is_not_accepted_as_a_token(ledger: LocalLedger, authorizer: TokenAuthorizer) -> None:
    """The tokens table contains no usable token."""
    await create_token(ledger, "mine", ("read",))
    (row,) = await ledger.log.store.tokens()
    for leaked in (row.hash, row.id):
        assert await admit_outcome(authorizer, request_with_token(leaked), MINE, "read") is AuthenticationError


async def test_an_expired_or_revoked_token_is_refused(ledger: LocalLedger, authorizer: TokenAuthorizer) -> None:
    """From the next request on, by the clock of the store."""
    now = await ledger.log.store.clock()
    expired = await create_token(ledger, "mine", ("read",), expires_at=now)
    valid = await create_token(ledger, "mine", ("read",), expires_at=now + 3_600_000, label="ci")
    assert await admit_outcome(
        authorizer, request_with_token(expired), MINE, "read"
    ) is AuthenticationError and not await authorizer.is_valid(expired)
    assert await admit_outcome(
        authorizer, request_with_token(valid), MINE, "read"
    ) == "ci" and await authorizer.is_valid(valid)
    row = await ledger.log.store.token(hash_token(valid))
    assert row is not None and await ledger.log.store.drop_token(row.id)
    assert await admit_outcome(
        authorizer, request_with_token(valid), MINE, "read"
    ) is AuthenticationError and not await authorizer.is_valid(valid)
    assert (
        await authorizer.is_valid(MAIN_TOKEN)
        and not await authorizer.is_valid("")
        and not await authorizer.is_valid("\ud800")
    )


async def test_a_cookie_is_ignored_when_cookies_are_disabled(ledger: LocalLedger) -> None:
    """Only a token in the header is accepted."""
    authorizer = TokenAuthorizer(ledger.log, MAIN_TOKEN, "ann", cookies=False)
    assert (
        await admit_outcome(authorizer, make_request(cookie=f"{COOKIE}={MAIN_TOKEN}"), MINE, "read")
        is AuthenticationError
    )
    assert await admit_outcome(authorizer, request_with_token(MAIN_TOKEN), MINE, "read") == "ann"


@pytest.mark.parametrize("token", ["", " ", "a b", "a;b", "a\nb", "\u00e9", "a" * 1000, "Z" * 15])
async def test_an_invalid_main_token_is_refused(ledger: LocalLedger, token: str) -> None:
    """An empty token would match any request; the message does not repeat the token."""
    with pytest.raises(InvalidInputError) as refusal:
        TokenAuthorizer(ledger.log, token)
    assert not token.strip() or token not in str(refusal.value)


# Authorizers in an app


async def read_session(context: RequestContext) -> Response:
    """Return the name of a session."""
    return json_response((await context.session(context.request.path_params["name"])).name)


async def list_sessions(context: RequestContext) -> Response:
    """Return the sessions that the caller may see."""
    await context.admit()
    rows = (await context.ledger.sessions()).items
    return json_response(sorted([row.name for row in rows if await RequestAccess(context).may(row.name, "read")]))


async def write_session(context: RequestContext) -> Response:
    """Return the name of a session to which the caller may write."""
    return json_response((await context.session(context.request.path_params["name"])).name)


ROUTES = [
    Route(method="GET", path="/s/{name}", endpoint=read_session, about="one"),
    Route(method="POST", path="/s/{name}", endpoint=write_session, about="write", verb="write"),
    Route(method="GET", path="/s", endpoint=list_sessions, about="all"),
]


async def build_app(ledger: LocalLedger, authorizer: Authorizer) -> Any:
    for row in (MINE, THEIRS):
        await ledger.log.append(row.name, [ev.SessionInfo(owner=row.owner)])
    return build(Server(ledger, authorizer), ROUTES)


async def test_a_session_outside_the_token_is_404_and_not_listed(
    ledger: LocalLedger, authorizer: TokenAuthorizer
) -> None:
    """The status and message are those of a missing session."""
    app = await build_app(ledger, authorizer)
    headers = {"authorization": f"Bearer {await create_token(ledger, 'mine', ('read',))}"}
    assert (await get(app, "/s/mine", headers)).status == 200
    responses = [await get(app, f"/s/{name}", headers) for name in ("theirs", "nobody")]
    assert {response.status for response in responses} == {404}
    assert responses[0].body.replace(b"theirs", b"?") == responses[1].body.replace(b"nobody", b"?")
    assert json.loads((await get(app, "/s", headers)).body) == ["mine"]
    assert json.loads((await get(app, "/s", {"authorization": f"Bearer {MAIN_TOKEN}"})).body) == ["mine", "theirs"]
    assert (await get(app, "/s/mine", headers, "POST")).status == 403
    assert (await get(app, "/s/theirs", headers, "POST")).status == 404


async def test_an_unauthenticated_request_gets_401_with_www_authenticate(
    ledger: LocalLedger, authorizer: TokenAuthorizer
) -> None:
    """The response does not repeat the sent token and does not depend on the session."""
    app = await build_app(ledger, authorizer)
    for path in ("/s", "/s/mine", "/s/nobody"):
        status, headers, body = await get(app, path, {"authorization": "Bearer se-cret", "cookie": f"{COOKIE}=se-cret"})
        assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="callslip"') and b"se-cret" not in body


async def test_a_host_callback_can_decide_by_the_session_owner(
    ledger: LocalLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """Each user sees their own sessions; an error in the callback gives 500 without its text."""

    def admit_owner(request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> str | None:
        user = request.headers["x-user"]
        return user if session is None or session.owner == user else None

    app = await build_app(ledger, CallbackAuthorizer(admit_owner))
    assert json.loads((await get(app, "/s", {"x-user": "ann"})).body) == ["mine"]
    assert (await get(app, "/s/theirs", {"x-user": "ann"})).status == 404
    assert (await get(app, "/s/theirs", {"x-user": "bob"})).status == 200
    status, _, body = await get(app, "/s/theirs", {"authorization": "Bearer se-cret"})
    assert status == 500 and b"x-user" not in body and "se-cret" not in caplog.text


# Users of a host app


class User:
    def __init__(self, name: object) -> None:
        self.name = name

    def __str__(self) -> str:
        return "a user"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("ann", "ann"),
        (User("ann"), "ann"),
        (User(""), "a user"),
        (User(7), "a user"),
        (7, "7"),
        (True, "user"),
        (Principal("ann", "x"), "ann"),
    ],
)
async def test_a_user_that_the_host_returns_is_admitted(value: object, name: str) -> None:
    """For a plain and an async callback; the returned value is kept as the user."""

    async def admit_later(*_: Any) -> object:
        return value

    for admit in (lambda *_: value, admit_later):
        principal = await CallbackAuthorizer(admit).admit(make_request(), MINE, "read")
        assert principal.name == name and (principal.user is value or isinstance(value, Principal))


@pytest.mark.parametrize("falsy", [None, "", 0, False, [], {}])
async def test_a_user_that_the_host_does_not_return_is_refused(falsy: object) -> None:
    """A session is not found; a request without a session is forbidden."""

    async def admit_later(*_: Any) -> object:
        return falsy

    for admit in (lambda *_: falsy, admit_later):
        assert await admit_outcome(CallbackAuthorizer(admit), make_request(), MINE, "read") is NotFoundError
        assert await admit_outcome(CallbackAuthorizer(admit), make_request(), None, "read") is PermissionDeniedError


async def test_the_host_callback_receives_request_session_and_verb() -> None:
    """Owner and labels come from the session record; a list is checked without a session."""
    received: list[tuple[str, str, str]] = []

    def admit_owner(request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> str | None:
        user = request.headers.get("x-user", "")
        received.append((user, session.owner if session else "-", verb))
        return user if session is None or session.owner == user else None

    authorizer = CallbackAuthorizer(admit_owner)
    assert await admit_outcome(authorizer, make_request(x_user="ann"), MINE, "approve") == "ann"
    assert await admit_outcome(authorizer, make_request(x_user="ann"), THEIRS, "read") is NotFoundError
    assert await admit_outcome(authorizer, make_request(x_user="ann"), None, "read") == "ann"
    assert received == [("ann", "ann", "approve"), ("ann", "bob", "read"), ("ann", "-", "read")]


async def test_an_error_in_the_host_callback_refuses_access() -> None:
    """The error is raised; an HTTPException with 401, 403 or 404 becomes the matching refusal."""

    def raise_error(*_: Any) -> str:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        await CallbackAuthorizer(raise_error).admit(make_request(), MINE, "read")
    for status, kind in ((401, AuthenticationError), (403, PermissionDeniedError), (404, NotFoundError)):

        async def raise_status(*_: Any, status: int = status) -> str:
            raise HTTPException(status)

        assert await admit_outcome(CallbackAuthorizer(raise_status), make_request(), MINE, "read") is kind

    def raise_unavailable(*_: Any) -> str:
        raise HTTPException(503)

    with pytest.raises(HTTPException):
        await CallbackAuthorizer(raise_unavailable).admit(make_request(), None, "read")


async def test_allow_all_admits_anonymous_users() -> None:
    """For apps that authorize requests themselves."""
    assert [await admit_outcome(AllowAll(), make_request(), MINE, verb) for verb in VERBS] == ["anonymous"] * 4
