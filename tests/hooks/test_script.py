"""The script that agents start as a hook: it stores a message or asks the server, and fails without a sound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from callslip.hooks import script
from tests.support.hooked_agents import SCRIPT, Hooks

MESSAGE = {"session_id": "s", "hook_event_name": "Stop"}


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(str(tmp_path / "ledger.db"), tmp_path / "home")


def start(*arguments: str, message: bytes = json.dumps(MESSAGE).encode(), **env: str) -> tuple[int, bytes, bytes]:
    """Run the script as an agent does; return its exit status and output."""
    command = [sys.executable, "-I", "-S", SCRIPT, *arguments]
    done = subprocess.run(command, input=message, capture_output=True, env={**os.environ, **env}, timeout=60)
    return done.returncode, done.stdout, done.stderr


def read(hooks: Hooks) -> list[Any]:
    return [json.loads((hooks.folder / "spool" / name).read_bytes()) for name in hooks.spooled()]


def test_a_message_is_stored_and_not_waited_for(hooks: Hooks) -> None:
    """HK1: without a server the message is one file, with the agent and the time."""
    before = int(time.time() * 1000)
    spread = json.dumps(MESSAGE, indent=1).replace("\n", "\r\n").encode()
    assert start("claude-code", str(hooks.folder), message=spread) == (0, b"", b"")
    (stored,) = read(hooks)
    assert (stored["agent"], stored["message"]) == ("claude-code", MESSAGE)
    assert before <= stored["at"] <= time.time() * 1000
    (file,) = (hooks.folder / "spool").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_request_without_a_server_has_no_answer(hooks: Hooks) -> None:
    """HK4: the agent asks in its own terminal at once, and no request is stored for later."""
    options = ("--approvals", "--wait-s", "3600")
    assert start("claude-code", str(hooks.folder), *options) == (0, b"", b"")
    assert hooks.spooled() == []


@pytest.mark.parametrize(
    "arguments", [(), ("claude-code",), ("other", "."), ("claude-code", "/no/such/folder"), ("codex", ".", "--wait-s")]
)
def test_what_cannot_work_ends_in_silence(arguments: tuple[str, ...]) -> None:
    """HK2: wrong arguments or a folder that is gone: exit status 0 and no output."""
    assert start(*arguments) == (0, b"", b"")


def test_a_wrapped_agent_is_not_recorded_twice(hooks: Hooks) -> None:
    """HK3: under `callslip wrap` the script does nothing: that records and asks by itself."""
    for options in ((), ("--approvals",)):
        assert start("claude-code", str(hooks.folder), *options, CALLSLIP_AGENT="1") == (0, b"", b"")
    assert hooks.spooled() == []


def test_a_folder_that_others_can_use_is_not_used(hooks: Hooks) -> None:
    """HK2: the folder must have mode 0700."""
    hooks.folder.chmod(0o755)
    assert start("claude-code", str(hooks.folder)) == (0, b"", b"")
    assert hooks.spooled() == []


def test_a_link_in_place_of_the_spool_is_not_followed(hooks: Hooks, tmp_path: Path) -> None:
    """HK2: nothing is written where a symbolic link leads to."""
    other = tmp_path / "other"
    other.mkdir()
    (hooks.folder / "spool").rmdir()
    (hooks.folder / "spool").symlink_to(other)
    assert start("claude-code", str(hooks.folder)) == (0, b"", b"")
    assert list(other.iterdir()) == []


def test_sizes_are_limited(hooks: Hooks) -> None:
    """HK2: a message that is too large, or more than the spool may have, is left out; all of it is read."""
    large = json.dumps({**MESSAGE, "x": "x" * script.MAX_MESSAGE_BYTES}).encode()
    assert start("claude-code", str(hooks.folder), message=large) == (0, b"", b"")
    assert hooks.spooled() == []
    count = script.MAX_SPOOL_BYTES // script.MAX_MESSAGE_BYTES
    for number in range(count):
        with open(hooks.folder / "spool" / f"{number}.json", "wb") as file:
            file.truncate(script.MAX_MESSAGE_BYTES)
    assert start("claude-code", str(hooks.folder)) == (0, b"", b"")
    assert len(hooks.spooled()) == count
    (hooks.folder / "spool" / "0.json").unlink()
    assert start("claude-code", str(hooks.folder)) == (0, b"", b"")
    assert len(hooks.spooled()) == count
    for path in (hooks.folder / "spool").iterdir():
        path.unlink()
    for number in range(script.MAX_SPOOL_FILES):
        (hooks.folder / "spool" / f"{number}.json").touch()
    assert start("claude-code", str(hooks.folder)) == (0, b"", b"")
    assert len(hooks.spooled()) == script.MAX_SPOOL_FILES


def test_a_folder_with_a_long_path_works(tmp_path: Path) -> None:
    """HK1: the path of a socket is limited to about 100 bytes, that of the folder is not."""
    hooks = Hooks(str(tmp_path / "ledger.db"), tmp_path / ("home" * 40))
    assert start("gemini", str(hooks.folder)) == (0, b"", b"")
    assert len(read(hooks)) == 1


def test_the_command_in_the_settings_survives_without_callslip(hooks: Hooks) -> None:
    """HK2: if the program or the script is gone, the shell command exits with 0 and prints nothing."""
    command = hooks.command("claude-code", approvals=False)
    for gone in (SCRIPT, sys.executable):
        done = subprocess.run(["/bin/sh", "-c", command.replace(gone, f"{gone}.gone")], capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
