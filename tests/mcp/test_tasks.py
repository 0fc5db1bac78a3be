"""MCP tasks over a ledger: commands as tasks, the tools of another server as tasks, and tasks after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.extension import advertise
from mcp.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from callslip.api.commands import CommandQueue
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.errors import StoreError
from callslip.http.access import TokenAuthorizer
from callslip.mcp import Tasks
from callslip.mcp.task_wire import EXTENSION
from callslip.model import events as ev
from tests.support.mcp_client import (
    ClientTasks,
    begin_task,
    create_token,
    over_http,
    over_stdio,
    request_task,
    result_fields,
    serving_mcp,
    wait_for_status,
    wait_for_task,
)
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

MAIN_TOKEN = "a-main-token-of-some-length"


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await open_ledger(db) as ledger:
        yield ledger


class Studio:
    """An MCP server whose tools are tasks: one waits, one requests input, one returns odd text."""

    def __init__(self, ledger: LocalLedger, **options: Any) -> None:
        self.tasks = Tasks(ledger, poll=0.01, **options)
        self.go = asyncio.Event()
        self.stopped = asyncio.Event()
        for tool in (self.render, self.choose, self.odd):
            self.tasks.tool(tool)
        self.server = MCPServer("studio", version="1", extensions=[self.tasks], log_level="ERROR")

    async def render(self, scene: str) -> str:
        """Wait for `go`."""
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return f"rendered {scene}"

    async def choose(self, ctx: Context) -> str | types.InputRequiredResult:
        """Request a colour, then a size."""
        chosen = dict(part.split("=") for part in (ctx.request_state or "").split() if part)
        for name, answer in (ctx.input_responses or {}).items():
            assert isinstance(answer, types.ElicitResult) and answer.content
            chosen[name] = str(answer.content["it"])
        missing = next((name for name in ("colour", "size") if name not in chosen), "")
        if not missing:
            return f"{chosen['size']} and {chosen['colour']}"
        schema = {"type": "object", "properties": {"it": {"type": "string"}}}
        request = types.ElicitRequest(params=types.ElicitRequestFormParams(message=missing, requested_schema=schema))
        state = " ".join(f"{name}={value}" for name, value in chosen.items())
        return types.InputRequiredResult(input_requests={missing: request}, request_state=state)

    async def odd(self) -> str:
        """Return much text with a character that JSON cannot hold."""
        return "\ud800" + "x" * 200_000


@contextlib.asynccontextmanager
async def connected_studio(ledger: LocalLedger, **options: Any) -> AsyncGenerator[tuple[Studio, Client]]:
    studio = Studio(ledger, **options)
    async with Client(studio.server, extensions=[ClientTasks()]) as client:
        yield studio, client
    await studio.tasks.close()


def accept(value: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"it": value}}


# Tools of another server


async def test_a_task_is_recorded_before_its_handle_is_returned(ledger: LocalLedger) -> None:
    """A client with the handle finds the task in any process, and a person sees a running call."""
    async with connected_studio(ledger) as (studio, client):
        task = await begin_task(client, "render", scene="sea")
        (row,) = (await ledger.calls(session="tasks")).items
        assert (row.state, row.tool, row.scope, row.source) == ("running", "render", "detached", "mcp")
        detail = await request_task(client.session, "get", task)
        assert (detail["status"], detail["ttlMs"], detail["resultType"]) == ("working", None, "complete")
        assert "result" not in detail
        studio.go.set()
        ended = await wait_for_task(client.session, task)
        assert ended["status"] == "completed" and ended["result"]["content"][0]["text"] == "rendered sea"
        assert (await ledger.find_call(row.id)).state == "completed"


async def test_clients_without_tasks_get_the_result(ledger: LocalLedger) -> None:
    """For them the tool is an ordinary one, with either protocol version, and no task is recorded."""
    studio = Studio(ledger)
    studio.go.set()
    for mode in ("legacy", "auto"):
        async with Client(studio.server, mode=mode) as client:
            result = await client.call_tool("render", {"scene": "sky"})
            assert result.content[0].text == "rendered sky"
    assert (await ledger.calls()).items == []


async def test_a_client_extension_turns_the_task_into_its_result(ledger: LocalLedger) -> None:
    """The official client lets an extension resolve result types that it does not know."""
    async with connected_studio(ledger) as (studio, client):
        studio.go.set()
        assert (await client.call_tool("render", {"scene": "sea"})).content[0].text == "rendered sea"


async def test_a_cancelled_task_stops_its_tool_and_stays_cancelled(ledger: LocalLedger) -> None:
    """By `tasks/cancel`, or by an event in the log; a second time changes nothing."""
    async with connected_studio(ledger) as (studio, client):
        task = await begin_task(client, "render", scene="sea")
        acknowledged = await request_task(client.session, "cancel", task)
        assert set(acknowledged) == {"resultType", "_meta"}
        await asyncio.wait_for(studio.stopped.wait(), 20)
        assert (await request_task(client.session, "get", task))["status"] == "cancelled"
        await request_task(client.session, "cancel", task)

        studio.stopped.clear()
        other = await begin_task(client, "render", scene="sky")
        (row,) = (await ledger.calls(states=["running"])).items
        await ledger.log.append("tasks", [ev.CallCancelled(call=row.id, reason="by hand")])
        await asyncio.wait_for(studio.stopped.wait(), 20)
        detail = await request_task(client.session, "get", other)
        assert (detail["status"], detail["statusMessage"]) == ("cancelled", "by hand")


async def test_a_task_requests_input_in_rounds_and_ignores_other_responses(ledger: LocalLedger) -> None:
    """Late, unknown and repeated responses change nothing; one of the wrong shape is refused."""
    async with connected_studio(ledger) as (_, client):
        task = await begin_task(client, "choose")
        detail = await wait_for_status(client.session, task, "input_required")
        assert list(detail["inputRequests"]) == ["colour"]
        assert detail["inputRequests"]["colour"]["method"] == "elicitation/create"
        await request_task(client.session, "update", task, input_responses={"size": accept("large"), "x": {"y": 1}})
        for invalid in ({"colour": 5}, {"colour": {"action": "perhaps"}}):
            with pytest.raises(MCPError, match="inputResponses"):
                await request_task(client.session, "update", task, input_responses=invalid)
        assert list((await request_task(client.session, "get", task))["inputRequests"]) == ["colour"]
        await request_task(client.session, "update", task, input_responses={"colour": accept("red")})
        async with asyncio.timeout(20):
            while "size" not in (await request_task(client.session, "get", task)).get("inputRequests", {}):
                await asyncio.sleep(0.01)
        await request_task(client.session, "update", task, input_responses={"colour": accept("blue")})
        await request_task(client.session, "update", task, input_responses={"size": accept("small")})
        ended = await wait_for_task(client.session, task)
        assert ended["result"]["content"][0]["text"] == "small and red"
        await request_task(client.session, "update", task, input_responses={"size": accept("large")})
        assert await request_task(client.session, "get", task) == ended


async def test_a_task_ends_even_if_its_client_disconnects_while_it_begins(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: the call is recorded by then, so the server must run it to its end."""
    studio, written, resume, append = Studio(ledger), asyncio.Event(), asyncio.Event(), ledger.log.append

    async def slow_append(*args: Any, **kwargs: Any) -> Any:
        events = await append(*args, **kwargs)
        written.set()
        await resume.wait()
        return events

    async with Client(studio.server, extensions=[ClientTasks()]) as client:
        monkeypatch.setattr(ledger.log, "append", slow_append)
        beginning = asyncio.ensure_future(begin_task(client, "render", scene="sea"))
        await asyncio.wait_for(written.wait(), 20)
        beginning.cancel()
        await client.list_tools()  # The server has processed the cancellation by now.
        resume.set()
        await asyncio.gather(beginning, return_exceptions=True)
        studio.go.set()
        (row,) = (await ledger.calls()).items
        assert (await ledger.wait(row.id, 10)).state == "completed"
    await studio.tasks.close()


async def test_a_response_that_cannot_be_recorded_still_reaches_the_tool(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: the client does not send it again, so the task would never end."""
    async with connected_studio(ledger) as (_, client):
        task = await begin_task(client, "choose")
        await wait_for_status(client.session, task, "input_required")
        append, failing = ledger.log.append, iter([True])

        async def fail_once(*args: Any, **kwargs: Any) -> Any:
            if next(failing, False):
                raise StoreError("the disk is full")
            return await append(*args, **kwargs)

        monkeypatch.setattr(ledger.log, "append", fail_once)
        with pytest.raises(MCPError):
            await request_task(client.session, "update", task, input_responses={"colour": accept("red")})
        async with asyncio.timeout(20):
            while "size" not in (await request_task(client.session, "get", task)).get("inputRequests", {}):
                await asyncio.sleep(0.01)
        await request_task(client.session, "update", task, input_responses={"size": accept("small")})
        assert (await wait_for_task(client.session, task))["result"]["content"][0]["text"] == "small and red"


async def test_another_process_can_read_answer_and_cancel_a_task(db: str, ledger: LocalLedger) -> None:
    """Two servers on one ledger: a client may connect to either."""
    async with (
        await open_ledger(db) as second,
        connected_studio(ledger) as (studio, client),
        connected_studio(second) as (_, other),
    ):
        task = await begin_task(client, "choose")
        assert "colour" in (await wait_for_status(other.session, task, "input_required"))["inputRequests"]
        await request_task(other.session, "update", task, input_responses={"colour": accept("red")})
        async with asyncio.timeout(20):
            while "size" not in (await request_task(other.session, "get", task)).get("inputRequests", {}):
                await asyncio.sleep(0.01)
        await request_task(other.session, "update", task, input_responses={"size": accept("small")})
        assert (await wait_for_task(other.session, task))["result"]["content"][0]["text"] == "small and red"
        render_task = await begin_task(client, "render", scene="sea")
        await request_task(other.session, "cancel", render_task)
        await asyncio.wait_for(studio.stopped.wait(), 20)


async def test_a_task_expires_and_is_not_found_after_its_ttl(ledger: LocalLedger) -> None:
    """ttlMs counts from the creation; a task that still runs then expires and is not found any more."""
    async with connected_studio(ledger, ttl=3600) as (_, client):
        handle = await client.session.call_tool("render", {"scene": "sea"}, allow_claimed=True)
        assert abs(handle.ttl_ms - 3_600_000) < 10_000  # From when it was recorded.
    async with connected_studio(ledger, ttl=0.05) as (studio, client):
        task = await begin_task(client, "render", scene="sea")
        (row, *_) = (await ledger.calls(session="tasks")).items
        async with asyncio.timeout(20):
            await ledger.wait(row.id)
        await asyncio.wait_for(studio.stopped.wait(), 20)
        assert (await ledger.find_call(row.id)).state == "expired"
        with pytest.raises(MCPError, match="no task"):
            await request_task(client.session, "get", task)


async def test_large_and_unusual_results_are_returned_unchanged(ledger: LocalLedger) -> None:
    """C11: large output comes back whole, and half a character as a replacement character."""
    async with connected_studio(ledger) as (_, client):
        ended = await wait_for_task(client.session, await begin_task(client, "odd"))
        assert ended["status"] == "completed"
        text = ended["result"]["content"][0]["text"]
        assert text == "\ufffd" + "x" * 200_000


async def test_unknown_tasks_and_clients_without_the_extension_are_refused(ledger: LocalLedger) -> None:
    """The id of a call that is not a task is as unknown as a wrong one."""
    async with connected_studio(ledger) as (_, client):
        task = await begin_task(client, "render", scene="sea")
        (row,) = (await ledger.calls()).items
        for wrong in ("", "task_", row.id, f"{task}0", f"{task}\x00", task.upper(), "\x00"):
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError) as caught:
                    await request_task(client.session, method, wrong)
                assert caught.value.code == types.INVALID_PARAMS
    studio = Studio(ledger)
    async with Client(studio.server) as plain:
        with pytest.raises(MCPError) as caught:
            await request_task(plain.session, "get", task)
        assert caught.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_an_internal_error_fails_the_task_without_its_text(ledger: LocalLedger) -> None:
    """A low-level server does not turn exceptions of a tool into results, so the task ends with a protocol error."""

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="breaks", input_schema={"type": "object"})])

    async def raise_error(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        raise RuntimeError("/home/ada/key")

    server: Server[Any] = Server("plain", on_list_tools=list_tools, on_call_tool=raise_error)
    tasks = Tasks(ledger)
    tasks.serve("breaks")
    tasks.attach(server)
    async with Client(server, extensions=[ClientTasks()]) as client:
        ended = await wait_for_task(client.session, await begin_task(client, "breaks"))
    assert (ended["status"], ended["error"]["code"]) == ("failed", types.INTERNAL_ERROR)
    assert "ada" not in str(ended) and "result" not in ended
    await tasks.close()


async def test_a_server_that_stops_ends_its_tasks(ledger: LocalLedger) -> None:
    """C5: they end as lost, which is an error of the tool for the client."""
    async with connected_studio(ledger) as (_, client):
        await begin_task(client, "render", scene="sea")
    (row,) = (await ledger.calls()).items
    assert row.state == "lost" and "stopped" in row.reason


# Killed servers


@contextlib.asynccontextmanager
async def fixture_server(path: Path) -> AsyncGenerator[tuple[subprocess.Popen[str], str]]:
    program = [sys.executable, str(TESTS / "programs" / "mcp_fixtures.py"), str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, (await asyncio.to_thread(server.stdout.readline)).strip()
        finally:
            server.kill()


async def test_tasks_are_answered_after_a_kill(tmp_path: Path) -> None:
    """Finished tasks are unchanged; those that ran or waited for input have ended."""
    path = tmp_path / "ledger.db"
    async with fixture_server(path) as (server, url), over_http(url, extensions=[ClientTasks()]) as client:
        finished = await begin_task(client, "slow_compute", seconds=0, label="quick")
        failed = await begin_task(client, "protocol_error_job")
        ended = [await wait_for_task(client.session, task) for task in (finished, failed)]
        running = await begin_task(client, "slow_compute", seconds=600)
        waiting = await begin_task(client, "confirm_delete", filename="a")
        await wait_for_status(client.session, waiting, "input_required")
        server.send_signal(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
    async with fixture_server(path) as (_, url), over_http(url, extensions=[ClientTasks()]) as client:
        assert [await request_task(client.session, "get", task) for task in (finished, failed)] == ended
        assert [detail["status"] for detail in ended] == ["completed", "failed"]
        for task in (running, waiting):
            detail = await wait_for_task(client.session, task)
            assert (detail["status"], detail["result"]["isError"]) == ("completed", True)
            assert detail["statusMessage"] and detail["result"]["content"][0]["text"] == detail["statusMessage"]


# Commands as tasks


async def test_a_command_is_a_task_for_a_client_that_knows_tasks(tmp_path: Path) -> None:
    """S3.9: over stdio, run by an executor in another process; the task's id is the command's."""
    path = tmp_path / "ledger.db"
    async with (
        await open_ledger(f"sqlite:///{path}") as ledger,
        over_stdio(path, extensions=[ClientTasks()]) as client,
    ):
        commands = CommandQueue(ledger.log)
        tool_call = asyncio.ensure_future(client.call_tool("interact", {"action": "execute_js", "script": "1+1"}))
        claim = await commands.claim(wait=20)
        assert claim is not None and claim.params == {"script": "1+1"}
        await commands.complete(claim.call, 2, fence=claim.fence)
        result = (await tool_call).structured_content
        assert (result["correlation_id"], result["status"], result["result"]) == (claim.call, "complete", 2)
        await commands.close()


async def test_command_ends_map_to_task_states(ledger: LocalLedger) -> None:
    """C13: errors and timeouts are `completed` with isError, a cancelled command is `cancelled`, none is `failed`."""
    commands = CommandQueue(ledger.log)
    async with serving_mcp(ledger) as url, over_http(url, extensions=[ClientTasks()]) as client:
        names = ("works", "breaks", "times out", "stops", "asks")
        tasks = {
            name: await begin_task(client, "interact", action=name, **({"approve": "ask"} if name == "asks" else {}))
            for name in names
        }
        await commands.complete(tasks["works"], {"fine": True})
        await commands.fail(tasks["breaks"], "broken")
        await commands.expire(tasks["times out"])
        await request_task(client.session, "cancel", tasks["stops"])
        details = {name: await request_task(client.session, "get", task) for name, task in tasks.items()}
        assert {name: detail["status"] for name, detail in details.items()} == {
            "works": "completed",
            "breaks": "completed",
            "times out": "completed",
            "stops": "cancelled",
            "asks": "input_required",
        }
        assert details["works"]["result"]["structuredContent"]["result"] == {"fine": True}
        assert not details["works"]["result"].get("isError")
        assert [details[name]["result"]["isError"] for name in ("breaks", "times out")] == [True, True]
        await request_task(client.session, "update", tasks["asks"], input_responses={"approve": accept("approve")})
        detail = await request_task(client.session, "get", tasks["asks"])
        assert (detail["status"], detail["inputRequests"]) == ("input_required", {})
        assert (await ledger.find_call(tasks["asks"])).state == "awaiting_approval"
    await commands.close()


async def test_progress_of_a_command_is_not_an_input_request(ledger: LocalLedger) -> None:
    """A client would ask its user, but the response would reach no tool."""
    commands = CommandQueue(ledger.log)
    async with serving_mcp(ledger) as url, over_http(url, extensions=[ClientTasks()]) as client:
        task = await begin_task(client, "interact", action="go")
        claim = await commands.claim()
        assert claim is not None
        progress = {
            "inputRequests": {"password": {"method": "elicitation/create", "params": {"message": "It, please"}}}
        }
        await commands.heartbeat(claim.call, claim.fence, progress=progress)
        detail = await request_task(client.session, "get", task)
        assert detail["status"] == "working" and "inputRequests" not in detail
    await commands.close()


async def test_a_refused_command_begins_no_task(ledger: LocalLedger) -> None:
    """The model gets the reason, as without tasks."""
    commands = CommandQueue(ledger.log)
    async with serving_mcp(ledger) as url, over_http(url, extensions=[advertise(EXTENSION)]) as client:
        for arguments in ({}, {"action": "go", "timeout": -1}, {"action": "go", "approve": "yes"}):
            result = await client.call_tool("interact", arguments)
            assert result.is_error and result_fields(result)["kind"] == "refused"
    await commands.close()


async def test_tasks_of_hidden_sessions_are_not_found(ledger: LocalLedger) -> None:
    """The authorizer decides about each request for a task, as about each tool call."""
    commands = CommandQueue(ledger.log)
    authorizer = TokenAuthorizer(ledger.log, MAIN_TOKEN)
    read_token, other_token = (
        await create_token(ledger, "read"),
        await create_token(ledger, "read", "write", session="other"),
    )
    async with serving_mcp(ledger, authorizer) as url:
        async with over_http(url, token=MAIN_TOKEN, extensions=[ClientTasks()]) as client:
            task = await begin_task(client, "interact", action="go")
        async with over_http(url, token=read_token, extensions=[ClientTasks()]) as client:
            assert (await request_task(client.session, "get", task))["status"] == "working"
            with pytest.raises(MCPError, match="may not write"):
                await request_task(client.session, "cancel", task)
        async with over_http(url, token=other_token, extensions=[ClientTasks()]) as client:
            for method in ("get", "cancel", "update"):
                with pytest.raises(MCPError, match="no task"):
                    await request_task(client.session, method, task)
    assert (await ledger.find_call(task)).state == "queued"
    await commands.close()
