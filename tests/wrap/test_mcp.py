"""`callslip wrap --mcp`, run for real: between the protocol's own client and server, and when something goes wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.client.client import Client as SdkClient
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequestParams, ElicitResult

from callslip.api.ledger import Ledger
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from tests.conftest import LONG
from tests.support.acp_process import (
    PROGRAMS,
    Client,
    calls,
    children,
    entries,
    eventually,
    is_alive,
    kill,
    log,
    reading,
    sessions,
    wrapping,
)

SERVER = [sys.executable, str(PROGRAMS / "mcp_server.py")]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the ledger will be."""
    return str(tmp_path / "ledger.db")


def tee(folder: Path, *command: str) -> list[str]:
    """A command whose traffic is written down, byte by byte."""
    return [sys.executable, str(PROGRAMS / "tee.py"), str(folder), *command]


def traffic(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "in").read_bytes(), (folder / "out").read_bytes()


def unsealed(folder: Path) -> list[bytes]:
    """The traffic but for what the server encrypts by a key that it makes anew each time it is started."""
    return [re.sub(rb'"requestState":"[^"]*"', b"", data) for data in traffic(folder)]


# The protocol's own client and server


LATE = {"legacy": 7, "auto": 8}
"""The id of the request for `late`. In the later version `ask` takes two."""


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def dialogue(command: list[str], mode: str) -> list[Any]:
    """One of everything, as the client sees it. Of `late` it waits for the answer only a moment."""
    heard: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    with tempfile.TemporaryFile("w+") as stderr:
        transport = stdio_client(StdioServerParameters(command=command[0], args=command[1:]), errlog=stderr)
        async with SdkClient(transport, mode=mode, elicitation_callback=answer) as client:
            heard.append([tool.name for tool in (await client.list_tools()).tools])
            heard.append(await client.call_tool("quick", {"name": "ünï \U0001f600"}))
            heard.append(await client.call_tool("slow", {"steps": 3}, progress_callback=progress))
            heard.append(await client.call_tool("failing", {}))
            heard.append(await client.call_tool("ask", {}))
            try:
                await client.call_tool("late", {}, read_timeout_seconds=0.2)
            except MCPError as error:
                heard.append(str(error))
            heard.append(await client.call_tool("release", {"request": LATE[mode]}))
        stderr.seek(0)
        assert stderr.read() == "", "wrap has nothing to say when all is well"
    return heard


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_sdks_client_and_server_exchange_the_same_bytes_with_and_without_wrap(
    tmp_path: Path, path: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides of wrap saw the same bytes, and these are the bytes of a dialogue without it."""
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60.0)  # On a busy machine 2 s may be short.
    plain = anyio.run(dialogue, tee(tmp_path / "plain", *SERVER), mode)
    inner = tee(tmp_path / "server", *SERVER)
    wrapped = anyio.run(dialogue, tee(tmp_path / "client", *wrapping(path, "--mcp"), *inner), mode)
    assert wrapped == plain and (3.0, 3.0, "step 3") in plain
    assert traffic(tmp_path / "client") == traffic(tmp_path / "server")
    assert unsealed(tmp_path / "client") == unsealed(tmp_path / "plain")
    (name,) = sessions(path)
    assert name.startswith("tee-2"), "named after the program, and the time"
    check_dialogue(path, name)


def check_dialogue(path: str, name: str) -> None:
    """Every call with what became of it; and what came after the client gave up."""
    found = list(calls(path, name).values())
    assert [(call.tool_name, call.title, call.status) for call in found] == [
        ("quick", "Be quick", "completed"),
        ("slow", "Take your time", "completed"),
        ("failing", None, "failed"),
        ("ask", None, "completed"),
        ("late", None, "cancelled"),
        ("release", None, "completed"),
    ]
    quick, slow, failing, ask, late, _ = found
    assert quick.raw_input == {"name": "ünï \U0001f600"} and quick.output == {"result": "hello ünï \U0001f600"}
    assert slow.output_text == "step 1\nstep 2\nstep 3\n" and slow.progress == {"progress": 3, "total": 3}
    assert failing.error == "Error executing tool failing" and ask.output == {"result": "hello Ada"}
    assert late.reason == "timed out after 0.2s"
    kept = [event for event in log(path, name) if event.verdict == "late"]
    assert [(event.call, event.output) for event in kept] == [(late.call_id, "too late")]
    assert late.late == kept[0].seq and titles(path) == {name: "small server"}


def titles(path: str) -> dict[str, str]:
    async def read(ledger: Ledger) -> dict[str, str]:
        return {row.name: row.title for row in (await ledger.sessions()).items}

    return reading(path, read)


# A server's life, told by hand


class Peer(Client):
    """A client that begins by itself."""

    def begin_mcp(self) -> None:
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"})
        self.send(method="notifications/initialized")

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=tool, arguments=arguments)["result"]

    def hang(self) -> int:
        """Let a call begin that does not end. Gives the process id of the server."""
        self.request("tools/call", name="hang", arguments={}, _meta={"progressToken": "p"})
        told = self.until(lambda message: message.get("method") == "notifications/progress")
        return int(told["params"]["message"])


def test_a_server_that_is_killed_within_a_call_ends_the_call(path: str) -> None:
    """C5: the call is lost, with a reason that names the signal, and the status is the server's."""
    with Peer([*wrapping(path, "--mcp", "--session", "s"), *SERVER]) as client:
        client.begin_mcp()
        assert client.call("quick", name="x")["structuredContent"] == {"result": "hello x"}
        kill(client.hang())
        assert client.left() == (137, b"")
    quick, hung = calls(path, "s").values()
    assert quick.status == "completed"
    assert (hung.status, hung.reason) == ("lost", "the server was killed (SIGKILL) before this call ended")


def test_when_wrap_is_killed_its_recorder_ends_the_calls(path: str) -> None:
    """C5: kill -9 of wrap itself; the server finds its stdin closed."""
    with Peer([*wrapping(path, "--mcp", "--session", "s"), *SERVER]) as client:
        client.begin_mcp()
        server = client.hang()
        others = [process for process in children(client.process.pid) if process != server]
        kill(client.process.pid)
        client.process.wait()
        for process in (server, *others):
            eventually(lambda process=process: not is_alive(process))
    (hung,) = calls(path, "s").values()
    assert (hung.status, hung.reason) == ("lost", "callslip wrap was killed before this call ended")


# Sessions

SAYS = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if said["method"] == "answer":
        print(json.dumps({"jsonrpc": "2.0", "id": said["params"]["id"], "result": {"toolResult": sys.argv[1]}}))
        sys.stdout.flush()
"""


def says(word: str) -> list[str]:
    """A server that answers a request when it is told to, with a word."""
    return [sys.executable, "-c", SAYS, word]


def answered(client: Client, number: int) -> None:
    client.send(method="answer", params={"id": number})
    client.until(lambda message: message.get("id") == number)


def test_a_client_that_hangs_up_ends_the_server_and_the_calls(path: str) -> None:
    """The server finds its stdin closed, as it would without wrap, and ends without an answer."""
    with Client([*wrapping(path, "--mcp", "--session", "s"), *says("nothing")]) as client:
        client.request("tools/call", name="hang", arguments={})
        assert client.end() == (0, b"")
    (hung,) = calls(path, "s").values()
    assert (hung.status, hung.reason) == ("lost", "the server ended (exit status 0) before this call did")


def test_two_servers_that_write_into_one_session_share_no_call(path: str) -> None:
    """Both count their requests from 1; each call has its own result."""
    wrap = wrapping(path, "--mcp", "--session", "both")
    with Client([*wrap, *says("one")]) as one, Client([*wrap, *says("two")]) as two:
        for client in (one, two):
            client.request("tools/call", name="same", arguments={})
        answered(two, 1)
        answered(one, 1)
        assert one.end() == two.end() == (0, b"")
    found = [entry for entry in entries(path, "both") if isinstance(entry, ToolCall)]
    assert sorted((call.status, call.output) for call in found) == [("completed", "one"), ("completed", "two")]


def test_a_later_run_into_the_same_session_repeats_no_call(path: str) -> None:
    """The same request under the same id, byte for byte, is another call in another run."""
    for word in ("one", "two"):
        with Client([*wrapping(path, "--mcp", "--session", "runs"), *says(word)]) as client:
            client.request("tools/call", name="same", arguments={})
            answered(client, 1)
            assert client.end() == (0, b"")
    found = [entry for entry in entries(path, "runs") if isinstance(entry, ToolCall)]
    assert [(call.status, call.output) for call in found] == [("completed", "one"), ("completed", "two")]
    assert {event.verdict for event in log(path, "runs")} == {"applied"}


def test_a_session_keeps_the_title_that_it_has(path: str) -> None:
    """A server's own name is the title only where there is none; the rest is told all the same."""

    async def titled(ledger: Ledger) -> None:
        await ledger.append("mine", [ev.SessionInfo(title="My own")])

    reading(path, titled)
    with Peer([*wrapping(path, "--mcp", "--session", "mine"), *SERVER]) as client:
        client.begin_mcp()
        assert client.end() == (0, b"")
    assert titles(path) == {"mine": "My own"}
    told = [event for event in log(path, "mine") if isinstance(event, ev.SessionInfo)]
    assert told[-1].options["protocolVersion"] == "2025-11-25"


# Bytes


@settings(max_examples=30 if LONG else 4)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from([b"\n", b"\r\n", b"[]\n", b"[1,{}]\n", b"\xff\xfe\n", b"[" * 200 + b"\n"]),
            st.sampled_from([b'{"id":1,"method":"tools/call","params":[]}\n', b'{"id":1,"result":{}}\n']),
            st.integers(0, 2**18).map(lambda size: b"x" * size),
        ),
        max_size=12,
    )
)
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Whatever the bytes are. And all of it is recorded, in a sound ledger."""
    path = str(tmp_path_factory.mktemp("wrap") / "ledger.db")
    data = b"".join(pieces)
    run = subprocess.run([*wrapping(path, "--mcp"), "cat"], input=data, capture_output=True, timeout=60)
    assert (run.stdout, run.stderr, run.returncode) == (data, b"", 0)
    if data.strip():
        assert sum(len(log(path, name)) for name in sessions(path)) > 0


def test_secrets_pass_and_are_not_recorded(path: str) -> None:
    """Neither those in arguments, nor in results, nor in what is kept as it came."""
    secret = "sk-ant-api03-" + "Ab3" * 30
    with Peer([*wrapping(path, "--mcp", "--session", "s"), *SERVER]) as client:
        client.begin_mcp()
        assert client.call("quick", name=secret)["structuredContent"] == {"result": f"hello {secret}"}
        client.send(method="notifications/unheard-of", params={"key": secret})
        assert client.end() == (0, b"")
    files = [file.read_bytes() for file in Path(path).parent.iterdir() if file.is_file()]
    assert files and not any(secret.encode() in data for data in files)
    (quick,) = calls(path, "s").values()
    assert quick.status == "completed" and secret not in str(quick.raw_input)


# Without a client, and with options that are not for it


def test_with_a_terminal_for_a_client_it_says_what_to_configure(path: str) -> None:
    """Exit 2, and stderr has what goes into the client's configuration."""
    ours, theirs = pty.openpty()
    command = [*wrapping(path, "--mcp"), "npx", "-y", "@scope/my-server@1.2", "a b"]
    run = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=30)
    os.close(theirs)
    os.close(ours)
    assert (run.returncode, run.stdout) == (2, "")
    shown = run.stderr[run.stderr.index("{") : run.stderr.rindex("}") + 1]
    server = {"command": "callslip", "args": ["wrap", "--mcp", "--", "npx", "-y", "@scope/my-server@1.2", "a b"]}
    assert json.loads(shown) == {"mcpServers": {"my-server": server}}
    assert "callslip show @last" in run.stderr and not Path(path).exists()


@pytest.mark.parametrize("option", [("--approvals", "callslip"), ("--policy", "rules.toml")])
def test_permission_is_not_for_servers(path: str, option: tuple[str, str]) -> None:
    """A usage error, and no server is started."""
    run = subprocess.run([*wrapping(path, "--mcp", *option), "echo", "started"], capture_output=True, timeout=30)
    assert (run.returncode, run.stdout) == (2, b"") and b"--policy and --approvals are for agents" in run.stderr
