"""The MCP server with the official client: commands, calls, resources, access rights, bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from callslip.api.commands import CommandQueue
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.http.access import CallbackAuthorizer, TokenAuthorizer
from callslip.mcp.command_tools import CONTROL
from callslip.model import events as ev
from callslip.model import ids
from callslip.model.records import SessionRecord
from callslip.settings import Settings
from tests.support.cli_process import run
from tests.support.live_server import fetch, requesting
from tests.support.mcp_client import MODES, call_tool, create_token, over_http, over_stdio, result_fields, serving_mcp

pytestmark = pytest.mark.anyio

SETTINGS = Settings(queue_limit=3)
MAIN_TOKEN = "a-main-token-of-some-length"


class Connection(NamedTuple):
    """A client, and the commands of the server's ledger, to run them as a worker does."""

    client: Client
    commands: CommandQueue


@contextlib.asynccontextmanager
async def open_commands(path: Path) -> AsyncGenerator[tuple[LocalLedger, CommandQueue]]:
    async with await open_ledger(f"sqlite:///{path}", SETTINGS) as ledger:
        commands = CommandQueue(ledger.log)
        yield ledger, commands
        await commands.close()


@contextlib.asynccontextmanager
async def connected(transport: str, mode: str, path: Path) -> AsyncGenerator[Connection]:
    async with open_commands(path) as (ledger, commands), contextlib.AsyncExitStack() as stack:
        if transport == "stdio":
            client = await stack.enter_async_context(over_stdio(path, mode))
        else:
            url = await stack.enter_async_context(serving_mcp(ledger))
            client = await stack.enter_async_context(over_http(url, mode))
        yield Connection(client, commands)


@pytest.fixture(params=[f"{transport} {mode}" for transport in ("stdio", "http") for mode in MODES])
async def connection(request: Any, tmp_path: Path) -> AsyncIterator[Connection]:
    """A connection over both transports, with both protocol versions."""
    async with connected(*request.param.split(), tmp_path / "ledger.db") as connection:
        yield connection


@pytest.fixture
async def http_connection(tmp_path: Path) -> AsyncIterator[Connection]:
    async with connected("http", "auto", tmp_path / "ledger.db") as connection:
        yield connection


# Commands


async def test_a_command_is_submitted_polled_for_and_its_result_read(connection: Connection) -> None:
    """S3.9: the first dialogue, with an executor that takes some time."""
    queued = await call_tool(connection.client, "interact", action="execute_js", script="document.title")
    assert queued == {"status": "queued", "correlation_id": queued["correlation_id"]}
    assert ids.CALL.match(queued["correlation_id"])
    query = {"what": "command_result", "correlation_id": queued["correlation_id"]}
    pending = await call_tool(connection.client, "observe", **query)
    assert (pending["status"], pending["final"], pending["position"]) == ("pending", False, 1)

    claim = await connection.commands.claim(wait=20)
    assert claim is not None and (claim.action, claim.params) == ("execute_js", {"script": "document.title"})
    poll = asyncio.ensure_future(call_tool(connection.client, "observe", **query, wait=20))
    await connection.commands.complete(claim.call, {"title": "Callslip"}, fence=claim.fence)
    complete = await poll
    assert (complete["status"], complete["final"]) == ("complete", True)
    assert complete["result"] == {"title": "Callslip"} and complete["completed_at"] >= complete["created_at"]


async def test_all_commands_are_listed_and_the_failed_ones_looked_at(connection: Connection) -> None:
    """S3.9: the second dialogue."""
    completed_id, failed_id, pending_id = [
        (await call_tool(connection.client, "interact", action=action))["correlation_id"]
        for action in ("one", "two", "three")
    ]
    await connection.commands.complete(completed_id, "well")
    await connection.commands.fail(failed_id, "the tab is gone")
    commands = await call_tool(connection.client, "observe", what="pending_commands")
    assert [command["correlation_id"] for command in commands["pending"]] == [pending_id]
    assert [command["correlation_id"] for command in commands["completed"]] == [completed_id]
    assert [command["correlation_id"] for command in commands["failed"]] == [failed_id]
    failures = await call_tool(connection.client, "observe", what="failed_commands")
    assert [(command["correlation_id"], command["error"]) for command in failures["commands"]] == [
        (failed_id, "the tab is gone")
    ]


async def test_an_unknown_command_has_the_final_status_not_found(http_connection: Connection) -> None:
    """S3.2: a model that polls learns at once that there is nothing to wait for, even with `wait`."""
    for unknown in ("exec_000000000000", "no such thing", "@last", "\x00"):
        result = await call_tool(
            http_connection.client, "observe", what="command_result", correlation_id=unknown, wait=30
        )
        assert (result["correlation_id"], result["status"], result["final"]) == (unknown, "not_found", True)


async def test_arguments_of_an_action_are_flat_unless_interact_has_the_name(http_connection: Connection) -> None:
    """Unknown arguments go to the action, at any depth; those with names of `interact` go into `params`."""
    flat = {"selector": "#go", "deep": {"list": [1, None, {"a": "ü"}]}, "none": None, "what": "text"}
    await call_tool(http_connection.client, "interact", action="click", client="tab 7", params={"timeout": 5}, **flat)
    claim = await http_connection.commands.claim("tab 7")
    assert claim is not None and claim.params == {**flat, "timeout": 5}
    twice = await call_tool(
        http_connection.client, "interact", action="click", selector="#a", params={"selector": "#b"}
    )
    assert (twice["kind"], twice["field"]) == ("refused", "selector")
    (tool,) = [tool for tool in (await http_connection.client.list_tools()).tools if tool.name == "interact"]
    assert set(tool.input_schema["properties"]) == CONTROL and tool.input_schema["additionalProperties"] is True


async def test_the_same_correlation_id_is_the_same_command(http_connection: Connection) -> None:
    """A client may repeat a request that may be lost; another command with the same id is a conflict."""
    first = await call_tool(http_connection.client, "interact", action="go", correlation_id="mine", step=1)
    again = await call_tool(http_connection.client, "interact", action="go", correlation_id="mine", step=1)
    assert first == again == {"status": "queued", "correlation_id": "mine"}
    other = await call_tool(http_connection.client, "interact", action="go", correlation_id="mine", step=2)
    assert other["kind"] == "conflict"
    assert len((await call_tool(http_connection.client, "observe", what="pending_commands"))["pending"]) == 1


async def test_a_full_queue_is_reported_to_the_model(http_connection: Connection) -> None:
    """S3.7"""
    for _ in range(SETTINGS.queue_limit):
        await call_tool(http_connection.client, "interact", action="go")
    refused = await call_tool(http_connection.client, "interact", action="go")
    assert "queue" in refused["kind"] and str(SETTINGS.queue_limit) in refused["error"]


# Waiting


async def test_a_waiting_client_receives_progress(http_connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress comes while the command is pending, in growing numbers; the result comes as soon as there is one."""
    monkeypatch.setattr("callslip.mcp.tool.PROGRESS_INTERVAL_S", 0.01)
    call_id = (await call_tool(http_connection.client, "interact", action="go"))["correlation_id"]
    reports: list[tuple[float, float | None, str | None]] = []
    third_report = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        reports.append((done, total, message))
        if len(reports) == 3:
            third_report.set()

    arguments = {"call": call_id, "wait": 20}
    waiter = asyncio.ensure_future(
        http_connection.client.call_tool("wait_for_call", arguments, progress_callback=progress)
    )
    async with asyncio.timeout(20):
        await third_report.wait()
        claim = await http_connection.commands.claim()
        assert claim is not None
        await http_connection.commands.heartbeat(claim.call, claim.fence, progress="half of it")
        while reports[-1][2] != "running: half of it":
            await asyncio.sleep(0.01)
        await http_connection.commands.complete(call_id, 1, fence=claim.fence)
        result = await waiter
    assert result.structured_content["state"] == "completed"
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    assert reports[0][1:] == (20.0, "queued")


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_wait_does_not_end_the_call(tmp_path: Path, mode: str) -> None:
    """A client that cancels its request ends the wait on the server; the command stays queued."""
    async with connected("http", mode, tmp_path / "ledger.db") as (client, commands):
        call_id = (await call_tool(client, "interact", action="go"))["correlation_id"]
        started = asyncio.Event()

        async def progress(*_: Any) -> None:
            started.set()

        waiter = asyncio.ensure_future(
            client.call_tool("wait_for_call", {"call": call_id, "wait": 60}, progress_callback=progress)
        )
        await started.wait()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert (await call_tool(client, "read_call", call=call_id))["state"] == "queued"
        await commands.complete(call_id, "done")
        assert (await call_tool(client, "read_call", call=call_id))["state"] == "completed"


# Calls


async def test_calls_are_listed_read_and_cancelled(http_connection: Connection) -> None:
    """Pages are newest first; cancelling again changes nothing, cancelling a completed call is a conflict."""
    calls = [
        (await call_tool(http_connection.client, "interact", action=f"act {n}"))["correlation_id"] for n in range(3)
    ]
    listed: list[str] = []
    cursor = ""
    while True:
        page = await call_tool(http_connection.client, "list_calls", session="commands", limit=2, cursor=cursor)
        listed += [call["call"] for call in page["calls"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert listed == calls[::-1]
    assert (await call_tool(http_connection.client, "list_calls", states=["running"]))["calls"] == []
    stopped = await call_tool(http_connection.client, "cancel_call", call=calls[0], reason="not needed")
    assert (stopped["state"], stopped["final"]) == ("cancelled", True) and "not needed" in stopped["reason"]
    assert (await call_tool(http_connection.client, "cancel_call", call=calls[0]))["reason"] == stopped["reason"]
    await http_connection.commands.complete(calls[1], {"n": 1})
    refused = await call_tool(http_connection.client, "cancel_call", call=calls[1])
    assert refused["kind"] == "conflict" and refused["current"]["state"] == "completed"
    read = await call_tool(http_connection.client, "read_call", call=calls[1])
    assert read["final"] and read["toolCall"]["output"] == {"n": 1}


async def test_calls_and_sessions_are_resources(connection: Connection) -> None:
    """They are listed, described by templates and read as JSON; an unknown one is an error of the protocol."""
    call_id = (await call_tool(connection.client, "interact", action="go", session="a:b ü"))["correlation_id"]
    (resource,) = (await connection.client.list_resources()).resources
    assert resource.uri == f"callslip://calls/{call_id}" and resource.mime_type == "application/json"
    templates = (await connection.client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == ["callslip://calls/{id}", "callslip://sessions/{name}"]
    assert (await _read(connection.client, resource.uri))["state"] == "queued"
    session = await _read(connection.client, "callslip://sessions/a%3Ab%20%C3%BC")
    assert session["session"] == "a:b ü" and [call["call"] for call in session["newest"]] == [call_id]
    for unknown in ("callslip://calls/none", "callslip://sessions/none", "callslip://else/x", "file:///etc/passwd"):
        with pytest.raises(MCPError, match="no "):
            await connection.client.read_resource(unknown)


async def _read(client: Client, uri: str) -> Any:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    return json.loads(content.text)


# What a model cannot do


async def test_no_tool_approves(http_connection: Connection) -> None:
    """Only people approve: no tool call changes a call that waits for approval."""
    call_id = (await call_tool(http_connection.client, "interact", action="rm", approve="ask"))["correlation_id"]
    tools = (await http_connection.client.list_tools()).tools
    assert [tool.name for tool in tools] == [
        "interact",
        "observe",
        "list_calls",
        "read_call",
        "wait_for_call",
        "cancel_call",
    ]
    for tool in tools:
        assert not {"approve", "decision", "option", "approval"} & set(tool.input_schema["properties"]) - {"approve"}
        assert tool.name == "interact" or "approve" not in tool.input_schema["properties"]
    for approve in ("approve", "allow", True, "yes"):
        refused = await call_tool(http_connection.client, "interact", action="rm", approve=approve)
        assert refused["kind"] == "refused"
    assert (await call_tool(http_connection.client, "read_call", call=call_id))["state"] == "awaiting_approval"


async def test_tools_are_described_completely(http_connection: Connection) -> None:
    """Schemas are complete and hints are right: hosts decide by them when to ask their user."""
    for tool in (await http_connection.client.list_tools()).tools:
        assert tool.description and tool.title and tool.output_schema and tool.annotations
        assert all(schema.get("description") for schema in tool.input_schema["properties"].values()), tool.name
        assert tool.annotations.read_only_hint == (tool.name not in ("interact", "cancel_call"))
        assert tool.annotations.destructive_hint == (tool.name in ("interact", "cancel_call"))


BAD_ARGUMENTS: list[tuple[str, Any]] = [
    ("interact", {}),
    ("interact", {"action": ""}),
    ("interact", {"action": "x" * 201}),
    ("interact", {"action": 5}),
    ("interact", {"action": "a\x00b"}),
    ("interact", {"action": "go", "params": "no object"}),
    ("interact", {"action": "go", "timeout": -1}),
    ("interact", {"action": "go", "timeout": 1e300}),
    ("interact", {"action": "go", "session": "\x00"}),
    ("interact", {"action": "go", "session": "s" * 10_000}),
    ("interact", {"action": "go", "correlation_id": "exec_0123456789ab"}),
    ("observe", {}),
    ("observe", {"what": "everything"}),
    ("observe", {"what": "command_result"}),
    ("observe", {"what": "command_result", "correlation_id": ["a"]}),
    ("observe", {"what": "command_result", "correlation_id": "a", "wait": 1e9}),
    ("observe", {"what": "command_result", "correlation_id": "a", "wait": "nan"}),
    ("observe", {"what": "pending_commands", "extra": 1}),
    ("list_calls", {"states": ["over"]}),
    ("list_calls", {"limit": 0}),
    ("list_calls", {"limit": 10**30}),
    ("list_calls", {"cursor": "exec_nothing"}),
    ("read_call", {"call": ""}),
    ("wait_for_call", {"call": "exec_", "wait": -1}),
    ("cancel_call", {"call": "none", "reason": "r" * 2001}),
]


async def test_bad_arguments_are_refused_and_change_nothing(http_connection: Connection) -> None:
    """The model gets a result that names what to change; nothing is submitted, and the server keeps running."""
    for tool, arguments in BAD_ARGUMENTS:
        result = await http_connection.client.call_tool(tool, arguments)
        assert result.is_error and result_fields(result)["error"], (tool, arguments)
        assert "Traceback" not in result_fields(result)["error"]
    with pytest.raises(MCPError, match="no tool"):
        await http_connection.client.call_tool("approve_call", {"call": "x"})
    assert await call_tool(http_connection.client, "observe", what="pending_commands") == {
        "pending": [],
        "completed": [],
        "failed": [],
    }


async def test_deep_and_large_arguments_do_not_break_the_server(http_connection: Connection) -> None:
    """C11: arguments that are too deep are refused; large ones arrive unchanged."""
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    result = await http_connection.client.call_tool("interact", {"action": "go", "deep": deep})
    assert result.is_error or result.structured_content["status"] == "queued"
    large = "x" * 2**20
    await call_tool(http_connection.client, "interact", action="go", client="big", text=large)
    claim = await http_connection.commands.claim("big")
    assert claim is not None and claim.params["text"] == large


ENVELOPE = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'
)


async def test_bodies_that_are_not_messages_are_refused(tmp_path: Path) -> None:
    """An invalid body gets an error, and the server answers the next request."""
    async with open_commands(tmp_path / "ledger.db") as (ledger, _), serving_mcp(ledger) as url:
        accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        for body in (b"", b"{", b"[]", b"null", b'{"jsonrpc":"2.0"}', b"\xff\xfe", b"[" * 100_000):
            for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
                response = await fetch(url, "POST", headers={**accept, **version}, body=body)
                assert 400 <= response.status < 500, (body[:20], response.status)
        assert (await fetch(url, "POST", headers={"content-type": "text/plain"}, body=b"x")).status >= 400
        for odd_value in (rb'"\ud800"', b"NaN", b"1e999", b"[" * 5000 + b"]" * 5000):
            params = b'{"name":"interact","arguments":{"action":"go","odd":' + odd_value + b"},%s}" % ENVELOPE
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + b"}"
            headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "interact"}
            response = await fetch(url, "POST", headers={**accept, **headers}, body=body)
            is_accepted = response.status == 200 and not response.json()["result"]["isError"]
            assert is_accepted == (odd_value == rb'"\ud800"') and response.status in (200, 400), (
                odd_value[:20],
                response.text,
            )
        async with over_http(url) as client:
            assert (await call_tool(client, "interact", action="go"))["status"] == "queued"


# Access


async def test_tokens_give_the_same_rights_as_over_http(tmp_path: Path) -> None:
    """Reading needs `read`, submitting and cancelling need `write`; other sessions are not found."""
    async with open_commands(tmp_path / "ledger.db") as (ledger, _):
        authorizer = TokenAuthorizer(ledger.log, MAIN_TOKEN)
        read_token, write_token = await create_token(ledger, "read"), await create_token(ledger, "write")
        session_token = await create_token(ledger, "read", "write", session="one")
        async with serving_mcp(ledger, authorizer) as url:
            async with over_http(url, token=MAIN_TOKEN) as main:
                hidden = (await call_tool(main, "interact", action="go", session="two"))["correlation_id"]
            async with over_http(url, token=read_token) as client:
                assert (await call_tool(client, "interact", action="go"))["kind"] == "forbidden"
                assert (await call_tool(client, "cancel_call", call=hidden))["kind"] == "forbidden"
                assert (await call_tool(client, "read_call", call=hidden))["state"] == "queued"
            async with over_http(url, token=write_token) as client:
                assert (await call_tool(client, "interact", action="go"))["status"] == "queued"
                assert (await call_tool(client, "observe", what="pending_commands"))["kind"] == "forbidden"
            async with over_http(url, token=session_token) as client:
                await _check_visible_calls(client, hidden)
        assert await ledger.log.store.session("three") is None


async def _check_visible_calls(client: Client, hidden: str) -> None:
    own_id = (await call_tool(client, "interact", action="go", session="one"))["correlation_id"]
    assert (await call_tool(client, "interact", action="go", session="three"))["kind"] == "not-found"
    assert (await call_tool(client, "read_call", call=hidden))["kind"] == "not-found"
    assert (await call_tool(client, "cancel_call", call=hidden))["kind"] == "not-found"
    assert (await call_tool(client, "observe", what="command_result", correlation_id=hidden))["status"] == "not_found"
    calls = await call_tool(client, "list_calls")
    pending = await call_tool(client, "observe", what="pending_commands")
    assert [call["call"] for call in calls["calls"]] == [own_id]
    assert [command["correlation_id"] for command in pending["pending"]] == [own_id]
    assert [resource.name for resource in (await client.list_resources()).resources] == [own_id]


async def test_hidden_commands_do_not_fill_the_lists(tmp_path: Path) -> None:
    """S3.5: commands that the caller may not see do not count towards the limit of a list."""
    async with await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", Settings(queue_limit=2000)) as ledger:
        queue = CommandQueue(ledger.log)
        token = await create_token(ledger, "read", session="own")
        await asyncio.gather(*(queue.submit("go", session="others") for _ in range(1001)))
        own_id = (await queue.submit("go", session="own")).correlation_id
        async with (
            serving_mcp(ledger, TokenAuthorizer(ledger.log, MAIN_TOKEN)) as url,
            over_http(url, token=token) as client,
        ):
            commands = await call_tool(client, "observe", what="pending_commands")
        assert [command["correlation_id"] for command in commands["pending"]] == [own_id]
        await queue.close()


async def test_a_token_is_required_and_an_mcp_session_belongs_to_its_token(tmp_path: Path) -> None:
    """Every request is checked; another token does not find the session."""
    async with open_commands(tmp_path / "ledger.db") as (ledger, _):
        other = await create_token(ledger, "read", "write")
        async with serving_mcp(ledger, TokenAuthorizer(ledger.log, MAIN_TOKEN)) as url:
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            accept = {"accept": "application/json, text/event-stream"}
            refused = await fetch(url, "POST", headers=accept, value=body)
            assert refused.status == 401 and "Bearer" in refused.headers["www-authenticate"]
            admitted = await fetch(url, "POST", headers={**accept, "authorization": f"Bearer {MAIN_TOKEN}"}, value=body)
            assert admitted.status == 200
            session = {**accept, "mcp-session-id": admitted.headers["mcp-session-id"]}
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            for token, status in ((MAIN_TOKEN, 200), (other, 404), ("wrong", 401)):
                headers = {**session, "authorization": f"Bearer {token}"}
                assert (await fetch(url, "POST", headers=headers, value=listing)).status == status


async def test_one_user_cannot_use_up_all_mcp_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with too many sessions loses the least recently used one; other users are not affected."""
    monkeypatch.setattr("callslip.mcp.http_transport.MAX_USER_SESSIONS", 2)
    monkeypatch.setattr("callslip.mcp.http_transport.MAX_SESSIONS", 5)
    async with open_commands(tmp_path / "ledger.db") as (ledger, _):
        other = await create_token(ledger, "read")
        async with serving_mcp(ledger, TokenAuthorizer(ledger.log, MAIN_TOKEN)) as url:

            async def post(token: str, value: Any, session: str = "") -> tuple[int, str]:
                headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
                session_header = {"mcp-session-id": session} if session else {}
                response = await fetch(url, "POST", headers={**headers, **session_header}, value=value)
                return response.status, response.headers.get("mcp-session-id", "")

            async def is_open(session: str) -> bool:
                listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                return (await post(other, listing, session))[0] == 200

            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            first, second = [(await post(other, body))[1] for _ in range(2)]
            assert await is_open(second) and await is_open(first)
            third = (await post(other, body))[1]
            assert [await is_open(session) for session in (first, second, third)] == [True, False, True]
            assert [(await post(other, body))[0] for _ in range(10)] == [200] * 10
            assert [(await post(MAIN_TOKEN, body))[0] for _ in range(3)] == [200] * 3


async def test_an_address_can_name_the_session_for_commands(tmp_path: Path) -> None:
    """A client with a token for one session need not name the session; the rights of the token stay the same."""
    async with open_commands(tmp_path / "ledger.db") as (ledger, commands):
        session_token, write_token = (
            await create_token(ledger, "read", "write", session="one"),
            await create_token(ledger, "write", session="two"),
        )
        async with serving_mcp(ledger, TokenAuthorizer(ledger.log, MAIN_TOKEN)) as url:
            async with over_http(f"{url}?session=one", token=session_token) as client:
                assert (await call_tool(client, "interact", action="go"))["status"] == "queued"
            async with over_http(f"{url}?session=two", token=write_token) as client:
                assert (await call_tool(client, "interact", action="go"))["status"] == "queued"
                assert (await call_tool(client, "list_calls"))["kind"] == "forbidden"
            async with over_http(f"{url}?session=two", token=session_token) as client:
                assert (await call_tool(client, "interact", action="go"))["kind"] == "not-found"
        assert sorted(command.session for command in await commands.pending()) == ["one", "two"]


async def test_a_function_of_the_host_decides_about_access(tmp_path: Path) -> None:
    """A user that the host does not know cannot open an MCP session."""

    def authorize(request: Any, session: SessionRecord | None, verb: str) -> str | None:
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        return name if name == "ada" and (session is None or session.owner in ("", name)) else None

    async with open_commands(tmp_path / "ledger.db") as (ledger, commands):
        await ledger.log.append("his", [ev.SessionInfo(owner="bob")])
        hidden = (await commands.submit("go", session="his")).correlation_id
        async with serving_mcp(ledger, CallbackAuthorizer(authorize)) as url:
            assert (await fetch(url, "POST", headers={"authorization": "Bearer bob"}, value={})).status == 403
            async with over_http(url, token="ada") as client:
                assert (await call_tool(client, "interact", action="go", session="hers"))["status"] == "queued"
                assert (await call_tool(client, "interact", action="go", session="his"))["kind"] == "not-found"
                assert (await call_tool(client, "read_call", call=hidden))["kind"] == "not-found"


async def test_a_session_that_a_command_creates_belongs_to_the_submitter(tmp_path: Path) -> None:
    """As with posted events: hosts that check owners would otherwise have sessions without one."""
    async with open_commands(tmp_path / "ledger.db") as (ledger, _):
        authorizer = TokenAuthorizer(ledger.log, MAIN_TOKEN, "ada")
        async with serving_mcp(ledger, authorizer) as url, over_http(url, token=MAIN_TOKEN) as client:
            await call_tool(client, "interact", action="go", session="hers")
        row = await ledger.log.store.session("hers")
        assert isinstance(row, SessionRecord) and row.owner == "ada"


async def test_a_closing_ledger_ends_open_streams(tmp_path: Path) -> None:
    """A server that stops does not wait for streams that never end; later requests get 503."""
    async with open_commands(tmp_path / "ledger.db") as (ledger, _), serving_mcp(ledger) as url:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        accept = {"accept": "application/json, text/event-stream"}
        session = (await fetch(url, "POST", headers=accept, value=body)).headers["mcp-session-id"]
        async with requesting(url, headers={"accept": "text/event-stream", "mcp-session-id": session}) as stream:
            assert stream.status == 200
            await ledger.log.feed.close()
            async with asyncio.timeout(20):
                assert not [piece async for piece in stream.pieces() if b"data:" in piece]
        assert (await fetch(url, "POST", headers=accept, value=body)).status == 503


# The command


def test_the_help_of_the_command_does_not_load_the_sdk() -> None:
    """`callslip --help` stays fast; `callslip mcp --help` names the tools."""
    code = "import sys, callslip.cli, callslip.mcp, callslip.cli.commands.mcp; print('mcp' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
    help_run = run("mcp", "--help")
    assert help_run.returncode == 0 and "interact" in help_run.stdout
    run_result = run("mcp", "--db", ":memory:")  # Its stdin is closed already.
    assert (run_result.returncode, run_result.stdout) == (0, "")


def test_the_command_ends_quietly_when_its_client_is_gone(tmp_path: Path) -> None:
    """A broken pipe is not an error: no client is left to answer."""
    command = [sys.executable, "-m", "callslip", "mcp", "--db", str(tmp_path / "ledger.db")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as server:
        assert server.stdin and server.stdout and server.stderr
        server.stdout.close()
        server.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 2)
        server.stdin.close()
        errors = server.stderr.read()
        assert (server.wait(20), errors) == (0, b"")
