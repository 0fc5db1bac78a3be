"""A command under watch, seen from the host: one socket to its supervisor, read as it comes.

All of it is callbacks of the event loop and none of it is a task, so that nobody can cancel it half way.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

from callslip.agent.output_stream import Live
from callslip.agent.supervisor import wire
from callslip.agent.supervisor.processes import KILL_TIMEOUT_S
from callslip.agent.transcript import Transcript

# The folder goes last in the path: nothing in it can stand in front of a module of Python's own.
BOOT = "import sys; sys.path.append(sys.argv[1]); from supervisor.main import main; main()"
SUPERVISOR = [sys.executable, "-I", "-S", "-c", BOOT, str(Path(__file__).parent)]
REAPED_EVERY = 0.001
CHUNK = 256 * 2**10

STREAMS = {kind: (stream, last) for last, kinds in enumerate((wire.LIVE, wire.LAST)) for stream, kind in kinds.items()}


class Process:
    """Starts at once. `gone` is done when nothing of the command is left, the supervisor included.

    `facts` is what the supervisor reported, nothing if it was killed; `status` is how it ended itself.
    """

    def __init__(self, request: wire.Request, transcript: Transcript, live: Live) -> None:
        self.facts: dict[str, str] = {}
        self.status = 0
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._transcript = transcript
        self._live = live
        self._grace = request.grace
        self._inbox = bytearray()
        self._outbox = request.encode()
        self._last_resort: asyncio.TimerHandle | None = None
        self._line, theirs = socket.socketpair()
        try:
            self._supervisor = _spawn(theirs)
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._read)
        self._loop.add_writer(self._line, self._write)

    def end(self) -> None:
        """Have it ended, if it has not: the supervisor hears that our side is closed."""
        if self._last_resort or self._line.fileno() < 0:
            return
        self._loop.remove_writer(self._line)
        try:
            self._line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It is gone already.
        self._last_resort = self._loop.call_later(self._grace + 2 * KILL_TIMEOUT_S, self._force)

    def _force(self) -> None:
        """A supervisor that was stopped hears nothing. It is killed, and what it watched ends with it."""
        self._supervisor.kill()
        self._last_resort = self._loop.call_later(2 * KILL_TIMEOUT_S, self._hang_up)

    def _write(self) -> None:
        try:
            self._outbox = self._outbox[self._line.send(self._outbox) :]
        except BlockingIOError:
            return
        except OSError:
            self._outbox = b""
        if not self._outbox:
            self._loop.remove_writer(self._line)

    def _read(self) -> None:
        try:
            data = self._line.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._hang_up()
        self._inbox += data
        for kind, position, body in wire.frames(self._inbox):
            self._take(kind, position, body)

    def _take(self, kind: bytes, position: int, body: bytes) -> None:
        if kind == wire.REPORT:
            lines = [line.partition(" ") for line in body.decode().splitlines()]
            self.facts = {name: value for name, _, value in lines}
        elif kind == wire.FULL:
            self._live.stop(position)
        else:
            stream, last = STREAMS[kind]
            self._transcript.add(stream, position, body, bool(last))
            if not last:
                self._live.add(stream, body)

    def _hang_up(self) -> None:
        """The line is closed from the other side by the last one there; from ours only if nothing else helped."""
        self._loop.remove_reader(self._line)
        self._loop.remove_writer(self._line)
        self._line.close()
        if self._last_resort:
            self._last_resort.cancel()
        self._reap()

    def _reap(self) -> None:
        """The line closes in the last moments of the supervisor; it is waited for without stopping the loop."""
        status = self._supervisor.poll()
        if status is None:
            self._loop.call_later(REAPED_EVERY, self._reap)
            return
        self.status = status
        self.gone.set_result(None)


def _spawn(line: socket.socket) -> subprocess.Popen[bytes]:
    """A session of its own: whoever interrupts the host by its terminal leaves the ending to the host."""
    nothing = subprocess.DEVNULL
    return subprocess.Popen(SUPERVISOR, stdin=line.fileno(), stdout=nothing, stderr=nothing, start_new_session=True)
