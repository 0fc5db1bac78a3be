"""Requests that are held: they wait for an answer from the ledger, and go to the client where there can be none.

The recorder says what becomes of them: `=ID<tab>ANSWER` is for the agent, `~ID` gives a request to the client. Whatever
it says, a request leaves here once: so the agent never gets two answers, and the record is told which it got.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from callslip.wrap.frames import ANSWER, GONE, HELD, RELEASED
from callslip.wrap.io import Outlet
from callslip.wrap.recorder_pipe import RecorderPipe

RECORD_TIMEOUT_S = 10.0
"""How long (s) a request waits to be recorded before the client is asked."""


class HeldRequest(NamedTuple):
    """A request that is to be answered in the ledger: its id as JSON."""

    key: bytes


class Doubt(NamedTuple):
    """That a request may not be recorded by this time, and what shows that it is."""

    at: float
    key: bytes
    line: bytes
    lines: int


class HeldRequests:
    """The requests of one agent. `later` runs something where it may wait; `closed` lets nothing by unrecorded."""

    def __init__(
        self,
        tape: RecorderPipe,
        to_agent: Outlet,
        to_client: Outlet,
        later: Callable[[Callable[[], None]], None],
        *,
        closed: bool = False,
    ) -> None:
        self._tape, self._to_agent, self._to_client, self._later = tape, to_agent, to_client, later
        self._closed = closed
        self._held: dict[bytes, bytes] = {}
        self._doubts: deque[Doubt] = deque()
        self._lock = threading.Lock()  # A request and what becomes of it stand on the tape in this order.
        self._failing = self._gone = False
        tape.settled = lambda said: later(partial(self._settle, said))

    def hold(self, key: bytes, line: bytes) -> bool:
        """Keep a request. Not if it could not be answered: then it is the client's."""
        with self._lock:
            if self._failing or self._gone or key in self._held:
                return False
            lines = self._tape.offer(HELD, line)
            if not lines:
                return False
            self._held[key] = line
        if self._closed:
            self._tape.wait(lines)
        else:
            self._remind(Doubt(time.monotonic() + RECORD_TIMEOUT_S, key, line, lines))
        return True

    def _remind(self, doubt: Doubt) -> None:
        with self._lock:
            self._doubts.append(doubt)
            if len(self._doubts) == 1:
                self._look_at(doubt.at)

    def _look_at(self, at: float) -> None:
        """One timer, however many requests there are: it is a thread."""
        timer = threading.Timer(max(0, at - time.monotonic()), self._later, (self._look,))
        timer.daemon = True
        timer.start()

    def _look(self) -> None:
        """A recorder that stands still says nothing of its problem."""
        due: list[Doubt] = []
        with self._lock:
            while self._doubts and self._doubts[0].at <= time.monotonic():
                due.append(self._doubts.popleft())
            if self._doubts:
                self._look_at(self._doubts[0].at)
        for doubt in due:
            if self._tape.done < doubt.lines and self._held.get(doubt.key) is doubt.line:
                self._release(doubt.key)

    def recording(self, problem: str) -> None:
        """While nothing can be recorded nobody can answer here: the client is asked."""
        self._failing = bool(problem)
        if problem and not self._closed:
            self._later(self._release_all)

    def hang_up(self) -> None:
        """The client is gone, and with it the way to the agent."""
        self._gone = True
        self._tape.note(GONE)

    def _settle(self, said: bytes) -> None:
        key, _, answer = said[1:].partition(b"\t")
        if answer:
            self._answer(key, answer + b"\n")
        else:
            self._release(key)

    def _answer(self, key: bytes, line: bytes) -> None:
        with self._lock:
            if self._held.pop(key, None) is None:
                return
            lines = self._tape.put(ANSWER, line)
        if self._closed:
            self._tape.wait(lines)
        self._to_agent.insert(line)

    def _release(self, key: bytes) -> None:
        with self._lock:
            line = self._held.pop(key, None)
            if line is None:
                return
            self._tape.note(RELEASED, key)
        self._to_client.insert(line)

    def _release_all(self) -> None:
        for key in list(self._held):
            self._release(key)
