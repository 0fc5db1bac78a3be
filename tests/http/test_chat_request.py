"""Requests to a chat app: invalid bodies, users and owners of chats, and where the app is mounted (C11)."""

from __future__ import annotations

import asyncio
import itertools
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
from tests.support.live_server import TIMEOUT_S, fetch, running

pytestmark = pytest.mark.anyio


async def echo(chat: Chat) -> str:
    return f"to {chat.by}: {chat.prompt[:100]}"


@pytest.fixture
async def ledger(db: str) -> AsyncGenerator[LocalLedger]:
    async with await callslip.open(db) as ledger:
        yield ledger


def prompt_body(text: str, chat: str = "c1", message_id: str = "m1", **more: Any) -> dict[str, Any]:
    message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat, "messages": [message], **more}


# Invalid requests

USER_MESSAGE = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
CALL_OUTPUT = {"type": "dynamic-tool", "toolCallId": "exec_000000000000", "state": "output-available", "output": 1}
APPROVAL_PART = {"type": "dynamic-tool", "toolCallId": "x", "state": "approval-responded"}
APPROVED_PART = {**APPROVAL_PART, "approval": {"id": "?", "approved": True}}


def continue_body(chat: str, *parts: Any) -> dict[str, Any]:
    """Return a request that continues an answer."""
    return {"id": chat, "messages": [{"role": "assistant", "parts": list(parts)}]}


INVALID_REQUESTS: dict[str, tuple[Any, int, str]] = {
    "a list": ([], 400, "body"),
    "a text": ("hi", 400, "body"),
    "null": (None, 400, "body"),
    "an empty object": ({}, 400, "id"),
    "no id": ({"messages": [USER_MESSAGE]}, 400, "id"),
    "an empty id": ({"id": "", "messages": [USER_MESSAGE]}, 400, "id"),
    "an id that is a number": ({"id": 7, "messages": [USER_MESSAGE]}, 400, "id"),
    "an id with a slash": ({"id": "a/b", "messages": [USER_MESSAGE]}, 400, "session"),
    "an id that is a parent folder": ({"id": "..", "messages": [USER_MESSAGE]}, 400, "session"),
    "an id with a control character": ({"id": "a\u0000b", "messages": [USER_MESSAGE]}, 400, "session"),
    "an id that is too long": ({"id": "x" * 5000, "messages": [USER_MESSAGE]}, 400, "session"),
    "no messages": ({"id": "c1"}, 400, "messages"),
    "messages that are no list": ({"id": "c1", "messages": {"0": USER_MESSAGE}}, 400, "messages"),
    "an empty list": ({"id": "c1", "messages": []}, 400, "messages"),
    "a message that is no object": ({"id": "c1", "messages": [17]}, 400, "messages"),
    "an unknown role": ({"id": "c1", "messages": [{**USER_MESSAGE, "role": "root"}]}, 400, "messages"),
    "a role that is a list": ({"id": "c1", "messages": [{**USER_MESSAGE, "role": ["user"]}]}, 400, "messages"),
    "an answer in an unknown chat": (continue_body("nowhere", CALL_OUTPUT), 404, ""),
    "an output for an unknown call": (continue_body("old", CALL_OUTPUT), 409, ""),
    "nothing to answer": (continue_body("old"), 409, ""),
    "parts that are no objects": (continue_body("old", 7, None, "x", []), 409, ""),
    "an unknown approval": (continue_body("old", APPROVED_PART), 404, ""),
    "an approval without an id": (continue_body("old", {**APPROVAL_PART, "approval": {"approved": True}}), 404, ""),
}


@pytest.mark.parametrize("case", INVALID_REQUESTS)
async def test_an_invalid_chat_request_is_refused(ledger: LocalLedger, case: str) -> None:
    """The problem names the invalid field, no handler is called, and nothing is written."""
    chats: list[Chat] = []
    body, status, field = INVALID_REQUESTS[case]
    await ledger.session("old").start_turn("hi")
    await ledger.session("old").end_turn()
    before = [row.last_seq for row in (await ledger.sessions()).items]
    async with running(callslip.chat(ledger, chats.append)) as url:
        response = await fetch(
            f"{url}/", "POST", body=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
    assert (response.status, response.json().get("field", "")) == (status, field), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert chats == [] and [row.last_seq for row in (await ledger.sessions()).items] == before


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
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
async def test_a_body_that_is_not_json_is_refused(
    ledger: LocalLedger, body: bytes, media_type: str, status: int
) -> None:
    """Other content types are refused, because a form of another site can send them."""
    async with running(callslip.chat(ledger, echo)) as url:
        response = await fetch(f"{url}/", "POST", body=body, headers={"content-type": media_type} if media_type else {})
        assert response.status == status


async def test_an_approval_of_another_chat_is_not_found(ledger: LocalLedger) -> None:
    """The approval stays pending."""

    async def handler(chat: Chat) -> None:
        async with chat.session.call("delete", {}, approval=True):
            pass

    async with running(callslip.chat(ledger, handler)) as url:
        for name in ("c1", "c2"):
            assert (await fetch(f"{url}/", "POST", value=prompt_body("go", name))).status == 200
        (request,) = await ledger.approvals(session="c1")
        part = {**APPROVAL_PART, "approval": {"id": request.id, "approved": True}}
        assert (await fetch(f"{url}/", "POST", value=continue_body("c2", part))).status == 404
        assert [row.id for row in await ledger.approvals(session="c1")] == [request.id]


@pytest.mark.parametrize("format", FORMATS)
async def test_an_unknown_chat_cannot_be_resumed_read_or_stopped(ledger: LocalLedger, format: str) -> None:
    """Resuming returns an empty response; reading and stopping give 404."""
    async with running(callslip.chat(ledger, echo, format=format)) as url:
        idle = 200 if format == "vercel-v4" else 204
        for path in ("/nowhere/stream", "/?chatId=nowhere"):
            response = await fetch(url + path)
            assert (response.status, response.body) == (idle, b"")
        assert (await fetch(f"{url}/nowhere")).status == 404
        assert (await fetch(f"{url}/nowhere/stop", "POST")).status == 404
        assert (await fetch(f"{url}/nowhere", "DELETE")).status == 405
        assert (await ledger.sessions()).items == []


async def test_a_finished_turn_can_be_resumed_for_a_short_time(ledger: LocalLedger) -> None:
    """A client that was disconnected shortly before the end still gets it; later it gets 204."""
    async with (
        running(callslip.chat(ledger, echo)) as url,
        running(callslip.chat(ledger, echo, linger=-1)) as no_linger_url,
    ):
        await fetch(f"{url}/", "POST", value=prompt_body("hi"))
        assert b"to " in (await fetch(f"{url}/c1/stream")).body
        assert (await fetch(f"{no_linger_url}/c1/stream")).status == 204
        assert (await fetch(f"{no_linger_url}/c1/stream?turn=t1")).status == 200
        assert (await fetch(f"{no_linger_url}/c1/stream?turn=t9")).status == 404


async def test_large_prompts_and_files_are_stored_unchanged(ledger: LocalLedger) -> None:
    """A megabyte of text, an image in a data URL and an image on another server."""
    image = {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": "data:image/png;base64,aGk="}
    parts = [image, {"type": "text", "text": "x" * 2**20}, {**image, "url": "https://example.org/b.png"}]
    async with running(callslip.chat(ledger, echo)) as url:
        body = {"id": "c1", "messages": [{"id": "m1", "role": "user", "parts": parts}]}
        response = await fetch(f"{url}/", "POST", value=body)
        assert response.status == 200 and b"xxx" in response.body
        (message, _) = (await fetch(f"{url}/c1")).json()
    files = [part for part in message["parts"] if part["type"] == "file"]
    assert files == [{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGk="}]
    assert message["parts"][0]["text"] == "x" * 2**20
    assert "https://example.org/b.png" in str(message["parts"])


@pytest.mark.parametrize("text", ["", "\ud800", "__proto__", "\u2028\u0000\x1b[31m", "<script>alert(1)</script>"])
async def test_hostile_prompt_text_is_answered(ledger: LocalLedger, text: str) -> None:
    """The prompt is stored, answered and streamed back."""
    async with running(callslip.chat(ledger, echo)) as url:
        response = await fetch(f"{url}/", "POST", body=json.dumps(prompt_body(text)).encode())
        assert response.status == 200 and response.body.endswith(b"data: [DONE]\n\n")


async def test_a_format_without_a_chat_client_is_refused(ledger: LocalLedger) -> None:
    """Before the app is created."""
    with pytest.raises(InvalidInputError, match="ui-v6"):
        callslip.chat(ledger, echo, format="openai")


# Users


def admit_by_header(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
    """Identify users by a header, and admit each to their own chats."""
    user = request.headers.get("x-user", "")
    return user if user and (session is None or session.owner in ("", user)) else None


def ann_headers(**more: str) -> dict[str, str]:
    return {"x-user": "ann", **more}


@pytest.mark.parametrize("format", FORMATS)
async def test_a_chat_is_hidden_from_other_users(ledger: LocalLedger, format: str) -> None:
    """For other users it does not exist: they cannot read, resume, continue or stop it."""
    chat = "threadId" if format == "ag-ui" else "id"
    message = {"id": "m1", "role": "user", "content": "hi", "parts": [{"type": "text", "text": "hi"}]}
    value = {chat: "c1", "runId": "r1", "messages": [message]}
    app = callslip.chat(ledger, echo, format=format, authorize=admit_by_header)
    async with running(app) as url:
        response = await fetch(f"{url}/", "POST", value=value, headers=ann_headers())
        assert response.status == 200 and b"to ann: hi" in response.body
        row = await ledger.log.store.session("c1")
        assert row is not None and row.owner == "ann"
        for user, status in (({"x-user": "bob"}, 404), ({}, 404), (ann_headers(), 200)):
            assert (await fetch(f"{url}/c1", headers=user)).status == status
            assert (await fetch(f"{url}/c1/stop", "POST", headers=user)).status == status
            assert (await fetch(f"{url}/c1/stream?turn=t1", headers=user)).status == status
            assert (await fetch(f"{url}/?chatId=c1&turn=t1", headers=user)).status == status
            assert (await fetch(f"{url}/", "POST", value=value, headers=user)).status == status
        log = [event async for event in ledger.events("c1")]
        assert sum(isinstance(event, ev.MessageUser) for event in log) == (2 if format == "vercel-v4" else 1)


@pytest.mark.parametrize("delayed_check", [1, 2, 3])
async def test_a_session_created_during_a_check_of_access_stays_private(
    ledger: LocalLedger, delayed_check: int
) -> None:
    """Ann creates the session while the host decides for the n-th time about Bob's request, which is then refused."""
    is_created, is_waiting, checks = asyncio.Event(), asyncio.Event(), itertools.count(1)

    async def admit_bob_late(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
        decision = admit_by_header(request, session, verb)
        if request.headers["x-user"] == "bob" and next(checks) == delayed_check:
            is_waiting.set()
            await is_created.wait()
        return decision

    async with running(callslip.asgi(ledger, authorize=admit_bob_late)) as url:

        async def post(user: str) -> int:
            value = [{"type": "message.user", "text": f"I am {user}"}]
            return (await fetch(f"{url}/v1/sessions/c1/events", "POST", value=value, headers={"x-user": user})).status

        bob = asyncio.create_task(post("bob"))
        await is_waiting.wait()
        assert await post("ann") == 201
        is_created.set()
        assert await bob == 404
    texts = [event.text async for event in ledger.events("c1") if isinstance(event, ev.MessageUser)]
    assert texts == ["I am ann"]


@pytest.mark.parametrize("path", ["chat", "events"])
async def test_two_users_cannot_create_the_same_chat_concurrently(ledger: LocalLedger, path: str) -> None:
    """The first user gets the session; nothing of the second user is written."""
    barrier = asyncio.Barrier(2)

    async def admit_together(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
        if session is not None and not session.last_seq and barrier.n_waiting < 2 and not barrier.broken:
            try:
                async with asyncio.timeout(1):
                    await barrier.wait()
            except (TimeoutError, asyncio.BrokenBarrierError):
                pass
        return admit_by_header(request, session, verb)

    app = Starlette(
        routes=[
            Mount("/chat", callslip.chat(ledger, echo, authorize=admit_together)),
            Mount("/api", callslip.asgi(ledger, authorize=admit_together)),
        ]
    )
    async with running(app) as url:

        async def create_chat(user: str) -> int:
            if path == "chat":
                target_url, value = f"{url}/chat/", prompt_body(f"I am {user}", message_id=user)
            else:
                target_url = f"{url}/api/v1/sessions/c1/events"
                value = [{"type": "message.user", "text": f"I am {user}"}]
            return (await fetch(target_url, "POST", value=value, headers={"x-user": user})).status

        statuses = await asyncio.gather(create_chat("ann"), create_chat("bob"))
    assert sorted(statuses)[0] in (200, 201) and sorted(statuses)[1] == 404
    row = await ledger.log.store.session("c1")
    assert row is not None
    log = [event async for event in ledger.events("c1")]
    assert [event.text for event in log if isinstance(event, ev.MessageUser)] == [f"I am {row.owner}"]
    assert [event.owner for event in log if isinstance(event, ev.SessionInfo)] == [row.owner]


@pytest.mark.parametrize("path", ["chat", "events"])
async def test_two_users_with_write_access_can_create_a_chat_concurrently(ledger: LocalLedger, path: str) -> None:
    """The session belongs to the first user."""
    created = asyncio.Event()

    async def admit_bob_late(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str:
        user = request.headers["x-user"]
        if user == "bob" and session is not None and not session.last_seq:
            await created.wait()  # Bob is admitted before the session exists; then Ann creates it.
        return user

    chat, api = callslip.chat(ledger, echo, authorize=admit_bob_late), callslip.asgi(ledger, authorize=admit_bob_late)
    async with running(Starlette(routes=[Mount("/chat", chat), Mount("/api", api)])) as url:

        async def create_chat(user: str) -> int:
            value = prompt_body(user, message_id=user) if path == "chat" else [{"type": "message.user", "text": user}]
            target_url = f"{url}/chat/" if path == "chat" else f"{url}/api/v1/sessions/c1/events"
            return (await fetch(target_url, "POST", value=value, headers={"x-user": user})).status

        second = asyncio.ensure_future(create_chat("bob"))
        await asyncio.sleep(0.05)
        assert await create_chat("ann") in (200, 201)
        created.set()
        assert await second in (200, 201)
    row = await ledger.log.store.session("c1")
    assert row is not None and row.owner == "ann"
    log = [event async for event in ledger.events("c1")]
    assert [event.text for event in log if isinstance(event, ev.MessageUser)] == ["ann", "bob"]


async def test_two_concurrent_first_prompts_of_a_user_are_both_accepted(ledger: LocalLedger) -> None:
    """As from two tabs: both prompts are written, and the user owns the chat."""
    async with running(callslip.chat(ledger, echo, authorize=admit_by_header)) as url:
        responses = await asyncio.gather(
            *(
                fetch(f"{url}/", "POST", value=prompt_body(word, message_id=word), headers=ann_headers())
                for word in ("one", "two")
            )
        )
    assert [response.status for response in responses] == [200, 200]
    row = await ledger.log.store.session("c1")
    assert row is not None and (row.owner, row.turns) == ("ann", 2)


# Mounting and closing


async def test_a_chat_app_can_be_mounted_under_a_prefix(ledger: LocalLedger) -> None:
    """With and without a trailing slash; AI SDK 5 sends a double slash."""
    app = Starlette(routes=[Mount("/api/chat", callslip.chat(ledger, echo))])
    async with running(app) as url:
        assert (await fetch(f"{url}/api/chat/", "POST", value=prompt_body("hi"))).status == 200
        assert (await fetch(f"{url}/api/chat//c1/stream")).status == 200
        assert (await fetch(f"{url}/api/chat/c1")).json()[0]["role"] == "user"
        assert (await fetch(f"{url}/api/chat", "POST", value=prompt_body("hi"))).status == 307


async def test_other_origins_are_refused_unless_allowed(ledger: LocalLedger) -> None:
    """The chat app uses the same browser guard as the server."""
    async with running(callslip.chat(ledger, echo, allow_origins=["https://ok.example"])) as url:
        refused = await fetch(f"{url}/", "POST", value=prompt_body("hi"), headers={"origin": "https://evil.example"})
        allowed = await fetch(f"{url}/", "POST", value=prompt_body("hi"), headers={"origin": "https://ok.example"})
    assert (refused.status, allowed.status) == (403, 200)
    assert allowed.headers["access-control-allow-origin"] == "https://ok.example"


async def test_closing_the_ledger_cancels_the_handler(db: str) -> None:
    """No handler keeps waiting after the ledger is closed."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def handler(chat: Chat) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with await callslip.open(db) as ledger, running(callslip.chat(ledger, handler)) as url:
        body = json.dumps(prompt_body("hi")).encode()
        async with live_server.requesting(f"{url}/", "POST", body=body):
            await started.wait()
    async with asyncio.timeout(TIMEOUT_S):
        await ended.wait()


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), (None, ""), ({"a": 1}, '{"a":1}'), (["x"], '["x"]'), (7, "7")],
)
async def test_the_handlers_return_value_becomes_the_answer(ledger: LocalLedger, value: Any, text: str) -> None:
    """A string is used unchanged, None gives no text, other values become JSON; also for a sync handler."""
    async with running(callslip.chat(ledger, lambda chat: value)) as url:
        assert (await fetch(f"{url}/", "POST", value=prompt_body("hi"))).status == 200
    entries = (await ledger.snapshot("c1")).entries
    assert "".join(entry.content for entry in entries if getattr(entry, "role", "user") != "user") == text
