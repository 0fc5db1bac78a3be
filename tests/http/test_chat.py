"""`callslip.chat`: the real clients of every AI SDK major and of AG-UI talk to it over a socket (C6, C8)."""

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
from tests.support.chat_clients import FORMATS, Clients, Page, answers, chatting, prompts
from tests.support.live_server import TIMEOUT_S, Reply, ask, asking, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def clients(node: str) -> Iterator[Clients]:
    created = Clients(node)
    yield created
    created.close()


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return request.param


async def busy(chat: Chat) -> AsyncIterator[Any]:
    """Says, thinks, calls, fails a call, writes arguments in pieces, and says what was asked."""
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
    written = (ev.Alias("model", f"{chat.turn}-1"),)
    yield ev.CallProposed(tool_name="write", aliases=written)
    for piece in ('{"te', 'xt": "', 'hi"}'):
        yield ev.CallInputDelta(text=piece, aliases=written)
        await asyncio.sleep(0.002)
    yield ev.CallCompleted(output="written", aliases=written)
    yield ""
    yield "You said: "
    await asyncio.sleep(0.005)
    yield chat.prompt


async def same_as_stored(page: Page, response: dict[str, Any]) -> None:
    """The client shows what the server returns later, including ids."""
    stored = await page.history()
    assert answers(response["messages"]) == answers(stored)
    assert list(prompts(response["messages"])) == list(prompts(stored))


async def test_the_streamed_answer_equals_the_stored_history(clients: Clients, db: str, format: str) -> None:
    """For two messages in a chat: text, thoughts, calls and data events."""
    async with chatting(clients, db, busy, format) as server:
        page = await server.page()
        for body in ("hello", "and again"):
            response = await page.say(body)
            assert (response["status"], response["error"]) == ("ready", None)
            assert "You said: " + body in str(response["messages"][-1])
            await same_as_stored(page, response)
        assert list(prompts(response["messages"])) == ["hello", "and again"]
        assert len({message["id"] for message in response["messages"]}) == len(response["messages"])


async def test_two_chats_are_answered_concurrently(clients: Clients, db: str, format: str) -> None:
    """The two handlers wait for each other, so sequential handling would block."""
    both = asyncio.Barrier(2)

    async def handler(chat: Chat) -> str:
        await both.wait()
        return f"to {chat.prompt}"

    async with chatting(clients, db, handler, format) as server:
        pages = [await server.page(), await server.page()]
        for number, page in enumerate(pages):
            await page.say(str(number), wait=False)
        for number, page in enumerate(pages):
            response = await page.do("settle")
            assert f"to {number}" in str(response["messages"][-1])
            await same_as_stored(page, response)


async def test_a_stream_resumes_at_any_chunk_after_a_disconnect(clients: Clients, db: str, format: str) -> None:
    """After reconnecting, the client has the messages of an uninterrupted client."""
    async with chatting(clients, db, busy, format) as server:
        uncut = await (page := await server.page()).say("hello")
        expected, cut, most = shape(answers(uncut["messages"])), 0, uncut["chunks"]
        for cut in range(most + 1):
            page = await server.page()
            broken = await page.say("hello", cut=cut)
            if broken["status"] == "ready":
                break
            response = await page.back()
            assert response["error"] is None, cut
            assert shape(answers(response["messages"])) == expected, cut
            await same_as_stored(page, response)
            assert len(list(prompts(response["messages"]))) == 1
        assert cut > 3


def shape(messages: list[Any]) -> Any:
    """Messages without the ids of their calls and entries, which no two sessions share."""
    names: dict[str, str] = {}

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: known(member) for key, member in value.items() if key not in ("id", "callId", "timestamp")}
        if isinstance(value, list):
            return [known(item) for item in value]
        if isinstance(value, str) and value.startswith("exec_"):
            return names.setdefault(value, f"call {len(names)}")
        return value

    return known(messages)


async def until_over(ledger: Any, session: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (await ledger.log.store.session(session)).turn:
            await asyncio.sleep(0.01)


class Gate:
    """A handler that says one word, waits to be let on, and says another. `left` tells how it was left."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.left = asyncio.get_running_loop().create_future()
        self.times = 0

    async def __call__(self, chat: Chat) -> None:
        self.times += 1
        try:
            await chat.session.say("one ")
            async with chat.session.call("wait", {}) as call:
                self.begun.set()
                await self.open.wait()
                call.complete("open")
            await chat.session.say("two")
        except BaseException as error:
            self.left.set_result(type(error))
            raise
        self.left.set_result(None)

    async def gone(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.left


async def turns(ledger: Any, session: str) -> list[ev.TurnEnded]:
    return [event async for event in ledger.events(session) if isinstance(event, ev.TurnEnded)]


async def test_a_page_opened_during_a_turn_receives_the_whole_answer(clients: Clients, db: str, format: str) -> None:
    """It gets the existing part, then the live part, and nothing twice."""
    gate = Gate()
    async with chatting(clients, db, gate, format) as server:
        page = await server.page()
        await page.say("hello", wait=False)
        await gate.begun.wait()
        other = await server.page(page.id)
        opened = asyncio.ensure_future(other.again())
        await asyncio.sleep(0.05)
        gate.open.set()
        response, first = await opened, await page.do("settle")
        assert answers(response["messages"]) == answers(first["messages"])
        await same_as_stored(other, response)
        assert gate.times == 1


async def test_a_disconnect_does_not_stop_the_turn(clients: Clients, db: str, format: str) -> None:
    """The client disconnects during the turn, and the turn ends normally."""
    gate = Gate()
    async with chatting(clients, db, gate, format) as server:
        page = await server.page()
        await page.say("hello", wait=False)
        await gate.begun.wait()
        await page.do("leave")
        gate.open.set()
        assert await gate.gone() is None
        await until_over(server.ledger, page.id)
        assert [end.reason for end in await turns(server.ledger, page.id)] == ["end_turn"]
        await same_as_stored(page, await page.again())


async def test_the_stop_request_cancels_the_turn_and_its_call(clients: Clients, db: str, format: str) -> None:
    """The handler is cancelled and the client's stream ends."""
    gate = Gate()
    async with chatting(clients, db, gate, format) as server:
        page = await server.page()
        await page.say("hello", wait=False)
        await gate.begun.wait()
        response = await server.post(None, f"/{page.id}/stop")
        assert (response.status, response.json()) == (200, {"stopped": True})
        assert await gate.gone() is asyncio.CancelledError
        shown = await page.do("settle")
        assert [end.reason for end in await turns(server.ledger, page.id)] == ["cancelled"]
        (call,) = (await server.ledger.calls(session=page.id)).items
        assert (call.state, call.reason) == ("cancelled", "stopped by anonymous")
        await same_as_stored(page, shown)
        assert (await server.post(None, f"/{page.id}/stop")).json() == {"stopped": False}


async def test_a_second_prompt_supersedes_the_first(clients: Clients, db: str) -> None:
    """The first turn is superseded and the second prompt is answered."""
    gate = Gate()

    async def handler(chat: Chat) -> Any:
        return await gate(chat) if chat.prompt == "first" else "to the second"

    async with chatting(clients, db, handler, "ui-v6") as server:
        page = await server.page()
        await page.say("first", wait=False)
        await gate.begun.wait()
        other = await server.page(page.id)
        response = await other.say("second")
        assert await gate.gone() is asyncio.CancelledError
        assert [end.reason for end in await turns(server.ledger, page.id)] == ["superseded", "end_turn"]
        assert "to the second" in str(response["messages"][-1])
        assert answers((await page.do("settle"))["messages"] + response["messages"]) == answers(await page.history())


async def test_another_process_can_stop_the_turn(clients: Clients, db: str) -> None:
    """A second ledger on the same file stops the turn, and the handler of the first is cancelled."""
    gate = Gate()
    async with chatting(clients, db, gate, "ui-v6") as server, await callslip.open(db) as elsewhere:
        page = await server.page()
        await page.say("hello", wait=False)
        await gate.begun.wait()
        async with (
            running(callslip.chat(elsewhere, gate, format="ui-v6")) as url,
            asking(f"{url}/{page.id}/stream") as watching,
        ):
            await watching.until(b"one ")
            response = await ask(f"{url}/{page.id}/stop", "POST")
            await watching.until(b"[DONE]")
        assert response.json() == {"stopped": True} and gate.times == 1
        assert await gate.gone() is asyncio.CancelledError
        await same_as_stored(page, await page.do("settle"))


async def test_a_handler_error_ends_the_turn_with_an_error(clients: Clients, db: str, format: str) -> None:
    """The client keeps the text so far and receives only the type of the error."""

    async def handler(chat: Chat) -> AsyncIterator[str]:
        yield "so far"
        raise ValueError("the password is 1234")

    async with chatting(clients, db, handler, format) as server:
        page = await server.page()
        response = await page.say("hello")
        assert (response["status"], response["error"]) == ("error", "the handler failed: ValueError")
        (end,) = await turns(server.ledger, page.id)
        assert (end.reason, end.detail) == ("error", "the handler failed: ValueError")
        await same_as_stored(page, response)
        if format.startswith("ui-"):
            assert (await page.again())["error"] == "the turn ended with an error"
        again = await page.say("and now")
        assert again["status"] == "error" and len(await turns(server.ledger, page.id)) == 2


async def test_a_repeated_prompt_request_is_answered_once(clients: Clients, db: str, format: str) -> None:
    """During and after the answer the repeated request streams the same turn."""
    gate = Gate()
    async with chatting(clients, db, gate, format) as server:
        body = POSTS[format]
        async with asking_twice(server.url, body) as replies:
            await gate.begun.wait()
            gate.open.set()
            bodies = [[piece async for piece in reply.pieces()] for reply in replies]
        assert all(b"two" in b"".join(pieces) for pieces in bodies)
        assert gate.times == 1
        if format != "vercel-v4":  # Which asks for another answer by the very same request.
            assert b"two" in (await server.post(body)).body and gate.times == 1
        assert (await server.ledger.log.store.session("twice")).turns == 1
        message = [e async for e in server.ledger.events("twice") if isinstance(e, ev.MessageUser)]
        assert len(message) == 1


USER: dict[str, Any] = {"id": "m1", "role": "user", "content": "hi", "parts": [{"type": "text", "text": "hi"}]}
POSTS: dict[str, dict[str, Any]] = {
    **{f"ui-v{major}": {"id": "twice", "messages": [USER], "trigger": "submit-message"} for major in (5, 6, 7)},
    "vercel-v4": {"id": "twice", "messages": [{"role": "user", "content": "hi"}]},
    "ag-ui": {"threadId": "twice", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "hi"}]},
}


@contextlib.asynccontextmanager
async def asking_twice(url: str, value: Any) -> AsyncIterator[tuple[Reply, Reply]]:
    body, headers = json.dumps(value).encode(), {"content-type": "application/json"}
    first, second = (asking(f"{url}/", "POST", headers=headers, body=body) for _ in range(2))
    async with contextlib.AsyncExitStack() as stack:
        replies = await asyncio.gather(stack.enter_async_context(first), stack.enter_async_context(second))
        yield replies[0], replies[1]


async def test_regenerating_an_answer_starts_a_new_turn(clients: Clients, db: str) -> None:
    """Regenerating and editing a prompt each start a turn, also with unchanged text."""

    async def handler(chat: Chat) -> str:
        return f"{chat.turn}: {chat.prompt}"

    for format in ("ui-v5", "ui-v6", "ui-v7", "vercel-v4"):
        async with chatting(clients, f"{db}-{format}", handler, format) as server:
            page = await server.page()
            await page.say("hello")
            response = await page.do("again")
            assert "t2: hello" in str(response["messages"][-1]) and len(response["messages"]) == 2, format
            assert list(prompts(await page.history())) == ["hello", "hello"]
    async with chatting(clients, f"{db}-changed", handler, "ui-v6") as server:
        page = await server.page()
        first = (await page.say("hello"))["messages"][0]["id"]
        for number, text in enumerate(("other", "hello", "other"), 2):
            changed = {"parts": [{"type": "text", "text": text}], "messageId": first}
            response = await page.do("send", message=changed)
            assert f"t{number}: {text}" in str(response["messages"][-1])
