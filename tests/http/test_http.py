"""The HTTP API over real sockets: calls, approvals, blobs, posted events, health, and errors for invalid requests."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import HTTPConnection

import callslip
from callslip import http
from callslip.api import rules
from callslip.api.find import APPROVAL_STATES
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.errors import CallEndedError, DiskFullError, NotFoundError, PermissionDeniedError
from callslip.http.access import AllowAll, Principal, TokenAuthorizer, Verb
from callslip.http.app import build
from callslip.http.blobs import parse_range
from callslip.model import events as ev
from callslip.model.records import CallRecord, SessionRecord, TokenRecord
from callslip.rules.lifecycle import OPEN_STATES
from callslip.settings import Limits
from tests.support import acp_session, live_server
from tests.support.live_server import TIMEOUT_S, HttpResponse, fetch, requesting, serving_ledger

pytestmark = pytest.mark.anyio
LARGE_TEXT = "0123456789" * 200_000


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as ledger:
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncIterator[str]:
    async with serving_ledger(ledger, limits=Limits(body_bytes=100_000)) as url:
        yield url


class HidingAuthorizer:
    """Hide sessions whose name begins with `hidden`, and allow only reading of `shown`."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        if session is not None and session.name.startswith("hidden"):
            raise NotFoundError(f"no session {session.name!r}")
        if session is not None and session.name == "shown" and verb != "read":
            raise PermissionDeniedError("look, do not touch")
        return Principal("ann")


async def run_call(
    ledger: LocalLedger, tool: str = "tool", session: str = "s", *, alias: str = "", title: str = ""
) -> CallRecord:
    """Run a call until it is completed."""
    full_alias = ("openai", alias) if alias else None
    async with ledger.session(session).call(tool, {"n": 1}, title=title, alias=full_alias) as call:
        call.complete("done")
    return await call.result()


async def start_call(ledger: LocalLedger, session: str = "s", alias: str = "call_1") -> CallRecord:
    """Append a call that another program runs."""
    events = await ledger.log.append(session, [ev.CallStarted(call="new:1", aliases=(ev.Alias("openai", alias),))])
    return await ledger.find_call(events[0].call)  # type: ignore[attr-defined]


async def request_approval(ledger: LocalLedger, session: str = "s", **more: Any) -> str:
    """Request approval of a call, and return the id of the request."""
    events = await ledger.log.append(
        session,
        [
            ev.CallProposed(call="new:1", tool_name="rm", input={"path": "/"}),
            ev.ApprovalRequested(call="new:1", **more),
        ],
    )
    return events[-1].approval  # type: ignore[attr-defined]


async def wait_for_follower(ledger: LocalLedger) -> None:
    """Return when a request waits for a change of a session."""
    async with asyncio.timeout(TIMEOUT_S):
        while not ledger.log.feed._channels:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.001)


def check_problem(answer: HttpResponse, status: int) -> Any:
    """Return the problem document of a response, which must have this status."""
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    response = answer.json()
    assert response["status"] == status and response["type"].startswith("urn:callslip:") and response["title"]
    return response


# Calls


async def read_all_pages(url: str, name: str) -> list[Any]:
    """Return the items of all pages of a list."""
    items, cursor = list[Any](), ""
    while True:
        page = (await fetch(f"{url}&cursor={cursor}")).json()
        items += page[name]
        cursor = page["cursor"]
        if not cursor:
            return items


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
async def test_calls_are_listed_newest_first_in_pages(ledger: LocalLedger, url: str, limit: int) -> None:
    """Each page size returns every call exactly once."""
    call_ids = [(await run_call(ledger, session=session)).id for session in "ababa"]
    rows = await read_all_pages(f"{url}/v1/calls?limit={limit}", "calls")
    times = [row["createdAt"] for row in rows]
    assert sorted(row["call"] for row in rows) == sorted(call_ids) and times == sorted(times, reverse=True)
    rows = await read_all_pages(f"{url}/v1/calls?session=a&limit={limit}", "calls")
    assert [row["call"] for row in rows] == call_ids[::-2]


@pytest.mark.parametrize("limit", [1, 2, 4])
async def test_lists_omit_hidden_sessions_and_still_fill_their_pages(ledger: LocalLedger, limit: int) -> None:
    """For any number of calls and requests of hidden sessions in between."""
    visible_ids = list[str]()
    for number in range(12):
        is_hidden = number % 3 != 0
        row = await run_call(ledger, session=f"hidden-{number}" if is_hidden else "open")
        approval = await request_approval(ledger, f"hidden-{number}" if is_hidden else "open")
        visible_ids += [] if is_hidden else [row.id, approval]
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        rows = await read_all_pages(f"{url}/v1/calls?status=completed&limit={limit}", "calls")
        assert [row["call"] for row in rows] == visible_ids[::2][::-1]
        approvals = (await fetch(f"{url}/v1/approvals?limit={limit}")).json()["approvals"]
        assert len(approvals) == limit and {row["approval"] for row in approvals} <= set(visible_ids[1::2])
        assert check_problem(await fetch(f"{url}/v1/calls?session=hidden-1"), 404)
        assert check_problem(await fetch(f"{url}/v1/approvals?session=hidden-1"), 404)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["über", "100%", "[x]"]),
        ("status=completed", ["über", "100%"]),
        ("status=running,failed", ["[x]"]),
        ("status=lost", []),
        ("tool=get_weather", ["über"]),
        ("tool=get_weathe", []),
        ("q=WEATHER", ["über"]),
        ("q=%C3%9CB", ["über"]),
        ("q=%25", ["100%"]),
        ("q=t_w", ["über"]),
        ("q=c_unt", []),
        ("q=*", []),
        ("q=%5Bx%5D", ["[x]"]),
        ("q=%5E", []),
        ("q=CALL_%C3%A4", ["100%"]),
        ("q=exec_", ["über", "100%", "[x]"]),
        ("q=done", []),
        ("q=b&tool=get_weather&status=completed&session=s", ["über"]),
    ],
)
async def test_calls_are_filtered_by_state_tool_and_text(
    ledger: LocalLedger, url: str, query: str, expected: list[str]
) -> None:
    """`tool` is a full name; `q` is a substring of title, tool or id, ignores case and is not a pattern."""
    await run_call(ledger, "get_weather", title="über")
    await run_call(ledger, "count", title="100%", alias="call_Ä")
    await ledger.log.append("s", [ev.CallStarted(call="new:1", tool_name="draw", title="[x]")])
    rows = (await fetch(f"{url}/v1/calls?{query}")).json()["calls"]
    assert sorted(row["title"] for row in rows) == sorted(expected)


async def test_a_call_is_found_by_each_of_its_ids(ledger: LocalLedger, url: str) -> None:
    """By its id, a prefix of it and the producer's id; the response contains its entry."""
    row = await run_call(ledger, "search", alias="call|1:x")
    for call_id in (row.id, row.id[:12], "call%7C1:x"):
        response = (await fetch(f"{url}/v1/calls/{call_id}")).json()
        assert (response["call"], response["toolCallId"], response["state"]) == (row.id, "call|1:x", "completed")
        assert response["toolCall"] == (await fetch(f"{url}/v1/sessions/s")).json()["entries"][-1]
        assert response["toolCall"]["output"] == "done"
    for unknown_id in ("exec_", "exec_0000", "call", "nothing", "%00", "%FF", "..%5C"):
        if not row.id.startswith(unknown_id):
            assert check_problem(await fetch(f"{url}/v1/calls/{unknown_id}"), 404)["detail"].startswith("no call")


async def test_an_ambiguous_id_lists_only_visible_calls(ledger: LocalLedger) -> None:
    """Producers count calls from 1 in each session, so `session` selects one of them."""
    first, second, _ = [await run_call(ledger, session=name, alias="call_1") for name in ("a", "b", "hidden")]
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        response = check_problem(await fetch(f"{url}/v1/calls/call_1"), 409)
        assert {row["call"] for row in response["current"]} == {first.id, second.id}
        assert (await fetch(f"{url}/v1/calls/call_1?session=b")).json()["call"] == second.id
        assert (await fetch(f"{url}/v1/calls/exec_")).json().get("current", [{}]) != [{}]
        for session in ("hidden", "none"):
            check_problem(await fetch(f"{url}/v1/calls/call_1?session={session}"), 404)


async def test_a_call_in_a_hidden_session_is_not_found(ledger: LocalLedger) -> None:
    """The response is that for an unknown call, also for a cancel request."""
    hidden, shown = await start_call(ledger, "hidden"), await start_call(ledger, "shown")
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        for call_id in (hidden.id, hidden.id[:-1], "exec_000000000000"):
            assert check_problem(await fetch(f"{url}/v1/calls/{call_id}"), 404)["detail"] == f"no call {call_id!r}"
            assert (
                check_problem(await fetch(f"{url}/v1/calls/{call_id}/cancel", "POST"), 404)["detail"]
                == f"no call {call_id!r}"
            )
        assert check_problem(await fetch(f"{url}/v1/calls?cursor={hidden.id}"), 400)["field"] == "cursor"
        assert (await fetch(f"{url}/v1/calls/{shown.id}")).status == 200
        check_problem(await fetch(f"{url}/v1/calls/{shown.id}/cancel", "POST"), 403)
    assert (await ledger.find_call(hidden.id)).state == (await ledger.find_call(shown.id)).state == "running"


async def test_a_long_poll_returns_when_the_call_ends(ledger: LocalLedger, url: str) -> None:
    """S3.3: at any kind of end, but not at progress."""
    for end_type in (ev.CallCompleted, ev.CallFailed, ev.CallCancelled, ev.CallDenied, ev.CallExpired, ev.CallLost):
        row = await start_call(ledger, alias=end_type.__name__)
        poll = asyncio.ensure_future(fetch(f"{url}/v1/calls/{row.id}?wait=60"))
        await wait_for_follower(ledger)
        await ledger.log.append("s", [ev.CallProgress(call=row.id, text="soon")])
        await asyncio.sleep(0)
        assert not poll.done()
        await ledger.log.append("s", [end_type(call=row.id)])
        response = (await poll).json()
        assert response["state"] == response["toolCall"]["status"] == (await ledger.find_call(row.id)).state
        assert response["toolCall"]["outputText"] == "soon"


async def test_a_long_poll_returns_the_current_state_after_its_timeout(ledger: LocalLedger, url: str) -> None:
    """Also with `wait=0`."""
    row = await start_call(ledger)
    for wait in ("0", "0.01"):
        assert (await fetch(f"{url}/v1/calls/{row.id}?wait={wait}")).json()["state"] == "running"


async def test_a_long_poll_returns_404_when_the_session_is_deleted(ledger: LocalLedger, url: str) -> None:
    """Also if a new session of the same name is created."""
    row = await start_call(ledger)
    poll = asyncio.ensure_future(fetch(f"{url}/v1/calls/{row.id}?wait=60"))
    await wait_for_follower(ledger)
    await ledger.delete("s")
    await ledger.log.append("s", [ev.MessageUser(text="anew")])
    check_problem(await poll, 404)


async def test_an_unchanged_call_gives_304(ledger: LocalLedger, url: str) -> None:
    """The ETag changes with output of this call, but not with other calls."""
    row = await start_call(ledger)
    first = await fetch(f"{url}/v1/calls/{row.id}")
    await run_call(ledger)
    again = await fetch(f"{url}/v1/calls/{row.id}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    await ledger.log.append("s", [ev.CallProgress(call=row.id, text="more. ")])
    again = await fetch(f"{url}/v1/calls/{row.id}", headers={"if-none-match": first.headers["etag"]})
    assert again.status == 200 and again.headers["etag"] != first.headers["etag"]


async def test_cancelling_a_call_stops_its_tool(ledger: LocalLedger, url: str) -> None:
    """A function in this process is cancelled, and its caller gets the reason."""
    started, stopped = asyncio.Event(), asyncio.Event()

    @callslip.tool
    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with ledger.session("s").use():
        task = asyncio.ensure_future(forever())
    await started.wait()
    (row,) = (await ledger.calls()).items
    response = await fetch(f"{url}/v1/calls/{row.id}/cancel", "POST", value={"reason": "too slow"})
    assert (response.status, response.json()["state"]) == (200, "cancelled")
    with pytest.raises(CallEndedError, match="cancelled by anonymous: too slow"):
        await asyncio.wait_for(task, 10)
    assert stopped.is_set()


async def test_cancelling_a_call_again_changes_nothing(ledger: LocalLedger, url: str) -> None:
    """Cancelling a call that ended otherwise is a conflict with the call in it."""
    row = await start_call(ledger)
    first = await fetch(f"{url}/v1/calls/call_1/cancel", "POST")
    again = await fetch(f"{url}/v1/calls/{row.id}/cancel", "POST", value={"reason": "again"})
    assert (first.status, again.status) == (200, 200) and first.json() == again.json()
    assert [type(event).__name__ async for event in ledger.events("s")] == ["CallStarted", "CallCancelled"]
    completed = await run_call(ledger)
    response = check_problem(await fetch(f"{url}/v1/calls/{completed.id}/cancel", "POST"), 409)
    assert (response["current"]["call"], response["current"]["state"]) == (completed.id, "completed")


async def test_cancelling_a_call_withdraws_its_approval_request(ledger: LocalLedger, url: str) -> None:
    """The approval of a cancelled call is no longer pending."""
    approval = await request_approval(ledger)
    row = await ledger.log.store.approval(approval)
    assert row is not None and (await fetch(f"{url}/v1/calls/{row.call}/cancel", "POST")).status == 200
    assert (await fetch(f"{url}/v1/approvals/{approval}")).json()["state"] == "moot"
    assert (await fetch(f"{url}/v1/approvals")).json() == {"approvals": []}


# Approvals


@pytest.mark.parametrize(
    ("body", "state", "call"),
    [
        ({"decision": "approve"}, "granted", "queued"),
        ({"decision": "deny", "reason": "not there"}, "refused", "denied"),
        ({"decision": "edit", "input": {"path": "/tmp"}}, "granted", "queued"),
        ({"decision": "edit", "input": None}, "granted", "queued"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/approvals/{}", "/v1/sessions/s/approvals/{}"])
async def test_a_second_approval_decision_is_a_conflict(
    ledger: LocalLedger, path: str, body: Any, state: str, call: str
) -> None:
    """The first decision is stored with its user; a second one gets 409 with the first."""
    approval = await request_approval(ledger)
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        (pending,) = (await fetch(f"{url}/v1/approvals")).json()["approvals"]
        assert (pending["approval"], pending["state"]) == (approval, "pending")
        response = await fetch(url + path.format(approval), "POST", value=body)
        assert (response.status, response.json()["state"], response.json()["by"]) == (200, state, "ann")
        assert response.json() == (await fetch(f"{url}/v1/approvals/{approval}")).json()
        for second_decision in ({"decision": "deny"}, {"decision": "approve"}):
            assert (
                check_problem(await fetch(url + path.format(approval), "POST", value=second_decision), 409)["current"]
                == response.json()
            )
    row = await ledger.find_call(response.json()["call"])
    assert row.state == call and (await ledger.approvals()) == []


async def test_only_the_first_of_concurrent_approval_decisions_is_applied(ledger: LocalLedger, url: str) -> None:
    """The other requests get 409 with the applied decision."""
    approval = await request_approval(ledger)
    bodies = [{"decision": "deny", "reason": f"reason {number}"} for number in range(8)]
    responses = await asyncio.gather(*[fetch(f"{url}/v1/approvals/{approval}", "POST", value=body) for body in bodies])
    (winner,) = [response.json() for response in responses if response.status == 200]
    conflicts = [check_problem(response, 409)["current"] for response in responses if response.status != 200]
    assert conflicts == [winner] * 7


async def test_an_approved_tool_runs_with_the_edited_arguments(ledger: LocalLedger, url: str) -> None:
    """S4.6: the waiting function gets the edited arguments."""

    @callslip.tool(approval=True)
    async def greet(name: str) -> str:
        return f"hello {name}"

    with ledger.session("s").use():
        task = asyncio.ensure_future(greet("Bob"))
    while not (pending := (await fetch(f"{url}/v1/approvals")).json()["approvals"]):
        assert not task.done()
    body = {"decision": "edit", "input": {"name": "Ann"}}
    assert (await fetch(f"{url}/v1/approvals/{pending[0]['approval']}", "POST", value=body)).status == 200
    assert await asyncio.wait_for(task, 10) == "hello Ann"


OPTIONS = [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"null", "body"),
        (b"[]", "body"),
        (b"{", "body"),
        (b"\xff", "body"),
        (b"{}", "body"),
        (b'{"decision": "maybe"}', "decision"),
        (b'{"decision": 1}', "decision"),
        (b'{"decision": "edit"}', "body"),
        (b'{"decision": "approve", "input": {}}', "body"),
        (b'{"decision": "deny", "input": {}}', "body"),
        (b'{"decision": "approve", "by": "root"}', "by"),
        (b'{"decision": "approve", "option": 1}', "option"),
        (b'{"decision": "approve", "option": "n"}', "option"),
        (b'{"decision": "deny", "option": "y"}', "option"),
        (b'{"decision": "deny", "option": "x"}', "option"),
        (b'{"decision": "deny", "reason": []}', "reason"),
    ],
)
async def test_an_invalid_approval_decision_leaves_the_request_pending(
    ledger: LocalLedger, url: str, body: bytes, field: str
) -> None:
    """S4.6: the problem names the invalid field, and nothing is written."""
    approval = await request_approval(ledger, options=OPTIONS)
    head = (await ledger.find_session("s")).last_seq
    response = check_problem(await fetch(f"{url}/v1/approvals/{approval}", "POST", body=body), 400)
    assert response["field"] == field
    assert (await fetch(f"{url}/v1/approvals/{approval}")).json()["state"] == "pending"
    assert (await ledger.find_session("s")).last_seq == head


async def test_an_approval_of_another_session_is_not_found(ledger: LocalLedger) -> None:
    """The path of a session answers only its own approvals, and no path those of hidden sessions."""
    mine, hidden, shown = (
        await request_approval(ledger),
        await request_approval(ledger, "hidden"),
        await request_approval(ledger, "shown"),
    )
    body = {"decision": "approve"}
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        for path in (f"sessions/other/approvals/{mine}", f"sessions/s/approvals/{hidden}", "sessions/s/approvals/x"):
            check_problem(await fetch(f"{url}/v1/{path}", "POST", value=body), 404)
        for path in (f"approvals/{hidden}", f"sessions/hidden/approvals/{hidden}", f"approvals/{mine}0"):
            check_problem(await fetch(f"{url}/v1/{path}", "POST", value=body), 404)
        check_problem(await fetch(f"{url}/v1/approvals/{hidden}"), 404)
        check_problem(await fetch(f"{url}/v1/approvals/{shown}", "POST", value=body), 403)
    assert len(await ledger.approvals()) == 3


async def test_approvals_are_filtered_by_state(ledger: LocalLedger, url: str) -> None:
    """By a single state or all; every state of an approval is accepted."""
    first, second, third = (
        await request_approval(ledger, "a"),
        await request_approval(ledger, "b"),
        await request_approval(ledger, "b"),
    )
    for approval, decision in ((first, "approve"), (second, "deny")):
        await fetch(f"{url}/v1/approvals/{approval}", "POST", value={"decision": decision})
    expected = {"pending": {third}, "granted": {first}, "refused": {second}, "": {first, second, third}}
    for state in ("", *APPROVAL_STATES):
        rows = (await fetch(f"{url}/v1/approvals?state={state}")).json()["approvals"]
        assert {row["approval"] for row in rows} == expected.get(state, set())
    assert len((await fetch(f"{url}/v1/approvals?session=b&state=")).json()["approvals"]) == 2
    assert len((await fetch(f"{url}/v1/approvals?limit=1&state=")).json()["approvals"]) == 1


# Blobs


async def store_large_output(ledger: LocalLedger, session: str = "s", output: Any = LARGE_TEXT) -> str:
    """Complete a call with a large output, and return the hash of its blob."""
    async with ledger.session(session).call("cat") as call:
        call.complete(output)
    (row,) = (await ledger.calls(session=session)).items
    ending = await ledger.log.ending_event(row)
    assert isinstance(ending, ev.CallEnd) and ending.blob is not None
    return ending.blob.hash


async def test_a_large_output_is_downloaded_in_full_or_by_range(ledger: LocalLedger, url: str) -> None:
    """As an attachment, also for ranges across chunks; the response is immutable."""
    blob_url = f"{url}/v1/blobs/{await store_large_output(ledger)}"
    full, size = await fetch(blob_url, headers={"accept-encoding": "gzip"}), len(LARGE_TEXT)
    assert (full.status, full.text) == (200, LARGE_TEXT)
    assert full.headers["content-type"] == "text/plain; charset=utf-8"
    assert full.headers["content-disposition"].startswith("attachment;")
    assert full.headers["x-content-type-options"] == "nosniff" and "immutable" in full.headers["cache-control"]
    for range_header, start, end in (
        ("bytes=0-9", 0, 10),
        ("bytes=1048570-1048585", 1048570, 1048586),
        ("bytes=1999990-", 1999990, size),
        ("bytes=-5", size - 5, size),
        ("bytes=1999999-99999999999", size - 1, size),
    ):
        part = await fetch(blob_url, headers={"range": range_header, "accept-encoding": "gzip"})
        assert (part.status, part.text) == (206, LARGE_TEXT[start:end])
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
    outside = await fetch(blob_url, headers={"range": f"bytes={size}-"})
    assert check_problem(outside, 416) and outside.headers["content-range"] == f"bytes */{size}"
    etag = full.headers["etag"]
    assert (await fetch(blob_url, headers={"if-none-match": etag})).status == 304
    assert (await fetch(blob_url, headers={"range": "bytes=0-9", "if-range": etag})).status == 206
    assert (await fetch(blob_url, headers={"range": "bytes=0-9", "if-range": '"other"'})).status == 200
    head = await fetch(blob_url, "HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(size))


@pytest.mark.parametrize(
    "header", ["", "bytes=", "bytes=-", "bytes=5-2", "lines=1-2", "bytes=0-1,3-4", "bytes=a-b", "x"]
)
def test_an_invalid_range_header_gives_the_full_content(header: str) -> None:
    """The HTTP standard requires that an invalid Range header is ignored."""
    assert parse_range(header, 10) == (0, 10)


async def test_tool_output_is_never_served_as_html(ledger: LocalLedger, url: str) -> None:
    """JSON stays JSON; a type that a browser might run becomes application/octet-stream."""
    response = await fetch(f"{url}/v1/blobs/{await store_large_output(ledger, 'a', {'text': LARGE_TEXT})}")
    assert response.headers["content-type"] == "application/json" and response.json() == {"text": LARGE_TEXT}
    html_hash = await ledger.log.store.put_blob(b"<script>" * 20_000, "text/html")
    blob = ev.Blob(html_hash, 160_000, "text/html")
    await ledger.log.append("b", [ev.CallStarted(call="new:1"), ev.CallCompleted(call="new:1", blob=blob)])
    response = await fetch(f"{url}/v1/blobs/{html_hash}")
    assert (response.status, response.headers["content-type"]) == (200, "application/octet-stream")


async def test_a_blob_is_readable_through_any_visible_session_that_references_it(ledger: LocalLedger) -> None:
    """For other users the response is that for an unknown blob."""
    hidden = await store_large_output(ledger, "hidden")
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        for blob_hash in (hidden, "0" * 64, "x", "%2e%2e", hidden.upper()):
            check_problem(await fetch(f"{url}/v1/blobs/{blob_hash}"), 404)
        assert await store_large_output(ledger, "open") == hidden
        assert (await fetch(f"{url}/v1/blobs/{hidden}")).status == 200


# Posting


def message_body(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message.delta", "text": text, "chunks": "delta", **more}


async def test_a_body_can_be_a_message_a_list_or_json_lines(ledger: LocalLedger, url: str) -> None:
    """The first body creates the session."""
    messages = [message_body("a"), message_body("b"), message_body("d")]
    lines = b"\r\n\n".join(json.dumps(message).encode() for message in messages)
    response = await fetch(f"{url}/v1/sessions/a/events", "POST", value=messages)
    assert (response.status, response.json()["appended"]) == (201, 3)
    for kind in ("application/x-ndjson", "application/jsonl; charset=utf-8"):
        response = await fetch(
            f"{url}/v1/sessions/{kind[12:13]}/events", "POST", body=lines, headers={"content-type": kind}
        )
        assert (response.status, response.json()["appended"]) == (201, 3)
    for message in messages:
        response = await fetch(f"{url}/v1/sessions/b/events", "POST", value=message)
    assert (response.status, response.json()["seq"]) == (200, 4)
    texts = [(await fetch(f"{url}/v1/sessions/{name}")).json()["entries"][0]["content"] for name in "abxj"]
    assert texts == ["abd"] * 4


async def test_a_body_with_a_repeated_idempotency_key_is_written_once(ledger: LocalLedger, url: str) -> None:
    """The same body gets the same result; another body with the same key is a conflict."""
    events_url, key = f"{url}/v1/sessions/s/events", {"idempotency-key": "k1"}
    first = await fetch(events_url, "POST", value=[message_body("a"), message_body("b")], headers=key)
    again = await fetch(events_url, "POST", value=[message_body("a"), message_body("b")], headers=key)
    assert (first.status, again.status) == (201, 200)
    assert first.json()["appended"] == again.json()["appended"] == 2 and first.json()["seq"] == again.json()["seq"]
    check_problem(await fetch(events_url, "POST", value=[message_body("other")], headers=key), 409)
    await fetch(events_url, "POST", value=[message_body("a"), message_body("b")], headers={"idempotency-key": "k"})
    assert (await fetch(f"{url}/v1/sessions/s")).json()["entries"][0]["content"] == "abab"


async def test_idempotency_keys_that_share_a_prefix_are_independent(ledger: LocalLedger, url: str) -> None:
    """For any characters and any length, also in another session."""
    keys = ["a:b", "a", "a:b:00000000", "http:a", "\xe9", "k" * 5000]
    for session in "st":
        for key in keys:
            response = await fetch(
                f"{url}/v1/sessions/{session}/events",
                "POST",
                value=[message_body(key)],
                headers={"idempotency-key": key},
            )
            assert response.json().get("appended") == 1, response.text


async def test_concurrent_bodies_with_the_same_key_are_written_once(ledger: LocalLedger, url: str) -> None:
    """All requests get the same result, and the decoder reads the body once."""
    events_url = f"{url}/v1/sessions/s/events?format=anthropic"
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}}
    messages = [{"type": "message_start", "message": {"id": "m"}}, block]
    responses = await asyncio.gather(
        *(fetch(events_url, "POST", value=messages, headers={"idempotency-key": "k"}) for _ in range(5))
    )
    assert {response.status for response in responses} <= {200, 201}
    assert len({(response.json()["seq"], response.json()["appended"]) for response in responses}) == 1
    row = await ledger.log.store.session("s")
    assert row is not None and row.last_seq == responses[0].json()["seq"]


async def test_a_retry_completes_a_body_that_was_written_in_part(
    ledger: LocalLedger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the first part of a long body; the retry writes the other parts."""
    transact, parts = ledger.log.transact_drafts, list[int]()

    async def transact_or_fail(session: str, drafts: Any, *args: Any, **more: Any) -> Any:
        parts.append(len(drafts))
        if len(parts) == 2:
            raise DiskFullError("no room")
        return await transact(session, drafts, *args, **more)

    monkeypatch.setattr(ledger.log, "transact_drafts", transact_or_fail)
    body = [{"type": "message.user", "text": f"{number}"} for number in range(1500)]
    request = {"value": body, "headers": {"idempotency-key": "k"}}
    check_problem(await fetch(f"{url}/v1/sessions/s/events", "POST", **request), 507)
    assert len((await ledger.snapshot("s")).entries) < 1500
    for _ in range(2):
        response = await fetch(f"{url}/v1/sessions/s/events", "POST", **request)
        assert (response.status, response.json()["appended"]) == (200, 1500)
    assert [entry.content for entry in (await ledger.snapshot("s")).entries] == [str(n) for n in range(1500)]  # type: ignore[union-attr]


async def test_a_refused_body_is_not_written_by_a_later_body(ledger: LocalLedger) -> None:
    """Also if the next body of the same conversation was waiting for it."""
    refuse = asyncio.Event()

    class WaitingAuthorizer(HidingAuthorizer):
        async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
            if session is not None and session.name.endswith(":s2"):
                await refuse.wait()
                raise PermissionDeniedError("not there")
            return await super().admit(request, session, verb)

    second_session = acp_session.prompt(2, "two")
    second_session["msg"]["params"]["sessionId"] = "s2"
    shared = http.Server(ledger, WaitingAuthorizer())
    async with live_server.running(build(shared, http.ROUTES)) as url:
        events_url = f"{url}/v1/sessions/n/events?format=acp"
        bodies = [[acp_session.prompt(1, "refused"), second_session], [acp_session.prompt(3, "taken")]]
        first = asyncio.ensure_future(fetch(events_url, "POST", value=bodies[0]))
        await wait_until(lambda: any(conversation.lock.locked() for conversation in shared.posts._open.values()))  # pyright: ignore[reportPrivateUsage]
        second = asyncio.ensure_future(fetch(events_url, "POST", value=bodies[1]))
        await wait_until(lambda: any(conversation.lock._waiters for conversation in shared.posts._open.values()))  # type: ignore[attr-defined]
        refuse.set()
        check_problem(await first, 403)
        assert (await second).status == 201
    response = json.dumps((await ledger.snapshot("n")).entries, default=str)
    assert "taken" in response and "refused" not in response


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition is true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_an_empty_body_creates_no_session(ledger: LocalLedger, url: str) -> None:
    """A session is created with its first event, and only that response is 201."""
    response = await fetch(f"{url}/v1/sessions/s/events", "POST", value=[])
    assert (response.status, response.json()["appended"]) == (200, 0)
    check_problem(await fetch(f"{url}/v1/sessions/s"), 404)


async def test_a_compressed_body_is_refused_with_415(ledger: LocalLedger, url: str) -> None:
    """The error says that compression is not supported, not that the body is invalid JSON."""
    row = await start_call(ledger)
    for path, value in (("/v1/sessions/s/events", [message_body("a")]), (f"/v1/calls/{row.id}/cancel", {})):
        for encoding in ("gzip", "br", "GZIP, identity"):
            body = gzip.compress(json.dumps(value).encode())
            headers = {"content-encoding": encoding}
            assert (
                encoding.lower()
                in check_problem(await fetch(url + path, "POST", body=body, headers=headers), 415)["detail"]
            )
        headers = {"content-encoding": "identity"}
        assert (await fetch(url + path, "POST", value=value, headers=headers)).status == 200


async def test_two_conversations_in_a_body_become_two_sessions(ledger: LocalLedger, url: str) -> None:
    """The first has the posted name; the response names the others."""
    other = acp_session.prompt(2, "two")
    other["msg"]["params"]["sessionId"] = "s2"
    response = await fetch(
        f"{url}/v1/sessions/w/events?format=acp", "POST", value=[acp_session.prompt(1, "one"), other]
    )
    assert response.status == 201 and list(response.json()["others"]) == ["w:s2"]
    for name, text in (("w", "one"), ("w:s2", "two")):
        assert text in (await fetch(f"{url}/v1/sessions/{name}")).text


async def test_a_refused_body_writes_nothing(ledger: LocalLedger) -> None:
    """Neither its first part nor events for another session are written."""
    incomplete = json.dumps(message_body("a")).encode() + b"\n{"
    other = acp_session.prompt(2, "two")
    other["msg"]["params"]["sessionId"] = "s2"
    requests: list[tuple[str, dict[str, Any]]] = [
        ("n/events", {"body": incomplete, "headers": {"content-type": "application/x-ndjson"}}),
        ("n/events", {"body": b"[" + json.dumps(message_body("a")).encode() + b", NaN]"}),
        ("n/events", {"value": [message_body("a"), {"type": "session.info", "owner": "root"}]}),
        ("n/events?format=nonsense", {"value": [message_body("a")]}),
        ("n/events?format=html", {"value": [message_body("a")]}),
        ("n/events?chunks=some", {"value": [message_body("a")]}),
    ]

    class SecondSessionRefuser(HidingAuthorizer):
        async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
            if session is not None and session.name.endswith(":s2"):
                raise PermissionDeniedError("not there")
            return await super().admit(request, session, verb)

    async with serving_ledger(ledger, gate=SecondSessionRefuser()) as url:
        for path, request in requests:
            check_problem(await fetch(f"{url}/v1/sessions/{path}", "POST", **request), 400)
        messages = [acp_session.prompt(1, "one"), other]
        check_problem(await fetch(f"{url}/v1/sessions/n/events?format=acp", "POST", value=messages), 403)
        check_problem(await fetch(f"{url}/v1/sessions/hidden/events", "POST", value=[message_body("a")]), 404)
        assert (await fetch(f"{url}/v1/sessions")).json()["sessions"] == []
        assert (await fetch(f"{url}/v1/sessions/n/events?format=acp", "POST", value=messages[:1])).status == 201


async def test_a_body_that_is_too_large_is_refused(ledger: LocalLedger, url: str) -> None:
    """By its Content-Length or by its actual size; an unsupported type gives 415."""
    events_url, body = f"{url}/v1/sessions/s/events", b"[" + b" " * 100_000 + b"]"
    check_problem(await fetch(events_url, "POST", body=body), 413)
    check_problem(await fetch(events_url, "POST", body=body, headers={"transfer-encoding": "chunked"}), 413)
    check_problem(await fetch(f"{url}/v1/approvals/{await request_approval(ledger)}", "POST", body=body), 413)
    check_problem(await fetch(events_url, "POST", body=b"<x/>", headers={"content-type": "text/xml"}), 415)


# Invalid requests


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("calls?limit=0", "limit"),
        ("calls?limit=1001", "limit"),
        ("calls?limit=ten", "limit"),
        ("calls?limit=null", "limit"),
        ("calls?limit=1&limit=2", "limit"),
        ("calls?limit=99999999999999999999999", "limit"),
        ("calls?cursor=nonsense", "cursor"),
        ("calls?status=done", "status"),
        ("calls?status=running,", "status"),
        ("calls?status=Running", "status"),
        ("calls?q=%00", "q"),
        ("calls?q=" + "x" * 201, "q"),
        ("calls?order=asc", "order"),
        ("calls/call_1?wait=-1", "wait"),
        ("calls/call_1?wait=61", "wait"),
        ("calls/call_1?wait=nan", "wait"),
        ("calls/call_1?wait=inf", "wait"),
        ("calls/call_1?what=1", "what"),
        ("approvals?state=open", "state"),
        ("approvals?limit=-1", "limit"),
        ("approvals?cursor=x", "cursor"),
        ("sessions?limit=0", "limit"),
        ("sessions?cursor=x", "cursor"),
        ("sessions?cursor=[1]", "cursor"),
        ("sessions/s?format=nonsense", "format"),
        ("sessions/s?at=-1", "at"),
        ("sessions/s?at=1000", "at"),
        ("sessions/s?at=1&limit=1", "at"),
        ("sessions/s?wait=nan", "wait"),
        ("sessions/s?limit=1&format=openai", "limit"),
        ("sessions/s?cursor=x", "cursor"),
        ("sessions/s/stream?after=1000", "after"),
        ("sessions/s/stream?format=openai", "format"),
        ("sessions/s/stream?follow=maybe", "follow"),
    ],
)
async def test_an_invalid_parameter_is_refused_by_its_name(
    ledger: LocalLedger, url: str, path: str, field: str
) -> None:
    """No value is guessed, and no list restarts from the beginning."""
    await start_call(ledger)
    assert check_problem(await fetch(f"{url}/v1/{path}"), 400)["field"] == field


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sessions/none",
        "/v1/sessions/none/stream",
        "/v1/calls/none",
        "/v1/calls?session=none",
        "/v1/approvals/none",
        "/v1/approvals?session=none",
        "/v1/blobs/none",
        "/v1",
        "/v2/sessions",
        "/v1/sessions/a/b/c",
        "/%00",
    ],
)
async def test_an_unknown_path_gives_a_problem_document(url: str, path: str) -> None:
    """Every 404 is the same kind of document."""
    check_problem(await fetch(url + path), 404)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("host", ["[", "[::1", "a b", "\xff", "x:y:z", ""])
async def test_an_invalid_host_header_does_not_change_the_error(url: str, host: str, method: str) -> None:
    """The response for a path does not depend on it."""
    response = await fetch(f"{url}/v1/sessions" + ("/none" if method == "GET" else ""), method, headers={"host": host})
    check_problem(response, 404 if method == "GET" else 405)


async def test_an_internal_error_gives_a_problem_without_its_text(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For errors before and after the endpoint returns."""
    await run_call(ledger)
    shared = http.Server(ledger, AllowAll())

    def raise_error(*value: Any, **more: Any) -> Any:
        raise RuntimeError("the secret of this server")

    monkeypatch.setattr(shared.hub, "reader", raise_error)
    monkeypatch.setattr(ledger.log.store, "calls", raise_error)
    async with live_server.running(build(shared, http.ROUTES)) as url:
        for path in (
            "/v1/calls",
            "/v1/sessions/s/stream",
            "/v1/sessions/s/stream?format=ui-v6",
            "/v1/stream?session=s",
        ):
            assert "detail" not in check_problem(await fetch(url + path), 500)
        response = await fetch(f"{url}/metrics")
    assert sum(int(line.split()[-1]) for line in response.text.splitlines() if 'status="500"' in line) == 4


async def test_a_disconnect_during_the_body_writes_nothing(
    ledger: LocalLedger, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No error is logged."""
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/sessions/s/events HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: 1000\r\n\r\n["
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    route_label = 'route="/v1/sessions/{session}/events"'
    async with asyncio.timeout(TIMEOUT_S):
        while route_label not in (await fetch(f"{url}/metrics")).text:
            await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert await ledger.log.store.session("s") is None


async def test_an_unexpected_query_parameter_is_refused(ledger: LocalLedger, url: str) -> None:
    """A misspelt or misplaced parameter is not ignored."""
    approval, blob = await request_approval(ledger), await store_large_output(ledger, "other")
    for path in (f"approvals/{approval}", f"blobs/{blob}"):
        assert check_problem(await fetch(f"{url}/v1/{path}?session=s"), 400)["field"] == "session"
    response = await fetch(f"{url}/v1/approvals/{approval}?session=s", "POST", value={"decision": "approve"})
    assert check_problem(response, 400) and len(await ledger.approvals()) == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/sessions", "GET, HEAD"),
        ("PUT", "/v1/sessions/s", "DELETE, GET, HEAD"),
        ("GET", "/v1/sessions/s/events", "POST"),
        ("GET", "/v1/calls/x/cancel", "POST"),
        ("PATCH", "/v1/approvals/x", "GET, HEAD, POST"),
        ("POST", "/metrics", "GET, HEAD"),
        ("PROPFIND", "/v1/calls", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/calls/claim", "POST"),
    ],
)
async def test_a_wrong_method_gives_405_with_the_allowed_methods(
    url: str, method: str, path: str, allowed: str
) -> None:
    """Also where two routes share a path."""
    response = await fetch(url + path, method)
    assert check_problem(response, 405) and response.headers["allow"] == allowed


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"reason": 1}', b'{"why": "x"}', b'{"reason": "' + b"x" * 2001 + b'"}']
)
async def test_an_invalid_cancel_request_leaves_the_call_running(ledger: LocalLedger, url: str, body: bytes) -> None:
    """The call continues."""
    row = await start_call(ledger)
    check_problem(await fetch(f"{url}/v1/calls/{row.id}/cancel", "POST", body=body), 400)
    assert (await ledger.find_call(row.id)).state == "running"


# Authentication


TOKEN = "the-main-token-of-this-server"
PROTECTED_ROUTES = [route for route in http.ROUTES if route.verb and route.path.startswith(("/v1", "/metrics"))]


@pytest.mark.parametrize("route", PROTECTED_ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_requests_without_a_token_get_the_same_401_for_any_record(ledger: LocalLedger, route: http.Route) -> None:
    """Whether the record exists or not, and for any other error in the request, the answer is the same."""
    row, approval, blob = (
        await run_call(ledger),
        await request_approval(ledger),
        await store_large_output(ledger, "other"),
    )
    rule = await rules.save_rule(ledger.log, rules.NewRule(action="deny", scope_value="s"))
    existing = {"session": "s", "call": row.id, "approval": approval, "hash": blob, "rule": rule.id}
    unknown = dict.fromkeys(existing, "nothing")
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN)) as url:
        responses = [
            await fetch(url + route.path.format(**names), route.method, headers=headers)
            for names in (existing, unknown)
            for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "callslip=wrong"})
        ]
    assert all(
        check_problem(response, 401) and response.headers["www-authenticate"].startswith("Bearer")
        for response in responses
    )
    assert len({response.body for response in responses[::3]}) == 1


ROUTES_WITH_VERBS = [route for route in http.ROUTES if route.verb]


@pytest.mark.parametrize("route", ROUTES_WITH_VERBS, ids=lambda route: f"{route.method} {route.path}")
async def test_an_unknown_caller_learns_nothing_about_what_a_route_takes(
    ledger: LocalLedger, route: http.Route
) -> None:
    """Without a token, every mistake in the query, the headers or the body gets the same 401."""
    path = route.path.format(**dict.fromkeys(("session", "call", "approval", "hash", "rule"), "nothing"))
    requests: list[tuple[str, dict[str, Any]]] = [
        *((query, {}) for query in ("?nonsense=1", "?session=s&session=s", "?limit=x", "?after=x&format=x&wait=x")),
        *(("", {"body": body}) for body in (b"{", b"[]", b'{"nonsense": 1}')),
        ("?nonsense=1", {"value": {"nonsense": 1}}),
        *(("", {"body": b"x", "headers": {name: "x/y"}}) for name in ("content-type", "content-encoding", "range")),
    ]
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN)) as url:
        for query, options in requests:
            check_problem(await fetch(url + path + query, route.method, **options), 401)


async def test_a_token_for_a_session_and_verb_grants_nothing_else(ledger: LocalLedger) -> None:
    """It can answer approvals of its session, but not read them; other sessions are not found."""
    mine, other = await request_approval(ledger, "mine"), await request_approval(ledger, "other")
    headers = {"authorization": "Bearer part"}
    row = TokenRecord("tok_1", hash_token("part"), "phone", "mine", ("approve",), await ledger.log.store.clock())
    await ledger.log.store.put_token(row)
    body = {"decision": "approve"}
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN)) as url:
        check_problem(await fetch(f"{url}/v1/approvals", headers=headers), 403)
        check_problem(await fetch(f"{url}/v1/approvals/{mine}", headers=headers), 404)
        check_problem(await fetch(f"{url}/v1/approvals/{other}", "POST", value=body, headers=headers), 404)
        response = await fetch(f"{url}/v1/approvals/{mine}", "POST", value=body, headers=headers)
        assert (response.status, response.json()["by"]) == (200, "phone")
        check_problem(await fetch(f"{url}/v1/calls/{response.json()['call']}/cancel", "POST", headers=headers), 404)


# Health, metrics, compression


async def test_health_needs_no_token(ledger: LocalLedger) -> None:
    """If the store is closed it returns 503 without details."""
    async with serving_ledger(ledger, gate=DenyAll()) as url:
        response = await fetch(f"{url}/healthz")
        assert (response.status, response.json()) == (200, {"status": "ok", "version": callslip.__version__})
        check_problem(await fetch(f"{url}/metrics"), 403)
        await ledger.close()
        response = await fetch(f"{url}/healthz")
        assert (response.status, response.json()) == (503, {"status": "unavailable", "version": callslip.__version__})


class DenyAll:
    """Refuse every request with 403."""

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        raise PermissionDeniedError("no")


async def read_metrics(url: str) -> dict[str, int]:
    """Return the values of the metrics by name and labels."""
    response = await fetch(f"{url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#")]
    return {name: int(value) for name, value in lines}


async def test_metrics_count_requests_events_calls_and_readers(ledger: LocalLedger, url: str) -> None:
    """Requests are counted by route and never by id."""
    before = await read_metrics(url)
    assert before["callslip_pending_approvals"] == before["callslip_readers"] == 0
    await request_approval(ledger)
    await start_call(ledger)
    await fetch(f"{url}/v1/sessions/s")
    await fetch(f"{url}/v1/calls/nothing")
    await fetch(f"{url}/v1/calls/nothing")
    await fetch(f"{url}/nowhere/secret", "PROPFIND")
    await fetch(f"{url}/v1/sessions/s/stream?format=ui-v6&turn=none")
    async with requesting(f"{url}/v1/sessions/s/stream") as reply:
        await reply.until(b"snapshot")
        after = await read_metrics(url)
    assert after["callslip_readers"] == 1
    assert after["callslip_events_appended_total"] - before["callslip_events_appended_total"] == 3
    assert {state: after[f'callslip_open_calls{{state="{state}"}}'] for state in OPEN_STATES} == {
        "queued": 0,
        "running": 1,
        "awaiting_approval": 1,
    }
    assert after["callslip_pending_approvals"] == 1 and after["callslip_reader_cuts_total"] == 0
    request_counts = {name: value for name, value in after.items() if name.startswith("callslip_requests_total")}
    label = 'callslip_requests_total{{route="{}",method="{}",status="{}"}}'.format
    assert request_counts[label("/v1/calls/{call}", "GET", 404)] == 2
    assert request_counts[label("/v1/sessions/{session}", "GET", 200)] == 1
    assert request_counts[label("/v1/sessions/{session}/stream", "GET", 404)] == 1
    assert request_counts[label("/v1/sessions/{session}/stream", "GET", 200)] == 1
    assert request_counts[label("", "", 404)] == 1 and "secret" not in str(request_counts)


async def test_metrics_count_a_reader_disconnected_for_slowness(ledger: LocalLedger) -> None:
    """It is disconnected, and the metrics count it."""
    await start_call(ledger)
    limits = Limits(backlog=1, stall=0.05)
    async with (
        serving_ledger(ledger, limits=limits) as url,
        requesting(f"{url}/v1/sessions/s/stream?format=events") as reply,
    ):
        await reply.until(b"call.started")
        for _ in range(200):
            await ledger.log.append("s", [ev.Raw(body="x" * 60_000) for _ in range(4)])
            if (await read_metrics(url))["callslip_reader_cuts_total"]:
                return
    raise AssertionError("no reader was disconnected")


@pytest.mark.parametrize(
    ("accept_encoding", "is_compressed"),
    [
        ("gzip", True),
        ("br;q=1.0, GZIP;q=0.8, *;q=0.1", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
    ],
)
async def test_large_responses_are_compressed_if_the_client_accepts_gzip(
    ledger: LocalLedger, url: str, accept_encoding: str, is_compressed: bool
) -> None:
    """The same bytes come out, `Vary` is set, and the ETag still works."""
    await ledger.log.append("s", [ev.MessageUser(text="hello " * 40_000)])
    plain = await fetch(f"{url}/v1/sessions/s")
    response = await fetch(f"{url}/v1/sessions/s", headers={"accept-encoding": accept_encoding})
    assert response.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert (response.headers.get("content-encoding") == "gzip") is is_compressed
    assert (gzip.decompress(response.body) if is_compressed else response.body) == plain.body
    assert int(response.headers["content-length"]) == len(response.body)
    headers = {"accept-encoding": accept_encoding, "if-none-match": response.headers["etag"]}
    assert (await fetch(f"{url}/v1/sessions/s", headers=headers)).status == 304


async def test_small_responses_and_streams_are_not_compressed(ledger: LocalLedger, url: str) -> None:
    """A stream must arrive as it is written."""
    await ledger.log.append("s", [ev.MessageUser(text="hello " * 1000)])
    for path in ("/healthz", "/v1/approvals", "/v1/sessions/s/stream?follow=false"):
        response = await fetch(url + path, headers={"accept-encoding": "gzip"})
        assert response.status == 200 and "content-encoding" not in response.headers
    assert b"hello hello" in response.body


# Sessions


async def test_a_session_can_be_read_in_any_format_and_long_polled(ledger: LocalLedger, url: str) -> None:
    """As entries, events or messages of the AI SDK; a long poll with an ETag returns when events are added."""
    await run_call(ledger, "search", session="s")
    (row,) = (await fetch(f"{url}/v1/sessions?prefix=s")).json()["sessions"]
    assert (row["session"], row["calls"], row["seq"]) == ("s", 1, 3)
    response = await fetch(f"{url}/v1/sessions/s?format=events")
    assert [event["type"] for event in response.json()["events"]] == ["call.proposed", "call.started", "call.completed"]
    assert (await fetch(f"{url}/v1/sessions/s?at=2")).json()["entries"][0]["status"] == "running"
    assert (await fetch(f"{url}/v1/sessions/s?format=ui-v6")).json()["messages"][0]["role"] == "assistant"
    headers = {"if-none-match": response.headers["etag"]}
    assert (await fetch(f"{url}/v1/sessions/s?format=events&wait=0.01", headers=headers)).status == 304
    poll = asyncio.ensure_future(fetch(f"{url}/v1/sessions/s?format=events&wait=60", headers=headers))
    await wait_for_follower(ledger)
    await run_call(ledger, session="s")
    assert len((await poll).json()["events"]) > 3


@pytest.mark.parametrize("format", ["events", "entries", "ui-v6"])
async def test_a_session_is_read_in_pages(ledger: LocalLedger, url: str, format: str) -> None:
    """The pages together equal the full list."""
    for number in range(7):
        await ledger.log.append("s", [ev.MessageUser(text=f"number {number}")])
    name = {"ui-v6": "messages"}.get(format, format)
    full_list = (await fetch(f"{url}/v1/sessions/s?format={format}")).json()[name]
    pages, cursor = list[list[Any]](), ""
    while not pages or cursor:
        page = (await fetch(f"{url}/v1/sessions/s?format={format}&limit=3&cursor={cursor}")).json()
        pages.append(page[name])
        cursor = page["cursor"]
    ordered = pages if format == "events" else pages[::-1]
    assert [item for page in ordered for item in page] == full_list and len(pages) >= 2
