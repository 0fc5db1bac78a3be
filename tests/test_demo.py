"""The demo: real commands, shown from the ledger's patches alone, answered by a person or without one."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from callslip import events as ev
from callslip.cli import exits
from callslip.cli.view import View
from callslip.demo import stage
from callslip.demo.runner import run as run_command
from callslip.demo.screen import Screen, settled
from callslip.demo.script import Script, furnish
from callslip.entries import Append, Message, Put, Set
from callslip.ledger import Ledger, open_ledger
from callslip.lifecycle import ENDS
from tests import scenarios

LONG = 30.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callslip", *arguments]


def demo(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 60}
    return subprocess.run(command("demo", *arguments), **(given | more))


def look(db: str, read: Callable[[Ledger], Any]) -> Any:
    async def go() -> Any:
        async with await open_ledger(db) as ledger:
            return await read(ledger)

    return asyncio.run(go())


def calls(db: str) -> list[Any]:
    """All calls, oldest first."""

    async def read(ledger: Ledger) -> list[Any]:
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
        command("demo", "--fast", "--db", db), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == exits.PIPE_CLOSED
    assert all(row.state in ENDS for row in calls(db))


# Ended early


@pytest.mark.parametrize("moment", ["running", "awaiting_approval"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ended_early_it_leaves_no_call_open(tmp_path: Path, moment: str, number: int, status: int) -> None:
    """Ctrl-C or a kill, while a command runs or a question is open: every call ends with a reason. (C5)"""
    db = str(tmp_path / "kept.db")
    arguments = ["--db", db] if moment == "running" else ["--db", db, "--fast"]
    program = [sys.executable, "-c", PATIENT, *arguments] if moment != "running" else command("demo", *arguments)
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
    assert all(row.state in ENDS for row in rows)
    until(lambda: not survivors(tmp_path), "the end of all that it started")


# The demo with an answer that never comes.
PATIENT = """
import asyncio, sys
from callslip.demo import stage
stage._by_script = lambda *_: asyncio.sleep(1000)
from callslip.cli import main
main(["demo", *sys.argv[1:]])
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
            os.execv(sys.executable, command("demo", *arguments))

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
    assert terminal.close() == exits.INTERRUPTED
    assert calls(db)[-1].state == "cancelled"
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_no_answer_is_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody answers expires, and that refuses the call. (C5)"""
    monkeypatch.setattr(stage, "EXPIRY", 0.2)
    monkeypatch.setattr(stage, "_by_script", lambda *_: asyncio.sleep(1000))
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, width=100)
        shown = asyncio.run(stage.perform(f"sqlite:///{tmp_path / 'x.db'}", console, fast=True, answer="ask"))
    assert shown.equal and shown.calls[-1].state == "denied" and shown.calls[-1].reason == "nobody answered in time"


# The parts


@pytest.mark.anyio
@pytest.mark.parametrize("name", scenarios.NAMES)
async def test_the_view_lives_by_patches_alone(db: str, name: str) -> None:
    """Fed with nothing but patches, in another ledger than the writer's, it is the snapshot. (C9, S2.2)"""
    view = View()
    async with await open_ledger(db, scenarios.QUIET) as writer, await open_ledger(db, scenarios.QUIET) as reader:

        async def watch() -> None:
            async for seq, patches in reader.patches(name):
                view.apply(seq, patches)

        watching = asyncio.create_task(watch())
        for draft in scenarios.drafts(name):
            await writer.append(name, [draft], source="test")
        snapshot = await writer.snapshot(name)
        async with asyncio.timeout(LONG):
            await view.until(lambda view: view.seq >= snapshot.seq)
        watching.cancel()
        assert view.same_as(snapshot)
        assert view.same_as((await reader.state_at(name)).snapshot())


def test_the_view_notices_a_missing_patch() -> None:
    """An offset that does not fit is not papered over."""
    view = View()
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
        view = View()
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


async def printed(ledger: Ledger) -> list[int]:
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
    from callslip import approvals

    async with await open_ledger(db) as ledger:
        running = asyncio.create_task(run_command(ledger.session("s"), "echo asked", tmp_path, approve="ask"))
        async with asyncio.timeout(LONG):
            while not (waiting := await ledger.approvals()):
                await asyncio.sleep(0.02)
            await approvals.approve(ledger, waiting[0].id, by="ada", input={"command": "echo changed"})
            assert (await running).text == "changed\n"


@pytest.mark.anyio
async def test_the_script_closes_its_turn_when_something_breaks(db: str, tmp_path: Path) -> None:
    """A tool that cannot even start fails its call, and the turn ends as an error. (C5)"""
    async with await open_ledger(db) as ledger:
        furnish(tmp_path)
        with pytest.raises(OSError):
            await Script(ledger.session("s"), tmp_path / "nowhere", 0.0).play()
        assert all(row.state in ENDS for row in (await ledger.calls()).items)
        log = [event async for event in ledger.events("s")]
        assert isinstance(log[-1], ev.TurnEnded) and log[-1].reason == "error"
