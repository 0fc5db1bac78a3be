"""The demo: a real project, a live view fed by patches alone, and approvals with or without a user."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from rich.console import Console

import callslip
from callslip.api.ledger import LocalLedger
from callslip.cli import exit_status
from callslip.cli.terminal.patched_session import PatchedSession
from callslip.demo import browser, session
from callslip.demo.runner import run_command
from callslip.demo.screen import Screen, is_final
from callslip.demo.story import Story
from callslip.demo.workers import Workers
from callslip.errors import InvalidInputError
from callslip.model import events as ev
from callslip.model.entries import Append, Message, Put, Set
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support import scenarios

TIMEOUT_S = 60.0
DEPLOY = "sh deploy.sh staging"
HEALTH = "sh deploy.sh health"


def callslip_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callslip", *arguments]


def run_demo(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the demo in a pipe."""
    defaults: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S}
    return subprocess.run(callslip_command("demo", "--terminal", *arguments), **(defaults | options))


def read_calls(db: str) -> list[Any]:
    """Return all calls, oldest first."""

    async def read() -> list[Any]:
        async with callslip.open(db) as ledger:
            return sorted((await ledger.calls()).items, key=lambda record: record.entry)

    return asyncio.run(read())


def wait_until(condition: Callable[[], Any], description: str) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError(f"never happened: {description}")


# In a pipe


STORY_CALLS = [
    ("ls", "completed"),
    ("ls", "completed"),
    ("python3 -m tests.test_parser", "failed"),
    ("python3 -m tabnanny -v app", "completed"),
    ("Look up msgspec", "completed"),
    ("Edit app/parser.py", "completed"),
    ("python3 -m tests.test_parser", "completed"),
    ("sh deploy.sh log", "completed"),
    (HEALTH, "expired"),
    ("Build the package", "lost"),
    (DEPLOY, "completed"),
]
"""The calls of the story with their end states, in order."""


def test_demo_runs_on_a_terminal(tmp_path: Path) -> None:
    """All calls end as planned, identical calls keep separate ids, and the live view equals the stored session."""
    db = str(tmp_path / "kept.db")
    result = run_demo("--fast", "--db", db)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout and "x1b" not in result.stdout
    records = read_calls(db)
    assert sorted((record.title, record.state) for record in records) == sorted(STORY_CALLS)
    assert len({record.id for record in records}) == len(STORY_CALLS)
    assert all(record.id in result.stdout for record in records)
    assert "FAIL parse('2h') == 7200, got 720" in result.stdout and "│ 3 tests passed" in result.stdout
    assert "'app/parser.py': Clean bill of health." in result.stdout
    assert "The test is fixed and the app is deployed to staging." in result.stdout
    assert (
        "(no terminal to prompt on: answered by the demo)" in result.stdout and "approved by the demo" in result.stdout
    )
    assert re.search(r"^Live view and stored session: same ", result.stdout, re.MULTILINE)


def test_printed_commands_show_the_session(tmp_path: Path) -> None:
    """Each command that the demo prints at its end can be run as printed."""
    result = run_demo("--fast", env={**os.environ, "TMPDIR": str(tmp_path)})
    printed = re.findall(r"callslip ((?:show|ls) .*)$", result.stdout, re.MULTILINE)
    assert len(printed) == 3
    for line in printed:
        shown = subprocess.run(callslip_command(*shlex.split(line)), capture_output=True, text=True)
        assert shown.returncode == 0 and DEPLOY in shown.stdout, shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == [Path(shlex.split(printed[0])[-1]).parent.name]


def read_last_plan(db: str) -> list[str]:
    """Return the states of the steps of the last plan."""

    async def read() -> list[str]:
        async with callslip.open(db) as ledger:
            name = (await ledger.sessions()).items[0].name
            plans = [event async for event in ledger.events(name) if isinstance(event, ev.PlanUpdated)]
            return [step["status"] for step in plans[-1].entries]

    return asyncio.run(read())


def test_denied_deploy_does_not_run(tmp_path: Path) -> None:
    """The call ends as denied, the plan's last step is cancelled, and the agent continues."""
    db = str(tmp_path / "kept.db")
    result = run_demo("--fast", "--answer", "no", "--db", db)
    assert result.returncode == 0 and "Deploy cancelled." in result.stdout and "(--answer no:" in result.stdout
    record = read_calls(db)[-1]
    assert (record.title, record.state, record.started_at) == (DEPLOY, "denied", 0) and record.reason
    assert read_last_plan(db) == ["completed"] * 4 + ["cancelled"]


def test_demo_does_not_use_the_users_ledger(tmp_path: Path, home: Path) -> None:
    """CALLSLIP_DB is ignored; only --db selects a file outside of the demo's own folder."""
    user_db = tmp_path / "own.db"
    environment = {**os.environ, "CALLSLIP_DB": str(user_db), "TMPDIR": str(tmp_path)}
    assert run_demo("--fast", env=environment).returncode == 0
    assert not user_db.exists() and not list(home.iterdir())


def test_closed_pipe_leaves_no_open_call(tmp_path: Path) -> None:
    """`callslip demo | head -1` ends all calls."""
    db = str(tmp_path / "kept.db")
    with subprocess.Popen(
        callslip_command("demo", "--terminal", "--fast", "--db", db), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == exit_status.PIPE_CLOSED
    assert all(record.state in TERMINAL_STATES for record in read_calls(db))


# Stopped early

# The demo with a health check and an approval that last until it is stopped.
SLOW_DEMO = """
import asyncio, sys
from callslip.demo import session, story
if sys.argv[1] == "running":
    story.HEALTH_TIMEOUT_S = 1000.0
session._answer_alone = lambda *_: asyncio.sleep(1000)
from callslip.cli import main
main(["demo", "--terminal", "--fast", *sys.argv[2:]])
"""


@pytest.mark.parametrize(("title", "state"), [(HEALTH, "running"), (DEPLOY, "awaiting_approval")])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_demo_leaves_no_open_call(tmp_path: Path, title: str, state: str, number: int, status: int) -> None:
    """Ctrl-C or SIGTERM while a command runs or waits for approval: every call ends with a reason."""
    db = str(tmp_path / "kept.db")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = [sys.executable, "-c", SLOW_DEMO, state, "--db", db]
    with subprocess.Popen(
        program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        wait_until(lambda: has_call(db, title, state), f"{title} is {state}")
        process.send_signal(number)
        assert process.stderr
        stderr = process.stderr.read()
    assert process.returncode == status and "Traceback" not in stderr and db in stderr
    records = read_calls(db)
    assert [(record.state, bool(record.reason)) for record in records if record.title == title] == [("cancelled", True)]
    assert all(record.state in TERMINAL_STATES for record in records)
    wait_until(lambda: not find_processes(tmp_path), "the end of all processes of the demo")


def has_call(db: str, title: str, state: str) -> bool:
    """Return whether a call is in a state, without opening a ledger, which would end lost calls."""
    if not Path(db).exists():
        return False
    connection = apsw.Connection(db, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute("SELECT 1 FROM calls WHERE title = ? AND state = ?", (title, state))
        return bool(rows.fetchall())
    except apsw.Error:
        return False
    finally:
        connection.close()


def find_processes(folder: Path) -> list[str]:
    """Return the processes whose working directory is in a folder, also in a deleted one."""
    matches: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cwd"):
        try:
            path = os.readlink(process)
        except OSError:
            continue
        if path.startswith(str(folder)):
            matches.append(f"{process} {path}")
    return matches


# On a terminal


class Terminal:
    """The demo on a pseudo-terminal: its output, and keys for it."""

    def __init__(self, *arguments: str) -> None:
        self.output = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "50", "USER": "ada"})
            os.execv(sys.executable, callslip_command("demo", "--terminal", *arguments))

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.plain_text():
            assert time.monotonic() < deadline and self._read(1.0) is not None, (
                f"not shown: {text}\n{self.plain_text()}"
            )

    def _read(self, timeout: float) -> str | None:
        if not select.select([self._fd], [], [], timeout)[0]:
            return ""
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return None
        self.output += data.decode("utf-8", "replace")
        return self.output if data else None

    def plain_text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def close(self) -> int:
        while self._read(TIMEOUT_S):
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def has_cursor(self) -> bool:
        return self.output.rindex("\x1b[?25h") > self.output.rindex("\x1b[?25l")


QUESTION = f"Run {DEPLOY}? [y/n]"


@pytest.mark.parametrize(
    ("key", "state", "message"), [("y", "completed", "is deployed to staging."), ("n", "denied", "Deploy cancelled.")]
)
def test_user_answers_by_key(tmp_path: Path, key: str, state: str, message: str) -> None:
    """The live view shows the question; y and n answer it, and other keys are ignored."""
    db = str(tmp_path / "kept.db")
    terminal = Terminal("--fast", "--db", db)
    terminal.wait_for(QUESTION)
    assert re.search(r"expires in \d+ s", terminal.plain_text())
    terminal.press("xq \r" + key)
    terminal.wait_for("Live view and stored session: same")
    assert terminal.close() == 0
    assert message in terminal.plain_text() and "by ada" in terminal.plain_text(), terminal.plain_text()
    assert read_calls(db)[-1].state == state
    assert terminal.has_cursor()


def test_another_terminal_can_answer(tmp_path: Path) -> None:
    """The first answer counts, also for the terminal that shows the question."""
    db = str(tmp_path / "kept.db")
    terminal = Terminal("--fast", "--db", db)
    terminal.wait_for(QUESTION)
    result = subprocess.run(
        callslip_command("approve", "@last", "--by", "Bob", "--db", db), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    terminal.wait_for("Live view and stored session: same")
    assert terminal.close() == 0 and "approved by Bob" in terminal.plain_text()


def test_ctrl_c_at_the_approval_prompt_cancels_the_call(tmp_path: Path) -> None:
    """The terminal is restored, the call is cancelled, and the exit status is 130."""
    db = str(tmp_path / "kept.db")
    terminal = Terminal("--fast", "--db", db)
    terminal.wait_for(QUESTION)
    terminal.press("\x03")
    terminal.wait_for("interrupted")
    assert terminal.close() == exit_status.INTERRUPTED
    assert read_calls(db)[-1].state == "cancelled"
    assert terminal.has_cursor()


def test_expired_approval_cancels_the_deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer the call is denied, and the plan's last step does not stay in progress."""
    monkeypatch.setattr(session, "APPROVAL_EXPIRY_S", 0.2)
    monkeypatch.setattr(session, "_answer_alone", lambda *_: asyncio.sleep(1000))
    db = str(tmp_path / "x.db")
    with open(os.devnull, "w") as output:
        summary = asyncio.run(session.play(db, Console(file=output, width=100), fast=True, answer="ask"))
    assert summary.is_same and summary.calls[-1].state == "denied" and summary.calls[-1].reason == "no answer in time"
    assert read_last_plan(db) == ["completed"] * 4 + ["cancelled"]


# The parts


@pytest.mark.anyio
@pytest.mark.parametrize("name", scenarios.NAMES)
async def test_patches_alone_build_the_snapshot(db: str, name: str) -> None:
    """A view fed with patches, in another ledger than the writer's, equals the snapshot."""
    view = PatchedSession()
    async with (
        callslip.open(db, scenarios.NO_REAPER) as writer,
        callslip.open(db, scenarios.NO_REAPER) as reader,
        asyncio.timeout(TIMEOUT_S),
    ):

        async def watch() -> None:
            async for seq, patches in reader.log.patches(name):
                view.apply(seq, patches)

        watching = asyncio.create_task(watch())
        for draft in scenarios.load_drafts(name):
            await writer.log.append(name, [draft], source="test")
        snapshot = await writer.snapshot(name)
        await view.wait_until(lambda view: view.seq >= snapshot.seq)
        watching.cancel()
        assert view.equals(snapshot)
        assert view.equals((await reader.log.state_at(name)).snapshot())


def test_missing_patch_is_an_error() -> None:
    """A patch whose offset does not match is not applied."""
    view = PatchedSession()
    view.apply(1, [Put(Message(id=1, role="assistant", content="ab🌿"))])
    view.apply(2, [Append(1, "content", 4, "c"), Set(1, {"streaming": True}), Set(0, {"title": "t"})])
    assert view.entries[1]["content"] == "ab🌿c" and view.info == {"title": "t"}
    view.apply(3, [Set(1, {"streaming": None})])
    assert "streaming" not in view.entries[1]
    with pytest.raises(AssertionError, match="missing"):
        view.apply(4, [Append(1, "content", 3, "d")])


def test_screen_escapes_control_characters(tmp_path: Path) -> None:
    """Output of a tool cannot move the cursor of the terminal."""
    with open(tmp_path / "out", "w+") as out:
        view = PatchedSession()
        screen = Screen(view, Console(file=out, width=100))
        view.apply(1, [Put(Message(id=1, role="assistant", content="\x1b[2Jgone\u202e"))])
        assert is_final(view.entries[1])
        screen.draw()
        screen.draw()
        out.seek(0)
        assert out.read().count("\\x1b[2Jgone\\u202e") == 1


@pytest.mark.anyio
async def test_cancelled_command_ends_its_children(db: str, tmp_path: Path) -> None:
    """No process that it started is left."""
    async with callslip.open(db) as ledger, asyncio.timeout(TIMEOUT_S):
        running = asyncio.create_task(
            run_command(ledger.session("s"), "sleep 777 & echo $!; echo $$; sleep 777", tmp_path)
        )
        while not (pids := await read_pids(ledger)):
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.02)
        assert (await ledger.calls()).items[0].state == "cancelled"


async def read_pids(ledger: LocalLedger) -> list[int]:
    """Return the two pids that the command prints, or [] before it has."""
    try:
        entries = (await ledger.snapshot("s")).entries
    except LookupError:
        return []
    lines = entries[0].output_text.split() if entries else []
    return [int(line) for line in lines] if len(lines) == 2 else []


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.anyio
async def test_edited_command_is_run(db: str, tmp_path: Path) -> None:
    """The demo runs the command as it was approved."""
    async with callslip.open(db) as ledger, asyncio.timeout(TIMEOUT_S):
        running = asyncio.create_task(run_command(ledger.session("s"), "echo original", tmp_path, approval=True))
        while not (pending := await ledger.approvals()):
            await asyncio.sleep(0.02)
        await ledger.approve(pending[0].id, by="ada", input={"command": "echo edited"})
        assert (await running).output == "edited\n"


@pytest.mark.anyio
async def test_error_ends_the_turn(db: str, tmp_path: Path) -> None:
    """A command that cannot be started fails its call, and the turn ends with an error."""
    async with callslip.open(db) as ledger, Workers(db) as workers:
        demo_session = ledger.session("s")
        with pytest.raises(InvalidInputError):
            async with demo_session.turn("x"):
                await Story(demo_session, tmp_path / "missing", workers, 0.0).play()
        assert all(record.state in TERMINAL_STATES for record in (await ledger.calls()).items)
        events = [event async for event in ledger.events("s")]
        assert isinstance(events[-1], ev.TurnEnded) and events[-1].reason == "error"


# On a page


class PageServer:
    """The demo as a server in its own process, and the requests of a browser."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        options = ["demo", "--json", "--fast", "--no-browser", "--port", "0", *arguments]
        environment = {**os.environ, "TMPDIR": str(folder)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(callslip_command(*options), env=environment, **pipes)
        assert self.process.stdout
        self.info = json.loads(self.process.stdout.readline())
        self.session: str = self.info["session"]

    def request(self, path: str, body: Any = None, token: str | None = None) -> Any:
        headers = {"authorization": f"Bearer {self.info['token'] if token is None else token}"}
        data = None if body is None else json.dumps(body).encode()
        headers |= {} if data is None else {"content-type": "application/json"}
        request = urllib.request.Request(self.info["url"] + path, data, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)

    def error_status(self, path: str, body: Any, token: str | None = None) -> int:
        """Send a request that must fail, and return its status."""
        with pytest.raises(urllib.error.HTTPError) as error:
            self.request(path, body, token)
        with error.value:
            return error.value.code

    def entries(self, kind: str = "") -> list[Any]:
        entries = self.request(f"/v1/sessions/{self.session}?format=entries&limit=1000")["entries"]
        return [entry for entry in entries if kind in ("", entry["type"])]

    def wait_for_approval(self) -> str:
        pending = wait_until(lambda: self.request("/v1/approvals?state=pending")["approvals"], "a pending approval")
        return pending[0]["approval"]

    def answer(self, decision: str) -> None:
        self.request(f"/v1/approvals/{self.wait_for_approval()}", {"decision": decision})

    def prompt(self, text: str) -> list[Any]:
        """Send a prompt, and return the calls and messages after it when the turn has ended."""
        turn = self.request(f"/v1/sessions/{self.session}/prompt", {"text": text})["turn"]
        if text.startswith("$"):
            self.answer("approve")
        self.wait_for_turn(turn)
        entries = [entry for entry in self.entries() if entry["turn"] == turn]
        return [entry for entry in entries if entry["type"] in ("tool_call", "message")][1:]

    def wait_for_turn(self, turn: str = "t1") -> None:
        def is_over() -> bool:
            info = self.request(f"/v1/sessions/{self.session}?limit=1")["info"]
            return info.get("lastTurn") == turn and not info.get("turn")

        wait_until(is_over, f"the end of turn {turn}")

    def stop(self, number: int = signal.SIGINT) -> str:
        self.process.send_signal(number)
        stderr = self.process.communicate(timeout=TIMEOUT_S)[1]
        assert "Traceback" not in stderr, stderr
        return stderr


def test_demo_runs_on_the_page(tmp_path: Path) -> None:
    """It has identical and parallel calls, a failure, a blob, a diff, colors, every end state, an approval, a plan."""
    page = PageServer(tmp_path)
    page.answer("approve")
    page.wait_for_turn()
    calls = page.entries("tool_call")
    assert sorted((call["title"], call["status"]) for call in calls) == sorted(STORY_CALLS)
    assert len({call["callId"] for call in calls}) == len(STORY_CALLS)
    assert any(call.get("truncated") and call["blob"]["size"] > 100_000 for call in calls)
    assert any(call.get("content", [{}])[0].get("type") == "diff" for call in calls)
    assert any("\x1b[32m✓" in str(call.get("output")) for call in calls)
    assert page.entries("thought") and page.entries("plan")[-1]["entries"][-1]["status"] == "completed"
    assert page.request(f"/v1/sessions/{page.session}?limit=1")["info"]["availableCommands"]
    sessions = page.request("/v1/sessions")["sessions"]
    assert sorted(row["title"] for row in sessions) == ["Demo agent", "Fault lab"]
    page.stop()


def test_page_answers_prompts(tmp_path: Path) -> None:
    """It answers sample questions, any command after approval, and /tour, and has a clear message for other prompts."""
    page = PageServer(tmp_path)
    page.answer("deny")
    page.wait_for_turn()
    assert page.entries("tool_call")[-1]["status"] == "denied"
    assert page.entries("plan")[-1]["entries"][-1] == {"content": "Deploy", "priority": "medium", "status": "cancelled"}
    assert page.entries("message")[-1]["content"].startswith("Deploy cancelled.")
    first, call, last = page.prompt("What's the weather in Paris?")
    assert first["content"] == "I'll check the weather."
    assert (call["toolName"], call["rawInput"], call["output"]["celsius"]) == ("get_weather", {"city": "Paris"}, 20)
    assert "The weather in Paris is 20 °C" in last["content"]
    _, one, other, last = page.prompt("What time is it in Tokyo and what's the weather there?")
    assert {one["toolName"], other["toolName"]} == {"get_time", "get_weather"}
    assert "In Tokyo it is" in last["content"] and "weather in Tokyo" in last["content"]
    call, last = page.prompt("$ pwd; exit 3")
    assert call["status"] == "failed" and call["exitStatus"] == 3 and str(tmp_path) in call["error"]
    assert "exit status 3" in last["content"]
    (last,) = page.prompt("Write a poem")
    assert "No model is configured" in last["content"] and "callslip demo --model" in last["content"]
    turn = page.request(f"/v1/sessions/{page.session}/prompt", {"text": "/tour"})["turn"]
    page.answer("approve")
    page.wait_for_turn(turn)
    replayed = [call for call in page.entries("tool_call") if call["turn"] == turn]
    assert sorted((call["title"], call["status"]) for call in replayed) == sorted(STORY_CALLS)
    page.stop()


def test_stopped_page_leaves_no_files_and_no_processes(tmp_path: Path, home: Path) -> None:
    """Ctrl-C during an approval: both folders and all processes are gone; only the token of the demo is left."""
    page = PageServer(tmp_path)
    page.wait_for_approval()
    assert page.request("/demo/workers", {"session": page.session})["call"].startswith("exec_")
    page.stop()
    assert page.process.returncode == exit_status.INTERRUPTED
    assert not list(tmp_path.iterdir()) and not find_processes(tmp_path)
    assert [path.name for path in home.rglob("*") if path.is_file()] == ["demo-token"]


def test_keep_option_stores_the_session_of_the_page(tmp_path: Path) -> None:
    """With `--keep FILE` the session is stored there, and every call has ended."""
    kept = tmp_path / "kept.db"
    page = PageServer(tmp_path, "--keep", str(kept))
    page.wait_for_approval()
    stderr = page.stop(signal.SIGTERM)
    assert page.process.returncode == exit_status.TERMINATED and str(kept) in stderr
    records = read_calls(str(kept))
    assert sorted(record.title for record in records) == sorted(title for title, _ in STORY_CALLS)
    assert all(record.state in TERMINAL_STATES for record in records)


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    """A second demo fails if its --port is in use."""
    page = PageServer(tmp_path)
    port = page.info["url"].rpartition(":")[2]
    other = subprocess.run(callslip_command("demo", "--port", port), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert other.returncode == exit_status.FAILED and f"port {port}" in other.stderr
    page.stop()


def test_routes_of_the_demo_need_the_token(tmp_path: Path) -> None:
    """Starting and killing workers needs the same token as all other routes."""
    page = PageServer(tmp_path)
    for path in ("/demo/workers", "/demo/workers/exec_000000000000/kill"):
        assert page.error_status(path, {"session": page.session}, token="another-token-than-ours") == 401
    assert page.error_status("/demo/workers/exec_000000000000/kill", {}) == 404
    call = page.request("/demo/workers", {"session": page.session})["call"]
    assert page.request(f"/demo/workers/{call}/kill", {})["pid"]
    assert page.request(f"/v1/calls/{call}?wait=10")["state"] == "lost"
    page.stop()


@pytest.mark.parametrize(
    ("environment", "is_available"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"DISPLAY": ":0", "SSH_CONNECTION": "1"}, False)],
)
def test_browser_needs_a_local_display(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_available: bool
) -> None:
    """No browser is opened without a display or over SSH."""
    for name in (*browser.SSH_VARIABLES, *browser.DISPLAY_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("true"))
    assert browser.is_available() == is_available


def test_token_is_not_on_the_command_line_of_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser opens a private file that redirects to the page."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    browser.open_page("http://127.0.0.1:1/s/demo?token=secret&x", tmp_path)
    wait_until(lambda: opened, "a browser was opened")
    assert "secret" not in opened[0] and "token=secret&amp;x" in (tmp_path / "open.html").read_text()
    assert (tmp_path / "open.html").stat().st_mode & 0o077 == 0
