"""Turns of a chat that wait for its client: requests for approval, and tools that run in the page (S2.7, S4.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import callslip
from callslip.agent.loop import Agent
from callslip.agent.models import Scripted
from callslip.agent.tools import Tool
from callslip.errors import CallDeniedError, CallEndedError, InvalidTransitionError
from callslip.http.turn_runner import Chat
from callslip.model import events as ev
from tests.support.chat_clients import FORMATS, Clients, Page, answers, chatting

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def clients(node: str) -> Iterator[Clients]:
    created = Clients(node)
    yield created
    created.close()


async def careful(chat: Chat) -> AsyncIterator[str]:
    """Asks before it acts, twice."""
    yield "May I? "
    for number in (1, 2):
        try:
            async with chat.session.call("delete", {"file": number}, approval=True) as call:
                call.complete(f"deleted {call.input}")
        except CallDeniedError as no:
            yield f"Then not: {no} "
    yield "Done."


def open_requests(messages: list[Any]) -> list[str]:
    """The requests that a message shows as waiting."""
    parts = messages[-1].get("parts", [])
    return [part["approval"]["id"] for part in parts if part.get("state") == "approval-requested"]


def without_requests(messages: list[Any]) -> list[Any]:
    """Messages but for the answers on their calls, which version 6 keeps only where a person gave them."""
    return [
        {**message, "parts": [{k: v for k, v in part.items() if k != "approval"} for part in message["parts"]]}
        for message in answers(messages)
    ]


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7"])
async def test_the_turn_continues_after_approvals_in_the_page(clients: Clients, db: str, format: str) -> None:
    """The client posts an approval and a denial; its final message equals the stored one."""
    async with chatting(clients, db, careful, format) as server:
        page = await server.page(auto=True)
        response = await page.say("clean up")
        assert (response["status"], response["error"]) == ("ready", None)
        (first,) = open_requests(response["messages"])
        response = await page.do("approve", id=first, approved=True)
        (second,) = open_requests(response["messages"])
        response = await page.do("approve", id=second, approved=False, reason="keep it")
        assert (response["status"], response["error"], response["restarts"]) == ("ready", None, 0)
        stored = await page.history()
        same = without_requests if format == "ui-v6" else answers
        assert same(response["messages"]) == same(stored)
        assert "Then not: keep it" in str(stored) and "deleted {'file': 1}" in str(stored)
        rows = await server.ledger.approvals(session=page.id, state="")
        assert [(row.state, row.by) for row in rows] == [("granted", "anonymous"), ("refused", "anonymous")]
        assert answers((await page.again())["messages"]) == answers(stored)


@pytest.mark.parametrize("format", FORMATS)
async def test_a_reopened_page_shows_an_approval_given_elsewhere(clients: Clients, db: str, format: str) -> None:
    """A user approves elsewhere. The page, opened again, shows how the turn continued."""
    async with chatting(clients, db, careful, format) as server:
        page = await server.page()
        assert (await page.say("clean up"))["error"] is None
        for _ in range(2):
            waiting = await server.ledger.approvals(session=page.id)
            while not waiting:
                await asyncio.sleep(0.01)
                waiting = await server.ledger.approvals(session=page.id)
            assert (await page.again())["error"] is None
            await server.ledger.approve(waiting[0].id, by="desk")
        while (await server.ledger.log.store.session(page.id)).turn:
            await asyncio.sleep(0.01)
        response = await page.again()
        assert answers(response["messages"]) == answers(await page.history())
        assert "Done." in str(response["messages"])


class Beside:
    """A handler that asks for one call while another one runs, until it is let go."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, chat: Chat) -> None:
        async def ask() -> None:
            async with chat.session.call("delete", {}, approval=True) as call:
                call.complete("gone")

        async with chat.session.call("watch", {}) as call:
            asking = asyncio.ensure_future(ask())
            await self.end.wait()
            call.complete("seen")
        await asking
        await chat.session.say("Done.")


async def requested(server: Any, page: Page) -> str:
    """The request of a chat, once it is there."""
    while not (waiting := await server.ledger.approvals(session=page.id)):
        await asyncio.sleep(0.01)
    return waiting[0].id


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7"])
async def test_an_open_stream_shows_an_approval_given_elsewhere(clients: Clients, db: str, format: str) -> None:
    """The stream stays open while another call runs; version 6 gets a restart notice and resumes."""
    handler = Beside()
    async with chatting(clients, db, handler, format) as server:
        page = await server.page(comes=True)
        await page.say("clean up", wait=False)
        await server.ledger.approve(await requested(server, page), by="desk")
        while (await server.ledger.calls(session=page.id, states=["completed"])).items == []:
            await asyncio.sleep(0.01)
        handler.end.set()
        response = await page.do("settle")
        assert response["error"] is None and response["restarts"] == (1 if format == "ui-v6" else 0)
        assert answers(response["messages"]) == answers(await page.history())


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7"])
async def test_an_approval_is_posted_after_the_stream_ends(clients: Clients, db: str, format: str) -> None:
    """The client keeps a decision until the other call and the stream end, then posts it."""
    handler = Beside()
    async with chatting(clients, db, handler, format) as server:
        page = await server.page(auto=True)
        await page.say("clean up", wait=False)
        request = await requested(server, page)
        while open_requests((await page.do("look"))["messages"]) != [request]:
            await asyncio.sleep(0.01)
        response = await page.do("approve", id=request, approved=True, wait=False)
        assert response["status"] == "streaming" and len(await server.ledger.approvals(session=page.id)) == 1
        handler.end.set()
        response = await page.do("settle")
        same = without_requests if format == "ui-v6" else answers
        assert response["error"] is None and same(response["messages"]) == same(await page.history())
        assert "Done." in str(response["messages"])


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7", "ag-ui"])
@pytest.mark.parametrize("pause", [0, 0.02])
async def test_concurrent_approval_requests_are_all_answered(
    clients: Clients, db: str, format: str, pause: float
) -> None:
    """Concurrent calls each request approval; the client answers the requests as it learns of them."""

    async def handler(chat: Chat) -> str:
        async def ask(number: int) -> None:
            await asyncio.sleep(number * pause)
            async with chat.session.call("delete", {"file": number}, approval=True) as call:
                call.complete(f"gone {number}")

        await asyncio.gather(*map(ask, range(3)))
        return "All gone."

    async with chatting(clients, db, handler, format) as server:
        page = await server.page(auto=True)
        response = await page.say("clean up")
        for _ in range(3):
            if format == "ag-ui" and response["interrupts"]:
                payload = {"status": "resolved", "payload": {"approved": True}}
                value = [{"interruptId": request["id"], **payload} for request in response["interrupts"]]
                response = await page.do("answer", answers=value)
            elif format != "ag-ui":
                waiting = open_requests(response["messages"])
                for number, request in enumerate(waiting, 1):
                    response = await page.do("approve", id=request, approved=True, wait=number == len(waiting))
            assert response["error"] is None
        response = await page.do("settle")
        same = without_requests if format == "ui-v6" else answers
        assert same(response["messages"]) == same(await page.history())
        assert "All gone." in str(response["messages"])


async def test_a_second_approval_decision_is_ignored_and_the_page_continues(clients: Clients, db: str) -> None:
    """Another user decided first; the page gets the events it missed."""
    async with chatting(clients, db, careful, "ui-v7") as server:
        page = await server.page(auto=True)
        (first,) = open_requests((await page.say("clean up"))["messages"])
        await server.ledger.approve(first, by="desk")
        while not (waiting := await server.ledger.approvals(session=page.id)):
            await asyncio.sleep(0.01)
        response = await page.do("approve", id=first, approved=False)
        assert (response["error"], open_requests(response["messages"])) == (None, [waiting[0].id])
        response = await page.do("approve", id=waiting[0].id, approved=True)
        assert "deleted {'file': 1}" in str(response) and "deleted {'file': 2}" in str(response)
        texts = [part["text"] for part in response["messages"][-1]["parts"] if part["type"] == "text"]
        assert texts == ["May I? ", "Done."]


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7", "ag-ui"])
async def test_a_stream_resumes_after_a_disconnect_following_an_approval(
    clients: Clients, db: str, format: str
) -> None:
    """For a disconnect at any chunk."""

    async def handler(chat: Chat) -> AsyncIterator[str]:
        async with chat.session.call("delete", {}, approval=True) as call:
            call.complete("gone")
        yield "Now "
        await asyncio.sleep(0.005)
        yield "it is gone."

    async with chatting(clients, db, handler, format) as server:
        for cut in range(12):
            page = await server.page(auto=True)
            response = await page.say("clean up")
            if format == "ag-ui":
                (request,) = response["interrupts"]
                value = {"interruptId": request["id"], "status": "resolved", "payload": {"approved": True}}
                response = await page.do("answer", answers=[value], cut=cut)
            else:
                response = await page.do("approve", id=open_requests(response["messages"])[0], approved=True, cut=cut)
            if response["status"] == "ready":
                break
            response = await page.back()
            assert response["error"] is None, cut
            assert answers(response["messages"]) == answers(await page.history()), cut
            assert "Now it is gone." in str(response["messages"])
        assert cut > 2


async def test_an_interrupted_run_continues_in_a_new_run(clients: Clients, db: str) -> None:
    """AG-UI: each request ends a run; the next run has a new id and contains only new events."""
    async with chatting(clients, db, careful, "ag-ui") as server:
        page = await server.page()
        response = await page.say("clean up", run="r1")
        assert (response["outcome"], response["error"]) == ("interrupt", None)
        edited = {"approved": True, "editedArgs": {"file": "other"}}
        for payload in (edited, {"approved": False, "reason": "keep it"}):
            (request,) = response["interrupts"]
            value = [{"interruptId": request["id"], "status": "resolved", "payload": payload}]
            response = await page.do("answer", answers=value)
            assert response["error"] is None
        assert response["outcome"] == "success" and response["interrupts"] == []
        assert len(set(response["runs"])) == 3 and response["runs"][0] == "r1"
        stored = await page.history()
        assert answers(response["messages"]) == answers(stored)
        assert "deleted {'file': 'other'}" in str(stored) and "Then not: keep it" in str(stored)


async def test_cancelling_an_interrupt_denies_the_call(clients: Clients, db: str) -> None:
    """AG-UI has the status `cancelled` besides the decisions."""
    async with chatting(clients, db, careful, "ag-ui") as server:
        page = await server.page()
        (request,) = (await page.say("clean up"))["interrupts"]
        value = [{"interruptId": request["id"], "status": "cancelled"}]
        assert (await page.do("answer", answers=value))["error"] is None
        (row,) = await server.ledger.approvals(session=page.id, state="refused")
        assert row.reason == "denied by anonymous"


# Tools of the client's


async def located(chat: Chat) -> AsyncIterator[str]:
    """Asks the page where it is, twice, and does something itself in between."""
    yield "Where? "
    place = await chat.ask_client("locate", {"precise": True})
    async with chat.session.call("look", {}) as call:
        call.complete("seen")
    yield f"At {place}. "
    try:
        yield f"And {await chat.ask_client('locate', {'precise': False})}."
    except CallEndedError as error:
        yield f"No: {error}"


def open_call(response: dict[str, Any]) -> str:
    """The call that the client has no result for."""
    found: list[str] = []
    for message in response["messages"]:
        for part in message.get("parts", []):
            call = part.get("toolInvocation", part)
            if call.get("state") in ("call", "input-available"):
                found.append(call["toolCallId"])
        found += [call["id"] for call in message.get("toolCalls", [])]
        if message["role"] == "tool":
            found.remove(message["toolCallId"])
    (call,) = found
    return call


@pytest.mark.parametrize("format", FORMATS)
async def test_a_page_tool_returns_its_output_to_the_turn(clients: Clients, db: str, format: str) -> None:
    """The turn waits, the page answers, and the turn continues; twice in one message."""
    async with chatting(clients, db, located, format) as server:
        page = await server.page(auto=True)
        response = await page.say("where am I")
        for place in ("Paris", "Rome"):
            assert response["error"] is None
            response = await page.do("output", call=open_call(response), tool="locate", output=place)
        assert response["error"] is None
        assert await stands(page, response)
        assert "At Paris. " in str(response["messages"]) and "And Rome." in str(response["messages"])


async def stands(page: Page, response: dict[str, Any]) -> bool:
    """Whether the client shows what is stored."""
    assert answers(response["messages"]) == answers(await page.history())
    return True


@pytest.mark.parametrize("format", ["ui-v5", "ui-v6", "ui-v7"])
async def test_a_page_tool_can_return_its_output_automatically(clients: Clients, db: str, format: str) -> None:
    """`onToolCall` returns the output during the stream; the client posts it after the stream ends."""
    async with chatting(clients, db, located, format) as server:
        page = await server.page(auto=True, tools={"locate": "Rome"})
        await page.say("where am I")
        response = await page.do("settle")
        assert response["error"] is None and await stands(page, response)
        assert [method for method, *_ in response["requests"]] == []
        assert "And Rome." in str(response["messages"])


@pytest.mark.parametrize("format", ["ui-v5", "ui-v6", "ui-v7"])
async def test_a_page_tool_error_reaches_the_handler(clients: Clients, db: str, format: str) -> None:
    """The handler gets the error, as for any call."""
    async with chatting(clients, db, located, format) as server:
        page = await server.page(auto=True)
        response = await page.say("where am I")
        response = await page.do("output", call=open_call(response), tool="locate", output="Paris")
        response = await page.do("output", call=open_call(response), tool="locate", error="no signal")
        assert "No: " in str(response["messages"]) and "no signal" in str(response["messages"])
        assert response["error"] is None


async def test_client_output_for_a_server_call_is_ignored(clients: Clients, db: str) -> None:
    """The posted output is not stored and starts no turn."""
    begun, end = asyncio.Event(), asyncio.Event()

    async def handler(chat: Chat) -> None:
        async with chat.session.call("look", {}) as call:
            begun.set()
            await end.wait()
            call.complete("mine")

    async with chatting(clients, db, handler, "ui-v6") as server:
        page = await server.page()
        await page.say("go", wait=False)
        await begun.wait()
        (call,) = (await server.ledger.calls(session=page.id)).items
        part = {"type": "dynamic-tool", "toolCallId": call.id, "state": "output-available", "output": "forged"}
        response = await server.post({"id": page.id, "messages": [{"role": "assistant", "parts": [part]}]})
        assert response.status == 409
        end.set()
        shown = await page.do("settle")
        assert shown["messages"][-1]["parts"][-1]["output"] == "mine"


# The agent loop


def model_chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


async def test_the_agent_loop_answers_a_chat_with_an_approval(clients: Clients, db: str) -> None:
    """A scripted model and a tool with approval; the turn is ended once."""
    function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    model = Scripted(
        [
            [
                model_chunk(content="Adding."),
                model_chunk(tool_calls=[{"index": 0, "id": "x1", "function": function}]),
                model_chunk("tool_calls"),
            ],
            [model_chunk(content="It is 5."), model_chunk("stop")],
        ]
    )

    async def add(call: Any, input: dict[str, Any]) -> int:
        return input["a"] + input["b"]

    tool = Tool(name="add", run=add, parameters={"type": "object"}, approval=True)

    async def handler(chat: Chat) -> Any:
        return await Agent(chat.session, model, tools=[tool]).run(chat.prompt, turn=chat.turn)

    async with chatting(clients, db, handler, "ui-v6") as server:
        page = await server.page(auto=True)
        (request,) = open_requests((await page.say("2 and 3?"))["messages"])
        response = await page.do("approve", id=request, approved=True)
        assert response["error"] is None
        stored = await page.history()
        assert without_requests(response["messages"]) == without_requests(stored)
        assert [part["type"] for part in stored[1]["parts"]] == [
            "step-start",
            "text",
            "dynamic-tool",
            "step-start",
            "text",
        ]
        log = [event async for event in server.ledger.events(page.id)]
        assert [type(e).__name__ for e in log if isinstance(e, ev.TurnStarted | ev.TurnEnded | ev.MessageUser)] == [
            "TurnStarted",
            "MessageUser",
            "TurnEnded",
        ]
        assert model.histories[0] == [{"role": "user", "content": "2 and 3?"}]


async def test_the_agent_loop_refuses_a_turn_that_is_not_open(db: str) -> None:
    """A turn that has ended, or never existed, is not started again."""
    async with await callslip.open(db) as ledger:
        session = ledger.session("s")
        over = await session.start_turn("hi")
        await session.end_turn()
        for turn in (over, "t9"):
            with pytest.raises(InvalidTransitionError):
                await Agent(session, Scripted([])).run("hi", turn=turn)
        row = await ledger.log.store.session("s")
        assert row is not None and (row.turns, row.turn) == (1, "")
