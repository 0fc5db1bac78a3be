"""Every credential with every route, stream and topic, and with every event type in every format that can be posted.

No response reveals what its caller may not read, no refused request changes anything, and none is a server error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest

import callslip
from callslip import http
from callslip.api import rules
from callslip.api.ledger import LocalLedger
from callslip.formats import registry
from callslip.http.lists import TOPICS
from callslip.http.openapi import document
from callslip.ingest.conversations import Conversations
from callslip.model import events as ev
from callslip.model.events import EVENT_TYPES
from callslip.rules.lifecycle import ANSWER_STATES
from callslip.rules.projection import SESSION_NAMESPACE
from callslip.settings import Limits
from tests.support import format_cases
from tests.support.credentials import (
    ALPHA,
    BETA,
    CREDENTIALS,
    NO_VERBS,
    OWNERS,
    SESSIONS,
    SETTINGS,
    Apps,
    Credential,
    Reply,
    Secrets,
    add_session,
    add_tokens,
    describe_session,
    digest,
    find_leaks,
    request,
)
from tests.support.sample_sessions import STATES, call_in_state
from tests.support.strategies import write_script

pytestmark = pytest.mark.anyio
with_every_credential = pytest.mark.parametrize("credential", CREDENTIALS, ids=lambda credential: credential.name)

REFUSALS = (401, 403, 404)


class World(NamedTuple):
    """A ledger with tokens and sessions, and its servers."""

    ledger: LocalLedger
    apps: Apps
    sessions: dict[str, Secrets]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        await add_tokens(ledger)
        sessions = {name: await add_session(ledger, name, OWNERS[name]) for name in SESSIONS}
        yield World(ledger, Apps(ledger), sessions)


def test_there_are_seventeen_credentials_of_every_kind() -> None:
    """Every verb for all sessions and for one, two tenants, and callers without a valid credential."""
    assert len({credential.name for credential in CREDENTIALS}) == 17
    sets = [credential.verbs for credential in CREDENTIALS]
    for verb in ("read", "write", "approve", "execute"):
        alone = frozenset((verb,))
        assert [verbs for verbs in sets if set(verbs.values()) == {alone}]
        assert [verbs for verbs in sets if list(verbs.values()).count(alone) == 1]


# Routes


class Case(NamedTuple):
    """Requests of a route about a session: the verb that they need, their queries, and their body."""

    verb: str
    queries: tuple[str, ...] = ("",)
    body: Any = None
    ids: tuple[tuple[str, str], ...] = ()
    """Names of other ids of `Secrets` for parameters of the path."""
    is_list: bool = False
    """Whether every caller with the verb in any session gets a response, with the rows that it may read."""


BY_SESSION = ("", "?session={session}")
RULE = {"action": "deny", "filters": {"tool": "rm"}, "scope": "session"}
CASES: dict[str, Case] = {
    "GET /v1/sessions": Case("read", ("", "?prefix=", "?limit=1"), is_list=True),
    "GET /v1/calls": Case("read", ("", "?q=5ecret", "?limit=2"), is_list=True),
    "GET /v1/approvals": Case("read", ("", "?state="), is_list=True),
    "GET /v1/search": Case("read", ("?q=5ecret", "?q=5ecret&session={session}"), is_list=True),
    "GET /v1/usage": Case("read", ("", "?by=session", "?by=turn&session={session}"), is_list=True),
    "GET /v1/rights": Case("read", ("", "?session={session}"), is_list=True),
    "GET /v1/commands": Case("read", ("", "?client=default"), is_list=True),
    "GET /v1/sessions/{session}": Case(
        "read", (*(f"?format={name}" for name in registry.exportable()), "?at=1", "?limit=1", "?wait=0.01")
    ),
    "GET /v1/sessions/{session}/stream": Case(
        "read",
        tuple(f"?follow=false&format={name}" for name in sorted({*registry.NATIVE_FORMATS, *registry.streamable()})),
    ),
    "GET /v1/sessions/{session}/entries": Case("read", ("", "?q=type:call", "?at=1&limit=1", "?limit=0")),
    "GET /v1/sessions/{session}/prompt": Case("read"),
    "GET /v1/stream": Case("read", ("?session={session}", "?topic=sessions&session={session}")),
    "GET /v1/find": Case(
        "read", tuple(f"?id={{{name}}}" for name in ("session", "call", "alias", "approval", "command"))
    ),
    "GET /v1/calls/{call}": Case("read", (*BY_SESSION, "?wait=0.01", "?format=command")),
    "GET /v1/approvals/{approval}": Case("read"),
    "GET /v1/approvals/{approval}/offer": Case("read"),
    "GET /v1/blobs/{hash}": Case("read"),
    "GET /pending-queries": Case("execute", ("?session={session}",)),
    "POST /v1/calls/claim": Case("execute", body={"session": "{session}"}),
    "POST /v1/calls/{call}/heartbeat": Case("execute", BY_SESSION, {"fence": 1}, (("call", "command"),)),
    "POST /v1/calls/{call}/result": Case("execute", BY_SESSION, {"fence": 1, "result": "r"}, (("call", "command_2"),)),
    "POST /v1/calls/{call}/release": Case("execute", ("",), {"fence": 1}, (("call", "command_3"),)),
    "POST /v1/approvals/{approval}": Case("approve", body={"decision": "deny"}),
    "POST /v1/sessions/{session}/approvals/{approval}": Case(
        "approve", body={"decision": "deny"}, ids=(("approval", "approval_2"),)
    ),
    "POST /v1/approvals/answers": Case(
        "approve", body=[{"id": "{approval}", "inputHash": "x", "action": "approve"}], ids=(("approval", "approval_2"),)
    ),
    "GET /v1/approvals/{approval}/rule": Case("approve", ids=(("approval", "approval_2"),)),
    "GET /v1/rules": Case("approve", ("?session={session}",)),
    "POST /v1/rules": Case("approve", body={**RULE, "scopeValue": "{session}"}),
    "POST /v1/rules/preview": Case("approve", body={**RULE, "scopeValue": "{session}"}),
    "POST /v1/rules/test": Case("approve", body={"command": "git log", "session": "{session}"}),
    "DELETE /v1/rules/{rule}": Case("approve"),
    "POST /v1/sessions/{session}/events": Case(
        "write", ("", "?return=events"), [{"type": "message.delta", "text": "more", "chunks": "delta"}]
    ),
    "POST /v1/calls": Case("write", ("", "?wait=0.01"), {"action": "look", "session": "{session}"}),
    "POST /v1/sessions/{session}/prompt": Case("write", body={"text": "hello"}),
    "POST /v1/sessions/{session}/prompt/stop": Case("write"),
    "POST /v1/calls/{call}/cancel": Case("write", BY_SESSION, {}),
}
"""The routes that need a verb in a session or, for lists, in any."""
PUBLIC_ROUTES = {
    "GET /": "/",
    "GET /s/{session}": "/s/{session}",
    "GET /c/{call}": "/c/{call}",
    "GET /inbox": "/inbox",
    "GET /commands": "/commands",
    "GET /rules": "/rules",
    "GET /search": "/search",
    "GET /usage": "/usage",
    "GET /callslip.js": "/callslip.js",
    "GET /callslip.d.ts": "/callslip.d.ts",
    "GET /web/{file}": "/web/app.js",
    "GET /web/vendor/{module}": "/web/vendor/preact.mjs",
    "GET /healthz": "/healthz",
    "GET /openapi.json": "/openapi.json",
}
METRICS = "GET /metrics"
SIGN_IN = "POST /v1/sign-in"
"""It needs a sign-in code instead; see tests/cli/test_phone.py."""
DELETE = "DELETE /v1/sessions/{session}"
"""It needs more than a verb; see test_session_lists.py."""


def test_every_route_of_the_openapi_document_has_a_case() -> None:
    """A new route must say here which verb it needs."""
    paths = document(http.ROUTES, Limits())["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert routes == {*CASES, *PUBLIC_ROUTES, METRICS, SIGN_IN, DELETE}


class Call(NamedTuple):
    """A request to send."""

    method: str
    path: str
    body: Any


def list_calls(label: str, case: Case, secrets: Secrets) -> Iterator[Call]:
    """Yield the requests of a route about a session."""
    method, _, path = label.partition(" ")
    ids = secrets.ids()
    ids |= {name: ids[other] for name, other in case.ids}
    text = json.dumps(case.body)
    for name in ("session", "approval", "rule"):
        text = text.replace(f"{{{name}}}", ids[name])
    body = json.loads(text)
    for query in case.queries:
        yield Call(method, path.format(**ids) + query.format(**ids), body)


async def send(world: World, credential: Credential, call: Call) -> Reply:
    """Send a request, and check that its response is no server error and no leak. Read only the start of a stream."""
    is_endless = call.path.startswith("/v1/stream")
    reply = await request(
        world.apps.of(credential),
        call.method,
        call.path,
        credential.headers,
        call.body,
        until=(lambda body: b"id: " in body) if is_endless else None,
    )
    assert reply.status < 500, (call, reply)
    leaks = find_leaks(credential, world.sessions, reply, sent=f"{call.path} {call.body}")
    assert not leaks, (call, leaks, reply.body[:2000])
    return reply


async def check_refused(world: World, credential: Credential, call: Call) -> None:
    """Check that a request is refused and changes nothing."""
    before = digest(world.ledger)
    reply = await send(world, credential, call)
    assert reply.status in (REFUSALS if credential.is_known else (401,)), (call, reply)
    assert digest(world.ledger) == before, (call, reply)


@with_every_credential
async def test_every_route_with_every_credential(world: World, credential: Credential) -> None:
    """A caller with the verb gets a response, without what it may not read; another is refused and changes nothing."""
    allowed: list[Call] = []
    for secrets in world.sessions.values():
        for label, case in CASES.items():
            for call in list_calls(label, case, secrets):
                is_listed = case.is_list and credential.may_anywhere(case.verb)
                if credential.may(secrets.session, case.verb) or is_listed:
                    allowed.append(call)
                else:
                    await check_refused(world, credential, call)
        for label, path in PUBLIC_ROUTES.items():
            call = Call("GET", path.format(**secrets.ids()), None)
            assert (await send(world, credential, call)).status == 200, label
    await check_refused(world, credential, Call("POST", "/v1/sign-in", {"code": "unknown"}))
    metrics = Call("GET", "/metrics", None)
    if credential.sees_everything:
        allowed.append(metrics)
    else:
        await check_refused(world, credential, metrics)
    for call in allowed:
        reply = await send(world, credential, call)
        assert 200 <= reply.status < 300 or _is_repeated(call, reply), (call, reply)


def _is_repeated(call: Call, reply: Reply) -> bool:
    """Return whether a request conflicts with an earlier one: an open turn, or a result that was posted already."""
    return reply.status == 409 and (call.path.endswith("/prompt") or "?session=" in call.path)


@with_every_credential
async def test_lists_and_claims_without_a_session_show_only_what_the_caller_may_use(
    world: World, credential: Credential
) -> None:
    """A worker claims from its sessions only, although the queue has commands of others."""
    for call in (Call("GET", "/pending-queries", None), *[Call("POST", "/v1/calls/claim", {})] * 4):
        is_worker = credential.verbs == dict.fromkeys(SESSIONS, frozenset(("execute",))) or credential.is_host_user
        is_worker = is_worker or credential.name in ("main", "all-verbs")
        if not (credential.is_known and is_worker):
            await check_refused(world, credential, call)
            continue
        reply = await send(world, credential, call)
        claimed = {name for name, secrets in world.sessions.items() if secrets.command_content.encode() in reply.body}
        assert all(credential.may(name, "execute") for name in claimed)


@with_every_credential
async def test_only_a_caller_with_all_sessions_writes_rules_for_more_than_one(
    world: World, credential: Credential
) -> None:
    """RUL10: a tenant or a token for one session cannot write, test or see rules that concern other sessions."""
    others = [{**RULE, "scope": "everywhere"}, {**RULE, "scope": "project", "scopeValue": "/p"}]
    calls = [Call("POST", path, rule) for rule in others for path in ("/v1/rules", "/v1/rules/preview")]
    calls += [Call("POST", "/v1/rules/test", {"command": "git log", "project": "/p"})]
    is_allowed = credential.name in ("main", "all-approve", "all-verbs")
    for call in calls:
        if is_allowed:
            assert (await send(world, credential, call)).status in (200, 201), call
        else:
            await check_refused(world, credential, call)
    (record, *_) = await rules.list_rules(world.ledger.log)
    kept = await rules.save_rule(world.ledger.log, rules.NewRule(action="deny", filters={}, scope="everywhere"))
    reply = await send(world, credential, Call("GET", "/v1/rules", None))
    assert (reply.status == 200 and kept.id.encode() in reply.body) is is_allowed
    if not is_allowed:
        await check_refused(world, credential, Call("DELETE", f"/v1/rules/{kept.id}", None))
    assert record.scope == "session"


# Topics

LAST_TEXT = "the last change"


@with_every_credential
async def test_topics_and_deletions_with_every_credential(world: World, credential: Credential) -> None:
    """Rows, their changes and the end of deleted sessions are sent only to callers who may read them."""
    ledger, apps = world.ledger, world.apps
    call = Call("GET", "/v1/stream?" + "&".join(f"topic={name}" for name in TOPICS), None)
    readable = [name for name in SESSIONS if credential.may(name, "read")]
    if not readable:
        return await check_refused(world, credential, call)
    # A token for one session has no rights in the sessions that will be deleted.
    is_for_one = credential.name.startswith("one-")
    deleted = {f"{name}-deleted": NO_VERBS if is_for_one else credential.verbs[name] for name in SESSIONS}
    credential = msgspec.structs.replace(credential, verbs={**credential.verbs, **deleted})
    sessions = dict(world.sessions)
    for name in deleted:
        sessions[name] = await add_session(ledger, name, OWNERS[name.removesuffix("-deleted")])
    is_open = asyncio.Event()

    def until(body: bytes) -> bool:
        if body.count(b"event: topic\n") == len(TOPICS):
            is_open.set()
        frames = [frame for frame in body.split(b"\n\n") if LAST_TEXT.encode() in frame]
        return all(any(f'"topic":"{name}"'.encode() in frame for frame in frames) for name in TOPICS)

    async def change() -> None:
        await is_open.wait()
        for name, secrets in sessions.items():
            await add_rows(ledger, name, secrets.content)
        for name in deleted:
            await ledger.log.delete(name)
        await add_rows(ledger, readable[0], LAST_TEXT)

    changing = asyncio.ensure_future(change())
    reply = await request(apps.of(credential), call.method, call.path, credential.headers, until=until)
    await changing
    assert reply.status == 200 and not find_leaks(credential, sessions, reply), reply.body
    for name, verbs in deleted.items():
        assert (f'"id":"{name}","gone":true'.encode() in reply.body) is ("read" in verbs)


async def add_rows(ledger: LocalLedger, session: str, text: str) -> None:
    """Change a session in every topic: its title, a request and a command."""
    await ledger.log.append(
        session,
        [
            ev.SessionInfo(title=text),
            ev.ApprovalRequested(tool_name="rm", description=text),
            ev.CallProposed(tool_name="look", title=text, client="default", timeout=10**7, scope="detached"),
        ],
    )


# Events

FORMATS = [name for name in registry.readable() if name != "events"]
SESSION_TYPES = "session.capabilities session.commands session.mode"
APPROVAL_TYPES = "approval.granted approval.refused approval.requested approval.withdrawn"
HOOK_TYPES = (
    f"approval.granted approval.refused approval.withdrawn {SESSION_TYPES} call.expired call.input call.inputDelta "
    "call.lost call.progress call.proposed call.requeued message.ended plan.updated thought.delta usage.reported"
)
MISSING_TYPES = {
    "acp": "call.denied call.expired call.input call.inputDelta call.lost call.requeued",
    "act-observe": f"{APPROVAL_TYPES} {SESSION_TYPES} call.input call.inputDelta call.lost call.requeued plan.updated "
    "session.info usage.reported",
    "ag-ui": f"{SESSION_TYPES} call.progress call.requeued call.started plan.updated",
    "anthropic": f"{APPROVAL_TYPES} {SESSION_TYPES} call.cancelled call.denied call.expired call.progress "
    "call.requeued plan.updated",
    "claude-code": f"{APPROVAL_TYPES} {SESSION_TYPES} call.expired call.input call.inputDelta call.lost call.progress "
    "call.requeued message.ended plan.updated",
    "codex": f"{APPROVAL_TYPES} {SESSION_TYPES} call.expired call.input call.inputDelta call.lost call.requeued",
    "gemini": f"{APPROVAL_TYPES} {SESSION_TYPES} call.denied call.expired call.input call.inputDelta call.lost "
    "call.progress call.requeued plan.updated",
    "mcp": f"{APPROVAL_TYPES} {SESSION_TYPES} call.denied call.expired call.input call.inputDelta call.lost "
    "call.requeued message.delta message.ended message.user plan.updated thought.delta turn.ended turn.started "
    "usage.reported",
    "openai": f"{APPROVAL_TYPES} {SESSION_TYPES} call.cancelled call.denied call.expired call.failed call.progress "
    "call.requeued call.started plan.updated",
    "opencode": f"{APPROVAL_TYPES} {SESSION_TYPES} call.expired call.input call.inputDelta call.lost call.requeued "
    "plan.updated",
    "responses": f"{SESSION_TYPES} approval.withdrawn call.cancelled call.denied call.expired call.requeued "
    "plan.updated",
    "rows": f"{SESSION_TYPES} approval.withdrawn call.denied call.expired call.failed call.input call.inputDelta "
    "call.lost call.progress call.requeued call.started plan.updated session.info usage.reported",
    "shell": f"{APPROVAL_TYPES} {SESSION_TYPES} call.cancelled call.denied call.expired call.input call.inputDelta "
    "call.lost call.requeued plan.updated",
    "claude-code-hook": HOOK_TYPES,
    "codex-hook": f"{HOOK_TYPES} call.cancelled call.denied call.failed",
    "gemini-hook": f"{HOOK_TYPES} call.cancelled call.completed call.denied call.failed call.started",
    "opencode-hook": f"{HOOK_TYPES} call.cancelled call.denied message.delta message.user turn.ended turn.started",
    **dict.fromkeys(("ui-v5", "ui-v6", "ui-v7"), "call.requeued session.capabilities session.commands session.info"),
}
"""Event types that a format cannot express, besides the rare ones. Inputs have all others."""
RARE_TYPES = {"call.reported", "approval.released"}
"""Only Codex has reports, and only Callslip itself releases requests."""


def _ui_end(state: str) -> list[Any]:
    """Return a call with a request for approval that ends in a state, as Callslip streams it."""
    return [
        {"type": "start", "messageId": "m"},
        {"type": "tool-input-available", "toolCallId": "c", "toolName": "rm", "input": {}},
        {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"},
        {"type": "tool-output-error", "toolCallId": "c", "toolMetadata": {"callslip": {"state": state}}},
    ]


def _ag_ui_end(state: str) -> list[Any]:
    """Return a call that ends in a state, as Callslip streams it."""
    return [
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "rm"},
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
        {
            "type": "TOOL_CALL_RESULT",
            "toolCallId": "c",
            "messageId": "m",
            "content": "",
            "metadata": {"callslip": {"state": state}},
        },
    ]


ACP_MODE = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
MORE_INPUTS: dict[str, list[list[Any]]] = {
    "acp": [[{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "x", "update": ACP_MODE}}]],
    "ag-ui": [
        *(_ag_ui_end(state) for state in ("cancelled", "denied", "expired", "lost")),
        [
            {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
            {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "usage": {"inputTokens": 7, "outputTokens": 1}},
        ],
    ],
    "shell": [[{"type": "usage", "input_tokens": 7, "output_tokens": 1}]],
    **{name: [_ui_end(state) for state in ("cancelled", "expired", "lost")] for name in ("ui-v5", "ui-v6", "ui-v7")},
}
"""Inputs with event types that are not in the recorded ones."""


class Input(NamedTuple):
    """An input of a format, the types of its events, and its size as text."""

    messages: list[Any]
    types: frozenset[str]
    size: int


@cache
def list_inputs(format: str) -> list[Input]:
    """Return the shortest inputs of a format that together have all event types of its inputs.

    They are recorded, those of the other formats of the family, exported by Callslip, or written here.
    """
    family = [name for name in FORMATS if name == format or name[:4] == format[:4] == "ui-v"]
    folders = [*(format_cases.FOLDER / name for name in family), *([format_cases.CAPTURES] if format == "acp" else [])]
    files = [file for folder in folders for file in sorted(folder.glob("*.jsonl"))]
    recorded = [[json.loads(line) for line in file.read_bytes().splitlines() if line.strip()] for file in files]
    events = [ev.read_event(event) for state in STATES for event in call_in_state(state)]
    snapshot = write_script(events).state.snapshot()
    exported = [registry.encoder(format)(snapshot)] if registry.find(format).encoder else []
    inputs = [_read_input(format, messages) for messages in (*recorded, *exported, *MORE_INPUTS.get(format, ()))]
    missing, chosen = frozenset[str]().union(*(item.types for item in inputs)), list[Input]()
    while missing:
        chosen.append(max(inputs, key=lambda item: (len(item.types & missing), -item.size)))
        missing -= chosen[-1].types
    return chosen


def _read_input(format: str, messages: list[Any]) -> Input:
    conversations = Conversations(format, lambda name: f"s:{name}")
    drafts = [draft for message in messages for _, _, drafts in conversations.read(message) for draft in drafts]
    drafts += [draft for part in conversations.all.values() for draft in part.decoder.close("eof")]
    return Input(messages, frozenset(ev.type_of(draft.event) for draft in drafts), len(json.dumps(messages)))


def test_every_format_posts_every_event_type_that_it_has() -> None:
    """A new event type or format must be in the inputs, or in the table of types that it cannot express."""
    found = {format: frozenset[str]().union(*(item.types for item in list_inputs(format))) for format in FORMATS}
    missing = {format: set(EVENT_TYPES) - types - RARE_TYPES for format, types in found.items()}
    assert missing == {format: set(types.split()) for format, types in MISSING_TYPES.items()}
    missing = {format: set(EVENT_TYPES) - types for format, types in found.items()}
    tables = {name: {*types.split()} | RARE_TYPES for name, types in MISSING_TYPES.items()}
    tables["codex"].remove("call.reported")
    assert missing == tables


class Post(NamedTuple):
    """A body to post to a session, and the statuses of its response; none means any but a server error."""

    format: str
    messages: list[Any]
    statuses: tuple[int, ...] = ()


def list_posts(credential: Credential, own: Secrets, other: Secrets) -> Iterator[Post]:
    """Yield every event type in every format, with ids of the session, with ids of another and with forged fields."""
    for kind, cls in EVENT_TYPES.items():
        is_answer = issubclass(cls, ev.ApprovalAnswer)
        may_post = not is_answer or credential.may(own.session, "approve")
        yield Post(
            "events", [make_event(kind, own)], (200, 201, 409) if may_post and kind != "approval.released" else (403,)
        )
        yield Post("events", [make_event(kind, other)])
        fields = {field.encode_name for field in list_fields(cls)}
        forged = {"seq": 1, "key": "k", "verdict": "witness", "source": "acp", "by": "boss", "requestedBy": "boss"}
        forged_fields = {name: value for name, value in forged.items() if name in fields}
        yield Post("events", [{**make_event(kind, own), **forged_fields}])
        if "blob" in fields:
            blob = {"hash": other.hash, "size": 1, "media": "text/plain"}
            yield Post("events", [{**make_event(kind, own), "blob": blob}], (400,))
        if "owner" in fields:
            yield Post("events", [{"type": kind, "owner": "mallory"}], (400,))
        if "labels" in fields:
            labels = {"team": OWNERS[other.session]}
            yield Post("events", [{"type": kind, "labels": labels}], (200, 201) if credential.can_label else (403,))
        for name in sorted({"foreignId", "continues"} & fields):
            body = [{"type": kind, name: f"agent-id-of-{other.session}"}]
            yield Post("events", body, (200, 201) if credential.can_label else (403,))
        if "aliases" in fields and not credential.can_label:
            aliases = [["session", f"agent-id-of-{other.session}"]]
            yield Post("events", [{**make_event(kind, own), "aliases": aliases}], (403,))
    for format in FORMATS:
        for item in list_inputs(format):
            yield Post(format, item.messages)
        for ids in (own, other):
            messages = [message for item in list_inputs(format) for message in item.messages]
            yield Post(format, [replace_ids(message, ids) for message in messages])


list_fields = cache(msgspec.structs.fields)


def make_event(kind: str, ids: Secrets) -> dict[str, Any]:
    """Return an event of a type with ids of a session, and a value for every field that it must have."""
    values = {"call": ids.call, "approval": ids.approval, "turn": ids.turn, "aliases": [["openai", ids.alias]]}
    event: dict[str, Any] = {"type": kind}
    for field in list_fields(EVENT_TYPES[kind]):
        if field.encode_name in values:
            event[field.encode_name] = values[field.encode_name]
        elif field.required:
            event[field.encode_name] = "more" if field.type is str else []
    return event


def replace_ids(value: Any, ids: Secrets, key: str = "") -> Any:
    """Return a message with ids of a session wherever it has ids of its own."""
    if isinstance(value, dict):
        return {name: replace_ids(member, ids, name) for name, member in value.items()}
    if isinstance(value, list):
        return [replace_ids(member, ids, key) for member in value]
    if not isinstance(value, str) or not key.lower().endswith("id"):
        return value
    name = key.lower()
    if "approval" in name or "interrupt" in name or name == "id":
        return ids.approval
    return ids.session if "thread" in name or "session" in name else ids.alias


@with_every_credential
async def test_every_event_type_in_every_format_with_every_credential(world: World, credential: Credential) -> None:
    """Posts change only sessions that the caller may write to, not their owner, labels, agent's ids or approvals."""
    pairs = [(own, world.sessions[BETA if own.session == ALPHA else ALPHA]) for own in world.sessions.values()]
    for own, other in pairs:
        if not credential.may(own.session, "write"):
            before = digest(world.ledger)
            for post in list_posts(credential, own, other):
                reply = await send_post(world, credential, own, post)
                assert reply.status in (REFUSALS if credential.is_known else (401,)), (post, reply)
            assert digest(world.ledger) == before
    for own, other in pairs:
        if credential.may(own.session, "write"):
            for post in list_posts(credential, own, other):
                await check_post(world, credential, own, post)
    for own in world.sessions.values():
        bodies = b"".join([ev.encode_event(event) async for event in world.ledger.events(own.session)])
        others = [secrets for secrets in world.sessions.values() if secrets is not own]
        assert not [secrets for secrets in others if secrets.content.encode() in bodies]
        assert await world.ledger.log.store.sessions_with_blob(own.hash) == [own.session]


async def send_post(world: World, credential: Credential, own: Secrets, post: Post) -> Reply:
    path = f"/v1/sessions/{own.session}/events?format={post.format}&return=events&end=true"
    return await send(world, credential, Call("POST", path, post.messages))


async def check_post(world: World, credential: Credential, own: Secrets, post: Post) -> None:
    """Send a body to a session that the caller may write to, and check what it has changed."""
    ledger, closed = world.ledger, [name for name in SESSIONS if not credential.may(name, "write")]
    before, closed_before = await find_access(ledger, own), [await describe_session(ledger, name) for name in closed]
    seq_before = await ledger.log.get_session(own.session)
    reply = await send_post(world, credential, own, post)
    assert not post.statuses or reply.status in post.statuses, (post, reply)
    if reply.status < 300 and not credential.may(own.session, "read"):
        check_receipts(reply)
    if reply.status >= 400:
        assert await ledger.log.get_session(own.session) == seq_before, (post, reply)
    if credential.name.startswith("one-"):
        assert {row.name for row in (await ledger.sessions(limit=1000)).items} == set(SESSIONS), post
    after = await find_access(ledger, own)
    assert after.owner == before.owner and (after.labels == before.labels or credential.can_label), post
    assert after.agent_ids == before.agent_ids or credential.can_label, post
    assert after.answered == before.answered or credential.may(own.session, "approve"), post
    assert [await describe_session(ledger, name) for name in closed] == closed_before, post


def check_receipts(reply: Reply) -> None:
    """Check that returned events have no content: the ledger may have added what others wrote."""
    for event in json.loads(reply.body)["events"]:
        content = {name: value for name, value in event.items() if name not in RECEIPT_FIELDS}
        assert not any(content.values()), event


RECEIPT_FIELDS = {"type", "seq", "at", "verdict", "call", "approval", "turn"}


POSTED_IDS = [f"agent-id-of-{name}" for name in SESSIONS]


class AccessState(NamedTuple):
    """What decides about access to a session and its calls: the answered ones of the approvals that it had at first."""

    owner: str
    labels: Any
    answered: dict[str, str]
    agent_ids: list[str]
    """Those of `POSTED_IDS` by which a transcript would be imported into the session."""


async def find_access(ledger: LocalLedger, secrets: Secrets) -> AccessState:
    record = await ledger.log.get_session(secrets.session)
    assert record is not None
    rows = [await ledger.find_approval(id) for id in (secrets.approval, secrets.approval_2)]
    answered = {row.id: row.state for row in rows if row.state in ANSWER_STATES.values()}
    store = ledger.log.store
    agent_ids = [id for id in POSTED_IDS if secrets.session in await store.sessions_with_alias(SESSION_NAMESPACE, id)]
    return AccessState(record.owner, record.labels, answered, agent_ids)
