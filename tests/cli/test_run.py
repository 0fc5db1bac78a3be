"""`callslip run` as a process with a model endpoint, and approvals by key and from another terminal."""

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
from tests.support.cli_process import run_in_process
from tests.support.model_server import Server, text_answer, tool_call_answer

ECHO_ANSWER = tool_call_answer(("c1", "shell", {"command": "echo from the shell"}), text="I look. ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param).running() as server:
        yield server


def run_arguments(path: Path, server: Server, *args: str) -> list[str]:
    model = ["--model", "openai:scripted", "--base-url", server.url, "--db", str(path)]
    return [sys.executable, "-m", "callslip", "run", *model, *args]


def start_run(path: Path, server: Server, *args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        run_arguments(path, server, *args),
        env={**os.environ, "OPENAI_API_KEY": "none"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_callslip(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "callslip", *args, "--db", str(path)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


def wait_for_state(path: Path, state: str) -> None:
    """Wait until a call of the last session is in a state."""
    for _ in range(400):
        if state in run_in_process("ls", "@last", "--db", str(path)).stdout:
            return
        time.sleep(0.05)
    raise AssertionError(f"no call is {state}")


@pytest.mark.parametrize("server", [[ECHO_ANSWER, text_answer("It said so.")]], indirect=True)
def test_answers_go_to_stdout_and_tool_calls_to_stderr(path: Path, server: Server) -> None:
    """--yes needs no approval; the session can be shown afterwards."""
    out, err = (running := start_run(path, server, "--yes", "--session", "mine", "Do it.")).communicate(timeout=60)
    assert running.returncode == 0, err
    assert out == "I look. \nIt said so.\n"
    assert "✓  completed  shell" in err and "end_turn after 2 model responses" in err
    assert "from the shell" in run_callslip(path, "show", "mine").stdout
    assert run_callslip(path, "verify").returncode == 0


@pytest.mark.parametrize("server", [[text_answer("<shell>echo tagged</shell>"), text_answer("Yes.")]], indirect=True)
def test_tagged_commands_run_and_json_prints_the_result(path: Path, server: Server) -> None:
    """--tags sends no tools to the model; --json prints a single object at the end."""
    out, err = (running := start_run(path, server, "--yes", "--tags", "--json", "Do it.")).communicate(timeout=60)
    assert running.returncode == 0, err
    data = json.loads(out)
    assert (data["reason"], data["iterations"], data["text"]) == ("end_turn", 2, "Yes.")
    assert "tools" not in server.requests[0]
    assert "tagged" in server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("server", [[ECHO_ANSWER, text_answer("Then not.")]], indirect=True)
def test_run_waits_for_an_approval_from_another_terminal(path: Path, server: Server) -> None:
    """Without a terminal it prints how to approve."""
    running = start_run(path, server, "Do it.")
    wait_for_state(path, "waiting for approval")
    assert run_callslip(path, "deny", "@last", "--reason", "not now").returncode == 0
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "callslip approve appr_" in err and "denied" in err
    assert "Then not." in out
    assert "not now" in server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("server", [[tool_call_answer(("c", "shell", {"command": "sleep 600"}))]], indirect=True)
def test_an_interrupt_cancels_the_call_and_the_turn(path: Path, server: Server) -> None:
    """After Ctrl-C the status is 130, the call is cancelled, and no process is left."""
    running = start_run(path, server, "--yes", "Wait.")
    wait_for_state(path, "running")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert "cancelled" in run_callslip(path, "ls", "@last").stdout
    assert run_callslip(path, "verify").returncode == 0


@pytest.mark.parametrize("server", [[RuntimeError("no such model")]], indirect=True)
def test_a_model_endpoint_error_is_a_single_line_with_status_1(path: Path, server: Server) -> None:
    """There is no traceback, and the turn has ended."""
    _, err = (running := start_run(path, server, "Hello.")).communicate(timeout=60)
    assert running.returncode == 1
    assert "no such model" in err and "Traceback" not in err


def test_an_invalid_model_name_is_refused(path: Path) -> None:
    """No ledger is created."""
    result = run_callslip(path, "run", "--model", "gpt", "Hello.")
    assert result.returncode == 2 and "openai:NAME" in result.stderr
    assert not path.exists()


@pytest.mark.parametrize("server", [[text_answer("word " * 200), text_answer("More.")]], indirect=True)
def test_a_closed_pipe_cancels_the_turn(path: Path, server: Server) -> None:
    """`callslip run ... | head -1` ends without a message, with the status of a closed pipe and no open call."""
    with start_run(path, server, "Do it.") as running:
        assert running.stdout and running.stderr
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 141
    assert list_turn_ends(path) == ["cancelled"]
    assert run_callslip(path, "verify").returncode == 0


def list_turn_ends(path: Path) -> list[str]:
    """Return the reasons for the ends of the turns of the last session."""
    log = json.loads(run_callslip(path, "export", "@last", "--format", "events").stdout)["events"]
    return [event["reason"] for event in log if event["type"] == "turn.ended"]


# On a terminal


class Terminal:
    """`callslip run` on a terminal: the text on its screen, and keys to press."""

    def __init__(self, path: Path, server: Server, *args: str) -> None:
        self.screen_text = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"OPENAI_API_KEY": "none", "TERM": "xterm", "COLUMNS": "100", "USER": "ada"})
            os.execv(sys.executable, run_arguments(path, server, *args))

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.screen_text:
            assert time.monotonic() < deadline and self._read(1.0), f"never shown: {text}\n{self.screen_text}"

    def _read(self, wait: float) -> bool:
        """Read output, and return whether there may be more."""
        if not select.select([self._fd], [], [], wait)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.screen_text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def close(self) -> int:
        """Return the exit status. The terminal must be restored for the shell."""
        deadline = time.monotonic() + 60
        while self._read(1.0):
            assert time.monotonic() < deadline, self.screen_text
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("server", [[ECHO_ANSWER, text_answer("So be it.")]], indirect=True)
@pytest.mark.parametrize(("key", "state"), [("y", "completed"), ("n", "denied")])
def test_run_asks_for_approval_at_the_terminal(path: Path, server: Server, key: str, state: str) -> None:
    """The command is on its own line; y and n decide, other keys are ignored."""
    terminal = Terminal(path, server, "Do it.")
    terminal.until("Run? [y/n]")
    assert "I look. \n" in terminal.screen_text
    assert "echo from the shell" in terminal.screen_text
    terminal.press("xq \r" + key)
    terminal.until("So be it.\n")
    assert terminal.close() == 0, terminal.screen_text
    assert state in run_callslip(path, "ls", "@last").stdout
    answer = server.requests[1]["messages"][-1]["content"]
    assert ("from the shell" if key == "y" else "denied by the user") in answer


@pytest.mark.parametrize("server", [[ECHO_ANSWER]], indirect=True)
def test_an_interrupt_at_the_approval_prompt_cancels_the_turn(path: Path, server: Server) -> None:
    """Ctrl-C gives status 130, and the request can no longer be approved."""
    terminal = Terminal(path, server, "Do it.")
    terminal.until("Run? [y/n]")
    terminal.press("\x03")
    assert terminal.close() == 130, terminal.screen_text
    assert "Traceback" not in terminal.screen_text
    assert "cancelled" in run_callslip(path, "ls", "@last").stdout
    assert list_turn_ends(path) == ["cancelled"]
    assert run_callslip(path, "approve", "@last").returncode != 0


LONG_COMMAND = "echo " + "harmless " * 40 + "; rm -rf precious"


@pytest.mark.parametrize("server", [[tool_call_answer(("c", "shell", {"command": LONG_COMMAND}))]], indirect=True)
def test_the_approval_prompt_shows_the_full_command(path: Path, server: Server) -> None:
    """The user must see all of what they approve, for any length."""
    terminal = Terminal(path, server, "Do it.")
    terminal.until("Run? [y/n]")
    assert "rm -rf precious" in terminal.screen_text.replace("\n", "")
    terminal.press("n")
    terminal.close()


@pytest.mark.parametrize("server", [[text_answer("Hello.")]], indirect=True)
def test_pending_approvals_of_other_processes_are_not_prompted(path: Path, server: Server) -> None:
    """A request that was pending when it began belongs to another process, and is not shown here."""

    async def request_approval() -> None:
        async with await open_ledger(str(path)) as ledger:
            proposal = ev.CallProposed(call="new:1", tool_name="theirs", scope="detached")
            await ledger.log.append("shared", [proposal, ev.ApprovalRequested(call="new:1")])

    asyncio.run(request_approval())
    terminal = Terminal(path, server, "--session", "shared", "Hello?")
    assert terminal.close() == 0
    assert "Hello." in terminal.screen_text and "Run? [y/n]" not in terminal.screen_text
    assert "waiting for approval" in run_callslip(path, "ls", "shared").stdout
