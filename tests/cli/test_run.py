"""`callslip run` as a person uses it: a real process, a real endpoint, approvals by key and from elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import open_ledger
from callslip.model import events as ev
from tests.support.model_server import Server, text_answer, tool_call_answer

ECHO = tool_call_answer(("c1", "shell", {"command": "echo from the shell"}), text="I look. ")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param).running() as server:
        yield server


def command(place: Path, server: Server, *args: str) -> list[str]:
    model = ["--model", "openai:scripted", "--base-url", server.url, "--db", str(place)]
    return [sys.executable, "-m", "callslip", "run", *model, *args]


def started(place: Path, server: Server, *args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(place, server, *args),
        env={**os.environ, "OPENAI_API_KEY": "none"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def callslip(place: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "callslip", *args, "--db", str(place)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def until(place: Path, word: str) -> None:
    """Wait until a call of the last session is in a state."""
    for _ in range(400):
        if word in callslip(place, "ls", "@last").stdout:
            return
        time.sleep(0.05)
    raise AssertionError(f"no call is {word}")


@pytest.mark.parametrize("serving", [[ECHO, text_answer("It said so.")]], indirect=True)
def test_answers_go_to_stdout_and_tool_calls_to_stderr(place: Path, serving: Server) -> None:
    """--yes needs no approval; the session can be shown afterwards."""
    out, err = (running := started(place, serving, "--yes", "--session", "mine", "Do it.")).communicate(timeout=60)
    assert running.returncode == 0, err
    assert out == "I look. \nIt said so.\n"
    assert "✓  completed  shell" in err and "end_turn after 2 model responses" in err
    assert "from the shell" in callslip(place, "show", "mine").stdout
    assert callslip(place, "verify").returncode == 0


@pytest.mark.parametrize("serving", [[text_answer("<shell>echo tagged</shell>"), text_answer("Yes.")]], indirect=True)
def test_tagged_commands_run_and_json_prints_the_result(place: Path, serving: Server) -> None:
    """--tags sends no tools to the model; --json prints a single object at the end."""
    out, err = (running := started(place, serving, "--yes", "--tags", "--json", "Do it.")).communicate(timeout=60)
    assert running.returncode == 0, err
    data = json.loads(out)
    assert (data["reason"], data["iterations"], data["text"]) == ("end_turn", 2, "Yes.")
    assert "tools" not in serving.requests[0]
    assert "tagged" in serving.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("serving", [[ECHO, text_answer("Then not.")]], indirect=True)
def test_run_waits_for_an_approval_from_another_terminal(place: Path, serving: Server) -> None:
    """Without a terminal it prints how to approve."""
    running = started(place, serving, "Do it.")
    until(place, "waiting for approval")
    assert callslip(place, "deny", "@last", "--reason", "not now").returncode == 0
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "callslip approve appr_" in err and "denied" in err
    assert "Then not." in out
    assert "not now" in serving.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("serving", [[tool_call_answer(("c", "shell", {"command": "sleep 600"}))]], indirect=True)
def test_an_interrupt_cancels_the_call_and_the_turn(place: Path, serving: Server) -> None:
    """Ctrl-C: status 130, the call cancelled, no process left."""
    running = started(place, serving, "--yes", "Wait.")
    until(place, "running")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert "cancelled" in callslip(place, "ls", "@last").stdout
    assert callslip(place, "verify").returncode == 0


@pytest.mark.parametrize("serving", [[RuntimeError("no such model")]], indirect=True)
def test_a_model_endpoint_error_is_a_single_line_with_status_1(place: Path, serving: Server) -> None:
    """No traceback; the turn has ended."""
    _, err = (running := started(place, serving, "Hello.")).communicate(timeout=60)
    assert running.returncode == 1
    assert "no such model" in err and "Traceback" not in err


def test_an_invalid_model_name_is_refused(place: Path) -> None:
    """No ledger is created."""
    done = callslip(place, "run", "--model", "gpt", "Hello.")
    assert done.returncode == 2 and "openai:NAME" in done.stderr
    assert not place.exists()


@pytest.mark.parametrize("serving", [[text_answer("word " * 200), text_answer("More.")]], indirect=True)
def test_a_closed_pipe_cancels_the_turn(place: Path, serving: Server) -> None:
    """`callslip run ... | head -1`: quietly, with the status of a closed pipe, and nothing left open."""
    with started(place, serving, "Do it.") as running:
        assert running.stdout and running.stderr
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 141
    assert ends(place) == ["cancelled"]
    assert callslip(place, "verify").returncode == 0


def ends(place: Path) -> list[str]:
    """Why the turns of the last session ended."""
    log = json.loads(callslip(place, "export", "@last", "--format", "events").stdout)["events"]
    return [event["reason"] for event in log if event["type"] == "turn.ended"]


# On a terminal


class Terminal:
    """`callslip run` on a terminal: what it shows, and keys for it."""

    def __init__(self, place: Path, server: Server, *args: str) -> None:
        self.shown = ""
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ.update({"OPENAI_API_KEY": "none", "TERM": "xterm", "COLUMNS": "100", "USER": "ada"})
            os.execv(sys.executable, command(place, server, *args))

    def until(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < end and self._read(1.0), f"never shown: {text}\n{self.shown}"

    def _read(self, wait: float) -> bool:
        """Whether there may be more."""
        if not select.select([self._end], [], [], wait)[0]:
            return True
        try:
            data = os.read(self._end, 65536)
        except OSError:
            return False
        self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def close(self) -> int:
        """Return the exit status. The terminal must be restored for the shell."""
        end = time.monotonic() + 60
        while self._read(1.0):
            assert time.monotonic() < end, self.shown
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("serving", [[ECHO, text_answer("So be it.")]], indirect=True)
@pytest.mark.parametrize(("key", "state"), [("y", "completed"), ("n", "denied")])
def test_run_asks_for_approval_at_the_terminal(place: Path, serving: Server, key: str, state: str) -> None:
    """The command is on its own line; y and n decide, other keys are ignored."""
    terminal = Terminal(place, serving, "Do it.")
    terminal.until("Run? [y/n]")
    assert "I look. \n" in terminal.shown
    assert "echo from the shell" in terminal.shown
    terminal.press("xq \r" + key)
    terminal.until("So be it.\n")
    assert terminal.close() == 0, terminal.shown
    assert state in callslip(place, "ls", "@last").stdout
    answer = serving.requests[1]["messages"][-1]["content"]
    assert ("from the shell" if key == "y" else "denied by the user") in answer


@pytest.mark.parametrize("serving", [[ECHO]], indirect=True)
def test_an_interrupt_at_the_approval_prompt_cancels_the_turn(place: Path, serving: Server) -> None:
    """Ctrl-C gives status 130, and the request can no longer be approved."""
    terminal = Terminal(place, serving, "Do it.")
    terminal.until("Run? [y/n]")
    terminal.press("\x03")
    assert terminal.close() == 130, terminal.shown
    assert "Traceback" not in terminal.shown
    assert "cancelled" in callslip(place, "ls", "@last").stdout
    assert ends(place) == ["cancelled"]
    assert callslip(place, "approve", "@last").returncode != 0


LONG = "echo " + "harmless " * 40 + "; rm -rf precious"


@pytest.mark.parametrize("serving", [[tool_call_answer(("c", "shell", {"command": LONG}))]], indirect=True)
def test_the_approval_prompt_shows_the_full_command(place: Path, serving: Server) -> None:
    """The user must see all of what they approve, for any length."""
    terminal = Terminal(place, serving, "Do it.")
    terminal.until("Run? [y/n]")
    assert "rm -rf precious" in terminal.shown.replace("\n", "")
    terminal.press("n")
    terminal.close()


@pytest.mark.parametrize("serving", [[text_answer("Hello.")]], indirect=True)
def test_pending_approvals_of_other_processes_are_not_prompted(place: Path, serving: Server) -> None:
    """A request that was pending when it began belongs to another process, and is not shown here."""

    async def ask() -> None:
        async with await open_ledger(str(place)) as ledger:
            theirs = ev.CallProposed(call="new:1", tool_name="theirs", scope="detached")
            await ledger.log.append("shared", [theirs, ev.ApprovalRequested(call="new:1")])

    asyncio.run(ask())
    terminal = Terminal(place, serving, "--session", "shared", "Hello?")
    assert terminal.close() == 0
    assert "Hello." in terminal.shown and "Run? [y/n]" not in terminal.shown
    assert "waiting for approval" in callslip(place, "ls", "shared").stdout
