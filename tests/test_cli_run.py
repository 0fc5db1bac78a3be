"""`callslip run` as a person uses it: a real process, a real endpoint, approvals by key and from elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.model_server import Server, calls, says

ECHO = calls(("c1", "shell", {"command": "echo from the shell"}), text="I look. ")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param).running() as server:
        yield server


def started(place: Path, server: Server, *args: str, **options: Any) -> subprocess.Popen[str]:
    model = ["--model", "openai:scripted", "--base-url", server.url, "--db", str(place)]
    return subprocess.Popen(
        [sys.executable, "-m", "callslip", "run", *model, *args],
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


@pytest.mark.parametrize("serving", [[ECHO, says("It said so.")]], indirect=True)
def test_what_the_model_says_is_stdout_and_what_it_does_is_stderr(place: Path, serving: Server) -> None:
    """With --yes nothing is asked; the session is there to be shown."""
    out, err = (running := started(place, serving, "--yes", "--session", "mine", "Do it.")).communicate(timeout=60)
    assert running.returncode == 0, err
    assert out == "I look. \nIt said so.\n"
    assert "✓  completed  shell" in err and "end_turn after 2 answers" in err
    assert "from the shell" in callslip(place, "show", "mine").stdout
    assert callslip(place, "verify").returncode == 0


@pytest.mark.parametrize("serving", [[says("<shell>echo tagged</shell>"), says("Yes.")]], indirect=True)
def test_commands_in_tags_and_json(place: Path, serving: Server) -> None:
    """--tags needs no tools of the model; --json prints one object, after it all."""
    out, err = (running := started(place, serving, "--yes", "--tags", "--json", "Do it.")).communicate(timeout=60)
    assert running.returncode == 0, err
    told = json.loads(out)
    assert (told["reason"], told["iterations"], told["text"]) == ("end_turn", 2, "Yes.")
    assert "tools" not in serving.asked[0]
    assert "tagged" in serving.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize("serving", [[ECHO, says("Then not.")]], indirect=True)
def test_a_command_waits_for_an_answer_from_another_terminal(place: Path, serving: Server) -> None:
    """Without a terminal of its own it says how to answer."""
    running = started(place, serving, "Do it.")
    until(place, "awaiting_approval")
    assert callslip(place, "deny", "@last", "--reason", "not now").returncode == 0
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "callslip approve appr_" in err and "denied" in err
    assert "Then not." in out
    assert "not now" in serving.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize("serving", [[calls(("c", "shell", {"command": "sleep 600"}))]], indirect=True)
def test_an_interrupt_ends_the_command_and_the_turn(place: Path, serving: Server) -> None:
    """Ctrl-C: status 130, the call cancelled, no process left."""
    running = started(place, serving, "--yes", "Wait.")
    until(place, "running")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert "cancelled" in callslip(place, "ls", "@last").stdout
    assert callslip(place, "verify").returncode == 0


@pytest.mark.parametrize("serving", [[RuntimeError("no such model")]], indirect=True)
def test_an_endpoint_that_fails_is_one_line_and_a_status(place: Path, serving: Server) -> None:
    """No traceback; the turn has ended."""
    _, err = (running := started(place, serving, "Hello.")).communicate(timeout=60)
    assert running.returncode == 1
    assert "no such model" in err and "Traceback" not in err


def test_a_model_that_cannot_be_meant_is_refused(place: Path) -> None:
    """Before a ledger is made."""
    done = callslip(place, "run", "--model", "gpt", "Hello.")
    assert done.returncode == 2 and "openai:NAME" in done.stderr
    assert not place.exists()
