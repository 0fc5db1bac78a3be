"""Posted messages cannot answer a request for approval, except with the right to approve or for the own request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.http.access import TokenAuthorizer
from callslip.model import events as ev
from callslip.model.records import TokenRecord
from tests.support.live_server import HttpResponse, fetch, serving_ledger

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ALIAS = ("acp", "7")
ANSWERS = ("approval.granted", "approval.refused", "approval.withdrawn")
ANSWERED_STATES = dict(zip(ANSWERS, ("granted", "refused", "withdrawn"), strict=True))


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncIterator[str]:
    """Serve the ledger with the tokens `writer`, `agent` (both only write) and `approver`."""
    for name, verbs in (("writer", ("write",)), ("agent", ("write",)), ("approver", ("read", "write", "approve"))):
        token = f"{name}-of-this-server"
        await ledger.log.store.put_token(TokenRecord(f"tok_{name}", hash_token(token), name, "", verbs, 1, 0))
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, "the-main-token-of-this-server")) as url:
        yield url


async def request_approval(ledger: LocalLedger, **options: Any) -> ev.ApprovalRequested:
    """Add a call that waits for approval, with an alias."""
    request = ev.ApprovalRequested(
        aliases=(ev.Alias(*ALIAS),), tool_name="rm", input={"path": "a.txt"}, schema=SCHEMA, **options
    )
    events = await ledger.log.append("s", [request], source="python", strict=True)
    assert isinstance(events[-1], ev.ApprovalRequested)
    return events[-1]


async def post(url: str, token: str, *messages: Any, format: str = "events") -> HttpResponse:
    headers = {"authorization": f"Bearer {token}-of-this-server"}
    path = f"{url}/v1/sessions/s/events?format={format}"
    return await fetch(path, "POST", value=list(messages), headers=headers)


async def find_state(ledger: LocalLedger, approval: str) -> tuple[str, str]:
    record = await ledger.find_approval(approval)
    return record.state, record.by


def make_answer(type: str, request: ev.ApprovalRequested, target: str, **fields: Any) -> dict[str, Any]:
    """Return an answer that names the request by its id or by the alias of its call."""
    name = {"approval": request.approval} if target == "id" else {"aliases": [ALIAS]}
    return {"type": type, **name, "by": "boss", **fields}


@pytest.mark.parametrize("target", ["id", "alias"])
@pytest.mark.parametrize("type", ANSWERS)
async def test_a_posted_answer_without_the_right_to_approve_is_refused(
    ledger: LocalLedger, url: str, type: str, target: str
) -> None:
    """403, and nothing of the body is written."""
    request = await request_approval(ledger)
    message = {"type": "message.user", "text": "hello"}
    response = await post(url, "writer", message, make_answer(type, request, target))
    assert response.status == 403 and "approve" in response.text
    assert await find_state(ledger, request.approval) == ("pending", "")
    assert [event.seq async for event in ledger.events("s")][-1] == request.seq


@pytest.mark.parametrize("target", ["id", "alias"])
@pytest.mark.parametrize("type", ANSWERS)
async def test_a_posted_answer_is_recorded_under_the_name_of_the_caller(
    ledger: LocalLedger, url: str, type: str, target: str
) -> None:
    """With the right to approve it counts, but not in the name of another person."""
    request = await request_approval(ledger)
    assert (await post(url, "approver", make_answer(type, request, target))).status == 200
    assert await find_state(ledger, request.approval) == (ANSWERED_STATES[type], "approver")


@pytest.mark.parametrize("fields", [{"input": {"path": 1}}, {"option": "other"}, {"option": "deny"}])
async def test_a_posted_answer_follows_the_rules_of_approve(
    ledger: LocalLedger, url: str, fields: dict[str, Any]
) -> None:
    """Edited arguments match the tool's schema, and the option is one that allows the call."""
    options = [{"optionId": "ok", "kind": "allow_once"}, {"optionId": "deny", "kind": "reject_once"}]
    request = await request_approval(ledger, options=options)
    response = await post(url, "approver", make_answer("approval.granted", request, "id", **fields))
    assert response.status == 200 and response.json()["notUnderstood"] == 1
    assert await find_state(ledger, request.approval) == ("pending", "")


async def test_a_posted_answer_does_not_approve_changed_arguments(ledger: LocalLedger, url: str) -> None:
    """The arguments that were changed after the request must be requested again."""
    request = await request_approval(ledger)
    changed = {"type": "call.input", "aliases": [ALIAS], "input": {"path": "/"}}
    assert (await post(url, "writer", changed)).status == 200
    assert (await post(url, "approver", make_answer("approval.granted", request, "id"))).status == 409
    assert await find_state(ledger, request.approval) == ("pending", "")


def acp_request(request_id: int, call: str) -> dict[str, Any]:
    """Return the request of an ACP agent for permission."""
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]
    params = {"sessionId": "x", "toolCall": {"toolCallId": call, "title": "rm"}, "options": options}
    return {"jsonrpc": "2.0", "id": request_id, "method": "session/request_permission", "params": params}


def acp_answer(request_id: int, option: str = "y") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": {"outcome": {"outcome": "selected", "optionId": option}}}


async def test_an_agent_reports_the_answer_of_its_own_user(ledger: LocalLedger, url: str) -> None:
    """The source and the caller of the request may report its answer without the right to approve."""
    assert (await post(url, "agent", acp_request(1, "c1"), format="acp")).status == 201
    (approval,) = await ledger.approvals()
    assert (await post(url, "agent", acp_answer(1), format="acp")).status == 200
    assert await find_state(ledger, approval.id) == ("granted", "client")


async def test_an_agent_cannot_report_the_answer_to_a_request_of_another(ledger: LocalLedger, url: str) -> None:
    """Neither another caller with the same format, nor the same caller with another format."""
    assert (await post(url, "agent", acp_request(1, "c1"), format="acp")).status == 201
    (approval,) = await ledger.approvals()
    assert (await post(url, "writer", acp_request(1, "c1"), acp_answer(1), format="acp")).status == 403
    answer = {"type": "approval.granted", "approval": approval.id, "source": "acp", "by": "client"}
    assert (await post(url, "agent", answer)).status == 403
    assert await find_state(ledger, approval.id) == ("pending", "")


POSTED_CHANGES = [
    [{"type": "call.input", "input": {"path": "/"}}],
    [{"type": "call.input", "toolName": "format"}],
    [{"type": "call.input_delta", "text": '{"path": "/"}'}],
    [{"type": "call.proposed", "input": {"path": "/"}, "idempotent": True}],
    [{"type": "call.progress", "input": {"path": "/"}, "toolName": "format", "attempt": 1}],
    [{"type": "call.requeued"}, {"type": "call.input", "input": {"path": "/"}}],
    [{"type": "call.started", "toolName": "format", "input": {"path": "/"}}],
]


@pytest.mark.parametrize("state", ["awaiting_approval", "queued", "running"])
@pytest.mark.parametrize("changes", POSTED_CHANGES)
async def test_posted_events_do_not_change_what_a_worker_runs(
    ledger: LocalLedger, url: str, changes: list[dict[str, Any]], state: str
) -> None:
    """Before and after its approval, and while it runs, a command keeps its action and parameters."""
    await ledger.commands.submit(
        "delete", {"path": "a.txt"}, session="s", correlation_id="job-1", approval=True, idempotent=state == "running"
    )
    if state != "awaiting_approval":
        await ledger.approve((await ledger.approvals())[0].id, by="ann")
    if state == "running":
        assert await ledger.commands.claim(worker="one")
    posted = [{"aliases": [["command", "job-1"]], **change} for change in changes]
    assert (await post(url, "writer", *posted)).status == 200
    if state == "awaiting_approval":
        await ledger.approve((await ledger.approvals())[0].id, by="ann")
    (record,) = (await ledger.calls(session="s")).items
    assert (record.state, record.tool) == ("running" if state == "running" else "queued", "delete")
    if state != "running":
        claim = await ledger.commands.claim(worker="one")
        assert claim is not None and (claim.action, claim.params) == ("delete", {"path": "a.txt"})


async def test_a_posted_alias_does_not_take_over_a_command(ledger: LocalLedger, url: str) -> None:
    """The correlation id still names the command, not a call with a forged result."""
    await ledger.commands.submit("delete", {"path": "a.txt"}, session="s", correlation_id="job-1")
    (command,) = (await ledger.calls(session="s")).items
    aliases = [["callslip", "call_forged"], ["command", "job-1"]]
    forged = {"type": "call.completed", "aliases": aliases, "output": "forged"}
    assert (await post(url, "writer", forged)).status == 200
    found = await ledger.commands.find("job-1")
    assert (found.id, found.state) == (command.id, "queued")


async def test_a_posted_request_cannot_name_another_caller(ledger: LocalLedger, url: str) -> None:
    """The ledger sets the caller of a request."""
    forged = {"type": "approval.requested", "toolName": "rm", "source": "acp", "requestedBy": "writer"}
    assert (await post(url, "agent", forged)).status == 201
    events = [event async for event in ledger.events("s")]
    assert [event.requested_by for event in events if isinstance(event, ev.ApprovalRequested)] == ["tok_agent"]


async def test_a_local_import_keeps_the_recorded_name(ledger: LocalLedger) -> None:
    """Without a caller of a server, `by` is who answered when it was recorded."""
    request = await request_approval(ledger)
    await ledger.log.append("s", [ev.ApprovalGranted(approval=request.approval, by="ann")])
    assert await find_state(ledger, request.approval) == ("granted", "ann")
