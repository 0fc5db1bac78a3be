"""A request whose answer would not reach its agent cannot be answered here, and says where it must be answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api import approvals
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.errors import ConflictError, NotFoundError
from callslip.formats import registry
from callslip.http.access import TokenAuthorizer
from callslip.http.turn_runner import Chat
from callslip.model import events as ev
from callslip.model.records import TokenRecord
from tests.support.invariants import find_faults
from tests.support.live_server import HttpResponse, fetch, running, serving_ledger
from tests.support.mcp_client import call_tool, over_http, serving_mcp

pytestmark = pytest.mark.anyio

ACP, ROWS, AI_SDK = "the ACP client", "the chat app that stores the rows", "the AI SDK client"
PROMPT = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Go."}]}


def acp_request(call: str = "c1", request_id: int = 1) -> dict[str, Any]:
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]
    params = {"sessionId": "x", "toolCall": {"toolCallId": call, "title": f"rm {call}"}, "options": options}
    return {"jsonrpc": "2.0", "id": request_id, "method": "session/request_permission", "params": params}


ACP_ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {"outcome": {"outcome": "selected", "optionId": "y"}}}


def row(number: int, entity: str, content: Any, *calls: dict[str, Any]) -> dict[str, Any]:
    time = f"2025-01-01T00:00:0{number}Z"
    return {"id": f"m{number}", "creationDate": time, "entity": entity, "content": content, "toolCalls": list(calls)}


def rows_request(validated: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "name": "delete", "arguments": "{}", "validated": validated}
    return [row(1, "USER", {"content": "Go."}), row(2, "AI_TOOL", {"content": "May I?"}, call)]


ROWS_RESULT = row(3, "TOOL", {"tool_call_id": "c1", "content": "Keep it, it is cited."})
UI_STREAM = [
    {"type": "start", "messageId": "a1"},
    {"type": "tool-input-available", "toolCallId": "c1", "toolName": "bash", "input": {"command": "ls"}},
    {"type": "tool-approval-request", "toolCallId": "c1", "approvalId": "their-id"},
]
AG_UI_RUN = [
    {"type": "RUN_STARTED", "threadId": "th", "runId": "r1"},
    {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "bash"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": "{}"},
    {"type": "TOOL_CALL_END", "toolCallId": "c1"},
    {
        "type": "RUN_FINISHED",
        "threadId": "th",
        "runId": "r1",
        "outcome": {"type": "interrupt", "interrupts": [{"id": "i1", "reason": "tool_call", "toolCallId": "c1"}]},
    },
]
MCP_REQUEST = {"id": "r1", "type": "mcp_approval_request", "name": "wipe", "arguments": "{}", "server_label": "docs"}
REQUESTS: dict[str, tuple[str, list[Any], str]] = {
    "acp": ("acp", [acp_request()], ACP),
    "rows, pending": ("rows", rows_request("pending"), ROWS),
    "rows, refused": ("rows", rows_request(False), ROWS),
    "ui-v6": ("ui-v6", UI_STREAM, AI_SDK),
    "ui-v7": ("ui-v7", UI_STREAM, AI_SDK),
    "ag-ui": ("ag-ui", AG_UI_RUN, "the AG-UI client"),
    "responses": ("responses", [MCP_REQUEST], "the program that calls OpenAI"),
}


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[LocalLedger]:
    async with callslip.open(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncIterator[str]:
    """Serve the ledger with the tokens `agent`, which only writes, and `approver`."""
    for name, verbs in (("agent", ("write",)), ("approver", ("read", "write", "approve"))):
        record = TokenRecord(f"tok_{name}", hash_token(f"{name}-of-this-server"), name, "", verbs, 1, 0)
        await ledger.log.store.put_token(record)
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, "the-main-token-of-this-server")) as url:
        yield url


async def request(url: str, path: str, method: str = "GET", value: Any = None, token: str = "approver") -> HttpResponse:
    headers = {"authorization": f"Bearer {token}-of-this-server"}
    return await fetch(f"{url}{path}", method, value=value, headers=headers)


async def post(url: str, messages: list[Any], format: str, token: str = "agent", more: str = "") -> HttpResponse:
    return await request(url, f"/v1/sessions/s/events?format={format}{more}", "POST", messages, token)


async def list_pending(url: str) -> list[dict[str, Any]]:
    return (await request(url, "/v1/approvals")).json()["approvals"]


async def read_requests(url: str) -> list[dict[str, Any]]:
    """Return the entries of requests."""
    entries = (await request(url, "/v1/sessions/s?format=entries")).json()["entries"]
    return [entry for entry in entries if entry["type"] == "permission_request"]


async def check_sound(ledger: LocalLedger) -> None:
    assert not await find_faults(ledger)


@pytest.mark.parametrize("case", REQUESTS)
async def test_a_posted_request_of_an_external_agent_says_where_to_answer(
    ledger: LocalLedger, url: str, case: str
) -> None:
    """It is pending with the place of its answer, and an answer over HTTP is a conflict that changes nothing."""
    format, messages, place = REQUESTS[case]
    assert (await post(url, messages, format)).status == 201
    (pending,) = await list_pending(url)
    assert (pending["state"], pending.get("answerAt")) == ("pending", place)
    assert [entry.get("answerAt") for entry in await read_requests(url)] == [place]
    for decision in ({"decision": "approve"}, {"decision": "deny"}, {"decision": "edit", "input": {}}):
        response = await request(url, f"/v1/approvals/{pending['approval']}", "POST", decision)
        assert response.status == 409 and response.json()["type"] == "urn:callslip:conflict"
        assert response.json()["detail"].startswith(f"approval {pending['approval']}: must be answered in {place}. ")
        assert response.json()["current"] == pending
    assert await list_pending(url) == [pending]
    await check_sound(ledger)


def test_every_format_with_requests_names_its_client() -> None:
    """A decoder that reads requests for approval belongs to a format whose client is known."""
    folder = Path(registry.__file__).parent
    decoders = {name: format.decoder.split(".")[1] for name, format in registry.FORMATS.items() if format.decoder}
    reading = {
        name
        for name, package in decoders.items()
        if any("ApprovalRequested(" in file.read_text() for file in folder.glob(f"{package}/*.py"))
    }
    missing = {name for name in reading if not getattr(registry.FORMATS[name], "client", "")}
    # Chat Completions share a package with Responses, but have no requests.
    assert {"acp", "rows", "responses", "ag-ui"} <= reading and missing == {"openai"}


async def test_no_interface_answers_a_request_of_an_external_agent(ledger: LocalLedger, url: str) -> None:
    """Neither the library, nor a remote client, nor an event posted with the right to approve."""
    await post(url, [acp_request()], "acp")
    (pending,) = await ledger.approvals()
    for answer in (ledger.approve, ledger.deny):
        with pytest.raises(ConflictError, match="must be answered in the ACP client"):
            await answer(pending.id, by="ann")
    with pytest.raises(ConflictError, match="must be answered in the ACP client"):
        await approvals.withdraw(ledger.log, pending.id)
    async with callslip.connect(url, token="approver-of-this-server") as remote:
        (record,) = await remote.approvals()
        assert record == pending
        with pytest.raises(ConflictError, match="must be answered in the ACP client"):
            await remote.approve(pending.id)
    for type in ("approval.granted", "approval.refused", "approval.withdrawn"):
        posted = await post(url, [{"type": type, "approval": pending.id}], "events", "approver")
        assert posted.status == 409 and "must be answered in the ACP client" in posted.text
    assert await ledger.approvals() == [pending]


async def test_the_newest_request_is_the_newest_that_can_be_answered_here(ledger: LocalLedger, url: str) -> None:
    """`@last` does not name a request that must be answered elsewhere."""
    await post(url, [acp_request("c1")], "acp")
    with pytest.raises(NotFoundError, match="no pending approvals that can be answered here"):
        await ledger.approve("@last", by="ann")
    (event, *_) = await ledger.log.append("s", [ev.ApprovalRequested(tool_name="ls")], source="python", strict=True)
    await post(url, [acp_request("c2", 2)], "acp")
    assert isinstance(event, ev.ApprovalRequested)
    assert (await ledger.approve("@last", by="ann")).id == event.approval


@pytest.mark.parametrize("token", ["agent", "approver"])
async def test_the_answer_in_the_place_of_the_request_counts(ledger: LocalLedger, url: str, token: str) -> None:
    """The source of the request reports it, as the same caller or as one who may approve."""
    await post(url, [acp_request()], "acp")
    (pending,) = await list_pending(url)
    assert pending["answerAt"] == ACP
    if token == "approver":  # Another connection, whose decoder has not seen the request.
        assert (await post(url, [acp_request(), ACP_ANSWER], "acp", token)).status == 403
        answer = {"type": "approval.granted", "approval": pending["approval"], "source": "acp"}
        assert (await post(url, [answer], "events", token)).status == 200
    else:
        assert (await post(url, [ACP_ANSWER], "acp", token)).status == 200
    answered = (await request(url, f"/v1/approvals/{pending['approval']}")).json()
    assert (answered["state"], answered["by"]) == ("granted", "client" if token == "agent" else "approver")
    assert "answerAt" not in answered and "answerAt" not in (await read_requests(url))[0]
    with pytest.raises(ConflictError, match="is not pending"):
        await ledger.deny(pending["approval"], by="ann")
    await check_sound(ledger)


async def test_the_refusal_in_a_row_counts(ledger: LocalLedger, url: str) -> None:
    """A call with `validated: false` is pending until the row with the reason, and is not approved in between."""
    await post(url, rows_request(False), "rows")
    (pending,) = await ledger.approvals()
    with pytest.raises(ConflictError, match=ROWS):
        await ledger.approve(pending.id, by="ann")
    assert (await post(url, [ROWS_RESULT], "rows")).status == 200
    answered = await ledger.find_approval(pending.id)
    assert (answered.state, answered.by, answered.reason) == ("refused", "user", "Keep it, it is cited.")
    assert (await ledger.find_call(pending.call)).state == "denied"
    await check_sound(ledger)


async def test_without_tokens_the_real_answer_counts(ledger: LocalLedger) -> None:
    """A caller without a name may report the answer in the format of the request only."""
    async with serving_ledger(ledger) as url:
        path = f"{url}/v1/sessions/s/events?format="
        assert (await fetch(f"{path}acp", "POST", value=[acp_request()])).status == 201
        (pending,) = await ledger.approvals()
        granted = {"type": "approval.granted", "approval": pending.id}
        assert (await fetch(f"{path}events", "POST", value=[granted])).status == 409
        assert (await fetch(f"{path}acp", "POST", value=[ACP_ANSWER])).status == 200
    assert (await ledger.find_approval(pending.id)).state == "granted"


async def test_a_poster_that_delivers_answers_can_be_answered_here(ledger: LocalLedger, url: str) -> None:
    """With `delivers_answers` the poster passes answers on to its agent."""
    await post(url, [acp_request()], "acp", more="&delivers_answers=true")
    (pending,) = await list_pending(url)
    assert "answerAt" not in pending
    approved = await request(url, f"/v1/approvals/{pending['approval']}", "POST", {"decision": "approve"})
    assert (approved.status, approved.json()["option"]) == (200, "y")


async def test_a_request_in_native_events_may_name_its_place(ledger: LocalLedger, url: str) -> None:
    """Without a place it can be answered here, because its poster follows the log."""
    here = {"type": "approval.requested", "toolName": "a"}
    await post(url, [here, {**here, "toolName": "b", "answerAt": "Slack"}], "events")
    first, second = await list_pending(url)
    assert (first.get("answerAt"), second.get("answerAt")) == (None, "Slack")
    paths = [f"/v1/approvals/{pending['approval']}" for pending in (first, second)]
    statuses = [(await request(url, path, "POST", {"decision": "approve"})).status for path in paths]
    assert statuses == [200, 409]
    answer = {"type": "approval.granted", "approval": second["approval"]}
    assert (await post(url, [answer], "events", "agent")).status == 403
    assert (await post(url, [answer], "events", "approver")).status == 200
    assert await list_pending(url) == []


async def test_a_recorded_stream_says_where_to_answer(ledger: LocalLedger) -> None:
    """Unless its program delivers answers."""
    session = ledger.session("s")
    async for _ in session.record(UI_STREAM, format="ui-v6"):
        pass
    (pending,) = await ledger.approvals()
    with pytest.raises(ConflictError, match=AI_SDK):
        await ledger.approve(pending.id, by="ann")
    async for _ in ledger.session("t").record(UI_STREAM, format="ui-v6", delivers_answers=True):
        pass
    (pending,) = await ledger.approvals(session="t")
    assert (await ledger.approve(pending.id, by="ann")).state == "granted"


async def test_a_remote_recording_says_where_to_answer(ledger: LocalLedger, url: str) -> None:
    """A program that records over HTTP; its later report of the answer counts."""
    async with callslip.connect(url, token="approver-of-this-server") as remote:
        session = remote.session("s")
        async for _ in session.record(UI_STREAM, format="ui-v6"):
            pass
        (pending,) = await remote.approvals()
        with pytest.raises(ConflictError, match=AI_SDK):
            await remote.approve(pending.id)
        response = {"type": "tool-approval-response", "approvalId": "their-id", "approved": True}
        async for _ in session.record([response], format="ui-v6"):
            pass
    assert (await ledger.find_approval(pending.id)).state == "granted"


async def test_an_old_request_can_be_answered_as_before(ledger: LocalLedger) -> None:
    """A request that an older version stored has no place, of any source and with any arguments."""
    request = ev.ApprovalRequested(tool_name="a", input={"answerAt": "nowhere"})
    await ledger.log.append("s", [request], source="acp")
    (pending,) = await ledger.approvals()
    assert (await ledger.approve(pending.id, by="ann")).state == "granted"


# Other views and clients


async def test_an_agent_over_mcp_reads_where_to_answer(ledger: LocalLedger) -> None:
    """In the list of calls and in the call itself, while the request is pending."""
    async with serving_mcp(ledger) as address, over_http(address) as client:
        url = address.removesuffix("/mcp")
        await fetch(f"{url}/v1/sessions/s/events?format=acp", "POST", value=[acp_request()])
        (call,) = (await call_tool(client, "list_calls", states=["awaiting_approval"]))["calls"]
        read = await call_tool(client, "read_call", call=call["call"])
        assert (call.get("answerAt"), read.get("answerAt")) == (ACP, ACP)
        await fetch(f"{url}/v1/sessions/s/events?format=acp", "POST", value=[ACP_ANSWER])
        assert "answerAt" not in await call_tool(client, "read_call", call=call["call"])


@pytest.mark.parametrize("format", ["ui-v6", "ui-v7", "ag-ui", "ui-v5", "vercel-v4", "html"])
async def test_no_format_offers_an_answer_that_would_be_refused(ledger: LocalLedger, url: str, format: str) -> None:
    """Clients of a format get no id to answer, neither in the history nor in the stream of a turn."""
    await post(url, [PROMPT, *UI_STREAM], "ui-v6")
    (pending,) = await list_pending(url)
    history = await request(url, f"/v1/sessions/s?format={format}")
    assert history.status == 200 and "approval-requested" not in history.text
    if format in ("ui-v5", "html"):  # A data part or a page that only shows the request.
        assert AI_SDK in history.text
        return
    assert pending["approval"] not in history.text
    snapshot = await ledger.log.state_at("s", pending["entry"])
    encoder = registry.streaming(format).encoder(snapshot, snapshot.info.turn)
    opening = str(encoder.opening())
    assert pending["approval"] not in opening and "interrupt" not in opening and not encoder.finished


async def test_a_chat_client_cannot_answer_for_another_client(ledger: LocalLedger) -> None:
    """Its answer is a conflict, and its stream does not end to wait for an answer."""

    async def handler(chat: Chat) -> None:
        async for _ in chat.session.record([acp_request()], format="acp"):
            pass
        (pending,) = await ledger.approvals()
        await chat.session.log.wait_ended("c", pending.call)

    async with running(callslip.chat(ledger, handler, format="ui-v6")) as url:
        prompt = {"id": "c", "messages": [PROMPT]}
        async with asyncio.TaskGroup() as tasks:
            streamed = tasks.create_task(fetch(f"{url}/", "POST", value=prompt))
            while not (waiting := await ledger.approvals()):
                await asyncio.sleep(0.01)
            part = {"type": "dynamic-tool", "toolCallId": "c1", "state": "approval-responded"}
            part["approval"] = {"id": waiting[0].id, "approved": True}  # type: ignore[assignment]
            answer = {"id": "c", "messages": [PROMPT, {"id": "a", "role": "assistant", "parts": [part]}]}
            refused = await fetch(f"{url}/", "POST", value=answer)
            assert refused.status == 409 and ACP in refused.text and not streamed.done()
            assert [approval.id for approval in await ledger.approvals()] == [waiting[0].id]
            await ledger.cancel(waiting[0].call, reason="enough")
        assert '"type":"tool-approval-request"' not in streamed.result().text
