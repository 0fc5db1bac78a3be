"""The front: an agent as a child, and every byte between it and the client passed on as it came.

Each direction is a thread that reads, puts the piece on the tape, and writes; so a request is on the tape before the
agent can answer it. Writing blocks while the other side is slow, which is how slowness travels. The main thread waits
for signals: those that were sent to us go to the agent, and SIGCHLD says that it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from callslip.wrap.frames import AGENT, CLIENT, ENDED, POLICY
from callslip.wrap.held_requests import HeldRequest, HeldRequests
from callslip.wrap.io import Outlet, let_go, pieces
from callslip.wrap.recorder_pipe import RecorderPipe, Stopped

if TYPE_CHECKING:
    from callslip.wrap.permission_filter import PermissionFilter

STDIN, STDOUT = 0, 1
FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
AWAITED = {*FORWARDED, signal.SIGCHLD}
LAST_WORDS = 5.0


class Agent:
    """The agent, or whatever its `role` is, and what passes between it and whoever started us."""

    def __init__(self, command: list[str], role: str = "agent") -> None:
        self.command, self.role = command, role
        self.process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = os.dup(self.process.stdin.fileno()), os.dup(self.process.stdout.fileno())
        self.process.stdin.close()  # Plain numbers from here on: they are closed by whoever is done with them.
        self.process.stdout.close()

    def stop(self) -> None:
        """Make it end: kindly, then by force."""
        self.process.terminate()
        force = threading.Timer(LAST_WORDS, self.process.kill)
        force.daemon = True
        force.start()


class Proxy:
    """One run. With a `desk`, requests that it keeps do not reach the client; `closed` lets nothing by unrecorded."""

    def __init__(
        self, agent: Agent, tape: RecorderPipe, *, desk: PermissionFilter | None = None, closed: bool = False
    ) -> None:
        self._agent = agent
        self._tape = tape
        self._desk = desk
        self._closed = closed
        self._to_agent, self._to_client = Outlet(agent.stdin), Outlet(STDOUT)
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._inbox = HeldRequests(tape, self._to_agent, self._to_client, self._work.put, closed=closed)
        self._gone, self._going = os.pipe()

    def run(self) -> int:
        """Until the agent has ended and all that it said was passed on. Its exit status, or minus its signal."""
        mask = _await_signals()  # Before the first thread: each has the mask of whoever started it.
        self._tape.start()
        from_client, from_agent, answering = (
            threading.Thread(target=work, daemon=True) for work in (self._from_client, self._from_agent, self._answer)
        )
        from_client.start()
        from_agent.start()
        if self._desk is not None:
            answering.start()
        status = _outlive(self._agent.process)
        self._tape.note(ENDED, how(status, self._agent.role).encode())
        os.close(self._going)
        _default_signals(mask)
        from_agent.join()
        self._tape.end_line(CLIENT)  # Its thread may wait for the client for ever.
        return status

    def _from_client(self) -> None:
        try:
            for data in pieces(STDIN):
                self._record(CLIENT, data)
                self._to_agent.write(data)
        except (OSError, Stopped):
            pass
        finally:
            let_go(STDIN)
            self._inbox.hang_up()
            self._to_agent.close()
            self._tape.end_line(CLIENT)

    def _from_agent(self) -> None:
        try:
            for data in self._passing():
                self._record(AGENT, data)
                self._to_client.write(data)
        except (OSError, Stopped):
            pass
        finally:
            os.close(self._agent.stdout)
            let_go(STDOUT)
            self._tape.end_line(AGENT)

    def _record(self, kind: bytes, data: bytes) -> None:
        lines = self._tape.put(kind, data)
        if self._closed:
            self._tape.wait(lines)

    def recording(self, problem: str) -> None:
        """Hear from the recorder whether it can record."""
        self._inbox.recording(problem)

    def _passing(self) -> Iterator[bytes]:
        """What the agent says, without the requests that the desk keeps."""
        said = pieces(self._agent.stdout, self._gone)
        if self._desk is None:
            yield from said
            return
        for data in said:
            for piece, kept in self._desk.sort(data):
                if kept is None or (isinstance(kept, HeldRequest) and not self._inbox.hold(kept.key, piece)):
                    yield piece
                elif not isinstance(kept, HeldRequest):
                    self._record(AGENT, piece)
                    self._record(POLICY, kept.record)
                    self._work.put(partial(self._to_agent.insert, kept.line))
        yield from self._desk.rest()

    def _answer(self) -> None:
        """Give the agent its answers. A thread by itself, as an agent that speaks may not be listening."""
        while True:
            work = self._work.get()
            with suppress(OSError, Stopped):
                work()


def how(status: int, role: str = "agent") -> str:
    """How an agent ended, as the reason that its open calls ended for."""
    if status >= 0:
        return f"the {role} ended (exit status {status}) before this call did"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the {role} was killed ({name}) before this call ended"


def exit_status(status: int) -> int:
    """What a shell makes of it."""
    return status if status >= 0 else 128 - status


# Signals


def _await_signals() -> set[signal.Signals]:
    """From now on signals wait until they are asked for, in every thread. Gives the mask that was."""
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # Not everywhere can one wait for what is ignored.
    return signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)  # pyright: ignore[reportReturnType]


def _default_signals(mask: set[signal.Signals]) -> None:
    """From now on a signal is for us, and we end by it."""
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _outlive(process: subprocess.Popen[bytes]) -> int:
    """Wait for the agent to end, and hand on the signals that come meanwhile."""
    next_signal = _next_signal()
    while (status := process.poll()) is None:
        number = next_signal()
        if number in FORWARDED:
            process.send_signal(number)
    return status


def _next_signal() -> Callable[[], int]:
    """What waits for a signal. One that the terminal sent (0 here) went to the agent as well: it is not sent twice."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return lambda: signal.sigwait(AWAITED)

    def wait() -> int:
        told = signal.sigwaitinfo(AWAITED)
        return told.si_signo if told.si_code <= 0 else 0

    return wait
