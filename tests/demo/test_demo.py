"""The demo: real commands, shown from the ledger's patches alone, answered by a person or without one."""

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

import pytest
from rich.console import Console

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import exit_status
from callslip.cli.terminal.patched_session import PatchedSession
from callslip.demo import browser, session
from callslip.demo.agent import furnish
from callslip.demo.runner import run as run_command
from callslip.demo.screen import Screen, settled
from callslip.demo.script import Script
from callslip.errors import InvalidInputError
from callslip.model import events as ev
from callslip.model.entries import Append, Message, Put, Set
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support import scenarios

LONG = 30.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callslip", *arguments]


def demo(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 60}
    return subprocess.run(command("demo", "--terminal", *arguments), **(given | more))


def look(db: str, read: Callable[[LocalLedger], Any]) -> Any:
    async def go() -> Any:
        async with await open_ledger(db) as ledger:
            return await read(ledger)

    return asyncio.run(go())


def calls(db: str) -> list[Any]:
    """All calls, oldest first."""

    async def read(ledger: LocalLedger) -> list[Any]:
        return sorted((await ledger.calls()).items, key=lambda row: row.entry)

    return look(db, read)


def until(true: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if answer := true():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what}")


# In a pipe


def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    """Two equal calls stay two, one fails, one asks, and the live view is the view after a refresh. (C3, C9)"""
    db = str(tmp_path / "kept.db")
    done = demo("--fast", "--db", db)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    rows = calls(db)
    assert [row.state for row in rows] == ["completed", "completed", "failed", "completed", "completed"]
    assert rows[0].title == rows[1].title and rows[0].id != rows[1].id
    assert all(row.id in done.stdout for row in rows)
    assert "Your notes have 41 words. The drafts are gone." in done.stdout
    assert "nobody is at a terminal" in done.stdout and "granted by the demo script" in done.stdout
    assert re.search(r"^live view == after refresh: equal ", done.stdout, re.MULTILINE)


def test_the_ways_to_look_again_lead_there(tmp_path: Path) -> None:
    """Each command that the demo prints at its end can be run as it stands."""
    done = demo("--fast", env={**os.environ, "TMPDIR": str(tmp_path)})
    printed = re.findall(r"callslip ((?:show|ls) .*)$", done.stdout, re.MULTILINE)
    assert len(printed) == 3
    for line in printed:
        again = subprocess.run(command(*shlex.split(line)), capture_output=True, text=True)
        assert again.returncode == 0 and "rm -r drafts" in again.stdout, again.stderr
    assert [path.name for path in tmp_path.iterdir()] == [Path(shlex.split(printed[0])[-1]).parent.name]


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    """Denied, the command does not run, and the agent goes on. (C5)"""
    db = str(tmp_path / "kept.db")
    done = demo("--fast", "--answer", "no", "--db", db)
    assert done.returncode == 0 and "The drafts stay, as you wished." in done.stdout
    row = calls(db)[-1]
    assert (row.state, row.reason, row.started_at) == ("denied", "the person said no", 0)


def test_the_demo_leaves_your_own_ledger_alone(tmp_path: Path, home: Path) -> None:
    """CALLSLIP_DB does not count here: only --db makes it write somewhere else than in its own folder."""
    own = tmp_path / "own.db"
    environment = {**os.environ, "CALLSLIP_DB": str(own), "TMPDIR": str(tmp_path)}
    assert demo("--fast", env=environment).returncode == 0
    assert not own.exists() and not list(home.iterdir())


def test_a_demo_whose_reader_goes_away_leaves_nothing_open(tmp_path: Path) -> None:
    """`callslip demo | head -1`"""
    db = str(tmp_path / "kept.db")
    with subprocess.Popen(
        command("demo", "--terminal", "--fast", "--db", db), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == exit_status.PIPE_CLOSED
    assert all(row.state in TERMINAL_STATES for row in calls(db))


# Ended early


@pytest.mark.parametrize("moment", ["running", "awaiting_approval"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ended_early_it_leaves_no_call_open(tmp_path: Path, moment: str, number: int, status: int) -> None:
    """Ctrl-C or a kill, while a command runs or a question is open: every call ends with a reason. (C5)"""
    db = str(tmp_path / "kept.db")
    arguments = ["--db", db] if moment == "running" else ["--db", db, "--fast"]
    program = (
        [sys.executable, "-c", PATIENT, *arguments]
        if moment != "running"
        else command("demo", "--terminal", *arguments)
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        until(lambda: is_at(db, moment), f"a call that is {moment}")
        process.send_signal(number)
        assert process.stderr
        said = process.stderr.read()
    assert process.returncode == status and "Traceback" not in said and db in said
    rows = calls(db)
    assert rows[-1].state == "cancelled" and rows[-1].reason
    assert all(row.state in TERMINAL_STATES for row in rows)
    until(lambda: not survivors(tmp_path), "the end of all that it started")


# The demo with an answer that never comes.
PATIENT = """
import asyncio, sys
from callslip.demo import browser, stage
from callslip.demo.acting import furnish
stage._by_script = lambda *_: asyncio.sleep(1000)
from callslip.cli import main
main(["demo", "--terminal", *sys.argv[1:]])
"""


def is_at(db: str, state: str) -> bool:
    """Whether the streamed command, or the one that asks, is in a state. Looks without opening a ledger."""
    import apsw

    if not Path(db).exists():
        return False
    connection = apsw.Connection(db, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        sql = "SELECT count(*) FROM calls WHERE state = ? AND (title LIKE 'for %' OR title LIKE 'rm %')"
        return connection.execute(sql, (state,)).fetchall()[0][0] > 0  # pyright: ignore
    except apsw.Error:
        return False
    finally:
        connection.close()


def survivors(folder: Path) -> list[str]:
    """Processes that still work in the demo's own folder, or in what was it."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cwd"):
        try:
            place = os.readlink(process)
        except OSError:
            continue
        if place.startswith(str(folder)):
            found.append(f"{process} {place}")
    return found


# On a terminal


class Terminal:
    """The demo on a terminal: what it shows, and keys for it."""

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "50", "USER": "ada"})
            os.execv(sys.executable, command("demo", "--terminal", *arguments))

    def until(self, text: str) -> None:
        end = time.monotonic() + LONG
        while text not in self.plain():
            assert time.monotonic() < end and self._read(1.0) is not None, f"never shown: {text}\n{self.plain()}"

    def _read(self, wait: float) -> str | None:
        if not select.select([self._end], [], [], wait)[0]:
            return ""
        try:
            data = os.read(self._end, 65536)
        except OSError:
            return None
        self.shown += data.decode("utf-8", "replace")
        return self.shown if data else None

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.shown)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def close(self) -> int:
        while self._read(LONG):
            pass
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize(("key", "state", "said"), [("y", "completed", "are gone"), ("n", "denied", "stay")])
def test_a_person_is_asked(tmp_path: Path, key: str, state: str, said: str) -> None:
    """On a terminal the question stands in the live view; other keys mean nothing, y and n are the answer."""
    db = str(tmp_path / "kept.db")
    terminal = Terminal("--fast", "--db", db)
    terminal.until("May it run rm -r drafts?")
    assert "awaiting_approval" in terminal.plain()
    terminal.press("xq \r" + key)
    terminal.until("live view == after refresh: equal")
    assert terminal.close() == 0
    assert f"The drafts {said}" in terminal.plain(), terminal.plain()
    assert "by ada" in terminal.plain()
    assert calls(db)[-1].state == state
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l"), "the cursor is back"


def test_the_question_can_be_answered_from_elsewhere(tmp_path: Path) -> None:
    """Another terminal approves while this one asks: the first answer counts here too. (S2.7)"""
    db = str(tmp_path / "kept.db")
    terminal = Terminal("--fast", "--db", db)
    terminal.until("May it run rm -r drafts?")
    done = subprocess.run(command("approve", "@last", "--by", "Bob", "--db", db), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    terminal.until("live view == after refresh: equal")
    assert terminal.close() == 0 and "granted by Bob" in terminal.plain()


def test_ctrl_c_while_asking(tmp_path: Path) -> None:
    """The terminal is as it was, the call is cancelled, the status is 130. (C5)"""
    db = str(tmp_path / "kept.db")
    terminal = Terminal("--fast", "--db", db)
    terminal.until("May it run rm -r drafts?")
    terminal.press("\x03")
    terminal.until("interrupted")
    assert terminal.close() == exit_status.INTERRUPTED
    assert calls(db)[-1].state == "cancelled"
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_no_answer_is_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody answers expires, and that refuses the call. (C5)"""
    monkeypatch.setattr(session, "EXPIRY", 0.2)
    monkeypatch.setattr(session, "_by_script", lambda *_: asyncio.sleep(1000))
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, width=100)
        shown = asyncio.run(session.perform(f"sqlite:///{tmp_path / 'x.db'}", console, fast=True, answer="ask"))
    assert shown.equal and shown.calls[-1].state == "denied" and shown.calls[-1].reason == "no answer in time"


# The parts


@pytest.mark.anyio
@pytest.mark.parametrize("name", scenarios.NAMES)
async def test_the_view_lives_by_patches_alone(db: str, name: str) -> None:
    """Fed with nothing but patches, in another ledger than the writer's, it is the snapshot. (C9, S2.2)"""
    view = PatchedSession()
    async with await open_ledger(db, scenarios.QUIET) as writer, await open_ledger(db, scenarios.QUIET) as reader:

        async def watch() -> None:
            async for seq, patches in reader.log.patches(name):
                view.apply(seq, patches)

        watching = asyncio.create_task(watch())
        for draft in scenarios.drafts(name):
            await writer.log.append(name, [draft], source="test")
        snapshot = await writer.snapshot(name)
        async with asyncio.timeout(LONG):
            await view.until(lambda view: view.seq >= snapshot.seq)
        watching.cancel()
        assert view.same_as(snapshot)
        assert view.same_as((await reader.log.state_at(name)).snapshot())


def test_the_view_notices_a_missing_patch() -> None:
    """An offset that does not fit is not papered over."""
    view = PatchedSession()
    view.apply(1, [Put(Message(id=1, role="assistant", content="ab🌿"))])
    view.apply(2, [Append(1, "content", 4, "c"), Set(1, {"streaming": True}), Set(0, {"title": "t"})])
    assert view.entries[1]["content"] == "ab🌿c" and view.info == {"title": "t"}
    view.apply(3, [Set(1, {"streaming": None})])
    assert "streaming" not in view.entries[1]
    with pytest.raises(AssertionError, match="missed"):
        view.apply(4, [Append(1, "content", 3, "d")])


def test_the_screen_shows_hostile_text_as_text(tmp_path: Path) -> None:
    """What a tool prints cannot move the cursor of whoever watches. (C11)"""
    with open(tmp_path / "out", "w+") as out:
        view = PatchedSession()
        screen = Screen(view, Console(file=out, width=100))
        view.apply(1, [Put(Message(id=1, role="assistant", content="\x1b[2Jgone\u202e"))])
        assert settled(view.entries[1])
        screen.draw()
        screen.draw()
        out.seek(0)
        assert out.read().count("\\x1b[2Jgone\\u202e") == 1


@pytest.mark.anyio
async def test_a_cancelled_command_takes_its_children_along(db: str, tmp_path: Path) -> None:
    """Nothing that it started is left running."""
    async with await open_ledger(db) as ledger:
        running = asyncio.create_task(
            run_command(ledger.session("s"), "sleep 777 & echo $!; echo $$; sleep 777", tmp_path)
        )
        async with asyncio.timeout(LONG):
            while not (pids := await printed(ledger)):
                await asyncio.sleep(0.02)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while any(alive(pid) for pid in pids):
                await asyncio.sleep(0.02)
        row = (await ledger.calls()).items[0]
        assert row.state == "cancelled"


async def printed(ledger: LocalLedger) -> list[int]:
    try:
        entries = (await ledger.snapshot("s")).entries
    except LookupError:
        return []
    lines = entries[0].output_text.split() if entries else []
    return [int(line) for line in lines] if len(lines) == 2 else []


def alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.anyio
async def test_whoever_approves_may_change_the_command(db: str, tmp_path: Path) -> None:
    """The demo runs what was approved, not what was asked."""

    async with await open_ledger(db) as ledger:
        running = asyncio.create_task(run_command(ledger.session("s"), "echo asked", tmp_path, approval=True))
        async with asyncio.timeout(LONG):
            while not (waiting := await ledger.approvals()):
                await asyncio.sleep(0.02)
            await ledger.approve(waiting[0].id, by="ada", input={"command": "echo changed"})
            assert (await running).output == "changed\n"


@pytest.mark.anyio
async def test_the_script_closes_its_turn_when_something_breaks(db: str, tmp_path: Path) -> None:
    """A tool that cannot even start fails its call, and the turn ends as an error. (C5)"""
    async with await open_ledger(db) as ledger:
        furnish(tmp_path)
        with pytest.raises(InvalidInputError):
            await Script(ledger.session("s"), tmp_path / "nowhere", 0.0).play()
        assert all(row.state in TERMINAL_STATES for row in (await ledger.calls()).items)
        log = [event async for event in ledger.events("s")]
        assert isinstance(log[-1], ev.TurnEnded) and log[-1].reason == "error"


# On a page


class Page:
    """The demo as a server in a process of its own, and what a browser would ask of it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        given = ["demo", "--json", "--fast", "--no-browser", *arguments]
        if "--port" not in given:
            given += ["--port", "0"]
        environment = {**os.environ, "TMPDIR": str(folder)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command(*given), env=environment, **pipes)
        assert self.process.stdout
        self.told = json.loads(self.process.stdout.readline())
        self.session: str = self.told["session"]

    def ask(self, path: str, body: Any = None, token: str | None = None) -> Any:
        headers = {"authorization": f"Bearer {self.told['token'] if token is None else token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.told["url"] + path, data, headers)
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            return json.load(answer)

    def refuses(self, path: str, body: Any, token: str | None = None) -> int:
        """The status by which it does."""
        with pytest.raises(urllib.error.HTTPError) as told:
            self.ask(path, body, token)
        with told.value:
            return told.value.code

    def entries(self, kind: str) -> list[Any]:
        told = self.ask(f"/v1/sessions/{self.session}?format=entries&limit=1000")["entries"]
        return [entry for entry in told if entry["type"] == kind]

    def states(self) -> dict[str, str]:
        return {call["title"]: call["status"] for call in self.entries("tool_call")}

    def answer(self, decision: str) -> None:
        waiting = until(lambda: self.ask("/v1/approvals?state=pending")["approvals"], "a question")
        self.ask(f"/v1/approvals/{waiting[0]['approval']}", {"decision": decision})

    def say(self, text: str) -> list[Any]:
        """What the demo answers: calls and messages after the prompt, once the turn is over."""
        turn = self.ask(f"/v1/sessions/{self.session}/prompt", {"text": text})["turn"]
        if text.startswith("$"):
            self.answer("approve")
        self.rest(turn)
        kept = self.ask(f"/v1/sessions/{self.session}?format=entries&limit=1000")["entries"]
        return [entry for entry in kept if entry["turn"] == turn and entry["type"] in ("tool_call", "message")][1:]

    def rest(self, turn: str = "t1") -> None:
        def over() -> bool:
            info = self.ask(f"/v1/sessions/{self.session}?limit=1")["info"]
            return info.get("lastTurn") == turn and not info.get("turn")

        until(over, f"the end of turn {turn}")

    def end(self, number: int = signal.SIGINT) -> str:
        self.process.send_signal(number)
        said = self.process.communicate(timeout=LONG)[1]
        assert "Traceback" not in said, said
        return said


def test_the_page_shows_every_kind_of_call(tmp_path: Path) -> None:
    """The tour: equal calls, parallel ones, a failure, a blob, a diff, one that expires, one lost, one that asks."""
    page = Page(tmp_path)
    page.answer("approve")
    page.rest()
    calls = page.entries("tool_call")
    states = page.states()
    assert states["cat notes/summary.txt"] == "failed"
    assert states["echo waiting for the archive; sleep 60"] == "expired"
    assert states["copy the archive"] == "lost"
    assert states["rm -rv drafts"] == "completed"
    equal = [call for call in calls if call["title"] == "ls -1 notes"]
    assert len({call["callId"] for call in equal}) == 2 and {call["status"] for call in equal} == {"completed"}
    assert any(call.get("truncated") and call["blob"]["size"] > 100_000 for call in calls)
    assert any(call.get("content", [{}])[0].get("type") == "diff" for call in calls)
    assert any("\x1b[32m" in str(call.get("output")) for call in calls)
    assert page.entries("thought") and page.entries("plan")[-1]["entries"][-1]["status"] == "completed"
    assert page.ask(f"/v1/sessions/{page.session}?limit=1")["info"]["availableCommands"]
    page.end()


def test_the_demo_answers_prompts(tmp_path: Path) -> None:
    """The sample questions, any command once it is approved, and an honest word for the rest. (S4.10)"""
    page = Page(tmp_path)
    page.answer("deny")
    page.rest()
    assert page.states()["rm -rv drafts"] == "denied"
    first, call, last = page.say("What's the weather in Paris?")
    assert first["content"] == "I'll check the weather."
    assert (call["toolName"], call["rawInput"], call["output"]["celsius"]) == ("get_weather", {"city": "Paris"}, 20)
    assert "The weather in Paris is 20 °C" in last["content"]
    _, one, other, last = page.say("What time is it in Tokyo and what's the weather there?")
    assert {one["toolName"], other["toolName"]} == {"get_time", "get_weather"}
    assert "In Tokyo it is" in last["content"] and "weather in Tokyo" in last["content"]
    call, last = page.say("$ pwd; exit 3")
    assert call["status"] == "failed" and call["exitStatus"] == 3 and str(tmp_path) in call["error"]
    assert "exit status 3" in last["content"]
    (last,) = page.say("Write a poem")
    assert "No model is configured" in last["content"] and "callslip demo --model" in last["content"]
    page.end()


def test_the_page_leaves_nothing_behind(tmp_path: Path, home: Path) -> None:
    """Ctrl-C while a question is open: both folders are gone, no process is left, your own ledger was not touched."""
    page = Page(tmp_path)
    until(lambda: page.ask("/v1/approvals?state=pending")["approvals"], "a question")
    worker = page.ask("/demo/workers", {"session": page.session})["call"]
    assert worker.startswith("exec_")
    page.end()
    assert page.process.returncode == exit_status.INTERRUPTED
    assert not list(tmp_path.iterdir()) and not survivors(tmp_path) and not list(home.iterdir())


def test_the_page_can_be_kept(tmp_path: Path) -> None:
    """`--keep FILE`: what was shown is there afterwards, and every call has ended. (C5)"""
    kept = tmp_path / "kept.db"
    page = Page(tmp_path, "--keep", str(kept))
    until(lambda: page.ask("/v1/approvals?state=pending")["approvals"], "a question")
    said = page.end(signal.SIGTERM)
    assert page.process.returncode == exit_status.TERMINATED and str(kept) in said
    rows = calls(str(kept))
    assert len(rows) == 11 and all(row.state in TERMINAL_STATES and row.title for row in rows)


def test_two_demos_at_once(tmp_path: Path) -> None:
    """The usual port is taken by whoever comes first; a port that was asked for is that or nothing."""
    one = Page(tmp_path)
    port = one.told["url"].rpartition(":")[2]
    other = subprocess.run(command("demo", "--port", port), capture_output=True, text=True, timeout=LONG)
    assert other.returncode == exit_status.FAILED and f"port {port}" in other.stderr
    one.end()


def test_only_who_has_the_token_kills_workers(tmp_path: Path) -> None:
    """The demo's own routes stand behind the same gate as all others."""
    page = Page(tmp_path)
    for path in ("/demo/workers", "/demo/workers/exec_000000000000/kill"):
        assert page.refuses(path, {"session": page.session}, token="somebody-elses-token") == 401
    assert page.refuses("/demo/workers/exec_000000000000/kill", {}) == 404
    call = page.ask("/demo/workers", {"session": page.session})["call"]
    assert page.ask(f"/demo/workers/{call}/kill", {})["pid"]
    assert page.ask(f"/v1/calls/{call}?wait=10")["state"] == "lost"
    page.end()


@pytest.mark.parametrize(
    ("environment", "there"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"DISPLAY": ":0", "SSH_CONNECTION": "1"}, False)],
)
def test_a_browser_is_opened_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], there: bool
) -> None:
    """Not without a display, and not at the far end of an SSH line."""
    for name in (*browser.FAR_AWAY, *browser.SCREENS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("true"))
    assert browser.is_there() == there


def test_the_way_to_the_page_is_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is not on the browser's command line, where others could read it."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    browser.open_page("http://127.0.0.1:1/s/demo?token=secret&x", tmp_path)
    until(lambda: opened, "a browser")
    assert "secret" not in opened[0] and "token=secret&amp;x" in (tmp_path / "open.html").read_text()
    assert (tmp_path / "open.html").stat().st_mode & 0o077 == 0
