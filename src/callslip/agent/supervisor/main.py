"""Runs one command: moves its output to the host, notices its end, and leaves nothing of it behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from . import processes, wire
from .output_limit import Keep
from .processes import AGAIN, KILL_TIMEOUT_S
from .readiness import Readiness
from .relay import start

HOST = 0
CHUNK = 64 * 2**10
STOPPING = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}

FULL_PIPES = 64


class Watch:
    """One command and all that descends from it."""

    def __init__(self, request: wire.Request) -> None:
        self._request = request
        self._adopting = processes.adopt_orphans()
        self._keeps = {number: Keep(request.head, request.tail) for number in wire.NAMES}
        self._position = 0
        self._outbox = bytearray()
        self._said = b""
        self._host_gone = self._stop = self._command_over = self._interrupted = self._killed = self._given_up = False
        self._kill_at = 0.0
        self._asked: set[int] = set()
        self._readiness = Readiness()
        self._turns: dict[int, Callable[[], None]] = {}

    def run(self) -> None:
        """From the start of the command until nothing of it is left and the host knows all about it."""
        self._begin()
        while self._anyone_left():
            self._move(self._pause())
            if self._stop or self._command_over:
                self._press()
        self._drain()
        self._report()
        while self._outbox and not self._host_gone:
            self._move(None)

    # Beginning

    def _begin(self) -> None:
        woken = _wake_on_signals()
        out, err, said = os.pipe(), os.pipe(), os.pipe()
        self._follow(woken, lambda: self._hear_signals(woken))
        self._follow(HOST, self._hear_host)
        self._follow(said[0], lambda: self._hear_relay(said[0]))
        self._follow(out[0], lambda: self._pass_on(out[0], 1))  # Before anybody speaks: else who came first is lost.
        self._follow(err[0], lambda: self._pass_on(err[0], 2))
        self._relay = start(self._request, out[1], err[1], said[1])
        for _, writing in (out, err, said):
            os.close(writing)
        self._follow_host_process()

    def _follow(self, fd: int, turn: Callable[[], None]) -> None:
        """From now on `turn` is called when there is something to read."""
        self._turns[fd] = turn
        os.set_blocking(fd, False)
        self._readiness.watch(fd)

    def _follow_host_process(self) -> None:
        """A fork of the host may hold its end of the line open, so its death is looked for by itself."""
        try:
            host = os.pidfd_open(self._request.host)
            self._follow(host, lambda: self._lose_host(host))
        except (AttributeError, OSError):
            pass
        if os.getppid() != self._request.host:
            self._lose_host(HOST)

    # Moving bytes

    def _move(self, seconds: float | None) -> None:
        """Wait until something can be read, and read it."""
        for fd in self._readiness.wait(seconds):
            self._turns[fd]()

    def _drain(self) -> None:
        """What is still in the pipes. Whoever could not be ended may write on, so this has a limit."""
        before = -1
        for _ in range(FULL_PIPES):
            if before == self._position:
                break
            before = self._position
            self._move(0)

    def _pass_on(self, fd: int, number: int) -> None:
        data = self._read(fd) or b""
        keep, was_full = self._keeps[number], self._keeps[number].full
        live = keep.take(self._position, data)
        if live:
            self._send(wire.LIVE[number], self._position, live)
        if keep.full and not was_full:
            self._send(wire.FULL, number, b"")
        self._position += len(data)

    def _read(self, fd: int) -> bytes | None:
        """What there is to read; b"" at the end, None if there is nothing yet."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._readiness.no_more(fd)
        return data

    def _send(self, kind: bytes, position: int, data: bytes) -> None:
        self._outbox += wire.frame(kind, position, data)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and not self._host_gone:
                del self._outbox[: os.write(HOST, self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._lose_host(HOST)
        self._readiness.want_room(HOST, bool(self._outbox))

    # What is heard

    def _hear_host(self) -> None:
        self._stop |= self._read(HOST) == b""
        self._flush()

    def _hear_signals(self, woken: int) -> None:
        self._stop |= any(number in STOPPING for number in self._read(woken) or b"")

    def _hear_relay(self, said: int) -> None:
        data = self._read(said)
        self._command_over |= data == b""
        self._said += data or b""

    def _lose_host(self, fd: int) -> None:
        self._readiness.no_more(fd)
        self._host_gone = self._stop = True
        self._outbox.clear()

    # Ending

    def _anyone_left(self) -> bool:
        if processes.reap():
            return not self._given_up
        if self._adopting:
            return False
        return processes.exists(self._shell()) and not self._killed  # Nobody in a killed group can fork away.

    def _pause(self) -> float | None:
        """How long nothing need be done."""
        if not self._kill_at:
            return None
        if not self._asked:
            return AGAIN
        return max(AGAIN, self._kill_at - time.monotonic())

    def _press(self) -> None:
        """Ask everyone to end; when the time to do so is over, end them, again and again until there is nobody."""
        now = time.monotonic()
        if not self._kill_at:
            self._interrupted = not self._command_over
            self._kill_at = now + self._request.grace
        if now >= self._kill_at:
            self._signal(self._groups(), signal.SIGKILL)
            self._killed = True
        elif not self._asked:  # The kernel's lists may lack who is just being handed to another parent.
            self._asked = self._groups()
            self._signal(self._asked, signal.SIGTERM)
            self._signal(self._asked, signal.SIGCONT)  # Who is stopped could not answer.
        self._given_up = now > self._kill_at + KILL_TIMEOUT_S

    def _signal(self, groups: set[int], number: int) -> None:
        """To all but the relay, which has to tell how the shell ended and goes by itself, if it was not stopped."""
        processes.send(groups, number)
        if not self._command_over:
            processes.send_one(self._relay, signal.SIGCONT)

    def _groups(self) -> set[int]:
        if not self._adopting:
            return {self._shell()} - {0}
        return processes.groups_of(self._others())

    def _others(self) -> list[int]:
        return [pid for pid in processes.descendants(os.getpid(), processes.look()) if pid != self._relay]

    def _shell(self) -> int:
        return int(self._words().get("shell", "0"))

    def _words(self) -> dict[str, str]:
        lines = [line.partition(" ") for line in self._said.decode().splitlines()]
        return {word: rest for word, _, rest in lines}

    def _report(self) -> None:
        for number, keep in self._keeps.items():
            for position, data in keep.rest():
                self._send(wire.LAST[number], position, data)
        left = " ".join(map(str, self._others())) if self._given_up else ""
        sizes = {name: self._keeps[number].total for number, name in wire.NAMES.items()}
        facts = {**self._words(), **sizes, "interrupted": int(self._interrupted), "left": left}
        self._send(wire.REPORT, 0, "\n".join(f"{name} {value}" for name, value in facts.items()).encode())


def _wake_on_signals() -> int:
    """A descriptor from which the numbers of caught signals can be read."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (*STOPPING, signal.SIGCHLD):
        signal.signal(number, _note)
    return woken


def _note(number: int, frame: object) -> None:
    """Only so that the signal has no effect of its own: the descriptor that wakes us tells of it."""


def _already_over() -> bool:
    """Whether the host gave up before anything was started."""
    os.set_blocking(HOST, False)
    try:
        return os.read(HOST, 1) == b""
    except BlockingIOError:
        return False


def main() -> None:
    """Serve the one request that the host sends, then go."""
    request = wire.receive_request(HOST)
    try:
        if request and not _already_over():
            Watch(request).run()
    except OSError as error:  # There are too many processes or open files.
        os.set_blocking(HOST, True)
        os.write(HOST, wire.frame(wire.REPORT, 0, f"refused start {error.errno}".encode()))
    os._exit(0)
