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

# What differs between runs, and its replacement on both sides.
DIFFERS = (
    (re.compile(r"exec_[0-9a-f]{12}"), "exec_ID"),
    (re.compile(r"\b1[0-9]{12}\b"), "TIME"),
    (re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"), "MOMENT"),
    (re.compile(r"(127\.0\.0\.1:)[0-9]+"), r"\1PORT"),
)


def same(text: str) -> str:
    for pattern, replacement in DIFFERS:
        text = pattern.sub(replacement, text)
    return text


def steps(text: str) -> list[tuple[str, str]]:
    """Return every command of a block with its expected output. A command continues while a quote is open."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].count("'") % 2:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def curl(folder: Path) -> None:
    """Put a replacement for curl into the folder if the machine has none."""
    if os.environ.get("CALLSLIP_CURL") != "stand-in" and shutil.which("curl"):
        return
    script = folder / "curl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAMS / "curl.py"}" "$@"\n')
    script.chmod(0o755)


def walk(commands: list[str], folder: Path) -> list[str]:
    """Run the commands in one shell, and return the output of each. Wait until the server answers."""
    port = str(free_port())
    curl(folder)
    lines = [f'export PATH="{folder}:{Path(sys.executable).parent}:$PATH"']
    for command in commands:
        if command.endswith("&"):
            command = f"{command[:-1].replace('serve', f'serve --port {port}')} >/dev/null 2>serve.log &"
            command += f"\nuntil curl -s -o /dev/null http://127.0.0.1:{port}/healthz; do sleep 0.05; done"
        lines += [command.replace("127.0.0.1:7890", f"127.0.0.1:{port}"), f"echo; echo '{MARK}'"]
    shell = shutil.which("bash") or "/bin/sh"
    running = subprocess.Popen(
        [shell, "-c", "\n".join(lines)], cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert running.stdout is not None
        outputs: list[str] = [""]
        end = time.monotonic() + 120
        while len(outputs) <= len(commands):
            line = running.stdout.readline()
            assert line and time.monotonic() < end, (folder / "serve.log").read_text()
            if line.strip() == MARK:
                outputs.append("")
            else:
                outputs[-1] += line
        return [f"{output.strip()}\n" if output.strip() else "" for output in outputs[:-1]]
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(30)
        running.stdout.close()


@pytest.mark.parametrize("stand_in", [False, True])
def test_the_walk_prints_what_the_docs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: bool) -> None:
    """Every command of `docs/http.md`, in order, prints what the document shows, except for ids and times."""
    if stand_in:
        monkeypatch.setenv("CALLSLIP_CURL", "stand-in")
    document = DOCUMENT.read_text("utf-8")
    written = [step for block in BLOCK.findall(document) for step in steps(block)]
    assert len(written) > 15
    printed = walk([command for command, _ in written], tmp_path)
    if os.environ.get("CALLSLIP_GOLDENS"):
        rewrite(document, printed)
        return
    for (command, expected), output in zip(written, printed, strict=True):
        assert same(output) == same(expected), command


def rewrite(document: str, printed: list[str]) -> None:
    """Write the printed output into the document."""
    left = iter(printed)

    def block(found: re.Match[str]) -> str:
        body = "".join(f"$ {command}\n{next(left)}" for command, _ in steps(found[1]))
        return f"```console walk\n{body}```"

    DOCUMENT.write_text(BLOCK.sub(block, document), "utf-8")
