"""Test access over real sockets: every route with every kind of token, and with two users of a host application."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import callslip
from callslip import http
from callslip.api import rules
from callslip.api.access import VERBS, Verb
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.formats import registry
from callslip.http.lists import TOPICS
from callslip.model import events as ev
from callslip.model.records import RuleRecord, SessionRecord, TokenRecord
from callslip.settings import Settings
from tests.support.live_server import HttpResponse, fetch, requesting, running

pytestmark = pytest.mark.anyio

PUBLIC_PATHS = {
    "/v1/sign-in",
    "/",
    "/s/{session}",
    "/c/{call}",
    "/inbox",
    "/commands",
    "/rules",
    "/search",
    "/usage",
    "/callslip.js",
    "/callslip.d.ts",
    "/web/{file}",
    "/web/vendor/{module}",
    "/healthz",
    "/openapi.json",
}
"""Paths that need no token: files of the package, the health check and the API description."""
LIST_ROUTES = {
    "GET /v1/sessions",
    "GET /v1/calls",
    "GET /v1/approvals",
    "GET /v1/commands",
    "GET /v1/search",
    "GET /v1/usage",
    "GET /v1/rights",
}
"""Routes that every reader may use, but that leave out the sessions of others."""
GLOBAL_PATHS = {"/metrics"}
"""Paths whose response is about all sessions."""
RULE = {"action": "deny", "filters": {"tool": "rm"}, "scope": "session", "scopeValue": "{session}"}
BODIES: dict[str, Any] = {
    "POST /v1/sessions/{session}/events": [{"type": "message.delta", "text": "more", "chunks": "delta"}],
    "POST /v1/calls": {"action": "look", "session": "{session}"},
    "POST /v1/calls/claim": {"session": "{session}"},
    "POST /v1/calls/{call}/cancel": {},
    "POST /v1/calls/{call}/result": {"result": "seen", "fence": 1},
    "POST /v1/calls/{call}/heartbeat": {"fence": 1},
    "POST /v1/calls/{call}/release": {"fence": 1},
    "POST /v1/approvals/{approval}": {"decision": "approve"},
    "POST /v1/sessions/{session}/approvals/{approval}": {"decision": "approve"},
    "POST /v1/approvals/answers": [{"id": "{approval}", "inputHash": "{input_hash}", "action": "approve"}],
    "POST /v1/rules": RULE,
    "POST /v1/rules/preview": RULE,
    "POST /v1/rules/test": {"command": "git log", "session": "{session}"},
    "POST /v1/sessions/{session}/prompt": {"text": "hello"},
}
"""The bodies of requests, with the names of `SessionIds` in braces."""
PROMPT = "POST /v1/sessions/{session}/prompt"
"""The route that is refused while a turn is in progress."""
CLAIMED_ROUTES = {"POST /v1/calls/{call}/result", "POST /v1/calls/{call}/heartbeat", "POST /v1/calls/{call}/release"}
"""Routes for a command that was claimed."""
DELETE = "DELETE /v1/sessions/{session}"
"""The route that no verb of a token is enough for; it is tested in test_session_lists.py."""
SESSION_IN_BODY = {"POST /v1/calls", "POST /v1/calls/claim"}
"""Routes for commands whose request body has the name of the session."""
PROTECTED_ROUTES = [route for route in http.ROUTES if route.verb]
SECRET = "5ecret"


def label(route: http.Route) -> str:
    return f"{route.method} {route.path}"


def make_body(route: http.Route, ids: SessionIds) -> Any:
    """Return the body of a request of a route for the contents of a session."""
    text = json.dumps(BODIES.get(label(route)))
    for name, value in msgspec.structs.asdict(ids).items():
        text = text.replace(f"{{{name}}}", value)
    return json.loads(text)


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


class SessionIds(msgspec.Struct):
    """A session and ids of its contents, by the parameter names of the routes."""

    session: str
    call: str
    approval: str
    hash: str
    alias: str = ""
    command: str = ""
    rule: str = ""
    input_hash: str = ""
    """The hash of the arguments that the approval is about."""


async def fill_session(ledger: LocalLedger, session: str, *, alias: str, large: str) -> SessionIds:
    """Add a turn, a large output, a running call, a request, two commands and a rule. Their texts have the secret."""
    started = await ledger.log.append(
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
    commands = await ledger.log.append(
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
    entries = (await ledger.snapshot(session)).entries
    blob = next(entry.blob.hash for entry in entries if getattr(entry, "blob", None))  # type: ignore[union-attr]
    ids = started[2].call, requests[-1].approval, blob, alias, commands[-1].call  # type: ignore[attr-defined]
    rule = await save_rule(ledger, "session", session, {"tool": f"{SECRET}-{session}"}, f"{SECRET} of {session}")
    input_hash = (await ledger.find_approval(ids[1])).input_hash
    assert input_hash
    return SessionIds(session, *ids, rule.id, input_hash)


async def save_rule(
    ledger: LocalLedger, scope: rules.Scope, value: str, filters: dict[str, Any], reason: str
) -> RuleRecord:
    """Save a rule that denies."""
    rule = rules.NewRule(action="deny", filters=filters, scope=scope, scope_value=value, reason=reason)
    return await rules.save_rule(ledger.log, rule)


async def read_state(ledger: LocalLedger, session: str) -> tuple[SessionRecord | None, list[RuleRecord]]:
    """Return what a request changes: a session, whose record has its last event, and its rules."""
    return await ledger.log.store.session(session), await rules.list_rules(ledger.log, session=session)


async def ignore_prompt(ledger: LocalLedger, session: str, text: str) -> None:
    """Accept a prompt without an answer."""


def make_large(text: str) -> str:
    """Return a text that is stored as a blob."""
    return f"{text} " * 20_000


async def send_request(url: str, method: str, headers: dict[str, str], body: Any) -> HttpResponse:
    """Return the response, or only the beginning of a stream that does not end."""
    content = None if body is None else json.dumps(body).encode()
    all_headers = {**headers, **({"content-type": "application/json"} if content else {})}
    async with requesting(url, method, headers=all_headers, body=content) as reply:
        if reply.status == 200 and "/v1/stream" in url:
            await reply.until(b"id: ")
        else:
            async for _ in reply.pieces():
                pass
        return reply


# Tokens

MAIN = "the-main-token-of-this-server"


def scopes() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each verb, each pair of verbs and all verbs, for the session `mine`, for `other` and for all sessions."""
    verbs = [*itertools.combinations(VERBS, 1), *itertools.combinations(VERBS, 2), VERBS]
    yield from itertools.product(("mine", "other", ""), verbs)


async def create_token(ledger: LocalLedger, session: str, verbs: tuple[str, ...], condition: str = "") -> str:
    """Store a token with this scope and return it. The condition is part of its text; only `expired` has an effect."""
    token = f"{session or 'all'}-{'-'.join(verbs)}-{condition}"
    now = await ledger.log.store.clock()
    row = TokenRecord(
        f"tok_{token}", hash_token(token), token, session, verbs, now, now - 1 if condition == "expired" else 0
    )
    await ledger.log.store.put_token(row)
    return token


async def list_invalid_headers(ledger: LocalLedger) -> list[dict[str, str]]:
    """Return headers without a token, or with an unknown, expired or revoked one."""
    revoked = await create_token(ledger, "mine", VERBS, "revoked")
    assert await ledger.log.store.drop_token(f"tok_{revoked}")
    tokens = ["", "wrong", hash_token(MAIN), MAIN[:-1], await create_token(ledger, "", VERBS, "expired"), revoked]
    bearers = [{"authorization": f"Bearer {token}".strip()} for token in tokens]
    return [{}, {"authorization": f"Basic {MAIN}"}, *bearers, *({"cookie": f"callslip={token}"} for token in tokens)]


def is_allowed(route: http.Route, session: str, verbs: tuple[str, ...]) -> bool:
    """Return whether a token with this scope may request data of the session `mine` by a route."""
    is_included = {"": True, "mine": route.path not in GLOBAL_PATHS, "other": label(route) in LIST_ROUTES}
    return route.verb in verbs and is_included[session]


def make_path(route: http.Route, ids: SessionIds) -> str:
    """Return the path and query of a route for the contents of a session."""
    by_session = f"?session={ids.session}"
    query = {
        "GET /v1/stream": by_session,
        "GET /v1/sessions/{session}/stream": "?follow=false",
        "GET /pending-queries": by_session,
        "GET /v1/find": f"?id={ids.call}",
        "GET /v1/rules": by_session,
        "GET /v1/rights": by_session,
    }
    if label(route) in CLAIMED_ROUTES:
        ids = _replace_ids(ids, call=ids.command)
    return route.path.format(**msgspec.structs.asdict(ids)) + query.get(label(route), "")


def test_only_listed_routes_need_no_token() -> None:
    """A new route requires a token, or is in this list."""
    assert {route.path for route in http.ROUTES if route.verb is None} == PUBLIC_PATHS
    writing = [route.path for route in http.ROUTES if route.verb is None and route.method != "GET"]
    assert writing == ["/v1/sign-in"], "it needs a sign-in code"


@pytest.mark.parametrize("route", PROTECTED_ROUTES, ids=label)
async def test_a_token_without_the_required_scope_is_refused(ledger: LocalLedger, route: http.Route) -> None:
    """A missing, invalid or insufficient token never gets 2xx, reads no secret and changes nothing."""
    ids = await fill_session(ledger, "mine", alias="call_1", large=make_large("mine"))
    await ledger.log.append("other", [ev.MessageUser(text="hello")])
    before, body = await read_state(ledger, "mine"), make_body(route, ids)
    refused_headers = [
        {"authorization": f"Bearer {await create_token(ledger, session, verbs)}"}
        for session, verbs in scopes()
        if not is_allowed(route, session, verbs)
    ]
    async with running(http.standalone(ledger, MAIN, answers=ignore_prompt)) as url:
        for headers in await list_invalid_headers(ledger):
            response = await send_request(url + make_path(route, ids), route.method, headers, body)
            assert response.status == 401, (headers, response.text)
            assert response.headers["content-type"] == "application/problem+json" and SECRET not in response.text
        for headers in refused_headers:
            response = await send_request(url + make_path(route, ids), route.method, headers, body)
            assert response.status in (403, 404), (headers, response.text)
            assert response.headers["content-type"] == "application/problem+json" and SECRET not in response.text
    assert refused_headers and await read_state(ledger, "mine") == before


@pytest.mark.parametrize("route", [route for route in PROTECTED_ROUTES if label(route) != DELETE], ids=label)
async def test_a_token_with_the_required_scope_is_accepted(ledger: LocalLedger, route: http.Route) -> None:
    """The requests refused in the test above succeed with the scope; lists show only the token's session."""
    await ledger.log.append("other", [ev.MessageUser(text="hello")])
    allowed_scopes = [scope for scope in scopes() if is_allowed(route, *scope)]
    async with running(http.standalone(ledger, MAIN, answers=ignore_prompt)) as url:
        for number, (session, verbs) in enumerate(allowed_scopes):
            ids = await fill_session(ledger, "mine", alias=f"call_{number}", large=make_large("mine"))
            if label(route) == PROMPT:
                await ledger.end_turn("mine")
            headers = {"authorization": f"Bearer {await create_token(ledger, session, verbs)}"}
            response = await send_request(url + make_path(route, ids), route.method, headers, make_body(route, ids))
            assert response.status in (200, 201, 202, 204), (session, verbs, response.text)
            assert session != "other" or (SECRET not in response.text and "mine" not in response.text)
    assert allowed_scopes


SHARED_RULES: list[tuple[str, str, Any]] = [
    ("GET", "/v1/rules", None),
    *(
        ("POST", path, {**RULE, "reason": SECRET, **scope})
        for path in ("/v1/rules", "/v1/rules/preview")
        for scope in ({"scope": "everywhere", "scopeValue": ""}, {"scope": "project", "scopeValue": "/p"})
    ),
    ("POST", "/v1/rules/test", {"command": "git log", "project": "/p"}),
    ("POST", "/v1/rules/test", {"command": "git log"}),
    ("DELETE", "/v1/rules/{everywhere}", None),
    ("DELETE", "/v1/rules/{project}", None),
]
"""Requests about rules for more than one session."""


@pytest.mark.parametrize(("method", "path", "body"), SHARED_RULES)
async def test_only_a_token_for_all_sessions_uses_rules_for_more_than_one(
    ledger: LocalLedger, method: str, path: str, body: Any
) -> None:
    """A token for one session can neither see, write nor revoke them; one for all sessions can if it may approve."""
    await fill_session(ledger, "mine", alias="call_1", large=make_large("mine"))
    await ledger.log.append("other", [ev.MessageUser(text="hello")])
    async with running(http.standalone(ledger, MAIN)) as url:
        for session, verbs in scopes():
            saved = {
                "everywhere": (await save_rule(ledger, "everywhere", "", {"tool": "x"}, SECRET)).id,
                "project": (await save_rule(ledger, "project", "/p", {"tool": "x"}, SECRET)).id,
            }
            before = await rules.list_rules(ledger.log)
            headers = {"authorization": f"Bearer {await create_token(ledger, session, verbs)}"}
            response = await send_request(url + path.format(**saved), method, headers, body)
            if not session and "approve" in verbs:
                assert response.status in (200, 201), (verbs, response.text)
                assert method != "GET" or all(rule in response.text for rule in saved.values())
                changes = 1 if method == "POST" and path == "/v1/rules" else -1 if method == "DELETE" else 0
                assert len(await rules.list_rules(ledger.log)) == len(before) + changes
                continue
            assert response.status in (403, 404), (session, verbs, response.text)
            assert SECRET not in response.text and await rules.list_rules(ledger.log) == before


@pytest.mark.parametrize(("session", "verbs"), list(scopes()))
async def test_a_page_asks_what_its_user_may_do(ledger: LocalLedger, session: str, verbs: tuple[Verb, ...]) -> None:
    """RUL14: `GET /v1/rights` says in which sessions a token has which rights, as the other routes apply them."""
    requests = {name: await fill_session(ledger, name, alias="c", large=make_large(name)) for name in ("mine", "other")}
    token = await create_token(ledger, session, verbs)
    headers = {"authorization": f"Bearer {token}"}
    async with running(http.standalone(ledger, MAIN)) as url:
        response = await fetch(f"{url}/v1/rights?session=mine&session=other&session=nil", headers=headers)
        if "read" not in verbs:
            assert response.status == 403
            return
        rights = response.json()
        assert rights["name"] == token and rights["everywhere"] == ([] if session else sort_verbs(verbs))
        names = [session] if session else ["mine", "other"]
        assert rights["sessions"] == {name: sort_verbs(verbs) for name in names}
        for name, ids in requests.items():
            answer = await fetch(
                f"{url}/v1/approvals/{ids.approval}", "POST", value={"decision": "deny"}, headers=headers
            )
            may_answer = "approve" in rights["sessions"].get(name, [])
            assert answer.status == (200 if may_answer else 404 if session not in ("", name) else 403)
            assert not may_answer or answer.json()["by"] == rights["name"]
        too_many = await fetch(f"{url}/v1/rights?{'&'.join(f'session=s{n}' for n in range(201))}", headers=headers)
        assert too_many.status == 400


def sort_verbs(verbs: tuple[str, ...]) -> list[str]:
    return [verb for verb in VERBS if verb in verbs]


async def test_the_policy_file_is_listed_for_those_who_may_approve_everywhere(tmp_path: Path) -> None:
    """RUL14: with the lines of its rules, over HTTP and for `callslip.connect`; one session gets none."""
    file = tmp_path / "policy.toml"
    file.write_text(f'\n[[rule]]\naction = "deny"\ntool = "{SECRET}"\nreason = "never"\n')
    settings = Settings(policy_file=str(file))
    async with await callslip.open("sqlite:///:memory:", settings) as ledger:
        await ledger.log.append("mine", [ev.MessageUser(text="hello")])
        async with running(http.standalone(ledger, MAIN)) as url:
            own = await create_token(ledger, "mine", VERBS)
            response = await fetch(f"{url}/v1/rules?session=mine", headers={"authorization": f"Bearer {own}"})
            assert response.json() == {"rules": [], "policy": None}
            everywhere = await create_token(ledger, "", ("approve",))
            async with callslip.connect(url, token=everywhere) as remote:
                policy = await remote.rules.policy()
                assert policy == await ledger.rules.policy() and policy is not None
                assert (policy.file, policy.problem, [rule.line for rule in policy.rules]) == (str(file), "", [2])
                decision = await remote.rules.test(callslip.RuleTest(tool_name=SECRET))
                assert (decision.action, decision.rules, decision.reason) == ("deny", ["policy:1"], "never")


# Two users of a host

# A name that occurs in no other text, unlike `ann`.
ANN, BOB = {"x-user": "alma"}, {"x-user": "bob"}
PREFIX = "/team/slips"


async def authorize(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
    """Allow users to create sessions and to access only their own, as a host application would."""
    user = request.headers.get("x-user", "")
    if not user:
        raise HTTPException(401, "log in first")
    return user if session is None or session.owner in ("", user) else None


@pytest.fixture
async def host(ledger: LocalLedger) -> AsyncIterator[str]:
    """Yield the URL of Callslip in a host application."""
    app = Starlette(routes=[Mount(PREFIX, callslip.asgi(ledger, authorize=authorize, answers=ignore_prompt))])
    async with running(app) as url:
        yield url + PREFIX


class TwoUsers(msgspec.Struct):
    """The sessions of Ann and Bob, ids like those of Ann that do not exist, and the hash of an output of both."""

    ann: SessionIds
    bob: SessionIds
    missing: SessionIds
    shared_hash: str

    def hidden_texts(self) -> list[str]:
        """Return what no response to Bob may contain unless he sent it. All texts of Ann contain `alma`."""
        ann = self.ann
        return ["alma", ann.call, ann.approval, ann.hash, ann.command, ann.rule, ann.input_hash]


@pytest.fixture
async def users(ledger: LocalLedger, host: str) -> TwoUsers:
    """Create a session of each user by a post to it. Both sessions have the same call id and the same large output."""
    shared_output = make_large("the same for both")
    sessions = dict[str, SessionIds]()
    for user, headers in (("alma", ANN), ("bob", BOB)):
        response = await fetch(f"{host}/v1/sessions/{user}-s/events", "POST", value=_make_events(user), headers=headers)
        assert response.status == 201, response.text
        sessions[user] = await fill_session(
            ledger, f"{user}-s", alias=f"call_{user}", large=make_large(f"{user}'s own")
        )
        async with ledger.session(f"{user}-s").call("print", {}, alias=("openai", "call_1")) as call:
            call.complete(shared_output)
    ann, bob = sessions["alma"], sessions["bob"]
    shared_hash = next(name for name in await _list_blobs(ledger, "bob-s") if name != bob.hash)
    assert shared_hash in await _list_blobs(ledger, "alma-s") and ann.hash not in await _list_blobs(ledger, "bob-s")
    ids = _unused_id(ann.call), _unused_id(ann.approval), "0" * 64, "call_nil", _unused_id(ann.command)
    missing = SessionIds("nil-s", *ids, _unused_id(ann.rule), ann.input_hash[::-1])
    return TwoUsers(ann, bob, missing, shared_hash)


def _make_events(user: str) -> list[Any]:
    return [{"type": "session.info", "title": f"what {user} does"}]


async def _list_blobs(ledger: LocalLedger, session: str) -> set[str]:
    entries = (await ledger.snapshot(session)).entries
    return {entry.blob.hash for entry in entries if getattr(entry, "blob", None)}  # type: ignore[union-attr]


def _unused_id(identity: str) -> str:
    """Return an id of the same shape that does not exist."""
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
    "/v1/sessions/{session}/entries": ["", "?q=5ecret", "?at=1", "?limit=1", "?cursor=x", "?nonsense=1"],
    "/v1/sessions/{session}/approvals/{approval}": [""],
    "/v1/sessions/{session}/prompt": ["", "?nonsense=1"],
    "/v1/sessions/{session}/prompt/stop": ["", "?nonsense=1"],
    "/v1/calls": [
        *("?session={session}", "?session={session}&q={call}", "?session={session}&limit=1", "?cursor={call}"),
        *("?q={call}", "?q={session}", "?q={alias}", "?tool=5ecret-{session}", "?status=running&q={session}"),
    ],
    "/v1/search": [
        *("?q=5ecret&session={session}", "?q=5ecret&session={session}&limit=1", "?q=5ecret&project={session}"),
        "?q=5ecret&cursor=%5B9,9,%22{session}%22,1%5D",
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
    "/v1/approvals/{approval}/rule": ["", "?nonsense=1"],
    "/v1/approvals/{approval}/offer": ["", "?nonsense=1"],
    "/v1/approvals/answers": ["", "?nonsense=1"],
    "/v1/rights": ["?session={session}", "?session={session}&session=bob-s", "?session={session}&nonsense=1"],
    "/v1/rules": ["", "?session={session}", "?session={session}&nonsense=1"],
    "/v1/rules/{rule}": ["", "?session={session}"],
    "/v1/rules/preview": ["", "?session={session}"],
    "/v1/rules/test": ["", "?session={session}"],
    "/v1/blobs/{hash}": ["", "?nonsense=1"],
    "/v1/usage": ["?session={session}", "?session={session}&by=turn", "?session={session}&by=session"],
    "/v1/find": ["?id={session}", "?id={call}", "?id={approval}", "?id={alias}", "?id={call}&session={session}"],
    "/v1/stream": [
        *("?session={session}", "?session=bob-s&session={session}", "?session={session}&topic=inbox"),
        *("?session={session}&after={session}:1", "?session={session}&after={session}:999999"),
    ],
}
"""The queries that Bob sends with each path, with ids of Ann or ids that do not exist."""
TESTED_SEPARATELY = {"GET /v1/sessions", "POST /v1/sessions/{session}/events", "GET /metrics", DELETE, *SESSION_IN_BODY}
"""Routes that have separate tests below."""
USER_ROUTES = [route for route in PROTECTED_ROUTES if label(route) not in TESTED_SEPARATELY]
HEADERS: list[dict[str, str]] = [
    {},
    {"last-event-id": "1"},
    {"last-event-id": "alma-s:1"},
    {"if-none-match": "*"},
    {"range": "bytes=0-1"},
]


class Target(msgspec.Struct):
    """The path and the body of a request, and the ids that they may contain."""

    path: str
    body: Any
    ids: SessionIds


def list_target_pairs(route: http.Route, users: TwoUsers) -> Iterator[tuple[Target, Target]]:
    """Yield requests with ids of Ann, each together with the same request with missing ids."""
    all_ids = [_list_id_sets(ids, users.bob) for ids in (users.ann, users.missing)]
    for (ann, missing), query in itertools.product(zip(*all_ids, strict=True), QUERIES[route.path]):
        of_ann, of_nobody = (
            Target((route.path + query).format(**msgspec.structs.asdict(ids)), make_body(route, ids), ids)
            for ids in (ann, missing)
        )
        if (of_ann.path, of_ann.body) != (of_nobody.path, of_nobody.body):
            yield of_ann, of_nobody


def _list_id_sets(ids: SessionIds, bob: SessionIds) -> list[SessionIds]:
    """Return ids, variants with an alias or a prefix instead of an id, and variants with an id of Bob."""
    return [
        ids,
        _replace_ids(ids, call=ids.alias),
        _replace_ids(ids, call=ids.call[:-3]),
        _replace_ids(ids, call=ids.command),
        _replace_ids(ids, approval=ids.approval[:-4]),
        _replace_ids(ids, rule=ids.rule[:-4]),
        _replace_ids(ids, session="bob-s"),
        _replace_ids(ids, approval=bob.approval, input_hash=bob.input_hash),
    ]


def _replace_ids(ids: SessionIds, **names: str) -> SessionIds:
    return msgspec.structs.replace(ids, **names)


def normalize(response: HttpResponse, ids: SessionIds) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of a response without the ids of its request."""
    text = response.text
    for name in msgspec.structs.asdict(ids).values():
        text = text.replace(repr(name), "?").replace(f'"correlation_id":"{name}"', "?")
    return response.status, {name: value for name, value in response.headers.items() if name != "content-length"}, text


def test_every_protected_route_has_a_cross_user_test_case() -> None:
    """A new route must define how Bob requests Ann's data there."""
    assert {route.path for route in PROTECTED_ROUTES} == {
        *QUERIES,
        *(name.partition(" ")[2] for name in TESTED_SEPARATELY),
    }


@pytest.mark.parametrize("route", USER_ROUTES, ids=label)
async def test_data_of_another_user_looks_like_missing_data(
    ledger: LocalLedger, host: str, users: TwoUsers, route: http.Route
) -> None:
    """For every id, parameter, format and cursor the response is that for a missing record."""
    before = await read_state(ledger, "alma-s")
    pairs = list(list_target_pairs(route, users))
    assert pairs
    for pair in pairs:
        for headers in HEADERS:
            response, expected = [
                normalize(await send_request(host + target.path, route.method, BOB | headers, target.body), target.ids)
                for target in pair
            ]
            assert response == expected, (pair, headers)
            status, context = response[0], (pair[0], headers, response)
            assert status in (400, 404) or (label(route) in LIST_ROUTES and status == 200), context
            assert not [text for text in users.hidden_texts() if text in str(response)], context
    assert await read_state(ledger, "alma-s") == before


@pytest.mark.parametrize("route", USER_ROUTES, ids=label)
async def test_a_user_can_access_their_own_data(
    ledger: LocalLedger, host: str, users: TwoUsers, route: http.Route
) -> None:
    """The same requests return Bob's own data, so the route itself works; without a user they get 401."""
    url = host + make_path(route, users.bob)
    if label(route) == PROMPT:
        await ledger.end_turn("bob-s")
    body = make_body(route, users.bob)
    assert (await send_request(url, route.method, {}, body)).status == 401
    response = await send_request(url, route.method, BOB, body)
    assert response.status in (200, 201, 202, 204), response.text
    assert not [text for text in users.hidden_texts() if text in response.text]


async def test_a_call_id_shared_by_two_users_resolves_to_the_callers_own_call(host: str, users: TwoUsers) -> None:
    """Each user has one of the two calls with this id, so it is ambiguous for neither."""
    for user, headers in (("alma", ANN), ("bob", BOB)):
        response = (await fetch(f"{host}/v1/calls/call_1", headers=headers)).json()
        assert (response["session"], response["toolCallId"]) == (f"{user}-s", "call_1")


async def test_a_shared_blob_is_readable_while_the_users_session_references_it(
    ledger: LocalLedger, host: str, users: TwoUsers
) -> None:
    """Bob loses access when his session is deleted; Ann keeps it."""
    for headers in (ANN, BOB):
        assert (await fetch(f"{host}/v1/blobs/{users.shared_hash}", headers=headers)).text == make_large(
            "the same for both"
        )
    await ledger.log.store.delete("bob-s")
    assert (await fetch(f"{host}/v1/blobs/{users.shared_hash}", headers=ANN)).status == 200
    assert (await fetch(f"{host}/v1/blobs/{users.shared_hash}", headers=BOB)).status == 404


async def test_an_id_prefix_matches_only_the_callers_own_calls(ledger: LocalLedger, host: str, users: TwoUsers) -> None:
    """A short prefix matches and lists only the caller's own records."""
    response = await fetch(f"{host}/v1/calls/exec_", headers=BOB)
    assert response.status == 409 and {row["session"] for row in response.json()["current"]} == {"bob-s"}
    assert not [text for text in users.hidden_texts() if text in response.text]


async def test_the_first_writer_owns_a_session_and_other_users_get_404(
    ledger: LocalLedger, host: str, users: TwoUsers
) -> None:
    """A post to another user's session gets the 404 of a missing session and changes nothing."""
    for user in ("alma", "bob"):
        row = await ledger.log.store.session(f"{user}-s")
        assert row is not None and row.owner == user
    before = await ledger.log.store.session("alma-s")
    missing = (await fetch(f"{host}/v1/sessions/nil-s", headers=BOB)).text.replace("nil-s", "alma-s")
    for query in ("", *(f"?format={name}" for name in registry.readable()), "?end=true", "?nonsense=1"):
        for key in ({}, {"idempotency-key": "k"}):
            response = await fetch(
                f"{host}/v1/sessions/alma-s/events{query}", "POST", value=_make_events("bob"), headers=BOB | key
            )
            assert (response.status, response.text) == (404, missing)
    body = [{"type": "session.info", "owner": "bob"}]
    assert (await fetch(f"{host}/v1/sessions/alma-s/events", "POST", value=body, headers=BOB)).status == 404
    assert (await fetch(f"{host}/v1/sessions/alma-s/events", "POST", value=body, headers=ANN)).status == 400
    assert await ledger.log.store.session("alma-s") == before


async def test_submitting_or_claiming_in_a_session_of_another_user_is_refused(
    ledger: LocalLedger, host: str, users: TwoUsers
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


async def test_an_approval_decision_records_the_authenticated_user(host: str, users: TwoUsers) -> None:
    """`by` is the user that the host returned, not a value of the body or a header."""
    url = f"{host}/v1/approvals/{users.bob.approval}"
    assert (await fetch(url, "POST", value={"decision": "deny", "by": "alma"}, headers=BOB)).status == 400
    response = await fetch(url, "POST", value={"decision": "deny"}, headers=BOB)
    assert (response.status, response.json()["by"]) == (200, "bob")


async def test_several_answers_count_only_for_the_callers_own_requests(
    ledger: LocalLedger, host: str, users: TwoUsers
) -> None:
    """A request of another user gets the result of a missing one beside Bob's own, which is answered."""
    before = await read_state(ledger, "alma-s")
    body = [
        {"id": ids.approval, "inputHash": ids.input_hash, "action": "approve"}
        for ids in (users.ann, users.missing, users.bob)
    ]
    response = await fetch(f"{host}/v1/approvals/answers", "POST", value=body, headers=BOB)
    of_ann, of_nobody, of_bob = response.json()["results"]
    assert response.status == 200 and of_bob["result"] == "answered" and of_nobody["result"] == "not-found"
    expected = json.dumps(of_nobody).replace(users.missing.approval, users.ann.approval)
    assert of_ann == json.loads(expected) and await read_state(ledger, "alma-s") == before
    record = await ledger.find_approval(users.bob.approval)
    assert (record.state, record.by) == ("granted", "bob")


async def test_a_user_sees_and_revokes_only_rules_of_their_own_sessions(
    ledger: LocalLedger, host: str, users: TwoUsers
) -> None:
    """Rules of other users and those for more than one session are missing, also for a prefix."""
    shared = [
        await save_rule(ledger, "everywhere", "", {"tool": "x"}, "alma"),
        await save_rule(ledger, "project", "/p", {"tool": "x"}, "alma"),
    ]
    response = await fetch(f"{host}/v1/rules", headers=BOB)
    assert [row["rule"] for row in response.json()["rules"]] == [users.bob.rule]
    saved = await fetch(f"{host}/v1/rules", "POST", value={"action": "ask", "scopeValue": "bob-s"}, headers=BOB)
    assert (saved.status, saved.json()["createdBy"]) == (201, "bob")
    response = await fetch(f"{host}/v1/rules/rule_", "DELETE", headers=BOB)
    assert response.status == 409 and not [text for text in users.hidden_texts() if text in response.text]
    assert not [rule for rule in shared if rule.id in response.text]
    for rule in (*shared, await rules.find_rule(ledger.log, users.ann.rule)):
        assert (await fetch(f"{host}/v1/rules/{rule.id}", "DELETE", headers=BOB)).status == 404
        fields = {"action": "deny", "scope": rule.scope, "scopeValue": rule.scope_value}
        for path in ("/v1/rules", "/v1/rules/preview"):
            response = await fetch(host + path, "POST", value=fields, headers=BOB)
            assert response.status == (404 if rule.scope == "session" else 403), response.text
    response = await fetch(f"{host}/v1/rules/test", "POST", value={"toolName": "x", "project": "/p"}, headers=BOB)
    assert response.status == 403
    response = await fetch(f"{host}/v1/rules/rule_", "DELETE", headers=ANN)
    assert (response.status, response.json()["rule"]) == (200, users.ann.rule)
    left = {row.id for row in await rules.list_rules(ledger.log)}
    assert left == {*(rule.id for rule in shared), users.bob.rule, saved.json()["rule"]}


# Lists


async def fetch_pages(url: str, name: str, key: str, limit: int) -> list[Any]:
    """Return a field of all records of a list, and check that each page except the last is full."""
    values, cursor = list[Any](), ""
    while True:
        page = (await fetch(f"{url}&limit={limit}&cursor={cursor}", headers=BOB)).json()
        values += [row[key] for row in page[name]]
        cursor = page["cursor"]
        if not cursor:
            return values
        assert len(page[name]) == limit


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_are_full_and_contain_only_the_callers_own_records(
    ledger: LocalLedger, host: str, users: TwoUsers, limit: int
) -> None:
    """Every page is full, nothing is missing or repeated, and the last page has no cursor."""
    for number in range(4):
        for user in ("alma", "bob", "alma"):
            await fill_session(ledger, f"{user}-{number}", alias="call_2", large=make_large("x x x"))
            await ledger.log.append(f"{user}-{number}", [ev.SessionInfo(owner=user)])
    await ledger.log.append("alma-s", [ev.MessageUser(text="the last word")])
    names = {"bob-s", *(f"bob-{number}" for number in range(4))}
    sessions = await fetch_pages(f"{host}/v1/sessions?prefix=", "sessions", "session", limit)
    assert len(sessions) == len(set(sessions)) and set(sessions) == names
    assert await fetch_pages(f"{host}/v1/sessions?prefix=alma", "sessions", "session", limit) == []
    calls = [row.id for row in (await ledger.log.store.calls(limit=1000)).items if row.session in names]
    assert await fetch_pages(f"{host}/v1/calls?tool=", "calls", "call", limit) == calls
    assert await fetch_pages(f"{host}/v1/calls?q=alma", "calls", "call", limit) == []
    approvals = (await fetch(f"{host}/v1/approvals?limit=1000", headers=BOB)).json()["approvals"]
    assert len(approvals) == 5 and {row["session"] for row in approvals} == names


async def test_the_last_page_has_no_cursor_if_only_other_users_records_follow(ledger: LocalLedger, host: str) -> None:
    """A cursor to an empty page would reveal that other users have older calls."""
    for user in ("alma", "bob"):
        await ledger.log.append(f"{user}-s", [ev.SessionInfo(owner=user), ev.CallStarted(call="new:1", tool_name="t")])
    response = await fetch(f"{host}/v1/calls?limit=1", headers=BOB)
    assert [row["session"] for row in response.json()["calls"]] == ["bob-s"] and response.json()["cursor"] == ""


async def test_a_topic_stream_contains_only_the_callers_own_changes(
    ledger: LocalLedger, host: str, users: TwoUsers
) -> None:
    """Changes of other users appear neither in the snapshot nor in later frames."""
    topics = "&".join(f"topic={name}" for name in TOPICS)
    async with requesting(f"{host}/v1/stream?session=bob-s&{topics}", headers=BOB) as reply:
        await reply.until(b"id: ")
        await fill_session(ledger, "alma-s", alias="call_3", large=make_large("more"))
        await ledger.log.append("bob-s", [ev.SessionInfo(title="and so on")])
        received = await reply.until(b"and so on")
        assert not [text for text in users.hidden_texts() if text.encode() in received] and b"bob-s" in received


async def test_metrics_require_read_access_to_all_sessions(ledger: LocalLedger, host: str) -> None:
    """A count of all calls would reveal the activity of other users."""
    assert (await fetch(f"{host}/metrics")).status == 401
    assert (await fetch(f"{host}/metrics", headers=BOB)).status == 403

    async def allow_all(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str:
        return "root"

    async with running(callslip.asgi(ledger, authorize=allow_all)) as url:
        assert (await fetch(f"{url}/metrics")).status == 200
