"""Permission requests that wait for an answer from the ledger, in the front.

The recorder either answers a request or has it released to the client. A request leaves this object once, so the agent
never gets two answers, and the recorder is informed which one it got.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from callslip.wrap.frames import Frame, Kind, decode_answer
from callslip.wrap.io import LineWriter
from callslip.wrap.recorder_pipe import RecorderPipe

RECORD_TIMEOUT_S = 10.0
"""How long a request may wait to be recorded before it goes to the client."""


class HeldRequest(NamedTuple):
    """A request to be answered in the ledger, by the JSON of its JSON-RPC id.

    If it `needs_person`, the policy is about it, so that no saved rule answers it.
    """

    request_id: bytes
    needs_person: bool = False


class Deadline(NamedTuple):
    """When a request must be recorded: by then the recorder must have recorded `lines` lines."""

    at: float
    request_id: bytes
    line: bytes
    lines: int


class HeldRequests:
    """The held requests of one agent. `run_later` runs a function in a thread that may block.

    With `fail_closed` nothing passes unrecorded.
    """

    def __init__(
        self,
        pipe: RecorderPipe,
        to_agent: LineWriter,
        to_client: LineWriter,
        run_later: Callable[[Callable[[], None]], None],
        *,
        fail_closed: bool = False,
    ) -> None:
        self._pipe, self._to_agent, self._to_client, self._run_later = pipe, to_agent, to_client, run_later
        self._fail_closed = fail_closed
        self._lines: dict[bytes, bytes] = {}  # By request id.
        self._deadlines: deque[Deadline] = deque()
        self._lock = threading.Lock()  # The frame of a request precedes the frame of its answer.
        self._recording_fails = self._client_closed = False
        pipe.on_request_frame = lambda frame: run_later(partial(self._handle, frame))

    def hold(self, request: HeldRequest, line: bytes) -> bool:
        """Hold a request and return True, or return False if it cannot be answered in the ledger."""
        request_id = request.request_id
        with self._lock:
            if self._recording_fails or self._client_closed or request_id in self._lines:
                return False
            lines = self._pipe.try_send(Kind.PERSON_REQUEST_HELD if request.needs_person else Kind.REQUEST_HELD, line)
            if not lines:
                return False
            self._lines[request_id] = line
        if self._fail_closed:
            self._pipe.wait_recorded(lines)
            return True
        deadline = Deadline(time.monotonic() + RECORD_TIMEOUT_S, request_id, line, lines)
        with self._lock:
            self._deadlines.append(deadline)
            if len(self._deadlines) == 1:
                self._start_timer(deadline.at)
        return True

    def _start_timer(self, at: float) -> None:
        """Start the one timer for all requests; a timer is a thread."""
        timer = threading.Timer(max(0, at - time.monotonic()), self._run_later, (self._check_deadlines,))
        timer.daemon = True
        timer.start()

    def _check_deadlines(self) -> None:
        """Release requests that are not recorded in time: a recorder that hangs reports no problem."""
        due: list[Deadline] = []
        with self._lock:
            while self._deadlines and self._deadlines[0].at <= time.monotonic():
                due.append(self._deadlines.popleft())
            if self._deadlines:
                self._start_timer(self._deadlines[0].at)
        for deadline in due:
            is_held = self._lines.get(deadline.request_id) is deadline.line
            if is_held and self._pipe.recorded_lines < deadline.lines:
                self._release(deadline.request_id)

    def on_problem(self, problem: str) -> None:
        """Release all requests and hold no more while recording fails, because the ledger cannot answer them."""
        self._recording_fails = bool(problem)
        if problem and not self._fail_closed:
            self._run_later(self._release_all)

    def close_client(self) -> None:
        """Hold no more requests: the client, and with it the agent's input, is closed."""
        self._client_closed = True
        self._pipe.send_event(Kind.CLIENT_CLOSED)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.RELEASE:
            self._release(frame.payload)
        else:
            self._answer(*decode_answer(frame.payload))

    def _answer(self, request_id: bytes, line: bytes) -> None:
        with self._lock:
            if self._lines.pop(request_id, None) is None:
                return
            lines = self._pipe.send(Kind.ANSWER_SENT, line)
        if self._fail_closed:
            self._pipe.wait_recorded(lines)
        self._to_agent.insert(line)

    def _release(self, request_id: bytes) -> None:
        with self._lock:
            line = self._lines.pop(request_id, None)
            if line is None:
                return
            self._pipe.send_event(Kind.REQUEST_RELEASED, request_id)
        self._to_client.insert(line)

    def _release_all(self) -> None:
        for request_id in list(self._lines):
            self._release(request_id)
