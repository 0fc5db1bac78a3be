"""Commands over real sockets: submitted, polled for, claimed, finished; and their errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.http.access import TokenAuthorizer
from callslip.model import events as ev
from callslip.model.events import encode_event
from callslip.model.records import TokenRecord
from callslip.settings import Limits, Settings
from tests.support import asgi_client
from tests.support import cli_process as processes
from tests.support.live_server import HttpResponse, fetch, requesting, running, serving_ledger
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

EXTENSION = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
TOKEN = "the-main-token-of-this-server"
SECRET = "sk-ant-api03-" + "A" * 40
PROGRAM = str(TESTS / "programs" / "claim_one.py")
COMMAND = {"action": "execute_js", "params": {"script": "document.title"}}


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(f"sqlite:///{tmp_path}/ledger.db", Settings(queue_limit=3)) as ledger:
        yield ledger


@pytest.fixture
async def url(ledger: LocalLedger) -> AsyncIterator[str]:
    async with serving_ledger(ledger, limits=Limits(wait=60)) as url:
        yield url


async def post(url: str, path: str, value: Any, **headers: str) -> HttpResponse:
    return await fetch(url + path, "POST", value=value, headers=headers)


async def submit(url: str, **fields: Any) -> str:
    response = await post(url, "/v1/calls", COMMAND | fields)
    assert response.status == 202, response.text
    return response.json()["correlation_id"]


async def poll(url: str, command: str, query: str = "") -> Any:
    return (await fetch(f"{url}/v1/calls/{command}?format=command{query}")).json()


async def list_verdicts(ledger: LocalLedger, command: str) -> list[tuple[str, str]]:
    row = await ledger.find_call(command)
    events = [event async for event in ledger.events(row.session)]
    return [
        (ev.type_of(event), event.verdict)
        for event in events
        if isinstance(event, ev.CallEvent) and event.call == row.id
    ]


async def test_a_command_is_submitted_claimed_and_completed(ledger: LocalLedger, url: str) -> None:
    """S3.1, S3.2: the submission returns at once, and polls return the current status."""
    response = await post(url, "/v1/calls", COMMAND)
    assert response.status == 202
    command = response.json()["correlation_id"]
    assert response.json() == {"status": "queued", "correlation_id": command} and command.startswith("exec_")
    pending = await poll(url, command)
    assert {name: pending[name] for name in ("correlation_id", "status", "final")} == {
        "correlation_id": command,
        "status": "pending",
        "final": False,
    }
    assert "completed_at" not in pending and "result" not in pending and pending["created_at"].endswith("Z")
    claim = (await post(url, "/v1/calls/claim", {"worker": "tab 1"})).json()
    assert (claim["action"], claim["params"], claim["fence"]) == (COMMAND["action"], COMMAND["params"], 1)
    done = await post(url, f"/v1/calls/{command}/result", {"result": {"title": "x"}, "fence": 1})
    assert done.status == 200 and done.json() == await poll(url, command)
    assert done.json()["status"] == "complete" and done.json()["final"] and done.json()["result"] == {"title": "x"}
    assert done.json()["completed_at"] >= pending["created_at"]


async def test_a_command_names_its_client(ledger: LocalLedger, url: str) -> None:
    """In lists, by id and in the commands topic; an ordinary call has no client."""
    command = await submit(url, client="browser", session="a")
    async with ledger.session("a").call("look") as call:
        call.complete("seen")
    calls = (await fetch(f"{url}/v1/calls?session=a")).json()["calls"]
    assert [row.get("client", "nobody") for row in calls] == ["nobody", "browser"]
    detail = (await fetch(f"{url}/v1/calls/{command}")).json()
    assert detail["client"] == "browser" and detail["toolCall"]["callId"] == command
    assert "client" not in (await fetch(f"{url}/v1/calls/{calls[0]['call']}")).json()
    async with requesting(f"{url}/v1/stream?topic=commands") as reply:
        topic = await anext(frame async for frame in reply.frames() if frame.get("event") == "topic")
    assert [row["client"] for row in json.loads(topic["data"])["rows"]] == ["browser"]


async def test_the_default_format_of_a_command_is_its_call_entry(url: str) -> None:
    """Without `format` the response is the call as other clients see it."""
    response = (await fetch(f"{url}/v1/calls/{await submit(url)}")).json()
    assert response["state"] == "queued" and response["toolCall"]["toolName"] == "execute_js"


async def test_a_submission_can_wait_for_the_result(url: str) -> None:
    """200 with the outcome if the command ends in time, otherwise 202 with its status."""
    submission = asyncio.create_task(post(url, "/v1/calls?wait=5", COMMAND))
    claim = (await post(url, "/v1/calls/claim", {"wait": 5})).json()
    await post(url, f"/v1/calls/{claim['call']}/result", {"error": "no page", "fence": claim["fence"]})
    response = await submission
    assert response.status == 200 and (response.json()["status"], response.json()["error"]) == ("error", "no page")
    second = await post(url, "/v1/calls?wait=0.01", COMMAND)
    assert second.status == 202 and second.json()["status"] == "pending"


async def test_an_unknown_command_is_a_final_404(url: str) -> None:
    """S3.2: the problem is structured and has `final: true`."""
    response = await fetch(f"{url}/v1/calls/exec_000000000000?format=command&wait=5")
    assert response.status == 404 and response.headers["content-type"] == "application/problem+json"
    assert response.json()["correlation_id"] == "exec_000000000000" and response.json()["final"] is True
    for path in ("result", "heartbeat"):
        body = {"fence": 1} | ({"result": 1} if path == "result" else {})
        assert (await post(url, f"/v1/calls/exec_000000000000/{path}", body)).json()["final"] is True


@pytest.mark.parametrize("ending", ["result", "error", "cancel", "expiry"])
async def test_a_waiting_poll_returns_when_the_command_ends(url: str, ending: str) -> None:
    """S3.3: long before its timeout."""
    command = await submit(url, timeout=0.2 if ending == "expiry" else 30)
    poll_task = asyncio.create_task(poll(url, command, "&wait=60"))
    if ending == "cancel":
        await post(url, f"/v1/calls/{command}/cancel", {})
    elif ending != "expiry":
        await post(url, f"/v1/calls/{command}/result", {ending: "x"})
    started_at = time.monotonic()
    statuses = {"result": "complete", "error": "error", "cancel": "cancelled", "expiry": "expired"}
    response = await poll_task
    assert response["status"] == statuses[ending] and response["final"] and time.monotonic() - started_at < 30


async def test_polling_pending_queries_does_not_claim_commands(url: str) -> None:
    """S3.6: a result without a claim ends the command, once."""
    command = await submit(url)
    await submit(url, client="other")
    for _ in range(2):
        queries = (await fetch(f"{url}/pending-queries")).json()["queries"]
        assert [query["correlation_id"] for query in queries] == [command] and queries[0]["params"] == COMMAND["params"]
    assert [query["client"] for query in (await fetch(f"{url}/pending-queries?client=other")).json()["queries"]] == [
        "other"
    ]
    responses = [await post(url, f"/v1/calls/{command}/result", {"result": 1}) for _ in range(2)]
    assert [response.status for response in responses] == [200, 200] and responses[0].json() == responses[1].json()
    other = await post(url, f"/v1/calls/{command}/result", {"result": 2})
    assert other.status == 409 and other.json()["current"]["state"] == "completed"
    assert (await fetch(f"{url}/pending-queries")).json() == {"queries": []}


async def test_a_result_with_a_stale_fence_is_refused_and_logged(ledger: LocalLedger, url: str) -> None:
    """S3.6: 412; the log has the result as late, and it is never the outcome."""
    command = await submit(url, idempotent=True)
    first = (await post(url, "/v1/calls/claim", {"worker": "stalled"})).json()
    row = await ledger.find_call(command)
    await ledger.log.append(row.session, [ev.CallRequeued(call=row.id, reason="silence")])
    second = (await post(url, "/v1/calls/claim", {"worker": "quick"})).json()
    assert (first["fence"], second["fence"]) == (1, 2)
    for path, body in (("result", {"result": "zombie"}), ("heartbeat", {"text": "zombie"})):
        response = await post(url, f"/v1/calls/{command}/{path}", body | {"fence": 1})
        assert response.status == 412 and response.json()["type"] == "urn:callslip:stale-fence"
    assert (await post(url, f"/v1/calls/{command}/result", {"result": "unfenced"})).status == 412
    assert (await poll(url, command))["status"] == "pending"
    assert (await post(url, f"/v1/calls/{command}/heartbeat", {"fence": 2, "text": "half"})).status == 200
    assert (await post(url, f"/v1/calls/{command}/result", {"result": "ours", "fence": 2})).json()["result"] == "ours"
    assert (await post(url, f"/v1/calls/{command}/result", {"result": "zombie", "fence": 1})).status == 412
    assert (await poll(url, command))["result"] == "ours"
    late = [kind for kind, verdict in await list_verdicts(ledger, command) if verdict == "late"]
    assert late == ["call.completed", "call.progress", "call.completed", "call.completed"]


async def test_a_disconnected_worker_gets_no_command(ledger: LocalLedger, url: str) -> None:
    """The command goes to the next worker that is still connected."""
    body = b'{"wait": 5, "worker": "gone"}'
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = f"POST /v1/calls/claim HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(10):
        while not await ledger.log.store.executors():
            await asyncio.sleep(0.01)
        writer.close()
        await reader.read()
        command = await submit(url)
        claim = (await post(url, "/v1/calls/claim", {"wait": 5, "worker": "here"})).json()
    assert claim["correlation_id"] == command and (await ledger.find_call(command)).worker == "here"


async def test_a_command_claimed_during_a_disconnect_is_requeued(ledger: LocalLedger, url: str) -> None:
    """The connection is lost after the claim and before the response."""
    command = await submit(url)
    receive_count = 0

    async def receive() -> dict[str, Any]:
        nonlocal receive_count
        receive_count += 1
        if receive_count == 2:
            await asyncio.Event().wait()  # The disconnect is not received before the claim.
        return {"type": "http.request", "body": b'{"wait": 5}'} if receive_count == 1 else {"type": "http.disconnect"}

    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    app = callslip.asgi(ledger, authorize=lambda *_: "ann")
    await app(asgi_client.make_scope("/v1/calls/claim", method="POST"), receive, send)
    assert (statuses[0], receive_count) == (204, 3)
    row = await ledger.find_call(command)
    assert row.state == "queued"
    types = [ev.type_of(event) async for event in ledger.events(row.session)]
    assert types[-2:] == ["call.started", "call.requeued"]


async def test_a_worker_can_release_its_claimed_command(ledger: LocalLedger, url: str) -> None:
    """The next worker claims it with a new fence; another worker cannot release it."""
    command = await submit(url)
    await post(url, "/v1/calls/claim", {"worker": "first"})
    assert (await post(url, f"/v1/calls/{command}/release", {"fence": 2})).status == 412
    assert (await post(url, f"/v1/calls/{command}/release", {"fence": 1, "reason": "I stop"})).status == 204
    assert (await post(url, f"/v1/calls/{command}/release", {"fence": 1})).status == 412
    claim = (await post(url, "/v1/calls/claim", {"worker": "second"})).json()
    assert (claim["correlation_id"], claim["fence"]) == (command, 2)
    await post(url, f"/v1/calls/{command}/result", {"result": 1, "fence": 2})
    assert (await post(url, f"/v1/calls/{command}/release", {"fence": 2})).status == 409


async def test_a_submission_to_a_full_queue_is_refused(url: str) -> None:
    """S3.7: `queue_full` with the limit; each client has a queue of its own."""
    for _ in range(3):
        await submit(url)
    response = await post(url, "/v1/calls", COMMAND)
    assert (
        response.status == 429
        and response.json()["type"] == "urn:callslip:queue_full"
        and response.json()["limit"] == 3
    )
    await submit(url, client="other")


async def test_a_repeated_submission_creates_no_second_command(ledger: LocalLedger, url: str) -> None:
    """By `Idempotency-Key` or correlation id; another body with the same key is a conflict."""
    by_key = [(await post(url, "/v1/calls", COMMAND, **{"idempotency-key": "k"})).json() for _ in range(2)]
    assert by_key[0] == by_key[1]
    by_correlation_id = [
        (await post(url, "/v1/calls", COMMAND | {"correlation_id": "mine-1"})).json() for _ in range(2)
    ]
    assert by_correlation_id == [{"status": "queued", "correlation_id": "mine-1"}] * 2
    assert (await poll(url, "mine-1"))["status"] == "pending"
    assert (await post(url, "/v1/calls", COMMAND | {"correlation_id": "mine-1", "client": "x"})).status == 409
    assert (await post(url, "/v1/calls", {"action": "other"}, **{"idempotency-key": "k"})).status == 409
    assert len((await ledger.calls()).items) == 2


async def test_commands_are_listed_as_pending_and_recently_ended(url: str) -> None:
    """The lists are pending, recently completed and recently failed."""
    ids = [await submit(url) for _ in range(3)]
    await post(url, f"/v1/calls/{ids[0]}/result", {"result": 1})
    await post(url, f"/v1/calls/{ids[1]}/result", {"error": "no"})
    response = (await fetch(f"{url}/v1/commands")).json()
    assert {name: [command["correlation_id"] for command in response[name]] for name in response} == {
        "pending": [ids[2]],
        "completed": [ids[0]],
        "failed": [ids[1]],
    }
    assert (await fetch(f"{url}/v1/commands?client=nobody")).json() == {"pending": [], "completed": [], "failed": []}


async def create_token_header(ledger: LocalLedger, verb: str, session: str = "") -> dict[str, str]:
    """Return the header of a caller who has only this right."""
    token = f"{verb}-only-{session}-and-long-enough"
    await ledger.log.store.put_token(TokenRecord(f"tok_{verb}", hash_token(token), verb, session, (verb,), 0))
    return {"authorization": f"Bearer {token}"}


async def test_command_lists_skip_commands_that_the_caller_may_not_read(ledger: LocalLedger) -> None:
    """S3.5: commands of other sessions are not shown and do not count toward the limit."""
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN)) as url:
        main_header = {"authorization": f"Bearer {TOKEN}"}
        await ledger.log.append("mine", [ev.SessionInfo(title="t")])
        reader = await create_token_header(ledger, "read", session="mine")
        for session in ("theirs", "theirs", "mine"):
            assert (await post(url, "/v1/calls", COMMAND | {"session": session}, **main_header)).status == 202
        response = (await fetch(f"{url}/v1/commands?limit=1", headers=reader)).json()
        assert [command["session"] for command in response["pending"]] == ["mine"]


async def test_a_waiting_worker_with_a_revoked_token_gets_no_command(ledger: LocalLedger) -> None:
    """The submitter does not notice; the worker becomes unknown."""
    async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN), limits=Limits(wait=20)) as url:
        main_header = {"authorization": f"Bearer {TOKEN}"}
        worker = await create_token_header(ledger, "execute")
        assert (await post(url, "/v1/calls", COMMAND, **main_header)).status == 202
        assert (await post(url, "/v1/calls/claim", {}, **worker)).status == 200
        claim = asyncio.create_task(post(url, "/v1/calls/claim", {"wait": 15}, **worker))
        await asyncio.sleep(0.1)
        for row in await ledger.log.store.tokens():
            await ledger.log.store.drop_token(row.id)
        assert (await post(url, "/v1/calls", COMMAND, **main_header)).status == 202
        assert (await claim).status == 401
        assert (await post(url, "/v1/calls/claim", {}, **main_header)).status == 200


async def test_a_poll_for_a_deleted_command_gets_a_final_404(ledger: LocalLedger, url: str) -> None:
    """S3.2: the response is that for an unknown command."""
    command = await submit(url)
    poll_task = asyncio.create_task(fetch(f"{url}/v1/calls/{command}?format=command&wait=5"))
    await asyncio.sleep(0.1)
    await ledger.delete("commands")
    response = await poll_task
    assert response.status == 404 and response.json()["correlation_id"] == command and response.json()["final"] is True


async def test_secrets_are_shown_only_to_the_executor(ledger: LocalLedger, url: str) -> None:
    """Executors get the full arguments; every other response has them redacted."""
    command = await submit(url, params={"key": SECRET})
    assert (await fetch(f"{url}/pending-queries")).json()["queries"][0]["params"] == {"key": SECRET}
    row = await ledger.find_call(command)
    log = b"".join([encode_event(event) async for event in ledger.events(row.session)]).decode()
    paths = [f"/v1/calls/{command}", f"/v1/calls/{command}?format=command", "/v1/commands", "/v1/sessions/commands"]
    assert SECRET not in log + "".join([(await fetch(url + path)).text for path in paths])
    claim = (await post(url, "/v1/calls/claim", {})).json()
    assert claim["params"] == {"key": SECRET} and await ledger.log.store.sealed(row.id)
    await post(url, f"/v1/calls/{command}/result", {"result": f"used {SECRET}", "fence": 1})
    assert SECRET not in (await fetch(f"{url}/v1/calls/{command}?format=command")).text
    assert await ledger.log.store.sealed(row.id) is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/calls", {}),
        ("/v1/calls", {"action": ""}),
        ("/v1/calls", {"action": "a" * 201}),
        ("/v1/calls", {"action": "a\u0000b"}),
        ("/v1/calls", {"action": 1}),
        ("/v1/calls", COMMAND | {"timeout": 0}),
        ("/v1/calls", COMMAND | {"timeout": -1}),
        ("/v1/calls", COMMAND | {"timeout": 1e300}),
        ("/v1/calls", COMMAND | {"timeout": "soon"}),
        ("/v1/calls", COMMAND | {"client": ""}),
        ("/v1/calls", COMMAND | {"session": "a/b"}),
        ("/v1/calls", COMMAND | {"approve": "maybe"}),
        ("/v1/calls", COMMAND | {"correlation_id": "exec_0123456789ab"}),
        ("/v1/calls", COMMAND | {"script": "flat"}),
        ("/v1/calls?wait=61", COMMAND),
        ("/v1/calls?nonsense=1", COMMAND),
        ("/v1/calls/claim", {"wait": 61}),
        ("/v1/calls/claim", {"lease": 0}),
        ("/v1/calls/claim", {"client": "\n"}),
        ("/v1/calls/claim", []),
        ("/v1/calls/claim?x=1", {}),
        ("/v1/calls/{command}/result", {}),
        ("/v1/calls/{command}/result", {"result": 1, "error": 2}),
        ("/v1/calls/{command}/result", {"result": 1, "fence": -1}),
        ("/v1/calls/{command}/release", {}),
        ("/v1/calls/{command}/heartbeat", {}),
        ("/v1/calls/{command}/heartbeat", {"fence": 0}),
        ("/v1/calls/{command}/heartbeat", {"fence": 1, "lease": -5}),
    ],
)
async def test_an_invalid_command_request_is_refused_and_changes_nothing(
    ledger: LocalLedger, url: str, path: str, body: Any
) -> None:
    """400, with the field that is wrong."""
    command = await submit(url)
    before = await ledger.log.store.session("commands")
    response = await post(url, path.format(command=command), body)
    assert response.status == 400 and response.json()["field"], response.text
    assert await ledger.log.store.session("commands") == before and len((await ledger.sessions()).items) == 1


async def test_posting_a_result_for_a_call_that_is_no_command_is_refused(ledger: LocalLedger, url: str) -> None:
    """The program that made the call also ends it."""
    events = await ledger.log.append("s", [ev.CallStarted(call="new:1", tool_name="bash")])
    response = await post(url, f"/v1/calls/{events[0].call}/result", {"result": 1})  # type: ignore[attr-defined]
    assert response.status == 400 and "is not a command" in response.json()["detail"]


async def test_a_browser_extension_with_an_allowed_origin_can_run_commands(ledger: LocalLedger) -> None:
    """S3.12: it reads the queue and posts results with its token; other origins cannot."""
    app = http.standalone(ledger, TOKEN, host="127.0.0.1", allow_origins=[EXTENSION])
    token_header = {"authorization": f"Bearer {TOKEN}"}
    async with running(app) as url:
        host = {"host": url.removeprefix("http://")}
        extension_headers = token_header | {"origin": EXTENSION} | host
        command = (await fetch(f"{url}/v1/calls", "POST", value=COMMAND, headers=token_header)).json()["correlation_id"]
        response = await fetch(f"{url}/pending-queries", headers=extension_headers)
        assert response.status == 200 and response.headers["access-control-allow-origin"] == EXTENSION
        assert [query["correlation_id"] for query in response.json()["queries"]] == [command]
        preflight = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        result_url = f"{url}/v1/calls/{command}/result"
        preflight_response = await fetch(result_url, "OPTIONS", headers={"origin": EXTENSION} | preflight | host)
        assert (
            preflight_response.status < 300
            and "authorization" in preflight_response.headers["access-control-allow-headers"].lower()
        )
        assert (await fetch(result_url, "POST", value={"result": 1}, headers=extension_headers)).status == 200
        foreign_headers = extension_headers | {"origin": "chrome-extension://ponmlkjihgfedcbaponmlkjihgfedcba"}
        assert (await fetch(f"{url}/pending-queries", headers=foreign_headers)).status == 403
        assert (await fetch(f"{url}/pending-queries", headers={"origin": EXTENSION} | host)).status == 401


async def test_a_waiting_submission_gets_the_result_of_another_process(tmp_path: Path) -> None:
    """S3.3: another process claims and completes the command over HTTP."""
    with (
        processes.serving(tmp_path / "ledger.db") as server,
        processes.running_process(server.url, server.token, program=PROGRAM) as worker,
    ):
        worker.until("ready")
        token_header = {"authorization": f"Bearer {server.token}"}
        response = (await fetch(f"{server.url}/v1/calls?wait=30", "POST", value=COMMAND, headers=token_header)).json()
        assert response["status"] == "complete" and response["result"] == COMMAND["params"]
        assert await asyncio.to_thread(worker.end) == 0
        assert json.loads(worker.out[-1])["correlation_id"] == response["correlation_id"]
