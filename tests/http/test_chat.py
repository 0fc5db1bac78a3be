"""`callslip.chat` with the real clients of every AI SDK major version and of AG-UI over a socket (C6, C8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import callslip
from callslip.http.turn_runner import Chat
from callslip.model import events as ev
from tests.support.chat_clients import FORMATS, Clients, Page, agent_messages, serving_chat, user_texts
from tests.support.live_server import TIMEOUT_S, StreamedResponse, fetch, requesting, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def clients(node: str) -> Iterator[Clients]:
    clients = Clients(node)
    yield clients
    clients.close()


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return request.param


async def use_all_events(chat: Chat) -> AsyncIterator[Any]:
    """Send text, a thought, calls, a failed call, arguments in chunks, and the prompt."""
    yield "Let me "
    await asyncio.sleep(0.005)
    yield "see."
    await chat.session.think("where is it?")
    async with chat.session.call("look", {"at": [1, "x"]}, title="Looking") as call:
        await asyncio.sleep(0.005)
        call.complete({"found": True})
    yield ev.PlanUpdated(entries=[{"content": "find it", "priority": "high", "status": "completed"}])
    async with chat.session.call("open", {"door": 1}) as call:
        call.fail("it is locked", "it is locked")
    aliases = (ev.Alias("model", f"{chat.turn}-1"),)
    yield ev.CallProposed(tool_name="write", aliases=aliases)
    for piece in ('{"te', 'xt": "', 'hi"}'):
        yield ev.CallInputDelta(text=piece, aliases=aliases)
        await asyncio.sleep(0.002)
    yield ev.CallCompleted(output="written", aliases=aliases)
    yield ""
    yield "You said: "
    await asyncio.sleep(0.005)
    yield chat.prompt


async def check_history(page: Page, response: dict[str, Any]) -> None:
    """Check that the messages of the client equal the stored history, including ids."""
    stored = await page.history()
    assert agent_messages(response["messages"]) == agent_messages(stored)
    assert list(user_texts(response["messages"])) == list(user_texts(stored))


async def test_the_streamed_answer_equals_the_stored_history(clients: Clients, db: str, format: str) -> None:
    """For two messages in a chat: text, thoughts, calls and data events."""
    async with serving_chat(clients, db, use_all_events, format) as server:
        page = await server.open_page()
        for prompt in ("hello", "and again"):
            response = await page.send(prompt)
            assert (response["status"], response["error"]) == ("ready", None)
            assert "You said: " + prompt in str(response["messages"][-1])
            await check_history(page, response)
        assert list(user_texts(response["messages"])) == ["hello", "and again"]
        assert len({message["id"] for message in response["messages"]}) == len(response["messages"])


async def test_two_chats_are_answered_concurrently(clients: Clients, db: str, format: str) -> None:
    """The two handlers wait for each other, so sequential handling would block."""
    both = asyncio.Barrier(2)

    async def handler(chat: Chat) -> str:
        await both.wait()
        return f"to {chat.prompt}"

    async with serving_chat(clients, db, handler, format) as server:
        pages = [await server.open_page(), await server.open_page()]
        for number, page in enumerate(pages):
            await page.send(str(number), wait=False)
        for number, page in enumerate(pages):
            response = await page.do("settle")
            assert f"to {number}" in str(response["messages"][-1])
            await check_history(page, response)


async def test_a_stream_resumes_at_any_chunk_after_a_disconnect(clients: Clients, db: str, format: str) -> None:
    """After reconnecting, the client has the messages of an uninterrupted client."""
    async with serving_chat(clients, db, use_all_events, format) as server:
        uninterrupted = await (page := await server.open_page()).send("hello")
        expected, cut, chunk_count = mask_ids(agent_messages(uninterrupted["messages"])), 0, uninterrupted["chunks"]
        for cut in range(chunk_count + 1):
            page = await server.open_page()
            interrupted = await page.send("hello", cut=cut)
            if interrupted["status"] == "ready":
                break
            response = await page.reconnect()
            assert response["error"] is None, cut
            assert mask_ids(agent_messages(response["messages"])) == expected, cut
            await check_history(page, response)
            assert len(list(user_texts(response["messages"]))) == 1
        assert cut > 3


def mask_ids(messages: list[Any]) -> Any:
    """Return messages without the ids of their calls and entries, which differ between sessions."""
    names: dict[str, str] = {}

    def mask(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: mask(member) for key, member in value.items() if key not in ("id", "callId", "timestamp")}
        if isinstance(value, list):
            return [mask(item) for item in value]
        if isinstance(value, str) and value.startswith("exec_"):
            return names.setdefault(value, f"call {len(names)}")
        return value

    return mask(messages)


async def wait_for_turn_end(ledger: Any, session: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (await ledger.log.store.session(session)).turn:
            await asyncio.sleep(0.01)


class GatedHandler:
    """A handler that sends a word, waits for `open`, and sends another. `ended` holds the type of its error or None."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.ended = asyncio.get_running_loop().create_future()
        self.runs = 0

    async def __call__(self, chat: Chat) -> None:
        self.runs += 1
        try:
            await chat.session.say("one ")
            async with chat.session.call("wait", {}) as call:
                self.started.set()
                await self.open.wait()
                call.complete("open")
            await chat.session.say("two")
        except BaseException as error:
            self.ended.set_result(type(error))
            raise
        self.ended.set_result(None)

    async def wait_ended(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.ended


async def list_turn_ends(ledger: Any, session: str) -> list[ev.TurnEnded]:
    return [event async for event in ledger.events(session) if isinstance(event, ev.TurnEnded)]


async def test_a_page_opened_during_a_turn_receives_the_whole_answer(clients: Clients, db: str, format: str) -> None:
    """It gets the existing part, then the live part, and nothing twice."""
    gate = GatedHandler()
    async with serving_chat(clients, db, gate, format) as server:
        page = await server.open_page()
        await page.send("hello", wait=False)
        await gate.started.wait()
        other = await server.open_page(page.id)
        reading = asyncio.ensure_future(other.reopen())
        await asyncio.sleep(0.05)
        gate.open.set()
        response, first = await reading, await page.do("settle")
        assert agent_messages(response["messages"]) == agent_messages(first["messages"])
        await check_history(other, response)
        assert gate.runs == 1


async def test_a_disconnect_does_not_stop_the_turn(clients: Clients, db: str, format: str) -> None:
    """The client disconnects during the turn, and the turn ends normally."""
    gate = GatedHandler()
    async with serving_chat(clients, db, gate, format) as server:
        page = await server.open_page()
        await page.send("hello", wait=False)
        await gate.started.wait()
        await page.do("leave")
        gate.open.set()
        assert await gate.wait_ended() is None
        await wait_for_turn_end(server.ledger, page.id)
        assert [end.reason for end in await list_turn_ends(server.ledger, page.id)] == ["end_turn"]
        await check_history(page, await page.reopen())


async def test_the_stop_request_cancels_the_turn_and_its_call(clients: Clients, db: str, format: str) -> None:
    """The handler is cancelled and the client's stream ends."""
    gate = GatedHandler()
    async with serving_chat(clients, db, gate, format) as server:
        page = await server.open_page()
        await page.send("hello", wait=False)
        await gate.started.wait()
        stopped = await server.post(None, f"/{page.id}/stop")
        assert (stopped.status, stopped.json()) == (200, {"stopped": True})
        assert await gate.wait_ended() is asyncio.CancelledError
        response = await page.do("settle")
        assert [end.reason for end in await list_turn_ends(server.ledger, page.id)] == ["cancelled"]
        (call,) = (await server.ledger.calls(session=page.id)).items
        assert (call.state, call.reason) == ("cancelled", "stopped by anonymous")
        await check_history(page, response)
        assert (await server.post(None, f"/{page.id}/stop")).json() == {"stopped": False}


async def test_a_second_prompt_supersedes_the_first(clients: Clients, db: str) -> None:
    """The first turn is superseded and the second prompt is answered."""
    gate = GatedHandler()

    async def handler(chat: Chat) -> Any:
        return await gate(chat) if chat.prompt == "first" else "to the second"

    async with serving_chat(clients, db, handler, "ui-v6") as server:
        page = await server.open_page()
        await page.send("first", wait=False)
        await gate.started.wait()
        other = await server.open_page(page.id)
        response = await other.send("second")
        assert await gate.wait_ended() is asyncio.CancelledError
        assert [end.reason for end in await list_turn_ends(server.ledger, page.id)] == ["superseded", "end_turn"]
        assert "to the second" in str(response["messages"][-1])
        assert agent_messages((await page.do("settle"))["messages"] + response["messages"]) == agent_messages(
            await page.history()
        )


async def test_another_process_can_stop_the_turn(clients: Clients, db: str) -> None:
    """A second ledger on the same file stops the turn, and the handler of the first is cancelled."""
    gate = GatedHandler()
    async with serving_chat(clients, db, gate, "ui-v6") as server, await callslip.open(db) as other_ledger:
        page = await server.open_page()
        await page.send("hello", wait=False)
        await gate.started.wait()
        async with (
            running(callslip.chat(other_ledger, gate, format="ui-v6")) as url,
            requesting(f"{url}/{page.id}/stream") as reply,
        ):
            await reply.until(b"one ")
            response = await fetch(f"{url}/{page.id}/stop", "POST")
            await reply.until(b"[DONE]")
        assert response.json() == {"stopped": True} and gate.runs == 1
        assert await gate.wait_ended() is asyncio.CancelledError
        await check_history(page, await page.do("settle"))


async def test_a_handler_error_ends_the_turn_with_an_error(clients: Clients, db: str, format: str) -> None:
    """The client keeps the text so far and receives only the type of the error."""

    async def handler(chat: Chat) -> AsyncIterator[str]:
        yield "so far"
        raise ValueError("the password is 1234")

    async with serving_chat(clients, db, handler, format) as server:
        page = await server.open_page()
        response = await page.send("hello")
        assert (response["status"], response["error"]) == ("error", "the handler failed: ValueError")
        (end,) = await list_turn_ends(server.ledger, page.id)
        assert (end.reason, end.detail) == ("error", "the handler failed: ValueError")
        await check_history(page, response)
        if format.startswith("ui-"):
            assert (await page.reopen())["error"] == "the handler failed: ValueError"
        again = await page.send("and now")
        assert again["status"] == "error" and len(await list_turn_ends(server.ledger, page.id)) == 2


async def test_a_repeated_prompt_request_is_answered_once(clients: Clients, db: str, format: str) -> None:
    """During and after the answer the repeated request streams the same turn."""
    gate = GatedHandler()
    async with serving_chat(clients, db, gate, format) as server:
        body = PROMPT_REQUESTS[format]
        async with requesting_twice(server.url, body) as replies:
            await gate.started.wait()
            gate.open.set()
            bodies = [[piece async for piece in reply.pieces()] for reply in replies]
        assert all(b"two" in b"".join(pieces) for pieces in bodies)
        assert gate.runs == 1
        if format != "vercel-v4":  # Its client sends the same request again to regenerate an answer.
            assert b"two" in (await server.post(body)).body and gate.runs == 1
        assert (await server.ledger.log.store.session("twice")).turns == 1
        messages = [e async for e in server.ledger.events("twice") if isinstance(e, ev.MessageUser)]
        assert len(messages) == 1


USER_MESSAGE: dict[str, Any] = {"id": "m1", "role": "user", "content": "hi", "parts": [{"type": "text", "text": "hi"}]}
PROMPT_REQUESTS: dict[str, dict[str, Any]] = {
    **{f"ui-v{major}": {"id": "twice", "messages": [USER_MESSAGE], "trigger": "submit-message"} for major in (5, 6, 7)},
    "vercel-v4": {"id": "twice", "messages": [{"role": "user", "content": "hi"}]},
    "ag-ui": {"threadId": "twice", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "hi"}]},
}


@contextlib.asynccontextmanager
async def requesting_twice(url: str, value: Any) -> AsyncIterator[tuple[StreamedResponse, StreamedResponse]]:
    body, headers = json.dumps(value).encode(), {"content-type": "application/json"}
    first, second = (requesting(f"{url}/", "POST", headers=headers, body=body) for _ in range(2))
    async with contextlib.AsyncExitStack() as stack:
        replies = await asyncio.gather(stack.enter_async_context(first), stack.enter_async_context(second))
        yield replies[0], replies[1]


async def test_regenerating_an_answer_starts_a_new_turn(clients: Clients, db: str) -> None:
    """Regenerating and editing a prompt each start a turn, also with unchanged text."""

    async def handler(chat: Chat) -> str:
        return f"{chat.turn}: {chat.prompt}"

    for format in ("ui-v5", "ui-v6", "ui-v7", "vercel-v4"):
        async with serving_chat(clients, f"{db}-{format}", handler, format) as server:
            page = await server.open_page()
            await page.send("hello")
            response = await page.do("again")
            assert "t2: hello" in str(response["messages"][-1]) and len(response["messages"]) == 2, format
            assert list(user_texts(await page.history())) == ["hello", "hello"]
    async with serving_chat(clients, f"{db}-changed", handler, "ui-v6") as server:
        page = await server.open_page()
        first = (await page.send("hello"))["messages"][0]["id"]
        for number, text in enumerate(("other", "hello", "other"), 2):
            changed = {"parts": [{"type": "text", "text": text}], "messageId": first}
            response = await page.do("send", message=changed)
            assert f"t{number}: {text}" in str(response["messages"][-1])
