"""`callslip wrap` as a process: between the example client and agent of the protocol, and with failures."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import open_ledger
from callslip.errors import InvalidInputError, StoreError
from callslip.ledger.event_log import EventLog
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest
from callslip.store import sqlite_open
from callslip.wrap import recorder as recorder_module
from callslip.wrap.frames import (
    Frame,
    FrameDecoder,
    Kind,
    decode_answer,
    decode_policy_answer,
    encode_answer,
    encode_count,
    encode_frame,
    encode_policy_answer,
    encode_text,
)
from callslip.wrap.recorder import RecorderProcess
from callslip.wrap.recorder_pipe import RecorderPipe, RecordingError
from callslip.wrap.session_names import SessionNames, program_name
from tests.conftest import LONG
from tests.support.acp_process import (
    AGENT,
    PROGRAMS,
    TIMEOUT_S,
    Client,
    child_ids,
    is_alive,
    kill,
    read_calls,
    read_entries,
    read_log,
    read_sessions,
    wait_until,
    wrap_command,
)
from tests.support.invariants import sound_ledger
from tests.support.paths import ROOT

EXAMPLES = ROOT / ".cache" / "acp" / "examples"
MB = 2**20


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a ledger that does not exist yet."""
    return str(tmp_path / "ledger.db")


def run_with_input(command: list[str], data: bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command with these bytes as its input."""
    return subprocess.run(command, input=data, capture_output=True, timeout=60, **options)


# Bytes


def tee_command(folder: Path, *command: str) -> list[str]:
    """Return a command that records the bytes of another one in a folder."""
    return [sys.executable, str(PROGRAMS / "tee.py"), str(folder), *command]


def run_example_client(command: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the example client, which runs an agent and sends it the lines of its input as prompts."""
    client = [sys.executable, str(EXAMPLES / "client.py"), *command]
    return run_with_input(client, "hello\nhow are you? ünï \U0001f600\n".encode(), cwd=cwd)


def read_traffic(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "in").read_bytes(), (folder / "out").read_bytes()


def test_the_example_client_and_agent_exchange_unchanged_bytes(tmp_path: Path, path: str) -> None:
    """Both sides of wrap see the same bytes, and these are the bytes of a conversation without it."""
    agent = [sys.executable, str(EXAMPLES / "agent.py")]
    plain = run_example_client(tee_command(tmp_path / "plain", *agent), tmp_path)
    inner = tee_command(tmp_path / "agent", *agent)
    wrapped = run_example_client(tee_command(tmp_path / "client", *wrap_command(path), *inner), tmp_path)
    assert read_traffic(tmp_path / "client") == read_traffic(tmp_path / "agent") == read_traffic(tmp_path / "plain")
    assert wrapped.stdout == plain.stdout and b"| Agent: how are you?" in plain.stdout
    assert wrapped.returncode == plain.returncode == 0
    assert wrapped.stderr == plain.stderr, "wrap prints nothing without a problem"
    assert read_sessions(path) == ["tee-0"], "named after the program that wrap was given"
    messages = [(entry.role, entry.content) for entry in read_entries(path, "tee-0") if isinstance(entry, Message)]
    assert messages[0] == ("user", "hello") and messages[-1] == ("assistant", "Client sent:how are you? ünï \U0001f600")


def test_the_bytes_of_the_example_echo_agent_pass_unchanged(tmp_path: Path, path: str) -> None:
    """Its session ids are random, so only the two sides of wrap are compared. The session is named after the id."""
    inner = tee_command(tmp_path / "agent", sys.executable, str(EXAMPLES / "echo_agent.py"))
    assert run_example_client(tee_command(tmp_path / "client", *wrap_command(path), *inner), tmp_path).returncode == 0
    assert read_traffic(tmp_path / "client") == read_traffic(tmp_path / "agent")
    sent, received = (part.splitlines() for part in read_traffic(tmp_path / "agent"))
    session_id = json.loads(received[1])["result"]["sessionId"]
    assert read_sessions(path) == [f"tee-{session_id}"] and len(sent) == 4


@settings(max_examples=40 if LONG else 6)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.sampled_from(
                [b"\n", b"\r\n", b"{}\n", b'{"jsonrpc": "2.0"', b"\xff\xfe\n", b"\x00", b"[" * 200 + b"\n"]
            ),
            st.sampled_from([b'{"method":"session/update","params":{"sessionId":"s","update":null}}\n', b"[1,{}]\n"]),
            st.integers(0, 2**20).map(lambda size: b"x" * size),
        ),
        max_size=20,
    )
)
def test_any_bytes_pass_unchanged(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Partial lines, bytes that are not JSON or not UTF-8, and no bytes pass, and are recorded."""
    path = str(tmp_path_factory.mktemp("wrap") / "ledger.db")
    data = b"".join(pieces)
    run = run_with_input([*wrap_command(path), "cat"], data)
    assert (run.stdout, run.stderr, run.returncode) == (data, b"", 0)
    if data.strip():
        assert sum(len(read_log(path, name)) for name in read_sessions(path)) > 0


def test_a_line_of_a_hundred_megabytes_passes(path: str) -> None:
    """Its bytes are passed on as they arrive, and it is stored completely, as a blob."""
    size = (100 if LONG else 20) * MB
    line = b'{"jsonrpc":"2.0","method":"x","params":"' + b"y" * size + b'"}\n'
    run = run_with_input([*wrap_command(path), "cat"], line)
    assert run.stdout == line and (run.stderr, run.returncode) == (b"", 0)
    (name,) = read_sessions(path)
    assert [event.blob.size > size for event in read_log(path, name)] == [True, True]


def test_a_partial_line_is_passed_on_at_once(path: str) -> None:
    """Bytes are not buffered until their line ends."""
    with Client([*wrap_command(path), "cat"]) as client:
        assert client.process.stdin is not None and client.process.stdout is not None
        for piece in (b'{"half', b'":1', b"}\n{"):
            client.process.stdin.write(piece)
            assert os.read(client.process.stdout.fileno(), 100) == piece
        assert client.end()[0] == 0


WRITE_UNTIL_BLOCKED = f"""
import os, select, sys
os.set_blocking(1, False)
writable = select.poll()
writable.register(1, select.POLLOUT)
written = 0
while written < {400 * MB} and writable.poll(500):
    written += os.write(1, b"\\n" * 4096)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(written))
os.rename(sys.argv[1] + ".new", sys.argv[1])
sys.stdin.read()
"""
"""An agent that writes until its output is full, and then writes the number of bytes to a file."""


def test_a_client_that_does_not_read_blocks_the_agent_and_costs_no_memory(path: str, tmp_path: Path) -> None:
    """The agent blocks, and the buffer for the recorder has a limit."""
    report = tmp_path / "written"
    with Client([*wrap_command(path), sys.executable, "-c", WRITE_UNTIL_BLOCKED, str(report)]) as client:
        assert client.process.stdout is not None
        wait_until(report.exists)
        assert int(report.read_text()) < 4 * MB
        status = Path(f"/proc/{client.process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        assert resident < 60 * MB
        assert os.read(client.process.stdout.fileno(), 10) == b"\n" * 10


# The end of the agent


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -15 $$"], 143),
    ],
)
def test_the_exit_status_is_that_of_the_agent(path: str, command: list[str], status: int) -> None:
    """For a signal it is 128 and its number, as in a shell."""
    run = run_with_input([*wrap_command(path), *command], b"")
    assert (run.returncode, run.stdout, run.stderr) == (status, b"", b"")


def test_a_command_that_cannot_be_run_is_reported_as_by_a_shell(tmp_path: Path, path: str) -> None:
    """Exit 127 if it does not exist, 126 if it is not executable; no ledger is created."""
    (tmp_path / "text").write_text("no program")
    missing_result = run_with_input([*wrap_command(path), "no-such-agent"], b"")
    assert (missing_result.returncode, missing_result.stderr) == (
        127,
        b"callslip: no-such-agent: No such file or directory\n",
    )
    text_result = run_with_input([*wrap_command(path), str(tmp_path / "text")], b"")
    assert text_result.returncode == 126 and text_result.stderr.endswith(b": Permission denied\n")
    assert not Path(path).exists()


def test_stderr_passes_unchanged(path: str) -> None:
    """The agent inherits stderr, and wrap adds nothing to it."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        client.request("session/prompt", sessionId=client.open_session(), prompt=[{"type": "text", "text": "exit 5"}])
        assert client.wait() == (5, b"last \xff words\r\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded_to_the_agent(path: str, number: signal.Signals) -> None:
    """The agent decides whether to end: this one reports the signal, and both continue."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        session = client.open_session()
        client.prompt(session, "signals")
        client.process.send_signal(number)
        client.until(lambda message: number.name in json.dumps(message))
        assert client.reply_to(session, "say still here") == "still here"
        assert client.end() == (0, b"")


def has_pending_signal(process: int, number: signal.Signals) -> bool:
    """Return whether a process has not handled a signal yet."""
    status = Path(f"/proc/{process}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    assert len(masks) == 2
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_an_interrupt_from_the_terminal_reaches_the_agent_once(path: str) -> None:
    """The terminal sends it to both processes, so wrap must not forward it."""
    master_fd, slave_fd = pty.openpty()
    take_terminal = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)"
    terminal = [sys.executable, "-c", f"{take_terminal}; os.execvp(sys.argv[2], sys.argv[2:])", str(slave_fd)]
    with Client([*terminal, *wrap_command(path), *AGENT, "one"], pass_fds=[slave_fd]) as client:
        session = client.open_session()
        client.prompt(session, "signals")
        os.write(master_fd, b"\x03")
        client.until(lambda message: "SIGINT" in json.dumps(message))
        wait_until(lambda: not has_pending_signal(client.process.pid, signal.SIGINT))
        assert "SIGINT" not in client.reply_to(session, "say done")
        assert client.end() == (0, b"")
    os.close(master_fd)
    os.close(slave_fd)


def test_a_client_notices_that_the_agent_closed_its_input(path: str, tmp_path: Path) -> None:
    """Its next write fails with a broken pipe, as without wrap."""
    done = tmp_path / "done"
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        client.request(
            "session/prompt", sessionId=client.open_session(), prompt=[{"type": "text", "text": f"deaf {done}"}]
        )

        def write_fails() -> bool:
            try:
                client.send(method="x")
            except BrokenPipeError:
                return True
            return False

        wait_until(write_fails)
        assert client.process.poll() is None, "the agent continues"
        done.touch()
        assert client.wait()[0] == 7


def test_an_agent_notices_that_the_client_closed_its_input(path: str) -> None:
    """Its next write fails, as without wrap."""
    with Client([*wrap_command(path), "sh", "-c", "while echo x; do sleep 0.01; done; exit 8"]) as client:
        assert client.process.stdout is not None
        client.process.stdout.close()
        assert client.process.wait(TIMEOUT_S) in (8, 128 + signal.SIGPIPE)


def test_a_child_that_keeps_the_output_open_does_not_keep_wrap_running(path: str, tmp_path: Path) -> None:
    """A child of the agent may keep its stdout open forever; wrap ends with the agent."""
    file = tmp_path / "child"
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        session = client.open_session()
        client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": f"leave {file}"}])
        child = int(wait_until(lambda: file.exists() and file.read_text()))
        try:
            assert client.process.wait(TIMEOUT_S) == 9 and is_alive(child)
        finally:
            kill(child)


def test_an_agent_that_is_killed_within_a_call_ends_the_call(path: str) -> None:
    """The call is lost and the turn ends, with a reason that names the signal."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        kill(client.start_call(client.open_session(), "c1"))
        assert client.wait() == (137, b"")
    (call,) = read_calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "the agent was killed (SIGKILL) before this call ended")
    turn_ends = [event for event in read_log(path, "acp_agent-one") if isinstance(event, ev.TurnEnded)]
    assert [event.reason for event in turn_ends] == ["eof"]


def test_a_partial_line_of_the_client_is_recorded_when_the_agent_ends(path: str) -> None:
    """The client still runs and has not completed its line."""
    with Client([*wrap_command(path, "--session", "s"), "sh", "-c", "head -c 4 >/dev/null"]) as client:
        assert client.process.stdin is not None
        client.process.stdin.write(b"half")
        assert client.wait() == (0, b"")
    assert [event.body["msg"] for event in read_log(path, "s")] == ["half"]


def test_an_agent_that_ends_within_a_call_names_its_status(path: str) -> None:
    """A call that an agent leaves open when it exits is lost too."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        client.start_call(client.open_session(), "c1")
        assert client.end() == (0, b"")
    (call,) = read_calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "the agent ended (exit status 0) before this call did")


def test_when_wrap_is_killed_its_recorder_ends_the_calls(path: str) -> None:
    """After kill -9 of wrap no call stays open, the agent finds its stdin closed, and no process is left."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        agent = client.start_call(client.open_session(), "c1")
        others = [process for process in child_ids(client.process.pid) if process != agent]
        kill(client.process.pid)
        client.process.wait()
        for process in (agent, *others):
            wait_until(lambda process=process: not is_alive(process))
    (call,) = read_calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "callslip wrap was killed before this call ended")


def has_call(path: str, agent_id: str) -> bool:
    """Return whether a ledger has a call of an agent. What the recorder has not committed does not count."""
    try:
        with contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            return bool(connection.execute("SELECT 1 FROM aliases WHERE id = ?", (agent_id,)).fetchall())
    except apsw.Error:  # The recorder has not created the file or its tables yet.
        return False


def test_after_a_kill_of_wrap_and_recorder_opening_ends_the_calls(path: str) -> None:
    """The next process that opens the ledger finds at once that the owner is dead."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        agent = client.start_call(client.open_session(), "c1")
        (recorder,) = [process for process in child_ids(client.process.pid) if process != agent]
        wait_until(lambda: has_call(path, "c1"))
        kill(recorder)
        kill(client.process.pid)
        client.process.wait()
        wait_until(lambda: not is_alive(agent) and not is_alive(recorder))
    (call,) = read_calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "the process that ran this call ended")


# The recording


def test_a_call_is_recorded_while_the_agent_runs(path: str) -> None:
    """Another process that follows the session sees the call start and end while the agent runs."""

    async def watch(client: Client) -> list[str]:
        seen: list[str] = []
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            client.prompt(client.open_session(), "call c1")
            async with asyncio.timeout(TIMEOUT_S):
                async for batch in ledger.log.batches("acp_agent-one"):
                    seen += [ev.type_of(stored.event) for stored in batch]
                    if "turn.ended" in seen:
                        return seen
        raise AssertionError

    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        seen = asyncio.run(watch(client))
        assert client.process.poll() is None
        assert [kind for kind in seen if kind.startswith("call.")] == [
            "call.proposed",
            "call.started",
            "call.completed",
        ]
        assert client.end() == (0, b"")
    (call,) = read_calls(path, "acp_agent-one").values()
    assert (call.status, call.output, call.source) == ("completed", "a.txt", "acp")


def test_every_message_is_recorded_with_its_time(path: str) -> None:
    """A message without an event of its own is recorded as raw JSON with its direction."""
    before = time.time() * 1000 - 1
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        client.reply_to(client.open_session(), "say hello")
        client.end()
    events = read_log(path, "acp_agent-one")
    raws = [event.body for event in events if isinstance(event, ev.Raw)]
    assert [(row["dir"], row["msg"].get("method", "answer")) for row in raws] == [
        ("c2a", "initialize"),
        ("a2c", "answer"),
        ("c2a", "session/new"),
        ("a2c", "answer"),
    ]
    assert all(before < event.at < time.time() * 1000 for event in events)


def test_a_session_that_is_loaded_again_continues(path: str) -> None:
    """Another run records into the same session. Messages that the agent repeats change nothing."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        client.prompt(client.open_session(), "call c1")
        client.end()
    first = read_calls(path, "acp_agent-one")["c1"]
    with Client([*wrap_command(path), *AGENT]) as client:
        client.ask("initialize", protocolVersion=1)
        client.ask("session/load", sessionId="one", cwd="/", mcpServers=[])
        client.prompt("one", "call c2")
        assert client.end() == (0, b"")
    assert read_sessions(path) == ["acp_agent-one"]
    calls = read_calls(path, "acp_agent-one")
    assert list(calls) == ["c1", "c2"]
    assert (calls["c1"].title, calls["c1"].output) == (first.title, first.output) == ("List", "a.txt")
    assert "witness" in {event.verdict for event in read_log(path, "acp_agent-one")}


def test_an_agent_that_reuses_session_ids_creates_new_sessions(path: str) -> None:
    """The same id in another run is another session. Loading it selects the newest."""
    for number in range(2):
        with Client([*wrap_command(path), *AGENT, "0"]) as client:
            client.reply_to(client.open_session(), f"say run {number}")
            client.end()
    assert read_sessions(path) == ["acp_agent-0", "acp_agent-0.2"]
    with Client([*wrap_command(path), *AGENT]) as client:
        client.ask("session/load", sessionId="0", cwd="/", mcpServers=[])
        client.reply_to("0", "say again")
        client.end()
    assert read_sessions(path) == ["acp_agent-0", "acp_agent-0.2"]
    assert [entry.content for entry in read_entries(path, "acp_agent-0.2") if isinstance(entry, Message)][-1] == "again"


def test_two_sessions_on_one_connection_are_two_sessions(path: str) -> None:
    """Calls with the same id in both are different calls."""
    with Client([*wrap_command(path), *AGENT, "one", "two"]) as client:
        first = client.open_session()
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        client.prompt(first, "call c1")
        client.prompt(second, "call c1")
        client.end()
    assert read_sessions(path) == ["acp_agent-one", "acp_agent-two"]
    ids = {next(iter(read_calls(path, name).values())).call_id for name in read_sessions(path)}
    assert len(ids) == 2


def test_the_user_may_choose_the_name_of_the_session(path: str) -> None:
    """The first session gets it. Another one on the same connection has its id appended."""
    with Client([*wrap_command(path, "--session", "work"), *AGENT, "one", "a/b"]) as client:
        first = client.open_session()
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        client.reply_to(first, "say x")
        client.reply_to(second, "say y")
        client.end()
    assert read_sessions(path)[0] == "work" and read_sessions(path)[1].startswith("work:")
    result = run_with_input([*wrap_command(path, "--session", "a/b"), "cat"], b"x\n")
    assert result.returncode == 2 and result.stdout == b"" and b"must not contain '/'" in result.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/local/bin/gemini", "--experimental-acp"], "gemini"),
        (["npx", "-y", "@zed-industries/claude-code-acp@0.12.4"], "claude-code-acp"),
        (["python3.12", "-u", "my agent.py"], "my_agent"),
        (["uv", "run", "agent.py"], "agent"),
        (["env", "A=1", "node", "dist/index.js"], "index"),
        (["python"], "python"),
        (["--"], "agent"),
    ],
)
def test_sessions_are_named_after_the_program(command: list[str], name: str) -> None:
    """The name of a launcher or folder is not used."""
    assert program_name(command) == name


def test_messages_without_a_session_get_a_session_named_by_time(path: str) -> None:
    """A run in which no session starts is recorded too."""
    assert run_with_input([*wrap_command(path), "cat"], b"no JSON\n\n").returncode == 0
    (name,) = read_sessions(path)
    assert name.startswith("cat-2")
    assert [event.body["msg"] for event in read_log(path, name)] == ["no JSON", "no JSON"]


def test_with_a_terminal_on_stdin_it_prints_what_to_run(path: str) -> None:
    """Exit 2, and stderr has the configuration of a client and the commands that show the recording."""
    master_fd, slave_fd = pty.openpty()
    result = subprocess.run(
        [*wrap_command(path), "my agent", "--acp"], stdin=slave_fd, capture_output=True, text=True, timeout=30
    )
    os.close(slave_fd)
    os.close(master_fd)
    assert (result.returncode, result.stdout) == (2, "")
    assert "callslip wrap -- 'my agent' --acp" in result.stderr
    assert '"command": "callslip", "args": ["wrap", "--", "my agent", "--acp"]' in result.stderr
    assert "callslip ls" in result.stderr and "callslip show @last" in result.stderr
    assert not Path(path).exists()


def test_options_of_the_agent_are_not_parsed(path: str) -> None:
    """They are not parsed with or without `--`. Unknown options before the agent are an error."""
    without_separator = [sys.executable, "-m", "callslip", "wrap", "--db", path, "echo", "--policy", "-h"]
    assert run_with_input(without_separator, b"").stdout == b"--policy -h\n"
    result = run_with_input([sys.executable, "-m", "callslip", "wrap", "--polcy", "x", "--", "echo"], b"")
    assert result.returncode == 2 and b"--polcy" in result.stderr


# When recording fails


def test_without_a_ledger_the_agent_continues_and_stderr_has_the_reason(path: str) -> None:
    """The file is not a database: one line on stderr, and one at the end with the number of lost messages."""
    Path(path).write_text("something else entirely, and long enough to be sure of it" * 10)
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        assert client.reply_to(client.open_session(), "say hello") == "hello"
        status, stderr = client.end()
    first, last = stderr.decode().splitlines()
    assert status == 0
    assert first == f"callslip: recording fails, the agent continues: {path} is not a SQLite database"
    assert last == "callslip: 7 of 7 messages were not recorded"


def test_recording_resumes_and_no_message_is_lost(path: str) -> None:
    """Messages wait while the ledger cannot be opened."""
    Path(path).mkdir()
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        assert client.reply_to(client.open_session(), "say hello") == "hello"
        assert client.process.stderr is not None
        assert b"recording fails" in client.process.stderr.readline()
        Path(path).rmdir()
        assert client.process.stderr.readline() == b"callslip: recording works again\n"
        assert client.end() == (0, b"")
    assert [entry.content for entry in read_entries(path, "acp_agent-one")] == ["say hello", "hello"]


def test_a_full_disk_stops_the_recording_and_not_the_agent(path: str) -> None:
    """Files cannot grow beyond a few pages: the agent continues, and the lost messages are counted."""
    limit_file_size = ["sh", "-c", 'ulimit -f 700 && exec "$@"', "sh"]
    with Client([*limit_file_size, *wrap_command(path), *AGENT, "one"]) as client:
        session = client.open_session()
        texts = [f"{number} " + "x" * 20_000 for number in range(30)]
        assert [client.reply_to(session, f"say {text}") for text in texts] == texts
        status, stderr = client.end()
    lines = stderr.decode().splitlines()
    assert status == 0 and len([line for line in lines if "recording fails" in line]) >= 1
    assert lines[-1].endswith("messages were not recorded")
    recorded_texts = [entry.content for entry in read_entries(path, "acp_agent-one") if isinstance(entry, Message)]
    assert 0 < len(recorded_texts) < 60


@contextlib.contextmanager
def holding_write_lock(path: str) -> Generator[None]:
    """Hold the lock that writers of a ledger wait for."""
    with open(path + "-work", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_locked_ledger_delays_the_recording_and_not_the_agent(path: str) -> None:
    """The agent starts and answers while the ledger is locked. After that everything is recorded."""
    run_with_input([*wrap_command(path), "cat"], b"x\n")
    with holding_write_lock(path), Client([*wrap_command(path), *AGENT, "one"]) as client:
        session = client.open_session()
        assert client.reply_to(session, "say hello") == "hello"
        assert "acp_agent-one" not in list_sessions_read_only(path)
    with Client([*wrap_command(path), *AGENT, "two"]) as client:
        session = client.open_session()
        with holding_write_lock(path):
            assert client.reply_to(session, "say hello") == "hello"
        assert client.end() == (0, b"")
    assert [entry.content for entry in read_entries(path, "acp_agent-two")] == ["say hello", "hello"]


def list_sessions_read_only(path: str) -> list[str]:
    """Return the sessions without opening the ledger for writing."""
    import apsw

    return [
        row[0] for row in apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY).execute("SELECT name FROM sessions")
    ]


def test_a_recorder_that_dies_is_reported_and_the_agent_continues(path: str) -> None:
    """The messages after its death are counted."""
    with Client([*wrap_command(path), *AGENT, "one"]) as client:
        session = client.open_session()
        (recorder,) = [
            child for child in child_ids(client.process.pid) if b"acp_agent" not in read_command_line(child)[1]
        ]
        kill(recorder)
        assert client.process.stderr is not None
        problem = b"callslip: recording fails, the agent continues: the recorder died\n"
        assert client.process.stderr.readline() == problem
        assert client.reply_to(session, "say hello") == "hello"
        status, stderr = client.end()
    assert status == 0 and stderr.endswith(b"messages were not recorded\n")


def test_a_recorder_that_hangs_does_not_stop_the_agent(path: str) -> None:
    """Messages are buffered up to a limit. Then the agent continues after a timeout, and the lost ones are counted."""
    lines = 800
    agent = f"import sys; sys.stdin.readline(); sys.stdout.write(('x' * 99999 + '\\n') * {lines})"
    with Client([*wrap_command(path, "--session", "s"), sys.executable, "-c", agent]) as client:
        pids = wait_until(lambda: len(pids := child_ids(client.process.pid)) == 2 and pids)  # The agent, the recorder.
        (recorder,) = [pid for pid in pids if b"wrap" in read_command_line(pid)]
        os.kill(recorder, signal.SIGSTOP)
        client.send(method="go")
        started_at = time.monotonic()
        assert {len(client.read_line()) for _ in range(lines)} == {99999}
        assert 1.5 < time.monotonic() - started_at < 60, "it waited once"
        os.kill(recorder, signal.SIGCONT)
        status, stderr = client.end()
    words = stderr.decode().split()
    lost, total = int(words[1]), int(words[3])
    assert (status, total) == (0, lines + 1) and 50 < lost < 400
    assert len(read_log(path, "s")) == total - lost


def read_command_line(process: int) -> list[bytes]:
    return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")


# Fail closed


def test_fail_closed_passes_nothing_unrecorded(path: str) -> None:
    """When the agent receives a prompt, the prompt is in the ledger."""
    with Client([*wrap_command(path, "--fail-closed"), *AGENT, "one"]) as client:
        session = client.open_session()
        assert [name for name in list_sessions_read_only(path) if name.startswith("acp_agent-2")], (
            "before the first session too"
        )
        for number in range(5):
            assert client.reply_to(session, f"recorded {path} marker-{number}") == "recorded 1"
        assert client.end() == (0, b"")


def test_fail_closed_stops_the_agent_when_recording_fails(tmp_path: Path, path: str) -> None:
    """It receives no byte, it is terminated, and the exit status is 1."""
    Path(path).write_text("something else entirely, and long enough to be sure of it" * 10)
    agent = tee_command(tmp_path / "agent", "cat")
    run = run_with_input([*wrap_command(path, "--fail-closed"), *agent], b'{"jsonrpc":"2.0","method":"x"}\n')
    assert (run.returncode, run.stdout) == (1, b"")
    problem = f"recording fails, so the agent is stopped (--fail-closed): {path} is not a SQLite database"
    assert run.stderr.decode().splitlines()[0] == f"callslip: {problem}"
    received = tmp_path / "agent" / "in"  # Does not exist if the agent was stopped before it started to read.
    assert not received.exists() or received.read_bytes() == b""


def test_fail_closed_kills_an_agent_that_ignores_sigterm(path: str) -> None:
    """SIGKILL follows after a delay."""
    Path(path).mkdir()
    agent = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
    result = run_with_input([*wrap_command(path, "--fail-closed"), *agent], b"x\n")
    assert result.returncode == 1 and b"is a folder" in result.stderr


def test_fail_closed_stops_when_the_recorder_dies(path: str) -> None:
    """Nothing can be recorded any more, so the agent is stopped."""
    with Client([*wrap_command(path, "--fail-closed"), *AGENT, "one"]) as client:
        client.open_session()
        (recorder,) = [
            child for child in child_ids(client.process.pid) if b"acp_agent" not in read_command_line(child)[1]
        ]
        kill(recorder)
        status, stderr = client.wait()
    assert status == 1 and b"the recorder died" in stderr


# The policy


POLICY = """
[[rule]]
action = "allow"
tool = "mcp__*__Do"
input.command = "git status"

[[rule]]
action = "allow"
kind = "think"
always = true

[[rule]]
action = "deny"
path = "/etc/**"
reason = "not there"

[[rule]]
action = "ask"
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    (tmp_path / "policy.toml").write_text(POLICY)
    return str(tmp_path / "policy.toml")


def permission_fields(**call: Any) -> str:
    """Return the fields of a permission request about a call."""
    return json.dumps({"toolCall": {"toolCallId": "c1", **call}})


@pytest.mark.parametrize(
    ("call", "option", "status", "reason"),
    [
        ({"rawInput": {"command": "git status"}}, "yes", "completed", "rule 1 of the policy"),
        ({"locations": [{"path": "/etc/passwd"}]}, "no", "denied", "not there"),
        ({"kind": "think"}, "always", "completed", "rule 2 of the policy"),
    ],
)
def test_a_policy_answers_instead_of_the_client(
    path: str, policy: str, call: dict[str, Any], option: str, status: str, reason: str
) -> None:
    """The client does not receive the request. The ledger has it, and the answer by the policy."""
    with Client([*wrap_command(path, "--policy", policy), *AGENT, "one"]) as client:
        assert client.reply_to(client.open_session(), f"ask c1 {permission_fields(**call)}") == f"answer {option}"
        assert client.requests == []
        assert client.end() == (0, b"")
    assert read_calls(path, "acp_agent-one")["c1"].status == status
    (request,) = [entry for entry in read_entries(path, "acp_agent-one") if isinstance(entry, PermissionRequest)]
    assert (request.response_option, request.by, request.reason) == (option, "policy", reason)


@pytest.mark.parametrize(
    "request_",
    [
        permission_fields(rawInput={"command": "git push"}),
        json.dumps({"toolCall": {"toolCallId": "c1", "kind": "think"}, "options": [{"optionId": "odd", "kind": "x"}]}),
        json.dumps({"toolCall": {"toolCallId": "c1", "kind": "think"}, "options": []}),
        json.dumps({"toolCall": "c1", "options": None}),
    ],
)
def test_requests_without_a_policy_decision_go_to_the_client(path: str, policy: str, request_: str) -> None:
    """No rule matches, no option has the meaning, or the request is malformed: it passes unchanged."""
    with Client([*wrap_command(path, "--policy", policy), *AGENT, "one"]) as client:
        session = client.open_session()
        client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": f"ask c1 {request_}"}])
        request = client.until(lambda message: message.get("method") == "session/request_permission")
        client.send(id=request["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        client.until(lambda message: "answer no" in json.dumps(message))
        assert client.end() == (0, b"")


def test_except_for_the_answered_requests_no_byte_is_changed(tmp_path: Path, path: str, policy: str) -> None:
    """With a policy the client receives what the agent wrote, without the lines that were answered."""
    inner = tee_command(tmp_path / "agent", *AGENT, "one")
    outer = tee_command(tmp_path / "client", *wrap_command(path, "--policy", policy), *inner)
    with Client(outer) as client:
        session = client.open_session()
        for _ in range(3):
            client.prompt(session, "ask c1 " + permission_fields(kind="think"))
            client.prompt(session, "say x")
        assert client.end() == (0, b"")
    sent, received = read_traffic(tmp_path / "client")
    to_agent, from_agent = read_traffic(tmp_path / "agent")
    requests = [line for line in from_agent.splitlines(keepends=True) if b"request_permission" in line]
    answers = [line for line in to_agent.splitlines(keepends=True) if b"outcome" in line]
    assert len(requests) == len(answers) == 3
    assert b"".join(line for line in from_agent.splitlines(keepends=True) if line not in requests) == received
    assert b"".join(line for line in to_agent.splitlines(keepends=True) if line not in answers) == sent


def test_a_policy_works_with_fail_closed(path: str, policy: str) -> None:
    """Request and answer are recorded before the agent receives the answer."""
    with Client([*wrap_command(path, "--policy", policy, "--fail-closed"), *AGENT, "one"]) as client:
        assert client.reply_to(client.open_session(), "ask c1 " + permission_fields(kind="think")) == "answer always"
        assert client.end() == (0, b"")
    assert read_calls(path, "acp_agent-one")["c1"].status == "completed"


def test_a_bad_policy_is_refused_before_the_agent_starts(tmp_path: Path, path: str) -> None:
    """Exit 2, with the file, the line and the rule in the message."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\naction = "ask"\n\n[[rule]]\naction = "alow"\n')
    run = run_with_input([*wrap_command(path, "--policy", str(policy)), "touch", str(tmp_path / "ran")], b"")
    assert run.returncode == 2 and not (tmp_path / "ran").exists()
    assert f"{policy}, line 4, rule 2: action must be one of allow, ask, deny" in run.stderr.decode()


def test_an_answer_waits_for_the_end_of_the_clients_line(path: str, policy: str) -> None:
    """The answer is not inserted into a line that the client has not completed."""
    with Client([*wrap_command(path, "--policy", policy), *AGENT, "one"]) as client:
        session = client.open_session()
        assert client.process.stdin is not None
        prompt = {
            "sessionId": session,
            "prompt": [{"type": "text", "text": "ask c1 " + permission_fields(kind="think")}],
        }
        first = json.dumps({"jsonrpc": "2.0", "id": 90, "method": "session/prompt", "params": prompt}).encode() + b"\n"
        client.process.stdin.write(first + b'{"jsonrpc": "2.0", "id": 91, ')
        client.until(lambda message: "pending" in json.dumps(message))
        wait_until(lambda: [event for event in read_log(path, "acp_agent-one") if isinstance(event, ev.ApprovalAnswer)])
        client.process.stdin.write(b'"method": "initialize", "params": {}}\n')
        client.until(lambda message: message.get("id") == 91)
        client.until(lambda message: "answer always" in json.dumps(message))


# The pipe to the recorder


class PipeHarness:
    """A RecorderPipe whose other ends are held by the test."""

    def __init__(self, **options: Any) -> None:
        self.reader, pipe = os.pipe()
        replies, self.replies = os.pipe()
        self.problems: list[str] = []
        self.pipe = RecorderPipe(pipe, replies, self.problems.append, **options)
        self.pipe.start()
        self._decoder = FrameDecoder()

    def frames(self, size: int) -> list[Frame]:
        """Read frames until their payloads have so many bytes."""
        frames: list[Frame] = []
        while sum(len(frame.payload) for frame in frames) < size:
            assert select.select([self.reader], [], [], TIMEOUT_S)[0]
            frames += self._decoder.feed(os.read(self.reader, 2**20))
        return frames

    def is_empty(self) -> bool:
        """Return whether the buffer is empty, which is noted some time after its last byte was read."""
        return not self.pipe._queued_bytes

    def reply(self, kind: Kind, payload: bytes) -> None:
        os.write(self.replies, encode_frame(kind, payload))

    def close(self) -> int:
        os.close(self.replies)
        missing = self.pipe.close(TIMEOUT_S)
        os.close(self.reader)
        return missing


def test_a_full_buffer_leaves_out_complete_lines_and_counts_them() -> None:
    """The sender waits for room, then continues. The recording resumes with a complete line after a marker."""
    harness = PipeHarness(max_bytes=2**20, timeout_s=0.1)
    line = b"x" * 99_999 + b"\n"
    started_at = time.monotonic()
    for _ in range(30):
        harness.pipe.send(Kind.AGENT_BYTES, line)
    harness.pipe.send(Kind.AGENT_BYTES, b"partial")
    assert time.monotonic() - started_at >= 0.1, "the first send without room waited"
    lost, sent = harness.pipe.lost_lines, harness.pipe.sent_lines
    assert lost + sent == 30 and lost > 10
    frames = harness.frames(sent * len(line))
    wait_until(harness.is_empty)
    harness.pipe.send(Kind.AGENT_BYTES, b" end\ncomplete\n")
    frames += harness.frames(len(Kind.AGENT_BYTES + b"complete\n"))
    assert {frame.payload for frame in frames[:sent]} == {line}
    assert [frame[:2] for frame in frames[sent:]] == [
        (Kind.LINES_MISSING, Kind.AGENT_BYTES),
        (Kind.AGENT_BYTES, b"complete\n"),
    ]
    harness.reply(Kind.LINES_RECORDED, encode_count(sent + 1))
    assert harness.close() == lost + 1


def test_without_a_timeout_a_full_buffer_blocks_the_sender() -> None:
    """Nothing is lost, and a problem of the recorder ends the wait for it."""
    harness = PipeHarness(max_bytes=2**20, timeout_s=None)
    sent: list[int] = []
    thread = threading.Thread(
        target=lambda: [sent.append(harness.pipe.send(Kind.CLIENT_BYTES, b"x" * 99_999 + b"\n")) for _ in range(30)]
    )
    thread.start()
    wait_until(lambda: len(sent) >= 10)
    assert len(sent) < 30
    assert len(harness.frames(30 * 100_000)) == 30
    thread.join()
    assert harness.pipe.lost_lines == 0
    harness.reply(Kind.LINES_RECORDED, encode_count(30))
    harness.pipe.wait_recorded(30)
    harness.reply(Kind.PROBLEM, encode_text("no room"))
    with pytest.raises(RecordingError):
        harness.pipe.wait_recorded(31)
    harness.close()
    assert harness.problems[0] == "no room"


@given(
    st.lists(st.builds(Frame, st.sampled_from(Kind), st.binary(max_size=50), st.floats(0, 2e9)), max_size=10),
    st.randoms(),
)
def test_frames_are_decoded_from_chunks_of_any_size(frames: list[Frame], rand: random.Random) -> None:
    """Frames of every kind are decoded, wherever the data is split."""
    data = b"".join(encode_frame(*frame) for frame in frames)
    cuts = sorted(rand.randint(0, len(data)) for _ in range(5))
    decoder = FrameDecoder()
    decoded = [frame for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) for frame in decoder.feed(data[a:b])]
    assert decoded == frames


@given(st.text())
def test_payloads_with_two_parts_are_decoded(text: str) -> None:
    """A reason may have tabs and line ends; the payload still has one line end for its line."""
    line = b'{"id": "\t"}\n'
    payload = encode_policy_answer(line, text)
    assert decode_policy_answer(payload) == (line, text) and payload.count(b"\n") == 1
    request_id = json.dumps(text).encode()
    assert decode_answer(encode_answer(request_id, line)) == (request_id, line)


# The recorder


class Replies(list[tuple[Kind, bytes]]):
    """The frames that a recorder sends to the front."""

    def add(self, kind: Kind, payload: bytes) -> None:
        self.append((kind, payload))


RECORDED_AT_S = 1.7e9


def bytes_frame(data: bytes, kind: Kind = Kind.AGENT_BYTES) -> Frame:
    return Frame(kind, data, RECORDED_AT_S)


def chunk_frame(text: str) -> Frame:
    """Return the frame of a message chunk of the agent."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    message = {"method": "session/update", "params": {"sessionId": "one", "update": update}}
    return bytes_frame(json.dumps(message).encode() + b"\n")


def recorded_reply(count: int) -> tuple[Kind, bytes]:
    return Kind.LINES_RECORDED, encode_count(count)


async def run_recorder(
    db: str, frames: list[Frame], names: SessionNames | None = None, later: Sequence[Frame] = ()
) -> Replies:
    """Run a recorder over some frames, then over `later` ones when a session exists. Return its replies."""
    reader, writer = os.pipe()
    replies = Replies()
    recorder = RecorderProcess(db, lambda: None, names or SessionNames(["agent"], "s"), replies.add)
    with os.fdopen(writer, "wb", 0) as pipe:
        running = asyncio.create_task(recorder.run(reader))
        await asyncio.to_thread(lambda: [pipe.write(encode_frame(*frame)) for frame in frames])
        if later:
            async with asyncio.timeout(TIMEOUT_S), callslip.open(db) as ledger:
                while not (await ledger.sessions()).items:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(lambda: [pipe.write(encode_frame(*frame)) for frame in later])
    async with asyncio.timeout(TIMEOUT_S):
        await running
    return replies


@pytest.mark.anyio
async def test_a_gap_discards_the_partial_line_before_it(db: str) -> None:
    """The beginning of a line is not joined with the bytes after the gap."""
    partial = bytes_frame(b'{"method": "session/upd')
    gap = Frame(Kind.LINES_MISSING, Kind.AGENT_BYTES, RECORDED_AT_S)
    ended = Frame(Kind.AGENT_ENDED, encode_text("why"), RECORDED_AT_S)
    replies = await run_recorder(db, [chunk_frame("a"), partial, gap, chunk_frame("b"), ended])
    async with sound_ledger(db) as ledger:
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]
    assert replies[-1] == recorded_reply(2)


@pytest.mark.anyio
async def test_only_the_beginning_of_a_too_long_line_is_recorded(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is recorded too, and the lines around it are complete."""
    monkeypatch.setattr(recorder_module, "MAX_LINE_BYTES", 10_000)
    chunks = [bytes_frame(b"z" * 4000) for _ in range(5)]
    await run_recorder(db, [chunk_frame("a"), *chunks, bytes_frame(b"\n"), chunk_frame("b")])
    async with sound_ledger(db) as ledger:
        events = [event async for event in ledger.events("s")]
        (raw,) = [event for event in events if isinstance(event, ev.Raw)]
        assert raw.body["msg"] == {"bytes": 20_000, "beginning": "z" * 2048}
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]


@pytest.mark.anyio
async def test_opening_a_read_only_ledger_is_retried(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front receives the problem once, and its end."""
    await run_recorder(db, [])
    writable = iter([False, False])
    monkeypatch.setattr(sqlite_open, "is_writable", lambda path: next(writable, True))
    monkeypatch.setattr(recorder_module, "RETRY_DELAY_S", 0.01)
    replies = await run_recorder(db, [chunk_frame("a")])
    assert replies[0][0] is Kind.PROBLEM and replies[0][1].endswith(b"cannot be written")
    assert replies[1:] == [(Kind.PROBLEM, b""), recorded_reply(1), recorded_reply(1)]


@pytest.mark.anyio
async def test_a_message_that_breaks_the_decoder_is_recorded_raw(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other messages are decoded as usual."""
    from callslip.formats.acp.decode import AcpDecoder

    feed = AcpDecoder.feed

    def feed_or_raise(self: Any, message: Any) -> Any:
        if "bad" in json.dumps(message.body):
            raise ZeroDivisionError
        return feed(self, message)

    monkeypatch.setattr(AcpDecoder, "feed", feed_or_raise)
    replies = await run_recorder(db, [chunk_frame("a"), chunk_frame("bad"), chunk_frame("b")])
    async with sound_ledger(db) as ledger:
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]
        events = [event async for event in ledger.events("s")]
        assert [type(event) for event in events[1:4]] == [ev.MessageDelta, ev.Raw, ev.MessageDelta]
    assert replies[-1] == recorded_reply(3)


@pytest.mark.anyio
async def test_a_message_that_cannot_be_recorded_is_counted(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out, and the others are recorded."""
    append = EventLog.append

    async def append_or_raise(self: Any, session: str, drafts: Any, **more: Any) -> Any:
        if any("poison" in repr(draft) for draft in drafts):
            raise ZeroDivisionError("poison")
        return await append(self, session, drafts, **more)

    monkeypatch.setattr(EventLog, "append", append_or_raise)
    replies = await run_recorder(db, [chunk_frame("a"), chunk_frame("poison"), chunk_frame("b")])
    async with sound_ledger(db) as ledger:
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]
    assert replies[-1] == recorded_reply(2) and any(b"refused" in payload for _, payload in replies)


@pytest.mark.anyio
async def test_messages_before_any_session_are_buffered_up_to_a_limit(db: str) -> None:
    """Beyond it they get a session of their own. The agent's session is still named after its id."""
    messages = [bytes_frame(b'"' + b"x" * 60_000 + b'"\n') for _ in range(40)]
    await run_recorder(db, messages, SessionNames(["agent"]), later=[chunk_frame("a")])
    async with sound_ledger(db) as ledger:
        names = [row.name for row in (await ledger.sessions()).items]
        assert len(names) == 2 and "agent-one" in names
        events = [event for name in names async for event in ledger.events(name)]
        assert len([event for event in events if isinstance(event, ev.Raw)]) == len(messages)


@pytest.mark.anyio
async def test_many_short_lines_before_a_session_wait_for_it(db: str) -> None:
    """The limit is for their total size, not for the size of the chunk they arrive in."""
    await run_recorder(db, [bytes_frame(b'"starting"\n' * 2000), chunk_frame("a")], SessionNames(["agent"]))
    async with sound_ledger(db) as ledger:
        assert [row.name for row in (await ledger.sessions()).items] == ["agent-one"]


@pytest.mark.anyio
async def test_a_partial_line_is_recorded_when_the_front_is_killed(db: str) -> None:
    """It is recorded as text and is not one of the counted lines."""
    replies = await run_recorder(db, [chunk_frame("a"), bytes_frame(b'{"method": "session/pro', Kind.CLIENT_BYTES)])
    async with sound_ledger(db) as ledger:
        raws = [event.body["msg"] async for event in ledger.events("s") if isinstance(event, ev.Raw)]
    assert raws == ['{"method": "session/pro'] and replies[-1] == recorded_reply(1)


@pytest.mark.anyio
@pytest.mark.parametrize("failing_write", range(1, 9))
async def test_a_disk_that_fails_at_any_write_duplicates_nothing(
    db: str, monkeypatch: pytest.MonkeyPatch, failing_write: int
) -> None:
    """When messages are written together, and when one is refused and they are written one by one."""
    append, writes = EventLog.append, 0

    async def append_or_raise(self: Any, session: str, drafts: Any, **more: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == failing_write:
            raise StoreError("the disk failed")
        if any(isinstance(draft.event, ev.MessageDelta) and "bad" in draft.event.text for draft in drafts):
            raise InvalidInputError("text", "is bad")
        return await append(self, session, drafts, **more)

    monkeypatch.setattr(EventLog, "append", append_or_raise)
    monkeypatch.setattr(recorder_module, "RETRY_DELAY_S", 0.01)
    lines = b"".join(chunk_frame(text).payload for text in ("a", "bad", "b", "c"))
    replies = await run_recorder(db, [bytes_frame(lines)])
    async with sound_ledger(db) as ledger:
        events = [event async for event in ledger.events("s")]
    assert "".join(event.text for event in events if isinstance(event, ev.MessageDelta)) == "abc"
    assert len([event for event in events if isinstance(event, ev.Raw)]) == 1 and replies[-1] == recorded_reply(4)
