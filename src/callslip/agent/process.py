"""The host's side of a supervised command: one socket to the supervisor.

It uses callbacks of the event loop and no task, so it cannot be cancelled half way.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

from callslip.agent.output_stream import OutputStream
from callslip.agent.supervisor import wire
from callslip.agent.supervisor.processes import KILL_TIMEOUT_S
from callslip.agent.transcript import Transcript
from callslip.model.agent_env import agent_environment

# The folder is the last one in the path, so that none of its modules hides a standard one.
BOOT = "import sys; sys.path.append(sys.argv[1]); from supervisor.main import main; main()"
SUPERVISOR = [sys.executable, "-I", "-S", "-c", BOOT, str(Path(__file__).parent)]
REAP_INTERVAL_S = 0.001
CHUNK_BYTES = 256 * 2**10

LIVE_STREAMS = {kind: stream for stream, kind in wire.LIVE.items()}
TAIL_STREAMS = {kind: stream for stream, kind in wire.LAST.items()}


class Process:
    """A started command. `gone` is done when no process of it is left, including the supervisor.

    `facts` is the supervisor's report, empty if it was killed; `status` is its own exit status.
    """

    def __init__(self, request: wire.Request, transcript: Transcript, live: OutputStream) -> None:
        self.facts: dict[str, str] = {}
        self.status = 0
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._transcript = transcript
        self._live = live
        self._grace = request.grace
        self._inbox = bytearray()
        self._outbox = request.encode()
        self._kill_timer: asyncio.TimerHandle | None = None
        self._socket, supervisor_socket = socket.socketpair()
        null = subprocess.DEVNULL
        try:  # In a new session, so that an interrupt from the terminal reaches only the host.
            self._supervisor = subprocess.Popen(
                SUPERVISOR,
                stdin=supervisor_socket.fileno(),
                stdout=null,
                stderr=null,
                start_new_session=True,
                env=agent_environment(),
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            supervisor_socket.close()
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)
        self._loop.add_writer(self._socket, self._write)

    def end(self) -> None:
        """End the command if it still runs, by closing our side of the socket."""
        if self._kill_timer or self._socket.fileno() < 0:
            return
        self._loop.remove_writer(self._socket)
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The supervisor is gone.
        self._kill_timer = self._loop.call_later(self._grace + 2 * KILL_TIMEOUT_S, self._kill)

    def _kill(self) -> None:
        """Kill a supervisor that does not react, for example because it was stopped. The command ends with it."""
        self._supervisor.kill()
        self._kill_timer = self._loop.call_later(2 * KILL_TIMEOUT_S, self._close)

    def _write(self) -> None:
        try:
            self._outbox = self._outbox[self._socket.send(self._outbox) :]
        except BlockingIOError:
            return
        except OSError:
            self._outbox = b""
        if not self._outbox:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._close()
        self._inbox += data
        for kind, position, body in wire.take_frames(self._inbox):
            self._handle(kind, position, body)

    def _handle(self, kind: bytes, position: int, body: bytes) -> None:
        if kind == wire.REPORT:
            self.facts = wire.decode_facts(body)
        elif kind == wire.FULL:
            self._live.stop(position)
        elif kind in LIVE_STREAMS:
            self._transcript.add(LIVE_STREAMS[kind], position, body)
            self._live.add(LIVE_STREAMS[kind], body)
        else:
            self._transcript.add(TAIL_STREAMS[kind], position, body, is_tail=True)

    def _close(self) -> None:
        """Close the socket, which the last process has closed, or which is given up."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        if self._kill_timer:
            self._kill_timer.cancel()
        self._reap()

    def _reap(self) -> None:
        """Wait for the supervisor, which closes the socket just before it ends, without blocking the loop."""
        status = self._supervisor.poll()
        if status is None:
            self._loop.call_later(REAP_INTERVAL_S, self._reap)
            return
        self.status = status
        self.gone.set_result(None)
