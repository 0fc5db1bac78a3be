"""Our MCP server, asked by the official client: seed 003's dialogues, resources, who may do what, bad input."""

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
from tests.support.live_server import ask, asking
from tests.support.mcp_client import MODES, call, over_http, over_stdio, served, token_for

pytestmark = pytest.mark.anyio

SETTINGS = Settings(queue_limit=3)
MAIN = "a-main-token-of-some-length"


class Talk(NamedTuple):
    """A client, and the commands of the ledger behind its server, for whoever executes them."""

    client: Client
    commands: CommandQueue


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[tuple[LocalLedger, CommandQueue]]:
    async with await open_ledger(f"sqlite:///{path}", SETTINGS) as ledger:
        commands = CommandQueue(ledger.log)
        yield ledger, commands
        await commands.close()


@contextlib.asynccontextmanager
async def talking(way: str, mode: str, path: Path) -> AsyncGenerator[Talk]:
    async with opened(path) as (ledger, commands), contextlib.AsyncExitStack() as stack:
        if way == "stdio":
            client = await stack.enter_async_context(over_stdio(path, mode))
        else:
            url = await stack.enter_async_context(served(ledger))
            client = await stack.enter_async_context(over_http(url, mode))
        yield Talk(client, commands)


@pytest.fixture(params=[f"{way} {mode}" for way in ("stdio", "http") for mode in MODES])
async def talk(request: Any, tmp_path: Path) -> AsyncIterator[Talk]:
    """Over both transports, by both protocols."""
    async with talking(*request.param.split(), tmp_path / "ledger.db") as made:
        yield made


@pytest.fixture
async def http_talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking("http", "auto", tmp_path / "ledger.db") as made:
        yield made


# The seed's two dialogues


async def test_a_command_is_submitted_polled_for_and_its_result_read(talk: Talk) -> None:
    """S3.9: the seed's first example, with an executor that takes its time."""
    queued = await call(talk.client, "interact", action="execute_js", script="document.title")
    assert queued == {"status": "queued", "correlation_id": queued["correlation_id"]}
    assert ids.CALL.match(queued["correlation_id"])
    which = {"what": "command_result", "correlation_id": queued["correlation_id"]}
    pending = await call(talk.client, "observe", **which)
    assert (pending["status"], pending["final"], pending["position"]) == ("pending", False, 1)

    claim = await talk.commands.claim(wait=20)
    assert claim is not None and (claim.action, claim.params) == ("execute_js", {"script": "document.title"})
    waiting = asyncio.ensure_future(call(talk.client, "observe", **which, wait=20))
    await talk.commands.complete(claim.call, {"title": "Callslip"}, fence=claim.fence)
    complete = await waiting
    assert (complete["status"], complete["final"]) == ("complete", True)
    assert complete["result"] == {"title": "Callslip"} and complete["completed_at"] >= complete["created_at"]


async def test_all_commands_are_listed_and_the_failed_ones_looked_at(talk: Talk) -> None:
    """S3.9: the seed's second example."""
    done, failed, waits = [
        (await call(talk.client, "interact", action=action))["correlation_id"] for action in ("one", "two", "three")
    ]
    await talk.commands.complete(done, "well")
    await talk.commands.fail(failed, "the tab is gone")
    commands = await call(talk.client, "observe", what="pending_commands")
    assert [command["correlation_id"] for command in commands["pending"]] == [waits]
    assert [command["correlation_id"] for command in commands["completed"]] == [done]
    assert [command["correlation_id"] for command in commands["failed"]] == [failed]
    inspected = await call(talk.client, "observe", what="failed_commands")
    assert [(one["correlation_id"], one["error"]) for one in inspected["commands"]] == [(failed, "the tab is gone")]


async def test_an_unknown_command_is_not_found_and_that_is_final(http_talk: Talk) -> None:
    """S3.2: a model that polls must learn that there is nothing to wait for, at once, whatever it would wait."""
    for given in ("exec_000000000000", "no such thing", "@last", "\x00"):
        told = await call(http_talk.client, "observe", what="command_result", correlation_id=given, wait=30)
        assert (told["correlation_id"], told["status"], told["final"]) == (given, "not_found", True)


async def test_arguments_of_an_action_stand_flat_except_where_names_are_taken(http_talk: Talk) -> None:
    """What is not ours is the action's, at any depth; a name that we need goes into `params`."""
    flat = {"selector": "#go", "deep": {"list": [1, None, {"a": "ü"}]}, "none": None, "what": "ever"}
    await call(http_talk.client, "interact", action="click", client="tab 7", params={"timeout": 5}, **flat)
    claim = await http_talk.commands.claim("tab 7")
    assert claim is not None and claim.params == {**flat, "timeout": 5}
    twice = await call(http_talk.client, "interact", action="click", selector="#a", params={"selector": "#b"})
    assert (twice["kind"], twice["field"]) == ("refused", "selector")
    (tool,) = [tool for tool in (await http_talk.client.list_tools()).tools if tool.name == "interact"]
    assert set(tool.input_schema["properties"]) == CONTROL and tool.input_schema["additionalProperties"] is True


async def test_the_same_correlation_id_is_the_same_command(http_talk: Talk) -> None:
    """A client that does not know whether it was heard may ask again; another command under the id is a conflict."""
    one = await call(http_talk.client, "interact", action="go", correlation_id="mine", step=1)
    again = await call(http_talk.client, "interact", action="go", correlation_id="mine", step=1)
    assert one == again == {"status": "queued", "correlation_id": "mine"}
    other = await call(http_talk.client, "interact", action="go", correlation_id="mine", step=2)
    assert other["kind"] == "conflict"
    assert len((await call(http_talk.client, "observe", what="pending_commands"))["pending"]) == 1


async def test_a_full_queue_tells_the_model(http_talk: Talk) -> None:
    """S3.7"""
    for _ in range(SETTINGS.queue_limit):
        await call(http_talk.client, "interact", action="go")
    told = await call(http_talk.client, "interact", action="go")
    assert "queue" in told["kind"] and str(SETTINGS.queue_limit) in told["error"]


# Waiting


async def test_whoever_waits_is_told_so_now_and_then(http_talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress comes while the command is pending, in growing numbers; the result comes as soon as it is there."""
    monkeypatch.setattr("callslip.mcp.tool.TICK", 0.01)
    identity = (await call(http_talk.client, "interact", action="go"))["correlation_id"]
    told: list[tuple[float, float | None, str | None]] = []
    enough = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total, message))
        if len(told) == 3:
            enough.set()

    arguments = {"call": identity, "wait": 20}
    waiting = asyncio.ensure_future(http_talk.client.call_tool("wait_for_call", arguments, progress_callback=progress))
    async with asyncio.timeout(20):
        await enough.wait()
        claim = await http_talk.commands.claim()
        assert claim is not None
        await http_talk.commands.heartbeat(claim.call, claim.fence, progress="half of it")
        while told[-1][2] != "running: half of it":
            await asyncio.sleep(0.01)
        await http_talk.commands.complete(identity, 1, fence=claim.fence)
        result = await waiting
    assert result.structured_content["state"] == "completed"
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[0][1:] == (20.0, "queued")


@pytest.mark.parametrize("mode", MODES)
async def test_giving_up_waiting_does_not_end_the_call(tmp_path: Path, mode: str) -> None:
    """A client that cancels its request frees the server of the waiting; the command goes on."""
    async with talking("http", mode, tmp_path / "ledger.db") as (client, commands):
        identity = (await call(client, "interact", action="go"))["correlation_id"]
        begun = asyncio.Event()

        async def progress(*_: Any) -> None:
            begun.set()

        waiting = asyncio.ensure_future(
            client.call_tool("wait_for_call", {"call": identity, "wait": 60}, progress_callback=progress)
        )
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await call(client, "read_call", call=identity))["state"] == "queued"
        await commands.complete(identity, "done")
        assert (await call(client, "read_call", call=identity))["state"] == "completed"


# Calls


async def test_calls_are_listed_read_and_cancelled(http_talk: Talk) -> None:
    """Page by page, newest first; a call that was cancelled stays so, one that ended otherwise is a conflict."""
    made = [(await call(http_talk.client, "interact", action=f"act {n}"))["correlation_id"] for n in range(3)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = await call(http_talk.client, "list_calls", session="commands", limit=2, cursor=cursor)
        seen += [one["call"] for one in page["calls"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == made[::-1]
    assert (await call(http_talk.client, "list_calls", states=["running"]))["calls"] == []
    stopped = await call(http_talk.client, "cancel_call", call=made[0], reason="not needed")
    assert (stopped["state"], stopped["final"]) == ("cancelled", True) and "not needed" in stopped["reason"]
    assert (await call(http_talk.client, "cancel_call", call=made[0]))["reason"] == stopped["reason"]
    await http_talk.commands.complete(made[1], {"n": 1})
    refused = await call(http_talk.client, "cancel_call", call=made[1])
    assert refused["kind"] == "conflict" and refused["current"]["state"] == "completed"
    read = await call(http_talk.client, "read_call", call=made[1])
    assert read["final"] and read["toolCall"]["output"] == {"n": 1}


async def test_calls_and_sessions_are_resources(talk: Talk) -> None:
    """Listed, described by templates, read as JSON; what is not there is the protocol's error."""
    identity = (await call(talk.client, "interact", action="go", session="a:b ü"))["correlation_id"]
    (listed,) = (await talk.client.list_resources()).resources
    assert listed.uri == f"callslip://calls/{identity}" and listed.mime_type == "application/json"
    templates = (await talk.client.list_resource_templates()).resource_templates
    assert [one.uri_template for one in templates] == ["callslip://calls/{id}", "callslip://sessions/{name}"]
    assert (await _read(talk.client, listed.uri))["state"] == "queued"
    session = await _read(talk.client, "callslip://sessions/a%3Ab%20%C3%BC")
    assert session["session"] == "a:b ü" and [one["call"] for one in session["newest"]] == [identity]
    for nothing in ("callslip://calls/none", "callslip://sessions/none", "callslip://else/x", "file:///etc/passwd"):
        with pytest.raises(MCPError, match="no "):
            await talk.client.read_resource(nothing)


async def _read(client: Client, uri: str) -> Any:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    return json.loads(content.text)


# What a model must not be able to do


async def test_no_tool_approves(http_talk: Talk) -> None:
    """Approvals are a person's: what waits for one stays as it is, whatever a model calls."""
    identity = (await call(http_talk.client, "interact", action="rm", approve="ask"))["correlation_id"]
    tools = (await http_talk.client.list_tools()).tools
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
        told = await call(http_talk.client, "interact", action="rm", approve=approve)
        assert told["kind"] == "refused"
    assert (await call(http_talk.client, "read_call", call=identity))["state"] == "awaiting_approval"


async def test_tools_say_what_they_do(http_talk: Talk) -> None:
    """Complete schemas and honest hints: hosts decide by them what to ask their user."""
    for tool in (await http_talk.client.list_tools()).tools:
        assert tool.description and tool.title and tool.output_schema and tool.annotations
        assert all(one.get("description") for one in tool.input_schema["properties"].values()), tool.name
        assert tool.annotations.read_only_hint == (tool.name not in ("interact", "cancel_call"))
        assert tool.annotations.destructive_hint == (tool.name in ("interact", "cancel_call"))


HOSTILE: list[tuple[str, Any]] = [
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


async def test_bad_arguments_are_refused_in_words_and_change_nothing(http_talk: Talk) -> None:
    """A model gets told what to change, as a result that it can read; nothing is submitted, and the server lives."""
    for tool, arguments in HOSTILE:
        result = await http_talk.client.call_tool(tool, arguments)
        assert result.is_error and result.structured_content["error"], (tool, arguments)
        assert "Traceback" not in result.structured_content["error"]
    with pytest.raises(MCPError, match="no tool"):
        await http_talk.client.call_tool("approve_call", {"call": "x"})
    assert await call(http_talk.client, "observe", what="pending_commands") == {
        "pending": [],
        "completed": [],
        "failed": [],
    }


async def test_deep_and_large_arguments_do_not_break_the_server(http_talk: Talk) -> None:
    """C11: what is too deep is refused; what is large goes through whole."""
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    result = await http_talk.client.call_tool("interact", {"action": "go", "deep": deep})
    assert result.is_error or result.structured_content["status"] == "queued"
    large = "x" * 2**20
    await call(http_talk.client, "interact", action="go", client="big", text=large)
    claim = await http_talk.commands.claim("big")
    assert claim is not None and claim.params["text"] == large


ENVELOPE = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'
)


async def test_bodies_that_are_no_messages_are_refused(tmp_path: Path) -> None:
    """Over HTTP anything may come."""
    async with opened(tmp_path / "ledger.db") as (ledger, _), served(ledger) as url:
        accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        for body in (b"", b"{", b"[]", b"null", b'{"jsonrpc":"2.0"}', b"\xff\xfe", b"[" * 100_000):
            for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
                answered = await ask(url, "POST", headers={**accept, **version}, body=body)
                assert 400 <= answered.status < 500, (body[:20], answered.status)
        assert (await ask(url, "POST", headers={"content-type": "text/plain"}, body=b"x")).status >= 400
        for odd in (rb'"\ud800"', b"NaN", b"1e999", b"[" * 5000 + b"]" * 5000):
            params = b'{"name":"interact","arguments":{"action":"go","odd":' + odd + b"},%s}" % ENVELOPE
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + b"}"
            headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "interact"}
            answered = await ask(url, "POST", headers={**accept, **headers}, body=body)
            mended = answered.status == 200 and not answered.json()["result"]["isError"]
            assert mended == (odd == rb'"\ud800"') and answered.status in (200, 400), (odd[:20], answered.text)
        async with over_http(url) as client:
            assert (await call(client, "interact", action="go"))["status"] == "queued"


# Who may


async def test_tokens_give_over_mcp_what_they_give_over_http(tmp_path: Path) -> None:
    """Reading needs `read`, submitting and cancelling need `write`; other sessions are not there."""
    async with opened(tmp_path / "ledger.db") as (ledger, _):
        gate = TokenAuthorizer(ledger.log.store, MAIN)
        reads, writes = await token_for(ledger, "read"), await token_for(ledger, "write")
        one = await token_for(ledger, "read", "write", session="one")
        async with served(ledger, gate) as url:
            async with over_http(url, token=MAIN) as main:
                hidden = (await call(main, "interact", action="go", session="two"))["correlation_id"]
            async with over_http(url, token=reads) as client:
                assert (await call(client, "interact", action="go"))["kind"] == "forbidden"
                assert (await call(client, "cancel_call", call=hidden))["kind"] == "forbidden"
                assert (await call(client, "read_call", call=hidden))["state"] == "queued"
            async with over_http(url, token=writes) as client:
                assert (await call(client, "interact", action="go"))["status"] == "queued"
                assert (await call(client, "observe", what="pending_commands"))["kind"] == "forbidden"
            async with over_http(url, token=one) as client:
                await _sees_only_its_own(client, hidden)
        assert await ledger.log.store.session("three") is None


async def _sees_only_its_own(client: Client, hidden: str) -> None:
    own = (await call(client, "interact", action="go", session="one"))["correlation_id"]
    assert (await call(client, "interact", action="go", session="three"))["kind"] == "not-found"
    assert (await call(client, "read_call", call=hidden))["kind"] == "not-found"
    assert (await call(client, "cancel_call", call=hidden))["kind"] == "not-found"
    assert (await call(client, "observe", what="command_result", correlation_id=hidden))["status"] == "not_found"
    listed = await call(client, "list_calls")
    pending = await call(client, "observe", what="pending_commands")
    assert [one["call"] for one in listed["calls"]] == [own]
    assert [one["correlation_id"] for one in pending["pending"]] == [own]
    assert [one.name for one in (await client.list_resources()).resources] == [own]


async def test_commands_of_others_leave_room_for_ones_own_in_the_lists(tmp_path: Path) -> None:
    """S3.5: what one may not see does not fill the window that one looks through."""
    async with await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", Settings(queue_limit=2000)) as ledger:
        commands = CommandQueue(ledger.log)
        own = await token_for(ledger, "read", session="own")
        await asyncio.gather(*(commands.submit("go", session="others") for _ in range(1001)))
        mine = (await commands.submit("go", session="own")).correlation_id
        async with served(ledger, TokenAuthorizer(ledger.log.store, MAIN)) as url, over_http(url, token=own) as client:
            listed = await call(client, "observe", what="pending_commands")
        assert [one["correlation_id"] for one in listed["pending"]] == [mine]
        await commands.close()


async def test_nobody_gets_in_without_a_token_and_nobody_into_anothers_session(tmp_path: Path) -> None:
    """The door asks for every request; an MCP session belongs to the token that opened it."""
    async with opened(tmp_path / "ledger.db") as (ledger, _):
        other = await token_for(ledger, "read", "write")
        async with served(ledger, TokenAuthorizer(ledger.log.store, MAIN)) as url:
            begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
            accept = {"accept": "application/json, text/event-stream"}
            turned_away = await ask(url, "POST", headers=accept, value=body)
            assert turned_away.status == 401 and "Bearer" in turned_away.headers["www-authenticate"]
            let_in = await ask(url, "POST", headers={**accept, "authorization": f"Bearer {MAIN}"}, value=body)
            assert let_in.status == 200
            theirs = {**accept, "mcp-session-id": let_in.headers["mcp-session-id"]}
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            for token, status in ((MAIN, 200), (other, 404), ("wrong", 401)):
                headers = {**theirs, "authorization": f"Bearer {token}"}
                assert (await ask(url, "POST", headers=headers, value=listing)).status == status


async def test_nobody_keeps_others_out_by_opening_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many of one's own, the one that was not used for longest gives way; its client begins anew."""
    monkeypatch.setattr("callslip.mcp.http_transport.EACH", 2)
    monkeypatch.setattr("callslip.mcp.http_transport.SESSIONS", 5)
    async with opened(tmp_path / "ledger.db") as (ledger, _):
        other = await token_for(ledger, "read")
        async with served(ledger, TokenAuthorizer(ledger.log.store, MAIN)) as url:

            async def talk(token: str, value: Any, session: str = "") -> tuple[int, str]:
                headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
                more = {"mcp-session-id": session} if session else {}
                answered = await ask(url, "POST", headers={**headers, **more}, value=value)
                return answered.status, answered.headers.get("mcp-session-id", "")

            async def lives(session: str) -> bool:
                listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                return (await talk(other, listing, session))[0] == 200

            begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
            first, second = [(await talk(other, body))[1] for _ in range(2)]
            assert await lives(second) and await lives(first)
            third = (await talk(other, body))[1]
            assert [await lives(session) for session in (first, second, third)] == [True, False, True]
            assert [(await talk(other, body))[0] for _ in range(10)] == [200] * 10
            assert [(await talk(MAIN, body))[0] for _ in range(3)] == [200] * 3


async def test_an_address_can_name_the_session_for_commands(tmp_path: Path) -> None:
    """A token for one session is of use without every call naming that session; what it may not, it still may not."""
    async with opened(tmp_path / "ledger.db") as (ledger, commands):
        one, writes = (
            await token_for(ledger, "read", "write", session="one"),
            await token_for(ledger, "write", session="two"),
        )
        async with served(ledger, TokenAuthorizer(ledger.log.store, MAIN)) as url:
            async with over_http(f"{url}?session=one", token=one) as client:
                assert (await call(client, "interact", action="go"))["status"] == "queued"
            async with over_http(f"{url}?session=two", token=writes) as client:
                assert (await call(client, "interact", action="go"))["status"] == "queued"
                assert (await call(client, "list_calls"))["kind"] == "forbidden"
            async with over_http(f"{url}?session=two", token=one) as client:
                assert (await call(client, "interact", action="go"))["kind"] == "not-found"
        assert sorted(command.session for command in await commands.pending()) == ["one", "two"]


async def test_a_hosts_own_function_decides_who_gets_in(tmp_path: Path) -> None:
    """Mounted: whom the host does not know at all does not even open an MCP session."""

    def authorize(request: Any, session: SessionRecord | None, verb: str) -> str | None:
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        return name if name == "ada" and (session is None or session.owner in ("", name)) else None

    async with opened(tmp_path / "ledger.db") as (ledger, commands):
        await ledger.log.append("his", [ev.SessionInfo(owner="bob")])
        hidden = (await commands.submit("go", session="his")).correlation_id
        async with served(ledger, CallbackAuthorizer(authorize)) as url:
            assert (await ask(url, "POST", headers={"authorization": "Bearer bob"}, value={})).status == 403
            async with over_http(url, token="ada") as client:
                assert (await call(client, "interact", action="go", session="hers"))["status"] == "queued"
                assert (await call(client, "interact", action="go", session="his"))["kind"] == "not-found"
                assert (await call(client, "read_call", call=hidden))["kind"] == "not-found"


async def test_a_session_that_begins_with_a_command_is_its_submitters(tmp_path: Path) -> None:
    """As with posted events: hosts that go by owners would else have sessions of nobody."""
    async with opened(tmp_path / "ledger.db") as (ledger, _):
        gate = TokenAuthorizer(ledger.log.store, MAIN, "ada")
        async with served(ledger, gate) as url, over_http(url, token=MAIN) as client:
            await call(client, "interact", action="go", session="hers")
        row = await ledger.log.store.session("hers")
        assert isinstance(row, SessionRecord) and row.owner == "ada"


async def test_a_ledger_that_closes_ends_the_clients_that_listen(tmp_path: Path) -> None:
    """A server that stops need not wait for streams that would never end; who comes later is told."""
    async with opened(tmp_path / "ledger.db") as (ledger, _), served(ledger) as url:
        begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
        accept = {"accept": "application/json, text/event-stream"}
        session = (await ask(url, "POST", headers=accept, value=body)).headers["mcp-session-id"]
        async with asking(url, headers={"accept": "text/event-stream", "mcp-session-id": session}) as listening:
            assert listening.status == 200
            await ledger.log.feed.close()
            async with asyncio.timeout(20):
                assert not [piece async for piece in listening.pieces() if b"data:" in piece]
        assert (await ask(url, "POST", headers=accept, value=body)).status == 503


# The command


def test_the_command_says_what_it_is_for_without_loading_the_sdk() -> None:
    """`callslip --help` stays quick; `callslip mcp --help` explains itself."""
    code = "import sys, callslip.cli, callslip.mcp, callslip.cli.commands.mcp; print('mcp' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"
    helped = run("mcp", "--help")
    assert helped.returncode == 0 and "interact" in helped.stdout
    ended = run("mcp", "--db", ":memory:")  # Its stdin is closed from the beginning.
    assert (ended.returncode, ended.stdout) == (0, "")


def test_a_client_that_is_gone_ends_the_command_quietly(tmp_path: Path) -> None:
    """There is nobody to answer any more, and nothing to complain of."""
    command = [sys.executable, "-m", "callslip", "mcp", "--db", str(tmp_path / "ledger.db")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as server:
        assert server.stdin and server.stdout and server.stderr
        server.stdout.close()
        server.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 2)
        server.stdin.close()
        said = server.stderr.read()
        assert (server.wait(20), said) == (0, b"")
