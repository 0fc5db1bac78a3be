"""What tenants and tokens of one server cannot learn from or change for each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.http.access import Principal, TokenAuthorizer
from callslip.http.lists import TOPICS
from callslip.ingest.importer import import_lines
from callslip.model import events as ev
from callslip.model.records import SessionRecord, TokenRecord
from callslip.settings import Settings
from tests.support.credentials import MAIN_TOKEN, Reply, request
from tests.support.live_server import running
from tests.support.mcp_client import call_tool, over_http, serving_mcp

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600, inline_limit=1000, preview=40)
LARGE = "a large output " * 100
MAIN = {"authorization": f"Bearer {MAIN_TOKEN}"}


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        yield ledger


@pytest.fixture
def app(ledger: LocalLedger) -> Any:
    return http.standalone(ledger, MAIN_TOKEN)


async def add_token(ledger: LocalLedger, id: str, *verbs: str, session: str = "", label: str = "") -> dict[str, str]:
    """Store a token and return its headers."""
    token = f"{id}-of-this-server"
    await ledger.log.store.put_token(TokenRecord(f"tok_{id}", hash_token(token), label or id, session, verbs, 1, 0))
    return {"authorization": f"Bearer {token}"}


async def post(app: Any, headers: dict[str, str], *messages: Any, session: str = "s", query: str = "") -> Reply:
    return await request(app, "POST", f"/v1/sessions/{session}/events{query}", headers, list(messages))


def load(reply: Reply) -> Any:
    return json.loads(reply.body)


async def add_blob(ledger: LocalLedger, session: str) -> str:
    """Add a call with a large output, and return the hash of its blob."""
    async with ledger.session(session).call("print", {}) as call:
        call.complete(LARGE)
    return (await find_blobs(ledger, session))[-1].hash


async def find_blobs(ledger: LocalLedger, session: str) -> list[ev.Blob]:
    return [blob async for event in ledger.events(session) if (blob := ev.blob_of(event))]


async def last_seq(ledger: LocalLedger, session: str) -> int:
    record = await ledger.log.get_session(session)
    return record.last_seq if record else 0


# Blobs

BLOB_EVENTS: list[dict[str, Any]] = [
    {"type": "call.completed", "aliases": [["t", "c"]], "output": "preview"},
    {"type": "call.failed", "aliases": [["t", "c"]], "output": "preview"},
    {"type": "raw", "body": "preview"},
]


@pytest.mark.parametrize("event", BLOB_EVENTS, ids=lambda event: event["type"])
@pytest.mark.parametrize("token", ["main", "writer"])
async def test_a_posted_event_cannot_reference_a_blob_of_another_session(
    ledger: LocalLedger, app: Any, event: dict[str, Any], token: str
) -> None:
    """400 with the field, and nothing of the body is written; readers of the session do not get the blob."""
    hash = await add_blob(ledger, "theirs")
    await ledger.log.append("s", [ev.MessageUser(text="hello")])
    before = await last_seq(ledger, "s")
    headers = MAIN if token == "main" else await add_token(ledger, "writer", "write", session="s")
    message = {"type": "message.user", "text": "first"}
    blob = {"hash": hash, "size": len(LARGE), "media": "text/plain"}
    reply = await post(app, headers, message, {**event, "blob": blob})
    assert (reply.status, load(reply)["field"]) == (400, "blob"), reply
    assert await last_seq(ledger, "s") == before
    reader = await add_token(ledger, "reader", "read", session="s")
    assert (await request(app, "GET", f"/v1/blobs/{hash}", reader)).status == 404


async def test_a_missing_blob_and_a_blob_of_another_session_get_the_same_response(
    ledger: LocalLedger, app: Any
) -> None:
    """So that a writer cannot find out which outputs other sessions have."""
    replies: list[Any] = []
    for hash in (await add_blob(ledger, "theirs"), "0" * 64, "no hash"):
        reply = await post(app, MAIN, {**BLOB_EVENTS[0], "blob": {"hash": hash, "size": 1}})
        replies.append((reply.status, load(reply)["detail"].replace(hash, "?")))
    assert replies[0][0] == 400 and len(set(replies)) == 1


async def test_a_posted_event_may_reference_a_blob_of_its_session(ledger: LocalLedger, app: Any) -> None:
    """It is stored with the size and the type of the value, not with those that were posted."""
    hash = await add_blob(ledger, "s")
    blob = {"hash": hash, "size": 1, "media": "application/json"}
    assert (await post(app, MAIN, {**BLOB_EVENTS[0], "blob": blob})).status == 200
    assert (await find_blobs(ledger, "s"))[-1] == ev.Blob(hash, len(LARGE), "text/plain")
    assert (await request(app, "GET", "/v1/calls/c?format=command", MAIN)).status == 200


async def test_a_local_copy_of_a_log_keeps_its_blobs(ledger: LocalLedger, app: Any) -> None:
    """An export that is imported into another session of the ledger refers to the same values."""
    hash = await add_blob(ledger, "s")
    await import_lines(ledger.log, "copy", "events", [ev.encode_event(event) async for event in ledger.events("s")])
    reader = await add_token(ledger, "reader", "read", session="copy")
    reply = await request(app, "GET", f"/v1/blobs/{hash}", reader)
    assert (reply.status, reply.body) == (200, LARGE.encode())


# Deleted sessions


async def authorize(request: HTTPConnection, session: SessionRecord | None, verb: str) -> Any:
    """Give users access to new sessions, to their own, and to those with their label."""
    user = request.headers.get("x-user", "")
    if not user:
        raise HTTPException(401)
    team = session.labels.get("team") if session is not None and isinstance(session.labels, dict) else None
    is_new = session is not None and not (session.owner or team)
    return user if session is None or is_new or user in (session.owner, team) else None


class TopicReader:
    """A user who reads all topics. `opened` is set when all are open, `changed` when `MIDDLE` arrived in each."""

    def __init__(self, app: Any, user: str) -> None:
        self.opened, self.changed = asyncio.Event(), asyncio.Event()
        path = "/v1/stream?" + "&".join(f"topic={name}" for name in TOPICS)
        self.reply = asyncio.ensure_future(request(app, "GET", path, {"x-user": user}, until=self._is_complete))

    def _is_complete(self, body: bytes) -> bool:
        if body.count(b"event: topic\n") == len(TOPICS):
            self.opened.set()
        if self._is_in_each(body, MIDDLE):
            self.changed.set()
        return self._is_in_each(body, LAST)

    def _is_in_each(self, body: bytes, text: str) -> bool:
        frames = [frame for frame in body.split(b"\n\n") if text.encode() in frame]
        return all(any(f'"topic":"{name}"'.encode() in frame for frame in frames) for name in TOPICS)


MIDDLE, LAST = "the middle change", "the last change"


async def add_rows(ledger: LocalLedger, session: str, text: str) -> None:
    """Change a session in every topic."""
    command = ev.CallProposed(tool_name="look", title=text, client="default", timeout=10**7, scope="detached")
    request = ev.ApprovalRequested(tool_name="rm", description=text)
    await ledger.log.append(session, [ev.SessionInfo(title=text), request, command])


USERS = ("ann", "bob", "carl")


@pytest.mark.parametrize("change", ["none", "labels", "created again"])
async def test_a_deletion_is_announced_only_to_those_who_could_read_the_session(
    ledger: LocalLedger, change: str
) -> None:
    """Also if a user lost the right before, and if the name has another owner meanwhile."""
    app = callslip.asgi(ledger, authorize=authorize)
    for session, owner, team in (("carls", "carl", "ann"), *((f"{user}-own", user, "") for user in USERS)):
        await ledger.log.append(session, [ev.SessionInfo(owner=owner, labels={"team": team})])
        await add_rows(ledger, session, f"first of {session}")
    readers = {user: TopicReader(app, user) for user in USERS}
    for reader in readers.values():
        await reader.opened.wait()
    if change == "labels":
        await ledger.log.append("carls", [ev.SessionInfo(labels={"team": "carl"})])
        await add_rows(ledger, "carl-own", MIDDLE)
        await readers["carl"].changed.wait()
    await ledger.log.delete("carls")
    if change == "created again":
        await ledger.log.append("carls", [ev.SessionInfo(owner="bob")])
    for user in USERS:
        await add_rows(ledger, f"{user}-own", LAST)
    ann, bob, carl = [(await reader.reply).body for reader in readers.values()]
    gone = b'"id":"carls","gone":true'
    if change == "created again":
        assert gone not in ann + bob + carl and b"first of carls" in ann + carl and b'"owner":"bob"' in bob
        (inbox_row,) = {line for line in carl.split(b"\n\n") if b'"topic":"inbox"' in line and b"gone" in line}
        assert inbox_row not in bob
        return
    assert gone in carl and b"carls" not in bob
    assert (gone in ann) is (change == "none")
    if change == "labels":
        assert b'"gone":true' not in ann


@pytest.mark.parametrize("format", ["events", "entries", "page", "ui-v6"])
async def test_a_stream_ends_with_its_session_although_another_has_the_name(ledger: LocalLedger, format: str) -> None:
    """Neither do its readers receive the new session, nor do readers of the new session receive the old one."""
    app, is_open = callslip.asgi(ledger, authorize=authorize), asyncio.Event()
    path = "/v1/stream?session=x" if format == "page" else f"/v1/sessions/x/stream?format={format}"

    def until_open(body: bytes) -> bool:
        if OLD.encode() in body:
            is_open.set()
        return False

    def make_events(owner: str, text: str, count: int) -> list[ev.Event]:
        texts = [ev.MessageDelta(text=f"{text} {number}. ", chunks="delta") for number in range(count)]
        return [ev.SessionInfo(owner=owner), ev.TurnStarted(turn="t"), ev.MessageUser(text=text), *texts]

    await ledger.log.append("x", make_events("bob", OLD, 10))
    old = asyncio.ensure_future(request(app, "GET", path, {"x-user": "bob"}, until=until_open))
    await is_open.wait()
    await ledger.log.append("x", [ev.MessageDelta(text=f"{OLD} live. ", chunks="delta")] * 20)
    await ledger.log.delete("x")
    await ledger.log.append("x", make_events("ann", NEW, 3))
    new = asyncio.ensure_future(request(app, "GET", path, {"x-user": "ann"}, until=lambda body: LAST.encode() in body))
    await asyncio.sleep(0)
    await ledger.log.append("x", [ev.MessageDelta(text=f"{NEW} live. ", chunks="delta")] * 50)
    await ledger.log.append("x", [ev.MessageDelta(text=LAST, chunks="delta"), ev.TurnEnded()])
    old_body, new_body = (await old).body, (await new).body
    assert NEW.encode() not in old_body and LAST.encode() not in old_body
    assert OLD.encode() not in new_body and LAST.encode() in new_body


OLD, NEW = "text of the old session", "text of the new session"


# Reading back

SECRET = "the secret of another writer"


async def add_call(ledger: LocalLedger) -> str:
    """Add a call whose every text is secret, and return its id."""
    start = ev.CallStarted(
        call="new:1", tool_name=SECRET, title=SECRET, input={"x": SECRET}, aliases=(ev.Alias("t", "c"),)
    )
    (event,) = await ledger.log.append("s", [start])
    assert isinstance(event, ev.CallEvent)
    return event.call


async def test_returned_events_have_no_content_for_a_caller_that_may_not_read(ledger: LocalLedger, app: Any) -> None:
    """They have what the ledger has set; held text of another writer is in none of them, also in a replay."""
    writer, reader = await add_token(ledger, "writer", "write"), await add_token(ledger, "both", "write", "read")
    call = await add_call(ledger)
    await ledger.log.append("s", [ev.MessageDelta(text=f"{SECRET} sk-ant-api03-", chunks="delta")])
    messages = [
        {"type": "message.delta", "text": "is not a key.", "chunks": "delta"},
        {"type": "turn.started"},
        {"type": "call.completed", "aliases": [["t", "c"]], "output": "own output"},
    ]
    replies = [await post(app, writer | {"idempotency-key": "k"}, *messages, query="?return=events") for _ in range(2)]
    assert replies[0].body == replies[1].body and replies[0].status == 200
    events = load(replies[0])["events"]
    assert [event["type"] for event in events] == [message["type"] for message in messages]
    assert (events[1]["turn"], events[2]["call"]) == ("t1", call) and all(event["seq"] for event in events)
    assert SECRET not in replies[0].body.decode() and "output" not in replies[0].body.decode()
    full = await post(app, reader, {"type": "message.user", "text": "Hello."}, query="?return=events")
    assert load(full)["events"][0]["text"] == "Hello."


async def test_a_program_with_a_write_only_token_can_record_calls(ledger: LocalLedger) -> None:
    """What a remote session needs of its own events is returned."""
    await add_token(ledger, "writer", "write")
    async with (
        running(http.standalone(ledger, MAIN_TOKEN)) as url,
        callslip.connect(url, token="writer-of-this-server") as remote,
    ):
        session = remote.session("s")
        turn = await session.start_turn("hello")
        await session.say("hi")
        await session.end_turn(turn=turn)
    snapshot = await ledger.snapshot("s")
    assert snapshot.info.last_turn == turn and [entry.content for entry in snapshot.entries] == ["hello", "hi"]  # type: ignore[union-attr]


async def test_cancelling_returns_no_content_to_a_caller_that_may_not_read(ledger: LocalLedger, app: Any) -> None:
    """Only ids, the state and times; also if the call has ended in another way, or if the id is ambiguous."""
    writer, call = await add_token(ledger, "writer", "write"), await add_call(ledger)
    await ledger.log.append("s", [ev.CallStarted(tool_name=SECRET), ev.CallStarted(tool_name=SECRET)])
    ambiguous = await request(app, "POST", "/v1/calls/exec_/cancel", writer, {})
    assert ambiguous.status == 409 and "exec_" not in ambiguous.body.decode().replace("'exec_'", "")
    reply = await request(app, "POST", "/v1/calls/c/cancel", writer, {})
    assert (reply.status, load(reply)["call"], load(reply)["state"]) == (200, call, "cancelled")
    assert SECRET not in reply.body.decode()
    await ledger.log.append("s", [ev.CallCompleted(aliases=(ev.Alias("t", "d"),), title=SECRET)])
    reply = await request(app, "POST", "/v1/calls/d/cancel", writer, {})
    assert reply.status == 409 and "current" not in load(reply)
    reply = await request(app, "POST", "/v1/calls/d/cancel", MAIN, {})
    assert reply.status == 409 and load(reply)["current"]["title"] == SECRET


async def test_mcp_tools_return_no_content_to_a_caller_that_may_not_read(ledger: LocalLedger) -> None:
    """Neither the cancelled call nor the one that is in the way."""
    await add_token(ledger, "writer", "write")
    call = await add_call(ledger)
    await ledger.log.append("s", [ev.CallCompleted(aliases=(ev.Alias("t", "d"),), title=SECRET)])
    async with (
        serving_mcp(ledger, TokenAuthorizer(ledger.log, MAIN_TOKEN)) as url,
        over_http(url, token="writer-of-this-server") as client,
    ):
        cancelled = await call_tool(client, "cancel_call", call="c")
        conflict = await call_tool(client, "cancel_call", call="d")
    assert (cancelled["call"], cancelled["state"]) == (call, "cancelled") and conflict["kind"] == "conflict"
    assert SECRET not in str([cancelled, conflict])


async def test_a_submitter_that_may_not_read_gets_no_result(ledger: LocalLedger, app: Any) -> None:
    """Neither the result of its command nor a command with the same id."""
    writer, body = await add_token(ledger, "writer", "write"), {"action": "look", "session": "s", "correlation_id": "j"}
    await ledger.commands.submit("look", session="s", correlation_id="j")
    assert await ledger.commands.claim()
    await ledger.commands.complete("j", SECRET, fence=1)
    reply = await request(app, "POST", "/v1/calls?wait=1", writer, body)
    assert (reply.status, load(reply)["status"]) == (200, "complete") and "result" not in load(reply)
    assert load(await request(app, "POST", "/v1/calls?wait=1", MAIN, body))["result"] == SECRET
    reply = await request(app, "POST", "/v1/calls", writer, {**body, "action": "other"})
    assert reply.status == 409 and "current" not in load(reply)


async def test_answering_returns_no_request_to_a_caller_that_may_not_read(ledger: LocalLedger, app: Any) -> None:
    """Neither the description of the request nor the answer of another."""
    approver = await add_token(ledger, "approver", "approve")
    (event,) = (await ledger.log.append("s", [ev.ApprovalRequested(tool_name="rm", description=SECRET)]))[-1:]
    assert isinstance(event, ev.ApprovalRequested)
    path = f"/v1/approvals/{event.approval}"
    reply = await request(app, "POST", path, approver, {"decision": "deny", "reason": "own reason"})
    assert (reply.status, load(reply)["state"], load(reply)["reason"]) == (200, "refused", "own reason")
    assert SECRET not in reply.body.decode()
    reply = await request(app, "POST", path, approver, {"decision": "approve"})
    assert reply.status == 409 and "current" not in load(reply)


async def test_a_chat_post_needs_the_right_to_read(ledger: LocalLedger) -> None:
    """Its response is the turn. A caller that may only write starts none."""

    async def answer(chat: callslip.Chat) -> AsyncIterator[str]:
        yield SECRET

    async def write_only(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
        return "writer" if verb == "write" else None

    app = callslip.chat(ledger, answer, authorize=write_only)
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    reply = await request(app, "POST", "/", {}, {"id": "s", "messages": [message]})
    assert reply.status == 404 and await ledger.log.get_session("s") is None


async def test_an_approval_of_another_session_looks_like_a_missing_one(ledger: LocalLedger, app: Any) -> None:
    """An answer that is posted to another session is recorded without an effect, and says nothing about the request."""
    writer = await add_token(ledger, "writer", "write", session="s")
    (event,) = (await ledger.log.append("theirs", [ev.ApprovalRequested(tool_name="rm")]))[-1:]
    assert isinstance(event, ev.ApprovalRequested)
    answers: list[Any] = []
    for approval in (event.approval, "appr_000000000000"):
        reply = await post(app, writer, {"type": "approval.granted", "approval": approval}, query="?return=events")
        answers.append({**load(reply), "seq": 0, "events": [{**load(reply)["events"][0], "seq": 0, "at": 0}]})
        answers[-1]["events"][0].pop("approval")
    assert answers[0] == answers[1]
    assert (await ledger.find_approval(event.approval)).state == "pending"


# Owner and labels


@pytest.mark.parametrize("session", ["s", "new"])
async def test_labels_are_set_only_by_callers_that_may(ledger: LocalLedger, app: Any, session: str) -> None:
    """Not by a scoped token, in an existing or a new session; nothing of the body is written."""
    await ledger.log.append("s", [ev.SessionInfo(labels={"team": "a"})])
    before = await last_seq(ledger, session)
    token = await add_token(ledger, "all", "read", "write", "approve", "execute")
    messages = [{"type": "message.user", "text": "hello"}, {"type": "session.info", "labels": {"team": "b"}}]
    for body in (messages, [{"events": messages}]):
        reply = await post(app, token, *body, session=session)
        assert reply.status == 403 and "labels" in load(reply)["detail"]
    assert await last_seq(ledger, session) == before
    assert (await post(app, MAIN, *messages, session=session)).status in (200, 201)
    record = await ledger.log.get_session(session)
    assert record is not None and record.labels == {"team": "b"}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "session.info", "foreignId": "uuid"},
        {"type": "session.info", "continues": "uuid"},
        {"type": "call.started", "aliases": [["session", "uuid"]]},
    ],
    ids=["foreignId", "continues", "aliases"],
)
async def test_an_agents_id_is_set_only_by_callers_that_may(ledger: LocalLedger, app: Any, message: Any) -> None:
    """TEN4: the transcript with the id would be imported into the session of the caller, who could read it."""
    token = await add_token(ledger, "one", "read", "write", session="s")
    for body in (message, {"events": [message]}):
        reply = await post(app, token, body)
        assert reply.status == 403 and [*message][1] in load(reply)["detail"]
    codex = {"type": "session_meta", "payload": {"id": "uuid", "cwd": "/x"}}
    assert (await post(app, token, codex, query="?format=codex")).status == 403
    assert await ledger.log.get_session("s") is None
    assert (await post(app, MAIN, message)).status == 201


async def test_a_host_decides_who_sets_labels(ledger: LocalLedger) -> None:
    """Its users do not, unless it returns a principal with that right for the session."""

    def who(request: HTTPConnection, session: SessionRecord | None, verb: str) -> Any:
        user = request.headers["x-user"]
        can_label = session is not None and session.name == "s"
        return Principal(user, can_label=can_label) if user == "admin" else user

    app = callslip.asgi(ledger, authorize=who)
    message = {"type": "session.info", "labels": {"team": "b"}}
    assert (await post(app, {"x-user": "ann"}, message)).status == 403
    assert (await post(app, {"x-user": "admin"}, message, session="other")).status == 403
    assert (await post(app, {"x-user": "admin"}, message)).status == 201


# Callers with the same name


def acp_request(id: int) -> dict[str, Any]:
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
    params = {"sessionId": "x", "toolCall": {"toolCallId": f"c{id}", "title": "rm"}, "options": options}
    return {"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}


ACP_ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {"outcome": {"outcome": "selected", "optionId": "y"}}}


class User:
    """A user of a host, whose name is not unique."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.name = "agent"


@pytest.mark.parametrize("kind", ["tokens", "users"])
async def test_callers_with_the_same_name_are_different_callers(ledger: LocalLedger, kind: str) -> None:
    """One cannot report the answer to a request of the other, nor continue its conversation; views show the name."""
    if kind == "tokens":
        app = http.standalone(ledger, MAIN_TOKEN)
        first, second = [await add_token(ledger, name, "write", label="agent") for name in ("one", "two")]
    else:

        def who(request: HTTPConnection, session: SessionRecord | None, verb: str) -> Any:
            return User(int(request.headers["x-user"])) if verb == "write" else None

        app, first, second = callslip.asgi(ledger, authorize=who), {"x-user": "1"}, {"x-user": "2"}
    assert (await post(app, first, acp_request(1), query="?format=acp")).status == 201
    (approval,) = await ledger.approvals()
    # The answer alone has no meaning without the conversation of the other caller.
    assert (await post(app, second, ACP_ANSWER, query="?format=acp")).status == 200
    assert (await ledger.find_approval(approval.id)).state == "pending"
    # With the request in its own conversation, it is the request of the other caller.
    assert (await post(app, second, acp_request(1), ACP_ANSWER, query="?format=acp")).status == 403
    assert (await ledger.find_approval(approval.id)).state == "pending"
    assert (await post(app, first, ACP_ANSWER, query="?format=acp")).status == 200
    assert (await ledger.find_approval(approval.id)).state == "granted"
    record = await ledger.log.get_session("s")
    assert record is not None and record.owner == "agent"
