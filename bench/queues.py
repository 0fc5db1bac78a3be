"""Other task queues, for comparison: Celery, docket and taskiq, each with a Redis of its own and a worker process.

They live in an environment of their own (`make bench` installs it), and so does the Redis: it comes out of a wheel.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("CALLSLIP_BENCH_PEERS", HERE.parent / ".cache" / "queues" / "bin" / "python"))
NAMES = ("celery", "docket", "taskiq")
TIMEOUT_S = 120.0

AS_IT_COMES: list[str] = []
DURABLE = ["--appendonly", "yes", "--appendfsync", "always"]
"""What a ledger promises by default: what was acknowledged is on the disk."""


def missing() -> str:
    """Why there is nothing to compare with, if so."""
    there = PYTHON.exists() and PYTHON.with_name("redis-server").exists()
    return "" if there else "the other task queues are not installed (`make bench` says why), so they are left out"


@contextlib.contextmanager
def redis(folder: Path, options: list[str]) -> Generator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    command = [str(PYTHON.with_name("redis-server")), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
        try:
            _until_it_answers(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()


def _until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(64).startswith(b"+PONG"):
                return
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("Redis did not start")
        time.sleep(0.02)


def trips(name: str, count: int, folder: Path, options: list[str]) -> dict[str, list[float]]:
    """Seconds of each round trip: submitted in one process, run in another, its result awaited in the first."""
    script = [str(PYTHON), str(HERE / "peers" / f"with_{name}.py")]
    log = folder / f"{name}.log"
    with redis(folder / name, options) as url, log.open("w") as errors:
        worker = subprocess.Popen([*script, "work", url], stdout=errors, stderr=errors)
        try:
            asking = [*script, "submit", url, str(count)]
            done = subprocess.run(asking, stdout=subprocess.PIPE, stderr=errors, timeout=TIMEOUT_S, check=False)
        finally:
            worker.terminate()
            worker.wait(TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {log.read_text().strip().splitlines()[-1:]}")
    return json.loads(done.stdout)
