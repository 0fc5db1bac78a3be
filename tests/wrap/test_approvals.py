"""`callslip wrap --approvals callslip` as a process: permission requests wait for an answer in the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from callslip.api import rules
from callslip.api.ledger import LocalLedger
from callslip.formats.acp.decode import AcpDecoder
from callslip.ledger.event_log import EventLog
from callslip.model import events as ev
from callslip.model.entries import PermissionRequest
from callslip.model.records import ApprovalRecord
from callslip.rules.policy import Policy
from callslip.settings import Settings
from callslip.wrap import held_requests
from callslip.wrap.approval_watch import acp_outcome
from callslip.wrap.frames import Kind, decode_answer, encode_count, encode_frame, encode_text
from callslip.wrap.held_requests import HeldRequest, HeldRequests
from callslip.wrap.io import LineWriter
from callslip.wrap.permission_filter import PermissionFilter
from callslip.wrap.recorder import RecorderProcess
from callslip.wrap.recorder_pipe import RecorderPipe
from callslip.wrap.session_names import SessionNames
from tests.support.acp_process import (
    PROGRAMS,
    Client,
    child_ids,
    is_alive,
    kill,
    read_calls,
    read_entries,
    read_log,
    text_of,
    wait_until,
    with_ledger,
    wrap_command,
)
from tests.support.acp_session import (
    OPTIONS,
    c2a,
    call,
    call_update,
    permission_answer,
    prompt,
    prompt_response,
    request_permission,
    rpc_request,
)
from tests.support.invariants import sound_ledger
from tests.support.paths import ROOT

EXAMPLE_CLIENT = ROOT / ".cache" / "acp" / "examples" / "client.py"
ASKER = [sys.executable, str(PROGRAMS / "acp_asker.py")]
SESSION = "acp_asker-one"
UNEXPECTED_VERDICTS = {"late", "illegal", "orphan", "duplicate"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a ledger that does not exist yet."""
    return str(tmp_path / "ledger.db")


def start_client(path: str, *options: str, sessions: tuple[str, ...] = ("one",)) -> Client:
    """Start a client of an agent whose permission requests are held, and wait until its recorder has the ledger open.

    A request that is not recorded in time goes to the client, and on a busy machine the recorder starts slowly.
    """
    client = Client([*wrap_command(path, "--approvals", "callslip", *options), *ASKER, *sessions])
    wait_until(Path(path).exists)
    return client


def start_turn(client: Client, text: str) -> str:
    """Open a session, send a prompt and return the session id."""
    session = client.open_session()
    send_prompt(client, session, text)
    return session


def send_prompt(client: Client, session: str, text: str) -> int:
    return client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])


def wait_pending(path: str, count: int = 1) -> list[ApprovalRecord]:
    """Wait until so many requests are pending, and return them."""

    async def read(ledger: LocalLedger) -> list[ApprovalRecord]:
        approvals = await ledger.approvals()
        return approvals if len(approvals) == count else []

    return wait_until(lambda: Path(path).exists() and with_ledger(path, read))


def list_pending(path: str) -> list[ApprovalRecord]:
    """Return the pending requests."""

    async def read(ledger: LocalLedger) -> list[ApprovalRecord]:
        return await ledger.approvals()

    return with_ledger(path, read)


def run_callslip(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another process."""
    command = [sys.executable, "-m", "callslip", words[0], "--db", path, *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def wait_for_text(client: Client, text: str) -> None:
    """Wait until the agent has sent a text."""
    client.until(lambda message: text in text_of(message))


def list_requests(path: str, session: str = SESSION) -> list[PermissionRequest]:
    return [entry for entry in read_entries(path, session) if isinstance(entry, PermissionRequest)]


def find_unexpected_events(path: str, session: str = SESSION) -> list[Any]:
    """Return the events with an unexpected verdict."""
    return [event for event in read_log(path, session) if event.verdict in UNEXPECTED_VERDICTS]


# Answers


@pytest.mark.parametrize(
    ("words", "option", "status", "state"),
    [
        (["approve"], "yes", "completed", "granted"),
        (["approve", "--option", "always"], "always", "completed", "granted"),
        (["deny", "--reason", "not today"], "no", "denied", "refused"),
    ],
)
def test_an_answer_from_another_terminal_goes_to_the_agent(
    path: str, words: list[str], option: str, status: str, state: str
) -> None:
    """The client receives no request. The agent receives its own option, and the log has one request and one answer."""
    with start_client(path) as client:
        start_turn(client, "c1=a")
        (request,) = wait_pending(path)
        assert request.expires_at > request.created_at and len(request.options) == 3
        assert run_callslip(path, words[0], request.id, "--by", "ann", *words[1:]).returncode == 0
        wait_for_text(client, f"[c1 {option}]")
        client.until(lambda message: "stopReason" in json.dumps(message))
        assert client.requests == [] and client.end() == (0, b"")
    assert read_calls(path, SESSION)["c1"].status == status
    (entry,) = list_requests(path)
    assert (entry.state, entry.by, entry.response_option) == (state, "ann", option)
    answers = [event for event in read_log(path, SESSION) if isinstance(event, ev.ApprovalAnswer)]
    assert len(answers) == 1 and "request_permission" not in repr(
        [event for event in read_log(path, SESSION) if type(event) is ev.Raw]
    )
    assert {type(event) for event in find_unexpected_events(path)} <= {ev.CallFailed}, (
        "only the agent's report of a denied call is unexpected"
    )


def test_a_client_that_cannot_answer_requests_receives_none(path: str, tmp_path: Path) -> None:
    """The example client refuses every request, and an agent with the protocol's library accepts the answers."""
    agent = [sys.executable, str(PROGRAMS / "acp_sdk_asker.py")]
    command = [sys.executable, str(EXAMPLE_CLIENT), *wrap_command(path, "--approvals", "callslip"), *agent]
    with subprocess.Popen(
        command, bufsize=0, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        for verb, text in (("approve", b"selected go"), ("deny", b"selected stop")):
            client.stdin.write(b"hello\n")
            assert run_callslip(path, verb, wait_pending(path)[0].id).returncode == 0
            output = b""
            while text not in output:
                assert select.select([client.stdout], [], [], 30)[0], output
                output += os.read(client.stdout.fileno(), 1000)
        client.stdin.close()
        client.wait(30)
    assert [entry.state for entry in list_requests(path, "acp_sdk_asker-sdk")] == ["granted", "refused"]


def test_the_agent_receives_cancelled_for_a_denial_without_an_option(path: str) -> None:
    """No option of another meaning is chosen."""
    with start_client(path) as client:
        start_turn(client, "= c1=a")
        assert run_callslip(path, "deny", wait_pending(path)[0].id).returncode == 0
        wait_for_text(client, "[c1 cancelled]")
        client.end()
    assert read_calls(path, SESSION)["c1"].status == "denied"


def test_arguments_cannot_be_edited(path: str) -> None:
    """Exit 2 with a reason, and the request stays pending."""
    with start_client(path) as client:
        start_turn(client, "c1=a")
        (request,) = wait_pending(path)
        result = run_callslip(path, "approve", request.id, "--input", '{"n": 2}')
        assert result.returncode == 2 and "cannot be edited" in result.stderr
        assert [row.id for row in list_pending(path)] == [request.id]
        assert run_callslip(path, "approve", request.id).returncode == 0
        wait_for_text(client, "[c1 yes]")


def test_several_requests_wait_and_other_messages_pass(path: str) -> None:
    """Requests of two sessions are answered in another order. Client and agent exchange messages until then."""
    with start_client(path, sessions=("one", "two")) as client:
        first = client.open_session()
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        send_prompt(client, first, "c1=a c2=b")
        send_prompt(client, second, "c1=c")
        ids = {(row.session, row.description): row.id for row in wait_pending(path, 3)}
        assert client.ask("ping")["result"]["pid"] > 0
        for session, description, verb, text in (
            (SESSION, "Do c2", "approve", "[c2 yes]"),
            ("acp_asker-two", "Do c1", "deny", "[c1 no]"),
            (SESSION, "Do c1", "approve", "[c1 yes]"),
        ):
            assert run_callslip(path, verb, ids[session, description]).returncode == 0
            wait_for_text(client, text)
        assert client.requests == [] and client.end() == (0, b"")
    assert [call.status for call in read_calls(path, SESSION).values()] == ["completed", "completed"]
    assert [call.status for call in read_calls(path, "acp_asker-two").values()] == ["denied"]
    assert not find_unexpected_events(path)


def test_a_policy_decides_first(path: str, tmp_path: Path) -> None:
    """A request that a rule answers does not wait. One that a rule asks for, or no rule matches, is held."""
    rules = '[[rule]]\naction = "allow"\ntitle = "Do c1"\n[[rule]]\naction = "ask"\ntitle = "Do c2"\n'
    (tmp_path / "policy.toml").write_text(rules)
    with start_client(path, "--policy", str(tmp_path / "policy.toml")) as client:
        start_turn(client, "c1=a c2=b c3=c")
        wait_for_text(client, "[c1 yes]")
        assert sorted(row.description for row in wait_pending(path, 2)) == ["Do c2", "Do c3"]
        assert client.requests == []


def test_saved_rules_answer_held_requests(path: str, tmp_path: Path) -> None:
    """RUL6, RUL1: the agent receives the option of a rule, and one that the policy asks for waits for a person."""
    (tmp_path / "policy.toml").write_text('[[rule]]\naction = "ask"\ntitle = "Do c2"\n')

    async def add(ledger: LocalLedger) -> str:
        rule = rules.NewRule(action="allow", filters={"title": ["Do c1", "Do c2"]}, scope="everywhere")
        return (await rules.save_rule(ledger.log, rule)).id

    rule = with_ledger(path, add)
    with start_client(path, "--policy", str(tmp_path / "policy.toml")) as client:
        start_turn(client, "c1=a c2=b")
        wait_for_text(client, "[c1 yes]")
        (waiting,) = wait_pending(path)
        assert waiting.description == "Do c2" and client.requests == []
        assert run_callslip(path, "deny", waiting.id).returncode == 0
        wait_for_text(client, "[c2 no]")
        client.end()
    assert next((entry.state, entry.by) for entry in list_requests(path)) == ("granted", f"rule {rule}")


def test_approvals_work_with_fail_closed(path: str) -> None:
    """Request and answer are recorded before the agent receives the answer."""
    with start_client(path, "--fail-closed") as client:
        start_turn(client, "c1=a c2=b")
        for request in wait_pending(path, 2):
            assert run_callslip(path, "approve", request.id).returncode == 0
        wait_for_text(client, "[c2 yes]")
        assert client.end() == (0, b"")
    assert [call.status for call in read_calls(path, SESSION).values()] == ["completed", "completed"]


def test_except_for_the_held_requests_no_byte_is_changed(path: str, tmp_path: Path) -> None:
    """The client receives the agent's output without the requests, the agent the client's and the answers."""
    tee = [sys.executable, str(PROGRAMS / "tee.py")]
    inner = [*tee, str(tmp_path / "agent"), *ASKER, "one"]
    outer = [*tee, str(tmp_path / "client"), *wrap_command(path, "--approvals", "callslip"), *inner]
    with Client(outer) as client:
        start_turn(client, "c1=a c2=b")
        for request in wait_pending(path, 2):
            run_callslip(path, "approve", request.id)
        client.until(lambda message: "stopReason" in json.dumps(message))
        assert client.end()[0] == 0
    to_agent, from_agent, sent, received = (
        (tmp_path / name).read_bytes().splitlines() for name in ("agent/in", "agent/out", "client/in", "client/out")
    )
    assert [line for line in from_agent if b"request_permission" not in line] == received
    assert [line for line in to_agent if b"outcome" not in line] == sent
    assert len(from_agent) == len(received) + 2 and len(to_agent) == len(sent) + 2


# Requests that end without an answer


def test_a_client_that_cancels_a_turn_cancels_its_requests(path: str) -> None:
    """Only the requests of that session are cancelled, and the log names the client."""
    with start_client(path, sessions=("one", "two")) as client:
        first = start_turn(client, "c1=a c2=b")
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        send_prompt(client, second, "c1=c")
        wait_pending(path, 3)
        client.send(method="session/cancel", params={"sessionId": first})
        wait_for_text(client, "[c2 cancelled]")
        client.until(lambda message: message.get("result", {}).get("stopReason") == "cancelled")
        (other,) = list_pending(path)
        assert other.session == "acp_asker-two"
        assert run_callslip(path, "approve", other.id).returncode == 0
        wait_for_text(client, "[c1 yes]")
        assert client.end() == (0, b"")
    assert [call.status for call in read_calls(path, SESSION).values()] == ["cancelled", "cancelled"]
    assert [(entry.state, entry.by) for entry in list_requests(path)] == [("withdrawn", "client")] * 2


def test_an_agent_that_is_killed_leaves_no_pending_request(path: str) -> None:
    """The request is moot and the call lost. A later answer is a conflict."""
    with start_client(path) as client:
        start_turn(client, "c1=a")
        (request,) = wait_pending(path)
        kill(client.ask("ping")["result"]["pid"])
        assert client.wait() == (137, b"")
    assert list_pending(path) == []
    assert read_calls(path, SESSION)["c1"].status == "lost" and [entry.state for entry in list_requests(path)] == [
        "moot"
    ]
    result = run_callslip(path, "approve", request.id)
    assert result.returncode == 1 and "it was no longer needed" in result.stderr


def test_a_client_that_disconnects_leaves_no_pending_request(path: str) -> None:
    """The agent cannot receive an answer any more."""
    with start_client(path) as client:
        start_turn(client, "c1=a")
        wait_pending(path)
        assert client.end() == (0, b"")
    assert list_pending(path) == [] and read_calls(path, SESSION)["c1"].status in ("cancelled", "lost")


def test_requests_of_an_agent_that_outlives_its_client_are_withdrawn(path: str) -> None:
    """They are withdrawn as soon as the client has disconnected."""
    agent = "import sys, time; sys.stdout.write(sys.argv[1] + '\\n'); sys.stdout.flush(); time.sleep(60)"
    line = json.dumps(request_permission("a")["msg"])
    command = [
        *wrap_command(path, "--approvals", "callslip", "--session", "s"),
        sys.executable,
        "-c",
        agent,
        line,
    ]
    with Client(command) as client:
        wait_pending(path)
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert wait_until(lambda: not list_pending(path))
        assert client.process.poll() is None
        client.process.terminate()
        client.process.wait(30)
    (entry,) = list_requests(path, "s")
    assert (entry.state, entry.reason) == ("withdrawn", "the client disconnected")


def test_when_wrap_is_killed_no_request_stays_pending(path: str) -> None:
    """Its recorder ends the request."""
    with start_client(path) as client:
        start_turn(client, "c1=a")
        wait_pending(path)
        others = child_ids(client.process.pid)
        kill(client.process.pid)
        client.process.wait()
        for process in others:
            wait_until(lambda process=process: not is_alive(process))
    assert list_pending(path) == [] and read_calls(path, SESSION)["c1"].status == "lost"


EXPIRE_SOON = """
from callslip.api.ledger import open_ledger
from callslip.settings import Settings
from callslip.wrap import recorder
settings = Settings(approval_expiry=0.3, reaper_interval=0.05)
recorder.open_ledger = lambda url, _: open_ledger(url, settings)
"""
STORE_CLOCK_IS_BEHIND = """
import time
from types import SimpleNamespace
from callslip.store import sqlite, sqlite_rows
read_clock = time.time
sqlite.time = sqlite_rows.time = SimpleNamespace(time=lambda: read_clock() - 7200)
"""
SHORT_TIMEOUT = "from callslip.wrap import held_requests; held_requests.RECORD_TIMEOUT_S = 0.5"


def start_with_settings(path: str, code: str) -> Client:
    """Start a client like `start_client` does, after running some code in the process of wrap."""
    options = ["wrap", "--db", path, "--approvals", "callslip", "--"]
    program = f"{code}\nfrom callslip.cli import main\nmain()"
    return Client([sys.executable, "-c", program, *options, *ASKER, "one"])


@pytest.mark.parametrize("code", [EXPIRE_SOON, EXPIRE_SOON + STORE_CLOCK_IS_BEHIND], ids=["same", "behind"])
def test_a_request_without_an_answer_in_time_is_denied(path: str, code: str) -> None:
    """HOST2: held requests expire by the clock of the store. The agent receives its own option that rejects."""
    with start_with_settings(path, code) as client:
        start_turn(client, "c1=a")
        wait_for_text(client, "[c1 no]")
        assert client.requests == [] and client.end() == (0, b"")
    (entry,) = list_requests(path)
    assert (entry.state, entry.by, entry.reason) == ("refused", "expiry", "no answer in time")
    assert read_calls(path, SESSION)["c1"].status == "denied"


def test_with_approvals_by_the_client_nothing_is_held(path: str) -> None:
    """The default: the client receives the request, which does not expire."""
    with Client([*wrap_command(path, "--approvals", "client"), *ASKER, "one"]) as client:
        start_turn(client, "c1=a")
        received = client.until(lambda message: message.get("method") == "session/request_permission")
        (request,) = wait_pending(path)
        assert request.expires_at == 0
        client.send(id=received["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        wait_for_text(client, "[c1 no]")
        assert client.end() == (0, b"")


# When recording fails


def test_without_a_ledger_requests_go_to_the_client(path: str) -> None:
    """The file is not a database: stderr reports that requests go to the client."""
    Path(path).write_text("something else entirely, and long enough to be sure of it" * 10)
    with start_client(path) as client:
        start_turn(client, "c1=a")
        received = client.until(lambda message: message.get("method") == "session/request_permission")
        client.send(id=received["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        wait_for_text(client, "[c1 yes]")
        status, stderr = client.end()
    assert status == 0
    assert b"recording fails" in stderr and b"permission requests go to the client" in stderr


def test_when_the_recorder_dies_held_requests_go_to_the_client(path: str) -> None:
    """The client receives the request and the agent its answer. Later requests go to the client at once."""
    with start_client(path) as client:
        session = start_turn(client, "c1=a")
        wait_pending(path)
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in child_ids(client.process.pid) if child != agent]
        kill(recorder)
        for call_id, request_id in (("c1", "a"), ("c2", "b")):
            received = client.until(lambda message: message.get("method") == "session/request_permission")
            assert received["id"] == request_id and received["params"]["toolCall"]["toolCallId"] == call_id
            client.send(id=request_id, result={"outcome": {"outcome": "selected", "optionId": "no"}})
            wait_for_text(client, f"[{call_id} no]")
            if call_id == "c1":
                send_prompt(client, session, "c2=b")
        assert client.end()[0] == 0
    assert list_pending(path) == []


def test_while_the_ledger_fails_held_requests_go_to_the_client(path: str) -> None:
    """The client's answer is recorded once recording works again. Later requests are held."""
    limit_file_size = ["sh", "-c", 'ulimit -S -f 1000 && exec "$@"', "sh"]
    with Client([*limit_file_size, *wrap_command(path, "--approvals", "callslip"), *ASKER, "one"]) as client:
        session = start_turn(client, "c1=a")
        wait_pending(path)
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in child_ids(client.process.pid) if child != agent]
        for number in range(30):
            client.send(method="noise", params={"x": "x" * 20_000, "number": number})
        received = client.until(lambda message: message.get("method") == "session/request_permission")
        assert received["id"] == "a"
        subprocess.run(["prlimit", "--fsize=unlimited", "--pid", str(recorder)], check=True)
        client.send(id="a", result={"outcome": {"outcome": "selected", "optionId": "no"}})
        wait_for_text(client, "[c1 no]")
        assert client.process.stderr is not None
        assert wait_until(lambda: b"recording works again" in client.process.stderr.readline())  # type: ignore[union-attr]
        send_prompt(client, session, "c2=b")
        (request,) = wait_until(lambda: [row for row in list_pending(path) if row.description == "Do c2"])
        assert run_callslip(path, "approve", request.id, "--by", "ann").returncode == 0
        wait_for_text(client, "[c2 yes]")
        assert client.end() == (0, b"")
    assert [call.status for call in read_calls(path, SESSION).values()] == ["denied", "completed"]
    assert [(entry.state, entry.by) for entry in list_requests(path)] == [
        ("superseded", ""),
        ("refused", "client"),
        ("granted", "ann"),
    ]


def test_when_the_recorder_hangs_a_request_goes_to_the_client(path: str) -> None:
    """A recorder that hangs reports no problem, so there is a timeout."""
    with start_with_settings(path, SHORT_TIMEOUT) as client:
        session = client.open_session()
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in child_ids(client.process.pid) if child != agent]
        os.kill(recorder, signal.SIGSTOP)
        send_prompt(client, session, "c1=a")
        client.until(lambda message: message.get("method") == "session/request_permission")
        os.kill(recorder, signal.SIGCONT)
        client.send(id="a", result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        wait_for_text(client, "[c1 yes]")
        assert client.end() == (0, b"")
    assert [(entry.state, entry.by) for entry in list_requests(path)] == [("superseded", ""), ("granted", "client")]


# The permission filter and the recorder


def encode_line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


@pytest.mark.parametrize(
    ("message", "key"),
    [
        (request_permission(7)["msg"], b"7"),
        (request_permission('"\n')["msg"], b'"\\"\\n"'),
        (request_permission(None)["msg"], None),
        (request_permission(True)["msg"], None),
        (request_permission([1])["msg"], None),
        (rpc_request("session/request_permission", 1, toolCall={"toolCallId": "c"}, options=[]), None),
        (rpc_request("session/request_permission", 1, toolCall={"toolCallId": "c"}, options=[{"name": "x"}]), None),
        (rpc_request("session/request_permission", 1, toolCall="c", options=OPTIONS), None),
        (rpc_request("fs/read_text_file", 1, path="request_permission"), None),
    ],
)
def test_only_requests_that_can_be_answered_are_held(message: Any, key: bytes | None) -> None:
    """A request with an unusual id, without options or without a call goes to the client."""
    parts = list(PermissionFilter(Policy(()), holds=True).split(encode_line(message)))
    assert parts == [(encode_line(message), None if key is None else HeldRequest(key))]
    assert list(PermissionFilter(Policy(())).split(encode_line(message))) == [(encode_line(message), None)]


@pytest.mark.parametrize(
    ("event", "option"),
    [
        (ev.ApprovalGranted(option="odd"), "odd"),
        (ev.ApprovalGranted(option="gone"), "yes"),
        (ev.ApprovalGranted(), "yes"),
        (ev.ApprovalGranted(by="agent"), None),
        (ev.ApprovalRefused(by="expiry"), "no"),
        (ev.ApprovalWithdrawn(option="yes"), None),
        (ev.CallCancelled(), None),
        (ev.CallCompleted(), None),
    ],
)
def test_the_agent_receives_one_of_its_own_options(event: Any, option: str | None) -> None:
    """The chosen option, or one with that meaning. Without an answer it receives `cancelled`."""
    outcome = acp_outcome([None, {"kind": "allow_once"}, {"optionId": 5, "kind": "allow_once"}, *OPTIONS], event)
    assert outcome == ({"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"})


def test_with_a_full_buffer_requests_go_to_the_client() -> None:
    """A request that cannot be recorded is not held and not counted as lost: it passes like any other line."""
    reader, writer = os.pipe()
    replies, replies_writer = os.pipe()
    pipe = RecorderPipe(writer, replies, lambda _: None, max_bytes=2**20, timeout_s=0.01)
    jobs: list[Callable[[], None]] = []
    held = HeldRequests(pipe, LineWriter(-1), LineWriter(-1), jobs.append)
    assert held.hold(HeldRequest(b"1"), b"request\n") and not held.hold(HeldRequest(b"1"), b"again\n")
    for _ in range(30):
        pipe.send(Kind.AGENT_BYTES, b"x" * 99_999 + b"\n")
    lost = pipe.lost_lines
    assert lost and not held.hold(HeldRequest(b"2"), b"request\n") and pipe.lost_lines == lost
    for fd in (reader, writer, replies, replies_writer):
        os.close(fd)


def test_many_requests_share_one_timer_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the recorder hangs, all of them go to the client in time."""
    monkeypatch.setattr(held_requests, "RECORD_TIMEOUT_S", 0.1)
    (reader, writer), (replies, replies_writer), (output, client) = os.pipe(), os.pipe(), os.pipe()
    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
    pipe = RecorderPipe(writer, replies, lambda _: None)
    held = HeldRequests(pipe, LineWriter(-1), LineWriter(client), jobs.put)
    before = threading.active_count()
    lines = [b"%d\n" % number for number in range(200)]
    assert all(held.hold(HeldRequest(line.strip()), line) for line in lines)
    assert threading.active_count() <= before + 1
    passed = b""
    while passed != b"".join(lines):
        jobs.get(timeout=20)()
        passed += os.read(output, 10_000) if select.select([output], [], [], 0)[0] else b""
    for fd in (reader, writer, replies, replies_writer, output, client):
        os.close(fd)


Reply = tuple[Kind, bytes]


class RecorderHarness:
    """A recorder whose frames come from the test."""

    def __init__(self, db: str, **settings: Any) -> None:
        reader, writer = os.pipe()
        self.replies: list[Reply] = []
        self._pipe = os.fdopen(writer, "wb", 0)
        recorder = RecorderProcess(
            db,
            lambda: None,
            SessionNames(["agent"], "s"),
            lambda kind, payload: self.replies.append((kind, payload)),
            settings=Settings(reaper_interval=0.02, **settings),
        )
        self._running = asyncio.create_task(recorder.run(reader))

    def send_message(self, kind: Kind, row: Any) -> None:
        self.send(kind, encode_line(row["msg"]))

    def send(self, kind: Kind, payload: bytes) -> None:
        self._pipe.write(encode_frame(kind, payload))

    async def until(self, is_wanted: Callable[[Reply], bool]) -> Reply:
        """Wait for a reply and return it."""
        async with asyncio.timeout(20):
            while not (wanted := [reply for reply in self.replies if is_wanted(reply)]):
                await asyncio.sleep(0.005)
        return wanted[0]

    async def until_recorded(self, lines: int) -> None:
        await self.until(lambda reply: reply == (Kind.LINES_RECORDED, encode_count(lines)))

    async def wait_for_outcome(self, request_id: bytes = b'"a"') -> Any:
        """Wait for the answer to a request, and return its outcome."""
        _, payload = await self.until(lambda reply: reply[0] is Kind.ANSWER and reply[1].startswith(request_id))
        return json.loads(decode_answer(payload)[1])["result"]["outcome"]

    async def wait_for_release(self) -> bytes:
        """Wait until a request is released, and return its id."""
        return (await self.until(lambda reply: reply[0] is Kind.RELEASE))[1]

    async def end(self) -> None:
        self.send(Kind.AGENT_ENDED, encode_text("why"))
        self._pipe.close()
        async with asyncio.timeout(20):
            await self._running


CANCELLED = {"outcome": "cancelled"}


@pytest.mark.anyio
async def test_the_same_request_again_in_one_turn_goes_to_the_client(db: str) -> None:
    """For the ledger it repeats an answered request, so it cannot be answered there."""
    recorder = RecorderHarness(db, approval_expiry=0.0, reaper_grace=0.02)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    assert (await recorder.wait_for_outcome())["optionId"] == "no"
    recorder.send_message(Kind.ANSWER_SENT, permission_answer("no", "a"))
    recorder.send_message(Kind.REQUEST_HELD, request_permission("b"))
    assert await recorder.wait_for_release() == b'"b"'
    recorder.send(Kind.REQUEST_RELEASED, b'"b"')
    recorder.send_message(Kind.CLIENT_BYTES, permission_answer("yes", "b"))
    await recorder.end()
    async with sound_ledger(db) as ledger:
        assert await ledger.approvals() == []


@pytest.mark.anyio
async def test_a_request_that_cannot_be_decoded_goes_to_the_client(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the decoder does not block the agent."""
    feed = AcpDecoder.feed

    def feed_or_raise(self: Any, message: Any) -> Any:
        if "request_permission" in json.dumps(message.body):
            raise ZeroDivisionError
        return feed(self, message)

    monkeypatch.setattr(AcpDecoder, "feed", feed_or_raise)
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    assert await recorder.wait_for_release() == b'"a"'
    recorder.send(Kind.REQUEST_RELEASED, b'"a"')
    await recorder.end()
    async with sound_ledger(db) as ledger:
        assert await ledger.approvals() == []


@pytest.mark.anyio
async def test_an_agent_that_starts_without_an_answer_receives_no_permission(db: str) -> None:
    """The log has a grant by the agent; the agent receives `cancelled`."""
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    recorder.send_message(Kind.AGENT_BYTES, call_update("in_progress"))
    assert await recorder.wait_for_outcome() == CANCELLED
    await recorder.end()


@pytest.mark.anyio
async def test_a_second_request_for_the_same_call_gives_both_their_answer(db: str) -> None:
    """The second supersedes the first in the ledger; the agent still waits for both."""
    recorder = RecorderHarness(db, approval_expiry=0.0, reaper_grace=0.02)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.AGENT_BYTES, call())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    recorder.send_message(Kind.REQUEST_HELD, request_permission("b", title="More"))
    for request_id in (b'"a"', b'"b"'):
        assert (await recorder.wait_for_outcome(request_id))["optionId"] == "no"
    await recorder.end()


@pytest.mark.anyio
async def test_a_grant_is_for_one_request_only(db: str) -> None:
    """A user grants the second request about a call; the first one is not granted."""
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.AGENT_BYTES, call())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    recorder.send_message(Kind.REQUEST_HELD, request_permission("b", title="More"))
    await recorder.until_recorded(4)
    async with sound_ledger(db) as ledger:
        (request,) = await ledger.approvals()
        await ledger.approve(request.id, by="ann")
    assert await recorder.wait_for_outcome(b'"a"') == CANCELLED
    assert await recorder.wait_for_outcome(b'"b"') == {"outcome": "selected", "optionId": "yes"}
    await recorder.end()


@pytest.mark.anyio
async def test_a_request_that_crosses_with_its_cancellation_is_cancelled_too(db: str) -> None:
    """The agent sent it before it read that its turn is cancelled. In the next turn it may send another."""
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    cancel = c2a({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}})
    recorder.send_message(Kind.CLIENT_BYTES, cancel)
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    assert await recorder.wait_for_outcome() == CANCELLED
    answer = c2a({"jsonrpc": "2.0", "id": "a", "result": {"outcome": CANCELLED}})
    recorder.send_message(Kind.ANSWER_SENT, answer)
    recorder.send_message(Kind.AGENT_BYTES, prompt_response(reason="cancelled"))
    recorder.send_message(Kind.CLIENT_BYTES, prompt(2))
    recorder.send_message(Kind.REQUEST_HELD, request_permission("b"))
    await recorder.until_recorded(7)
    async with sound_ledger(db) as ledger:
        (request,) = await ledger.approvals()
        entries = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, PermissionRequest)]
    assert [(entry.state, entry.by) for entry in entries] == [("withdrawn", "client"), ("pending", "")]
    assert request.id == entries[1].approval
    assert len([kind for kind, _ in recorder.replies if kind in (Kind.ANSWER, Kind.RELEASE)]) == 1
    await recorder.end()


@pytest.mark.anyio
async def test_a_request_whose_watch_fails_goes_to_the_client(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error does not block the agent."""
    monkeypatch.setattr(EventLog, "batches", lambda *_: 1 / 0)
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    assert await recorder.wait_for_release() == b'"a"'
    await recorder.end()


@pytest.mark.anyio
async def test_an_agent_may_withdraw_its_request(db: str) -> None:
    """It names the id of the request, which is answered with `cancelled`."""
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    cancel = {"msg": {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "a"}}}
    recorder.send_message(Kind.AGENT_BYTES, cancel)
    assert await recorder.wait_for_outcome() == CANCELLED
    await recorder.end()
    async with sound_ledger(db) as ledger:
        (event,) = [event async for event in ledger.events("s") if isinstance(event, ev.ApprovalAnswer)]
        assert (event.by, event.reason) == ("agent", "the agent withdrew its request")


@pytest.mark.anyio
@pytest.mark.parametrize("reason", ["end_turn", "cancelled"])
async def test_a_request_ends_with_its_turn(db: str, reason: str) -> None:
    """A cancelled turn ends it immediately, any other after the grace period of its calls."""
    recorder = RecorderHarness(db, turn_grace=0.05, reaper_grace=0.05)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    recorder.send_message(Kind.AGENT_BYTES, prompt_response(reason=reason))
    assert await recorder.wait_for_outcome() == CANCELLED
    await recorder.end()


@pytest.mark.anyio
async def test_a_request_of_a_deleted_session_goes_to_the_client(db: str) -> None:
    """The ledger has no request to answer any more."""
    recorder = RecorderHarness(db)
    recorder.send_message(Kind.CLIENT_BYTES, prompt())
    recorder.send_message(Kind.REQUEST_HELD, request_permission("a"))
    await recorder.until_recorded(2)
    async with sound_ledger(db) as ledger:
        await ledger.delete("s")
        assert await recorder.wait_for_release() == b'"a"'
    await recorder.end()
