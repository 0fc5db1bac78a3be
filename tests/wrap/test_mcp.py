"""`callslip wrap --mcp` as a process: between the SDK's client and server, and with failures."""

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

from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from tests.conftest import LONG
from tests.support.acp_process import (
    PROGRAMS,
    Client,
    child_ids,
    is_alive,
    kill,
    read_calls,
    read_entries,
    read_log,
    read_sessions,
    wait_until,
    with_ledger,
    wrap_command,
)

SERVER = [sys.executable, str(PROGRAMS / "mcp_server.py")]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a ledger that does not exist yet."""
    return str(tmp_path / "ledger.db")


def tee_command(folder: Path, *command: str) -> list[str]:
    """Return a command that records the bytes of another one in a folder."""
    return [sys.executable, str(PROGRAMS / "tee.py"), str(folder), *command]


def read_traffic(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "in").read_bytes(), (folder / "out").read_bytes()


def read_comparable_traffic(folder: Path) -> list[bytes]:
    """Return the traffic without request states, which the server encrypts with a new key at each start."""
    return [re.sub(rb'"requestState":"[^"]*"', b"", data) for data in read_traffic(folder)]


# The client and server of the SDK


LATE_REQUEST_ID = {"legacy": 7, "auto": 8}
"""The id of the request for `late`. In the later version `ask` takes two requests."""


async def answer_elicitation(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def run_client(command: list[str], mode: str) -> list[Any]:
    """Call every tool and return the results. The client does not wait for the result of `late`."""
    results: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        results.append((done, total, message))

    with tempfile.TemporaryFile("w+") as stderr:
        transport = stdio_client(StdioServerParameters(command=command[0], args=command[1:]), errlog=stderr)
        async with SdkClient(transport, mode=mode, elicitation_callback=answer_elicitation) as client:
            results.append([tool.name for tool in (await client.list_tools()).tools])
            results.append(await client.call_tool("quick", {"name": "ünï \U0001f600"}))
            results.append(await client.call_tool("slow", {"steps": 3}, progress_callback=progress))
            results.append(await client.call_tool("failing", {}))
            results.append(await client.call_tool("ask", {}))
            try:
                await client.call_tool("late", {}, read_timeout_seconds=0.2)
            except MCPError as error:
                results.append(str(error))
            results.append(await client.call_tool("release", {"request": LATE_REQUEST_ID[mode]}))
        stderr.seek(0)
        assert stderr.read() == "", "wrap prints nothing without a problem"
    return results


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_sdk_client_and_server_exchange_unchanged_bytes(
    tmp_path: Path, path: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides of wrap see the same bytes, and these are the bytes of a run without it."""
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60.0)  # On a busy machine 2 s may be short.
    plain = anyio.run(run_client, tee_command(tmp_path / "plain", *SERVER), mode)
    inner = tee_command(tmp_path / "server", *SERVER)
    wrapped = anyio.run(run_client, tee_command(tmp_path / "client", *wrap_command(path, "--mcp"), *inner), mode)
    assert wrapped == plain and (3.0, 3.0, "step 3") in plain
    assert read_traffic(tmp_path / "client") == read_traffic(tmp_path / "server")
    assert read_comparable_traffic(tmp_path / "client") == read_comparable_traffic(tmp_path / "plain")
    (name,) = read_sessions(path)
    assert name.startswith("tee-2"), "named after the program, and the time"
    check_recorded_calls(path, name)


def check_recorded_calls(path: str, name: str) -> None:
    """Check every call with its result, and the result that came after the client's timeout."""
    calls = list(read_calls(path, name).values())
    assert [(call.tool_name, call.title, call.status) for call in calls] == [
        ("quick", "Be quick", "completed"),
        ("slow", "Take your time", "completed"),
        ("failing", None, "failed"),
        ("ask", None, "completed"),
        ("late", None, "cancelled"),
        ("release", None, "completed"),
    ]
    quick, slow, failing, ask, late, _ = calls
    assert quick.raw_input == {"name": "ünï \U0001f600"} and quick.output == {"result": "hello ünï \U0001f600"}
    assert slow.output_text == "step 1\nstep 2\nstep 3\n" and slow.progress == {"progress": 3, "total": 3}
    assert failing.error == "Error executing tool failing" and ask.output == {"result": "hello Ada"}
    assert late.reason == "timed out after 0.2s"
    late_events = [event for event in read_log(path, name) if event.verdict == "late"]
    assert [(event.call, event.output) for event in late_events] == [(late.call_id, "too late")]
    assert late.late == late_events[0].seq and read_titles(path) == {name: "small server"}


def read_titles(path: str) -> dict[str, str]:
    async def read(ledger: LocalLedger) -> dict[str, str]:
        return {row.name: row.title for row in (await ledger.sessions()).items}

    return with_ledger(path, read)


# The end of a server


class McpClient(Client):
    """A client of an MCP server."""

    def initialize(self) -> None:
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"})
        self.send(method="notifications/initialized")

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=tool, arguments=arguments)["result"]

    def start_call(self) -> int:
        """Start a call that does not end. Return the process id of the server."""
        self.request("tools/call", name="hang", arguments={}, _meta={"progressToken": "p"})
        progress = self.until(lambda message: message.get("method") == "notifications/progress")
        return int(progress["params"]["message"])


def test_a_server_that_is_killed_within_a_call_ends_the_call(path: str) -> None:
    """The call is lost, with a reason that names the signal, and the exit status is that of the server."""
    with McpClient([*wrap_command(path, "--mcp", "--session", "s"), *SERVER]) as client:
        client.initialize()
        assert client.call("quick", name="x")["structuredContent"] == {"result": "hello x"}
        kill(client.start_call())
        assert client.wait() == (137, b"")
    quick, hung = read_calls(path, "s").values()
    assert quick.status == "completed"
    assert (hung.status, hung.reason) == ("lost", "the server was killed (SIGKILL) before this call ended")


def test_when_wrap_is_killed_its_recorder_ends_the_calls(path: str) -> None:
    """After kill -9 of wrap the server finds its stdin closed."""
    with McpClient([*wrap_command(path, "--mcp", "--session", "s"), *SERVER]) as client:
        client.initialize()
        server = client.start_call()
        others = [process for process in child_ids(client.process.pid) if process != server]
        kill(client.process.pid)
        client.process.wait()
        for process in (server, *others):
            wait_until(lambda process=process: not is_alive(process))
    (hung,) = read_calls(path, "s").values()
    assert (hung.status, hung.reason) == ("lost", "callslip wrap was killed before this call ended")


# Sessions

ANSWER_ON_DEMAND = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "answer":
        print(json.dumps({"jsonrpc": "2.0", "id": message["params"]["id"], "result": {"toolResult": sys.argv[1]}}))
        sys.stdout.flush()
"""


def server_with_result(word: str) -> list[str]:
    """Return a server that answers a request on demand, with a word."""
    return [sys.executable, "-c", ANSWER_ON_DEMAND, word]


def demand_answer(client: Client, number: int) -> None:
    client.send(method="answer", params={"id": number})
    client.until(lambda message: message.get("id") == number)


def test_a_client_that_disconnects_ends_the_server_and_the_calls(path: str) -> None:
    """The server finds its stdin closed, as without wrap, and ends without an answer."""
    with Client([*wrap_command(path, "--mcp", "--session", "s"), *server_with_result("nothing")]) as client:
        client.request("tools/call", name="hang", arguments={})
        assert client.end() == (0, b"")
    (hung,) = read_calls(path, "s").values()
    assert (hung.status, hung.reason) == ("lost", "the server ended (exit status 0) before this call did")


def test_calls_of_two_servers_in_one_session_are_separate(path: str) -> None:
    """Both clients number their requests from 1. Each call has its own result."""
    wrap = wrap_command(path, "--mcp", "--session", "both")
    with Client([*wrap, *server_with_result("one")]) as one, Client([*wrap, *server_with_result("two")]) as two:
        for client in (one, two):
            client.request("tools/call", name="same", arguments={})
        demand_answer(two, 1)
        demand_answer(one, 1)
        assert one.end() == two.end() == (0, b"")
    calls = [entry for entry in read_entries(path, "both") if isinstance(entry, ToolCall)]
    assert sorted((call.status, call.output) for call in calls) == [("completed", "one"), ("completed", "two")]


def test_a_later_run_with_equal_bytes_records_new_calls(path: str) -> None:
    """The same bytes are another call in another run."""
    for word in ("one", "two"):
        with Client([*wrap_command(path, "--mcp", "--session", "runs"), *server_with_result(word)]) as client:
            client.request("tools/call", name="same", arguments={})
            demand_answer(client, 1)
            assert client.end() == (0, b"")
    calls = [entry for entry in read_entries(path, "runs") if isinstance(entry, ToolCall)]
    assert [(call.status, call.output) for call in calls] == [("completed", "one"), ("completed", "two")]
    assert {event.verdict for event in read_log(path, "runs")} == {"applied"}


def test_a_session_keeps_its_title(path: str) -> None:
    """The server's name is the title only of a session without one. Its other information is recorded."""

    async def set_title(ledger: LocalLedger) -> None:
        await ledger.log.append("mine", [ev.SessionInfo(title="My own")])

    with_ledger(path, set_title)
    with McpClient([*wrap_command(path, "--mcp", "--session", "mine"), *SERVER]) as client:
        client.initialize()
        assert client.end() == (0, b"")
    assert read_titles(path) == {"mine": "My own"}
    infos = [event for event in read_log(path, "mine") if isinstance(event, ev.SessionInfo)]
    assert infos[-1].options["protocolVersion"] == "2025-11-25"


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
def test_any_bytes_pass_unchanged(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """They are recorded too, and the invariants of the ledger hold."""
    path = str(tmp_path_factory.mktemp("wrap") / "ledger.db")
    data = b"".join(pieces)
    result = subprocess.run([*wrap_command(path, "--mcp"), "cat"], input=data, capture_output=True, timeout=60)
    assert (result.stdout, result.stderr, result.returncode) == (data, b"", 0)
    if data.strip():
        assert sum(len(read_log(path, name)) for name in read_sessions(path)) > 0


def test_secrets_pass_and_are_not_recorded(path: str) -> None:
    """Secrets in arguments, results and raw messages reach the other side, but not the files of the ledger."""
    secret = "sk-ant-api03-" + "Ab3" * 30
    with McpClient([*wrap_command(path, "--mcp", "--session", "s"), *SERVER]) as client:
        client.initialize()
        assert client.call("quick", name=secret)["structuredContent"] == {"result": f"hello {secret}"}
        client.send(method="notifications/unheard-of", params={"key": secret})
        assert client.end() == (0, b"")
    files = [file.read_bytes() for file in Path(path).parent.iterdir() if file.is_file()]
    assert files and not any(secret.encode() in data for data in files)
    (quick,) = read_calls(path, "s").values()
    assert quick.status == "completed" and secret not in str(quick.raw_input)


# Without a client, and with options for agents


def test_with_a_terminal_on_stdin_it_prints_the_configuration(path: str) -> None:
    """Exit 2, and stderr has the configuration for a client."""
    master_fd, slave_fd = pty.openpty()
    command = [*wrap_command(path, "--mcp"), "npx", "-y", "@scope/my-server@1.2", "a b"]
    result = subprocess.run(command, stdin=slave_fd, capture_output=True, text=True, timeout=30)
    os.close(slave_fd)
    os.close(master_fd)
    assert (result.returncode, result.stdout) == (2, "")
    configuration = result.stderr[result.stderr.index("{") : result.stderr.rindex("}") + 1]
    server = {"command": "callslip", "args": ["wrap", "--mcp", "--", "npx", "-y", "@scope/my-server@1.2", "a b"]}
    assert json.loads(configuration) == {"mcpServers": {"my-server": server}}
    assert "callslip show @last" in result.stderr and not Path(path).exists()


@pytest.mark.parametrize("option", [("--approvals", "callslip"), ("--policy", "rules.toml")])
def test_options_about_permission_are_refused(path: str, option: tuple[str, str]) -> None:
    """It is a usage error, and no server is started."""
    result = subprocess.run([*wrap_command(path, "--mcp", *option), "echo", "started"], capture_output=True, timeout=30)
    assert (result.returncode, result.stdout) == (
        2,
        b"",
    ) and b"--policy and --approvals are for agents" in result.stderr
