"""The examples of the HTTP API in the docs, run in a shell with curl and a separate server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import PROGRAMS, ROOT

DOCUMENT = ROOT / "docs" / "http.md"
BLOCK = re.compile(r"```console walk\n(.*?)```", re.DOTALL)
MARK = "-- next --"

# Text that differs between runs, and its replacement in the printed and the expected output.
RUN_DEPENDENT = (
    (re.compile(r'"inputHash":"[0-9a-f]{32}"'), '"inputHash":"..."'),
    (re.compile(r"exec_[0-9a-f]{12}"), "exec_ID"),
    (re.compile(r"\b1[0-9]{12}\b"), "TIME"),
    (re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"), "MOMENT"),
    (re.compile(r"(127\.0\.0\.1:)[0-9]+"), r"\1PORT"),
)


def normalize(text: str) -> str:
    for pattern, replacement in RUN_DEPENDENT:
        text = pattern.sub(replacement, text)
    return text


def parse_steps(text: str) -> list[tuple[str, str]]:
    """Return every command of a block with its expected output. A command continues while a quote is open."""
    steps: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif steps and steps[-1][0].count("'") % 2:
            steps[-1] = (f"{steps[-1][0]}\n{line}", "")
        else:
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
    return steps


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def install_curl(folder: Path) -> None:
    """Put a replacement for curl into the folder if the machine has none."""
    if os.environ.get("CALLSLIP_CURL") != "replacement" and shutil.which("curl"):
        return
    script = folder / "curl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAMS / "curl.py"}" "$@"\n')
    script.chmod(0o755)


def run_commands(commands: list[str], folder: Path) -> list[str]:
    """Run the commands in one shell, and return the output of each. Wait until the server answers."""
    port = str(free_port())
    install_curl(folder)
    lines = [f'export PATH="{folder}:{Path(sys.executable).parent}:$PATH"']
    for command in commands:
        if command.endswith("&"):
            command = f"{command[:-1].replace('serve', f'serve --port {port}')} >/dev/null 2>serve.log &"
            command += f"\nuntil curl -s -o /dev/null http://127.0.0.1:{port}/healthz; do sleep 0.05; done"
        lines += [command.replace("127.0.0.1:7890", f"127.0.0.1:{port}"), f"echo; echo '{MARK}'"]
    shell_path = shutil.which("bash") or "/bin/sh"
    shell = subprocess.Popen(
        [shell_path, "-c", "\n".join(lines)], cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert shell.stdout is not None
        outputs: list[str] = [""]
        deadline = time.monotonic() + 120
        while len(outputs) <= len(commands):
            line = shell.stdout.readline()
            assert line and time.monotonic() < deadline, (folder / "serve.log").read_text()
            if line.strip() == MARK:
                outputs.append("")
            else:
                outputs[-1] += line
        return [f"{output.strip()}\n" if output.strip() else "" for output in outputs[:-1]]
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(30)
        shell.stdout.close()


@pytest.mark.parametrize("uses_replacement", [False, True])
def test_the_walk_prints_what_the_docs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses_replacement: bool
) -> None:
    """Every command of `docs/http.md`, in order, prints what the document shows, except for ids and times."""
    if uses_replacement:
        monkeypatch.setenv("CALLSLIP_CURL", "replacement")
    document = DOCUMENT.read_text("utf-8")
    steps = [step for block in BLOCK.findall(document) for step in parse_steps(block)]
    assert len(steps) > 15
    printed = run_commands([command for command, _ in steps], tmp_path)
    if os.environ.get("CALLSLIP_GOLDENS"):
        write_output(document, printed)
        return
    for (command, expected), output in zip(steps, printed, strict=True):
        assert normalize(output) == normalize(expected), command


def write_output(document: str, printed: list[str]) -> None:
    """Write the printed output into the document."""
    outputs = iter(printed)

    def replace_block(match: re.Match[str]) -> str:
        body = "".join(f"$ {command}\n{next(outputs)}" for command, _ in parse_steps(match[1]))
        return f"```console walk\n{body}```"

    DOCUMENT.write_text(BLOCK.sub(replace_block, document), "utf-8")
