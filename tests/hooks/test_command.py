"""The shell command of a hook: what it starts, and that it never disturbs the agent."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callslip.errors import InvalidInputError
from callslip.hooks import command as commands
from callslip.hooks.command import HookCommand, hook_command, parse_command
from callslip.hooks.events import AGENTS

ODD_NAME = 'it\'s $HOME "x" ${A} `b` \\ ; é'
NAMES = st.text(st.characters(blacklist_categories=["Cc", "Cs"], blacklist_characters="/"), min_size=1, max_size=12)


def make_script(folder: Path, text: str) -> Path:
    """Write a script where one of ours would be, below a folder with an odd name."""
    script = folder / ODD_NAME / "hooks" / "script.py"
    script.parent.mkdir(parents=True)
    script.write_text(text)
    return script


def run_shell(text: str, payload: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", "-c", text], input=payload, capture_output=True, text=True, timeout=60)


@given(NAMES, st.sampled_from(AGENTS), st.booleans(), st.integers(1, 10**6))
def test_a_command_is_recognized(name: str, agent: str, approvals: bool, wait_s: int) -> None:
    """What a command starts can be read back from its text, with any folder."""
    folder, script = f"/{name}/hooks/0123456789ab", f"/{name}/hooks/script.py"
    command = HookCommand(agent, folder, f"/{name}/python", script, approvals, wait_s if approvals else 300)
    assert parse_command(command.shell_text()) == command


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "echo hooks/script.py",
        "exec /usr/bin/python3 -I -S /x/hooks/script.py claude-code /x/hooks/0123; exit 0",
        "exec /usr/bin/python3 -I -S /x/hooks/script.py other /x/hooks/0123456789ab; exit 0",
        "exec /usr/bin/python3 -I -S '/x/hooks/script.py codex /x/hooks/0123456789ab",
    ],
)
def test_other_commands_are_not_ours(text: object) -> None:
    """A command with the name of the script alone belongs to the user."""
    assert parse_command(text) is None


def test_a_command_starts_the_script_with_its_arguments(tmp_path: Path) -> None:
    """A shell passes odd paths unchanged, and the payload on standard input."""
    script = make_script(tmp_path, "import sys; print(sys.argv[1:], sys.stdin.read(), sys.flags.isolated)")
    folder = f"/{ODD_NAME}/hooks/0123456789ab"
    command = HookCommand("codex", folder, sys.executable, str(script), True, 60)
    done = run_shell(command.shell_text(), "payload")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{['codex', folder, '--approvals', '--wait-s', '60']} payload 1\n"


@pytest.mark.parametrize("gone", ["python", "script"])
def test_a_command_is_silent_if_callslip_is_gone(tmp_path: Path, gone: str) -> None:
    """[HI5] Without Python or the script the command exits with 0 and prints nothing."""
    script = make_script(tmp_path, "print('ran')")
    python = tmp_path / "python"
    python.symlink_to(tmp_path / "nowhere" if gone == "python" else sys.executable)
    command = HookCommand("gemini", "/x/hooks/0123456789ab", str(python), str(script))
    if gone == "script":
        assert run_shell(command.shell_text()).stdout == "ran\n"
        script.unlink()
    done = run_shell(command.shell_text(), "payload")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@given(NAMES)
@example("$HOME")
@example("a ${HOME:-b} $")
def test_no_variable_is_replaced_in_a_command(name: str) -> None:
    """Gemini CLI replaces variables in its settings before a shell sees them, so none may follow a dollar sign."""
    text = HookCommand("gemini", f"/{name}/hooks/0123456789ab", "/p", "/hooks/script.py").shell_text()
    assert all(character == "'" for previous, character in itertools.pairwise(text) if previous == "$")


def test_a_command_names_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has the Python and the script of this installation; a path that no shell can name is refused."""
    command = parse_command(hook_command("codex", "/x/hooks/0123456789ab", approvals=False))
    assert command == HookCommand("codex", "/x/hooks/0123456789ab", sys.executable, commands.SCRIPT)
    assert os.path.isabs(commands.SCRIPT)
    with pytest.raises(InvalidInputError, match="control characters"):
        hook_command("codex", "/a\nb/hooks/0123456789ab", approvals=False)
