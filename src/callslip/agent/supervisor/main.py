"""Run one command: send its output to the host, detect its end, and end all its processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from . import processes, wire
from .output_limit import OutputLimit
from .processes import KILL_TIMEOUT_S, POLL_S
from .readiness import Readiness
from .relay import start_relay

HOST = 0
CHUNK_BYTES = 64 * 2**10
STOP_SIGNALS = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}

MAX_DRAIN_READS = 64


class Supervisor:
    """A command and its descendants."""

    def __init__(self, request: wire.Request) -> None:
        self._request = request
        self._adopts_orphans = processes.adopt_orphans()
        self._outputs = {number: OutputLimit(request.head, request.tail) for number in wire.NAMES}
        self._position = 0
        self._outbox = bytearray()
        self._relay_report = b""
        self._host_gone = self._must_stop = self._command_ended = False
        self._was_interrupted = self._was_killed = self._has_given_up = False
        self._kill_at = 0.0
        self._terminated: set[int] = set()
        self._readiness = Readiness()
        self._readers: dict[int, Callable[[], None]] = {}

    def run(self) -> None:
        """Run the command until no process of it is left and the host has received the report."""
        self._start()
        while self._has_processes():
            self._read_ready(self._timeout())
            if self._must_stop or self._command_ended:
                self._end_processes()
        self._drain()
        self._report()
        while self._outbox and not self._host_gone:
            self._read_ready(None)

    # Start

    def _start(self) -> None:
        signals = _open_signal_pipe()
        out, err, report = os.pipe(), os.pipe(), os.pipe()
        self._watch(signals, lambda: self._read_signals(signals))
        self._watch(HOST, self._read_host)
        self._watch(report[0], lambda: self._read_relay(report[0]))
        self._watch(out[0], lambda: self._read_output(out[0], 1))  # Before the start, to keep the order of output.
        self._watch(err[0], lambda: self._read_output(err[0], 2))
        self._relay = start_relay(self._request, out[1], err[1], report[1])
        for _, writer in (out, err, report):
            os.close(writer)
        self._watch_host_process()

    def _watch(self, fd: int, reader: Callable[[], None]) -> None:
        """Call `reader` whenever the descriptor is readable."""
        self._readers[fd] = reader
        os.set_blocking(fd, False)
        self._readiness.watch(fd)

    def _watch_host_process(self) -> None:
        """Detect the death of the host, because a fork of it may keep its end of the socket open."""
        try:
            host = os.pidfd_open(self._request.host)
            self._watch(host, lambda: self._lose_host(host))
        except (AttributeError, OSError):
            pass
        if os.getppid() != self._request.host:
            self._lose_host(HOST)

    # Copy output

    def _read_ready(self, timeout_s: float | None) -> None:
        """Wait until descriptors are readable, and read them."""
        for fd in self._readiness.wait(timeout_s):
            self._readers[fd]()

    def _drain(self) -> None:
        """Read what is left in the pipes, up to a limit: a process that could not be ended may still write."""
        before = -1
        for _ in range(MAX_DRAIN_READS):
            if before == self._position:
                break
            before = self._position
            self._read_ready(0)

    def _read_output(self, fd: int, number: int) -> None:
        data = self._read(fd) or b""
        output, was_full = self._outputs[number], self._outputs[number].is_full
        live = output.add(self._position, data)
        if live:
            self._send(wire.LIVE[number], self._position, live)
        if output.is_full and not was_full:
            self._send(wire.FULL, number, b"")
        self._position += len(data)

    def _read(self, fd: int) -> bytes | None:
        """Return the available bytes; b"" at the end, None if there are none yet."""
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._readiness.unwatch(fd)
        return data

    def _send(self, kind: bytes, position: int, data: bytes) -> None:
        self._outbox += wire.encode_frame(kind, position, data)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and not self._host_gone:
                del self._outbox[: os.write(HOST, self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._lose_host(HOST)
        self._readiness.watch_writable(HOST, bool(self._outbox))

    # Read events

    def _read_host(self) -> None:
        self._must_stop |= self._read(HOST) == b""
        self._flush()

    def _read_signals(self, fd: int) -> None:
        self._must_stop |= any(number in STOP_SIGNALS for number in self._read(fd) or b"")

    def _read_relay(self, fd: int) -> None:
        data = self._read(fd)
        self._command_ended |= data == b""
        self._relay_report += data or b""

    def _lose_host(self, fd: int) -> None:
        self._readiness.unwatch(fd)
        self._host_gone = self._must_stop = True
        self._outbox.clear()

    # End the processes

    def _has_processes(self) -> bool:
        if processes.reap():
            return not self._has_given_up
        if self._adopts_orphans:
            return False
        return processes.exists(self._shell()) and not self._was_killed  # A killed group cannot fork any more.

    def _timeout(self) -> float | None:
        """Return when to act again if nothing happens, in seconds."""
        if not self._kill_at:
            return None
        if not self._terminated:
            return POLL_S
        return max(POLL_S, self._kill_at - time.monotonic())

    def _end_processes(self) -> None:
        """Terminate all processes; after the grace period kill them, repeatedly until none is left."""
        now = time.monotonic()
        if not self._kill_at:
            self._was_interrupted = not self._command_ended
            self._kill_at = now + self._request.grace
        if now >= self._kill_at:
            self._signal(self._groups(), signal.SIGKILL)
            self._was_killed = True
        elif not self._terminated:  # The kernel's lists may lack a process that is just getting another parent.
            self._terminated = self._groups()
            self._signal(self._terminated, signal.SIGTERM)
            self._signal(self._terminated, signal.SIGCONT)  # A stopped process cannot handle SIGTERM.
        self._has_given_up = now > self._kill_at + KILL_TIMEOUT_S

    def _signal(self, groups: set[int], number: int) -> None:
        """Signal all but the relay, which reports the shell's status and then ends, unless it was stopped."""
        processes.send(groups, number)
        if not self._command_ended:
            processes.send_one(self._relay, signal.SIGCONT)

    def _groups(self) -> set[int]:
        if not self._adopts_orphans:
            return {self._shell()} - {0}
        return processes.groups_of(self._descendants())

    def _descendants(self) -> list[int]:
        return [pid for pid in processes.descendants(os.getpid(), processes.children_reader()) if pid != self._relay]

    def _shell(self) -> int:
        return int(wire.decode_facts(self._relay_report).get("shell", "0"))

    def _report(self) -> None:
        for number, output in self._outputs.items():
            for position, data in output.tail():
                self._send(wire.LAST[number], position, data)
        left = " ".join(map(str, self._descendants())) if self._has_given_up else ""
        sizes = {name: self._outputs[number].total_bytes for number, name in wire.NAMES.items()}
        facts = {
            **wire.decode_facts(self._relay_report),
            **sizes,
            "interrupted": int(self._was_interrupted),
            "left": left,
        }
        self._send(wire.REPORT, 0, "\n".join(f"{name} {value}" for name, value in facts.items()).encode())


def _open_signal_pipe() -> int:
    """Return a descriptor from which the numbers of caught signals can be read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)  # The pipe reports the signal.
    return reader


def _is_cancelled() -> bool:
    """Return whether the host closed the socket before the command started."""
    os.set_blocking(HOST, False)
    try:
        return os.read(HOST, 1) == b""
    except BlockingIOError:
        return False


def main() -> None:
    """Run the command that the host sends, then exit."""
    request = wire.receive_request(HOST)
    try:
        if request and not _is_cancelled():
            Supervisor(request).run()
    except OSError as error:  # Too many processes or open files.
        os.set_blocking(HOST, True)
        os.write(HOST, wire.encode_frame(wire.REPORT, 0, f"refused start {error.errno}".encode()))
    os._exit(0)
