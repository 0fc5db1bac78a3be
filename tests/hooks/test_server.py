"""The socket of the hooks in a real server: answers, races with the terminal, kills, two servers, hostile clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.client.location import parse_location
from callslip.errors import StoreError
from callslip.hooks import server
from callslip.hooks.server import bind, is_served, serving_hooks
from callslip.hooks.transcripts import FollowedTranscripts
from callslip.ledger.event_log import EventLog
from callslip.model.entries import PermissionRequest, ToolCall
from callslip.model.events import ApprovalReleased
from callslip.model.records import ApprovalRecord
from callslip.settings import Settings
from tests.support.acp_process import with_ledger
from tests.support.cli_process import callslip_command
from tests.support.engines import POSTGRES, SQLITE, is_postgres
from tests.support.hooked_agents import Hooks, is_listening
from tests.support.real_agents import wait_until

BASH = {"tool_name": "Bash", "tool_input": {"command": "ls"}}


def claude(name: str, **fields: Any) -> dict[str, Any]:
    return {"session_id": "s1", "transcript_path": "", "cwd": "/w", "hook_event_name": name, **fields}


REQUEST = claude("PermissionRequest", **BASH)
on_every_engine = pytest.mark.parametrize(
    "engine", [SQLITE, pytest.param(POSTGRES, marks=pytest.mark.postgres)], scope="session"
)
pytestmark = pytest.mark.anyio


@pytest.fixture
def hooks(db: str, tmp_path: Path) -> Hooks:
    return Hooks(db, tmp_path / "home")


@pytest.fixture
def served(hooks: Hooks) -> Generator[subprocess.Popen[str]]:
    with hooks.served() as process:
        yield process


def finish(process: subprocess.Popen[bytes]) -> Any:
    """Return what the hook printed for the agent, as JSON; None for nothing."""
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    return json.loads(output) if output else None


def record(hooks: Hooks, message: Any, agent: str = "claude-code") -> None:
    assert finish(hooks.pass_on(agent, message)) is None


def ask(hooks: Hooks, message: Any = REQUEST, agent: str = "claude-code") -> subprocess.Popen[bytes]:
    """Start a hook that asks, and wait until its request is in the inbox."""
    before = {each.id for each in pending(hooks)}
    process = hooks.pass_on(agent, message, approvals=True)
    wait_until(lambda: {each.id for each in pending(hooks)} - before, "the request")
    return process


def pending(hooks: Hooks) -> list[ApprovalRecord]:
    if not is_postgres(hooks.db) and not Path(hooks.db.removeprefix("sqlite:///")).exists():
        return []
    return with_ledger(hooks.db, LocalLedger.approvals)


def answer(hooks: Hooks, verb: str, **options: Any) -> None:
    """Answer the newest request as a person does."""
    approval = pending(hooks)[-1].id

    async def work(ledger: LocalLedger) -> Any:
        return await getattr(ledger, verb)(approval, by="ann", **options)

    with_ledger(hooks.db, work)


def entries(hooks: Hooks, kind: type[Any], session: str = "claude-s1") -> list[Any]:
    async def work(ledger: LocalLedger) -> Any:
        return (await ledger.snapshot(session)).entries

    return [entry for entry in with_ledger(hooks.db, work) if isinstance(entry, kind)]


def request_states(hooks: Hooks) -> list[str]:
    return [entry.state for entry in entries(hooks, PermissionRequest)]


@on_every_engine
@pytest.mark.usefixtures("served")
def test_an_answer_from_the_inbox_reaches_each_agent(hooks: Hooks) -> None:
    """HK9: as the output that the agent reads; for Gemini CLI an approval is no output, as it cannot be told to run."""
    gemini = {"session_id": "g1", "hook_event_name": "BeforeTool", "tool_name": "replace", "tool_input": {"x": 1}}
    properties = {"tool": "bash", "callID": "c1", "args": {"command": "ls"}}
    started = {"session_id": "o1", "hook_event_name": "tool.execute.before", "properties": properties}
    permission = {**properties, "id": "p1", "permission": "bash", "patterns": ["ls"], "tool": {"callID": "c1"}}
    opencode = {"session_id": "o1", "hook_event_name": "permission.asked", "properties": permission}
    decision = {"hookEventName": "PermissionRequest"}
    allow = {"hookSpecificOutput": {**decision, "decision": {"behavior": "allow"}}}
    deny = {"hookSpecificOutput": {**decision, "decision": {"behavior": "deny", "message": "too late"}}}
    question = {"questions": [{"question": "Which?", "options": [{"label": "Red"}, {"label": "Blue"}]}]}
    ask_user = {"tool_name": "AskUserQuestion", "tool_input": question}
    answered = {"behavior": "allow", "updatedInput": {**question, "answers": {"Which?": "Blue"}}}
    blue = {"hookSpecificOutput": {**decision, "decision": answered}}
    cases: list[tuple[str, Any, Any, str, dict[str, Any], Any]] = [
        ("claude-code", claude("PreToolUse", **BASH, tool_use_id="c1"), REQUEST, "approve", {}, allow),
        ("claude-code", claude("PreToolUse", **BASH, tool_use_id="c2"), REQUEST, "deny", {"reason": "too late"}, deny),
        (
            "claude-code",
            claude("PreToolUse", **ask_user, tool_use_id="c3"),
            claude("PermissionRequest", **ask_user),
            "approve",
            {"option": "choice-2"},
            blue,
        ),
        ("codex", claude("PreToolUse", **BASH, tool_use_id="c1", model="m"), REQUEST, "approve", {}, allow),
        ("gemini", None, gemini, "approve", {}, None),
        ("gemini", None, gemini, "deny", {"reason": "no"}, {"decision": "deny", "reason": "no"}),
        ("opencode", started, opencode, "approve", {}, {"reply": "once"}),
    ]
    for agent, start, request, verb, options, expected in cases:
        if start is not None:
            record(hooks, start, agent)
        process = ask(hooks, request, agent)
        assert process.poll() is None
        answer(hooks, verb, **options)
        assert finish(process) == expected, agent
    first, second, third = entries(hooks, ToolCall)
    assert (first.status, second.status, second.reason) == ("running", "denied", "too late")
    assert third.status == "running"


@pytest.mark.usefixtures("served")
def test_each_request_waits_for_its_own_answer(hooks: Hooks) -> None:
    """HK7: any program can make another one for the same call. That replaces it; its approval is no answer to it."""
    call = {"tool": "bash", "callID": "c1", "args": {"command": "rm x"}}
    record(hooks, {"session_id": "o1", "hook_event_name": "tool.execute.before", "properties": call}, "opencode")
    first, second = (
        {"id": name, "permission": name, "patterns": [name], "tool": {"callID": "c1"}} for name in ("bash", "other")
    )
    real = ask(hooks, {"session_id": "o1", "hook_event_name": "permission.asked", "properties": first}, "opencode")
    false = ask(hooks, {"session_id": "o1", "hook_event_name": "permission.asked", "properties": second}, "opencode")
    assert finish(real) is None
    answer(hooks, "approve")
    assert finish(false) == {"reply": "once"}


@pytest.mark.usefixtures("served")
def test_an_agent_that_is_gone_leaves_no_request_behind(hooks: Hooks) -> None:
    """HK11: it was killed, so the output of its hook is not read. The hook ends, and the request is released."""
    hooks.wait_s = 3600
    record(hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
    process = ask(hooks)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert finish(process) is None
    wait_until(lambda: not pending(hooks), "the release")
    assert request_states(hooks) == ["released"]


class InProcess:
    """A server of hooks in this process, and what it reports."""

    def __init__(self, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hooks = hooks
        self.reports: list[str] = []
        monkeypatch.setenv("XDG_DATA_HOME", hooks.env["XDG_DATA_HOME"])

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[LocalLedger]:
        location = parse_location(self.hooks.db, "test")
        async with (
            await open_ledger(location.url, Settings(reaper_interval=3600)) as ledger,
            serving_hooks(ledger, location, self.reports.append),
        ):
            await self.until(lambda: is_listening(self.hooks.folder))
            yield ledger

    async def until(self, condition: Callable[[], object]) -> None:
        await asyncio.to_thread(wait_until, condition, "the server")

    async def ask(self) -> Any:
        """Let a call begin and ask; return what its hook printed."""
        await asyncio.to_thread(record, self.hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
        return await asyncio.to_thread(finish, self.hooks.pass_on("claude-code", REQUEST, approvals=True))


async def test_a_request_that_fails_is_left_to_the_agent(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """HK11: if the database fails meanwhile, no request stays in the inbox whose answer nothing waits for."""
    append, failures = EventLog.append, [StoreError("the disk is full")]

    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    async def fail_once(log: EventLog, session: str, events: Any, **options: Any) -> Any:
        if failures and isinstance(events[0], ApprovalReleased):
            raise failures.pop()
        return await append(log, session, events, **options)

    monkeypatch.setattr(server, "answer_by_rules", fail)
    monkeypatch.setattr(EventLog, "append", fail_once)
    server_of = InProcess(hooks, monkeypatch)
    async with server_of.serving() as ledger:
        assert await server_of.ask() is None
        while await ledger.approvals():
            await asyncio.sleep(0.01)
        entries = (await ledger.snapshot("claude-s1")).entries
    (request,) = [entry for entry in entries if isinstance(entry, PermissionRequest)]
    assert (request.state, not failures) == ("released", True) and "the disk is full" in request.reason


async def test_a_bug_in_a_reader_stops_no_hook(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """HK1: it is reported, and the server continues with its next round."""
    failures = [ValueError("a bug"), ValueError("a bug")]

    async def poll(_: FollowedTranscripts) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(FollowedTranscripts, "poll", poll)
    monkeypatch.setattr(server, "RETRY_S", 0.01)
    server_of = InProcess(hooks, monkeypatch)
    async with server_of.serving() as ledger:
        await asyncio.to_thread(record, hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
        await server_of.until(lambda: not hooks.spooled())
        await server_of.until(lambda: "recording of hooks works again" in server_of.reports)
        assert (await ledger.find_call("c1")).state == "running"
    assert server_of.reports[0] == "recording of hooks fails, and is tried again: ValueError: a bug"


def test_the_terminal_may_answer_first(hooks: Hooks, served: subprocess.Popen[str]) -> None:
    """HK11: the agent ends the hook, and the request is "Answered in terminal"; the report tells how it went on."""
    record(hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
    process = ask(hooks)
    process.kill()
    process.communicate()
    wait_until(lambda: not pending(hooks), "the release")
    (request,) = entries(hooks, PermissionRequest)
    assert request.state == "released" and request.reason.startswith("answered in the terminal")
    shown = subprocess.run(callslip_command("show", "claude-s1", "--db", hooks.db), env=hooks.env, capture_output=True)
    assert "answered in terminal" in shown.stdout.decode()
    record(hooks, claude("PostToolUse", **BASH, tool_use_id="c1", tool_response="a"))
    wait_until(lambda: entries(hooks, ToolCall)[0].status == "completed", "the end")
    assert served.poll() is None


@pytest.mark.usefixtures("served")
def test_both_answers_at_once_leave_one(hooks: Hooks) -> None:
    """HK11: the terminal and the inbox race: the request has one answer, and the hook prints that or nothing."""
    for number in range(6):
        record(hooks, claude("PreToolUse", **BASH, tool_use_id=f"c{number}"))
        process = ask(hooks)
        if number % 2:
            process.send_signal(signal.SIGKILL)
        try:
            answer(hooks, "approve")
        except Exception as error:
            assert "is not pending" in str(error) or "list index" in str(error), error
        output, _ = process.communicate(timeout=60)
        wait_until(lambda: not pending(hooks), "an answer")
        state = request_states(hooks)[number]
        assert state in ("granted", "released")
        assert not output or state == "granted"
        if not number % 2:
            assert output and state == "granted"


def test_no_answer_in_time_leaves_it_to_the_agent(hooks: Hooks) -> None:
    """HK4: the wait ends before the agent's own timeout, without output."""
    hooks.wait_s = 1
    with hooks.served():
        record(hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
        assert finish(hooks.pass_on("claude-code", REQUEST, approvals=True)) is None
    (request,) = entries(hooks, PermissionRequest)
    assert request.state == "released" and "no answer within 1 s" in request.reason


@on_every_engine
def test_a_killed_server_delays_no_agent_and_loses_nothing(hooks: Hooks) -> None:
    """HK1, HK4: the hook that waits ends without output, later messages are stored, and the next command has them."""
    with hooks.served() as process:
        record(hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
        waiting = ask(hooks)
        process.kill()
        process.wait()
        assert finish(waiting) is None
    for number in range(2, 6):
        record(hooks, claude("PreToolUse", **BASH, tool_use_id=f"c{number}"))
    assert finish(hooks.pass_on("claude-code", REQUEST, approvals=True)) is None
    assert len(hooks.spooled()) == 4
    command = callslip_command("show", "claude-s1", "--db", hooks.db)
    assert subprocess.run(command, env=hooks.env, capture_output=True).returncode == 0
    assert hooks.spooled() == []
    calls = [call.tool_call_id for call in entries(hooks, ToolCall)]
    assert calls == ["c1", "c2", "c3", "c4", "c5"]
    assert request_states(hooks) == ["released"]


@pytest.mark.chaos
def test_messages_under_kills_are_recorded_once(hooks: Hooks, scale: int) -> None:
    """HK1: servers that are killed while they import lose and repeat nothing."""
    count, kills = 20 * scale, scale
    for number in range(count):
        (hooks.folder / "spool" / f"{10**18 + number}-1-abcdef01.json").write_bytes(
            json.dumps(
                {"agent": "claude-code", "message": claude("PreToolUse", **BASH, tool_use_id=f"c{number}")}
            ).encode()
        )
    while limit := len(hooks.spooled()):
        limit = limit if kills else 1
        with hooks.served() as process:
            wait_until(lambda limit=limit: len(hooks.spooled()) < limit, "an import")
            if kills:
                process.kill()
                kills -= 1
    calls = sorted(call.tool_call_id for call in entries(hooks, ToolCall))
    assert calls == sorted(f"c{number}" for number in range(count))


def test_a_second_server_waits_for_the_first(hooks: Hooks) -> None:
    """HK12: one server has the socket of a ledger; when it is gone, the other takes over."""
    with hooks.served() as first, hooks.served("watch") as second:
        assert first.poll() is second.poll() is None and is_served(hooks.folder)
        record(hooks, claude("PreToolUse", **BASH, tool_use_id="c1"))
        waiting = ask(hooks)
        first.kill()
        first.wait()
        assert finish(waiting) is None
        wait_until(lambda: is_listening(hooks.folder), "the second server")
        record(hooks, claude("PreToolUse", **BASH, tool_use_id="c2"))
        waiting = ask(hooks)
        answer(hooks, "deny")
        assert finish(waiting)["hookSpecificOutput"]["decision"]["behavior"] == "deny"
    assert not is_served(hooks.folder)
    assert request_states(hooks) == ["released", "refused"]


@pytest.mark.usefixtures("served")
def test_the_socket_offers_nothing_but_to_ask(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """HK7: no line lists, answers or changes anything; garbage and silence hold nothing up."""
    for number in (1, 2):
        record(hooks, claude("PreToolUse", **BASH, tool_use_id=f"c{number}"))
    waiting = ask(hooks)
    (request,) = pending(hooks)
    lines = [
        {"approve": request.id},
        {"type": "approval.granted", "approval": request.id},
        {"agent": "claude-code", "message": {"type": "approval.granted", "approval": request.id}},
        {"agent": "claude-code", "message": claude("PostToolUse", **BASH, tool_use_id="c2")},
        {"agent": "claude-code", "message": claude("PermissionDenied", **BASH, tool_use_id="c2", reason="x")},
        {"agent": "other", "message": REQUEST},
        {"list": "approvals"},
        {"rule": {"action": "allow"}},
        {"ping": 1},
        [],
        7,
    ]
    monkeypatch.chdir(hooks.folder)
    silent = connect()
    for line in [*(json.dumps(line).encode() for line in lines), b"{", b"\xff" * 100, b"x" * (5 * 2**20)]:
        with connect() as client:
            try:
                client.sendall(line + b"\n")
                answer_bytes = client.recv(1000)
            except OSError:
                answer_bytes = b""
            assert answer_bytes == b"", line[:100]
    assert [each.id for each in pending(hooks)] == [request.id]
    second = ask(hooks)  # What was sent did not make the second call one that has ended.
    second.kill()
    second.communicate()
    wait_until(lambda: [each.id for each in pending(hooks)] == [request.id], "the release")
    assert os.stat(hooks.folder / "socket").st_mode & 0o777 == 0o600
    silent.close()
    answer(hooks, "approve")
    assert finish(waiting)["hookSpecificOutput"]["decision"] == {"behavior": "allow"}


def connect() -> socket.socket:
    """Connect to the socket in the working folder."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect("socket")
    return client


def test_a_socket_below_a_long_path_is_found_by_the_script(tmp_path: Path) -> None:
    """HK1: the server binds it without its path, as the script connects to it."""
    hooks = Hooks(str(tmp_path / "ledger.db"), tmp_path / ("home" * 40))
    with bind(hooks.folder) as listener:
        listener.listen()
        assert finish(hooks.pass_on("claude-code", claude("Stop"))) is None
        listener.settimeout(30)
        accepted, _ = listener.accept()
        assert accepted.recv(100) == b'{"ping":true}\n'
        accepted.close()


def test_what_is_no_socket_is_not_replaced(hooks: Hooks) -> None:
    """HK2: a file under the name of the socket is kept, and the problem is reported."""
    (hooks.folder / "socket").write_text("mine")
    process = subprocess.Popen(
        callslip_command("watch", "--db", hooks.db), env=hooks.env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert any("is not a socket" in line for line in process.stderr)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert (hooks.folder / "socket").read_text() == "mine"


def test_a_command_without_messages_opens_nothing(hooks: Hooks) -> None:
    """HK1: other commands look into one folder, and load the server's code only if a message waits."""
    with_ledger(hooks.db, LocalLedger.approvals)
    code = (
        "import sys; from callslip.cli import main\n"
        f"try: main(['ls', '--db', {hooks.db!r}])\n"
        "except SystemExit: pass\n"
        "assert 'callslip.hooks.server' not in sys.modules, 1"
    )
    assert subprocess.run([sys.executable, "-c", code], env=hooks.env, capture_output=True).returncode == 0
