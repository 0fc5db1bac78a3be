"""Who gets what, over real sockets: every route by every kind of token, and two users of a host app by every route."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import callslip
from callslip import http
from callslip.api.access import VERBS
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.formats import registry
from callslip.http.lists import TOPICS
from callslip.model import events as ev
from callslip.model.records import SessionRecord, TokenRecord
from tests.support.live_server import HttpResponse, fetch, requesting, running

pytestmark = pytest.mark.anyio

TO_ALL = {
    "/",
    "/s/{session}",
    "/c/{call}",
    "/inbox",
    "/commands",
    "/callslip.js",
    "/callslip.d.ts",
    "/web/{file}",
    "/web/vendor/{module}",
    "/healthz",
    "/openapi.json",
}
"""What anybody may have: files of the package, a word on the server's health, and how to ask for the rest."""
LISTS = {"GET /v1/sessions", "GET /v1/calls", "GET /v1/approvals", "GET /v1/commands"}
"""What leaves out the sessions that are not theirs, and is there for every reader."""
WHOLE = {"/metrics"}
"""What is about all sessions at once."""
BODIES: dict[str, Any] = {
    "POST /v1/sessions/{session}/events": [{"type": "message.delta", "text": "more", "chunks": "delta"}],
    "POST /v1/calls": {"action": "look"},
    "POST /v1/calls/claim": {},
    "POST /v1/calls/{call}/cancel": {},
    "POST /v1/calls/{call}/result": {"result": "seen", "fence": 1},
    "POST /v1/calls/{call}/heartbeat": {"fence": 1},
    "POST /v1/calls/{call}/release": {"fence": 1},
    "POST /v1/approvals/{approval}": {"decision": "approve"},
    "POST /v1/sessions/{session}/approvals/{approval}": {"decision": "approve"},
    "POST /v1/sessions/{session}/prompt": {"text": "hello"},
}
PROMPT = "POST /v1/sessions/{session}/prompt"
"""What is done only where no turn is under way."""
RUNS = {"POST /v1/calls/{call}/result", "POST /v1/calls/{call}/heartbeat", "POST /v1/calls/{call}/release"}
"""What is done to a command that somebody has claimed."""
SAYS_WHERE = {"POST /v1/calls", "POST /v1/calls/claim"}
"""What names the session in its body."""
CLOSED = [route for route in http.ROUTES if route.verb]
SECRET = "5ecret"


def label(route: http.Route) -> str:
    return f"{route.method} {route.path}"


def body_of(route: http.Route, session: str) -> Any:
    body = BODIES.get(label(route))
    return {**body, "session": session} if label(route) in SAYS_WHERE else body


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


class Things(msgspec.Struct):
    """What lies in a session, by the names that routes have for it."""

    session: str
    call: str
    approval: str
    hash: str
    alias: str = ""
    command: str = ""


async def filled(ledger: LocalLedger, session: str, *, alias: str, large: str) -> Things:
    """A session with a turn, a large output, a running call and a request; its texts hold the secret."""
    created = await ledger.log.append(
        session,
        [
            ev.TurnStarted(turn="t1"),
            ev.MessageUser(text=f"{SECRET} of {session}"),
            ev.CallStarted(call="new:1", tool_name=f"{SECRET}-{session}", aliases=(ev.Alias("openai", alias),)),
        ],
    )
    async with ledger.session(session).call("print", {"n": 1}) as call:
        call.complete(large)
    requests = await ledger.log.append(
        session,
        [
            ev.CallProposed(call="new:2", tool_name="rm", input={"path": f"{SECRET} of {session}"}),
            ev.ApprovalRequested(call="new:2", description=f"{SECRET} of {session}"),
        ],
    )
    command = await ledger.log.append(
        session,
        [
            *(
                ev.CallProposed(
                    call=name, tool_name=f"{SECRET}-{session}", client="default", timeout=60_000, scope="detached"
                )
                for name in ("new:3", "new:4")
            ),
            ev.CallStarted(call="new:3", attempt=1),
        ],
    )
    found = (await ledger.snapshot(session)).entries
    blob = next(entry.blob.hash for entry in found if getattr(entry, "blob", None))  # type: ignore[union-attr]
    ids = created[2].call, requests[-1].approval, blob, alias, command[-1].call  # type: ignore[attr-defined]
    return Things(session, *ids)


async def answers(ledger: LocalLedger, session: str, text: str) -> None:
    """Answer prompts with nothing."""


def large(text: str) -> str:
    return f"{text} " * 20_000


async def send_request(url: str, method: str, headers: dict[str, str], body: Any) -> HttpResponse:
    """An answer; of a stream that begins and has no end, what it begins with."""
    sent = None if body is None else json.dumps(body).encode()
    value = {**headers, **({"content-type": "application/json"} if sent else {})}
    async with requesting(url, method, headers=value, body=sent) as reply:
        if reply.status == 200 and "/v1/stream" in url:
            await reply.until(b"id: ")
        else:
            async for _ in reply.pieces():
                pass
        return reply


# Tokens

MAIN = "the-main-token-of-this-server"


def scopes() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each verb, each two of them and all, for the session, for another, and for all of them."""
    verbs = [*itertools.combinations(VERBS, 1), *itertools.combinations(VERBS, 2), VERBS]
    yield from itertools.product(("mine", "other", ""), verbs)


async def create_token(ledger: LocalLedger, session: str, verbs: tuple[str, ...], fate: str = "") -> str:
    """A token of this scope, and what becomes of it."""
    token = f"{session or 'all'}-{'-'.join(verbs)}-{fate}"
    now = await ledger.log.store.clock()
    row = TokenRecord(
        f"tok_{token}", hash_token(token), token, session, verbs, now, now - 1 if fate == "expired" else 0
    )
    await ledger.log.store.put_token(row)
    return token


async def useless(ledger: LocalLedger) -> list[dict[str, str]]:
    """Headers with no token, or with one that was never any or is none any more."""
    revoked = await create_token(ledger, "mine", VERBS, "revoked")
    assert await ledger.log.store.drop_token(f"tok_{revoked}")
    tokens = ["", "wrong", hash_token(MAIN), MAIN[:-1], await create_token(ledger, "", VERBS, "expired"), revoked]
    body = [{"authorization": f"Bearer {token}".strip()} for token in tokens]
    return [{}, {"authorization": f"Basic {MAIN}"}, *body, *({"cookie": f"callslip={token}"} for token in tokens)]


def within(route: http.Route, session: str, verbs: tuple[str, ...]) -> bool:
    """Whether a token of this scope may ask for the things of the session `mine` by a route."""
    places = {"": True, "mine": route.path not in WHOLE, "other": label(route) in LISTS}
    return route.verb in verbs and places[session]


def address(route: http.Route, things: Things) -> str:
    here = f"?session={things.session}"
    query = {
        "/v1/stream": here,
        "/v1/sessions/{session}/stream": "?follow=false",
        "/pending-queries": here,
        "/v1/find": f"?id={things.call}",
    }
    if label(route) in RUNS:
        things = _named(things, call=things.command)
    return route.path.format(**msgspec.structs.asdict(things)) + query.get(route.path, "")


def test_only_listed_routes_need_no_token() -> None:
    """A new route requires a token, or is in this list."""
    assert {route.path for route in http.ROUTES if route.verb is None} == TO_ALL
    assert not [route for route in http.ROUTES if route.verb is None and route.method != "GET"]


@pytest.mark.parametrize("route", CLOSED, ids=label)
async def test_a_token_without_the_required_scope_is_refused(ledger: LocalLedger, route: http.Route) -> None:
    """A missing, invalid or insufficient token never gets 2xx, reads no secret and changes nothing."""
    things = await filled(ledger, "mine", alias="call_1", large=large("mine"))
    await ledger.log.append("other", [ev.MessageUser(text="hello")])
    before, body = await ledger.log.store.session("mine"), body_of(route, "mine")
    outside = [
        {"authorization": f"Bearer {await create_token(ledger, session, verbs)}"}
        for session, verbs in scopes()
        if not within(route, session, verbs)
    ]
    async with running(http.standalone(ledger, MAIN, answers=answers)) as url:
        for headers in await useless(ledger):
            response = await send_request(url + address(route, things), route.method, headers, body)
            assert response.status == 401, (headers, response.text)
            assert response.headers["content-type"] == "application/problem+json" and SECRET not in response.text
        for headers in outside:
            response = await send_request(url + address(route, things), route.method, headers, body)
            assert response.status in (403, 404), (headers, response.text)
            assert response.headers["content-type"] == "application/problem+json" and SECRET not in response.text
    assert outside and await ledger.log.store.session("mine") == before


@pytest.mark.parametrize("route", CLOSED, ids=label)
async def test_a_token_with_the_required_scope_is_accepted(ledger: LocalLedger, route: http.Route) -> None:
    """The requests refused in the test above succeed with the scope; lists show only the token's session."""
    await ledger.log.append("other", [ev.MessageUser(text="hello")])
    inside = [scope for scope in scopes() if within(route, *scope)]
    async with running(http.standalone(ledger, MAIN, answers=answers)) as url:
        for number, (session, verbs) in enumerate(inside):
            things = await filled(ledger, "mine", alias=f"call_{number}", large=large("mine"))
            if label(route) == PROMPT:
                await ledger.end_turn("mine")
            headers = {"authorization": f"Bearer {await create_token(ledger, session, verbs)}"}
            response = await send_request(url + address(route, things), route.method, headers, body_of(route, "mine"))
            assert response.status in (200, 201, 202, 204), (session, verbs, response.text)
            assert session != "other" or (SECRET not in response.text and "mine" not in response.text)
    assert inside


# Two users of a host

ANN, BOB = {"x-user": "alma"}, {"x-user": "bob"}
PREFIX = "/team/slips"


async def authorize(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
    """A host's own rule: a session belongs to its owner, and any user may create one."""
    user = request.headers.get("x-user", "")
    if not user:
        raise HTTPException(401, "log in first")
    return user if session is None or session.owner in ("", user) else None


@pytest.fixture
async def host(ledger: LocalLedger) -> AsyncIterator[str]:
    app = Starlette(routes=[Mount(PREFIX, callslip.asgi(ledger, authorize=authorize, answers=answers))])
    async with running(app) as url:
        yield url + PREFIX


class World(msgspec.Struct):
    """What Ann has, what Bob has, and names like Ann's of things that never were."""

    ann: Things
    bob: Things
    never: Things
    shared: str

    def hidden(self) -> list[str]:
        """What no response to Bob may contain, unless he sent it himself; all of Ann's texts contain her name."""
        ann = self.ann
        return ["alma", ann.call, ann.approval, ann.hash, ann.command]


@pytest.fixture
async def world(ledger: LocalLedger, host: str) -> World:
    """Each begins a session by posting to it; both have an id in common, and an output."""
    shared = large("the same for both")
    created = dict[str, Things]()
    for user, headers in (("alma", ANN), ("bob", BOB)):
        response = await fetch(f"{host}/v1/sessions/{user}-s/events", "POST", value=_word_bodies(user), headers=headers)
        assert response.status == 201, response.text
        created[user] = await filled(ledger, f"{user}-s", alias=f"call_{user}", large=large(f"{user}'s own"))
        async with ledger.session(f"{user}-s").call("print", {}, alias=("openai", "call_1")) as call:
            call.complete(shared)
    common = next(name for name in await _blobs(ledger, "bob-s") if name != created["bob"].hash)
    assert common in await _blobs(ledger, "alma-s") and created["alma"].hash not in await _blobs(ledger, "bob-s")
    ann = created["alma"]
    never = Things("nil-s", _other(ann.call), _other(ann.approval), "0" * 64, "call_nil", _other(ann.command))
    return World(created["alma"], created["bob"], never, common)


def _word_bodies(user: str) -> list[Any]:
    return [{"type": "session.info", "title": f"what {user} does"}]


async def _blobs(ledger: LocalLedger, session: str) -> set[str]:
    entries = (await ledger.snapshot(session)).entries
    return {entry.blob.hash for entry in entries if getattr(entry, "blob", None)}  # type: ignore[union-attr]


def _other(identity: str) -> str:
    """An id of the same shape that nothing has."""
    start, _, rest = identity.partition("_")
    return f"{start}_{rest[::-1]}"


QUERIES: dict[str, list[str]] = {
    "/v1/sessions/{session}": [
        "",
        *(f"?format={name}" for name in ["nonsense", *registry.exportable()]),
        *("?at=1", "?at=999999", "?limit=1", "?cursor=1", "?cursor=x", "?wait=0.01", "?wait=999", "?nonsense=1"),
    ],
    "/v1/sessions/{session}/stream": [
        "",
        *(f"?format={name}" for name in sorted({"events", "entries", "nonsense", *registry.streamable()})),
        *("?after=1", "?after=999999", "?turn=t1&format=ui-v6", "?limit=1", "?follow=false"),
    ],
    "/v1/sessions/{session}/approvals/{approval}": [""],
    "/v1/sessions/{session}/prompt": ["", "?nonsense=1"],
    "/v1/sessions/{session}/prompt/stop": ["", "?nonsense=1"],
    "/v1/calls": [
        *("?session={session}", "?session={session}&q={call}", "?session={session}&limit=1", "?cursor={call}"),
        *("?q={call}", "?q={session}", "?q={alias}", "?tool=5ecret-{session}", "?status=running&q={session}"),
    ],
    "/v1/calls/{call}": [
        "",
        *("?session={session}", "?session=bob-s", "?wait=0.01", "?session={session}&wait=0.01"),
        *("?format=command", "?format=command&wait=0.01"),
    ],
    "/v1/calls/{call}/cancel": ["", "?session={session}", "?session=bob-s"],
    "/v1/calls/{call}/result": ["", "?session={session}", "?session=bob-s"],
    "/v1/calls/{call}/heartbeat": ["", "?session={session}", "?session=bob-s"],
    "/v1/calls/{call}/release": ["", "?session={session}", "?session=bob-s"],
    "/v1/commands": ["?client={session}", "?client={alias}"],
    "/pending-queries": ["?session={session}", "?session={session}&client=x"],
    "/v1/approvals": ["?session={session}", "?session={session}&state=", "?session={session}&limit=1"],
    "/v1/approvals/{approval}": [""],
    "/v1/blobs/{hash}": ["", "?nonsense=1"],
    "/v1/find": ["?id={session}", "?id={call}", "?id={approval}", "?id={alias}", "?id={call}&session={session}"],
    "/v1/stream": [
        *("?session={session}", "?session=bob-s&session={session}", "?session={session}&topic=inbox"),
        *("?session={session}&after={session}:1", "?session={session}&after={session}:999999"),
    ],
}
"""What Bob says after each path: all of it names something of Ann's, or something that never was."""
APART = {"GET /v1/sessions", "POST /v1/sessions/{session}/events", "GET /metrics", *SAYS_WHERE}
"""What has tests of its own below."""
HEADERS: list[dict[str, str]] = [
    {},
    {"last-event-id": "1"},
    {"last-event-id": "alma-s:1"},
    {"if-none-match": "*"},
    {"range": "bytes=0-1"},
]


Way = tuple[str, Things]


def ways(route: http.Route, world: World) -> Iterator[tuple[Way, Way]]:
    """Addresses of what is Ann's and the names in them, each with one like it of what never was."""
    pairs = [
        (world.ann, world.never),
        *((_named(world.ann, call=one), _named(world.never, call=two)) for one, two in _call_names(world)),
        (_named(world.ann, call=world.ann.command), _named(world.never, call=world.never.command)),
        (_named(world.ann, approval=world.ann.approval[:-4]), _named(world.never, approval=world.never.approval[:-4])),
        (_named(world.ann, session="bob-s"), _named(world.never, session="bob-s")),
        (_named(world.ann, approval=world.bob.approval), _named(world.never, approval=world.bob.approval)),
    ]
    for (there, nothing), query in itertools.product(pairs, QUERIES[route.path]):
        one, two = ((route.path + query).format(**msgspec.structs.asdict(names)) for names in (there, nothing))
        if one != two:
            yield (one, there), (two, nothing)


def _named(things: Things, **names: str) -> Things:
    return msgspec.structs.replace(things, **names)


def _call_names(world: World) -> list[tuple[str, str]]:
    """Ids that mean Ann's call: what its producer called it, and the beginning of its own."""
    return [(world.ann.alias, world.never.alias), (world.ann.call[:-3], world.never.call[:-3])]


def _alike(response: HttpResponse, names: Things) -> tuple[int, dict[str, str], str]:
    """An answer without the names that were asked for."""
    text = response.text
    for name in msgspec.structs.asdict(names).values():
        text = text.replace(repr(name), "?").replace(f'"correlation_id":"{name}"', "?")
    return response.status, {name: value for name, value in response.headers.items() if name != "content-length"}, text


def test_every_protected_route_has_a_cross_user_test_case() -> None:
    """A new route must define how Bob requests Ann's data there."""
    assert {route.path for route in CLOSED} == {*QUERIES, *(name.partition(" ")[2] for name in APART)}


@pytest.mark.parametrize("route", [route for route in CLOSED if label(route) not in APART], ids=label)
async def test_data_of_another_user_looks_like_missing_data(
    ledger: LocalLedger, host: str, world: World, route: http.Route
) -> None:
    """For every id, parameter, format and cursor the response is that for a missing record."""
    before = await ledger.log.store.session("alma-s")
    body = BODIES.get(label(route))
    for (one, there), (two, nothing) in ways(route, world):
        for headers in HEADERS:
            response = _alike(await send_request(host + one, route.method, BOB | headers, body), there)
            assert response == _alike(await send_request(host + two, route.method, BOB | headers, body), nothing), (
                one,
                headers,
            )
            assert response[0] in (400, 404) or (label(route) in LISTS and response[0] == 200), (one, headers, response)
            assert not [name for name in world.hidden() if name in str(response)], (one, headers, response)
    assert await ledger.log.store.session("alma-s") == before


@pytest.mark.parametrize("route", [route for route in CLOSED if label(route) not in APART], ids=label)
async def test_a_user_can_access_their_own_data(
    ledger: LocalLedger, host: str, world: World, route: http.Route
) -> None:
    """The same requests return Bob's own data, so the route itself works; without a user they get 401."""
    place = host + address(route, world.bob)
    if label(route) == PROMPT:
        await ledger.end_turn("bob-s")
    assert (await send_request(place, route.method, {}, body_of(route, "bob-s"))).status == 401
    response = await send_request(place, route.method, BOB, body_of(route, "bob-s"))
    assert response.status in (200, 202, 204), response.text
    assert not [name for name in world.hidden() if name in response.text]


async def test_a_call_id_shared_by_two_users_resolves_to_the_callers_own_call(host: str, world: World) -> None:
    """Each user has one of the two calls with this id, so it is ambiguous for neither."""
    for user, headers in (("alma", ANN), ("bob", BOB)):
        response = (await fetch(f"{host}/v1/calls/call_1", headers=headers)).json()
        assert (response["session"], response["toolCallId"]) == (f"{user}-s", "call_1")


async def test_a_shared_blob_is_readable_while_the_users_session_references_it(
    ledger: LocalLedger, host: str, world: World
) -> None:
    """Bob loses access when his session is deleted; Ann keeps it."""
    for headers in (ANN, BOB):
        assert (await fetch(f"{host}/v1/blobs/{world.shared}", headers=headers)).text == large("the same for both")
    await ledger.log.store.delete("bob-s")
    assert (await fetch(f"{host}/v1/blobs/{world.shared}", headers=ANN)).status == 200
    assert (await fetch(f"{host}/v1/blobs/{world.shared}", headers=BOB)).status == 404


async def test_an_id_prefix_matches_only_the_callers_own_calls(ledger: LocalLedger, host: str, world: World) -> None:
    """A short prefix matches and lists only the caller's own records."""
    response = await fetch(f"{host}/v1/calls/exec_", headers=BOB)
    assert response.status == 409 and {row["session"] for row in response.json()["current"]} == {"bob-s"}
    assert not [name for name in world.hidden() if name in response.text]


async def test_the_first_writer_owns_a_session_and_other_users_get_404(
    ledger: LocalLedger, host: str, world: World
) -> None:
    """A post to another user's session gets the 404 of a missing session and changes nothing."""
    for user in ("alma", "bob"):
        row = await ledger.log.store.session(f"{user}-s")
        assert row is not None and row.owner == user
    before = await ledger.log.store.session("alma-s")
    never = (await fetch(f"{host}/v1/sessions/nil-s", headers=BOB)).text.replace("nil-s", "alma-s")
    for query in ("", *(f"?format={name}" for name in registry.readable()), "?end=true", "?nonsense=1"):
        for key in ({}, {"idempotency-key": "k"}):
            response = await fetch(
                f"{host}/v1/sessions/alma-s/events{query}", "POST", value=_word_bodies("bob"), headers=BOB | key
            )
            assert (response.status, response.text) == (404, never)
    body = [{"type": "session.info", "owner": "bob"}]
    assert (await fetch(f"{host}/v1/sessions/alma-s/events", "POST", value=body, headers=BOB)).status == 404
    assert (await fetch(f"{host}/v1/sessions/alma-s/events", "POST", value=body, headers=ANN)).status == 400
    assert await ledger.log.store.session("alma-s") == before


async def test_submitting_or_claiming_in_a_session_of_another_user_is_refused(
    ledger: LocalLedger, host: str, world: World
) -> None:
    """Bob can neither submit to Ann's session nor claim from it, with or without its name."""
    before = await ledger.log.store.session("alma-s")
    for path in ("/v1/calls", "/v1/calls/claim"):
        body = {"action": "look"} if path == "/v1/calls" else {}
        response = await fetch(f"{host}{path}", "POST", value={**body, "session": "alma-s"}, headers=BOB)
        assert response.status == 404 and "alma" not in response.text.replace("alma-s", "")
    assert (await fetch(f"{host}/v1/calls/claim", "POST", value={"session": "nil-s"}, headers=BOB)).status == 404
    assert (await fetch(f"{host}/v1/calls/claim", "POST", value={}, headers=BOB)).json()["session"] == "bob-s"
    assert (await fetch(f"{host}/v1/calls/claim", "POST", value={}, headers=BOB)).status == 204
    assert (await fetch(f"{host}/pending-queries", headers=BOB)).json() == {"queries": []}
    assert await ledger.log.store.session("alma-s") == before
    assert (await fetch(f"{host}/v1/calls/claim", "POST", value={}, headers=ANN)).json()["session"] == "alma-s"


async def test_a_session_created_by_a_command_belongs_to_the_submitter(ledger: LocalLedger, host: str) -> None:
    """For other users the session does not exist."""
    first = await fetch(f"{host}/v1/calls", "POST", value={"action": "look", "session": "new"}, headers=BOB)
    assert first.status == 202
    row = await ledger.log.store.session("new")
    assert row is not None and row.owner == "bob"
    response = await fetch(f"{host}/v1/calls", "POST", value={"action": "look", "session": "new"}, headers=ANN)
    assert response.status == 404


async def test_an_approval_decision_records_the_authenticated_user(host: str, world: World) -> None:
    """`by` is the user that the host returned, not a value of the body or a header."""
    place = f"{host}/v1/approvals/{world.bob.approval}"
    assert (await fetch(place, "POST", value={"decision": "deny", "by": "alma"}, headers=BOB)).status == 400
    response = await fetch(place, "POST", value={"decision": "deny"}, headers=BOB)
    assert (response.status, response.json()["by"]) == (200, "bob")


# Lists


async def every(place: str, name: str, key: str, limit: int) -> list[Any]:
    """All pages of a list, each of which is full but the last."""
    found, cursor = list[Any](), ""
    while True:
        page = (await fetch(f"{place}&limit={limit}&cursor={cursor}", headers=BOB)).json()
        found += [row[key] for row in page[name]]
        cursor = page["cursor"]
        if not cursor:
            return found
        assert len(page[name]) == limit


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_are_full_and_contain_only_the_callers_own_records(
    ledger: LocalLedger, host: str, world: World, limit: int
) -> None:
    """Every page is full, nothing is missing or repeated, and the last page has no cursor."""
    for number in range(4):
        for user in ("alma", "bob", "alma"):
            await filled(ledger, f"{user}-{number}", alias="call_2", large=large("x x x"))
            await ledger.log.append(f"{user}-{number}", [ev.SessionInfo(owner=user)])
    await ledger.log.append("alma-s", [ev.MessageUser(text="the last word")])
    names = {"bob-s", *(f"bob-{number}" for number in range(4))}
    found = await every(f"{host}/v1/sessions?prefix=", "sessions", "session", limit)
    assert len(found) == len(set(found)) and set(found) == names
    assert await every(f"{host}/v1/sessions?prefix=alma", "sessions", "session", limit) == []
    theirs = [row.id for row in (await ledger.log.store.calls(limit=1000)).items if row.session in names]
    assert await every(f"{host}/v1/calls?tool=", "calls", "call", limit) == theirs
    assert await every(f"{host}/v1/calls?q=alma", "calls", "call", limit) == []
    waiting = (await fetch(f"{host}/v1/approvals?limit=1000", headers=BOB)).json()["approvals"]
    assert len(waiting) == 5 and {row["session"] for row in waiting} == names


async def test_the_last_page_has_no_cursor_if_only_other_users_records_follow(ledger: LocalLedger, host: str) -> None:
    """A cursor to an empty page would reveal that other users have older calls."""
    for user in ("alma", "bob"):
        await ledger.log.append(f"{user}-s", [ev.SessionInfo(owner=user), ev.CallStarted(call="new:1", tool_name="t")])
    response = await fetch(f"{host}/v1/calls?limit=1", headers=BOB)
    assert [row["session"] for row in response.json()["calls"]] == ["bob-s"] and response.json()["cursor"] == ""


async def test_a_topic_stream_contains_only_the_callers_own_changes(
    ledger: LocalLedger, host: str, world: World
) -> None:
    """Changes of other users appear neither in the snapshot nor in later frames."""
    topics = "&".join(f"topic={name}" for name in TOPICS)
    async with requesting(f"{host}/v1/stream?session=bob-s&{topics}", headers=BOB) as reply:
        await reply.until(b"id: ")
        await filled(ledger, "alma-s", alias="call_3", large=large("more"))
        await ledger.log.append("bob-s", [ev.SessionInfo(title="and so on")])
        seen = await reply.until(b"and so on")
        assert not [name for name in world.hidden() if name.encode() in seen] and b"bob-s" in seen


async def test_metrics_require_read_access_to_all_sessions(ledger: LocalLedger, host: str) -> None:
    """A count of all calls would reveal the activity of other users."""
    assert (await fetch(f"{host}/metrics")).status == 401
    assert (await fetch(f"{host}/metrics", headers=BOB)).status == 403

    async def root(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str:
        return "root"

    async with running(callslip.asgi(ledger, authorize=root)) as url:
        assert (await fetch(f"{url}/metrics")).status == 200
