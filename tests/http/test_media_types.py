"""The media type of a body is checked by every route whose description has the status 415."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from copy import deepcopy
from typing import Any

import pytest

import callslip
from callslip import http
from callslip.api import rules
from callslip.api.ledger import LocalLedger
from callslip.api.tokens import create_code
from callslip.client.token_file import hash_token, mint_code
from callslip.http.access import AllowAll, TokenAuthorizer
from callslip.http.openapi import document
from callslip.model import events as ev
from callslip.settings import Limits
from tests.support import asgi_client

pytestmark = pytest.mark.anyio

OPERATIONS = [
    (method.upper(), path)
    for path, operations in document(http.ROUTES, Limits())["paths"].items()
    for method, operation in operations.items()
    if "415" in operation["responses"]
]
APPROVAL = "appr_00000000000a"
RULE = {"action": "deny", "filters": {"tool": "rm"}, "scope": "session", "scopeValue": "s"}
# A body that each route accepts.
BODIES: dict[str, Any] = {
    "/v1/sessions/{session}/prompt": {"text": "hi"},
    "/v1/sessions/{session}/events": {"type": "message.user", "text": "hi"},
    "/v1/calls": {"action": "x"},
    "/v1/calls/claim": {},
    "/v1/calls/{call}/result": {"result": 1},
    "/v1/calls/{call}/heartbeat": {"lease": 5},
    "/v1/calls/{call}/release": {"reason": "x"},
    "/v1/calls/{call}/cancel": {},
    "/v1/approvals/{approval}": {"decision": "approve"},
    "/v1/sessions/{session}/approvals/{approval}": {"decision": "approve"},
    "/v1/approvals/answers": [{"id": APPROVAL, "action": "approve"}],
    "/v1/rules": RULE,
    "/v1/rules/preview": RULE,
    "/v1/rules/test": {"command": "git log", "session": "s"},
    "/v1/sign-in": {},
}
WRONG = [
    "text/plain",
    "text/plain; charset=utf-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/json",
    "application/jsonp",
    "application/json-patch+json",
    "application/octet-stream; type=application/json",
    "application /json",
    "json",
]
RIGHT = ["", "application/json", "APPLICATION/JSON", "application/json; charset=utf-8", " Application/Json ;x=y"]


@pytest.fixture
async def ledger() -> AsyncGenerator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as ledger:
        approval = ev.ApprovalRequested(call="new:1", approval=APPROVAL)
        await ledger.log.append("s", [ev.CallProposed(call="new:1", tool_name="rm", input={}), approval])
        yield ledger


async def answer(ledger: LocalLedger, session: str, text: str) -> None:
    """Answer a prompt with nothing."""


class Request:
    """A request that a route accepts, with records of its own to act on."""

    def __init__(self, ledger: LocalLedger, method: str, path: str, body: Any, call: str) -> None:
        has_codes = path == "/v1/sign-in"  # Only a server with tokens has them.
        gate = TokenAuthorizer(ledger.log, "a-token-of-this-test") if has_codes else AllowAll()
        self._app = http.app(http.Server(ledger, gate, answers=answer))
        self._method = method
        self._path = path.format(session="s", call=call, approval=APPROVAL)
        self._body = json.dumps(body).encode()

    @classmethod
    async def make(cls, ledger: LocalLedger, method: str, path: str) -> Request:
        body = deepcopy(BODIES[path])
        command = await ledger.commands.submit("x", session="s")
        if path.endswith(("/result", "/heartbeat", "/release")):
            claim = await ledger.commands.claim()
            assert claim is not None
            body["fence"] = claim.fence
        if path == "/v1/approvals/answers":
            body[0]["inputHash"] = (await ledger.find_approval(APPROVAL)).input_hash
        if path == "/v1/sign-in":
            body["code"] = mint_code()
            await create_code(ledger.log, hash_token(body["code"]), verbs=("read",))
        return cls(ledger, method, path, body, command.correlation_id)

    async def send(self, media_type: str) -> asgi_client.AsgiResponse:
        """Send the request with this media type, without one if it is empty."""
        headers = {"content-type": media_type} if media_type else {}
        return await asgi_client.get(self._app, self._path, headers, self._method, self._body)


async def read_all(ledger: LocalLedger) -> list[Any]:
    sessions = (await ledger.sessions()).items
    events = [(record.name, [event async for event in ledger.events(record.name)]) for record in sessions]
    return [*events, await rules.list_rules(ledger.log)]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_another_media_type_is_refused(ledger: LocalLedger, method: str, path: str) -> None:
    """EDGE1: The response is 415 and names what is supported; nothing changes."""
    request = await Request.make(ledger, method, path)
    before = await read_all(ledger)
    for media_type in WRONG:
        response = await request.send(media_type)
        assert response.status == 415, (media_type, response.body)
        assert "use application/json" in json.loads(response.body)["detail"]
    assert await read_all(ledger) == before
    assert (await request.send("application/json")).status < 300


@pytest.mark.parametrize("media_type", RIGHT)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_json_may_be_named_in_any_way(ledger: LocalLedger, method: str, path: str, media_type: str) -> None:
    """EDGE1: In any case, with parameters, or not at all."""
    response = await (await Request.make(ledger, method, path)).send(media_type)
    assert response.status < 300, response.body


async def test_the_routes_with_a_body_are_complete() -> None:
    """EDGE1: A new route needs a body here."""
    assert {path for _, path in OPERATIONS} == set(BODIES)
