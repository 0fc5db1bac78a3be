"""Requests of a remote client: returned events, leases of its calls, and approval decisions under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.http.access import TokenAuthorizer
from callslip.model import events as ev
from callslip.model.records import CallRecord, TokenRecord
from tests.support.live_server import HttpResponse, fetch, serving_ledger

pytestmark = pytest.mark.anyio
MAIN_TOKEN = "the-main-token-of-this-test"


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncIterator[str]:
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, MAIN_TOKEN)) as url:
        yield url


async def post(url: str, value: Any = None, *, token: str = MAIN_TOKEN, **headers: str) -> HttpResponse:
    extra_headers = {name.replace("_", "-"): text for name, text in headers.items()}
    return await fetch(url, "POST", value=value, headers={"authorization": f"Bearer {token}", **extra_headers})


async def create_token(ledger: LocalLedger, *verbs: str) -> str:
    token = f"token-to-{'-'.join(verbs)}"
    await ledger.log.store.put_token(TokenRecord(token, hash_token(token), "phone", "", verbs, 0))
    return token


async def start_call(ledger: LocalLedger, owner: str = "") -> CallRecord:
    (event,) = await ledger.log.append("s", [ev.CallStarted(call="new:1", tool_name="ls")], owner=owner)
    assert isinstance(event, ev.CallStarted)
    return await ledger.find_call(event.call)


# Events

EVENTS = [
    {"type": "turn.started"},
    {"type": "message.user", "text": "hi"},
    {"type": "call.started", "call": "new:1", "tool_name": "ls"},
]


async def test_a_post_returns_the_appended_events(ledger: LocalLedger, url: str) -> None:
    """They have what the ledger set: seq, ids, verdicts. The owner of a new session is not among them."""
    first = (await post(f"{url}/v1/sessions/s/events?return=events", EVENTS)).json()
    stored = [event async for event in ledger.events("s")]
    assert isinstance(stored[0], ev.SessionInfo)
    assert [event["seq"] for event in first["events"]] == [2, 3, 4] and first["appended"] == 3
    assert [event["type"] for event in first["events"]] == ["turn.started", "message.user", "call.started"]
    assert first["events"][2]["call"] == stored[3].call  # type: ignore[attr-defined]
    assert all("verdict" not in event for event in first["events"]), "applied is the default"


@pytest.mark.parametrize("query", ["", "?return=summary"])
async def test_a_summary_response_contains_no_events(url: str, query: str) -> None:
    """They are returned only with `return=events`."""
    assert "events" not in (await post(f"{url}/v1/sessions/s/events{query}", EVENTS)).json()


async def test_a_repeated_post_returns_the_same_events(ledger: LocalLedger, url: str) -> None:
    """By its idempotency key, also if other events were written in between, and with or without `return=events`."""
    first = (await post(f"{url}/v1/sessions/s/events?return=events", EVENTS, idempotency_key="k")).json()
    await ledger.log.append("s", [ev.MessageDelta(text="between")])
    second = (await post(f"{url}/v1/sessions/s/events?return=events", EVENTS[:2], idempotency_key="k2")).json()
    await ledger.log.append("s", [ev.MessageDelta(text="after")])
    again = (await post(f"{url}/v1/sessions/s/events?return=events", EVENTS, idempotency_key="k")).json()
    assert again["events"] == first["events"] and again["seq"] == first["seq"]
    summary = (await post(f"{url}/v1/sessions/s/events", EVENTS, idempotency_key="k")).json()
    assert "events" not in summary and summary["seq"] == first["seq"]
    again = (await post(f"{url}/v1/sessions/s/events?return=events", EVENTS[:2], idempotency_key="k2")).json()
    assert again["events"] == second["events"]


async def test_a_duplicate_event_is_returned_with_its_verdict(url: str) -> None:
    """Every posted event has its result, in order: also one that changes nothing."""
    body = [{"type": "turn.started", "turn": "t9"}, {"type": "turn.started", "turn": "t9"}]
    events = (await post(f"{url}/v1/sessions/s/events?return=events", body)).json()["events"]
    assert [event.get("verdict") for event in events] == [None, "duplicate"]


async def test_an_unknown_return_parameter_is_refused(url: str) -> None:
    """With the parameter as its field."""
    problem = (await post(f"{url}/v1/sessions/s/events?return=all", EVENTS)).json()
    assert (problem["status"], problem["field"]) == (400, "return")


# Leases


async def test_a_heartbeat_renews_the_lease_of_a_call(ledger: LocalLedger, url: str) -> None:
    """A call that no process owns; without a length it is the usual lease."""
    call = await start_call(ledger)
    now = await ledger.log.store.clock()
    lease_until = (await post(f"{url}/v1/calls/{call.id}/heartbeat", {"lease": 5000})).json()["lease_until"]
    assert lease_until >= now + 5_000_000 and (await ledger.find_call(call.id)).lease == lease_until
    default_lease_until = (await post(f"{url}/v1/calls/{call.id}/heartbeat", {})).json()["lease_until"]
    assert now + ledger.log.settings.ingest_lease * 1000 <= default_lease_until < lease_until


async def test_a_heartbeat_for_an_ended_or_owned_call_is_a_conflict(ledger: LocalLedger, url: str) -> None:
    """One that has ended is a conflict, as for commands; so is one that its process keeps alive."""
    owned = await start_call(ledger, owner=ledger.log.owner)
    problem = (await post(f"{url}/v1/calls/{owned.id}/heartbeat", {})).json()
    assert (problem["status"], problem["current"]["call"]) == (409, owned.id)
    ended = await start_call(ledger)
    await ledger.cancel(ended.id)
    problem = (await post(f"{url}/v1/calls/{ended.id}/heartbeat", {})).json()
    assert (problem["status"], problem["current"]["state"]) == (409, "cancelled")


@pytest.mark.parametrize(
    ("body", "field"),
    [({"lease": 0}, "lease"), ({"lease": 1e10}, "lease"), ({"fence": 1}, "fence"), ({"text": "half"}, "fence")],
)
async def test_a_call_heartbeat_accepts_only_a_lease(
    ledger: LocalLedger, url: str, body: dict[str, Any], field: str
) -> None:
    """Its progress is posted as events, and it has no claim."""
    call = await start_call(ledger)
    problem = (await post(f"{url}/v1/calls/{call.id}/heartbeat", body)).json()
    assert (problem["status"], problem["field"]) == (400, field)
    assert (await ledger.find_call(call.id)).lease == call.lease


async def test_a_command_heartbeat_needs_its_fence(ledger: LocalLedger, url: str) -> None:
    """Otherwise any worker could keep the claim of another."""
    command = await ledger.commands.submit("ls")
    claim = await ledger.commands.claim()
    assert claim is not None
    problem = (await post(f"{url}/v1/calls/{command.correlation_id}/heartbeat", {})).json()
    assert (problem["status"], problem["field"]) == (400, "fence")
    response = await post(f"{url}/v1/calls/{command.correlation_id}/heartbeat", {"fence": claim.fence})
    assert response.status == 200


@pytest.mark.parametrize(("verbs", "status"), [(("write",), 200), (("read",), 403), (("execute", "read"), 403)])
async def test_a_call_heartbeat_requires_the_write_verb(
    ledger: LocalLedger, url: str, verbs: tuple[str, ...], status: int
) -> None:
    """A command needs `execute` instead."""
    call = await start_call(ledger)
    token = await create_token(ledger, *verbs)
    assert (await post(f"{url}/v1/calls/{call.id}/heartbeat", {}, token=token)).status == status


async def test_a_command_heartbeat_is_refused_with_the_write_verb(ledger: LocalLedger, url: str) -> None:
    """Also with its fence."""
    command = await ledger.commands.submit("ls")
    claim = await ledger.commands.claim()
    assert claim is not None
    token = await create_token(ledger, "write", "read")
    refused = await post(f"{url}/v1/calls/{command.correlation_id}/heartbeat", {"fence": claim.fence}, token=token)
    assert refused.status == 403


# Approval decisions


@pytest.mark.parametrize("decision", ["approve", "deny", "edit"])
@pytest.mark.parametrize(("by", "status"), [("", 200), ("user", 200), ("phone", 400)])
async def test_an_approval_decision_records_the_user_of_the_token(
    ledger: LocalLedger, url: str, decision: str, by: str, status: int
) -> None:
    """A client may send its own user name as `by`, but not another one."""
    request = [ev.CallProposed(call="new:1", tool_name="rm", input={}), ev.ApprovalRequested(call="new:1")]
    (_, event) = await ledger.log.append("s", request)
    body = {"decision": decision, "by": by} | ({"input": {}} if decision == "edit" else {})
    answer = await post(f"{url}/v1/approvals/{event.approval}", body)  # type: ignore[attr-defined]
    assert answer.status == status
    if status == 200:
        assert answer.json()["by"] == "user"
    else:
        assert (answer.json()["field"], answer.json()["detail"]) == ("by", "by: is set by the token")
        (pending,) = await ledger.approvals()
        assert pending.state == "pending"


async def test_problems_have_plain_titles(ledger: LocalLedger, url: str) -> None:
    """The reason phrase of the status, or a more specific one."""
    assert (await fetch(f"{url}/v1/calls")).json()["title"] == "Unauthorized"
    assert (await post(f"{url}/v1/calls/none/cancel")).json()["title"] == "Not Found"
    await ledger.commands.submit("ls", correlation_id="c")
    stale = await post(f"{url}/v1/calls/c/heartbeat", {"fence": 7})
    assert (stale.status, stale.json()["title"]) == (412, "Claim lost")
