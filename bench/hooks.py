"""How long the hook of an agent takes: it runs at every step of the agent, so a person waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from measure import say

from callslip.hooks import script
from callslip.hooks.folder import prepare_folder
from callslip.hooks.server import bind

RUNS = 50
ANSWER = b'{"hookSpecificOutput":{"hookEventName":"PermissionRequest","decision":{"behavior":"allow"}}}\n'
MESSAGE = {
    "session_id": "416b4cbe-f059-49e3-b4cb-6f18e7883b3f",
    "cwd": "/home/me/project",
    "hook_event_name": "PermissionRequest",
    "tool_name": "Bash",
    "tool_input": {"command": "ls -la", "description": "List files"},
}


def time_runs(command: list[str]) -> float:
    """Return the median time of a command in ms, with a message on its standard input."""
    body = json.dumps(MESSAGE).encode()
    times: list[float] = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, input=body, stdout=subprocess.DEVNULL, check=True)
        times.append(1000 * (time.perf_counter() - started))
    return median(times)


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Answer each request at once, so that only the script is measured."""
    listener = bind(folder)
    listener.listen(RUNS)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                if b'"message"' in connection.recv(65536):
                    connection.sendall(ANSWER)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        os.unlink(folder / "socket")
        thread.join()


def bench_hooks() -> None:
    """Measure a message that is only recorded, and a request that is answered at once."""
    path = str(Path(script.__file__).resolve())
    empty = time_runs([sys.executable, "-c", "pass"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "hooks"
        prepare_folder(folder)
        command = [sys.executable, "-I", "-S", path, "claude-code", str(folder)]
        alone = time_runs(command)
        with answering(folder):
            recorded, requested = time_runs(command), time_runs([*command, "--approvals"])
    say("hook", f"python -c pass {empty:.1f} ms (median of {RUNS})")
    say("hook", f"record, no server {alone:.1f} ms; record {recorded:.1f} ms: {recorded / empty:.1f} times `pass`")
    say("hook", f"ask, answered at once {requested:.1f} ms: {requested / empty:.1f} times `pass`")
