"""`callslip serve` and other commands as real processes: in pipes, and on a terminal of their own."""

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
from typing import Any

from callslip.api.ledger import Ledger, open_ledger

PATIENCE = 60.0
"""How long anything may take before a test gives up; nothing takes so long unless it hangs."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callslip", *arguments]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command as a script runs it."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
        env={**os.environ, **(env or {})},
    )


def with_ledger(path: Path, work: Callable[[Ledger], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            return await work(ledger)

    return asyncio.run(go())


class Process:
    """A command under way, with every line of what it says as it says it."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, program: str = "") -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self._popen = subprocess.Popen(
            [sys.executable, program, *arguments] if program else command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.pid = self._popen.pid
        pipes = ((self._popen.stdout, self.out), (self._popen.stderr, self.err))
        self._readers = [threading.Thread(target=_read, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def until(self, text: str, count: int = 1) -> None:
        """Wait until it has said this, on either side, in so many lines."""
        end = time.monotonic() + PATIENCE
        while sum(text in line for line in [*self.out, *self.err]) < count:
            ended = self._popen.poll() is not None
            assert time.monotonic() < end and not ended, f"never said: {text}\n{self.out}\n{self.err}"
            time.sleep(0.01)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out]

    def signal(self, number: signal.Signals) -> int:
        """Its exit status."""
        self._popen.send_signal(number)
        return self.end()

    def end(self) -> int:
        status = self._popen.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self.end()
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()


def _read(pipe: Any, lines: list[str]) -> None:
    with contextlib.suppress(ValueError):
        for line in pipe:
            lines.append(line)


@contextlib.contextmanager
def process(*arguments: str, env: dict[str, str] | None = None, program: str = "") -> Generator[Process]:
    """A command, or another program, that is gone when the block ends."""
    made = Process(*arguments, env=env, program=program)
    try:
        yield made
    finally:
        made.kill()


class Serving(Process):
    """`callslip serve`, once it listens."""

    def __init__(self, path: Path, *arguments: str) -> None:
        super().__init__("serve", "--json", "--db", str(path), *(arguments or ("--port", "0")))
        self.until("serving ")
        self.until('"url"')
        self.told = json.loads(self.out[0])
        self.url, self.token = self.told["url"], self.told["token"]


@contextlib.contextmanager
def serving(path: Path, *arguments: str) -> Generator[Serving]:
    made = Serving(path, *arguments)
    try:
        yield made
    finally:
        made.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Terminal:
    """A command on a terminal that knows no colours: what it shows, and keys for it."""

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self._raw = b""
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "dumb"})
            os.execv(sys.executable, command(*arguments))

    def until(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
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
        self._raw += data
        self.shown = self._raw.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def close(self) -> int:
        """Its exit status, once it has ended."""
        end = time.monotonic() + PATIENCE
        while self._read(1.0):
            assert time.monotonic() < end, self.shown
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
