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
from tests.support.chat_clients import FORMATS, Clients, Page, agent_messages, serving_chat

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def clients(node: str) -> Iterator[Clients]:
    clients = Clients(node)
    yield clients
    clients.close()


async def delete_with_approval(chat: Chat) -> AsyncIterator[str]:
    """Request approval of two calls, one after the other."""
    yield "May I? "
    for number in (1, 2):
        try:
            async with chat.session.call("delete", {"file": number}, approval=True) as call:
                call.complete(f"deleted {call.input}")
        except CallDeniedError as denial:
            yield f"Then not: {denial} "
    yield "Done."


def list_pending(messages: list[Any]) -> list[str]:
    """Return the ids of the pending approvals in the last message."""
    parts = messages[-1].get("parts", [])
    return [part["approval"]["id"] for part in parts if part.get("state") == "approval-requested"]


def drop_approvals(messages: list[Any]) -> list[Any]:
    """Return messages without the approvals of their calls, which version 6 keeps only where a user decided."""
    return [
        {**message, "parts": [{k: v for k, v in part.items() if k != "approval"} for part in message["parts"]]}
        for message in agent_messages(messages)
    ]


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7"])
async def test_the_turn_continues_after_approvals_in_the_page(clients: Clients, db: str, format: str) -> None:
    """The client posts an approval and a denial; its final message equals the stored one."""
    async with serving_chat(clients, db, delete_with_approval, format) as server:
        page = await server.open_page(auto=True)
        response = await page.send("clean up")
        assert (response["status"], response["error"]) == ("ready", None)
        (first,) = list_pending(response["messages"])
        response = await page.do("approve", id=first, approved=True)
        (second,) = list_pending(response["messages"])
        response = await page.do("approve", id=second, approved=False, reason="keep it")
        assert (response["status"], response["error"], response["restarts"]) == ("ready", None, 0)
        stored = await page.history()
        normalize = drop_approvals if format == "ui-v6" else agent_messages
        assert normalize(response["messages"]) == normalize(stored)
        assert "Then not: keep it" in str(stored) and "deleted {'file': 1}" in str(stored)
        rows = await server.ledger.approvals(session=page.id, state="")
        assert [(row.state, row.by) for row in rows] == [("granted", "anonymous"), ("refused", "anonymous")]
        assert agent_messages((await page.reopen())["messages"]) == agent_messages(stored)


@pytest.mark.parametrize("format", FORMATS)
async def test_a_reopened_page_shows_an_approval_given_elsewhere(clients: Clients, db: str, format: str) -> None:
    """A user approves elsewhere. The page, opened again, shows how the turn continued."""
    async with serving_chat(clients, db, delete_with_approval, format) as server:
        page = await server.open_page()
        assert (await page.send("clean up"))["error"] is None
        for _ in range(2):
            pending = await server.ledger.approvals(session=page.id)
            while not pending:
                await asyncio.sleep(0.01)
                pending = await server.ledger.approvals(session=page.id)
            assert (await page.reopen())["error"] is None
            await server.ledger.approve(pending[0].id, by="desk")
        while (await server.ledger.log.store.session(page.id)).turn:
            await asyncio.sleep(0.01)
        response = await page.reopen()
        assert agent_messages(response["messages"]) == agent_messages(await page.history())
        assert "Done." in str(response["messages"])


class ConcurrentCalls:
    """A handler that requests approval of a call while another call runs until `end` is set."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, chat: Chat) -> None:
        async def request_approval() -> None:
            async with chat.session.call("delete", {}, approval=True) as call:
                call.complete("gone")

        async with chat.session.call("watch", {}) as call:
            request = asyncio.ensure_future(request_approval())
            await self.end.wait()
            call.complete("seen")
        await request
        await chat.session.say("Done.")


async def wait_for_request(server: Any, page: Page) -> str:
    """Wait for an approval request of a chat, and return its id."""
    while not (pending := await server.ledger.approvals(session=page.id)):
        await asyncio.sleep(0.01)
    return pending[0].id


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7"])
async def test_an_open_stream_shows_an_approval_given_elsewhere(clients: Clients, db: str, format: str) -> None:
    """The stream stays open while another call runs; version 6 gets a restart notice and resumes."""
    handler = ConcurrentCalls()
    async with serving_chat(clients, db, handler, format) as server:
        page = await server.open_page(comes=True)
        await page.send("clean up", wait=False)
        await server.ledger.approve(await wait_for_request(server, page), by="desk")
        while (await server.ledger.calls(session=page.id, states=["completed"])).items == []:
            await asyncio.sleep(0.01)
        handler.end.set()
        response = await page.do("settle")
        assert response["error"] is None and response["restarts"] == (1 if format == "ui-v6" else 0)
        assert agent_messages(response["messages"]) == agent_messages(await page.history())


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7"])
async def test_an_approval_is_posted_after_the_stream_ends(clients: Clients, db: str, format: str) -> None:
    """The client keeps a decision until the other call and the stream end, then posts it."""
    handler = ConcurrentCalls()
    async with serving_chat(clients, db, handler, format) as server:
        page = await server.open_page(auto=True)
        await page.send("clean up", wait=False)
        request = await wait_for_request(server, page)
        while list_pending((await page.do("look"))["messages"]) != [request]:
            await asyncio.sleep(0.01)
        response = await page.do("approve", id=request, approved=True, wait=False)
        assert response["status"] == "streaming" and len(await server.ledger.approvals(session=page.id)) == 1
        handler.end.set()
        response = await page.do("settle")
        normalize = drop_approvals if format == "ui-v6" else agent_messages
        assert response["error"] is None and normalize(response["messages"]) == normalize(await page.history())
        assert "Done." in str(response["messages"])


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7", "ag-ui"])
@pytest.mark.parametrize("delay_s", [0, 0.02])
async def test_concurrent_approval_requests_are_all_answered(
    clients: Clients, db: str, format: str, delay_s: float
) -> None:
    """Concurrent calls each request approval; the client answers the requests as it learns of them."""

    async def handler(chat: Chat) -> str:
        async def request_approval(number: int) -> None:
            await asyncio.sleep(number * delay_s)
            async with chat.session.call("delete", {"file": number}, approval=True) as call:
                call.complete(f"gone {number}")

        await asyncio.gather(*map(request_approval, range(3)))
        return "All gone."

    async with serving_chat(clients, db, handler, format) as server:
        page = await server.open_page(auto=True)
        response = await page.send("clean up")
        for _ in range(3):
            if format == "ag-ui" and response["interrupts"]:
                payload = {"status": "resolved", "payload": {"approved": True}}
                decisions = [{"interruptId": request["id"], **payload} for request in response["interrupts"]]
                response = await page.do("answer", answers=decisions)
            elif format != "ag-ui":
                pending = list_pending(response["messages"])
                for number, request in enumerate(pending, 1):
                    response = await page.do("approve", id=request, approved=True, wait=number == len(pending))
            assert response["error"] is None
        response = await page.do("settle")
        normalize = drop_approvals if format == "ui-v6" else agent_messages
        assert normalize(response["messages"]) == normalize(await page.history())
        assert "All gone." in str(response["messages"])


async def test_a_second_approval_decision_is_ignored_and_the_page_continues(clients: Clients, db: str) -> None:
    """Another user decided first; the page gets the events it missed."""
    async with serving_chat(clients, db, delete_with_approval, "ui-v7") as server:
        page = await server.open_page(auto=True)
        (first,) = list_pending((await page.send("clean up"))["messages"])
        await server.ledger.approve(first, by="desk")
        while not (pending := await server.ledger.approvals(session=page.id)):
            await asyncio.sleep(0.01)
        response = await page.do("approve", id=first, approved=False)
        assert (response["error"], list_pending(response["messages"])) == (None, [pending[0].id])
        response = await page.do("approve", id=pending[0].id, approved=True)
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

    async with serving_chat(clients, db, handler, format) as server:
        for cut in range(12):
            page = await server.open_page(auto=True)
            response = await page.send("clean up")
            if format == "ag-ui":
                (request,) = response["interrupts"]
                decision = {"interruptId": request["id"], "status": "resolved", "payload": {"approved": True}}
                response = await page.do("answer", answers=[decision], cut=cut)
            else:
                response = await page.do("approve", id=list_pending(response["messages"])[0], approved=True, cut=cut)
            if response["status"] == "ready":
                break
            response = await page.reconnect()
            assert response["error"] is None, cut
            assert agent_messages(response["messages"]) == agent_messages(await page.history()), cut
            assert "Now it is gone." in str(response["messages"])
        assert cut > 2


async def test_an_interrupted_run_continues_in_a_new_run(clients: Clients, db: str) -> None:
    """AG-UI: each request ends a run; the next run has a new id and contains only new events."""
    async with serving_chat(clients, db, delete_with_approval, "ag-ui") as server:
        page = await server.open_page()
        response = await page.send("clean up", run="r1")
        assert (response["outcome"], response["error"]) == ("interrupt", None)
        edited = {"approved": True, "editedArgs": {"file": "other"}}
        for payload in (edited, {"approved": False, "reason": "keep it"}):
            (request,) = response["interrupts"]
            decisions = [{"interruptId": request["id"], "status": "resolved", "payload": payload}]
            response = await page.do("answer", answers=decisions)
            assert response["error"] is None
        assert response["outcome"] == "success" and response["interrupts"] == []
        assert len(set(response["runs"])) == 3 and response["runs"][0] == "r1"
        stored = await page.history()
        assert agent_messages(response["messages"]) == agent_messages(stored)
        assert "deleted {'file': 'other'}" in str(stored) and "Then not: keep it" in str(stored)


async def test_cancelling_an_interrupt_denies_the_call(clients: Clients, db: str) -> None:
    """AG-UI has the status `cancelled` besides the decisions."""
    async with serving_chat(clients, db, delete_with_approval, "ag-ui") as server:
        page = await server.open_page()
        (request,) = (await page.send("clean up"))["interrupts"]
        decisions = [{"interruptId": request["id"], "status": "cancelled"}]
        assert (await page.do("answer", answers=decisions))["error"] is None
        (row,) = await server.ledger.approvals(session=page.id, state="refused")
        assert row.reason == "denied by anonymous"


# Tools of the client


async def ask_location(chat: Chat) -> AsyncIterator[str]:
    """Ask the page for its location twice, and make a call in between."""
    yield "Where? "
    place = await chat.ask_client("locate", {"precise": True})
    async with chat.session.call("look", {}) as call:
        call.complete("seen")
    yield f"At {place}. "
    try:
        yield f"And {await chat.ask_client('locate', {'precise': False})}."
    except CallEndedError as error:
        yield f"No: {error}"


def find_open_call(response: dict[str, Any]) -> str:
    """Return the id of the call for which the client has no result."""
    call_ids: list[str] = []
    for message in response["messages"]:
        for part in message.get("parts", []):
            call = part.get("toolInvocation", part)
            if call.get("state") in ("call", "input-available"):
                call_ids.append(call["toolCallId"])
        call_ids += [call["id"] for call in message.get("toolCalls", [])]
        if message["role"] == "tool":
            call_ids.remove(message["toolCallId"])
    (call,) = call_ids
    return call


@pytest.mark.parametrize("format", FORMATS)
async def test_a_page_tool_returns_its_output_to_the_turn(clients: Clients, db: str, format: str) -> None:
    """The turn waits, the page answers, and the turn continues; twice in one message."""
    async with serving_chat(clients, db, ask_location, format) as server:
        page = await server.open_page(auto=True)
        response = await page.send("where am I")
        for place in ("Paris", "Rome"):
            assert response["error"] is None
            response = await page.do("output", call=find_open_call(response), tool="locate", output=place)
        assert response["error"] is None
        await check_history(page, response)
        assert "At Paris. " in str(response["messages"]) and "And Rome." in str(response["messages"])


async def check_history(page: Page, response: dict[str, Any]) -> None:
    """Check that the messages of the client equal the stored history."""
    assert agent_messages(response["messages"]) == agent_messages(await page.history())


@pytest.mark.parametrize("format", ["ui-v5", "ui-v6", "ui-v7"])
async def test_a_page_tool_can_return_its_output_automatically(clients: Clients, db: str, format: str) -> None:
    """`onToolCall` returns the output during the stream; the client posts it after the stream ends."""
    async with serving_chat(clients, db, ask_location, format) as server:
        page = await server.open_page(auto=True, tools={"locate": "Rome"})
        await page.send("where am I")
        response = await page.do("settle")
        assert response["error"] is None
        await check_history(page, response)
        assert [method for method, *_ in response["requests"]] == []
        assert "And Rome." in str(response["messages"])


@pytest.mark.parametrize("format", ["ui-v5", "ui-v6", "ui-v7"])
async def test_a_page_tool_error_reaches_the_handler(clients: Clients, db: str, format: str) -> None:
    """The handler gets the error, as for any call."""
    async with serving_chat(clients, db, ask_location, format) as server:
        page = await server.open_page(auto=True)
        response = await page.send("where am I")
        response = await page.do("output", call=find_open_call(response), tool="locate", output="Paris")
        response = await page.do("output", call=find_open_call(response), tool="locate", error="no signal")
        assert "No: " in str(response["messages"]) and "no signal" in str(response["messages"])
        assert response["error"] is None


async def test_client_output_for_a_server_call_is_ignored(clients: Clients, db: str) -> None:
    """The posted output is not stored and starts no turn."""
    started, end = asyncio.Event(), asyncio.Event()

    async def handler(chat: Chat) -> None:
        async with chat.session.call("look", {}) as call:
            started.set()
            await end.wait()
            call.complete("mine")

    async with serving_chat(clients, db, handler, "ui-v6") as server:
        page = await server.open_page()
        await page.send("go", wait=False)
        await started.wait()
        (call,) = (await server.ledger.calls(session=page.id)).items
        part = {"type": "dynamic-tool", "toolCallId": call.id, "state": "output-available", "output": "forged"}
        response = await server.post({"id": page.id, "messages": [{"role": "assistant", "parts": [part]}]})
        assert response.status == 409
        end.set()
        settled = await page.do("settle")
        assert settled["messages"][-1]["parts"][-1]["output"] == "mine"


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

    async with serving_chat(clients, db, handler, "ui-v6") as server:
        page = await server.open_page(auto=True)
        (request,) = list_pending((await page.send("2 and 3?"))["messages"])
        response = await page.do("approve", id=request, approved=True)
        assert response["error"] is None
        stored = await page.history()
        assert drop_approvals(response["messages"]) == drop_approvals(stored)
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
        ended_turn = await session.start_turn("hi")
        await session.end_turn()
        for turn in (ended_turn, "t9"):
            with pytest.raises(InvalidTransitionError):
                await Agent(session, Scripted([])).run("hi", turn=turn)
        row = await ledger.log.store.session("s")
        assert row is not None and (row.turns, row.turn) == (1, "")
