"""`callslip wrap`, run for real: between the protocol's own client and agent, and with everything going wrong."""

from __future__ import annotations

import asyncio
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
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.api.ledger import Ledger, open_ledger
from callslip.errors import InvalidInputError, StoreError
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest
from callslip.store import sqlite_open
from callslip.wrap import recorder as recording
from callslip.wrap.frames import AGENT as FROM_AGENT
from callslip.wrap.frames import CLIENT as FROM_CLIENT
from callslip.wrap.frames import ENDED, GAP, Frame, Unpacking, pack
from callslip.wrap.recorder import RecorderProcess
from callslip.wrap.recorder_pipe import RecorderPipe, Stopped
from callslip.wrap.session_names import Names, program_name
from tests.conftest import LONG
from tests.support.acp_process import (
    AGENT,
    PROGRAMS,
    TIMEOUT,
    Client,
    calls,
    children,
    entries,
    eventually,
    is_alive,
    kill,
    log,
    sessions,
    wrapping,
)
from tests.support.invariants import sound_ledger
from tests.support.paths import ROOT

EXAMPLES = ROOT / ".cache" / "acp" / "examples"
MB = 2**20


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the ledger will be."""
    return str(tmp_path / "ledger.db")


def passed(command: list[str], data: bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A command that is given some bytes and then nothing more."""
    return subprocess.run(command, input=data, capture_output=True, timeout=60, **options)


# Bytes


def tee(folder: Path, *command: str) -> list[str]:
    """A command whose traffic is written down, byte by byte."""
    return [sys.executable, str(PROGRAMS / "tee.py"), str(folder), *command]


def conversation(command: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """The protocol's example client, which runs an agent and sends it what is typed."""
    client = [sys.executable, str(EXAMPLES / "client.py"), *command]
    return passed(client, "hello\nhow are you? ünï \U0001f600\n".encode(), cwd=cwd)


def traffic(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "in").read_bytes(), (folder / "out").read_bytes()


def test_the_example_client_and_agent_exchange_the_same_bytes_with_and_without_wrap(tmp_path: Path, path: str) -> None:
    """Both sides of wrap saw the same bytes, and these are the bytes of a conversation without it."""
    agent = [sys.executable, str(EXAMPLES / "agent.py")]
    plain = conversation(tee(tmp_path / "plain", *agent), tmp_path)
    inner = tee(tmp_path / "agent", *agent)
    wrapped = conversation(tee(tmp_path / "client", *wrapping(path), *inner), tmp_path)
    assert traffic(tmp_path / "client") == traffic(tmp_path / "agent") == traffic(tmp_path / "plain")
    assert wrapped.stdout == plain.stdout and b"| Agent: how are you?" in plain.stdout
    assert wrapped.returncode == plain.returncode == 0
    assert wrapped.stderr == plain.stderr, "wrap has nothing to say when all is well"
    assert sessions(path) == ["tee-0"], "named after the program that wrap was given"
    said = [(entry.role, entry.content) for entry in entries(path, "tee-0") if isinstance(entry, Message)]
    assert said[0] == ("user", "hello") and said[-1] == ("assistant", "Client sent:how are you? ünï \U0001f600")


def test_the_example_echo_agent_is_not_touched_either(tmp_path: Path, path: str) -> None:
    """Its session ids are random, so only the two sides of wrap can be compared; the session is named after the id."""
    inner = tee(tmp_path / "agent", sys.executable, str(EXAMPLES / "echo_agent.py"))
    assert conversation(tee(tmp_path / "client", *wrapping(path), *inner), tmp_path).returncode == 0
    assert traffic(tmp_path / "client") == traffic(tmp_path / "agent")
    sent, answered = (part.splitlines() for part in traffic(tmp_path / "agent"))
    identity = json.loads(answered[1])["result"]["sessionId"]
    assert sessions(path) == [f"tee-{identity}"] and len(sent) == 4


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
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Whatever the bytes are: halves of lines, no JSON, no UTF-8, nothing at all. And all of it is recorded."""
    path = str(tmp_path_factory.mktemp("wrap") / "ledger.db")
    data = b"".join(pieces)
    run = passed([*wrapping(path), "cat"], data)
    assert (run.stdout, run.stderr, run.returncode) == (data, b"", 0)
    if data.strip():
        assert sum(len(log(path, name)) for name in sessions(path)) > 0


def test_a_line_of_a_hundred_megabytes_passes(path: str) -> None:
    """Nothing waits for its end, and it is kept whole, as a blob."""
    size = (100 if LONG else 20) * MB
    line = b'{"jsonrpc":"2.0","method":"x","params":"' + b"y" * size + b'"}\n'
    run = passed([*wrapping(path), "cat"], line)
    assert run.stdout == line and (run.stderr, run.returncode) == (b"", 0)
    (name,) = sessions(path)
    assert [event.blob.size > size for event in log(path, name)] == [True, True]


def test_half_a_line_is_passed_on_at_once(path: str) -> None:
    """Bytes do not wait for the end of their line."""
    with Client([*wrapping(path), "cat"]) as client:
        assert client.process.stdin is not None and client.process.stdout is not None
        for piece in (b'{"half', b'":1', b"}\n{"):
            client.process.stdin.write(piece)
            assert os.read(client.process.stdout.fileno(), 100) == piece
        assert client.end()[0] == 0


def test_a_client_that_does_not_read_holds_the_agent_up_and_no_memory(path: str) -> None:
    """Slowness travels through: the agent blocks, and what waits for the recorder has a limit."""
    with Client([*wrapping(path), "sh", "-c", f"head -c {400 * MB} /dev/zero | tr '\\0' '\\n'"]) as client:
        assert client.process.stdout is not None
        time.sleep(1.5)
        status = Path(f"/proc/{client.process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        assert resident < 60 * MB
        assert os.read(client.process.stdout.fileno(), 10) == b"\n" * 10


# The agent's life


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
def test_the_exit_status_is_the_agents(path: str, command: list[str], status: int) -> None:
    """Death by a signal is 128 and its number, as a shell has it."""
    run = passed([*wrapping(path), *command], b"")
    assert (run.returncode, run.stdout, run.stderr) == (status, b"", b"")


def test_a_command_that_cannot_be_run_is_told_as_a_shell_would(tmp_path: Path, path: str) -> None:
    """127 for none of that name, 126 for one that is no program; no ledger is made for it."""
    (tmp_path / "text").write_text("no program")
    absent = passed([*wrapping(path), "no-such-agent"], b"")
    assert (absent.returncode, absent.stderr) == (127, b"callslip: no-such-agent: No such file or directory\n")
    text = passed([*wrapping(path), str(tmp_path / "text")], b"")
    assert text.returncode == 126 and text.stderr.endswith(b": Permission denied\n")
    assert not Path(path).exists()


def test_stderr_passes_untouched(path: str) -> None:
    """It is the agent's own stderr, and wrap adds nothing to it."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        client.request("session/prompt", sessionId=client.begin(), prompt=[{"type": "text", "text": "exit 5"}])
        assert client.left() == (5, b"last \xff words\r\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_go_to_the_agent(path: str, number: signal.Signals) -> None:
    """Whether it ends by them is its own affair: here it only says so, and both go on."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        session = client.begin()
        client.prompt(session, "signals")
        client.process.send_signal(number)
        client.until(lambda message: number.name in json.dumps(message))
        assert client.says(session, "say still here") == "still here"
        assert client.end() == (0, b"")


def test_an_interrupt_from_the_terminal_reaches_the_agent_once(path: str) -> None:
    """The terminal sends it to both; handing it on as well would make two of it."""
    ours, theirs = pty.openpty()
    own = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)"
    terminal = [sys.executable, "-c", f"{own}; os.execvp(sys.argv[2], sys.argv[2:])", str(theirs)]
    with Client([*terminal, *wrapping(path), *AGENT, "one"], pass_fds=[theirs]) as client:
        session = client.begin()
        client.prompt(session, "signals")
        os.write(ours, b"\x03")
        client.until(lambda message: "SIGINT" in json.dumps(message))
        time.sleep(0.3)
        assert "SIGINT" not in client.says(session, "say done")
        assert client.end() == (0, b"")
    os.close(ours)
    os.close(theirs)


def test_an_agent_that_stops_listening_is_noticed_by_the_client(path: str) -> None:
    """A client that writes to an agent which closed its stdin meets a broken pipe, as it would without wrap."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        client.request("session/prompt", sessionId=client.begin(), prompt=[{"type": "text", "text": "deaf 3"}])
        time.sleep(0.3)

        def broken() -> bool:
            try:
                client.send(method="x")
            except BrokenPipeError:
                return True
            return False

        eventually(broken, 2.5)
        assert client.process.poll() is None, "the agent goes on"
        assert client.left()[0] == 7


def test_a_client_that_stops_listening_is_noticed_by_the_agent(path: str) -> None:
    """An agent that writes to a client which is gone dies of it, as it would without wrap."""
    with Client([*wrapping(path), "sh", "-c", "while echo x; do sleep 0.01; done; exit 8"]) as client:
        assert client.process.stdout is not None
        client.process.stdout.close()
        assert client.process.wait(10) in (8, 128 + signal.SIGPIPE)


def test_an_output_that_outlives_its_agent_does_not_hold_us(path: str) -> None:
    """A child of the agent may keep its stdout open for ever; the agent's end is what counts."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        session = client.begin()
        client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "leave 20"}])
        began = time.monotonic()
        assert client.process.wait(15) == 9 and time.monotonic() - began < 10


def test_an_agent_that_is_killed_within_a_call_ends_the_call(path: str) -> None:
    """C5: the call is lost and the turn is over, with a reason that names the signal."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        kill(client.starts(client.begin(), "c1"))
        assert client.left() == (137, b"")
    (call,) = calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "the agent was killed (SIGKILL) before this call ended")
    ended = [event for event in log(path, "acp_agent-one") if isinstance(event, ev.TurnEnded)]
    assert [event.reason for event in ended] == ["eof"]


def test_half_a_line_of_the_client_is_kept_when_the_agent_ends(path: str) -> None:
    """The client is still there, within a line that nobody will read to its end."""
    with Client([*wrapping(path, "--session", "s"), "sh", "-c", "head -c 4 >/dev/null"]) as client:
        assert client.process.stdin is not None
        client.process.stdin.write(b"half")
        assert client.left() == (0, b"")
    assert [event.body["msg"] for event in log(path, "s")] == ["half"]


def test_an_agent_that_ends_within_a_call_names_its_status(path: str) -> None:
    """An agent that hangs up in good order leaves nothing open either."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        client.starts(client.begin(), "c1")
        assert client.end() == (0, b"")
    (call,) = calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "the agent ended (exit status 0) before this call did")


def test_when_wrap_is_killed_its_recorder_ends_the_calls_and_the_agent_finds_its_stdin_closed(path: str) -> None:
    """C5: kill -9 of wrap itself. Nothing stays open, and no process stays behind."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        agent = client.starts(client.begin(), "c1")
        others = [process for process in children(client.process.pid) if process != agent]
        kill(client.process.pid)
        client.process.wait()
        for process in (agent, *others):
            eventually(lambda process=process: not is_alive(process))
    (call,) = calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "callslip wrap was killed before this call ended")


def test_when_wrap_and_its_recorder_are_killed_the_next_to_open_the_ledger_ends_the_calls(path: str) -> None:
    """C5: the owner is dead, which is known at once."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        agent = client.starts(client.begin(), "c1")
        (recorder,) = [process for process in children(client.process.pid) if process != agent]
        wal = Path(path + "-wal")
        eventually(lambda: wal.exists() and b'"c1"' in wal.read_bytes())
        kill(recorder)
        kill(client.process.pid)
        client.process.wait()
        eventually(lambda: not is_alive(agent) and not is_alive(recorder))
    (call,) = calls(path, "acp_agent-one").values()
    assert (call.status, call.reason) == ("lost", "the process that ran this call ended")


# What is recorded


def test_a_call_is_recorded_while_the_agent_runs(path: str) -> None:
    """Another process that follows the session sees the call begin and end, and then the agent ends."""

    async def watch(client: Client) -> list[str]:
        seen: list[str] = []
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            client.prompt(client.begin(), "call c1")
            async with asyncio.timeout(10):
                async for batch in ledger.follow("acp_agent-one"):
                    seen += [ev.type_of(stored.event) for stored in batch]
                    if "turn.ended" in seen:
                        return seen
        raise AssertionError

    with Client([*wrapping(path), *AGENT, "one"]) as client:
        seen = asyncio.run(watch(client))
        assert client.process.poll() is None
        assert [kind for kind in seen if kind.startswith("call.")] == [
            "call.proposed",
            "call.started",
            "call.completed",
        ]
        assert client.end() == (0, b"")
    (call,) = calls(path, "acp_agent-one").values()
    assert (call.status, call.output, call.source) == ("completed", "a.txt", "acp")


def test_every_message_is_kept_and_dated(path: str) -> None:
    """What no event stands for is kept as it came, with its direction, and the times are those of the messages."""
    before = time.time() * 1000 - 1
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        client.says(client.begin(), "say hello")
        client.end()
    found = log(path, "acp_agent-one")
    raws = [event.body for event in found if isinstance(event, ev.Raw)]
    assert [(row["dir"], row["msg"].get("method", "answer")) for row in raws] == [
        ("c2a", "initialize"),
        ("a2c", "answer"),
        ("c2a", "session/new"),
        ("a2c", "answer"),
    ]
    assert all(before < event.at < time.time() * 1000 for event in found)


def test_a_session_that_is_loaded_again_goes_on_where_it_was(path: str) -> None:
    """S2.11: another run, the same session here; what the agent tells anew changes nothing of what was recorded."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        client.prompt(client.begin(), "call c1")
        client.end()
    first = calls(path, "acp_agent-one")["c1"]
    with Client([*wrapping(path), *AGENT]) as client:
        client.ask("initialize", protocolVersion=1)
        client.ask("session/load", sessionId="one", cwd="/", mcpServers=[])
        client.prompt("one", "call c2")
        assert client.end() == (0, b"")
    assert sessions(path) == ["acp_agent-one"]
    both = calls(path, "acp_agent-one")
    assert list(both) == ["c1", "c2"]
    assert (both["c1"].title, both["c1"].output) == (first.title, first.output) == ("List", "a.txt")
    assert "witness" in {event.verdict for event in log(path, "acp_agent-one")}


def test_an_agent_that_counts_its_sessions_anew_makes_new_sessions(path: str) -> None:
    """The same id from another run is another session; loading it means the newest."""
    for number in range(2):
        with Client([*wrapping(path), *AGENT, "0"]) as client:
            client.says(client.begin(), f"say run {number}")
            client.end()
    assert sessions(path) == ["acp_agent-0", "acp_agent-0.2"]
    with Client([*wrapping(path), *AGENT]) as client:
        client.ask("session/load", sessionId="0", cwd="/", mcpServers=[])
        client.says("0", "say again")
        client.end()
    assert sessions(path) == ["acp_agent-0", "acp_agent-0.2"]
    assert [entry.content for entry in entries(path, "acp_agent-0.2") if isinstance(entry, Message)][-1] == "again"


def test_two_sessions_on_one_connection_are_two_sessions(path: str) -> None:
    """Calls with the same id in both are told apart."""
    with Client([*wrapping(path), *AGENT, "one", "two"]) as client:
        first = client.begin()
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        client.prompt(first, "call c1")
        client.prompt(second, "call c1")
        client.end()
    assert sessions(path) == ["acp_agent-one", "acp_agent-two"]
    ids = {next(iter(calls(path, name).values())).call_id for name in sessions(path)}
    assert len(ids) == 2


def test_the_user_may_choose_the_name_of_the_session(path: str) -> None:
    """The first session gets it; another one on the same connection gets its own id behind it."""
    with Client([*wrapping(path, "--session", "work"), *AGENT, "one", "a/b"]) as client:
        first = client.begin()
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        client.says(first, "say x")
        client.says(second, "say y")
        client.end()
    assert sessions(path)[0] == "work" and sessions(path)[1].startswith("work:")
    refused = passed([*wrapping(path, "--session", "a/b"), "cat"], b"x\n")
    assert refused.returncode == 2 and refused.stdout == b"" and b"a name has no '/'" in refused.stderr


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
    """Not after what launches it, nor after where it lies."""
    assert program_name(command) == name


def test_what_is_said_without_a_session_has_one_named_after_the_time(path: str) -> None:
    """An agent that refuses to begin leaves a record, too."""
    assert passed([*wrapping(path), "cat"], b"no JSON\n\n").returncode == 0
    (name,) = sessions(path)
    assert name.startswith("cat-2")
    assert [event.body["msg"] for event in log(path, name)] == ["no JSON", "no JSON"]


def test_with_a_terminal_for_a_client_it_says_what_to_run(path: str) -> None:
    """Nobody speaks the protocol by hand: exit 2, and stderr says how to set up a client and where to look."""
    ours, theirs = pty.openpty()
    run = subprocess.run(
        [*wrapping(path), "my agent", "--acp"], stdin=theirs, capture_output=True, text=True, timeout=30
    )
    os.close(theirs)
    os.close(ours)
    assert (run.returncode, run.stdout) == (2, "")
    assert "callslip wrap -- 'my agent' --acp" in run.stderr
    assert '"command": "callslip", "args": ["wrap", "--", "my agent", "--acp"]' in run.stderr
    assert "callslip ls" in run.stderr and "callslip show @last" in run.stderr
    assert not Path(path).exists()


def test_options_of_the_agent_are_the_agents(path: str) -> None:
    """With or without the two dashes; our own options must come before, and wrong ones are refused."""
    bare = [sys.executable, "-m", "callslip", "wrap", "--db", path, "echo", "--policy", "-h"]
    assert passed(bare, b"").stdout == b"--policy -h\n"
    wrong = passed([sys.executable, "-m", "callslip", "wrap", "--polcy", "x", "--", "echo"], b"")
    assert wrong.returncode == 2 and b"--polcy" in wrong.stderr


# When recording fails


def test_without_a_ledger_the_agent_goes_on_and_the_person_is_told(path: str) -> None:
    """The file is no database: one line on stderr, one at the end with what was missed, nothing on stdout."""
    Path(path).write_text("something else entirely, and long enough to be sure of it" * 10)
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        assert client.says(client.begin(), "say hello") == "hello"
        status, said = client.end()
    first, last = said.decode().splitlines()
    assert status == 0
    assert first == f"callslip: recording fails, the agent goes on: {path} is not a SQLite database"
    assert last == "callslip: 7 of 7 messages were not recorded"


def test_recording_goes_on_when_it_can_and_nothing_was_missed(path: str) -> None:
    """What was said meanwhile waited."""
    Path(path).mkdir()
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        assert client.says(client.begin(), "say hello") == "hello"
        assert client.process.stderr is not None
        assert b"recording fails" in client.process.stderr.readline()
        Path(path).rmdir()
        assert client.process.stderr.readline() == b"callslip: recording goes on\n"
        assert client.end() == (0, b"")
    assert [entry.content for entry in entries(path, "acp_agent-one")] == ["say hello", "hello"]


def test_a_disk_that_is_full_stops_the_record_and_not_the_agent(path: str) -> None:
    """No file may grow beyond a few pages: the agent goes on, and the messages are counted."""
    small = ["sh", "-c", 'ulimit -f 600 && exec "$@"', "sh"]
    with Client([*small, *wrapping(path), *AGENT, "one"]) as client:
        session = client.begin()
        texts = [f"{number} " + "x" * 20_000 for number in range(30)]
        assert [client.says(session, f"say {text}") for text in texts] == texts
        status, said = client.end()
    lines = said.decode().splitlines()
    assert status == 0 and len([line for line in lines if "recording fails" in line]) >= 1
    assert lines[-1].endswith("messages were not recorded")
    kept = [entry.content for entry in entries(path, "acp_agent-one") if isinstance(entry, Message)]
    assert 0 < len(kept) < 60


@contextmanager
def locked(path: str) -> Generator[None]:
    """While the lock is held that writers of a ledger wait for."""
    with open(path + "-work", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_ledger_that_others_hold_delays_the_record_and_not_the_agent(path: str) -> None:
    """The agent starts and answers while the ledger is locked; when the lock goes, everything is recorded."""
    passed([*wrapping(path), "cat"], b"x\n")
    with locked(path), Client([*wrapping(path), *AGENT, "one"]) as client:
        session = client.begin()
        assert client.says(session, "say hello") == "hello"
        assert "acp_agent-one" not in sessions_now(path)
    with Client([*wrapping(path), *AGENT, "two"]) as client:
        session = client.begin()
        with locked(path):
            assert client.says(session, "say hello") == "hello"
        assert client.end() == (0, b"")
    assert [entry.content for entry in entries(path, "acp_agent-two")] == ["say hello", "hello"]


def sessions_now(path: str) -> list[str]:
    """The sessions, read without writing anything."""
    import apsw

    return [
        row[0] for row in apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY).execute("SELECT name FROM sessions")
    ]


def test_a_recorder_that_dies_is_told_of_and_the_agent_goes_on(path: str) -> None:
    """Even a killed recorder is no reason to stop; what comes after it is counted."""
    with Client([*wrapping(path), *AGENT, "one"]) as client:
        session = client.begin()
        (recorder,) = [child for child in children(client.process.pid) if b"acp_agent" not in command_of(child)[1]]
        kill(recorder)
        assert client.process.stderr is not None
        assert client.process.stderr.readline() == b"callslip: recording fails, the agent goes on: the recorder died\n"
        assert client.says(session, "say hello") == "hello"
        status, said = client.end()
    assert status == 0 and said.endswith(b"messages were not recorded\n")


def test_a_recorder_that_stands_still_does_not_stop_the_agent(path: str) -> None:
    """What it cannot take waits, up to a limit; beyond it the agent goes on after a moment, and the rest is counted."""
    lines = 800
    agent = f"import sys; sys.stdin.readline(); sys.stdout.write(('x' * 99999 + '\\n') * {lines})"
    with Client([*wrapping(path, "--session", "s"), sys.executable, "-c", agent]) as client:
        (recorder,) = eventually(lambda: [pid for pid in children(client.process.pid) if b"wrap" in command_of(pid)])
        os.kill(recorder, signal.SIGSTOP)
        client.send(method="go")
        began = time.monotonic()
        assert {len(client.line()) for _ in range(lines)} == {99999}
        assert 1.5 < time.monotonic() - began < 25, "it waited once"
        os.kill(recorder, signal.SIGCONT)
        status, said = client.end()
    words = said.decode().split()
    missed, total = int(words[1]), int(words[3])
    assert (status, total) == (0, lines + 1) and 50 < missed < 400
    assert len(log(path, "s")) == total - missed


def command_of(process: int) -> list[bytes]:
    return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")


# Fail closed


def test_fail_closed_lets_nothing_pass_that_is_not_recorded(path: str) -> None:
    """The agent looks into the ledger when it hears the prompt: it is there already."""
    with Client([*wrapping(path, "--fail-closed"), *AGENT, "one"]) as client:
        session = client.begin()
        assert [name for name in sessions_now(path) if name.startswith("acp_agent-2")], "before any session, too"
        for number in range(5):
            assert client.says(session, f"recorded {path} marker-{number}") == "recorded 1"
        assert client.end() == (0, b"")


def test_fail_closed_stops_the_agent_when_recording_fails(tmp_path: Path, path: str) -> None:
    """Not one byte reaches it, it is ended, and the exit status is 1."""
    Path(path).write_text("something else entirely, and long enough to be sure of it" * 10)
    agent = tee(tmp_path / "agent", "cat")
    run = passed([*wrapping(path, "--fail-closed"), *agent], b'{"jsonrpc":"2.0","method":"x"}\n')
    assert (run.returncode, run.stdout) == (1, b"")
    problem = f"recording fails, so the agent is stopped (--fail-closed): {path} is not a SQLite database"
    assert run.stderr.decode().splitlines()[0] == f"callslip: {problem}"
    assert (tmp_path / "agent" / "in").read_bytes() == b""


def test_fail_closed_ends_an_agent_that_ignores_being_asked(path: str) -> None:
    """SIGTERM first, and then by force."""
    Path(path).mkdir()
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
    run = passed([*wrapping(path, "--fail-closed"), *stubborn], b"x\n")
    assert run.returncode == 1 and b"is a folder" in run.stderr


def test_fail_closed_stops_when_the_recorder_dies(path: str) -> None:
    """Nobody is left to record: nothing passes any more."""
    with Client([*wrapping(path, "--fail-closed"), *AGENT, "one"]) as client:
        client.begin()
        (recorder,) = [child for child in children(client.process.pid) if b"acp_agent" not in command_of(child)[1]]
        kill(recorder)
        status, said = client.left()
    assert status == 1 and b"the recorder died" in said


# The policy, end to end


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


def about(**call: Any) -> str:
    """What a permission request says of a call."""
    return json.dumps({"toolCall": {"toolCallId": "c1", **call}})


@pytest.mark.parametrize(
    ("call", "option", "status", "reason"),
    [
        ({"rawInput": {"command": "git status"}}, "yes", "completed", "rule 1 of the policy"),
        ({"locations": [{"path": "/etc/passwd"}]}, "no", "denied", "not there"),
        ({"kind": "think"}, "always", "completed", "rule 2 of the policy"),
    ],
)
def test_a_policy_answers_in_the_clients_place(
    path: str, policy: str, call: dict[str, Any], option: str, status: str, reason: str
) -> None:
    """The client never sees the request; the ledger has it, and its answer, by the policy."""
    with Client([*wrapping(path, "--policy", policy), *AGENT, "one"]) as client:
        assert client.says(client.begin(), f"ask c1 {about(**call)}") == f"answer {option}"
        assert client.asked == []
        assert client.end() == (0, b"")
    assert calls(path, "acp_agent-one")["c1"].status == status
    (request,) = [entry for entry in entries(path, "acp_agent-one") if isinstance(entry, PermissionRequest)]
    assert (request.response_option, request.by, request.reason) == (option, "policy", reason)


@pytest.mark.parametrize(
    "request_",
    [
        about(rawInput={"command": "git push"}),
        json.dumps({"toolCall": {"toolCallId": "c1", "kind": "think"}, "options": [{"optionId": "odd", "kind": "x"}]}),
        json.dumps({"toolCall": {"toolCallId": "c1", "kind": "think"}, "options": []}),
        json.dumps({"toolCall": "c1", "options": None}),
    ],
)
def test_what_the_policy_does_not_decide_the_client_is_asked(path: str, policy: str, request_: str) -> None:
    """No rule, no option that fits, no proper request: it passes as it came, and the client's answer counts."""
    with Client([*wrapping(path, "--policy", policy), *AGENT, "one"]) as client:
        session = client.begin()
        client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": f"ask c1 {request_}"}])
        asked = client.until(lambda message: message.get("method") == "session/request_permission")
        client.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        client.until(lambda message: "answer no" in json.dumps(message))
        assert client.end() == (0, b"")


def test_beside_the_answered_requests_no_byte_is_changed(tmp_path: Path, path: str, policy: str) -> None:
    """With a policy, what the client sees is what the agent wrote, less the lines that were answered."""
    inner = tee(tmp_path / "agent", *AGENT, "one")
    outer = tee(tmp_path / "client", *wrapping(path, "--policy", policy), *inner)
    with Client(outer) as client:
        session = client.begin()
        for number in range(3):
            client.prompt(session, "ask c1 " + about(kind="think"))
            client.prompt(session, f"noise {number * MB}") if number == 9 else client.prompt(session, "say x")
        assert client.end() == (0, b"")
    sent, received = traffic(tmp_path / "client")
    to_agent, from_agent = traffic(tmp_path / "agent")
    requests = [line for line in from_agent.splitlines(keepends=True) if b"request_permission" in line]
    answers = [line for line in to_agent.splitlines(keepends=True) if b"outcome" in line]
    assert len(requests) == len(answers) == 3
    assert b"".join(line for line in from_agent.splitlines(keepends=True) if line not in requests) == received
    assert b"".join(line for line in to_agent.splitlines(keepends=True) if line not in answers) == sent


def test_a_policy_and_fail_closed_go_together(path: str, policy: str) -> None:
    """Request and answer are recorded before the agent hears the answer."""
    with Client([*wrapping(path, "--policy", policy, "--fail-closed"), *AGENT, "one"]) as client:
        assert client.says(client.begin(), "ask c1 " + about(kind="think")) == "answer always"
        assert client.end() == (0, b"")
    assert calls(path, "acp_agent-one")["c1"].status == "completed"


def test_a_bad_policy_is_refused_before_the_agent_starts(tmp_path: Path, path: str) -> None:
    """Exit 2, with the file, the line and the rule."""
    (tmp_path / "policy.toml").write_text('[[rule]]\naction = "ask"\n\n[[rule]]\naction = "alow"\n')
    run = passed([*wrapping(path, "--policy", str(tmp_path / "policy.toml")), "touch", str(tmp_path / "ran")], b"")
    assert run.returncode == 2 and not (tmp_path / "ran").exists()
    assert f"{tmp_path / 'policy.toml'}, line 4, rule 2: action must be one of allow, ask, deny" in run.stderr.decode()


def test_an_answer_waits_for_the_end_of_the_clients_line(path: str, policy: str) -> None:
    """A client that has written half a line when the policy answers finds its line unbroken."""
    with Client([*wrapping(path, "--policy", policy), *AGENT, "one"]) as client:
        session = client.begin()
        assert client.process.stdin is not None
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "ask c1 " + about(kind="think")}]}
        first = json.dumps({"jsonrpc": "2.0", "id": 90, "method": "session/prompt", "params": prompt}).encode() + b"\n"
        client.process.stdin.write(first + b'{"jsonrpc": "2.0", "id": 91, ')
        client.until(lambda message: "pending" in json.dumps(message))
        time.sleep(0.2)
        client.process.stdin.write(b'"method": "initialize", "params": {}}\n')
        client.until(lambda message: message.get("id") == 91)
        client.until(lambda message: "answer always" in json.dumps(message))


# The tape


class Taped:
    """A tape whose other end is in the hands of the test."""

    def __init__(self, **options: Any) -> None:
        self.read, pipe = os.pipe()
        told, self.tell = os.pipe()
        self.heard: list[str] = []
        self.tape = RecorderPipe(pipe, told, self.heard.append, **options)
        self.tape.start()
        self._frames = Unpacking()

    def frames(self, until: int) -> list[Frame]:
        """What comes out, until so many bytes of data have."""
        found: list[Frame] = []
        while sum(len(frame.data) for frame in found) < until:
            assert select.select([self.read], [], [], TIMEOUT)[0]
            found += self._frames.push(os.read(self.read, 2**20))
        return found

    def is_empty(self) -> bool:
        """Whether nothing is left to write. The tape notes that some time after the last byte was read."""
        return not self.tape._held

    def close(self) -> int:
        os.close(self.tell)
        missing = self.tape.close(TIMEOUT)
        os.close(self.read)
        return missing


def test_a_full_tape_leaves_out_whole_lines_and_counts_them() -> None:
    """Who speaks waits for room, then goes on; the record resumes with a whole line, behind a mark of the gap."""
    taped = Taped(room=2**20, patience=0.1)
    line = b"x" * 99_999 + b"\n"
    began = time.monotonic()
    for _ in range(30):
        taped.tape.put(FROM_AGENT, line)
    taped.tape.put(FROM_AGENT, b"torn")
    assert time.monotonic() - began >= 0.1, "the first that found no room waited"
    lost, kept = taped.tape.lost, taped.tape.lines
    assert lost + kept == 30 and lost > 10
    found = taped.frames(kept * len(line))
    eventually(taped.is_empty)
    taped.tape.put(FROM_AGENT, b" end\nwhole\n")
    found += taped.frames(len(b"aa" + b"whole\n") - 1)
    assert {frame.data for frame in found[:kept]} == {line}
    assert [(frame.kind, frame.data) for frame in found[kept:]] == [(GAP, FROM_AGENT), (FROM_AGENT, b"whole\n")]
    os.write(taped.tell, f"+{kept + 1}\n".encode())
    assert taped.close() == lost + 1


def test_where_nothing_may_be_lost_who_speaks_waits() -> None:
    """With no patience set, a full tape holds everybody up until there is room."""
    taped = Taped(room=2**20, patience=None)
    put: list[int] = []
    thread = threading.Thread(
        target=lambda: [put.append(taped.tape.put(FROM_CLIENT, b"x" * 99_999 + b"\n")) for _ in range(30)]
    )
    thread.start()
    eventually(lambda: len(put) >= 10)
    assert len(put) < 30
    assert len(taped.frames(30 * 100_000)) == 30
    thread.join()
    assert taped.tape.lost == 0
    os.write(taped.tell, b"+30\n")
    taped.tape.wait(30)
    os.write(taped.tell, b"-no room\n")
    with pytest.raises(Stopped):
        taped.tape.wait(31)
    taped.close()
    assert taped.heard[0] == "no room"


@given(st.lists(st.tuples(st.sampled_from([b"c", b"a"]), st.binary(max_size=50)), max_size=10), st.randoms())
def test_frames_come_out_as_they_went_in(given_: list[tuple[bytes, bytes]], rand: random.Random) -> None:
    """However the pipe portions them."""
    frames = [Frame(kind, float(number), data) for number, (kind, data) in enumerate(given_)]
    data = b"".join(map(pack, frames))
    cuts = sorted(rand.randint(0, len(data)) for _ in range(5))
    unpacking = Unpacking()
    found = [frame for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) for frame in unpacking.push(data[a:b])]
    assert found == frames


# The recorder


async def recorded(db: str, frames: list[Frame], names: Names | None = None) -> list[str]:
    """What a recorder tells while it is given some frames."""
    read, pipe = os.pipe()
    told: list[str] = []
    recorder = RecorderProcess(db, lambda: None, names or Names(["agent"], "s"), told.append)
    with os.fdopen(pipe, "wb", 0) as tape:
        running = asyncio.create_task(recorder.run(read))
        await asyncio.to_thread(lambda: [tape.write(pack(frame)) for frame in frames])
    async with asyncio.timeout(20):
        await running
    return told


def said(text: str, kind: bytes = FROM_AGENT) -> Frame:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    message = {"method": "session/update", "params": {"sessionId": "one", "update": update}}
    return Frame(kind, 1.7e9, json.dumps(message).encode() + b"\n")


@pytest.mark.anyio
async def test_a_gap_voids_the_line_that_it_tore(db: str) -> None:
    """What came of a line before the gap is not glued to what comes after it."""
    torn = Frame(FROM_AGENT, 1.7e9, b'{"method": "session/upd')
    told = await recorded(db, [said("a"), torn, Frame(GAP, 1.7e9, FROM_AGENT), said("b"), Frame(ENDED, 0, b"why")])
    async with sound_ledger(db) as ledger:
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]
    assert told[-1] == "+2"


@pytest.mark.anyio
async def test_a_line_beyond_all_limits_costs_no_memory_and_is_noted(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning and its size are kept, and the lines around it are whole."""
    monkeypatch.setattr(recording, "LINE_BYTES", 10_000)
    pieces = [Frame(FROM_AGENT, 1.7e9, b"z" * 4000) for _ in range(5)]
    await recorded(db, [said("a"), *pieces, Frame(FROM_AGENT, 1.7e9, b"\n"), said("b")])
    async with sound_ledger(db) as ledger:
        found = [event async for event in ledger.events("s")]
        (raw,) = [event for event in found if isinstance(event, ev.Raw)]
        assert raw.body["msg"] == {"bytes": 20_000, "beginning": "z" * 2048}
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]


@pytest.mark.anyio
async def test_a_ledger_that_may_not_be_written_is_tried_again(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only now, writable later: the problem is told once, and then that it is over."""
    await recorded(db, [])
    writable = iter([False, False])
    monkeypatch.setattr(sqlite_open, "may_write", lambda path: next(writable, True))
    monkeypatch.setattr(recording, "RETRY_DELAY_S", 0.01)
    told = await recorded(db, [said("a")])
    assert told[0].startswith("-") and told[0].endswith("cannot be written") and told[1:] == ["-", "+1", "+1"]


@pytest.mark.anyio
async def test_a_defect_of_the_decoder_costs_one_message_its_meaning(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: it is kept as it came, and the others are read as ever."""
    from callslip.formats.acp.decode import AcpDecoder

    feed = AcpDecoder.feed

    def broken(self: Any, message: Any) -> Any:
        if "bad" in json.dumps(message.body):
            raise ZeroDivisionError
        return feed(self, message)

    monkeypatch.setattr(AcpDecoder, "feed", broken)
    told = await recorded(db, [said("a"), said("bad"), said("b")])
    async with sound_ledger(db) as ledger:
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]
        found = [event async for event in ledger.events("s")]
        assert [type(event) for event in found[:3]] == [ev.MessageDelta, ev.Raw, ev.MessageDelta]
    assert told[-1] == "+3"


@pytest.mark.anyio
async def test_what_the_ledger_cannot_take_at_all_is_counted(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that fails every way is left out, the others are kept, and the count says so."""
    append = Ledger.append

    async def broken(self: Any, session: str, drafts: Any, **more: Any) -> Any:
        if any("poison" in repr(draft) for draft in drafts):
            raise ZeroDivisionError("poison")
        return await append(self, session, drafts, **more)

    monkeypatch.setattr(Ledger, "append", broken)
    told = await recorded(db, [said("a"), said("poison"), said("b")])
    async with sound_ledger(db) as ledger:
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["ab"]
    assert told[-1] == "+2" and any("refused" in line for line in told)


@pytest.mark.anyio
async def test_chatter_before_any_session_does_not_pile_up(db: str) -> None:
    """Beyond a limit it is written to a session of its own; the agent's session is still named after its id."""
    chatter = [Frame(FROM_AGENT, 1.7e9, b'"' + b"x" * 60_000 + b'"\n') for _ in range(40)]
    await recorded(db, [*chatter, said("a")], Names(["agent"]))
    async with sound_ledger(db) as ledger:
        names = [row.name for row in (await ledger.sessions()).items]
        assert len(names) == 2 and "agent-one" in names
        found = [event for name in names async for event in ledger.events(name)]
        assert len([event for event in found if isinstance(event, ev.Raw)]) == len(chatter)


@pytest.mark.anyio
async def test_many_short_lines_before_a_session_wait_for_it(db: str) -> None:
    """What counts is how much was said, not in how large a piece it came."""
    chatter = Frame(FROM_AGENT, 1.7e9, b'"starting"\n' * 2000)
    await recorded(db, [chatter, said("a")], Names(["agent"]))
    async with sound_ledger(db) as ledger:
        assert [row.name for row in (await ledger.sessions()).items] == ["agent-one"]


@pytest.mark.anyio
async def test_a_line_that_was_under_way_when_the_front_was_killed_is_kept(db: str) -> None:
    """As the text it is; it is no line of those that were counted."""
    told = await recorded(db, [said("a"), Frame(FROM_CLIENT, 1.7e9, b'{"method": "session/pro')])
    async with sound_ledger(db) as ledger:
        raws = [event.body["msg"] async for event in ledger.events("s") if isinstance(event, ev.Raw)]
    assert raws == ['{"method": "session/pro'] and told[-1] == "+1"


@pytest.mark.anyio
@pytest.mark.parametrize("failing", range(1, 9))
async def test_a_disk_that_fails_at_any_write_makes_nothing_come_twice(
    db: str, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Neither when messages are written together, nor when one is refused and they are written one by one."""
    append, writes = Ledger.append, 0

    async def broken(self: Any, session: str, drafts: Any, **more: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == failing:
            raise StoreError("the disk failed")
        if any(isinstance(draft.event, ev.MessageDelta) and "bad" in draft.event.text for draft in drafts):
            raise InvalidInputError("text", "is bad")
        return await append(self, session, drafts, **more)

    monkeypatch.setattr(Ledger, "append", broken)
    monkeypatch.setattr(recording, "RETRY_DELAY_S", 0.01)
    lines = b"".join(said(text).data for text in ("a", "bad", "b", "c"))
    told = await recorded(db, [Frame(FROM_AGENT, 1.7e9, lines)])
    async with sound_ledger(db) as ledger:
        found = [event async for event in ledger.events("s")]
    assert "".join(event.text for event in found if isinstance(event, ev.MessageDelta)) == "abc"
    assert len([event for event in found if isinstance(event, ev.Raw)]) == 1 and told[-1] == "+4"
