"""Who is admitted to what: tokens and their scopes, and the people of a host."""

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
from tests.support.asgi_client import get, scope_of

pytestmark = pytest.mark.anyio

MAIN = "main-token-of-this-test"
MINE, THEIRS = SessionRecord(name="mine", owner="ann"), SessionRecord(name="theirs", owner="bob")
SCOPES = [verbs for size in range(1, len(VERBS) + 1) for verbs in combinations(VERBS, size)]


def make_request(**headers: str) -> HTTPConnection:
    return HTTPConnection(scope_of("/v1/sessions", {name.replace("_", "-"): value for name, value in headers.items()}))


def bearing(token: str) -> HTTPConnection:
    return make_request(authorization=f"Bearer {token}")


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db) as opened:
        yield opened


@pytest.fixture
def gate(ledger: LocalLedger) -> TokenAuthorizer:
    return TokenAuthorizer(ledger.log, MAIN)


async def create_token(
    ledger: LocalLedger, session: str, verbs: tuple[str, ...], *, expires_at: int = 0, label: str = ""
) -> str:
    """A token of this scope."""
    token = f"callslip_{session}-{'-'.join(verbs)}-{expires_at}"
    row = TokenRecord(f"tok_{hash_token(token)[:12]}", hash_token(token), label, session, verbs, 1, expires_at)
    await ledger.log.store.put_token(row)
    return token


async def outcome(gate: Any, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> object:
    """Return the name of the admitted caller, or the type of the refusal."""
    try:
        return (await gate.admit(request, session, verb)).name
    except (AuthenticationError, PermissionDeniedError, NotFoundError) as error:
        return type(error)


# Tokens


async def test_the_main_token_grants_every_verb_on_every_session(gate: TokenAuthorizer) -> None:
    """Every verb, every session, by header or by cookie."""
    for request in (
        bearing(MAIN),
        make_request(authorization=f"bEARER {MAIN}"),
        make_request(cookie=f"a=b; {COOKIE}={MAIN}; c=d"),
    ):
        for session in (MINE, THEIRS, None):
            assert [await outcome(gate, request, session, verb) for verb in VERBS] == ["user"] * 4


@pytest.mark.parametrize("verbs", SCOPES, ids=",".join)
async def test_a_session_token_grants_only_its_session_and_verbs(
    ledger: LocalLedger, gate: TokenAuthorizer, verbs: tuple[str, ...]
) -> None:
    """Another session is not found, another verb is forbidden, and without a session only reading is allowed."""
    request = bearing(await create_token(ledger, "mine", verbs, label="ci"))
    for verb in VERBS:
        assert await outcome(gate, request, MINE, verb) == ("ci" if verb in verbs else PermissionDeniedError)
        assert await outcome(gate, request, THEIRS, verb) is NotFoundError
        assert await outcome(gate, request, None, verb) == (
            "ci" if verb in verbs and verb == "read" else PermissionDeniedError
        )


@pytest.mark.parametrize("verbs", SCOPES, ids=",".join)
async def test_a_token_for_all_sessions_grants_its_verbs_on_every_session(
    ledger: LocalLedger, gate: TokenAuthorizer, verbs: tuple[str, ...]
) -> None:
    """With and without a session; without a label the user name is the id of the token."""
    token = await create_token(ledger, "", verbs)
    name = f"tok_{hash_token(token)[:12]}"
    for session in (MINE, THEIRS, None):
        for verb in VERBS:
            assert await outcome(gate, bearing(token), session, verb) == (
                name if verb in verbs else PermissionDeniedError
            )


async def test_a_session_outside_the_token_looks_like_a_missing_session(
    ledger: LocalLedger, gate: TokenAuthorizer
) -> None:
    """The error message contains only the requested name."""
    token = await create_token(ledger, "mine", ("read",))
    body: list[str] = []
    for session in (THEIRS, SessionRecord(name="nobody")):
        with pytest.raises(NotFoundError) as refusal:
            await gate.admit(bearing(token), session, "read")
        body.append(str(refusal.value).replace(session.name, "NAME"))
    assert body == ["no session 'NAME'"] * 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {MAIN}x"},
        {"authorization": f"Bearer {MAIN[:-1]}"},
        {"authorization": f"Bearer {MAIN.upper()}"},
        {"authorization": f"Bearer {hash_token(MAIN)}"},
        {"authorization": f"Basic {MAIN}"},
        {"authorization": MAIN},
        {"authorization": f"Bearer {MAIN}, Bearer {MAIN}"},
        {"authorization": "Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 100_000},
        {"cookie": f"{COOKIE}="},
        {"cookie": f"{COOKIE}=wrong"},
        {"cookie": f"other={MAIN}"},
        {"cookie": f"{COOKIE}2={MAIN}"},
        {"authorization": "Bearer wrong", "cookie": f"{COOKIE}={MAIN}"},
    ],
    ids=str,
)
async def test_requests_without_a_valid_token_are_refused(gate: TokenAuthorizer, headers: dict[str, str]) -> None:
    """Wrong, truncated, of another scheme or in another cookie; a valid cookie does not replace a wrong header."""
    for session in (MINE, None):
        with pytest.raises(AuthenticationError) as refusal:
            await gate.admit(make_request(**headers), session, "read")
        assert MAIN not in str(refusal.value) and "wrong" not in str(refusal.value)


async def test_a_token_hash_or_id_is_not_accepted_as_a_token(ledger: LocalLedger, gate: TokenAuthorizer) -> None:
    """The tokens table contains no usable token."""
    await create_token(ledger, "mine", ("read",))
    (row,) = await ledger.log.store.tokens()
    for stolen in (row.hash, row.id):
        assert await outcome(gate, bearing(stolen), MINE, "read") is AuthenticationError


async def test_an_expired_or_revoked_token_is_refused(ledger: LocalLedger, gate: TokenAuthorizer) -> None:
    """From the next request on, by the clock of the store."""
    now = await ledger.log.store.clock()
    over = await create_token(ledger, "mine", ("read",), expires_at=now)
    good = await create_token(ledger, "mine", ("read",), expires_at=now + 3_600_000, label="ci")
    assert await outcome(gate, bearing(over), MINE, "read") is AuthenticationError and not await gate.is_valid(over)
    assert await outcome(gate, bearing(good), MINE, "read") == "ci" and await gate.is_valid(good)
    row = await ledger.log.store.token(hash_token(good))
    assert row is not None and await ledger.log.store.drop_token(row.id)
    assert await outcome(gate, bearing(good), MINE, "read") is AuthenticationError and not await gate.is_valid(good)
    assert await gate.is_valid(MAIN) and not await gate.is_valid("") and not await gate.is_valid("\ud800")


async def test_a_cookie_is_ignored_when_cookies_are_disabled(ledger: LocalLedger) -> None:
    """Only a token in the header is accepted."""
    gate = TokenAuthorizer(ledger.log, MAIN, "ann", cookies=False)
    assert await outcome(gate, make_request(cookie=f"{COOKIE}={MAIN}"), MINE, "read") is AuthenticationError
    assert await outcome(gate, bearing(MAIN), MINE, "read") == "ann"


@pytest.mark.parametrize("token", ["", " ", "a b", "a;b", "a\nb", "\u00e9", "a" * 1000, "Z" * 15])
async def test_an_invalid_main_token_is_refused(ledger: LocalLedger, token: str) -> None:
    """An empty token would match any request; the message does not repeat the token."""
    with pytest.raises(InvalidInputError) as refusal:
        TokenAuthorizer(ledger.log, token)
    assert not token.strip() or token not in str(refusal.value)


# In an app


async def look(context: RequestContext) -> Response:
    """One session, by its name."""
    return json_response((await context.session(context.request.path_params["name"])).name)


async def names(context: RequestContext) -> Response:
    """Return the sessions that the caller may see."""
    await context.admit()
    rows = (await context.ledger.sessions()).items
    return json_response(sorted([row.name for row in rows if await RequestAccess(context).may(row.name, "read")]))


async def write(context: RequestContext) -> Response:
    """As if something were written."""
    return json_response((await context.session(context.request.path_params["name"])).name)


ROUTES = [
    Route(method="GET", path="/s/{name}", endpoint=look, about="one"),
    Route(method="POST", path="/s/{name}", endpoint=write, about="write", verb="write"),
    Route(method="GET", path="/s", endpoint=names, about="all"),
]


async def app_of(ledger: LocalLedger, gate: Authorizer) -> Any:
    for row in (MINE, THEIRS):
        await ledger.log.append(row.name, [ev.SessionInfo(owner=row.owner)])
    return build(Server(ledger, gate), ROUTES)


async def test_a_session_outside_the_token_is_404_and_not_listed(ledger: LocalLedger, gate: TokenAuthorizer) -> None:
    """The status and message are those of a missing session."""
    app = await app_of(ledger, gate)
    body = {"authorization": f"Bearer {await create_token(ledger, 'mine', ('read',))}"}
    assert (await get(app, "/s/mine", body)).status == 200
    bodies = [await get(app, f"/s/{name}", body) for name in ("theirs", "nobody")]
    assert {found.status for found in bodies} == {404}
    assert bodies[0].body.replace(b"theirs", b"?") == bodies[1].body.replace(b"nobody", b"?")
    assert json.loads((await get(app, "/s", body)).body) == ["mine"]
    assert json.loads((await get(app, "/s", {"authorization": f"Bearer {MAIN}"})).body) == ["mine", "theirs"]
    assert (await get(app, "/s/mine", body, "POST")).status == 403
    assert (await get(app, "/s/theirs", body, "POST")).status == 404


async def test_an_unauthenticated_request_gets_401_with_www_authenticate(
    ledger: LocalLedger, gate: TokenAuthorizer
) -> None:
    """The response does not repeat the sent token and does not depend on the session."""
    app = await app_of(ledger, gate)
    for path in ("/s", "/s/mine", "/s/nobody"):
        status, headers, body = await get(app, path, {"authorization": "Bearer se-cret", "cookie": f"{COOKIE}=se-cret"})
        assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="callslip"') and b"se-cret" not in body


async def test_a_host_callback_can_decide_by_the_session_owner(
    ledger: LocalLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """Each user sees their own sessions; an error in the callback gives 500 without its text."""

    def admits(request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> str | None:
        user = request.headers["x-user"]
        return user if session is None or session.owner == user else None

    app = await app_of(ledger, CallbackAuthorizer(admits))
    assert json.loads((await get(app, "/s", {"x-user": "ann"})).body) == ["mine"]
    assert (await get(app, "/s/theirs", {"x-user": "ann"})).status == 404
    assert (await get(app, "/s/theirs", {"x-user": "bob"})).status == 200
    status, _, body = await get(app, "/s/theirs", {"authorization": "Bearer se-cret"})
    assert status == 500 and b"x-user" not in body and "se-cret" not in caplog.text


# A host's own people


class Person:
    def __init__(self, name: object) -> None:
        self.name = name

    def __str__(self) -> str:
        return "a person"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("ann", "ann"),
        (Person("ann"), "ann"),
        (Person(""), "a person"),
        (Person(7), "a person"),
        (7, "7"),
        (True, "user"),
        (Principal("ann", "x"), "ann"),
    ],
)
async def test_a_user_that_the_host_returns_is_admitted(value: object, name: str) -> None:
    """For a plain and an async callback; the returned value is kept as the user."""

    async def later(*_: Any) -> object:
        return value

    for admits in (lambda *_: value, later):
        principal = await CallbackAuthorizer(admits).admit(make_request(), MINE, "read")
        assert principal.name == name and (principal.user is value or isinstance(value, Principal))


@pytest.mark.parametrize("nothing", [None, "", 0, False, [], {}])
async def test_a_user_that_the_host_does_not_return_is_refused(nothing: object) -> None:
    """A session is not found; a request without a session is forbidden."""

    async def later(*_: Any) -> object:
        return nothing

    for admits in (lambda *_: nothing, later):
        assert await outcome(CallbackAuthorizer(admits), make_request(), MINE, "read") is NotFoundError
        assert await outcome(CallbackAuthorizer(admits), make_request(), None, "read") is PermissionDeniedError


async def test_the_host_callback_receives_request_session_and_verb() -> None:
    """Owner and labels come from the session record; a list is checked without a session."""
    seen: list[tuple[str, str, str]] = []

    def admits(request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> str | None:
        user = request.headers.get("x-user", "")
        seen.append((user, session.owner if session else "-", verb))
        return user if session is None or session.owner == user else None

    gate = CallbackAuthorizer(admits)
    assert await outcome(gate, make_request(x_user="ann"), MINE, "approve") == "ann"
    assert await outcome(gate, make_request(x_user="ann"), THEIRS, "read") is NotFoundError
    assert await outcome(gate, make_request(x_user="ann"), None, "read") == "ann"
    assert seen == [("ann", "ann", "approve"), ("ann", "bob", "read"), ("ann", "-", "read")]


async def test_an_error_in_the_host_callback_refuses_access() -> None:
    """The error is raised; an HTTPException with 401, 403 or 404 becomes the matching refusal."""

    def broken(*_: Any) -> str:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        await CallbackAuthorizer(broken).admit(make_request(), MINE, "read")
    for status, kind in ((401, AuthenticationError), (403, PermissionDeniedError), (404, NotFoundError)):

        async def refusing(*_: Any, status: int = status) -> str:
            raise HTTPException(status)

        assert await outcome(CallbackAuthorizer(refusing), make_request(), MINE, "read") is kind

    def busy(*_: Any) -> str:
        raise HTTPException(503)

    with pytest.raises(HTTPException):
        await CallbackAuthorizer(busy).admit(make_request(), None, "read")


async def test_allow_all_admits_anonymous_users() -> None:
    """For apps that authorize requests themselves."""
    assert [await outcome(AllowAll(), make_request(), MINE, verb) for verb in VERBS] == ["anonymous"] * 4
