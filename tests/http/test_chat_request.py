"""What a chat route makes of requests, good and bad: who may ask, whose a chat is, and what cannot be read (C11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import InvalidInputError
from callslip.http.turn_runner import Chat
from callslip.model import events as ev
from callslip.model.records import SessionRecord
from tests.support import live_server
from tests.support.chat_clients import FORMATS
from tests.support.live_server import TIMEOUT_S, ask, running

pytestmark = pytest.mark.anyio


async def echo(chat: Chat) -> str:
    return f"to {chat.by}: {chat.prompt[:100]}"


@pytest.fixture
async def ledger(db: str) -> AsyncGenerator[LocalLedger]:
    async with await callslip.open(db) as ledger:
        yield ledger


def prompt_body(text: str, chat: str = "c1", identity: str = "m1", **more: Any) -> dict[str, Any]:
    message = {"id": identity, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat, "messages": [message], **more}


# Bad input

USER = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
CALL = {"type": "dynamic-tool", "toolCallId": "exec_000000000000", "state": "output-available", "output": 1}
ASKED = {"type": "dynamic-tool", "toolCallId": "x", "state": "approval-responded"}
ANSWERED = {**ASKED, "approval": {"id": "?", "approved": True}}


def theirs(chat: str, *parts: Any) -> dict[str, Any]:
    """A request that continues an answer."""
    return {"id": chat, "messages": [{"role": "assistant", "parts": list(parts)}]}


REFUSED: dict[str, tuple[Any, int, str]] = {
    "a list": ([], 400, "body"),
    "a text": ("hi", 400, "body"),
    "null": (None, 400, "body"),
    "nothing": ({}, 400, "id"),
    "no id": ({"messages": [USER]}, 400, "id"),
    "an empty id": ({"id": "", "messages": [USER]}, 400, "id"),
    "an id that is a number": ({"id": 7, "messages": [USER]}, 400, "id"),
    "an id with a slash": ({"id": "a/b", "messages": [USER]}, 400, "session"),
    "an id that climbs": ({"id": "..", "messages": [USER]}, 400, "session"),
    "an id with a control character": ({"id": "a\u0000b", "messages": [USER]}, 400, "session"),
    "an id that is too long": ({"id": "x" * 5000, "messages": [USER]}, 400, "session"),
    "no messages": ({"id": "c1"}, 400, "messages"),
    "messages that are none": ({"id": "c1", "messages": {"0": USER}}, 400, "messages"),
    "an empty list": ({"id": "c1", "messages": []}, 400, "messages"),
    "a message that is none": ({"id": "c1", "messages": [17]}, 400, "messages"),
    "a role that is not known": ({"id": "c1", "messages": [{**USER, "role": "root"}]}, 400, "messages"),
    "a role that is a list": ({"id": "c1", "messages": [{**USER, "role": ["user"]}]}, 400, "messages"),
    "an answer in a chat that is not there": (theirs("nowhere", CALL), 404, ""),
    "an output for a call that is not there": (theirs("old", CALL), 409, ""),
    "nothing to answer": (theirs("old"), 409, ""),
    "parts that are none": (theirs("old", 7, None, "x", []), 409, ""),
    "an approval that is not there": (theirs("old", ANSWERED), 404, ""),
    "an approval without a name": (theirs("old", {**ASKED, "approval": {"approved": True}}), 404, ""),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_an_invalid_chat_request_is_refused(ledger: LocalLedger, what: str) -> None:
    """The problem names the invalid field, no handler is called, and nothing is written."""
    requests: list[Chat] = []
    body, status, field = REFUSED[what]
    await ledger.session("old").start_turn("hi")
    await ledger.session("old").end_turn()
    before = [row.last_seq for row in (await ledger.sessions()).items]
    async with running(callslip.chat(ledger, requests.append)) as url:
        response = await ask(
            f"{url}/", "POST", body=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
    assert (response.status, response.json().get("field", "")) == (status, field), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert requests == [] and [row.last_seq for row in (await ledger.sessions()).items] == before


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (json.dumps(prompt_body("hi")).encode(), "text/plain", 415),
        (json.dumps(prompt_body("hi")).encode(), "application/x-www-form-urlencoded", 415),
        (json.dumps(prompt_body("hi")).encode(), "application/json; charset=utf-8", 200),
        (json.dumps(prompt_body("hi")).encode(), "", 200),
    ],
)
async def test_a_body_that_is_not_json_is_refused(ledger: LocalLedger, body: bytes, media: str, status: int) -> None:
    """Other content types are refused, because a form of another site can send them."""
    async with running(callslip.chat(ledger, echo)) as url:
        response = await ask(f"{url}/", "POST", body=body, headers={"content-type": media} if media else {})
        assert response.status == status


async def test_an_approval_of_another_chat_is_not_found(ledger: LocalLedger) -> None:
    """The approval stays pending."""

    async def handler(chat: Chat) -> None:
        async with chat.session.call("delete", {}, approval=True):
            pass

    async with running(callslip.chat(ledger, handler)) as url:
        for name in ("c1", "c2"):
            assert (await ask(f"{url}/", "POST", value=prompt_body("go", name))).status == 200
        (request,) = await ledger.approvals(session="c1")
        part = {**ASKED, "approval": {"id": request.id, "approved": True}}
        assert (await ask(f"{url}/", "POST", value=theirs("c2", part))).status == 404
        assert [row.id for row in await ledger.approvals(session="c1")] == [request.id]


@pytest.mark.parametrize("format", FORMATS)
async def test_an_unknown_chat_cannot_be_resumed_read_or_stopped(ledger: LocalLedger, format: str) -> None:
    """Resuming returns an empty response; reading and stopping give 404."""
    async with running(callslip.chat(ledger, echo, format=format)) as url:
        idle = 200 if format == "vercel-v4" else 204
        for path in ("/nowhere/stream", "/?chatId=nowhere"):
            response = await ask(url + path)
            assert (response.status, response.body) == (idle, b"")
        assert (await ask(f"{url}/nowhere")).status == 404
        assert (await ask(f"{url}/nowhere/stop", "POST")).status == 404
        assert (await ask(f"{url}/nowhere", "DELETE")).status == 405
        assert (await ledger.sessions()).items == []


async def test_a_finished_turn_can_be_resumed_for_a_short_time(ledger: LocalLedger) -> None:
    """A client that was disconnected shortly before the end still gets it; later it gets 204."""
    async with running(callslip.chat(ledger, echo)) as url, running(callslip.chat(ledger, echo, linger=-1)) as late:
        await ask(f"{url}/", "POST", value=prompt_body("hi"))
        assert b"to " in (await ask(f"{url}/c1/stream")).body
        assert (await ask(f"{late}/c1/stream")).status == 204
        assert (await ask(f"{late}/c1/stream?turn=t1")).status == 200
        assert (await ask(f"{late}/c1/stream?turn=t9")).status == 404


async def test_large_prompts_and_files_are_stored_unchanged(ledger: LocalLedger) -> None:
    """A megabyte of text, an image in a data URL and an image on another server."""
    image = {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": "data:image/png;base64,aGk="}
    parts = [image, {"type": "text", "text": "x" * 2**20}, {**image, "url": "https://example.org/b.png"}]
    async with running(callslip.chat(ledger, echo)) as url:
        value = {"id": "c1", "messages": [{"id": "m1", "role": "user", "parts": parts}]}
        response = await ask(f"{url}/", "POST", value=value)
        assert response.status == 200 and b"xxx" in response.body
        (message, _) = (await ask(f"{url}/c1")).json()
    files = [part for part in message["parts"] if part["type"] == "file"]
    assert files == [{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGk="}]
    assert message["parts"][0]["text"] == "x" * 2**20
    assert "https://example.org/b.png" in str(message["parts"])


@pytest.mark.parametrize("text", ["", "\ud800", "__proto__", "\u2028\u0000\x1b[31m", "<script>alert(1)</script>"])
async def test_hostile_prompt_text_is_answered(ledger: LocalLedger, text: str) -> None:
    """The prompt is stored, answered and streamed back."""
    async with running(callslip.chat(ledger, echo)) as url:
        response = await ask(f"{url}/", "POST", body=json.dumps(prompt_body(text)).encode())
        assert response.status == 200 and response.body.endswith(b"data: [DONE]\n\n")


async def test_a_format_without_a_chat_client_is_refused(ledger: LocalLedger) -> None:
    """Before the app is created."""
    with pytest.raises(InvalidInputError, match="ui-v6"):
        callslip.chat(ledger, echo, format="openai")


# Who


def by_header(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
    """A host that knows people by a header, and lets each see what is theirs."""
    user = request.headers.get("x-user", "")
    return user if user and (session is None or session.owner in ("", user)) else None


def ann(**more: str) -> dict[str, str]:
    return {"x-user": "ann", **more}


@pytest.mark.parametrize("format", FORMATS)
async def test_a_chat_is_hidden_from_other_users(ledger: LocalLedger, format: str) -> None:
    """For other users it does not exist: they cannot read, resume, continue or stop it."""
    chat = "threadId" if format == "ag-ui" else "id"
    message = {"id": "m1", "role": "user", "content": "hi", "parts": [{"type": "text", "text": "hi"}]}
    value = {chat: "c1", "runId": "r1", "messages": [message]}
    app = callslip.chat(ledger, echo, format=format, authorize=by_header)
    async with running(app) as url:
        response = await ask(f"{url}/", "POST", value=value, headers=ann())
        assert response.status == 200 and b"to ann: hi" in response.body
        row = await ledger.log.store.session("c1")
        assert row is not None and row.owner == "ann"
        for user, status in (({"x-user": "bob"}, 404), ({}, 404), (ann(), 200)):
            assert (await ask(f"{url}/c1", headers=user)).status == status
            assert (await ask(f"{url}/c1/stop", "POST", headers=user)).status == status
            assert (await ask(f"{url}/c1/stream?turn=t1", headers=user)).status == status
            assert (await ask(f"{url}/?chatId=c1&turn=t1", headers=user)).status == status
            assert (await ask(f"{url}/", "POST", value=value, headers=user)).status == status
        log = [event async for event in ledger.events("c1")]
        assert sum(isinstance(event, ev.MessageUser) for event in log) == (2 if format == "vercel-v4" else 1)


@pytest.mark.parametrize("path", ["chat", "events"])
async def test_two_users_cannot_create_the_same_chat_concurrently(ledger: LocalLedger, path: str) -> None:
    """The first user gets the session; nothing of the second user is written."""
    both = asyncio.Barrier(2)

    async def hesitant(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
        if session is not None and not session.last_seq and both.n_waiting < 2 and not both.broken:
            try:
                async with asyncio.timeout(1):
                    await both.wait()
            except (TimeoutError, asyncio.BrokenBarrierError):
                pass
        return by_header(request, session, verb)

    app = Starlette(
        routes=[
            Mount("/chat", callslip.chat(ledger, echo, authorize=hesitant)),
            Mount("/api", callslip.asgi(ledger, authorize=hesitant)),
        ]
    )
    async with running(app) as url:

        async def begin(user: str) -> int:
            if path == "chat":
                where, value = f"{url}/chat/", prompt_body(f"I am {user}", identity=user)
            else:
                where = f"{url}/api/v1/sessions/c1/events"
                value = [{"type": "message.user", "text": f"I am {user}"}]
            return (await ask(where, "POST", value=value, headers={"x-user": user})).status

        statuses = await asyncio.gather(begin("ann"), begin("bob"))
    assert sorted(statuses)[0] in (200, 201) and sorted(statuses)[1] == 404
    row = await ledger.log.store.session("c1")
    assert row is not None
    log = [event async for event in ledger.events("c1")]
    assert [event.text for event in log if isinstance(event, ev.MessageUser)] == [f"I am {row.owner}"]
    assert [event.owner for event in log if isinstance(event, ev.SessionInfo)] == [row.owner]


@pytest.mark.parametrize("path", ["chat", "events"])
async def test_two_users_with_write_access_can_create_a_chat_concurrently(ledger: LocalLedger, path: str) -> None:
    """The session belongs to the first user."""
    first = asyncio.Event()

    async def late(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str:
        user = request.headers["x-user"]
        if user == "bob" and session is not None and not session.last_seq:
            await first.wait()  # Bob is admitted to a session that is not there, and then it is Ann's.
        return user

    chat, api = callslip.chat(ledger, echo, authorize=late), callslip.asgi(ledger, authorize=late)
    async with running(Starlette(routes=[Mount("/chat", chat), Mount("/api", api)])) as url:

        async def begin(user: str) -> int:
            response = prompt_body(user, identity=user) if path == "chat" else [{"type": "message.user", "text": user}]
            where = f"{url}/chat/" if path == "chat" else f"{url}/api/v1/sessions/c1/events"
            return (await ask(where, "POST", value=response, headers={"x-user": user})).status

        second = asyncio.ensure_future(begin("bob"))
        await asyncio.sleep(0.05)
        assert await begin("ann") in (200, 201)
        first.set()
        assert await second in (200, 201)
    row = await ledger.log.store.session("c1")
    assert row is not None and row.owner == "ann"
    log = [event async for event in ledger.events("c1")]
    assert [event.text for event in log if isinstance(event, ev.MessageUser)] == ["ann", "bob"]


async def test_two_concurrent_first_prompts_of_a_user_are_both_accepted(ledger: LocalLedger) -> None:
    """As from two tabs: both prompts are written, and the user owns the chat."""
    async with running(callslip.chat(ledger, echo, authorize=by_header)) as url:
        response = await asyncio.gather(
            *(ask(f"{url}/", "POST", value=prompt_body(word, identity=word), headers=ann()) for word in ("one", "two"))
        )
    assert [answer.status for answer in response] == [200, 200]
    row = await ledger.log.store.session("c1")
    assert row is not None and (row.owner, row.turns) == ("ann", 2)


# Where


async def test_a_chat_app_can_be_mounted_under_a_prefix(ledger: LocalLedger) -> None:
    """With and without a trailing slash; AI SDK 5 sends a double slash."""
    app = Starlette(routes=[Mount("/api/chat", callslip.chat(ledger, echo))])
    async with running(app) as url:
        assert (await ask(f"{url}/api/chat/", "POST", value=prompt_body("hi"))).status == 200
        assert (await ask(f"{url}/api/chat//c1/stream")).status == 200
        assert (await ask(f"{url}/api/chat/c1")).json()[0]["role"] == "user"
        assert (await ask(f"{url}/api/chat", "POST", value=prompt_body("hi"))).status == 307


async def test_other_origins_are_refused_unless_allowed(ledger: LocalLedger) -> None:
    """The chat app uses the same browser guard as the server."""
    async with running(callslip.chat(ledger, echo, allow_origins=["https://ok.example"])) as url:
        bad = await ask(f"{url}/", "POST", value=prompt_body("hi"), headers={"origin": "https://evil.example"})
        good = await ask(f"{url}/", "POST", value=prompt_body("hi"), headers={"origin": "https://ok.example"})
    assert (bad.status, good.status) == (403, 200)
    assert good.headers["access-control-allow-origin"] == "https://ok.example"


async def test_closing_the_ledger_cancels_the_handler(db: str) -> None:
    """No handler keeps waiting after the ledger is closed."""
    begun, left = asyncio.Event(), asyncio.Event()

    async def handler(chat: Chat) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            left.set()

    async with await callslip.open(db) as ledger, running(callslip.chat(ledger, handler)) as url:
        body = json.dumps(prompt_body("hi")).encode()
        async with live_server.asking(f"{url}/", "POST", body=body):
            await begun.wait()
    async with asyncio.timeout(TIMEOUT_S):
        await left.wait()


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), (None, ""), ({"a": 1}, '{"a":1}'), (["x"], '["x"]'), (7, "7")],
)
async def test_the_handlers_return_value_becomes_the_answer(ledger: LocalLedger, value: Any, text: str) -> None:
    """A string is used unchanged, None gives no text, other values become JSON; also for a sync handler."""
    async with running(callslip.chat(ledger, lambda chat: value)) as url:
        assert (await ask(f"{url}/", "POST", value=prompt_body("hi"))).status == 200
    entries = (await ledger.snapshot("c1")).entries
    assert "".join(entry.content for entry in entries if getattr(entry, "role", "user") != "user") == text
