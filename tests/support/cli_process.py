"""Run `callslip serve` and other commands as real processes, in pipes and on terminals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import main
from tests.support.paths import PROGRAMS

TIMEOUT_S = 60.0
"""Only something that hangs takes this long."""


def callslip_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callslip", *arguments]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, without a terminal."""
    return subprocess.run(
        callslip_command(*arguments),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        env={**os.environ, **(env or {})},
    )


class CommandResult(NamedTuple):
    """The exit status and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_in_process(*arguments: str, env: dict[str, str] | None = None) -> CommandResult:
    """Run a command in this process, which is faster than `run` and has the same result."""
    result = CliRunner().invoke(main, arguments, env=env)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return CommandResult(result.exit_code, result.stdout, result.stderr)


def with_ledger(path: Path, work: Callable[[LocalLedger], Awaitable[Any]]) -> Any:
    async def run_work() -> Any:
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            return await work(ledger)

    return asyncio.run(run_work())


class Process:
    """A running command, with the lines of its output so far."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, program: str = "") -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self._popen = subprocess.Popen(
            [sys.executable, program, *arguments] if program else callslip_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.pid = self._popen.pid
        pipes = ((self._popen.stdout, self.out), (self._popen.stderr, self.err))
        self._readers = [threading.Thread(target=_read_lines, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def until(self, text: str, count: int = 1) -> None:
        """Wait until `count` lines of stdout and stderr contain this text."""
        deadline = time.monotonic() + TIMEOUT_S
        while sum(text in line for line in [*self.out, *self.err]) < count:
            has_ended = self._popen.poll() is not None
            assert time.monotonic() < deadline and not has_ended, f"never printed: {text}\n{self.out}\n{self.err}"
            time.sleep(0.01)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out]

    def request(self, number: signal.Signals) -> None:
        """Send a signal that does not end the process."""
        self._popen.send_signal(number)

    def signal(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        self._popen.send_signal(number)
        return self.end()

    def end(self) -> int:
        status = self._popen.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return status

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self.end()
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()


def _read_lines(pipe: Any, lines: list[str]) -> None:
    with contextlib.suppress(ValueError):
        for line in pipe:
            lines.append(line)


@contextlib.contextmanager
def running_process(*arguments: str, env: dict[str, str] | None = None, program: str = "") -> Generator[Process]:
    """Run a command, or another program, and kill it when the block ends."""
    running = Process(*arguments, env=env, program=program)
    try:
        yield running
    finally:
        running.kill()


class ServeProcess(Process):
    """A running `callslip serve` that listens, with some settings that have no option."""

    def __init__(self, db: Path | str, *arguments: str, settings: dict[str, Any] | None = None) -> None:
        program = str(PROGRAMS / "serve_with_settings.py") if settings else ""
        command = json.dumps(settings) if settings else "serve"
        options = ("--json", "--db", str(db), *(arguments or ("--port", "0")))
        super().__init__(command, *options, program=program)
        try:
            self.until("Web UI: ")
            self.until('"url"')
        except AssertionError:
            self.kill()
            raise
        self.info = json.loads(self.out[0])
        self.url, self.token = self.info["url"], self.info["token"]

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def serving(db: Path | str, *arguments: str) -> Generator[ServeProcess]:
    server = ServeProcess(db, *arguments)
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Terminal:
    """A command on a terminal without colours: the text on its screen, and keys to press."""

    def __init__(self, *arguments: str) -> None:
        self.screen_text = ""
        self._raw = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "dumb"})
            os.execv(sys.executable, callslip_command(*arguments))

    def until(self, text: str, count: int = 1) -> None:
        """Wait until the screen has shown a text so many times."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.screen_text.count(text) < count:
            assert time.monotonic() < deadline and self._read(1.0), f"never shown: {text}\n{self.screen_text}"

    def _read(self, wait: float) -> bool:
        """Read output, and return whether there may be more."""
        if not select.select([self._fd], [], [], wait)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self._raw += data
        self.screen_text = self._raw.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def kill(self) -> None:
        """Kill the command if it still runs."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError, OSError):
            os.kill(self.pid, signal.SIGKILL)
            self.close()

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def close(self) -> int:
        """Wait for the end, and return the exit status."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(1.0):
            assert time.monotonic() < deadline, self.screen_text
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
