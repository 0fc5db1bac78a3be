"""MCP tasks over a ledger: our commands as tasks, anybody's tools as tasks, and what a kill leaves of them."""

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
    TasksOfClient,
    about_task,
    begun_task,
    ended_task,
    over_http,
    over_stdio,
    served,
    task_until,
    token_for,
)
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

MAIN = "a-main-token-of-some-length"


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await open_ledger(db) as made:
        yield made


class Studio:
    """Somebody's MCP server whose tools are tasks: one waits, one asks, one talks nonsense."""

    def __init__(self, ledger: LocalLedger, **how: Any) -> None:
        self.tasks = Tasks(ledger, poll=0.01, **how)
        self.go = asyncio.Event()
        self.stopped = asyncio.Event()
        for tool in (self.render, self.choose, self.odd):
            self.tasks.tool(tool)
        self.server = MCPServer("studio", version="1", extensions=[self.tasks], log_level="ERROR")

    async def render(self, scene: str) -> str:
        """Waits until it is told to go."""
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return f"rendered {scene}"

    async def choose(self, ctx: Context) -> str | types.InputRequiredResult:
        """Asks for a colour, then for a size."""
        known = dict(part.split("=") for part in (ctx.request_state or "").split() if part)
        for name, answer in (ctx.input_responses or {}).items():
            assert isinstance(answer, types.ElicitResult) and answer.content
            known[name] = str(answer.content["it"])
        missing = next((name for name in ("colour", "size") if name not in known), "")
        if not missing:
            return f"{known['size']} and {known['colour']}"
        schema = {"type": "object", "properties": {"it": {"type": "string"}}}
        asked = types.ElicitRequest(params=types.ElicitRequestFormParams(message=missing, requested_schema=schema))
        state = " ".join(f"{name}={value}" for name, value in known.items())
        return types.InputRequiredResult(input_requests={missing: asked}, request_state=state)

    async def odd(self) -> str:
        """What no JSON can hold, and much of it."""
        return "\ud800" + "x" * 200_000


@contextlib.asynccontextmanager
async def studio(ledger: LocalLedger, **how: Any) -> AsyncGenerator[tuple[Studio, Client]]:
    made = Studio(ledger, **how)
    async with Client(made.server, extensions=[TasksOfClient()]) as client:
        yield made, client
    await made.tasks.close()


def accepted(value: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"it": value}}


# Anybody's tools


async def test_a_task_is_in_the_ledger_before_its_handle_is_given(ledger: LocalLedger) -> None:
    """Whoever has the handle can ask for it, in any process; and a person sees a call that runs."""
    async with studio(ledger) as (made, client):
        task = await begun_task(client, "render", scene="sea")
        (row,) = (await ledger.calls(session="tasks")).items
        assert (row.state, row.tool, row.scope, row.source) == ("running", "render", "detached", "mcp")
        told = await about_task(client.session, "get", task)
        assert (told["status"], told["ttlMs"], told["resultType"]) == ("working", None, "complete")
        assert "result" not in told
        made.go.set()
        ended = await ended_task(client.session, task)
        assert ended["status"] == "completed" and ended["result"]["content"][0]["text"] == "rendered sea"
        assert (await ledger.find_call(row.id)).state == "completed"


async def test_clients_that_do_not_know_tasks_get_the_result(ledger: LocalLedger) -> None:
    """The same tool is an ordinary one to them, by either protocol, and leaves no task."""
    made = Studio(ledger)
    made.go.set()
    for mode in ("legacy", "auto"):
        async with Client(made.server, mode=mode) as client:
            result = await client.call_tool("render", {"scene": "sky"})
            assert result.content[0].text == "rendered sky"
    assert (await ledger.calls()).items == []


async def test_a_client_with_the_extension_sees_only_the_result(ledger: LocalLedger) -> None:
    """The official client's way of resolving what it does not know, on our tasks."""
    async with studio(ledger) as (made, client):
        made.go.set()
        assert (await client.call_tool("render", {"scene": "sea"})).content[0].text == "rendered sea"


async def test_a_cancelled_task_stops_its_tool_and_stays_cancelled(ledger: LocalLedger) -> None:
    """By the client, or by anybody who cancels the call; a second time changes nothing."""
    async with studio(ledger) as (made, client):
        task = await begun_task(client, "render", scene="sea")
        acknowledged = await about_task(client.session, "cancel", task)
        assert set(acknowledged) == {"resultType", "_meta"}
        await asyncio.wait_for(made.stopped.wait(), 20)
        assert (await about_task(client.session, "get", task))["status"] == "cancelled"
        await about_task(client.session, "cancel", task)

        made.stopped.clear()
        other = await begun_task(client, "render", scene="sky")
        (row,) = (await ledger.calls(states=["running"])).items
        await ledger.log.append("tasks", [ev.CallCancelled(call=row.id, reason="by hand")])
        await asyncio.wait_for(made.stopped.wait(), 20)
        told = await about_task(client.session, "get", other)
        assert (told["status"], told["statusMessage"]) == ("cancelled", "by hand")


async def test_a_task_asks_again_and_again_and_ignores_what_it_did_not_ask(ledger: LocalLedger) -> None:
    """Round by round; late, unknown and repeated answers change nothing, one of the wrong shape is refused."""
    async with studio(ledger) as (_, client):
        task = await begun_task(client, "choose")
        told = await task_until(client.session, task, "input_required")
        assert list(told["inputRequests"]) == ["colour"]
        assert told["inputRequests"]["colour"]["method"] == "elicitation/create"
        await about_task(client.session, "update", task, input_responses={"size": accepted("large"), "x": {"y": 1}})
        for nonsense in ({"colour": 5}, {"colour": {"action": "perhaps"}}):
            with pytest.raises(MCPError, match="inputResponses"):
                await about_task(client.session, "update", task, input_responses=nonsense)
        assert list((await about_task(client.session, "get", task))["inputRequests"]) == ["colour"]
        await about_task(client.session, "update", task, input_responses={"colour": accepted("red")})
        async with asyncio.timeout(20):
            while "size" not in (told := await about_task(client.session, "get", task)).get("inputRequests", {}):
                await asyncio.sleep(0.01)
        await about_task(client.session, "update", task, input_responses={"colour": accepted("blue")})
        await about_task(client.session, "update", task, input_responses={"size": accepted("small")})
        ended = await ended_task(client.session, task)
        assert ended["result"]["content"][0]["text"] == "small and red"
        await about_task(client.session, "update", task, input_responses={"size": accepted("large")})
        assert await about_task(client.session, "get", task) == ended


async def test_a_client_that_hangs_up_while_its_task_begins_leaves_none_that_never_ends(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: the call is in the log by then, so there must be somebody who ends it."""
    made, written, told, append = Studio(ledger), asyncio.Event(), asyncio.Event(), ledger.log.append

    async def slow(*given: Any, **how: Any) -> Any:
        done = await append(*given, **how)
        written.set()
        await told.wait()
        return done

    async with Client(made.server, extensions=[TasksOfClient()]) as client:
        monkeypatch.setattr(ledger.log, "append", slow)
        beginning = asyncio.ensure_future(begun_task(client, "render", scene="sea"))
        await asyncio.wait_for(written.wait(), 20)
        beginning.cancel()
        await client.list_tools()  # That it hung up has been heard by now.
        told.set()
        await asyncio.gather(beginning, return_exceptions=True)
        made.go.set()
        (row,) = (await ledger.calls()).items
        assert (await ledger.wait(row.id, 10)).state == "completed"
    await made.tasks.close()


async def test_an_answer_that_cannot_be_written_down_still_reaches_the_tool(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: nobody would ask for it again, so the task would wait for ever."""
    async with studio(ledger) as (_, client):
        task = await begun_task(client, "choose")
        await task_until(client.session, task, "input_required")
        append, failing = ledger.log.append, iter([True])

        async def once(*given: Any, **how: Any) -> Any:
            if next(failing, False):
                raise StoreError("the disk is full")
            return await append(*given, **how)

        monkeypatch.setattr(ledger.log, "append", once)
        with pytest.raises(MCPError):
            await about_task(client.session, "update", task, input_responses={"colour": accepted("red")})
        async with asyncio.timeout(20):
            while "size" not in (await about_task(client.session, "get", task)).get("inputRequests", {}):
                await asyncio.sleep(0.01)
        await about_task(client.session, "update", task, input_responses={"size": accepted("small")})
        assert (await ended_task(client.session, task))["result"]["content"][0]["text"] == "small and red"


async def test_a_task_can_be_seen_answered_and_cancelled_from_another_process(db: str, ledger: LocalLedger) -> None:
    """Two servers on one ledger: a client may reach either."""
    async with await open_ledger(db) as beside, studio(ledger) as (made, client), studio(beside) as (_, other):
        task = await begun_task(client, "choose")
        assert "colour" in (await task_until(other.session, task, "input_required"))["inputRequests"]
        await about_task(other.session, "update", task, input_responses={"colour": accepted("red")})
        async with asyncio.timeout(20):
            while "size" not in (await about_task(other.session, "get", task)).get("inputRequests", {}):
                await asyncio.sleep(0.01)
        await about_task(other.session, "update", task, input_responses={"size": accepted("small")})
        assert (await ended_task(other.session, task))["result"]["content"][0]["text"] == "small and red"
        waits = await begun_task(client, "render", scene="sea")
        await about_task(other.session, "cancel", waits)
        await asyncio.wait_for(made.stopped.wait(), 20)


async def test_a_task_is_answered_for_as_long_as_it_says(ledger: LocalLedger) -> None:
    """ttlMs counts from the creation; what still runs then expires, and nobody finds it any more."""
    async with studio(ledger, ttl=3600) as (_, client):
        handle = await client.session.call_tool("render", {"scene": "sea"}, allow_claimed=True)
        assert abs(handle.ttl_ms - 3_600_000) < 10_000  # As of when it was written down.
    async with studio(ledger, ttl=0.05) as (made, client):
        task = await begun_task(client, "render", scene="sea")
        (row, *_) = (await ledger.calls(session="tasks")).items
        async with asyncio.timeout(20):
            await ledger.wait(row.id)
        await asyncio.wait_for(made.stopped.wait(), 20)
        assert (await ledger.find_call(row.id)).state == "expired"
        with pytest.raises(MCPError, match="no task"):
            await about_task(client.session, "get", task)


async def test_what_a_tool_answers_is_kept_whole_whatever_it_is(ledger: LocalLedger) -> None:
    """C11: large output and halves of characters come back as a result."""
    async with studio(ledger) as (_, client):
        ended = await ended_task(client.session, await begun_task(client, "odd"))
        assert ended["status"] == "completed"
        text = ended["result"]["content"][0]["text"]
        assert text == "\ufffd" + "x" * 200_000


async def test_unknown_tasks_and_clients_that_said_nothing_are_refused(ledger: LocalLedger) -> None:
    """Neither the id of a call that is no task nor a guess leads anywhere."""
    async with studio(ledger) as (_, client):
        task = await begun_task(client, "render", scene="sea")
        (row,) = (await ledger.calls()).items
        for wrong in ("", "task_", row.id, f"{task}0", f"{task}\x00", task.upper(), "\x00"):
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError) as caught:
                    await about_task(client.session, method, wrong)
                assert caught.value.code == types.INVALID_PARAMS
    made = Studio(ledger)
    async with Client(made.server) as plain:
        with pytest.raises(MCPError) as caught:
            await about_task(plain.session, "get", task)
        assert caught.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_a_server_that_breaks_is_a_failed_task_and_tells_no_secrets(ledger: LocalLedger) -> None:
    """On a low-level server, where nobody makes a result of what its tool raises: as the protocol's own error."""

    async def listed(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="breaks", input_schema={"type": "object"})])

    async def called(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        raise RuntimeError("/home/somebody/key")

    server: Server[Any] = Server("plain", on_list_tools=listed, on_call_tool=called)
    tasks = Tasks(ledger)
    tasks.serve("breaks")
    tasks.attach(server)
    async with Client(server, extensions=[TasksOfClient()]) as client:
        ended = await ended_task(client.session, await begun_task(client, "breaks"))
    assert (ended["status"], ended["error"]["code"]) == ("failed", types.INTERNAL_ERROR)
    assert "somebody" not in str(ended) and "result" not in ended
    await tasks.close()


async def test_a_server_that_stops_ends_its_tasks(ledger: LocalLedger) -> None:
    """C5: as lost, which a client is told as an error of the tool."""
    async with studio(ledger) as (_, client):
        await begun_task(client, "render", scene="sea")
    (row,) = (await ledger.calls()).items
    assert row.state == "lost" and "stopped" in row.reason


# Killed


@contextlib.asynccontextmanager
async def fixtures(path: Path) -> AsyncGenerator[tuple[subprocess.Popen[str], str]]:
    program = [sys.executable, str(TESTS / "programs" / "mcp_fixtures.py"), str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, (await asyncio.to_thread(server.stdout.readline)).strip()
        finally:
            server.kill()


async def test_tasks_are_answered_after_a_kill(tmp_path: Path) -> None:
    """What had finished is told as it was; what ran has ended, and so has what waited to be told something."""
    path = tmp_path / "ledger.db"
    async with fixtures(path) as (server, url), over_http(url, extensions=[TasksOfClient()]) as client:
        finished = await begun_task(client, "slow_compute", seconds=0, label="quick")
        failed = await begun_task(client, "protocol_error_job")
        ended = [await ended_task(client.session, task) for task in (finished, failed)]
        runs = await begun_task(client, "slow_compute", seconds=600)
        asks = await begun_task(client, "confirm_delete", filename="a")
        await task_until(client.session, asks, "input_required")
        server.send_signal(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
    async with fixtures(path) as (_, url), over_http(url, extensions=[TasksOfClient()]) as client:
        assert [await about_task(client.session, "get", task) for task in (finished, failed)] == ended
        assert [told["status"] for told in ended] == ["completed", "failed"]
        for task in (runs, asks):
            told = await ended_task(client.session, task)
            assert (told["status"], told["result"]["isError"]) == ("completed", True)
            assert told["statusMessage"] and told["result"]["content"][0]["text"] == told["statusMessage"]


# Our own commands


async def test_a_command_is_a_task_for_a_client_that_knows_tasks(tmp_path: Path) -> None:
    """S3.9: over stdio, run by an executor in another process; the task's id is the command's."""
    path = tmp_path / "ledger.db"
    async with (
        await open_ledger(f"sqlite:///{path}") as ledger,
        over_stdio(path, extensions=[TasksOfClient()]) as client,
    ):
        commands = CommandQueue(ledger.log)
        running = asyncio.ensure_future(client.call_tool("interact", {"action": "execute_js", "script": "1+1"}))
        claim = await commands.claim(wait=20)
        assert claim is not None and claim.params == {"script": "1+1"}
        await commands.complete(claim.call, 2, fence=claim.fence)
        told = (await running).structured_content
        assert (told["correlation_id"], told["status"], told["result"]) == (claim.call, "complete", 2)
        await commands.close()


async def test_how_commands_end_as_tasks(ledger: LocalLedger) -> None:
    """C13: `completed` with isError for all that went wrong, `cancelled` for what was cancelled, never `failed`."""
    commands = CommandQueue(ledger.log)
    async with served(ledger) as url, over_http(url, extensions=[TasksOfClient()]) as client:
        names = ("works", "breaks", "times out", "stops", "asks")
        tasks = {
            name: await begun_task(client, "interact", action=name, **({"approve": "ask"} if name == "asks" else {}))
            for name in names
        }
        await commands.complete(tasks["works"], {"fine": True})
        await commands.fail(tasks["breaks"], "broken")
        await commands.expire(tasks["times out"])
        await about_task(client.session, "cancel", tasks["stops"])
        told = {name: await about_task(client.session, "get", task) for name, task in tasks.items()}
        assert {name: one["status"] for name, one in told.items()} == {
            "works": "completed",
            "breaks": "completed",
            "times out": "completed",
            "stops": "cancelled",
            "asks": "input_required",
        }
        assert told["works"]["result"]["structuredContent"]["result"] == {"fine": True}
        assert not told["works"]["result"].get("isError")
        assert [told[name]["result"]["isError"] for name in ("breaks", "times out")] == [True, True]
        await about_task(client.session, "update", tasks["asks"], input_responses={"approve": accepted("approve")})
        still = await about_task(client.session, "get", tasks["asks"])
        assert (still["status"], still["inputRequests"]) == ("input_required", {})
        assert (await ledger.find_call(tasks["asks"])).state == "awaiting_approval"
    await commands.close()


async def test_what_an_executor_says_is_no_question_to_the_client(ledger: LocalLedger) -> None:
    """A command's progress is its executor's: a client would ask its user, and nobody would hear the answer."""
    commands = CommandQueue(ledger.log)
    async with served(ledger) as url, over_http(url, extensions=[TasksOfClient()]) as client:
        task = await begun_task(client, "interact", action="go")
        claim = await commands.claim()
        assert claim is not None
        asks = {"inputRequests": {"password": {"method": "elicitation/create", "params": {"message": "It, please"}}}}
        await commands.heartbeat(claim.call, claim.fence, progress=asks)
        told = await about_task(client.session, "get", task)
        assert told["status"] == "working" and "inputRequests" not in told
    await commands.close()


async def test_a_command_that_is_refused_begins_no_task(ledger: LocalLedger) -> None:
    """The model reads why, as without tasks."""
    commands = CommandQueue(ledger.log)
    async with served(ledger) as url, over_http(url, extensions=[advertise(EXTENSION)]) as client:
        for arguments in ({}, {"action": "go", "timeout": -1}, {"action": "go", "approve": "yes"}):
            result = await client.call_tool("interact", arguments)
            assert result.is_error and result.structured_content["kind"] == "refused"
    await commands.close()


async def test_tasks_of_sessions_that_one_may_not_see_are_not_there(ledger: LocalLedger) -> None:
    """The gate is asked for each request about a task, as for each tool."""
    commands = CommandQueue(ledger.log)
    gate = TokenAuthorizer(ledger.log.store, MAIN)
    reads, elsewhere = await token_for(ledger, "read"), await token_for(ledger, "read", "write", session="other")
    async with served(ledger, gate) as url:
        async with over_http(url, token=MAIN, extensions=[TasksOfClient()]) as client:
            task = await begun_task(client, "interact", action="go")
        async with over_http(url, token=reads, extensions=[TasksOfClient()]) as client:
            assert (await about_task(client.session, "get", task))["status"] == "working"
            with pytest.raises(MCPError, match="may not write"):
                await about_task(client.session, "cancel", task)
        async with over_http(url, token=elsewhere, extensions=[TasksOfClient()]) as client:
            for method in ("get", "cancel", "update"):
                with pytest.raises(MCPError, match="no task"):
                    await about_task(client.session, method, task)
    assert (await ledger.find_call(task)).state == "queued"
    await commands.close()
